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

from nyala.api.change_feed import DROPPED_RANGES
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


# The key under which the first field of a schema says which table it is of.
IDENTITY: Final = "nyala"
# In the identity: names and types of all fields, as they were when the schema was made.
COLUMNS: Final = "made-with"
# Spark's own key for the type that a column was declared with; here it is the type that the column has. Spark takes it
# away where it makes columns of a query those of the table that they are written to, and nowhere else.
_AS_READ: Final = "__CHAR_VARCHAR_TYPE_STRING"


def spark_schema(schema: pa.Schema, identity: Mapping[str, str] | None = None) -> StructType:
    """The schema of a Nyala table (canonical Arrow types) as Spark's.

    identity: options that Spark's catalogue would lose: it keeps the metadata of fields, so the first has them; that
              they are those of what is read, `is_as_read` tells. What a change feed says in its metadata has the last
              field, as Spark's schemas have none themselves.
    """
    fields = [StructField(f.name, _spark_type(f.type), nullable=f.nullable) for f in schema]
    if DROPPED_RANGES in (schema.metadata or {}):
        fields[-1].metadata = {DROPPED_RANGES.decode(): schema.metadata[DROPPED_RANGES].decode()}
    if identity is not None and fields:
        kept = {**identity, COLUMNS: _columns_text(StructType(fields))}
        fields[0].metadata = {
            IDENTITY: json.dumps(kept, sort_keys=True),
            _AS_READ: _declared(fields[0].dataType),
        }
    return StructType(fields)


def _declared(type: DataType) -> str:
    """The type as text that means it in every session: `timestamp` is what a setting says."""
    return "timestamp_ltz" if isinstance(type, TimestampType) else str(type.simpleString())


def is_as_read(schema: StructType) -> bool:
    """Whether the identity came with the rows, from where they were read, and not from a table that they go to."""
    return any(IDENTITY in (field.metadata or {}) and _AS_READ in field.metadata for field in schema.fields)


def identity_of(schema: StructType) -> dict[str, str] | None:
    """What `spark_schema` was given as identity, wherever the field went meanwhile; None: the schema has none."""
    for field in schema.fields:
        text = (field.metadata or {}).get(IDENTITY)
        if isinstance(text, str):
            found: dict[str, str] = json.loads(text)
            return found
    return None


def check_unaltered(schema: StructType) -> None:
    """Check the columns of a table of Spark's catalogue. For ALTER TABLE Spark changes its own catalogue only and does
    not call the data source, so a changed column is found here, at the next use of the table.

    Raises: SchemaError when the columns are not those of the CREATE TABLE.
    """
    identity = identity_of(schema) or {}
    if identity.get(COLUMNS, made := _columns_text(schema)) != made:
        raise SchemaError(
            f"Spark's catalogue has other columns for table {identity.get('table')!r} than when its CREATE TABLE ran: "
            "ALTER TABLE in Spark changes Spark's catalogue and nothing in the store. Change the table "
            "with Nyala, `with "
            "table.alter() as a:`, then in Spark DROP TABLE (which keeps the rows in the store) and "
            "CREATE TABLE … USING "
            "nyala OPTIONS (…) again"
        )


def _columns_text(schema: StructType) -> str:
    return json.dumps([[field.name, field.dataType.simpleString()] for field in schema.fields])


def _spark_type(type: pa.DataType) -> DataType:
    if pa.types.is_dictionary(type):  # Spark has none: `conform` gives the values
        type = type.value_type
    if pa.types.is_decimal(type):
        return DecimalType(type.precision, type.scale)
    return _SPARK_TYPE[type]


def arrow_schema(schema: StructType) -> pa.Schema:
    """What a batch must look like for Spark to take it as `schema`. The session's time zone does not matter."""
    return to_arrow_schema(schema, timezone="UTC")


def check_schema(wanted: StructType, table: str, schema: pa.Schema) -> None:
    """A schema that the user gave (`.schema(...)`) may leave columns out, reorder and widen them; nothing else.

    Raises: ColumnNotFoundError, SchemaError naming column, wanted and found.
    """
    asked = arrow_schema(wanted)
    for field in wanted.fields:
        if field.name not in schema.names:
            raise ColumnNotFoundError(
                f"table {table!r} has no column {field.name!r}; it has {', '.join(schema.names)}"
            )
        own = schema.field(field.name)
        found = _spark_type(own.type)
        if found != field.dataType and not _widens(own.type, asked.field(field.name).type):
            raise SchemaError(
                f"column {field.name!r} of table {table!r} is {found.simpleString()} and cannot be read as "
                f"{field.dataType.simpleString()}: read it as it is, then cast in Spark"
            )
        if own.nullable and not field.nullable:
            raise SchemaError(
                f"column {field.name!r} of table {table!r} may hold NULL and cannot be read as NOT NULL"
            )


def _widens(own: pa.DataType, asked: pa.DataType) -> bool:
    try:
        return widens(parse_type(own), parse_type(asked))
    except SchemaError:  # a type that no column of ours has
        return False


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The same columns under exactly `schema`; costs nothing where the types are equal already."""
    columns = [batch.column(field.name) for field in schema]
    return pa.RecordBatch.from_arrays(
        [c if c.type == f.type else c.cast(f.type) for c, f in zip(columns, schema, strict=True)],
        schema=schema,
    )
