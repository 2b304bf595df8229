"""The writer is killed while it commits a job: the client sends it again, and each row is written once."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.loads import content, open_with_table, staged_job
from tests.sampled import each

import nyala
from nyala.env import SYSTEM
from nyala.errors import DuplicateKeyError, LockedError, StorageError
from nyala.handover import attempts
from nyala.handover import commits as handover
from nyala.handover.channel import WriterEndedError
from nyala.tablet.jobs.staged_files import write_staged
from nyala.tablet.store import Store

# Holds the lock, and is killed before or after the first call of a function. It also ends with its input.
HOLDER = """
import importlib, os, signal, sys
import nyala
path, module, name, when = sys.argv[1:]
owner = importlib.import_module(module)
*outer, name = name.split(".")
for part in outer:
    owner = getattr(owner, part)
called = getattr(owner, name)
def dying(*arguments, **more):
    if when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    called(*arguments, **more)
    os.kill(os.getpid(), signal.SIGKILL)
with nyala.connect(path, maintenance=False) as db:
    setattr(owner, name, dying)
    print("ready", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def holder(path: str, step: str) -> Iterator[subprocess.Popen[str]]:
    """Start another process, which holds the lock of the store and is killed at this step."""
    module, name, when = step.split(":")
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, path, module, name, when],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.wait(20)
    finally:
        process.kill()
        process.wait(20)
        process.stdin.close()
        process.stdout.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A closed store with one row, which is in files."""
    with open_with_table(tmp_path / "store") as db:
        db["t"].insert({"k": [1], "v": [1], "w": ["a"]})
        db["t"].flush()
    return tmp_path / "store"


def staged(path: Path, operation: str = "insert") -> dict[str, Any]:
    key, folder = handover.new_staging(str(path))
    rows = pa.record_batch({"k": [2, 3], "v": [2, 3], "w": ["b", "c"]})
    write_staged(SYSTEM, f"{folder}/0.arrow", rows.schema, iter([rows]))
    return {
        "key": key,
        "table": "t",
        "operation": operation,
        "files": ["0.arrow"],
        "columns": ["k", "v", "w"],
    }


def rows_of(path: Path) -> dict[int, Any]:
    with nyala.connect(path, read_only=True) as db:
        assert db["t"].count() == len(content(db))
        return content(db)


@pytest.mark.parametrize(
    "step",
    each(
        2,
        [
            "nyala.wal.writer:LogWriter.append:after",
            "nyala.tablet.write.write_path:commit:before",
            "nyala.tablet.store:Store.finish:after",
        ],
    ),
)
def test_rows_that_are_written_by_the_log(path: Path, step: str) -> None:
    """The rows are inserted once, and the answer has the counts of the first commit."""
    job = staged(path)
    with holder(str(path), step) as process:
        answer = handover.commit_staged(str(path), job)
    assert process.returncode < 0
    assert (answer["inserted"], answer["errors"]) == (2, None)
    assert rows_of(path) == {1: (1, "a"), 2: (2, "b"), 3: (3, "c")}
    assert handover.commit_staged(str(path), job) == answer


@pytest.mark.parametrize(
    "step",
    each(
        2,
        [
            "nyala.tablet.jobs.load_commit:_link_staged:after",
            "nyala.tablet.jobs.load_commit:check_staged:before",
            "nyala.tablet.store:Store.transact:after",
            "nyala.tablet.store:Store.transact:before",
        ],
    ),
)
def test_files_of_a_load(path: Path, step: str) -> None:
    """Wherever the writer is killed, the staged files of a load still exist for the next writer."""
    with open_with_table(path.parent / "other") as db:
        db["t"].insert({"k": [1], "v": [1], "w": ["a"]})
        db["t"].flush()
        with staged_job(db, "upsert", {"k": [1, 2, 3], "v": [10, 20, 30]}) as (job, _):
            db.close()
            with holder(db.path, step) as process:
                answer = handover.commit_load_files(db.path, job)
            assert process.returncode < 0
            assert (answer["inserted"], answer["updated"]) == (2, 1)
            assert handover.commit_load_files(db.path, job) == answer
            with nyala.connect(db.path, maintenance=False) as opened:
                assert content(opened) == {1: (10, "a"), 2: (20, "none"), 3: (30, "none")}
                assert opened.check().ok


def test_an_error_of_the_next_writer_is_raised(path: Path) -> None:
    """By the key the next writer knows that the first wrote nothing, so its error is certain."""
    with nyala.connect(path, maintenance=False) as db:
        db["t"].insert({"k": [3], "v": [3]})
    with (
        holder(str(path), "nyala.tablet.write.write_path:resolve_requests:before"),
        pytest.raises(DuplicateKeyError, match="1 of 2 rows failed and nothing was written"),
    ):
        handover.commit_staged(str(path), staged(path))
    assert sorted(rows_of(path)) == [1, 3]


def test_begin_and_end_of_a_load_are_sent_again(path: Path) -> None:
    """The driver of a load continues after the writer has ended."""
    with holder(str(path), "nyala.tablet.jobs.load_job:begin_load:after"):
        loading = handover.loading(str(path), "t", 60, reserve=True)
        plan, _ = loading.__enter__()
    assert plan.table == "t"
    with holder(str(path), "nyala.tablet.jobs.held_rowsets:JobReservations.release:after"):
        loading.__exit__(None, None, None)


def test_a_request_that_no_process_survives(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request is sent a limited number of times. Then the error says that the outcome is unknown."""
    sent: list[str] = []

    def ended(*arguments: Any) -> Any:
        sent.append(arguments[2]["do"])
        raise WriterEndedError("it ended: check that before you repeat it", outcome="unknown")

    monkeypatch.setattr(handover, "send", ended)
    monkeypatch.setattr(attempts, "AGAIN_MAX", 2)
    with pytest.raises(
        StorageError, match=r"check that before you repeat it \(the request was sent again 2 times\)"
    ) as raised:
        handover.commit_staged(str(path), staged(path))
    assert (sent, raised.value.outcome, type(raised.value)) == (["commit"] * 3, "unknown", StorageError)


@pytest.mark.parametrize("error", [StorageError("the disk is full"), LockedError("held by pid 7")])
def test_if_it_cannot_be_sent_again_the_outcome_is_unknown(
    path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The first attempt's outcome stays unknown, even if the second one wrote nothing."""
    job = staged(path)

    def refuses(*_: object) -> Any:
        raise error

    with holder(str(path), "nyala.wal.writer:LogWriter.append:after"):
        with monkeypatch.context() as patch:
            patch.setattr(Store, "open", refuses)
            patch.setattr(attempts, "WAIT_S", 0.0)
            with pytest.raises(
                StorageError, match=rf"not known.*sending the request again failed: {error}"
            ) as raised:
                handover.commit_staged(str(path), job)
        assert raised.value.outcome == "unknown"
    assert handover.commit_staged(str(path), job)["inserted"] == 2
