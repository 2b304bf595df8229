"""examples/change_feeds: the pipeline ends with the tables of its source, also if it is killed."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from decimal import Decimal
from pathlib import Path

import nyala
from examples.change_feeds import pipeline, source

ROOT = Path(__file__).parents[2]
END = "The orders and the totals are those of the source.\n"


def test_the_program_ends_with_the_tables_of_the_source(tmp_path: Path) -> None:
    """The program kills its follower once."""
    command = [sys.executable, "-m", "examples.change_feeds", str(tmp_path / "new")]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "The process was killed." in ran.stdout and ran.stdout.endswith(END)


def test_a_killed_follower_counts_nothing_twice(tmp_path: Path) -> None:
    """After each kill the totals are those of the orders up to `progress`, at the end those of all orders."""
    draw = random.Random(7)
    source.make_source(tmp_path / "source.db", 900)
    command = [sys.executable, "-m", "examples.change_feeds.pipeline", str(tmp_path)]
    for _ in range(2):
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            for _ in range(draw.randrange(1, 6)):
                running.stdout.readline()
            time.sleep(draw.random() * 0.05)
            running.kill()
        with nyala.connect(tmp_path / "store", read_only=True) as db:
            until = db["progress"]["totals"]["until"]
            expected: dict[str, tuple[int, Decimal]] = {}
            for row in db["orders"].scan(["customer", "total"], at=until).to_arrow().to_pylist():
                count, total = expected.get(row["customer"], (0, Decimal(0)))
                expected[row["customer"]] = count + 1, total + row["total"]
            found = db["totals"].scan().to_arrow().to_pylist()
            assert {row["customer"]: (row["orders"], row["total"]) for row in found} == expected
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ran.stdout.endswith(END), ran.stdout + ran.stderr
    with nyala.connect(tmp_path / "store") as db:
        assert pipeline.follow(db) == 0 and pipeline.check(db, tmp_path / "source.db") == []
