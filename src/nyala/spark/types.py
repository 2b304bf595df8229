"""Spark's types and ours, and Arrow batches in exactly the schema that Spark expects.

    Nyala                      Arrow (canonical)          Spark
    bool                       bool                       boolean
    int8 int16 int32 int64     int8 … int64               tinyint smallint int bigint
    date                       date32                     date
    timestamp                  timestamp[us, tz=UTC]      timestamp
    float double               float double               float double
    decimal(p,s)               decimal128(p,s)            decimal(p,s)
    varchar(n) string          string                     string
    binary                     binary                     binary

Spark takes an Arrow batch as the bytes that they are, so the schema must be equal to the letter: order, names,
types, time zone, and each field's nullable flag (Spark >= 4.2 refuses the first batch otherwise; before, and for
later batches, it reads wrong memory).
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from nyala.errors import ColumnNotFoundError, SchemaError

__all__ = ["arrow_schema", "check_schema", "conform", "spark_schema"]

_SPARK_TYPE: dict[pa.DataType, DataType] = {
    pa.bool_(): BooleanType(),
    pa.int8(): ByteType(),
    pa.int16(): ShortType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.date32(): DateType(),
    pa.timestamp("us", tz="UTC"): TimestampType(),
    pa.float32(): FloatType(),
    pa.float64(): DoubleType(),
    pa.string(): StringType(),
    pa.binary(): BinaryType(),
}


def spark_schema(schema: pa.Schema) -> StructType:
    """The schema of a Nyala table (canonical Arrow types) as Spark's."""
    return StructType([StructField(f.name, _spark_type(f.type), nullable=f.nullable) for f in schema])


def _spark_type(type: pa.DataType) -> DataType:
    if pa.types.is_decimal128(type):
        return DecimalType(type.precision, type.scale)
    return _SPARK_TYPE[type]


def arrow_schema(schema: StructType) -> pa.Schema:
    """What a batch must look like for Spark to take it as `schema`. The session's time zone does not matter."""
    return to_arrow_schema(schema, timezone="UTC")


def check_schema(wanted: StructType, table: str, schema: pa.Schema) -> None:
    """A schema that the user gave (`.schema(...)`) may leave columns out and reorder them, not retype them.

    Raises: ColumnNotFoundError, SchemaError naming column, wanted and found.
    """
    for field in wanted.fields:
        if field.name not in schema.names:
            raise ColumnNotFoundError(
                f"table {table!r} has no column {field.name!r}; it has {', '.join(schema.names)}"
            )
        found = _spark_type(schema.field(field.name).type)
        if found != field.dataType:
            raise SchemaError(
                f"column {field.name!r} of table {table!r} is {found.simpleString()} and cannot be read as "
                f"{field.dataType.simpleString()}: read it as it is, then cast in Spark"
            )


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The same columns under exactly `schema`; costs nothing where the types are equal already."""
    columns = [batch.column(field.name) for field in schema]
    return pa.RecordBatch.from_arrays(
        [c if c.type == f.type else c.cast(f.type) for c, f in zip(columns, schema, strict=True)],
        schema=schema,
    )
