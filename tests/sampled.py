"""Part of the cases in the gate, all of them by night: for loops over every byte, moment or operation.

Each run of the gate takes the same part.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import settings

Case = TypeVar("Case")
First = TypeVar("First")
Second = TypeVar("Second")


def is_night() -> bool:
    """Whether the run takes the time for all cases, as with the profile `nightly`."""
    return settings().max_examples > 100


def one_of(number: int, cases: Sequence[Case], request: pytest.FixtureRequest) -> Sequence[Case]:
    """Each `number`-th case, from one on that the test's name draws; by night all of them.

    For neighbours that differ little.
    """
    if is_night():
        return cases
    return cases[chance_of(request).randrange(number) :: number]


def each(number: int, cases: Sequence[Any]) -> list[Any]:
    """The cases as parameters of a test: each `number`-th runs in the gate, the others are marked `long`."""
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.long if place % number else ()
        )
        for place, case in enumerate(cases)
    ]


def in_turns(rows: Sequence[Any], columns: Sequence[Any]) -> list[Any]:
    """All pairs as parameters of a test: each row with one column runs in the gate, the others are marked `long`."""
    return [
        pytest.param(row, column, marks=() if other == place % len(columns) else pytest.mark.long)
        for place, row in enumerate(rows)
        for other, column in enumerate(columns)
    ]


def chequered(
    rows: Sequence[First], columns: Sequence[Second], request: pytest.FixtureRequest, colours: int = 2
) -> list[tuple[First, Second]]:
    """All pairs by night; in the gate the pairs of one colour, if row + column gives each pair a colour."""
    colour = chance_of(request).randrange(colours)
    return [
        (first, second)
        for row, first in enumerate(rows)
        for column, second in enumerate(columns)
        if is_night() or (row + column) % colours == colour
    ]


def one_each(
    rows: Sequence[First], columns: Sequence[Second], request: pytest.FixtureRequest
) -> list[tuple[First, Second]]:
    """All pairs by night; in the gate each row with one column, in turns."""
    return chequered(rows, columns, request, len(columns))


def chance_of(request: pytest.FixtureRequest) -> random.Random:
    """Chance that the test's name makes, so that each run has the same cases."""
    return random.Random(request.node.name)
