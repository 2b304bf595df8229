"""What `auto` takes: the encoding that decodes fastest among those at most a quarter larger than the smallest.

    kind of column                     candidates, the fastest to decode first
    bool                               plain, run length
    integer, date, timestamp           plain, frame of reference, run length, bitshuffle
    decimal                            plain, frame of reference, bitshuffle
    float, double                      plain, bitshuffle
    string, varchar, binary            dictionary if values repeat (it decides itself), else plain, prefix

Frame of reference may also be a bit a value larger than bitshuffle, which decodes in eight times what a line takes and
3.5 times what steps take: of sorted columns that bit is most of what they have left, and of others nothing.

The order is that of measured decode speeds (docs/decisions/0013-encodings.md). Sizes are judged by writing two
stretches of the column, at a quarter and at three quarters of it, in every candidate, compressed as the blocks
will be; a small column is written whole. So a flush pays for one sample per candidate and not for every
encoder on everything; a column whose beginning is unlike the rest is still seen from two places.

A plain column of fixed width that is chosen here has no compression by default: so it is read without a copy, and
compressed it would be both larger and slower than bitshuffle. Prefix is taken where it makes text four times smaller
than plain does (long keys that are alike), for it decodes at a tenth of plain's speed.

The columns of a composite key have frame of reference and run length only, where their type has these: single values
are taken from them as they lie, and so the keys of most rows need not be stored (docs/decisions/0033).

Left to the writer: a column of text or binary that carries the value index is plain, since look-ups decode it.
The choice is made per column of a file (a flush, a compaction), as it is a footer that names the encoding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa

from nyala.cfile import format
from nyala.cfile.compression import compress, effective_compression
from nyala.cfile.encoding.base import Encoding
from nyala.cfile.physical import BYTES, FIXED, Physical

__all__ = ["auto_compression", "candidates", "fastest_of"]

# How much larger than the smallest an encoding may be and still be taken for its speed. A quarter of a column
# costs less to read (12 GB/s from the page cache, 2 from a good disk) than bitshuffle costs to decode.
_SIZE_FACTOR: Final = 1.25
# Joining prefixes and suffixes takes ten times as long as decompressing plain text: it must win much more.
_PREFIX_SIZE_FACTOR: Final = 4.0
# Of a value, by which frame of reference may be larger than bitshuffle.
_SLACK_BITS: Final = 1
_SAMPLE_STRETCHES: Final = 2
# Long enough for a compressor to find what repeats, and short enough that judging costs less than writing: a stretch
# of text is more bytes, and prefix, which seldom wins, costs ten times as much to write as plain.
_SAMPLE_STRETCH_ROWS: Final = 1 << 14
_SAMPLE_STRETCH_ROWS_OF_TEXT: Final = 1 << 12
_FASTEST_FIRST: Final = (
    format.ENCODING_PLAIN,
    format.ENCODING_FOR,
    format.ENCODING_RLE,
    format.ENCODING_BITSHUFFLE,
    format.ENCODING_PREFIX,
)


def candidates(form: Physical, by_code: Callable[[int], Encoding | None]) -> list[Encoding]:
    """The encodings among which sizes decide, the fastest first. Dictionary, which decides itself, is not here."""
    found = (by_code(code) for code in _FASTEST_FIRST)
    return [encoding for encoding in found if encoding is not None and encoding.handles(form)]


def fastest_of(encodings: Sequence[Encoding], form: Physical, values: pa.Array, asked: int) -> Encoding:
    """The one to take for these stored values, with compression `asked`."""
    sizes = [_size(encoding, form, values, asked) for encoding in encodings]
    factor = _PREFIX_SIZE_FACTOR if form.kind == BYTES else _SIZE_FACTOR
    least = min(sizes)
    limits = [least * factor] * len(sizes)
    codes = [encoding.code for encoding in encodings]
    if format.ENCODING_FOR in codes and codes[sizes.index(least)] == format.ENCODING_BITSHUFFLE:
        judged = sum(map(len, _stretches(values, _SAMPLE_STRETCH_ROWS)))
        at = codes.index(format.ENCODING_FOR)
        limits[at] = max(limits[at], least + judged * _SLACK_BITS / 8)
    return next(
        encoding for encoding, size, limit in zip(encodings, sizes, limits, strict=True) if size <= limit
    )


def auto_compression(encoding: Encoding, form: Physical, asked: int) -> int:
    """The compression of blocks of a column whose encoding was chosen here."""
    if asked == format.COMPRESSION_DEFAULT and encoding.code == format.ENCODING_PLAIN and form.kind == FIXED:
        return format.COMPRESSION_NONE
    return effective_compression(asked, encoding.compresses)


def _size(encoding: Encoding, form: Physical, values: pa.Array, asked: int) -> int:
    compression = auto_compression(encoding, form, asked)
    total = 0
    rows = _SAMPLE_STRETCH_ROWS_OF_TEXT if form.kind == BYTES else _SAMPLE_STRETCH_ROWS
    for stretch in _stretches(values, rows):
        encoder = encoding.prepare(form, stretch)
        assert encoder is not None  # only the dictionary declines
        total += compress(compression, encoder.encode(0, len(stretch)))[1].size
    return total


def _stretches(values: pa.Array, rows: int) -> list[pa.Array]:
    if len(values) <= _SAMPLE_STRETCHES * rows:
        parts = [values]
    else:
        middles = ((2 * i + 1) * len(values) // (2 * _SAMPLE_STRETCHES) for i in range(_SAMPLE_STRETCHES))
        parts = [values.slice(middle - rows // 2, rows) for middle in middles]
    return [part for part in parts if part.null_count < len(part)]
