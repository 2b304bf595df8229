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

# --- expressions of each kind -----------------------------------------------------------------------


def form(template: str, *kinds: str) -> tuple[str, tuple[str, ...]]:
    return template, kinds


# Templates of expressions by the kind of their result. i: integer, x: double, p: decimal, s: text.
FORMS: dict[str, list[tuple[str, tuple[str, ...]]]] = {
    "i": [
        *(form(text) for text in ("n", "m", "0", "1", "-2", "3")),
        form("({} + {})", "i", "i"),
        form("({} - {})", "i", "i"),
        form("({} * {})", "i", "i"),
        form("-{}", "i"),
        form("({} % 3)", "i"),
        form("abs({})", "i"),
        form("length({})", "s"),
        form("coalesce({}, {})", "i", "i"),
        form("nullif({}, {})", "i", "i"),
        form("greatest({}, {}, {})", "i", "i", "i"),
        form("least({}, {})", "i", "i"),
        form("CASE WHEN {} THEN {} ELSE {} END", "b", "i", "i"),
        form("CASE {} WHEN {} THEN {} END", "i", "i", "i"),
        form("year({})", "d"),
        form("month({})", "w"),
        form("day({})", "w"),
        form("hour({})", "w"),
        form("second({})", "w"),
        form("quarter({})", "d"),
        form("dayofweek({})", "d"),
        form("dayofyear({})", "w"),
        form("week({})", "d"),
        form("EXTRACT(minute FROM {})", "w"),
        form("CAST({} AS bigint)", "p"),
        form("CAST({} AS int)", "b"),
        form("CAST(round({}) AS bigint)", "p"),
        form("sign({})", "i"),
    ],
    "x": [
        # No NaN that is a constant: DuckDB 2.0 turns NaN <= -y into y <= -NaN, which is TRUE.
        *(form(text) for text in ("x", "y")),
        form("({} + {})", "x", "x"),
        form("({} * {})", "x", "i"),
        form("({} / {})", "i", "i"),
        form("({} / {})", "x", "x"),
        form("-{}", "x"),
        form("abs({})", "x"),
        form("floor({})", "x"),
        form("ceil({})", "x"),
        form("round({})", "x"),
        form("trunc({})", "x"),
        form("coalesce({}, {})", "x", "i"),
        form("greatest({}, {})", "x", "x"),
        form("least({}, {}, {})", "x", "x", "i"),
        form("sqrt(abs({}))", "x"),
        form("CAST({} AS double)", "p"),
        form("CASE WHEN {} THEN {} ELSE {} END", "b", "x", "i"),
        form("nullif({}, {})", "x", "x"),
        form("({} / {})", "p", "i"),
    ],
    "p": [
        *(form(text) for text in ("p", "q", "0.25", "-1.5")),
        form("({} + {})", "p", "p"),
        form("({} - 1)", "p"),
        form("(p * {})", "i"),
        form("abs({})", "p"),
        form("round({}, 1)", "p"),
        form("floor({})", "p"),
        form("ceil({})", "p"),
        form("coalesce({}, {})", "p", "p"),
        form("greatest({}, 1)", "p"),
        form("CAST({} AS decimal(18,1))", "p"),
        form("CAST({} AS decimal(18,3))", "i"),
        form("-{}", "p"),
    ],
    "s": [
        *(form(text) for text in ("s", "t", "'a'", "''", "'%'", "' ü '")),
        form("upper({})", "s"),
        form("lower({})", "s"),
        form("({} || {})", "s", "s"),
        form("trim({})", "s"),
        form("ltrim({}, 'a')", "s"),
        form("rtrim({})", "s"),
        form("substr({}, 2)", "s"),
        form("substring({}, 1, 2)", "s"),
        form("substr({}, 0, 2)", "s"),
        form("substr({}, -2)", "s"),
        form("left({}, 1)", "s"),
        form("right({}, 2)", "s"),
        form("replace({}, 'a', 'xy')", "s"),
        form("concat({}, {})", "s", "s"),
        form("coalesce({}, {})", "s", "s"),
        form("CAST({} AS varchar)", "i"),
        form("CAST({} AS varchar)", "p"),
        form("CAST({} AS varchar)", "b"),
        form("CAST({} AS varchar)", "d"),
        form("CAST({} AS varchar)", "w"),
        form("CASE WHEN {} THEN {} END", "b", "s"),
        form("nullif({}, {})", "s", "s"),
        form("greatest({}, {})", "s", "s"),
    ],
    "d": [
        form("d"),
        form("DATE '2013-01-31'"),
        form("CAST({} AS date)", "w"),
        form("coalesce({}, {})", "d", "d"),
    ],
    "w": [
        form("w"),
        form("TIMESTAMP '2013-01-31 00:00:00'"),
        form("CAST({} AS timestamp)", "d"),
        form("date_trunc('hour', {})", "w"),
        form("date_trunc('month', {})", "w"),
        form("date_trunc('week', {})", "w"),
        form("date_trunc('year', {})", "w"),
        form("greatest({}, {})", "w", "w"),
    ],
    "b": [
        *(form(text) for text in ("f", "g", "TRUE", "FALSE", "NULL")),
        *(
            form(f"({{}} {op} {{}})", kind, kind)
            for op in ("=", "<>", "<", "<=", ">", ">=")
            for kind in "ixpsdw"
        ),
        form("({} < {})", "i", "x"),
        form("({} >= {})", "p", "x"),
        form("({} = {})", "i", "p"),
        form("(x > 1)"),
        form("(x = 'NaN')"),
        form("({} AND {})", "b", "b"),
        form("({} OR {})", "b", "b"),
        form("(NOT {})", "b"),
        form("({} = TRUE)", "b"),
        *(
            form(f"({{}} IS {word})", "b")
            for word in ("TRUE", "NOT TRUE", "FALSE", "NOT FALSE", "NULL", "NOT NULL")
        ),
        *(form("({} IS NULL)", kind) for kind in "ixpsdw"),
        form("({} IS NOT NULL)", "x"),
        *(form("({} IS DISTINCT FROM {})", kind, kind) for kind in "ixps"),
        form("({} IS NOT DISTINCT FROM {})", "x", "x"),
        form("({} IS DISTINCT FROM 1)", "i"),
        form("(n IS NOT DISTINCT FROM 1)"),
        *(form("({} BETWEEN {} AND {})", kind, kind, kind) for kind in "ixps"),
        form("({} NOT BETWEEN 0 AND {})", "i", "i"),
        form("({} IN (1, 2, NULL))", "i"),
        form("({} NOT IN (1, 2))", "i"),
        form("({} NOT IN (1, NULL))", "i"),
        form("(x IN (1, 'NaN', 0))"),
        form("({} IN (1, 'NaN'))", "x"),
        form("(s NOT IN ('a', 'ab'))"),
        form("({} IN ('a', ''))", "s"),
        form("({} IN ({}, 1))", "i", "i"),
        form("({} LIKE 'a%')", "s"),
        form("(s LIKE '%b_')"),
        form("({} ILIKE 'A%')", "s"),
        form("(s NOT ILIKE '%b!%%' ESCAPE '!')"),
        form("({} NOT LIKE '_')", "s"),
        form("starts_with({}, 'a')", "s"),
        form("contains({}, 'b')", "s"),
        form("ends_with(s, 'b')"),
        form("CASE WHEN {} THEN {} END", "b", "b"),
        form("coalesce({}, {})", "b", "b"),
        form("(s = t)"),
        form("(n < m)"),
        form("(x >= y)"),
        form("({} = '2013-01-31')", "d"),
        form("({} >= '2013-01-31 00:00:00')", "w"),
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


def values_of_duckdb(connection: Any, text: str) -> list[Any] | None:
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
        theirs = values_of_duckdb(connection, text)
        if theirs is not None and errors is None:
            found = list(zip(array.to_pylist(), theirs, strict=True))
            assert all(same(a, b) for a, b in found), (text, found)


@given(st.integers(0, 2**32))
def test_random_conditions_select_the_rows_of_duckdb(connection: Any, seed: int) -> None:
    """A random condition selects the same rows as in DuckDB.

    This includes conditions that were sent as JSON, dictionary columns, and the constraints of the
    condition.
    """
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
        theirs = values_of_duckdb(connection, text)
        assert theirs is None or mask.tolist() == [value is True for value in theirs], text
        assert bind(str(where), SCHEMA) == where, text
        sent = BoundPredicate.from_json(where.to_json(), SCHEMA)
        assert sent == where and np.array_equal(sent.evaluate(encoded, table.num_rows), mask), text
        assert not (where.selects_none and mask.any()), text
        for name, constraint in where.constraints().items():
            type = SCHEMA.by_name(name).type
            for value in table[name].filter(pa.array(mask)).to_pylist():
                assert constraint.admits(to_canonical(type, value)), (text, name, value)
