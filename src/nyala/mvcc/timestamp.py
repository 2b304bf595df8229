"""Timestamps: what a user may say, and the 64-bit number that it means.

A timestamp is a HybridTime: microseconds since the Unix epoch, shifted left by 12, plus a logical counter.

    63                                          12 11        0
    +---------------------------------------------+-----------+
    | microseconds since 1970-01-01T00:00:00Z     | logical   |
    +---------------------------------------------+-----------+

It is kept in a signed 64-bit integer (Arrow's and NumPy's int64), so the last moment is in May 2041.
A datetime names a whole microsecond; it stands for the *end* of that microsecond, so that the time at which a
write was acknowledged includes the write.

Source: design, "Timestamps are HybridTime"; Kudu facts §4.1. Departure from Kudu: a snapshot at T sees T itself.
"""

from __future__ import annotations

import datetime as dt
from typing import Final

from nyala.errors import InvalidArgumentError

LOGICAL_BITS: Final = 12
LOGICAL_MAX: Final = (1 << LOGICAL_BITS) - 1
TIMESTAMP_MAX: Final = 2**63 - 1
# Before the first write of a store: sees nothing.
TIMESTAMP_ZERO: Final = 0

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def from_physical(microseconds: int, logical: int = 0) -> int:
    """The timestamp of `logical` within the microsecond `microseconds` since the epoch."""
    return (microseconds << LOGICAL_BITS) | logical


def physical_us(timestamp: int) -> int:
    """Microseconds since the epoch of `timestamp`, its logical part dropped."""
    return timestamp >> LOGICAL_BITS


def to_datetime(timestamp: int) -> dt.datetime:
    """The UTC time of `timestamp`, to the microsecond (`nyala.to_datetime`)."""
    try:
        return _EPOCH + dt.timedelta(microseconds=physical_us(int(timestamp)))
    except (OverflowError, TypeError, ValueError) as error:
        raise InvalidArgumentError(f"{timestamp!r} is not a timestamp of Nyala's") from error


def microseconds_of(moment: dt.datetime) -> int:
    """Microseconds since the epoch; a naive time is UTC."""
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)
    return (aware - _EPOCH) // dt.timedelta(microseconds=1)


def parse_at(at: object) -> int:
    """The timestamp that `at` names: an int of ours, a datetime, a date's ISO text, or anything with `.timestamp`.

    Raises: InvalidArgumentError when it names no moment.
    """
    if isinstance(at, bool):
        raise InvalidArgumentError(
            "at=… takes a timestamp, a datetime, ISO text or a WriteResult, not a bool"
        )
    if isinstance(at, int):
        if not 0 <= at <= TIMESTAMP_MAX:
            raise InvalidArgumentError(f"at={at} is outside the timestamps 0..{TIMESTAMP_MAX}")
        return at
    if isinstance(at, str):
        text = at.strip()
        if text.isdecimal():
            return parse_at(int(text))
        try:
            at = dt.datetime.fromisoformat(text)
        except ValueError as error:
            raise InvalidArgumentError(
                f"at={at!r} is neither a timestamp nor ISO time such as '2026-11-20T10:00:00Z'"
            ) from error
    if isinstance(at, dt.datetime):
        return max(from_physical(microseconds_of(at), LOGICAL_MAX), 0)
    stamp = getattr(at, "timestamp", None)
    if isinstance(stamp, int):
        return parse_at(stamp)
    raise InvalidArgumentError(
        f"at=… takes a timestamp (int), a datetime, ISO text or a WriteResult, not {type(at).__name__}"
    )
