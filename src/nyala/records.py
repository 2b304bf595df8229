"""`dataclass` as the standard library has it, but made in half the time.

The standard decorator writes the text of up to six methods for each class and compiles it: about 1 ms per class. This
package has 200 such classes, and a program that opens a store waits for most of them. Here the standard decorator makes
the fields, `__init__` and the refusal to change a frozen object. Comparison, hash and text are plain functions.

Objects of one class are equal if the tuples of their fields are equal. A tuple compares identity before equality, so
fields that hold the one NaN of `nyala.schema.literals` are equal. (The standard decorator does the same up to
Python 3.12, and compares field by field from 3.13 on.)
"""

from __future__ import annotations

import dataclasses
import operator
import reprlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls: type | None = None, /, *, frozen: bool = False, eq: bool = True) -> Any:
        """As `dataclasses.dataclass`, for the two options that this package uses."""

        def make(cls: type) -> type:
            methods: dict[str, Any] = {"__repr__": _text}
            own = [name for name in ("__repr__", "__eq__", "__hash__") if _defines(cls, name)]
            made = dataclasses.dataclass(cls, frozen=frozen, repr=False, eq=False)
            if eq:
                methods["__eq__"], hashed = _compared(made)
                methods["__hash__"] = hashed if frozen else None
            for name in methods.keys() - own:
                setattr(made, name, methods[name])
            return made

        return make if cls is None else make(cls)


def _defines(cls: type, name: str) -> bool:
    """Whether the class has a method of its own, and does not inherit it."""
    method = getattr(cls, name)
    return method is not None and method is not getattr(cls.__mro__[1], name)


@reprlib.recursive_repr()
def _text(self: Any) -> str:
    shown = (
        f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr
    )
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _compared(made: Any) -> tuple[Callable[[Any, object], Any], Callable[[Any], int]]:
    """`__eq__` and `__hash__` of a dataclass."""
    names = [field.name for field in dataclasses.fields(made) if field.compare]
    values: Callable[[Any], Any] = operator.attrgetter(*names) if names else lambda _: ()

    def equal(self: Any, other: object) -> Any:
        if other.__class__ is not self.__class__:
            return NotImplemented
        mine, others = values(self), values(other)
        return mine is others or mine == others  # attrgetter makes no tuple of a single value

    def hashed(self: Any) -> int:
        return hash(values(self))

    return equal, hashed
