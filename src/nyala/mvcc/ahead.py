"""Interprets times of day while the clock is behind the store's newest timestamp.

    the clock was an hour ahead, and is right again:

    clock       10:00 ......... 10:05 ...................... 11:05
    timestamps  10:00  11:00+1  11:00+2  11:00+3  ...  11:00+9, 11:05

A batch that is acknowledged at 10:05 has a timestamp of 11:00. Taken literally,
`at=datetime.now(UTC)` would miss it until 11:00. So a time of day since the difference was noticed
means at least the newest timestamp of that period. It never misses an acknowledged batch, and may
include later batches of the same period. Timestamps and WriteResults stay exact.

There is one object per open store, and its state is not stored. Threads: any.
"""

from __future__ import annotations

from typing import Final

from nyala.mvcc.timestamp import from_physical, physical_us

# A caller reads the clock and uses the time a little later. So this much time before the difference
# was noticed is included, but never more than the difference itself.
GRACE_US: Final = 60_000_000


class AheadOfClock:
    """Remembers since when, and up to which timestamp, the store is ahead of the clock."""

    def __init__(self) -> None:
        self._seen: tuple[int, int] | None = None  # (wall time in timestamps, newest timestamp)

    def note(self, published: int, now_us: int) -> None:
        """Compare the newest timestamp with the clock."""
        ahead_us = physical_us(published) - now_us
        if ahead_us > 0:
            begin = self._seen[0] if self._seen else from_physical(max(now_us - min(ahead_us, GRACE_US), 0))
            self._seen = begin, published

    def covers(self, timestamp: int) -> bool:
        """Whether a time of day with this timestamp must be adjusted."""
        return self._seen is not None and self._seen[0] <= timestamp < self._seen[1]

    def resolve(self, timestamp: int) -> int:
        """Return the timestamp at which to read for a time of day with this timestamp."""
        return self._seen[1] if self._seen is not None and self.covers(timestamp) else timestamp
