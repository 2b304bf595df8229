"""Packs unsigned integers that have `bits` bits each into bit-planes.

A bit-plane holds some adjacent bits of every number: 64, 32, 16, 8, 4, 2 or 1 of them. The widths
of the planes add up to `bits`. The widest plane comes first and holds the lowest bits. For example,
12 bits are an 8-bit plane and a 4-bit plane. In the 4-bit plane, each byte holds the bits of two
numbers: one from the first half of the numbers, and one from the second half.

         8-bit plane                    4-bit plane, here of four numbers v0 to v3
    ┌────┬────┬────┬────┐            ┌───────┬───────┐
    │ v0 │ v1 │ v2 │ v3 │ bits 0…7   │ v2 v0 │ v3 v1 │ bits 8…11
    └────┴────┴────┴────┘            └───────┴───────┘

To unpack a plane, whole vectors are shifted, without a loop over the numbers. If numbers were
packed only into whole bytes (8, 16 or 32 bits), they would decode about as fast. But TPC-H's
lineitem would need 1.5 times the space (docs/design/column-files-and-encodings.md, "Frame of
reference and bit-planes").

Source: the vertical layout of D. Lemire and L. Boytsov, "Decoding billions of integers per second",
2015. There a vector has a fixed length, here it is as long as the block.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_WIDTHS: Final = (64, 32, 16, 8, 4, 2, 1)


def _planes(bits: int) -> list[int]:
    """Return the widths of the bit-planes for numbers of `bits` bits, the widest plane first.

    A plane of width w holds w bits of each number.
    """
    return [width for width in _WIDTHS if bits & width]


def _plane_size(plane: int, count: int) -> int:
    """Return the number of bytes that `plane` bits of each of `count` numbers take."""
    return -(-count * plane // 8)


def packed_size(bits: int, count: int) -> int:
    """Return the size in bytes of `count` packed numbers of `bits` bits."""
    return sum(_plane_size(plane, count) for plane in _planes(bits))


def delta_dtype(bits: int) -> np.dtype[Any]:
    """Return the narrowest unsigned NumPy type that has at least `bits` bits."""
    return np.dtype(f"<u{next(width for width in (1, 2, 4, 8) if bits <= 8 * width)}")


def pack_bits(deltas: npt.NDArray[Any], bits: int) -> bytes:
    """Pack unsigned numbers, all below 2^bits, into bit-planes. Return the bytes of all planes.

    A bit-plane stores some adjacent bits of every number, such as the lowest 8 bits.
    """
    parts, shift = [], 0
    deltas = deltas.astype(delta_dtype(bits), copy=False)  # the passes below cost less on a narrow type
    for plane in _planes(bits):
        part = deltas >> deltas.dtype.type(shift) if shift else deltas
        if plane >= 8:
            parts.append(part.astype(f"<u{plane // 8}").tobytes())  # the cast drops the bits above
        else:
            size = _plane_size(plane, len(deltas))
            low = np.zeros((8 // plane, size), np.uint8)  # one row of bytes per number in a packed byte
            low.ravel()[: len(deltas)] = part.astype(np.uint8) & np.uint8((1 << plane) - 1)
            packed = low[0]
            for slot in range(1, 8 // plane):
                packed |= low[slot] << np.uint8(slot * plane)
            parts.append(packed.tobytes())
        shift += plane
    return b"".join(parts)


def unpack_bits(
    data: pa.Buffer, start: int, bits: int, count: int, lower: int = 0, upper: int | None = None
) -> npt.NDArray[Any]:
    """Unpack a block of `count` numbers. Return the numbers at the positions [lower, upper).

    data, start: the packed numbers begin at byte `start` of `data`. The caller must check that
    `data` is long enough.
    Returns: an array of type `delta_dtype(bits)`.
    """
    dtype, rows = delta_dtype(bits), slice(lower, upper)
    deltas = np.zeros(count, dtype)[rows]
    shift = 0
    for plane in _planes(bits):
        size = _plane_size(plane, count)
        if plane >= 8:
            part = np.frombuffer(data, f"<u{plane // 8}", count, start)[rows]
        else:
            slots = np.arange(0, 8, plane, dtype=np.uint8)[:, None]
            part = (np.frombuffer(data, np.uint8, size, start) >> slots).ravel()[:count][rows]
            part = part & np.uint8((1 << plane) - 1)
        deltas |= part.astype(dtype) << dtype.type(shift)
        start += size
        shift += plane
    return deltas


def gather_bits(
    data: pa.Buffer, start: int, bits: int, count: int, rows: npt.NDArray[np.int64]
) -> npt.NDArray[Any]:
    """Return the packed numbers at the positions `rows`. Unpacks only these numbers."""
    dtype = delta_dtype(bits)
    deltas = np.zeros(len(rows), dtype)
    shift = 0
    for plane in _planes(bits):
        size = _plane_size(plane, count)
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
