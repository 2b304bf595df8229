"""Executes COPY, ATTACH and DETACH, which reach files and other stores.

SQL from a program that opened the store with `connect`, or from the shell, may use these statements.
SQL that a program receives from elsewhere, and executes with `StoreRights`, may not.

Source: docs/how-to/sql.md, "Files" and "Other stores"; DuckDB, "COPY Statement".
"""

from __future__ import annotations

from nyala.errors import InvalidArgumentError
from nyala.sql.context import Context
from nyala.sql.files.copy_from import copy_from
from nyala.sql.files.copy_to import copy_to
from nyala.sql.result import FixedResult, without_rows
from nyala.sql.tokens import Token, TokenReader


def execute(context: Context, text: str) -> FixedResult:
    """Execute a statement that reaches files or other stores. Raises: as `Database.sql`."""
    reader = TokenReader(text)
    word = reader.next().keyword
    context.rights.check_outside(word)
    if word == "COPY":
        return _copy(context, reader)
    return _attach(context, reader) if word == "ATTACH" else _detach(context, reader)


def _copy(context: Context, reader: TokenReader) -> FixedResult:
    """Execute `COPY t [(columns)] FROM 'file'`, `COPY t [(columns)] TO 'file'` or `COPY (SELECT …) TO 'file'`."""
    query, table, columns = None, "", None
    if reader.at("("):
        query = reader.parenthesised()
    else:
        begin = reader.here
        reader.qualified()
        table = reader.text[begin : reader.tokens[reader.index - 1].end]
        columns = reader.names() if reader.at("(") else None
    if query is None and reader.take("FROM"):
        return copy_from(context, table, columns, _path(context, reader), _options(reader))
    reader.need("TO")
    return copy_to(context, query, table, columns, _path(context, reader), reader.rest())


def _path(context: Context, reader: TokenReader) -> str:
    """Read the name of a file or folder: a text or a parameter. Raises: InvalidArgumentError."""
    token = reader.next()
    value = _value(context, token)
    if isinstance(value, str) and value:
        return value
    if token.keyword in ("STDIN", "STDOUT"):
        raise InvalidArgumentError(f"COPY takes the name of a file in single quotes, and not {token.text}")
    reader.index -= 1
    raise reader.error("expected the name of a file or folder in single quotes")


def _value(context: Context, token: Token) -> object:
    """Return the value of a parameter or of a text in single quotes; None for any other token."""
    if token.kind == "parameter":
        value = context.parameters[token.text[1:]]
        return value.__fspath__() if hasattr(value, "__fspath__") else value
    return token.plain_text


def _options(reader: TokenReader) -> dict[str, str]:
    """Read `[WITH] (name value, …)`. Returns values by names in lower case: "true" for an option without a value."""
    reader.take("WITH")
    if reader.ended:
        return {}
    inside = TokenReader(reader.parenthesised())
    reader.finish()
    options: dict[str, str] = {}
    for item in inside.listed():
        option = TokenReader(item)
        if option.ended:
            raise inside.error("expected an option")
        name = option.identifier().lower()
        option.take("=")
        if name in options:
            raise InvalidArgumentError(f"COPY has the option {name.upper()} twice")
        options[name] = option.rest() or "true"
    inside.finish()
    return options


def _attach(context: Context, reader: TokenReader) -> FixedResult:
    """Execute `ATTACH [DATABASE] 'folder' [AS name] [(READ_ONLY)]`."""
    reader.take("DATABASE")
    path = _path(context, reader)
    name = reader.identifier() if reader.take("AS") else path.rstrip("/").rpartition("/")[2]
    if reader.take("("):
        reader.need("READ_ONLY")
        reader.take("TRUE")
        reader.need(")")
    reader.finish()
    context.database._attach(name, path)
    return without_rows("ATTACH", context.database.now())


def _detach(context: Context, reader: TokenReader) -> FixedResult:
    """Execute `DETACH [DATABASE] [IF EXISTS] name`."""
    reader.take("DATABASE")
    if_exists = reader.take("IF", "EXISTS")
    name = reader.identifier()
    reader.finish()
    context.database._detach(name, missing_ok=if_exists)
    return without_rows("DETACH", context.database.now())
