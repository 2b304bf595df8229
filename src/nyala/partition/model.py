"""The partitioning that the catalogue stores: the levels of a table, and each tablet's partition.

         range:   [ .. , 2014)  [2014, 2015)  [2015, .. )
    bucket 0:     tablet 0      tablet 1      tablet 2
    bucket 1:     tablet 3      tablet 4      tablet 5

Invariants
    T1  A row belongs to at most one partition, and to exactly one if the ranges have no gaps.
    T2  Hash and range columns are key columns. No column is in two hash levels. A hash column may
        be a range column too.
    T3  The partitions of a new table are all combinations of buckets and ranges: first those of
        bucket 0, each with the ranges ascending.
    T4  A range bound is an encoded key of all range columns. None means no bound.

Source: docs/design/kudu.md, "Partitions and their bounds".
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from nyala.errors import CorruptionError
from nyala.keys.codec import KeyCodec
from nyala.partition.hashing import ALGORITHM, DEFAULT_SEED
from nyala.schema.plain_arrays import array_of_bytes
from nyala.schema.schema import ColumnSchema, Schema

__all__ = ["MAX_TABLETS", "HashLevel", "Partition", "PartitionSchema", "find_problem"]

# Kudu recommends at most a few thousand tablets per server. This limit only stops typing errors,
# which might otherwise create a million folders.
MAX_TABLETS: Final = 65_536


@dataclass(frozen=True)
class HashLevel:
    """One step of hash partitioning: it spreads rows over buckets by the hash of some columns.

    A table can have several levels. Then a row has one bucket in each level.

    column_ids: the columns that are hashed, in this order.
    buckets: the number of buckets.
    seed: the start value of the hash.
    algorithm: the name of the hash function.
    """

    column_ids: tuple[int, ...]
    buckets: int
    seed: int = DEFAULT_SEED
    algorithm: str = ALGORITHM


@dataclass(frozen=True)
class PartitionSchema:
    """How the rows of a table are divided: by hashes, by ranges, by both, or not at all.

    A table that is not divided has one tablet. Columns are given by id, so that they can be
    renamed.

    hash_levels: each spreads the rows over buckets by the hash of some columns.
    range_column_ids: the columns whose values divide the rows into ranges; empty: no ranges.
    """

    hash_levels: tuple[HashLevel, ...] = ()
    range_column_ids: tuple[int, ...] = ()

    def range_columns(self, schema: Schema) -> tuple[ColumnSchema, ...]:
        """Return the columns whose values divide the rows into ranges, in the order of a bound."""
        return tuple(schema.by_id(id) for id in self.range_column_ids)

    def hash_columns(self, level: HashLevel, schema: Schema) -> tuple[ColumnSchema, ...]:
        """Return the columns of one hash level, in the order in which they are hashed."""
        return tuple(schema.by_id(id) for id in level.column_ids)

    def to_json(self) -> str:
        """Return this object as one line of JSON that `from_json` reads."""
        levels = [
            {"column_ids": level.column_ids, "buckets": level.buckets, "seed": level.seed}
            | {"algorithm": level.algorithm}
            for level in self.hash_levels
        ]
        data = {"hash_levels": levels, "range_column_ids": self.range_column_ids}
        return json.dumps(data, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> PartitionSchema:
        """Return the PartitionSchema that `to_json` wrote as `text`.

        Raises: ValueError or KeyError for any other text. The caller has verified the catalogue's
        checksum.
        """
        data = json.loads(text)
        levels = tuple(
            HashLevel(tuple(level["column_ids"]), level["buckets"], level["seed"], level["algorithm"])
            for level in data["hash_levels"]
        )
        return PartitionSchema(levels, tuple(data["range_column_ids"]))


@dataclass(frozen=True)
class Partition:
    """Says which rows belong to a tablet: the rows in certain hash buckets and in a range.

    hash_buckets: the number of the bucket in each hash level of the table.
    range_lower, range_upper: bounds of the range columns, as encoded keys. Rows at the lower bound
        belong to the tablet, rows at the upper bound do not. None: no bound.
    """

    hash_buckets: tuple[int, ...] = ()
    range_lower: bytes | None = None
    range_upper: bytes | None = None


def find_problem(levels: PartitionSchema, partitions: Sequence[Partition], schema: Schema) -> str | None:
    """Check the partitioning of a table, and return the first problem as text, or None.

    For data from a catalogue or another process, which may be wrong even if its checksum is right.

    levels: how the table is divided. Its columns must be key columns of `schema`.
    partitions: the rows of each tablet. They must fit `levels`, and must not overlap.
    Cost: one pass over the partitions.
    """
    hashed = [id for level in levels.hash_levels for id in level.column_ids]
    for ids in (hashed, list(levels.range_column_ids)):
        if len(set(ids)) < len(ids) or not set(ids) <= set(schema.key_ids):
            return f"T2: partitioned by columns {ids}, the key has {list(schema.key_ids)}"
    for level in levels.hash_levels:
        numbers = (level.buckets, level.seed)
        if any(type(number) is not int or not -(1 << 31) <= number < 1 << 31 for number in numbers):
            return f"a hash level of {level.buckets!r} buckets with seed {level.seed!r}"
        if level.buckets < 2 or not level.column_ids or level.algorithm != ALGORITHM:
            return f"a hash level of {level.buckets} buckets, by {level.algorithm!r} of columns {level.column_ids}"
    if math.prod(level.buckets for level in levels.hash_levels) > MAX_TABLETS:
        return f"hash levels of more than {MAX_TABLETS} buckets"
    by_buckets: dict[tuple[int, ...], list[Partition]] = {}
    for partition in partitions:
        buckets = partition.hash_buckets
        if len(buckets) != len(levels.hash_levels) or any(
            type(bucket) is not int or not 0 <= bucket < level.buckets
            for bucket, level in zip(buckets, levels.hash_levels, strict=True)
        ):
            return f"a tablet in buckets {buckets}"
        by_buckets.setdefault(buckets, []).append(partition)
    bounds = [bound for p in partitions for bound in (p.range_lower, p.range_upper) if bound is not None]
    if bounds:
        if not levels.range_column_ids:
            return "a tablet has range bounds, but its table has no range level"
        try:
            KeyCodec([column.type for column in levels.range_columns(schema)]).from_binary(
                array_of_bytes(bounds)
            )
        except CorruptionError as error:
            return f"T4: a tablet's bound is not a valid key: {error.reason}"
    for group in by_buckets.values():
        group.sort(key=lambda partition: partition.range_lower or b"")
        for lower, upper in ((partition.range_lower, partition.range_upper) for partition in group):
            if lower is not None and upper is not None and lower >= upper:
                return f"a tablet's range ends before it begins, at {lower.hex()}"
        for left, right in pairwise(group):
            if left.range_upper is None or right.range_lower is None or left.range_upper > right.range_lower:
                return f"T1: two tablets of buckets {left.hash_buckets} overlap at {right.range_lower!r}"
    return None
