"""Dictionary: the distinct values once per column and file, in blocks the index of each, bit-shuffled.

The dictionary is sorted by bytes, so a range of values is a range of codewords and a block's least and
greatest value are those of its least and greatest codeword. Codewords have 1, 2 or 4 bytes, the fewest that
the dictionary's count allows.

Whether a column is worth it is decided once per column of a file, from all of its values (Kudu: once per file,
at the block where the dictionary becomes too large; here the whole column is at hand): the dictionary must
keep below `DICTIONARY_BYTES_MAX` and codewords with dictionary must be well below the values' own size. A
sample is looked at first, so that a column of distinct values costs little. Otherwise the column goes plain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from nyala.cfile import format, kernels
from nyala.cfile.encoding.base import BlockEncoder, EncodedValues
from nyala.cfile.encoding.bitshuffle import shuffle_bits, unshuffle_bits
from nyala.cfile.memory import allocate, pool
from nyala.cfile.physical import BYTES, Physical, binary_offsets, fill_holes

__all__ = ["Dictionary", "codeword_dtype"]

# Eight stretches of 4,096 values: stretches, because values repeat among neighbours when a key sorts them.
_SAMPLE_STRETCHES: Final = 8
_SAMPLE_STRETCH_ROWS: Final = 4096
_SAMPLE_DISTINCT_SHARE_MAX: Final = 0.8
# Codewords and dictionary together, against the values' bytes and one length byte each.
_SIZE_SHARE_MAX: Final = 0.75


def codeword_dtype(dictionary_count: int) -> np.dtype[Any]:
    """The width of codewords into a dictionary of so many values."""
    return np.dtype("<u1" if dictionary_count <= 1 << 8 else "<u2" if dictionary_count <= 1 << 16 else "<u4")


@dataclass(frozen=True)
class _DictionaryEncoder:
    dictionary: pa.Array
    codewords: npt.NDArray[Any]

    def encode(self, lower: int, upper: int) -> pa.Buffer:
        return shuffle_bits(self.codewords[lower:upper])


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
        if dictionary_size > format.DICTIONARY_BYTES_MAX:
            return None
        if (
            dictionary_size + len(values) * dtype.itemsize > values_size * _SIZE_SHARE_MAX
            and len(distinct) > 1
        ):
            return None
        # Arrow sorts binary by bytes, and UTF-8 by bytes is the order of text that the contract has.
        order = pc.array_sort_indices(distinct).to_numpy()
        rank = np.empty(len(order), dtype)
        rank[order] = np.arange(len(order), dtype=dtype)
        codewords = rank[encoded.indices.to_numpy(zero_copy_only=False)]
        return _DictionaryEncoder(distinct.take(pa.array(order)), codewords)

    def codes(self, block: EncodedValues) -> pa.DictionaryArray:
        """The block as Arrow's dictionary array: 32-bit indices into the column's dictionary, which it shares.

        Raises: as `decode`.
        """
        codewords, width, words_count = self._unshuffled(block)
        wide = allocate(4 * block.row_count)
        _check(kernels.widen(codewords, width, np.frombuffer(wide, np.int32)), words_count)
        indices = pa.Array.from_buffers(pa.int32(), block.row_count, [block.validity, wide], block.null_count)
        return pa.DictionaryArray.from_arrays(indices, block.dictionary, safe=False)

    def codewords(self, block: EncodedValues) -> pa.Array:
        """The block's codewords in as few bytes as they have on disk: what look-ups keep. Raises: as `decode`."""
        words, data = self._words(block)
        type = pa.from_numpy_dtype(words.dtype)
        return pa.Array.from_buffers(type, block.row_count, [block.validity, data], block.null_count)

    @staticmethod
    def _unshuffled(block: EncodedValues) -> tuple[pa.Buffer, int, int]:
        """(the block's codewords, bytes of each, how many words the dictionary has)."""
        if block.dictionary is None:
            raise ValueError("expected a dictionary in the column's footer, found none")
        width = codeword_dtype(len(block.dictionary)).itemsize
        return unshuffle_bits(block.data, block.row_count, width), width, len(block.dictionary)

    @classmethod
    def _words(cls, block: EncodedValues) -> tuple[npt.NDArray[Any], pa.Buffer]:
        """The block's codewords, compared with the dictionary, and the bytes they lie in."""
        codewords, width, words_count = cls._unshuffled(block)
        words = np.frombuffer(codewords, f"<u{width}")
        _check(int(words.max(initial=0)), words_count)
        return words, codewords

    def decode(self, form: Physical, block: EncodedValues) -> pa.Array:
        words, codewords = self._words(block)
        assert block.dictionary is not None
        lengths = np.diff(binary_offsets(block.dictionary))
        if block.row_count * int(lengths.max()) > format.BLOCK_VALUES_BYTES_MAX:
            # Possible, but is it so? Only then the values are counted one by one.
            size = int(lengths[words].sum(dtype=np.int64))
            if size > format.BLOCK_VALUES_BYTES_MAX:
                raise ValueError(
                    f"expected at most {format.BLOCK_VALUES_BYTES_MAX} bytes of values, found {size}"
                )
        indices = pa.Array.from_buffers(
            pa.from_numpy_dtype(words.dtype), block.row_count, [block.validity, codewords], block.null_count
        )
        return pc.take(block.dictionary, indices, boundscheck=False, memory_pool=pool())


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
    return bool(distinct <= rows * _SAMPLE_DISTINCT_SHARE_MAX)


def _data_size(array: pa.Array) -> int:
    return int(pc.sum(pc.binary_length(array)).as_py() or 0)
