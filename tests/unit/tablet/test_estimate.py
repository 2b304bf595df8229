"""Estimates of matching rows come from bounds if these suffice, and otherwise from samples."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support import open_database

import nyala
from nyala.schema.expressions.parser import parse_predicate
from nyala.tablet.scan import estimate as estimate_module
from nyala.tablet.scan import read_path

ROWS = 20_000


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Any]:
    with open_database(tmp_path / "s") as db:
        columns = {"k": "int64", "n": nyala.column("int64", block_size=4096), "s": "string", "skew": "int64"}
        table = db.create_table("t", columns, "k")
        table.insert(
            {
                "k": list(range(ROWS)),
                "n": [i * 7919 % 1000 for i in range(ROWS)],
                "s": [f"{i % 4}" for i in range(ROWS)],
                "skew": [0] * (ROWS - 1) + [1000],
            }
        )
        table.flush()
        yield table


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which each sample adds its number of rows."""
    rows: list[int] = []
    real = read_path.count_split

    def noted(unit: Any, spec: Any, lower: int, upper: int, counters: Any) -> int:
        rows.append(upper - lower)
        return real(unit, spec, lower, upper, counters)

    monkeypatch.setattr(estimate_module.read_path, "count_split", noted)
    return rows


def test_rows_that_zone_maps_exclude_are_not_estimated(table: Any, sampled: list[int]) -> None:
    """The share to read is what zone maps leave. If they leave nothing, no row matches."""
    none = table.scan()._engine().estimate(parse_predicate("n > 5000"))
    assert (none.read, none.matching) == (0.0, 0.0) and not sampled
    few = table.scan()._engine().estimate(parse_predicate("k < 100"))
    assert few.read < 0.02 and few.matching <= few.read
