"""The loops that scans spend their time in: compiled where that was possible, in NumPy otherwise.

    compiled   `compiled.pyx`, made by Cython and a C compiler when Nyala is installed or a wheel is built; for x86-64
               on Linux once more, as `compiled_avx2`, for processors whose vectors are twice as long
    plain      `plain.py`, its twin: the same functions, the same answers, a NumPy call for each step; all but
               `fetch`, `read_values` and `sieve`

    fill       numbers of frames, of one or of many at once, into the memory of Arrow arrays
    in_range   which rows of a frame have a delta in a range           in_table   the same of any set of deltas
    rows_matching   which rows are in such ranges and sets in all of several columns
    places     the numbers of the rows that a mask has
    greatest   the greatest delta      delta_at   that of one row: over before the lock would be let go of
    widen      codewords as Arrow's indices
    spread     dense values to the rows that have one      spread_ends   the same of offsets
    repeat     values of runs to their rows
    put_in     hashes of keys into a bloom filter
    views      codewords as Arrow's views of the words
    lay        numbers of changed rows over those that were picked
    word_ends  where the words end that codewords name          lay_words   the words themselves
    fetch      blocks from a file into memory, with their CRCs compared: of all columns of a window in one call
    read_values   the same, and at once the numbers of the blocks, or of some of their rows
    sieve      the same, and which of the rows satisfy what is asked of several columns

A kernel takes the bytes of a block as they lie, goes over them once, and lets go of the interpreter's lock meanwhile.
Its caller has proved what the block says of them. A kernel proves again that it reads and writes no memory but what it
was given, and raises ValueError otherwise; of what the twin does with such arguments nothing is said.

Which is used is decided when Nyala is imported, by the environment variable NYALA_KERNELS: `plain` takes the twin,
`compiled` insists on the other; without it, what there is.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile.kernels.plain import REVISION, Answers, Fill, Lay, Question
from nyala.errors import InvalidArgumentError

__all__ = [
    "CAN_FETCH",
    "COMPILED",
    "Answers",
    "Demand",
    "Fill",
    "Lay",
    "Question",
    "Stretch",
    "delta_at",
    "described",
    "fetch",
    "fill",
    "greatest",
    "in_range",
    "in_table",
    "lay",
    "lay_words",
    "places",
    "put_in",
    "read_values",
    "repeat",
    "rows_matching",
    "sieve",
    "spread",
    "spread_ends",
    "views",
    "widen",
    "word_ends",
]

SETTING: Final = "NYALA_KERNELS"


def _choose() -> str:
    """The module that is used."""
    wanted = os.environ.get(SETTING, "")
    if wanted not in ("", "plain", "compiled"):
        raise InvalidArgumentError(
            f"the environment variable {SETTING} is {wanted!r}: set it to 'plain' or 'compiled', or leave it out"
        )
    name = f"{__name__}.compiled"
    if wanted == "plain" or (not wanted and sys.byteorder != "little"):
        return f"{__name__}.plain"
    try:
        module = importlib.import_module(name)
        if getattr(module, "HAS_AVX2", False) and importlib.util.find_spec(f"{name}_avx2") is not None:
            name = f"{name}_avx2"
            module = importlib.import_module(name)
        if (found := getattr(module, "REVISION", "unknown")) != REVISION:
            raise ImportError(f"they were compiled from another source, of revision {found}")
    except ImportError as error:
        if wanted:
            raise InvalidArgumentError(
                f"the environment variable {SETTING} is 'compiled', but this installation has no compiled kernels "
                f"({error}): install Nyala where there is a C compiler, or leave the variable out"
            ) from error
        return f"{__name__}.plain"
    return name


_CHOSEN: Final = _choose()
COMPILED: Final = not _CHOSEN.endswith(".plain")

_kernels: Final = importlib.import_module(_CHOSEN)
if TYPE_CHECKING:
    from nyala.cfile.kernels.plain import (
        delta_at,
        fill,
        greatest,
        in_range,
        in_table,
        lay,
        lay_words,
        places,
        put_in,
        repeat,
        rows_matching,
        spread,
        spread_ends,
        views,
        widen,
        word_ends,
    )
else:
    delta_at, fill, greatest, widen = _kernels.delta_at, _kernels.fill, _kernels.greatest, _kernels.widen
    in_range, in_table = _kernels.in_range, _kernels.in_table
    places, rows_matching, views = _kernels.places, _kernels.rows_matching, _kernels.views
    spread, spread_ends = _kernels.spread, _kernels.spread_ends
    repeat, put_in = _kernels.repeat, _kernels.put_in
    lay, lay_words, word_ends = _kernels.lay, _kernels.lay_words, _kernels.word_ends

_CRC_OF_DIGITS: Final = 0xE3069283


def _crc32c_address() -> int:
    """Where the C function lies that `google_crc32c` calls; 0 where that package has none, or another."""
    extension = getattr(google_crc32c, "_crc32c", None) or sys.modules.get("google_crc32c._crc32c")
    try:
        function = ctypes.CDLL(extension.__file__).crc32c_value  # type: ignore[union-attr]
        function.argtypes, function.restype = (ctypes.c_char_p, ctypes.c_size_t), ctypes.c_uint32
        if function(b"123456789", 9) == _CRC_OF_DIGITS:
            return ctypes.cast(function, ctypes.c_void_p).value or 0
    except (AttributeError, OSError, TypeError):
        pass
    return 0


_CRC32C: Final = _crc32c_address() if COMPILED else 0
CAN_FETCH: Final = _CRC32C != 0
"""Whether there is a `fetch`: it has no twin, who reads a file otherwise asks it block by block."""


def fetch(descriptor: int, places: Sequence[tuple[int, pa.Buffer]]) -> int:
    """Blocks of an open file into memory: (where each begins in the file, a buffer of its size), all in one call, which
    lets go of the interpreter's lock once. The CRC-32C is made by the C function of `google_crc32c`.

    Returns: which is the first that could not be read to its end, or whose last four bytes are not the CRC-32C of
    those before; -1: none. From that one on the memory may hold anything. Raises: ValueError for a buffer that is
    shorter than a CRC.
    """
    assert CAN_FETCH
    failed: int = _kernels.fetch(descriptor, places, _CRC32C)
    return failed


class Stretch(NamedTuple):
    """The ordinals [lower, upper), at least one, of a column in frames or codewords, that are whole blocks; and where
    their numbers go."""

    offsets: npt.NDArray[np.uint64]  # in the file, of all blocks of the column; little-endian, as are
    lengths: npt.NDArray[np.uint32]
    rows_per_block_log2: int
    row_count: int  # of the column
    lower: int
    upper: int
    least: int  # value that the type has
    greatest: int  # or codeword that there is
    has_codewords: bool
    out: pa.Buffer | None  # Arrow's memory; None: of `sieve`, which makes none
    width: int  # of a number in `out`, as of `Fill`; of a codeword 4
    touched: bytearray  # of each of the blocks becomes 1 when it is read
    held: pa.Buffer | None = None  # as long as all of the blocks: `sieve` leaves those here that it reads


class Demand(NamedTuple):
    """What is asked of the rows of a stretch: a number in [least, greatest], or, where there are any, one of `values`,
    which ascend, or of those that are `marked`, from 0 on: see `number_set`."""

    stretch: Stretch
    least: int
    greatest: int
    values: npt.NDArray[np.int64] | None = None
    marked: npt.NDArray[np.uint8] | None = None
    changed: Answers | None = None  # what is said of these rows instead


def read_values(
    descriptor: int,
    stretches: Sequence[Stretch],
    room: pa.Buffer,
    rows: npt.NDArray[np.int64] | None = None,
) -> list[int]:
    """Numbers of several columns from an open file, in one call, which lets go of the interpreter's lock once. A block
    is read into `room`, its CRC compared, what it says proved (FOR-fits), and its values written while it lies in the
    processor's cache.

    rows: those whose numbers are wanted, counted from where the stretches begin; they ascend. Blocks that have none of
          them are not read; nor those of a stretch that holds what `sieve` left there of the blocks of these rows.
    Returns: which stretches it did not do, whose memory may hold anything. That is no verdict: blocks may be larger
    than `room`, compressed, have NULLs, be bit-shuffled, or damaged. Raises: ValueError for a stretch that is none.
    """
    assert CAN_FETCH
    declined: list[int] = _kernels.read_values(descriptor, stretches, room, rows, _CRC32C)
    return declined


def sieve(
    descriptor: int,
    demands: Sequence[Demand],
    given: npt.NDArray[np.bool_] | None,
    mask: npt.NDArray[np.uint8],
    out: npt.NDArray[np.int64],
    room: pa.Buffer,
) -> int:
    """Which rows satisfy all demands, on stretches of as many rows as `mask` has, of which those count that are
    `given`: their numbers, which ascend, into `out`, which has room for one more than there are rows; the mask becomes
    1 for these and 0 for others. Blocks are read as by `read_values`, but only those that have a row which the demands
    before left.

    given: None: all; it may be the mask itself, as another call left it.
    Returns: how many rows there are; or -1 - i if it did not do demand i, which is as little a verdict, and has written
    anything into the mask. Raises: ValueError, likewise.
    """
    assert CAN_FETCH
    found: int = _kernels.sieve(descriptor, demands, given, mask, out, room, _CRC32C)
    return found


def described() -> str:
    """Which kernels are used, in a word or two."""
    if not COMPILED:
        return "plain"
    words = ["compiled"]
    if _CHOSEN.endswith("_avx2"):
        words.append("AVX2")
    if _kernels.CHECKED:
        words.append("with checks")
    return ", ".join(words)
