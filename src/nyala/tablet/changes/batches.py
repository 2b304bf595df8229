"""Building blocks of a change feed: values of rows, change types, batches and their keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

# Rows are gathered one by one if they are less than this share of the split.
_GATHER_SHARE: Final = 1 / 32
INSERT, UPDATE, DELETE, PREIMAGE, POSTIMAGE, NOTHING = range(6)
CHANGE_WORDS: Final = ("insert", "update", "delete", "update_preimage", "update_postimage")


def values_of(
    rowset: AnyRowSet, column: ColumnSchema, snapshot: int, rowids: Rowids, lower: int, upper: int
) -> pa.Array:
    """Return the column's values at `rowids`, which are in [lower, upper).

    Few rows are gathered. If there are many, all of [lower, upper) is decoded.
    """
    if len(rowids) < (upper - lower) * _GATHER_SHARE:
        return rowset.gather(column, snapshot, rowids)
    whole = rowset.decode(column, snapshot, lower, upper)
    return whole if len(rowids) == upper - lower else whole.take(pa.array(rowids - lower))


def spread(values: pa.Array, shown: Bools) -> pa.Array:
    """Place the values, in order, at the positions that are `shown`; NULL elsewhere."""
    if shown.all():
        return values
    return values.take(pa.array(np.cumsum(shown) - 1, mask=~shown))


def null_where_not(values: pa.Array, shown: Bools) -> pa.Array:
    """Replace values at positions that are not `shown` by NULL."""
    return values if shown.all() else values.take(pa.array(np.arange(len(shown)), mask=~shown))


def change_types(before: Bools, after: Bools) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = np.where(
        before, np.where(after, UPDATE, DELETE), np.where(after, INSERT, NOTHING)
    )
    return found


def images(before: Bools, after: Bools) -> tuple[Rowids, Bools, npt.NDArray[np.int64]]:
    """The rows before and after each change: (number of the change, is it the row after, type).

    The row before a change directly precedes the row after it. A change without either has no row.
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
    words = pa.array(CHANGE_WORDS).take(pa.array(types))
    return pa.RecordBatch.from_arrays([*arrays, words, *commit_columns(times)], schema=spec.arrow_schema)


def commit_columns(times: Timestamps) -> tuple[pa.Array, pa.Array]:
    """The columns `_commit_version` and `_commit_timestamp` of rows that were written at `times`."""
    return pa.array(times), pa.array(times >> LOGICAL_BITS).view(pa.timestamp("us", "UTC"))


def keys_of(table: TableState, spec: ChangeSpec, batch: pa.RecordBatch) -> EncodedKeys:
    return table.codec.encode(batch.columns[: spec.key_count])


def in_key_order(
    table: TableState, rowset: AnyRowSet, spec: ChangeSpec, batches: Iterator[pa.RecordBatch]
) -> Iterator[KeyedRows]:
    """Batches of a rowset with keys, in key order. A MemRowSet's batches are sorted into one."""
    if isinstance(rowset, MemRowSet):
        found = list(batches)
        if found:
            rows = joined(found)
            keys = keys_of(table, spec, rows)
            order = keys.sort_indices()
            yield keys.take(order), rows.take(pa.array(order))
        return
    for batch in batches:
        yield keys_of(table, spec, batch), batch


def joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    arrays = [
        pa.concat_arrays([batch.column(index) for batch in batches])
        for index in range(batches[0].num_columns)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=batches[0].schema)


def to_numpy(array: pa.Array) -> npt.NDArray[Any]:
    found: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return found


def distinct(ascending: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Each value once. (NumPy's `unique` would hash them, at twenty times the cost.)"""
    return ascending[first_of_each(ascending)]


def first_of_each(ascending: npt.NDArray[np.int64]) -> Bools:
    """Mask of the first occurrence of each value."""
    return np.append(True, ascending[1:] != ascending[:-1])[: len(ascending)]
