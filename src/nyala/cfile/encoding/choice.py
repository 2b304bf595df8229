"""Chooses an encoding and compression for a column.

If the schema names an encoding, and the type allows it, the column gets this encoding. If the
encoding refuses the values (a dictionary refuses too many distinct values), the column is plain.
With 'auto', statistics and one short sample decide. Each encoding offers candidates
(`Encoding.candidates`). `fastest` drops each candidate that is much larger than a slower one, and
chooses the fastest of the others:

    cost        the rank by decode speed; 0 is the fastest
    factor      a faster candidate is dropped if it is larger than `factor` times this one's size
    size from   how the size is estimated: from the type's width, statistics or the sample

    cost  candidate            types                       factor   size from
    0     plain                numbers                              the type's width
    1     for                  integers, dates, decimals   1.25     statistics of four blocks
    2     rle                  bool, integers, dates       2        the sample, if runs have 2 rows or more
    3     alp                  floats                      1.25     the sample
    4     bitshuffle           numbers                     1.25     the sample
    5     plain, compressed    everything                  1.25     the sample, by LZ4 or the schema's compression
    6     plain, Zstandard     everything                  1.55     the sample; only with compression "default"
    7     prefix               text, binary                4        the sample

`for` is a frame of reference: each integer is stored as its difference from a line through the
block (`forms.frame`). `alp` stores floats with few decimal digits as integers (`encoding.alp`).

Reasons for the factors:
    1.25    Reading a quarter more bytes (at 12 GB/s from the page cache, 2 from a good disk) costs
            less than decoding bitshuffle, which is eight times slower than decoding `for`. For
            narrow values, a quarter of the size is less than one bit per value. Bitshuffle is too
            slow for such a small saving. So it replaces a faster candidate only if that candidate
            is also larger by more than one bit per value.
    1.55    Zstandard decompresses three times slower than LZ4. But it halves hexadecimal text, which
            LZ4 cannot compress.
    4       Prefix decodes at a tenth of the speed of plain.

A column below 32 KB has no sample: if it has numbers, statistics decide between plain and `for`. A
column below 4 KB is plain.

The sample consists of four runs of adjacent rows, from the middles of the column's quarters. So an
unusual beginning does not decide alone. A flush encodes at most 8,192 values per column to decide,
whatever the column's length. For text, a dictionary is tried first (`dictionary`): it decides by
all values.

Source: measured decode speeds (docs/design/column-files-and-encodings.md, "Encodings and their
speed").
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

_PLAIN_BYTES_MAX: Final = 4 << 10  # columns up to this size are always plain
_UNSAMPLED_BYTES_MAX: Final = 32 << 10
_SAMPLE_RUNS: Final = 4
_SAMPLE_RUN_ROWS: Final = 2048
_SAMPLE_RUN_ROWS_TEXT: Final = 1024


class Choice(NamedTuple):
    """The encoding of a column, its encoder, and the compression of its blocks."""

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
    """Return the encoding and the compression to store a column with, and the encoder of its values.

    The encoding is `name` if type and values allow it, otherwise another one. The name 'auto' leaves
    the choice to this function.

    Parameters
    ----------
    values
        All values in their stored form, without NULLs.
    compression
        The schema's compression (format.COMPRESSION_*).
    single_values
        True if readers fetch values one by one. Then 'auto' chooses an encoding that gives one value
        without decoding the block, if the type has such an encoding.
    is_index
        True if the column has the key index. Then 'auto' must choose plain for text, because each
        look-up decodes a block, and prefix would take ten times as long.
    is_sample
        True if the values are a sample of a large column, so rules for short columns do not apply.
    block_rows
        The rows per block.
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
        choice = prepared(encoding, effective_compression(compression, encoding.compresses))
        if choice is not None:
            return choice
    best: Candidate | None = None
    if not named and (not is_small or single_values):
        sample = _sample(form, values, is_sample)
        column = ColumnSample(form, values, sample, block_rows, compression)
        best = fastest([one for encoding in allowed for one in encoding.candidates(column)])
    if best is None:
        best = Candidate(PLAIN.code, effective_compression(compression, PLAIN.compresses), 0.0, 0)
    chosen = encoding_by_code(best.encoding)
    assert chosen is not None
    choice = prepared(chosen, best.compression if compression == format.COMPRESSION_DEFAULT else compression)
    assert choice is not None
    return choice


def fastest(candidates: Sequence[Candidate]) -> Candidate | None:
    """Return the fastest candidate that is not much larger than any slower candidate.

    A candidate is much larger than a slower candidate S if it exceeds two limits: the size of S
    times the `size_factor` of S, and the size of S plus the `slack_bytes` of S. All sizes are in
    bytes per row. The result is None if there are no candidates.
    """
    order = sorted(candidates, key=lambda candidate: candidate.cost)

    def beats(slow: Candidate, fast: Candidate) -> bool:
        return fast.row_bytes > max(slow.row_bytes * slow.size_factor, slow.row_bytes + slow.slack_bytes)

    unbeaten = (
        fast for rank, fast in enumerate(order) if not any(beats(slow, fast) for slow in order[rank + 1 :])
    )
    return next(unbeaten, None)


def _plain_bytes(form: Physical, values: pa.Array) -> int:
    if form.kind != BYTES or not len(values):
        return len(values) * max(1, form.width_bytes)
    offsets = binary_offsets(values)
    return len(offsets) + int(offsets[-1]) - int(offsets[0])


def _sample(form: Physical, values: pa.Array, is_sample: bool) -> pa.Array | None:
    """Return a sample of `values`: four ranges of adjacent values.

    If the ranges would cover all values, return `values`. Return None if there are no values, or if
    they take less than 32 KiB: so small a column needs no sample.

    is_sample: `values` are themselves a sample of a large column, so the limit of 32 KiB does not
    apply.
    """
    if not len(values) or (not is_sample and _plain_bytes(form, values) < _UNSAMPLED_BYTES_MAX):
        return None
    rows = _SAMPLE_RUN_ROWS_TEXT if form.kind == BYTES else _SAMPLE_RUN_ROWS
    if len(values) <= _SAMPLE_RUNS * rows:
        return values
    starts = [max(0, min(middle - rows // 2, len(values) - rows)) for middle in middles(len(values))]
    return pa.concat_arrays([values.slice(start, rows) for start in starts])
