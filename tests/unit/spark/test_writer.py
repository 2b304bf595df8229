"""The writer's protocol without a Spark session: attempts, one commit, and an abort that undoes nothing."""

from __future__ import annotations

import datetime as dt
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

import nyala
import nyala.spark
from nyala.errors import (
    ColumnNotFoundError,
    DuplicateKeyError,
    InvalidArgumentError,
    SchemaError,
    StorageError,
)
from nyala.spark.source import writer as writer_module
from nyala.spark.source.data_source import NyalaDataSource
from nyala.spark.source.option_messages import errors_in_options
from nyala.spark.source.options import WriteOptions
from nyala.spark.source.stream_writer import NyalaStreamWriter
from nyala.spark.source.writer import NyalaWriter, StagedFile

SCHEMA = StructType([StructField("k", LongType()), StructField("v", StringType())])


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with nyala.connect(tmp_path / "store") as db:
        db.create_table("t", {"k": "int64", "v": "string"}, ["k"])
    return tmp_path / "store"


def make_writer(store: Path, **options: str) -> NyalaWriter:
    """As it comes out of planning: pickled once."""
    parsed = WriteOptions.parse({"path": str(store), "table": "t", **options})
    return pickle.loads(pickle.dumps(NyalaWriter(parsed, SCHEMA)))


@pytest.fixture
def run_task(monkeypatch: pytest.MonkeyPatch):
    """Runs one attempt of one task, as an executor's worker would: on a copy of its own."""
    attempts = iter(range(100))

    def run(writer: NyalaWriter, partition: int, *batches: dict[str, list[object]]) -> StagedFile:
        context = SimpleNamespace(partitionId=lambda: partition, taskAttemptId=lambda: next(attempts))
        monkeypatch.setattr(writer_module.TaskContext, "get", lambda: context)
        copy = pickle.loads(pickle.dumps(writer))
        schema = pa.schema([("k", pa.int64()), ("v", pa.string())])
        message = copy.write(pa.record_batch(batch, schema=schema) for batch in batches)
        assert isinstance(message, StagedFile)
        return message

    return run


def content(store: Path) -> list[tuple[int, str]]:
    with nyala.connect(store, read_only=True) as db:
        return [(row["k"], row["v"]) for row in db["t"].scan(order_by_key=True).to_arrow().to_pylist()]


def staged(store: Path) -> list[str]:
    return [path.name for path in (store / "staging").rglob("*") if path.is_file()]


def test_of_two_attempts_the_one_that_reported_counts(store: Path, run_task) -> None:
    """A task that ran twice (a retry, or speculation) puts its rows into the table once."""
    writer = make_writer(store, operation="insert")
    run_task(writer, 0, {"k": [1], "v": ["lost"]})
    kept = run_task(writer, 0, {"k": [1], "v": ["kept"]})
    writer.commit([kept])
    assert content(store) == [(1, "kept")]
    assert staged(store) == []


def test_a_commit_that_is_asked_for_twice_is_applied_once(store: Path, run_task) -> None:
    """When the answer to a commit is lost and it is sent again, nothing is inserted twice and nothing fails."""
    writer = make_writer(store, operation="insert")
    message = run_task(writer, 0, {"k": [1], "v": ["a"]})
    first, second = pickle.dumps(writer), pickle.dumps(writer)
    folder = store / "staging"
    saved = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    pickle.loads(first).commit([message])
    for path, data in saved.items():
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    pickle.loads(second).commit([message])
    assert content(store) == [(1, "a")]


def test_an_abort_after_the_commit_takes_nothing_back(store: Path, run_task) -> None:
    """Spark aborts when a commit raised, also when what raised came after it went through."""
    writer = make_writer(store)
    writer.commit([run_task(writer, 0, {"k": [1], "v": ["a"]})])
    writer.abort([None])
    assert content(store) == [(1, "a")]


def test_an_abort_removes_what_was_staged(store: Path, run_task) -> None:
    """A failed job leaves no file behind; failed tasks have no message."""
    writer = make_writer(store)
    message = run_task(writer, 0, {"k": [1], "v": ["a"]})
    assert staged(store) != []
    writer.abort([message, None])
    assert staged(store) == []
    assert content(store) == []


