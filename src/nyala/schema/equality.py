"""Equality of what may hold NaN: predicates, constraints, columns with a default.

NaN is one object here (`literals.NAN`), so that tuples which hold it are equal: a tuple asks whether two things are one
before it asks whether they are equal. So did dataclasses, which compared tuples of their fields, up to Python 3.12;
from 3.13 on they compare field by field, and a schema with a default of NaN is not the one that was written.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import Any, TypeVar

__all__ = ["compared_as_tuples"]

_Class = TypeVar("_Class", bound=type)


def compared_as_tuples(cls: _Class) -> _Class:
    """Of a dataclass: objects of this very class are equal if the tuples of their fields are."""
    names = [field.name for field in dataclasses.fields(cls) if field.compare]
    # Of one name attrgetter gives no tuple.
    all_of = operator.attrgetter(*names, names[-1])

    def equal(self: Any, other: object) -> Any:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return all_of(self) == all_of(other)

    cls.__eq__ = equal  # type: ignore[assignment]  # hashes stay: they are of the same fields
    return cls
