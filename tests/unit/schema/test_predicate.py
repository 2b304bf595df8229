"""Predicates by example: col(), binding to a schema, masks, and what zones they skip.

That masks and constraints are right for any table is the business of test_predicate_properties.py; here stands what
a user may read as a description, and what random tests do not ask: messages, laziness, cost.
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import json
import math
import operator
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from nyala.errors import ColumnNotFoundError, InvalidArgumentError, SchemaError
from nyala.schema import like
from nyala.schema.constraint import EMPTY, Constraint
from nyala.schema.nodes import (
    And,
    Column,
    InList,
    IsNull,
    Like,
    Node,
    Not,
    Or,
    compare,
)
from nyala.schema.parser import parse_predicate
from nyala.schema.predicate import BoundPredicate, bind, col, expr, from_json, to_json
from nyala.schema.schema import build_schema
from nyala.schema.tokens import DEPTH_MAX

D = decimal.Decimal
UTC = dt.UTC
SCHEMA = build_schema(
    {
        "host": "string",
        "time": "timestamp",
        "n": "int8",
        "big": "int64",
        "flag": "bool",
        "day": "date",
        "ratio": "float",
        "value": "double",
        "price": "decimal(5,2)",
        "code": "varchar(3)",
        "raw": "binary",
    },
    ["host", "time"],
)


def bound(where: Any) -> BoundPredicate:
    found = bind(where, SCHEMA)
    assert found is not None
    return found


def rows_of(where: Any, **columns: list[Any]) -> list[int]:
    """The positions of the rows that `where` selects."""
    arrays = {
        # Slices, as blocks are cut from a window: every reader of memory must mind the offset.
        name: pa.array([None, *values], SCHEMA.by_name(name).type.arrow)[1:]
        for name, values in columns.items()
    }
    count = len(next(iter(columns.values())))
    return np.flatnonzero(bound(where).evaluate(arrays, count)).tolist()


# --- what is selected -------------------------------------------------------------------------------

SELECTED: list[tuple[str, dict[str, list[Any]], list[int]]] = [
    # NULL matches no comparison
    ("n = 1", {"n": [1, None, 2]}, [0]),
    ("n <> 1", {"n": [1, None, 2]}, [2]),
    ("NOT n = 1", {"n": [1, None, 2]}, [2]),
    ("n = 1 OR n IS NULL", {"n": [1, None, 2]}, [0, 1]),
    ("NOT (n = 1 AND big = 1)", {"n": [1, None, None], "big": [2, 1, 2]}, [0, 2]),
    ("n = NULL", {"n": [1, None]}, []),
    ("n IN (1, NULL)", {"n": [1, 2, None]}, [0]),
    ("n NOT IN (1, NULL)", {"n": [1, 2, None]}, []),
    ("n NOT IN (1, 2)", {"n": [1, 3, None]}, [1]),
    ("n NOT IN (1, 300)", {"n": [1, 3, None]}, [1]),
    ("NOT (n = 1 AND NULL)", {"n": [1, 2, None]}, [1]),
    ("NOT NULL OR n = 2", {"n": [1, 2]}, [1]),
    ("n IN ()", {"n": [1, None]}, []),
    ("n NOT IN ()", {"n": [1, None]}, [0, 1]),
    # a literal that the column cannot hold keeps its meaning
    ("n = 300", {"n": [127, None]}, []),
    ("n < 300", {"n": [127, None]}, [0]),
    ("n <> 300", {"n": [127, None]}, [0]),
    ("n > -1e9999", {"n": [-128, None]}, [0]),
    ("n < -1e-9999", {"n": [-1, 0]}, [0]),
    ("n < 1e-9999", {"n": [-1, 0, 1]}, [0, 1]),
    ("n < 2.5", {"n": [1, 2, 3]}, [0, 1]),
    ("n > -2.5", {"n": [-3, -2]}, [1]),
    ("n = 2.5", {"n": [2, 3]}, []),
    ("n = 2.0", {"n": [2, 3]}, [0]),
    ("n < 'x' OR TRUE", {}, []),
    ("price = 1.234", {"price": [D("1.23")]}, []),
    ("price > 1.234", {"price": [D("1.23"), D("1.24")]}, [1]),
    ("price = 1.230", {"price": [D("1.23")]}, [0]),
    ("price < 1000", {"price": [D("999.99"), None]}, [0]),
    ("ratio = 0.1", {"ratio": [0.1, 0.10001]}, [0]),
    ("ratio < 1e39", {"ratio": [3e38, math.inf, math.nan]}, [0]),
    ("ratio > 1e39", {"ratio": [3e38, math.inf, math.nan]}, [1, 2]),
    # NaN is equal to itself and greater than all else; -0.0 is 0.0
    ("value = 'NaN'", {"value": [math.nan, 1.0, None]}, [0]),
    ("value > 'Infinity'", {"value": [math.nan, math.inf]}, [0]),
    ("value < 'NaN'", {"value": [math.nan, math.inf, -1.0]}, [1, 2]),
    ("value >= 5", {"value": [math.nan, 4.0, 5.0]}, [0, 2]),
    ("value IN (0, 'NaN')", {"value": [math.nan, -0.0, 0.0, 1.0, -math.nan]}, [0, 1, 2, 4]),
    ("value = 0", {"value": [-0.0]}, [0]),
    ("ratio = value", {"ratio": [math.nan, 0.5], "value": [math.nan, 0.25]}, [0]),
    ("ratio < value", {"ratio": [math.nan, 0.5, math.nan], "value": [0.5, math.nan, math.nan]}, [1]),
    ("ratio >= value", {"ratio": [math.nan, 0.5, math.nan], "value": [0.5, math.nan, math.nan]}, [0, 2]),
    # time
    ("time >= '2013-01-01' AND time < '2013-01-02'", {"time": [dt.datetime(2013, 1, 1), dt.datetime(2013, 1, 2)]}, [0]),
    ("time = '2013-01-01 01:00+01:00'", {"time": [dt.datetime(2013, 1, 1)]}, [0]),
    ("time = 1356998400000000", {"time": [dt.datetime(2013, 1, 1)]}, [0]),
    ("day < '2013-01-01 12:00'", {"day": [dt.date(2013, 1, 1), dt.date(2013, 1, 2)]}, [0]),
    ("day = DATE '2013-01-01'", {"day": [dt.date(2013, 1, 1)]}, [0]),
    ("day = time", {"day": [dt.date(2013, 1, 1)] * 2, "time": [dt.datetime(2013, 1, 1), dt.datetime(2013, 1, 2)]}, [0]),
    # text compares by bytes, and a varchar's literal is not cut
    ("host < 'a'", {"host": ["B", "a", "b", "é"]}, [0]),
    ("host > 'z'", {"host": ["B", "z", "é", "\U0001f98c"]}, [2, 3]),
    ("code = 'abcd'", {"code": ["abc"]}, []),
    ("code < 'abcd'", {"code": ["abc"]}, [0]),
    ("raw > X'7f'", {"raw": [b"\x80", b"\x7f", b"\x7f\x00"]}, [0, 2]),
    ("raw = 'a'", {"raw": [b"a", b"A"]}, [0]),
    # LIKE
    ("host LIKE 'a%'", {"host": ["a", "ab", "ba", None]}, [0, 1]),
    ("host NOT LIKE 'a%'", {"host": ["a", "ab", "ba", None]}, [2]),
    ("host LIKE '%a'", {"host": ["a", "ab", "ba"]}, [0, 2]),
    ("host LIKE '%a%'", {"host": ["a", "xay", "b"]}, [0, 1]),
    ("host LIKE 'a_c'", {"host": ["abc", "aéc", "a\nc", "ac", "abbc"]}, [0, 1, 2]),
    ("host LIKE 'a.c'", {"host": ["abc", "a.c"]}, [1]),
    ("host LIKE '50!%' ESCAPE '!'", {"host": ["50%", "500"]}, [0]),
    ("host LIKE 'a\\%'", {"host": ["a\\b", "a%"]}, [0]),
    ("host LIKE '%'", {"host": ["", "a", None]}, [0, 1]),
    ("host LIKE ''", {"host": ["", "a"]}, [0]),
    # bool
    ("flag", {"flag": [True, False, None]}, [0]),
    ("NOT flag", {"flag": [True, False, None]}, [1]),
    ("flag < TRUE", {"flag": [True, False, None]}, [1]),
    ("flag IN (TRUE, FALSE)", {"flag": [True, False, None]}, [0, 1]),
    ("flag >= FALSE", {"flag": [True, False, None]}, [0, 1]),
    # columns
    ("n < big", {"n": [1, 2, None], "big": [2, 2, 2]}, [0]),
    ("big = value", {"big": [2**53, 1], "value": [2.0**53, 1.5]}, [0]),
    ("price = n", {"price": [D("2.00"), D("2.01")], "n": [2, 2]}, [0]),
    ("price = value", {"price": [D("0.41")], "value": [0.41]}, [0]),
    ("host = code", {"host": ["a", "b"], "code": ["a", "a"]}, [0]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "columns", "rows"), SELECTED, ids=[text for text, _, _ in SELECTED])
def test_a_predicate_selects_the_rows_for_which_it_is_true(
    text: str, columns: dict[str, list[Any]], rows: list[int]
) -> None:
    """These are the meanings that users will look up here."""
    if columns:
        assert rows_of(text, **columns) == rows
    else:
        with pytest.raises(SchemaError):
            bound(text)


def test_ten_thousand_values_are_looked_up_at_once() -> None:
    """A join done by hand through isin() must not compare each value with each row."""
    values = list(range(0, 20_000, 2))
    many = bound(col("big").isin(values))
    array = pa.array(range(20_000), pa.int64())
    assert np.flatnonzero(many.evaluate({"big": array}, 20_000)).tolist() == values
    chain = bound(" OR ".join(f"big = {value}" for value in values))
    assert chain.constraints() == many.constraints()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("c + 1", '"my n" + 1'),
        ("1 - c", '1 - "my n"'),
        ("x * -c", '2 * -"my n"'),
        ("abs(c) % c / 2", 'abs("my n") % "my n" / 2'),
        ("(c + 1) * 2", '("my n" + 1) * 2'),
        ("c.cast('double')", 'CAST("my n" AS double)'),
    ],
)
def test_columns_are_calculated_with(text: str, says: str) -> None:
    """What Python's operators build is what the text says."""
    built = eval(text, {"c": col("my n"), "x": np.int64(2)})
    assert str(built.node) == says and built.node == expr(says).node
    assert str(built > 5) == f"{says} > 5"
    for wrong in ("c // 2", "2 ** c"):
        with pytest.raises(InvalidArgumentError, match="not supported"):
            eval(wrong, {"c": col("my n")})


