"""A private DuckDB for the statements of one open store: in memory, without files, locked.

Its memory is bounded by the store's `memory_limit`, or by `MEMORY_BYTES_MIN` where that is less; what does not fit is
spilled. That is apart from what the store's own scans take.

What it cannot do: read or write files (but for spilling what does not fit in memory to a temporary folder), load
extensions, see variables of the calling program, or have any of that changed by a statement. Its time zone is UTC, as
everywhere in Nyala.

A `Session` is a cursor on which the tables of one statement are registered, and that statement is prepared. A run that
reads all rows gives its session back, and the next run of the same statement takes it: that saves about half a
millisecond a table, and the planning. Sessions that nobody uses are kept under a key of all that DuckDB's plan depends
on (`ScanSource.planned_by`), at most `_SESSIONS_MAX` of them.

Invariants
    P1  A session that nobody uses refers to no scan, so it keeps no snapshot, file or table alive.
    P2  One run at a time uses a session. After an error the session is not given back.

DuckDB 2.0.0 answers "the rows of a that have no partner in b" (`a LEFT JOIN (… WHERE v IS NULL) b … WHERE b.k IS NULL`)
as if b were not filtered, where b is no table of its own: the rule that makes an anti join of it takes all filters with
it that it meets on the way. A DuckDB that is wrong there goes without the rule, ours and one that a scan is given to.

Source: docs/how-to/sql.md; DuckDB, "Securing DuckDB".
"""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
import threading
import weakref
from collections.abc import Hashable, Sequence
from typing import Any, Final

from nyala.sql.closing import LeftCursors, close_all
from nyala.sql.partners import Partner

SETTINGS: Final = {
    "enable_external_access": "false",
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
}


MEMORY_BYTES_MIN: Final = 512_000_000
"""So much DuckDB may always take: with less it fails at sorts of rows of some hundred bytes
(docs/design/sql-and-polars.md)."""
_SESSIONS_MAX: Final = 32
_RULE: Final = "outer_join_simplification"
# 0 has no partner, as what is grouped has no NULL: one row.
_PROBE: Final = (
    "SELECT count(*) FROM range(1) a(k) LEFT JOIN (SELECT k FROM (SELECT k, max(v) AS v FROM (VALUES (0, 2)) t(k, v) "
    "GROUP BY k) WHERE v IS NULL) b USING (k) WHERE b.k IS NULL"
)


class Session:
    """A cursor of DuckDB's, closed by the rules of `sql.closing` when nobody has the session any more."""

    def __init__(self, connection: Connection) -> None:
        self.cursor = connection.cursor()
        # At the end of the program too: DuckDB complains of connections that are open when the interpreter goes.
        self.made = connection.left.close_with(self, self.cursor)
        self.tables: Sequence[Any] = ()
        """What is registered, in the order of the statement's scans. Each has the `source` of the run (P1)."""
        self.partners: Sequence[Partner] = ()
        self.plan: Any = None
        """What runs the prepared statement; None: it is not prepared, or has to be planned again first."""


class Connection:
    """Makes cursors, each with tables of its own, on one DuckDB instance. Thread-safe; opened at first use."""

    def __init__(self, memory_limit_bytes: int) -> None:
        self._memory_bytes = max(memory_limit_bytes, MEMORY_BYTES_MIN)
        self._lock = threading.Lock()
        self._sessions: list[tuple[Hashable, Session]] = []  # the one that was used last comes last
        self._opened: list[Any] = []  # DuckDB's connection, once there is one
        self.left = LeftCursors()
        # DuckDB complains of connections that are still there when the interpreter ends.
        weakref.finalize(self, close_all, self._opened, self.left)

    def cursor(self) -> Any:
        """A DuckDB connection to the instance; what is registered on it, others don't see."""
        import duckdb

        with self._lock:
            self.left.close()
            if not self._opened:
                spill = os.path.join(tempfile.gettempdir(), f"nyala-sql-{os.getpid()}-{id(self):x}")
                settings: Any = {
                    **SETTINGS,
                    "temp_directory": spill,
                    "memory_limit": f"{self._memory_bytes}B",
                }
                opened = duckdb.connect(":memory:", config=settings)
                opened.execute("SET GLOBAL TimeZone = 'UTC'")
                without_lost_filters(opened)
                opened.execute("SET GLOBAL lock_configuration = true")
                self._opened.append(opened)
            return self._opened[0].cursor()

    def take(self, key: Hashable) -> Session | None:
        """The session that was given back last under an equal key, or None."""
        with self._lock:
            self.left.close()
            for place in reversed(range(len(self._sessions))):
                if self._sessions[place][0] == key:
                    return self._sessions.pop(place)[1]
        return None

    def give_back(self, key: Hashable, session: Session) -> None:
        """Keep a session for the next run of its statement."""
        for table in session.tables:
            table.source = None
        session.made.clear()
        with self._lock:
            if not self._opened:
                return  # closed meanwhile
            self._sessions.append((key, session))
            del self._sessions[:-_SESSIONS_MAX]

    def close(self) -> None:
        """Let the instance go as soon as no result uses it."""
        with self._lock:
            self._sessions.clear()
            close_all(self._opened, self.left)


def without_lost_filters(con: Any) -> None:
    """Have a DuckDB go without the rule that forgets filters, if it has it and it does.

    con: a connection, or the module for its default one. One whose settings are locked stays as it is.
    """
    if not _loses_filters():
        return
    import duckdb

    # A cursor of its own: the connection may be in the middle of an answer.
    with contextlib.suppress(duckdb.Error), contextlib.closing(con.cursor()) as cursor:
        ((off,),) = cursor.execute("SELECT current_setting('disabled_optimizers')").fetchall()
        if _RULE not in off.split(","):
            cursor.execute(f"SET GLOBAL disabled_optimizers = '{','.join(filter(None, [off, _RULE]))}'")


@functools.cache
def _loses_filters() -> bool:
    """Whether the installed DuckDB is wrong with the rule, and right without. Cost: a statement, once a process."""
    import duckdb

    with contextlib.closing(duckdb.connect(":memory:")) as tried, contextlib.suppress(duckdb.Error):
        if tried.execute(_PROBE).fetchall() != [(1,)]:
            tried.execute(f"SET disabled_optimizers = '{_RULE}'")
            return tried.execute(_PROBE).fetchall() == [(1,)]
    return False
