"""The change feed, the history of a row, and the restoration of a table."""

from __future__ import annotations

import datetime as dt
import threading
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
def table(db: Database) -> Any:
    return key_value_table(db)


def without_times(feed: Any) -> list[tuple[Any, ...]]:
    """Return the rows without their commit time."""
    found = feed.to_arrow().drop_columns("_commit_timestamp").to_pylist()
    return sorted(tuple(row.values()) for row in found)


# --- changes ----------------------------------------------------------------------------------------------


def test_every_form_has_the_same_rows(table: Any) -> None:
    """Arrow, a stream, pandas, polars, DuckDB and Arrow's protocol; a feed can be read several times."""
    since = table.insert({"k": [1, 2], "v": [1, 2]})
    updated = table.update({"k": [1], "v": [10]})
    deleted = table.delete({"k": [2]})
    feed = table.changes(since)
    expected = [(1, 10, "update", updated.timestamp), (2, None, "delete", deleted.timestamp)]
    assert isinstance(feed, nyala.ChangeFeed)
    assert without_times(feed) == without_times(feed) == expected
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
    """Keys, type and timestamp are never NULL; other columns are NULL in deleted rows."""
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
    """A preimage comes directly before its postimage, and deleted rows have values.

    Also in a stream, a view and a reader.
    """
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
    assert without_times(table.changes(since, versions="all", columns=[], before=True))[0] == (
        1, "update_postimage", first.timestamp,
    )  # fmt: skip


def test_consecutive_feeds_return_every_change_once(table: Any) -> None:
    """Each feed begins at `feed.until` of the last one, while another thread writes and flushes."""
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


def test_all_forms_of_moments_are_accepted(table: Any) -> None:
    """The forms are a WriteResult, its timestamp, its time, and ISO text."""
    first = table.insert({"k": [1], "v": [1]})
    second = table.insert({"k": [2], "v": [2]})
    table.insert({"k": [3], "v": [3]})
    for since in (first, first.timestamp, first.time, first.time.isoformat()):
        for until in (second, second.timestamp, second.time):
            assert [row[0] for row in without_times(table.changes(since, until))] == [2]
    assert [row[0] for row in without_times(table.changes(since=first))] == [2, 3]


