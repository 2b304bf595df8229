"""Constraint: the values of one column that a predicate allows, as a range or a list.

    a > 3 AND a IN (1, 5, 9) AND (b = 'x' OR b = 'z')        a: 5 or 9       b: 'x' or 'z'
    c IS NULL OR c < 10                                      c: below 10, or NULL

Scans skip partitions, rowsets and blocks in which no value satisfies the constraint. A constraint
may be weaker than the predicate: every row that the predicate selects satisfies the constraints of
all columns, but other rows may too.

Bounds and values are in canonical form (`nyala.schema.types`). Their order is that of comparisons:
text by its UTF-8 bytes, NaN equal to NaN and greater than all other values, -0.0 equal to 0.0.

Invariants
    C1  `values`, if set, are ascending and distinct. The first equals `lower` and the last `upper`,
        both inclusive.
    C2  `lower` is below `upper`. A range of one value is a list of this value. A constraint that
        nothing satisfies has `empty` and no bounds.
    C3  Bounds of an integer, date, timestamp or decimal are inclusive. A lower bound at the least
        value of the type is None, and so is an upper bound at the greatest value.
    C4  If `null` is "only", only NULL satisfies the constraint, and it has no bounds.

The conditions `<>` and NOT IN are not ranges. Their constraint only excludes NULL.
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
    """Return a sort key for a canonical value, which sorts in the order of comparisons, NaN last.

    Text becomes its UTF-8 bytes, because a bound in a zone map may be bytes of a text that was cut.
    """
    if isinstance(value, float):
        return (value != value, 0.0 if value != value else value)
    return value.encode() if isinstance(value, str) else value


@compared_as_tuples
@dataclass(frozen=True)
class Constraint(LazyValues):
    """The values of one column that a predicate allows.

    `between` and `one_of` build a constraint, `intersect` and `union` combine two.
    """

    lower: Any = None
    lower_inclusive: bool = True
    upper: Any = None
    upper_inclusive: bool = True
    values: tuple[Any, ...] | None = None
    null: Nullness = "any"  # "any": NULL satisfies it too; "only": nothing else does; "none": NULL does not
    empty: bool = False

    # --- building -------------------------------------------------------------------------------

    @staticmethod
    def one_of(values: Iterable[Any]) -> Constraint:
        """Return the constraint that exactly these values satisfy. They may have any order."""
        keyed = {order_key(value): value for value in values}
        return Constraint.of_ascending(tuple(keyed[key] for key in sorted(keyed)))

    @staticmethod
    def of_ascending(values: tuple[Any, ...], null: Nullness = "none") -> Constraint:
        """Return the constraint that exactly these values satisfy. They must be ascending.

        null: "any" if NULL satisfies the constraint too.
        """
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
        """Return the constraint that exactly the values between two bounds satisfy. NULL does not.

        A bound of None means that this side has no bound.
        """
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
        )._canonical()

    def _canonical(self) -> Constraint:
        """Return the simplest equal constraint.

        A range with exactly one value becomes a list of this value. A range without any value
        becomes `EMPTY`, or `NULL_ONLY` if the constraint accepts NULL too. Other constraints are
        returned unchanged.
        """
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
    def _has_bounds(self) -> bool:
        return self.lower is not None or self.upper is not None

    def intersect(self, other: Constraint) -> Constraint:
        """Return the constraint of the values that satisfy both constraints."""
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
        return Constraint(*_bounds_of(self, other, strict=True), None, null)._canonical()

    def union(self, other: Constraint) -> Constraint:
        """Return a constraint that allows all values that this or the other constraint allows.

        The union of two ranges also contains the gap between them.
        """
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
        return Constraint(*_bounds_of(self, other, strict=False), None, null)

    # --- testing --------------------------------------------------------------------------------

    def admits(self, value: Any) -> bool:
        """Whether a value satisfies the constraint.

        value: in canonical form (`nyala.schema.types`); None is NULL.
        """
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
        """Return the items of `values` that satisfy `other`.

        other: must not be empty (a constraint that no value satisfies).
        """
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
        """Whether no row of a zone, such as a block, can satisfy the constraint. Then a scan may
        skip the zone.

        min, max:   inclusive bounds of the values without NULL and NaN; None if unknown, or if
                    there are no such values. Text is a str or its UTF-8 bytes. Bounds of long texts
                    may be shortened, if they remain bounds.
        null_count: how many of the `row_count` rows are NULL; None if unknown.
        has_nan:    whether the zone may contain NaN.
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
        """Assert that the bounds and values are consistent.

        Values must be ascending, and begin and end at the bounds. Without values, the lower bound
        must be below the upper one. A constraint that nothing or only NULL satisfies must have
        neither bounds nor values.
        """
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


def _bounds_of(a: Constraint, b: Constraint, strict: bool) -> tuple[Any, bool, Any, bool]:
    """Return the stricter bounds of two constraints, or the looser ones if not `strict`.

    The result is (lower, lower_inclusive, upper, upper_inclusive).
    """
    lower = _choose_bound((a.lower, a.lower_inclusive), (b.lower, b.lower_inclusive), strict, greater=strict)
    upper = _choose_bound(
        (a.upper, a.upper_inclusive), (b.upper, b.upper_inclusive), strict, greater=not strict
    )
    return *lower, *upper


def _choose_bound(
    a: tuple[Any, bool], b: tuple[Any, bool], strict: bool, *, greater: bool
) -> tuple[Any, bool]:
    """Return one of two bounds, each given as (value, is inclusive). The value None means no bound.

    greater: return the bound with the greater value, otherwise the one with the lesser value.
    strict:  which bound to return if a value is None, or if both values are equal. True: the bound
             that excludes more values. False: the bound that excludes fewer values.
    """
    if a[0] is None or b[0] is None:
        if not strict:
            return None, True
        return b if a[0] is None else a
    a_key, b_key = order_key(a[0]), order_key(b[0])
    if a_key == b_key:
        return a[0], a[1] and b[1] if strict else a[1] or b[1]
    return a if (a_key > b_key) == greater else b


ANY: Final = Constraint()
EMPTY: Final = Constraint(null="none", empty=True)
NULL_ONLY: Final = Constraint(null="only")
