"""Values are stored without the NULLs between them, and every operation returns them in their rows."""

from __future__ import annotations

import io

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.cfile.encoding.values import ALLOWED
from tests.unit.cfile.memory import MemoryFiles, make_values, same
from tests.unit.cfile.test_roundtrip import COLUMN, written

from nyala.cfile import format
from nyala.cfile.blocks.block import BlockHeader, read_header
from nyala.cfile.blocks.read_stats import Access
from nyala.cfile.column import ColumnWriteSpec
from nyala.cfile.column_reader import ColumnReader
from nyala.cfile.physical import physical
from nyala.cfile.reader import CFileReader
from nyala.cfile.writer import CFileWriter
from nyala.errors import CorruptionError
from nyala.schema.types import parse_type


def headers(files: MemoryFiles, column: ColumnReader) -> list[BlockHeader]:
    """Return the blocks of the only column of the only file."""
    (content,) = files.content.values()
    places = zip(column.footer.block_offsets.tolist(), column.footer.block_lengths.tolist(), strict=True)
    return [read_header(pa.py_buffer(content[at : at + length]), "f", at) for at, length in places]


def sparse(values: pa.Array, row_count: int, seed: int = 0) -> pa.Array:
    """Return these values at random rows, in order, with NULLs elsewhere."""
    rows = np.sort(np.random.default_rng(seed).permutation(row_count)[: len(values)])
    places = np.full(row_count, -1)
    places[rows] = np.arange(len(values))
    return values.take(pa.array(places, mask=places < 0))


