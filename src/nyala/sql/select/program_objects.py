"""Finds data of the embedding program by the names of its variables: `FROM frame`.

    pandas.DataFrame, polars.DataFrame and LazyFrame      pyarrow Table, RecordBatch, Dataset
    dict of columns, list of rows as dicts                streams of Arrow, such as readers and relations of DuckDB
    Scan and Table of a store, Result, ChangeFeed

A name is looked up only if DuckDB finds no table with this name. So tables of the store
and names of WITH come first.

Invariants
    V1  The data can be read any number of times, because a result runs again whenever its rows are
        read. A stream that can be read only once is read here, into memory.
    V2  A result refers only to the data itself, and not to the stack frame in which the variable is.
        So it does not keep other variables of the program in memory.

Source: docs/how-to/sql.md, "Data of your program".
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.dataset as ds

from nyala.errors import Error, InvalidArgumentError, TableNotFoundError
from nyala.sql.rights import Rights
from nyala.sql.select.errors import missing_table
from nyala.sql.select.moments import Feed

if TYPE_CHECKING:
    from nyala.api.database import Snapshot
    from nyala.api.engine_scan import EngineScan
    from nyala.api.transaction import Transaction

_KINDS: Final = (
    "a frame of pandas or polars, Arrow data, a dict of columns, a list of rows, or a scan, table, result or "
    "change feed of Nyala"
)


def find_object(
    source: Snapshot | Transaction, rights: Rights, error: TableNotFoundError, known: Collection[str]
) -> tuple[str, Any]:
    """Return (name of the missing table, the program's data with this name).

    source: the snapshot or transaction that the statement reads. If the data is a Nyala table of the
        same store, it is read from there.
    rights: looks up the program's variables.
    error: DuckDB's error about the missing table.
    known: names for which earlier calls found data. DuckDB can report such a name as missing again,
        for example in `FROM main.frame`. Then `error` is raised.

    The data is an `EngineScan`, into which DuckDB pushes predicates, or an object that DuckDB reads
    itself.
    Raises: `error` if no variable has this name; InvalidArgumentError for data that cannot be read.
    """
    name = missing_table(error)
    value = None if name is None else rights.variable(name)
    if name is None or name in known or value is None:
        raise error
    data = _table_of(name, value, source)
    if data is None:
        raise TableNotFoundError(
            f"{error}\nThe variable {name!r} is {_article(type(value).__name__)}, which is not a table: use {_KINDS}"
        ) from error
    return name, data


def data_named(source: Snapshot | Transaction, rights: Rights, name: str) -> Any:
    """Return a variable of the program as data that DuckDB can read; None if no variable has this name.

    source: the snapshot or transaction of the statement. If the variable is a table of the same
        store, its rows are read from `source`.
    rights: its method `variable` looks up the value of the variable. The method returns None if the
        statement may not read variables.
    """
    value = rights.variable(name)
    return None if value is None else _table_of(name, value, source)


def _table_of(name: str, value: Any, source: Snapshot | Transaction) -> Any:
    try:
        return _scan_of(value, source) or _data_of(value)
    except (pa.ArrowException, TypeError, ValueError) as problem:
        if isinstance(problem, Error):
            raise
        raise InvalidArgumentError(f"the variable {name!r} cannot be read as a table: {problem}") from problem


def _scan_of(value: Any, source: Snapshot | Transaction) -> EngineScan | None:
    """Return the engine's scan that reads a Nyala `Scan` or `Table`; None for any other value.

    source: the statement's snapshot or transaction. The scan of a `Table` of the same store reads it,
        unless the `Table` belongs to a snapshot of its own.
    """
    if not type(value).__module__.startswith("nyala."):
        return None
    if hasattr(value, "_view"):
        is_present = not hasattr(value, "_snapshot")
        if is_present and value._database._open is source._database._open:
            value = source[value.name]
        value = value.scan()
    if not hasattr(value, "_engine"):
        return None
    scan: EngineScan = value._engine()
    return scan


def _data_of(value: Any) -> Any:
    """Return the value as an object that DuckDB can read any number of times; None if it is not data."""
    if isinstance(value, pa.Table | pa.RecordBatch | ds.Dataset):
        return value
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(value, pandas.DataFrame):
        return value
    polars = sys.modules.get("polars")
    if polars is not None and isinstance(value, polars.LazyFrame):
        value = value.collect()
    if type(value).__module__.startswith("nyala.") and hasattr(value, "to_reader"):
        return Feed(value)
    if isinstance(value, ds.Scanner):
        return value.to_table()
    if isinstance(value, dict):
        return pa.table(value) if value and all(map(_is_column, value.values())) else None
    if isinstance(value, list):
        is_rows = value and all(isinstance(row, dict) for row in value)
        return pa.Table.from_pylist(value) if is_rows else None
    if isinstance(value, type) or not hasattr(value, "__arrow_c_stream__"):
        return None
    return pa.RecordBatchReader.from_stream(value).read_all()


def _is_column(value: Any) -> bool:
    return not isinstance(value, str | bytes | dict) and hasattr(value, "__len__")


def _article(name: str) -> str:
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
