"""The functions of SQL expressions, and CAST.

`FUNCTIONS` has an entry per function name: how many arguments the function takes, and a Python
function that checks their types and builds the computed value (`nyala.schema.expressions.values`).
docs/how-to/expressions.md describes all functions, and a test compares it with this table. Results
equal those of DuckDB, except where that page says so.
"""

from __future__ import annotations

import decimal
import functools
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from nyala import compute as pc
from nyala.errors import InvalidArgumentError, SchemaError
from nyala.schema.arrow_values import validity
from nyala.schema.conversion.array_cast import cast_array
from nyala.schema.expressions.values import (
    DOUBLE,
    INT,
    NOT_CAST,
    OVERFLOW,
    TIMESTAMP,
    BoundCompareValues,
    CaseValue,
    Checked,
    Coalesce,
    Computed,
    ConstantValue,
    GreatestOrLeast,
    Value,
    arithmetic,
    cast_to,
    is_decimal,
    is_number,
    number_values,
    to_double,
    unify,
    with_nulls_of,
)
from nyala.schema.types import ColumnType, parse_type

__all__ = ["FUNCTIONS", "Function", "build_cast", "concatenation", "negation"]

_STRING: Final = pa.string()
_BINARY: Final = pa.binary()
_BOOL: Final = pa.bool_()
_DATE: Final = pa.date32()
_DIGITS_MAX: Final = 38
# Rounds 0.5 away from zero, as SQL does. The default of Python and Arrow rounds to the even
# neighbour.
_HALF: Final = "half_towards_infinity"


class Function(NamedTuple):
    """One SQL function: its name, and its least and greatest number of arguments.

    `build` takes the arguments, and returns a `Value` that computes the function.
    """

    name: str
    least: int
    most: int
    build: Callable[..., Value]


FUNCTIONS: Final[dict[str, Function]] = {}


def _add(names: str, least: int, most: int, build: Callable[..., Value]) -> None:
    """Register a function.

    names: its name, and then its aliases, separated by spaces.
    least, most: how many arguments it takes.
    """
    first, *_ = names.split()
    for name in names.split():
        FUNCTIONS[name] = Function(first, least, most, build)


# --- arguments --------------------------------------------------------------------------------------


def _check_argument(name: str, value: Value, wanted: str, *types: pa.DataType) -> None:
    """Raise SchemaError if an argument of function `name` has none of the types.

    Without types, the argument must be a number. `wanted` describes the types in the message.
    """
    if value.is_null or (value.type in types if types else is_number(value)):
        return
    raise SchemaError(f"{name}() expects {wanted}, got {value.kind}")


def _constant(name: str, value: Value, wanted: str, type: pa.DataType) -> Any:
    """Return the Python value of an argument that must be a constant of the type.

    wanted: describes the constant in the message of the SchemaError.
    """
    found = value.scalar.as_py() if isinstance(value, ConstantValue) and value.type == type else None
    if found is None:
        raise SchemaError(f"{name}() expects {wanted} as a constant, not as a column or an expression")
    return found


def _of_text(
    name: str, function: Callable[[pa.Array], pa.Array], type: pa.DataType = _STRING
) -> Callable[..., Value]:
    def build(value: Value) -> Value:
        _check_argument(name, value, "text", _STRING)
        return Computed(function, type, cast_to(value, _STRING))

    return build


def _of_double(name: str, function: Any) -> Callable[..., Value]:
    def computed(array: pa.Array) -> pa.Array:
        with np.errstate(all="ignore"):
            return with_nulls_of(function(number_values(array)), array)

    def build(value: Value) -> Value:
        _check_argument(name, value, "a number")
        return Computed(computed, DOUBLE, cast_to(value, DOUBLE))

    return build


# --- text -------------------------------------------------------------------------------------------


def concatenation(left: Value, right: Value) -> Value:
    """Build `a || b` for text or binary. The result is NULL if an operand is NULL."""
    for value in (left, right):
        if value.type not in (_STRING, _BINARY) and not value.is_null:
            raise SchemaError(f"|| expects text or binary, got {value.kind}; write CAST(… AS string)")
    types = {value.type for value in (left, right) if not value.is_null}
    if len(types) > 1:
        raise SchemaError("|| cannot join text and binary; cast one of them")
    if not types:
        return left
    (type,) = types
    nothing = pa.scalar("" if type == _STRING else b"", type)
    return Computed(
        lambda a, b: pc.binary_join_element_wise(a, b, nothing),
        type,
        cast_to(left, type),
        cast_to(right, type),
    )


