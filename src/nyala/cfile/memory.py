"""Memory for decoded values: Arrow's, from the allocator that gives the same pages again soonest.

A scan fills a buffer of a megabyte per block and column, which its reader lets go of some milliseconds later. Pages
that go back to the system meanwhile have to be cleared for the next buffer, which takes longer than decoding into it.
Arrow's own choice, mimalloc, gives them back after 10 ms, in pieces of 2 MB; its jemalloc keeps them for a second, but
for those of its first arena, which it gives back at once (see `_hold_first_arena`). A second is less than a query that
joins tables takes with what it holds, and the next one then has its pages cleared again: so they stay for ten, which is
jemalloc's own rule (`_DECAY_MS`). Where a build of Arrow has no jemalloc, its own choice is taken.

Of very many columns that is the wrong memory. jemalloc puts buffers that are freed side by side together, and cuts of
that nothing for who asks for less than a 64th of it (`lg_extent_max_active_fit`): a window of hundreds of columns comes
to lie in new pages each time, and those of the windows before stay for ten seconds. So while such a window is read
(`of_columns`), what its thread decodes lies where Arrow puts it by itself.

What other libraries take of the C library's memory for a call, aligned, and give back, glibc may not use again where
something that stays lies between; so it is asked now and then to give such holes to the system (`took`).

Arrays over such buffers are Arrow arrays like any other: whoever has one frees it, from whichever thread.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["WINDOW_ROWS", "allocate", "of_columns", "pool", "scratch", "took", "windows"]

WINDOW_ROWS: Final = 1 << 17
_WINDOW_BYTES: Final = 16 << 20
# How long freed pages stay with the process. TPC-H's 22 queries by polars, SF 1, cold: with 1 s 274,000 page faults and
# 3.35 to 3.43 s, with 10 s 147,000 and 3.13 to 3.20, never given back 139,000 and 2.98; peak memory 1,122 MB, 1,239 and
# 1,239 (2026-11-23, 2 cores, pyarrow 26.0.1, polars 2.1.0, Linux 6.18).
_DECAY_MS: Final = 10_000
# So many threads are started at the most, of which all but two end at once: 3 ms for those of two processors.
_ARENAS_FEW: Final = 32
_SETTLING: Final = threading.Lock()
# Half of jemalloc's 64. 201 columns, `memory_limit` 64 MB, scanned again and again: 1,115 MB of memory at the most in
# jemalloc, of which 69 were in use, and 214 in mimalloc, in 0.9 of the time; 16 columns 159 and 208 MB (2026-11-23,
# 2 cores, pyarrow 26.0.1, Linux 6.18).
_MANY_COLUMNS: Final = 32


class _Here(threading.local):
    """Of one thread: whether it reads very many columns."""

    is_wide = False


_here: Final = _Here()


@contextmanager
def of_columns(count: int) -> Iterator[None]:
    """While this thread decodes so many columns of the same rows."""
    before, _here.is_wide = _here.is_wide, count > _MANY_COLUMNS
    try:
        yield
    finally:
        _here.is_wide = before


def pool() -> pa.MemoryPool:
    """Where decoded values lie."""
    return pa.default_memory_pool() if _here.is_wide else _kept_pool()


@functools.cache
def _kept_pool() -> pa.MemoryPool:
    with _SETTLING:  # or two threads that decode the first blocks would each take the arenas apart
        return _settled_pool()


@functools.cache
def _settled_pool() -> pa.MemoryPool:
    try:
        found = pa.jemalloc_memory_pool()
    except NotImplementedError:
        return pa.default_memory_pool()
    _hold_first_arena(found)
    return found


def _hold_first_arena(pool: pa.MemoryPool) -> None:
    """See to it that no thread that decodes gets jemalloc's arena 0, by threads that have it and do nothing; and that
    the other arenas keep pages for `_DECAY_MS`.

    A thread's arena is settled by its first allocation: the first thread gets arena 0, each later one the next, four
    for each processor, and when all have one, the arena that fewest have, arena 0 first. Arrow builds its jemalloc with
    `oversize_threshold:0`, which turns off a limit; but arena 0 is made before that is looked at, and takes 0 as the
    limit: all of 16 KB or more that is freed there goes back to the system at once. 200 buffers of 1 MB, filled and
    freed again and again, took 33,000 page faults each time in the first thread of a process and none in the second
    (2026-11-23, pyarrow 26.0.1, Linux 6.18; jemalloc 5.3, `extent_record`, `arena_boot`, `arena_choose_hard`).

    So two threads hold it, the first and the first that comes to it again, and those between end. Beside polars there
    are more than eight threads: with one, 178,000 page faults in its 22 queries, with two 131,000 to 134,000, with four
    no fewer. Where there are many processors one will do, and with it no crowd has to be started. Each keeps 4 KB; in a
    child after a fork its arena still counts as taken.
    """
    arenas = 4 * (os.cpu_count() or 1)
    last = arenas if arenas <= _ARENAS_FEW else 0
    ended = threading.Event()
    passing = []
    for number in range(last + 1):
        begun = threading.Event()
        stays = number in (0, last)
        until = threading.Event() if stays else ended
        holder = threading.Thread(target=_hold, args=(pool, begun, until), name="nyala-memory", daemon=True)
        try:
            holder.start()
        except RuntimeError:
            break  # no thread can be started: memory costs more, no more than that
        begun.wait()
        if not stays:
            passing.append(holder)
    ended.set()
    for holder in passing:
        holder.join()


def _hold(pool: pa.MemoryPool, begun: threading.Event, until: threading.Event) -> None:
    """Have an arena of the pool's as long as the event is not set."""
    kept = pa.allocate_buffer(1, memory_pool=pool)
    # Of arenas that are made from now on; here, as who calls this has an arena from then on, too.
    pa.jemalloc_set_decay_ms(_DECAY_MS)
    begun.set()
    until.wait()
    del kept


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


# So much is decoded between two looks for holes, in 60 ms. One look takes 0.1 ms where there are none, else about 5.
_TRIM_BYTES: Final = 128 << 20


class _Taken:
    """What calls of others took since the last look. Threads may lose one another's, which does no harm."""

    size_bytes = 0


def took(size_bytes: int) -> None:
    """A call of another library has come to its end that took memory of the C library's in the measure of these bytes.

    200 columns of doubles, bit-shuffled by Blosc, which takes memory for each call: read to the end by `to_arrow`, 598
    MB of values, the process grew by 5,588 MB at `memory_limit` 16 MB, in 7.7 s, and by 930 with this, in 6.3 to 7.6;
    at 1 GB by 1,012 and 498, in 0.45 and 0.50 (2026-11-23, 2 cores, glibc 2.36, numcodecs 0.16.6, Linux 6.18).
    """
    _Taken.size_bytes += size_bytes
    if _Taken.size_bytes >= _TRIM_BYTES:
        _Taken.size_bytes = 0
        trim = _trim()
        if trim is not None:
            trim(0)


@functools.cache
def _trim() -> Callable[[int], int] | None:
    """glibc's `malloc_trim`; None where the C library has none."""
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None
    return found
