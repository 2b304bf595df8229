"""Gives the values of an auto-incrementing key column: a counter per tablet, from 1.

All versions of a tablet share one counter. It is ahead of every value in the tablet's rows: the
catalogue stores it with each flush and each batch committed as files (`TabletEntry.auto_id`), and
the replay of the log raises it. So no value is given twice, also after a crash.

Source: Kudu 1.17, "Non-unique primary keys"; docs/design/kudu.md, "Auto-incrementing column".
"""

from __future__ import annotations

import threading
from typing import Final

from nyala.errors import InvalidArgumentError

__all__ = ["AutoIds"]

_ID_MAX: Final = (1 << 63) - 1


class AutoIds:
    """The counter of one tablet. Thread-safe."""

    def __init__(self, last: int = 0) -> None:
        self._last = last
        self._lock = threading.Lock()

    @property
    def last(self) -> int:
        """The greatest value so far; 0: none."""
        return self._last

    def take(self, count: int) -> int:
        """Take the next `count` values; returns the first. Raises: InvalidArgumentError after 2^63 - 1."""
        with self._lock:
            if count > _ID_MAX - self._last:
                raise InvalidArgumentError(
                    f"no {count:,} values of auto_incrementing_id are left after {self._last}: copy the rows into a "
                    "new table"
                )
            first = self._last + 1
            self._last += count
            return first

    def note(self, value: int) -> None:
        """Continue after this value."""
        with self._lock:
            self._last = max(self._last, value)
