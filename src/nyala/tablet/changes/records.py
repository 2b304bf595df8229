"""Finds the rows of a rowset that changed between two moments, and when, without reading values.

A *record* is one change of LIVENESS or of one column, in an UNDO or REDO file or in memory. The
insertion of a row into a MemRowSet is a record too. A row is *touched* if it has a record in the
interval. A row *moved* if it was inserted or deleted in the interval.

Cost: reads the rowids and timestamps of files with timestamps in the interval. Columns that were
written together share them, so they are read once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nyala.cfile.column import DELTA_VALUE
from nyala.delta.delta_file import LITTLE_TEXT_BYTES, DeltaFile
from nyala.delta.mem_store import DeltaMemStore
from nyala.delta.run import LIVENESS, DeltaRun, Rowids, Timestamps
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.rowset.mem_rowset import MemRowSet
from nyala.rowset.read_ahead import expect_rows
from nyala.schema.limits import LARGEST
from nyala.tablet.changes.batches import distinct, first_of_each
from nyala.tablet.changes.spec import Bools, ChangeSpec
from nyala.tablet.state.root import AnyRowSet, TableState


def may_meet(rowset: AnyRowSet, spec: ChangeSpec) -> bool:
    """Whether the rowset may have a change in the feed's interval. Opens no file."""
    if not rowset.row_count:
        return False
    if isinstance(rowset, MemRowSet):
        return spec.meets(rowset.timestamp_min, rowset.timestamp_max)
    return any(spec.meets(store.timestamp_min, store.timestamp_max) for store in rowset.change_stores)


def may_move(rowset: AnyRowSet, spec: ChangeSpec) -> bool:
    """Whether rows may have been inserted or deleted in the feed's interval. Opens no file."""
    if isinstance(rowset, MemRowSet):
        return True
    return any(
        LIVENESS in store.column_ids and spec.meets(store.timestamp_min, store.timestamp_max)
        for store in rowset.change_stores
    )


def rowsets_of(table: TableState, spec: ChangeSpec) -> Iterator[AnyRowSet]:
    """Yield the rowsets of the table that may have a change in the feed's interval."""
    for tablet in table.tablets:
        for rowset in tablet.all_rowsets():
            if may_meet(rowset, spec):
                yield rowset


