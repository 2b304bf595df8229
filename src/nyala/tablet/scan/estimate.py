"""Estimates how many rows match a predicate, from zone maps and from small samples.

Planners use the estimate to decide which filters are worth pushing into a scan and in which order
to join tables. It never decides which rows are correct.

Cost: the plan of a scan, zone maps, and at most `SAMPLES` reads of `SAMPLE_ROWS` rows of the
predicate's columns. The decoded blocks stay in the block cache. A sample decodes whole blocks, so
no sample is taken if the bounds alone say that many rows match.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Final

from nyala.rowset.disk_rowset import DiskRowSet
from nyala.schema.predicates.constraint import Constraint
from nyala.schema.schema import ColumnSchema
from nyala.tablet.scan import read_path
from nyala.tablet.scan.read_path import ScanCounters, ScanSpec
from nyala.tablet.state.root import TableState

SAMPLES: Final = 3
SAMPLE_ROWS: Final = 4096
# If the bounds say that at least this share matches, no sample is taken: only very unevenly
# distributed values could make the true share small.
UNSELECTIVE_SHARE: Final = 1 / 50


@dataclass(frozen=True)
class Estimate:
    """Estimated result of a scan.

    rows:     rows of the table, including dead ones.
    read:     share of the rows that zone maps do not exclude.
    matching: share of the rows that match.
    """

    rows: int
    read: float
    matching: float


def estimate(table: TableState, spec: ScanSpec) -> Estimate:
    """Estimate the result of `spec.predicate` over the table."""
    rows = row_count(table)
    listed = spec.listed_count
    if listed is not None and listed <= read_path.LISTED_MAX:
        found = min(1.0, listed / max(1, rows))  # each key has at most one row, and is looked up
        return Estimate(rows, found, found)
    counters = ScanCounters()
    parts = [
        (unit, lower, upper)
        for unit in read_path.plan(table, spec, counters, guess=True)
        for lower, upper in read_path.unskipped_ranges(unit, spec)
    ]
    left = sum(upper - lower for _, lower, upper in parts)
    if not rows or not left:
        return Estimate(rows, 0.0, 0.0)
    share = _by_bounds(table, spec)
    if share is not None and share >= UNSELECTIVE_SHARE:
        return Estimate(rows, left / rows, min(left / rows, share))
    # Sample the start, the middle and the end: rows are in key order.
    places = [
        (unit, begin, end)
        for unit, lower, upper in parts
        for begin, end in read_path.aligned_ranges(lower, upper, read_path.SPLIT_ROWS)
    ]
    chosen = {len(places) * step // SAMPLES: step for step in range(SAMPLES)}
    seen = matching = 0
    for place in chosen:
        unit, lower, upper = places[place]
        upper = min(upper, lower + SAMPLE_ROWS)
        seen += upper - lower
        matching += read_path.count_split(unit, spec, lower, upper, counters)
    return Estimate(rows, left / rows, left / rows * matching / seen)


def row_count(table: TableState) -> int:
    """The rows of the table, including dead ones. Reads nothing."""
    return sum(rowset.row_count for tablet in table.tablets for rowset in tablet.all_rowsets())


def _by_bounds(table: TableState, spec: ScanSpec) -> float | None:
    """The matching share, assuming evenly spread values within the bounds of the largest rowset.

    None if the bounds do not allow an estimate.
    """
    rowsets = [rowset for tablet in table.tablets for rowset in tablet.rowsets]
    if not rowsets or spec.predicate is None or spec.predicate.columns != spec.constraints.keys():
        return None
    largest = max(rowsets, key=lambda rowset: rowset.row_count)
    shares = [
        _column_share(largest, spec.schema.by_name(name), constraint)
        for name, constraint in spec.constraints.items()
    ]
    known = [share for share in shares if share is not None]
    return math.prod(known) if len(known) == len(shares) else None


def _column_share(rowset: DiskRowSet, column: ColumnSchema, constraint: Constraint) -> float | None:
    reader = rowset.base_column(column.id)
    if reader is None or constraint.empty or constraint.null == "only":
        return None
    if reader.has_dictionary and constraint.values is not None:
        return min(1.0, len(constraint.values) / max(1, reader.footer.dictionary_count))
    zone = reader.column_zone()
    if not isinstance(zone.min, int) or not isinstance(zone.max, int) or isinstance(zone.min, bool):
        return None
    width = zone.max - zone.min + 1
    if constraint.values is not None:
        inside = bisect_right(constraint.values, zone.max) - bisect_left(constraint.values, zone.min)
        return min(1.0, inside / width)
    lower = zone.min if constraint.lower is None else max(zone.min, constraint.lower)
    upper = zone.max if constraint.upper is None else min(zone.max, constraint.upper)
    return max(0, upper - lower + 1) / width
