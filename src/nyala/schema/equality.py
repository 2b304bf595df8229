"""Equality of dataclasses whose fields may contain NaN, such as a column with the default NaN.

NaN does not equal NaN in Python. But two tuples that contain the same NaN object are equal, because
tuples first compare their items by identity. So Nyala always uses one NaN object (`literals.NAN`),
and this module compares the fields of dataclasses as tuples. Python 3.13 would compare them one by
one.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import Any, TypeVar

__all__ = ["compared_as_tuples"]

_Class = TypeVar("_Class", bound=type)


def compared_as_tuples(cls: _Class) -> _Class:
    """Class decorator: two objects of the dataclass are equal if the tuples of their fields are
    equal.
    """
    names = [field.name for field in dataclasses.fields(cls) if field.compare]
    # The last name is given twice, because attrgetter returns a tuple only for two names or more.
    all_of = operator.attrgetter(*names, names[-1])

    def equal(self: Any, other: object) -> Any:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return all_of(self) == all_of(other)

    cls.__eq__ = equal  # type: ignore[assignment]  # the hash of the dataclass uses the same fields
    return cls
