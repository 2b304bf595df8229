"""The DiskRowSet: rows of a tablet in files, found by key, and read at any snapshot of the history.

    keys or a key range  ──► find, rowid_range            ──► rowids, through the key index
    rowids or a split    ──► decode, filter, gather, row  ──► values at the snapshot: base values,
                                                              and changed values (`patches`)
                         ──► liveness                     ──► which rows are alive

`version` describes the files of a rowset, and how its next version is created.

Invariants
    X1  A rowid is a row's position in the base file, in which keys ascend strictly.
    X3  Rows that the base's zone map excludes are skipped only if no changed value at the snapshot
        can match either.

Threads: any thread may read. Only the holder of the commit lock calls `deltas.append`.
Source: Kudu tablet design, "Historical MVCC in DiskRowSets" to "Summary of delta file processing".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile.blocks.ordinals import Ordinals
from nyala.cfile.blocks.read_stats import Access, ReadStats
from nyala.cfile.physical import narrow_decimal
from nyala.delta import applier
from nyala.delta.applier import resolve, resolve_at
from nyala.delta.delta_file import LITTLE_TEXT_BYTES, DeltaFile
from nyala.delta.mem_store import DeltaMemStore
from nyala.delta.run import LIVENESS, MAX_TIMESTAMP, DeltaRun, Rowids
from nyala.errors import CorruptionError
from nyala.keys.encoded_keys import EncodedKeys
from nyala.keys.key_range import KeyRange
from nyala.lazy_values import LazyValues, lazy_value
from nyala.rowset.image import RowSetImage
from nyala.rowset.stats import RowSetStats, count_applied
from nyala.rowset.version import RowSetVersion
from nyala.schema.adapter import adapt
from nyala.schema.arrow_values import adapted_value_at
from nyala.schema.conversion.convert import default_array
from nyala.schema.plain_arrays import booleans_of
from nyala.schema.schema import ColumnSchema, Schema

if TYPE_CHECKING:
    from nyala.rowset.patches import Patch
    from nyala.schema.predicates.column_test import ColumnTest


Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class DiskRowSet(RowSetVersion, LazyValues):
    """One version of a rowset on disk, with all operations that read it.

    Two objects are equal only if they are the same object.
    """

    # --- looking up -------------------------------------------------------------------------------

    def find(self, keys: EncodedKeys, stats: ReadStats | None = None) -> Rowids:
        """Return the rowid of each of these ascending keys; -1 for a key that is not in the rowset.

        Dead rows are found too.
        """
        return self.keys.find(keys, stats)

    def live(self, rowids: Rowids) -> Bools:
        """Return whether each of these rows is alive after all changes."""
        return self.gather_liveness(MAX_TIMESTAMP, rowids)

    def changed_after(self, rowids: Rowids, timestamp: int) -> Bools:
        """Return whether each of these ascending rows was inserted or changed after `timestamp`."""
        changed = np.zeros(len(rowids), np.bool_)
        for store in self.change_stores:
            changed |= store.changed_after(rowids, timestamp)
        return changed

    @property
    def timestamp_max(self) -> int | None:
        """The greatest timestamp in the rowset's history; None if all history has expired."""
        times = (self._earlier_timestamp_max, self.deltas.timestamp_max)
        return max((time for time in times if time is not None), default=None)

    @lazy_value
    def _earlier_timestamp_max(self) -> int | None:
        """The greatest timestamp in delta files and in DeltaMemStores that are being flushed.

        None if there is no change in them. They take no more changes, so the value stays the same.
        """
        stores: tuple[DeltaFile | DeltaMemStore, ...] = (*self.undo, *self.redo, *self.frozen)
        times = (store.timestamp_max for store in stores)
        return max((time for time in times if time is not None), default=None)

    @property
    def change_stores(self) -> tuple[DeltaFile | DeltaMemStore, ...]:
        """All delta files and DeltaMemStores."""
        return (*self.undo, *self.redo, *self.changes.memory)

    # --- reading (the same names as in MemRowSet) -------------------------------------------------

    def rowid_range(self, key_range: KeyRange, stats: ReadStats | None = None) -> tuple[int, int]:
        """Return the rows [lower, upper) whose keys are in the range."""
        return self.keys.range(key_range, stats)

    def keys_of(self, rowids: Rowids, stats: ReadStats | None = None) -> EncodedKeys:
        """Return the keys of these rows, in the order of `rowids`.

        Raises CorruptionError for a rowid beyond the rowset.
        """
        if len(rowids) and (greatest := int(rowids.max())) >= self.row_count:
            raise CorruptionError(
                f"expected changes of the rowset's {self.row_count} rows, found a change of row {greatest}: the "
                "delta file belongs to another rowset",
                self.reader.path,
            )
        return self.keys.gather(rowids, stats)

    def liveness(
        self, snapshot: int, lower: int, upper: int, stats: RowSetStats | None = None
    ) -> Bools | None:
        """Return a mask of the rows [lower, upper) that are alive at `snapshot`; None: all are."""
        base = self.base_column(LIVENESS)
        alive: Bools | None = None
        if base is not None:
            alive = booleans_of(base.decode(lower, upper, stats=stats))
        rows, values = resolve(
            *self.changes.runs(LIVENESS, snapshot, stats, lower, upper), snapshot, lower, upper
        )
        if values is not None:
            alive = np.ones(upper - lower, np.bool_) if alive is None else alive
            alive[rows - lower] = booleans_of(values)
            count_applied(stats, len(rows))
        return None if alive is None or alive.all() else alive

    def gather_liveness(self, snapshot: int, rowids: Rowids, stats: RowSetStats | None = None) -> Bools:
        """Return whether each of these rows is alive at `snapshot`."""
        base = self.base_column(LIVENESS)
        if base is None:
            alive = np.ones(len(rowids), np.bool_)
        else:
            alive = booleans_of(base.gather(rowids, stats=stats))
        undo, redo = self.changes.runs(LIVENESS, snapshot, stats)
        if not undo and not redo:
            return alive
        positions, values = resolve_at(undo, redo, snapshot, rowids)
        if values is not None:
            alive[positions] = booleans_of(values)
            count_applied(stats, len(positions))
        return alive

    @property
    def may_have_dead(self) -> bool:
        """Whether a row may be dead after all changes."""
        return self._had_dead or LIVENESS in self.deltas.column_ids

    @lazy_value
    def _had_dead(self) -> bool:
        """Whether a row may be dead, without regard to the DeltaMemStore that takes changes.

        The files and the DeltaMemStores that are being flushed take no more changes, so the value
        stays the same.
        """
        stores: tuple[DeltaFile | DeltaMemStore, ...] = (*self.redo, *self.frozen)
        return any(LIVENESS in store.column_ids for store in stores) or self.base_column(LIVENESS) is not None

    def is_live(self, snapshot: int, rowid: int) -> bool:
        """Return whether one row is alive at `snapshot`."""
        if LIVENESS in self.changes.changed_columns:
            cell = self.changes.cells(rowid, {LIVENESS}, snapshot).get(LIVENESS)
            if cell is not None:
                values, at = cell
                return bool(values[at].as_py())
            undo, redo = self.changes.runs_of_files(LIVENESS, snapshot, None)
            _, values = resolve_at(undo, redo, snapshot, np.array([rowid]))
            if values is not None:
                return bool(values[0].as_py())
        base = self.base_column(LIVENESS)
        return base is None or bool(base.value(rowid))

    def decode(
        self,
        column: ColumnSchema,
        snapshot: int,
        lower: int,
        upper: int,
        stats: RowSetStats | None = None,
        type: pa.DataType | None = None,
        *,
        access: Access = Access.LOOKUP,
    ) -> pa.Array:
        """Return the column's rows [lower, upper) at `snapshot`. Values of dead rows are arbitrary.

        type: an Arrow type that costs less to read: a dictionary, or a decimal of 4 or 8 bytes. The
            result has this type only if all blocks can produce it without conversion. Otherwise, or
            if `type` is None, it has the column's own type.
        Cost: decodes the base values. Copies them only if rows have other values at `snapshot`.
        """
        patch = self._patch(column, snapshot, lower, upper, stats, access)
        if patch is None:
            return self._base(column, (lower, upper), stats, type, access)
        count_applied(stats, len(patch))
        narrow = type if type is not None and type == narrow_decimal(column.type) else None
        return patch.apply(self._base(column, (lower, upper), stats, narrow, access))

    def filter(
        self,
        test: ColumnTest,
        snapshot: int,
        lower: int,
        upper: int,
        among: Bools | None = None,
        stats: RowSetStats | None = None,
        *,
        access: Access = Access.SCAN,
    ) -> Bools:
        """Return a mask of the rows [lower, upper) that pass the test of one column at `snapshot`.

        lower, upper: the range must have at least one row.
        among: a mask of the rows [lower, upper) to test. The others do not pass. None: test all.
        access: why the rows are read, which decides whether the block cache keeps their blocks.
        """
        column = test.column
        reader = self.base_column(column.id)
        if reader is None:
            default = test.mask(default_array(column, 1, "read"))
            mask = np.repeat(default, upper - lower)
            mask = mask if among is None else mask & among
        elif reader.type == column.type:
            mask = reader.filter(test, lower, upper, among, access=access, stats=stats)
        else:
            mask = test.mask(self._base(column, (lower, upper), stats, None, access))
            mask = mask if among is None else mask & among
        patch = self._patch(column, snapshot, lower, upper, stats, access)
        if patch is not None:
            count_applied(stats, len(patch))
            mask[patch.positions] = test.mask(patch.values)
            if among is not None:
                np.logical_and(mask, among, out=mask)
        return mask

    def gather(
        self,
        column: ColumnSchema,
        snapshot: int,
        rowids: Rowids | Ordinals,
        stats: RowSetStats | None = None,
        type: pa.DataType | None = None,
        *,
        within: tuple[int, int] | None = None,
    ) -> pa.Array:
        """Return the column's values in these rows at `snapshot`, in the order of `rowids`.

        Values of dead rows are arbitrary.

        type: an Arrow type that costs less to read. The result has it only if the blocks and the
            changes can produce it without conversion; otherwise it has the column's own type.
        within: for a scan: the split (lower, upper) that contains the rows. The rows must ascend.
            Only the changes of this split are read. None: a look-up.
        Cost: reads only blocks of the base that contain one of the rows.
        """
        ordinals = rowids if isinstance(rowids, Ordinals) else Ordinals(rowids)
        if within is None:
            return self._gather(column, snapshot, ordinals, stats)
        lower, upper = within
        patch = self._patch(column, snapshot, lower, upper, stats, Access.SCAN)
        if patch is not None and type != narrow_decimal(column.type):
            type = None
        base = self._base(column, ordinals, stats, type, Access.SCAN)
        if patch is None:
            return base
        count_applied(stats, len(patch))
        return patch.apply_gathered(ordinals.positions - lower, upper - lower, base)

    def rows(
        self,
        columns: Sequence[ColumnSchema],
        snapshot: int,
        rowids: Rowids,
        stats: RowSetStats | None = None,
    ) -> list[pa.Array]:
        """Return the values of several columns for these rows: one `gather` per column."""
        ordinals = Ordinals(rowids)
        return [self.gather(column, snapshot, ordinals, stats) for column in columns]

    def row(self, columns: Sequence[ColumnSchema], snapshot: int, rowid: int) -> list[Any]:
        """Return one row at `snapshot` as Python values. Raises: CorruptionError."""
        touched = self.changes.changed_columns
        changed = touched.intersection(column.id for column in columns) if touched else ()
        cells = self.changes.cells(rowid, changed, snapshot) if changed else {}
        values = []
        for column in columns:
            if (cell := cells.get(column.id)) is not None:
                values.append(self._python(column, *cell))
            else:
                values.append(self._value(column, snapshot, rowid))
        return values

    def _value(self, column: ColumnSchema, snapshot: int, rowid: int) -> Any:
        """Return one value of a row that has no change in memory."""
        undo: Sequence[DeltaRun] = ()
        redo: Sequence[DeltaRun] = ()
        if column.id in self.changes.changed_columns:
            upper = rowid + 1 if self.changes.has_much_text(column.id, snapshot) else None
            undo, redo = self.changes.runs_of_files(column.id, snapshot, None, rowid, upper)
        reader = self.base_column(column.id)
        if not undo and not redo and reader is not None and reader.arrow == column.type.arrow:
            return reader.value(rowid)
        rows = Ordinals(np.array([rowid]))
        return self._python(column, self._patched(column, snapshot, rows, None, undo, redo), 0)

    def _python(self, column: ColumnSchema, array: pa.Array, at: int) -> Any:
        """Return one value of the column. Raises CorruptionError with the column and the file."""
        try:
            return adapted_value_at(array, at, column.type.arrow)
        except CorruptionError as error:
            raise CorruptionError(f"column {column.name!r}: {error.reason}", self.reader.path) from error

    def _gather(
        self,
        column: ColumnSchema,
        snapshot: int,
        ordinals: Ordinals,
        stats: RowSetStats | None,
    ) -> pa.Array:
        """Return the values of these rows at `snapshot`, for a look-up."""
        changes = self.changes
        if not changes.has_much_text(column.id, snapshot):
            return self._patched(column, snapshot, ordinals, stats, *changes.runs(column.id, snapshot, stats))
        # The text of all changes may not fit one array, so only that of neighbouring rows is read
        # at a time.
        rows = max(1, int(LITTLE_TEXT_BYTES / changes.text_row_bytes(column.id, snapshot)))
        positions = ordinals.positions
        cuts = np.flatnonzero(np.diff(positions // rows)) + 1
        parts = [
            self._patched(
                column, snapshot, Ordinals(part), stats,
                *changes.runs(column.id, snapshot, stats, int(part.min()), int(part.max()) + 1),
            )
            for part in np.split(positions, cuts) if len(part)
        ]  # fmt: skip
        return pa.concat_arrays(parts) if parts else pa.nulls(0, column.type.arrow)

    def _patched(
        self,
        column: ColumnSchema,
        snapshot: int,
        ordinals: Ordinals,
        stats: RowSetStats | None,
        undo: Sequence[DeltaRun],
        redo: Sequence[DeltaRun],
    ) -> pa.Array:
        """Return the base values of these rows, with the changes in these runs applied."""
        base = self._base(column, ordinals, stats, None, Access.LOOKUP)
        if not undo and not redo:
            return base
        positions, values = resolve_at(undo, redo, snapshot, ordinals.positions)
        if values is None:
            return base
        count_applied(stats, len(positions))
        return applier.patch(base, positions, adapt(values, column.type.arrow))

    # --- compacting -------------------------------------------------------------------------------

    def image(self, schema: Schema, lower: int, upper: int, cut: int = 0) -> RowSetImage:
        """Return the rows [lower, upper) and their history, as a compaction reads them from files.

        The values are those after all REDO files. Changes in memory are ignored.
        cut: history that only snapshots before this timestamp need is left out.
        """
        from nyala.rowset.compaction import inputs

        return inputs.image(self, schema, lower, upper, cut)

    # --- skipping ---------------------------------------------------------------------------------

    def has_changes(self, column_id: int, snapshot: int) -> bool:
        """Whether the column's values at `snapshot` may differ from its base values."""
        return self.changes.has_changes(column_id, snapshot)

    # --- base and changes -------------------------------------------------------------------------

    def _patch(
        self,
        column: ColumnSchema,
        snapshot: int,
        lower: int,
        upper: int,
        stats: RowSetStats | None,
        access: Access,
    ) -> Patch | None:
        from nyala.rowset.patches import find_patch

        rows, scanning = (lower, upper), access is Access.SCAN
        return find_patch(self.changes, column, snapshot, rows, self.row_count, stats, scanning=scanning)

    def _base(
        self,
        column: ColumnSchema,
        rows: tuple[int, int] | Ordinals,
        stats: ReadStats | None,
        type: pa.DataType | None,
        access: Access,
    ) -> pa.Array:
        """Return base values: decode rows (lower, upper), or gather single rows.

        The result has `type` if all blocks can produce it cheaply, and otherwise the column's type.
        """
        reader = self.base_column(column.id)
        if reader is None:
            return default_array(column, rows[1] - rows[0] if isinstance(rows, tuple) else rows.count, "read")
        if type != reader.cheap_type or reader.type != column.type:
            type = None
        if isinstance(rows, tuple):
            values = reader.decode(*rows, type, access=access, stats=stats)
        else:
            values = reader.gather(rows, type, access=access, stats=stats)
        return values if type is not None else adapt(values, column.type.arrow)

    def check(self) -> None:
        """Check all files and memory, and raise the first problem that `checking.findings` finds.

        Raises: CorruptionError or StorageError for files, AssertionError for bugs.
        """
        from nyala.rowset.checking import findings

        for finding in findings(self):
            raise finding.error
