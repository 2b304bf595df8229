"""Micro-batches and batches of the change feed, from files and from memory, without a Spark
session.
"""

from __future__ import annotations

import json
import pickle
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

import nyala
from nyala.errors import (
    ColumnNotFoundError,
    CorruptionError,
    HistoryExpiredError,
    InvalidArgumentError,
    SchemaError,
)
from nyala.objects.address import Address
from nyala.spark.source import changes
from nyala.spark.source import reader as spark_reader
from nyala.spark.source.changes import NyalaChangeStream, next_end
from nyala.spark.source.data_source import NyalaDataSource
from nyala.spark.source.options import ChangeOptions
from nyala.spark.source.reader import FileRange, load_token
from nyala.spark.types import spark_schema
from nyala.tablet.changes import change_token

Row = tuple[object, ...]
Offset = dict[str, Any]
MARKS = ("_change_type", "_commit_version", "_commit_timestamp")


@pytest.fixture
def db(tmp_path: Path) -> Iterator[nyala.Database]:
    with nyala.connect(tmp_path / "store", maintenance=False) as opened:
        opened.create_table("t", {"k": "int64", "v": "int64"}, ["k"], [nyala.hash_partition("k", buckets=3)])
        yield opened


def make_source(db: nyala.Database, **options: object) -> NyalaDataSource:
    given = {"path": db.path, "table": "t", "changes": "true"}
    return NyalaDataSource({**given, **{name: str(value) for name, value in options.items()}})


def make_stream(db: nyala.Database, **options: object) -> NyalaChangeStream:
    source = make_source(db, **options)
    stream = source.streamReader(schema=source.schema())
    assert isinstance(stream, NyalaChangeStream)
    return stream


def rows(stream: NyalaChangeStream, start: Offset, end: Offset) -> list[Row]:
    """Return (key, value, change type) of a micro-batch, read by pickled copies as on executors."""
    found = []
    for partition in stream.partitions(start, end):
        copy, part = pickle.loads(pickle.dumps((stream, partition)))
        for batch in copy.read(part):
            found += [(row["k"], row["v"], row["_change_type"]) for row in batch.to_pylist()]
    return sorted(found, key=repr)


def drain(stream: NyalaChangeStream, start: Offset, limit: ReadLimit) -> list[list[Row]]:
    """Return all micro-batches until there are no more changes."""
    found = []
    while (end := stream.latestOffset(start, limit)) != start:
        found.append(rows(stream, start, end))
        stream.commit(end)
        start = end
    stream.stop()
    return found


def test_the_first_micro_batch_is_the_whole_table(db: nyala.Database) -> None:
    """Without a start, the first micro-batch has all rows as inserts. Later micro-batches have the
    changes.
    """
    table = db["t"]
    table.insert({"k": [1, 2, 3], "v": [1, 2, 3]})
    table.flush()
    table.delete({"k": [3]})
    stream = make_stream(db)
    first = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    assert rows(stream, stream.initialOffset(), first) == [(1, 1, "insert"), (2, 2, "insert")]
    assert stream.latestOffset(first, ReadAllAvailable()) == first
    table.upsert({"k": [2, 4], "v": [20, 40]})
    table.delete({"k": [1]})
    assert drain(stream, first, ReadAllAvailable()) == [
        [(1, None, "delete"), (2, 20, "update"), (4, 40, "insert")]
    ]


def test_a_stream_with_a_start(db: nyala.Database) -> None:
    """startingTimestamp is a moment, or "now"."""
    then = db["t"].insert({"k": [1], "v": [1]}).timestamp
    db["t"].insert({"k": [2], "v": [2]})
    assert make_stream(db, startingTimestamp=then).initialOffset()["timestamp"] == then
    stream = make_stream(db, startingTimestamp=then)
    assert drain(stream, stream.initialOffset(), ReadAllAvailable()) == [[(2, 2, "insert")]]
    assert make_stream(db, startingTimestamp="now").initialOffset()["timestamp"] == db.now()


