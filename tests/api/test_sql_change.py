"""INSERT, UPDATE, DELETE and MERGE: concurrency, transactions, interrupts and errors.

The forms of the statements are in tests/scripts/sql.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import nyala
from nyala.sql.rights import ProgramRights, Rights, StoreRights
from nyala.sql.session import SqlSession


@pytest.fixture
def db(tmp_path: Path) -> Iterator[nyala.Database]:
    with nyala.connect(tmp_path / "store", maintenance=False) as database:
        yield database


@pytest.fixture
def t(db: nyala.Database) -> nyala.Table:
    made = db.create_table("t", {"id": "int64", "v": nyala.column("int64", default=7), "s": "string"}, "id")
    db.sql("INSERT INTO t VALUES (1, 10, 'a'), (2, 20, NULL), (3, DEFAULT, 'c')")
    return made


def test_a_result_says_what_was_written(db: nyala.Database, t: nyala.Table) -> None:
    result = db.sql("UPDATE t SET v = v + 1 WHERE id > 1")
    assert (result.statement, result.rowcount, result.fetchall()) == ("UPDATE", 2, [(2,)])
    assert result.write is not None and result.write.updated == 2
    assert t.scan(at=result.write).to_arrow()["v"].to_pylist() == [10, 21, 8]
    assert t.changes(since=result.timestamp - 1).to_arrow().num_rows == 2


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE t SET v = v + 1 WHERE id = 1",
        "INSERT INTO t (id, v) VALUES (1, 1) ON CONFLICT DO UPDATE SET v = v + excluded.v",
        "MERGE INTO t USING (SELECT 1 AS id) AS s ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = t.v + 1",
        "UPDATE t SET v = v + 1 FROM (VALUES (1)) AS f(i) WHERE f.i = t.id",
        "UPSERT INTO t (id, v) SELECT id, v + 1 FROM t WHERE id = 1",
        "UPSERT INTO t (id, v) VALUES (1, (SELECT v + 1 FROM t WHERE id = 1))",
        "INSERT OR REPLACE INTO t (id, v) (FROM t SELECT id, v + 1 WHERE id = 1)",
        "WITH now AS (SELECT v FROM t WHERE id = 1) UPSERT INTO t (id, v) VALUES (1, (FROM now) + 1)",
    ],
)
def test_statements_of_several_threads_lose_no_update(
    db: nyala.Database, t: nyala.Table, statement: str
) -> None:
    def increment() -> None:
        for _ in range(10):
            db.sql(statement)

    threads = [threading.Thread(target=increment) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert t[1]["v"] == 50


def test_a_statement_that_fails_leaves_the_transaction_as_it_was(db: nyala.Database, t: nyala.Table) -> None:
    """MERGE and SET of a key have two operations. If the second one fails, the transaction has neither."""
    db.sql("BEGIN; INSERT INTO t (id) VALUES (4)")
    with pytest.raises(nyala.DuplicateKeyError):
        db.sql("UPDATE t SET id = 4 WHERE id = 1")
    with pytest.raises(nyala.DuplicateKeyError):
        db.sql(
            "MERGE INTO t USING (VALUES (1), (9), (9)) AS s(id) ON t.id = s.id "
            "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)"
        )
    assert db.sql("SELECT id FROM t ORDER BY id").fetchall() == [(1,), (2,), (3,), (4,)]
    db.sql("COMMIT")
    assert t.count() == 4


def test_begin_belongs_to_its_thread(db: nyala.Database, t: nyala.Table) -> None:
    """Other threads do not see the writes of a transaction, and do not write into it."""
    db.sql("BEGIN")
    db.sql("DELETE FROM t")
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(db.sql("SELECT count(*) FROM t").fetchall()[0][0]))
    thread.start()
    thread.join()
    assert seen == [3] and db.sql("SELECT count(*) FROM t").fetchone() == (0,)
    with pytest.raises(nyala.InvalidArgumentError, match="transaction"):
        t.insert([(9, 1, "x")])
    with pytest.raises(nyala.InvalidArgumentError, match="open already"):
        db.sql("BEGIN")
    db.sql("ROLLBACK")
    t.insert([(9, 1, "x")])
    assert t.count() == 4


def test_the_first_committer_wins(db: nyala.Database, t: nyala.Table) -> None:
    db.sql("BEGIN; UPDATE t SET v = 0 WHERE id = 1")
    other = threading.Thread(target=lambda: db.sql("UPDATE t SET v = 1 WHERE id = 1"))
    other.start()
    other.join()
    with pytest.raises(nyala.ConflictError):
        db.sql("COMMIT")
    assert t[1]["v"] == 1
    db.sql("UPDATE t SET v = 2 WHERE id = 1")  # the transaction has ended


def test_sql_of_a_transaction_block_belongs_to_it(db: nyala.Database, t: nyala.Table) -> None:
    with db.transaction() as tx:
        assert tx.sql("UPDATE t SET v = 0").rowcount == 3
        assert tx.sql("SELECT sum(v) FROM t").fetchone() == (0,)
        with pytest.raises(nyala.InvalidArgumentError, match="with db.transaction"):
            tx.sql("COMMIT")
        with pytest.raises(nyala.InvalidArgumentError):
            db.sql("DELETE FROM t")
    assert t.count(where="v = 0") == 3


def test_the_past_cannot_be_written(db: nyala.Database, t: nyala.Table) -> None:
    now = db.now()
    with pytest.raises(nyala.InvalidArgumentError, match="past"):
        db.sql("DELETE FROM t", at=now)
    with db.snapshot() as snapshot, pytest.raises(nyala.InvalidArgumentError, match="past"):
        snapshot.sql("DELETE FROM t")
    assert t.count() == 3


def test_a_reader_cannot_write(db: nyala.Database, t: nyala.Table, tmp_path: Path) -> None:
    with (
        nyala.connect(tmp_path / "store", read_only=True) as reader,
        pytest.raises(nyala.ReadOnlyError, match="read_only"),
    ):
        reader.sql("DELETE FROM t")


def test_a_table_without_a_key(db: nyala.Database) -> None:
    """INSERT gets the keys from the store. A statement cannot set them."""
    events = db.create_table("events", {"text": "string", "n": "int32"})
    db.sql("INSERT INTO events VALUES ('a', 1), ('a', 1)")
    db.sql("INSERT INTO events (n) SELECT n + 1 FROM events")
    assert db.sql("UPDATE events SET n = n * 10 WHERE text IS NULL").rowcount == 2
    assert sorted(events.to_arrow()["n"].to_pylist()) == [1, 1, 20, 20]
    with pytest.raises(nyala.InvalidArgumentError, match="the store gives"):
        db.sql("INSERT INTO events (auto_incrementing_id) VALUES (1)")
    with pytest.raises(nyala.InvalidArgumentError, match="cannot be set"):
        db.sql("UPDATE events SET auto_incrementing_id = 1")


def test_returning_has_the_keys_that_the_store_gave(db: nyala.Database) -> None:
    """The table has three partitions, and each of them counts by itself."""
    parts = nyala.hash_partition("host", buckets=3)
    events = db.create_table("events", {"host": "string", "n": "int32"}, "host", parts, unique=False)
    db.sql("INSERT INTO events VALUES ('a', 0), ('b', 0)")
    query = "INSERT INTO events SELECT 'h' || i, i FROM (SELECT i FROM range(1, 9) AS r(i) ORDER BY i DESC)"
    result = db.sql(f"{query} RETURNING n, host, auto_incrementing_id")
    assert [row[0] for row in result.fetchall()] == list(range(8, 0, -1))
    assert result.write is not None and result.write.inserted == 8
    stored = events.scan(["n", "host", "auto_incrementing_id"], where="n > 0").to_arrow()
    assert sorted(result.fetchall()) == sorted(zip(*stored.to_pydict().values(), strict=True))


def test_an_insert_whose_returning_fails_inserts_nothing(db: nyala.Database) -> None:
    events = db.create_table("events", {"host": "string", "n": nyala.column("int32", nullable=False)})
    for refused in (
        "INSERT INTO events VALUES ('a', 1) RETURNING CAST(host AS INT)",
        "INSERT INTO events VALUES ('a', 1), ('b', NULL) RETURNING auto_incrementing_id",
        "INSERT INTO events (host) VALUES ('a') RETURNING auto_incrementing_id",
    ):
        with pytest.raises(nyala.Error):
            db.sql(refused)
    assert events.count() == 0


def test_look_ups_by_key_return_what_duckdb_returns(db: nyala.Database) -> None:
    db.create_table("k", {"a": "string", "b": "int8", "v": "decimal(5,2)", "w": "timestamp"}, ["a", "b"])
    db.sql("INSERT INTO k VALUES ('x', 1, 1.5, '2024-01-02'), ('y', -2, NULL, NULL), ('it''s', 3, 0, NULL)")
    for where, parameters in (
        ("a = 'x' AND b = 1", []),
        ("a IN ('x', 'y', 'x', 'z') AND b IN (1, -2)", []),
        ("K.a = ? AND b = ?", ["y", -2]),
        ("a = 'it''s' AND b = 3", []),
        ("b = 1000 AND a = 'x'", []),
        ("b = NULL AND a = 'x'", []),
        ("b = ? AND a = 'x'", [None]),
        ("b = '1' AND a = 'x'", []),
        ("b = 1.0 AND a = 'x'", []),
        ("b = TRUE AND a = 'x'", []),
        ("b = 1 AND a = 'x' AND v > 1", []),
        ("b = 1 AND a = 'x' OR b = 3", []),
        ("b = 1 + 0 AND a = 'x'", []),
        ("b = 1", []),
    ):
        for columns in ("*", "v, b", "b AS other", "v, v", "k.w"):
            select = f"SELECT {columns} FROM k WHERE {where}"
            by_duckdb = db.sql(f"SELECT * FROM ({select}) ORDER BY ALL", parameters)
            fast = db.sql(select, parameters)
            assert sorted(fast.fetchall(), key=str) == sorted(by_duckdb.fetchall(), key=str), select
            assert fast.to_arrow().schema.types == by_duckdb.to_arrow().schema.types, select
            assert [name.split(":")[0] for name in fast.columns] == [
                name.split(":")[0] for name in by_duckdb.columns
            ]
    assert "LOOK UP k BY KEY" in str(db.sql("SELECT v FROM k WHERE a = 'x' AND b = 1").explain())


def test_select_update_and_delete_by_a_long_list_of_keys(db: nyala.Database, t: nyala.Table) -> None:
    db.sql("INSERT INTO t (id) SELECT i FROM range(100, 2100) AS r(i)")
    keys = ", ".join(map(str, range(50, 1100)))
    assert db.sql(f"SELECT id FROM t WHERE id IN ({keys})").to_arrow().num_rows == 1000
    assert db.sql(f"SELECT id FROM t WHERE id IN ({keys}) AND v > 0").to_arrow().num_rows == 1000
    assert db.sql(f"UPDATE t SET v = id WHERE id IN ({keys})").rowcount == 1000
    assert db.sql(f"DELETE FROM t WHERE id IN ({keys}) AND v = id").rowcount == 1000


@pytest.mark.parametrize(
    ("statement", "operations"),
    [
        ("UPDATE t SET v = v + 1 WHERE v > 1", "update"),
        ("UPDATE t SET id = id + 1", "delete, then insert"),
        ("WITH x AS (SELECT 1 AS i) DELETE FROM t USING x WHERE x.i = id", "delete"),
        ("INSERT OR IGNORE INTO t (id) SELECT id + 1 FROM t", "insert (existing keys are skipped)"),
        ("UPSERT INTO t (id) SELECT id + 1 FROM t", "upsert"),
        ("MERGE INTO t USING t AS s ON s.id = t.id WHEN MATCHED THEN DELETE", "delete"),
        ("TRUNCATE t", "delete"),
    ],
)
def test_explain_says_what_would_be_written_and_writes_nothing(
    db: nyala.Database, t: nyala.Table, statement: str, operations: str
) -> None:
    before = t.to_arrow()
    (name, text), *plans = db.sql(f"EXPLAIN {statement}").fetchall()
    assert name == "statement" and text.endswith(f"on table t, as one batch: {operations}")
    assert plans and all("SCAN" in plan for _, plan in plans)
    assert t.to_arrow() == before
    with pytest.raises(nyala.ColumnNotFoundError):
        db.sql("EXPLAIN UPDATE t SET nothing = 1")


def test_explain_of_other_statements(db: nyala.Database, t: nyala.Table) -> None:
    """EXPLAIN of a SELECT shows DuckDB's plan, and EXPLAIN of CREATE TABLE AS creates nothing."""
    ((key, plan),) = db.sql("EXPLAIN SELECT v FROM t WHERE id = 1").fetchall()
    assert key == "physical_plan" and "Projections" in plan
    analyzed = dict(db.sql("EXPLAIN ANALYZE SELECT v FROM t WHERE id = ?", [1]).fetchall())
    assert set(analyzed) == {"analyzed_plan", "scan"}
    rows = dict(db.sql("EXPLAIN CREATE TABLE nothing AS SELECT v FROM t").fetchall())
    assert "would create the table" in rows["statement"] and "physical_plan" in rows
    assert db.list_tables() == ["t"]
    for text in ("EXPLAIN SHOW TABLES", "EXPLAIN"):
        with pytest.raises(nyala.InvalidArgumentError, match="EXPLAIN takes a statement"):
            db.sql(text)


