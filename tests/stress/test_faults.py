"""A disk that fails or fills up at any operation of a write, a flush, a compaction or a direct commit: what was
acknowledged stays, what failed did not happen, and when the disk works again so does the store."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator

import pytest

import nyala
from nyala.database import Database
from nyala.env import system_files
from nyala.errors import Error, StorageError
from nyala.tablet.care import compact_deltas
from nyala.testing.faulty_files import FaultKind, FaultyFiles
from tests.figures import counted
from tests.support import open_database, rows

SHARED_MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
DIRECT_COMMIT_BYTES = 2_000


def flush(db: Database) -> None:
    db.flush()


def write(db: Database) -> None:
    db["t"].upsert({"k": [5, 50], "v": [9, 9]})


def commit_directly(db: Database) -> None:
    db["t"].upsert({"k": range(5, 40), "v": [7] * 35, "s": ["s" * 100] * 35})


def compact_and_collect(db: Database) -> None:
    compact_deltas(db._store)  # type: ignore[arg-type]
    db._store.collect_garbage()  # type: ignore[union-attr]


def make_and_drop(db: Database) -> None:
    db.create_table("u", {"k": "int64"}, "k")
    db.drop_table("t2")


def merge(db: Database) -> None:
    db["t"].compact()


def alter(db: Database) -> None:
    with db["t"].alter() as alteration:
        alteration.add_column("x", "int64", default=3)
        alteration.drop_column("x")


@pytest.fixture(scope="module")
def folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="nyala-faults-", dir=SHARED_MEMORY) as path:
        yield path


@pytest.fixture(scope="module")
def origin(folder: str) -> str:
    """A store with rows on disk, REDO files enough for a compaction, and rows and changes in its log."""
    path = os.path.join(folder, "origin")
    with open_database(path) as db:
        table = db.create_table(
            "t", {"k": "int64", "v": "int64", "s": "string"}, "k", nyala.hash_partition("k", buckets=2)
        )
        db.create_table("t2", {"k": "int64"}, "k").insert({"k": [1]})
        table.insert({"k": range(20), "v": range(20)})
        db.flush()
        for value in range(4):
            table.upsert({"k": [1, 2, 10 + value], "v": [value] * 3})
            db.flush()
        table.upsert({"k": range(10, 30), "v": [1] * 20})
        table.delete({"k": [3, 4]})
    return path


@contextlib.contextmanager
def opened(path: str, files: FaultyFiles) -> Iterator[Database]:
    db = open_database(path, files=files, direct_commit_bytes=DIRECT_COMMIT_BYTES)
    yield db
    with contextlib.suppress(StorageError):
        db.close()


@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param(("eio", "short"), id="each"),
        pytest.param(("eio",), marks=pytest.mark.long, id="eio"),
        pytest.param(("short",), marks=pytest.mark.long, id="short"),
        pytest.param(("enospc",), marks=pytest.mark.long, id="enospc"),
    ],
)
@pytest.mark.parametrize("step", [write, flush, commit_directly, compact_and_collect, make_and_drop, alter])
def test_a_fault_at_any_operation_loses_nothing(
    origin: str, step: Callable[[Database], None], kinds: tuple[FaultKind, ...]
) -> None:
    path, fail_at, reached = origin + "-copy", 0, True
    while reached:
        fail_at += 1
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(origin, path)
        reached = one_fault(path, step, kinds[fail_at % len(kinds)], fail_at)
    assert fail_at > 1


@pytest.mark.long
@pytest.mark.parametrize("kind", ["eio", "short", "enospc"])
@pytest.mark.parametrize("step", [merge])
def test_a_fault_at_any_operation_of_a_merge_loses_nothing(
    origin: str, step: Callable[[Database], None], kind: FaultKind
) -> None:
    path, reached = origin + "-copy", True
    with counted("operations of a compaction that failed (EIO, ENOSPC, short)", "faults") as tried:
        while reached:
            shutil.rmtree(path, ignore_errors=True)
            shutil.copytree(origin, path)
            reached = one_fault(path, step, kind, len(tried) + 1)
            tried.append(1)


@pytest.mark.parametrize("kind", ["eio", "enospc"])
def test_a_fault_at_any_operation_of_an_open_leaves_the_store_as_it_was(origin: str, kind: FaultKind) -> None:
    """A disk that fails during the recovery is told, and the next open finds what there was."""
    path, fail_at, reached = origin + "-copy", 0, True
    with open_database(origin) as db:
        before, moment = rows(db["t"]), db.now()
    while reached:
        fail_at += 1
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(origin, path)
        files = FaultyFiles(system_files(), fail_at, kind)
        try:
            with open_database(path, files=files) as db:
                assert rows(db["t"], at=moment) == before
        except StorageError as error:
            assert error.path is not None or "cannot" in str(error)
        reached = bool(files.failed)
        with open_database(path) as db:
            assert rows(db["t"]) == before and db.check().ok
    assert fail_at > 2


def test_on_a_full_disk_reads_go_on_and_freed_space_heals(origin: str) -> None:
    """The error says what to do; nothing needs to be opened anew when the disk was full before anything was logged."""
    path = origin + "-copy"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(origin, path)
    files = FaultyFiles(system_files(), None, "enospc")
    with opened(path, files) as db:
        table = db["t"]
        before = rows(table)
        files.fill()
        for work in (
            lambda: table.upsert({"k": [1], "v": [0]}),
            lambda: table.upsert({"k": range(5, 40), "v": [7] * 35, "s": ["s" * 100] * 35}),
            db.flush,
            table.compact,
        ):
            with pytest.raises(StorageError, match=r"(?i)space|room") as told:
                work()
            assert told.value.outcome is None, "nothing is unknown: nothing was begun"
            assert rows(table) == before
            assert db.snapshot()["t"].count() == len(before)
        assert db.check().ok
        files.heal()
        table.upsert({"k": [1], "v": [0]})
        db.flush()
        table.compact()
        after = rows(table)
        assert after != before and db.check().ok
    with open_database(path) as db:
        assert rows(db["t"]) == after


def one_fault(path: str, step: Callable[[Database], None], kind: FaultKind, fail_at: int) -> bool:
    """Whether the step had a `fail_at`-th operation, which failed then."""
    files = FaultyFiles(system_files(), kind=kind)
    with opened(path, files) as db:
        table = db["t"]
        before, moment = rows(table), db.now()
        files.fail_at = len(files.operations) + fail_at
        failure: Error | None = None
        try:
            step(db)
        except Error as error:  # and nothing else than an error of ours
            failure = error
        reached, files.fail_at = bool(files.failed), None
        files.heal()
        unknown = getattr(failure, "outcome", None) == "unknown"
        assert rows(table, at=moment) == before, "a moment moved"
        present = rows(table)
        assert failure is None or present == before, "what failed has happened"
        alive = True
        try:
            table.upsert({"k": [100], "v": [fail_at]})
            db.flush()
        except StorageError as error:
            alive = False
            assert "connect() again" in str(error) or "open it again" in str(error)
        assert rows(table, at=moment) == before
    with open_database(path) as db:
        assert rows(db["t"], at=moment) == before, "a moment moved with the next open"
        found = [row for row in rows(db["t"]) if row[0] != 100]
        assert found == present or unknown, "not what it was said to be"
        assert not alive or (100, fail_at, None) in rows(db["t"]), "an acknowledged row is gone"
        db.flush()
        assert rows(db["t"], at=moment) == before
    return reached


def test_a_position_that_cannot_be_written_takes_no_file_away(folder: str, origin: str) -> None:
    """The record is for reader processes; the flush that it follows is durable already."""
    path = os.path.join(folder, "position")
    shutil.copytree(origin, path)
    files = FaultyFiles(system_files(), only=lambda operation: operation.kind == "write_at")
    with opened(path, files) as db:
        before = rows(db["t"])
        files.fail_at = len(files.operations) + 1
        db.flush()
        assert files.failed
        assert rows(db["t"]) == before
    with open_database(path) as db:
        assert rows(db["t"]) == before
