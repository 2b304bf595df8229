"""Finds the partition of each row of a batch.

The bounds of all ranges divide the range keys into *regions*. A row's buckets and region give its
partition:

    hash columns   ->  a bucket per level  ->  one number for all buckets  \\
                                                                            table[number, region]
                                                                            ->  partition or -1
    range columns  ->  range key           ->  region                      /

For the ranges [a, c) and [f, unbounded):

    bounds               a       c           f
    regions          0   |   1   |     2     |   3
    has a partition  no     yes       no        yes

Invariant T1: a region belongs to at most one range, because ranges are disjoint.
Source: docs/design/kudu.md, "Hash buckets" and "Partitions and their bounds".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.keys.codec import KeyCodec
from nyala.partition.hashing import ALGORITHM, bucket_of, buckets_of
from nyala.partition.model import Partition, PartitionSchema
from nyala.schema.plain_arrays import array_of_bytes
from nyala.schema.schema import Schema

__all__ = ["Router"]


class Router:
    """Finds the partitions of one table's rows. Immutable, so that threads may share it.

    Cost: one pass over the partitions to build it. Routing takes a few NumPy calls per level and
    column, and a binary search per row.
    """

    def __init__(
        self, partition_schema: PartitionSchema, partitions: Sequence[Partition], schema: Schema
    ) -> None:
        self._levels = []
        for level in partition_schema.hash_levels:
            assert level.algorithm == ALGORITHM, f"unknown hash function {level.algorithm!r}"
            columns = partition_schema.hash_columns(level, schema)
            self._levels.append(([c.name for c in columns], [c.type for c in columns], level))
        range_columns = partition_schema.range_columns(schema)
        self._range_names = [column.name for column in range_columns]
        self._codec = KeyCodec([column.type for column in range_columns]) if range_columns else None
        bounds = sorted({b for p in partitions for b in (p.range_lower, p.range_upper) if b is not None})
        self._bounds = None
        if self._codec is not None:
            self._bounds = self._codec.from_binary(array_of_bytes(bounds))
        region_of = {bound: i + 1 for i, bound in enumerate(bounds)}
        combinations = math.prod(level.buckets for level in partition_schema.hash_levels)
        self._regions = len(bounds) + 1
        table = np.full((combinations, self._regions), -1, dtype=np.int32)
        for index, partition in enumerate(partitions):
            number = 0
            for bucket, level in zip(partition.hash_buckets, partition_schema.hash_levels, strict=True):
                number = number * level.buckets + bucket
            first = 0 if partition.range_lower is None else region_of[partition.range_lower]
            last = self._regions if partition.range_upper is None else region_of[partition.range_upper]
            assert (table[number, first:last] == -1).all(), "T1: partitions overlap"
            table[number, first:last] = index
        self._table = table.reshape(-1)
        self.covers_all: Final = bool((self._table >= 0).all())
        """Whether every row has a partition."""

    def route(self, arrays: Mapping[str, pa.Array], count: int) -> npt.NDArray[np.int32]:
        """Return the index of each row's partition, or -1 for a row that is in no partition.

        arrays: at least the partition columns, by name, as canonical arrays of `count` values
        without NULL.
        """
        if len(self._table) == 1:  # the table has one partition
            return np.full(count, self._table[0], np.int32)
        numbers = np.zeros(count, dtype=np.int64)
        for names, types, level in self._levels:
            buckets = buckets_of([arrays[name] for name in names], types, level.buckets, level.seed)
            numbers = numbers * level.buckets + buckets
        if self._codec is not None and self._bounds is not None:
            keys = self._codec.encode([arrays[name] for name in self._range_names])
            numbers = numbers * self._regions + self._bounds.search(keys, side="right")
        return self._table[numbers]

    def route_one(self, values: Mapping[str, Any]) -> int:
        """Return the index of the partition of one row; -1 if no partition takes the row.

        values: the row's canonical values, by column name.
        """
        number = 0
        for names, types, level in self._levels:
            bucket = bucket_of([values[name] for name in names], types, level.buckets, level.seed)
            number = number * level.buckets + bucket
        if self._codec is not None and self._bounds is not None:
            key = self._codec.encode_one([values[name] for name in self._range_names])
            number = number * self._regions + int(self._bounds.search(key, side="right")[0])
        return int(self._table[number])
