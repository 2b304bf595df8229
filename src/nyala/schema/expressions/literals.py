"""Converts literals, the constants of conditions, to values of the columns that they are compared
with.

There are two steps, because a condition is built before its table is known:
    to_literal       converts a user's Python or NumPy value to one of the `Literal` types
    ..._of_literal   convert a Literal to a canonical value of a column (`nyala.schema.types`)

A column may be compared with a literal that it cannot hold, such as an integer column with 2.5.

- Integer, date, timestamp and decimal columns: `floor_of_literal` returns the greatest value that
  is not above the literal, and whether the two are equal. This value may be outside the range of
  the type.
- Float and double columns: the nearest value of the type, as in DuckDB. 1e39 does not become
  infinity in a float column: it is greater than every finite float and less than infinity.
- Date and timestamp columns accept ISO text, dates and datetimes; without a zone they are in UTC. A
  timestamp column also accepts a number of microseconds since 1970. A date column accepts no
  number, because a mistake such as 20130101 would silently select no row.
- String and varchar columns accept text, which is not truncated to the length of a varchar.
- Binary columns accept bytes, and text as its UTF-8 bytes.

Source: docs/how-to/expressions.md; SQL:2016 part 2, 8.2 (comparison).
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import re
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from nyala.errors import InvalidArgumentError, SchemaError
from nyala.schema.schema import ColumnSchema

__all__ = [
    "NAN",
    "NUMBER_DIGITS_MAX",
    "Literal",
    "NearestFloat",
    "are_comparable",
    "bytes_of_literal",
    "compare_literals",
    "float_of_literal",
    "floor_of_literal",
    "is_number_like",
    "iso_text",
    "parse_date",
    "parse_special_float",
    "parse_timestamp",
    "quote",
    "text_of_literal",
    "to_literal",
]

# A literal of type float is always NaN or an infinity. A finite float becomes the Decimal of its
# shortest text: users who write 1.23 mean exactly 1.23, and not the nearest binary fraction. A
# datetime is in UTC.
Literal: TypeAlias = "bool | int | decimal.Decimal | float | str | bytes | dt.date | dt.datetime | None"

NAN: Final = math.nan  # always the same object, so that tuples that contain it are equal
NUMBER_DIGITS_MAX: Final = (
    1_000  # a limit, because the cost of int() and str() grows with the square of the digits
)
_HUGE: Final = 10**60  # greater than every integer, date, timestamp and decimal: these end at 10**38
_US_PER_DAY: Final = 86_400_000_000
_EPOCH: Final = dt.datetime(1970, 1, 1)
_EPOCH_ORDINAL: Final = _EPOCH.toordinal()
_MICROSECOND: Final = dt.timedelta(microseconds=1)
_ISO: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"(?:[T ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,18}))?)?\s?(Z|z|UTC|[+-][0-9]{2}(?::?[0-9]{2})?)?)?"
)
_SPECIAL_FLOAT: Final = re.compile(r"([+-]?)(nan|inf|infinity)", re.IGNORECASE)
_NUMBER_LIKE: Final = re.compile(r"[+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?")


# --- users' values ----------------------------------------------------------------------------------


def to_literal(value: Any) -> Literal:
    """Convert a Python, NumPy or Arrow value to a Literal. NaT becomes None.

    Raises: InvalidArgumentError for a value that no column type supports.
    """
    if isinstance(value, pa.Scalar):
        if pa.types.is_timestamp(value.type) and value.is_valid:
            value = np.datetime64(value.value, value.type.unit)  # `as_py` of nanoseconds needs pandas
        else:
            value = value.as_py()
    if isinstance(value, np.datetime64):
        return _datetime64_literal(value)
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if value.bit_length() > 3 * NUMBER_DIGITS_MAX:
            raise InvalidArgumentError(f"a number of more than {NUMBER_DIGITS_MAX} digits fits no column")
        return int(value)
    if isinstance(value, float):
        return (
            decimal.Decimal(repr(float(value))) if math.isfinite(value) else NAN if value != value else value
        )
    if isinstance(value, decimal.Decimal):
        return _decimal_literal(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, dt.datetime):
        return _datetime_literal(value)
    if isinstance(value, dt.date):
        return value
    raise InvalidArgumentError(
        f"no column type supports the value {value!r} ({type(value).__name__}); "
        "use a bool, int, float, Decimal, str, bytes, date or datetime"
    )


def _decimal_literal(value: decimal.Decimal) -> Literal:
    if value.is_nan():
        return NAN
    if value.is_infinite():
        return math.inf if value > 0 else -math.inf
    if len(value.as_tuple().digits) > NUMBER_DIGITS_MAX:
        raise InvalidArgumentError(f"a number of more than {NUMBER_DIGITS_MAX} digits fits no column")
    return value


def _datetime_literal(value: dt.datetime) -> Literal:
    if value != value:  # pandas.NaT, a subclass of datetime
        return None
    nanosecond = getattr(value, "nanosecond", 0)  # pandas.Timestamp, a subclass of datetime
    micros = (value.replace(tzinfo=None) - _EPOCH) // _MICROSECOND
    micros -= (value.utcoffset() or dt.timedelta(0)) // _MICROSECOND
    try:
        moment = _EPOCH.replace(tzinfo=dt.UTC) + dt.timedelta(microseconds=micros)
    except OverflowError:
        raise InvalidArgumentError(f"{value!r} is outside the years 1 to 9999 in UTC") from None
    return moment if not nanosecond else f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond:06}{nanosecond:03}Z"


def _datetime64_literal(value: np.datetime64) -> Literal:
    if np.isnat(value):
        return None
    as_object = value.item()
    if isinstance(as_object, dt.datetime):
        return _datetime_literal(as_object)
    if isinstance(as_object, dt.date):
        return as_object
    if isinstance(as_object, int) and np.datetime_data(value.dtype)[0] == "us":
        return as_object  # outside the years 1 to 9999 of a datetime
    # ISO text has all digits of a time that is finer than a microsecond.
    return str(np.datetime_as_string(value)) + "Z"


def quote(literal: Literal, length_max: int = 60) -> str:
    """Return the literal's text for an error message, shortened to `length_max` characters."""
    text = repr(str(literal) if isinstance(literal, decimal.Decimal) else literal)
    if isinstance(literal, decimal.Decimal):
        text = text[1:-1]
    return text if len(text) <= length_max else text[: length_max - 1] + "…"


