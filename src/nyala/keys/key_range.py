"""Half-open ranges of encoded keys, and the range that the predicates of a scan allow.

    predicates          host = 'a'   AND   metric IN ('x', 'y')   AND   time < 100
    lower (inclusive)   encode('a', 'x')
    upper (exclusive)   successor(encode('a', 'y', 99)): above all keys that begin with these bytes

The range is only a necessary condition. The key of every row that satisfies the predicates is in
the range. But the range may have other keys: here, those with a metric between x and y.

Source: docs/design/kudu.md, "Partition pruning". Unlike in Kudu, bounds are byte prefixes and not
whole keys padded with minima, so one rule (`successor`) replaces Kudu's increment of a key. An
exclusive lower bound becomes an inclusive bound of the next value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from nyala.keys.codec import KeyCodec
from nyala.keys.encoded_keys import EncodedKeys
from nyala.schema.predicates.constraint import Constraint
from nyala.schema.schema import Schema
from nyala.schema.types import ColumnType


def successor(prefix: bytes) -> bytes | None:
    """Return the least byte string that is greater than every byte string with this prefix.

    None if the prefix is empty or has only bytes 0xff: then no greater byte string exists.
    """
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The keys whose encoded bytes are in [lower, upper). A bound may be a prefix of a key.

    A bound of None means: unbounded on this side.
    """

    lower: bytes | None = None
    upper: bytes | None = None

    ALL: ClassVar[KeyRange]
    NONE: ClassVar[KeyRange]

    @property
    def is_empty(self) -> bool:
        """Whether no key can be in the range."""
        return self.upper is not None and (self.lower or b"") >= self.upper

    @property
    def is_all(self) -> bool:
        """Whether every key is in the range."""
        return not self.lower and self.upper is None

    def __contains__(self, key: bytes) -> bool:
        return (self.lower is None or self.lower <= key) and (self.upper is None or key < self.upper)

    def intersect(self, other: KeyRange) -> KeyRange:
        """Return the range of the keys that are in both ranges."""
        lowers = [bound for bound in (self.lower, other.lower) if bound is not None]
        uppers = [bound for bound in (self.upper, other.upper) if bound is not None]
        return KeyRange(max(lowers, default=None), min(uppers, default=None))

    def overlaps(self, key_min: bytes, key_max: bytes) -> bool:
        """Whether a rowset with keys from `key_min` to `key_max` may have a key in the range."""
        return (
            not self.is_empty
            and (self.lower is None or self.lower <= key_max)
            and (self.upper is None or key_min < self.upper)
        )

    def positions(self, keys: EncodedKeys) -> tuple[int, int]:
        """Return the positions [lower, upper) of those ascending `keys` that are in the range."""
        lower = 0 if self.lower is None else keys.lower_bound(self.lower)
        upper = len(keys) if self.upper is None else keys.lower_bound(self.upper)
        return lower, max(lower, upper)


KeyRange.ALL = KeyRange(None, None)
KeyRange.NONE = KeyRange(b"", b"")


def key_range_of(constraints: Mapping[str, Constraint], schema: Schema) -> KeyRange:
    """Return the range of primary keys that all `constraints` (by column name) allow."""
    if any(constraint.empty for constraint in constraints.values()):
        return KeyRange.NONE
    columns = schema.key_columns
    codec = KeyCodec([column.type for column in columns])
    return allowed_range([constraints.get(column.name) for column in columns], codec)


def is_key_range(constraints: Mapping[str, Constraint], schema: Schema) -> bool:
    """Whether all keys in the range `key_range_of(constraints)` satisfy the constraints.

    This is so if the constraints fix the first key columns to one value each, limit the next key
    column at most by a range, and concern no other column.
    """
    left = dict(constraints)
    for column in schema.key_columns:
        constraint = left.pop(column.name, None)
        if constraint is None:
            break
        is_fixed = constraint.values is not None and len(constraint.values) == 1
        if constraint.null == "only" or (constraint.values is not None and not is_fixed):
            return False
        if not is_fixed:
            break
    return not left


