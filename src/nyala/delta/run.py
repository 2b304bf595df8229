"""One column's changes as sorted vectors: who changed (rowid), when (timestamp), and to what (value).

Every column of a rowset is, for each row, a piecewise constant function of time, and so is LIVENESS, the
column without a name that says whether the row is there. A rowset stores the function as one value per row
(the base) and the places where it changes:

    older  <---------------------------------------------------------------->  newer
      UNDO t=4        UNDO t=9        [ base ]        REDO t=12        REDO t=20
      before 4: a     before 9: b         c           from 12: d       from 20: e

    REDO (rowid, t, v)   from t on the value is v
    UNDO (rowid, t, v)   before t the value was v

    value at snapshot T = the last REDO with t <= T, if there is one,
                          else what the oldest UNDO with t > T says, if there is one,
                          else the base

INSERT, UPDATE, DELETE and REINSERT are not kept as such. An insertion is UNDO LIVENESS=False at its timestamp,
a DELETE is LIVENESS=False, a REINSERT is LIVENESS=True together with every column outside the key. So each
column is read, merged and compacted without looking at another one.

Invariants of a run
    D1  REDO records ascend by (rowid, timestamp); UNDO records ascend by rowid and descend by timestamp.
        So in both kinds the *last* record of a row among those that a snapshot must apply decides.
    D2  (rowid, timestamp) is unique in a run, and over all runs of one column of a rowset.
    D3  Rowids are not negative, timestamps not either.

A run and its arrays are never changed after they were made; any thread may read them.
Left out: which runs matter to a snapshot (the stores know their timestamp range) and patching (`applier`).
Source: Kudu tablet design, "MVCC Mutations in MemRowSet" to "Summary of delta file processing".
Departure: Kudu keeps row-wise change lists; a scan of three columns there decodes the changes of all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile.physical import word_dtype
from nyala.lazy_values import LazyValues, lazy_value
from nyala.schema.adapter import joined
from nyala.schema.plain_arrays import array_of_numbers

__all__ = [
    "LIVENESS",
    "MAX_TIMESTAMP",
    "DeltaKind",
    "DeltaRun",
    "Rowids",
    "Timestamps",
    "build_run",
    "last_of_row",
    "merge_runs",
    "take",
    "without_history",
]

LIVENESS: Final = -1
"""Column id of "is the row there?": bool, and True where a rowset stores no base for it."""

MAX_TIMESTAMP: Final = 2**63 - 1
"""A snapshot that sees everything: the applied state, which writers resolve keys against."""

DeltaKind: TypeAlias = Literal["redo", "undo"]
Rowids: TypeAlias = npt.NDArray[np.int64]
Timestamps: TypeAlias = npt.NDArray[np.int64]


def take(values: pa.Array, indices: npt.NDArray[np.integer[Any]]) -> pa.Array:
    """`values` at `indices`, which must be in range. Cost: NumPy's of values of fixed width, else Arrow's."""
    dtype = word_dtype(values.type)
    if dtype is None or values.null_count or not len(indices):
        return values.take(array_of_numbers(indices))
    words = np.frombuffer(values.buffers()[1], dtype, len(values), values.offset * dtype.itemsize)
    return pa.Array.from_buffers(values.type, len(indices), [None, pa.py_buffer(words[indices])])


@dataclass(frozen=True, eq=False)
class DeltaRun(LazyValues):
    """The sorted changes of one column (D1–D3). Build one with `build_run` unless the order is known."""

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
        """Bytes of the three vectors, without what `latest` adds."""
        return int(self.rowids.nbytes + self.timestamps.nbytes + self.values.nbytes)

    @lazy_value
    def latest(self) -> tuple[Rowids, pa.Array]:
        """Per row the record that decides when every record applies: (unique ascending rowids, values).

        Made once: this is what the present reads from REDO, and what writers ask for with every batch.
        """
        last = last_of_row(self.rowids)
        if last is None:
            return self.rowids, self.values
        at = np.flatnonzero(last)
        return self.rowids[at], take(self.values, at)

    def relevant(self, snapshot: int) -> bool:
        """Whether any record applies at `snapshot`."""
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
        """What the run says at `snapshot` about the rows [lower, upper): (unique ascending rowids, values).

        Cost: the records of that range; a search only, when all records apply (see `latest`).
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
        """The same for single rows in any order: (places in `rowids` that have a record, ascending; values).

        Cost: O(rows · log records), plus the records of those rows when only a part of the run applies.
        """
        if not len(rowids) or not self.relevant(snapshot):
            return np.empty(0, np.int64), self.values.slice(0, 0)
        if self._all_apply(snapshot):
            known, values = self.latest
            at = np.searchsorted(known, rowids)
            at[at == len(known)] = 0  # beyond the end; the comparison below drops it
            places = np.flatnonzero(known[at] == rowids)
            return places, take(values, at[places])
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
        """Place of the record of REDO that decides about one row at `snapshot`; -1: none does."""
        begin, end = np.searchsorted(self.rowids, (rowid, rowid + 1)).tolist()
        if begin == end:
            return -1
        applied = int(np.searchsorted(self.timestamps[begin:end], snapshot, "right"))
        return begin + applied - 1 if applied else -1

    def touched(self, snapshot: int, lower: int = 0, upper: int | None = None) -> Rowids:
        """Ascending rowids in [lower, upper) of the records that apply at `snapshot`; a row may stand twice."""
        if not self.relevant(snapshot):
            return self.rowids[:0]
        everything = self._all_apply(snapshot)
        rowids = self.latest[0] if everything else self.rowids
        begin, end = _bounds(rowids, lower, upper)
        if everything:
            return rowids[begin:end]
        return rowids[begin:end][self._applies(self.timestamps[begin:end], snapshot)]

    def filter(self, keep: npt.NDArray[np.bool_]) -> DeltaRun:
        """The records where `keep` is True."""
        if keep.all():
            return self
        at = np.flatnonzero(keep)
        return DeltaRun(self.kind, self.rowids[at], self.timestamps[at], take(self.values, at))

    def between(self, after: int, until: int) -> DeltaRun:
        """The records with `after` < timestamp <= `until`."""
        if after < self.timestamp_min and self.timestamp_max <= until:
            return self
        return self.filter((self.timestamps > after) & (self.timestamps <= until))

    def window(self, lower: int, upper: int) -> DeltaRun:
        """The records of the rows [lower, upper), whose rowids then count from `lower`."""
        begin, end = _bounds(self.rowids, lower, upper)
        return DeltaRun(
            self.kind,
            self.rowids[begin:end] - lower,
            self.timestamps[begin:end],
            self.values.slice(begin, end - begin),
        )

    def moved(self, positions: Rowids) -> DeltaRun:
        """The same records where row r is now row `positions[r]`; those of rows gone to -1 are dropped."""
        rowids = positions[self.rowids]
        keep = rowids >= 0
        if keep.all():
            return build_run(self.kind, rowids, self.timestamps, self.values)
        at = np.flatnonzero(keep)
        return build_run(self.kind, rowids[at], self.timestamps[at], take(self.values, at))

    def disorder(self) -> int | None:
        """Index of the first record that breaks D1, D2 or D3; None when there is none."""
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
        """Assert D1 to D3."""
        assert len(self.rowids) == len(self.timestamps) == len(self.values), (
            "a run's vectors are of one length"
        )
        assert self.disorder() is None, (
            f"D1–D3: record {self.disorder()} of a {self.kind} run is out of order"
        )


