"""Dictionary: the distinct values once per column and file, in blocks the index of each.

The dictionary is sorted by bytes, so a range of values is a range of codewords and a block's least and
greatest value are those of its least and greatest codeword. Codewords have 1, 2 or 4 bytes, the fewest that
the dictionary's count allows. In a block they lie in planes, as the deltas of a frame of reference do, or bit-shuffled
where these are a fifth smaller: as in sorted columns, whose codewords are runs. Planes decode about twice as fast.

Whether a column is worth it is decided once per column of a file, from all of its values (Kudu: once per file,
at the block where the dictionary becomes too large; here the whole column is at hand): the dictionary must
keep below `DICTIONARY_BYTES_MAX` and codewords with dictionary must be well below the values' own size. A
sample is looked at first, so that a column of distinct values costs little. Otherwise the column goes plain.
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
from nyala.cfile.encoding.base import BlockEncoder, EncodedValues
from nyala.cfile.encoding.bitshuffle import shuffle_bits, unshuffle_bits
from nyala.cfile.encoding.frame import Frame
from nyala.cfile.encoding.words import words_of
from nyala.cfile.memory import allocate
from nyala.cfile.physical import BYTES, Physical, fill_holes, physical
from nyala.cfile.planes import pack_planes, planes_size
from nyala.schema.types import ColumnType

__all__ = ["CODEWORDS", "Dictionary", "DictionaryEncoder", "codeword_dtype"]

# What codewords are, where they are asked and picked as numbers: Arrow's indices.
CODEWORDS: Final = physical(ColumnType("int32"))

# Eight stretches of 1,024 values: stretches, because values repeat among neighbours when a key sorts them.
_SAMPLE_STRETCHES: Final = 8
_SAMPLE_STRETCH_ROWS: Final = 1024
# Of a sample, if not more: where as many words as a dictionary may have would leave so many distinct.
_SAMPLE_DISTINCT_SHARE_MAX: Final = 0.8
# Codewords and dictionary together, against the values' bytes and one length byte each.
_SIZE_SHARE_MAX: Final = 0.75
# How much larger than bit-shuffled codewords planes may be: as `auto` judges encodings.
_PLANES_SIZE_FACTOR: Final = 1.25


def codeword_dtype(dictionary_count: int) -> np.dtype[Any]:
    """The width of codewords into a dictionary of so many values."""
    return np.dtype("<u1" if dictionary_count <= 1 << 8 else "<u2" if dictionary_count <= 1 << 16 else "<u4")


@dataclass(frozen=True)
class DictionaryEncoder:
    dictionary: pa.Array
    codewords: npt.NDArray[Any]

    def encode(self, lower: int, upper: int) -> pa.Buffer:
        words = self.codewords[lower:upper]
        base = int(words.min())
        bits = (int(words.max()) - base).bit_length()
        size = format.CODEWORDS_HEADER.size + planes_size(bits, len(words))
        shuffled = shuffle_bits(words)
        if size > shuffled.size * _PLANES_SIZE_FACTOR:
            return shuffled
        header = format.CODEWORDS_HEADER.pack(format.CODEWORDS_PLANES, bits, bytes(2), base)
        return pa.py_buffer(header + pack_planes(words - words.dtype.type(base), bits))

    def ends(self, lower: int, upper: int) -> pa.Array:
        """The least and the greatest word of these rows."""
        words = self.codewords[lower:upper]
        return self.dictionary.take(pa.array([words.min(), words.max()]))


class Dictionary:
    """For text and binary with few distinct values."""

    code: Final = format.ENCODING_DICTIONARY
    name: Final = "dictionary"
    compresses: Final = True

    def handles(self, form: Physical) -> bool:
        return form.kind == BYTES

    def prepare(self, form: Physical, values: pa.Array) -> BlockEncoder | None:
        values = fill_holes(values)
        if len(values) == 0 or not _sample_repeats(values):
            return None
        encoded = values.dictionary_encode()
        distinct = encoded.dictionary
        values_size = _data_size(values) + len(values)
        dictionary_size = _data_size(distinct) + len(distinct)
        dtype = codeword_dtype(len(distinct))
        bits = (len(distinct) - 1).bit_length()
        if dictionary_size > format.DICTIONARY_BYTES_MAX:
            return None
        if (
            dictionary_size + planes_size(bits, len(values)) > values_size * _SIZE_SHARE_MAX
            and len(distinct) > 1
        ):
            return None
        # Arrow sorts binary by bytes, and UTF-8 by bytes is the order of text that the contract has.
        order = pc.array_sort_indices(distinct).to_numpy()
        rank = np.empty(len(order), dtype)
        rank[order] = np.arange(len(order), dtype=dtype)
        codewords = rank[encoded.indices.to_numpy(zero_copy_only=False)]
        return DictionaryEncoder(distinct.take(pa.array(order)), codewords)

    def codes(self, block: EncodedValues) -> pa.DictionaryArray:
        """The block as Arrow's dictionary array: 32-bit indices into the column's dictionary, which it shares.

        Raises: as `decode`.
        """
        indices = pa.Array.from_buffers(
            pa.int32(), block.row_count, [block.validity, _indices(block)], block.null_count
        )
        return pa.DictionaryArray.from_arrays(indices, block.dictionary, safe=False)

    def frame(self, block: EncodedValues) -> Frame:
        """The codewords of a block, as they lie. Raises: as `decode`."""
        if not _is_shuffled(block):
            return _in_planes(block).beside(block)
        width = codeword_dtype(_words_count(block)).itemsize
        frame = Frame(CODEWORDS, _unshuffled(block), block.row_count, 0, 0, 1, 8 * width, 0)
        return frame.beside(block)

    def codewords(self, block: EncodedValues) -> pa.Array:
        """The block's codewords in as few bytes as the dictionary needs: what look-ups keep. Raises: as `decode`."""
        dtype = codeword_dtype(_words_count(block))
        if _is_shuffled(block):
            data = _unshuffled(block)
        else:
            data = pa.py_buffer(np.frombuffer(_indices(block), np.int32).astype(dtype))
        type = pa.from_numpy_dtype(dtype)
        return pa.Array.from_buffers(type, block.row_count, [block.validity, data], block.null_count)

    def decode(self, form: Physical, block: EncodedValues) -> pa.Array:
        # Codewords of rows that are NULL are of the empty word, and proved like any other.
        codes = pa.Array.from_buffers(pa.int32(), block.row_count, [None, _indices(block)], 0)
        made = words_of(codes, block.dictionary, format.BLOCK_VALUES_BYTES_MAX)
        if made is None:
            raise ValueError(f"expected at most {format.BLOCK_VALUES_BYTES_MAX} bytes of values, found more")
        if block.validity is None:
            return made
        buffers = [block.validity, *made.buffers()[1:]]
        return pa.Array.from_buffers(made.type, block.row_count, buffers, block.null_count, made.offset)


