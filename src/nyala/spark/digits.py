"""Decimals as their digits, between Spark's rows and Arrow.

    Spark's row             what is sent       what our side has again                    as_digits, with_points
    decimal(15,2)  37.00    bigint  3700       decimal128(15,2)  37.00

    our side                what is sent       Spark's row                                with_digits, made_of_digits
    decimal64(15,2)  37.00  array<bigint>      decimal(15,2)  37.00

Spark makes a BigDecimal of each decimal that it writes into a column of Arrow's, though a decimal of up to 18 digits is
a long integer in its rows. lineitem has four of them among 16 columns, and they are nearly half of what it costs to
hand its rows to Python. `UnscaledValue`, which Spark uses for sums of decimals, gives that integer; it has no name in
SQL, so it is reached by py4j. So is `MakeDecimal`, which makes the decimal of the integer again: of numbers that come
as arrays (`arrays`) within the loop that unrolls them.

Left out: longer decimals; Spark Connect, which cannot name the expression, and a Spark that is not known (J1): there
decimals travel as they are.
Source: org.apache.spark.sql.execution.arrow.ArrowWriter, org.apache.spark.sql.catalyst.expressions.UnscaledValue.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType, LongType, StructField, StructType

from nyala import compute as pc
from nyala.spark.arrays import LONG_DIGITS
from nyala.spark.jvm import is_known, jvm_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["as_digits", "made_of_digits", "short_decimals", "with_digits", "with_points"]


def as_digits(
    df: DataFrame, more: Mapping[str, Column] | None = None, leave: Collection[str] = ()
) -> DataFrame:
    """The frame with decimals of up to LONG_DIGITS digits as whole numbers, if Spark can be told so.

    more:  columns to be added behind, so that Spark looks at the frame once.
    leave: columns that stay as they are.
    """
    added = dict(more or {})
    try:
        made = {**_digits(df, leave), **added}
        return df.withColumns(made) if made else df
    except Exception:  # whatever py4j says of what another version has not; names that Spark holds for equal
        return df.withColumns(added) if added else df


def _digits(df: DataFrame, leave: Collection[str]) -> dict[str, Column]:
    names = [f.name for f in df.schema.fields if _is_short(f.dataType) and f.name not in leave]
    if not names or not is_known(df.sparkSession):
        return {}
    from pyspark.sql.classic.column import Column as ClassicColumn

    jvm = jvm_of(df.sparkSession)
    found: dict[str, Column] = {}
    for name in names:
        column: Any = F.col("`" + name.replace("`", "``") + "`")
        digits = jvm.UnscaledValue(jvm.ExpressionUtils.expression(column._jc))
        found[name] = ClassicColumn(jvm.ExpressionUtils.column(digits))
    return found


def with_digits(schema: StructType) -> StructType:
    """The schema with short decimals as whole numbers, if `made_of_digits` can have them back; else as it is."""
    lowered = {field.name.lower() for field in schema.fields}
    if len(lowered) < len(schema.fields):
        return schema  # names that Spark holds for equal: it could not tell which one is meant
    return StructType(
        [
            StructField(f.name, LongType() if _is_short(f.dataType) else f.dataType, f.nullable)
            for f in schema.fields
        ]
    )


def made_of_digits(frame: DataFrame, whole: StructType, schema: StructType) -> DataFrame:
    """A frame of the columns `whole`, which `with_digits` made of `schema`, with the decimals in their places.

    In a session that is known; what raises NOT_AS_KNOWN is for who calls to catch (J1). It is cheaper for Spark than to
    take decimals from an array, where it makes each one by a call of its own.
    """
    changed = [f for f, now in zip(schema.fields, whole.fields, strict=True) if f.dataType != now.dataType]
    if not changed:
        return frame
    from pyspark.sql.classic.column import Column as ClassicColumn

    jvm = jvm_of(frame.sparkSession)
    made: dict[str, Column] = {}
    for field in changed:
        assert isinstance(field.dataType, DecimalType)
        column: Any = F.col("`" + field.name.replace("`", "``") + "`")
        digits = jvm.ExpressionUtils.expression(column._jc)
        # False: a number with more digits is an error, and so the column is NULL only where the number is.
        decimal = jvm.MakeDecimal(digits, field.dataType.precision, field.dataType.scale, False)
        made[field.name] = ClassicColumn(jvm.ExpressionUtils.column(decimal))
    return frame.withColumns(made)


def _is_short(type: Any) -> bool:
    return isinstance(type, DecimalType) and type.precision <= LONG_DIGITS


def short_decimals(schema: pa.Schema) -> dict[str, pa.DataType]:
    """The columns of a frame, by name, that `as_digits` may have changed: with their own types."""
    return {f.name: f.type for f in schema if pa.types.is_decimal(f.type) and f.type.precision <= LONG_DIGITS}


def with_points(batch: pa.RecordBatch, types: Mapping[str, pa.DataType]) -> pa.RecordBatch:
    """The batch with those columns of `types` that came as whole numbers as what they were. Cost: a copy of them."""
    arrays = [
        _with_point(column, types[name]) if name in types and pa.types.is_int64(column.type) else column
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def _with_point(column: pa.Array, type: pa.DataType) -> pa.Array:
    digits = np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column)]
    words = np.empty((len(column), 2), np.int64)
    words[:, 0] = digits
    np.right_shift(digits, 63, out=words[:, 1])  # the sign, in all of the upper half
    valid = pc.is_valid(column).buffers()[1] if column.null_count else None
    return pa.Array.from_buffers(type, len(column), [valid, pa.py_buffer(words)])
