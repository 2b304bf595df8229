"""The files of a rowset as JSON, for processes that do not read the catalogue.

Scan tokens and the jobs of other processes contain this JSON, and a job returns its written files
as JSON too. Entries have the same JSON as in the catalogue (`catalog.codec`): only numbers, texts
and lists, so input from outside is never executed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nyala.catalog.codec import DELTAS, PARTS, ROWSETS
from nyala.catalog.model import DeltaEntry, PartEntry, RowSetEntry, is_inside
from nyala.cfile.blocks.cache import BlockCache
from nyala.cfile.column import WrittenFile
from nyala.cfile.format import ROWS_PER_BLOCK_LOG2_MAX
from nyala.delta.delta_file import WrittenDelta
from nyala.env import Env
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.rowset.writer import WrittenRowSet
from nyala.schema.schema import Schema
from nyala.tablet.state.opening import delta_entry, entry_of, open_rowset, part_entry_of
from nyala.tablet.state.validation import checked


@dataclass(frozen=True)
class RowSetFiles:
    """The catalogue entries of the files of one rowset on disk.

    rowset: the file with the base data.
    parts:  files with columns that a major delta compaction wrote again, oldest first.
    deltas: UNDO and REDO files, by timestamp.
    """

    rowset: RowSetEntry
    parts: tuple[PartEntry, ...]
    deltas: tuple[DeltaEntry, ...]

    @staticmethod
    def of(rowset: DiskRowSet) -> RowSetFiles:
        return RowSetFiles(
            RowSetEntry.from_meta(rowset.meta),
            tuple(part_entry_of(part) for part in rowset.parts),
            tuple(entry_of(file) for file in (*reversed(rowset.undo), *rowset.redo)),
        )

    def open(self, env: Env, root_path: str, cache: BlockCache | None, schema: Schema) -> DiskRowSet:
        """Return the DiskRowSet of these files, with an empty DeltaMemStore. Opens no file yet."""
        return open_rowset(env, root_path, self.rowset, self.deltas, cache, schema, self.parts)

    def to_json(self) -> dict[str, Any]:
        return {
            "rowset": ROWSETS.encode(self.rowset),
            "parts": list(map(PARTS.encode, self.parts)),
            "deltas": list(map(DELTAS.encode, self.deltas)),
        }

    @staticmethod
    def from_json(fields: dict[str, Any]) -> RowSetFiles:
        """Return the files that `to_json` encoded.

        Raises: ValueError, TypeError, LookupError for invalid fields.
        """
        rowset = _decode_rowset(fields["rowset"])
        parts = tuple(map(_decode_part, fields["parts"]))
        deltas = tuple(map(_decode_delta, fields["deltas"]))
        for path in (rowset.path, *(part.path for part in parts), *(delta.path for delta in deltas)):
            if not is_inside(path):
                raise ValueError(f"the path {path!r} does not stay inside the store's folder")
        if rowset.row_count > rowset.size_bytes << ROWS_PER_BLOCK_LOG2_MAX:  # M10 of the catalogue
            raise ValueError(f"{rowset.row_count} rows cannot fit in {rowset.size_bytes} bytes")
        if rowset.key_min > rowset.key_max:
            raise ValueError(f"rowset {rowset.id} has a key_min greater than its key_max")
        owners = {part.path: part.rowset_id for part in parts} | {d.path: d.rowset_id for d in deltas}
        for path, owner in owners.items():
            if owner != rowset.id:
                raise ValueError(f"the file {path!r} belongs to rowset {owner}, expected rowset {rowset.id}")
        return RowSetFiles(rowset, parts, deltas)


def _decode_rowset(fields: Any) -> RowSetEntry:
    return checked(RowSetEntry(**ROWSETS.decode(fields)))


def _decode_part(fields: Any) -> PartEntry:
    return checked(PartEntry(**PARTS.decode(fields)))


def _decode_delta(fields: Any) -> DeltaEntry:
    delta = checked(DeltaEntry(**DELTAS.decode(fields)))
    if delta.kind not in ("undo", "redo"):
        raise ValueError(f"invalid kind {delta.kind!r} of a delta file")
    return delta


# ── written files, which have no ids yet: each decode_… returns what its encode_… got, or raises
#    ValueError, TypeError or LookupError


def encode_written_rowset(made: WrittenRowSet) -> dict[str, Any]:
    return {
        "rowset": ROWSETS.encode(RowSetEntry.from_meta(made.meta)),
        "undo": None if made.undo is None else encode_delta(made.undo),
        "undo_path": made.undo_path,
    }


def decode_written_rowset(fields: dict[str, Any]) -> WrittenRowSet:
    undo, undo_path = fields["undo"], fields["undo_path"]
    if (undo is None) != (undo_path is None) or not isinstance(undo_path, str | None):
        raise ValueError(f"invalid path {undo_path!r} of an UNDO file")
    return WrittenRowSet(
        _decode_rowset(fields["rowset"]).meta(), None if undo is None else decode_delta(undo), undo_path
    )


def encode_file(file: WrittenFile) -> dict[str, Any]:
    return PARTS.encode(PartEntry(0, 0, file.path, file.file_id, file.size_bytes, tuple(file.columns)))


def decode_file(fields: dict[str, Any]) -> WrittenFile:
    return _file(_decode_part(fields))


def encode_delta(delta: WrittenDelta) -> dict[str, Any]:
    return DELTAS.encode(delta_entry(0, 0, delta.file.path, delta))


def decode_delta(fields: dict[str, Any]) -> WrittenDelta:
    entry = _decode_delta(fields)
    return WrittenDelta(
        _file(entry),
        entry.kind,
        entry.timestamp_min,
        entry.timestamp_max,
        entry.record_count,
        entry.column_ids,
    )


def _file(entry: PartEntry | DeltaEntry) -> WrittenFile:
    return WrittenFile(entry.path, entry.file_id, entry.size_bytes, entry.places)
