"""A split-block bloom filter over 64-bit hashes of encoded keys.

    hash   63 ───────────── 32 31 ───────────── 0
           which block           which bit in each of its eight 32-bit words

A block has 32 bytes, and the filter begins at a cache line in memory, so one look-up touches one
cache line. A key sets one bit in each of the eight words of its block. To find the bit, the hash's
lower half is multiplied by an odd number that belongs to the word. Bits 27 to 31 of the product are
the number of the bit.

In a file, pages of 64 KB have their own CRC and are read on demand (`PagedBloom`). So looking up
one key reads one page, however large the filter is.

For a key that it contains, the filter always says "maybe". It also says "maybe" for about 1 absent
key in 800 with 16 bits per key, 1 in 185 with 12, and 1 in 30 with 8. `nyala.keys.encoded_keys`
computes the hashes. A filter does not grow: a rowset's keys are known when it is written.

Thread safety: a Bloom is immutable. A PagedBloom loads pages. Two threads that need the same page
may both read it.
Source: F. Putze et al., "Cache-, Hash- and Space-Efficient Bloom Filters", 2007; layout and
multipliers are those of Parquet's BloomFilter.md. Kudu's own filter spreads a key over 4 KiB.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from nyala.cfile import format, kernels

_WORDS: Final = format.BLOOM_BLOCK_BYTES // 4
_SALT: Final = np.array(format.BLOOM_SALT, np.uint32)
_HALF: Final = np.uint64(32)
_LOW: Final = np.uint64(0xFFFFFFFF)
_BIT_SHIFT: Final = np.uint32(27)
_CACHE_LINE_BYTES: Final = 64


class Bloom:
    """A bloom filter in memory: 32-bit words, one row of eight per block."""

    def __init__(self, words: npt.NDArray[np.uint32]) -> None:
        assert words.ndim == 2 and words.shape[1] == _WORDS and len(words) > 0
        self.words: Final = words

    @classmethod
    def build(cls, hashes: npt.NDArray[np.uint64], bits_per_key: int = format.BLOOM_BITS_PER_KEY) -> Bloom:
        """Build a filter with `bits_per_key` bits per key, in whole blocks, at least one.

        Cost: some nanoseconds per key. Without compiled kernels about 40, and 16 bytes of memory
        per key.
        """
        bits_per_block = 8 * format.BLOOM_BLOCK_BYTES
        count = max(1, -(-len(hashes) * bits_per_key // bits_per_block))
        words = np.zeros((count, _WORDS), np.uint32)
        kernels.bloom_insert(np.ascontiguousarray(hashes), _SALT, words)
        return cls(words)

    def may_contain(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Return one bool per hash: False if no inserted key has this hash."""
        blocks, keys = _split(hashes, len(self.words))
        return _matching(self.words[blocks], keys)

    def may_contain_one(self, key_hash: int) -> bool:
        """Return `may_contain` of one hash, by Python arithmetic instead of NumPy calls."""
        return _matches(self.words[_block_of(key_hash, len(self.words))].tolist(), key_hash)

    def to_bytes(self) -> bytes:
        return self.words.tobytes()

    @classmethod
    def from_bytes(cls, data: Any) -> Bloom:
        """Return a filter over the memory of `data`. Raises ValueError if it is not whole blocks."""
        words = np.frombuffer(data, "<u4")
        if len(words) == 0 or len(words) % _WORDS:
            raise ValueError(
                f"expected whole blocks of {format.BLOOM_BLOCK_BYTES} bytes, found {words.nbytes} bytes"
            )
        return cls(words.reshape(-1, _WORDS))


class PagedBloom:
    """A bloom filter in a file. A look-up reads the pages that it needs, and they stay in memory.

    It has the look-ups of a `Bloom`, which also raise whatever `read` raises.
    """

    def __init__(
        self,
        block_count: int,
        page_blocks: int,
        read: Callable[[int, int], npt.NDArray[np.uint32]],
        on_load: Callable[[PagedBloom], None],
    ) -> None:
        """read: returns the 32-bit words of the blocks [lower, upper), which are whole pages.
        on_load: called after pages were loaded, which makes `nbytes` larger.
        """
        self._words = _zero_words(block_count)
        self._page_blocks = page_blocks
        self._loaded = np.zeros(-(-block_count // page_blocks), np.bool_)
        self._read = read
        self._on_load = on_load

    @property
    def nbytes(self) -> int:
        """The bytes of the loaded pages."""
        return int(self._loaded.sum()) * self._page_blocks * format.BLOOM_BLOCK_BYTES

    def may_contain(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Return one bool per hash: False if no inserted key has this hash. Adjacent missing pages
        are read at once.
        """
        blocks, keys = _split(hashes, len(self._words))
        if not self._loaded.all():
            self._load(blocks // self._page_blocks)
        return _matching(self._words[blocks], keys)

    def missing_pages(self, hashes: npt.NDArray[np.uint64]) -> list[int]:
        """Return the pages that `may_contain` of these hashes would load, in ascending order."""
        pages = np.unique(_split(hashes, len(self._words))[0] // self._page_blocks)
        missing: list[int] = pages[~self._loaded[pages]].tolist()
        return missing

    def may_contain_one(self, key_hash: int) -> bool:
        """Return `may_contain` of one hash."""
        block = _block_of(key_hash, len(self._words))
        if not self._loaded[block // self._page_blocks]:
            self._load(np.array([block // self._page_blocks]))
        return _matches(self._words[block].tolist(), key_hash)

    def load_all(self) -> None:
        """Load every page, for callers that would otherwise need them one by one."""
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
    """Return words of `block_count` blocks, all 0, aligned so that no block is in two cache lines.

    The system allocates memory only for the parts that are written.
    """
    size = block_count * format.BLOOM_BLOCK_BYTES
    memory = np.zeros(size + _CACHE_LINE_BYTES, np.uint8)
    start = -memory.ctypes.data % _CACHE_LINE_BYTES
    return memory[start : start + size].view(np.uint32).reshape(block_count, _WORDS)


def _matching(words: npt.NDArray[np.uint32], keys: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
    """Return one bool per key: whether all of its bits are set in its block, a row of `words`."""
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
    """Return (the block, the lower half) of each hash."""
    # Scale the upper half to the block count, by a multiplication. A modulo would need a division.
    blocks = ((hashes >> _HALF) * np.uint64(block_count)) >> _HALF
    return blocks.astype(np.int64), (hashes & _LOW).astype(np.uint32)
