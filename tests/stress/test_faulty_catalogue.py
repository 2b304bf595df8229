"""The catalogue's own transaction fails, in any of its statements or in its COMMIT: SQLite's disk is full, or breaks.

`nyala.env` does not see what SQLite writes, so the faults are made in its connection. A COMMIT that failed may have
happened or not: both are tried.
"""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import dataclass, field
from typing import Any

import pytest

import nyala
from nyala.api.database import Database
from nyala.env import Reserve, system_files
from nyala.errors import StorageError
from tests.figures import counted
from tests.stress.steps import (
    DIRECT_COMMIT_BYTES,
    Outcomes,
    Step,
    alter,
    commit_directly,
    compact_and_collect,
    copy_of,
    create,
    drop,
    flush,
    merge,
    outcomes_of,
    whole,
)
from tests.support import open_database

FULL, BROKEN = sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE
MESSAGES = {FULL: "database or disk is full", BROKEN: "disk I/O error"}


@dataclass
class FaultyConnection:
    """A connection of which one statement fails, a COMMIT only if `done` after it was made.

    `fail_at`: the statement's number, counted from 1; a ROLLBACK is not counted, it is what follows a failure.
    """

    inner: sqlite3.Connection
    code: int
    fail_at: int
    done: bool = False
    statements: list[str] = field(default_factory=list)
    failed: str | None = None

    def _run(self, call: Any, sql: str, *arguments: Any) -> Any:
        if sql == "ROLLBACK":
            return call(sql, *arguments)
        self.statements.append(sql)
        if len(self.statements) != self.fail_at or (self.done and sql != "COMMIT"):
            return call(sql, *arguments)
        self.failed = sql
        if self.done:
            call(sql, *arguments)
        error = sqlite3.OperationalError(MESSAGES[self.code])
        error.sqlite_errorcode = self.code
        raise error

    def execute(self, sql: str, *arguments: Any) -> Any:
        return self._run(self.inner.execute, sql, *arguments)

    def executemany(self, sql: str, *arguments: Any) -> Any:
        return self._run(self.inner.executemany, sql, *arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def break_catalogue(db: Database, code: int, fail_at: int, done: bool = False) -> FaultyConnection:
    """From now on the connection of this store's catalogue is one that fails."""
    catalog = db._writer()._catalog
    assert catalog._connection is not None
    faulty = FaultyConnection(catalog._connection, code, fail_at, done)
    catalog._connection = faulty  # type: ignore[assignment]
    return faulty


def heal_catalogue(db: Database, faulty: FaultyConnection) -> None:
    db._writer()._catalog._connection = faulty.inner


def one_fault(
    origin: str, step: Step, outcomes: Outcomes, code: int, fail_at: int, done: bool, last: bool
) -> str | None:
    """The statement that failed, or None when the step has not so many; `last`: it is the step's last one."""
    path = copy_of(origin)
    with contextlib.ExitStack() as cleanup:
        db = open_database(path, direct_commit_bytes=DIRECT_COMMIT_BYTES)
        cleanup.push(lambda *_: close(db))
        assert whole(db) == outcomes.before
        moment = db.now()
        # The reserve of space would heal a full disk: here there is none.
        db._writer().reserve = Reserve(system_files(), f"{path}/none")
        faulty = break_catalogue(db, code, fail_at, done)
        failure: nyala.Error | None = None
        try:
            step(db)
        except nyala.Error as error:  # and nothing else than an error of ours
            failure = error
        heal_catalogue(db, faulty)
        if faulty.failed is None:
            return None
        assert isinstance(failure, StorageError), "a transaction has failed, and nobody was told"
        expected = "free some space" if code == FULL else "check the disk"
        assert expected in str(failure) and failure.path is not None, failure
        unknown = faulty.failed == "COMMIT" and code != FULL
        assert (failure.outcome == "unknown") == unknown
        if unknown:
            assert "the next open of the store shows" in str(failure)
            assert whole(db) in (outcomes.before, outcomes.after)
        else:
            assert whole(db) == outcomes.before, "what failed has happened"
        assert whole(db, at=moment)["t"][1] == outcomes.before["t"][1] or step is alter
        try:
            db["t2"].insert({"k": [77]})
            db.flush()
            alive = True
        except StorageError as error:
            alive = False
            assert "open it again" in str(error) or "connect() again" in str(error)
        assert alive != unknown, "it takes no writes only as long as it does not know what it holds"
    # Of several transactions the last one is that which can be seen.
    expected_contents = outcomes.after if done and last else outcomes.before
    if alive:
        names, found = expected_contents["t2"]
        expected_contents = {**expected_contents, "t2": (names, [*found, (77,)])}
    left = {problem.kind for problem in nyala.check(path).problems}
    assert not left or (unknown and not done and left == {"orphan-file"}), (
        "files that may be its own are not removed"
    )
    with open_database(path) as db:
        assert whole(db) == expected_contents, "the next open finds something else"
        if not (done and step in (create, drop, alter)):
            step(db)  # what has not happened can be done now
        assert whole(db)["t"] == outcomes.after["t"]
        assert db.check().ok
    return faulty.failed


def close(db: Database) -> None:
    with contextlib.suppress(StorageError):
        db.close()


STEPS = [alter, create, drop, flush, compact_and_collect, merge, commit_directly]
FAULTS = [
    pytest.param(FULL, False, id="full"),
    pytest.param(BROKEN, False, id="broken"),
    pytest.param(BROKEN, True, id="broken-and-done"),
]


def statements_of(origin: str, step: Step) -> list[str]:
    with open_database(copy_of(origin), direct_commit_bytes=DIRECT_COMMIT_BYTES) as db:
        counting = break_catalogue(db, FULL, 0)
        step(db)
        heal_catalogue(db, counting)
    assert "COMMIT" in counting.statements, "a step without a transaction shows nothing here"
    return counting.statements


def last_commit(statements: list[str]) -> int:
    return len(statements) - statements[::-1].index("COMMIT")


@pytest.mark.parametrize("step", [create, flush, merge])
def test_a_fault_in_the_catalogues_transaction(origin: str, step: Step) -> None:
    """Its begin, a statement in it, its commit. A store that does not know what it holds says so and stops; any other
    goes on."""
    outcomes, statements = outcomes_of(origin, step), statements_of(origin, step)
    last = last_commit(statements)
    for number in (1, last // 2, last):
        assert (
            one_fault(origin, step, outcomes, FULL, number, False, number == last) == statements[number - 1]
        )
    for done in (False, True):
        assert one_fault(origin, step, outcomes, BROKEN, last, done, True) == "COMMIT"


@pytest.mark.long
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("code", "done"), FAULTS)
def test_a_fault_in_every_statement_of_the_catalogue(origin: str, step: Step, code: int, done: bool) -> None:
    outcomes, statements = outcomes_of(origin, step), statements_of(origin, step)
    last = last_commit(statements)
    with counted("statements of the catalogue's transactions that failed", "faults") as tried:
        for number, sql in enumerate(statements, 1):
            if sql == "COMMIT" or not done:
                assert one_fault(origin, step, outcomes, code, number, done, number == last) == sql
                tried.append(1)
