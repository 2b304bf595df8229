"""The change feed, the history of a row and the restoration of a table, as a user has them."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest

import nyala
from nyala.api.database import Database
from nyala.errors import (
    ColumnNotFoundError,
    HistoryExpiredError,
    InvalidArgumentError,
    InvalidValueError,
    ReadOnlyError,
    SchemaError,
    StorageError,
    TableNotFoundError,
)
from nyala.tablet.tables import restore as restoring
from nyala.testing.clock import ManualClock
from tests.support import key_value_table, open_database, rows


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with open_database(tmp_path / "s") as db:
        yield db


@pytest.fixture
def table(db: Database) -> Any:
    return key_value_table(db)


def told(feed: Any) -> list[tuple[Any, ...]]:
    """The rows without their commit time."""
    found = feed.to_arrow().drop_columns("_commit_timestamp").to_pylist()
    return sorted(tuple(row.values()) for row in found)


# --- changes ----------------------------------------------------------------------------------------------


def test_every_form_has_the_same_rows(table: Any) -> None:
    """Arrow, a stream, pandas, polars, DuckDB and Arrow's protocol; as often as asked."""
    since = table.insert({"k": [1, 2], "v": [1, 2]})
    updated = table.update({"k": [1], "v": [10]})
    deleted = table.delete({"k": [2]})
    feed = table.changes(since)
    expected = [(1, 10, "update", updated.timestamp), (2, None, "delete", deleted.timestamp)]
    assert isinstance(feed, nyala.ChangeFeed)
    assert told(feed) == told(feed) == expected
    assert sorted(feed.to_reader().read_all().to_pylist(), key=lambda row: row["k"])[1] == {
        "k": 2, "v": None, "_change_type": "delete",
        "_commit_version": deleted.timestamp, "_commit_timestamp": deleted.time,
    }  # fmt: skip
    expected = [(*row, write.time) for row, write in zip(expected, (updated, deleted), strict=True)]
    assert sorted(feed.to_polars().rows()) == sorted(pl.DataFrame(feed).rows()) == expected
    assert (
        sorted(duckdb.sql("SELECT * FROM feed").fetchall()) == sorted(feed.to_duckdb().fetchall()) == expected
    )
    assert sorted(feed.to_pandas()["_change_type"]) == ["delete", "update"]
    assert pa.table(feed).num_rows == 2
    assert (feed.since, feed.until, feed.versions) == (since.timestamp, deleted.timestamp, "net")


def test_the_schema_says_what_can_be_null(table: Any) -> None:
    """Keys, type and timestamp never are; every other column is, of a deleted row."""
    fields = {field.name: (str(field.type), field.nullable) for field in table.changes(0).schema}
    assert fields == {
        "k": ("int64", False),
        "v": ("int64", True),
        "_change_type": ("string", False),
        "_commit_version": ("int64", False),
        "_commit_timestamp": ("timestamp[us, tz=UTC]", False),
    }
    assert pa.schema(table.changes(0)) == table.changes(0).schema


def test_the_values_before_each_change(db: Database, table: Any) -> None:
    """A preimage directly before each postimage, and deleted rows with their values: in a stream, a view, a reader."""
    table.insert({"k": [1, 2, 3], "v": [1, 2, 3]})
    since = table.upsert({"k": [4], "v": [4]})
    table.flush()
    first = table.update({"k": [3, 1], "v": [30, 10]})
    second = table.update({"k": [1], "v": [11]})
    deleted = table.delete({"k": [2]})
    again = table.insert({"k": [2, 5], "v": [22, 5]})
    gone = table.delete({"k": [4, 5]})
    every = [
        (1, 1, "update_preimage", first), (1, 10, "update_postimage", first),
        (3, 3, "update_preimage", first), (3, 30, "update_postimage", first),
        (1, 10, "update_preimage", second), (1, 11, "update_postimage", second),
        (2, 2, "delete", deleted),
        (2, 22, "insert", again), (5, 5, "insert", again),
        (4, 4, "delete", gone), (5, 5, "delete", gone),
    ]  # fmt: skip
    net = [
        (1, 1, "update_preimage", second), (1, 11, "update_postimage", second),
        (2, 2, "update_preimage", again), (2, 22, "update_postimage", again),
        (3, 3, "update_preimage", first), (3, 30, "update_postimage", first),
        (4, 4, "delete", gone),
    ]  # fmt: skip
    with nyala.connect(db.path, read_only=True) as reader:
        for read in (table, reader["t"], table.at(gone)):
            for versions, expected in (("all", every), ("net", net)):
                feed = read.changes(since, versions=versions, before=True)
                assert feed.before and feed.schema == table.changes(since).schema
                rows = [tuple(row.values()) for row in feed.to_reader().read_all().to_pylist()]
                if versions == "net":
                    rows.sort(key=lambda row: row[0])
                assert rows == [(k, v, kind, at.timestamp, at.time) for k, v, kind, at in expected]
    assert told(table.changes(since, versions="all", columns=[], before=True))[0] == (
        1, "update_postimage", first.timestamp,
    )  # fmt: skip


