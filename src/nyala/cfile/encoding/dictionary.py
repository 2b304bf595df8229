"""Dictionary: stores the distinct values once per column and file, and a code per row in blocks.

A code is the position of a value in the dictionary. The dictionary is sorted by bytes. So a range
of values is a range of codes, and a block's least and greatest codes belong to its least and
greatest values.

A block bit-packs its codes like the deltas of a frame of reference. If bit-shuffled codes are at
least a fifth smaller (for example long runs in a sorted column), the block contains bit-shuffled
codes of 1, 2 or 4 bytes instead. Packed codes decode about twice as fast.

All values of a column together decide whether the column gets a dictionary in this file. (In Kudu,
blocks use the dictionary until it becomes too large.) The dictionary must not exceed
`DICTIONARY_BYTES_MAX`, and codes plus dictionary must be well below the size of the values. A
sample is checked first, so a column of distinct values costs little. A column without dictionary
gets another encoding.
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
from nyala.cfile.physical import Physical

# A sample of eight runs of 1,024 adjacent values, because values often repeat among neighbours in
# key order.
_SAMPLE_RUNS: Final = 8
_SAMPLE_RUN_ROWS: Final = 1024
# The largest share of distinct values in a sample, unless even the largest allowed dictionary would
# have more values in the sample.
_SAMPLE_DISTINCT_SHARE_MAX: Final = 0.8
# The largest size of codes and dictionary, as a share of the size of the values plus one length
# byte each.
_SIZE_SHARE_MAX: Final = 0.75
# Bit-packed codes may be larger than bit-shuffled ones by this factor, which is the one of 'auto'.
_PACKED_SIZE_FACTOR: Final = 1.25


def _code_dtype(entry_count: int) -> np.dtype[Any]:
    """Return the narrowest integer type for codes of a dictionary with `entry_count` entries."""
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

    def bounds(self, lower: int, upper: int) -> pa.Array:
        # Codes have the order of the values, and comparing numbers is ten times as fast as
        # comparing text.
        codes = self.codes[lower:upper]
        assert self.dictionary is not None
        return self.dictionary.take(pa.array([codes.min(), codes.max()]))


class Dictionary(Encoding):
    """An encoding for text and binary columns with few distinct values."""

    code = format.ENCODING_DICTIONARY
    name = "dictionary"
    compresses = True
    uses_dictionary = True

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
        # Arrow sorts binary by bytes. The order of text is the order of its UTF-8 bytes.
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
    """Parse the codes of a block, and check that all are below `entry_count`."""
    data, rows = block.data, block.row_count
    layout = data[0] if data.size else None
    if layout == format.CODES_SHUFFLED:
        dtype = _code_dtype(entry_count)
        codes = unshuffle_bits(data, rows, dtype.itemsize)
        _check(int(np.frombuffer(codes, dtype).max(initial=0)), entry_count)
        return Frame(CODES, codes, rows, 0, 0, 1, 8 * dtype.itemsize, 0)
    if layout != format.CODES_PACKED:
        raise ValueError(f"expected dictionary codes of layout {sorted(format.CODES)}, found {layout}")
    start = format.CODES_HEADER.size
    if data.size < start:
        raise ValueError(f"expected a header of {start} bytes before the codes, found {data.size}")
    _, bits, _, base = format.CODES_HEADER.unpack_from(data)
    if bits > format.CODES_BITS_MAX or data.size != start + packed_size(bits, rows):
        raise ValueError(
            f"expected {rows} codes of at most {format.CODES_BITS_MAX} bits, found {bits} bits in {data.size} bytes"
        )
    if base + (1 << bits) > entry_count:  # the bits allow codes without an entry, so compute the maximum
        _check(base + kernels.max_delta(data, start, bits, rows), entry_count)
    return Frame(CODES, data, rows, base, 0, 1, bits, start)


def _check(greatest: int, entry_count: int) -> None:
    if greatest >= entry_count:
        raise ValueError(f"expected codes below {entry_count}, found {greatest}")


def _sample_repeats(values: pa.Array) -> bool:
    rows = _SAMPLE_RUNS * _SAMPLE_RUN_ROWS
    if len(values) <= 2 * rows:
        return True
    step = len(values) // _SAMPLE_RUNS
    runs = [values.slice(i * step, _SAMPLE_RUN_ROWS) for i in range(_SAMPLE_RUNS)]
    distinct = pc.count_distinct(pa.chunked_array(runs)).as_py()
    # The expected number of distinct values in the sample, if the column has the largest allowed
    # dictionary and all entries are equally frequent.
    entries_max = format.DICTIONARY_BYTES_MAX / (sum(map(_data_size, runs)) / rows + 1)
    expected = entries_max * -math.expm1(-rows / entries_max)
    return bool(distinct <= max(rows * _SAMPLE_DISTINCT_SHARE_MAX, expected))


def _data_size(array: pa.Array) -> int:
    return int(pc.sum(pc.binary_length(array)).as_py() or 0)
