"""Commits of jobs by other processes: the writer commits staged files, once per key (H1, H2)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support import key_value_table, open_database, rows

from nyala.env import SYSTEM, Env, SystemRandomness, system_files
from nyala.errors import (
    CorruptionError,
    DuplicateKeyError,
    HistoryExpiredError,
    InvalidArgumentError,
    KeyNotFoundError,
    LockedError,
    StorageError,
    TableNotFoundError,
)
from nyala.handover.channel import send
from nyala.handover.commits import (
    commit_staged,
    discard_staging,
    new_staging,
    remote_lease,
    renew_lease,
)
from nyala.tablet.jobs.staged_files import read_staged, write_staged
from nyala.tablet.write.prepare import OPERATION_NAMES
from nyala.testing.clock import ManualClock

SCHEMA = pa.schema({"k": pa.int64(), "v": pa.int64()})


def stage(
    path: Path, rows_: list[tuple[int, int | None]], operation: str = "upsert", errors: str = "raise", files: int = 1,
    table: str = "t",
) -> dict[str, Any]:  # fmt: skip
    """Stage rows in this number of files; return the job."""
    key, folder = new_staging(str(path))
    deletes = operation.startswith("delete")
    schema = pa.schema([SCHEMA.field("k")]) if deletes else SCHEMA
    names = []
    for number in range(files):
        part = [dict(zip(schema.names, row, strict=False)) for row in rows_[number::files]]
        batch = pa.RecordBatch.from_pylist(part, schema=schema)
        assert write_staged(SYSTEM, f"{folder}/{number}.arrow", schema, iter([batch])) == len(part)
        names.append(f"{number}.arrow")
    return {"key": key, "table": table, "operation": operation, "errors": errors, "files": names,
            "columns": schema.names}  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"when": 5}, "an invalid when: 5"),
        ({"newest_by": ["v"]}, "an invalid newest_by"),
        ({"when": "new.v >"}, "expected a value"),
        ({"when": "new.v > old.v", "newest_by": "v"}, "either when= or newest_by="),
        (
            {"when": "new.v > old.v", "operation": "insert"},
            "when goes with operation upsert, not with 'insert'",
        ),
        ({"newest_by": "v", "operation": "update"}, "newest_by goes with operation upsert or delete"),
        ({"newest_by": "v", "overwrite": True}, "overwrites all rows cannot have `when` or `newest_by`"),
    ],
)
def test_the_condition_of_a_job_is_checked(tmp_path: Path, fields: dict[str, Any], says: str) -> None:
    with open_database(tmp_path / "s") as db:
        key_value_table(db)
        with pytest.raises(InvalidArgumentError, match=says):
            commit_staged(str(tmp_path / "s"), {**stage(tmp_path / "s", [(1, 1)]), **fields})
        assert rows(db["t"]) == []


# --- a real second process ------------------------------------------------------------------------------

CHILD = """
import json, sys
from nyala.errors import WriteError
from nyala.handover.commits import commit_staged
for line in sys.stdin:
    path, job = json.loads(line)
    try:
        answer = commit_staged(path, job)
        errors = answer.pop("errors")
    except Exception as error:
        answer = {"raised": type(error).__name__, "says": str(error)}
        errors = getattr(error, "errors", None)
    answer["failed"] = None if errors is None else errors.to_pylist()
    print(json.dumps(answer), flush=True)
"""


class Other:
    """Another process, which commits jobs."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def commit(self, path: Path, job: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps([str(path), job]) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer


@pytest.fixture(scope="module")
def other() -> Iterator[Other]:
    other = Other()
    yield other
    assert other.process.stdin is not None and other.process.stdout is not None
    other.process.stdin.close()
    other.process.wait(20)
    other.process.stdout.close()


def test_a_second_process_commits_while_the_first_has_the_store_open(tmp_path: Path, other: Other) -> None:
    """The first process reads the rows at once, and they have one timestamp."""
    with open_database(tmp_path / "s") as db:
        table = key_value_table(db)
        table.insert({"k": [1], "v": [1]})
        answer = other.commit(tmp_path / "s", stage(tmp_path / "s", [(1, 10), (2, 20), (3, 30)], files=2))
        assert answer == {
            "timestamp": db.now(), "inserted": 2, "updated": 1, "deleted": 0, "ignored": 0, "failed": None,
        }  # fmt: skip
        assert rows(table) == [(1, 10), (2, 20), (3, 30)]
        assert rows(table, at=answer["timestamp"] - 1) == [(1, 1)]
    again = open_database(tmp_path / "s")
    assert rows(again["t"]) == [(1, 10), (2, 20), (3, 30)]
    again.close()


