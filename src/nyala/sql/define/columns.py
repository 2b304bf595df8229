"""Reads the column lists of CREATE TABLE and ALTER TABLE.

Kudu's words (ENCODING, COMPRESSION, BLOCK_SIZE, COMMENT, IMMUTABLE) are cut out of each column's
text. An empty DuckDB executes a CREATE TABLE with the remaining text. Its catalogue then has the
types, NOT NULL, the key and the defaults.

Source: docs/reference/sql.md.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from nyala.errors import Error, InvalidArgumentError, SchemaError
from nyala.schema.schema import ColumnSpec, column
from nyala.sql.names import spelled_column
from nyala.sql.select.connection import SMALL
from nyala.sql.tokens import TokenReader, quoted, replaced, tokens
from nyala.sql.types import VOLATILE
from nyala.suggestion import nearest

_ENCODINGS: Final = {
    "AUTO_ENCODING": "auto",
    "PLAIN_ENCODING": "plain",
    "PREFIX_ENCODING": "prefix",
    "DICT_ENCODING": "dictionary",
    "DICT": "dictionary",
    "BIT_SHUFFLE": "bitshuffle",
}
_COMPRESSIONS: Final = {"DEFAULT_COMPRESSION": "default", "NO_COMPRESSION": "none"}
_REFUSED: Final = {
    "UNIQUE": "UNIQUE is not supported, because only the primary key is enforced: leave it out",
    "CHECK": "CHECK is not supported: leave it out, and check values before they are inserted",
    "REFERENCES": "foreign keys are not supported: leave out the clause",
    "FOREIGN": "foreign keys are not supported: leave out the clause",
    "AS": "generated columns are not supported: compute the value in INSERT or SELECT",
    "GENERATED": "generated columns are not supported: compute the value in INSERT or SELECT",
    "COLLATE": "collations are not supported: text compares by its bytes",
    **dict.fromkeys(
        ("SERIAL", "BIGSERIAL", "SMALLSERIAL", "AUTOINCREMENT", "AUTO_INCREMENT", "IDENTITY"),
        "only a table without PRIMARY KEY has a key that the store counts up, auto_incrementing_id: leave out this "
        "column, or give its values in INSERT",
    ),
}
_CHANGING: Final = VOLATILE | frozenset(
    "NOW TODAY CURRENT_DATE CURRENT_TIME CURRENT_TIMESTAMP GET_CURRENT_TIMESTAMP GET_CURRENT_TIME "
    "TRANSACTION_TIMESTAMP LOCALTIME LOCALTIMESTAMP".split()
)
# Nyala's type for each of DuckDB's.
_TYPES: Final = {
    "TINYINT": "int8",
    "SMALLINT": "int16",
    "INTEGER": "int32",
    "BIGINT": "int64",
    "FLOAT": "float",
    "DOUBLE": "double",
    "BOOLEAN": "bool",
    "VARCHAR": "string",
    "BLOB": "binary",
    "DATE": "date",
    "TIMESTAMP": "timestamp",
    "TIMESTAMP WITH TIME ZONE": "timestamp",
}
_INSTEAD: Final = {
    "HUGEINT": "DECIMAL(38,0)",
    "UTINYINT": "SMALLINT",
    "USMALLINT": "INTEGER",
    "UINTEGER": "BIGINT",
    "UBIGINT": "DECIMAL(20,0)",
    "UUID": "VARCHAR",
    "JSON": "VARCHAR",
    "TIME": "VARCHAR, or TIMESTAMP",
    "INTERVAL": "BIGINT, in microseconds",
    "TIMESTAMP_NS": "TIMESTAMP, which has microseconds",
    "TIMESTAMP_MS": "TIMESTAMP",
    "TIMESTAMP_S": "TIMESTAMP",
    "TIMESTAMP_NTZ": "TIMESTAMP",
    "DATETIME2": "TIMESTAMP",
    "NUMBER": "DECIMAL(p,s), or BIGINT",
    "BYTE": "TINYINT",
    "BYTES": "BLOB",
    "UNIXTIME_MICROS": "TIMESTAMP",
    "NVARCHAR": "VARCHAR",
}


_KNOWN_TYPES: Final = (
    *(name for name in _TYPES if " " not in name), "INT", "STRING", "TEXT", "TIMESTAMPTZ", "DECIMAL", "REAL",
)  # fmt: skip
_NO_TYPE: Final = re.compile(r"Type with name (\S+) does not exist")


@dataclass(frozen=True)
class Columns:
    """The columns of a new table. key: its key columns; None: the text names no key."""

    by_name: dict[str, ColumnSpec]
    key: list[str] | None
    unique: bool = True


@functools.cache
def _empty() -> Any:
    """Return an empty DuckDB database, which evaluates constants and checks definitions of columns.

    Opening takes long, so a process opens it only once.
    """
    import duckdb

    opened = duckdb.connect(":memory:", config={**SMALL, "enable_external_access": "false"})
    opened.execute("SET GLOBAL TimeZone = 'UTC'; SET GLOBAL lock_configuration = true")
    return opened


# DuckDB warns about connections that are open when the interpreter exits.
atexit.register(_empty.cache_clear)


@contextlib.contextmanager
def scratch() -> Iterator[Any]:
    """Yield a connection to an empty DuckDB without access to files. Other connections do not see its tables."""
    with contextlib.closing(_empty().cursor()) as connection:
        yield connection


def constant(text: str, parameters: dict[str, Any] | None = None) -> Any:
    """Return the value of a constant expression. Raises: InvalidArgumentError."""
    import duckdb

    with scratch() as connection:
        try:
            ((value,),) = connection.execute(f"SELECT {text}", parameters or None).fetchall()
        except duckdb.Error as error:
            raise InvalidArgumentError(f"{text} is not a constant: {_problem(error)}") from error
    return value


def _problem(error: Exception) -> str:
    """Return the first line of DuckDB's message. The other lines show a statement that the user did not write."""
    return str(error).split("\n", 1)[0]


