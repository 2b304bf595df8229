"""Executes SHOW, which lists tables, columns, partitions, commits, tags and dropped tables.

    SHOW TABLES | SHOW ALL TABLES | SHOW DATABASES | SHOW SCHEMAS
    SHOW COLUMNS FROM t | SHOW CREATE TABLE t | SHOW PARTITIONS t | SHOW RANGE PARTITIONS t
    SHOW COMMITS [FROM t] [LIMIT n] | SHOW TAGS | SHOW DROPPED TABLES

Source: docs/how-to/sql.md; Impala, "SHOW Statement".
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from nyala.errors import InvalidArgumentError
from nyala.partition.describe import describe_range
from nyala.sql.context import Context, Source
from nyala.sql.define.table_text import create_table_text
from nyala.sql.names import spelled, table_name
from nyala.sql.select.catalogue import answer, describe
from nyala.sql.tokens import TokenReader
from nyala.tablet.state.root import TableState

_TIME: Final = pa.timestamp("us", tz="UTC")
_TAGS: Final = pa.schema({"name": pa.string(), "timestamp": pa.int64(), "time": _TIME})
_DROPPED: Final = pa.schema(
    {
        "name": pa.string(),
        "id": pa.int64(),
        "created": pa.int64(),
        "dropped": pa.int64(),
        "recoverable_until": _TIME,
        "bytes": pa.int64(),
    }
)
_PARTITIONS: Final = pa.schema(
    {
        "id": pa.int64(),
        "partition": pa.string(),
        "rowsets": pa.int64(),
        "rows": pa.int64(),
        "bytes": pa.int64(),
        "memory_bytes": pa.int64(),
    }
)
_RANGES: Final = pa.schema({"range": pa.string(), "tablets": pa.int64()})
_FORMS: Final = (
    "SHOW TABLES, ALL TABLES, DATABASES, SCHEMAS, COLUMNS FROM t, CREATE TABLE t, PARTITIONS t, RANGE PARTITIONS t, "
    "COMMITS [FROM t] [LIMIT n], TAGS, DROPPED TABLES"
)


def show(context: Context, reader: TokenReader) -> tuple[Source, pa.Table]:
    """Execute SHOW. Returns (the snapshot or transaction that was read, rows).

    reader: the statement after the word SHOW.

    Raises: InvalidArgumentError, TableNotFoundError.
    """
    source = context.readable()
    if reader.take("TABLES"):
        return source, pa.table({"name": pa.array(source.list_tables(), pa.string())})
    if reader.at("ALL", "TABLES") or reader.at("DATABASES") or reader.at("SCHEMAS"):
        return source, answer(source, f"SHOW {reader.rest()}", {})
    if reader.take("COLUMNS"):
        if not reader.take("IN"):
            reader.need("FROM")
        return source, describe(state_of(source, table_name(reader)))
    if reader.take("CREATE", "TABLE"):
        _check_present(context, "SHOW CREATE TABLE")
        name = state_of(source, table_name(reader)).name
        return source, pa.table({"statement": [create_table_text(context.database[name])]})
    if reader.take("RANGE", "PARTITIONS"):
        return source, _ranges(state_of(source, table_name(reader)))
    if reader.take("PARTITIONS") or reader.take("TABLE", "STATS"):  # Impala has both
        _check_present(context, "SHOW PARTITIONS")
        name = state_of(source, table_name(reader)).name
        return source, _table(_PARTITIONS, context.database[name].tablets())
    if reader.take("COMMITS"):
        return source, _commits(context, source, reader)
    if reader.take("TAGS"):
        return source, _table(_TAGS, context.database.tags())
    if reader.take("DROPPED", "TABLES"):
        return source, _table(_DROPPED, context.database.dropped_tables())
    token = reader.peek()
    if token is not None and token.is_identifier and reader.peek(1) is None:
        if token.name.lower() in {each.lower() for each in source.list_tables()}:
            return source, describe(state_of(source, table_name(reader)))
    raise reader.error(f"expected {_FORMS}")


def state_of(source: Source, name: str) -> TableState:
    """Return the table with this name, ignoring case. Raises: TableNotFoundError, InvalidArgumentError."""
    return source[spelled(name, source.list_tables())]._view(None)[1]


def _ranges(state: TableState) -> pa.Table:
    """Return the range partitions with the number of tablets in each."""
    levels = state.entry.partition_schema
    if not levels.range_column_ids:
        raise InvalidArgumentError(
            f"table {state.name!r} has no range partitions: see SHOW PARTITIONS {state.name}"
        )
    found = Counter((each.range_lower, each.range_upper) for each in state.partitions)
    bounds = sorted(found, key=lambda each: each[0] or b"")
    rows = [{"range": describe_range(each, levels, state.schema), "tablets": found[each]} for each in bounds]
    return pa.Table.from_pylist(rows, _RANGES)


def _commits(context: Context, source: Source, reader: TokenReader) -> pa.Table:
    """Execute SHOW COMMITS: return one row per commit of the store or of one table, newest first.

    source: the snapshot or transaction. If the statement reads the past, later commits are left out.
    reader: the statement after SHOW COMMITS, which may contain FROM or IN with a table, and LIMIT.
    """
    name = table_name(reader) if reader.take("FROM") or reader.take("IN") else None
    count = None
    if reader.take("LIMIT"):
        token = reader.next()
        if token.kind == "parameter":
            count = context.parameters[token.text[1:]]
        elif token.kind == "number" and token.text.isdecimal():
            count = int(token.text)
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise InvalidArgumentError("LIMIT of SHOW COMMITS takes a whole number, 0 or more")
    reader.finish()
    past = context.at is not None or context.source is not None
    until = source.timestamp if past else None
    table = None if name is None else context.database[state_of(source, name).name]
    found = (context.database if table is None else table).commits(until=until).to_arrow()
    begin = 0 if count is None else max(0, found.num_rows - count)
    return found.take(pa.array(range(found.num_rows - 1, begin - 1, -1), pa.int64()))


def _check_present(context: Context, what: str) -> None:
    if context.at is not None or context.source is not None:
        raise InvalidArgumentError(f"{what} reads only the present: use db.sql(…) without at=")


def _table(schema: pa.Schema, rows: Sequence[Any]) -> pa.Table:
    return pa.Table.from_pylist([dataclasses.asdict(row) for row in rows], schema)
