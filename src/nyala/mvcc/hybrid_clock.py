"""The clock that gives every batch its timestamp: close to the wall clock, never twice, never backwards.

Invariants
    C1  next() is greater than every timestamp given before it, and than the `latest` that it began with (rule T1).
    C2  A wall clock that is behind `latest`, by however much, does not stop writes: the logical part counts on until
        the wall clock has caught up. So a store that was written under a wrong clock stays writable.
    C3  A wall clock that jumps ahead by more than a day while the store is open is not believed. The monotonic clock
        is the evidence: it also counts the time that the machine slept.

Called under the commit lock of the database; not thread-safe by itself, except `now_us`.
Source: docs/design/kudu.md, "Clock". Left out: the error bound of several machines, as one writes.
"""

from __future__ import annotations

import logging

from nyala.env.clock import Clock
from nyala.errors import StorageError
from nyala.mvcc.timestamp import TIMESTAMP_MAX, from_physical, physical_us, to_datetime

logger = logging.getLogger("nyala.clock")

FORWARD_BOUND_US = 24 * 3600 * 1_000_000
# Steps smaller than this happen on every machine that keeps its time by NTP.
_WARN_AFTER_US = 1_000_000


class HybridClock:
    """Gives timestamps; `latest` is the greatest given, at first that of the log and the catalogue."""

    def __init__(self, clock: Clock, latest: int = 0) -> None:
        self._clock = clock
        self.latest = latest
        self._warned = False
        # Greatest difference between the wall clock and the monotonic clock that was believed. It never shrinks: a
        # clock that is set back and then right again has not jumped.
        self._offset_us = clock.now_us() - self._monotonic_us()

    def _monotonic_us(self) -> int:
        return round(self._clock.monotonic_s() * 1e6)

    def _jump_us(self, wall_us: int) -> int:
        """By how much the wall clock is ahead of the one that was believed before; negative when it is behind."""
        return wall_us - self._monotonic_us() - self._offset_us

    def now_us(self) -> int:
        """Wall time, without a jump ahead that is not believed (C3): what is to expire must not expire by it."""
        wall_us = self._clock.now_us()
        jump_us = self._jump_us(wall_us)
        return wall_us - jump_us if jump_us > FORWARD_BOUND_US else wall_us

    def next(self) -> int:
        """A timestamp greater than all before (C1).

        Raises: StorageError when the wall clock has jumped ahead by more than a day (C3), or timestamps end; then
        nothing has changed.
        """
        wall_us = self._clock.now_us()
        jump_us = self._jump_us(wall_us)
        if jump_us > FORWARD_BOUND_US:
            raise StorageError(
                f"this machine's clock jumped ahead by {jump_us / 86_400e6:.1f} days while the store was open, and "
                f"says {_time(wall_us)} now: nothing was written. Set the clock right and write again; or, if it is "
                "right now, close the store and connect() again"
            )
        timestamp = max(from_physical(wall_us), self.latest + 1)
        if timestamp >= TIMESTAMP_MAX:
            raise StorageError(
                f"this machine's clock says {_time(wall_us)}, and the timestamps of a store end at "
                f"{to_datetime(TIMESTAMP_MAX).isoformat(timespec='seconds')}: nothing was written. Set the clock right"
            )
        if jump_us > _WARN_AFTER_US:
            logger.warning("the clock jumped ahead by %.1f s", jump_us / 1e6)
        self._offset_us += max(jump_us, 0)
        behind_us = physical_us(self.latest) - wall_us
        if behind_us > _WARN_AFTER_US and not self._warned:
            self._warned = True
            logger.warning(
                "the clock stepped back by %.1f s; timestamps go on from the store's newest until it has caught up",
                behind_us / 1e6,
            )
        self.latest = timestamp
        return timestamp


def _time(us: int) -> str:
    return to_datetime(from_physical(us)).isoformat(timespec="seconds")
