"""Work on many items by the process's threads, with results in the items' order.

The threads are shared by all scans of the process, and made when first asked for. Who wants a result takes part: what
no thread has begun he does himself, so a scan goes on also where no thread can be had.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["ahead_max", "in_parallel"]

_Item = TypeVar("_Item")
_Out = TypeVar("_Out")

_pools: dict[bool, ThreadPoolExecutor] = {}
_pools_pid = 0


def _workers(alone: bool) -> ThreadPoolExecutor:
    """Threads that decode, shared by all scans of the process; made anew after a fork.

    One for each processor; but one less where who reads a scan decodes too, rather than wait for a thread to be woken.
    """
    global _pools, _pools_pid
    if _pools_pid != os.getpid():
        _pools, _pools_pid = {}, os.getpid()
    if alone not in _pools:
        count = (os.cpu_count() or 1) - (not alone)
        _pools[alone] = ThreadPoolExecutor(max(1, count), thread_name_prefix="nyala-scan")
    return _pools[alone]


def _start(work: Callable[[_Item], _Out], item: _Item, alone: bool) -> Future[_Out]:
    """Have a worker do it; or do it here, when there can be none."""
    try:
        return _workers(alone).submit(work, item)
    except RuntimeError:
        # The main thread has ended, and with it the pool, while this one still reads; or no thread can be started.
        return _done(work, item)


def _done(work: Callable[[_Item], _Out], item: _Item) -> Future[_Out]:
    """Do it here, and keep what comes of it."""
    done: Future[_Out] = Future()
    try:
        done.set_result(work(item))
    except Exception as error:
        done.set_exception(error)
    return done


def in_parallel(
    items: Iterable[_Item],
    work: Callable[[_Item], _Out],
    ahead: int | None = None,
    *,
    helping: bool = False,
    alone: bool = False,
) -> Iterator[_Out]:
    """Results of `work` in the order of `items`, at most `ahead` of them ahead of the consumer (so memory stays
    bounded); None: two for each processor. What no thread has begun when it is wanted, the consumer does.

    helping: while a thread is at what is wanted, the consumer does one that is wanted later; for consumers that
             would do nothing else, of work that threads gain by.
    alone:   a thread for each processor, for consumers that only pass on what they get.
    """
    iterator = iter(items)
    first = next(iterator, None)
    if first is None:
        return
    second = next(iterator, None)
    if second is None:
        yield work(first)
        return
    ahead = ahead or ahead_max()
    running: deque[tuple[Future[_Out], _Item]] = deque()

    def oldest() -> _Out:
        future, item = running.popleft()
        if future.cancel():
            return work(item)
        while helping and not future.done():
            later = next((place for place, (other, _) in enumerate(running) if other.cancel()), None)
            if later is None:
                break
            running[later] = _done(work, running[later][1]), running[later][1]
        return future.result()

    try:
        for item in itertools.chain((first, second), iterator):
            if len(running) >= ahead:
                yield oldest()
            running.append((_start(work, item, alone), item))
        while running:
            yield oldest()
    finally:
        for future, _ in running:
            future.cancel()


def ahead_max() -> int:
    """Two for each processor: one that is worked on, and one that is ready."""
    return 2 * (os.cpu_count() or 1)
