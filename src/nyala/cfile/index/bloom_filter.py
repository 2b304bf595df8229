"""A split-block bloom filter over 64-bit hashes of encoded keys.

    hash   63 ───────────── 32 31 ───────────── 0
           which block           which bit in each of its eight 32-bit words

A block has 32 bytes, and no block is in two cache lines of memory, so one look-up touches one cache
line. A key sets one bit in each of the eight words of its block. To find the bit, the hash's lower
half is multiplied by an odd number, which is different for each word. Bits 27 to 31 of the product
are the number of the bit.

In a file, pages of 64 KB have their own CRC and are read on demand (`BloomFilter`). So looking up
one key reads one page, however large the filter is.

For a key that was inserted, the filter always says "maybe". It also says "maybe" for some absent
keys: about 1 in 800 with 16 bits per key, 1 in 185 with 12, and 1 in 30 with 8.
`nyala.keys.encoded_keys` computes the hashes. A filter does not grow, because all keys of a rowset
are known when it is written.

Thread safety: any thread may look up keys. Two threads that need the same page may both read it.
Source: F. Putze et al., "Cache-, Hash- and Space-Efficient Bloom Filters", 2007; layout and
multipliers are those of Parquet's BloomFilter.md. Kudu's own filter spreads a key over 4 KiB.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from nyala.cfile import format, kernels

_WORDS: Final = format.BLOOM_BLOCK_BYTES // 4
_SALT: Final = np.array(format.BLOOM_SALT, np.uint32)
_HALF: Final = np.uint64(32)
_LOW: Final = np.uint64(0xFFFFFFFF)
_BIT_SHIFT: Final = np.uint32(27)
_CACHE_LINE_BYTES: Final = 64


def bloom_words(
    hashes: npt.NDArray[np.uint64], bits_per_key: int = format.BLOOM_BITS_PER_KEY
) -> npt.NDArray[np.uint32]:
    """Return a bloom filter that contains these hashes, as a matrix of 32-bit words.

    Each row of the matrix is one block of the filter: eight words.

    hashes: one per key.
    bits_per_key: the size of the filter. More bits give fewer wrong answers.
    Cost: some nanoseconds per key. Without compiled kernels, about 40 ns and 16 bytes of memory.
    """
    bits_per_block = 8 * format.BLOOM_BLOCK_BYTES
    words = np.zeros((max(1, -(-len(hashes) * bits_per_key // bits_per_block)), _WORDS), np.uint32)
    kernels.bloom_insert(np.ascontiguousarray(hashes), _SALT, words)
    return words


class BloomFilter:
    """A bloom filter in a file. A look-up reads the pages that it needs, and they stay in memory.

    A page consists of adjacent blocks of the filter. A block has 32 bytes.

    Look-ups raise the errors of the `read` function that was passed to the constructor.
    """

    def __init__(
        self,
        block_count: int,
        page_blocks: int,
        read: Callable[[int, int], npt.NDArray[np.uint32]],
        on_load: Callable[[BloomFilter], None],
    ) -> None:
        """block_count, page_blocks: the number of blocks in the filter, and in a page.
        read: returns the 32-bit words of the blocks [lower, upper), which are whole pages.
        on_load: called with this filter after it loaded pages, because `nbytes` is larger then.
        """
        self._words = _zero_words(block_count)
        self._page_blocks = page_blocks
        self._loaded = np.zeros(-(-block_count // page_blocks), np.bool_)
        self._read = read
        self._on_load = on_load

    @property
    def nbytes(self) -> int:
        """The number of bytes of the filter that were read from the file, and are in memory now."""
        return int(self._loaded.sum()) * self._page_blocks * format.BLOOM_BLOCK_BYTES

    def may_contain(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Return one bool per hash: False if certainly no inserted key has this hash.

        Loads the pages that it needs, adjacent pages with one read.
        """
        blocks, keys = _split(hashes, len(self._words))
        if not self._loaded.all():
            self._load(blocks // self._page_blocks)
        masks = np.uint32(1) << ((keys[:, None] * _SALT) >> _BIT_SHIFT)
        found: npt.NDArray[np.bool_] = ((self._words[blocks] & masks) == masks).all(axis=1)
        return found

    def missing_pages(self, hashes: npt.NDArray[np.uint64]) -> list[int]:
        """Return the numbers of the pages that `may_contain(hashes)` would load, ascending."""
        pages = np.unique(_split(hashes, len(self._words))[0] // self._page_blocks)
        missing: list[int] = pages[~self._loaded[pages]].tolist()
        return missing

    def may_contain_one(self, key_hash: int) -> bool:
        """Return False if certainly no inserted key has this hash. Faster than `may_contain`."""
        # For one hash, Python integers are faster than NumPy.
        block = (key_hash >> 32) * len(self._words) >> 32
        if not self._loaded[block // self._page_blocks]:
            self._load(np.array([block // self._page_blocks]))
        words, key = self._words[block].tolist(), key_hash & 0xFFFFFFFF
        return all(
            word >> ((key * salt & 0xFFFFFFFF) >> 27) & 1
            for word, salt in zip(words, format.BLOOM_SALT, strict=True)
        )

    def load_all(self) -> None:
        """Load every page with few reads, for callers that will look up many keys."""
        self._load(np.arange(len(self._loaded)))

    def _load(self, pages: npt.NDArray[np.int64]) -> None:
        missing = np.unique(pages[~self._loaded[pages]])
        if not len(missing):
            return
        for run in np.split(missing, np.flatnonzero(np.diff(missing) > 1) + 1):
            lower = int(run[0]) * self._page_blocks
            upper = min((int(run[-1]) + 1) * self._page_blocks, len(self._words))
            self._words[lower:upper] = self._read(lower, upper)
            self._loaded[run] = True  # only after its words are in place
        self._on_load(self)


def _zero_words(block_count: int) -> npt.NDArray[np.uint32]:
    """Return an array of zeros for the words of `block_count` blocks of a bloom filter.

    The array begins at a cache line, so that no block is in two cache lines. The operating system
    allocates memory only for pages that are written later.
    """
    size = block_count * format.BLOOM_BLOCK_BYTES
    memory = np.zeros(size + _CACHE_LINE_BYTES, np.uint8)
    start = -memory.ctypes.data % _CACHE_LINE_BYTES
    return memory[start : start + size].view(np.uint32).reshape(block_count, _WORDS)


def _split(
    hashes: npt.NDArray[np.uint64], block_count: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]]:
    """Return (block numbers, lower halves) of the hashes."""
    # Scale the upper half to the block count, by a multiplication. A modulo would need a division.
    blocks = ((hashes >> _HALF) * np.uint64(block_count)) >> _HALF
    return blocks.astype(np.int64), (hashes & _LOW).astype(np.uint32)
