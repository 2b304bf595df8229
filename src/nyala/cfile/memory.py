"""Memory for decoded values: Arrow's, from the allocator that gives the same pages again soonest.

A scan fills a buffer of a megabyte per block and column, which its reader lets go of some milliseconds later. Pages
that go back to the system meanwhile have to be cleared for the next buffer, which takes longer than decoding into it.
Arrow's own choice, mimalloc, gives them back after 10 ms, in pieces of 2 MB; its jemalloc keeps them for a second, but
for those of its first arena, which it gives back at once (see `_hold_first_arena`). A second is less than a query that
joins tables takes with what it holds, and the next one then has its pages cleared again: so they stay for ten, which is
jemalloc's own rule (`_DECAY_MS`). Where a build of Arrow has no jemalloc, its own choice is taken.

Arrays over such buffers are Arrow arrays like any other: whoever has one frees it, from whichever thread.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["allocate", "pool", "scratch", "windows"]

WINDOW_ROWS: Final = 1 << 17
_WINDOW_BYTES: Final = 16 << 20
# How long freed pages stay with the process. TPC-H's 22 queries by polars, SF 1, cold: with 1 s 274,000 page faults and
# 3.35 to 3.43 s, with 10 s 147,000 and 3.13 to 3.20, never given back 139,000 and 2.98; peak memory 1,122 MB, 1,239 and
# 1,239 (2026-11-23, 2 cores, pyarrow 26.0.1, polars 2.1.0, Linux 6.18).
_DECAY_MS: Final = 10_000


@functools.cache
def pool() -> pa.MemoryPool:
    """Where decoded values lie."""
    try:
        found = pa.jemalloc_memory_pool()
    except NotImplementedError:
        return pa.default_memory_pool()
    _hold_first_arena(found)
    pa.jemalloc_set_decay_ms(_DECAY_MS)  # of all arenas, also of those to come
    return found


def _hold_first_arena(pool: pa.MemoryPool) -> None:
    """See to it that no thread that decodes gets jemalloc's arena 0, by a thread that has it and does nothing.

    A thread's arena is settled by its first allocation: the first thread gets arena 0, each later one the next, four
    for each processor. Arrow builds its jemalloc with `oversize_threshold:0`, which turns off a limit; but arena 0 is
    made before that is looked at, and takes 0 as the limit: all of 16 KB or more that is freed there goes back to the
    system at once. 200 buffers of 1 MB, filled and freed again and again, took 33,000 page faults each time in the
    first thread of a process and none in the second (2026-11-23, pyarrow 26.0.1, Linux 6.18; jemalloc 5.3,
    `extent_record`, `arena_boot`). The thread keeps 4 KB; in a child after a fork its arena still counts as taken.
    """
    held = threading.Event()

    def hold() -> None:
        kept = pa.allocate_buffer(1, memory_pool=pool)
        held.set()
        threading.Event().wait()
        del kept

    try:
        threading.Thread(target=hold, name="nyala-memory", daemon=True).start()
    except RuntimeError:
        return  # no thread can be started: memory costs more, no more than that
    held.wait()


def allocate(size_bytes: int) -> pa.Buffer:
    """A buffer to be filled by its caller, who then owns it."""
    return pa.allocate_buffer(size_bytes, memory_pool=pool())


def scratch(dtype: npt.DTypeLike, count: int) -> npt.NDArray[Any]:
    """Room for numbers on their way, as a NumPy array, of any content."""
    dtype = np.dtype(dtype)
    return np.frombuffer(allocate(count * dtype.itemsize), dtype)


def windows(count: int, row_bytes: float = 0.0) -> Iterator[tuple[int, int]]:
    """[lower, upper) of so many rows, one range after the other: each of 16 MB at the most, if a row takes `row_bytes`.

    For who goes through all rows of a file once, whatever its size: a check.
    """
    step = max(1, min(WINDOW_ROWS, int(_WINDOW_BYTES / max(row_bytes, 1.0))))
    for lower in range(0, count, step):
        yield lower, min(lower + step, count)
