"""DESCRIBE, SHOW, EXPLAIN and SELECT over the catalogue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import nyala
from tests.support import open_database


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    database = open_database(tmp_path_factory.mktemp("describe") / "s")
    database.create_table(
        "t",
        {
            "host": nyala.column("string", nullable=False, comment="where it's from"),
            "time": nyala.column("timestamp", nullable=False),
            "n": nyala.column("int32", nullable=False, default=5),
            "price": nyala.column("decimal(9,2)"),
            "name": nyala.column("string", default="it's"),
        },
        ["host", "time"],
        partition_by=[
            nyala.hash_partition("host", buckets=2),
            nyala.range_partition("time", bounds=[("2026-01-01", "2027-01-01")]),
        ],
    )
    database.create_table("old", {"k": "int64"}, "k").insert({"k": [1]}, message="first")
    database.tag("before")
    database.drop_table("old")
    database.create_table("u", {"k": "int64", "v": "double"}, "k").insert({"k": [1, 2], "v": [1.0, 2.0]})
    yield database
    database.close()


COLUMNS = [
    ("host", "VARCHAR", "NO", "PRI", None, None),
    ("time", "TIMESTAMP WITH TIME ZONE", "NO", "PRI", None, None),
    ("n", "INTEGER", "NO", None, "5", None),
    ("price", "DECIMAL(9,2)", "YES", None, None, None),
    ("name", "VARCHAR", "YES", None, "'it''s'", None),
]


@pytest.mark.parametrize(
    "text",
    ["DESCRIBE t", "DESC t", "DESCRIBE TABLE main.t", "SHOW t", "SHOW COLUMNS FROM T", "FROM (DESCRIBE t)",
     "DESCRIBE t AT (TIMESTAMP => now())"],
)  # fmt: skip
def test_describe_has_key_and_defaults(db: Any, text: str) -> None:
    assert db.sql(text).fetchall() == COLUMNS


def test_describe_of_a_query(db: Any) -> None:
    assert db.sql("DESCRIBE SELECT n + 1 AS m FROM t").fetchall()[0][:2] == ("m", "INTEGER")


def test_describe_of_a_dropped_table_at_a_moment(db: Any) -> None:
    assert db.sql("DESCRIBE old VERSION AS OF 'before'").fetchall() == [
        ("k", "BIGINT", "NO", "PRI", None, None)
    ]


def test_the_catalogue(db: Any) -> None:
    def rows(text: str, parameters: Any = None) -> Any:
        return db.sql(text, parameters).fetchall()

    assert rows(
        "SELECT table_catalog, table_schema, table_name FROM information_schema.tables ORDER BY 3"
    ) == [
        ("nyala", "main", "t"),
        ("nyala", "main", "u"),
    ]
    assert rows(
        "SELECT column_name, is_nullable, column_default FROM information_schema.columns WHERE table_name = ? "
        "AND column_name IN ('n', 'price') ORDER BY 1",
        ["t"],
    ) == [("n", "NO", "5"), ("price", "YES", None)]
    assert rows("SELECT comment FROM duckdb_columns() WHERE column_name = 'host'") == [("where it's from",)]
    assert rows("SELECT constraint_column_names FROM duckdb_constraints() WHERE constraint_type = 'PRIMARY KEY' "
                "AND table_name = 't'") == [(["host", "time"],)]  # fmt: skip
    assert rows("SELECT name FROM pragma_table_info('u')") == [("k",), ("v",)]
    assert rows("SELECT count(*) FROM pg_catalog.pg_tables WHERE tablename IN ('t', 'u')") == [(2,)]


def test_a_statement_cannot_read_rows_and_the_catalogue(db: Any) -> None:
    with pytest.raises(nyala.InvalidArgumentError, match="also reads table 'u': write two statements"):
        db.sql("SELECT * FROM information_schema.tables, u")
    assert db.sql("SELECT 'information_schema.tables (DESCRIBE u)' FROM u WHERE k = 1").fetchall()
    assert db.sql("SELECT count(*) FROM information_schema.tables WHERE table_name = 'u'").fetchone() == (1,)


def test_show(db: Any) -> None:
    assert db.sql("SHOW TABLES").fetchall() == [("t",), ("u",)]
    assert [row[2] for row in db.sql("SHOW ALL TABLES").fetchall()] == ["t", "u"]
    assert db.sql("SHOW TAGS").to_arrow()["name"].to_pylist() == ["before"]
    assert db.sql("SHOW DROPPED TABLES").to_arrow()["name"].to_pylist() == ["old"]
    assert len(db.sql("SHOW PARTITIONS t").fetchall()) == len(db["t"].tablets())
    ranges = db.sql("SHOW RANGE PARTITIONS t").fetchall()
    assert ("RANGE (time) [2026-01-01, 2027-01-01)", 2) in ranges
    ((statement,),) = db.sql("SHOW CREATE TABLE t").fetchall()
    assert statement.startswith('CREATE TABLE "t" (') and "PARTITION BY HASH" in statement
    commits = db.sql("SHOW COMMITS").to_arrow()
    assert commits["message"].to_pylist() == [None, "first"], "the newest first"
    assert db.sql("SHOW COMMITS LIMIT 1").to_arrow()["tables"].to_pylist() == [["u"]]
    assert db.sql("SHOW COMMITS FROM u").to_arrow()["inserted"].to_pylist() == [2]
    with db.transaction() as tx:
        assert tx.sql("SHOW TABLES").fetchall() == [("t",), ("u",)]
        assert tx.sql("DESCRIBE t").fetchall() == COLUMNS


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("SHOW RANGE PARTITIONS u", nyala.InvalidArgumentError, "no range partitions"),
        ("SHOW NOTHING", nyala.InvalidArgumentError, "expected SHOW TABLES"),
        ("SHOW TABLES u", nyala.InvalidArgumentError, "end of the statement"),
        ("SHOW COMMITS LIMIT x", nyala.InvalidArgumentError, "whole number"),
        ("DESCRIBE nosuch", nyala.TableNotFoundError, "no table 'nosuch'"),
        ("EXPLAIN SHOW TABLES", nyala.InvalidArgumentError, "EXPLAIN takes a statement"),
        ("EXPLAIN", nyala.InvalidArgumentError, "takes a statement"),
    ],
)
def test_errors(db: Any, text: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        db.sql(text)


def test_explain(db: Any) -> None:
    ((key, plan),) = db.sql("EXPLAIN SELECT v FROM u WHERE k = 1").fetchall()
    assert key == "physical_plan" and "Projections" in plan
    analyzed = dict(db.sql("EXPLAIN ANALYZE SELECT v FROM u WHERE k = ?", [1]).fetchall())
    assert set(analyzed) == {"analyzed_plan", "scan"}
    assert "nothing" not in db.list_tables()
    rows = dict(db.sql("EXPLAIN CREATE TABLE nothing AS SELECT v FROM u").fetchall())
    assert "would create the table" in rows["statement"] and "physical_plan" in rows
    assert "nothing" not in db.list_tables()