def test_h1_a_key_is_committed_once(tmp_path: Path, other: Other) -> None:
    """A repeated commit returns the first answer. It neither writes the rows twice nor fails."""
    with open_database(tmp_path / "s") as db:
        table = key_value_table(db)
        job = stage(tmp_path / "s", [(1, 1)], "insert")
        first = other.commit(tmp_path / "s", job)
        assert first["inserted"] == 1
        table.update({"k": [1], "v": [5]})
        assert other.commit(tmp_path / "s", job) == first
        assert rows(table) == [(1, 5)]
        discard_staging(str(tmp_path / "s"), job["key"])  # as a job does after its commit
        assert other.commit(tmp_path / "s", job) == first
    with open_database(tmp_path / "s") as db:
        assert other.commit(tmp_path / "s", job) == first, "the key is in the log"
        db.flush()  # the key goes from the log into the catalogue
        assert other.commit(tmp_path / "s", job) == first
    with open_database(tmp_path / "s") as db:
        db.drop_table("t")
        assert other.commit(tmp_path / "s", job) == first
    # Without a writer.
    assert other.commit(tmp_path / "s", job) == first


ANSWERS: dict[str, dict[str, Any]] = {
    "upsert": {"operation": "upsert"},
    "update-ignore": {"operation": "update-ignore"},
    "delete": {"operation": "delete-ignore"},
    "overwrite": {"operation": "upsert", "overwrite": True},
    "changes": {"operation": "changes"},
}


@pytest.mark.parametrize("direct_commit_bytes", [1, 1 << 20])
@pytest.mark.parametrize("what", ANSWERS)
def test_h1_a_repeated_commit_returns_the_same_counts(
    tmp_path: Path, what: str, direct_commit_bytes: int
) -> None:
    """A repeated commit returns the first counts, whether the rows are in the log or in files."""
    path, options = tmp_path / "s", ANSWERS[what]
    with open_database(path, direct_commit_bytes=direct_commit_bytes) as db:
        table = key_value_table(db)
        table.insert({"k": [1, 2, 3], "v": [1, 2, 3]})
        if what == "changes":
            key, folder = new_staging(str(path))
            kinds = ["update", "insert", "delete"]
            feed = pa.record_batch({"k": [1, 7, 9], "v": [5, 5, None], "_change_type": kinds})
            write_staged(SYSTEM, f"{folder}/0.arrow", feed.schema, iter([feed]))
            job = {"key": key, "table": "t", "files": ["0.arrow"], "columns": feed.schema.names, **options}
        else:
            job = {**stage(path, [(2, 20), (3, 30), (4, 40)], options["operation"]), **options}
        first = commit_staged(str(path), job)
        assert sum(first[name] for name in ("inserted", "updated", "deleted", "ignored")) >= 3
        assert commit_staged(str(path), job) == first
    with open_database(path) as db:
        assert commit_staged(str(path), job) == first
        db.flush()
        assert commit_staged(str(path), job) == first