@pytest.mark.parametrize(
    ("statement", "operation"),
    [
        ("UPDATE t SET v = f.v FROM f WHERE t.id = f.id", "update"),
        ("UPDATE t SET v = f.v * 2, s = DEFAULT FROM f WHERE f.id = t.id AND f.v > 3", "update"),
        (
            "UPDATE t AS x SET v = f.v FROM f JOIN (SELECT 1 AS one) AS o ON o.one = f.id WHERE x.id = f.id",
            "update",
        ),
        ("DELETE FROM t USING f WHERE t.id = f.id", "delete"),
    ],
)
def test_an_update_by_the_keys_of_its_source_does_not_read_the_table(
    db: nyala.Database, t: nyala.Table, statement: str, operation: str
) -> None:
    """The source is first a variable of the program, and then a table of the store."""
    for f in (pa.table({"id": [1, 4], "v": [5, 6]}), None):
        if f is None:
            db.create_table("f", {"id": "int64", "v": "int64"}, "id").insert([(1, 5), (4, 6)])
        (_, text), *plans = db.sql(f"EXPLAIN {statement}").fetchall()
        assert text.endswith(f"{operation} by key (missing keys are skipped)")
        assert not any("FROM t" in plan or '"t"' in plan for _, plan in plans)
        t.upsert([(1, 0, "a")])
        assert db.sql(statement).rowcount == 1
        assert t.count() == (3 if operation == "update" else 2)


