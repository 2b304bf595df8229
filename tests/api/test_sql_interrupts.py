"""Interrupts of running statements by another thread and by Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nyala
from nyala.sql.rights import ProgramRights
from nyala.sql.select.running import StatementInterrupted
from nyala.sql.session import SqlSession

SLOW = "SELECT count(*) AS n FROM range(1000000000000) r(i) WHERE i % 7 = 8"
STATEMENTS = {
    "SELECT": SLOW,
    "INSERT": f"INSERT INTO t SELECT n, 'x' FROM ({SLOW})",
    "UPSERT": f"INSERT INTO t SELECT n, 'x' FROM ({SLOW}) ON CONFLICT DO UPDATE SET v = 'new'",
    "UPDATE": f"UPDATE t SET v = 'new' WHERE id > ({SLOW})",
    "DELETE": f"DELETE FROM t WHERE id > ({SLOW})",
    "MERGE": f"MERGE INTO t USING ({SLOW}) s ON t.id = s.n WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.n, 'x')",
    "CREATE TABLE AS": f"CREATE TABLE made AS {SLOW}",
    "EXPLAIN ANALYZE": f"EXPLAIN ANALYZE {SLOW}",
}


@pytest.fixture
def db(tmp_path: Path) -> Iterator[nyala.Database]:
    with nyala.connect(tmp_path / "s") as db:
        db.sql("CREATE TABLE t (id bigint PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a'), (2, 'b')")
        yield db


def check_unchanged(db: nyala.Database) -> None:
    assert db.list_tables() == ["t"]
    assert db.sql("SELECT * FROM t ORDER BY id").fetchall() == [(1, "a"), (2, "b")]


@pytest.mark.parametrize("statement", STATEMENTS.values(), ids=STATEMENTS)
def test_an_interrupt_by_another_thread(db: nyala.Database, statement: str) -> None:
    session = SqlSession(db, ProgramRights(None))
    raised: list[BaseException] = []

    def run() -> None:
        try:
            session.execute(statement).fetchall()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.3)
    while thread.is_alive():
        session.interrupt()
        thread.join(0.05)
    (error,) = raised
    assert isinstance(error, StatementInterrupted)
    assert str(error) == "the statement was interrupted, and changed nothing"
    check_unchanged(db)
    assert session.execute("SELECT 1").fetchone() == (1,)


def test_an_interrupt_while_rows_are_read(db: nyala.Database) -> None:
    session = SqlSession(db, ProgramRights(None))
    reader = session.execute("SELECT i FROM range(1000000000000) r(i)").to_reader()
    assert reader.read_next_batch().num_rows
    session.interrupt()
    with pytest.raises(StatementInterrupted):
        for _ in reader:
            pass


def test_ctrl_c_before_the_commit_starts(db: nyala.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The main thread receives Ctrl-C while it checks the rows. Nothing is written."""
    from nyala.tablet.write import write_path

    def resolve(*arguments: Any, **options: Any) -> Any:
        made = resolved(*arguments, **options)
        os.kill(os.getpid(), signal.SIGINT)
        return made

    resolved = write_path.resolve_requests
    monkeypatch.setattr(write_path, "resolve_requests", resolve)
    with pytest.raises(KeyboardInterrupt):
        db.sql("UPDATE t SET v = 'new'")
    monkeypatch.undo()
    check_unchanged(db)
    db.sql("UPDATE t SET v = 'new'")
