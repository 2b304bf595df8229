"""Time travel in a SELECT: tables at a moment, and change feeds."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nyala
from tests.support import open_database


class World:
    """A store with a table `t`: the rows 1 and 2 at the moment `old`, tagged "first"; now 2 (changed) and 3."""

    def __init__(self, path: Path) -> None:
        self.db = open_database(path)
        table = self.db.create_table("t", {"k": "int64", "v": "double"}, "k")
        self.created = table.insert({"k": [1, 2], "v": [1.0, 2.0]})
        self.db.tag("first")
        time.sleep(0.005)
        self.old = dt.datetime.now(dt.UTC)
        time.sleep(0.005)
        with self.db.batch() as batch:
            batch.delete("t", {"k": [1]})
            batch.upsert("t", {"k": [2, 3], "v": [5.0, 3.0]})

    def rows(self, text: str, parameters: Any = None, **options: Any) -> list[tuple[Any, ...]]:
        return self.db.sql(text, parameters, **options).fetchall()


OLD, NOW = [(1, 1.0), (2, 2.0)], [(2, 5.0), (3, 3.0)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("moments") / "s")
    yield made
    made.db.close()


@pytest.mark.parametrize(
    "table",
    [
        "t AT (TIMESTAMP => ?)", "t AT (TIMESTAMP => ?) AS x", "t AT (TIMESTAMP => ?) x", "t x AT (TIMESTAMP => ?)",
        "T at (timestamp := ?)", '"t" AT (TIMESTAMP => ?::TIMESTAMPTZ)', "main.t AT (TIMESTAMP => ?)",
        "t AT (TIMESTAMP => ? + INTERVAL 1 MICROSECOND)", "t AT /* then */ (TIMESTAMP\n=> ?)",
        "t FOR SYSTEM_TIME AS OF ?", "t FOR SYSTEM_TIME AS OF ? AS x", "t FOR SYSTEM_TIME AS OF ? x",
        "t FOR SYSTEM_TIME AS OF CAST(? AS TIMESTAMPTZ) + INTERVAL '1' MICROSECOND x", "t AS x FOR SYSTEM_TIME AS OF ?",
        "t TIMESTAMP AS OF ?", "t TIMESTAMP AS OF (? + INTERVAL 0 DAYS)", "t FOR TIMESTAMP AS OF ?",
        "(t AT (TIMESTAMP => ?))", "(SELECT * FROM t AT (TIMESTAMP => ?))", "t AT (TIMESTAMP => ?) x(k, v)",
    ],
)  # fmt: skip
def test_spellings_of_a_time(world: World, table: str) -> None:
    """Each spelling reads the table at the time in the parameter."""
    assert world.rows(f"SELECT k, v FROM {table} WHERE k < 9 ORDER BY k", [world.old]) == OLD


@pytest.mark.parametrize(
    "table",
    [
        "t AT (VERSION => 'first')", "t AT (VERSION => {})", "t AT (TIMESTAMP => {})", "t VERSION AS OF {}",
        "t VERSION AS OF 'first' x", "t FOR SYSTEM_VERSION AS OF {} x", "t FOR VERSION AS OF 'first'",
        "t AT (VERSION => 'fi' || 'rst')", "t AT (VERSION => {} - 1 + 1)",
    ],
)  # fmt: skip
def test_spellings_of_a_version(world: World, table: str) -> None:
    """Each spelling reads the table at a tag or a timestamp."""
    text = f"FROM {table.format(world.created.timestamp)} ORDER BY k"
    assert world.rows(text) == OLD


def test_a_parameter_can_be_any_moment(world: World) -> None:
    """All forms that `scan(at=…)` accepts."""
    moments = [
        world.created,
        world.created.timestamp,
        "first",
        world.old,
        world.old.isoformat(),
        world.db.commits()[0],
    ]
    for moment in moments:
        text = "SELECT k, v FROM t AT (VERSION => $at) WHERE k >= $k ORDER BY k"
        if not isinstance(moment, dt.datetime):
            assert world.rows(text, {"at": moment, "k": 0}) == OLD
        assert world.rows(text.replace("VERSION", "TIMESTAMP"), {"at": moment, "k": 2}) == OLD[1:]


def test_several_moments_in_one_statement(world: World) -> None:
    """Joins, subqueries, WITH and set operations of tables at different moments."""
    assert world.rows(
        "SELECT now.k, now.v - old.v FROM t now JOIN t AT (VERSION => 'first') old USING (k)"
    ) == [(2, 3.0)]
    assert world.rows(
        "SELECT old.k FROM t AT (VERSION => 'first') AS old, t WHERE t.k = old.k + 1 AND t.k NOT IN "
        "(SELECT k FROM t VERSION AS OF 'first')"
    ) == [(2,)]
    assert world.rows("FROM t AT (VERSION => 'first') EXCEPT FROM t ORDER BY k") == OLD
    assert world.rows(
        "WITH y AS (FROM t FOR SYSTEM_TIME AS OF $old) SELECT count(*), (SELECT max(k) FROM t) FROM y",
        {"old": world.old},
    ) == [(2, 3)]
    assert world.rows(
        "SELECT a.v, b.v FROM t AT (VERSION => 'first') a JOIN t AT (TIMESTAMP => now()) b ON a.k = b.k"
    ) == [(2.0, 5.0)]


def test_predicates_are_pushed_into_scans_of_the_past(tmp_path: Path) -> None:
    with open_database(tmp_path / "s") as db:
        table = db.create_table("t", {"k": "int64", "v": "int64"}, "k")
        table.insert({"k": list(range(200_000)), "v": list(range(200_000))})
        db.flush()
        db.tag("before")
        table.delete(where="k >= 5")
        result = db.sql("SELECT v FROM t AT (VERSION => 'before') WHERE k = 123456")
        assert result.fetchall() == [(123456,)]
        (scan,) = [scan.to_dict() for scan in result.explain().scans]
        assert "123456" in str(scan)
        assert db.sql("SELECT v FROM t WHERE k = 123456").fetchall() == []


def test_columns_and_aliases_with_the_names_of_keywords(world: World) -> None:
    """String literals and comments that contain a time travel clause are not changed either."""
    for text, expected in (
        ("SELECT timestamp AS of FROM (SELECT 3 AS timestamp) q", [(3,)]),
        ("SELECT 't AT (VERSION => 1)' FROM t WHERE k = 2", [("t AT (VERSION => 1)",)]),
        ("SELECT version.k FROM t version WHERE version.k = 2", [(2,)]),
        ("SELECT public.k FROM t AS public WHERE public.k = 2", [(2,)]),
        ("SELECT changes.k FROM t changes WHERE changes.k = 2", [(2,)]),
        ("SELECT extract(year FROM TIMESTAMP '2026-01-01 00:00:00' AT TIME ZONE 'UTC')", [(2026,)]),
        ("SELECT k FROM t WHERE k IS DISTINCT FROM 3 -- t AT (VERSION => 1)", [(2,)]),
    ):
        assert world.rows(text) == expected


def test_qualified_names(world: World) -> None:
    """A table may be named with the schemas `main` and `public`, with and without a moment."""
    for name in ("main.t", "nyala.main.t", "public.t", "nyala.t", '"public"."t"', "nyala.public.T"):
        assert world.rows(f"SELECT k FROM {name} ORDER BY k") == [(2,), (3,)]
        assert world.rows(f"SELECT x.k FROM {name} AT (VERSION => 'first') x ORDER BY k") == [(1,), (2,)]
    assert world.rows("SELECT public.t.k FROM public.t ORDER BY public.t.k") == [(2,), (3,)]
    assert world.rows("SELECT nyala.main.t.k FROM nyala.main.t, public.t b WHERE b.k = 2") == [(2,), (3,)]
    assert world.rows("WITH t AS (SELECT k + 10 AS k FROM public.t) SELECT k FROM t ORDER BY k") == [
        (12,),
        (13,),
    ]
    with pytest.raises(nyala.TableNotFoundError):
        world.rows("SELECT k FROM public.nothing")


def test_changes_returns_what_table_changes_returns(world: World) -> None:
    text = "SELECT k, v, _change_type FROM changes('t', since => 'first') ORDER BY k"
    assert world.rows(text) == [(1, None, "delete"), (2, 5.0, "update"), (3, 3.0, "insert")]
    result = world.db.sql("FROM changes('t', since => 'first')")
    assert result.columns == world.db["t"].changes("first").columns
    assert result.fetchall() == result.fetchall() and len(result.fetchall()) == 3
    assert world.rows(
        "SELECT k, v, _change_type FROM changes('T', since => ?, before => true) c WHERE c.k <= 2 ORDER BY k, v",
        ["first"],
    ) == [(1, 1.0, "delete"), (2, 2.0, "update_preimage"), (2, 5.0, "update_postimage")]
    assert world.rows("SELECT count(*) FROM changes('t', since => 0, until => 'first')") == [(2,)]
    assert world.rows("SELECT count(*) FROM changes('t', since => 0, versions => 'all')") == [(5,)]
    assert world.rows(
        "SELECT t.k FROM changes('t', since => $s), t WHERE t.k = changes.k AND _commit_timestamp > $o ORDER BY 1",
        {"s": "first", "o": world.old},
    ) == [(2,), (3,)]


def test_changes_end_at_the_moment_of_the_statement(world: World) -> None:
    assert world.rows("SELECT count(*) FROM changes('t', since => 0)", at="first") == [(2,)]
    with world.db.snapshot("first") as snapshot:
        assert snapshot.sql("SELECT count(*) FROM changes('t', since => 0)").fetchall() == [(2,)]
        assert snapshot.sql("SELECT max(k) FROM t AT (TIMESTAMP => now())").fetchall() == [(3,)]


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("FROM t AT (TIMESTAMP => now() + INTERVAL 1 DAY)", nyala.InvalidArgumentError, "in the future"),
        ("FROM t AT (TIMESTAMP => '2001-01-01')", nyala.TableNotFoundError, "did not exist at 2001-01-01"),
        ("FROM t AT (TIMESTAMP => DATE '2001-01-01')", nyala.TableNotFoundError, "did not exist at 2001-01-01"),
        ("FROM t AT (VERSION => 'nosuch')", nyala.InvalidArgumentError, "no tag of this name"),
        ("FROM t AT (VERSION => now())", nyala.InvalidArgumentError, "write AT"),
        ("FROM t AT (VERSION => NULL)", nyala.InvalidArgumentError, "the moment of 't' is NULL"),
        ("FROM t AT (TIMESTAMP => k)", nyala.InvalidArgumentError, "constants and parameters, not 'k'"),
        ("FROM t AT (TIMESTAMP => (SELECT max(k) FROM t))", nyala.InvalidArgumentError, "constants and parameters"),
        ("FROM t AT (TIMESTAMP => 'x'::DATE)", nyala.InvalidArgumentError, "cannot be computed"),
        ("FROM t AT (TIMESTAMP => INTERVAL 1 DAY)", nyala.InvalidArgumentError, "not a duration"),
        ("FROM t AT (TIMESTAMP => )", nyala.InvalidArgumentError, "expected an expression"),
        ("SELECT *\nFROM t FOR SYSTEM_TIME AS OF", nyala.InvalidArgumentError, "LINE 2: expected a moment"),
        ("FROM nosuch AT (VERSION => 'first')", nyala.TableNotFoundError, "nosuch"),
        ("WITH x AS (SELECT 1) FROM x AT (VERSION => 3)", nyala.InvalidArgumentError, "'x' is defined in WITH"),
        ("FROM (SELECT 1) AT (VERSION => 3)", nyala.InvalidArgumentError, "AT"),
        ("FROM range(3) AT (VERSION => 3)", nyala.InvalidArgumentError, "AT"),
        ("SELECT nosuch FROM t AT (VERSION => 'first')", nyala.ColumnNotFoundError, "no column 'nosuch'"),
        ("FROM changes('t')", nyala.InvalidArgumentError, "since => …"),
        ("FROM changes(since => 3)", nyala.InvalidArgumentError, "since => …"),
        ("FROM changes('t', 3)", nyala.InvalidArgumentError, "need names"),
        ("FROM changes('t', since => 0, sinse => 0)", nyala.InvalidArgumentError, "since, until, before, versions"),
        ("FROM changes('t', since => 0, before => 3)", nyala.InvalidArgumentError, "before takes True or False"),
        ("FROM changes('t', since => now(), until => 'first')", nyala.InvalidArgumentError, "later than until"),
        ("FROM changes('t', since => NULL)", nyala.InvalidArgumentError, "is NULL"),
        ("FROM changes(5, since => 0)", nyala.InvalidArgumentError, "a table's name as text"),
        ("FROM changes('nosuch', since => 0)", nyala.TableNotFoundError, "nosuch"),
    ],
)  # fmt: skip
def test_errors(world: World, text: str, error: type[Exception], words: str) -> None:
    """An invalid moment or change feed raises an error that says what to write."""
    with pytest.raises(error, match=words):
        world.rows(text)


def test_errors_name_the_lines_of_the_users_text(world: World) -> None:
    with pytest.raises(nyala.InvalidArgumentError, match="LINE 4"):
        world.rows("SELECT *\nFROM t AT (\nVERSION => 'first')\nWHERE v::DATE = 3")


def test_a_dropped_table_at_a_moment(tmp_path: Path) -> None:
    """A statement can read a dropped table at an earlier moment, also beside a new table of its name."""
    world = World(tmp_path / "s")
    world.db.drop_table("t")
    assert world.rows("FROM t AT (VERSION => 'first') ORDER BY k") == OLD
    with pytest.raises(nyala.TableNotFoundError):
        world.rows("FROM t")
    other = world.db.create_table("t", {"k": "int64"}, "k")
    other.insert({"k": [7]})
    assert world.rows("SELECT a.k, b.k FROM t a, t AT (VERSION => 'first') b ORDER BY b.k") == [
        (7, 1),
        (7, 2),
    ]
    world.db.close()


def test_expired_history(tmp_path: Path) -> None:
    """A moment before the table's history raises HistoryExpiredError."""
    with open_database(tmp_path / "s") as db:
        table = db.create_table("t", {"k": "int64"}, "k", history=0)
        first = table.insert({"k": [1]})
        table.delete({"k": [1]})
        table.flush()
        table.vacuum()
        with pytest.raises(nyala.HistoryExpiredError):
            db.sql("FROM t AT (VERSION => ?)", [first.timestamp]).fetchall()
        with pytest.raises(nyala.HistoryExpiredError):
            db.sql("FROM changes('t', since => ?)", [first.timestamp]).fetchall()


