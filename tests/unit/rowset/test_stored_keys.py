"""Sparse keys find the same rows as dense keys, for any columns of the key."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sampled import in_turns
from tests.support import open_database

import nyala
from nyala.cfile import format
from nyala.cfile.blocks.cache import BlockCache
from nyala.cfile.blocks.read_stats import ReadStats
from nyala.cfile.column import BASE, BLOOM, KEY, ColumnKey
from nyala.cfile.errors import SummaryError
from nyala.cfile.reader import CFileReader
from nyala.cfile.writer import CFileWriter
from nyala.env import PosixFiles
from nyala.errors import CorruptionError
from nyala.keys.codec import KeyCodec
from nyala.keys.encoded_keys import EncodedKeys
from nyala.keys.key_range import KeyRange
from nyala.rowset import writer as rowset_writer
from nyala.rowset.key_lookup.key_index import KeyIndex
from nyala.rowset.key_lookup.stored_keys import DenseKeys, SparseKeys
from nyala.rowset.writer import column_spec, encoded_keys
from nyala.schema.schema import build_schema, column

FILES = PosixFiles()
STRETCH = 1 << format.SPARSE_KEY_ROWS_LOG2

# (types of the key, function that makes its columns of ascending numbers below 40,000).
KEYS: dict[str, tuple[list[str], Callable[[np.ndarray], list[np.ndarray]]]] = {
    "long and short": (["int64", "int32"], lambda n: [n // 7, n % 7 - 3]),
    "heads that differ": (["int64", "int64"], lambda n: [(n - 20_000) << 40, n]),
    "of eight bytes": (["int32", "int32"], lambda n: [n // 300, n]),
    "a sensor and a time": (["int32", "timestamp"], lambda n: [n // 5000, n % 5000 * 1_000_000]),
    "a host and a time": (["string", "timestamp"], lambda n: [_hosts(n // 500), n % 500 - 250]),
    "two texts": (["varchar(30)", "string"], lambda n: [_hosts(n // 700), _hosts(n % 700)]),
    "plain texts": (["varchar(30)", "string"], lambda n: [_hosts(n // 700), _hosts(n % 700)]),
    "plain text behind": (["int16", "string"], lambda n: [n // 20_000, _hosts(n)]),
    "days": (["date", "int8", "int16"], lambda n: [n // 1000 - 5, n % 1000 // 100, n % 100]),
}


def _hosts(numbers: np.ndarray) -> np.ndarray:
    """Return texts of different lengths, some with zero bytes, in the order of the numbers."""
    return np.array(
        [f"h{number:05}" + "\0" * (number % 3) + "x" * (number % 5) for number in numbers], object
    )


def arrays(name: str, numbers: np.ndarray) -> list[pa.Array]:
    types, make = KEYS[name]
    schema = build_schema(
        {f"k{i}": type for i, type in enumerate(types)}, [f"k{i}" for i in range(len(types))]
    )
    found = []
    for column_, values in zip(schema.columns, make(numbers), strict=True):
        if values.dtype == object:
            found.append(pa.array(values, pa.string()))
            continue
        width = column_.type.storage_width_bytes
        found.append(pa.array(values.astype(f"<i{width}")).view(column_.type.arrow))
    return found


def indexes(
    folder: str, name: str, numbers: np.ndarray, cache_bytes: int
) -> tuple[KeyIndex, KeyIndex, KeyCodec]:
    """Return (sparse, dense, codec) of files with the same keys; sparse ones work with any encoding
    of the columns.
    """
    types = KEYS[name][0]
    names = [f"k{i}" for i in range(len(types))]
    # Small blocks, so that a few thousand rows have several.
    of_text = "plain" if "plain" in name else "dictionary"
    specs = {
        n: column(t, block_size=4096, encoding=of_text if t in ("string", "varchar(30)") else "for")
        for n, t in zip(names, types, strict=True)
    }
    schema = build_schema(specs, names)
    codec = KeyCodec([c.type for c in schema.columns])
    columns = arrays(name, numbers)
    keys = codec.encode(columns)
    made = []
    for sparse in (True, False):
        path = f"{folder}/{sparse}"
        with CFileWriter(FILES, path) as writer:
            for of, values in zip(schema.columns, columns, strict=True):
                writer.append_column(column_spec(of, schema), values)
            writer.append_column(*encoded_keys(keys, format.SPARSE_KEY_ROWS_LOG2 if sparse else 0))
            writer.append_bloom(keys.hash64())
            writer.finish(sync=False)
        cache = BlockCache(cache_bytes)
        index = KeyIndex(CFileReader(FILES, path, cache), codec, schema.key_ids, len(numbers), cache)
        assert isinstance(index._stored, SparseKeys if sparse else DenseKeys)
        made.append(index)
    return made[0], made[1], codec


def numbers_of(count: int) -> np.ndarray:
    """Return every third number, so that some keys are missing."""
    return np.arange(count, dtype=np.int64) * 3 + 1


@given(
    name=st.sampled_from(list(KEYS)),
    count=st.sampled_from([1, 2, STRETCH - 1, STRETCH, STRETCH + 1, 3 * STRETCH, 5000, 12_345]),
    cache_bytes=st.sampled_from([0, 1 << 14, 1 << 24]),
    probed=st.lists(st.lists(st.integers(0, 40_000), min_size=1, max_size=60), min_size=1, max_size=8),
)
def test_sparse_keys_find_the_same_rows_as_dense_keys(
    name: str, count: int, cache_bytes: int, probed: list[list[int]]
) -> None:
    """Look-ups of keys that exist or not, and bounds: whole keys, prefixes, and longer bytes."""
    with tempfile.TemporaryDirectory() as folder:
        sparse, dense, codec = indexes(folder, name, numbers_of(count), cache_bytes)
        sparse.check()
        assert sparse.read(0, count).equal_to(dense.read(0, count)).all()
        for batch in probed:
            probes = codec.encode(arrays(name, np.array(sorted(batch), np.int64)))
            assert sparse.find(probes).tolist() == dense.find(probes).tolist()
            for place in range(0, len(probes), 7):
                whole, one = probes.at(place), probes.slice(place, 1)
                assert sparse.find_one(one, whole) == dense.find_one(one, whole)
                for bound in (whole, whole[:4], whole[:-1], whole + b"\0"):
                    for key_range in (KeyRange(bound, None), KeyRange(None, bound)):
                        assert sparse.range(key_range) == dense.range(key_range)
        rows = np.array([0, count - 1, count // 2, 0])
        assert sparse.gather(rows).equal_to(dense.gather(rows)).all()
        for wanted in (1, 10, 1000):
            keys, rowids = sparse.sample(wanted)
            assert rowids[0] == 0 and min(wanted, count) <= len(rowids)
            assert keys.equal_to(dense.gather(rowids)).all()


@pytest.mark.parametrize(
    ("name", "rows_in_blocks"),
    in_turns(
        KEYS,
        [(1, None), (STRETCH - 1, None), (STRETCH, None), (STRETCH + 1, None), (9000, None), (9000, 512)],
    ),
)
def test_exactly_the_stored_keys_are_found(
    name: str, rows_in_blocks: tuple[int, int | None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Keys before, between and after the stored ones, at the ends of each block and group.

    The file has no bloom filter, which would hide errors. Blocks have 512 bytes, so that samples
    take several blocks.
    """
    count, block_bytes = rows_in_blocks
    if block_bytes is not None:
        monkeypatch.setattr(format, "KEY_BLOCK_SIZE_BYTES_DEFAULT", block_bytes)
    probes = np.arange(0, 3 * count + 3)
    expected = np.where((probes % 3 == 1) & (probes < 3 * count), probes // 3, -1)
    sparse, dense, codec = indexes(str(tmp_path), name, numbers_of(count), 0)
    keys = codec.encode(arrays(name, probes))
    assert isinstance(sparse._stored, SparseKeys)
    assert (sparse._stored._samples.column.block_count > 1) == (block_bytes is not None)
    for stored in (sparse._stored, dense._stored):
        assert stored.find(keys, stored.segments(keys), None).tolist() == expected.tolist()
        for row in {0, 1, 127, 128, 129, 255, 256, 4095, 4096, 4097, 8191, 8192, count - 1} & {*range(count)}:
            for number, found, bound in (
                (3 * row, -1, row),
                (3 * row + 1, row, row),
                (3 * row + 2, -1, row + 1),
            ):
                one = keys.slice(number, 1)
                assert stored.find_one(one, one.at(0), None) == found
                assert stored.lower_bound(one.at(0), None) == bound
        for wanted in (1, 10, 1000, 7000):
            some, rowids = stored.sample(wanted)
            assert min(wanted, count) <= len(rowids) <= max(2 * wanted, dense._stored.break_even_segments)
            assert some.equal_to(keys.take(3 * rowids + 1)).all()
        assert len(stored.gather(np.empty(0, np.int64))) == 0


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return a list to which each read of rows [lower, upper) adds an entry."""
    ranges: list[tuple[int, int]] = []
    real = SparseKeys._read

    def note(self: SparseKeys, lower: int, upper: int, stats: ReadStats | None) -> EncodedKeys:
        ranges.append((lower, upper))
        return real(self, lower, upper, stats)

    monkeypatch.setattr(SparseKeys, "_read", note)
    return ranges


@pytest.mark.parametrize("block", [0, 3])
def test_a_key_index_with_a_wrong_key_is_detected(block: int, tmp_path: Path) -> None:
    """A single key column has the key index, and nothing else has the first keys of its blocks."""
    schema = build_schema({"k": column("int64", encoding="for", block_size=512)}, ["k"])
    codec, values = KeyCodec([schema.columns[0].type]), pa.array(np.arange(300) * 2)
    keys = codec.encode([values])

    def first_keys(ordinals: np.ndarray) -> pa.LargeBinaryArray:
        return keys.take(ordinals + (np.arange(len(ordinals)) == block)).to_binary()

    path = str(tmp_path / "f")
    with CFileWriter(FILES, path) as writer:
        writer.append_column(column_spec(schema.columns[0], schema), values, first_keys=first_keys)
        writer.append_bloom(keys.hash64())
        writer.finish(sync=False)
    with pytest.raises(SummaryError, match="in the key index, found other keys"):
        KeyIndex(CFileReader(FILES, path), codec, schema.key_ids, 300).check()


def test_a_key_column_without_a_key_index_is_corruption(tmp_path: Path) -> None:
    """A look-up must raise an error. If it found no key, keys could be inserted twice."""
    schema = build_schema({"k": "int64"}, ["k"])
    codec, values = KeyCodec([schema.columns[0].type]), pa.array(np.arange(300))
    path = str(tmp_path / "f")
    with CFileWriter(FILES, path) as writer:
        writer.append_column(column_spec(schema.columns[0], schema), values)
        writer.finish(sync=False)
    with pytest.raises(CorruptionError, match="has no key index"):
        KeyIndex(CFileReader(FILES, path), codec, schema.key_ids, 300).find(codec.encode([values]))


def forged(
    folder: str, keys: EncodedKeys, columns: list[pa.Array], wrong: set[str], sparse: bool
) -> KeyIndex:
    """Write keys of two numbers with right checksums and wrong content.

    The faults are a wrong sample, encoded key or first key of a block, or a bloom filter in which a
    key is missing.
    """
    types = ["int64", "int32"]
    schema = build_schema({f"k{i}": column(t, encoding="for") for i, t in enumerate(types)}, ["k0", "k1"])
    codec = KeyCodec([c.type for c in schema.columns])
    path = f"{folder}/{'-'.join(sorted(wrong))}-{sparse}"
    spec, stored = encoded_keys(keys, format.SPARSE_KEY_ROWS_LOG2 if sparse else 0)
    values = stored.to_pylist()
    late = len(values) - 2
    if "samples" in wrong:
        values[late] = values[late][:-1] + bytes([values[late][-1] ^ 1])
    with CFileWriter(FILES, path) as writer:
        for of, array in zip(schema.columns, columns, strict=True):
            writer.append_column(column_spec(of, schema), array)
        first_keys = None
        if "index" in wrong:
            made = pa.array(values, pa.large_binary())

            def first_keys(ordinals: np.ndarray) -> pa.LargeBinaryArray:
                return made.take(pa.array(ordinals + (np.arange(len(ordinals)) == len(ordinals) - 1)))

        writer.append_column(spec, pa.array(values, pa.large_binary()), first_keys=first_keys)
        hashes = keys.hash64()
        writer.append_bloom(hashes[:-5] if "bloom" in wrong else hashes)
        writer.finish(sync=False)
    return KeyIndex(CFileReader(FILES, path), codec, schema.key_ids, len(keys))


def test_an_unreadable_bloom_filter_is_reported_after_worse_faults(tmp_path: Path) -> None:
    """The filter can be repaired only if the keys are right, so faults of keys come first."""
    codec = KeyCodec([c.type for c in build_schema({"a": "int64", "b": "int32"}, ["a", "b"]).columns])
    for wrong, words in ((set(), "the bloom filter cannot be read"), ({"order"}, "expected ascending keys")):
        rows = np.arange(3000)
        rows[2000] -= len(wrong)
        columns = arrays("long and short", rows)
        index = forged(str(tmp_path), codec.encode(columns), columns, wrong, True)
        path = Path(index._reader.path)
        offset, length = place_of(path, BLOOM)
        data = bytearray(path.read_bytes())
        data[offset + length // 2] ^= 0x10
        path.write_bytes(data)
        with pytest.raises(CorruptionError, match=words):
            index.check()


@pytest.mark.parametrize(("length", "sparse"), [(200, True), (300, False)])
def test_long_keys_are_stored_densely(length: int, sparse: bool) -> None:
    """With sparse keys, a look-up of 1,000 keys of 16 KB would encode 2 GB of neighbouring keys."""
    codec = KeyCodec([build_schema({"a": "string"}, ["a"]).columns[0].type] * 2)
    text = pa.array(["x"] * 999 + ["x" * length])  # one is enough: it may be the first key of a group
    keys = codec.encode([text, pa.array([f"{n:04}" for n in range(1000)])])
    spec, stored = encoded_keys(keys, format.SPARSE_TEXT_KEY_ROWS_LOG2)
    assert (spec.key.group > 0) == (len(stored) < 1000) == sparse


# ── damaged files ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return the base file of a table with sparse keys, whose store is `tmp_path / "s"`."""
    with open_database(tmp_path / "s") as db:
        table = db.create_table("t", {"a": "int64", "b": "int32", "v": "int64"}, ["a", "b"])
        n = np.arange(3000)
        table.insert(pa.table({"a": n // 7, "b": pa.array(n % 7, pa.int32()), "v": n}))
        db.flush()
        (rowset,) = db._writer().root.table("t").tablets[0].rowsets
        return tmp_path / "s" / rowset.meta.path


def place_of(file: Path, role: int) -> tuple[int, int]:
    """Return the (offset, length) of the first block of the column with this role."""
    with CFileReader(FILES, str(file)) as reader:
        key = next(key for key in reader.columns() if key.role == role)
        found = reader.column(key)
        assert found is not None
        return found.extents()[0]


@pytest.mark.parametrize("part", ["block", "footer"])
def test_damaged_samples_are_detected_and_repaired(file: Path, part: str, tmp_path: Path) -> None:
    """Samples can be computed from the key columns. Until then look-ups raise an error."""
    offset, length = place_of(file, KEY)
    if part == "footer":
        with CFileReader(FILES, str(file)) as reader:
            found = next(reader.column(key) for key in reader.columns() if key.role == KEY)
            assert found is not None
            offset, length = found.place.offset, found.place.length
    data = bytearray(file.read_bytes())
    data[offset + length // 2] ^= 0x10
    file.write_bytes(data)
    with open_database(tmp_path / "s") as db, pytest.raises(CorruptionError):
        db["t"].scan(where="a = 100 AND b >= 3").to_arrow()
    report = nyala.check(tmp_path / "s")
    assert {(problem.kind, problem.repairable) for problem in report.problems} == {("index", True)}
    mended = nyala.check(tmp_path / "s", repair=True)
    assert mended.ok and "with new zone maps" in mended.repairs[0]
    with open_database(tmp_path / "s") as db:
        assert db["t"].get({"a": 100, "b": 3}) == {"a": 100, "b": 3, "v": 703}


@pytest.mark.parametrize("key", [["a"], ["a", "b"]])
def test_a_damaged_key_column_is_not_reported_as_encoded_keys(key: list[str], tmp_path: Path) -> None:
    """Encoded keys can be repaired from the key columns, but not the other way round."""
    schema = build_schema({name: column("int64", encoding="for") for name in key}, key)
    codec, values = KeyCodec([of.type for of in schema.columns]), pa.array(np.arange(2000))
    keys, path = codec.encode([values] * len(key)), tmp_path / "f"
    with CFileWriter(FILES, str(path)) as writer:
        for of in schema.columns:
            first_keys = None if len(key) > 1 else lambda ordinals: keys.take(ordinals).to_binary()
            writer.append_column(column_spec(of, schema), values, first_keys=first_keys)
        if len(key) > 1:
            writer.append_column(*encoded_keys(keys, format.SPARSE_TEXT_KEY_ROWS_LOG2))
        writer.append_bloom(keys.hash64())
        writer.finish(sync=False)
    offset, length = place_of(path, BASE)
    data = bytearray(path.read_bytes())
    data[offset + length // 2] ^= 0x10
    path.write_bytes(data)
    with pytest.raises(CorruptionError) as caught:
        KeyIndex(CFileReader(FILES, str(path)), codec, schema.key_ids, 2000).check()
    assert not isinstance(caught.value, SummaryError)


@pytest.mark.parametrize("encoding", ["for", "plain"])
def test_encoded_keys_that_differ_from_the_key_columns_are_detected(
    encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If both have right checksums, nobody can know which of them is right."""
    real, types = rowset_writer.encoded_keys, build_schema({"a": "int64", "b": "int32"}, ["a", "b"]).columns
    codec = KeyCodec([of.type for of in types])

    def forged(keys: EncodedKeys, key_rows_log2: int, row_bytes: float) -> object:
        assert (key_rows_log2 > 0) == (encoding == "for")
        a, b = codec.decode(keys)
        values = b.to_numpy().copy()
        values[2 * STRETCH] += 1
        return real(codec.encode([a, pa.array(values)]), key_rows_log2, row_bytes)

    monkeypatch.setattr(rowset_writer, "encoded_keys", forged)
    with open_database(tmp_path / "s") as db:
        table = db.create_table("t", {"a": "int64", "b": column("int32", encoding=encoding)}, ["a", "b"])
        n = np.arange(3000)
        table.insert(pa.table({"a": n // 7, "b": pa.array(n % 7 * 10, pa.int32())}))
        db.flush()
    report = nyala.check(tmp_path / "s", repair=True)
    assert not report.ok and not report.repairs
    assert any(
        problem.kind == "damage"
        and not problem.repairable
        and f"row {2 * STRETCH} " in problem.message
        and "key columns" in problem.message
        for problem in report.problems
    ), report.problems


@pytest.mark.parametrize(
    ("group", "count", "words"),
    [
        (40, 1, "expected encoded keys at most 2"),
        (6, 20, "expected 32 keys, found 20"),
        (6, 40, "expected 32 keys, found 40"),
        (0, 20, "expected 2000 keys"),
    ],
)
def test_keys_of_another_file_are_refused(group: int, count: int, words: str, tmp_path: Path) -> None:
    """A group size of 40 would allocate memory without bound; too few keys would hide rows."""
    codec = KeyCodec([build_schema({"a": "int64"}, ["a"]).columns[0].type] * 2)
    values = pa.array(np.arange(2000))
    keys = codec.encode([values, values])
    path = str(tmp_path / "f")
    schema = build_schema(
        {"a": column("int64", encoding="for"), "b": column("int64", encoding="for")}, ["a", "b"]
    )
    with CFileWriter(FILES, path) as writer:
        for of in schema.columns:
            writer.append_column(column_spec(of, schema), values)
        spec, _ = encoded_keys(keys, format.SPARSE_TEXT_KEY_ROWS_LOG2)
        forged = type(spec)(ColumnKey(KEY, group), spec.type)
        writer.append_column(forged, keys.slice(0, count).to_binary())
        writer.append_bloom(keys.hash64())
        writer.finish(sync=False)
    index = KeyIndex(CFileReader(FILES, path), codec, schema.key_ids, 2000)
    with pytest.raises(CorruptionError, match=words):
        index.find(keys.slice(0, 1))


def test_a_missing_key_column_is_corruption(tmp_path: Path) -> None:
    """The keys between two samples come from the key columns, so all of these must exist."""
    codec = KeyCodec([build_schema({"a": "int64"}, ["a"]).columns[0].type] * 2)
    values = pa.array(np.arange(2000))
    keys = codec.encode([values, values])
    path = str(tmp_path / "f")
    with CFileWriter(FILES, path) as writer:
        writer.append_column(*encoded_keys(keys, format.SPARSE_TEXT_KEY_ROWS_LOG2))
        writer.finish(sync=False)
    index = KeyIndex(CFileReader(FILES, path), codec, [10, 11], 2000)
    with pytest.raises(
        CorruptionError, match=r"lacks column 1[01] of the base data, so rows cannot be found by key"
    ):
        index.find(keys.slice(0, 1))
