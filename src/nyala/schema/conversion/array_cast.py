"""Casts Arrow arrays of any type to a column's type, and reports the rows that do not fit.

    from ⟍ to     bool   int   float   decimal   date    timestamp   text    binary
    bool           =
    int                  fits  exact   fits      days
    float                      exact
    decimal              whole         fits
    date                                         fits    midnight
    timestamp                                    whole   whole µs
    text                                         ISO     ISO         = cut   UTF-8
    binary                                                           UTF-8   =

    (empty)     the types are incompatible: SchemaError for the whole batch
    =           the same values
    fits        fails outside the range of the column type
    exact       fails if the column's binary floating point rounds the number; NaN stays NaN
    whole       fails if a fraction of a number or of a day (whole µs: of a microsecond) would be lost
    days        an integer is a number of days since 1970-01-01
    midnight    a date becomes its midnight in UTC
    ISO         text such as 2014-01-31 or 2014-01-31T12:30:00.5+01:00
    cut         text is truncated to the length of a varchar; `convert` rejects longer text in a key
    UTF-8       fails if the bytes are not UTF-8

A value keeps its exact meaning, or its row fails. An integer cannot become a timestamp, because its
unit is unknown. A time without a zone is in UTC. The timestamps `infinity` and `-infinity` of
DuckDB fail, and so do text and binary values above `max_cell_bytes`.

Other layouts are first converted to the plain layout of their values. These are dictionary,
run-end-encoded, large, view and extension arrays, decimals of 32 and 64 bits, and half floats.

Invariants
    C1  The result has the canonical type and the length of the input. It is NULL where the input is
        NULL, and in failed rows. All other values keep their meaning.
    C2  `cast_array` reports a row at most once.
    C3  If no row fails, a cast takes a fixed number of Arrow and NumPy calls. The code searches for
        failed rows only after a checked cast of Arrow has raised an error.
The result may share memory with the input; `nyala.schema.conversion.convert` copies it if
necessary. That module also checks NOT NULL columns. `nyala.schema.conversion.cast` casts Python
values.
Source: docs/how-to/data-in-and-out.md.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala import compute as pc
from nyala.errors import INVALID_UTF8, OUT_OF_RANGE, VALUE_TOO_LARGE, InvalidArgumentError, SchemaError
from nyala.schema.types import (
    DATE_MAX_DAYS,
    DATE_MIN_DAYS,
    EXACT_DECIMALS,
    MAX_CELL_BYTES,
    PERIOD,
    PERIOD_ADVICE,
    UUID_ADVICE,
    ColumnType,
)

__all__ = [
    "PANDAS_ADVICE",
    "Failure",
    "are_dates",
    "are_finite_times",
    "cast_array",
    "check_extension_type",
    "copy_array",
    "copy_arrays",
    "longest_bytes",
    "one_array",
    "range_text",
    "shorten",
    "utf8_array",
]

Rows = npt.NDArray[np.int64]
Cast = tuple[pa.Array, "list[Failure]"]

_NAIVE_US: Final = pa.timestamp("us")
_UTC_US: Final = pa.timestamp("us", tz="UTC")
_TICKS_PER_DAY: Final = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_INT64_MAX: Final = 2**63 - 1
PANDAS_ADVICE: Final = 'pandas stores whole numbers with NULL as float64: convert them with astype("Int64"); '
"""The advice for arrays of floats in a column of integers. It does not fit single Python values."""


@dataclass(frozen=True)
class Failure:
    """Rows of one column that failed with the same error code, and one message per row."""

    rows: Rows
    code: str
    messages: Sequence[str]


def cast_array(array: pa.Array, type: ColumnType, max_cell_bytes: int = MAX_CELL_BYTES) -> Cast:
    """Cast `array` to the canonical Arrow type of `type`; also return the failed rows.

    max_cell_bytes: text and binary values with more bytes fail.
    Raises: SchemaError if the types are incompatible, InvalidArgumentError for more than 2 GiB of
    text.
    """
    if array.type.equals(type.arrow):
        rule = _CHECKS.get(type.name)
        if rule is None:
            return array, []
    else:
        check_extension_type(array.type, type)
        array = _plain(array)
        if pa.types.is_null(array.type):
            return pa.nulls(len(array), type.arrow), []
        rule = _RULES.get((_kind(array.type), _target(type)))
        if rule is None:
            raise SchemaError(_incompatible_text(array.type, type))
    result, failures = rule(array, type)
    if type.is_variable:
        result, more = _check_cells(result, max_cell_bytes)
        failures = failures + more
    return result, failures


def one_array(data: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Combine the chunks into one array. Raises: InvalidArgumentError for more than 2 GiB of text."""
    if isinstance(data, pa.Array):
        return data
    if data.num_chunks == 1:
        return data.chunk(0)
    if data.num_chunks == 0:
        return pa.array([], data.type)
    chunks = data.chunks
    if _is_encoded(data.type):
        # Chunks may have different dictionaries, and the index type may be too small for all
        # entries together.
        chunks = [_plain(chunk) for chunk in chunks]
    return _within_2_gib(lambda: pa.concat_arrays(chunks))


