"""Plain: stores values as they are.

    bool          one bit each, least significant first, zeros to the byte's end
    fixed width   little-endian, one after another
    text, binary  header, one length per value, then the bytes of all values

Text has lengths and not offsets, because most lengths fit one byte and an offset needs four. The
sum of the lengths is checked, so no value can end outside of the block. One cumulative sum turns
lengths into Arrow's offsets. If all values are equally long (as keys of fixed width are), no
lengths are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from nyala.cfile import format
from nyala.cfile.encoding.base import BlockEncoder, Candidate, ColumnSample, EncodedValues, Encoding
from nyala.cfile.memory import scratch
from nyala.cfile.physical import BITS, BYTES, FIXED, Physical, binary_offsets, slice_bitmap

_LENGTH_DTYPES: Final[dict[int, np.dtype[Any]]] = {1: np.dtype("<u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4")}


@dataclass(frozen=True)
class _PlainEncoder(BlockEncoder):
    form: Physical
    values: pa.Array

    def encode(self, lower: int, upper: int) -> pa.Buffer:
        part = self.values.slice(lower, upper - lower)
        if self.form.kind == BITS:
            return pa.py_buffer(slice_bitmap(part.buffers()[1], part.offset, len(part)))
        if self.form.kind == FIXED:
            return pa.py_buffer(self.form.fixed_values(part))
        return encode_binary(part)


class Plain(Encoding):
    """Stores values as they are. Every type and all values allow this encoding."""

    code = format.ENCODING_PLAIN
    name = "plain"

    def prepare(self, form: Physical, values: pa.Array) -> BlockEncoder | None:
        return _PlainEncoder(form, values)

    def candidates(self, column: ColumnSample) -> Sequence[Candidate]:
        candidates: list[Candidate] = []
        if column.form.kind == FIXED:
            candidates.append(Candidate(self.code, format.COMPRESSION_NONE, column.form.width_bytes, 0))
        if column.schema_compression != format.COMPRESSION_NONE or column.form.kind != FIXED:
            candidates += self.sampled(column, 5)
            if column.schema_compression == format.COMPRESSION_DEFAULT:
                candidates += self.sampled(column, 6, 1.55, format.COMPRESSION_ZSTD)
        return candidates

    def header(self, form: Physical, data: bytes) -> format.Layout | None:
        return format.BINARY_HEADER if form.kind == BYTES else None

    def decode(self, form: Physical, block: EncodedValues) -> pa.Array:
        if form.kind == BITS:
            _expect_size(block, (block.row_count + 7) // 8)
            return pa.Array.from_buffers(form.arrow, block.row_count, [None, block.data], 0)
        if form.kind == FIXED:
            _expect_size(block, block.row_count * form.width_bytes)
            return form.fixed_array(block.data, block.row_count)
        return decode_binary(form.arrow, block)


# The most bytes that 32-bit offsets can address.
_DATA_LENGTH_MAX: Final = (1 << 31) - 1


def _expect_size(block: EncodedValues, size: int) -> None:
    if block.data.size != size:
        raise ValueError(f"expected {size} bytes for {block.row_count} values, found {block.data.size}")


def encode_binary(part: pa.Array) -> pa.Buffer:
    """Encode a text or binary array without NULLs: a header, the lengths, then all bytes.

    The array's offsets may have 64 bits.
    """
    if len(part) == 0:
        return pa.py_buffer(format.BINARY_HEADER.pack(0, 1, bytes(3)))
    offsets = binary_offsets(part)
    lengths = offsets[1:] - offsets[:-1]
    length_max = int(lengths.max())
    if int(lengths.min()) == length_max:
        width, stored = 0, b""
    else:
        width = 1 if length_max < 1 << 8 else 2 if length_max < 1 << 16 else 4
        stored = lengths.astype(_LENGTH_DTYPES[width]).tobytes()
    first, last = int(offsets[0]), int(offsets[-1])
    if last - first > _DATA_LENGTH_MAX:
        raise ValueError(f"{len(part)} values take {last - first} bytes, more than {_DATA_LENGTH_MAX}")
    header = format.BINARY_HEADER.pack(last - first, width, bytes(3))
    data = part.buffers()[2]
    content = b"" if data is None else data.slice(first, last - first)
    return pa.py_buffer(b"".join((header, stored, content)))


def decode_binary(type: pa.DataType, block: EncodedValues) -> pa.Array:
    """Decode the bytes of `encode_binary` to an array with 32-bit offsets."""
    count, data = block.row_count, block.data
    if data.size < format.BINARY_HEADER.size:
        raise ValueError(f"expected a header of {format.BINARY_HEADER.size} bytes, found {data.size}")
    data_length, width, _ = format.BINARY_HEADER.unpack_from(data)
    start = format.BINARY_HEADER.size + count * width
    if width not in format.BINARY_LENGTH_WIDTHS:
        raise ValueError(
            f"expected a header that gives 0, 1, 2 or 4 bytes to the length of each value, found a header for "
            f"{width} bytes"
        )
    if data_length > _DATA_LENGTH_MAX:
        raise ValueError(
            f"expected at most {_DATA_LENGTH_MAX} bytes of values in a block, found {data_length} in its header"
        )
    if start + data_length != data.size:
        raise ValueError(
            f"expected {start + data_length} bytes for {count} values, as the block's header says, found {data.size}"
        )
    if width == 0:
        length, rest = divmod(data_length, count) if count else (0, data_length)
        if rest:
            raise ValueError(f"expected {count} values of one length, found {data_length} bytes of data")
        offsets = (
            np.arange(0, data_length + 1, length, dtype=np.int32) if length else np.zeros(count + 1, np.int32)
        )
    else:
        lengths = np.frombuffer(data, _LENGTH_DTYPES[width], count, format.BINARY_HEADER.size)
        # The 64-bit sum cannot overflow. If it is right, every 32-bit offset before it is right
        # too.
        total = int(lengths.sum(dtype=np.int64))
        if total != data_length:
            raise ValueError(f"expected {data_length} bytes of data, found lengths that add up to {total}")
        offsets = scratch(np.int32, count + 1)
        offsets[0] = 0
        np.cumsum(lengths, out=offsets[1:], dtype=np.int32)
    return pa.Array.from_buffers(
        type, count, [None, pa.py_buffer(offsets), data.slice(start, data_length)], 0
    )
