"""Counts what a scan reads from rowsets, for `explain()`."""

from __future__ import annotations

from dataclasses import dataclass, field

from nyala.cfile.blocks.read_stats import ReadStats


@dataclass
class RowSetStats(ReadStats):
    """What a scan read from rowsets, how many changed values it used, and how it read each column.

    Not thread-safe.
    """

    deltas_applied: int = 0  # the number of values that came from UNDO or REDO
    operations: set[tuple[str, str]] = field(default_factory=set)
    """(operation, column) pairs; an operation is "decode", "filter" or "gather"."""

    def note(self, operation: str, column: str) -> None:
        self.operations.add((operation, column))

    def add(self, more: RowSetStats) -> None:
        """Add the counters of `more` to these."""
        self.bytes_read += more.bytes_read
        self.blocks_read += more.blocks_read
        self.cache_hits += more.cache_hits
        self.reads += more.reads
        self.base_blocks |= more.base_blocks
        self.deltas_applied += more.deltas_applied
        self.operations |= more.operations


def count_applied(stats: RowSetStats | None, deltas: int) -> None:
    """Add `deltas` to the number of values that came from UNDO or REDO."""
    if stats is not None:
        stats.deltas_applied += deltas
