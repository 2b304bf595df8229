"""UPDATE … FROM and DELETE … USING whose sources give the keys: the table is not read.

    UPDATE t SET v = f.x + 1 FROM f WHERE t.id = f.id AND f.x > 0
        ──►  SELECT f.id, f.x + 1 FROM f WHERE f.x > 0
        ──►  update by key; keys that the table lacks are skipped

This replaces the join of the table with its sources, where WHERE says `t.column = source.column` once for
each column of the key, and nothing else in the statement names the table or one of its columns.

Invariants
    BS1  The result is that of the join. Whatever could differ goes to the join: sources that have a key
         twice, keys of another type than the column, values that the table refuses, and errors.

Cost: that of the method `update` or `delete` on these rows, plus one SELECT over the sources.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from nyala import compute as pc
from nyala.errors import ColumnNotFoundError, InvalidArgumentError, TableNotFoundError
from nyala.schema.conversion.convert import convert
from nyala.schema.schema import ColumnSchema
from nyala.sql.change.target import Statement, Target
from nyala.sql.context import Source
from nyala.sql.select.program_objects import data_named
from nyala.sql.tokens import Token, TokenReader, quoted, tokens

__all__ = ["KeyTerms", "as_key", "key_terms", "rows_by_source"]


@dataclass(frozen=True)
class KeyTerms:
    """A condition. keys: the expression of each column of the key. conditions: the rest."""

    keys: dict[str, str]
    conditions: list[str]


def rows_by_source(
    statement: Statement, source: Source, target: Target, values: Mapping[str, str], others: str, where: str
) -> pa.Table | None:
    """Return the keys and the new values of the rows to change, or None if the table must be read.

    values: the expressions of SET; none for a DELETE.
    The rows may have keys that the table lacks.
    """
    if not others or statement.hides(target) or any(target.column(name).immutable for name in values):
        return None
    matched = key_terms(target, where)
    if matched is None or target.alias.lower() in _names(tokens(others)):
        return None
    if any(map(target.is_named_in, [*values.values(), *matched.conditions])):
        return None
    if not any(token.is_identifier for side in matched.keys.values() for token in tokens(side)):
        return None  # with constants alone, an aggregate function in SET would have a value
    listed = [f"{text} AS {quoted(name)}" for name, text in {**matched.keys, **values}.items()]
    condition = " AND ".join(f"({text}\n)" for text in matched.conditions) or "TRUE"
    rows = _rows(statement, source, f"SELECT {', '.join(listed)}\nFROM {others}\nWHERE {condition}", others)
    return None if rows is None else _checked(statement, source, target, rows)


def key_terms(target: Target, where: str) -> KeyTerms | None:
    """Return what a condition says, if it gives each column of the key once by `table.column = …`."""
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
    """Return the key column and the other side of `table.column = side`; ("", "") for another term."""
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
    """Return the column of the key that `table.column` names, or ""."""
    if len(side) != 3 or side[1].text != "." or side[0].name.lower() != target.alias.lower():
        return ""
    return next((name for name in target.keys if name.lower() == side[2].name.lower()), "")


def _is_simple(side: Sequence[Token]) -> bool:
    """Whether one side of an equality is a column or a constant."""
    if len(side) == 1 and side[0].kind in ("number", "text", "parameter"):
        return True
    return len(side) % 2 == 1 and all(
        token.text == "." if place % 2 else token.is_identifier for place, token in enumerate(side)
    )


def _names(found: Sequence[Token]) -> set[str]:
    return {token.name.lower() for token in found if token.is_identifier}


def _rows(statement: Statement, source: Source, select: str, others: str) -> pa.Table | None:
    """Return the rows of a SELECT over the sources; None if they cannot be read without the table."""
    name = tokens(others)[0].name
    objects: dict[str, Any] = {}
    is_table = name.lower() in map(str.lower, source.list_tables())
    if not is_table and not statement.prefix:
        data = data_named(source, statement.context.access, name)
        if data is not None and not hasattr(data, "with_cheap_types"):
            objects[name] = data
    try:
        return statement.rows_of(source, select, objects)
    except (InvalidArgumentError, TableNotFoundError, ColumnNotFoundError):
        return None


def _checked(statement: Statement, source: Source, target: Target, rows: pa.Table) -> pa.Table | None:
    """Return the rows with keys in the types of the table; None if the join could have another result (BS1)."""
    for place, name in enumerate(target.keys):
        key = as_key(rows.column(place), target.column(name))
        if key is None:
            return None
        rows = rows.set_column(place, name, key)
    if any(rows.column(name).null_count for name in target.keys):
        rows = rows.filter(functools.reduce(pc.and_, [rows.column(name).is_valid() for name in target.keys]))
    operation = "update" if rows.num_columns > len(target.keys) else "delete"
    if (
        not statement.are_distinct(source, rows, target.keys)
        or convert(rows, target.schema, operation=operation, copy=False).errors
    ):
        return None
    return rows


def as_key(values: pa.ChunkedArray, column: ColumnSchema) -> pa.ChunkedArray | None:
    """Return the values as keys, with NULL for those that no key equals; None if the types compare in another way."""
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