def copy_array(array: pa.Array) -> pa.Array:
    """Copy `array`. The result has its own memory and begins at offset 0 of its buffers."""
    # `concat_arrays` copies the rows of its arrays, but returns a single array as it is. So it gets
    # an empty one too.
    return pa.concat_arrays([array.slice(0, 0), array])


def copy_arrays(arrays: Sequence[pa.Array]) -> list[pa.Array]:
    """Copy several arrays of equal length, for a third of the cost of single copies."""
    if len(arrays) < 2:
        return [copy_array(array) for array in arrays]
    whole = pa.RecordBatch.from_arrays(arrays, names=[""] * len(arrays))
    copies: list[pa.Array] = pa.concat_batches([whole.slice(0, 0), whole]).columns
    return copies


def range_text(type: ColumnType) -> str:
    """Return a type with its range as text for a message: "int8 (-128..127)"."""
    if type.name == "date":
        return "date (0001-01-01..9999-12-31)"
    if type.name == "decimal":
        assert type.value_max is not None and type.scale is not None
        limit = Decimal(type.value_max).scaleb(-type.scale, EXACT_DECIMALS)
        return f"{type} (-{limit:f}..{limit:f})"
    if type.value_min is not None:
        return f"{type} ({type.value_min}..{type.value_max})"
    return str(type)


def shorten(text: str, limit: int = 60) -> str:
    """Return `text` for a message, with an ellipsis after `limit` characters."""
    return text if len(text) <= limit else text[:limit] + "…"


# --- plain layouts ----------------------------------------------------------------------------------


def _is_encoded(type: pa.DataType) -> bool:
    return bool(pa.types.is_dictionary(type) or pa.types.is_run_end_encoded(type))


def check_extension_type(source: pa.DataType, type: ColumnType) -> None:
    """Raise SchemaError for an Arrow extension type whose values would be wrong in the column.

    These are pandas periods in any column, and UUIDs in a text column.
    """
    name = getattr(source, "extension_name", None)
    if name == PERIOD:
        raise SchemaError(f"expected {type}, got {source}; {PERIOD_ADVICE}")
    if name == "arrow.uuid" and type.is_text:
        raise SchemaError(f"expected {type}, got {source}; {UUID_ADVICE}")


