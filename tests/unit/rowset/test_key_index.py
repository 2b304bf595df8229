"""Keys of a base file: found the same way however they are stored, piece by piece or all keys in one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from tests.support import open_database

from nyala.cfile.cache import BlockCache, new_owner
from nyala.cfile.read_stats import ReadStats
from nyala.cfile.reader import CFileReader
from nyala.env import PosixFiles
from nyala.keys.key_range import KeyRange
from nyala.rowset import stored_keys
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.rowset.key_index import KeyIndex
from nyala.rowset.stored_keys import SparseKeys
from nyala.schema.schema import column

COUNT = 60_000


SCHEMAS = {
    "one integer": {"k": "int64"},
    "text and integer, every key stored": {"s": "string", "k": column("int64", encoding="plain")},
    "text and integer": {"s": "string", "k": "int64"},
    "plain text and integer": {"s": column("string", encoding="plain"), "k": "int64"},
    "two integers, every key stored": {"s": "int32", "k": column("int64", encoding="plain")},
    "two integers": {"s": "int32", "k": "int64"},
    "one integer, no filter": {"k": "int64"},
    "two integers, no filter": {"s": "int32", "k": "int64"},
}


@pytest.fixture(scope="module", params=SCHEMAS)
def rowset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> DiskRowSet:
    """Every third key of a range, so that there are keys to miss; a filter has what takes some bytes a row."""
    numbers = np.arange(COUNT) * 3
    path = tmp_path_factory.mktemp("store") / "s"
    small = SCHEMAS[request.param]
    with open_database(path) as db:
        wide = {} if "no filter" in request.param else {"v": "double"}
        table = db.create_table("t", small | wide, list(small))
        first = pa.array(["a\0" if "text" in request.param else 7] * COUNT)
        data = {"k": numbers} if len(small) == 1 else {"s": first, "k": numbers}
        table.insert(data | {name: np.random.default_rng(1).random(COUNT) for name in wide})
        db.flush()
        (found,) = db._writer().root.table("t").tablets[0].rowsets
        is_sparse = len(small) > 1 and "every key stored" not in request.param
        assert isinstance(found.keys._stored, SparseKeys) == is_sparse
        assert (found.reader.bloom() is None) == (not wide)
        yield found


def probes(rowset: DiskRowSet, numbers: np.ndarray) -> pa.Array:
    arrays = [pa.array(numbers, pa.int64())]
    if len(rowset.codec.types) > 1:
        is_text = rowset.codec.types[0].is_text
        arrays.insert(0, pa.array(["a\0" if is_text else 7] * len(numbers), None if is_text else pa.int32()))
    return rowset.codec.encode(arrays)


def index(rowset: DiskRowSet, cache: BlockCache | None) -> KeyIndex:
    reader = CFileReader(PosixFiles(), rowset.reader.path, cache)
    return KeyIndex(reader, rowset.codec, rowset.keys._key_column_ids, rowset.row_count, cache)


@pytest.mark.parametrize("cache_bytes", [None, 0, 1 << 20, 64 << 20])
def test_keys_are_found_however_they_are_looked_for(rowset: DiskRowSet, cache_bytes: int | None) -> None:
    """The rowid of each key that is there, -1 for the others, batch after batch, with any cache."""
    keys = index(rowset, None if cache_bytes is None else BlockCache(cache_bytes))
    for row in (1, 2, 129, COUNT - 1):  # of the first stretches too, whose numbers blocks have as well
        one = probes(rowset, np.array([3 * row]))
        assert keys.find_one(one, one.at(0)) == row
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
    if not rowset.codec.types[0].is_text:  # texts have lengths of their own
        monkeypatch.delattr(stored_keys, "large_binary_array")
        one = probes(rowset, np.array([3]))
        assert stored.find_one(one, one.at(0), None) == 1


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


@pytest.mark.parametrize("rowset", [name for name in SCHEMAS if "no filter" not in name], indirect=True)
def test_a_key_that_the_bloom_filter_does_not_have_costs_no_block(
    rowset: DiskRowSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each new row is looked for in the rowsets that its key lies between."""
    keys, one = index(rowset, None), probes(rowset, np.array([1]))
    monkeypatch.delattr(KeyIndex, "_stored")
    assert keys.find(one).tolist() == [-1]
    assert keys.find_one(one, one.at(0)) == -1


