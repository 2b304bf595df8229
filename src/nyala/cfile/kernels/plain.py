"""The kernels in NumPy: the twin of `compiled`, and what there is where nothing could be compiled.

Each function is what its namesake in `compiled.pyx` promises; the tests hold both to the same answers. What it costs
is a call of NumPy for each plane and each step, over vectors as long as the block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile.bit_packing import gather_bits, gather_one, unpack_bits
from nyala.cfile.memory import scratch

__all__ = [
    "CHECKED",
    "REVISION",
    "Fill",
    "delta_at",
    "fill",
    "greatest",
    "in_range",
    "in_table",
    "lay_words",
    "places",
    "put_in",
    "repeat",
]
__all__ += ["spread", "spread_ends", "views", "word_ends"]

# Counted up here and in `compiled.pyx` with every change of what a kernel takes or gives: what was compiled from older
# source lies about until somebody compiles anew.
REVISION: Final = 23
CHECKED: Final = False


class Fill(NamedTuple):
    """Numbers of one frame, and where they go: base + step · row + unit · delta, values of the type (FOR-fits)."""

    data: pa.Buffer
    start: int  # of the planes in `data`
    bits: int
    block_rows: int  # of the frame
    base: int
    step: int
    unit: int
    rows: npt.NDArray[np.int64] | None  # which rows, in their order; None: [lower, upper)
    lower: int
    upper: int
    out: pa.Buffer  # Arrow's memory
    at: int  # of the first number, counted in numbers
    width: int  # of a number in `out`, in bytes: 1, 2, 4, 8, or 16 for decimal128
    is_signed: bool  # whether one may be below zero, which numbers of 16 bytes are told
    first: int = 0  # what `rows` says of the frame's first row


def fill(jobs: Sequence[Fill]) -> None:
    """Write the numbers of all jobs. Cost: the interpreter's lock is let go of once for all of them."""
    for job in jobs:
        _fill(job)


def in_range(
    data: pa.Buffer, start: int, bits: int, count: int, lower: int, upper: int, least: int, greatest: int,
    out: npt.NDArray[np.uint8],
) -> None:  # fmt: skip
    """Of the rows [lower, upper), of `count` with deltas of `bits` bits, whether the delta is in [least, greatest]: 1
    or 0 in `out`, which is as long. The bounds are numbers of so many bits, in order."""
    deltas = unpack_bits(data, start, bits, count, lower, upper)
    number, answers = deltas.dtype.type, out.view(np.bool_)
    if least == 0:
        np.less_equal(deltas, number(greatest), out=answers)
    elif greatest == (1 << bits) - 1:
        np.greater_equal(deltas, number(least), out=answers)
    else:  # what is below wraps around to above
        np.less_equal(deltas - number(least), number(greatest - least), out=answers)


def in_table(
    data: pa.Buffer, start: int, bits: int, count: int, lower: int, upper: int,
    table: npt.NDArray[np.uint8], out: npt.NDArray[np.uint8],
) -> None:  # fmt: skip
    """The same of `table[delta]`, 1 or 0. At most 32 bits. Raises: ValueError for a delta that is not in the table."""
    deltas = unpack_bits(data, start, bits, count, lower, upper)
    try:
        out[:] = table[deltas]
    except IndexError as error:
        raise ValueError(f"expected deltas below {len(table)}, found a greater one") from error


def places(mask: npt.NDArray[np.uint8], out: npt.NDArray[np.int64]) -> int:
    """Where a mask of 1 and 0 has a 1: the numbers of these rows, which ascend, into `out`, which has room for one more
    than there are rows. Returns: how many there are."""
    found = np.flatnonzero(mask)
    out[: len(found)] = found
    return len(found)


def greatest(data: pa.Buffer, start: int, bits: int, count: int) -> int:
    """The greatest delta of all rows; 0 of none."""
    return int(unpack_bits(data, start, bits, count).max(initial=0))


