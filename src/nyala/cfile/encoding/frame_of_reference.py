"""Frame of reference: the distance of each value from a line, in as few bits as the block needs.

    layout   a value is                            for
    line     base + step · position + unit · delta ranges of numbers, dates, prices; rowids (step 1, no bits);
                                                   whole seconds (unit 1,000,000), whole euros (unit 100)
    wide     itself                                blocks with a decimal of 16 bytes that 64 bits do not hold

Deltas are unsigned and have `bits` bits, 0 to 64; they are bit-packed in planes (`planes`). A NULL has delta 0.

The encoder keeps FOR-fits, which the decoder proves (`frame`):

    FOR-fits   base, base + step · (rows - 1) and either plus unit · the greatest delta are values of the type

Left out: patching single outliers (they cost their block its bits; `auto` then takes bitshuffle).
Source: J. Goldstein et al., "Compressing relations and indexes", 1998.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala import compute as pc
from nyala.cfile import format
from nyala.cfile.encoding.base import BlockEncoder, EncodedValues
from nyala.cfile.encoding.frame import Frame, line_fits
from nyala.cfile.physical import FIXED, Physical, fill_holes
from nyala.cfile.planes import pack_planes

__all__ = ["FrameOfReference"]

_LINE_BITS_MAX: Final = 61  # beyond them, positions times step might not fit 64 bits
_PROBE_ROWS: Final = 512


@dataclass(frozen=True)
class _FrameEncoder:
    form: Physical
    values: pa.Array  # int8 to int64, with NULLs
    dictionary: None = None

    def encode(self, lower: int, upper: int) -> pa.Buffer:
        part = self.values.slice(lower, upper - lower)
        there = _integers(part.drop_null() if part.null_count else part)
        base, greatest = int(there.min()), int(there.max())
        step, unit, bits = 0, 1, (greatest - base).bit_length()
        packed = b""
        if bits:
            values = _integers(part)
            unsigned = values.view(f"<u{values.itemsize}")
            deltas = unsigned - unsigned.dtype.type(base % (1 << 8 * values.itemsize))
            if part.null_count:
                deltas[~part.is_valid().to_numpy(zero_copy_only=False)] = 0
            unit = _unit(deltas)
            if unit > 1:
                deltas = deltas // deltas.dtype.type(unit)
            bits = int((greatest - base) // unit).bit_length()
            if part.null_count == 0 and (line := self._line(deltas, bits, base, unit)) is not None:
                base, step, deltas = line
                bits = int(deltas.max()).bit_length()
            packed = pack_planes(deltas, bits)
        header = format.FOR_HEADER.pack(base, step, unit if bits else 1, format.FOR_LINE, bits, bytes(6))
        return pa.py_buffer(header + packed)

    def _line(
        self, deltas: npt.NDArray[Any], bits: int, base: int, unit: int
    ) -> tuple[int, int, npt.NDArray[Any]] | None:
        """Base, step and deltas of a line in `unit` that needs fewer bits than these; None when there is none."""
        rows = len(deltas)
        if rows < 2 or bits > _LINE_BITS_MAX:
            return None
        step = (int(deltas[-1]) - int(deltas[0])) // (rows - 1)
        if step == 0:
            return None
        places = np.arange(0, rows, max(1, rows // _PROBE_ROWS))
        probe = deltas[places].astype(np.int64) - places * step
        if (int(probe.max()) - int(probe.min())).bit_length() >= bits:
            return None
        off = deltas.astype(np.int64)
        off -= np.arange(rows, dtype=np.int64) * step
        least = int(off.min())
        off -= least
        greatest = int(off.max())
        base, step = base + unit * least, unit * step
        if greatest.bit_length() >= bits or not line_fits(self.form, base, step, rows, unit * greatest):
            return None
        if not -(1 << 63) <= step < 1 << 63:  # from one end of 64 bits to the other in one step
            return None
        return base, step, off.view("<u8")


def _integers(part: pa.Array) -> npt.NDArray[Any]:
    """The numbers of an integer array as they lie there, whatever is under NULLs included."""
    dtype = np.dtype(part.type.to_pandas_dtype()).newbyteorder("<")
    return np.frombuffer(part.buffers()[1], dtype)[part.offset : part.offset + len(part)]


def _unit(deltas: npt.NDArray[Any]) -> int:
    """The greatest number that divides all deltas, one of which is not 0. A probe spares most columns the pass."""
    if int(np.gcd.reduce(deltas[:: max(1, len(deltas) // _PROBE_ROWS)])) == 1:
        return 1
    return int(np.gcd.reduce(deltas))


class FrameOfReference:
    """For integers, dates, timestamps, and decimals by their unscaled integers."""

    code: Final = format.ENCODING_FOR
    name: Final = "for"
    compresses: Final = True

    def handles(self, form: Physical) -> bool:
        if form.kind != FIXED:
            return False
        return form.type.is_integer or form.type.name in ("date", "timestamp", "decimal")

    def prepare(self, form: Physical, values: pa.Array) -> BlockEncoder | None:
        if form.code != format.TYPE_DECIMAL128:
            return _FrameEncoder(form, values)
        words = np.frombuffer(values.buffers()[1] or b"", "<i8")[2 * values.offset :][: 2 * len(values)]
        low, high = words[::2], words[1::2]
        fits = high == low >> 63
        if values.null_count:
            fits |= ~values.is_valid().to_numpy(zero_copy_only=False)
        validity = pc.is_valid(values).buffers()[1] if values.null_count else None
        narrow = pa.Array.from_buffers(
            pa.int64(), len(values), [validity, pa.py_buffer(low.copy())], values.null_count
        )
        frame = _FrameEncoder(form, narrow)
        return frame if fits.all() else _WideEncoder(form, values, frame, fits)

    def decode(self, form: Physical, block: EncodedValues) -> pa.Array:
        data, rows, header_size = block.data, block.row_count, format.FOR_HEADER.size
        if form.code == format.TYPE_DECIMAL128 and data.size >= header_size:
            *_, layout, _, _ = format.FOR_HEADER.unpack_from(data)
            if layout == format.FOR_WIDE:
                if data.size != header_size + rows * form.width_bytes:
                    raise ValueError(f"expected {rows} values of {form.width_bytes} bytes, found {data.size}")
                return form.fixed_array(data.slice(header_size), rows, block.validity, block.null_count)
        return Frame.parse(form, data, rows).array(block)

    def frame(self, form: Physical, block: EncodedValues) -> Frame:
        """A block as it is stored. Not of decimals of 16 bytes. Raises: as `decode`."""
        return Frame.parse(form, block.data, block.row_count).beside(block)


@dataclass(frozen=True)
class _WideEncoder:
    """Decimals of 16 bytes, some above 64 bits: only the blocks with these are wide."""

    form: Physical
    values: pa.Array
    frame: _FrameEncoder
    fits: npt.NDArray[np.bool_]
    dictionary: None = None

    def encode(self, lower: int, upper: int) -> pa.Buffer:
        if self.fits[lower:upper].all():
            return self.frame.encode(lower, upper)
        header = format.FOR_HEADER.pack(0, 0, 1, format.FOR_WIDE, 0, bytes(6))
        part = fill_holes(self.values.slice(lower, upper - lower))
        return pa.py_buffer(header + self.form.fixed_values(part).tobytes())
