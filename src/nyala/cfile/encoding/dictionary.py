"""Dictionary: the distinct values once per column and file; in blocks the code of each value.

The dictionary is sorted by bytes, so a range of values is a range of codes, and a block's least and greatest value are
those of its least and greatest code. Codes have 1, 2 or 4 bytes, the fewest that the dictionary's count allows. In a
block they are bit-packed as the deltas of a frame of reference are, or bit-shuffled where that is a fifth smaller, as
in sorted columns, whose codes are runs. Bit-packed codes decode about twice as fast.

Whether a column is worth a dictionary is decided once per column of a file, from all of its values (Kudu: once per
file, at the block where the dictionary becomes too large; here the whole column is at hand). The dictionary must keep
below `DICTIONARY_BYTES_MAX`, and codes with dictionary must be well below the values' own size. A sample is looked at
first, so that a column of distinct values costs little. Otherwise the column goes plain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala import compute as pc
from nyala.cfile import format, kernels
from nyala.cfile.bit_packing import pack_bits, packed_size
from nyala.cfile.encoding.base import BlockEncoder, EncodedValues, Encoding
from nyala.cfile.encoding.bitshuffle import shuffle_bits, unshuffle_bits
from nyala.cfile.forms.code_block import CODES, CodeBlock
from nyala.cfile.forms.column_block import ColumnBlock
from nyala.cfile.forms.frame import Frame
from nyala.cfile.physical import BYTES, Physical

__all__ = ["Dictionary"]

# Eight stretches of 1,024 values: stretches, because values repeat among neighbours when a key sorts them.
_SAMPLE_STRETCHES: Final = 8
_SAMPLE_STRETCH_ROWS: Final = 1024
# The most distinct values of a sample, unless a dictionary of the greatest size would have more in it.
_SAMPLE_DISTINCT_SHARE_MAX: Final = 0.8
# Codes and dictionary together, against the values' bytes and one length byte each.
_SIZE_SHARE_MAX: Final = 0.75
# How much larger than bit-shuffled codes bit-packed ones may be: as `auto` judges encodings.
_PACKED_SIZE_FACTOR: Final = 1.25


def _code_dtype(entry_count: int) -> np.dtype[Any]:
    """The type of codes of so many dictionary entries."""
    return np.dtype("<u1" if entry_count <= 1 << 8 else "<u2" if entry_count <= 1 << 16 else "<u4")


@dataclass(frozen=True)
class _DictionaryEncoder(BlockEncoder):
    codes: npt.NDArray[Any]
    dictionary: pa.Array | None

    def encode(self, lower: int, upper: int) -> pa.Buffer:
        codes = self.codes[lower:upper]
        base = int(codes.min())
        bits = (int(codes.max()) - base).bit_length()
        size = format.CODES_HEADER.size + packed_size(bits, len(codes))
        shuffled = shuffle_bits(codes)
        if size > shuffled.size * _PACKED_SIZE_FACTOR:
            return shuffled
        header = format.CODES_HEADER.pack(format.CODES_PACKED, bits, bytes(2), base)
        return pa.py_buffer(header + pack_bits(codes - codes.dtype.type(base), bits))

    def ends(self, lower: int, upper: int) -> pa.Array:
        # Codes ascend as values do, and numbers are compared ten times as fast as text.
        codes = self.codes[lower:upper]
        assert self.dictionary is not None
        return self.dictionary.take(pa.array([codes.min(), codes.max()]))


class Dictionary(Encoding):
    """For text and binary with few distinct values."""

    code = format.ENCODING_DICTIONARY
    name = "dictionary"
    compresses = True
    uses_dictionary = True

    def handles(self, form: Physical) -> bool:
        return form.kind == BYTES

    def prepare(self, form: Physical, values: pa.Array) -> BlockEncoder | None:
        if len(values) == 0 or not _sample_repeats(values):
            return None
        encoded = values.dictionary_encode()
        distinct = encoded.dictionary
        values_size = _data_size(values) + len(values)
        dictionary_size = _data_size(distinct) + len(distinct)
        dtype = _code_dtype(len(distinct))
        bits = (len(distinct) - 1).bit_length()
        if dictionary_size > format.DICTIONARY_BYTES_MAX:
            return None
        if (
            dictionary_size + packed_size(bits, len(values)) > values_size * _SIZE_SHARE_MAX
            and len(distinct) > 1
        ):
            return None
        # Arrow sorts binary by bytes, and UTF-8 by bytes is the order of text in comparisons.
        order = pc.array_sort_indices(distinct).to_numpy()
        rank = np.empty(len(order), dtype)
        rank[order] = np.arange(len(order), dtype=dtype)
        return _DictionaryEncoder(rank[encoded.indices.to_numpy()], distinct.take(pa.array(order)))

    def block(self, form: Physical, block: EncodedValues) -> ColumnBlock:
        if block.dictionary is None:
            raise ValueError("expected a dictionary in the column's footer, found none")
        return CodeBlock.of(_codes(block, len(block.dictionary)), block.dictionary)

    def gathers_single_values(self, form: Physical) -> bool:
        return True

    def header(self, form: Physical, data: bytes) -> format.Layout | None:
        return format.CODES_HEADER if data[:1] == bytes([format.CODES_PACKED]) else None


def _codes(block: EncodedValues, entry_count: int) -> Frame:
    """The codes of a block, as they are stored; all are below `entry_count`."""
    data, rows = block.data, block.row_count
    layout = data[0] if data.size else None
    if layout == format.CODES_SHUFFLED:
        dtype = _code_dtype(entry_count)
        codes = unshuffle_bits(data, rows, dtype.itemsize)
        _check(int(np.frombuffer(codes, dtype).max(initial=0)), entry_count)
        return Frame(CODES, codes, rows, 0, 0, 1, 8 * dtype.itemsize, 0)
    if layout != format.CODES_PACKED:
        raise ValueError(f"expected codes of layout {sorted(format.CODES)}, found {layout}")
    start = format.CODES_HEADER.size
    if data.size < start:
        raise ValueError(f"expected a header of {start} bytes before codes, found {data.size}")
    _, bits, _, base = format.CODES_HEADER.unpack_from(data)
    if bits > format.CODES_BITS_MAX or data.size != start + packed_size(bits, rows):
        raise ValueError(
            f"expected {rows} codes of at most {format.CODES_BITS_MAX} bits, found {bits} bits in {data.size} bytes"
        )
    if base + (1 << bits) > entry_count:  # more room than was used, or nonsense: the greatest delta tells
        _check(base + kernels.greatest(data, start, bits, rows), entry_count)
    return Frame(CODES, data, rows, base, 0, 1, bits, start)


def _check(greatest: int, entry_count: int) -> None:
    if greatest >= entry_count:
        raise ValueError(f"expected codes below {entry_count}, found {greatest}")


def _sample_repeats(values: pa.Array) -> bool:
    rows = _SAMPLE_STRETCHES * _SAMPLE_STRETCH_ROWS
    if len(values) <= 2 * rows:
        return True
    step = len(values) // _SAMPLE_STRETCHES
    stretches = [values.slice(i * step, _SAMPLE_STRETCH_ROWS) for i in range(_SAMPLE_STRETCHES)]
    distinct = pc.count_distinct(pa.chunked_array(stretches)).as_py()
    # Of so many words, each as likely as any other, so many come in a sample.
    words_max = format.DICTIONARY_BYTES_MAX / (sum(map(_data_size, stretches)) / rows + 1)
    expected = words_max * -math.expm1(-rows / words_max)
    return bool(distinct <= max(rows * _SAMPLE_DISTINCT_SHARE_MAX, expected))


def _data_size(array: pa.Array) -> int:
    return int(pc.sum(pc.binary_length(array)).as_py() or 0)
