"""Background work: which tablets it flushes; how it runs, pauses and stops."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import key_value_table, logged_rows, open_database, rows

from nyala.api.database import Database
from nyala.errors import HistoryExpiredError, StorageError
from nyala.mvcc.timestamp import from_physical
from nyala.tablet import maintenance
from nyala.tablet.maintenance import (
    FLUSH_AGE_S,
    Maintenance,
    Pressure,
    TabletMemory,
    choose_flush,
    pressure_of,
)
from nyala.tablet.store import Store
from nyala.testing.clock import ManualClock

MB = 1 << 20
NOW_US = 1_767_225_600_000_000
FRESH = from_physical(NOW_US - 1_000_000)
OLD = from_physical(NOW_US - int(FLUSH_AGE_S * 1e6) - 1)


def pressure(
    tablets: list[tuple[int, int, int | None]], *, limit: int = 1000 * MB, log: int = 0, log_limit: int = 64 * MB
) -> Pressure:  # fmt: skip
    """Return the memory and log pressure of a store.

    tablets: (id, bytes, oldest timestamp) of each tablet.
    """
    return Pressure(
        sum(size for _, size, _ in tablets), limit, log, log_limit, NOW_US,
        [TabletMemory(number, size, oldest) for number, size, oldest in tablets],
    )  # fmt: skip


@given(
    st.lists(
        st.tuples(st.integers(0, 300 * MB), st.sampled_from([None, FRESH, OLD])), max_size=12, unique=False
    ),
    st.integers(16 * MB, 1000 * MB),
    st.integers(0, 100 * MB),
)
def test_the_chosen_tablets_free_enough_memory(
    tablets: list[tuple[int, int | None]], limit: int, log: int
) -> None:  # fmt: skip
    """After a flush for memory, at most a quarter of the limit is used."""
    given_ = pressure([(n, size, oldest) for n, (size, oldest) in enumerate(tablets)], limit=limit, log=log)
    chosen = choose_flush(given_)
    held = {tablet.tablet_id for tablet in given_.tablets if tablet.timestamp_min is not None}
    assert chosen <= held
    stays = sum(tablet.bytes for tablet in given_.tablets if tablet.tablet_id not in chosen)
    if given_.memory_bytes > limit // 2:
        assert stays <= limit // 4 or chosen == held
    if log > given_.log_limit_bytes:
        assert chosen == held


@pytest.mark.parametrize(
    ("kept_since", "chosen"),
    [(None, {1, 2}), (FRESH + 10, {1, 2}), (FRESH + 1, {1}), (FRESH, set()), (OLD, set())],
    ids=["no merge", "of later", "of a moment between", "of the same moment", "of earlier"],
)
def test_no_flush_for_a_log_that_a_merge_keeps(kept_since: int | None, chosen: set[int]) -> None:
    """Flushing newer rows than the merge's changes would free no segment."""
    given_ = pressure([(1, 1, FRESH), (2, 1, FRESH + 1)], log=70 * MB)
    assert choose_flush(dataclasses.replace(given_, kept_since=kept_since)) == chosen


# --- one round, by hand ---------------------------------------------------------------------------------


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_US)


@pytest.fixture
def db(tmp_path: Path, clock: ManualClock) -> Iterator[Database]:
    with open_database(tmp_path / "s", clock=clock) as db:
        yield db


def once(db: Database) -> Maintenance:
    db.maintenance.run_once(db._writer())
    return db.maintenance


def test_changes_that_a_merge_keeps_do_not_count_as_flushable(db: Database) -> None:
    """They count for the size of the log, not for the memory that a flush frees (R3)."""
    table = key_value_table(db)
    table.insert({"k": [1], "v": [1]})
    db.flush()
    store = db._writer()
    stamp = table.update({"k": [1], "v": [2]}).timestamp
    free = pressure_of(store)
    assert free.tablets[0].timestamp_min == stamp and free.kept_since is None
    reservation = store.reservations.take([store.root.table("t").tablets[0].rowsets[0].id], holds_deltas=True)
    assert reservation is not None
    kept = pressure_of(store)
    assert kept.tablets[0].timestamp_min is None and kept.kept_since == stamp
    assert kept.memory_bytes < free.memory_bytes
    store.reservations.release(reservation)
    assert pressure_of(store) == free


