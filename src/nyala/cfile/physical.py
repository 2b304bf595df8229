"""Converts values between Arrow arrays and the form in which blocks store them.

    kind     types                                     values of a block
    bits     bool                                      one bit each, least significant first
    fixed    integers, date, timestamp, float,         little-endian, `width_bytes` each
             double, decimal (4, 8 or 16 bytes)
    bytes    string, varchar, binary                   the length of each, then the bytes of all

A block stores only the values that are not NULL (`forms.validity`), so the bytes that Arrow has at
NULL rows never reach the disk. `encoding` chooses encodings, and `blocks.block` writes the bytes
around the values.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala import compute as pc
from nyala.cfile import format
from nyala.cfile.memory import scratch
from nyala.schema.schema import allowed_encodings
from nyala.schema.types import ColumnType

BITS: Final = "bits"
FIXED: Final = "fixed"
BYTES: Final = "bytes"

_FIXED: Final[dict[str, tuple[int, str]]] = {
    "int8": (format.TYPE_INT8, "<i1"),
    "int16": (format.TYPE_INT16, "<i2"),
    "int32": (format.TYPE_INT32, "<i4"),
    "int64": (format.TYPE_INT64, "<i8"),
    "date": (format.TYPE_DATE, "<i4"),
    "timestamp": (format.TYPE_TIMESTAMP, "<i8"),
    "float": (format.TYPE_FLOAT, "<f4"),
    "double": (format.TYPE_DOUBLE, "<f8"),
}
# NumPy has no 16-byte integer. complex128 has that size; it is only used to move values.
_DECIMALS: Final[dict[int, tuple[int, str]]] = {
    4: (format.TYPE_DECIMAL32, "<i4"),
    8: (format.TYPE_DECIMAL64, "<i8"),
    16: (format.TYPE_DECIMAL128, "<c16"),
}
_BLOOM_ARROW: Final = pa.binary(format.BLOOM_BLOCK_BYTES)
_BYTES: Final[dict[str, int]] = {
    "string": format.TYPE_STRING,
    "varchar": format.TYPE_VARCHAR,
    "binary": format.TYPE_BINARY,
}


@dataclass(frozen=True)
class Physical:
    """The stored form of one column type.

    It has the number that identifies the type in files, the width of a value, and the Arrow types.
    """

    type: ColumnType
    code: int  # format.TYPE_*
    kind: str
    dtype: np.dtype[Any] | None  # for kind `fixed`
    narrow: bool = False  # whether decimals are decoded to their stored width

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type of a decoded array."""
        if self.code == format.TYPE_BLOOM:
            return _BLOOM_ARROW
        return narrow_decimal(self.type) if self.narrow else self.type.arrow

    @property
    def width_bytes(self) -> int:
        """The number of bytes of one stored value; 0 for bool, text and binary."""
        return 0 if self.dtype is None else self.dtype.itemsize

    @property
    def is_narrowed(self) -> bool:
        """Whether this is a decimal that is stored in 4 or 8 bytes, but decoded to decimal128."""
        return not self.narrow and self.code in (format.TYPE_DECIMAL32, format.TYPE_DECIMAL64)

    @property
    def is_wide(self) -> bool:
        """Whether this is a decimal of 16 bytes. Its values may exceed 64 bits."""
        return self.code == format.TYPE_DECIMAL128

    @property
    def arrow_width_bytes(self) -> int:
        """The number of bytes of one value in Arrow's memory, for types of fixed width."""
        return 16 if self.is_narrowed or self.is_wide else self.width_bytes

    @property
    def encodings(self) -> tuple[str, ...]:
        """The names of the encodings that a column of this type may have."""
        return ("plain",) if self.code == format.TYPE_BLOOM else allowed_encodings(self.type)

    @property
    def holds_integers(self) -> bool:
        """Whether each value is a 64-bit integer. Dates, timestamps and small decimals are stored
        as integers.
        """
        is_integer = self.type.is_integer or self.type.name in ("date", "timestamp", "decimal")
        return self.kind == FIXED and is_integer and not self.is_wide

    def stored_array(self, array: pa.Array) -> pa.Array:
        """Convert an array of the column's Arrow type to the type that blocks store. NULLs stay.

        Returns: an array of bool, integer, float or (large) binary. Decimals of 16 bytes stay
        decimals. Only decimals of 4 or 8 bytes are copied.
        """
        if self.kind == BYTES:
            return array.view(pa.large_binary() if is_large(array.type) else pa.binary())
        if self.is_narrowed:
            assert self.dtype is not None
            # The precision guarantees that the upper half has only the sign. So the lower half is
            # the value.
            words = np.frombuffer(array.buffers()[1] or b"", "<i8")
            values = words[2 * array.offset :][: 2 * len(array) : 2].astype(self.dtype)
            validity = pc.is_valid(array).buffers()[1] if array.null_count else None
            type = pa.from_numpy_dtype(self.dtype)
            return pa.Array.from_buffers(type, len(array), [validity, pa.py_buffer(values)], array.null_count)
        if self.code in (format.TYPE_DATE, format.TYPE_TIMESTAMP):
            return array.view(pa.from_numpy_dtype(self.dtype))
        return array

    def fixed_values(self, stored: pa.Array) -> npt.NDArray[Any]:
        """Return a NumPy view of a stored array, which must have a fixed width and no NULLs."""
        assert self.dtype is not None and stored.null_count == 0
        buffer = stored.buffers()[1]
        if buffer is None:
            return np.empty(0, self.dtype)
        return np.frombuffer(buffer, self.dtype)[stored.offset : stored.offset + len(stored)]

    def fixed_array(
        self, values: pa.Buffer, row_count: int, validity: pa.Buffer | None = None, null_count: int = 0
    ) -> pa.Array:
        """Return an Arrow array of type `arrow` over stored values of fixed width.

        Values are copied only if they are decimals of 4 or 8 bytes and become decimal128.

        values: exactly `row_count` values; the caller has checked the size.
        """
        assert values.size == row_count * self.width_bytes
        if self.is_narrowed:
            narrow = np.frombuffer(values, self.dtype)
            wide = scratch("<i8", 2 * row_count).reshape(row_count, 2)
            wide[:, 0] = narrow
            np.right_shift(wide[:, 0], 63, out=wide[:, 1])
            values = pa.py_buffer(wide)
        return pa.Array.from_buffers(self.arrow, row_count, [validity, values], null_count)


