"""Text by codes: values of a dictionary column, and prefixes joined with suffixes.

    codes 2 0 0 1      entries  a | bc | def      ->      def a a bc      and where each value ends

Two kernels: one computes where each value ends, so that the size is known before memory is taken; one copies bytes.
Source: docs/design/column-files-and-encodings.md, "Text from codes by a kernel".
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile import kernels
from nyala.cfile.memory import allocate
from nyala.cfile.physical import binary_offsets

__all__ = ["join_entries", "text_of"]

_BYTES_MAX: Final = (1 << 31) - 1  # what offsets of 32 bits address
# The kernel copies so many bytes at once where there are as many. The last entries, which nothing follows, are copied
# byte by byte; of a small dictionary these would be most of the entries.
_ROOM_BYTES: Final = 32
_SMALL_BYTES: Final = 4096
# For fewer values Arrow's one call costs less: 24 against 36 us for 1,000, 111 against 86 for 10,000.
_ROWS_FEW: Final = 4096


def join_entries(
    codes: npt.NDArray[np.int32], starts: npt.NDArray[np.int32], data: Any
) -> tuple[pa.Buffer, pa.Buffer]:
    """(offsets of 4 bytes, bytes) of the entries that the codes name, as Arrow's text has them.

    starts: of each entry in `data`, and the end of the last one.
    Cost: two calls that release the interpreter's lock; 5 ns a value of few entries, 10 to 20 of many, mostly for
    entries that no near cache has.
    Raises: ArrowInvalid for more than 2 GiB of text; ValueError for a code without an entry.
    """
    offsets = allocate(4 * (len(codes) + 1))
    ends = np.frombuffer(offsets, np.int32)
    size = kernels.word_ends(codes, starts, ends)
    if size > _BYTES_MAX:
        raise pa.ArrowInvalid("offset overflow while text is decoded: ask for fewer rows at once")
    out = allocate(size)
    if len(data) < _SMALL_BYTES:
        data = bytes(data) + bytes(_ROOM_BYTES)
    kernels.lay_words(codes, starts, pa.py_buffer(data), ends, out)
    return offsets, out


def text_of(array: pa.DictionaryArray) -> pa.Array:
    """A value for each row. Raises: ArrowInvalid for more than 2 GiB of text."""
    codes, entries = array.indices, array.dictionary
    if len(codes) < _ROWS_FEW or codes.type != pa.int32() or codes.null_count or entries.null_count:
        return array.dictionary_decode()
    if entries.type not in (pa.string(), pa.binary()):
        return array.dictionary_decode()
    places = np.frombuffer(codes.buffers()[1], np.int32)[codes.offset :][: len(codes)]
    buffers = join_entries(places, binary_offsets(entries), entries.buffers()[2] or b"")
    return pa.Array.from_buffers(entries.type, len(codes), [None, *buffers], 0)
