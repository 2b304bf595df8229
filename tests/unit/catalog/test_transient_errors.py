"""SQLite's system errors become a StorageError that may pass; damaged bytes do not."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.support import open_database

import nyala
from nyala.catalog import store as catalog_store

# SQLite says SQLITE_CORRUPT also when the system cannot read a page (EIO).
CODES = {
    "IOERR_READ": 266,
    "IOERR_WRITE": 778,
    "FULL": sqlite3.SQLITE_FULL,
    "BUSY": sqlite3.SQLITE_BUSY,
    "CANTOPEN": sqlite3.SQLITE_CANTOPEN,
    "READONLY": sqlite3.SQLITE_READONLY,
    "NOMEM": sqlite3.SQLITE_NOMEM,
    "INTERRUPT": sqlite3.SQLITE_INTERRUPT,
    "PROTOCOL": sqlite3.SQLITE_PROTOCOL,
}


class Failing:
    """A connection whose next `left` statements fail."""

    def __init__(self, inner: sqlite3.Connection, owner: Failures) -> None:
        self._inner, self._owner = inner, owner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def execute(self, sql: str, *values: Any) -> Any:
        if sql.startswith(self._owner.statement) and self._owner.left > 0:
            self._owner.left -= 1
            error = sqlite3.DatabaseError("failed on purpose")
            error.sqlite_errorcode = self._owner.code
            raise error
        return self._inner.execute(sql, *values)


class Failures:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.code, self.left, self.statement = 0, 0, "SELECT"
        connect = catalog_store._connect
        monkeypatch.setattr(catalog_store, "_connect", lambda *a: Failing(connect(*a), self))

    def fail(self, code: int, times: int, statement: str = "SELECT") -> None:
        self.code, self.left, self.statement = code, times, statement


@pytest.fixture
def failures(monkeypatch: pytest.MonkeyPatch) -> Failures:
    return Failures(monkeypatch)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with open_database(tmp_path / "s") as db:
        db.create_table("t", {"k": "int64"}, "k").insert([{"k": 1}])
        db.flush()
    return tmp_path / "s"


@pytest.mark.parametrize("name", CODES)
@pytest.mark.parametrize("statement", ["SELECT", "PRAGMA quick_check", "PRAGMA application_id"])
def test_an_open_that_fails_for_the_moment_can_be_tried_again(
    path: Path, failures: Failures, name: str, statement: str
) -> None:
    for read_only in (False, True):
        failures.fail(CODES[name], 1, statement)
        try:
            nyala.connect(path, read_only=read_only, maintenance=False).close()
        except nyala.StorageError as error:
            assert not isinstance(error, nyala.CorruptionError)
        with nyala.connect(path, read_only=read_only, maintenance=False) as db:
            assert db["t"].count() == 1


def test_damage_that_vanishes_at_the_second_read_is_ignored(path: Path, failures: Failures) -> None:
    for read_only in (False, True):
        failures.fail(sqlite3.SQLITE_CORRUPT, 1)
        with nyala.connect(path, read_only=read_only, maintenance=False) as db:
            assert db["t"].count() == 1


def test_damage_that_stays_is_damage(path: Path, failures: Failures) -> None:
    failures.fail(sqlite3.SQLITE_CORRUPT, 99)
    with pytest.raises(nyala.CorruptionError):
        nyala.connect(path, maintenance=False)


@pytest.mark.parametrize("name", ["IOERR_WRITE", "FULL", "BUSY"])
def test_a_transaction_that_fails_leaves_a_store_that_goes_on(
    path: Path, failures: Failures, name: str
) -> None:
    with nyala.connect(path, maintenance=False) as db:
        for statement in ("BEGIN IMMEDIATE", "SELECT", "DELETE"):
            failures.fail(CODES[name], 1, statement)
            with pytest.raises(nyala.StorageError):
                db.create_table("u", {"k": "int64"}, "k")
            db["t"].upsert([{"k": 1}])
        db.create_table("u", {"k": "int64"}, "k")
        assert db.list_tables() == ["t", "u"]


def test_a_commit_of_unknown_outcome_is_settled_by_connecting_again(path: Path, failures: Failures) -> None:
    """Also while the old Database is still held."""
    old = nyala.connect(path, maintenance=False)
    failures.fail(CODES["IOERR_WRITE"], 1, "COMMIT")
    with pytest.raises(nyala.StorageError) as caught:
        old.create_table("u", {"k": "int64"}, "k")
    assert caught.value.outcome == "unknown"
    with nyala.connect(path, maintenance=False) as db:
        db["t"].insert([{"k": 2}])
        db.create_table("u", {"k": "int64"}, "k", exist_ok=True)
        assert db["t"].count() == 2


def test_a_page_that_sqlites_check_could_not_read_is_no_damage() -> None:
    with pytest.raises(nyala.StorageError, match="I/O error"):
        catalog_store._check_read(
            "*** in database main ***\nPage 9: unable to get the page. error code=8458", "p"
        )
    catalog_store._check_read("Page 9: btreeInitPage() returns error code 11", "p")
