"""What a DeltaMemStore is a row of: the changes of some appends, built to sorted runs when they are read.

    append      (rowids, time or times, a part of a batch)          as it came, in any order of rowids
    node        an append; or two nodes that follow one another; or, once every column was built, all its runs

A node is *even* where each of its records has a value for every one of its columns, as those of upserts have: then all
columns have one order, which is worked out once (`_Order`) and each column put into it when it is asked for. Of other
nodes the parts are built, and merged for each column.

Who asks for one row only (`cells`) goes through the appends, newest first, until that was done so often that building
would have cost no more.

Threads: any, without a lock. What nodes hold beside `content` can be made again from it, so two readers at worst make
the same twice; who replaces `content` puts there what says the same.
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
from nyala.schema.adapter import joined

__all__ = ["Append", "Cell", "Node"]

# A look for a row in an append, or in what was built, costs 2 us, and in an append as much again for so many records.
_LOOK_RECORDS: Final = 4096
# What building costs, in looks: one for so many cells, and one for two columns of an append. 64 appends of 8 columns
# take 0.6 ms if they have 1 row, of 100 rows 1.1, of 1,000 rows 7.5 (2026-11-23). They are looked into as long first.
_CELLS_OF_LOOK: Final = 128

Cell: TypeAlias = tuple[pa.Array, int]
"""A value of one row: an array that has it, and its place in there."""


class Append:
    """Changes as they came: from `timestamps[i]` on, row `rowids[i]` has the i-th value of each column."""

    __slots__ = ("batch", "offset", "rowids", "timestamps")

    def __init__(self, rowids: Rowids, timestamps: int | Timestamps, batch: SharedBatch, offset: int) -> None:
        self.rowids = rowids
        self.timestamps = timestamps
        self.batch = batch
        self.offset = offset

    @property
    def times(self) -> Timestamps:
        """A timestamp for each row."""
        times = self.timestamps
        return times if isinstance(times, np.ndarray) else np.full(len(self.rowids), times, np.int64)

    def values(self, column_id: int) -> pa.Array:
        return self.batch.columns[column_id].slice(self.offset, len(self.rowids))

    def last_of(self, rowid: int, snapshot: int) -> int:
        """Place in the batch of the record that decides about one row at `snapshot`; -1: none does.

        Of records in the order of time.
        """
        (places,) = (self.rowids == rowid).nonzero()
        times = self.timestamps
        if isinstance(times, np.ndarray):
            places = places[times[places] <= snapshot]
            return self.offset + int(places[-1]) if len(places) else -1
        return self.offset + int(places[0]) if len(places) and times <= snapshot else -1


_Runs: TypeAlias = dict[int, DeltaRun]
_Leaf: TypeAlias = Append | _Runs


class _Order(NamedTuple):
    """The records of even nodes in the order of a run (D1), and where their values are."""

    rowids: Rowids
    timestamps: Timestamps
    places: npt.NDArray[np.int64] | None
    """Of each record, in `leaves` laid end to end; None: as they lie there."""
    leaves: tuple[_Leaf, ...]

    def run(self, column_id: int) -> DeltaRun:
        parts = [
            leaf.values(column_id) if isinstance(leaf, Append) else leaf[column_id].values
            for leaf in self.leaves
        ]
        values = parts[0] if len(parts) == 1 else joined(parts)
        if self.places is not None:
            values = take(values, self.places)
        return DeltaRun("redo", self.rowids, self.timestamps, values)


class Node:
    """The records of some appends that follow one another.

    `content` is the one append or the two nodes that it was made of and, once every column was built, all their runs.
    `cache` has the runs built before that, `order` what they have in common if the node is even.
    """

    __slots__ = (
        "append_count", "cache", "column_ids", "content", "in_time", "is_even", "looks", "order", "record_count",
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
        is_even: bool,
    ) -> None:
        self.content: Append | tuple[Node, Node] | _Runs = content
        self.cache: _Runs = {}
        self.order: _Order | None = None
        self.column_ids = column_ids
        self.record_count = record_count
        self.append_count = append_count
        self.timestamp_min = timestamp_min
        self.timestamp_max = timestamp_max
        self.in_time = in_time  # whether its records came in the order of time
        self.is_even = is_even
        self.looks = 0  # into its parts, for single rows

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
            same and left.is_even and right.is_even,
        )

    # --- runs -------------------------------------------------------------------------------------

    def run(self, column_id: int) -> DeltaRun:
        """The sorted run of one of `column_ids`."""
        run = self.cache.get(column_id)
        if run is not None:
            return run
        content = self.content
        if isinstance(content, dict):
            return content[column_id]
        if self.is_even:
            run = self._ordered().run(column_id)
        else:
            run = merge_runs([part.run(column_id) for part in self._parts(column_id)])
        below = [*content] if isinstance(content, tuple) else []
        while below:
            # The run here has it all. A reader of an older state, who still has a part, builds it again.
            part = below.pop()
            within = part.content
            if part.cache.pop(column_id, None) is None and isinstance(within, tuple):
                below += within
        self.cache[column_id] = run
        if len(self.cache) == len(self.column_ids):
            complete = dict(self.cache)  # may have lost a run since, to the node above in another thread
            if len(complete) == len(self.column_ids):
                self._let_go(complete)
        return run

    def _let_go(self, runs: _Runs) -> None:
        """Have the runs of all columns, and nothing else."""
        self.content = runs  # readers look here last: whoever has not seen it builds from what was here
        self.cache = {}
        self.order = None
        self.append_count = 1

    def _ordered(self) -> _Order:
        order = self.order
        if order is None:
            order = self.order = _ordered([self])
        return order

    def _parts(self, column_id: int) -> Iterator[Node]:
        """The nodes in which the column is built already, and of the others the greatest that are even."""
        waiting: list[Node] = [self]
        while waiting:
            node = waiting.pop()
            content = node.content
            if column_id not in node.column_ids:
                continue
            if isinstance(content, tuple) and not node.is_even and column_id not in node.cache:
                waiting += content[::-1]
            else:
                yield node

    def build(self) -> None:
        """Build every column, so that the appends are let go. Cost: one sort for all columns that changed together."""
        # Nodes that follow one another: even ones with the same columns, or one other.
        groups: list[list[Node]] = []
        waiting: list[Node] = [self]
        while waiting:
            node = waiting.pop()
            content = node.content
            if isinstance(content, tuple) and not node.is_even:
                waiting += content[::-1]
            elif (
                groups
                and node.is_even
                and groups[-1][0].is_even
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
            self._let_go(built[0])
        else:
            self._let_go(
                {
                    column_id: merge_runs([runs[column_id] for runs in built if column_id in runs])
                    for column_id in self.column_ids
                }
            )

    # --- single rows ------------------------------------------------------------------------------

    def cells(self, rowid: int, column_ids: Set[int], snapshot: int) -> dict[int, Cell]:
        """What these columns have of one row at `snapshot`."""
        column_ids = column_ids & self.column_ids
        if not column_ids or self.timestamp_min > snapshot:
            return {}
        runs = self._worth_building(column_ids)
        if runs is not None:
            return _last_of(runs, rowid, snapshot)
        found: dict[int, Cell] = {}
        waiting: list[tuple[Node, Set[int]]] = [(self, column_ids)]
        while waiting:  # newest first
            node, wanted = waiting.pop()
            wanted = (wanted & node.column_ids) - found.keys()
            if not wanted or node.timestamp_min > snapshot:
                continue
            content = node.content
            built = content if isinstance(content, dict) else node.cache
            if built:
                runs = {column_id: run for column_id in wanted if (run := built.get(column_id)) is not None}
                found |= _last_of(runs, rowid, snapshot)
                wanted = wanted - runs.keys()
            if isinstance(content, tuple):
                older, newer = content
                waiting += ((older, wanted), (newer, wanted))
                continue
            self.looks += 1
            if wanted and isinstance(content, Append):
                self.looks += node.record_count // _LOOK_RECORDS
                place = content.last_of(rowid, snapshot)
                if place >= 0:
                    found |= {column_id: (content.batch.columns[column_id], place) for column_id in wanted}
        return found

    def _worth_building(self, column_ids: Set[int]) -> _Runs | None:
        """The runs of these columns in which to look for a row: they are there, or have to be, or were worth building
        by now; None where the parts are to be looked into."""
        if not isinstance(self.content, dict):
            missing = [column_id for column_id in column_ids if column_id not in self.cache]
            as_one = 2 * len(missing) > len(self.column_ids)
            count = len(self.column_ids) if as_one else len(missing)
            cost_looks = count * (self.record_count / _CELLS_OF_LOOK + self.append_count / 2)
            if missing and self.in_time and self.looks < cost_looks:
                return None
            if as_one:
                self.build()
        return {column_id: self.run(column_id) for column_id in column_ids}


def _last_of(runs: Mapping[int, DeltaRun], rowid: int, snapshot: int) -> dict[int, Cell]:
    """The cells of those columns that have a record of the row which applies at `snapshot`."""
    found: dict[int, Cell] = {}
    known, place = None, -1
    for column_id, run in runs.items():
        if known is None or run.rowids is not known.rowids or run.timestamps is not known.timestamps:
            known, place = run, run.last_of(rowid, snapshot)
        if place >= 0:
            found[column_id] = (run.values, place)
    return found


def _ordered(nodes: Sequence[Node]) -> _Order:
    """All records of even nodes with the same columns, which follow one another.

    Of orders that nodes among and below them have nothing is kept: the one here has it all.
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
        rowids, times, places, _ = parts[0]
    else:
        rowids = np.concatenate([part.rowids for part in parts])
        times = np.concatenate([part.timestamps for part in parts])
        places = _places(parts)
    if not _ascend(rowids, times):
        # In time order mostly, and then a stable sort by rowid keeps it (D1).
        in_time = all(node.in_time for node in of_parts) and all(
            older.timestamp_max <= newer.timestamp_min for older, newer in pairwise(of_parts)
        )
        sorting = np.argsort(rowids, kind="stable") if in_time else np.lexsort((times, rowids))
        rowids, times = rowids[sorting], times[sorting]
        places = sorting if places is None else places[sorting]
    return _Order(rowids, times, places, tuple(leaf for part in parts for leaf in part.leaves))


def _places(parts: Sequence[_Order]) -> npt.NDArray[np.int64] | None:
    """Where the records of all parts have their values, in the leaves of all parts laid end to end."""
    if all(part.places is None for part in parts):
        return None
    found, before = [], 0
    for part in parts:
        count = len(part.rowids)
        found.append(np.arange(before, before + count) if part.places is None else part.places + before)
        before += count
    return np.concatenate(found)


def _ascend(rowids: Rowids, times: Timestamps) -> bool:
    """Whether records stand in the order of D1."""
    later = rowids[1:] > rowids[:-1]
    return bool(later.all() or (later | ((rowids[1:] == rowids[:-1]) & (times[1:] > times[:-1]))).all())
