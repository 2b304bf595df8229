"""Executes DESCRIBE, SHOW and EXPLAIN, and SELECTs of descriptions of tables, as in `information_schema`.

Source: docs/how-to/sql.md.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from nyala.sql.context import Context, Source
from nyala.sql.describe.explain import explain
from nyala.sql.describe.listings import show, state_of
from nyala.sql.names import spelled_column, table_name
from nyala.sql.result import FixedResult
from nyala.sql.select.catalogue import answer, describe, describe_storage
from nyala.sql.select.moments import read_moments
from nyala.sql.tokens import TokenReader
from nyala.tablet.state.root import TableState

_QUERIES: Final = frozenset(("SELECT", "FROM", "VALUES", "WITH", "PIVOT", "UNPIVOT"))


def execute(context: Context, text: str) -> FixedResult:
    """Execute DESCRIBE, SHOW or EXPLAIN. Raises: as `Database.sql`."""
    reader = TokenReader(text)
    word = reader.next().keyword
    if word == "SHOW":
        source, rows = show(context, reader)
    elif word == "EXPLAIN":
        source, rows = explain(context, reader)
    else:
        word = "DESCRIBE"
        source, rows = _describe(context, reader)
    reader.finish()
    return FixedResult(word, rows, source.timestamp)


def select(context: Context, text: str) -> FixedResult:
    """Execute a SELECT of descriptions of tables, as in `information_schema`. Raises: as `catalogue.answer`."""
    source = context.readable()
    return FixedResult("SELECT", answer(source, text, context.parameters_of(text)), source.timestamp)


def _describe(context: Context, reader: TokenReader) -> tuple[Source, pa.Table]:
    """Execute `DESCRIBE [t [column]]`, `DESCRIBE t AT (…)` or `DESCRIBE SELECT …`.

    Returns (the snapshot or transaction that was read, rows).
    """
    source = context.readable()
    if reader.peek() is None:
        return source, answer(source, "SHOW ALL TABLES", {})
    described = describe
    if (following := reader.peek(1)) is not None and following.is_identifier:
        if reader.take("EXTENDED") or reader.take("FORMATTED"):
            described = describe_storage
        else:
            reader.take("TABLE")
    first = reader.peek()
    begin = reader.here
    if first is not None and first.is_identifier and first.keyword not in _QUERIES:
        name = table_name(reader)
        if reader.ended:
            return source, described(state_of(source, name))
        if (column := reader.peek()) is not None and column.is_identifier and reader.peek(1) is None:
            state = state_of(source, name)
            return source, _of_column(described(state), state, reader.identifier())
        rest = reader.text[begin:]
        connection = context.database._connection(files=context.rights.files)
        moments = read_moments(
            context.database, {}, connection, source.timestamp, f"FROM {rest}", context.parameters
        )
        if len(moments.scans) == 1:
            reader.rest()
            (scan,) = moments.scans.values()
            return source, described(scan.table)
        raise reader.error("expected the end of the statement")
    rest = reader.rest()
    return source, context.select(source, f"DESCRIBE {rest}").to_arrow()


def _of_column(rows: pa.Table, state: TableState, name: str) -> pa.Table:
    """Return the row that describes one column. Raises: ColumnNotFoundError."""
    names = state.schema.names
    found = state.schema.by_name(spelled_column(name, names)).name
    return rows.slice(names.index(found), 1)