@pytest.mark.parametrize(
    ("statement", "changed"),
    [
        ("UPDATE t SET v = t.v + f.w FROM f WHERE t.id = f.id", {3: 33, 5: 57}),
        ("UPDATE t SET v = v + f.w FROM f WHERE t.id = f.id AND t.v > 3 RETURNING id, t.v", {5: 57}),
        ("UPDATE t SET (v, s) = (w, t.s || 'x') FROM f AS g WHERE g.id = t.id AND g.w < 40", {3: 30}),
        ("UPDATE t SET id = t.id + 1000 FROM f WHERE t.id = f.id AND f.w = 30", {3: None, 1003: 3}),
        ("UPDATE t SET v = 0 FROM f JOIN f AS h ON h.w = f.w WHERE t.id = f.id AND t.s <> h.s", {3: 0, 5: 0}),
        ("DELETE FROM t USING f WHERE t.id = f.id AND t.v < f.w - 40", {5: None}),
        ("DELETE FROM t USING f WHERE t.id = f.id RETURNING t.v", {3: None, 5: None}),
    ],
)
def test_an_update_of_few_keys_by_its_source(
    db: nyala.Database, statement: str, changed: dict[int, int | None]
) -> None:
    """The source has NULL, a key twice, and keys that the table does not have. The table has many more rows."""
    f = pa.table({"id": [3, 5, 5, None, -7, 10**12], "w": [30, 52, 52, 1, 1, 1], "s": ["f"] * 6})
    t = db.create_table("t", {"id": "int64", "v": "int64", "s": "string"}, "id")
    t.insert([(number, number, f"s{number}") for number in range(500)])
    assert f is not None and db.sql(statement).rowcount == len({key % 1000 for key in changed})
    assert {key: row and row["v"] for key in [*range(500), 1003] if (row := t.get(key)) != _before(key)} == {
        key: value for key, value in changed.items() if value != key
    }


