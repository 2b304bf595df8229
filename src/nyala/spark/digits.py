"""Decimals as their digits, on the way from Spark's rows into Arrow.

    Spark's row             what is sent       what our side has again
    decimal(15,2)  37.00    bigint  3700       decimal128(15,2)  37.00

Spark makes a BigDecimal of each decimal that it writes into a column of Arrow's, though a decimal of up to 18 digits is
a long integer in its rows. lineitem has four of them among 16 columns, and they are nearly half of what it costs to
hand its rows to Python. `UnscaledValue`, which Spark uses for sums of decimals, gives that integer; it has no name in
SQL, so it is reached by py4j.

Left out: longer decimals; Spark Connect, which cannot name the expression: there decimals travel as they are.
Source: org.apache.spark.sql.execution.arrow.ArrowWriter, org.apache.spark.sql.catalyst.expressions.UnscaledValue.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType

from nyala.spark.arrays import LONG_DIGITS
from nyala.spark.cluster import is_classic

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["as_digits", "short_decimals", "with_points"]


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
    if not names or not is_classic(df.sparkSession):
        return {}
    from pyspark.sql.classic.column import Column as ClassicColumn

    unscaled, expressions = _classes(df.sparkSession._jvm)
    found: dict[str, Column] = {}
    for name in names:
        column: Any = F.col("`" + name.replace("`", "``") + "`")
        found[name] = ClassicColumn(expressions.column(unscaled(expressions.expression(column._jc))))
    return found


@functools.lru_cache(maxsize=1)
def _classes(jvm: Any) -> tuple[Any, Any]:
    """Found once: py4j asks the JVM for each part of a name."""
    sql = jvm.org.apache.spark.sql
    return sql.catalyst.expressions.UnscaledValue, sql.classic.ExpressionUtils


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
