"""Run length: stores each run of equal values as one value and a length.

    bool          header (with the first value), run lengths            runs alternate, so no values are stored
    fixed width   header, one value per run, run lengths

All lengths have as many bytes as the longest run needs: 1, 2 or 4. Each length is at least 1, and
their sum is the block's row count. The decoder checks this before it allocates memory.

A block stays in this form in memory. A filter tests each run once, and a look-up finds a row by
binary search in the ends of the runs.

Source: Kudu schema design, "Run Length Encoding".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from nyala.cfile import format
from nyala.cfile.encoding.base import BlockEncoder, Candidate, ColumnSample, EncodedValues, Encoding
from nyala.cfile.forms.column_block import ArrowBlock, ColumnBlock
from nyala.cfile.forms.run_block import RunBlock
from nyala.cfile.physical import BITS, Physical

_END_BYTES: Final = 8  # of a run's end in memory
_SIZE_FACTOR: Final = 2.0  # short runs decode five to ten times slower than a frame of reference
_RUN_ROWS_MIN: Final = 2  # 'auto' considers runs of this average length or longer
_LENGTH_DTYPES: Final[dict[int, np.dtype[Any]]] = {
    width: np.dtype(f"<u{width}") for width in format.RLE_LENGTH_WIDTHS
}


@dataclass(frozen=True)
class _RunLengthEncoder(BlockEncoder):
    form: Physical
    values: pa.Array

    def encode(self, lower: int, upper: int) -> pa.Buffer:
        part = self.values.slice(lower, upper - lower)
        is_bool = self.form.kind == BITS
        values = part.to_numpy(zero_copy_only=False) if is_bool else self.form.fixed_values(part)
        starts = np.concatenate(([0], np.flatnonzero(values[1:] != values[:-1]) + 1))
        lengths = np.diff(starts, append=len(values))
        longest = int(lengths.max())
        width = 1 if longest < 1 << 8 else 2 if longest < 1 << 16 else 4
        stored_lengths = lengths.astype(_LENGTH_DTYPES[width]).tobytes()
        stored_values = b"" if is_bool else values[starts].tobytes()
        header = format.RLE_HEADER.pack(len(starts), width, int(values[0]) if is_bool else 0, bytes(2))
        return pa.py_buffer(b"".join((header, stored_values, stored_lengths)))


class RunLength(Encoding):
    """An encoding for bools, integers, dates and timestamps with many equal adjacent values."""

    code = format.ENCODING_RLE
    name = "rle"

    def prepare(self, form: Physical, values: pa.Array) -> BlockEncoder | None:
        return _RunLengthEncoder(form, values)

    def gathers_single_values(self, form: Physical) -> bool:
        return form.kind != BITS

    def candidates(self, column: ColumnSample) -> Sequence[Candidate]:
        sample = column.sample
        if sample is None or len(sample) < _RUN_ROWS_MIN * len(pc.run_end_encode(sample).values):
            return ()
        return self.sampled(column, 2, _SIZE_FACTOR)

    def header(self, form: Physical, data: bytes) -> format.Layout | None:
        return format.RLE_HEADER

    def block(self, form: Physical, block: EncodedValues) -> ColumnBlock:
        """Return the block as runs, or decoded if the runs would take more memory."""
        ends, values = _runs(form, block)
        runs = RunBlock(form, values.copy(), ends)
        row_bytes = 1 if form.kind == BITS else values.itemsize
        if len(ends) * (row_bytes + _END_BYTES) < block.row_count * row_bytes:
            return runs
        return ArrowBlock(runs.decode(0, block.row_count, form.arrow))


def _runs(form: Physical, block: EncodedValues) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    """Return (ends, values) of the runs: the row after each run, and the value of each run.

    Raises: ValueError if the runs are not valid for this block.
    """
    data, header_size = block.data, format.RLE_HEADER.size
    if data.size < header_size:
        raise ValueError(f"expected a header of {header_size} bytes, found {data.size}")
    count, width, first, _ = format.RLE_HEADER.unpack_from(data)
    is_bool = form.kind == BITS
    if width not in _LENGTH_DTYPES or not 0 < count <= block.row_count:
        raise ValueError(
            f"expected 1 to {block.row_count} runs, with each run's length in 1, 2 or 4 bytes; found {count} runs, "
            f"with lengths in {width} bytes"
        )
    if first > (1 if is_bool else 0):
        wanted = "0 or 1 as the first bool value" if is_bool else "0 instead of a first bool value"
        raise ValueError(f"expected {wanted} in the header, found {first}")
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
            f"expected runs of 1 row or more that add up to {block.row_count} rows, found {int(ends[-1])} rows and a "
            f"run of {shortest}"
        )
    return ends, values
