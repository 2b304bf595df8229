"""A node of a DeltaMemStore: the changes of some appends. Sorted runs are built when a reader needs
them.

The content of a node is one of:

    an append       (rowids, one or more timestamps, a slice of a batch), in any order of rowids
    two nodes       which are adjacent in time and were merged
    runs            of all its columns, when the run of every column was built

A node is *uniform* if each of its records has a value for every column of the node, like the
records of upserts. Then all columns have the same order of records. The order is computed once
(`_Order`), and a column is sorted by it when a reader needs the column. In other nodes, the runs of
each column are built and merged separately.

A look-up of one row (`cells`) searches the appends, newest first. When the searches have cost as
much as building the runs, the runs are built.

Threads: any, without a lock. Everything but `content` can be computed again, so at worst two
readers do the same work. A thread that replaces `content` puts an equivalent value there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.delta.batch import SharedBatch
from nyala.delta.run import DeltaRun, Rowids, Timestamps, merge_runs, take
from nyala.schema.adapter import concat_versions

# The unit of cost is a search for one row in an append or run, 2 µs. In an append, this many
# records cost one unit more.
_SEARCH_RECORDS: Final = 4096
# Building costs one unit per this many cells, and one per two columns of an append. 64 appends of 8
# columns take 0.6 ms with 1 row each, 1.1 with 100 rows, 7.5 with 1,000 rows (2026-11-23).
_CELLS_OF_SEARCH: Final = 128

Cell: TypeAlias = tuple[pa.Array, int]
"""A value of one row: an array, and the position of the value in it."""


class Append:
    """The changes of one call of `append`.

    From `timestamps[i]` on, row `rowids[i]` has the value at position `offset + i` of each column
    of `batch`. If `timestamps` is one number, all changes have this timestamp.
    """

    __slots__ = ("batch", "offset", "rowids", "timestamps")

    def __init__(self, rowids: Rowids, timestamps: int | Timestamps, batch: SharedBatch, offset: int) -> None:
        self.rowids = rowids
        self.timestamps = timestamps
        self.batch = batch
        self.offset = offset

    @property
    def times(self) -> Timestamps:
        """The timestamps as an array, one per row."""
        times = self.timestamps
        return times if isinstance(times, np.ndarray) else np.full(len(self.rowids), times, np.int64)

    def values(self, column_id: int) -> pa.Array:
        return self.batch.columns[column_id].slice(self.offset, len(self.rowids))

    def last_of(self, rowid: int, snapshot: int) -> int:
        """Return the position in `batch` of the newest change of row `rowid` up to `snapshot`.

        Returns -1 if there is no such change. The changes must be sorted by timestamp.
        """
        (positions,) = (self.rowids == rowid).nonzero()
        times = self.timestamps
        if isinstance(times, np.ndarray):
            positions = positions[times[positions] <= snapshot]
            return self.offset + int(positions[-1]) if len(positions) else -1
        return self.offset + int(positions[0]) if len(positions) and times <= snapshot else -1


_Runs: TypeAlias = dict[int, DeltaRun]
_Leaf: TypeAlias = Append | _Runs


class _Order(NamedTuple):
    """Records that were sorted by row and time, all with values for the same columns.

    The sorting is done once for all columns. `run` returns the sorted changes of one column.

    leaves: the objects that have the values. Each is an `Append` (the changes of one call), or the
        runs (sorted changes) of all columns, by column id.
    positions: for each sorted record, the position of its value in the joined values of all
        `leaves`. None: the joined values have the right order already.
    """

    rowids: Rowids
    timestamps: Timestamps
    positions: npt.NDArray[np.int64] | None
    leaves: tuple[_Leaf, ...]

    def run(self, column_id: int) -> DeltaRun:
        parts = [
            leaf.values(column_id) if isinstance(leaf, Append) else leaf[column_id].values
            for leaf in self.leaves
        ]
        values = parts[0] if len(parts) == 1 else concat_versions(parts)
        if self.positions is not None:
            values = take(values, self.positions)
        return DeltaRun("redo", self.rowids, self.timestamps, values)


class Node:
    """The changes of one or more consecutive calls of `append`.

    A run has the changes of one column, sorted by row and time.

    content: the changes of one call (`Append`); or two smaller nodes that were merged; or the run
        of each column, after all columns were sorted.
    cache: the runs that were built so far, by column id.
    order: the records, sorted by row and time. None: they were not sorted yet, or some of them have
        values for only a part of the node's columns.
    """

    __slots__ = (
        "append_count", "cache", "column_ids", "content", "in_time", "is_uniform", "order", "record_count", "searches",
        "timestamp_max", "timestamp_min",
    )  # fmt: skip

    def __init__(
        self,
        content: Append | tuple[Node, Node],
        column_ids: frozenset[int],
        record_count: int,
        append_count: int,
        timestamp_min: int,
        timestamp_max: int,
        in_time: bool,
        is_uniform: bool,
    ) -> None:
        self.content: Append | tuple[Node, Node] | _Runs = content
        self.cache: _Runs = {}
        self.order: _Order | None = None
        self.column_ids = column_ids
        self.record_count = record_count
        self.append_count = append_count
        self.timestamp_min = timestamp_min
        self.timestamp_max = timestamp_max
        self.in_time = in_time  # whether its records were appended in the order of time
        self.is_uniform = is_uniform
        self.searches = 0  # the searches for single rows in its parts

    @staticmethod
    def of_append(append: Append) -> Node:
        times = append.timestamps
        in_time = True
        if isinstance(times, np.ndarray):
            low, high = int(times.min()), int(times.max())
            in_time = low == high or bool((times[1:] >= times[:-1]).all())
        else:
            low = high = times
        return Node(append, append.batch.column_ids, len(append.rowids), 1, low, high, in_time, True)

    @staticmethod
    def of_nodes(left: Node, right: Node) -> Node:
        same = left.column_ids == right.column_ids
        return Node(
            (left, right),
            left.column_ids if same else left.column_ids | right.column_ids,
            left.record_count + right.record_count,
            left.append_count + right.append_count,
            min(left.timestamp_min, right.timestamp_min),
            max(left.timestamp_max, right.timestamp_max),
            left.in_time and right.in_time and left.timestamp_max <= right.timestamp_min,
            same and left.is_uniform and right.is_uniform,
        )

    # --- runs -------------------------------------------------------------------------------------

    def run(self, column_id: int) -> DeltaRun:
        """Return the sorted changes of one column. The first call sorts or merges them."""
        run = self.cache.get(column_id)
        if run is not None:
            return run
        content = self.content
        if isinstance(content, dict):
            return content[column_id]
        if self.is_uniform:
            run = self._ordered().run(column_id)
        else:
            run = merge_runs([part.run(column_id) for part in self._parts(column_id)])
        below = [*content] if isinstance(content, tuple) else []
        while below:
            # The new run replaces those of the parts. A reader of an older state may build them
            # again.
            part = below.pop()
            within = part.content
            if part.cache.pop(column_id, None) is None and isinstance(within, tuple):
                below += within
        self.cache[column_id] = run
        if len(self.cache) == len(self.column_ids):
            complete = dict(self.cache)  # another thread may have moved a run to a larger node meanwhile
            if len(complete) == len(self.column_ids):
                self._replace_parts(complete)
        return run

    def _replace_parts(self, runs: _Runs) -> None:
        """Make `runs` the content of this node. The old content can be freed then.

        runs: the sorted changes of each column of this node, by column id.
        """
        self.content = runs  # assigned first: a reader that sees the old content builds from that
        self.cache = {}
        self.order = None
        self.append_count = 1

    def _ordered(self) -> _Order:
        order = self.order
        if order is None:
            order = self.order = _ordered([self])
        return order

    def _parts(self, column_id: int) -> Iterator[Node]:
        """Yield the parts of this node whose sorted changes of the column must be merged.

        This node is a tree of nodes. The parts are the largest nodes in it that have the column's
        changes sorted already, or can sort them without a merge.
        """
        waiting: list[Node] = [self]
        while waiting:
            node = waiting.pop()
            content = node.content
            if column_id not in node.column_ids:
                continue
            if isinstance(content, tuple) and not node.is_uniform and column_id not in node.cache:
                waiting += content[::-1]
            else:
                yield node

    def build(self) -> None:
        """Sort the changes of each column by row and time. Keep only the sorted arrays.

        The unsorted arrays, which callers of `append` passed, can be freed then.
        Cost: one sort for all columns that changed together.
        """
        # Groups of consecutive nodes: uniform ones with the same columns, or a single other node.
        groups: list[list[Node]] = []
        waiting: list[Node] = [self]
        while waiting:
            node = waiting.pop()
            content = node.content
            if isinstance(content, tuple) and not node.is_uniform:
                waiting += content[::-1]
            elif (
                groups
                and node.is_uniform
                and groups[-1][0].is_uniform
                and groups[-1][0].column_ids == node.column_ids
            ):
                groups[-1].append(node)
            else:
                groups.append([node])
        built: list[_Runs] = []
        for group in groups:
            first = group[0]
            if len(group) == 1 and isinstance(first.content, dict):
                built.append(first.content)
            else:
                order = _ordered(group)
                built.append({column_id: order.run(column_id) for column_id in first.column_ids})
        if len(built) == 1:
            self._replace_parts(built[0])
        else:
            self._replace_parts(
                {
                    column_id: merge_runs([runs[column_id] for runs in built if column_id in runs])
                    for column_id in self.column_ids
                }
            )

    def rowids_after(self, timestamp: int) -> Iterator[Rowids]:
        """Yield the rowids of the records newer than `timestamp`, in any order. Rows may repeat."""
        waiting: list[Node] = [self]
        while waiting:
            node = waiting.pop()
            content = node.content
            if node.timestamp_max <= timestamp:
                continue
            if isinstance(content, tuple):
                waiting += content
            elif isinstance(content, Append):
                times = content.timestamps
                yield content.rowids[times > timestamp] if isinstance(times, np.ndarray) else content.rowids
            else:
                # Columns that were written together share their vectors.
                distinct = {(id(run.rowids), id(run.timestamps)): run for run in content.values()}
                for run in distinct.values():
                    yield run.rowids[run.timestamps > timestamp]

    # --- single rows ------------------------------------------------------------------------------

    def cells(self, rowid: int, column_ids: Set[int], snapshot: int) -> dict[int, Cell]:
        """Return the row's values at `snapshot` by column id. Columns without record are absent."""
        column_ids = column_ids & self.column_ids
        if not column_ids or self.timestamp_min > snapshot:
            return {}
        runs = self._runs_to_search(column_ids)
        if runs is not None:
            return _last_of(runs, rowid, snapshot)
        found: dict[int, Cell] = {}
        waiting: list[tuple[Node, Set[int]]] = [(self, column_ids)]
        while waiting:  # newest first
            node, missing = waiting.pop()
            missing = (missing & node.column_ids) - found.keys()
            if not missing or node.timestamp_min > snapshot:
                continue
            content = node.content
            built = content if isinstance(content, dict) else node.cache
            if built:
                runs = {column_id: run for column_id in missing if (run := built.get(column_id)) is not None}
                found |= _last_of(runs, rowid, snapshot)
                missing = missing - runs.keys()
            if isinstance(content, tuple):
                older, newer = content
                waiting += ((older, missing), (newer, missing))
                continue
            self.searches += 1
            if missing and isinstance(content, Append):
                self.searches += node.record_count // _SEARCH_RECORDS
                position = content.last_of(rowid, snapshot)
                if position >= 0:
                    found |= {
                        column_id: (content.batch.columns[column_id], position) for column_id in missing
                    }
        return found

    def _runs_to_search(self, column_ids: Set[int]) -> _Runs | None:
        """Return the sorted changes of these columns by column id, or None.

        None: a look-up of one row should search the unsorted appends instead. Sorted changes are
        returned if they exist already, or if the appends are not in time order. They are also built
        when earlier searches in the appends have cost as much as sorting.
        """
        if not isinstance(self.content, dict):
            missing = [column_id for column_id in column_ids if column_id not in self.cache]
            as_one = 2 * len(missing) > len(self.column_ids)
            count = len(self.column_ids) if as_one else len(missing)
            cost = count * (self.record_count / _CELLS_OF_SEARCH + self.append_count / 2)
            if missing and self.in_time and self.searches < cost:
                return None
            if as_one:
                self.build()
        return {column_id: self.run(column_id) for column_id in column_ids}


