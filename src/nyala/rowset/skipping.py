"""Finds the rows that a scan can skip, by zone maps and without decoding rows.

    1. For each column that the predicate limits, zone maps exclude base blocks without a match.
    2. A block with a changed row is not excluded, unless the zone map of the delta file also proves
       that the changed value cannot match.
    3. A row is skipped if any column excludes its block.

The blocks of a column have 2^n rows, where n differs between columns. Step 3 works in units of the
smallest blocks.

Invariants
    Z1  A row is skipped only if the zone map proves that its base value cannot match, and no
        changed value at the snapshot can match either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from nyala.cfile.blocks.read_stats import ReadStats
from nyala.cfile.index.zone_map import Zone
from nyala.schema.predicates.constraint import Constraint
from nyala.schema.schema import NO_DEFAULT, ColumnSchema
from nyala.schema.types import to_canonical

if TYPE_CHECKING:
    from nyala.rowset.disk_rowset import DiskRowSet


Bools = npt.NDArray[np.bool_]
# The block size (2^16 rows) of a column that no base file has: every row has the default.
_DEFAULT_ROWS_LOG2: Final = 16


def candidate_ranges(
    rowset: DiskRowSet,
    constraints: Sequence[tuple[ColumnSchema, Constraint]],
    snapshot: int,
    lower: int,
    upper: int,
    stats: ReadStats | None = None,
) -> list[tuple[int, int]]:
    """Return the ascending, disjoint ranges of [lower, upper) that a scan must read.

    All other rows fail one of the `constraints`.
    Cost: reads footers, compares each block's zone map, and reads the rowids of changes, which the
    scan needs anyway.
    """
    if lower >= upper:
        return []
    excluded = [
        found
        for column, constraint in constraints
        if (found := _excluded(rowset, column, constraint, snapshot, lower, upper, stats)) is not None
    ]
    if not excluded:
        return [(lower, upper)]
    log2_min = min(log2 for log2, _ in excluded)
    first, end = lower >> log2_min, ((upper - 1) >> log2_min) + 1
    gone = np.zeros(end - first, np.bool_)
    for log2, blocks in excluded:
        numbers = np.arange(first, end) >> (log2 - log2_min)
        gone |= blocks[numbers - (lower >> log2)]
    borders = np.flatnonzero(np.diff(np.concatenate(([True], gone, [True]))))
    starts, stops = (first + borders[::2]) << log2_min, (first + borders[1::2]) << log2_min
    return [
        (max(start, lower), min(stop, upper))
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
    ]


def _excluded(
    rowset: DiskRowSet,
    column: ColumnSchema,
    constraint: Constraint,
    snapshot: int,
    lower: int,
    upper: int,
    stats: ReadStats | None,
) -> tuple[int, Bools] | None:
    """Return (log2 of rows per block, mask of excluded blocks); None if no block is excluded.

    The mask has one value for each block that overlaps [lower, upper).
    """
    reader = rowset.base_column(column.id)
    if reader is None:
        default = column.read_default
        if constraint.admits(None if default is NO_DEFAULT else to_canonical(column.type, default)):
            return None
        log2 = _DEFAULT_ROWS_LOG2
        blocks = np.ones(((upper - 1) >> log2) + 1 - (lower >> log2), np.bool_)
    else:
        log2 = reader.footer.rows_per_block_log2
        blocks = reader.excluded_blocks(constraint)[lower >> log2 : ((upper - 1) >> log2) + 1].copy()
        if not blocks.any():
            return None
    first = lower >> log2
    for file in (*rowset.undo, *rowset.redo):
        if column.id not in file.column_ids or not file.relevant(snapshot):
            continue
        zone = file.column_zone(column.id)
        if zone is not None and _excludes(constraint, zone):
            continue
        # If the file's runs are not worth caching, only the changes in excluded blocks are read.
        whole = rowset.changes.keeps_runs(file, column.id, snapshot)
        for begin, end in [(lower, upper)] if whole else _ranges(blocks, first, log2, lower, upper):
            run = file.run_in(column.id, begin, end, stats, whole=whole)
            if run is not None:
                blocks[(run.changed_rows(snapshot, begin, end) >> log2) - first] = False
    for store in (*rowset.frozen, rowset.deltas):
        for run in store.levels(column.id):
            blocks[(run.changed_rows(snapshot, lower, upper) >> log2) - first] = False
    return (log2, blocks) if blocks.any() else None


def _ranges(blocks: Bools, first: int, log2: int, lower: int, upper: int) -> list[tuple[int, int]]:
    """Return ranges of rows in [lower, upper) that cover the blocks where the mask is True.

    The caller reads the changes of one range after the other. A range has at least 2^16 rows,
    except at the ends of [lower, upper), so that there are few reads.
    blocks: the mask. Its first element is block number `first`; a block has 2^log2 rows.
    """
    step = 1 << max(log2, _DEFAULT_ROWS_LOG2)
    inside: dict[int, None] = dict.fromkeys(
        (((first + np.flatnonzero(blocks)) << log2) // step * step).tolist()
    )
    return [(max(begin, lower), min(begin + step, upper)) for begin in inside]


def _excludes(constraint: Constraint, zone: Zone) -> bool:
    return constraint.excludes_range(zone.min, zone.max, zone.null_count, zone.row_count, zone.has_nan)
