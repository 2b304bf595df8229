"""The bloom filter never excludes a key that was inserted."""

from __future__ import annotations

import dataclasses
import gc
import resource
import weakref

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.cfile.memory import MemoryFiles

from nyala.cfile import format
from nyala.cfile.blocks.cache import BlockCache
from nyala.cfile.column import BLOOM, ColumnKey, ColumnPlace, ColumnWriteSpec
from nyala.cfile.index.bloom_filter import BloomFilter, bloom_words
from nyala.cfile.reader import CFileReader
from nyala.cfile.writer import CFileWriter
from nyala.errors import CorruptionError
from nyala.schema.types import parse_type


def hashes(count: int, seed: int = 0) -> npt.NDArray[np.uint64]:
    return np.random.default_rng(seed).integers(0, 2**64 - 1, count, dtype=np.uint64, endpoint=True)


def filter_of(words: npt.NDArray[np.uint32]) -> BloomFilter:
    return BloomFilter(len(words), 256, lambda lower, upper: words[lower:upper], lambda bloom: None)


@given(st.lists(st.integers(0, 2**64 - 1), max_size=200))
def test_inserted_keys_may_be_contained(values: list[int]) -> None:
    """An inserted key is never excluded, so it cannot be inserted a second time."""
    keys = np.array(values, np.uint64)
    assert filter_of(bloom_words(keys)).may_contain(keys).all()


@given(
    st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=40),
    st.lists(st.integers(0, 2**64 - 1), max_size=40),
)
def test_a_single_look_up_agrees_with_a_look_up_of_many(inserted: list[int], others: list[int]) -> None:
    """`may_contain_one` agrees with `may_contain`."""
    bloom = filter_of(bloom_words(np.array(inserted, np.uint64)))
    # Also hashes that differ from an inserted one in a bit or two, and so are in its block.
    near = [key ^ 1 << bit for key in inserted[:4] for bit in range(0, 32, 3)]
    hashes = [*inserted, *others, *near]
    expected = bloom.may_contain(np.array(hashes, np.uint64)).tolist()
    assert [bloom.may_contain_one(key) for key in hashes] == expected


def test_most_absent_keys_are_excluded() -> None:
    """Most absent keys are excluded, so inserts do not search every rowset."""
    words = bloom_words(hashes(100_000))
    assert words.nbytes == 200_000
    assert filter_of(words).may_contain(hashes(200_000, seed=1)).mean() < 0.0025
    assert not filter_of(bloom_words(hashes(0))).may_contain(hashes(100)).any()


