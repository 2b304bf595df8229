"""Which rows of a rowset a predicate leaves, told without decoding any of them (rule Z1).

    zone maps of the base     blocks of each column that a predicate names, whose bounds exclude it
    minus changes             a block stays in when a store has a change of one of its rows that the snapshot may apply,
                              unless the bounds of that store's values exclude the predicate as well
    all columns together      rows [lower, upper) where no column's block is excluded

Blocks of different columns have different numbers of rows, all powers of two: the finest of them is the grain.

Invariants
    Z1  A row is left out only if the base's zone map and every change of the column that the snapshot may apply say
        that it cannot match.
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

__all__ = ["rows_left"]

Bools = npt.NDArray[np.bool_]
# A column that the base file does not have is its default in every row: blocks of so many rows are as good as any.
_DEFAULT_ROWS_LOG2: Final = 16


def rows_left(
    rowset: DiskRowSet,
    demands: Sequence[tuple[ColumnSchema, Constraint]],
    snapshot: int,
    lower: int,
    upper: int,
    stats: ReadStats | None = None,
) -> list[tuple[int, int]]:
    """The parts of [lower, upper) that may hold rows which satisfy all demands at `snapshot`; ascending, apart.

    Cost: footers; a comparison a block; and the rowids of the columns' changes, which a scan needs next anyway.
    """
    if lower >= upper:
        return []
    excluded = [
        found
        for column, constraint in demands
        if (found := _excluded(rowset, column, constraint, snapshot, lower, upper, stats)) is not None
    ]
    if not excluded:
        return [(lower, upper)]
    grain = min(log2 for log2, _ in excluded)
    first, end = lower >> grain, ((upper - 1) >> grain) + 1
    gone = np.zeros(end - first, np.bool_)
    for log2, blocks in excluded:
        grains = np.arange(first, end) >> (log2 - grain)
        gone |= blocks[grains - (lower >> log2)]
    borders = np.flatnonzero(np.diff(np.concatenate(([True], gone, [True]))))
    starts, stops = (first + borders[::2]) << grain, (first + borders[1::2]) << grain
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
    """(rows of a block as a power of two, of each block of [lower, upper) whether it is excluded); None if none is."""
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
        # A file of which no run is kept is read where it matters only, a piece at a time.
        whole = rowset.changes.keeps_runs(file, column.id, snapshot)
        for begin, end in [(lower, upper)] if whole else _ranges(blocks, first, log2, lower, upper):
            run = file.run_in(column.id, begin, end, stats, whole=whole)
            if run is not None:
                blocks[(run.touched(snapshot, begin, end) >> log2) - first] = False
    for store in (*rowset.frozen, rowset.deltas):
        for run in store.levels(column.id):
            blocks[(run.touched(snapshot, lower, upper) >> log2) - first] = False
    return (log2, blocks) if blocks.any() else None


def _ranges(blocks: Bools, first: int, log2: int, lower: int, upper: int) -> list[tuple[int, int]]:
    """Where blocks are excluded, in pieces of a few blocks of values at most."""
    step = 1 << max(log2, _DEFAULT_ROWS_LOG2)
    inside: dict[int, None] = dict.fromkeys(
        (((first + np.flatnonzero(blocks)) << log2) // step * step).tolist()
    )
    return [(max(begin, lower), min(begin + step, upper)) for begin in inside]


def _excludes(constraint: Constraint, zone: Zone) -> bool:
    return constraint.excludes_range(zone.min, zone.max, zone.null_count, zone.row_count, zone.has_nan)
