"""Manual maintenance: compact() leaves no work, vacuum() frees the space that nothing needs."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.support import open_database, rows

import nyala
from nyala.api.database import Database
from nyala.env import system_files
from nyala.errors import StorageError, TableNotFoundError
from nyala.handover import commits as handover
from nyala.tablet import manual_maintenance as care
from nyala.tablet.compaction.lifecycle import run_here
from nyala.tablet.manual_maintenance import compact_table, vacuum_table
from nyala.tablet.workers.process import JobCancelled
from nyala.testing.clock import ManualClock
from nyala.testing.faulty_files import FaultyFiles


@pytest.fixture
def db(folder: Path, clock: ManualClock) -> Iterator[Database]:
    with open_database(folder / "s", clock=clock) as db:
        yield db


def scattered(db: Database, name: str = "t", history: Any = "forever") -> dict[int, int]:
    """Create two tablets with overlapping rowsets, REDO, ghosts and rows in memory; returns the rows."""
    hashes = nyala.hash_partition("k", buckets=2)
    table = db.create_table(name, {"k": "int64", "v": "int64"}, "k", hashes, history=history)
    for value in range(4):
        table.upsert({"k": list(range(value, 60, 2)), "v": [value] * len(range(value, 60, 2))})
        db.flush()
        table.delete({"k": [10 * value, 10 * value + 1]}, on_missing="ignore")
        db.flush()
    table.upsert({"k": [1, 2, 100], "v": [9, 9, 9]})
    return dict(rows(table))


def rowsets(db: Database, name: str = "t") -> list[Any]:
    return [rowset for tablet in db._writer().root.table(name).tablets for rowset in tablet.rowsets]


def in_order(db: Database, name: str = "t") -> bool:
    """Check that no two rowsets of a tablet overlap, none has REDO, and nothing is in memory."""
    for tablet in db._writer().root.table(name).tablets:
        by_key = sorted(tablet.rowsets, key=lambda rowset: rowset.meta.key_min)
        if any(left.meta.key_max >= right.meta.key_min for left, right in pairwise(by_key)):
            return False
        if tablet.memory_timestamp_min() is not None or any(rowset.redo for rowset in tablet.rowsets):
            return False
    return True


# --- compact ------------------------------------------------------------------------------------------------


def test_writes_during_compact_are_kept(db: Database) -> None:
    """Changes made during one round are compacted in the next one."""
    held = scattered(db)
    table, written = db["t"], []

    def writing(store: Any) -> Any:
        run = run_here(store)

        def busy(job: Any, reservation: Any) -> Any:
            if len(written) < 3:
                written.append(len(written))
                table.upsert({"k": [1, 3, 200 + len(written)], "v": [len(written)] * 3})
                db.flush()
            return run(job, reservation)

        return busy

    steps: list[tuple[int, int]] = []
    report = compact_table(
        db._writer(), "t", writing(db._writer()), lambda done, total: steps.append((done, total))
    )
    assert in_order(db)
    assert dict(rows(table)) == held | {1: 3, 3: 3, 201: 1, 202: 2, 203: 3}
    assert report.compactions >= 3 and report.bytes_before > 0 < report.bytes_after
    assert steps[0] == (0, 2) and all(done <= total for done, total in steps)


def test_compact_ends_although_others_write(db: Database) -> None:
    """`compact()` ends after a few rounds, although others write."""
    held = scattered(db)
    table, rounds = db["t"], []
    run = run_here(db._writer())

    def busy(job: Any, reservation: Any) -> Any:
        rounds.append(1)
        table.upsert({"k": [1, 2, 3, 4], "v": [len(rounds)] * 4})
        return run(job, reservation)

    compact_table(db._writer(), "t", busy)
    assert len(rounds) <= 2 * care.ROUNDS_MAX
    assert dict(rows(table)) == held | dict.fromkeys([1, 2, 3, 4], len(rounds))


def test_compact_waits_for_the_background(db: Database) -> None:
    """`compact()` waits for running background work, so it also compacts a rowset that is being merged."""
    held = scattered(db)
    db.flush()
    store = db._writer()
    reservation = store.reservations.take([rowsets(db)[0].id], holds_deltas=True)
    assert reservation is not None
    thread = threading.Thread(target=db["t"].compact)
    thread.start()
    thread.join(0.05)
    assert thread.is_alive() and not in_order(db)
    store.reservations.release(reservation)
    thread.join(20)
    assert in_order(db) and dict(rows(db["t"])) == held


def test_rowsets_held_by_jobs_are_left_out_and_logged(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    """A job may take hours. The log names the job, its begin and its expiry."""
    held = scattered(db)
    db.flush()
    store, path = db._writer(), db.path
    lease = handover.remote_lease(path, 60, store.env)
    first = [rowset.id for rowset in store.root.table("t").tablets[0].rowsets]
    with store.commit_lock:
        store.job_reservations.take(store, lease.name, first, "the upsert of process 42 on alpha")
    with caplog.at_level("WARNING", "nyala.compaction"):
        report = compact_table(store, "t")
    assert report.rowsets_left_out == len(first)
    (message,) = {record.getMessage() for record in caplog.records}
    assert f"table 't': {len(first)} of {len(first) + 1} rowsets" in message
    assert "because the upsert of process 42 on alpha may have changes for them" in message
    assert re.search(rf"lease {lease.name}, since 20\S+Z?, until 20\S+ unless renewed", message)
    tablets = store.root.table("t").tablets
    assert [rowset.id for rowset in tablets[0].rowsets] == first and len(tablets[1].rowsets) == 1
    assert dict(rows(db["t"])) == held
    lease.release()  # as if its time were over, so that the test need not wait
    assert compact_table(store, "t").rowsets_left_out == 0
    assert in_order(db) and dict(rows(db["t"])) == held


def test_rowsets_of_a_job_whose_process_died_are_compacted(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """The rowsets of a job are compacted if its process has ended, although its lease is still valid."""
    held = scattered(db)
    db.flush()
    store = db._writer()
    dead = subprocess.run(
        [sys.executable, "-c", "from nyala.env import process_mark; print(process_mark())"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    for act in (
        lambda: vacuum_table(store, "t", dry_run=True)["rowsets_left_out"],
        lambda: compact_table(store, "t").rowsets_left_out,
    ):
        lease = handover.remote_lease(db.path, 3600, store.env, dead)
        ids = [rowset.id for tablet in store.root.table("t").tablets for rowset in tablet.rowsets]
        with store.commit_lock:
            store.job_reservations.take(store, lease.name, ids, "a job")
        with caplog.at_level("WARNING", "nyala.compaction"):
            assert act() == 0
    assert not caplog.records and in_order(db) and dict(rows(db["t"])) == held


def test_work_before_a_failure_stays(folder: Path) -> None:
    """If the disk fails in the second tablet, the first one is compacted, and the next call does the rest."""
    files = FaultyFiles(system_files(), only=lambda op: op.kind == "create" and op.path.endswith(".base"))
    with open_database(folder / "f", files=files) as db:
        held = scattered(db)
        db.flush()
        files.fail_at = len(files.operations) + 2
        with pytest.raises(StorageError, match="a fault of the test"):
            db["t"].compact()
        done, waiting = sorted(len(tablet.rowsets) for tablet in db._writer().root.table("t").tablets)
        assert done == 1 < waiting
        assert dict(rows(db["t"])) == held
        db["t"].compact()
        assert in_order(db) and dict(rows(db["t"])) == held


def test_a_disk_without_space_is_reported_before_a_write(folder: Path) -> None:
    """The error names the required space, and no row is lost."""

    class Disk(FaultyFiles):
        free = 1 << 40

        def free_bytes(self, path: str) -> int:
            return self.free

    disk = Disk(system_files())
    with open_database(folder / "f", files=disk) as db:
        held = scattered(db)
        db.flush()
        disk.free = 1000
        with pytest.raises(
            StorageError, match=r"'t' cannot be compacted further: it needs [\d.]+ MB .* 0.0 MB are free"
        ):
            db["t"].compact()
        assert dict(rows(db["t"])) == held


def test_compact_of_a_store_that_is_closed_during_the_call(db: Database) -> None:
    scattered(db)

    def closing(job: Any, reservation: Any) -> Any:
        raise JobCancelled("raised by the test")

    with pytest.raises(StorageError, match=r"closed during the compaction\. Nothing is lost"):
        compact_table(db._writer(), "t", closing)


def test_compact_of_a_table_that_is_dropped_during_the_call_succeeds(db: Database) -> None:
    scattered(db)
    run = run_here(db._writer())

    def dropping(job: Any, reservation: Any) -> Any:
        if "t" in db.list_tables():
            db.drop_table("t")
        return run(job, reservation)

    compact_table(db._writer(), "t", dropping)
    assert db.list_tables() == []
    with pytest.raises(TableNotFoundError):
        compact_table(db._writer(), "t")
    with pytest.raises(TableNotFoundError):
        vacuum_table(db._writer(), "t")


# --- vacuum -------------------------------------------------------------------------------------------------


def expiring(db: Database, clock: ManualClock) -> Any:
    """Create a table with an hour of history, in which everything has expired.

    It has a rowset of dead rows, a rowset with some dead rows, and old UNDO.
    """
    table = db.create_table("t", {"k": "int64", "v": "int64"}, "k", history=3600)
    for first in (0, 1000, 2000):
        table.insert({"k": list(range(first, first + 100)), "v": [first] * 100})
        db.flush()
    table.delete({"k": [*range(100), *range(1000, 1050)]})
    db.flush()
    clock.advance(7200)
    assert [rowset.row_count for rowset in rowsets(db)] == [100, 100, 100]
    return table


def test_vacuum_frees_what_no_readable_moment_needs(db: Database, clock: ManualClock) -> None:
    """Whole rowsets and UNDO files are dropped, others are rewritten. The result has the bytes."""
    table = expiring(db, clock)
    before, files = table.stats(), {path for rowset in rowsets(db) for path in rowset.paths}
    dry = table.vacuum(dry_run=True)
    assert dry.dry_run and dry.bytes > 0 and dry.files > 0 and dry.rowsets_rewritten == 1
    assert {path for rowset in rowsets(db) for path in rowset.paths} == files, "a dry run changes nothing"
    assert dry.oldest_readable == 0 or dry.oldest_readable == table.stats().oldest_readable
    answer = table.vacuum()
    after = table.stats()
    assert (after.dead_rows, after.undo_bytes, after.rows) == (0, 0, 150)
    assert sorted(rowset.row_count for rowset in rowsets(db)) == [50, 100]
    assert answer.bytes == before.bytes - after.bytes > 0
    assert (answer.rowsets_rewritten, answer.waiting_files, answer.dry_run) == (1, 0, False)
    assert answer.files == len(files) - len({path for rowset in rowsets(db) for path in rowset.paths})
    assert not {str(path.relative_to(db.path)) for path in Path(db.path, "data").rglob("*.*")} - set(
        db._writer().state.files()
    )
    assert len(rows(table)) == 150
    again = table.vacuum()
    assert (again.files, again.bytes, again.rowsets_rewritten) == (0, 0, 0)


def test_a_dry_run_is_about_right(db: Database, clock: ManualClock) -> None:
    """The estimate is within a factor of two of the freed bytes."""
    table = expiring(db, clock)
    promised, done = table.vacuum(dry_run=True), table.vacuum()
    assert done.bytes / 2 <= promised.bytes <= done.bytes * 2
    assert done.files / 2 <= promised.files <= done.files * 2


def test_vacuum_counts_files_that_are_still_read(db: Database, clock: ManualClock) -> None:
    table = expiring(db, clock)
    snapshot = db.snapshot()
    assert table.vacuum().waiting_files > 0
    assert rows(snapshot["t"]) == rows(table)
    snapshot.close()
    assert table.vacuum().waiting_files == 0


def test_vacuum_frees_columns_that_newer_parts_replace(db: Database) -> None:
    """The base file still has such columns. The dry run counts them."""
    names = ["k", *(f"c{number}" for number in range(20))]
    table = db.create_table("wide", dict.fromkeys(names, "int64"), "k")
    table.insert({name: list(range(500)) for name in names})
    db.flush()
    table.update({"k": [7], "c3": [-7]})
    table.compact()
    (rowset,) = db._writer().root.table("wide").tablets[0].rowsets
    assert len(rowset.parts) == 1
    estimate = table.vacuum(dry_run=True)
    assert estimate.rowsets_rewritten == 1 and 0 < estimate.bytes < rowset.base_bytes
    assert table.vacuum().rowsets_rewritten == 1
    (rowset,) = db._writer().root.table("wide").tablets[0].rowsets
    assert not rowset.parts and table.get({"k": 7})["c3"] == -7
    assert table.vacuum(dry_run=True).bytes == 0
