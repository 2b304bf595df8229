"""The disk fails or is full at any operation of a write, a flush, a compaction or a direct commit.

Acknowledged rows stay, a failed call has no effect, and the store works again when the disk works again.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator

import pytest

from nyala.api.database import Database
from nyala.env import system_files
from nyala.errors import Error, StorageError
from nyala.testing.faulty_files import FaultKind, FaultyFiles
from tests.figures import counted
from tests.sampled import every_nth
from tests.stress.steps import (
    DIRECT_COMMIT_BYTES,
    Outcomes,
    Step,
    alter,
    commit_directly,
    compact_and_collect,
    copy_of,
    create,
    drop,
    flush,
    merge,
    outcomes_of,
    whole,
    write,
    write_to_two_tables,
)
from tests.support import open_database, rows


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
@pytest.mark.parametrize(
    "step", [write, write_to_two_tables, flush, commit_directly, compact_and_collect, create, drop, alter]
)
def test_a_fault_at_any_operation_loses_nothing(
    origin: str, step: Step, kinds: tuple[FaultKind, ...], request: pytest.FixtureRequest
) -> None:
    """For steps with more than 20 operations, `make test` tests every tenth one."""
    outcomes, operations = outcomes_of(origin, step), operations_of(origin, step)
    places = range(1, operations + 1)
    failed = 0
    for fail_at in every_nth(10, places, request) if operations > 20 else places:
        reached, raised = one_fault(origin, step, outcomes, kinds[fail_at % len(kinds)], fail_at)
        assert reached
        failed += raised
    assert not one_fault(origin, step, outcomes, kinds[0], operations + 1)[0], "the step has more operations"
    assert failed > 0, "no fault made the step fail"


@pytest.mark.long
@pytest.mark.parametrize("kind", ["eio", "short", "enospc"])
def test_a_fault_at_any_operation_of_a_merge_loses_nothing(origin: str, kind: FaultKind) -> None:
    outcomes, reached = outcomes_of(origin, merge), True
    with counted("operations of a compaction that failed (EIO, ENOSPC, short)", "faults") as tried:
        while reached:
            reached, _ = one_fault(origin, merge, outcomes, kind, len(tried) + 1)
            tried.append(1)


@pytest.mark.parametrize("kind", ["eio", "enospc"])
def test_a_fault_at_any_operation_of_an_open_changes_nothing(origin: str, kind: FaultKind) -> None:
    """The open raises, and the next open has all rows."""
    fail_at, reached = 0, True
    with open_database(copy_of(origin)) as db:
        before, moment = rows(db["t"]), db.now()
    while reached:
        fail_at += 1
        path = copy_of(origin)
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


def test_on_a_full_disk_reads_work_and_freed_space_is_enough(origin: str) -> None:
    """The error says what to do. If nothing was logged, the store need not be opened again."""
    path = copy_of(origin)
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
            with pytest.raises(StorageError, match=r"(?i)space|room") as raised:
                work()
            assert raised.value.outcome is None, "the outcome is known: nothing was begun"
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


def operations_of(origin: str, step: Step) -> int:
    """Return the number of file operations of the step."""
    files = FaultyFiles(system_files())
    with opened(copy_of(origin), files) as db:
        before = len(files.operations)
        step(db)
        return len(files.operations) - before


def one_fault(
    origin: str, step: Step, outcomes: Outcomes, kind: FaultKind, fail_at: int
) -> tuple[bool, bool]:
    """Let the operation number `fail_at` of the step fail.

    Returns (whether the step has that many, whether it raised).
    """
    path = copy_of(origin)
    files = FaultyFiles(system_files(), kind=kind)
    with opened(path, files) as db:
        before, moment = rows(db["t"]), db.now()
        files.fail_at = len(files.operations) + fail_at
        failure: Error | None = None
        try:
            step(db)
        except Error as error:  # and no other class of error
            failure = error
        reached, files.fail_at = bool(files.failed), None
        files.heal()
        unknown = getattr(failure, "outcome", None) == "unknown"
        allowed = [outcomes.after] if failure is None else [outcomes.before]
        if unknown:
            allowed = [outcomes.before, outcomes.after]
        at_moment = rows(db["t"], at=moment)
        assert at_moment == before or (step is alter and failure is None), (
            "the rows of an earlier moment changed"
        )
        present = whole(db)
        assert present in allowed, "the rows are neither those before nor those after the step"
        alive = True
        try:
            db["t2" if step is not drop else "t"].upsert({"k": [100]})
            db.flush()
        except StorageError as error:
            alive = False
            assert "connect() again" in str(error) or "open it again" in str(error)
        assert alive != unknown, "the store refuses writes although the outcome is known"
        assert rows(db["t"], at=moment) == at_moment
    with open_database(path) as db:
        assert rows(db["t"], at=moment) == at_moment, "the rows of an earlier moment changed at the next open"
        found = whole(db)
        written = [row for _, table in found.values() for row in table if row[0] == 100]
        assert written or not alive, "an acknowledged row is missing"
        for _, table in found.values():
            table[:] = [row for row in table if row[0] != 100]
        assert found in allowed, "the rows differ from the reported outcome"
        db.flush()
        assert rows(db["t"], at=moment) == at_moment
        assert fail_at % 4 or db.check().ok
    return reached, failure is not None


def test_a_position_record_that_cannot_be_written_removes_no_file(origin: str) -> None:
    """The record is for readers. The flush before it is durable already."""
    path = origin + "-position"
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
