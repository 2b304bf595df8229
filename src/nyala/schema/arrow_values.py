"""Reads Arrow arrays as NumPy arrays, without a copy where possible, and single values as Python
objects.

The arrays have the canonical types of `nyala.schema.types`. Some functions also accept decimals of
32, 64 or 256 bits.

A damaged file whose checksums are right may contain invalid UTF-8, and dates outside the years 1 to
9999. Scans do not check for such values, because this would make them more than 10 % slower. The
functions that build Python objects detect them: `python_value_at`, `python_converter` and
`raising_corruption`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import date
from decimal import Context, Decimal
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala import compute as pc
from nyala.errors import CorruptionError
from nyala.schema.adapter import adapt
from nyala.schema.types import DATE_MAX_DAYS, DATE_MIN_DAYS, ColumnType

__all__ = [
    "STORAGE",
    "Mask",
    "adapted_value_at",
    "decimal_doubles",
    "decode_runs",
    "false_mask",
    "fixed_values",
    "has_fixed_values",
    "has_valid_values",
    "is_narrow",
    "is_narrow_decimal",
    "python_converter",
    "python_value_at",
    "raising_corruption",
    "repeated",
    "true_mask",
    "validity",
]

Mask: TypeAlias = npt.NDArray[np.bool_]

# The most text in one Arrow string array: its offsets have 32 bits.
_TEXT_BYTES_MAX: Final = (1 << 31) - 1

_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
# Moves a decimal point without rounding. The thread's own decimal context might round.
_EXACT: Final = Context(prec=40, Emin=-100, Emax=100, traps=[])

# The NumPy type of the values in an Arrow buffer.
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


def python_converter(type: ColumnType) -> Callable[[int], Any]:
    """Return a function that converts a canonical number of a numeric, date or timestamp type to a
    Python value.

    A canonical number is an int: a date as days since 1970, a timestamp as microseconds since 1970,
    a decimal without its point (1.20 as 120).
    """
    if type.is_integer:
        return int
    if type.name == "date":
        return _day
    if type.name == "decimal":
        exponent = -(type.scale or 0)
        return lambda digits: _EXACT.scaleb(Decimal(digits), exponent)
    return lambda number: python_value_at(pa.array([number], pa.int64()).view(type.arrow), 0)


def python_value_at(array: pa.Array | pa.ChunkedArray, row: int) -> Any:
    """Return one value as a Python object, as Arrow's `as_py` does.

    A timestamp outside the years 1 to 9999 is returned as an int of microseconds since 1970.
    Raises: CorruptionError for invalid UTF-8, and for a date outside the years 1 to 9999.
    """
    value = array[row]
    try:
        return value.as_py()
    except OverflowError:
        if pa.types.is_date32(array.type):
            return _day(value.value)
        if not pa.types.is_timestamp(array.type):
            raise
        return value.value
    except UnicodeDecodeError as error:
        raise CorruptionError(f"expected text in UTF-8, found {value.as_buffer().to_pybytes()!r}") from error


def adapted_value_at(array: pa.Array, row: int, wanted: pa.DataType) -> Any:
    """Return one value as a Python object, converted to the type `wanted` by `adapter.adapt`."""
    if array.type == wanted:
        return python_value_at(array, row)
    return python_value_at(adapt(array.slice(row, 1), wanted), 0)


def _day(days: int) -> Any:
    if DATE_MIN_DAYS <= days <= DATE_MAX_DAYS:
        return date.fromordinal(_EPOCH_DAY + days)
    raise CorruptionError(f"expected a date of the years 1 to 9999, found day {days} from 1970-01-01")


def has_valid_values(array: pa.Array | pa.ChunkedArray) -> bool:
    """Whether all texts are UTF-8 and all dates are within the years 1 to 9999. Other types are not
    checked.
    """
    if isinstance(array, pa.ChunkedArray):
        return all(map(has_valid_values, array.chunks))
    if pa.types.is_dictionary(array.type):
        return has_valid_values(array.dictionary)
    if pa.types.is_date32(array.type):
        found = pc.min_max(array.view(pa.int32())).as_py()
        return found["min"] is None or (found["min"] >= DATE_MIN_DAYS and found["max"] <= DATE_MAX_DAYS)
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        data = array.buffers()[2]
        if data is None or not data.size or np.frombuffer(data, np.int8).min() >= 0:
            return True  # all bytes are ASCII
        try:
            array.validate(full=True)
        except pa.ArrowInvalid:
            return False
    return True


@contextlib.contextmanager
def raising_corruption(table: pa.Table | pa.RecordBatch) -> Iterator[None]:
    """Context manager for code that builds Python objects from `table`.

    If the code fails because of an invalid value, it raises CorruptionError with the name of the
    column. It checks the values only after a failure, so code that succeeds pays nothing.
    """
    try:
        yield
    except (ValueError, OverflowError, pa.ArrowException) as error:
        for name, column in zip(table.schema.names, table.columns, strict=True):
            if not has_valid_values(column):
                what = "dates of the years 1 to 9999" if pa.types.is_date32(column.type) else "text in UTF-8"
                raise CorruptionError(
                    f"column {name!r}: expected {what}, found other bytes; `nyala fs check` finds the damaged file"
                ) from error
        raise


def validity(array: pa.Array) -> Mask | None:
    """Return a mask of the values that are not NULL; None if no value is NULL."""
    if array.null_count == 0:
        return None
    valid: Mask = array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def fixed_values(array: pa.Array, type: ColumnType) -> npt.NDArray[Any]:
    """Return the canonical values of a numeric, date or timestamp column as a NumPy view.

    At NULL rows the view has arbitrary values. Decimals of more than 18 digits are not supported,
    because they do not fit in 64 bits. The view of a decimal128 contains the lower 8 of the 16
    bytes of each value.
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
    """Whether the type is a decimal of at most 18 digits, so that its canonical values fit in 64
    bits.
    """
    return type.precision is not None and type.precision <= 18


