"""Alterations beside writers, flushes, compactions and readers, and power cuts during them."""

from __future__ import annotations

import json
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support import folder_in_memory, open_database, rows

import nyala
from nyala.api.database import Database
from nyala.env import SYSTEM, Files, system_files
from nyala.partition.ranges import RangeBound
from nyala.schema.schema import column
from nyala.tablet import alter as steps
from nyala.tablet.alter import alter
from nyala.tablet.compaction import file_jobs
from nyala.tablet.compaction.lifecycle import compact, run_here
from nyala.tablet.compaction.plans import MergePlan
from nyala.tablet.flush.file_jobs import Written, decode_written, run_spilled, spill
from nyala.tablet.flush.lifecycle import flush
from nyala.tablet.recovery.reader_store import ReaderStore
from nyala.testing.recording_files import RecordingFiles


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s"


def table(db: Database, **spec: Any) -> Any:
    return db.create_table("t", {"k": "int64", "v": "int32", "gone": "string", **spec}, "k")


def widen(db: Database) -> None:
    with db["t"].alter() as a:
        a.alter_column("v", type="int64")
        a.drop_column("gone")
        a.add_column("new", "int64", default=7)


class Late:
    """Data that calls a function when it is first used."""

    def __init__(self, data: pa.Table, happens: Callable[[], None]) -> None:
        self._data, self._happens = data, [happens]

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        while self._happens:
            self._happens.pop()()
        return self._data.__arrow_c_stream__(requested_schema)


# ------------------------------------------------------------------------------------------------ writers


def test_l2_a_write_that_was_prepared_for_an_older_schema_is_prepared_again(path: Path) -> None:
    """L2: the write uses the present defaults and types, or it fails and writes nothing."""
    with open_database(path) as db:
        t = table(db)
        result = t.insert(Late(pa.table({"k": [1], "v": [1]}), lambda: widen(db)))
        assert result.inserted == 1
        assert t.get({"k": 1}) == {"k": 1, "v": 1, "new": 7}

        def drop() -> None:
            with t.alter() as a:
                a.drop_column("new")

        with pytest.raises(nyala.ColumnNotFoundError, match="an unknown column 'new'"):
            t.upsert(Late(pa.table({"k": [1, 2], "new": [1, 2]}), drop))

        def rename() -> None:
            with t.alter() as a:
                a.rename("u")

        with pytest.raises(nyala.TableNotFoundError, match="no table 't'"):
            db["t"].insert(Late(pa.table({"k": [3]}), rename))
        assert rows(db["u"]) == [(1, 1)]


@pytest.mark.parametrize("directly", [False, True])
def test_l2_every_kind_of_batch_is_prepared_again(path: Path, directly: bool) -> None:
    """Batches in the log, batches that are committed as files, and batches of several tables."""
    with open_database(path, direct_commit_bytes=1 if directly else 1 << 26) as db:
        t = table(db)
        other = db.create_table("other", {"k": "int64"}, "k")
        t.insert({"k": range(10), "v": range(10), "gone": ["x"] * 10})
        data = pa.table({"k": list(range(5, 15)), "v": [2**20] * 10})
        result = t.upsert(Late(data, lambda: widen(db)))
        assert (result.inserted, result.updated) == (5, 5)
        expected = [(k, k, 7) for k in range(5)] + [(k, 2**20, 7) for k in range(5, 15)]
        assert rows(t) == expected

        def drop_new() -> None:
            with t.alter() as a:
                a.drop_column("new")

        with (
            pytest.raises(nyala.ColumnNotFoundError, match="an unknown column 'new'"),
            db.batch() as batch,
        ):
            batch.insert("other", {"k": [1]})
            batch.upsert("t", Late(pa.table({"k": [1], "new": [1]}), drop_new))
        assert other.count() == 0 and rows(t) == [row[:2] for row in expected]


def test_a_write_into_a_range_that_was_dropped_meanwhile(path: Path) -> None:
    with open_database(path) as db:
        t = db.create_table("t", {"k": "int64"}, "k", nyala.range_partition("k", bounds=[(0, 10), (10, 20)]))

        def drop() -> None:
            with t.alter() as a:
                a.drop_range(0, 10)

        with pytest.raises(nyala.NoPartitionError):
            t.insert(Late(pa.table({"k": [5, 15]}), drop))
        assert t.count() == 0
        assert t.insert({"k": [15]}).inserted == 1


