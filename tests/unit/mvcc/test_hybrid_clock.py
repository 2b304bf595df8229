"""Timestamps of batches are close to the wall clock and strictly increasing (rule T1)."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nyala.errors import StorageError
from nyala.mvcc.hybrid_clock import FORWARD_BOUND_US, HybridClock
from nyala.mvcc.timestamp import TIMESTAMP_MAX, from_physical, physical_us
from nyala.testing.clock import ManualClock

NOW_US = 1_767_225_600_000_000
DAY_US = 24 * 3600 * 1_000_000


def test_a_timestamp_has_the_wall_clocks_time() -> None:
    """`at="2026-01-01"` reads the state of that day."""
    clock = HybridClock(ManualClock(NOW_US))
    assert clock.next() == from_physical(NOW_US)


def test_c2_c4_within_a_microsecond_the_counter_rises_by_two() -> None:
    """Each second timestamp stays free, also when all batches are in one microsecond."""
    clock = HybridClock(ManualClock(NOW_US))
    given_ = [clock.next() for _ in range(5000)]
    assert given_ == list(range(from_physical(NOW_US), from_physical(NOW_US) + 10000, 2))


def test_reserved_timestamps_are_not_given_again() -> None:
    clock = HybridClock(ManualClock(NOW_US))
    first = clock.reserve(100)
    assert clock.next() > first + 99


def test_c1_timestamps_exceed_those_before_the_open() -> None:
    """After a reopen, no timestamp is less than one in the log or the catalogue."""
    clock = HybridClock(ManualClock(NOW_US), latest=from_physical(NOW_US + 50))
    assert clock.next() == from_physical(NOW_US + 50) + 2 == clock.latest


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("step"), st.integers(-DAY_US // 8, DAY_US // 8)),
            st.tuples(st.just("reopen"), st.integers(0, DAY_US // 8)),
            st.tuples(st.just("next"), st.just(0)),
        ),
        max_size=30,
    )
)
def test_c1_timestamps_strictly_ascend(steps: list[tuple[str, int]]) -> None:
    """Whatever the machine's clock does within a day, timestamps strictly ascend."""
    wall = ManualClock(NOW_US)
    clock = HybridClock(wall)
    greatest = 0
    for step, argument in steps:
        if step == "step":
            wall.set_now_us(max(wall.now_us() + argument, NOW_US - DAY_US // 4))
        elif step == "reopen":  # `greatest` is in the log or the catalogue
            greatest = max(greatest, from_physical(NOW_US + argument))
            clock = HybridClock(wall, greatest)
        else:
            timestamp = clock.next()
            assert timestamp > greatest and timestamp >= from_physical(wall.now_us())
            greatest = timestamp
    assert clock.latest == greatest


def test_a_step_back_logs_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """A step back logs one warning, and none for NTP's small steps."""
    wall = ManualClock(NOW_US)
    clock = HybridClock(wall)
    clock.next()
    wall.set_now_us(NOW_US - 1_000_000)
    clock.next()
    assert caplog.records == []
    wall.set_now_us(NOW_US - 60_000_000)
    with caplog.at_level(logging.WARNING, "nyala.clock"):
        first = clock.next()
        assert clock.next() == first + 2
    assert [record.getMessage() for record in caplog.records] == [
        "the clock stepped back by 60.0 s; timestamps continue from the newest one until it has caught up"
    ]


def test_c2_a_clock_years_behind_does_not_stop_writes() -> None:
    """A store that was written under a wrong clock accepts writes."""
    wall = ManualClock(NOW_US)
    newest = from_physical(NOW_US + 365 * DAY_US)
    clock = HybridClock(wall, newest)
    assert [clock.next(), clock.next()] == [newest + 2, newest + 4]
    wall.advance(366 * 86_400)
    assert clock.next() == from_physical(wall.now_us())


def test_c3_a_jump_ahead_stops_writes_until_the_clock_is_right() -> None:
    """The bound is a day. Neither 60 days of passing time nor a corrected clock count as a jump."""
    wall = ManualClock(NOW_US)
    clock = HybridClock(wall)
    wall.advance(60 * 86_400)
    newest = clock.next()
    assert newest == from_physical(NOW_US + 60 * DAY_US)
    right_us = wall.now_us()
    wall.set_now_us(right_us + FORWARD_BOUND_US + 1)
    for _ in range(2):
        with pytest.raises(StorageError, match=r"jumped ahead by 1\.0 days.*2026-03-03.*nothing was written"):
            clock.next()
        assert clock.latest == newest
    assert clock.now_us() == right_us, "a rejected time must not make history expire"
    wall.set_now_us(right_us - 30 * DAY_US)
    assert clock.next() == newest + 2
    wall.set_now_us(right_us + 1)
    assert clock.next() == from_physical(right_us + 1)


def test_a_jump_of_less_than_a_day_logs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    wall = ManualClock(NOW_US)
    clock = HybridClock(wall)
    wall.set_now_us(NOW_US + DAY_US // 24)
    with caplog.at_level(logging.WARNING, "nyala.clock"):
        assert [clock.next(), clock.next()][0] == from_physical(NOW_US + DAY_US // 24)
    assert [record.getMessage() for record in caplog.records] == ["the clock jumped ahead by 3600.0 s"]


def test_the_last_timestamp_is_an_error_and_no_overflow() -> None:
    """When timestamps are used up in May 2041, writes raise an error."""
    end_us = physical_us(TIMESTAMP_MAX)
    clock = HybridClock(ManualClock(end_us), latest=TIMESTAMP_MAX - 3)
    assert clock.next() == TIMESTAMP_MAX - 1
    with pytest.raises(StorageError, match="the timestamps of a store end at 2041-05-10"):
        clock.next()


def test_a_clock_after_the_last_timestamp_changes_nothing() -> None:
    """With a clock in the 2050s, writes raise; with the right clock, they work again."""
    wall = ManualClock(physical_us(TIMESTAMP_MAX) + 10 * 365 * DAY_US)
    clock = HybridClock(wall, latest=7)
    with pytest.raises(StorageError, match="Set the clock right"):
        clock.next()
    wall.set_now_us(NOW_US)
    assert clock.next() == from_physical(NOW_US)
