"""Opening a store and finding a table in it, and what a table is, said in words.

A folder is never made by a slip of the finger: only `load --create` and `demo` make stores.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from nyala.cli.base import program

if TYPE_CHECKING:
    from nyala.database import Database
    from nyala.scan import Scan
    from nyala.schema.schema import ColumnSchema
    from nyala.table import Table
    from nyala.tablet.root import TableState

__all__ = [
    "block_size_text",
    "describe_columns",
    "find_table",
    "partition_text",
    "readable_from",
    "reader",
    "state_of",
    "tell_why_empty",
    "writer",
]


@contextmanager
def reader(folder: str) -> Iterator[Database]:
    """The store, read-only: beside a writer, if there is one (L3)."""
    from nyala.database import connect

    _require_store(folder)
    with connect(folder, read_only=True) as database:
        yield database


@contextmanager
def writer(folder: str, *, create: bool = False, maintenance: bool = True) -> Iterator[Database]:
    """The store, with this process as its writer; made when missing only if `create`."""
    from nyala.database import connect

    if not create:
        _require_store(folder)
    with connect(folder, maintenance=maintenance) as database:
        yield database


def _require_store(folder: str) -> None:
    from nyala.env import SYSTEM
    from nyala.errors import StorageError
    from nyala.tablet.layout import catalog_path

    if not SYSTEM.files.exists(catalog_path(folder)):
        if os.path.isfile(folder):
            raise StorageError(f"a store is a folder, and {folder!r} is a file", path=folder)
        there = "" if os.path.isdir(folder) else " (there is no such folder)"
        if there and os.sep not in folder:
            there = " (there is no such folder; FOLDER comes first, then TABLE)"
        others = [] if there else sorted(os.listdir(folder))
        if others:
            how = f"it has other files ({', '.join(others[:3])}); give the folder that connect() was given"
        else:
            how = (
                f"`{program()} demo {shlex.quote(folder)}` would make one to look at, `table load --create` one of "
                "your own data"
            )
        raise StorageError(f"there is no Nyala store at {folder!r}{there}: {how}", path=folder)


def find_table(database: Database, name: str | None) -> Table:
    """The table of that name; None: the store's only one. Raises: TableNotFoundError, click.UsageError."""
    if name is not None:
        return database.table(name)
    names = database.list_tables()
    if len(names) == 1:
        return database.table(names[0])
    if not names:
        from nyala.errors import TableNotFoundError

        raise TableNotFoundError("the store has no tables yet: `table load --create` makes one from a file")
    raise click.UsageError(f"the store has {len(names)} tables, name one: {', '.join(names)}")


# -- what a table is. The library has no public words for some of it, hence its state. ---------------------


def state_of(database: Database, name: str) -> TableState:
    """The table's definition and tablets. Raises: TableNotFoundError."""
    return database._root().table(name)


def partition_text(state: TableState) -> str:
    """HASH (host, metric) BUCKETS 4, RANGE (time)"""
    from nyala.partition.describe import describe_schema

    return describe_schema(state.entry.partition_schema, state.schema)


def readable_from(oldest: int) -> dict[str, Any]:
    """`Table.stats()["oldest_readable"]` as documents have it. The time is null when all of the table's life is
    readable."""
    from nyala.cli.output import moment

    return {"oldest_readable": oldest, "oldest_readable_time": moment(oldest)["time"] if oldest else None}


def tell_why_empty(rows: Scan, at: str | None) -> None:
    """For who got no row: the reason, where it is plain."""
    from nyala.mvcc.timestamp import naive_note

    why = rows.why_empty()
    if why:
        click.echo(why + (naive_note(at) if " was made at " in why else ""), err=True)


def describe_columns(state: TableState) -> list[dict[str, Any]]:
    """The columns as JSON has them; `key` is the place in the primary key, from 1, or null."""
    from nyala.cli.cells import json_value

    return [
        {
            "name": column.name,
            "type": str(column.type),
            "key": place if place <= state.schema.key_count else None,
            "nullable": column.nullable,
            "default": json_value(_default(column)),
            "encoding": column.encoding,
            "compression": column.compression,
            "block_size": column.block_size_bytes,
            "comment": column.comment,
        }
        for place, column in enumerate(state.schema.columns, start=1)
    ]


def block_size_text(block_size_bytes: int | None) -> str:
    """blocks of 65,536; empty where none was asked for."""
    return "" if block_size_bytes is None else f"blocks of {block_size_bytes:,}"


def _default(column: ColumnSchema) -> Any:
    from nyala.schema.schema import NO_DEFAULT

    return None if column.write_default is NO_DEFAULT else column.write_default
