"""Compactions of much text: what they hold of one column stays below what offsets of 32 bits address.

    rowset A   |aaaa|aaaa|aaaa|          A job holds a column of a slice of its inputs as one Arrow array, base and
    rowset B       |bbbbbbbbbb|          changes. Slices are cut by bytes on disk, and text of few words is as good as
               +----+----+----+          nothing there: so more than `_at_once` says is halved, whatever the plan
    slices       1    2    3             said, and a rowset is made of each slice.

A delta compaction has no slices, for row ids stay as they are. Where it would hold too much, the rowset is rewritten
instead.

Footers of column files say how much text each block has (`ColumnReader.text_bytes`).

Left out: the history of one key, which is not cut. One of more than that is merged all the same; if it is
so much that offsets overflow, the job fails with a StorageError that says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from nyala.keys.encoded_keys import EncodedKeys
from nyala.keys.key_range import KeyRange
from nyala.rowset import size as rowset_size
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.schema.conversion.convert import default_array
from nyala.schema.schema import ColumnSchema, Schema
from nyala.tablet.compaction.file_jobs import slices
from nyala.tablet.compaction.plans import MajorPlan, MergePlan, MinorPlan

__all__ = ["fitting", "slice_bounds", "text_bytes"]

# Of each rowset, the keys that are looked at for the place where a slice is cut in two.
_SAMPLES: int = 32


def _at_once() -> float:
    """So much text may be in a slice. The halves of what has more are too large to be merged with one another again."""
    return 1.5 * rowset_size.TEXT_TARGET_BYTES


def slice_bounds(rowsets: Sequence[DiskRowSet], schema: Schema, count: int) -> list[bytes] | None:
    """Where a merge of these rowsets is to be cut; None: wherever `count` slices end, all of it is little text.

    Cost: the rowsets' footers; for much text, what `text_bytes` costs.
    """
    columns = [
        column
        for column in schema.columns
        if column.type.is_variable and sum(_at_most(rowset, column) for rowset in rowsets) > _at_once()
    ]
    if not columns or sum(text_bytes(rowset, columns) for rowset in rowsets) <= _at_once():
        return None
    ranges = [part for whole in slices(rowsets, count) for part in _cut(rowsets, columns, whole)]
    return [part.lower for part in ranges if part.lower is not None]


def text_bytes(rowset: DiskRowSet, columns: Sequence[ColumnSchema]) -> int:
    """About how much text, decoded, the rowset's files have of that one of these columns which has most.

    Cost: the footers of its files, and the rowids of its changes.
    """
    sizes = (_text_of(rowset, column, 0, rowset.row_count) for column in columns if column.type.is_variable)
    return max(sizes, default=0)


def fitting(
    rowset: DiskRowSet, schema: Schema, plan: MajorPlan | MinorPlan
) -> MergePlan | MajorPlan | MinorPlan:
    """A delta compaction of the rowset, or its rewrite, which can be cut, where that would hold too much text."""
    columns = [column for column in schema.columns if column.type.is_variable]
    if any(
        _at_most(rowset, column) > _at_once() and _held(rowset, column, plan) > _at_once()
        for column in columns
    ):
        return MergePlan((rowset.id,), plan.gain)
    return plan


def _held(rowset: DiskRowSet, column: ColumnSchema, plan: MajorPlan | MinorPlan) -> int:
    """The text of a column that a delta compaction holds at a time."""
    count = rowset.row_count
    if isinstance(plan, MajorPlan):
        redo = sum(file.text_bytes(column.id, 0, count) for file in rowset.redo)
        return redo + (_base_of(rowset, column, 0, count) if column.id in plan.columns else 0)
    files = (rowset.redo if plan.kind == "redo" else rowset.undo[::-1])[plan.files]
    return sum(file.text_bytes(column.id, 0, count) for file in files)


def _at_most(rowset: DiskRowSet, column: ColumnSchema) -> int:
    """At least as much as the column's text, base and changes, without a look at rowids."""
    changes = sum(file.all_text_bytes(column.id) for file in (*rowset.undo, *rowset.redo))
    return changes + _base_of(rowset, column, 0, rowset.row_count)


def _text_of(rowset: DiskRowSet, column: ColumnSchema, lower: int, upper: int) -> int:
    """About how many bytes of text the rows [lower, upper) of the column are, base and changes."""
    changes = sum(file.text_bytes(column.id, lower, upper) for file in (*rowset.undo, *rowset.redo))
    return changes + _base_of(rowset, column, lower, upper)


def _base_of(rowset: DiskRowSet, column: ColumnSchema, lower: int, upper: int) -> int:
    reader = rowset.base_column(column.id)
    return _default_bytes(column) * (upper - lower) if reader is None else reader.text_bytes(lower, upper)


def _default_bytes(column: ColumnSchema) -> int:
    """Of a row that was written before there was the column."""
    return int(default_array(column, 1, "read").nbytes)


def _cut(
    rowsets: Sequence[DiskRowSet], columns: Sequence[ColumnSchema], whole: KeyRange
) -> Iterator[KeyRange]:
    """The range, halved until the text of each part is little enough, or of one key."""
    ranges = [(rowset, *rowset.rowid_range(whole)) for rowset in rowsets]
    ranges = [(rowset, lower, upper) for rowset, lower, upper in ranges if lower < upper]
    sizes = [sum(_text_of(rowset, column, *rows) for rowset, *rows in ranges) for column in columns]
    if max(sizes) > _at_once():
        bound = _middle(ranges, columns[int(np.argmax(sizes))])
        if bound is not None:
            yield from _cut(rowsets, columns, KeyRange(whole.lower, bound))
            yield from _cut(rowsets, columns, KeyRange(bound, whole.upper))
            return
    yield whole


def _middle(ranges: Sequence[tuple[DiskRowSet, int, int]], column: ColumnSchema) -> bytes | None:
    """A key with about as much text before it as from it on, and at least a row before it; None: all rows are of one
    key."""
    samples, weights = [], []
    for rowset, lower, upper in ranges:
        step = -(-(upper - lower) // _SAMPLES)
        rowids = np.arange(lower, upper, step)
        samples.append(rowset.keys_of(rowids))
        weights += [_text_of(rowset, column, rowid, min(rowid + step, upper)) for rowid in rowids.tolist()]
    keys = EncodedKeys.concat(samples)
    order = keys.sort_indices()
    reached = np.cumsum(np.array(weights, np.int64)[order])
    first = keys.at(int(order[0]))
    middle = int(np.searchsorted(reached, reached[-1] / 2, side="right"))
    # From the middle on, else down from it: the first that is not the least of all.
    for place in (*range(min(middle, len(order) - 1), len(order)), *range(middle - 1, 0, -1)):
        if (bound := keys.at(int(order[place]))) > first:
            return bound
    return None
