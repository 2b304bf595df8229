"""Memory for decoded values: Arrow's jemalloc pool, which keeps freed pages for ten seconds.

A scan fills a buffer of a megabyte per block and column, and frees it some milliseconds later. If
the pages went back to the system, the system would clear them for the next buffer, which takes
longer than decoding. Builds of Arrow without jemalloc use Arrow's default pool.

Arrays over these buffers are ordinary Arrow arrays: any thread may free them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_RANGE_ROWS_MAX: Final = 1 << 17
_RANGE_BYTES_MAX: Final = 16 << 20
# How long freed pages stay with the process. This is jemalloc's default, which Arrow shortens to
# one second.
_DECAY_MS: Final = 10_000


@functools.cache
def pool() -> pa.MemoryPool:
    """Return the memory pool of decoded values."""
    try:
        jemalloc = pa.jemalloc_memory_pool()
    except NotImplementedError:
        return pa.default_memory_pool()
    pa.jemalloc_set_decay_ms(_DECAY_MS)
    return jemalloc


def allocate(size_bytes: int) -> pa.Buffer:
    """Allocate a buffer from the pool. Its content is undefined."""
    return pa.allocate_buffer(size_bytes, memory_pool=pool())


def scratch(dtype: npt.DTypeLike, count: int) -> npt.NDArray[Any]:
    """Allocate a NumPy array from the pool. Its content is undefined."""
    dtype = np.dtype(dtype)
    return np.frombuffer(allocate(count * dtype.itemsize), dtype)


def row_ranges(count: int, row_bytes: float = 0.0) -> Iterator[tuple[int, int]]:
    """Divide `count` rows into ranges of at most 16 MB, and yield each as (lower, upper).

    For checks, which read a file range by range.

    row_bytes: the average size of a row.
    """
    step = max(1, min(_RANGE_ROWS_MAX, int(_RANGE_BYTES_MAX / max(row_bytes, 1.0))))
    for lower in range(0, count, step):
        yield lower, min(lower + step, count)