@pytest.mark.parametrize("again", ["drop", "rename", "another store"])
def test_a_table_of_the_same_name_is_another_table(tmp_path: Path, again: str) -> None:
    """A checkpoint of a dropped table is not used for a new table of the same name."""

    def make(db: nyala.Database) -> None:
        db.create_table("t", {"k": "int64", "v": "int64"}, ["k"])

    with nyala.connect(tmp_path / "store", maintenance=False) as db:
        make(db)
        db["t"].insert({"k": [1], "v": [1]})
        stream = make_stream(db)
        begin = stream.initialOffset()
        first = stream.latestOffset(begin, ReadAllAvailable())
        stream.stop()
        if again == "drop":
            db.drop_table("t")
        elif again == "rename":
            with db["t"].alter() as a:
                a.rename("old")
        if again != "another store":
            make(db)
            db["t"].insert({"k": [2], "v": [2]})
    if again == "another store":
        shutil.rmtree(tmp_path / "store")
    with nyala.connect(tmp_path / "store", maintenance=False) as db:
        if again == "another store":
            make(db)
            db["t"].insert({"k": [2], "v": [2]})
        stream = make_stream(db)
        for offset in (begin, first):
            with pytest.raises(HistoryExpiredError, match=r"table 't' is not the table.*new checkpoint"):
                stream.latestOffset(offset, ReadAllAvailable())
            # A micro-batch that is planned again.
            with pytest.raises(HistoryExpiredError, match=r"table 't' is not the table"):
                stream.partitions(begin, {**offset, "timestamp": db.now()})
        assert drain(stream, stream.initialOffset(), ReadAllAvailable()) == [[(2, 2, "insert")]]


def test_a_checkpoint_with_old_offsets_continues(db: nyala.Database) -> None:
    """Old offsets do not identify the table; the next offset does."""
    db["t"].insert({"k": [1], "v": [1]})
    stream = make_stream(db)
    start = {"timestamp": db.now()}
    assert stream.latestOffset(start, ReadAllAvailable()) == start
    db["t"].insert({"k": [2], "v": [2]})
    end = stream.latestOffset(start, ReadAllAvailable())
    assert rows(stream, start, end) == [(2, 2, "insert")]
    assert rows(stream, start, {"timestamp": end["timestamp"]}) == [(2, 2, "insert")]
    assert end["table"] == stream.initialOffset()["table"]
    stream.stop()


def test_an_old_offset_from_before_the_table_was_created(tmp_path: Path) -> None:
    """Such an offset belongs to another table, so the query ends with an error."""
    with nyala.connect(tmp_path / "store", maintenance=False) as db:
        then = db.create_table("u", {"k": "int64"}, ["k"]).insert({"k": [1]}).timestamp
        db.create_table("t", {"k": "int64", "v": "int64"}, ["k"])
        db["t"].insert({"k": [2], "v": [2]})
        with pytest.raises(HistoryExpiredError, match="table 't' is not the table"):
            make_stream(db).latestOffset({"timestamp": then}, ReadAllAvailable())


def test_a_store_that_was_restored_from_an_older_copy(tmp_path: Path) -> None:
    """The query has read rows that the table does not have any more, so it ends with an error."""
    with nyala.connect(tmp_path / "store", maintenance=False) as db:
        db.create_table("t", {"k": "int64", "v": "int64"}, ["k"])
        db["t"].insert({"k": [1], "v": [1]})
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    with nyala.connect(tmp_path / "store", maintenance=False) as db:
        db["t"].insert({"k": [2], "v": [2]})
        stream = make_stream(db)
        begin = stream.initialOffset()
        read = stream.latestOffset(begin, ReadAllAvailable())
        stream.stop()
    shutil.rmtree(tmp_path / "store")
    shutil.copytree(tmp_path / "copy", tmp_path / "store")
    with nyala.connect(tmp_path / "store", maintenance=False) as db:
        stream = make_stream(db)
        for read_again in (
            lambda: stream.latestOffset(read, ReadAllAvailable()),
            lambda: stream.partitions(begin, read),
        ):
            with pytest.raises(HistoryExpiredError, match=r"restored from an older copy.*new checkpoint"):
                read_again()


@pytest.mark.parametrize("timestamp", [None, "1", -1, True, 1.5])
def test_an_offset_of_another_source_is_an_error(db: nyala.Database, timestamp: Any) -> None:
    offset = {} if timestamp is None else {"timestamp": timestamp}
    with pytest.raises(nyala.InvalidArgumentError, match=r"no timestamp.*new checkpoint"):
        make_stream(db).latestOffset(offset, ReadAllAvailable())


