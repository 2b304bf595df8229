"""Executes CREATE TABLE with a list of columns, AS SELECT, LIKE or CLONE.

    CREATE [OR REPLACE] TABLE [IF NOT EXISTS] t [(columns)] [PRIMARY KEY (…)] [PARTITION BY …] [COMMENT '…']
        [WITH ('nyala.history' = '30d')] [AS SELECT …]

Each statement is one change of the catalogue. This change includes the rows of AS SELECT, and the
drop of the table that OR REPLACE replaces.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from nyala.errors import Error, InvalidArgumentError, SchemaError, TableExistsError
from nyala.schema.schema import AUTO_INCREMENT, ColumnSpec, column
from nyala.sql.change.rows import collected
from nyala.sql.context import Context
from nyala.sql.define.columns import Columns, check_key, constant, read_columns
from nyala.sql.define.partitions import read_partitions
from nyala.sql.names import spelled, spelled_column, table_name
from nyala.sql.result import FixedResult, without_rows
from nyala.sql.tokens import TokenReader
from nyala.tablet.write.write_path import Request

if TYPE_CHECKING:
    from nyala.partition.levels import HashSpec, RangeSpec
    from nyala.tablet.tables.creation import NewTable


@dataclass
class _Definition:
    """The clauses of a CREATE TABLE."""

    name: str
    columns: Columns | None = None
    key: list[str] | None = None
    unique: bool = True
    partitions: list[HashSpec | RangeSpec] | None = None
    comment: str | None = None
    history: str | None = None
    select: str | None = None


def create_table(context: Context, reader: TokenReader) -> FixedResult:
    """Execute CREATE TABLE. reader: the statement after the word CREATE.

    Raises: SchemaError, TableExistsError, InvalidArgumentError.
    """
    database = context.database
    replaces = reader.take("OR", "REPLACE")
    reader.take("EXTERNAL")
    if not reader.take("TABLE"):
        what = reader.peek()
        raise InvalidArgumentError(
            f"CREATE {what.keyword if what else ''} is not supported: only CREATE TABLE is"
            + ("; write the SELECT as a WITH clause" if what and what.keyword in ("VIEW", "TEMP") else "")
        )
    if_not_exists = reader.take("IF", "NOT", "EXISTS")
    if replaces and if_not_exists:
        raise InvalidArgumentError("OR REPLACE and IF NOT EXISTS contradict each other: use one")
    name = spelled(table_name(reader), database.list_tables())
    if if_not_exists and name in database:
        return FixedResult("CREATE TABLE", pa.table({}), database.now(), rowcount=0)
    if name in database and not replaces:
        raise TableExistsError(
            f"there is a table {name!r} already: use CREATE TABLE IF NOT EXISTS, CREATE OR REPLACE TABLE, or another "
            "name"
        )
    if reader.take("CLONE") or reader.at("LIKE"):
        return _copied(context, reader, name, replaces)
    new, rows = _new_table(context, _read(reader, name))
    requests = [] if rows is None else [Request(name, "insert", rows)]
    context.running.check()
    database._changing("CREATE TABLE").create_table(new, requests, replaces)
    return FixedResult(
        "CREATE TABLE", pa.table({}), database.now(), rowcount=-1 if rows is None else rows.num_rows
    )


def _copied(context: Context, reader: TokenReader, name: str, replaces: bool) -> FixedResult:
    """Execute `CREATE TABLE name CLONE old [AT (TIMESTAMP => moment)]` or `CREATE TABLE name LIKE old`."""
    database = context.database
    like = reader.take("LIKE")
    old = spelled(table_name(reader), database.list_tables())
    at = None if like else read_moment(context, reader)
    reader.finish()
    if like:
        database._changing("CREATE TABLE").create_table(
            database._new_table(name, like=database[old]), (), replaces
        )
    else:
        database._clone_table(old, name, at, replaces=replaces)
    return without_rows("CREATE TABLE", database.now())


def read_moment(context: Context, reader: TokenReader) -> Any:
    """Read `[AT (TIMESTAMP => moment)]` or `[AT (VERSION => timestamp)]`.

    Returns the moment; None without AT. Raises: InvalidArgumentError.
    """
    if not reader.take("AT"):
        return None
    inside = TokenReader(reader.parenthesised())
    if not inside.take("TIMESTAMP", "=>") and not inside.take("VERSION", "=>"):
        raise inside.error("expected TIMESTAMP => or VERSION =>")
    return constant(inside.rest(), context.parameters_of(inside.text))


def _read(reader: TokenReader, name: str) -> _Definition:
    """Read the clauses after the table's name. Raises: InvalidArgumentError, SchemaError."""
    made = _Definition(name)
    if reader.at("("):
        made.columns = read_columns(TokenReader(reader.parenthesised()).listed())
        made.key, made.unique = made.columns.key, made.columns.unique
    while not reader.ended:
        if reader.at("PRIMARY", "KEY") or reader.at("NON", "UNIQUE"):
            made.unique = not reader.take("NON", "UNIQUE")
            reader.need("PRIMARY", "KEY")
            if made.key is not None:
                raise SchemaError("PRIMARY KEY occurs twice: keep one")
            made.key = reader.names()
        elif reader.take("PARTITION", "BY"):
            made.partitions = read_partitions(reader, made.key or [])
        elif reader.take("STORED", "AS"):
            if reader.identifier().upper() != "KUDU":
                raise InvalidArgumentError("STORED AS must be KUDU: leave it out, or write STORED AS KUDU")
        elif reader.take("COMMENT"):
            made.comment = str(constant(reader.next().text))
        elif reader.take("TBLPROPERTIES") or reader.take("WITH"):
            made.history = read_history(reader)
        elif reader.take("AS"):
            made.select = reader.rest()
        else:
            raise reader.error(
                "expected PRIMARY KEY, PARTITION BY, COMMENT, WITH (…), STORED AS or AS SELECT"
            )
    if made.columns is not None and made.select is not None:
        raise InvalidArgumentError(
            "CREATE TABLE … AS takes its columns from the SELECT: leave out the list of columns"
        )
    if made.columns is None and made.select is None:
        raise InvalidArgumentError(f"CREATE TABLE {name} needs columns, AS SELECT, LIKE or CLONE")
    return made


