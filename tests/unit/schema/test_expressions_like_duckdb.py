"""Random expressions and conditions on random rows: Nyala and DuckDB compute the same.

Expressions with a different meaning in DuckDB are left out: docs/how-to/expressions.md,
"Differences from DuckDB".
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nyala.errors import InvalidArgumentError
from nyala.schema.expressions.parser import parse
from nyala.schema.predicates.binding import bind_node, build_value
from nyala.schema.predicates.predicate import BoundPredicate, bind
from nyala.schema.schema import build_schema
from nyala.schema.types import to_canonical

D = decimal.Decimal
NAN, INF = math.nan, math.inf
SCHEMA = build_schema(
    {
        "k": "int64", "n": "int32", "m": "int64", "x": "double", "y": "double", "p": "decimal(9,2)",
        "q": "decimal(12,4)", "s": "string", "t": "string", "f": "bool", "g": "bool", "d": "date", "w": "timestamp",
    },
    "k",
)  # fmt: skip
VALUES: dict[str, list[Any]] = {
    "n": [-3, -1, 0, 1, 2, 7, 100, None],
    "m": [-3, -1, 0, 1, 2, 7, 1000, None],
    "x": [-1.5, -0.0, 0.0, 0.5, 1.0, 2.5, 1e10, NAN, INF, -INF, None],
    "y": [-1.5, -0.0, 0.0, 0.5, 1.0, 3.5, NAN, INF, -INF, None],
    "p": [D("-1.50"), D("0.00"), D("0.50"), D("1.25"), D("1.00"), D("2.50"), None],
    "q": [D("-1.5000"), D("0.0000"), D("0.0005"), D("1.2500"), D("1.0000"), None],
    "s": ["", "a", "A", "ab", "aB%", " ab ", "zürich", "1", "2.5", "true", "2013-01-31", None],
    "t": ["", "a", "B", "ab", "ba", "ü", None],
    "f": [True, False, None],
    "g": [True, False, None],
    "d": [dt.date(1969, 12, 31), dt.date(2013, 1, 31), dt.date(2024, 2, 29), None],
    "w": [
        dt.datetime(1969, 12, 31, 23, 59, 59, 999999), dt.datetime(2013, 1, 31),
        dt.datetime(2024, 2, 29, 12, 30, 15, 5), None,
    ],
}  # fmt: skip
VALUES["k"] = [1]

# --- texts of a kind --------------------------------------------------------------------------------


def made(template: str, *kinds: str) -> tuple[str, tuple[str, ...]]:
    return template, kinds


# Expressions of each kind, built from other kinds. i: integer, x: double, p: decimal, s: text.
FORMS: dict[str, list[tuple[str, tuple[str, ...]]]] = {
    "i": [
        *(made(text) for text in ("n", "m", "0", "1", "-2", "3")),
        made("({} + {})", "i", "i"),
        made("({} - {})", "i", "i"),
        made("({} * {})", "i", "i"),
        made("-{}", "i"),
        made("({} % 3)", "i"),
        made("abs({})", "i"),
        made("length({})", "s"),
        made("coalesce({}, {})", "i", "i"),
        made("nullif({}, {})", "i", "i"),
        made("greatest({}, {}, {})", "i", "i", "i"),
        made("least({}, {})", "i", "i"),
        made("CASE WHEN {} THEN {} ELSE {} END", "b", "i", "i"),
        made("CASE {} WHEN {} THEN {} END", "i", "i", "i"),
        made("year({})", "d"),
        made("month({})", "w"),
        made("day({})", "w"),
        made("hour({})", "w"),
        made("second({})", "w"),
        made("quarter({})", "d"),
        made("dayofweek({})", "d"),
        made("dayofyear({})", "w"),
        made("week({})", "d"),
        made("EXTRACT(minute FROM {})", "w"),
        made("CAST({} AS bigint)", "p"),
        made("CAST({} AS int)", "b"),
        made("CAST(round({}) AS bigint)", "p"),
        made("sign({})", "i"),
    ],
    "x": [
        # No NaN that is a constant: DuckDB 2.0 turns NaN <= -y into y <= -NaN, which is TRUE.
        *(made(text) for text in ("x", "y")),
        made("({} + {})", "x", "x"),
        made("({} * {})", "x", "i"),
        made("({} / {})", "i", "i"),
        made("({} / {})", "x", "x"),
        made("-{}", "x"),
        made("abs({})", "x"),
        made("floor({})", "x"),
        made("ceil({})", "x"),
        made("round({})", "x"),
        made("trunc({})", "x"),
        made("coalesce({}, {})", "x", "i"),
        made("greatest({}, {})", "x", "x"),
        made("least({}, {}, {})", "x", "x", "i"),
        made("sqrt(abs({}))", "x"),
        made("CAST({} AS double)", "p"),
        made("CASE WHEN {} THEN {} ELSE {} END", "b", "x", "i"),
        made("nullif({}, {})", "x", "x"),
        made("({} / {})", "p", "i"),
    ],
    "p": [
        *(made(text) for text in ("p", "q", "0.25", "-1.5")),
        made("({} + {})", "p", "p"),
        made("({} - 1)", "p"),
        made("(p * {})", "i"),
        made("abs({})", "p"),
        made("round({}, 1)", "p"),
        made("floor({})", "p"),
        made("ceil({})", "p"),
        made("coalesce({}, {})", "p", "p"),
        made("greatest({}, 1)", "p"),
        made("CAST({} AS decimal(18,1))", "p"),
        made("CAST({} AS decimal(18,3))", "i"),
        made("-{}", "p"),
    ],
    "s": [
        *(made(text) for text in ("s", "t", "'a'", "''", "'%'", "' ü '")),
        made("upper({})", "s"),
        made("lower({})", "s"),
        made("({} || {})", "s", "s"),
        made("trim({})", "s"),
        made("ltrim({}, 'a')", "s"),
        made("rtrim({})", "s"),
        made("substr({}, 2)", "s"),
        made("substring({}, 1, 2)", "s"),
        made("substr({}, 0, 2)", "s"),
        made("substr({}, -2)", "s"),
        made("left({}, 1)", "s"),
        made("right({}, 2)", "s"),
        made("replace({}, 'a', 'xy')", "s"),
        made("concat({}, {})", "s", "s"),
        made("coalesce({}, {})", "s", "s"),
        made("CAST({} AS varchar)", "i"),
        made("CAST({} AS varchar)", "p"),
        made("CAST({} AS varchar)", "b"),
        made("CAST({} AS varchar)", "d"),
        made("CAST({} AS varchar)", "w"),
        made("CASE WHEN {} THEN {} END", "b", "s"),
        made("nullif({}, {})", "s", "s"),
        made("greatest({}, {})", "s", "s"),
    ],
    "d": [
        made("d"),
        made("DATE '2013-01-31'"),
        made("CAST({} AS date)", "w"),
        made("coalesce({}, {})", "d", "d"),
    ],
    "w": [
        made("w"),
        made("TIMESTAMP '2013-01-31 00:00:00'"),
        made("CAST({} AS timestamp)", "d"),
        made("date_trunc('hour', {})", "w"),
        made("date_trunc('month', {})", "w"),
        made("date_trunc('week', {})", "w"),
        made("date_trunc('year', {})", "w"),
        made("greatest({}, {})", "w", "w"),
    ],
    "b": [
        *(made(text) for text in ("f", "g", "TRUE", "FALSE", "NULL")),
        *(
            made(f"({{}} {op} {{}})", kind, kind)
            for op in ("=", "<>", "<", "<=", ">", ">=")
            for kind in "ixpsdw"
        ),
        made("({} < {})", "i", "x"),
        made("({} >= {})", "p", "x"),
        made("({} = {})", "i", "p"),
        made("(x > 1)"),
        made("(x = 'NaN')"),
        made("({} AND {})", "b", "b"),
        made("({} OR {})", "b", "b"),
        made("(NOT {})", "b"),
        made("({} = TRUE)", "b"),
        *(
            made(f"({{}} IS {word})", "b")
            for word in ("TRUE", "NOT TRUE", "FALSE", "NOT FALSE", "NULL", "NOT NULL")
        ),
        *(made("({} IS NULL)", kind) for kind in "ixpsdw"),
        made("({} IS NOT NULL)", "x"),
        *(made("({} IS DISTINCT FROM {})", kind, kind) for kind in "ixps"),
        made("({} IS NOT DISTINCT FROM {})", "x", "x"),
        made("({} IS DISTINCT FROM 1)", "i"),
        made("(n IS NOT DISTINCT FROM 1)"),
        *(made("({} BETWEEN {} AND {})", kind, kind, kind) for kind in "ixps"),
        made("({} NOT BETWEEN 0 AND {})", "i", "i"),
        made("({} IN (1, 2, NULL))", "i"),
        made("({} NOT IN (1, 2))", "i"),
        made("({} NOT IN (1, NULL))", "i"),
        made("(x IN (1, 'NaN', 0))"),
        made("({} IN (1, 'NaN'))", "x"),
        made("(s NOT IN ('a', 'ab'))"),
        made("({} IN ('a', ''))", "s"),
        made("({} IN ({}, 1))", "i", "i"),
        made("({} LIKE 'a%')", "s"),
        made("(s LIKE '%b_')"),
        made("({} ILIKE 'A%')", "s"),
        made("(s NOT ILIKE '%b!%%' ESCAPE '!')"),
        made("({} NOT LIKE '_')", "s"),
        made("starts_with({}, 'a')", "s"),
        made("contains({}, 'b')", "s"),
        made("ends_with(s, 'b')"),
        made("CASE WHEN {} THEN {} END", "b", "b"),
        made("coalesce({}, {})", "b", "b"),
        made("(s = t)"),
        made("(n < m)"),
        made("(x >= y)"),
        made("({} = '2013-01-31')", "d"),
        made("({} >= '2013-01-31 00:00:00')", "w"),
    ],
}


def text_of(chance: random.Random, kind: str, depth: int) -> str:
    """Draw the text of an expression of one kind."""
    forms = FORMS[kind] if depth else [form for form in FORMS[kind] if not form[1]]
    template, kinds = chance.choice(forms)
    return template.format(*(text_of(chance, inner, depth - 1) for inner in kinds))


def table_of(chance: random.Random) -> pa.Table:
    columns = {name: [chance.choice(VALUES[name]) for _ in range(40)] for name in SCHEMA.names}
    return pa.table(columns, schema=SCHEMA.arrow_schema())


@pytest.fixture(scope="module")
def connection() -> Iterator[Any]:
    with pytest.importorskip("duckdb").connect() as opened:
        yield opened


def register(connection: Any, table: pa.Table) -> None:
    place = table.schema.get_field_index("w")
    connection.register("rows", table.set_column(place, "w", table["w"].cast(pa.timestamp("us"))))


def asked(connection: Any, text: str) -> list[Any] | None:
    """Return the values that DuckDB computes, with None for errors."""
    import duckdb

    try:
        return [value for (value,) in connection.sql(f"SELECT {text} FROM rows").fetchall()]
    except duckdb.Error:
        return None


def same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, dt.datetime):
        ours = ours.replace(tzinfo=None)
    if isinstance(theirs, dt.datetime) and type(ours) is dt.date:
        theirs = theirs.date()
    if ours is None or theirs is None or isinstance(ours, str | bool | dt.date):
        return bool(ours == theirs)
    if isinstance(ours, float) or isinstance(theirs, float):
        ours, theirs = float(ours), float(theirs)
        return (
            bool(ours == theirs)
            or (ours != ours and theirs != theirs)
            or math.isclose(ours, theirs, rel_tol=1e-12)
        )
    return bool(ours == theirs)


def arrays_of(table: pa.Table) -> dict[str, pa.Array]:
    return {name: table[name].combine_chunks() for name in table.schema.names}


@given(st.integers(0, 2**32))
def test_random_expressions_have_the_values_of_duckdb(connection: Any, seed: int) -> None:
    chance = random.Random(seed)
    table = table_of(chance)
    register(connection, table)
    for _ in range(8):
        text = text_of(chance, chance.choice("ixpsdw"), chance.randint(1, 3))
        tree = parse(text)
        assert parse(str(tree)) == tree, text
        array, errors = build_value(bind_node(tree, SCHEMA), SCHEMA).compute(arrays_of(table), table.num_rows)
        theirs = asked(connection, text)
        if theirs is not None and errors is None:
            found = list(zip(array.to_pylist(), theirs, strict=True))
            assert all(same(a, b) for a, b in found), (text, found)


@given(st.integers(0, 2**32))
def test_random_conditions_select_the_rows_of_duckdb(connection: Any, seed: int) -> None:
    """Also after JSON, over dictionary codes, and by constraints."""
    chance = random.Random(seed)
    table = table_of(chance)
    register(connection, table)
    arrays = arrays_of(table)
    encoded = {
        name: array.dictionary_encode() if name in ("s", "t") else array for name, array in arrays.items()
    }
    for _ in range(8):
        text = text_of(chance, "b", chance.randint(1, 3))
        where = bind(text, SCHEMA)
        assert where is not None
        try:
            mask = where.evaluate(arrays, table.num_rows)
        except InvalidArgumentError:
            continue
        theirs = asked(connection, text)
        assert theirs is None or mask.tolist() == [value is True for value in theirs], text
        assert bind(str(where), SCHEMA) == where, text
        sent = BoundPredicate.from_json(where.to_json(), SCHEMA)
        assert sent == where and np.array_equal(sent.evaluate(encoded, table.num_rows), mask), text
        assert not (where.selects_none and mask.any()), text
        for name, constraint in where.constraints().items():
            type = SCHEMA.by_name(name).type
            for value in table[name].filter(pa.array(mask)).to_pylist():
                assert constraint.admits(to_canonical(type, value)), (text, name, value)
