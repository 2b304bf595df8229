"""The thirteen column types: their names, exact ranges, widths and canonical Arrow types.

    name            Arrow (canonical)        bytes   range                                     in a key
    bool            bool                     1       false, true                               no
    int8 … int64    int8 … int64             1 … 8   two's complement                          yes
    date            date32                   4       0001-01-01 … 9999-12-31                   yes
    timestamp       timestamp[us, tz=UTC]    8       all of int64, microseconds since 1970     yes
    float, double   float, double            4, 8    IEEE 754, with NaN and infinities         no
    decimal(p,s)    decimal128(p, s)         4|8|16  ±(10^p - 1) / 10^s                        yes
    varchar(n)      string                   var.    at most n characters, 64 KiB              yes
    string          string                   var.    UTF-8, 64 KiB                             yes
    binary          binary                   var.    64 KiB                                    yes

Notation: p is the precision of a decimal (its number of digits), s its scale (digits after the
point), n the length of a varchar. "var." means that the values have different lengths. 4|8|16
bytes: for at most 9, at most 18, or more digits.

Values have three forms:
    Arrow        arrays of the canonical Arrow type, for many rows
    Python       what users give and get: int, float, bool, str, bytes, Decimal, date, datetime in UTC
    canonical    for comparing and encoding: a date as days since 1970, a timestamp as microseconds
                 since 1970, a decimal as an integer without the point (1.20 as 120)

Unsigned integers, 16-bit floats, times of day, durations and nested types are not supported. For
such a type the error of `parse_type` names a type to use instead.
Source: Kudu schema design, "Column Design" and "Decimal Type" (the decimal's widths).
"""

from __future__ import annotations

import datetime as dt
import decimal
import re
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from nyala.errors import SchemaError

__all__ = [
    "DATE_MAX_DAYS",
    "DATE_MIN_DAYS",
    "DECIMAL_PRECISION_MAX",
    "EXACT_DECIMALS",
    "MAX_CELL_BYTES",
    "TYPE_NAMES",
    "VARCHAR_LENGTH_MAX",
    "ColumnType",
    "from_canonical",
    "parse_type",
    "to_canonical",
]

DATE_MIN_DAYS: Final = -719_162  # 0001-01-01
DATE_MAX_DAYS: Final = 2_932_896  # 9999-12-31
DECIMAL_PRECISION_MAX: Final = 38
VARCHAR_LENGTH_MAX: Final = 65_535
MAX_CELL_BYTES: Final = 65_536  # of a string, varchar or binary value, before encoding

_INTEGER_WIDTHS: Final = {"int8": 1, "int16": 2, "int32": 4, "int64": 8}
_PLAIN_ARROW: Final[dict[str, Any]] = {
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "float": pa.float32(),
    "double": pa.float64(),
    "varchar": pa.string(),
    "string": pa.string(),
    "binary": pa.binary(),
}
_FIXED_WIDTHS: Final = {"bool": 1, **_INTEGER_WIDTHS, "date": 4, "timestamp": 8, "float": 4, "double": 8}
TYPE_NAMES: Final = (
    *("bool", "int8", "int16", "int32", "int64", "date", "timestamp", "float", "double"),
    *("decimal", "varchar", "string", "binary"),
)


