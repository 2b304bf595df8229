"""Writes that select their rows by a condition."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support import key_value_table, open_database, rows

import nyala
from nyala.api.database import Database
from nyala.errors import (
    ColumnNotFoundError,
    InvalidArgumentError,
    InvalidValueError,
    StorageError,
    TableNotFoundError,
)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with open_database(tmp_path / "s") as db:
        yield db


def test_a_value_that_does_not_fit(db: Database) -> None:
    """With errors="collect", the other rows change, and the errors have the keys."""
    table = db.create_table("t", {"k": "int64", "v": "int8"}, "k")
    table.insert({"k": [1, 2, 3], "v": [1, 100, 3]})
    with pytest.raises(InvalidValueError, match="1 of 3 rows failed") as error:
        table.update(set={"v": nyala.expr("v * 2")}, where="TRUE")
    assert error.value.errors is not None and error.value.errors.column("k").to_pylist() == [2]
    assert rows(table) == [(1, 1), (2, 100), (3, 3)]
    result = table.update(set={"v": nyala.expr("v * 2")}, where="TRUE", errors="collect")
    assert (result.updated, result.errors.column("code").to_pylist()) == (2, ["out-of-range"])
    assert rows(table) == [(1, 2), (2, 100), (3, 6)]


@pytest.mark.parametrize(
    ("act", "kind", "says"),
    [
        (lambda t: t.update(set={}, where="TRUE"), InvalidArgumentError, "no column"),
        (lambda t: t.update(set={"k": 1}, where="TRUE"), InvalidArgumentError, "part of the key"),
        (lambda t: t.update(set={"w": 1}, where="TRUE"), ColumnNotFoundError, "'w'"),
        (lambda t: t.update(set={"v": 1}, where="ww = 1"), ColumnNotFoundError, "'ww'"),
        (lambda t: t.update(set={"v": nyala.expr("v +")}, where="TRUE"), InvalidArgumentError, "v +"),
        (lambda t: t.delete(where="k ="), InvalidArgumentError, "k ="),
    ],
)
def test_an_invalid_call_changes_nothing_and_releases_the_lock(
    db: Database, act: Callable[[Any], Any], kind: type[Exception], says: str
) -> None:
    table = key_value_table(db)
    table.insert({"k": [1], "v": [1]})
    with pytest.raises(kind) as error:
        act(table)
    assert says in str(error.value)
    assert not db._writer().commit_lock.held()
    thread = threading.Thread(target=lambda: table.upsert({"k": [1], "v": [2]}))
    thread.start()
    thread.join(20)
    assert rows(table) == [(1, 2)]


def test_a_dropped_table_raises_an_error(db: Database) -> None:
    table = key_value_table(db)
    db.drop_table("t")
    acts: list[Callable[[], Any]] = [
        lambda: table.delete(where="TRUE"),
        lambda: table.update(set={"v": 1}),
    ]
    for act in acts:
        with pytest.raises(TableNotFoundError):
            act()


def test_no_other_write_comes_between_reading_and_changing(db: Database) -> None:
    """Many threads increment a counter by `set={"v": nyala.expr("v + 1")}`."""
    table = key_value_table(db)
    table.insert({"k": [1], "v": [0]})
    threads = [
        threading.Thread(
            target=lambda: [table.update(set={"v": nyala.expr("v + 1")}, where="k = 1") for _ in range(10)]
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rows(table) == [(1, 40)]


def test_a_large_change_is_committed_as_files(tmp_path: Path) -> None:
    """The rows are selected again under both locks."""
    with open_database(tmp_path / "s", direct_commit_bytes=1000) as db:
        table = key_value_table(db)
        table.insert({"k": list(range(500)), "v": list(range(500))})
        before = db.now()
        assert table.update(set={"v": nyala.expr("v + 1000")}, where="k >= 100").updated == 400
        assert table.stats().redo_files == 1 and table.stats().memory_bytes == 0
        assert table.delete(where="k < 300").deleted == 300
        assert rows(table) == [(k, k + 1000) for k in range(300, 500)]
        assert table.count(at=before) == 500 and table.count(at=before, where="v >= 1000") == 0


def test_a_broken_store_refuses_before_it_reads(db: Database) -> None:
    table = key_value_table(db)
    db._writer().poison(OSError("gone"))
    acts: list[Callable[[], Any]] = [
        lambda: table.delete(where="TRUE"),
        lambda: table.update(set={"v": 1}),
    ]
    for act in acts:
        with pytest.raises(StorageError, match="takes no more writes"):
            act()


# --- look-ups -------------------------------------------------------------------------------------------
