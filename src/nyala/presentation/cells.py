"""Converts values to text for people, and to values for JSON.

    type            text                            JSON
    NULL            NULL                            null
    bool, ints      true, 5                         true, 5
    float, double   0.5, NaN, Infinity              0.5, "NaN", "Infinity", "-Infinity" (JSON has no such numbers)
    decimal         1.20                            "1.20"  (exact)
    timestamp       2026-11-20T10:00:00.5Z          the same, as a string
    date            2026-11-20                      the same, as a string
    string          control characters as \\n …      unchanged
    binary          x'00ff'                         "00ff"
    list, struct    as in JSON                      an array, an object (results of SQL only)
    interval        P1M3DT0.5S                      the same, as a string (results of SQL only)
    others          the text of Python              the same, as a string (results of SQL only)

A timestamp outside the years 1 to 9999 is a number: microseconds since 1970.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["is_number", "json_columns", "json_value", "text_columns", "text_value"]

_YEAR_1_US: Final = -62_135_596_800_000_000
_YEAR_10000_US: Final = 253_402_300_800_000_000

# Control characters could move a terminal's cursor, split a row into two lines, or reverse the
# text's direction.
_ESCAPES: Final = {
    **{code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))},
    **{code: f"\\u{code:04x}" for code in (*range(0x2028, 0x202F), *range(0x2066, 0x206A))},
    **{ord(sign): escape for sign, escape in (("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))},
}


def is_number(type: pa.DataType) -> bool:
    """Whether a column of this type has numbers, which are aligned right."""
    import pyarrow as pa

    return bool(pa.types.is_integer(type) or pa.types.is_floating(type) or pa.types.is_decimal(type))


def json_columns(batch: pa.RecordBatch | pa.Table) -> list[list[Any]]:
    """Return the columns of a batch as values for `json.dumps`."""
    return _columns(batch, json_value)


def text_columns(batch: pa.RecordBatch | pa.Table, *, breaks: bool = False) -> list[list[str]]:
    """Return the columns of a batch as text. breaks: whether strings keep their line breaks."""
    return _columns(batch, _text_with_breaks if breaks else text_value)


def _text_with_breaks(value: Any) -> str:
    """Return one Python value as text. A string keeps its line breaks."""
    return "\n".join(map(text_value, value.split("\n"))) if isinstance(value, str) else text_value(value)


def _columns(batch: pa.RecordBatch | pa.Table, one: Callable[[Any], Any]) -> list[list[Any]]:
    from nyala.schema.arrow_values import raising_corruption

    with raising_corruption(batch):
        return [_convert(column, one) for column in batch.columns]


def json_value(value: Any) -> Any:
    """Return one Python value as a value for `json.dumps`."""
    import decimal

    if isinstance(value, float) and not math.isfinite(value):
        return _special_float(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, decimal.Decimal):
        return f"{value:f}"
    if isinstance(value, tuple) and hasattr(value, "nanoseconds"):
        return _interval(value)
    if isinstance(value, list | tuple):
        return [json_value(each) for each in value]
    if isinstance(value, dict):
        return {str(key): json_value(each) for key, each in value.items()}
    value = _iso_text(value)
    return value if value is None or isinstance(value, str | int | float) else str(value)


def text_value(value: Any) -> str:
    """Return one Python value as text."""
    import decimal

    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value if value.isprintable() else value.translate(_ESCAPES)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else _special_float(value)
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    if isinstance(value, decimal.Decimal):
        return f"{value:f}"
    if isinstance(value, list | tuple | dict):
        found = json_value(value)
        return text_value(found if isinstance(found, str) else json.dumps(found, ensure_ascii=False))
    return str(_iso_text(value))


def _interval(value: Any) -> str:
    """Return an Arrow interval as an ISO 8601 duration: P1M3DT0.5S."""
    seconds = f"T{value.nanoseconds / 1e9:g}S" if value.nanoseconds else ""
    parts = "".join(f"{count}{unit}" for count, unit in ((value.months, "M"), (value.days, "D")) if count)
    return f"P{parts}{seconds}" if parts or seconds else "PT0S"


def _special_float(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _iso_text(value: Any) -> Any:
    """Return a date or datetime (in UTC) as ISO text, and anything else unchanged."""
    import datetime as dt

    if isinstance(value, dt.datetime):
        return value.isoformat().replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, dt.date) else value


def _convert(column: Any, one: Callable[[Any], Any]) -> list[Any]:
    import pyarrow as pa

    type = column.type
    if pa.types.is_timestamp(type):
        values: list[Any] = _timestamps(column)
    elif pa.types.is_float32(type):
        # 0.1 and not 0.10000000149011612: Arrow's cast returns the shortest text of the float.
        values = [None if text is None else float(text) for text in column.cast(pa.string()).to_pylist()]
    else:
        values = column.to_pylist()
    return [one(value) for value in values]


def _has_odd_years(column: Any) -> bool:
    """Whether the column has timestamps outside the years 1 to 9999, which Arrow would print with a
    wrong year.
    """
    import pyarrow as pa

    from nyala import compute as pc

    bounds = pc.min_max(column.cast(pa.int64()))
    lower, upper = bounds["min"].as_py(), bounds["max"].as_py()
    return lower is not None and not (_YEAR_1_US <= lower and upper < _YEAR_10000_US)


def _timestamps(column: Any) -> list[str | int | None]:
    """Return each timestamp as ISO text, without trailing zeros of the fraction of the second.

    For a year outside 1 to 9999, return the microseconds since 1970 as a number. NULL becomes None.
    """
    import pyarrow as pa

    column = column.cast(pa.timestamp("us", tz="UTC"))
    if not _has_odd_years(column):
        return [text and _iso(text) for text in column.cast(pa.string()).to_pylist()]
    numbers = column.cast(pa.int64())
    return [
        _timestamps(column.slice(index, 1))[0]
        if number is not None and _YEAR_1_US <= number < _YEAR_10000_US
        else number
        for index, number in enumerate(numbers.to_pylist())
    ]


def _iso(text: str) -> str:
    """Return Arrow's text of a timestamp as ISO text without trailing zeros."""
    day, _, time = text.removesuffix("Z").partition(" ")
    whole, _, fraction = time.partition(".")
    fraction = fraction.rstrip("0")
    return f"{day}T{whole}.{fraction}Z" if fraction else f"{day}T{whole}Z"