def delta_at(data: pa.Buffer, start: int, bits: int, count: int, row: int) -> int:
    """The delta of one row. Cost: the compiled one does not let go of the interpreter's lock."""
    if not 0 <= row < count:
        raise ValueError(f"expected a row of {count}, found {row}")
    return gather_one(data, start, bits, count, row)


def spread(bitmap: pa.Buffer, rows: int, values: pa.Buffer, width: int, out: pa.Buffer) -> None:
    """Values of 1, 2, 4, 8 or 16 bytes, in their order, to those of the rows, at least one, whose bit is 1; zeros to
    the others. Raises: ValueError unless there are as many values as ones."""
    dtype = np.dtype(f"<u{width}" if width <= 8 else f"V{width}")
    places, dense = np.flatnonzero(_bits(bitmap, rows)), np.frombuffer(values, dtype)
    _expect_ones(len(places), len(dense))
    cells = np.frombuffer(out, dtype, rows)
    cells.view(np.uint8).fill(0)
    cells[places] = dense


def spread_ends(
    bitmap: pa.Buffer, rows: int, offsets: npt.NDArray[np.int32], out: npt.NDArray[np.int32]
) -> None:
    """The same of Arrow's offsets, of which there is one more: a row whose bit is 0 gets a value of no bytes."""
    bits = _bits(bitmap, rows)
    _expect_ones(int(np.count_nonzero(bits)), len(offsets) - 1)
    out[0] = offsets[0]
    np.take(offsets, np.cumsum(bits, dtype=np.int32), out=out[1 : rows + 1], mode="clip")


def put_in(
    hashes: npt.NDArray[np.uint64], salts: npt.NDArray[np.uint32], words: npt.NDArray[np.uint32]
) -> None:
    """Set the bits of these hashes in the words of a bloom filter, a row for each block, which are all 0."""
    count, width = words.shape
    starts = (((hashes >> np.uint64(32)) * np.uint64(count)) >> np.uint64(32)).astype(np.int64) * (32 * width)
    keys = hashes.astype(np.uint32)
    # One byte for each bit and packing at the end: setting bits of words in place would have to be
    # done one after the other where two keys share a word.
    bits = np.zeros(32 * words.size, np.uint8)
    for word, salt in enumerate(salts):
        bits[starts + (32 * word) + ((keys * salt) >> np.uint32(27))] = 1
    words[:] = np.packbits(bits, bitorder="little").view("<u4").reshape(words.shape)


def repeat(values: pa.Buffer, width: int, ends: npt.NDArray[np.int64], out: pa.Buffer) -> None:
    """The value, of 1, 2, 4 or 8 bytes, of each run to all of its rows. ends: of the runs.

    Raises: ValueError unless these ascend to the rows for which there is room.
    """
    dtype = np.dtype(f"<u{width}")
    cells = np.frombuffer(out, dtype)
    lengths = np.diff(ends, prepend=0)
    if int(lengths.min()) <= 0 or int(ends[-1]) != len(cells):
        raise ValueError(f"expected ends of runs that ascend to {len(cells)}, found others")
    cells[:] = np.repeat(np.frombuffer(values, dtype), lengths)


# -- inside ------------------------------------------------------------------------------------------------


def _bits(bitmap: pa.Buffer, rows: int) -> npt.NDArray[np.bool_]:
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), count=rows, bitorder="little")
    return bits.view(np.bool_)


def _expect_ones(found: int, count: int) -> None:
    if found != count:
        raise ValueError(f"expected a value for each row that has one, found {count}")


def _fill(job: Fill) -> None:
    if job.rows is not None and job.first:
        job = job._replace(rows=job.rows - job.first, first=0)
    count = job.upper - job.lower if job.rows is None else len(job.rows)
    if job.width == 16:
        words = np.frombuffer(job.out, "<i8").reshape(-1, 2)[job.at : job.at + count]
        numbers = words[:, 0]
    else:
        numbers = np.frombuffer(job.out, f"<i{job.width}")[job.at : job.at + count]
    if job.rows is None:
        deltas = unpack_bits(job.data, job.start, job.bits, job.block_rows, job.lower, job.upper)
    else:
        deltas = gather_bits(job.data, job.start, job.bits, job.block_rows, job.rows)
    if job.step:
        line = np.arange(job.lower, job.upper) if job.rows is None else job.rows
        line = line * np.int64(job.step)
        line += np.int64(job.base)
        if job.bits:
            line += np.multiply(deltas, np.uint64(job.unit), dtype=np.uint64).view(np.int64)
        numbers[:] = line
    else:
        _add_base(job, deltas, numbers)
    if job.width == 16:
        if job.is_signed:
            np.right_shift(words[:, 0], 63, out=words[:, 1])
        else:
            words[:, 1] = 0


