"""Values without the NULLs between them, and how they come to their rows.

    with holes   something of no meaning stands under each NULL: a value is at its row's place, and what is decoded is
                 what Arrow wants
    dense        the values that there are, one behind the other: the validity bitmap says which rows they are of

A column that is mostly NULL is as small as its values when they are dense, and takes as long to encode and decode as
these, and one pass over the rows to spread them. A fifth of NULLs is where that begins (`is_worth_it`): below it holes
make a column at most a quarter larger, as `auto` lets encodings be, and spare the pass. It is decided for a column of a
file. Runs have holes anyhow: a NULL continues the run before it and costs nothing.

    values, codewords, deltas   written to the places of the bitmap's ones, zeros between them
    offsets of text             of a NULL that of the value before it; no byte of text is moved

Source: Kudu's nullable blocks (cfile, values without their NULLs), as Parquet's and ORC's pages. Departs from them
where NULLs are few, for a decoded buffer that is Arrow's (docs/decisions/0053-dense-values.md).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from nyala.cfile import kernels
from nyala.cfile.encoding.frame import Frame
from nyala.cfile.memory import allocate
from nyala.cfile.physical import BITS, Physical, binary_offsets

__all__ = ["Places", "is_worth_it"]

# Of a column's rows: beyond them holes can make it more than a quarter larger; of bits, beside as many of validity.
_NULL_SHARE_MIN: Final = 0.2
_NULL_SHARE_MIN_OF_BITS: Final = 0.4


def is_worth_it(form: Physical, row_count: int, null_count: int) -> bool:
    """Whether the values of a column shall be dense. Not where there are none: such blocks have no values anyhow."""
    share = _NULL_SHARE_MIN_OF_BITS if form.kind == BITS else _NULL_SHARE_MIN
    return row_count * share <= null_count < row_count


class Places:
    """Which rows of a block have a value: some have one, and some have none.

    Takes: a bitmap of exactly `row_count` rows, with zeros after them, and how many of its rows are NULL; there are as
    many values as others.
    """

    def __init__(self, validity: pa.Buffer, row_count: int, null_count: int) -> None:
        self._validity: Final = validity
        self._row_count: Final = row_count
        self._null_count: Final = null_count

    def array(self, values: pa.Array) -> pa.Array:
        """The rows: these values, as many as have one, none of them NULL; and NULL. No bytes of text are copied."""
        type, buffers, rows = values.type, values.buffers(), self._row_count
        assert values.offset == 0
        if pa.types.is_dictionary(type):
            return pa.DictionaryArray.from_arrays(self.array(values.indices), values.dictionary, safe=False)
        if pa.types.is_boolean(type):
            bits = np.unpackbits(np.frombuffer(buffers[1], np.uint8), count=len(values), bitorder="little")
            spread = np.frombuffer(self._spread(pa.py_buffer(bits), 1), np.uint8)
            return self._made(type, pa.py_buffer(np.packbits(spread, bitorder="little")))
        if type in (pa.string(), pa.binary()):
            offsets = allocate(4 * (rows + 1))
            kernels.spread_ends(
                self._validity, rows, binary_offsets(values), np.frombuffer(offsets, np.int32)
            )
            return self._made(type, offsets, buffers[2])
        width = type.bit_width // 8
        return self._made(type, self._spread(buffers[1].slice(0, width * len(values)), width))

    def frame(self, frame: Frame) -> Frame:
        """The same of a block that lies in frames: deltas of 1, 2, 4 or 8 whole bytes."""
        count = frame.row_count
        if not frame.step:
            width = _width(frame.bits)
            deltas = allocate(width * count)
            flat = replace(frame, base=0, unit=1)
            kernels.fill([flat.rows_into(deltas, 0, width, 0, count)])
            return frame.over(*self._deltas(deltas, width))
        # What the place of a row adds is that of another now.
        numbers = np.frombuffer(allocate(8 * count), np.int64)
        kernels.fill([frame.rows_into(pa.py_buffer(numbers), 0, 8, 0, count)])
        least = int(numbers.min())
        width = _width((int(numbers.max()) - least).bit_length())
        deltas = pa.py_buffer((numbers.view(np.uint64) - np.uint64(least % (1 << 64))).astype(f"<u{width}"))
        line = Frame(frame.form, deltas, count, least, 0, 1, 8 * width, 0)
        return line.over(*self._deltas(deltas, width))

    def _deltas(self, deltas: pa.Buffer, width: int) -> tuple[pa.Buffer, int, int, pa.Buffer, int]:
        return self._spread(deltas, width), self._row_count, 8 * width, self._validity, self._null_count

    def _spread(self, values: pa.Buffer, width: int) -> pa.Buffer:
        out = allocate(width * self._row_count)
        kernels.spread(self._validity, self._row_count, values, width, out)
        return out

    def _made(self, type: pa.DataType, *buffers: pa.Buffer | None) -> pa.Array:
        return pa.Array.from_buffers(type, self._row_count, [self._validity, *buffers], self._null_count)


def _width(bits: int) -> int:
    """Bytes of a number of so many bits."""
    return 1 if bits <= 8 else 2 if bits <= 16 else 4 if bits <= 32 else 8
