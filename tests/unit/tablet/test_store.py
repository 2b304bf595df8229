"""The open store: what failures leave, memory limits, recovery, publishing and garbage."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.support import key_value_table, open_database, rows

import nyala
from nyala.catalog.model import CatalogChange, CommittedKey
from nyala.env import PosixFiles
from nyala.errors import CorruptionError, StorageError
from nyala.tablet import store as store_module
from nyala.tablet.state import store_folder as layout
from nyala.tablet.state.result import WriteResult
from nyala.tablet.state.root import Root
from nyala.tablet.write.write_path import Request, find_committed, write
from nyala.testing.clock import ManualClock
from nyala.wal.position import read_position


class _Switchable(PosixFiles):
    """Files in which overwriting the position record fails while `broken` is set."""

    broken = False

    def write_at(self, path: str, offset: int, data: bytes) -> None:
        if self.broken:
            raise StorageError(f"cannot write {path}: raised by the test", path=path)
        super().write_at(path, offset, data)


# --- failures around a commit ---------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["flush", "direct commit", "delta compaction"])
def test_an_error_after_a_commit_removes_no_file(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An error while publishing must not delete files that the catalogue names."""
    files = _Switchable()
    db = open_database(tmp_path / "s", files=files, direct_commit_bytes=1000)
    table = key_value_table(db)
    table.insert({"k": [1], "v": [1]})
    if what == "delta compaction":
        for value in range(6):
            db.flush()
            table.update({"k": [1], "v": [value]})
    files.broken = True
    if what == "flush":
        db.flush()
    elif what == "direct commit":
        table.insert({"k": list(range(10, 500)), "v": [0] * 490})
    else:
        db.flush()
        from tests.support import compact_deltas

        assert compact_deltas(db._writer()) == 1
    assert "reader processes" in caplog.text
    files.broken = False
    expected = rows(table)
    assert len(expected) == (491 if what == "direct commit" else 1)
    db.close()
    again = open_database(tmp_path / "s")
    assert rows(again["t"]) == expected
    again.close()


def test_a_write_succeeds_although_the_position_record_cannot_be_written(tmp_path: Path) -> None:
    """The batch is durable and visible, so the call must not raise an error."""
    files = _Switchable()
    db = open_database(tmp_path / "s", files=files)
    table = key_value_table(db)
    files.broken = True
    result = table.insert({"k": [1], "v": [1]})
    assert db.now() == result.timestamp and rows(table) == [(1, 1)]
    reader = nyala.connect(tmp_path / "s", read_only=True)
    assert reader.list_tables() == ["t"] and rows(reader["t"]) == []
    files.broken = False
    table.insert({"k": [2], "v": [2]})
    assert rows(reader["t"]) == [(1, 1), (2, 2)]
    reader.close()
    db.close()


@pytest.mark.parametrize("moment", ["before", "after"])
def test_ctrl_c_in_a_commit_removes_no_file_that_the_catalogue_may_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Ctrl-C during the commit of a flush loses no row, whatever its outcome."""
    db = open_database(tmp_path / "s")
    table = key_value_table(db)
    table.insert({"k": [1], "v": [1]})
    store = db._writer()
    commit = store._commit

    def interrupted(change: Any) -> Any:
        if moment == "after":
            commit(change)
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "_commit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        db.flush()
    monkeypatch.undo()
    assert rows(table) == [(1, 1)]
    with pytest.raises(StorageError, match=r"KeyboardInterrupt.*connect\(\) again"):
        table.insert({"k": [2], "v": [2]})
    db.close()
    again = open_database(tmp_path / "s")
    assert rows(again["t"]) == [(1, 1)]
    again["t"].insert({"k": [2], "v": [2]})
    again.flush()
    assert rows(again["t"]) == [(1, 1), (2, 2)]
    again.close()


def test_the_store_is_writable_after_a_failed_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a flush to a full disk, nothing has changed and the written files are removed."""
    db = open_database(tmp_path / "s")
    table = key_value_table(db)
    table.insert({"k": [1], "v": [1]})
    store = db._writer()

    def full(change: object) -> None:
        raise StorageError("database or disk is full")

    monkeypatch.setattr(store, "_commit", full)
    with pytest.raises(StorageError, match="full"):
        db.flush()
    monkeypatch.undo()
    assert not list((tmp_path / "s" / "data").rglob("*.base"))
    table.insert({"k": [2], "v": [2]})
    db.flush()
    assert rows(table) == [(1, 1), (2, 2)]
    db.close()


