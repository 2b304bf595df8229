"""The validity bitmap of a block, and scattering values without NULLs to their rows.

    bitmap    1 0 1 1 0      values  a b c      ->      a NULL b c NULL

A block stores its values without the NULLs between them. So an encoding never sees a NULL, and a column that is mostly
NULL is as small as its values. A kernel scatters values in one pass: NULLs get zeros; of text only the offsets are
scattered, and no byte of text is copied.

Source: Kudu's nullable blocks, Parquet's and ORC's pages (docs/design/column-files-and-encodings.md, "Values without
NULLs").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile import kernels
from nyala.cfile.memory import allocate
from nyala.cfile.physical import binary_offsets, slice_bitmap

__all__ = ["Validity"]


@dataclass(frozen=True, eq=False)
class Validity:
    """Which rows have a value. bitmap: of exactly `row_count` bits, with zeros after them."""

    bitmap: pa.Buffer
    row_count: int

    @property
    def nbytes(self) -> int:
        return int(self.bitmap.size)

    @staticmethod
    def of_bits(bits: npt.NDArray[np.bool_]) -> Validity:
        return Validity(pa.py_buffer(np.packbits(bits, bitorder="little")), len(bits))

    def bits(self) -> npt.NDArray[np.bool_]:
        """A byte for each row."""
        unpacked = np.unpackbits(self._bytes(), count=self.row_count, bitorder="little")
        return unpacked.view(np.bool_)

    def part(self, lower: int, upper: int) -> tuple[Validity, int, int]:
        """(the validity of the rows [lower, upper), the first and the end of their values)."""
        bitmap = pa.py_buffer(slice_bitmap(self.bitmap, lower, upper - lower))
        part, first = Validity(bitmap, upper - lower), self._values_before(lower)
        return part, first, first + part._values_before(upper - lower)

    def take(self, rows: npt.NDArray[np.int64]) -> tuple[Validity, npt.NDArray[np.int64]]:
        """(the validity of these rows, the places of their values among all values)."""
        inside, bits = rows >> 3, (rows & 7).astype(np.uint8)
        data = self._bytes()
        counts = np.bitwise_count(data)
        before = np.cumsum(counts, dtype=np.int64) - counts
        found = data[inside]
        valid = (found >> bits & 1).astype(np.bool_)
        places = before[inside] + np.bitwise_count(found & ((1 << bits) - 1).astype(np.uint8))
        return Validity.of_bits(valid), places[valid]

    def spread(self, values: pa.Array) -> pa.Array:
        """An array of all rows: these values, as many as the bitmap has ones, none of them NULL; and NULL."""
        type, rows = values.type, self.row_count
        if pa.types.is_dictionary(type):
            return pa.DictionaryArray.from_arrays(self.spread(values.indices), values.dictionary, safe=False)
        if not len(values):
            return pa.nulls(rows, type)
        assert values.offset == 0
        buffers = values.buffers()
        if pa.types.is_boolean(type):
            bits = np.unpackbits(np.frombuffer(buffers[1], np.uint8), count=len(values), bitorder="little")
            mask = self.spread_mask(bits.view(np.bool_))
            return self._made(type, len(values), pa.py_buffer(np.packbits(mask, bitorder="little")))
        if type in (pa.string(), pa.binary()):
            offsets = allocate(4 * (rows + 1))
            kernels.spread_ends(self.bitmap, rows, binary_offsets(values), np.frombuffer(offsets, np.int32))
            return self._made(type, len(values), offsets, buffers[2])
        width = type.bit_width // 8
        cells = self._spread(buffers[1].slice(0, width * len(values)), width)
        return self._made(type, len(values), cells)

    def spread_mask(self, mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """The same of a contiguous mask of the values, with False where a row is NULL."""
        return np.frombuffer(self._spread(pa.py_buffer(mask.view(np.uint8)), 1), np.bool_)

    def owning(self) -> Validity:
        """The same without references into memory that it was read to."""
        return Validity(pa.py_buffer(self.bitmap.to_pybytes()), self.row_count)

    def _bytes(self) -> npt.NDArray[np.uint8]:
        return np.frombuffer(self.bitmap, np.uint8)

    def _values_before(self, row: int) -> int:
        whole = int(np.bitwise_count(self._bytes()[: row >> 3]).sum(dtype=np.int64))
        rest = self.bitmap[row >> 3] & ((1 << (row & 7)) - 1) if row & 7 else 0
        return whole + rest.bit_count()

    def _spread(self, values: pa.Buffer, width: int) -> pa.Buffer:
        out = allocate(width * self.row_count)
        kernels.spread(self.bitmap, self.row_count, values, width, out)
        return out

    def _made(self, type: pa.DataType, value_count: int, *buffers: pa.Buffer | None) -> pa.Array:
        return pa.Array.from_buffers(
            type, self.row_count, [self.bitmap, *buffers], self.row_count - value_count
        )
