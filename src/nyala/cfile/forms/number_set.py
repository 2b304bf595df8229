"""The stored numbers that satisfy a test of a column: values, or dictionary codes.

    all         [least, greatest]                        a range of numbers; neighbouring dictionary codes
    values      some of these, ascending                 a list of values
    marked      some of these, marked from 0 on          dictionary codes

A `Frame` converts the numbers to its deltas, and a kernel compares the deltas of the rows with them. So a filter of a
dictionary column costs the same however many entries satisfy it.

Immutable; any thread may use it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from nyala.schema.predicates.constraint import Constraint

__all__ = ["NOTHING", "NumberSet"]

_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True, eq=False)
class NumberSet:
    """Made by `of` and `of_marked`. Memory of others, not to be changed."""

    least: int  # of all that are in it
    greatest: int  # below `least`: nothing is
    values: npt.NDArray[np.int64] | None = None
    marked: npt.NDArray[np.uint8] | None = None

    @staticmethod
    def of(constraint: Constraint) -> NumberSet:
        """Of integers, NULLs aside. Those beyond 64 bits are none."""
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
    def of_marked(mask: npt.NDArray[np.bool_]) -> NumberSet:
        """Of the numbers from 0 on those whose place in a contiguous mask is marked."""
        places = np.flatnonzero(mask)
        if not len(places):
            return NOTHING
        least, greatest = int(places[0]), int(places[-1])
        is_range = greatest - least < len(places)
        return NumberSet(least, greatest, marked=None if is_range else mask.view(np.uint8))

    @property
    def is_empty(self) -> bool:
        return self.greatest < self.least

    @property
    def is_range(self) -> bool:
        """Whether it has all from `least` to `greatest`."""
        return self.values is None and self.marked is None

    def has(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Of each number whether it is in it."""
        if self.values is not None:
            return np.isin(numbers, self.values)
        inside: npt.NDArray[np.bool_] = (self.least <= numbers) & (numbers <= self.greatest)
        if self.marked is not None:
            inside &= self.marked[np.where(inside, numbers, 0)].view(np.bool_)
        return inside

    def of_line(self, base: int, unit: int, most: int) -> npt.NDArray[np.bool_]:
        """Of each delta from 0 to `most` whether base + unit · delta is in it; not of a range, which takes no table.

        Cost: of marks, to copy a part of them; of values, a few calls, and those that it may have.
        """
        table = np.zeros(most + 1, np.bool_)
        if self.marked is not None:
            first, last = max(0, -(base // unit)), min(most, (self.greatest - base) // unit)
            if first <= last:
                lower, upper = base + unit * first, base + unit * last + 1
                table[first : last + 1] = self.marked[lower:upper:unit].view(np.bool_)
            return table
        assert self.values is not None
        lower, upper = np.searchsorted(self.values, [base, min(base + unit * most, _INT64_MAX)])
        # None of these is below the base, so their differences from it are of 64 bits without a sign.
        above = self.values[lower : upper + 1].view(np.uint64) - np.array(base, np.int64).view(np.uint64)
        deltas, rest = np.divmod(above, np.uint64(unit))
        table[deltas[(rest == 0) & (deltas <= most)]] = True
        return table


NOTHING: Final = NumberSet(1, 0)
