"""VALUES of an INSERT: each value is cast to the type of its column by itself, whatever the other rows are.

    few rows     VALUES (CAST(1 AS INTEGER), default of b), …

    many rows    (1, 'a'), (2.5, ?), (NULL, lower('B')), …
                   ──►  columns of Arrow, one for each type of value: integers [1, NULL, NULL], decimals(2,1)
                        [NULL, 2.5, NULL]; texts ['a', NULL, NULL], the parameter, the values of the expressions
                   ──►  SELECT coalesce(CAST(integers AS INTEGER), CAST(decimals AS INTEGER)), coalesce(…)

DuckDB would parse, bind and cast each value of many rows alone, which takes some 50 µs.

Invariants
    VL1  A literal has the type that DuckDB gives it (integer, DECIMAL of its digits, DOUBLE, VARCHAR, BOOLEAN, or the
         type before its text), and is cast from this type to that of the column.

Source: DuckDB, "Literal Types".
"""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from nyala import compute as pc
from nyala.errors import InvalidArgumentError
from nyala.schema.schema import ColumnSchema
from nyala.sql.change.target import Statement, default_of, value_of
from nyala.sql.context import Source
from nyala.sql.literals import cell_of, cells_of_rows, row_at
from nyala.sql.tokens import TokenReader, quoted
from nyala.sql.types import cast_to

__all__ = ["rows_of_values"]

_TABLE: Final = "nyala_values"
_ROW: Final = "nyala_row"
_FEW_ROWS_MAX: Final = 15
# The widths of decimals from which DuckDB stores them in larger integers.
_WIDTHS: Final = (4, 9, 18, 38)
_PLAIN_TYPES: Final = frozenset((bool, float, str, bytes, dt.date, type(None)))
_TRUTHS: Final = {"TRUE": True, "FALSE": False}

Group: TypeAlias = tuple[str, Any]
"""Values of one type in a column: how to compute them from the array, and an array of all rows.

How: "CAST"; "" for values in the type of the column; "DEFAULT"; or the type that texts have before the cast.
"""


@dataclass(frozen=True)
class _Values:
    """The rows.

    plain:  the text of the first ones, which consist of literals and parameters.
    others: the values of those that follow.
    """

    plain: str
    others: list[list[str]]

    def row(self, number: int, plain_count: int) -> list[str]:
        """Return the values of one row."""
        if number < plain_count:
            return TokenReader(TokenReader(row_at(self.plain, number)).parenthesised()).listed()
        return self.others[number - plain_count]


def rows_of_values(
    statement: Statement,
    source: Source,
    reader: TokenReader,
    columns: Sequence[ColumnSchema],
    error: Callable[[int], InvalidArgumentError],
) -> pa.Table:
    """Read `VALUES (…), …`, and return the rows in the types of the columns.

    error: returns the error for a row with another number of values than there are columns.
    Raises: InvalidArgumentError.
    """
    values = _read(reader)
    given = cells_of_rows(values.plain)
    begins = [place for place, cell in enumerate(given) if cell[0] == "("]
    plain_widths = np.diff([*begins, len(given)]).tolist()
    for width in (*plain_widths, *map(len, values.others)):
        if width != len(columns):
            raise error(width)
    if not values.plain and len(values.others) <= _FEW_ROWS_MAX:
        return _one_by_one(statement, source, values.others, columns)
    cells = [*given, *(cell_of(value) for row in values.others for value in row)]
    columned = _columns(statement, source, cells, columns)
    objects = {_TABLE: columned.table}
    rows = statement.computed(columned.select, objects)
    if rows is None:
        wrong = _first_wrong(statement, columned)
        if wrong is not None:  # DuckDB says why, of this row
            _one_by_one(statement, source, [values.row(wrong, len(begins))], columns)
        rows = statement.rows(source, columned.select, objects)
    return rows


def _read(reader: TokenReader) -> _Values:
    plain = ""
    others = []
    reader.need("VALUES")
    while not reader.ended:  # a comma after the last row is allowed, as in DuckDB
        following = reader.peek()
        if following is not None and following.kind == "rows":
            plain = reader.next().text
        else:
            reader.need("(")
            others.append(reader.listed())
            reader.need(")")
        if not reader.take(","):
            break
    reader.finish()
    return _Values(plain, others)


def _one_by_one(
    statement: Statement, source: Source, rows: Sequence[Sequence[str]], columns: Sequence[ColumnSchema]
) -> pa.Table:
    """Return the rows, whose values DuckDB computes and casts as single expressions."""
    listed = ", ".join(
        f"({', '.join(value_of(value, column) for value, column in zip(row, columns, strict=True))})"
        for row in rows
    )
    select = f"VALUES {listed}"
    found = None if statement.prefix else statement.computed(select)
    if found is None:
        found = statement.rows(source, select)
    return found.rename_columns([column.name for column in columns])


@dataclass(frozen=True)
class _Columns:
    """Many values by column and type.

    table:  a column for each type of each column, with NULL for other values; and the number of the row.
    select: casts and joins them.
    casts:  the casts, by the names of the table's columns.
    """

    table: pa.Table
    select: str
    casts: dict[str, str]