def test_l1_an_alteration_applies_its_steps_to_the_present_table(path: Path) -> None:
    """A step may have become invalid since it was given."""
    with open_database(path) as db:
        t = table(db)
        with pytest.raises(nyala.SchemaError, match="'new' already"), t.alter() as a:
            a.add_column("new", "int8")
            widen(db)
        with t.alter() as a:
            a.add_column("b", "int8")
            with t.alter() as other:
                other.add_column("a", "int8")
        assert t.schema.names == ["k", "v", "new", "a", "b"]
        with (
            pytest.raises(nyala.TableNotFoundError, match="dropped before it could be altered"),
            t.alter() as a,
        ):
            a.drop_column("a")
            db.drop_table("t")


def test_writers_readers_and_alterations_at_once(path: Path) -> None:
    """Rows are written under one version, scans have one version, and no row is lost."""
    with open_database(path) as db:
        t = db.create_table("t", {"k": "int64", "a": "int8"}, "k")
        failures: list[BaseException] = []
        done = threading.Event()

        def guarded(work: Callable[[], None]) -> threading.Thread:
            def run() -> None:
                try:
                    work()
                except BaseException as error:
                    failures.append(error)
                    done.set()

            thread = threading.Thread(target=run)
            thread.start()
            return thread

        def write(start: int) -> Callable[[], None]:
            def work() -> None:
                for k in range(start, start + 60):
                    t.insert({"k": [k], "a": [k % 100]})
                    if k % 20 == 0:
                        db.flush()

            return work

        def read() -> None:
            while not done.is_set():
                scan = t.scan(order_by_key=True)
                found = scan.to_arrow()
                assert found.schema == scan.schema
                assert found.column("a").to_pylist() == [k % 100 for k in found.column("k").to_pylist()]
                assert t.scan(at=scan.timestamp, order_by_key=True).to_arrow() == found

        reader = guarded(read)
        writers = [guarded(write(0)), guarded(write(1000))]
        for n in range(12):
            with t.alter() as a:
                a.add_column(f"c{n}", "int64", default=n)
                if n:
                    a.drop_column(f"c{n - 1}")
                if n == 5:
                    a.alter_column("a", type="int16")
        for thread in writers:
            thread.join()
        done.set()
        reader.join()
        assert not failures
        assert t.count() == 120 and t.schema.names == ["k", "a", "c11"]
        assert set(t.to_arrow().column("c11").to_pylist()) == {11}


# ------------------------------------------------------------------------------------------------ flushes, compactions


@pytest.mark.parametrize("at", ["frozen", "written"])
def test_an_alteration_during_a_flush(path: Path, at: str) -> None:
    """Frozen rows with the old columns, and later changes, are read under the new schema."""
    db = open_database(path)
    t = table(db)
    t.insert({"k": [1, 2], "v": [1, 2], "gone": ["a", "b"]})
    before = db.now()

    def phase(name: str) -> None:
        if name == at:
            widen(db)
            t.update({"k": [1], "v": [2**40], "new": [1]})
            t.insert({"k": [3], "v": [2**41]})

    flush(db._writer(), phase=phase)
    expected = [(1, 2**40, 1), (2, 2, 7), (3, 2**41, 7)]
    assert rows(t) == expected and rows(t, at=before) == [(1, 1, "a"), (2, 2, "b")]
    db.close()
    db = open_database(path)
    assert rows(db["t"]) == expected and rows(db["t"], at=before) == [(1, 1, "a"), (2, 2, "b")]
    db.flush()
    db["t"].compact()
    assert rows(db["t"]) == expected and rows(db["t"], at=before) == [(1, 1, "a"), (2, 2, "b")]
    db.close()