def _before(key: int) -> dict[str, Any] | None:
    return {"id": key, "v": key, "s": f"s{key}"} if key < 500 else None


@pytest.mark.parametrize("rights", [ProgramRights(None), StoreRights()], ids=["program", "store"])
def test_interrupt_ends_a_running_statement(db: nyala.Database, t: nyala.Table, rights: Rights) -> None:
    """Without the interrupt the statement takes minutes. Each kind of rights has its own DuckDB."""
    session = SqlSession(db, rights)
    stopped = threading.Event()

    def stop() -> None:
        while not stopped.wait(0.1):
            session.interrupt()

    thread = threading.Thread(target=stop)
    thread.start()
    try:
        with pytest.raises(nyala.Error):
            session.execute("SELECT count(*) FROM range(1000000) AS a, range(1000000) AS b, t").fetchall()
    finally:
        stopped.set()
        thread.join()


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT count(*) FROM range(1000000) AS a, range(1000000) AS b, t",
        "INSERT INTO t (id, v) VALUES (9, (SELECT count(*) FROM range(1000000) AS a, range(1000000) AS b))",
        "UPDATE t SET v = (SELECT count(*) FROM range(1000000) AS a, range(1000000) AS b) WHERE id = 1",
        "UPDATE t SET v = (SELECT count(*) FROM range(1000000) AS a, range(1000000) AS b)",
    ],
)
def test_interrupt_ends_no_statement_of_another_session(
    db: nyala.Database, t: nyala.Table, statement: str
) -> None:
    """The other session reads its rows to the end, on the same DuckDB."""
    mine, other = SqlSession(db, ProgramRights(None)), SqlSession(db, ProgramRights(None))
    before = t.to_arrow()
    rows = other.execute("SELECT a.range + b.range AS n FROM range(3000) AS a, range(3000) AS b").to_reader()
    done, errors = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            mine.execute(statement).fetchall()
        except BaseException as error:
            errors.append(error)
        done.set()

    thread = threading.Thread(target=run)
    thread.start()
    read = rows.read_next_batch().num_rows
    while not done.wait(0.01):
        mine.interrupt()
        read += sum(batch.num_rows for batch in itertools.islice(rows, 1))
    thread.join()
    assert len(errors) == 1 and isinstance(errors[0], nyala.Error)
    assert read + sum(batch.num_rows for batch in rows) == 3000 * 3000
    assert t.to_arrow() == before