def test_text_in_double_quotes_is_told_how_to_be_text() -> None:
    """In SQL double quotes name a column, which few remember; a number beside it is no such mistake."""
    schema = build_schema({"host": "string", "n": "int64", "day": "date"}, "host")
    for text in ('host = "a"', '"a" <> host', "host < a", "host BETWEEN \"a\" AND 'b'", 'day = "a"'):
        with pytest.raises(ColumnNotFoundError, match=r"no column 'a'; if it is a text, write 'a'"):
            bind(text, schema)
    for text in ('n = "a"', '"a" = "b"', '"a" IS NULL'):
        with pytest.raises(ColumnNotFoundError) as error:
            bind(text, schema)
        assert "if it is a text" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("host = None", "nothing is equal to NULL: write IS NULL"),
        ("n <> none", "write IS NULL, or IS NOT NULL"),
        ("value = nan", "write 'NaN', in quotes"),
        ("inf > value", "write 'Infinity', in quotes"),
        ('n = "5"', "a number stands without quotes"),
        ('price < "-1.5"', "a number stands without quotes"),
    ],
)
def test_a_word_that_is_taken_for_a_column_says_what_is_meant(text: str, says: str) -> None:
    """The columns that there are help nobody who meant a value."""
    with pytest.raises(ColumnNotFoundError, match=re.escape(says)):
        bound(text)


