"""Whole numbers that are always read as a whole, in few bits: the values and ends of runs, the tables of columns.

    number      base + (upper << bits | lower)
    lower       its last bits, in planes (`planes`)
    upper       of numbers that ascend: how often the ones before it were counted up, a 0 each time, and a 1 for itself

        numbers      3     4     9    14         base 3, bits 2
        lower        0     1     2     3         two bits each
        upper        0     0     1     2         1 1 0 1 0 1

Numbers that ascend take two to three bits more than their mean distance has, wherever the widest gap is: ten thousand
ids of 62 bits, sorted, 51 instead of 62, and the ends of runs five where the longest run would need eleven. Others lie
in planes alone, as far from the least as the greatest needs.

A number is not found without those before it, so rows of a column have frames (`frame_of_reference`) instead.
Source: P. Elias, "Efficient storage and retrieval by content and address of static files", 1974; R. Fano, "On the
number of bits required to implement an associative memory", 1971; S. Vigna, "Quasi-succinct indices", 2013. Departure:
no pointers into the upper bits, as nobody looks for one number.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile import format, kernels
from nyala.cfile.planes import pack_planes, planes_size

__all__ = ["pack_numbers", "unpack_numbers"]

_HEADER_SIZE: Final = format.PACKED_HEADER.size
_BITS_MAX: Final = 64
# The lower bits are as many as leave less than two zeros a number, beside the one of itself.
_UPPER_BITS_A_NUMBER_MAX: Final = 3


def pack_numbers(numbers: npt.NDArray[np.int64]) -> bytes:
    """At least one number. Cost: about 10 ns a number."""
    count = len(numbers)
    assert count
    base = int(numbers.min())
    offsets = numbers.view("<u8") - np.uint64(base % (1 << 64))
    spread = int(offsets.max())
    bits, upper = spread.bit_length(), b""
    if bool((numbers[1:] >= numbers[:-1]).all()):
        lower_bits = max(0, (spread // count).bit_length() - 1)
        size = count + (spread >> lower_bits)
        if planes_size(lower_bits, count) + -(-size // 8) < planes_size(bits, count):
            row = np.zeros(size, np.uint8)
            row[(offsets >> np.uint64(lower_bits)).astype(np.int64) + np.arange(count)] = 1
            upper = np.packbits(row, bitorder="little").tobytes()
            bits = lower_bits
            offsets &= np.uint64((1 << bits) - 1)
    header = format.PACKED_HEADER.pack(base, len(upper), bits, bytes(3))
    return b"".join((header, pack_planes(offsets, bits), upper))


def unpack_numbers(
    data: pa.Buffer, start: int, count: int, least: int, greatest: int
) -> tuple[npt.NDArray[np.int64], int]:
    """The `count` numbers that begin at `start`, and where they end.

    least, greatest: what they may be, both within 64 bits.
    Raises: ValueError for bytes that are no such numbers. Takes some 50 bytes of memory a number at the most.
    """
    if data.size - start < _HEADER_SIZE:
        raise ValueError(f"expected a header of {_HEADER_SIZE} bytes, found {data.size - start}")
    base, upper_length, bits, _ = format.PACKED_HEADER.unpack_from(data, start)
    start += _HEADER_SIZE
    upper_max = -(-_UPPER_BITS_A_NUMBER_MAX * count // 8)
    if bits > _BITS_MAX - bool(upper_length) or upper_length > upper_max:
        raise ValueError(
            f"expected numbers of at most {_BITS_MAX} bits with {upper_max} bytes of upper ones, found {bits} bits "
            f"with {upper_length} bytes"
        )
    end = start + planes_size(bits, count) + upper_length
    if end > data.size:
        raise ValueError(f"expected {end - start} bytes for {count} numbers, found {data.size - start}")
    offsets = np.empty(count, np.uint64)
    kernels.unpack(data, start, bits, count, data.slice(end - upper_length, upper_length), offsets)
    most = int(offsets.max())
    if base < least or base + most > greatest:
        raise ValueError(
            f"expected numbers from {least} to {greatest}, found some from {base} to {base + most}"
        )
    offsets += np.uint64(base % (1 << 64))
    return offsets.view("<i8"), end
