"""NumPy views of Arrow's buffers, and Arrow arrays over NumPy buffers, without copies.

    fixed width       [ v0 | v1 | v2 | ... ]                          one NumPy array over the values buffer
    variable width    offsets [ 0, 4, 4, 9 ]  data [ host..port. ]    two NumPy arrays

Arrow's buffers are little-endian on every machine that Nyala supports. A view keeps its buffer
alive and is read-only. NULLs (keys have none) and bool (bits instead of bytes) are not supported.
Source: Apache Arrow columnar format, "Fixed-size primitive layout" and "Variable-size binary
layout".
"""

from __future__ import annotations

import decimal
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.schema.types import ColumnType

_EMPTY_BYTES: npt.NDArray[np.uint8] = np.zeros(0, dtype=np.uint8)
# Exact for any decimal128, whatever decimal context the caller has.
_EXACT = decimal.Context(prec=60)


def fixed_view(
    array: pa.Array, dtype: str, *, stride_bytes: int | None = None, at: int = 0
) -> npt.NDArray[Any]:
    """Return a view of a fixed-width `array`, with one value of `dtype` per row.

    stride_bytes: the number of bytes per row in the buffer (16 for a decimal128). Default: the size
                  of `dtype`.
    at: the position, in bytes, at which the value begins in its row.
    """
    item = np.dtype(dtype)
    stride = item.itemsize if stride_bytes is None else stride_bytes
    buffer = array.buffers()[1]
    if len(array) == 0 or buffer is None:
        return np.zeros(0, dtype=item)
    return np.ndarray(
        (len(array),), dtype=item, buffer=buffer, offset=array.offset * stride + at, strides=(stride,)
    )


def binary_view(array: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8]]:
    """Return (offsets, bytes) of a string or binary `array`, without copying.

    There is one offset more than rows. Offsets are int32, or int64 for a large type. They refer to
    the whole buffer, so the first offset of a slice may not be 0.
    """
    large = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    item = np.dtype("<i8" if large else "<i4")
    _, offsets, data = array.buffers()
    if len(array) == 0 or offsets is None:
        return np.zeros(1, dtype=item), _EMPTY_BYTES
    view = np.frombuffer(offsets, dtype=item, count=len(array) + 1, offset=array.offset * item.itemsize)
    return view, _EMPTY_BYTES if data is None else np.frombuffer(data, dtype=np.uint8)


def large_binary_array(offsets: npt.NDArray[np.int64], data: npt.NDArray[Any]) -> pa.Array:
    """Return a large_binary array over these buffers, which must not change afterwards."""
    return pa.Array.from_buffers(
        pa.large_binary(),
        len(offsets) - 1,
        [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))],
    )


def variable_array(type: ColumnType, offsets: npt.NDArray[Any], data: npt.NDArray[np.uint8]) -> pa.Array:
    """Return the array of a string, varchar or binary column from its offsets and bytes.

    Raises: pyarrow.ArrowInvalid for text that is not UTF-8.
    """
    assert offsets[-1] < 1 << 31, "an array cannot have more than 2 GiB of text"
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    array = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)
    return array.cast(type.arrow) if type.is_text else array


def overlapping_words(data: npt.NDArray[np.uint8], dtype: str) -> npt.NDArray[Any]:
    """Return a view of `data`: item i is the integer of type `dtype` that begins at byte i."""
    item = np.dtype(dtype)
    return np.ndarray((len(data) - item.itemsize + 1,), dtype=item, buffer=data, strides=(1,))


def array_of_canonical(type: ColumnType, values: Sequence[Any]) -> pa.Array:
    """Return `values` as an Arrow array. Too slow for many values: use it for those of a predicate.

    values: dates as days and timestamps as microseconds since 1970; decimals as integers without the
            point (1.20 as 120). None is not supported.
    """
    if type.name == "decimal":
        assert type.scale is not None
        return pa.array([decimal.Decimal(v).scaleb(-type.scale, _EXACT) for v in values], type.arrow)
    if type.name in ("date", "timestamp"):
        plain = np.array(values, dtype=np.int32 if type.name == "date" else np.int64)
        return pa.array(plain).view(type.arrow)
    return pa.array(values, type.arrow)
