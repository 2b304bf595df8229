"""Arrow's memory as NumPy's: values and validity of canonical arrays, without a copy where there can be none.

Canonical arrays only (`nyala.schema.types`), decimals besides also of 32, 64 or 256 bits where it says so.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from decimal import Context, Decimal
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from nyala.schema.types import ColumnType

__all__ = [
    "STORAGE",
    "Mask",
    "decimal_doubles",
    "false_mask",
    "fixed_values",
    "has_fixed_values",
    "is_narrow",
    "is_narrow_decimal",
    "python_at",
    "python_value",
    "rows_of",
    "true_mask",
    "validity",
]

Mask: TypeAlias = npt.NDArray[np.bool_]

_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_FIRST_DAY: Final = date.min.toordinal() - _EPOCH_DAY
_LAST_DAY: Final = date.max.toordinal() - _EPOCH_DAY
# Moves a decimal point without rounding, whatever the thread's own context says.
_EXACT: Final = Context(prec=40, Emin=-100, Emax=100, traps=[])

# The NumPy type of one value's bytes.
STORAGE: Final[dict[str, Any]] = {
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int64,
    "date": np.int32,
    "timestamp": np.int64,
    "float": np.float32,
    "double": np.float64,
}


def python_value(type: ColumnType) -> Callable[[int], Any]:
    """From the number that stands for a value of the type (days, microseconds, unscaled digits) to what Arrow's `as_py`
    gives for it (see `python_at`). Of types that are numbers only."""
    if type.is_integer:
        return int
    if type.name == "date":
        return _day
    if type.name == "decimal":
        exponent = -(type.scale or 0)
        return lambda digits: _EXACT.scaleb(Decimal(digits), exponent)
    return lambda number: python_at(pa.array([number], pa.int64()).view(type.arrow), 0)


def python_at(array: pa.Array | pa.ChunkedArray, row: int) -> Any:
    """One value as Arrow's `as_py` gives it; of a time outside the years 1 to 9999, which no datetime holds, the
    microseconds."""
    value = array[row]
    try:
        return value.as_py()
    except OverflowError:
        if not pa.types.is_timestamp(array.type):
            raise
        return value.value


def _day(days: int) -> Any:
    if _FIRST_DAY <= days <= _LAST_DAY:
        return date.fromordinal(_EPOCH_DAY + days)
    return pa.array([days], pa.int32()).view(pa.date32())[0].as_py()  # Arrow's own words for it


def validity(array: pa.Array) -> Mask | None:
    """Which elements are not NULL; None for all of them."""
    if array.null_count == 0:
        return None
    valid: Mask = array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def fixed_values(array: pa.Array, type: ColumnType) -> npt.NDArray[Any]:
    """The values of a numeric, date or timestamp column as a view, NULLs as whatever stands there.

    Decimals of at most 18 digits: their unscaled values, which are the low halves of Arrow's 16 bytes, or all of an
    array of 4 or 8 bytes each.
    """
    data = array.buffers()[1]
    if data is None or len(array) == 0:
        return np.empty(0, STORAGE.get(type.name, np.int64))
    if type.name == "decimal":
        assert is_narrow(type)
        width = array.type.bit_width // 8
        if width < 16:
            stored = np.int64 if width == 8 else np.int32
            return np.frombuffer(data, stored, count=array.offset + len(array))[array.offset :]
        words = np.frombuffer(data, np.int64, count=2 * (array.offset + len(array)))
        return words[2 * array.offset :: 2]
    return np.frombuffer(data, STORAGE[type.name], count=array.offset + len(array))[array.offset :]


def is_narrow(type: ColumnType) -> bool:
    """Whether it is a decimal whose unscaled values fit 64 bits."""
    return type.precision is not None and type.precision <= 18


def has_fixed_values(type: ColumnType) -> bool:
    """Whether `fixed_values` takes it."""
    return type.name in STORAGE or is_narrow(type)


def is_narrow_decimal(type: pa.DataType) -> bool:
    """Whether it is Arrow's decimal of 4 or 8 bytes."""
    return bool(pa.types.is_decimal(type)) and type.bit_width < 128


def true_mask(array: pa.Array | pa.ChunkedArray) -> Mask:
    """A boolean array as a mask of its own: NULL is False."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if array.null_count:
        array = array.fill_null(False)
    mask: Mask = array.to_numpy(zero_copy_only=False)  # bits become bytes: always a copy
    return mask


def false_mask(array: pa.Array) -> Mask:
    """Where a boolean array is False, and not NULL."""
    return ~true_mask(array.fill_null(True) if array.null_count else array)


def decimal_doubles(array: pa.Array) -> npt.NDArray[np.float64]:
    """The nearest doubles of a decimal128 or decimal256 array, NULLs as anything.

    Not by Arrow's own cast, which multiplies by an inexact power of ten: there 0.41 is not the double 0.41.
    """
    precision, scale = array.type.precision, array.type.scale
    if precision <= 15:  # both below 2**53 and 10**22, so exact, and one division rounds once
        narrow = ColumnType("decimal", precision, scale)
        quotients: npt.NDArray[np.float64] = fixed_values(array.cast(narrow.arrow), narrow) / 10.0**scale
        return quotients
    doubles = array.cast(pa.string()).cast(pa.float64())  # parsing rounds correctly
    return fixed_values(doubles, ColumnType("double")).astype(np.float64)


def rows_of(array: pa.Array) -> pa.Array:
    """A value for each row: of an array of runs these, of any other the array itself."""
    return pc.run_end_decode(array) if pa.types.is_run_end_encoded(array.type) else array
