"""Encodes primary keys as bytes that sort like the rows: Kudu's order-preserving key encoding.

The canonical bytes of a key are the encodings of its columns in key order, without separators
between them:

    column                     encoding
    int8 … int64, date,        the integer in its own width (1, 2, 4, 8, 16 bytes), big-endian, with a
    timestamp, decimal         flipped sign bit; a decimal is its unscaled integer
    string, varchar, binary    in the last column of the key: the bytes, unchanged
                               in other columns: each 0x00 becomes 0x00 0x01, and 0x00 0x00 follows

    (host "a", metric "b\\0", time -1)  ->  61 00 00 | 62 00 01 00 00 | 7f ff ff ff ff ff ff ff

Invariants
    K1  The order of the canonical bytes (as in memcmp) is the order of the rows by their key
        columns. Text and binary values sort by their bytes.
    K4  encode and decode are inverse: no two keys have the same bytes.
    K5  The values of the first key columns encode to a byte prefix (`encode_prefix`). A key begins
        with this prefix exactly if it has these values.

Keys have no NULL, bool, float or double. `nyala.keys.key_range` has ranges of keys.
Source: docs/design/kudu.md, "Key encoding".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala import compute as pc
from nyala.errors import CorruptionError
from nyala.keys.arrow_memory import (
    binary_view,
    fixed_view,
    large_binary_array,
    overlapping_words,
    variable_array,
)
from nyala.keys.encoded_keys import BinaryKeys, EncodedKeys, Layout, NumpyKeys
from nyala.lazy_values import LazyValues, lazy_value
from nyala.schema.plain_arrays import array_of_bytes
from nyala.schema.types import ColumnType

_ESCAPED_ZERO: Final = b"\0\1"
_END: Final = b"\0\0"
_INT_WIDTH_MAX: Final = 8

# A column, half of a 128-bit column, or a terminator: (a big-endian dtype, unsigned values or one
# value for all rows).
_Part = tuple[str, Any]


class KeyCodec(LazyValues):
    """Encodes and decodes the keys of a table whose key columns have these `types`.

    Immutable. Range partitions also use it, to encode the values of their range columns.
    """

    def __init__(self, types: Sequence[ColumnType]) -> None:
        assert types, "a key must have at least one column"
        assert all(type.key_allowed for type in types), "a key must not have bool, float or double"
        self.types: Final = tuple(types)
        widths = [type.storage_width_bytes for type in types]
        # The number of bytes of every key; None if a column has variable length.
        self.width: Final = None if None in widths else sum(w for w in widths if w is not None)

    @lazy_value
    def fixed_tail(self) -> tuple[tuple[int, int, int], ...]:
        """The columns after the last text or binary column, except 16-byte decimals.

        Such a column has the same distance from the end in every key. Each item is (index of the
        column, number of bytes of the key after it, number of bytes of the column). The last column
        is first.
        """
        tail, suffix_bytes = [], 0
        for index, type in reversed(list(enumerate(self.types))):
            width = type.storage_width_bytes
            if type.is_variable or width is None:
                break
            if width <= _INT_WIDTH_MAX:
                tail.append((index, suffix_bytes, width))
            suffix_bytes += width
        return tuple(tail)

    @property
    def layout(self) -> Layout:
        """The layout of all keys of this codec (see `nyala.keys.encoded_keys`)."""
        if self.width is None:
            return "binary"
        return "int" if self.width <= _INT_WIDTH_MAX else "fixed"

    # ---- batches --------

    def encode(self, arrays: Sequence[pa.Array]) -> EncodedKeys:
        """Return the keys of rows, given as columns.

        arrays: one canonical array per key column, of equal length and without NULLs.
        Cost: some calls per column. Bytes are copied once; a single text column is not copied.
        Raises: CorruptionError for arrays of other types or with NULLs. Callers check users' data
                first, so only damaged files can cause it.
        """
        assert len(arrays) == len(self.types)
        for type, array in zip(self.types, arrays, strict=True):
            if array.type != type.arrow or array.null_count:
                found = f"{array.null_count} NULLs" if array.null_count else str(array.type)
                raise CorruptionError(
                    f"expected a key column of type {type.arrow} without NULL, found {found}"
                )
        if len(arrays[0]) == 1:
            return self.encode_one(list(map(_first_value, self.types, arrays)))
        if self.width is None:
            return BinaryKeys(self._encode_variable(arrays))
        parts = [
            part for type, array in zip(self.types, arrays, strict=True) for part in _fixed_parts(type, array)
        ]
        if self.width > _INT_WIDTH_MAX:
            return NumpyKeys(
                _interleave([*parts, ("u1", 1)], len(arrays[0])).view(f"S{self.width + 1}"), self.width
            )
        keys = parts[0][1].astype(np.uint64)
        for dtype, values in parts[1:]:
            keys <<= np.uint64(8 * np.dtype(dtype).itemsize)
            keys |= values
        return NumpyKeys(keys, self.width)

    def _encode_variable(self, arrays: Sequence[pa.Array]) -> pa.Array:
        count = len(arrays[0])
        segments: list[Any] = []
        pending: list[_Part] = []  # fixed columns and terminators since the last variable column

        def flush() -> None:
            if pending:
                segments.append(_binary_of(_interleave(pending, count)))
                pending.clear()

        for i, (type, array) in enumerate(zip(self.types, arrays, strict=True)):
            if not type.is_variable:
                pending.extend(_fixed_parts(type, array))
                continue
            flush()
            raw = array.cast(pa.binary()).cast(pa.large_binary())
            if i == len(self.types) - 1:
                segments.append(raw)
            else:
                segments.append(_escape(raw))
                pending.append((">u2", 0))
        flush()
        if len(segments) == 1:
            return segments[0]
        separator = array_of_bytes([b""])[0]
        return pc.binary_join_element_wise(*segments, separator)

    def decode(self, keys: EncodedKeys) -> list[pa.Array]:
        """Return the key columns as Arrow arrays: the inverse of `encode`.

        Raises: CorruptionError if the keys have a variable length, because a column is a string for
                example, and the bytes of a key do not fit the column types. Keys of a fixed length
                are not checked.
        """
        if isinstance(keys, BinaryKeys):
            return self._decode_variable(keys.data)
        assert isinstance(keys, NumpyKeys) and keys.width == self.width
        if keys.layout == "int":
            data, start = np.ascontiguousarray(keys.data.astype(">u8")), _INT_WIDTH_MAX - keys.width
        else:
            data, start = np.ascontiguousarray(keys.data), 0

        def read(at: int, dtype: str) -> npt.NDArray[Any]:
            if len(data) == 0:
                return np.zeros(0, dtype=dtype)
            return np.ndarray(
                (len(data),), dtype=dtype, buffer=data, offset=start + at, strides=(data.dtype.itemsize,)
            )

        arrays, at = [], 0
        for type in self.types:
            arrays.append(_from_fixed(type, at, read))
            at += type.storage_width_bytes or 0
        return arrays

    def _decode_variable(self, keys: pa.Array) -> list[pa.Array]:
        offsets, data = binary_view(keys)
        data = data[offsets[0] : offsets[-1]]
        ends = offsets[1:] - offsets[0]
        at = offsets[:-1] - offsets[0]  # where the next column of each key begins
        # Find terminators in all keys at once. Every 0x00 inside a text is followed by 0x01. So the
        # first 0x00 0x00 after the text's beginning ends the text, whatever the columns after it
        # contain.
        pairs = np.flatnonzero((data[:-1] == 0) & (data[1:] == 0)) if len(self.types) > 1 else ends[:0]
        arrays = []
        for i, type in enumerate(self.types):
            if not type.is_variable:
                width = type.storage_width_bytes
                assert width is not None
                _check((at + width <= ends).all(), "an encoded key is too short")
                arrays.append(_from_fixed(type, 0, _reader_at(data, at)))
                at = at + width
                continue
            if i == len(self.types) - 1:
                stop = next_at = ends
            else:
                pair = np.searchsorted(pairs, at)
                _check((pair < len(pairs)).all(), "an encoded key has no separator after a text column")
                stop = pairs[pair]
                next_at = stop + len(_END)
                _check((next_at <= ends).all(), "an encoded key has no separator after a text column")
            text_offsets, text = _gather(data, at, stop)
            if i < len(self.types) - 1:
                text_offsets, text = _unescape(text_offsets, text)
            try:
                arrays.append(variable_array(type, text_offsets, text))
            except pa.ArrowInvalid as error:
                raise CorruptionError("a text column of an encoded key is not UTF-8") from error
            at = next_at
        _check(bool((at == ends).all()), "an encoded key is longer than its columns")
        return arrays

    def from_binary(self, array: pa.Array) -> EncodedKeys:
        """Return keys from their encoded bytes, as read from disk.

        array: binary or large_binary, without NULLs.
        Raises: CorruptionError if a key of fixed width has another length. Keys of variable length
                are checked only when they are decoded.
        """
        if array.null_count:
            raise CorruptionError("expected encoded keys without NULL, found NULL")
        if self.width is None:
            return BinaryKeys(array.cast(pa.large_binary()))
        offsets, data = binary_view(array)
        if len(array) and not bool((np.diff(offsets) == self.width).all()):
            raise CorruptionError(f"expected encoded keys of {self.width} bytes, found another length")
        matrix = data[offsets[0] : offsets[-1]].reshape(-1, self.width)
        if self.width > _INT_WIDTH_MAX:
            rows = np.ones((len(matrix), self.width + 1), dtype=np.uint8)  # K2: the last byte is 0x01
            rows[:, :-1] = matrix
            return NumpyKeys(rows.reshape(-1).view(f"S{self.width + 1}"), self.width)
        numbers = np.zeros((len(matrix), _INT_WIDTH_MAX), dtype=np.uint8)
        numbers[:, _INT_WIDTH_MAX - self.width :] = matrix
        return NumpyKeys(numbers.reshape(-1).view(">u8").astype(np.uint64), self.width)

    def empty(self) -> EncodedKeys:
        """Return an empty vector of keys in this codec's layout."""
        return self.from_binary(array_of_bytes([]))

    # ---- single rows ----

    def encode_row(self, values: Sequence[Any]) -> bytes:
        """Return one key as encoded bytes, as on disk.

        values: one per key column; dates as days and timestamps as microseconds since 1970; decimals
                as integers without the point (1.20 as 120).
        """
        assert len(values) == len(self.types)
        return self.encode_prefix(values)

    def encode_one(self, values: Sequence[Any]) -> EncodedKeys:
        """Encode one key, as `encode_row` does. Return it as a vector of one key."""
        key = self.encode_prefix(values)
        if self.width is None:
            return BinaryKeys(array_of_bytes([key]))
        if self.width > _INT_WIDTH_MAX:
            return NumpyKeys(np.frombuffer(key + b"\x01", f"S{self.width + 1}"), self.width)  # K2
        return NumpyKeys(np.array([int.from_bytes(key, "big")], np.uint64), self.width)

    def encode_prefix(self, values: Sequence[Any]) -> bytes:
        """Return the first bytes of every key that has these values in its first columns.

        values: those of the first key columns, as in `encode_row`.
        Text is escaped and terminated, except in the key's last column.
        """
        out = bytearray()
        last = len(self.types) - 1
        for i, value in enumerate(values):
            type = self.types[i]
            if type.is_variable:
                raw = value.encode() if isinstance(value, str) else bytes(value)
                out += raw if i == last else raw.replace(b"\0", _ESCAPED_ZERO) + _END
            else:
                width = type.storage_width_bytes
                assert width is not None
                out += (int(value) + (1 << (8 * width - 1))).to_bytes(width, "big")
        return bytes(out)

    def decode_row(self, key: bytes) -> tuple[Any, ...]:
        """Return the values of one key from its encoded bytes: the inverse of `encode_row`.

        Raises: CorruptionError if the bytes are not a key of these types.
        """
        values: list[Any] = []
        at = 0
        for i, type in enumerate(self.types):
            if not type.is_variable:
                width = type.storage_width_bytes
                assert width is not None
                _check(at + width <= len(key), "an encoded key is too short")
                values.append(int.from_bytes(key[at : at + width], "big") - (1 << (8 * width - 1)))
                at += width
                continue
            if i == len(self.types) - 1:
                raw, at = key[at:], len(key)
            else:
                end = key.find(_END, at)
                _check(end >= 0, "an encoded key has no separator after a text column")
                raw, at = key[at:end].replace(_ESCAPED_ZERO, b"\0"), end + len(_END)
            try:
                values.append(raw.decode() if type.is_text else raw)
            except UnicodeDecodeError as error:
                raise CorruptionError("a text column of an encoded key is not UTF-8") from error
        _check(at == len(key), "an encoded key is longer than its columns")
        return tuple(values)