def _plain(array: pa.Array) -> pa.Array:
    """Convert, for example, a dictionary or large_string array to a plain string array.

    The rules in `_RULES` need this layout. Values are not checked.
    """
    types = pa.types
    type = array.type
    if isinstance(type, pa.BaseExtensionType):
        return _plain(array.storage)
    if types.is_dictionary(type):
        values = _plain(array.dictionary)
        return _within_2_gib(lambda: values.take(array.indices))
    if types.is_run_end_encoded(type):
        ordinals = np.arange(array.offset, array.offset + len(array))
        runs = np.searchsorted(array.run_ends.to_numpy(), ordinals, side="right")
        values = _plain(array.values)
        return _within_2_gib(lambda: values.take(pa.array(runs)))
    plain = _PLAIN_OF.get(type)
    if plain is None and types.is_fixed_size_binary(type) and not types.is_decimal(type):
        plain = pa.binary()
    if plain is None and types.is_decimal(type) and type.bit_width < 128:
        plain = pa.decimal128(type.precision, type.scale)
    if plain is None and types.is_decimal(type) and type.scale < 0:
        if type.precision - type.scale > 76:
            raise SchemaError(f"{type} has more than 76 digits; cast it to a smaller decimal type first")
        plain = pa.decimal256(type.precision - type.scale, 0)
    return array if plain is None else _within_2_gib(lambda: pc.cast(array, plain))


_PLAIN_OF: Final = {
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.float16(): pa.float32(),
}


def _within_2_gib(make: Callable[[], pa.Array]) -> pa.Array:
    try:
        made = make()
    except pa.ArrowInvalid as error:
        message = f"one column of the batch holds more than 2 GiB; write the batch in parts ({error})"
        raise InvalidArgumentError(message) from None
    return made.combine_chunks() if isinstance(made, pa.ChunkedArray) else made


# --- the table of rules -----------------------------------------------------------------------------


_KINDS: Final = {
    "bool": pa.types.is_boolean,
    "int": pa.types.is_integer,
    "float": pa.types.is_floating,
    "decimal": pa.types.is_decimal,
    "date": pa.types.is_date,
    "timestamp": pa.types.is_timestamp,
    "text": pa.types.is_string,
    "binary": pa.types.is_binary,
}


def _kind(type: pa.DataType) -> str:
    return next((kind for kind, matches in _KINDS.items() if matches(type)), str(type))


def _target(type: ColumnType) -> str:
    if type.is_integer:
        return "int"
    if type.is_floating:
        return "float"
    if type.is_text:
        return "text"
    return type.name


def _incompatible_text(source: pa.DataType, type: ColumnType) -> str:
    kind, target = _kind(source), _target(type)
    if kind == "float" and target in ("int", "decimal"):
        how = (
            f"{PANDAS_ADVICE}round and cast fractions first"
            if target == "int"
            else f"round it and cast it to {type} first, because a double has no exact decimal digits"
        )
    elif kind == "text":
        call = {"int": "int(…)", "float": "float(…)", "decimal": "decimal.Decimal(…)"}.get(target)
        how = f"parse the text first: cast it to {type}" + (f", or call {call} on each value" if call else "")
    elif kind == "int" and target == "timestamp":
        how = (
            "give the unit of the numbers, 's', 'ms', 'us' or 'ns': pyarrow.array(values, pyarrow.timestamp('s')), "
            "in pandas pd.to_datetime(values, unit='s'), in polars pl.from_epoch(values, 's'), for a single value "
            "datetime.fromtimestamp(value, UTC)"
        )
    elif kind in ("int", "decimal", "timestamp", "date", "bool", "float", "binary"):
        how = f"cast it to {type} first"
    else:
        how = "Nyala does not support this type; extract plain columns from it, or drop the column"
    return f"expected {type}, got {source}; {how}"


# --- failing rows -----------------------------------------------------------------------------------


def _fail(array: pa.Array, bad: pa.Array | npt.NDArray[np.bool_], why: str, code: str = OUT_OF_RANGE) -> Cast:
    """Set the `bad` rows to NULL and report them. Each message is the value, followed by `why`."""
    if not isinstance(bad, np.ndarray):
        bad = _mask(bad)
    rows = np.flatnonzero(bad)
    if len(rows) == 0:
        return array, []
    messages = [f"{value} {why}" for value in _shown(array, rows)]
    return pc.if_else(pa.array(bad), pa.scalar(None, array.type), array), [Failure(rows, code, messages)]


def _mask(bad: pa.Array) -> npt.NDArray[np.bool_]:
    """Return `bad` as a mask; NULL is False."""
    return np.asarray(pc.fill_null(bad, False).to_numpy(zero_copy_only=False))


