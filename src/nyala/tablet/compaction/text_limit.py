"""Limits the text that a compaction holds of one column, below what 32-bit offsets can address.

    rowset A   |aaaa|aaaa|aaaa|
    rowset B       |bbbbbbbbbb|
               +----+----+----+
    slices       1    2    3

A job holds one column of a slice of its inputs, base and changes, as one Arrow array. Slices are
cut by bytes on disk, but text in a dictionary takes hardly any. So a slice with more text than
`_slice_limit` is halved, whatever the plan said. Each slice becomes a rowset.

A delta compaction keeps rowids, so it cannot be sliced. If it would hold too much text, the rowset
is rewritten instead.

Footers of column files give the text bytes of each block (`ColumnReader.text_bytes`).

Left out: the history of one key is not cut. It is merged whole, and if its offsets overflow, the
job fails with a StorageError that says so.
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

__all__ = ["limit_text", "slice_bounds", "text_bytes"]

# Keys sampled per rowset to find the place where a slice is halved.
_SAMPLES: int = 32


def _slice_limit() -> float:
    """The most text of a slice. Halves of a larger slice are too large to be merged again."""
    return 1.5 * rowset_size.TEXT_TARGET_BYTES


def slice_bounds(rowsets: Sequence[DiskRowSet], schema: Schema, count: int) -> list[bytes] | None:
    """The keys at which to cut a merge of these rowsets; None: the text fits `count` equal slices.

    Cost: the rowsets' footers, and `text_bytes` if there is much text.
    """
    columns = [
        column
        for column in schema.columns
        if column.type.is_variable and sum(_at_most(rowset, column) for rowset in rowsets) > _slice_limit()
    ]
    if not columns or sum(text_bytes(rowset, columns) for rowset in rowsets) <= _slice_limit():
        return None
    ranges = [part for whole in slices(rowsets, count) for part in _cut(rowsets, columns, whole)]
    return [part.lower for part in ranges if part.lower is not None]


def text_bytes(rowset: DiskRowSet, columns: Sequence[ColumnSchema]) -> int:
    """About how many bytes of decoded text the largest of these columns has in the rowset's files.

    Cost: the footers of the files, and the rowids of their changes.
    """
    sizes = (_text_of(rowset, column, 0, rowset.row_count) for column in columns if column.type.is_variable)
    return max(sizes, default=0)


def limit_text(
    rowset: DiskRowSet, schema: Schema, plan: MajorPlan | MinorPlan
) -> MergePlan | MajorPlan | MinorPlan:
    """The plan of a delta compaction, or a rewrite of the rowset if it would hold too much text."""
    columns = [column for column in schema.columns if column.type.is_variable]
    if any(
        _at_most(rowset, column) > _slice_limit() and _held(rowset, column, plan) > _slice_limit()
        for column in columns
    ):
        return MergePlan((rowset.id,), plan.gain)
    return plan


def _held(rowset: DiskRowSet, column: ColumnSchema, plan: MajorPlan | MinorPlan) -> int:
    """The text of a column that a delta compaction holds at once."""
    count = rowset.row_count
    if isinstance(plan, MajorPlan):
        redo = sum(file.text_bytes(column.id, 0, count) for file in rowset.redo)
        return redo + (_base_of(rowset, column, 0, count) if column.id in plan.columns else 0)
    files = (rowset.redo if plan.kind == "redo" else rowset.undo[::-1])[plan.files]
    return sum(file.text_bytes(column.id, 0, count) for file in files)


def _at_most(rowset: DiskRowSet, column: ColumnSchema) -> int:
    """An upper bound of the column's text, base and changes, without reading rowids."""
    changes = sum(file.all_text_bytes(column.id) for file in (*rowset.undo, *rowset.redo))
    return changes + _base_of(rowset, column, 0, rowset.row_count)


def _text_of(rowset: DiskRowSet, column: ColumnSchema, lower: int, upper: int) -> int:
    """About how many bytes of text the rows [lower, upper) of the column have, base and changes."""
    changes = sum(file.text_bytes(column.id, lower, upper) for file in (*rowset.undo, *rowset.redo))
    return changes + _base_of(rowset, column, lower, upper)


def _base_of(rowset: DiskRowSet, column: ColumnSchema, lower: int, upper: int) -> int:
    reader = rowset.base_column(column.id)
    return _default_bytes(column) * (upper - lower) if reader is None else reader.text_bytes(lower, upper)


def _default_bytes(column: ColumnSchema) -> int:
    """The bytes of a row written before the column existed."""
    return int(default_array(column, 1, "read").nbytes)


def _cut(
    rowsets: Sequence[DiskRowSet], columns: Sequence[ColumnSchema], whole: KeyRange
) -> Iterator[KeyRange]:
    """Halve the range until the text of each part is within the limit, or the part has one key."""
    ranges = [(rowset, *rowset.rowid_range(whole)) for rowset in rowsets]
    ranges = [(rowset, lower, upper) for rowset, lower, upper in ranges if lower < upper]
    sizes = [sum(_text_of(rowset, column, *rows) for rowset, *rows in ranges) for column in columns]
    if max(sizes) > _slice_limit():
        bound = _middle(ranges, columns[int(np.argmax(sizes))])
        if bound is not None:
            yield from _cut(rowsets, columns, KeyRange(whole.lower, bound))
            yield from _cut(rowsets, columns, KeyRange(bound, whole.upper))
            return
    yield whole


def _middle(ranges: Sequence[tuple[DiskRowSet, int, int]], column: ColumnSchema) -> bytes | None:
    """A key with about equal text before and after it, and at least one row before it.

    None if all rows have the same key.
    """
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
    # The first key from the middle upwards, then downwards, that is not the smallest of all.
    for place in (*range(min(middle, len(order) - 1), len(order)), *range(middle - 1, 0, -1)):
        if (bound := keys.at(int(order[place]))) > first:
            return bound
    return None
