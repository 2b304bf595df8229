"""A set of stored numbers that satisfy a predicate: integer values or dictionary codes.

A set has one of three representations:

    a range (least, greatest)                for a range of values, or adjacent dictionary codes
    `values`, a sorted list                  for an IN list of values
    `mask`, one byte per number, from 0 on   for other dictionary codes

A block stores its numbers as packed integers. `forms.frame` converts the set to packed integers
too, and a kernel compares both, so no row is decoded. With `mask`, a filter of a dictionary column
costs the same for any number of matching entries.

Immutable; any thread may use it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from nyala.schema.predicates.constraint import Constraint

_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True, eq=False)
class NumberSet:
    """A set of integers. `of` and `of_mask` create it. Its arrays must not be changed."""

    least: int  # of all numbers in the set
    greatest: int  # below `least` if the set is empty
    values: npt.NDArray[np.int64] | None = None
    mask: npt.NDArray[np.uint8] | None = None

    @staticmethod
    def of(constraint: Constraint) -> NumberSet:
        """Return the set of the 64-bit integers that satisfy a constraint. Ignores NULL."""
        if constraint.empty or constraint.null == "only":
            return NOTHING
        if constraint.values is not None:
            inside: Sequence[int] = constraint.values
            if not _INT64_MIN <= inside[0] <= inside[-1] <= _INT64_MAX:
                inside = [value for value in inside if _INT64_MIN <= value <= _INT64_MAX]
            if not inside:
                return NOTHING
            values = np.array(inside, np.int64) if len(inside) > 1 else None
            return NumberSet(inside[0], inside[-1], values)
        least = _INT64_MIN if constraint.lower is None else max(constraint.lower, _INT64_MIN)
        greatest = _INT64_MAX if constraint.upper is None else min(constraint.upper, _INT64_MAX)
        return NumberSet(least, greatest)

    @staticmethod
    def of_mask(mask: npt.NDArray[np.bool_]) -> NumberSet:
        """Return the set of the positions at which a contiguous mask is True."""
        positions = np.flatnonzero(mask)
        if not len(positions):
            return NOTHING
        least, greatest = int(positions[0]), int(positions[-1])
        is_range = greatest - least < len(positions)
        return NumberSet(least, greatest, mask=None if is_range else mask.view(np.uint8))

    @property
    def is_empty(self) -> bool:
        return self.greatest < self.least

    @property
    def is_range(self) -> bool:
        """Whether the set contains every number from `least` to `greatest`."""
        return self.values is None and self.mask is None

    def contains(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return one bool per number: whether the set contains it."""
        if self.values is not None:
            # `np.isin` would sort all values for each block.
            at = np.searchsorted(self.values, numbers)
            found: npt.NDArray[np.bool_] = self.values.take(at, mode="clip") == numbers
            return found
        inside: npt.NDArray[np.bool_] = (self.least <= numbers) & (numbers <= self.greatest)
        if self.mask is not None:
            inside &= self.mask[np.where(inside, numbers, 0)].view(np.bool_)
        return inside

    def matching_deltas(self, base: int, unit: int, most: int) -> npt.NDArray[np.bool_]:
        """Return one bool per delta from 0 to `most`: whether base + unit · delta is in the set.

        The set must not be a range.
        """
        table = np.zeros(most + 1, np.bool_)
        if self.mask is not None:
            first, last = max(0, -(base // unit)), min(most, (self.greatest - base) // unit)
            if first <= last:
                lower, upper = base + unit * first, base + unit * last + 1
                table[first : last + 1] = self.mask[lower:upper:unit].view(np.bool_)
            return table
        assert self.values is not None
        lower, upper = np.searchsorted(self.values, [base, min(base + unit * most, _INT64_MAX)])
        # These values are not below the base, so the differences fit unsigned 64 bits.
        above = self.values[lower : upper + 1].view(np.uint64) - np.array(base, np.int64).view(np.uint64)
        deltas, rest = np.divmod(above, np.uint64(unit))
        table[deltas[(rest == 0) & (deltas <= most)]] = True
        return table


NOTHING: Final = NumberSet(1, 0)
