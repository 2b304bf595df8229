"""How many rows a predicate will leave, guessed from zone maps and a few small samples.

For planners: the guess decides what is worth pushing into a scan and in which order tables are joined, never which rows
are right.

Cost: the plan of a scan, a zone-map test a window, and at most `SAMPLES` reads of `SAMPLE_ROWS` rows of the predicate's
columns, which stay in the block cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from nyala.tablet import read_path
from nyala.tablet.read_path import ScanCounters, ScanSpec
from nyala.tablet.root import TableState

SAMPLES: Final = 3
SAMPLE_ROWS: Final = 4096


@dataclass(frozen=True)
class Estimate:
    """rows: of the table, dead ones too. read: share of them that can't be skipped. matching: share that matches."""

    rows: int
    read: float
    matching: float


def estimate(table: TableState, spec: ScanSpec) -> Estimate:
    """What `spec.predicate` leaves of the table."""
    rows = row_count(table)
    counters = ScanCounters()
    found = [
        (unit, lower, upper)
        for unit in read_path.plan(table, spec, counters)
        for lower, upper in read_path.pieces(unit, spec, counters)
    ]
    left = sum(upper - lower for _, lower, upper in found)
    if not rows or not left:
        return Estimate(rows, 0.0, 0.0)
    # From the beginning, the middle and the end: rows lie in the order of their keys.
    chosen = {len(found) * step // SAMPLES: step for step in range(SAMPLES)}
    seen = matching = 0
    for place in chosen:
        unit, lower, upper = found[place]
        upper = min(upper, lower + SAMPLE_ROWS)
        seen += upper - lower
        matching += read_path.count_window(unit, spec, lower, upper, counters)
    return Estimate(rows, left / rows, left / rows * matching / seen)


def row_count(table: TableState) -> int:
    """Rows of the table, dead ones too. Reads nothing."""
    return sum(rowset.row_count for tablet in table.tablets for rowset in tablet.all_rowsets())