def test_errors_of_invalid_arguments_say_what_to_write(table: Any) -> None:
    """For backward intervals, moments in the future, invalid moments, and unknown options and columns."""
    first = table.insert({"k": [1], "v": [1]})
    second = table.insert({"k": [2], "v": [2]})
    tomorrow = dt.datetime.now(dt.UTC) + dt.timedelta(days=1)
    for arguments, message in (
        ({"since": second, "until": first}, "later than until"),
        ({"since": tomorrow}, "^since=.*future"),
        ({"since": first, "until": tomorrow}, "^until=.*future"),
        ({"since": None}, "after which the changes begin"),
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
    assert without_times(table.changes(first, first)) == []


def test_a_since_after_the_last_write_gives_an_empty_feed(table: Any) -> None:
    """A program that polls with the time of day gets no error, but an `until` for the next call."""
    table.insert({"k": [1], "v": [1]})
    now = dt.datetime.now(dt.UTC)
    feed = table.changes(now)
    assert without_times(feed) == [] and feed.since == feed.until == table._database.now()
    assert without_times(table.changes(now, now)) == []


def test_a_notebook_shows_the_first_rows(table: Any) -> None:
    """`print(feed)` shows the table and the interval."""
    table.insert({"k": list(range(30)), "v": [0] * 30})
    feed = table.changes(0)
    assert repr(feed).startswith("ChangeFeed of t, net changes after 1970-01-01")
    assert feed._repr_html_().count("<tr>") == 11
    assert "all versions" in repr(table.changes(0, versions="all"))


def test_later_operations_do_not_change_a_feed(db: Database, table: Any) -> None:
    """Flushes, compactions, writes and a drop of the table do not change it."""
    since = table.insert({"k": [1, 2], "v": [1, 2]})
    table.update({"k": [1], "v": [5]})
    table.flush()
    net, every = table.changes(since), table.changes(0, versions="all")
    before = without_times(net), without_times(every)
    table.upsert({"k": [1, 2, 3], "v": [7, 7, 7]})
    table.flush()
    table.compact()
    db.drop_table("t")
    db._writer().collect_garbage()
    assert (without_times(net), without_times(every)) == before


def test_a_feed_expires_after_15_minutes_without_a_read(tmp_path: Path) -> None:
    """The error says how to read again, as for a scan."""
    clock = ManualClock()
    with open_database(tmp_path / "s", clock=clock) as db:
        table = key_value_table(db)
        table.insert({"k": [1], "v": [1]})
        feed = table.changes(0)
        clock.advance(16 * 60)
        db._handle.scans.expire()
        with pytest.raises(HistoryExpiredError, match=rf"since=0, until={feed.until}"):
            feed.to_arrow()
        assert len(without_times(table.changes(0, feed.until))) == 1


def test_a_feed_of_a_closed_store_cannot_be_read(tmp_path: Path) -> None:
    """Another writer may remove its files."""
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


def test_a_since_before_the_history_is_refused(tmp_path: Path) -> None:
    """Changes would be missing. The error names the oldest readable moment."""
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
        assert without_times(table.changes(half_past)) == [(1, 2, "update", new.timestamp)]


# --- views and readers ------------------------------------------------------------------------------------


def test_a_view_has_the_changes_up_to_its_moment(db: Database, table: Any) -> None:
    """`until` is always the view's moment. A view cannot be restored."""
    first = table.insert({"k": [1], "v": [1]})
    second = table.update({"k": [1], "v": [2]})
    third = table.update({"k": [1], "v": [3]})
    view = table.at(second)
    with db.snapshot(at=second) as snapshot:
        for fixed in (view, snapshot["t"]):
            assert without_times(fixed.changes(first)) == [(1, 2, "update", second.timestamp)]
            assert fixed.history({"k": 1}).column("v").to_pylist() == [1, 2]
            with pytest.raises(InvalidArgumentError, match="reads only the moment"):
                fixed.changes(first, until=third)
            with pytest.raises(InvalidArgumentError, match="later than until"):
                fixed.changes(third)
            with pytest.raises(ReadOnlyError):
                fixed.restore(to=first)


def test_a_reader_returns_the_same_changes(db: Database, table: Any) -> None:
    """It reads them from the files and the log. It cannot restore."""
    first = table.insert({"k": [1, 2], "v": [1, 2]})
    table.flush()
    table.delete({"k": [2]})
    with nyala.connect(db.path, read_only=True) as reader:
        assert without_times(reader["t"].changes(first)) == without_times(table.changes(first))
        assert reader["t"].history({"k": 2}).equals(table.history({"k": 2}))
        with pytest.raises(ReadOnlyError):
            reader["t"].restore(to=first)


# --- history ----------------------------------------------------------------------------------------------


def test_history_refuses_an_invalid_key(table: Any) -> None:
    """It raises the same error as `get`."""
    for key, error in (
        ((1, 2), InvalidArgumentError), ([1], InvalidArgumentError), ({}, InvalidArgumentError),
        ({"k": None}, InvalidValueError),
        ({"k": 1, "v": 2}, SchemaError), ({"x": 1}, ColumnNotFoundError),
    ):  # fmt: skip
        with pytest.raises(error):
            table.history(key)


# --- restore ----------------------------------------------------------------------------------------------


def test_a_restore_compares_floats_bit_by_bit(db: Database) -> None:
    """0.0 and -0.0 are different, and equal NaNs are not."""
    table = db.create_table("t", {"k": "int64", "f": "double", "g": "float"}, "k")
    then = table.insert({"k": [1, 2], "f": [-0.0, float("nan")], "g": [-0.0, float("nan")]})
    table.update({"k": [1, 2], "f": [0.0, float("nan")], "g": [0.0, float("nan")]})
    assert table.restore(to=then).updated == 1
    assert [str(row["f"]) + str(row["g"]) for row in table.scan(order_by_key=True).to_arrow().to_pylist()] == [
        "-0.0-0.0", "nannan",
    ]  # fmt: skip


def test_a_table_dropped_during_the_call_is_not_restored(
    db: Database, table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that was created with the same name meanwhile is not changed either."""
    then = table.insert({"k": [1], "v": [1]})
    number = db._writer().root.table("t").id
    db.drop_table("t")
    key_value_table(db).insert({"k": [7], "v": [7]})
    with pytest.raises(TableNotFoundError):
        restoring.restore(db._writer(), number, then.timestamp)
    assert rows(db["t"]) == [(7, 7)]
