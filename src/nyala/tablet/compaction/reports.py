"""The classes by which `db.maintenance.status()` describes the running and the last compactions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RunningCompaction:
    """The compaction that runs now: `MaintenanceStatus.compaction`."""

    operation: str
    """The kind, for instance `"merging compaction"`."""
    table: str
    tablet: int
    """The tablet's id."""
    seconds: float
    """The time since its start."""
    rows_done: int
    rows_total: int
    """The rows to compact in all. Both numbers are 0 until the first rows are done."""


@dataclass(frozen=True)
class FinishedCompaction:
    """A compaction that has ended: one item of `MaintenanceStatus.recent`."""

    operation: str
    """The kind, for instance `"merging compaction"`."""
    table: str
    tablet: int
    """The tablet's id."""
    rowsets: tuple[int, ...]
    """The ids of the rowsets that were compacted."""
    bytes_before: int
    """Bytes of the files that were replaced."""
    bytes_after: int
    """Bytes of the files that replaced them."""
    seconds: float
