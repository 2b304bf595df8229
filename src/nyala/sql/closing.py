"""When a cursor of DuckDB's is closed that nobody has any more.

    its user is gone  ──► with the last name for it       closed there
                          because the collector came      left, for the next cursor that is made, or for the end of the
                                                          connection

A thread that closes a cursor waits for the threads that work on its statement. The collector works in any thread, at
any allocation: also in one that reads rows for that very statement, or that holds what those threads wait for, such as
a block that it is decoding. DuckDB refuses to close there, and what the statement reads stayed open for ever. So under
the collector nothing is closed, and no stream of a cursor ends. A cursor that is left keeps what its statement reads.

Cost: a call for each of Python's collections, from the first statement on.
Source: Python, `gc.callbacks`; docs/design/sql-and-polars.md, "A private, locked DuckDB".
"""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any, Final

__all__ = ["LeftCursors", "close_all"]

# The threads that collect now.
_collecting: Final[set[int]] = set()


def _note(phase: str, info: dict[str, int]) -> None:
    if phase == "start":
        _collecting.add(threading.get_ident())
    else:
        _collecting.discard(threading.get_ident())


gc.callbacks.append(_note)


class LeftCursors:
    """The cursors of one connection that are to be closed, with what was made by them."""

    def __init__(self) -> None:
        self._left: list[tuple[Any, list[Any]]] = []

    def __len__(self) -> int:
        return len(self._left)

    def close_with(self, user: object, cursor: Any) -> list[Any]:
        """Have a cursor closed when its user is gone, or soon after.

        Returns: a list for what has to stay until then, as streams of the cursor's: the end of one waits too.
        """
        made: list[Any] = []
        weakref.finalize(user, self._close_or_leave, cursor, made)
        return made

    def close(self) -> None:
        """Close what was left."""
        for _ in range(len(self._left)):
            self._close_or_leave(*self._left.pop(0))

    def _close_or_leave(self, cursor: Any, made: list[Any]) -> None:
        if threading.get_ident() in _collecting or not _closes(cursor):
            self._left.append((cursor, made))
        else:
            made.clear()


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
