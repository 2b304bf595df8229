"""When a cursor of DuckDB's is closed that nobody has any more.

    its user is collected ──► in a thread nobody waits for        closed there
                              in one that reads or decodes rows   left, for the next cursor that is made, or for the
                              for a statement                     end of the connection

Who closes a cursor waits for the threads that work on its statement. The collector works in any thread, also in one
that reads or decodes rows for that very statement: it would wait for itself (DuckDB 1.4), or is refused
(2.0), and what the statement reads stayed open for ever. A cursor that is left keeps it until it is closed.

Source: Python, `gc`; decision 0014.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from nyala.tablet.parallel import is_worker

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LeftCursors", "close_all", "read_for_duckdb"]

# The threads in which DuckDB reads rows of ours now.
_reading: Final[set[int]] = set()


def read_for_duckdb(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches, each made in a thread that is known to read for DuckDB."""
    while True:
        ident = threading.get_ident()
        _reading.add(ident)  # before anything is allocated that the collector counts
        try:
            batch = next(batches, None)
        finally:
            _reading.discard(ident)
        if batch is None:
            return
        yield batch


class LeftCursors:
    """The cursors of one connection that are to be closed."""

    def __init__(self) -> None:
        self._left: list[Any] = []

    def __len__(self) -> int:
        return len(self._left)

    def close_with(self, user: object, cursor: Any) -> weakref.finalize[..., object]:
        """Have a cursor closed when its user is collected; what is returned does it at once."""
        return weakref.finalize(user, self._close_or_leave, cursor)

    def close(self) -> None:
        """Close what was left, in a thread that reads nothing."""
        for _ in range(len(self._left)):
            self._close_or_leave(self._left.pop(0))

    def _close_or_leave(self, cursor: Any) -> None:
        if threading.get_ident() in _reading or is_worker() or not _closes(cursor):
            self._left.append(cursor)


def close_all(opened: list[Any], left: LeftCursors) -> None:
    """Close connections, and take them out of the list; what was left before.

    A statement that another thread runs meanwhile ends by itself, or by what its scans say of the closed store; DuckDB
    closes no connection under it, which goes with its last cursor.
    """
    left.close()
    while opened:
        _closes(opened.pop())


def _closes(connection: Any) -> bool:
    import duckdb

    try:
        connection.close()
    except duckdb.Error:
        return False
    return True
