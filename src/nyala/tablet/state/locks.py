"""The two locks of an open store, and their order.

    flush_lock  before  commit_lock, always

`commit_lock` is held for the short middle of every write and install. `flush_lock` is held for a
whole flush or delta compaction, whose long part runs without the commit lock. A thread that holds
the commit lock must not wait for the flush lock.

No exception may leave a lock held, not even one that another thread raises at any line of this
thread. So both are locks of the interpreter: `with` cannot be interrupted between taking such a
lock and entering the block, or before the lock is released. A Python method could be. Work under
the commit lock must not stop halfway: `with Uninterrupted(), store.commit_lock:` delays Ctrl-C
until the lock is free.
"""

from __future__ import annotations

import _thread


class OwnedLock(_thread.RLock):  # type: ignore[misc]  # the stub says final, but subclassing works
    """A re-entrant lock that can say whether the current thread holds it."""

    def held(self) -> bool:
        """Whether the current thread holds the lock."""
        owned: bool = self._is_owned()  # type: ignore[attr-defined]
        return owned