def are_comparable(a: Literal, b: Literal) -> bool:
    """Whether the two literals are of kinds that `compare_literals` can compare."""
    numbers = int | decimal.Decimal | float
    if isinstance(a, bool) or isinstance(b, bool):
        return isinstance(a, bool) and isinstance(b, bool)
    return type(a) is type(b) or (isinstance(a, numbers) and isinstance(b, numbers))


def compare_literals(a: Literal, op: str, b: Literal) -> bool:
    """Return whether `a op b` is true.

    a, b: must not be NULL, and must have comparable types (`are_comparable`).
    op: =, <>, <, <=, > or >=.
    """
    if a is NAN or b is NAN:
        a, b = a is NAN, b is NAN  # NaN equals NaN and is greater than all other values
    less, equal = bool(a < b), bool(a == b)  # type: ignore[operator]  # `are_comparable`
    return {
        "=": equal,
        "<>": not equal,
        "<": less,
        "<=": less or equal,
        ">": not (less or equal),
        ">=": not less,
    }[op]


def is_number_like(text: str) -> bool:
    """Whether a text has the form of a decimal number, such as '-1.5' or '1e6'.

    For error messages, which then advise to write the number without quotes.
    """
    return _NUMBER_LIKE.fullmatch(text) is not None


# --- ISO text ---------------------------------------------------------------------------------------


