"""A version of a rowset on disk: which files and stores it is made of, and what the next version is made of.

      undo (newest first)        base            redo (oldest first)      frozen        deltas
    +--------+--------+     +------------+     +--------+--------+      +--------+    +----------+
    | UNDO 1 | UNDO 0 | <-- | 40.base    | --> | REDO 0 | REDO 1 | -->  | memory | -> | memory   |
    +--------+--------+     +------------+     +--------+--------+      +--------+    +----------+
      files                   one file, and      files                  being         takes
                              parts (`part`)     delta flushes          flushed       changes

A version is an immutable value: the `with_…` methods make the next one, which the tablet installs. Versions share the
open files; only the newest DeltaMemStore grows, at its end, with timestamps that no reader was promised yet.

Invariants
    X2  For each column, stores follow one another in time: undo, redo, frozen, deltas, each with later
        timestamps than the one before (D4). REDO stores do so as a whole (rule R4); UNDO files need not: a
        major delta compaction of some columns makes one while changes of the others, of the same time, stay REDO.
    X4  A column without a place in the base file was added after it was written: its base is its read default.

Immutable; any thread may use it. Left out: what rows come to at a snapshot, and where a key is: `disk_rowset`.
Source: Kudu tablet design, "Historical MVCC in DiskRowSets" to "Summary of delta file processing".
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from nyala.cfile.blocks.cache import BlockCache, Memo
from nyala.cfile.column import BASE, ColumnKey
from nyala.cfile.reader import CFileReader
from nyala.delta.delta_file import DeltaFile
from nyala.delta.mem_store import DeltaMemStore
from nyala.delta.run import LIVENESS
from nyala.env.files import Files
from nyala.errors import CorruptionError
from nyala.keys.codec import KeyCodec
from nyala.rowset.changes import Changes
from nyala.rowset.key_lookup.key_index import KeyIndex
from nyala.rowset.meta import RowSetMeta
from nyala.rowset.part import Part
from nyala.schema.conversion.convert import default_array
from nyala.schema.schema import ColumnSchema, Schema

if TYPE_CHECKING:
    from nyala.cfile.column_reader import ColumnReader

__all__ = ["RowSetVersion"]


@dataclass(frozen=True, eq=False)
class RowSetVersion:
    """What one version of a rowset on disk is made of (see the module). Compared by identity."""

    meta: RowSetMeta
    reader: CFileReader
    keys: KeyIndex
    codec: KeyCodec
    memo: Memo  # what scans may ask for again; all versions share it
    parts: tuple[Part, ...] = ()  # oldest first
    undo: tuple[DeltaFile, ...] = ()  # newest first
    redo: tuple[DeltaFile, ...] = ()  # oldest first
    frozen: tuple[DeltaMemStore, ...] = ()  # oldest first: set aside, waiting to be written
    deltas: DeltaMemStore = dataclasses.field(default_factory=DeltaMemStore)  # takes changes
    changes: Changes = dataclasses.field(init=False, repr=False)
    """Its stores, column by column."""
    _base_columns: dict[int, ColumnReader | None] = dataclasses.field(
        init=False, repr=False, default_factory=dict
    )
    """What `base_column` has found of this version."""

    def __post_init__(self) -> None:
        changes = Changes(self.undo, self.redo, self.frozen, self.deltas, self.memo)
        object.__setattr__(self, "changes", changes)

    @classmethod
    def open(
        cls,
        files: Files,
        root: str,
        meta: RowSetMeta,
        schema: Schema,
        cache: BlockCache | None = None,
        *,
        parts: Sequence[Part] = (),
        undo: Sequence[DeltaFile] = (),
        redo: Sequence[DeltaFile] = (),
        deltas: DeltaMemStore | None = None,
    ) -> Self:
        """A rowset of the store in the folder `root`. Nothing is read, nor a file opened, before it is needed.

        parts: oldest first; undo: newest first; redo: oldest first.
        Raises: CorruptionError when the files' timestamps say otherwise (X2).
        """
        types = {LIVENESS: pa.bool_(), **schema.arrow_types}
        reader = CFileReader(
            files, os.path.join(root, meta.path), cache, meta.columns, types, meta.size_bytes, meta.file_id
        )
        codec = KeyCodec([column.type for column in schema.key_columns])
        keys = KeyIndex(reader, codec, schema.key_ids, meta.row_count, cache)
        memory = DeltaMemStore() if deltas is None else deltas
        rowset = cls(
            meta, reader, keys, codec, Memo(cache), tuple(parts), tuple(undo), tuple(redo), (), memory
        )  # fmt: skip
        rowset.changes.check_order(rowset.id)
        return rowset

    # --- what it is -------------------------------------------------------------------------------

    @property
    def id(self) -> int:
        return self.meta.id

    @property
    def row_count(self) -> int:
        """Rows in the base, dead ones too."""
        return self.meta.row_count

    @property
    def size_bytes(self) -> int:
        """Bytes on disk: base, UNDO and REDO."""
        return self.base_bytes + sum(file.size_bytes for file in (*self.undo, *self.redo))

    @property
    def base_bytes(self) -> int:
        """Bytes on disk of the base file and the parts."""
        return self.meta.size_bytes + sum(part.size_bytes for part in self.parts)

    @property
    def column_ids(self) -> frozenset[int]:
        """The columns, LIVENESS among them, of which a file has base values or changes."""
        base = {place.key.column_id for place in self.meta.columns if place.key.role == BASE}
        others = (
            (part.column_ids for part in self.parts),
            (file.column_ids for file in (*self.undo, *self.redo)),
        )
        return frozenset(base).union(*itertools.chain(*others))

    @property
    def cache_limit_bytes(self) -> int | None:
        """What the block cache may hold that its blocks go to; None when they go to none."""
        return self.reader.cache_limit_bytes

    def row_bytes(self, column: ColumnSchema) -> float:
        """About how many bytes a value of the column takes in memory, on average. Opens its footer."""
        reader = self.base_column(column.id)
        return default_array(column, 1, "read").nbytes if reader is None else reader.row_bytes

    @property
    def paths(self) -> list[str]:
        """All its files, relative to the store's folder."""
        deltas = [file.entry.path for file in (*self.undo, *self.redo)]
        return [self.meta.path, *(part.path for part in self.parts), *deltas]

    @property
    def nbytes(self) -> int:
        """Bytes in memory that a flush would free: changes not yet in a file."""
        return self.deltas.nbytes + sum(store.nbytes for store in self.frozen)

    @property
    def timestamp_min(self) -> int | None:
        """The oldest change that is in memory only; None when there is none."""
        times = [store.timestamp_min for store in (*self.frozen, self.deltas)]
        return min((time for time in times if time is not None), default=None)

    def close(self) -> None:
        """Let go of all files. Only when no version of the rowset is read any more."""
        self.memo.close()
        self.keys.close()
        self.reader.close()
        for part in self.parts:
            part.reader.close()
        for file in (*self.undo, *self.redo):
            file.close()

    # --- its parts --------------------------------------------------------------------------------

    def base_column(self, column_id: int) -> ColumnReader | None:
        """The column's base, in the newest file that has it; None when no file has (X4). Raises:
        CorruptionError."""
        known = self._base_columns
        if column_id not in known:
            known[column_id] = self._find_base_column(column_id)
        return known[column_id]

    def _find_base_column(self, column_id: int) -> ColumnReader | None:
        key = ColumnKey(BASE, 0, column_id)
        for part in reversed(self.parts):
            if column_id in part.column_ids:
                file = part.reader
                break
        else:
            if key not in self.meta.places:
                return None
            file = self.reader
        reader = file.column(key)
        if reader is None or reader.row_count != self.row_count:
            found = "none" if reader is None else f"one with {reader.row_count}"
            raise CorruptionError(
                f"expected column {column_id} with {self.row_count} rows, found {found}", file.path
            )
        return reader

    # --- the next version -------------------------------------------------------------------------

    def with_frozen_deltas(self, fresh: DeltaMemStore | None = None) -> Self:
        """Set the DeltaMemStore aside to be written; `fresh` takes changes from now on."""
        return dataclasses.replace(
            self,
            frozen=(*self.frozen, self.deltas),
            deltas=DeltaMemStore() if fresh is None else fresh,
        )

    def with_flushed_deltas(self, files: Sequence[DeltaFile], deltas_durable: int) -> Self:
        """Put REDO files in place of all stores set aside; changes up to `deltas_durable` are on disk now."""
        assert deltas_durable >= self.meta.deltas_durable, "R2: durable marks only rise"
        meta = dataclasses.replace(self.meta, deltas_durable=deltas_durable)
        return dataclasses.replace(self, meta=meta, redo=(*self.redo, *files), frozen=())

    def with_merged_redo(self, inputs: Sequence[DeltaFile], merged: DeltaFile | None) -> Self:
        """Put one REDO file in place of neighbouring ones: a minor delta compaction. None: nothing of them is left."""
        first = self.redo.index(inputs[0])
        assert self.redo[first : first + len(inputs)] == tuple(inputs), "only neighbours are merged (R4)"
        made = () if merged is None else (merged,)
        redo = (*self.redo[:first], *made, *self.redo[first + len(inputs) :])
        return dataclasses.replace(self, redo=redo)

    def with_major_compaction(
        self, inputs: Sequence[DeltaFile], rest: DeltaFile | None, part: Part | None, undo: DeltaFile | None
    ) -> Self:
        """Put what a major delta compaction made in the place of its inputs: the oldest REDO files.

        rest: REDO of the columns that were not compacted; part: the new base columns; undo: their past.
        """
        assert self.redo[: len(inputs)] == tuple(inputs), (
            "a major delta compaction takes the oldest REDO files"
        )
        redo = (*(() if rest is None else (rest,)), *self.redo[len(inputs) :])
        parts = self.parts
        if part is not None:
            parts = (*(old for old in parts if not old.column_ids <= part.column_ids), part)
        return dataclasses.replace(
            self, redo=redo, parts=parts, undo=self.undo if undo is None else (undo, *self.undo)
        )

    def with_undo(self, inputs: Sequence[DeltaFile], merged: DeltaFile | None) -> Self:
        """Put one UNDO file, or none, in the place of `inputs`."""
        gone = set(map(id, inputs))
        assert len(gone) == len([file for file in self.undo if id(file) in gone]), (
            "inputs are UNDO files of its own"
        )
        undo = [file for file in self.undo if id(file) not in gone]
        if merged is not None:  # where the newest of them was: files stay newest first
            undo.insert(next(index for index, file in enumerate(self.undo) if id(file) in gone), merged)
        return dataclasses.replace(self, undo=tuple(undo))