def _check(good: Any, message: str) -> None:
    if not good:
        raise CorruptionError(message)


def _first_value(type: ColumnType, array: pa.Array) -> int | bytes:
    """Return the value of the first row, as `KeyCodec.encode_row` takes it. For text, return its bytes."""
    buffers = array.buffers()
    if type.is_variable:
        return bytes(array[0].as_buffer())
    assert type.storage_width_bytes is not None
    # Arrow stores every decimal in 16 bytes.
    stride = 16 if type.name == "decimal" else type.storage_width_bytes
    begin = array.offset * stride
    return int.from_bytes(memoryview(buffers[1])[begin : begin + stride], "little", signed=True)


# ---- fixed width --------


def _fixed_parts(type: ColumnType, array: pa.Array) -> list[_Part]:
    """Return the encoded values of a fixed-width column as one unsigned integer per row.

    16-byte values become two such integers, the high half first.
    """
    width = type.storage_width_bytes
    assert width is not None and array.type == type.arrow
    # Arrow stores every decimal in 16 little-endian bytes. A narrow one is entirely in the low
    # bytes.
    stride = 16 if type.name == "decimal" else width
    if width <= _INT_WIDTH_MAX:
        values = fixed_view(array, f"<u{width}", stride_bytes=stride)
        return [(f">u{width}", values ^ values.dtype.type(1 << (8 * width - 1)))]
    low = fixed_view(array, "<u8", stride_bytes=stride)
    high = fixed_view(array, "<u8", stride_bytes=stride, at=8)
    return [(">u8", high ^ np.uint64(1 << 63)), (">u8", low)]