@dataclass(frozen=True)
class ColumnType:
    """One of the thirteen types. Immutable and hashable; `str()` returns the name that users write.

    A decimal has a precision and a scale. A varchar has a length in characters. All other types
    have none of these.
    Raises: SchemaError for an unknown name or invalid attributes.
    """

    name: str
    precision: int | None = None
    scale: int | None = None
    length: int | None = None
    arrow: pa.DataType = field(init=False, repr=False, compare=False)
    """The canonical Arrow type. Equal column types have equal Arrow types."""
    storage_width_bytes: int | None = field(init=False, repr=False, compare=False)
    """Number of bytes of one value before encoding; None for values of different lengths."""
    _bounds: tuple[int | None, int | None] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._check()
        object.__setattr__(self, "arrow", self._make_arrow())
        object.__setattr__(self, "storage_width_bytes", self._find_width())
        object.__setattr__(self, "_bounds", self._find_bounds())

    def __reduce__(self) -> tuple[type[ColumnType], tuple[Any, ...]]:
        return ColumnType, (self.name, self.precision, self.scale, self.length)

    def _check(self) -> None:
        if self.name not in TYPE_NAMES:
            raise SchemaError(_unknown_type_text(self.name))
        if self.name == "decimal":
            if not (isinstance(self.precision, int) and 1 <= self.precision <= DECIMAL_PRECISION_MAX):
                raise SchemaError(
                    f"decimal precision must be 1 to {DECIMAL_PRECISION_MAX}, got {self.precision}; "
                    "write it as decimal(precision,scale), for instance decimal(15,2)"
                )
            if not (isinstance(self.scale, int) and 0 <= self.scale <= self.precision):
                raise SchemaError(
                    f"decimal scale must be 0 to {self.precision} (the precision), got {self.scale}; "
                    "write it as decimal(precision,scale), for instance decimal(15,2)"
                )
        elif self.precision is not None or self.scale is not None:
            raise SchemaError(f"type {self.name} takes no precision and scale; only decimal does")
        if self.name == "varchar":
            if not (isinstance(self.length, int) and 1 <= self.length <= VARCHAR_LENGTH_MAX):
                raise SchemaError(
                    f"varchar length must be 1 to {VARCHAR_LENGTH_MAX} characters, got {self.length}; "
                    "write it as varchar(length), for instance varchar(40), or use string"
                )
        elif self.length is not None:
            raise SchemaError(f"type {self.name} takes no length; only varchar does")

    def __str__(self) -> str:
        if self.name == "decimal":
            return f"decimal({self.precision},{self.scale})"
        if self.name == "varchar":
            return f"varchar({self.length})"
        return self.name

    def _make_arrow(self) -> pa.DataType:
        if self.name == "decimal":
            return pa.decimal128(self.precision, self.scale)
        return _PLAIN_ARROW[self.name]

    def _find_width(self) -> int | None:
        if self.name == "decimal":
            assert self.precision is not None
            return 4 if self.precision <= 9 else 8 if self.precision <= 18 else 16
        return _FIXED_WIDTHS.get(self.name)

    @property
    def is_variable(self) -> bool:
        """Whether values may have different lengths: string, varchar and binary."""
        return self.name in ("string", "varchar", "binary")

    @property
    def is_text(self) -> bool:
        """Whether values are text in UTF-8: string and varchar."""
        return self.name in ("string", "varchar")

    @property
    def without_length(self) -> ColumnType:
        """The same type without a maximum length: string for a varchar.

        Key values are converted to this type, because they are never truncated.
        """
        return ColumnType("string") if self.name == "varchar" else self

    @property
    def is_integer(self) -> bool:
        """Whether the type is int8, int16, int32 or int64 (a date or timestamp is not)."""
        return self.name in _INTEGER_WIDTHS

    @property
    def is_floating(self) -> bool:
        """Whether the type is float or double, which have NaN."""
        return self.name in ("float", "double")

    @property
    def key_allowed(self) -> bool:
        """Whether a primary key may contain a column of this type."""
        return self.name not in ("bool", "float", "double")

    @property
    def value_min(self) -> int | None:
        """The least value of an integer, date, timestamp or decimal type, as an int.

        The int is in canonical form: for a date days since 1970, for example. None for other types.
        """
        return self._bounds[0]

    @property
    def value_max(self) -> int | None:
        """The greatest value of an integer, date, timestamp or decimal type, as an int.

        The int is in canonical form: for a date days since 1970, for example. None for other types.
        """
        return self._bounds[1]

    def _find_bounds(self) -> tuple[int | None, int | None]:
        if self.name in _INTEGER_WIDTHS or self.name == "timestamp":
            half = 1 << (8 * _FIXED_WIDTHS[self.name] - 1)
            return -half, half - 1
        if self.name == "date":
            return DATE_MIN_DAYS, DATE_MAX_DAYS
        if self.name == "decimal":
            assert self.precision is not None
            return 1 - 10**self.precision, 10**self.precision - 1
        return None, None