def change_counts(table: TableState, spec: ChangeSpec) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return (timestamps, counts) of the changes in the feed's interval, by ascending timestamp.

    A count is an upper limit of the number of rows that changed at the timestamp.
    """
    moments, counts = np.empty(0, np.int64), np.empty(0, np.int64)
    for rowset in rowsets_of(table, spec):
        for records in Touched(table, rowset, spec).records:
            found, often = np.unique(records.timestamps, return_counts=True)
            moments, place = np.unique(np.concatenate([moments, found]), return_inverse=True)
            counts = np.bincount(place, np.concatenate([counts, often]), len(moments)).astype(np.int64)
    return moments, counts


def text_row_bytes(rowset: AnyRowSet, spec: ChangeSpec) -> float:
    """Return the number of bytes per row in the largest text column, including its changes.

    Returns 0 for a MemRowSet and for a small rowset, because they have little text.
    Cost: opens the text columns of a large rowset.
    """
    if not isinstance(rowset, DiskRowSet) or rowset.row_count * LARGEST.max_cell_bytes <= LITTLE_TEXT_BYTES:
        return 0.0
    text = (column for column in spec.columns if column.type.is_variable)
    return max(
        (rowset.row_bytes(column) + rowset.changes.text_row_bytes(column.id) for column in text), default=0.0
    )


class Touched:
    """The rowids and timestamps of one rowset's changes in the feed's interval, without values."""

    def __init__(self, table: TableState, rowset: AnyRowSet, spec: ChangeSpec) -> None:
        self.table = table
        self.rowset = rowset
        self.spec = spec
        self.records = list(_records(table, rowset, spec))

    def splits(self) -> Iterator[tuple[int, int]]:
        """Yield the splits [lower, upper) of the rowset that contain a changed row."""
        if not self.records:
            return
        rows, text = self.spec.split_rows, text_row_bytes(self.rowset, self.spec)
        while rows > 1 and rows * text > LITTLE_TEXT_BYTES:
            rows //= 2
        numbers = distinct(np.sort(np.concatenate([distinct(part.rowids // rows) for part in self.records])))
        for number in numbers.tolist():
            lower, upper = number * rows, min((number + 1) * rows, self.rowset.row_count)
            self._expect(lower, upper)
            yield lower, upper

    def _expect(self, lower: int, upper: int) -> None:
        """Begin to fetch the rows from the first to the last changed one in [lower, upper)."""
        if isinstance(self.rowset, DiskRowSet) and self.rowset.reader.is_remote:
            touched = np.concatenate([records.between(lower, upper)[0] for records in self.records])
            first, last = lower + int(touched.min()), lower + int(touched.max())
            ids = [column.id for column in self.spec.columns]
            # Not at `until`: the files with changes in the interval have been read already.
            expect_rows(self.rowset, ids, self.spec.since, first, last + 1)

    def rows(self, lower: int, upper: int) -> tuple[Rowids, Timestamps, Bools]:
        """Return the changed rows of [lower, upper), as three arrays.

        The arrays are: rowids; the timestamp of each row's newest change; whether the row was
        inserted or deleted in the interval.
        """
        newest = np.full(upper - lower, -1, np.int64)
        moved = np.zeros(upper - lower, np.bool_)
        for records in self.records:
            places, times = records.between(lower, upper)
            # If a row is at several positions, NumPy keeps the last assignment, the newest record.
            newest[places] = np.maximum(newest[places], times)
            if records.liveness:
                moved[places] = True
        at = np.flatnonzero(newest >= 0)
        return at + lower, newest[at], moved[at]

    def moved(self) -> Rowids:
        """Return the rows that were inserted or deleted in the interval, ascending."""
        parts = [records.rowids for records in self.records if records.liveness]
        return distinct(np.sort(np.concatenate(parts))) if parts else np.empty(0, np.int64)


@dataclass(frozen=True)
class Records:
    """Changes of columns that were written together, by ascending (rowid, timestamp).

    liveness: whether LIVENESS is one of these columns.
    """

    liveness: bool
    rowids: Rowids
    timestamps: Timestamps

    def between(self, lower: int, upper: int) -> tuple[Rowids, Timestamps]:
        """Return the rowids and timestamps of the changes of rows [lower, upper).

        Rowids are counted from `lower`.
        """
        begin, end = np.searchsorted(self.rowids, [lower, upper])
        return self.rowids[begin:end] - lower, self.timestamps[begin:end]


def _records(table: TableState, rowset: AnyRowSet, spec: ChangeSpec) -> Iterator[Records]:
    """Yield the rowids and timestamps of the rowset's changes in the feed's interval.

    Columns with the same rowids and timestamps have one item together.
    """
    known: list[Records] = []
    for liveness, rowids, timestamps in _vectors(table, rowset, spec):
        inside = spec.inside(timestamps)
        if not inside.all():
            rowids, timestamps = rowids[inside], timestamps[inside]
        if not len(rowids):
            continue
        for index, other in enumerate(known):
            if np.array_equal(other.rowids, rowids) and np.array_equal(other.timestamps, timestamps):
                known[index] = dataclasses.replace(other, liveness=other.liveness or liveness)
                break
        else:
            known.append(Records(liveness, rowids, timestamps))
    yield from known


def _vectors(
    table: TableState, rowset: AnyRowSet, spec: ChangeSpec
) -> Iterator[tuple[bool, Rowids, Timestamps]]:
    """Yield the changes in files and in memory, as (is_liveness, rowids, timestamps).

    The columns that changed together in one file have one tuple. A column that changed in memory
    has one or more tuples. Rowids ascend. The timestamps of one row ascend too.

    is_liveness: whether LIVENESS, which says whether a row exists, is one of the columns.
    """
    known = {LIVENESS, *(column.id for column in table.schema.value_columns)}
    if isinstance(rowset, DiskRowSet):
        files = [f for f in (*rowset.undo, *rowset.redo) if spec.meets(f.timestamp_min, f.timestamp_max)]
        rowset.reader.prefetch_footers()
        for file in files:
            file.reader.prefetch_all()
        for file in files:
            for column_id, liveness in _one_of_each_group(file, known):
                run = file.run(column_id)
                if run is not None:
                    yield liveness, *_newest_last(run)
    else:
        times = rowset.insertion_times(0, rowset.row_count)
        yield True, np.arange(len(times)), times
    for store in in_memory(rowset):
        if spec.meets(store.timestamp_min, store.timestamp_max):
            for column_id in store.column_ids & known:
                for run in store.levels(column_id):
                    yield column_id == LIVENESS, run.rowids, run.timestamps


def _one_of_each_group(file: DeltaFile, known: set[int]) -> Iterator[tuple[int, bool]]:
    """Yield one column for each group of columns that changed together in the file.

    Such columns share rowids and timestamps, so one column is enough. Each result is (column id,
    whether LIVENESS is in the group).

    known: the ids of the columns to consider; all others are ignored.
    """
    groups: dict[int, list[tuple[int, int]]] = {}
    for place in file.entry.places:
        if place.key.role == DELTA_VALUE and place.key.column_id in known:
            groups.setdefault(place.key.group, []).append((place.length, place.key.column_id))
    for members in groups.values():
        column_ids = [column_id for _, column_id in sorted(members)]
        if LIVENESS in column_ids:
            yield LIVENESS, True
        else:
            yield column_ids[0], False


def _newest_last(run: DeltaRun) -> tuple[Rowids, Timestamps]:
    """Return the run's rowids and timestamps, with the timestamps of each row ascending."""
    if run.kind == "redo":
        return run.rowids, run.timestamps
    reversed_order = _reversed_per_row(run.rowids)
    return run.rowids, run.timestamps if reversed_order is None else run.timestamps[reversed_order]


def _reversed_per_row(rowids: Rowids) -> npt.NDArray[np.int64] | None:
    """Return positions that reverse the order of each row's records; None: no row has several."""
    count = len(rowids)
    first = first_of_each(rowids)
    if first.all():
        return None
    begin = np.flatnonzero(first)
    size = np.diff(np.append(begin, count))
    order: npt.NDArray[np.int64] = np.repeat(2 * begin + size - 1, size) - np.arange(count)
    return order


def in_memory(rowset: AnyRowSet) -> tuple[DeltaMemStore, ...]:
    """Return the rowset's DeltaMemStores, oldest first."""
    return (rowset.deltas,) if isinstance(rowset, MemRowSet) else (*rowset.frozen, rowset.deltas)
