"""The commits of a table and of a store: their counts, times and messages."""

from __future__ import annotations

import dataclasses
import datetime as dt
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nyala
from nyala.api.database import Database
from nyala.env import SYSTEM
from nyala.errors import HistoryExpiredError, InvalidArgumentError
from nyala.handover import commits as handover
from nyala.handover.routing_plans import routing_plan
from nyala.tablet.jobs.staged_files import write_routed
from nyala.tablet.state import messages as messages_module
from nyala.testing.clock import ManualClock
from nyala.testing.s3_server import S3Server
from tests.support import folder_in_memory, key_value_table, open_database

Listed = tuple[int, int, int, tuple[str, ...], str | None]


def listed(commits: nyala.CommitList) -> list[Listed]:
    return [(c.inserted, c.updated, c.deleted, c.tables, c.message) for c in commits]


def write_something(db: Database) -> list[Any]:
    """Commit by each kind of call, and return the results."""
    t, u = key_value_table(db), key_value_table(db, "u")
    results = [t.insert({"k": [1, 2, 3], "v": [1, 2, 3]}, message="the first rows")]
    db.flush()
    with db.batch(message="a batch of two tables") as b:
        b.update("t", {"k": [1], "v": [10]})
        b.delete("t", {"k": [2]})
        b.insert("u", {"k": [7, 8], "v": [7, 8]})
        b.insert("u", {"k": [9], "v": [9]})
        b.delete("u", {"k": [9]})
    results.append(b.results[0])
    results.append(u.upsert({"k": [8, 9], "v": [80, 90]}))
    results.append(t.update(set={"v": 0}, where="k > 1", message="where ✓"))
    results.append(t.delete(where="k = 3", message="gone"))
    with db.transaction(message="a transaction") as tx:
        tx["t"].insert({"k": [4], "v": [4]})
        tx["u"].update({"k": [7], "v": [70]})
    results.append(tx.results[0])
    results.append(t.restore(to=results[0], message="as it was"))
    results.append(u.delete({"k": [7]}, message="seven"))
    results.append(u.apply([("upsert", {"k": 8, "v": 0}), ("delete", 9)], message="a list"))
    results.append(u.apply_changes([{"op": "d", "k": 8}], message="events"))
    return results


WRITTEN: list[Listed] = [
    (3, 0, 0, ("t",), "the first rows"),
    (2, 1, 1, ("t", "u"), "a batch of two tables"),
    (1, 1, 0, ("u",), None),
    (0, 1, 0, ("t",), "where ✓"),
    (0, 0, 1, ("t",), "gone"),
    (1, 1, 0, ("t", "u"), "a transaction"),
    (2, 1, 1, ("t",), "as it was"),
    (0, 0, 1, ("u",), "seven"),
    (0, 1, 1, ("u",), "a list"),
    (0, 0, 1, ("u",), "events"),
]


# --- what is listed ---------------------------------------------------------------------------------------


def test_every_kind_of_write_is_a_commit_with_its_message(db: Database) -> None:
    """The newest commit is last.

    A commit has counts of changed rows, its tables and its message; `Table.commits` counts only
    rows of its table.
    """
    results = write_something(db)
    assert listed(db.commits()) == WRITTEN
    assert [(c.timestamp, c.time) for c in db.commits()] == [(r.timestamp, r.time) for r in results]
    assert listed(db["u"].commits()) == [
        (2, 0, 0, ("u",), "a batch of two tables"),
        (1, 1, 0, ("u",), None),
        (0, 1, 0, ("u",), "a transaction"),
        (0, 0, 1, ("u",), "seven"),
        *WRITTEN[-2:],
    ]
    assert listed(db.commits(since=results[3], until=results[5])) == WRITTEN[4:6]
    assert listed(db["t"].commits(results[3].time, results[4])) == [WRITTEN[4]]


