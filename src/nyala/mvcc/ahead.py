"""Interprets a datetime, such as `at=datetime.now(UTC)`, after the clock was set back.

Timestamps never decrease. If the clock was an hour ahead and was corrected to 10:00, batches keep
getting timestamps just after 11:00 until the clock reaches 11:00. A batch that is written at 10:05
then has the timestamp 11:00, and a read of "10:05" would miss the batch.

So a datetime in such a period means the newest timestamp of the period. The read sees every
acknowledged batch, and possibly later batches of the period. Timestamps and WriteResults stay
exact.

Each open store has one `AheadOfClock`. Its state is not stored. Any thread may use it.
"""

from __future__ import annotations

from typing import Final

from nyala.mvcc.timestamp import from_physical, physical_us

# A caller may have read the clock up to a minute before this module noticed that the clock is
# behind. The period therefore begins a minute earlier, or less if the clock is less far behind.
GRACE_US: Final = 60_000_000


class AheadOfClock:
    """The latest period in which the store's timestamps were ahead of the machine's clock."""

    def __init__(self) -> None:
        # As timestamps: the machine's time at its beginning, and the newest timestamp of the store.
        self._period: tuple[int, int] | None = None

    def note(self, published: int, now_us: int) -> None:
        """Check whether the store's timestamps are ahead of the machine's clock now.

        If they are, begin a period, or extend the current one to now. A read as of a datetime in
        such a period reads at the newest timestamp of the period (see `resolve`).

        published: the newest timestamp of the store.
        now_us:    the machine's clock, in microseconds since 1970.
        """
        ahead_us = physical_us(published) - now_us
        if ahead_us > 0:
            begin = (
                self._period[0] if self._period else from_physical(max(now_us - min(ahead_us, GRACE_US), 0))
            )
            self._period = begin, published

    def covers(self, timestamp: int) -> bool:
        """Whether the store's timestamps were ahead of the machine's clock at the given datetime.

        If so, `resolve` returns a later timestamp than `timestamp`.

        timestamp: the user's datetime, converted by `parse_at`.
        """
        return self.resolve(timestamp) != timestamp

    def resolve(self, timestamp: int) -> int:
        """Return the timestamp to read at, if a user reads as of a datetime.

        Usually this is `timestamp` itself. But the datetime may be in the latest period in which
        the store's timestamps were ahead of the machine's clock. Then rows that were written before
        the datetime may have later timestamps. So the result is the newest timestamp of the period,
        and the read sees these rows.

        timestamp: the user's datetime, converted by `parse_at`.
        """
        period = self._period
        return period[1] if period is not None and period[0] <= timestamp < period[1] else timestamp
