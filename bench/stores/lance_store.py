"""Lance: merge_insert over a scalar index of the key."""

from __future__ import annotations

import datetime as dt
import importlib
import os
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from bench.measure import Durable
from bench.stores import Options, Query, sql_engine

SETTINGS = (
    'BTREE index on the key, merge_insert; "after" and every so often in a steady load compact_files, '
    "optimize_indices, cleanup_old_versions; Lance does not sync on a local disk, so new files and folders are "
    "synced after each commit, and that time counts"
)


class LanceStore:
    def __init__(self, folder: str, options: Options) -> None:
        # By name: the package has types of its own, which the checker of this project need not know.
        self._lance: Any = importlib.import_module("lance")
        self._folder = folder
        self._history = options.history
        self._key: list[str] = []
        self._durable: Durable | None = None
        self.overhead_s = 0.0
        self._ds: Any = self._lance.dataset(folder) if os.path.isdir(folder) else None
        if self._ds is not None:
            self._key = self._key_of(self._ds.schema)
            self._durable = Durable(folder)

    @staticmethod
    def _key_of(schema: pa.Schema) -> list[str]:
        return [f.name for f in schema if f.metadata and b"lance-schema:unenforced-primary-key" in f.metadata]

    def load(self, table: pa.Table, key: Sequence[str]) -> None:
        self._key = list(key)
        mark = {b"lance-schema:unenforced-primary-key": b"true"}
        fields = [f.with_metadata(mark).with_nullable(False) if f.name in key else f for f in table.schema]
        marked = pa.Table.from_arrays(table.columns, schema=pa.schema(fields))
        self._ds = self._lance.write_dataset(marked, self._folder)
        self._ds.create_scalar_index(self._key[0], "BTREE")
        self._durable = Durable(self._folder)

    def _sync(self) -> None:
        assert self._durable is not None
        self.overhead_s = self._durable.sync()

    def upsert(self, rows: pa.Table) -> None:
        merge = self._ds.merge_insert(self._key)
        merge.when_matched_update_all().when_not_matched_insert_all().execute(rows)
        self._ds = self._ds.checkout_version(self._ds.latest_version)
        self._sync()

    def update(self, rows: pa.Table) -> None:
        self._ds.merge_insert(self._key).when_matched_update_all().execute(rows)
        self._ds = self._lance.dataset(self._folder)
        self._sync()

    def flush(self) -> None:
        return

    def settle(self) -> bool:
        self._ds.optimize.compact_files()
        self._ds = self._lance.dataset(self._folder)
        self._ds.optimize.optimize_indices()
        self._ds.cleanup_old_versions(older_than=dt.timedelta(0))
        self._ds = self._lance.dataset(self._folder)
        self._sync()
        return True

    def maintain(self) -> bool:
        return self.settle()

    def run(self, query: Query) -> list[tuple[Any, ...]]:
        con = sql_engine()
        con.register("t", self._ds)
        rows: list[tuple[Any, ...]] = con.execute(query.sql).fetchall()
        con.unregister("t")
        return rows

    def session(self) -> LanceSession:
        return LanceSession(self._lance.dataset(self._folder))

    def counters(self) -> dict[str, float]:
        return {"versions": float(len(self._ds.versions()))}

    def close(self) -> None:
        self._ds = None


class LanceSession:
    def __init__(self, dataset: Any) -> None:
        self._ds = dataset

    def get(self, key: int) -> dict[str, Any] | None:
        self._ds.checkout_latest()
        rows = self._ds.to_table(filter=f"id = {key}").to_pylist()
        return rows[0] if rows else None

    def total(self, column: str) -> float:
        self._ds.checkout_latest()
        return float(pa.compute.sum(self._ds.to_table(columns=[column]).column(0)).as_py())


def open_store(folder: str, options: Options) -> LanceStore:
    return LanceStore(folder, options)
