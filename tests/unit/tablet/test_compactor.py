"""Compactions in the background: their results, delays, status, and the process that runs them."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.support import key_value_table, open_database, rows

import nyala
from nyala.api.database import Database
from nyala.env import system_files
from nyala.errors import StorageError
from nyala.mvcc.timestamp import from_physical
from nyala.tablet import maintenance
from nyala.tablet.compaction import background as compactor
from nyala.tablet.compaction import lifecycle as compaction
from nyala.tablet.compaction.background import DELAY_S, Compactor, is_quiet
from nyala.tablet.compaction.plans import MajorPlan, MergePlan
from nyala.testing.clock import ManualClock
from nyala.testing.faulty_files import FaultyFiles

TARGET = 32 << 10


class Disk(FaultyFiles):
    """A disk whose free space the test sets."""

    free = 1 << 40

    def free_bytes(self, path: str) -> int:
        return self.free


@pytest.fixture
def disk() -> Disk:
    return Disk(system_files(), only=lambda op: "/data/" in op.path)


@pytest.fixture
def db(folder: Path, clock: ManualClock, disk: Disk) -> Iterator[Database]:
    with open_database(folder / "s", clock=clock, files=disk, rowset_target_bytes=TARGET) as db:
        yield db


def overlapping(db: Database, name: str = "t", count: int = 5) -> Any:
    """Create a table of overlapping rowsets, which the background would merge."""
    table = key_value_table(db, name)
    for first in range(count):
        keys = list(range(first, 100 * count, count))
        table.insert({"k": keys, "v": [first] * len(keys)})
        db.flush()
    return table


def rowsets(db: Database, name: str = "t") -> tuple[Any, ...]:
    return db._writer().root.table(name).tablets[0].rowsets


def to_the_end(db: Database) -> Compactor:
    compactor, store = db.maintenance.compactor, db._writer()
    for _ in range(100):
        if not compactor.run_once(store):
            return compactor
    raise AssertionError("the work does not come to an end")


# --- plans and their results --------------------------------------------------------------------------------


def test_it_compacts_until_no_plan_is_left_and_counts_the_results(db: Database) -> None:
    """The background counts the compactions of each kind, and the bytes of removed and written files."""
    table = overlapping(db)
    before = rows(table)
    store, made = db._writer(), db.maintenance.compactor
    found = made.next(store)
    assert found is not None and isinstance(found[2], MergePlan)
    assert to_the_end(db) is made
    status = db.maintenance.status()
    assert len(rowsets(db)) == 1 and rows(table) == before
    assert status.merging_compactions == len(status.recent) >= 1
    last = status.recent[-1]
    assert (last.operation, last.table) == ("merging compaction", "t")
    assert sum(work.bytes_before for work in status.recent) == status.bytes_compacted > 0
    assert sum(work.bytes_after for work in status.recent) == status.bytes_written
    assert status.compaction is None and status.waiting == ""
    for value in range(12):
        table.update({"k": [value], "v": [-1]})
        db.flush()
        to_the_end(db)
    done, status = status, db.maintenance.status()
    # The column is most of a row, so the plan is a rewrite of the rowset (REWRITE_SHARE).
    kinds = ("delta_compactions", "major_delta_compactions", "merging_compactions")
    assert sum(getattr(status, kind) for kind in kinds) > sum(getattr(done, kind) for kind in kinds)
    assert len(rowsets(db)[0].redo) < 6 and len(status.recent) <= 8


def test_expired_rowsets_and_undo_are_dropped_without_being_read(
    db: Database, clock: ManualClock, disk: Disk
) -> None:
    """Expired data is dropped even on a full disk, because no file is written."""
    table = db.create_table("t", {"k": "int64", "v": "int64"}, "k", history=60)
    table.insert({"k": list(range(3000)), "v": list(range(3000))})
    db.flush()
    table.delete(where="TRUE")
    db.flush()
    clock.advance(3600)
    disk.free = 0
    to_the_end(db)
    assert rowsets(db) == () and db.maintenance.status().expiries == 1
    assert db.maintenance.status().waiting == ""


# --- quiet tablets ------------------------------------------------------------------------------------------


def test_a_tablet_is_quiet_after_a_minute_without_writes(db: Database, clock: ManualClock) -> None:
    """A tablet counts as quiet a minute after its last write. Quiet tablets are merged further."""
    table = key_value_table(db)

    def quiet() -> bool:
        return is_quiet(db._writer().root.table("t").tablets[0], clock.now_us())

    assert quiet()
    for write in (
        lambda: table.insert({"k": [1], "v": [1]}),
        lambda: (db.flush(), table.update({"k": [1], "v": [2]})),
        lambda: (table.update({"k": [1], "v": [3]}), db.flush()),
    ):
        write()
        assert not quiet()
        clock.advance(60)
        assert not quiet()
        clock.advance(0.001)
        assert quiet()
    assert from_physical(clock.now_us()) > db.now()


# --- delayed plans ------------------------------------------------------------------------------------------


def test_n2_a_failed_tablet_is_delayed_longer_each_time(
    db: Database, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N2: each failure doubles the delay of the tablet. Other tablets are compacted as usual."""
    overlapping(db, "bad")
    good = overlapping(db, "good")
    store, made = db._writer(), db.maintenance.compactor
    bad = store.root.table("bad").id
    real, tried = compactor.compact, []

    def failing(store: Any, table_id: int, *arguments: Any) -> Any:
        if table_id == bad:
            tried.append(clock.monotonic_s())
            raise StorageError("raised by the test")
        return real(store, table_id, *arguments)

    monkeypatch.setattr(compactor, "compact", failing)

    def work() -> None:
        for _ in range(50):
            try:
                if not made.run_once(store):
                    return
            except StorageError:
                pass
        raise AssertionError("the work does not end")

    for _ in range(2000):
        work()
        clock.advance(1)
    assert [after - before for before, after in pairwise(tried)][:6] == [10, 20, 40, 80, 160, 320]
    assert len(tried) == 8
    assert len(rowsets(db, "good")) == 1 and good.count() == 500
    monkeypatch.setattr(compactor, "compact", real)
    clock.advance(compactor.DELAY_MAX_S)
    work()
    assert len(rowsets(db, "bad")) == 1
    assert made._delayed == {}, "the delay ends after a success"


