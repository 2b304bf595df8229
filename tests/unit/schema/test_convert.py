"""Conversion of users' data: a value keeps its meaning, or its row fails with a message."""

# ruff: noqa: E501  (a table of cases is read as a table)

from __future__ import annotations

import datetime as dt
import enum
import functools
import math
import uuid
import warnings
import zoneinfo
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nyala.errors import (
    INVALID_UTF8,
    NULL,
    OUT_OF_RANGE,
    VALUE_TOO_LARGE,
    ColumnNotFoundError,
    InvalidArgumentError,
    SchemaError,
)
from nyala.schema.conversion.cast import OutOfRangeError, cast_value
from nyala.schema.conversion.convert import Converted, convert
from nyala.schema.schema import Schema, build_schema, column
from nyala.schema.types import parse_type, to_canonical

UTC = dt.UTC
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
NAN = math.nan


def one_column(type_: str, nullable: bool = True) -> Schema:
    return build_schema({"k": "int8", "v": column(type_, nullable)}, "k")


def converted(values: Any, type_: str) -> tuple[list[Any], dict[int, str]]:
    """Return the canonical values of one column, and the error code of each failed row."""
    result = convert({"v": values}, one_column(type_))
    array = result.columns["v"]
    wanted = parse_type(type_)
    assert array.type == wanted.arrow and isinstance(array, pa.Array) and array.offset == 0
    assert len(array) == result.row_count == len(values)
    array.validate(full=True)
    if wanted.name in ("date", "timestamp"):
        values = array.view(pa.int32() if wanted.name == "date" else pa.int64()).to_pylist()
    else:
        values = [to_canonical(wanted, value) for value in array.to_pylist()]
    failed = dict(zip(result.errors.rows.tolist(), result.errors.codes, strict=True))
    assert all(values[row] is None for row in failed), "failed rows have no value (V2)"
    return values, failed


def micros(text: str) -> int:
    moment = dt.datetime.fromisoformat(text).replace(tzinfo=UTC)
    return int(to_canonical(parse_type("timestamp"), moment))


def only_nat() -> Any:
    """Return an array of NaT without a unit, which NumPy 2.5 warns about."""
    with warnings.catch_warnings(action="ignore"):
        return np.array(["NaT"], "M8")


def days(text: str) -> int:
    return int(to_canonical(parse_type("date"), dt.date.fromisoformat(text)))


def invalid_utf8(*values: bytes) -> pa.Array:
    """Return a string array with invalid UTF-8, as a faulty program may give it."""
    return pa.array(values, pa.binary()).view(pa.string())


def bad_decimal(unscaled: int, precision: int, scale: int) -> pa.Array:
    """Return a decimal with more digits than its type has. Arrow does not reject it."""
    data = pa.py_buffer(unscaled.to_bytes(16, "little", signed=True))
    return pa.Array.from_buffers(pa.decimal128(precision, scale), 1, [None, data])


OUT = OUT_OF_RANGE
U64, TS = pa.uint64(), pa.timestamp

