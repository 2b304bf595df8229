"""The net change of each key between two moments (`changes.feed`, N1).

A key has at most one live row at a time, and dead rows do not change (rule R5). So a key has
touched rows in two rowsets only if they were born or died in the interval. Such rows, of rowsets of
a tablet with overlapping keys, are merged by key. All other rows are returned as they are read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from nyala.keys.encoded_keys import EncodedKeys
from nyala.rowset.mem_rowset import MemRowSet
from nyala.tablet.changes.batches import (
    NOTHING,
    change_types,
    finished,
    images,
    in_key_order,
    joined,
    spread,
    to_numpy,
    values_of,
)
from nyala.tablet.changes.records import Touched, may_meet, may_move
from nyala.tablet.changes.spec import COMMIT_VERSION, Bools, ChangeSpec
from nyala.tablet.scan.key_merge import KeyedRows, aligned_heads
from nyala.tablet.scan.parallel import in_parallel
from nyala.tablet.state.root import AnyRowSet, TableState, TabletState

# Columns after those of the result, needed for merging.
_BEFORE: Final = "_before"
_AFTER: Final = "_after"


def net_changes(table: TableState, spec: ChangeSpec) -> Iterator[pa.RecordBatch]:
    def work(item: tuple[Touched, int, int, bool]) -> pa.RecordBatch | None:
        touched, lower, upper, apart = item
        found = _net_split(touched, lower, upper, moved=False if apart else None)
        return None if found is None else _net_rows(spec, found)

    for tablet in table.tablets:
        groups = _overlapping(table, tablet, spec)
        apart = {rowset for group in groups for rowset in group}
        for batch in in_parallel(_net_splits(table, tablet, spec, apart), work):
            if batch is not None and batch.num_rows:
                yield batch
        for group in groups:
            sources = [
                (key_min, partial(_moved_splits, table, rowset, spec)) for rowset, key_min in group.items()
            ]
            for heads in aligned_heads(sources):
                batch = _net_rows(spec, _one_row_a_key(spec, heads))
                if batch.num_rows:
                    yield batch


def _net_splits(
    table: TableState, tablet: TabletState, spec: ChangeSpec, apart: Collection[AnyRowSet]
) -> Iterator[tuple[Touched, int, int, bool]]:
    """(the rowset's records, lower, upper, whether its born and dead rows are merged apart)."""
    for rowset in tablet.all_rowsets():
        if may_meet(rowset, spec):
            touched = Touched(table, rowset, spec)
            for lower, upper in touched.splits():
                yield touched, lower, upper, rowset in apart


def _overlapping(table: TableState, tablet: TabletState, spec: ChangeSpec) -> list[dict[AnyRowSet, bytes]]:
    """Groups of rowsets that may share a born or dead key, each with its least such key."""
    candidates = [r for r in tablet.all_rowsets() if may_meet(r, spec) and may_move(r, spec)]
    if len(candidates) < 2:
        return []
    bounds: list[tuple[bytes, bytes, AnyRowSet]] = []
    for rowset in candidates:
        moved = Touched(table, rowset, spec).moved()
        if not len(moved):
            continue
        if isinstance(rowset, MemRowSet):
            keys = rowset.keys_of(moved)
            keys = keys.take(keys.sort_indices()[[0, -1]])
        else:
            keys = rowset.keys_of(moved[[0, -1]])  # rowids are in the order of keys (X1)
        bounds.append((keys.at(0), keys.at(1), rowset))
    groups: list[dict[AnyRowSet, bytes]] = []
    reach = b""
    for key_min, key_max, rowset in sorted(bounds, key=lambda bound: bound[:2]):
        if groups and key_min <= reach:
            groups[-1][rowset] = key_min
            reach = max(reach, key_max)
        else:
            groups.append({rowset: key_min})
            reach = key_max
    return [group for group in groups if len(group) > 1]


def _net_split(touched: Touched, lower: int, upper: int, moved: bool | None) -> pa.RecordBatch | None:
    """The touched rows of [lower, upper): key, values, newest timestamp, liveness before and after.

    With `values_at="both"` the values after the interval come first, then those before it.

    moved: only rows that were born or died (True), or only others (False); None: all.
    """
    spec, rowset = touched.spec, touched.rowset
    rowids, newest, has_moved = touched.rows(lower, upper)
    if moved is not None:
        chosen = has_moved if moved else ~has_moved
        rowids, newest = rowids[chosen], newest[chosen]
    if not len(rowids):
        return None
    before = rowset.gather_liveness(spec.since, rowids)
    after = rowset.gather_liveness(spec.until, rowids)
    keys, others = spec.columns[: spec.key_count], spec.columns[spec.key_count :]
    arrays = [values_of(rowset, column, spec.until, rowids, lower, upper) for column in keys]
    for is_shown, at in _moments(spec, before, after):
        shown = rowids[is_shown]
        arrays += [spread(values_of(rowset, c, at, shown, lower, upper), is_shown) for c in others]
    marks = [pa.array(newest), pa.array(before), pa.array(after)]
    names = [*map(str, range(len(arrays))), COMMIT_VERSION, _BEFORE, _AFTER]
    return pa.RecordBatch.from_arrays([*arrays, *marks], names=names)


def _moments(spec: ChangeSpec, before: Bools, after: Bools) -> list[tuple[Bools, int]]:
    """(the rows that exist, moment) of each set of values of `_net_split`."""
    then, now = (before, spec.since), (after, spec.until)
    return [now, then] if spec.values_at == "both" else [now] if spec.values_at == "until" else [then]


def _moved_splits(table: TableState, rowset: AnyRowSet, spec: ChangeSpec) -> Iterator[KeyedRows]:
    """The rows of one rowset that were born or died, in key order, one split at a time."""
    touched = Touched(table, rowset, spec)
    batches = (_net_split(touched, lower, upper, moved=True) for lower, upper in touched.splits())
    yield from in_key_order(table, rowset, spec, (batch for batch in batches if batch is not None))


def _one_row_a_key(spec: ChangeSpec, heads: list[KeyedRows]) -> pa.RecordBatch:
    """Merge batches of several rowsets to one row per key; it is live if any of its rows is."""
    if len(heads) == 1:
        return heads[0][1]
    keys = EncodedKeys.concat([head[0] for head in heads])
    rows = joined([head[1] for head in heads])
    order = keys.sort_indices()
    starts = np.flatnonzero(np.append(True, ~keys.take(order).equal_neighbours()))
    newest, before, after = (to_numpy(rows.column(name))[order] for name in (COMMIT_VERSION, _BEFORE, _AFTER))
    arrays = rows.select(range(spec.key_count)).take(pa.array(order[starts])).columns
    value_count = len(spec.columns) - spec.key_count
    for number, (is_shown, _) in enumerate(_moments(spec, before, after)):
        # The row that exists at the moment of the values has them. If none does, any row has NULLs.
        winner = np.maximum.reduceat(np.where(is_shown, np.arange(len(order)), 0), starts)
        winner = order[np.maximum(winner, starts)]
        first = spec.key_count + number * value_count
        arrays += rows.select(range(first, first + value_count)).take(pa.array(winner)).columns
    return pa.RecordBatch.from_arrays(
        [
            *arrays,
            pa.array(np.maximum.reduceat(newest, starts)),
            pa.array(np.logical_or.reduceat(before, starts)),
            pa.array(np.logical_or.reduceat(after, starts)),
        ],
        names=rows.schema.names,
    )


def _net_rows(spec: ChangeSpec, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The final rows of a batch, without keys that existed neither before nor after."""
    times, before, after = map(to_numpy, batch.columns[-3:])
    arrays = batch.columns[: len(spec.columns)]
    if spec.values_at == "both":
        number, is_after, types = images(before, after)
        keys, now = arrays[: spec.key_count], arrays[spec.key_count :]
        then = batch.columns[len(spec.columns) : -3]
        place = pa.array(np.where(is_after, number, number + batch.num_rows))
        shown = [key.take(pa.array(number)) for key in keys]
        shown += [pa.concat_arrays(pair).take(place) for pair in zip(now, then, strict=True)]
        return finished(spec, shown, types, times[number])
    types = change_types(before, after)
    kept = np.flatnonzero(types != NOTHING)
    if len(kept) < len(types):
        types, times = types[kept], times[kept]
        arrays = [array.take(pa.array(kept)) for array in arrays]
    return finished(spec, arrays, types, times)
