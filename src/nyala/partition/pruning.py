"""Partition pruning: finds the partitions that may contain a row that a scan selects.

    host = 'a' AND metric IN ('x', 'y') AND time >= 100
    |                    |              |
    +-- hash (host, metric): the buckets of ('a', 'x') and ('a', 'y')
                                        +-- range (time): [100, unbounded)

Each level is pruned on its own. A hash level can be pruned if the predicate lists the values of all
its columns, by = or IN. The range level is pruned by the key ranges that the predicate allows. If
it lists values of the first columns, there is one key range per combination of these values.

Invariant T5: a partition is skipped only if no row in it can satisfy all constraints. IN lists with
more than MAX_COMBINATIONS combinations of values do not prune: the scan then reads more partitions.
Source: docs/design/kudu.md, "Partition pruning". Unlike in Kudu, IN lists on range columns also
prune the ranges between their values.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from nyala.keys.arrow_memory import array_of_canonical
from nyala.keys.codec import KeyCodec
from nyala.keys.key_range import Clamped, KeyRange, clamp, range_of_clamped
from nyala.partition.hashing import bucket_of, buckets_of
from nyala.partition.model import HashLevel, Partition, PartitionSchema
from nyala.schema.predicates.constraint import Constraint
from nyala.schema.schema import ColumnSchema, Schema

__all__ = ["prune"]

# More combinations would match nearly every bucket and range anyway.
MAX_COMBINATIONS: Final = 4096
# Up to this number, combinations are hashed one by one, which takes less time than NumPy calls.
_FEW_COMBINATIONS: Final = 8


def prune(
    constraints: Mapping[str, Constraint],
    partition_schema: PartitionSchema,
    partitions: Sequence[Partition],
    schema: Schema,
) -> npt.NDArray[np.bool_]:
    """Return a mask of the partitions that the scan must read.

    constraints: by column name; a selected row satisfies all of them.
    Cost: one hash per combination of IN values, and one pass over the partitions.
    """
    keep = np.ones(len(partitions), dtype=bool)
    if any(constraint.empty for constraint in constraints.values()):
        return ~keep
    clamped = {c.id: clamp(constraints.get(c.name), c.type) for c in schema.key_columns}
    if any(column.empty for column in clamped.values()):
        return ~keep
    for i, level in enumerate(partition_schema.hash_levels):
        columns = partition_schema.hash_columns(level, schema)
        allowed = _allowed_buckets(level, columns, [clamped[column.id] for column in columns])
        if allowed is not None:
            keep &= allowed[np.array([p.hash_buckets[i] for p in partitions], dtype=np.int64)]
    if partition_schema.range_column_ids:
        columns = partition_schema.range_columns(schema)
        ranges = _allowed_ranges(columns, [clamped[column.id] for column in columns])
        uppers = [r.upper for r in ranges]
        known: dict[tuple[bytes | None, bytes | None], bool] = {}
        for i, partition in enumerate(partitions):
            bounds = (partition.range_lower, partition.range_upper)
            if bounds not in known:
                known[bounds] = _overlaps(ranges, uppers, *bounds)
            keep[i] &= known[bounds]
    return keep


def _values(column: Clamped) -> tuple[object, ...] | None:
    """Return the values that a column may have; None if the predicate does not list them."""
    if column.values is not None:
        return column.values
    return (column.lower,) if column.lower is not None and column.lower == column.upper else None


def _allowed_buckets(
    level: HashLevel, columns: Sequence[ColumnSchema], clamped: Sequence[Clamped]
) -> npt.NDArray[np.bool_] | None:
    """Return a mask of the level's buckets that can have a matching row; None if all can.

    clamped: for each column, the values or bounds that the predicate allows.
    """
    lists = [_values(column) for column in clamped]
    values = [one for one in lists if one is not None]
    combinations = math.prod(len(one) for one in values)
    if len(values) < len(lists) or combinations > MAX_COMBINATIONS:
        return None
    types = [column.type for column in columns]
    allowed = np.zeros(level.buckets, dtype=bool)
    if combinations <= _FEW_COMBINATIONS:
        for row in itertools.product(*values):
            allowed[bucket_of(row, types, level.buckets, level.seed)] = True
        return allowed
    arrays = [
        array_of_canonical(type, list(one))
        for type, one in zip(types, zip(*itertools.product(*values), strict=True), strict=True)
    ]
    allowed[buckets_of(arrays, types, level.buckets, level.seed)] = True
    return allowed


def _allowed_ranges(columns: Sequence[ColumnSchema], clamped: Sequence[Clamped]) -> list[KeyRange]:
    """Return the key ranges that can match, disjoint and ascending.

    There is one range per combination of the listed values of the first columns.
    clamped: for each column, the values or bounds that the predicate allows.
    """
    codec = KeyCodec([column.type for column in columns])
    leading: list[tuple[object, ...]] = []
    for column in clamped:
        values = _values(column)
        if values is None or math.prod(len(one) for one in leading) * len(values) > MAX_COMBINATIONS:
            break
        leading.append(values)
    rest = list(clamped[len(leading) :])
    # Ascending, because the values of each list ascend.
    return [
        range_of_clamped([*(Clamped(values=(value,)) for value in combination), *rest], codec)
        for combination in itertools.product(*leading)
    ]


def _overlaps(
    ranges: Sequence[KeyRange], uppers: Sequence[bytes | None], lower: bytes | None, upper: bytes | None
) -> bool:
    """Return whether the key range [lower, upper) overlaps one of `ranges`.

    ranges: in ascending order.
    uppers: the upper bounds of `ranges`, in a list that a binary search can use.
    lower, upper: None means no bound.
    """
    # Only the last upper bound can be None. The first range that ends above `lower` decides.
    bounded = len(uppers) - (1 if uppers and uppers[-1] is None else 0)
    first = 0 if lower is None else bisect.bisect_right(uppers, lower, hi=bounded)  # type: ignore[type-var]
    return first < len(ranges) and (upper is None or (ranges[first].lower or b"") < upper)
