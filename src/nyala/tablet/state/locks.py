"""The two locks of an open store, and their order.

    flush_lock  before  commit_lock, always

`commit_lock` is held for the short middle of every write and every install; `flush_lock` for a whole flush
or delta compaction, whose long part runs without the commit lock. A thread that already holds the commit
lock must not wait for the flush lock.

No exception may leave a lock taken, also none that another thread raises at any line of this one. So both are locks of
the interpreter's own: `with` on them cannot be interrupted between taking the lock and entering the block, nor before
the lock is given back. A method written in Python could be. What is done under the commit lock is done whole:
`with Uninterrupted(), store.commit_lock:` holds Ctrl-C back until the lock is free.
"""

from __future__ import annotations

import _thread


class OwnedLock(_thread.RLock):  # type: ignore[misc]  # it may be inherited from, whatever its stub says
    """A re-entrant lock that knows whether the asking thread holds it."""

    def held(self) -> bool:
        """Does this thread hold the lock?"""
        owned: bool = self._is_owned()  # type: ignore[attr-defined]
        return owned
