"""Defines `Access`, why a block is read, and `ReadStats`, the counters that `explain()` shows."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class Access(enum.Enum):
    """Why a block is read. This decides whether the cache keeps it (see `blocks.source`)."""

    LOOKUP = "lookup"
    SCAN = "scan"
    ONCE = "once"


@dataclass
class ReadStats:
    """Counts what was read. Each thread has its own object; `explain()` shows the sum of all."""

    bytes_read: int = 0  # from the file, without footers
    blocks_read: int = 0  # blocks that were decoded
    cache_hits: int = 0  # blocks that were in the cache
    reads: int = 0  # calls of pread
    base_blocks: set[tuple[int, int]] = field(default_factory=set, compare=False, repr=False)
    """The blocks of base columns that were used, each once: (id of the column's source, block number)."""