def _bounds(rowids: Rowids, lower: int, upper: int | None) -> tuple[int, int]:
    begin = int(np.searchsorted(rowids, lower)) if lower > 0 else 0
    end = len(rowids) if upper is None else int(np.searchsorted(rowids, upper))
    return begin, max(begin, end)


def last_of_row(rowids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_] | None:
    """Mask of the last record of each row of ascending `rowids`; None when no row stands twice."""
    if len(rowids) < 2:
        return None
    differs = rowids[1:] != rowids[:-1]
    return None if differs.all() else np.append(differs, True)


def _ascending(kind: DeltaKind, rowids: Rowids, timestamps: Timestamps) -> npt.NDArray[np.bool_]:
    """For each neighbouring pair whether it stands in the order of D1 and is not equal (D2)."""
    later = timestamps[1:] > timestamps[:-1] if kind == "redo" else timestamps[1:] < timestamps[:-1]
    ordered: npt.NDArray[np.bool_] = (rowids[1:] > rowids[:-1]) | ((rowids[1:] == rowids[:-1]) & later)
    return ordered


def build_run(kind: DeltaKind, rowids: Rowids, timestamps: int | Timestamps, values: pa.Array) -> DeltaRun:
    """A run of records that come in any order; one timestamp may stand for all."""
    times = (
        timestamps if isinstance(timestamps, np.ndarray) else np.full(len(rowids), timestamps, dtype=np.int64)
    )
    if len(rowids) < 2 or (rowids[1:] > rowids[:-1]).all() or _ascending(kind, rowids, times).all():
        return DeltaRun(kind, rowids, times, values)
    order = np.lexsort((times if kind == "redo" else -times, rowids))
    return DeltaRun(kind, rowids[order], times[order], take(values, order))


