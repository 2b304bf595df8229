"""The forms of a moment that a user can give, and the timestamp that each means."""

from __future__ import annotations

import datetime as dt
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nyala.errors import InvalidArgumentError
from nyala.mvcc.timestamp import (
    LOGICAL_BITS,
    LOGICAL_MAX,
    TIMESTAMP_MAX,
    TIMESTAMP_ZERO,
    from_physical,
    microseconds_of,
    naive_note,
    parse_at,
    physical_us,
    to_datetime,
)
from nyala.tablet.state.result import WriteResult

SECOND = 1_000_000
NEW_YEAR_US = 1_767_225_600 * SECOND  # 2026-01-01T00:00:00Z
END = LOGICAL_MAX


@pytest.mark.parametrize(
    ("at", "timestamp"),
    [
        (0, 0),
        (12345, 12345),
        (TIMESTAMP_MAX, TIMESTAMP_MAX),
        ("12345", 12345),
        (" 12345 ", 12345),
        ("2026-01-01", from_physical(NEW_YEAR_US, END)),
        ("2026-01-01T00:00:00Z", from_physical(NEW_YEAR_US, END)),
        ("2026-01-01 00:00:00", from_physical(NEW_YEAR_US, END)),
        ("2026-01-01T02:30:00+02:30", from_physical(NEW_YEAR_US, END)),
        ("2026-01-01T00:00:00.000001", from_physical(NEW_YEAR_US + 1, END)),
        (dt.datetime(2026, 1, 1), from_physical(NEW_YEAR_US, END)),
        (dt.datetime(2026, 1, 1, tzinfo=dt.UTC), from_physical(NEW_YEAR_US, END)),
        (dt.datetime(2026, 1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1))), from_physical(NEW_YEAR_US, END)),
        (dt.datetime(1969, 7, 20), TIMESTAMP_ZERO),
        ("1969-07-20", TIMESTAMP_ZERO),
        (WriteResult(777), 777),
        (np.int64(12345), 12345),
    ],
    ids=repr,
)  # fmt: skip
def test_each_form_of_a_moment(at: object, timestamp: int) -> None:
    """Each form of docs/how-to/time-travel.md gives the right timestamp."""
    assert parse_at(at) == timestamp


@pytest.mark.parametrize(
    "at",
    [-1, TIMESTAMP_MAX + 1, str(TIMESTAMP_MAX + 1), True, 1.5, None, "", "yesterday", "12:00", "2026-13-01", "²",
     "-5", dt.date(2026, 1, 1), b"12345", WriteResult(-1), []],
    ids=repr,
)  # fmt: skip
def test_invalid_moments_are_refused(at: object) -> None:
    """The error begins with the name of the argument."""
    with pytest.raises(InvalidArgumentError, match="^at="):
        parse_at(at)
    with pytest.raises(InvalidArgumentError, match="^since="):
        parse_at(at, name="since")


def test_a_day_is_refused() -> None:
    """A day is refused, because reading at its beginning would leave out its own rows."""
    with pytest.raises(InvalidArgumentError, match="^since=2026-12-31 is a day, not a moment") as error:
        parse_at(dt.date(2026, 12, 31), name="since")
    begin, end = re.findall("since='([0-9-]+)'", str(error.value))
    assert parse_at(end) - parse_at(begin) == from_physical(86_400 * SECOND)
    with pytest.raises(InvalidArgumentError, match="is its beginning in UTC$"):
        parse_at(dt.date.max)


def test_a_moment_without_a_zone_adds_advice() -> None:
    """Error messages about a moment without a time zone say how to add the zone."""
    assert ".astimezone()" in naive_note(dt.datetime(2026, 1, 1))
    assert "+01:00" in naive_note("2026-01-01T10:00") and "+01:00" in naive_note(" 2026-01-01 ")
    aware = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    for at in (
        aware,
        aware.isoformat(),
        "2026-01-01T10:00Z",
        "12345",
        12345,
        None,
        "yesterday",
        WriteResult(5),
    ):
        assert naive_note(at) == ""


def test_a_moment_beyond_all_zones_adds_no_advice() -> None:
    """If a moment is too late by more than 14 hours, a missing zone does not explain the error."""
    noon = from_physical(NEW_YEAR_US + 12 * 3600 * SECOND)
    for hour in ("2026-01-01T13:00", "2026-01-02T01:59", "2025-12-31T22:01"):
        assert "no zone" in naive_note(hour, noon)
        assert "naive" in naive_note(dt.datetime.fromisoformat(hour), noon)
    for hour in ("2026-01-02T02:01", "2027-01-01", "2025-12-31T21:59"):
        assert naive_note(hour, noon) == naive_note(dt.datetime.fromisoformat(hour), noon) == ""


