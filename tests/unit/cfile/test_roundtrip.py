"""Values come back as written: every type, encoding, compression, block size and kind of read."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.cfile.memory import TYPE_SPECS, MemoryFiles, make_values, same

from nyala.cfile.blocks.cache import BlockCache
from nyala.cfile.blocks.read_stats import Access
from nyala.cfile.column import BASE, DELTA_VALUE, KEY, ColumnKey, ColumnWriteSpec
from nyala.cfile.column_reader import ColumnReader
from nyala.cfile.memory import pool
from nyala.cfile.reader import CFileReader
from nyala.cfile.writer import CFileWriter
from nyala.schema.types import parse_type

COLUMN = ColumnKey(BASE, 0, 10)


def written(
    files: MemoryFiles,
    array: pa.Array,
    type: str,
    encoding: str = "auto",
    compression: str = "default",
    block_size_bytes: int | None = None,
    cache: BlockCache | None = None,
) -> ColumnReader:
    path = f"file-{len(files.content)}"
    with CFileWriter(files, path) as writer:
        spec = ColumnWriteSpec(COLUMN, parse_type(type), encoding, compression, block_size_bytes)
        writer.append_column(spec, array)
        places = writer.finish().columns
    reader = CFileReader(files, path, cache, places)
    reader.check()
    column = reader.column(COLUMN)
    assert column is not None
    return column


ENCODINGS = ["auto", "plain", "bitshuffle", "dictionary", "rle", "for", "prefix"]


@pytest.mark.parametrize("compression", ["none", "lz4", "snappy", "zlib", "zstd"])
def test_every_compression(files: MemoryFiles, compression: str) -> None:
    """A column with any compression can be read, and is smaller."""
    array = pa.array(["the same words again and again"] * 2000)
    column = written(files, array, "string", "plain", compression)
    assert column.decode(0, 2000).equals(array)
    assert (column.size_bytes < 30_000) == (compression != "none")


def test_incompressible_values_are_stored_uncompressed(files: MemoryFiles) -> None:
    """Random bytes are stored uncompressed, so that reading them costs no decompression."""
    noise = pa.array([np.random.default_rng(0).bytes(1000) for _ in range(50)], pa.binary())
    column = written(files, noise, "binary", "plain", "zstd")
    assert column.decode(0, 50).equals(noise)
    assert column.size_bytes < 50_000 + 400


@st.composite
def columns(draw: st.DrawFn) -> tuple[str, pa.Array, str, str, int]:
    type = draw(st.sampled_from(TYPE_SPECS))
    count = draw(st.integers(0, 300))
    null_share = draw(st.sampled_from([0.0, 0.1, 0.9, 1.0]))
    array = make_values(type, count, draw(st.integers(0, 5)), null_share)
    lower = draw(st.integers(0, count))
    array = array.slice(lower, draw(st.integers(0, count - lower)))
    encoding = draw(st.sampled_from(["auto", "plain", "bitshuffle", "dictionary", "rle", "for", "prefix"]))
    compression = draw(st.sampled_from(["default", "none", "lz4", "zstd"]))
    return type, array, encoding, compression, draw(st.sampled_from([512, 600, 4096]))


@given(columns(), st.data())
def test_any_part_of_any_column(column_of: tuple[str, pa.Array, str, str, int], data: st.DataObject) -> None:
    """A range or scattered rows of any column come back as written."""
    type, array, encoding, compression, block_size = column_of
    cache = data.draw(st.sampled_from([None, BlockCache(1 << 20), BlockCache(3000)]))
    column = written(MemoryFiles(), array, type, encoding, compression, block_size, cache)
    for _ in range(3):
        lower = data.draw(st.integers(0, len(array)))
        upper = data.draw(st.integers(lower, len(array)))
        part = column.decode(lower, upper, access=data.draw(st.sampled_from(Access)))
        part.validate(full=True)
        assert same(part, array.slice(lower, upper - lower))
        if len(array):
            ordinals = data.draw(st.lists(st.integers(0, len(array) - 1), max_size=20))
            if data.draw(st.booleans()):
                ordinals.sort()
            rows = np.array(ordinals, np.int64)
            assert same(column.gather(rows), array.take(pa.array(rows)))
    if cache is not None:
        cache.check()


def test_chunked_large_and_dictionary_values(files: MemoryFiles) -> None:
    """Chunked arrays, 64-bit offsets and dictionary arrays can be written."""
    expected = pa.array(["a", None, "bc", "a"])
    for form in (
        pa.chunked_array([expected.slice(0, 1), expected.slice(1)]),
        pa.chunked_array([expected]),
        expected.cast(pa.large_string()),
        expected.dictionary_encode(),
    ):
        assert written(files, form, "string").decode(0, 4).equals(expected)
    assert len(written(files, pa.chunked_array([], pa.string()), "string").decode(0, 0)) == 0


def test_keys_come_back_with_64_bit_offsets(files: MemoryFiles) -> None:
    """Keys come back with 64-bit offsets, since those of a large rowset exceed 2 GiB."""
    keys = pa.array([b"a", b"a\0", b"b" * 300], pa.large_binary())
    with CFileWriter(files, "keys") as writer:
        writer.append_column(ColumnWriteSpec(ColumnKey(KEY), parse_type("binary")), keys)
        writer.finish()
    column = CFileReader(files, "keys").column(ColumnKey(KEY))
    assert column is not None
    assert column.decode(0, 3).equals(keys)
    assert column.gather(np.array([2, 0])).equals(keys.take(pa.array([2, 0])))
    assert column.decode(1, 1).type == pa.large_binary()


def test_many_columns_of_different_lengths_in_one_file(files: MemoryFiles) -> None:
    """A file may have columns of different lengths, as delta files do."""
    arrays = {ColumnKey(DELTA_VALUE, group, -1 if group == 0 else group): group for group in range(300)}
    with CFileWriter(files, "wide") as writer:
        for key, count in arrays.items():
            writer.append_column(
                ColumnWriteSpec(key, parse_type("int64")), pa.array(range(count), pa.int64())
            )
        writer.finish()
    assert len(files.appends) <= 4, "300 columns of a small flush are not 300 writes"
    reader = CFileReader(files, "wide")
    assert reader.columns() == tuple(arrays)
    for key, count in arrays.items():
        column = reader.column(key)
        assert column is not None and column.decode(0, count).to_pylist() == list(range(count))
    assert reader.column(ColumnKey(BASE, 0, 10)) is None
    reader.check()


def test_values_under_nulls_are_not_written(files: MemoryFiles) -> None:
    """The bytes under a NULL are not written: they may be other data of the process."""
    secret = pa.array([0x5EC2E75EC2E7] * 100, pa.int64())
    hidden = pa.Array.from_buffers(
        pa.int64(), 100, [pa.py_buffer(b"\x01" + bytes(12)), secret.buffers()[1]], 99
    )
    written(files, hidden, "int64", "plain", "none")
    assert (
        files.content["file-0"].count((0x5EC2E75EC2E7).to_bytes(8, "little")) == 3
    )  # the value and its zone
    text = pa.array(["secret"] * 100)
    hidden = pa.Array.from_buffers(
        pa.string(), 100, [pa.py_buffer(b"\x01" + bytes(12)), *text.buffers()[1:]], 99
    )
    written(files, hidden, "string", "plain", "none")
    assert files.content["file-1"].count(b"secret") == 3


def test_plain_values_are_not_copied(files: MemoryFiles) -> None:
    """Plain values are not copied when they are read, and their buffers are aligned."""
    array = pa.array(np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 800_000))
    column = written(files, array, "int64", "plain", "none")
    assert column.block_count == 4
    pools = [pa.default_memory_pool(), pool()]
    before = [each.bytes_allocated() for each in pools]
    block = column.decode(column.rows_per_block, 2 * column.rows_per_block)
    allocated = sum(each.bytes_allocated() for each in pools) - sum(before)
    read = int(column.footer.block_lengths[1])
    assert read <= allocated < read + 64, "only the buffer of the read, which Arrow rounds up, was allocated"
    assert block.buffers()[1].address % 16 == 0
    offsets = column.footer.block_offsets
    assert not (offsets % 16).any()


def test_sorted_dictionary(files: MemoryFiles) -> None:
    """The entries of a dictionary are sorted."""
    array = pa.array(["b", "é", "a", "b", None] * 1000)
    column = written(files, array, "string")
    assert column.encoding == "dictionary"
    column.decode(0, 1)
    dictionary = column.decode(0, 1, column.cheap_type).dictionary
    assert dictionary is not None and dictionary.to_pylist() == ["a", "b", "é"]
    assert pc.all(pc.equal(column.decode(0, len(array)), array)).as_py()
