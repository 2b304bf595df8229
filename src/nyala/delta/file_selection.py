"""Chooses the delta files of a rowset to merge next (minor delta compaction).

A rowset that changes every day gets one file per day, and a reader opens all files that its
snapshot needs. If every new file were merged at once, all records would be rewritten every day. If
files were never merged, there would be 365 files after a year. So a file is merged with all newer
files under two conditions: the newer files are together at least as large, and FILES_MIN files or
more are merged. If several files meet the conditions, the merge begins at the oldest of them. With
FILES_MIN = 4:

    sizes, oldest first     merge
    8  4  1 1 1             nothing: 8 > 4+1+1+1 and 4 > 1+1+1; three files are too few
    8  4  1 1 1 1           all into one file of 16: 8 <= 4+1+1+1+1

Invariants, for n flushes of about equal size
    C1  When no merge is due, there are at most FILES_MIN - 1 + log2(n) files. Each file before the
        newest FILES_MIN - 1 is larger than all files after it.
    C2  A record is rewritten at most 1 + log2(n) times: from its second merge on, each merge at least
        doubles the file that contains it.
    C3  Merged files are adjacent, so the files stay in the order of time.

Source: the logarithmic method (Bentley and Saxe, 1980). Kudu's minor compaction merges all files
instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

# Merging fewer files would not pay for a new file and a change of the catalogue: a reader opens them in
# a millisecond.
FILES_MIN: Final = 4


def first_file_to_merge(sizes_bytes: Sequence[int], files_min: int = FILES_MIN) -> int | None:
    """Return the position of the oldest file to merge; None if no merge is worthwhile.

    This file is merged with all newer files.

    sizes_bytes: the sizes of one rowset's files of one kind, oldest first.
    files_min: the fewest files to merge.
    """
    assert files_min >= 2, files_min
    chosen = None
    newer = 0
    for index in range(len(sizes_bytes) - 1, -1, -1):
        if len(sizes_bytes) - index >= files_min and sizes_bytes[index] <= newer:
            chosen = index
        newer += sizes_bytes[index]
    return chosen