def _words_count(block: EncodedValues) -> int:
    if block.dictionary is None:
        raise ValueError("expected a dictionary in the column's footer, found none")
    return len(block.dictionary)


def _is_shuffled(block: EncodedValues) -> bool:
    """Raises: ValueError for codewords of another layout than the two."""
    layout = block.data[0] if block.data.size else None
    if layout not in format.CODEWORDS:
        raise ValueError(f"expected codewords of layout {sorted(format.CODEWORDS)}, found {layout}")
    return bool(layout == format.CODEWORDS_SHUFFLED)


def _unshuffled(block: EncodedValues) -> pa.Buffer:
    """Shuffled codewords, compared with the dictionary."""
    count = _words_count(block)
    dtype = codeword_dtype(count)
    words = unshuffle_bits(block.data, block.row_count, dtype.itemsize)
    _check(int(np.frombuffer(words, dtype).max(initial=0)), count)
    return words


def _indices(block: EncodedValues) -> pa.Buffer:
    """The codewords as Arrow's indices of 4 bytes, compared with the dictionary."""
    count, rows = _words_count(block), block.row_count
    out = allocate(4 * rows)
    if _is_shuffled(block):
        width = codeword_dtype(count).itemsize
        words = unshuffle_bits(block.data, rows, width)
        _check(kernels.widen(words, width, np.frombuffer(out, np.int32)), count)
        return out
    kernels.fill([_in_planes(block).rows_into(out, 0, 4, 0, rows)])
    return out


def _in_planes(block: EncodedValues) -> Frame:
    """The codewords of a block in planes as they lie, compared with the dictionary."""
    count, rows = _words_count(block), block.row_count
    start = format.CODEWORDS_HEADER.size
    if block.data.size < start:
        raise ValueError(f"expected a header of {start} bytes before codewords, found {block.data.size}")
    _, bits, _, base = format.CODEWORDS_HEADER.unpack_from(block.data)
    if bits > format.CODEWORDS_BITS_MAX or block.data.size != start + planes_size(bits, rows):
        raise ValueError(
            f"expected {rows} codewords of at most {format.CODEWORDS_BITS_MAX} bits, found {bits} bits in "
            f"{block.data.size} bytes"
        )
    if base + (1 << bits) > count:  # more room than was used, or nonsense: the greatest delta tells
        _check(base + kernels.greatest(block.data, start, bits, rows), count)
    return Frame(CODEWORDS, block.data, rows, base, 0, 1, bits, start)


def _check(greatest: int, words_count: int) -> None:
    if greatest >= words_count:
        raise ValueError(f"expected codewords below {words_count}, found {greatest}")


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
