"""Ordinals to gather, grouped by block.

    ordinals   7, 131080, 9, 131072            any order; duplicates are allowed
    by block   block 0: 7, 9   block 1: 8, 0   the same for every column with the same rows per block

A look-up gathers the same rows from every column of a rowset, so the grouping is computed once for
all columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["Ordinals", "OrdinalsByBlock"]

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True)
class OrdinalsByBlock:
    """Ordinals grouped by block.

    In `blocks[i]` (ascending) they are `rows[begin:end]`, with `ranges[i]` = (begin, end).
    """

    blocks: list[int]
    ranges: list[tuple[int, int]]
    rows: Positions
    order: Positions | None
    """For each entry of `rows`, the index of its ordinal in the given order; None: the order is the
    same.
    """


class Ordinals:
    """Ordinals in any order. Not shared between threads."""

    __slots__ = ("_by_block", "_is_ascending", "count", "greatest", "least", "positions")

    def __init__(self, positions: Positions) -> None:
        self.positions: Final = positions
        self.count: Final = len(positions)
        self._is_ascending = bool((positions[1:] >= positions[:-1]).all())
        least = positions[:1] if self._is_ascending else positions
        greatest = positions[-1:] if self._is_ascending else positions
        self.least: Final = int(least.min()) if self.count else 0
        self.greatest: Final = int(greatest.max(initial=-1))
        self._by_block: dict[int, OrdinalsByBlock] = {}

    def by_block(self, rows_per_block_log2: int) -> OrdinalsByBlock:
        """Return the ordinals, at least one, grouped by blocks of 2^`rows_per_block_log2` rows."""
        grouped = self._by_block.get(rows_per_block_log2)
        if grouped is None:
            grouped = self._by_block[rows_per_block_log2] = self._grouped(rows_per_block_log2)
        return grouped

    def _grouped(self, log2: int) -> OrdinalsByBlock:
        mask = (1 << log2) - 1
        first = self.least >> log2
        if first == self.greatest >> log2:
            rows = self.positions if first == 0 else self.positions & mask
            return OrdinalsByBlock([first], [(0, self.count)], rows, None)
        positions, order = self.positions, None
        if not self._is_ascending:
            order = np.argsort(positions, kind="stable")
            positions = positions[order]
        last = self.greatest >> log2
        if last - first < self.count:
            numbers = np.arange(first, last + 1)
        else:  # many blocks contain no ordinal
            numbers = np.unique(positions >> log2)
        borders = [*np.searchsorted(positions, numbers << log2).tolist(), self.count]
        used = [
            (number, range_of)
            for number, range_of in zip(numbers.tolist(), pairwise(borders), strict=True)
            if range_of[0] < range_of[1]
        ]
        blocks, ranges = [number for number, _ in used], [range_of for _, range_of in used]
        return OrdinalsByBlock(blocks, ranges, positions & mask, order)