def test_a_plan_waits_for_disk_space_and_status_says_why(
    db: Database, clock: ManualClock, disk: Disk
) -> None:
    table = overlapping(db)
    disk.free = sum(rowset.size_bytes for rowset in rowsets(db))
    operations = len(disk.operations)
    to_the_end(db)
    waiting = db.maintenance.status().waiting
    assert waiting.startswith("merging compaction of table 't' waits: it needs 0.0 MB of disk space")
    assert waiting.endswith("0.0 MB are free")
    assert len(disk.operations) == operations and len(rowsets(db)) == 5
    disk.free = 1 << 40
    clock.advance(DELAY_S / 2)
    to_the_end(db)
    assert len(rowsets(db)) == 5 and db.maintenance.status().waiting == waiting, "the plan is not retried yet"
    clock.advance(DELAY_S)
    to_the_end(db)
    assert len(rowsets(db)) == 1 and table.count() == 500
    assert db.maintenance.status().waiting == ""


# --- status during a compaction -----------------------------------------------------------------------------


def test_status_shows_the_running_compaction(
    db: Database, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`status()` has the table, the time since the begin, and the progress of the running compaction."""
    overlapping(db)
    seen = []
    real = compactor.file_jobs.run

    def watched(env: Any, job: Any, progress: Any) -> Any:
        seen.append(db.maintenance.status().compaction)
        clock.advance(2)
        output = real(env, job, progress)
        seen.append(db.maintenance.status().compaction)
        return output

    monkeypatch.setattr(compactor.file_jobs, "run", watched)
    assert db.maintenance.compactor.run_once(db._writer())
    assert seen[0] == nyala.RunningCompaction("merging compaction", "t", 1, 0.0, rows_done=0, rows_total=0)
    assert seen[1].seconds == 2.0 and seen[1].rows_done == seen[1].rows_total > 0
    status = db.maintenance.status()
    for running in (seen[1], None):  # the writer sends the status to other processes as JSON
        sent = dataclasses.replace(status, compaction=running)
        assert maintenance.status_of_fields(json.loads(json.dumps(dataclasses.asdict(sent)))) == sent
    assert db.maintenance.status().compaction is None
    assert db.maintenance.status().recent[0].seconds == 2.0


# --- worker processes ---------------------------------------------------------------------------------------


@pytest.fixture
def real_store(folder: Path) -> Iterator[Database]:
    """Open a store with the system's clock and files, for worker processes, and no background threads."""
    with nyala.connect(folder / "real", maintenance=False) as db:
        yield db


def in_files(db: Database, history: Any = None) -> Any:
    table = db.create_table("t", {"k": "int64", "v": "int64"}, "k", history=history)
    for first in range(2):
        keys = list(range(first, 2000, 2))
        table.insert({"k": keys, "v": keys})
        db.flush()
    return table


@pytest.mark.parametrize("limit", ["INLINE_BYTES", "INLINE_ROWS"])
def test_compactions_of_many_bytes_or_rows_run_in_a_worker_process(
    real_store: Database, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """Large compactions run in a worker process. The writer moves later changes to the new rowset."""
    monkeypatch.setattr(compactor, limit, 0)
    table = in_files(real_store)

    def never(*_: Any) -> None:
        raise AssertionError("not in this process")

    monkeypatch.setattr(compaction.file_jobs, "run", never)
    made, store = real_store.maintenance.compactor, real_store._writer()
    late = []

    def phase(name: str) -> None:
        late.append(name)
        table.upsert({"k": [1, 5000], "v": [-1, -1]})

    state = store.root.table("t")
    plan = MergePlan(tuple(rowset.id for rowset in rowsets(real_store)), 1.0)
    report = compaction.compact(store, state.id, state.tablets[0].id, plan, made.runner(store), phase=phase)
    assert report is not None and late == ["reserved", "written"]
    assert made._worker._child is not None
    assert (
        len(rowsets(real_store)) == 1 and table.count() == 2001 and table.get({"k": 1}) == {"k": 1, "v": -1}
    )
    table.update({"k": list(range(1000)), "v": [7] * 1000})
    real_store.flush()
    schema = store.root.table("t").schema
    major = MajorPlan(rowsets(real_store)[0].id, (schema.by_name("v").id,), 1.0)
    assert compaction.compact(store, state.id, state.tablets[0].id, major, made.runner(store))
    assert table.count("v = 7") == 1000 and len(rowsets(real_store)[0].parts) == 1


@pytest.mark.parametrize("end", ["revoked", "closed"])
def test_a_worker_is_ended_with_its_reservation_or_its_store(
    real_store: Database, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """After a revoke or a close, the worker ends at once, and leaves neither a file nor a process."""
    monkeypatch.setattr(compactor, "INLINE_BYTES", 0)
    in_files(real_store)
    made, store = real_store.maintenance.compactor, real_store._writer()
    before = sorted(path.name for path in Path(real_store.path, "data").rglob("*.*"))
    ids = tuple(rowset.id for rowset in rowsets(real_store))
    state = store.root.table("t")
    encode = compactor.file_jobs.encode_job
    begun = threading.Event()

    def slow(job: Any) -> tuple[str, dict[str, Any]]:
        # An input is a pipe, so the worker waits until somebody writes to it.
        kind, fields = encode(job)
        pipe = Path(real_store.path, "data", "pipe")
        os.mkfifo(pipe)
        for entry in fields["inputs"]:
            entry["rowset"]["path"] = "data/pipe"
        begun.set()
        return kind, fields

    monkeypatch.setattr(compactor.file_jobs, "encode_job", slow)
    ended: list[Any] = []

    def work() -> None:
        try:
            ended.append(
                compaction.compact(
                    store, state.id, state.tablets[0].id, MergePlan(ids, 1.0), made.runner(store)
                )
            )
        except BaseException as error:
            ended.append(type(error).__name__)

    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(20)
    time.sleep(0.1)
    assert thread.is_alive()
    if end == "revoked":
        with store.commit_lock:
            assert store.reservations.revoke(ids) == 1
    else:
        real_store.maintenance.stop()
    thread.join(20)
    assert ended == [None] if end == "revoked" else ended == ["JobCancelled"]
    Path(real_store.path, "data", "pipe").unlink()
    assert sorted(path.name for path in Path(real_store.path, "data").rglob("*.*")) == before
    assert not any(store.reservations.taken(number) for number in ids)
