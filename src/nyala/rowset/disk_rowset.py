"""The DiskRowSet: rows in key order in immutable base files, with what happened to them before and since.

      undo (newest first)        base            redo (oldest first)      frozen        deltas
    +--------+--------+     +------------+     +--------+--------+      +--------+    +----------+
    | UNDO 1 | UNDO 0 | <-- | 40.base    | --> | REDO 0 | REDO 1 | -->  | memory | -> | memory   |
    +--------+--------+     +------------+     +--------+--------+      +--------+    +----------+
      files                   one file, and      files                  being         takes
                              parts (`part`)     delta flushes          flushed       changes

A version of a rowset is an immutable value: the `with_…` methods make the next one, which the tablet
installs. Versions share the open files; only the newest DeltaMemStore grows, at its end, with timestamps
that no reader was promised yet.

Invariants
    X1  Rowids are ordinals of the base file, whose keys ascend strictly.
    X2  For each column, stores follow one another in time: undo, redo, frozen, deltas, each with later
        timestamps than the one before (D4). REDO stores do so as a whole (design R4); UNDO files need not: a
        major delta compaction of some columns makes one while changes of the others, of the same time, stay REDO.
    X3  Skipping obeys Z1: what the base's zone map excludes is skipped only where no change that the snapshot may
        apply says otherwise.
    X4  A column without a place in the base file was added after it was written: its base is its read default.

Threads: any thread may read; `deltas.append` by the holder of the commit lock.
Source: Kudu docs/design-docs/tablet.md, "Historical MVCC in DiskRowSets" to "Summary of delta file processing".
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile.cache import BlockCache, Memo
from nyala.cfile.column import BASE, ColumnKey
from nyala.cfile.gathering import Ordinals
from nyala.cfile.physical import narrow_decimal
from nyala.cfile.reader import CFileReader, ColumnReader, ReadStats
from nyala.cfile.zonemap import Zone
from nyala.delta.applier import decide, patch, resolve_at
from nyala.delta.compaction import join_undo, redo_to_undo
from nyala.delta.delta_file import DeltaFile
from nyala.delta.mem_store import DeltaMemStore
from nyala.delta.run import LIVENESS, MAX_TIMESTAMP, DeltaRun, Rowids, merge_runs
from nyala.env.files import Files
from nyala.errors import CorruptionError
from nyala.keys.codec import KeyCodec
from nyala.keys.encoded_keys import EncodedKeys
from nyala.keys.key_range import KeyRange
from nyala.rowset.checking import findings, first_of
from nyala.rowset.image import RowSetImage
from nyala.rowset.key_index import KeyIndex
from nyala.rowset.meta import NO_ROWID, RowSetMeta
from nyala.rowset.part import Part
from nyala.rowset.skipping import rows_left
from nyala.rowset.stats import RowSetStats
from nyala.schema.adapter import adapt
from nyala.schema.constraint import Constraint
from nyala.schema.convert import default_array
from nyala.schema.schema import ColumnSchema, Schema

__all__ = ["DiskRowSet", "RowSetMeta"]

Bools = npt.NDArray[np.bool_]
# Half a window of a scan: smaller ranges are of look-ups, which seldom ask for the same one again.
_SCAN_ROWS_MIN: Final = 1 << 16
# Of the block cache, for the runs of all REDO of a rowset, or all its UNDO. There are many rowsets, and beside the runs
# the blocks, and what scans remember of the two laid over one another.
_RUNS_SHARE: Final = 1 / 64


@dataclass(frozen=True, eq=False)
class DiskRowSet:
    """One version of a rowset on disk (see the module). Compared by identity."""

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

    @staticmethod
    def open(
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
    ) -> DiskRowSet:
        """A rowset of the store in the folder `root`. Nothing is read, nor a file opened, before it is needed.

        parts: oldest first; undo: newest first; redo: oldest first.
        Raises: CorruptionError when the files' timestamps say otherwise (X2).
        """
        reader = CFileReader(files, os.path.join(root, meta.path), cache, meta.columns)
        codec = KeyCodec([column.type for column in schema.key_columns])
        key_column_id = schema.key_columns[0].id if schema.key_count == 1 else None
        keys = KeyIndex(reader, codec, key_column_id, meta.row_count, cache)
        memory = DeltaMemStore() if deltas is None else deltas
        rowset = DiskRowSet(
            meta, reader, keys, codec, Memo(cache), tuple(parts), tuple(undo), tuple(redo), (), memory
        )  # fmt: skip
        rowset.check_order()
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
        """About how many bytes a value of the column takes in memory. Opens its footer."""
        reader = self.base_column(column.id)
        return 0.0 if reader is None else reader.row_bytes

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

    # --- the next version -------------------------------------------------------------------------

    def with_frozen_deltas(self, fresh: DeltaMemStore | None = None) -> DiskRowSet:
        """Set the DeltaMemStore aside to be written; `fresh` takes changes from now on."""
        return dataclasses.replace(
            self,
            frozen=(*self.frozen, self.deltas),
            deltas=DeltaMemStore() if fresh is None else fresh,
        )

    def with_flushed_deltas(self, files: Sequence[DeltaFile], deltas_durable: int) -> DiskRowSet:
        """Put REDO files in place of all stores set aside; changes up to `deltas_durable` are on disk now."""
        assert deltas_durable >= self.meta.deltas_durable, "R2: durable marks only rise"
        meta = dataclasses.replace(self.meta, deltas_durable=deltas_durable)
        return dataclasses.replace(self, meta=meta, redo=(*self.redo, *files), frozen=())

    def with_merged_redo(self, inputs: Sequence[DeltaFile], merged: DeltaFile | None) -> DiskRowSet:
        """Put one REDO file in place of neighbouring ones: a minor delta compaction. None: nothing of them is left."""
        first = self.redo.index(inputs[0])
        assert self.redo[first : first + len(inputs)] == tuple(inputs), "only neighbours are merged (R4)"
        made = () if merged is None else (merged,)
        redo = (*self.redo[:first], *made, *self.redo[first + len(inputs) :])
        return dataclasses.replace(self, redo=redo)

    def with_major_compaction(
        self, inputs: Sequence[DeltaFile], rest: DeltaFile | None, part: Part | None, undo: DeltaFile | None
    ) -> DiskRowSet:
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

    def with_undo(self, inputs: Sequence[DeltaFile], merged: DeltaFile | None) -> DiskRowSet:
        """Put one UNDO file, or none, in the place of `inputs`."""
        gone = set(map(id, inputs))
        assert len(gone) == len([file for file in self.undo if id(file) in gone]), (
            "inputs are UNDO files of its own"
        )
        undo = [file for file in self.undo if id(file) not in gone]
        if merged is not None:  # where the newest of them was: files stay newest first
            undo.insert(next(index for index, file in enumerate(self.undo) if id(file) in gone), merged)
        return dataclasses.replace(self, undo=tuple(undo))

    # --- looking up -------------------------------------------------------------------------------

    def find(self, keys: EncodedKeys, stats: ReadStats | None = None) -> Rowids:
        """The rowid of each key, or -1. Keys ascend; a key may stand twice. Dead rows are found as well."""
        return self.keys.find(keys, stats)

    def find_live(
        self, keys: EncodedKeys, snapshot: int = MAX_TIMESTAMP, stats: RowSetStats | None = None
    ) -> Rowids:
        """The same, but -1 where the row is not there at `snapshot`."""
        rowids = self.find(keys, stats)
        hit = np.flatnonzero(rowids >= 0)
        if len(hit):
            dead = hit[~self.gather_liveness(snapshot, rowids[hit], stats)]
            rowids[dead] = NO_ROWID
        return rowids

    def live(self, rowids: Rowids) -> Bools:
        """Whether each row is there in the applied state. Cost: as `gather_liveness`."""
        return self.gather_liveness(MAX_TIMESTAMP, rowids)

    # --- reading (the same names as in MemRowSet) -------------------------------------------------

    def rowid_range(self, key_range: KeyRange, stats: ReadStats | None = None) -> tuple[int, int]:
        """The rows [lower, upper) whose keys are in the range."""
        return self.keys.range(key_range, stats)

    def rowids_in(self, key_range: KeyRange, stats: ReadStats | None = None) -> slice:
        """The same as a slice."""
        return slice(*self.keys.range(key_range, stats))

    def order(self) -> Rowids:
        """All rowids in the order of their keys: as they are (X1)."""
        return np.arange(self.row_count)

    def keys_of(self, rowids: Rowids, stats: ReadStats | None = None) -> EncodedKeys:
        """The keys of these rows, in their order."""
        return self.keys.gather(rowids, stats)

    def liveness(
        self, snapshot: int, lower: int, upper: int, stats: RowSetStats | None = None
    ) -> Bools | None:
        """Whether each of the rows [lower, upper) is there at `snapshot`; None when all are."""
        base = self.base_column(LIVENESS)
        alive: Bools | None = None
        if base is not None:
            alive = base.read(lower, upper, stats=stats).to_numpy(zero_copy_only=False)
        rows, values = decide(*self._runs(LIVENESS, snapshot, stats, lower, upper), snapshot, lower, upper)
        if values is not None:
            alive = np.ones(upper - lower, np.bool_) if alive is None else alive
            alive[rows - lower] = values.to_numpy(zero_copy_only=False)
            _count(stats, len(rows))
        return None if alive is None or alive.all() else alive

    def gather_liveness(self, snapshot: int, rowids: Rowids, stats: RowSetStats | None = None) -> Bools:
        """Whether each of these rows is there at `snapshot`.

        Cost: O(rows asked for · log changes), whatever the rowset holds, once its files' runs are in the cache.
        """
        base = self.base_column(LIVENESS)
        if base is None:
            alive = np.ones(len(rowids), np.bool_)
        else:
            alive = base.gather(rowids, stats=stats).to_numpy(zero_copy_only=False)
        undo, redo = self._runs(LIVENESS, snapshot, stats)
        if not undo and not redo:
            return alive
        places, values = resolve_at(undo, redo, snapshot, rowids)
        if values is not None:
            alive[places] = values.to_numpy(zero_copy_only=False)
            _count(stats, len(places))
        return alive

    def column(
        self,
        column: ColumnSchema,
        snapshot: int,
        lower: int,
        upper: int,
        stats: RowSetStats | None = None,
    ) -> pa.Array:
        """The column's rows [lower, upper) at `snapshot`. Of a row that is not there, any value.

        Cost: the decoded base itself, without a copy, where no store holds a change that the snapshot applies; stores
              whose timestamps rule that out are not opened. Large ranges of the present are remembered as they are
              after all changes, so that the next scan pays for none of them.
        """
        return self._at(column, snapshot, lower, upper, stats, None)

    def _at(
        self,
        column: ColumnSchema,
        snapshot: int,
        lower: int,
        upper: int,
        stats: RowSetStats | None,
        narrow: pa.DataType | None,
    ) -> pa.Array:
        """`column`; of a decimal as `narrow`, if that is given."""
        if upper - lower >= _SCAN_ROWS_MIN:
            # Named before it is asked about: what a write appends in between is newer than the snapshot, and would be
            # in the name but not in what is remembered under it.
            state = self._redo_state(column.id)
            if self._is_present(column.id, snapshot):
                return self._present(column, snapshot, lower, upper, state, stats, narrow)
        undo, redo = self._runs(column.id, snapshot, stats, lower, upper)
        base = self._base(column, lower, upper, stats, narrow)
        if not undo and not redo:
            return base
        rows, values = decide(undo, redo, snapshot, lower, upper)
        if values is None:
            return base
        _count(stats, len(rows))
        return patch(base, rows - lower, _narrowed(_as(values, column), narrow))

    def coded(
        self, column: ColumnSchema, snapshot: int, lower: int, upper: int, stats: RowSetStats | None = None
    ) -> pa.Array:
        """`column`, as a dictionary array or in runs where the base is so and nothing changed: that costs less."""
        reader = self.base_column(column.id)
        if (
            reader is None
            or not (reader.has_dictionary or reader.has_runs)
            or lower == upper
            or reader.type != column.type
            or self.delta_touches(column.id, snapshot)
        ):
            return self.column(column, snapshot, lower, upper, stats)
        read = reader.read_codes if reader.has_dictionary else reader.read_runs
        return read(lower, upper, stats=stats, scanning=upper - lower >= _SCAN_ROWS_MIN)

    def narrow(
        self, column: ColumnSchema, snapshot: int, lower: int, upper: int, stats: RowSetStats | None = None
    ) -> pa.Array:
        """`column` of a decimal with a `narrow_decimal`: as that, if the base has it."""
        reader = self.base_column(column.id)
        if reader is None or lower == upper or reader.type != column.type:
            return self.column(column, snapshot, lower, upper, stats)
        return self._at(column, snapshot, lower, upper, stats, narrow_decimal(column.type))

    def gather(
        self,
        column: ColumnSchema,
        snapshot: int,
        rowids: Rowids,
        stats: RowSetStats | None = None,
        *,
        scanning: bool = False,
    ) -> pa.Array:
        """The column at these rows, in their order, at `snapshot`. Of a row that is not there, any value.

        scanning: whether a scan asks, which keeps a block only when it is asked for a second time.
        Cost: of the base, only the blocks that hold one of the rows are decoded.
        """
        return self._gather(column, snapshot, Ordinals(rowids), stats, scanning)

    def rows(
        self,
        columns: Sequence[ColumnSchema],
        snapshot: int,
        rowids: Rowids,
        stats: RowSetStats | None = None,
    ) -> list[pa.Array]:
        """`gather` of several columns. Cost: where the rows lie is worked out once for all of them."""
        ordinals = Ordinals(rowids)
        return [self._gather(column, snapshot, ordinals, stats, False) for column in columns]

    def _gather(
        self,
        column: ColumnSchema,
        snapshot: int,
        ordinals: Ordinals,
        stats: RowSetStats | None,
        scanning: bool,
    ) -> pa.Array:
        reader = self.base_column(column.id)
        if reader is None:
            base = default_array(column, ordinals.count, "read")
        else:
            base = _as(reader.gather(ordinals, stats=stats, scanning=scanning), column)
        undo, redo = self._runs(column.id, snapshot, stats)
        if not undo and not redo:
            return base
        places, values = resolve_at(undo, redo, snapshot, ordinals.places)
        if values is None:
            return base
        _count(stats, len(places))
        return patch(base, places, _as(values, column))

    # --- compacting -------------------------------------------------------------------------------

    def image(self, schema: Schema, lower: int, upper: int, cut: int = 0) -> RowSetImage:
        """The rows [lower, upper) as their files have them: base as after all REDO files, and UNDO to before.

        What is in memory only is not in it: a compaction has it flushed first, and carries over what comes later.
        cut: no UNDO record that only snapshots before this timestamp need; the rows all stay.
        Cost: decodes those rows, and their records in every delta file; nothing stays in the cache.
        """
        count = upper - lower
        columns: dict[int, pa.Array] = {}
        undo: dict[int, DeltaRun] = {}
        for column in schema.columns:
            reader = self.base_column(column.id)
            if reader is None:
                base = default_array(column, count, "read")
            else:
                base = _as(reader.read(lower, upper), column)
            columns[column.id], past = self._compacted(column.id, base, lower, upper, cut, column)
            if past is not None:
                undo[column.id] = past
        reader = self.base_column(LIVENESS)
        base = pa.array(np.ones(count, np.bool_)) if reader is None else reader.read(lower, upper)
        liveness, past = self._compacted(LIVENESS, base, lower, upper, cut, None)
        if past is not None:
            undo[LIVENESS] = past
        return RowSetImage(
            self.keys.read(lower, upper),
            columns,
            None if liveness.true_count == count else liveness,
            undo,
            np.arange(count),
        )

    def compacted_column(
        self, column_id: int, column: ColumnSchema | None, cut: int = 0
    ) -> tuple[pa.Array, DeltaRun | None]:
        """One column after a major delta compaction: (base as after all REDO files, UNDO of those changes).

        column: its schema; None for LIVENESS. The UNDO is of the REDO only, without what is UNDO already.
        """
        count = self.row_count
        reader = self.base_column(column_id)
        if column is None:
            base = pa.array(np.ones(count, np.bool_)) if reader is None else reader.read(0, count)
        elif reader is None:
            base = default_array(column, count, "read")
        else:
            base = _as(reader.read(0, count), column)
        redo = _runs_of(self.redo, column_id)
        if not redo:
            return base, None
        base, past = redo_to_undo(base, _typed(merge_runs(redo), column))
        return base, past.between(cut, MAX_TIMESTAMP)

    def _compacted(
        self, column_id: int, base: pa.Array, lower: int, upper: int, cut: int, column: ColumnSchema | None
    ) -> tuple[pa.Array, DeltaRun | None]:
        redo = _windows_of(self.redo, column_id, lower, upper)
        past: DeltaRun | None = None
        if redo:
            base, past = redo_to_undo(base, _typed(merge_runs(redo), column))
        undo = _windows_of(self.undo, column_id, lower, upper)
        if undo:
            past = join_undo(_typed(merge_runs(undo), column), past)
        if past is not None:
            past = past.between(cut, MAX_TIMESTAMP)
        return base, past if past is not None and len(past) else None

    # --- skipping ---------------------------------------------------------------------------------

    def zone(self, column_id: int) -> Zone | None:
        """Bounds of the column's base; None when it has none in the file (X4)."""
        reader = self.base_column(column_id)
        return None if reader is None else reader.column_zone()

    def delta_touches(self, column_id: int, snapshot: int) -> bool:
        """Whether any store holds a change of the column that `snapshot` applies. Opens no file."""
        return any(
            file.relevant(snapshot) for file in (*self.undo, *self.redo) if column_id in file.column_ids
        ) or any(run.relevant(snapshot) for store in self._memory() for run in store.levels(column_id))

    def excluded(self, column: ColumnSchema, constraint: Constraint, snapshot: int) -> bool:
        """Whether no row of the rowset can satisfy the constraint at `snapshot` (Z1)."""
        return self.window_excluded(column, constraint, snapshot, 0, self.row_count)

    def window_excluded(
        self,
        column: ColumnSchema,
        constraint: Constraint,
        snapshot: int,
        lower: int,
        upper: int,
        stats: ReadStats | None = None,
    ) -> bool:
        """Whether no row of [lower, upper) can satisfy the constraint at `snapshot` (Z1): see `rows_left`."""
        return not rows_left(self, [(column, constraint)], snapshot, lower, upper, stats)

    def blocks_excluded(
        self, column: ColumnSchema, constraint: Constraint, snapshot: int, window: slice
    ) -> bool:
        """`window_excluded` of the rows [window.start, window.stop)."""
        return self.window_excluded(column, constraint, snapshot, window.start, window.stop)

    # --- its parts --------------------------------------------------------------------------------

    def _memory(self) -> tuple[DeltaMemStore, ...]:
        return (*self.frozen, self.deltas)

    def base_column(self, column_id: int) -> ColumnReader | None:
        """The column's base, in the newest file that has it; None when no file has (X4). Raises:
        CorruptionError."""
        known = self._base_columns
        if column_id not in known:
            known[column_id] = self._find_base_column(column_id)
        return known[column_id]

    @cached_property
    def _base_columns(self) -> dict[int, ColumnReader | None]:
        """What `base_column` has found of this version."""
        return {}

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

    def _runs(
        self,
        column_id: int,
        snapshot: int,
        stats: ReadStats | None,
        lower: int = 0,
        upper: int | None = None,
    ) -> tuple[list[DeltaRun], list[DeltaRun]]:
        """(UNDO, REDO) of the column that `snapshot` may apply, in the order of application.

        Of the rows [lower, upper) at least. Without them everything, and kept: look-ups come back for other rows.
        """
        rows = None if upper is None else (lower, upper)
        undo = list(self._relevant(self.undo, column_id, snapshot, stats, rows)) if self.undo else []
        if len(undo) > 1:  # newest first, which their files as a whole need not be (X2)
            undo.sort(key=lambda run: -run.timestamp_min)
        redo = self._redo_runs(column_id, snapshot, stats, rows) if self.redo else []
        for store in self._memory() if self.frozen else (self.deltas,):
            if column_id in store.column_ids:
                redo += [run for run in store.levels(column_id) if run.relevant(snapshot)]
        return undo, redo

    def _redo_runs(
        self, column_id: int, snapshot: int, stats: ReadStats | None, rows: tuple[int, int] | None
    ) -> list[DeltaRun]:
        """The REDO of the column in files; of the present in one run, however many small files there are."""
        runs = list(self._relevant(self.redo, column_id, snapshot, stats, rows))
        whole = rows is None or self._keeps_redo
        if len(runs) > 1 and whole and self._all_applied(self.redo, column_id, snapshot):
            return [self.memo.get(("run", column_id, *self._redo_ids), lambda: _with_size(merge_runs(runs)))]
        return runs

    def _relevant(
        self,
        files: Sequence[DeltaFile],
        column_id: int,
        snapshot: int,
        stats: ReadStats | None,
        rows: tuple[int, int] | None,
    ) -> Iterator[DeltaRun]:
        for file in files:
            if column_id in file.column_ids and file.relevant(snapshot):
                if rows is None:
                    run = file.run(column_id, stats)
                else:
                    run = file.run_in(column_id, *rows, stats, whole=self.keeps_runs(file))
                if run is not None and run.relevant(snapshot):
                    yield run

    def keeps_runs(self, file: DeltaFile) -> bool:
        """Whether a scan should have the runs of this file of the rowset whole, and keep them.

        Where all of a kind together take a small part of the cache. Changes of half a table, whole, would push out
        everything else, and be pushed out by it in turn.
        """
        return self._keeps_redo if file.kind == "redo" else self._keeps_undo

    @cached_property
    def _keeps_redo(self) -> bool:
        return _are_small(self.redo)

    @cached_property
    def _keeps_undo(self) -> bool:
        return _are_small(self.undo)

    @staticmethod
    def _all_applied(stores: Sequence[DeltaFile | DeltaMemStore], column_id: int, snapshot: int) -> bool:
        """Whether no REDO of these that has the column is newer than the snapshot."""
        return all(
            (store.timestamp_max or 0) <= snapshot for store in stores if column_id in store.column_ids
        )

    @cached_property
    def _redo_ids(self) -> tuple[int, ...]:
        return tuple(file.serial for file in self.redo)

    def _is_present(self, column_id: int, snapshot: int) -> bool:
        """Whether the column has REDO, all of which the snapshot applies, and no UNDO that it does. Opens no file."""
        redo: list[DeltaFile | DeltaMemStore] = [*self.redo, *self._memory()]
        return (
            any(column_id in store.column_ids for store in redo)
            and self._all_applied(redo, column_id, snapshot)
            and not any(file.relevant(snapshot) for file in self.undo if column_id in file.column_ids)
        )

    def _present(
        self,
        column: ColumnSchema,
        snapshot: int,
        lower: int,
        upper: int,
        state: Hashable,
        stats: RowSetStats | None,
        narrow: pa.DataType | None,
    ) -> pa.Array:
        """The rows [lower, upper) at a snapshot that applies all REDO of `state`; remembered, for scans ask again.

        What is appended since the state was named is newer than the snapshot, so this works on no more than it names.
        """

        # What only files say stays until they change, so it is remembered at once, and takes the place of the base.
        lasting = not any(column.id in store.column_ids for store in self._memory())

        def patched() -> tuple[tuple[pa.Array | None, int], int]:
            redo = self._runs(column.id, snapshot, stats, lower, upper)[1]
            rows, values = decide((), redo, snapshot, lower, upper)
            if values is None:
                return (None, 0), 0
            base = self._base(column, lower, upper, stats, narrow, fill_cache=not lasting)
            array = patch(base, rows - lower, _narrowed(_as(values, column), narrow))
            return (array, len(rows)), array.nbytes

        name = ("present", column.id, column.type, narrow, lower, upper, state)
        array, count = self.memo.get(name, patched, at_once=lasting)
        if array is None:
            return self._base(column, lower, upper, stats, narrow)
        _count(stats, count)
        return array

    def _redo_state(self, column_id: int) -> Hashable:
        """Names the REDO that there is of the column, in files and memory; another state has another name."""
        stores = [store for store in self._memory() if column_id in store.column_ids]
        return (self._redo_ids, *((store.serial, store.record_count) for store in stores))

    def _base(
        self,
        column: ColumnSchema,
        lower: int,
        upper: int,
        stats: ReadStats | None,
        narrow: pa.DataType | None,
        *,
        fill_cache: bool = True,
    ) -> pa.Array:
        reader = self.base_column(column.id)
        if reader is None:
            return default_array(column, upper - lower, "read")
        scanning = upper - lower >= _SCAN_ROWS_MIN
        if narrow is not None:
            return reader.read_narrow(lower, upper, stats=stats, fill_cache=fill_cache, scanning=scanning)
        base = reader.read(lower, upper, stats=stats, fill_cache=fill_cache, scanning=scanning)
        return _as(base, column)

    def check_order(self) -> None:
        """X2 of the REDO files, as far as their entries tell. Raises: CorruptionError."""
        for kind, files in (("undo", self.undo), ("redo", self.redo)):
            strange = next((file for file in files if file.kind != kind), None)
            if strange is not None:
                raise CorruptionError(f"expected {kind} records, the entry says {strange.kind}", strange.path)
        for older, newer in pairwise(self.redo):
            if older.timestamp_max > newer.timestamp_min:
                raise CorruptionError(
                    f"expected delta files of rowset {self.id} in the order of their timestamps, found "
                    f"{older.path} up to {older.timestamp_max} before {newer.path} from {newer.timestamp_min}",
                    newer.path,
                )

    def check(self) -> None:
        """Read everything and compare. Raises: CorruptionError or StorageError for files, AssertionError for our own
        mistakes. All that is wrong, not only the first: `checking.findings`."""
        first_of(findings(self))


