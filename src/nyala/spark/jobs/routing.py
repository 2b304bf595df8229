"""Computes the tablet of each row as a Spark expression, so that the shuffle of a load needs no
Python function.

    hash levels    pmod(hash(columns), buckets) for each level. Nyala's hash is the same as Spark's
    range level    the number of range bounds that are less than or equal to the row's key, found
                   by a binary search with CASE expressions
    tablet         the buckets and the range make one number, the index into an array. Its element
                   is the position of the tablet in the plan, or -1 if there is no tablet

The columns are cast to the table's types before they are hashed. A value that does not fit becomes
NULL, and its row goes to an arbitrary tablet. The task of this tablet converts the original value,
and reports the error.

Source: docs/design/spark.md, "What Spark offers a Python data source".
"""

from __future__ import annotations

import decimal
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql import types as T

from nyala.errors import InvalidArgumentError, SchemaError
from nyala.keys.codec import KeyCodec
from nyala.partition.hashing import DEFAULT_SEED
from nyala.schema.schema import ColumnSchema
from nyala.tablet.jobs.load_job import LoadPlan

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["key_columns", "single_hash", "tablet_number"]

_EXACT = decimal.Context(prec=40)
_INTEGERS = {"int8": "tinyint", "int16": "smallint", "int32": "int", "int64": "bigint"}
_SAME = {
    "date": T.DateType,
    "timestamp": T.TimestampType,
    "string": T.StringType,
    "varchar": T.StringType,
    "binary": T.BinaryType,
}


def key_columns(df: DataFrame, plan: LoadPlan) -> dict[str, Column]:
    """Return the columns of the key by name, cast to the table's types.

    Raises SchemaError if Spark would hash a column's type differently from Nyala.
    """
    return {column.name: _cast(df, plan, column) for column in plan.schema.key_columns}


def _cast(df: DataFrame, plan: LoadPlan, column: ColumnSchema) -> Column:
    found = df.schema[column.name].dataType
    value = F.col("`" + column.name.replace("`", "``") + "`")
    name = column.type.name
    whole = isinstance(found, T.ByteType | T.ShortType | T.IntegerType | T.LongType)
    if name in _INTEGERS and whole:
        return value.try_cast(_INTEGERS[name])
    if name == "decimal" and (whole or isinstance(found, T.DecimalType)):
        return value.try_cast(f"decimal({column.type.precision},{column.type.scale})")
    if isinstance(found, T.StringType) and not found.isUTF8BinaryCollation():
        value = F.collate(value, "UTF8_BINARY")  # in another collation, different keys may be equal
    if name in _SAME and isinstance(found, _SAME[name]):
        return value
    raise SchemaError(
        f"key column {column.name!r} of table {plan.table!r} has type {column.type}, but {found.simpleString()} in "
        "the DataFrame: cast it first, so that Spark can compute each row's tablet"
    )


def tablet_number(plan: LoadPlan, keys: dict[str, Column]) -> Column:
    """Return a Spark expression for the tablet of each row: its position in the plan's tablets.

    The value is -1 if no range partition covers the row.
    """
    schema = plan.schema
    number: Column = F.lit(0)
    combinations = 1
    for level in plan.partition_schema.hash_levels:
        if level.seed != DEFAULT_SEED:
            raise InvalidArgumentError(
                f"table {plan.table!r} uses the hash seed {level.seed}, but Spark supports only {DEFAULT_SEED}: write "
                "with df.write.format('nyala')"
            )
        columns = [keys[c.name] for c in plan.partition_schema.hash_columns(level, schema)]
        number = number * level.buckets + F.pmod(F.hash(*columns), F.lit(level.buckets))
        combinations *= level.buckets
    ranged = plan.partition_schema.range_columns(schema)
    bounds = sorted(
        {
            bound
            for tablet in plan.tablets
            for bound in (tablet.partition.range_lower, tablet.partition.range_upper)
            if bound is not None
        }
    )
    regions = len(bounds) + 1
    if ranged:
        codec = KeyCodec([column.type for column in ranged])
        values = [codec.decode_row(bound) for bound in bounds]
        row = [keys[column.name] for column in ranged]
        number = number * regions + _region(row, ranged, values, 0, len(values))
    ordinals = _ordinals(plan, combinations, bounds)
    if ordinals == list(range(len(ordinals))):
        return number.cast("int")
    return F.element_at(F.array(*[F.lit(ordinal) for ordinal in ordinals]), (number + 1).cast("int"))