# Names of these types in other systems. "int" is missing because SQL means 32 bits by it, and
# Python any number.
_ALIASES: Final = {
    "boolean": "bool",
    "tinyint": "int8",
    "byte": "int8",
    "smallint": "int16",
    "short": "int16",
    "bigint": "int64",
    "long": "int64",
    "date32": "date",
    "date32[day]": "date",
    "date64": "date",
    "date64[ms]": "date",
    "unixtime_micros": "timestamp",
    "datetime": "timestamp",
    "timestamptz": "timestamp",
    "float32": "float",
    "real": "float",
    "float64": "double",
    "str": "string",
    "utf8": "string",
    "text": "string",
    "large_string": "string",
    "large_utf8": "string",
    "string_view": "string",
    "bytes": "binary",
    "blob": "binary",
    "large_binary": "binary",
    "binary_view": "binary",
}
_ADVICE: Final = {
    "int": "int32 or int64",
    "integer": "int32 or int64",
    "uint8": "int16",
    "uint16": "int32",
    "uint32": "int64",
    "uint64": "decimal(20,0)",
    "halffloat": "float",
    "float16": "float",
    "decimal": "decimal(precision,scale), for instance decimal(15,2)",
    "numeric": "decimal(precision,scale), for instance decimal(15,2)",
    "varchar": "varchar(length), for instance varchar(40), or string",
    "char": "varchar(length) or string",
    "object": "string or binary",
    **dict.fromkeys(("time", "time32", "time64"), "int64 (microseconds) or string"),
    "duration": "int64 (microseconds)",
    **dict.fromkeys(
        ("list", "array", "large_list", "list_view", "fixed_size_list", "map", "struct", "row", "json"),
        "one column per value, or a string column with JSON: lists, maps and structs are not supported",
    ),
}
_DECIMAL: Final = re.compile(r"(?:decimal(?:32|64|128|256)?|numeric)\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)")
_VARCHAR: Final = re.compile(r"varchar\(\s*(\d+)\s*\)")
_TIMESTAMP: Final = re.compile(r"timestamp\[\s*(?:s|ms|us|ns)\s*(?:,\s*tz=[^\]]+)?\]")


def _unknown_type_text(spec: str) -> str:
    word = re.split(r"[\s\[(<]", spec.strip().lower(), maxsplit=1)[0]
    if word in _ADVICE:
        return f"column type {spec!r} is not supported; use {_ADVICE[word]}"
    import difflib

    near = difflib.get_close_matches(word, (*TYPE_NAMES, *_ALIASES), n=1)
    hint = f"did you mean {_ALIASES.get(near[0], near[0])}? " if near else ""
    return f"unknown column type {spec!r}; {hint}the types are {', '.join(TYPE_NAMES)}"


# The extension type of pandas for periods, such as months. It stores numbers of periods since 1970,
# which no column type can hold.
PERIOD: Final = "pandas.period"
PERIOD_ADVICE: Final = "convert the pandas periods to their start times first: .dt.to_timestamp()"
UUID_ADVICE: Final = "convert each UUID with str(value), or use a binary column for its 16 bytes"


def parse_type(spec: str | pa.DataType | ColumnType) -> ColumnType:
    """Return the column type for a name or an Arrow type.

    Accepts type names of Nyala, Arrow, NumPy and SQL, in upper or lower case. For an Arrow layout
    (large, view, dictionary, run-end-encoded) the result is the type of the values, and for an
    extension type its storage type. A timestamp of any unit and zone gives timestamp.
    Raises: SchemaError. If the type is not supported, the message names one to use instead.
    """
    if isinstance(spec, ColumnType):
        return spec
    if isinstance(spec, str):
        return _parse_text(spec)
    if isinstance(spec, pa.DataType):
        return _parse_arrow(spec)
    python = {int: "int64", float: "double", str: "string", bytes: "binary", bool: "bool"}
    python |= {dt.datetime: "timestamp", dt.date: "date", decimal.Decimal: "decimal(15,2)"}
    meant = f"; write {python[spec]!r}" if isinstance(spec, type) and spec in python else ""
    raise SchemaError(
        f"a column's type must be a name such as 'int64', a pyarrow.DataType or nyala.column(...), got {spec!r}{meant}"
    )


