"""A private DuckDB for the statements of one open store: in memory, without files, locked.

Its memory is bounded by the store's `memory_limit`, or by `MEMORY_BYTES_MIN` where that is less; what does not fit is
spilled. That is apart from what the store's own scans take.

What it cannot do: read or write files (but for spilling what does not fit in memory to a temporary folder), load
extensions, see variables of the calling program, or have any of that changed by a statement. Its time zone is UTC, as
everywhere in Nyala.

DuckDB 2.0.0 answers "the rows of a that have no partner in b" (`a LEFT JOIN (… WHERE v IS NULL) b … WHERE b.k IS NULL`)
as if b were not filtered, where b is no table of its own: the rule that makes an anti join of it takes all filters with
it that it meets on the way. A DuckDB that is wrong there goes without the rule, ours and one that a scan is given to.

Source: shared contract, `db.sql`; DuckDB, "Securing DuckDB".
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import tempfile
import threading
import weakref
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from nyala.sql.closing import LeftCursors, close_all
from nyala.sql.partners import Partner, partners_in

SETTINGS: Final = {
    "enable_external_access": "false",
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
}


MEMORY_BYTES_MIN: Final = 512_000_000
"""So much DuckDB may always take: with less it fails at sorts of rows of some hundred bytes (decision 0039)."""
_SERIALIZE: Final = (
    "SELECT json_serialize_sql(?, skip_default := true, skip_empty := true, skip_null := true)"
)
_TREES_MAX: Final = 64
_RULE: Final = "outer_join_simplification"
# 0 has no partner, as what is grouped has no NULL: one row.
_PROBE: Final = (
    "SELECT count(*) FROM range(1) a(k) LEFT JOIN (SELECT k FROM (SELECT k, max(v) AS v FROM (VALUES (0, 2)) t(k, v) "
    "GROUP BY k) WHERE v IS NULL) b USING (k) WHERE b.k IS NULL"
)


class Connection:
    """Makes cursors, each with tables of its own, on one DuckDB instance. Thread-safe; opened at first use."""

    def __init__(self, memory_limit_bytes: int) -> None:
        self._memory_bytes = max(memory_limit_bytes, MEMORY_BYTES_MIN)
        self._lock = threading.Lock()
        self._trees: dict[str, Any] = {}  # statements as DuckDB parsed them
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

    def partners_in(self, statement: str, tables: Mapping[str, pa.Schema]) -> list[Partner]:
        """See `sql.partners`. Cost: half a millisecond, the first time that a statement of two tables is seen."""
        if len(tables) < 2:
            return []
        tree = self._trees.get(statement)
        if tree is None:
            import duckdb

            with contextlib.closing(self.cursor()) as cursor, contextlib.suppress(duckdb.Error):
                ((text,),) = cursor.execute(_SERIALIZE, [statement]).fetchall()
                tree = json.loads(text)
            if len(self._trees) >= _TREES_MAX:
                self._trees.clear()
            self._trees[statement] = tree
        return partners_in(tree, tables)

    def close(self) -> None:
        """Let the instance go as soon as no result uses it."""
        with self._lock:
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
