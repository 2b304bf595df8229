"""The loops that scans spend their time in: compiled where that was possible, in NumPy otherwise.

    compiled   `compiled.pyx`, made by Cython and a C compiler when Nyala is installed or a wheel is built; for x86-64
               on Linux once more, as `compiled_avx2`, for processors whose vectors are twice as long
    plain      `plain.py`, its twin: the same functions, the same answers, a NumPy call for each step

    fill       numbers of frames, of one or of many at once, into the memory of Arrow arrays
    in_range   which rows of a frame have a delta in a range           in_table   the same of any set of deltas
    places     the numbers of the rows that a mask has
    greatest   the greatest delta      delta_at   that of one row: over before the lock would be let go of
    spread     dense values to the rows that have one      spread_ends   the same of offsets
    repeat     values of runs to their rows
    put_in     hashes of keys into a bloom filter
    views      codewords as Arrow's views of the words
    word_ends  where the words end that codewords name          lay_words   the words themselves

A kernel takes the bytes of a block as they lie, goes over them once, and lets go of the interpreter's lock meanwhile.
Its caller has proved what the block says of them. A kernel proves again that it reads and writes no memory but what it
was given, and raises ValueError otherwise; of what the twin does with such arguments nothing is said.

Which is used is decided when Nyala is imported, by the environment variable NYALA_KERNELS: `plain` takes the twin,
`compiled` insists on the other; without it, what there is.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Final

from nyala.cfile.kernels.plain import REVISION, Fill
from nyala.errors import InvalidArgumentError

__all__ = [
    "COMPILED",
    "Fill",
    "delta_at",
    "described",
    "fill",
    "greatest",
    "in_range",
    "in_table",
    "lay_words",
    "places",
    "put_in",
    "repeat",
    "spread",
    "spread_ends",
    "views",
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
        lay_words,
        places,
        put_in,
        repeat,
        spread,
        spread_ends,
        views,
        word_ends,
    )
else:
    delta_at, fill, greatest = _kernels.delta_at, _kernels.fill, _kernels.greatest
    in_range, in_table = _kernels.in_range, _kernels.in_table
    places, views = _kernels.places, _kernels.views
    spread, spread_ends = _kernels.spread, _kernels.spread_ends
    repeat, put_in = _kernels.repeat, _kernels.put_in
    lay_words, word_ends = _kernels.lay_words, _kernels.word_ends


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
