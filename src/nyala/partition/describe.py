"""Describes levels and partitions as text.

    HASH (host, metric) BUCKET 2 OF 4, RANGE (time) [2014-01-01, 2015-01-01)

Buckets count from 0. The bounds of a range over several columns are tuples. Columns at the end of a
bound are left out if they have their least value. `nyala.range_partition` accepts such bounds.
"""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

from nyala.keys.codec import KeyCodec
from nyala.partition.hashing import DEFAULT_SEED
from nyala.partition.model import Partition, PartitionSchema
from nyala.schema.schema import ColumnSchema, Schema
from nyala.schema.types import ColumnType, from_canonical

__all__ = ["describe", "describe_range", "describe_schema"]


def describe_schema(partition_schema: PartitionSchema, schema: Schema) -> str:
    """Describe the levels of a table: "HASH (host, metric) BUCKETS 4, RANGE (time)".

    The text shows the seed of a hash level only if it is not the default, 42.
    """
    parts = []
    for level in partition_schema.hash_levels:
        names = _names(partition_schema.hash_columns(level, schema))
        seed = "" if level.seed == DEFAULT_SEED else f" SEED {level.seed}"
        parts.append(f"HASH ({names}) BUCKETS {level.buckets}{seed}")
    if partition_schema.range_column_ids:
        parts.append(f"RANGE ({_names(partition_schema.range_columns(schema))})")
    return ", ".join(parts) or "UNPARTITIONED"


def describe(partition: Partition, partition_schema: PartitionSchema, schema: Schema) -> str:
    """Describe one partition: "HASH (host) BUCKET 2 OF 4, RANGE (time) [2014-01-01, 2015-01-01)"."""
    parts = []
    for bucket, level in zip(partition.hash_buckets, partition_schema.hash_levels, strict=True):
        names = _names(partition_schema.hash_columns(level, schema))
        parts.append(f"HASH ({names}) BUCKET {bucket} OF {level.buckets}")
    if partition_schema.range_column_ids:
        parts.append(describe_range((partition.range_lower, partition.range_upper), partition_schema, schema))
    return ", ".join(parts) or "UNPARTITIONED"


def describe_range(
    bounds: tuple[bytes | None, bytes | None], partition_schema: PartitionSchema, schema: Schema
) -> str:
    """Describe one range, given by its encoded bounds: "RANGE (time) [2014-01-01, 2015-01-01)"."""
    columns = partition_schema.range_columns(schema)
    lower = "(unbounded" if bounds[0] is None else "[" + _bound(bounds[0], columns)
    upper = "unbounded" if bounds[1] is None else _bound(bounds[1], columns)
    return f"RANGE ({_names(columns)}) {lower}, {upper})"


def _names(columns: tuple[ColumnSchema, ...]) -> str:
    return ", ".join(column.name for column in columns)


def _bound(bound: bytes, columns: tuple[ColumnSchema, ...]) -> str:
    types = [column.type for column in columns]
    row = list(KeyCodec(types).decode_row(bound))
    while len(row) > 1 and row[-1] in (types[len(row) - 1].value_min, "", b""):
        row.pop()
    values = [_value(type, value) for type, value in zip(types, row, strict=False)]
    return values[0] if len(types) == 1 else f"({', '.join(values)})"


def _value(type: ColumnType, value: Any) -> str:
    if type.is_text:
        return "'" + str(value).replace("'", "''") + "'"
    if type.name == "binary":
        return f"x'{value.hex()}'"
    shown = from_canonical(type, value)
    if isinstance(shown, dt.datetime):
        # Most bounds are midnight, which is shown as a date. The zone is always UTC.
        return (
            shown.date().isoformat()
            if shown.time() == dt.time(0)
            else shown.isoformat().replace("+00:00", "Z")
        )
    if isinstance(shown, dt.date):
        return shown.isoformat()
    return f"{shown:f}" if isinstance(shown, decimal.Decimal) else str(shown)
