"""Converts NumPy arrays and bytes to Arrow arrays, and back, through their buffers.

If pandas is installed, the first call of `pa.array`, `pa.scalar` or `Array.to_numpy` imports it,
which takes 0.35 s. Code that runs when a store is opened uses these functions instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["array_of_bytes", "array_of_numbers", "booleans_of"]


def array_of_numbers(values: npt.NDArray[Any]) -> pa.Array:
    """Return numbers or booleans as an Arrow array.

    Contiguous numbers are not copied, so the caller must not change them.
    """
    is_bool = values.dtype == np.bool_
    data = np.packbits(values, bitorder="little") if is_bool else np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(data)])


def array_of_bytes(values: Sequence[bytes]) -> pa.Array:
    """Return a large_binary array without NULL."""
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.large_binary(), len(values), buffers)


def booleans_of(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Return the values of a bool array without NULL as a new NumPy array."""
    assert array.null_count == 0
    if not len(array):
        return np.zeros(0, np.bool_)
    first, skipped = divmod(array.offset, 8)
    data = np.frombuffer(array.buffers()[1], np.uint8, -(-(skipped + len(array)) // 8), first)
    return np.unpackbits(data, count=skipped + len(array), bitorder="little")[skipped:].view(np.bool_)
