"""The choice of `auto`: the encoding and compression of a column, from its statistics and one short sample.

`sizes` says how many bytes a row takes in each choice that the type and the values allow; `fastest` picks one. The
choices, the fastest to decode first, and by how much each must be smaller than a faster one to be taken:

    choice               for                              smaller by   size from
    plain                numbers                                       the type's width
    for                  integers, dates, decimals        1.25         least, greatest and common divisor of four blocks
    rle                  bool, integers, dates            1.25         the sample, if its runs have 2 rows or more
    alp                  floats                           1.25         the sample
    bitshuffle           numbers                          1.25         the sample
    plain, compressed    everything                       1.25         the sample, by LZ4 or what the schema asks for
    plain, Zstandard     everything                       1.55         the sample; only with compression "default"
    prefix               text, binary                     4            the sample

Frame of reference may also be one bit a value larger than bitshuffle, which takes eight times as long to decode.
Zstandard must be much smaller than LZ4, since it takes three times as long to decompress: it halves hexadecimal text,
in which LZ4 finds nothing. Prefix decodes at a tenth of plain's speed.

Columns of less than 32 KB have no sample: numbers are plain or for, by statistics alone. Below 4 KB they are plain.

The sample is four stretches of neighbours from the middles of the column's quarters; of a column with NULLs, of its
values. So a column whose beginning is unlike the rest is still seen from four places, and a flush encodes 8,192 values
of a column to decide, however long the column is. Text has its dictionary first (`dictionary`).

Source: measured decode speeds (docs/decisions/0013-encodings.md).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from nyala.cfile import format
from nyala.cfile.compression import compress
from nyala.cfile.encoding.base import Encoding
from nyala.cfile.physical import BYTES, FIXED, Physical, binary_offsets

__all__ = ["Choice", "fastest", "is_small", "sizes"]

_PLAIN, _FOR, _RLE = format.ENCODING_PLAIN, format.ENCODING_FOR, format.ENCODING_RLE
_ALP, _BITSHUFFLE, _PREFIX = format.ENCODING_ALP, format.ENCODING_BITSHUFFLE, format.ENCODING_PREFIX
_NONE, _ZSTD = format.COMPRESSION_NONE, format.COMPRESSION_ZSTD

# A quarter of a column costs less to read (12 GB/s from the page cache, 2 from a good disk) than bitshuffle to decode.
_SIZE_FACTOR: Final = 1.25
_ZSTD_SIZE_FACTOR: Final = 1.55
_PREFIX_SIZE_FACTOR: Final = 4.0
_SLACK_BYTES: Final = 1 / 8  # of a value, by which frame of reference may be larger than bitshuffle
_PLAIN_BYTES_MAX: Final = 4 << 10  # columns that are plain without a look
_UNSAMPLED_BYTES_MAX: Final = 32 << 10
_STRETCHES: Final = 4
_STRETCH_ROWS: Final = 2048
_STRETCH_ROWS_OF_TEXT: Final = 1024
_PROBE_ROWS: Final = 512  # of a block, for the common divisor and the line of its values
_LINE_BITS_MAX: Final = 61  # as of the encoder


class Choice(NamedTuple):
    """An encoding (format.ENCODING_*) and the compression of its blocks (format.COMPRESSION_*)."""

    encoding: int
    compression: int


def fastest(row_bytes: Mapping[Choice, float]) -> Choice:
    """The first choice that no slower one beats. Takes bytes a row of each choice, the fastest to decode first."""
    order = list(row_bytes)

    def beats(slow: Choice, fast: Choice) -> bool:
        limit = row_bytes[slow] * _factor(slow)
        if (fast.encoding, slow.encoding) == (_FOR, _BITSHUFFLE):
            limit = max(limit, row_bytes[slow] + _SLACK_BYTES)
        return row_bytes[fast] > limit

    return next(
        fast for place, fast in enumerate(order) if not any(beats(slow, fast) for slow in order[place + 1 :])
    )


def _factor(choice: Choice) -> float:
    if choice.encoding == _PREFIX:
        return _PREFIX_SIZE_FACTOR
    return _ZSTD_SIZE_FACTOR if choice.compression == _ZSTD else _SIZE_FACTOR


def is_small(form: Physical, values: pa.Array) -> bool:
    """Whether a column is plain without a look at it."""
    return _plain_bytes(form, values) < _PLAIN_BYTES_MAX


def sizes(
    form: Physical,
    values: pa.Array,
    asked: int,
    block_rows: int,
    allowed: Collection[int],
    by_code: Callable[[int], Encoding | None],
    *,
    is_sample: bool = False,
) -> dict[Choice, float]:
    """Bytes a row of each choice for these stored values, the fastest to decode first.

    Parameters
    ----------
    asked
        The schema's compression (format.COMPRESSION_*).
    block_rows
        Rows of a block.
    allowed
        The encodings to consider (format.ENCODING_*).
    is_sample
        The values are a sample of a larger column: they are not too few for a sample of their own.
    """
    is_default = asked == format.COMPRESSION_DEFAULT
    lz4 = format.COMPRESSION_LZ4 if is_default else asked
    light = _NONE if is_default else asked  # of encodings that are small already
    found: dict[Choice, float] = {}
    if form.kind == FIXED and _PLAIN in allowed:
        found[Choice(_PLAIN, _NONE)] = form.width_bytes
    if len(values) == values.null_count or (
        not is_sample and _plain_bytes(form, values) < _UNSAMPLED_BYTES_MAX
    ):
        if _FOR in allowed and not form.is_wide:
            found[Choice(_FOR, light)] = _frame_bytes(values, block_rows)
        return found or {Choice(_PLAIN, lz4): 0.0}
    sample = _sample(form, values)

    def of_sample(code: int, *compressions: int) -> None:
        """The sample in this encoding, by each of these compressions."""
        encoding = by_code(code)
        encoder = None if encoding is None or code not in allowed else encoding.prepare(form, sample)
        if encoder is not None:
            data = encoder.encode(0, len(sample))
            for compression in compressions:
                found[Choice(code, compression)] = compress(compression, data)[1].size / len(sample)

    if form.is_wide:
        of_sample(_FOR, light)
    elif _FOR in allowed:
        found[Choice(_FOR, light)] = _frame_bytes(values, block_rows)
    if _RLE in allowed and _run_rows(sample) >= 2:
        of_sample(_RLE, lz4)
    of_sample(_ALP, light)
    of_sample(_BITSHUFFLE, light)
    if asked != _NONE or form.kind != FIXED:
        of_sample(_PLAIN, *((lz4, _ZSTD) if is_default else (lz4,)))
    of_sample(_PREFIX, lz4)
    return found


def _plain_bytes(form: Physical, values: pa.Array) -> int:
    if form.kind != BYTES:
        return len(values) * max(1, form.width_bytes)
    offsets = binary_offsets(values)
    return len(offsets) + int(offsets[-1]) - int(offsets[0])


def _frame_bytes(values: pa.Array, block_rows: int) -> float:
    """Bytes a row in frames of reference: the mean of four blocks."""
    size = rows = 0.0
    for start in _middles(values):
        block = values.slice(start // block_rows * block_rows, block_rows)
        size += format.FOR_HEADER.size + len(block) * _frame_bits(block) / 8
        rows += len(block)
        if rows >= len(values):
            break
    return size / max(1.0, rows)


def _frame_bits(block: pa.Array) -> int:
    """Bits of a delta: exact but for the common divisor and the line, which a probe tells."""
    numbers = (block.drop_null() if block.null_count else block).to_numpy()
    least, greatest = (int(numbers.min()), int(numbers.max())) if len(numbers) else (0, 0)
    if least == greatest:
        return 0
    places = np.arange(0, len(numbers), max(1, len(numbers) // _PROBE_ROWS))
    probe = numbers[places].astype(np.int64)
    deltas = np.append(probe, greatest).view(np.uint64) - np.array(least, np.int64).view(np.uint64)
    unit = int(np.gcd.reduce(deltas))
    bits = ((greatest - least) // unit).bit_length()
    if block.null_count or bits > _LINE_BITS_MAX:
        return bits
    off = probe - places * ((int(numbers[-1]) - int(numbers[0])) // (len(numbers) - 1))
    spread = int(off.max()) - int(off.min())
    return min(bits, (spread // unit).bit_length() + (spread > 0))


def _run_rows(sample: pa.Array) -> float:
    """Rows of a run, on average."""
    return len(sample) / len(pc.run_end_encode(sample).values)


def _sample(form: Physical, values: pa.Array) -> pa.Array:
    """Four stretches of the column, end to end; of a short one all."""
    rows = _STRETCH_ROWS_OF_TEXT if form.kind == BYTES else _STRETCH_ROWS
    if len(values) <= _STRETCHES * rows:
        return values
    starts = [max(0, min(middle - rows // 2, len(values) - rows)) for middle in _middles(values)]
    return pa.concat_arrays([values.slice(start, rows) for start in starts])


def _middles(values: pa.Array) -> list[int]:
    """The rows in the middles of the quarters of a column; with NULLs, of the quarters of its values."""
    there = len(values) - values.null_count
    middles: npt.NDArray[np.int64] = (2 * np.arange(_STRETCHES) + 1) * there // (2 * _STRETCHES)
    if values.null_count and there:
        middles = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))[middles]
    return [int(middle) for middle in middles]
