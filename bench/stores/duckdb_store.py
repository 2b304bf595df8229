"""DuckDB with a primary key, in its own file format. Every commit syncs the log."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from bench.stores import Options, Query

SETTINGS = (
    "a database file with PRIMARY KEY, defaults else (a commit syncs the WAL, automatic checkpoint at 16 MB of it); "
    'INSERT OR REPLACE and UPDATE … FROM over Arrow; "after" is after CHECKPOINT'
)


class DuckdbStore:
    overhead_s: float = 0.0

    def __init__(self, folder: str) -> None:
        import duckdb

        os.makedirs(folder, exist_ok=True)
        self._con: Any = duckdb.connect(os.path.join(folder, "t.duckdb"))
        self._key: list[str] = []

    def load(self, table: pa.Table, key: Sequence[str]) -> None:
        self._con.register("given", table)
        described = self._con.execute("DESCRIBE SELECT * FROM given").fetchall()
        columns = ", ".join(f'"{name}" {kind}' for name, kind, *_ in described)
        self._con.execute(f"CREATE TABLE t ({columns}, PRIMARY KEY ({', '.join(key)}))")
        self._con.execute("INSERT INTO t SELECT * FROM given")
        self._con.unregister("given")
        self.flush()

    def upsert(self, rows: pa.Table) -> None:
        self._con.register("given", rows)
        self._con.execute("INSERT OR REPLACE INTO t SELECT * FROM given")
        self._con.unregister("given")

    def update(self, rows: pa.Table) -> None:
        key = self._keys()
        sets = ", ".join(f'"{name}" = given."{name}"' for name in rows.column_names if name not in key)
        where = " AND ".join(f't."{name}" = given."{name}"' for name in key)
        self._con.register("given", rows)
        self._con.execute(f"UPDATE t SET {sets} FROM given WHERE {where}")
        self._con.unregister("given")

    def _keys(self) -> list[str]:
        if not self._key:
            found = self._con.execute(
                "SELECT constraint_column_names FROM duckdb_constraints() WHERE constraint_type = 'PRIMARY KEY'"
            ).fetchall()
            self._key = list(found[0][0])
        return self._key

    def flush(self) -> None:
        self._con.execute("CHECKPOINT")

    def compact(self) -> bool:
        self.flush()
        return True

    def maintain(self) -> bool:
        return False

    def run(self, query: Query) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = self._con.execute(query.sql).fetchall()
        return rows

    def session(self) -> DuckdbSession:
        return DuckdbSession(self._con.cursor())

    def counters(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        self._con.close()


class DuckdbSession:
    def __init__(self, con: Any) -> None:
        self._con = con

    def get(self, key: int) -> dict[str, Any] | None:
        done = self._con.execute("SELECT * FROM t WHERE id = ?", [key])
        names = [column[0] for column in done.description]
        rows = done.fetchall()
        return dict(zip(names, rows[0], strict=True)) if rows else None

    def total(self, column: str) -> float:
        return float(self._con.execute(f'SELECT sum("{column}") FROM t').fetchall()[0][0])


def open_store(folder: str, options: Options) -> DuckdbStore:
    del options
    return DuckdbStore(folder)
