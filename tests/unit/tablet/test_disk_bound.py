"""The disk use of a store while rows are overwritten: docs/how-to/maintenance.md, "Disk"."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sampled import in_turns
from tests.support import compact_deltas, folder_in_memory, key_value_table, open_database, rows

from nyala.api.database import Database
from nyala.delta.run import DeltaRun, build_run, without_history
from nyala.errors import HistoryExpiredError, StorageError
from nyala.tablet import maintenance, store
from nyala.tablet.maintenance import GIVES_WAY_S
from nyala.tablet.store import LOG_FULL_SHARE, LOG_FULL_SHARE_MERGING
from nyala.testing.clock import ManualClock

ROWS = 5000
LOG_LIMIT = 1 << 18
BATCH_BYTES = 150_000  # the size of `overwritten` in the log


@pytest.fixture
def folder() -> Iterator[Path]:
    with folder_in_memory() as folder:
        yield folder


def overwritten(number: int) -> pa.Table:
    """Return all rows of the table, with values that cannot be compressed."""
    random = np.random.default_rng(number)
    return pa.table(
        {"k": np.arange(ROWS), "v": random.integers(0, 1 << 62, ROWS), "w": random.integers(0, 1 << 62, ROWS)}
    )


def bytes_on_disk(db: Database) -> int:
    """Return the size of data files and log."""
    return sum(
        path.stat().st_size
        for part in ("data", "wal")
        for path in Path(db.path, part).rglob("*")
        if path.is_file()
    )


def upsert(table: Any, batch: pa.Table) -> None:
    table.upsert(batch)


def delete_and_insert(table: Any, batch: pa.Table) -> None:
    table.delete(where="k >= 0")
    table.insert(batch)


def update_two_columns_apart(table: Any, batch: pa.Table) -> None:
    table.upsert(batch.slice(0, 1) if table.count() else batch)
    table.update(batch.select(["k", "v"]))
    table.update(batch.select(["k", "w"]))


@pytest.mark.parametrize(
    ("overwrite", "how"),
    in_turns(
        [upsert, delete_and_insert, update_two_columns_apart],
        [(0, False), (0, True), ("1s", True), ("1s", False)],
    ),
)
def test_overwrites_need_space_for_live_rows_and_the_log(
    folder: Path, overwrite: Callable[[Any, pa.Table], None], how: tuple[Any, bool]
) -> None:
    """The disk use stays within a bound, with several histories, with and without background work."""
    history, background = how
    clock = ManualClock()
    with open_database(folder / "s", clock=clock, log_limit_bytes=LOG_LIMIT) as db:
        idle = key_value_table(db, "idle")
        idle.insert({"k": [1], "v": [1]})
        table = db.create_table("t", overwritten(0).schema, primary_key="k", history=history)
        sizes = []
        for number in range(30):
            overwrite(table, overwritten(number))
            clock.advance(2)
            if background:
                db.maintenance.run_once(db._writer())
                db.maintenance.compact_once(db._writer())
            sizes.append(bytes_on_disk(db))
        # Without background work, each flush leaves a file with the last version of each row.
        live = ROWS * 24
        flushes = 0 if background else 30 * 2 * BATCH_BYTES // (LOG_FULL_SHARE * LOG_LIMIT)
        assert max(sizes) <= (3 + flushes) * live + LOG_FULL_SHARE * LOG_LIMIT + 2 * BATCH_BYTES
        table.vacuum()
        db.maintenance.compact_once(db._writer())
        assert rows(idle) == [(1, 1)]
        assert table.scan(order_by_key=True).to_arrow().columns == overwritten(29).columns


def test_vacuum_shortens_the_log(folder: Path) -> None:
    """Old versions of rows in the log are expired too."""
    with open_database(folder / "s") as db:
        idle = key_value_table(db, "idle")
        idle.insert({"k": [1], "v": [1]})
        table = db.create_table("t", overwritten(0).schema, primary_key="k", history=0)
        for number in range(5):
            table.upsert(overwritten(number))
        before = bytes_on_disk(db)
        table.vacuum(dry_run=True)
        assert bytes_on_disk(db) == before > 4 * BATCH_BYTES
        table.vacuum()
        assert bytes_on_disk(db) < ROWS * 24 * 1.2
        assert db._writer().log.size_bytes < 10_000, "the log has only changes of the catalogue"


def test_redo_keeps_only_versions_within_the_history(folder: Path) -> None:
    """Of ten updates of a row, one record is left when the first nine have expired."""
    clock = ManualClock()
    with open_database(folder / "s", clock=clock) as db:
        table = db.create_table("t", {"k": "int64", "v": "int64"}, primary_key="k", history="60s")
        table.insert({"k": [1, 2], "v": [0, 0]})
        table.flush()
        old = [table.update({"k": [1], "v": [value]}).timestamp for value in range(1, 11)]
        clock.advance(100)
        new = [table.update({"k": [1], "v": [value]}).timestamp for value in range(11, 14)]
        table.flush()
        (rowset,) = db._writer().root.table("t").tablets[0].rowsets
        (redo,) = rowset.redo
        assert redo.record_count == 4  # the last record before the mark, and three later ones
        assert [rows(table, at=at)[0] for at in new] == [(1, 11), (1, 12), (1, 13)]
        assert rows(table, at=new[0] - 1) == [(1, 10), (2, 0)]
        with pytest.raises(HistoryExpiredError):
            table.scan(at=old[0])


def test_minor_compactions_keep_only_versions_within_the_history(folder: Path) -> None:
    clock = ManualClock()
    with open_database(folder / "s", clock=clock) as db:
        table = db.create_table("t", {"k": "int64", "v": "int64"}, primary_key="k", history="60s")
        table.insert({"k": range(1000), "v": [0] * 1000})
        table.flush()
        for value in range(1, 6):
            table.update({"k": [1], "v": [value]})
            table.flush()
        clock.advance(100)
        store_ = db._writer()
        compact_deltas(store_)
        (rowset,) = store_.root.table("t").tablets[0].rowsets
        assert sum(file.record_count for file in rowset.redo) == 1
        assert table.get({"k": 1}) == {"k": 1, "v": 5}


moments = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 20), st.integers(0, 99)), max_size=30)


@given(moments, st.integers(0, 22), st.sampled_from(["redo", "undo"]))
def test_readable_moments_stay_the_same(records: list[tuple[int, int, int]], cut: int, kind: Any) -> None:
    unique = {(row, time): value for row, time, value in records}
    vectors = [np.array([key[n] for key in unique], np.int64) for n in range(2)]
    run = build_run(kind, vectors[0], vectors[1], pa.array(list(unique.values()), pa.int64()))
    kept = without_history({3: run, 4: run}, cut)
    assert not kept or kept[3].rowids is kept[4].rowids
    short = kept.get(3, DeltaRun(kind, run.rowids[:0], run.timestamps[:0], run.values[:0]))
    short.check()
    for moment in range(cut, 23):
        before, after = run.resolve(moment), short.resolve(moment)
        assert before[0].tolist() == after[0].tolist() and before[1].equals(after[1])
    if kind == "redo" and cut >= 20:
        assert len(short) == len({row for row, _ in unique}), "one version of each row is left"


def test_a_snapshot_does_not_keep_the_log(folder: Path) -> None:
    """A snapshot does not keep segments of the log, because it has their rows in memory."""
    with open_database(folder / "s", log_limit_bytes=LOG_LIMIT) as db:
        table = db.create_table("t", overwritten(0).schema, primary_key="k")
        table.insert(overwritten(0))
        with db.snapshot() as past:
            for number in range(1, 6):
                table.upsert(overwritten(number))
                db.flush()
                db._writer().collect_garbage()
            assert sum(path.stat().st_size for path in Path(db.path, "wal").glob("wal-*")) < 10_000
            assert past["t"].scan(order_by_key=True).to_arrow().columns == overwritten(0).columns


# --- writers wait for the log -----------------------------------------------------------------------------


def test_writers_wait_until_the_log_is_shorter(folder: Path) -> None:
    with open_database(folder / "s", maintenance=True, log_limit_bytes=LOG_LIMIT) as db:
        table = db.create_table("t", overwritten(0).schema, primary_key="k", history=0)
        log = db._writer().log
        largest = 0
        for number in range(20):
            table.upsert(overwritten(number))
            largest = max(largest, log.size_bytes)
        assert largest <= LOG_FULL_SHARE_MERGING * LOG_LIMIT + BATCH_BYTES
        assert table.count() == ROWS


def test_a_write_fails_if_no_flush_shortens_the_log(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But not while background work is paused."""

    def broken(*_: object, **__: object) -> None:
        raise StorageError("no space left")

    monkeypatch.setattr("nyala.tablet.flush.lifecycle.flush", broken)
    monkeypatch.setattr(store, "WAIT_FOR_ROOM_S", 0.05)
    with open_database(folder / "s", maintenance=True, log_limit_bytes=1000) as db:
        table = db.create_table("t", {"k": "int64", "v": "int64"}, primary_key="k")
        table.insert({"k": range(1000), "v": [0] * 1000})
        with pytest.raises(StorageError, match=r"MB of the log wait for a flush.*status\(\)"):
            table.insert({"k": [5000], "v": [0]})
        db.maintenance.pause()
        table.insert({"k": [5001], "v": [0]})
        assert table.count() == 1001


