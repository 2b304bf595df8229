"""Constraint: a necessary condition on one column, used to skip partitions, rowsets and blocks.

    a > 3 AND a IN (1, 5, 9) AND (b = 'x' OR b = 'z')        a: values (5, 9)     b: values ('x', 'z')
    c IS NULL OR c < 10                                      c: below 10, or NULL

A row that the predicate selects satisfies the constraint of every column; the reverse need not hold.
Bounds and values are canonical scalars (`nyala.schema.types`): int for integers, date, timestamp and decimal;
float, str, bytes or bool otherwise. They sort as they compare: text by its UTF-8 bytes, NaN equal to NaN and
greater than all other values, -0.0 equal to 0.0.

Invariants
    C1  `values`, if set, are ascending and distinct. The first is `lower` and the last is `upper`, both inclusive.
    C2  `lower` is below `upper`; equal bounds become one value. An unsatisfiable constraint has `empty` and no bounds.
    C3  Bounds of countable types are inclusive. A bound at the type's minimum or maximum is None.
    C4  null "only" has no bounds: only NULL satisfies it.

Not represented: `<>` and NOT IN, because they are not ranges. They only exclude NULL (null "none").
Source: Kudu's ColumnPredicate (canonical forms, merging); docs/design/rules.md, Z1.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from nyala.lazy_values import LazyValues, lazy_value
from nyala.schema.equality import compared_as_tuples
from nyala.schema.expressions.literals import NAN
from nyala.schema.types import ColumnType

__all__ = ["ANY", "EMPTY", "Constraint", "Nullness", "order_key"]

Nullness = Literal["any", "only", "none"]


def order_key(value: Any) -> Any:
    """Return a sort key in comparison order: NaN last, text as bytes, so that a str compares with a truncated bound."""
    if isinstance(value, float):
        return (value != value, 0.0 if value != value else value)
    return value.encode() if isinstance(value, str) else value


@compared_as_tuples
@dataclass(frozen=True)
class Constraint(LazyValues):
    """A necessary condition on one column. Built by `between`, `one_of`, `intersect` and `union`."""

    lower: Any = None
    lower_inclusive: bool = True
    upper: Any = None
    upper_inclusive: bool = True
    values: tuple[Any, ...] | None = None
    null: Nullness = "any"  # NULL and values satisfy it, only NULL does, or only values do
    empty: bool = False

    # --- building -------------------------------------------------------------------------------

    @staticmethod
    def one_of(values: Iterable[Any]) -> Constraint:
        """Build: equal to one of the values, which may come in any order."""
        keyed = {order_key(value): value for value in values}
        return Constraint.of_ascending(tuple(keyed[key] for key in sorted(keyed)))

    @staticmethod
    def of_ascending(values: tuple[Any, ...], null: Nullness = "none") -> Constraint:
        """Build: equal to one of the values, which are distinct and ascending. `null` says whether NULL matches."""
        if not values:
            return EMPTY if null == "none" else NULL_ONLY
        return Constraint(values[0], True, values[-1], True, values, null)

    @staticmethod
    def between(
        type: ColumnType,
        lower: Any = None,
        upper: Any = None,
        *,
        lower_inclusive: bool = True,
        upper_inclusive: bool = True,
    ) -> Constraint:
        """Build: not NULL and within the bounds, in canonical form (C2, C3). None is unbounded."""
        if type.value_min is not None:
            assert type.value_max is not None
            if lower is not None:
                lower, lower_inclusive = lower + (not lower_inclusive), True
                if lower > type.value_max:
                    return EMPTY
                lower = lower if lower > type.value_min else None
            if upper is not None:
                upper, upper_inclusive = upper - (not upper_inclusive), True
                if upper < type.value_min:
                    return EMPTY
                upper = upper if upper < type.value_max else None
        return Constraint(
            lower, lower_inclusive or lower is None, upper, upper_inclusive or upper is None, None, "none"
        )._checked()

    def _checked(self) -> Constraint:
        """Return this range in the canonical form of C2."""
        if self.lower is None or self.upper is None:
            return self
        lower, upper = order_key(self.lower), order_key(self.upper)
        inclusive = self.lower_inclusive and self.upper_inclusive
        if lower < upper:
            return self
        if lower > upper or not inclusive:
            return EMPTY if self.null == "none" else NULL_ONLY
        return Constraint(self.lower, True, self.upper, True, (self.lower,), self.null)

    # --- combining ------------------------------------------------------------------------------

    @property
    def is_any(self) -> bool:
        """Whether every value and NULL satisfy it."""
        return self == ANY

    @property
    def _has_bounds(self) -> bool:
        return self.lower is not None or self.upper is not None

    def intersect(self, other: Constraint) -> Constraint:
        """Return the constraint that both hold; canonical if both are."""
        if self.empty or other.empty:
            return EMPTY
        null: Nullness = "any"
        if "none" in (self.null, other.null):
            null = "none"
        if "only" in (self.null, other.null):
            return EMPTY if null == "none" else NULL_ONLY
        if self.values is not None or other.values is not None:
            a, b = (self, other) if self.values is not None else (other, self)
            assert a.values is not None
            return Constraint.of_ascending(a._values_admitted_by(b), null)
        lower, lower_inclusive = _tighter(self, other, -1)
        upper, upper_inclusive = _tighter(self, other, +1)
        return Constraint(lower, lower_inclusive, upper, upper_inclusive, None, null)._checked()

    def union(self, other: Constraint) -> Constraint:
        """Return a constraint that holds if at least one does: the hull of two ranges, or the values of both."""
        if self.empty or other.empty:
            return other if self.empty else self
        if self.null == other.null == "only":
            return NULL_ONLY
        null: Nullness = "none" if self.null == other.null == "none" else "any"
        if "only" in (self.null, other.null):
            a = other if self.null == "only" else self
            return Constraint(a.lower, a.lower_inclusive, a.upper, a.upper_inclusive, a.values, null)
        if self.values is not None and other.values is not None:
            both = Constraint.one_of(self.values + other.values)
            return Constraint(both.lower, True, both.upper, True, both.values, null)
        lower, lower_inclusive = _looser(self, other, -1)
        upper, upper_inclusive = _looser(self, other, +1)
        return Constraint(lower, lower_inclusive, upper, upper_inclusive, None, null)

    # --- testing --------------------------------------------------------------------------------

    def admits(self, value: Any) -> bool:
        """Whether a canonical scalar satisfies the constraint; None stands for NULL."""
        if self.empty:
            return False
        if value is None:
            return self.null != "none"
        if self.null == "only":
            return False
        key = order_key(value)
        if self.values is not None:
            keys = self._value_keys
            position = bisect.bisect_left(keys, key)
            return position < len(keys) and bool(keys[position] == key)
        if self.lower is not None:
            lower = order_key(self.lower)
            if key < lower or (key == lower and not self.lower_inclusive):
                return False
        if self.upper is not None:
            upper = order_key(self.upper)
            if key > upper or (key == upper and not self.upper_inclusive):
                return False
        return True

    def _values_admitted_by(self, other: Constraint) -> tuple[Any, ...]:
        """Return our values that satisfy `other`. We have `values`, and `other` is not empty."""
        assert self.values is not None
        if other.values is not None:
            theirs = set(other._value_keys)
            pairs = zip(self._value_keys, self.values, strict=True)
            return tuple(value for key, value in pairs if key in theirs)
        first, end, keys = 0, len(self.values), self._value_keys
        if other.lower is not None:
            find = bisect.bisect_left if other.lower_inclusive else bisect.bisect_right
            first = find(keys, order_key(other.lower))
        if other.upper is not None:
            find = bisect.bisect_right if other.upper_inclusive else bisect.bisect_left
            end = find(keys, order_key(other.upper))
        return self.values[first:end]

    @lazy_value
    def _value_keys(self) -> Sequence[Any]:
        assert self.values is not None
        if isinstance(self.values[0], int):  # then all values are ints
            return self.values
        return [order_key(value) for value in self.values]

    def excludes_range(
        self,
        min: Any,
        max: Any,
        null_count: int | None,
        row_count: int,
        has_nan: bool = False,
    ) -> bool:
        """Whether no row of a zone can satisfy the constraint, so that a scan may skip the zone.

        min, max:   inclusive bounds of the values that are neither NULL nor NaN. They need not occur in the zone:
                    text may be truncated (`max`: truncated and incremented). Text may be str or UTF-8 bytes.
                    None: unknown, or no such value.
        null_count: number of NULLs among the `row_count` rows; None if unknown.
        has_nan:    whether the values may include NaN.
        False is always safe; True is returned only if no row matches.
        """
        if self.empty or row_count <= 0:
            return True
        may_have_null = null_count is None or null_count > 0
        if self.null == "only":
            return not may_have_null
        if self.null == "any" and may_have_null:
            return False
        if null_count is not None and null_count >= row_count:
            return True  # only NULLs, which do not match
        if has_nan and self._admits_nan:
            return False
        return self._excludes_values(min, max)

    @property
    def _admits_nan(self) -> bool:
        bound = self.upper if self.lower is None else self.lower
        return self.admits(NAN) if bound is None or isinstance(bound, float) else False

    def _excludes_values(self, min: Any, max: Any) -> bool:
        lower = None if min is None else order_key(min)
        upper = None if max is None else order_key(max)
        if self.values is not None:
            keys = self._value_keys
            first = 0 if lower is None else bisect.bisect_left(keys, lower)
            last = len(keys) if upper is None else bisect.bisect_right(keys, upper)
            return first >= last
        if self.lower is not None and upper is not None:
            own = order_key(self.lower)
            if upper < own or (upper == own and not self.lower_inclusive):
                return True
        if self.upper is not None and lower is not None:
            own = order_key(self.upper)
            if lower > own or (lower == own and not self.upper_inclusive):
                return True
        return False

    def check(self) -> None:
        """Assert the numbered invariants that need no type."""
        if self.empty or self.null == "only":
            assert (self.lower, self.upper, self.values) == (None, None, None), "C2, C4"
            return
        if self.values is not None:
            keys = self._value_keys
            assert keys and all(a < b for a, b in itertools.pairwise(keys)), "C1: ascending"
            assert order_key(self.lower) == keys[0] and order_key(self.upper) == keys[-1], "C1: ends"
            assert self.lower_inclusive and self.upper_inclusive, "C1: inclusive"
        elif self.lower is not None and self.upper is not None:
            assert order_key(self.lower) < order_key(self.upper), "C2"

    def __str__(self) -> str:
        if self.empty:
            return "nothing"
        if self.null == "only":
            return "NULL"
        if self.values is not None:
            shown = ", ".join(repr(value) for value in self.values[:5])
            text = f"in ({shown}{', …' if len(self.values) > 5 else ''})"
        elif self._has_bounds:
            opening = "[" if self.lower_inclusive and self.lower is not None else "("
            closing = "]" if self.upper_inclusive and self.upper is not None else ")"
            lower = "" if self.lower is None else repr(self.lower)
            text = f"in {opening}{lower}, {'' if self.upper is None else repr(self.upper)}{closing}"
        else:
            return "not NULL" if self.null == "none" else "anything"
        return text + (" or NULL" if self.null == "any" else "")


def _bound(constraint: Constraint, side: int) -> tuple[Any, bool]:
    if side < 0:
        return constraint.lower, constraint.lower_inclusive
    return constraint.upper, constraint.upper_inclusive


def _tighter(a: Constraint, b: Constraint, side: int) -> tuple[Any, bool]:
    """Return the stricter bound of `side` (-1 lower, +1 upper)."""
    (x, x_inclusive), (y, y_inclusive) = _bound(a, side), _bound(b, side)
    if x is None or y is None:
        return (y, y_inclusive) if x is None else (x, x_inclusive)
    x_key, y_key = order_key(x), order_key(y)
    if x_key == y_key:
        return x, x_inclusive and y_inclusive
    return (x, x_inclusive) if (x_key < y_key) == (side > 0) else (y, y_inclusive)


def _looser(a: Constraint, b: Constraint, side: int) -> tuple[Any, bool]:
    """Return the looser bound of `side`."""
    (x, x_inclusive), (y, y_inclusive) = _bound(a, side), _bound(b, side)
    if x is None or y is None:
        return None, True
    x_key, y_key = order_key(x), order_key(y)
    if x_key == y_key:
        return x, x_inclusive or y_inclusive
    return (x, x_inclusive) if (x_key < y_key) == (side < 0) else (y, y_inclusive)


ANY: Final = Constraint()
EMPTY: Final = Constraint(null="none", empty=True)
NULL_ONLY: Final = Constraint(null="only")
