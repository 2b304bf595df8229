"""The target size of a rowset for flushes, loads and merging compactions."""

from __future__ import annotations

from typing import Final

TARGET_BYTES: Final = 32 << 20
"""The size on disk of a rowset that a flush or merge writes.

Source: Kudu's flag budgeted_compaction_target_rowset_size.
"""

DECODED_PER_TARGET: Final = 8
"""The limit of a rowset's decoded size, as a multiple of its target size on disk.

A merge holds its rows in memory several times. So rows that compress to less than an eighth make
rowsets that are smaller on disk than the target.
"""

TEXT_TARGET_BYTES: Final = 1 << 29
"""The limit of the text of one column of a rowset in memory: its base, REDO and UNDO together.

Arrow's 32-bit offsets address four times as much. The margin is needed for two reasons. A rowset
may exceed the limit by half, because the amount of text is known only per block. And a merge may
hold twice the text of a rowset in one array while it turns REDO into UNDO.
"""
