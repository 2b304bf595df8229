"""Bring base data to the state it had, or will have, at a snapshot.

    older  <-------------------------------------------->  newer
      UNDO t=4   UNDO t=9   [ base ]   REDO t=12   REDO t=20
      <- roll back, newest first       roll forward, oldest first ->

Pure: arrays in, an array out. The runs of one column say for some rows which value they have (`DeltaRun`); of
several runs the one applied later wins, so the caller gives UNDO newest first and REDO oldest first, and all that
is left to do is one patch of the base.

Invariants
    D4  For one cell no UNDO is newer than any REDO: rolling forward after rolling back is right.
    D5  Runs of one kind follow one another in time without overlap (rule R4).

Cost: one pass over the changes of the range and one copy of the base; no copy where nothing applies.
Source: Kudu tablet design, "Historical MVCC in DiskRowSets".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile.memory import scratch
from nyala.delta.run import DeltaRun, Rowids, take
from nyala.schema.adapter import joined

__all__ = ["decide", "overlay", "patch", "resolve_at"]

# Of the rows of a range: more records of several runs are laid into an array of all rows instead of sorted.
_SORTED_SHARE: Final = 1 / 4


def decide(
    undo: Sequence[DeltaRun],
    redo: Sequence[DeltaRun],
    snapshot: int,
    lower: int = 0,
    upper: int | None = None,
) -> tuple[Rowids, pa.Array | None]:
    """All that the runs say at `snapshot` about rows [lower, upper): (ascending rowids, values); None: nothing."""
    return overlay([run.resolve(snapshot, lower, upper) for run in (*undo, *redo)], lower, upper)


def resolve_at(
    undo: Sequence[DeltaRun],
    redo: Sequence[DeltaRun],
    snapshot: int,
    rowids: Rowids,
) -> tuple[npt.NDArray[np.int64], pa.Array | None]:
    """All that the runs say at `snapshot` about these rows: (ascending places in `rowids`, values); None:
    nothing."""
    return overlay([run.resolve_at(rowids, snapshot) for run in (*undo, *redo)])


def overlay(
    parts: Sequence[tuple[npt.NDArray[np.int64], pa.Array]], lower: int = 0, upper: int | None = None
) -> tuple[npt.NDArray[np.int64], pa.Array | None]:
    """Lay patches over one another; the later wins. Places ascend in each part and in the result, each once.

    lower, upper: all places are in this range, if it is given.
    Cost: one sort of what is nearly sorted; of many places in a range no sort, but a pass over the range.
    """
    parts = [part for part in parts if len(part[0])]
    if not parts:
        return np.empty(0, np.int64), None
    if len(parts) == 1:
        return parts[0]
    if upper is not None and sum(len(part[0]) for part in parts) > (upper - lower) * _SORTED_SHARE:
        return _overlay_dense(parts, lower, upper)
    places = np.concatenate([part[0] for part in parts])
    values = joined([part[1] for part in parts])
    order = np.argsort(places, kind="stable")
    places = places[order]
    last = np.append(places[1:] != places[:-1], True)
    return places[last], take(values, order[last])


def _overlay_dense(
    parts: Sequence[tuple[npt.NDArray[np.int64], pa.Array]], lower: int, upper: int
) -> tuple[npt.NDArray[np.int64], pa.Array]:
    which, start = scratch(np.int32, upper - lower), 1
    which[:] = 0
    for places, _ in parts:
        which[places - lower] = np.arange(start, start + len(places), dtype=np.int32)
        start += len(places)
    touched = np.flatnonzero(which != 0)  # NumPy finds what is True faster than what is not 0
    return touched + lower, take(joined([part[1] for part in parts]), which[touched] - 1)


def patch(base: pa.Array, positions: npt.NDArray[np.integer[Any]], values: pa.Array) -> pa.Array:
    """`base` with `values[i]` at `positions[i]`; positions ascend and are unique. `base` is not changed.

    Fixed widths: one copy and one scatter of raw bytes, so NaN payloads and decimals stay bit for bit.
    Text and binary: one `take` over base and values laid end to end.
    """
    count = len(base)
    if not len(positions):
        return base
    assert len(positions) == len(values) <= count, (len(positions), len(values), count)
    assert 0 <= positions[0] and positions[-1] < count, (positions[0], positions[-1], count)
    assert base.type == values.type, (base.type, values.type)
    if len(positions) == count:
        return values
    if pa.types.is_boolean(base.type):
        bits = _bits(base, 1)
        bits[positions] = _bits(values, 1)
        data = pa.py_buffer(np.packbits(bits, bitorder="little"))
    else:
        words, news = _words(base), _words(values)
        if words is None or news is None:
            indices = np.arange(count)
            indices[positions] = np.arange(count, count + len(values))
            return take(pa.concat_arrays([base, values]), indices)
        data = pa.allocate_buffer(
            words.nbytes
        )  # Arrow's pool keeps its pages; NumPy asks the system for fresh ones
        fresh = np.frombuffer(data, words.dtype).reshape(words.shape)
        fresh[:] = words
        fresh[positions] = news
    validity = None
    if base.null_count or values.null_count:
        valid = _bits(base, 0) if base.null_count else np.ones(count, np.uint8)
        valid[positions] = _bits(values, 0) if values.null_count else 1
        validity = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(base.type, count, [validity, data])


def _bits(array: pa.Array, buffer: int) -> npt.NDArray[np.uint8]:
    """A bitmap buffer of an array (0: validity, 1: the values of a bool) as one byte per row; writable."""
    first, last = array.offset // 8, (array.offset + len(array) + 7) // 8
    packed = np.frombuffer(array.buffers()[buffer], np.uint8)[first:last]
    skip = array.offset % 8
    return np.unpackbits(packed, bitorder="little", count=skip + len(array))[skip:]


def _words(array: pa.Array) -> npt.NDArray[Any] | None:
    """The raw values of a fixed-width array as NumPy words (a view); None for text and binary."""
    try:
        width = array.type.bit_width // 8
    except ValueError:
        return None
    # Count and offset are given, because a buffer may end in padding that is no multiple of the width.
    if width == 16:
        flat = np.frombuffer(array.buffers()[1], np.uint64, 2 * len(array), 16 * array.offset)
        return flat.reshape(-1, 2)
    return np.frombuffer(array.buffers()[1], f"u{width}", len(array), width * array.offset)