UNIX_TIMES = [
    (1_767_225_600, "seconds", "2026-01-01T00:00:00Z"),
    (1_767_225_600_500, "milliseconds", "2026-01-01T00:00:00.500000Z"),
    (NEW_YEAR_US, "microseconds", "2026-01-01T00:00:00Z"),
    (NEW_YEAR_US * 1000, "nanoseconds", "2026-01-01T00:00:00Z"),
    (1, "seconds", "1970-01-01T00:00:01Z"),
]


@pytest.mark.parametrize(
    ("at", "unit", "meant"), UNIX_TIMES, ids=[case[1] + str(case[0]) for case in UNIX_TIMES]
)
def test_a_unix_time_is_refused(at: int, unit: str, meant: str) -> None:
    """A Unix time is refused, because as a timestamp it would mean a moment before 1985."""
    published = from_physical(NEW_YEAR_US + SECOND)
    for number in (at, str(at), np.int64(at)):
        with pytest.raises(InvalidArgumentError) as error:
            parse_at(number, published)
        assert f"{unit} since 1970, that is {meant}: write at='{meant}'" in str(error.value)
    assert parse_at(meant, published) >> LOGICAL_BITS == at * 10**9 // 1000 // {
        "seconds": 1, "milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9
    }[unit]  # fmt: skip


def test_a_unix_time_as_a_float_is_refused() -> None:
    """`time.time()` is refused with advice."""
    with pytest.raises(InvalidArgumentError, match=r"that is 2026-01-01T00:00:00.250000Z: write at='2026"):
        parse_at(NEW_YEAR_US / 1e6 + 0.25)


def test_small_numbers_are_timestamps_if_they_can_be() -> None:
    """Zero, the timestamp of an old date, and timestamps of a test's clock are accepted."""
    published = from_physical(NEW_YEAR_US)
    assert parse_at(0, published) == 0
    assert parse_at("1999-12-31", published) == parse_at("1999-12-31")
    assert parse_at(WriteResult(777), published) == 777
    assert parse_at(from_physical(946_684_800 * SECOND), published) == from_physical(946_684_800 * SECOND)
    for at in (1, 10 << LOGICAL_BITS, 1_767_225_600):
        assert parse_at(at, from_physical(SECOND)) == parse_at(at) == at


def test_a_datetime_is_the_end_of_its_microsecond() -> None:
    """`at=result.time` includes the write itself."""
    for logical in (0, 1, LOGICAL_MAX):
        written = from_physical(NEW_YEAR_US, logical)
        assert parse_at(to_datetime(written)) >= written
        assert parse_at(to_datetime(written) - dt.timedelta(microseconds=1)) < written
        assert parse_at(WriteResult(written).time) >= written


@given(
    st.datetimes(dt.datetime(1970, 1, 1), dt.datetime(2041, 5, 1), timezones=st.just(dt.UTC)),
    st.integers(0, LOGICAL_MAX),
)
def test_a_datetime_converts_to_a_timestamp_and_back(moment: dt.datetime, logical: int) -> None:
    timestamp = from_physical(microseconds_of(moment), logical)
    assert to_datetime(timestamp) == moment
    assert physical_us(timestamp) == microseconds_of(moment)
    assert timestamp & ((1 << LOGICAL_BITS) - 1) == logical
    assert parse_at(moment.isoformat()) == parse_at(moment) == timestamp | LOGICAL_MAX
    assert microseconds_of(moment.replace(tzinfo=None)) == microseconds_of(moment)


@given(
    st.integers(0, 2**51 - 1), st.integers(0, 2**51 - 1), st.integers(0, LOGICAL_MAX), st.integers(0, LOGICAL_MAX)
)  # fmt: skip
def test_timestamps_sort_by_time_and_then_counter(left: int, right: int, a: int, b: int) -> None:
    assert (from_physical(left, a) < from_physical(right, b)) == ((left, a) < (right, b))


def test_the_last_moment_is_in_may_2041() -> None:
    """The documentation names this month."""
    assert to_datetime(TIMESTAMP_MAX).date() == dt.date(2041, 5, 10)


@pytest.mark.parametrize("wrong", ["x", None, 2**80, []])
def test_to_datetime_of_no_timestamp_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidArgumentError, match="not a timestamp"):
        to_datetime(wrong)  # type: ignore[arg-type]
