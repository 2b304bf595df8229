"""Writes and reads the bytes of one block: header, validity bitmap, values, padding, CRC.

    ┌────────┬──────────┬─────────┬────────┬─────────┬─────────┐
    │ header │ validity │ padding │ values │ padding │ CRC-32C │   a multiple of 16 bytes
    └────────┴──────────┴─────────┴────────┴─────────┴─────────┘
      32 B     only with NULLs                         of all bytes before it

The header contains the first ordinal and the row count of the block. A reader compares both with
the column's footer, and so detects a block from the wrong offset although its CRC is right. The
values do not include NULLs (`forms.validity`). If every row is NULL, the block has neither bitmap
nor values.

Blocks, and the values in them, begin at multiples of 16 bytes in the file. So plain, uncompressed
values can be used as an Arrow buffer without a copy.

A reader first checks the length that was read and the CRC. Then it compares the header with the
footer, and every length with the block's size. At last it checks the decompressed size and the
values (see `Encoding.decode`). Every failure is a CorruptionError.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import google_crc32c
import numpy as np
import pyarrow as pa

from nyala import compute as pc
from nyala.cfile import format
from nyala.cfile.compression import compress, decompress
from nyala.cfile.encoding.base import BlockEncoder, EncodedValues, Encoding
from nyala.cfile.forms.column_block import ColumnBlock, NullBlock
from nyala.cfile.forms.validity import Validity
from nyala.cfile.physical import Physical, narrowest, slice_bitmap
from nyala.errors import CorruptionError

BLOCK_BYTES_MIN: Final = format.BLOCK_HEADER.size + format.CRC.size
_BITMAP_SIZE_FACTOR: Final = 1.25
_NOTHING: Final = pa.py_buffer(b"")


class BlockHeader(NamedTuple):
    """The first 32 bytes of a block. The fields are in file order."""

    first_ordinal: int
    row_count: int
    null_count: int
    validity_length: int  # stored bytes; 0 if no row, or every row, is NULL
    values_length: int  # stored bytes
    values_size: int  # uncompressed bytes
    encoding: int
    compression: int
    validity_compression: int
    zero: int = 0

    def pack(self) -> bytes:
        return format.BLOCK_HEADER.pack(*self)

    @classmethod
    def unpack(cls, data: pa.Buffer | bytes) -> BlockHeader:
        return cls(*format.BLOCK_HEADER.unpack_from(data))

    @property
    def values_start(self) -> int:
        return _aligned(format.BLOCK_HEADER.size + self.validity_length)

    @property
    def block_length(self) -> int:
        return _aligned(self.values_start + self.values_length + format.CRC.size)


def _aligned(length: int) -> int:
    return length + -length % format.BLOCK_ALIGNMENT_BYTES


class BlockRows(NamedTuple):
    """The rows of one block: the range of rows, and the range of their dense values.

    The block has the rows [lower, upper) of the column. Their values that are not NULL are
    [first, last) of the column's dense values, which are its values without NULLs.
    """

    lower: int
    upper: int
    first: int
    last: int


def block_rows(column: pa.Array, log2: int) -> list[BlockRows]:
    """Divide a column into blocks of 2^`log2` rows. The last block may have fewer rows."""
    borders = np.append(np.arange(0, len(column), 1 << log2), len(column))
    values = borders
    if column.null_count:
        is_valid = pc.is_valid(column).to_numpy(zero_copy_only=False)
        counts = np.add.reduceat(is_valid, borders[:-1], dtype=np.int64)
        values = np.append(0, np.cumsum(counts))
    blocks = zip(pairwise(borders.tolist()), pairwise(values.tolist()), strict=True)
    return [BlockRows(*rows, *of_rows) for rows, of_rows in blocks]


def encode_blocks(
    encoding: Encoding,
    encoder: BlockEncoder,
    compression: int,
    column: pa.Array,
    blocks: Sequence[BlockRows],
) -> Iterator[list[pa.Buffer | bytes]]:
    """Yield the bytes of each block as a list of buffers, to be written one after another.

    encoder: the encoder of the column's dense values.
    """
    validity = pc.is_valid(column).buffers()[1] if column.null_count else None
    for rows in blocks:
        count, value_count = rows.upper - rows.lower, rows.last - rows.first
        values, bitmap = _NOTHING, _NOTHING
        if value_count:
            values = encoder.encode(rows.first, rows.last)
        if 0 < value_count < count:
            assert validity is not None
            bitmap = pa.py_buffer(slice_bitmap(validity, rows.lower, count))
        yield _block(encoding, compression, rows.lower, count, count - value_count, bitmap, values)


def _block(
    encoding: Encoding,
    compression: int,
    first_ordinal: int,
    row_count: int,
    null_count: int,
    bitmap: pa.Buffer,
    values: pa.Buffer,
) -> list[pa.Buffer | bytes]:
    if values.size > format.BLOCK_VALUES_BYTES_MAX:
        raise ValueError(
            f"{row_count} values take {values.size} bytes, more than {format.BLOCK_VALUES_BYTES_MAX} in a block"
        )
    validity_compression, stored_bitmap = format.COMPRESSION_NONE, bitmap
    if bitmap.size:
        validity_compression, stored_bitmap = _packed_bitmap(bitmap)
    values_compression, stored_values = compress(compression, values)
    header = BlockHeader(
        first_ordinal,
        row_count,
        null_count,
        stored_bitmap.size,
        stored_values.size,
        values.size,
        encoding.code,
        values_compression,
        validity_compression,
    )
    start, end = header.values_start, header.values_start + header.values_length + format.CRC.size
    parts = [
        header.pack(),
        stored_bitmap,
        bytes(start - format.BLOCK_HEADER.size - header.validity_length),
        stored_values,
        bytes(-end % format.BLOCK_ALIGNMENT_BYTES),
    ]
    parts = [part for part in parts if len(part)]
    crc = 0
    for part in parts:
        crc = google_crc32c.extend(crc, part)
    return [*parts, format.CRC.pack(crc)]


def _packed_bitmap(bitmap: pa.Buffer) -> tuple[int, pa.Buffer]:
    """Compress a bitmap. Return the code of the used compression, and the compressed bytes.

    Uses LZ4, or Zstandard if LZ4's result is more than a quarter larger than Zstandard's. For
    scattered bits, Zstandard needs half the space of LZ4, and decompresses in 0.2 ns per row.
    """
    lz4, zstd = compress(format.COMPRESSION_LZ4, bitmap), compress(format.COMPRESSION_ZSTD, bitmap)
    return zstd if lz4[1].size > zstd[1].size * _BITMAP_SIZE_FACTOR else lz4


def compare_crc(block: pa.Buffer, path: str, offset: int) -> None:
    """Raise CorruptionError if these bytes are too few for a block, or if their CRC is wrong."""
    if block.size < BLOCK_BYTES_MIN:
        raise CorruptionError(
            f"expected a block of at least {BLOCK_BYTES_MIN} bytes, found {block.size}", path, offset
        )
    body = block.slice(0, block.size - format.CRC.size)
    (expected,) = format.CRC.unpack_from(block, body.size)
    found = google_crc32c.value(body)
    if found != expected:
        raise CorruptionError(
            f"expected a block of {block.size} bytes with CRC-32C {expected:08x}, found {found:08x}",
            path,
            offset,
        )


def read_header(block: pa.Buffer, path: str, offset: int) -> BlockHeader:
    """Check the CRC and all lengths of a whole block, and return its header.

    Raises: CorruptionError with what was expected at which offset.
    """
    compare_crc(block, path, offset)
    header = BlockHeader.unpack(block)
    if header.block_length != block.size:
        raise CorruptionError(
            f"expected a header for a block of {block.size} bytes, found a header for a block of "
            f"{header.block_length} bytes",
            path,
            offset,
        )
    if header.row_count > 1 << format.ROWS_PER_BLOCK_LOG2_MAX or header.null_count > header.row_count:
        raise CorruptionError(
            f"expected at most {1 << format.ROWS_PER_BLOCK_LOG2_MAX} rows and no more NULLs than rows, found "
            f"{header.row_count} rows and {header.null_count} NULLs",
            path,
            offset,
        )
    has_values, has_both = header.null_count < header.row_count, 0 < header.null_count < header.row_count
    stored = header.validity_length, header.values_length, header.values_size
    if [length > 0 for length in stored] != [has_both, has_values, has_values]:
        raise CorruptionError(
            f"expected lengths that fit {header.row_count} rows with {header.null_count} NULLs, found "
            f"{header.values_length} bytes of values and {header.validity_length} bytes of bitmap",
            path,
            offset,
        )
    if header.values_size > format.BLOCK_VALUES_BYTES_MAX:
        raise CorruptionError(
            f"expected at most {format.BLOCK_VALUES_BYTES_MAX} bytes of values, found {header.values_size}",
            path,
            offset,
        )
    return header


def decode_block(
    form: Physical,
    encoding: Encoding,
    block: pa.Buffer,
    first_ordinal: int,
    row_count: int,
    dictionary: pa.Array | None,
    path: str,
    offset: int,
) -> ColumnBlock:
    """Check the bytes of a block, and return the block as the cache keeps it (see `forms`).

    form: the stored type of the column. Decimals of 4 or 8 bytes become decimal32 or decimal64.
    first_ordinal, row_count: what the block's header must contain.
    dictionary: the column's dictionary, if it has one.
    path, offset: where the bytes were read, for errors.
    Returns: a block that may refer to the memory of `block`, and then keeps it alive.
    Raises: CorruptionError for any bytes that a writer cannot have written.
    """
    header = read_header(block, path, offset)
    if header.first_ordinal != first_ordinal or header.row_count != row_count:
        raise CorruptionError(
            f"expected the block of {row_count} rows from ordinal {first_ordinal}, found {header.row_count} rows "
            f"from {header.first_ordinal}",
            path,
            offset,
        )
    if header.encoding != encoding.code:
        raise CorruptionError(
            f"expected encoding {encoding.code} ({encoding.name}), as the column's footer says, found "
            f"number {header.encoding}",
            path,
            offset,
        )
    if header.null_count == row_count:
        return NullBlock(narrowest(form).arrow, dictionary, row_count)
    try:
        validity = None
        if header.null_count:
            stored = block.slice(format.BLOCK_HEADER.size, header.validity_length)
            bitmap = decompress(header.validity_compression, stored, (row_count + 7) // 8)
            _check_bitmap(bitmap, row_count, row_count - header.null_count)
            validity = Validity(bitmap, row_count)
        stored = block.slice(header.values_start, header.values_length)
        data = decompress(header.compression, stored, header.values_size)
        values = encoding.block(form, EncodedValues(data, row_count - header.null_count, dictionary))
        return values if validity is None else values.with_nulls(validity)
    except ValueError as error:
        raise CorruptionError(str(error), path, offset) from error


def _check_bitmap(bitmap: pa.Buffer, row_count: int, value_count: int) -> None:
    bits = np.frombuffer(bitmap, np.uint8)
    if row_count % 8 and int(bits[-1]) >> (row_count % 8):
        # Writers pad with zeros, so anything else is damage.
        raise ValueError("expected zeros after the last row of the bitmap, found ones")
    if (found := int(np.bitwise_count(bits).sum(dtype=np.int64))) != value_count:
        raise ValueError(f"expected {value_count} values, found a bitmap with {found} ones")
