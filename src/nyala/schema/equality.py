"""Equality of dataclasses that may contain NaN: predicates, constraints, columns with a default.

Nyala uses one NaN object (`literals.NAN`), so that tuples that contain it are equal: a tuple compares its items by
identity before equality. Up to Python 3.12, dataclasses compared tuples of their fields. Since 3.13 they compare field
by field, so a schema with a NaN default would not equal itself after a round trip.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import Any, TypeVar

__all__ = ["compared_as_tuples"]

_Class = TypeVar("_Class", bound=type)


def compared_as_tuples(cls: _Class) -> _Class:
    """Class decorator: objects of the same dataclass are equal if the tuples of their fields are equal."""
    names = [field.name for field in dataclasses.fields(cls) if field.compare]
    # The name is repeated because attrgetter returns no tuple for a single name.
    all_of = operator.attrgetter(*names, names[-1])

    def equal(self: Any, other: object) -> Any:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return all_of(self) == all_of(other)

    cls.__eq__ = equal  # type: ignore[assignment]  # the hash uses the same fields
    return cls
