"""SQL in a process that shares a store with the lock's holder: conflicts, alterations, and a killed holder."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import nyala
from nyala.errors import ConflictError, DuplicateKeyError, Error
from tests.processes import Child, ChildError, children

ROWS = "CREATE OR REPLACE TABLE t (k INT PRIMARY KEY, v INT); INSERT INTO t VALUES (1, 10), (2, 20), (3, 30)"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[nyala.Database, Child]]:
    path = tmp_path_factory.mktemp("shared") / "store"
    with children(path, 1) as [holder], nyala.connect(path) as db:
        yield db, holder


@pytest.fixture
def shared(store: tuple[nyala.Database, Child]) -> tuple[nyala.Database, Child]:
    """A store with three rows. A child process holds its lock."""
    db, holder = store
    db.sql(ROWS)
    return db, holder


def in_holder(holder: Child, text: str) -> object:
    return holder.value(f"db.sql({text!r}).fetchall()")


def test_each_sees_what_the_other_wrote(shared: tuple[nyala.Database, Child]) -> None:
    db, holder = shared
    assert db.sql("UPDATE t SET v = v + 1 WHERE k < 3 RETURNING *").fetchall() == [(1, 11), (2, 21)]
    assert in_holder(holder, "SELECT sum(v) FROM t") == [[62]]
    assert in_holder(holder, "DELETE FROM t WHERE k = 3 RETURNING v") == [[30]]
    assert db.sql("MERGE INTO t USING t AS s ON t.k = s.k WHEN MATCHED THEN UPDATE SET v = 0").rowcount == 2
    with pytest.raises(DuplicateKeyError):
        db.sql("INSERT INTO t VALUES (4, 4), (1, 1)")
    assert in_holder(holder, "SELECT * FROM t ORDER BY k") == [[1, 0], [2, 0]]


def test_the_second_commit_of_a_conflict_writes_nothing(shared: tuple[nyala.Database, Child]) -> None:
    """Its session continues without a transaction."""
    db, holder = shared
    db.sql("BEGIN; UPDATE t SET v = v + 1 WHERE k = 1; INSERT INTO t VALUES (9, 9)")
    in_holder(holder, "UPDATE t SET v = 100 WHERE k = 1")
    with pytest.raises(ConflictError):
        db.sql("COMMIT")
    assert db.sql("SELECT * FROM t WHERE k IN (1, 9)").fetchall() == [(1, 100)]
    holder.run("db.sql('BEGIN; UPDATE t SET v = v + 1 WHERE k = 1; DELETE FROM t WHERE k = 3')")
    db.sql("BEGIN; UPDATE t SET v = v + 1 WHERE k = 2; COMMIT")
    db.sql("UPDATE t SET v = v + 1 WHERE k = 3")
    with pytest.raises(ChildError, match="ConflictError"):
        holder.run("db.sql('COMMIT')")
    assert db.sql("SELECT * FROM t ORDER BY k").fetchall() == [(1, 100), (2, 21), (3, 31)]


def test_statements_at_the_same_time_lose_no_update(shared: tuple[nyala.Database, Child]) -> None:
    db, holder = shared
    holder.begin("for _ in range(40): db.sql('UPDATE t SET v = v + 1')")
    for _ in range(40):
        db.sql("UPDATE t SET v = v + 1 WHERE k <= 2")
    holder.end()
    assert db.sql("SELECT v FROM t ORDER BY k").fetchall() == [(90,), (100,), (70,)]


def test_alterations_of_the_other_process(shared: tuple[nyala.Database, Child]) -> None:
    """A statement reads the tables as they are now. A transaction reads them as they were at its BEGIN."""
    db, holder = shared
    in_holder(holder, "ALTER TABLE t ADD COLUMN w VARCHAR DEFAULT 'w', RENAME COLUMN v TO u")
    assert db.sql("INSERT INTO t VALUES (4, 40, 'x') RETURNING *").fetchall() == [(4, 40, "x")]
    db.sql("ALTER TABLE t RENAME TO s; CREATE TABLE made AS SELECT * FROM s; DROP TABLE s")
    assert in_holder(holder, "SELECT count(*) FROM made") == [[4]]
    in_holder(holder, "UNDROP TABLE s AS t")
    db.sql("BEGIN; UPDATE t SET u = 0 WHERE k = 1")
    in_holder(holder, "ALTER TABLE t DROP COLUMN w")
    assert db.sql("SELECT * FROM t WHERE k = 1").fetchall() == [(1, 0, "w")]
    with pytest.raises(ConflictError, match="altered"):
        db.sql("COMMIT")
    assert db.sql("SELECT * FROM t WHERE k = 1").fetchall() == [(1, 10)]
    db.sql("DROP TABLE made")


def test_range_partitions_dropped_and_restored_by_both_processes(
    shared: tuple[nyala.Database, Child],
) -> None:
    """Both processes list the tablets in the same order."""
    db, holder = shared
    ranges = ", ".join(f"PARTITION {10 * i} <= VALUES < {10 * i + 10}" for i in range(3))
    db.sql(f"CREATE TABLE r (k INT PRIMARY KEY) PARTITION BY HASH (k) PARTITIONS 2, RANGE (k) ({ranges})")
    chance, there = random.Random(2), set(range(3))
    for step in range(16):
        place = chance.randrange(3)
        action = "DROP" if place in there else chance.choice(["UNDROP", "ADD"])
        (there.discard if action == "DROP" else there.add)(place)
        text = f"ALTER TABLE r {action} RANGE PARTITION {10 * place} <= VALUES < {10 * place + 10}"
        if step % 2:
            in_holder(holder, text)
        else:
            db.sql(text)
        for each in there:
            db.sql(f"BEGIN; UPSERT INTO r VALUES ({10 * each + chance.randrange(10)}); COMMIT")
        assert {k // 10 for (k,) in db.sql("SELECT k FROM r").fetchall()} == there
    db.sql("DROP TABLE r")


def test_a_killed_holder_loses_and_repeats_no_statement(tmp_path: Path) -> None:
    """The holder is killed three times in the middle of statements. The other process then takes the lock."""
    path = tmp_path / "store"
    with nyala.connect(path) as db:
        db.sql("CREATE TABLE t (k INT PRIMARY KEY); CREATE TABLE n (k INT PRIMARY KEY, n INT)")
        db.sql("INSERT INTO n VALUES (0, 0), (1, 0), (2, 0)")
    committed = added = unknown = key = 0
    for kill_after_s in (0.1, 0.2):
        with children(path, 1) as [holder], nyala.connect(path) as db:
            holder.begin("while True: db.sql('UPDATE n SET n = n + 1 WHERE k <> 1')")
            killing = threading.Timer(kill_after_s, holder.kill)
            killing.start()
            while killing.is_alive() or key % 20:
                key += 1
                try:
                    db.sql(f"BEGIN; INSERT INTO t VALUES ({key}); UPDATE n SET n = n + 1 WHERE k = 1; COMMIT")
                    committed += 1
                except ConflictError:
                    raise AssertionError("nobody else writes these rows") from None
                except Error:  # the statement may or may not have been committed
                    db.sql("ROLLBACK")
                    committed += db.sql("SELECT count(*) FROM t WHERE k = ?", [key]).fetchone() == (1,)
                try:
                    assert db.sql("UPDATE n SET n = n + 1 WHERE k = 2").rowcount == 1
                    added += 1
                except Error:
                    unknown += 1
            assert db.sql("SELECT (SELECT count(*) FROM t), n FROM n WHERE k = 1").fetchall() == [
                (committed, committed)
            ]
            ((others, both),) = db.sql("SELECT min(n), max(n) FROM n WHERE k <> 1").fetchall()
            assert added <= both - others <= added + unknown
    assert unknown <= 3
    with nyala.connect(path) as db:
        assert db.sql("SELECT n FROM n WHERE k = 1").fetchall() == [(committed,)]
        assert db.check().ok