def _shown(array: pa.Array, rows: Rows) -> Iterable[str]:
    """Return the values of `array` at the positions `rows` as text for messages, cut if long."""
    values = array.take(pa.array(rows))
    if pa.types.is_string(values.type):
        # Read as bytes, because the text may be invalid UTF-8.
        raw = values.view(pa.binary()).to_pylist()
        return [repr(shorten(value[:240].decode(errors="replace"))) for value in raw]
    if pa.types.is_binary(values.type):
        return [repr(value[:60]) + ("…" if len(value) > 60 else "") for value in values.to_pylist()]
    if pa.types.is_timestamp(values.type) or pa.types.is_date(values.type):
        texts: list[str] = values.cast(pa.string()).to_pylist()
        return texts
    if pa.types.is_decimal(values.type):
        return [f"{value.normalize(EXACT_DECIMALS):f}" for value in values.to_pylist()]
    return [str(value) for value in values.to_pylist()]


def _cast_again(first: Cast, rule: Callable[[pa.Array, ColumnType], Cast], type: ColumnType) -> Cast:
    """Cast the array of a first cast by `rule`. Return the new array and the failed rows of both.

    Rows that failed in the first cast are NULL in its array, so they cannot fail again.
    """
    array, failures = first
    result, more = rule(array, type)
    return result, failures + more


def _null_mask(array: pa.Array) -> npt.NDArray[np.bool_] | None:
    return None if array.null_count == 0 else array.is_null().to_numpy(zero_copy_only=False)


def _int_values(array: pa.Array) -> npt.NDArray[Any]:
    """Return the values of an integer array, with 0 for NULL."""
    if array.null_count:
        array = pc.fill_null(array, 0)
    return np.asarray(array.to_numpy(zero_copy_only=False))


def _same(array: pa.Array, type: ColumnType) -> Cast:
    return pc.cast(array, type.arrow), []


# --- numbers ----------------------------------------------------------------------------------------


def _outside(array: pa.Array, lower: int, upper: int) -> pa.Array:
    """Return a mask of the integers below `lower` or above `upper`.

    A bound may be outside the range of the array's type.
    """
    bits = array.type.bit_width
    if pa.types.is_unsigned_integer(array.type):
        source_min, source_max = 0, 2**bits - 1
    else:
        source_min, source_max = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    tests = []
    if lower > source_min:
        tests.append(pc.less(array, pa.scalar(min(lower, source_max), array.type)))
    if upper < source_max:
        tests.append(pc.greater(array, pa.scalar(max(upper, source_min), array.type)))
    return functools.reduce(pc.or_, tests) if tests else pa.array(np.zeros(len(array), bool))


def _int_to_int(array: pa.Array, type: ColumnType) -> Cast:
    try:
        return pc.cast(array, type.arrow), []
    except pa.ArrowInvalid:
        assert type.value_min is not None and type.value_max is not None
        outside = _outside(array, type.value_min, type.value_max)
        fitting, failures = _fail(array, outside, f"does not fit {range_text(type)}")
        return pc.cast(fitting, type.arrow), failures


def _int_to_float(array: pa.Array, type: ColumnType) -> Cast:
    try:
        # Arrow accepts integers within ±2^24 or ±2^53, where every integer is exact …
        return pc.cast(array, type.arrow), []
    except pa.ArrowInvalid:
        # … but some larger integers are exact too: those that a round trip does not change.
        values = _int_values(array)
        floats = values.astype(type.arrow.to_pandas_dtype()).astype(np.float64)
        # Rounding up may give 2^63 (2^64 unsigned), which is not an integer of that type.
        returns = floats < float(np.iinfo(values.dtype).max)
        exact = returns & (np.where(returns, floats, 0).astype(values.dtype) == values)
        fitting, failures = _fail(array, ~exact, f"is not exactly a {type}")
        return pc.cast(fitting, type.arrow, safe=False), failures


