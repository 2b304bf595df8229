"""Closes the DuckDB cursors of objects that no longer exist, but never inside the garbage collector.

    the last reference to the object goes       its cursor is closed at once
    the garbage collector finds the object      its cursor is closed with the next new cursor, or with the connection

A thread that closes a cursor waits for the threads that execute the cursor's statement. The
collector may run in one of these threads, or in a thread that they wait for. In such a thread
DuckDB refuses to close the cursor, and the files of its statement would stay open. So no cursor is
closed while the collector runs. Until a cursor is closed, it keeps the files that its statement
reads.

Cost: one call per collection of the garbage collector, from the first statement on.
Source: Python, `gc.callbacks`; docs/design/sql-and-polars.md, "A private, locked DuckDB".
"""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any, Final

# Threads in which the collector runs now.
_collecting: Final[set[int]] = set()


def _note(phase: str, info: dict[str, int]) -> None:
    if phase == "start":
        _collecting.add(threading.get_ident())
    else:
        _collecting.discard(threading.get_ident())


gc.callbacks.append(_note)


class UnusedCursors:
    """The cursors of one connection that are no longer used but not closed yet.

    Also holds the streams through which the program read the results of these cursors.
    """

    def __init__(self) -> None:
        self._unused: list[tuple[Any, list[Any]]] = []

    def __len__(self) -> int:
        return len(self._unused)

    def close_with(self, user: object, cursor: Any) -> list[Any]:
        """Close the cursor when Python frees `user`, or soon after.

        user: the object that uses the cursor.
        Returns an empty list. The caller must append each stream that the cursor makes. The list keeps
        the streams until the cursor is closed, so the garbage collector cannot free them earlier. To
        free a stream of an open cursor, the collector would wait for the threads that execute the
        statement.
        """
        made: list[Any] = []
        weakref.finalize(user, self._close_or_leave, cursor, made)
        return made

    def close(self) -> None:
        """Close these cursors. Those that DuckDB refuses to close stay for the next call."""
        for _ in range(len(self._unused)):
            self._close_or_leave(*self._unused.pop(0))

    def _close_or_leave(self, cursor: Any, made: list[Any]) -> None:
        if threading.get_ident() in _collecting or not _closes(cursor):
            self._unused.append((cursor, made))
        else:
            made.clear()


def close_all(opened: list[Any], unused: UnusedCursors) -> None:
    """Close the cursors of `unused`, then the connections in `opened`, and empty this list.

    A statement that still runs in another thread finishes, or fails because its scan finds the
    store closed. DuckDB keeps the connection until the last cursor is closed.
    """
    unused.close()
    while opened:
        _closes(opened.pop())


def _closes(connection: Any) -> bool:
    import duckdb

    try:
        connection.close()
    except duckdb.Error:
        return False
    return True