def _concat(*parts: Value) -> Value:
    empty = ConstantValue(pa.scalar(""))
    for part in parts:
        _check_argument("concat", part, "text", _STRING)
    texts: list[Value] = [Coalesce((cast_to(part, _STRING), empty)) for part in parts]
    return functools.reduce(concatenation, texts)


def _length(value: Value) -> Value:
    _check_argument("length", value, "text or binary", _STRING, _BINARY)
    return Computed(pc.binary_length if value.type == _BINARY else pc.utf8_length, INT, _text_if_null(value))


def _text_if_null(value: Value) -> Value:
    return cast_to(value, _STRING) if value.is_null else value


def _trim(name: str, function: Callable[..., pa.Array]) -> Callable[..., Value]:
    def build(value: Value, characters: Value | None = None) -> Value:
        _check_argument(name, value, "text", _STRING)
        these = " " if characters is None else _constant(name, characters, "characters", _STRING)
        return Computed(
            lambda array: function(array, these) if these else array, _STRING, cast_to(value, _STRING)
        )

    return build


def _substr(value: Value, start: Value, length: Value | None = None) -> Value:
    _check_argument("substr", value, "text", _STRING)
    first = _constant("substr", start, "a start", INT)
    count = None if length is None else _constant("substr", length, "a length", INT)
    if count is not None and count < 0:
        raise InvalidArgumentError("substr(): the length must be 0 or more")
    return Computed(lambda array: _slice(array, first, count), _STRING, cast_to(value, _STRING))


def _slice(array: pa.Array, first: int, count: int | None) -> pa.Array:
    """Return `count` characters of each text, from the character `first` on.

    Characters count from 1, or from the end if `first` is negative.
    Positions before the start of the text count too: substr('abc', -5, 3) is 'a'.
    """
    if first >= 0:
        stop = None if count is None else max(0, first - 1 + count)
        return pc.utf8_slice_codeunits(array, max(0, first - 1), stop)
    if count is None:
        return pc.utf8_slice_codeunits(array, first)
    # From the end: first cut the end of the text off, and then take `count` characters of it.
    short = pc.less(pc.utf8_length(array), -first)
    tail = pc.utf8_slice_codeunits(array, first)
    missing = pc.add(pc.utf8_length(array), first)  # negative if the text is shorter
    if not pc.any(short).as_py():
        return pc.utf8_slice_codeunits(tail, 0, count)
    parts = pc.utf8_slice_codeunits(tail, 0, count)
    for lack in pc.unique(missing.filter(short.fill_null(False))).to_pylist():
        cut = pc.utf8_slice_codeunits(tail, 0, max(0, count + lack))
        parts = pc.if_else(pc.equal(missing, lack), cut, parts)
    return parts


def _side(name: str, function: Callable[[pa.Array, int], pa.Array]) -> Callable[..., Value]:
    def build(value: Value, count: Value) -> Value:
        _check_argument(name, value, "text", _STRING)
        number = _constant(name, count, "a number of characters", INT)
        if number < 0:
            raise InvalidArgumentError(f"{name}(): the number of characters must be 0 or more")
        return Computed(lambda array: function(array, number), _STRING, cast_to(value, _STRING))

    return build


def _right(array: pa.Array, count: int) -> pa.Array:
    return pc.utf8_slice_codeunits(array, -count if count else 0, None if count else 0)


def _replace(value: Value, old: Value, new: Value) -> Value:
    _check_argument("replace", value, "text", _STRING)
    pattern = _constant("replace", old, "a text", _STRING)
    replacement = _constant("replace", new, "a text", _STRING)
    return Computed(
        lambda array: pc.replace_substring(array, pattern, replacement) if pattern else array,
        _STRING,
        cast_to(value, _STRING),
    )


def _test(name: str, function: Callable[..., pa.Array]) -> Callable[..., Value]:
    def build(value: Value, part: Value) -> Value:
        _check_argument(name, value, "text", _STRING)
        text = _constant(name, part, "a text", _STRING)
        return Computed(lambda array: function(array, text), _BOOL, cast_to(value, _STRING))

    return build