def test_the_list_is_a_sequence_and_an_arrow_table(db: Database) -> None:
    """A commit can be used as a moment."""
    write_something(db)
    commits = db.commits()
    assert (
        len(commits) == len(WRITTEN) and commits[-1].message == "events" and commits[0] == next(iter(commits))
    )
    assert listed(commits[1:3]) == WRITTEN[1:3] and listed(commits[::-1]) == WRITTEN[::-1]
    with pytest.raises(IndexError):
        commits[len(WRITTEN)]
    found = commits.to_arrow()
    assert found.column_names == [field.name for field in dataclasses.fields(nyala.Commit)]
    assert found.to_pylist()[1]["tables"] == ["t", "u"] and pa.table(commits).equals(found)
    assert duckdb.sql("SELECT sum(inserted) FROM found").fetchall() == [(9,)]
    assert db["t"].count(at=commits[0]) == 3 and db["t"].count(at=commits[1]) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        commits[0].message = "other"  # type: ignore[misc]
    assert "CommitList of 10 commits" in repr(commits) and "in t: the first rows" in repr(commits)
    assert commits._repr_html_().count("<tr>") == 11
    assert repr(db.commits(since=db.now())) == "CommitList of 0 commits"


def test_a_write_that_changes_nothing_is_no_commit(db: Database) -> None:
    """Skipped rows, no rows, and a key that one batch inserts and deletes."""
    table = key_value_table(db)
    first = table.insert({"k": [1], "v": [1]}, message="one")
    table.insert({"k": [1], "v": [1]}, on_conflict="ignore", message="skipped")
    table.insert([], message="none")
    with db.batch(message="nothing") as b:
        b.insert("t", {"k": [2], "v": [2]})
        b.delete("t", {"k": [2]})
    with pytest.raises(nyala.DuplicateKeyError):
        table.insert({"k": [1], "v": [1]}, message="refused")
    assert [(c.timestamp, c.message) for c in table.commits()] == [(first.timestamp, "one")]


def test_each_record_batch_of_a_stream_is_a_commit(db: Database) -> None:
    table = key_value_table(db)
    batches = [pa.record_batch({"k": [number], "v": [0]}) for number in range(3)]
    table.insert(pa.RecordBatchReader.from_batches(batches[0].schema, batches), message="a stream")
    assert listed(table.commits()) == [(1, 0, 0, ("t",), "a stream")] * 3


# --- messages are kept ------------------------------------------------------------------------------------


def databases_by_place(db: Database, path: Path) -> list[Callable[[], Any]]:
    """Return functions that each give a database to list the commits of `db`, and are called in order.

    Some flush or compact `db` first, some open a copy as after a crash, and the last one opens a reader.
    """

    def crashed() -> Any:
        copy = path.with_name("copy")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(path, copy, ignore=shutil.ignore_patterns("*.sock", "lock"))
        return nyala.connect(copy, maintenance=False)

    def flushed() -> Database:
        db.flush()
        return db

    def compacted() -> Database:
        for name in db.list_tables():
            db[name].compact()
            db[name].vacuum()
        return db

    return [crashed, flushed, crashed, compacted, crashed, lambda: nyala.connect(path, read_only=True)]


def test_commits_are_the_same_wherever_their_rows_are(tmp_path: Path) -> None:
    """Rows in the log, in files, after a crash, in compacted files without a log, and as a reader sees them."""
    path = tmp_path / "s"
    with open_database(path) as db:
        write_something(db)
        expected = db.commits().to_arrow()
        for get in databases_by_place(db, path):
            other = get()
            assert other.commits().to_arrow().equals(expected)
            if other is not db:
                other.close()
        store = db._writer()
        assert len(store.state.messages) == 9, "the catalogue has the messages of the log"
    with nyala.connect(path) as db:
        assert db.commits().to_arrow().equals(expected)
        db["t"].insert({"k": [50], "v": [0]}, message="later")
        with nyala.connect(path, read_only=True) as reader:
            assert listed(reader.commits())[-1] == (1, 0, 0, ("t",), "later")
            assert listed(reader["t"].commits()) == listed(db["t"].commits())


def test_commits_in_a_bucket(tmp_path: Path) -> None:
    """The writer and a reader list the same commits."""
    with S3Server() as server:
        options: dict[str, Any] = {"storage_options": server.options, "cache_dir": tmp_path / "cache"}
        with nyala.connect("s3://bucket/store", group_interval=0, maintenance=False, **options) as db:
            write_something(db)
            with nyala.connect("s3://bucket/store", read_only=True, **options) as reader:
                assert listed(reader.commits()) == listed(db.commits()) == WRITTEN
                db.flush()
                db["t"].insert({"k": [50], "v": [0]}, message="later")
                assert listed(reader.commits())[-1] == (1, 0, 0, ("t",), "later")
                assert listed(reader.commits())[:-1] == WRITTEN
        with nyala.connect("s3://bucket/store", group_interval=0, maintenance=False, **options) as db:
            assert listed(db.commits())[:-1] == WRITTEN