def test_an_offset_with_unknown_members_is_accepted(db: nyala.Database) -> None:
    """A user can return to an older version of Nyala, which does not know new members of offsets."""
    db["t"].insert({"k": [1], "v": [1]})
    stream = make_stream(db)
    end = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    more = {**end, "table": {**end["table"], "colour": "blue"}, "more": 1}
    db["t"].insert({"k": [2], "v": [2]})
    assert rows(stream, more, stream.latestOffset(more, ReadAllAvailable())) == [(2, 2, "insert")]


def test_another_table_with_other_columns(tmp_path: Path) -> None:
    """The error says that it is another table, and not that the table was altered."""
    with nyala.connect(tmp_path / "store", maintenance=False) as db:
        db.create_table("t", {"k": "int64", "v": "int64"}, ["k"])
        db["t"].insert({"k": [1], "v": [1]})
        stream = make_stream(db)
        begin = stream.initialOffset()
        end = stream.latestOffset(begin, ReadAllAvailable())
        db.drop_table("t")
        db.create_table("t", {"k": "int64", "other": "string"}, ["k"])
        with pytest.raises(HistoryExpiredError, match="table 't' is not the table"):
            stream.partitions(begin, end)


def test_admission_control_takes_whole_batches(db: nyala.Database) -> None:
    """maxRowsPerTrigger limits a micro-batch, but never splits a batch of the table."""
    start = {"timestamp": db.now()}
    for number, size in enumerate([2, 2, 5, 1, 1]):
        db["t"].insert({"k": [10 * number + i for i in range(size)], "v": [0] * size})
    stream = make_stream(db, maxRowsPerTrigger=4)
    limit = stream.getDefaultReadLimit()
    assert limit == ReadMaxRows(4)
    assert [len(found) for found in drain(stream, start, limit)] == [4, 5, 2]


def test_available_now_ends(db: nyala.Database) -> None:
    """Trigger.AvailableNow reads up to the moment at which the query began, even if others write
    meanwhile.
    """
    start = {"timestamp": db.now()}
    db["t"].insert({"k": [1], "v": [1]})
    stream = make_stream(db)
    stream.prepareForTriggerAvailableNow()
    db["t"].insert({"k": [2], "v": [2]})
    assert drain(stream, start, ReadAllAvailable()) == [[(1, 1, "insert")]]


def test_changes_in_files_are_read_by_executors(db: nyala.Database) -> None:
    """A query that is far behind first gets tokens of files, and then the changes in memory."""
    start = {"timestamp": db.now()}
    db["t"].insert({"k": list(range(100)), "v": [0] * 100})
    db["t"].flush()
    db["t"].update({"k": [1], "v": [1]})
    stream = make_stream(db)
    middle = stream.latestOffset(start, ReadAllAvailable())
    partitions = stream.partitions(start, middle)
    assert all(token.startswith(b"nyalachg") for part in partitions for token in part.tokens)
    messages = [change_token.tablet_of(token) for part in partitions for token in part.tokens]
    assert sorted(messages, key=str) == [tablet.id for tablet in db["t"].tablets()]
    assert change_token.tablet_of(b"nyalachg and no token") is None
    assert [len(found) for found in drain(stream, start, ReadAllAvailable())] == [100, 1]


def test_micro_batches_have_no_gap_and_no_overlap(db: nyala.Database) -> None:
    """All micro-batches together give the table, whatever happens between them.

    Flushes, compactions and restarts come between micro-batches.
    """
    rng = random.Random(7)
    stream = make_stream(db, maxRowsPerTrigger=20)
    offset, copy = stream.initialOffset(), {}
    for _ in range(40):
        keys = rng.sample(range(30), 6)
        if rng.random() < 0.3:
            db["t"].delete({"k": keys}, on_missing="ignore")
        else:
            db["t"].upsert({"k": keys, "v": [rng.randrange(1000) for _ in keys]})
        if rng.random() < 0.3:
            db["t"].flush()
        if rng.random() < 0.1:
            db["t"].compact()
        if rng.random() < 0.2:
            stream.stop()
            stream = make_stream(db, maxRowsPerTrigger=20)  # the query restarts from its checkpoint
        if rng.random() < 0.5:
            end = stream.latestOffset(offset, stream.getDefaultReadLimit())
            for key, value, kind in rows(stream, offset, end) if end != offset else ():
                if kind == "delete":
                    del copy[key]
                else:
                    assert (kind == "update") == (key in copy)
                    copy[key] = value
            stream.commit(end)
            offset = end
            seen = db["t"].scan(at=end["timestamp"]).to_arrow().to_pylist()
            assert copy == {row["k"]: row["v"] for row in seen}
    stream.stop()


