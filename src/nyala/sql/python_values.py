"""Rows of an Arrow table as tuples of Python values.

The values have the types that DuckDB returns: `datetime` in UTC for times with a zone, `Decimal`,
`bytes`, and dicts and lists for nested types. Cost: one call per column.

Source: docs/how-to/sql.md, "Results".
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from nyala.schema.arrow_values import telling_damage

__all__ = ["python_rows"]


def python_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    """Return the rows as tuples. A table without columns has no rows for a reader."""
    if not table.num_columns:
        return []
    with telling_damage(table):
        try:
            return list(zip(*(column.to_pylist() for column in table.columns), strict=True))
        except OverflowError:  # a time outside of the years 1 to 9999, which DuckDB returns as text
            return _rows_of_duckdb(table)


def _rows_of_duckdb(table: pa.Table) -> list[tuple[Any, ...]]:
    import duckdb

    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        return connection.from_arrow(table).fetchall()
