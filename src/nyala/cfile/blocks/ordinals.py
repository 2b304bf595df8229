"""Ordinals to gather, cut at the borders of blocks.

    ordinals   7, 131080, 9, 131072        any order, any of them twice
    cut        block 0: 7, 9   block 1: 8, 0   the same for every column whose blocks have so many rows

A look-up gathers the same rows of every column of a rowset. So the cut is made once for all columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["Cut", "Ordinals"]

Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Cut:
    """Ordinals by block: of `blocks[i]`, which ascend, the rows `inside[begin:end]` with `pieces[i]` = (begin, end)."""

    blocks: list[int]
    pieces: list[tuple[int, int]]
    inside: Places
    order: Places | None
    """For each row of `inside` the place of its ordinal among those given; None: they stand in the given order."""


class Ordinals:
    """Ordinals in any order. Threads do not share it."""

    __slots__ = ("_cuts", "_is_ascending", "count", "greatest", "least", "places")

    def __init__(self, places: Places) -> None:
        self.places: Final = places
        self.count: Final = len(places)
        self._is_ascending = bool((places[1:] >= places[:-1]).all())
        least = places[:1] if self._is_ascending else places
        greatest = places[-1:] if self._is_ascending else places
        self.least: Final = int(least.min()) if self.count else 0
        self.greatest: Final = int(greatest.max(initial=-1))
        self._cuts: dict[int, Cut] = {}

    def cut(self, rows_per_block_log2: int) -> Cut:
        """The ordinals, at least one, by block of 2^`rows_per_block_log2` rows."""
        found = self._cuts.get(rows_per_block_log2)
        if found is None:
            found = self._cuts[rows_per_block_log2] = self._cut(rows_per_block_log2)
        return found

    def _cut(self, log2: int) -> Cut:
        mask = (1 << log2) - 1
        first = self.least >> log2
        if first == self.greatest >> log2:
            inside = self.places if first == 0 else self.places & mask
            return Cut([first], [(0, self.count)], inside, None)
        places, order = self.places, None
        if not self._is_ascending:
            order = np.argsort(places, kind="stable")
            places = places[order]
        last = self.greatest >> log2
        if last - first < self.count:
            numbers = np.arange(first, last + 1)
        else:  # many blocks without an ordinal
            numbers = np.unique(places >> log2)
        borders = [*np.searchsorted(places, numbers << log2).tolist(), self.count]
        found = [
            (number, piece)
            for number, piece in zip(numbers.tolist(), pairwise(borders), strict=True)
            if piece[0] < piece[1]
        ]
        return Cut([number for number, _ in found], [piece for _, piece in found], places & mask, order)
