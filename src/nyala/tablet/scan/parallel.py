"""Runs work on many items in a pool of threads and returns the results in the items' order.

    items    i0        i1   i2   i3   i4 ...
             running   submitted: at most `ahead` results that the caller has not taken

All scans of the process share the threads. A scan that runs in one of these threads does its work
itself: if the pool's threads waited for one another, none would make progress.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

__all__ = ["AHEAD_MAX", "in_parallel"]

_Item = TypeVar("_Item")
_Out = TypeVar("_Out")

_THREADS: Final = max(1, os.cpu_count() or 1)
AHEAD_MAX: Final = 2 * _THREADS
"""Two per processor: one in work, and one ready."""
_NAME: Final = "nyala-scan"


class _Pool:
    """The threads of this process, created on first use and again after a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self._pid = 0

    def submit(self, work: Callable[[_Item], _Out], item: _Item) -> Future[_Out]:
        """Raises: RuntimeError at the end of the process, or if no thread can be started."""
        if self._pid != os.getpid():
            with self._lock:
                if self._pid != os.getpid():
                    self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix=_NAME)
                    self._pid = os.getpid()
        assert self._threads is not None
        return self._threads.submit(work, item)


_pool: Final = _Pool()


def in_parallel(
    items: Iterable[_Item], work: Callable[[_Item], _Out], ahead: int = AHEAD_MAX
) -> Iterator[_Out]:
    """Yield the results of `work` in the order of `items`; compute at most `ahead` in advance.

    The caller's thread iterates over `items`. An error of `items` or `work` is raised after the
    results of the items before it.
    """
    rest = iter(items)
    if ahead < 2 or threading.current_thread().name.startswith(_NAME):
        yield from map(work, rest)
        return
    try:
        first = next(rest)
    except StopIteration:
        return
    try:
        rest = itertools.chain((first, next(rest)), rest)
    except StopIteration:
        yield work(first)  # a thread costs more than most single items
        return
    except Exception:
        yield work(first)
        raise
    waiting: deque[Future[_Out]] = deque()
    try:
        while len(waiting) < ahead:
            try:
                item = next(rest)
            except StopIteration:
                break
            except Exception as error:  # raised after the results of the items before it
                failed: Future[_Out] = Future()
                failed.set_exception(error)
                waiting.append(failed)
                break
            waiting.append(_begun(work, item))
            if len(waiting) == ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def _begun(work: Callable[[_Item], _Out], item: _Item) -> Future[_Out]:
    try:
        return _pool.submit(work, item)
    except RuntimeError:  # the main thread has ended, or no thread can be started
        done: Future[_Out] = Future()
        try:
            done.set_result(work(item))
        except Exception as error:
            done.set_exception(error)
        return done
