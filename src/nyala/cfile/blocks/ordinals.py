"""Groups the ordinals of values to gather by the block that contains them.

    ordinals   7, 131080, 9, 131072            in any order; an ordinal may repeat
    by block   block 0: 7, 9   block 1: 8, 0   positions inside blocks of 131,072 rows

A look-up gathers the same rows from every column of a rowset. So the ordinals are grouped once for
all columns that have the same rows per block.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True)
class OrdinalsByBlock:
    """Ordinals grouped by block.

    blocks: the numbers of the blocks, ascending.
    ranges: for each block, (begin, end): its ordinals are `rows[begin:end]`.
    rows: each ordinal as a position inside its block.
    """

    blocks: list[int]
    ranges: list[tuple[int, int]]
    rows: Positions
    order: Positions | None
    """The index that each entry of `rows` had among the given ordinals; None if the order is the same."""


class Ordinals:
    """Ordinals in any order, and their groups by block. For one thread."""

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
        """Return the ordinals grouped by blocks of 2^`rows_per_block_log2` rows; caches the result.

        There must be at least one ordinal.
        """
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
        blocks = np.unique(positions >> log2)
        borders = [*np.searchsorted(positions, blocks << log2).tolist(), self.count]
        return OrdinalsByBlock(blocks.tolist(), list(pairwise(borders)), positions & mask, order)
