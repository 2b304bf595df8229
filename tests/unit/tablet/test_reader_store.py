"""A reader process follows the writer, never goes back, and does not change the store (P1, P2)."""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.support import key_value_table, open_database, rows

import nyala
from nyala.api.database import Database
from nyala.env import SYSTEM, Env, SystemRandomness, system_files
from nyala.errors import HistoryExpiredError, ReadOnlyError, StorageError
from nyala.tablet.recovery import reader_store
from nyala.tablet.recovery.bootstrap import Replayer
from nyala.tablet.recovery.reader_store import ReaderStore
from nyala.testing.clock import ManualClock
from nyala.wal.reader import LogReader

LIMIT = 64 << 20


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with open_database(tmp_path / "s") as db:
        yield db


def reader_of(db: Database, env: Env = SYSTEM) -> Database:
    return Database(ReaderStore.open(env, db.path, LIMIT))


def store_of(reader: Database) -> ReaderStore:
    assert isinstance(reader._store, ReaderStore)
    return reader._store


def leases(db: Database) -> int:
    return len(list((Path(db.path) / "leases").iterdir()))


# --- following the writer -------------------------------------------------------------------------------


def test_each_view_has_all_acknowledged_batches(db: Database) -> None:
    """Each view has all batches that were acknowledged before.

    The rows are in memory and in files, after flushes, compactions, direct commits, and new and
    dropped tables.
    """
    table = key_value_table(db)
    with reader_of(db) as reader:
        steps: list[Callable[[], object]] = [
            lambda: table.insert({"k": [1, 2], "v": [1, 2]}),
            lambda: table.update({"k": [1], "v": [10]}),
            db.flush,
            lambda: table.delete({"k": [2]}),
            lambda: table.insert({"k": [2, 3], "v": [20, 30]}),
            db.flush,
            lambda: table.update(set={"v": nyala.expr("v + 1")}, where="TRUE"),
            lambda: setattr(db._writer(), "direct_commit_bytes", 100),
            lambda: table.upsert({"k": list(range(50)), "v": [5] * 50}),
            lambda: setattr(db._writer(), "direct_commit_bytes", 1 << 20),
            lambda: table.update({"k": [7], "v": [7]}),
            lambda: key_value_table(db, "u").insert({"k": [1], "v": [1]}),
        ]
        moments = [db.now()]
        for step in steps:
            step()
            moments.append(db.now())
            assert reader.now() == db.now()
            assert rows(reader["t"]) == rows(table)
            assert reader.list_tables() == db.list_tables()
        for at in moments:
            assert rows(reader["t"], at=at) == rows(table, at=at)
        db.drop_table("t", purge=True)
        with pytest.raises(nyala.TableNotFoundError):
            reader["t"].count()
        assert rows(reader["u"]) == [(1, 1)]


def test_following_the_log_does_not_change_a_snapshot(db: Database) -> None:
    """An open snapshot does not change while the reader applies newer records to the same memory."""
    table = key_value_table(db)
    table.insert({"k": [1, 2], "v": [1, 2]})
    with reader_of(db) as reader:
        snapshot, scan = reader.snapshot(), reader["t"].scan(order_by_key=True)
        table.update({"k": [1], "v": [10]})
        table.delete({"k": [2]})
        table.insert({"k": [2, 3], "v": [20, 3]})
        assert rows(reader["t"]) == [(1, 10), (2, 20), (3, 3)]
        db.flush()
        assert rows(reader["t"]) == [(1, 10), (2, 20), (3, 3)]
        assert (
            rows(snapshot["t"])
            == [(1, 1), (2, 2)]
            == list(zip(*scan.to_arrow().to_pydict().values(), strict=True))
        )


