"""The changes of one column as sorted vectors: which row (rowid), when (timestamp), which value.

In each row, a column has a value until the next change. The same is true of LIVENESS, the unnamed
column that says whether the row is alive. A rowset stores one value per row (the base), and the
changes before and after it:

    older  <---------------------------------------------------------------->  newer
      UNDO t=4        UNDO t=9        [ base ]        REDO t=12        REDO t=20
      before 4: a     before 9: b         c           from 12: d       from 20: e

    REDO (rowid, t, v)   from t on the value is v
    UNDO (rowid, t, v)   before t the value was v

    value at snapshot T = the last REDO with t <= T, if there is one,
                          else the oldest UNDO with t > T, if there is one,
                          else the base

INSERT, UPDATE, DELETE and REINSERT become changes of columns. An insertion is UNDO LIVENESS=False
at its timestamp. A DELETE is LIVENESS=False. A REINSERT is LIVENESS=True, together with values for
every column outside the key. So each column is read, merged and compacted without the others.

Invariants of a run
    D1  REDO records ascend by (rowid, timestamp). UNDO records ascend by rowid, and descend by
        timestamp within a row. So in both kinds, the value at a snapshot is that of the *last*
        record of the row that applies.
    D2  (rowid, timestamp) is unique in a run, and over all runs of one column of a rowset.
    D3  Rowids and timestamps are not negative.

A run and its arrays are immutable; any thread may read them. Delta files and DeltaMemStores select
runs by timestamps, and `applier` patches the base.
Source: Kudu tablet design, "MVCC Mutations in MemRowSet" to "Summary of delta file processing".
Kudu stores lists of changes by row. So a scan of three columns there decodes the changes of all
columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile.physical import copy_dtype
from nyala.lazy_values import LazyValues, lazy_value
from nyala.schema.adapter import concat_versions
from nyala.schema.plain_arrays import array_of_numbers

LIVENESS: Final = -1
"""The column id of "is the row alive?", a bool. If a rowset stores no base for it, the base is True."""

MAX_TIMESTAMP: Final = 2**63 - 1
"""As a snapshot, it sees everything. Writers look up keys in this state."""

DeltaKind: TypeAlias = Literal["redo", "undo"]
Rowids: TypeAlias = npt.NDArray[np.int64]
Timestamps: TypeAlias = npt.NDArray[np.int64]


def take(values: pa.Array, indices: npt.NDArray[np.integer[Any]]) -> pa.Array:
    """Return `values.take(indices)`, but faster for types of fixed width.

    The indices must be in range.
    """
    dtype = copy_dtype(values.type)
    if dtype is None or values.null_count or not len(indices):
        return values.take(array_of_numbers(indices))
    raw = np.frombuffer(values.buffers()[1], dtype, len(values), values.offset * dtype.itemsize)
    return pa.Array.from_buffers(values.type, len(indices), [None, pa.py_buffer(raw[indices])])


@dataclass(frozen=True, eq=False)
class DeltaRun(LazyValues):
    """The sorted changes of one column. `build_run` creates a run from unsorted records."""

    kind: DeltaKind
    rowids: Rowids
    timestamps: Timestamps
    values: pa.Array

    def __len__(self) -> int:
        return len(self.rowids)

    @lazy_value
    def timestamp_min(self) -> int:
        return int(self.timestamps.min()) if len(self) else MAX_TIMESTAMP

    @lazy_value
    def timestamp_max(self) -> int:
        return int(self.timestamps.max()) if len(self) else -1

    @lazy_value
    def nbytes(self) -> int:
        """The size of rowids, timestamps and values in memory, in bytes.

        The arrays that `latest` creates and caches are not counted.
        """
        return int(self.rowids.nbytes + self.timestamps.nbytes + self.values.nbytes)

    @lazy_value
    def latest(self) -> tuple[Rowids, pa.Array]:
        """The last record of each row, as (strictly ascending rowids, values).

        For REDO, this is the result of `resolve` at a snapshot at or after the newest record. For
        UNDO, it is the result at a snapshot before the oldest record. It is cached, because reads
        of the present and every batch of writes need it.
        """
        last = last_of_row(self.rowids)
        if last is None:
            return self.rowids, self.values
        at = np.flatnonzero(last)
        return self.rowids[at], take(self.values, at)

    def relevant(self, snapshot: int) -> bool:
        """Whether any record changes a value at `snapshot`: REDO up to it, or UNDO after it."""
        if self.kind == "redo":
            return self.timestamp_min <= snapshot
        return self.timestamp_max > snapshot

    def _all_apply(self, snapshot: int) -> bool:
        if self.kind == "redo":
            return self.timestamp_max <= snapshot
        return self.timestamp_min > snapshot

    def _applies(self, timestamps: Timestamps, snapshot: int) -> npt.NDArray[np.bool_]:
        return timestamps <= snapshot if self.kind == "redo" else timestamps > snapshot

    def resolve(self, snapshot: int, lower: int = 0, upper: int | None = None) -> tuple[Rowids, pa.Array]:
        """Return the values at `snapshot` of the rows in [lower, upper) that this run changes.

        Returns: (strictly ascending rowids, values).
        Cost: one pass over the records of these rows. But if all records of the run apply at
        `snapshot`, the first call makes one pass over all records. Later calls make only a binary
        search for `lower` and `upper`. A REDO record applies if its timestamp is <= `snapshot`, an
        UNDO record if its timestamp is greater.
        """
        if not self.relevant(snapshot):
            return self.rowids[:0], self.values.slice(0, 0)
        everything = self._all_apply(snapshot)
        rowids, values = self.latest if everything else (self.rowids, self.values)
        begin, end = _bounds(rowids, lower, upper)
        if everything:
            if end - begin == len(rowids):
                return rowids, values
            return rowids[begin:end], values.slice(begin, end - begin)
        at = np.flatnonzero(self._applies(self.timestamps[begin:end], snapshot))
        rowids = rowids[begin:end][at]
        last = last_of_row(rowids)
        if last is not None:
            rowids, at = rowids[last], at[last]
        return rowids, take(values, at + begin)

    def resolve_at(self, rowids: Rowids, snapshot: int) -> tuple[npt.NDArray[np.int64], pa.Array]:
        """Return the values at `snapshot` of those given rows that this run changes.

        rowids: the rows, in any order.
        Returns: (ascending positions in `rowids`, values).
        Cost: one binary search per given row. If some record of the run does not apply at
        `snapshot`, also one pass over the records of the given rows. A REDO record applies if its
        timestamp is <= `snapshot`, an UNDO record if its timestamp is greater.
        """
        if not len(rowids) or not self.relevant(snapshot):
            return np.empty(0, np.int64), self.values.slice(0, 0)
        if self._all_apply(snapshot):
            known, values = self.latest
            at = np.searchsorted(known, rowids)
            at[at == len(known)] = 0  # a rowid beyond the last record; the comparison below excludes it
            positions = np.flatnonzero(known[at] == rowids)
            return positions, take(values, at[positions])
        begin = np.searchsorted(self.rowids, rowids, side="left")
        count = np.searchsorted(self.rowids, rowids, side="right") - begin
        owner = np.repeat(np.arange(len(rowids)), count)
        at = np.arange(len(owner)) + np.repeat(begin - (np.cumsum(count) - count), count)
        applies = self._applies(self.timestamps[at], snapshot)
        owner, at = owner[applies], at[applies]
        last = last_of_row(owner)
        if last is not None:
            owner, at = owner[last], at[last]
        return owner, take(self.values, at)

    def last_of(self, rowid: int, snapshot: int) -> int:
        """Return the position of a row's last REDO record up to `snapshot`.

        -1 if the row has no record up to `snapshot`.
        """
        begin, end = np.searchsorted(self.rowids, (rowid, rowid + 1)).tolist()
        if begin == end:
            return -1
        applied = int(np.searchsorted(self.timestamps[begin:end], snapshot, "right"))
        return begin + applied - 1 if applied else -1

    def changed_rows(self, snapshot: int, lower: int = 0, upper: int | None = None) -> Rowids:
        """Return the rowids in [lower, upper) that this run changes at `snapshot`.

        They ascend, and a rowid may repeat.
        """
        if not self.relevant(snapshot):
            return self.rowids[:0]
        everything = self._all_apply(snapshot)
        rowids = self.latest[0] if everything else self.rowids
        begin, end = _bounds(rowids, lower, upper)
        if everything:
            return rowids[begin:end]
        return rowids[begin:end][self._applies(self.timestamps[begin:end], snapshot)]

    def filter(self, keep: npt.NDArray[np.bool_]) -> DeltaRun:
        """Return the records where `keep` is True."""
        if keep.all():
            return self
        at = np.flatnonzero(keep)
        return DeltaRun(self.kind, self.rowids[at], self.timestamps[at], take(self.values, at))

    def between(self, after: int, until: int) -> DeltaRun:
        """Return the records with `after` < timestamp <= `until`."""
        if after < self.timestamp_min and self.timestamp_max <= until:
            return self
        return self.filter((self.timestamps > after) & (self.timestamps <= until))

    def of_rows(self, lower: int, upper: int) -> DeltaRun:
        """Return the records of the rows [lower, upper), with rowids counted from `lower`."""
        begin, end = _bounds(self.rowids, lower, upper)
        return DeltaRun(
            self.kind,
            self.rowids[begin:end] - lower,
            self.timestamps[begin:end],
            self.values.slice(begin, end - begin),
        )

    def moved(self, positions: Rowids) -> DeltaRun:
        """Return the records with other rowids: row r becomes row `positions[r]`.

        If `positions[r]` is -1, the records of row r are dropped.
        """
        rowids = positions[self.rowids]
        keep = rowids >= 0
        if keep.all():
            return build_run(self.kind, rowids, self.timestamps, self.values)
        at = np.flatnonzero(keep)
        return build_run(self.kind, rowids[at], self.timestamps[at], take(self.values, at))

    def disorder(self) -> int | None:
        """Return the index of the first record in a wrong position; None if the run is sorted.

        Rowids must ascend. Within a row, the timestamps must ascend for REDO, and descend for UNDO.
        A record must not repeat, and no number may be negative.
        """
        if not len(self):
            return None
        if self.rowids[0] < 0:
            return 0
        negative = self.timestamps < 0
        if negative.any():
            return int(np.argmax(negative))
        bad = ~_ascending(self.kind, self.rowids, self.timestamps)
        return int(np.argmax(bad)) + 1 if bad.any() else None

    def check(self) -> None:
        """Assert that the records are sorted (see `disorder`).

        Also assert that `rowids`, `timestamps` and `values` are equally long.
        """
        assert len(self.rowids) == len(self.timestamps) == len(self.values), (
            "the vectors of a run must have equal lengths"
        )
        assert self.disorder() is None, (
            f"D1–D3: record {self.disorder()} of a {self.kind} run is out of order"
        )


def _bounds(rowids: Rowids, lower: int, upper: int | None) -> tuple[int, int]:
    begin = int(np.searchsorted(rowids, lower)) if lower > 0 else 0
    end = len(rowids) if upper is None else int(np.searchsorted(rowids, upper))
    return begin, max(begin, end)


def last_of_row(rowids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_] | None:
    """Return a mask that is True for the last record of each row; None if no row repeats.

    rowids: the row of each record, ascending.
    """
    if len(rowids) < 2:
        return None
    differs = rowids[1:] != rowids[:-1]
    return None if differs.all() else np.append(differs, True)


def _ascending(kind: DeltaKind, rowids: Rowids, timestamps: Timestamps) -> npt.NDArray[np.bool_]:
    """Return one bool per pair of adjacent records: whether the pair is in order.

    Records ascend by row. The records of one row ascend by timestamp if `kind` is "redo", and
    descend if it is "undo". Two records of a row with equal timestamps are not in order.
    """
    later = timestamps[1:] > timestamps[:-1] if kind == "redo" else timestamps[1:] < timestamps[:-1]
    ordered: npt.NDArray[np.bool_] = (rowids[1:] > rowids[:-1]) | ((rowids[1:] == rowids[:-1]) & later)
    return ordered


def build_run(kind: DeltaKind, rowids: Rowids, timestamps: int | Timestamps, values: pa.Array) -> DeltaRun:
    """Sort the records, which may have any order, and return them as a run.

    timestamps: one per record, or a single timestamp for all records.
    """
    times = (
        timestamps if isinstance(timestamps, np.ndarray) else np.full(len(rowids), timestamps, dtype=np.int64)
    )
    if len(rowids) < 2 or (rowids[1:] > rowids[:-1]).all() or _ascending(kind, rowids, times).all():
        return DeltaRun(kind, rowids, times, values)
    order = np.lexsort((times if kind == "redo" else -times, rowids))
    return DeltaRun(kind, rowids[order], times[order], take(values, order))


def merge_runs(runs: Sequence[DeltaRun]) -> DeltaRun:
    """Merge several runs of one column and kind (REDO or UNDO) into one sorted run.

    Values from before a widening of the column are converted to the wider type.
    Cost: O(records) if the runs follow one another in time, oldest first for REDO and newest first
    for UNDO. Otherwise O(records · log records).
    """
    assert runs, "merge_runs needs at least one run"
    kind = runs[0].kind
    assert all(run.kind == kind for run in runs), "REDO and UNDO must not be mixed"
    # An empty run has no timestamps, so it would hide that its neighbours overlap.
    runs = [run for run in runs if len(run)] or runs[:1]
    if len(runs) == 1:
        return runs[0]
    rowids = np.concatenate([run.rowids for run in runs])
    times = np.concatenate([run.timestamps for run in runs])
    values = concat_versions([run.values for run in runs])
    in_time = runs if kind == "redo" else runs[::-1]
    if all(
        older.timestamp_max <= newer.timestamp_min for older, newer in pairwise(in_time)
    ):  # D2 covers equality
        if (rowids[1:] > rowids[:-1]).all():
            return DeltaRun(kind, rowids, times, values)
        order = np.argsort(rowids, kind="stable")
    else:
        order = np.lexsort((times if kind == "redo" else -times, rowids))
    return DeltaRun(kind, rowids[order], times[order], take(values, order))


def without_history(runs: Mapping[int, DeltaRun], cut: int) -> dict[int, DeltaRun]:
    """Return the runs without the records that only snapshots before the timestamp `cut` need.

    UNDO runs keep the records after `cut`. REDO runs keep the records after `cut` and, for each
    row, the last record up to `cut`. Columns without a remaining record are left out. If columns
    share the arrays of rowids and timestamps, the results share them too.
    """
    needed: dict[tuple[int, int], tuple[Rowids, Timestamps, npt.NDArray[np.intp] | None]] = {}
    found: dict[int, DeltaRun] = {}
    for column_id, run in runs.items():
        keys = (id(run.rowids), id(run.timestamps))
        if keys not in needed:
            needed[keys] = _needed(run, cut)
        rowids, timestamps, at = needed[keys]
        if len(rowids):
            found[column_id] = (
                run if at is None else DeltaRun(run.kind, rowids, timestamps, take(run.values, at))
            )
    return found


def _needed(run: DeltaRun, cut: int) -> tuple[Rowids, Timestamps, npt.NDArray[np.intp] | None]:
    """Return (rowids, timestamps, positions in `run`) of the records that `without_history` keeps.

    The positions are None if all records are kept.
    """
    keep = run.timestamps > cut
    if run.kind == "redo" and len(run):
        # A record is not needed if the next one is of the same row and also not after the cut.
        keep = np.append((run.rowids[1:] != run.rowids[:-1]) | keep[1:], True)
    if keep.all():
        return run.rowids, run.timestamps, None
    at = np.flatnonzero(keep)
    return run.rowids[at], run.timestamps[at], at