CASTS: list[tuple[str, Any, str, list[Any], dict[int, str]]] = [
    # --- numbers
    ("small ints fit or fail", pa.array([127, 128, -128, -129, None]), "int8", [127, None, -128, None, None], {1: OUT, 3: OUT}),
    ("unsigned to signed", pa.array([2**31 - 1, 2**31], pa.uint32()), "int32", [2**31 - 1, None], {1: OUT}),
    ("uint64 above int64", pa.array([2**63 - 1, 2**63], U64), "int64", [INT64_MAX, None], {1: OUT}),
    ("uint8 to int8", pa.array([127, 200], pa.uint8()), "int8", [127, None], {1: OUT}),
    ("ints are exact doubles, or fail", pa.array([2**53, 2**53 + 1, 2**60, INT64_MAX, INT64_MIN, None]), "double",
     [2.0**53, None, 2.0**60, None, -(2.0**63), None], {1: OUT, 3: OUT}),
    ("uint64 as double", pa.array([2**64 - 1, 2**64 - 2048, 2**63], U64), "double", [None, 2.0**64 - 2048, 2.0**63], {0: OUT}),
    ("ints are exact floats, or fail", pa.array([2**24, 2**24 + 1, 2**25], pa.int32()), "float", [2.0**24, None, 2.0**25], {1: OUT}),
    ("doubles that are floats", pa.array([0.5, NAN, math.inf, -0.0, None]), "float", [0.5, NAN, math.inf, -0.0, None], {}),
    ("doubles that are no floats", pa.array([0.1, 1e300, 1e-300, -math.inf]), "float", [None, None, None, -math.inf], {0: OUT, 1: OUT, 2: OUT}),
    ("float to double", pa.array([0.1], pa.float32()), "double", [float(np.float32(0.1))], {}),
    ("half to float", pa.array([np.float16(1.5)]), "float", [1.5], {}),
    ("int to decimal", pa.array([999, 1000, -999, -1000, None]), "decimal(5,2)", [99900, None, -99900, None, None], {1: OUT, 3: OUT}),
    ("int8 to a decimal without room", pa.array([0, 1], pa.int8()), "decimal(2,2)", [0, None], {1: OUT}),
    ("uint64 to decimal", pa.array([2**64 - 1], U64), "decimal(38,18)", [(2**64 - 1) * 10**18], {}),
    ("whole decimals are ints", pa.array([Decimal("7.00"), Decimal("7.50"), Decimal("128.00"), None]), "int8", [7, None, None, None], {1: OUT, 2: OUT}),
    ("hugeint is int", pa.array([Decimal(INT64_MAX), Decimal(2**63), Decimal(10**30)], pa.decimal128(38, 0)), "int64",
     [INT64_MAX, None, None], {1: OUT, 2: OUT}),
    ("decimal scale up", pa.array([Decimal("1.5"), Decimal("999.9"), Decimal("1000.0")]), "decimal(5,2)", [150, 99990, None], {2: OUT}),
    ("decimal scale down", pa.array([Decimal("1.500"), Decimal("1.505"), Decimal("-9.990")]), "decimal(3,2)", [150, None, -999], {1: OUT}),
    ("a scale up that would wrap around 128 bits", [Decimal("340.2824"), Decimal("0.5")], "decimal(36,36)", [None, 5 * 10**35], {0: OUT}),
    ("decimals without a whole digit", pa.array([Decimal("0.1234"), Decimal(0), None], pa.decimal128(4, 4)), "int8", [None, 0, None], {0: OUT}),
    ("decimals of 76 digits behind the point", pa.array([Decimal("0.5"), Decimal(0)], pa.decimal256(76, 76)), "decimal(1,0)", [None, 0], {0: OUT}),
    ("decimal of 32 bits", pa.array([Decimal("1.50"), None], pa.decimal32(5, 2)), "decimal(38,2)", [150, None], {}),
    ("decimal of 64 bits", pa.array([Decimal("1.50")], pa.decimal64(15, 2)), "int16", [None], {0: OUT}),
    ("decimal of 256 bits", pa.array([Decimal(10) ** 60, Decimal("0.01")], pa.decimal256(70, 2)), "decimal(38,2)", [None, 1], {0: OUT}),
    ("decimal of negative scale", pa.array([Decimal(100), Decimal(12300)], pa.decimal128(4, -2)), "decimal(4,0)", [100, None], {1: OUT}),
    ("decimal beyond its own precision", bad_decimal(10**7, 5, 2), "decimal(5,2)", [None], {0: OUT}),
    ("the same, scaled", bad_decimal(-(10**7), 5, 2), "decimal(38,4)", [None], {0: OUT}),
    ("the same, to int", bad_decimal(10**7, 5, 2), "int64", [None], {0: OUT}),
    # --- dates and times
    ("date range", pa.array([-719162, -719163, 2932896, 2932897, None], pa.int32()).view(pa.date32()), "date",
     [-719162, None, 2932896, None, None], {1: OUT, 3: OUT}),
    ("date of milliseconds", pa.array([86_400_000, 5, None]).view(pa.date64()), "date", [1, None, None], {1: OUT}),
    ("int is days", pa.array([-719162, 2932897, None]), "date", [-719162, None, None], {1: OUT}),
    ("unsigned days", pa.array([5, 2**64 - 1], U64), "date", [5, None], {1: OUT}),
    ("midnight is a date", pa.array([86_400, 86_401, -86_400, None, INT64_MAX], TS("s")), "date", [1, None, -1, None, None], {1: OUT, 4: OUT}),
    ("a day too far", pa.array([2932897 * 86_400, 2932896 * 86_400], TS("s")), "date", [None, 2932896], {0: OUT}),
    ("midnight in UTC", pa.array([86_400_000_000_000], TS("ns", tz="Asia/Tokyo")), "date", [1], {}),
    ("date to timestamp", pa.array([1, 2**30, None], pa.int32()).view(pa.date32()), "timestamp", [86_400_000_000, None, None], {1: OUT}),
    ("date64 to timestamp", pa.array([5]).view(pa.date64()), "timestamp", [5000], {}),
    ("nanoseconds without loss", pa.array([1000, 1001, -1000, -1, None], TS("ns")), "timestamp", [1, None, -1, None, None], {1: OUT, 3: OUT}),
    ("seconds that overflow", pa.array([1, 2**60, -(2**60)], TS("s")), "timestamp", [1_000_000, None, None], {1: OUT, 2: OUT}),
    ("milliseconds that overflow", pa.array([INT64_MAX // 1000, INT64_MAX // 1000 + 1], TS("ms")), "timestamp", [INT64_MAX // 1000 * 1000, None], {1: OUT}),
    ("a zone is a moment in UTC", pa.array([0], TS("us", tz="Europe/Berlin")), "timestamp", [0], {}),
    ("an unknown zone too", pa.array([0, 7000], TS("ns", tz="Mars/Olympus")), "timestamp", [0, 7], {}),
    ("naive is UTC", pa.array([INT64_MIN, INT64_MAX - 1], TS("us")), "timestamp", [INT64_MIN, INT64_MAX - 1], {}),
    ("DuckDB's infinity is no time", pa.array([1, INT64_MAX, None, -INT64_MAX], TS("us")), "timestamp", [1, None, None, None], {1: OUT, 3: OUT}),
    # --- text and bytes
    ("varchar is cut by characters", pa.array(["äöü", "日本語x", "ab", None]), "varchar(3)", ["äöü", "日本語", "ab", None], {}),
    ("a cut emoji", pa.array(["🦌🦌", "x"]), "varchar(1)", ["🦌", "x"], {}),
    ("cut below the limit of a cell", pa.array(["x" * 70_000]), "varchar(5)", ["xxxxx"], {}),
    ("cut above the limit of a cell", pa.array(["ä" * 40_000, "ä" * 5]), "varchar(32769)", [None, "ä" * 5], {0: VALUE_TOO_LARGE}),
    ("a full cell", pa.array(["x" * 65_536, "x" * 65_537]), "string", ["x" * 65_536, None], {1: VALUE_TOO_LARGE}),
    ("a full binary cell", pa.array([b"x" * 65_537, b"\0"]), "binary", [None, b"\0"], {0: VALUE_TOO_LARGE}),
    ("bytes that are text", pa.array([b"a", b"\xff", b"\xc3\xa4", None]), "string", ["a", None, "ä", None], {1: INVALID_UTF8}),
    ("text that is no text", invalid_utf8(b"a", b"\xed\xa0\x80", b"\xc3"), "string", ["a", None, None], {1: INVALID_UTF8, 2: INVALID_UTF8}),
    ("the same, sliced", invalid_utf8(b"\xff", b"ok", b"\xff").slice(1), "varchar(1)", ["o", None], {1: INVALID_UTF8}),
    ("the same, large", invalid_utf8(b"\xff").cast(pa.large_string()), "string", [None], {0: INVALID_UTF8}),
    ("the same as binary", invalid_utf8(b"\xff"), "binary", [b"\xff"], {}),
    ("the same as time", invalid_utf8(b"\xff", b"2020-01-01"), "date", [None, 18262], {0: INVALID_UTF8}),
    ("text as bytes", pa.array(["ä", None]), "binary", [b"\xc3\xa4", None], {}),
    ("bool", pa.array([True, None, False]), "bool", [True, None, False], {}),
    # --- Arrow encodings and chunks
    ("large string", pa.array(["a", None], pa.large_string()), "string", ["a", None], {}),
    ("string view", pa.array(["a", None, "long enough for a buffer"], pa.string_view()), "varchar(6)", ["a", None, "long e"], {}),
    ("large binary", pa.array([b"a", None], pa.large_binary()), "binary", [b"a", None], {}),
    ("binary view", pa.array([b"a", b"\xff" * 20], pa.binary_view()), "string", ["a", None], {1: INVALID_UTF8}),
    ("fixed size binary", pa.array([b"ab", None], pa.binary(2)), "binary", [b"ab", None], {}),
    ("dictionary", pa.array(["b", None, "a", "b"]).dictionary_encode(), "string", ["b", None, "a", "b"], {}),
    ("dictionary with NULL in it", pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.uint8()), pa.array(["x", None], pa.string_view())),
     "string", ["x", None, None], {}),
    ("dictionary of ints", pa.array([300, 5, 300]).dictionary_encode(), "int8", [None, 5, None], {0: OUT, 2: OUT}),
    ("run-end-encoded, sliced", pa.RunEndEncodedArray.from_arrays(pa.array([2, 5], pa.int32()), pa.array(["a", None])).slice(1, 3),
     "string", ["a", None, None], {}),
    ("extension", pa.array([uuid.UUID(int=5).bytes], pa.uuid()), "binary", [bytes(15) + b"\x05"], {}),
    ("null column", pa.nulls(2), "decimal(5,2)", [None, None], {}),
    ("chunks", pa.chunked_array([[1], [], [300, None]]), "int8", [1, None, None], {1: OUT}),
    ("no chunks", pa.chunked_array([], pa.int64()), "int8", [], {}),
    ("chunks with dictionaries of their own", pa.chunked_array([pa.array(["a"]).dictionary_encode(), pa.array(["b", "a"]).dictionary_encode()]),
     "string", ["a", "b", "a"], {}),
    ("chunks with too many dictionaries for int8", pa.chunked_array([pa.DictionaryArray.from_arrays(pa.array(range(100), pa.int8()),
     pa.array([f"{i}.{j}" for j in range(100)])) for i in range(3)]), "string", [f"{i}.{j}" for i in range(3) for j in range(100)], {}),
    ("a slice", pa.array(["x", "y", None, "z"]).slice(1, 2), "string", ["y", None], {}),
    # --- Python values
    ("ints of any size", [1, 2**63, -(2**63), 10**400, None, -(2**63) - 1], "int64", [1, None, INT64_MIN, None, None, None], {1: OUT, 3: OUT, 5: OUT}),
    ("huge ints as decimals", [10**38 - 1, 10**38, -(10**37), None], "decimal(38,0)", [10**38 - 1, None, -(10**37), None], {1: OUT}),
    ("huge ints as doubles", [2**70, 2**70 + 1, 2**2000], "double", [2.0**70, None, None], {1: OUT, 2: OUT}),
    ("huge ints as dates", [2**64, 1], "date", [None, 1], {0: OUT}),
    ("ints and floats", [1, 2.5, None, 2**53 + 1], "double", [1.0, 2.5, None, None], {3: OUT}),
    ("NumPy scalars", [np.int8(1), np.uint64(2**64 - 1), 3], "int64", [1, None, 3], {1: OUT}),
    ("int enumerations", [enum.IntEnum("E", "A B").B, 1], "int8", [2, 1], {}),  # type: ignore[attr-defined]
    ("Decimals", [Decimal("1.50"), Decimal("NaN"), None, Decimal("1E+40"), Decimal("1E-40"), 2], "decimal(5,2)",
     [150, None, None, None, None, 200], {1: OUT, 3: OUT, 4: OUT}),
    ("Decimals with idle zeros", [Decimal("0E+100"), Decimal("1." + "0" * 90), Decimal("Infinity")], "decimal(5,2)", [0, 100, None], {2: OUT}),
    ("Decimals of too many digits", [Decimal("0." + "1" * 150), Decimal(1)], "decimal(38,20)", [None, 10**20], {0: OUT}),
    ("datetimes", [dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")), None, dt.datetime.max], "timestamp",
     [micros("2020-01-01"), micros("2019-12-31T23:00"), None, micros("9999-12-31T23:59:59.999999")], {}),
    ("dates and datetimes", [dt.date(2020, 1, 1), dt.datetime(2020, 1, 1, 5), dt.datetime(2020, 1, 2)], "date",
     [days("2020-01-01"), None, days("2020-01-02")], {1: OUT}),
    ("all kinds of times", ["2020-01-01", dt.date(1970, 1, 2), np.datetime64("1970-01-01T00:00:01"), None], "timestamp",
     [micros("2020-01-01"), 86_400_000_000, 1_000_000, None], {}),
    ("pandas times", [pd.Timestamp("1970-01-01T00:00:00.000001"), pd.NaT, pd.Timestamp(1001), pd.Timestamp("1970-01-02", tz="Asia/Tokyo")],
     "timestamp", [1, None, None, 54_000_000_000], {2: OUT}),
    ("NumPy times of all units", [np.datetime64("2020"), np.datetime64("2020-02-01T05"), np.datetime64("NaT", "D"), None], "date",
     [days("2020-01-01"), None, None, None], {1: OUT}),
    ("pandas.NA", [pd.NA, 5, None], "int8", [None, 5, None], {}),
    ("lone surrogates", ["a\ud800", "ok", None], "string", [None, "ok", None], {0: INVALID_UTF8}),
    ("lone surrogates as bytes", ["a\ud800", "ok"], "binary", [None, b"ok"], {0: INVALID_UTF8}),
    ("kinds of bytes", [b"a", bytearray(b"b"), memoryview(b"c"), "d"], "binary", [b"a", b"b", b"c", b"d"], {}),
    ("bytes and text", ["a", b"\xff", b"b"], "string", ["a", None, "b"], {1: INVALID_UTF8}),
    ("bools", [True, np.bool_(False), None], "bool", [True, False, None], {}),
    ("nothing", [], "decimal(5,2)", [], {}),
    ("only NULL", [None, None], "date", [None, None], {}),
    ("a tuple", (1, 2), "int8", [1, 2], {}),
    ("a range", range(3), "int8", [0, 1, 2], {}),
    # --- NumPy arrays
    ("big-endian", np.array([1, 300], ">i4"), "int8", [1, None], {1: OUT}),
    ("strided", np.arange(6)[::2], "int64", [0, 2, 4], {}),
    ("masked", np.ma.array([1, 2, 300], mask=[False, True, True]), "int8", [1, None, None], {}),
    ("masked text", np.ma.array(["a", "b"], mask=[False, True]), "string", ["a", None], {}),
    ("objects", np.array([1, None, 2**70], object), "int8", [1, None, None], {2: OUT}),
    ("text", np.array(["ab", "c"]), "varchar(1)", ["a", "c"], {}),
    ("NaN stays NaN", np.array([1.5, NAN]), "double", [1.5, NAN], {}),
    ("datetime64 days", np.array(["2020-01-01", "NaT"], "M8[D]"), "date", [days("2020-01-01"), None], {}),
    ("datetime64 hours", np.array(["1970-01-01T01", "NaT"], "M8[h]"), "timestamp", [3_600_000_000, None], {}),
    ("datetime64 of 25 seconds", np.array([2], "M8[25s]"), "timestamp", [50_000_000], {}),
    ("datetime64 picoseconds", np.array([10**6, 1], "M8[ps]"), "timestamp", [1, None], {1: OUT}),
    ("only NaT", only_nat(), "timestamp", [None], {}),
    # --- pandas and polars columns
    ("series of objects", pd.Series(["a", None, NAN]), "string", ["a", None, None], {}),
    ("series of several kinds", pd.Series([1, Decimal("2"), None, 2**70], dtype=object), "decimal(5,2)", [100, 200, None, None], {3: OUT}),
    ("series of huge ints", pd.Series([2**70, NAN, None, 1], dtype=object), "int8", [None, None, None, 1], {0: OUT}),
    ("nullable series", pd.Series([1, None], dtype="Int64"), "int8", [1, None], {}),
    ("categories", pd.Series(["a", None, "b"], dtype="category"), "string", ["a", None, "b"], {}),
    ("series with a zone", pd.Series([pd.Timestamp("1970-01-02", tz="Asia/Tokyo")]), "timestamp", [54_000_000_000], {}),
    ("a pandas index", pd.Index([1, 2]), "int8", [1, 2], {}),
    ("polars", pl.Series(["a", None]), "string", ["a", None], {}),
    ("polars categories", pl.Series(["a", None], dtype=pl.Categorical), "varchar(1)", ["a", None], {}),
    ("polars dates", pl.Series([dt.date(1970, 1, 2)]), "date", [1], {}),
]  # fmt: skip


def same(left: list[Any], right: list[Any]) -> bool:
    """Return whether the values are equal. NaN equals NaN, and 0.0 differs from -0.0."""
    return [repr(value) for value in left] == [repr(value) for value in right]


@pytest.mark.parametrize(
    ("values", "type_", "expected", "failed"), [c[1:] for c in CASTS], ids=[c[0] for c in CASTS]
)
def test_a_value_is_stored_exactly_or_its_row_fails(
    values: Any, type_: str, expected: list[Any], failed: dict[int, str]
) -> None:
    """The rules of docs/how-to/data-in-and-out.md."""
    got, codes = converted(values, type_)
    assert same(got, expected)
    assert codes == failed


PERIODS = pd.Series(pd.period_range("2026-01", periods=2, freq="M"))
NOTHING_IN_COMMON: list[tuple[Any, str, str]] = [
    (pa.array([1.5]), "int64", "expected int64, got double; pandas stores whole numbers with NULL .*Int64"),
    (pa.array([0], pa.decimal256(76, -1)), "int64", r"decimal256\(76, -1\) has more than 76 digits"),
    (pa.array([1.0]), "int8", "expected int8, got double"),
    (pa.array([1.0]), "decimal(5,2)", r"expected decimal\(5,2\), got double"),
    (
        pa.array(["1"]),
        "int64",
        "expected int64, got string; parse the text first: cast it to int64, or call int",
    ),
    (["1.5"], "decimal(9,2)", "expected .*, got string; parse the text first: .* call decimal.Decimal"),
    (pa.array(["1.5"]), "double", "expected double, got string"),
    (pa.array(["true"]), "bool", "expected bool, got string"),
    (pa.array([1]), "bool", "expected bool, got int64"),
    (pa.array([True]), "int8", "expected int8, got bool"),
    (pa.array([1]), "string", "expected string, got int64"),
    (pa.array([Decimal("1.5")]), "double", "expected .*, got decimal128"),
    (pa.array([0], pa.timestamp("us")), "int64", "expected .*, got timestamp"),
    (pa.array([0], pa.date32()), "string", "expected .*, got date32"),
    (pa.array([b"1"]), "timestamp", "expected .*, got binary"),
    (pa.array([[1]]), "string", "expected .*, got list"),
    (pa.array([{"a": 1}]), "string", "expected .*, got struct"),
    (pa.array([1], pa.duration("s")), "int64", "expected .*, got duration"),
    (pa.array([0], pa.time32("s")), "timestamp", "expected .*, got time32"),
    *[
        (
            value,
            "timestamp",
            r"expected timestamp, got u?int\d+; give the unit of the numbers.*pyarrow.timestamp\('s'\)",
        )
        for value in ([1_700_000_000], pa.array([5], pa.int8()), np.array([5], np.uint64), pa.array([5]))
    ],
    (pa.array([], pa.float64()), "int8", "expected .*, got double"),
    ([1, 2.5], "int8", r"expected .*, got double.*the first such value is 2.5"),
    ([None, 1, "a"], "int8", "expected .*, got string.*'a'"),
    ([True, 1], "int8", "expected .*, got bool.*True"),
    ([NAN, "a"], "string", "expected .*, got double.*nan"),
    ([2**70], "string", "expected .*, got int64"),
    ([10**5000], "bool", "expected .*, got int64.*an integer of 16610 bits"),
    ([{"a": 1}], "int8", "expected .*, got struct"),
    ([object()], "int8", "expected .*, got the unsupported type object"),
    ([1j], "double", "expected .*, got the unsupported type complex"),
    ([np.timedelta64(5, "s")], "int64", "expected .*, got duration"),
    (np.zeros(1, complex), "double", "expected .*, got the unsupported type complex128"),
    (np.zeros(1, "V4"), "binary", "expected binary, got the unsupported type"),
    *(
        (PERIODS, name, r"expected .*, got .*period.*start times first: .dt.to_timestamp\(\)")
        for name in ("timestamp", "date", "int64")
    ),
    (pa.chunked_array([pa.Array.from_pandas(PERIODS)] * 2), "date", "expected .*, got .*period"),
    (
        [uuid.UUID(bytes=b"A" * 16)],
        "string",
        r"expected string, got .*uuid.*; convert each UUID with str\(value\)",
    ),
    (pa.array([b"A" * 16], pa.uuid()), "varchar(40)", "expected .*, got .*uuid"),
    (pl.Series([object()], dtype=pl.Object), "binary", "polars' type Object is not supported"),
]


@pytest.mark.parametrize(("values", "type_", "says"), NOTHING_IN_COMMON)
def test_incompatible_types_are_an_error_of_the_whole_batch(values: Any, type_: str, says: str) -> None:
    """The message has the column, the expected type and the given type."""
    with pytest.raises(SchemaError, match=f"column 'v': {says}"):
        convert({"v": values}, one_column(type_))


def test_polars_objects_are_refused() -> None:
    """polars gives Arrow the addresses of Python objects, which a binary column would store."""
    frame = pl.DataFrame({"v": pl.Series([object()], dtype=pl.Object)})
    with pytest.raises(SchemaError, match="column 'v': polars' type Object is not supported"):
        convert(frame, one_column("binary"))


ISO = [
    ("2020-02-29", "2020-02-29"),
    ("2020-02-29T12", "2020-02-29T12:00"),
    ("2020-02-29 12:30", "2020-02-29T12:30"),
    ("2020-02-29T12:30:45", "2020-02-29T12:30:45"),
    ("2020-02-29T12:30:45.5", "2020-02-29T12:30:45.500000"),
    ("2020-02-29T12:30:45.123456", "2020-02-29T12:30:45.123456"),
    ("2020-02-29T12:30:45.123456000", "2020-02-29T12:30:45.123456"),
    ("2020-02-29T12:30:45Z", "2020-02-29T12:30:45"),
    ("2020-02-29T12:30:45.5+02:00", "2020-02-29T10:30:45.500000"),
    ("2020-02-29T00:30-0130", "2020-02-29T02:00"),
    ("2020-02-29 00:30+01", "2020-02-28T23:30"),
    ("0001-01-01", "0001-01-01"),
    ("9999-12-31T23:59:59.999999", "9999-12-31T23:59:59.999999"),
]
NOT_ISO = [
    *[
        "",
        " 2020-01-01",
        "2020-01-01 ",
        "2020-1-1",
        "20200101",
        "01/02/2020",
        "2021-02-29",
        "1900-02-29",
        "2020-13-01",
    ],
    *[
        "2020-04-31",
        "2020-00-01",
        "2020-01-00",
        "2020-01-01T24:00",
        "2020-01-01T12:60",
        "2020-01-01T12:30:60",
    ],
    *[
        "2020-01-01T12:30:45.1234567",
        "2020-01-01T12:30:45.",
        "2020-01-01T12:30+24:00",
        "2020-01-01Z",
        "now",
        "２020-01-01",
    ],
    *["2020-01-01T12:30z", "2020-01-01t12:30", "2020-01-01T", "2020-01-01\n", "2020-01-01T12:30:45+02:00Z"],
]


@pytest.mark.parametrize("alone", [True, False])
def test_iso_text_becomes_a_timestamp_and_other_text_fails_its_row(alone: bool) -> None:
    """ISO text becomes a timestamp, also if a batch has several forms. Other text fails its row."""
    texts = [text for text, _ in ISO]
    if alone:
        for text, moment in ISO:
            assert converted([text], "timestamp") == ([micros(moment)], {})
        for text in NOT_ISO:
            assert converted([text], "timestamp") == ([None], {0: OUT})
            assert converted([text], "date") == ([None], {0: OUT})
            with pytest.raises(OutOfRangeError, match="ISO"):
                cast_value(text, parse_type("timestamp"))
    else:
        expected = [micros(moment) for _, moment in ISO]
        failed = {len(ISO) + place: OUT for place in range(len(NOT_ISO))}
        assert converted(texts + NOT_ISO, "timestamp") == (expected + [None] * len(NOT_ISO), failed)


def test_iso_text_becomes_a_date_only_at_midnight() -> None:
    """ISO text with a time other than midnight fails its row. The time is not cut off."""
    texts = [
        "2020-01-02",
        "2020-01-02T00:00:00",
        "2020-01-02T02:00+02:00",
        "2020-01-02T01:00",
        "0000-01-01",
        None,
    ]
    day = days("2020-01-02")
    assert converted(texts, "date") == ([day, day, day, None, None, None], {3: OUT, 4: OUT})
    assert converted(["0000-12-31", "0001-01-01"], "date") == ([None, -719162], {0: OUT})


@given(st.lists(st.from_regex(r"\A(19|20)[0-9]{2}-[01][0-9]-[0-3][0-9]([ T][0-2][0-9](:[0-6][0-9](:[0-6][0-9](\.[0-9]{1,7})?)?)?(Z|[+-][0-2][0-9](:?[0-6][0-9])?)?)?\Z")))  # fmt: skip
def test_a_text_is_parsed_alike_alone_and_in_a_batch(texts: list[str]) -> None:
    values, failed = converted(texts, "timestamp")
    for row, text in enumerate(texts):
        assert converted([text], "timestamp") == ([values[row]], {0: OUT} if row in failed else {})


@given(
    st.sampled_from(["int8", "int16", "int32", "int64", "decimal(7,2)", "decimal(20,0)", "date"]),
    st.lists(
        st.none()
        | st.integers(-300, 300)
        | st.integers(-(2**70), 2**70)
        | st.sampled_from([INT64_MIN, INT64_MAX])
    ),
)
def test_any_int_is_stored_exactly_or_fails(type_: str, values: list[int | None]) -> None:
    """Random ints in every integer type are stored exactly, or their row fails."""
    wanted = parse_type(type_)
    assert wanted.value_min is not None and wanted.value_max is not None
    unit = 10**wanted.scale if wanted.scale else 1
    fits = [value is None or wanted.value_min <= value * unit <= wanted.value_max for value in values]
    expected = [
        value * unit if ok and value is not None else None for value, ok in zip(values, fits, strict=True)
    ]
    assert converted(values, type_) == (expected, {row: OUT for row, ok in enumerate(fits) if not ok})


@given(
    st.integers(1, 38).flatmap(lambda p: st.tuples(st.just(p), st.integers(0, p))),
    st.lists(
        st.decimals(allow_nan=False, allow_infinity=False, places=4)
        | st.decimals(min_value=-200, max_value=200, places=2)
    ),
)
def test_any_decimal_is_stored_exactly_or_fails(size: tuple[int, int], values: list[Decimal]) -> None:
    """Random Decimals in every decimal type are stored exactly, or their row fails."""
    precision, scale = size
    expected: list[int | None] = []
    for value in values:
        unscaled = int(value.as_integer_ratio()[0] * 10**scale // value.as_integer_ratio()[1])
        exact = value.as_integer_ratio()[0] * 10**scale % value.as_integer_ratio()[1] == 0
        expected.append(unscaled if exact and abs(unscaled) < 10**precision else None)
    failed = {row: OUT for row, value in enumerate(expected) if value is None}
    assert converted(values, f"decimal({precision},{scale})") == (expected, failed)


@given(st.lists(st.floats() | st.floats(width=32)), st.sampled_from(["float", "double"]))
def test_a_column_of_doubles_is_not_rounded_to_floats(values: list[float], type_: str) -> None:
    """NaN, infinities and -0.0 stay as they are."""
    expected: list[float | None] = []
    with np.errstate(over="ignore"):
        for value in values:
            rounded = float(np.float32(value)) if type_ == "float" else value
            expected.append(rounded if rounded == value or value != value else None)
    got, failed = converted(pa.array(values, pa.float64()), type_)
    assert same(got, expected)
    assert failed == {row: OUT for row, value in enumerate(expected) if value is None}


@given(st.lists(st.none() | st.floats() | st.floats(width=32)))
def test_a_python_float_is_rounded_to_the_nearest_float(values: list[float | None]) -> None:
    """A user writes 0.1 for a float column. A value that is too large fails."""
    expected: list[float | None] = []
    fails = set()
    with np.errstate(over="ignore"):
        for row, value in enumerate(values):
            rounded = None if value is None else float(np.float32(value))
            if rounded is not None and math.isinf(rounded) and rounded != value:
                rounded = None
                fails.add(row)
            expected.append(rounded)
    got, failed = converted(values, "float")
    assert same(got, expected)
    assert failed == dict.fromkeys(sorted(fails), OUT)


@given(st.lists(st.integers(-(2**65), 2**65)), st.sampled_from(["float", "double"]))
def test_an_int_that_a_float_cannot_hold_fails(values: list[int], type_: str) -> None:
    """An integer that a float cannot hold exactly is a row error."""
    expected: list[float | None] = []
    for value in values:
        rounded = float(np.float32(value)) if type_ == "float" else float(value)
        expected.append(rounded if rounded == value else None)
    got, failed = converted(values, type_)
    assert same(got, expected)
    assert failed == {row: OUT for row, value in enumerate(expected) if value is None}


@given(st.lists(st.binary(max_size=6) | st.text(max_size=3).map(str.encode), max_size=40), st.integers(1, 4))
def test_random_bytes_are_text_if_python_can_decode_them(values: list[bytes], length: int) -> None:
    """Every row that is not UTF-8 fails, and a varchar is cut between characters."""
    expected: list[str | None] = []
    for value in values:
        try:
            expected.append(value.decode()[:length])
        except UnicodeDecodeError:
            expected.append(None)
    failed = {row: INVALID_UTF8 for row, value in enumerate(expected) if value is None}
    assert converted(pa.array(values, pa.binary()), f"varchar({length})") == (expected, failed)
    assert converted(invalid_utf8(*values), f"varchar({length})") == (expected, failed)


def arrow_of(values: list[Any]) -> list[pa.Array]:
    """Return the same values in the forms that other libraries give."""
    plain = pa.array(values)
    forms = [plain, plain.dictionary_encode(), pa.concat_arrays([plain, plain]).slice(len(values))]
    ends = pa.array(np.arange(1, len(values) + 1), pa.int32())
    return [*forms, pa.RunEndEncodedArray.from_arrays(ends, plain)]


@given(
    st.sampled_from(["int8", "int64", "double", "string", "binary", "date", "timestamp", "varchar(2)"]),
    st.lists(st.none() | st.integers(-200, 200), min_size=1)
    | st.lists(st.none() | st.text(max_size=4), min_size=1)
    | st.lists(st.none() | st.dates(), min_size=1)
    | st.lists(st.none() | st.datetimes(), min_size=1),
)
def test_the_form_of_the_data_makes_no_difference(type_: str, values: list[Any]) -> None:
    """Lists, arrays, dictionaries, runs, slices and rows give the same values and the same errors."""

    def outcome(convert_it: Callable[[], Any]) -> Any:
        try:
            return convert_it()
        except SchemaError:
            return "refused"

    expected = outcome(functools.partial(converted, values, type_))
    for form in arrow_of(values):
        assert outcome(functools.partial(converted, form, type_)) == expected
    wanted = parse_type(type_)
    one_by_one = []
    for value in values:
        try:
            one_by_one.append(to_canonical(wanted, cast_value(value, wanted)))
        except OutOfRangeError:
            one_by_one.append(None)
        except SchemaError:
            assert expected == "refused"
            return
    assert expected[0] == one_by_one


# --- whole tables -----------------------------------------------------------------------------------

SCHEMA = build_schema(
    {
        "name": "varchar(5)",
        "id": "int64",
        "price": column("decimal(9,2)", nullable=False, default=Decimal("0.50")),
        "at": "timestamp",
    },
    ["id"],
)
MOMENT = dt.datetime(2020, 1, 1, 12, tzinfo=UTC)
ROWS: list[dict[str, Any]] = [
    {"id": 1, "name": "first", "price": Decimal("1.50"), "at": MOMENT},
    {"id": 2, "name": None, "price": Decimal("2.00"), "at": None},
]
COLUMNS: dict[str, list[Any]] = {name: [row[name] for row in ROWS] for name in ROWS[0]}


class Stream:
    """A library that Nyala does not know, with `__arrow_c_stream__`."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


class Batch:
    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch

    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        return self.batch.__arrow_c_array__(requested_schema)


def duckdb_relation() -> Any:
    return duckdb.sql(
        "SELECT * FROM (VALUES (1::HUGEINT, 'first', 1.5, TIMESTAMPTZ '2020-01-01 12:00:00+00'), (2, NULL, 2, NULL)) "
        't(id, name, price, "at")'
    )


def test_every_form_of_data_gives_the_same_rows() -> None:
    table = pa.table(COLUMNS)
    frame = pd.DataFrame(COLUMNS, index=["x", "y"])
    forms: list[Any] = [
        *[ROWS, tuple(ROWS), COLUMNS, table, table.to_batches()[0], pa.concat_tables([table[:1], table[1:]])],
        *[frame, frame.astype({"name": "string"}), pl.DataFrame(COLUMNS), duckdb_relation()],
        *[
            Stream(table),
            Batch(table.to_batches()[0]),
            table.to_reader(),
            table.to_struct_array().combine_chunks(),
        ],
        {
            "id": np.array([1, 2]),
            "name": pl.Series(["first", None]),
            "price": (Decimal("1.50"), 2),
            "at": pd.Series([MOMENT, None]),
        },
    ]
    for form in forms:
        result = convert(form, SCHEMA)
        assert list(result.columns) == ["id", "name", "price", "at"]  # the schema's order
        assert result.row_count == 2 and not result.errors
        got = [dict(zip(result.columns, row, strict=True)) for row in zip(*(c.to_pylist() for c in result.columns.values()), strict=True)]  # fmt: skip
        assert got == ROWS


def test_a_pandas_index_without_name_is_ignored_and_nan_is_null() -> None:
    """A filtered DataFrame has such an index."""
    frame = pd.DataFrame({"id": [1, 2, 3], "name": ["a", None, NAN]}).iloc[1:].set_index(pd.Index([5, 7]))
    result = convert(frame, SCHEMA)
    assert result.columns["id"].to_pylist() == [2, 3] and result.columns["name"].to_pylist() == [None, None]


def test_a_named_pandas_index_is_refused() -> None:
    """A named index raises an error. After `df.set_index("id")`, it would not be written as a column."""
    schema = build_schema({"id": "int64", "day": "date", "v": "int8"}, ["id", "day"])
    frame = pd.DataFrame({"id": [1], "day": ["2026-01-01"], "v": [3]})
    for names in (["id"], ["day", "id"], ["v", "day"]):
        with pytest.raises(
            InvalidArgumentError, match=r"is the DataFrame's index, .* pass df.reset_index\(\)"
        ):
            convert(frame.set_index(names), schema)
    with pytest.raises(InvalidArgumentError, match=r"^column 'v' is the DataFrame's .* df.reset_index\(\)$"):
        convert(frame.set_index("v"), schema)
    with pytest.raises(InvalidArgumentError, match=r"index 'V' is not a column .*; did you mean 'v'\?$"):
        convert(frame.set_index(frame.index.rename("V")), schema)
    with pytest.raises(InvalidArgumentError, match="index 0 is not a column"):
        convert(frame.set_index([frame.index, frame.index.rename(0)]), schema)
    with pytest.raises(
        InvalidArgumentError,
        match=r"^upsert: the DataFrame's index 'run' is not a column of the table; drop it "
        r"with df.reset_index\(drop=True\); the columns are 'id', 'day', 'v'$",
    ):
        convert(frame.set_index(frame.index.rename("run")), schema, operation="upsert")
    keys = frame.set_index("v")
    with pytest.raises(InvalidArgumentError, match=r"'v' is not a key column of the table; .*\(drop=True\)$"):
        convert(keys, schema, operation="delete")
    assert list(convert(keys.reset_index(drop=True), schema, columns="key").columns) == ["id", "day"]
    assert list(convert(frame.set_index(frame.index + 5), schema).columns) == ["id", "day", "v"]
    assert list(convert(frame.set_index("id", drop=False), schema).columns) == ["id", "day", "v"]
    assert list(convert(frame[["v"]], schema).columns) == ["v"]


def test_an_item_that_a_dict_leaves_out_is_null() -> None:
    """A column that no dict has is not in the result."""
    result = convert([{"id": 1}, {"id": 2, "name": "b"}, {}], SCHEMA)
    assert {name: array.to_pylist() for name, array in result.columns.items()} == {
        "id": [1, 2, None],
        "name": [None, "b", None],
    }
    assert list(zip(result.errors.rows, result.errors.codes, strict=True)) == [(2, NULL)]


@pytest.mark.parametrize(
    ("data", "error", "says"),
    [
        (5, InvalidArgumentError, "int is not supported as data; .* list of dicts"),
        ("text", InvalidArgumentError, "'text' is text, not rows"),
        (None, InvalidArgumentError, "NoneType is not supported as data"),
        (iter([{"id": 1}]), InvalidArgumentError, r"is an iterator, .* pass list\(rows\)"),
        ({"id": 5}, InvalidArgumentError, "column 'id': expected a list, .* got int"),
        ({"id": "abc"}, InvalidArgumentError, "column 'id': expected a list, .* got str"),
        ({"id": b"abc"}, InvalidArgumentError, "column 'id': expected a list, .* got bytes"),
        ({"id": {1, 2}}, InvalidArgumentError, "column 'id': expected a list, .* got set"),
        ({"id": [1], "name": ["a", "b"]}, InvalidArgumentError, "different lengths .*'id' 1, 'name' 2"),
        ({"id": np.zeros((2, 2))}, InvalidArgumentError, "column 'id': the array has 2 dimensions"),
        ({5: [1]}, InvalidArgumentError, "column name 5 is not text"),
        ([{5: 1}], InvalidArgumentError, "column name 5 is not text"),
        ([{"id": 1}, (2,)], InvalidArgumentError, "item 1 of the data list has the type tuple"),
        ([1, 2], InvalidArgumentError, "item 0 of the data list has the type int"),
        (pl.Series([1]), InvalidArgumentError, "pyarrow cannot read"),
        (pa.array([1]), InvalidArgumentError, "pyarrow cannot read"),
        (pd.DataFrame({0: [1]}), InvalidArgumentError, "column name 0 is not text"),
        (
            {"idd": [1]},
            ColumnNotFoundError,
            "insert: the data has an unknown column 'idd'; did you mean 'id'",
        ),
        (pd.DataFrame([[1, 2]], columns=["id", "id"]), SchemaError, "duplicate column 'id' in the data"),
        (pa.table([[1], [2]], names=["id", "id"]), SchemaError, "duplicate column 'id' in the data"),
    ],
)
def test_other_objects_are_refused_as_data(data: Any, error: type[Exception], says: str) -> None:
    """The message says what was given and what to give."""
    with pytest.raises(error, match=says):
        convert(data, SCHEMA)


def test_a_delete_with_value_columns_is_refused() -> None:
    assert list(convert({"id": [1]}, SCHEMA, operation="delete").columns) == ["id"]
    assert list(convert({"id": [1]}, SCHEMA, columns="key", operation="get").columns) == ["id"]
    with pytest.raises(
        SchemaError, match=r"delete accepts only the key columns \(id\); remove 'name' and 1 more"
    ):
        convert({"id": [1], "name": ["a"], "at": [None]}, SCHEMA, operation="delete")
    with pytest.raises(SchemaError, match="get accepts only the key columns"):
        convert({"name": ["a"]}, SCHEMA, columns="key", operation="get")


def test_null_in_not_null_columns_and_the_first_error_of_a_row() -> None:
    """V3: a row that fails in several columns has the error of the first one."""
    result = convert(
        {"name": ["a"] * 4, "price": [None, Decimal("1.555"), 1, None], "id": [1, 2, None, 2**63]}, SCHEMA
    )
    found = list(zip(result.errors.rows.tolist(), result.errors.codes, result.errors.messages, strict=True))
    assert [(row, code) for row, code, _ in found] == [(0, NULL), (1, OUT), (2, NULL), (3, OUT)]
    assert found[0][2] == "column 'price': NULL, but the column is NOT NULL; give a value"
    assert "column 'price': 1.555 has more than 2 digits" in found[1][2]
    assert found[2][2].startswith("column 'id': NULL")
    assert "column 'id': 9223372036854775808 does not fit int64 (-92" in found[3][2]


def test_messages_are_short_and_say_value_and_limit() -> None:
    """A text of a megabyte does not make a message of a megabyte."""
    messages = [
        *convert({"at": ["x" * 10_000]}, SCHEMA).errors.messages,
        *convert({"name": [b"\xff" * 10_000]}, SCHEMA).errors.messages,
        *convert({"id": [10**4000]}, SCHEMA).errors.messages,
        *convert({"price": [Decimal("1e3000"), Decimal("1." + "1" * 200)]}, SCHEMA).errors.messages,
    ]
    assert len(messages) == 5 and max(map(len, messages)) < 300
    text = convert({"name": ["é" * 65_536, "x"]}, one_text()).errors.messages
    assert text == [
        "column 'name': the value has 131072 bytes, more than the limit of 65536 per cell (max_cell_bytes)"
    ]


def one_text() -> Schema:
    return build_schema({"id": "int8", "name": "string"}, "id")


def owned(result: Converted, *buffers: pa.Buffer | None) -> Iterator[bool]:
    spans = [(b.address, b.address + b.size) for b in buffers if b is not None and b.size]
    for array in result.columns.values():
        for buffer in array.buffers():
            if buffer is not None:
                yield not any(start <= buffer.address < end for start, end in spans)


def test_v1_the_result_owns_its_memory() -> None:
    """V1: the user may change a NumPy array after the call."""
    ids = np.arange(5)
    result = convert({"id": ids}, SCHEMA)
    ids[:] = -1
    assert result.columns["id"].to_pylist() == [0, 1, 2, 3, 4]
    schema = build_schema({"k": "int8", **{f"c{i}": t for i, t in enumerate(["int64", "timestamp", "binary", "string", "date", "bool", "decimal(9,2)", "timestamp", "double"])}}, "k")  # fmt: skip
    table = pa.table(
        {
            "c0": pa.array([1, None, 3]),
            "c1": pa.array([1, None, 3], TS("us")),  # also with views of the arrays
            "c2": pa.array(["a", None, "b"]),  # string to binary shares its buffers
            "c3": pa.array(["a", None, "b"], pa.large_string()),
            "c4": pa.array([1, None, 3], pa.date32()),
            "c5": pa.array([True, None, False]),
            "c6": pa.array([Decimal("1.50"), None, Decimal("2.00")], pa.decimal128(9, 2)),
            "c7": pa.array([1, None, 3], pa.timestamp("ms")),
            "c8": pa.array([1, None, 3], pa.int32()),
        }
    )
    for form in (table, table.slice(1)):
        result = convert(form, schema)
        assert all(owned(result, *(b for c in table.columns for b in c.chunk(0).buffers())))
        assert all(array.offset == 0 for array in result.columns.values())
        shared = convert(form, schema, copy=False)
        assert all(a.equals(shared.columns[name]) for name, a in result.columns.items())
    assert not all(owned(convert(table, schema, copy=False), *table.column(0).chunk(0).buffers()))


# --- single values and defaults ---------------------------------------------------------------------
