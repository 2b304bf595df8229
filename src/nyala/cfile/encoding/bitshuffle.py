"""Bitshuffle: all values' first bits, then all second bits and so on, then LZ4.

Values that repeat, or change little along the key, agree in most of their bits, so that most bit planes are
runs. The transposition and LZ4 are those of C-Blosc, through `numcodecs`; a block's bytes are one Blosc 1
frame, whose header (version, flags, type size, sizes) is checked against the block's before it is trusted.

`shuffle_bits` and `unshuffle_bits` serve the codes of the dictionary encoding as well.

Left out: decoding a part of a frame (a look-up of one row decodes a block).
Source: K. Masui et al., "A compression scheme for radio data in high performance computing", 2015; Blosc
README_CHUNK_FORMAT.
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
from nyala.cfile.physical import FIXED, Physical

__all__ = ["Bitshuffle", "shuffle_bits", "unshuffle_bits"]

# Blosc's own header: format version, version of the inner codec, flags, type size, and three sizes.
_FRAME: Final = struct.Struct("<BBBBIII")
_FRAME_VERSION: Final = 2
# Flags: inner codec in bits 5..7 (1 is LZ4), bit shuffle, copied as it is, byte shuffle. The others (whether
# blocks were split by bytes) are Blosc's own affair.
_FLAGS_MASK: Final = 0xE7
_FLAGS_SHUFFLED: Final = 0x24
_FLAGS_COPIED: Final = 0x26
_LEVEL: Final = 5
# One Blosc block: large enough to find repetitions, small enough for the second-level cache, where the
# transposition takes half the time that it takes outside.
_FRAME_BLOCK_BYTES: Final = 32 << 10


@functools.cache
def _blosc() -> Any:
    from numcodecs import blosc  # imported at first use: it costs 0.2 s

    return blosc


def shuffle_bits(values: npt.NDArray[Any]) -> pa.Buffer:
    """A frame of `values` (at least one); the width of their type is the one that is transposed."""
    values = np.ascontiguousarray(values)
    with _on_this_thread() as blosc:
        return pa.py_buffer(blosc.compress(values, b"lz4", _LEVEL, blosc.BITSHUFFLE, _FRAME_BLOCK_BYTES))


def unshuffle_bits(frame: pa.Buffer, count: int, width_bytes: int) -> pa.Buffer:
    """The `count` values of a frame, `width_bytes` each. Raises ValueError when it is no such frame."""
    if frame.size < _FRAME.size:
        raise ValueError(f"expected a frame header of {_FRAME.size} bytes, found {frame.size}")
    version, _, flags, width, size, block_size, frame_size = _FRAME.unpack_from(frame)
    if flags & _FLAGS_MASK not in (_FLAGS_SHUFFLED, _FLAGS_COPIED):
        raise ValueError(f"expected bit-shuffled LZ4 in the frame, found flags {flags:#04x}")
    if version != _FRAME_VERSION or width != width_bytes or frame_size != frame.size:
        raise ValueError(
            f"expected a frame of version {_FRAME_VERSION}, width {width_bytes} and {frame.size} bytes, found "
            f"version {version}, width {width} and {frame_size} bytes"
        )
    if size != count * width_bytes or not 0 < block_size <= max(size, 1):
        raise ValueError(
            f"expected {count * width_bytes} bytes in the frame, found {size} in blocks of {block_size}"
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
    """Blosc, which works on the calling thread only while this context is open.

    On the main thread, numcodecs would take a lock and hand parts of a block to threads of its own. Two reasons
    against that: a part takes some microseconds only, and an interrupt (Ctrl-C) at the moment when numcodecs takes
    its lock leaves the lock taken, so that the next call waits for ever. Only the main thread changes the setting
    and restores it, because numcodecs uses no lock on other threads.
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


# A faster encoding may be a bit a value larger: bitshuffle takes eight times as long to decode as frame of reference.
_SLACK_BYTES: Final = 1 / 8


class Bitshuffle(Encoding):
    """For every type of fixed width except bool."""

    code = format.ENCODING_BITSHUFFLE
    name = "bitshuffle"
    compresses = True

    def handles(self, form: Physical) -> bool:
        return form.kind == FIXED

    def prepare(self, form: Physical, values: pa.Array) -> BlockEncoder | None:
        return _BitshuffleEncoder(form.fixed_values(values))

    def candidates(self, column: ColumnSample) -> Sequence[Candidate]:
        found = self.sampled(column, column.light_compression, 4)
        return [candidate._replace(slack_bytes=_SLACK_BYTES) for candidate in found]

    def decode(self, form: Physical, block: EncodedValues) -> pa.Array:
        values = unshuffle_bits(block.data, block.row_count, form.width_bytes)
        return form.fixed_array(values, block.row_count)
