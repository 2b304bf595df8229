"""The files of a rowset as catalogue entries and as JSON, for processes without the catalogue.

Scan tokens and jobs of worker processes carry this JSON, and a job returns its written files as
JSON too. Only numbers, texts and lists are exchanged: input from outside is data, never code.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nyala.catalog.model import DeltaEntry, PartEntry, RowSetEntry, is_inside
from nyala.cfile.blocks.cache import BlockCache
from nyala.cfile.column import ColumnKey, ColumnPlace, WrittenFile
from nyala.cfile.format import ROWS_PER_BLOCK_LOG2_MAX
from nyala.delta.delta_file import WrittenDelta
from nyala.env import Env
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.rowset.meta import RowSetMeta
from nyala.rowset.writer import WrittenRowSet
from nyala.schema.schema import Schema
from nyala.tablet.state.opening import entry_of, open_rowset, part_entry_of
from nyala.tablet.state.validation import checked, is_unsigned


@dataclass(frozen=True)
class RowSetFiles:
    """A rowset on disk: its entry, its parts (oldest first) and its delta files (by timestamp)."""

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
            "rowset": {
                **_fields(self.rowset),
                "key_min": self.rowset.key_min.hex(),
                "key_max": self.rowset.key_max.hex(),
            },
            "parts": [_fields(part) for part in self.parts],
            "deltas": [{**_fields(delta), "column_ids": list(delta.column_ids)} for delta in self.deltas],
        }

    @staticmethod
    def from_json(fields: dict[str, Any]) -> RowSetFiles:
        """Raises: ValueError, TypeError, LookupError if `to_json` did not make `fields`."""
        rowset = fields["rowset"]
        files = RowSetFiles(
            RowSetEntry(
                **{
                    **rowset,
                    "key_min": bytes.fromhex(rowset["key_min"]),
                    "key_max": bytes.fromhex(rowset["key_max"]),
                    "places": decode_places(rowset["places"]),
                }
            ),
            tuple(PartEntry(**{**part, "places": decode_places(part["places"])}) for part in fields["parts"]),
            tuple(
                DeltaEntry(
                    **{
                        **delta,
                        "column_ids": tuple(delta["column_ids"]),
                        "places": decode_places(delta["places"]),
                    }
                )
                for delta in fields["deltas"]
            ),
        )
        entries: list[RowSetEntry | PartEntry | DeltaEntry] = [files.rowset, *files.parts, *files.deltas]
        for entry in entries:
            checked(entry)
            if not is_inside(entry.path):
                raise ValueError(f"the path {entry.path!r} does not stay inside the store's folder")
        if (
            files.rowset.row_count > files.rowset.size_bytes << ROWS_PER_BLOCK_LOG2_MAX
        ):  # M10 of the catalogue
            raise ValueError(f"{files.rowset.row_count} rows cannot fit in {files.rowset.size_bytes} bytes")
        if files.rowset.key_min > files.rowset.key_max:
            raise ValueError(f"rowset {files.rowset.id} has a key_min greater than its key_max")
        owners = {*(part.rowset_id for part in files.parts), *(delta.rowset_id for delta in files.deltas)}
        if not owners <= {files.rowset.id}:
            raise ValueError("the files belong to several rowsets")
        for delta in files.deltas:
            _check_delta(delta)
        return files


def _fields(entry: RowSetEntry | PartEntry | DeltaEntry) -> dict[str, Any]:
    fields = {field.name: getattr(entry, field.name) for field in dataclasses.fields(entry)}
    return {**fields, "places": encode_places(entry.places)}


def encode_places(places: Sequence[ColumnPlace]) -> list[list[int]]:
    return [[p.key.role, p.key.group, p.key.column_id, p.offset, p.length] for p in places]


def decode_places(places: Sequence[Sequence[int]]) -> tuple[ColumnPlace, ...]:
    """Raises: ValueError, TypeError if `encode_places` did not make `places`."""
    if any(type(number) is not int for place in places for number in place):
        raise ValueError("the location of a column is not made of numbers")
    if any(not is_unsigned(number) for place in places for number in place[3:]):
        raise ValueError("the location of a column is before the start of the file")
    return tuple(
        ColumnPlace(ColumnKey(role, group, column), offset, length)
        for role, group, column, offset, length in places
    )


def _check_delta(delta: DeltaEntry | WrittenDelta) -> None:
    if delta.kind not in ("undo", "redo") or any(type(number) is not int for number in delta.column_ids):
        raise ValueError(f"invalid kind {delta.kind!r} or columns {delta.column_ids} of a delta file")


# ----------------------------------------------------------------------------------- written files


def encode_written_rowset(made: WrittenRowSet) -> dict[str, Any]:
    return {
        "meta": {
            **{field.name: getattr(made.meta, field.name) for field in dataclasses.fields(made.meta)},
            "key_min": made.meta.key_min.hex(),
            "key_max": made.meta.key_max.hex(),
            "columns": encode_places(made.meta.columns),
        },
        "undo": None if made.undo is None else encode_delta(made.undo),
        "undo_path": made.undo_path,
    }


def decode_written_rowset(fields: dict[str, Any]) -> WrittenRowSet:
    """Raises: ValueError, TypeError, LookupError unless `encode_written_rowset` made `fields`."""
    meta = fields["meta"]
    undo, undo_path = fields["undo"], fields["undo_path"]
    if (undo is None) != (undo_path is None) or not isinstance(undo_path, str | None):
        raise ValueError(f"invalid path {undo_path!r} of an UNDO file")
    return WrittenRowSet(
        checked(
            RowSetMeta(
                **{
                    **meta,
                    "key_min": bytes.fromhex(meta["key_min"]),
                    "key_max": bytes.fromhex(meta["key_max"]),
                    "columns": decode_places(meta["columns"]),
                }
            )
        ),
        None if undo is None else decode_delta(undo),
        undo_path,
    )


def encode_file(file: WrittenFile) -> dict[str, Any]:
    return {
        "path": file.path,
        "file_id": file.file_id,
        "size_bytes": file.size_bytes,
        "columns": encode_places(file.columns),
    }


def decode_file(fields: dict[str, Any]) -> WrittenFile:
    return checked(
        WrittenFile(fields["path"], fields["file_id"], fields["size_bytes"], decode_places(fields["columns"]))
    )


def encode_delta(delta: WrittenDelta) -> dict[str, Any]:
    return {
        "file": encode_file(delta.file),
        "kind": delta.kind,
        "timestamp_min": delta.timestamp_min,
        "timestamp_max": delta.timestamp_max,
        "record_count": delta.record_count,
        "column_ids": list(delta.column_ids),
    }


def decode_delta(fields: dict[str, Any]) -> WrittenDelta:
    delta = checked(
        WrittenDelta(
            **{**fields, "file": decode_file(fields["file"]), "column_ids": tuple(fields["column_ids"])}
        )
    )
    _check_delta(delta)
    return delta
