"""The watermarks applied and published: what writers build on, and what readers see.

    timestamps --->
    ......|=================|.....................|
          published          applied               not given yet
    readers see up to here   writers resolve keys against this

Timestamps are given, logged and applied under one lock, so both watermarks only increase. A
snapshot is one number T: it sees every batch with timestamp <= T (rules W1 and T2).

Invariants
    M1  published <= applied.
    M2  With durability "commit", published <= the newest timestamp through which the log is synced.
"""

from __future__ import annotations

import threading


class Watermarks:
    """The two watermarks of one open store. Any thread may call `advance_*`."""

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
        """Publish everything up to `timestamp`, but not more than is applied."""
        with self._lock:
            self._published = max(self._published, min(timestamp, self._applied))
