"""Time and chance that a test decides."""

from __future__ import annotations

import threading

from nyala.testing import ManualClock, SeededRandomness


def test_time_passes_only_when_the_test_says_so() -> None:
    """A test of expiry or of group sync would depend on how fast the machine is."""
    clock = ManualClock(1_000_000)
    assert (clock.now_us(), clock.monotonic_s()) == (1_000_000, 0)
    clock.advance(1.5)
    clock.sleep_s(0.5)
    assert (clock.now_us(), clock.monotonic_s()) == (3_000_000, 2)
    clock.set_now_us(5)
    assert (clock.now_us(), clock.monotonic_s()) == (5, 2)


def test_a_waiter_is_woken_by_the_event_or_by_the_time() -> None:
    """The maintenance thread of a test would hang, or spin."""
    clock = ManualClock()
    event = threading.Event()
    results: list[bool] = []
    waiter = threading.Thread(target=lambda: results.append(clock.wait(event, 10)))
    waiter.start()
    clock.advance(9)
    waiter.join(timeout=0.05)
    assert waiter.is_alive()
    clock.advance(1)
    waiter.join(timeout=20)
    assert results == [False]
    waiter = threading.Thread(target=lambda: results.append(clock.wait(event, 10)))
    waiter.start()
    event.set()
    waiter.join(timeout=20)
    assert results == [False, True]


def test_the_same_seed_draws_the_same_tokens() -> None:
    """The worked examples of the format pages would change with every run."""
    one, other = SeededRandomness(3), SeededRandomness(3)
    assert [one.token_hex(8) for _ in range(3)] == [other.token_hex(8) for _ in range(3)]
    assert SeededRandomness(4).token_hex(8) != SeededRandomness(3).token_hex(8)
    assert len(one.token_hex(5)) == 10


def test_manual_clock_gets_to_the_end_of_any_sleep() -> None:
    """A loop that sleeps for the rest of its time would otherwise never end: what is left may be a nanosecond."""
    clock = ManualClock()
    clock.advance(0.1)
    until_s = 0.1 + 1e-9
    for _ in range(3):
        if clock.monotonic_s() >= until_s:
            break
        clock.sleep_s(until_s - clock.monotonic_s())
    assert clock.monotonic_s() >= until_s
    clock.sleep_s(0)
    assert clock.monotonic_s() < 0.1 + 1e-5
