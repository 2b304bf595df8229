"""Part of the cases in the gate, all of them by night: for loops over every byte, moment or operation."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

import pytest
from hypothesis import settings

Case = TypeVar("Case")
First = TypeVar("First")
Second = TypeVar("Second")


def is_night() -> bool:
    """Whether the run takes the time for all cases, as with the profile `nightly`."""
    return settings().max_examples > 100


def one_of(number: int, cases: Sequence[Case], request: pytest.FixtureRequest) -> Sequence[Case]:
    """Each `number`-th case, from one on that the run's seed draws for this test; by night all of them.

    For neighbours that differ little. Another run has others, and `--hypothesis-seed=N` has the same ones again.
    """
    if is_night():
        return cases
    return cases[chance_of(request).randrange(number) :: number]


def chequered(
    rows: Sequence[First], columns: Sequence[Second], request: pytest.FixtureRequest
) -> list[tuple[First, Second]]:
    """The pairs, of which the gate has one half: each of the one with every second of the other, as on a chessboard."""
    colour = chance_of(request).randrange(2)
    return [
        (first, second)
        for row, first in enumerate(rows)
        for column, second in enumerate(columns)
        if is_night() or (row + column) % 2 == colour
    ]


def one_each(
    rows: Sequence[First], columns: Sequence[Second], request: pytest.FixtureRequest
) -> list[tuple[First, Second]]:
    """All pairs by night; in the gate each row with one column, from a column on that the run's seed draws."""
    first = chance_of(request).randrange(len(columns))
    return [
        (row, column)
        for place, row in enumerate(rows)
        for other, column in enumerate(columns)
        if is_night() or other == (first + place) % len(columns)
    ]


def chance_of(request: pytest.FixtureRequest) -> random.Random:
    """Chance that the run's seed makes for this test."""
    return random.Random(f"{request.config.getoption('hypothesis_seed')} {request.node.name}")
