"""The private DuckDB of one open store: in memory, with locked settings.

A store has at most two of these DuckDBs. One can access files, for the program's own SQL
(`ProgramRights`). The other one cannot, for SQL from elsewhere (`StoreRights`). Each is opened at
its first use.

DuckDB may use as much memory as the store's `memory_limit`, but at least `MEMORY_BYTES_MIN`, and
spills the rest to a temporary folder. The memory of Nyala's scans is not part of it.

Statements cannot load extensions or change settings. DuckDB sees no variables of the program,
except those that a statement names (`program_objects.py`). The time zone is UTC, as everywhere in
Nyala.

A `Session` is a cursor with the registered tables of one statement and its prepared plan. After a
run has read all rows, the next run of the same statement reuses the session. This saves the
planning, and half a millisecond for each table. At most `_SESSIONS_MAX` unused sessions are kept.
The key of a session contains all facts on which DuckDB's plan depends (`ScanSource.planned_by`).

Invariants
    P1  An unused session refers to no scan, so it keeps no snapshot, file or table alive.
    P2  One run at a time uses a session. After an error the session is discarded.

Two bugs of DuckDB 2.0.0 are avoided:
    A COPY … TO that fails or is interrupted can wait for ever, if DuckDB's asynchronous threads
    write its file. So DuckDB has no such threads here (`async_threads`).
    The rule `outer_join_simplification` of the optimiser loses a filter, as in
    `a LEFT JOIN (… WHERE v IS NULL) b … WHERE b.k IS NULL`. If the installed DuckDB has this bug,
    the rule is switched off, here and on each connection that reads a scan.

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

from nyala.sql.select.closing import UnusedCursors, close_all
from nyala.sql.select.partners import Partner

SETTINGS: Final[dict[str, Any]] = {
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
    "async_threads": "0",
}
MEMORY_BYTES_MIN: Final = 512_000_000
"""The least memory limit of DuckDB: with less it fails to sort rows of some hundred bytes
(docs/design/sql-and-polars.md)."""
SMALL: Final[dict[str, Any]] = {
    **SETTINGS,
    "threads": 1,
    "memory_limit": f"{MEMORY_BYTES_MIN}B",
    "temp_directory": "",
}
"""The settings of a DuckDB that has no rows and computes little."""
_SESSIONS_MAX: Final = 32
_RULE: Final = "outer_join_simplification"
# The right answer is 1, because the filter removes the only partner of row 0.
_PROBE: Final = (
    "SELECT count(*) FROM range(1) a(k) LEFT JOIN (SELECT k FROM (SELECT k, max(v) AS v FROM (VALUES (0, 2)) t(k, v) "
    "GROUP BY k) WHERE v IS NULL) b USING (k) WHERE b.k IS NULL"
)


class Session:
    """A DuckDB cursor, which is closed when the session no longer exists (`select/closing.py`)."""

    def __init__(self, connection: Connection) -> None:
        self.cursor = connection.cursor()
        # The streams that the cursor made.
        self.made = connection.unused.close_with(self, self.cursor)
        self.tables: Sequence[Any] = ()
        """The registered tables, in the order of the statement's scans. Each has a `source` only during a run."""
        self.partners: Sequence[Partner] = ()
        self.plan: Any = None
        """The EXECUTE of the prepared statement; None: it is not prepared, or must be planned again."""


class Connection:
    """One DuckDB instance, opened at its first use, and the unused sessions on it. Thread-safe."""

    def __init__(self, memory_limit_bytes: int, *, files: bool = False) -> None:
        """files: whether statements can read and write files."""
        self._files = files
        self._memory_bytes = max(memory_limit_bytes, MEMORY_BYTES_MIN)
        self._lock = threading.Lock()
        self._sessions: list[tuple[Hashable, Session]] = []  # the most recently used session is the last
        self._opened: list[Any] = []  # DuckDB's connection after the first use
        self.unused = UnusedCursors()
        # DuckDB warns about connections that are open when the interpreter exits.
        weakref.finalize(self, close_all, self._opened, self.unused)

    def cursor(self) -> Any:
        """Return a new DuckDB cursor. Other cursors do not see the tables that are registered on it."""
        import duckdb

        with self._lock:
            self.unused.close()
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
        """Return an unused DuckDB session for a statement, and no longer keep it; None if no session fits.

        key: the text of the statement and all other facts on which DuckDB's plan depends. A session
            fits if `give_back` kept it with an equal key.
        """
        with self._lock:
            self.unused.close()
            for place in reversed(range(len(self._sessions))):
                if self._sessions[place][0] == key:
                    return self._sessions.pop(place)[1]
        return None

    def give_back(self, key: Hashable, session: Session) -> None:
        """Keep an unused session for the next run of its statement."""
        for table in session.tables:
            table.source = None
        session.made.clear()
        with self._lock:
            if not self._opened:
                return  # the store was closed meanwhile
            self._sessions.append((key, session))
            del self._sessions[:-_SESSIONS_MAX]

    def close(self) -> None:
        """Close the DuckDB instance. DuckDB keeps it in memory until no result uses it."""
        with self._lock:
            self._sessions.clear()
            close_all(self._opened, self.unused)


def without_lost_filters(con: Any) -> None:
    """Switch off DuckDB's rule that loses filters, if the installed version has the bug.

    con: a connection of DuckDB, or the module `duckdb` for the default connection. If its settings
        are locked, the rule stays on.
    """
    if not _loses_filters():
        return
    import duckdb

    # On another cursor, because `con` may be in the middle of returning rows.
    with contextlib.suppress(duckdb.Error), contextlib.closing(con.cursor()) as cursor:
        ((off,),) = cursor.execute("SELECT current_setting('disabled_optimizers')").fetchall()
        if _RULE not in off.split(","):
            cursor.execute(f"SET GLOBAL disabled_optimizers = '{','.join(filter(None, [off, _RULE]))}'")


@functools.cache
def _loses_filters() -> bool:
    """Whether the installed DuckDB has a bug in the rule `outer_join_simplification` of its optimiser.

    Executes a query that has a wrong result with the bug, and the right result without the rule.
    """
    import duckdb

    with contextlib.closing(duckdb.connect(":memory:")) as tried, contextlib.suppress(duckdb.Error):
        if tried.execute(_PROBE).fetchall() != [(1,)]:
            tried.execute(f"SET disabled_optimizers = '{_RULE}'")
            return tried.execute(_PROBE).fetchall() == [(1,)]
    return False
