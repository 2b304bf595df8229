"""The functions hash_partition and range_partition, and the partitions of a new table.

    [hash_partition("host", buckets=2), range_partition("time", splits=[...])]      the levels that a user gives
              |  build_partitions checks them
              v
    PartitionSchema   hash levels and range columns, by column id; they never change
    Partition         one per tablet: a bucket per hash level, and a range of encoded keys

This module checks the invariants of `nyala.partition.model`. `nyala.partition.alteration` adds and
drops ranges later. All ranges have the same hash levels: different hash levels per range, as in
Kudu 1.17, are not supported.
Source: Kudu schema design, "Partitioning"; docs/design/kudu.md, "Partitions and their bounds".
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from nyala.errors import InvalidArgumentError
from nyala.partition.hashing import DEFAULT_SEED
from nyala.partition.model import MAX_TABLETS, HashLevel, Partition, PartitionSchema
from nyala.partition.ranges import build_ranges
from nyala.schema.limits import DEFAULT_LIMITS, Limits
from nyala.schema.schema import AUTO_INCREMENT, ColumnSchema, Schema

__all__ = ["HashSpec", "RangeSpec", "build_partitions", "hash_partition", "level_specs", "range_partition"]

# ---- the user's levels ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HashSpec:
    """The result of `nyala.hash_partition`: one hash level of a new table."""

    columns: tuple[str, ...]
    buckets: int
    seed: int = DEFAULT_SEED


@dataclass(frozen=True)
class RangeSpec:
    """The result of `nyala.range_partition`: the range level of a new table, not checked yet."""

    columns: tuple[str, ...]
    splits: tuple[Any, ...] = ()
    bounds: tuple[Any, ...] | None = None


def hash_partition(*columns: str, buckets: int, seed: int = DEFAULT_SEED) -> HashSpec:
    """Describe a hash level: it spreads the rows of a new table over `buckets` tablets.

    Parameters
    ----------
    columns
        Names of primary key columns.
    buckets
        Number of tablets, at least 2.
    seed
        Seed of the hash. With 42, the bucket of a row is `pmod(hash(columns), buckets)` in Spark's
        SQL.

    Raises
    ------
    InvalidArgumentError
        No column, fewer than two buckets, or a seed that is not a 32-bit integer.

    Examples
    --------
    >>> levels = [hash_partition("host", buckets=4), range_partition("day", splits=["2026-01-01"])]
    >>> schema = {"host": "string", "day": "date", "load": "double"}
    >>> table = db.create_table("loads", schema, ["host", "day"], partition_by=levels)
    >>> len(table.tablets())
    8
    """
    _check_names(columns, "hash")
    if not _is_int(buckets) or buckets < 2:
        raise InvalidArgumentError(
            f"hash_partition({', '.join(columns)}): must have at least two hash buckets, got {buckets!r}"
        )
    if not _is_int(seed) or not -(2**31) <= seed < 2**31:
        raise InvalidArgumentError(f"hash_partition: seed {seed!r} is not a 32-bit integer")
    return HashSpec(columns, buckets, seed)


def range_partition(
    *columns: str, splits: Iterable[Any] | None = None, bounds: Iterable[Any] | None = None
) -> RangeSpec:
    """Describe the range level: it divides the rows of a new table by ranges of key `columns`.

    A value in `splits` and `bounds` is a Python value, ISO text for a date or timestamp, or a tuple
    for several columns. If a tuple leaves a column out, or has None for it, the column gets its
    least value. A tuple without any value means no bound.

    Parameters
    ----------
    columns
        Names of primary key columns.
    splits
        Each value divides the range that contains it into two ranges.
    bounds
        Pairs (lower, upper), each for a range [lower, upper), or `RangeBound` objects. None in a
        pair is unbounded. `[]` creates a table without ranges. Default: one range without bounds.

    Raises
    ------
    InvalidArgumentError
        No column, or `splits` or `bounds` is not a list. `create_table` checks the values.

    Examples
    --------
    >>> years = range_partition("day", bounds=[("2025-01-01", "2026-01-01"), ("2026-01-01", None)])
    >>> table = db.create_table("days", {"day": "date", "load": "double"}, ["day"], partition_by=years)
    >>> len(table.tablets())
    2
    """
    _check_names(columns, "range")
    for name, values in (("splits", splits), ("bounds", bounds)):
        if isinstance(values, str | bytes) or (values is not None and not isinstance(values, Iterable)):
            raise InvalidArgumentError(f"range_partition: {name} must be a list, not {values!r}")
    return RangeSpec(columns, tuple(splits or ()), None if bounds is None else tuple(bounds))


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_names(columns: Sequence[Any], kind: str) -> None:
    if not columns:
        raise InvalidArgumentError(f"{kind}_partition must have at least one {kind} column")
    for name in columns:
        if not isinstance(name, str):
            raise InvalidArgumentError(
                f"{kind}_partition takes column names as separate arguments, not {name!r}"
            )


# ---- the partitions of a new table ---------------------------------------------------------------------------


def level_specs(partition_by: Any) -> list[HashSpec | RangeSpec]:
    """Return the levels in `partition_by` as a list.

    Raises: InvalidArgumentError if it has anything else than levels.
    """
    is_list = isinstance(partition_by, Iterable) and not isinstance(partition_by, str | bytes)
    specs = list(partition_by) if is_list else [partition_by]
    for spec in specs:
        if not isinstance(spec, HashSpec | RangeSpec):
            raise InvalidArgumentError(
                f"partition_by takes nyala.hash_partition(…) and nyala.range_partition(…), not {spec!r}: for instance "
                'nyala.hash_partition("id", buckets=4), or nyala.range_partition("day", splits=["2026-01-01"])'
            )
    return specs


def build_partitions(
    levels: Iterable[HashSpec | RangeSpec] | HashSpec | RangeSpec,
    schema: Schema,
    limits: Limits = DEFAULT_LIMITS,
) -> tuple[PartitionSchema, tuple[Partition, ...]]:
    """Build the levels of a new table, and its partitions, sorted by bucket and then by range.

    Raises: InvalidArgumentError for invalid bounds, overlapping ranges, a column that is not in the
    primary key or is in two hash levels; ColumnNotFoundError for an unknown column.
    """
    specs = level_specs(levels)
    hash_specs = [spec for spec in specs if isinstance(spec, HashSpec)]
    range_specs = [spec for spec in specs if isinstance(spec, RangeSpec)]
    hash_levels = tuple(
        HashLevel(tuple(c.id for c in _key_columns(spec.columns, schema, "hash")), spec.buckets, spec.seed)
        for spec in hash_specs
    )
    hashed = [id for level in hash_levels for id in level.column_ids]
    if len(set(hashed)) < len(hashed):
        name = schema.by_id(next(id for id in hashed if hashed.count(id) > 1)).name
        raise InvalidArgumentError(
            f"hash levels must not contain columns in common: {name!r} is in two of them; "
            "put the columns into one level, or hash each in one level only"
        )
    if len(range_specs) > 1:
        raise InvalidArgumentError("at most one range level: pass all columns to one nyala.range_partition")
    combinations = math.prod(level.buckets for level in hash_levels)
    if combinations > MAX_TABLETS:
        raise InvalidArgumentError(_too_many(combinations))
    if range_specs:
        columns = _key_columns(range_specs[0].columns, schema, "range")
        ranges = build_ranges(columns, range_specs[0].splits, range_specs[0].bounds, limits)
    else:
        columns, ranges = (), [(None, None)]
    if combinations * len(ranges) > MAX_TABLETS:
        raise InvalidArgumentError(_too_many(combinations * len(ranges)))
    partitions = tuple(
        Partition(buckets, lower, upper)
        for buckets in itertools.product(*(range(level.buckets) for level in hash_levels))
        for lower, upper in ranges
    )
    return PartitionSchema(hash_levels, tuple(column.id for column in columns)), partitions


def _too_many(tablets: int) -> str:
    return f"the table would have {tablets} tablets, at most {MAX_TABLETS} are allowed: use fewer buckets or ranges"


def _key_columns(names: Sequence[str], schema: Schema, kind: str) -> tuple[ColumnSchema, ...]:
    for name in names:
        schema.by_name(name)
        if not schema.is_key(name):
            raise InvalidArgumentError(
                f"{kind}_partition must specify only primary key columns, and {name!r} is not one: "
                f"the primary key is {', '.join(repr(key) for key in schema.key_names)}"
            )
        if name == AUTO_INCREMENT:
            raise InvalidArgumentError(
                f"{kind}_partition cannot specify {name!r}, which the store fills with numbers: partition by "
                "columns that you pass as primary_key (with unique=False)"
            )
        if names.count(name) > 1:
            raise InvalidArgumentError(f"duplicate column {name!r} in {kind}_partition")
    return tuple(schema.by_name(name) for name in names)
