"""Checks the arguments of the functions of `nyala.spark`: a Spark DataFrame, a Table, a Database, or a folder.

`load`, `upsert`, `compact` and `backup` work through an open Database, so they take one of its Tables. `write` and
`sql` need no open Database, so they take the store's folder. The error for a wrong argument says which is needed.
"""

from __future__ import annotations

import os
from typing import Any

from nyala.api.database import Database
from nyala.api.table import Table
from nyala.env.paths import utf8_path
from nyala.errors import InvalidArgumentError
from nyala.tablet.state.store_folder import check_folder_path

__all__ = ["check_database", "check_frame", "check_table", "folder_of"]


def check_table(table: Any, call: str) -> None:
    """Raise InvalidArgumentError if `table` is not a Table, StorageError if its Database is closed."""
    if not isinstance(table, Table):
        raise InvalidArgumentError(
            f"{call} takes a Table of an open Database, not {_shown(table)}: nyala.connect(folder)[name]"
        )
    table._database._handle.check_open()


def check_database(database: Any, call: str) -> None:
    """Raise InvalidArgumentError if `database` is not a Database."""
    if not isinstance(database, Database):
        raise InvalidArgumentError(
            f"{call} takes an open Database, not {_shown(database)}: nyala.connect(folder)"
        )


def check_frame(df: Any, call: str) -> None:
    """Raise InvalidArgumentError if `df` is not a Spark DataFrame, classic or Connect."""
    if not (hasattr(df, "sparkSession") and hasattr(df, "schema")):
        raise InvalidArgumentError(
            f"{call} takes a Spark DataFrame, not {_shown(df)}: spark.createDataFrame(…) makes one of pandas or Arrow; "
            "without Spark, table.upsert(…) and table.insert(…) take them as they are"
        )


def folder_of(store: Any, call: str) -> str:
    """Return the folder of a store, given as a path or an open Database. Raises: InvalidArgumentError for others."""
    if isinstance(store, Database):
        return store.path
    if not isinstance(store, str | os.PathLike) or not isinstance(path := os.fspath(store), str):
        raise InvalidArgumentError(f"{call} takes the path of a store's folder, not {_shown(store)}")
    utf8_path(path)
    check_folder_path(path)
    return path


def _shown(value: Any) -> str:
    return (
        repr(value)
        if isinstance(value, str | int | None)
        else f"a {type(value).__module__}.{type(value).__name__}"
    )
