"""Timestamps: the forms in which users give them, and the 64-bit number that they mean.

A timestamp is a HybridTime: microseconds since the Unix epoch, shifted left by 12, plus a logical
counter.

    63                                          12 11        0
    +---------------------------------------------+-----------+
    | microseconds since 1970-01-01T00:00:00Z     | logical   |
    +---------------------------------------------+-----------+

A signed 64-bit integer stores it (Arrow's and NumPy's int64), so the last timestamp is on 10 May
2041. A datetime names a whole microsecond and means the *end* of that microsecond. So a read at the
time at which a write was acknowledged sees the write.

Source: docs/design/snapshots-and-history.md, "Timestamps and clock"; docs/design/kudu.md, "Clock".
Unlike in Kudu, a snapshot at T sees T itself.
"""

from __future__ import annotations

import datetime as dt
import numbers
import re
from typing import Final

from nyala.errors import InvalidArgumentError

LOGICAL_BITS: Final = 12
LOGICAL_MAX: Final = (1 << LOGICAL_BITS) - 1
TIMESTAMP_MAX: Final = 2**63 - 1
# A snapshot at this timestamp is empty.
TIMESTAMP_ZERO: Final = 0

# 2000-01-01 as a timestamp. It is greater than the present Unix time in any unit from seconds to
# nanoseconds.
_YEAR_2000: Final = 946_684_800_000_000 << LOGICAL_BITS
# A text such as "7d" or "1 hour" is a duration, not a moment.
_DURATION: Final = re.compile(r"[-+]?\d+(\.\d+)?\s*[a-z]+", re.IGNORECASE)
_UNIX_UNITS: Final = {"seconds": 10**9, "milliseconds": 10**6, "microseconds": 10**3, "nanoseconds": 1}
_YEAR_2100_NS: Final = 4_102_444_800 * 10**9

# The time zone that is furthest from UTC is +14:00.
_ZONE_MAX_US: Final = 14 * 3600 * 1_000_000

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def from_physical(microseconds: int, logical: int = 0) -> int:
    """Return the timestamp with these microseconds since the epoch and this logical counter."""
    return (microseconds << LOGICAL_BITS) | logical


def physical_us(timestamp: int) -> int:
    """Return the microseconds since the epoch of `timestamp`, without its logical part."""
    return timestamp >> LOGICAL_BITS


def to_datetime(timestamp: int) -> dt.datetime:
    """Return the UTC time of `timestamp`, in microseconds (`nyala.to_datetime`)."""
    try:
        return _EPOCH + dt.timedelta(microseconds=physical_us(int(timestamp)))
    except (OverflowError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"{timestamp!r} is not a timestamp of Nyala: pass an int from 0 to {TIMESTAMP_MAX}, such as "
            "db.now() or result.timestamp"
        ) from error


def microseconds_of(moment: dt.datetime) -> int:
    """Return the microseconds since the epoch; a naive time is taken as UTC."""
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)
    return (aware - _EPOCH) // dt.timedelta(microseconds=1)


