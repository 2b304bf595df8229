"""The DuckDB sessions that statements of one user run on, so that an interrupt reaches no other user's.

Source: DuckDB, `duckdb_interrupt`.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nyala.sql.select.connection import Session

__all__ = ["Running"]


class Running:
    """The sessions that run statements of one user, for `interrupt`. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()

    def add(self, session: Session) -> None:
        with self._lock:
            self._sessions.add(session)

    def discard(self, session: Session) -> None:
        """Forget the session, which another user may take next."""
        with self._lock:
            self._sessions.discard(session)

    def interrupt(self) -> None:
        """Let the statements that run now fail, from another thread. One that begins later is not affected."""
        import duckdb

        with self._lock:
            for session in self._sessions:
                with contextlib.suppress(duckdb.ConnectionException):  # it was closed in this moment
                    session.cursor.interrupt()
