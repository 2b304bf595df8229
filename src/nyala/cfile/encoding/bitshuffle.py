"""Bitshuffle: stores the first bits of all values, then all second bits, and so on, with LZ4.

Adjacent values often have most bits in common. So most of these rows of bits have long runs, which
LZ4 compresses. The C library Blosc, in the package `numcodecs`, transposes and compresses the bits.
The bytes of a block are one Blosc 1 frame. Its header (version, flags, type size, sizes) is checked
against the block before it is used.

The dictionary encoding also uses `shuffle_bits` and `unshuffle_bits` for its codes. A frame cannot
be decoded in part: a look-up of one row decodes the whole block.
Source: K. Masui et al., "A compression scheme for radio data in high performance computing", 2015;
Blosc README_CHUNK_FORMAT.
"""

from __future__ import annotations

import functools
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile import format
from nyala.cfile.encoding.base import BlockEncoder, Candidate, ColumnSample, EncodedValues, Encoding
from nyala.cfile.memory import allocate
from nyala.cfile.physical import Physical

# Blosc's own header: format version, version of the inner codec, flags, type size, then the sizes
# of the values, of a Blosc block and of the frame.
_FRAME: Final = struct.Struct("<BBBBIII")
_FRAME_VERSION: Final = 2
# The checked flags: inner codec in bits 5 to 7 (1 is LZ4), bit shuffle, stored uncompressed, byte
# shuffle. The other flags do not matter here.
_FLAGS_MASK: Final = 0xE7
_FLAGS_SHUFFLED: Final = 0x24
_FLAGS_COPIED: Final = 0x26
_LEVEL: Final = 5
# The size of one Blosc block. It is large enough to contain repetitions, and small enough for the
# second-level cache, in which the transposition takes half the time.
_FRAME_BLOCK_BYTES: Final = 32 << 10


@functools.cache
def _blosc() -> Any:
    from numcodecs import blosc  # imported at first use: it costs 0.2 s

    return blosc


def shuffle_bits(values: npt.NDArray[Any]) -> pa.Buffer:
    """Transpose the bits of `values` (at least one), and return them as a Blosc frame."""
    values = np.ascontiguousarray(values)
    with _on_this_thread() as blosc:
        return pa.py_buffer(blosc.compress(values, b"lz4", _LEVEL, blosc.BITSHUFFLE, _FRAME_BLOCK_BYTES))


def unshuffle_bits(frame: pa.Buffer, count: int, width_bytes: int) -> pa.Buffer:
    """Decode the bytes from `shuffle_bits` to `count` values of `width_bytes` bytes each.

    frame: the bytes, with the header of Blosc.
    Raises: ValueError for any other bytes.
    """
    if frame.size < _FRAME.size:
        raise ValueError(f"expected a Blosc header of {_FRAME.size} bytes, found {frame.size} bytes")
    version, _, flags, width, size, block_size, frame_size = _FRAME.unpack_from(frame)
    if flags & _FLAGS_MASK not in (_FLAGS_SHUFFLED, _FLAGS_COPIED):
        raise ValueError(f"expected the Blosc flags of bit-shuffled LZ4 data, found flags {flags:#04x}")
    if version != _FRAME_VERSION or width != width_bytes or frame_size != frame.size:
        raise ValueError(
            f"expected a Blosc header with version {_FRAME_VERSION}, values of {width_bytes} bytes and {frame.size} "
            f"bytes in all, found version {version}, values of {width} bytes and {frame_size} bytes in all"
        )
    if size != count * width_bytes or not 0 < block_size <= max(size, 1):
        raise ValueError(
            f"expected {count * width_bytes} uncompressed bytes and a block size from 1 to this number, found {size} "
            f"bytes and block size {block_size}"
        )
    values = allocate(size)
    try:
        with _on_this_thread() as blosc:
            blosc.decompress(frame, values)
    except (RuntimeError, ValueError) as error:
        raise ValueError(
            f"expected bit-shuffled data, found bytes that Blosc cannot read ({error})"
        ) from error
    return values


@contextmanager
def _on_this_thread() -> Iterator[Any]:
    """Yield the module of Blosc, set to work on the calling thread only.

    On the main thread, numcodecs would take a lock and divide the work among its own threads.
    Blocks are too small to gain from this. And if Ctrl-C interrupted numcodecs while it takes the
    lock, the next call would wait for ever.
    """
    blosc = _blosc()
    if threading.current_thread() is not threading.main_thread():
        yield blosc
        return
    before, blosc.use_threads = blosc.use_threads, False
    try:
        yield blosc
    finally:
        blosc.use_threads = before


@dataclass(frozen=True)
class _BitshuffleEncoder(BlockEncoder):
    values: npt.NDArray[Any]

    def encode(self, lower: int, upper: int) -> pa.Buffer:
        return shuffle_bits(self.values[lower:upper])


# A faster encoding may be one bit per value larger, because bitshuffle decodes eight times slower
# than frame of reference.
_SLACK_BYTES: Final = 1 / 8


class Bitshuffle(Encoding):
    """Stores the first bits of all values, then all second bits, and so on, compressed by LZ4.

    Columns of every fixed-width type except bool may have this encoding.
    """

    code = format.ENCODING_BITSHUFFLE
    name = "bitshuffle"
    compresses = True

    def prepare(self, form: Physical, values: pa.Array) -> BlockEncoder | None:
        return _BitshuffleEncoder(form.fixed_values(values))

    def candidates(self, column: ColumnSample) -> Sequence[Candidate]:
        candidates = self.sampled(column, 4)
        return [candidate._replace(slack_bytes=_SLACK_BYTES) for candidate in candidates]

    def decode(self, form: Physical, block: EncodedValues) -> pa.Array:
        values = unshuffle_bits(block.data, block.row_count, form.width_bytes)
        return form.fixed_array(values, block.row_count)
