"""How blocks of column files are accessed, and what reading them has cost, for `explain()`."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

__all__ = ["Access", "ReadStats"]


class Access(enum.Enum):
    """How a block is accessed, which decides whether the cache keeps it: see `source`."""

    LOOKUP = "lookup"
    SCAN = "scan"
    ONCE = "once"


@dataclass
class ReadStats:
    """What reading has cost so far. Mutable, for one thread at a time; `explain()` adds them up."""

    bytes_read: int = 0  # from the file, footers excluded
    blocks_read: int = 0  # decoded
    cache_hits: int = 0  # blocks that were decoded already
    reads: int = 0  # preads
    base_blocks: set[tuple[int, int]] = field(default_factory=set, compare=False, repr=False)
    """Which blocks of base columns were decoded or found, each once: (the column's source, block)."""