def test_w1_a_record_that_is_not_published_is_not_visible(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = key_value_table(db)
    table.insert({"k": [1], "v": [1]})
    with reader_of(db) as reader:
        assert rows(reader["t"]) == [(1, 1)]
        monkeypatch.setattr(db._writer(), "publish", lambda: None)
        table.insert({"k": [2], "v": [2]})
        assert rows(reader["t"]) == [(1, 1)] and reader.now() < db.now()
        monkeypatch.undo()
        db._writer().publish()
        assert rows(reader["t"]) == [(1, 1), (2, 2)]


def test_p5_a_view_never_goes_back_while_the_writer_commits(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalogue changes during a load."""
    table = key_value_table(db)
    table.insert({"k": [1], "v": [1]})
    with reader_of(db) as reader:
        seen = reader.now()
        store = store_of(reader)
        load = reader_store.read_catalogue
        numbers = itertools.count()

        def overtaken(*arguments: Any) -> Any:
            state = load(*arguments)
            number = next(numbers)
            db.create_table(f"x{number}", {"k": "int8"}, "k")  # the writer continues during the load
            table.update({"k": [1], "v": [number]})
            return state

        db.create_table("y", {"k": "int8"}, "k")
        monkeypatch.setattr(reader_store, "read_catalogue", overtaken)
        for _ in range(3):
            scan = reader["t"].scan()
            assert scan.timestamp >= seen
            assert scan.to_arrow().to_pylist() == table.scan(at=scan.timestamp).to_arrow().to_pylist() != []
            seen = scan.timestamp
        assert next(numbers) >= 3
        monkeypatch.undo()
        assert reader.now() == db.now() and rows(reader["t"]) == rows(table)
        assert store.version == db._writer().state.version


def test_p3_a_newer_catalogue_is_loaded_before_its_log_is_read(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log records after a direct commit change rows that only the newer catalogue has."""
    db._writer().direct_commit_bytes = 100
    table = key_value_table(db)
    with reader_of(db) as reader:
        reader.now()
        store = store_of(reader)
        before = store._position()
        table.insert({"k": list(range(50)), "v": [0] * 50})
        db._writer().direct_commit_bytes = 1 << 20
        table.update({"k": [7], "v": [7]})
        newer = store._position()
        assert before is not None and newer is not None and newer.catalogue_version > store.version
        root = store._root
        store._follow(newer)  # although the catalogue is newer
        assert store._root is root and store._published <= before.timestamp
        assert reader["t"].get({"k": 7}) == {"k": 7, "v": 7}


# --- without a writer -----------------------------------------------------------------------------------


def test_without_a_writer_all_durable_batches_are_visible(tmp_path: Path) -> None:
    """Without a writer, a reader sees all durable batches, also those after the position record."""
    script = (
        "import nyala, os, sys; db = nyala.connect(sys.argv[1], maintenance=False);"
        "t = db.create_table('t', {'k': 'int64', 'v': 'int64'}, 'k');"
        "t.insert({'k': [0], 'v': [0]}); db._writer().publish = lambda: None;"
        "t.insert({'k': [1], 'v': [1]}); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "s")], check=False)
    segment = tmp_path / "s" / "wal" / "wal-000000001"
    with open(segment, "ab") as file:
        file.write(b"\x07" * 100)  # a torn tail, which only a writer may cut off
    before = {path: path.read_bytes() for path in (tmp_path / "s" / "wal").iterdir()}
    with nyala.connect(tmp_path / "s", read_only=True) as reader:
        assert rows(reader["t"]) == [(0, 0), (1, 1)]
        first = reader.now()
        with open_database(tmp_path / "s") as db:
            assert rows(reader["t"]) == [(0, 0), (1, 1)] and reader.now() >= first
            db["t"].insert({"k": [2], "v": [2]})
            assert rows(reader["t"]) == [(0, 0), (1, 1), (2, 2)]
        assert rows(reader["t"]) == [(0, 0), (1, 1), (2, 2)]
    assert before[segment] != segment.read_bytes()  # the writer has cut it off


def test_a_reader_writes_only_its_lease(db: Database) -> None:
    table = key_value_table(db)
    table.insert({"k": [1], "v": [1]})
    db.flush()
    table.insert({"k": [2], "v": [2]})

    def all_files() -> dict[str, tuple[int, bytes]]:
        return {
            str(path): (path.stat().st_mtime_ns, path.read_bytes())
            for path in sorted(Path(db.path).rglob("*"))
            if path.is_file() and "leases" not in path.parts and not path.name.endswith("-shm")
        }

    before = all_files()
    with reader_of(db) as reader:
        assert reader["t"].count() == 2 and reader.stats().tables == 1
    assert all_files() == before


# --- leases ---------------------------------------------------------------------------------------------


def test_p4_a_lease_is_kept_as_long_as_its_scans(db: Database) -> None:
    """A scan from before a reload keeps its files."""
    table = key_value_table(db)
    table.insert({"k": [1], "v": [1]})
    db.flush()
    with reader_of(db) as reader:
        assert leases(db) == 1
        scan = reader["t"].scan()
        db.drop_table("t", purge=True)
        assert reader.list_tables() == []
        assert leases(db) == 2
        db._writer().collect_garbage()
        assert scan.to_arrow().to_pydict() == {"k": [1], "v": [1]}
        del scan
        gc.collect()
        assert leases(db) == 1
        assert db._writer().collect_garbage() >= 2
        assert not list((Path(db.path) / "data").rglob("*.base"))
    assert leases(db) == 0


def test_a_failed_reload_releases_its_lease_and_is_repeated(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_value_table(db).insert({"k": [1], "v": [1]})
    with reader_of(db) as reader:
        assert rows(reader["t"]) == [(1, 1)]
        db.flush()

        def away(*_: Any) -> Any:
            raise StorageError("the file system is away")

        monkeypatch.setattr(reader_store, "read_catalogue", away)
        for _ in range(3):
            with pytest.raises(StorageError, match="is away"):
                reader.now()
        assert leases(db) == 1
        monkeypatch.undo()
        assert rows(reader["t"]) == [(1, 1)]


def test_a_reload_that_cannot_read_the_log_is_repeated(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The half-loaded root has no lease, so no scan may use it."""
    table = key_value_table(db)
    table.insert({"k": [1], "v": [1]})
    with reader_of(db) as reader:
        reader.now()
        db.flush()
        table.update({"k": [1], "v": [2]})

        def away(self: LogReader, *_: Any) -> Any:
            raise StorageError("the file system is away")

        monkeypatch.setattr(LogReader, "read_to", away)
        with pytest.raises(StorageError, match="is away"):
            reader.now()
        monkeypatch.undo()
        scan = reader["t"].scan()
        assert leases(db) == 1
        table.delete({"k": [1]})
        db.drop_table("t", purge=True)
        db._writer().collect_garbage()
        assert scan.to_arrow().to_pydict() == {"k": [1], "v": [2]}


class Stop(BaseException):
    """An error in the place of Ctrl-C."""


def test_an_interrupted_view_loses_no_batch(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records were read, but they are not in memory. The next view must load again."""
    table = key_value_table(db)
    table.insert({"k": [1], "v": [1]})
    with reader_of(db) as reader:
        assert rows(reader["t"]) == [(1, 1)]
        for k in (2, 3):
            table.insert({"k": [k], "v": [k]})

            def interrupted(self: Replayer) -> None:
                raise Stop

            monkeypatch.setattr(Replayer, "drain", interrupted)
            with pytest.raises(Stop):
                reader.now()
            monkeypatch.undo()
            assert rows(reader["t"]) == rows(table)
        assert leases(db) == 1


def test_a_failed_open_leaves_no_lease(tmp_path: Path, db: Database) -> None:
    shutil.copytree(db.path, tmp_path / "copy", ignore=shutil.ignore_patterns("*.sock"))
    identity = tmp_path / "copy" / "nyala.json"
    identity.write_bytes(b"x" * len(identity.read_bytes()))
    with pytest.raises(nyala.CorruptionError):
        nyala.connect(tmp_path / "copy", read_only=True)
    assert not list((tmp_path / "copy" / "leases").iterdir())
    with pytest.raises(StorageError, match="no Nyala store"):
        nyala.connect(tmp_path / "nothing", read_only=True)
    assert not (tmp_path / "nothing").exists()


def test_an_unused_scan_of_a_reader_is_released(db: Database) -> None:
    """The next view releases it, because a reader has no background thread."""
    clock = ManualClock(SYSTEM.clock.now_us())
    table = key_value_table(db)
    table.insert({"k": [1], "v": [1]})
    with reader_of(db, Env(system_files(), clock, SystemRandomness())) as reader:
        scan = reader["t"].scan()
        clock.advance(14 * 60)
        assert reader["t"].scan().count() == 1 and scan.count() == 1
        clock.advance(15 * 60 + 1)
        reader["t"].scan()
        with pytest.raises(HistoryExpiredError, match="15 minutes"):
            scan.count()


# --- refused calls, and close ---------------------------------------------------------------------------


def test_writes_of_a_reader_are_refused(db: Database) -> None:
    """Each error says how to open the store for writing."""
    key_value_table(db).insert({"k": [1], "v": [1]})
    with reader_of(db) as reader:
        table = reader["t"]
        acts: list[Callable[[], object]] = [
            lambda: table.insert({"k": [2], "v": [2]}), lambda: table.upsert({"k": [2]}),
            lambda: table.update({"k": [1], "v": [2]}), lambda: table.update(set={"v": 1}),
            lambda: table.delete({"k": [1]}), lambda: table.delete(where="TRUE"), table.flush, reader.flush,
            reader.batch, lambda: reader.drop_table("t"), lambda: reader.rename_table("t", "u"),
            lambda: reader.create_table("u", {"k": "int8"}, "k"), lambda: reader.maintenance,
            lambda: store_of(reader).check_writable(),
        ]  # fmt: skip
        for act in acts:
            with pytest.raises(ReadOnlyError, match="read_only=True"):
                act()
        assert reader.read_only and not db.read_only
        assert rows(table) == [(1, 1)]


def test_closing_a_reader_during_a_load_leaves_no_lease(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread is loading a catalogue."""
    table = key_value_table(db)
    reader = reader_of(db)
    table.insert({"k": [1], "v": [1]})
    db.flush()
    loading, go = threading.Event(), threading.Event()
    load = ReaderStore._load_under

    def slow(self: ReaderStore, lease: Any) -> None:
        loading.set()
        assert go.wait(30)
        load(self, lease)

    monkeypatch.setattr(ReaderStore, "_load_under", slow)
    with ThreadPoolExecutor(2) as pool:
        looked = pool.submit(reader.now)
        assert loading.wait(30)
        closed = pool.submit(reader.close)
        with pytest.raises(TimeoutError):
            closed.result(0.1)
        go.set()
        closed.result(30)
        assert looked.result(30) <= db.now()
    assert leases(db) == 0
    with pytest.raises(StorageError, match="closed"):
        reader.now()


def test_a_reader_can_be_closed_inside_its_own_view(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal handler may run inside a view."""
    reader = reader_of(db)
    position = ReaderStore._position

    def interrupted(self: ReaderStore) -> Any:
        monkeypatch.undo()
        reader.close()
        return position(self)

    monkeypatch.setattr(ReaderStore, "_position", interrupted)
    with pytest.raises(StorageError, match="closed"):
        reader.now()
    assert leases(db) == 0
    with pytest.raises(StorageError, match="closed"):
        reader.now()


def test_errors_of_a_closed_and_a_forked_reader(db: Database) -> None:
    key_value_table(db)
    reader = reader_of(db)
    store = store_of(reader)
    store._pid = os.getpid() + 1
    with pytest.raises(StorageError, match=r"forked child.*connect\(\) in the child"):
        reader.now()
    reader.close()
    assert leases(db) == 1, "the child does not release the parent's lease"
    store._pid = os.getpid()
    store._closed = False
    store.close()
    store.close()
    assert leases(db) == 0 and store.closed
    with pytest.raises(StorageError, match="closed"):
        reader.now()


def test_p6_a_view_is_not_before_the_beginning_of_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer wrote, flushed and discarded history between the reader's reads of the position
    record and of the catalogue.
    """
    with open_database(tmp_path / "s") as db:
        table = db.create_table("t", {"k": "int64", "v": "int64"}, "k", history=0)
        table.insert({"k": [1, 2], "v": [1, 1]})
        db.flush()
        real, looks = ReaderStore._position, 0

        def between(self: ReaderStore) -> Any:
            nonlocal looks
            looks += 1
            if looks == 2:
                db.create_table("another", {"k": "int64"}, "k")
            found = real(self)
            if looks == 1:
                table.upsert({"k": [1, 2], "v": [2, 2]})
                table.compact()
            return found

        monkeypatch.setattr(ReaderStore, "_position", between)
        with Database(ReaderStore.open(SYSTEM, str(tmp_path / "s"), 64 << 20)) as reader:
            monkeypatch.undo()
            assert looks > 2, "the load was repeated"
            assert rows(reader["t"]) == [(1, 2), (2, 2)]
