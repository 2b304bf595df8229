"""The streaming sink, without a Spark session: a micro-batch that is sent again is applied once."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

import nyala
from nyala.errors import DuplicateKeyError, InvalidArgumentError, TableNotFoundError
from nyala.spark.source import stream_writer as sink_module
from nyala.spark.source.data_source import NyalaDataSource
from nyala.spark.source.stream_writer import NyalaStreamWriter, StagedBatch
from nyala.tablet.state.idempotency import KEY_RETENTION_US, keys_to_forget, stream_key
from nyala.tablet.write.prepare import OPERATION_NAMES

SCHEMA = StructType([StructField("k", LongType()), StructField("v", StringType())])
Task = Callable[..., StagedBatch]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with nyala.connect(tmp_path / "store") as db:
        db.create_table("t", {"k": "int64", "v": "string"}, ["k"])
    return tmp_path / "store"


def make_writer(store: Path, overwrite: bool = False, **options: str) -> NyalaStreamWriter:
    source = NyalaDataSource({"path": str(store), "table": "t", "operation": "insert", **options})
    made = pickle.loads(pickle.dumps(source.streamWriter(schema=SCHEMA, overwrite=overwrite)))
    assert isinstance(made, NyalaStreamWriter)
    return made


@pytest.fixture
def run_task(store: Path, monkeypatch: pytest.MonkeyPatch) -> Task:
    """Run one attempt of a task, in a new writer, as Spark does."""
    attempts = iter(range(100))

    def run(partition: int, keys: list[int], query: str | None = "q1", **options: str) -> StagedBatch:
        context = SimpleNamespace(
            partitionId=lambda: partition,
            taskAttemptId=lambda: next(attempts),
            getLocalProperty=lambda name: query if name == "sql.streaming.queryId" else None,
        )
        monkeypatch.setattr(sink_module.TaskContext, "get", lambda: context)
        batch = pa.record_batch({"k": pa.array(keys, pa.int64()), "v": pa.array(["x"] * len(keys))})
        message = make_writer(store, **options).write(iter([batch]))
        assert isinstance(message, StagedBatch)
        return message

    return run


def content(store: Path) -> list[int]:
    with nyala.connect(store, read_only=True) as db:
        return db["t"].scan(["k"], order_by_key=True).to_arrow()["k"].to_pylist()


def staged(store: Path) -> list[str]:
    return [path.name for path in (store / "staging").rglob("*") if path.is_file()]


def test_a_micro_batch_that_is_sent_again_is_applied_once(store: Path, run_task: Task) -> None:
    """Spark sends it again if it was killed after Nyala's commit and before its own."""
    make_writer(store).commit([run_task(0, [1, 2]), run_task(1, [3])], batchId=0)
    make_writer(store).commit([run_task(0, [1, 2]), run_task(1, [3])], batchId=0)
    assert content(store) == [1, 2, 3]
    make_writer(store).commit([run_task(0, [4])], batchId=1)
    assert content(store) == [1, 2, 3, 4]
    assert staged(store) == []


def test_late_micro_batches_change_nothing(store: Path, run_task: Task) -> None:
    """With the option newest_by, rows that are not newer are ignored."""
    options = {"operation": "upsert", "newest_by": "v"}
    for batch, keys in enumerate([[1, 2], [2, 3]]):
        make_writer(store, **options).commit([run_task(0, keys, **options)], batchId=batch)
    with nyala.connect(store, read_only=True) as db:
        assert [(c.inserted, c.updated) for c in db.commits()] == [(2, 0), (1, 0)]


def test_the_record_of_a_micro_batch_survives_a_flush_and_an_open(store: Path, run_task: Task) -> None:
    """The record is first in the log, and after a flush in the catalogue."""
    make_writer(store).commit([run_task(0, [1])], batchId=0)
    with nyala.connect(store) as db:
        db.flush()
    make_writer(store).commit([run_task(0, [1])], batchId=0)
    assert content(store) == [1]


def test_micro_batches_of_other_queries_and_numbers_are_applied(store: Path, run_task: Task) -> None:
    """The numbers begin at 0 in every query."""
    make_writer(store).commit([run_task(0, [1], "q1")], batchId=0)
    make_writer(store).commit([run_task(0, [2], "q2")], batchId=0)
    with pytest.raises(DuplicateKeyError, match="already-present"):
        make_writer(store).commit([run_task(0, [2], "q2")], batchId=1)
    assert content(store) == [1, 2]


def test_an_abort_before_the_commit_leaves_nothing(store: Path, run_task: Task) -> None:
    """Staged rows are not in the table, and the abort removes their files."""
    lost = run_task(0, [1])
    assert content(store) == []
    make_writer(store).abort([lost, None], batchId=0)
    assert staged(store) == []
    make_writer(store).commit([run_task(0, [1]), run_task(1, [])], batchId=0)
    assert content(store) == [1]


def test_an_abort_after_the_commit_changes_nothing(store: Path, run_task: Task) -> None:
    """Spark calls abort too if something failed after the commit."""
    message = run_task(0, [1])
    make_writer(store).commit([message], batchId=0)
    make_writer(store).abort([message], batchId=0)
    assert content(store) == [1]