def test_a_closed_store_does_not_overwrite_the_next_writers_position_record(tmp_path: Path) -> None:
    """A closed store does not write the position record, so readers do not go back."""
    db = open_database(tmp_path / "s")
    key_value_table(db).insert({"k": [1], "v": [1]})
    old = db._writer()
    db.close()
    again = open_database(tmp_path / "s")
    again["t"].insert({"k": [2], "v": [2]})
    record = (tmp_path / "s" / "wal" / "position").read_bytes()
    old.publish()  # as a thread that is still in `finish` when the store is closed
    assert (tmp_path / "s" / "wal" / "position").read_bytes() == record
    again.close()


# --- memory ---------------------------------------------------------------------------------------------


def _fill(store: Any) -> None:
    store._memory_bytes = store.options.memory_limit_bytes + 1


def _wait_in_thread(table: Any) -> tuple[threading.Thread, list[BaseException | None]]:
    outcome: list[BaseException | None] = []

    def write() -> None:
        try:
            table.insert({"k": [100], "v": [1]})
            outcome.append(None)
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    return thread, outcome


class _Waiting:
    """A store with full memory and without background work, which shows when a writer waits."""

    def __init__(self, path: Path) -> None:
        self.db = open_database(path)
        self.table = key_value_table(self.db)
        self.table.insert({"k": [1], "v": [1]})
        self.store: Any = self.db._writer()
        object.__setattr__(self.store.options, "maintenance", True)
        _fill(self.store)


def test_a_write_at_the_memory_limit_waits_for_a_flush(tmp_path: Path) -> None:
    waiting = _Waiting(tmp_path / "s")
    thread, outcome = _wait_in_thread(waiting.table)
    assert waiting.store.pressure.wait(10)
    assert outcome == []
    waiting.db.flush()
    thread.join(10)
    assert outcome == [None]
    assert rows(waiting.table) == [(1, 1), (100, 1)]
    waiting.db.close()


