"""`dataclass` as the standard library has it, but made in a third of the time.

The standard decorator writes the text of up to six methods for each class and compiles it: about 1 ms per class. This
package has 200 such classes, and a program that opens a store waits for most of them. Here only `__init__` is compiled.
The other methods are plain functions, and the standard decorator still makes the fields, so `dataclasses.fields`,
`replace` and `asdict` work.

Objects of one class are equal if the tuples of their fields are equal. A tuple compares identity before equality, so
fields that hold the one NaN of `nyala.schema.literals` are equal. (The standard decorator does the same up to
Python 3.12, and compares field by field from 3.13 on.)
"""

from __future__ import annotations

import dataclasses
import operator
import reprlib
from collections.abc import Callable
from dataclasses import MISSING
from typing import TYPE_CHECKING, Any, NoReturn

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls: type | None = None, /, *, frozen: bool = False, eq: bool = True) -> Any:
        """As `dataclasses.dataclass`, for the two options that this package uses."""

        def make(cls: type) -> type:
            methods: dict[str, Any] = {"__repr__": _text}
            own = [name for name in ("__repr__", "__eq__", "__hash__") if _defines(cls, name)]
            made = dataclasses.dataclass(cls, init=False, repr=False, eq=False)
            if eq:
                methods["__eq__"], hashed = _compared(made)
                methods["__hash__"] = hashed if frozen else None
            if frozen:
                methods["__setattr__"], methods["__delattr__"] = _refuse, _refuse
            methods["__init__"] = _constructor(made, frozen)
            for name in methods.keys() - own:
                setattr(made, name, methods[name])
            return made

        return make if cls is None else make(cls)


def _defines(cls: type, name: str) -> bool:
    """Whether the class has a method of its own, and does not inherit it."""
    method = getattr(cls, name)
    return method is not None and method is not getattr(cls.__mro__[1], name)


def _constructor(made: Any, frozen: bool) -> Callable[..., None]:
    """`__init__` of a dataclass. An object that is frozen gets its values past its own `__setattr__`."""
    names: dict[str, Any] = {"_set": object.__setattr__, "_missing": MISSING}
    parameters, lines = ["self"], []
    for field in dataclasses.fields(made):
        name, value = field.name, field.name
        if field.default_factory is not MISSING:
            names[f"_make_{name}"] = field.default_factory
            value = f"_make_{name}() if {name} is _missing else {name}" if field.init else f"_make_{name}()"
            parameters += [f"{name}=_missing"] if field.init else []
        elif not field.init:
            continue
        elif field.default is not MISSING:
            names[f"_default_{name}"] = field.default
            parameters.append(f"{name}=_default_{name}")
        else:
            parameters.append(name)
        lines.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(made, "__post_init__"):
        lines.append("self.__post_init__()")
    text = f"def __init__({', '.join(parameters)}):\n " + "\n ".join(lines or ["pass"])
    exec(text, names)
    constructor: Callable[..., None] = names["__init__"]
    constructor.__qualname__ = f"{made.__qualname__}.__init__"
    return constructor


def _refuse(self: Any, name: str, *_: object) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"field {name!r} of a {type(self).__name__} cannot be changed")


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
