"""One block: which parts are stored, and which headers a reader refuses."""

from __future__ import annotations

import google_crc32c
import pyarrow as pa
import pytest
from tests.unit.cfile.memory import MemoryFiles

from nyala.cfile import format
from nyala.cfile.blocks.block import BlockHeader, block_rows, decode_block, encode_blocks
from nyala.cfile.blocks.cache import BlockCache
from nyala.cfile.column import BASE, ColumnKey, ColumnWriteSpec
from nyala.cfile.encoding import PLAIN
from nyala.cfile.physical import physical
from nyala.cfile.reader import CFileReader
from nyala.cfile.writer import CFileWriter
from nyala.errors import CorruptionError
from nyala.schema.types import parse_type

FORM = physical(parse_type("int32"))


def block_of(array: pa.Array, compression: int = format.COMPRESSION_NONE) -> bytes:
    encoder = PLAIN.prepare(FORM, array.drop_null())
    assert encoder is not None
    (parts,) = encode_blocks(PLAIN, encoder, compression, array, block_rows(array, 20))
    return b"".join(parts)


def decoded(block: bytes, row_count: int) -> pa.Array:
    return decode_block(FORM, PLAIN, pa.py_buffer(block), 0, row_count, None, "f", 64).decode(
        0, row_count, FORM.arrow
    )


def test_parts_without_information_are_not_stored() -> None:
    """A block stores no bitmap without NULLs, and neither bitmap nor values if all are NULL."""
    values, some, none = (pa.array(column, pa.int32()) for column in ([1, 2, 3], [1, None, 3], [None] * 3))
    headers = [BlockHeader.unpack(block_of(array)) for array in (values, some, none)]
    assert [(header.null_count, header.validity_length, header.values_length) for header in headers] == [
        (0, 0, 12),
        (1, 1, 8),
        (3, 0, 0),
    ]
    for array in (values, some, none):
        block = block_of(array)
        assert len(block) == BlockHeader.unpack(block).block_length and len(block) % 16 == 0
        assert decoded(block, 3).equals(array)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("first_ordinal", 8, "rows from ordinal 0"),
        ("row_count", 9, "block of 10 rows"),
        ("row_count", (1 << 20) + 1, "at most 1048576 rows"),
        ("null_count", 11, "no more NULLs than rows"),
        ("null_count", 2, "8 values, found a bitmap with 7 ones"),
        ("null_count", 0, "fit 10 rows with 0 NULLs, found 28 bytes of values and 2 bytes"),
        ("null_count", 10, "fit 10 rows with 10 NULLs, found 28 bytes of values and 2 bytes"),
        ("validity_length", 1 << 30, "found a header for"),
        ("values_length", 1 << 30, "found a header for"),
        ("values_size", format.BLOCK_VALUES_BYTES_MAX + 1, "at most 67108864 bytes of values"),
        ("values_size", 27, "uncompressed bytes"),
        (
            "encoding",
            format.ENCODING_DICTIONARY,
            "encoding 1 .plain., as the column's footer says, found number 5",
        ),
        ("encoding", 99, "as the column's footer says, found number 99"),
        ("compression", 9, "known compression"),
        ("validity_compression", 9, "known compression"),
    ],
)
def test_impossible_headers_are_refused(field: str, value: int, reason: str) -> None:
    """A forged header is refused before memory is allocated or bytes are read by it."""
    block = block_of(pa.array([1, None, 3, 4, None, 6, 7, None, 9, 10], pa.int32()))
    header = BlockHeader.unpack(block)._replace(**{field: value})
    body = header.pack() + block[format.BLOCK_HEADER.size : -format.CRC.size]
    with pytest.raises(CorruptionError, match=f"f at offset 64: expected .*{reason}"):
        decoded(body + format.CRC.pack(google_crc32c.value(body)), 10)


def test_a_bitmap_with_ones_after_its_last_row_is_refused() -> None:
    """A bitmap with ones after its last row is refused, since readers would count NULLs
    differently.
    """
    block = bytearray(block_of(pa.array([1, None, 3], pa.int32())))
    block[format.BLOCK_HEADER.size] = 0b1001  # as many ones as there are values, but not among the three rows
    block[-4:] = format.CRC.pack(google_crc32c.value(bytes(block[:-4])))
    with pytest.raises(CorruptionError, match="zeros after the last row"):
        decoded(bytes(block), 3)


def test_a_block_without_bytes_is_refused() -> None:
    """A block without bytes raises CorruptionError."""
    for length in (0, 3, 35):
        with pytest.raises(CorruptionError, match="expected a block of at least"):
            decoded(bytes(length), 3)


def test_check_reads_the_file_and_not_the_cache() -> None:
    """The check finds damage on disk even if the block is in the cache."""
    files, key = MemoryFiles(), ColumnKey(BASE)
    for array in (pa.array([1, 2, 3], pa.int32()), pa.array(["a", "b"] * 50)):
        with CFileWriter(files, path := str(array.type)) as writer:
            writer.append_column(ColumnWriteSpec(key, parse_type(path)), array)
            writer.finish()
        reader = CFileReader(files, path, BlockCache(1 << 20))
        column = reader.column(key)
        assert column is not None and column.decode(0, len(array)).equals(array)
        reader.check()
        content = bytearray(files.content[path])
        content[70] ^= 1  # in the first block: values, or the dictionary
        files.content[path] = bytes(content)
        assert column.decode(0, len(array)).equals(array)
        with pytest.raises(CorruptionError, match="at offset 48"):
            reader.check()
