"""What `repr` and `print` show of tables, scans and results: a few rows, or in a line why there are none to show."""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Callable
from typing import Final, TypeVar

import pyarrow as pa

from nyala.errors import StorageError, TableNotFoundError
from nyala.schema.arrow_values import telling_damage

__all__ = ["ROWS_COUNTED", "preview", "row_count_text", "told"]

_Object = TypeVar("_Object")


def told(show: Callable[[_Object], str]) -> Callable[[_Object], str]:
    """A `__repr__` that reads: a debugger, a notebook or a log that shows the object of a closed store, or of a table
    that was dropped, is told so, and not stopped. Damage is an error here as anywhere."""

    @functools.wraps(show)
    def shown(self: _Object) -> str:
        try:
            return show(self)
        except (StorageError, TableNotFoundError) as error:
            return f"{type(self).__name__} ({error})"

    return shown


_COLUMNS_MAX: Final = 30
ROWS_COUNTED: Final = 100_000
"""A `repr` counts so many rows, and says of more that there are more."""


def row_count_text(count: int) -> str:
    """How many rows there are; `count` above `ROWS_COUNTED`: more than that."""
    if count > ROWS_COUNTED:
        return f"more than {ROWS_COUNTED:,} rows"
    return f"{count:,} row{'' if count == 1 else 's'}"


def preview(table: pa.Table, width: int = 24) -> str:
    """A few rows as text, a line each, cells cut at `width`; not so times, whose end is their fraction and zone.

    Of more than 30 columns the first 30.
    """
    more = table.num_columns - _COLUMNS_MAX
    if more > 0:
        table = table.select(range(_COLUMNS_MAX))

    def cut(text: str) -> str:
        return text if len(text) <= width else text[: width - 1] + "…"

    columns = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        if pa.types.is_timestamp(column.type):
            cells = [_time_text(value) for value in column.cast(pa.int64()).to_pylist()]
        else:
            with telling_damage(table):
                cells = ["NULL" if value is None else cut(str(value)) for value in column.to_pylist()]
        columns.append([cut(name), *cells])
    widths = [max(map(len, column)) for column in columns]
    lines = [
        "  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip()
        for row in zip(*columns, strict=True)
    ]
    return "\n".join([*lines, f"({more:,} more columns)"] if more > 0 else lines)


def _time_text(microseconds: int | None) -> str:
    """ISO text; a year that Python has no dates for: microseconds since 1970."""
    if microseconds is None:
        return "NULL"
    try:
        return (dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=microseconds)).isoformat() + "Z"
    except OverflowError:
        return str(microseconds)
