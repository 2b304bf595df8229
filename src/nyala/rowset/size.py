"""How large a rowset should be: what flushes, loads and merging compactions aim at."""

from __future__ import annotations

from typing import Final

TARGET_BYTES: Final = 32 << 20
"""The size on disk of a rowset that a flush or a merge writes: Kudu's budgeted_compaction_target_rowset_size."""

DECODED_PER_TARGET: Final = 8
"""In memory, a rowset may take this many times the target size. A merge holds its rows in memory several
times, and data that compress much better than this make rowsets that are smaller on disk."""

TEXT_TARGET_BYTES: Final = 1 << 29
"""In memory, the text of one column of a rowset: base, REDO and UNDO. 32-bit offsets address four times as much. A
rowset may have 1.5 times this size, as of the target. A merge may hold twice the text of a rowset in one array while it
inverts changes, and it knows how much text there is by blocks, not by rows."""