def test_keywords_that_are_part_of_an_expression_end_no_clause(db: nyala.Database, t: nyala.Table) -> None:
    """The FROM of IS DISTINCT FROM, a table called `conflict`, and keywords as names of fields and columns."""
    assert (
        db.sql("UPDATE t SET v = CASE WHEN s IS DISTINCT FROM 'a' THEN 1 ELSE 0 END WHERE id > 0").rowcount
        == 3
    )
    assert db.sql("UPDATE t SET s = (v IS NOT DISTINCT FROM 1)::VARCHAR WHERE id = 2").rowcount == 1
    assert db.sql("UPDATE t SET v = 5, s = s IS DISTINCT FROM NULL WHERE id = 3").rowcount == 1
    assert db.sql("FROM t ORDER BY id").fetchall() == [(1, 0, "a"), (2, 1, "true"), (3, 5, "true")]
    db.create_table("conflict", {"id": "int64"}, "id").insert([(1,), (2,)])
    joined = "SELECT t.id + 10, t.v, t.s FROM t JOIN conflict ON conflict.id = t.id"
    assert db.sql(f"INSERT INTO t {joined}").rowcount == 2
    assert db.sql(f"INSERT INTO t {joined} ON CONFLICT DO NOTHING RETURNING id").fetchall() == []
    assert db.sql("UPDATE t SET v = {'from': 4, 'where': 2, 'end': 1}.from WHERE id = 1").rowcount == 1
    assert db.sql(
        "DELETE FROM t WHERE v = (CASE WHEN (s = 'a') THEN 4 END) RETURNING v AS where"
    ).fetchall() == [(4,)]