def _last_of(runs: Mapping[int, DeltaRun], rowid: int, snapshot: int) -> dict[int, Cell]:
    """Return a row's values at `snapshot` by column id, from the sorted changes of some columns.

    Columns without a record of the row up to `snapshot` are absent.
    """
    found: dict[int, Cell] = {}
    previous, position = None, -1
    for column_id, run in runs.items():
        if previous is None or run.rowids is not previous.rowids or run.timestamps is not previous.timestamps:
            previous, position = run, run.last_of(rowid, snapshot)
        if position >= 0:
            found[column_id] = (run.values, position)
    return found


def _ordered(nodes: Sequence[Node]) -> _Order:
    """Sort the records of consecutive nodes by row and time, and return the sorted records.

    A node has the changes of one or more calls of `append`. It may consist of two smaller nodes.
    Its attribute `order` has its records if they were sorted before, or None. If it has records,
    this function uses them. It then sets `order` to None to free memory, because the result has the
    same records.

    nodes: all must have the same columns.
    """
    parts: list[_Order] = []
    of_parts: list[Node] = []
    waiting = [*reversed(nodes)]
    while waiting:
        node = waiting.pop()
        content, order = node.content, node.order
        if order is not None:
            node.order = None
        elif isinstance(content, tuple):
            waiting += content[::-1]
            continue
        elif isinstance(content, Append):
            order = _Order(content.rowids, content.times, None, (content,))
        else:
            run = next(iter(content.values()))
            order = _Order(run.rowids, run.timestamps, None, (content,))
        parts.append(order)
        of_parts.append(node)
    if len(parts) == 1:
        rowids, times, positions, _ = parts[0]
    else:
        rowids = np.concatenate([part.rowids for part in parts])
        times = np.concatenate([part.timestamps for part in parts])
        positions = _positions(parts)
    if not _ascend(rowids, times):
        # In most cases the records are in time order, which a stable sort by rowid keeps (D1).
        in_time = all(node.in_time for node in of_parts) and all(
            older.timestamp_max <= newer.timestamp_min for older, newer in pairwise(of_parts)
        )
        sorting = np.argsort(rowids, kind="stable") if in_time else np.lexsort((times, rowids))
        rowids, times = rowids[sorting], times[sorting]
        positions = sorting if positions is None else positions[sorting]
    return _Order(rowids, times, positions, tuple(leaf for part in parts for leaf in part.leaves))


def _positions(parts: Sequence[_Order]) -> npt.NDArray[np.int64] | None:
    """Return the position of each record's value in the joined values of all `parts`.

    None: records and values have the same order.
    """
    if all(part.positions is None for part in parts):
        return None
    positions, before = [], 0
    for part in parts:
        count = len(part.rowids)
        positions.append(
            np.arange(before, before + count) if part.positions is None else part.positions + before
        )
        before += count
    return np.concatenate(positions)


def _ascend(rowids: Rowids, times: Timestamps) -> bool:
    """Whether the records ascend strictly by (rowid, timestamp)."""
    later = rowids[1:] > rowids[:-1]
    return bool(later.all() or (later | ((rowids[1:] == rowids[:-1]) & (times[1:] > times[:-1]))).all())
