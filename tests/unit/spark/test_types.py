"""Spark's types and Nyala's: the exact schema in both directions, without a Spark session."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from nyala.errors import ColumnNotFoundError, SchemaError
from nyala.spark.types import arrow_schema, check_schema, conform, spark_schema

# The thirteen types as a scan returns them. varchar and string are the same Arrow type.
ALL = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        pa.field("b", pa.bool_()),
        pa.field("i8", pa.int8()),
        pa.field("i16", pa.int16()),
        pa.field("i32", pa.int32()),
        pa.field("d", pa.date32()),
        pa.field("t", pa.timestamp("us", tz="UTC")),
        pa.field("f", pa.float32()),
        pa.field("g", pa.float64()),
        pa.field("n4", pa.decimal128(9, 2)),
        pa.field("n16", pa.decimal128(38, 10)),
        pa.field("s", pa.string()),
        pa.field("y", pa.binary()),
    ]
)


def test_the_schema_is_exactly_the_one_that_spark_expects() -> None:
    """Spark reads the bytes of batches. A wrong type, time zone or nullable flag would be an error
    or wrong values.
    """
    schema = spark_schema(ALL)
    assert schema.simpleString() == (
        "struct<k:bigint,b:boolean,i8:tinyint,i16:smallint,i32:int,d:date,t:timestamp,f:float,g:double,"
        "n4:decimal(9,2),n16:decimal(38,10),s:string,y:binary>"
    )
    assert arrow_schema(schema).equals(ALL)
    assert [f.nullable for f in schema.fields] == [f.nullable for f in ALL]


def test_conform_does_not_copy_equal_columns() -> None:
    """`conform` changes only the order and the nullable flags, and copies no equal column."""
    batch = pa.record_batch({"s": ["a", None], "k": pa.array([1, 2], pa.int64())})
    expected = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("s", pa.string())])
    found = conform(batch, expected)
    assert found.schema.equals(expected)
    assert found.column("k").buffers()[1].address == batch.column("k").buffers()[1].address


def test_large_strings_become_strings() -> None:
    """Spark would read large strings as other memory."""
    batch = pa.record_batch({"s": pa.array(["a", "b"], pa.large_string())})
    expected = pa.schema([pa.field("s", pa.string())])
    assert conform(batch, expected).schema.equals(expected)


def test_a_given_schema_may_omit_reorder_and_widen_columns() -> None:
    """Other changes of a type are errors that name the column."""
    check_schema(StructType([StructField("s", StringType()), StructField("k", LongType())]), "t", ALL)
    with pytest.raises(
        SchemaError, match="column 'k' of table 't' has type bigint and cannot be read as int"
    ):
        check_schema(StructType([StructField("k", IntegerType())]), "t", ALL)
    check_schema(StructType([StructField("i8", LongType()), StructField("f", DoubleType())]), "t", ALL)
    with pytest.raises(SchemaError, match="'g' of table 't' has type double and cannot be read as float"):
        check_schema(StructType([StructField("g", FloatType())]), "t", ALL)
    with pytest.raises(SchemaError, match="'s' of table 't' is nullable and cannot be read as NOT NULL"):
        check_schema(StructType([StructField("s", StringType(), nullable=False)]), "t", ALL)
    with pytest.raises(ColumnNotFoundError, match="no column 'z'"):
        check_schema(StructType([StructField("z", IntegerType())]), "t", ALL)


def test_conform_keeps_all_values() -> None:
    row = {
        "k": 2**63 - 1,
        "b": True,
        "i8": -128,
        "i16": 32767,
        "i32": -(2**31),
        "d": dt.date(1, 1, 1),
        "t": dt.datetime(2013, 1, 1, tzinfo=dt.UTC),
        "f": 0.5,
        "g": 1e300,
        "n4": Decimal("1234567.89"),
        "n16": Decimal("1.0000000001"),
        "s": "ä\0b",
        "y": b"\xff\0",
    }
    batch = pa.RecordBatch.from_pylist([row], schema=ALL)
    assert conform(batch, arrow_schema(spark_schema(ALL))).to_pylist() == [row]