@pytest.mark.parametrize("outcome", [None, "unknown"])
def test_a_commit_that_raised_leaves_no_folder(
    store: Path, run_task, monkeypatch: pytest.MonkeyPatch, outcome: str | None
) -> None:
    """Its files are for nobody any more, and Spark's abort need not come: they would stay until the driver ends."""
    writer = make_writer(store, operation="insert")
    message = run_task(writer, 0, {"k": [1], "v": ["a"]})

    def broken(*_: object) -> None:
        raise StorageError("the holder ended", outcome=outcome)

    monkeypatch.setattr(writer_module.handover, "commit_staged", broken)
    with pytest.raises(StorageError, match="the holder ended"):
        writer.commit([message])
    assert list((store / "staging").iterdir()) == []


def test_rows_apply_in_the_order_of_partitions(store: Path, run_task) -> None:
    """Tasks may end in any order; the later row of a key is the one of the later partition."""
    writer = make_writer(store)
    late = run_task(writer, 1, {"k": [1], "v": ["second"]})
    early = run_task(writer, 0, {"k": [1], "v": ["first"]}, {"k": [], "v": []}, {"k": [2], "v": ["x"]})
    writer.commit([late, early])
    assert content(store) == [(1, "second"), (2, "x")]


def test_a_task_without_rows_stages_no_file(store: Path, run_task) -> None:
    """Hundreds of empty partitions must not become hundreds of files."""
    writer = make_writer(store)
    before = staged(store)
    message = run_task(writer, 3, {"k": [], "v": []})
    assert (message.name, message.row_count, staged(store)) == (None, 0, before)
    writer.commit([message, run_task(writer, 4)])
    assert content(store) == []


def test_failing_rows_are_not_passed_over_in_silence(
    store: Path, run_task, caplog: pytest.LogCaptureFixture
) -> None:
    """errors="collect" without a place for the errors: they are at least told, by code, with the first messages."""
    with nyala.connect(store) as db:
        db["t"].insert({"k": list(range(9)), "v": ["x"] * 9})
    writer = make_writer(store, operation="insert", errors="collect")
    message = run_task(writer, 0, {"k": list(range(10)), "v": ["y"] * 10})
    with caplog.at_level("WARNING", logger="nyala.spark"):
        writer.commit([message])
    assert "9 rows were not applied (9 already-present\n  row 0 (k=0)" in caplog.messages[0]
    assert content(store)[-1] == (9, "y")


def test_two_columns_of_one_name_are_refused(store: Path) -> None:
    """A join that left two columns `k` must not write one of them at random."""
    twice = StructType([*SCHEMA.fields, StructField("k", LongType())])
    with pytest.raises(SchemaError, match="two columns named 'k'"):
        NyalaWriter(WriteOptions.parse({"path": str(store), "table": "t"}), twice)


def test_overwrite_with_an_update_is_refused_before_anything_is_staged(store: Path) -> None:
    """Rows that only change others cannot be all that a table holds; no folder is left behind."""
    source = NyalaDataSource({"path": str(store), "table": "t", "operation": "update"})
    with pytest.raises(InvalidArgumentError, match="overwrite"):
        source.writer(schema=SCHEMA, overwrite=True)
    assert staged(store) == []


def test_overwrite_replaces_the_content_in_one_commit(store: Path, run_task) -> None:
    """No reader sees the table empty; before the commit's timestamp everything is as it was."""
    with nyala.connect(store) as db:
        db["t"].insert({"k": [1, 2], "v": ["a", "b"]})
        before = db.now()
    source = NyalaDataSource({"path": str(store), "table": "t"})
    writer = source.writer(schema=SCHEMA, overwrite=True)
    writer.commit([run_task(writer, 0, {"k": [2, 3], "v": ["c", "d"]})])
    assert content(store) == [(2, "c"), (3, "d")]
    with nyala.connect(store) as db:
        assert db["t"].scan(at=before).to_arrow().num_rows == 2
        moments = db["t"].changes(since=before, versions="all").to_arrow()
    assert len(set(moments["_commit_version"].to_pylist())) == 1
    assert sorted(moments["_change_type"].to_pylist()) == ["delete", "insert", "update"]


def test_a_message_is_that_of_the_commit(store: Path, run_task) -> None:
    """.option("message", …) is what `commits()` shows."""
    writer = make_writer(store, operation="insert", message="a job of Spark")
    writer.commit([run_task(writer, 0, {"k": [1], "v": ["a"]})])
    with nyala.connect(store, read_only=True) as db:
        assert [(c.inserted, c.message) for c in db.commits()] == [(1, "a job of Spark")]


