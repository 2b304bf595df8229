"""Sets of numbers contain exactly the numbers that satisfy their predicate, also as deltas of a
line.
"""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from nyala.cfile.forms.number_set import NOTHING, NumberSet
from nyala.schema.predicates.constraint import ANY, EMPTY, NULL_ONLY, Constraint

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
NEAR = st.integers(-20, 20) | st.sampled_from([INT64_MIN, INT64_MIN + 3, INT64_MAX - 3, INT64_MAX])
NUMBERS = np.array(
    sorted({*range(-25, 26), *range(INT64_MIN, INT64_MIN + 6), *range(INT64_MAX - 5, INT64_MAX + 1)})
)
BEYOND = NEAR | st.sampled_from([INT64_MIN - 1, INT64_MAX + 1, 10**30])


def check(numbers: NumberSet, expected: list[bool]) -> None:
    assert numbers.contains(NUMBERS).tolist() == expected
    inside = [number for number, is_in in zip(NUMBERS.tolist(), expected, strict=True) if is_in]
    assert not (numbers.is_empty and inside)
    assert all(numbers.least <= number <= numbers.greatest for number in inside)


@given(st.lists(BEYOND, max_size=12))
def test_a_list_contains_its_values(values: list[int]) -> None:
    """A list contains its values. Values beyond 64 bits, from a decimal with many digits, are left
    out.
    """
    check(NumberSet.of(Constraint.one_of(values)), [number in values for number in NUMBERS.tolist()])


@given(st.none() | BEYOND, st.none() | BEYOND)
def test_a_range_contains_the_numbers_between(lower: int | None, upper: int | None) -> None:
    constraint = Constraint(lower=lower, upper=upper)
    numbers = NumberSet.of(constraint)
    assert numbers.is_range
    check(
        numbers,
        [(lower is None or lower <= n) and (upper is None or n <= upper) for n in NUMBERS.tolist()],
    )


def test_empty_and_full_sets() -> None:
    for constraint in (EMPTY, NULL_ONLY, Constraint.one_of([1 << 64])):
        assert NumberSet.of(constraint).is_empty
    assert NOTHING.is_empty
    assert NumberSet.of(ANY).contains(NUMBERS).all()


@given(st.lists(st.booleans(), max_size=24))
def test_a_mask_selects_numbers_from_0_on(mask: list[bool]) -> None:
    numbers = NumberSet.of_mask(np.array(mask, np.bool_))
    check(numbers, [0 <= number < len(mask) and mask[number] for number in NUMBERS.tolist()])
    assert numbers.is_empty == (not any(mask))
    runs = "".join("x" if is_in else " " for is_in in mask).split()
    assert numbers.is_range == (len(runs) < 2), "adjacent integers are compared with bounds, without a table"


@given(
    st.lists(NEAR, min_size=2, max_size=12, unique=True) | st.lists(st.booleans(), min_size=3, max_size=40),
    NEAR,
    st.integers(1, 7) | st.sampled_from([1 << 40, (1 << 64) - 1]),
    st.sampled_from([0, 1, 3, 15, 63]),
)
@example([INT64_MIN, INT64_MAX], INT64_MIN, (1 << 64) - 1, 1)
@example([False, True, False, True], -2, 1, 7)
@example([False, True, False, True], 3, 1, 7)
def test_deltas_of_a_line_match_as_its_numbers(
    what: list[int] | list[bool], base: int, unit: int, most: int
) -> None:
    """Deltas match exactly if their numbers do, also deltas that would mean a number beyond 64 bits."""
    if isinstance(what[0], bool):
        numbers = NumberSet.of_mask(np.array(what, np.bool_))
        wanted = {place for place, is_in in enumerate(what) if is_in}
    else:
        numbers = NumberSet.of(Constraint.one_of(what))
        wanted = set(what)
    if not numbers.is_range:
        table = numbers.matching_deltas(base, unit, most)
        assert table.tolist() == [base + unit * delta in wanted for delta in range(most + 1)]
