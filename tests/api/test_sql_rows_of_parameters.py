"""executemany has the result of one `execute` for each row of parameters; types of parameters."""

from __future__ import annotations

import datetime as dt
import decimal
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import nyala
import nyala.dbapi
from nyala.sql.rights import StoreRights
from nyala.sql.session import SqlSession
from tests.sampled import is_long_run

# Executed at once if no key occurs twice in the rows.
TOGETHER = [
    "INSERT INTO t VALUES (?, ?, ?)",
    "INSERT INTO t (v, g, k) VALUES (? || '!', lower(?), 40 + ?);",
    "INSERT OR REPLACE INTO t VALUES (?, ?, ?)",
    "INSERT INTO t VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
    "INSERT INTO t VALUES (?, ?, ?) ON CONFLICT (k, g) DO UPDATE SET v = t.v || excluded.v",
    "UPDATE t SET v = ? WHERE g = ? AND k = ?",
    "UPDATE t AS x SET v = x.v || ? WHERE ? = x.g AND x.k = ? -- by key",
    "UPDATE t SET v = v || ? WHERE g = ? AND k = ? AND v <> 'v3'",
    "UPDATE t SET v = ? WHERE g = ?AND k = ?",
    "INSERT INTO t VALUES (? -- key\n, ? /* p0 */, upper(?) || ' nyala_p0')",
    "INSERT INTO t VALUES (?, ?, CASE WHEN ? IS NULL THEN 'x' ELSE list_transform(['y'], lambda z: z || '!')[1] END)",
    "UPDATE t SET v = ? || $1 WHERE g = 'a' AND k = ?".replace("$1", "'!'"),
    "DELETE FROM t WHERE g = ? AND k = ?;",
    "DELETE FROM t AS x WHERE x.k = ? AND g = 'a' AND v <> 'v4'",
]
ONE_BY_ONE = [
    "UPDATE t SET v = ? WHERE k = ?",
    "UPDATE t SET v = ? WHERE g = ? OR k = ?",
    "UPDATE t SET k = ? WHERE g = ? AND k = ?",
    "UPDATE t SET v = (SELECT max(v) FROM t) || ? WHERE g = ? AND k = ?",
    "DELETE FROM t WHERE g = ? AND k >= ?",
    "INSERT INTO t VALUES (?, ?, DEFAULT)",
    "INSERT INTO t VALUES (?, ?, (SELECT count(*) FROM t))",
    "UPDATE t SET v = ? || row_number() OVER () WHERE g = ? AND k = ?",
]


@pytest.fixture
def db(tmp_path: Path) -> Iterator[nyala.Database]:
    with nyala.connect(tmp_path / "store", maintenance=False) as database:
        yield database


def make_table(db: nyala.Database) -> None:
    db.sql("DROP TABLE IF EXISTS t")
    db.sql("CREATE TABLE t (k BIGINT, g VARCHAR, v VARCHAR, PRIMARY KEY (k, g))")
    db.sql(
        "INSERT INTO t SELECT i % 8, CASE WHEN i < 8 THEN 'a' ELSE 'b' END, 'v' || i FROM range(16) AS r(i)"
    )


def random_rows(chance: random.Random, text: str) -> list[list[Any]]:
    """Return rows of parameters. Some have the same keys, keys that do not exist, or NULL."""
    count = text.count("?")
    is_number = ["k = ?", "x.k = ?", "k >= ?", "40 + ?"]
    places = [place for place, character in enumerate(text) if character == "?"]
    numbers = [any(text[: place + 1].endswith(each) for each in is_number) for place in places]
    if text.startswith("INSERT") and "40" not in text:
        numbers = [True] + [False] * (count - 1)
    keys = list(range(12)) * (1 if chance.random() < 0.7 else 2)
    chance.shuffle(keys)
    if chance.random() < 0.2:
        keys[3] = None
    return [
        [key if number else chance.choice("ab") for number in numbers]
        for key in keys[: chance.randint(2, len(keys))]
    ]


def outcome(db: nyala.Database, execute: Any) -> tuple[Any, list[Any]]:
    """Return the count, or that the statement was refused, and the rows of the table."""
    make_table(db)
    try:
        done = execute()
    except (nyala.Error, nyala.dbapi.Error):
        done = "refused"
    return done, db.sql("SELECT * FROM t ORDER BY k, g").fetchall()


