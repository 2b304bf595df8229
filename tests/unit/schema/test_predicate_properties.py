"""Random predicates on random tables of all thirteen types, compared with a simple evaluator.

The evaluator works on Python values, row by row, with the three truth values of SQL and exact
fractions. It shares no code with the implementation.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import struct
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nyala.schema.expressions.nodes import (
    And,
    Column,
    Compare,
    InList,
    IsNull,
    Like,
    Literal,
    Node,
    Not,
    Or,
    column_names_in,
    compare,
)
from nyala.schema.expressions.parser import parse_predicate
from nyala.schema.predicates.constraint import ANY
from nyala.schema.predicates.predicate import BoundPredicate, bind, col, from_json
from nyala.schema.schema import Schema, build_schema
from nyala.schema.types import to_canonical

D = decimal.Decimal
UTC = dt.UTC
NAN, INF = math.nan, math.inf
EXAMPLES = settings().max_examples  # of the profile; fast tests use a multiple

TYPES = {
    "key": "int64",
    "tiny": "int8",
    "small": "int16",
    "medium": "int32",
    "big": "int64",
    "flag": "bool",
    "day": "date",
    "moment": "timestamp",
    "single": "float",
    "twice": "double",
    "price": "decimal(5,2)",
    "exact": "decimal(12,4)",
    "huge": "decimal(38,6)",
    "code": "varchar(3)",
    "name": "string",
    "raw": "binary",
}
SCHEMA = build_schema(TYPES, ["key"])
TEXTS = [
    "",
    "a",
    "ab",
    "abc",
    "b",
    "A",
    "a%",
    "a_b",
    "a\nb",
    "é",
    "zürich",
    "\U0001f98c",
    "a\0",
    "\uffff",
    "'\"",
]

VALUES: dict[str, list[Any]] = {
    "tiny": [-128, -1, 0, 1, 2, 3, 127],
    "small": [-32768, -1, 0, 1, 2, 300, 32767],
    "medium": [-(2**31), -1, 0, 1, 2, 3, 2**31 - 1],
    "big": [-(2**63), -1, 0, 1, 2, 2**53, 2**53 + 1, 2**63 - 1],
    "flag": [True, False],
    "day": [
        dt.date(1, 1, 1),
        dt.date(1969, 12, 31),
        dt.date(2013, 1, 1),
        dt.date(2013, 1, 2),
        dt.date(9999, 12, 31),
    ],
    "moment": [
        dt.datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
        dt.datetime(2013, 1, 1, tzinfo=UTC),
        dt.datetime(2013, 1, 1, 12, tzinfo=UTC),
        dt.datetime(2013, 1, 1, 12, 0, 0, 1, UTC),
        dt.datetime(2013, 1, 2, tzinfo=UTC),
    ],
    "single": [
        0.0,
        -0.0,
        1.0,
        1.5,
        -2.5,
        struct.unpack("<f", struct.pack("<f", 0.1))[0],
        NAN,
        INF,
        -INF,
        3.4028234663852886e38,
    ],
    "twice": [0.0, -0.0, 1.0, 1.5, -2.5, 0.1, 1.23, 0.41, 1.000001, 2.0**53, 1e300, NAN, INF, -INF],
    "price": [D("0.00"), D("0.41"), D("1.23"), D("1.24"), D("-1.23"), D("999.99"), D("-999.99"), D("2.00")],
    "exact": [D("0.0000"), D("1.2300"), D("1.2345"), D("-1.2300"), D("99999999.9999"), D("2.0000")],
    "huge": [D("0.000000"), D("1.230000"), D("1.000001"), D("-2.000000"), D("9" * 32 + "." + "9" * 6)],
    "code": ["", "a", "ab", "abc", "b", "éé", "a%"],
    "name": TEXTS,
    "raw": [b"", b"a", b"a\0", b"ab", b"\xff", b"\xff\xff", b"\x80"],
}
VALUES["key"] = VALUES["big"]

NUMBERS: list[Any] = [
    *(
        -129,
        -128,
        -1,
        0,
        1,
        2,
        3,
        127,
        128,
        300,
        2**31,
        2**53,
        2**53 + 1,
        2**63 - 1,
        2**63,
        10**40,
        -(10**40),
    ),
    *(
        D("2.5"),
        D("-0.5"),
        D("1.23"),
        D("1.234"),
        D("0.1"),
        D("1e39"),
        D("-1e39"),
        D("1e400"),
        D("1e-400"),
        D("-1e-9999"),
    ),
    *(0.1, 1.5, -0.0, NAN, INF, -INF),
]
TIMES: list[Any] = [
    *("2013-01-01", "2013-01-01T12:00:00Z", "2013-01-01 12:00:00.000001", "2013-01-01 14:00:00+02:00"),
    *("2013-01-01 12:00:00.0000005", "0001-01-01 00:00:00+01:00", "9999-12-31 23:59:59.999999"),
    *(
        dt.date(2013, 1, 1),
        dt.date(1, 1, 1),
        dt.datetime(2013, 1, 1, 12),
        dt.datetime(2013, 1, 2, tzinfo=UTC),
    ),
    np.datetime64("2013-01-01T12:00:00.000000001", "ns"),
]
LITERALS: dict[str, list[Any]] = {
    **dict.fromkeys(
        ("key", "tiny", "small", "medium", "big", "single", "twice", "price", "exact", "huge"), NUMBERS
    ),
    "flag": [True, False],
    "day": TIMES,
    "moment": [*TIMES, 0, 1357041600000000, D("1357041600000000.5"), 2**63, -(2**64)],
    "code": [*TEXTS, "abcd"],
    "name": TEXTS,
    "raw": [*VALUES["raw"], "a", "é"],
}
KINDS = [
    ["key", "tiny", "small", "medium", "big", "single", "twice", "price", "exact", "huge"],
    ["day", "moment"],
    ["code", "name"],
    ["raw"],
    ["flag"],
]
OPS = ["=", "<>", "<", "<=", ">", ">="]
NAMES = list(TYPES)

# --- strategies -------------------------------------------------------------------------------------


def literals_of(name: str) -> st.SearchStrategy[Any]:
    return st.sampled_from([*LITERALS[name], *VALUES[name]])


@st.composite
def comparisons(draw: st.DrawFn) -> Node:
    name = draw(st.sampled_from(NAMES))
    column = col(name)
    kind = draw(st.integers(0, 9))
    if kind <= 3:
        return column._compare(draw(st.sampled_from(OPS)), draw(literals_of(name)))
    if kind == 4:
        return column.between(draw(literals_of(name)), draw(literals_of(name)))
    if kind == 5:
        found = column.isin(draw(st.lists(literals_of(name), max_size=5)))
        assert isinstance(found, InList)
        with_null = draw(st.integers(0, 4)) == 0
        return InList(Column(name), (*found.values, None)) if with_null else found
    if kind == 6:
        return IsNull(Column(name), draw(st.booleans()))
    if kind == 7:
        other = draw(st.sampled_from(next(names for names in KINDS if name in names)))
        return compare(name, draw(st.sampled_from(OPS)), Column(other))
    if kind == 8:
        pattern = "".join(
            draw(
                st.lists(
                    st.sampled_from(["%", "_", "a", "b", "A", "é", "\n", ".", "\\", "!%", "!_"]), max_size=4
                )
            )
        )
        escape = "!" if "!" in pattern else draw(st.sampled_from([None, "!"]))
        return Like(Column(draw(st.sampled_from(["code", "name"]))), pattern, draw(st.booleans()), escape)
    return draw(st.sampled_from([Literal(True), Literal(False), Literal(None), compare(name, "<", None)]))


def combined(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    parts = st.lists(inner, min_size=2, max_size=3).map(tuple)
    return st.one_of(parts.map(And), parts.map(Or), inner.map(lambda part: ~part))


predicates = st.recursive(comparisons(), combined, max_leaves=6)
Rows = list[dict[str, Any]]


columns_of = column_names_in


@st.composite
def tables(draw: st.DrawFn, predicate: Node, least: int = 0) -> Rows:
    """Draw up to eight rows with the columns of `predicate`, as dicts with None for NULL."""
    count = draw(st.integers(least, 8))
    columns = {}
    for name in sorted(columns_of(predicate)):
        values = st.sampled_from(VALUES[name] if name == "key" else [None, *VALUES[name]])
        columns[name] = draw(st.lists(values, min_size=count, max_size=count))
    return [{name: values[row] for name, values in columns.items()} for row in range(count)]


cases = predicates.flatmap(lambda predicate: st.tuples(tables(predicate), st.just(predicate)))

# --- the oracle -------------------------------------------------------------------------------------


def place(value: Any) -> Any:
    """Return a sort key for a number or time: NaN last, dates and datetimes as microseconds."""
    if isinstance(value, float):
        if math.isnan(value):
            return (2, 0)
        return (1, 0) if value == INF else (-1, 0) if value == -INF else (0, Fraction(value))
    if isinstance(value, dt.datetime):
        since = value.replace(tzinfo=None) - dt.datetime(1970, 1, 1) - (value.utcoffset() or dt.timedelta(0))
        return (0, Fraction(since // dt.timedelta(microseconds=1)))
    if isinstance(value, dt.date):
        return (0, Fraction((value - dt.date(1970, 1, 1)).days * 86_400_000_000))
    if isinstance(value, D):
        if value and value.adjusted() > 1000:
            return (0, Fraction(10) ** 1000 * (1 if value > 0 else -1))
        if value and value.adjusted() < -1000:
            return (0, Fraction(1, 10**1000) * (1 if value > 0 else -1))
        return (0, Fraction(value))
    return (0, Fraction(value))


def place_literal(name: str, literal: Any) -> Any:
    """Return a literal as a sort key of `place`, or as text or bytes."""
    type = TYPES[name]
    if type == "binary":
        return literal.encode() if isinstance(literal, str) else literal
    if type.startswith(("varchar", "string", "bool")):
        return literal.encode() if isinstance(literal, str) else literal
    if type in ("date", "timestamp") and isinstance(literal, str):
        seconds, _, fraction = literal.replace("Z", "").partition(".")
        fraction, zone = (fraction, "") if "+" not in fraction else fraction.split("+")
        parsed = dt.datetime.fromisoformat(seconds + (f"+{zone}" if zone else ""))
        _, micros = place(parsed)
        return (0, micros + Fraction(int(fraction or 0), 10 ** len(fraction)) * 10**6)
    if type in ("float", "double") and not isinstance(literal, float):
        sign = 1 if literal > 0 else -1
        try:
            if abs(literal) > D("1.7976931348623158e308"):
                raise OverflowError
            number = float(literal)
            if type == "float":
                number = struct.unpack("<f", struct.pack("<f", number))[0]
        except OverflowError:
            return (0, Fraction(10) ** 400 * sign)  # greater than all finite values, less than infinity
        return place(number)
    if isinstance(literal, float) and math.isfinite(literal) and type.startswith(("decimal", "int")):
        return place(D(repr(literal)))
    if type == "float" and isinstance(literal, float) and math.isfinite(literal):
        return place(struct.unpack("<f", struct.pack("<f", literal))[0])
    return place(literal)


def place_value(name: str, value: Any) -> Any:
    if isinstance(value, str):
        return value.encode()
    return value if isinstance(value, bytes | bool) else place(value)


def compares(op: str, a: Any, b: Any) -> bool:
    return bool({"=": a == b, "<>": a != b, "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[op])


def like(text: str, pattern: str, escape: str | None) -> bool:
    if not pattern:
        return not text
    if pattern[0] == escape:
        return text[:1] == pattern[1] and like(text[1:], pattern[2:], escape)
    if pattern[0] == "%":
        return any(like(text[start:], pattern[1:], escape) for start in range(len(text) + 1))
    return text != "" and pattern[0] in ("_", text[0]) and like(text[1:], pattern[1:], escape)


def truth(node: Node, row: Mapping[str, Any]) -> bool | None:
    """Return True, False, or None for NULL."""
    match node:
        case Literal(value):
            return value
        case IsNull(Column(name), negated):
            return (row[name] is None) != negated
        case Not(part):
            inner = truth(part, row)
            return None if inner is None else not inner
        case And(parts):
            found = [truth(part, row) for part in parts]
            return False if False in found else None if None in found else True
        case Or(parts):
            found = [truth(part, row) for part in parts]
            return True if True in found else None if None in found else False
        case Compare(Column(left), op, Column(right)):
            a, b = row[left], row[right]
            if a is None or b is None:
                return None
            if isinstance(a, float) or isinstance(b, float):
                a, b = float(a), float(b)
            return compares(op, place_value(left, a), place_value(right, b))
        case Compare(Column(name), op, Literal(value)):
            if row[name] is None or value is None:
                return None
            return compares(op, place_value(name, row[name]), place_literal(name, value))
        case InList(Column(name), values):
            found = [truth(compare(name, "=", value), row) for value in values]
            return True if True in found else None if None in found else False
        case Like(Column(name), pattern, negated, escape):
            return None if row[name] is None else like(row[name], pattern, escape) != negated
    raise AssertionError(node)


def arrays_of(rows: Rows, schema: Schema = SCHEMA, padding: int = 0) -> dict[str, pa.Array]:
    """Return the rows as canonical arrays; with `padding`, as slices of longer arrays."""
    arrays = {}
    for column in schema.columns:
        if rows and column.name not in rows[0]:
            continue
        values = [row[column.name] for row in rows]
        filler = [VALUES[column.name][0]] * padding
        arrays[column.name] = pa.array(filler + values + filler, column.type.arrow)[
            padding : padding + len(values)
        ]
    return arrays


# --- the properties ---------------------------------------------------------------------------------


@settings(max_examples=2 * EXAMPLES)
@given(cases, st.integers(0, 3))
@example(([], Literal(True)), 0)
def test_a_mask_has_exactly_the_rows_in_which_the_predicate_is_true(
    case: tuple[Rows, Node], padding: int
) -> None:
    rows, predicate = case
    bound = bind(predicate, SCHEMA)
    assert bound is not None
    arrays = arrays_of(rows, padding=padding)
    mask = bound.evaluate({name: arrays[name] for name in bound.columns}, len(rows))
    assert mask.dtype == np.bool_ and mask.flags.writeable
    assert mask.tolist() == [truth(predicate, row) is True for row in rows], str(bound)


@settings(max_examples=2 * EXAMPLES)
@given(cases)
def test_a_predicate_sent_as_text_or_json_selects_the_same_rows(case: tuple[Rows, Node]) -> None:
    rows, predicate = case
    bound = bind(predicate, SCHEMA)
    assert bound is not None
    again = bind(str(bound), SCHEMA)
    assert again == bound and str(again) == str(bound) and hash(again) == hash(bound)
    assert again.constraints() == bound.constraints() and again.columns == bound.columns
    assert BoundPredicate.from_json(bound.to_json(), SCHEMA) == bound
    assert bind(from_json(BoundPredicate(predicate, SCHEMA).to_json()), SCHEMA) == bound
    assert parse_predicate(str(predicate)) == predicate  # also before it is bound
    arrays = arrays_of(rows)
    assert np.array_equal(again.evaluate(arrays, len(rows)), bound.evaluate(arrays, len(rows)))


@given(cases)
def test_dictionary_encoded_columns_give_the_same_rows(case: tuple[Rows, Node]) -> None:
    rows, predicate = case
    bound = bind(predicate, SCHEMA)
    assert bound is not None
    arrays = arrays_of(rows)
    encoded = {
        name: array.dictionary_encode() if SCHEMA.by_name(name).type.is_variable else array
        for name, array in arrays.items()
    }
    assert np.array_equal(bound.evaluate(encoded, len(rows)), bound.evaluate(arrays, len(rows)))


def cut_text(value: str | bytes, length: int, upper: bool) -> str | bytes:
    """Return a text bound as a zone map has it: its first bytes, increased for an upper bound."""
    data = value.encode() if isinstance(value, str) else value
    if len(data) <= length:
        return value
    head = bytearray(data[:length])
    if not upper:
        return bytes(head)
    while head and head[-1] == 0xFF:
        head.pop()
    if not head:
        return value
    head[-1] += 1
    return bytes(head)


@st.composite
def zones(draw: st.DrawFn, rows: Rows, name: str) -> tuple[Any, Any, int | None, int, bool]:
    """Draw (min, max, null_count, row_count, has_nan) of a column. The bounds may be loose."""
    type = SCHEMA.by_name(name).type
    values = [to_canonical(type, row[name]) for row in rows]
    nulls = sum(value is None for value in values)
    numbers = [value for value in values if value is not None and value == value]
    has_nan = any(value is not None and value != value for value in values)
    low: Any = min(numbers, default=None)
    high: Any = max(numbers, default=None)
    if numbers and type.is_variable:
        length = draw(st.integers(0, 3))
        low, high = cut_text(low, length, False), cut_text(high, length, True)
    elif numbers and type.name not in ("bool", "float", "double"):
        low, high = low - draw(st.integers(0, 1)), high + draw(st.integers(0, 1))
    if draw(st.integers(0, 9)) == 0:
        low = None
    if draw(st.integers(0, 9)) == 0:
        high = None
    return (
        low,
        high,
        draw(st.sampled_from([nulls, nulls, nulls, None])),
        len(rows),
        has_nan or draw(st.booleans()),
    )


@settings(max_examples=3 * EXAMPLES)
@given(st.data(), cases)
def test_z1_a_zone_with_a_selected_row_is_never_skipped(data: st.DataObject, case: tuple[Rows, Node]) -> None:
    """Z1: a block with a selected row is never skipped. Otherwise a scan would lose the row."""
    rows, predicate = case
    bound = bind(predicate, SCHEMA)
    assert bound is not None
    constraints = bound.constraints()
    selected = [row for row in rows if truth(predicate, row) is True]
    assert not (bound.selects_none and selected)
    assert bound.selects_none or set(constraints) <= bound.columns
    for name, constraint in constraints.items():
        constraint.check()
        assert constraint != ANY
        type = SCHEMA.by_name(name).type
        for row in selected:
            assert constraint.admits(to_canonical(type, row[name])), (name, str(constraint), row[name])
        for block in (rows, *([row] for row in selected)):
            zone = data.draw(zones(block, name))
            if selected:
                assert not constraint.excludes_range(*zone), (name, str(constraint), zone)


@settings(max_examples=2 * EXAMPLES)
@given(st.sampled_from(NAMES), st.data())
def test_the_constraint_of_a_single_comparison_is_exact(name: str, data: st.DataObject) -> None:
    """The constraint of one comparison admits exactly its values, except for <> and NOT IN.

    With a weaker constraint, scans would read too many blocks.
    """
    predicate = col(name)._compare(
        data.draw(st.sampled_from(["=", "<", "<=", ">", ">="])), data.draw(literals_of(name))
    )
    bound = bind(predicate, SCHEMA)
    assert bound is not None
    constraint = bound.constraints().get(name)
    for value in VALUES[name]:
        admitted = not bound.selects_none and (
            constraint is None or constraint.admits(to_canonical(SCHEMA.by_name(name).type, value))
        )
        assert admitted == (truth(predicate, {name: value}) is True), (str(constraint), value)


DUCKDB_NAMES = ["key", "small", "medium", "big", "flag", "day", "twice", "price", "exact", "code", "name"]
DUCKDB_NUMBERS: list[Any] = [-1, 0, 1, 2, 300, 70000, D("2.5"), D("1.23"), D("1.234")]
DUCKDB_LITERALS: dict[str, list[Any]] = {
    **dict.fromkeys(("key", "small", "medium", "big", "price", "exact"), DUCKDB_NUMBERS),
    "twice": [-1, 0, 1, 2, 1.5, -2.5],
    "flag": [True, False],
    "day": [dt.date(2013, 1, 1), dt.date(1969, 12, 31), dt.date(2013, 1, 2)],
    "code": [text for text in TEXTS if "\0" not in text],
    "name": [text for text in TEXTS if "\0" not in text],
}


@st.composite
def duckdb_comparisons(draw: st.DrawFn) -> Node:
    name = draw(st.sampled_from(DUCKDB_NAMES))
    column, literal = col(name), st.sampled_from(DUCKDB_LITERALS[name])
    kind = draw(st.integers(0, 6))
    if kind <= 2:
        return column._compare(draw(st.sampled_from(OPS)), draw(literal))
    if kind == 3:
        return column.between(draw(literal), draw(literal))
    if kind == 4:
        return column.isin(draw(st.lists(literal, min_size=1, max_size=4)))
    if kind == 5:
        return IsNull(Column(name), draw(st.booleans()))
    pattern = "".join(draw(st.lists(st.sampled_from(["%", "_", "a", "b", "é", "!%", "\\"]), max_size=4)))
    return Like(
        Column(draw(st.sampled_from(["code", "name"]))),
        pattern,
        draw(st.booleans()),
        "!" if "!" in pattern else None,
    )


duckdb_predicates = st.recursive(duckdb_comparisons(), combined, max_leaves=5)
duckdb_cases = duckdb_predicates.flatmap(
    lambda predicate: st.tuples(tables(predicate, least=1), st.just(predicate))
)


@pytest.fixture(scope="module")
def connection() -> Iterator[Any]:
    with pytest.importorskip("duckdb").connect() as opened:
        yield opened


@given(duckdb_cases)
def test_duckdb_selects_the_same_rows(connection: Any, case: tuple[Rows, Node]) -> None:
    """`db.sql` and `scan(where=)` select the same rows."""
    rows, predicate = case
    bound = bind(predicate, SCHEMA)
    assert bound is not None
    arrays = arrays_of(rows)
    mask = bound.evaluate(arrays, len(rows))
    table = pa.table({"position": pa.array(range(len(rows))), **arrays})
    connection.register("rows", table)
    answer = connection.sql(f"SELECT position FROM rows WHERE {predicate} ORDER BY position").fetchall()
    assert [position for (position,) in answer] == np.flatnonzero(mask).tolist(), str(bound)