def storage_words(reader: TokenReader) -> dict[str, Any] | None:
    """Read `ENCODING x`, `COMPRESSION x`, `BLOCK_SIZE n`, `COMMENT 'x'` or `IMMUTABLE`.

    Returns arguments of `nyala.column`; None if no such word comes next.
    """
    if reader.take("ENCODING"):
        word = reader.identifier()
        return {"encoding": _ENCODINGS.get(word.upper(), word.lower())}
    if reader.take("COMPRESSION"):
        word = reader.identifier()
        return {"compression": _COMPRESSIONS.get(word.upper(), word.lower())}
    if reader.take("BLOCK_SIZE"):
        token = reader.next()
        if token.kind != "number":
            raise SchemaError(f"BLOCK_SIZE takes a number of bytes, such as 65536, not {token.text}")
        return {"block_size": constant(token.text)}
    if reader.take("COMMENT"):
        return {"comment": str(constant(reader.next().text))}
    if reader.take("IMMUTABLE"):
        return {"immutable": True}
    return None


def read_columns(items: Sequence[str]) -> Columns:
    """Return the columns and the key that the items of a column list define.

    Raises: SchemaError, InvalidArgumentError.
    """
    import duckdb

    storage: dict[str, dict[str, Any]] = {}
    lengths: dict[str, str] = {}
    kept = []
    key: list[str] | None = None
    unique = True
    for item in items:
        reader = TokenReader(item)
        named_key = reader.peek(2)
        if reader.at("CONSTRAINT") and named_key is not None and named_key.keyword == "PRIMARY":
            reader.next()
            reader.identifier()  # the key's name is ignored
        if reader.at("PRIMARY", "KEY") or reader.at("NON", "UNIQUE"):
            unique = not reader.take("NON", "UNIQUE")
            reader.need("PRIMARY", "KEY")
            key = reader.names()
            reader.finish()
            continue
        if any(reader.at(word) for word in ("CONSTRAINT", "UNIQUE", "CHECK", "FOREIGN")):
            raise SchemaError(_refusal(reader))
        name = reader.identifier()
        kept.append(_without_storage(reader, name, storage, lengths))
    with scratch() as connection:
        try:
            connection.execute(f"CREATE TEMP TABLE nyala_columns ({', '.join(kept)}\n)")
        except duckdb.Error as error:
            raise SchemaError(_invalid(connection, kept, error)) from error
        found = connection.execute(
            "SELECT column_name, is_nullable, column_default, data_type FROM duckdb_columns() "
            "WHERE table_name = 'nyala_columns' ORDER BY column_index"
        ).fetchall()
        keys = connection.execute(
            "SELECT constraint_column_names FROM duckdb_constraints() WHERE constraint_type = 'PRIMARY KEY'"
        ).fetchall()
        if keys and key is not None:
            raise SchemaError("PRIMARY KEY occurs twice: keep one")
        if keys:
            key = list(keys[0][0])
        specs = {}
        for name, nullable, default, type in found:
            value = None if default is None else _default(connection, name, default, type)
            in_key = key is not None and name.lower() in [each.lower() for each in key]
            try:
                specs[name] = column(
                    lengths.get(name) or _type(type),
                    nullable=bool(nullable) and not in_key,
                    default=value,
                    **storage.get(name, {}),
                )
            except (Error, TypeError) as error:
                raise SchemaError(f"column {name!r}: {error}") from None
    if key is not None:
        key = [spelled_column(name, specs) for name in key]
        check_key(key, list(specs))
    return Columns(specs, key, unique)