def test_a_comparison_with_null_is_told() -> None:
    """It is SQL, and finds nothing: who does not know looks for his rows."""
    for text in ("host = NULL", "host <> NULL", "n = 1 AND NOT (n = 2 OR host = NULL)"):
        assert bound(text).null_note == "nothing is equal to NULL: host IS NULL finds such rows"
    for text in ("host IS NULL", "n = 1", "n IN (1, NULL)"):
        assert bound(text).null_note == ""


def test_chunked_and_large_columns_are_taken_too() -> None:
    """Whoever tests a predicate on his own Arrow table has such columns."""
    mask = bound("host = 'b' AND n > 1").evaluate(
        {
            "host": pa.chunked_array([["a"], ["b", "b"]], pa.large_string()),
            "n": pa.chunked_array([[1, 1], [2]], pa.int8()),
        },
        3,
    )
    assert mask.tolist() == [False, False, True]


def test_a_dictionary_with_null_words_is_no_trap() -> None:
    """Arrow allows NULL among a dictionary's words; such rows are NULL."""
    array = pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.int8()), pa.array(["a", None]))
    assert bound("code = 'a'").evaluate({"code": array}, 3).tolist() == [True, False, False]
    assert bound("code IS NULL").evaluate({"code": array}, 3).tolist() == [False, True, True]
    assert bound("code <> 'b'").evaluate({"code": array}, 3).tolist() == [True, False, False]


def test_no_rows_are_no_trouble() -> None:
    """Empty blocks and empty tables occur."""
    arrays = {column.name: pa.array([], column.type.arrow) for column in SCHEMA.columns}
    for text, _, _ in SELECTED:
        if "'x' OR" not in text:
            assert len(bound(text).evaluate(arrays, 0)) == 0


class Lazy(Mapping[str, pa.Array]):
    """Columns that say when they are decoded."""

    def __init__(self, **arrays: pa.Array) -> None:
        self.arrays, self.asked = arrays, list[str]()

    def __getitem__(self, name: str) -> pa.Array:
        self.asked.append(name)
        return self.arrays[name]

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("the columns are not listed")

    def __len__(self) -> int:
        raise AssertionError("the columns are not counted")


def test_e4_columns_are_decoded_only_when_rows_are_left() -> None:
    """The cheap condition decides most blocks; the text column of the others must not be decoded for nothing."""
    where = bound("host LIKE '%a_b%' AND n = 5")
    lazy = Lazy(n=pa.array([1, 2], pa.int8()))
    assert not where.evaluate(lazy, 2).any() and lazy.asked == ["n"]


