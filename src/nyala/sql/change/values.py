"""Computes the rows of VALUES in an INSERT, and casts each value to the type of its column.

For few rows DuckDB evaluates `VALUES (CAST(1 AS INTEGER), …), …`. It needs about 50 µs for each
value. For many rows, the values of a column that have the same type become one Arrow array, with
NULL in the other rows. Then one SELECT casts the arrays and combines them into columns:

    VALUES (1), (2.5), (NULL), …
        integers = [1, NULL, NULL, …]    decimals = [NULL, 2.5, NULL, …]
        SELECT coalesce(CAST(integers AS INTEGER), CAST(decimals AS INTEGER))

Invariants
    VL1  A literal has the type that DuckDB gives it before the cast: integer, DECIMAL of its
         digits, DOUBLE, VARCHAR, BOOLEAN, or the type that is written before a text.

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
from nyala.sql.literals import cell_of, cells_of_rows, row_at
from nyala.sql.tokens import TokenReader, quoted
from nyala.sql.types import cast_to

_TABLE: Final = "nyala_values"
_ROW: Final = "nyala_row"
_FEW_ROWS_MAX: Final = 15
# DuckDB stores decimals of up to 4, 9, 18 and 38 digits in integers of 2, 4, 8 and 16 bytes.
_WIDTHS: Final = (4, 9, 18, 38)
_PLAIN_TYPES: Final = frozenset((bool, float, str, bytes, dt.date, type(None)))
_TRUTHS: Final = {"TRUE": True, "FALSE": False}

Group: TypeAlias = tuple[str, Any]
"""(how, array): the values of one type in a column, with NULL in the rows of other types.

how: what the SELECT does with the array.
    "CAST"       casts it to the type of the column
    ""           nothing: the array has the type of the column
    "DEFAULT"    uses the column's default where the array is true
    a type       casts the texts in the array to this type, and then to the type of the column
"""


@dataclass(frozen=True)
class _Values:
    """The rows of `VALUES (…), …`.

    plain: the text of the rows at the beginning, if at least 16 of them have only literals and
        parameters, as in `(1, 'a'), (2, ?)`; otherwise "".
    others: the rows after `plain`: for each row, a list with the text of each value.
    """

    plain: str
    others: list[list[str]]

    def row(self, number: int, plain_count: int) -> list[str]:
        """Return the texts of the values of one row.

        The first rows are together in one text, the field `plain`. The field `others` has each later
        row as a list of texts.

        number: the number of the row, from 0.
        plain_count: the number of rows in `plain`.
        """
        if number < plain_count:
            return TokenReader(TokenReader(row_at(self.plain, number)).parenthesised()).listed()
        return self.others[number - plain_count]


def rows_of_values(
    statement: Statement,
    reader: TokenReader,
    columns: Sequence[ColumnSchema],
    error: Callable[[int], InvalidArgumentError],
) -> pa.Table:
    """Read `VALUES (…), …`. Returns the rows, in the types of the columns.

    error: returns the error for a row with a wrong number of values; its argument is this number.
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
        return _one_by_one(statement, values.others, columns)
    cells = [*given, *(cell_of(value) for row in values.others for value in row)]
    columned = _columns(statement, cells, columns)
    objects = {_TABLE: columned.table}
    rows = statement.try_objects(columned.select, objects)
    if rows is None:
        wrong = _first_wrong(statement, columned)
        if wrong is not None:  # raises DuckDB's error about this row
            _one_by_one(statement, [values.row(wrong, len(begins))], columns)
        rows = statement.rows(columned.select, objects)
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
    statement: Statement, rows: Sequence[Sequence[str]], columns: Sequence[ColumnSchema]
) -> pa.Table:
    """Return a few rows in the types of the columns. DuckDB evaluates each value as an expression."""
    listed = ", ".join(
        f"({', '.join(value_of(value, column) for value, column in zip(row, columns, strict=True))})"
        for row in rows
    )
    select = f"VALUES {listed}"
    found = None if statement.with_clause else statement.try_objects(select)
    if found is None:
        found = statement.rows(select)
    return found.rename_columns([column.name for column in columns])


@dataclass(frozen=True)
class _Columns:
    """The rows of a long VALUES list as arrays, and the SELECT that makes the stored columns from them.

    table: the arrays. Values of different types in one column, such as 1 and 2.5, are in different
        arrays, with NULL in the other rows. One more array has the row numbers.
    select: the SELECT that casts the arrays and combines them into columns.
    casts: the cast expressions, by the names of the arrays.
    """

    table: pa.Table
    select: str
    casts: dict[str, str]


def _columns(
    statement: Statement, cells: Sequence[tuple[str, ...]], columns: Sequence[ColumnSchema]
) -> _Columns:
    arrays: dict[str, Any] = {_ROW: np.arange(len(cells) // len(columns))}
    casts: dict[str, str] = {}
    listed = []
    for place, column in enumerate(columns):
        parts = []
        for how, array in _groups(statement, cells[place :: len(columns)], column):
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
    """Return the number of the first row with a value that cannot be cast to its column's type.

    None: every value can be cast, or the search failed.
    """
    wrong = " OR ".join(
        f"({name} IS NOT NULL AND {cast.replace('CAST(', 'TRY_CAST(')} IS NULL)"
        for name, cast in columns.casts.items()
    )
    select = f"SELECT min({_ROW}) FROM {_TABLE} WHERE {wrong or 'FALSE'}"
    found = statement.try_objects(select, {_TABLE: columns.table})
    return None if found is None else found.column(0)[0].as_py()


def _groups(statement: Statement, cells: Sequence[tuple[str, ...]], column: ColumnSchema) -> Iterator[Group]:
    """Yield the values of a column as one array for each type, with NULL in the rows of other types.

    cells: the column's value in each row, as the fields of `sql.literals.Cell`: for example, a number
        is in another field than a text.
    """
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
        yield from _others(statement, others, column)


def _numbers(texts: pa.Array) -> Iterator[pa.Array]:
    """Convert texts of number literals to arrays, one for each type that occurs.

    The types are integer, double, and a decimal for each scale and storage size. Each array has
    NULL for the numbers of other types.
    """
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


def _others(statement: Statement, others: Sequence[str], column: ColumnSchema) -> Iterator[Group]:
    """Yield those values of a column that are parameters or expressions: one array for each type.

    The arrays have NULL in all other rows. DuckDB evaluates the expressions.
    others: for each row, the text of a parameter or expression; "" if the row has a literal.
    """
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
        found = _one_by_one(statement, [[others[row]] for row in expressions], [column]).column(0)
        places = np.full(len(others), -1)
        places[expressions] = np.arange(len(expressions))
        yield "", found.take(pa.array(places, mask=places < 0))


def _kind_of(value: Any) -> Any:
    """Return a key for the type of a parameter. Parameters with equal keys can share an Arrow array.

    None: DuckDB must evaluate this parameter.
    """
    kind = type(value)
    if kind is int:
        return kind if -(2**63) <= value < 2**63 else None
    if kind is dt.datetime:
        return kind, value.tzinfo is None
    return kind if kind in _PLAIN_TYPES else None