def test_h1_a_repeated_commit_logs_the_number_of_failed_rows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A repeated commit cannot return the failed rows, which are not stored. It logs their number."""
    with open_database(tmp_path / "s") as db:
        key_value_table(db).insert({"k": [1, 2], "v": [1, 2]})
        job = stage(tmp_path / "s", [(1, 1), (2, 2), (3, 3)], "insert", "collect")
        first = commit_staged(str(tmp_path / "s"), job)
        assert len(first["errors"]) == 2 and not caplog.records
        assert commit_staged(str(tmp_path / "s"), job) == {**first, "errors": None}
        assert f"the batch of idempotency key {job['key']} was committed at " in caplog.text
        assert "2 of its rows failed" in caplog.text


@pytest.mark.parametrize("with_writer", [True, False])
def test_row_errors_collected_and_raised(tmp_path: Path, other: Other, with_writer: bool) -> None:
    """The other process gets the failed rows. If the error is raised, no row was written."""
    db = open_database(tmp_path / "s")
    table = key_value_table(db)
    table.insert({"k": [1], "v": [1]})
    if not with_writer:
        db.close()
    raised = other.commit(tmp_path / "s", stage(tmp_path / "s", [(1, 10), (2, 20)], "insert"))
    assert raised["raised"] == "DuplicateKeyError" and "1 of 2 rows failed" in raised["says"]
    assert [(row["row"], row["k"], row["code"]) for row in raised["failed"]] == [(0, 1, "already-present")]
    collected = other.commit(tmp_path / "s", stage(tmp_path / "s", [(1, 10), (3, 30)], "insert", "collect"))
    assert collected["inserted"] == 1
    assert [(row["row"], row["operation"], row["k"], row["code"]) for row in collected["failed"]] == [
        (0, "insert", 1, "already-present")
    ]
    missing = other.commit(tmp_path / "s", stage(tmp_path / "s", [(1, 10)], table="nothing"))
    assert missing["raised"] == "TableNotFoundError" and "its tables are: t" in missing["says"]
    if not with_writer:
        db = open_database(tmp_path / "s")
    assert rows(db["t"]) == [(1, 1), (3, 30)]
    db.close()


def test_without_a_writer_the_job_takes_the_lock(tmp_path: Path, other: Other) -> None:
    """If no program has the store open, a job takes the lock for its commit and releases it."""
    with open_database(tmp_path / "s") as db:
        key_value_table(db)
    for k in (1, 2):
        answer = other.commit(tmp_path / "s", stage(tmp_path / "s", [(k, k)], "insert"))
        assert answer == {
            "timestamp": answer["timestamp"], "inserted": 1, "updated": 0, "deleted": 0, "ignored": 0, "failed": None,
        }  # fmt: skip
    with open_database(tmp_path / "s") as db:
        assert rows(db["t"]) == [(1, 1), (2, 2)]


# --- in one process -------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", OPERATION_NAMES)
def test_each_operation(tmp_path: Path, operation: str) -> None:
    """All values of Spark's option `operation`."""
    with open_database(tmp_path / "s") as db:
        table = key_value_table(db)
        table.insert({"k": [1, 2], "v": [1, 2]})
        job = stage(tmp_path / "s", [(2, 20), (3, 30)], operation)
        expected = {
            "insert": None, "insert-ignore": [(1, 1), (2, 2), (3, 30)], "upsert": [(1, 1), (2, 20), (3, 30)],
            "update": None, "update-ignore": [(1, 1), (2, 20)], "delete": None, "delete-ignore": [(1, 1)],
        }[operation]  # fmt: skip
        if expected is None:
            with pytest.raises(DuplicateKeyError if operation == "insert" else KeyNotFoundError):
                commit_staged(str(tmp_path / "s"), job)
            assert rows(table) == [(1, 1), (2, 2)]
        else:
            answer = commit_staged(str(tmp_path / "s"), job)
            assert answer["ignored"] == (1 if operation.endswith("-ignore") else 0)
            assert rows(table) == expected


def test_a_job_without_rows(tmp_path: Path) -> None:
    """A job without rows succeeds, with empty files and without files."""
    with open_database(tmp_path / "s") as db:
        key_value_table(db)
        now = db.now()
        for files in (1, 0):
            answer = commit_staged(str(tmp_path / "s"), stage(tmp_path / "s", [], files=files))
            assert answer["inserted"] == 0 and answer["errors"] is None
        assert now <= answer["timestamp"] <= db.now()


def test_a_mistyped_path_does_not_become_a_store(tmp_path: Path) -> None:
    """A commit to a folder without a store raises, and creates nothing."""
    with open_database(tmp_path / "s") as db:
        key_value_table(db)
        job = stage(tmp_path / "s", [(1, 1)])
        with pytest.raises(StorageError, match="no Nyala store"):
            commit_staged(str(tmp_path / "typo"), job)
        with pytest.raises(StorageError, match="no Nyala store"):
            new_staging(str(tmp_path / "typo"))
    assert not (tmp_path / "typo").exists()


def test_a_writer_that_neither_answers_nor_ends(tmp_path: Path) -> None:
    """After a minute, a commit raises an error that names the holder of the lock."""
    clock = ManualClock(SYSTEM.clock.now_us())
    env = Env(system_files(), clock, SystemRandomness())
    with open_database(tmp_path / "s") as db:
        key_value_table(db)
        assert db._open.server is not None
        db._open.server.stop()
        job = stage(tmp_path / "s", [(1, 1)])
        with pytest.raises(LockedError, match="pid"):
            commit_staged(str(tmp_path / "s"), job, env)
        assert 60 <= clock.monotonic_s() < 70
    assert commit_staged(str(tmp_path / "s"), job, env)["inserted"] == 1


def test_invalid_requests_are_refused(tmp_path: Path) -> None:
    """An unknown request, operation, key or file is an error, and nothing is written."""
    with open_database(tmp_path / "s") as db:
        table = key_value_table(db)
        with pytest.raises(InvalidArgumentError, match="'dance'"):
            send(SYSTEM, str(tmp_path / "s"), {"do": "dance"})
        job = stage(tmp_path / "s", [(1, 1)])
        with pytest.raises(InvalidArgumentError, match="unknown operation 'merge': use one of insert"):
            commit_staged(str(tmp_path / "s"), {**job, "operation": "merge"})
        with pytest.raises(InvalidArgumentError, match="not the key of a staged job"):
            commit_staged(str(tmp_path / "s"), {**job, "key": "../data"})
        with pytest.raises(InvalidArgumentError, match="must not contain folders"):
            commit_staged(str(tmp_path / "s"), {**job, "files": ["../../nyala.json"]})
        with pytest.raises(TableNotFoundError):
            commit_staged(str(tmp_path / "s"), {**job, "table": "u"})
        assert rows(table) == []


