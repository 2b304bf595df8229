"""The DeltaMemStore: changes of one rowset that no file holds yet.

`append` keeps what it is given and does nothing per row or per column. Readers want sorted runs, so the store is
a short row of *nodes*, each the records of some appends that follow one another, and a node's run of one column
is built when that column is first asked for. Appending merges nodes as a binary counter does, in name only:

    append    nodes (records)                a run is built on demand (`node`), from what its two parts have;
    a         a(1)                           the parts' own are let go
    b         ab(2)
    c         ab(2) c(1) -> abc(3)               abcd... = merge(ab.run, c.run), and so on
    ...       [ 60,000 ][ 4,000 ][ 300 ][ 12 ]

so a record takes part in O(log records) merges of a column that is read, in none of a column that is not, and a
reader applies O(log records) runs, one after the other. Who asks for one row looks for it in
what is there (`node`), and builds none of them unless he keeps asking.

Invariants
    M1  Nodes follow one another in time: the greatest timestamp of one is at most the least of the next. An append
        out of time order (replay gathers by kind) is merged into its predecessors until this holds.
    M2  A node has more than MERGE_RATIO times as many records as the next.
    M3  Every state that was ever published is a prefix of the appends: a reader sees whole appends only.
    M4  What a reader sees of the records with timestamp <= T does not change once T is published: later
        appends have later timestamps, and readers cut by timestamp.
    M5  (rowid, timestamp) is unique per column (rule W4).

Threads: `append` is called by one thread at a time (it holds the database's commit lock); everything else from any
thread at any time, without a lock: the state is one immutable tuple in one attribute, replaced as a whole, and what
nodes cache is recomputable, so two readers at worst build the same run twice.
Source: Kudu tablet design, "Handling mutations against on-disk files" (there a concurrent B-tree).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Set
from functools import reduce
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from nyala.delta.batch import DeltaBatch, SharedBatch
from nyala.delta.node import Append, Cell, Node
from nyala.delta.run import MAX_TIMESTAMP, DeltaRun, Rowids, Timestamps, merge_runs

__all__ = ["DeltaMemStore"]

# Nodes are merged until each has more than this many times the records of the next. Small: fewer nodes to apply;
# large: fewer merges. At 4 a million records stand in at most ten nodes, mostly in three or four.
MERGE_RATIO: Final = 4
# An append costs some 2 KB of Python and Arrow objects, whatever its size. A node of this many appends that
# average fewer than _SMALL_RECORDS each is therefore built for all its columns at once and the appends let go.
_SMALL_APPENDS: Final = 64
_SMALL_RECORDS: Final = 256
_OVERHEAD_BYTES: Final = 2048
# Writes of random keys append to every rowset's store. So that not all of them are built in one write, which would take
# ten times as long as the others, stores wait for different numbers of appends: a quarter more each, since nodes of
# like appends are merged when there are a quarter more.
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
    """REDO records in memory (see the module). One per rowset takes appends; frozen ones wait to be written."""

    def __init__(self) -> None:
        self._state = _EMPTY
        self._merged: dict[int, tuple[_State, DeltaRun]] = {}
        self.serial: Final = next(_serials)
        """Unique in this process: with `record_count` it names a state."""
        self._small_appends: Final = int(_SMALL_APPENDS * _TURNS[self.serial % len(_TURNS)])

    def append(
        self,
        rowids: Rowids,
        timestamps: int | Timestamps,
        columns: Mapping[int, pa.Array] | SharedBatch,
        offset: int = 0,
    ) -> None:
        """Keep changes: from `timestamps[i]` on, row `rowids[i]` has the i-th value of each column.

        columns: arrays of `len(rowids)` by column id, or a SharedBatch of which the rows
                 [offset, offset + len(rowids)) belong here. Only columns outside the key, and LIVENESS.
        Rowids come in any order, timestamps too. The store keeps the arrays: the caller does not change them.
        Caller:  holds the commit lock (see the module, Threads).
        Cost:    O(1) NumPy calls and no Arrow call, whatever the number of rows and columns, when columns is a
                 SharedBatch; every 64 to 125 small appends, one merge of them.
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

    @property
    def record_count(self) -> int:
        """Rows of all appends (a row that was appended twice counts twice)."""
        return self._state.record_count

    @property
    def nbytes(self) -> int:
        """Bytes held, about: what was appended, and its overhead while it stands as it came.

        Columns that were read, of appends with columns that were not, are there twice; that is not counted.
        """
        state = self._state
        return state.data_bytes + _OVERHEAD_BYTES * sum(node.append_count for node in state.nodes)

    @property
    def timestamp_min(self) -> int | None:
        """The least timestamp, None when empty."""
        state = self._state
        return state.timestamp_min if state.record_count else None

    @property
    def timestamp_max(self) -> int | None:
        """The greatest timestamp, None when empty."""
        state = self._state
        return state.timestamp_max if state.record_count else None

    @property
    def column_ids(self) -> frozenset[int]:
        """Columns that have a record, LIVENESS among them."""
        return self._state.column_ids

    def levels(self, column_id: int) -> tuple[DeltaRun, ...]:
        """The column's runs, oldest first, each before the next in time (M1): what `applier` takes."""
        state = self._state
        if column_id not in state.column_ids:
            return ()
        return tuple(node.run(column_id) for node in state.nodes if column_id in node.column_ids)

    def cells(self, rowid: int, column_ids: Set[int], snapshot: int) -> dict[int, Cell]:
        """What the store says of one row at `snapshot`: the value of each of these columns of which a record applies.

        Cost: a look into each append that no run has taken up yet, and a search in each run.
        """
        found: dict[int, Cell] = {}
        for node in reversed(self._state.nodes):
            if len(found) == len(column_ids):
                break
            found |= node.cells(rowid, column_ids - found.keys(), snapshot)
        return found

    def run(self, column_id: int) -> DeltaRun | None:
        """All records of the column as one run; None when it has none.

        Cost: merges the levels, and keeps the result until the next append. Reading at a snapshot needs only
        `levels`, which costs less while appends go on.
        """
        state = self._state
        if column_id not in state.column_ids:
            return None
        known = self._merged.get(column_id)
        if known is not None and known[0] is state:
            return known[1]
        run = merge_runs([node.run(column_id) for node in state.nodes if column_id in node.column_ids])
        if len(state.nodes) > 1:
            self._merged[column_id] = (state, run)
        return run

    def runs(self) -> dict[int, DeltaRun]:
        """All records, per column: what a flush writes. Cost: of what changed together, one sort for all columns."""
        nodes = self._state.nodes
        if not nodes:
            return {}
        whole = reduce(Node.of_nodes, nodes)
        whole.build()
        return {column_id: whole.run(column_id) for column_id in sorted(whole.column_ids)}

    def batches_after(self, timestamp: int) -> list[DeltaBatch]:
        """The records newer than `timestamp`, for carrying them over to another rowset.

        Columns whose records belong to the same rows and moments share a batch. Together the batches hold each record
        once; appending them to an empty store gives a store that reads the same.
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
        """Assert M1, M2, M5 and what the counters say."""
        state = self._state
        for older, newer in pairwise(state.nodes):
            assert older.timestamp_max <= newer.timestamp_min, "M1: nodes follow one another in time"
            assert older.record_count > MERGE_RATIO * newer.record_count, "M2: nodes grow geometrically"
        assert sum(node.record_count for node in state.nodes) == state.record_count, (
            "M3: nodes hold every record"
        )
        for column_id in state.column_ids:
            run = self.run(column_id)
            assert run is not None
            run.check()
            assert state.timestamp_min <= run.timestamp_min, "the store's timestamp_min covers its runs"
            assert run.timestamp_max <= state.timestamp_max, "the store's timestamp_max covers its runs"
