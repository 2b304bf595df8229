"""The clock of tests moves only when the test moves it, and random tokens depend only on the seed."""

from __future__ import annotations

import threading

from nyala.testing import ManualClock, SeededRandomness


def test_time_passes_only_when_the_test_moves_the_clock() -> None:
    clock = ManualClock(1_000_000)
    assert (clock.now_us(), clock.monotonic_s()) == (1_000_000, 0)
    clock.advance(1.5)
    clock.sleep_s(0.5)
    assert (clock.now_us(), clock.monotonic_s()) == (3_000_000, 2)
    clock.set_now_us(5)
    assert (clock.now_us(), clock.monotonic_s()) == (5, 2)


def test_wait_ends_at_the_event_or_at_the_time_out() -> None:
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
    """The worked examples of the format pages rely on this."""
    one, other = SeededRandomness(3), SeededRandomness(3)
    assert [one.token_hex(8) for _ in range(3)] == [other.token_hex(8) for _ in range(3)]
    assert SeededRandomness(4).token_hex(8) != SeededRandomness(3).token_hex(8)
    assert len(one.token_hex(5)) == 10


def test_a_sleep_of_a_nanosecond_advances_the_clock() -> None:
    """A loop that sleeps for its remaining time would otherwise never end."""
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
