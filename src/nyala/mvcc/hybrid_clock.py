"""The clock that gives every batch its timestamp: close to the wall clock, never twice, never backwards.

Invariants
    C1  next() is greater than every timestamp given before it, and than the `latest` that it began with (design T1).
    C2  A wall clock that stands still or steps back does not stop the clock: the logical part counts on.

Called under the commit lock of the database; not thread-safe by itself.
Source: Kudu facts §4.1 (HybridTime). Left out: the error bound of several machines; there is one writer.
"""

from __future__ import annotations

import logging

from nyala.env.clock import Clock
from nyala.errors import StorageError
from nyala.mvcc.timestamp import TIMESTAMP_MAX, from_physical, physical_us, to_datetime

logger = logging.getLogger("nyala.clock")

# A wall clock this far behind the store's newest timestamp is taken for a broken clock, not for a step back.
BACKWARD_BOUND_US = 24 * 3600 * 1_000_000
# Steps back smaller than this happen on every machine that keeps its time by NTP.
_WARN_AFTER_US = 1_000_000


class HybridClock:
    """Gives timestamps; `latest` is the greatest given, at first that of the log and the catalogue."""

    def __init__(self, clock: Clock, latest: int = 0) -> None:
        self._clock = clock
        self.latest = latest
        self._warned = False

    def next(self) -> int:
        """A timestamp greater than all before (C1).

        Raises: StorageError when the wall clock is more than a day behind the store's newest timestamp:
        the store would stamp new rows with times of a future that readers cannot name.
        """
        wall = from_physical(self._clock.now_us())
        behind_us = physical_us(self.latest) - physical_us(wall)
        if behind_us > BACKWARD_BOUND_US:
            raise StorageError(
                f"this machine's clock says {to_datetime(wall).isoformat()}, but the store's newest change is of "
                f"{to_datetime(self.latest).isoformat()}: set the clock right, then write again"
            )
        if behind_us > _WARN_AFTER_US and not self._warned:
            self._warned = True
            logger.warning(
                "the clock stepped back by %.1f s; timestamps go on from the store's newest", behind_us / 1e6
            )
        self.latest = max(wall, self.latest + 1)
        if self.latest >= TIMESTAMP_MAX:
            raise StorageError("timestamps have run out (May 2041)")
        return self.latest
