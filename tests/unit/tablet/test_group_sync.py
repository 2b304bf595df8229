"""Durability "group": acknowledged batches are synced within about 100 milliseconds."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.support import key_value_table, open_database, rows

from nyala.api.database import Database
from nyala.env import PosixFiles, system_files
from nyala.errors import StorageError
from nyala.tablet.group_sync import POLL_S
from nyala.testing.clock import ManualClock
from nyala.testing.faulty_files import FaultyFiles
from nyala.wal.writer import GROUP_SYNC_INTERVAL_S


def unsynced(db: Database) -> bool:
    log = db._writer().log
    return log.synced.offset < log.appended.offset


def until_synced(db: Database) -> None:
    event = threading.Event()
    for _ in range(20_000):
        if not unsynced(db):
            return
        event.wait(0.001)
    raise AssertionError("never synced")


@pytest.mark.parametrize("maintenance", [False, True])
def test_a_batch_is_synced_within_100_milliseconds(tmp_path: Path, maintenance: bool) -> None:
    """This holds with and without background maintenance."""
    clock = ManualClock()
    with open_database(tmp_path / "s", clock=clock, durability="group", maintenance=maintenance) as db:
        table = key_value_table(db)
        for k in range(3):
            table.insert({"k": [k], "v": [k]})
            assert unsynced(db) and rows(table)[-1] == (
                k,
                k,
            )  # the call returned at once, and the row is visible
            clock.advance(0.1)
            until_synced(db)


def test_a_sync_is_due_after_50_milliseconds(tmp_path: Path) -> None:
    """The rest of the 100 milliseconds is for the sync itself."""
    assert GROUP_SYNC_INTERVAL_S + POLL_S <= 0.075
    clock = ManualClock()
    with open_database(tmp_path / "s", clock=clock, durability="group") as db:
        assert db._open.group_sync is not None
        db._open.group_sync.stop()  # the test calls `sync_if_due` itself
        store, table = db._writer(), key_value_table(db)
        assert store.sync_if_due() is None
        table.insert({"k": [1], "v": [1]})
        clock.advance(GROUP_SYNC_INTERVAL_S * 0.9)
        table.insert({"k": [2], "v": [2]})
        left_s = store.sync_if_due()
        assert left_s == pytest.approx(GROUP_SYNC_INTERVAL_S * 0.1) and unsynced(db)
        clock.advance(left_s or 0)
        store.sync_if_due()
        assert not unsynced(db)  # the oldest batch was due, and the sync covers the later batch too
        assert store.sync_if_due() is None


@pytest.mark.parametrize("durability", ["commit", "os"])
def test_other_durabilities_have_no_sync_thread(tmp_path: Path, durability: str) -> None:
    clock = ManualClock()
    with open_database(tmp_path / "s", clock=clock, durability=durability) as db:
        assert db._open.group_sync is None
        key_value_table(db).insert({"k": [1], "v": [1]})
        clock.advance(60)
        assert db._writer().sync_if_due() is None
        assert unsynced(db) == (durability == "os")


class _SlowFlush(PosixFiles):
    """Files in which creating a data file waits until the test continues it."""

    def __init__(self) -> None:
        super().__init__()
        self.writing, self.go_on = threading.Event(), threading.Event()

    def make_dirs(self, path: str) -> None:
        if "/data/" in path:
            self.writing.set()
            assert self.go_on.wait(20)
        super().make_dirs(path)


def test_a_long_flush_does_not_delay_syncs(tmp_path: Path) -> None:
    clock, files = ManualClock(), _SlowFlush()
    with open_database(tmp_path / "s", clock=clock, files=files, durability="group", maintenance=True,
                       log_limit_bytes=1200) as db:  # fmt: skip
        table = key_value_table(db)
        table.insert({"k": [1], "v": [1]})
        assert files.writing.wait(20)
        table.insert({"k": [2], "v": [2]})
        assert unsynced(db)
        clock.advance(0.1)
        until_synced(db)
        assert table.stats().rowsets == 0
        files.go_on.set()
        assert rows(table) == [(1, 1), (2, 2)]


def test_after_a_failed_group_sync_the_next_write_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No call waits for the failed sync, so the next write raises an error.

    After a reopen the store is intact.
    """
    clock = ManualClock()
    files = FaultyFiles(system_files(), only=lambda op: op.kind == "sync" and "/wal/" in op.path)
    db = open_database(tmp_path / "s", clock=clock, files=files, durability="group")
    table = key_value_table(db)
    table.insert({"k": [1], "v": [1]})
    files.fail_at = len(files.operations) + 1
    clock.advance(0.1)
    assert db._open.group_sync is not None
    db._open.group_sync._thread.join(20)
    with pytest.raises(StorageError, match="takes no more writes"):
        table.insert({"k": [2], "v": [2]})
    assert "no more" in caplog.text
    db.close()
    again = open_database(tmp_path / "s")
    assert rows(again["t"]) in ([], [(1, 1)])
    again.close()


def test_close_syncs_the_last_batches(tmp_path: Path) -> None:
    db = open_database(tmp_path / "s", clock=ManualClock(), durability="group")
    key_value_table(db).insert({"k": [1], "v": [1]})
    log = db._writer().log
    db.close()
    assert log.synced.offset >= log.appended.offset
    assert db._open.group_sync is not None and not db._open.group_sync._thread.is_alive()
