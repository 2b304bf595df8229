"""Counters for auto-incrementing key columns: one per tablet, from 1.

The counter is at least as great as each value in the tablet's rows. Each flush, and each commit of
a batch as files, stores the counter in the catalogue (`TabletEntry.auto_id`). The replay of the log
raises the counter. So no value is used twice, even after a crash.

Source: Kudu 1.17, "Non-unique primary keys"; docs/design/kudu.md, "Auto-incrementing column".
"""

from __future__ import annotations

import threading
from typing import Final

import numpy as np

from nyala.errors import InvalidArgumentError

_ID_MAX: Final = (1 << 63) - 1


class AutoIds:
    """The counter of one tablet's auto-incrementing values. Thread-safe."""

    def __init__(self, last: int = 0) -> None:
        self._last = last
        self._lock = threading.Lock()

    @property
    def last(self) -> int:
        """The greatest value so far; 0: none."""
        return self._last

    def give(self, given: np.ndarray) -> np.ndarray:
        """Return the auto-incrementing value of each row, in the order of the rows.

        given: for each row, the value that it already has; 0: the row gets the next value of the
               counter. A value above the counter raises the counter.
        Raises: InvalidArgumentError if the next value would be above 2^63 - 1.
        """
        if not len(given):
            return given
        lacks = given == 0
        new = np.cumsum(lacks)  # how many rows up to this one need a value
        with self._lock:
            top = max(self._last, int(given.max()))
            if int(new[-1]) > _ID_MAX - top:
                raise InvalidArgumentError(
                    f"auto_incrementing_id has no {new[-1]:,} more values after {top}: copy the rows into a new table"
                )
            ahead = np.maximum.accumulate(np.where(lacks, self._last, given - new))
            counter = np.maximum(ahead, self._last) + new
            self._last = int(counter[-1])
        return np.where(lacks, counter, given)

    def note(self, value: int) -> None:
        """Raise the counter to `value`, if the counter is smaller."""
        with self._lock:
            self._last = max(self._last, value)
