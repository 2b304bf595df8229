"""A split-block bloom filter over 64-bit hashes of encoded keys.

    hash   63 ───────────── 32 31 ───────────── 0
           which block           which bit of each of its eight 32-bit words

A block has 32 bytes, so one look-up touches one cache line and no other. In each of the block's eight words
one bit is set: bits 27..31 of the lower half times that word's odd multiplier.

False answers: never "absent" for a key that was put in; "maybe" for about 1 absent key in 800.
Thread-safety: immutable.
Left out: the hash itself (see `nyala.keys.encoded_keys`), growing (a rowset's keys are known when it is written).
Source: F. Putze et al., "Cache-, Hash- and Space-Efficient Bloom Filters", 2007; Parquet BloomFilter.md, whose
layout and multipliers these are. Kudu's own filter spreads a key over 4 KiB.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from nyala.cfile import format

__all__ = ["Bloom"]

_WORDS: Final = format.BLOOM_BLOCK_BYTES // 4
_SALT: Final = np.array(format.BLOOM_SALT, np.uint32)
_HALF: Final = np.uint64(32)
_LOW: Final = np.uint64(0xFFFFFFFF)
_BIT_SHIFT: Final = np.uint32(27)


class Bloom:
    """The filter's blocks, as words of shape (block count, 8)."""

    def __init__(self, words: npt.NDArray[np.uint32]) -> None:
        assert words.ndim == 2 and words.shape[1] == _WORDS and len(words) > 0
        self._words = words

    @classmethod
    def build(cls, hashes: npt.NDArray[np.uint64]) -> Bloom:
        """A filter of 16 bits a key (in whole blocks, at least one).

        Cost: 16 bytes of memory a key while it is built; about 40 ns a key.
        """
        bits_per_block = 8 * format.BLOOM_BLOCK_BYTES
        count = max(1, -(-len(hashes) * format.BLOOM_BITS_PER_KEY // bits_per_block))
        blocks, keys = _split(hashes, count)
        # One byte for each bit and packing at the end: setting bits of words in place would have to be
        # done one after the other where two keys share a word.
        bits = np.zeros(count * bits_per_block, np.uint8)
        starts = blocks * bits_per_block
        for word in range(_WORDS):
            bits[starts + (32 * word) + ((keys * _SALT[word]) >> _BIT_SHIFT)] = 1
        return cls(np.packbits(bits, bitorder="little").view("<u4").reshape(count, _WORDS))

    def may_contain(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """For each hash: False when no key with it was put in."""
        blocks, keys = _split(hashes, len(self._words))
        masks = np.uint32(1) << ((keys[:, None] * _SALT) >> _BIT_SHIFT)
        found: npt.NDArray[np.bool_] = ((self._words[blocks] & masks) == masks).all(axis=1)
        return found

    def may_contain_one(self, key_hash: int) -> bool:
        """`may_contain` of one hash, without NumPy's calls but for the reading of its block."""
        words: list[int] = self._words[(key_hash >> 32) * len(self._words) >> 32].tolist()
        key = key_hash & 0xFFFFFFFF
        for word, salt in zip(words, format.BLOOM_SALT, strict=True):
            if not word >> ((key * salt & 0xFFFFFFFF) >> 27) & 1:
                return False
        return True

    @property
    def nbytes(self) -> int:
        return self._words.nbytes

    def to_bytes(self) -> bytes:
        return self._words.tobytes()

    @classmethod
    def from_bytes(cls, data: Any) -> Bloom:
        """The inverse of `to_bytes`, over the same memory. Raises ValueError for a part of a block."""
        words = np.frombuffer(data, "<u4")
        if len(words) == 0 or len(words) % _WORDS:
            raise ValueError(
                f"expected whole blocks of {format.BLOOM_BLOCK_BYTES} bytes, found {words.nbytes} bytes"
            )
        return cls(words.reshape(-1, _WORDS))


def _split(
    hashes: npt.NDArray[np.uint64], block_count: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]]:
    # The upper half scaled to the count: a multiplication where a modulo would cost a division.
    blocks = ((hashes >> _HALF) * np.uint64(block_count)) >> _HALF
    return blocks.astype(np.int64), (hashes & _LOW).astype(np.uint32)
