"""The bloom filter: no key that is there is ever denied."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.cfile.memory import MemoryFiles

from nyala.cfile import BlockCache, Bloom, CFileReader, CFileWriter, ColumnKey, ColumnWriteSpec
from nyala.schema.types import parse_type


def hashes(count: int, seed: int = 0) -> npt.NDArray[np.uint64]:
    return np.random.default_rng(seed).integers(0, 2**64 - 1, count, dtype=np.uint64, endpoint=True)


@given(st.lists(st.integers(0, 2**64 - 1), max_size=200))
def test_what_was_put_in_may_be_there(values: list[int]) -> None:
    """A key would be inserted a second time, because its rowset was not asked."""
    keys = np.array(values, np.uint64)
    bloom = Bloom.build(keys)
    assert bloom.may_contain(keys).all()
    assert Bloom.from_bytes(bloom.to_bytes()).may_contain(keys).all()


@given(
    st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=40),
    st.lists(st.integers(0, 2**64 - 1), max_size=40),
)
def test_one_key_is_told_what_it_is_told_among_others(there: list[int], asked: list[int]) -> None:
    """A key would be denied when it comes alone, and be inserted a second time."""
    bloom = Bloom.build(np.array(there, np.uint64))
    # Also those that differ from one that is there in a bit or two, which are in its block.
    near = [key ^ 1 << bit for key in there[:4] for bit in range(0, 32, 3)]
    hashes = [*there, *asked, *near]
    expected = bloom.may_contain(np.array(hashes, np.uint64)).tolist()
    assert [bloom.may_contain_one(key) for key in hashes] == expected


def test_one_key_is_looked_for_in_its_own_block() -> None:
    keys = hashes(1000)
    bloom = Bloom.build(keys)
    assert bloom.nbytes > 50 * 32
    assert all(map(bloom.may_contain_one, keys.tolist()))


def test_absent_keys_are_mostly_denied() -> None:
    """Every insert would search every rowset."""
    bloom = Bloom.build(hashes(100_000))
    assert bloom.nbytes == 200_000
    assert bloom.may_contain(hashes(200_000, seed=1)).mean() < 0.0025
    assert not Bloom.build(hashes(0)).may_contain(hashes(100)).any()


def test_the_bits_are_those_of_the_split_block_filter() -> None:
    """Filters on disk would deny every key, because some constant of the layout has changed."""
    words = np.frombuffer(Bloom.build(np.array([0x0123456789ABCDEF], np.uint64)).to_bytes(), "<u4")
    salt = (0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31)
    assert words.tolist() == [1 << ((0x89ABCDEF * factor % 2**32) >> 27) for factor in salt]
    # Several blocks: the upper half of the hash, scaled.
    keys = hashes(1000)
    words = np.frombuffer(Bloom.build(keys).to_bytes(), "<u4").reshape(-1, 8)
    assert len(words) == -(-1000 * 16 // 256)
    for key in keys.tolist():
        block = (key >> 32) * len(words) >> 32
        for word, factor in enumerate(salt):
            assert words[block, word] >> ((key & 0xFFFFFFFF) * factor % 2**32 >> 27) & 1


@pytest.mark.parametrize("count", [0, 1, 1000, 300_000])
def test_through_a_file(files: MemoryFiles, count: int) -> None:
    """A filter of more than one block would lose its order, and deny keys after a reopen."""
    keys = hashes(count)
    with CFileWriter(files, "f") as writer:
        writer.append_bloom(keys)
        places = writer.finish().columns
    for cache in (None, BlockCache(1 << 22)):
        reader = CFileReader(files, "f", cache, places)
        bloom = reader.bloom()
        assert bloom is not None and bloom.may_contain(keys).all()
        assert bloom.to_bytes() == Bloom.build(keys).to_bytes()
        files.reads.clear()
        assert reader.bloom() is bloom and not files.reads
        reader.check()


def test_a_file_without_filter(files: MemoryFiles) -> None:
    """Delta files have none, and must say so rather than deny everything."""
    with CFileWriter(files, "f") as writer:
        writer.append_column(ColumnWriteSpec(ColumnKey(0), parse_type("int8")), pa.array([1], pa.int8()))
        writer.finish()
    assert CFileReader(files, "f").bloom() is None


def test_parts_of_a_block_are_refused() -> None:
    """A cut filter would be read beyond its end."""
    for data in (b"", bytes(31), bytes(36)):
        with pytest.raises(ValueError, match=r"expected whole blocks|buffer size"):
            Bloom.from_bytes(data)
