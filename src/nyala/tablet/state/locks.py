"""The two locks of an open store.

commit_lock   held for a short time, while a write changes the state or a new root is installed
flush_lock    held during a whole flush; a compaction holds it only while it reserves its rowsets
              and, for a merge, flushes their changes. Other work that must exclude a flush holds it
              too, such as a direct commit

A thread that needs both takes `flush_lock` first. A thread that has `commit_lock` must not wait for
`flush_lock`.

Ctrl-C may raise an exception between any two lines, and must never leave a lock held. So both locks
are Python's built-in `RLock`: `with lock:` takes it and enters the block without interruption. A
lock class written in Python could be interrupted in between. Work under the commit lock must not
stop halfway, so `with Uninterrupted(), store.commit_lock:` delays Ctrl-C until the lock is free.
"""

from __future__ import annotations

import _thread


class OwnedLock(_thread.RLock):  # type: ignore[misc]  # the stub says final, but subclassing works
    """A re-entrant lock that also says whether the current thread holds it."""

    def held(self) -> bool:
        """Whether the current thread holds the lock."""
        owned: bool = self._is_owned()  # type: ignore[attr-defined]
        return owned