def test_feeds_that_begin_where_the_last_one_ended_leave_nothing_out(table: Any) -> None:
    """A consumer that keeps `feed.until` has every change once, while another thread writes and flushes."""
    stop = threading.Event()

    def write() -> None:
        for number in range(120):
            table.upsert({"k": [number % 7], "v": [number]})
            if number % 5 == 0:
                table.delete({"k": [(number + 3) % 7]}, on_missing="ignore")
            if number % 31 == 0:
                table.flush()
        stop.set()

    writer = threading.Thread(target=write)
    copy: dict[int, int] = {}
    since, versions = 0, []
    writer.start()
    while True:
        last = stop.is_set()
        feed = table.changes(since)
        versions += table.changes(since, feed.until, versions="all").to_arrow().to_pylist()
        for row in feed.to_arrow().to_pylist():
            copy.pop(row["k"], None)
            if row["_change_type"] != "delete":
                copy[row["k"]] = row["v"]
        since = feed.until
        if last:
            break
    writer.join()
    assert sorted(copy.items()) == rows(table)
    assert versions == table.changes(0, versions="all").to_arrow().to_pylist()


def test_moments_are_named_as_for_at(table: Any) -> None:
    """A WriteResult, its timestamp, its time, ISO text."""
    first = table.insert({"k": [1], "v": [1]})
    second = table.insert({"k": [2], "v": [2]})
    table.insert({"k": [3], "v": [3]})
    for since in (first, first.timestamp, first.time, first.time.isoformat()):
        for until in (second, second.timestamp, second.time):
            assert [row[0] for row in told(table.changes(since, until))] == [2]
    assert [row[0] for row in told(table.changes(since=first))] == [2, 3]


