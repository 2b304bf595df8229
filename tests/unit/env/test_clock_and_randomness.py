"""The system's clock and random numbers, and the Env that provides them."""

from __future__ import annotations

import dataclasses
import threading
import time

import pytest

from nyala.env import SYSTEM


def test_the_clock_returns_microseconds_and_monotonic_seconds() -> None:
    """Microseconds since the epoch, and seconds that never decrease."""
    assert abs(SYSTEM.clock.now_us() - time.time() * 1e6) < 5e6
    before = SYSTEM.clock.monotonic_s()
    SYSTEM.clock.sleep_s(0.01)
    assert 0.01 <= SYSTEM.clock.monotonic_s() - before < 10


def test_waiting_ends_with_the_event_or_the_time() -> None:
    """A wait ends with its event or at its time, so closing a store need not wait for a pause."""
    event = threading.Event()
    assert not SYSTEM.clock.wait(event, 0.001)
    event.set()
    assert SYSTEM.clock.wait(event, 60)


def test_tokens_differ() -> None:
    """Two tokens differ, so stores and log segments can be distinguished."""
    tokens = {SYSTEM.randomness.token_hex(8) for _ in range(1000)}
    assert len(tokens) == 1000
    assert {len(token) for token in tokens} == {16}


def test_an_env_is_immutable() -> None:
    """All parts of a store use the same disk."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        SYSTEM.files = None  # type: ignore[misc, assignment]
