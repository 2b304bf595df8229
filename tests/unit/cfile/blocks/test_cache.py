"""The block cache: its limit, its order of eviction, and its owners."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.cfile.memory import MemoryFiles

from nyala.cfile.blocks import cache as cache_module
from nyala.cfile.blocks.cache import _ENTRY_OVERHEAD_BYTES, BlockCache, Memo, new_owner
from nyala.cfile.blocks.read_stats import Access, ReadStats
from nyala.cfile.column import BASE, ColumnKey, ColumnWriteSpec
from nyala.cfile.reader import CFileReader
from nyala.cfile.writer import CFileWriter
from nyala.schema.types import parse_type

COLUMN = ColumnKey(BASE, 0, 10)


OPERATION = st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 3000), st.booleans())


@given(st.lists(OPERATION, max_size=60))
def test_the_limit_holds_and_the_oldest_is_evicted(operations: list[tuple[int, int, int, bool]]) -> None:
    """The cache stays within its limit and evicts the oldest entry first.

    Cheap entries are evicted before costly ones, unless costly ones have more than seven eighths.
    """
    cache = BlockCache(10_000)
    order: list[tuple[int, int]] = []
    sizes: dict[tuple[int, int], int] = {}
    costlies: dict[tuple[int, int], bool] = {}
    dropped: set[tuple[int, int]] = set()
    came_again = 0

    def shrink(more_bytes: int) -> None:
        while sum(sizes.values()) + more_bytes > 10_000:
            costly_bytes = sum(size for name, size in sizes.items() if costlies[name])
            goes = costly_bytes > 8_750 or all(costlies[name] for name in order)
            oldest = next(name for name in order if costlies[name] == goes)
            order.remove(oldest)
            del sizes[oldest]
            dropped.add(oldest)

    for owner, key, size, costly in operations:
        name = (owner, key)
        if size % 3 == 0:
            found = cache.get(owner, key)
            assert (found is not None) == (name in sizes)
            if found is not None:
                order.remove(name)
                order.append(name)
        else:
            cache.put(owner, key, object(), size, costly=costly)
            if name in sizes:
                order.remove(name)
                del sizes[name]
            size += _ENTRY_OVERHEAD_BYTES
            if name in dropped:
                dropped.remove(name)
                came_again += 1
                if came_again % 8:  # this entry will be evicted next
                    shrink(size)
                    order.insert(0, name)
                    sizes[name], costlies[name] = size, costly
                    cache.check()
                    continue
            order.append(name)
            sizes[name], costlies[name] = size, costly
            shrink(0)
        cache.check()
    assert len(cache) == len(sizes) and cache.size_bytes == sum(sizes.values())


def test_a_cycle_larger_than_the_cache_still_hits() -> None:
    """If entries that do not all fit are requested in a cycle, most requests of cached entries are hits.

    Look-ups of many random keys read all blocks of a table in such a cycle. If other entries are
    requested later, they replace the old ones.
    """

    def rounds(cache: BlockCache, names: range, count: int) -> int:
        for _ in range(count):
            before = cache.hits
            for name in names:
                if cache.get(1, name) is None:
                    cache.put(1, name, name, 1000 - _ENTRY_OVERHEAD_BYTES)
        return cache.hits - before

    cache = BlockCache(100_000)
    assert rounds(cache, range(120), 5) >= 70
    assert rounds(cache, range(1000, 1090), 3) == 90
    assert rounds(cache, range(120), 3) <= 70  # the old entries are admitted again, slowly
    assert rounds(cache, range(80), 40) == 80
    cache.drop_owner(1)
    cache.check()
    assert len(cache) == 0 and not cache._ghosts


def test_the_counters_of_hits_and_misses() -> None:
    """The counters of hits, misses and bytes are right."""
    cache = BlockCache(2000)
    owner = new_owner()
    assert cache.get(owner, 0) is None
    cache.put(owner, 0, "zero", 100)
    cache.put(owner, 1, "too large", 5000)
    assert cache.get(owner, 0) == "zero" and cache.get(owner, 1) is None
    assert (cache.hits, cache.misses, cache.limit_bytes) == (1, 2, 2000)
    cache.resize(100)
    assert (len(cache), cache.size_bytes) == (0, 0)


def reader_of(files: MemoryFiles, path: str, values: pa.Array, cache: BlockCache) -> CFileReader:
    with CFileWriter(files, path) as writer:
        writer.append_column(ColumnWriteSpec(COLUMN, parse_type("int64"), "plain", "none", 512), values)
        writer.finish()
    return CFileReader(files, path, cache)


def test_a_new_file_at_an_old_path_has_no_cached_blocks(files: MemoryFiles) -> None:
    """A file that was deleted and written again has none of the old file's blocks."""
    cache = BlockCache(1 << 20)
    reader = reader_of(files, "f", pa.array([1, 2]), cache)
    column = reader.column(COLUMN)
    assert column is not None and column.decode(0, 2).to_pylist() == [1, 2]
    assert cache.size_bytes > 0
    reader.close()
    assert (len(cache), cache.size_bytes) == (0, 0)
    files.unlink("f")
    column = reader_of(files, "f", pa.array([3, 4]), cache).column(COLUMN)
    assert column is not None and column.decode(0, 2).to_pylist() == [3, 4]


