"""A writer is killed (SIGKILL) at its n-th sync, write or rename, or at any moment with 8 threads.

Acknowledged batches exist afterwards, and any other batch exists completely or not at all. A killed
process leaves all bytes that the operating system has, so these tests say nothing about power cuts.
They use real processes, real files and a real lock.
"""

from __future__ import annotations

import itertools
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nyala.env import system_files
from nyala.testing.faulty_files import KillingFiles
from tests.crash import alterations
from tests.crash.alterations import whole_state
from tests.crash.child import KINDS, THREADS
from tests.crash.forks import ROOT, Forks
from tests.crash.workload import DIRECT_COMMIT_BYTES, State, check_everything, state_of, states
from tests.figures import counted
from tests.support import folder_in_memory, open_database


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder in memory, where syncs take no time. A killed process leaves the same files as on a disk."""
    with folder_in_memory() as folder:
        yield folder


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks() as forks:
        yield forks


@pytest.fixture(scope="module")
def expected() -> list[State]:
    return states()


def kill_and_compare(
    forks: Forks, folder: Path, kill_at: int, when: str, kinds: str, expected: list[State]
) -> bool:
    """Return False if the run ended before its n-th operation."""
    code, lines = forks.run(folder, kill_at, when, kinds, "workload")
    if code == 0:
        return False
    assert code == -signal.SIGKILL
    done = max(len(lines) - 1, 0)  # the first line is printed after the open
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
def test_killed_at_a_sync(
    forks: Forks, tmp_path: Path, expected: list[State], kill_at: int, when: str, kinds: str
) -> None:
    """At some syncs, writes and renames of the run; `make test-long` takes all."""
    assert kill_and_compare(forks, tmp_path / "s", kill_at, when, kinds, expected)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kinds", sorted(KINDS))
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_every_operation(
    forks: Forks, tmp_path: Path, expected: list[State], when: str, kinds: str
) -> None:
    """One process for each sync, write and rename of the run."""
    with counted(f"killed {when} its n-th {kinds}", "processes") as tried:
        while kill_and_compare(forks, tmp_path / "s", len(tried) + 1, when, kinds, expected):
            shutil.rmtree(tmp_path / "s")
            tried.append(1)
    assert len(tried) > (5 if kinds == "name" else 60)


# ── alterations


@pytest.fixture(scope="module")
def altered() -> tuple[list[dict[str, Any]], list[int]]:
    """The state after each step of the alterations, and the number of syncs up to there."""
    with folder_in_memory() as folder:
        files = KillingFiles(system_files())
        db = open_database(folder / "s", files=files, direct_commit_bytes=DIRECT_COMMIT_BYTES)
        states, counts = [whole_state(db)], [files.count]
        for step in alterations.STEPS:
            step(db)
            states.append(whole_state(db))
            counts.append(files.count)
        db.close()
        return states, counts


def kill_at_a_step(
    forks: Forks, folder: Path, kill_at: int, when: str, kinds: str, states: list[dict[str, Any]]
) -> int | None:
    """Return the number of acknowledged steps; None if the run ended before its n-th operation."""
    code, lines = forks.run(folder, kill_at, when, kinds, "alterations")
    if code == 0:
        return None
    assert code == -signal.SIGKILL
    done = max(len(lines) - 1, 0)
    with open_database(folder, direct_commit_bytes=DIRECT_COMMIT_BYTES) as db:
        found = whole_state(db)
        assert found in states[done : done + 2], f"killed {when} {kinds} {kill_at}, {done} steps were done"
        check_everything(db)
        for rest in alterations.STEPS[states.index(found) :]:
            rest(db)
        assert whole_state(db) == states[-1], "the remaining steps can be run"
    return done


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("drop column", "after its last sync"), ("widen", "before its first sync"),
        ("several", "before its first sync"),
    ],
)  # fmt: skip
def test_killed_in_an_alteration(
    forks: Forks, tmp_path: Path, altered: tuple[list[dict[str, Any]], list[int]], name: str, place: str
) -> None:
    """The table is the old one or the new one, at the first sync (of the log) and the last (of the
    catalogue). `make test-long` takes all.
    """
    states, counts = altered
    step = alterations.STEP_NUMBERS[name]
    first, last = counts[step] + 1, counts[step + 1]
    kill_at, when = (first, "before") if place.startswith("before") else (last, "after")
    assert kill_at_a_step(forks, tmp_path / "s", kill_at, when, "sync", states) == step
    with open_database(tmp_path / "s") as db:
        assert whole_state(db) == states[-1]


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kinds", sorted(KINDS))
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_every_operation_of_alterations(
    forks: Forks, tmp_path: Path, altered: tuple[list[dict[str, Any]], list[int]], when: str, kinds: str
) -> None:
    """One process for each sync, write and rename during alterations."""
    with counted(f"killed {when} its n-th {kinds} of alterations", "processes") as tried:
        while kill_at_a_step(forks, tmp_path / "s", len(tried) + 1, when, kinds, altered[0]) is not None:
            shutil.rmtree(tmp_path / "s")
            tried.append(1)
    assert len(tried) > (2 if kinds == "name" else 20)


# ── threads


def kill_while_threads_write(folder: Path, chance: random.Random, rounds: int) -> int:
    """Kill a writer with 8 threads several times in one store. Return the number of acknowledged
    rows.
    """
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
            for line in itertools.islice(child.stdout, 20 + chance.randrange(150)):
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


def test_killed_at_any_moment_with_eight_threads(tmp_path: Path) -> None:
    """Flushes, compactions and direct commits run at the same time."""
    assert kill_while_threads_write(tmp_path, random.Random(8), 1) >= THREADS


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(4))
def test_killed_often_with_eight_threads(tmp_path: Path, request: pytest.FixtureRequest, part: int) -> None:
    chance = random.Random(f"{request.config.getoption('hypothesis_seed')} {part}")
    with counted("killed at any moment under 8 threads", "processes") as tried:
        for number in range(50):
            kill_while_threads_write(tmp_path / str(number), chance, 1)
            tried.append(1)
