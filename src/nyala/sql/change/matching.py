"""Finds the rows that UPDATE and DELETE change, and computes their new values.

In general DuckDB joins the table with the other tables of FROM or USING, the sources. Three forms
are cheaper:

    WHERE k = 5, k IN (…)                  The rows are looked up by key.
    UPDATE t SET v = f.x + 1 FROM f
      WHERE t.k = f.k AND f.x > 0          SELECT f.k, f.x + 1 FROM f WHERE f.x > 0 computes all that is written. The
                                           table is not read, and the update skips keys that do not exist.
    UPDATE t SET v = t.v + f.x FROM f
      WHERE t.k = f.k                      If f has few keys, their rows are looked up and joined with f.

The second and third form need one equality `t.key = source.column` for each key column.

Invariants
    MT1  A cheaper form has the same result as the join. If the result could differ, the join is
         used: for a key that a source has twice, a key of another type than its column, a value
         that the table would refuse, and if the cheaper form fails.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from nyala import compute as pc
from nyala.errors import ColumnNotFoundError, InvalidArgumentError, TableNotFoundError
from nyala.schema.conversion.convert import convert
from nyala.schema.schema import ColumnSchema
from nyala.sql.change.change import Change
from nyala.sql.change.target import Statement, Target
from nyala.sql.select.by_key import rows_by_key
from nyala.sql.select.program_objects import data_named
from nyala.sql.tokens import Token, TokenReader, quoted, tokens
from nyala.tablet.write.write_path import Request, prepare_request

# At most this number of rows is looked up, and at most an eighth of the table's rows.
_KEYS_MAX: Final = 100_000
_TABLE_SHARE: Final = 8
# An update of more rows may be committed in parts, so it is not prepared as one batch.
_PREPARED_ROWS_MAX: Final = 1 << 18


@dataclass(frozen=True)
class KeyTerms:
    """A WHERE clause, divided at its ANDs.

    keys: the right side of each term `key column = …`, by key column.
    conditions: the other terms.
    """

    keys: dict[str, str]
    conditions: list[str]


def change_by_source(
    statement: Statement, target: Target, values: Mapping[str, str], others: str, where: str
) -> Change | None:
    """Compute what an UPDATE or DELETE writes, without reading its table; None if that is not possible.

    The tables of FROM or USING contain the keys of the rows to change.

    values: the expressions of SET; empty for a DELETE.
    others: the text of FROM or USING.
    """
    if not others or statement.hides(target) or any(target.column(name).immutable for name in values):
        return None
    matched = key_terms(target, where)
    if matched is None or target.alias.lower() in _names(tokens(others)):
        return None
    if any(map(target.is_named_in, [*values.values(), *matched.conditions])):
        return None
    if not any(token.is_identifier for side in matched.keys.values() for token in tokens(side)):
        return None  # `SELECT 1, max(x) FROM f` is valid, but `SET v = max(x)` must be an error
    listed = ", ".join(f"{text} AS {quoted(name)}" for name, text in {**matched.keys, **values}.items())
    objects = _program_data(statement, others)
    rows = _rows(statement, _select(listed, others, matched.conditions), objects)
    request = None if rows is None else _checked(statement, target, rows)
    return None if request is None else Change([request])


def selected(statement: Statement, target: Target, listed: str, others: str, where: str) -> pa.Table:
    """Execute `SELECT listed` over the rows of the target that satisfy WHERE. Returns the result.

    others: the text of FROM or USING, whose tables are joined with the target.
    """
    objects: dict[str, Any] = {}
    clause = ""
    if where and not statement.with_clause:
        if others:
            columns = _columns_named(target, listed, where)
            objects = _program_data(statement, others)
            found = _rows_of_sources(statement, target, columns, others, where, objects)
        else:
            columns = _columns_named(target, listed)
            found = rows_by_key(
                statement.source, target.table, target.alias, where, statement.context.parameters, columns
            )
        if found is not None:
            name = statement.unused("found")
            objects[name] = found
            clause = f"{name} AS {quoted(target.alias)}"
            if not others:
                return statement.rows_of_objects(f"SELECT {listed}\nFROM {clause}", objects)
    once = f"DISTINCT ON ({target.aliases_of(target.keys)}) " if others else ""
    joined = f", {others}\n" if others else ""  # line breaks end comments in the texts
    condition = f" WHERE {where}\n" if where else ""
    text = f"SELECT {once}{listed}\nFROM {clause or statement.clause(target)}{joined}{condition}"
    return statement.rows_of_objects(text, objects) if clause else statement.rows(text, objects)


def _columns_named(target: Target, *texts: str) -> list[str]:
    """Return the key columns, and the target's columns whose names occur in the texts."""
    names = set().union(*(_names(tokens(text)) for text in texts))
    return [name for name in target.columns if name in target.keys or name.lower() in names]


