"""The DiskRowSet: rows in key order in immutable base files, read as they were and are at a snapshot.

    key, key range ──► find, rowid_range ──► rowids     through the key index
    rowids, window ──► column, gather, picks, row ──►   base column     with what the snapshot applies of UNDO and REDO
                       liveness                                         laid over it: `changes`, `patches`

What files and stores it is made of, and how its next version is made: `version`.

Invariants
    X1  Rowids are ordinals of the base file, whose keys ascend strictly.
    X3  Skipping obeys Z1: what the base's zone map excludes is skipped only where no change that the snapshot may
        apply says otherwise.

Threads: any thread may read; `deltas.append` by the holder of the commit lock.
Source: Kudu docs/design-docs/tablet.md, "Historical MVCC in DiskRowSets" to "Summary of delta file processing".
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile.physical import narrow_decimal
from nyala.cfile.read_stats import ReadStats
from nyala.delta import applier
from nyala.delta.applier import decide, resolve_at
from nyala.delta.delta_file import LITTLE_TEXT_BYTES, DeltaFile
from nyala.delta.mem_store import DeltaMemStore
from nyala.delta.run import LIVENESS, MAX_TIMESTAMP, DeltaRun, Rowids
from nyala.errors import CorruptionError
from nyala.keys.encoded_keys import EncodedKeys
from nyala.keys.key_range import KeyRange
from nyala.lazy_values import LazyValues, lazy_value
from nyala.rowset.image import RowSetImage
from nyala.rowset.meta import RowSetMeta
from nyala.rowset.stats import RowSetStats
from nyala.rowset.version import RowSetVersion
from nyala.schema.adapter import adapt
from nyala.schema.arrow_values import adapted_at
from nyala.schema.convert import default_array
from nyala.schema.plain_arrays import booleans_of
from nyala.schema.schema import ColumnSchema, Schema

if TYPE_CHECKING:
    from nyala.cfile.encoded_rows import EncodedRows
    from nyala.cfile.gathering import Ordinals, Pick
    from nyala.cfile.single_values import SingleValues
    from nyala.cfile.zonemap import Zone
    from nyala.rowset.patches import Patch

__all__ = ["DiskRowSet", "RowSetMeta", "is_scan"]

Bools = npt.NDArray[np.bool_]
# Half a window of a scan: smaller parts of a rowset are asked for by look-ups, which seldom ask for the same one again.
_SCAN_ROWS_MIN: Final = 1 << 16


def is_scan(row_count: int) -> bool:
    """Whether who reads so many rows of a rowset does it as scans do: see `cfile.first_pass`."""
    return row_count >= _SCAN_ROWS_MIN


@dataclass(frozen=True, eq=False)
class DiskRowSet(RowSetVersion, LazyValues):
    """One version of a rowset on disk, to be read (see the module). Compared by identity."""

    # --- looking up -------------------------------------------------------------------------------

    def find(self, keys: EncodedKeys, stats: ReadStats | None = None) -> Rowids:
        """The rowid of each key, or -1. Keys ascend; a key may stand twice. Dead rows are found as well."""
        return self.keys.find(keys, stats)

    def live(self, rowids: Rowids) -> Bools:
        """Whether each row is there in the applied state. Cost: as `gather_liveness`."""
        return self.gather_liveness(MAX_TIMESTAMP, rowids)

    # --- reading (the same names as in MemRowSet) -------------------------------------------------

    def rowid_range(self, key_range: KeyRange, stats: ReadStats | None = None) -> tuple[int, int]:
        """The rows [lower, upper) whose keys are in the range."""
        return self.keys.range(key_range, stats)

    def rowids_in(self, key_range: KeyRange, stats: ReadStats | None = None) -> slice:
        """The same as a slice."""
        return slice(*self.keys.range(key_range, stats))

    def order(self) -> Rowids:
        """All rowids in the order of their keys: as they are (X1)."""
        return np.arange(self.row_count)

    def keys_of(self, rowids: Rowids, stats: ReadStats | None = None) -> EncodedKeys:
        """The keys of these rows, in their order. Raises: CorruptionError for a row of a change that there is not."""
        if len(rowids) and (greatest := int(rowids.max())) >= self.row_count:
            raise CorruptionError(
                f"expected changes of the rowset's {self.row_count} rows, found one of row {greatest}: a file of "
                "changes belongs to another rowset",
                self.reader.path,
            )
        return self.keys.gather(rowids, stats)

    def liveness(
        self, snapshot: int, lower: int, upper: int, stats: RowSetStats | None = None
    ) -> Bools | None:
        """Whether each of the rows [lower, upper) is there at `snapshot`; None when all are."""
        base = self.base_column(LIVENESS)
        alive: Bools | None = None
        if base is not None:
            alive = booleans_of(base.read(lower, upper, stats=stats))
        rows, values = decide(
            *self.changes.runs(LIVENESS, snapshot, stats, lower, upper), snapshot, lower, upper
        )
        if values is not None:
            alive = np.ones(upper - lower, np.bool_) if alive is None else alive
            alive[rows - lower] = booleans_of(values)
            _count(stats, len(rows))
        return None if alive is None or alive.all() else alive

    def gather_liveness(self, snapshot: int, rowids: Rowids, stats: RowSetStats | None = None) -> Bools:
        """Whether each of these rows is there at `snapshot`.

        Cost: O(rows asked for · log changes), whatever the rowset holds, once its files' runs are in the cache.
        """
        base = self.base_column(LIVENESS)
        if base is None:
            alive = np.ones(len(rowids), np.bool_)
        else:
            alive = booleans_of(base.singles.gather(rowids, stats=stats))
        undo, redo = self.changes.runs(LIVENESS, snapshot, stats)
        if not undo and not redo:
            return alive
        places, values = resolve_at(undo, redo, snapshot, rowids)
        if values is not None:
            alive[places] = booleans_of(values)
            _count(stats, len(places))
        return alive

    @property
    def may_have_dead(self) -> bool:
        """Whether a row may not be there in the applied state. (Of the past, UNDO says when each came.)"""
        return self._had_dead or LIVENESS in self.deltas.column_ids

    @lazy_value
    def _had_dead(self) -> bool:
        """`may_have_dead`, from what takes no changes any more."""
        stores: tuple[DeltaFile | DeltaMemStore, ...] = (*self.redo, *self.frozen)
        return any(LIVENESS in store.column_ids for store in stores) or self.base_column(LIVENESS) is not None

    def is_live(self, snapshot: int, rowid: int) -> bool:
        """`gather_liveness` of one row."""
        if LIVENESS in self.changes.touched:
            said = self.changes.cells(rowid, {LIVENESS}, snapshot).get(LIVENESS)
            if said is not None:
                values, at = said
                return bool(values[at].as_py())
            undo, redo = self.changes.runs_of_files(LIVENESS, snapshot, None)
            _, values = resolve_at(undo, redo, snapshot, np.array([rowid]))
            if values is not None:
                return bool(values[0].as_py())
        base = self.base_column(LIVENESS)
        return base is None or bool(base.singles.value(rowid))

    def column(
        self,
        column: ColumnSchema,
        snapshot: int,
        lower: int,
        upper: int,
        stats: RowSetStats | None = None,
        *,
        scanning: bool | None = None,
    ) -> pa.Array:
        """The column's rows [lower, upper) at `snapshot`. Of a row that is not there, any value.

        scanning: whether a scan asks that comes for many rows of the rowset, these among them, and keeps what is asked
                  for again; None: if these are many (`is_scan`).
        Cost: the decoded base itself, without a copy, where no store holds a change that the snapshot applies; stores
              whose timestamps rule that out are not opened. What scans ask for a second time is remembered as it is
              after all changes, so that the next scan pays for none of them.
        """
        return self._at(column, snapshot, lower, upper, stats, None, scanning)

    def _at(
        self,
        column: ColumnSchema,
        snapshot: int,
        lower: int,
        upper: int,
        stats: RowSetStats | None,
        narrow: pa.DataType | None,
        scanning: bool | None,
    ) -> pa.Array:
        """`column`; of a decimal as `narrow`, if that is given."""
        scanning = is_scan(upper - lower) if scanning is None else scanning
        if not self.changes.touch(column.id, snapshot):
            return self._base(column, lower, upper, stats, narrow, scanning)
        if scanning:
            # Named before it is asked about: what a write appends in between is newer than the snapshot, and would be
            # in the name but not in what is remembered under it.
            state = self.changes.state(column.id)
            if self.changes.all_apply(column.id, snapshot):
                return self._present(column, snapshot, lower, upper, state, stats, narrow)
        patch = self._patch(column, snapshot, lower, upper, stats, scanning)
        if patch is None:
            return self._base(column, lower, upper, stats, narrow, scanning)
        _count(stats, len(patch))
        return self._patched(column, lower, upper, patch, stats, narrow, scanning)

    def coded(
        self,
        column: ColumnSchema,
        snapshot: int,
        lower: int,
        upper: int,
        stats: RowSetStats | None = None,
        *,
        scanning: bool | None = None,
    ) -> pa.Array:
        """`column`, as a dictionary array or in runs where the base is so and nothing changed: that costs less."""
        scanning = is_scan(upper - lower) if scanning is None else scanning
        reader = self.base_column(column.id)
        if (
            reader is None
            or not (reader.has_dictionary or reader.has_runs)
            or lower == upper
            or reader.type != column.type
            or self.delta_touches(column.id, snapshot)
        ):
            return self.column(column, snapshot, lower, upper, stats, scanning=scanning)
        read = reader.read_codes if reader.has_dictionary else reader.read_runs
        return read(lower, upper, stats=stats, scanning=scanning)

    def narrow(
        self,
        column: ColumnSchema,
        snapshot: int,
        lower: int,
        upper: int,
        stats: RowSetStats | None = None,
        *,
        scanning: bool | None = None,
    ) -> pa.Array:
        """`column` of a decimal with a `narrow_decimal`: as that, if the base has it."""
        reader = self.base_column(column.id)
        if reader is None or lower == upper or reader.type != column.type:
            return self.column(column, snapshot, lower, upper, stats, scanning=scanning)
        return self._at(column, snapshot, lower, upper, stats, narrow_decimal(column.type), scanning)

    def gather(
        self,
        column: ColumnSchema,
        snapshot: int,
        rowids: Rowids,
        stats: RowSetStats | None = None,
        *,
        within: tuple[int, int] | None = None,
    ) -> pa.Array:
        """The column at these rows, in their order, at `snapshot`. Of a row that is not there, any value.

        within: a window [lower, upper) of a scan, of which these are some rows, ascending: a scan keeps a block only
                when it is asked for often, and of the changes no more than it needs.
        Cost: of the base, only the blocks that hold one of the rows are decoded.
        """
        if within is None:
            from nyala.cfile.gathering import Ordinals

            return self._gather(column, snapshot, Ordinals(rowids), stats)
        lower, upper = within
        reader = self.base_column(column.id)
        if reader is None:
            base = default_array(column, len(rowids), "read")
        else:
            base = _as(reader.singles.gather(rowids, stats=stats, scanning=True), column)
        patch = self._patch(column, snapshot, lower, upper, stats, True)
        return base if patch is None else patch.picked(rowids - lower, upper - lower, base)

    def encoded(
        self, column: ColumnSchema, snapshot: int, lower: int, upper: int, stats: RowSetStats | None = None
    ) -> EncodedRows | None:
        """The rows [lower, upper) of the column as they lie, and the changes that `snapshot` applies, which tell what
        satisfies a constraint without being decoded; None where they can't: other encodings."""
        reader = self.base_column(column.id)
        if reader is None or reader.type != column.type:
            return None
        patch = self._patch(column, snapshot, lower, upper, stats, True)
        if patch is not None and not patch.tells:
            return None
        encoded = reader.encoded(lower, upper, stats=stats)
        if encoded is None or patch is None:
            return encoded
        from nyala.rowset.patches import PatchedRows

        _count(stats, len(patch))
        return PatchedRows(encoded, patch, upper - lower)

    def tells(self, column: ColumnSchema) -> bool:
        """Whether there is an `encoded`, which gives values at a cost of these alone, and of what has changed."""
        reader = self.base_column(column.id)
        return reader is not None and reader.tells

    def rows_between(
        self,
        columns: Sequence[ColumnSchema],
        snapshot: int,
        lower: int,
        upper: int,
        stats: RowSetStats | None = None,
    ) -> list[pa.Array]:
        """`column` of several, for a few rows [lower, upper), one at least: single values are taken out of the blocks.

        Cost: where the rows lie is worked out once for all columns; of what nothing has changed, as
              `few_between`.
        """
        from nyala.cfile.gathering import Ordinals, joined_columns
        from nyala.cfile.single_values import few_between

        plain = self._plain(columns, snapshot)
        if len(plain) == len(columns):
            return few_between(plain, lower, upper, stats)
        ordinals = Ordinals(np.arange(lower, upper), is_range=True)
        return joined_columns([[pick] for pick in self._picks(columns, snapshot, ordinals, stats)])

    def picks(
        self,
        columns: Sequence[ColumnSchema],
        snapshot: int,
        rowids: Rowids,
        stats: RowSetStats | None = None,
    ) -> list[Pick]:
        """`rows` in a form that those of other rowsets are to be joined with: `cfile.gathering.joined_picks`.

        There is one row at least. Cost: a few calls a column that nothing has changed.
        """
        from nyala.cfile.gathering import Ordinals

        return self._picks(columns, snapshot, Ordinals(rowids), stats)

    def _picks(
        self,
        columns: Sequence[ColumnSchema],
        snapshot: int,
        ordinals: Ordinals,
        stats: RowSetStats | None,
    ) -> list[Pick]:
        from nyala.cfile.single_values import pick_all

        plain = self._plain(columns, snapshot)
        picked = pick_all(plain, ordinals, stats)
        if len(plain) == len(columns):
            return picked
        of_plain, rest = dict(zip(map(id, plain), picked, strict=True)), []
        for column in columns:
            reader = self.base_column(column.id)
            pick = None if reader is None else of_plain.get(id(reader.singles))
            rest.append(self._gather(column, snapshot, ordinals, stats) if pick is None else pick)
        return rest

    def _plain(self, columns: Sequence[ColumnSchema], snapshot: int) -> list[SingleValues]:
        """The base columns of those to which the snapshot applies no change, and that lie here in their own type."""
        changes, touched = self.changes, self.changes.touched
        return [
            reader.singles
            for column in columns
            if (reader := self.base_column(column.id)) is not None
            and (column.id not in touched or not changes.touch(column.id, snapshot))
            and reader.arrow == column.type.arrow
        ]

    def row(self, columns: Sequence[ColumnSchema], snapshot: int, rowid: int) -> list[Any]:
        """One row at `snapshot`, as Python values. Raises: CorruptionError, also for what is no value of its type."""
        from nyala.cfile.single_values import values_at

        plain = self._plain(columns, snapshot)
        values = values_at(plain, rowid)
        if len(plain) == len(columns):
            return values
        changed = self.changes.touched.intersection(column.id for column in columns)
        cells = self.changes.cells(rowid, changed, snapshot) if changed else {}
        of_plain, found = dict(zip(map(id, plain), values, strict=True)), []
        for column in columns:
            reader = self.base_column(column.id)
            if reader is not None and id(reader.singles) in of_plain:
                found.append(of_plain[id(reader.singles)])
            elif (cell := cells.get(column.id)) is not None:
                found.append(self._python(column, *cell))
            else:
                found.append(self._value(column, snapshot, rowid))
        return found

    def _value(self, column: ColumnSchema, snapshot: int, rowid: int) -> Any:
        """One value of a row of which memory says nothing."""
        upper = rowid + 1 if self.changes.has_much_text(column.id, snapshot) else None
        undo, redo = self.changes.runs_of_files(column.id, snapshot, None, rowid, upper)
        reader = self.base_column(column.id)
        if not undo and not redo and reader is not None and reader.arrow == column.type.arrow:
            return reader.singles.value(rowid)
        from nyala.cfile.gathering import Ordinals

        rows = Ordinals(np.array([rowid]))
        return self._python(column, self._laid_over(column, snapshot, rows, None, undo, redo), 0)

    def _python(self, column: ColumnSchema, array: pa.Array, at: int) -> Any:
        """One value of the column. Raises: CorruptionError, which names column and file."""
        try:
            return adapted_at(array, at, column.type.arrow)
        except CorruptionError as error:
            raise CorruptionError(f"column {column.name!r}: {error.reason}", self.reader.path) from error

    def _gather(
        self,
        column: ColumnSchema,
        snapshot: int,
        ordinals: Ordinals,
        stats: RowSetStats | None,
    ) -> pa.Array:
        from nyala.cfile.gathering import Ordinals

        changes = self.changes
        if not changes.has_much_text(column.id, snapshot):
            return self._laid_over(
                column, snapshot, ordinals, stats, *changes.runs(column.id, snapshot, stats)
            )
        # The text of all changes may not fit one array: only that of rows that lie close together is read at once.
        rows = max(1, int(LITTLE_TEXT_BYTES / changes.text_row_bytes(column.id, snapshot)))
        places = ordinals.places
        cuts = np.flatnonzero(np.diff(places // rows)) + 1
        parts = [
            self._laid_over(
                column, snapshot, Ordinals(part), stats,
                *changes.runs(column.id, snapshot, stats, int(part.min()), int(part.max()) + 1),
            )
            for part in np.split(places, cuts) if len(part)
        ]  # fmt: skip
        return pa.concat_arrays(parts) if parts else pa.nulls(0, column.type.arrow)

    def _laid_over(
        self,
        column: ColumnSchema,
        snapshot: int,
        ordinals: Ordinals,
        stats: RowSetStats | None,
        undo: Sequence[DeltaRun],
        redo: Sequence[DeltaRun],
    ) -> pa.Array:
        """The column at these rows, with what the runs say of them."""
        reader = self.base_column(column.id)
        if reader is None:
            base = default_array(column, ordinals.count, "read")
        else:
            base = _as(reader.singles.gather(ordinals, stats=stats), column)
        if not undo and not redo:
            return base
        places, values = resolve_at(undo, redo, snapshot, ordinals.places)
        if values is None:
            return base
        _count(stats, len(places))
        return applier.patch(base, places, _as(values, column))

    # --- compacting -------------------------------------------------------------------------------

    def image(self, schema: Schema, lower: int, upper: int, cut: int = 0) -> RowSetImage:
        """The rows [lower, upper) as their files have them: see `compacting.image`."""
        from nyala.rowset import compacting

        return compacting.image(self, schema, lower, upper, cut)

    # --- skipping ---------------------------------------------------------------------------------

    def zone(self, column_id: int) -> Zone | None:
        """Bounds of the column's base; None when it has none in the file (X4)."""
        reader = self.base_column(column_id)
        return None if reader is None else reader.column_zone()

    def delta_touches(self, column_id: int, snapshot: int) -> bool:
        """Whether any store holds a change of the column that `snapshot` applies. Opens no file."""
        return self.changes.touch(column_id, snapshot)

    # --- base and changes -------------------------------------------------------------------------

    def _present(
        self,
        column: ColumnSchema,
        snapshot: int,
        lower: int,
        upper: int,
        state: Hashable,
        stats: RowSetStats | None,
        narrow: pa.DataType | None,
    ) -> pa.Array:
        """The rows [lower, upper) at a snapshot that applies all REDO of `state`; remembered, for scans ask again.

        What is appended since the state was named is newer than the snapshot, so this works on no more than it names.
        """

        def made(kept: bool) -> tuple[tuple[pa.Array | None, int], int]:
            patch = self._patch(column, snapshot, lower, upper, stats, True)
            if patch is None:
                return (None, 0), 0
            # What is kept takes the place of the base.
            array = self._patched(column, lower, upper, patch, stats, narrow, True, fill_cache=not kept)
            return (array, len(patch)), array.nbytes

        name = ("present", column.id, column.type, narrow, lower, upper)
        array, count = self.memo.get(name, state, made, dear=False)
        if array is None:
            return self._base(column, lower, upper, stats, narrow, True)
        _count(stats, count)
        return array

    def _patch(
        self,
        column: ColumnSchema,
        snapshot: int,
        lower: int,
        upper: int,
        stats: RowSetStats | None,
        scanning: bool,
    ) -> Patch | None:
        from nyala.rowset.patches import find_patch

        rows = (lower, upper)
        return find_patch(self.changes, column, snapshot, rows, self.row_count, stats, scanning=scanning)

    def _patched(
        self,
        column: ColumnSchema,
        lower: int,
        upper: int,
        patch: Patch,
        stats: RowSetStats | None,
        narrow: pa.DataType | None,
        scanning: bool,
        *,
        fill_cache: bool = True,
    ) -> pa.Array:
        """The rows [lower, upper) with what is changed. Cost: no copy of the base where it is decoded for this."""
        reader = self.base_column(column.id)
        if (
            reader is not None
            and scanning
            and patch.is_numbers
            and reader.has_frames
            and reader.type == column.type
        ):
            rows = reader.frames(lower, upper, stats=stats, fill_cache=fill_cache)
            return rows.array(narrow=narrow is not None, changed=(patch.positions, patch.numbers))
        base = self._base(column, lower, upper, stats, narrow, scanning, fill_cache=fill_cache)
        return patch.onto(base)

    def _base(
        self,
        column: ColumnSchema,
        lower: int,
        upper: int,
        stats: ReadStats | None,
        narrow: pa.DataType | None,
        scanning: bool,
        *,
        fill_cache: bool = True,
    ) -> pa.Array:
        reader = self.base_column(column.id)
        if reader is None:
            return default_array(column, upper - lower, "read")
        if narrow is not None:
            return reader.read_narrow(lower, upper, stats=stats, fill_cache=fill_cache, scanning=scanning)
        base = reader.read(lower, upper, stats=stats, fill_cache=fill_cache, scanning=scanning)
        return _as(base, column)

    def check(self) -> None:
        """Read everything and compare. Raises: CorruptionError or StorageError for files, AssertionError for our own
        mistakes. All that is wrong, not only the first: `checking.findings`."""
        from nyala.rowset.checking import findings, first_of

        first_of(findings(self))


def _as(array: pa.Array, column: ColumnSchema) -> pa.Array:
    """Values in the type that the column has in the schema that is read, whenever they were written."""
    return adapt(array, column.type.arrow)


def _count(stats: RowSetStats | None, deltas_applied: int) -> None:
    if stats is not None:
        stats.deltas_applied += deltas_applied
