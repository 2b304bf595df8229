"""ALP: floats with few decimal digits, stored as integers in a frame of reference.

    values      20.1  19.7  20.4  NaN  21.0        exponent 1
    integers     201   197   204  204   210        in a frame of reference, here 4 bits each
    exceptions   row 3: NaN                        unchanged, with their positions

A value is `integer / 10^exponent`. Both operands are exact doubles, so the quotient is the double
nearest to the decimal number, as if its text were parsed. The encoder divides as the decoder does
and compares every bit. A value that differs is an *exception*, stored unchanged. These are NaN,
infinities, -0.0, and values with more digits than the block's exponent allows. An outlier that
would make all integers wider, such as -9999 for "none", is an exception too. In the frame, an
exception has the integer of the row before it, which adds no bits. If exceptions would make a block
as large as plain values, the block has plain values.

    layout      each value is
    decimals    integer / 10^exponent, or an exception
    plain       itself

Each block has its own exponent: the one that needs the fewest bits for a sample of its values. An
exponent that is too large gives more exceptions, because integers must stay below 2^53. If the
exponent is too small for many values of the block, a sample of the exceptions gives a larger one.

Differences from the paper:
    - The unit is a whole block and not a vector of 1,024 values, because readers read blocks.
    - One division replaces two multiplications. It needs no second exponent, and is exact for every
      integer below 2^53.
    - The frame of reference subtracts a line (base + step · position), and not only a base.
    - The paper's second scheme, for doubles of full precision, does not exist: such columns use
      bitshuffle. Predicates are not evaluated on the encoded integers.
Source: A. Afroozeh, L. Kuffó, P. Boncz, "ALP: Adaptive Lossless floating-Point Compression", SIGMOD
2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile import format
from nyala.cfile.encoding.base import BlockEncoder, Candidate, ColumnSample, EncodedValues, Encoding
from nyala.cfile.encoding.frame_of_reference import FrameOfReference
from nyala.cfile.memory import allocate
from nyala.cfile.physical import Physical, physical
from nyala.schema.types import ColumnType

_INTEGERS: Final = physical(ColumnType("int64"))
_FRAME_OF_REFERENCE: Final[Encoding] = FrameOfReference()
# A sample takes runs of adjacent rows from all over the block. With every 64th row alone, a series
# that counts in quarters would look like integers.
_SAMPLE_RUNS: Final = 8
_SAMPLE_RUN_ROWS: Final = 64
_OUTLIERS_SAMPLE_ROWS: Final = 512
_EXCEPTIONS_SHARE: Final = 1 / 64
_TRIES: Final = 3
# At most this share of a block's integers, at either end, may become outliers.
_OUTLIERS_SHARE: Final = 1 / 32
# Outliers must reduce the block at least to this share, because a frame without exceptions decodes
# faster.
_OUTLIERS_SIZE_SHARE_MAX: Final = 0.95
_POSITION_BYTES: Final = 4
_INTEGER_MAX: Final = float(1 << 53)  # a double represents every integer up to this exactly
_POWERS: Final = np.array([float(10**exponent) for exponent in range(format.ALP_EXPONENT_MAX + 1)])
# The rows that are converted at once, so that intermediate results stay in the second-level cache.
_CHUNK_ROWS: Final = 1 << 14


@dataclass(frozen=True)
class _AlpEncoder(BlockEncoder):
    form: Physical
    values: npt.NDArray[Any]

    def encode(self, lower: int, upper: int) -> pa.Buffer:
        values = self.values[lower:upper]
        head = format.ALP_HEADER.pack(format.ALP_PLAIN, 0, bytes(2), 0)
        best, size = None, len(head) + values.nbytes
        exponent = _exponent(values)
        for _ in range(_TRIES):
            if exponent is None:
                break
            integers, fits = _integers(values, exponent)
            near = _without_outliers(integers, fits, values.itemsize)
            data = _decimals(values, exponent, integers, near, size)
            if data is not None:
                best, size = data, len(data)
            # The sample may have missed values: half of the exceptions may have one digit more, for
            # example.
            exceptions = values[~fits]
            is_many = len(exceptions) > len(values) * _EXCEPTIONS_SHARE
            larger = _exponent(exceptions) if is_many else None
            exponent = larger if larger is not None and larger > exponent else None
        return pa.py_buffer(head + values.tobytes() if best is None else best)


def _without_outliers(
    integers: npt.NDArray[np.int64], fits: npt.NDArray[np.bool_], width_bytes: int
) -> npt.NDArray[np.bool_]:
    """Return one bool per integer: False if its value is stored unchanged, as an exception.

    Exceptions are integers that are False in `fits`, and outliers: integers outside of a range of
    2^n numbers, with the n that makes the block smallest.
    Cost: two passes. If there may be outliers, also a sort.
    """
    fitting = integers if fits.all() else integers[fits]
    rows = len(fitting)
    most = int(rows * _OUTLIERS_SHARE)
    if most < 2:
        return fits
    bits = (int(fitting.max()) - int(fitting.min())).bit_length()
    sample = np.sort(fitting[:: max(1, rows // _OUTLIERS_SAMPLE_ROWS)])
    cut = len(sample) // 16
    inner_bits = (int(sample[-1 - cut]) - int(sample[cut])).bit_length()
    if bits <= inner_bits + 1:
        return fits
    order = np.sort(fitting)
    starts = np.unique(np.append(0, np.geomspace(1, most, 16).astype(np.int64)))
    least = rows * bits / 8 * _OUTLIERS_SIZE_SHARE_MAX
    bounds = None
    for fewer in range(inner_bits, bits):
        lower = order[starts]
        upper = lower + (1 << fewer)  # integers are below 2^53
        inside = np.searchsorted(order, upper) - starts
        best = int(inside.argmax())
        size = rows * fewer / 8 + (rows - int(inside[best])) * (_POSITION_BYTES + width_bytes)
        if size < least:
            # Extend the lower bound as far as the bits allow.
            top = int(order[starts[best] + inside[best] - 1])
            least, bounds = size, (min(int(lower[best]), top + 1 - (1 << fewer)), top)
    if bounds is None:
        return fits
    near: npt.NDArray[np.bool_] = fits & (integers >= bounds[0]) & (integers <= bounds[1])
    return near


def _decimals(
    values: npt.NDArray[Any],
    exponent: int,
    integers: npt.NDArray[np.int64],
    near: npt.NDArray[np.bool_],
    size: int,
) -> bytes | None:
    """Return the bytes of a block that stores decimal numbers as integers.

    Return None if the block would not be smaller than `size` bytes.

    exponent, integers: a value of the block is its integer divided by 10^exponent.
    near: a mask of the values that this division restores exactly. The block stores the others, the
        exceptions, unchanged.
    """
    exceptions = np.flatnonzero(~near)
    if len(exceptions) * (_POSITION_BYTES + values.itemsize) >= size:
        return None
    head = format.ALP_HEADER.pack(format.ALP_DECIMALS, exponent, bytes(2), len(exceptions))
    stored_exceptions = _padded(exceptions.astype("<u4").tobytes()) + _padded(values[exceptions].tobytes())
    data = head + stored_exceptions + _framed(integers, near)
    return data if len(data) < size else None


class Alp(Encoding):
    """An encoding for float and double columns with few decimal digits."""

    code = format.ENCODING_ALP
    name = "alp"
    compresses = True

    def prepare(self, form: Physical, values: pa.Array) -> BlockEncoder | None:
        return _AlpEncoder(form, form.fixed_values(values))

    def candidates(self, column: ColumnSample) -> Sequence[Candidate]:
        return self.sampled(column, 3)

    def header(self, form: Physical, data: bytes) -> format.Layout | None:
        return format.ALP_HEADER

    def decode(self, form: Physical, block: EncodedValues) -> pa.Array:
        data, rows, header_size = block.data, block.row_count, format.ALP_HEADER.size
        if data.size < header_size:
            raise ValueError(f"expected a header of {header_size} bytes, found {data.size}")
        layout, exponent, _, count = format.ALP_HEADER.unpack_from(data)
        if layout not in format.ALP_LAYOUTS or exponent > format.ALP_EXPONENT_MAX or count > rows:
            name = format.ALP_LAYOUTS.get(layout)
            found = f"the unknown layout {layout}" if name is None else f"the layout {name}"
            raise ValueError(
                f"expected the layout {' or '.join(format.ALP_LAYOUTS.values())}, an exponent of at most "
                f"{format.ALP_EXPONENT_MAX} and at most {rows} exceptions; found {found}, the exponent {exponent} "
                f"and {count} exceptions"
            )
        if layout != format.ALP_DECIMALS and (exponent or count):
            raise ValueError(
                f"expected neither exponent nor exceptions in layout {format.ALP_LAYOUTS[layout]}, found "
                f"exponent {exponent} and {count} exceptions"
            )
        if layout == format.ALP_PLAIN:
            if data.size != header_size + rows * form.width_bytes:
                raise ValueError(
                    f"expected {rows} values of {form.width_bytes} bytes, found {data.size - header_size} bytes"
                )
            return form.fixed_array(data.slice(header_size), rows)
        values_start = header_size + _padded_size(4 * count)
        frame_start = values_start + _padded_size(form.width_bytes * count)
        if data.size < frame_start:
            raise ValueError(f"expected {count} exceptions and a frame, found only {data.size} bytes")
        positions = np.frombuffer(data, "<u4", count, header_size)
        if count and (int(positions[-1]) >= rows or (positions[1:] <= positions[:-1]).any()):
            raise ValueError(
                f"expected positions of exceptions that ascend and are below {rows}, found others"
            )
        frame = EncodedValues(data.slice(frame_start), rows, None)
        integers = _FRAME_OF_REFERENCE.decode(_INTEGERS, frame).buffers()[1]
        out = allocate(rows * form.width_bytes)
        values = np.frombuffer(out, form.dtype)
        _divide(np.frombuffer(integers, "<i8"), exponent, values)
        if count:
            values[positions] = np.frombuffer(data, form.dtype, count, values_start)
        return form.fixed_array(out, rows)


def _divide(integers: npt.NDArray[np.int64], exponent: int, out: npt.NDArray[Any]) -> None:
    """Write integer / 10^exponent to `out`, for each integer.

    Encoder and decoder both use this function, so they get the same values.
    """
    for start in range(0, len(integers), _CHUNK_ROWS):
        part = slice(start, start + _CHUNK_ROWS)
        if out.dtype.itemsize == 8:
            np.divide(integers[part], _POWERS[exponent], out=out[part])
        else:
            out[part] = integers[part] / _POWERS[exponent]


def _integers(values: npt.NDArray[Any], exponent: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return value · 10^exponent as rounded integers, and a mask of those that decode exactly.

    Both have one item for each value.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = np.rint(values.astype(np.float64) * _POWERS[exponent])
        fits = np.abs(scaled) <= _INTEGER_MAX
        integers = np.where(fits, scaled, 0).astype(np.int64)
    decoded = np.empty_like(values)
    _divide(integers, exponent, decoded)
    fits &= _bits(decoded) == _bits(values)
    return integers, fits


def _bits(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return values.view(f"<u{values.itemsize}")


def _exponent(values: npt.NDArray[Any]) -> int | None:
    """Return the exponent (power of ten) that stores a sample of the values in the fewest bits.

    None if no exponent makes the sample smaller than plain values.
    """
    sample = values
    if len(values) > _SAMPLE_RUNS * _SAMPLE_RUN_ROWS:
        starts = np.linspace(0, len(values) - _SAMPLE_RUN_ROWS, _SAMPLE_RUNS).astype(np.int64)
        sample = np.concatenate([values[start : start + _SAMPLE_RUN_ROWS] for start in starts])
    # Try all exponents at once, because the calls cost more than their work.
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = np.rint(sample.astype(np.float64) * _POWERS[:, None])
        fits = np.abs(scaled) <= _INTEGER_MAX
        integers = np.where(fits, scaled, 0)
    fits &= _bits((integers / _POWERS[:, None]).astype(sample.dtype)) == _bits(sample)
    exception_bits = 8 * (_POSITION_BYTES + values.itemsize)
    best, least = None, len(sample) * 8 * values.itemsize
    for exponent, count in enumerate(fits.sum(axis=1).tolist()):
        if not count or (len(sample) - count) * exception_bits >= least:
            continue
        fitting = np.sort(integers[exponent, fits[exponent]])
        for cut in {0, int(len(fitting) * _OUTLIERS_SHARE)}:
            bits = (int(fitting[-1 - cut]) - int(fitting[cut])).bit_length()
            exceptions = len(sample) - len(fitting) + 2 * cut
            size = len(sample) * bits + exceptions * exception_bits
            if size < least:
                best, least = exponent, size
        if count == len(sample):  # larger exponents have larger integers and no fewer exceptions
            break
    return best


def _framed(integers: npt.NDArray[Any], near: npt.NDArray[np.bool_]) -> bytes:
    """Return the bytes of the integers, encoded in a frame of reference.

    A frame of reference stores each integer as its difference from a straight line through the
    integers: a base plus a step per row.

    near: a mask of the rows: False for an exception, a value that the block stores unchanged.
        For an exception, the frame stores the integer of another row.
    """
    if not near.all():
        before = np.maximum.accumulate(np.where(near, np.arange(len(near)), -1))
        before[before < 0] = int(near.argmax())
        integers = integers[before]
    encoder = _FRAME_OF_REFERENCE.prepare(
        _INTEGERS, pa.Array.from_buffers(pa.int64(), len(integers), [None, pa.py_buffer(integers)], 0)
    )
    assert encoder is not None
    frame: bytes = encoder.encode(0, len(integers)).to_pybytes()
    return frame


def _padded_size(size: int) -> int:
    return size + -size % format.ALP_ALIGNMENT_BYTES


def _padded(data: bytes) -> bytes:
    return data.ljust(_padded_size(len(data)), b"\0")