def test_a_large_batch_that_is_not_in_the_log_is_listed(db: Database) -> None:
    store, table = db._writer(), key_value_table(db)
    store.direct_commit_bytes = 0
    table.insert({"k": [1, 2], "v": [1, 2]}, message="as files")
    table.upsert({"k": [2, 3], "v": [2, 3]}, message="as files, too")
    assert listed(table.commits()) == [(2, 0, 0, ("t",), "as files"), (1, 1, 0, ("t",), "as files, too")]


def test_jobs_of_other_processes_have_messages(db: Database) -> None:
    """This includes a job that replaces the table's content."""
    key_value_table(db)
    for number, overwrite in enumerate((False, True)):
        key, folder = handover.new_staging(db.path)
        plan = routing_plan(SYSTEM, db.path, "t")
        write_routed(SYSTEM, f"{folder}/0", plan, iter([pa.record_batch({"k": [number], "v": [0]})]))
        job = {"key": key, "table": "t", "operation": "insert", "errors": "raise", "files": ["0"],
               "columns": ["k", "v"], "overwrite": overwrite, "message": f"job {number}"}  # fmt: skip
        handover.commit_staged(db.path, job)
        with pytest.raises(InvalidArgumentError, match="message has 1,001 characters"):
            handover.commit_staged(db.path, {**job, "record_as": "other", "message": "x" * 1001})
    assert listed(db.commits()) == [(1, 0, 0, ("t",), "job 0"), (1, 0, 1, ("t",), "job 1")]


def test_a_listed_commit_always_has_its_message(db: Database) -> None:
    """Other threads write, and flushes move messages from the log to the catalogue."""
    table, stop = key_value_table(db), threading.Event()

    def write() -> None:
        for number in range(60):
            table.insert({"k": [number], "v": [0]}, message=f"{number}")
            if number % 10 == 0:
                table.flush()
        stop.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not stop.is_set():
        commits = listed(db.commits())
        assert [message for *_, message in commits] == [f"{number}" for number in range(len(commits))]
    writer.join()
    assert len(db.commits()) == 60


# --- wrong arguments --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("x" * 1001, r"message has 1,001 characters, and at most 1,000 are stored: 'xxx.*Shorten it"),
        ("", "message is empty"),
        (7, "message takes a text, not 7"),
        ("\ud800", "surrogate"),
    ],
)
def test_an_invalid_message_is_refused(db: Database, message: Any, said: str) -> None:
    table = key_value_table(db)
    now = db.now()
    for write in (
        lambda: table.insert({"k": [1], "v": [1]}, message=message),
        lambda: table.upsert({"k": [1], "v": [1]}, message=message),
        lambda: table.update({"k": [1], "v": [1]}, on_missing="ignore", message=message),
        lambda: table.update(set={"v": 1}, message=message),
        lambda: table.delete({"k": [1]}, on_missing="ignore", message=message),
        lambda: table.delete(where="TRUE", message=message),
        lambda: table.apply([("insert", {"k": 1, "v": 1})], message=message),
        lambda: table.apply_changes([{"op": "c", "k": 1, "v": 1}], message=message),
        lambda: table.restore(to=now, message=message),
        lambda: db.batch(message=message),
        lambda: db.transaction(message=message),
    ):
        with pytest.raises(InvalidArgumentError, match=said):
            write()
    assert not len(db.commits())
    assert table.insert({"k": [1], "v": [1]}, message="é" * 1000).inserted == 1


def test_a_transaction_has_one_message(db: Database) -> None:
    table = key_value_table(db)
    for write in (
        lambda t: t.insert({"k": [1], "v": [1]}, message="mine"),
        lambda t: t.delete(where="TRUE", message="mine"),
    ):
        with pytest.raises(InvalidArgumentError, match=r"pass the message to db\.transaction\(message=…\)"):
            with db.transaction() as tx:
                write(tx["t"])
    assert table.count() == 0


def test_invalid_moments_are_refused(db: Database) -> None:
    table = key_value_table(db)
    first = table.insert({"k": [1], "v": [1]})
    second = table.insert({"k": [2], "v": [2]})
    tomorrow = dt.datetime.now(dt.UTC) + dt.timedelta(days=1)
    for commits in (db.commits, table.commits):
        for arguments, message in (
            ({"since": second, "until": first}, "later than until"),
            ({"since": tomorrow}, "^since=.*future"),
            ({"until": "soon"}, "^until=.*neither a timestamp nor an ISO"),
        ):
            with pytest.raises(InvalidArgumentError, match=message):
                commits(**arguments)


