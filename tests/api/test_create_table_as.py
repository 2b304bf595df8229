"""CREATE TABLE … AS and CREATE OR REPLACE TABLE are one commit, also for readers, history and other processes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import nyala
from nyala.errors import DuplicateKeyError, NoPartitionError, TableNotFoundError
from nyala.tablet.write import part_commit
from tests.processes import children


@pytest.fixture
def db(tmp_path: Path) -> Iterator[nyala.Database]:
    with nyala.connect(tmp_path / "store", maintenance=False) as database:
        database.sql(
            "CREATE TABLE s (id INT PRIMARY KEY, v TEXT); INSERT INTO s VALUES (1, 'a'), (2, 'b'), (3, 'c')"
        )
        yield database


def rows(db: nyala.Database, query: str) -> list[tuple[object, ...]]:
    return db.sql(query).fetchall()


def test_the_table_and_its_rows_have_one_timestamp(db: nyala.Database) -> None:
    before = db.now()
    made = db.sql("CREATE TABLE t PRIMARY KEY (id) PARTITION BY HASH (id) PARTITIONS 3 AS SELECT * FROM s")
    assert made.rowcount == 3
    assert rows(db, "SELECT * FROM t ORDER BY id") == [(1, "a"), (2, "b"), (3, "c")]
    (commit,) = db["t"].commits()
    assert commit.inserted == 3
    assert db["t"].scan(at=commit.timestamp).count() == 3
    with pytest.raises(TableNotFoundError, match="did not exist"):
        db["t"].scan(at=commit.timestamp - 1).count()
    changes = db["t"].changes(since=before).to_arrow().to_pylist()
    assert {(each["_change_type"], each["_commit_version"]) for each in changes} == {
        ("insert", commit.timestamp)
    }
    assert len(changes) == 3


def test_rows_that_do_not_fit_create_nothing(db: nyala.Database) -> None:
    with pytest.raises(DuplicateKeyError, match="nothing was written"):
        db.sql("CREATE TABLE t PRIMARY KEY (v) AS SELECT 'x' AS v, id FROM s")
    with pytest.raises(NoPartitionError):
        db.sql(
            "CREATE TABLE t PRIMARY KEY (id) PARTITION BY RANGE (id) (PARTITION VALUES < 2) AS SELECT id FROM s"
        )
    with pytest.raises(nyala.Error, match="division|zero|Conversion"):
        db.sql("CREATE OR REPLACE TABLE s AS SELECT CAST(v AS INT) AS n FROM s")
    assert db.list_tables() == ["s"]
    assert db["s"].count() == 3
    assert not list(Path(db.path, "data").rglob("*.base"))


def test_a_replaced_table_can_be_read_at_earlier_moments_and_brought_back(db: nyala.Database) -> None:
    before = db.now()
    db.sql("CREATE OR REPLACE TABLE s AS SELECT id * 10 AS tens FROM s")
    assert rows(db, "SELECT tens FROM s ORDER BY tens") == [(10,), (20,), (30,)]
    assert rows(db, f"SELECT v FROM s AT (TIMESTAMP => {before}) ORDER BY id") == [("a",), ("b",), ("c",)]
    db.sql("UNDROP TABLE s AS former")
    assert rows(db, "SELECT count(*) FROM former") == [(3,)]


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE OR REPLACE TABLE t AS SELECT * FROM s",
        "CREATE OR REPLACE TABLE t CLONE s",
        "CREATE OR REPLACE TABLE t (id INT PRIMARY KEY, v TEXT)",
    ],
)
def test_readers_never_miss_a_table_that_is_replaced(db: nyala.Database, statement: str) -> None:
    """One thread replaces the table again and again, and another one reads it."""
    db.sql("CREATE TABLE t CLONE s")
    stop = threading.Event()

    def replace() -> None:
        while not stop.is_set():
            db.sql(statement)

    thread = threading.Thread(target=replace)
    thread.start()
    try:
        seen = {db["t"].count() for _ in range(200)}
    finally:
        stop.set()
        thread.join()
    assert seen <= ({0, 3} if "(" in statement else {3})


def test_a_table_replaced_by_its_own_past(db: nyala.Database) -> None:
    before = db.now()
    db.sql("DELETE FROM s WHERE id > 1")
    db.sql(f"CREATE OR REPLACE TABLE s CLONE s AT (TIMESTAMP => {before})")
    assert rows(db, "SELECT id FROM s ORDER BY id") == [(1,), (2,), (3,)]


def test_auto_incrementing_keys_continue_after_the_first_rows(tmp_path: Path) -> None:
    with nyala.connect(tmp_path / "store") as db:
        db.sql("CREATE TABLE k AS SELECT range AS x FROM range(3)")
    with nyala.connect(tmp_path / "store") as db:
        db.sql("INSERT INTO k VALUES (9)")
        assert rows(db, "SELECT * FROM k ORDER BY 1") == [(1, 0), (2, 1), (3, 2), (4, 9)]


def test_several_tables_are_dropped_at_one_moment_or_not_at_all(db: nyala.Database) -> None:
    db.sql("CREATE TABLE t CLONE s")
    with pytest.raises(TableNotFoundError, match="'q'"):
        db.sql("DROP TABLE s, q, t")
    assert db.list_tables() == ["s", "t"]
    db.sql("DROP TABLE IF EXISTS s, q, t")
    assert len({each.dropped for each in db.dropped_tables()}) == 1


def test_from_a_process_that_shares_the_store(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with children(path, 1) as [holder], nyala.connect(path) as db:
        holder.run(
            "db.sql(\"CREATE TABLE s (id INT PRIMARY KEY, v TEXT); INSERT INTO s VALUES (1, 'a'), (2, 'b')\")"
        )
        assert db.sql("CREATE TABLE t PRIMARY KEY (id) AS SELECT * FROM s").rowcount == 2
        assert holder.run("result = db.sql('SELECT count(*) FROM t').fetchall()") == [[2]]
        with pytest.raises(DuplicateKeyError):
            db.sql("CREATE OR REPLACE TABLE t PRIMARY KEY (v) AS SELECT 'x' AS v FROM s")
        # More rows than one request may have.
        db.sql("CREATE OR REPLACE TABLE t AS SELECT range AS n, repeat('y', 50) AS text FROM range(200_000)")
        assert holder.run("result = db.sql('SELECT count(*), min(text) FROM t').fetchall()") == [
            [200_000, "y" * 50]
        ]
        db.sql("CREATE OR REPLACE TABLE t CLONE s")
        db.sql("DROP TABLE t, s")
        assert holder.run("result = db.list_tables()") == []


def test_many_rows_are_written_in_parts(db: nyala.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part is checked against the earlier ones, and errors have the row numbers of the whole."""
    monkeypatch.setattr(part_commit, "_part_bytes", lambda store: 100_000)
    query = "SELECT CAST(if(i = 9000, 5, i) AS INT) AS id, 'v' || i AS v FROM range(10_000) r(i)"
    with pytest.raises(DuplicateKeyError, match=r"row 9000 \(id=5\)"):
        db.sql(f"CREATE TABLE t PRIMARY KEY (id) AS {query}")
    assert not list(Path(db.path, "data").rglob("*.base"))
    db.sql(f"CREATE TABLE t PRIMARY KEY (id) PARTITION BY HASH (id) PARTITIONS 2 AS {query} WHERE i <> 9000")
    assert rows(db, "SELECT count(*), sum(id), max(v) FROM t") == [(9999, 49_995_000 - 9000, "v9999")]
    assert len(db["t"].commits()) == 1
    assert len(list(Path(db.path, "data").rglob("*.base"))) > 4


def test_columns_get_types_and_names_from_the_select(db: nyala.Database) -> None:
    """Unsigned integers become the next larger type.

    A second column of the same name is renamed, as in DuckDB.
    """
    db.sql(
        "CREATE TABLE u AS SELECT 255::UTINYINT AS a, 65535::USMALLINT AS b, 4294967295::UINTEGER AS c, hash(1) AS d"
    )
    assert [each.type for each in db["u"].description.columns[1:]] == [
        "int16",
        "int32",
        "int64",
        "decimal(20,0)",
    ]
    assert rows(db, "SELECT a, b, c, d = hash(1) FROM u") == [(255, 65535, 4294967295, True)]
    db.sql("CREATE TABLE x AS SELECT 1 AS x, 2 AS X, a.id, b.id FROM s a JOIN s b USING (id) WHERE a.id = 1")
    assert rows(db, "SELECT x, X_1, id, id_1 FROM x") == [(1, 2, 1, 1)]
