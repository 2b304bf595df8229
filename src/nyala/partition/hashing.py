"""The hash of hash partitions: the same as `hash()` of Spark, for whole columns and for one row.

    h = seed
    for each column of the level:  h = murmur3_x86_32(bytes of the value, seed=h)
    bucket = h mod buckets (never negative)

    column                        hashed as
    int8, int16, int32, date      one 32-bit word
    int64, timestamp              two words, the low one first
    decimal of <= 18 digits       its integer (1.50 is 150), as two words, the low one first
    string, varchar, binary       the bytes
    decimal of > 18 digits        its integer, as the fewest bytes that can hold it, highest first

The integer of a decimal has all its digits, without the point. Four bytes form a word, the least
significant byte first. Bytes that remain at the end differ from Murmur3: Spark makes a word of each
such byte, by extending its sign, and mixes it like the others.

So Spark can compute the bucket of a row itself: `pmod(hash(columns), buckets)`, after a cast to the
types of the table. Never change this function, because it decided the tablet of each stored row.
Another function needs another name in the catalogue.

NULL, bool, float and double are not supported, because key columns cannot have them.
Source: Spark's `Murmur3Hash` expression and `Murmur3_x86_32.hashUnsafeBytes`; docs/design/spark.md,
"What Spark offers a Python data source".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.keys.arrow_memory import binary_view, fixed_view, overlapping_words
from nyala.schema.types import ColumnType

__all__ = ["ALGORITHM", "DEFAULT_SEED", "bucket_of", "buckets_of", "murmur3_bytes", "spark_hash"]

Words = npt.NDArray[np.uint32]

ALGORITHM: Final = "spark-murmur3"
DEFAULT_SEED: Final = 42  # Spark's

_DECIMAL_LONG_DIGITS: Final = 18
_WORD: Final = 0xFFFF_FFFF


def spark_hash(
    arrays: Sequence[pa.Array], types: Sequence[ColumnType], seed: int = DEFAULT_SEED
) -> npt.NDArray[np.int32]:
    """Return the result of `pyspark.sql.functions.hash` for each row.

    arrays: one per column, without NULL, in canonical form (`nyala.schema.types`).
    Cost: about thirty NumPy calls per column. For text about twenty more per four bytes of the
    longest value.
    """
    assert arrays and len(arrays) == len(types)
    h = np.full(len(arrays[0]), seed & 0xFFFF_FFFF, dtype=np.uint32)
    for array, type in zip(arrays, types, strict=True):
        assert array.null_count == 0 and array.type == type.arrow
        h = _hash_column(array, type, h)
    return h.view(np.int32)


def buckets_of(
    arrays: Sequence[pa.Array], types: Sequence[ColumnType], buckets: int, seed: int = DEFAULT_SEED
) -> npt.NDArray[np.int32]:
    """Return the bucket of each row, 0 <= bucket < buckets: Spark's `pmod(hash(columns), buckets)`."""
    # The remainder of NumPy has the sign of the divisor, and so has pmod.
    return np.remainder(spark_hash(arrays, types, seed), np.int32(buckets))


def bucket_of(
    values: Sequence[Any], types: Sequence[ColumnType], buckets: int, seed: int = DEFAULT_SEED
) -> int:
    """Return the bucket of one row, given as canonical values (`nyala.schema.types`).

    The result equals that of `buckets_of`. For one row this function is faster: it takes 6 µs for a
    number and 10 µs for a short text, instead of 115 and 295 µs.
    """
    h = seed & _WORD
    for value, type in zip(values, types, strict=True):
        if type.is_variable:
            h = _hash_bytes(value.encode() if isinstance(value, str) else value, h)
        elif type.precision is not None and type.precision > _DECIMAL_LONG_DIGITS:
            # The fewest bytes with room for the sign: 127 and -128 take one byte, 128 and -129 take
            # two.
            size = (value if value >= 0 else ~value).bit_length() // 8 + 1
            h = _hash_bytes(value.to_bytes(size, "big", signed=True), h)
        elif type.name == "decimal" or type.storage_width_bytes == 8:
            h = _finish_one(_mix_one(_mix_one(h, value & _WORD), value >> 32 & _WORD), 8)
        else:
            h = _finish_one(_mix_one(h, value & _WORD), 4)
    return (h - ((h >> 31) << 32)) % buckets


def _hash_bytes(raw: bytes, h: int) -> int:
    whole = len(raw) & ~3
    for at in range(0, whole, 4):
        h = _mix_one(h, int.from_bytes(raw[at : at + 4], "little"))
    for byte in raw[whole:]:
        h = _mix_one(h, byte if byte < 0x80 else byte | 0xFFFF_FF00)
    return _finish_one(h, len(raw))