def _float_to_float(array: pa.Array, type: ColumnType) -> Cast:
    if array.type.bit_width <= type.arrow.bit_width:
        return pc.cast(array, type.arrow), []
    values = array.to_numpy(zero_copy_only=False)  # NULL becomes NaN, and a comparison with NaN is false
    with np.errstate(over="ignore", invalid="ignore"):
        bad = (values.astype(np.float32) != values) & (values == values)
    fitting, failures = _fail(
        array, bad, f"is not exactly a {type}; cast it to float32 first, or make the column double"
    )
    return pc.cast(fitting, type.arrow), failures


def _int_to_decimal(array: pa.Array, type: ColumnType) -> Cast:
    assert type.precision is not None and type.scale is not None
    limit = 10 ** (type.precision - type.scale) - 1
    fitting, failures = _fail(array, _outside(array, -limit, limit), f"does not fit {range_text(type)}")
    return pc.cast(pc.cast(fitting, pa.decimal128(20, 0)), type.arrow), failures


def _decimal_to_decimal(array: pa.Array, type: ColumnType) -> Cast:
    assert type.precision is not None and type.scale is not None
    source = array.type
    if source.scale < type.scale and source.precision - source.scale > type.precision - type.scale:
        # Arrow does not check this multiplication: for 340.2824 as decimal(36,36), it overflows 128
        # bits.
        fitting, failures = _decimals_within(array, type.precision - type.scale, type.scale, range_text(type))
        return pc.cast(fitting, type.arrow), failures
    try:
        # Checked even for equal types, because Arrow arrays may contain decimals of more digits
        # than their type has.
        array.validate(full=True)
        return (array if array.type.equals(type.arrow) else pc.cast(array, type.arrow)), []
    except pa.ArrowInvalid:
        fitting, failures = _decimals_within(array, type.precision - type.scale, type.scale, range_text(type))
        return pc.cast(fitting, type.arrow), failures


def _decimal_to_int(array: pa.Array, type: ColumnType) -> Cast:
    try:
        array.validate(full=True)
        return pc.cast(array, type.arrow), []
    except pa.ArrowInvalid:
        whole, failures = _decimals_within(array, 19, 0, range_text(type))
        wide = pc.cast(whole, pa.decimal128(19, 0))
        assert type.value_min is not None and type.value_max is not None
        lower, upper = (pa.scalar(Decimal(bound), wide.type) for bound in (type.value_min, type.value_max))
        outside = pc.or_(pc.less(wide, lower), pc.greater(wide, upper))
        fitting, more = _fail(wide, outside, f"does not fit {range_text(type)}")
        return pc.cast(fitting, type.arrow), failures + more


def _decimals_within(array: pa.Array, digits: int, scale: int, wanted: str) -> Cast:
    """Reject values with more than `digits` digits before the point or `scale` digits after it.

    wanted: the column type as text, for messages.
    """
    failures: list[Failure] = []
    source = array.type
    # Values with more digits than the array's own type has are invalid, so they fail too.
    digits = min(digits, source.precision - source.scale)
    limit = _unscaled(source, 10 ** (digits + source.scale) - 1)
    array, failures = _fail(array, pc.greater(pc.abs(array), limit), f"does not fit {wanted}")
    if source.scale > scale:
        if source.scale - scale >= source.precision:
            # Every digit is to be cut off, which Arrow's `round` refuses: only 0 has no fraction.
            fraction = pc.not_equal(array, _unscaled(source, 0))
        else:
            fraction = pc.not_equal(pc.round(array, ndigits=scale, round_mode="towards_zero"), array)
        array, more = _fail(array, fraction, f"has more than {scale} digits after the decimal point")
        failures += more
    return array, failures


def _unscaled(type: pa.DataType, unscaled: int) -> pa.Scalar:
    return pa.scalar(Decimal(unscaled).scaleb(-type.scale, EXACT_DECIMALS), type)


# Up to this number of values a Python loop is faster. For one value, NumPy takes fifty times as long.
_FEW: Final = 16