def test_the_bits_are_those_of_a_split_block_filter() -> None:
    """The layout on disk never changes: these hashes set exactly these bits."""
    (words,) = bloom_words(np.array([0x0123456789ABCDEF], np.uint64))
    salt = (0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31)
    assert words.tolist() == [1 << ((0x89ABCDEF * factor % 2**32) >> 27) for factor in salt]
    # Several blocks: the upper half of the hash selects one.
    keys = hashes(1000)
    words = bloom_words(keys)
    assert len(words) == -(-1000 * 16 // 256)
    for key in keys.tolist():
        block = (key >> 32) * len(words) >> 32
        for word, factor in enumerate(salt):
            assert words[block, word] >> ((key & 0xFFFFFFFF) * factor % 2**32 >> 27) & 1


def written(files: MemoryFiles, keys: npt.NDArray[np.uint64]) -> tuple[ColumnPlace, ...]:
    with CFileWriter(files, "f") as writer:
        writer.append_bloom(keys)
        return writer.finish().columns


@pytest.mark.parametrize("count", [0, 1, 1000, 300_000])
def test_through_a_file(files: MemoryFiles, count: int) -> None:
    """A filter with several blocks comes back from a file in the same order."""
    keys, others = hashes(count), hashes(1000, seed=1)
    places = written(files, keys)
    expected = filter_of(bloom_words(keys)).may_contain(others)
    for cache in (None, BlockCache(1 << 22)):
        reader = CFileReader(files, "f", cache, places)
        bloom = reader.bloom()
        assert bloom is not None and bloom.may_contain(keys).all()
        assert (bloom.may_contain(others) == expected).all()
        assert [bloom.may_contain_one(one) for one in others[:50].tolist()] == expected[:50].tolist()
        bloom.load_all()
        files.reads.clear()
        assert reader.bloom() is bloom and bloom.may_contain(keys).all() and not files.reads
        reader.check()


def test_a_cached_filter_does_not_keep_its_reader(files: MemoryFiles) -> None:
    """A cached filter does not keep the file of a removed rowset open."""
    keys = hashes(1000)
    cache = BlockCache(1 << 22)
    reader = CFileReader(files, "f", cache, written(files, keys))
    bloom = reader.bloom()
    assert bloom is not None and bloom.may_contain(keys).all() and len(cache) == 1
    gone = weakref.ref(reader)
    del reader, bloom
    gc.collect()
    assert gone() is None and len(cache) == 1


PAGE_BYTES = format.BLOOM_BLOCK_BYTES << format.BLOOM_ROWS_PER_BLOCK_LOG2


def of_page(page: int, pages: int) -> int:
    """Return a hash whose block is in the middle of this page."""
    return (2 * page + 1 << 63) // pages


def test_a_look_up_reads_only_the_pages_of_its_keys(files: MemoryFiles) -> None:
    """A look-up of one key reads one page of the filter, not all of it."""
    pages = 8
    keys = hashes(pages * PAGE_BYTES * 8 // format.BLOOM_BITS_PER_KEY)
    cache = BlockCache(1 << 20)
    reader = CFileReader(files, "f", cache, written(files, keys))
    bloom = reader.bloom()
    assert bloom is not None and bloom.nbytes == 0

    def reads(*numbers: int) -> list[int]:
        """Return the pages of each read during a look-up of one key per page."""
        files.reads.clear()
        bloom.may_contain(np.array([of_page(page, pages) for page in numbers], np.uint64))
        return [round(length / PAGE_BYTES) for _, length in files.reads]

    assert reads(3) == [1] and reads(3) == []
    assert reads(5, 4, 3, 4) == [2]  # adjacent pages are one read
    assert reads(0, 7) == [1, 1]
    assert bloom.nbytes == 5 * PAGE_BYTES <= cache.size_bytes < 6 * PAGE_BYTES
    files.reads.clear()
    bloom.may_contain_one(of_page(6, pages))
    assert len(files.reads) == 1 and reads(6) == []
    bloom.load_all()
    assert bloom.nbytes == pages * PAGE_BYTES and reads(*range(pages)) == []
    cache.resize(0)
    bloom = reader.bloom()
    assert bloom is not None and bloom.nbytes == 0 and bloom.may_contain(keys).all()


@pytest.mark.parametrize("blocks", [1, 2, 3, 1000, 4097])
def test_a_block_is_in_one_cache_line(blocks: int) -> None:
    """No block spans two cache lines, so a look-up waits for memory once."""
    count = blocks * 8 * format.BLOOM_BLOCK_BYTES // format.BLOOM_BITS_PER_KEY
    words = bloom_words(hashes(count))
    assert len(words) == blocks
    for bloom in [filter_of(words) for _ in range(8)]:  # one filter might be aligned by chance
        assert bloom._words.ctypes.data % 64 == 0 and bloom._words.shape == (blocks, 8)
        bloom.load_all()
        assert (bloom._words == words).all()


def test_memory_is_used_only_for_loaded_pages() -> None:
    """The filter of a billion keys does not take its memory for one look-up."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    bloom = BloomFilter(
        1 << 25, 2048, lambda lower, upper: np.zeros((upper - lower, 8), np.uint32), lambda bloom: None
    )
    assert not bloom.may_contain_one(1 << 63) and bloom.nbytes == 2048 * 32
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes


def test_a_damaged_page_affects_only_its_own_keys(files: MemoryFiles) -> None:
    """Look-ups of keys in other pages still work."""
    pages = 4
    places = written(files, hashes(pages * PAGE_BYTES * 8 // format.BLOOM_BITS_PER_KEY))
    content = bytearray(files.content["f"])
    content[2 * PAGE_BYTES] ^= 1
    files.content["f"] = bytes(content)
    bloom = CFileReader(files, "f", None, places).bloom()
    assert bloom is not None
    bloom.may_contain_one(of_page(0, pages))
    bloom.may_contain_one(of_page(3, pages))
    for _ in range(2):
        with pytest.raises(CorruptionError, match="CRC"):
            bloom.may_contain(np.array([of_page(page, pages) for page in range(pages)], np.uint64))
    with pytest.raises(CorruptionError, match="CRC"):
        bloom.load_all()


def test_a_filter_larger_than_its_file_is_refused(files: MemoryFiles) -> None:
    """A forged number of blocks is refused before memory is allocated."""
    reader = CFileReader(files, "f", None, written(files, hashes(1000)))
    column = reader.column(ColumnKey(BLOOM))
    assert column is not None
    column.place = dataclasses.replace(column.place, offset=column.row_count * 32 - 1)
    with pytest.raises(CorruptionError, match="expected a bloom filter"):
        reader.bloom()


def test_a_file_without_filter(files: MemoryFiles) -> None:
    """A file without a filter, such as a delta file, has none, and excludes no key."""
    with CFileWriter(files, "f") as writer:
        writer.append_column(ColumnWriteSpec(ColumnKey(0), parse_type("int8")), pa.array([1], pa.int8()))
        writer.finish()
    assert CFileReader(files, "f").bloom() is None
