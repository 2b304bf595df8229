"""The disk cannot read a part of a file (EIO), at any read of a scan, a look-up, a commit, a compaction or an open.

The call raises an error that names the file, no row is lost, and the next call works.
"""

from __future__ import annotations

import errno

import pytest

from nyala.api.database import Database
from nyala.env import system_files
from nyala.errors import StorageError
from nyala.testing.faulty_files import UnreadableFiles
from tests.figures import counted
from tests.stress.steps import (
    DIRECT_COMMIT_BYTES,
    Outcomes,
    Step,
    commit_directly,
    compact_and_collect,
    copy_of,
    merge,
    outcomes_of,
    whole,
)
from tests.support import open_database, rows


def scan(db: Database) -> None:
    rows(db["t"])


def look_up(db: Database) -> None:
    db["t"].get_many({"k": [1, 2, 15, 29]})


def check(db: Database) -> None:
    report = db.check()
    if not report.ok:
        raise StorageError(report.problems[0].message, path=report.problems[0].path, errno=errno.EIO)


READS = [scan, look_up, check]
STEPS = [*READS, commit_directly, compact_and_collect, merge]


def reads_of(origin: str, step: Step) -> int:
    files = UnreadableFiles(system_files())
    with open_database(copy_of(origin), files=files, direct_commit_bytes=DIRECT_COMMIT_BYTES) as db:
        before = len(files.operations)
        step(db)
        return len(files.operations) - before


def one_fault(origin: str, step: Step, outcomes: Outcomes, fail_at: int) -> None:
    """Let the read number `fail_at` of the step fail."""
    files = UnreadableFiles(system_files())
    path = copy_of(origin)
    with open_database(path, files=files, direct_commit_bytes=DIRECT_COMMIT_BYTES) as db:
        moment = db.now()
        files.fail_at = len(files.operations) + fail_at
        # No other error, and no missing rows. A CorruptionError would make the user restore a backup.
        with pytest.raises(StorageError) as error:
            step(db)
        assert files.failed is not None
        assert error.value.path == files.failed.path and error.value.outcome is None, error.value
        assert whole(db) == outcomes.before
        assert rows(db["t"], at=moment) == outcomes.before["t"][1]
        step(db)  # the failure is not remembered: the same call now works
        assert whole(db) == outcomes.after
        db["t2"].insert({"k": [100]})
        db.flush()
    with open_database(path) as db:
        names, found = outcomes.after["t2"]
        assert whole(db) == {**outcomes.after, "t2": (names, [*found, (100,)])}
        assert db.check().ok


def outcomes(origin: str, step: Step) -> Outcomes:
    if step not in READS:
        return outcomes_of(origin, step)
    with open_database(copy_of(origin)) as db:
        return Outcomes(whole(db), whole(db))


@pytest.mark.parametrize("step", STEPS)
def test_a_read_that_fails_loses_nothing(origin: str, step: Step) -> None:
    """Tests some reads of each step, with the first and the last one."""
    many, expected = reads_of(origin, step), outcomes(origin, step)
    assert many > 20
    for number in (1, many // 3, 2 * many // 3, many):
        one_fault(origin, step, expected, number)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("step", STEPS)
def test_any_read_that_fails_loses_nothing(origin: str, step: Step) -> None:
    expected = outcomes(origin, step)
    with counted("reads that failed (EIO)", "faults") as tried:
        for number in range(1, reads_of(origin, step) + 1):
            one_fault(origin, step, expected, number)
            tried.append(1)


def test_a_failed_read_during_an_open_changes_nothing(origin: str) -> None:
    """For every read of an open. The next open has all rows."""
    with open_database(copy_of(origin)) as db:
        before = whole(db)
    fail_at = 1
    while True:
        path = copy_of(origin)
        files = UnreadableFiles(system_files(), fail_at)
        try:
            with open_database(path, files=files) as db:
                files.fail_at = None
                assert whole(db) == before
        except StorageError as error:
            assert files.failed is not None and error.path == files.failed.path, error
        if files.failed is None:
            break
        with open_database(path) as db:
            assert whole(db) == before
        fail_at += 1
    assert fail_at > 5
