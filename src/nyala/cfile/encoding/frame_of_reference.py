"""Frame of reference: how far each value is from where it is expected, in as few bits as the block needs.

    layout   a value is                            for
    line     base + step · position + unit · delta ranges of numbers, dates, prices; rowids (step 1, no bits);
                                                   whole seconds (unit 1,000,000), whole euros (unit 100)
    table    references[delta]                     up to 32,768 distinct values far apart: timestamps of batches, hashes
    steps    the one before + (step + unit · delta), or + references[delta]
                                                   what the key sorts: order numbers with gaps, times that jitter
    shared   number base + delta of a table that the column has (`number_table`)
                                                   up to 131,072 that return all over the column: ids of users
    wide     itself                                decimals of 16 bytes that 64 bits do not hold
    packed   see `packed_numbers`                  a column's table, which is always read as a whole

Deltas are unsigned and have `bits` bits, 0 to 64; they are bit-packed in planes (`planes`). What is left is one
addition of the base; of steps one after the other, for which a line or a table must be twice as large. The first row
of each 2,048 is told by itself (an anchor), so that a row is found without the whole block. A NULL has delta 0; steps
are for blocks without any.

The encoder keeps FOR-fits, which the decoder proves (`frame`):

    FOR-fits   base, base + step · (rows - 1) and either plus unit · the greatest delta are values of the type;
               so are references of a table, numbers of the column's, and every sum of steps

Left out: patching single outliers (they cost their block its bits; `auto` then takes bitshuffle).
Source: J. Goldstein et al., "Compressing relations and indexes", 1998.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from nyala.cfile import format
from nyala.cfile.encoding.base import BlockEncoder, EncodedValues
from nyala.cfile.encoding.frame import Frame, line_fits, value_bounds
from nyala.cfile.encoding.number_table import SHARE_MAX, TABLE_FORM, NumberTable, probed_bits, table_of
from nyala.cfile.encoding.packed_numbers import pack_numbers, unpack_numbers
from nyala.cfile.physical import FIXED, Physical, fill_holes
from nyala.cfile.planes import pack_planes, planes_size

__all__ = ["FrameOfReference"]

_LINE_BITS_MAX: Final = 61  # beyond them, positions times step might not fit 64 bits
_PROBE_ROWS: Final = 512
_TABLE_SHARE_MAX: Final = SHARE_MAX  # a table must beat the line by this
# Steps must beat either by this: sums wait for one another.
_STEPS_SHARE_MAX: Final = 0.5


@dataclass(frozen=True)
class _FrameEncoder:
    form: Physical
    values: pa.Array  # int8 to int64, with NULLs
    shared: NumberTable | None = None
    steps_share_max: float = _STEPS_SHARE_MAX
    dictionary: None = None

    @property
    def table(self) -> npt.NDArray[np.int64] | None:
        return None if self.shared is None else self.shared.numbers

    def encode(self, lower: int, upper: int) -> pa.Buffer:
        part = self.values.slice(lower, upper - lower)
        bounds = pc.min_max(part)
        base, greatest = bounds["min"].as_py(), bounds["max"].as_py()
        spread = greatest - base
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
            table = _table(part, values, bits) if self.shared is None else self._shared(lower, upper, bits)
            size = planes_size(bits, len(part)) if table is None else table.size
            if (
                part.null_count == 0
                and (steps := _steps(values, spread, int(size * self.steps_share_max))) is not None
            ):
                return steps
            if table is not None:
                return table
            packed = pack_planes(deltas, bits)
        header = format.FOR_HEADER.pack(base, step, unit if bits else 1, format.FOR_LINE, bits, 0, bytes(4))
        return pa.py_buffer(header + packed)

    def _shared(self, lower: int, upper: int, line_bits: int) -> pa.Buffer | None:
        """The block over the column's table, None when the line is about as small."""
        assert self.shared is not None
        frame = self.shared.frame(lower, upper)
        is_worth_it = len(frame) <= planes_size(line_bits, upper - lower) * _TABLE_SHARE_MAX
        return pa.py_buffer(frame) if is_worth_it else None

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


