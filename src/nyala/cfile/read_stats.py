"""What reading column files has cost, for `explain()`."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["ReadStats"]


@dataclass
class ReadStats:
    """What reading has cost so far. Mutable, for one thread at a time; `explain()` adds them up."""

    bytes_read: int = 0  # from the file, footers excluded
    blocks_read: int = 0  # decoded
    cache_hits: int = 0  # blocks that were decoded already
    reads: int = 0  # preads
    base_blocks: set[tuple[int, int]] = field(default_factory=set, compare=False, repr=False)
    """Which blocks of base columns were decoded or found, each once: (the column's source, block)."""
