"""What happened to a rowset on disk before and since its base was written: its UNDO, REDO and memory, column by column.

Which runs a snapshot applies to some rows, in which order, and how much of them the block cache should hold:

    small   the runs of all files of a kind take a small part of the cache: whole and kept, those of the present merged
    large   of each stretch of a scan the blocks that hold its rows; look-ups have the whole run, for they come back
    text    of a column with much text in these files only the blocks that hold the rows of a window or of a look-up

Immutable but for the newest DeltaMemStore, which grows at its end (X2 of `version`). Any thread may read.
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

# Of the block cache, for the runs of all REDO of a rowset, or all its UNDO. There are many rowsets, and beside the runs
# the blocks, and what scans remember of the two laid over one another.
_RUNS_SHARE: Final = 1 / 64
# Of the block cache, for the REDO that a scan has in memory at once while it lays the runs over one another; and the
# fewest rows of which it reads the REDO at once: a window of a scan.
_STRETCH_SHARE: Final = 1 / 16
_STRETCH_ROWS_MIN: Final = 1 << 17


@dataclass(frozen=True, eq=False)
class Changes(LazyValues):
    """The stores of one version of a rowset, in the order of `RowSetVersion`'s fields of these names."""

    undo: tuple[DeltaFile, ...]
    redo: tuple[DeltaFile, ...]
    frozen: tuple[DeltaMemStore, ...]
    deltas: DeltaMemStore
    memo: Memo
    _touched_before: frozenset[int] = field(init=False)
    """The columns of which stores have a change that take no changes any more."""

    def __post_init__(self) -> None:
        of_files = (file.column_ids for file in (*self.undo, *self.redo))
        touched = frozenset().union(*of_files, *(store.column_ids for store in self.frozen))
        object.__setattr__(self, "_touched_before", touched)

    @property
    def memory(self) -> tuple[DeltaMemStore, ...]:
        """What is not in files, oldest first."""
        return (*self.frozen, self.deltas)

    def touch(self, column_id: int, snapshot: int) -> bool:
        """Whether any store holds a change of the column that `snapshot` applies. Opens no file.

        Of a column that was updated once, UNDO stays for as long as the past does, and concerns nobody who reads now.
        """
        if column_id not in self.touched:
            return False
        return any(
            file.relevant(snapshot) for file in (*self.undo, *self.redo) if column_id in file.column_ids
        ) or any(run.relevant(snapshot) for store in self.memory for run in store.levels(column_id))

    @property
    def touched(self) -> frozenset[int]:
        """The columns of which any store has a change, whenever it was. Opens no file."""
        memory = self.deltas.column_ids
        return self._touched_before | memory if memory else self._touched_before

    def runs(
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
        """`runs` without what is in memory, which is newer than all of it (D4)."""
        rows = None if upper is None else (lower, upper)
        undo = list(self._relevant(self.undo, column_id, snapshot, stats, rows)) if self.undo else []
        if len(undo) > 1:  # newest first, which their files as a whole need not be (X2)
            undo.sort(key=lambda run: -run.timestamp_min)
        return undo, self._redo_runs(column_id, snapshot, stats, rows) if self.redo else []

    def cells(self, rowid: int, column_ids: Set[int], snapshot: int) -> dict[int, Cell]:
        """What memory says of one row at `snapshot`: the value of each of these columns of which a record applies.

        It has the last word: all of it is newer than what files say (D4).
        """
        found: dict[int, Cell] = {}
        for store in reversed(self.memory):
            if store.record_count:
                found = store.cells(rowid, column_ids - found.keys(), snapshot) | found
        return found

    def newest(
        self, column_id: int, snapshot: int, stats: ReadStats | None, lower: int, upper: int
    ) -> list[tuple[Rowids, pa.Array]]:
        """What REDO says of the column's rows [lower, upper), oldest first, to a snapshot for which `all_apply`: each
        (rowids, values), of a decimal of either width. Keeps nothing of it.
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
        """The REDO of the column in files; of the present in one run, however many small files there are."""
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
        """Whether a scan should read the whole run of this column of the file, and keep it.

        It should where all files of this kind together take a small part of the cache. Whole changes of half a table
        would evict everything else, and would be evicted in turn.
        """
        small = self._keeps_redo if file.kind == "redo" else self._keeps_undo
        return small and not self.has_much_text(column_id, snapshot)

    def text_row_bytes(self, column_id: int, snapshot: int | None = None) -> float:
        """Bytes of text that each row has in records of the column, if every file has one average record for it.

        snapshot: only of the files that it may apply. Opens these files, unless they have few records.
        """
        return sum(file.value_bytes(column_id) for file in self._applied(snapshot))

    def has_much_text(self, column_id: int, snapshot: int | None = None) -> bool:
        """Whether records of the column have more text than is read at once. Arguments and cost: `text_row_bytes`."""
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
        """Whether no REDO of these that has the column is newer than the snapshot."""
        return all(
            (store.timestamp_max or 0) <= snapshot for store in stores if column_id in store.column_ids
        )

    @lazy_value
    def _redo_ids(self) -> tuple[int, ...]:
        return tuple(file.serial for file in self.redo)

    def stretch(
        self, column_id: int, snapshot: int, lower: int, upper: int, row_count: int
    ) -> tuple[int, int]:
        """The rows [begin, end) of a rowset of `row_count` whose REDO a scan of [lower, upper) reads at once.

        As many as have a small part of the cache's worth of records, were they spread evenly; cut at powers of two, so
        that neighbours get the same. Where the column has much text in REDO, no more rows than the scan asks for.
        """
        if self.has_much_text(column_id, snapshot):
            return lower, upper
        rows_max = int(self._stretch_bytes_max * row_count) // max(1, self._redo_bytes)
        log2 = max(_STRETCH_ROWS_MIN.bit_length(), rows_max.bit_length()) - 1
        return lower >> log2 << log2, min(((upper - 1 >> log2) + 1) << log2, row_count)

    @lazy_value
    def _stretch_bytes_max(self) -> float:
        return _STRETCH_SHARE * min((file.cache_bytes for file in self.redo), default=0)

    @lazy_value
    def _redo_bytes(self) -> int:
        return sum(file.run_bytes for file in self.redo)

    def all_apply(self, column_id: int, snapshot: int) -> bool:
        """Whether the column has REDO, all of which the snapshot applies, and no UNDO that it does. Opens no file."""
        memory = [store for store in self.memory if column_id in store.column_ids]
        return (
            (bool(memory) or column_id in self._redo_columns)
            and self._newest_since.get(column_id, 0) <= snapshot
            and all((store.timestamp_max or 0) <= snapshot for store in memory)
        )

    def state_of_files(self, column_id: int, snapshot: int) -> Hashable | None:
        """`state` where what `snapshot` applies of the column is all of the REDO in files and nothing else; else None.

        What is appended to memory in between is newer than the snapshot. Opens no file.
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
        """Of each column that files have: from which snapshot on all of their REDO applies, and none of their UNDO."""
        since: dict[int, int] = {}
        for file in (*self.undo, *self.redo):
            for column_id in file.column_ids:
                since[column_id] = max(since.get(column_id, 0), file.timestamp_max)
        return since

    @lazy_value
    def _state_of_files(self) -> tuple[tuple[int, ...]]:
        return (self._redo_ids,)

    def state(self, column_id: int) -> Hashable:
        """Names the REDO that there is of the column, in files and memory; another state has another name."""
        stores = [store for store in self.memory if column_id in store.column_ids]
        return (*self._state_of_files, *((store.serial, store.record_count) for store in stores))

    def check_order(self, rowset_id: int) -> None:
        """X2 of the REDO files, as far as their entries tell. Raises: CorruptionError."""
        for kind, files in (("undo", self.undo), ("redo", self.redo)):
            strange = next((file for file in files if file.kind != kind), None)
            if strange is not None:
                raise CorruptionError(f"expected {kind} records, the entry says {strange.kind}", strange.path)
        for older, newer in pairwise(self.redo):
            if older.timestamp_max > newer.timestamp_min:
                raise CorruptionError(
                    f"expected delta files of rowset {rowset_id} in the order of their timestamps, found "
                    f"{older.path} up to {older.timestamp_max} before {newer.path} from {newer.timestamp_min}",
                    newer.path,
                )


def _with_size(run: DeltaRun) -> tuple[DeltaRun, int]:
    """The run, and its bytes with those of `latest`, which it makes of itself when first asked."""
    return run, 2 * run.nbytes


def _are_small(files: Sequence[DeltaFile]) -> bool:
    return sum(file.run_bytes for file in files) <= _RUNS_SHARE * min(
        (file.cache_bytes for file in files), default=0
    )
