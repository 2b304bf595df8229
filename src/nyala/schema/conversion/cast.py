"""Python values as values of a column: whole lists, and single ones (defaults, bounds, literals, keys).

A list is sorted by the kind of its values (`int`, `str`, `datetime` …), every kind becomes an Arrow array of
its own natural type, and from there the rules of `array_cast` hold: there is one table of rules,
whatever the data came in. A list of one kind, the usual case, costs one pass of C code over its types and one
over its values.

What Python adds to those rules:
    ints of any size, Decimals of any size (with NaN), text with lone surrogates: the row fails, not the call
    a naive datetime is in UTC; a pandas Timestamp keeps its nanoseconds, and must not have any
    None, pandas.NA and NaT are NULL; a float NaN is NaN, in a column of text as everywhere
    bool is no int

Left out: pandas and NumPy arrays as a whole (`nyala.schema.conversion.convert`), which Arrow reads.
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
    """One value, of a kind that the type takes, which the type cannot hold."""


def cast_value(value: Any, wanted: ColumnType, max_cell_bytes: int = MAX_CELL_BYTES) -> Any:
    """`value` as the Python value that a column of type `wanted` holds; None stays None.

    The result of a timestamp is a datetime in UTC (an int of microseconds outside the years 1 to 9999), of a
    decimal a Decimal with the column's scale; `nyala.schema.types.to_canonical` takes it further.
    Raises: OutOfRangeError when the kind is right and the value does not fit, SchemaError otherwise.
    """
    # Not another rule: only to spare the usual keys and literals some 20 µs in Arrow.
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
        return math.nan  # one object, so that tuples which hold it compare equal
    return result


def cast_list(values: Sequence[Any], wanted: ColumnType, max_cell_bytes: int = MAX_CELL_BYTES) -> Cast:
    """The values as one array of the canonical type of `wanted`, and the rows that failed.

    Raises: SchemaError when some value's kind has nothing in common with `wanted`; it shows the first of them.
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
    """One cast per kind, and the results put back in the order of the rows."""
    row_kinds = list(map(kinds.__getitem__, map(type, values)))
    pieces, places, failures = [], [], []
    for kind in dict.fromkeys(row_kinds):
        of_kind = [row_kind is kind for row_kind in row_kinds]
        rows = np.flatnonzero(of_kind)
        piece, failed = _cast_kind(kind, list(itertools.compress(values, of_kind)), wanted, max_cell_bytes)
        pieces.append(piece)
        places.append(rows)
        failures += [Failure(rows[failure.rows], failure.code, failure.messages) for failure in failed]
    in_order = np.argsort(np.concatenate(places))
    return pa.concat_arrays(pieces).take(pa.array(in_order)), failures


def _cast_kind(kind: _Kind, values: Sequence[Any], wanted: ColumnType, max_cell_bytes: int) -> Cast:
    """Values of one kind and None: to Arrow's natural type, then by the common rules."""
    try:
        natural, failures = kind(values, wanted)
        array, more = cast_array(natural, wanted, max_cell_bytes)
    except SchemaError as error:
        first = next(value for value in values if value is not None)
        raise SchemaError(f"{error} (the first is {_shown(first)})") from None
    return array, failures + more


def _shown(value: Any) -> str:
    if isinstance(value, int) and not -(2**200) < value < 2**200:
        return (
            f"an integer of {int(value).bit_length()} bits"  # its digits may be too many for Python to write
        )
    return shorten(repr(value))


def _failure(rows: list[int], messages: list[str]) -> list[Failure]:
    return [Failure(np.array(rows, np.int64), OUT_OF_RANGE, messages)] if rows else []


# --- kinds: a function per kind, from values (with None) to the natural Arrow type ------------------
# Each has a fast way, and a slow one for values that Arrow refuses as a whole.

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
    # A Python float is how a person writes a number: 0.1 means the nearest that the column has. (An Arrow or NumPy
    # column of doubles says what it is, and is not rounded.) What is too large for a float stays as it was,
    # and fails.
    exact = doubles.to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        rounded = exact.astype(np.float32).astype(np.float64)
    rounded = np.where(np.isinf(rounded), exact, rounded)
    return pa.array(rounded, mask=doubles.is_null().to_numpy(zero_copy_only=False)), []


