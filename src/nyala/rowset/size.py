"""The target size of a rowset for flushes, loads and merging compactions."""

from __future__ import annotations

from typing import Final

TARGET_BYTES: Final = 32 << 20
"""The size on disk of a rowset that a flush or merge writes: Kudu's
budgeted_compaction_target_rowset_size.
"""

DECODED_PER_TARGET: Final = 8
"""The limit of a rowset's size in memory, as a multiple of the target size.

A merge holds its rows several times in memory, so data that compress better than this make smaller
rowsets on disk.
"""

TEXT_TARGET_BYTES: Final = 1 << 29
"""The limit of the text of one column of a rowset in memory: base, REDO and UNDO. 32-bit offsets
address four times as much. A rowset may exceed it by half. A merge may hold twice the text of a
rowset in one array while it inverts changes, and it knows the amount of text only per block.
"""
