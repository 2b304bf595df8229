"""Decimals that came as their digits are what they were."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql.types import DecimalType, LongType, StringType, StructType

from nyala.spark.digits import short_decimals, with_digits, with_points

PRICE = pa.decimal128(15, 2)


@pytest.mark.parametrize("begin", [0, 3])
def test_digits_get_their_point_again(begin: int) -> None:
    """Negative ones, NULLs, the longest; also behind rows that a slice cut off."""
    digits = [7, 8, 9, 0, -1, 12345, None, -(10**18) + 1, 10**18 - 1, None]
    given = pa.RecordBatch.from_pydict({"n": digits, "price": digits, "k": digits}).slice(begin)
    found = with_points(given, {"price": pa.decimal128(18, 2), "n": pa.decimal128(18, 0)})
    wanted = [None if n is None else Decimal(n).scaleb(-2) for n in digits[begin:]]
    assert found.column("price").to_pylist() == wanted
    assert found.column("n").to_pylist() == digits[begin:]
    assert found.schema == pa.schema(
        {"n": pa.decimal128(18, 0), "price": pa.decimal128(18, 2), "k": pa.int64()}
    )
    found.validate(full=True)


def test_what_came_as_a_decimal_stays_one() -> None:
    """Spark could not be told, as with Connect."""
    given = pa.RecordBatch.from_pydict({"price": pa.array([Decimal("1.50"), None], PRICE)})
    assert with_points(given, {"price": PRICE}) == given


def test_what_is_a_long_integer_in_a_row_of_sparks() -> None:
    schema = pa.schema({"a": pa.decimal128(18, 2), "b": pa.decimal128(19, 2), "c": pa.int64()})
    assert short_decimals(schema) == {"a": pa.decimal128(18, 2)}


def test_a_schema_with_digits_for_short_decimals() -> None:
    """NULLs may stand where they could before; where two names are equal to Spark, neither could be named."""
    given = (
        StructType().add("k", StringType(), False).add("p", DecimalType(18, 2)).add("q", DecimalType(19, 2))
    )
    wanted = StructType().add("k", StringType(), False).add("p", LongType()).add("q", DecimalType(19, 2))
    assert with_digits(given) == wanted
    twice = StructType().add("p", DecimalType(9, 2), False).add("P", DecimalType(9, 2), False)
    assert with_digits(twice) == twice
