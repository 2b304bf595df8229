"""Time and chance that a test decides: nothing passes, and nothing is random, unless the test says so."""

from __future__ import annotations

import random
import threading

__all__ = ["ManualClock", "SeededRandomness"]

# Setting an event does not wake the clock's waiters, so they poll the event at this interval, in real time.
_EVENT_POLL_S = 0.001


class ManualClock:
    """A `Clock` that moves only by `advance` (and by `sleep_s`, which moves it itself and returns at once).

    Threads: any. `wait` blocks until another thread advances the clock far enough or sets the event.
    """

    def __init__(self, now_us: int = 1_735_689_600_000_000) -> None:  # 2025-01-01T00:00:00Z
        self._condition = threading.Condition()
        self._now_us = now_us
        self._monotonic_us = 0

    def now_us(self) -> int:
        return self._now_us

    def monotonic_s(self) -> float:
        return self._monotonic_us / 1e6

    def advance(self, seconds: float) -> None:
        """Let time pass, on both clocks."""
        with self._condition:
            self._now_us += round(seconds * 1e6)
            self._monotonic_us += round(seconds * 1e6)
            self._condition.notify_all()

    def set_now_us(self, now_us: int) -> None:
        """Step the wall clock forwards or backwards, like an administrator or NTP; the monotonic clock stays."""
        self._now_us = now_us

    def sleep_s(self, seconds: float) -> None:
        # At least one microsecond, so that a sleep shorter than that also advances the clock.
        self.advance(max(seconds, 1e-6) if seconds > 0 else seconds)

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        until_us = self._monotonic_us + round(timeout_s * 1e6)
        with self._condition:
            while not event.is_set() and self._monotonic_us < until_us:
                self._condition.wait(_EVENT_POLL_S)
        return event.is_set()


class SeededRandomness:
    """`Randomness` that draws the same tokens in every run. Threads: any."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._lock = threading.Lock()

    def token_hex(self, byte_count: int) -> str:
        with self._lock:
            return self._random.randbytes(byte_count).hex()