# --- numbers ----------------------------------------------------------------------------------------


def negation(value: Value) -> Value:
    if value.type == INT:
        return arithmetic("-", ConstantValue(pa.scalar(0, INT)), value)
    if not is_number(value) and not value.is_null:
        raise SchemaError(f"the operator '-' expects a number, got {value.kind}")
    return value if value.is_null else Computed(pc.negate, value.type, value)


def _abs(value: Value) -> Value:
    _check_argument("abs", value, "a number")
    if value.type != INT:
        return value if value.is_null else Computed(pc.abs, value.type, value)

    def of_integers(array: pa.Array) -> Checked:
        return Checked(pc.abs(array), number_values(array) == np.iinfo(np.int64).min, OVERFLOW)

    return Computed(of_integers, INT, value, can_fail=True)


def _rounding(name: str, function: Callable[[pa.Array, int], pa.Array]) -> Callable[..., Value]:
    def build(value: Value, digits: Value | None = None) -> Value:
        _check_argument(name, value, "a number")
        count = 0 if digits is None else _constant(name, digits, "a number of digits", INT)
        if not 0 <= count <= _DIGITS_MAX:
            raise InvalidArgumentError(f"{name}(): the number of digits must be 0 to {_DIGITS_MAX}")
        if value.is_null or value.type == INT or (is_decimal(value.type) and count >= value.type.scale):
            return value  # it has no more digits than `count` anyway
        if value.type == DOUBLE:
            return Computed(lambda array: function(array, count), DOUBLE, value)
        # Rounding 9.9 gives 10: one more digit before the point.
        precision = min(value.type.precision + 1, 76) - value.type.scale + count
        return Computed(
            lambda array: function(_with_room(array), count), pa.decimal256(precision, count), value
        )

    return build


def _with_room(array: pa.Array) -> pa.Array:
    """Cast to a decimal type with one more digit before the point, for values that round up."""
    return array.cast(pa.decimal256(min(array.type.precision + 1, 76), array.type.scale))


def _sign(value: Value) -> Value:
    _check_argument("sign", value, "a number")
    # The sign of NaN is NaN, so the sign of a double is a double.
    return (
        value
        if value.is_null
        else Computed(lambda array: pc.sign(to_double(array)), DOUBLE if value.type == DOUBLE else INT, value)
    )


def _nullif(value: Value, other: Value) -> Value:
    left, right = unify((value, other), "nullif()")
    if left.is_null or right.is_null:
        return value
    return CaseValue(
        [BoundCompareValues(left, "=", right, "nullif()")], [ConstantValue(pa.scalar(None, pa.null()))], value
    )


# --- times ------------------------------------------------------------------------------------------

_UNITS: Final = ("year", "quarter", "month", "week", "day", "hour", "minute", "second")


def _field(
    name: str, function: Callable[[pa.Array], pa.Array], *, of_day: bool = False
) -> Callable[..., Value]:
    def build(value: Value) -> Value:
        _check_argument(name, value, "a date or a timestamp", _DATE, TIMESTAMP)
        return Computed(function, INT, cast_to(value, TIMESTAMP) if of_day or value.is_null else value)

    return build


def _date_trunc(unit: Value, value: Value) -> Value:
    word = _constant("date_trunc", unit, "a unit", _STRING).lower()
    if word not in _UNITS:
        raise InvalidArgumentError(
            f"date_trunc() expects one of the units {', '.join(_UNITS)}, got {word[:40]!r}"
        )
    _check_argument("date_trunc", value, "a date or a timestamp", _DATE, TIMESTAMP)

    def truncated(array: pa.Array) -> pa.Array:
        plain = array.view(pa.int64()).view(pa.timestamp("us"))
        return pc.floor_temporal(plain, 1, word, week_starts_monday=True).view(pa.int64()).view(TIMESTAMP)

    return Computed(truncated, TIMESTAMP, cast_to(value, TIMESTAMP))


# --- CAST -------------------------------------------------------------------------------------------

_WHOLE: Final = r"^\s*[+-]?[0-9]{1,38}\s*$"
_NUMBER: Final = r"^\s*[+-]?([0-9]{1,38}(\.[0-9]{0,37})?|\.[0-9]{1,37})\s*$"
_FLOAT: Final = r"^\s*[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\s*$"