def test_all_versions(db: nyala.Database) -> None:
    """With versions="all", a key that changed twice has two rows."""
    start = {"timestamp": db.now()}
    for value in (1, 2):
        db["t"].upsert({"k": [1], "v": [value]})
    db["t"].delete({"k": [1]})
    found = drain(make_stream(db, versions="all"), start, ReadAllAvailable())
    assert found == [[(1, 1, "insert"), (1, 2, "update"), (1, None, "delete")]]


def test_expired_history_is_an_error_with_advice(tmp_path: Path) -> None:
    """A query that stopped for too long never omits changes silently."""
    with nyala.connect(tmp_path / "store", maintenance=False) as db:
        db.create_table("t", {"k": "int64", "v": "int64"}, ["k"], history=0)
        db["t"].insert({"k": [1], "v": [1]})
        start = {"timestamp": db.now()}
        db["t"].update({"k": [1], "v": [2]})
        db["t"].compact()
        db["t"].vacuum()
        stream = make_stream(db)
        with pytest.raises(HistoryExpiredError, match="cannot continue from its checkpoint"):
            stream.partitions(start, {"timestamp": db.now()})
        stream.stop()


def test_a_batch_read_of_the_feed(db: nyala.Database) -> None:
    """spark.read with changes=true returns the changes between two moments, with the requested
    columns.
    """
    since = db["t"].insert({"k": [1, 2], "v": [1, 2]}).timestamp
    until = db["t"].delete({"k": [1]}).timestamp
    db["t"].delete({"k": [2]})
    source = make_source(db, startingTimestamp=since, endingTimestamp=until, columns="v")
    reader = source.reader(schema=source.schema())
    found = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    marks = {
        "_change_type": "delete",
        "_commit_version": until,
        "_commit_timestamp": nyala.to_datetime(until),
    }
    assert found == [{"k": 1, "v": None, **marks}]
    source = make_source(db, startingTimestamp=since, endingTimestamp=until, columns="v", before="true")
    reader = source.reader(schema=source.schema())
    found = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert found == [{"k": 1, "v": 1, **marks}]


def test_a_stream_with_the_values_before_each_change(db: nyala.Database) -> None:
    """before=true: from files and memory, with net and all versions. The stream begins with the
    rows as inserts.
    """
    table = db["t"]
    table.insert({"k": [1, 2, 3], "v": [1, 2, 3]})
    for versions in ("net", "all"):
        stream = make_stream(db, before=True, versions=versions)
        first = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
        assert {row[2] for row in rows(stream, stream.initialOffset(), first)} == {"insert"}
        before = {k: v for k, v, _ in rows(stream, stream.initialOffset(), first)}
        table.upsert({"k": [1], "v": [before[1] + 10]})
        table.flush()
        table.upsert({"k": [2], "v": [before[2] + 10]})
        expected = [(k, before[k] + add, kind) for k in (1, 2)
                    for kind, add in (("update_preimage", 0), ("update_postimage", 10))]  # fmt: skip
        assert drain(stream, first, ReadAllAvailable()) == [
            sorted(expected[:2], key=repr), sorted(expected[2:], key=repr),
        ]  # fmt: skip
    with pytest.raises(InvalidArgumentError, match="option before='perhaps' must be true or false"):
        make_stream(db, before="perhaps")


# ── altered tables


def by_column(stream: NyalaChangeStream, start: Offset, end: Offset) -> list[dict[str, Any]]:
    """Return the rows of a micro-batch as dicts, without the columns of the feed."""
    batches = [batch for partition in stream.partitions(start, end) for batch in stream.read(partition)]
    found = [row for batch in batches for row in batch.drop_columns(list(MARKS)).to_pylist()]
    return sorted(found, key=lambda row: row["k"])


