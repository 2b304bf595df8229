"""Splits a predicate into tests that need one column each, and a rest that needs several columns.

    kind <> 'x' AND n > 3 AND n < m AND (mode = 'a' OR mode LIKE 'b%')

        kind, n, mode    one ColumnTest each, by which a scan filters one column after the other
        n < m            the rest: a scan evaluates it on the rows that remain

Some encodings can test a column without decoding it. For a dictionary, only the entries are tested.
Packed numbers are compared with the bounds of the test's constraint, if this is equivalent to the
test.

Invariants
    T1  The predicate is TRUE in exactly the rows that pass all column tests and the rest.
    T2  A test never raises an error. Terms that may fail are in the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from nyala.schema.arrow_values import Mask
from nyala.schema.expressions.evaluate import Bound, BoundAnd, BoundCompare, BoundIn, has_arrow
from nyala.schema.predicates.constraint import Constraint
from nyala.schema.schema import ColumnSchema

__all__ = ["ColumnTest", "has_exact_constraint", "split_by_column"]


@dataclass(frozen=True, eq=False)
class ColumnTest:
    """All terms of an AND that use only `column`. Tests are compared by identity."""

    column: ColumnSchema
    parts: tuple[Bound, ...]
    constraint: Constraint | None
    """A constraint that is equivalent to the parts; None if no constraint is."""
    admits_null: bool
    """Whether NULL passes the test."""

    @staticmethod
    def of(column: ColumnSchema, parts: Iterable[Bound], constraint: Constraint | None) -> ColumnTest:
        """Build the test of one column. parts: the terms of the AND that use only this column.

        constraint: the column's constraint, which the test keeps if it is equivalent to the terms.
        """
        parts = tuple(sorted(parts, key=lambda part: part.rank))
        exact = constraint if all(map(has_exact_constraint, parts)) else None
        null = pa.nulls(1, column.type.arrow)
        admits_null = all(bool(part.mask({column.name: null}, 1)[0]) for part in parts)
        return ColumnTest(column, parts, exact, admits_null)

    @property
    def is_costly(self) -> bool:
        """Whether the test of a value takes longer than gathering the value from an array."""
        return any(part.rank >= _COSTLY_RANK for part in self.parts)

    def mask(self, values: pa.Array) -> Mask:
        """Return a new mask of the values that pass the test.

        values: in the canonical type of the column, dictionary-encoded, or as decimals of 4 or 8
        bytes.
        Cost: one or two NumPy or Arrow calls per part.
        """
        arrays = {self.column.name: values}
        first, *others = self.parts
        mask = first.mask(arrays, len(values))
        for part in others:
            if not mask.any():
                break
            mask = np.logical_and(mask, part.mask(arrays, len(values)), out=mask)
        return mask


# `Bound.rank` of LIKE and of more expensive conditions.
_COSTLY_RANK = 10


def split_by_column(
    terms: Iterable[Bound], constraints: Mapping[str, Constraint], columns: Iterable[ColumnSchema]
) -> tuple[tuple[ColumnTest, ...], Bound | None]:
    """Split the terms of an AND into one test per column, and the AND of the other terms.

    The tests and this second AND are TRUE together in exactly the rows in which all terms are TRUE.
    The cheapest test comes first. The second AND is None if there are no other terms.

    terms:       the terms of one AND.
    constraints: the range or list of values that each column must match, by column name.
    columns:     at least the columns that the terms read.
    """
    of_columns: dict[str, list[Bound]] = {}
    rest: list[Bound] = []
    for term in terms:
        if len(term.columns) == 1 and not term.can_fail and not has_arrow(term):
            (name,) = term.columns
            of_columns.setdefault(name, []).append(term)
        else:
            rest.append(term)
    known = {column.name: column for column in columns}
    tests = [ColumnTest.of(known[name], parts, constraints.get(name)) for name, parts in of_columns.items()]
    tests.sort(key=lambda test: max(part.rank for part in test.parts))
    return tuple(tests), None if not rest else rest[0] if len(rest) == 1 else BoundAnd(tuple(rest))


def has_exact_constraint(part: Bound) -> bool:
    """Whether the condition is a range or an IN list, so that its constraint means the same."""
    return (isinstance(part, BoundCompare) and part.op != "<>" and not part.column.type.is_floating) or (
        isinstance(part, BoundIn) and not part.negated and not part.column.type.is_floating
    )
