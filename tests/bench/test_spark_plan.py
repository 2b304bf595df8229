"""The simulation of a load over many tablets runs, and what a tablet costs does not grow with their number."""

from __future__ import annotations

import datetime as dt

import pytest

from bench.spark_plan import COUNTED, Cost, report_of, run

pytestmark = pytest.mark.long


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


def test_the_figures_are_a_block_of_the_results(costs: list[Cost]) -> None:
    """As every part's: a table, and for each count whether it stays flat."""
    made = report_of(costs, "own")
    page = made.markdown(["a machine"], dt.datetime(2026, 11, 21, tzinfo=dt.UTC))
    assert page.startswith("<!-- spark_plan own -->\n## A load through Spark, planned over 4 to 64 tablets")
    assert [line.split("|")[1].strip() for line in page.splitlines() if "ms |" in line] == ["4", "16", "64"]
    assert len(made.aims) == len(COUNTED) and {
        aim.met for aim in made.aims if "catalogue" not in aim.text
    } == {True}
    assert {aim.met for aim in report_of(costs[:2], "own").aims} == {None}
