"""A clock that only the test moves, and randomness that is the same in every run."""

from __future__ import annotations

import random
import threading

__all__ = ["ManualClock", "SeededRandomness"]

# `wait` looks at its event once in this real time, because a set event does not wake it.
_EVENT_POLL_S = 0.001


class ManualClock:
    """A `Clock` that moves only when a test calls `advance`, or a program calls `sleep_s`.

    `sleep_s` advances the clock and returns at once. `wait` blocks until another thread sets the
    event, or advances the clock by the time-out. Thread-safe.
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
        """Move the wall clock and the monotonic clock forwards."""
        with self._condition:
            self._now_us += round(seconds * 1e6)
            self._monotonic_us += round(seconds * 1e6)
            self._condition.notify_all()

    def set_now_us(self, now_us: int) -> None:
        """Set the wall clock, also backwards, as NTP may. The monotonic clock does not change."""
        self._now_us = now_us

    def sleep_s(self, seconds: float) -> None:
        # At least one microsecond: the clock would round a shorter sleep to no time at all.
        self.advance(max(seconds, 1e-6) if seconds > 0 else seconds)

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        until_us = self._monotonic_us + round(timeout_s * 1e6)
        with self._condition:
            while not event.is_set() and self._monotonic_us < until_us:
                self._condition.wait(_EVENT_POLL_S)
        return event.is_set()


class SeededRandomness:
    """`Randomness` that returns the same tokens for the same seed. Thread-safe."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._lock = threading.Lock()

    def token_hex(self, byte_count: int) -> str:
        with self._lock:
            return self._random.randbytes(byte_count).hex()
