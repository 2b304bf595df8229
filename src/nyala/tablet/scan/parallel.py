"""Runs work on many items in a pool of threads and returns the results in the items' order.

    items    i0        i1   i2   i3   i4 ...
             running   submitted: at most `ahead` results that the caller has not taken

All scans of the process share the threads. A scan that starts in one of these threads runs in this
thread alone. Otherwise all threads could wait for results, and none would be left to compute them.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final, NoReturn, TypeVar

_Item = TypeVar("_Item")
_Out = TypeVar("_Out")

_THREADS: Final = max(1, os.cpu_count() or 1)
AHEAD_MAX: Final = 2 * _THREADS
"""The most results that are computed or ready: two per processor."""
_NAME: Final = "nyala-scan"


class _Pool:
    """The threads of this process, created on first use and again after a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self._pid = 0

    def submit(self, call: Callable[[], _Out]) -> Future[_Out]:
        """Run `call` in a thread of the pool, and return at once a future for its result.

        Raises: RuntimeError at the end of the process, or if no thread can be started.
        """
        if self._pid != os.getpid():
            with self._lock:
                if self._pid != os.getpid():
                    self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix=_NAME)
                    self._pid = os.getpid()
        assert self._threads is not None
        return self._threads.submit(call)


_pool: Final = _Pool()


def in_parallel(
    items: Iterable[_Item], work: Callable[[_Item], _Out], ahead: int = AHEAD_MAX
) -> Iterator[_Out]:
    """Yield the results of `work` in the order of `items`; compute at most `ahead` in advance.

    The caller's thread iterates over `items`. If `items` or `work` raises an error, the results of
    the earlier items are yielded first.
    """
    if ahead < 2 or threading.current_thread().name.startswith(_NAME):
        yield from map(work, items)
        return
    calls = _calls(items, work)
    first = list(itertools.islice(calls, 2))
    if len(first) < 2:  # a thread costs more than most single items
        yield from (call() for call in first)
        return
    waiting: deque[Future[_Out]] = deque()
    try:
        for call in itertools.chain(first, calls):
            waiting.append(_begun(call))
            if len(waiting) == ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def _calls(items: Iterable[_Item], work: Callable[[_Item], _Out]) -> Iterator[Callable[[], _Out]]:
    """Yield a function for each item that calls `work` with the item.

    If `items` raises an error, the last function raises it.
    """
    try:
        for item in items:
            yield partial(work, item)
    except Exception as error:
        yield partial(_raise, error)


def _raise(error: Exception) -> NoReturn:
    raise error


def _begun(call: Callable[[], _Out]) -> Future[_Out]:
    """Start `call` in a thread of the pool, and return a future for its result.

    If the pool cannot start a thread, run `call` in this thread, and return its result as a future.
    """
    try:
        return _pool.submit(call)
    except RuntimeError:  # the main thread has ended, or no thread can be started
        done: Future[_Out] = Future()
        try:
            done.set_result(call())
        except Exception as error:
            done.set_exception(error)
        return done
