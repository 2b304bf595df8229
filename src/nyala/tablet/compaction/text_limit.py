"""Limits the text that a compaction holds in memory, because Arrow's text arrays have 32-bit offsets.

A merge cuts its key range into slices, and writes each slice as a rowset. In memory, each column of
a slice, with its changes, is one Arrow array. Slices are cut by bytes on disk, but text in a
dictionary takes few bytes on disk and many in memory. So a slice with more text than `_slice_limit`
is halved, even if this makes more rowsets than the plan says.

A delta compaction keeps rowids, so it cannot be sliced. If it would hold too much text, the rowset
is rewritten instead.

The footers of column files have the text bytes of each block (`ColumnReader.text_bytes`).

Limit: the history of a single key is not cut. If it has too much text, the job raises a StorageError
that says so.
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

# How many keys per rowset to sample in order to find the middle of a slice.
_SAMPLES: int = 32


def _slice_limit() -> float:
    """Return how many bytes of text the rows of one output rowset may have in one column.

    This is 1.5 times `TEXT_TARGET_BYTES`. An output with more text is divided into two rowsets.
    Together these have too much text for one rowset, so no later merge joins them again.
    """
    return 1.5 * rowset_size.TEXT_TARGET_BYTES


def slice_bounds(rowsets: Sequence[DiskRowSet], schema: Schema, count: int) -> list[bytes] | None:
    """Return the keys at which a merge begins a new output rowset, so that none has too much text.

    schema: the columns that the merge writes.
    count:  the number of output rowsets that the bytes on disk require. If the inputs have much
            text, the result has bounds for more output rowsets.
    Returns: None if the inputs have little text: `count` outputs of equal bytes are then enough.
    Cost: reads the rowsets' footers, and more (`text_bytes`) if the columns have much text.
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
    """Return about how many bytes of decoded text the largest of these columns has in the rowset's files.

    Cost: reads the footers of the files, and the rowids of their changes.
    """
    sizes = (_text_of(rowset, column, 0, rowset.row_count) for column in columns if column.type.is_variable)
    return max(sizes, default=0)


def limit_text(
    rowset: DiskRowSet, schema: Schema, plan: MajorPlan | MinorPlan
) -> MergePlan | MajorPlan | MinorPlan:
    """Return `plan`, or a rewrite of the rowset if the plan needs too much memory for text.

    A rewrite can write several rowsets, one after the other, so it needs less memory.

    plan: a delta compaction of `rowset`.
    """
    columns = [column for column in schema.columns if column.type.is_variable]
    if any(
        _at_most(rowset, column) > _slice_limit() and _held(rowset, column, plan) > _slice_limit()
        for column in columns
    ):
        return MergePlan((rowset.id,), plan.gain)
    return plan


def _held(rowset: DiskRowSet, column: ColumnSchema, plan: MajorPlan | MinorPlan) -> int:
    """Return how many bytes of the column's text this delta compaction holds in memory."""
    count = rowset.row_count
    if isinstance(plan, MajorPlan):
        redo = sum(file.text_bytes(column.id, 0, count) for file in rowset.redo)
        return redo + (_base_of(rowset, column, 0, count) if column.id in plan.columns else 0)
    files = (rowset.redo if plan.kind == "redo" else rowset.undo[::-1])[plan.files]
    return sum(file.text_bytes(column.id, 0, count) for file in files)


def _at_most(rowset: DiskRowSet, column: ColumnSchema) -> int:
    """Return an upper bound of the bytes of the column's text in base and changes. Reads no rowids."""
    changes = sum(file.all_text_bytes(column.id) for file in (*rowset.undo, *rowset.redo))
    return changes + _base_of(rowset, column, 0, rowset.row_count)


def _text_of(rowset: DiskRowSet, column: ColumnSchema, lower: int, upper: int) -> int:
    """Return about how many bytes of text a column has in rows [lower, upper).

    The result includes the base data and all changes.
    """
    changes = sum(file.text_bytes(column.id, lower, upper) for file in (*rowset.undo, *rowset.redo))
    return changes + _base_of(rowset, column, lower, upper)


def _base_of(rowset: DiskRowSet, column: ColumnSchema, lower: int, upper: int) -> int:
    reader = rowset.base_column(column.id)
    return _default_bytes(column) * (upper - lower) if reader is None else reader.text_bytes(lower, upper)


def _default_bytes(column: ColumnSchema) -> int:
    """Return the size in bytes of the value that rows have if they are older than the column."""
    return int(default_array(column, 1, "read").nbytes)


def _cut(
    rowsets: Sequence[DiskRowSet], columns: Sequence[ColumnSchema], whole: KeyRange
) -> Iterator[KeyRange]:
    """Halve a key range until no part has a column with too many bytes of text. Yield the parts.

    `_slice_limit()` is the number of bytes of text that a part may have in one column. A part with
    a single key may have more text, because it cannot be halved.

    columns: the text and binary columns to check.
    whole:   the key range.
    """
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
    """Return a key that has about half of the text bytes before it, and at least one row before it.

    Returns None if all rows have the same key.

    ranges: (rowset, lower, upper): consider the rows [lower, upper) of this rowset.
    column: the column whose text is counted.
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
    # Search upwards from the middle, then downwards, for a key that is not the smallest of all.
    for place in (*range(min(middle, len(order) - 1), len(order)), *range(middle - 1, 0, -1)):
        if (bound := keys.at(int(order[place]))) > first:
            return bound
    return None
