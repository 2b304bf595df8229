"""The only code that knows the time, and the only code that sleeps.

Two clocks, never mixed: wall time (microseconds since 1970-01-01 UTC; it may jump either way, and
`nyala.mvcc` keeps from going back what must not) and monotonic time (seconds since some moment; for timeouts
and rates).
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """May be used from any thread."""

    def now_us(self) -> int:
        """Wall time in microseconds since the epoch, UTC."""
        ...

    def monotonic_s(self) -> float:
        """Seconds since some fixed moment; never goes back."""
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
        return time.monotonic()

    def sleep_s(self, seconds: float) -> None:
        time.sleep(seconds)

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(timeout_s)