def build_cast(value: Value, spec: str) -> Value:
    """Build CAST(value AS type). A row fails if the type cannot hold its value."""
    type = parse_type(spec)
    wanted = ColumnType("string") if type.is_text else type
    target = INT if wanted.is_integer else DOUBLE if wanted.is_floating else wanted.arrow
    if wanted.name == "decimal":
        target = pa.decimal256(wanted.precision, wanted.scale)
    if value.is_null:
        return ConstantValue(pa.scalar(None, target))
    function = _cast_function(value, wanted)
    if function is None:
        raise SchemaError(f"cannot cast {value.kind} to {wanted}")
    return Computed(function, target, value, can_fail=True)


def _cast_function(value: Value, wanted: ColumnType) -> Callable[[pa.Array], pa.Array | Checked] | None:
    source_type = value.type
    if wanted.is_integer:
        if source_type == _STRING:
            return lambda array: _to_integer(_parsed(array, _WHOLE, pa.decimal256(39, 0)), wanted)
        if source_type == _BOOL:
            return lambda array: array.cast(INT)
        return (lambda array: _to_integer(array, wanted)) if is_number(value) else None
    if wanted.name == "decimal":
        if source_type == _STRING:
            return lambda array: _to_decimal(_parsed(array, _NUMBER, pa.decimal256(76, 37)), wanted)
        return (lambda array: _to_decimal(array, wanted)) if is_number(value) else None
    if wanted.is_floating:
        if source_type == _STRING:
            return lambda array: _narrowed(_parsed_floats(array), wanted)
        return (lambda array: _narrowed(to_double(array), wanted)) if is_number(value) else None
    if wanted.name == "bool":
        if source_type == _STRING:
            return _to_bool
        if source_type == _BOOL:
            return lambda array: array
        return (lambda array: pc.not_equal(to_double(array), 0.0)) if is_number(value) else None
    if wanted.name == "string":
        return None if source_type == _BINARY else _to_text
    if wanted.name == "binary":
        return (lambda array: array.cast(_BINARY)) if source_type in (_STRING, _BINARY) else None
    if source_type == TIMESTAMP and wanted.name == "date":
        return lambda array: pc.floor_temporal(array.view(INT).view(pa.timestamp("us")), 1, "day").cast(_DATE)
    if source_type in (_STRING, _DATE, TIMESTAMP):
        return lambda array: _cast_as_insert(array, wanted)
    return None


def _parsed(array: pa.Array, pattern: str, type: pa.DataType) -> Checked:
    good = pc.match_substring_regex(array, pattern).fill_null(False)
    texts = pc.utf8_trim_whitespace(pc.if_else(good, array, pa.scalar(None, _STRING)))
    return Checked(texts.cast(type), ~good.to_numpy(zero_copy_only=False), NOT_CAST)


def _parsed_floats(array: pa.Array) -> Checked:
    text = pc.utf8_lower(pc.utf8_trim_whitespace(array))
    special = {"nan": "nan", "inf": "inf", "infinity": "inf", "-inf": "-inf", "-infinity": "-inf"}
    known = pc.is_in(text, value_set=pa.array(list(special)))
    good = pc.or_(pc.match_substring_regex(text, _FLOAT), known).fill_null(False)
    plain = pc.replace_substring_regex(pc.replace_substring(text, "infinity", "inf"), r"^\+", "")
    return Checked(
        pc.if_else(good, plain, pa.scalar(None, _STRING)).cast(DOUBLE),
        ~good.to_numpy(zero_copy_only=False),
        NOT_CAST,
    )


def _unpacked(given: pa.Array | Checked) -> tuple[pa.Array, Any]:
    return (given.array, given.bad) if isinstance(given, Checked) else (given, np.zeros(len(given), np.bool_))


def _valid(array: pa.Array) -> Any:
    valid = validity(array)
    return np.ones(len(array), np.bool_) if valid is None else valid


def _checked(array: pa.Array, bad: Any, lost: Any) -> Checked:
    """Return the cast values in `array`, together with the mask of all failed rows.

    bad, lost: masks of the rows that failed before the cast, and of the rows whose value the new
    type cannot represent. Both count as failed.
    A failed row that is NULL gets 0, because the result must not be NULL in failed rows.
    """
    bad = bad | lost
    filler = pa.scalar(decimal.Decimal(0) if is_decimal(array.type) else 0, array.type)
    if bad.any() and array.null_count:
        array = pc.if_else(pa.array(bad), filler, array)
    return Checked(array, bad, NOT_CAST)