def test_a_task_that_fails_leaves_no_file(
    store: Path, run_task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed task removes its files itself, because it sends no message about them."""

    def broken(*_: object) -> int:
        raise OSError("disk")

    monkeypatch.setattr(sink_module, "stage_rows", broken)
    with pytest.raises(OSError, match="disk"):
        run_task(0, [1])
    assert list((store / "staging").iterdir()) == []


def test_a_query_without_an_id_must_be_given_a_name(store: Path, run_task: Task) -> None:
    """Without an id or a name, a restarted query would look like a new query."""
    with pytest.raises(InvalidArgumentError, match="transaction"):
        run_task(0, [1], None)
    for _ in range(2):
        make_writer(store).commit([run_task(0, [1], None, transaction="mine")], batchId=0)
    assert content(store) == [1]


def test_complete_output_replaces_the_content(store: Path, run_task: Task) -> None:
    """With output mode "complete", each micro-batch is the whole table."""
    make_writer(store, overwrite=True).commit([run_task(0, [1, 2])], batchId=0)
    make_writer(store, overwrite=True).commit([run_task(0, [2, 3])], batchId=1)
    make_writer(store, overwrite=True).commit([run_task(0, [])], batchId=2)
    assert content(store) == [], "a result without rows replaces the content too"
    make_writer(store, overwrite=True).commit([run_task(0, [2, 3])], batchId=3)
    assert content(store) == [2, 3]


def test_complete_output_takes_no_other_operation(store: Path) -> None:
    """An upsert that removes other rows would surprise."""
    given = {"path": str(store), "table": "t"}
    for operation in ("upsert", "delete", "changes"):
        source = NyalaDataSource({**given, "operation": operation})
        with pytest.raises(InvalidArgumentError, match="replaces all rows of table 't'") as refused:
            source.streamWriter(SCHEMA, overwrite=True)
        assert "foreachBatch" in str(refused.value)
    for options in (given, {**given, "operation": "insert"}):
        assert NyalaDataSource(options).streamWriter(SCHEMA, overwrite=True)._overwrite


@pytest.mark.parametrize("batch", ["no rows", "no tasks", "existing rows"])
def test_a_micro_batch_that_changed_nothing_is_not_applied_again(
    store: Path, run_task: Task, batch: str
) -> None:
    """A micro-batch without effect is recorded and not applied again.

    The second time, it could have other rows, or its keys could be free.
    """
    options = {"operation": "insert-ignore", "transaction": "mine"}
    with nyala.connect(store) as db:
        db["t"].insert({"k": [1], "v": ["x"]})
    messages = {
        "no rows": lambda: [run_task(0, [], **options), run_task(1, [], **options)],
        "no tasks": list,
        "existing rows": lambda: [run_task(0, [1], **options)],
    }[batch]()
    make_writer(store, **options).commit(messages, batchId=0)
    assert staged(store) == []
    with nyala.connect(store) as db:
        db["t"].delete({"k": [1]})
        assert db._writer().committed(stream_key("mine", 0)) is not None
    make_writer(store, **options).commit([run_task(0, [1, 2], **options)], batchId=0)
    assert content(store) == []
    make_writer(store, **options).commit([run_task(0, [1, 2], **options)], batchId=1)
    assert content(store) == [1, 2]


@pytest.mark.parametrize("operation", [*OPERATION_NAMES, "changes"])
def test_a_micro_batch_without_rows_is_only_recorded(store: Path, run_task: Task, operation: str) -> None:
    schema = StructType([SCHEMA["k"]]) if operation.startswith("delete") else SCHEMA
    if operation == "changes":
        schema = StructType([*SCHEMA, StructField("_change_type", StringType())])
    source = NyalaDataSource({"path": str(store), "table": "t", "operation": operation})
    writer = source.streamWriter(schema=schema, overwrite=False)
    writer.commit([run_task(0, [])], batchId=0)
    with nyala.connect(store) as db:
        assert db._writer().committed(stream_key("q1", 0)) is not None
    assert content(store) == [] and list((store / "staging").iterdir()) == []


@pytest.mark.parametrize("keys", [[], [1]])
def test_a_commit_that_raised_leaves_no_folder(store: Path, run_task: Task, keys: list[int]) -> None:
    """The folders of tasks are removed, and also the folder of a commit without rows."""
    writer, message = make_writer(store, overwrite=True), run_task(0, keys)
    with nyala.connect(store) as db:
        db.drop_table("t")
    with pytest.raises(TableNotFoundError):
        writer.commit([message], batchId=0)
    assert list((store / "staging").iterdir()) == []


def test_the_newest_record_of_a_query_is_kept() -> None:
    """A query may restart after a month. Records of jobs and older micro-batches are removed."""
    old, new = 1, KEY_RETENTION_US + 100
    known = {
        "job": old,
        stream_key("a", 1): old,
        stream_key("a", 2): old + 1,
        stream_key("b", 7): old,
        "young": new,
    }
    assert keys_to_forget(known, new + 50) == ["job", stream_key("a", 1)]
