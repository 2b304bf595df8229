"""The simulation of a load over many tablets runs, and what its tasks are told does not grow with their number."""

from __future__ import annotations

from pathlib import Path

from bench.spark_plan import run


def test_a_tablet_costs_the_same_however_many_there_are(tmp_path: Path) -> None:
    """Bytes, which do not depend on the machine: a plan or an answer that held all tablets would show here."""
    few, many = (run(count, tmp_path / str(count), 10) for count in (2, 20))
    assert many.told_bytes / many.tablets <= few.told_bytes / few.tablets * 1.05
    assert many.answer_bytes / many.tablets <= few.answer_bytes / few.tablets * 1.05