def _from_fixed(type: ColumnType, at: int, read: Callable[[int, str], npt.NDArray[Any]]) -> pa.Array:
    """Return the values of a fixed-width column that begins at byte `at` of every key.

    read: a function: `read(at, dtype)` returns the value of `dtype` at byte `at` of every key.
    """
    width = type.storage_width_bytes
    assert width is not None
    if width <= _INT_WIDTH_MAX:
        unsigned = read(at, f">u{width}").astype(f"<u{width}")
        values = (unsigned ^ unsigned.dtype.type(1 << (8 * width - 1))).view(f"<i{width}")
        if type.name != "decimal":
            return pa.Array.from_buffers(type.arrow, len(values), [None, pa.py_buffer(values)])
        halves = np.empty((len(values), 2), dtype="<i8")
        halves[:, 0] = values
        halves[:, 1] = halves[:, 0] >> 63
    else:
        halves = np.empty((len(read(at, ">u8")), 2), dtype="<i8")
        halves[:, 1] = (read(at, ">u8").astype("<u8") ^ np.uint64(1 << 63)).view("<i8")
        halves[:, 0] = read(at + 8, ">u8").astype("<u8").view("<i8")
    return pa.Array.from_buffers(type.arrow, len(halves), [None, pa.py_buffer(halves)])


