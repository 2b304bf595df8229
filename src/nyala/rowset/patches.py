"""Patches: the rows of one column that are changed at a snapshot, and their values.

    changes of the column    files, memory        records by (rowid, timestamp)
              │  computed for a range of rows: one split, or many neighbouring splits
              v
    patch                    positions, values    each changed row once, with its value at the snapshot
              │
              ├── apply             replaces values in the decoded base of a split
              ├── apply_gathered    replaces values in gathered rows of the base
              └── DiskRowSet.filter tests the base, and then the patch's values at their positions

A split is a range of rows that a scan reads as one unit of work. There are two cases:

    all changes in files      Many splits share one patch, so a delta block with changes of many
                              splits is read once. From the second scan on, the patch is cached
                              (`cfile.blocks.cache.Memo`).
    some changes in memory    Each split computes the patch of its own rows. The next write may
                              change the result, so a shared patch would soon be out of date.

If the snapshot is before the newest change of the column, each split computes its own patch, too.
Decimals of up to 18 digits are kept as 4 or 8 bytes, the *narrow* type.

Invariants
    P1  Positions ascend strictly.
    P2  A patch contains exactly the rows whose value at the snapshot comes from a change. All other
        rows have their base value.

A patch is immutable; any thread may use it.
Source: Kudu's DeltaApplier, which prepares the deltas of each batch of a scan. Here several scans
share the prepared changes.
"""

from __future__ import annotations

from dataclasses import dataclass

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

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Patch:
    """The changed rows in a range of rows, and their values, for one column at one snapshot.

    Positions count from the range's first row.
    """

    type: ColumnType
    positions: npt.NDArray[np.int32]
    values: pa.Array  # of the type, or of its `narrow_decimal` if it has one

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def nbytes(self) -> int:
        return int(self.positions.nbytes) + int(self.values.nbytes)

    def of_rows(self, lower: int, upper: int) -> Patch:
        """Return the patch of the rows [lower, upper). Its positions count from `lower`."""
        begin, end = np.searchsorted(self.positions, np.array((lower, upper), np.int32)).tolist()
        positions = self.positions[begin:end]
        if lower:
            positions = positions - np.int32(lower)
        return Patch(self.type, positions, self.values.slice(begin, end - begin))

    def apply(self, base: pa.Array) -> pa.Array:
        """Return the column's values in the patch's range of rows, with the patch applied.

        base: the values of these rows without the patch. Decimals of up to 18 digits may have an
        Arrow type of 4 or 8 bytes; the result has the same type.
        """
        return patch(base, self.positions, _in(self.values, self.type, base.type))

    def apply_gathered(self, rows: Rows, count: int, base: pa.Array) -> pa.Array:
        """Return the column's values in some rows of the patch's range, with the patch applied.

        rows: the rows, ascending and counted from the range's first row.
        count: the number of rows in the range.
        base: the values of `rows` without the patch.
        """
        is_gathered = np.zeros(count, np.bool_)
        is_gathered[rows] = True
        sources = np.flatnonzero(is_gathered[self.positions])
        if not len(sources):
            return base
        targets = np.searchsorted(rows, self.positions[sources].astype(np.int64))
        return patch(base, targets, _in(take(self.values, sources), self.type, base.type))


def _in(values: pa.Array, type: ColumnType, result_type: pa.DataType) -> pa.Array:
    """Return the values of a patch in `result_type`.

    type: the column's type.
    result_type: the Arrow type that belongs to `type`, or the type that `values` have already: a
        decimal of 4 or 8 bytes.
    """
    if values.type == result_type:
        return values
    # A cast would fail for dead rows, whose values may have too many digits (A2 of `adapter`).
    form = physical(type)
    data = values.buffers()[1].slice(values.offset * form.width_bytes, len(values) * form.width_bytes)
    return form.fixed_array(data, len(values), _validity(values), values.null_count)


def _validity(values: pa.Array) -> pa.Buffer | None:
    """Return the validity bits of an array that may be a slice; None without NULLs."""
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
    """Return the patch of a column for rows = (lower, upper) at `snapshot`; None if it is empty.

    row_count: the number of rows in the whole rowset.
    scanning: whether the caller is a scan, which will need the neighbouring rows too.
    Raises: CorruptionError.
    """
    lower, upper = rows
    if column.id not in changes.changed_columns:
        return None
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
        undo, redo = changes.runs(column.id, snapshot, stats, lower, upper)
        found = _patch(column, lower, *resolve(undo, redo, snapshot, lower, upper))
    return found if len(found) else None


def _newest(
    changes: Changes, column: ColumnSchema, snapshot: int, lower: int, upper: int, stats: ReadStats | None
) -> Patch:
    """Return the patch of the rows [lower, upper) at `snapshot`.

    snapshot: the timestamp of the newest change of the column, or a later timestamp.
    """
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
    """Return values in the type that a patch stores: 4 or 8 bytes for decimals of up to 18 digits.

    values: of the column's present type or an older one, or decimals of 4 or 8 bytes.
    """
    narrow = narrow_decimal(type)
    if values.type == narrow:
        return values
    if pa.types.is_decimal(values.type) and values.type.bit_width < 128:
        values = values.cast(pa.decimal128(values.type.precision, values.type.scale))
    values = adapt(values, type.arrow)
    if narrow is None:
        return values
    # Arrow's decimals have 16 bytes; the low bytes hold the whole number if it fits. Dead rows may
    # have any value (A2 of `adapter`).
    low_halves = fixed_values(values, type).astype(f"<i{narrow.bit_width // 8}")
    data = pa.py_buffer(low_halves)
    return pa.Array.from_buffers(narrow, len(values), [_validity(values), data], values.null_count)
