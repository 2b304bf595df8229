"""Casts Python values to a column's type: lists of values, and single values such as defaults and
keys.

The values of a list are grouped by their kind (`int`, `str`, `datetime` …). Each group becomes an
Arrow array of the type that Arrow chooses for this kind, and `array_cast` casts the array to the
column's type. So Python values and Arrow data follow the same rules. Usually a list has one kind,
and the cost is two passes of C code over the list.

Further rules for Python values:
    An int or Decimal that is too large, a Decimal NaN, or a text with lone surrogates fails only
    its own row. A naive datetime is in UTC. A pandas Timestamp with nanoseconds fails, because a
    timestamp has microseconds. None, pandas.NA and NaT are NULL. A float NaN is a value and not
    NULL, so it does not fit a text column. A bool is not an int.
"""

from __future__ import annotations

import datetime as dt
import decimal
import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.errors import OUT_OF_RANGE, SchemaError
from nyala.schema.conversion.array_cast import (
    PANDAS_ADVICE,
    Cast,
    Failure,
    cast_array,
    one_array,
    range_text,
    shorten,
    utf8_array,
)
from nyala.schema.types import EXACT_DECIMALS, MAX_CELL_BYTES, UUID_ADVICE, ColumnType, from_canonical

__all__ = ["OutOfRangeError", "cast_datetime64", "cast_list", "cast_value"]

_UTC_US: Final = pa.timestamp("us", tz="UTC")


class OutOfRangeError(SchemaError):
    """The kind of the value matches the column type, but the type cannot hold this value."""


def cast_value(value: Any, wanted: ColumnType, max_cell_bytes: int = MAX_CELL_BYTES) -> Any:
    """Cast `value` to a Python value of the column type `wanted`; None stays None.

    A timestamp becomes a datetime in UTC. Outside the years 1 to 9999 it becomes an int, the
    microseconds since 1970. A decimal becomes a Decimal with the column's scale.
    `nyala.schema.types.to_canonical` converts the result to canonical form.
    Raises: OutOfRangeError if the kind matches but the value does not fit, SchemaError if the kind
    does not match.
    """
    # The code below gives the same result, but needs 20 µs for an integer. Point look-ups come
    # here.
    if value.__class__ is int and wanted.is_integer:
        assert wanted.value_min is not None and wanted.value_max is not None
        if wanted.value_min <= value <= wanted.value_max:
            return value
    if isinstance(value, pa.Scalar):
        array, failures = cast_array(one_array(pa.repeat(value, 1)), wanted, max_cell_bytes)
    else:
        array, failures = cast_list([value], wanted, max_cell_bytes)
    if failures:
        raise OutOfRangeError(failures[0].messages[0])
    scalar = array[0]
    if not scalar.is_valid:
        return None
    if wanted.name in ("date", "timestamp"):
        return from_canonical(wanted, scalar.value)
    result = scalar.as_py()
    if wanted.is_floating and math.isnan(result):
        return math.nan  # always the same object, so that tuples that contain it are equal
    return result


def cast_list(values: Sequence[Any], wanted: ColumnType, max_cell_bytes: int = MAX_CELL_BYTES) -> Cast:
    """Cast the values to one array of the canonical type of `wanted`; also return the failed rows.

    Raises: SchemaError if the kind of a value does not match `wanted`. The message shows the first
    such value.
    """
    kinds = {cls: _kind_of(cls) for cls in set(map(type, values))}
    present = set(kinds.values()) - {_null}
    if not present:
        return pa.nulls(len(values), wanted.arrow), []
    if any(kind is _null and cls is not type(None) for cls, kind in kinds.items()):
        values = [None if kinds[type(value)] is _null else value for value in values]
        kinds[type(None)] = _null
    if len(present) == 1:
        return _cast_kind(present.pop(), values, wanted, max_cell_bytes)
    return _cast_mixed(values, kinds, wanted, max_cell_bytes)


def _cast_mixed(
    values: Sequence[Any], kinds: dict[type, _Kind], wanted: ColumnType, max_cell_bytes: int
) -> Cast:
    """Cast each kind of values separately, and put the results back in the order of the rows."""
    row_kinds = list(map(kinds.__getitem__, map(type, values)))
    pieces, positions, failures = [], [], []
    for kind in dict.fromkeys(row_kinds):
        of_kind = [row_kind is kind for row_kind in row_kinds]
        rows = np.flatnonzero(of_kind)
        piece, failed = _cast_kind(kind, list(itertools.compress(values, of_kind)), wanted, max_cell_bytes)
        pieces.append(piece)
        positions.append(rows)
        failures += [Failure(rows[failure.rows], failure.code, failure.messages) for failure in failed]
    in_order = np.argsort(np.concatenate(positions))
    return pa.concat_arrays(pieces).take(pa.array(in_order)), failures


