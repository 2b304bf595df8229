"""Pattern: text whose values are equally long and have few characters in each place, as numbers in frames of reference.

    values     'A000123-45'  'A000124-76'  'B000125-07'
    alphabet   AB   0   0   0   1   2   345   -   047   567       of each place, ascending
    words      0·… + …   1·… + …                                  mixed radix, the first place the most significant

UUIDs, hashes in hexadecimal, article and invoice numbers, phone numbers, dates as text: a place of a UUID has 16
characters of 256, or always the same one. A value is its characters' ranks in the alphabets of their places, written as
the digits of a number, of which a word has as many as stay below 2^48. Ranks ascend as bytes do, so words do as the
values do: sorted or numbered ones are steps or a line, in a frame of reference like any numbers.

Alphabets are the column's, each block has them anew and depends on nothing outside of it. The column is plain if one
value is longer than another, or longer than 128 bytes, or empty. NULL takes the value before it.

Bytes are put together by groups of places that have at most 4,096 spellings and at most 8 bytes: one division and one
look-up for each (`kernels.spell`).

Source: our own; digits of mixed radix as in D. Knuth, "The Art of Computer Programming", volume 2, 4.1.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from nyala.cfile import format, kernels
from nyala.cfile.encoding.base import BlockEncoder, EncodedValues, Encoding
from nyala.cfile.encoding.frame import Frame
from nyala.cfile.encoding.frame_of_reference import FrameOfReference
from nyala.cfile.memory import allocate
from nyala.cfile.physical import BYTES, Physical, binary_offsets, common_length, fill_forward, physical
from nyala.cfile.planes import pack_planes
from nyala.schema.types import ColumnType

__all__ = ["Pattern", "PatternEncoder", "value_length"]

_NUMBERS: Final = physical(ColumnType("int64"))
_FRAMES: Final[Encoding] = FrameOfReference(steps_share_max=0.9)
_LIMIT: Final = 1 << format.PATTERN_WORD_BITS
_FRAME_LENGTH: Final = np.dtype("<u4")
# Of the values' bytes that words may take at the most, before frames make them smaller.
_SHARE_MAX: Final = 7 / 8
_GROUP_SPELLINGS_MAX: Final = 1 << 12  # of 8 bytes each: they stay in a first-level cache
_GROUP_BYTES_MAX: Final = 8
_LAYOUTS_BYTES_MAX: Final = 4 << 20  # or one layout, of 2 MB at the most
# Fewer rows are not searched for tables: of a small block that takes longer than all else.
_SEARCHED_ROWS_MIN: Final = 1 << 13


class _Word(NamedTuple):
    """The places [begin, end) of a value, as one number below `limit`."""

    begin: int
    end: int
    limit: int


@dataclass(frozen=True)
class PatternEncoder:
    """values: of one length, without NULLs."""

    values: pa.Array
    alphabets: list[bytes]
    words: list[_Word]
    ranks: list[kernels.Ranks]  # of each place
    dictionary: None = None
    table: None = None

    def is_worth_it(self, block_rows: int) -> bool:
        """Whether blocks of so many rows take less than the values' bytes, alphabets included, before frames make them
        smaller; a column of one block is its writer's affair."""
        if len(self.values) <= block_rows:
            return True
        length = len(self.alphabets)
        head = format.PATTERN_HEADER.size + length + sum(map(len, self.alphabets))
        head += len(self.words) * (_FRAME_LENGTH.itemsize + format.FOR_HEADER.size)
        return head + block_rows * _bits(self.words) / 8 <= block_rows * length * _SHARE_MAX

    def encode(self, lower: int, upper: int) -> pa.Buffer:
        values = _Texts(self.values.slice(lower, upper - lower), len(self.alphabets))
        frames = []
        for word in self.words:
            numbers = np.empty(upper - lower, np.int64)
            kernels.unspell(
                values.data, values.length, word.begin, self.ranks[word.begin : word.end], numbers
            )
            frames.append(_framed(numbers))
        sizes = bytes(len(letters) - 1 for letters in self.alphabets)
        letters = b"".join(self.alphabets)
        head = format.PATTERN_HEADER.pack(len(self.alphabets), len(frames), len(letters))
        lengths = np.array(list(map(len, frames)), _FRAME_LENGTH).tobytes()
        return pa.py_buffer(_padded(head + sizes + letters + lengths) + b"".join(map(_padded, frames)))