def test_a_write_without_memory_fails_after_30_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names a remedy, and nothing was written."""
    waiting = _Waiting(tmp_path / "s")
    monkeypatch.setattr(store_module, "WAIT_FOR_ROOM_S", 0.02)
    with pytest.raises(StorageError, match="raise memory_limit"):
        waiting.table.insert({"k": [2], "v": [2]})
    assert rows(waiting.table) == [(1, 1)]
    waiting.db.close()


@pytest.mark.parametrize("end", ["poison", "close"])
def test_a_waiting_write_ends_when_the_store_fails_or_closes(tmp_path: Path, end: str) -> None:
    """A write that waits for memory ends at once if the store fails or closes."""
    waiting = _Waiting(tmp_path / "s")
    thread, outcome = _wait_in_thread(waiting.table)
    assert waiting.store.pressure.wait(10)
    if end == "poison":
        waiting.store.poison(OSError("the disk is gone"))
    else:
        waiting.db.close()
    thread.join(10)
    assert not thread.is_alive()
    (error,) = outcome
    assert isinstance(error, StorageError)
    assert ("the disk is gone" if end == "poison" else "is closed") in str(error)
    waiting.db.close()


def test_without_background_work_a_write_flushes_itself(tmp_path: Path) -> None:
    db = open_database(tmp_path / "s")
    table = key_value_table(db)
    table.insert({"k": [1], "v": [1]})
    _fill(db._writer())
    table.insert({"k": [2], "v": [2]})
    assert len(db._writer().root.table("t").tablets[0].rowsets) == 1
    assert rows(table) == [(1, 1), (2, 2)]
    db.close()


# --- garbage --------------------------------------------------------------------------------------------


def test_two_garbage_collections_at_once(tmp_path: Path) -> None:
    """Two threads collect garbage at once, and none raises an error."""
    db = open_database(tmp_path / "s")
    table = key_value_table(db)
    store = db._writer()
    listed, go_on = threading.Event(), threading.Event()

    class Listing(PosixFiles):
        def list_dir(self, path: str) -> list[str]:
            if path.endswith("leases"):
                listed.set()
                assert go_on.wait(10)
            return super().list_dir(path)

    table.insert({"k": [1], "v": [1]})
    db.flush()
    assert len(store.state.garbage) == 1
    object.__setattr__(store.env, "files", Listing())
    counts: list[int | BaseException] = []

    def collect() -> None:
        try:
            counts.append(store.collect_garbage())
        except BaseException as error:
            counts.append(error)

    threads = [threading.Thread(target=collect) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert listed.wait(10)
    go_on.set()
    for thread in threads:
        thread.join()
    assert sorted(map(str, counts)) == ["0", "1"]
    assert not store.state.garbage
    db.close()


def test_garbage_waits_for_the_roots_and_leases_that_need_it(tmp_path: Path) -> None:
    """An open scan keeps its files (P2). They are removed after the last scan ends."""
    db = open_database(tmp_path / "s")
    table = key_value_table(db)
    table.insert({"k": [1, 2], "v": [1, 2]})
    db.flush()
    store = db._writer()
    store.collect_garbage()
    scan = table.scan()
    db.drop_table("t", purge=True)
    names = set(store.state.garbage)
    assert any(name.endswith(".base") for name in names)
    store.collect_garbage()
    assert {name for name in store.state.garbage if name.startswith("data")} == {
        name for name in names if name.startswith("data")
    }
    assert scan.count() == 2
    del scan
    assert store.collect_garbage() >= 2
    assert not store.state.garbage and not list((tmp_path / "s" / "data").rglob("*.*"))
    assert store.collect_garbage() == 0
    db.close()


# --- opening --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "step",
    [
        "create_store",
        "newest_checkpoint",
        "remove_orphans",
        "open_root",
        "recover",
        "LogWriter",
        "HybridClock",
    ],
)
def test_a_failed_open_releases_the_lock_and_all_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A failed open releases everything, so this process can open the store again."""
    with open_database(tmp_path / "s") as db:
        key_value_table(db).insert({"k": [1], "v": [1]})

    def fails(*_: object, **__: object) -> None:
        raise StorageError("raised by the test")

    where = store_module.layout if step == "create_store" else store_module  # type: ignore[attr-defined]
    monkeypatch.setattr(where, step, fails)
    with pytest.raises(StorageError, match="raised by the test"):
        open_database(tmp_path / "s")
    monkeypatch.undo()
    with open_database(tmp_path / "s") as db:
        assert rows(db["t"]) == [(1, 1)]


def test_t1_timestamps_continue_after_those_of_log_and_catalogue(tmp_path: Path) -> None:
    """No timestamp is used twice, also if the clock was set back while the store was closed."""
    clock = ManualClock()
    with open_database(tmp_path / "s", clock=clock) as db:
        table = key_value_table(db)
        logged = table.insert({"k": [1], "v": [1]}).timestamp
    clock.set_now_us(clock.now_us() - 3_600_000_000)
    with open_database(tmp_path / "s", clock=clock) as db:
        assert db.now() == logged
        assert db["t"].insert({"k": [2], "v": [2]}).timestamp > logged
        db.flush()
        named = db._writer().state.timestamp_max
    assert list((tmp_path / "s" / "wal").glob("wal-*"))
    with open_database(tmp_path / "s", clock=clock) as db:
        assert db.now() >= named
        assert db["t"].insert({"k": [3], "v": [3]}).timestamp > named


def test_no_id_is_used_twice(tmp_path: Path) -> None:
    """No id is used twice, so a new file never has the name of a file that a scan still reads."""
    seen: list[int] = []
    for _ in range(3):
        with open_database(tmp_path / "s") as db:
            if not db.list_tables():
                key_value_table(db)
            store = db._writer()
            for k in range(2):
                db["t"].upsert({"k": [k], "v": [k]})
                db.flush()
            seen += [store.allocate("rowset"), store.allocate("rowset")]
            names = [path.name for path in (tmp_path / "s" / "data").rglob("*.base")]
            assert len(names) == len(set(names))
            assert not {str(number) for number in seen[-2:]} & {name.split("-")[0] for name in names}
    assert len(set(store.state.rowsets)) == len(store.state.rowsets)