def _mix_one(h: int, word: int) -> int:
    """Mix one 32-bit word into the hash `h` of one row; `_mix` does this for many rows."""
    k = word * 0xCC9E2D51 & _WORD
    k = (k << 15 | k >> 17) & _WORD
    k = (k * 0x1B873593 & _WORD) ^ h
    k = (k << 13 | k >> 19) & _WORD
    return k * 5 + 0xE6546B64 & _WORD


def _finish_one(h: int, length_bytes: int) -> int:
    """Do the last step of Murmur3 for one value, and return its hash.

    h: the hash after all 32-bit words of the value were mixed in.
    length_bytes: the length of the value.
    """
    h ^= length_bytes
    h = (h ^ h >> 16) * 0x85EBCA6B & _WORD
    h = (h ^ h >> 13) * 0xC2B2AE35 & _WORD
    return h ^ h >> 16


def _hash_column(array: pa.Array, type: ColumnType, h: Words) -> Words:
    if type.is_variable:
        offsets, data = binary_view(array)
        return murmur3_bytes(data, offsets[:-1].astype(np.int64), np.diff(offsets).astype(np.int64), h)
    if type.name == "decimal":
        assert type.precision is not None
        if type.precision > _DECIMAL_LONG_DIGITS:
            return murmur3_bytes(*_big_integer_bytes(array), h)
        # Arrow stores every decimal in 16 bytes; a value of at most 18 digits fits in the low
        # eight.
        low, high = (fixed_view(array, "<u4", stride_bytes=16, at=at) for at in (0, 4))
        return _finish(_mix(_mix(h, low), high), np.uint32(8))
    if type.storage_width_bytes == 8:
        low, high = (fixed_view(array, "<u4", stride_bytes=8, at=at) for at in (0, 4))
        return _finish(_mix(_mix(h, low), high), np.uint32(8))
    values = fixed_view(array, f"<i{type.storage_width_bytes}").astype(np.int32)
    return _finish(_mix(h, values.view(np.uint32)), np.uint32(4))


def murmur3_bytes(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], seeds: Words
) -> Words:
    """Hash the bytes `data[starts[i]:starts[i] + lengths[i]]` with the seed `seeds[i]`, for each i.

    Cost: some NumPy calls per word of the longest value; their number does not depend on the rows.
    """
    h = seeds.copy()
    full = lengths >> 2
    rows = np.flatnonzero(full)
    if len(rows):
        words = overlapping_words(data, "<u4")
        at = 0
        while len(rows):
            h[rows] = _mix(h[rows], words[starts[rows] + 4 * at])
            at += 1
            rows = rows[full[rows] > at]
    tail, tail_starts = lengths & 3, starts + (full << 2)
    for i in range(3):
        rows = np.flatnonzero(tail > i)
        byte = data[tail_starts[rows] + i].view(np.int8)
        h[rows] = _mix(h[rows], byte.astype(np.int32).view(np.uint32))
    return _finish(h, lengths.astype(np.uint32))


def _big_integer_bytes(
    array: pa.Array,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the bytes of decimals with more than 18 digits as (data, starts, lengths).

    The bytes of a value are those of Java's BigInteger.
    """
    count = len(array)
    rows = np.empty((count, 2), dtype=">u8")
    rows[:, 0] = fixed_view(array, "<u8", stride_bytes=16, at=8)
    rows[:, 1] = fixed_view(array, "<u8", stride_bytes=16)
    data = rows.view(np.uint8).reshape(count, 16)
    # With negative values inverted, the leading bytes that are not needed are zero for both signs.
    turned = data ^ np.where(data[:, :1] >= 0x80, np.uint8(0xFF), np.uint8(0))
    turned[:, 15] |= 1  # 0 and -1 also take one byte
    first = np.argmax(turned != 0, axis=1)
    # The first bit is the sign. If the value itself needs this bit, it takes one more byte.
    first -= turned[np.arange(count), first] >= 0x80
    return data.reshape(-1), np.arange(0, 16 * count, 16) + first, 16 - first


def _mix(h: Words, word: npt.NDArray[Any]) -> Words:
    """Mix one word per row into the hashes: mixK1 and mixH1 of Murmur3. Returns a new array."""
    k: Words = word * np.uint32(0xCC9E2D51)
    k = (k << np.uint32(15)) | (k >> np.uint32(17))
    k *= np.uint32(0x1B873593)
    k ^= h
    k = (k << np.uint32(13)) | (k >> np.uint32(19))
    k *= np.uint32(5)
    k += np.uint32(0xE6546B64)
    return k


def _finish(h: Words, length_bytes: Any) -> Words:
    """Do the last step of Murmur3 (fmix) for many hashes, in place."""
    h ^= length_bytes
    h ^= h >> np.uint32(16)
    h *= np.uint32(0x85EBCA6B)
    h ^= h >> np.uint32(13)
    h *= np.uint32(0xC2B2AE35)
    h ^= h >> np.uint32(16)
    return h