def _table(part: pa.Array, values: npt.NDArray[Any], line_bits: int) -> pa.Buffer | None:
    """The block as references, None when there are too many, or the line is about as small."""
    bits = probed_bits(values)
    if bits is None or bits > line_bits * _TABLE_SHARE_MAX:
        return None
    table = table_of(part, format.FOR_REFERENCES_MAX)
    if table is None:
        return None
    count, bits = len(table.numbers), table.bits
    if 8 * count + planes_size(bits, len(part)) > planes_size(line_bits, len(part)) * _TABLE_SHARE_MAX:
        return None
    header = format.FOR_HEADER.pack(0, 0, 1, format.FOR_TABLE, bits, count, bytes(4))
    return pa.py_buffer(b"".join((header, table.numbers.tobytes(), pack_planes(table.codes, bits))))


def _steps(values: npt.NDArray[Any], spread: int, size_max: int) -> pa.Buffer | None:
    """The block as steps; None when that takes more than so many bytes. spread: greatest less least."""
    rows = len(values)
    if rows < 2 or spread >= 1 << 62:
        return None
    # A stretch of neighbours in the middle spares most columns the pass.
    middle = values[rows // 2 :][: _PROBE_ROWS + 1].astype(np.int64)
    if len(middle) > 1 and planes_size(_bits_of_steps(np.diff(middle)), rows) > size_max:
        return None
    anchors = values[:: format.FOR_TILE_ROWS].astype("<i8")
    steps = np.empty(rows, np.int64)
    np.subtract(values[1:], values[:-1], out=steps[1:], dtype=np.int64)
    # Of a tile's first nothing is read. They are what their neighbours are, so that a probe does not find one number
    # again and again.
    after = steps[1 :: format.FOR_TILE_ROWS]
    steps[:: format.FOR_TILE_ROWS] = (
        np.append(after, after[:1]) if rows % format.FOR_TILE_ROWS == 1 else after
    )
    least, greatest = int(steps.min()), int(steps.max())
    deltas = (steps - least).view("<u8")
    unit = _unit(deltas) if greatest > least else 1
    bits = ((greatest - least) // unit).bit_length()
    header_size = format.FOR_HEADER.size + anchors.nbytes
    best, references = header_size + planes_size(bits, rows), b""
    table = _step_table(steps, bits)
    if table is not None:
        size_of_table = header_size + table.numbers.nbytes + planes_size(table.bits, rows)
        if size_of_table < best * _TABLE_SHARE_MAX:
            best, references, bits, deltas = size_of_table, table.numbers.tobytes(), table.bits, table.codes
            least, unit = 0, 1
    if best > size_max:
        return None
    if bits > format.FOR_STEPS_BITS_MAX:
        return None
    if unit > 1:
        deltas = deltas // np.uint64(unit)
    count = len(references) // 8
    header = format.FOR_HEADER.pack(0, least, unit, format.FOR_STEPS, bits, count, bytes(4))
    return pa.py_buffer(b"".join((header, references, anchors.tobytes(), pack_planes(deltas, bits))))


def _bits_of_steps(steps: npt.NDArray[np.int64]) -> int:
    """About how many bits a delta of such steps takes."""
    spread_bits, named_bits = (int(steps.max()) - int(steps.min())).bit_length(), probed_bits(steps)
    return spread_bits if named_bits is None else min(spread_bits, named_bits)


def _step_table(steps: npt.NDArray[np.int64], bits: int) -> NumberTable | None:
    """Their table, None when there are too many or nothing is won."""
    probed = probed_bits(steps)
    if probed is None or probed >= bits:
        return None
    return table_of(pa.array(steps), format.FOR_REFERENCES_MAX)


class FrameOfReference:
    """For integers, dates, timestamps, and decimals by their unscaled integers.

    steps_share_max: of what a line or a table takes, steps may take no more, as their sums wait for one another. Other
            encodings, which do more with the numbers, may allow for more.
    """

    def __init__(self, steps_share_max: float = _STEPS_SHARE_MAX) -> None:
        self._steps_share_max: Final = steps_share_max

    code: Final = format.ENCODING_FOR
    name: Final = "for"
    compresses: Final = True

    def handles(self, form: Physical) -> bool:
        if form.kind != FIXED:
            return False
        return form.type.is_integer or form.type.name in ("date", "timestamp", "decimal")

    def prepare(self, form: Physical, values: pa.Array) -> BlockEncoder | None:
        if form.code != format.TYPE_DECIMAL128:
            return _FrameEncoder(form, values, steps_share_max=self._steps_share_max)
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

    def numbers(self, form: Physical, values: pa.Array) -> pa.Array | None:
        """What a table of these values would have: int8 to int64, with NULLs. None: there is none for the type."""
        return None if form.code == format.TYPE_DECIMAL128 else values

    def prepare_over(self, form: Physical, values: pa.Array, table: NumberTable) -> BlockEncoder:
        """`prepare`, with a table of the values for the whole column."""
        return _FrameEncoder(form, values, table)

    def prepare_table(self, numbers: npt.NDArray[np.int64]) -> BlockEncoder:
        """The encoder of a column's table, as one block of `TABLE_FORM`."""
        return _TableEncoder(numbers)

    def decode(self, form: Physical, block: EncodedValues) -> pa.Array:
        data, rows, header_size = block.data, block.row_count, format.FOR_HEADER.size
        if form.code == format.TYPE_DECIMAL128 and data.size >= header_size:
            *_, layout, _, _, _ = format.FOR_HEADER.unpack_from(data)
            if layout == format.FOR_WIDE:
                if data.size != header_size + rows * form.width_bytes:
                    raise ValueError(f"expected {rows} values of {form.width_bytes} bytes, found {data.size}")
                return form.fixed_array(data.slice(header_size), rows, block.validity, block.null_count)
        elif form.code == TABLE_FORM.code and not block.null_count and data.size >= header_size:
            *_, layout, _, _, _ = format.FOR_HEADER.unpack_from(data)
            if layout == format.FOR_PACKED:
                numbers, end = unpack_numbers(data, header_size, rows, *value_bounds(form))
                if end != data.size:
                    raise ValueError(f"expected {end} bytes for {rows} numbers, found {data.size}")
                return form.fixed_array(pa.py_buffer(numbers), rows, None, 0)
        return Frame.parse(form, data, rows, block.table).array(block)

    def frame(self, form: Physical, block: EncodedValues) -> Frame:
        """A block as it lies. Not of decimals of 16 bytes. Raises: as `decode`."""
        return Frame.parse(form, block.data, block.row_count, block.table).beside(block)


@dataclass(frozen=True)
class _WideEncoder:
    """Decimals of 16 bytes of which some need more than 64 bits: only the blocks with these are wide."""

    form: Physical
    values: pa.Array
    frame: _FrameEncoder
    fits: npt.NDArray[np.bool_]
    dictionary: None = None
    table: None = None

    def encode(self, lower: int, upper: int) -> pa.Buffer:
        if self.fits[lower:upper].all():
            return self.frame.encode(lower, upper)
        header = format.FOR_HEADER.pack(0, 0, 1, format.FOR_WIDE, 0, 0, bytes(4))
        part = fill_holes(self.values.slice(lower, upper - lower))
        return pa.py_buffer(header + self.form.fixed_values(part).tobytes())


@dataclass(frozen=True)
class _TableEncoder:
    """A frame, or packed numbers where these are smaller."""

    numbers: npt.NDArray[np.int64]
    dictionary: None = None
    table: None = None

    def encode(self, lower: int, upper: int) -> pa.Buffer:
        part = self.numbers[lower:upper]
        frame = _FrameEncoder(TABLE_FORM, pa.array(part)).encode(0, len(part))
        packed = pack_numbers(part)
        if format.FOR_HEADER.size + len(packed) >= frame.size:
            return frame
        header = format.FOR_HEADER.pack(0, 0, 1, format.FOR_PACKED, 0, 0, bytes(4))
        return pa.py_buffer(header + packed)
