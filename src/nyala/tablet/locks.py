"""The two locks of an open store, and their order.

    flush_lock  before  commit_lock, always

`commit_lock` is held for the short middle of every write and every install; `flush_lock` for a whole flush
or delta compaction, whose long part runs without the commit lock. A thread that already holds the commit
lock must not wait for the flush lock.
"""

from __future__ import annotations

import threading
from types import TracebackType


class OwnedLock:
    """A re-entrant lock that knows whether the asking thread holds it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._owner: int | None = None
        self._depth = 0

    def __enter__(self) -> OwnedLock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def acquire(self, timeout_s: float = -1) -> bool:
        if not self._lock.acquire(timeout=timeout_s):
            return False
        self._owner = threading.get_ident()
        self._depth += 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
        self._lock.release()

    def held(self) -> bool:
        """Does this thread hold the lock?"""
        return self._owner == threading.get_ident()
