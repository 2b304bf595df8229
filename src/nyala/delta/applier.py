"""Applies changes to base data, to produce its state at a snapshot.

    older  <-------------------------------------------->  newer
      UNDO t=4   UNDO t=9   [ base ]   REDO t=12   REDO t=20
      <- roll back, newest first       roll forward, oldest first ->

Each run (`DeltaRun`) has changes of one column. If several runs change a row, the value of the
last applied run is used. So callers pass UNDO newest first and REDO oldest first. The functions
combine all runs into one *patch*: the positions and values that replace values of the base. No
function changes its arguments.

Invariants
    D4  For one value, no UNDO is newer than any REDO. So rolling back and then forward is correct.
    D5  Runs of one kind follow one another in time without overlap.

Cost: one pass over the changes of the rows, and one copy of the base. If no value of the base must
be replaced, the base is not copied.
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
from nyala.schema.adapter import concat_versions

# If several runs together have more records than this share of the rows, they are written to an
# array with an element per row. Otherwise they are sorted.
_SORTED_SHARE: Final = 1 / 4


def resolve(
    undo: Sequence[DeltaRun],
    redo: Sequence[DeltaRun],
    snapshot: int,
    lower: int = 0,
    upper: int | None = None,
) -> tuple[Rowids, pa.Array | None]:
    """Return the changed values of one column at `snapshot`, for the rows [lower, upper).

    undo: newest first. redo: oldest first.
    Returns: (ascending rowids, their values). The values are None if no row is changed.
    """
    return overlay([run.resolve(snapshot, lower, upper) for run in (*undo, *redo)], lower, upper)


def resolve_at(
    undo: Sequence[DeltaRun],
    redo: Sequence[DeltaRun],
    snapshot: int,
    rowids: Rowids,
) -> tuple[npt.NDArray[np.int64], pa.Array | None]:
    """Return the changed values of one column at `snapshot`, for the rows `rowids`.

    undo: newest first. redo: oldest first. rowids: in any order.
    Returns: (ascending positions in `rowids`, values of these rows). The values are None if no row
    is changed.
    """
    return overlay([run.resolve_at(rowids, snapshot) for run in (*undo, *redo)])


def overlay(
    parts: Sequence[tuple[npt.NDArray[np.int64], pa.Array]], lower: int = 0, upper: int | None = None
) -> tuple[npt.NDArray[np.int64], pa.Array | None]:
    """Combine several patches (values that replace base values) into one.

    If several patches have a value for the same position, the last patch is used.

    parts: (strictly ascending positions, values) of each patch. The result has the same form, with
    None as values if it is empty.
    lower, upper: a range that contains all positions; upper None: unknown.
    Cost: one sort of the positions; or one pass over the range, if the positions fill much of it.
    """
    parts = [part for part in parts if len(part[0])]
    if not parts:
        return np.empty(0, np.int64), None
    if len(parts) == 1:
        return parts[0]
    if upper is not None and sum(len(part[0]) for part in parts) > (upper - lower) * _SORTED_SHARE:
        return _overlay_dense(parts, lower, upper)
    positions = np.concatenate([part[0] for part in parts])
    values = concat_versions([part[1] for part in parts])
    order = np.argsort(positions, kind="stable")
    positions = positions[order]
    last = np.append(positions[1:] != positions[:-1], True)
    return positions[last], take(values, order[last])


def _overlay_dense(
    parts: Sequence[tuple[npt.NDArray[np.int64], pa.Array]], lower: int, upper: int
) -> tuple[npt.NDArray[np.int64], pa.Array]:
    which, start = scratch(np.int32, upper - lower), 1
    which[:] = 0
    for positions, _ in parts:
        which[positions - lower] = np.arange(start, start + len(positions), dtype=np.int32)
        start += len(positions)
    changed = np.flatnonzero(which != 0)  # faster than np.flatnonzero(which)
    return changed + lower, take(concat_versions([part[1] for part in parts]), which[changed] - 1)


def patch(base: pa.Array, positions: npt.NDArray[np.integer[Any]], values: pa.Array) -> pa.Array:
    """Return a copy of `base` with `values[i]` at `positions[i]`. Positions ascend strictly.

    Values of fixed width are copied as bytes, so NaN and decimals keep every bit.
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
        old, new = _raw_values(base), _raw_values(values)
        if old is None or new is None:
            indices = np.arange(count)
            indices[positions] = np.arange(count, count + len(values))
            return take(pa.concat_arrays([base, values]), indices)
        data = pa.allocate_buffer(old.nbytes)  # Arrow's pool reuses pages; NumPy would allocate new ones
        patched = np.frombuffer(data, old.dtype).reshape(old.shape)
        patched[:] = old
        patched[positions] = new
    validity = None
    if base.null_count or values.null_count:
        valid = _bits(base, 0) if base.null_count else np.ones(count, np.uint8)
        valid[positions] = _bits(values, 0) if values.null_count else 1
        validity = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(base.type, count, [validity, data])


def _bits(array: pa.Array, buffer: int) -> npt.NDArray[np.uint8]:
    """Return the bits of an array as one writable byte (0 or 1) per row.

    buffer: 0 for the validity bitmap, 1 for the values of a bool array.
    """
    first, last = array.offset // 8, (array.offset + len(array) + 7) // 8
    packed = np.frombuffer(array.buffers()[buffer], np.uint8)[first:last]
    skip = array.offset % 8
    return np.unpackbits(packed, bitorder="little", count=skip + len(array))[skip:]


def _raw_values(array: pa.Array) -> npt.NDArray[Any] | None:
    """Return a NumPy view of the values of a fixed-width array as unsigned integers.

    Values of 16 bytes become two integers. Returns None for text and binary.
    """
    try:
        width = array.type.bit_width // 8
    except ValueError:
        return None
    # Count and offset are passed, because a buffer may end in padding that is no multiple of the
    # width.
    if width == 16:
        flat = np.frombuffer(array.buffers()[1], np.uint64, 2 * len(array), 16 * array.offset)
        return flat.reshape(-1, 2)
    return np.frombuffer(array.buffers()[1], f"u{width}", len(array), width * array.offset)
