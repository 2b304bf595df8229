"""Runs a query on several sources in turns, and checks that all results are equal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from statistics import median
from typing import Any

from bench.measure import SCANS_UNTIL_KEPT

Taken = dict[str, list[float]]
"""For each source, the seconds of each round."""

Source = Callable[[], tuple[float, list[Any]]]
"""Runs the query once, and returns (seconds, rows)."""


def in_turns(sources: Mapping[str, Source], repeats: int, what: str) -> Taken:
    """Return the times of a query on each source. A first round is not counted; it compares the
    results with Parquet's.

    warm: a reader that stays open. It runs the query until its cache does not change any more.
    """
    names = list(sources)
    for _ in range(SCANS_UNTIL_KEPT if "warm" in sources else 0):
        sources["warm"]()
    answers = {name: sources[name]()[1] for name in names}
    for name in names:
        if not same(answers[name], answers["parquet"]):
            raise AssertionError(f"{what}: {name} has other results than Parquet")
    del answers
    taken: Taken = {name: [] for name in names}
    for repeat in range(repeats):
        for name in names[repeat % len(names) :] + names[: repeat % len(names)]:
            taken[name].append(sources[name]()[0])
    return taken


def ratio_of(taken: Mapping[str, list[float]], ours: str, theirs: str = "parquet") -> float | None:
    """Return the median of the ratios of neighbouring times."""
    found = [a / b for a, b in zip(taken.get(ours, ()), taken.get(theirs, ()), strict=False)]
    return median(found) if found else None


def geometric_mean(ratios: Iterable[float | None]) -> float | None:
    """Return the geometric mean, or None if there is no ratio."""
    found = [math.log(ratio) for ratio in ratios if ratio is not None]
    return math.exp(sum(found) / len(found)) if found else None


def same(left: list[Any], right: list[Any]) -> bool:
    """Whether two results have the same rows in any order. Doubles are compared to nine digits."""

    def plain(rows: list[Any]) -> list[str]:
        return sorted(
            repr(tuple(f"{float(v):.9g}" if isinstance(v, float | Decimal) else v for v in row))
            for row in rows
        )

    return plain(left) == plain(right)