@pytest.mark.parametrize("is_alone", [True, False])
def test_all_keys_are_read_after_look_ups_in_so_many_pieces_that_it_costs_no_more(
    rowset: DiskRowSet, is_alone: bool
) -> None:
    """Not for the first look-ups, or who opens a store and gets one row would read all keys; several keys of one piece
    cost as much as one."""
    keys = index(rowset, BlockCache(64 << 20))
    near = probes(rowset, np.array([0, 3, 6]))

    def look() -> None:
        if is_alone:
            keys.find_one(near.slice(0, 1), near.at(0))
        else:
            keys.find(near)

    for _ in range(keys._stored.worth_reading_all - 1):
        look()
    assert keys._known() is None
    look()
    assert keys._known() is not None
    keys.close()
    look()
    assert keys._known() is None, "what went for want of room is not read for the next key"


def test_keys_of_many_pieces_count_as_many(rowset: DiskRowSet, monkeypatch: pytest.MonkeyPatch) -> None:
    """One look-up may be worth it; then it is answered by the keys that were read."""
    keys = index(rowset, BlockCache(64 << 20))
    monkeypatch.delattr(type(keys._stored), "find")
    numbers = np.arange(0, COUNT * 3, 3 * 64)
    assert (keys.find(probes(rowset, numbers)) == numbers // 3).all()
    assert keys._known() is not None


def test_whatever_all_keys_in_memory_tell_reads_no_block(
    rowset: DiskRowSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of single keys and bounds of ranges too; and blocks that come and go do not push these keys out."""
    cache = BlockCache(64 << 20)
    keys = index(rowset, cache)
    keys.find(probes(rowset, np.arange(0, COUNT * 3, 3 * 64)))
    known = keys._known()
    assert known is not None and cache.size_bytes >= known.nbytes
    assert known.nbytes < 9 * COUNT or rowset.codec.types[0].is_text, "of two numbers those bytes that differ"
    cache.put(new_owner(), 0, "a block", cache.limit_bytes - known.nbytes)
    monkeypatch.delattr(type(keys._stored), "find_one")
    monkeypatch.delattr(type(keys._stored), "lower_bound")
    for number, row in ((0, 0), (3 * 700, 700), (3 * 700 + 1, -1), (3 * COUNT, -1)):
        one = probes(rowset, np.array([number]))
        assert keys.find_one(one, one.at(0)) == row
        assert keys.range(KeyRange(one.at(0), None)) == (-(-number // 3), COUNT)


@pytest.mark.parametrize("is_told", [True, False])
def test_keys_that_take_too_much_of_the_cache_stay_in_blocks(
    rowset: DiskRowSet, is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many rowsets share the cache: one of them must not push all blocks out. All keys are not even read if the value
    index tells how large they are, and else once."""
    cache = BlockCache(1 << 20)
    keys = index(rowset, cache)
    kind, times = type(keys._stored), []
    real = kind.read_all
    monkeypatch.setattr(kind, "read_all", lambda *args: times.append(1) or real(*args))
    if not is_told:
        monkeypatch.setattr(kind, "nbytes_of_all", 0)
    everywhere = probes(rowset, np.arange(0, COUNT * 3, 3 * 64))
    for _ in range(5):
        keys.find(everywhere)
        assert keys._known() is None
    assert len(times) == (0 if is_told else 1)


def test_a_block_or_stretch_of_keys_is_decoded_once(
    rowset: DiskRowSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Single keys and bounds that are asked for again are found in the cache, whose limit counts them."""
    cache = BlockCache(64 << 20)
    keys = index(rowset, cache)
    bound = probes(rowset, np.array([3 * 50_000])).at(0)
    first, again = ReadStats(), ReadStats()
    for stats in (first, again):
        assert keys.range(KeyRange(bound, bound + b"\0"), stats) == (50_000, 50_001)
        monkeypatch.setattr(SparseKeys, "_gather", None)
    assert first.blocks_read > 0
    assert (again.reads, again.blocks_read) == (0, 0) and again.cache_hits >= 2
    assert cache.size_bytes > 1000 * len(cache)
    if not isinstance(keys._stored, SparseKeys):
        assert len(cache) == 1, "keys, and not what they are made of besides"
    assert keys.range(KeyRange(bound, bound), stats := ReadStats()) == (0, 0)
    assert stats == ReadStats(), "a range without keys costs nothing"


def test_who_goes_through_all_keys_once_leaves_nothing_in_the_cache(rowset: DiskRowSet) -> None:
    """A check of a store would push out what its scans have."""
    cache = BlockCache(64 << 20)
    keys = index(rowset, cache)
    keys.check()
    keys.read(0, COUNT, fill_cache=False)
    keys._stored.read_all(None)
    assert len(cache) == (rowset.reader.bloom() is not None), "the bloom filter"