def test_rows_are_written_by_a_condition(store: Path, run_task) -> None:
    """.option("when", …): an existing row is updated only if it is TRUE, also against an earlier row of the job."""
    with nyala.connect(store) as db:
        db["t"].insert({"k": [1, 2], "v": ["m", "m"]})
    writer = make_writer(store, when="new.v > old.v")
    early = run_task(writer, 0, {"k": [1, 2, 3], "v": ["z", "a", "x"]})
    writer.commit([run_task(writer, 1, {"k": [3, 1], "v": ["y", "n"]}), early])
    assert content(store) == [(1, "z"), (2, "m"), (3, "y")]


def test_late_rows_are_ignored_and_deletes_remembered(store: Path, run_task) -> None:
    """.option("newest_by", …) of a delete, and of a later upsert."""
    newer = make_writer(store, operation="delete", newest_by="v")
    newer.commit([run_task(newer, 0, {"k": [1], "v": ["7"]})])
    late = make_writer(store, newest_by="v")
    late.commit([run_task(late, 0, {"k": [1, 2], "v": ["6", "1"]})])
    assert content(store) == [(2, "1")]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"newest_by": "w"}, "no column 'w'"),
        ({"newest_by": "k"}, "option newest_by='k' is part of the key"),
        ({"when": "new.v > old.w"}, "no column 'old.w'"),
        ({"when": "new.k > 'x'"}, "new.k"),
    ],
)
def test_a_condition_that_does_not_fit_the_table_stages_nothing(
    store: Path, options: dict[str, str], says: str
) -> None:
    with (
        pytest.raises((InvalidArgumentError, ColumnNotFoundError, SchemaError), match=says),
        errors_in_options(),
    ):
        make_writer(store, **options)
    assert staged(store) == []


def test_a_condition_needs_its_column_in_the_frame(store: Path) -> None:
    only_key = StructType([StructField("k", LongType())])
    for options in ({"when": "new.v > old.v"}, {"newest_by": "v"}):
        given = WriteOptions.parse({"path": str(store), "table": "t", **options})
        with pytest.raises(InvalidArgumentError, match="the data has no column 'v'"):
            NyalaWriter(given, only_key)


@pytest.mark.parametrize("kind", [NyalaWriter, NyalaStreamWriter])
def test_a_condition_and_overwriting_exclude_each_other(store: Path, kind: Any) -> None:
    given = WriteOptions.parse({"path": str(store), "table": "t", "newest_by": "v"})
    with pytest.raises(
        InvalidArgumentError, match="replaces all rows of table 't', so it cannot be .* newest_by"
    ):
        kind(given, SCHEMA, overwrite=True)


def test_a_refused_job_says_how_many_rows_of_which_kind_and_the_first(store: Path, run_task) -> None:
    """errors="raise": Spark shows the text of an error only, so what went wrong is in it."""
    with nyala.connect(store) as db:
        db["t"].insert({"k": list(range(150)), "v": ["x"] * 150})
    writer = make_writer(store, operation="insert")
    message = run_task(writer, 0, {"k": list(range(151)), "v": ["y"] * 151})
    with pytest.raises(DuplicateKeyError) as raised:
        writer.commit([message])
    lines = str(raised.value).splitlines()
    assert "table 't'" in lines[0] and "150 of 151 rows failed" in lines[0]
    assert lines[0].endswith("(all of them: .option('result', folder))")
    assert lines[1] == "150 already-present"
    assert lines[2].startswith("  row 0 (k=0): already-present:")
    assert len(str(raised.value)) <= 2000


@pytest.mark.parametrize("order", [
    {"_commit_version": [5, 5, 7, 6, 5, 7, 7]},
    {"_commit_timestamp": [5, 5, 7, 6, 5, 7, 7]},
    {"_commit_timestamp": [dt.datetime(2026, 1, 1, second=s, tzinfo=dt.UTC) for s in (5, 5, 7, 6, 5, 7, 7)]},
    {"_commit_version": [5, 5, 7, 6, 5, 7, 7], "_commit_timestamp": [dt.datetime(2026, 1, 1, tzinfo=dt.UTC)] * 7},
])  # fmt: skip
def test_rows_of_a_change_feed_are_carried_out(store: Path, run_task, order: dict[str, Any]) -> None:
    """operation="changes": what the feed says was deleted goes, the rest stands as the feed's last row of it says. The
    order is that of the version or of the time; rows of before a change say nothing."""
    with nyala.connect(store) as db:
        db["t"].insert({"k": [1, 2], "v": ["a", "b"]})
    writer = make_writer(store, operation="changes")
    feed = pa.record_batch(
        {
            "k": [1, 2, 3, 3, 9, 2, 2],
            "v": [None, "b", "late", "early", None, "b", "B"],
            "_change_type": [
                "delete",
                "update",
                "insert",
                "insert",
                "delete",
                "update_preimage",
                "update_postimage",
            ],
            **order,
        }
    )
    path = Path(writer._staging) / "feed.arrow"
    writer_module.stage_rows(iter([feed]), str(path), writer._plan, writer._options.address)
    writer.commit([StagedFile(0, "feed.arrow", 7)])
    assert content(store) == [(2, "B"), (3, "late")]