def test_pausing_wakes_a_writer_that_waits_for_the_log(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance.Maintenance, "run_once", lambda self, store: None)
    with open_database(folder / "s", maintenance=True, log_limit_bytes=1000) as db:
        table = db.create_table("t", {"k": "int64", "v": "int64"}, primary_key="k")
        table.insert({"k": range(1000), "v": [0] * 1000})
        writer = threading.Thread(target=table.insert, args=({"k": [5000], "v": [0]},))
        writer.start()
        db.maintenance.pause()
        writer.join(20)
        assert not writer.is_alive() and table.count() == 1001


def test_a_merge_that_keeps_a_full_log_is_revoked(folder: Path) -> None:
    """If a merge keeps a full log, it is revoked after some seconds."""
    clock = ManualClock()
    with open_database(folder / "s", clock=clock, log_limit_bytes=LOG_LIMIT) as db:
        table = db.create_table("t", overwritten(0).schema, primary_key="k")
        table.insert(overwritten(0))
        table.flush()
        store_ = db._writer()
        (rowset,) = store_.root.table("t").tablets[0].rowsets
        reservation = store_.reservations.take([rowset.id], holds_deltas=True)
        assert reservation is not None
        while not store_.log_is_full():
            table.upsert(overwritten(1))
        db.maintenance.run_once(store_)
        clock.advance(GIVES_WAY_S - 1)
        db.maintenance.run_once(store_)
        assert not reservation.revoked.is_set()
        clock.advance(1)
        db.maintenance.run_once(store_)
        assert reservation.revoked.is_set() and not store_.log_is_full()