# --- dates and times --------------------------------------------------------------------------------


def are_dates(array: pa.Array) -> bool:
    """Whether all days of a date32 array are within the years 1 to 9999."""
    if len(array) <= _FEW:
        for value in array:
            day = value.value
            if day is not None and not DATE_MIN_DAYS <= day <= DATE_MAX_DAYS:
                return False
        return True
    days = array.view(pa.int32())
    if array.null_count:
        days = days.drop_null()
    values = days.to_numpy()
    return not len(values) or bool(values.min() >= DATE_MIN_DAYS and values.max() <= DATE_MAX_DAYS)


def _date_to_date(array: pa.Array, type: ColumnType) -> Cast:
    if pa.types.is_date64(array.type):
        return _timestamp_to_date(array.view(pa.int64()).view(pa.timestamp("ms")), type)
    if are_dates(array):
        return array, []
    assert type.value_min is not None and type.value_max is not None
    outside = _outside(array.view(pa.int32()), type.value_min, type.value_max)
    return _fail(array, outside, f"does not fit {range_text(type)}")


def _int_to_date(array: pa.Array, type: ColumnType) -> Cast:
    assert type.value_min is not None and type.value_max is not None
    outside = _outside(array, type.value_min, type.value_max)
    fitting, failures = _fail(array, outside, f"days since 1970-01-01 does not fit {range_text(type)}")
    return pc.cast(fitting, pa.int32()).view(pa.date32()), failures


def _timestamp_to_date(array: pa.Array, type: ColumnType) -> Cast:
    array = _without_zone(array)
    ticks = _int_values(array.view(pa.int64()))
    days, rest = np.divmod(ticks, _TICKS_PER_DAY[array.type.unit])
    array, failures = _fail(array, rest != 0, "is not midnight in UTC, so it is not a date")
    assert type.value_min is not None and type.value_max is not None
    outside = (days < type.value_min) | (days > type.value_max)
    array, more = _fail(array, outside & (rest == 0), f"does not fit {range_text(type)}")
    days = np.where(outside, 0, days).astype(np.int32)
    return pa.array(days, mask=_null_mask(array)).view(pa.date32()), failures + more


def _timestamp_to_timestamp(array: pa.Array, type: ColumnType) -> Cast:
    naive = _without_zone(array)
    unit = naive.type.unit
    try:
        return _finite_times(pc.cast(naive, _NAIVE_US).view(_UTC_US))
    except pa.ArrowInvalid:
        ticks = naive.view(pa.int64())
        if unit == "ns":
            bad: Any = _int_values(ticks) % 1000 != 0
            why = "is not a whole number of microseconds; round it first"
        else:
            limit = _INT64_MAX // {"s": 1_000_000, "ms": 1_000}[unit]
            bad, why = _outside(ticks, -limit, limit), "is beyond 64 bits of microseconds"
        fitting, failures = _fail(naive, bad, why)
        return pc.cast(fitting, _NAIVE_US).view(_UTC_US), failures


def are_finite_times(array: pa.Array) -> bool:
    """Whether all timestamps are finite: not DuckDB's `infinity` (2^63 - 1) or its negative."""
    ticks = array.view(pa.int64())
    if len(array) <= _FEW:
        return all(value is None or abs(value) != _INT64_MAX for value in ticks.to_pylist())
    ends = pc.min_max(ticks)
    return bool(ends["min"].as_py() != -_INT64_MAX and ends["max"].as_py() != _INT64_MAX)


def _finite_times(array: pa.Array) -> Cast:
    """Replace DuckDB's `infinity` and `-infinity` by NULL, and report these rows as failed.

    Other programs would read these timestamps as distant times.
    """
    if are_finite_times(array):
        return array, []
    ticks = _int_values(array.view(pa.int64()))
    ups = ticks == _INT64_MAX
    endless = ups | (ticks == -_INT64_MAX)
    rows = np.flatnonzero(endless)
    messages = [
        f"{'' if up else '-'}infinity is not supported as a timestamp; use NULL or a distant date"
        for up in ups[rows].tolist()
    ]
    kept = pc.if_else(pa.array(endless), pa.scalar(None, array.type), array)
    return kept, [Failure(rows, OUT_OF_RANGE, messages)]


