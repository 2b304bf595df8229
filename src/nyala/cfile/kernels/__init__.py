"""The inner loops of scans: compiled if possible, in NumPy otherwise.

    compiled   `compiled.pyx`, which Cython and a C compiler build when Nyala is installed or a wheel is
               built. On x86-64 Linux it is also built as `compiled_avx2`, for processors with AVX2
    plain      `plain.py`: the same functions with the same results, by NumPy calls

A *frame* is a block of packed integers (`forms.frame`). A *delta* is one of these integers, as it
is packed.

    fill             decodes or gathers numbers of one or many frames into the memory of Arrow arrays
    in_range         says which rows of a frame have a delta in a range
    in_table         says which rows of a frame have a delta in a set
    max_delta        returns the greatest delta of a frame
    delta_at         returns the delta of one row
    mask_positions   writes the positions of the True values in a mask
    scatter          writes the values of a column without NULLs to the rows that are not NULL
    scatter_offsets  writes the Arrow offsets of text to the rows that are not NULL
    repeat_runs      writes the values of runs to their rows
    bloom_insert     inserts key hashes into a bloom filter
    gather_views     turns dictionary codes into Arrow string views
    entry_ends       computes the Arrow offsets of the text that dictionary codes decode to
    copy_entries     copies the bytes of this text from the dictionary

A kernel makes one pass over its data, and releases the interpreter lock meanwhile (except
`delta_at`). The caller must check the block's header. If the arguments would make a compiled kernel
read or write outside of them, it raises ValueError. In `plain`, the result is then undefined.

The environment variable NYALA_KERNELS, `plain` or `compiled`, selects the kernels when Nyala is
imported. Without it, Nyala uses the compiled kernels if they exist.
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
    "bloom_insert",
    "copy_entries",
    "delta_at",
    "described",
    "entry_ends",
    "fill",
    "gather_views",
    "in_range",
    "in_table",
    "mask_positions",
    "max_delta",
    "repeat_runs",
    "scatter",
    "scatter_offsets",
]

SETTING: Final = "NYALA_KERNELS"


def _choose() -> str:
    """Return the full name of the module that implements the kernels in this process."""
    setting = os.environ.get(SETTING, "")
    if setting not in ("", "plain", "compiled"):
        raise InvalidArgumentError(
            f"the environment variable {SETTING} is {setting!r}: set it to 'plain' or 'compiled', or unset it"
        )
    name = f"{__name__}.compiled"
    if setting == "plain" or (not setting and sys.byteorder != "little"):
        return f"{__name__}.plain"
    try:
        module = importlib.import_module(name)
        if getattr(module, "HAS_AVX2", False) and importlib.util.find_spec(f"{name}_avx2") is not None:
            name = f"{name}_avx2"
            module = importlib.import_module(name)
        if (revision := getattr(module, "REVISION", "unknown")) != REVISION:
            raise ImportError(
                f"the compiled kernels have revision {revision}, but this version of Nyala needs {REVISION}; "
                "install Nyala again"
            )
    except ImportError as error:
        if setting:
            raise InvalidArgumentError(
                f"the environment variable {SETTING} is 'compiled', but this installation has no usable compiled "
                f"kernels ({error}): install Nyala on a machine with a C compiler, or unset the variable"
            ) from error
        return f"{__name__}.plain"
    return name


_CHOSEN: Final = _choose()
COMPILED: Final = not _CHOSEN.endswith(".plain")

_kernels: Final = importlib.import_module(_CHOSEN)
if TYPE_CHECKING:
    from nyala.cfile.kernels.plain import (
        bloom_insert,
        copy_entries,
        delta_at,
        entry_ends,
        fill,
        gather_views,
        in_range,
        in_table,
        mask_positions,
        max_delta,
        repeat_runs,
        scatter,
        scatter_offsets,
    )
else:
    delta_at, fill, max_delta = _kernels.delta_at, _kernels.fill, _kernels.max_delta
    in_range, in_table = _kernels.in_range, _kernels.in_table
    mask_positions, gather_views = _kernels.mask_positions, _kernels.gather_views
    scatter, scatter_offsets = _kernels.scatter, _kernels.scatter_offsets
    repeat_runs, bloom_insert = _kernels.repeat_runs, _kernels.bloom_insert
    copy_entries, entry_ends = _kernels.copy_entries, _kernels.entry_ends


def described() -> str:
    """Return a short description of the kernels in use."""
    if not COMPILED:
        return "plain"
    words = ["compiled"]
    if _CHOSEN.endswith("_avx2"):
        words.append("AVX2")
    if _kernels.CHECKED:
        words.append("with checks")
    return ", ".join(words)
