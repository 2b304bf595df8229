"""The validity bitmap of a block: it says which rows have a value, and moves values to these rows.

    bitmap    1 0 1 1 0      values  a b c      ->      a NULL b c NULL

A block stores only its values that are not NULL (dense values). So encodings never handle NULLs,
and a column with few values is small. A kernel moves the values to their rows in one pass, and NULL
rows get zeros. For text it moves only the offsets, and copies no text.

Source: Kudu's nullable blocks, and the pages of Parquet and ORC
(docs/design/column-files-and-encodings.md, "Values without NULLs").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile import kernels
from nyala.cfile.memory import allocate
from nyala.cfile.physical import binary_offsets, slice_bitmap


@dataclass(frozen=True, eq=False)
class Validity:
    """A bitmap of `row_count` bits, padded with zeros: 1 for a row with a value, 0 for NULL."""

    bitmap: pa.Buffer
    row_count: int

    @property
    def nbytes(self) -> int:
        return int(self.bitmap.size)

    def bits(self) -> npt.NDArray[np.bool_]:
        """Return one bool per row: whether it has a value."""
        unpacked = np.unpackbits(self._bytes(), count=self.row_count, bitorder="little")
        return unpacked.view(np.bool_)

    def part(self, lower: int, upper: int) -> tuple[Validity, int, int]:
        """Return the validity of the rows [lower, upper), and where their values are: (validity, first, last).

        The values of these rows are the dense values [first, last).
        """
        bitmap = pa.py_buffer(slice_bitmap(self.bitmap, lower, upper - lower))
        part, first = Validity(bitmap, upper - lower), self._values_before(lower)
        return part, first, first + part._values_before(upper - lower)

    def take(self, rows: npt.NDArray[np.int64]) -> tuple[Validity, npt.NDArray[np.int64]]:
        """Return (validity of these rows, positions of their values in the dense values)."""
        inside, bits = rows >> 3, (rows & 7).astype(np.uint8)
        data = self._bytes()
        counts = np.bitwise_count(data)
        before = np.cumsum(counts, dtype=np.int64) - counts
        row_bytes = data[inside]
        valid = (row_bytes >> bits & 1).astype(np.bool_)
        positions = before[inside] + np.bitwise_count(row_bytes & ((1 << bits) - 1).astype(np.uint8))
        bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
        return Validity(bitmap, len(valid)), positions[valid]

    def scatter(self, values: pa.Array) -> pa.Array:
        """Return an array with all rows: the rows with a value get `values`, in order.

        values: the values without the NULLs between them, one for each row that is not NULL.
        """
        type, rows = values.type, self.row_count
        if pa.types.is_dictionary(type):
            codes = self.scatter(values.indices)
            return pa.DictionaryArray.from_arrays(codes, values.dictionary, safe=False)
        if not len(values):
            return pa.nulls(rows, type)
        assert values.offset == 0
        buffers = values.buffers()
        if pa.types.is_boolean(type):
            bits = np.unpackbits(np.frombuffer(buffers[1], np.uint8), count=len(values), bitorder="little")
            mask = self.scatter_mask(bits.view(np.bool_))
            return self._array(type, len(values), pa.py_buffer(np.packbits(mask, bitorder="little")))
        if type in (pa.string(), pa.binary()):
            offsets = allocate(4 * (rows + 1))
            kernels.scatter_offsets(
                self.bitmap, rows, binary_offsets(values), np.frombuffer(offsets, np.int32)
            )
            return self._array(type, len(values), offsets, buffers[2])
        width = type.bit_width // 8
        cells = self._scatter(buffers[1].slice(0, width * len(values)), width)
        return self._array(type, len(values), cells)

    def scatter_mask(self, mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Convert a contiguous mask of dense values to a mask of the rows. NULL rows are False."""
        return np.frombuffer(self._scatter(pa.py_buffer(mask.view(np.uint8)), 1), np.bool_)

    def owning(self) -> Validity:
        """Return a copy of the validity with its own copy of the bitmap."""
        return Validity(pa.py_buffer(self.bitmap.to_pybytes()), self.row_count)

    def _bytes(self) -> npt.NDArray[np.uint8]:
        return np.frombuffer(self.bitmap, np.uint8)

    def _values_before(self, row: int) -> int:
        whole = int(np.bitwise_count(self._bytes()[: row >> 3]).sum(dtype=np.int64))
        rest = self.bitmap[row >> 3] & ((1 << (row & 7)) - 1) if row & 7 else 0
        return whole + rest.bit_count()

    def _scatter(self, values: pa.Buffer, width: int) -> pa.Buffer:
        out = allocate(width * self.row_count)
        kernels.scatter(self.bitmap, self.row_count, values, width, out)
        return out

    def _array(self, type: pa.DataType, value_count: int, *buffers: pa.Buffer | None) -> pa.Array:
        return pa.Array.from_buffers(
            type, self.row_count, [self.bitmap, *buffers], self.row_count - value_count
        )
