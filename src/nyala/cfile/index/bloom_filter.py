"""A split-block bloom filter over 64-bit hashes of encoded keys.

    hash   63 ───────────── 32 31 ───────────── 0
           which block           which bit of each of its eight 32-bit words

A block has 32 bytes, and a file's filter begins in memory where a cache line does, so one look-up touches one cache
line and no other. In each of the block's eight words one bit is set: bits 27..31 of the lower half times that word's
odd multiplier.

    pages   |  64 KB  |  64 KB  |  …     a file's filter has a CRC for each, and is read by pages (`PagedBloom`): one
                                         key costs one of them, however many keys the rowset has

False answers: never "absent" for a key that was put in; "maybe" for about 1 absent key in 800 with 16 bits a key, 1 in
185 with 12, 1 in 30 with 8.
Thread-safety: a Bloom is immutable; a PagedBloom gains pages, and two threads that need one may both read it.
Left out: the hash itself (see `nyala.keys.encoded_keys`), growing (a rowset's keys are known when it is written).
Source: F. Putze et al., "Cache-, Hash- and Space-Efficient Bloom Filters", 2007; Parquet BloomFilter.md, whose
layout and multipliers these are. Kudu's own filter spreads a key over 4 KiB.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from nyala.cfile import format, kernels

__all__ = ["Bloom", "PagedBloom"]

_WORDS: Final = format.BLOOM_BLOCK_BYTES // 4
_SALT: Final = np.array(format.BLOOM_SALT, np.uint32)
_HALF: Final = np.uint64(32)
_LOW: Final = np.uint64(0xFFFFFFFF)
_BIT_SHIFT: Final = np.uint32(27)
_CACHE_LINE_BYTES: Final = 64


class Bloom:
    """The filter's blocks, as words of shape (block count, 8)."""

    def __init__(self, words: npt.NDArray[np.uint32]) -> None:
        assert words.ndim == 2 and words.shape[1] == _WORDS and len(words) > 0
        self._words = words

    @classmethod
    def build(cls, hashes: npt.NDArray[np.uint64], bits_per_key: int = format.BLOOM_BITS_PER_KEY) -> Bloom:
        """A filter of so many bits a key (in whole blocks, at least one).

        Cost: a few nanoseconds a key; without compiled kernels about 40, and 16 bytes of memory a key.
        """
        bits_per_block = 8 * format.BLOOM_BLOCK_BYTES
        count = max(1, -(-len(hashes) * bits_per_key // bits_per_block))
        words = np.zeros((count, _WORDS), np.uint32)
        kernels.put_in(np.ascontiguousarray(hashes), _SALT, words)
        return cls(words)

    def may_contain(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """For each hash: False when no key with it was put in."""
        blocks, keys = _split(hashes, len(self._words))
        return _matching(self._words[blocks], keys)

    def may_contain_one(self, key_hash: int) -> bool:
        """`may_contain` of one hash, without NumPy's calls but for the reading of its block."""
        return _matches(self._words[_block_of(key_hash, len(self._words))].tolist(), key_hash)

    @property
    def words(self) -> npt.NDArray[np.uint32]:
        return self._words

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


class PagedBloom:
    """A filter in a file: pages of it are read when a look-up first needs them, and kept.

    Asks as a `Bloom` does. What `read` raises, its look-ups raise.
    """

    def __init__(
        self,
        block_count: int,
        page_blocks: int,
        read: Callable[[int, int], npt.NDArray[np.uint32]],
        grown: Callable[[PagedBloom], None],
    ) -> None:
        """read: the words of the blocks [lower, upper), whole pages. grown: told when pages came and `nbytes` rose."""
        self._words = _no_words_yet(block_count)
        self._page_blocks = page_blocks
        self._there = np.zeros(-(-block_count // page_blocks), np.bool_)
        self._read = read
        self._grown = grown

    @property
    def nbytes(self) -> int:
        """Of the pages that were read."""
        return int(self._there.sum()) * self._page_blocks * format.BLOOM_BLOCK_BYTES

    def may_contain(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """For each hash: False when no key with it was put in. Cost: the pages that are needed, neighbours together."""
        blocks, keys = _split(hashes, len(self._words))
        if not self._there.all():
            self._need(blocks // self._page_blocks)
        return _matching(self._words[blocks], keys)

    def may_contain_one(self, key_hash: int) -> bool:
        """`may_contain` of one hash."""
        block = _block_of(key_hash, len(self._words))
        if not self._there[block // self._page_blocks]:
            self._need(np.array([block // self._page_blocks]))
        return _matches(self._words[block].tolist(), key_hash)

    def read_all(self) -> None:
        """Have every page, for who would need them one after the other."""
        self._need(np.arange(len(self._there)))

    def _need(self, pages: npt.NDArray[np.int64]) -> None:
        missing = np.unique(pages[~self._there[pages]])
        if not len(missing):
            return
        for run in np.split(missing, np.flatnonzero(np.diff(missing) > 1) + 1):
            lower = int(run[0]) * self._page_blocks
            upper = min((int(run[-1]) + 1) * self._page_blocks, len(self._words))
            self._words[lower:upper] = self._read(lower, upper)
            self._there[run] = True  # not before its words are
        self._grown(self)


def _no_words_yet(block_count: int) -> npt.NDArray[np.uint32]:
    """The words of so many blocks, all 0, from the beginning of a cache line on: or a block may lie in two of them.

    Of what is not written no memory is taken.
    """
    size = block_count * format.BLOOM_BLOCK_BYTES
    memory = np.zeros(size + _CACHE_LINE_BYTES, np.uint8)
    start = -memory.ctypes.data % _CACHE_LINE_BYTES
    return memory[start : start + size].view(np.uint32).reshape(block_count, _WORDS)


def _matching(words: npt.NDArray[np.uint32], keys: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
    """Of each key whether its block, a row of `words`, has all its bits."""
    masks = np.uint32(1) << ((keys[:, None] * _SALT) >> _BIT_SHIFT)
    found: npt.NDArray[np.bool_] = ((words & masks) == masks).all(axis=1)
    return found


def _matches(words: list[int], key_hash: int) -> bool:
    key = key_hash & 0xFFFFFFFF
    for word, salt in zip(words, format.BLOOM_SALT, strict=True):
        if not word >> ((key * salt & 0xFFFFFFFF) >> 27) & 1:
            return False
    return True


def _block_of(key_hash: int, block_count: int) -> int:
    return (key_hash >> 32) * block_count >> 32


def _split(
    hashes: npt.NDArray[np.uint64], block_count: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]]:
    # The upper half scaled to the count: a multiplication where a modulo would cost a division.
    blocks = ((hashes >> _HALF) * np.uint64(block_count)) >> _HALF
    return blocks.astype(np.int64), (hashes & _LOW).astype(np.uint32)
