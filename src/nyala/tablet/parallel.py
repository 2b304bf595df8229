"""Work on many items by the process's threads, with results in the items' order.

    items    i0   i1   i2 | i3   i4   i5 ...        a line: of one caller
             done  at it  |                         taken in their order, each by whoever is free next
             ^given out                             at most `ahead` are taken and not let go by the caller

A thread that is at a line goes on with it as long as there are items and room: it is not woken for each. The threads
are shared by all lines of the process, and made when first asked for. Who wants a result takes part: what no thread has
begun he does himself, so a scan goes on also where all threads are busy, or none can be had.

Source: decision 0048.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

__all__ = ["ahead_max", "in_parallel"]

_Item = TypeVar("_Item")
_Out = TypeVar("_Out")

_pools: dict[bool, ThreadPoolExecutor] = {}
_pools_pid = 0


def _worker_count(alone: bool) -> int:
    """One for each processor; but one less where who reads a scan decodes too, rather than wait for a thread to be
    woken."""
    return max(1, (os.cpu_count() or 1) - (not alone))


def _workers(alone: bool) -> ThreadPoolExecutor:
    """Threads that decode, shared by all scans of the process; made anew after a fork."""
    global _pools, _pools_pid
    if _pools_pid != os.getpid():
        _pools, _pools_pid = {}, os.getpid()
    if alone not in _pools:
        _pools[alone] = ThreadPoolExecutor(_worker_count(alone), thread_name_prefix="nyala-scan")
    return _pools[alone]


def in_parallel(
    items: Iterable[_Item],
    work: Callable[[_Item], _Out],
    ahead: int | None = None,
    *,
    helping: bool = False,
    alone: bool = False,
) -> Iterator[_Out]:
    """Results of `work` in the order of `items`, at most `ahead` of them in memory, that which the consumer has
    included; None: two for each processor. What no thread has begun when it is wanted, the consumer does.

    items:   asked for the next by one thread at a time, but by any. What they raise comes in its turn.
    helping: while a thread is at what is wanted, the consumer does one that is wanted later; for consumers that
             would do nothing else, of work that threads gain by.
    alone:   a thread for each processor, for consumers that only pass on what they get.
    """
    iterator = iter(items)
    try:
        first = next(iterator)
    except StopIteration:
        return
    try:
        second = next(iterator)
    except StopIteration:
        yield work(first)  # by nobody else: a thread costs more than most items that are alone
        return
    except Exception:
        yield work(first)  # whose turn comes before that of the error
        raise
    pieces = itertools.chain((first, second), iterator)
    yield from _Line(pieces, work, ahead or ahead_max(), helping, alone).results()


def ahead_max() -> int:
    """Two for each processor: one that is worked on, and one that is ready."""
    return 2 * (os.cpu_count() or 1)


class _Place(Generic[_Out]):
    """What becomes of one item. It is filled once, by the thread that took the item."""

    __slots__ = ("_empty", "_error", "_results")

    def __init__(self) -> None:
        self._empty = threading.Lock()  # held until it is filled: it costs a tenth of an Event
        self._empty.acquire()
        self._results: list[_Out] = []  # one, from when it is filled until it is taken
        self._error: BaseException | None = None

    @property
    def is_filled(self) -> bool:
        return not self._empty.locked()

    def fill(self, result: _Out) -> None:
        self._results.append(result)
        self._empty.release()

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._empty.release()

    def taken(self) -> _Out:
        """What the work came to, once; waits for it. Raises: what the work raised."""
        self._empty.acquire()
        if self._error is not None:
            raise self._error
        return self._results.pop()


class _Line(Generic[_Item, _Out]):
    """The items of one caller of `in_parallel`."""

    def __init__(
        self,
        items: Iterator[_Item],
        work: Callable[[_Item], _Out],
        ahead: int,
        helping: bool,
        alone: bool,
    ) -> None:
        self._items = items
        self._work = work
        self._ahead = ahead
        self._helping = helping
        self._alone = alone
        self._workers_max = _worker_count(alone)
        self._lock = threading.Lock()  # of what follows, and of `items`
        # Of the items that were taken, without those that the caller let go; the first is what he has, or wants next.
        self._places: deque[_Place[_Out]] = deque()
        self._is_over = False  # there are no more items, or nobody wants them
        self._at_it = 0  # workers that are at this line, or will be as soon as they are free

    def results(self) -> Iterator[_Out]:
        try:
            while (place := self._oldest()) is not None:
                yield place.taken()
                self._places.popleft()  # only now: what the caller has counts
        finally:
            # Without the lock: the collector may end this in a thread that has it.
            self._is_over = True

    def _oldest(self) -> _Place[_Out] | None:
        """The place that is wanted next; it is filled here if nobody has begun it. None: there are no more."""
        with self._lock:
            taken = None if self._places else self._take()
            if not self._places:
                return None
            oldest = self._places[0]
            # Who works here is one of as many as there are processors, unless he only helps.
            wanted = self._wanted(self._workers_max - (self._alone and taken is not None))
            self._at_it += wanted
        self._call(wanted)
        if taken is not None:
            self._do(*taken)
        while self._helping and not oldest.is_filled:
            with self._lock:
                taken = self._take()
            if taken is None:
                break
            self._do(*taken)
        return oldest

    def _wanted(self, most: int) -> int:
        """How many more workers there is room for, if there shall be so many. Caller: has the lock."""
        room = 0 if self._is_over else self._ahead - len(self._places)
        return max(0, min(most - self._at_it, room))

    def _call(self, count: int) -> None:
        """Have so many workers come to this line, which are counted as being at it."""
        try:
            for _ in range(count):
                _workers(self._alone).submit(self._run)
        except RuntimeError:
            # The main thread has ended, and with it the pool, while this one still reads; or no thread can be started.
            self._workers_max = 0

    def _run(self) -> None:
        """A worker's part: until there is no more room."""
        while True:
            with self._lock:
                taken = self._take()
                if taken is None:
                    self._at_it -= 1
                    return
            self._do(*taken)

    def _take(self) -> tuple[_Place[_Out], _Item] | None:
        """The next item, which who calls this has to do; None: there is none, or no room. Caller: has the lock."""
        if self._is_over or len(self._places) >= self._ahead:
            return None
        place: _Place[_Out] = _Place()
        try:
            item = next(self._items)
        except StopIteration:
            self._is_over = True
            return None
        except BaseException as error:
            self._is_over = True
            place.fail(error)
            self._places.append(place)
            return None
        self._places.append(place)
        return place, item

    def _do(self, place: _Place[_Out], item: _Item) -> None:
        try:
            result = self._work(item)
        except BaseException as error:
            place.fail(error)
        else:
            place.fill(result)
