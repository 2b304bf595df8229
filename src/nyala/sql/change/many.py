"""Rewrites a statement with many rows of parameters as one statement over a table of these rows.

    INSERT INTO t VALUES (?, lower(?))        becomes    INSERT INTO t SELECT p0, lower(p1) FROM rows
    UPDATE t SET v = v + ? WHERE id = ?       becomes    UPDATE t SET v = v + p0 FROM rows WHERE t.id = p1
    DELETE FROM t WHERE id = $id              becomes    DELETE FROM t USING rows WHERE t.id = p0

One statement for each row of parameters would cost a hundred times as much.

Invariants
    MP1  The result is the same as if the statement were executed for each row of parameters, in
         order. So a statement with a query is not rewritten: the query could read rows that an
         earlier execution has written. An UPDATE or DELETE must name its row by the whole key,
         and each key may occur in one row of parameters only.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from nyala.errors import ColumnNotFoundError, InvalidArgumentError, TableNotFoundError
from nyala.sql.change.matching import as_key, key_terms
from nyala.sql.change.per_row import check_no_window
from nyala.sql.change.rows import are_distinct
from nyala.sql.change.target import Target, find_target, unused_prefix
from nyala.sql.context import Context, Source
from nyala.sql.python_values import plain_values
from nyala.sql.tokens import TokenReader, replaced, tokens, with_neighbours

# A statement with one of these words may read other rows or return rows.
_READING: Final = frozenset(("SELECT", "FROM", "USING", "WITH", "RETURNING", "TABLE"))


@dataclass(frozen=True)
class _Rows:
    """The rows of parameters as a table, and its name in the rewritten statement."""

    name: str
    table: pa.Table


def statement_of_rows(context: Context, text: str, rows: Sequence[Any]) -> tuple[str, str, pa.Table] | None:
    """Rewrite a statement for many rows of parameters as one statement over a table of these rows.

    rows: the parameters of each execution: lists for `?`, or dicts for `$name`.
    Returns (rewritten statement, name of the table in it, the table with the parameters as columns).
    Returns None if this is not possible, also for a wrong statement or row. The caller then executes
    the statement for each row, which raises the error.
    """
    found = tokens(text)
    given = [token for token in found if token.kind == "parameter"]
    places = {name: place for place, name in enumerate(dict.fromkeys(token.text for token in given))}
    is_positional = places.keys() == {"?"}
    if not given or ("?" in places and not is_positional):
        return None
    if any(token.keyword in _READING for token in found[3:]):
        return None
    source = context.readable()
    prefix = unused_prefix(" ".join([text, *source.list_tables()]))
    table = _table(rows, len(given) if is_positional else [name[1:] for name in places], f"{prefix}p")
    if table is None:
        return None
    parameters = _Rows(f"{prefix}rows", table)
    numbers = range(len(given)) if is_positional else [places[token.text] for token in given]
    text = replaced(
        text,
        [
            (token.begin, token.end, f"{parameters.name}.{prefix}p{number}{_space_before(text, token.end)}")
            for token, number in zip(given, numbers, strict=True)
        ],
    )
    make = _MAKERS.get(found[0].keyword)
    try:
        one = None if make is None else make(context, source, text, parameters)
    except (InvalidArgumentError, TableNotFoundError, ColumnNotFoundError):
        return None
    return None if one is None else (one, parameters.name, table)


def _space_before(text: str, place: int) -> str:
    """Return a space if a word directly follows a parameter, as in `?AND`; otherwise ""."""
    return " " if text[place : place + 1].isalnum() else ""


def _table(rows: Sequence[Any], given: int | list[str], prefix: str) -> pa.Table | None:
    """Return the rows of parameters as an Arrow table with the columns `prefix0`, `prefix1`, …

    None if a row lacks a parameter, or one parameter has values of different types.

    given: the number of positional parameters, or the names of the parameters.
    """
    if isinstance(given, int):
        if not all(isinstance(row, list | tuple) and len(row) == given for row in rows):
            return None
        columns: list[Sequence[Any]] = list(zip(*rows, strict=True))
    else:
        if not all(isinstance(row, dict) and row.keys() == set(given) for row in rows):
            return None
        columns = [[row[name] for row in rows] for name in given]
    try:
        columns = [plain_values(column) for column in columns]
        if not all(map(_is_alike, columns)):
            return None
        arrays = [pa.array(column) for column in columns]
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
    return pa.table({f"{prefix}{place}": array for place, array in enumerate(arrays)})


def _is_alike(values: Sequence[Any]) -> bool:
    """Whether Arrow can store the values in one column without converting some of them.

    A conversion could change what is stored: in a column of dates, Arrow cuts a `datetime` to its
    date.
    """
    kinds = set(map(type, values)) - {type(None)}
    if not kinds:
        return True
    if len(kinds) > 1:
        return False
    kind = kinds.pop()
    if kind is dt.datetime:
        return len({value.tzinfo is None for value in values if value is not None}) == 1
    if kind is dt.time:  # Arrow has no times of day with a zone
        return all(value is None or value.tzinfo is None for value in values)
    if kind is decimal.Decimal:
        return len({value.as_tuple().exponent for value in values if value is not None}) == 1
    if kind is list:
        return _is_alike([item for value in values if value is not None for item in value])
    return kind not in (dict, tuple)


def _insert(context: Context, source: Source, text: str, rows: _Rows) -> str | None:
    """Rewrite an INSERT as one statement over the table `rows`, which contains all parameters.

    Returns `INSERT … SELECT … FROM rows [ON CONFLICT …]`. Returns None if the statement must be
    executed once for each row of parameters.

    text: the statement, with `rows.p0` in place of the first parameter.
    """
    reader = TokenReader(text)
    reader.until(("INTO",))
    reader.need("INTO")
    reader.take("TABLE")
    target = find_target(reader, source, ("VALUES",))
    columns = target.read_columns(reader) if reader.at("(") else target.insert_columns
    begin = reader.here
    reader.need("VALUES", "(")
    values = reader.listed()
    reader.need(")")
    words = {token.keyword for token in reader.tokens[reader.index :]}
    tail = _end(reader)
    if "DEFAULT" in {value.upper() for value in values} or rows.name in tail:
        return None
    if tail and not tail.upper().startswith("ON"):
        return None
    if "UPDATE" in words:
        given = dict(zip(columns, values, strict=False))
        if not all(key in given for key in target.keys):
            return None
        if not _are_keys_distinct(target, rows, {key: given[key] for key in target.keys}):
            return None
    _check_values(context, source, values, rows)
    return f"{text[:begin]}SELECT {', '.join(values)}\nFROM {rows.name} {tail}".rstrip()


def _check_values(context: Context, source: Source, values: Sequence[str], rows: _Rows) -> None:
    """Check that DuckDB accepts the expressions `values` in a VALUES clause.

    A VALUES clause must not contain `*`, aggregate functions or window functions.
    Raises: InvalidArgumentError, ColumnNotFoundError.
    """
    if all(_is_constant(value) or _is_parameter(value, rows) for value in values):
        return
    first = {name: rows.table.column(name)[0].as_py() for name in rows.table.column_names}
    listed = "\n, ".join(values).replace(f"{rows.name}.", "$")
    dataclasses.replace(context, parameters=first).select(source, f"VALUES ({listed}\n)")


def _is_constant(text: str) -> bool:
    found = tokens(text)
    return len(found) == 1 and (
        found[0].kind in ("number", "text") or found[0].keyword in ("NULL", "TRUE", "FALSE")
    )


def _is_parameter(text: str, rows: _Rows) -> bool:
    name, _, column = text.partition(".")
    return name == rows.name and column in rows.table.column_names


def _change(_: Context, source: Source, text: str, rows: _Rows) -> str | None:
    """Rewrite an UPDATE or DELETE as one statement over the table `rows`, which contains all parameters.

    Returns `UPDATE … FROM rows WHERE …` or `DELETE … USING rows WHERE …`. Returns None if the
    statement must be executed once for each row of parameters.

    text: the statement, with `rows.p0` in place of the first parameter.
    """
    if rows.table.num_rows < 2:
        return None
    reader = TokenReader(text)
    updates = reader.take("UPDATE")
    if not updates:
        reader.need("DELETE", "FROM")
    target = find_target(reader, source, ("SET", "WHERE"))
    if updates:
        reader.need("SET")
        for item in reader.listed(("WHERE",)):
            check_no_window(item, "SET")
            assigned = TokenReader(item)
            if assigned.at("(") or target.read_column(assigned).name in target.keys:
                return None
    begin = reader.here
    reader.need("WHERE")
    where = _with_qualified_keys(target, _end(reader))
    terms = key_terms(target, where)
    if terms is None or not _are_keys_distinct(target, rows, terms.keys):
        return None
    return f"{text[:begin]}{'FROM' if updates else 'USING'} {rows.name} WHERE {where}"


def _end(reader: TokenReader) -> str:
    """Read the rest of the statement, without `;`. Raises: InvalidArgumentError if a second statement follows."""
    rest = reader.until((";",))
    reader.take(";")
    reader.finish()
    return rest


def _with_qualified_keys(target: Target, where: str) -> str:
    """Return the condition with the table's name before each key column: `t.key` in place of `key`."""
    keys = {name.lower(): target.alias_of(name) for name in target.keys}
    return replaced(
        where,
        [
            (token.begin, token.end, keys[token.name.lower()])
            for before, token, after in with_neighbours(tokens(where))
            if token.is_identifier
            and token.name.lower() in keys
            and before.text != "."
            and after.text not in (".", "(")
        ],
    )


def _are_keys_distinct(target: Target, rows: _Rows, keys: Mapping[str, str]) -> bool:
    """Whether all rows of parameters contain different keys, in the types of the key columns.

    rows: the parameters of each execution of the statement.
    keys: for each key column, the parameter or constant that the statement compares it with.
    """
    found = {}
    for name, side in keys.items():
        if _is_parameter(side, rows):
            column = rows.table.column(side.partition(".")[2])
            found[name] = as_key(column, target.column(name))
            if found[name] is None:
                return False
    return bool(found) and are_distinct(pa.table(found).drop_null(), list(found))


_MAKERS: Final = {
    "INSERT": _insert,
    "UPSERT": _insert,
    "REPLACE": _insert,
    "UPDATE": _change,
    "DELETE": _change,
}