def _with_size(run: DeltaRun) -> tuple[DeltaRun, int]:
    """The run, and its bytes with those of `latest`, which it makes of itself when first asked."""
    return run, 2 * run.nbytes


def _runs_of(files: Sequence[DeltaFile], column_id: int) -> list[DeltaRun]:
    runs = (file.run(column_id) for file in files if column_id in file.column_ids)
    return [run for run in runs if run is not None and len(run)]


def _narrowed(array: pa.Array, narrow: pa.DataType | None) -> pa.Array:
    return array if narrow is None else array.cast(narrow)


def _windows_of(files: Sequence[DeltaFile], column_id: int, lower: int, upper: int) -> list[DeltaRun]:
    windows = (file.window(column_id, lower, upper) for file in files if column_id in file.column_ids)
    return [run for run in windows if run is not None and len(run)]


def _typed(run: DeltaRun, column: ColumnSchema | None) -> DeltaRun:
    """The run with its values in the column's present type; None: LIVENESS, whose type never changes."""
    if column is None or run.values.type == column.type.arrow:
        return run
    return DeltaRun(run.kind, run.rowids, run.timestamps, _as(run.values, column))


def _are_small(files: Sequence[DeltaFile]) -> bool:
    return sum(file.run_bytes for file in files) <= _RUNS_SHARE * min(
        (file.cache_bytes for file in files), default=0
    )


def _as(array: pa.Array, column: ColumnSchema) -> pa.Array:
    """Values in the type that the column has in the schema that is read, whenever they were written."""
    return adapt(array, column.type.arrow)


def _count(stats: RowSetStats | None, deltas_applied: int) -> None:
    if stats is not None:
        stats.deltas_applied += deltas_applied