def _add_base(job: Fill, deltas: npt.NDArray[Any], numbers: npt.NDArray[Any]) -> None:
    """base + unit · deltas into `numbers`: in as few bytes as the sums fit, and then copied, which is one pass over the
    wide numbers and not two."""
    unsigned = numbers.view(f"<u{numbers.itemsize}")
    base, unit = job.base, job.unit
    if job.bits == 0:
        numbers[:] = base
        return
    most = base + unit * ((1 << job.bits) - 1)
    width = next((w for w in (1, 2, 4) if deltas.itemsize <= w and most < 1 << 8 * w), 8)
    if base < 0 or width >= numbers.itemsize:
        modulus = 1 << 8 * numbers.itemsize  # sums that fit the type may be made of parts that wrap
        dtype = unsigned.dtype
        first = dtype.type(base % modulus)
        if unit == 1:
            np.add(deltas, first, out=unsigned, casting="unsafe", dtype=dtype)
        else:
            np.multiply(deltas, dtype.type(unit % modulus), out=unsigned, casting="unsafe", dtype=dtype)
            unsigned += first
        return
    dtype = np.dtype(f"<u{width}")
    if unit != 1:
        product = scratch(dtype, len(deltas))
        deltas = np.multiply(deltas, dtype.type(unit), out=product, dtype=dtype)
    if base:
        total = scratch(dtype, len(deltas))
        deltas = np.add(deltas, dtype.type(base), out=total, dtype=dtype)
    np.copyto(unsigned, deltas)


def views(codes: npt.NDArray[np.int32], words: npt.NDArray[Any], out: pa.Buffer) -> None:
    """Of each code the word that it names, or any word if there is none, into `out`. words: of 16 bytes each, at least
    one, as Arrow's views of text."""
    words.view("V16").take(codes.view(np.uint32), out=np.frombuffer(out, "V16")[: len(codes)], mode="clip")


def word_ends(
    codes: npt.NDArray[np.int32], starts: npt.NDArray[np.int32], ends: npt.NDArray[np.int32]
) -> int:
    """Where each of the words that the codes name ends if they lie one behind the other, and the first begins, into
    `ends`, one more than codes. starts: of all words, one more than there are; they ascend.

    Returns: how long they are together; if that is more than 31 bits have, `ends` holds anything. Raises: ValueError
    for a code that names no word.
    """
    if len(codes) and codes.view(np.uint32).max() >= len(starts) - 1:
        raise ValueError(f"expected codewords below {len(starts) - 1}, found others")
    lengths = np.diff(starts)[codes]
    ends[0] = 0
    np.cumsum(lengths, out=ends[1:])
    return int(lengths.sum(dtype=np.int64))


def lay_words(
    codes: npt.NDArray[np.int32],
    starts: npt.NDArray[np.int32],
    words: pa.Buffer,
    ends: npt.NDArray[np.int32],
    out: pa.Buffer,
) -> None:
    """The words that the codes name, one behind the other, into `out`, where they end at `ends`, as `word_ends` said.
    Bytes of `out` behind the last are anything."""
    of_words = pa.Array.from_buffers(pa.binary(), len(starts) - 1, [None, pa.py_buffer(starts), words])
    size = int(ends[-1])
    if size:
        laid = of_words.take(pa.array(codes)).buffers()[2]
        np.frombuffer(out, np.uint8)[:size] = np.frombuffer(laid, np.uint8)[:size]