# --- history ----------------------------------------------------------------------------------------------


def test_commits_and_messages_expire_with_the_history(tmp_path: Path) -> None:
    """A message is removed when no table can be read at its commit. An earlier `since` is an error."""
    clock = ManualClock()
    with open_database(tmp_path / "s", clock=clock) as db:
        short = db.create_table("short", {"k": "int64"}, "k", history="1h")
        long = db.create_table("long", {"k": "int64"}, "k", history="3h")
        old = short.insert({"k": [1]}, message="old")
        long.insert({"k": [1]}, message="kept for long")
        db.flush()
        clock.advance(2 * 3600)
        short.insert({"k": [2]}, message="new")
        assert [c.message for c in short.commits()] == ["new"]
        assert [c.message for c in db.commits()] == ["kept for long", "new"]
        with pytest.raises(HistoryExpiredError, match="'short'.*oldest moment that can be read"):
            short.commits(since=old)
        with pytest.raises(HistoryExpiredError, match="'short'.*oldest moment that can be read"):
            db.commits(since=old)
        db.flush()
        assert [m.message for m in db._writer().state.messages.values()] == ["old", "kept for long", "new"]
        clock.advance(2 * 3600)
        short.insert({"k": [3]})
        db.flush()
        assert [m.message for m in db._writer().state.messages.values()] == ["new"]
        db.drop_table("short")
        assert listed(db.commits())[-1] == (1, 0, 0, ("short",), None), "listed until the table is purged"
        db.drop_table("long", purge=True)
        db.purge_dropped()
        key_value_table(db)
        assert len(db.commits()) == 0 and not db._writer().state.messages


def test_messages_have_a_bounded_size(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest messages are kept; other commits are listed without a message."""
    monkeypatch.setattr(messages_module, "MESSAGES_MAX_BYTES", 3 * (64 + 10))
    table = key_value_table(db)
    for number in range(5):
        table.insert({"k": [number], "v": [0]}, message=f"message  {number}")
    db.flush()
    assert [c.message for c in table.commits()] == [None, None, "message  2", "message  3", "message  4"]
    table.insert({"k": [5], "v": [0]}, message="message  5")
    db.flush()
    assert [c.message for c in table.commits()][-4:] == [None, "message  3", "message  4", "message  5"]


# --- against a count of the changes -----------------------------------------------------------------------


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["insert", "upsert", "update", "delete"]),
            st.sampled_from(["t", "u"]),
            st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True),
        ),
        st.sampled_from(["flush", "compact", "reopen"]),
    ),
    min_size=1,
    max_size=16,
)


@given(steps=STEPS, data=st.data())
def test_counts_equal_those_of_the_write_results(steps: list[Any], data: st.DataObject) -> None:
    """Random writes to two tables, with flushes, compactions and reopens, listed between any two moments."""
    with folder_in_memory() as folder:
        db = open_database(folder / "s")
        for name in ("t", "u"):
            db.create_table(name, {"k": "int64", "v": "int64"}, "k", nyala.hash_partition("k", buckets=2))
        expected: list[tuple[int, Listed]] = []
        for number, step in enumerate(steps):
            if step == "flush":
                db.flush()
            elif step == "compact":
                db["t"].compact()
            elif step == "reopen":
                db.close()
                db = open_database(folder / "s")
            else:
                operation, name, keys = step
                rows = {"k": keys} if operation == "delete" else {"k": keys, "v": [number] * len(keys)}
                message = f"{number}" if number % 3 else None
                done = getattr(db[name], operation)(rows, errors="collect", message=message)
                counts = done.inserted, done.updated, done.deleted
                if any(counts):
                    expected.append((done.timestamp, (*counts, (name,), message)))
        moments = [0, *(at for at, _ in expected)]
        since, until = sorted(data.draw(st.lists(st.sampled_from(moments), min_size=2, max_size=2)))
        wanted = [listed_ for at, listed_ in expected if since < at <= until]
        if until:
            assert listed(db.commits(since, until)) == wanted
        assert listed(db.commits()) == [listed_ for _, listed_ in expected]
        db.close()