@pytest.mark.parametrize("text", [*TOGETHER, *ONE_BY_ONE])
def test_executemany_has_the_result_of_single_statements(db: nyala.Database, text: str) -> None:
    chance = random.Random(text)
    with nyala.dbapi.connect(db, autocommit=True) as connection:
        for _ in range(40 if is_long_run() else 2):
            rows = random_rows(chance, text)

            def one_by_one(rows: list[list[Any]] = rows) -> int:
                with db.transaction() as tx:
                    return sum(tx.sql(text, row).rowcount for row in rows)

            def together(rows: list[list[Any]] = rows) -> int:
                return connection.cursor().executemany(text, rows).rowcount

            expected, found = outcome(db, one_by_one), outcome(db, together)
            assert found == expected, rows


@pytest.mark.parametrize("text", TOGETHER)
def test_which_statements_are_executed_at_once(db: nyala.Database, text: str) -> None:
    make_table(db)
    rows = [[key if "x.k = ? AND g" in text else "a"] * text.count("?") for key in range(50, 53)]
    session = SqlSession(db, StoreRights())
    if "k = ?" in text or text.startswith("INSERT"):
        number = 0 if text.startswith("INSERT INTO t VALUES") or "REPLACE" in text else -1
        for key, row in enumerate(rows, 50):
            row[number] = key
    assert session.execute_many(text, rows) is not None


def test_named_parameters(db: nyala.Database) -> None:
    """executemany also takes rows of named parameters. A missing one is an error."""
    make_table(db)
    cursor = nyala.dbapi.connect(db).cursor()
    rows = [{"k": key, "g": "a", "v": f"new{key}"} for key in range(50)]
    assert cursor.executemany("UPDATE t SET v = $v || $g WHERE k = $k AND g = $g", rows).rowcount == 8
    assert cursor.executemany("INSERT OR IGNORE INTO t VALUES ($k, $g, $v)", rows).rowcount == 42
    assert cursor.executemany("DELETE FROM t WHERE g = $g AND k = $k AND v = $v", rows).rowcount == 42
    with pytest.raises(nyala.dbapi.ProgrammingError, match="no value for parameter v"):
        cursor.executemany("INSERT INTO t VALUES ($k, $g, $v)", [{"k": 1, "g": "a"}])


def test_errors_of_executemany_name_no_internal_table(db: nyala.Database) -> None:
    make_table(db)
    cursor = nyala.dbapi.connect(db).cursor()
    for text in (
        "INSERT INTO t VALUES (?, 'x', nosuch(?))",
        "UPDATE t SET nosuch = ? WHERE k = ? AND g = 'a'",
    ):
        with pytest.raises(nyala.dbapi.ProgrammingError, match="nosuch") as caught:
            cursor.executemany(text, [(1, 100), (2, 101)])
        assert "nyala_" not in str(caught.value)
    with pytest.raises(nyala.dbapi.DataError, match="z") as caught_value:
        cursor.executemany("INSERT INTO t VALUES (?, 'x', 'y')", [("z",), ("1",)])
    assert "nyala_" not in str(caught_value.value)


@pytest.mark.parametrize(
    "values",
    [
        "?, 'a', max(?)", "max(?), 'a', 'b'", "?, 'a', count(*)", "?, 'a', unnest(['b', 'c'])",
        "?, 'a', row_number() OVER ()", "?, *", "?, ?, COLUMNS(*)", "DISTINCT ?, 'a', 'b'", "? AS x, 'a', x",
        "?, 'a', p0::VARCHAR", "?, 'a', nyala_p0", "?, 'a', NYALA_rows.nyala_p0", "?, 'a', nyala1_rows.nyala1_p0",
        "?, 'a', nyala_rows_of_parameters.p0", "?, 'a', k", "?, 'a', grouping(?)",
    ],
)  # fmt: skip
def test_executemany_refuses_the_same_values_as_execute(db: nyala.Database, values: str) -> None:
    make_table(db)
    text = f"INSERT INTO t VALUES ({values})"
    rows = [[key] * values.count("?") for key in (50, 51)]
    with nyala.dbapi.connect(db, autocommit=True) as connection:
        messages = []
        for execute in (
            lambda: connection.execute(text, rows[0]),
            lambda: connection.executemany(text, rows),
        ):
            with pytest.raises(nyala.dbapi.ProgrammingError) as caught:
                execute()
            messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert db["t"].count() == 16


