"""SQL that does not come from the program (`StoreRights`) reaches only the tables of its store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nyala
from nyala.sql.rights import StoreRights
from nyala.sql.session import SqlSession
from tests.support import open_database

FILE = "/etc/hostname"
# {csv} is a file that exists; {out} is a file that must not be created.
ATTACKS = [
    "SELECT * FROM read_text('{csv}')",
    "SELECT * FROM read_blob('{csv}')",
    "SELECT * FROM read_csv('{csv}')",
    "SELECT * FROM read_csv_auto(['{csv}'])",
    "SELECT * FROM read_json('{csv}')",
    "SELECT * FROM read_parquet('{csv}')",
    "SELECT * FROM main.read_csv('{csv}')",
    "SELECT * FROM system.main.read_csv('{csv}')",
    "SELECT * FROM \"read_csv\"('{csv}')",
    "SELECT * FROM READ_CSV /* a comment */ ('{csv}')",
    "SELECT * FROM -- a comment\rread_csv('{csv}')",
    "SELECT 1 /* /* */ ' */ FROM read_csv('{csv}') -- '",
    "SELECT * FROM '{csv}'",
    'SELECT * FROM "{csv}"',
    "FROM '{csv}'",
    "FROM 'file://{csv}'",
    "FROM glob('/etc/*')",
    "FROM sniff_csv('{csv}')",
    "FROM parquet_metadata('{csv}')",
    "FROM read_duckdb('{csv}')",
    "FROM t JOIN '{csv}' ON true",
    "WITH f AS (FROM '{csv}') SELECT * FROM f",
    "SELECT (SELECT count(*) FROM '{csv}')",
    "SELECT * FROM t WHERE k IN (SELECT a FROM read_csv('{csv}'))",
    "SELECT * FROM t WHERE EXISTS (FROM '{csv}')",
    "VALUES ((SELECT a FROM '{csv}'))",
    "SUMMARIZE '{csv}'",
    "TABLE '{csv}'",
    "PIVOT '{csv}' ON a IN (1)",
    "SELECT * FROM query('SELECT 1')",
    "SELECT * FROM query('FROM read_' || 'csv(''{csv}'')')",
    "SELECT * FROM query_table('t')",
    "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))",
    "SELECT * FROM t AT (TIMESTAMP => current_setting('threads'))",
    "EXPLAIN SELECT * FROM read_csv('{csv}')",
    "EXPLAIN ANALYZE SELECT * FROM '{csv}'",
    "DESCRIBE SELECT * FROM '{csv}'",
    "DESCRIBE '{csv}'",
    "COPY t TO '{out}'",
    "COPY t FROM '{csv}'",
    "COPY (SELECT 1) TO '{out}' (FORMAT csv)",
    "EXPORT DATABASE '{out}'",
    "IMPORT DATABASE '{out}'",
    "ATTACH '{out}' AS other",
    "ATTACH ':memory:' AS other",
    "DETACH other",
    "USE memory",
    "SET threads = 1",
    "SET enable_external_access = true",
    "RESET lock_configuration",
    "PRAGMA enable_external_access",
    "PRAGMA threads = 1",
    "CALL pragma_version()",
    "INSTALL httpfs",
    "LOAD httpfs",
    "LOAD '{csv}'",
    "CREATE SECRET s (TYPE s3)",
    "PREPARE p AS SELECT * FROM '{csv}'",
    "EXECUTE p",
    "CREATE MACRO m() AS TABLE FROM '{csv}'",
    "CREATE VIEW v AS FROM '{csv}'",
    "CREATE TABLE stolen AS FROM '{csv}'",
    "CREATE TABLE stolen (k INT PRIMARY KEY, v INT DEFAULT (SELECT a FROM read_csv('{csv}')))",
    "CREATE TABLE stolen (k INT PRIMARY KEY, v TEXT DEFAULT current_setting('temp_directory'))",
    "INSERT INTO t SELECT a, 'x' FROM read_csv('{csv}')",
    "INSERT INTO t FROM '{csv}'",
    "INSERT INTO t VALUES (7, (SELECT content FROM read_text('{csv}')))",
    "UPDATE t SET v = (SELECT content FROM read_text('{csv}'))",
    "UPDATE t SET v = 'x' FROM '{csv}' f WHERE f.a = t.k",
    "DELETE FROM t WHERE k IN (SELECT a FROM '{csv}')",
    "DELETE FROM t USING '{csv}' f WHERE f.a = t.k",
    "MERGE INTO t USING (SELECT a FROM '{csv}') f ON f.a = t.k WHEN MATCHED THEN DELETE",
    "INSERT INTO t VALUES (7, 'x') RETURNING (SELECT content FROM read_text('{csv}'))",
    "SELECT getenv('HOME')",
    "SELECT current_setting('temp_directory')",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM duckdb_extensions()",
    "SELECT * FROM duckdb_logs",
    "SELECT * FROM pg_settings",
    "SELECT * FROM pg_catalog.pg_settings",
    "SELECT * FROM enable_logging(storage = 'file', storage_config = {{'path': '{out}'}})",
    "SELECT * FROM enable_profiling(save_location = '{out}')",
    "SELECT * FROM create_external_resource('x')",
    "SELECT * FROM checkpoint()",
    "SELECT write_log('x')",
    "SELECT * FROM arrow_scan(1, 2, 3)",
    "SELECT * FROM pandas_scan(1)",
    "SELECT * FROM secret",
    "SELECT * FROM t, secret",
    "INSERT INTO t SELECT * FROM secret",
    "SELECT * FROM 'https://example.com/x.csv'",
    "SELECT * FROM sqlite_scan('{csv}', 'x')",
    "SELECT 1; SELECT * FROM '{csv}'",
    # Another lexer than DuckDB's may read these as a number followed by a text, or the other way round.
    "SELECT 1._$$, (SELECT list(value) FROM duckdb_settings() WHERE name = 'secret_directory') AS z$$",
    "SELECT 1_$$, current_setting('temp_directory') AS z$$",
    "SELECT .5_$a$, current_setting('temp_directory') AS z$a$",
    "SELECT t.k$$, current_setting('temp_directory') AS z$$ FROM t",
    "SELECT 'ä' AS \"ä\", 1._$$, current_setting('temp_directory') AS z$$",
    "SELECT sleep_ms(1)",
    "SELECT pg_sleep(1)",
    "SELECT nextval('s')",
]
secret = {"k": [9], "v": ["a variable of the program"]}


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    database = open_database(tmp_path_factory.mktemp("sql") / "s")
    database.create_table("t", {"k": "int64", "v": "string"}, "k").insert({"k": [1], "v": ["one"]})
    yield database
    database.close()


@pytest.mark.parametrize("text", ATTACKS)
def test_a_statement_that_reaches_outside_is_refused(db: Any, tmp_path: Path, text: str) -> None:
    """It is refused whether or not its rows are read, and it reads and writes no file and no setting."""
    csv, out = tmp_path / "x.csv", tmp_path / "out"
    csv.write_text("a\n1\n")
    session = SqlSession(db, StoreRights())
    with pytest.raises((nyala.InvalidArgumentError, nyala.TableNotFoundError)):
        session.execute(text.format(csv=csv, out=out)).fetchall()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.csv"]
    assert db.list_tables() == ["t"] and db["t"].scan().to_arrow().to_pylist() == [{"k": 1, "v": "one"}]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT v FROM t WHERE k = 1",
        "SELECT max(x) FROM range(3) r(x)",
        "SELECT unnest([1]) FROM t",
        "SELECT k AS query FROM t WHERE v LIKE 'read_csv(%' OR k = 1 -- read_csv('x')",
        "SELECT version()",
        "SELECT table_name FROM duckdb_tables()",
        "SELECT * FROM (VALUES "
        + ", ".join(f"({i}, 'é', $$x$$, NULL)" for i in range(20))
        + ") r(a, b, c, d)",
        "SELECT 1 /* a comment */ + /* another */ 1",
        "SELECT 'ä', $$ö ' $$ || 'ü', \"k\" AS \"ä ' b\" FROM t -- it's",
        "SELECT e'it\\'s', x'00', 1_000, .5, 1e3, uuid() IS NOT NULL, random() < 2, now() > DATE '2000-01-01'",
    ],
)
def test_statements_that_read_only_the_store_are_allowed(db: Any, text: str) -> None:
    SqlSession(db, StoreRights()).execute(text).fetchall()


def test_settings_stay_locked_for_the_program_too(db: Any) -> None:
    """The settings are also locked in the DuckDB that has access to files."""
    text = "SELECT value FROM duckdb_settings() WHERE name = ?"
    assert db.sql(text, ["lock_configuration"]).fetchall() == [("true",)]
    assert db.sql(text, ["autoinstall_known_extensions"]).fetchall() == [("false",)]
    assert db.sql(text, ["autoload_known_extensions"]).fetchall() == [("false",)]
    assert db.sql(text, ["TimeZone"]).fetchone()[0].endswith("UTC")