@dataclass(frozen=True, slots=True)
class Clamped:
    """The allowed values of one key column: the result of `clamp`.

    lower, upper: inclusive bounds, as values that `KeyCodec.encode_row` takes. None: unbounded.
    upper_open: `upper` itself is excluded. Text and binary need this, because there is no greatest
        text below "b".
    values: the allowed values, ascending, instead of bounds. None: the bounds count.
    empty: no value satisfies the constraint.
    """

    lower: Any = None
    upper: Any = None
    upper_open: bool = False
    values: tuple[Any, ...] | None = None
    empty: bool = False


def clamp(constraint: Constraint | None, type: ColumnType) -> Clamped:
    """Convert the constraint of a NOT NULL column to inclusive bounds that are values of `type`."""
    if constraint is None:
        return Clamped()
    if constraint.empty or constraint.null == "only":
        return Clamped(empty=True)
    least, most = type.value_min, type.value_max
    if constraint.values is not None:
        values = constraint.values
        if least is not None and most is not None and not least <= values[0] <= values[-1] <= most:
            values = tuple(value for value in values if least <= value <= most)
        return Clamped(values=values, empty=not values)
    lower, upper, upper_open = constraint.lower, constraint.upper, False
    if type.is_variable:
        zero: Any = "\0" if type.is_text else b"\0"
        if lower is not None and not constraint.lower_inclusive:
            lower = lower + zero
        if upper is not None and not constraint.upper_inclusive:
            # The greatest text below "a\0" is "a". Below any other text there is no greatest one.
            upper_open = not upper.endswith(zero)
            upper = upper if upper_open else upper[:-1]
        # The first text after the upper bound.
        end = None if upper is None else _bytes(upper) + (b"" if upper_open else b"\0")
        empty = end is not None and _bytes("" if lower is None else lower) >= end
        return Clamped(lower, upper, upper_open, empty=empty)
    assert least is not None and most is not None
    if lower is not None and not constraint.lower_inclusive:
        lower += 1
    if upper is not None and not constraint.upper_inclusive:
        upper -= 1
    lower = None if lower is None or lower <= least else lower
    upper = None if upper is None or upper >= most else upper
    low, high = least if lower is None else lower, most if upper is None else upper
    return Clamped(lower, upper, empty=low > high)


def allowed_range(constraints: Sequence[Constraint | None], codec: KeyCodec) -> KeyRange:
    """Return the range of the codec's keys that the constraints allow.

    constraints: one for each key column, in key order. None: no constraint.
    """
    return range_of_clamped(
        [clamp(constraint, type) for constraint, type in zip(constraints, codec.types, strict=True)], codec
    )


def range_of_clamped(columns: Sequence[Clamped], codec: KeyCodec) -> KeyRange:
    """Return a range of encoded keys that contains every key with allowed values.

    columns: the allowed values of each key column, in key order; results of `clamp`.
    """
    if any(column.empty for column in columns):
        return KeyRange.NONE
    first: list[Any] = []
    for column in columns:
        value = column.values[0] if column.values is not None else column.lower
        if value is None:
            break
        first.append(value)
    last: list[Any] = []
    inclusive = True
    for column in columns:
        value = column.values[-1] if column.values is not None else column.upper
        if value is None:
            break
        last.append(value)
        if column.values is None and column.upper_open:
            inclusive = False
            break
    lower = codec.encode_prefix(first) if first else None
    upper = codec.encode_prefix(last) if last else None
    if upper is not None and inclusive:
        # If the last column is text and has a value, the bytes are a whole key and also a prefix of
        # other keys.
        whole = len(last) == len(codec.types) and codec.types[-1].is_variable
        upper = upper + b"\0" if whole else successor(upper)
    return KeyRange(lower, upper)


def _bytes(text: Any) -> bytes:
    return text.encode() if isinstance(text, str) else bytes(text)
