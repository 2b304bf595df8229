"""Keeps the history that open transactions need.

The commit of a transaction looks for changes after its snapshot. Maintenance that discards history
would discard the records of these changes. So each open transaction pins its snapshot, and
`Store.history_cut` returns no later moment than the oldest pin.

A pin ends when it was not used for its timeout, so that a forgotten transaction does not keep
history for ever. It also ends when Python collects the transaction.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator

from nyala.env.clock import Clock


class Pin:
    """Keeps the history after one moment for an open transaction. Thread-safe."""

    def __init__(self, pins: HistoryPins, timestamp: int, timeout_s: float) -> None:
        self.timestamp = timestamp
        self.timeout_s = timeout_s
        self._pins = pins
        self._used_s = pins.clock.monotonic_s()
        self._statements = 0  # running statements
        self._ended = False
        self.on_idle: weakref.WeakMethod[Callable[[], None]] | None = None
        """Called when the pin ends because it was idle."""

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Return a context manager for one statement of the transaction.

        While the statement runs, the timeout cannot end the pin. So the history is kept.
        """
        with self._pins.lock:
            self._statements += 1
        try:
            yield
        finally:
            with self._pins.lock:
                self._statements -= 1
                self._used_s = self._pins.clock.monotonic_s()

    def use(self) -> bool:
        """Restart the timeout, and return whether the pin still keeps history."""
        with self._pins.lock:
            self._end_if_idle()
            self._used_s = self._pins.clock.monotonic_s()
            return not self._ended

    def release(self) -> None:
        """End the pin. May be called twice."""
        with self._pins.lock:
            self._ended = True
            self._pins.held.discard(self)

    def _end_if_idle(self) -> None:
        """End the pin if its last use was more than `timeout_s` seconds ago.

        A running statement counts as use. Requires the lock of `HistoryPins`.
        """
        idle_s = self._pins.clock.monotonic_s() - self._used_s
        if not self._ended and not self._statements and idle_s > self.timeout_s:
            self._ended = True
            self._pins.held.discard(self)
            on_idle = None if self.on_idle is None else self.on_idle()
            if on_idle is not None:
                on_idle()


class HistoryPins:
    """All pins of one open store. Thread-safe.

    A pin keeps the history after one moment, for an open transaction.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.lock = threading.Lock()
        self.held: weakref.WeakSet[Pin] = weakref.WeakSet()

    def add(self, timestamp: int, timeout_s: float) -> Pin:
        """Keep the history after `timestamp`, until `release` or `timeout_s` seconds without use."""
        pin = Pin(self, timestamp, timeout_s)
        with self.lock:
            self.held.add(pin)
        return pin

    def oldest(self) -> int | None:
        """End pins that were idle for too long. Return the oldest pinned moment; None: no pins."""
        if not self.held:
            return None
        with self.lock:
            for pin in list(self.held):
                pin._end_if_idle()
            return min((pin.timestamp for pin in self.held), default=None)
