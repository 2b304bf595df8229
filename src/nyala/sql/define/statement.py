"""Executes CREATE, ALTER, DROP and UNDROP TABLE, and COMMENT ON.

These statements change the catalogue at once, so they are refused inside a transaction.
Source: docs/reference/sql.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nyala.errors import InvalidArgumentError, TableNotFoundError
from nyala.sql.context import Context
from nyala.sql.define.alter_table import alter_table, exact_column
from nyala.sql.define.columns import constant
from nyala.sql.define.create_table import create_table, read_moment
from nyala.sql.names import of_store, spelled, table_name
from nyala.sql.result import FixedResult, without_rows
from nyala.sql.tokens import TokenReader, replaced
from nyala.sql.types import literal_of


def execute(context: Context, text: str) -> FixedResult:
    """Execute a statement that changes tables. Raises: as `Database.sql`."""
    reader = TokenReader(_with_constants(text, context.parameters))
    word = reader.next().keyword
    context.check_writable(word)
    if context.transaction is not None:
        raise InvalidArgumentError(
            f"{word} is not possible inside a transaction, because it changes tables at once: run it before BEGIN or "
            "after COMMIT"
        )
    if word == "CREATE":
        return create_table(context, reader)
    if word == "ALTER":
        return alter_table(context, reader)
    if word == "COMMENT":
        return _comment(context, reader)
    return _drop(context, reader) if word == "DROP" else _undrop(context, reader)


def _with_constants(text: str, parameters: Mapping[str, Any]) -> str:
    """Return the text with constants in place of parameters, except in AS SELECT.

    Raises: InvalidArgumentError for a parameter whose type has no constants.
    """
    if not parameters:
        return text
    reader = TokenReader(text)
    reader.until(
        ("AS", "SELECT"), ("AS", "FROM"), ("AS", "WITH"), ("AS", "VALUES"), ("AS", "("), ("AS", "TABLE")
    )
    found = (token for token in reader.tokens[: reader.index] if token.kind == "parameter")
    return replaced(
        text, ((token.begin, token.end, literal_of(parameters[token.text[1:]])) for token in found)
    )


def _drop(context: Context, reader: TokenReader) -> FixedResult:
    """Execute `DROP TABLE [IF EXISTS] t, … [PURGE]`."""
    database = context.database
    _need_table(reader, "DROP")
    if_exists = reader.take("IF", "EXISTS")
    names = [table_name(reader)]
    while reader.take(","):
        names.append(table_name(reader))
    purge = reader.take("PURGE")
    _ = reader.take("CASCADE") or reader.take("RESTRICT")
    reader.finish()
    tables = database.list_tables()
    names = [spelled(name, tables) for name in names]
    if if_exists:
        names = [name for name in names if name in tables]
    if names:
        database._changing("DROP TABLE").drop_tables(names, purge)
    return without_rows("DROP TABLE", database.now())


def _undrop(context: Context, reader: TokenReader) -> FixedResult:
    """Execute `UNDROP TABLE t [AT (TIMESTAMP => moment)] [AS new | RENAME TO new]`."""
    _need_table(reader, "UNDROP")
    name = table_name(reader)
    at = read_moment(context, reader)
    new = table_name(reader) if reader.take("AS") or reader.take("RENAME", "TO") else None
    reader.finish()
    database = context.database
    name = spelled(name, {each.name for each in database.dropped_tables()})
    database.undrop_table(name, spelled(new or name, database.list_tables()), at=at)
    return without_rows("UNDROP TABLE", context.database.now())


def _comment(context: Context, reader: TokenReader) -> FixedResult:
    """Execute `COMMENT ON TABLE t IS '…'` or `COMMENT ON COLUMN t.c IS '…'`."""
    reader.need("ON")
    of_table = reader.take("TABLE")
    if not of_table:
        reader.need("COLUMN")
    names = reader.qualified()
    reader.need("IS")
    text = constant(reader.rest())
    comment = "" if text is None else str(text)
    if not of_table and len(names) < 2:
        raise InvalidArgumentError("COMMENT ON COLUMN takes table.column")
    name = of_store(names if of_table else names[:-1])
    with context.database.table(spelled(name, context.database.list_tables())).alter() as alteration:
        if of_table:
            alteration.set_comment(comment)
        else:
            alteration.alter_column(exact_column(alteration, names[-1]), comment=comment)
    return without_rows("COMMENT", context.database.now())


def _need_table(reader: TokenReader, word: str) -> None:
    """Read TABLE. Raises: InvalidArgumentError for other objects, such as views."""
    if reader.take("TABLE"):
        return
    what = reader.peek()
    if what is None:
        raise TableNotFoundError(f"{word} TABLE needs the name of a table")
    raise InvalidArgumentError(f"{word} {what.text.upper()} is not supported: a store has tables only")