def _columns(
    statement: Statement, source: Source, cells: Sequence[tuple[str, ...]], columns: Sequence[ColumnSchema]
) -> _Columns:
    arrays: dict[str, Any] = {_ROW: np.arange(len(cells) // len(columns))}
    casts: dict[str, str] = {}
    listed = []
    for place, column in enumerate(columns):
        parts = []
        for how, array in _groups(statement, source, cells[place :: len(columns)], column):
            name = f"c{len(arrays)}"
            arrays[name] = array
            if how == "DEFAULT":
                parts.append(f"CASE WHEN {name} THEN {default_of(column)} END")
            elif how:
                casts[name] = cast_to(name if how == "CAST" else f"CAST({name} AS {how})", column.type)
                parts.append(casts[name])
            else:
                parts.append(name)
        parts.append(cast_to("NULL", column.type))
        listed.append(f"coalesce({', '.join(parts)}) AS {quoted(column.name)}")
    return _Columns(pa.table(arrays), f"SELECT {', '.join(listed)} FROM {_TABLE}", casts)


def _first_wrong(statement: Statement, columns: _Columns) -> int | None:
    """Return the number of the first row with a value that cannot be cast."""
    wrong = " OR ".join(
        f"({name} IS NOT NULL AND {cast.replace('CAST(', 'TRY_CAST(')} IS NULL)"
        for name, cast in columns.casts.items()
    )
    select = f"SELECT min({_ROW}) FROM {_TABLE} WHERE {wrong or 'FALSE'}"
    found = statement.computed(select, {_TABLE: columns.table})
    return None if found is None else found.column(0)[0].as_py()


def _groups(
    statement: Statement, source: Source, cells: Sequence[tuple[str, ...]], column: ColumnSchema
) -> Iterator[Group]:
    """Yield the values of a column by their types."""
    _, numbers, types, texts, words, others = zip(*cells, strict=True)
    if any(numbers):
        yield from (("CAST", array) for array in _numbers(pa.array([each or None for each in numbers])))
    is_text = [
        not (number or word or other) for number, word, other in zip(numbers, words, others, strict=True)
    ]
    if any(is_text):
        kinds = [type.upper() or "CAST" for type in types]
        for kind in dict.fromkeys(itertools.compress(kinds, is_text)):
            of_kind = [
                text if there and its_kind == kind else None
                for text, there, its_kind in zip(texts, is_text, kinds, strict=True)
            ]
            yield kind, pc.replace_substring(pa.array(of_kind, pa.string()), "''", "'")
    if any(words):
        upper = [word.upper() for word in words]
        if "TRUE" in upper or "FALSE" in upper:
            yield "CAST", pa.array([_TRUTHS.get(word) for word in upper])
        if "DEFAULT" in upper:
            yield "DEFAULT", pa.array([word == "DEFAULT" for word in upper])
    if any(others):
        yield from _others(statement, source, others, column)


def _numbers(texts: pa.Array) -> Iterator[pa.Array]:
    """Yield integers, doubles, and decimals of each scale."""
    has_exponent = pc.match_substring_regex(texts, "[eE]")
    has_point = pc.match_substring(texts, ".")
    is_decimal = pc.and_not(has_point, has_exponent)
    is_integer = pc.invert(pc.or_(has_point, has_exponent))
    if pc.any(is_integer).as_py():
        yield pc.if_else(is_integer, texts, None).cast(pa.int64())
    if pc.any(has_exponent).as_py():
        yield pc.if_else(has_exponent, texts, None).cast(pa.float64())
    if pc.any(is_decimal).as_py():
        decimals = pc.if_else(is_decimal, texts, None)
        digits = pc.utf8_length(pc.replace_substring(pc.replace_substring(decimals, "-", ""), ".", ""))
        scales = pc.subtract(pc.subtract(pc.utf8_length(decimals), pc.find_substring(decimals, ".")), 1)
        sizes = pc.add(pc.multiply(scales, 100), digits)
        groups: dict[tuple[int, int], list[int]] = {}
        for size in pc.unique(sizes).drop_null().to_pylist():
            scale, width = divmod(size, 100)
            groups.setdefault((next(each for each in _WIDTHS if width <= each), scale), []).append(size)
        for (width, scale), found in groups.items():
            is_one = pc.is_in(sizes, pa.array(found, sizes.type))
            yield pc.if_else(is_one, decimals, None).cast(pa.decimal128(width, scale))


def _others(
    statement: Statement, source: Source, others: Sequence[str], column: ColumnSchema
) -> Iterator[Group]:
    """Yield the values of parameters, and those of other expressions, which DuckDB computes."""
    parameters = statement.context.parameters
    values: dict[Any, list[Any]] = {}
    expressions: list[int] = []
    for row, other in enumerate(others):
        if not other:
            continue
        value = parameters.get(other[1:], other) if other[0] == "$" else other
        kind = _kind_of(value) if value is not other else None
        if kind is None:
            expressions.append(row)
        elif value is not None:
            values.setdefault(kind, [None] * len(others))[row] = value
    yield from (("CAST", pa.array(of_kind)) for of_kind in values.values())
    if expressions:
        found = _one_by_one(statement, source, [[others[row]] for row in expressions], [column]).column(0)
        places = np.full(len(others), -1)
        places[expressions] = np.arange(len(expressions))
        yield "", found.take(pa.array(places, mask=places < 0))


def _kind_of(value: Any) -> Any:
    """Return the group of a parameter, whose values share an Arrow array; None: DuckDB evaluates the value."""
    kind = type(value)
    if kind is int:
        return kind if -(2**63) <= value < 2**63 else None
    if kind is dt.datetime:
        return kind, value.tzinfo is None
    return kind if kind in _PLAIN_TYPES else None