def _ordinals(plan: LoadPlan, combinations: int, bounds: Sequence[bytes]) -> list[int]:
    """Return the position of the tablet in the plan, or -1, for each combination of buckets and range.

    combinations: the number of combinations of hash buckets. bounds: the sorted range bounds.
    """
    regions = len(bounds) + 1
    region_of = {bound: index + 1 for index, bound in enumerate(bounds)}
    ordinals = [-1] * (combinations * regions)
    for ordinal, tablet in enumerate(plan.tablets):
        number = 0
        for bucket, level in zip(
            tablet.partition.hash_buckets, plan.partition_schema.hash_levels, strict=True
        ):
            number = number * level.buckets + bucket
        lower, upper = tablet.partition.range_lower, tablet.partition.range_upper
        for region in range(
            0 if lower is None else region_of[lower], regions if upper is None else region_of[upper]
        ):
            ordinals[number * regions + region] = ordinal
    return ordinals


def _region(
    row: Sequence[Column], columns: Sequence[ColumnSchema], bounds: Sequence[Any], begin: int, end: int
) -> Column:
    """Return an expression for the number of `bounds` that are less than or equal to the row.

    It compares only the bounds in [begin, end). The bounds before `begin` are known to be at most
    the row, and the bounds from `end` on are known to be greater.
    """
    if begin == end:
        return F.lit(begin)
    middle = (begin + end) // 2
    above = _less(row, columns, bounds[middle])
    return F.when(above, _region(row, columns, bounds, begin, middle)).otherwise(
        _region(row, columns, bounds, middle + 1, end)
    )


def _less(row: Sequence[Column], columns: Sequence[ColumnSchema], bound: Sequence[Any]) -> Column:
    """Return the expression `row < bound`, which compares column by column."""
    last = len(columns) - 1
    found: Column | None = None
    for index in range(last, -1, -1):
        value = _literal(columns[index], bound[index])
        less = row[index] < value
        found = less if found is None else less | ((row[index] == value) & found)
    assert found is not None
    return found


def _literal(column: ColumnSchema, value: Any) -> Column:
    """Return a Spark literal for a column's value in a decoded range bound (`KeyCodec.decode_row`)."""
    name = column.type.name
    if name == "date":
        return F.date_from_unix_date(F.lit(int(value)))
    if name == "timestamp":
        return F.timestamp_micros(F.lit(int(value)))
    if name in _INTEGERS:
        return F.lit(int(value)).cast(_INTEGERS[name])
    if name == "decimal":
        exact = decimal.Decimal(int(value)).scaleb(-int(column.type.scale or 0), _EXACT)
        return F.lit(str(exact)).cast(f"decimal({column.type.precision},{column.type.scale})")
    if name == "binary":
        return F.lit(bytearray(value))
    return F.lit(value if isinstance(value, str) else bytes(value).decode())


def single_hash(plan: LoadPlan) -> list[str] | None:
    """Return the hash columns if the table has one hash level and no ranges. Otherwise return None.

    Spark's own hash partitioning then gives the tablet.
    """
    levels = plan.partition_schema.hash_levels
    if len(levels) != 1 or plan.partition_schema.range_column_ids or levels[0].seed != DEFAULT_SEED:
        return None
    return [column.name for column in plan.partition_schema.hash_columns(levels[0], plan.schema)]
