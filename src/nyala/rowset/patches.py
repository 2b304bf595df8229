"""Patches: what REDO and UNDO make of one column's rows at a snapshot, ready to be laid over the base of a window.

    changes of the column    files, memory        runs by (rowid, timestamp), one over the other
              │  once for a stretch of rows, by whichever thread comes first; the parts of a scan share it
              v
    patch                    positions, values    each row once, 4 bytes and a value (of a decimal the narrow one)
              │
              ├── laid over       the decoded base of a window
              ├── filtered        a test is asked of the base, and of the patch's values at their positions
              └── picked from     of few rows, the base's where they lie, the patch's by search

A stretch is as long as memory allows, so that a file of which one block holds the changes of many windows is read once
and not for each of them. What lasts, because only files say it, is kept from the second scan on (`cfile.cache.Memo`);
what memory says lasts until the next write, and is worked out for each window anew.

Invariants
    P1  Positions ascend, and each stands once.
    P2  A patch has no more and no less than what the snapshot applies: a row that is not in it has its base value.

Immutable; any thread may use it.
Source: Kudu's DeltaApplier, which prepares the deltas of each batch of a scan and lays them over its columns.
Departure: what they come to is one patch, which scans share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile.blocks.read_stats import ReadStats
from nyala.cfile.physical import narrow_decimal, physical
from nyala.delta.applier import decide, overlay, patch
from nyala.delta.run import take
from nyala.rowset.changes import Changes
from nyala.schema.adapter import adapt
from nyala.schema.arrow_values import fixed_values
from nyala.schema.schema import ColumnSchema
from nyala.schema.types import ColumnType

__all__ = ["Patch", "find_patch"]

Rows = npt.NDArray[np.int64]
# Rows that are fewer than this part of the window are searched among the positions; else they are marked in it.
_SEARCHED_SHARE: Final = 1 / 64


@dataclass(frozen=True, eq=False)
class Patch:
    """Rows of a range that have another value than the base, counted from its first row (P1)."""

    type: ColumnType
    positions: npt.NDArray[np.int32]
    values: pa.Array  # of the type; of a decimal that has a `narrow_decimal` as that

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def nbytes(self) -> int:
        return int(self.positions.nbytes) + int(self.values.nbytes)

    def window(self, lower: int, upper: int) -> Patch:
        """The part of the rows [lower, upper), counted from `lower`."""
        begin, end = np.searchsorted(self.positions, np.array((lower, upper), np.int32)).tolist()
        positions = self.positions[begin:end]
        if lower:
            positions = positions - np.int32(lower)
        return Patch(self.type, positions, self.values.slice(begin, end - begin))

    def onto(self, base: pa.Array) -> pa.Array:
        """The rows of the range with what is changed; `base`, in the column's type or narrow, stays as it is."""
        return patch(base, self.positions, _in(self.values, self.type, base.type))

    def picked(self, rows: Rows, count: int, base: pa.Array) -> pa.Array:
        """`base`, which has the values of these ascending rows of a range of `count`, with what is changed.

        Cost: O(patch + rows); of few rows a search of each.
        """
        if len(rows) < count * _SEARCHED_SHARE:
            at = np.searchsorted(self.positions, rows.astype(np.int32))
            at[at == len(self.positions)] = 0
            places = np.flatnonzero(self.positions[at] == rows)
            found = at[places]
        else:
            wanted = np.zeros(count, np.bool_)
            wanted[rows] = True
            found = np.flatnonzero(wanted[self.positions])
            places = np.searchsorted(rows, self.positions[found].astype(np.int64))
        if not len(places):
            return base
        return patch(base, places, _in(take(self.values, found), self.type, base.type))


def _in(values: pa.Array, type: ColumnType, wanted: pa.DataType) -> pa.Array:
    """Values of a patch in the type itself, or narrow."""
    if values.type == wanted:
        return values
    # Not by a cast: of rows that are not there values may be of anything, of more digits than the type has, too (A2 of
    # `adapter`).
    form = physical(type)
    data = values.buffers()[1].slice(values.offset * form.width_bytes, len(values) * form.width_bytes)
    return form.fixed_array(data, len(values), _validity(values), values.null_count)


def _validity(values: pa.Array) -> pa.Buffer | None:
    """The bits of a slice, from its first value on."""
    return values.is_valid().buffers()[1] if values.null_count else None


def find_patch(
    changes: Changes,
    column: ColumnSchema,
    snapshot: int,
    rows: tuple[int, int],
    row_count: int,
    stats: ReadStats | None,
    *,
    scanning: bool,
) -> Patch | None:
    """What `snapshot` makes of the rows [lower, upper) of a rowset of `row_count`; None: nothing.

    scanning: whether a scan asks, which comes for the neighbours of these rows too.
    Raises: CorruptionError.
    """
    lower, upper = rows
    if column.id not in changes.touched:
        return None
    # What memory says lasts until the next write only.
    state = changes.state_of_files(column.id, snapshot) if scanning else None
    if state is not None:
        begin, end = changes.stretch(column.id, snapshot, lower, upper, row_count)

        def whole() -> tuple[Patch, int]:
            made = _newest(changes, column, snapshot, begin, end, stats)
            return made, made.nbytes

        name = ("patch", column.id, column.type, begin, end)
        shared = changes.memo.part(name, state, whole, is_last=upper == end)
        found = shared if (begin, end) == rows else shared.window(lower - begin, upper - begin)
    elif not changes.touch(column.id, snapshot):
        return None
    else:
        found = _resolved(changes, column, snapshot, lower, upper, stats)
    return found if len(found) else None


def _resolved(
    changes: Changes, column: ColumnSchema, snapshot: int, lower: int, upper: int, stats: ReadStats | None
) -> Patch:
    """Of any snapshot."""
    undo, redo = changes.runs(column.id, snapshot, stats, lower, upper)
    return _patch(column, lower, *decide(undo, redo, snapshot, lower, upper))


def _newest(
    changes: Changes, column: ColumnSchema, snapshot: int, lower: int, upper: int, stats: ReadStats | None
) -> Patch:
    """Of a snapshot that applies all REDO, and no UNDO."""
    parts = [
        (rowids, _stored(values, column.type))
        for rowids, values in changes.newest(column.id, snapshot, stats, lower, upper)
    ]
    return _patch(column, lower, *overlay(parts, lower, upper))


def _patch(column: ColumnSchema, lower: int, rowids: Rows, values: pa.Array | None) -> Patch:
    if values is None:
        values = pa.nulls(0, column.type.arrow)
    return Patch(column.type, (rowids - lower).astype(np.int32), _stored(values, column.type))


def _stored(values: pa.Array, type: ColumnType) -> pa.Array:
    """Values of any of the types that the column has had, in that of a patch."""
    narrow = narrow_decimal(type)
    if values.type == narrow:
        return values
    if pa.types.is_decimal(values.type) and values.type.bit_width < 128:
        values = values.cast(pa.decimal128(values.type.precision, values.type.scale))
    values = adapt(values, type.arrow)
    if narrow is None:
        return values
    # The low halves of Arrow's 16 bytes; of rows that are not there they may be of anything (A2 of `adapter`).
    words = fixed_values(values, type).astype(f"<i{narrow.bit_width // 8}")
    data = pa.py_buffer(words)
    return pa.Array.from_buffers(narrow, len(values), [_validity(values), data], values.null_count)
