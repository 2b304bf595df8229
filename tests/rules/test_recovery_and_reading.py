"""The rules of docs/design/rules.md: each test checks the rule in its name on a whole store.

The four histories of that page are scripts (`tests/scripts/recovery`), in which a process is
killed. Tests of single bytes of the log (R6) are in `tests/unit/wal`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

import nyala
from nyala.api.database import Database
from nyala.delta.run import LIVENESS
from nyala.env import AppendFile, PosixFiles, system_files
from nyala.errors import CorruptionError, InvalidArgumentError, StorageError
from nyala.mvcc.timestamp import LOGICAL_MAX, from_physical
from nyala.tablet.compaction.lifecycle import compact, run_here
from nyala.tablet.compaction.plans import MajorPlan, MergePlan
from nyala.tablet.state import store_folder as layout
from nyala.testing.clock import ManualClock
from nyala.testing.faulty_files import FaultyFiles
from nyala.testing.recording_files import RecordingFiles
from nyala.wal.reader import LogReader, batches
from nyala.wal.record import LogRecord
from tests.support import key_value_table, logged_rows, open_database, rows


def _merge(db: Database, phase: Callable[[str], None] = lambda name: None) -> bool:
    """Merge all rowsets of `t` into one; return whether the merge was installed."""
    store = db._writer()
    table = store.root.table("t")
    plan = MergePlan(tuple(rowset.id for rowset in table.tablets[0].rowsets), 1.0)
    return compact(store, table.id, table.tablets[0].id, plan, run_here(store), phase=phase) is not None


def _major(db: Database, *columns: str) -> None:
    """Run a major delta compaction of these columns of `t`, which has one rowset."""
    store = db._writer()
    table = store.root.table("t")
    (rowset,) = table.tablets[0].rowsets
    ids = sorted(LIVENESS if name == "liveness" else table.schema.by_name(name).id for name in columns)
    assert compact(
        store, table.id, table.tablets[0].id, MajorPlan(rowset.id, tuple(ids), 1.0), run_here(store)
    )


class _HeldSync(PosixFiles):
    """Files in which syncs of the log wait until the test continues them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()

    def create(self, path: str) -> AppendFile:
        file = super().create(path)
        gate = self.gate

        class Held:
            path = file.path

            def __getattr__(self, name: str) -> object:
                return getattr(file, name)

            def sync(self) -> None:
                assert gate.wait(30)
                file.sync()

        return Held() if "/wal/" in path else file  # type: ignore[return-value]


class _SlowSync(PosixFiles):
    """The system's files with slow syncs, so that several writers wait for the next sync."""

    def create(self, path: str) -> AppendFile:
        file = super().create(path)

        class Slow:
            path = file.path

            def __getattr__(self, name: str) -> object:
                return getattr(file, name)

            def sync(self) -> None:
                time.sleep(0.02)
                file.sync()

        return Slow() if "/wal/" in path else file  # type: ignore[return-value]


def log_records(path: Path) -> list[LogRecord]:
    from nyala.env import SYSTEM
    from nyala.wal.reader import read_segment_header

    header = read_segment_header(SYSTEM.files, str(path / "wal" / "wal-000000001"), 1)
    return list(batches(LogReader(SYSTEM, str(path / "wal"), 1, header.store_id).read_to(None)))


def test_w1_visible_after_synced(tmp_path: Path) -> None:
    """A batch is visible to readers only when its log record is synced. Writers see it before."""
    files = _HeldSync()
    db = open_database(tmp_path / "s", files=files)
    table = key_value_table(db)
    table.insert({"k": [1], "v": [1]})
    before = db.now()
    files.gate.clear()
    writer = threading.Thread(target=lambda: table.insert({"k": [2], "v": [2]}))
    writer.start()
    store = db._writer()
    while store.marks.applied == before:
        pass
    assert db.now() == before
    assert rows(table) == [(1, 1)]
    with pytest.raises(nyala.DuplicateKeyError):  # writers see the applied batch
        table.insert({"k": [2], "v": [3]})
    files.gate.set()
    writer.join()
    assert rows(table) == [(1, 1), (2, 2)]
    db.close()


