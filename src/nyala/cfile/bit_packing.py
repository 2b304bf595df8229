"""Packs unsigned integers below 2^bits into bit-planes whose widths are powers of two.

The widths of the planes add up to `bits`. The widest plane comes first and holds the lowest bits of
every number. With 12 bits, the 8-bit plane has one byte per number. The 4-bit plane has half as
many
bytes: their lower halves belong to the first half of the numbers, their upper halves to the second.

         8-bit plane                    4-bit plane
    ┌────┬────┬────┬────┐            ┌───────┬───────┐
    │ v0 │ v1 │ v2 │ v3 │ bits 0…7   │ v2 v0 │ v3 v1 │ bits 8…11
    └────┴────┴────┴────┘            └───────┴───────┘

A plane in which k numbers share a byte is unpacked by k shifts of whole vectors, at memory speed in
NumPy. The size is that of any bit packing. Packing into whole bytes only (8, 16, 32 bits) decodes
about as fast, but needs 1.5 times the space on TPC-H's lineitem
(docs/design/column-files-and-encodings.md, "Frame of reference and bit-planes").

Source: the vertical layout of D. Lemire and L. Boytsov, "Decoding billions of integers per second",
2015. Here a vector is as long as the block.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile.memory import scratch

__all__ = [
    "delta_dtype",
    "gather_bits",
    "gather_one",
    "pack_bits",
    "packed_size",
    "unpack_bits",
]

_PLANES: Final = (64, 32, 16, 8, 4, 2, 1)


def packed_size(bits: int, count: int) -> int:
    """Return the size in bytes of `count` numbers of `bits` bits."""
    size = count * (bits >> 3)
    if bits & 4:
        size += count + 1 >> 1
    if bits & 2:
        size += count + 3 >> 2
    if bits & 1:
        size += count + 7 >> 3
    return size


def delta_dtype(bits: int) -> np.dtype[Any]:
    """Return the narrowest unsigned type that holds `bits` bits."""
    return np.dtype(f"<u{next(width for width in (1, 2, 4, 8) if bits <= 8 * width)}")


def pack_bits(deltas: npt.NDArray[Any], bits: int) -> bytes:
    """Pack unsigned numbers below 2^bits into planes."""
    parts, shift = [], 0
    deltas = deltas.astype(delta_dtype(bits), copy=False)  # every pass below costs less on a narrow type
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
            for slot in range(1, share):
                packed |= low[slot * size : (slot + 1) * size] << np.uint8(slot * plane)
            parts.append(packed.tobytes())
        shift += plane
    return b"".join(parts)


def unpack_bits(
    data: pa.Buffer, start: int, bits: int, count: int, lower: int = 0, upper: int | None = None
) -> npt.NDArray[Any]:
    """Unpack the numbers [lower, upper) of the `count` numbers at `start`, in the narrowest type.

    The caller has checked that `data` is long enough. The result may be a read-only view of `data`.
    """
    upper = count if upper is None else upper
    dtype = delta_dtype(bits)
    deltas: npt.NDArray[Any] | None = None
    shift = 0
    for plane in _PLANES:
        if not bits & plane:
            continue
        size = -(-count * plane // 8)
        # If the result has one byte per number, bits are shifted directly into place. Otherwise a
        # plane is unpacked to one byte per number first and then widened and shifted.
        moved = 0 if plane >= 8 or dtype.itemsize > 1 else shift
        if plane >= 8:
            part = np.frombuffer(data, f"<u{plane // 8}", count, start)[lower:upper]
        else:
            part = _unpacked(np.frombuffer(data, np.uint8, size, start), plane, moved, lower, upper)
        if deltas is None:
            is_last = bits & (plane - 1) == 0
            deltas = part if is_last or (part.dtype == dtype and plane < 8) else _copied(part, dtype)
        elif moved == shift:
            deltas |= part
        else:
            deltas |= _shifted(part, shift, dtype)
        start += size
        shift += plane
    return np.zeros(upper - lower, np.uint8) if deltas is None else deltas


def _unpacked(
    packed: npt.NDArray[np.uint8], plane: int, moved: int, lower: int, upper: int
) -> npt.NDArray[np.uint8]:
    """Unpack rows [lower, upper) of a plane narrower than a byte, to one byte per number.

    The bits are shifted left by `moved`.
    """
    size, out = len(packed), scratch(np.uint8, upper - lower)
    begin = lower
    while begin < upper:
        slot = begin // size
        end = min(upper, (slot + 1) * size)
        of_slot = packed[begin - slot * size : end - slot * size]
        up = moved - slot * plane
        if up > 0:  # NumPy multiplies bytes ten times as fast as it shifts them to the left
            np.multiply(of_slot, np.uint8(1 << up), out=out[begin - lower : end - lower])
        else:
            np.right_shift(of_slot, np.uint8(-up), out=out[begin - lower : end - lower])
        begin = end
    out &= np.uint8(((1 << plane) - 1) << moved)
    return out


def _shifted(part: npt.NDArray[Any], shift: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    out = scratch(dtype, len(part))
    if dtype.itemsize <= 2:
        np.multiply(part, dtype.type(1 << shift), out=out, dtype=dtype)
    else:
        np.left_shift(part, dtype.type(shift), out=out, dtype=dtype)
    return out


def _copied(part: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    out = scratch(dtype, len(part))
    np.copyto(out, part)
    return out


def gather_bits(
    data: pa.Buffer, start: int, bits: int, count: int, rows: npt.NDArray[np.int64]
) -> npt.NDArray[Any]:
    """Return `unpack_bits(…)[rows]`. The cost depends on the number of `rows` only."""
    dtype = delta_dtype(bits)
    deltas = np.zeros(len(rows), dtype)
    shift = 0
    for plane in _PLANES:
        if not bits & plane:
            continue
        size = -(-count * plane // 8)
        if plane >= 8:
            part = np.frombuffer(data, f"<u{plane // 8}", count, start)[rows]
        else:
            slot, inside = np.divmod(rows, size)
            part = np.frombuffer(data, np.uint8, size, start)[inside]
            part >>= (slot * plane).astype(np.uint8)
            part &= np.uint8((1 << plane) - 1)
        deltas |= part.astype(dtype) << dtype.type(shift)
        start += size
        shift += plane
    return deltas


def gather_one(data: pa.Buffer, start: int, bits: int, count: int, row: int) -> int:
    """Return the number at `row`, computed with Python integers."""
    view = memoryview(data)
    delta = shift = 0
    for plane in _PLANES:
        if not bits & plane:
            continue
        if plane >= 8:
            at, width = start + row * (plane // 8), plane // 8
            part = int.from_bytes(view[at : at + width], "little")
        else:
            size = -(-count * plane // 8)
            slot, inside = divmod(row, size)
            part = view[start + inside] >> slot * plane & (1 << plane) - 1
        delta |= part << shift
        start += -(-count * plane // 8)
        shift += plane
    return delta
