"""How a table is cut into tablets: what a user writes, what the catalogue keeps, and how the one becomes the other.

    [hash_partition("host", buckets=2), range_partition("time", splits=[...])]      a user's levels
              |  build_partitions                                                   all checks
              v
    PartitionSchema   hash levels and range columns, by column id                   fixed for the table's life
    Partition         one per tablet: a bucket per hash level, and a stretch of range keys

The invariants T1 to T4 stand in `nyala.partition.model`; here they are checked for what a user gave. What the
layers above need of this package besides (`Router`, `describe`, the model) can be imported from here too.

Left out: hash levels of a single range (Kudu 1.17). Adding and dropping ranges: `nyala.partition.alteration`.
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
from nyala.schema.schema import ColumnSchema, Schema

__all__ = ["HashSpec", "RangeSpec", "build_partitions", "hash_partition", "range_partition", "specs_of"]

# ---- what a user writes --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HashSpec:
    """One hash level as `nyala.hash_partition` describes it."""

    columns: tuple[str, ...]
    buckets: int
    seed: int = DEFAULT_SEED


@dataclass(frozen=True)
class RangeSpec:
    """The range level as `nyala.range_partition` describes it; values are still the user's."""

    columns: tuple[str, ...]
    splits: tuple[Any, ...] = ()
    bounds: tuple[Any, ...] | None = None


def hash_partition(*columns: str, buckets: int, seed: int = DEFAULT_SEED) -> HashSpec:
    """Spread rows over `buckets` tablets by a hash of key `columns`.

    The hash is Spark's: bucket = pmod(hash(columns), buckets) for the default seed 42.
    Raises: InvalidArgumentError for no column or fewer than two buckets.
    """
    _check_names(columns, "hash")
    if not _is_int(buckets) or buckets < 2:
        raise InvalidArgumentError(
            f"hash_partition({', '.join(columns)}): must have at least two hash buckets, a whole number, and not "
            f"{buckets!r}"
        )
    if not _is_int(seed) or not -(2**31) <= seed < 2**31:
        raise InvalidArgumentError(f"hash_partition: seed {seed!r} is not an integer of 32 bits")
    return HashSpec(columns, buckets, seed)


def range_partition(
    *columns: str, splits: Iterable[Any] | None = None, bounds: Iterable[Any] | None = None
) -> RangeSpec:
    """Cut the table by the order of key `columns`.

    bounds: pairs (lower, upper): a range [lower, upper) each; None is unbounded, [] is no range yet. Left out:
            one range without bounds. A `RangeBound` says which ends are inclusive.
    splits: values, each of which cuts the range that it lies in, in two.
    A value is a Python scalar, or ISO text for a date or time; for several columns a tuple. A tuple may be
    shorter or hold None: the columns left unset are at their minimum, and all unset is unbounded.
    Raises: InvalidArgumentError for no column; values are checked when the table is created.
    """
    _check_names(columns, "range")
    for name, values in (("splits", splits), ("bounds", bounds)):
        if isinstance(values, str | bytes) or (values is not None and not isinstance(values, Iterable)):
            raise InvalidArgumentError(f"range_partition: {name} is a list, not {values!r}")
    return RangeSpec(columns, tuple(splits or ()), None if bounds is None else tuple(bounds))


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_names(columns: Sequence[Any], kind: str) -> None:
    if not columns:
        raise InvalidArgumentError(f"{kind}_partition must have at least one {kind} column")
    for name in columns:
        if not isinstance(name, str):
            raise InvalidArgumentError(f"{kind}_partition takes column names, one by one, not {name!r}")


# ---- from the one to the other -------------------------------------------------------------------------------


def specs_of(partition_by: Any) -> list[HashSpec | RangeSpec]:
    """Raises: InvalidArgumentError for what is no list; `build_partitions` looks at what is in it."""
    if isinstance(partition_by, HashSpec | RangeSpec):
        return [partition_by]
    if not isinstance(partition_by, Iterable) or isinstance(partition_by, str | bytes):
        raise InvalidArgumentError(
            f"partition_by takes nyala.hash_partition(…) and nyala.range_partition(…), not {partition_by!r}: "
            'for instance nyala.hash_partition("id", buckets=4), or nyala.range_partition("day", splits=["2026-01-01"])'
        )
    return list(partition_by)


def build_partitions(
    levels: Iterable[HashSpec | RangeSpec] | HashSpec | RangeSpec,
    schema: Schema,
    limits: Limits = DEFAULT_LIMITS,
) -> tuple[PartitionSchema, tuple[Partition, ...]]:
    """The partitioning of a new table with these `levels`, and its partitions in the order of T3.

    Raises: InvalidArgumentError when the levels contradict T1 or T2 or a bound makes no sense,
            ColumnNotFoundError for a name that no column has.
    """
    specs = [levels] if isinstance(levels, HashSpec | RangeSpec) else list(levels)
    for spec in specs:
        if not isinstance(spec, HashSpec | RangeSpec):
            raise InvalidArgumentError(
                f"partition_by takes nyala.hash_partition(...) and nyala.range_partition(...), not {spec!r}: for "
                'instance nyala.hash_partition("id", buckets=4)'
            )
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
        raise InvalidArgumentError("at most one range level: give its columns to one nyala.range_partition")
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
    return f"{tablets} tablets are too many, at most {MAX_TABLETS}: take fewer buckets or ranges"


def _key_columns(names: Sequence[str], schema: Schema, kind: str) -> tuple[ColumnSchema, ...]:
    for name in names:
        schema.by_name(name)
        if not schema.is_key(name):
            raise InvalidArgumentError(
                f"{kind}_partition must specify only primary key columns, and {name!r} is none; "
                f"they are {', '.join(repr(key) for key in schema.key_names)}"
            )
        if names.count(name) > 1:
            raise InvalidArgumentError(f"duplicate column {name!r} in {kind}_partition")
    return tuple(schema.by_name(name) for name in names)
