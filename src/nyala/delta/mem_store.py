"""The DeltaMemStore: changes of one rowset that are not in a file yet.

The store is a short list of *nodes*. A node has the records of some consecutive calls of `append`.
`append` adds a node, and may join it with the last nodes into one. This only links the nodes, so it
does no work per row or per column. Like the digits of a binary counter, each node is much larger
than the next:

    append    nodes afterwards (number of records)
    a         a(1)
    b         ab(2)
    c         ab(2) c(1), joined to abc(3)
    ...       [ 60,000 ][ 4,000 ][ 300 ][ 12 ]

Readers need a *run*: the changes of one column, sorted by row and time. A node builds its run of a
column when a reader first needs it (`node`). It merges the runs of the nodes that were joined, and
frees them.

So each record is merged O(log records) times, and only if a reader needs its column. A reader
applies O(log records) runs. A look-up of single rows searches appends and existing runs. It builds
runs only after many look-ups.

Invariants
    M1  Nodes follow one another in time: the greatest timestamp of a node is at most the least
        timestamp of the next node. Replay groups records by kind, so its appends may be out of time
        order. Such an append is merged with the nodes before it until this holds.
    M2  A node has more than MERGE_RATIO times as many records as the next.
    M3  A reader sees whole appends: the first n of them, for some n.
    M4  Once T is published, the records with timestamp <= T do not change for a reader. Later
        appends have later timestamps, and readers select by timestamp.
    M5  (rowid, timestamp) is unique per column.

Threads: one thread at a time, the holder of the database's commit lock, calls `append`. Any thread
may call everything else without a lock: the state is one immutable tuple that is replaced as a
whole. Cached runs can be computed again, so at worst two readers build the same run.
Source: Kudu tablet design, "Handling mutations against on-disk files" (Kudu has a concurrent
B-tree).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Set
from functools import reduce
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.delta.batch import DeltaBatch, SharedBatch
from nyala.delta.node import Append, Cell, Node
from nyala.delta.run import MAX_TIMESTAMP, DeltaRun, Rowids, Timestamps, merge_runs

# Nodes are merged until each has more than this many times the records of the next. A small ratio
# leaves fewer nodes to apply, a large one needs fewer merges. With 4, a million records are in at
# most ten nodes, mostly in three or four.
MERGE_RATIO: Final = 4
# The Python and Arrow objects of an append take about 2 KB, whatever its size. So a node of this
# many appends, with fewer than _SMALL_RECORDS records on average, builds all its columns at once
# and frees the appends.
_SMALL_APPENDS: Final = 64
_SMALL_RECORDS: Final = 256
_OVERHEAD_BYTES: Final = 2048
# Writes of random keys append to the stores of all rowsets. If all stores built at the same append,
# that write would take ten times as long as the others. So stores build after different numbers of
# appends: the usual number times one of these factors.
_TURNS: Final = (1.0, 1.25, 1.5625, 1.953125)


_serials: Final = itertools.count(1)


class _State(NamedTuple):
    nodes: tuple[Node, ...]
    record_count: int
    data_bytes: int
    timestamp_min: int
    timestamp_max: int
    column_ids: frozenset[int]


_EMPTY: Final = _State((), 0, 0, MAX_TIMESTAMP, -1, frozenset())


class DeltaMemStore:
    """The newest REDO records of a rowset, in memory.

    A rowset has one store that takes appends. During a flush it also has stores that are being
    written to files and take no more appends.
    """

    def __init__(self) -> None:
        self._state = _EMPTY
        self._merged: dict[int, tuple[_State, DeltaRun]] = {}
        self.serial: Final = next(_serials)
        """A number that is unique in this process. Together with `record_count` it identifies a state."""
        self._small_appends: Final = int(_SMALL_APPENDS * _TURNS[self.serial % len(_TURNS)])

    def append(
        self,
        rowids: Rowids,
        timestamps: int | Timestamps,
        columns: Mapping[int, pa.Array] | SharedBatch,
        offset: int = 0,
    ) -> None:
        """Add changes: from `timestamps[i]` on, row `rowids[i]` has the i-th value of each column.

        The store keeps the arrays, so the caller must not change them. The caller must hold the
        commit lock.

        rowids, timestamps: in any order.
        columns: the values by column id: arrays of `len(rowids)` values, or a SharedBatch, which
        has the values in its rows [offset, offset + len(rowids)). Key columns are not allowed.
        Cost: a few NumPy calls for any number of rows. After 64 to 125 small appends, one append
        also merges them.
        """
        if not len(rowids):
            return
        batch = columns if isinstance(columns, SharedBatch) else SharedBatch(columns)
        old = self._state
        node = Node.of_append(Append(rowids, timestamps, batch, offset))
        nodes = list(old.nodes)
        low, high = node.timestamp_min, node.timestamp_max
        while nodes and (
            nodes[-1].timestamp_max > node.timestamp_min
            or nodes[-1].record_count <= MERGE_RATIO * node.record_count
        ):
            node = Node.of_nodes(nodes.pop(), node)
        if (
            node.append_count >= self._small_appends
            and node.record_count < _SMALL_RECORDS * node.append_count
        ):
            node.build()
        nodes.append(node)
        self._state = _State(
            tuple(nodes),
            old.record_count + len(rowids),
            old.data_bytes + int(len(rowids) * (16 + batch.bytes_per_row)),
            min(old.timestamp_min, low),
            max(old.timestamp_max, high),
            old.column_ids if batch.column_ids <= old.column_ids else old.column_ids | batch.column_ids,
        )

    def copy(self) -> DeltaMemStore:
        """Return a copy of the store. Later appends to one do not change the other. Cost: O(1)."""
        twin = DeltaMemStore()
        twin._state = self._state
        return twin

    def changed_after(self, rowids: Rowids, timestamp: int) -> npt.NDArray[np.bool_]:
        """Return one bool per rowid: whether the row has a record newer than `timestamp`.

        Cost: a search in the rowids of all newer records.
        """
        found = [part for node in self._state.nodes for part in node.rowids_after(timestamp)]
        return np.isin(rowids, np.concatenate(found)) if found else np.zeros(len(rowids), np.bool_)

    @property
    def record_count(self) -> int:
        """The number of rows in all appends. A row that was appended twice counts twice."""
        return self._state.record_count

    @property
    def nbytes(self) -> int:
        """The approximate bytes in memory: the appended data, and the overhead of each append.

        Does not count the sorted runs that readers built from the appended data.
        """
        state = self._state
        return state.data_bytes + _OVERHEAD_BYTES * sum(node.append_count for node in state.nodes)

    @property
    def timestamp_min(self) -> int | None:
        """The least timestamp; None if the store is empty."""
        state = self._state
        return state.timestamp_min if state.record_count else None

    @property
    def timestamp_max(self) -> int | None:
        """The greatest timestamp; None if the store is empty."""
        state = self._state
        return state.timestamp_max if state.record_count else None

    @property
    def column_ids(self) -> frozenset[int]:
        """The ids of the columns that have a record, including LIVENESS."""
        return self._state.column_ids

    def levels(self, column_id: int) -> tuple[DeltaRun, ...]:
        """Return the column's changes as sorted runs: oldest run first, without overlap in time.

        A run has changes of one column, sorted by row and time. Readers pass the runs to
        `applier.resolve`, which finds the values at a snapshot.
        """
        state = self._state
        if column_id not in state.column_ids:
            return ()
        return tuple(node.run(column_id) for node in state.nodes if column_id in node.column_ids)

    def cells(self, rowid: int, column_ids: Set[int], snapshot: int) -> dict[int, Cell]:
        """Return one row's values at `snapshot`, by column id.

        Columns without a record for this row are absent.
        Cost: a search in each run of sorted changes, and in each append that is not sorted yet.
        """
        found: dict[int, Cell] = {}
        for node in reversed(self._state.nodes):
            if len(found) == len(column_ids):
                break
            found |= node.cells(rowid, column_ids - found.keys(), snapshot)
        return found

    def run(self, column_id: int) -> DeltaRun | None:
        """Return all changes of the column as one sorted run; None if the column has no changes.

        Cost: merges the column's sorted runs, and caches the result until the next append. To read
        at a snapshot, use `levels`, which does not merge them.
        """
        state = self._state
        if column_id not in state.column_ids:
            return None
        cached = self._merged.get(column_id)
        if cached is not None and cached[0] is state:
            return cached[1]
        run = merge_runs([node.run(column_id) for node in state.nodes if column_id in node.column_ids])
        if len(state.nodes) > 1:
            self._merged[column_id] = (state, run)
        return run

    def runs(self) -> dict[int, DeltaRun]:
        """Return all changes as one sorted run per column, by column id, for a flush.

        Cost: one sort for all columns that changed together.
        """
        nodes = self._state.nodes
        if not nodes:
            return {}
        whole = reduce(Node.of_nodes, nodes)
        whole.build()
        return {column_id: whole.run(column_id) for column_id in sorted(whole.column_ids)}

    def batches_after(self, timestamp: int) -> list[DeltaBatch]:
        """Return the records newer than `timestamp`, to move them to another rowset.

        Columns with the same rowids and timestamps share a batch. The batches contain each record
        once.
        """
        batches: list[DeltaBatch] = []
        for column_id, run in self.runs().items():
            late = run.between(timestamp, MAX_TIMESTAMP)
            if not len(late):
                continue
            for index, batch in enumerate(batches):
                if np.array_equal(batch.rowids, late.rowids) and np.array_equal(
                    batch.timestamps, late.timestamps
                ):
                    batches[index] = DeltaBatch(
                        batch.rowids, batch.timestamps, {**batch.columns, column_id: late.values}
                    )
                    break
            else:
                batches.append(DeltaBatch(late.rowids, late.timestamps, {column_id: late.values}))
        return batches

    def check(self) -> None:
        """Assert the order and sizes of the nodes, unique records, and the counters.

        A node has the records of some consecutive appends. Nodes must follow one another in time,
        and each must have more than four times as many records as the next.
        """
        state = self._state
        for older, newer in pairwise(state.nodes):
            assert older.timestamp_max <= newer.timestamp_min, "M1: nodes must follow one another in time"
            assert older.record_count > MERGE_RATIO * newer.record_count, (
                "M2: nodes must shrink geometrically"
            )
        assert sum(node.record_count for node in state.nodes) == state.record_count, (
            "M3: nodes must hold every record"
        )
        for column_id in state.column_ids:
            run = self.run(column_id)
            assert run is not None
            run.check()
            assert state.timestamp_min <= run.timestamp_min, "timestamp_min must cover all runs"
            assert run.timestamp_max <= state.timestamp_max, "timestamp_max must cover all runs"