def parse_at(at: object, published: int | None = None, name: str = "at") -> int:
    """Return the timestamp of `at`: a timestamp, datetime, ISO text or object with `.timestamp`.

    published: the newest timestamp of the store, to detect a Unix time, such as `time.time()`, that
               was passed by mistake. If the store has timestamps after the year 2000, a timestamp
               before 2000 is rejected; 0 is allowed. None: do not check.
    name:      the argument's name, for error messages.
    Raises: InvalidArgumentError if `at` is not a moment.
    """
    if isinstance(at, bool):
        raise InvalidArgumentError(
            f"{name}=… takes a timestamp, a datetime, ISO text or a WriteResult, not a bool"
        )
    if isinstance(at, numbers.Integral):  # also NumPy integers
        number = int(at)
        if not 0 <= number <= TIMESTAMP_MAX:
            raise InvalidArgumentError(f"{name}={at} is outside of the timestamps 0..{TIMESTAMP_MAX}")
        if published is not None and 0 < number < _YEAR_2000 <= published:
            raise InvalidArgumentError(_unix_time_text(number, name))
        return number
    if isinstance(at, str):
        text = at.strip()
        if text.isdecimal():
            return parse_at(int(text), published, name)
        try:
            at = dt.datetime.fromisoformat(text)
        except ValueError as error:
            advice = (
                "; for a moment that long ago, write datetime.now(timezone.utc) - timedelta(…)"
                if _DURATION.fullmatch(text)
                else ""
            )
            raise InvalidArgumentError(
                f"{name}={at!r} is neither a timestamp nor an ISO time such as '2026-11-20T10:00:00Z'{advice}"
            ) from error
    if isinstance(at, dt.datetime) and at == at:  # excludes the NaT of pandas
        return max(from_physical(microseconds_of(at), LOGICAL_MAX), 0)
    if isinstance(at, dt.date) and not isinstance(at, dt.datetime):
        raise InvalidArgumentError(_day_text(at, name))
    stamp = getattr(at, "timestamp", None)
    if isinstance(stamp, int):
        return parse_at(stamp, name=name)
    if isinstance(at, dt.timedelta):
        raise InvalidArgumentError(
            f"{name}=… takes a moment, not a duration: write {name}=datetime.now(UTC) - timedelta(…)"
        )
    if isinstance(at, float) and 0 < at < _YEAR_2100_NS:
        raise InvalidArgumentError(_unix_time_text(at, name))
    raise InvalidArgumentError(
        f"{name}=… takes a timestamp (int), a datetime, ISO text or a WriteResult, not {type(at).__name__}"
    )


def is_datetime(at: object) -> bool:
    """Whether `at` is a datetime, or text that is not an integer (`parse_at` reads it as ISO text).

    Text of a day, such as "2026-11-20", also counts; a `datetime.date` does not.
    """
    return isinstance(at, dt.datetime) or (isinstance(at, str) and not at.strip().isdecimal())


def naive_note(at: object, bound: int | None = None) -> str:
    """Return the end of an error message about a moment without time zone: how to add the zone.

    bound: the timestamp with which the moment was compared, if known.
    Returns "" if the moment has a zone. Also returns "" if the moment is more than 14 hours from
    `bound`, because then a missing zone does not explain the error.
    """
    if not is_datetime(at):
        return ""
    try:
        moment = dt.datetime.fromisoformat(at.strip()) if isinstance(at, str) else at
    except ValueError:
        return ""
    assert isinstance(moment, dt.datetime)
    is_far = bound is not None and abs(microseconds_of(moment) - physical_us(bound)) > _ZONE_MAX_US
    if moment.tzinfo is not None or is_far:
        return ""
    if isinstance(at, str):
        return "; it has no zone and was taken as UTC: for local time add the zone, as in '2026-11-20T10:00+01:00'"
    return (
        "; the datetime is naive and was taken as UTC: use datetime.now(UTC) for the present, or .astimezone() of "
        "another local time"
    )


def _day_text(day: dt.date, name: str) -> str:
    """Return the error message for a `datetime.date`, which is a whole day and not a moment.

    The message names the moments at both ends of the day.
    """
    end = "" if day == dt.date.max else f", {name}='{day + dt.timedelta(days=1)}' its end"
    return f"{name}={day} is a day, not a moment: {name}='{day}' is its beginning in UTC{end}"


def _unix_time_text(at: int | float, name: str) -> str:
    """Return the error message for a number that is a Unix time and not a timestamp of Nyala.

    The message shows the same moment as ISO text, which the user can pass instead.

    name: the argument's name.
    """
    unit, scale = next((unit, scale) for unit, scale in _UNIX_UNITS.items() if at * scale < _YEAR_2100_NS)
    moment = (_EPOCH + dt.timedelta(microseconds=round(at * scale / 1000))).isoformat().replace("+00:00", "Z")
    return (
        f"{name}={at} is not a timestamp of Nyala (microseconds since 1970 times {1 << LOGICAL_BITS}); if it means "
        f"{unit} since 1970, that is {moment}: write {name}='{moment}', or pass a datetime"
    )
