"""Where the time of a question goes: planning it, our windows, and the engine that computes.

    asked      ├─ plan, register ─┤ pull ├─ engine ─┤ pull ├┤ pull ├─ engine ─┤     one thread of the engine
                                       ├ pull ├─ engine ─┤                          another one

Planning lasts until the engine first asks for rows: parsing, the snapshot, registering the tables, binding them and as
many plannings as there are. Windows are what some thread of the engine waits for in a scan of ours, two at a time
counted once; what our own threads decode meanwhile is in nobody's time. The engine has the rest, and also computes, on
its other threads, while one of them waits for us: so its part is the least that it can be.

Seen are `Scan.batches` and `Scan.batches_ahead`, through which DuckDB and polars read.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from threading import get_ident
from time import perf_counter
from typing import Any, NamedTuple

from bench.costs import seen
from bench.syncs import Span, covered_s
from nyala.api.scan import Scan


class Split(NamedTuple):
    """Seconds of one question, which add up to what it took."""

    planning_s: float
    windows_s: float
    engine_s: float


def middle(splits: list[Split]) -> Split | None:
    """The median of each part by itself; None of none."""
    return Split(*(median(part) for part in zip(*splits, strict=True))) if splits else None


class Pulls:
    """What engines asked of scans, and when. One question at a time."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.scans: list[Scan] = []

    def begin(self) -> None:
        """The next question."""
        self.spans, self.scans = [], []

    def split(self, begun_s: float, ended_s: float) -> Split:
        """Of a question asked and answered at these moments."""
        first_s = min((span.begun_s for span in self.spans), default=ended_s)
        windows_s = covered_s(self.spans, Span(0, first_s, ended_s))
        return Split(first_s - begun_s, windows_s, ended_s - first_s - windows_s)

    def bytes_read(self) -> int:
        """What `explain` says of the scans of the question."""
        return sum(int(scan.explanation_of_last_run().to_dict()["bytes_read"]) for scan in self.scans)

    @contextmanager
    def watching(self) -> Iterator[Pulls]:
        """Watch in all threads; the functions are given back."""
        kept = {name: getattr(Scan, name) for name in ("batches", "batches_ahead")}
        for name, function in kept.items():
            setattr(Scan, name, self._watched(function))
        try:
            yield self
        finally:
            for name, function in kept.items():
                setattr(Scan, name, function)

    def _watched(self, function: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        @functools.wraps(function)
        def watched(scan: Scan, *arguments: Any, **named: Any) -> Iterator[Any]:
            self.scans.append(scan)
            return self._timed(seen(function(scan, *arguments, **named)))

        return watched

    def _timed(self, batches: Iterator[Any]) -> Iterator[Any]:
        spans = self.spans
        while True:
            begun_s = perf_counter()
            batch = next(batches, None)
            spans.append(Span(get_ident(), begun_s, perf_counter()))
            if batch is None:
                return
            yield batch
