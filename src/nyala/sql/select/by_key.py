"""Executes a SELECT by primary key without DuckDB: the rows are looked up as by `get_many`.

    SELECT a, b FROM t WHERE k = 5
    SELECT * FROM t AS x WHERE x.k1 = $1 AND x.k2 IN ('a', 'b')

Only this form is recognised: columns or `*`, one table, and a WHERE with one term for each key
column and no other term. A term is `=` or IN with integers or texts. DuckDB executes all other
statements.

A look-up takes 0.2 to 0.5 ms. DuckDB needs 2 ms only to plan the statement.
Source: docs/design/keys-and-look-ups.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, Union

import pyarrow as pa

from nyala.errors import InvalidArgumentError
from nyala.schema.schema import ColumnSchema, Schema
from nyala.sql.literals import TEXT, items_of_list
from nyala.sql.result import FixedResult
from nyala.sql.tokens import TokenReader, cached_for_short

if TYPE_CHECKING:
    from nyala.api.database import Snapshot
    from nyala.api.transaction import Transaction

_TEXT_CHARS_MAX: Final = 1_000_000
_KEYS_MAX: Final = 100_000
# Words after the name of a table that are not its alias.
_NO_ALIAS: Final = frozenset(("WHERE", "AT", "FOR", "VERSION", "TIMESTAMP", "TABLESAMPLE", "JOIN", "CROSS"))

Source: TypeAlias = Union["Snapshot", "Transaction"]
Values: TypeAlias = Mapping[str, list[str]]
"""For each key column, the constants that WHERE compares it with, as they are written in the statement."""


@dataclass(frozen=True)
class _Lookup:
    """The parts of a statement such as `SELECT a FROM t WHERE k = 5`, as they are written in its text.

    columns: the selected columns; None for `*`.
    values: for each key column, the texts of the constants with which it is compared.
    """

    table: str
    columns: tuple[str, ...] | None
    values: Values


def look_up(source: Source, text: str, parameters: Mapping[str, Any]) -> FixedResult | None:
    """Execute a SELECT by key, such as `SELECT a FROM t WHERE k = 5`, without DuckDB.

    Returns None if the statement has another form, the table is unknown, or a value has another type than
    its key column.
    """
    found = _recognised(text)
    if found is None or found.table not in source.list_tables():
        return None
    schema = source[found.table]._view(None)[1].schema
    columns = _columns(schema, found.columns)
    keys = _keys(schema, found.values, parameters)
    if columns is None or keys is None:
        return None
    rows = source[found.table].get_many(keys, columns)
    plan = f"LOOK UP {found.table} BY KEY ({', '.join(schema.key_names)}): {keys.num_rows} keys"
    return FixedResult("SELECT", rows, source.timestamp, plan=plan)


def rows_by_key(
    source: Source,
    table: str,
    alias: str,
    where: str,
    parameters: Mapping[str, Any],
    columns: Sequence[str] | None = None,
) -> pa.Table | None:
    """Look up the rows for a WHERE clause such as `k = 5`; None if the clause has another form.

    columns: the columns to return; None: all.
    """
    values = _conditions_of(where, alias)
    if values is None:
        return None
    keys = _keys(source[table]._view(None)[1].schema, values, parameters)
    return None if keys is None else source[table].get_many(keys, columns)


@cached_for_short
def _recognised(text: str) -> _Lookup | None:
    if len(text) > _TEXT_CHARS_MAX:
        return None
    try:
        return _parsed(TokenReader(text))
    except InvalidArgumentError:  # DuckDB's error will say what is wrong
        return None


def _parsed(reader: TokenReader) -> _Lookup | None:
    if not reader.take("SELECT"):
        return None
    listed: list[list[str]] | None = None
    if not reader.take("*"):
        listed = [reader.qualified()]
        while reader.take(","):
            listed.append(reader.qualified())
    reader.need("FROM")
    table = alias = reader.identifier()
    if reader.take("AS") or ((ahead := reader.peek()) and ahead.keyword not in _NO_ALIAS):
        alias = reader.identifier()
    reader.need("WHERE")
    values = _conditions(reader, alias)
    if values is None:
        return None
    columns = None if listed is None else [_of_table(names, alias) for names in listed]
    if columns is not None and None in columns:
        return None
    return _Lookup(table, None if columns is None else tuple(name for name in columns if name), values)


@cached_for_short
def _conditions_of(where: str, alias: str) -> Values | None:
    if len(where) > _TEXT_CHARS_MAX:
        return None
    try:
        return _conditions(TokenReader(where), alias)
    except InvalidArgumentError:
        return None


def _conditions(reader: TokenReader, alias: str) -> Values | None:
    """Read `column = constant AND column IN (…) AND …` up to the end; None for another form."""
    values: dict[str, list[str]] = {}
    while True:
        name = _of_table(reader.qualified(), alias)
        if name is None or name in values:
            return None
        values[name] = _constants(reader)
        if not reader.take("AND"):
            return values if reader.ended else None


def _of_table(names: Sequence[str], alias: str) -> str | None:
    """Return the column of the qualified name `column` or `alias.column`; None for another name."""
    if len(names) == 1:
        return names[0]
    return names[1] if len(names) == 2 and names[0] == alias else None


def _constants(reader: TokenReader) -> list[str]:
    """Read `= constant` or `IN (constant, …)`. Raises: InvalidArgumentError."""
    if not reader.take("IN"):
        if not reader.take("=="):
            reader.need("=")
        sign = "-" if reader.take("-") else ""
        return [sign + reader.next().text]
    token = reader.peek()
    if token is not None and token.kind == "list":
        return items_of_list(reader.next().text)
    reader.need("(")
    values = reader.listed()
    reader.need(")")
    return values


def _columns(schema: Schema, names: Sequence[str] | None) -> list[str] | None:
    """Return the columns to read; None if one is unknown or is named twice."""
    if names is None:
        return list(schema.names)
    exact = {name.lower(): name for name in schema.names}
    if len(exact) < len(schema.names) or any(name.lower() not in exact for name in names):
        return None
    found = [exact[name.lower()] for name in names]
    return found if len(set(found)) == len(found) else None


def _keys(schema: Schema, given: Values, parameters: Mapping[str, Any]) -> pa.Table | None:
    """Return the keys without duplicates; None if the conditions are not for exactly the key columns.

    given: the texts of the constants, by column.
    """
    folded = {name.lower(): texts for name, texts in given.items()}
    columns = schema.key_columns
    if len(folded) < len(given) or folded.keys() != {column.name.lower() for column in columns}:
        return None
    lists = []
    count = 1
    for column in columns:
        values = [_value(column, text, parameters) for text in folded[column.name.lower()]]
        if None in values:
            return None
        lists.append(list(dict.fromkeys(values)))
        count *= len(lists[-1])
    if count > _KEYS_MAX:
        return None
    rows = list(itertools.product(*lists))
    arrays = [
        pa.array([row[place] for row in rows], column.type.arrow) for place, column in enumerate(columns)
    ]
    return pa.table(dict(zip(schema.key_names, arrays, strict=True)))


def _value(column: ColumnSchema, text: str, parameters: Mapping[str, Any]) -> Any:
    """Return the value of a constant in SQL; None if the column cannot contain it.

    Also None if the column's type is not an integer or string type.
    text: the constant as it is written: an integer, a text in quotes, or a parameter such as `$name`.
    """
    kind = column.type
    value: Any = None
    if text[:1] == "$":
        value = parameters.get(text[1:])
    elif text.isascii() and text.removeprefix("-").isdecimal():
        value = int(text)
    elif TEXT.fullmatch(text):
        value = text[1:-1].replace("''", "'")
    if value.__class__ is int and kind.is_integer:
        least, greatest = kind.value_min, kind.value_max
        assert least is not None and greatest is not None
        return value if least <= value <= greatest else None
    return value if value.__class__ is str and kind.name == "string" else None
