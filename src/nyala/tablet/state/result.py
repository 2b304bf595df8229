"""The result of a write for the user, and the ticket with which a thread waits for the sync."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from nyala.errors import counted
from nyala.mvcc.timestamp import to_datetime


def _none_failed() -> pa.Table:
    """Return a table of row errors with no rows: the default of `WriteResult.errors`."""
    return pa.table(
        {
            "row": pa.nulls(0, pa.int64()),
            **{name: pa.nulls(0, pa.string()) for name in ("operation", "code", "message")},
        }
    )


@dataclass(frozen=True)
class WriteResult:
    """The result of one write operation: its timestamp and row counts.

    Pass the result as `at=` to read what was written: `table.scan(at=result)`. Counts report the
    requested operations: an upsert with one key twice counts two rows. `errors` is an Arrow table
    (row, operation, code, message, key columns) of the rows that `errors="collect"` left out.
    Without errors it is empty, never None.
    """

    timestamp: int
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    ignored: int = 0
    errors: Any = field(default_factory=_none_failed, compare=False)
    _outcomes: Any = field(default=None, compare=False, repr=False)
    """Only for `Table.apply`: each row's outcome, as a number that `tablet.write.effects` defines."""

    @property
    def time(self) -> dt.datetime:
        """The timestamp as a UTC datetime."""
        return to_datetime(self.timestamp)

    def __repr__(self) -> str:
        return (
            f"WriteResult(timestamp={self.timestamp}, time={self.time.isoformat()}, inserted={self.inserted}, "
            f"updated={self.updated}, deleted={self.deleted}, ignored={self.ignored}, "
            f"errors={counted(len(self.errors), 'row')})"
        )


@dataclass(frozen=True)
class Ticket:
    """The timestamp of a batch that is applied, but perhaps not durable and published yet.

    log_offset: the end of the batch's record in the log; None: nothing was logged.
    """

    timestamp: int
    log_offset: int | None
