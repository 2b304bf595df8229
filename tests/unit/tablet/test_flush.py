"""Flush: reads return the same rows before, during and after it."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import key_value_table, logged_rows, open_database, rows

import nyala
from nyala.api.database import Database
from nyala.env import system_files
from nyala.errors import StorageError
from nyala.tablet.flush import lifecycle as flush_module
from nyala.tablet.flush.lifecycle import FlushReport, flush
from nyala.testing.faulty_files import FaultyFiles

SHARED_MEMORY = "/dev/shm"


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with open_database(tmp_path / "s") as db:
        yield db


@contextlib.contextmanager
def before_install(act: Callable[[], None]) -> Iterator[None]:
    """Call a function between the writing of a flush's files and their installation."""
    install = flush_module._install

    def late(*arguments: Any) -> Any:
        act()
        return install(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flush_module, "_install", late)
        yield


def tablets(db: Database, name: str = "t") -> Any:
    return db._writer().root.table(name).tablets


def data_files(db: Database) -> set[str]:
    root = Path(db.path)
    return {str(path.relative_to(root)) for path in (root / "data").rglob("*") if path.is_file()}


# --- reads before, during and after a flush -------------------------------------------------------------


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Database, Database]]:
    """Return a store that is flushed, and one that never is."""
    where = SHARED_MEMORY if os.path.isdir(SHARED_MEMORY) else None
    with tempfile.TemporaryDirectory(prefix="nyala-unit-", dir=where) as folder:
        flushed, kept = open_database(Path(folder) / "flushed"), open_database(Path(folder) / "kept")
        yield flushed, kept
        flushed.close()
        kept.close()


WRITES = st.lists(
    st.tuples(
        st.sampled_from(["insert", "upsert", "update", "delete"]),
        st.lists(st.integers(0, 5), min_size=1, max_size=4),
        st.sampled_from([("a",), ("b",), ("a", "b")]),
        st.integers(0, 9),
    ),
    max_size=5,
)
ROUNDS = st.lists(
    st.tuples(WRITES, WRITES, st.sampled_from(["all", "all", "fails", "one tablet"])), max_size=3
)
TABLES = iter(range(10_000))


