"""The two watermarks of a store: writers build on `applied`, readers see up to `published`.

    timestamps  0 ............ published ........... applied .......... future

A batch is *applied* when it is in the memory of the tablets, and *published* when readers may see
it. A snapshot is one timestamp T: it sees every batch with a timestamp ≤ T.
Timestamps are given, logged and applied under the commit lock, so both watermarks only increase.

Invariants
    M1  published <= applied.
    M2  With durability "commit", published <= the newest timestamp through which the log is synced.
"""

from __future__ import annotations

import threading


class Watermarks:
    """Two timestamps of an open store, which only increase. Thread-safe.

    applied:   the newest batch that is in the memory of the tablets.
    published: the newest batch that readers may see; never above `applied`.
    """

    def __init__(self, timestamp: int = 0) -> None:
        self._lock = threading.Lock()
        self._applied = timestamp
        self._published = timestamp

    @property
    def applied(self) -> int:
        return self._applied

    @property
    def published(self) -> int:
        return self._published

    def advance_applied(self, timestamp: int) -> None:
        with self._lock:
            assert timestamp >= self._applied, "M1: timestamps must be applied in order"
            self._applied = timestamp

    def advance_published(self, timestamp: int) -> None:
        """Raise `published` to `timestamp`, but not above `applied`. Never lower it."""
        with self._lock:
            self._published = max(self._published, min(timestamp, self._applied))
