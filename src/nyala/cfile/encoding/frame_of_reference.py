"""Frame of reference: how far each value is from where it is expected, in as few bits as the block needs.

    layout   a value is                            for
    line     base + step · position + unit · delta ranges of numbers, dates, prices; rowids (step 1, no bits);
                                                   whole seconds (unit 1,000,000), whole euros (unit 100)
    table    references[delta]                     up to 256 distinct values far apart: timestamps of batches
    wide     itself                                decimals of 16 bytes that 64 bits do not hold

Deltas are unsigned and have `bits` bits, 0 to 64. They are *bit-packed in planes*: the powers of two that make
`bits`, the largest first, each hold so many bits of every value, from the lowest up. Of 12 bits the plane of 8
has a byte per value, and the plane of 4 the rest: half as many bytes as values, whose lower halves belong to
the first half of the values, the upper ones to the second half.

         plane of 8 bits                plane of 4 bits
    ┌────┬────┬────┬────┐            ┌───────┬───────┐
    │ v0 │ v1 │ v2 │ v3 │ bits 0…7   │ v2 v0 │ v3 v1 │ bits 8…11
    └────┴────┴────┴────┘            └───────┴───────┘

So a plane is unpacked by as many whole-vector shifts as values share a byte, at memory speed in NumPy, and the
size is that of bit-packing. Values packed one after the other, as Parquet has them, would need a kernel of
their own; bytes alone (8, 16, 32 bits) decode about as fast but take half as much again in TPC-H's lineitem
(docs/decisions/0013-encodings.md has figures). What is left is one widening addition of the base.

    FOR-fits   base, base + step · (rows - 1) and either plus unit · the greatest delta are values of the type

The encoder keeps FOR-fits and the decoder checks it, so no sum wraps around. A NULL has delta 0.

Left out: patching single outliers (they cost their block its bits; `auto` then takes bitshuffle).
Source: J. Goldstein et al., "Compressing relations and indexes", 1998; planes are the vertical layout of
D. Lemire and L. Boytsov, "Decoding billions of integers per second", 2015, with vectors as long as the block.
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
from nyala.cfile.memory import allocate, scratch
from nyala.cfile.physical import FIXED, Physical, fill_holes

__all__ = ["FrameOfReference", "pack_planes", "planes_size", "unpack_planes"]

_PLANES: Final = (64, 32, 16, 8, 4, 2, 1)
_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1
_LINE_BITS_MAX: Final = 61  # beyond them, positions times step might not fit 64 bits
_PROBE_ROWS: Final = 512
# A table must beat the line by this: a look-up per value is slower than an addition.
_TABLE_SHARE_MAX: Final = 0.75


def planes_size(bits: int, count: int) -> int:
    """Bytes of `count` deltas of so many bits."""
    return sum(-(-count * plane // 8) for plane in _PLANES if bits & plane)


def _delta_dtype(bits: int) -> np.dtype[Any]:
    """The narrowest unsigned type of so many bits."""
    return np.dtype(f"<u{next(width for width in (1, 2, 4, 8) if bits <= 8 * width)}")


def pack_planes(deltas: npt.NDArray[Any], bits: int) -> bytes:
    """Unsigned numbers below 2^bits, as planes."""
    parts, shift = [], 0
    deltas = deltas.astype(_delta_dtype(bits), copy=False)  # every pass below is over as few bytes as can be
    for plane in _PLANES:
        if not bits & plane:
            continue
        part = deltas >> deltas.dtype.type(shift) if shift else deltas
        if plane >= 8:
            parts.append(part.astype(f"<u{plane // 8}").tobytes())  # the cast drops the bits above
        else:
            share, size = 8 // plane, -(-len(deltas) * plane // 8)
            low = np.zeros(share * size, np.uint8)
            np.bitwise_and(part.astype(np.uint8), np.uint8((1 << plane) - 1), out=low[: len(deltas)])
            packed = low[:size]
            for place in range(1, share):
                packed |= low[place * size : (place + 1) * size] << np.uint8(place * plane)
            parts.append(packed.tobytes())
        shift += plane
    return b"".join(parts)


def unpack_planes(data: pa.Buffer, start: int, bits: int, count: int) -> npt.NDArray[Any]:
    """The numbers at `start`, in the narrowest unsigned type; `data` is known to be long enough."""
    dtype = _delta_dtype(bits)
    deltas: npt.NDArray[Any] | None = None
    shift = 0
    for plane in _PLANES:
        if not bits & plane:
            continue
        size = -(-count * plane // 8)
        if plane >= 8:
            part = np.frombuffer(data, f"<u{plane // 8}", count, start)
        else:
            packed = np.frombuffer(data, np.uint8, size, start)
            unpacked = scratch(np.uint8, 8 // plane * size).reshape(8 // plane, size)
            for place in range(8 // plane):
                np.right_shift(packed, place * plane, out=unpacked[place])
            unpacked &= np.uint8((1 << plane) - 1)
            part = unpacked.reshape(-1)[:count]
        if deltas is None:
            is_last = bits & (plane - 1) == 0
            deltas = part if is_last or (part.dtype == dtype and plane < 8) else _copied(part, dtype)
        else:
            shifted = scratch(dtype, count)
            deltas |= np.left_shift(part, dtype.type(shift), out=shifted, dtype=dtype)
        start += size
        shift += plane
    return np.zeros(count, np.uint8) if deltas is None else deltas


def _copied(part: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    out = scratch(dtype, len(part))
    np.copyto(out, part)
    return out


def _value_bounds(form: Physical) -> tuple[int, int]:
    """The least and greatest value that 64 bits and the type hold."""
    least, greatest = _INT64_MIN, _INT64_MAX
    if form.type.name == "decimal":
        greatest = 10 ** (form.type.precision or 0) - 1
        return max(least, -greatest), min(_INT64_MAX, greatest)
    bits = 8 * form.width_bytes - 1
    return max(least, -(1 << bits)), min(greatest, (1 << bits) - 1)


@dataclass(frozen=True)
class _FrameEncoder:
    form: Physical
    values: pa.Array  # int8 to int64, with NULLs
    dictionary: None = None

    def encode(self, lower: int, upper: int) -> pa.Buffer:
        part = self.values.slice(lower, upper - lower)
        bounds = pc.min_max(part)
        base, greatest = bounds["min"].as_py(), bounds["max"].as_py()
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
            if (table := _table(part, values, bits)) is not None:
                return table
            packed = pack_planes(deltas, bits)
        header = format.FOR_HEADER.pack(base, step, unit if bits else 1, format.FOR_LINE, bits, 0, bytes(4))
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
        if greatest.bit_length() >= bits or not _line_fits(self.form, base, step, rows, unit * greatest):
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
    stride = max(1, len(values) // _PROBE_ROWS)
    probed = len(np.unique(values[::stride]))
    bits = (probed - 1).bit_length()
    if probed > format.FOR_REFERENCES_MAX or bits > line_bits * _TABLE_SHARE_MAX:
        return None
    encoded = part.dictionary_encode()
    count = len(encoded.dictionary)
    bits = (count - 1).bit_length()
    size = 8 * count + planes_size(bits, len(part))
    if count > format.FOR_REFERENCES_MAX or size > planes_size(line_bits, len(part)) * _TABLE_SHARE_MAX:
        return None
    order = pc.array_sort_indices(encoded.dictionary).to_numpy()
    rank = np.empty(count, np.uint8)
    rank[order] = np.arange(count, dtype=np.uint8)
    deltas = rank[encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)]
    references = encoded.dictionary.to_numpy()[order].astype("<i8").tobytes()
    header = format.FOR_HEADER.pack(0, 0, 1, format.FOR_TABLE, bits, count, bytes(4))
    return pa.py_buffer(b"".join((header, references, pack_planes(deltas, bits))))


def _line_fits(form: Physical, base: int, step: int, rows: int, delta_max: int) -> bool:
    """FOR-fits."""
    least, greatest = _value_bounds(form)
    end = base + step * (rows - 1)
    return least <= min(base, end) and max(base, end) + delta_max <= greatest


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
        if data.size < header_size:
            raise ValueError(f"expected a header of {header_size} bytes, found {data.size}")
        base, step, unit, layout, bits, count, _ = format.FOR_HEADER.unpack_from(data)
        if layout == format.FOR_WIDE and form.code == format.TYPE_DECIMAL128:
            if data.size != header_size + rows * form.width_bytes:
                raise ValueError(f"expected {rows} values of {form.width_bytes} bytes, found {data.size}")
            return form.fixed_array(data.slice(header_size), rows, block.validity, block.null_count)
        if (
            layout not in (format.FOR_LINE, format.FOR_TABLE)
            or bits > 64
            or count > format.FOR_REFERENCES_MAX
        ):
            raise ValueError(
                f"expected a line or a table of at most {format.FOR_REFERENCES_MAX} references and 64 bits, "
                f"found layout {layout}, {count} references and {bits} bits"
            )
        start = header_size + 8 * count
        if data.size != start + planes_size(bits, rows):
            raise ValueError(
                f"expected {start + planes_size(bits, rows)} bytes for {rows} values of {bits} bits, found "
                f"{data.size}"
            )
        deltas = unpack_planes(data, start, bits, rows)
        if layout == format.FOR_TABLE:
            references = np.frombuffer(data, "<i8", count, header_size)
            return self._from_table(form, block, references, deltas)
        if count:
            raise ValueError(f"expected no references beside a line, found {count}")
        return self._from_line(form, block, base, step, unit, deltas, bits)

    def _from_line(
        self,
        form: Physical,
        block: EncodedValues,
        base: int,
        step: int,
        unit: int,
        deltas: npt.NDArray[Any],
        bits: int,
    ) -> pa.Array:
        rows = block.row_count
        if unit == 0:
            raise ValueError("expected a unit of 1 or more, found 0")
        if not _line_fits(form, base, step, rows, unit * ((1 << bits) - 1)):
            # More room than was used, or nonsense: the greatest delta tells.
            delta_max = unit * int(deltas.max(initial=0))
            if not _line_fits(form, base, step, rows, delta_max):
                raise ValueError(
                    f"expected values of {form.type}, found a line from {base} with step {step} and deltas up "
                    f"to {delta_max}"
                )
        out, numbers = _output(form, rows)
        unsigned = numbers.view(f"<u{numbers.itemsize}")
        modulus = (
            1 << 8 * numbers.itemsize
        )  # sums that fit the type (FOR-fits) may be made of parts that wrap
        if step:
            line = np.arange(rows, dtype=np.int64)
            line *= step
            line += base
            if bits:
                scaled = deltas if unit == 1 else np.multiply(deltas, np.uint64(unit), dtype=np.uint64)
                np.add(line.view("<u8"), scaled, out=unsigned, casting="unsafe", dtype=np.uint64)
            else:
                numbers[:] = line
        else:
            first = unsigned.dtype.type(base % modulus)
            if bits == 0:
                unsigned[:] = first
            elif unit == 1:
                np.add(deltas, first, out=unsigned, casting="unsafe", dtype=unsigned.dtype)
            else:
                factor = unsigned.dtype.type(unit % modulus)
                np.multiply(deltas, factor, out=unsigned, casting="unsafe", dtype=unsigned.dtype)
                unsigned += first
        return _finish(form, block, out, is_signed=min(base, base + step * (rows - 1)) < 0)

    def _from_table(
        self,
        form: Physical,
        block: EncodedValues,
        references: npt.NDArray[np.int64],
        deltas: npt.NDArray[Any],
    ) -> pa.Array:
        if (greatest := int(deltas.max(initial=0))) >= len(references):
            raise ValueError(f"expected references below {len(references)}, found {greatest}")
        lower, upper = _value_bounds(form)
        least, most = int(references.min()), int(references.max())
        if least < lower or most > upper:
            raise ValueError(f"expected references of {form.type}, found {least} to {most}")
        out, numbers = _output(form, block.row_count)
        # Clipping spares NumPy its own look at the bounds; they are proved.
        numbers[:] = np.take(references.astype(numbers.dtype), deltas, mode="clip")
        return _finish(form, block, out, is_signed=least < 0)


@dataclass(frozen=True)
class _WideEncoder:
    """Decimals of 16 bytes of which some need more than 64 bits: only the blocks with these are wide."""

    form: Physical
    values: pa.Array
    frame: _FrameEncoder
    fits: npt.NDArray[np.bool_]
    dictionary: None = None

    def encode(self, lower: int, upper: int) -> pa.Buffer:
        if self.fits[lower:upper].all():
            return self.frame.encode(lower, upper)
        header = format.FOR_HEADER.pack(0, 0, 1, format.FOR_WIDE, 0, 0, bytes(4))
        part = fill_holes(self.values.slice(lower, upper - lower))
        return pa.py_buffer(header + self.form.fixed_values(part).tobytes())


def _output(form: Physical, rows: int) -> tuple[pa.Buffer, npt.NDArray[Any]]:
    """The Arrow buffer to be filled, and the numbers in it: of a decimal128 every other word.

    Arrow's memory, which is used again without the page faults that NumPy's would cost.
    """
    if _is_decimal128(form):
        out = allocate(16 * rows)
        return out, np.frombuffer(out, "<i8").reshape(rows, 2)[:, 0]
    assert form.dtype is not None
    out = allocate(rows * form.width_bytes)
    return out, np.frombuffer(out, form.dtype)


def _finish(form: Physical, block: EncodedValues, out: pa.Buffer, is_signed: bool) -> pa.Array:
    rows = block.row_count
    if _is_decimal128(form):
        words = np.frombuffer(out, "<i8").reshape(rows, 2)
        if is_signed:
            np.right_shift(words[:, 0], 63, out=words[:, 1])
        else:
            words[:, 1] = 0
    return pa.Array.from_buffers(form.arrow, rows, [block.validity, out], block.null_count)


def _is_decimal128(form: Physical) -> bool:
    """Whether Arrow's value has 16 bytes, whatever the stored one has."""
    return form.is_narrowed or form.code == format.TYPE_DECIMAL128
