"""The hash of hash partitions equals that of Spark.

The expected numbers were computed by Spark. tests/spark compares with Spark itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nyala.keys.arrow_memory import array_of_canonical
from nyala.partition.hashing import bucket_of, buckets_of, murmur3_bytes, spark_hash
from nyala.schema.types import ColumnType, parse_type

# (type, canonical value, what hash(value) is in Spark 4.3)
GOLDEN = [
    ("int8", -128, 1110053733),
    ("int8", 127, 1135925485),
    ("int16", -2, -1160545675),
    ("int32", 0, 933211791),
    ("int32", -1, -1604776387),
    ("int32", 2147483647, 133916647),
    ("int64", 0, -1670924195),
    ("int64", -1, -939490007),
    ("int64", 9223372036854775807, -1604625029),
    ("date", -719162, -1147107224),
    ("date", 19723, -456589419),
    ("timestamp", 0, -1670924195),
    ("timestamp", -1, -939490007),
    ("timestamp", 1356998400000000, -1715587102),
    ("decimal(5,2)", -1, -939490007),
    ("decimal(9,0)", 999999999, -193774131),
    ("decimal(15,2)", -123456789012345, -1001797297),
    ("decimal(18,0)", 1, -1712319331),
    ("decimal(19,0)", 0, -783713497),
    ("decimal(20,0)", -1, 1398487324),
    ("decimal(20,0)", 127, 1185089389),
    ("decimal(20,0)", 128, -544401882),
    ("decimal(20,0)", -128, 775851899),
    ("decimal(20,0)", -129, -771458971),
    ("decimal(38,10)", 10**38 - 1, -817514053),
    ("decimal(38,10)", 1 - 10**38, 1400911110),
    ("string", "", 142593372),
    ("string", "a", 1485273170),
    ("string", "ab", -97053317),
    ("string", "abc", 1322437556),
    ("string", "abcd", -396302900),
    ("string", "abcde", 814637928),
    ("string", "é€🐎", -27937786),
    ("varchar(9)", "UA", 2450805),
    ("binary", b"", 142593372),
    ("binary", b"\x00", -783713497),
    ("binary", b"\xff\xfe\xfd", -1550104651),
    ("binary", b"\x80\x81\x82\x83\x84\x85\x86", 238255614),
]
GOLDEN_COMPOSITES = [
    (["string", "int32", "timestamp"], ["UA", -7, 1356998400000000], -1205340568),
    (["string", "string"], ["", "a"], 1169967086),
    (["string", "string"], ["a", ""], 712074092),
    (["decimal(20,2)", "date", "binary"], [-300, -1, b"\xff"], 2109242276),
    (["int8", "int16", "int32", "int64"], [1, 2, 3, 4], 1386196721),
]


@pytest.mark.parametrize(("name", "value", "expected"), GOLDEN)
def test_hashes_of_single_columns_equal_those_of_spark(name: str, value: Any, expected: int) -> None:
    """Stored rows are placed by these numbers, so they must never change."""
    type = parse_type(name)
    assert spark_hash([array_of_canonical(type, [value])], [type]).tolist() == [expected]
    assert bucket_of([value], [type], 1000) == expected % 1000


@pytest.mark.parametrize(("names", "row", "expected"), GOLDEN_COMPOSITES)
def test_hashes_of_several_columns_equal_those_of_spark(
    names: list[str], row: list[Any], expected: int
) -> None:
    """The hash of a column is the seed of the next one."""
    types = [parse_type(name) for name in names]
    arrays = [array_of_canonical(type, [value]) for type, value in zip(types, row, strict=True)]
    assert spark_hash(arrays, types).tolist() == [expected]


def test_the_hash_of_a_row_does_not_depend_on_other_rows() -> None:
    for name in {name for name, _, _ in GOLDEN}:
        type = parse_type(name)
        rows = [(value, expected) for other, value, expected in GOLDEN if other == name] * 3
        hashes = spark_hash([array_of_canonical(type, [value for value, _ in rows])], [type])
        assert hashes.tolist() == [expected for _, expected in rows]
        assert hashes.dtype == np.int32


def murmur3_of(type: ColumnType, value: Any, seed: int) -> int:
    """Return Spark's Murmur3 of one value, written as in the textbook."""
    mask = (1 << 32) - 1

    def mix(h: int, k: int) -> int:
        k = (k & mask) * 0xCC9E2D51 & mask
        k = (k << 15 | k >> 17) & mask
        h ^= k * 0x1B873593 & mask
        h = (h << 13 | h >> 19) & mask
        return (h * 5 + 0xE6546B64) & mask

    if type.is_variable or (type.precision or 0) > 18:
        if type.is_variable:
            raw = value.encode() if isinstance(value, str) else value
        else:
            # The fewest bytes with room for the sign: -128 has a bit_length of 8, but ~(-128) of 7.
            raw = value.to_bytes((value if value >= 0 else ~value).bit_length() // 8 + 1, "big", signed=True)
        whole = len(raw) // 4 * 4
        words = [int.from_bytes(raw[i : i + 4], "little") for i in range(0, whole, 4)]
        words += [byte - 256 if byte > 127 else byte for byte in raw[whole:]]
        length = len(raw)
    elif type.storage_width_bytes == 8 or type.name == "decimal":
        words, length = [value, value >> 32], 8
    else:
        words, length = [value], 4
    h = seed
    for word in words:
        h = mix(h, word)
    h ^= length
    h = (h ^ h >> 16) * 0x85EBCA6B & mask
    h = (h ^ h >> 13) * 0xC2B2AE35 & mask
    return h ^ h >> 16


NAMES = sorted({name for name, _, _ in GOLDEN})


def scalars(type: ColumnType) -> st.SearchStrategy[Any]:
    if type.is_text:
        return st.text(max_size=type.length or 12)
    if type.is_variable:
        return st.binary(max_size=12)
    assert type.value_min is not None and type.value_max is not None
    near = st.builds(
        lambda sign, k, d: sign * 2**k + d, st.sampled_from([-1, 1]), st.integers(0, 126), st.integers(-1, 1)
    )
    return st.integers(type.value_min, type.value_max) | near.filter(
        lambda value: (type.value_min or 0) <= value <= (type.value_max or 0)
    )


@given(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4), st.data())
def test_random_columns_have_the_hashes_of_a_simple_murmur3(names: list[str], data: st.DataObject) -> None:
    """Random columns, and slices of them, have the hashes of a simple implementation of Murmur3."""
    types = [parse_type(name) for name in names]
    rows = data.draw(st.lists(st.tuples(*map(scalars, types)), max_size=8))
    seed = data.draw(st.sampled_from([42, 0, -1, 2**31 - 1]))
    offset = data.draw(st.integers(0, len(rows)))
    arrays = [
        array_of_canonical(type, [row[i] for row in rows]).slice(offset) for i, type in enumerate(types)
    ]
    expected = []
    for row in rows[offset:]:
        h = seed & 0xFFFF_FFFF
        for type, value in zip(types, row, strict=True):
            h = murmur3_of(type, value, h)
        expected.append(h - (1 << 32) if h >> 31 else h)
    assert spark_hash(arrays, types, seed).tolist() == expected
    buckets = buckets_of(arrays, types, 5, seed)
    assert buckets.tolist() == [h % 5 for h in expected], "pmod: never negative"
    assert buckets.dtype == np.int32
    assert [bucket_of(row, types, 5, seed) for row in rows[offset:]] == buckets.tolist()


def test_murmur3_bytes_does_not_change_its_arguments() -> None:
    seeds = np.array([42, 42], dtype=np.uint32)
    data = np.frombuffer(b"abcde", dtype=np.uint8)
    hashes = murmur3_bytes(data, np.array([0, 0]), np.array([5, 1]), seeds)
    assert hashes.view(np.int32).tolist() == [814637928, 1485273170]
    assert seeds.tolist() == [42, 42]


def test_long_and_short_values_are_hashed_together() -> None:
    """One cell of 64 KiB among short ones."""
    type = parse_type("string")
    long = "x" * 65_536
    hashes = spark_hash([pa.array(["a", long, ""] * 2)], [type]).tolist()
    assert hashes[:3] == hashes[3:]
    assert hashes[0] == 1485273170 and hashes[2] == 142593372
    assert hashes[1] & 0xFFFF_FFFF == murmur3_of(type, long, 42)
