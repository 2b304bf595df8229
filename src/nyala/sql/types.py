"""Writes types and values of columns as SQL.

Source: docs/reference/sql.md, "Types"; DuckDB, "Data Types".
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
from typing import Any, Final

from nyala.errors import InvalidArgumentError
from nyala.schema.conversion.array_cast import shorten
from nyala.schema.types import ColumnType, parse_type
from nyala.sql.tokens import quoted_text

# Functions with another value at each call, also inside one statement.
VOLATILE: Final = frozenset("RANDOM UUID UUIDV4 UUIDV7 GEN_RANDOM_UUID NEXTVAL CURRVAL SETVAL".split())

# A decimal of at most 15 digits and a point becomes the same double again.
_EXACT_CHARS: Final = 16
_NAMES: Final = {
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INTEGER",
    "int64": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "bool": "BOOLEAN",
    "string": "VARCHAR",
    "binary": "BLOB",
    "date": "DATE",
    "timestamp": "TIMESTAMP WITH TIME ZONE",
}


_KINDS: Final[tuple[tuple[Any, str], ...]] = (
    (dt.datetime, "timestamp"),
    (dt.date, "date"),
    (float, "double"),
    ((str, bytes, int, decimal.Decimal, type(None)), "string"),
)


def sql_type(type: ColumnType) -> str:
    """Return the type's name in SQL, such as `DECIMAL(15,2)`."""
    if type.name == "decimal":
        return f"DECIMAL({type.precision},{type.scale})"
    if type.name == "varchar":
        return f"VARCHAR({type.length})"
    return _NAMES[type.name]


def cast_to(expression: str, type: ColumnType) -> str:
    """Return `CAST(expression AS type)`, with the column's type.

    Adds a line break after the expression, because the expression may end with a comment (`-- …`).
    """
    return f"CAST(({expression}\n) AS {'VARCHAR' if type.is_text else sql_type(type)})"


def literal(value: Any, type: ColumnType) -> str:
    """Return a value of a column as a constant of SQL. The constant's type may be narrower than the column's."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, bytes):
        return f"from_hex({quoted_text(value.hex())})"
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _float_literal(value, type)
    if isinstance(value, dt.date | dt.datetime):
        return f"{sql_type(type)} {quoted_text(value.isoformat())}"
    return quoted_text(str(value))


def literal_of(value: Any) -> str:
    """Return a Python value as a constant of SQL.

    Raises: InvalidArgumentError for a value that is not text, a number, a boolean, a date, a datetime,
        bytes or None.
    """
    for kinds, name in _KINDS:
        if isinstance(value, kinds):
            return literal(value, parse_type(name))
    raise InvalidArgumentError(
        f"a parameter is a text, number, boolean, date, datetime, bytes or None here, and not {shorten(repr(value))}"
    )


def _float_literal(value: float, type: ColumnType) -> str:
    """Return a constant that DuckDB reads as exactly this value.

    DuckDB reads a number with an `e` as a double, and a number without `e` as a decimal.
    """
    text = repr(value)
    if not math.isfinite(value) or (value == 0 and text.startswith("-")):
        return f"CAST('{text}' AS {sql_type(type)})"
    return text if "e" in text or len(text) <= _EXACT_CHARS else f"{text}e0"
