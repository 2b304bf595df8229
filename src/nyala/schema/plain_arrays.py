"""Arrow arrays from NumPy vectors and bytes, and back, by their buffers.

The first call of `pa.array`, `pa.scalar` or `Array.to_numpy` imports pandas, if it is installed: 0.35 s of CPU. The
code that opens and reads a store uses these functions instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["array_of_bytes", "array_of_numbers", "booleans_of"]


def array_of_numbers(values: npt.NDArray[Any]) -> pa.Array:
    """Numbers or booleans, which must not change any more. No copy of numbers side by side in memory."""
    is_bool = values.dtype == np.bool_
    data = np.packbits(values, bitorder="little") if is_bool else np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(data)])


def array_of_bytes(values: Sequence[bytes]) -> pa.Array:
    """A large_binary array without NULLs."""
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.large_binary(), len(values), buffers)


def booleans_of(array: pa.Array) -> npt.NDArray[np.bool_]:
    """The values of a bool array without NULLs, as a vector of its own."""
    assert array.null_count == 0
    if not len(array):
        return np.zeros(0, np.bool_)
    first, skipped = divmod(array.offset, 8)
    data = np.frombuffer(array.buffers()[1], np.uint8, -(-(skipped + len(array)) // 8), first)
    return np.unpackbits(data, count=skipped + len(array), bitorder="little")[skipped:].view(np.bool_)
