"""Chooses a part of many cases for `make test`; `make test-long` runs all of them.

For tests of every byte, moment or operation. `make test` always chooses the same part.
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


def is_long_run() -> bool:
    """Whether all cases run, as in `make test-long` (the Hypothesis profile `nightly`)."""
    return settings().max_examples > 100


def every_nth(number: int, cases: Sequence[Case], request: pytest.FixtureRequest) -> Sequence[Case]:
    """Return every `number`-th case in `make test`, and all cases in `make test-long`.

    For cases that differ little from their neighbours. The test's name chooses the first case.
    """
    if is_long_run():
        return cases
    return cases[random_for(request).randrange(number) :: number]


def each(number: int, cases: Sequence[Any]) -> list[Any]:
    """Return parameters of a test. `make test` runs every `number`-th one; the others are marked `long`."""
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.long if place % number else ()
        )
        for place, case in enumerate(cases)
    ]


def in_turns(rows: Sequence[Any], columns: Sequence[Any]) -> list[Any]:
    """Return all pairs as parameters of a test. `make test` runs each row with one column, in turns.

    The other pairs are marked `long`.
    """
    return [
        pytest.param(row, column, marks=() if other == place % len(columns) else pytest.mark.long)
        for place, row in enumerate(rows)
        for other, column in enumerate(columns)
    ]


def chequered(
    rows: Sequence[First], columns: Sequence[Second], request: pytest.FixtureRequest, colours: int = 2
) -> list[tuple[First, Second]]:
    """Return the pairs of one colour of a chequerboard in `make test`, and all pairs in `make test-long`.

    The colour of a pair is (row number + column number) modulo `colours`.
    """
    colour = random_for(request).randrange(colours)
    return [
        (first, second)
        for row, first in enumerate(rows)
        for column, second in enumerate(columns)
        if is_long_run() or (row + column) % colours == colour
    ]


def one_each(
    rows: Sequence[First], columns: Sequence[Second], request: pytest.FixtureRequest
) -> list[tuple[First, Second]]:
    """Return each row with one column in `make test`, and all pairs in `make test-long`."""
    return chequered(rows, columns, request, len(columns))


def random_for(request: pytest.FixtureRequest) -> random.Random:
    """Return random numbers seeded by the test's name, so that each run has the same cases."""
    return random.Random(request.node.name)