def test_names_of_tables_ignore_case(db: nyala.Database, t: nyala.Table) -> None:
    assert db.sql("UPDATE T SET V = 1").rowcount == 3
    with pytest.raises(nyala.TableExistsError):
        db.sql("CREATE TABLE T (id INT PRIMARY KEY)")
    db.sql("ALTER TABLE T ADD COLUMN w INT; COMMENT ON TABLE T IS 'x'; CREATE TABLE u LIKE T; DROP TABLE U")
    assert db.list_tables() == ["t"] and "w" in t.columns
    db.create_table("T", {"id": "int64"}, "id")
    assert db.sql("DELETE FROM t").rowcount == 3
    db.drop_table("T")
    db.create_table("A", {"id": "int64"}, "id")
    db.create_table("a", {"id": "int64"}, "id")
    db.sql("DELETE FROM a")
    db.rename_table("a", "aA")
    db.create_table("AA", {"id": "int64"}, "id")
    with pytest.raises(nyala.InvalidArgumentError, match="is ambiguous"):
        db.sql("DELETE FROM aa")


@pytest.mark.parametrize(
    ("statement", "line", "marked"),
    [
        ("UPDATE t SET v = nosuch", 1, "nosuch"),
        ("\n\nSELECT 1;\n  DELETE FROM t\n  WHERE id = 1 AND nosuch = 2", 5, "nosuch"),
        ("INSERT INTO t (id)\nSELECT nosuch FROM t", 2, "nosuch"),
        ("UPDATE t SET v = 1\nWHER id = 3", 2, "WHER"),
        ("MERGE INTO t USING (SELECT 1 AS id) s\nON t.id = s.other WHEN MATCHED THEN DELETE", 2, "s.other"),
    ],
)
def test_errors_show_the_place_in_the_users_text(
    db: nyala.Database, t: nyala.Table, statement: str, line: int, marked: str
) -> None:
    """DuckDB executes other texts than the user's, but the error shows the line of the user's text."""
    with pytest.raises(nyala.Error) as caught:
        db.sql(statement)
    (shown, marks) = str(caught.value).splitlines()[-2:]
    assert shown.startswith(f"LINE {line}: ")
    assert shown[marks.index("^") : marks.rindex("^") + 1] == marked
    assert "nyala_" not in str(caught.value)


