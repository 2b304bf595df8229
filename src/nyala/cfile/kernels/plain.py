"""The kernels in NumPy, used if the compiled ones do not exist.

Each function has the contract of its namesake in `compiled.pyx`, and the tests compare the results
of both. The code is written to be simple: it is some times slower than the compiled kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile.bit_packing import gather_bits, unpack_bits

# Increased here and in `compiled.pyx` with every change of a kernel's arguments or results, because
# old compiled modules stay on disk until the next build.
REVISION: Final = 24
CHECKED: Final = False


class Fill(NamedTuple):
    """A job: write the numbers base + step · row + unit · delta of some rows of a frame.

    The results fit their width (FOR-fits of `forms.frame`).
    """

    data: pa.Buffer
    start: int  # offset of the planes in `data`
    bits: int
    block_rows: int  # rows of the frame
    base: int
    step: int
    unit: int
    rows: npt.NDArray[np.int64] | None  # the rows to gather, in this order; None: decode [lower, upper)
    lower: int
    upper: int
    out: pa.Buffer  # the memory of an Arrow array
    at: int  # position of the first result in `out`, counted in numbers
    width: int  # bytes of a number in `out`: 1, 2, 4, 8, or 16 for decimal128
    is_signed: bool  # whether numbers of 16 bytes are sign-extended
    first: int = 0  # the number that the frame's first row has in `rows`


def fill(jobs: Sequence[Fill]) -> None:
    """Write the numbers of all jobs. The compiled kernel releases the interpreter lock once for all
    of them.
    """
    for job in jobs:
        _fill(job)


def in_range(
    data: pa.Buffer, start: int, bits: int, count: int, lower: int, upper: int, least: int, greatest: int,
    out: npt.NDArray[np.uint8],
) -> None:  # fmt: skip
    """Write 1 to `out` for each of the rows [lower, upper) with a delta in [least, greatest], else
    0.

    The frame has `count` rows with deltas of `bits` bits, from the byte `start` of `data` on. Both
    bounds have at most `bits` bits, and least <= greatest.
    """
    deltas = unpack_bits(data, start, bits, count, lower, upper)
    number = deltas.dtype.type
    np.logical_and(number(least) <= deltas, deltas <= number(greatest), out=out.view(np.bool_))


def in_table(
    data: pa.Buffer, start: int, bits: int, count: int, lower: int, upper: int,
    table: npt.NDArray[np.uint8], out: npt.NDArray[np.uint8],
) -> None:  # fmt: skip
    """Write `table[delta]` to `out` for each of the rows [lower, upper). Deltas have at most 32
    bits.

    Raises: ValueError for a delta beyond the table.
    """
    deltas = unpack_bits(data, start, bits, count, lower, upper)
    try:
        out[:] = table[deltas]
    except IndexError as error:
        raise ValueError(f"expected deltas below {len(table)}, found a larger one") from error


def mask_positions(mask: npt.NDArray[np.uint8], out: npt.NDArray[np.int64]) -> int:
    """Write the numbers of the rows with a 1, in a mask of 0 and 1, to `out` in ascending order.

    out: must have room for one number more than the mask has rows.
    Returns: how many rows have a 1.
    """
    positions = np.flatnonzero(mask)
    out[: len(positions)] = positions
    return len(positions)


def max_delta(data: pa.Buffer, start: int, bits: int, count: int) -> int:
    """Return the greatest delta of all rows; 0 without rows."""
    return int(unpack_bits(data, start, bits, count).max(initial=0))


def delta_at(data: pa.Buffer, start: int, bits: int, count: int, row: int) -> int:
    """Return the delta of one row. The compiled kernel does not release the interpreter lock for it."""
    if not 0 <= row < count:
        raise ValueError(f"expected a row below {count}, found {row}")
    return int(gather_bits(data, start, bits, count, np.array([row]))[0])


def scatter(bitmap: pa.Buffer, rows: int, values: pa.Buffer, width: int, out: pa.Buffer) -> None:
    """Write values of 1, 2, 4, 8 or 16 bytes, in order, to the rows with a 1-bit, and zeros to
    other rows.

    Raises: ValueError if the number of values is not the number of ones.
    """
    dtype = np.dtype(f"<u{width}" if width <= 8 else f"V{width}")
    positions, dense = np.flatnonzero(_bits(bitmap, rows)), np.frombuffer(values, dtype)
    _expect_ones(len(positions), len(dense))
    cells = np.frombuffer(out, dtype, rows)
    cells.view(np.uint8).fill(0)
    cells[positions] = dense


def scatter_offsets(
    bitmap: pa.Buffer, rows: int, offsets: npt.NDArray[np.int32], out: npt.NDArray[np.int32]
) -> None:
    """Write the text offsets of all rows from the n + 1 offsets of n values. A row with a 0-bit
    gets empty text.
    """
    bits = _bits(bitmap, rows)
    _expect_ones(int(np.count_nonzero(bits)), len(offsets) - 1)
    out[0] = offsets[0]
    np.take(offsets, np.cumsum(bits, dtype=np.int32), out=out[1 : rows + 1], mode="clip")


def bloom_insert(
    hashes: npt.NDArray[np.uint64], salts: npt.NDArray[np.uint32], words: npt.NDArray[np.uint32]
) -> None:
    """Set the bits of these hashes in a bloom filter. Its words, one row per block, are all 0 before."""
    count, width = words.shape
    starts = (((hashes >> np.uint64(32)) * np.uint64(count)) >> np.uint64(32)).astype(np.int64) * (32 * width)
    keys = hashes.astype(np.uint32)
    # Use one byte per bit, and pack the bits at the end. In place, NumPy would lose bits if two
    # keys share a word.
    bits = np.zeros(32 * words.size, np.uint8)
    for word, salt in enumerate(salts):
        bits[starts + (32 * word) + ((keys * salt) >> np.uint32(27))] = 1
    words[:] = np.packbits(bits, bitorder="little").view("<u4").reshape(words.shape)


def repeat_runs(values: pa.Buffer, width: int, ends: npt.NDArray[np.int64], out: pa.Buffer) -> None:
    """Write the value (1, 2, 4 or 8 bytes) of each run to all rows of the run.

    ends: the row after each run. Raises ValueError if they do not ascend to the number of rows in
    `out`.
    """
    dtype = np.dtype(f"<u{width}")
    cells = np.frombuffer(out, dtype)
    lengths = np.diff(ends, prepend=0)
    if int(lengths.min()) <= 0 or int(ends[-1]) != len(cells):
        raise ValueError(f"expected ends of runs that ascend to {len(cells)}, found others")
    cells[:] = np.repeat(np.frombuffer(values, dtype), lengths)


def _bits(bitmap: pa.Buffer, rows: int) -> npt.NDArray[np.bool_]:
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), count=rows, bitorder="little")
    return bits.view(np.bool_)


def _expect_ones(ones: int, count: int) -> None:
    if ones != count:
        raise ValueError(f"expected one value per 1-bit of the bitmap, found {count} values")


def _fill(job: Fill) -> None:
    """Write the numbers of one job, computed modulo 2^64: numbers that fit their width are right."""
    if job.rows is None:
        rows = np.arange(job.lower, job.upper)
        deltas = unpack_bits(job.data, job.start, job.bits, job.block_rows, job.lower, job.upper)
    else:
        rows = job.rows - job.first
        deltas = gather_bits(job.data, job.start, job.bits, job.block_rows, rows)
    results = deltas * np.uint64(job.unit)
    if job.step:
        results += (rows * np.int64(job.step)).view(np.uint64)
    results += np.uint64(job.base % (1 << 64))
    out = slice(job.at, job.at + len(rows))
    if job.width < 16:
        np.frombuffer(job.out, f"<u{job.width}")[out] = results.astype(f"<u{job.width}")
        return
    halves = np.frombuffer(job.out, "<i8").reshape(-1, 2)[out]
    halves[:, 0] = results.view(np.int64)
    halves[:, 1] = halves[:, 0] >> 63 if job.is_signed else 0


def gather_views(codes: npt.NDArray[np.int32], entries: npt.NDArray[Any], out: pa.Buffer) -> None:
    """Write the entry of each code to `out`. For a code without an entry, write any entry.

    entries: Arrow string views of 16 bytes each, at least one.
    """
    entries.view("V16").take(codes.view(np.uint32), out=np.frombuffer(out, "V16")[: len(codes)], mode="clip")


def entry_ends(
    codes: npt.NDArray[np.int32], starts: npt.NDArray[np.int32], ends: npt.NDArray[np.int32]
) -> int:
    """Write 0 and then the end of each code's entry to `ends`, as if the entries were copied one
    after another.

    starts: the ascending starts of all entries, and the end of the last one.
    ends: must have one number more than `codes`.
    Returns: the total bytes. If they exceed 31 bits, the content of `ends` is undefined.
    Raises: ValueError for a code without an entry.
    """
    if len(codes) and codes.view(np.uint32).max() >= len(starts) - 1:
        raise ValueError(f"expected codes below {len(starts) - 1}, found others")
    lengths = np.diff(starts)[codes]
    ends[0] = 0
    np.cumsum(lengths, out=ends[1:])
    return int(lengths.sum(dtype=np.int64))


def copy_entries(
    codes: npt.NDArray[np.int32],
    starts: npt.NDArray[np.int32],
    entries: pa.Buffer,
    ends: npt.NDArray[np.int32],
    out: pa.Buffer,
) -> None:
    """Copy the entries of the codes one after another into `out`, up to the `ends` from
    `entry_ends`.

    The bytes of `out` after the last entry are undefined.
    """
    array = pa.Array.from_buffers(pa.binary(), len(starts) - 1, [None, pa.py_buffer(starts), entries])
    size = int(ends[-1])
    if size:
        copied = array.take(pa.array(codes)).buffers()[2]
        np.frombuffer(out, np.uint8)[:size] = np.frombuffer(copied, np.uint8)[:size]
