"""Tables of distinct numbers, which frames refer to: of a block, or of a whole column.

    table       17  4711  90210  …          ascending
    deltas       2     0      2  …          of the rows of a block: which of these; of a column's, from its base on

For numbers that return and lie far apart. A block's own table stands in the block (`frame_of_reference`); where they
return all over the column (the ids of users, devices, repositories in the rows that mention them), blocks would have
them again and again, and not more than 32,768. So a column may have one for all blocks, once a file, itself in a frame
of reference, of up to 131,072.

That is taken where it makes blocks, with the table, a fifth smaller than what would be written otherwise: the share
that `auto` has for all tables, as a look-up per value is slower than an addition. And where its numbers return four
times on average: a table of others takes longer to read than it spares.

Source: docs/decisions/0055; for the probe, the birthday problem.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from nyala.cfile import format
from nyala.cfile.physical import physical
from nyala.cfile.planes import delta_dtype, pack_planes
from nyala.schema.types import ColumnType

__all__ = ["SHARE_MAX", "TABLE_FORM", "NumberTable", "probed_bits", "table_of"]

TABLE_FORM: Final = physical(ColumnType("int64"))
"""What a column's table is stored as, whatever the type of the column is."""
SHARE_MAX: Final = 0.8
"""Of what is written otherwise, which a table and what refers to it must keep below."""


@dataclass(frozen=True, eq=False)
class NumberTable:
    """The distinct numbers of some rows, ascending, and of each row which it has; of a NULL any."""

    numbers: npt.NDArray[np.int64]
    codes: npt.NDArray[Any]  # as narrow as can be
    is_valid: npt.NDArray[np.bool_] | None  # None: all are

    @property
    def bits(self) -> int:
        """Of a code."""
        return (len(self.numbers) - 1).bit_length()

    def frame(self, lower: int, upper: int) -> bytes:
        """The rows [lower, upper), one of them no NULL, as a frame over a table of the column."""
        codes = self.codes[lower:upper]
        is_valid = None if self.is_valid is None else self.is_valid[lower:upper]
        there = codes if is_valid is None else codes[is_valid]
        base = there.min()
        deltas = codes - base
        if is_valid is not None:
            deltas[~is_valid] = 0
        bits = int(there.max() - base).bit_length()
        header = format.FOR_HEADER.pack(int(base), 0, 1, format.FOR_SHARED, bits, 0, bytes(4))
        return header + pack_planes(deltas, bits)


def probed_bits(values: npt.NDArray[Any], count_max: int = format.FOR_REFERENCES_MAX) -> int | None:
    """How many bits name the distinct values, as few as a probe lets hope for; None: there are certainly more than so
    many, or none that returns.

    Of n values out of N, each as likely, n² / 2N are expected to be there already. Half of that is few for N =
    `count_max`, and many where all values are distinct. Hoped for is that three standard deviations more were.
    Cost: sorting a 32nd of `count_max` values (for 131,072 an eighth), of which a dozen, or a thousand, would return.
    """
    probe = np.sort(_probe(values, count_max // (8 if count_max > format.FOR_REFERENCES_MAX else 32)))
    probed = int(np.count_nonzero(probe[1:] != probe[:-1])) + (len(probe) > 0)
    repeats = len(probe) - probed
    if not repeats or repeats < len(probe) ** 2 // (4 * count_max):
        return None
    hoped = probed - 3 * math.sqrt(repeats) - 1
    share = len(probe) / len(values)

    def found(count: int) -> float:
        """Of so many numbers, each as often in all values, how many a probe of its share finds."""
        return count * (1 - math.pow(1 - share, len(values) / count))

    if found(count_max) < hoped:
        return None
    lower, upper = probed, count_max
    while lower < upper:
        middle = (lower + upper) // 2
        lower, upper = (lower, middle) if found(middle) >= hoped else (middle + 1, upper)
    return (lower - 1).bit_length()


def _probe(values: npt.NDArray[Any], rows: int) -> npt.NDArray[Any]:
    """One of each so many neighbours, by chance: those in one distance never meet a number again that returns in
    another. Of fewer than twice as many values, all."""
    width = len(values) // rows
    if width < 2:
        return values
    places = np.arange(rows) * width
    found: npt.NDArray[Any] = values[places + _by_chance(rows) % width]
    return found


@functools.cache
def _by_chance(count: int) -> npt.NDArray[np.int64]:
    """Numbers without an order, always the same ones."""
    return np.random.default_rng(count).integers(0, 1 << 31, count)


def table_of(values: pa.Array, count_max: int) -> NumberTable | None:
    """The table of these int8 to int64, one at least no NULL; None: there are too many. Cost: hashing all."""
    encoded = values.dictionary_encode()
    count = len(encoded.dictionary)
    if count > count_max:
        return None
    order = pc.array_sort_indices(encoded.dictionary).to_numpy()
    rank = np.empty(count, delta_dtype((count - 1).bit_length()))
    rank[order] = np.arange(count, dtype=rank.dtype)
    is_valid, indices = None, encoded.indices
    if values.null_count:
        is_valid, indices = values.is_valid().to_numpy(zero_copy_only=False), indices.fill_null(0)
    numbers = encoded.dictionary.to_numpy()[order].astype("<i8")
    return NumberTable(numbers, rank[indices.to_numpy(zero_copy_only=False)], is_valid)
