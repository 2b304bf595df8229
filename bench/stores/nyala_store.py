"""Nyala with durability="commit", the default: the log is synced before a write returns."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import nyala
from bench.measure import folder_bytes
from bench.stores import Options, Query, sql_engine

SETTINGS = (
    'defaults: durability "commit", memory_limit 1GB, one tablet; maintenance and history as the part says'
)
# With maintenance off, the benchmark flushes after this many batches.
BATCHES_IN_MEMORY = 50
# Maintenance counts as finished if the folder does not change for this time.
SETTLED_S = 0.5


class NyalaStore:
    overhead_s: float = 0.0

    def __init__(self, folder: str, options: Options) -> None:
        self._options = options
        self._folder = folder
        self._open(options.maintenance)
        self._updates = 0

    def _open(self, maintenance: bool) -> None:
        self._db = nyala.connect(self._folder, maintenance=maintenance)
        self._table = self._db["t"] if "t" in self._db else None

    @property
    def table(self) -> nyala.Table:
        assert self._table is not None, "load first"
        return self._table

    def load(self, table: pa.Table, key: Sequence[str]) -> None:
        """Load with maintenance on, which removes the log of the load from the size of the table."""
        self._db.close()
        self._open(maintenance=True)
        self._table = self._db.create_table("t", table.schema, key, history=self._options.history)
        self._table.insert(table)
        self._table.flush()
        self._db.maintenance.resume()  # starts maintenance at once
        before, after = -1, folder_bytes(self._folder)
        while before != after:
            time.sleep(SETTLED_S)
            before, after = after, folder_bytes(self._folder)
        self._db.close()
        self._open(self._options.maintenance)

    def upsert(self, rows: pa.Table) -> None:
        self.table.upsert(rows)

    def update(self, rows: pa.Table) -> None:
        self.table.update(rows)
        self._updates += 1
        if not self._options.maintenance and self._updates % BATCHES_IN_MEMORY == 0:
            self.table.flush()

    def flush(self) -> None:
        self.table.flush()

    def compact(self) -> bool:
        self.table.flush()
        compact = getattr(self.table, "compact", None)
        if compact is None:
            return False
        compact()
        return True

    def maintain(self) -> bool:
        return False

    def run(self, query: Query) -> list[tuple[Any, ...]]:
        con = sql_engine()
        reader = self.table.scan(query.columns, query.where).to_reader()
        con.register("t", reader)
        rows: list[tuple[Any, ...]] = con.execute(query.sql).fetchall()
        con.unregister("t")
        return rows

    def session(self) -> NyalaStore:
        return self

    def get(self, key: int) -> dict[str, Any] | None:
        return self.table.get({"id": key})

    def total(self, column: str) -> float:
        total = 0.0
        for batch in self.table.scan([column]).to_reader():
            total += pc.sum(batch.column(0)).as_py() or 0.0
        return total

    def counters(self) -> dict[str, float]:
        """Return counters, with `log_bytes`: the log is most of the folder of a small table."""
        stats = {**asdict(self.table.stats()), **asdict(self._db.maintenance.status())}
        stats["log_bytes"] = folder_bytes(os.path.join(self._folder, "wal"))
        return {name: value for name, value in stats.items() if isinstance(value, int | float)}

    def close(self) -> None:
        self._db.close()


def open_store(folder: str, options: Options) -> NyalaStore:
    return NyalaStore(folder, options)
