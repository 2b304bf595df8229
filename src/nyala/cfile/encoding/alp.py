"""ALP: floats of few decimal digits as whole numbers in a frame of reference.

    values      20.1  19.7  20.4  NaN  21.0        exponent 1
    numbers      201   197   204  204   210        in a frame of reference, here 4 bits each
    exceptions   row 3: NaN                        as they are, with their places

A value is `number / 10^exponent`: the quotient of two doubles that are whole and exact is rounded once, to the double
(then the float) nearest to the decimal, and so the one that the decimal was read as. The encoder divides as the decoder
will and compares every bit; what differs is an exception: NaN, infinities, -0.0, digits that no decimal of the block's
exponent has. So is what lies so far from the others that all numbers would have more bits for it: a -9999 that stands
for "none". An exception takes the number before it, which costs the frame nothing. A block in which exceptions would
make it as large as plain is plain.

    floats      a value is
    decimals    number / 10^exponent, or an exception
    plain       itself

The exponent is the block's own. It is found on a probe, and is the one that takes the fewest bits: a larger one than is
needed makes larger numbers, whose unit the frame finds, and finds more exceptions where 2^53 is left. Where the block
turns out to have more exceptions than the probe, they are probed for a larger one.

Departures from the paper: whole blocks instead of vectors of 1,024 (a block is what is read and judged by its zone);
a division instead of two multiplications, which needs neither a second exponent nor its search and is exact for every
number below 2^53; a frame of reference that knows lines instead of one base. Left out: the paper's second scheme, for
doubles of full precision whose leading bits agree (bitshuffle is what takes these), and comparing the numbers in the
frame with predicates.
Source: A. Afroozeh, L. Kuffó, P. Boncz, "ALP: Adaptive Lossless floating-Point Compression", SIGMOD 2023.
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

__all__ = ["Alp"]

_NUMBERS: Final = physical(ColumnType("int64"))
_FRAMES: Final[Encoding] = FrameOfReference()
# Of neighbours, and from all over the block: every 64th row of a series that counts in quarters is whole.
_PROBE_STRETCHES: Final = 8
_PROBE_STRETCH_ROWS: Final = 64
_OUTLIERS_PROBE_ROWS: Final = 512
_EXCEPTIONS_SHARE: Final = 1 / 64
_TRIES: Final = 3
# Of a block's numbers, below and above the others, so many are looked at for outliers: beyond them it is no outlier.
_OUTLIERS_SHARE: Final = 1 / 32
# Of the numbers' bits, by which they must be worth it: a frame without exceptions is decoded by one call less.
_OUTLIERS_SIZE_SHARE_MAX: Final = 0.95
_PLACE_BYTES: Final = 4
_NUMBER_MAX: Final = float(1 << 53)  # up to it every whole number is a double
_POWERS: Final = np.array([float(10**exponent) for exponent in range(format.ALP_EXPONENT_MAX + 1)])
# Rows converted at a time: numbers, quotients and what comes out of them stay in the second-level cache.
_STRETCH_ROWS: Final = 1 << 14


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
            numbers, fits = _numbers(values, exponent)
            near = _without_outliers(numbers, fits, values.itemsize)
            data = _decimals(values, exponent, numbers, near, size)
            if data is not None:
                best, size = data, len(data)
            # What the probe did not see: half of the exceptions may have a digit more.
            odd = values[~fits]
            other = _exponent(odd) if len(odd) > len(values) * _EXCEPTIONS_SHARE else None
            exponent = other if other is not None and other > exponent else None
        return pa.py_buffer(head + values.tobytes() if best is None else best)


def _without_outliers(
    numbers: npt.NDArray[np.int64], fits: npt.NDArray[np.bool_], width_bytes: int
) -> npt.NDArray[np.bool_]:
    """Of each number whether it fits and lies among the others: within as many bits as make the block smallest.

    Cost: two passes, and a sort where the least and the greatest are far from a probe's middle.
    """
    of_fitting = numbers if fits.all() else numbers[fits]
    rows = len(of_fitting)
    most = int(rows * _OUTLIERS_SHARE)
    if most < 2:
        return fits
    bits = (int(of_fitting.max()) - int(of_fitting.min())).bit_length()
    probe = np.sort(of_fitting[:: max(1, rows // _OUTLIERS_PROBE_ROWS)])
    cut = len(probe) // 16
    inner_bits = (int(probe[-1 - cut]) - int(probe[cut])).bit_length()
    if bits <= inner_bits + 1:
        return fits
    order = np.sort(of_fitting)
    starts = np.unique(np.append(0, np.geomspace(1, most, 16).astype(np.int64)))
    least = rows * bits / 8 * _OUTLIERS_SIZE_SHARE_MAX
    window = None
    for fewer in range(inner_bits, bits):
        lower = order[starts]
        upper = lower + (1 << fewer)  # numbers are below 2^53
        inside = np.searchsorted(order, upper) - starts
        best = int(inside.argmax())
        size = rows * fewer / 8 + (rows - int(inside[best])) * (_PLACE_BYTES + width_bytes)
        if size < least:
            # What there is room for below the greatest is inside as well.
            top = int(order[starts[best] + inside[best] - 1])
            least, window = size, (min(int(lower[best]), top + 1 - (1 << fewer)), top)
    if window is None:
        return fits
    near: npt.NDArray[np.bool_] = fits & (numbers >= window[0]) & (numbers <= window[1])
    return near


def _decimals(
    values: npt.NDArray[Any],
    exponent: int,
    numbers: npt.NDArray[np.int64],
    near: npt.NDArray[np.bool_],
    size: int,
) -> bytes | None:
    """A block of these numbers, where they are not near of exceptions; None where it is not below `size` bytes."""
    exceptions = np.flatnonzero(~near)
    if len(exceptions) * (_PLACE_BYTES + values.itemsize) >= size:
        return None
    head = format.ALP_HEADER.pack(format.ALP_DECIMALS, exponent, bytes(2), len(exceptions))
    beside = _padded(exceptions.astype("<u4").tobytes()) + _padded(values[exceptions].tobytes())
    data = head + beside + _framed(numbers, near)
    return data if len(data) < size else None


class Alp(Encoding):
    """For float and double."""

    code = format.ENCODING_ALP
    name = "alp"
    compresses = True

    def handles(self, form: Physical) -> bool:
        return form.code in (format.TYPE_FLOAT, format.TYPE_DOUBLE)

    def prepare(self, form: Physical, values: pa.Array) -> BlockEncoder | None:
        return _AlpEncoder(form, form.fixed_values(values))

    def candidates(self, column: ColumnSample) -> Sequence[Candidate]:
        return self.sampled(column, column.light_compression, 3)

    def header(self, form: Physical, data: bytes) -> format.Layout | None:
        return format.ALP_HEADER

    def decode(self, form: Physical, block: EncodedValues) -> pa.Array:
        data, rows, header_size = block.data, block.row_count, format.ALP_HEADER.size
        if data.size < header_size:
            raise ValueError(f"expected a header of {header_size} bytes, found {data.size}")
        layout, exponent, _, count = format.ALP_HEADER.unpack_from(data)
        if layout not in format.ALP_LAYOUTS or exponent > format.ALP_EXPONENT_MAX or count > rows:
            raise ValueError(
                f"expected decimals or plain values, an exponent of at most {format.ALP_EXPONENT_MAX} and at "
                f"most {rows} exceptions, found layout {layout}, exponent {exponent} and {count} exceptions"
            )
        if layout != format.ALP_DECIMALS and (exponent or count):
            raise ValueError(
                f"expected neither exponent nor exceptions beside {format.ALP_LAYOUTS[layout]} values, found "
                f"{exponent} and {count}"
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
            raise ValueError(f"expected {count} exceptions and a frame, found {data.size} bytes")
        places = np.frombuffer(data, "<u4", count, header_size)
        if count and (int(places[-1]) >= rows or (places[1:] <= places[:-1]).any()):
            raise ValueError(f"expected places of exceptions below {rows}, ascending")
        frame = EncodedValues(data.slice(frame_start), rows, None)
        numbers = _FRAMES.decode(_NUMBERS, frame).buffers()[1]
        out = allocate(rows * form.width_bytes)
        values = np.frombuffer(out, form.dtype)
        _divide(np.frombuffer(numbers, "<i8"), exponent, values)
        if count:
            values[places] = np.frombuffer(data, form.dtype, count, values_start)
        return form.fixed_array(out, rows)


def _divide(numbers: npt.NDArray[np.int64], exponent: int, out: npt.NDArray[Any]) -> None:
    """The values that these numbers stand for. Encoder and decoder have it in common, so they cannot disagree."""
    for start in range(0, len(numbers), _STRETCH_ROWS):
        part = slice(start, start + _STRETCH_ROWS)
        if out.dtype.itemsize == 8:
            np.divide(numbers[part], _POWERS[exponent], out=out[part])
        else:
            out[part] = numbers[part] / _POWERS[exponent]


def _numbers(values: npt.NDArray[Any], exponent: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """(the number of each value, whether it stands for just that value)."""
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = np.rint(values.astype(np.float64) * _POWERS[exponent])
        fits = np.abs(scaled) <= _NUMBER_MAX
        numbers = np.where(fits, scaled, 0).astype(np.int64)
    back = np.empty_like(values)
    _divide(numbers, exponent, back)
    fits &= _bits(back) == _bits(values)
    return numbers, fits


def _bits(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return values.view(f"<u{values.itemsize}")


def _exponent(values: npt.NDArray[Any]) -> int | None:
    """The exponent that takes the fewest bits for a probe of these; None: nothing fits any."""
    probe = values
    if len(values) > _PROBE_STRETCHES * _PROBE_STRETCH_ROWS:
        starts = np.linspace(0, len(values) - _PROBE_STRETCH_ROWS, _PROBE_STRETCHES).astype(np.int64)
        probe = np.concatenate([values[start : start + _PROBE_STRETCH_ROWS] for start in starts])
    # All exponents at once: for each of them the calls cost more than their work.
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = np.rint(probe.astype(np.float64) * _POWERS[:, None])
        fits = np.abs(scaled) <= _NUMBER_MAX
        numbers = np.where(fits, scaled, 0)
    fits &= _bits((numbers / _POWERS[:, None]).astype(probe.dtype)) == _bits(probe)
    best, least, exception_bits = None, len(probe) * 8 * values.itemsize, 8 * (_PLACE_BYTES + values.itemsize)
    for exponent, count in enumerate(fits.sum(axis=1).tolist()):
        if not count or (len(probe) - count) * exception_bits >= least:
            continue
        fitting = np.sort(numbers[exponent, fits[exponent]])
        for cut in {0, int(len(fitting) * _OUTLIERS_SHARE)}:
            bits = (int(fitting[-1 - cut]) - int(fitting[cut])).bit_length()
            exceptions = len(probe) - len(fitting) + 2 * cut
            size = len(probe) * bits + exceptions * exception_bits
            if size < least:
                best, least = exponent, size
        if count == len(probe):  # of a larger exponent the numbers are larger, and no fewer are exceptions
            break
    return best


def _framed(numbers: npt.NDArray[Any], near: npt.NDArray[np.bool_]) -> bytes:
    """The numbers as a frame of reference; in the place of one that is not near, the one before it."""
    if not near.all():
        before = np.maximum.accumulate(np.where(near, np.arange(len(near)), -1))
        before[before < 0] = int(near.argmax())
        numbers = numbers[before]
    encoder = _FRAMES.prepare(
        _NUMBERS, pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)], 0)
    )
    assert encoder is not None
    frame: bytes = encoder.encode(0, len(numbers)).to_pybytes()
    return frame


def _padded_size(size: int) -> int:
    return size + -size % format.ALP_ALIGNMENT_BYTES


def _padded(data: bytes) -> bytes:
    return data.ljust(_padded_size(len(data)), b"\0")
