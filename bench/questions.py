"""A question put to several sources in turns: what it took each, and that all give one answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from statistics import median
from time import perf_counter, process_time
from typing import Any, NamedTuple

from bench.costs import Cost
from bench.measure import SCANS_UNTIL_KEPT
from bench.pulls import Pulls, Split


class Answer(NamedTuple):
    s: float
    processor_s: float
    rows: list[Any]
    split: Split | None = None


def clocked(action: Callable[[], list[Any]], pulls: Pulls | None = None) -> Answer:
    """pulls: tells where the time went."""
    if pulls is not None:
        pulls.begin()
    begun, processor = perf_counter(), process_time()
    rows = action()
    ended, processor_s = perf_counter(), process_time() - processor
    split = None if pulls is None else pulls.split(begun, ended)
    return Answer(ended - begun, processor_s, rows, split)


@dataclass
class Found:
    """One question: seconds by source, where they went, and what it moved and called."""

    taken: dict[str, list[float]] = field(default_factory=dict)
    processor: dict[str, list[float]] = field(default_factory=dict)  # seconds of all threads, user and system
    explained_bytes: int | None = None  # of Nyala, cold: what `explain` says
    splits: dict[str, list[Split]] = field(default_factory=dict)
    costs: dict[str, Cost] = field(default_factory=dict)  # of one call more of each source

    def s(self, source: str) -> float | None:
        return median(self.taken[source]) if self.taken.get(source) else None

    def against(self, ours: str, theirs: str = "parquet", *, processor: bool = False) -> float | None:
        """The median of the ratios of neighbours, by the clock or by processor time."""
        of = self.processor if processor else self.taken
        pairs = zip(of.get(ours, ()), of.get(theirs, ()), strict=False)
        found = [a / b for a, b in pairs]
        return median(found) if found else None


def in_turns(sources: Mapping[str, Callable[[], Answer]], repeats: int, what: str) -> Found:
    """In turns after one unmeasured round, in which the answers are compared with that over Parquet.

    Of `warm`, a reader that stays open, so many more rounds are not measured that it keeps all that it ever will.
    """
    found = Found()
    names = list(sources)
    for _ in range(SCANS_UNTIL_KEPT if "warm" in sources else 0):
        sources["warm"]()
    answers = {name: sources[name]().rows for name in ("parquet", *names)}
    for name in names:
        if not same(answers[name], answers["parquet"]):
            raise AssertionError(f"{what}: {name} answers otherwise than Parquet")
    del answers
    for repeat in range(repeats):
        for name in names[repeat % len(names) :] + names[: repeat % len(names)]:
            answer = sources[name]()
            found.taken.setdefault(name, []).append(answer.s)
            found.processor.setdefault(name, []).append(answer.processor_s)
            if answer.split is not None:
                found.splits.setdefault(name, []).append(answer.split)
    return found


def same(left: list[Any], right: list[Any]) -> bool:
    """The same rows. Doubles to nine digits: their last ones depend on the order of adding. Rows that the query's
    order does not tell apart may come in any order."""

    def plain(rows: list[Any]) -> list[str]:
        return sorted(
            repr(tuple(f"{float(v):.9g}" if isinstance(v, float | Decimal) else v for v in row))
            for row in rows
        )

    return plain(left) == plain(right)
