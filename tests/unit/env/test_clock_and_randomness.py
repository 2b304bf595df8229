"""The system's clock and chance, and the Env that hands them down."""

from __future__ import annotations

import dataclasses
import threading
import time

import pytest

from nyala.env import SYSTEM


def test_the_clock_tells_microseconds_since_the_epoch_and_seconds_that_never_go_back() -> None:
    """Every timestamp of every batch would be wrong by a factor."""
    assert abs(SYSTEM.clock.now_us() - time.time() * 1e6) < 5e6
    before = SYSTEM.clock.monotonic_s()
    SYSTEM.clock.sleep_s(0.01)
    assert 0.01 <= SYSTEM.clock.monotonic_s() - before < 10


def test_waiting_ends_with_the_event_or_the_time() -> None:
    """Closing a database would wait for the maintenance thread's whole pause."""
    event = threading.Event()
    assert not SYSTEM.clock.wait(event, 0.001)
    event.set()
    assert SYSTEM.clock.wait(event, 60)


def test_tokens_differ() -> None:
    """Two stores, or two segments of one log, would take each other's bytes for their own."""
    tokens = {SYSTEM.randomness.token_hex(8) for _ in range(1000)}
    assert len(tokens) == 1000
    assert {len(token) for token in tokens} == {16}


def test_the_env_cannot_be_changed_under_its_users() -> None:
    """One part of a database would see another disk than the rest."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        SYSTEM.files = None  # type: ignore[misc, assignment]