@pytest.mark.parametrize("at", ["reserved", "written"])
def test_an_alteration_during_a_merge(path: Path, at: str) -> None:
    """The merge writes the old columns, and changes of new columns move to its rowsets."""
    db = open_database(path)
    t = table(db)
    for k in (1, 2):
        t.insert({"k": [k, k + 10], "v": [k, k], "gone": ["a", "b"]})
        db.flush()
    before = db.now()
    state = db._root().table("t")

    def phase(name: str) -> None:
        if name == at:
            widen(db)
            t.update({"k": [1], "v": [2**40], "new": [1]})

    plan = MergePlan(tuple(rowset.id for rowset in state.tablets[0].rowsets), 0.0)
    assert compact(db._writer(), state.id, state.tablets[0].id, plan, run_here(db._writer()), phase=phase)
    expected = [(1, 2**40, 1), (2, 2, 7), (11, 1, 7), (12, 2, 7)]
    old = [(1, 1, "a"), (2, 2, "a"), (11, 1, "b"), (12, 2, "b")]
    for _ in range(2):
        assert rows(t) == expected and rows(t, at=before) == old
        db.close()
        db = open_database(path)
        t = db["t"]
        t.compact()
    db.close()


def test_flushes_and_merges_in_another_process_write_the_same(path: Path) -> None:
    """A worker process writes the same files, also for rows of several versions and dropped columns."""
    db = open_database(path)
    t = table(db)
    t.insert({"k": [1, 2], "v": [1, 2], "gone": ["a", "b"]})
    before = db.now()
    widen(db)
    t.insert({"k": [3], "v": [2**40]})
    t.update({"k": [1], "new": [1]})
    store = db._writer()

    def write_in_worker(files: Files, root_path: str, pieces: Any) -> list[Written]:
        job = json.loads(json.dumps(spill(files, root_path, "data/spill", pieces)))
        return decode_written(json.loads(json.dumps(run_spilled(files, job))))

    def merge_in_worker(job: Any, reservation: Any) -> Any:
        kind, arguments = file_jobs.encode_job(job)
        made = file_jobs.run(
            SYSTEM,
            file_jobs.decode_job(kind, json.loads(json.dumps(arguments))),
            lambda done, total: None,
        )
        return file_jobs.decode_output(json.loads(json.dumps(file_jobs.encode_output(made))))

    expected, old = [(1, 1, 1), (2, 2, 7), (3, 2**40, 7)], [(1, 1, "a"), (2, 2, "b")]
    flush(store, write=write_in_worker)
    assert rows(t) == expected and rows(t, at=before) == old
    state = db._root().table("t")
    assert len(state.tablets[0].rowsets) == 2
    plan = MergePlan(tuple(rowset.id for rowset in state.tablets[0].rowsets), 0.0)
    assert compact(store, state.id, state.tablets[0].id, plan, merge_in_worker)
    assert rows(t) == expected and rows(t, at=before) == old
    db.close()
    with open_database(path) as db:
        assert rows(db["t"]) == expected and rows(db["t"], at=before) == old


def test_a_range_that_is_dropped_during_a_flush_and_a_merge(path: Path) -> None:
    """The files for the dropped range are removed, and the flush and the merge continue."""
    with open_database(path) as db:
        t = db.create_table("t", {"k": "int64"}, "k", nyala.range_partition("k", bounds=[(0, 10), (10, 20)]))
        t.insert({"k": [1, 11]})

        def drop(name: str) -> None:
            if name == "written":
                with t.alter() as a:
                    a.drop_range(0, 10, purge=True)

        flush(db._writer(), phase=drop)
        assert t.count() == 1
        for k in (12, 13):
            t.insert({"k": [k]})
            db.flush()
        state = db._root().table("t")

        def drop_other(name: str) -> None:
            if name == "written":
                with t.alter() as a:
                    a.drop_range(10, 20, purge=True)

        plan = MergePlan(tuple(rowset.id for rowset in state.tablets[0].rowsets), 0.0)
        tablet = state.tablets[0].id
        assert compact(db._writer(), state.id, tablet, plan, run_here(db._writer()), phase=drop_other) is None
        assert t.count() == 0 and t.tablets() == []
        del state
        db._writer().collect_garbage()
        assert not [file for file in (path / "data").rglob("*") if file.is_file()]