def test_w1_a_sync_covers_the_whole_group(tmp_path: Path) -> None:
    """One sync makes all waiting writers durable."""
    counting = FaultyFiles(_SlowSync(), only=lambda op: op.kind == "sync" and "/wal/" in op.path)
    db = open_database(tmp_path / "s", files=counting)
    table = key_value_table(db)
    table.insert({"k": [-1], "v": [0]})
    done = len(counting.operations)
    threads = [threading.Thread(target=lambda k=k: table.insert({"k": [k], "v": [k]})) for k in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert table.count() == 41
    assert len(counting.operations) - done < 40
    db.close()


@pytest.mark.parametrize("durability", ["group", "os"])
def test_w2_log_before_catalogue(tmp_path: Path, durability: str) -> None:
    """A flush syncs the log before the catalogue names its files, with any durability."""
    recording = RecordingFiles(system_files(), str(tmp_path))
    db = open_database(tmp_path / "s", files=recording, durability=durability)
    table = key_value_table(db)
    start = len(recording.events)
    table.insert({"k": [1], "v": [1]})
    db.flush()
    kinds = [(event.kind, event.path.split("/")[-1][:4]) for event in recording.events[start:]]
    data = [i for i, (kind, name) in enumerate(kinds) if kind == "sync" and name not in ("wal-", "posi")]
    synced = [i for i, (kind, name) in enumerate(kinds) if (kind, name) == ("sync", "wal-")]
    assert synced[0] < data[0] < synced[-1], "the batch, the files, and then the change that names them"
    db.close()


def test_w2_log_before_a_compaction(tmp_path: Path) -> None:
    """A merge has unsynced changes, so the log is synced before the catalogue names its files."""
    recording = RecordingFiles(system_files(), str(tmp_path))
    db = open_database(tmp_path / "s", files=recording, durability="os")
    table = key_value_table(db)
    table.insert({"k": [1], "v": [1]})
    db.flush()

    def late(name: str) -> None:
        if name == "written":
            table.update({"k": [1], "v": [2]})
            recording.events.clear()

    assert _merge(db, late)
    kinds = [(event.kind, event.path.split("/")[-1][:4]) for event in recording.events]
    assert ("sync", "wal-") in kinds, "with the late changes, and the change that names the files"
    db.close()


def test_w3_after_a_failed_sync_no_write_and_no_flush_until_reopened(tmp_path: Path) -> None:
    """The error has the outcome "unknown". The next open shows which batches are durable."""
    files = FaultyFiles(system_files(), only=lambda op: op.kind == "sync" and "/wal/" in op.path)
    db = open_database(tmp_path / "s", files=files)
    table = key_value_table(db)
    first = table.insert({"k": [1], "v": [1]})
    files.fail_at = len(files.operations) + 1
    with pytest.raises(StorageError) as failure:
        table.insert({"k": [2], "v": [2]})
    assert failure.value.outcome == "unknown"
    assert db.now() == first.timestamp
    assert rows(table) == [(1, 1)]
    with pytest.raises(StorageError, match="takes no more writes"):
        table.insert({"k": [3], "v": [3]})
    with pytest.raises(StorageError, match="takes no more writes"):
        db.flush()
    db.close()
    again = open_database(tmp_path / "s")
    assert rows(again["t"]) in ([(1, 1)], [(1, 1), (2, 2)])
    again["t"].insert({"k": [3], "v": [3]})
    again.close()


def test_w4_one_key_has_at_most_one_effect_at_one_timestamp(tmp_path: Path) -> None:
    """A delete and an insert of a live key are an update of all columns."""
    db = open_database(tmp_path / "s")
    table = db.create_table("t", {"k": "int64", "v": "int64", "w": nyala.column("int64", default=7)}, "k")
    table.insert({"k": [1, 2], "v": [1, 2], "w": [1, 2]})
    db.flush()
    with db.batch() as batch:
        batch.update("t", {"k": [1], "v": [10]})
        batch.delete("t", {"k": [1]})
        batch.insert("t", {"k": [1], "v": [11]})
        batch.insert("t", {"k": [5], "v": [5]})
        batch.delete("t", {"k": [5]})
    assert [(r.inserted, r.updated, r.deleted) for r in batch.results] == [
        (0, 1, 0), (0, 0, 1), (1, 0, 0), (1, 0, 0), (0, 0, 1),
    ]  # fmt: skip
    assert rows(table) == [(1, 11, 7), (2, 2, 2)]
    (rowset,) = db._writer().root.table("t").tablets[0].rowsets
    assert rowset.deltas.record_count == 1
    rowset.check()
    db.close()


def test_w5_the_log_has_resolved_rows(tmp_path: Path) -> None:
    """An upsert is logged as insert or update. Rows that failed, were ignored or changed nothing
    are not logged.
    """
    db = open_database(tmp_path / "s")
    table = key_value_table(db)
    table.insert({"k": [1, 2], "v": [1, 2]})
    table.upsert({"k": [2, 3], "v": [20, 30]})
    table.insert({"k": [3, 4], "v": [0, 4]}, errors="collect")
    table.delete({"k": [9]}, on_missing="ignore")
    with db.batch() as batch:
        batch.insert("t", {"k": [8], "v": [8]})
        batch.delete("t", {"k": [8]})
    db.close()
    found = [
        sorted((group.kind, group.batch.column(0).to_pylist()) for group in record.groups)
        for record in log_records(tmp_path / "s")
    ]
    assert found == [[("insert", [1, 2])], [("insert", [3]), ("update", [2])], [("insert", [4])]]


def test_w6_a_large_batch_goes_through_the_catalogue_only(tmp_path: Path) -> None:
    """Files and one catalogue change, no log record, and one timestamp."""
    db = open_database(tmp_path / "s", direct_commit_bytes=1000)
    table = key_value_table(db)
    table.insert({"k": [1, 2, 3], "v": [1, 2, 3]})
    many = list(range(2, 2000))
    result = table.upsert({"k": many, "v": [-k for k in many]})
    assert (result.inserted, result.updated) == (1996, 2)
    deleted = table.delete({"k": list(range(1000, 2000))})
    table.update({"k": [1], "v": [100]})
    assert rows(table)[:3] == [(1, 100), (2, -2), (3, -3)]
    assert table.count() == 999
    assert table.count(at=result) == 1999
    assert rows(table, at=result.timestamp - 1) == [(1, 1), (2, 2), (3, 3)]
    db.close()
    assert sum(record.row_count for record in log_records(tmp_path / "s")) <= 4
    again = open_database(tmp_path / "s")
    assert again["t"].count() == 999 and again["t"].count(at=deleted.timestamp - 1) == 1999
    assert again["t"].get({"k": 1}) == {"k": 1, "v": 100}
    again.close()


def test_w6_a_crash_before_the_catalogue_change_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next open removes the files (P3)."""
    db = open_database(tmp_path / "s", direct_commit_bytes=1000)
    table = key_value_table(db)
    store = db._writer()
    monkeypatch.setattr(store, "discard_files", lambda paths: None)
    monkeypatch.setattr(store, "transact", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        table.insert({"k": list(range(2000)), "v": [0] * 2000})
    monkeypatch.undo()
    assert any((tmp_path / "s" / "data").rglob("*.base"))
    db.close()
    again = open_database(tmp_path / "s")
    assert again["t"].count() == 0
    assert not any((tmp_path / "s" / "data").rglob("*.base"))
    again.close()


def test_r1_replay_goes_by_key_and_timestamp(tmp_path: Path) -> None:
    """After a kill, durable changes are skipped, and other changes find their row where it is now.

    The four histories that led to the rule are scripts (tests/scripts/recovery), in which a process
    is killed.
    """
    db = open_database(tmp_path / "s")
    table = key_value_table(db)
    table.insert({"k": [1, 2, 3], "v": [1, 2, 3]})
    db.flush()  # the inserts are durable now
    table.update({"k": [1], "v": [10]})
    db.flush()  # this change is durable now
    table.update({"k": [1, 2], "v": [11, 20]})  # these changes are in a DeltaMemStore
    table.delete({"k": [3]})
    again = table.insert({"k": [3, 4], "v": [30, 40]})  # these rows are in the MemRowSet
    table.update({"k": [4], "v": [41]})
    table.delete({"k": [3]})
    last = table.insert({"k": [3], "v": [33]})  # the dead row becomes alive again
    shutil.copytree(tmp_path / "s", tmp_path / "killed", ignore=shutil.ignore_patterns("*.sock"))
    db.close()
    db = open_database(tmp_path / "killed")
    assert rows(db["t"]) == [(1, 11), (2, 20), (3, 33), (4, 41)]
    assert rows(db["t"], at=again) == [(1, 11), (2, 20), (3, 30), (4, 40)]
    assert rows(db["t"], at=last.timestamp - 1) == [(1, 11), (2, 20), (4, 41)]
    tablet = db._writer().root.table("t").tablets[0]
    assert tablet.memory.row_count == 2 and tablet.rowsets[0].deltas.record_count == 3
    db.close()


def test_r2_durable_marks(tmp_path: Path) -> None:
    """A flush raises the marks of tablet and rowset to the moment of freezing. A direct commit does
    not raise the tablet's mark.
    """
    db = open_database(tmp_path / "s", direct_commit_bytes=2000)
    table = key_value_table(db)
    frozen_at = table.insert({"k": [1], "v": [1]}).timestamp
    db.flush()
    tablet = db._writer().root.table("t").tablets[0]
    assert tablet.entry.inserts_durable == frozen_at
    assert tablet.rowsets[0].meta.deltas_durable == frozen_at
    changed_at = table.update({"k": [1], "v": [2]}).timestamp
    db.flush()
    tablet = db._writer().root.table("t").tablets[0]
    assert tablet.rowsets[0].meta.deltas_durable == changed_at
    loaded_at = table.insert({"k": list(range(10, 500)), "v": [0] * 490}).timestamp
    tablet = db._writer().root.table("t").tablets[0]
    assert tablet.entry.inserts_durable == frozen_at
    assert tablet.rowsets[-1].meta.deltas_durable == loaded_at
    db.close()


def test_r2_a_merge_is_durable_up_to_its_beginning(tmp_path: Path) -> None:
    """Later changes of an input are in the log. A replay finds their rows in the merged rowset."""
    db = open_database(tmp_path / "s")
    table = key_value_table(db)
    for k in (1, 2):
        table.insert({"k": [k], "v": [k]})
        db.flush()
    begun = table.update({"k": [1], "v": [10]}).timestamp
    assert _merge(db, lambda name: table.update({"k": [2], "v": [20]}) and None)
    (rowset,) = db._writer().root.table("t").tablets[0].rowsets
    assert rowset.meta.deltas_durable == begun and rowset.deltas.record_count == 2
    shutil.copytree(tmp_path / "s", tmp_path / "killed", ignore=shutil.ignore_patterns("*.sock"))
    db.close()
    again = open_database(tmp_path / "killed")
    (rowset,) = again._writer().root.table("t").tablets[0].rowsets
    assert rowset.deltas.record_count == 2 and rows(again["t"]) == [(1, 10), (2, 20)]
    assert rows(again["t"], at=begun) == [(1, 10), (2, 2)]
    again.close()


def test_r3_the_log_keeps_rows_that_are_only_in_memory(tmp_path: Path) -> None:
    """A segment is deleted when none of its rows is only in memory."""
    db = open_database(tmp_path / "s")
    quiet, busy = key_value_table(db, "quiet"), key_value_table(db, "busy")
    quiet.insert({"k": [1], "v": [1]})
    busy.insert({"k": [1], "v": [1]})
    busy.flush()
    log = db._writer().log
    assert log.segments() and log.segments()[0].number == 1
    quiet.flush()
    assert logged_rows(db) == 0
    assert db._writer().state.wal_start > 1
    db.close()
    again = open_database(tmp_path / "s")
    assert rows(again["quiet"]) == rows(again["busy"]) == [(1, 1)]
    again.close()


def test_r3_a_running_merge_keeps_its_inputs_changes_in_memory_and_in_the_log(tmp_path: Path) -> None:
    """A flush during the merge leaves them, until they are in a file of the merged rowset."""
    db = open_database(tmp_path / "s")
    table = key_value_table(db)
    for k in (1, 2):
        table.insert({"k": [k], "v": [k]})
        db.flush()
    store = db._writer()
    assert logged_rows(db) == 0

    def flushed(name: str) -> None:
        table.update({"k": [1], "v": [10 if name == "reserved" else 11]})
        table.insert({"k": [3 if name == "reserved" else 4], "v": [0]})
        db.flush()
        one, two, *new = store.root.table("t").tablets[0].rowsets
        assert (one.redo, two.redo) == ((), ()) and one.deltas.record_count
        assert new, "other rowsets are flushed"
        assert store.log.segments() and store.state.wal_start <= store.log.segments()[0].number

    assert _merge(db, flushed)
    assert logged_rows(db), "still only in memory, now in that of the merged rowset"
    shutil.copytree(tmp_path / "s", tmp_path / "killed", ignore=shutil.ignore_patterns("*.sock"))
    db.flush()
    assert logged_rows(db) == 0
    assert rows(table) == [(1, 11), (2, 2), (3, 0), (4, 0)]
    db.close()
    again = open_database(tmp_path / "killed")
    assert rows(again["t"]) == [(1, 11), (2, 2), (3, 0), (4, 0)]
    again.close()


def test_r4_delta_stores_are_in_time_order(tmp_path: Path) -> None:
    """A direct commit first flushes the changes in memory, so its REDO file is the newest."""
    db = open_database(tmp_path / "s", direct_commit_bytes=2000)
    table = key_value_table(db)
    table.insert({"k": list(range(50)), "v": [0] * 50})
    db.flush()
    table.update({"k": [1], "v": [1]})
    table.update({"k": list(range(50)) * 10, "v": list(range(500))})
    table.upsert({"k": list(range(300)), "v": [7] * 300})
    table.update({"k": [2], "v": [8]})
    for rowset in db._writer().root.table("t").tablets[0].rowsets:
        rowset.check()
        redo = [(file.timestamp_min, file.timestamp_max) for file in rowset.redo]
        assert redo == sorted(redo)
    assert table.get({"k": 1}) == {"k": 1, "v": 7} and table.get({"k": 2}) == {"k": 2, "v": 8}
    db.close()


def test_r4_a_major_delta_compaction_keeps_each_columns_stores_in_time_order(tmp_path: Path) -> None:
    """UNDO is older than REDO of the same column, but may be newer than REDO of another."""
    db = open_database(tmp_path / "s")
    table = db.create_table("t", {"k": "int64", "v": "int64", "w": "int64"}, "k")
    table.insert({"k": [1, 2], "v": [0, 0], "w": [0, 0]})
    db.flush()
    moments = []
    for value, columns in enumerate([("v",), ("w", "liveness"), ("v", "w"), ("v",)], 1):
        for name in ("v", "w"):
            table.update({"k": [1], name: [value]})
            moments.append((db.now(), rows(table)))
        db.flush()
        _major(db, *columns)
        (rowset,) = db._writer().root.table("t").tablets[0].rowsets
        rowset.check()
        for column_id in (
            table_column.id for table_column in db._writer().root.table("t").schema.value_columns
        ):
            undo = [run for file in rowset.undo if (run := file.run(column_id))]
            redo = [run for file in rowset.redo if (run := file.run(column_id))]
            stores = sorted(undo, key=lambda run: run.timestamp_min) + redo
            assert all(older.timestamp_max < newer.timestamp_min for older, newer in pairwise(stores))
    db.close()
    again = open_database(tmp_path / "s")
    assert all(rows(again["t"], at=moment) == expected for moment, expected in moments)
    again.close()


def test_r4_a_direct_commit_ends_a_compaction_of_its_rowsets(tmp_path: Path) -> None:
    """The REDO file is new for the compaction. No change is lost."""
    db = open_database(tmp_path / "s", direct_commit_bytes=2000)
    table = key_value_table(db)
    table.insert({"k": list(range(50)), "v": [0] * 50})
    db.flush()
    table.update({"k": [1], "v": [1]})
    many = list(range(300))
    assert not _merge(db, lambda name: table.upsert({"k": many, "v": [7] * 300}) and None)
    assert table.count("v = 7") == 300
    for rowset in db._writer().root.table("t").tablets[0].rowsets:
        rowset.check()
    assert _merge(db)
    assert table.count("v = 7") == 300
    db.close()


def test_r5_a_merge_makes_one_row_per_key(tmp_path: Path) -> None:
    """A dead row stays dead, and the key is found in the rowset in which it is live."""
    db = open_database(tmp_path / "s")
    table = key_value_table(db)
    moments = []
    for value in range(3):
        moments.append((table.insert({"k": [1], "v": [value]}).timestamp, [(1, value)]))
        db.flush()
        moments.append((table.delete({"k": [1]}).timestamp, []))
        db.flush()
    assert _merge(db)
    (rowset,) = db._writer().root.table("t").tablets[0].rowsets
    assert rowset.row_count == 1
    moments.append((table.insert({"k": [1], "v": [9]}).timestamp, [(1, 9)]))
    assert db._writer().root.table("t").tablets[0].memory.row_count == 1 and not rowset.deltas.record_count
    db.flush()
    assert _merge(db)
    assert all(rows(table, at=moment) == expected for moment, expected in moments)
    with pytest.raises(nyala.DuplicateKeyError):
        table.insert({"k": [1], "v": [0]})
    db.close()


def test_r5_an_insert_of_a_dead_key_on_disk_adds_a_new_row(tmp_path: Path) -> None:
    """If the dead row is in memory, it becomes alive again."""
    db = open_database(tmp_path / "s")
    table = key_value_table(db)
    table.insert({"k": [1], "v": [1]})
    db.flush()
    table.delete({"k": [1]})
    table.insert({"k": [1], "v": [2]})
    tablet = db._writer().root.table("t").tablets[0]
    assert tablet.memory.row_count == 1
    assert tablet.rowsets[0].deltas.record_count == 1
    table.delete({"k": [1]})
    table.insert({"k": [1], "v": [3]})
    assert tablet.memory.row_count == 1  # the dead row is alive again, and there is no second row
    tablet.memory.check()
    assert tablet.rowsets[0].deltas.record_count == 1
    assert rows(table) == [(1, 3)]
    db.close()


def test_r6_a_torn_tail_is_cut_and_damage_is_not(tmp_path: Path) -> None:
    """Bytes after the last record of a killed writer are cut off. A flipped bit in synced data
    stops the open.
    """
    script = (
        "import nyala, os, sys; db = nyala.connect(sys.argv[1], maintenance=False);"
        "t = db.create_table('t', {'k': 'int64', 'v': 'int64'}, 'k');"
        "[t.insert({'k': [i], 'v': [i]}) for i in range(5)]; os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "s")], check=False)
    segment = tmp_path / "s" / "wal" / "wal-000000001"
    good = segment.read_bytes()
    segment.write_bytes(good + os.urandom(300))
    db = open_database(tmp_path / "s")
    assert rows(db["t"]) == [(i, i) for i in range(5)]
    db.close()
    closed = segment.read_bytes()
    segment.write_bytes(closed[:200] + bytes([closed[200] ^ 1]) + closed[201:])
    with pytest.raises(CorruptionError) as damage:
        open_database(tmp_path / "s")
    assert str(segment) in str(damage.value)


def test_r7_a_scan_keeps_the_root_it_began_with(tmp_path: Path) -> None:
    """After a flush, a merge and a dropped table, a scan and a snapshot return the same rows."""
    db = open_database(tmp_path / "s")
    table = key_value_table(db)
    table.insert({"k": [1, 2], "v": [1, 2]})
    db.flush()
    table.update({"k": [1], "v": [10]})
    scan = table.scan(order_by_key=True)
    snapshot = db.snapshot()
    table.update({"k": [2], "v": [20]})
    db.flush()
    assert _merge(db)
    db.drop_table("t")
    db._writer().collect_garbage()
    assert scan.to_arrow().to_pydict() == {"k": [1, 2], "v": [10, 2]}
    assert rows(snapshot["t"]) == [(1, 10), (2, 2)]
    snapshot.close()
    with pytest.raises(nyala.TableNotFoundError):
        db["t"]
    db.close()


READER = """
import nyala, sys
db = nyala.connect(sys.argv[1], read_only=True)
scan = db["t"].scan(order_by_key=True)
print("ready", flush=True)
sys.stdin.readline()
print(scan.to_arrow().to_pydict(), flush=True)
print(db["t"].scan(order_by_key=True).to_arrow().to_pydict(), flush=True)
sys.stdin.readline()
"""


def test_p1_p2_a_reader_process_keeps_its_files_and_sees_new_batches(tmp_path: Path) -> None:
    """A killed reader keeps nothing."""
    db = open_database(tmp_path / "s")
    table = key_value_table(db)
    table.insert({"k": [1], "v": [1]})
    db.flush()
    for value in range(2, 6):
        table.update({"k": [1], "v": [value]})
        db.flush()
    child = subprocess.Popen(
        [sys.executable, "-c", READER, str(tmp_path / "s")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None and child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    from tests.support import compact_deltas

    assert compact_deltas(db._writer()) == 1
    table.insert({"k": [2], "v": [2]})
    assert len(db._writer().state.garbage) >= 4
    files = {path.name for path in (tmp_path / "s" / "data").rglob("*.redo")}
    db._writer().collect_garbage()
    assert {path.name for path in (tmp_path / "s" / "data").rglob("*.redo")} == files
    child.stdin.write("\n")
    child.stdin.flush()
    assert child.stdout.readline() == "{'k': [1], 'v': [5]}\n"
    assert child.stdout.readline() == "{'k': [1, 2], 'v': [5, 2]}\n"
    child.kill()
    child.wait()
    child.stdin.close()
    child.stdout.close()
    assert db._writer().collect_garbage() >= 4
    assert len(list((tmp_path / "s" / "data").rglob("*.redo"))) == 1
    db.close()


def test_p3_only_orphans_are_deleted_at_open(tmp_path: Path) -> None:
    """Files that the catalogue names, and staged files of a running job, stay."""
    from nyala.handover.commits import new_staging

    db = open_database(tmp_path / "s")
    table = key_value_table(db)
    table.insert({"k": [1], "v": [1]})
    db.flush()
    tablet = db._writer().root.table("t").tablets[0].id
    folder = tmp_path / "s" / layout.tablet_directory(tablet)
    for name in ("999.base", "17-abc.base", "abc.part", "abc.undo"):
        (folder / name).write_bytes(b"left by a crash")
    _merge(db, lambda name: shutil.copytree(folder, tmp_path / name) and None)
    db._writer().collect_garbage()
    for path in (tmp_path / "written").iterdir():
        shutil.copyfile(path, folder / path.name)  # like files of a compaction that is not installed
    named = set(db._writer().state.files())
    _, alive = new_staging(str(tmp_path / "s"), 3600)
    _, over = new_staging(str(tmp_path / "s"), -1)
    db.close()
    again = open_database(tmp_path / "s")
    assert {f"{layout.tablet_directory(tablet)}/{path.name}" for path in folder.iterdir()} == named
    assert rows(again["t"]) == [(1, 1)]
    assert Path(alive).exists() and not Path(over).exists()
    again.close()


def test_t1_timestamps_only_increase(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They increase even if the clock stands still or steps back, and after a reopen. The logger warns."""
    clock = ManualClock(10_000_000_000)
    db = open_database(tmp_path / "s", clock=clock)
    table = key_value_table(db)
    first = table.insert({"k": [1], "v": [1]}).timestamp
    assert table.insert({"k": [2], "v": [2]}).timestamp > first
    clock.set_now_us(10_000_000_000 - 60_000_000)
    second = table.insert({"k": [3], "v": [3]}).timestamp
    assert second > first
    assert "stepped back" in caplog.text
    db.close()
    db = open_database(tmp_path / "s", clock=clock)
    assert db["t"].insert({"k": [4], "v": [4]}).timestamp > second
    db.close()


def test_t1_a_clock_that_is_days_behind_does_not_stop_writes(tmp_path: Path) -> None:
    """Timestamps follow the clock again when it has caught up."""
    day = 24 * 3600 * 1_000_000
    clock = ManualClock(10 * day)
    db = open_database(tmp_path / "s", clock=clock)
    table = key_value_table(db)
    first = table.insert({"k": [1], "v": [1]}).timestamp
    clock.set_now_us(2 * day)
    assert table.insert({"k": [2], "v": [2]}).timestamp == first + 2
    clock.set_now_us(10 * day + 1)
    assert table.insert({"k": [3], "v": [3]}).timestamp == from_physical(10 * day + 1)
    db.close()


def test_t2_a_moment_after_the_newest_batch_reads_the_newest_batch(tmp_path: Path) -> None:
    """A moment in the future is refused."""
    clock = ManualClock(1_000_000)
    db = open_database(tmp_path / "s", clock=clock)
    table = key_value_table(db)
    written = table.insert({"k": [1], "v": [1]}).timestamp
    clock.advance(5)
    scan = table.scan(at=from_physical(4_000_000, LOGICAL_MAX))
    assert scan.timestamp == written
    table.insert({"k": [2], "v": [2]})
    assert scan.count() == 1
    with pytest.raises(InvalidArgumentError, match="future"):
        table.scan(at=from_physical(60_000_000))
    db.close()


def test_z1_a_block_with_a_matching_delta_is_not_skipped(tmp_path: Path) -> None:
    """The zone map of the block excludes the updated value."""
    db = open_database(tmp_path / "s")
    table = key_value_table(db)
    before = table.insert({"k": list(range(1000)), "v": list(range(1000))})
    db.flush()
    assert table.scan(where="v = 5000").explain().to_dict()["splits_skipped"] == 1
    changed = table.update({"k": [7], "v": [5000]})
    for _ in range(2):  # the change is in the DeltaMemStore, then in a REDO file
        assert rows(table, where="v = 5000") == [(7, 5000)]
        assert rows(table, where="v = 7") == []
        assert rows(table, at=before, where="v = 7") == [(7, 7)]
        assert rows(table, at=before, where="v = 5000") == []
        db.flush()
    table.update({"k": [7], "v": [7]})
    db.flush()
    assert rows(table, at=changed, where="v = 5000") == [(7, 5000)]
    for compaction in (lambda: _major(db, "v"), lambda: _merge(db)):
        compaction()  # the old values are in UNDO, and not in the zone map
        assert rows(table, where="v = 5000") == [] and rows(table, where="v = 7") == [(7, 7)]
        assert rows(table, at=changed, where="v = 5000") == [(7, 5000)]
        assert rows(table, at=changed, where="v = 7") == []
        assert rows(table, at=before, where="v = 7") == [(7, 7)]
    assert table.scan(where="v = 5000").explain().to_dict()["splits_skipped"] == 1
    db.close()


def test_a_database_is_closed_by_its_context(tmp_path: Path) -> None:
    """Then every call raises an error, and the lock is free for the next writer."""
    with nyala.connect(tmp_path / "s") as db:
        table = key_value_table(db)
        table.insert(pa.table({"k": [1], "v": [1]}))
    with pytest.raises(StorageError, match="closed"):
        table.count()
    assert isinstance(db, Database)
    nyala.connect(tmp_path / "s").close()