@pytest.mark.parametrize("flushed", [False, True])
def test_a_stream_while_columns_are_added(db: nyala.Database, flushed: bool) -> None:
    """A query keeps its columns. After a restart it reads all columns, also for changes before they
    were added.
    """
    table = db["t"]
    start = {"timestamp": db.now()}
    table.insert({"k": [1], "v": [1]})
    stream = make_stream(db)
    before = stream.latestOffset(start, ReadAllAvailable())
    with table.alter() as a:
        a.add_column("c", "int8", default=9)
        a.alter_column("v", comment="seen")
    table.insert({"k": [2], "v": [2], "c": [3]})
    if flushed:
        db.flush()
    after = stream.latestOffset(before, ReadAllAvailable())
    assert rows(stream, start, before) == [(1, 1, "insert")]
    assert rows(stream, before, after) == [(2, 2, "insert")]
    again = make_stream(db)
    assert by_column(again, start, before) == [{"k": 1, "v": 1, "c": 9}]
    assert by_column(again, before, after) == [{"k": 2, "v": 2, "c": 3}]
    stream.stop()
    again.stop()


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize(
    ("step", "error", "message", "renamed"),
    [
        (lambda a: a.rename_column("v", "w"), ColumnNotFoundError, "has no column 'v'", "w"),
        (lambda a: a.alter_column("v", type="int64"), SchemaError, "has type bigint and cannot be read as int", "v"),
        (lambda a: a.drop_column("v"), ColumnNotFoundError, "has no column 'v'", None),
    ],
    ids=["renamed", "widened", "dropped"],
)  # fmt: skip
def test_a_stream_whose_columns_were_altered(
    tmp_path: Path, step: Any, error: type[Exception], message: str, renamed: str | None, flushed: bool
) -> None:
    """The query ends with an error. After a restart it continues where it was."""
    with nyala.connect(tmp_path / "store", maintenance=False) as db:
        table = db.create_table("t", {"k": "int64", "v": "int32"}, ["k"])
        start: Offset = {"timestamp": db.now()}
        table.insert({"k": [1], "v": [1]})
        stream = make_stream(db)
        before = stream.latestOffset(start, ReadAllAvailable())
        with table.alter() as a:
            step(a)
        table.insert({"k": [2], **({renamed: [2]} if renamed else {})})
        if flushed:
            db.flush()
        for offsets in ((start, before), (before, stream.latestOffset(before, ReadAllAvailable()))):
            with pytest.raises(error, match=f"{message}.*restart the query"):
                stream.partitions(*offsets)
        stream.stop()
        stream = make_stream(db)
        after = stream.latestOffset(before, ReadAllAvailable())
        assert by_column(stream, start, before) == [{"k": 1, **({renamed: 1} if renamed else {})}]
        assert by_column(stream, before, after) == [{"k": 2, **({renamed: 2} if renamed else {})}]
        stream.stop()


def with_ranges(path: Path) -> nyala.Database:
    db = nyala.connect(path, maintenance=False)
    ranges = nyala.range_partition("k", bounds=[(0, 10), (10, 20)])
    db.create_table("t", {"k": "int64", "v": "int64"}, ["k"], ranges)
    return db


@pytest.mark.parametrize("flushed", [False, True])
def test_a_stream_continues_after_a_range_was_dropped(tmp_path: Path, flushed: bool) -> None:
    """There is no error and there are no deletes. One offset lists the dropped range."""
    with with_ranges(tmp_path / "store") as db:
        stream = make_stream(db)
        begin = stream.initialOffset()
        db["t"].insert({"k": [1, 11], "v": [1, 11]})
        first = stream.latestOffset(begin, ReadAllAvailable())
        db["t"].update({"k": [1, 11], "v": [2, 12]})
        second = stream.latestOffset(first, ReadAllAvailable())
        if flushed:
            db.flush()
        with db["t"].alter() as a:
            a.drop_range(0, 10, purge=True)
        assert stream.latestOffset(second, ReadAllAvailable()) == second, "a drop alone is no change of a row"
        db["t"].insert({"k": [12], "v": [0]})
        third = stream.latestOffset(second, ReadAllAvailable())
        (missing,) = third["dropped_ranges"]
        assert missing["range"] == "RANGE (k) [0, 10)"
        assert second["timestamp"] < missing["timestamp"] <= third["timestamp"]
        # Older micro-batches, which Spark may repeat after a crash, have the columns that still exist.
        assert rows(stream, begin, first) == [(11, 11, "insert")]
        assert rows(stream, first, second) == [(11, 12, "update")]
        assert rows(stream, second, third) == [(12, 0, "insert")]
        db["t"].insert({"k": [13], "v": [0]})
        assert "dropped_ranges" not in stream.latestOffset(third, ReadAllAvailable())
        stream.stop()