def test_rows_of_a_change_feed_that_fail_are_all_told(tmp_path: Path) -> None:
    """Of those that are put and of those that go, not of one kind only."""
    path = tmp_path / "ranged"
    with nyala.connect(path) as db:
        ranges = [nyala.range_partition("k", bounds=[(0, 100)])]
        db.create_table("t", {"k": "int64", "v": "string"}, ["k"], ranges)
    writer = make_writer(path, operation="changes", errors="collect")
    feed = pa.record_batch(
        {"k": [500, 600, 6], "v": [None, "x", "y"], "_change_type": ["delete", "insert", "insert"]}
    )
    file = Path(writer._staging) / "feed.arrow"
    writer_module.stage_rows(iter([feed]), str(file), writer._plan, writer._options.address)
    outcome = {}
    with nyala.connect(path) as db:
        before = writer_module.handover.commit_staged

        def noted(*arguments):  # type: ignore[no-untyped-def]
            outcome.update(before(*arguments))
            return outcome

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(writer_module.handover, "commit_staged", noted)
            writer.commit([StagedFile(0, "feed.arrow", 3)])
        assert db["t"].scan().to_arrow().to_pylist() == [{"k": 6, "v": "y"}]
    assert sorted(outcome["errors"]["k"].to_pylist()) == [500, 600]


def test_rows_that_were_staged_before_an_alteration(store: Path, run_task) -> None:
    """What the table has by the time of the commit counts: names are looked up and defaults taken then, and a column
    that is gone is an error that writes nothing."""
    writer = make_writer(store, operation="upsert")
    message = run_task(writer, 0, {"k": [1], "v": ["a"]})
    with nyala.connect(store) as db:
        with db["t"].alter() as a:
            a.drop_column("v")
            a.add_column("v", "varchar(9)")
            a.add_column("w", "int8", nullable=False, default=7)
        db["t"].insert({"k": [2], "w": [8]})
    writer.commit([message])
    with nyala.connect(store) as db:
        assert db["t"].scan(order_by_key=True).to_arrow().to_pylist() == [
            {"k": 1, "v": "a", "w": 7},
            {"k": 2, "v": None, "w": 8},
        ]
        message = run_task(writer := make_writer(store, operation="upsert"), 0, {"k": [1], "v": ["b"]})
        with db["t"].alter() as a:
            a.rename_column("v", "x")
    with pytest.raises(ColumnNotFoundError, match="an unknown column 'v'"):
        writer.commit([message])
    with nyala.connect(store) as db:
        assert db["t"].get({"k": 1}) == {"k": 1, "x": "a", "w": 7}


@pytest.mark.parametrize(
    "marks", [("_change_type", "_commit_version"), ("_commit_timestamp",), ("_commit_version",)]
)
def test_a_feed_that_is_written_as_rows_is_told(store: Path, marks: tuple[str, ...]) -> None:
    """What it says was deleted would be rows; and that the table has no such column says nothing to its owner."""
    feed = StructType([*SCHEMA.fields, *(StructField(name, StringType()) for name in marks)])
    parsed = WriteOptions.parse({"path": str(store), "table": "t"})
    with pytest.raises(
        InvalidArgumentError, match=r"table 't' is a change feed .*option\('operation', 'changes'\)"
    ):
        NyalaWriter(parsed, feed)
    frame = SimpleNamespace(sparkSession=None, schema=feed, columns=feed.fieldNames())
    with nyala.connect(store) as db:
        for tasks in (None, 2):
            with pytest.raises(
                InvalidArgumentError, match=r"table 't' is a change feed .*operation='changes'"
            ):
                nyala.spark.upsert(frame, db["t"], tasks=tasks)
        # Whoever keeps the feed as it is has a table for it.
        db.create_table("log", {"k": "int64", "v": "string", **dict.fromkeys(marks, "string")}, ["k"])
    NyalaWriter(WriteOptions.parse({"path": str(store), "table": "log"}), feed)
