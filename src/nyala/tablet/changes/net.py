"""Finds the net change of each key between two moments.

The net change of a key is the difference between its rows at the two moments. It joins all changes
of the key in between.

Most touched rows (rows with a change in the interval) can be returned as they are read. But a row
can be deleted in one rowset of a tablet, and inserted again in another. Then both rowsets have a
touched row of the same key. A row that was inserted or deleted in the interval has *moved*. If
rowsets have moved rows with overlapping keys, these rows are merged by key.
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
    spread,
    to_numpy,
    values_of,
)
from nyala.tablet.changes.records import Touched, may_meet, may_move
from nyala.tablet.changes.spec import COMMIT_VERSION, Bools, ChangeSpec
from nyala.tablet.scan.key_merge import KeyedRows, aligned_heads
from nyala.tablet.scan.parallel import in_parallel
from nyala.tablet.state.root import AnyRowSet, TableState, TabletState

# Columns of `_net_split` after those of the feed: whether the row exists at `since`, and at `until`.
_BEFORE: Final = "_before"
_AFTER: Final = "_after"


def net_changes(table: TableState, spec: ChangeSpec) -> Iterator[pa.RecordBatch]:
    """Yield one row per key that changed between `spec.since` and `spec.until`, in any order.

    The row joins all changes of the key in this interval.
    """

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
    """Yield (a rowset's changes, lower, upper, is_apart) for each split of the tablet.

    A split is a range [lower, upper) of rows of one rowset. `is_apart`: whether the rowset is in
    `apart`.

    apart: the rowsets whose inserted and deleted rows the caller reads separately, because other
           rowsets may have rows with the same keys.
    """
    for rowset in tablet.all_rowsets():
        if may_meet(rowset, spec):
            touched = Touched(table, rowset, spec)
            for lower, upper in touched.splits():
                yield touched, lower, upper, rowset in apart


def _overlapping(table: TableState, tablet: TabletState, spec: ChangeSpec) -> list[dict[AnyRowSet, bytes]]:
    """Return groups of rowsets whose inserted and deleted rows have overlapping ranges of keys.

    Each group maps its rowsets to the least key of these rows. A rowset that overlaps no
    other one is left out.
    """
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
    """Return the rows of one rowset, in [lower, upper), that changed in the interval; None: no row.

    The rowset may not have all changes of a key: another rowset may have a row of the same key. The
    caller merges such rows.

    The columns are: the key; the values of the other columns; the timestamp of the newest change;
    whether the row exists at `since`; whether it exists at `until`. The values are those at
    `until`, at `since`, or both, as `spec.values_at` says.

    moved: True: return only rows that were inserted or deleted in the interval; False: return only
           rows that were updated; None: return both.
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
    """Return a list of (mask, moment): the one or two moments whose values the change feed shows.

    The moments are `spec.until`, `spec.since`, or both, as `spec.values_at` says. The mask marks
    the rows that exist at the moment.

    before, after: whether each row exists at `since`, and at `until`.
    """
    then, now = (before, spec.since), (after, spec.until)
    return [now, then] if spec.values_at == "both" else [now] if spec.values_at == "until" else [then]


def _moved_splits(table: TableState, rowset: AnyRowSet, spec: ChangeSpec) -> Iterator[KeyedRows]:
    """Yield a rowset's rows that were inserted or deleted in the interval, in key order."""
    touched = Touched(table, rowset, spec)
    batches = (_net_split(touched, lower, upper, moved=True) for lower, upper in touched.splits())
    yield from in_key_order(table, rowset, spec, (batch for batch in batches if batch is not None))


def _one_row_a_key(spec: ChangeSpec, heads: list[KeyedRows]) -> pa.RecordBatch:
    """Merge the rows of several rowsets to one row per key.

    Only one of a key's rows can exist at `since`, and only one at `until`. The values of each
    moment come from the row that exists then. If no row exists, they are NULL.

    heads: one batch of rows per rowset, for the same range of keys.
    """
    if len(heads) == 1:
        return heads[0][1]
    keys = EncodedKeys.concat([head[0] for head in heads])
    rows = pa.concat_batches([head[1] for head in heads])
    order = keys.sort_indices()
    starts = np.flatnonzero(np.append(True, ~keys.take(order).equal_neighbours()))
    newest, before, after = (to_numpy(rows.column(name))[order] for name in (COMMIT_VERSION, _BEFORE, _AFTER))
    arrays = rows.select(range(spec.key_count)).take(pa.array(order[starts])).columns
    value_count = len(spec.columns) - spec.key_count
    for number, (is_shown, _) in enumerate(_moments(spec, before, after)):
        # Values come from the row that exists at their moment. If no row does, they are all NULL.
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
    """Return the feed's rows for a batch that `_net_split` returned.

    Keys that existed neither before nor after the interval are left out.
    """
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