class Pattern:
    """For text and binary."""

    code: Final = format.ENCODING_PATTERN
    name: Final = "pattern"
    compresses: Final = True

    def handles(self, form: Physical) -> bool:
        return form.kind == BYTES

    def prepare(self, form: Physical, values: pa.Array) -> BlockEncoder | None:
        there = values.drop_null() if values.null_count else values
        length = common_length(there)
        if not length or length > format.PATTERN_LENGTH_MAX:
            return None
        alphabets = _alphabets(_Texts(there, length))
        words = _words([len(letters) for letters in alphabets])
        if _bits(words) > 8 * length * _SHARE_MAX:
            return None
        if values.null_count:
            # Before the first value there is none to take.
            values = pc.fill_null(fill_forward(values), there[0])
        return PatternEncoder(values, alphabets, words, list(map(_ranks, alphabets)))

    def decode(self, form: Physical, block: EncodedValues) -> pa.Array:
        data, rows = block.data, block.row_count
        layout, lengths, start = _parsed(data)
        size = rows * layout.length
        if size > format.BLOCK_VALUES_BYTES_MAX:
            raise ValueError(
                f"expected at most {format.BLOCK_VALUES_BYTES_MAX} bytes of values, found {size}"
            )
        if start + sum(map(_padded_size, lengths)) != data.size:
            raise ValueError(
                f"expected frames of {sum(map(_padded_size, lengths))} bytes in {data.size - start}"
            )
        numbers, jobs = allocate(8 * rows * len(lengths)), []
        for word, length in enumerate(lengths):
            frame = Frame.parse(_NUMBERS, data.slice(start, length), rows)
            jobs.append(frame.rows_into(numbers, rows * word, 8, 0, rows))
            start += _padded_size(length)
        kernels.fill(jobs)
        of_words = np.frombuffer(numbers, np.int64).reshape(len(lengths), rows)
        out = allocate(size)
        kernels.spell(list(zip(of_words, layout.groups, strict=True)), rows, out, layout.length)
        offsets = np.arange(0, size + 1, layout.length, dtype=np.int32)
        return pa.Array.from_buffers(
            form.arrow, rows, [block.validity, pa.py_buffer(offsets), out], block.null_count
        )


def value_length(data: bytes) -> int:
    """How long the values of a block are that begins so. Raises: ValueError."""
    if len(data) < format.PATTERN_HEADER.size:
        raise ValueError(f"expected a header of {format.PATTERN_HEADER.size} bytes, found {len(data)}")
    length: int = format.PATTERN_HEADER.unpack_from(data)[0]
    if not 0 < length <= format.PATTERN_LENGTH_MAX:
        raise ValueError(f"expected values of 1 to {format.PATTERN_LENGTH_MAX} bytes, found {length}")
    return length


class _Layout(NamedTuple):
    """What the blocks of a column have in common."""

    length: int  # of a value
    groups: list[list[kernels.Spellings]]  # of each word

    @property
    def nbytes(self) -> int:
        """Of its tables, each of which may be that of several groups."""
        return sum({id(of.words): of.words.nbytes for word in self.groups for of in word}.values())


def _parsed(data: pa.Buffer) -> tuple[_Layout, list[int], int]:
    """(how values are written, lengths of the frames, where the first begins), each proved to lie in the data.
    Raises: ValueError."""
    length = value_length(data[: format.PATTERN_HEADER.size].to_pybytes())
    _, word_count, letter_count = format.PATTERN_HEADER.unpack_from(data)
    sizes_start = format.PATTERN_HEADER.size
    lengths_start = sizes_start + length + letter_count
    end = lengths_start + _FRAME_LENGTH.itemsize * word_count
    if end > data.size:
        raise ValueError(f"expected {end} bytes of alphabets and lengths of frames, found {data.size}")
    layout = _LAYOUTS.of(length, data[sizes_start:lengths_start].to_pybytes())
    if len(layout.groups) != word_count:
        raise ValueError(f"expected {len(layout.groups)} words for these alphabets, found {word_count}")
    return layout, np.frombuffer(data, _FRAME_LENGTH, word_count, lengths_start).tolist(), _padded_size(end)