def _without_zone(array: pa.Array) -> pa.Array:
    """Return the same moments in a timestamp type without a zone, which means UTC."""
    if array.type.tz is None:
        return array
    # The numbers stay, because Arrow counts from 1970 in UTC for every zone. A cast would fail for
    # a zone that this machine does not know.
    return array.view(pa.int64()).view(pa.timestamp(array.type.unit))


def _date_to_timestamp(array: pa.Array, type: ColumnType) -> Cast:
    if pa.types.is_date64(array.type):
        return _timestamp_to_timestamp(array.view(pa.int64()).view(pa.timestamp("ms")), type)
    try:
        return pc.cast(array, _NAIVE_US).view(_UTC_US), []
    except pa.ArrowInvalid:
        limit = _INT64_MAX // _TICKS_PER_DAY["us"]
        outside = _outside(array.view(pa.int32()), -limit, limit)
        fitting, failures = _fail(array, outside, "is beyond 64 bits of microseconds")
        return pc.cast(fitting, _NAIVE_US).view(_UTC_US), failures


# These patterns match exactly the texts that `pc.cast` accepts. `pc.cast` itself only says that
# some row is wrong.
_CLOCK: Final = r"[ T](?:[01]\d|2[0-3])(?::[0-5]\d(?::[0-5]\d(?:\.\d{1,6}0*)?)?)?"
_ZONE: Final = r"(?:Z|[+-](?:[01]\d|2[0-3])(?::?[0-5]\d)?)"
_DAY: Final = (
    r"(?:\d{4}-(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|\d{4}-(?:0[469]|11)-(?:0[1-9]|[12]\d|30)"
    r"|\d{4}-02-(?:0[1-9]|1\d|2[0-8])"
    r"|(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
)
_ISO_TIME: Final = rf"^{_DAY}(?:{_CLOCK}{_ZONE}?)?$"
_ZONED: Final = rf"^.{{10}}{_CLOCK}{_ZONE}$"
_LONG_FRACTION: Final = r"(\.\d{6})0+"


def _text_to_timestamp(array: pa.Array, type: ColumnType) -> Cast:
    # Most batches have zones in all texts or in none. So both formats are first tried on the whole
    # batch.
    for written in (_NAIVE_US, _UTC_US):
        try:
            return pc.cast(array, written).view(_UTC_US), []
        except pa.ArrowInvalid:
            continue
    array, failures = utf8_array(array)
    bad = pc.invert(pc.match_substring_regex(array, _ISO_TIME))
    array, more = _fail(array, bad, "is not an ISO date or time such as 2014-01-31 or 2014-01-31T12:30:00.5Z")
    array = pc.replace_substring_regex(array, _LONG_FRACTION, r"\1")
    zoned = pc.match_substring_regex(array, _ZONED)
    zone = pc.if_else(zoned, "", pc.if_else(pc.equal(pc.binary_length(array), 10), "T00Z", "Z"))
    return pc.cast(pc.binary_join_element_wise(array, zone, ""), _UTC_US), failures + more


def _text_to_date(array: pa.Array, type: ColumnType) -> Cast:
    try:
        dates = pc.cast(array, pa.date32())
    except pa.ArrowInvalid:
        return _cast_again(_text_to_timestamp(array, type), _timestamp_to_date, type)
    return _date_to_date(dates, type)  # `_date_to_date` rejects the year 0000, which Arrow accepts


# --- text and binary --------------------------------------------------------------------------------


def _to_text(array: pa.Array, type: ColumnType) -> Cast:
    return _cast_again(utf8_array(array), _truncate, type)