def _cast_kind(kind: _Kind, values: Sequence[Any], wanted: ColumnType, max_cell_bytes: int) -> Cast:
    """Cast values that are all of one kind or None; also return the failed rows.

    kind: the function that makes an Arrow array of such values. `cast_array` casts this array.
    """
    try:
        natural, failures = kind(values, wanted)
        array, more = cast_array(natural, wanted, max_cell_bytes)
    except SchemaError as error:
        first = next(value for value in values if value is not None)
        text = str(error).replace(PANDAS_ADVICE, "")
        raise SchemaError(f"{text} (the first such value is {_shown(first)})") from None
    return array, failures + more


def _shown(value: Any) -> str:
    if isinstance(value, int) and not -(2**200) < value < 2**200:
        # Python raises an error when it formats an integer of more than 4,300 digits.
        return f"an integer of {int(value).bit_length()} bits"
    return shorten(repr(value))


def _failure(rows: list[int], messages: list[str]) -> list[Failure]:
    return [Failure(np.array(rows, np.int64), OUT_OF_RANGE, messages)] if rows else []


# --- kinds ------------------------------------------------------------------------------------------
# Each function converts values of one kind, and None, to the type that Arrow chooses for this kind.
# It first gives the whole list to Arrow. Only if Arrow rejects the list does it look at single
# values.

_Kind = Callable[[Sequence[Any], ColumnType], Cast]


def _null(values: Sequence[Any], wanted: ColumnType) -> Cast:
    return pa.nulls(len(values)), []


def _bool(values: Sequence[Any], wanted: ColumnType) -> Cast:
    return pa.array(values, pa.bool_()), []


def _int(values: Sequence[Any], wanted: ColumnType) -> Cast:
    try:
        return pa.array(values, pa.int64()), []
    except OverflowError:
        ints = [None if value is None else operator.index(value) for value in values]
    if wanted.is_floating:
        floats = [None if value is None else _exact_float(value) for value in ints]
        bad = [row for row, value in enumerate(ints) if value is not None and floats[row] is None]
        messages = [f"{_shown(ints[row])} is not exactly a {wanted}" for row in bad]
        return pa.array(floats, pa.float64()), _failure(bad, messages)
    limit = 10**38 if wanted.name == "decimal" else 2**63
    bad = [row for row, value in enumerate(ints) if value is not None and not -limit <= value < limit]
    messages = [f"{_shown(ints[row])} does not fit {range_text(wanted)}" for row in bad]
    for row in bad:
        ints[row] = None
    natural = pa.decimal256(39, 0) if wanted.name == "decimal" else pa.int64()
    return pa.array(ints, natural), _failure(bad, messages)


def _exact_float(value: int) -> float | None:
    try:
        result = float(value)
    except OverflowError:
        return None
    return result if result == value else None


def _float(values: Sequence[Any], wanted: ColumnType) -> Cast:
    doubles = pa.array(values, pa.float64())
    if wanted.name != "float":
        return doubles, []
    # A Python float is rounded to the nearest float32, because users write numbers such as 0.1. (An
    # Arrow or NumPy array of doubles is not rounded, because its owner chose that type.) A value
    # that is too large for float32 stays as it is, so that the cast to float32 fails.
    exact = doubles.to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        rounded = exact.astype(np.float32).astype(np.float64)
    rounded = np.where(np.isinf(rounded), exact, rounded)
    return pa.array(rounded, mask=doubles.is_null().to_numpy(zero_copy_only=False)), []


def _decimal(values: Sequence[Any], wanted: ColumnType) -> Cast:
    try:
        return pa.array(values), []
    except (pa.ArrowInvalid, TypeError):
        pass  # the list contains NaN, an infinity, or numbers that together need more than 76 digits
    plain = [None if value is None else _plain_decimal(value) for value in values]
    bad = [row for row, value in enumerate(values) if value is not None and plain[row] is None]
    messages = [f"{shorten(str(values[row]))} does not fit {range_text(wanted)}" for row in bad]
    return pa.array(plain, pa.decimal256(76, 38)), _failure(bad, messages)


def _plain_decimal(value: decimal.Decimal) -> decimal.Decimal | None:
    """Return the value if it has at most 38 digits before and 38 after the point; None otherwise."""
    if not value.is_finite():
        return None
    exact = value.normalize(EXACT_DECIMALS)
    exponent = exact.as_tuple().exponent
    fits = exact == value and (exact.is_zero() or (exact.adjusted() < 38 and int(exponent) >= -38))
    return exact if fits else None


