"""Converts the range bounds and splits that a user gives to ranges of encoded keys.

A *range key* is the encoded key of the range columns alone (`nyala.keys.codec`). A bound may leave
columns out, such as (1, None, 3) for the columns (a, b, c). A column that is left out gets the
least value of its type. A bound that leaves all columns out means no bound.

A stored range includes its lower bound and not its upper bound. So an exclusive lower bound and an
inclusive upper bound are replaced by the next key: the last column is increased by one. If this
column has its greatest value, it is left out, and the column before it is increased:

    (1, None, 3)  becomes  (1, None, 4)           (1, 127, 127)  becomes  (2, None, None)

Source: docs/design/kudu.md, "Partitions and their bounds". Unlike in Kudu, a decimal that is left
out gets the least value of the decimal: -(10^p - 1) for p digits. Kudu takes the least value of the
integer that stores the decimal. Different hash levels per range are not supported.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nyala.errors import InvalidArgumentError, SchemaError
from nyala.keys.codec import KeyCodec
from nyala.schema.conversion.array_cast import shorten
from nyala.schema.conversion.cast import cast_value
from nyala.schema.limits import DEFAULT_LIMITS, Limits
from nyala.schema.schema import ColumnSchema
from nyala.schema.types import ColumnType, to_canonical

__all__ = ["EncodedRange", "RangeBound", "build_ranges", "encode_range"]

# The lower and upper bound of a range as encoded range keys. None is no bound.
EncodedRange = tuple[bytes | None, bytes | None]


@dataclass(frozen=True)
class RangeBound:
    """One range for `range_partition(bounds=[...])`, whose ends may be inclusive or exclusive.

    Parameters
    ----------
    lower, upper
        The ends: a value, a tuple for several columns, or None for no bound.
    lower_inclusive, upper_inclusive
        Whether the end itself belongs to the range. By default only the lower end does.

    Examples
    --------
    >>> days = nyala.range_partition("day", bounds=[RangeBound("2026-01-01", "2026-01-31", upper_inclusive=True)])
    >>> days.columns
    ('day',)
    """

    lower: Any = None
    upper: Any = None
    lower_inclusive: bool = True
    upper_inclusive: bool = False


def build_ranges(
    columns: Sequence[ColumnSchema],
    splits: Sequence[Any],
    bounds: Sequence[Any] | None,
    limits: Limits = DEFAULT_LIMITS,
) -> list[EncodedRange]:
    """Return the ranges of a new table, ascending and disjoint. There may be gaps between them.

    Raises: InvalidArgumentError if bounds overlap, a range is empty, or a split is not inside a
    range.
    """
    if bounds is None:
        ranges: list[EncodedRange] = [(None, None)]
    else:
        ranges = [encode_range(bound, columns, limits) for bound in bounds]
    # Ascending by lower bound. A range without lower bound is first: b"" is the least key.
    order = sorted(range(len(ranges)), key=lambda i: ranges[i][0] or b"")
    for i, j in itertools.pairwise(order):
        upper, lower = ranges[i][1], ranges[j][0]
        if upper is None or lower is None or upper > lower:
            assert bounds is not None
            raise InvalidArgumentError(f"overlapping range partitions: {bounds[i]!r} and {bounds[j]!r}")
    return _split([ranges[i] for i in order], splits, columns, limits)


def encode_range(
    bound: Any, columns: Sequence[ColumnSchema], limits: Limits = DEFAULT_LIMITS
) -> EncodedRange:
    """Encode one range, which is a pair (lower, upper) or a RangeBound.

    Raises: InvalidArgumentError for values that the columns cannot hold, and for an empty range.
    """
    if not isinstance(bound, RangeBound):
        if not isinstance(bound, Sequence) or isinstance(bound, str | bytes) or len(bound) != 2:
            raise InvalidArgumentError(f"a range bound is a pair (lower, upper), not {bound!r}")
        bound = RangeBound(*bound)
    codec = KeyCodec([column.type for column in columns])
    lower = _values(bound.lower, columns, "lower bound")
    upper = _values(bound.upper, columns, "upper bound")
    if not bound.lower_inclusive and any(value is not None for value in lower):
        lower = _incremented(lower, codec.types)
        if not lower:
            raise InvalidArgumentError(f"no value is greater than the exclusive lower bound {bound.lower!r}")
    if bound.upper_inclusive and any(value is not None for value in upper):
        # If no key is greater, the range has no upper bound.
        upper = _incremented(upper, codec.types)
    low, high = _encode(lower, codec, limits), _encode(upper, codec, limits)
    if high is not None and (low or _encode_minimum(codec)) >= high:
        raise InvalidArgumentError(
            f"range partition lower bound must be less than the upper bound: {bound.lower!r}, {bound.upper!r}"
        )
    return low, high


def _split(
    ranges: Sequence[EncodedRange],
    splits: Sequence[Any],
    columns: Sequence[ColumnSchema],
    limits: Limits,
) -> list[EncodedRange]:
    codec = KeyCodec([column.type for column in columns])
    keys: dict[bytes, Any] = {}
    for split in splits:
        key = _encode(_values(split, columns, "split"), codec, limits)
        if key is None:
            raise InvalidArgumentError("a split must set at least one range column, got only None")
        if key in keys:
            raise InvalidArgumentError(f"duplicate split row: {split!r}")
        keys[key] = split
    pending = sorted(keys)
    result: list[EncodedRange] = []
    for lower, upper in ranges:
        while pending and (upper is None or pending[0] <= upper):
            key = pending[0]
            if key < (lower or b""):
                break
            if key == _encode_minimum(codec):
                raise InvalidArgumentError(
                    f"the split {keys[key]!r} is the smallest possible value, so no row is below it: remove the split"
                )
            if key in (lower, upper):
                raise InvalidArgumentError(
                    f"the split {keys[key]!r} equals a bound of a range: remove the split"
                )
            result.append((lower, key))
            lower = pending.pop(0)
        result.append((lower, upper))
    if pending:
        raise InvalidArgumentError(
            f"the split {keys[pending[0]]!r} is not inside any of the ranges given as bounds: remove the split, "
            "or add a range that contains it"
        )
    return result


def _values(value: Any, columns: Sequence[ColumnSchema], what: str) -> list[Any]:
    """Return the canonical value of each range column; None for a column without a value."""
    if isinstance(value, Mapping):
        names = [column.name for column in columns]
        for name in value:
            if name not in names:
                raise InvalidArgumentError(
                    f"{what} may only contain values for range partition columns ({', '.join(names)}), "
                    f"not for {name!r}"
                )
        value = tuple(value.get(name) for name in names)
    elif value is None:
        value = ()
    elif not isinstance(value, tuple | list):
        if len(columns) > 1:
            raise InvalidArgumentError(
                f"{what} {value!r}: a range over {len(columns)} columns takes a tuple of their values"
            )
        value = (value,)
    if len(value) > len(columns):
        raise InvalidArgumentError(
            f"{what} {value!r} has {len(value)} values; the range has {len(columns)} columns"
        )
    values: list[Any] = [None] * len(columns)
    for i, (one, column) in enumerate(zip(value, columns, strict=False)):
        try:
            bound = cast_value(one, column.type.without_length)
        except SchemaError as error:
            raise InvalidArgumentError(f"{what} of range column {column.name!r}: {error}") from error
        if column.type.length is not None and bound is not None and len(bound) > column.type.length:
            raise InvalidArgumentError(
                f"{what} of range column {column.name!r}: {shorten(repr(bound))} has {len(bound)} characters, more "
                f"than {column.type} holds; give a bound of at most {column.type.length}"
            )
        values[i] = to_canonical(column.type, bound)
    return values


def _encode(values: Sequence[Any], codec: KeyCodec, limits: Limits) -> bytes | None:
    """Return a bound as an encoded key; None for no bound, if no column has a value.

    values: one per range column. A column with None gets the least value of its type.
    """
    if all(value is None for value in values):
        return None
    filled = [
        _minimum(type) if value is None else value for value, type in zip(values, codec.types, strict=True)
    ]
    key = codec.encode_row(filled)
    if len(key) > limits.max_key_bytes:
        raise InvalidArgumentError(
            f"a range bound takes {len(key)} bytes as a key, at most {limits.max_key_bytes} are allowed (max_key_bytes)"
        )
    return key


def _encode_minimum(codec: KeyCodec) -> bytes:
    return codec.encode_row([_minimum(type) for type in codec.types])


def _minimum(type: ColumnType) -> Any:
    if type.is_variable:
        return "" if type.is_text else b""
    return type.value_min


def _incremented(values: Sequence[Any], types: Sequence[ColumnType]) -> list[Any]:
    """Return the least bound above `values`; an empty list if there is no greater bound."""
    result = list(values)
    for i in reversed(range(len(result))):
        type = types[i]
        value = _minimum(type) if result[i] is None else result[i]
        if type.is_variable:
            result[i] = value + ("\0" if type.is_text else b"\0")
            return result
        if value != type.value_max:
            result[i] = value + 1
            return result
        result[i] = None
    return []