def _parse_iso(text: str) -> tuple[int, bool] | None:
    """Return the microseconds since 1970, rounded down, and whether they are exact; None if the
    text is no ISO time.
    """
    match = _ISO.fullmatch(text.strip())
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    try:
        days = dt.date(int(year), int(month), int(day)).toordinal() - _EPOCH_ORDINAL
        dt.time(int(hour or 0), int(minute or 0), int(second or 0))
    except ValueError:
        return None
    seconds = int(hour or 0) * 3600 + int(minute or 0) * 60 + int(second or 0)
    if zone and zone[0] in "+-":
        digits = zone[1:].replace(":", "").ljust(4, "0")
        offset_hours, offset_minutes = int(digits[:2]), int(digits[2:])
        if offset_hours > 23 or offset_minutes > 59:
            return None
        offset = offset_hours * 3600 + offset_minutes * 60
        seconds += offset if zone[0] == "-" else -offset
    fraction = (fraction or "").ljust(6, "0")
    micros = days * _US_PER_DAY + seconds * 1_000_000 + int(fraction[:6])
    return micros, not fraction[6:].strip("0")


def parse_date(text: str) -> dt.date | None:
    """Return the date that a DATE literal contains, or None."""
    parsed = _parse_iso(text)
    if parsed is None or len(text.strip()) != len("2013-01-01"):
        return None
    return dt.date.fromordinal(parsed[0] // _US_PER_DAY + _EPOCH_ORDINAL)


def parse_timestamp(text: str) -> Literal:
    """Return the datetime that a TIMESTAMP literal contains; None for any other text.

    A time that is finer than a microsecond is returned as text.
    """
    parsed = _parse_iso(text)
    if parsed is None:
        return None
    micros, exact = parsed
    if not exact:
        return text.strip()
    try:
        return _EPOCH.replace(tzinfo=dt.UTC) + dt.timedelta(microseconds=micros)
    except OverflowError:
        return None


def parse_special_float(text: str) -> float | None:
    """Return NaN or an infinity, or None for any other text."""
    special = _SPECIAL_FLOAT.fullmatch(text.strip())
    if special is None:
        return None
    return NAN if special[2].lower() == "nan" else -math.inf if special[1] == "-" else math.inf


def iso_text(moment: dt.datetime) -> str:
    """Return a UTC datetime as ISO text that `parse_timestamp` reads back."""
    return moment.replace(tzinfo=None).isoformat() + "Z"


# --- literals as column values ----------------------------------------------------------------------


def _wrong_kind(column: ColumnSchema, literal: Literal, hint: str = "") -> SchemaError:
    kinds = {
        bool: "a truth value",
        str: "text",
        bytes: "binary",
        dt.date: "a date",
        dt.datetime: "a timestamp",
    }
    kind = kinds.get(type(literal), "a number")
    if isinstance(literal, bool):
        hint += "; a condition is a comparison or a bool column"
    return SchemaError(
        f"cannot compare column {column.name!r} of type {column.type} with {kind}, {quote(literal)}{hint}"
    )


def floor_of_literal(column: ColumnSchema, literal: Literal) -> tuple[int, bool]:
    """Return the greatest canonical value that is not above the literal, and whether the two are
    equal.

    For integer, date, timestamp and decimal columns. Examples: (2, False) for 2.5 and an integer
    column, (123, False) for 1.234 and a decimal(5,2) column.
    Raises: SchemaError if the literal is of another kind, InvalidArgumentError for text that is not
    an ISO time.
    """
    name = column.type.name
    if name in ("date", "timestamp"):
        micros, exact = _floor_of_time(column, literal)
        if name == "timestamp":
            return micros, exact
        days, rest = divmod(micros, _US_PER_DAY)
        return days, exact and rest == 0
    if isinstance(literal, bool) or not isinstance(literal, int | float | decimal.Decimal):
        unquoted = isinstance(literal, str) and is_number_like(literal)
        raise _wrong_kind(column, literal, "; write a number without quotes" if unquoted else "")
    return _floor_scaled(literal, column.type.scale or 0)


def _floor_of_time(column: ColumnSchema, literal: Literal) -> tuple[int, bool]:
    if isinstance(literal, str):
        parsed = _parse_iso(literal)
        if parsed is None:
            raise InvalidArgumentError(
                f"column {column.name!r} has type {column.type}, but {quote(literal)} is not an ISO date or time; "
                "write it as '2013-01-31' or '2013-01-31T23:59:59.5Z'"
            )
        return parsed
    if isinstance(literal, dt.datetime):
        return (literal.replace(tzinfo=None) - _EPOCH) // _MICROSECOND, True
    if isinstance(literal, dt.date):
        return (literal.toordinal() - _EPOCH_ORDINAL) * _US_PER_DAY, True
    is_number = isinstance(literal, int | float | decimal.Decimal) and not isinstance(literal, bool)
    if column.type.name == "timestamp" and is_number:
        assert isinstance(literal, int | float | decimal.Decimal)
        return _floor_scaled(literal, 0)
    hint = "; write a date as DATE '2013-01-31'" if is_number else ""
    raise _wrong_kind(column, literal, hint)


def _floor_scaled(number: int | float | decimal.Decimal, scale: int) -> tuple[int, bool]:
    """Return floor(number * 10**scale), at most ±10**60, and whether it is exact. Never builds a
    huge int.
    """
    if isinstance(number, float):  # NaN or an infinity; NaN is greater than all other values
        return (-_HUGE if number < 0 else _HUGE), True
    if isinstance(number, int):
        return max(-_HUGE, min(_HUGE, number)) * 10**scale, True
    if not number:
        return 0, True
    magnitude = number.adjusted() + scale
    if magnitude > 60:
        return (_HUGE if number > 0 else -_HUGE), True
    if magnitude < -60:
        return (0 if number > 0 else -1), False
    # The context has room for every digit, so scaling does not round.
    context = decimal.Context(prec=NUMBER_DIGITS_MAX + 70, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX)
    scaled = number.scaleb(scale, context)
    floor = scaled.to_integral_value(decimal.ROUND_FLOOR, context)
    return int(floor), floor == scaled


class NearestFloat(NamedTuple):
    """The value of a float or double column that is nearest to a literal.

    `beyond` is 1 if a finite literal is above all finite values of the column, -1 if it is below
    them, and 0 otherwise.
    """

    value: float
    beyond: int = 0


def float_of_literal(column: ColumnSchema, literal: Literal) -> NearestFloat:
    """Convert a number, or the text 'NaN', 'Infinity' or '-Infinity', for a float or double column.

    Raises: SchemaError if the literal is of another kind.
    """
    if isinstance(literal, str) and (special := parse_special_float(literal)) is not None:
        return NearestFloat(special)
    if isinstance(literal, bool) or not isinstance(literal, int | float | decimal.Decimal):
        raise _wrong_kind(column, literal)
    if isinstance(literal, float):
        return NearestFloat(literal)
    try:
        value = float(literal)
    except OverflowError:
        value = math.inf if literal > 0 else -math.inf
    if column.type.name == "float":
        with np.errstate(over="ignore", under="ignore"):
            value = float(np.float32(value))
    beyond = 0 if math.isfinite(value) else 1 if value > 0 else -1
    return NearestFloat(value + 0.0, beyond)  # + 0.0 turns -0.0 into 0.0


def text_of_literal(column: ColumnSchema, literal: Literal) -> str:
    """Return the text of a literal for a string or varchar column.

    Raises: SchemaError if the literal is not text, InvalidArgumentError for invalid Unicode.
    """
    if not isinstance(literal, str):
        raise _wrong_kind(column, literal)
    check_unicode(literal, f"column {column.name!r}: ")
    return literal


def bytes_of_literal(column: ColumnSchema, literal: Literal) -> bytes:
    """Convert a literal, bytes or text, to the bytes of a binary column.

    Raises: SchemaError for another kind of literal, InvalidArgumentError for invalid Unicode.
    """
    if isinstance(literal, str):
        check_unicode(literal, f"column {column.name!r}: ")
        return literal.encode()
    if not isinstance(literal, bytes):
        raise _wrong_kind(column, literal)
    return literal


def check_unicode(text: str, where: str) -> None:
    """Raise InvalidArgumentError if `text` cannot be encoded as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError(f"{where}{quote(text)} is not valid Unicode") from None