def utf8_array(array: pa.Array) -> Cast:
    """Convert a string or binary array to a string array. Rows that are not UTF-8 fail."""
    try:
        if pa.types.is_binary(array.type):
            return pc.cast(array, pa.string()), []
        array.validate(full=True)
        return array, []
    except pa.ArrowInvalid:
        raw = array.view(pa.binary()) if pa.types.is_string(array.type) else array
        bad = np.zeros(len(raw), bool)
        bad[list(_invalid_utf8_rows(raw, 0))] = True
        valid, failures = _fail(raw, bad, "is not valid UTF-8", INVALID_UTF8)
        return pc.cast(valid, pa.string()), failures


def _invalid_utf8_rows(array: pa.Array, first: int) -> Iterable[int]:
    """Yield the positions of the rows that are not UTF-8. `first` is the position of the first row.

    Arrow only says whether a whole array is valid, so the function halves invalid arrays again and
    again.
    """
    try:
        pc.cast(array, pa.string())
    except pa.ArrowInvalid:
        half = len(array) // 2
        if half == 0:
            yield first
        else:
            yield from _invalid_utf8_rows(array.slice(0, half), first)
            yield from _invalid_utf8_rows(array.slice(half), first + half)


def _truncate(array: pa.Array, type: ColumnType) -> Cast:
    """Truncate text to the length of a varchar column."""
    if type.length is not None and longest_bytes(array, type.length) > type.length:
        array = pc.utf8_slice_codeunits(array, 0, type.length)
    return array, []


def _to_binary(array: pa.Array, type: ColumnType) -> Cast:
    return pc.cast(array, pa.binary()), []


def _check_cells(array: pa.Array, limit: int) -> Cast:
    if longest_bytes(array, limit) <= limit:
        return array, []
    sizes = pc.fill_null(pc.binary_length(array), 0).to_numpy(zero_copy_only=False)
    bad = sizes > limit
    result, _ = _fail(array, bad, "", VALUE_TOO_LARGE)
    rows = np.flatnonzero(bad)
    messages = [
        f"the value has {size} bytes, more than the limit of {limit} per cell (max_cell_bytes)"
        for size in sizes[rows]
    ]
    return result, [Failure(rows, VALUE_TOO_LARGE, messages)]


def longest_bytes(array: pa.Array, enough: int) -> int:
    """Return an upper bound for the size of the longest value, in bytes.

    The bound is the total size of all values, which is cheap, if this is at most `enough`.
    Otherwise it is the exact size of the longest value.
    """
    offsets = array.buffers()[1]
    if offsets is None or len(array) == 0:
        return 0
    ends = np.frombuffer(offsets, np.int32, len(array) + 1, array.offset * 4)
    total = int(ends[-1]) - int(ends[0])
    return total if total <= enough else int(np.diff(ends).max())


_RULES: Final[dict[tuple[str, str], Callable[[pa.Array, ColumnType], Cast]]] = {
    ("bool", "bool"): _same,
    ("int", "int"): _int_to_int,
    ("int", "float"): _int_to_float,
    ("int", "decimal"): _int_to_decimal,
    ("int", "date"): _int_to_date,
    ("float", "float"): _float_to_float,
    ("decimal", "int"): _decimal_to_int,
    ("decimal", "decimal"): _decimal_to_decimal,
    ("date", "date"): _date_to_date,
    ("date", "timestamp"): _date_to_timestamp,
    ("timestamp", "date"): _timestamp_to_date,
    ("timestamp", "timestamp"): _timestamp_to_timestamp,
    ("text", "date"): _text_to_date,
    ("text", "timestamp"): _text_to_timestamp,
    ("text", "text"): _to_text,
    ("text", "binary"): _to_binary,
    ("binary", "text"): _to_text,
    ("binary", "binary"): _to_binary,
}
# The checks of arrays that already have the canonical type, by the name of the type.
_CHECKS: Final[dict[str, Callable[[pa.Array, ColumnType], Cast]]] = {
    "decimal": _decimal_to_decimal,
    "date": _date_to_date,
    "timestamp": _timestamp_to_timestamp,
    "string": _to_text,
    "varchar": _to_text,
    "binary": _to_binary,
}