def test_a_large_job_goes_into_files(tmp_path: Path) -> None:
    """A batch above the log's limit is committed once, too: its key is in the catalogue."""
    with open_database(tmp_path / "s", direct_commit_bytes=1000) as db:
        table = key_value_table(db)
        job = stage(tmp_path / "s", [(k, k) for k in range(500)], "insert")
        first = commit_staged(str(tmp_path / "s"), job)
        assert first["inserted"] == 500 and table.stats().rowsets == 1
        assert commit_staged(str(tmp_path / "s"), job)["timestamp"] == first["timestamp"]
        assert table.count() == 500


# --- staged files ---------------------------------------------------------------------------------------


def test_staged_files_are_read_in_the_order_of_the_job(tmp_path: Path) -> None:
    """Of two rows with the same key the later row counts, so the order of the files matters."""
    with open_database(tmp_path / "s") as db:
        table = key_value_table(db)
        key, folder = new_staging(str(tmp_path / "s"))
        for name, value in (("a", 1), ("b", 2)):
            batch = pa.record_batch({"k": [7], "v": [value]}, schema=SCHEMA)
            write_staged(SYSTEM, f"{folder}/{name}", SCHEMA, iter([batch, batch.slice(1)]))
        job = {"key": key, "table": "t", "operation": "upsert", "files": ["b", "a"]}
        found = read_staged(SYSTEM, folder, job).data
        assert found.column("v").to_pylist() == [2, 1] and found.schema == SCHEMA
        assert (commit_staged(str(tmp_path / "s"), job)["inserted"], rows(table)) == (1, [(7, 1)])


def test_damaged_staged_files_are_reported(tmp_path: Path) -> None:
    """A flipped or missing byte raises CorruptionError with the file's name, and no row is written."""
    with open_database(tmp_path / "s") as db:
        table = key_value_table(db)
        job = stage(tmp_path / "s", [(1, 1), (2, 2)])
        file = tmp_path / "s" / "staging" / job["key"] / "0.arrow"
        good = file.read_bytes()
        damaged = [good[:length] for length in (0, 3, 4, len(good) // 2, len(good) - 1)]
        damaged += [
            good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :] for at in range(0, len(good), 37)
        ]  # fmt: skip
        for bytes_ in damaged:
            file.write_bytes(bytes_)
            with pytest.raises(CorruptionError, match="run the job again") as error:
                commit_staged(str(tmp_path / "s"), job)
            assert error.value.path == str(file)
        file.unlink()
        with pytest.raises(CorruptionError, match="gone"):
            commit_staged(str(tmp_path / "s"), job)
        assert rows(table) == []
        file.write_bytes(good)
        assert commit_staged(str(tmp_path / "s"), job)["inserted"] == 2


def test_discarding_twice_and_after_the_commit(tmp_path: Path) -> None:
    """`discard_staging` may be called again, and after the commit."""
    with open_database(tmp_path / "s") as db:
        key_value_table(db)
        job = stage(tmp_path / "s", [(1, 1)])
        commit_staged(str(tmp_path / "s"), job)
        discard_staging(str(tmp_path / "s"), job["key"])
        discard_staging(str(tmp_path / "s"), job["key"])
        assert list((tmp_path / "s" / "staging").iterdir()) == []


# --- leases ---------------------------------------------------------------------------------------------


def test_a_remote_lease_keeps_files_until_it_expires(tmp_path: Path) -> None:
    """A lease keeps replaced files for Spark's tasks. Without a renewal they are deleted at its expiry."""
    clock = ManualClock()
    env = Env(system_files(), clock, SystemRandomness())
    with open_database(tmp_path / "s", clock=clock) as db:
        table = key_value_table(db)
        table.insert({"k": [1], "v": [1]})
        db.flush()
        db._writer().collect_garbage()
        lease = remote_lease(str(tmp_path / "s"), 60, env)
        db.drop_table("t", purge=True)
        clock.advance(50)
        renew_lease(str(tmp_path / "s"), lease.name, 60, env)
        clock.advance(50)
        db._writer().collect_garbage()
        assert list((tmp_path / "s" / "data").rglob("*.base"))
        clock.advance(11)
        with pytest.raises(HistoryExpiredError, match="load again"):
            renew_lease(str(tmp_path / "s"), lease.name, 60, env)
        db._writer().collect_garbage()
        assert not list((tmp_path / "s" / "data").rglob("*.base"))
