"""Interrupts the running statements of one `SqlSession` from another thread.

`interrupt` stops the DuckDB sessions of the statements, so that their SELECTs fail. It also sets a
flag in `Running`. A statement that writes checks this flag until its commit starts.

Ctrl-C in the main thread needs no interrupt: DuckDB itself checks for signals between its tasks
(`is_signal`).

Source: DuckDB, `duckdb_interrupt`.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import TYPE_CHECKING

from nyala.errors import Error

if TYPE_CHECKING:
    from nyala.sql.select.connection import Session


class StatementInterrupted(Error):
    """Another thread interrupted the statement before it committed."""

    def __init__(self) -> None:
        super().__init__("the statement was interrupted, and changed nothing")


def is_signal(error: RuntimeError) -> bool:
    """Whether a signal handler, such as the one of Ctrl-C, raised an error while DuckDB ran in the main thread.

    DuckDB replaces the error of the handler by a RuntimeError with the text "Query interrupted".
    """
    return str(error) == "Query interrupted"


class Running:
    """The DuckDB sessions that execute the statements of one `SqlSession`. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_interrupted = False
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()

    def add(self, session: Session) -> None:
        with self._lock:
            self._sessions.add(session)

    def discard(self, session: Session) -> None:
        """Remove the session from this set, so that `interrupt` does not stop the session's next user."""
        with self._lock:
            self._sessions.discard(session)

    def begin(self) -> None:
        """Begin a statement. Earlier interrupts do not affect it."""
        self._is_interrupted = False

    def check(self) -> None:
        """Raise StatementInterrupted if the statement was interrupted."""
        if self._is_interrupted:
            raise StatementInterrupted

    def interrupt(self) -> None:
        """Interrupt the statements that run now. Statements that begin later are not affected."""
        import duckdb

        with self._lock:
            self._is_interrupted = True
            for session in self._sessions:
                with contextlib.suppress(duckdb.ConnectionException):  # the session was closed meanwhile
                    session.cursor.interrupt()
