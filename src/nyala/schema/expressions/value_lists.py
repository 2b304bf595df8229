"""Long IN lists: converts all values to those of a column in a few Arrow calls.

    as_array(values)                    a list, tuple, array or Series as an Arrow array
    values_for_column(column, array)    the values that the column can hold, ascending and distinct
    canonical(type, array)              these values in canonical form (`nyala.schema.types`)

The first two functions return None for a list that they do not support, such as one with floats.
The caller then converts the list value by value with `literals`, which also raises the errors. If
the column cannot hold a value of the list, no row has this value. So the value is left out.

Invariants
    L1  `values_for_column` returns the values that `literals` gives for the items one by one.
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala import compute as pc
from nyala.schema.arrow_values import STORAGE, fixed_values, has_fixed_values
from nyala.schema.expressions.literals import Literal, to_literal
from nyala.schema.schema import ColumnSchema
from nyala.schema.types import ColumnType, from_canonical, to_canonical

__all__ = ["as_array", "canonical", "literals_of", "supported_array", "values_for_column"]

# Shorter lists are faster value by value.
_LONG: Final = 32
_US_PER_DAY: Final = 86_400_000_000
_NANOSECONDS: Final = 1000
_PYTHON_TYPES: Final = frozenset((int, str, bytes, decimal.Decimal, dt.date, dt.datetime))
_ISO_DATE: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
# Holds every decimal(38, s) and every integer.
_WIDE_DIGITS: Final = 76


def as_array(values: Iterable[Any]) -> pa.Array | None:
    """Convert a long list of values of one kind to an Arrow array; None becomes NULL.

    Returns: None for fewer than 32 values, for values of several kinds, and for kinds that this
    module does not support, such as floats. The caller then converts the values one by one.
    """
    if isinstance(values, pa.ChunkedArray):
        values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    elif not isinstance(values, pa.Array) and hasattr(values, "to_arrow"):
        values = values.to_arrow()  # a polars Series
    elif hasattr(values, "to_numpy") and not isinstance(values, pa.Array):
        values = values.to_numpy()  # a pandas Series or Index
    if not isinstance(values, Sequence | pa.Array | np.ndarray) or len(values) < _LONG:
        return None
    try:
        if isinstance(values, np.ndarray):
            array = pa.array(values, from_pandas=False) if values.dtype.kind in "iu" else None
        elif isinstance(values, pa.Array):
            array = values
        else:
            array = _array_of_objects(values)
        return None if array is None else supported_array(array)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return None


def _array_of_objects(values: Sequence[Any]) -> pa.Array | None:
    kinds = set(map(type, values)) - {type(None)}
    if len(kinds) != 1 or not kinds <= _PYTHON_TYPES:
        return None
    array = pa.array(values)
    # Arrow turns a decimal NaN into NULL, and returns a chunked array for more than 2 GiB.
    is_whole = isinstance(array, pa.Array) and (not array.null_count or None in values)
    if not is_whole or (kinds == {decimal.Decimal} and array.null_count):
        return None
    return array


def supported_array(array: pa.Array) -> pa.Array | None:
    """Convert the array to a plain type that `values_for_column` supports.

    Returns None for an array that has no such type.
    """
    types = pa.types
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    if types.is_large_string(kind) or types.is_string_view(kind):
        return array.cast(pa.string())
    if types.is_large_binary(kind) or types.is_binary_view(kind):
        return array.cast(pa.binary())
    if types.is_decimal(kind) and kind.bit_width < 128:
        return array.cast(pa.decimal128(kind.precision, kind.scale))
    known = (
        types.is_integer(kind)
        or types.is_decimal(kind)
        or types.is_string(kind)
        or types.is_binary(kind)
        or types.is_date32(kind)
        or types.is_timestamp(kind)
    )
    return array if known else None


def literals_of(array: pa.Array) -> tuple[Literal, ...]:
    """Return the values of an array from `as_array` or `values_for_column` as literals."""
    if pa.types.is_timestamp(array.type) and array.type.unit == "us":
        type = ColumnType("timestamp")
        return tuple(from_canonical(type, value) for value in array.view(pa.int64()).to_pylist())
    return tuple(map(to_literal, array if pa.types.is_timestamp(array.type) else array.to_pylist()))


def canonical(type: ColumnType, array: pa.Array) -> tuple[Any, ...]:
    """Convert an array to a tuple of values in canonical form (see `nyala.schema.types`).

    array: has the Arrow type of `type`, and no NULL.
    """
    if has_fixed_values(type):
        return tuple(fixed_values(array, type).tolist())
    values = array.to_pylist()
    return tuple(values) if type.is_variable else tuple(to_canonical(type, value) for value in values)


# --- values of a column -----------------------------------------------------------------------------


def values_for_column(column: ColumnSchema, array: pa.Array) -> pa.Array | None:
    """Return those values of `array` that the column's type can hold, distinct and ascending.

    Return None if this function cannot compare values of the array's type with the column. The
    caller then converts the values one by one.

    array: from `as_array`, without NULL.
    """
    type = column.type
    try:
        if type.is_variable:
            return _distinct(_texts(type, array))
        if type.name == "decimal":
            return _distinct(_decimals(type, array))
        numbers = _numbers(type, array)
        if numbers is None:
            return None
        distinct = np.unique(numbers.astype(STORAGE[type.name], copy=False))
        return pa.array(distinct).view(type.arrow)
    except (pa.ArrowException, OverflowError):
        return None


def _distinct(array: pa.Array | None) -> pa.Array | None:
    if array is None:
        return None
    found = array.unique()
    return found.take(pc.sort_indices(found))


def _texts(type: ColumnType, array: pa.Array) -> pa.Array | None:
    if array.type == type.arrow:
        return array
    return array.cast(pa.binary()) if type.name == "binary" and pa.types.is_string(array.type) else None


def _numbers(type: ColumnType, array: pa.Array) -> npt.NDArray[Any] | None:
    """Return as integers those items of `array` that a column of the type `type` can hold.

    The result has a date as the days since 1970, and a timestamp as the microseconds since 1970.
    Return None if `type` is not an integer, date or timestamp type. Return None also if items of
    the type of `array` cannot be compared with it.
    """
    if type.is_integer:
        if not pa.types.is_integer(array.type):
            return None
        numbers = array.to_numpy(zero_copy_only=False)
    elif type.name == "date":
        if pa.types.is_string(array.type):
            array = _iso_dates(array)
        if not pa.types.is_date32(array.type):
            return None
        numbers = array.view(pa.int32()).to_numpy(zero_copy_only=False)
    elif type.name == "timestamp":
        found = _micros(array)
        if found is None:
            return None
        numbers = found
    else:
        return None
    inside: npt.NDArray[Any] = numbers[(numbers >= type.value_min) & (numbers <= type.value_max)]
    return inside


def _iso_dates(array: pa.Array) -> pa.Array:
    """Convert texts such as '2013-01-31' to dates; return the array unchanged if a text has another
    format.
    """
    return array.cast(pa.date32()) if pc.all(pc.match_substring_regex(array, _ISO_DATE)).as_py() else array


def _micros(array: pa.Array) -> npt.NDArray[np.int64] | None:
    """Convert times to microseconds, and drop times that are finer than a microsecond."""
    if pa.types.is_string(array.type):
        array = _iso_dates(array)
    if pa.types.is_date32(array.type):
        days = array.view(pa.int32()).to_numpy(zero_copy_only=False)
        midnights: npt.NDArray[np.int64] = np.multiply(days, _US_PER_DAY, dtype=np.int64)
        return midnights
    if not pa.types.is_timestamp(array.type):
        return None
    if array.type.unit == "ns":
        nanos = array.view(pa.int64()).to_numpy(zero_copy_only=False)
        micros, rest = np.divmod(nanos, _NANOSECONDS)
        exact: npt.NDArray[np.int64] = micros[rest == 0]
        return exact
    micros = array.cast(pa.timestamp("us", array.type.tz)).view(pa.int64())
    found: npt.NDArray[np.int64] = micros.to_numpy(zero_copy_only=False)
    return found


def _decimals(type: ColumnType, array: pa.Array) -> pa.Array | None:
    if not (pa.types.is_decimal(array.type) or pa.types.is_integer(array.type)):
        return None
    scale = max(type.scale or 0, getattr(array.type, "scale", 0))
    wide = array.cast(pa.decimal256(_WIDE_DIGITS, scale))
    most = pa.scalar(from_canonical(type, type.value_max), wide.type)
    least = pa.scalar(from_canonical(type, type.value_min), wide.type)
    wide = wide.filter(pc.and_(pc.less_equal(wide, most), pc.greater_equal(wide, least)))
    cut = wide.cast(options=pc.CastOptions(type.arrow, allow_decimal_truncate=True))
    return cut.filter(pc.equal(cut.cast(wide.type), wide))
