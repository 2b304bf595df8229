"""Converts rows of an Arrow table to tuples, and parameters of statements to plain Python values.

The values in the tuples have the types that DuckDB returns: for example a `datetime` in UTC for a
time with a zone, `Decimal`, `bytes`, and dicts and lists for nested types.

Source: docs/how-to/sql.md, "Results".
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from nyala.errors import InvalidArgumentError
from nyala.schema.arrow_values import raising_corruption

_PLAIN: Final = frozenset(
    (type(None), bool, int, float, str, bytes, dt.date, dt.datetime, dt.time, dt.timedelta, decimal.Decimal)
)


def plain_values(values: Sequence[Any]) -> Sequence[Any]:
    """Convert scalars of NumPy, pandas and Arrow, also inside lists and dicts, to Python values.

    Times are cut to microseconds. Raises: InvalidArgumentError for a time that Python cannot hold.
    """
    if _PLAIN.issuperset(map(type, values)):
        return values
    return [value if type(value) in _PLAIN else _plain(value) for value in values]


def _plain(value: Any) -> Any:
    module = type(value).__module__.partition(".")[0]
    if module == "numpy" and isinstance(value, np.generic):
        return _plain_of_numpy(value)
    if module == "pyarrow" and isinstance(value, pa.Scalar):
        if pa.types.is_timestamp(value.type) and value.is_valid:  # as_py needs pandas for nanoseconds
            value = value.cast(pa.timestamp("us", value.type.tz), safe=False)
        return plain_values([value.as_py()])[0]
    if module == "pandas":
        name = type(value).__name__
        if name in ("NaTType", "NAType"):
            return None
        if name == "Timestamp":
            return value.to_pydatetime(warn=False)
        return value.to_pytimedelta() if name == "Timedelta" else value
    if type(value) in (list, tuple):
        return type(value)(plain_values(value))
    if type(value) is dict:
        return dict(zip(value, plain_values(list(value.values())), strict=True))
    return value


def _plain_of_numpy(value: np.generic) -> Any:
    if isinstance(value, np.datetime64 | np.timedelta64):
        if np.isnat(value):
            return None
        unit = np.datetime_data(value.dtype)[0]
        if unit in ("ns", "ps", "fs", "as"):
            value = value.astype(f"{'M' if isinstance(value, np.datetime64) else 'm'}8[us]")
        found = value.item()
        if isinstance(found, int):
            raise InvalidArgumentError(
                f"the parameter {value!r} has no Python value: pass a time of the years 1 to 9999, or a duration in "
                "days or smaller units"
            )
        return found
    return float(value) if isinstance(value, np.longdouble) else value.item()


def python_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    """Return the rows as tuples. A table without columns returns []."""
    if not table.num_columns:
        return []
    with raising_corruption(table):
        try:
            return list(zip(*(column.to_pylist() for column in table.columns), strict=True))
        except OverflowError:  # a time outside of the years 1 to 9999, which DuckDB returns as text
            return _rows_of_duckdb(table)


def _rows_of_duckdb(table: pa.Table) -> list[tuple[Any, ...]]:
    import duckdb

    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        return connection.from_arrow(table).fetchall()