def test_an_alteration_writes_the_same_for_tables_of_any_size(path: Path) -> None:
    """Bytes, syncs and files are the same for a few rows and for ten thousand times as many."""
    written = []
    for rows_in_tablet in (1, 10_000):
        recording = RecordingFiles(system_files(), str(path))
        path.mkdir(exist_ok=True)
        with open_database(path / str(rows_in_tablet), files=recording) as db:
            t = db.create_table(
                "t", {"k": "int64", "v": "int32", "gone": "string"}, "k", nyala.hash_partition("k", buckets=4)
            )
            for first in (0, rows_in_tablet * 4):  # rows in files, then rows in memory
                db.flush()
                t.insert({"k": range(first, first + rows_in_tablet * 4)})
            begun = len(recording.events)
            widen(db)
            written.append([(event.kind, len(event.data or b"")) for event in recording.events[begun:]])
    assert [kind for kind, _ in written[0]] == [kind for kind, _ in written[1]]
    assert sum(size for _, size in written[1]) < sum(size for _, size in written[0]) + 10_000


# ------------------------------------------------------------------------------------------------ reader processes


def test_a_reader_process_follows_alterations(path: Path) -> None:
    """A reader has the columns of the version that it has loaded."""
    db = open_database(path)
    t = table(db)
    t.insert({"k": [1], "v": [1], "gone": ["a"]})
    reader = Database(ReaderStore.open(SYSTEM, str(path), 1 << 26))
    old = reader["t"].scan()
    before = db.now()
    assert rows(reader["t"]) == [(1, 1, "a")]
    widen(db)
    t.update({"k": [1], "v": [2**40]})
    t.insert({"k": [2], "v": [2]})
    assert rows(reader["t"]) == [(1, 2**40, 7), (2, 2, 7)]
    assert rows(reader["t"], at=before) == [(1, 1, "a")]
    assert old.to_arrow().to_pylist() == [{"k": 1, "v": 1, "gone": "a"}]
    db.flush()
    t.compact()
    with t.alter() as a:
        a.rename_column("v", "w")
    assert reader["t"].schema.names == ["k", "w", "new"]
    assert rows(reader["t"], at=before) == [(1, 1, "a")]
    reader.close()
    db.close()


def test_a_reader_process_sees_a_purged_range(path: Path) -> None:
    db = open_database(path)
    t = db.create_table("t", {"k": "int64"}, "k", nyala.range_partition("k", bounds=[(0, 10), (10, 20)]))
    t.insert({"k": [1, 11]})
    db.flush()
    before = db.now()
    reader = Database(ReaderStore.open(SYSTEM, str(path), 1 << 26))
    old = reader["t"].scan()
    with t.alter() as a:
        a.drop_range(0, 10, purge=True)
    db._writer().collect_garbage()
    first = path / "data" / "1"
    assert old.count() == 2 and any(first.iterdir()), "its lease keeps the files"
    assert rows(reader["t"]) == [(11,)]
    with pytest.raises(nyala.HistoryExpiredError, match=r"RANGE \(k\) \[0, 10\)"):
        reader["t"].scan(at=before).count()
    reader.close()
    db._writer().collect_garbage()
    assert not any(first.iterdir()), "the files are removed with the lease"
    db.close()


def test_a_token_is_read_with_its_own_schema(path: Path) -> None:
    with open_database(path) as db:
        t = table(db)
        t.insert({"k": [1], "v": [1], "gone": ["a"]})
        db.flush()
        t.update({"k": [1], "v": [2]})
        before = t.scan().tokens()
        widen(db)
        t.update({"k": [1], "v": [2**40]})
        after, then = t.scan().tokens(), t.scan(where="v > 0", at=db.now(), schema="at").tokens()

        def read(tokens: list[bytes]) -> list[dict[str, Any]]:
            return [
                row
                for data in tokens
                for batch in nyala.api.scan.read_token(data)
                for row in batch.to_pylist()
            ]

        assert read(before) == [{"k": 1, "v": 2, "gone": "a"}]
        assert read(after) == read(then) == [{"k": 1, "v": 2**40, "new": 7}]


# ------------------------------------------------------------------------------------------------ failures and crashes


def everything(db: Database) -> dict[str, Any]:
    return {
        name: (db[name].schema.names, [tablet.partition for tablet in db[name].tablets()], rows(db[name]))
        for name in db.list_tables()
    }