def _to_integer(given: pa.Array | Checked, wanted: ColumnType) -> Checked:
    source, bad = _unpacked(given)
    assert wanted.value_min is not None and wanted.value_max is not None
    valid = _valid(source)
    if source.type == INT:
        numbers = number_values(source)
    elif source.type == DOUBLE:
        values = np.rint(np.where(valid, number_values(source), 0.0))
        lost = ~((values >= float(wanted.value_min)) & (values < float(wanted.value_max + 1)))
        return _checked(
            pa.array(np.where(lost, 0.0, values).astype(np.int64), mask=~valid & ~lost),
            bad,
            lost & valid,
        )
    else:
        rounded = pc.round(_with_room(source), 0, round_mode=_HALF) if source.type.scale else source
        low, high = (
            pa.scalar(decimal.Decimal(bound), pa.decimal256(19, 0))
            for bound in (wanted.value_min, wanted.value_max)
        )
        wide = rounded.cast(pa.decimal256(76, source.type.scale)) if source.type.precision < 76 else rounded
        inside = pc.and_(pc.greater_equal(wide, low), pc.less_equal(wide, high)).fill_null(False)
        kept = pc.if_else(inside, wide, pa.scalar(None, wide.type))
        lost = valid & ~inside.to_numpy(zero_copy_only=False)
        return _checked(kept.cast(pa.decimal256(76, 0)).cast(INT), bad, lost)
    lost = valid & ~((numbers >= wanted.value_min) & (numbers <= wanted.value_max))
    return _checked(source, bad, lost)


def _to_decimal(given: pa.Array | Checked, wanted: ColumnType) -> Checked:
    source, bad = _unpacked(given)
    assert wanted.precision is not None and wanted.scale is not None
    target = pa.decimal256(wanted.precision, wanted.scale)
    valid = _valid(source)
    if source.type == DOUBLE:
        values = number_values(source)
        with np.errstate(all="ignore"):
            fits = np.abs(values) < 10.0 ** (wanted.precision - wanted.scale)
        wide = pa.array(np.where(fits & valid, values, 0.0)).cast(pa.decimal256(76, wanted.scale))
    else:
        if source.type == INT:
            source = source.cast(pa.decimal256(19, 0))
        wide = source
        if source.type.scale > wanted.scale:
            wide = pc.round(_with_room(source), wanted.scale, round_mode=_HALF)
        fits = np.ones(len(source), np.bool_)
    digits = wanted.precision - wanted.scale
    bound = pa.scalar(decimal.Decimal(10**digits), pa.decimal256(digits + 1, 0))
    inside = pc.less(pc.abs(wide), bound).fill_null(False).to_numpy(zero_copy_only=False)
    lost = valid & ~(fits & inside)
    kept = pc.if_else(pa.array(valid & ~lost), wide, pa.scalar(None, wide.type))
    return _checked(kept.cast(target), bad, lost)


def _narrowed(given: pa.Array | Checked, wanted: ColumnType) -> Checked:
    """Round doubles to floats if the type is float. A finite value that becomes infinite fails."""
    array, bad = _unpacked(given)
    if wanted.name == "double":
        return _checked(array, bad, np.zeros(len(array), np.bool_))
    values = number_values(array)
    with np.errstate(over="ignore", under="ignore"):
        floats = values.astype(np.float32).astype(np.float64)
    lost = np.isinf(floats) & ~np.isinf(values)
    return _checked(with_nulls_of(floats, array), bad, lost)


def _to_bool(array: pa.Array) -> Checked:
    text = pc.utf8_lower(pc.utf8_trim_whitespace(array))
    yes = pc.is_in(text, value_set=pa.array(["true", "t", "1", "yes", "y"]))
    no = pc.is_in(text, value_set=pa.array(["false", "f", "0", "no", "n"]))
    known = pc.or_(yes, no).to_numpy(zero_copy_only=False)
    return Checked(pc.if_else(array.is_null(), pa.scalar(None, _BOOL), yes), ~known & _valid(array), NOT_CAST)