def test_a_merge_is_revoked_when_writers_need_memory(tmp_path: Path, clock: ManualClock) -> None:
    """The merge is repeated later."""
    with open_database(tmp_path / "full", clock=clock, memory_limit_bytes=1 << 20) as db:
        table = key_value_table(db)
        table.insert({"k": list(range(20_000)), "v": [0] * 20_000})
        db.flush()
        store = db._writer()
        (rowset,) = store.root.table("t").tablets[0].rowsets
        reservation = store.reservations.take([rowset.id], holds_deltas=True)
        assert reservation is not None
        table.update({"k": list(range(10)), "v": [1] * 10})
        once(db)
        assert not reservation.revoked.is_set(), "memory is not full, so the merge continues"
        for value in range(10):
            if store.memory_is_full():
                break
            table.update({"k": list(range(20_000)), "v": [value] * 20_000})
        assert store.memory_is_full()
        once(db)
        assert reservation.revoked.is_set() and not store.memory_is_full()
        assert table.count() == 20_000


def test_old_rows_are_flushed(db: Database, clock: ManualClock) -> None:
    """Rows are flushed when they are old, so that an idle store opens without a replay."""
    table = key_value_table(db)
    table.insert({"k": list(range(100_000)), "v": list(range(100_000))})
    assert once(db).counters.flushes == 0
    clock.advance(FLUSH_AGE_S + 1)
    counters = once(db).counters
    assert (counters.flushes, counters.rows_flushed, counters.running) == (1, 100_000, "")
    assert logged_rows(db) == 0 and table.stats().memory_bytes == 0
    once(db)
    assert not db._writer().state.garbage


