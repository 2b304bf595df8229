"""Loads, whose tasks write files: the result is the same as that of any write, also while others write."""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
import socket
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.loads import begin_request, content, env_of, open_with_table, run, stage, staged_job

import nyala
from nyala.env import SYSTEM
from nyala.errors import (
    DuplicateKeyError,
    HistoryExpiredError,
    InvalidArgumentError,
    SchemaError,
    StorageError,
    TableNotFoundError,
)
from nyala.handover import commits as handover
from nyala.schema.schema import build_schema
from nyala.tablet.compaction.lifecycle import compact, run_here
from nyala.tablet.compaction.plans import MergePlan
from nyala.tablet.jobs.load_commit import LoadCommit
from nyala.tablet.jobs.load_write import ROW, chunks, write_tablet
from nyala.tablet.state import store_folder as layout


@pytest.fixture
def db(tmp_path: Path) -> Iterator[nyala.Database]:
    with open_with_table(tmp_path / "store") as opened:
        yield opened


OTHERS: dict[str, Callable[[nyala.Database], object]] = {
    "insert of a loaded key": lambda db: db["t"].insert({"k": [5], "v": [-5], "w": ["x"]}),
    "update of a loaded key": lambda db: db["t"].update({"k": [1], "v": [-1], "w": ["x"]}),
    "delete of a loaded key": lambda db: db["t"].delete({"k": [1, 2]}),
    "delete and insert again": lambda db: (
        db["t"].delete({"k": [1]}), db["t"].insert({"k": [1], "v": [7], "w": ["x"]})),
    "insert and delete again": lambda db: (db["t"].insert({"k": [5], "v": [7]}), db["t"].delete({"k": [5]})),
    "other keys": lambda db: db["t"].upsert({"k": [100, 101], "v": [0, 0]}),
    "flush": lambda db: (db["t"].update({"k": [2], "w": ["x"]}), db["t"].flush()),
}  # fmt: skip


def test_the_message_of_a_load_is_committed(db: nyala.Database) -> None:
    with staged_job(db, "insert", {"k": [1, 2], "v": [1, 2], "w": ["a", "b"]}) as (job, _):
        handover.commit_load_files(db.path, dataclasses.replace(job, message="the load"), env_of(db))
    assert [(c.inserted, c.message) for c in db.commits()] == [(2, "the load")]


@pytest.mark.parametrize("what", OTHERS)
def test_rows_whose_keys_changed_during_the_load_are_resolved_again(db: nyala.Database, what: str) -> None:
    """The effect on each key is that of the moment of the commit."""
    db["t"].insert({"k": [1, 2, 3], "v": [1, 2, 3], "w": ["a", "b", "c"]})
    rows = {"k": [1, 2, 5, 6], "v": [10, 20, 50, 60]}
    run(db, "upsert", rows, lambda: OTHERS[what](db))
    found = content(db)
    db.create_table("u", {"k": "int64", "v": "int64", "w": nyala.column("string", default="none")}, ["k"])
    other = db["u"]
    other.insert({"k": [1, 2, 3], "v": [1, 2, 3], "w": ["a", "b", "c"]})
    OTHERS[what]({"t": other})  # type: ignore[arg-type]
    other.upsert(rows)
    assert found == {row["k"]: (row["v"], row["w"]) for row in other.to_arrow().to_pylist()}


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize(
    ("operation", "rows", "other", "expected", "counts"),
    [
        ("insert-ignore", {"k": [1, 2, 5, 1], "v": [10, 20, 50, 99]}, lambda t: t.delete({"k": [1]}),
         {1: (10, "none"), 2: (2, "b"), 5: (50, "none")}, {"inserted": 2, "ignored": 2}),
        ("insert-ignore", {"k": [1, 2], "v": [10, 20]}, lambda t: t.update({"k": [1], "v": [7]}),
         {1: (7, "a"), 2: (2, "b")}, {"inserted": 0, "ignored": 2}),
        ("upsert", {"k": [1, 2, 5]}, lambda t: t.delete({"k": [1]}),
         {1: (None, "none"), 2: (2, "b"), 5: (None, "none")}, {"inserted": 2, "updated": 1}),
        ("update-ignore", {"k": [2, 5], "v": [20, 50]}, lambda t: t.insert({"k": [5], "w": ["x"]}),
         {1: (1, "a"), 2: (20, "b"), 5: (50, "x")}, {"updated": 2, "ignored": 0}),
        ("delete-ignore", {"k": [2, 5, 6]}, lambda t: t.insert({"k": [5], "w": ["x"]}),
         {1: (1, "a")}, {"deleted": 2, "ignored": 1}),
    ],
)  # fmt: skip
def test_idle_rows_can_have_an_effect_at_the_commit(
    db: nyala.Database,
    operation: str,
    rows: dict[str, list[Any]],
    other: Callable[[Any], object],
    expected: dict[int, Any],
    counts: dict[str, int],
    flushed: bool,
) -> None:
    """Another write freed their keys, or inserted rows for them."""
    db["t"].insert({"k": [1, 2], "v": [1, 2], "w": ["a", "b"]})

    def meanwhile() -> None:
        other(db["t"])
        if flushed:
            db["t"].flush()

    answer = run(db, operation, rows, meanwhile)
    assert content(db) == expected
    assert {name: answer[name] for name in counts} == counts
    db["t"].compact()
    assert content(db) == expected
    assert list(Path(db.path).rglob("*idle*")) == []


