"""Several processes write to one log in a bucket. Each acknowledged record exists exactly once.

Each trial starts a writer, and then one or two new writers. The first writer is killed by SIGKILL,
suspended for a while by SIGSTOP, or continues beside the next ones. All of them write checkpoints,
which delete old parts of the log. The server loses requests and replies, answers 503 and 409, and
lets requests arrive after the client's timeout. Afterwards a reader compares the records.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("obstore")

from nyala.errors import CorruptionError
from nyala.objects.open import open_objects
from nyala.testing import S3Server
from nyala.testing.faulty_objects import Request
from tests.crash.object_log_racer import read_rows

ROOT = Path(__file__).parents[2]
KINDS = ("kill", "not stopped", "stop", "two new writers")
# A client gives up after this time; a late request arrives after the next one.
TIMEOUT_S = 0.25
LATE_S = 0.4


class Starter:
    """Starts the processes of `object_log_racer`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.object_log_racer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def start(self, config: dict[str, Any]) -> int:
        return int(self._ask(json.dumps(config)))

    def wait(self, pid: int) -> None:
        assert self._ask(f"wait {pid}") == "ended"

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


@pytest.fixture(scope="module")
def starter() -> Iterator[Starter]:
    starter = Starter()
    yield starter
    starter.close()


def faults_of(seed: int, share: float) -> Any:
    chance = random.Random(seed)
    lock = threading.Lock()

    def faults(request: Request) -> str | float | None:
        with lock:
            if chance.random() >= share:
                return None
            of_log = request.verb == "PUT" and "/log/" in request.key
            kinds: list[str | float] = ["503", "500", "drop before", "drop after", LATE_S]
            return chance.choice([*kinds, "409"] if of_log else kinds)

    return faults


class Trial:
    """One race and its result."""

    def __init__(self, starter: Starter, folder: Path, seed: int, mutant: str, share: float) -> None:
        self.starter = starter
        self.folder = folder
        self.seed = seed
        self.mutant = mutant
        self.kind = KINDS[seed % len(KINDS)]
        self.share = share
        self.outs: list[Path] = []
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []

    def start(self, server: S3Server, seconds: float) -> int:
        name = f"w{len(self.outs)}"
        self.outs.append(self.folder / f"{self.seed}-{name}")
        return self.starter.start(
            {
                "name": name,
                "url": server.url,
                "options": server.options,
                "timeout_s": TIMEOUT_S,
                "out": str(self.outs[-1]),
                "seed": self.seed * 10 + len(self.outs),
                "seconds": seconds,
                "mutant": self.mutant,
            }
        )

    def run(self) -> None:
        chance = random.Random(self.seed)
        with S3Server() as server:
            server.faults = faults_of(self.seed, self.share)
            pids = [self.start(server, 0.7)]
            time.sleep(0.15 + chance.random() * 0.3)
            if self.kind == "not stopped":
                pids.append(self.start(server, 0.5))
            elif self.kind == "stop":
                os.kill(pids[0], signal.SIGSTOP)
                pids.append(self.start(server, 0.5))
                time.sleep(0.2 + chance.random() * 0.3)
                os.kill(pids[0], signal.SIGCONT)
            else:
                os.kill(pids[0], signal.SIGKILL)
                pids.append(self.start(server, 0.4))
                if self.kind == "two new writers":
                    pids.append(self.start(server, 0.4))
            for pid in pids:
                self.starter.wait(pid)
            time.sleep(LATE_S + 0.1)  # late requests have arrived
            server.faults = None
            objects = open_objects(server.url, server.options)
            try:
                self.compare([name for _, name in read_rows(objects).rows])
            except CorruptionError as error:
                self.problems.append(str(error))
            objects.close()

    def compare(self, found: list[str]) -> None:
        acknowledged: list[str] = []
        refused: list[str] = []
        for out in self.outs:
            for line in out.read_text().splitlines() if out.exists() else ():
                sign, _, rest = line.partition(" ")
                if sign == "+":
                    acknowledged.append(rest)
                elif sign == "!":
                    refused.append(rest)
                elif rest.startswith("DIED"):
                    self.problems.append(rest)
                self.counts[rest.partition(":")[0] if sign == "#" else f"sign {sign}"] += 1
        self.counts["acknowledged"] += len(acknowledged)
        self.counts["found"] += len(found)
        lost = set(acknowledged) - set(found)
        twice = [name for name, count in Counter(found).items() if count > 1]
        invented = set(refused) & set(found)
        place = {name: index for index, name in enumerate(found)}
        threads: dict[str, list[int]] = {}
        for name in acknowledged:
            threads.setdefault(name.rpartition(".")[0], []).append(place.get(name, -1))
        unordered = [thread for thread, places in threads.items() if places != sorted(places)]
        for label, names in (
            ("lost", lost), ("twice", twice), ("refused but written", invented), ("out of order", unordered),
        ):  # fmt: skip
            self.counts[label] += len(names)
            if names:
                self.problems.append(f"{label}: {sorted(names)[:5]}")
        self.counts["trials"] += 1


def race(starter: Starter, folder: Path, seed: int, mutant: str = "", share: float = 0.1) -> Trial:
    trial = Trial(starter, folder, seed, mutant, share)
    trial.run()
    return trial


@pytest.mark.parametrize("seed", range(len(KINDS)))
def test_no_acknowledged_record_is_lost_in_a_race(starter: Starter, tmp_path: Path, seed: int) -> None:
    """The writer is killed, stopped, or followed by one or two others, over a network that loses
    requests.
    """
    trial = race(starter, tmp_path, seed)
    assert trial.problems == [], (trial.kind, trial.counts)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_no_acknowledged_record_is_lost_in_300_races(starter: Starter, tmp_path: Path) -> None:
    """Prints how many takeovers and acknowledged records there were."""
    counts: Counter[str] = Counter()
    problems = []
    for seed in range(1000, 1300):
        trial = race(starter, tmp_path, seed, share=0.05 + 0.1 * (seed % 3))
        counts.update(trial.counts)
        problems += [(seed, trial.kind, problem) for problem in trial.problems]
    print(dict(counts))
    assert problems == [], counts
    assert counts["took over"] > 300 and counts["acknowledged"] > 3000, counts


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", ["plain put", "believe", "seals deleted"])
def test_the_races_catch_a_writer_that_breaks_the_rules(
    starter: Starter, tmp_path: Path, mutant: str
) -> None:
    """The wrong rules: put instead of put-if-absent; a missing answer counts as success; seals are deleted."""
    for seed in range(120):
        # With few faults, a former writer still lives when the new one has deleted the seal.
        trial = race(starter, tmp_path, seed, mutant, share=0.02 if mutant == "seals deleted" else 0.15)
        if trial.problems:
            print(f"caught in trial {seed + 1}: {trial.kind}, {trial.problems}")
            return
    pytest.fail("120 trials caught nothing")
