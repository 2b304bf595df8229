"""A writer killed for real (SIGKILL) at its n-th sync, write or change of a name, or at any moment under 8 threads:
what it acknowledged is there, what it did not is there wholly or not.

A killed process leaves what it handed to the system, so this says nothing about power cuts; it shows the real process,
its real files, SQLite's included, and a real lock that the next writer takes over.
"""

from __future__ import annotations

import itertools
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.child import KINDS, THREADS
from tests.crash.workload import DIRECT_COMMIT_BYTES, STEPS, State, check_everything, state_of
from tests.figures import counted
from tests.support import folder_in_memory, open_database

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory: what a killed process leaves there is the same, and a sync takes no time."""
    with folder_in_memory() as folder:
        yield folder


def run_child(folder: Path, kill_at: int, when: str, kinds: str) -> tuple[int, list[int]]:
    """(exit code, counts printed: at the start and after each acknowledged step)."""
    child = subprocess.run(
        [sys.executable, "-m", "tests.crash.child", str(folder), str(kill_at), when, kinds],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return child.returncode, [int(line.split()[1]) for line in child.stdout.splitlines()]


@pytest.fixture(scope="module")
def expected() -> list[State]:
    """The state after each step, from a run that nobody disturbs."""
    with (
        folder_in_memory() as folder,
        open_database(folder / "s", direct_commit_bytes=DIRECT_COMMIT_BYTES) as db,
    ):
        states: list[State] = [{}]
        for step in STEPS:
            step(db)
            states.append(state_of(db))
        return states


def kill_and_compare(folder: Path, kill_at: int, when: str, kinds: str, expected: list[State]) -> bool:
    """False when the run ended before its n-th operation."""
    code, counts = run_child(folder, kill_at, when, kinds)
    if code == 0:
        return False
    assert code == -signal.SIGKILL
    done = max(len(counts) - 1, 0)
    db = open_database(folder, direct_commit_bytes=DIRECT_COMMIT_BYTES)
    found = state_of(db)
    assert found in expected[done : done + 2], (
        f"killed {when} {kinds} {kill_at}, {done} steps were acknowledged"
    )
    check_everything(db)
    db.close()
    return True


@pytest.mark.parametrize(
    ("kill_at", "when", "kinds"),
    [
        (3, "before", "sync"), (27, "before", "sync"), (41, "after", "sync"),
        (9, "before", "write"), (55, "after", "write"), (1, "after", "name"), (6, "before", "name"),
    ],
)  # fmt: skip
def test_killed_at_a_sync(tmp_path: Path, expected: list[State], kill_at: int, when: str, kinds: str) -> None:
    """Some of the run's syncs, writes and names; `make test-long` takes them all."""
    assert kill_and_compare(tmp_path / "s", kill_at, when, kinds, expected)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kinds", sorted(KINDS))
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_every_operation(tmp_path: Path, expected: list[State], when: str, kinds: str) -> None:
    """Every sync, write and change of a name of the run, one process each."""
    with counted(f"killed {when} its n-th {kinds}", "processes") as tried:
        while kill_and_compare(tmp_path / str(len(tried)), len(tried) + 1, when, kinds, expected):
            tried.append(1)
    assert len(tried) > (5 if kinds == "name" else 60)


def kill_while_threads_write(folder: Path, chance: random.Random, rounds: int) -> int:
    """Kill a writer of 8 threads again and again in one store. Returns how many rows were acknowledged."""
    acknowledged = 0
    for number in range(rounds):
        path = folder / str(number)
        with open_database(path) as db:
            db.create_table("links", {"thread": "int8", "n": "int64", "before": "int64"}, ["thread", "n"])
            db.create_table("counters", {"thread": "int8", "n": "int64"}, "thread")
        said: dict[int, int] = {}
        with subprocess.Popen(
            [sys.executable, "-m", "tests.crash.child", str(path), "threads", str(chance.randrange(1 << 30))],
            cwd=ROOT, stdout=subprocess.PIPE,
        ) as child:  # fmt: skip
            assert child.stdout is not None
            for line in itertools.islice(child.stdout, 20 + chance.randrange(300)):
                said.update([map(int, line.split())])
            child.kill()
            rest = child.stdout.read()  # acknowledged before it died
            said.update(map(int, line.split()) for line in rest[: rest.rfind(b"\n") + 1].splitlines())
        assert child.returncode == -signal.SIGKILL
        with open_database(path) as db:
            counters = {row["thread"]: row["n"] for row in db["counters"].scan().to_arrow().to_pylist()}
            links = db["links"].scan(order_by_key=True).to_arrow().to_pydict()
            for thread, last in said.items():
                assert counters[thread] >= last, (
                    f"thread {thread}: {last} was acknowledged, {counters[thread]} is there"
                )
            expected = [(t, n, n - 1) for t in sorted(counters) for n in range(counters[t] + 1)]
            assert list(zip(links["thread"], links["n"], links["before"], strict=True)) == expected, (
                "half a batch"
            )
            check_everything(db)
        acknowledged += sum(last + 1 for last in said.values())
    return acknowledged


def test_killed_at_any_moment_under_eight_threads(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Flushes, compactions and direct commits run meanwhile."""
    chance = random.Random(str(request.config.getoption("hypothesis_seed")))
    assert kill_while_threads_write(tmp_path, chance, 2) >= THREADS


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(4))
def test_killed_often_under_eight_threads(tmp_path: Path, request: pytest.FixtureRequest, part: int) -> None:
    chance = random.Random(f"{request.config.getoption('hypothesis_seed')} {part}")
    with counted("killed at any moment under 8 threads", "processes") as tried:
        for number in range(50):
            kill_while_threads_write(tmp_path / str(number), chance, 1)
            tried.append(1)