def test_garbage_is_removed_also_after_a_failed_flush(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed flush, garbage is removed. On a full disk this makes space for the next flush."""
    table = key_value_table(db)
    table.insert({"k": [1], "v": [1]})
    db.flush()
    assert db._writer().state.garbage
    table.insert({"k": [2], "v": [2]})

    def full(*_: object, **__: object) -> None:
        raise StorageError("no space left")

    monkeypatch.setattr(maintenance, "choose_flush", lambda _: {1})
    monkeypatch.setattr("nyala.tablet.flush.lifecycle.flush", full)
    with pytest.raises(StorageError, match="no space"):
        once(db)
    assert not db._writer().state.garbage
    assert db.maintenance.counters.files_collected >= 1


# --- scans that nobody reads ----------------------------------------------------------------------------


def test_a_scan_that_is_unread_for_15_minutes_releases_its_files(db: Database, clock: ManualClock) -> None:
    """A later read raises an error with a remedy."""
    table = key_value_table(db)
    table.insert({"k": [1], "v": [1]})
    db.flush()
    forgotten, read = table.scan(), table.scan()
    table.update({"k": [1], "v": [2]})
    clock.advance(14 * 60)
    assert read.count() == 1
    once(db)
    clock.advance(61)
    once(db)
    with pytest.raises(HistoryExpiredError, match=f"15 minutes.*at={forgotten.timestamp}"):
        forgotten.to_arrow()
    for method in (forgotten.count, forgotten.explain, forgotten.tokens, forgotten.to_reader().read_all):
        with pytest.raises(HistoryExpiredError):
            method()
    assert rows(table, at=forgotten.timestamp) == [(1, 1)]
    assert read.to_arrow().to_pydict() == {"k": [1], "v": [1]}
    db.drop_table("t", purge=True)
    once(db)
    assert list(Path(db.path, "data").rglob("*.base"))
    clock.advance(15 * 60 + 1)
    once(db)
    once(db)
    assert not list(Path(db.path, "data").rglob("*.base"))
    with pytest.raises(HistoryExpiredError):
        read.count()


def test_a_stream_with_a_slow_reader_is_not_released(db: Database, clock: ManualClock) -> None:
    """An hour passes between two batches."""
    table = key_value_table(db)
    for first in range(0, 40, 10):
        table.insert({"k": list(range(first, first + 10)), "v": [0] * 10})
        db.flush()
    reader = table.scan().to_reader()
    found = reader.read_next_batch().num_rows
    clock.advance(3600)
    once(db)
    assert found + sum(batch.num_rows for batch in reader) == 40


# --- the threads ----------------------------------------------------------------------------------------


class Background:
    """The background threads. The test runs and observes each round; the clock stands still.

    One thread at a time: `run_once` of nyala-flush, or `compact_once` of nyala-compaction.
    """

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch, which: str = "run_once") -> None:
        self.maintenance = Maintenance(store)
        self.wake = store.pressure if which == "run_once" else store.changed
        self.begun, self.go_on = threading.Semaphore(0), threading.Semaphore(0)
        self.rounds: list[Callable[[], None]] = []
        other = "compact_once" if which == "run_once" else "run_once"
        monkeypatch.setattr(self.maintenance, which, self._round)
        monkeypatch.setattr(self.maintenance, other, lambda store: None)

    def _round(self, store: Store) -> None:
        self.begun.release()
        assert self.go_on.acquire(timeout=20)
        if self.rounds:
            self.rounds.pop(0)()

    def stop(self) -> None:
        for _ in range(10):
            self.go_on.release()
        self.maintenance.stop()
        assert not any(thread.is_alive() for thread in self.maintenance._threads)


@pytest.fixture
def background(db: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Background]:
    background = Background(db._writer(), monkeypatch)
    background.maintenance.start()
    yield background
    background.stop()


@pytest.fixture(params=["run_once", "compact_once"], ids=["nyala-flush", "nyala-compaction"])
def either(
    db: Database, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Background]:
    background = Background(db._writer(), monkeypatch, request.param)
    background.maintenance.start()
    yield background
    background.stop()


def wait_until(happened: Callable[[], bool]) -> None:
    """Wait for another thread. The test's own timeout is the limit."""
    event = threading.Event()
    for _ in range(20_000):
        if happened():
            return
        event.wait(0.001)
    raise AssertionError("it never happened")


def test_a_flush_does_not_wait_for_a_compaction(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    background = Background(db._writer(), monkeypatch, "compact_once")
    flushed = threading.Event()
    monkeypatch.setattr(background.maintenance, "run_once", lambda store: flushed.set())
    background.maintenance.start()
    background.wake.set()
    assert background.begun.acquire(timeout=20)
    db._writer().pressure.set()
    assert flushed.wait(20)
    background.stop()


@pytest.mark.parametrize(
    "error", [StorageError("no space"), RuntimeError("a mistake of ours"), MemoryError()]
)
def test_the_threads_continue_after_an_error(
    either: Background, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:

    def fail() -> None:
        raise error

    either.rounds = [fail, fail]
    for count in (1, 2):
        either.wake.set()
        assert either.begun.acquire(timeout=20)
        either.go_on.release()
        wait_until(lambda count=count: either.maintenance.counters.failures == count)  # type: ignore[misc]
    either.wake.set()
    assert either.begun.acquire(timeout=20)
    either.go_on.release()
    assert either.maintenance.status().last_error == str(error)
    warnings = [record for record in caplog.records if "background work failed" in record.message]
    assert len(warnings) == 1, "a repeated error is logged once"


def test_pause_returns_when_running_work_has_ended(either: Background) -> None:
    either.wake.set()
    assert either.begun.acquire(timeout=20)
    paused = threading.Event()

    def pause() -> None:
        either.maintenance.pause()
        paused.set()

    thread = threading.Thread(target=pause)
    thread.start()
    assert not paused.wait(0.02)
    either.go_on.release()
    thread.join(20)
    assert paused.is_set()


def test_the_threads_end_with_their_store(db: Database, background: Background, clock: ManualClock) -> None:
    assert sorted(thread.name for thread in background.maintenance._threads) == [
        "nyala-compaction",
        "nyala-flush",
    ]
    db._writer().close()
    clock.advance(1)
    wait_until(lambda: not any(thread.is_alive() for thread in background.maintenance._threads))
    background.maintenance.stop()


def test_status_of_a_new_store(db: Database) -> None:
    status = db.maintenance.status()
    assert (status.compaction, status.waiting, status.recent, status.paused) == (
        None,
        "",
        (),
        False,
    )


def test_writes_cause_flushes_and_compactions(tmp_path: Path) -> None:
    """With small limits the background flushes and compacts without a call of the user."""
    options: dict[str, Any] = {"log_limit_bytes": 20_000, "rowset_target_bytes": 32 << 10}
    with open_database(tmp_path / "s", maintenance=True, **options) as db:
        table = key_value_table(db)
        for first in range(0, 5000, 100):
            keys = list(range(first % 700, first % 700 + 100))
            table.upsert({"k": keys, "v": [first] * 100})
        wait_until(lambda: db.maintenance.status().flushes > 0)
        wait_until(lambda: table.stats().rowsets > 0)
        wait_until(lambda: len(db.maintenance.status().recent) > 0)
        assert table.count() == 700
        assert db.maintenance.status().last_error == ""


@pytest.mark.parametrize("ahead", [False, True])
def test_a_slowly_read_scan_is_not_released(db: Database, clock: ManualClock, ahead: bool) -> None:
    """A scan that is read for an hour is not released, as each batch is read within 15 minutes."""
    table = key_value_table(db)
    for first in range(0, 50, 10):
        table.insert({"k": list(range(first, first + 10)), "v": [0] * 10})
        db.flush()
    scan = table.scan()
    found = []
    for batch in scan._engine().batches_ahead(lambda batch: batch) if ahead else scan._engine().batches():
        clock.advance(14 * 60)
        once(db)
        found.append(batch.num_rows)
    assert found == [10] * 5
    assert scan.count() == 50
    clock.advance(15 * 60 + 1)
    once(db)
    with pytest.raises(HistoryExpiredError):
        scan.count()