ALL_STEPS = [
    steps.add_column("new", column("int64", default=7)),
    steps.drop_column("gone"),
    steps.change_column("v", type="int64"),
    steps.rename_column("k", "key"),
    steps.drop_range(RangeBound(0, 10)),
    steps.add_range(RangeBound(20, 30)),
    steps.rename_table("u"),
]


def prepared(path: Path, files: Files | None = None) -> Database:
    db = open_database(path, files=files)
    t = db.create_table(
        "t", {"k": "int64", "v": "int32", "gone": "string"}, "k",
        nyala.range_partition("k", bounds=[(0, 10), (10, 20)]),
    )  # fmt: skip
    t.insert({"k": [1, 11], "v": [1, 2], "gone": ["a", "b"]})
    db.flush()
    t.insert({"k": [2, 12], "v": [3, 4], "gone": ["c", "d"]})
    return db


def test_an_alteration_that_cannot_be_committed_changes_nothing(path: Path) -> None:
    """The disk is full. The next try succeeds."""
    db = prepared(path)
    seen = everything(db)
    store = db._writer()
    commit = store._commit

    def refuse(change: Any) -> Any:
        raise nyala.StorageError("no room")

    store._commit = refuse  # type: ignore[method-assign]
    with pytest.raises(nyala.StorageError, match="no room"):
        alter(store, 1, ALL_STEPS)
    store._commit = commit  # type: ignore[method-assign]
    assert everything(db) == seen
    db["t"].insert({"k": [3], "v": [5], "gone": ["e"]})
    db["t"].delete({"k": [3]})
    alter(store, 1, ALL_STEPS)
    expected = everything(db)
    assert expected == {"u": (["key", "v", "new"], [*expected["u"][1]], [(11, 2, 7), (12, 4, 7)])}
    db.close()
    with open_database(path) as db:
        assert everything(db) == expected


def test_a_power_cut_at_every_event_of_an_alteration() -> None:
    """After a power cut, all steps are applied or none (L1), and the store accepts writes."""
    with folder_in_memory() as folder:
        recording = RecordingFiles(system_files(), str(folder / "live"))
        (folder / "live").mkdir()
        db = prepared(folder / "live" / "s", recording)
        before, begun = everything(db), len(recording.events)
        alter(db._writer(), 1, ALL_STEPS)
        after, ended = everything(db), len(recording.events)
        db["u"].insert({"key": [13, 25], "v": [2**40, 1]})
        db.close()
        found = []
        for event in range(begun, ended + 1):
            for seed in range(3):
                image = folder / f"image-{event}-{seed}"
                recording.crash_image(event, random.Random(seed), str(image))
                with open_database(image / "s") as again:
                    state = everything(again)
                    found.append(state == after)
                    assert state in (before, after)
                    (name,) = again.list_tables()
                    key = again[name].primary_key[0]
                    again[name].upsert({key: [11], "v": [9]})
                    again[name].compact()
                    assert again[name].get({key: 11})["v"] == 9  # type: ignore[index]
                shutil.rmtree(image)
        assert found[-1] and not found[0]


def test_a_power_cut_at_every_event_of_a_repartition() -> None:
    """The table has its old tablets or its new ones, with the same rows and no other files."""
    with folder_in_memory() as folder:
        (folder / "live").mkdir()
        recording = RecordingFiles(system_files(), str(folder / "live"))
        db = prepared(folder / "live" / "s", recording)
        expected, begun = rows(db["t"]), len(recording.events)
        db["t"].repartition(nyala.hash_partition("k", buckets=2))
        ended = len(recording.events)
        assert rows(db["t"]) == expected
        db.close()
        seen = set()
        for event in range(begun, ended + 1):
            image = folder / f"image-{event}"
            recording.crash_image(event, random.Random(event), str(image))
            with open_database(image / "s") as again:
                assert rows(again["t"]) == expected
                seen.add(again["t"].tablets()[0].partition.split()[0])
                again["t"].compact()
                report = again.check()
                assert report.ok, report.problems
            shutil.rmtree(image)
        assert seen == {"RANGE", "HASH"}