def merge_runs(runs: Sequence[DeltaRun]) -> DeltaRun:
    """One run with all records of several runs of one column and kind, in whatever time order they come.

    Values that were written before and after the column was widened come in the wider type.

    Cost: O(records) when the runs follow one another in time, oldest first for REDO, newest first for UNDO
    (then a stable sort by rowid alone is a merge of sorted parts); else O(records · log records).
    """
    assert runs, "nothing to merge"
    kind = runs[0].kind
    assert all(run.kind == kind for run in runs), "REDO and UNDO do not mix"
    # An empty run has no place in time: it would hide that its neighbours overlap.
    runs = [run for run in runs if len(run)] or runs[:1]
    if len(runs) == 1:
        return runs[0]
    rowids = np.concatenate([run.rowids for run in runs])
    times = np.concatenate([run.timestamps for run in runs])
    values = joined([run.values for run in runs])
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
    """Return the records, by column id, that snapshots from `cut` on need; columns without any are left out.

    Of UNDO these are the records after `cut`. Of REDO they are the records after `cut` and, for each row, the last
    one before. Columns that share their rowids and timestamps still share them in the result.
    """
    needed: dict[tuple[int, int], tuple[Rowids, Timestamps, npt.NDArray[np.intp] | None]] = {}
    found: dict[int, DeltaRun] = {}
    for column_id, run in runs.items():
        moments = (id(run.rowids), id(run.timestamps))
        if moments not in needed:
            needed[moments] = _needed(run, cut)
        rowids, timestamps, at = needed[moments]
        if len(rowids):
            found[column_id] = (
                run if at is None else DeltaRun(run.kind, rowids, timestamps, take(run.values, at))
            )
    return found


def _needed(run: DeltaRun, cut: int) -> tuple[Rowids, Timestamps, npt.NDArray[np.intp] | None]:
    """Rowids and timestamps of the needed records, and their places in the run; None: all are needed."""
    keep = run.timestamps > cut
    if run.kind == "redo" and len(run):
        # A record is needed unless the next one is of the same row, and not after the cut either.
        keep = np.append((run.rowids[1:] != run.rowids[:-1]) | keep[1:], True)
    if keep.all():
        return run.rowids, run.timestamps, None
    at = np.flatnonzero(keep)
    return run.rowids[at], run.timestamps[at], at
