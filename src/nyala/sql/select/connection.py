"""The private DuckDB of one open store: in memory, with locked settings.

A store has two of them at most. One has access to files, for the program's own SQL (`ProgramAccess`). The other has
none, for SQL from elsewhere (`StoreAccess`). Each is opened at its first use.

Its memory is bounded by the store's `memory_limit`, at least `MEMORY_BYTES_MIN`; it spills the rest to a
temporary folder. The store's own scans have their memory apart from that.

Statements cannot load extensions or change these settings. DuckDB sees no variables of the program:
`program_objects.py` registers those that a statement names. The time
zone is UTC, as everywhere in Nyala.

A `Session` is a cursor with the tables of one statement registered and the statement prepared. A run that
reads all rows returns its session, and the next run of the same statement takes it: that saves about half a
millisecond per table, and the planning. Unused sessions are kept under a key of everything that DuckDB's plan
depends on (`ScanSource.planned_by`), at most `_SESSIONS_MAX` of them.

Invariants
    P1  An unused session refers to no scan, so it keeps no snapshot, file or table alive.
    P2  One run at a time uses a session. After an error the session is discarded.

Two bugs of DuckDB 2.0.0 are avoided. A COPY … TO that fails or is interrupted while DuckDB's asynchronous
threads write its file can wait for ever, so there are no such threads (`async_threads`). The rule
`outer_join_simplification` loses the filter of an anti join on a table that is not DuckDB's own
(`a LEFT JOIN (… WHERE v IS NULL) b … WHERE b.k IS NULL`). If the installed DuckDB has this bug, the rule is
switched off, here and on connections that a scan is given to.

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

from nyala.sql.select.closing import LeftCursors, close_all
from nyala.sql.select.partners import Partner

SETTINGS: Final[dict[str, Any]] = {
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
    "async_threads": "0",
}
MEMORY_BYTES_MIN: Final = 512_000_000
"""DuckDB's memory limit is at least this: with less it fails to sort rows of some hundred bytes
(docs/design/sql-and-polars.md)."""
SMALL: Final[dict[str, Any]] = {
    **SETTINGS,
    "threads": 1,
    "memory_limit": f"{MEMORY_BYTES_MIN}B",
    "temp_directory": "",
}
"""The settings of a DuckDB without rows, which computes little and spills nothing."""
_SESSIONS_MAX: Final = 32
_RULE: Final = "outer_join_simplification"
# The right answer is 1: the filter removes the only partner of row 0.
_PROBE: Final = (
    "SELECT count(*) FROM range(1) a(k) LEFT JOIN (SELECT k FROM (SELECT k, max(v) AS v FROM (VALUES (0, 2)) t(k, v) "
    "GROUP BY k) WHERE v IS NULL) b USING (k) WHERE b.k IS NULL"
)


class Session:
    """A DuckDB cursor, which `sql.select.closing` closes when the session has no references any more."""

    def __init__(self, connection: Connection) -> None:
        self.cursor = connection.cursor()
        # Also at the end of the program: DuckDB warns about connections that are open when the interpreter exits.
        self.made = connection.left.close_with(self, self.cursor)
        self.tables: Sequence[Any] = ()
        """The registered tables, in the order of the statement's scans. Each has the `source` of the run (P1)."""
        self.partners: Sequence[Partner] = ()
        self.plan: Any = None
        """What runs the prepared statement; None: it is not prepared, or must be planned again."""


class Connection:
    """Makes cursors, each with tables of its own, on one DuckDB instance. Thread-safe; opened at first use."""

    def __init__(self, memory_limit_bytes: int, *, files: bool = False) -> None:
        """files: whether statements can read and write files."""
        self._files = files
        self._memory_bytes = max(memory_limit_bytes, MEMORY_BYTES_MIN)
        self._lock = threading.Lock()
        self._sessions: list[tuple[Hashable, Session]] = []  # the last used one is last
        self._opened: list[Any] = []  # DuckDB's connection, once there is one
        self.left = LeftCursors()
        # DuckDB warns about connections that are open when the interpreter exits.
        weakref.finalize(self, close_all, self._opened, self.left)

    def cursor(self) -> Any:
        """Return a DuckDB cursor; tables that are registered on it are not visible on others."""
        import duckdb

        with self._lock:
            self.left.close()
            if not self._opened:
                spill = os.path.join(tempfile.gettempdir(), f"nyala-sql-{os.getpid()}-{id(self):x}")
                settings: Any = {
                    **SETTINGS,
                    "enable_external_access": "true" if self._files else "false",
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
        """Return the session that was last kept under an equal key, or None."""
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
                return  # closed in the meantime
            self._sessions.append((key, session))
            del self._sessions[:-_SESSIONS_MAX]

    def close(self) -> None:
        """Close the instance as soon as no result uses it."""
        with self._lock:
            self._sessions.clear()
            close_all(self._opened, self.left)


def without_lost_filters(con: Any) -> None:
    """Switch off DuckDB's rule that loses filters, if the installed version has the bug.

    con: a connection, or the module for its default connection. A connection with locked settings stays as it is.
    """
    if not _loses_filters():
        return
    import duckdb

    # A separate cursor: the connection may be returning a result.
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