@functools.cache
def narrow_decimal(type: ColumnType) -> pa.DataType | None:
    """Return the Arrow type of a decimal that is stored in 4 or 8 bytes; None for other types."""
    if type.name != "decimal" or type.storage_width_bytes not in (4, 8):
        return None
    make = pa.decimal32 if type.storage_width_bytes == 4 else pa.decimal64
    return make(type.precision, type.scale)


@functools.cache
def narrow_physical(type: ColumnType) -> Physical:
    """Return how a small decimal is stored, with decimal32 or decimal64 as its Arrow type."""
    return dataclasses.replace(physical(type), narrow=True)


def narrowest(form: Physical) -> Physical:
    """Return the variant of `form` whose values decode fastest.

    A decimal that files store in 4 or 8 bytes then decodes to Arrow's decimal32 or decimal64,
    instead of decimal128. For other types, the result is `form` itself.
    """
    if form.code == format.TYPE_BLOOM or narrow_decimal(form.type) is None:
        return form
    return narrow_physical(form.type)


@functools.cache
def physical(type: ColumnType) -> Physical:
    """Return how column files store the values of a type, and to which Arrow type they decode."""
    if type.name == "bool":
        return Physical(type, format.TYPE_BOOL, BITS, None)
    if type.name in _BYTES:
        return Physical(type, _BYTES[type.name], BYTES, None)
    if type.name == "decimal":
        assert type.storage_width_bytes is not None
        code, dtype = _DECIMALS[type.storage_width_bytes]
    else:
        code, dtype = _FIXED[type.name]
    return Physical(type, code, FIXED, np.dtype(dtype))


@functools.cache
def bloom_physical() -> Physical:
    """Return the stored form of bloom filter blocks: values of 32 bytes."""
    return Physical(ColumnType("binary"), format.TYPE_BLOOM, FIXED, np.dtype(f"V{format.BLOOM_BLOCK_BYTES}"))


def canonical_array(type: ColumnType, array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return the values as one contiguous array of the column type's Arrow type.

    Text and binary arrays with 64-bit offsets keep these offsets.
    Raises: ArrowInvalid or a similar error for values that cannot be cast.
    """
    if isinstance(array, pa.ChunkedArray):
        array = (
            array.chunk(0)
            if array.num_chunks == 1
            else pa.concat_arrays(array.chunks or [pa.nulls(0, array.type)])
        )
    if array.type.equals(type.arrow):
        return array
    if type.is_variable and is_large(array.type):
        return array
    return array.cast(type.arrow)


def is_large(type: pa.DataType) -> bool:
    """Whether the type is text or binary with 64-bit offsets."""
    return bool(pa.types.is_large_binary(type) or pa.types.is_large_string(type))


def binary_offsets(array: pa.Array) -> npt.NDArray[Any]:
    """Return the offsets of a text or binary array of n values: n + 1 integers. n must not be 0."""
    buffer = array.buffers()[1]
    return np.frombuffer(buffer, "<i8" if is_large(array.type) else "<i4")[array.offset :][: len(array) + 1]


def text_bytes(array: pa.Array) -> int:
    """Return the total size of the values of a text or binary array, in bytes."""
    if not len(array):
        return 0
    offsets = binary_offsets(array)
    return int(offsets[-1]) - int(offsets[0])


def slice_bitmap(bitmap: pa.Buffer, lower: int, count: int) -> pa.Buffer | bytes:
    """Return a bitmap with the bits [lower, lower + count) of `bitmap`, padded with zeros."""
    size = (count + 7) // 8
    if lower % 8 == 0 and count % 8 == 0:
        return bitmap.slice(lower // 8, size)
    first = lower // 8
    bits = np.unpackbits(
        np.frombuffer(bitmap, np.uint8)[first : (lower + count + 7) // 8], bitorder="little"
    )[lower - 8 * first : lower - 8 * first + count]
    return np.packbits(bits, bitorder="little").tobytes()


def copy_dtype(type: pa.DataType) -> np.dtype[Any] | None:
    """Return a NumPy type as wide as the Arrow type, to copy values as bytes.

    None for bool, text and binary.
    """
    if pa.types.is_boolean(type):
        return None
    try:
        width = type.bit_width // 8
    except ValueError:
        return None
    return np.dtype("<c16" if width == 16 else f"<u{width}") if width in (1, 2, 4, 8, 16) else None