def _to_text(array: pa.Array) -> pa.Array:
    if array.type == _STRING:
        return array
    text = array.cast(_STRING)
    if array.type == DOUBLE:
        return pc.replace_substring_regex(text, r"^(-?[0-9]+)$", r"\1.0")
    if array.type == TIMESTAMP:
        return pc.replace_substring_regex(pc.replace_substring_regex(text, r"Z$", ""), r"\.?0*$", "")
    return text


def _cast_as_insert(array: pa.Array, wanted: ColumnType) -> Checked:
    """Cast by the rules for the data of inserts (`cast_array`)."""
    result, failures = cast_array(array, wanted)
    bad = np.zeros(len(array), np.bool_)
    for failure in failures:
        bad[failure.rows] = True
    if bad.any():
        zero = pa.scalar(0, INT if wanted.name == "timestamp" else pa.int32()).cast(wanted.arrow)
        result = pc.if_else(pa.array(bad), zero, result)
    return Checked(result, bad, NOT_CAST)


# --- the table of functions -------------------------------------------------------------------------

_MANY: Final = 300
_add("lower lcase", 1, 1, _of_text("lower", pc.utf8_lower))
_add("upper ucase", 1, 1, _of_text("upper", pc.utf8_upper))
_add("length len char_length", 1, 1, _length)
_add("trim", 1, 2, _trim("trim", pc.utf8_trim))
_add("ltrim", 1, 2, _trim("ltrim", pc.utf8_ltrim))
_add("rtrim", 1, 2, _trim("rtrim", pc.utf8_rtrim))
_add("substr substring", 2, 3, _substr)
_add("left", 2, 2, _side("left", lambda array, count: pc.utf8_slice_codeunits(array, 0, count)))
_add("right", 2, 2, _side("right", _right))
_add("replace", 3, 3, _replace)
_add("concat", 1, _MANY, _concat)
_add("starts_with prefix", 2, 2, _test("starts_with", pc.starts_with))
_add("ends_with suffix", 2, 2, _test("ends_with", pc.ends_with))
_add("contains", 2, 2, _test("contains", pc.match_substring))
_add("abs", 1, 1, _abs)
_add("round", 1, 2, _rounding("round", lambda array, digits: pc.round(array, digits, round_mode=_HALF)))
_add("floor", 1, 1, _rounding("floor", lambda array, _: pc.floor(array)))
_add("ceil ceiling", 1, 1, _rounding("ceil", lambda array, _: pc.ceil(array)))
_add("trunc", 1, 1, _rounding("trunc", lambda array, _: pc.trunc(array)))
_add("sign", 1, 1, _sign)
_add("sqrt", 1, 1, _of_double("sqrt", np.sqrt))
_add("exp", 1, 1, _of_double("exp", np.exp))
_add("ln", 1, 1, _of_double("ln", np.log))
_add("log10 log", 1, 1, _of_double("log10", np.log10))
_add("power pow", 2, 2, functools.partial(arithmetic, "power"))
_add("mod", 2, 2, functools.partial(arithmetic, "%"))
_add("coalesce ifnull", 1, _MANY, lambda *parts: Coalesce(parts))
_add("nullif", 2, 2, _nullif)
_add("greatest", 1, _MANY, lambda *parts: GreatestOrLeast(">", parts, "greatest"))
_add("least", 1, _MANY, lambda *parts: GreatestOrLeast("<", parts, "least"))
_add("year", 1, 1, _field("year", pc.year))
_add("quarter", 1, 1, _field("quarter", pc.quarter))
_add("month", 1, 1, _field("month", pc.month))
_add("week", 1, 1, _field("week", pc.iso_week))
_add("day", 1, 1, _field("day", pc.day))
_add(
    "dayofweek",
    1,
    1,
    _field("dayofweek", functools.partial(pc.day_of_week, count_from_zero=True, week_start=7)),
)
_add("dayofyear", 1, 1, _field("dayofyear", pc.day_of_year))
_add("hour", 1, 1, _field("hour", pc.hour, of_day=True))
_add("minute", 1, 1, _field("minute", pc.minute, of_day=True))
_add("second", 1, 1, _field("second", pc.second, of_day=True))
_add("date_trunc", 2, 2, _date_trunc)
