"""SQLite of Python's standard library, with WAL and synchronous=FULL."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from bench.stores import Options, Query

SETTINGS = (
    "journal_mode=WAL, synchronous=FULL (synced at every commit), cache_size 64 MB, its own automatic checkpoints; "
    "rows go in by executemany in one transaction a batch, their conversion from Arrow included"
)


class SqliteStore:
    overhead_s: float = 0.0

    def __init__(self, folder: str) -> None:
        os.makedirs(folder, exist_ok=True)
        self._path = os.path.join(folder, "t.sqlite")
        self._opened: list[sqlite3.Connection] = []
        self._con = self._connect()
        self._key: list[str] = []

    def _connect(self) -> sqlite3.Connection:
        con = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=60)
        self._opened.append(con)
        con.execute("PRAGMA journal_mode=WAL")
        con.execute("PRAGMA synchronous=FULL")
        con.execute("PRAGMA cache_size=-65536")
        return con

    def load(self, table: pa.Table, key: Sequence[str]) -> None:
        self._key = list(key)
        columns = ", ".join(f"{f.name} {_type(f.type)}" for f in table.schema)
        self._con.execute(f"CREATE TABLE t ({columns}, PRIMARY KEY ({', '.join(key)}))")
        for batch in table.to_batches(max_chunksize=50_000):
            self._many(f"INSERT INTO t VALUES ({_marks(table.schema)})", batch)
        self.flush()

    def upsert(self, rows: pa.Table) -> None:
        sets = ", ".join(f"{name} = excluded.{name}" for name in rows.column_names if name not in self._key)
        self._many(
            f"INSERT INTO t VALUES ({_marks(rows.schema)}) ON CONFLICT ({', '.join(self._key)}) DO UPDATE SET {sets}",
            rows,
        )

    def update(self, rows: pa.Table) -> None:
        changed = [name for name in rows.column_names if name not in self._key]
        sets = ", ".join(f"{name} = ?" for name in changed)
        where = " AND ".join(f"{name} = ?" for name in self._key)
        self._many(f"UPDATE t SET {sets} WHERE {where}", rows.select([*changed, *self._key]))

    def _many(self, sql: str, rows: pa.Table | pa.RecordBatch) -> None:
        self._con.execute("BEGIN IMMEDIATE")
        self._con.executemany(sql, zip(*(column.to_pylist() for column in rows.columns), strict=True))
        self._con.execute("COMMIT")

    def flush(self) -> None:
        self._con.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def compact(self) -> bool:
        self.flush()
        return True

    def maintain(self) -> bool:
        return False

    def run(self, query: Query) -> list[tuple[Any, ...]]:
        raise NotImplementedError("SQLite takes no part in analytical scans")

    def session(self) -> SqliteSession:
        return SqliteSession(self._connect())

    def counters(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        for con in self._opened:
            con.close()


class SqliteSession:
    def __init__(self, con: sqlite3.Connection) -> None:
        self._con = con
        self._con.row_factory = sqlite3.Row

    def get(self, key: int) -> dict[str, Any] | None:
        row = self._con.execute("SELECT * FROM t WHERE id = ?", (key,)).fetchone()
        return None if row is None else dict(row)

    def total(self, column: str) -> float:
        return float(self._con.execute(f"SELECT total({column}) FROM t").fetchone()[0])


def _type(kind: pa.DataType) -> str:
    if pa.types.is_integer(kind):
        return "INTEGER"
    return "REAL" if pa.types.is_floating(kind) else "TEXT"


def _marks(schema: pa.Schema) -> str:
    return ", ".join("?" * len(schema))


def open_store(folder: str, options: Options) -> SqliteStore:
    del options
    return SqliteStore(folder)
