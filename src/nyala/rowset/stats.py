"""Counters of reading rowsets, for `explain()`."""

from __future__ import annotations

from dataclasses import dataclass, field

from nyala.cfile.blocks.read_stats import ReadStats

__all__ = ["RowSetStats", "count_applied"]


@dataclass
class RowSetStats(ReadStats):
    """Counters of column files, and of changes applied to their values.

    For one thread at a time.
    """

    deltas_applied: int = 0  # values that came from UNDO or REDO
    operations: set[tuple[str, str]] = field(default_factory=set)
    """The (operation, column) pairs that were used."""

    def note(self, operation: str, column: str) -> None:
        self.operations.add((operation, column))

    def add(self, more: RowSetStats) -> None:
        self.bytes_read += more.bytes_read
        self.blocks_read += more.blocks_read
        self.cache_hits += more.cache_hits
        self.reads += more.reads
        self.base_blocks |= more.base_blocks
        self.deltas_applied += more.deltas_applied
        self.operations |= more.operations


def count_applied(stats: RowSetStats | None, deltas: int) -> None:
    """Add `deltas` to the values that came from deltas."""
    if stats is not None:
        stats.deltas_applied += deltas
