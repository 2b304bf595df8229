"""Words laid out one behind the other by the codes that name them: text of dictionaries, and prefixes with suffixes.

    codes 2 0 0 1      words  a | bc | def      ->      def a a bc      which ends where

Two passes: where each word ends, and so how much all are, before memory is taken; then their bytes (`kernels`).
Source: decision 0060.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile import kernels
from nyala.cfile.memory import allocate
from nyala.cfile.physical import binary_offsets

__all__ = ["laid_out", "text_of", "words_of"]

_BYTES_MAX: Final = (1 << 31) - 1  # that offsets of 32 bits reach
# The kernel copies so many bytes at once where they are there. The last words, behind which nothing lies, are copied
# byte by byte; of few bytes these would be most of the words.
_ROOM_BYTES: Final = 32
_WORDS_FEW_BYTES: Final = 4096
# Of fewer values Arrow's one call costs less than ours: 24 against 36 us for 1,000, 111 against 86 for 10,000.
_ROWS_FEW: Final = 4096


def laid_out(
    codes: npt.NDArray[np.int32], starts: npt.NDArray[np.int32], words: Any, bytes_max: int = _BYTES_MAX
) -> tuple[pa.Buffer, pa.Buffer] | None:
    """(where each of the words that the codes name ends, from 0 on, 4 bytes each; their bytes), as text of Arrow has
    them. None: these are more than so many, or than 2 GiB.

    starts: of each word in `words`, and where the last ends.
    Cost: two calls that let go of the interpreter's lock; 5 ns a value of few words, 10 to 20 of many, most of which is
    that they lie where no near cache has them.
    Raises: ValueError for a code that names none.
    """
    ends = allocate(4 * (len(codes) + 1))
    places = np.frombuffer(ends, np.int32)
    size = kernels.word_ends(codes, starts, places)
    if size > min(bytes_max, _BYTES_MAX):
        return None
    out = allocate(size)
    if len(words) < _WORDS_FEW_BYTES:
        words = bytes(words) + bytes(_ROOM_BYTES)
    kernels.lay_words(codes, starts, pa.py_buffer(words), places, out)
    return ends, out


def words_of(codes: pa.Array, words: pa.Array, bytes_max: int = _BYTES_MAX) -> pa.Array | None:
    """The words that these indices of 4 bytes name, as text or binary with offsets of 32 bits, as the words are, of
    which there is one; none of either is NULL. None, costs and errors: as `laid_out`."""
    places = np.frombuffer(codes.buffers()[1], np.int32)[codes.offset :][: len(codes)]
    made = laid_out(places, binary_offsets(words), words.buffers()[2] or b"", bytes_max)
    return None if made is None else pa.Array.from_buffers(words.type, len(codes), [None, *made], 0)


def text_of(array: pa.DictionaryArray) -> pa.Array:
    """A value for each row. Raises: ArrowInvalid for more than 2 GiB of text."""
    codes, words = array.indices, array.dictionary
    if len(codes) < _ROWS_FEW or codes.type != pa.int32() or codes.null_count or words.null_count:
        return array.dictionary_decode()
    if words.type not in (pa.string(), pa.binary()):
        return array.dictionary_decode()
    made = words_of(codes, words)
    if made is None:
        raise pa.ArrowInvalid("offset overflow while words are laid out: ask for fewer rows at once")
    return made
