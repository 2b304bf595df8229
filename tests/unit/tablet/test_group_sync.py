"""The thread that syncs for `durability="group"`."""

from __future__ import annotations

import time
from pathlib import Path

from tests.support import key_value_table, open_database


def test_what_was_acknowledged_is_synced_though_nothing_else_happens(tmp_path: Path) -> None:
    """Without background maintenance and without another write, a power cut a moment later loses nothing."""
    db = open_database(tmp_path / "s", durability="group", maintenance=False)
    table = key_value_table(db)
    written = table.insert({"k": [1], "v": [1]}).timestamp
    log = db._writer().log
    deadline_s = time.monotonic() + 30  # a bound for a stuck thread, not a measurement
    while log.synced_timestamp < written:
        assert time.monotonic() < deadline_s
        time.sleep(0.005)
    db.close()


def test_a_flush_does_not_stand_before_a_sync(tmp_path: Path) -> None:
    """The promise holds while a flush keeps the background busy: it holds the flush lock only."""
    db = open_database(tmp_path / "s", durability="group", maintenance=False)
    table = key_value_table(db)
    with db._writer().flush_lock:
        written = table.insert({"k": [1], "v": [1]}).timestamp
        deadline_s = time.monotonic() + 30
        while db._writer().log.synced_timestamp < written:
            assert time.monotonic() < deadline_s
            time.sleep(0.005)
    db.close()


def test_it_ends_with_the_store(tmp_path: Path) -> None:
    """No thread stays behind after close."""
    db = open_database(tmp_path / "s", durability="group")
    assert db._group_sync is not None
    thread = db._group_sync._thread
    db.close()
    assert not thread.is_alive()
