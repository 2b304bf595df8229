"""The simulation of a load over many tablets runs, and what a tablet costs does not grow with their number."""

from __future__ import annotations

import pytest

from bench.spark_plan import Cost, run

COUNTED = ("plan_calls", "told_bytes", "answer_bytes", "commit_calls", "catalogue_bytes", "routing_bytes")


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> list[Cost]:
    return [run(tablets, tmp_path_factory.mktemp("plan") / "s", 10) for tablets in (4, 16, 64)]


@pytest.mark.parametrize("what", COUNTED)
def test_a_tablet_more_costs_the_same_however_many_there_are(costs: list[Cost], what: str) -> None:
    """Calls and bytes, which do not depend on the machine: a step over all tablets for each of them would show here."""
    few, some, many = costs
    first = (getattr(some, what) - getattr(few, what)) / (some.tablets - few.tablets)
    later = (getattr(many, what) - getattr(some, what)) / (many.tablets - some.tablets)
    # The catalogue grows by whole pages.
    pages = 8192 / (many.tablets - some.tablets) if what == "catalogue_bytes" else 0
    assert 0 < later <= first * 1.15 + pages
