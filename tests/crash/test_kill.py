"""A writer killed for real (SIGKILL) at its n-th sync: what it acknowledged is there, what it did not is
there wholly or not.

A killed process leaves what it handed to the system, so this says nothing about power cuts; it shows the
real process, its real files, SQLite's included, and a real lock that the next writer takes over.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.workload import DIRECT_COMMIT_BYTES, STEPS, State, check_everything, state_of
from tests.support import open_database

ROOT = Path(__file__).parent.parent.parent


def run_child(folder: Path, kill_at: int, when: str = "before") -> tuple[int, list[int]]:
    """(exit code, sync counts printed: at the start and after each acknowledged step)."""
    child = subprocess.run(
        [sys.executable, "-m", "tests.crash.child", str(folder), str(kill_at), when],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return child.returncode, [int(line.split()[1]) for line in child.stdout.splitlines()]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[State]:
    """The state after each step, from a run that nobody disturbs."""
    db = open_database(tmp_path_factory.mktemp("whole") / "s", direct_commit_bytes=DIRECT_COMMIT_BYTES)
    states: list[State] = [{}]
    for step in STEPS:
        step(db)
        states.append(state_of(db))
    db.close()
    return states


def kill_and_compare(folder: Path, kill_at: int, when: str, expected: list[State]) -> bool:
    """False when the run ended before its n-th sync."""
    code, counts = run_child(folder, kill_at, when)
    if code == 0:
        return False
    assert code == -signal.SIGKILL
    done = max(len(counts) - 1, 0)
    db = open_database(folder, direct_commit_bytes=DIRECT_COMMIT_BYTES)
    found = state_of(db)
    assert found in expected[done : done + 2], f"killed {when} sync {kill_at}, {done} steps were acknowledged"
    check_everything(db)
    db.close()
    return True


@pytest.mark.parametrize(
    ("kill_at", "when"), [(3, "before"), (14, "after"), (27, "before"), (41, "after"), (58, "before")]
)
def test_killed_at_a_sync(tmp_path: Path, expected: list[State], kill_at: int, when: str) -> None:
    """Some of the run's syncs; `make test-long` takes them all."""
    assert kill_and_compare(tmp_path / "s", kill_at, when, expected)


@pytest.mark.long
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_every_sync(tmp_path: Path, expected: list[State], when: str) -> None:
    """Every sync of the run, one process each."""
    kill_at = 1
    while kill_and_compare(tmp_path / str(kill_at), kill_at, when, expected):
        kill_at += 1
    assert kill_at > 60