def test_internal_names_avoid_the_names_of_the_user(db: nyala.Database) -> None:
    """In the text, and of tables and columns that the text does not name."""
    db.sql("CREATE TABLE nyala_rows (k INT PRIMARY KEY, nyala_p0 VARCHAR, nyala_p1 VARCHAR)")
    db.sql("CREATE TABLE u (nyala_p0 INT PRIMARY KEY, p0 INT, nyala_p1 INT)")
    with nyala.dbapi.connect(db, autocommit=True) as connection:
        connection.executemany("INSERT INTO nyala_rows VALUES (?, ?, ?)", [(1, "a", "b"), (2, "c", "d")])
        connection.executemany("INSERT INTO u VALUES (?, ?, ?)", [(1, 10, 100), (2, 20, 200)])
        connection.executemany("UPDATE u SET p0 = p0 + nyala_p1 + ? WHERE nyala_p0 = ?", [(5, 1), (6, 2)])
        for text in ("UPDATE u SET p0 = p1 + ? WHERE nyala_p0 = ?", "UPDATE u SET p0 = ? WHERE nyala_p2 = ?"):
            with pytest.raises(nyala.dbapi.ProgrammingError, match="no column"):
                connection.executemany(text, [(1, 1), (2, 2)])
    assert db.sql("SELECT * FROM nyala_rows ORDER BY k").fetchall() == [(1, "a", "b"), (2, "c", "d")]
    assert db.sql("SELECT * FROM u ORDER BY 1").fetchall() == [(1, 115, 100), (2, 226, 200)]


D, M = dt.date(2026, 1, 1), dt.datetime(2026, 1, 2, 12, 30)
PAIRS: dict[str, list[list[Any]]] = {
    "TIMESTAMPTZ": [[D, M], [M, D], [M, M.replace(tzinfo=dt.UTC)], [None, M.replace(tzinfo=dt.UTC)]],
    "DATE": [[D, M], [M, D], [D, 3], [M, M]],
    "VARCHAR": [
        [1, 2.5],
        [2.5, 1],
        [True, 2],
        [decimal.Decimal("1"), decimal.Decimal("1.5")],
        [decimal.Decimal("1.50"), decimal.Decimal("1.5"), None],
        [decimal.Decimal("10.5"), decimal.Decimal("1.5")],
        [decimal.Decimal("1E+2"), decimal.Decimal("3E+2")],
        ["é", b"a"],
        [b"a", "é"],
        [D, M],
        [M, M.replace(tzinfo=dt.UTC)],
        [dt.time(1, 2), dt.time(1, 2, tzinfo=dt.UTC)],
        [dt.time(1, 2, tzinfo=dt.UTC), dt.time(1, 3, tzinfo=dt.UTC)],
        [[1], [2.5]],
        [[1, 2.5], None],
        [[D], [M]],
        [{"a": 1}, {"b": 2}],
        [(1, 2), [3]],
        [1.5, None, float("nan")],
        [2**63, 1, -1],
    ],
    "BLOB": [[b"a", "b"]],
    "DECIMAL(9, 3)": [[decimal.Decimal("1.125"), 2.5, 1], [decimal.Decimal("1"), decimal.Decimal("1.125")]],
}


@pytest.mark.parametrize("kind", PAIRS)
def test_values_of_several_types_are_not_converted_to_the_first(db: nyala.Database, kind: str) -> None:
    for values in PAIRS[kind]:
        found = []
        for is_together in (False, True):
            db.sql("DROP TABLE IF EXISTS p")
            db.sql(f"CREATE TABLE p (id INT PRIMARY KEY, v {kind})")
            rows = list(enumerate(values))
            with nyala.dbapi.connect(db, autocommit=True) as connection:
                try:
                    if is_together:
                        connection.executemany("INSERT INTO p VALUES (?, ?)", rows)
                    else:
                        with db.transaction() as tx:
                            for row in rows:
                                tx.sql("INSERT INTO p VALUES (?, ?)", list(row))
                except (nyala.Error, nyala.dbapi.Error):
                    found.append("refused")
                    continue
            found.append(str(db.sql("SELECT v FROM p ORDER BY id").fetchall()))
        assert found[1] == found[0], values


