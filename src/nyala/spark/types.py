"""Maps Spark's types to Nyala's, and casts Arrow batches to the exact schema that Spark expects.

    Nyala                      Arrow (canonical)          Spark
    bool                       bool                       boolean
    int8 int16 int32 int64     int8 … int64               tinyint smallint int bigint
    date                       date32                     date
    timestamp                  timestamp[us, tz=UTC]      timestamp
    float double               float double               float double
    decimal(p,s)               decimal128(p,s)            decimal(p,s)
    varchar(n) string          string                     string
    binary                     binary                     binary

Spark reads the bytes of an Arrow batch without checking them. So the schema of a batch must be
exactly the one that Spark expects: order, names, types, time zone, and each field's nullable flag.
Spark 4.2 and later rejects a wrong first batch. In other batches, and in older versions, Spark
would read wrong memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

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

from nyala.api.change_feed import DROPPED_RANGES, RESTORED_RANGES
from nyala.errors import ColumnNotFoundError, SchemaError
from nyala.schema.alteration import widens
from nyala.schema.types import parse_type

__all__ = [
    "arrow_schema",
    "check_schema",
    "check_unaltered",
    "conform",
    "identity_of",
    "is_as_read",
    "spark_schema",
]

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


# A schema's identity: the options of its table, which Spark's catalogue would lose. Its metadata
# key in the first field.
IDENTITY: Final = "nyala"
# The key in the identity for the names and types of all fields when the schema was made.
COLUMNS: Final = "made-with"
# Spark's own metadata key for the declared type of a column. Spark removes the key when it adapts
# the columns of a query to the target table of a write. So a field with this key is from a read.
_AS_READ: Final = "__CHAR_VARCHAR_TYPE_STRING"


def spark_schema(schema: pa.Schema, identity: Mapping[str, str] | None = None) -> StructType:
    """Convert the schema of a Nyala table (canonical Arrow types) to a Spark schema.

    identity: options that identify the table, such as path and name. They are stored in the
    metadata of the first field, which Spark's catalogue keeps. The metadata of a change feed's
    schema is stored in the last field, because Spark's schemas have no metadata.
    """
    fields = [StructField(f.name, _spark_type(f.type), nullable=f.nullable) for f in schema]
    ranges = {
        key: text for key, text in (schema.metadata or {}).items() if key in (DROPPED_RANGES, RESTORED_RANGES)
    }
    if ranges:
        fields[-1].metadata = {key.decode(): text.decode() for key, text in ranges.items()}
    if identity is not None and fields:
        kept = {**identity, COLUMNS: _columns_text(StructType(fields))}
        fields[0].metadata = {
            IDENTITY: json.dumps(kept, sort_keys=True),
            _AS_READ: _declared(fields[0].dataType),
        }
    return StructType(fields)


def _declared(type: DataType) -> str:
    """Return Spark's name of the type, such as "bigint".

    A timestamp is "timestamp_ltz", because "timestamp" means another type in some sessions.
    """
    return "timestamp_ltz" if isinstance(type, TimestampType) else str(type.simpleString())


def is_as_read(schema: StructType) -> bool:
    """Whether this schema is that of rows which Spark read from a Nyala table.

    The metadata of such a schema has two entries: Nyala's, with the options of the table, and the
    metadata key `__CHAR_VARCHAR_TYPE_STRING` of Spark, with a column's type. When Spark writes to a
    target table, it removes the second entry from the target's schema. So the result is False for
    the schema of a target table. It is False also for a schema without metadata.
    """
    return any(IDENTITY in (field.metadata or {}) and _AS_READ in field.metadata for field in schema.fields)


def identity_of(schema: StructType) -> dict[str, str] | None:
    """Return the table's options that `spark_schema` stored in a field, or None if no field has them."""
    for field in schema.fields:
        text = (field.metadata or {}).get(IDENTITY)
        if isinstance(text, str):
            found: dict[str, str] = json.loads(text)
            return found
    return None


def check_unaltered(schema: StructType) -> None:
    """Raise SchemaError if a table of Spark's catalogue has other columns than at its CREATE TABLE.

    ALTER TABLE changes only Spark's catalogue, and does not call the data source. So Nyala checks
    the columns when a statement uses the table.
    """
    identity = identity_of(schema) or {}
    if identity.get(COLUMNS, made := _columns_text(schema)) != made:
        raise SchemaError(
            f"the columns of table {identity.get('table')!r} in Spark's catalogue were altered: ALTER TABLE in Spark "
            "does not change the store. Alter it with Nyala (`with table.alter() as a:`), then in Spark run DROP "
            "TABLE (which keeps the rows in the store) and CREATE TABLE … USING nyala OPTIONS (…) again"
        )


def _columns_text(schema: StructType) -> str:
    return json.dumps([[field.name, field.dataType.simpleString()] for field in schema.fields])


def _spark_type(type: pa.DataType) -> DataType:
    if pa.types.is_dictionary(type):  # Spark has no dictionary type; `conform` decodes the values
        type = type.value_type
    if pa.types.is_decimal(type):
        return DecimalType(type.precision, type.scale)
    return _SPARK_TYPE[type]


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark requires for batches of `schema`.

    The result is the same in every time zone.
    """
    return to_arrow_schema(schema, timezone="UTC")


def check_schema(requested: StructType, table: str, schema: pa.Schema) -> None:
    """Check the user's schema (`.schema(...)`), which may only omit, reorder and widen columns.

    Raises ColumnNotFoundError, or SchemaError with the column's type and the requested type.
    """
    requested_types = arrow_schema(requested)
    for field in requested.fields:
        if field.name not in schema.names:
            raise ColumnNotFoundError(
                f"table {table!r} has no column {field.name!r}; it has {', '.join(schema.names)}"
            )
        own = schema.field(field.name)
        found = _spark_type(own.type)
        if found != field.dataType and not _widens(own.type, requested_types.field(field.name).type):
            raise SchemaError(
                f"column {field.name!r} of table {table!r} has type {found.simpleString()} and cannot be read as "
                f"{field.dataType.simpleString()}: read it with its own type, then cast in Spark"
            )
        if own.nullable and not field.nullable:
            raise SchemaError(
                f"column {field.name!r} of table {table!r} is nullable and cannot be read as NOT NULL"
            )


def _widens(own: pa.DataType, requested: pa.DataType) -> bool:
    try:
        return widens(parse_type(own), parse_type(requested))
    except SchemaError:  # Nyala does not have this type
        return False


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Cast a batch to exactly `schema`, without copying columns that have the type already."""
    columns = [batch.column(field.name) for field in schema]
    return pa.RecordBatch.from_arrays(
        [c if c.type == f.type else c.cast(f.type) for c, f in zip(columns, schema, strict=True)],
        schema=schema,
    )
