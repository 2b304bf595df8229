"""Types and values of columns as text of SQL.

Source: docs/reference/sql.md, "Types"; DuckDB, "Data Types".
"""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any, Final

from nyala.schema.types import ColumnType
from nyala.sql.tokens import quoted_text

__all__ = ["cast_to", "literal", "sql_type"]

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


def sql_type(type: ColumnType) -> str:
    """Return the type's name in SQL, such as `DECIMAL(15,2)`."""
    if type.name == "decimal":
        return f"DECIMAL({type.precision},{type.scale})"
    if type.name == "varchar":
        return f"VARCHAR({type.length})"
    return _NAMES[type.name]


def cast_to(expression: str, type: ColumnType) -> str:
    """Return the expression with a cast to the column's type. A line break ends a comment in it."""
    return f"CAST(({expression}\n) AS {'VARCHAR' if type.is_text else sql_type(type)})"


def literal(value: Any, type: ColumnType) -> str:
    """Return a value of a column as an expression of SQL, which has the column's type."""
    if value is None:
        return f"CAST(NULL AS {sql_type(type)})"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int) and type.is_integer:
        return f"CAST({value} AS {sql_type(type)})"
    if isinstance(value, bytes):
        return f"from_hex('{value.hex()}')"
    if isinstance(value, dt.date | dt.datetime):
        text = value.isoformat()
    elif isinstance(value, decimal.Decimal):
        text = format(value, "f")
    else:
        text = str(value)
    return f"CAST({quoted_text(text)} AS {sql_type(type)})"
