"""Checks the arguments of the functions of `nyala.spark`.

`load`, `upsert`, `compact` and `backup` take a Table, because they work through its open Database.
`write` and `sql` take the store's folder. The error for a wrong argument says what is needed. In
each check, `call` is the name of the function that the user called, for the error message.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from nyala.api.database import Database
from nyala.api.table import Table
from nyala.env.paths import is_bucket_url, utf8_path
from nyala.errors import InvalidArgumentError
from nyala.objects.address import Address, address_of
from nyala.tablet.state.store_folder import check_folder_path

__all__ = [
    "address_of_database", "address_of_store", "check_database", "check_frame", "check_table", "spark_options",
    "text_options",
]  # fmt: skip


def check_table(table: Any, call: str) -> None:
    """Raise InvalidArgumentError if `table` is not a Table, and StorageError if its Database is closed.

    call: the name of the function that the user called, for the message.
    """
    if not isinstance(table, Table):
        raise InvalidArgumentError(
            f"{call} expects a Table of an open Database, got {_shown(table)}: pass nyala.connect(folder)[name]"
        )
    table._database._opened()


def check_database(database: Any, call: str) -> None:
    """Raise InvalidArgumentError if `database` is not a Database.

    call: the name of the function that the user called, for the message.
    """
    if not isinstance(database, Database):
        raise InvalidArgumentError(
            f"{call} expects an open Database, got {_shown(database)}: pass nyala.connect(folder)"
        )


def check_frame(df: Any, call: str) -> None:
    """Raise InvalidArgumentError if `df` is not a Spark DataFrame, classic or Connect.

    call: the name of the function that the user called, for the message.
    """
    if not (hasattr(df, "sparkSession") and hasattr(df, "schema")):
        raise InvalidArgumentError(
            f"{call} expects a Spark DataFrame, got {_shown(df)}: convert pandas or Arrow data with "
            "spark.createDataFrame(…), or write it without Spark: table.upsert(…) or table.insert(…)"
        )


def address_of_database(database: Database) -> Address:
    """Return the address of the store of an open Database."""
    return address_of(database._handle.env, database._handle.root_path)


def address_of_store(store: Any, call: str, storage_options: Mapping[str, Any] | None = None) -> Address:
    """Return the address of a store, given as a path, a URL or an open Database.

    call: the name of the function that the user called, for the message.

    Raises InvalidArgumentError for anything else and for secret storage options, and StorageError
    for a closed Database.

    """
    if isinstance(store, Database):
        if storage_options is not None:
            raise InvalidArgumentError(
                f"{call}: storage_options belong to a URL: pass an open Database without them"
            )
        store._opened()
        return address_of_database(store)
    if is_bucket_url(store):
        if store.lower().startswith("file:"):
            raise InvalidArgumentError(f"{call} expects a folder as a path without file://, got {store!r}")
        return Address.parse(store, text_options(storage_options or {}), "storage_options: ")
    if not isinstance(store, str | os.PathLike) or not isinstance(path := os.fspath(store), str):
        raise InvalidArgumentError(f"{call} expects the path of a store's folder, got {_shown(store)}")
    if storage_options is not None:
        raise InvalidArgumentError(
            f"{call}: storage_options are only for a store in a bucket, but {path!r} is a folder"
        )
    check_folder_path(path)
    return Address(utf8_path(path))


def text_options(options: Mapping[str, Any]) -> dict[str, str]:
    """Return storage options as text, which is the only type of options in Spark."""
    return {str(name): str(value) for name, value in options.items() if value is not None}


def spark_options(address: Address) -> dict[str, str]:
    """Return the options of `format("nyala")` for this address."""
    return {"path": address.path, **{f"storage.{name}": str(value) for name, value in address.options}}


def _shown(value: Any) -> str:
    return (
        repr(value)
        if isinstance(value, str | int | None)
        else f"a {type(value).__module__}.{type(value).__name__}"
    )
