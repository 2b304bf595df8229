"""The choice of an encoding and compression for a column.

What the schema names is taken, where it handles the type and takes the values; a dictionary of too many distinct
values goes plain. With "auto" the choice is made from statistics and one short sample. Each encoding gives candidates
(`Encoding.candidates`): how many bytes a row takes, the rank by decode speed, and by how much the candidate must be
smaller than a faster one to be taken. `fastest` picks one:

    cost  candidate            for                         smaller by  size from
    0     plain                numbers                                 the type's width
    1     for                  integers, dates, decimals   1.25        statistics of four blocks
    2     rle                  bool, integers, dates       2           the sample, if its runs have 2 rows or more
    3     alp                  floats                      1.25        the sample
    4     bitshuffle           numbers                     1.25        the sample
    5     plain, compressed    everything                  1.25        the sample, by LZ4 or what the schema asks for
    6     plain, Zstandard     everything                  1.55        the sample; only with compression "default"
    7     prefix               text, binary                4           the sample

A faster encoding may also be one bit a value larger than bitshuffle, which takes eight times as long to decode as
frame of reference. Zstandard must be much smaller than LZ4, since it takes three times as long to decompress: it halves
hexadecimal text, in which LZ4 finds nothing. Prefix decodes at a tenth of plain's speed. The factor 1.25 is since a
quarter of a column costs less to read (12 GB/s from the page cache, 2 from a good disk) than bitshuffle to decode.

Columns of less than 32 KB have no sample: numbers are plain or for, by statistics alone. Below 4 KB they are plain.

The sample is four stretches of neighbours from the middles of the column's quarters. So a column whose beginning is
unlike the rest is still seen from four places, and a flush encodes 8,192 values of a column to decide, however long the
column is. Text has its dictionary first (`dictionary`), which decides from all values.

Source: measured decode speeds (docs/design/column-files-and-encodings.md, "Encodings and their speed").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from nyala.cfile import format
from nyala.cfile.compression import effective_compression
from nyala.cfile.encoding import ENCODINGS, PLAIN, encoding_by_code
from nyala.cfile.encoding.base import BlockEncoder, Candidate, ColumnSample, Encoding, middles
from nyala.cfile.physical import BYTES, FIXED, Physical, binary_offsets

__all__ = ["Choice", "choose_encoding", "fastest"]

_PLAIN_BYTES_MAX: Final = 4 << 10  # columns that are plain without a look
_UNSAMPLED_BYTES_MAX: Final = 32 << 10
_STRETCHES: Final = 4
_STRETCH_ROWS: Final = 2048
_STRETCH_ROWS_OF_TEXT: Final = 1024


class Choice(NamedTuple):
    """How a column is encoded and its blocks are compressed."""

    encoding: Encoding
    encoder: BlockEncoder
    compression: int  # format.COMPRESSION_*


def choose_encoding(
    name: str,
    form: Physical,
    values: pa.Array,
    compression: int = format.COMPRESSION_DEFAULT,
    *,
    single_values: bool = False,
    is_index: bool = False,
    is_sample: bool = False,
    block_rows: int = 1 << format.ROWS_PER_BLOCK_LOG2_MAX,
) -> Choice:
    """The encoding called `name` for a column; 'auto' where its type does not allow that.

    Parameters
    ----------
    values
        All values in their stored form, without NULLs.
    compression
        What the schema asks for (format.COMPRESSION_*).
    single_values
        'auto' takes an encoding that gathers single values, where the type has one.
    is_index
        'auto' takes plain for text: each look-up decodes a block, for which prefix would take ten times as long.
    is_sample
        The values are a sample of a column that is not small.
    block_rows
        The most rows of a block.
    """

    def prepared(encoding: Encoding, compression_of: int) -> Choice | None:
        encoder = encoding.prepare(form, values)
        return None if encoder is None else Choice(encoding, encoder, compression_of)

    allowed = [encoding for encoding in ENCODINGS if encoding.handles(form)]
    named = [encoding for encoding in allowed if encoding.name == name]
    is_small = not is_sample and _plain_bytes(form, values) < _PLAIN_BYTES_MAX
    if single_values and form.kind == FIXED:
        allowed = [encoding for encoding in allowed if encoding.gathers_single_values(form)] or allowed
    if is_index and form.kind == BYTES:
        allowed = [PLAIN]
    first = named or [encoding for encoding in allowed if encoding.uses_dictionary and not is_small]
    for encoding in first:
        found = prepared(encoding, effective_compression(compression, encoding.compresses))
        if found is not None:
            return found
    taken: Candidate | None = None
    if not named and (not is_small or single_values):
        sample = _sample(form, values, is_sample)
        column = ColumnSample(form, values, sample, block_rows, compression)
        taken = fastest([one for encoding in allowed for one in encoding.candidates(column)])
    if taken is None:
        taken = Candidate(PLAIN.code, effective_compression(compression, PLAIN.compresses), 0.0, 0)
    chosen = encoding_by_code(taken.encoding)
    assert chosen is not None
    found = prepared(chosen, taken.compression if compression == format.COMPRESSION_DEFAULT else compression)
    assert found is not None
    return found


def fastest(candidates: Sequence[Candidate]) -> Candidate | None:
    """The first candidate, by decode speed, that no slower one beats; None: there is none."""
    order = sorted(candidates, key=lambda candidate: candidate.cost)

    def beats(slow: Candidate, fast: Candidate) -> bool:
        return fast.row_bytes > max(slow.row_bytes * slow.size_factor, slow.row_bytes + slow.slack_bytes)

    unbeaten = (
        fast for place, fast in enumerate(order) if not any(beats(slow, fast) for slow in order[place + 1 :])
    )
    return next(unbeaten, None)


def _plain_bytes(form: Physical, values: pa.Array) -> int:
    if form.kind != BYTES or not len(values):
        return len(values) * max(1, form.width_bytes)
    offsets = binary_offsets(values)
    return len(offsets) + int(offsets[-1]) - int(offsets[0])


def _sample(form: Physical, values: pa.Array, is_sample: bool) -> pa.Array | None:
    """Four stretches of the column, end to end; all of a column that is not longer. None: the column is too short."""
    if not len(values) or (not is_sample and _plain_bytes(form, values) < _UNSAMPLED_BYTES_MAX):
        return None
    rows = _STRETCH_ROWS_OF_TEXT if form.kind == BYTES else _STRETCH_ROWS
    if len(values) <= _STRETCHES * rows:
        return values
    starts = [max(0, min(middle - rows // 2, len(values) - rows)) for middle in middles(len(values))]
    return pa.concat_arrays([values.slice(start, rows) for start in starts])
