"""Iceberg through pyiceberg: a table of Parquet files that a catalogue in SQLite names. For bulk loads."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import Any, NoReturn

import pyarrow as pa

from bench.measure import Durable
from bench.stores import Options

SETTINGS = (
    "create_table and append with default writer settings, a SqlCatalog in the same folder; in the load only: "
    "its upserts, updates and deletes write every file anew that has one of the rows; pyiceberg does not sync, so new "
    "files and folders are synced after the load, and that time counts"
)


class IcebergStore:
    overhead_s = 0.0

    def __init__(self, folder: str) -> None:
        os.makedirs(folder, exist_ok=True)
        sql: Any = importlib.import_module("pyiceberg.catalog.sql")
        where = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
        self._catalog = sql.SqlCatalog("bench", **where)
        self._durable = Durable(folder)
        self._table: Any = None

    def load(self, table: pa.Table, key: Sequence[str]) -> None:
        del key  # the format knows none
        self._catalog.create_namespace("bench")
        self._table = self._catalog.create_table("bench.t", table.schema)
        self._table.append(table)
        self.overhead_s = self._durable.sync()

    def count(self) -> int:
        return int(self._table.scan().count())

    def close(self) -> None:
        self._catalog.engine.dispose()

    def _no(self, *given: object) -> NoReturn:
        raise NotImplementedError("measured with loads only")

    insert = upsert = update = delete = get = get_many = key_range = _no


def open_store(folder: str, options: Options) -> IcebergStore:
    del options
    return IcebergStore(folder)
