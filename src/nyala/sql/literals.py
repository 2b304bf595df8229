"""Reads rows of literals and parameters in SQL text, such as the rows after VALUES, and long lists after IN.

    (1, 'a', ?), (-2.5, NULL, DEFAULT), (1e3, DATE '2026-01-01', TRUE)

A single call of a regular expression reads all rows, which is much faster than reading token by
token.

Source: DuckDB, "Literal Types".
"""

from __future__ import annotations

import itertools
import re
from typing import Final, NamedTuple

# At most 18 digits on each side of the point: Arrow can store such a number exactly, in the type that DuckDB gives it.
_NUMBER: Final = r"-?[0-9]{1,18}(?:\.[0-9]{1,18})?+(?:[eE][+-]?[0-9]{1,3})?+(?![\w.])"
_TYPE: Final = r"DATE|TIMESTAMP|TIMESTAMPTZ"
_TEXT: Final = r"[^']*+(?:''[^']*+)*+"
_WORD: Final = r"(?:NULL|TRUE|FALSE|DEFAULT)\b"
_PARAMETER: Final = r"\$\w++|\?"

_VALUE: Final = rf"(?:{_NUMBER}|(?:(?:{_TYPE})\s*+)?'{_TEXT}'|{_WORD}|{_PARAMETER})"
_ROW: Final = rf"\(\s*+{_VALUE}\s*+(?:,\s*+{_VALUE}\s*+)*+\)"
_ONE_ROW: Final = re.compile(_ROW, re.IGNORECASE)
_CELL: Final = re.compile(
    rf"([(,])\s*+(?:({_NUMBER})|(?:({_TYPE})\s*+)?'({_TEXT})'|({_WORD})|({_PARAMETER}))", re.IGNORECASE
)
ROWS: Final = re.compile(rf"\s*+({_ROW}(?:\s*+,\s*+{_ROW}){{15,}}+)", re.IGNORECASE)
"""Finds spaces and at least 16 rows. Group 1 is the rows."""
_ITEM: Final = rf"(?:-?[0-9]{{1,38}}(?![\w.])|{_VALUE})"
LIST: Final = re.compile(rf"\s*+(\(\s*+{_ITEM}\s*+(?:,\s*+{_ITEM}\s*+){{499,}}+\))", re.IGNORECASE)
"""Finds spaces and a list in brackets with at least 500 values. Group 1 is the list."""
_ITEMS: Final = re.compile(rf"[(,]\s*+({_ITEM})", re.IGNORECASE)
TEXT: Final = re.compile(rf"'{_TEXT}'")
"""A text in single quotes."""
PARAMETER: Final = re.compile(rf"'{_TEXT}'|({_PARAMETER})")
"""Finds a text, or a parameter as group 1."""


class Cell(NamedTuple):
    """One value in a row of SQL text, such as `(1, 'a')`. Fields that do not fit the value are empty.

    opening: "(" before the first value of a row, "," before the others.
    number: a number, as it is written.
    type: the word before a text, such as DATE.
    text: a text without its quotation marks; a quotation mark inside is doubled.
    word: NULL, TRUE, FALSE or DEFAULT.
    other: a parameter, or any expression.
    """

    opening: str
    number: str
    type: str
    text: str
    word: str
    other: str


def cells_of_rows(rows: str) -> list[tuple[str, ...]]:
    """Return the values of the rows in a text such as `(1, 'a'), (2, 'b')`, as tuples with the fields of `Cell`."""
    return _CELL.findall(rows)


def cell_of(value: str) -> tuple[str, ...]:
    """Return the text of one value, such as `1`, `'a'` or `x + 1`, as a tuple with the fields of `Cell`.

    The fields say whether the value is a number, a text, a word such as NULL, or another expression.
    """
    match = _CELL.fullmatch(f",{value.strip()}")
    return match.groups("") if match is not None else Cell(",", "", "", "", "", value)


def row_at(rows: str, number: int) -> str:
    """Return one row of a text such as `(1, 'a'), (2, 'b')`. number: 0 for the first row."""
    return next(itertools.islice(_ONE_ROW.finditer(rows), number, None))[0]


def items_of_list(listed: str) -> list[str]:
    """Return the values of a list such as `(1, 2, 3)`, as texts."""
    return _ITEMS.findall(listed)


def shortened_list(listed: str) -> str:
    """Return a list such as `(1, 2, 3)` with its first value only."""
    found = _ITEMS.match(listed)
    assert found is not None
    return found[0] + ")"
