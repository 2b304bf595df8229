"""Applied and published: what writers build on, and what readers see.

    timestamps --->
    ......|=================|.....................|
          published          applied               not given yet
    readers see up to here   writers resolve keys against this

Timestamps are given, logged and applied under one lock, so both marks only ever move up, in order, and a
snapshot is one number: it sees every batch with timestamp <= T (rules W1 and T2).

Invariants
    M1  published <= applied.
    M2  With durability "commit", published <= the newest timestamp that the log is synced through.
"""

from __future__ import annotations

import threading


class Watermarks:
    """The two marks of one open store. `advance_*` may be called from any thread."""

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
            assert timestamp >= self._applied, "M1: timestamps are applied in the order they were given"
            self._applied = timestamp

    def advance_published(self, timestamp: int) -> None:
        """Publish everything up to `timestamp`, or up to what is applied if that is less."""
        with self._lock:
            self._published = max(self._published, min(timestamp, self._applied))
