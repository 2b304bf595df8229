"""A writer is killed before its n-th fdatasync, fsync, write, rename, truncate or unlink.

`test_kill` kills at calls of `nyala.env`. Here the process is stopped at the system call itself, by
strace or by a filter of the kernel (`system_calls`).
"""

from __future__ import annotations

import functools
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash import system_calls
from tests.crash.forks import ROOT, Ended, Forks
from tests.crash.workload import DIRECT_COMMIT_BYTES, State, check_everything, state_of, states
from tests.figures import counted
from tests.support import folder_in_memory, open_database

RUN = ("0", "before", "sync", "workload")
TRACE = ("strace", "-f", "-qq", "-o", "/dev/null")


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    reason = system_calls.why_not()
    if reason is not None:
        pytest.skip(reason)
    with Forks() as forks:
        yield forks


@pytest.fixture(scope="module")
def expected() -> list[State]:
    return states()


def survived(folder: Path, ended: Ended, where: str, expected: list[State]) -> bool:
    """Check what a killed process has left. Return False if it ended before."""
    if ended.code == 0:
        return False
    assert ended.code in (-signal.SIGKILL, 128 + signal.SIGKILL), ended
    done = max(len(ended.lines) - 1, 0)  # the first line is printed after the open
    with open_database(folder, direct_commit_bytes=DIRECT_COMMIT_BYTES) as db:
        assert state_of(db) in expected[done : done + 2], f"killed at {where} after {done} steps"
        check_everything(db)
    shutil.rmtree(folder)
    return True


def killed_before(forks: Forks, folder: Path, kind: str, number: int, expected: list[State]) -> bool:
    ended = forks.run(folder, *RUN, kind=kind, number=number)
    return survived(folder, ended, f"{kind} {number}", expected)


@pytest.mark.parametrize(
    ("kind", "number"),
    [("fdatasync", 30), ("fsync", 5), ("write", 150), ("unlink", 12), ("rename", 1), ("truncate", 2)],
)
def test_killed_before_a_system_call(kind: str, number: int, forks: Forks, expected: list[State]) -> None:
    """At some calls; `make test-long` takes all."""
    with folder_in_memory() as folder:
        assert killed_before(forks, folder / "s", kind, number, expected)


# Most calls are writes, so they are divided into several tests for pytest's workers.
PARTS = {"write": 4, "fdatasync": 1}


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("kind", "part"), [(kind, part) for kind in system_calls.KINDS for part in range(PARTS.get(kind, 1))]
)
def test_killed_before_every_system_call(kind: str, part: int, forks: Forks, expected: list[State]) -> None:
    """One process for each call."""
    with counted(f"killed before its n-th {kind} of the system", "processes") as tried:
        with folder_in_memory() as folder:
            number = 1 + part
            while killed_before(forks, folder / "s", kind, number, expected):
                tried.append(1)
                number += PARTS.get(kind, 1)
    assert tried


def test_a_run_that_is_only_stopped_has_the_same_result(forks: Forks) -> None:
    with folder_in_memory() as folder:
        code, lines = forks.run(folder / "s", *RUN, kind="fdatasync", number=1_000_000)
        assert code == 0 and lines[-1].startswith("done")


@functools.cache
def can_trace() -> bool:
    tried = [*TRACE, "-e", "trace=fdatasync", "-e", "inject=fdatasync:signal=KILL:when=1", "true"]
    return (
        shutil.which("strace") is not None
        and not subprocess.run(tried, capture_output=True, check=False).returncode
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("call", "number"),
    [("fdatasync", 30), *(("fsync", number) for number in range(2, 42, 4))],
)
def test_killed_by_strace(call: str, number: int, expected: list[State]) -> None:
    """strace kills a process that was not forked, so this test does not depend on `forks`."""
    if not can_trace():
        pytest.skip("strace is not there, or may not trace")
    with counted("killed by strace at its n-th fdatasync or fsync", "processes") as tried:
        with folder_in_memory() as folder:
            child = subprocess.run(
                [*TRACE, "-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={number}",
                 sys.executable, "-m", "tests.crash.child", str(folder / "s"), *RUN],
                cwd=ROOT, capture_output=True, text=True, check=False,
            )  # fmt: skip
            ended = Ended(child.returncode, child.stdout.splitlines())
            assert survived(folder / "s", ended, f"{call} {number}", expected), child.stderr
        tried.append(1)