def test_a_moment_inside_a_transaction(tmp_path: Path) -> None:
    """A table at a moment has no writes of the transaction. The other tables of the statement have them."""
    world = World(tmp_path / "s")
    with world.db.transaction() as tx:
        tx["t"].delete({"k": [2]})
        assert tx.sql("SELECT k FROM t ORDER BY k").fetchall() == [(3,)]
        assert tx.sql("SELECT k FROM t AT (VERSION => 'first') ORDER BY k").fetchall() == [(1,), (2,)]
        assert tx.sql(
            "SELECT old.k FROM t AT (VERSION => 'first') old ANTI JOIN t ON t.k = old.k ORDER BY 1"
        ).fetchall() == [(1,), (2,)]
        assert tx.sql("SELECT count(*) FROM changes('t', since => 'first')").fetchall() == [(3,)]
        tx.rollback()
    world.db.close()


def test_the_schema_of_the_moment(tmp_path: Path) -> None:
    """A table at a moment has its columns of that moment."""
    world = World(tmp_path / "s")
    world.db["t"].rename_column("v", "value")
    world.db["t"].add_column("more", "int64", default=4)
    assert world.db.sql("FROM t AT (VERSION => 'first')").columns == ["k", "v"]
    assert world.rows("SELECT old.v, value, more FROM t JOIN t VERSION AS OF 'first' old USING (k)") == [
        (2.0, 5.0, 4)
    ]
    world.db.close()


def test_a_table_whose_name_looks_like_a_moment(tmp_path: Path) -> None:
    world = World(tmp_path / "s")
    world.db.create_table("t@1", {"k": "int64"}, "k").insert({"k": [9]})
    assert world.rows("SELECT a.k, b.k FROM \"t@1\" a, t AT (VERSION => 'first') b ORDER BY 2") == [
        (9, 1),
        (9, 2),
    ]
    world.db.close()
