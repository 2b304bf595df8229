"""Values without the NULLs between them: when they are stored so, that they come to their rows, whatever they are read
as, and that nothing else is believed of a block."""

from __future__ import annotations

import dataclasses
import io

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.unit.cfile.encoding.values import ALLOWED
from tests.unit.cfile.memory import MemoryFiles, make_values, same
from tests.unit.cfile.test_roundtrip import COLUMN, written

from nyala.cfile import format
from nyala.cfile.block import BlockHeader, decode_block, encode_blocks, read_header
from nyala.cfile.column import ColumnWriteSpec
from nyala.cfile.column_reader import ColumnReader
from nyala.cfile.dump import dump
from nyala.cfile.encoding import choose_encoding, encoding_by_code
from nyala.cfile.physical import physical
from nyala.cfile.read_stats import Access
from nyala.cfile.reader import CFileReader
from nyala.cfile.writer import CFileWriter
from nyala.errors import CorruptionError, StorageError
from nyala.schema.types import parse_type

INT32 = physical(parse_type("int32"))


def headers(files: MemoryFiles, column: ColumnReader) -> list[BlockHeader]:
    """Of the blocks of the only column of the only file."""
    (content,) = files.content.values()
    places = zip(column.footer.block_offsets.tolist(), column.footer.block_lengths.tolist(), strict=True)
    return [read_header(pa.py_buffer(content[at : at + length]), "f", at) for at, length in places]


def sparse(values: pa.Array, row_count: int, seed: int = 0) -> pa.Array:
    """These values at random rows, in their order; NULL elsewhere."""
    rows = np.sort(np.random.default_rng(seed).permutation(row_count)[: len(values)])
    places = np.full(row_count, -1)
    places[rows] = np.arange(len(values))
    return values.take(pa.array(places, mask=places < 0))


@pytest.mark.parametrize(
    ("type", "null_count", "is_dense"),
    [
        ("int32", 0, False),
        ("int32", 19, False),
        ("int32", 20, True),
        ("int32", 99, True),
        ("int32", 100, False),
        ("bool", 39, False),
        ("bool", 40, True),
    ],
)
def test_a_fifth_of_nulls_makes_a_column_dense(type: str, null_count: int, is_dense: bool) -> None:
    """A column with few NULLs would be spread out for nothing, or a sparse one take as much room as a full one."""
    array = sparse(make_values(type, 100 - null_count), 100)
    column = written(files := MemoryFiles(), array, type, "plain", "none")
    (header,) = headers(files, column)
    assert header.placement == (format.PLACEMENT_DENSE if is_dense else format.PLACEMENT_HOLES)
    assert column.footer.has_dense == is_dense
    assert same(column.decode(0, 100), array)


def test_a_block_without_nulls_and_one_of_nulls_have_nothing_to_place() -> None:
    """A reader would look for a bitmap that is not there."""
    few = sparse(make_values("int32", 9), 64)
    array = pa.concat_arrays([make_values("int32", 128), pa.nulls(256, pa.int32()), few])
    column = written(files := MemoryFiles(), array, "int32", "plain", "none", block_size_bytes=512)
    found = [(of.null_count, of.placement, of.values_length) for of in headers(files, column)]
    assert found == [(0, 0, 512), (128, 0, 0), (128, 0, 0), (55, 1, 36)]
    assert column.decode(0, len(array)).equals(array)
    text = "\n".join(dump(files, *files.content))
    assert "rows [384, 448), NULLs 55, dense, plain" in text and text.count("dense") == 1


def test_runs_have_holes() -> None:
    """A NULL costs a run nothing: who asks for runs would get rows."""
    values = pa.array(np.repeat(np.arange(40), 100), mask=np.arange(4000) % 3 > 0)
    column = written(files := MemoryFiles(), values, "int64", "rle")
    assert [of.placement for of in headers(files, column)] == [format.PLACEMENT_HOLES]
    assert not column.footer.has_dense and column.decode(0, 4000).equals(values)


@pytest.mark.parametrize(("type", "encoding"), ALLOWED)
@given(data=st.data())
def test_whatever_is_read_of_a_sparse_column_is_as_it_was(
    type: str, encoding: str, data: st.DataObject
) -> None:
    """A value would be another row's."""
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
    """NULLs were values to the encodings: words had a word more, floats a zero each."""
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
    """2.9 bits a row of a column that is 97 % NULL, where Parquet with Snappy has 0.9 (before 2026-11-25)."""
    type, values = SPARSE_COLUMNS[name]
    mask = np.random.default_rng(3).random(len(values)) < null_share
    array = pa.array(values.to_pylist(), values.type, mask=mask)
    pq.write_table(pa.table({"a": array}), sink := io.BytesIO(), compression="snappy")
    parquet = pq.read_metadata(sink).row_group(0).column(0).total_compressed_size
    assert written(MemoryFiles(), array, type).size_bytes < parquet


# -- what a reader believes --------------------------------------------------------------------------------


def sealed(header: BlockHeader, block: bytes) -> bytes:
    body = header.pack() + block[format.BLOCK_HEADER.size : -format.CRC.size]
    return body + format.CRC.pack(google_crc32c.value(body))


def block_of(array: pa.Array, *, dense: bool) -> bytes:
    values = array.drop_null() if dense else array
    encoding, encoder, _ = choose_encoding("plain", INT32, values)
    validity = array.is_valid().buffers()[1]
    (parts,) = encode_blocks(
        encoding, encoder, format.COMPRESSION_NONE, validity, len(array), 20, dense=dense
    )
    return b"".join(parts)


