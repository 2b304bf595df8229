"""The text and HTML that `repr`, `print` and notebooks show for tables, scans and results."""

from __future__ import annotations

import datetime as dt
import functools
import html
from collections.abc import Callable
from typing import Final, TypeVar

import pyarrow as pa

from nyala.errors import StorageError, TableNotFoundError, counted
from nyala.schema.arrow_values import raising_corruption

__all__ = ["ROWS_COUNTED", "html_preview", "preview", "row_count_text", "without_errors"]

_Object = TypeVar("_Object")


def without_errors(show: Callable[[_Object], str]) -> Callable[[_Object], str]:
    """Decorate a `__repr__` that reads rows, so that it works for a closed store or a dropped
    table.

    The method then returns the error's message, so that debuggers and logs do not fail. Only
    `CorruptionError` is still raised.
    """

    @functools.wraps(show)
    def shown(self: _Object) -> str:
        try:
            return show(self)
        except (StorageError, TableNotFoundError) as error:
            return f"{type(self).__name__} ({error})"

    return shown


def html_preview(caption: str, head: Callable[[int], pa.Table]) -> str:
    """Return HTML for a notebook: the caption and the first ten rows.

    head: returns the first n rows. If it fails, the HTML has the message of the error instead.
    """
    try:
        rows = head(_HTML_ROWS)
    except (StorageError, TableNotFoundError) as error:
        return f"<pre>{html.escape(caption)}\n{html.escape(str(error))}</pre>"
    header, *lines = _cells(rows)
    cells = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in line) + "</tr>" for line in lines
    )
    table = f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>" if header else ""
    return f"<div>{html.escape(caption)}</div>{table}"


_HTML_ROWS: Final = 10
_COLUMNS_MAX: Final = 30
ROWS_COUNTED: Final = 100_000
"""A `repr` counts at most this many rows."""


def row_count_text(count: int) -> str:
    """Return a number of rows as text: "1 row", "20 rows", or "more than 100,000 rows"."""
    if count > ROWS_COUNTED:
        return f"more than {ROWS_COUNTED:,} rows"
    return counted(count, "row")


def preview(table: pa.Table, width: int = 24) -> str:
    """Return a few rows as text, one line each.

    width: the greatest number of characters in a cell. A longer cell is cut, except a time. Only
    the first 30 columns are shown.
    """
    lines = _cells(table, width)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts = [
        "  ".join(cell.ljust(size) for cell, size in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    more = table.num_columns - _COLUMNS_MAX
    return "\n".join([*texts, f"({more:,} more columns)"] if more > 0 else texts)


def _cells(table: pa.Table, width: int = 24) -> list[tuple[str, ...]]:
    """Return a line with the column names, and a line per row, as texts. Only the first 30 columns."""
    table = table.select(range(min(table.num_columns, _COLUMNS_MAX)))

    def cut(text: str) -> str:
        return text if len(text) <= width else text[: width - 1] + "…"

    columns = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        if pa.types.is_timestamp(column.type):
            cells = [_time_text(value) for value in column.cast(pa.int64()).to_pylist()]
        else:
            with raising_corruption(table):
                cells = ["NULL" if value is None else cut(str(value)) for value in column.to_pylist()]
        columns.append([cut(name), *cells])
    return list(zip(*columns, strict=True))


def _time_text(microseconds: int | None) -> str:
    """Return ISO text, or microseconds since 1970 for a year that Python has no dates for."""
    if microseconds is None:
        return "NULL"
    try:
        return (dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=microseconds)).isoformat() + "Z"
    except OverflowError:
        return str(microseconds)