def test_a_batch_read_of_the_feed_has_the_columns_of_its_end(tmp_path: Path) -> None:
    """A read of the feed has the columns of `table.changes(since, until)`.

    The metadata of the last field lists dropped ranges.
    """
    with with_ranges(tmp_path / "store") as db:
        since = db["t"].insert({"k": [1, 11], "v": [1, 11]}).timestamp
        until = db["t"].update({"k": [1, 11], "v": [2, 12]}).timestamp
        with db["t"].alter() as a:
            a.rename_column("v", "w")
            a.drop_range(0, 10, purge=True)
        for options, name in (({"endingTimestamp": until}, "v"), ({}, "w")):
            source = make_source(db, startingTimestamp=since, **options)
            schema = source.schema()
            (missing,) = json.loads(schema.fields[-1].metadata["nyala.dropped_ranges"])
            assert missing["range"] == "RANGE (k) [0, 10)"
            reader = source.reader(schema=schema)
            found = [
                row
                for part in reader.partitions()
                for batch in reader.read(part)
                for row in batch.to_pylist()
            ]
            assert [(row["k"], row[name]) for row in found] == [(11, 12)]


def test_a_feed_is_packed_to_the_cores_of_its_session(
    db: nyala.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of partitions depends on the session's cores, and not on those of the planner's
    machine.
    """
    monkeypatch.setattr(changes, "_PIECE_ROWS", 10)
    monkeypatch.setattr(spark_reader, "CELLS_PER_TASK", 10)
    monkeypatch.setattr(changes.os, "cpu_count", lambda: 7)  # type: ignore[attr-defined]
    begun = db.now()
    table = db.create_table("wide", {"k": "int64"}, ["k"], [nyala.hash_partition("k", buckets=32)])
    table.insert({"k": list(range(1000))})
    table.flush()
    in_files = db.now()
    table.insert({"k": list(range(1000, 2000))})
    for cores, expected in ((1, 2), (4, 8), (None, 14)):
        registered: Any = type("RegisteredDataSource", (NyalaDataSource,), {"cores": cores})
        source = registered({"path": db.path, "table": "wide", "changes": "true"})
        stream = source.streamReader(schema=source.schema())
        its = stream.initialOffset()
        offsets = [{**its, "timestamp": moment} for moment in (0, begun, in_files, db.now())]
        for start, end in ((0, 3), (1, 2), (2, 3)):
            made = stream.partitions(offsets[start], offsets[end])
            assert len(made) == expected, (cores, start, end)
        for since in ({}, {"startingTimestamp": str(begun)}):
            source = registered({"path": db.path, "table": "wide", "changes": "true", **since})
            assert len(source.reader(schema=source.schema()).partitions()) == expected
        stream.stop()


@pytest.mark.parametrize("kind", ["base", "redo"])
def test_damage_found_by_the_planner_names_table_and_tablet(tmp_path: Path, kind: str) -> None:
    """The planner reads files for changes in memory, and a stream's planner also counts changed
    rows.
    """
    path = tmp_path / "store"
    texts = [f"{random.Random(k).getrandbits(256):064x}" for k in range(100)]
    with nyala.connect(path, maintenance=False) as db:
        db.create_table("other", {"k": "int64"}, ["k"])
        table = db.create_table("t", {"k": "int64", "v": "int64", "w": "string"}, ["k"])
        table.insert({"k": list(range(100)), "v": [0] * 100, "w": texts})
        table.flush()
        begun = db.now()
        table.update({"k": list(range(50)), "w": texts[50:]})
        table.flush()
        table.update({"k": [70], "v": [1]})
        (tablet,) = (one.id for one in table.tablets())
    for file in path.rglob(f"*.{kind}"):
        body = bytearray(file.read_bytes())
        body[len(body) // 2] ^= 1  # a byte of a text
        file.write_bytes(body)
    output = rf"^table 't', tablet {tablet}: .*/data/{tablet}/\d+-[0-9a-f]+\.{kind} at offset"
    with nyala.connect(path, maintenance=False) as db:
        start, end = {"timestamp": begun}, {"timestamp": db.now()}
        stream = make_stream(db)
        if kind == "redo":
            with pytest.raises(CorruptionError, match=output):
                stream.latestOffset(start, ReadAllAvailable())
        with pytest.raises(CorruptionError, match=output):
            stream.partitions(start, end)
        source = make_source(db, startingTimestamp=begun)
        with pytest.raises(CorruptionError, match=output):
            source.reader(schema=source.schema()).partitions()
        stream.stop()


@pytest.mark.parametrize("filed", [False, True])
def test_damaged_tokens_are_errors(db: nyala.Database, monkeypatch: pytest.MonkeyPatch, filed: bool) -> None:
    """A wrong byte in a partition or in its file is an error, never a wrong row."""
    if filed:
        monkeypatch.setattr(spark_reader.store_tokens, "__defaults__", (0,))
    table = db["t"]
    begun = db.now()
    table.insert({"k": list(range(10)), "v": list(range(10))})
    flushed = db.now()
    stream = make_stream(db, partitions=1)
    table.flush()
    table.insert({"k": [20], "v": [0]})
    # The whole table as scan tokens, changes in files, and changes in memory.
    for since, until in ((0, flushed), (begun, flushed), (flushed, db.now())):
        (part,) = stream.partitions({"timestamp": since}, {"timestamp": until})
        placed = part.tokens[0]
        assert isinstance(placed, FileRange) is filed
        token = bytearray(load_token(placed, Address("")))
        token[-9] ^= 1
        if isinstance(placed, FileRange):
            file = Path(placed.path)
            good = file.read_bytes()
            file.write_bytes(good[: placed.offset] + bytes(token) + good[placed.offset + placed.size :])
        else:
            part.tokens[0] = bytes(token)
        with pytest.raises(CorruptionError, match=r"^table 't': the (scan|change) token is damaged"):
            list(stream.read(part))
        if filed:
            file.unlink()
            with pytest.raises(
                HistoryExpiredError, match=r"^table 't': a file of this read is gone .*has ended"
            ):
                list(stream.read(part))
    for lease in Path(db.path, "leases").glob("remote-*"):
        if lease.is_file():
            lease.unlink()
    with pytest.raises(HistoryExpiredError, match=r"^table 't': the lease .* has expired"):
        list(stream.read(part))
    stream.stop()


def test_a_stream_refuses_an_ending_timestamp(db: nyala.Database) -> None:
    source = make_source(db, endingTimestamp=db.now())
    with pytest.raises(InvalidArgumentError, match="endingTimestamp is only for spark.read"):
        source.streamReader(schema=source.schema())


def test_a_stream_without_changes_is_refused(db: nyala.Database) -> None:
    """Without the columns of the feed, deletes would be invisible."""
    source = NyalaDataSource({"path": db.path, "table": "t"})
    with pytest.raises(InvalidArgumentError, match="changes"):
        source.streamReader(schema=spark_schema(pa.schema([("k", pa.int64())])))
    with pytest.raises(InvalidArgumentError, match="'at'"):
        ChangeOptions.parse({"path": db.path, "table": "t", "at": "5"})


@pytest.mark.parametrize(
    ("start", "memory_from", "max_rows", "expected"),
    [
        (0, None, None, 100),
        (0, 50, None, 49),  # files first
        (49, 50, None, 100),  # then memory
        (0, None, 5, 40),
        (0, None, 1, 10),  # at least one batch
        (0, 15, 100, 14),
        (20, 15, None, 100),
    ],
)
def test_where_a_micro_batch_ends(
    start: int, memory_from: int | None, max_rows: int | None, expected: int
) -> None:
    """A micro-batch never ends inside a batch or before the first batch. If the query is behind, it
    ends where files end.
    """
    moments = np.array([10, 40, 60, 90])
    counts = np.array([3, 2, 4, 1])
    later = moments > start
    assert next_end(100, start, memory_from, moments[later], counts[later], max_rows) == expected
