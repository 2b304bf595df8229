"""Keys of a base file: found the same way however they are stored, piece by piece or all keys in one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from tests.support import open_database

from nyala.cfile.cache import BlockCache
from nyala.cfile.reader import ReadStats
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.rowset.key_index import KeyIndex
from nyala.rowset.stored_keys import SparseKeys
from nyala.schema.schema import column

COUNT = 60_000


SCHEMAS = {
    "one integer": {"k": "int64"},
    "text and integer, every key stored": {"s": column("string", encoding="plain"), "k": "int64"},
    "text and integer": {"s": "string", "k": "int64"},
    "two integers, every key stored": {"s": "int32", "k": column("int64", encoding="plain")},
    "two integers": {"s": "int32", "k": "int64"},
}


@pytest.fixture(scope="module", params=SCHEMAS)
def rowset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> DiskRowSet:
    """Every third key of a range, so that there are keys to miss."""
    numbers = np.arange(COUNT) * 3
    path = tmp_path_factory.mktemp("store") / "s"
    small = SCHEMAS[request.param]
    with open_database(path) as db:
        table = db.create_table("t", small, list(small))
        first = pa.array(["a\0" if "text" in request.param else 7] * COUNT)
        data = {"k": numbers} if len(small) == 1 else {"s": first, "k": numbers}
        table.insert(data)
        db.flush()
        (found,) = db._writer().root.table("t").tablets[0].rowsets
        assert isinstance(found.keys._stored, SparseKeys) == (
            request.param in ("two integers", "text and integer")
        )
        yield found


def probes(rowset: DiskRowSet, numbers: np.ndarray) -> pa.Array:
    arrays = [pa.array(numbers, pa.int64())]
    if len(rowset.codec.types) > 1:
        is_text = rowset.codec.types[0].is_text
        arrays.insert(0, pa.array(["a\0" if is_text else 7] * len(numbers), None if is_text else pa.int32()))
    return rowset.codec.encode(arrays)


def index(rowset: DiskRowSet, cache: BlockCache | None) -> KeyIndex:
    return KeyIndex(rowset.reader, rowset.codec, rowset.keys._key_column_ids, rowset.row_count, cache)


@pytest.mark.parametrize("cache_bytes", [None, 0, 1 << 20, 64 << 20])
def test_keys_are_found_however_they_are_looked_for(rowset: DiskRowSet, cache_bytes: int | None) -> None:
    """The rowid of each key that is there, -1 for the others, batch after batch, with any cache."""
    keys = index(rowset, None if cache_bytes is None else BlockCache(cache_bytes))
    rng = np.random.default_rng(7)
    for _ in range(20):
        numbers = np.sort(rng.integers(-5, COUNT * 3 + 5, 200))
        expected = np.where((numbers % 3 == 0) & (numbers >= 0) & (numbers < COUNT * 3), numbers // 3, -1)
        given = probes(rowset, numbers)
        assert (keys.find(given) == expected).all()
        for at in (0, 99, 199):
            one = given.slice(at, 1)
            assert keys.find_one(one, one.at(0)) == expected[at]


def test_keys_of_one_block_are_read_without_a_look_at_each_length(
    rowset: DiskRowSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Backfill probes as many blocks as it has rows; equally long keys need neither lengths nor offsets."""
    stored = index(rowset, None)._stored
    if isinstance(stored, SparseKeys) or not stored.is_encoded:
        pytest.skip("its keys are in the key columns")
    column = stored.column
    whole = column.read(0, rowset.row_count)
    for block in (0, column.block_count - 1):
        stats = ReadStats()
        found = column.read_keys(block, stats)
        first = block * column.rows_per_block
        assert isinstance(found, np.ndarray)
        assert [bytes(key) for key in found] == whole[first : first + column.rows_per_block].to_pylist()
        assert (stats.reads, stats.blocks_read) == (1, 1) and stats.bytes_read > 0


def test_keys_that_come_at_random_are_read_once_and_kept(rowset: DiskRowSet) -> None:
    """As many pieces are looked into as are worth it; from then on no block is read or decoded for a look-up."""
    cache = BlockCache(64 << 20)
    keys = index(rowset, cache)
    assert keys._stored.worth_reading_all >= 4, "the test needs a file of several pieces"
    assert keys._known() is None
    everywhere = probes(rowset, np.arange(0, COUNT * 3, 3 * 64))
    for _ in range(3):
        keys.find(everywhere)
    stats = ReadStats()
    keys.find(everywhere, stats)
    assert (stats.reads, stats.blocks_read, stats.cache_hits) == (0, 0, 0)
    assert cache.get(keys._owner, "keys") is not None
    keys.close()
    assert cache.get(keys._owner, "keys") is None


def test_keys_that_take_too_much_of_the_cache_stay_in_blocks(rowset: DiskRowSet) -> None:
    """Many rowsets share the cache: one of them must not push all blocks out."""
    cache = BlockCache(1 << 20)
    keys = index(rowset, cache)
    everywhere = probes(rowset, np.arange(0, COUNT * 3, 3 * 64))
    for _ in range(5):
        keys.find(everywhere)
    assert cache.get(keys._owner, "keys") is None
