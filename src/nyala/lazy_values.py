"""Attributes that an object computes at their first read, safe for objects that threads share.

    class Table(LazyValues):
        @lazy_value
        def names(self) -> tuple[str, ...]:
            return tuple(column.name for column in self.columns)

`functools.cached_property` is not safe here, because it stores its value in the instance's
`__dict__`. CPython 3.11 creates `__dict__` at its first access, and may run the garbage collector
while doing so. Finalizers may then let another thread run. If this thread also creates the
`__dict__` of the same instance, both dictionaries use the same memory, and the process crashes
later. For the same reason no code of this package reads `__dict__`, calls `vars()` on an instance,
or adds an attribute to an object after its constructor.

Invariants
    L1  Values are stored in a plain dictionary in a slot. `__new__` creates this dictionary before
        another thread can use the object.
    L2  Two threads may compute a value at the same time. The value of the thread that finishes first
        is stored, and both threads get it.
    L3  Objects with lazy values cannot be copied or pickled by default, because a copy would share
        the dictionary. A class that needs copies defines `__reduce__`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, NoReturn, Self, TypeVar, overload

_Value = TypeVar("_Value")


class LazyValues:
    """Base class for objects with attributes that are computed at their first read.

    A frozen dataclass can have this base class, too.
    """

    __slots__ = ("_lazy_values",)
    _lazy_values: dict[str, Any]

    def __new__(cls, *_: Any, **__: Any) -> Self:
        made = super().__new__(cls)
        object.__setattr__(made, "_lazy_values", {})
        return made

    def __getstate__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be copied or pickled")


class lazy_value(Generic[_Value]):
    """Decorator for a method of a `LazyValues` class: an attribute that is computed once, at its
    first read.

    Two threads may both run the computation, so it must always return equal values.
    """

    def __init__(self, compute: Callable[[Any], _Value]) -> None:
        self.__doc__ = compute.__doc__
        self._compute = compute
        self._name = compute.__name__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: LazyValues, owner: type) -> _Value: ...

    def __get__(self, instance: LazyValues | None, owner: type) -> Self | _Value:
        if instance is None:
            return self
        try:
            return instance._lazy_values[self._name]  # type: ignore[no-any-return]
        except KeyError:
            pass
        value = self._compute(instance)
        return instance._lazy_values.setdefault(self._name, value)  # type: ignore[no-any-return]

    def __set__(self, instance: LazyValues, value: object) -> NoReturn:
        raise AttributeError(f"{type(instance).__name__}.{self._name} is computed and cannot be set")


def share_lazy_values(source: LazyValues, receiver: LazyValues, names: Iterable[str]) -> None:
    """Copy the values in `names` that `source` has already computed to `receiver`.

    No other thread may use `receiver` yet.
    """
    computed = source._lazy_values
    receiver._lazy_values.update({name: computed[name] for name in names if name in computed})