def test_errors_show_no_text_that_the_user_did_not_write(db: nyala.Database, t: nyala.Table) -> None:
    for statement in ("UPDATE t SET v = 'abc'", "INSERT INTO t (id, v) VALUES (50, 'x')"):
        with pytest.raises(
            nyala.InvalidArgumentError, match="Could not convert string '(abc|x)' to INT"
        ) as caught:
            db.sql(statement)
        assert "CAST" not in str(caught.value)
        assert "LINE" not in str(caught.value)


@pytest.mark.parametrize("name", ["prices", "Prices", "PRICES"])
def test_a_table_of_the_store_comes_before_a_variable(db: nyala.Database, t: nyala.Table, name: str) -> None:
    db.create_table("Prices", {"id": "int64", "p": "int64"}, "id").insert([(1, 5), (3, 6)])
    prices = Prices = PRICES = pa.table({"id": [1, 2, 3], "p": [0, 0, 0]})
    assert prices is Prices is PRICES
    db.sql(f"UPDATE t SET v = {name}.p FROM {name} WHERE t.id = {name}.id")
    assert t.to_arrow()["v"].to_pylist() == [5, 20, 6]
    db.sql(f"DELETE FROM t USING {name} WHERE t.id = {name}.id")
    assert t.to_arrow()["id"].to_pylist() == [2]


def test_a_transaction_ends_with_its_thread(db: nyala.Database, t: nyala.Table) -> None:
    """A later thread may get the same thread id, and must not get the transaction."""

    def begin() -> None:
        db.sql("BEGIN; INSERT INTO t (id) VALUES (100)")

    problems: list[BaseException] = []

    def write(number: int) -> None:
        try:
            db.sql("INSERT INTO t (id) VALUES (?)", [number])
            db["t"].insert([{"id": number + 1}])
            db.sql("BEGIN; DELETE FROM t WHERE id = 200; COMMIT")
        except BaseException as error:
            problems.append(error)

    for target in (begin, lambda: write(200), begin, lambda: write(300)):
        thread = threading.Thread(target=target)
        thread.start()
        thread.join()
    assert problems == []
    assert db.sql("SELECT id FROM t WHERE id >= 100 ORDER BY id").fetchall() == [(201,), (300,), (301,)]


def test_methods_of_the_program_are_refused_between_begin_and_commit(
    db: nyala.Database, t: nyala.Table
) -> None:
    db.sql("BEGIN")
    for call in (
        lambda: t.insert([{"id": 9}]),
        lambda: db.transaction().__enter__(),
        lambda: db.batch().__enter__(),
    ):
        with pytest.raises(nyala.InvalidArgumentError, match="between BEGIN and COMMIT"):
            call()
    with pytest.raises(nyala.InvalidArgumentError, match="before BEGIN or after COMMIT"):
        db.drop_table("t")
    db.sql("ROLLBACK")


def test_a_statement_that_is_not_valid_unicode_is_refused(db: nyala.Database, t: nyala.Table) -> None:
    with pytest.raises(nyala.InvalidArgumentError, match="not valid Unicode at character 8"):
        db.sql("SELECT '\udcff'")


def test_statements_work_after_an_internal_error_of_duckdb(db: nyala.Database, t: nyala.Table) -> None:
    """After an internal error, a DuckDB instance executes nothing any more. The next statement opens another one."""
    bad = pa.table({"x": pa.array([2**45], pa.int64()).view(pa.time64("us"))})
    for _ in range(2):
        with pytest.raises(nyala.Error):
            db.sql("SELECT x::VARCHAR FROM bad").fetchall()
    assert bad.num_rows == 1
    assert db.sql("SELECT count(*) FROM t").fetchall() == [(3,)]
    assert db.sql("UPDATE t SET v = 0 WHERE v > 15").rowcount == 1


def test_a_statement_whose_rows_cannot_be_spilled_writes_nothing(
    db: nyala.Database, t: nyala.Table, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("nyala.sql.change.rows.SPILLED_BYTES_MIN", 1000)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(nyala.StorageError, match="TMPDIR"):
        db.sql("INSERT INTO t (id) SELECT range + 10 FROM range(10_000)")
    assert t.count() == 3
