"""The values of `update(set=…)`: constants, expressions, and the rows that fail."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nyala.errors import (
    NULL,
    OUT_OF_RANGE,
    VALUE_TOO_LARGE,
    ColumnNotFoundError,
    InvalidArgumentError,
    SchemaError,
)
from nyala.schema.predicates.assignment import Expression, parse_assignment
from nyala.schema.predicates.predicate import expr
from nyala.schema.schema import build_schema, column

D = decimal.Decimal
UTC = dt.UTC
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
SCHEMA = build_schema(
    {
        "id": "int64",
        "tiny": "int8",
        "n": "int64",
        "must": column("int32", nullable=False),
        "single": "float",
        "x": "double",
        "price": "decimal(5,2)",
        "wide": "decimal(38,6)",
        "code": "varchar(5)",
        "name": "string",
        "raw": "binary",
        "time": "timestamp",
        "day": "date",
        "flag": "bool",
        "done": "bool",
        "other": "string",
        "odd name": "string",
    },
    ["id"],
)


def expression_for(text: str, target: str) -> Expression:
    return parse_assignment(expr(text), SCHEMA, SCHEMA.by_name(target))


def computed(value: Any) -> Any:
    return expr(value) if isinstance(value, str) else value


def assign(target: str, value: Any, **columns: list[Any]) -> tuple[list[Any], dict[int, str]]:
    """Return the new values, and the error code of each failed row. Without columns there is one row."""
    expression = parse_assignment(value, SCHEMA, SCHEMA.by_name(target))
    assert expression.columns <= set(columns)
    arrays = {name: pa.array(values, SCHEMA.by_name(name).type.arrow) for name, values in columns.items()}
    count = len(next(iter(columns.values()))) if columns else 1
    array, errors = expression.evaluate(arrays, count)
    assert array.type == SCHEMA.by_name(target).type.arrow and len(array) == count
    assert all(f"column {target!r}: " in message for message in errors.messages)
    assert not any(array.is_valid().to_numpy(zero_copy_only=False)[errors.rows])
    return array.to_pylist(), dict(zip(errors.rows.tolist(), errors.codes, strict=True))


# A str is a constant, even if it looks like an expression.
VALUES: list[tuple[str, Any, Any]] = [
    ("n", 5, 5),
    ("n", None, None),
    ("x", 0.5, 0.5),
    ("price", D("1.5"), D("1.50")),
    ("flag", True, True),
    ("raw", b"\0", b"\0"),
    ("raw", "text", b"text"),
    ("day", dt.date(2013, 1, 1), dt.date(2013, 1, 1)),
    ("day", "2013-01-01", dt.date(2013, 1, 1)),
    ("time", "2013-01-01T10:00+01:00", dt.datetime(2013, 1, 1, 9, tzinfo=UTC)),
    ("time", dt.datetime(2013, 1, 1), dt.datetime(2013, 1, 1, tzinfo=UTC)),
    ("code", "abcdefg", "abcde"),
    ("name", pa.scalar("other"), "other"),
    *(("name", text, text) for text in (
        "", "done and dusted", "5", "n + 1", "it's", "'tis'", "x'41'", "'quoted'", '"other"', "other", "name || other",
        "upper(other)", "CASE WHEN n = 1 THEN 'x' END", "NULL", "trim(x)", "nobody", "?", ":name",
    )),
]  # fmt: skip


@pytest.mark.parametrize(("target", "value", "stored"), VALUES)
def test_a_constant_is_stored_as_it_is(target: str, value: Any, stored: Any) -> None:
    """A text is never evaluated, even if it looks like an expression."""
    assert assign(target, value) == ([stored], {})


FAILING: list[tuple[str, Any, dict[str, list[Any]], list[Any], dict[int, str]]] = [
    ("n", "n + 1", {"n": [INT64_MAX, 1]}, [None, 2], {0: OUT_OF_RANGE}),
    ("n", "n - 1", {"n": [INT64_MIN, 1]}, [None, 0], {0: OUT_OF_RANGE}),
    ("n", "-n", {"n": [INT64_MIN, 1]}, [None, -1], {0: OUT_OF_RANGE}),
    ("n", "abs(n)", {"n": [INT64_MIN]}, [None], {0: OUT_OF_RANGE}),
    ("n", "n * n", {"n": [2**32, 2**31, None]}, [None, 2**62, None], {0: OUT_OF_RANGE}),
    ("n", "n * -1", {"n": [INT64_MIN]}, [None], {0: OUT_OF_RANGE}),
    ("n", "-1 * n", {"n": [INT64_MIN]}, [None], {0: OUT_OF_RANGE}),
    ("tiny", "tiny * 2", {"tiny": [64, -64, 63]}, [None, -128, 126], {0: OUT_OF_RANGE}),
    ("tiny", 300, {"n": [1, 2]}, [None, None], {0: OUT_OF_RANGE, 1: OUT_OF_RANGE}),
    ("n", "1 / n", {"n": [0, 1, None]}, [None, 1, None], {0: OUT_OF_RANGE}),
    ("n", "1 % n", {"n": [0, 2]}, [None, 1], {0: OUT_OF_RANGE}),
    ("n", "n / 2", {"n": [1, 2]}, [None, 1], {0: OUT_OF_RANGE}),
    ("n", "round(x)", {"x": [2.0**63, -(2.0**63), math.nan, math.inf]}, [None, INT64_MIN, None, None],
     {0: OUT_OF_RANGE, 2: OUT_OF_RANGE, 3: OUT_OF_RANGE}),
    ("price", "price * 1.5", {"price": [D("1.01"), D("1.02")]}, [None, D("1.53")], {0: OUT_OF_RANGE}),
    ("price", "price + 1", {"price": [D("999.00")]}, [None], {0: OUT_OF_RANGE}),
    ("price", "x", {"x": [0.125, 1e300, math.nan, 0.25]}, [None, None, None, D("0.25")],
     {0: OUT_OF_RANGE, 1: OUT_OF_RANGE, 2: OUT_OF_RANGE}),
    ("single", "x", {"x": [1e39, 1e38, math.inf]}, [None, float(np.float32(1e38)), math.inf], {0: OUT_OF_RANGE}),
    ("must", "n", {"n": [None, 1, 2**40]}, [None, 1, None], {0: NULL, 2: OUT_OF_RANGE}),
    ("must", None, {"n": [1]}, [None], {0: NULL}),
    ("name", "name || name", {"name": ["x" * 40_000, "y"]}, [None, "yy"], {0: VALUE_TOO_LARGE}),
    # a row fails only because of the branch that it takes
    ("n", "CASE WHEN n < 10 THEN n * n ELSE 0 END", {"n": [2**40, 3]}, [0, 9], {}),
    ("n", "CASE WHEN n > 10 THEN n * n ELSE 0 END", {"n": [2**40, 3]}, [None, 0], {0: OUT_OF_RANGE}),
    ("n", "CASE WHEN must = 0 THEN 0 ELSE n % must END", {"n": [5, 5], "must": [0, 3]}, [0, 2], {}),
    ("n", "coalesce(tiny, n * n)", {"tiny": [1, None], "n": [2**40, 2**40]}, [1, None], {1: OUT_OF_RANGE}),
    ("n", "coalesce(n * n + tiny, 7)", {"tiny": [None, None], "n": [2**40, 1]}, [None, 7], {0: OUT_OF_RANGE}),
    ("n", "coalesce(n * n, tiny)", {"tiny": [1, 1], "n": [2**40, None]}, [None, 1], {0: OUT_OF_RANGE}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("target", "value", "columns", "result", "codes"),
    FAILING,
    ids=[f"{place}-{case[0]}-{case[1]}" for place, case in enumerate(FAILING)],
)  # fmt: skip
def test_a_value_that_does_not_fit_fails_its_row_alone(
    target: str, value: Any, columns: dict[str, list[Any]], result: list[Any], codes: dict[int, str]
) -> None:
    """The other rows of the update get their values."""
    if not isinstance(value, str):
        columns = {"n": columns["n"]}
    assert assign(target, computed(value), **columns) == (result, codes)


REFUSED: list[tuple[str, Any, type[Exception], str]] = [
    ("n", "nn + 1", ColumnNotFoundError, "no column 'nn'"),
    ("n", "n +", InvalidArgumentError, "expected a column, a value or '(', but the text ends"),
    ("n", "n n", InvalidArgumentError, "expected an operator or the end, found n"),
    ("n", "(n", InvalidArgumentError, "expected ')', AND or OR"),
    ("n", "n = 1", SchemaError, "expected int64, got bool"),
    ("n", "abs(n, 1)", InvalidArgumentError, "expected 1 argument for abs(), not 2"),
    ("n", "round(x, n)", SchemaError, "round() expects a number of digits as a constant"),
    ("n", "CASE n THEN 1 END", InvalidArgumentError, "expected WHEN"),
    ("n", "CASE WHEN n = 1 THEN 2", InvalidArgumentError, "expected WHEN, ELSE or END"),
    ("n", "CASE WHEN n THEN 2 END", SchemaError, "a condition is a comparison"),
    ("n", "end", InvalidArgumentError, 'write "end" for a column of that name'),
    ("n", "", InvalidArgumentError, "the expression is empty"),
    ("n", "'x'", SchemaError, "expected int64"),
    ("n", "n + 'x'", SchemaError, "+ expects numbers, got text"),
    ("n", "n + flag", SchemaError, "+ expects numbers, got bool"),
    ("n", "-name", SchemaError, "'-' expects a number, got text"),
    ("n", "length(n)", SchemaError, "length() expects text or binary, got integer"),
    ("n", "price % 2", SchemaError, "% expects integers or doubles"),
    ("name", "upper(n)", SchemaError, "upper() expects text, got integer"),
    ("name", "name || n", SchemaError, "|| expects text or binary, got integer"),
    ("name", "length(name)", SchemaError, "expected string"),
    ("name", 5, SchemaError, "expected string"),
    ("n", "x'00'", SchemaError, "expected int64"),
    ("n", 1.5, SchemaError, "expected int64"),
    ("n", True, SchemaError, "expected int64"),
    ("n", "coalesce(n, 'x')", SchemaError, "no common type: integer and text"),
    ("n", "CASE WHEN flag THEN 1 ELSE 'x' END", SchemaError, "no common type: integer and text"),
    ("day", "2013 - 01 - 01", SchemaError, "is a number, not a date"),
    ("day", "2013-01-011", SchemaError, "is a number, not a date"),
    ("day", "2013-13-01", SchemaError, "is a number, not a date; write DATE '2013-01-31'"),
    ("flag", "n >", InvalidArgumentError, "expected a value after >"),
    ("flag", "n", SchemaError, "expected bool"),
    ("flag", 1, SchemaError, "expected bool"),
    ("wide", "wide * wide", InvalidArgumentError, "76 digits"),
    ("n", "n" + " + 1" * 10_000, InvalidArgumentError, "more than 150 operators"),
    ("n", "(" * 10_000, InvalidArgumentError, "more than 100 levels deep"),
    ("n", "abs(" * 10_000, InvalidArgumentError, "more than 100 levels deep"),
    ("n", "CASE WHEN n = 1 THEN " * 1_000, InvalidArgumentError, "more than 100 levels deep"),
    ("n", "1 + " * 250_000, InvalidArgumentError, "more than"),
]


@pytest.mark.parametrize(
    ("target", "value", "kind", "message"),
    REFUSED,
    ids=[f"{place}-{case[0]}-{str(case[1])[:30]}" for place, case in enumerate(REFUSED)],
)
def test_an_invalid_assignment_is_an_error_before_any_row_changes(
    target: str, value: Any, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind) as caught:
        parse_assignment(computed(value), SCHEMA, SCHEMA.by_name(target))
    assert message in str(caught.value)


def test_a_thousand_signs_need_no_recursion() -> None:
    assert assign("n", expr("- " * 100_000 + "5")) == ([5], {})


# --- integers and decimals against Python's own -----------------------------------------------------

INTEGERS = st.one_of(
    st.none(),
    st.integers(-5, 5),
    st.sampled_from([INT64_MIN, INT64_MIN + 1, INT64_MAX, INT64_MAX - 1, 2**31, 2**32, -(2**32), 3037000500]),
    st.integers(INT64_MIN, INT64_MAX),
)


class Failed(Exception):
    """The row fails."""


def calculate(tree: Any, row: Mapping[str, Any]) -> Any:
    """Return the result in Python's unlimited integers and fractions. Raises: Failed."""
    if isinstance(tree, str):
        return row[tree]
    if not isinstance(tree, tuple):
        return tree
    op, *parts = tree
    values = [calculate(part, row) for part in parts]
    if None in values:
        return None
    if op == "-" and len(values) == 1:
        result = -values[0]
    elif op == "%":
        if values[1] == 0:
            raise Failed
        result = abs(values[0]) % abs(values[1]) * (1 if values[0] >= 0 else -1)
    else:
        result = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}[op](*values)
    if not INT64_MIN <= result <= INT64_MAX:
        raise Failed
    return result


