"""The only code that knows the time, and the only code that sleeps.

Two clocks: wall time (microseconds since 1970-01-01 UTC; it may jump either way, and `nyala.mvcc` keeps from going
back what must not) and monotonic time (seconds since some moment, those included that the machine slept; for timeouts
and rates, and to notice that the wall clock jumped).
"""

from __future__ import annotations

import threading
import time
from typing import Final, Protocol

__all__ = ["Clock", "SystemClock"]

# Python's monotonic clock leaves out the time that a machine slept: so does Linux's own, and macOS' own does not.
_WITH_SLEEP: Final[int] = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", -1))


class Clock(Protocol):
    """May be used from any thread."""

    def now_us(self) -> int:
        """Wall time in microseconds since the epoch, UTC."""
        ...

    def monotonic_s(self) -> float:
        """Seconds since some fixed moment, those included that the machine slept; never goes back."""
        ...

    def sleep_s(self, seconds: float) -> None: ...

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Wait until the event is set (True) or the time is over (False)."""
        ...


class SystemClock:
    """`Clock` of this machine."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic_s(self) -> float:
        return time.monotonic() if _WITH_SLEEP < 0 else time.clock_gettime(_WITH_SLEEP)

    def sleep_s(self, seconds: float) -> None:
        time.sleep(seconds)

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(timeout_s)
