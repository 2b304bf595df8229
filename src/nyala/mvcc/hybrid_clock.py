"""The clock that gives every batch its timestamp: close to the wall clock, strictly increasing.

Invariants
    C1  next() is greater than every earlier timestamp, and than the initial `latest` (rule T1).
    C2  A wall clock that is behind `latest`, by any amount, does not stop writes: the logical part
        is incremented until the wall clock has caught up. So a store that was written under a wrong
        clock stays writable.
    C3  A wall clock that jumps ahead by more than a day while the store is open is rejected. The
        monotonic clock is the reference; it also counts the time that the machine slept.
    C4  The timestamp before each one of next() is not used by any other batch, and no reader has it
        as its moment. A row that is inserted there and deleted at the batch's own timestamp was never
        visible (a tombstone).

Called under the commit lock of the database; except for `now_us`, it is not thread-safe by itself.
Source: docs/design/kudu.md, "Clock". There is no error bound for several machines, because one
machine writes.
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
    """Creates timestamps.

    `latest` is the greatest one; it begins with that of the log and the catalogue.
    """

    def __init__(self, clock: Clock, latest: int = 0) -> None:
        self._clock = clock
        self.latest = latest
        self._warned = False
        # The greatest accepted difference between the wall clock and the monotonic clock. It never
        # shrinks: a clock that is set back and later set right has not jumped.
        self._offset_us = clock.now_us() - self._monotonic_us()

    def _monotonic_us(self) -> int:
        return round(self._clock.monotonic_s() * 1e6)

    def _jump_us(self, wall_us: int) -> int:
        """Return by how much the wall clock jumped ahead since the last accepted time; negative if
        it is behind.
        """
        return wall_us - self._monotonic_us() - self._offset_us

    def now_us(self) -> int:
        """Return the wall time without a rejected jump ahead (C3), which would expire data."""
        wall_us = self._clock.now_us()
        jump_us = self._jump_us(wall_us)
        return wall_us - jump_us if jump_us > FORWARD_BOUND_US else wall_us

    def reserve(self, count: int) -> int:
        """Return the first of `count` timestamps in a row that no later call returns.

        4,096 timestamps are one microsecond, so a million of them move the clock by 0.3 ms.
        Raises: as `next`.
        """
        first = self.next()
        self.latest = first + count - 1
        return first

    def next(self) -> int:
        """Return a timestamp greater than all before (C1).

        Raises: StorageError if the wall clock has jumped ahead by more than a day (C3), or at the
        end of timestamps; then nothing has changed.
        """
        wall_us = self._clock.now_us()
        jump_us = self._jump_us(wall_us)
        if jump_us > FORWARD_BOUND_US:
            raise StorageError(
                f"this machine's clock jumped ahead by {jump_us / 86_400e6:.1f} days to {_time(wall_us)} while the "
                "store was open; nothing was written. Set the clock right and write again; if it is right now, close "
                "the store and call connect() again"
            )
        # The timestamp before it stays free, for rows that a batch inserts and deletes (C4).
        timestamp = max(from_physical(wall_us), self.latest + 2)
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
