from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import threading
from dataclasses import dataclass, replace
from typing import Final

import pytest

from nyala.lazy_values import LazyValues, lazy_value, share_lazy_values


class Plain(LazyValues):
    def __init__(self, number: int) -> None:
        self.number = number

    @lazy_value
    def numbers(self) -> list[int]:
        """A new list."""
        return [self.number]


@dataclass(frozen=True)
class Frozen(LazyValues):
    number: int

    @lazy_value
    def numbers(self) -> list[int]:
        return [self.number]


@dataclass(frozen=True, slots=True)
class Slots(LazyValues):
    number: int

    @lazy_value
    def numbers(self) -> list[int]:
        return [self.number]


@pytest.mark.parametrize("make", [Plain, Frozen, Slots])
def test_a_value_is_computed_once_for_each_object(make: type[Plain]) -> None:
    one, other = make(1), make(2)
    assert one.numbers == [1] and other.numbers == [2]
    assert one.numbers is one.numbers
    with pytest.raises((AttributeError, TypeError)):  # TypeError: of CPython, for frozen classes with slots
        one.numbers = [3]


def test_frozen_dataclasses_compare_and_change_by_their_fields() -> None:
    one = Frozen(1)
    assert one.numbers == [1]
    assert one == Frozen(1) and hash(one) == hash(Frozen(1)) and repr(one) == "Frozen(number=1)"
    assert replace(one, number=2).numbers == [2]
    assert Plain.numbers.__doc__ == "A new list."


def test_an_error_is_not_kept() -> None:
    class Failing(LazyValues):
        def __init__(self) -> None:
            self.tries = 0

        @lazy_value
        def value(self) -> int:
            self.tries += 1
            if self.tries == 1:
                raise KeyError("value")
            return self.tries

    failing = Failing()
    with pytest.raises(KeyError):
        _ = failing.value
    assert failing.value == 2 == failing.value


def test_two_threads_get_the_same_value() -> None:
    both = threading.Barrier(2)

    class Slow(LazyValues):
        @lazy_value
        def numbers(self) -> list[int]:
            both.wait(60)
            return []

    slow, found = Slow(), list[list[int]]()
    threads = [threading.Thread(target=lambda: found.append(slow.numbers)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] is found[1] is slow.numbers


def test_a_copy_would_share_the_values() -> None:
    for act in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="a Frozen cannot be copied or pickled"):
            act(Frozen(1))  # type: ignore[operator]
    slots = Slots(1)
    assert slots.numbers == [1]
    assert pickle.loads(pickle.dumps(slots)) == slots  # dataclasses with slots pickle their fields


def test_values_go_to_a_new_object() -> None:
    one, other = Frozen(1), Frozen(2)
    numbers = one.numbers
    share_lazy_values(one, other, ("numbers", "unknown"))
    assert other.numbers is numbers


# While the first thread computes a value, the garbage collector lets another thread read it. With
# functools.cached_property, this crashes CPython 3.11.
INTERRUPTED: Final = """
import gc, threading
from dataclasses import dataclass, make_dataclass
from nyala.lazy_values import LazyValues, lazy_value

class Plain(LazyValues):
    def __init__(self, a, b): self.a = a; self.b = b
    @lazy_value
    def lazy(self): return [[n] for n in range(200)]
@dataclass(frozen=True)
class Frozen(LazyValues):
    a: int
    b: list
    lazy = Plain.lazy
@dataclass(frozen=True, slots=True)
class Slots(LazyValues):
    a: int
    b: list
    lazy = Plain.lazy
more = [(f"more{n}", int, 0) for n in range(50)]
Wide = make_dataclass("Wide", [("a", int), ("b", list), *more], bases=(LazyValues,), namespace={"lazy": Plain.lazy})

main, armed, entered, found = threading.get_ident(), False, 0, []
def let_another_thread_in(phase, info):
    global armed, entered
    if armed and phase == "start" and threading.get_ident() == main:
        armed = False
        entered += 1
        other = threading.Thread(target=lambda: found.append(shared.lazy))
        other.start()
        other.join()
gc.callbacks.append(let_another_thread_in)
for make in (Plain, Frozen, Slots, Wide):
    for i in range(500):
        shared = make(i, [i])
        hold = [{} for _ in range(300)]
        gc.set_threshold(1)
        armed = True
        value = shared.lazy
        armed = False
        gc.set_threshold(700)
        junk = [[j] for j in range(50)]
        assert shared.a == i and shared.b == [i]
        assert all(other is value for other in found) and shared.lazy is value
        found.clear()
assert entered > 1000, entered
"""


def test_two_threads_read_a_value_during_a_garbage_collection() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", INTERRUPTED], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
