"""What a write returns: to the user, and from under the lock to the thread that waits for the sync."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from nyala.mvcc.timestamp import to_datetime


def _none_failed() -> pa.Table:
    """No rows, where the key's columns are not at hand."""
    return pa.table(
        {
            "row": pa.nulls(0, pa.int64()),
            **{name: pa.nulls(0, pa.string()) for name in ("operation", "code", "message")},
        }
    )


@dataclass(frozen=True)
class WriteResult:
    """Outcome of one operation: its timestamp and what became of its rows.

    `timestamp` reads the write: `table.scan(at=result.timestamp)` or simply `at=result`. Counts report what was
    asked: an upsert of one key twice counts two rows. `errors` is an Arrow table (row, operation, code, message,
    key columns) of the rows that `errors="collect"` left out, empty otherwise; never None.
    """

    timestamp: int
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    ignored: int = 0
    errors: Any = field(default_factory=_none_failed, compare=False)

    @property
    def time(self) -> dt.datetime:
        """The timestamp as a UTC datetime."""
        return to_datetime(self.timestamp)

    def __repr__(self) -> str:
        return (
            f"WriteResult(timestamp={self.timestamp}, inserted={self.inserted}, updated={self.updated}, "
            f"deleted={self.deleted}, ignored={self.ignored}, errors={len(self.errors)} rows)"
        )


@dataclass(frozen=True)
class Ticket:
    """A batch that is applied: what its caller has yet to wait for. `log_offset` None: nothing was logged."""

    timestamp: int
    log_offset: int | None