def test_cached_blocks_own_their_memory(files: MemoryFiles) -> None:
    """A cached block does not keep the whole read in memory that it came from."""
    cache = BlockCache(1 << 20)
    reader = reader_of(files, "f", pa.array(range(1000)), cache)
    column = reader.column(COLUMN)
    assert column is not None and column.block_count == 16
    read_buffer, kept = reader.read_buffer, []
    reader.read_buffer = lambda *where: kept.append(read_buffer(*where)) or kept[-1]  # type: ignore
    column.decode(0, 1000)
    (data,) = kept
    for block in range(16):
        array = cache.get(reader._owner, (column.place.offset, block))
        (values,) = (buffer for buffer in array.array.buffers() if buffer)  # type: ignore
        assert not data.address <= values.address < data.address + data.size, "the block has its own memory"
    stats = ReadStats()
    assert column.decode(0, 1000, stats=stats).to_pylist() == list(range(1000))
    assert stats == ReadStats(cache_hits=16)


def test_reads_without_the_cache(files: MemoryFiles) -> None:
    """A read with `Access.ONCE` evicts nothing that look-ups need."""
    cache = BlockCache(1 << 20)
    column = reader_of(files, "f", pa.array(range(1000)), cache).column(COLUMN)
    assert column is not None
    column.decode(0, 1000, access=Access.ONCE)
    assert len(cache) == 0


def test_many_threads(files: MemoryFiles) -> None:
    """Threads that use the cache at once get their own blocks, and the count of bytes stays right."""
    cache = BlockCache(20_000)
    column = reader_of(files, "f", pa.array(range(2000)), cache).column(COLUMN)
    assert column is not None
    wrong: list[int] = []

    def read(seed: int) -> None:
        for step in range(200):
            lower = (seed * 131 + step * 37) % 1900
            if column.decode(lower, lower + 100).to_pylist() != list(range(lower, lower + 100)):
                wrong.append(lower)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    cache.check()


def test_names_requested_once_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache forgets names that were requested once, so they do not fill the memory.

    While rows are written, each scan requests a new state. Names that are requested again are kept.
    """
    monkeypatch.setattr(cache_module, "_REQUESTED_MAX", 10)
    memo = Memo(BlockCache(1 << 20))
    for state in range(100):
        assert memo.get("patch", state, lambda kept: (kept, 1), costly=False) is False
        assert len(memo._requested) <= 10
    assert memo.get("patch", 99, lambda kept: (kept, 1), costly=False) is True
    assert memo.get("patch", 0, lambda kept: (kept, 1), costly=False) is False, (
        "the cache has forgotten the first request"
    )
