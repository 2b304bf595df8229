"""The thirteen types: names, ranges, widths, Arrow types and canonical values."""

from __future__ import annotations

import datetime as dt
import pickle
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pandas.core.arrays.arrow.extension_types import ArrowPeriodType

from nyala.errors import SchemaError
from nyala.schema.types import TYPE_NAMES, ColumnType, from_canonical, parse_type, to_canonical

UTC = dt.UTC

ALL_TYPES = [
    *("bool", "int8", "int16", "int32", "int64", "date", "timestamp", "float", "double"),
    *("decimal(9,0)", "decimal(18,6)", "decimal(38,38)", "varchar(40)", "string", "binary"),
]


def test_there_are_thirteen_types() -> None:
    assert len(TYPE_NAMES) == 13
    assert {parse_type(name).name for name in ALL_TYPES} == set(TYPE_NAMES)


@pytest.mark.parametrize("name", ALL_TYPES)
def test_the_text_of_a_type_is_parsed_to_the_same_type(name: str) -> None:
    """The text of a type is parsed in upper and lower case, and with spaces."""
    assert str(parse_type(name)) == name
    assert parse_type(f" {name.upper().replace(',', ' , ')} ") == parse_type(name)
    assert parse_type(parse_type(name)) == parse_type(name)
    assert pickle.loads(pickle.dumps(parse_type(name))) == parse_type(name)


@pytest.mark.parametrize("name", ALL_TYPES)
def test_the_arrow_type_is_parsed_to_the_same_type(name: str) -> None:
    """The Arrow type of each type gives the same type, except varchar, which becomes string."""
    expected = "string" if name.startswith("varchar") else name
    assert str(parse_type(parse_type(name).arrow)) == expected
    assert str(parse_type(str(parse_type(name).arrow))) == expected


@pytest.mark.parametrize(
    ("name", "width", "in_key"),
    [
        *[("bool", 1, False), ("int8", 1, True), ("int16", 2, True), ("int32", 4, True), ("int64", 8, True)],
        *[("date", 4, True), ("timestamp", 8, True), ("float", 4, False), ("double", 8, False)],
        *[("decimal(1,0)", 4, True), ("decimal(9,9)", 4, True), ("decimal(10,0)", 8, True)],
        *[("decimal(18,2)", 8, True), ("decimal(19,0)", 16, True), ("decimal(38,0)", 16, True)],
        *[("varchar(1)", None, True), ("string", None, True), ("binary", None, True)],
    ],
)
def test_widths_and_types_of_keys(name: str, width: int | None, in_key: bool) -> None:
    """Decimals take 4, 8 or 16 bytes. A key cannot have bool, float and double."""
    assert parse_type(name).storage_width_bytes == width
    assert parse_type(name).key_allowed is in_key
    assert parse_type(name).is_variable is (width is None)