@pytest.mark.parametrize("rows", [[1, 2], []])
def test_a_repeated_commit_of_a_job_without_effect_changes_nothing(
    db: nyala.Database, rows: list[int]
) -> None:
    """The first answer was lost, and others freed the ignored keys."""
    db["t"].insert({"k": [1, 2], "v": [1, 2], "w": ["a", "b"]})
    with staged_job(db, "insert-ignore", {"k": rows, "v": rows}) as (job, _):
        first = handover.commit_load_files(db.path, job)
        assert (first["inserted"], first["ignored"]) == (0, len(rows))
        db["t"].delete({"k": [1]})
        again = handover.commit_load_files(db.path, job)
    assert again["timestamp"] == first["timestamp"]
    assert content(db) == {2: (2, "b")}
    db.close()
    with nyala.connect(db.path, maintenance=False) as opened:
        assert opened._writer().committed(job.key).timestamp == first["timestamp"]


@pytest.mark.parametrize("links", [True, False])
def test_a_commit_that_failed_at_its_end_can_be_sent_again(
    db: nyala.Database, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    """Staged files keep their names, so no work is lost.

    Without hard links they are moved, and the error says to run the job again.
    """
    store = db._store
    db["t"].insert({"k": [1], "v": [1]})
    if not links:
        monkeypatch.setattr(type(SYSTEM.files), "link", lambda self, old, new: False)

    def full(*_: object, **__: object) -> None:
        raise StorageError("the disk is full")

    with staged_job(db, "upsert", {"k": [1, 2], "v": [5, 5]}) as (job, _):
        with monkeypatch.context() as patch:
            patch.setattr(store, "transact", full)
            with pytest.raises(StorageError, match="the disk is full"):
                handover.commit_load_files(db.path, job)
        named = {*store.state.files(), *store.state.garbage}
        data = [path for path in (Path(db.path) / "data").rglob("*") if path.is_file()]
        assert {str(path.relative_to(db.path)) for path in data} <= named, "the linked files are removed"
        if links:
            answer = handover.commit_load_files(db.path, job)
            assert (answer["inserted"], answer["updated"]) == (1, 1)
        else:
            with pytest.raises(StorageError, match="Nothing was written: run the job again"):
                handover.commit_load_files(db.path, job)
    assert content(db) == ({1: (5, "none"), 2: (5, "none")} if links else {1: (1, "none")})


def test_rows_that_failed_in_the_tasks_stay_failed(db: nyala.Database) -> None:
    """A row that failed in its task stays failed, even if its key is free at the commit."""
    db["t"].insert({"k": [1], "v": [1], "w": ["a"]})
    answer = run(db, "insert", {"k": [1, 5], "v": [10, 50]}, lambda: db["t"].delete({"k": [1]}), collect=True)
    assert (answer["failed"], answer["inserted"]) == (1, 1)
    assert content(db) == {5: (50, "none")}


def test_a_rowset_that_was_merged_during_the_load(db: nyala.Database) -> None:
    """A new writer process did not know that the job held it. Its rows are found by key."""
    db["t"].insert({"k": list(range(60)), "v": [0] * 60})
    db["t"].flush()
    db["t"].insert({"k": list(range(60, 120)), "v": [0] * 60})

    def merge() -> None:
        with db._store.commit_lock:
            for lease in list(db._store.job_reservations._by_lease):
                db._store.job_reservations.release(db._store, lease)
        db["t"].compact()

    run(db, "upsert", {"k": list(range(0, 130, 10)), "v": [1] * 13}, merge)
    assert [k for k, (v, _) in sorted(content(db).items()) if v == 1] == list(range(0, 130, 10))


def test_held_rowsets_are_not_merged(db: nyala.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """No compaction merges held rowsets as long as the lease of the job is valid."""
    from nyala.tablet import manual_maintenance

    monkeypatch.setattr(manual_maintenance, "WAIT_S", 0.0)
    for begin in (0, 1):
        db["t"].insert({"k": list(range(begin, 60, 2)), "v": [0] * 30})
        db["t"].flush()
    seen = []

    def check_held() -> None:
        tablets = db._store.root.table("t").tablets
        seen.append(all(db._store.reservations.taken(r.id) for tablet in tablets for r in tablet.rowsets))

    run(db, "upsert", {"k": [1], "v": [1]}, check_held)
    assert seen == [True]
    assert db._store.job_reservations._by_lease == {}
    db["t"].compact()
    assert {tablet.rowsets for tablet in db["t"].tablets()} == {1}


@pytest.mark.parametrize("flushed", [False, True])
def test_a_job_that_ran_longer_than_the_history(db: nyala.Database, flushed: bool) -> None:
    """Changes since S are no longer known, so all of its rows are resolved again."""
    with db["t"].alter() as a:
        a.set_history(0)
    db["t"].insert({"k": list(range(20)), "v": [0] * 20})
    db["t"].flush()

    def others() -> None:
        db["t"].insert({"k": [100, 101], "v": [1, 1], "w": ["x", "x"]})
        db["t"].delete({"k": [5]})
        db["t"].update({"k": [6], "v": [6]})
        if flushed:
            db["t"].flush()
            with (
                db._store.commit_lock
            ):  # as after a change of the writer process, which does not know of held rowsets
                for lease in list(db._store.job_reservations._by_lease):
                    db._store.job_reservations.release(db._store, lease)
            db["t"].compact()

    run(db, "upsert", {"k": [5, 6, 7, 100, 200], "v": [9] * 5}, others)
    keys = [row["k"] for row in db["t"].scan(order_by_key=True).to_arrow().to_pylist()]
    assert keys == [*range(20), 100, 101, 200]
    found = content(db)
    assert [found[k] for k in (5, 6, 7, 100, 101, 200)] == [
        (9, "none"), (9, "none"), (9, "none"), (9, "x"), (1, "x"), (9, "none")]  # fmt: skip
    db["t"].compact()
    assert content(db) == found


@pytest.mark.parametrize("phase", ["reserved", "written"])
def test_a_merge_is_revoked_if_rows_are_resolved_again(db: nyala.Database, phase: str) -> None:
    """Rows that are resolved again may change any rowset, also inputs of a merge."""
    table = db.create_table("one", {"k": "int64", "v": "int64"}, ["k"])
    state = db._store.root.table("one")

    def stored(count: int) -> list[int]:
        rowsets = db._store.root.table("one").tablets[0].rowsets
        assert len(rowsets) == count
        return [rowset.id for rowset in rowsets]

    table.insert({"k": list(range(60)), "v": [0] * 60})
    table.flush()
    with handover.loading(db.path, "one", 60, reserve=True) as (plan, _):
        key, absolute = handover.new_staging(db.path)
        rows = pa.table({"k": [5, 100], "v": [9, 9], ROW: pa.array([0, 1])})
        folder = f"{layout.STAGING_NAME}/{Path(absolute).name}"
        made, _ = write_tablet(SYSTEM, plan, 0, "upsert", iter(rows.to_batches()), folder, "task")
        for keys in ([100, 101], [99, 102]):
            table.insert({"k": keys, "v": [1, 1]})
            table.flush()
        files = {f.rowset.id: f for tablet in plan.tablets for f in tablet.rowsets}
        job = LoadCommit(
            key,
            plan.table_id,
            plan.schema.version,
            plan.snapshot,
            "upsert",
            ("k", "v"),
            (made,),
            files,
            False,
        )

        def commit(now: str) -> None:
            if now == phase:
                table.update({"k": [101], "v": [7]})
                handover.commit_load_files(db.path, job)

        merge = MergePlan(tuple(stored(3)[1:]), 1.0)
        compact(db._store, state.id, state.tablets[0].id, merge, run_here(db._store), phase=commit)
        handover.discard_staging(db.path, key)
    found = {row["k"]: row["v"] for row in table.scan().to_arrow().to_pylist()}
    assert [found[k] for k in (5, 99, 100, 101, 102)] == [9, 1, 9, 7, 1] and len(found) == 64


@pytest.mark.parametrize(
    ("type", "given", "rows"),
    [
        ("decimal(5,2)", pa.decimal128(6, 3), [Decimal("1.000") if n % 2 else Decimal("1.004") for n in range(400)]),
    ],
)  # fmt: skip
def test_values_that_become_one_key_are_in_one_chunk(type: str, given: pa.DataType, rows: list[Any]) -> None:
    """Different values that are cast to one key are in one chunk, so the key is inserted once."""
    column = build_schema({"k": type}, ["k"]).columns[0]
    batches = pa.table({"k": pa.array(rows, given)}).to_batches(max_chunksize=50)
    assert [len(chunk) for chunk in chunks(iter(batches), [column], 100)] == [400]


@pytest.mark.parametrize(
    "lease", ["x", "remote-", "remote-\0", "remote-" + "a" * 5000, "remote-../../x", "reader-1"]
)
def test_an_invalid_lease_is_refused(db: nyala.Database, lease: str) -> None:
    """A job with an invalid lease is refused, because its rowsets would be held forever."""
    with pytest.raises(
        nyala.InvalidArgumentError, match=r"not the name of a job's lease\..* use the same version"
    ):
        handover.request_writer(db.path, begin_request(lease))
    db["t"].compact()


def test_two_jobs_can_hold_the_same_rowsets(db: nyala.Database) -> None:
    """The rowsets stay held when the first job ends."""
    for begin in (0, 1):
        db["t"].insert({"k": list(range(begin, 60, 2)), "v": [0] * 30})
        db["t"].flush()
    store = db._store

    def ids() -> list[int]:
        return [rowset.id for tablet in store.root.table("t").tablets for rowset in tablet.rowsets]

    before = ids()
    first = handover.loading(db.path, "t", 60, reserve=True, what="nyala.spark.upsert")
    first.__enter__()
    (held,) = store.job_reservations.holders(before)
    assert held.holder == f"nyala.spark.upsert of process {os.getpid()} on {socket.gethostname()}"

    def end_the_first_job() -> None:
        first.__exit__(None, None, None)
        db["t"].compact()
        assert set(before) <= set(ids())

    answer = run(db, "upsert", {"k": list(range(60)), "v": [2] * 60}, end_the_first_job)
    assert answer["updated"] == 60
    assert store.job_reservations._by_lease == {}
    db["t"].compact()
    assert {tablet.rowsets for tablet in db["t"].tablets()} == {1}
    assert {v for v, _ in content(db).values()} == {2}


def test_rowsets_are_released_when_the_lease_expires(db: nyala.Database) -> None:
    """A driver that was killed cannot release them."""
    db["t"].insert({"k": [1], "v": [1]})
    lease = handover.remote_lease(db.path, 60)
    handover.request_writer(db.path, begin_request(lease.name))
    store = db._store
    (rowset,) = [r for tablet in store.root.table("t").tablets for r in tablet.rowsets]
    store.job_reservations.release_expired(store)
    assert store.reservations.taken(rowset.id)
    lease.release()
    store.job_reservations.release_expired(store)
    assert not store.reservations.taken(rowset.id)


@pytest.mark.parametrize("collect", [False, True])
def test_an_insert_of_a_key_that_was_inserted_during_the_load(db: nyala.Database, collect: bool) -> None:
    """It is a row error at the commit; `collect` writes the other rows."""
    rows = {"k": [1, 2, 3], "v": [1, 2, 3], "w": ["a", "b", "c"]}

    def other() -> None:
        db["t"].insert({"k": [2], "v": [-2], "w": ["x"]})

    if collect:
        answer = run(db, "insert", rows, other, collect=True)
        assert (answer["inserted"], answer["errors"]["k"].to_pylist()) == (2, [2])
        assert content(db) == {1: (1, "a"), 2: (-2, "x"), 3: (3, "c")}
    else:
        with pytest.raises(DuplicateKeyError, match="k=2"):
            run(db, "insert", rows, other)
        assert content(db) == {2: (-2, "x")}


def test_failed_rows_have_their_number_in_the_job(db: nyala.Database) -> None:
    """The tasks find duplicate keys and repeated rows."""
    db["t"].insert({"k": [2], "v": [2], "w": ["b"]})
    with handover.loading(db.path, "t", 60, reserve=False) as (plan, _):
        key, absolute = handover.new_staging(db.path)
        data = pa.table({"k": [9, 2, 9, 4], "v": [1, 2, 3, 4]})
        folder = f"{layout.STAGING_NAME}/{Path(absolute).name}"
        _, errors = stage(db, plan, folder, "insert", data)
        handover.discard_staging(db.path, key)
    found = pa.concat_tables(errors).sort_by("row").select(["row", "code", "k"]).to_pylist()
    assert found == [
        {"row": 1, "code": "already-present", "k": 2},
        {"row": 2, "code": "already-present", "k": 9},
    ]


def test_a_table_dropped_during_the_load_is_an_error(db: nyala.Database) -> None:
    """The commit raises an error, and no file is left."""
    with pytest.raises(TableNotFoundError, match="dropped while the job ran"):
        run(db, "upsert", {"k": [1], "v": [1]}, lambda: db.drop_table("t"))


CUTS: dict[str, tuple[Callable[[nyala.Table], object], str]] = {
    "fewer buckets": (lambda t: t.repartition(nyala.hash_partition("k", buckets=2)), "table 't' was repartitioned"),
    "no ranges": (lambda t: t.repartition(nyala.hash_partition("k", buckets=3)), "table 't' was repartitioned"),
    "a range dropped": (lambda t: drop_range(t, 0, 100), "range partitions of table 't' were dropped"),
}  # fmt: skip


@pytest.mark.parametrize("what", CUTS)
def test_a_table_repartitioned_during_the_load_is_an_error(db: nyala.Database, what: str) -> None:
    change, says = CUTS[what]
    db["t"].repartition([nyala.hash_partition("k", buckets=3), nyala.range_partition("k", bounds=[(0, 100)])])
    with pytest.raises(SchemaError, match=f"{says} while the job ran, and nothing was written: run the job"):
        run(db, "upsert", {"k": [1, 2], "v": [1, 2]}, lambda: change(db["t"]))
    assert content(db) == {}


def drop_range(table: nyala.Table, lower: int, upper: int) -> None:
    with table.alter() as a:
        a.drop_range(lower, upper)


def test_missing_staged_files_and_files_of_other_folders_are_refused(db: nyala.Database) -> None:

    def lose() -> None:
        for path in (Path(db.path) / "staging").rglob("*.base"):
            path.unlink()

    with pytest.raises(StorageError, match="run the job again"):
        run(db, "insert", {"k": [1, 2, 3], "v": [1, 2, 3]}, lose)
    assert content(db) == {}
    with handover.loading(db.path, "t", 60, reserve=False) as (plan, _):
        key, _ = handover.new_staging(db.path)
        _, elsewhere = handover.new_staging(db.path)
        staged, _ = stage(
            db, plan, f"staging/{Path(elsewhere).name}", "insert", pa.table({"k": [1], "v": [1]})
        )
        job = LoadCommit(
            key,
            plan.table_id,
            plan.schema.version,
            plan.snapshot,
            "insert",
            ("k", "v"),
            tuple(staged),
            {},
            False,
        )
        with pytest.raises(InvalidArgumentError, match="not in the job.s folder"):
            handover.commit_load_files(db.path, job)
    assert content(db) == {}


def remove_rowsets(db: nyala.Database) -> None:
    """Remove a plan's files, as a merge does after the end of all leases."""
    for path in (Path(db.path) / "data").rglob("*.base"):
        path.unlink()


def test_a_task_after_the_end_of_its_lease_raises(db: nyala.Database) -> None:
    """If the lease has ended, files of the task were removed. The error names the lease, not the disk."""
    db["t"].insert({"k": list(range(20)), "v": [0] * 20})
    with handover.loading(db.path, "t", 60, reserve=True) as (plan, _):
        key, absolute = handover.new_staging(db.path)
        remove_rowsets(db)
        with pytest.raises(
            HistoryExpiredError, match=r"table 't'.*\.base.*lease .*has ended.*`lease` that is longer"
        ):
            stage(db, plan, f"staging/{Path(absolute).name}", "upsert", pa.table({"k": [1], "v": [1]}))
        handover.discard_staging(db.path, key)


def test_a_commit_after_the_end_of_its_lease_raises(db: nyala.Database) -> None:
    """A rowset with staged changes was merged and its file removed, so the commit is refused."""
    for begin in (0, 1):
        db["t"].insert({"k": list(range(begin, 60, 2)), "v": [0] * 30})
        db["t"].flush()
    before = content(db)

    def others() -> None:
        with db._store.commit_lock:
            for lease in list(db._store.job_reservations._by_lease):
                db._store.job_reservations.release(db._store, lease)
        db["t"].compact()
        tablets = db._store.root.table("t").tablets
        living = {Path(r.meta.path).name for tablet in tablets for r in tablet.rowsets}
        for path in (Path(db.path) / "data").rglob("*.base"):
            if path.name not in living:
                path.unlink()

    with pytest.raises(HistoryExpiredError, match=r"table 't'.*lease .*has ended.*Run the job again"):
        run(db, "upsert", {"k": list(range(10)), "v": [1] * 10}, others)
    assert content(db) == before


def test_a_load_without_an_open_store(db: nyala.Database) -> None:
    """Each step takes the lock for a short time."""
    db["t"].insert({"k": [1], "v": [1], "w": ["a"]})
    schema = db["t"].schema
    db.close()
    with handover.loading(db.path, "t", 60, reserve=True) as (plan, _):
        key, absolute = handover.new_staging(db.path)
        table = plan.table_state(None, range(3))
        data = pa.table({"k": [1, 2], "v": [10, 20], ROW: [0, 1]})
        places = table.router.route({"k": data["k"].combine_chunks()}, 2)
        staged = [
            write_tablet(
                SYSTEM, plan, ordinal, "upsert", iter(data.filter(pa.array(places == ordinal)).to_batches()),
                f"staging/{key}", f"task-{ordinal}",
            )[0]
            for ordinal in sorted(set(places.tolist()))
        ]  # fmt: skip
        files = {f.rowset.id: f for tablet in plan.tablets for f in tablet.rowsets}
        job = LoadCommit(
            key,
            plan.table_id,
            plan.schema.version,
            plan.snapshot,
            "upsert",
            ("k", "v"),
            tuple(staged),
            files,
            False,
        )
        handover.commit_load_files(db.path, job)
    assert schema is not None and absolute
    with nyala.connect(db.path, read_only=True) as again:
        assert content(again) == {1: (10, "a"), 2: (20, "none")}


def write_at_random(
    db: nyala.Database,
    rng: random.Random,
    expected: dict[int, tuple[int | None, str | None]],
    deleting: float,
) -> None:
    """Write some batches, and return the table's rows. deleting: the share of deletes."""
    for _ in range(rng.randrange(3)):
        keys = rng.sample(range(40), rng.randrange(1, 10))
        if rng.random() < deleting:
            db["t"].delete({"k": keys}, on_missing="ignore")
            for key in keys:
                expected.pop(key, None)
        else:
            db["t"].upsert({"k": keys, "w": [f"w{key}" for key in keys]})
            for key in keys:
                expected[key] = (expected.get(key, (None, ""))[0], f"w{key}")
    if rng.random() < 0.3:
        db["t"].flush()


def test_random_jobs_beside_random_writes(db: nyala.Database) -> None:
    """The table equals one that executed the same calls in the order of their commits."""
    rng = random.Random(3)
    expected: dict[int, tuple[int | None, str | None]] = {}

    def write() -> None:
        write_at_random(db, rng, expected, deleting=0.4)

    moments = []
    for number in range(12):
        write()
        keys = rng.sample(range(40), 12)
        run(db, "upsert", {"k": keys, "v": [number] * 12}, write)
        for key in keys:
            expected[key] = (number, expected.get(key, (None, "none"))[1])
        if rng.random() < 0.2:
            db["t"].compact()
        assert content(db) == expected, number
        moments.append((db.now(), dict(expected)))
    for moment, then in moments:
        assert {
            row["k"]: (row["v"], row["w"]) for row in db["t"].scan(at=moment).to_arrow().to_pylist()
        } == then


def test_random_inserts_that_ignore_beside_random_writes(db: nyala.Database) -> None:
    """The moment of the commit counts, whether the key existed at S or not."""
    rng = random.Random(5)
    expected: dict[int, tuple[int | None, str | None]] = {}

    def write() -> None:
        write_at_random(db, rng, expected, deleting=0.6)

    for number in range(10):
        write()
        keys = [rng.randrange(40) for _ in range(25)]
        rows: dict[str, list[Any]] = {"k": keys}
        operation = rng.choice(["insert-ignore", "upsert"])
        if operation == "insert-ignore":
            rows["v"] = [number * 100 + place for place in range(25)]
        answer = run(db, operation, rows, write)
        assert answer["inserted"] + answer["updated"] + answer["ignored"] == 25
        for place, key in enumerate(keys):
            expected.setdefault(key, (rows["v"][place] if "v" in rows else None, "none"))
        if rng.random() < 0.2:
            db["t"].compact()
        assert content(db) == expected, number


@pytest.mark.parametrize("operation", ["insert-ignore", "upsert", "delete-ignore"])
def test_counts_are_those_of_the_commit(db: nyala.Database, operation: str) -> None:
    """If a key was deleted since S, an upsert of three of its rows counts as one insert and two updates."""
    rng = random.Random(11)
    columns = {"k": "int64", "v": "int64", "w": nyala.column("string", default="none")}
    table, other = db["t"], db.create_table("u", columns, ["k"])
    call: dict[str, Callable[[dict[str, list[int]]], Any]] = {
        "insert-ignore": lambda rows: other.insert(rows, "ignore"),
        "upsert": other.upsert,
        "delete-ignore": lambda rows: other.delete(rows, on_missing="ignore"),
    }
    for number in range(5):
        write_at_random(db, rng, {}, deleting=0.5)
        keys = [rng.randrange(40) for _ in range(60)]
        rows = {"k": keys} if operation.startswith("delete") else {"k": keys, "v": list(range(60))}
        with staged_job(db, operation, rows) as (job, failed):
            write_at_random(db, rng, {}, deleting=0.5)
            other.delete(where="TRUE")
            other.insert(table.to_arrow())
            answer = handover.commit_load_files(db.path, job)
        expected = call[operation](rows)
        counts = {name: getattr(expected, name) for name in ("inserted", "updated", "deleted", "ignored")}
        assert ({name: answer[name] for name in counts}, failed) == (counts, 0), number
        assert sorted(map(str, table.to_arrow().to_pylist())) == sorted(
            map(str, other.to_arrow().to_pylist())
        )


def test_counts_of_rows_that_lack_a_column_at_the_commit(db: nyala.Database) -> None:
    """Rows that lack a required column are counted differently from a normal write.

    Three rows update a key that was deleted meanwhile, without a required column. One of them is a
    row error, the others count as updates (docs/design/loads-and-jobs.md).
    """
    with db["t"].alter() as a:
        a.add_column("n", "int64", nullable=False, default=0)
        a.alter_column("n", default=None)
    db["t"].insert({"k": [1, 2], "n": [1, 2]})
    rows = {"k": [1, 1, 1, 2, 2], "v": [1, 2, 3, 4, 5]}
    answer = run(db, "upsert", rows, lambda: db["t"].delete({"k": [1]}), collect=True)
    assert (answer["updated"], answer["errors"]["code"].to_pylist()) == (4, ["missing-column"])
    assert content(db) == {2: (5, "none")}


def test_rows_are_cut_between_keys() -> None:
    """A key with rows in two chunks would be inserted twice."""
    keys = sorted([1] * 50 + [2] * 70 + [3] + [4] * 30)
    column = build_schema({"k": "int64"}, ["k"]).columns[0]
    batches = pa.table({"k": keys}).to_batches(max_chunksize=7)
    found = [chunk["k"].to_pylist() for chunk in chunks(iter(batches), [column], 100)]
    assert [k for chunk in found for k in chunk] == keys
    assert all(left[-1] != right[0] for left, right in itertools.pairwise(found))
    assert len(found) > 1
    assert pc.sum(pa.array([len(chunk) for chunk in found])).as_py() == len(keys)


def test_an_alteration_during_a_load_is_an_error(db: nyala.Database) -> None:
    with handover.loading(db.path, "t", 60, reserve=False) as (plan, _):
        key, _folder = handover.new_staging(db.path)
        job = LoadCommit(
            key, plan.table_id, plan.schema.version + 1, plan.snapshot, "insert", ("k",), (), {}, False
        )
        with pytest.raises(SchemaError, match="altered"):
            handover.commit_load_files(db.path, job)
