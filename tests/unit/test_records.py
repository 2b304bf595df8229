"""`nyala.records.dataclass` behaves as the standard decorator, for every option that the package uses."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import field
from types import SimpleNamespace
from typing import Any, Final

import pytest

from nyala import records

NAN: Final = float("nan")


def classes(dataclass: Callable[..., Any]) -> SimpleNamespace:
    """The same classes, made by one decorator or the other."""

    @dataclass
    class Plain:
        a: int
        b: list[int] = field(default_factory=list)
        c: str = "c"

    @dataclass(frozen=True)
    class Frozen:
        a: object
        hidden: int = field(default=0, repr=False, compare=False)
        made: int = field(init=False, default=7)
        listed: tuple[int, ...] = field(init=False, default_factory=tuple)

        def __post_init__(self) -> None:
            object.__setattr__(self, "made", self.made + 1)

    @dataclass(frozen=True)
    class Child(Frozen):
        b: int = 2

    @dataclass(frozen=True, eq=False)
    class Identity:
        a: int

    @dataclass(frozen=True)
    class Own:
        a: int

        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, type(self))

    @dataclass(frozen=True)
    class Empty:
        pass

    return SimpleNamespace(**{name: cls for name, cls in locals().items() if isinstance(cls, type)})


def behaviour(c: SimpleNamespace) -> list[object]:
    """What a program can see of the classes."""
    seen: list[object] = []

    def see(what: Callable[[], object]) -> None:
        try:
            seen.append(what())
        except Exception as error:
            seen.append(type(error))

    for make in (
        lambda: c.Plain(1),
        lambda: c.Plain(1, [2], c="d"),
        lambda: c.Plain(),
        lambda: c.Plain(1, 2, 3, 4),
        lambda: c.Plain(1, x=2),
        lambda: c.Frozen((1, 2), 5),
        lambda: c.Frozen("a", made=1),
        lambda: c.Child(1, b=3),
        lambda: c.Identity(1),
        lambda: c.Own(1),
        lambda: c.Empty(),
    ):
        see(lambda make=make: repr(make()))
        see(lambda make=make: make() == make())
        see(lambda make=make: make() != make())
        see(lambda make=make: len({make(), make()}))
        see(lambda make=make: setattr(made := make(), "a", 5) or made.a)
        see(lambda make=make: delattr(make(), "a"))
        see(lambda make=make: dataclasses.asdict(make()))
        see(lambda make=make: repr(dataclasses.replace(make(), a=3)))
        see(lambda make=make: repr(copy.copy(make())))
    seen.append([c.Plain(1).b is c.Plain(1).b, c.Frozen(1) == c.Frozen(1, 9), c.Frozen(1) == c.Frozen(2)])
    seen.append(
        [c.Frozen(1) == c.Child(1), c.Child(1).__match_args__, hash(c.Frozen(1)) == hash(c.Frozen(1, 9))]
    )
    return seen


def test_classes_behave_as_those_of_the_standard_library() -> None:
    assert behaviour(classes(records.dataclass)) == behaviour(classes(dataclasses.dataclass))


@records.dataclass(frozen=True)
class Pair:
    left: object
    right: object = None


@records.dataclass(frozen=True)
class Single:
    value: object


def test_fields_that_hold_one_nan_are_equal() -> None:
    """On every Python: the standard decorator compares field by field from 3.13 on."""
    assert Pair(NAN, (NAN,)) == Pair(NAN, (NAN,))
    assert Single(NAN) == Single(NAN) and Single(NAN) != Single(float("nan"))


def test_objects_are_pickled() -> None:
    assert pickle.loads(pickle.dumps(Pair(1, "b"))) == Pair(1, "b")


def test_a_frozen_object_says_which_field_it_keeps() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError, match="'left'"):
        Pair(1).left = 2  # type: ignore[misc]
