"""The clock that gives every batch its timestamp: close to the wall clock, strictly increasing.

Invariants
    C1  next() is greater than every earlier timestamp, and than the initial `latest`.
    C2  Writes continue if the wall clock is behind `latest` by any amount: next() increments the
        logical part until the wall clock has caught up. So a store that was written under a wrong
        clock stays writable.
    C3  next() raises an error if the wall clock jumps ahead by more than a day while the store is
        open. The monotonic clock shows the jump; it also counts the time that the machine slept.
    C4  If next() returns t, no other batch has the timestamp t - 1, and no reader reads at t - 1.
        So the batch of t can store a row that is never visible (a tombstone). The row is recorded
        as inserted at t - 1 and deleted at t.

The callers hold the commit lock of the database. Only `now_us` may be called without a lock.
Source: docs/design/kudu.md, "Clock"; docs/design/rules.md, T1. Kudu's error bound between machines
is left out, because only one machine writes.
"""

from __future__ import annotations

import logging

from nyala.env.clock import Clock
from nyala.errors import StorageError
from nyala.mvcc.timestamp import TIMESTAMP_MAX, from_physical, physical_us, to_datetime

logger = logging.getLogger("nyala.clock")

FORWARD_BOUND_US = 24 * 3600 * 1_000_000
# Smaller steps happen on every machine that synchronizes its time by NTP.
_WARN_AFTER_US = 1_000_000


class HybridClock:
    """Creates timestamps. `latest` is the greatest timestamp of the store so far."""

    def __init__(self, clock: Clock, latest: int = 0) -> None:
        self._clock = clock
        self.latest = latest
        self._warned = False
        # The greatest accepted difference between the wall clock and the monotonic clock. It never
        # shrinks, so a clock that is set back and later corrected does not count as a jump.
        self._offset_us = clock.now_us() - self._monotonic_us()

    def _monotonic_us(self) -> int:
        return round(self._clock.monotonic_s() * 1e6)

    def _jump_us(self, wall_us: int) -> int:
        """Return by how many microseconds the wall clock is ahead of the expected time.

        The expected time is computed from the monotonic clock. Negative: the wall clock is behind.

        wall_us: the wall clock, in microseconds since 1970.
        """
        return wall_us - self._monotonic_us() - self._offset_us

    def now_us(self) -> int:
        """Return the wall time in microseconds since 1970.

        If the wall clock jumped ahead by more than a day, the jump is left out, because it would
        expire history.
        """
        wall_us = self._clock.now_us()
        jump_us = self._jump_us(wall_us)
        return wall_us - jump_us if jump_us > FORWARD_BOUND_US else wall_us

    def reserve(self, count: int) -> int:
        """Reserve `count` consecutive timestamps, and return the first.

        A microsecond has 4,096 timestamps, so a million timestamps move the clock by 0.25 ms.
        Raises: the errors of `next`.
        """
        first = self.next()
        self.latest = first + count - 1
        return first

    def next(self) -> int:
        """Return a timestamp that is greater than all earlier ones of this store.

        Raises: StorageError if the wall clock jumped ahead by more than a day, or if the last
                possible timestamp is used up. The clock's state then stays as before.
        """
        wall_us = self._clock.now_us()
        jump_us = self._jump_us(wall_us)
        if jump_us > FORWARD_BOUND_US:
            raise StorageError(
                f"this machine's clock jumped ahead by {jump_us / 86_400e6:.1f} days to {_time(wall_us)} while the "
                "store was open; nothing was written. Set the clock right and write again; if the new time is "
                "correct, close the store and call connect() again"
            )
        timestamp = max(from_physical(wall_us), self.latest + 2)  # + 2: C4
        if timestamp >= TIMESTAMP_MAX:
            raise StorageError(
                f"this machine's clock says {_time(wall_us)}, but the timestamps of a store end at "
                f"{to_datetime(TIMESTAMP_MAX).isoformat(timespec='seconds')}; nothing was written. Set the clock right"
            )
        if jump_us > _WARN_AFTER_US:
            logger.warning("the clock jumped ahead by %.1f s", jump_us / 1e6)
        self._offset_us += max(jump_us, 0)
        behind_us = physical_us(self.latest) - wall_us
        if behind_us > _WARN_AFTER_US and not self._warned:
            self._warned = True
            logger.warning(
                "the clock stepped back by %.1f s; timestamps continue from the newest one until it has caught up",
                behind_us / 1e6,
            )
        self.latest = timestamp
        return timestamp


def _time(us: int) -> str:
    return to_datetime(from_physical(us)).isoformat(timespec="seconds")