def _rows_of_sources(
    statement: Statement,
    target: Target,
    columns: Sequence[str],
    others: str,
    where: str,
    objects: Mapping[str, Any],
) -> pa.Table | None:
    """Return the target's rows whose keys are in the tables of FROM or USING.

    columns: the columns to return.
    others: the text of FROM or USING. where: the condition, which must equate each key column with a
        column of these tables.
    Returns None if WHERE has another form, or if the keys are more than 100,000 or more than an eighth
    of the table's rows.
    """
    matched = key_terms(target, where)
    if matched is None or statement.hides(target) or target.alias.lower() in _names(tokens(others)):
        return None
    listed = ", ".join(f"{text} AS {quoted(name)}" for name, text in matched.keys.items())
    conditions = [text for text in matched.conditions if not target.is_named_in(text)]
    keys = _rows(statement, _select(f"DISTINCT {listed}", others, conditions), objects)
    if keys is None or keys.num_rows > _KEYS_MAX:
        return None
    keys = _with_keys(target, keys)
    table = statement.source[target.table]
    if keys is None or keys.num_rows * _TABLE_SHARE > table.scan()._engine().rows_held():
        return None
    return table.get_many(keys, columns)


def key_terms(target: Target, where: str) -> KeyTerms | None:
    """Divide a condition at its ANDs, into terms `key column = …` and other terms.

    None unless each key column has exactly one such term.
    """
    reader = TokenReader(where)
    keys: dict[str, str] = {}
    conditions: list[str] = []
    while True:
        begin = reader.index
        text = reader.until(("AND",), ("OR",))
        term = reader.tokens[begin : reader.index]
        if any(token.keyword == "BETWEEN" for token in term):  # its AND is not the end of a term
            return None
        key, expression = _equality(target, term, where)
        if key and key in keys:
            return None
        if key:
            keys[key] = expression
        else:
            conditions.append(text)
        if reader.ended:
            break
        if not reader.take("AND"):
            return None
    return KeyTerms(keys, conditions) if keys.keys() == set(target.keys) else None


def _equality(target: Target, term: Sequence[Token], text: str) -> tuple[str, str]:
    """Return (key column, other side) of `target.key_column = other side`; ("", "") for any other term."""
    places = [place for place, token in enumerate(term) if token.keyword in ("=", "==")]
    if len(places) == 1:
        left, right = term[: places[0]], term[places[0] + 1 :]
        for mine, other in ((left, right), (right, left)):
            key = _key_of(target, mine)
            if key and _is_simple(other):
                side = text[other[0].begin : other[-1].end]
                return ("", "") if target.is_named_in(side) else (key, side)
    return "", ""


def _key_of(target: Target, side: Sequence[Token]) -> str:
    """Return the key column that one side of a comparison names, as in `t.k = …`; "" if it names no key column.

    side: the tokens of this side.
    """
    if len(side) != 3 or side[1].text != "." or side[0].name.lower() != target.alias.lower():
        return ""
    return next((name for name in target.keys if name.lower() == side[2].name.lower()), "")


