"""What runs for one user now, and how another thread interrupts it.

    interrupt()  ──► the DuckDB sessions of this user's statements    their SELECTs fail
                 └─► a mark, which a statement that writes checks      between its parts, until its commit starts

In the main thread Ctrl-C needs no interrupt: DuckDB looks for signals itself, between its tasks (`is_signal`).

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

__all__ = ["Running", "StatementInterrupted", "is_signal"]


class StatementInterrupted(Error):
    """Another thread interrupted the statement before it committed."""

    def __init__(self) -> None:
        super().__init__("the statement was interrupted, and changed nothing")


def is_signal(error: RuntimeError) -> bool:
    """Whether a signal handler, such as that of Ctrl-C, raised while DuckDB ran in the main thread.

    DuckDB keeps only this text of what the handler raised.
    """
    return str(error) == "Query interrupted"


class Running:
    """The sessions that run statements of one user, for `interrupt`. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_interrupted = False
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()

    def add(self, session: Session) -> None:
        with self._lock:
            self._sessions.add(session)

    def discard(self, session: Session) -> None:
        """Forget the session, which another user may take next."""
        with self._lock:
            self._sessions.discard(session)

    def begin(self) -> None:
        """Begin a statement, which earlier interrupts do not affect."""
        self._is_interrupted = False

    def check(self) -> None:
        """Raises: StatementInterrupted after an interrupt of the statement."""
        if self._is_interrupted:
            raise StatementInterrupted

    def interrupt(self) -> None:
        """Let the statements that run now fail, from another thread. One that begins later is not affected."""
        import duckdb

        with self._lock:
            self._is_interrupted = True
            for session in self._sessions:
                with contextlib.suppress(duckdb.ConnectionException):  # it was closed in this moment
                    session.cursor.interrupt()
