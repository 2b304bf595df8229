"""The only code that reads the time, and the only code that sleeps.

There are two clocks. Wall time is microseconds since 1970-01-01 UTC. It may jump forwards and
backwards, so `nyala.mvcc` keeps timestamps from decreasing. Monotonic time is seconds since a fixed
moment, including the time for which the machine was suspended. Timeouts and rates are measured in
monotonic time. A comparison with it reveals jumps of the wall time.
"""

from __future__ import annotations

import threading
import time
from typing import Final, Protocol

# `time.monotonic` excludes suspended time. These clocks include it: the first on Linux, the second
# on macOS.
_WITH_SLEEP: Final[int] = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", -1))


class Clock(Protocol):
    """The interface of a clock. Any thread may use it."""

    def now_us(self) -> int:
        """Return the wall time in microseconds since the epoch, UTC."""
        ...

    def monotonic_s(self) -> float:
        """Return seconds since a fixed moment, including suspended time; never decreases."""
        ...

    def sleep_s(self, seconds: float) -> None: ...

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Wait until the event is set (True) or the timeout is over (False)."""
        ...


class SystemClock:
    """The clock of this machine."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic_s(self) -> float:
        return time.monotonic() if _WITH_SLEEP < 0 else time.clock_gettime(_WITH_SLEEP)

    def sleep_s(self, seconds: float) -> None:
        time.sleep(seconds)

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(timeout_s)
