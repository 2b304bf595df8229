"""Chooses the delta files of a rowset to merge next. Pure: sizes in, a plan out.

A rowset that changes every day gets one file per day, and a reader opens all files that its
snapshot needs. Merging all files whenever there are two would rewrite the oldest record every day.
Never merging leaves 365 files. The rule is that of a binary counter: files are listed oldest first,
and from the oldest file that is no larger than all newer ones together, everything is merged.

    sizes   8  4  1 1 1      nothing: 8 > 7, 4 > 3, and the last three are too few
            8  4  1 1 1 1    4 <= 4 and 8 <= 8: merge all into 16

Invariants, for n flushes of about equal size
    C1  If nothing is to be merged, there are at most FILES_MIN - 1 + log2(n) files: each file
        before the newest ones is larger than all files after it.
    C2  A record is rewritten at most 1 + log2(n) times: after its first merge, each further one at
        least doubles the file that contains it.
    C3  Merged files are adjacent, so the result keeps R4 (stores in time order).

Source: the logarithmic method (Bentley and Saxe, 1980). Kudu's minor compaction merges all files
instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

# Merging fewer files is not worth a file and a catalogue change: a reader opens them in a
# millisecond.
FILES_MIN: Final = 4


def choose_redo_files(files: Sequence[tuple[int, int]], files_min: int = FILES_MIN) -> slice | None:
    """Return the files to merge into one, as a slice of `files`; None if merging does not pay.

    files: (bytes, records) of one rowset's files of one kind, oldest first.
    """
    assert files_min >= 2, files_min
    chosen = None
    newer = 0
    for index in range(len(files) - 1, -1, -1):
        size, _ = files[index]
        if len(files) - index >= files_min and size <= newer:
            chosen = index
        newer += size
    return None if chosen is None else slice(chosen, len(files))
