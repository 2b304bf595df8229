"""Memory for decoded values: Arrow's jemalloc, which keeps freed pages for a while.

A scan fills a buffer of a megabyte per block and column, which its reader lets go of some milliseconds later. Pages
that go back to the system meanwhile have to be cleared for the next buffer, which takes longer than decoding into it.
Where a build of Arrow has no jemalloc, its default pool is taken.

Arrays over such buffers are Arrow arrays like any other: whoever has one frees it, from whichever thread.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["WINDOW_ROWS", "allocate", "pool", "scratch", "windows"]

WINDOW_ROWS: Final = 1 << 17
_WINDOW_BYTES: Final = 16 << 20
# How long freed pages stay with the process; jemalloc's own rule, which Arrow shortens to a second.
_DECAY_MS: Final = 10_000


@functools.cache
def pool() -> pa.MemoryPool:
    """Where decoded values lie."""
    try:
        found = pa.jemalloc_memory_pool()
    except NotImplementedError:
        return pa.default_memory_pool()
    pa.jemalloc_set_decay_ms(_DECAY_MS)
    return found


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