def test_a_torn_tail_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The logger says how many bytes, which were never acknowledged, were cut off."""
    db = open_database(tmp_path / "s")
    key_value_table(db).insert({"k": [1], "v": [1]})
    shutil.copytree(tmp_path / "s", tmp_path / "killed", ignore=shutil.ignore_patterns("*.sock"))
    db.close()
    with open(tmp_path / "killed" / "wal" / "wal-000000001", "ab") as file:
        file.write(b"\x07" * 100)
    with open_database(tmp_path / "killed") as again:
        assert rows(again["t"]) == [(1, 1)]
    assert "100 bytes of batches that were never acknowledged" in caplog.text


def test_errors_of_a_forked_and_a_closed_store(tmp_path: Path) -> None:
    """A forked child gets an error with a remedy. Its `close` leaves lock and log to the parent."""
    db = open_database(tmp_path / "s")
    table = key_value_table(db)
    store = db._writer()
    store._pid += 1
    with pytest.raises(StorageError, match="forked child"):
        table.insert({"k": [1], "v": [1]})
    store.close()
    with pytest.raises(nyala.LockedError):
        open_database(tmp_path / "s")
    store._pid -= 1
    store._closed = False
    table.insert({"k": [1], "v": [1]})
    db.close()
    store.close()
    with pytest.raises(StorageError, match="is closed"):
        store.check_writable()
    open_database(tmp_path / "s").close()


# --- recovery -------------------------------------------------------------------------------------------


def test_an_open_has_flushed_rows_and_rows_of_the_log(tmp_path: Path) -> None:
    """`close` does not flush. Each row exists once after the open."""
    with open_database(tmp_path / "s") as db:
        table = key_value_table(db)
        table.insert({"k": [1, 2, 3], "v": [1, 2, 3]})
        db.flush()
        table.update({"k": [1], "v": [10]})
        table.delete([{"k": 2}])
        last = table.insert({"k": [4], "v": [4]}).timestamp
    with open_database(tmp_path / "s") as db:
        store, (tablet,) = db._writer(), db._writer().root.table("t").tablets
        assert rows(db["t"]) == [(1, 10), (3, 3), (4, 4)]
        assert [rowset.row_count for rowset in tablet.rowsets] == [3] and tablet.memory.row_count == 1
        assert db.now() == store.marks.applied == last
        assert store.memory_bytes > 1000, "replayed rows are counted"
        db.flush()
    with open_database(tmp_path / "s") as db:
        assert rows(db["t"]) == [(1, 10), (3, 3), (4, 4)]
        assert db._writer().root.memory_timestamp_min() is None, "nothing was left to replay"


def test_an_open_reads_idempotency_keys_from_the_log(tmp_path: Path) -> None:
    """A job that repeats its batch after the writer was killed writes it only once."""
    db = open_database(tmp_path / "s")
    key_value_table(db)
    (written,) = write(db._writer(), [Request("t", "insert", {"k": [1], "v": [1]})], idempotency_key="job")
    shutil.copytree(tmp_path / "s", tmp_path / "killed", ignore=shutil.ignore_patterns("*.sock"))
    db.close()
    with open_database(tmp_path / "killed") as again:
        assert again._writer().committed("job").timestamp == written.timestamp
        assert again._writer().state.committed_keys == {}, "the key is not in the catalogue yet"
        again.flush()
        assert again._writer().state.committed_keys["job"].timestamp == written.timestamp


def test_a_repeated_batch_returns_its_recorded_result(tmp_path: Path) -> None:
    """A key without a stored result returns no counts. An invalid stored text is corruption."""
    with open_database(tmp_path / "s") as db:
        key_value_table(db)
        store = db._writer()
        (written,) = write(store, [Request("t", "insert", {"k": [1], "v": [1]})], idempotency_key="job")
        assert find_committed(store, "job") == written and written.inserted == 1
        db.flush()
        assert find_committed(store, "job") == written
        assert json.loads(store.committed("job").result) == {
            "inserted": 1, "updated": 0, "deleted": 0, "ignored": 0, "failed": 0,
        }  # fmt: skip
        for key, text in (("old", "{}"), ("damaged", "[1]"), ("torn", '{"ins'), ("odd", '{"inserted":"x"}')):
            change = CatalogChange(committed_keys=[CommittedKey(key, written.timestamp, text)])
            with store.commit_lock:
                root = store.root
                store.transact(change, lambda version, root=root: Root(version, root.tables))
        assert find_committed(store, "old") == WriteResult(written.timestamp)
        for key in ("damaged", "torn", "odd"):
            with pytest.raises(CorruptionError, match="recorded under an idempotency key is invalid"):
                find_committed(store, key)


# --- durability -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["commit", "group", "os"])
def test_a_batch_is_visible_when_its_call_returns(tmp_path: Path, durability: str) -> None:
    """This is true in this process and in reader processes. Only `commit` has synced the batch
    then.
    """
    with open_database(tmp_path / "s", durability=durability) as db:
        table = key_value_table(db)
        store = db._writer()
        stamp = table.insert({"k": [1], "v": [1]}).timestamp
        assert store.marks.published == stamp and rows(table) == [(1, 1)]
        assert (store.log.synced.timestamp >= stamp) == (durability == "commit")
        with nyala.connect(tmp_path / "s", read_only=True) as reader:
            assert reader.now() == stamp and rows(reader["t"]) == [(1, 1)]
        db.flush()
        assert store.log.synced.timestamp >= stamp, (
            "W2: the catalogue names nothing that the log has not synced"
        )


@pytest.mark.parametrize("where", ["finish", "transact", "sync_if_due"])
def test_w3_after_a_failed_sync_the_store_takes_no_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """The disk may have lost rows on which later writes would depend."""
    db = open_database(tmp_path / "s", durability="group" if where == "sync_if_due" else "commit")
    table = key_value_table(db)
    store = db._writer()

    def lost(*_: object) -> None:
        raise StorageError("the sync failed", outcome="unknown")

    monkeypatch.setattr(store.log, "sync_if_due" if where == "sync_if_due" else "sync", lost)
    with pytest.raises(StorageError, match="the sync failed") as error:
        if where == "finish":
            table.insert({"k": [1], "v": [1]})
        elif where == "transact":
            db.create_table("u", {"k": "int64"}, "k")
        else:
            store.sync_if_due()
    assert error.value.outcome == "unknown"
    monkeypatch.undo()
    for change in (lambda: table.insert({"k": [2], "v": [2]}), lambda: db.drop_table("t"), db.flush):
        with pytest.raises(StorageError, match="takes no more writes"):
            change()
    assert db.list_tables() == ["t"], "reads work"
    db.close()
    open_database(tmp_path / "s").close()


def test_ctrl_c_in_a_sync_does_not_break_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next sync covers the batch."""
    with open_database(tmp_path / "s") as db:
        table = key_value_table(db)
        store = db._writer()

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(store.log, "sync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            table.insert({"k": [1], "v": [1]})
        monkeypatch.undo()
        assert rows(table) == [], "W1: applied, and not yet published"
        table.insert({"k": [2], "v": [2]})
        assert rows(table) == [(1, 1), (2, 2)]


def test_w1_only_synced_batches_are_published_to_other_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The position record names no batch that a power cut could remove. It also says whether all is
    durable, so that a lost end of the log does not look like a torn tail.
    """
    with open_database(tmp_path / "s") as db:
        table = key_value_table(db)
        store = db._writer()
        stamp = table.insert({"k": [1], "v": [1]}).timestamp

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(store.log, "sync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            table.insert({"k": [2], "v": [2]})
        monkeypatch.undo()
        store.log.write_pending()
        store.publish()
        record = read_position(store.env.files, layout.position_path(store.root_path))
        assert (
            record is not None and record.position == store.log.synced.position < store.log.written.position
        )
        assert (record.timestamp, record.synced) == (stamp, True)


def test_a_broken_store_removes_no_file(tmp_path: Path) -> None:
    """After a commit with unknown outcome, the catalogue may name the files of the failed work."""
    db = open_database(tmp_path / "s")
    store = db._writer()
    for name in ("a", "b"):
        (tmp_path / "s" / "data" / name).touch()
    store.discard_files(["data/a", "data/missing"])
    store.poison(OSError("the disk is gone"))
    store.discard_files(["data/b"])
    assert [path.name for path in (tmp_path / "s" / "data").iterdir()] == ["b"]
    db.close()


def test_close_releases_the_lock_although_its_sync_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = open_database(tmp_path / "s", durability="os")
    key_value_table(db).insert({"k": [1], "v": [1]})
    store = db._writer()

    def lost() -> None:
        raise StorageError("the sync failed", outcome="unknown")

    monkeypatch.setattr(store.log, "close", lost)
    with pytest.raises(StorageError, match="the sync failed"):
        db.close()
    db.close()
    with open_database(tmp_path / "s") as again:
        assert rows(again["t"]) == [(1, 1)]


# --- root, log and transactions -------------------------------------------------------------------------


def test_r7_the_root_of_a_view_has_all_published_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush and a batch happen between the two reads of a view."""
    db = open_database(tmp_path / "s")
    table = key_value_table(db)
    table.insert({"k": [1], "v": [1]})
    store = db._writer()
    old = store.root
    published = type(store.marks).published

    def late(self: Any) -> int:
        found = int(published.__get__(self))
        monkeypatch.undo()
        table.insert({"k": [2], "v": [2]})
        db.flush()
        return found

    monkeypatch.setattr(type(store.marks), "published", property(late))
    root, timestamp = store.view()
    assert root is not old and root is store.root and timestamp < store.marks.published
    db.close()


def test_r3_unneeded_segments_of_the_log_are_removed(tmp_path: Path) -> None:
    """Segments with rows that are only in memory stay."""
    with open_database(tmp_path / "s") as db:
        one, two = key_value_table(db, "one"), key_value_table(db, "two")
        log = db._writer().log

        def numbers() -> list[int]:
            return [segment.number for segment in log.segments()]

        one.insert({"k": [1], "v": [1]})
        log.roll()
        two.insert({"k": [1], "v": [1]})
        log.roll()
        one.insert({"k": [2], "v": [2]})
        assert numbers() == [1, 2, 3]
        one.flush()
        assert numbers() == [2, 3], "all rows of the first segment are flushed"
        assert db._writer().state.wal_start == 2 and "wal/wal-000000001" in db._writer().state.garbage
        db.drop_table("two")
        assert numbers() == [2, 3], "the table can be restored, so the log keeps its rows"
        db._writer().purge_dropped(None)
        assert numbers() == [4], "a purged table needs no log, and its purge is in a new segment"
        db._writer().collect_garbage()
        assert [path.name for path in (tmp_path / "s" / "wal").glob("wal-*")] == ["wal-000000004"]
        assert len(list((tmp_path / "s" / "checkpoints").iterdir())) == 1, (
            "K3: the checkpoint has the older changes"
        )
        one.insert({"k": [3], "v": [3]})
    with open_database(tmp_path / "s") as db:
        assert rows(db["one"]) == [(1, 1), (2, 2), (3, 3)] and db.list_tables() == ["one"]


def test_stats(tmp_path: Path) -> None:
    """The counters that a user needs when the disk or the memory is full."""
    with open_database(tmp_path / "s") as db:
        table = key_value_table(db)
        empty = db.stats()
        assert (empty.tables, empty.memory_bytes < 1000, empty.garbage_files) == (1, True, 0)
        table.insert({"k": list(range(1000)), "v": list(range(1000))})
        full = db.stats()
        assert full.memory_bytes > 16_000 and full.log_bytes > 16_000 and full.timestamp == db.now()
        db.flush()
        flushed = db.stats()
        assert flushed.memory_bytes < 1000 and flushed.log_bytes < 2000 and flushed.garbage_files == 1
        table.count(where="v > 3")
        table.count(where="v > 3")
        assert db.stats().cache_misses > 0 and db.stats().cache_hits > 0 and db.stats().cache_bytes > 0


def test_tables_are_created_renamed_and_dropped_durably(tmp_path: Path) -> None:
    """Each change is visible at once and after a reopen, and has its own timestamp."""
    with open_database(tmp_path / "s") as db:
        first = db.now()
        key_value_table(db, "a").insert({"k": [1], "v": [1]})
        assert db.now() > first
        before = db.now()
        db.rename_table("a", "b")
        assert db.now() > before and db.list_tables() == ["b"] and rows(db["b"]) == [(1, 1)]
        for act, kind in (
            (lambda: db.rename_table("nothing", "c"), nyala.TableNotFoundError),
            (lambda: key_value_table(db, "b"), nyala.TableExistsError),
            (lambda: db.rename_table("b", "b"), nyala.TableExistsError),
        ):
            with pytest.raises(kind):
                act()
        key_value_table(db, "c")
        db.drop_table("c")
        db.drop_table("c", missing_ok=True)
        version = db._writer().state.version
    with open_database(tmp_path / "s") as db:
        assert db.list_tables() == ["b"] and rows(db["b"]) == [(1, 1)]
        assert db._writer().state.version == version
