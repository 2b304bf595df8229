"""One block: header, validity bitmap, values, padding, CRC. Everything between an encoding and the file.

    ┌────────┬──────────┬─────────┬────────┬─────────┬─────────┐
    │ header │ validity │ padding │ values │ padding │ CRC-32C │   a multiple of 16 bytes
    └────────┴──────────┴─────────┴────────┴─────────┴─────────┘
      32 B     only with NULLs                         of all before

The header repeats what the footer implies (first ordinal, row count), so that a block read from the wrong
place is found out though its CRC is right. The validity bitmap stands apart from the values and is compressed
by itself, so that values are decoded to where they stay. A block of NULLs only has neither bitmap nor values.
Values have holes where NULLs are, or are dense (`dense`); a block with NULLs says which.

Blocks and the values in them begin at multiples of 16 bytes in the file. So when values are stored as they are
(plain, not compressed) the bytes that were read are the Arrow buffer, aligned as Arrow's users expect.

Order of distrust: the length of what was read, the CRC, the header against the footer, every length against
the block's size, the decompressed size, the values (see `Encoding.decode`). Each failure is a CorruptionError.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import google_crc32c
import numpy as np
import pyarrow as pa

from nyala import compute as pc
from nyala.cfile import format
from nyala.cfile.compression import compress, decompress
from nyala.cfile.dense import Places
from nyala.cfile.encoding import BlockEncoder, EncodedValues, Encoding, encoding_by_code
from nyala.cfile.encoding.code_block import CodeBlock
from nyala.cfile.encoding.column_block import ArrowBlock, ColumnBlock
from nyala.cfile.encoding.dictionary import CODEWORDS, Dictionary
from nyala.cfile.encoding.frame import Frame
from nyala.cfile.encoding.frame_block import FrameBlock
from nyala.cfile.encoding.frame_of_reference import FrameOfReference
from nyala.cfile.encoding.rle import RunLength
from nyala.cfile.physical import Physical, narrowest, slice_bitmap
from nyala.errors import CorruptionError

__all__ = ["BLOCK_BYTES_MIN", "BlockHeader", "column_validity", "compare_crc", "decode_block", "encode_block"]
__all__ += ["encode_blocks", "read_header"]

BLOCK_BYTES_MIN: Final = format.BLOCK_HEADER.size + format.CRC.size
_BITMAP_SIZE_FACTOR: Final = 1.25
_NOTHING: Final = pa.py_buffer(b"")


@dataclass(frozen=True)
class BlockHeader:
    """The first 32 bytes of a block, fields in file order."""

    first_ordinal: int
    row_count: int
    null_count: int
    validity_length: int  # as stored; 0 without NULLs, and with nothing but NULLs
    values_length: int  # as stored
    values_size: int  # uncompressed
    encoding: int
    compression: int
    validity_compression: int
    placement: int = format.PLACEMENT_HOLES

    def pack(self) -> bytes:
        return format.BLOCK_HEADER.pack(
            self.first_ordinal,
            self.row_count,
            self.null_count,
            self.validity_length,
            self.values_length,
            self.values_size,
            self.encoding,
            self.compression,
            self.validity_compression,
            self.placement,
        )

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


def encode_blocks(
    encoding: Encoding,
    encoder: BlockEncoder,
    compression: int,
    validity: pa.Buffer | None,
    row_count: int,
    rows_per_block_log2: int,
    *,
    dense: bool = False,
) -> Iterator[list[pa.Buffer | bytes]]:
    """The blocks of a column, each in parts.

    Takes: `validity`, the whole column's bitmap without an offset, None if it has no NULLs. dense: whether the encoder
    has the values without NULLs.
    """
    done = 0  # values
    for lower in range(0, row_count, 1 << rows_per_block_log2):
        upper = min(lower + (1 << rows_per_block_log2), row_count)
        bitmap, null_count = _bitmap(validity, lower, upper)
        rows, placement = (lower, upper), format.PLACEMENT_HOLES
        if dense:
            rows = done, done + upper - lower - null_count
            done = rows[1]
            if bitmap.size:
                placement = format.PLACEMENT_DENSE
        values = encoder.encode(*rows) if null_count < upper - lower else _NOTHING
        yield _block(encoding, compression, lower, upper, null_count, bitmap, values, placement)


def encode_block(
    encoding: Encoding, encoder: BlockEncoder, compression: int, validity: pa.Buffer | None, row_count: int
) -> list[pa.Buffer | bytes]:
    """`encode_blocks` of one block, with holes; there is one row at least."""
    log2 = format.ROWS_PER_BLOCK_LOG2_MAX
    (parts,) = encode_blocks(encoding, encoder, compression, validity, row_count, log2)
    return parts


def _bitmap(validity: pa.Buffer | None, lower: int, upper: int) -> tuple[pa.Buffer, int]:
    """(the bitmap of these ordinals, empty where they are all NULL or none is; how many are)."""
    if validity is None:
        return _NOTHING, 0
    bitmap = pa.py_buffer(slice_bitmap(validity, lower, upper - lower))
    null_count = upper - lower - _bit_count(bitmap)
    return (_NOTHING if null_count in (0, upper - lower) else bitmap), null_count


def _block(
    encoding: Encoding,
    compression: int,
    lower: int,
    upper: int,
    null_count: int,
    bitmap: pa.Buffer,
    values: pa.Buffer,
    placement: int,
) -> list[pa.Buffer | bytes]:
    count = upper - lower
    if values.size > format.BLOCK_VALUES_BYTES_MAX:
        raise ValueError(
            f"{count} values take {values.size} bytes, more than {format.BLOCK_VALUES_BYTES_MAX} in a block"
        )
    validity_compression, stored_bitmap = format.COMPRESSION_NONE, bitmap
    if bitmap.size:
        validity_compression, stored_bitmap = _packed_bitmap(bitmap)
    values_compression, stored_values = compress(compression, values)
    header = BlockHeader(
        lower,
        count,
        null_count,
        stored_bitmap.size,
        stored_values.size,
        values.size,
        encoding.code,
        values_compression,
        validity_compression,
        placement,
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
    """A bitmap as it is stored. Zstd halves what LZ4 leaves of scattered ones, and takes a fifth of a nanosecond a row
    to undo: taken as `auto` takes encodings, where the other is more than a quarter larger."""
    quick, small = compress(format.COMPRESSION_LZ4, bitmap), compress(format.COMPRESSION_ZSTD, bitmap)
    return small if quick[1].size > small[1].size * _BITMAP_SIZE_FACTOR else quick


def compare_crc(block: pa.Buffer, path: str, offset: int) -> None:
    """Raises: CorruptionError for what is too short for a block, and for one whose CRC is not that of its bytes."""
    if block.size < BLOCK_BYTES_MIN:
        raise CorruptionError(f"expected a block, found {block.size} bytes", path, offset)
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
    """The header of a whole block whose CRC and lengths are right, whatever column it belongs to.

    Raises: CorruptionError naming what was expected at which offset.
    """
    compare_crc(block, path, offset)
    header = BlockHeader.unpack(block)
    if header.block_length != block.size:
        raise CorruptionError(
            f"expected a block of {block.size} bytes, found lengths that make {header.block_length}",
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
            f"expected values and a bitmap where {header.null_count} of {header.row_count} rows are NULL, found "
            f"{header.values_length} and {header.validity_length} bytes",
            path,
            offset,
        )
    if header.placement not in format.PLACEMENTS or (header.placement and not has_both):
        raise CorruptionError(
            f"expected values with holes or, beside NULLs, dense ones, found placement {header.placement}",
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
    block: pa.Buffer,
    first_ordinal: int,
    row_count: int,
    dictionary: pa.Array | None,
    path: str,
    offset: int,
    *,
    has_dense: bool | None = None,
) -> ColumnBlock:
    """The block of these ordinals, in the form that its encoding keeps.

    form: the column's own; a decimal that has a narrow form decodes to that.
    has_dense: what the column's footer says of values beside NULLs; None: a block says for itself.

    Owns: the result may refer to `block`'s memory; it keeps it alive.
    Raises: CorruptionError naming `path` and `offset` for anything that a writer cannot have written.
    """
    header = read_header(block, path, offset)
    if header.first_ordinal != first_ordinal or header.row_count != row_count:
        raise CorruptionError(
            f"expected the block of {row_count} rows from ordinal {first_ordinal}, found {header.row_count} rows "
            f"from {header.first_ordinal}",
            path,
            offset,
        )
    narrow = narrowest(form)
    if header.null_count == row_count:
        if dictionary is not None:
            return CodeBlock(FrameBlock(Frame.nulls(CODEWORDS, row_count), CODEWORDS, CODEWORDS), dictionary)
        return ArrowBlock(pa.nulls(row_count, narrow.arrow))
    is_dense = header.placement == format.PLACEMENT_DENSE
    if has_dense is not None and header.null_count and is_dense != has_dense:
        raise CorruptionError(
            f"expected placement {int(has_dense)} beside NULLs, as the column's footer says, found {header.placement}",
            path,
            offset,
        )
    encoding = encoding_by_code(header.encoding)
    if encoding is None or not encoding.handles(form):
        raise CorruptionError(
            f"expected an encoding of {form.type}, found number {header.encoding}", path, offset
        )
    try:
        validity, places = None, None
        if header.null_count:
            stored = block.slice(format.BLOCK_HEADER.size, header.validity_length)
            validity = decompress(header.validity_compression, stored, (row_count + 7) // 8)
            if (valid_count := _bit_count(validity, row_count)) != row_count - header.null_count:
                raise ValueError(
                    f"expected {row_count - header.null_count} values, found a bitmap of {valid_count}"
                )
        stored = block.slice(header.values_start, header.values_length)
        data = decompress(header.compression, stored, header.values_size)
        values = EncodedValues(data, row_count, validity, header.null_count, dictionary)
        if validity is not None and is_dense:
            places = Places(validity, row_count, header.null_count)
            values = EncodedValues(data, row_count - header.null_count, None, 0, dictionary)
        return _in_its_form(form, narrow, encoding, values, places)
    except ValueError as error:
        raise CorruptionError(str(error), path, offset) from error


def _in_its_form(
    form: Physical, narrow: Physical, encoding: Encoding, values: EncodedValues, places: Places | None
) -> ColumnBlock:
    """places: of dense values, the rows that they belong to."""
    if values.dictionary is not None:
        if not isinstance(encoding, Dictionary):
            raise ValueError(f"expected a block of codewords, found one of encoding {encoding.name}")
        codes = encoding.frame(values)
        codes = codes if places is None else places.frame(codes)
        return CodeBlock(FrameBlock(codes, CODEWORDS, CODEWORDS), values.dictionary)
    if isinstance(encoding, FrameOfReference) and not form.is_wide:
        frame = encoding.frame(form, values)
        return FrameBlock(frame if places is None else places.frame(frame), form, narrow)
    if isinstance(encoding, RunLength) and places is None:
        return encoding.block(narrow, values)
    array = encoding.decode(narrow, values)
    return ArrowBlock(array if places is None else places.array(array))


def _bit_count(bitmap: pa.Buffer, count: int | None = None) -> int:
    """How many of the first `count` bits are set."""
    if count is not None and count % 8:
        # Bits after the last row are zero when we wrote them; anything else is no bitmap of ours.
        bits = np.frombuffer(bitmap, np.uint8)
        if int(bits[-1]) >> (count % 8):
            raise ValueError("expected zeros after the last row of the bitmap, found ones")
    return int(np.bitwise_count(np.frombuffer(bitmap, np.uint8)).sum(dtype=np.int64))


def column_validity(array: pa.Array) -> pa.Buffer | None:
    """A column's validity bitmap without an offset, None when it has no NULLs."""
    if array.null_count == 0:
        return None
    return pc.is_valid(array).buffers()[1]
