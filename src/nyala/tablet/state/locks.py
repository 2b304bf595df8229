"""The two locks of an open store.

commit_lock   held while a write or an install changes the state, which is short
flush_lock    held during a whole flush or delta compaction

A thread that needs both takes `flush_lock` first. A thread that has `commit_lock` must not wait for
`flush_lock`.

An exception must never leave a lock held, also if Ctrl-C raises it between two lines. So both are
locks of the interpreter: `with lock:` cannot be interrupted between taking the lock and entering
the block. A method written in Python could be interrupted there. Work under the commit lock must
not stop halfway, so `with Uninterrupted(), store.commit_lock:` delays Ctrl-C until the lock is
free.
"""

from __future__ import annotations

import _thread


class OwnedLock(_thread.RLock):  # type: ignore[misc]  # the stub says final, but subclassing works
    """A re-entrant lock with the method `held`."""

    def held(self) -> bool:
        """Whether the current thread holds the lock."""
        owned: bool = self._is_owned()  # type: ignore[attr-defined]
        return owned
