"""The changes of a DiskRowSet, column by column: its UNDO and REDO files and its DeltaMemStores.

In this module a *store* is a delta file or a DeltaMemStore. A *run* has the changes of one column
in one store, sorted by row and time. This module finds the runs that have an effect at a snapshot,
in the order in which a reader applies them. It also decides how much of a file's run is read and
cached:

    few changes     If all files of a kind (UNDO or REDO) fit a small share of the cache, runs are
                    read whole and cached. For snapshots of the present, the REDO runs are merged.
    many changes    A scan reads only the blocks for a range of rows. A look-up reads the whole run,
                    because more look-ups usually follow.
    much text       Scans and look-ups read only the blocks for their own rows.

Only the newest DeltaMemStore grows, and only at its end. Any thread may read.
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

# The share of the block cache for all REDO runs of one rowset, and the share for all its UNDO runs.
_RUNS_SHARE: Final = 1 / 64
# A scan that computes a patch reads the REDO of as many rows as fit this share of the block cache,
# but at least of half a split.
_REDO_RANGE_SHARE: Final = 1 / 16
_REDO_RANGE_ROWS_MIN: Final = 1 << 17


@dataclass(frozen=True, eq=False)
class Changes(LazyValues):
    """The delta files and DeltaMemStores of one rowset, in the order of `RowSetVersion`."""

    undo: tuple[DeltaFile, ...]
    redo: tuple[DeltaFile, ...]
    frozen: tuple[DeltaMemStore, ...]
    deltas: DeltaMemStore
    memo: Memo
    _changed_before: frozenset[int] = field(init=False)
    """The columns with a change in a store other than `deltas`, the only one that still grows."""

    def __post_init__(self) -> None:
        in_files = (file.column_ids for file in (*self.undo, *self.redo))
        changed = frozenset().union(*in_files, *(store.column_ids for store in self.frozen))
        object.__setattr__(self, "_changed_before", changed)

    @property
    def memory(self) -> tuple[DeltaMemStore, ...]:
        """The DeltaMemStores, oldest first."""
        return (*self.frozen, self.deltas)

    def has_changes(self, column_id: int, snapshot: int) -> bool:
        """Whether the column's values at `snapshot` may differ from its base values.

        Decides by the timestamps of whole files and of the changes in memory. Opens no file.
        """
        if column_id not in self.changed_columns:
            return False
        return any(
            file.relevant(snapshot) for file in (*self.undo, *self.redo) if column_id in file.column_ids
        ) or any(run.relevant(snapshot) for store in self.memory for run in store.levels(column_id))

    @property
    def changed_columns(self) -> frozenset[int]:
        """The ids of the columns that have a change in a file or in memory. Opens no file."""
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
        """Return the column's changes that matter at `snapshot`, as lists of runs: (UNDO, REDO).

        A run has changes of one file or from memory, sorted by row and time. Each list is in the
        order in which a reader applies the runs. The runs contain at least the changes of the rows
        [lower, upper). Without `upper` they contain the changes of all rows, and the cache keeps
        the runs of files.
        """
        undo, redo = self.runs_of_files(column_id, snapshot, stats, lower, upper)
        for store in self.memory:
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
        """Return the column's changes in files that matter at `snapshot`, as lists (UNDO, REDO).

        This is the result of `runs` without the changes in memory, which are newer than all files.
        """
        rows = None if upper is None else (lower, upper)
        undo = list(self._relevant(self.undo, column_id, snapshot, stats, rows)) if self.undo else []
        if len(undo) > 1:  # newest first; the files themselves may overlap in time (X2)
            undo.sort(key=lambda run: -run.timestamp_min)
        return undo, self._redo_runs(column_id, snapshot, stats, rows) if self.redo else []

    def cells(self, rowid: int, column_ids: Set[int], snapshot: int) -> dict[int, Cell]:
        """Return one row's values at `snapshot`, by column id, for columns that changed in memory.

        These values override changes in files, because all changes in files are older.
        """
        found: dict[int, Cell] = {}
        for store in reversed(self.memory):
            if store.record_count:
                found = store.cells(rowid, column_ids - found.keys(), snapshot) | found
        return found

    def newest(
        self, column_id: int, snapshot: int, stats: ReadStats | None, lower: int, upper: int
    ) -> list[tuple[Rowids, pa.Array]]:
        """Return the changed rows in [lower, upper) and their newest values at `snapshot`.

        Returns: a pair (rowids, values) for each REDO file, oldest first, and then pairs for the
        changes in memory. If several pairs have the same row, the last of them has its newest
        value. Decimals of up to 18 digits may have an Arrow type of 4 or 8 bytes.
        snapshot: the timestamp of the newest change of the column in files, or a later timestamp.
        Cost: reads records of these rows in each file, and does not cache them.
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
        """Return the column's REDO runs in files, oldest first.

        If the runs are small and have no record after `snapshot`, they are merged to one run.
        """
        runs = list(self._relevant(self.redo, column_id, snapshot, stats, rows))
        whole = rows is None or (self._keeps_redo and not self.has_much_text(column_id, snapshot))
        if len(runs) < 2 or not whole:
            return runs
        if any(file.timestamp_max > snapshot for file in self.redo if column_id in file.column_ids):
            return runs
        name, state = ("run", column_id), self._redo_ids
        return [self.memo.get(name, state, lambda _: _with_size(merge_runs(runs)), costly=True)]

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
        """Whether a scan should read all changes of the column in this file, and cache them.

        True if the column has little text, and the rowset's files of the same kind (UNDO or REDO)
        take a small share of the cache together. Larger files would evict everything else from the
        cache, and then each other.
        """
        small = self._keeps_redo if file.kind == "redo" else self._keeps_undo
        return small and not self.has_much_text(column_id, snapshot)

    def text_row_bytes(self, column_id: int, snapshot: int | None = None) -> float:
        """Return how many bytes of changed text a row may have, as the sum over the delta files.

        Assumes that each file has one change of average size per row.
        snapshot: count only files whose changes matter at this moment; None: all files.
        Cost: opens these files, except those with few records.
        """
        return sum(file.value_bytes(column_id) for file in self._applied(snapshot))

    def has_much_text(self, column_id: int, snapshot: int | None = None) -> bool:
        """Whether the column's changes in files have more text than `LITTLE_TEXT_BYTES`."""
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

    @lazy_value
    def _redo_ids(self) -> tuple[int, ...]:
        return tuple(file.serial for file in self.redo)

    def redo_range(
        self, column_id: int, snapshot: int, lower: int, upper: int, row_count: int
    ) -> tuple[int, int]:
        """Return the rows [begin, end) whose REDO changes a scan should read at once.

        The scan needs the rows [lower, upper) now. The result contains them, and rows around them
        that the scan will need next. The range is as large as possible while its changes fit a
        sixteenth of the block cache, but at least 131,072 rows. This estimate assumes that changes
        are spread evenly over the rows. The bounds are multiples of a power of two, so neighbouring
        scan splits get the same range. If the column has much changed text at `snapshot`, the
        result is only [lower, upper).

        row_count: the number of rows in the rowset.
        """
        if self.has_much_text(column_id, snapshot):
            return lower, upper
        bytes_max = _REDO_RANGE_SHARE * min((file.cache_bytes for file in self.redo), default=0)
        rows_max = int(bytes_max * row_count) // max(1, sum(file.run_bytes for file in self.redo))
        log2 = max(_REDO_RANGE_ROWS_MIN.bit_length(), rows_max.bit_length()) - 1
        return lower >> log2 << log2, min(((upper - 1 >> log2) + 1) << log2, row_count)

    def state_of_files(self, column_id: int, snapshot: int) -> Hashable | None:
        """Return a cache key for the changes of the column at `snapshot`; None: do not cache them.

        There is a key only if the column has REDO files, no changes in memory, and no change after
        `snapshot`. Later changes keep it valid, because they are newer than the snapshot. Opens no
        file.
        """
        files = [file for file in (*self.undo, *self.redo) if column_id in file.column_ids]
        if not any(file.kind == "redo" for file in files):
            return None
        if any(file.timestamp_max > snapshot for file in files):
            return None
        if any(column_id in store.column_ids for store in self.memory):
            return None
        return self._redo_ids

    def check_order(self, rowset_id: int) -> None:
        """Check that `undo` has only UNDO files, and `redo` only REDO files in order of time.

        Reads only the catalogue's entries of the files.
        Raises: CorruptionError.
        """
        for kind, files in (("undo", self.undo), ("redo", self.redo)):
            strange = next((file for file in files if file.kind != kind), None)
            if strange is not None:
                raise CorruptionError(
                    f"the catalogue lists this {strange.kind} file as {kind} file of rowset {rowset_id}",
                    strange.path,
                )
        for older, newer in pairwise(self.redo):
            if older.timestamp_max > newer.timestamp_min:
                raise CorruptionError(
                    f"expected delta files of rowset {rowset_id} in the order of their timestamps, found "
                    f"{older.path} up to {older.timestamp_max} before {newer.path} from {newer.timestamp_min}",
                    newer.path,
                )


def _with_size(run: DeltaRun) -> tuple[DeltaRun, int]:
    """Return the run, and an estimate of its size in memory, in bytes.

    The size includes `latest` (the last record of each row), which is computed later and is at most
    as large as the run.
    """
    return run, 2 * run.nbytes


def _are_small(files: Sequence[DeltaFile]) -> bool:
    return sum(file.run_bytes for file in files) <= _RUNS_SHARE * min(
        (file.cache_bytes for file in files), default=0
    )
