"""The two locks of an open store, and their order.

    flush_lock  before  commit_lock, always

`commit_lock` is held for the short middle of every write and every install; `flush_lock` for a whole flush
or delta compaction, whose long part runs without the commit lock. A thread that already holds the commit
lock must not wait for the flush lock.

A `KeyboardInterrupt` must not leave a lock taken. So both are locks of the interpreter's own (`with` on them cannot be
interrupted between taking the lock and entering the block), and the commit lock holds Ctrl-C back until it is free.
"""

from __future__ import annotations

import _thread
from types import TracebackType

from nyala.env.interrupts import Uninterrupted


class OwnedLock(_thread.RLock):  # type: ignore[misc]  # it may be inherited from, whatever its stub says
    """A re-entrant lock that knows whether the asking thread holds it."""

    def held(self) -> bool:
        """Does this thread hold the lock?"""
        owned: bool = self._is_owned()  # type: ignore[attr-defined]
        return owned


_UNINTERRUPTED = Uninterrupted()


class CommitLock:
    """An `OwnedLock` under which no KeyboardInterrupt is raised: what is done under it is done whole."""

    def __init__(self) -> None:
        self._lock = OwnedLock()

    def __enter__(self) -> CommitLock:
        _UNINTERRUPTED.__enter__()
        self._lock.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()
        _UNINTERRUPTED.__exit__(kind, error, trace)

    def held(self) -> bool:
        """Does this thread hold the lock?"""
        return self._lock.held()
