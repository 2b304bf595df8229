"""Adds range partitions to an existing table, and finds the ones to drop.

    ranges of a table  [2014, 2015) [2015, 2016)
    added_partitions   for (2016, 2017): one new partition per combination of hash buckets
    find_range         for (2014, 2015): the range with exactly these bounds
    check_free         for (2014, 2015): an error, because a range overlaps these bounds

Source: Kudu schema design, "Range Partition Management"; docs/design/kudu.md, "Schema alteration".
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Final, Literal

from nyala.errors import InvalidArgumentError
from nyala.partition.describe import describe_range
from nyala.partition.model import MAX_TABLETS, Partition, PartitionSchema
from nyala.partition.ranges import EncodedRange, RangeBound, encode_range
from nyala.schema.limits import DEFAULT_LIMITS, LARGEST, Limits
from nyala.schema.schema import ColumnSchema, Schema

__all__ = ["added_partitions", "check_free", "find_range", "ranges_of"]

# The most ranges that a message names. A table may have thousands.
_NAMED: Final = 5


def ranges_of(partitions: Iterable[Partition]) -> list[EncodedRange]:
    """Return the distinct ranges of the partitions, in ascending order."""
    found = {(partition.range_lower, partition.range_upper) for partition in partitions}
    return sorted(found, key=lambda bounds: bounds[0] or b"")


def added_partitions(
    bound: RangeBound,
    partition_schema: PartitionSchema,
    partitions: Sequence[Partition],
    schema: Schema,
    limits: Limits = DEFAULT_LIMITS,
) -> list[Partition]:
    """Return the partitions that a new range adds to a table with `partitions`.

    Raises InvalidArgumentError if:
    - the table has no range level,
    - the bounds are invalid,
    - the range overlaps another one, or
    - the table would have more than MAX_TABLETS tablets.
    """
    columns = _range_columns(partition_schema, schema, "added")
    lower, upper = encode_range(bound, columns, limits)
    check_free((lower, upper), partition_schema, partitions, schema)
    buckets = itertools.product(*(range(level.buckets) for level in partition_schema.hash_levels))
    added = [Partition(combination, lower, upper) for combination in buckets]
    if len(partitions) + len(added) > MAX_TABLETS:
        raise InvalidArgumentError(
            f"the table would have {len(partitions) + len(added)} tablets, at most {MAX_TABLETS} are allowed: "
            "drop a range first"
        )
    return added


def check_free(
    bounds: EncodedRange, partition_schema: PartitionSchema, partitions: Sequence[Partition], schema: Schema
) -> None:
    """Raise InvalidArgumentError if a partition overlaps the range."""
    lower, upper = bounds
    for other in ranges_of(partitions):
        if (upper is None or other[0] is None or other[0] < upper) and (
            lower is None or other[1] is None or lower < other[1]
        ):
            shown, there = (describe_range(one, partition_schema, schema) for one in ((lower, upper), other))
            if (lower, upper) == other:
                raise InvalidArgumentError(f"the range partition {there} exists already")
            raise InvalidArgumentError(
                f"the range partition {shown} would overlap {there}: drop that range first, or choose "
                "other bounds"
            )


def find_range(
    bound: RangeBound,
    partition_schema: PartitionSchema,
    partitions: Sequence[Partition],
    schema: Schema,
    what: Literal["dropped", "undropped"] = "dropped",
) -> EncodedRange:
    """Return the range that has exactly these bounds, from the ranges of `partitions`.

    what: what the caller will do with the range, for messages. For "undropped", `partitions` are
          the dropped ones.
    Raises: InvalidArgumentError if no range has these bounds.
    """
    columns = _range_columns(partition_schema, schema, what)
    verb, kind = ("drop", "range partition") if what == "dropped" else ("undrop", "dropped range partition")
    wanted = encode_range(bound, columns, LARGEST)
    ranges = ranges_of(partitions)
    if wanted in ranges:
        return wanted
    shown = describe_range(wanted, partition_schema, schema)
    if not ranges:
        raise InvalidArgumentError(f"there is no {kind} {shown} to {verb}: the table has no {kind}s")
    near = [
        other
        for other in ranges
        if (wanted[1] is None or (other[0] or b"") < wanted[1])
        and (other[1] is None or (wanted[0] or b"") < other[1])
    ]
    listed = near or ranges
    names = ", ".join(describe_range(other, partition_schema, schema) for other in listed[:_NAMED])
    more = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
    has = "it overlaps" if near else "the table has"
    raise InvalidArgumentError(
        f"there is no {kind} {shown} to {verb}; {has} {names}{more}: give the exact bounds of one range"
    )


def _range_columns(partition_schema: PartitionSchema, schema: Schema, what: str) -> Sequence[ColumnSchema]:
    columns = partition_schema.range_columns(schema)
    if not columns:
        raise InvalidArgumentError(
            f"the table has no range level, so no range can be {what}: add one with table.repartition(…)"
        )
    return columns
