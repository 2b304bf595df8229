"""Delta Lake by delta-rs, with merge by key."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bench.measure import Durable
from bench.stores import Options, Query, sql_engine

SETTINGS = (
    'merge by key with default writer settings, read as a PyArrow dataset; "after" and every so often in a steady load '
    "optimize.compact, vacuum; delta-rs does not sync on a local disk, so new files and folders are synced after each "
    "commit, and that time counts"
)


class DeltaStore:
    def __init__(self, folder: str) -> None:
        self._delta: Any = importlib.import_module("deltalake")
        self._folder = folder
        self._key_file = Path(folder + ".key")
        self._durable: Durable | None = None
        self.overhead_s = 0.0
        self._table: Any = None
        if os.path.isdir(folder):
            self._table = self._delta.DeltaTable(folder)
            self._durable = Durable(folder)

    def load(self, table: pa.Table, key: Sequence[str]) -> None:
        # The format has no keys.
        self._key_file.write_text(json.dumps(list(key)))
        self._delta.write_deltalake(self._folder, table)
        self._table = self._delta.DeltaTable(self._folder)
        self._durable = Durable(self._folder)

    def _merge(self, rows: pa.Table) -> Any:
        key = json.loads(self._key_file.read_text())
        predicate = " AND ".join(f"t.{name} = s.{name}" for name in key)
        return self._table.merge(rows, predicate=predicate, source_alias="s", target_alias="t")

    def _sync(self) -> None:
        assert self._durable is not None
        self.overhead_s = self._durable.sync()

    def upsert(self, rows: pa.Table) -> None:
        self._merge(rows).when_matched_update_all().when_not_matched_insert_all().execute()
        self._sync()

    def update(self, rows: pa.Table) -> None:
        key = json.loads(self._key_file.read_text())
        changed = {name: f"s.{name}" for name in rows.column_names if name not in key}
        self._merge(rows).when_matched_update(changed).execute()
        self._sync()

    def flush(self) -> None:
        return

    def compact(self) -> bool:
        self._table.optimize.compact()
        self._table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
        self._sync()
        return True

    def maintain(self) -> bool:
        return self.compact()

    def run(self, query: Query) -> list[tuple[Any, ...]]:
        con = sql_engine()
        con.register("t", self._table.to_pyarrow_dataset())
        rows: list[tuple[Any, ...]] = con.execute(query.sql).fetchall()
        con.unregister("t")
        return rows

    def session(self) -> DeltaSession:
        return DeltaSession(self._delta.DeltaTable(self._folder))

    def counters(self) -> dict[str, float]:
        return {"versions": float(self._table.version())}

    def close(self) -> None:
        self._table = None


class DeltaSession:
    def __init__(self, table: Any) -> None:
        self._table = table

    def get(self, key: int) -> dict[str, Any] | None:
        self._table.update_incremental()
        rows = self._table.to_pyarrow_dataset().to_table(filter=pc.field("id") == key).to_pylist()
        return rows[0] if rows else None

    def total(self, column: str) -> float:
        self._table.update_incremental()
        return float(pc.sum(self._table.to_pyarrow_dataset().to_table(columns=[column]).column(0)).as_py())


def open_store(folder: str, options: Options) -> DeltaStore:
    del options
    return DeltaStore(folder)
