"""ALP: floats of few decimal digits, as whole numbers in a frame of reference.

    values      20.1  19.7  20.4  NaN  21.0        exponent 1
    numbers      201   197   204  204   210        in a frame of reference, here 4 bits each
    exceptions   row 3: NaN                        as they are, with their places

A value is `number / 10^exponent`: the quotient of two doubles that are whole and exact is rounded once, to the double
(then the float) nearest to the decimal, and so the one that the decimal was read as. The encoder divides as the decoder
will and compares every bit; what differs is an exception: NaN, infinities, -0.0, digits that no decimal of the block's
exponent has. An exception takes the number before it, which costs the frame nothing. A block in which exceptions would
make it as large as plain is plain.

    floats      a value is
    decimals    number / 10^exponent, or an exception
    plain       itself

The exponent is the block's own. It is found on a probe, and is the one that takes the fewest bits: a larger one than is
needed makes larger numbers, whose unit the frame finds, and finds more exceptions where 2^53 is left. Where the block
turns out to have more exceptions than the probe, they are probed for a larger one.

Departures from the paper: whole blocks instead of vectors of 1,024 (a block is what is read and judged by its zone);
a division instead of two multiplications, which needs neither a second exponent nor its search and is exact for every
number below 2^53; a frame of reference that knows lines, tables and steps instead of one base. Left out: the paper's
second scheme, for doubles of full precision whose leading bits agree (bitshuffle is what takes these), and comparing
the numbers in the frame with predicates.
Source: A. Afroozeh, L. Kuffó, P. Boncz, "ALP: Adaptive Lossless floating-Point Compression", SIGMOD 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile import format
from nyala.cfile.encoding.base import BlockEncoder, EncodedValues, Encoding
from nyala.cfile.encoding.frame_of_reference import FrameOfReference
from nyala.cfile.memory import allocate
from nyala.cfile.physical import Physical, fill_holes, physical
from nyala.schema.types import ColumnType

__all__ = ["Alp"]

_NUMBERS: Final = physical(ColumnType("int64"))
_FRAMES: Final[Encoding] = FrameOfReference()
# Of neighbours, and from all over the block: every 64th row of a series that counts in quarters is whole.
_PROBE_STRETCHES: Final = 8
_PROBE_STRETCH_ROWS: Final = 64
_EXCEPTIONS_SHARE: Final = 1 / 64
_TRIES: Final = 3
_PLACE_BYTES: Final = 4
_NUMBER_MAX: Final = float(1 << 53)  # up to it every whole number is a double
_POWERS: Final = np.array([float(10**exponent) for exponent in range(format.ALP_EXPONENT_MAX + 1)])
# Rows converted at a time: numbers, quotients and what comes out of them stay in the second-level cache.
_STRETCH_ROWS: Final = 1 << 14


@dataclass(frozen=True)
class _AlpEncoder:
    form: Physical
    values: npt.NDArray[Any]
    is_valid: npt.NDArray[np.bool_] | None  # None: all of them
    dictionary: None = None

    def encode(self, lower: int, upper: int) -> pa.Buffer:
        values = self.values[lower:upper]
        is_valid = None if self.is_valid is None else self.is_valid[lower:upper]
        head = format.ALP_HEADER.pack(format.ALP_PLAIN, 0, bytes(2), 0)
        best, size = None, len(head) + values.nbytes
        exponent = _exponent(values if is_valid is None else values[is_valid])
        for _ in range(_TRIES):
            if exponent is None:
                break
            numbers, fits = _numbers(values, exponent)
            places = np.flatnonzero(~fits if is_valid is None else ~fits & is_valid)
            data = _decimals(values, exponent, numbers, fits, places, is_valid, size)
            if data is not None:
                best, size = data, len(data)
            # What the probe did not see: half of the exceptions may have a digit more.
            other = _exponent(values[places]) if len(places) > len(values) * _EXCEPTIONS_SHARE else None
            exponent = other if other is not None and other > exponent else None
        return pa.py_buffer(head + values.tobytes() if best is None else best)


def _decimals(
    values: npt.NDArray[Any],
    exponent: int,
    numbers: npt.NDArray[np.int64],
    fits: npt.NDArray[np.bool_],
    exceptions: npt.NDArray[np.intp],
    is_valid: npt.NDArray[np.bool_] | None,
    size: int,
) -> bytes | None:
    """A block of these numbers and exceptions; None where it is not below `size` bytes."""
    if len(exceptions) * (_PLACE_BYTES + values.itemsize) >= size:
        return None
    head = format.ALP_HEADER.pack(format.ALP_DECIMALS, exponent, bytes(2), len(exceptions))
    beside = _padded(exceptions.astype("<u4").tobytes()) + _padded(values[exceptions].tobytes())
    data = head + beside + _framed(numbers, fits, is_valid)
    return data if len(data) < size else None


class Alp:
    """For float and double."""

    code: Final = format.ENCODING_ALP
    name: Final = "alp"
    compresses: Final = True

    def handles(self, form: Physical) -> bool:
        return form.code in (format.TYPE_FLOAT, format.TYPE_DOUBLE)

    def prepare(self, form: Physical, values: pa.Array) -> BlockEncoder | None:
        is_valid = None
        if values.null_count:
            is_valid = values.is_valid().to_numpy(zero_copy_only=False)
        return _AlpEncoder(form, form.fixed_values(fill_holes(values)), is_valid)

    def decode(self, form: Physical, block: EncodedValues) -> pa.Array:
        data, rows, header_size = block.data, block.row_count, format.ALP_HEADER.size
        if data.size < header_size:
            raise ValueError(f"expected a header of {header_size} bytes, found {data.size}")
        layout, exponent, _, count = format.ALP_HEADER.unpack_from(data)
        if layout == format.ALP_PLAIN:
            if data.size != header_size + rows * form.width_bytes:
                raise ValueError(
                    f"expected {rows} values of {form.width_bytes} bytes, found {data.size - header_size} bytes"
                )
            return form.fixed_array(data.slice(header_size), rows, block.validity, block.null_count)
        if layout != format.ALP_DECIMALS or exponent > format.ALP_EXPONENT_MAX or count > rows:
            raise ValueError(
                f"expected decimals or plain values, an exponent of at most {format.ALP_EXPONENT_MAX} and at most "
                f"{rows} exceptions, found layout {layout}, exponent {exponent} and {count} exceptions"
            )
        values_start = header_size + _padded_size(4 * count)
        frame_start = values_start + _padded_size(form.width_bytes * count)
        if data.size < frame_start:
            raise ValueError(f"expected {count} exceptions and a frame, found {data.size} bytes")
        places = np.frombuffer(data, "<u4", count, header_size)
        if count and (int(places[-1]) >= rows or (places[1:] <= places[:-1]).any()):
            raise ValueError(f"expected places of exceptions below {rows}, ascending")
        numbers = _FRAMES.decode(_NUMBERS, EncodedValues(data.slice(frame_start), rows, None, 0, None))
        out = allocate(rows * form.width_bytes)
        values = np.frombuffer(out, form.dtype)
        _divide(np.frombuffer(numbers.buffers()[1], "<i8"), exponent, values)
        if count:
            values[places] = np.frombuffer(data, form.dtype, count, values_start)
        return form.fixed_array(out, rows, block.validity, block.null_count)


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
    """The exponent that takes the fewest bits for a probe of these, none of them NULL; None: nothing fits any."""
    starts = np.linspace(0, max(0, len(values) - _PROBE_STRETCH_ROWS), _PROBE_STRETCHES).astype(np.int64)
    probe = np.concatenate([values[start : start + _PROBE_STRETCH_ROWS] for start in np.unique(starts)])
    best, least = None, len(probe) * 8 * values.itemsize
    for exponent in range(format.ALP_EXPONENT_MAX + 1):
        numbers, fits = _numbers(probe, exponent)
        fitting = numbers[fits]
        if not len(fitting):
            continue
        bits = (int(fitting.max()) - int(fitting.min())).bit_length()
        size = len(probe) * bits + (len(probe) - len(fitting)) * 8 * (_PLACE_BYTES + values.itemsize)
        if size < least:
            best, least = exponent, size
    return best


def _framed(
    numbers: npt.NDArray[np.int64], fits: npt.NDArray[np.bool_], is_valid: npt.NDArray[np.bool_] | None
) -> bytes:
    """The numbers as a frame of reference; in the place of one that does not fit, the one before it."""
    if not fits.all():
        before = np.maximum.accumulate(np.where(fits, np.arange(len(fits)), -1))
        before[before < 0] = int(fits.argmax())
        numbers = numbers[before]
    validity = None if is_valid is None else pa.array(is_valid).buffers()[1]
    null_count = 0 if is_valid is None else len(is_valid) - int(is_valid.sum())
    array = pa.Array.from_buffers(pa.int64(), len(numbers), [validity, pa.py_buffer(numbers)], null_count)
    encoder = _FRAMES.prepare(_NUMBERS, array)
    assert encoder is not None
    frame: bytes = encoder.encode(0, len(numbers)).to_pybytes()
    return frame


def _padded_size(size: int) -> int:
    return size + -size % format.ALP_ALIGNMENT_BYTES


def _padded(data: bytes) -> bytes:
    return data.ljust(_padded_size(len(data)), b"\0")
