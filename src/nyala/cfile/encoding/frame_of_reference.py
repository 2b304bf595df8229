"""Frame of reference: stores how far each value is above a straight line, in few bits.

    layout   a value is                            for
    line     base + step · position + unit · delta ranges of numbers, dates, prices; rowids (step 1, no bits);
                                                   whole seconds (unit 1,000,000), whole euros (unit 100)
    wide     itself                                blocks with a 16-byte decimal that exceeds 64 bits

Each block has one base, step and unit. Each row has a delta: an unsigned number of `bits` bits, 0
to 64 (`bit_packing`). Position is the row's number in the block. The encoder keeps this invariant,
and the decoder checks it (`forms.frame`):

    FOR-fits   "a frame of reference fits its type": every number that the formula can give in a block
               is in the type's range. It is enough to test the first and the last row, with delta 0
               and with the block's greatest delta

One outlier makes all deltas of its block wider. 'auto' then chooses bitshuffle.
Source: J. Goldstein et al., "Compressing relations and indexes", 1998.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile import format
from nyala.cfile.bit_packing import pack_bits
from nyala.cfile.compression import effective_compression
from nyala.cfile.encoding.base import BlockEncoder, Candidate, ColumnSample, EncodedValues, Encoding, middles
from nyala.cfile.forms.column_block import ArrowBlock, ColumnBlock
from nyala.cfile.forms.frame import Frame, line_fits
from nyala.cfile.forms.frame_block import FrameBlock
from nyala.cfile.physical import Physical, narrowest

_LINE_BITS_MAX: Final = 61  # with more bits, position · step might exceed 64 bits
_SAMPLE_ROWS: Final = 512


@dataclass(frozen=True)
class _FrameEncoder(BlockEncoder):
    form: Physical
    values: npt.NDArray[Any]  # int8 to int64

    def encode(self, lower: int, upper: int) -> pa.Buffer:
        values = self.values[lower:upper]
        base, greatest = int(values.min()), int(values.max())
        step, unit, bits = 0, 1, (greatest - base).bit_length()
        packed = b""
        if bits:
            unsigned = values.view(f"<u{values.itemsize}")
            deltas = unsigned - unsigned.dtype.type(base % (1 << 8 * values.itemsize))
            unit = _unit(deltas)
            if unit > 1:
                deltas = deltas // deltas.dtype.type(unit)
            bits = int((greatest - base) // unit).bit_length()
            if (line := self._line(deltas, bits, base, unit)) is not None:
                base, step, deltas = line
                bits = int(deltas.max()).bit_length()
            packed = pack_bits(deltas, bits)
        header = format.FOR_HEADER.pack(base, step, unit if bits else 1, format.FOR_LINE, bits, bytes(6))
        return pa.py_buffer(header + packed)

    def _line(
        self, deltas: npt.NDArray[Any], bits: int, base: int, unit: int
    ) -> tuple[int, int, npt.NDArray[Any]] | None:
        """Subtract a rising or falling line from the deltas, so that they need fewer bits.

        A value is base + step · row + unit · delta. The arguments describe the values with step 0.

        bits: the number of bits that the greatest delta needs.
        Returns: base, step and deltas that give the same values, with deltas of fewer bits; None if
        no line saves bits.
        """
        rows = len(deltas)
        if rows < 2 or bits > _LINE_BITS_MAX:
            return None
        step = (int(deltas[-1]) - int(deltas[0])) // (rows - 1)
        if step == 0:
            return None
        positions = np.arange(0, rows, max(1, rows // _SAMPLE_ROWS))
        sample = deltas[positions].astype(np.int64) - positions * step
        if (int(sample.max()) - int(sample.min())).bit_length() >= bits:
            return None
        distances = deltas.astype(np.int64)
        distances -= np.arange(rows, dtype=np.int64) * step
        least = int(distances.min())
        distances -= least
        greatest = int(distances.max())
        base, step = base + unit * least, unit * step
        if greatest.bit_length() >= bits or not line_fits(self.form, base, step, rows, unit * greatest):
            return None
        if not -(1 << 63) <= step < 1 << 63:  # for example two rows at both ends of the 64-bit range
            return None
        return base, step, distances.view("<u8")


def _unit(deltas: npt.NDArray[Any]) -> int:
    """Return the greatest common divisor of all deltas. At least one delta must not be 0.

    If the divisor of a sample is already 1, the other deltas are not read.
    """
    if int(np.gcd.reduce(deltas[:: max(1, len(deltas) // _SAMPLE_ROWS)])) == 1:
        return 1
    return int(np.gcd.reduce(deltas))


class FrameOfReference(Encoding):
    """An encoding for integers, dates, timestamps, and decimals as unscaled integers."""

    code = format.ENCODING_FOR
    name = "for"
    compresses = True

    def prepare(self, form: Physical, values: pa.Array) -> BlockEncoder | None:
        if not form.is_wide:
            return _FrameEncoder(form, form.fixed_values(values))
        halves = np.frombuffer(values.buffers()[1] or b"", "<i8")[2 * values.offset :][: 2 * len(values)]
        low, high = halves[::2], halves[1::2]
        fits = high == low >> 63
        frame = _FrameEncoder(form, low.copy())
        return frame if fits.all() else _WideEncoder(form, values, frame, fits)

    def block(self, form: Physical, block: EncodedValues) -> ColumnBlock:
        data, rows, header_size = block.data, block.row_count, format.FOR_HEADER.size
        if form.is_wide and data.size >= header_size:
            *_, layout, _, _ = format.FOR_HEADER.unpack_from(data)
            if layout == format.FOR_WIDE:
                if data.size != header_size + rows * form.width_bytes:
                    raise ValueError(
                        f"expected {rows} values of {form.width_bytes} bytes, found {data.size - header_size} bytes"
                    )
                return ArrowBlock(form.fixed_array(data.slice(header_size), rows))
        frame = FrameBlock(Frame.parse(form, data, rows), form, narrowest(form))
        # Predicates are never evaluated on encoded 16-byte numbers, so decode the block once.
        return ArrowBlock(frame.decode(0, rows, form.arrow)) if form.is_wide else frame

    def gathers_single_values(self, form: Physical) -> bool:
        return not form.is_wide

    def candidates(self, column: ColumnSample) -> Sequence[Candidate]:
        if column.form.is_wide:
            return self.sampled(column, 1)
        compression = effective_compression(column.schema_compression, self.compresses)
        values = column.form.fixed_values(column.values)
        return (Candidate(self.code, compression, _estimated_bytes(values, column.block_rows), 1),)

    def header(self, form: Physical, data: bytes) -> format.Layout | None:
        return format.FOR_HEADER


def _estimated_bytes(values: npt.NDArray[Any], block_rows: int) -> float:
    """Estimate the number of bytes per row of the encoded column, from four of its blocks."""
    size = rows = 0.0
    for start in middles(len(values)):
        block = values[start // block_rows * block_rows :][:block_rows]
        size += format.FOR_HEADER.size + len(block) * _estimated_bits(block) / 8
        rows += len(block)
        if rows >= len(values):
            break
    return size / max(1.0, rows)


def _estimated_bits(numbers: npt.NDArray[Any]) -> int:
    """Estimate the bits per delta of a block with these numbers, from a sample of them."""
    least, greatest = (int(numbers.min()), int(numbers.max())) if len(numbers) else (0, 0)
    if least == greatest:
        return 0
    positions = np.arange(0, len(numbers), max(1, len(numbers) // _SAMPLE_ROWS))
    sample = numbers[positions].astype(np.int64)
    deltas = np.append(sample, greatest).view(np.uint64) - np.array(least, np.int64).view(np.uint64)
    unit = int(np.gcd.reduce(deltas))
    bits = ((greatest - least) // unit).bit_length()
    if bits > _LINE_BITS_MAX:
        return bits
    distances = sample - positions * ((int(numbers[-1]) - int(numbers[0])) // (len(numbers) - 1))
    spread = int(distances.max()) - int(distances.min())
    return min(bits, (spread // unit).bit_length() + (spread > 0))


@dataclass(frozen=True)
class _WideEncoder(BlockEncoder):
    """Encodes 16-byte decimals if some of them exceed 64 bits.

    Only blocks with such values have the layout "wide".
    """

    form: Physical
    values: pa.Array
    frame: _FrameEncoder
    fits: npt.NDArray[np.bool_]

    def encode(self, lower: int, upper: int) -> pa.Buffer:
        if self.fits[lower:upper].all():
            return self.frame.encode(lower, upper)
        header = format.FOR_HEADER.pack(0, 0, 1, format.FOR_WIDE, 0, bytes(6))
        part = self.values.slice(lower, upper - lower)
        return pa.py_buffer(header + self.form.fixed_values(part).tobytes())