@pytest.mark.parametrize(("type", "encoding"), ALLOWED)
@settings(max_examples=max(4, settings().max_examples // 10))
@given(data=st.data())
def test_a_sparse_column_comes_back(type: str, encoding: str, data: st.DataObject) -> None:
    """Each value comes back in its own row."""
    count = data.draw(st.integers(1, 300) | st.sampled_from([63, 64, 65, 128, 700]))
    array = sparse(make_values(type, data.draw(st.integers(1, count)), data.draw(st.integers(0, 9))), count)
    size = data.draw(st.sampled_from([512, 1024, None]))
    column = written(MemoryFiles(), array, type, encoding, data.draw(st.sampled_from(["none", "zstd"])), size)
    lower = data.draw(st.integers(0, count - 1))
    upper = data.draw(st.integers(lower + 1, count))
    expected = array.slice(lower, upper - lower)
    for one in [column.decode(lower, upper), column.decode(lower, upper, access=Access.SCAN)]:
        one.validate(full=True)
        assert same(one, expected)
    rows = np.array(data.draw(st.lists(st.integers(0, count - 1), max_size=9)), np.int64)
    assert same(column.gather(rows), array.take(pa.array(rows)))


def test_a_sparse_column_takes_the_encoding_of_its_values() -> None:
    """NULLs are not encoded as zeros or empty texts."""
    numbers = pa.array(np.random.default_rng(1).integers(1, 3_000, 1 << 16), pa.int64())
    for dense, rows in (
        (numbers, 1 << 18),
        (pa.array(np.random.default_rng(2).integers(0, 900, 1 << 16) / 10), 1 << 18),
    ):
        full = written(MemoryFiles(), dense, str(dense.type))
        column = written(MemoryFiles(), sparse(dense, rows), str(dense.type))
        assert column.encoding == full.encoding
        assert (
            column.size_bytes <= full.size_bytes + rows // 8 + 1024
        )  # validity, and zone maps of more blocks


SPARSE_COLUMNS = {
    "small numbers": ("int64", pa.array(np.random.default_rng(1).integers(0, 1000, 1 << 18))),
    "times": ("int64", pa.array(np.cumsum(np.random.default_rng(1).integers(1, 3_000_000, 1 << 18)))),
    "one digit": ("double", pa.array(np.random.default_rng(1).integers(0, 900, 1 << 18) / 10)),
    "all digits": ("double", pa.array(np.random.default_rng(1).random(1 << 18))),
    "words": ("string", pa.array([f"word {n % 300}" for n in range(1 << 18)])),
    "names": ("string", pa.array([f"u{n * 7919 % 1_000_003}" for n in range(1 << 18)])),
    "flags": ("bool", pa.array(np.random.default_rng(1).random(1 << 18) < 0.3)),
}


@pytest.mark.parametrize("name", SPARSE_COLUMNS)
@pytest.mark.parametrize("null_share", [0.5, 0.9, 0.97])
def test_a_sparse_column_is_smaller_than_in_parquet(name: str, null_share: float) -> None:
    """A column with 97 % NULLs takes few bits per row.

    It takes 0.9 bits in Parquet with Snappy, and took 2.9 in an earlier version of Nyala.
    """
    type, values = SPARSE_COLUMNS[name]
    mask = np.random.default_rng(3).random(len(values)) < null_share
    array = pa.array(values.to_pylist(), values.type, mask=mask)
    pq.write_table(pa.table({"a": array}), sink := io.BytesIO(), compression="snappy")
    parquet = pq.read_metadata(sink).row_group(0).column(0).total_compressed_size
    assert written(MemoryFiles(), array, type).size_bytes < parquet


# -- what a reader checks ----------------------------------------------------------------------------------


def sealed(header: BlockHeader, block: bytes) -> bytes:
    body = header.pack() + block[format.BLOCK_HEADER.size : -format.CRC.size]
    return body + format.CRC.pack(google_crc32c.value(body))


@pytest.mark.parametrize("type", ["decimal(9,2)", "decimal(18,0)"])
def test_a_decimal_with_too_many_digits_raises_with_and_without_nulls(type: str) -> None:
    """A look-up raises the same error whether the block has NULLs or not."""
    form = physical(parse_type(type))
    too_long = np.array([10**form.type.precision, 7, 8], f"<i{form.width_bytes}")
    files = MemoryFiles()
    values = pa.array([5, None, 7, None, 8], pa.int64()).cast(pa.decimal128(19, 0)).cast(form.arrow)
    column = written(files, values, type, "plain", "none")
    (path,) = files.content
    (offset, length), *_ = column.extents()
    block = files.content[path][offset : offset + length]
    header = BlockHeader.unpack(block)
    at = header.values_start
    forged = block[:at] + too_long.tobytes() + block[at + too_long.nbytes :]
    files.content[path] = files.content[path].replace(block, sealed(header, forged))
    found = CFileReader(files, path).column(COLUMN)
    assert found is not None
    rows = np.array([0, 1, 4])
    assert found.gather(rows).is_null().to_pylist() == [False, True, False]
    assert found.gather(rows).equals(found.decode(0, 5, access=Access.SCAN).take(pa.array(rows)))


@pytest.mark.parametrize("encoding", ["plain", "for", "rle"])
def test_a_bitmap_with_a_wrong_count_is_refused(encoding: str) -> None:
    """A bitmap with more or fewer ones than values is refused."""
    array = pa.array([1, None, 3, None, None, 6, 7], pa.int32())
    written(files := MemoryFiles(), array, "int32", encoding)
    (path,) = files.content
    column = CFileReader(files, path).column(COLUMN)
    assert column is not None
    (offset, length), *_ = column.extents()
    block = bytearray(files.content[path][offset : offset + length])
    block[format.BLOCK_HEADER.size] |= 0b10
    content = files.content[path]
    forged = sealed(BlockHeader.unpack(bytes(block)), bytes(block))
    files.content[path] = content[:offset] + forged + content[offset + length :]
    with pytest.raises(CorruptionError, match="expected 4 values, found a bitmap with 5 ones"):
        column.decode(0, 7)


def test_bitmaps_of_few_values_are_small() -> None:
    """The bitmap of a column with 97 % NULLs is compressed well: to 0.29 bits per row by Zstandard."""
    rows = 1 << 17
    array = pa.array(np.ones(rows, np.int64), mask=np.random.default_rng(1).random(rows) < 0.97)
    with CFileWriter(files := MemoryFiles(), "f") as writer:
        writer.append_column(ColumnWriteSpec(COLUMN, parse_type("int64"), "for"), array)
        writer.finish()
    column = CFileReader(files, "f").column(COLUMN)
    assert column is not None and column.decode(0, rows).equals(array)
    (header,) = headers(files, column)
    assert header.validity_compression == format.COMPRESSION_ZSTD and header.validity_length * 8 < 0.35 * rows
