"""Adapter for Harlequin, a terminal program for SQL: `harlequin --adapter nyala FOLDER`.

Harlequin finds `NyalaAdapter` by its entry point. It shows the tables and columns, runs statements,
and prints their first rows. It can open a store's folder that another program has open.

Source: docs/how-to/shell.md, "Harlequin"; Harlequin, "Creating an Adapter".
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from harlequin import HarlequinAdapter, HarlequinConnection, HarlequinCursor
from harlequin.catalog import Catalog, CatalogItem
from harlequin.exception import HarlequinConfigError, HarlequinConnectionError, HarlequinQueryError

from nyala.api.database import Database, connect
from nyala.catalog.checkpoint import identity_path
from nyala.env import SYSTEM
from nyala.env.paths import is_bucket_url
from nyala.errors import Error
from nyala.sql.rights import ProgramRights
from nyala.sql.session import SqlSession
from nyala.sql.tokens import quoted

__all__ = ["NyalaAdapter"]

_LABELS: Final = (
    (pa.types.is_boolean, "t/f"),
    (pa.types.is_integer, "##"),
    (pa.types.is_floating, "#.#"),
    (pa.types.is_decimal, "#.#"),
    (pa.types.is_timestamp, "ts"),
    (pa.types.is_date, "d"),
    (pa.types.is_string, "s"),
    (pa.types.is_binary, "b"),
)


def _label(type: pa.DataType) -> str:
    """Return the short label that Harlequin shows for a type."""
    return next((label for matches, label in _LABELS if matches(type)), "?")


class NyalaAdapter(HarlequinAdapter):
    """A store for Harlequin. conn_str: the store's folder or URL."""

    IMPLEMENTS_CANCEL = True
    IMPLEMENTS_READ_ONLY = True
    ADAPTER_DETAILS = "Nyala: tables with an enforced primary key and a history, in a folder or a bucket."

    def __init__(self, conn_str: Sequence[str], read_only: bool = False, **options: Any) -> None:
        if len(conn_str) != 1:
            raise HarlequinConfigError(
                f"Nyala opens one store: pass one folder or URL, not {len(conn_str)}", "No store"
            )
        self._path = conn_str[0]
        self._read_only = read_only

    def connect(self) -> NyalaConnection:
        path = self._path
        if not is_bucket_url(path) and not SYSTEM.files.exists(identity_path(path)):
            raise HarlequinConnectionError(f"there is no Nyala store at {path!r}", "No store")
        try:
            return NyalaConnection(connect(path, read_only=self._read_only))
        except Error as error:
            raise HarlequinConnectionError(str(error), type(error).__name__) from error

    @property
    def connection_id(self) -> str:
        return self._path


class NyalaConnection(HarlequinConnection):
    """A session on an open store."""

    def __init__(self, database: Database) -> None:
        self.init_message = f"Nyala store {database.path}"
        self._database = database
        self._session = SqlSession(database, ProgramRights(None))

    def execute(self, query: str) -> NyalaCursor | None:
        try:
            reader = self._session.execute(query).to_reader()
        except Error as error:
            raise HarlequinQueryError(str(error), type(error).__name__) from error
        return NyalaCursor(reader) if reader.schema.names else None

    def cancel(self) -> None:
        self._session.interrupt()

    def get_catalog(self) -> Catalog:
        items = []
        for name in self._database.list_tables():
            with contextlib.suppress(Error):  # dropped in the meantime
                items.append(self._item(name))
        return Catalog(items)

    def _item(self, name: str) -> CatalogItem:
        table = self._database[name]
        keys = set(table.primary_key)
        columns = [
            CatalogItem(
                qualified_identifier=f"{quoted(name)}.{quoted(field.name)}",
                query_name=quoted(field.name),
                label=f"{field.name}{' (key)' if field.name in keys else ''}",
                type_label=_label(field.type),
                type_name=str(field.type),
            )
            for field in table.schema
        ]
        return CatalogItem(quoted(name), quoted(name), name, "t", columns, "table")

    def close(self) -> None:
        self._session.close()
        self._database.close()


class NyalaCursor(HarlequinCursor):
    """The result of one statement. Its rows are read when Harlequin fetches them."""

    def __init__(self, reader: pa.RecordBatchReader) -> None:
        self._reader = reader
        self._limit: int | None = None

    def columns(self) -> list[tuple[str, str]]:
        return [(field.name, _label(field.type)) for field in self._reader.schema]

    def set_limit(self, limit: int) -> NyalaCursor:
        self._limit = limit
        return self

    def fetchall(self) -> pa.Table | None:
        batches, rows = [], 0
        try:
            while self._limit is None or rows < self._limit:
                batch = next(self._reader, None)
                if batch is None:
                    break
                batches.append(batch)
                rows += batch.num_rows
        except Error as error:
            raise HarlequinQueryError(str(error), type(error).__name__) from error
        found = pa.Table.from_batches(batches, self._reader.schema)
        return found.slice(0, self._limit) if rows else None