def _decimal(values: Sequence[Any], wanted: ColumnType) -> Cast:
    try:
        return pa.array(values), []
    except (pa.ArrowInvalid, TypeError):
        pass  # NaN or infinity, or more digits, taken together, than 76
    plain = [None if value is None else _plain_decimal(value) for value in values]
    bad = [row for row, value in enumerate(values) if value is not None and plain[row] is None]
    messages = [f"{shorten(str(values[row]))} does not fit {range_text(wanted)}" for row in bad]
    return pa.array(plain, pa.decimal256(76, 38)), _failure(bad, messages)


def _plain_decimal(value: decimal.Decimal) -> decimal.Decimal | None:
    """The value if 38 digits before and 38 after the point hold it, as they do every decimal that we have."""
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
        # A lone surrogate, which UTF-8 has no bytes for.
        raw = [None if value is None else value.encode("utf-8", "surrogatepass") for value in values]
        return utf8_array(one_array(pa.array(raw, pa.binary())))


def _bytes(values: Sequence[Any], wanted: ColumnType) -> Cast:
    return one_array(pa.array(values, pa.binary())), []


def _datetime(values: Sequence[Any], wanted: ColumnType) -> Cast:
    return pa.array(values, _UTC_US), []  # Arrow turns zones to UTC, and takes naive times for UTC


def _date(values: Sequence[Any], wanted: ColumnType) -> Cast:
    return pa.array(values, pa.date32()), []


def _numpy_time(values: Sequence[Any], wanted: ColumnType) -> Cast:
    return cast_datetime64(_with_gaps(values))


def _pandas_time(values: Sequence[Any], wanted: ColumnType) -> Cast:
    return cast_datetime64(_with_gaps([None if value is None else value.asm8 for value in values]))


def _with_gaps(values: Sequence[np.datetime64 | None]) -> npt.NDArray[np.datetime64]:
    """Times of any units, some of which are there, in one of them, and NaT for None; no NaT without a unit, of which
    NumPy 2.5 warns."""
    there = np.array([value for value in values if value is not None])
    times = np.full(len(values), np.array("NaT", there.dtype))
    times[np.array([value is not None for value in values])] = there
    return times


def _uuid(values: Sequence[Any], wanted: ColumnType) -> Cast:
    """As Arrow from 20 on takes them, of itself: their bytes."""
    if wanted.is_text:
        raise SchemaError(f"given uuid.UUID, wanted {wanted}; {UUID_ADVICE}")
    return pa.array([None if value is None else value.bytes for value in values], pa.binary()), []


def _other(values: Sequence[Any], wanted: ColumnType) -> Cast:
    try:
        return one_array(pa.array(values)), []
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        first = next(value for value in values if value is not None)
        raise SchemaError(f"given {type(first).__name__}, wanted {wanted}; Nyala has no such type") from None


@functools.lru_cache(maxsize=256)
def _kind_of(cls: type) -> _Kind:
    if cls is type(None):
        return _null
    if issubclass(cls, bool | np.bool_):
        return _bool
    if issubclass(cls, np.timedelta64 | np.longdouble):
        return _other_of(cls)  # NumPy calls the one an integer, the other has more digits than a double
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
    if (cls.__module__, cls.__name__) == ("uuid", "UUID"):  # by name: the module makes them, by chance
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
    # A function of its own for each class, so that two strange classes are two kinds.
    return functools.partial(_other)


def cast_datetime64(values: npt.NDArray[Any]) -> Cast:
    """NumPy's datetime64 of any unit as an Arrow timestamp or date, and the rows beyond what Arrow's units
    hold."""
    unit, count = np.datetime_data(values.dtype)
    if unit == "generic":
        return pa.nulls(len(values)), []  # nothing but NaT
    if count == 1 and unit in ("s", "ms", "us", "ns"):
        return pa.array(values), []
    unit = unit if unit in ("ms", "us", "ns") else "ns" if unit in ("ps", "fs", "as") else "s"
    exact = values.astype(f"datetime64[{unit}]")
    bad = (exact.astype(values.dtype) != values) & ~np.isnat(values)
    rows = np.flatnonzero(bad)
    messages = [f"{value} is not a whole number of nanoseconds that 64 bits hold" for value in values[rows]]
    return pa.array(exact, mask=bad | np.isnat(exact)), _failure(rows.tolist(), messages)
