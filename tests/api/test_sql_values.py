"""INSERT of many rows of literals: where they can occur, and their errors.

How single values are stored: `tests/model/test_sql_literals_like_duckdb.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

import nyala
from nyala.sql.tokens import split_statements


@pytest.fixture
def db(tmp_path: Path) -> Iterator[nyala.Database]:
    with nyala.connect(tmp_path / "store", maintenance=False) as database:
        database.sql("CREATE TABLE t (id INT PRIMARY KEY, s VARCHAR)")
        yield database


def rows(count: int, begin: int = 0) -> str:
    return ", ".join(f"({key}, 'x;{key}')" for key in range(begin, begin + count))


STATEMENTS: list[tuple[str, list[Any]]] = [
    (f"INSERT INTO t VALUES {rows(20)} RETURNING *", []),
    (f"INSERT INTO t VALUES {rows(22)} ON CONFLICT DO NOTHING", []),
    (f"INSERT INTO t VALUES {rows(24)} ON CONFLICT (id) DO UPDATE SET s = excluded.s || '!'", []),
    (f"INSERT INTO t VALUES {rows(22, 100)}, (200, 2)", []),
    (f"INSERT INTO t VALUES {rows(22, 300)}, (400, lower('X')), (401, ?), {rows(30, 500)}", ["q"]),
    (f"WITH q AS (SELECT 1 AS a) INSERT INTO t VALUES {rows(22, 600)}, (650, (SELECT a FROM q))", []),
    (f"INSERT INTO t VALUES {', '.join(['(?, ?)'] * 20)}", [x for i in range(700, 720) for x in (i, f"{i}")]),
    (f"INSERT INTO t SELECT * FROM (VALUES {rows(22, 800)})", []),
    (f"INSERT INTO t (VALUES {rows(22, 900)})", []),
    (f"INSERT INTO t VALUES /* a; */ {rows(22, 1000)} -- b;", []),
    (f"INSERT INTO t VALUES {rows(22, 1100)},", []),
    (f"INSERT INTO t SELECT 1200, 'VALUES {rows(22).replace(chr(39), chr(39) * 2)}'", []),
    (f"UPDATE t SET s = q.b FROM (VALUES {rows(22, 305)}) AS q(a, b) WHERE t.id = q.a", []),
    (f"DELETE FROM t WHERE (id, s) IN (VALUES {rows(22, 610)})", []),
    (f"VALUES {rows(22, 1300)}", []),
    (f"SELECT sum(a) FROM (VALUES {', '.join(['(?, ?)'] * 16)}) AS q(a, b)", [1] * 32),
]


def test_statements_with_many_rows_have_duckdbs_result(db: nyala.Database) -> None:
    twin = duckdb.connect(":memory:")
    twin.execute("CREATE TABLE t (id INT PRIMARY KEY, s VARCHAR)")
    for text, parameters in STATEMENTS:
        assert db.sql(text, parameters).fetchall() == twin.execute(text, parameters).fetchall(), text
        everything = "SELECT * FROM t ORDER BY id"
        assert db.sql(everything).fetchall() == twin.execute(everything).fetchall(), text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            f"INSERT INTO t VALUES {rows(22)}, (1, 2, 3)",
            r"INSERT INTO t \(id, s\): expected 2 values per row, got 3",
        ),
        (f"INSERT INTO t VALUES {rows(22)}, (1), {rows(16, 50)}", "expected 2 values per row, got 1"),
        (f"INSERT INTO t (id) VALUES {rows(22)}", r"INSERT INTO t \(id\): expected 1 value per row, got 2"),
        (f"INSERT INTO t VALUES {rows(22)}, ('y', 2)", "Could not convert string 'y' to INT32"),
        (f"INSERT INTO t VALUES {rows(22)}, (x, 2)", "x"),
        (f"INSERT INTO t VALUES {rows(22)}, (99999999999, 2), {rows(30, 50)}", "99999999999"),
        (f"INSERT INTO t VALUES {rows(22)}) ", "does not parse"),
        (f"INSERT INTO t VALUES {rows(22)} x", "does not parse"),
        (f"INSERT INTO t VALUES {rows(22)}, (23, 'y), {rows(22, 30)}", "does not parse"),
    ],
)
def test_an_error_in_one_of_many_rows_names_the_value(db: nyala.Database, text: str, message: str) -> None:
    with pytest.raises(nyala.Error, match=message):
        db.sql(text)
    assert db["t"].count() == 0


def test_missing_and_superfluous_parameters_of_many_rows(db: nyala.Database) -> None:
    text = f"INSERT INTO t VALUES {', '.join(['(?, ?)'] * 20)}"
    with pytest.raises(nyala.InvalidArgumentError, match="no value for"):
        db.sql(text, list(range(39)))
    with pytest.raises(nyala.InvalidArgumentError, match="no parameter 41"):
        db.sql(text, list(range(41)))
    with pytest.raises(nyala.InvalidArgumentError, match="of both kinds"):
        db.sql(text.replace("?", "$a", 1), list(range(40)))
    named = text.replace("(?, ?)", "($a, $b)", 1).replace("(?, ?), ", "").replace("(?, ?)", "(2, $b)")
    assert db.sql(named, {"a": 1, "b": "x"}).rowcount == 2
    assert db.sql("INSERT INTO t VALUES " + ", ".join(f"({key}, $b)" for key in range(3, 30)), {"b": "'?"})
    assert db.sql("SELECT count(*), min(s), max(s) FROM t").fetchall() == [(29, "'?", "x")]


def test_a_text_with_many_statements_of_many_rows() -> None:
    parts = [f"INSERT INTO t VALUES {rows(16)}", "SELECT ';'", f"INSERT INTO t VALUES {rows(17)}"]
    assert [part.strip() for part in split_statements(";\n".join(parts))] == parts
