"""One Parquet file: the cost of scans if nothing can change. An update writes the whole file again."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.stores import Options, Query, Session

SETTINGS = (
    "one file by PyArrow, default settings, read by DuckDB's own reader; an update rewrites the whole file"
)


class ParquetStore:
    overhead_s: float = 0.0

    def __init__(self, folder: str) -> None:
        os.makedirs(folder, exist_ok=True)
        self._path = os.path.join(folder, "t.parquet")
        self._key = ""
        self._duckdb: Any = None

    def load(self, table: pa.Table, key: Sequence[str]) -> None:
        self._key = key[0]
        self._write(table)

    def _write(self, table: pa.Table) -> None:
        pq.write_table(table, self._path + ".new")
        for path in (self._path + ".new", os.path.dirname(self._path)):
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
        os.replace(self._path + ".new", self._path)

    def upsert(self, rows: pa.Table) -> None:
        raise NotImplementedError("a Parquet file takes no upserts")

    def update(self, rows: pa.Table) -> None:
        """Update rows. The keys are 0 … n-1 in order, so the key of a row is its position."""
        table = pq.read_table(self._path)
        places = rows.column(self._key).to_numpy()
        for name in rows.column_names:
            if name == self._key:
                continue
            values = np.array(table.column(name).to_numpy())
            values[places] = rows.column(name).to_numpy()
            table = table.set_column(table.column_names.index(name), name, pa.array(values))
        self._write(table)

    def flush(self) -> None:
        return

    def compact(self) -> bool:
        return False

    def maintain(self) -> bool:
        return False

    def run(self, query: Query) -> list[tuple[Any, ...]]:
        if self._duckdb is None:
            import duckdb

            self._duckdb = duckdb.connect()
            self._duckdb.execute(f"CREATE VIEW t AS SELECT * FROM read_parquet('{self._path}')")
        rows: list[tuple[Any, ...]] = self._duckdb.execute(query.sql).fetchall()
        return rows

    def session(self) -> Session:
        raise NotImplementedError("a Parquet file takes no part in steady loads")

    def counters(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        self._duckdb = None


def open_store(folder: str, options: Options) -> ParquetStore:
    del options
    return ParquetStore(folder)
