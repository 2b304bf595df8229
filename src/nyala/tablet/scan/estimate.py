"""Estimates how many rows match a predicate, from zone maps and from small samples.

Query engines use the estimate to choose filters for pushdown and the order of joins. It has no
influence on results.

Cost: plans the scan, reads zone maps, and reads the predicate's columns of at most `SAMPLES`
samples of `SAMPLE_ROWS` rows. A sample decodes whole blocks, which stay in the block cache. If the
bounds of the columns already show that many rows match, no sample is read.
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
# No sample is taken if at least this share matches according to the bounds.
UNSELECTIVE_SHARE: Final = 1 / 50


@dataclass(frozen=True)
class Estimate:
    """The estimated work and result of a scan.

    rows:     the number of rows in the table, including dead rows.
    read:     the share of `rows` that the scan must read, because no zone map excludes them.
    matching: the share of `rows` that match the predicate.
    """

    rows: int
    read: float
    matching: float


def estimate(table: TableState, spec: ScanSpec) -> Estimate:
    """Estimate how many rows `spec` reads, and how many of them match its predicate."""
    rows = row_count(table)
    listed = spec.listed_count
    if listed is not None and listed <= read_path.LISTED_MAX:
        found = min(1.0, listed / max(1, rows))  # each listed key has at most one row
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
    # Rows are in key order, so samples come from different places.
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
    """Return the number of rows in the table, including dead rows. Reads no file."""
    return sum(rowset.row_count for tablet in table.tablets for rowset in tablet.all_rowsets())


def _by_bounds(table: TableState, spec: ScanSpec) -> float | None:
    """Return the share of rows that match the predicate, assuming evenly spread values.

    Uses the least and greatest values of the columns in the largest rowset. Returns None if these
    are not integers, dates or timestamps.
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
    """Return the share of the rowset's rows that match, assuming evenly spread values.

    Returns None if the column's least and greatest values are not integers, dates or timestamps.
    """
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
