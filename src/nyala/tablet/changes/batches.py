"""Small functions that the modules of the change feed share.

They read the values of changed rows, compute change types, encode keys, and build the feed's
batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.delta.run import Rowids, Timestamps
from nyala.keys.encoded_keys import EncodedKeys
from nyala.mvcc.timestamp import LOGICAL_BITS
from nyala.rowset.mem_rowset import MemRowSet
from nyala.schema.schema import ColumnSchema
from nyala.tablet.changes.spec import Bools, ChangeSpec
from nyala.tablet.scan.key_merge import KeyedRows
from nyala.tablet.state.root import AnyRowSet, TableState

# Rows are gathered if they are less than this share of the split. Otherwise the split is decoded.
_GATHER_SHARE: Final = 1 / 32
INSERT, UPDATE, DELETE, PREIMAGE, POSTIMAGE, NOTHING = range(6)
CHANGE_WORDS: Final = ("insert", "update", "delete", "update_preimage", "update_postimage")


def values_of(
    rowset: AnyRowSet, column: ColumnSchema, snapshot: int, rowids: Rowids, lower: int, upper: int
) -> pa.Array:
    """Return the column's values in these rows at `snapshot`.

    lower, upper: the split that contains all the rows.
    """
    if len(rowids) < (upper - lower) * _GATHER_SHARE:
        return rowset.gather(column, snapshot, rowids)
    whole = rowset.decode(column, snapshot, lower, upper)
    return whole if len(rowids) == upper - lower else whole.take(pa.array(rowids - lower))


def spread(values: pa.Array, shown: Bools) -> pa.Array:
    """Return an array as long as `shown`: the values in order where it is True, else NULL."""
    if shown.all():
        return values
    return values.take(pa.array(np.cumsum(shown) - 1, mask=~shown))


def null_where_not(values: pa.Array, shown: Bools) -> pa.Array:
    """Return the values with NULL where `shown` is False."""
    return values if shown.all() else values.take(pa.array(np.arange(len(shown)), mask=~shown))


def change_types(before: Bools, after: Bools) -> npt.NDArray[np.int64]:
    """Return the change type of each change.

    before, after: whether the row exists before the change, and after it.
    """
    found: npt.NDArray[np.int64] = np.where(
        before, np.where(after, UPDATE, DELETE), np.where(after, INSERT, NOTHING)
    )
    return found


def images(before: Bools, after: Bools) -> tuple[Rowids, Bools, npt.NDArray[np.int64]]:
    """Return the rows of a feed with preimages and postimages, as three arrays.

    Each array has one value per row of the feed:
    - the index of the row's change in `before` and `after`,
    - whether the row is a postimage, so has the values after the change,
    - its change type.
    A preimage directly precedes its postimage.

    before, after: whether the row exists before each change, and after it. A change for which both
    are False has no row in the feed.
    """
    places = np.flatnonzero(np.column_stack([before, after]))
    number, is_after = places // 2, places % 2 == 1
    types = np.where(
        is_after, np.where(before[number], POSTIMAGE, INSERT), np.where(after[number], PREIMAGE, DELETE)
    )
    return number, is_after, types


def finished(
    spec: ChangeSpec, arrays: list[pa.Array], types: npt.NDArray[Any], times: Timestamps
) -> pa.RecordBatch:
    """Return a batch of the change feed: `arrays`, and three columns that describe each change.

    The three columns are `_change_type`, `_commit_version` and `_commit_timestamp`.

    arrays: the values of the table's columns, one row per change.
    types:  for each change, the index of its type in `CHANGE_WORDS`.
    times:  the timestamp of each change.
    """
    words = pa.array(CHANGE_WORDS).take(pa.array(types))
    return pa.RecordBatch.from_arrays([*arrays, words, *commit_columns(times)], schema=spec.arrow_schema)


def commit_columns(times: Timestamps) -> tuple[pa.Array, pa.Array]:
    """Return the columns `_commit_version` and `_commit_timestamp` for these timestamps."""
    return pa.array(times), pa.array(times >> LOGICAL_BITS).view(pa.timestamp("us", "UTC"))


def keys_of(table: TableState, spec: ChangeSpec, batch: pa.RecordBatch) -> EncodedKeys:
    """Return the keys of the batch's rows; its first columns are the key columns."""
    return table.codec.encode(batch.columns[: spec.key_count])


def in_key_order(
    table: TableState, rowset: AnyRowSet, spec: ChangeSpec, batches: Iterator[pa.RecordBatch]
) -> Iterator[KeyedRows]:
    """Yield a rowset's batches in key order, as (keys, batch).

    The batches of a MemRowSet are not in key order: they are joined to one batch and sorted.
    """
    if isinstance(rowset, MemRowSet):
        found = list(batches)
        if found:
            rows = pa.concat_batches(found)
            keys = keys_of(table, spec, rows)
            order = keys.sort_indices()
            yield keys.take(order), rows.take(pa.array(order))
        return
    for batch in batches:
        yield keys_of(table, spec, batch), batch


def to_numpy(array: pa.Array) -> npt.NDArray[Any]:
    found: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return found


def distinct(ascending: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the distinct values of a sorted array, twenty times as fast as NumPy's `unique`."""
    return ascending[first_of_each(ascending)]


def first_of_each(ascending: npt.NDArray[np.int64]) -> Bools:
    """Return a mask of the first occurrence of each value in a sorted array."""
    return np.append(True, ascending[1:] != ascending[:-1])[: len(ascending)]