def test_a_costly_term_sees_only_the_rows_that_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A regular expression over a million texts for the sake of one row makes a look-up slow."""
    seen: list[int] = []
    match = like.LikePattern.match

    def counted(self: like.LikePattern, array: pa.Array) -> pa.Array:
        seen.append(len(array))
        return match(self, array)

    monkeypatch.setattr(like.LikePattern, "match", counted)
    where = bound("host LIKE '%a_b%' AND n = 5")
    seen.clear()
    arrays = {"host": pa.array(["xaabx"] * 99 + ["other"]), "n": pa.array([5] + [1] * 98 + [5], pa.int8())}
    assert np.flatnonzero(where.evaluate(arrays, 100)).tolist() == [0] and seen == [2]


# --- col() ------------------------------------------------------------------------------------------


def test_col_builds_what_the_text_says() -> None:
    """Both ways to write a condition are one condition."""
    one, two = compare("n", "=", 1), compare("n", "=", 2)
    pairs: list[tuple[Any, Node]] = [
        (col("n") == 1, compare("n", "=", 1)),
        (col("n") != 1, compare("n", "<>", 1)),
        (1 < col("n"), compare("n", ">", 1)),
        (col("n") <= col("big"), compare("n", "<=", Column("big"))),
        (col("n").isin({3}), InList(Column("n"), (3,))),
        (col("n").isin(np.array([1, 2])), InList(Column("n"), (1, 2))),
        (col("n").isin(pa.array([1, 2])), InList(Column("n"), (1, 2))),
        (col("n").between(1, 2), And((compare("n", ">=", 1), compare("n", "<=", 2)))),
        (col("n").is_null(), IsNull(Column("n"))),
        (col("n").is_not_null(), IsNull(Column("n"), True)),
        (col("host").like("a!%", escape="!"), Like(Column("host"), "a!%", escape="!")),
        ((col("n") == 1) & col("flag") & (col("n") == 2), And((one, Column("flag"), two))),
        (col("flag") | (col("n") == 1), Or((Column("flag"), compare("n", "=", 1)))),
        (~col("flag"), Not(Column("flag"))),
        (~~(col("n") == 1), compare("n", "=", 1)),
        (np.int64(5) < col("n"), compare("n", ">", 5)),
    ]  # fmt: skip
    for built, meant in pairs:
        assert built == meant
        assert bound(built) == bound(str(meant))
    assert bound(col("flag")) == bound("flag")


class Color(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.int8(5), "5"),
        (np.float32(0.5), "0.5"),
        (0.1, "0.1"),
        (1e300, "1E+300"),
        (D("1.50"), "1.50"),
        (np.bool_(True), "TRUE"),
        (pa.scalar(5), "5"),
        (Color.RED, "1"),
        (bytearray(b"a"), "X'61'"),
        (memoryview(b"a"), "X'61'"),
        (np.str_("x"), "'x'"),
        (dt.datetime(2013, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1))), "TIMESTAMP '2012-12-31T23:00:00Z'"),
        (dt.datetime(2013, 1, 1), "TIMESTAMP '2013-01-01T00:00:00Z'"),
        (dt.date(2013, 1, 1), "DATE '2013-01-01'"),
        (np.datetime64("2013-01-01"), "DATE '2013-01-01'"),
        (np.datetime64("2013-01-01T01:00:00.5", "ns"), "'2013-01-01T01:00:00.500000000Z'"),
        (np.datetime64("2013-01-01T01:00:00", "s"), "TIMESTAMP '2013-01-01T01:00:00Z'"),
        (np.datetime64(2**62, "us"), str(2**62)),
        (pa.scalar(dt.datetime(2013, 1, 1), pa.timestamp("us", tz="UTC")), "TIMESTAMP '2013-01-01T00:00:00Z'"),
        (pa.scalar(1, pa.timestamp("ns")), "'1970-01-01T00:00:00.000000001Z'"),
    ],
)  # fmt: skip
def test_values_of_python_numpy_and_arrow_are_literals(value: Any, text: str) -> None:
    """A value that comes out of another library must not need a cast by hand."""
    assert str(col("x") == value) == f"x = {text}"


@pytest.mark.parametrize("name", ["n", "big", "price", "time", "value", "ratio"])
def test_a_bound_without_end_reads_back(name: str) -> None:
    """`col("n") < math.inf`, as a program writes it that has no bound, must not be taken for a text on its way."""
    for literal, spelled in ((math.inf, "Infinity"), (-math.inf, "-Infinity"), (math.nan, "NaN")):
        for predicate in (col(name) < literal, col(name).isin([literal]), col(name) >= literal):
            text = str(predicate)
            assert f"DOUBLE '{spelled}'" in text
            assert parse_predicate(text) == predicate
            assert bound(text) == bound(predicate) == bound(str(bound(text)))
    assert rows_of(f"{name} < double 'inf'", **{name: [None, 1]}) == [1]


def test_an_infinity_is_a_number() -> None:
    for text in ("1 < DOUBLE 'Infinity'", "DOUBLE 'NaN' = DOUBLE 'nan'", "DOUBLE 'Infinity' < DOUBLE 'NaN'"):
        assert bound(text).always, text
    for text in ("DOUBLE 'NaN' < 1.5", "DOUBLE 'NaN' <> DOUBLE 'NaN'", "-1 <= DOUBLE '-Infinity'"):
        assert bound(text).empty, text
    for name in ("host", "raw", "flag", "day"):
        with pytest.raises(SchemaError, match="has type"):
            bound(str(col(name) < math.inf))
    with pytest.raises(InvalidArgumentError, match=r"other numbers stand without it"):
        bound("n < DOUBLE '1.5'")


def test_a_pandas_timestamp_keeps_its_nanoseconds() -> None:
    """Rounded, `time < t` would take or leave a row too many."""
    pandas = pytest.importorskip("pandas")
    moment = pandas.Timestamp("2013-01-01T00:00:00.000001001")
    assert rows_of(
        col("time") < moment, time=[dt.datetime(2013, 1, 1, 0, 0, 0, 1), dt.datetime(2013, 1, 1, 0, 0, 0, 2)]
    ) == [0]
    assert str(col("time") == pandas.Timestamp("2013-01-01")) == "time = TIMESTAMP '2013-01-01T00:00:00Z'"
    with pytest.raises(InvalidArgumentError, match="is_null"):
        col("time") == pandas.NaT  # noqa: B015


WRONG: list[tuple[Any, str]] = [
    (lambda: col("n") == None, r"matches no row.*\.is_null\(\)"),  # noqa: E711
    (lambda: col("n").isin([1, None]), r"\.is_null\(\)"),
    (lambda: col("n").isin("abc"), "takes a list of values"),
    (lambda: col("n").isin(5), "takes a list of values"),  # type: ignore[arg-type]
    (lambda: col("n") == [1], "is no value of any column type"),
    (lambda: col("n") == dt.timedelta(1), "is no value of any column type"),
    (lambda: col("n") == (col("big") == 1), "a condition is not a value"),
    (lambda: col("n") == 10**2000, "more than 1000 digits"),
    (lambda: col("n") == D("1" * 2000), "more than 1000 digits"),
    (lambda: col("n") == dt.datetime(1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1))), "years 1 to 9999"),
    (lambda: (col("n") == 1) and (col("n") == 2), "combine predicates with & | ~"),
    (lambda: 1 < col("n") < 5, "chain of comparisons"),
    (lambda: bool(col("n")), "combine conditions with & | ~"),
    (lambda: (col("n") == 1) & 5, "is no condition; put comparisons in parentheses"),
    (lambda: col("n") > 0 & col("a") > 1, "0 is no condition; put comparisons in parentheses"),
    (lambda: col("n") > 0 | col("a") > 1, "0 is no condition; put comparisons in parentheses"),
    (lambda: col(5), "takes a text"),  # type: ignore[arg-type]
    (lambda: col("host").like(5), "takes a text"),  # type: ignore[arg-type]
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "message"), WRONG, ids=[str(place) for place in range(len(WRONG))])
def test_what_python_would_get_wrong_is_an_error(wrong: Any, message: str) -> None:
    """`a and b`, `1 < x < 5` and `== None` look right and would quietly select other rows."""
    with pytest.raises(InvalidArgumentError, match=message):
        wrong()


# --- binding ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "kind", "message"),
    [
        ("hots = 'a'", ColumnNotFoundError, "no column 'hots'; did you mean 'host'"),
        ("HOST = 'a'", ColumnNotFoundError, "did you mean 'host'"),
        ("n = 'a'", SchemaError, "column 'n' has type int8; it cannot be compared with text, 'a'"),
        ("n = '5'", SchemaError, "leave out the quotes"),
        ("n = TRUE", SchemaError, "column 'n' has type int8"),
        ("n", SchemaError, "a condition is a comparison, or a bool column alone"),
        ("host = 5", SchemaError, "column 'host' has type string; it cannot be compared with a number, 5"),
        ("host = X'00'", SchemaError, "cannot be compared with binary"),
        ("raw = 5", SchemaError, "column 'raw' has type binary"),
        ("flag = 1", SchemaError, "use TRUE or FALSE"),
        ("value = 'x'", SchemaError, "column 'value' has type double"),
        ("value = DATE '2013-01-01'", SchemaError, "cannot be compared with a date"),
        ("day = 20130101", SchemaError, "write a date as DATE"),
        ("day = 'yesterday'", InvalidArgumentError, "'yesterday' is no ISO date or time"),
        ("day = '2013-02-30'", InvalidArgumentError, "is no ISO date"),
        ("n = host", SchemaError, "column 'n' has type int8, column 'host' has type string"),
        ("n LIKE 'a'", SchemaError, "LIKE compares text only"),
        ("host LIKE 'a!b' ESCAPE '!'", InvalidArgumentError, "the escape '!' stands before 'b'"),
        ("host LIKE 'a!' ESCAPE '!'", InvalidArgumentError, "stands before the end"),
        (col("host") == "\ud800", InvalidArgumentError, "is not valid Unicode"),
        (col("raw") == "\ud800", InvalidArgumentError, "is not valid Unicode"),
        (col("host").like("\ud800%"), InvalidArgumentError, "is not valid Unicode"),
        (col("host").like("a", escape="ab"), InvalidArgumentError, "ESCAPE takes one character"),
        (Like(Column("host"), "_" * 300_000), InvalidArgumentError, "the LIKE pattern is too large"),
        (compare("n", "~", 1), InvalidArgumentError, "there is no comparison '~'"),
        (True, InvalidArgumentError, "where is text such as"),
        (["n = 1"], InvalidArgumentError, "where is text such as"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_a_predicate_that_does_not_fit_the_table_says_why(
    where: Any, kind: type[Exception], message: str
) -> None:
    """Column, type and literal are what one needs to mend it."""
    with pytest.raises(kind) as caught:
        bound(where)
    assert message in str(caught.value)


def test_no_predicate_binds_to_nothing() -> None:
    """where=None reads all rows, without a mask."""
    assert bind(None, SCHEMA) is None


def test_a_tree_too_deep_is_an_error_and_one_just_allowed_works_deep_in_a_program() -> None:
    """A predicate that a program builds in a loop must not end it by a RecursionError."""
    deep: Node = col("n") == 1
    for turn in range(10_000):
        deep = ~((col("n") == turn % 100) & deep)
    with pytest.raises(InvalidArgumentError, match="levels deep"):
        bound(deep)
    with pytest.raises(InvalidArgumentError, match="levels deep"):
        str(deep)
    with pytest.raises(InvalidArgumentError, match="levels deep|no predicate in JSON"):
        from_json('["not",' * 10_000 + '["literal",true]' + "]" * 10_000)
    flat: Node = col("n") == 1
    for turn in range(3_000):
        flat = flat | (col("n") == turn % 100)
    assert rows_of(flat, n=[99, 100]) == [0]
    limit = sys.getrecursionlimit()
    frames, frame = 0, sys._getframe()
    while (back := frame.f_back) is not None:
        frames, frame = frames + 1, back
    sys.setrecursionlimit(min(limit, frames + 800))
    try:
        text = "NOT (n = 1 AND (n = 2 OR " * (DEPTH_MAX // 2) + "n = 3" + "))" * (DEPTH_MAX // 2)
        allowed = bound(text)
        assert (
            bound(str(allowed)) == allowed and BoundPredicate.from_json(allowed.to_json(), SCHEMA) == allowed
        )
        assert len(allowed.evaluate({"n": pa.array([1, 2, 3], pa.int8())}, 3)) == 3
        allowed.constraints()
    finally:
        sys.setrecursionlimit(limit)


def test_equal_predicates_are_those_that_say_the_same() -> None:
    """Plans are cached and compared by predicate."""
    assert bound("n = 5") == bound(col("n") == 5.0) == bound("5 = n") != bound("n = 6")
    assert bound("value = 'NaN'") == bound(col("value") == math.nan)
    assert hash(bound("value = 'NaN'")) == hash(bound(col("value") == float("nan")))
    assert bound("n = 5") != "n = 5"
    assert str(bound("ratio = 0.1 AND time = '2013-01-01' AND day = '2013-01-01T00:00Z'")) == (
        "ratio = 0.1 AND time = TIMESTAMP '2013-01-01T00:00:00Z' AND day = DATE '2013-01-01'"
    )
    assert repr(bound("n = 5")) == "BoundPredicate('n = 5')"


# --- JSON -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "[]",
        '["compare",["column","n"],"=",["literal",1],1]',
        '["literal",{"decimal":"x"}]',
        '["literal",{"date":"x"}]',
        '["literal",{"timestamp":"x"}]',
        '["literal",{"binary":"0"}]',
        '["literal",{"int":"0"}]',
        '["literal",[1]]',
        '["literal",1.5]',
        '["inlist",["column","n"],1]',
        '["like",["column","n"],"a","b",null,false]',
        '["and",["literal",true]]',
        '{"and": []}',
        '["literal",' + "1" * 5000 + "]",
    ],
)
def test_other_json_is_an_error(text: str) -> None:
    """A token from another version must not become some other predicate."""
    with pytest.raises(InvalidArgumentError, match="JSON|digits"):
        from_json(text)


def test_json_keeps_every_kind_of_literal() -> None:
    """What a scan token carries is what the scan evaluates."""
    values = (
        None,
        True,
        5,
        D("1.50"),
        "x\ud800"[:1],
        b"\0\xff",
        dt.date(1, 1, 1),
        dt.datetime(2013, 1, 1, 1, 2, 3, 4, UTC),
        math.inf,
    )
    predicate = And(
        (
            InList(Column("x"), values),
            Like(Column("y"), "a", True, "!"),
            ~Or((IsNull(Column("z")), compare("a", "<", Column("b")))),
        )
    )
    text = to_json(predicate)
    assert from_json(text) == predicate and json.loads(text)[0] == "and"


# --- pyarrow expressions ----------------------------------------------------------------------------


def test_a_pyarrow_expression_prunes_nothing() -> None:
    where = bound((pc.field("value") > 1) | pc.field("n").is_null())
    assert where.columns == {"value", "n"} and not where.prunes and not where.constraints()
    arrays = {"value": pa.array([0.0, 2.0, math.nan, 0.0]), "n": pa.array([1, 1, 1, None], pa.int8())}
    assert where.evaluate(arrays, 4).tolist() == [False, True, True, True]
    assert rows_of(pc.scalar(True), n=[1, 2]) == [0, 1]
    assert rows_of(pc.field(2) > 1, **{name: [None] for name in SCHEMA.names[2:]}, host=["a"], time=[0]) == []
    with pytest.raises(InvalidArgumentError, match="cannot be sent to another process"):
        where.to_json()
    assert where == bound((pc.field("value") > 1) | pc.field("n").is_null()) != bound(pc.field("value") > 1)


FLOATS = [math.nan, math.inf, -math.inf, 1.0, 0.1, -0.0, 0.0, None]
X, F, N = pc.field("value"), pc.field("ratio"), pc.field("n")
SAME: list[tuple[pc.Expression, str]] = [
    *((op(X, literal), f"value {text} DOUBLE '{literal}'") for op, text in (
        (operator.gt, ">"), (operator.ge, ">="), (operator.lt, "<"), (operator.le, "<="), (operator.eq, "="),
        (operator.ne, "<>"),
    ) for literal in (math.nan, math.inf)),
    (X > 0, "value > 0"),
    (~(X > 0), "NOT value > 0"),
    (X != 0, "value <> 0"),
    (F >= 0.1, "ratio >= 0.1"),
    (F < X, "ratio < value"),
    (X.isin([math.nan, 0.0]), "value IN ('NaN', 0)"),
    (~X.isin([math.nan, 0.0]), "value NOT IN ('NaN', 0) OR value IS NULL"),
    (X.isin([1.0, None]), "value = 1 OR value IS NULL"),
    (X.is_nan(), "value = 'NaN'"),
    (X.is_null() | (X > 5), "value IS NULL OR value > 5"),
    ((X > 0) & (N > 1.5), "value > 0 AND n > 1.5"),
    ((X > 0) & (pc.field("big") > 1.5), "value > 0 AND big > 1.5"),
    ((X > 0) & (pc.field("host") != "a") & pc.field("time").is_valid(), "value > 0 AND host <> 'a'"),
    ((X > 0) & (pc.field("day") > dt.date(2012, 1, 1)), "value > 0 AND day > '2012-01-01'"),
    ((X > 0) & (pc.field("raw") == b"a"), "value > 0 AND raw = X'61'"),
]  # fmt: skip


@pytest.mark.parametrize(("expression", "text"), SAME, ids=[text for _, text in SAME])
def test_nan_is_greatest_in_a_pyarrow_expression_too(expression: pc.Expression, text: str) -> None:
    """One condition has one meaning, however it is written."""
    pairs = [(x, f) for x in FLOATS for f in FLOATS]
    columns: dict[str, list[Any]] = {"value": [x for x, _ in pairs], "ratio": [f for _, f in pairs]}
    for name, some in (
        ("n", [1, 2, None]),
        ("big", [1, 2, None]),
        ("host", ["a", "b"]),
        ("raw", [b"a", b"b"]),
    ):
        columns[name] = [some[place % len(some)] for place in range(len(pairs))]
    columns["time"] = [dt.datetime(2013, 1, 1)] * len(pairs)
    columns["day"] = [dt.date(2013, 1, 1)] * len(pairs)
    assert rows_of(expression, **columns) == rows_of(text, **columns)


def test_a_pyarrow_function_of_nan_is_refused() -> None:
    """Nobody can say what it would mean; without NaN Arrow computes it."""
    assert rows_of(pc.sqrt(X) > 1, value=[4.0, 1.0, None]) == [0]
    with pytest.raises(InvalidArgumentError, match=r"column 'value' holds NaN.* as text, or with nyala\.col"):
        rows_of(pc.sqrt(X) > 1, value=[4.0, math.nan])


def test_a_pyarrow_expression_combines_with_ours() -> None:
    """Only the part that Arrow evaluates prunes nothing."""
    where = bound((col("n") > 1) & ~(pc.field("value") > 1))
    assert where.prunes and where.constraints() == bound("n > 1").constraints() and where.has_arrow_expression
    arrays = {"value": pa.array([0.0, 2.0, None]), "n": pa.array([2, 2, 2], pa.int8())}
    assert where.evaluate(arrays, 3).tolist() == [True, False, False]
    assert not bound("n > 1").has_arrow_expression


@pytest.mark.parametrize(
    ("expression", "kind"),
    [
        (pc.field("nope") > 1, ColumnNotFoundError),
        (pc.field("n"), InvalidArgumentError),
        (pc.field("n") > "x", InvalidArgumentError),
    ],
)
def test_a_pyarrow_expression_that_does_not_fit_is_refused_when_bound(
    expression: Any, kind: type[Exception]
) -> None:
    """And not in the middle of a scan."""
    with pytest.raises(kind, match="pyarrow expression"):
        bound(expression)


# --- constraints ------------------------------------------------------------------------------------

DAY = 86_400_000_000
CONSTRAINTS: list[tuple[str, dict[str, str]]] = [
    ("big = 5", {"big": "in (5)"}),
    ("big > 5", {"big": "in [6, )"}),
    ("big < 5 AND big >= 2", {"big": "in [2, 4]"}),
    ("big BETWEEN 3 AND 3.5", {"big": "in (3)"}),
    ("big IN (3, 1, 2, 3) AND big > 1", {"big": "in (2, 3)"}),
    ("big = 1 OR big = 2 OR big IN (7)", {"big": "in (1, 2, 7)"}),
    ("big < 3 OR big = 7", {"big": "in (, 7]"}),
    ("big < 3 OR big > 7", {"big": "not NULL"}),
    ("big < 3 OR n = 7", {}),
    ("(big = 1 AND n = 1) OR (big = 2 AND host = 'a')", {"big": "in (1, 2)"}),
    ("(big = 1 AND big = 2) OR n = 1", {"n": "in (1)"}),
    ("big = 1 OR big IS NULL", {"big": "in (1) or NULL"}),
    ("big IS NULL", {"big": "NULL"}),
    ("big IS NOT NULL", {"big": "not NULL"}),
    ("big <> 5", {"big": "not NULL"}),
    ("NOT big >= 5", {"big": "in (, 4]"}),
    ("NOT (big >= 5 OR n < 2)", {"big": "in (, 4]", "n": "in [2, )"}),
    ("NOT (big < 5 AND n < 2)", {}),
    ("n >= -128", {"n": "not NULL"}),
    ("n < 300", {"n": "not NULL"}),
    ("host < 'b' AND host >= 'a'", {"host": "in ['a', 'b')"}),
    ("host >= 'a' AND host <= 'a'", {"host": "in ('a')"}),
    ("host > 'a' AND host >= 'a'", {"host": "in ('a', )"}),
    ("host > 'a' OR host >= 'a'", {"host": "in ['a', )"}),
    ("host <= 'a' AND host < 'a'", {"host": "in (, 'a')"}),
    ("host <= 'a' OR host < 'a'", {"host": "in (, 'a']"}),
    ("big NOT IN (1, 2)", {"big": "not NULL"}),
    ("host IS NOT NULL", {}),
    ("host LIKE 'ab%'", {"host": "in ['ab', 'ac')"}),
    ("host LIKE 'ab_%' AND host > 'abc'", {"host": "in ('abc', 'ac')"}),
    ("host NOT LIKE 'ab%'", {}),
    ("host LIKE '%ab'", {}),
    ("code NOT LIKE 'ab%'", {"code": "not NULL"}),
    ("value > 5", {"value": "in (5.0, )"}),
    ("value < 'NaN'", {"value": "in (, nan)"}),
    ("value > 5 AND value < 5", {"value": "nothing"}),
    ("price > 1.234 AND price < 2", {"price": "in [124, 199]"}),
    ("time >= '1970-01-02'", {"time": f"in [{DAY}, )"}),
    ("day = '1970-01-02'", {"day": "in (1)"}),
    ("flag", {"flag": "in (True)"}),
    ("flag OR NOT flag", {"flag": "in (False, True)"}),
    ("n = big", {"n": "not NULL", "big": "not NULL"}),
    ("n = 300", {"n": "nothing"}),
    ("big = 1 AND big = 2", {"big": "nothing"}),
    ("big = 1 AND big IS NULL", {"big": "nothing"}),
    ("host IS NULL", {"host": "nothing"}),
    ("big = 1 AND FALSE", {"big": "nothing"}),
    ("FALSE", {}),
]


@pytest.mark.parametrize(("text", "constraints"), CONSTRAINTS, ids=[text for text, _ in CONSTRAINTS])
def test_constraints_are_as_narrow_as_the_predicate_allows(text: str, constraints: dict[str, str]) -> None:
    """What is not in a constraint is read from disk for nothing."""
    found = bound(text).constraints()
    assert {name: str(constraint) for name, constraint in found.items()} == constraints
    for constraint in found.values():
        constraint.check()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n = 300", ["n"]),
        ("FALSE", []),
        ("big = 1 AND big = 2", ["big"]),
        ("host IS NULL AND (n = 1 OR flag)", ["host", "n", "flag"]),
        ("n NOT IN (1, NULL)", ["n"]),
        ("n = NULL AND big = price", ["n", "big", "price"]),
    ],
)
def test_a_predicate_that_no_row_satisfies_says_so(text: str, names: list[str]) -> None:
    """Then nothing at all is read."""
    where = bound(text)
    assert where.empty and where.prunes and not where.always
    assert where.constraints() == dict.fromkeys(names, EMPTY)


def test_a_predicate_that_every_row_satisfies_says_so() -> None:
    """Then no mask is computed."""
    assert bound("1 = 1 OR n = 5").always and not bound("n = n").always
    assert bound("TRUE").columns == frozenset() and not bound("TRUE").prunes


def test_the_text_after_a_prefix_is_the_least_that_no_longer_has_it() -> None:
    """LIKE 'a%' skips by it; a text too small would skip rows."""
    after = like.text_after_prefix
    assert after("ab") == "ac" and after("a\ud7ff") == "a\ue000" and after("a\U0010ffff") == "b"
    assert after("\U0010ffff") is None and after("") is None


NAN = math.nan
ZONES: list[tuple[str, tuple[Any, Any, int | None, int, bool], bool]] = [
    # predicate, (min, max, null_count, row_count, has_nan), skipped
    ("big = 5", (6, 9, 0, 10, False), True),
    ("big = 5", (1, 4, 0, 10, False), True),
    ("big = 5", (5, 9, 0, 10, False), False),
    ("big > 9", (1, 9, 0, 10, False), True),
    ("big >= 9", (1, 9, 0, 10, False), False),
    ("big < 1", (1, 9, 0, 10, False), True),
    ("big IN (1, 9)", (2, 8, 0, 10, False), True),
    ("big IN (1, 5, 9)", (2, 8, 0, 10, False), False),
    ("big = 5", (None, None, 10, 10, False), True),
    ("big = 5", (None, None, 9, 10, False), False),
    ("big = 5", (None, None, None, 10, False), False),
    ("big = 5", (None, 4, 0, 10, False), True),
    ("big = 5", (6, None, 0, 10, False), True),
    ("big = 5", (0, 9, 0, 0, False), True),
    ("big <> 5", (5, 5, 0, 10, False), False),
    ("big IS NULL", (1, 9, 0, 10, False), True),
    ("big IS NULL", (1, 9, 1, 10, False), False),
    ("big IS NULL", (1, 9, None, 10, False), False),
    ("big IS NOT NULL", (None, None, 10, 10, False), True),
    ("big IS NOT NULL", (1, 9, 9, 10, False), False),
    ("big = 5 OR big IS NULL", (6, 9, 0, 10, False), True),
    ("big = 5 OR big IS NULL", (6, 9, 1, 10, False), False),
    ("value > 9", (1.0, 8.0, 0, 10, False), True),
    ("value > 9", (1.0, 8.0, 0, 10, True), False),
    ("value = 'NaN'", (1.0, 8.0, 0, 10, False), True),
    ("value = 'NaN'", (1.0, 8.0, 0, 10, True), False),
    ("value < 0", (1.0, 8.0, 0, 10, True), True),
    ("value < 0", (None, None, 0, 10, True), False),
    ("value < 'NaN'", (1.0, 8.0, 0, 10, True), False),
    ("value = 0", (-0.0, -0.0, 0, 10, False), False),
    ("value IS NOT NULL", (None, None, 5, 10, True), False),
    ("host = 'abc'", ("ab", "ac", 0, 10, False), False),
    ("host = 'abc'", (b"ab", b"ac", 0, 10, False), False),
    ("host = 'b'", (b"ab", b"ac", 0, 10, False), True),
    ("host > 'ac'", (b"ab", b"ac", 0, 10, False), True),
    ("host = 'é'", (b"\xc3", b"\xc4", 0, 10, False), False),
    ("host LIKE 'x%'", ("a", "w", 0, 10, False), True),
    ("host LIKE 'x%'", ("a", "xa", 0, 10, False), False),
    ("raw = X'ff'", (b"\x00", b"\xfe", 0, 10, False), True),
    ("flag", (False, False, 0, 10, False), True),
    ("NOT flag", (False, True, 0, 10, False), False),
    ("price = 1.23", (124, 200, 0, 10, False), True),
]


@pytest.mark.parametrize(
    ("text", "zone", "skipped"), ZONES, ids=[f"{text} {zone}" for text, zone, _ in ZONES]
)
def test_z1_a_zone_is_skipped_when_nothing_in_it_can_match(
    text: str, zone: tuple[Any, Any, int | None, int, bool], skipped: bool
) -> None:
    """Skipped wrongly, rows are lost; not skipped, time is."""
    (constraint,) = bound(text).constraints().values()
    assert constraint.excludes_range(*zone) is skipped


def test_constraints_combine() -> None:
    """The scan merges a predicate with bounds of its own."""
    low, high = Constraint(lower=1.0, null="none"), Constraint(upper=2.0, upper_inclusive=False)
    both = low.intersect(high)
    assert str(both) == "in [1.0, 2.0)" and str(high) == "in (, 2.0) or NULL"
    assert low.union(high).is_any and low.union(EMPTY) == low and low.intersect(EMPTY) == EMPTY
    assert high.intersect(Constraint(lower=3.0)) == Constraint(null="only")
    assert Constraint.one_of([2, 1, 2]).values == (1, 2) and Constraint.one_of([]) == EMPTY
    assert Constraint.one_of([1]).union(Constraint(null="only")).admits(None)
    assert not Constraint.one_of([1]).admits(None)
    assert str(Constraint.one_of(range(9))) == "in (0, 1, 2, 3, 4, …)"
