"""Conditions and expressions through the public API."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

import nyala

NAN = math.nan
ROWS = [
    {"k": 1, "a": True, "v": 1, "x": 0.5, "s": "one"},
    {"k": 2, "a": False, "v": None, "x": NAN, "s": "TWO"},
    {"k": 3, "a": None, "v": 3, "x": -0.0, "s": "o'clock"},
    {"k": 4, "a": True, "v": 2**62, "x": math.inf, "s": ""},
    {"k": 5, "a": None, "v": 0, "x": None, "s": None},
]


@pytest.fixture(params=["memory", "disk"])
def table(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[nyala.Table]:
    with nyala.connect(tmp_path / "s", maintenance=False) as db:
        table = db.create_table(
            "t", {"k": "int64", "a": "bool", "v": "int64", "x": "double", "s": "string"}, "k"
        )
        table.insert(ROWS)
        if request.param == "disk":
            table.flush()
        yield table


def keys(table: nyala.Table, where: Any, params: Any = None) -> list[int]:
    found = sorted(table.scan(["k"], where, params=params).to_arrow()["k"].to_pylist())
    assert table.count(where, params=params) == len(found)
    return found


SELECTED: list[tuple[str, list[int]]] = [
    ("a IS TRUE", [1, 4]),
    ("a IS NOT TRUE", [2, 3, 5]),
    ("a IS FALSE", [2]),
    ("a IS NOT FALSE", [1, 3, 4, 5]),
    ("a IS UNKNOWN", [3, 5]),
    ("a IS NOT UNKNOWN", [1, 2, 4]),
    ("v > 1 IS NOT TRUE", [1, 2, 5]),
    ("(v + 1 > 1) IS NOT FALSE", [1, 2, 3, 4]),
    ("NOT (v > 1 IS TRUE)", [1, 2, 5]),
    ("v IS DISTINCT FROM 1", [2, 3, 4, 5]),
    ("v IS NOT DISTINCT FROM NULL", [2]),
    ("v IS NOT DISTINCT FROM k", [1, 3]),
    ("x > 1", [2, 4]),
    ("x >= 'NaN'", [2]),
    ("NOT x > 1", [1, 3]),
    ("x = 0", [3]),
    ("x IN ('NaN', 0)", [2, 3]),
    ("x NOT IN ('NaN', 0)", [1, 4]),
    ("x NOT IN (0, NULL)", []),
    ("x BETWEEN 1 AND 'NaN'", [2, 4]),
    ("x * 2 > 1", [2, 4]),
    ("v % 2 = 1", [1, 3]),
    ("1 / v > 0.4", [1, 5]),
    ("length(s) = 3 AND upper(s) <> s", [1]),
    ("s ILIKE 'O%'", [1, 3]),
    ("CASE WHEN v = 0 THEN FALSE ELSE 10 % v = 1 END", [3]),
    ("v <> 0 AND 10 % v = 1", [3]),
    ("v = 0 OR 10 % v = 1", [3, 5]),
    ("(k, v) IN ((1, 1), (3, 4), (4, 4611686018427387904))", [1, 4]),
    ("(k, v) NOT IN ((1, 1), (2, 7))", [3, 4, 5]),
    ("(k, s) IN ((1, NULL), (1, 'one'))", [1]),
    ("(k, v) = (1, 1)", [1]),
    ("(k, v) > (3, 3)", [4, 5]),
    ("(k, x) IN ((2, 'NaN'), (3, 0.0))", [2, 3]),
    ("k IN (v, 2)", [1, 2, 3]),
    ("CAST(k AS string) || 'x' = '3x'", [3]),
    ("x::int = 0", [1, 3]),
]


@pytest.mark.parametrize(("where", "found"), SELECTED, ids=[text for text, _ in SELECTED])
def test_conditions_select_rows(table: nyala.Table, where: str, found: list[int]) -> None:
    if "::" in where:  # NaN and infinity are no integers
        where = f"x < 10 AND {where}"
    assert keys(table, where) == found
    assert keys(table, nyala.expr(where)) == found


def test_parameters_are_values_and_never_sql(table: nyala.Table) -> None:
    assert keys(table, "s = ? AND k = ?", ["o'clock", 3]) == [3]
    assert keys(table, "s = :s OR k = $k OR s = :s", {"s": "' OR TRUE --", "k": 2}) == [2]
    assert keys(table, "k IN ?", [[1, 3, 9]]) == [1, 3]
    assert keys(table, "k IN :some", {"some": range(2, 100)}) == [2, 3, 4, 5]
    assert keys(table, "k IN (?, ?)", (1, 2)) == [1, 2]
    assert keys(table, "s LIKE ? AND x > ?", ["o%", 0.25]) == [1]
    assert keys(table, "v = ?", [None]) == []
    assert keys(table, "x = ?", [NAN]) == [2]
    table.update(set={"s": nyala.expr("s || ?", ["'; x"])}, where="k = ?", params=[1])
    assert (table.get({"k": 1}) or {})["s"] == "one'; x"
    assert table.delete(where="k > :least", params={"least": 3}).deleted == 2


WRONG: list[tuple[Callable[[nyala.Table], Any], str]] = [
    (lambda t: t.count("k = ?"), "params=[…] has no values"),
    (lambda t: t.count("k = ? OR k = ?", params=[1]), "params=[…] has 1 values"),
    (lambda t: t.count("k = ?", params=[1, 2]), "params has 2 values, but the text has 1 question marks"),
    (lambda t: t.count("k = :a", params={"b": 1}), "'a' is missing"),
    (
        lambda t: t.count("k = :a", params={"a": 1, "b": 1}),
        "params contains 'b', but the text has no such parameter",
    ),
    (lambda t: t.count("k = ?", params="x"), "params must be a list of values"),
    (lambda t: t.count(nyala.col("k") == 1, params=[1]), "params= needs a where= text"),
    (lambda t: t.count("k IN ?", params=["abc"]), "a parameter after IN that is a list of values"),
    (lambda t: t.count("v * v > 0"), "'v * v' exceeds int64 in at least one row"),
    (lambda t: t.count("10 % v = 1"), "'10 % v' divides by zero in at least one row"),
    (lambda t: t.count("CAST(s AS int) = 1"), "casts a value that does not fit the type"),
    (lambda t: t.count("k"), "a condition is a comparison"),
    (lambda t: t.count("k + 1"), "with a truth value"),
    (lambda t: t.count("(k, v)"), "a row of values is only allowed before IN"),
    (lambda t: t.count("s > 1 + 1"), "have no common type: integer and text"),
    (lambda t: t.update(set={"v": "v + 1"}), "for an expression write nyala.expr('v + 1')"),
    (lambda t: t.update(set={"s": nyala.expr("secret")}), "no column 'secret'"),
]


@pytest.mark.parametrize(("act", "says"), WRONG, ids=[says for _, says in WRONG])
def test_an_invalid_expression_is_an_error_and_changes_nothing(
    table: nyala.Table, act: Callable[[nyala.Table], Any], says: str
) -> None:
    with pytest.raises((nyala.InvalidArgumentError, nyala.SchemaError, nyala.ColumnNotFoundError)) as error:
        act(table)
    assert says in str(error.value) and len(str(error.value)) < 1000
    assert [repr(row) for row in table.scan(order_by_key=True).to_arrow().to_pylist()] == list(
        map(repr, ROWS)
    )


def test_a_str_in_set_is_a_constant(table: nyala.Table) -> None:
    """It is a constant even if it looks like an expression or is the name of a column."""
    for text in (
        "'tis'",
        "x'41'",
        '"s"',
        "s",
        "k + 1",
        "upper(s)",
        "CASE WHEN k = 1 THEN 'x' END",
        "NULL",
        ":s",
        "",
    ):
        table.update(set={"s": text}, where="k = 1")
        assert (table.get({"k": 1}) or {})["s"] == text


def test_nan_means_the_same_in_text_col_and_pyarrow_expressions(table: nyala.Table) -> None:
    for text, built, arrow in (
        ("x > 1", nyala.col("x") > 1, pc.field("x") > 1),
        ("NOT x > 1", ~(nyala.col("x") > 1), ~(pc.field("x") > 1)),
        ("x <> 0", nyala.col("x") != 0, pc.field("x") != 0),
        ("x = 'NaN'", nyala.col("x") == NAN, pc.field("x") == NAN),
        ("x IN ('NaN', 0)", nyala.col("x").isin([NAN, 0]), pc.field("x").isin([NAN, 0.0])),
    ):
        assert keys(table, text) == keys(table, built) == keys(table, arrow) != []


def test_row_comparisons_and_is_distinct_from_skip_blocks(tmp_path: Path) -> None:
    with nyala.connect(tmp_path / "s", maintenance=False) as db:
        table = db.create_table(
            "t", {"a": "int64", "b": "int64", "v": "int64"}, ["a", "b"],
            nyala.hash_partition("a", buckets=8),
        )  # fmt: skip
        table.insert({"a": range(8000), "b": range(8000), "v": range(8000)})
        table.flush()
        for where, tablets in (
            ("(a, b) IN ((1, 1))", 1),
            ("(a, b) = (1, 1)", 1),
            ("a IS NOT DISTINCT FROM 1 AND b + 0 = 1", 1),
            ("a = 1 IS TRUE", 1),
            ("a + 0 = 1", 8),
        ):
            facts = table.scan(where=where).explain().to_dict()
            assert facts["tablets_read"] == tablets, where
            assert table.count(where) == 1
