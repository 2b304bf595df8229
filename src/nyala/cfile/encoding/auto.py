"""What `auto` takes: the encoding that decodes fastest among those at most a quarter larger than the smallest.

    kind of column                     candidates, the fastest to decode first
    bool                               plain, run length
    integer, date, timestamp           plain, frame of reference, run length, bitshuffle, plain that is compressed
    decimal                            plain, frame of reference, bitshuffle, plain that is compressed
    float, double                      plain, ALP, bitshuffle, plain that is compressed
    string, varchar, binary            dictionary if values repeat (it decides itself), else plain, prefix

Frame of reference may also be a bit a value larger than bitshuffle, which decodes in eight times what a line takes and
3.5 times what steps take: of sorted columns that bit is most of what they have left, and of others nothing. Prefix is
taken where it makes text four times smaller than plain does (long keys that are alike), for it decodes at a
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

The columns of a composite key have frame of reference and run length only, where their type has these: single values
are taken from them as they lie, and so the keys of most rows need not be stored (docs/decisions/0033).

A column of text or binary that carries the value index is plain, since look-ups decode it.
The choice is made per column of a file (a flush, a compaction), as it is a footer that names the encoding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from nyala.cfile import format
from nyala.cfile.compression import compress, effective_compression
from nyala.cfile.encoding.base import BlockEncoder, Encoding
from nyala.cfile.physical import BYTES, FIXED, Physical

__all__ = ["Choice", "candidates", "choices", "fastest_of"]

# How much larger than the smallest an encoding may be and still be taken for its speed. A quarter of a column
# costs less to read (12 GB/s from the page cache, 2 from a good disk) than bitshuffle costs to decode.
_SIZE_FACTOR: Final = 1.25
# Joining prefixes and suffixes takes ten times as long as decompressing plain text: it must win much more.
_PREFIX_SIZE_FACTOR: Final = 4.0
# Zstandard's entropy coder halves hexadecimal digits, in which LZ4 finds nothing, and inflates at a third of its speed.
_ZSTD_SIZE_FACTOR: Final = 1.6
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
_NONE: Final = format.COMPRESSION_NONE
_FRAMES: Final = (format.ENCODING_FOR, format.ENCODING_ALP)
_JUDGED_BY_BLOCKS: Final = (format.COMPRESSION_LZ4, format.COMPRESSION_SNAPPY, format.COMPRESSION_ZSTD)
_FASTEST_FIRST: Final = (
    format.ENCODING_PLAIN,
    format.ENCODING_FOR,
    format.ENCODING_RLE,
    format.ENCODING_ALP,
    format.ENCODING_BITSHUFFLE,
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
        if (
            asked == format.COMPRESSION_DEFAULT
            and form.kind == BYTES
            and encoding.code == format.ENCODING_PLAIN
        ):
            found.append(Choice(encoding, format.COMPRESSION_ZSTD))
    return found


def fastest_of(
    encodings: Sequence[Encoding], form: Physical, values: pa.Array, asked: int, block_rows: int
) -> tuple[Choice, BlockEncoder | None]:
    """Choose the encoding for these stored values, with compression `asked` and blocks of `block_rows` rows.

    Returns: the choice, and for a column of one block its encoder.
    """
    rows, stretches = _sampling(form, asked, block_rows)
    sample = _sample(values, stretches, rows, block_rows)
    known = choices(encodings, form, asked, len(values))
    written = {choice: _written(choice, form, sample) for choice in known}
    taken = _fastest(form, written)
    if rows >= block_rows or len(values) <= stretches * rows:
        is_whole = len(sample) == 1 and len(sample[0]) == len(values)
        return taken, written[taken].encoder if is_whole else None
    if taken.encoding.code in _FRAMES:
        blocks = _sample(values, _SAMPLE_BLOCKS, block_rows, block_rows)
        written.update({of: _written(of, form, blocks) for of in known if of.encoding.code in _FRAMES})
        taken = _fastest(form, written)
    return taken, None


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
        factor = _PREFIX_SIZE_FACTOR if by.encoding.code == format.ENCODING_PREFIX else _ZSTD_SIZE_FACTOR
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
