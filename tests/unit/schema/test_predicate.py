"""Predicates by example: col(), binding to a schema, messages, JSON and pyarrow expressions.

test_predicate_properties.py shows for random tables that masks and constraints are right.
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
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from nyala.errors import ColumnNotFoundError, InvalidArgumentError, SchemaError
from nyala.schema.expressions.nodes import (
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
from nyala.schema.expressions.parser import parse_predicate
from nyala.schema.expressions.tokens import DEPTH_MAX
from nyala.schema.predicates.predicate import BoundPredicate, bind, col, from_json, to_json
from nyala.schema.schema import build_schema

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
    """Return the positions of the rows that `where` selects."""
    arrays = {
        # Slices, so that code that ignores the offset of an array fails.
        name: pa.array([None, *values], SCHEMA.by_name(name).type.arrow)[1:]
        for name, values in columns.items()
    }
    count = len(next(iter(columns.values())))
    return np.flatnonzero(bound(where).evaluate(arrays, count)).tolist()


# --- selected rows ----------------------------------------------------------------------------------


def test_an_unknown_name_in_double_quotes_may_be_meant_as_text() -> None:
    """The error about an unknown name in double quotes says how to write a text.

    It says so only if the other side of the comparison is a text or date.
    """
    schema = build_schema({"host": "string", "n": "int64", "day": "date"}, "host")
    for text in ('host = "a"', '"a" <> host', "host < a", "host BETWEEN \"a\" AND 'b'", 'day = "a"'):
        with pytest.raises(ColumnNotFoundError, match=r"no column 'a'; if you mean a text, write 'a'"):
            bind(text, schema)
    for text in ('n = "a"', '"a" = "b"', '"a" IS NULL'):
        with pytest.raises(ColumnNotFoundError) as error:
            bind(text, schema)
        assert "for a text" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("host = None", "nothing equals NULL; write IS NULL"),
        ("n <> none", "write IS NULL or IS NOT NULL"),
        ("value = nan", "write 'NaN', in quotes"),
        ("inf > value", "write 'Infinity', in quotes"),
        ('n = "5"', "write a number without quotes"),
        ('price < "-1.5"', "write a number without quotes"),
    ],
)
def test_words_such_as_none_and_nan_are_explained_and_no_columns(text: str, says: str) -> None:
    with pytest.raises(ColumnNotFoundError, match=re.escape(says)):
        bound(text)


def test_a_comparison_with_null_has_a_note() -> None:
    """A comparison with NULL is valid SQL but selects no row, so the predicate has a note about it."""
    for text in ("host = NULL", "host <> NULL", "n = 1 AND NOT (n = 2 OR host = NULL)"):
        assert bound(text).null_note == "nothing equals NULL; use host IS NULL to find NULLs"
    for text in ("host IS NULL", "n = 1", "n IN (1, NULL)"):
        assert bound(text).null_note == ""


# --- col() ------------------------------------------------------------------------------------------


def test_col_builds_the_tree_of_the_same_text() -> None:
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
    assert str(col("x") == value) == f"x = {text}"


@pytest.mark.parametrize("name", ["n", "big", "price", "time", "value", "ratio"])
def test_infinities_and_nan_are_parsed_from_their_own_text(name: str) -> None:
    """Programs write `col("n") < math.inf` for no bound."""
    for literal, spelled in ((math.inf, "Infinity"), (-math.inf, "-Infinity"), (math.nan, "NaN")):
        for predicate in (col(name) < literal, col(name).isin([literal]), col(name) >= literal):
            text = str(predicate)
            assert f"DOUBLE '{spelled}'" in text
            assert parse_predicate(text) == predicate
            assert bound(text) == bound(predicate) == bound(str(bound(text)))
    assert rows_of(f"{name} < double 'inf'", **{name: [None, 1]}) == [1]


def test_infinities_and_nan_are_compared_with_numbers_only() -> None:
    for text in ("1 < DOUBLE 'Infinity'", "DOUBLE 'NaN' = DOUBLE 'nan'", "DOUBLE 'Infinity' < DOUBLE 'NaN'"):
        assert str(bound(text)) == "TRUE", text
    for text in ("DOUBLE 'NaN' < 1.5", "DOUBLE 'NaN' <> DOUBLE 'NaN'", "-1 <= DOUBLE '-Infinity'"):
        assert bound(text).selects_none, text
    for name in ("host", "raw", "flag", "day"):
        with pytest.raises(SchemaError, match="of type"):
            bound(str(col(name) < math.inf))
    with pytest.raises(InvalidArgumentError, match=r"write other numbers without DOUBLE"):
        bound("n < DOUBLE '1.5'")


def test_a_pandas_timestamp_keeps_its_nanoseconds() -> None:
    """If it were rounded, `time < t` would select a wrong row."""
    pandas = pytest.importorskip("pandas")
    moment = pandas.Timestamp("2013-01-01T00:00:00.000001001")
    assert rows_of(
        col("time") < moment, time=[dt.datetime(2013, 1, 1, 0, 0, 0, 1), dt.datetime(2013, 1, 1, 0, 0, 0, 2)]
    ) == [0]
    assert str(col("time") == pandas.Timestamp("2013-01-01")) == "time = TIMESTAMP '2013-01-01T00:00:00Z'"
    with pytest.raises(InvalidArgumentError, match="is_null"):
        col("time") == pandas.NaT  # noqa: B015


WRONG: list[tuple[Any, str]] = [
    (lambda: col("n") == None, r"never matches.*\.is_null\(\)"),  # noqa: E711
    (lambda: col("n").isin([1, None]), r"\.is_null\(\)"),
    (lambda: col("n").isin("abc"), "expects a list of values"),
    (lambda: col("n").isin(5), "expects a list of values"),  # type: ignore[arg-type]
    (lambda: col("n") == [1], "no column type supports the value"),
    (lambda: col("n") == dt.timedelta(1), "no column type supports the value"),
    (lambda: col("n") == (col("big") == 1), "an operand is a condition, not a value"),
    (lambda: col("n") == 10**2000, "more than 1000 digits"),
    (lambda: col("n") == D("1" * 2000), "more than 1000 digits"),
    (lambda: col("n") == dt.datetime(1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1))), "years 1 to 9999"),
    (lambda: (col("n") == 1) and (col("n") == 2), "combine predicates with & | ~"),
    (lambda: 1 < col("n") < 5, "chained comparisons"),
    (lambda: bool(col("n")), "combine conditions with & | ~"),
    (lambda: (col("n") == 1) & 5, "is not a condition; put comparisons in parentheses"),
    (lambda: col("n") > 0 & col("a") > 1, "0 is not a condition; put comparisons in parentheses"),
    (lambda: col("n") > 0 | col("a") > 1, "0 is not a condition; put comparisons in parentheses"),
    (lambda: col(5), "expects a column name"),  # type: ignore[arg-type]
    (lambda: col("host").like(5), "expects a text"),  # type: ignore[arg-type]
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "message"), WRONG, ids=[str(place) for place in range(len(WRONG))])
def test_conditions_that_python_would_evaluate_wrongly_are_errors(wrong: Any, message: str) -> None:
    """`a and b`, `1 < x < 5` and `== None` would select other rows without an error."""
    with pytest.raises(InvalidArgumentError, match=message):
        wrong()


# --- binding ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "kind", "message"),
    [
        ("hots = 'a'", ColumnNotFoundError, "no column 'hots'; did you mean 'host'"),
        ("HOST = 'a'", ColumnNotFoundError, "did you mean 'host'"),
        ("n = 'a'", SchemaError, "cannot compare column 'n' of type int8 with text, 'a'"),
        ("n = '5'", SchemaError, "write a number without quotes"),
        ("n = TRUE", SchemaError, "cannot compare column 'n' of type int8"),
        ("n", SchemaError, "a condition is a comparison or a bool column"),
        ("host = 5", SchemaError, "cannot compare column 'host' of type string with a number, 5"),
        ("host = X'00'", SchemaError, "with binary"),
        ("raw = 5", SchemaError, "cannot compare column 'raw' of type binary"),
        ("flag = 1", SchemaError, "use TRUE or FALSE"),
        ("value = 'x'", SchemaError, "cannot compare column 'value' of type double"),
        ("value = DATE '2013-01-01'", SchemaError, "with a date"),
        ("day = 20130101", SchemaError, "write a date as DATE"),
        ("day = 'yesterday'", InvalidArgumentError, "'yesterday' is not an ISO date or time"),
        ("day = '2013-02-30'", InvalidArgumentError, "is not an ISO date"),
        ("n = host", SchemaError, "column 'n' of type int8 with column 'host' of type string"),
        ("n LIKE 'a'", SchemaError, "LIKE compares text only"),
        ("host LIKE 'a!b' ESCAPE '!'", InvalidArgumentError, "the escape '!' is followed by 'b'"),
        ("host LIKE 'a!' ESCAPE '!'", InvalidArgumentError, "is followed by the end"),
        (col("host") == "\ud800", InvalidArgumentError, "is not valid Unicode"),
        (col("raw") == "\ud800", InvalidArgumentError, "is not valid Unicode"),
        (col("host").like("\ud800%"), InvalidArgumentError, "is not valid Unicode"),
        (col("host").like("a", escape="ab"), InvalidArgumentError, "ESCAPE expects one character"),
        (Like(Column("host"), "_" * 300_000), InvalidArgumentError, "the LIKE pattern is too large"),
        (compare("n", "~", 1), InvalidArgumentError, "unknown comparison '~'"),
        (True, InvalidArgumentError, "where must be text such as"),
        (["n = 1"], InvalidArgumentError, "where must be text such as"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_a_predicate_that_does_not_fit_the_table_is_an_error(
    where: Any, kind: type[Exception], message: str
) -> None:
    """The message has the column, its type and the literal."""
    with pytest.raises(kind) as caught:
        bound(where)
    assert message in str(caught.value)


def test_a_tree_that_is_too_deep_is_an_error_and_the_deepest_allowed_one_works() -> None:
    """There is no RecursionError, even if the caller itself is deep in recursion."""
    deep: Node = col("n") == 1
    for turn in range(10_000):
        deep = ~((col("n") == turn % 100) & deep)
    with pytest.raises(InvalidArgumentError, match="levels deep"):
        bound(deep)
    with pytest.raises(InvalidArgumentError, match="levels deep"):
        str(deep)
    with pytest.raises(InvalidArgumentError, match="levels deep|invalid JSON of a predicate"):
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
def test_invalid_json_is_an_error(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="JSON|digits"):
        from_json(text)


def test_json_keeps_every_kind_of_literal() -> None:
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
def test_a_pyarrow_expression_compares_nan_as_the_same_text_does(
    expression: pc.Expression, text: str
) -> None:
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
    """Arrow computes functions, but only if there is no NaN."""
    assert rows_of(pc.sqrt(X) > 1, value=[4.0, 1.0, None]) == [0]
    with pytest.raises(
        InvalidArgumentError, match=r"column 'value' contains NaN.* as text or with nyala\.col"
    ):
        rows_of(pc.sqrt(X) > 1, value=[4.0, math.nan])


def test_a_pyarrow_expression_can_be_combined_with_col() -> None:
    """The part without pyarrow still has constraints."""
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
    """The error comes before the scan begins."""
    with pytest.raises(kind, match="pyarrow expression"):
        bound(expression)


# --- constraints ------------------------------------------------------------------------------------
