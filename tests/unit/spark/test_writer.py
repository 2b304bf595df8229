"""The writer, without a Spark session: attempts of tasks, one commit, and an abort."""

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
    """Return a writer as after planning: pickled once."""
    parsed = WriteOptions.parse({"path": str(store), "table": "t", **options})
    return pickle.loads(pickle.dumps(NyalaWriter(parsed, SCHEMA)))


@pytest.fixture
def run_task(monkeypatch: pytest.MonkeyPatch):
    """Run one attempt of a task on a pickled copy, as an executor does."""
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


def test_only_one_attempt_of_a_task_counts(store: Path, run_task) -> None:
    """If a task runs twice, because of a retry or speculation, its rows are written once."""
    writer = make_writer(store, operation="insert")
    run_task(writer, 0, {"k": [1], "v": ["lost"]})
    kept = run_task(writer, 0, {"k": [1], "v": ["kept"]})
    writer.commit([kept])
    assert content(store) == [(1, "kept")]
    assert staged(store) == []


def test_a_commit_that_is_sent_twice_is_applied_once(store: Path, run_task) -> None:
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


def test_an_abort_after_the_commit_changes_nothing(store: Path, run_task) -> None:
    """Spark calls abort if `commit` raised, also if the error came after the commit itself."""
    writer = make_writer(store)
    writer.commit([run_task(writer, 0, {"k": [1], "v": ["a"]})])
    writer.abort([None])
    assert content(store) == [(1, "a")]


def test_an_abort_removes_staged_files(store: Path, run_task) -> None:
    """Failed tasks have no message."""
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
    """A failed commit removes its folder, because Spark may not call abort."""
    writer = make_writer(store, operation="insert")
    message = run_task(writer, 0, {"k": [1], "v": ["a"]})

    def broken(*_: object) -> None:
        raise StorageError("the holder ended", outcome=outcome)

    monkeypatch.setattr(writer_module.handover, "commit_staged", broken)
    with pytest.raises(StorageError, match="the holder ended"):
        writer.commit([message])
    assert list((store / "staging").iterdir()) == []


def test_rows_apply_in_the_order_of_partitions(store: Path, run_task) -> None:
    """In whatever order tasks end, the row of the later partition wins."""
    writer = make_writer(store)
    late = run_task(writer, 1, {"k": [1], "v": ["second"]})
    early = run_task(writer, 0, {"k": [1], "v": ["first"]}, {"k": [], "v": []}, {"k": [2], "v": ["x"]})
    writer.commit([late, early])
    assert content(store) == [(1, "second"), (2, "x")]


def test_a_task_without_rows_stages_no_file(store: Path, run_task) -> None:
    writer = make_writer(store)
    before = staged(store)
    message = run_task(writer, 3, {"k": [], "v": []})
    assert (message.name, message.row_count, staged(store)) == (None, 0, before)
    writer.commit([message, run_task(writer, 4)])
    assert content(store) == []


def test_failing_rows_are_logged(store: Path, run_task, caplog: pytest.LogCaptureFixture) -> None:
    """With errors="collect" and no result folder, the log has counts by code and the first
    messages.
    """
    with nyala.connect(store) as db:
        db["t"].insert({"k": list(range(9)), "v": ["x"] * 9})
    writer = make_writer(store, operation="insert", errors="collect")
    message = run_task(writer, 0, {"k": list(range(10)), "v": ["y"] * 10})
    with caplog.at_level("WARNING", logger="nyala.spark"):
        writer.commit([message])
    assert "9 rows were not applied (9 already-present\n  row 0 (k=0)" in caplog.messages[0]
    assert content(store)[-1] == (9, "y")


def test_two_columns_of_one_name_are_refused(store: Path) -> None:
    """A join may return two columns `k`."""
    twice = StructType([*SCHEMA.fields, StructField("k", LongType())])
    with pytest.raises(SchemaError, match="two columns named 'k'"):
        NyalaWriter(WriteOptions.parse({"path": str(store), "table": "t"}), twice)


@pytest.mark.parametrize("operation", ["update", "Upsert", "insert-ignore"])
def test_overwrite_with_an_operation_is_refused_before_anything_is_staged(
    store: Path, operation: str
) -> None:
    """Mode overwrite would replace all rows, which an update or upsert does not mean."""
    source = NyalaDataSource({"path": str(store), "table": "t", "operation": operation})
    with pytest.raises(InvalidArgumentError, match="overwrite"):
        source.writer(schema=SCHEMA, overwrite=True)
    assert staged(store) == []


def test_overwrite_replaces_the_content_in_one_commit(store: Path, run_task) -> None:
    """Before the timestamp of the commit, readers see the old rows. No reader sees an empty table."""
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


def test_the_option_message_is_stored_with_the_commit(store: Path, run_task) -> None:
    writer = make_writer(store, operation="insert", message="a job of Spark")
    writer.commit([run_task(writer, 0, {"k": [1], "v": ["a"]})])
    with nyala.connect(store, read_only=True) as db:
        assert [(c.inserted, c.message) for c in db.commits()] == [(1, "a job of Spark")]


def test_rows_are_written_by_a_condition(store: Path, run_task) -> None:
    """The option `when` updates an existing row only if the condition is TRUE, also a row of the
    same job.
    """
    with nyala.connect(store) as db:
        db["t"].insert({"k": [1, 2], "v": ["m", "m"]})
    writer = make_writer(store, when="new.v > old.v")
    early = run_task(writer, 0, {"k": [1, 2, 3], "v": ["z", "a", "x"]})
    writer.commit([run_task(writer, 1, {"k": [3, 1], "v": ["y", "n"]}), early])
    assert content(store) == [(1, "z"), (2, "m"), (3, "y")]


def test_late_rows_are_ignored_also_after_a_delete(store: Path, run_task) -> None:
    """The option `newest_by` also remembers deletes."""
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


def test_the_error_of_a_job_has_counts_and_the_first_rows(store: Path, run_task) -> None:
    """Spark shows only the text of an error."""
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
def test_rows_of_a_change_feed_are_applied(store: Path, run_task, order: dict[str, Any]) -> None:
    """operation="changes": deletes delete, and of several changes of a key the last one wins, by
    version or time. Rows with the values before a change are ignored.
    """
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


def test_all_failing_rows_of_a_change_feed_are_reported(tmp_path: Path) -> None:
    """Failing upserts and failing deletes of a feed are reported together."""
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
    """The table's state at the commit counts: names and defaults are those of then, and a dropped
    column is an error.
    """
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
def test_a_change_feed_without_its_operation_is_refused(store: Path, marks: tuple[str, ...]) -> None:
    """If the feed were written as rows, its deletes would be inserted."""
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
        # A table that has the columns of the feed may store it unchanged.
        db.create_table("log", {"k": "int64", "v": "string", **dict.fromkeys(marks, "string")}, ["k"])
    NyalaWriter(WriteOptions.parse({"path": str(store), "table": "log"}), feed)
