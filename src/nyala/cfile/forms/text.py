"""Decodes dictionary codes to text.

    codes 2 0 0 1      entries  a | bc | def      ->      text  def a a bc, and the end of each value

One kernel computes the ends of the values, so the size is known before memory is allocated. Another
kernel copies the bytes. The prefix encoding joins prefixes and suffixes with the same kernels.
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

_BYTES_MAX: Final = (1 << 31) - 1  # 32-bit offsets address no more
# The kernel copies entries in steps of this size. It must copy the last entries byte by byte,
# because nothing follows them. A small dictionary is padded: otherwise most of its entries would be
# the last ones.
_ROOM_BYTES: Final = 32
_SMALL_BYTES: Final = 4096
# For fewer values, one call of Arrow costs less: 24 instead of 36 µs for 1,000 values, but 111
# instead of 86 for 10,000.
_ROWS_FEW: Final = 4096


def join_entries(
    codes: npt.NDArray[np.int32], starts: npt.NDArray[np.int32], data: Any
) -> tuple[pa.Buffer, pa.Buffer]:
    """Return (32-bit offsets, bytes) of an Arrow text array with the entry of each code.

    data: the bytes of all entries, one after another.
    starts: the start of each entry in `data`, and the end of the last entry.
    Cost: two calls that release the interpreter lock. A value takes 5 ns if the entries fit into
    the processor's caches, otherwise 10 to 20 ns.
    Raises: ArrowInvalid for more than 2 GiB of text; ValueError for a code without an entry.
    """
    offsets = allocate(4 * (len(codes) + 1))
    ends = np.frombuffer(offsets, np.int32)
    size = kernels.entry_ends(codes, starts, ends)
    if size > _BYTES_MAX:
        raise pa.ArrowInvalid("more than 2 GiB of text in one array: decode fewer rows at once")
    out = allocate(size)
    if len(data) < _SMALL_BYTES:
        data = bytes(data) + bytes(_ROOM_BYTES)
    kernels.copy_entries(codes, starts, pa.py_buffer(data), ends, out)
    return offsets, out


def text_of(array: pa.DictionaryArray) -> pa.Array:
    """Decode a dictionary array of text or binary. Raises ArrowInvalid for more than 2 GiB of text."""
    codes, entries = array.indices, array.dictionary
    if len(codes) < _ROWS_FEW or codes.type != pa.int32() or codes.null_count or entries.null_count:
        return array.dictionary_decode()
    if entries.type not in (pa.string(), pa.binary()):
        return array.dictionary_decode()
    numbers = np.frombuffer(codes.buffers()[1], np.int32)[codes.offset :][: len(codes)]
    buffers = join_entries(numbers, binary_offsets(entries), entries.buffers()[2] or b"")
    return pa.Array.from_buffers(entries.type, len(codes), [None, *buffers], 0)
