"""The 64-bit hash of an encoded key, for bloom filters: MurmurHash2, 64-bit, variant A, seed 0.

The hash depends only on the key's canonical bytes, not on the layout in memory. Bloom filters on
disk depend on the hash function, so it never changes. (Hash partitioning uses another function,
`nyala.partition.hashing`.) With 64-bit arithmetic, M = 0xC6A4A7935BD1E995 and the result h:

    h = length * M
    each 8 bytes k, little-endian:     k *= M; k ^= k >> 47; k *= M; h ^= k; h *= M
    the 1 to 7 remaining bytes k:      h ^= k; h *= M
    at the end:                        h ^= h >> 47; h *= M; h ^= h >> 47

Source: docs/design/kudu.md, "Hash buckets", with Kudu's test vectors (in Kudu it is the bucket
hash).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from nyala.keys.arrow_memory import overlapping_words

Hashes = npt.NDArray[np.uint64]

_M: Final = np.uint64(0xC6A4A7935BD1E995)
_M_INT: Final = int(_M)
_ALL: Final = 0xFFFF_FFFF_FFFF_FFFF
_R: Final = np.uint64(47)
_WORD: Final = 8


def hash_one(key: bytes) -> int:
    """Return the hash of one key. Uses Python integers, which are faster than NumPy for one key."""
    m, h = _M_INT, len(key) * _M_INT & _ALL
    end = len(key) & ~7
    for at in range(0, end, _WORD):
        k = int.from_bytes(key[at : at + _WORD], "little") * m & _ALL
        h = (h ^ ((k ^ k >> 47) * m)) * m & _ALL
    if end < len(key):
        h = (h ^ int.from_bytes(key[end:], "little")) * m & _ALL
    h = (h ^ h >> 47) * m & _ALL
    return h ^ h >> 47


def _mix(h: Hashes, word: Hashes) -> Hashes:
    k = word * _M
    k ^= k >> _R
    k *= _M
    k ^= h
    k *= _M
    return k


def _finish(h: Hashes) -> Hashes:
    h ^= h >> _R
    h *= _M
    h ^= h >> _R
    return h


def hash_rows(rows: npt.NDArray[np.uint8]) -> Hashes:
    """Return the hashes of keys of equal length.

    rows: a matrix with the bytes of one key in each row.
    """
    count, width = rows.shape
    words = np.zeros((count, -(-width // _WORD)), "<u8")
    words.view(np.uint8)[:, :width] = rows
    h = np.full(count, np.uint64(width * _M_INT & _ALL))
    for at in range(width // _WORD):
        h = _mix(h, words[:, at])
    if width % _WORD:
        h ^= words[:, -1]
        h *= _M
    return _finish(h)


def hash_variable(offsets: npt.NDArray[Any], data: npt.NDArray[np.uint8]) -> Hashes:
    """Return the hashes of keys of any length. Key i is `data[offsets[i]:offsets[i + 1]]`.

    Cost: some NumPy calls per 8 bytes of the longest key.
    """
    starts = offsets[:-1] - offsets[0]
    lengths = np.diff(offsets)
    h = lengths.astype(np.uint64) * _M
    # Padded with zeros, so that a word can be read from any byte.
    padded = np.zeros(int(offsets[-1] - offsets[0]) + _WORD, dtype=np.uint8)
    padded[:-_WORD] = data[offsets[0] : offsets[-1]]
    words = overlapping_words(padded, "<u8")
    full = lengths >> 3
    rows = np.flatnonzero(full)
    at = 0
    while len(rows):
        h[rows] = _mix(h[rows], words[starts[rows] + at * _WORD])
        at += 1
        rows = rows[full[rows] > at]
    tail = lengths & 7
    rows = np.flatnonzero(tail)
    if len(rows):
        mask = (np.uint64(1) << (tail[rows].astype(np.uint64) << np.uint64(3))) - np.uint64(1)
        h[rows] = (h[rows] ^ (words[starts[rows] + (full[rows] << 3)] & mask)) * _M
    return _finish(h)