def to_text(tree: Any) -> str:
    if not isinstance(tree, tuple):
        return str(tree)
    op, *parts = tree
    return f"(-{to_text(parts[0])})" if len(parts) == 1 else f"({to_text(parts[0])} {op} {to_text(parts[1])})"


TREES = st.recursive(
    st.one_of(st.sampled_from(["n", "id"]), st.sampled_from([-2, -1, 0, 1, 3, INT64_MAX, INT64_MIN])),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from("+-*%"), inner, inner),
        st.tuples(st.just("-"), inner.filter(lambda tree: not isinstance(tree, int))),
    ),
    max_leaves=5,
)  # fmt: skip


@given(TREES, st.lists(st.tuples(INTEGERS, INTEGERS), min_size=1, max_size=6))
def test_random_integer_arithmetic_is_exact_or_an_error(tree: Any, rows: list[tuple[Any, Any]]) -> None:
    """Python computes the exact results."""
    columns = {"n": [n for n, _ in rows], "id": [other for _, other in rows]}
    arrays = {name: pa.array(values, pa.int64()) for name, values in columns.items()}
    array, errors = expression_for(to_text(tree), "n").evaluate(arrays, len(rows))
    failed = set(errors.rows.tolist())
    for place, (n, other) in enumerate(rows):
        try:
            wanted = calculate(tree, {"n": n, "id": other})
        except Failed:
            # A row with an error and a NULL, such as 1 % 0 + NULL, may be either.
            assert place in failed or None in (n, other)
        else:
            assert place not in failed and array[place].as_py() == wanted


DECIMALS = st.decimals(-999, 999, places=2, allow_nan=False)


@given(st.lists(st.tuples(DECIMALS, DECIMALS), min_size=1, max_size=6), st.sampled_from("+-*"))
def test_random_decimal_arithmetic_keeps_every_digit(rows: list[tuple[D, D]], op: str) -> None:
    """Results are not rounded and not computed as doubles."""
    arrays = {
        "price": pa.array([a for a, _ in rows], pa.decimal128(5, 2)),
        "wide": pa.array([b for _, b in rows], pa.decimal128(38, 6)),
    }
    array, errors = expression_for(f"price {op} wide", "wide").evaluate(arrays, len(rows))
    wanted = [{"+": a + b, "-": a - b, "*": a * b}[op] for a, b in rows]
    assert not errors and array.to_pylist() == wanted
