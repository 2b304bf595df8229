"""Prefix: stores the common prefix of 16 adjacent values (a group) once.

    rows      0 … 15                        16 … 31
    prefix    'Customer#00000'              'Customer#00000'
    suffixes  '0001' '0002' … '0016'        '0017' …                   the rest of each value

Each value is the prefix of its group plus its own suffix. So no value depends on another value. A
block stores prefixes and suffixes as two lists, each in the format of a plain block of binary
values. Decoding checks both lists like plain blocks. It joins a prefix and a suffix like two
dictionary entries (`forms.text`).

Difference from Kudu: in Kudu, each value stores what differs from the previous value, and only
every n-th value is whole. This may save more space, but it must be decoded value by value. One
could also store what differs from the first value of the group, but this decodes at a third of the
speed (docs/design/column-files-and-encodings.md, "Prefix groups").

Values need not be sorted, but unsorted values share little.
Source: Kudu schema design, "Prefix Encoding".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile import format
from nyala.cfile.encoding.base import BlockEncoder, Candidate, ColumnSample, EncodedValues, Encoding
from nyala.cfile.encoding.plain import decode_binary, encode_binary
from nyala.cfile.forms.text import join_entries
from nyala.cfile.physical import Physical, binary_offsets

_WORD_BYTES: Final = 8


@dataclass(frozen=True)
class _PrefixEncoder(BlockEncoder):
    values: pa.Array

    def encode(self, lower: int, upper: int) -> pa.Buffer:
        part = self.values.slice(lower, upper - lower)
        log2 = format.PREFIX_GROUP_ROWS_LOG2
        offsets = binary_offsets(part).astype(np.int64)
        buffer = part.buffers()[2]
        data = np.frombuffer(b"" if buffer is None else buffer, np.uint8)[offsets[0] : offsets[-1]]
        offsets -= offsets[0]
        shared = group_prefix_lengths(data, offsets, 1 << log2)
        starts = offsets[:-1]
        prefixes = _ranges(data, starts[:: 1 << log2], shared)
        skipped = np.repeat(shared, 1 << log2)[: len(part)]
        suffixes = _ranges(data, starts + skipped, np.diff(offsets) - skipped)
        encoded = encode_binary(prefixes)
        header = format.PREFIX_HEADER.pack(encoded.size, log2, bytes(3))
        return pa.py_buffer(b"".join((header, encoded, encode_binary(suffixes))))


class Prefix(Encoding):
    """An encoding for text and binary columns whose adjacent values have common prefixes."""

    code = format.ENCODING_PREFIX
    name = "prefix"

    def prepare(self, form: Physical, values: pa.Array) -> BlockEncoder | None:
        return _PrefixEncoder(values)

    def candidates(self, column: ColumnSample) -> Sequence[Candidate]:
        return self.sampled(column, 7, 4)

    def header(self, form: Physical, data: bytes) -> format.Layout | None:
        return format.PREFIX_HEADER

    def decode(self, form: Physical, block: EncodedValues) -> pa.Array:
        data, rows, header_size = block.data, block.row_count, format.PREFIX_HEADER.size
        if data.size < header_size:
            raise ValueError(f"expected a header of {header_size} bytes, found {data.size}")
        length, log2, _ = format.PREFIX_HEADER.unpack_from(data)
        if log2 > format.PREFIX_GROUP_ROWS_LOG2_MAX:
            raise ValueError(
                f"expected groups of at most 2^{format.PREFIX_GROUP_ROWS_LOG2_MAX} rows, found groups of 2^{log2} "
                "rows"
            )
        if header_size + length > data.size:
            raise ValueError(
                f"expected at most {data.size - header_size} bytes of prefixes, which is the size of the block "
                f"without its header, found {length} bytes of prefixes"
            )
        group_count = -(-rows >> log2)
        prefixes = decode_binary(
            pa.binary(), EncodedValues(data.slice(header_size, length), group_count, None)
        )
        suffixes = decode_binary(pa.binary(), EncodedValues(data.slice(header_size + length), rows, None))
        # Joined values are larger than the stored bytes, so check their size before memory is
        # allocated.
        shared = np.diff(binary_offsets(prefixes)).astype(np.int64)
        group_rows = np.full(group_count, 1 << log2)
        group_rows[-1:] = rows - ((group_count - 1) << log2)
        size = int((shared * group_rows).sum()) + suffixes.buffers()[2].size
        if size > format.BLOCK_VALUES_BYTES_MAX:
            raise ValueError(
                f"expected at most {format.BLOCK_VALUES_BYTES_MAX} bytes of values, found {size}"
            )
        joined = suffixes
        if shared.any():
            joined = _joined(prefixes, suffixes, log2)
        _, offsets, values = joined.buffers()
        return pa.Array.from_buffers(form.arrow, rows, [None, offsets, values], 0)


def _joined(prefixes: pa.Array, suffixes: pa.Array, log2: int) -> pa.Array:
    """Return the values: each suffix after the prefix of its group of 2^`log2` rows.

    The caller has checked the total size.
    """
    rows, groups = len(suffixes), len(prefixes)
    prefix_offsets, suffix_offsets = binary_offsets(prefixes), binary_offsets(suffixes)
    data = [np.frombuffer(array.buffers()[2], np.uint8) for array in (prefixes, suffixes)]
    # The entries are the prefixes, one empty entry between the two lists, and the suffixes.
    starts = np.concatenate((prefix_offsets, suffix_offsets + prefix_offsets.dtype.type(data[0].size)))
    codes = np.empty(2 * rows, np.int32)
    codes[::2] = np.arange(rows) >> log2
    codes[1::2] = np.arange(groups + 1, groups + 1 + rows)
    offsets, joined = join_entries(codes, starts, np.concatenate(data))
    ends = np.frombuffer(offsets, np.int32)[::2].copy()
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(ends), joined], 0)


def group_prefix_lengths(
    data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64], group_rows: int
) -> npt.NDArray[np.int64]:
    """Return, for each group of `group_rows` adjacent values, the length of their common prefix.

    data: the bytes of all values, one after the other.
    offsets: where each value begins in `data`, and the end of the last one.
    Cost: each pass compares the next eight bytes of all values, in the groups whose values are
    equal so far.
    """
    count = len(offsets) - 1
    starts = offsets[:-1]
    firsts = np.arange(0, count, group_rows)
    limit = np.minimum.reduceat(np.diff(offsets), firsts)
    # `words[i]` are the eight bytes from byte i on, as an integer whose lowest byte is byte i.
    padded = np.concatenate((data, np.zeros(_WORD_BYTES, np.uint8)))
    words = np.ndarray((len(data) + 1,), "<u8", padded, strides=(1,))
    shared = np.zeros(len(firsts), np.int64)
    alive = np.flatnonzero(limit > 0)
    position = 0
    while len(alive):
        rows = np.minimum(firsts[alive][:, None] + np.arange(group_rows), count - 1)
        group_words = words[np.minimum(starts[rows] + position, len(data))]
        differ = np.bitwise_or.reduce(group_words ^ group_words[:, :1], axis=1)
        # The lowest bit that differs is in the first byte that differs. If no bit differs, the result
        # is eight. `limit` cuts off bytes after the end of a value.
        equal = np.bitwise_count((differ & (~differ + np.uint64(1))) - np.uint64(1)).astype(np.int64) >> 3
        shared[alive] = np.minimum(position + equal, limit[alive])
        position += _WORD_BYTES
        alive = alive[(equal == _WORD_BYTES) & (limit[alive] > position)]
    return shared


def _ranges(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> pa.Array:
    """Return a binary array whose value i is `data[starts[i]:starts[i] + lengths[i]]`."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    addresses = np.repeat(starts - offsets[:-1], lengths)
    addresses += np.arange(len(addresses))
    buffers: list[Any] = [None, pa.py_buffer(offsets), pa.py_buffer(data[addresses])]
    return pa.Array.from_buffers(pa.large_binary(), len(lengths), buffers, 0)
