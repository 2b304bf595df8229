"""What a user may say for a moment, and which number it is."""

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
def test_parse_at(at: object, timestamp: int) -> None:
    """Each way to say a moment that docs/how-to/time-travel.md names; another number would read another state."""
    assert parse_at(at) == timestamp


@pytest.mark.parametrize(
    "at",
    [-1, TIMESTAMP_MAX + 1, str(TIMESTAMP_MAX + 1), True, 1.5, None, "", "yesterday", "12:00", "2026-13-01", "²",
     "-5", dt.date(2026, 1, 1), b"12345", WriteResult(-1), []],
    ids=repr,
)  # fmt: skip
def test_what_is_no_moment_is_refused(at: object) -> None:
    """A word that names no moment must not be read as some other moment, nor end in Python's own errors."""
    with pytest.raises(InvalidArgumentError, match="^at="):
        parse_at(at)
    with pytest.raises(InvalidArgumentError, match="^since="):
        parse_at(at, name="since")


def test_a_day_is_no_moment() -> None:
    """Read as its beginning it would leave out what was written that day, and nobody would be told."""
    with pytest.raises(InvalidArgumentError, match="^since=2026-12-31 is a day, not a moment") as error:
        parse_at(dt.date(2026, 12, 31), name="since")
    begin, end = re.findall("since='([0-9-]+)'", str(error.value))
    assert parse_at(end) - parse_at(begin) == from_physical(86_400 * SECOND)
    with pytest.raises(InvalidArgumentError, match="is its beginning in UTC$"):
        parse_at(dt.date.max)


def test_how_a_moment_without_a_zone_was_read() -> None:
    """`datetime.now()` is local time, and hours away; whoever named a zone, or a number, needs no advice."""
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


def test_a_moment_further_away_than_any_zone_needs_no_advice_on_zones() -> None:
    """Who asks for next year is told of time zones, and looks for the mistake there."""
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
def test_a_unix_time_is_no_timestamp(at: int, unit: str, meant: str) -> None:
    """It would be a moment in 1970 to 1984, at which every table is empty, and nobody would be told."""
    published = from_physical(NEW_YEAR_US + SECOND)
    for number in (at, str(at), np.int64(at)):
        with pytest.raises(InvalidArgumentError) as error:
            parse_at(number, published)
        assert f"{unit} since 1970, that is {meant}: write at='{meant}'" in str(error.value)
    assert parse_at(meant, published) >> LOGICAL_BITS == at * 10**9 // 1000 // {
        "seconds": 1, "milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9
    }[unit]  # fmt: skip


def test_a_unix_time_as_a_float() -> None:
    """`time.time()` is the first that comes to mind."""
    with pytest.raises(InvalidArgumentError, match=r"that is 2026-01-01T00:00:00.250000Z: write at='2026"):
        parse_at(NEW_YEAR_US / 1e6 + 0.25)


def test_small_numbers_stay_timestamps_where_they_can_be() -> None:
    """The beginning, an old moment by its date, and stores on a test's clock, which begins at 0 or so."""
    published = from_physical(NEW_YEAR_US)
    assert parse_at(0, published) == 0
    assert parse_at("1999-12-31", published) == parse_at("1999-12-31")
    assert parse_at(WriteResult(777), published) == 777
    assert parse_at(from_physical(946_684_800 * SECOND), published) == from_physical(946_684_800 * SECOND)
    for at in (1, 10 << LOGICAL_BITS, 1_767_225_600):
        assert parse_at(at, from_physical(SECOND)) == parse_at(at) == at


def test_a_datetime_is_the_end_of_its_microsecond() -> None:
    """Else `at=result.time` would not show the write itself."""
    for logical in (0, 1, LOGICAL_MAX):
        written = from_physical(NEW_YEAR_US, logical)
        assert parse_at(to_datetime(written)) >= written
        assert parse_at(to_datetime(written) - dt.timedelta(microseconds=1)) < written
        assert parse_at(WriteResult(written).time) >= written


@given(
    st.datetimes(dt.datetime(1970, 1, 1), dt.datetime(2041, 5, 1), timezones=st.just(dt.UTC)),
    st.integers(0, LOGICAL_MAX),
)
def test_microseconds_come_and_go_unchanged(moment: dt.datetime, logical: int) -> None:
    """A time that a user writes down and reads back is the same time, to the microsecond."""
    timestamp = from_physical(microseconds_of(moment), logical)
    assert to_datetime(timestamp) == moment
    assert physical_us(timestamp) == microseconds_of(moment)
    assert timestamp & ((1 << LOGICAL_BITS) - 1) == logical
    assert parse_at(moment.isoformat()) == parse_at(moment) == timestamp | LOGICAL_MAX
    assert microseconds_of(moment.replace(tzinfo=None)) == microseconds_of(moment)


@given(
    st.integers(0, 2**51 - 1), st.integers(0, 2**51 - 1), st.integers(0, LOGICAL_MAX), st.integers(0, LOGICAL_MAX)
)  # fmt: skip
def test_timestamps_order_as_time_and_then_counter(left: int, right: int, a: int, b: int) -> None:
    """Comparing two numbers must be comparing two moments, or snapshots would mix batches."""
    assert (from_physical(left, a) < from_physical(right, b)) == ((left, a) < (right, b))


def test_the_last_moment_is_in_may_2041() -> None:
    """The documents say so; who keeps a store until then learns it here."""
    assert to_datetime(TIMESTAMP_MAX).date() == dt.date(2041, 5, 10)


@pytest.mark.parametrize("wrong", ["x", None, 2**80, []])
def test_what_is_no_timestamp_has_no_time(wrong: object) -> None:
    """`nyala.to_datetime` of nonsense says so, in words of ours."""
    with pytest.raises(InvalidArgumentError, match="not a timestamp"):
        to_datetime(wrong)  # type: ignore[arg-type]