def check_key(key: Sequence[str], columns: Sequence[str]) -> None:
    """Check that the key columns are the first columns, in the order of the key.

    Every table has its columns in this order. If CREATE TABLE had another order, an INSERT without
    a list of columns would store the values in unexpected columns.

    Raises: SchemaError.
    Source: docs/design/kudu.md; Apache Impala, "CREATE TABLE", Kudu tables.
    """
    missing = [name for name in key if name not in columns]
    if missing:
        raise SchemaError(f"the primary key names {missing[0]!r}, which is not a column")
    if list(columns[: len(key)]) != list(key):
        ordered = [*key, *(name for name in columns if name not in key)]
        raise SchemaError(
            "the columns of the primary key come first in a table, in the order of the key: write the columns in the "
            f"order {', '.join(ordered)}"
        )


def _invalid(connection: Any, items: Sequence[str], error: Exception) -> str:
    """Return the message for a list of columns that DuckDB refuses. It names the first wrong column."""
    import duckdb

    for item in items:
        try:
            connection.execute(f"CREATE OR REPLACE TEMP TABLE nyala_columns ({item}\n)")
        except duckdb.Error as alone:
            problem = str(alone)
            if match := _NO_TYPE.search(problem):
                instead, guess = _INSTEAD.get(match[1].upper()), nearest(match[1], _KNOWN_TYPES)
                hint = f": use {instead}" if instead else f": did you mean {guess}?" if guess else ""
                problem = f"there is no type {match[1]}{hint}"
            return f"column {TokenReader(item).identifier()!r}: {problem.splitlines()[0]}"
    return f"the columns are not valid: {_problem(error)}"


def _without_storage(
    reader: TokenReader, name: str, storage: dict[str, dict[str, Any]], lengths: dict[str, str]
) -> str:
    """Cut Kudu's words, such as ENCODING and COMPRESSION, out of a column's text. Returns the rest.

    storage: receives the words and their values, by column.
    lengths: receives the length of VARCHAR(n), which DuckDB ignores.
    """
    edits = [(token.begin, token.end, quoted(token.name)) for token in reader.tokens if token.text[:1] == "`"]
    first = reader.peek()
    if first is not None and first.keyword in ("VARCHAR", "CHAR") and (ahead := reader.peek(2)):
        if ahead.kind == "number":
            lengths[name] = f"varchar({ahead.text})"
    while not reader.ended:
        token = reader.peek()
        assert token is not None
        if token.keyword in _REFUSED:
            raise SchemaError(f"column {name!r}: {_refusal(reader)}")
        begin = reader.here
        words = storage_words(reader)
        if words is None and token.text == "(":
            reader.parenthesised()
        elif words is None:
            reader.next()
        else:
            storage.setdefault(name, {}).update(words)
            edits.append((begin, reader.tokens[reader.index - 1].end, ""))
    return replaced(reader.text, edits)


def _refusal(reader: TokenReader) -> str:
    """Return the message for a constraint that is not supported."""
    found = [token.keyword for token in reader.tokens[reader.index :] if token.keyword in _REFUSED]
    if found[:1] == ["GENERATED"] and "IDENTITY" in found:  # GENERATED ALWAYS AS IDENTITY
        return _REFUSED["IDENTITY"]
    return (
        _REFUSED[found[0]] if found else "CONSTRAINT is not supported: write PRIMARY KEY (…) without a name"
    )


def _type(name: str) -> str:
    """Return Nyala's name for a type of DuckDB. Raises: SchemaError."""
    if name.startswith("DECIMAL"):
        return name.lower()
    if name not in _TYPES:
        instead = _INSTEAD.get(name)
        raise SchemaError(f"type {name} is not supported" + (f": use {instead}" if instead else ""))
    return _TYPES[name]


def _default(connection: Any, name: str, default: str, type: str) -> Any:
    """Return the value of a column's DEFAULT. Raises: SchemaError."""
    import duckdb

    if any(token.keyword in _CHANGING for token in tokens(default)):
        raise SchemaError(
            f"column {name!r}: the default {default} changes from call to call, and Nyala's defaults are constants"
        )
    try:
        ((value,),) = connection.execute(f"SELECT CAST(({default}) AS {type})").fetchall()
    except duckdb.Error as error:
        raise SchemaError(
            f"column {name!r}: the default {default} cannot be used as {type}: {_problem(error)}"
        ) from error
    return value
