"""One value that a user wrote, as a value of a column: for defaults, bounds and literals."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from typing import Any, Final

import numpy as np
import pyarrow as pa

from nyala.errors import SchemaError
from nyala.schema.types import ColumnType, from_canonical, to_canonical

__all__ = ["OutOfRangeError", "cast_value"]

_NAN: Final = math.nan


class OutOfRangeError(SchemaError):
    """A value of the right kind that the type cannot hold."""


def cast_value(value: Any, type: ColumnType) -> Any:
    """`value` as the Python value of a column of `type`, or None for None.

    Raises: OutOfRangeError when the kind is right and the value does not fit, SchemaError otherwise.
    """
    if value is None:
        return None
    if isinstance(value, pa.Scalar):
        value = value.as_py()
    elif isinstance(value, np.generic) and not isinstance(value, np.datetime64):
        value = value.item()
    name = type.name
    wrong = SchemaError(f"{value!r} is no value of type {type}")
    if name == "bool":
        if not isinstance(value, bool):
            raise wrong
        return value
    if isinstance(value, bool):
        raise wrong
    if type.is_integer:
        if not isinstance(value, int):
            raise wrong
        return _in_range(value, value, type)
    if type.is_floating:
        if not isinstance(value, int | float):
            raise wrong
        try:
            result = float(value)
        except OverflowError:
            raise OutOfRangeError(f"{value!r} does not fit type {type}") from None
        if result != result:
            return _NAN
        with np.errstate(over="ignore"):
            if result != value or (name == "float" and float(np.float32(result)) != result):
                raise OutOfRangeError(f"{value!r} is not exactly a {type}")
        return result
    if name == "decimal":
        if not isinstance(value, int | decimal.Decimal):
            raise wrong
        assert type.scale is not None
        exact = decimal.Decimal(value)
        if not exact.is_finite():
            raise OutOfRangeError(f"{value!r} is no decimal value")
        scaled = exact.scaleb(type.scale, decimal.Context(prec=200))
        if scaled != scaled.to_integral_value():
            raise OutOfRangeError(f"{value!r} has more than {type.scale} digits after the point")
        return from_canonical(type, _in_range(int(scaled), value, type))
    if type.is_text:
        if not isinstance(value, str):
            raise wrong
        try:
            value.encode()
        except UnicodeEncodeError:
            raise OutOfRangeError(f"{value!r} is not valid Unicode") from None
        return value[: type.length] if type.length is not None else value
    if name == "binary":
        if isinstance(value, str):
            return value.encode()
        if not isinstance(value, bytes | bytearray | memoryview):
            raise wrong
        return bytes(value)
    return _cast_time(value, type, wrong)


def _cast_time(value: Any, type: ColumnType, wrong: SchemaError) -> Any:
    if isinstance(value, str):
        try:
            value = dt.datetime.fromisoformat(value.strip())
        except ValueError:
            raise OutOfRangeError(f"{value!r} is no ISO date or time") from None
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[us]").item()
    if isinstance(value, int):
        return from_canonical(type, _in_range(value, value, type))
    if not isinstance(value, dt.date):
        raise wrong
    if not isinstance(value, dt.datetime):
        value = dt.datetime(value.year, value.month, value.day)
    if value.tzinfo is None:
        value = value.replace(tzinfo=dt.UTC)
    value = value.astimezone(dt.UTC)
    if type.name == "timestamp":
        return from_canonical(type, to_canonical(type, value))
    if value.time() != dt.time(0):
        raise OutOfRangeError(f"{value} is not a whole day")
    return value.date()


def _in_range(canonical: int, value: Any, type: ColumnType) -> int:
    assert type.value_min is not None and type.value_max is not None
    if not type.value_min <= canonical <= type.value_max:
        raise OutOfRangeError(f"{value!r} does not fit type {type}")
    return canonical
