"""A version of a rowset on disk: its files and DeltaMemStores, and how the next version is created.

      undo (newest first)        base            redo (oldest first)      frozen        deltas
    +--------+--------+     +------------+     +--------+--------+      +--------+    +----------+
    | UNDO 1 | UNDO 0 | <-- | 40.base    | --> | REDO 0 | REDO 1 | -->  | memory | -> | memory   |
    +--------+--------+     +------------+     +--------+--------+      +--------+    +----------+
      files                   one file, and      files                  being         takes
                              parts (`part`)     delta flushes          flushed       changes

The base has the rows as of a flush or compaction. UNDO files have the changes before it, and REDO
files those after it. DeltaMemStores have the newest changes, which are in no file yet.

A version is an immutable value that any thread may use. The `with_…` methods create the next one,
and the tablet installs it. Versions share their open files. Only the newest DeltaMemStore grows, at
its end, with timestamps that no reader may see yet. `disk_rowset` reads rows and finds keys.

Invariants
    X2  For each column, the UNDO files, REDO files and DeltaMemStores do not overlap in time. UNDO
        is oldest, then come REDO, frozen and deltas. The changes of different columns follow this
        order too, with one exception: an UNDO change of one column may be newer than a REDO change
        of another. The reason is that a major delta compaction turns the REDO of some columns into
        UNDO.
    X4  If neither the base file nor a part has a column, it was added to the table later. Its base
        value is its `read_default`, the value of rows that are older than the column.

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


@dataclass(frozen=True, eq=False)
class RowSetVersion:
    """The files and DeltaMemStores of one version of a rowset.

    Two objects are equal only if they are the same object.
    """

    meta: RowSetMeta
    reader: CFileReader
    keys: KeyIndex
    codec: KeyCodec
    memo: Memo  # caches computed values for later scans; all versions share it
    parts: tuple[Part, ...] = ()  # oldest first
    undo: tuple[DeltaFile, ...] = ()  # newest first
    redo: tuple[DeltaFile, ...] = ()  # oldest first
    frozen: tuple[DeltaMemStore, ...] = ()  # oldest first; they are being flushed
    deltas: DeltaMemStore = dataclasses.field(default_factory=DeltaMemStore)  # takes changes
    changes: Changes = dataclasses.field(init=False, repr=False)
    """The changes in these stores, column by column."""
    _base_columns: dict[int, ColumnReader | None] = dataclasses.field(
        init=False, repr=False, default_factory=dict
    )
    """The columns that `base_column` has returned."""

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
        """Return a rowset of the store in the folder `root`. Files are opened at their first use.

        parts, redo: oldest first. undo: newest first.
        Raises: CorruptionError if the timestamps of the files contradict this order.
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

    # --- properties -------------------------------------------------------------------------------

    @property
    def id(self) -> int:
        return self.meta.id

    @property
    def row_count(self) -> int:
        """The number of rows, including dead rows."""
        return self.meta.row_count

    @property
    def size_bytes(self) -> int:
        """The size of all files on disk, in bytes."""
        return self.base_bytes + sum(file.size_bytes for file in (*self.undo, *self.redo))

    @property
    def base_bytes(self) -> int:
        """The size of the base file and the parts on disk, in bytes."""
        return self.meta.size_bytes + sum(part.size_bytes for part in self.parts)

    @property
    def column_ids(self) -> frozenset[int]:
        """The columns with base values or changes in a file; LIVENESS may be one of them."""
        base = {place.key.column_id for place in self.meta.columns if place.key.role == BASE}
        others = (
            (part.column_ids for part in self.parts),
            (file.column_ids for file in (*self.undo, *self.redo)),
        )
        return frozenset(base).union(*itertools.chain(*others))

    @property
    def cache_limit_bytes(self) -> int | None:
        """The byte limit of the rowset's block cache; None without a cache."""
        return self.reader.cache_limit_bytes

    def row_bytes(self, column: ColumnSchema) -> float:
        """Return the average size of one value of the column in memory, in bytes.

        Cost: reads the footer of the file with the column's base values.
        """
        reader = self.base_column(column.id)
        return default_array(column, 1, "read").nbytes if reader is None else reader.row_bytes

    @property
    def paths(self) -> list[str]:
        """The paths of all files, relative to the store's folder."""
        deltas = [file.entry.path for file in (*self.undo, *self.redo)]
        return [self.meta.path, *(part.path for part in self.parts), *deltas]

    @property
    def nbytes(self) -> int:
        """The size of the changes that are only in memory, in bytes."""
        return self.deltas.nbytes + sum(store.nbytes for store in self.frozen)

    @property
    def timestamp_min(self) -> int | None:
        """The timestamp of the oldest change that is in no file yet; None: all are in files."""
        times = [store.timestamp_min for store in (*self.frozen, self.deltas)]
        return min((time for time in times if time is not None), default=None)

    def close(self) -> None:
        """Close all files. No version of the rowset can be read after that."""
        self.memo.close()
        self.keys.close()
        self.reader.close()
        for part in self.parts:
            part.reader.close()
        for file in (*self.undo, *self.redo):
            file.close()

    # --- columns ----------------------------------------------------------------------------------

    def base_column(self, column_id: int) -> ColumnReader | None:
        """Return a reader of the column's newest base values; None if no file has the column.

        Raises: CorruptionError.
        """
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
            found = "no such column" if reader is None else f"{reader.row_count} rows"
            raise CorruptionError(
                f"expected column {column_id} with {self.row_count} rows, found {found}", file.path
            )
        return reader

    # --- the next version -------------------------------------------------------------------------

    def with_frozen_deltas(self) -> Self:
        """Return a version whose DeltaMemStore is frozen for a flush. A new one takes changes."""
        return dataclasses.replace(self, frozen=(*self.frozen, self.deltas), deltas=DeltaMemStore())

    def with_flushed_deltas(self, files: Sequence[DeltaFile], deltas_durable: int) -> Self:
        """Return the version after a flush: `files` (REDO) replace the frozen DeltaMemStores.

        deltas_durable: all changes up to this timestamp are in files.
        """
        assert deltas_durable >= self.meta.deltas_durable, "R2: durable marks must not decrease"
        meta = dataclasses.replace(self.meta, deltas_durable=deltas_durable)
        return dataclasses.replace(self, meta=meta, redo=(*self.redo, *files), frozen=())

    def with_merged_redo(self, inputs: Sequence[DeltaFile], merged: DeltaFile | None) -> Self:
        """Return the version after a minor compaction: `merged` replaces adjacent REDO files.

        merged: None if no record remains.
        """
        first = self.redo.index(inputs[0])
        assert self.redo[first : first + len(inputs)] == tuple(inputs), "inputs must be adjacent (R4)"
        made = () if merged is None else (merged,)
        redo = (*self.redo[:first], *made, *self.redo[first + len(inputs) :])
        return dataclasses.replace(self, redo=redo)

    def with_major_compaction(
        self, inputs: Sequence[DeltaFile], rest: DeltaFile | None, part: Part | None, undo: DeltaFile | None
    ) -> Self:
        """Return the version after a major delta compaction: the outputs replace the inputs.

        rest: the REDO of all other columns. part: the new base columns. undo: the UNDO of the new
        base columns. Each is None if there is nothing to store.
        """
        assert self.redo[: len(inputs)] == tuple(inputs), (
            "a major delta compaction must take the oldest REDO files"
        )
        redo = (*(() if rest is None else (rest,)), *self.redo[len(inputs) :])
        parts = self.parts
        if part is not None:
            parts = (*(old for old in parts if not old.column_ids <= part.column_ids), part)
        return dataclasses.replace(
            self, redo=redo, parts=parts, undo=self.undo if undo is None else (undo, *self.undo)
        )

    def with_undo(self, inputs: Sequence[DeltaFile], merged: DeltaFile | None) -> Self:
        """Return a version in which `merged` replaces these UNDO files.

        merged: None if no record remains.
        """
        gone = set(map(id, inputs))
        assert len(gone) == len([file for file in self.undo if id(file) in gone]), (
            "inputs must be UNDO files of this version"
        )
        undo = [file for file in self.undo if id(file) not in gone]
        if merged is not None:  # at the position of the newest input, so files stay newest first
            undo.insert(next(index for index, file in enumerate(self.undo) if id(file) in gone), merged)
        return dataclasses.replace(self, undo=tuple(undo))