def _text(values: Sequence[Any], wanted: ColumnType) -> Cast:
    try:
        return one_array(pa.array(values, pa.string())), []
    except UnicodeEncodeError:
        # UTF-8 cannot encode a lone surrogate.
        raw = [None if value is None else value.encode("utf-8", "surrogatepass") for value in values]
        return utf8_array(one_array(pa.array(raw, pa.binary())))


def _bytes(values: Sequence[Any], wanted: ColumnType) -> Cast:
    return one_array(pa.array(values, pa.binary())), []


def _datetime(values: Sequence[Any], wanted: ColumnType) -> Cast:
    return pa.array(values, _UTC_US), []  # Arrow converts zones to UTC, and treats naive times as UTC


def _date(values: Sequence[Any], wanted: ColumnType) -> Cast:
    return pa.array(values, pa.date32()), []


def _numpy_time(values: Sequence[Any], wanted: ColumnType) -> Cast:
    return cast_datetime64(_datetime64_array(values))


def _pandas_time(values: Sequence[Any], wanted: ColumnType) -> Cast:
    return cast_datetime64(_datetime64_array([None if value is None else value.asm8 for value in values]))


def _datetime64_array(values: Sequence[np.datetime64 | None]) -> npt.NDArray[np.datetime64]:
    """Return the times in one unit, with NaT for None."""
    # Not `np.datetime64("NaT")`, which has no unit: NumPy 2.5 warns about it.
    there = np.array([value for value in values if value is not None])
    times = np.full(len(values), np.array("NaT", there.dtype))
    times[np.array([value is not None for value in values])] = there
    return times


def _uuid(values: Sequence[Any], wanted: ColumnType) -> Cast:
    """Convert `uuid.UUID` objects to binary values of 16 bytes.

    Arrow 20 and later convert them in the same way, but Nyala also supports Arrow 19.
    """
    if wanted.is_text:
        raise SchemaError(f"expected {wanted}, got uuid.UUID; {UUID_ADVICE}")
    return pa.array([None if value is None else value.bytes for value in values], pa.binary()), []


def _other(values: Sequence[Any], wanted: ColumnType) -> Cast:
    try:
        return one_array(pa.array(values)), []
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        first = next(value for value in values if value is not None)
        raise SchemaError(f"expected {wanted}, got the unsupported type {type(first).__name__}") from None


@functools.lru_cache(maxsize=256)
def _kind_of(cls: type) -> _Kind:
    if cls is type(None):
        return _null
    if issubclass(cls, bool | np.bool_):
        return _bool
    if issubclass(cls, np.timedelta64 | np.longdouble):
        return _other_of(cls)  # before `_int` and `_float`, which NumPy derives these from
    if issubclass(cls, int | np.integer):
        return _int
    if issubclass(cls, float | np.floating):
        return _float
    if issubclass(cls, decimal.Decimal):
        return _decimal
    if issubclass(cls, str):
        return _text
    if issubclass(cls, bytes | bytearray | memoryview):
        return _bytes
    if issubclass(cls, np.datetime64):
        return _numpy_time
    if (cls.__module__, cls.__name__) == (
        "uuid",
        "UUID",
    ):  # compared by name, so that this module need not import uuid
        return _uuid
    if cls.__module__.startswith("pandas."):
        if cls.__name__ in ("NaTType", "NAType"):
            return _null
        if cls.__name__ == "Timestamp":
            return _pandas_time
    if issubclass(cls, dt.datetime):
        return _datetime
    if issubclass(cls, dt.date):
        return _date
    return _other_of(cls)


def _other_of(cls: type) -> _Kind:
    # A new function object for each class, so that values of two unknown classes are two kinds.
    return functools.partial(_other)


def cast_datetime64(values: npt.NDArray[Any]) -> Cast:
    """Convert datetime64 of any unit to an Arrow timestamp or date; also return the rows that do
    not fit.
    """
    unit, count = np.datetime_data(values.dtype)
    if unit == "generic":
        return pa.nulls(len(values)), []  # all values are NaT: other values have a unit
    if count == 1 and unit in ("s", "ms", "us", "ns"):
        return pa.array(values), []
    unit = unit if unit in ("ms", "us", "ns") else "ns" if unit in ("ps", "fs", "as") else "s"
    exact = values.astype(f"datetime64[{unit}]")
    bad = (exact.astype(values.dtype) != values) & ~np.isnat(values)
    rows = np.flatnonzero(bad)
    messages = [f"{value} does not fit 64 bits of nanoseconds" for value in values[rows]]
    return pa.array(exact, mask=bad | np.isnat(exact)), _failure(rows.tolist(), messages)
