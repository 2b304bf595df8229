"""The kernels in NumPy, used if the compiled ones do not exist.

Each function does the same as the function of this name in `compiled.pyx`, and tests compare the
results. The code is simple, and several times slower than the compiled kernels.
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
    """A task for `fill`: decode some rows of a frame of reference into the memory of an Arrow array.

    A row's number is base + step · row + unit · delta. Base, step and unit are the same for all
    rows of the frame (an encoded block), and delta is the row's packed integer. The numbers must
    fit `width` bytes.
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
    """Run all tasks in `jobs`: decode the packed integers, and write the numbers to Arrow memory.

    The compiled kernel releases the interpreter lock once for all tasks.
    """
    for job in jobs:
        _fill(job)


def in_range(
    data: pa.Buffer, start: int, bits: int, count: int, lower: int, upper: int, least: int, greatest: int,
    out: npt.NDArray[np.uint8],
) -> None:  # fmt: skip
    """Say for each row of [lower, upper) whether its packed integer is in [least, greatest].

    Writes one byte per row to `out`: 1 for yes, 0 for no.

    data, start, bits, count: a block of `count` packed unsigned integers of `bits` bits each, which
    begin at byte `start` of `data`.
    least, greatest: bounds of the packed integers, not of the column's values. They have at most
    `bits` bits each, and least <= greatest.
    """
    deltas = unpack_bits(data, start, bits, count, lower, upper)
    number = deltas.dtype.type
    np.logical_and(number(least) <= deltas, deltas <= number(greatest), out=out.view(np.bool_))


def in_table(
    data: pa.Buffer, start: int, bits: int, count: int, lower: int, upper: int,
    table: npt.NDArray[np.uint8], out: npt.NDArray[np.uint8],
) -> None:  # fmt: skip
    """Look up the packed integer (delta) of each row of [lower, upper) in `table`.

    Writes one byte per row to `out`: the item of `table` at the position delta.

    data, start, bits, count: a block of `count` packed integers of `bits` bits each (at most 32),
    which begin at byte `start` of `data`.
    Raises: ValueError for a delta outside of the table.
    """
    deltas = unpack_bits(data, start, bits, count, lower, upper)
    try:
        out[:] = table[deltas]
    except IndexError as error:
        raise ValueError(f"expected deltas below {len(table)}, found a larger one") from error


def mask_positions(mask: npt.NDArray[np.uint8], out: npt.NDArray[np.int64]) -> int:
    """Write the positions of the selected rows in `mask` to `out`, ascending.

    mask: one byte per row; 1 selects the row, 0 does not.
    out: must be at least one item longer than the mask.
    Returns: the number of selected rows.
    """
    positions = np.flatnonzero(mask)
    out[: len(positions)] = positions
    return len(positions)


def max_delta(data: pa.Buffer, start: int, bits: int, count: int) -> int:
    """Return the greatest packed integer (delta) of a block; 0 if `count` is 0.

    data, start, bits, count: a block of `count` packed integers of `bits` bits each, which begin at
    byte `start` of `data`.
    """
    return int(unpack_bits(data, start, bits, count).max(initial=0))


def delta_at(data: pa.Buffer, start: int, bits: int, count: int, row: int) -> int:
    """Return the packed integer (delta) of one row.

    data, start, bits, count: a block of `count` packed integers of `bits` bits each, which begin at
    byte `start` of `data`.
    The compiled kernel does not release the interpreter lock.
    """
    if not 0 <= row < count:
        raise ValueError(f"expected a row below {count}, found {row}")
    return int(gather_bits(data, start, bits, count, np.array([row]))[0])


def scatter(bitmap: pa.Buffer, rows: int, values: pa.Buffer, width: int, out: pa.Buffer) -> None:
    """Write `values`, in order, to the rows whose bit in `bitmap` is 1. Other rows get zeros.

    values: one for each of these rows, of `width` bytes (1, 2, 4, 8 or 16).
    Raises: ValueError if there are more or fewer values than rows whose bit is 1.
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
    """Write the Arrow offsets of all rows to `out`. A row whose bit in `bitmap` is 0 gets empty text.

    offsets: n + 1 offsets of the n values, one value for each row whose bit is 1.
    """
    bits = _bits(bitmap, rows)
    _expect_ones(int(np.count_nonzero(bits)), len(offsets) - 1)
    out[0] = offsets[0]
    np.take(offsets, np.cumsum(bits, dtype=np.int32), out=out[1 : rows + 1], mode="clip")


def bloom_insert(
    hashes: npt.NDArray[np.uint64], salts: npt.NDArray[np.uint32], words: npt.NDArray[np.uint32]
) -> None:
    """Set the bits of these hashes in a bloom filter (see `index.bloom_filter`).

    words: the filter, one row of words per block; all must be 0.
    salts: for each word of a block, the odd number by which hashes are multiplied.
    """
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
    """Write the value of each run to `out`, once for each row of the run.

    values: one per run, of `width` bytes (1, 2, 4 or 8).
    ends: the row after each run.
    Raises: ValueError if the ends do not ascend, or the last is not the number of rows in `out`.
    """
    dtype = np.dtype(f"<u{width}")
    cells = np.frombuffer(out, dtype)
    lengths = np.diff(ends, prepend=0)
    if int(lengths.min()) <= 0 or int(ends[-1]) != len(cells):
        raise ValueError(
            f"expected the ends of runs in ascending order, and {len(cells)} as the last end; found another order, "
            f"or the last end {int(ends[-1])}"
        )
    cells[:] = np.repeat(np.frombuffer(values, dtype), lengths)


def _bits(bitmap: pa.Buffer, rows: int) -> npt.NDArray[np.bool_]:
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), count=rows, bitorder="little")
    return bits.view(np.bool_)


def _expect_ones(ones: int, count: int) -> None:
    if ones != count:
        raise ValueError(
            f"expected {ones} values, one for each bit of the bitmap that is 1, found {count} values"
        )


def _fill(job: Fill) -> None:
    # Computes modulo 2^64, which is right if the results fit.
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
    """Write the string view of each code's dictionary entry to `out`.

    An invalid code raises no error: its view is that of an arbitrary entry.

    entries: Arrow string views of 16 bytes each, at least one.
    """
    entries.view("V16").take(codes.view(np.uint32), out=np.frombuffer(out, "V16")[: len(codes)], mode="clip")


def entry_ends(
    codes: npt.NDArray[np.int32], starts: npt.NDArray[np.int32], ends: npt.NDArray[np.int32]
) -> int:
    """Write to `ends` the Arrow offsets of the text array that the codes decode to.

    Item 0 is 0, and item i + 1 is the end of value i.

    starts: the ascending starts of all dictionary entries, and the end of the last entry.
    ends: must be one item longer than `codes`.
    Returns: the total number of bytes. If it exceeds 31 bits, the content of `ends` is undefined.
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
    """Copy the text of each code's dictionary entry into `out`, one after another.

    starts, entries: where each dictionary entry begins, and the bytes of all entries.
    ends: the Arrow offsets of the texts in `out` (from `entry_ends`): 0, then the end of each text.
    out: the bytes after the last text are undefined.
    """
    array = pa.Array.from_buffers(pa.binary(), len(starts) - 1, [None, pa.py_buffer(starts), entries])
    size = int(ends[-1])
    if size:
        copied = array.take(pa.array(codes)).buffers()[2]
        np.frombuffer(out, np.uint8)[:size] = np.frombuffer(copied, np.uint8)[:size]
