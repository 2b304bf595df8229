"""Minor delta compactions that are due, by hand: fewer files, and every moment reads as before."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import key_value_table, open_database, rows

import nyala
from nyala.database import Database
from nyala.delta.compaction import merge_delta_files
from nyala.delta.compaction_policy import FILES_MIN
from nyala.env import system_files
from nyala.errors import StorageError
from nyala.tablet import compaction_run
from nyala.tablet.care import compact_deltas
from nyala.testing.faulty_files import FaultyFiles

SHARED_MEMORY = "/dev/shm"


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with open_database(tmp_path / "s") as db:
        yield db


@pytest.fixture(scope="module")
def shared() -> Iterator[Database]:
    where = SHARED_MEMORY if os.path.isdir(SHARED_MEMORY) else None
    with tempfile.TemporaryDirectory(prefix="nyala-unit-", dir=where) as folder:
        with open_database(Path(folder) / "s") as db:
            yield db


def rowset(db: Database, name: str = "t") -> Any:
    return db._writer().root.table(name).tablets[0].rowsets[0]


def prepared(db: Database, files: int = FILES_MIN) -> tuple[Any, list[tuple[int, list[tuple[Any, ...]]]]]:
    """A table of one rowset with so many REDO files, and what it held at each moment."""
    table = key_value_table(db)
    table.insert({"k": [1, 2, 3], "v": [1, 2, 3]})
    history = [(db.now(), rows(table))]
    db.flush()
    for number in range(files):
        table.update({"k": [1 + number % 3], "v": [number * 10]})
        history.append((db.now(), rows(table)))
        db.flush()
    return table, history


def holds(table: Any, history: list[tuple[int, list[tuple[Any, ...]]]]) -> bool:
    return all(rows(table, at=at) == expected for at, expected in history)


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["update a", "update b", "delete", "both"]),
        st.lists(st.integers(0, 3), min_size=1, max_size=3),
        st.integers(0, 9),
    ),
    min_size=1,
    max_size=3,
)  # fmt: skip
TABLES = iter(range(10_000))


@given(rounds=st.lists(CHANGES, min_size=3, max_size=9))
@settings(max_examples=settings().max_examples // 3 + 5)
def test_every_moment_reads_as_before(shared: Database, rounds: Any) -> None:
    """Updates of some columns and deletes over many files: merging drops and moves nothing."""
    name = f"t{next(TABLES)}"
    table = shared.create_table(name, {"k": "int64", "a": "int64", "b": "string"}, "k")
    table.insert([{"k": k, "a": k, "b": f"{k}"} for k in range(4)])
    table.flush()
    history = [(shared.now(), rows(table))]
    done = 0
    for changes in rounds:
        for kind, keys, value in changes:
            if kind == "delete":
                table.delete({"k": keys[:1]}, on_missing="ignore")
            else:
                data: dict[str, Any] = {"k": keys}
                if kind != "update b":
                    data["a"] = [value] * len(keys)
                if kind != "update a":
                    data["b"] = [f"{value}"] * len(keys)
                table.update(data, on_missing="ignore")
            history.append((shared.now(), rows(table)))
        table.flush()
        before = len(rowset(shared, name).redo)
        merged = compact_deltas(shared._writer())
        done += merged
        assert (len(rowset(shared, name).redo) < before) == bool(merged)
        if merged:
            assert holds(table, history)
            rowset(shared, name).check()
    assert done or len(rowset(shared, name).redo) < 2 * FILES_MIN
    shared.drop_table(name)


def test_the_marks_stay_and_the_inputs_become_garbage(db: Database) -> None:
    """Nothing became more durable than it was; a scan that began before still finds its files."""
    table, history = prepared(db)
    old, scan = rowset(db), table.scan(at=history[2][0], order_by_key=True)
    inputs = [file.path for file in old.redo]
    assert compact_deltas(db._writer()) == 1
    new = rowset(db)
    assert new.meta == old.meta and len(new.redo) == 1
    assert (new.redo[0].timestamp_min, new.redo[0].timestamp_max) == (
        old.redo[0].timestamp_min, old.redo[-1].timestamp_max,
    )  # fmt: skip
    assert set(inputs) <= set(db._writer().state.garbage)
    db._writer().collect_garbage()
    assert scan.to_arrow().column("v").to_pylist() == [row[1] for row in history[2][1]]
    del scan, old
    db._writer().collect_garbage()
    assert not [path for path in inputs if (Path(db.path) / path).exists()]
    assert holds(table, history)
    db.close()
    with open_database(db.path) as again:
        assert holds(again["t"], history)


def test_below_the_minimum_nothing_is_done(db: Database) -> None:
    """Merging two small files at every flush would rewrite the oldest record every time."""
    prepared(db, FILES_MIN - 1)
    version = db._writer().state.version
    assert compact_deltas(db._writer()) == 0 and db._writer().state.version == version


def test_changes_during_the_merge_stay(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes to the rowset's memory while its files are merged belongs to the new version as well."""
    table, history = prepared(db)

    def busy(*arguments: Any) -> Any:
        table.update({"k": [2], "v": [77]})
        table.delete({"k": [3]})
        table.insert({"k": [4], "v": [4]})
        history.append((db.now(), rows(table)))
        return merge_delta_files(*arguments)

    monkeypatch.setattr(compaction_run, "merge_delta_files", busy)
    assert compact_deltas(db._writer()) == 1
    assert rows(table) == [(1, 30), (2, 77), (4, 4)] and holds(table, history)
    assert rowset(db).deltas.record_count == 2
    db.flush()
    assert holds(table, history)


