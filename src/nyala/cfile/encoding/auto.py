"""What `auto` takes: the encoding that decodes fastest among those at most a quarter larger than the smallest.

    kind of column                     candidates, the fastest to decode first
    bool                               plain, run length
    integer, date, timestamp           plain, frame of reference, run length, bitshuffle, plain that is compressed
    decimal                            plain, frame of reference, bitshuffle, plain that is compressed
    float, double                      plain, ALP, bitshuffle, plain that is compressed
    string, varchar, binary            dictionary if values repeat (it decides itself), else plain, pattern, prefix

Frame of reference may also be a bit a value larger than bitshuffle, which decodes in eight times what a line takes and
3.5 times what steps take: of sorted columns that bit is most of what they have left, and of others nothing. Prefix is
taken where it makes text four times smaller than plain or pattern does (long keys that are alike), for it decodes at a
tenth of plain's speed.

Numbers may be plain twice by default: without compression they are read without a copy; with LZ4 they decode about as
fast as bitshuffle, and are smaller where most are one. Where a compression is asked for by name all candidates have it.
What of numbers is inflated to half of plain's bytes or more comes last: plain that shrinks, runs of one row.

The order is that of measured decode speeds (docs/decisions/0013-encodings.md). Sizes are judged by writing stretches of
the column, from the middles of its quarters, in every candidate, compressed as the blocks will be; a column that is no
longer than these is written whole. One of at most 256 rows and less than 4 KB is plain without a sample
(`choose_encoding`). So a flush pays for one sample per candidate and not for every encoder on everything. A column
whose beginning is unlike the rest is still seen from four places. Where values are NULL, it is quarters of those that
are not.

The stretches are short by default. Zstd and Snappy do on 30 KB something else than on a megabyte (Zstd finds seven
times less in a megabyte of numbered names than in a stretch of them), and LZ4 over what is compressed already does; so
if the schema names one of these, two stretches are as long as blocks. Zlib never looks back farther than 32 KB,
and takes up to a second a megabyte.

A frame of reference, with or without ALP, spans what its block spans. Where the key begins with a sensor, a stretch
lies in one and a block in a dozen, whose times start anew; and of ten thousand values that return, a stretch has most
only once and a block each a dozen times. So a frame that would be taken is written once more in blocks, and is taken
if it still should be; and frames that would not are, where a probe of the column finds values that return.

What is to be taken is held against a table for the whole column at last (`number_table`), and so are a frame of
reference and ALP where one of them is asked for by name.

The columns of a composite key have frame of reference and run length only, where their type has these: single values
are taken from them as they lie, and so the keys of most rows need not be stored (docs/decisions/0033).

A column of text or binary that carries the value index is plain or in a pattern, since look-ups decode it.
The choice is made per column of a file (a flush, a compaction), as it is a footer that names the encoding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile import format
from nyala.cfile.compression import compress, effective_compression
from nyala.cfile.encoding.alp import Alp
from nyala.cfile.encoding.base import BlockEncoder, Encoding
from nyala.cfile.encoding.frame_of_reference import FrameOfReference
from nyala.cfile.encoding.number_table import SHARE_MAX, probed_bits, table_of
from nyala.cfile.physical import BYTES, FIXED, Physical

__all__ = ["Choice", "candidates", "choices", "fastest_of", "over_a_table"]

# How much larger than the smallest an encoding may be and still be taken for its speed. A quarter of a column
# costs less to read (12 GB/s from the page cache, 2 from a good disk) than bitshuffle costs to decode.
_SIZE_FACTOR: Final = 1.25
# Joining prefixes and suffixes takes ten times as long as decompressing plain text: it must win much more.
_PREFIX_SIZE_FACTOR: Final = 4.0
# Of a value, by which frame of reference may be larger than bitshuffle.
_SLACK_BITS: Final = 1
# Of plain numbers that nobody asked to be compressed: fewer are not worth it.
_COMPRESSED_BYTES_MIN: Final = 4096
_SAMPLE_STRETCHES: Final = 4
_SAMPLE_BLOCKS: Final = 2
# Long enough for LZ4 to find what repeats, and short enough that judging costs less than writing: a stretch of text is
# more bytes, and prefix, which seldom wins, costs ten times as much to write as plain.
_SAMPLE_STRETCH_ROWS: Final = 1 << 13
_SAMPLE_STRETCH_ROWS_OF_TEXT: Final = 1 << 11
# Of plain's bytes: whoever inflates more of them is as slow as plain that is inflated.
_INFLATED_SHARE_MAX: Final = 0.5
# How many times smaller than what would be taken a table of values must promise to be, to be tried.
_PROMISE: Final = 1.5
# As many numbers as a stretch has often.
_FEW_BITS: Final = 8
_NONE: Final = format.COMPRESSION_NONE
_FRAMES: Final = (format.ENCODING_FOR, format.ENCODING_ALP)
# How often the numbers of a column's table return at least, on average.
_RETURNS_MIN: Final = 4
_FOR: Final = FrameOfReference()
_OVER_TABLES: Final = (_FOR, Alp())
_JUDGED_BY_BLOCKS: Final = (format.COMPRESSION_LZ4, format.COMPRESSION_SNAPPY, format.COMPRESSION_ZSTD)
_FASTEST_FIRST: Final = (
    format.ENCODING_PLAIN,
    format.ENCODING_FOR,
    format.ENCODING_RLE,
    format.ENCODING_ALP,
    format.ENCODING_BITSHUFFLE,
    format.ENCODING_PATTERN,
    format.ENCODING_PREFIX,
)


class Choice(NamedTuple):
    """An encoding, and the compression that blocks have with it."""

    encoding: Encoding
    compression: int


class _Written(NamedTuple):
    """What a sample takes."""

    row_bytes: float
    inflated_row_bytes: float  # what blocks that were compressed are inflated to; 0 where none was
    encoder: BlockEncoder | None = None  # of a sample that is one block


@dataclass(frozen=True)
class _Block:
    """The encoder of a column that was encoded as one block to judge it: the bytes are not made again."""

    encoder: BlockEncoder
    row_count: int
    data: pa.Buffer
    dictionary: None = None
    table: None = None

    def encode(self, lower: int, upper: int) -> pa.Buffer:
        return self.data if (lower, upper) == (0, self.row_count) else self.encoder.encode(lower, upper)


def candidates(form: Physical, by_code: Callable[[int], Encoding | None]) -> list[Encoding]:
    """The encodings among which sizes decide, the fastest first. Dictionary, which decides itself, is not here."""
    found = (by_code(code) for code in _FASTEST_FIRST)
    return [encoding for encoding in found if encoding is not None and encoding.handles(form)]


def choices(encodings: Iterable[Encoding], form: Physical, asked: int, rows: int) -> list[Choice]:
    """These encodings with the compressions that they may have for so many rows when `asked` was asked for."""
    found = []
    for encoding in encodings:
        compression = effective_compression(asked, encoding.compresses)
        if asked == format.COMPRESSION_DEFAULT and _is_plain_numbers(encoding, form):
            found.append(Choice(encoding, format.COMPRESSION_NONE))
            if rows * form.width_bytes < _COMPRESSED_BYTES_MIN:
                continue
        found.append(Choice(encoding, compression))
    return found


def fastest_of(
    encodings: Sequence[Encoding], form: Physical, values: pa.Array, asked: int, block_rows: int
) -> tuple[Choice, float, BlockEncoder | None]:
    """Choose the encoding for these stored values, with compression `asked` and blocks of `block_rows` rows.

    Returns: the choice, the bytes that a row is expected to take, and for a column of one block its encoder.
    """
    rows, stretches = _sampling(form, asked, block_rows)
    sample = _sample(values, stretches, rows, block_rows)
    known = choices(encodings, form, asked, len(values))
    written = {choice: _written(choice, form, sample) for choice in known}
    taken = _fastest(form, written)
    if rows >= block_rows or len(values) <= stretches * rows:
        is_whole = len(sample) == 1 and len(sample[0]) == len(values)
        return taken, written[taken].row_bytes, written[taken].encoder if is_whole else None
    bits, there = _bits_of_returning(form, values), len(values) - values.null_count
    may_be_a_table = bits is not None and bits / 8 * _PROMISE * there < written[taken].row_bytes * len(values)
    if taken.encoding.code in _FRAMES or may_be_a_table:
        blocks = _sample(values, _SAMPLE_BLOCKS, block_rows, block_rows)
        written.update({of: _written(of, form, blocks) for of in known if of.encoding.code in _FRAMES})
        taken = _fastest(form, written)
        # Of more numbers than a stretch has often, LZ4 finds in a block what it does not in a stretch: against tables,
        # and what is larger, it is judged by blocks as well.
        is_a_table = bits is not None and 8 * written[taken].row_bytes >= bits > _FEW_BITS
        if is_a_table and not values.null_count:
            others = [of for of in known if of.encoding.code not in _FRAMES]
            written.update({of: _written(of, form, blocks) for of in others if of.compression != _NONE})
            taken = _fastest(form, written)
    return taken, written[taken].row_bytes, None


def over_a_table(
    taken: Choice, row_bytes: float | None, form: Physical, values: pa.Array, asked: int, block_rows: int
) -> tuple[Choice, BlockEncoder] | None:
    """A table for the whole column in the place of what would be taken, where it is worth it.

    row_bytes: what that takes, or more; None: not known.
    """
    frames = next((of for of in _OVER_TABLES if of.handles(form)), None)
    if frames is None or len(values) <= block_rows or values.null_count == len(values):
        return None
    numbers = frames.numbers(form, values)
    bits = None if numbers is None else probed_bits(_there(form, values), format.TABLE_COUNT_MAX)
    if bits is None:
        return None
    least = bits / 8 + format.FOR_HEADER.size / block_rows  # a row, without the table
    if least > SHARE_MAX * (form.width_bytes if row_bytes is None else row_bytes):
        return None
    # By the blocks that will be: what compressing them wins, a stretch does not tell, nor what their headers take.
    blocks = _sample(values, _SAMPLE_BLOCKS, block_rows, block_rows)
    row_bytes = _written(taken, form, blocks).row_bytes
    if least > SHARE_MAX * row_bytes:
        return None
    table = table_of(numbers, format.TABLE_COUNT_MAX)
    if table is None or len(table.numbers) * _RETURNS_MIN > len(values) - values.null_count:
        return None
    choice = Choice(frames, effective_compression(asked, frames.compresses))
    encoder = frames.prepare_over(form, values, table)
    size = 0
    for block in blocks:
        start = block.offset - values.offset
        size += compress(choice.compression, encoder.encode(start, start + len(block)))[1].size
    beside = _FOR.prepare_table(table.numbers)
    of_table = beside.encode(0, len(table.numbers)).size + format.BLOCK_HEADER.size
    if size / sum(map(len, blocks)) + of_table / len(values) > row_bytes * SHARE_MAX:
        return None
    return choice, encoder


def _there(form: Physical, values: pa.Array) -> npt.NDArray[Any]:
    """The values that are no NULL, as the numbers that are their bits."""
    dtype = np.dtype(f"<i{form.width_bytes}")
    numbers = np.frombuffer(values.buffers()[1], dtype)[values.offset :][: len(values)]
    if values.null_count:
        numbers = numbers[values.is_valid().to_numpy(zero_copy_only=False)]
    return numbers


def _bits_of_returning(form: Physical, values: pa.Array) -> int | None:
    """How many bits name the distinct values of a probe, where they are numbers that return in a block."""
    if form.kind != FIXED or form.dtype is None or form.code == format.TYPE_DECIMAL128:
        return None
    return probed_bits(_there(form, values))


def _fastest(form: Physical, written: Mapping[Choice, _Written]) -> Choice:
    """The rule, over what each choice takes; these are in the order of their speed."""
    if form.kind == BYTES:
        return _fastest_of_text(written)
    least, smallest = min((of.row_bytes, choice.encoding.code) for choice, of in written.items())
    limit = least * _SIZE_FACTOR
    limit_of_for = limit
    if smallest == format.ENCODING_BITSHUFFLE:
        limit_of_for = max(limit, least + _SLACK_BITS / 8)
    slow = form.width_bytes * _INFLATED_SHARE_MAX if form.kind == FIXED else math.inf
    order = sorted(written, key=lambda of: written[of].inflated_row_bytes >= slow)
    return next(
        choice
        for choice in order
        if written[choice].row_bytes
        <= (limit_of_for if choice.encoding.code == format.ENCODING_FOR else limit)
    )


def _fastest_of_text(written: Mapping[Choice, _Written]) -> Choice:
    """The first than which no slower one is smaller by as much as that one must be."""
    order = list(written)

    def is_beaten(choice: Choice, by: Choice) -> bool:
        factor = _PREFIX_SIZE_FACTOR if by.encoding.code == format.ENCODING_PREFIX else _SIZE_FACTOR
        return written[choice].row_bytes > written[by].row_bytes * factor

    return next(
        choice
        for place, choice in enumerate(order)
        if not any(is_beaten(choice, by) for by in order[place + 1 :])
    )


def _is_plain_numbers(encoding: Encoding, form: Physical) -> bool:
    return encoding.code == format.ENCODING_PLAIN and form.kind == FIXED


def _written(choice: Choice, form: Physical, sample: Sequence[pa.Array]) -> _Written:
    size = inflated = 0
    made: BlockEncoder | None = None
    for block in sample:
        if choice.encoding.code == format.ENCODING_RLE and _has_short_runs(form, block):
            return _Written(math.inf, 0)
        encoder = choice.encoding.prepare(form, block)
        if encoder is None:  # these values it does not take
            return _Written(math.inf, 0)
        data = encoder.encode(0, len(block))
        made = _Block(encoder, len(block), data) if len(sample) == 1 else None
        compression, packed = compress(choice.compression, data)
        size += packed.size
        if compression != format.COMPRESSION_NONE:
            inflated += data.size
    rows = max(1, sum(map(len, sample)))
    return _Written(size / rows, inflated / rows, made)


def _has_short_runs(form: Physical, block: pa.Array) -> bool:
    """Whether runs of numbers have fewer than two rows on average: plain numbers are as small then."""
    if form.kind != FIXED or block.null_count:
        return False
    values = form.fixed_values(block)
    return bool(2 * np.count_nonzero(values[1:] != values[:-1]) > len(values))


def _sampling(form: Physical, asked: int, block_rows: int) -> tuple[int, int]:
    """(rows of a stretch, stretches) that are judged of a column."""
    rows = _SAMPLE_STRETCH_ROWS_OF_TEXT if form.kind == BYTES else _SAMPLE_STRETCH_ROWS
    if asked in _JUDGED_BY_BLOCKS and block_rows > rows:
        return block_rows, _SAMPLE_BLOCKS
    return rows, _SAMPLE_STRETCHES


def _sample(values: pa.Array, stretches: int, rows: int, block_rows: int) -> list[pa.Array]:
    """What is judged of a column, in stretches of so many rows, as blocks; without those of which all are NULL."""
    parts = [values]
    if len(values) > stretches * rows:
        starts = [
            max(0, min(middle - rows // 2, len(values) - rows)) for middle in _middles(values, stretches)
        ]
        if rows == block_rows:  # the very blocks that will be: Zstd does on the next megabyte something else
            starts = [start // rows * rows for start in starts]
        parts = [values.slice(start, rows) for start in dict.fromkeys(starts)]
    blocks = (part.slice(at, block_rows) for part in parts for at in range(0, len(part), block_rows))
    return [block for block in blocks if block.null_count < len(block)]


def _middles(values: pa.Array, count: int) -> list[int]:
    """The rows in the middles of so many equal parts of a column; of one with NULLs, of its values."""
    there = len(values) - values.null_count
    middles = [(2 * i + 1) * there // (2 * count) for i in range(count)]
    if not values.null_count or not there:
        return middles
    places = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
    return [int(place) for place in places[middles]]
