"""The changes of a DiskRowSet by column: its UNDO and REDO files and its DeltaMemStores.

This module decides which runs a snapshot applies to some rows, in which order, and how much of them
the block cache keeps:

    small   all files of a kind take a small share of the cache: runs are read whole and cached; the
            REDO runs that apply to the present are merged
    large   a scan reads the blocks of a range of rows; a look-up reads the whole run, because
            look-ups repeat
    text    for a column with much text in these files, only the blocks of the rows of a split or
            look-up are read

Immutable except for the newest DeltaMemStore, which grows at its end (X2 of `version`). Any thread
may read.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import pyarrow as pa

from nyala.cfile.blocks.cache import Memo
from nyala.cfile.blocks.read_stats import ReadStats
from nyala.delta.delta_file import LITTLE_TEXT_BYTES, DeltaFile
from nyala.delta.mem_store import DeltaMemStore
from nyala.delta.node import Cell
from nyala.delta.run import DeltaRun, Rowids, merge_runs
from nyala.errors import CorruptionError
from nyala.lazy_values import LazyValues, lazy_value

__all__ = ["Changes"]

# The share of the block cache for all REDO runs of one rowset, and for all its UNDO runs. The cache
# holds many rowsets, and also blocks and the patches of scans.
_RUNS_SHARE: Final = 1 / 64
# The share of the block cache for the REDO that a scan reads at once to compute a patch, and the
# fewest rows whose REDO it reads at once: a split of a scan.
_REDO_RANGE_SHARE: Final = 1 / 16
_REDO_RANGE_ROWS_MIN: Final = 1 << 17


@dataclass(frozen=True, eq=False)
class Changes(LazyValues):
    """The delta stores of one version of a rowset, in the order of the fields of `RowSetVersion`."""

    undo: tuple[DeltaFile, ...]
    redo: tuple[DeltaFile, ...]
    frozen: tuple[DeltaMemStore, ...]
    deltas: DeltaMemStore
    memo: Memo
    _changed_before: frozenset[int] = field(init=False)
    """The columns that have a change in any store but `deltas`.

    These stores take no more changes.
    """

    def __post_init__(self) -> None:
        in_files = (file.column_ids for file in (*self.undo, *self.redo))
        changed = frozenset().union(*in_files, *(store.column_ids for store in self.frozen))
        object.__setattr__(self, "_changed_before", changed)

    @property
    def memory(self) -> tuple[DeltaMemStore, ...]:
        """The stores that are not in files, oldest first."""
        return (*self.frozen, self.deltas)

    def has_changes(self, column_id: int, snapshot: int) -> bool:
        """Whether any store holds a change of the column that `snapshot` applies. Opens no file.

        UNDO of old updates remains in files as long as the history, but snapshots of the present do
        not apply it.
        """
        if column_id not in self.changed_columns:
            return False
        return any(
            file.relevant(snapshot) for file in (*self.undo, *self.redo) if column_id in file.column_ids
        ) or any(run.relevant(snapshot) for store in self.memory for run in store.levels(column_id))

    @property
    def changed_columns(self) -> frozenset[int]:
        """The columns with a change in any store, at any time. Opens no file."""
        memory = self.deltas.column_ids
        return self._changed_before | memory if memory else self._changed_before

    def runs(
        self,
        column_id: int,
        snapshot: int,
        stats: ReadStats | None,
        lower: int = 0,
        upper: int | None = None,
    ) -> tuple[list[DeltaRun], list[DeltaRun]]:
        """Return (UNDO, REDO) runs of the column that `snapshot` may apply, in the order of
        application.

        With bounds, the runs cover at least the rows [lower, upper). Without `upper` they cover all
        rows, and are cached, because look-ups of other rows follow.
        """
        undo, redo = self.runs_of_files(column_id, snapshot, stats, lower, upper)
        for store in self.memory if self.frozen else (self.deltas,):
            if column_id in store.column_ids:
                redo += [run for run in store.levels(column_id) if run.relevant(snapshot)]
        return undo, redo

    def runs_of_files(
        self,
        column_id: int,
        snapshot: int,
        stats: ReadStats | None,
        lower: int = 0,
        upper: int | None = None,
    ) -> tuple[list[DeltaRun], list[DeltaRun]]:
        """Return `runs` without the changes in memory, which are newer than those in files (D4)."""
        rows = None if upper is None else (lower, upper)
        undo = list(self._relevant(self.undo, column_id, snapshot, stats, rows)) if self.undo else []
        if len(undo) > 1:  # newest first; the files themselves may overlap in time (X2)
            undo.sort(key=lambda run: -run.timestamp_min)
        return undo, self._redo_runs(column_id, snapshot, stats, rows) if self.redo else []

    def cells(self, rowid: int, column_ids: Set[int], snapshot: int) -> dict[int, Cell]:
        """Return the changed values in memory of one row at `snapshot`, by column, for these
        columns.

        They override all changes in files, because all changes in memory are newer (D4).
        """
        found: dict[int, Cell] = {}
        for store in reversed(self.memory):
            if store.record_count:
                found = store.cells(rowid, column_ids - found.keys(), snapshot) | found
        return found

    def newest(
        self, column_id: int, snapshot: int, stats: ReadStats | None, lower: int, upper: int
    ) -> list[tuple[Rowids, pa.Array]]:
        """Return the REDO of the column's rows [lower, upper), oldest first, as (rowids, values) of
        each store.

        Only for a snapshot that applies all REDO of the column and no UNDO. Decimals may be narrow
        or wide. The runs are not cached.
        """
        of_files = (file.newest(column_id, lower, upper, stats) for file in self.redo)
        runs = (run for store in self.memory for run in store.levels(column_id))
        return [
            *(part for part in of_files if part is not None),
            *(run.resolve(snapshot, lower, upper) for run in runs),
        ]

    def _redo_runs(
        self,
        column_id: int,
        snapshot: int,
        stats: ReadStats | None,
        rows: tuple[int, int] | None,
    ) -> list[DeltaRun]:
        """Return the column's REDO runs in files: one merged run for the present, if small."""
        runs = list(self._relevant(self.redo, column_id, snapshot, stats, rows))
        whole = rows is None or (self._keeps_redo and not self.has_much_text(column_id, snapshot))
        if len(runs) > 1 and whole and self._all_applied(self.redo, column_id, snapshot):
            name, state = ("run", column_id), self._redo_ids
            return [self.memo.get(name, state, lambda _: _with_size(merge_runs(runs)), costly=True)]
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
                    run = file.run_in(
                        column_id, *rows, stats, whole=self.keeps_runs(file, column_id, snapshot)
                    )
                if run is not None and run.relevant(snapshot):
                    yield run

    def keeps_runs(self, file: DeltaFile, column_id: int, snapshot: int | None = None) -> bool:
        """Whether a scan should read and cache the whole run of this column of the file.

        It should if all files of the kind together take a small share of the cache. Whole runs of a
        table that is half changed would evict everything else and then each other.
        """
        small = self._keeps_redo if file.kind == "redo" else self._keeps_undo
        return small and not self.has_much_text(column_id, snapshot)

    def text_row_bytes(self, column_id: int, snapshot: int | None = None) -> float:
        """Return the bytes of text per row in changes of the column, if each file had one average
        record per row.

        snapshot: only files that it may apply. Opens these files, except those with few records.
        """
        return sum(file.value_bytes(column_id) for file in self._applied(snapshot))

    def has_much_text(self, column_id: int, snapshot: int | None = None) -> bool:
        """Whether changes of the column have more text than is read at once.

        See `text_row_bytes`.
        """
        sizes = (file.record_count * file.value_bytes(column_id) for file in self._applied(snapshot))
        return sum(sizes) > LITTLE_TEXT_BYTES

    def _applied(self, snapshot: int | None) -> Iterator[DeltaFile]:
        files = (*self.undo, *self.redo)
        return (file for file in files if snapshot is None or file.relevant(snapshot))

    @lazy_value
    def _keeps_redo(self) -> bool:
        return _are_small(self.redo)

    @lazy_value
    def _keeps_undo(self) -> bool:
        return _are_small(self.undo)

    @staticmethod
    def _all_applied(stores: Sequence[DeltaFile | DeltaMemStore], column_id: int, snapshot: int) -> bool:
        """Whether no REDO of the column in these stores is newer than the snapshot."""
        return all(
            (store.timestamp_max or 0) <= snapshot for store in stores if column_id in store.column_ids
        )

    @lazy_value
    def _redo_ids(self) -> tuple[int, ...]:
        return tuple(file.serial for file in self.redo)

    def redo_range(
        self, column_id: int, snapshot: int, lower: int, upper: int, row_count: int
    ) -> tuple[int, int]:
        """Return the rows [begin, end) whose REDO a scan of [lower, upper) reads at once.

        If records were spread evenly, their size would be a small share of the cache. The bounds
        are multiples of a power of two, so neighbouring splits get the same range. For a column
        with much text in REDO, the range is [lower, upper).
        """
        if self.has_much_text(column_id, snapshot):
            return lower, upper
        rows_max = int(self._redo_range_bytes_max * row_count) // max(1, self._redo_bytes)
        log2 = max(_REDO_RANGE_ROWS_MIN.bit_length(), rows_max.bit_length()) - 1
        return lower >> log2 << log2, min(((upper - 1 >> log2) + 1) << log2, row_count)

    @lazy_value
    def _redo_range_bytes_max(self) -> float:
        return _REDO_RANGE_SHARE * min((file.cache_bytes for file in self.redo), default=0)

    @lazy_value
    def _redo_bytes(self) -> int:
        return sum(file.run_bytes for file in self.redo)

    def state_of_files(self, column_id: int, snapshot: int) -> Hashable | None:
        """Return `state` if `snapshot` applies exactly the REDO in files and nothing else of the
        column; else None.

        A later change in memory is newer than the snapshot, so the state remains valid. Opens no
        file.
        """
        if column_id not in self._redo_columns or self._newest_since[column_id] > snapshot:
            return None
        if column_id in self.deltas.column_ids or any(column_id in s.column_ids for s in self.frozen):
            return None
        return self._state_of_files

    @lazy_value
    def _redo_columns(self) -> frozenset[int]:
        return frozenset().union(*(file.column_ids for file in self.redo))

    @lazy_value
    def _newest_since(self) -> dict[int, int]:
        """The first snapshot, by column, that applies all REDO in files and no UNDO."""
        since: dict[int, int] = {}
        for file in (*self.undo, *self.redo):
            for column_id in file.column_ids:
                since[column_id] = max(since.get(column_id, 0), file.timestamp_max)
        return since

    @lazy_value
    def _state_of_files(self) -> tuple[tuple[int, ...]]:
        return (self._redo_ids,)

    def state(self, column_id: int) -> Hashable:
        """Return a name of all REDO of the column, in files and memory. Each change alters it."""
        stores = [store for store in self.memory if column_id in store.column_ids]
        return (*self._state_of_files, *((store.serial, store.record_count) for store in stores))

    def check_order(self, rowset_id: int) -> None:
        """Check X2 for the REDO files by their catalogue entries. Raises CorruptionError."""
        for kind, files in (("undo", self.undo), ("redo", self.redo)):
            strange = next((file for file in files if file.kind != kind), None)
            if strange is not None:
                raise CorruptionError(
                    f"expected {kind} records, but the catalogue says {strange.kind}", strange.path
                )
        for older, newer in pairwise(self.redo):
            if older.timestamp_max > newer.timestamp_min:
                raise CorruptionError(
                    f"expected delta files of rowset {rowset_id} in the order of their timestamps, found "
                    f"{older.path} up to {older.timestamp_max} before {newer.path} from {newer.timestamp_min}",
                    newer.path,
                )


def _with_size(run: DeltaRun) -> tuple[DeltaRun, int]:
    """Return the run and its bytes, including those of `latest`, a lazy value."""
    return run, 2 * run.nbytes


def _are_small(files: Sequence[DeltaFile]) -> bool:
    return sum(file.run_bytes for file in files) <= _RUNS_SHARE * min(
        (file.cache_bytes for file in files), default=0
    )