def _is_simple(side: Sequence[Token]) -> bool:
    """Whether the tokens are a column or a constant."""
    if len(side) == 1 and side[0].kind in ("number", "text", "parameter"):
        return True
    return len(side) % 2 == 1 and all(
        token.text == "." if place % 2 else token.is_identifier for place, token in enumerate(side)
    )


def _names(found: Sequence[Token]) -> set[str]:
    return {token.name.lower() for token in found if token.is_identifier}


def _select(listed: str, others: str, conditions: Sequence[str]) -> str:
    condition = " AND ".join(f"({text}\n)" for text in conditions) or "TRUE"
    return f"SELECT {listed}\nFROM {others}\nWHERE {condition}"


def _program_data(statement: Statement, others: str) -> dict[str, Any]:
    """Return {name: data} if the first table of FROM is a Python variable, such as a data frame; otherwise {}.

    Without this look-up, DuckDB would first run the SELECT, and fail because it does not know the
    name.
    others: the text of FROM or USING.
    """
    name = tokens(others)[0].name
    if name.lower() in map(str.lower, statement.source.list_tables()) or statement.with_clause:
        return {}
    data = data_named(statement.source, statement.context.rights, name)
    return {} if data is None or hasattr(data, "with_cheap_types") else {name: data}


def _rows(statement: Statement, select: str, objects: Mapping[str, Any]) -> pa.Table | None:
    """Return the rows of a SELECT over the tables of FROM or USING; None if the SELECT fails."""
    try:
        return statement.rows_of_objects(select, objects)
    except (InvalidArgumentError, TableNotFoundError, ColumnNotFoundError):
        return None


def _checked(statement: Statement, target: Target, rows: pa.Table) -> Request | None:
    """Return the update or delete that changes these rows by key; None if its result could be wrong.

    In SQL, the statement means a join of the table with the rows. An update or delete by key can have
    another result if a key occurs twice or has another type than its column, or if the table
    refuses a value. The caller then executes the join.
    """
    found = _with_keys(target, rows)
    if found is None:
        return None
    operation = "update" if found.num_columns > len(target.keys) else "delete"
    request = Request(target.table, operation, found, ignore=True)
    if found.num_rows > _PREPARED_ROWS_MAX:
        is_right = statement.are_distinct(found, target.keys)
        failing = convert(found, target.schema, operation=operation, copy=False).errors
        return request if is_right and not failing else None
    prepared = prepare_request(statement.state(target.table), request)
    is_right = prepared.is_distinct and not prepared.errors
    return dataclasses.replace(request, prepared=prepared) if is_right else None


def _with_keys(target: Target, rows: pa.Table) -> pa.Table | None:
    """Return the rows with their keys converted to the types of the table's key columns.

    Rows whose key is NULL or outside of these types are left out, because the table cannot contain
    it. None: `as_key` cannot convert a key column.
    """
    for name in target.keys:
        key = as_key(rows.column(name), target.column(name))
        if key is None:
            return None
        rows = rows.set_column(rows.column_names.index(name), name, key)
    if any(rows.column(name).null_count for name in target.keys):
        rows = rows.filter(functools.reduce(pc.and_, [rows.column(name).is_valid() for name in target.keys]))
    return rows


def as_key(values: pa.ChunkedArray, column: ColumnSchema) -> pa.ChunkedArray | None:
    """Return the values in the type of the key column, with NULL for values that this type cannot hold.

    Signed integers of any width are converted for an integer column. Returns None for all other values
    that have another type than the column, and for floating-point numbers. SQL may compare such
    values by other rules than a look-up by key.
    """
    kind, given = column.type, values.type
    if kind.is_text:
        is_text = pa.types.is_string(given) or pa.types.is_large_string(given)
        return values.cast(kind.arrow) if is_text else None
    if given == kind.arrow:
        return None if pa.types.is_floating(given) else values
    if not kind.is_integer or not pa.types.is_signed_integer(given):
        return None
    values = values.cast(pa.int64())
    fits = pc.and_(pc.greater_equal(values, kind.value_min), pc.less_equal(values, kind.value_max))
    return pc.if_else(fits, values, None).cast(kind.arrow)