def test_a_failure_leaves_the_files_as_they_were(tmp_path: Path) -> None:
    """A full disk while merging: nothing changes, the half file goes, and the next try succeeds."""
    files = FaultyFiles(system_files(), kind="enospc", only=lambda op: "/data/" in op.path)
    with open_database(tmp_path / "s", files=files) as db:
        table, history = prepared(db)
        before = {path.name for path in (tmp_path / "s" / "data").rglob("*.redo")}
        failed = 0
        for fail_at in (1, 2, 3, 4, 5):
            files.fail_at = len(files.operations) + fail_at
            try:
                done = compact_deltas(db._writer())
            except StorageError:
                failed += 1
                assert {path.name for path in (tmp_path / "s" / "data").rglob("*.redo")} == before
                assert holds(table, history)
            else:
                assert done == 1
                break
            finally:
                files.fail_at = None
                files.heal()
        assert failed >= 2
        assert len(rowset(db).redo) == 1 and holds(table, history)


def test_a_dropped_table_is_passed_over(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The merge of a table that is gone by its end leaves no file behind."""
    prepared(db)

    def dropped(*arguments: Any) -> Any:
        merged = merge_delta_files(*arguments)
        db.drop_table("t")
        return merged

    monkeypatch.setattr(compaction_run, "merge_delta_files", dropped)
    compact_deltas(db._writer())
    db._writer().collect_garbage()
    assert not list((Path(db.path) / "data").rglob("*.redo"))


def test_all_tables_have_their_turn(db: Database) -> None:
    """Also what a running compaction has taken is passed over, not waited for."""
    prepared(db)
    other = key_value_table(db, "other")
    other.insert({"k": [1], "v": [1]})
    for value in range(FILES_MIN + 1):
        db.flush()
        other.update({"k": [1], "v": [value]})
    db.flush()
    store = db._writer()
    reservation = store.reservations.take([rowset(db).id], holds_deltas=False)
    assert compact_deltas(store) == 1
    assert (len(rowset(db).redo), len(rowset(db, "other").redo)) == (FILES_MIN, 1)
    store.reservations.release(reservation)
    assert compact_deltas(store) == 1 and len(rowset(db).redo) == 1


def test_a_year_of_daily_updates_leaves_few_files(db: Database) -> None:
    """Else every scan of the present would open a file per day; two months show it."""
    table = db.create_table("t", {"k": "int64", "v": "int64"}, "k")
    table.insert({"k": list(range(30)), "v": [0] * 30})
    db.flush()
    most = 0
    for day in range(60):
        table.update({"k": [day % 30], "v": [day]})
        db.flush()
        compact_deltas(db._writer())
        most = max(most, len(rowset(db).redo))
    assert most <= FILES_MIN - 1 + 6  # log2(60) < 6
    assert rows(table) == [(k, 30 + k) for k in range(30)]
    assert nyala.to_datetime(db.now()).year > 2000
