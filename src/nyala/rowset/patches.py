"""Patches: the changed values of one column at a snapshot, to apply over the base values of a
split.

    changes of the column    files, memory        runs by (rowid, timestamp)
              │  computed once per range of rows, by the first thread; the splits of a scan share the result
              v
    patch                    positions, values    each changed row once: 4 bytes and a value (narrow for decimals)
              │
              ├── apply             over the decoded base of a split
              ├── filter            a predicate tests the base, and the patch's values at their positions
              └── apply_gathered    over gathered rows of the base

A range is as long as memory allows, so a file whose block holds the changes of many splits is read
once, and not once per split. A patch that depends on files only is cached from the second scan on
(`cfile.blocks.cache.Memo`). A patch with changes from memory is valid until the next write only, and is
computed for each split.

Invariants
    P1  Positions ascend strictly.
    P2  A patch contains exactly the changes that the snapshot applies: other rows have their base
        value.

Immutable; any thread may use it.
Source: Kudu's DeltaApplier, which prepares the deltas of each batch of a scan and applies them to
its columns. Here the prepared changes are a patch that several scans share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile.blocks.read_stats import ReadStats
from nyala.cfile.physical import narrow_decimal, physical
from nyala.delta.applier import overlay, patch, resolve
from nyala.delta.run import take
from nyala.rowset.changes import Changes
from nyala.schema.adapter import adapt
from nyala.schema.arrow_values import fixed_values
from nyala.schema.schema import ColumnSchema
from nyala.schema.types import ColumnType

__all__ = ["Patch", "find_patch"]

Rows = npt.NDArray[np.int64]
# A smaller share of rows is searched in the positions; a larger one is marked in a mask.
_SEARCHED_SHARE: Final = 1 / 64


@dataclass(frozen=True, eq=False)
class Patch:
    """The changed rows of a range of rows, counted from the range's first row (P1)."""

    type: ColumnType
    positions: npt.NDArray[np.int32]
    values: pa.Array  # of the type, or of its `narrow_decimal` if it has one

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def nbytes(self) -> int:
        return int(self.positions.nbytes) + int(self.values.nbytes)

    def of_rows(self, lower: int, upper: int) -> Patch:
        """Return the patch of the rows [lower, upper), counted from `lower`."""
        begin, end = np.searchsorted(self.positions, np.array((lower, upper), np.int32)).tolist()
        positions = self.positions[begin:end]
        if lower:
            positions = positions - np.int32(lower)
        return Patch(self.type, positions, self.values.slice(begin, end - begin))

    def apply(self, base: pa.Array) -> pa.Array:
        """Return a copy of `base`, the values of the range, with the patch applied.

        `base` may be narrow.
        """
        return patch(base, self.positions, _in(self.values, self.type, base.type))

    def apply_gathered(self, rows: Rows, count: int, base: pa.Array) -> pa.Array:
        """Return a copy of `base`, the values of these ascending rows of a range of `count`, with
        the patch applied.

        Cost: O(patch + rows), or a binary search for each row if there are few.
        """
        if len(rows) < count * _SEARCHED_SHARE:
            at = np.searchsorted(self.positions, rows.astype(np.int32))
            at[at == len(self.positions)] = 0
            targets = np.flatnonzero(self.positions[at] == rows)
            sources = at[targets]
        else:
            is_gathered = np.zeros(count, np.bool_)
            is_gathered[rows] = True
            sources = np.flatnonzero(is_gathered[self.positions])
            targets = np.searchsorted(rows, self.positions[sources].astype(np.int64))
        if not len(targets):
            return base
        return patch(base, targets, _in(take(self.values, sources), self.type, base.type))


def _in(values: pa.Array, type: ColumnType, result_type: pa.DataType) -> pa.Array:
    """Convert the values of a patch to the type itself, or keep them narrow."""
    if values.type == result_type:
        return values
    # Not by a cast: values of dead rows may be anything, also numbers with too many digits for the
    # type (A2 of `adapter`).
    form = physical(type)
    data = values.buffers()[1].slice(values.offset * form.width_bytes, len(values) * form.width_bytes)
    return form.fixed_array(data, len(values), _validity(values), values.null_count)


def _validity(values: pa.Array) -> pa.Buffer | None:
    """Return the validity bits of a slice, from its first value on."""
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
    """Return the patch of the rows [lower, upper) of a rowset of `row_count` at `snapshot`; None if
    it is empty.

    scanning: whether the caller is a scan, which also needs the neighbours of these rows.
    Raises: CorruptionError.
    """
    lower, upper = rows
    if column.id not in changes.changed_columns:
        return None
    # A patch with changes from memory is valid until the next write only.
    state = changes.state_of_files(column.id, snapshot) if scanning else None
    if state is not None:
        begin, end = changes.redo_range(column.id, snapshot, lower, upper, row_count)

        def whole() -> tuple[Patch, int]:
            made = _newest(changes, column, snapshot, begin, end, stats)
            return made, made.nbytes

        name = ("patch", column.id, column.type, begin, end)
        shared = changes.memo.part(name, state, whole, is_last=upper == end)
        found = shared if (begin, end) == rows else shared.of_rows(lower - begin, upper - begin)
    elif not changes.has_changes(column.id, snapshot):
        return None
    else:
        found = _resolved(changes, column, snapshot, lower, upper, stats)
    return found if len(found) else None


def _resolved(
    changes: Changes, column: ColumnSchema, snapshot: int, lower: int, upper: int, stats: ReadStats | None
) -> Patch:
    """Return the patch for any snapshot."""
    undo, redo = changes.runs(column.id, snapshot, stats, lower, upper)
    return _patch(column, lower, *resolve(undo, redo, snapshot, lower, upper))


def _newest(
    changes: Changes, column: ColumnSchema, snapshot: int, lower: int, upper: int, stats: ReadStats | None
) -> Patch:
    """Return the patch for a snapshot that applies all REDO and no UNDO."""
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
    """Convert values of any older type of the column to the type of a patch."""
    narrow = narrow_decimal(type)
    if values.type == narrow:
        return values
    if pa.types.is_decimal(values.type) and values.type.bit_width < 128:
        values = values.cast(pa.decimal128(values.type.precision, values.type.scale))
    values = adapt(values, type.arrow)
    if narrow is None:
        return values
    # The low halves of Arrow's 16 bytes. For dead rows they may be anything (A2 of `adapter`).
    low_halves = fixed_values(values, type).astype(f"<i{narrow.bit_width // 8}")
    data = pa.py_buffer(low_halves)
    return pa.Array.from_buffers(narrow, len(values), [_validity(values), data], values.null_count)