def _parse_text(spec: str) -> ColumnType:
    text = spec.strip().lower()
    if text in _PLAIN_ARROW and text != "varchar":
        return ColumnType(text)
    if text in _ALIASES:
        return ColumnType(_ALIASES[text])
    if match := _DECIMAL.fullmatch(text):
        return ColumnType("decimal", precision=int(match[1]), scale=int(match[2] or 0))
    if match := _VARCHAR.fullmatch(text):
        return ColumnType("varchar", length=int(match[1]))
    if _TIMESTAMP.fullmatch(text):
        return ColumnType("timestamp")
    raise SchemaError(_unknown_type_text(spec))


def _parse_arrow(spec: pa.DataType) -> ColumnType:
    types = pa.types
    if isinstance(spec, pa.BaseExtensionType):
        if spec.extension_name == PERIOD:
            raise SchemaError(f"column type {str(spec)!r} is not supported; {PERIOD_ADVICE}")
        return _parse_arrow(spec.storage_type)
    if types.is_dictionary(spec) or types.is_run_end_encoded(spec):
        return _parse_arrow(spec.value_type)
    if types.is_string(spec) or types.is_large_string(spec) or types.is_string_view(spec):
        return ColumnType("string")
    if types.is_binary(spec) or types.is_large_binary(spec) or types.is_binary_view(spec):
        return ColumnType("binary")
    if types.is_fixed_size_binary(spec) and not types.is_decimal(spec):
        return ColumnType("binary")
    if types.is_decimal(spec):
        return ColumnType("decimal", precision=spec.precision, scale=spec.scale)
    if types.is_timestamp(spec):
        return ColumnType("timestamp")
    if types.is_date(spec):
        return ColumnType("date")
    for name in _FIXED_WIDTHS:
        if spec.equals(_PLAIN_ARROW[name]):
            return ColumnType(name)
    raise SchemaError(_unknown_type_text(str(spec)))


_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH_ORDINAL: Final = dt.date(1970, 1, 1).toordinal()
_MICROSECOND: Final = dt.timedelta(microseconds=1)
# Moves the point of every decimal(38, s) without rounding. The thread's own decimal context might
# round.
EXACT_DECIMALS: Final = decimal.Context(prec=100, Emin=-1000, Emax=1000, traps=[decimal.InvalidOperation])


def to_canonical(type: ColumnType, value: Any) -> Any:
    """Convert a Python value to canonical form: dates, datetimes and Decimals become ints.

    A date becomes days since 1970, a timestamp microseconds since 1970, and a decimal the integer
    without its point. Other values, also ints of these types, are returned unchanged. A naive
    datetime is in UTC.

    value: must fit the type. `nyala.schema.conversion.cast.cast_value` converts values of users.
    """
    if value is None:
        return None
    if type.name == "timestamp" and isinstance(value, dt.datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=dt.UTC)
        return (aware - _EPOCH) // _MICROSECOND
    if type.name == "date" and isinstance(value, dt.date):
        return value.toordinal() - _EPOCH_ORDINAL
    if type.name == "decimal" and isinstance(value, decimal.Decimal):
        assert type.scale is not None
        return int(value.scaleb(type.scale, EXACT_DECIMALS))
    return value


def from_canonical(type: ColumnType, value: Any) -> Any:
    """Convert a canonical value to a Python value: the inverse of `to_canonical`.

    A timestamp outside the years 1 to 9999 stays an int, because no datetime can represent it.
    """
    if value is None:
        return None
    if type.name == "timestamp":
        try:
            return _EPOCH + dt.timedelta(microseconds=value)
        except OverflowError:
            return value
    if type.name == "date":
        return dt.date.fromordinal(value + _EPOCH_ORDINAL)
    if type.name == "decimal":
        assert type.scale is not None
        return decimal.Decimal(value).scaleb(-type.scale, EXACT_DECIMALS)
    return value
