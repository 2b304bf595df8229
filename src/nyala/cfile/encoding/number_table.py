"""A table of a column's distinct numbers, which its blocks of frames refer to.

    table       17  4711  90210  …          ascending, once a column and file, in a frame of reference
    deltas       2     0      2  …          of a block: which of these, from its base on

For numbers that return all over the column and lie far apart: the ids of users, devices, repositories in the rows that
mention them. A block's own table (`frame_of_reference`) holds them as often as there are blocks, and at most 32,768.

It is taken where it makes blocks, with the table, a fifth smaller than what would be written otherwise: the share that
`auto` has for all tables, as a look-up per value is slower than an addition. A probe spares most columns the search: of
n values out of N, each as likely, n² / 2N are expected to be there already.

Source: docs/decisions/0055.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from nyala.cfile import format
from nyala.cfile.planes import pack_planes, planes_size

__all__ = ["SHARE_MAX", "NumberTable", "promises", "table_bytes", "table_of"]

SHARE_MAX: Final = 0.8
"""Of what is written otherwise, which blocks and table must keep below."""
_PROBE_ROWS: Final = 4096


@dataclass(frozen=True, eq=False)
class NumberTable:
    """The distinct numbers of a column, ascending, and of each row which it has; of a NULL the first."""

    numbers: npt.NDArray[np.int64]
    codes: npt.NDArray[np.uint32]
    is_valid: npt.NDArray[np.bool_] | None  # None: all are

    def frame(self, lower: int, upper: int) -> bytes:
        """The rows [lower, upper), one of them no NULL, as a frame over the table."""
        base, deltas, bits = self._deltas(lower, upper)
        header = format.FOR_HEADER.pack(base, 0, 1, format.FOR_SHARED, bits, 0, bytes(4))
        return header + pack_planes(deltas, bits)

    def frame_bytes(self, lower: int, upper: int) -> int:
        """How many bytes that is."""
        return format.FOR_HEADER.size + planes_size(self._deltas(lower, upper)[2], upper - lower)

    @property
    def planes_bytes(self) -> int:
        """About how many bytes all rows take in frames."""
        return planes_size((len(self.numbers) - 1).bit_length(), len(self.codes))

    def _deltas(self, lower: int, upper: int) -> tuple[int, npt.NDArray[np.uint32], int]:
        codes = self.codes[lower:upper]
        is_valid = None if self.is_valid is None else self.is_valid[lower:upper]
        there = codes if is_valid is None else codes[is_valid]
        base = int(there.min())
        deltas = codes - np.uint32(base)
        if is_valid is not None:
            deltas[~is_valid] = 0
        return base, deltas, (int(there.max()) - base).bit_length()


def promises(numbers: npt.NDArray[Any], row_bytes: float) -> bool:
    """Whether a table of these numbers, none of them NULL, may be worth it, where so many bytes a row are written
    otherwise. Cost: sorting a probe."""
    probe = numbers[:: max(1, len(numbers) // _PROBE_ROWS)]
    distinct = len(np.unique(probe))
    repeats = len(probe) - distinct
    if repeats < len(probe) ** 2 // (4 * format.TABLE_COUNT_MAX):
        return False
    return (distinct - 1).bit_length() / 8 < row_bytes * SHARE_MAX


def table_bytes(numbers: npt.NDArray[np.int64]) -> int:
    """About how many bytes a table takes where it is stored: numbers that ascend are steps in a frame of reference."""
    bits = int(np.diff(numbers).max(initial=0)).bit_length()
    return planes_size(bits, len(numbers))


def table_of(values: pa.Array) -> NumberTable | None:
    """The table of these int8 to int64, one at least no NULL; None: there are too many. Cost: hashing all."""
    encoded = values.dictionary_encode()
    count = len(encoded.dictionary)
    if count > format.TABLE_COUNT_MAX:
        return None
    order = pc.array_sort_indices(encoded.dictionary).to_numpy()
    rank = np.empty(count, np.uint32)
    rank[order] = np.arange(count, dtype=np.uint32)
    is_valid = values.is_valid().to_numpy(zero_copy_only=False) if values.null_count else None
    indices = encoded.indices.fill_null(0) if values.null_count else encoded.indices
    numbers = encoded.dictionary.to_numpy()[order].astype(np.int64)
    return NumberTable(numbers, rank[indices.to_numpy(zero_copy_only=False)], is_valid)