@given(rounds=ROUNDS)
@settings(max_examples=settings().max_examples // 2 + 5)
def test_a_flush_changes_no_row_at_any_moment(both: tuple[Database, Database], rounds: Any) -> None:
    """A store with flushes, also failed ones, reads like a store without, at every moment."""
    name = f"t{next(TABLES)}"
    hashes = nyala.hash_partition("k", buckets=2)
    columns = {"k": "int64", "a": "int64", "b": nyala.column("int8", nullable=False, default=7)}
    flushed, kept = (db.create_table(name, columns, "k", hashes) for db in both)
    moments = [(both[0].now(), both[1].now())]

    def perform(writes: Any) -> None:
        for operation, keys, given_, value in writes:
            data: dict[str, Any] = {"k": keys}
            if operation != "delete":
                data |= {column: [value] * len(keys) for column in given_}
            stamps = [
                getattr(table, operation)(data, errors="collect").timestamp for table in (flushed, kept)
            ]
            moments.append((stamps[0], stamps[1]))

    for before, during, how in rounds:
        perform(before)

        def late(during: Any = during, how: str = how) -> None:
            perform(during)
            if how == "fails":
                raise StorageError("raised by the test")

        chosen = {tablets(both[0], name)[0].id} if how == "one tablet" else None
        with before_install(late), contextlib.suppress(StorageError):
            flush(both[0]._writer(), chosen)
    for number, (flushed_at, kept_at) in enumerate(moments):
        for back in (0, 1) if number else (0,):
            # Before the first moment, the table did not exist.
            at = max(flushed_at - back, moments[0][0]), max(kept_at - back, moments[0][1])
            assert rows(flushed, at=at[0]) == rows(kept, at=at[1])
    for tablet in tablets(both[0], name):
        for rowset in tablet.all_rowsets():
            rowset.check()
    for _ in range(
        2
    ):  # the first flush moves changes of a frozen MemRowSet to its new rowset, the second writes them
        flushed.flush()
        assert rows(flushed) == rows(kept)
    assert all(tablet.memory_timestamp_min() is None for tablet in tablets(both[0], name))
    for db in both:
        db.drop_table(name)


def test_changes_during_a_flush_move_to_the_new_rowset(db: Database) -> None:
    """While their rows are written, keys are updated, deleted, and deleted and inserted again."""
    table = key_value_table(db)
    table.insert({"k": [5, 3, 1, 2, 4], "v": [5, 3, 1, 2, 4]})
    table.delete({"k": [2]})
    before = db.now()
    stamps: list[int] = []

    def late() -> None:
        stamps.append(table.update({"k": [1, 5], "v": [10, 50]}).timestamp)
        stamps.append(table.delete({"k": [3, 4]}).timestamp)
        stamps.append(table.insert({"k": [2, 3, 6], "v": [20, 30, 60]}).timestamp)
        stamps.append(table.update({"k": [3], "v": [31]}).timestamp)

    with before_install(late):
        db.flush()
    (tablet,) = tablets(db)
    assert (tablet.memory.row_count, len(tablet.rowsets), tablet.frozen) == (3, 1, ())
    for expected, at in (
        ([(1, 1), (3, 3), (4, 4), (5, 5)], before),
        ([(1, 10), (3, 3), (4, 4), (5, 50)], stamps[0]),
        ([(1, 10), (5, 50)], stamps[1]),
        ([(1, 10), (2, 20), (3, 30), (5, 50), (6, 60)], stamps[2]),
        ([(1, 10), (2, 20), (3, 31), (5, 50), (6, 60)], stamps[3]),
    ):
        assert rows(table, at=at) == expected
    # R3: the log still has the changes during the flush, so a crash loses none of them.
    assert db._writer().root.memory_timestamp_min() == stamps[0]
    db.close()
    with open_database(db.path) as again:
        assert rows(again["t"]) == [(1, 10), (2, 20), (3, 31), (5, 50), (6, 60)]


# --- marks, log, report ---------------------------------------------------------------------------------


def test_f1_durable_marks_rise_to_the_moment_of_freezing(db: Database) -> None:
    """With higher marks, the next open would skip rows that are in no file."""
    table = key_value_table(db)
    frozen_at = table.insert({"k": [1], "v": [1]}).timestamp
    with before_install(lambda: table.insert({"k": [2], "v": [2]})):
        report = flush(db._writer())
    (tablet,) = tablets(db)
    assert tablet.entry.inserts_durable == frozen_at == tablet.rowsets[0].meta.deltas_durable
    assert (report.rowsets, report.rows, report.delta_files) == (1, 1, 1)  # UNDO has the time of the insert
    assert report.bytes == sum((Path(db.path) / name).stat().st_size for name in data_files(db))
    assert db._writer().state.tablets[tablet.id].inserts_durable == frozen_at
    changed = table.update({"k": [1], "v": [5]}).timestamp
    report = flush(db._writer())
    assert (report.rowsets, report.delta_files, report.rows) == (1, 2, 1)
    assert tablets(db)[0].rowsets[0].meta.deltas_durable == changed


def test_a_flush_without_rows_writes_nothing(db: Database) -> None:
    assert flush(db._writer()) == FlushReport()
    key_value_table(db).insert({"k": [1], "v": [1]})
    db.flush()
    version = db._writer().state.version
    assert flush(db._writer()) == FlushReport()
    assert flush(db._writer(), {99_999}) == FlushReport()
    assert db._writer().state.version == version


def test_only_the_chosen_tablets_are_flushed(db: Database) -> None:
    one, two = key_value_table(db, "one"), key_value_table(db, "two")
    one.insert({"k": [1], "v": [1]})
    two.insert({"k": [1], "v": [1]})
    one.flush()
    assert (len(tablets(db, "one")[0].rowsets), len(tablets(db, "two")[0].rowsets)) == (1, 0)
    assert logged_rows(db), "F3: the log still has the other table's row"
    two.flush()
    assert logged_rows(db) == 0


def test_a_memrowset_of_deleted_rows_is_flushed(db: Database) -> None:
    """Rows that were deleted before the flush stay readable at earlier moments."""
    table = key_value_table(db)
    there = table.insert({"k": [1, 2], "v": [1, 2]}).timestamp
    table.delete({"k": [1, 2]})
    db.flush()
    assert rows(table) == [] and rows(table, at=there) == [(1, 1), (2, 2)]
    table.insert({"k": [1], "v": [9]})
    db.flush()
    assert rows(table) == [(1, 9)] and rows(table, at=there) == [(1, 1), (2, 2)]


# --- failures -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["enospc", "eio"])
def test_f2_a_failed_round_changes_nothing_and_the_next_flushes_all(tmp_path: Path, kind: Any) -> None:
    """F2: if any write of a flush fails, all rows stay and the new files are removed."""
    for fail_at in itertools.count(1, 2):
        files = FaultyFiles(system_files(), kind=kind, only=lambda op: "/data/" in op.path)
        folder = tmp_path / f"{fail_at}"
        with open_database(folder, files=files) as db:
            table = key_value_table(db)
            first = table.insert({"k": [1, 2], "v": [1, 2]}).timestamp
            db.flush()
            table.update({"k": [1], "v": [10]})
            table.insert({"k": [3], "v": [3]})
            before = data_files(db)
            version = db._writer().state.version
            files.fail_at = len(files.operations) + fail_at
            try:
                db.flush()
            except StorageError as error:
                assert error.outcome is None
            else:
                assert fail_at > 4
                break
            finally:
                files.fail_at = None
                files.heal()
            assert (data_files(db), db._writer().state.version) == (before, version)
            assert rows(table) == [(1, 10), (2, 2), (3, 3)]
            table.update({"k": [3], "v": [30]})  # a row of the frozen MemRowSet
            table.delete({"k": [2]})
            table.insert({"k": [4], "v": [4]})
            assert len(tablets(db)[0].frozen) == 1
            db.flush()
            (tablet,) = tablets(db)
            assert (tablet.frozen, tablet.memory.row_count, len(tablet.rowsets)) == ((), 0, 3)
            assert rows(table) == [(1, 10), (3, 30), (4, 4)] and rows(table, at=first) == [(1, 1), (2, 2)]
        with open_database(folder) as again:
            assert rows(again["t"]) == [(1, 10), (3, 30), (4, 4)]


def test_a_table_that_is_dropped_during_its_flush(db: Database) -> None:
    """The files of the dropped table are removed, and other tables are flushed."""
    gone, stays = key_value_table(db, "gone"), key_value_table(db, "stays")
    gone.insert({"k": [1], "v": [1]})
    db.flush()
    for table in (gone, stays):
        table.upsert({"k": [1], "v": [2]})
        table.upsert({"k": [2], "v": [2]})
    with before_install(lambda: db.drop_table("gone")):
        report = flush(db._writer())
    assert report.rows >= 1 and rows(stays) == [(1, 2), (2, 2)]
    assert len(tablets(db, "stays")[0].rowsets) == 1
    db._writer().collect_garbage()
    assert data_files(db) == set(db._writer().state.files())


def test_a_broken_store_is_not_flushed(db: Database) -> None:
    """After a failure with unknown outcome, no file may raise a durable mark (W3)."""
    key_value_table(db).insert({"k": [1], "v": [1]})
    db._writer().poison(OSError("the disk is gone"))
    with pytest.raises(StorageError, match="takes no more writes"):
        db.flush()
    assert not data_files(db)


def test_a_store_that_breaks_during_a_flush_installs_no_file(db: Database) -> None:
    """The store fails while the flush writes its files."""
    key_value_table(db).insert({"k": [1], "v": [1]})
    version = db._writer().state.version
    with before_install(lambda: db._writer().poison(OSError("gone"))):
        with pytest.raises(StorageError, match="takes no more writes"):
            db.flush()
    assert db._writer().state.version == version


def test_two_flushes_at_once(db: Database) -> None:
    """Two flushes run one after the other, and each row is written once."""
    table = key_value_table(db)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(5):
                db.flush()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for k in range(60):
        table.upsert({"k": [k, k // 2], "v": [k, -k]})
    for thread in threads:
        thread.join()
    assert failures == []
    model: dict[int, int] = {}
    for k in range(60):
        model |= {k: k} | {k // 2: -k}
    assert rows(table) == sorted(model.items())
    for rowset in tablets(db)[0].all_rowsets():
        rowset.check()


def test_writes_and_scans_do_not_wait_while_a_flush_writes_files(db: Database) -> None:
    table = key_value_table(db)
    table.insert({"k": [1], "v": [1]})
    seen: list[Any] = []

    def late() -> None:
        def other() -> None:
            table.insert({"k": [2], "v": [2]})
            seen.append(rows(table))

        thread = threading.Thread(target=other)
        thread.start()
        thread.join(20)

    with before_install(late):
        db.flush()
    assert seen == [[(1, 1), (2, 2)]]


# --- rolling --------------------------------------------------------------------------------------------


def test_a_large_flush_writes_several_rowsets(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes made during the flush move to the rowset that has their row."""
    store = db._writer()
    monkeypatch.setattr(store, "options", dataclasses.replace(store.options, rowset_target_bytes=2000))
    table = key_value_table(db)
    keys = list(range(1000))
    values = np.random.default_rng(1).integers(0, 1 << 62, 1000).tolist()
    table.insert({"k": keys, "v": values})
    with before_install(lambda: table.update({"k": [0, 500, 999], "v": [-1, -2, -3]})):
        db.flush()
    (tablet,) = tablets(db)
    assert len(tablet.rowsets) >= 4
    assert sum(rowset.deltas.record_count for rowset in tablet.rowsets) == 3
    assert rows(table) == [
        (k, {0: -1, 500: -2, 999: -3}.get(k, v)) for k, v in zip(keys, values, strict=True)
    ]
    for rowset in tablet.rowsets:
        rowset.check()