def test_a_date_and_a_datetime_are_different_keys(db: nyala.Database) -> None:
    db.sql("CREATE TABLE p (d DATE PRIMARY KEY, v INT)")
    db.sql("INSERT INTO p VALUES ('2026-01-01', 1), ('2026-01-02', 2)")
    with nyala.dbapi.connect(db, autocommit=True) as connection:
        assert connection.executemany("DELETE FROM p WHERE d = ?", [(D,), (M,)]).rowcount == 1
    assert db.sql("SELECT v FROM p").fetchall() == [(2,)]


VALUES: list[tuple[Any, Any]] = [
    (np.int64(3), 3),
    (np.uint8(255), 255),
    (np.float32(1.5), 1.5),
    (np.float64("nan"), None),
    (np.bool_(True), True),
    (np.str_("a"), "a"),
    (np.bytes_(b"a"), b"a"),
    (np.datetime64("2026-01-01"), dt.date(2026, 1, 1)),
    (np.datetime64("2026-01-01T12:00:00.123456789"), dt.datetime(2026, 1, 1, 12, 0, 0, 123456)),
    (np.datetime64("NaT", "us"), None),
    (np.timedelta64(3, "s"), dt.timedelta(seconds=3)),
    (pd.Timestamp("2026-01-01 12:00"), dt.datetime(2026, 1, 1, 12)),
    (pd.Timestamp("2026-01-01", tz="Asia/Tokyo"), dt.datetime(2025, 12, 31, 15, tzinfo=dt.UTC)),
    (pd.Timedelta(3, "s"), dt.timedelta(seconds=3)),
    (pd.NaT, None),
    (pd.NA, None),
    (pa.scalar(3), 3),
    (pa.scalar(None), None),
    (pa.scalar(decimal.Decimal("1.50")), decimal.Decimal("1.50")),
    (pa.scalar(1767225600_123456789, pa.timestamp("ns")), dt.datetime(2026, 1, 1, 0, 0, 0, 123456)),
    ([np.int64(3), np.int64(4)], [3, 4]),
    (pd.Series([1, 2]).max(), 2),
]


@pytest.mark.parametrize(("value", "expected"), VALUES, ids=range(len(VALUES)))
def test_scalars_of_numpy_pandas_and_arrow_as_parameters(
    db: nyala.Database, value: Any, expected: Any
) -> None:
    if isinstance(value, np.floating) and np.isnan(value):
        assert db.sql("SELECT isnan(?)", [value]).fetchall() == [(True,)]
        return
    assert db.sql("SELECT ?", [value]).fetchall() == [(expected,)]
    assert db.sql("SELECT $a", {"a": value}).fetchall() == [(expected,)]
    with nyala.dbapi.connect(db) as connection:
        assert connection.execute("SELECT ?", [value]).fetchall() == [(expected,)]


def test_scalars_of_numpy_pandas_and_arrow_are_stored(db: nyala.Database) -> None:
    db.sql("CREATE TABLE t (id INT PRIMARY KEY, f DOUBLE, d DATE, w TIMESTAMP, s VARCHAR)")
    frame = pd.DataFrame({"id": [1, 2], "f": [0.5, np.nan], "s": ["a", None]})
    rows = [
        (*row[:2], np.datetime64("2026-01-01"), pd.Timestamp("2026-01-01"), row[2])
        for row in frame.itertuples(index=False)
    ]
    rows += [(np.int32(3), pa.scalar(1.5), pd.NaT, pd.NaT, pd.NA)]
    with nyala.dbapi.connect(db) as connection:
        cursor = connection.cursor()
        assert cursor.executemany("INSERT INTO t VALUES (?, ?, ?, ?, ?)", rows).rowcount == 3
        assert (
            cursor.executemany(
                "UPDATE t SET f = ? WHERE id = ?", [(np.float32(2), np.int64(2)), (7, 3)]
            ).rowcount
            == 2
        )
        assert cursor.execute("SELECT f FROM t WHERE id = ?", [np.int64(2)]).fetchall() == [(2.0,)]
    assert db.sql("SELECT id, f, d, w IS NULL FROM t ORDER BY id").fetchall() == [
        (1, 0.5, dt.date(2026, 1, 1), False),
        (2, 2.0, dt.date(2026, 1, 1), False),
        (3, 7.0, None, True),
    ]


def test_a_time_that_python_cannot_hold_is_refused(db: nyala.Database) -> None:
    with pytest.raises(nyala.InvalidArgumentError, match="pass a time of the years 1 to 9999"):
        db.sql("SELECT ?", [np.datetime64("20000-01-01", "s")])