def read_history(reader: TokenReader) -> str:
    """Read `('nyala.history' = '30d')`. Raises: InvalidArgumentError for any other option."""
    history = ""
    for item in TokenReader(reader.parenthesised()).listed():
        option = TokenReader(item)
        name = str(constant(option.until(("=",))))
        option.need("=")
        if name != "nyala.history":
            raise InvalidArgumentError(
                f"unknown option {name!r}: the only option is 'nyala.history', for example '30d'"
            )
        history = str(constant(option.rest()))
    return history


def _new_table(context: Context, definition: _Definition) -> tuple[NewTable, pa.Table | None]:
    """Return the new table, and the rows of AS SELECT; None without AS. Raises: as `create_table`."""
    source = None if definition.select is None else context.select(context.readable(), definition.select)
    key = definition.key
    counts_up = key is None or not definition.unique  # the store adds the key column AUTO_INCREMENT
    if source is None:
        assert definition.columns is not None
        columns = definition.columns.by_name
    else:
        given = [each for each in source.schema if not counts_up or each.name.lower() != AUTO_INCREMENT]
        columns = {each.name: _of_arrow(each, each.name in (key or ())) for each in given}
    partitions = definition.partitions and [
        replace(level, columns=tuple(spelled_column(each, columns) for each in level.columns))
        for level in definition.partitions
    ]
    if key is not None:
        key = [spelled_column(each, columns) for each in key]
        check_key(key, list(columns))
        for each in key:
            if columns[each].nullable:
                columns[each] = replace(columns[each], nullable=False)
    new = context.database._new_table(
        definition.name,
        columns,
        key,
        partitions,
        unique=None if key is None else definition.unique,
        comment=definition.comment,
        history=definition.history,
    )
    if source is None:
        return new, None
    # If two columns have the same name, the schema has another name for the second one, as DuckDB's tables do.
    rows = collected(source.to_reader()).rename_columns(source.schema.names)
    return new, rows.select(list(columns)) if len(columns) < rows.num_columns else rows


_SIGNED: Final = {
    pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20, 0),
}  # fmt: skip


def _of_arrow(given: pa.Field, in_key: bool) -> ColumnSpec:
    """Return the definition of a table's column for a column of a SELECT. Raises: SchemaError."""
    kind = _SIGNED.get(given.type, given.type)
    if pa.types.is_string_view(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind):
        kind = pa.string()
    elif pa.types.is_binary_view(kind) or pa.types.is_large_binary(kind):
        kind = pa.binary()
    elif pa.types.is_timestamp(kind):
        kind = pa.timestamp("us", "UTC")
    elif pa.types.is_null(kind):
        kind = pa.int32()
    try:
        return column(kind, nullable=not in_key)
    except Error as error:
        raise SchemaError(f"column {given.name!r} of the SELECT: {error}: cast it to another type") from None