def _interleave(parts: Sequence[_Part], count: int) -> npt.NDArray[Any]:
    """Return `count` NumPy records: the encoded keys, with one field for each of `parts`.

    parts: the type of the field, and its values: unsigned integers, one per record.
    """
    records = np.empty(count, dtype=[(f"f{i}", dtype) for i, (dtype, _) in enumerate(parts)])
    for i, (_, values) in enumerate(parts):
        records[f"f{i}"] = values
    return records


def _binary_of(records: npt.NDArray[Any]) -> pa.Array:
    """Return the bytes of NumPy records as a large_binary array, one value per record."""
    width = records.dtype.itemsize
    offsets = np.arange(0, (len(records) + 1) * width, width, dtype=np.int64)
    return large_binary_array(offsets, records.view(np.uint8))


# ---- variable width -----


def _escape(raw: pa.Array) -> pa.Array:
    """Replace each 0x00 by 0x00 0x01. If there is no 0x00, return the array itself."""
    offsets, data = binary_view(raw)
    if not (data[offsets[0] : offsets[-1]] == 0).any():
        return raw
    return pc.replace_substring(raw, b"\0", _ESCAPED_ZERO)


def _unescape(
    offsets: npt.NDArray[np.int64], data: npt.NDArray[np.uint8]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Undo `_escape`: return the (offsets, bytes) of the original text."""
    escapes = np.flatnonzero(data == 0) + 1
    if len(escapes) == 0:
        return offsets, data
    # An escaped text cannot end with 0x00: that byte would belong to the terminator.
    _check(
        escapes[-1] < len(data) and (data[escapes] == 1).all(),
        "a text column of an encoded key is not escaped",
    )
    keep = np.ones(len(data), dtype=bool)
    keep[escapes] = False
    return offsets - np.searchsorted(escapes, offsets), data[keep]


def _gather(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Return (offsets, bytes) of a binary array with the values `data[starts[i]:stops[i]]`.

    The ranges ascend, and each is inside a different key.
    """
    offsets = np.zeros(len(starts) + 1, dtype=np.int64)
    np.cumsum(stops - starts, out=offsets[1:])
    if offsets[-1] == len(data):
        return offsets, data
    # Mark the beginning of a range with +1 and its end with -1: the running sum is 1 inside a
    # range. A range may be empty. But no two ranges begin or end at the same byte, because every
    # key has bytes outside of its range.
    marks = np.zeros(len(data) + 1, dtype=np.int8)
    marks[starts] += 1
    marks[stops] -= 1
    return offsets, data[np.cumsum(marks[:-1], dtype=np.int8).view(bool)]


def _reader_at(
    data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64]
) -> Callable[[int, str], npt.NDArray[Any]]:
    def read(shift: int, dtype: str) -> npt.NDArray[Any]:
        if len(at) == 0:
            return np.zeros(0, dtype=dtype)
        return overlapping_words(data, dtype)[at + shift]

    return read
