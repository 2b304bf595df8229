"""Run length: each run of equal values once, with its length.

    bool          header (with the first value), run lengths            runs alternate, so no values are stored
    fixed width   header, one value per run, run lengths

Lengths are as narrow as the longest allows. They are at least 1 and make exactly the block's rows: one sum proves a
decoder's output before its memory is allocated. A NULL continues the run before it.

`block` keeps the runs: a filter tests each once, and a single row is found by a search among the ends.

Source: Kudu schema design, "Run Length Encoding".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile import format, kernels
from nyala.cfile.encoding.base import BlockEncoder, EncodedValues
from nyala.cfile.encoding.column_block import ArrowBlock, ColumnBlock
from nyala.cfile.encoding.run_block import RunBlock
from nyala.cfile.memory import scratch
from nyala.cfile.physical import BITS, Physical, fill_forward, fill_holes

__all__ = ["RunLength"]

_TYPES: Final = frozenset(
    (
        *(format.TYPE_BOOL, format.TYPE_INT8, format.TYPE_INT16, format.TYPE_INT32, format.TYPE_INT64),
        *(format.TYPE_DATE, format.TYPE_TIMESTAMP),
    )
)
_END_BYTES: Final = 8  # of a run's end, in memory
_LENGTH_DTYPES: Final[dict[int, np.dtype[Any]]] = {
    width: np.dtype(f"<u{width}") for width in format.RLE_LENGTH_WIDTHS
}


@dataclass(frozen=True)
class _RunLengthEncoder:
    form: Physical
    values: pa.Array
    dictionary: None = None

    def encode(self, lower: int, upper: int) -> pa.Buffer:
        part = self.values.slice(lower, upper - lower)
        is_bool = self.form.kind == BITS
        values = part.to_numpy(zero_copy_only=False) if is_bool else self.form.fixed_values(part)
        starts = np.concatenate(([0], np.flatnonzero(values[1:] != values[:-1]) + 1))
        lengths = np.diff(starts, append=len(values))
        longest = int(lengths.max())
        width = 1 if longest < 1 << 8 else 2 if longest < 1 << 16 else 4
        of_lengths = lengths.astype(_LENGTH_DTYPES[width]).tobytes()
        of_values = b"" if is_bool else values[starts].tobytes()
        header = format.RLE_HEADER.pack(len(starts), width, int(values[0]) if is_bool else 0, bytes(2))
        return pa.py_buffer(b"".join((header, of_values, of_lengths)))


class RunLength:
    """For bool, integers, dates and timestamps: values that repeat when sorted by primary key."""

    code: Final = format.ENCODING_RLE
    name: Final = "rle"
    compresses: Final = False

    def handles(self, form: Physical) -> bool:
        return form.code in _TYPES

    def prepare(self, form: Physical, values: pa.Array) -> BlockEncoder | None:
        if values.null_count:
            values = fill_holes(fill_forward(values))
        return _RunLengthEncoder(form, values)

    def decode(self, form: Physical, block: EncodedValues) -> pa.Array:
        ends, values = _runs(form, block)
        rows = block.row_count
        if form.kind == BITS:
            buffer = _bits(values, ends, rows)
            return pa.Array.from_buffers(form.arrow, rows, [block.validity, buffer], block.null_count)
        repeated = scratch(values.dtype, rows)
        if len(values) == 1:
            repeated.fill(values[0])
        else:
            kernels.repeat(pa.py_buffer(values), values.itemsize, ends, pa.py_buffer(repeated))
        return form.fixed_array(pa.py_buffer(repeated), rows, block.validity, block.null_count)

    def block(self, form: Physical, values: EncodedValues) -> ColumnBlock:
        """A block as it lies; where runs are short, the rows: these take no more memory. Raises: as `decode`."""
        ends, of_runs = _runs(form, values)
        row_bytes = 1 if form.kind == BITS else of_runs.itemsize
        if len(ends) * (row_bytes + _END_BYTES) >= values.row_count * row_bytes:
            return ArrowBlock(self.decode(form, values))
        return RunBlock(form, of_runs.copy(), ends, values.validity, values.null_count)


def _runs(form: Physical, block: EncodedValues) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    """Ends and values of the runs. Raises ValueError when they cannot be a block of so many rows."""
    data, header_size = block.data, format.RLE_HEADER.size
    if data.size < header_size:
        raise ValueError(f"expected a header of {header_size} bytes, found {data.size}")
    count, width, first, _ = format.RLE_HEADER.unpack_from(data)
    is_bool = form.kind == BITS
    if width not in _LENGTH_DTYPES or not 0 < count <= block.row_count:
        raise ValueError(
            f"expected 1 to {block.row_count} runs and lengths of 1, 2 or 4 bytes, found {count} runs and lengths of "
            f"{width}"
        )
    if first > (1 if is_bool else 0):
        raise ValueError(f"expected a first value of 0, of bool also 1, found {first}")
    lengths_start = header_size + count * form.width_bytes
    if data.size != lengths_start + count * width:
        raise ValueError(
            f"expected {lengths_start + count * width} bytes for {count} runs, found {data.size}"
        )
    values: npt.NDArray[Any]
    if is_bool:
        values = (np.arange(count, dtype=np.uint32) + first).astype(np.uint8) & 1
    else:
        values = np.frombuffer(data, form.dtype, count, header_size)
        values = values if values.flags.aligned else values.copy()
    lengths = np.frombuffer(data, _LENGTH_DTYPES[width], count, lengths_start)
    ends, shortest = np.cumsum(lengths, dtype=np.int64), int(lengths.min())
    if int(ends[-1]) != block.row_count or shortest <= 0:
        raise ValueError(
            f"expected runs of 1 or more that make {block.row_count} rows, found {int(ends[-1])}, the shortest of "
            f"{shortest}"
        )
    return ends, values


def _bits(values: npt.NDArray[Any], ends: npt.NDArray[np.int64], rows: int) -> pa.Buffer:
    if len(values) > 1:
        repeated = scratch(np.uint8, rows)
        kernels.repeat(pa.py_buffer(values), 1, ends, pa.py_buffer(repeated))
        return pa.py_buffer(np.packbits(repeated, bitorder="little"))
    bits = np.full((rows + 7) // 8, 0xFF if values[0] else 0, np.uint8)
    if rows % 8:
        bits[-1] &= (1 << rows % 8) - 1
    return pa.py_buffer(bits)
