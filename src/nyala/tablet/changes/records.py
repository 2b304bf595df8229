"""Which rows of a rowset were touched between two moments, and when: from rowids and timestamps, without a value.

A row is *touched* iff LIVENESS or some column of it has a record in the interval: UNDO, REDO, what is in memory, and
in a MemRowSet its insertion. Files whose timestamps do not meet the interval are not opened.

Cost: rowids and timestamps of the interval's records, of columns that were written together once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nyala.cfile.column import DELTA_VALUE
from nyala.delta.delta_file import LITTLE_TEXT_BYTES, DeltaFile
from nyala.delta.run import LIVENESS, DeltaRun, Rowids, Timestamps
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.rowset.mem_rowset import MemRowSet
from nyala.schema.limits import LARGEST
from nyala.tablet.changes.batches import distinct, first_of_each
from nyala.tablet.changes.spec import Bools, ChangeSpec
from nyala.tablet.state.root import AnyRowSet, TableState


def may_meet(rowset: AnyRowSet, spec: ChangeSpec) -> bool:
    """Whether the rowset can hold a record of the interval. Opens no file."""
    if not rowset.row_count:
        return False
    if isinstance(rowset, MemRowSet):
        return spec.meets(rowset.timestamp_min, rowset.timestamp_max)
    stores = (*rowset.undo, *rowset.redo, *in_memory(rowset))
    return any(spec.meets(store.timestamp_min, store.timestamp_max) for store in stores)


def may_move(rowset: AnyRowSet, spec: ChangeSpec) -> bool:
    """Whether a row of it can have been born or have died in the interval. Opens no file."""
    if isinstance(rowset, MemRowSet):
        return True
    stores = (*rowset.undo, *rowset.redo, *in_memory(rowset))
    return any(
        LIVENESS in store.column_ids and spec.meets(store.timestamp_min, store.timestamp_max)
        for store in stores
    )


def rowsets_of(table: TableState, spec: ChangeSpec) -> Iterator[AnyRowSet]:
    for tablet in table.tablets:
        for rowset in tablet.all_rowsets():
            if may_meet(rowset, spec):
                yield rowset


def change_counts(table: TableState, spec: ChangeSpec) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(timestamps at which something changed in the interval, ascending; rows that changed at each, at most).

    Cost: rowids and timestamps of the interval's records; no values.
    """
    moments, counts = np.empty(0, np.int64), np.empty(0, np.int64)
    for rowset in rowsets_of(table, spec):
        for records in Touched(table, rowset, spec).records:
            found, often = np.unique(records.timestamps, return_counts=True)
            moments, place = np.unique(np.concatenate([moments, found]), return_inverse=True)
            counts = np.bincount(place, np.concatenate([counts, often]), len(moments)).astype(np.int64)
    return moments, counts


def text_row_bytes(rowset: AnyRowSet, spec: ChangeSpec) -> float:
    """Bytes of a row, with its changes, in that text column which has most; 0 where the rowset has little text.

    Opens these columns, unless the rowset has few rows. Rows in memory are bounded when they are written.
    """
    if not isinstance(rowset, DiskRowSet) or rowset.row_count * LARGEST.max_cell_bytes <= LITTLE_TEXT_BYTES:
        return 0.0
    text = (column for column in spec.columns if column.type.is_variable)
    return max(
        (rowset.row_bytes(column) + rowset.changes.text_row_bytes(column.id) for column in text), default=0.0
    )


class Touched:
    """The records of one rowset that lie in the interval, without their values."""

    def __init__(self, table: TableState, rowset: AnyRowSet, spec: ChangeSpec) -> None:
        self.table = table
        self.rowset = rowset
        self.spec = spec
        self.records = list(_records(table, rowset, spec))

    @property
    def count(self) -> int:
        """Versions, at most."""
        return sum(len(records.rowids) for records in self.records)

    def windows(self) -> Iterator[tuple[int, int]]:
        """[lower, upper) pieces of the rowset in which a record lies, cut at multiples of the window."""
        if not self.records:
            return
        rows, text = self.spec.window_rows, text_row_bytes(self.rowset, self.spec)
        while rows > 1 and rows * text > LITTLE_TEXT_BYTES:
            rows //= 2
        numbers = distinct(np.sort(np.concatenate([distinct(part.rowids // rows) for part in self.records])))
        for number in numbers.tolist():
            yield number * rows, min((number + 1) * rows, self.rowset.row_count)

    def rows(self, lower: int, upper: int) -> tuple[Rowids, Timestamps, Bools]:
        """Of [lower, upper): (rowids that were touched, ascending; newest record of each; was it born, or died?)."""
        newest = np.full(upper - lower, -1, np.int64)
        moved = np.zeros(upper - lower, np.bool_)
        for records in self.records:
            places, times = records.window(lower, upper)
            # Of a row's records the last one is the newest, and of equal places NumPy keeps the last that is assigned.
            newest[places] = np.maximum(newest[places], times)
            if records.liveness:
                moved[places] = True
        at = np.flatnonzero(newest >= 0)
        return at + lower, newest[at], moved[at]

    def moved(self) -> Rowids:
        """All rows that were born or died, ascending."""
        parts = [records.rowids for records in self.records if records.liveness]
        return distinct(np.sort(np.concatenate(parts))) if parts else np.empty(0, np.int64)


@dataclass(frozen=True)
class Records:
    """Who and when, of columns that were written together: rowids ascend, and of a row the last one is the newest."""

    liveness: bool
    rowids: Rowids
    timestamps: Timestamps

    def window(self, lower: int, upper: int) -> tuple[Rowids, Timestamps]:
        """Those of the rows [lower, upper), whose rowids then count from `lower`."""
        begin, end = np.searchsorted(self.rowids, [lower, upper])
        return self.rowids[begin:end] - lower, self.timestamps[begin:end]


def _records(table: TableState, rowset: AnyRowSet, spec: ChangeSpec) -> Iterator[Records]:
    """What `Touched` holds. Equal vectors, as of columns that were written together, come once."""
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
    """(is it LIVENESS, rowids ascending, timestamps ascending in a row), of all stores that meet the interval."""
    known = {LIVENESS, *(column.id for column in table.schema.value_columns)}
    if isinstance(rowset, DiskRowSet):
        for file in (*rowset.undo, *rowset.redo):
            if spec.meets(file.timestamp_min, file.timestamp_max):
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
    """(column, is LIVENESS in its group): columns of one group have the same rowids and timestamps, so one will do."""
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
    """The run's vectors with the records of a row in ascending order of time."""
    if run.kind == "redo":
        return run.rowids, run.timestamps
    turned = _turned(run.rowids)
    return run.rowids, run.timestamps if turned is None else run.timestamps[turned]


def _turned(rowids: Rowids) -> npt.NDArray[np.int64] | None:
    """Places that turn the order within each row around; None when no row stands twice."""
    count = len(rowids)
    first = first_of_each(rowids)
    if first.all():
        return None
    begin = np.flatnonzero(first)
    size = np.diff(np.append(begin, count))
    turned: npt.NDArray[np.int64] = np.repeat(2 * begin + size - 1, size) - np.arange(count)
    return turned


def in_memory(rowset: AnyRowSet) -> tuple[Any, ...]:
    return (rowset.deltas,) if isinstance(rowset, MemRowSet) else (*rowset.frozen, rowset.deltas)