@pytest.mark.parametrize(
    ("name", "least", "greatest"),
    [
        *[("int8", -128, 127), ("int16", -32768, 32767), ("int32", -(2**31), 2**31 - 1)],
        *[("int64", -(2**63), 2**63 - 1), ("timestamp", -(2**63), 2**63 - 1)],
        *[("date", -719162, 2932896), ("decimal(5,2)", -99999, 99999)],
        ("decimal(38,0)", -(10**38) + 1, 10**38 - 1),
        *[("string", None, None), ("double", None, None), ("bool", None, None), ("binary", None, None)],
    ],
)
def test_least_and_greatest_values(name: str, least: int | None, greatest: int | None) -> None:
    assert (parse_type(name).value_min, parse_type(name).value_max) == (least, greatest)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        *[(pa.large_string(), "string"), (pa.string_view(), "string"), (pa.large_binary(), "binary")],
        *[(pa.binary_view(), "binary"), (pa.binary(16), "binary"), (pa.date64(), "date")],
        *[(pa.timestamp("ns"), "timestamp"), (pa.timestamp("s", tz="Europe/Berlin"), "timestamp")],
        *[(pa.dictionary(pa.int8(), pa.large_string()), "string"), (pa.decimal256(38, 3), "decimal(38,3)")],
        *[(pa.run_end_encoded(pa.int32(), pa.int64()), "int64"), (pa.uuid(), "binary")],
        *[
            ("timestamp[ns, tz=UTC]", "timestamp"),
            ("timestamp[us]", "timestamp"),
            ("decimal128(5, 2)", "decimal(5,2)"),
        ],
        *[("float64", "double"), ("float32", "float"), ("boolean", "bool"), ("bigint", "int64")],
        *[
            ("str", "string"),
            ("bytes", "binary"),
            ("unixtime_micros", "timestamp"),
            ("decimal(7)", "decimal(7,0)"),
        ],
    ],
)
def test_names_of_other_systems_are_types(spec: object, expected: str) -> None:
    assert str(parse_type(spec)) == expected


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        *[
            ("int", "int32 or int64"),
            ("uint64", r"decimal\(20,0\)"),
            (pa.uint8(), "int16"),
            (pa.uint32(), "int64"),
        ],
        *[("strnig", "did you mean string"), ("decimal", r"decimal\(15,2\)"), ("varchar", r"varchar\(40\)")],
        *[
            ("decimal(39,0)", "1 to 38"),
            ("decimal(0,0)", "1 to 38"),
            ("decimal(5,6)", "0 to 5"),
            ("varchar(0)", "1 to 65535"),
        ],
        *[
            ("varchar(65536)", "1 to 65535"),
            (pa.decimal256(76, 0), "1 to 38"),
            (pa.decimal128(5, -1), "0 to 5"),
        ],
        *[
            (pa.float16(), "float"),
            (pa.list_(pa.int8()), "use one column per value"),
            (pa.null(), "the types are"),
        ],
        *[(pa.struct([]), "lists, maps and structs are not supported"), (pa.duration("s"), "microseconds")],
        *[
            ("list<int64>", "with JSON"),
            ("map<string,int32>", "with JSON"),
            (pa.time64("us"), "microseconds"),
        ],
        (ArrowPeriodType("M"), r"convert the pandas periods.*to_timestamp\(\)"),
        *[(int, "pyarrow.DataType"), (5, "name such as")],
    ],
)
def test_an_unknown_type_is_an_error_with_advice(spec: object, says: str) -> None:
    with pytest.raises(SchemaError, match=f"(?i){says}"):
        parse_type(spec)


def test_length_and_precision_belong_to_their_types() -> None:
    """A varchar needs a length, and an int64 must not have one."""
    for wrong in [("int64", 5, None, None), ("int64", None, None, 5), ("varchar", None, None, None)]:
        with pytest.raises(SchemaError):
            ColumnType(*wrong)


@pytest.mark.parametrize(
    ("name", "value", "canonical"),
    [
        ("date", dt.date(1, 1, 1), -719162),
        ("date", dt.date(9999, 12, 31), 2932896),
        ("timestamp", dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), -1),
        ("timestamp", dt.datetime(1, 1, 1, tzinfo=UTC), -62135596800000000),
        ("timestamp", 2**63 - 1, 2**63 - 1),
        ("decimal(5,2)", Decimal("-999.99"), -99999),
        ("decimal(38,38)", Decimal("0." + "9" * 38), 10**38 - 1),
        ("decimal(38,0)", Decimal("9" * 38), 10**38 - 1),
        ("string", "a", "a"),
        ("bool", None, None),
    ],
)
def test_canonical_values_are_exact(name: str, value: object, canonical: object) -> None:
    assert to_canonical(parse_type(name), value) == canonical
    assert from_canonical(parse_type(name), canonical) == value


def test_naive_datetimes_are_utc() -> None:
    assert to_canonical(parse_type("timestamp"), dt.datetime(1970, 1, 1, 0, 0, 1)) == 1_000_000


@given(st.integers(-(2**63), 2**63 - 1))
def test_random_timestamps_are_equal_after_the_python_form(microseconds: int) -> None:
    """Random timestamps, also after the year 9999, are unchanged after a conversion to Python."""
    timestamp = parse_type("timestamp")
    assert to_canonical(timestamp, from_canonical(timestamp, microseconds)) == microseconds


@given(st.integers(1, 38), st.data())
def test_random_decimals_are_equal_after_the_python_form(precision: int, data: st.DataObject) -> None:
    """All 38 digits are unchanged after a conversion to Python, with any decimal context."""
    scale = data.draw(st.integers(0, precision))
    unscaled = data.draw(st.integers(1 - 10**precision, 10**precision - 1))
    type_ = ColumnType("decimal", precision=precision, scale=scale)
    value = from_canonical(type_, unscaled)
    assert to_canonical(type_, value) == unscaled
    assert -value.as_tuple().exponent == scale
