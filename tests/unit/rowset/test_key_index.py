"""Keys of a base file are found in the same way in every form of storage."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from tests.sampled import in_turns
from tests.support import open_database

from nyala.cfile.blocks.cache import BlockCache
from nyala.cfile.reader import CFileReader
from nyala.env import PosixFiles
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.rowset.key_lookup.key_index import KeyIndex
from nyala.rowset.key_lookup.stored_keys import SparseKeys
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
    """Return a rowset with every third key of a range. Wide rows have a bloom filter."""
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


@pytest.mark.parametrize(
    ("rowset", "cache_bytes"),
    in_turns(SCHEMAS, [None, 0, 1 << 20, 64 << 20]),
    indirect=["rowset"],
    scope="module",
)
def test_keys_are_found_in_every_kind_of_look_up(rowset: DiskRowSet, cache_bytes: int | None) -> None:
    """Each look-up returns the rowid of each key, or -1, with and without a cache."""
    keys = index(rowset, None if cache_bytes is None else BlockCache(cache_bytes))
    for row in (1, 2, 129, COUNT - 1):  # also of the first groups, whose numbers blocks have as well
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


@pytest.mark.parametrize("rowset", [name for name in SCHEMAS if "no filter" not in name], indirect=True)
def test_a_key_that_the_bloom_filter_excludes_reads_no_block(
    rowset: DiskRowSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look-up reads no block if the bloom filter excludes the key, as for most new keys."""
    keys, one = index(rowset, None), probes(rowset, np.array([1]))
    monkeypatch.delattr(KeyIndex, "_stored")
    assert keys.find(one).tolist() == [-1]
    assert keys.find_one(one, one.at(0)) == -1