def has_fixed_values(type: ColumnType) -> bool:
    """Whether the type has numbers, dates or timestamps of at most 64 bits (see `fixed_values`)."""
    return type.name in STORAGE or is_narrow(type)


def is_narrow_decimal(type: pa.DataType) -> bool:
    """Whether the type is an Arrow decimal of 4 or 8 bytes."""
    return bool(pa.types.is_decimal(type)) and type.bit_width < 128


def true_mask(array: pa.Array | pa.ChunkedArray) -> Mask:
    """Return a new mask of the values that are True. NULL counts as False."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if array.null_count:
        array = array.fill_null(False)
    mask: Mask = array.to_numpy(
        zero_copy_only=False
    )  # always a copy: Arrow has one bit per value, NumPy one byte
    return mask


def false_mask(array: pa.Array) -> Mask:
    """Return a mask of the values that are False and not NULL."""
    return ~true_mask(array.fill_null(True) if array.null_count else array)


def decimal_doubles(array: pa.Array) -> npt.NDArray[np.float64]:
    """Return the nearest double of each decimal128 or decimal256 value. NULL rows get any value.

    Arrow's own cast does not return the nearest double, for instance for 0.41: it multiplies by a
    rounded power of ten.
    """
    precision, scale = array.type.precision, array.type.scale
    if precision <= 15:  # dividend and divisor are exact doubles, so the division rounds once
        narrow = ColumnType("decimal", precision, scale)
        quotients: npt.NDArray[np.float64] = fixed_values(array.cast(narrow.arrow), narrow) / 10.0**scale
        return quotients
    doubles = array.cast(pa.string()).cast(pa.float64())  # parsing a text rounds once
    return fixed_values(doubles, ColumnType("double")).astype(np.float64)


def decode_runs(array: pa.Array) -> pa.Array:
    """Return one value per row: decodes a run-end-encoded array, and returns other arrays
    unchanged.
    """
    return pc.run_end_decode(array) if pa.types.is_run_end_encoded(array.type) else array


def repeated(value: pa.Scalar, count: int) -> pa.Array:
    """Return an array of `count` equal values.

    Raises: ArrowInvalid for more than 2 GiB of text. Above this size, `pa.repeat` would return
    wrong offsets without an error.
    """
    if value.is_valid and value.type in (pa.string(), pa.binary()):
        size = len(value.as_buffer()) * count
        if size > _TEXT_BYTES_MAX:
            # As in Arrow's own errors, the word "overflow" makes callers retry with half of the rows.
            raise pa.ArrowInvalid(
                f"offset overflow: {count} copies of one value take {size} bytes, more than the {_TEXT_BYTES_MAX} "
                "bytes of an Arrow array; use a shorter value or fewer rows"
            )
    return pa.repeat(value, count)