def decoded(block: bytes, rows: int) -> pa.Array:
    return decode_block(INT32, pa.py_buffer(block), 0, rows, None, "f", 64).decode(0, rows, pa.int32())


SOME = pa.array([1, None, 3, None, None, 6, 7], pa.int32())


@pytest.mark.parametrize(
    ("array", "dense", "placement", "reason"),
    [
        (SOME, True, 2, "expected values with holes or, beside NULLs, dense ones, found placement 2"),
        (SOME, True, 0, "expected 28 bytes for 7 values, found 16"),
        (SOME, False, 1, "expected 16 bytes for 4 values, found 28"),
        (SOME.drop_null(), False, 1, "beside NULLs, dense ones, found placement 1"),
        (pa.nulls(7, pa.int32()), False, 1, "beside NULLs, dense ones, found placement 1"),
    ],
)
def test_placements_that_cannot_be(array: pa.Array, dense: bool, placement: int, reason: str) -> None:
    """Values would be given to other rows, or taken from behind the block."""
    block = block_of(array, dense=dense)
    header = dataclasses.replace(BlockHeader.unpack(block), placement=placement)
    with pytest.raises(CorruptionError, match=f"f at offset 64: .*{reason}"):
        decoded(sealed(header, block), len(array))


@pytest.mark.parametrize("type", ["int32", "bool", "string"])
def test_a_block_and_its_column_say_the_same_of_placement(type: str) -> None:
    """Where a block does not say how many values it has (a line of no bits, bits, prefixes), one changed byte would
    give them to other rows."""
    array = pa.array([1, None, 2, None, 3, None, 4, None]).cast(
        pa.int32() if type == "int32" else pa.string()
    )
    if type == "bool":
        array = pa.array([True, None, False, None, True, None, True, None])
    column = written(files := MemoryFiles(), array, type, "for" if type == "int32" else "plain")
    (path,) = files.content
    (offset, length), *_ = column.extents()
    block = files.content[path][offset : offset + length]
    header = BlockHeader.unpack(block)
    assert header.placement == format.PLACEMENT_DENSE
    forged = sealed(dataclasses.replace(header, placement=format.PLACEMENT_HOLES), block)
    files.content[path] = files.content[path].replace(block, forged)
    found = CFileReader(files, path).column(COLUMN)
    assert found is not None
    with pytest.raises(
        CorruptionError, match="expected placement 1 beside NULLs, as the column's footer says"
    ):
        found.decode(0, len(array), access=Access.SCAN)


@pytest.mark.parametrize("type", ["decimal(9,2)", "decimal(18,0)"])
def test_a_decimal_of_too_many_digits_is_the_same_with_and_without_nulls(type: str) -> None:
    """Look-ups ended in an error of Arrow's where there was a NULL besides, as its cast counts digits."""
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


def test_a_bitmap_of_other_rows_is_refused() -> None:
    """There would be more rows with a value than values."""
    block = bytearray(block_of(SOME, dense=True))
    block[format.BLOCK_HEADER.size] |= 0b10
    with pytest.raises(CorruptionError, match="expected 4 values, found a bitmap of 5"):
        decoded(sealed(BlockHeader.unpack(bytes(block)), bytes(block)), 7)


def test_a_version_that_knows_no_dense_values_refuses_the_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would read the first value as that of the first row."""
    written(files := MemoryFiles(), SOME, "int32")
    (path,) = files.content
    monkeypatch.setattr(format, "COLUMN_INCOMPATIBLE_KNOWN", 0)
    with pytest.raises(StorageError, match="written by a newer version of Nyala"):
        CFileReader(files, path).column(COLUMN)


@pytest.mark.parametrize("encoding", [format.ENCODING_RLE, format.ENCODING_BITSHUFFLE])
@given(ones=st.lists(st.booleans(), min_size=2, max_size=200).filter(lambda ones: 0 < sum(ones) < len(ones)))
@example(ones=[True, False])
@example(ones=[False] * 64 + [True] * 64)
def test_dense_blocks_of_any_encoding_are_read(encoding: int, ones: list[bool]) -> None:
    """Another writer may do what ours does not: runs that are dense come as rows."""
    known = encoding_by_code(encoding)
    assert known is not None
    array = pa.array(np.arange(len(ones)) // 5, pa.int32(), mask=~np.array(ones))
    encoder = known.prepare(INT32, array.drop_null())
    assert encoder is not None
    validity = array.is_valid().buffers()[1]
    (parts,) = encode_blocks(known, encoder, format.COMPRESSION_NONE, validity, len(ones), 20, dense=True)
    block = pa.py_buffer(b"".join(parts))
    found = decode_block(INT32, block, 0, len(ones), None, "f", 0)
    assert found.decode(0, len(ones), pa.int32()).equals(array)


def test_bitmaps_of_few_values_are_small() -> None:
    """Of 97 % NULLs the bitmap would be most of the column: LZ4 leaves 0.54 bits a row, Zstd 0.29."""
    rows = 1 << 17
    array = pa.array(np.ones(rows, np.int64), mask=np.random.default_rng(1).random(rows) < 0.97)
    with CFileWriter(files := MemoryFiles(), "f") as writer:
        writer.append_column(ColumnWriteSpec(COLUMN, parse_type("int64"), "for"), array)
        writer.finish()
    column = CFileReader(files, "f").column(COLUMN)
    assert column is not None and column.decode(0, rows).equals(array)
    (header,) = headers(files, column)
    assert header.validity_compression == format.COMPRESSION_ZSTD and header.validity_length * 8 < 0.35 * rows
