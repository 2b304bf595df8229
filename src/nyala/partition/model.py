"""What the catalogue keeps of a partitioning: the table's levels, and the place of each tablet in them.

         range:   [ .. , 2014)  [2014, 2015)  [2015, .. )
    bucket 0:     tablet 0      tablet 1      tablet 2
    bucket 1:     tablet 3      tablet 4      tablet 5

Invariants
    T1  A row lies in at most one partition; without a gap between its ranges, in exactly one.
    T2  Partition and hash columns are key columns; no column is in two hash levels. It may be hashed and in the
        range too.
    T3  A new table's partitions are every combination of buckets with every range, buckets outermost, ranges
        ascending.
    T4  A range bound is a whole encoded key over the range columns; None is unbounded.

Source: Kudu facts §2.1, §2.3.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from nyala.partition.hashing import ALGORITHM, DEFAULT_SEED
from nyala.schema.schema import ColumnSchema, Schema

__all__ = ["HashLevel", "Partition", "PartitionSchema"]


@dataclass(frozen=True)
class HashLevel:
    """One hash level of a table. `algorithm` is the name of the hash function, so that another can come."""

    column_ids: tuple[int, ...]
    buckets: int
    seed: int = DEFAULT_SEED
    algorithm: str = ALGORITHM


@dataclass(frozen=True)
class PartitionSchema:
    """The levels of a table, by column id, so that a renamed column changes nothing. No level: one tablet."""

    hash_levels: tuple[HashLevel, ...] = ()
    range_column_ids: tuple[int, ...] = ()

    def range_columns(self, schema: Schema) -> tuple[ColumnSchema, ...]:
        """The range columns, in the range's order."""
        return tuple(schema.by_id(id) for id in self.range_column_ids)

    def hash_columns(self, level: HashLevel, schema: Schema) -> tuple[ColumnSchema, ...]:
        """The columns of one hash level, in the order in which they are hashed."""
        return tuple(schema.by_id(id) for id in level.column_ids)

    def to_json(self) -> str:
        """One line of JSON that holds everything; the inverse of `from_json`."""
        levels = [
            {"column_ids": level.column_ids, "buckets": level.buckets, "seed": level.seed}
            | {"algorithm": level.algorithm}
            for level in self.hash_levels
        ]
        data = {"hash_levels": levels, "range_column_ids": self.range_column_ids}
        return json.dumps(data, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> PartitionSchema:
        """The inverse of `to_json`.

        Raises: ValueError or KeyError for any other text; the catalogue's checksum has been compared before.
        """
        data = json.loads(text)
        levels = tuple(
            HashLevel(tuple(level["column_ids"]), level["buckets"], level["seed"], level["algorithm"])
            for level in data["hash_levels"]
        )
        return PartitionSchema(levels, tuple(data["range_column_ids"]))


@dataclass(frozen=True)
class Partition:
    """The rows of one tablet: one bucket per hash level, range keys in [range_lower, range_upper) (T4)."""

    hash_buckets: tuple[int, ...] = ()
    range_lower: bytes | None = None
    range_upper: bytes | None = None
