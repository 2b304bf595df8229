"""Ranges that are added to and dropped from the partitioning of a table that lives.

    ranges         [2014, 2015) [2015, 2016)
    add_range      (2016, 2017)                 one partition more for each combination of buckets
    find_range     (2014, 2015)                 the one with just these bounds, to be dropped

Source: Kudu schema design, "Range Partition Management"; docs/design/kudu.md, "Schema alteration".
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Final

from nyala.errors import InvalidArgumentError
from nyala.partition.describe import describe_range
from nyala.partition.model import MAX_TABLETS, Partition, PartitionSchema
from nyala.partition.ranges import EncodedRange, RangeBound, encode_range
from nyala.schema.limits import DEFAULT_LIMITS, LARGEST, Limits
from nyala.schema.schema import ColumnSchema, Schema

__all__ = ["added_partitions", "find_range", "ranges_of"]

# Ranges that are named in a message; a table may have thousands.
_NAMED: Final = 5


def ranges_of(partitions: Iterable[Partition]) -> list[EncodedRange]:
    """The ranges of these partitions, each once, ascending."""
    found = {(partition.range_lower, partition.range_upper) for partition in partitions}
    return sorted(found, key=lambda bounds: bounds[0] or b"")


def added_partitions(
    bound: RangeBound,
    partition_schema: PartitionSchema,
    partitions: Sequence[Partition],
    schema: Schema,
    limits: Limits = DEFAULT_LIMITS,
) -> list[Partition]:
    """The partitions that a new range brings to a table with these.

    Raises: InvalidArgumentError when the table has no range level, the bounds make no sense, or the range overlaps
            one that is there.
    """
    columns = _range_columns(partition_schema, schema, "added")
    lower, upper = encode_range(bound, columns, limits)
    for other in ranges_of(partitions):
        if (upper is None or other[0] is None or other[0] < upper) and (
            lower is None or other[1] is None or lower < other[1]
        ):
            shown, there = (describe_range(one, partition_schema, schema) for one in ((lower, upper), other))
            if (lower, upper) == other:
                raise InvalidArgumentError(f"there is a range partition {there} already")
            raise InvalidArgumentError(
                f"the range partition {shown} would overlap {there}, which is there: drop that one first, or choose "
                "other bounds"
            )
    buckets = itertools.product(*(range(level.buckets) for level in partition_schema.hash_levels))
    added = [Partition(combination, lower, upper) for combination in buckets]
    if len(partitions) + len(added) > MAX_TABLETS:
        raise InvalidArgumentError(
            f"{len(partitions) + len(added)} tablets are too many, at most {MAX_TABLETS}: drop a range first"
        )
    return added


def find_range(
    bound: RangeBound, partition_schema: PartitionSchema, partitions: Sequence[Partition], schema: Schema
) -> EncodedRange:
    """The range with just these bounds. Raises: InvalidArgumentError when there is none."""
    columns = _range_columns(partition_schema, schema, "dropped")
    wanted = encode_range(bound, columns, LARGEST)
    ranges = ranges_of(partitions)
    if wanted in ranges:
        return wanted
    shown = describe_range(wanted, partition_schema, schema)
    if not ranges:
        raise InvalidArgumentError(f"there is no range partition {shown} to drop: the table has none")
    near = [
        other
        for other in ranges
        if (wanted[1] is None or (other[0] or b"") < wanted[1])
        and (other[1] is None or (wanted[0] or b"") < other[1])
    ]
    listed = near or ranges
    names = ", ".join(describe_range(other, partition_schema, schema) for other in listed[:_NAMED])
    more = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
    what = "those that it overlaps are" if near else "the table's are"
    raise InvalidArgumentError(
        f"there is no range partition {shown} to drop; {what} {names}{more}: a range is dropped by its exact bounds"
    )


def _range_columns(partition_schema: PartitionSchema, schema: Schema, what: str) -> Sequence[ColumnSchema]:
    columns = partition_schema.range_columns(schema)
    if not columns:
        raise InvalidArgumentError(
            f"the table has no range level, so no range can be {what}: table.repartition(…) gives it one"
        )
    return columns