class _Layouts:
    """Those that were asked for last, of all columns of the process, in so many bytes. Any thread."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._kept: OrderedDict[bytes, _Layout] = OrderedDict()
        self._size_bytes = 0
        self._lock = threading.Lock()

    def of(self, length: int, described: bytes) -> _Layout:
        """As `_layout`."""
        name = length.to_bytes(1, "little") + described
        with self._lock:
            known = self._kept.get(name)
            if known is not None:
                self._kept.move_to_end(name)
                return known
        made = _layout(length, described)
        with self._lock:
            if name not in self._kept:
                self._kept[name] = made
                self._size_bytes += made.nbytes
            while self._size_bytes > self._limit_bytes and len(self._kept) > 1:
                self._size_bytes -= self._kept.popitem(last=False)[1].nbytes
        return made


_LAYOUTS: Final = _Layouts(_LAYOUTS_BYTES_MAX)


def _layout(length: int, described: bytes) -> _Layout:
    """described: how many bytes each place has, less one, and those bytes. Raises: ValueError."""
    sizes = np.frombuffer(described, np.uint8, length).astype(np.int64) + 1
    letters = np.frombuffer(described, np.uint8, offset=length)
    if int(sizes.sum()) != len(letters):
        raise ValueError(f"expected {int(sizes.sum())} bytes of alphabets, found {len(letters)}")
    ends = np.cumsum(sizes)
    ascend = letters[1:] > letters[:-1]
    ascend[ends[:-1] - 1] = True  # from one place's last to the next one's first
    if not ascend.all():
        raise ValueError("expected alphabets in ascending order")
    alphabets = [described[length + begin : length + end] for begin, end in pairwise([0, *ends.tolist()])]
    tables: dict[tuple[bytes, ...], npt.NDArray[np.uint64]] = {}
    return _Layout(length, [_groups(alphabets, word, tables) for word in _words(sizes.tolist())])


def _words(sizes: list[int]) -> list[_Word]:
    """Places with so many characters each, cut into words: as many as stay below the limit, from the first on."""
    words, begin, limit = [], 0, 1
    for place, size in enumerate(sizes):
        if limit * size > _LIMIT:
            words.append(_Word(begin, place, limit))
            begin, limit = place, 1
        limit *= size
    return [*words, _Word(begin, len(sizes), limit)]


def _bits(words: list[_Word]) -> int:
    """Of a value, before frames make it smaller."""
    return sum((word.limit - 1).bit_length() for word in words)


def _groups(
    alphabets: list[bytes], word: _Word, tables: dict[tuple[bytes, ...], npt.NDArray[np.uint64]]
) -> list[kernels.Spellings]:
    """The word's places in groups, from the first on, with all that each may say. Groups alike have one table, of
    `tables`, which then stays in the processor's cache."""
    letters = alphabets[word.begin : word.end]
    groups, begin, count = [], 0, 1
    for place, of in enumerate(letters):
        if place > begin and (count * len(of) > _GROUP_SPELLINGS_MAX or place - begin == _GROUP_BYTES_MAX):
            groups.append((begin, place))
            begin, count = place, 1
        count *= len(of)
    found = []
    for first, end in [*groups, (begin, len(letters))]:
        alike = tuple(letters[first:end])
        words = tables[alike] = tables[alike] if alike in tables else _spelled(alike)
        found.append(kernels.Spellings(len(words), end - first, words))
    return found


def _spelled(alphabets: tuple[bytes, ...]) -> npt.NDArray[np.uint64]:
    """All that these places may say, in order."""
    count, each = math.prod(map(len, alphabets)), 1
    table = np.zeros((count, _GROUP_BYTES_MAX), np.uint8)
    for place in range(len(alphabets) - 1, -1, -1):
        letters = np.frombuffer(alphabets[place], np.uint8)
        table[:, place] = np.tile(np.repeat(letters, each), count // (each * len(letters)))
        each *= len(letters)
    return table.view("<u8").reshape(-1)


class _Texts:
    """Values of one length, none of them NULL: their bytes, back to back."""

    def __init__(self, values: pa.Array, length: int) -> None:
        first = int(binary_offsets(values)[0])
        self.data: Final = values.buffers()[2].slice(first, len(values) * length)
        self.length: Final = length


def _alphabets(texts: _Texts) -> list[bytes]:
    """Of each place the bytes that stand there, ascending."""
    seen = np.zeros((texts.length, 256), np.uint8)
    kernels.letters(texts.data, texts.length, seen)
    return [np.flatnonzero(of).astype(np.uint8).tobytes() for of in seen]


def _framed(numbers: npt.NDArray[np.int64]) -> bytes:
    """Numbers that are not negative in a frame of reference."""
    if len(numbers) >= _SEARCHED_ROWS_MIN or (numbers[1:] >= numbers[:-1]).all():
        encoder = _FRAMES.prepare(_NUMBERS, pa.array(numbers))
        assert encoder is not None
        frame: bytes = encoder.encode(0, len(numbers)).to_pybytes()
        return frame
    base = int(numbers.min())
    bits = (int(numbers.max()) - base).bit_length()
    header = format.FOR_HEADER.pack(base, 0, 1, format.FOR_LINE, bits, 0, bytes(4))
    return header + pack_planes((numbers - base).view(np.uint64), bits)


def _ranks(letters: bytes) -> kernels.Ranks:
    ranks = np.zeros(256, np.uint8)
    ranks[np.frombuffer(letters, np.uint8)] = np.arange(len(letters))
    return kernels.Ranks(len(letters), ranks)


def _padded_size(size: int) -> int:
    return size + -size % format.PATTERN_ALIGNMENT_BYTES


def _padded(data: bytes) -> bytes:
    return data.ljust(_padded_size(len(data)), b"\0")