def test_wrong_arguments_say_what_is_right(table: Any) -> None:
    """Backwards, in the future, no moment at all, unknown words and columns."""
    first = table.insert({"k": [1], "v": [1]})
    second = table.insert({"k": [2], "v": [2]})
    tomorrow = dt.datetime.now(dt.UTC) + dt.timedelta(days=1)
    for arguments, message in (
        ({"since": second, "until": first}, "later than until"),
        ({"since": tomorrow}, "^since=.*future"),
        ({"since": first, "until": tomorrow}, "^until=.*future"),
        ({"since": None}, "after which they begin"),
        ({"since": "soon"}, "^since=.*neither a timestamp nor an ISO"),
        ({"since": first, "versions": "both"}, "'net' or 'all'"),
        ({"since": first, "before": second}, "before takes True or False.*until="),
        ({"since": first, "columns": "v"}, "list of names"),
        ({"since": first, "columns": ["v", "v"]}, "twice"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            table.changes(**arguments)
    with pytest.raises(ColumnNotFoundError):
        table.changes(first, columns=["w"])
    assert told(table.changes(first, first)) == []


def test_a_since_that_is_not_yet_published_is_an_empty_feed(table: Any) -> None:
    """Who polls with the time of day gets nothing, and a moment to go on from; not an error."""
    table.insert({"k": [1], "v": [1]})
    now = dt.datetime.now(dt.UTC)
    feed = table.changes(now)
    assert told(feed) == [] and feed.since == feed.until == table._database.now()
    assert told(table.changes(now, now)) == []


def test_the_first_rows_are_shown(table: Any) -> None:
    """`print(feed)` names the table and the interval; a notebook shows ten rows as well."""
    table.insert({"k": list(range(30)), "v": [0] * 30})
    feed = table.changes(0)
    assert repr(feed).startswith("ChangeFeed of t, net changes after 1970-01-01")
    assert feed._repr_html_().count("<tr>") == 11
    assert "all versions" in repr(table.changes(0, versions="all"))


def test_a_feed_keeps_what_it_began_with(db: Database, table: Any) -> None:
    """Flushes, compactions, later writes, even a drop of the table do not change what it reads."""
    since = table.insert({"k": [1, 2], "v": [1, 2]})
    table.update({"k": [1], "v": [5]})
    table.flush()
    net, every = table.changes(since), table.changes(0, versions="all")
    before = told(net), told(every)
    table.upsert({"k": [1, 2, 3], "v": [7, 7, 7]})
    table.flush()
    table.compact()
    db.drop_table("t")
    db._writer().collect_garbage()
    assert (told(net), told(every)) == before


def test_a_feed_that_nobody_reads_gives_its_files_back(tmp_path: Path) -> None:
    """Like a scan: after 15 minutes it says how to ask anew."""
    clock = ManualClock()
    with open_database(tmp_path / "s", clock=clock) as db:
        table = key_value_table(db)
        table.insert({"k": [1], "v": [1]})
        feed = table.changes(0)
        clock.advance(16 * 60)
        db._handle.scans.expire()
        with pytest.raises(HistoryExpiredError, match=rf"since=0, until={feed.until}"):
            feed.to_arrow()
        assert len(told(table.changes(0, feed.until))) == 1


def test_a_closed_store_has_no_feed(tmp_path: Path) -> None:
    """Its files may go as soon as another writer opens."""
    db = open_database(tmp_path / "s")
    table = key_value_table(db)
    feed = table.changes(0)
    db.close()
    for act in (
        feed.to_arrow,
        lambda: table.changes(0),
        lambda: table.history({"k": 1}),
        lambda: table.restore(to=0),
    ):
        with pytest.raises(StorageError, match="closed"):
            act()


# --- history expires --------------------------------------------------------------------------------------


def test_what_is_older_than_the_history_is_refused(tmp_path: Path) -> None:
    """A feed with a gap would be worse than none: the error names the oldest readable moment."""
    clock = ManualClock()
    with open_database(tmp_path / "s", clock=clock) as db:
        table = db.create_table("t", {"k": "int64", "v": "int64"}, "k", history="1h")
        old = table.insert({"k": [1], "v": [1]})
        clock.advance(2 * 3600)
        new = table.update({"k": [1], "v": [2]})
        clock.advance(1800)
        for act in (
            lambda: table.changes(old), lambda: table.history({"k": 1}, since=old), lambda: table.restore(to=old),
            lambda: table.changes(old, versions="all"),
        ):  # fmt: skip
            with pytest.raises(
                HistoryExpiredError, match="oldest moment that can be read is 2025-01-01T01:30:00"
            ):
                act()
        half_past = dt.datetime(2025, 1, 1, 1, 30, tzinfo=dt.UTC)
        assert told(table.changes(half_past)) == [(1, 2, "update", new.timestamp)]


# --- views and readers ------------------------------------------------------------------------------------


def test_a_view_tells_what_changed_up_to_its_moment(db: Database, table: Any) -> None:
    """`until` is the view's moment and cannot be another; a view cannot be restored."""
    first = table.insert({"k": [1], "v": [1]})
    second = table.update({"k": [1], "v": [2]})
    third = table.update({"k": [1], "v": [3]})
    view = table.at(second)
    with db.snapshot(at=second) as snapshot:
        for fixed in (view, snapshot["t"]):
            assert told(fixed.changes(first)) == [(1, 2, "update", second.timestamp)]
            assert fixed.history({"k": 1}).column("v").to_pylist() == [1, 2]
            with pytest.raises(InvalidArgumentError, match="fixed at"):
                fixed.changes(first, until=third)
            with pytest.raises(InvalidArgumentError, match="later than until"):
                fixed.changes(third)
            with pytest.raises(ReadOnlyError):
                fixed.restore(to=first)


def test_a_reader_process_tells_the_same(db: Database, table: Any) -> None:
    """From the files and the log; it cannot restore."""
    first = table.insert({"k": [1, 2], "v": [1, 2]})
    table.flush()
    table.delete({"k": [2]})
    with nyala.connect(db.path, read_only=True) as reader:
        assert told(reader["t"].changes(first)) == told(table.changes(first))
        assert reader["t"].history({"k": 2}).equals(table.history({"k": 2}))
        with pytest.raises(ReadOnlyError):
            reader["t"].restore(to=first)


# --- history ----------------------------------------------------------------------------------------------


def test_a_key_that_is_no_key_is_refused(table: Any) -> None:
    """As `get` refuses it."""
    for key, error in (
        ((1, 2), InvalidArgumentError), ([1], InvalidArgumentError), ({}, InvalidArgumentError),
        ({"k": None}, InvalidValueError),
        ({"k": 1, "v": 2}, SchemaError), ({"x": 1}, ColumnNotFoundError),
    ):  # fmt: skip
        with pytest.raises(error):
            table.history(key)


# --- restore ----------------------------------------------------------------------------------------------


def test_floats_come_back_bit_by_bit(db: Database) -> None:
    """0.0 is not -0.0, and a NaN that stayed is no change."""
    table = db.create_table("t", {"k": "int64", "f": "double", "g": "float"}, "k")
    then = table.insert({"k": [1, 2], "f": [-0.0, float("nan")], "g": [-0.0, float("nan")]})
    table.update({"k": [1, 2], "f": [0.0, float("nan")], "g": [0.0, float("nan")]})
    assert table.restore(to=then).updated == 1
    assert [str(row["f"]) + str(row["g"]) for row in table.scan(order_by_key=True).to_arrow().to_pylist()] == [
        "-0.0-0.0", "nannan",
    ]  # fmt: skip


def test_a_table_that_was_dropped_meanwhile_is_not_restored(
    db: Database, table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor one of the same name that was made since: it has another past."""
    then = table.insert({"k": [1], "v": [1]})
    number = db._writer().root.table("t").id
    db.drop_table("t")
    key_value_table(db).insert({"k": [7], "v": [7]})
    with pytest.raises(TableNotFoundError):
        restoring.restore(db._writer(), number, then.timestamp)
    assert rows(db["t"]) == [(7, 7)]
