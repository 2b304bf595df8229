"""Yields all versions of rows between two moments, for a table or for one key.

The interval begins after the moment `since` and ends with the moment `until`. Each (row, timestamp)
with a record (a change of a column or of LIVENESS) is a version. The *timeline* of a column has one
value per record: the column's value from this timestamp on. A REDO record has this value itself. An
UNDO record has the value before its timestamp, so the value after it is in the next newer record,
or in the base. If a version has no record of a column, the column has its value of the previous
version. If there is no previous version, it has its value at `since`.

The interval is cut into slices of time, whose versions are sorted in memory. A slice has at most
`slice_versions`, unless one commit has more. The rows of such a commit are merged by key.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala import compute as pc
from nyala.delta.delta_file import LITTLE_TEXT_BYTES
from nyala.delta.run import LIVENESS, DeltaRun, Rowids, Timestamps, merge_runs
from nyala.keys.encoded_keys import EncodedKeys
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.schema.adapter import adapt
from nyala.schema.schema import ColumnSchema
from nyala.tablet.changes.batches import (
    NOTHING,
    change_types,
    distinct,
    finished,
    first_of_each,
    images,
    in_key_order,
    keys_of,
    null_where_not,
    to_numpy,
    values_of,
)
from nyala.tablet.changes.records import (
    Touched,
    change_counts,
    in_memory,
    may_meet,
    rowsets_of,
    text_row_bytes,
)
from nyala.tablet.changes.spec import COMMIT_VERSION, Bools, ChangeSpec
from nyala.tablet.scan.key_merge import KeyedRows, aligned_heads, least_key
from nyala.tablet.scan.parallel import in_parallel
from nyala.tablet.scan.read_path import get_many
from nyala.tablet.state.root import AnyRowSet, TableState


def all_versions(table: TableState, spec: ChangeSpec) -> Iterator[pa.RecordBatch]:
    """Yield all versions of rows in the interval of `spec`, sorted by timestamp, then by key."""
    most = _most_versions(table, spec)
    for since, until, count in _slices(table, spec, most):
        part = dataclasses.replace(spec, since=since, until=until)
        yield from (_of_slice if count <= most else _of_commit)(table, part)


def _most_versions(table: TableState, spec: ChangeSpec) -> int:
    """Return how many versions may be sorted in memory at once: fewer if rows have much text."""
    text = max((text_row_bytes(rowset, spec) for rowset in rowsets_of(table, spec)), default=0.0)
    most = min(spec.slice_versions, int(LITTLE_TEXT_BYTES / max(1.0, text)))
    return max(1, most // 2 if spec.values_at == "both" else most)


def _slices(table: TableState, spec: ChangeSpec, most: int) -> Iterator[tuple[int, int, int]]:
    """Cut the feed's interval into slices of time. Yield (since, until, number of versions).

    A slice has at most `most` versions, unless one commit has more.
    """
    moments, counts = change_counts(table, spec)
    since, begin = spec.since, 0
    sums = np.concatenate([[0], np.cumsum(counts)])
    while begin < len(moments):
        end = int(np.searchsorted(sums, sums[begin] + most, side="right")) - 1
        end = max(end, begin + 1)
        while end < len(moments) and moments[end] == moments[end - 1] + 1:
            end += 1  # a tombstone's insertion and deletion (see `_hide_tombstones`) stay together
        until = int(moments[end - 1])
        yield since, until, int(sums[end] - sums[begin])
        since, begin = until, end


def _of_slice(table: TableState, spec: ChangeSpec) -> Iterator[pa.RecordBatch]:
    """Yield all row versions after `spec.since`, up to `spec.until`, by timestamp, then by key.

    All these versions are sorted in memory. So the caller chooses an interval whose versions fit in
    memory.
    """
    splits = (
        (touched, lower, upper)
        for rowset in rowsets_of(table, spec)
        for touched in [Touched(table, rowset, spec)]
        for lower, upper in touched.splits()
    )
    batches = [batch for batch in in_parallel(splits, lambda item: _versions(*item)) if batch.num_rows]
    if not batches:
        return
    rows = pa.concat_batches(batches)
    order = keys_of(table, spec, rows).sort_indices()
    order = order[np.argsort(to_numpy(rows.column(COMMIT_VERSION))[order], kind="stable")]
    for begin in range(0, len(order), spec.split_rows):
        yield rows.take(pa.array(order[begin : begin + spec.split_rows]))


def _of_commit(table: TableState, spec: ChangeSpec) -> Iterator[pa.RecordBatch]:
    """Yield all row versions of one commit, in the order of their keys.

    The interval from `spec.since` to `spec.until` must have only this commit. Its versions may not
    fit in memory. So only one split (a range of rows) of each rowset is in memory at a time.
    """
    sources = [
        (least_key(rowset), partial(_version_splits, table, rowset, spec))
        for rowset in rowsets_of(table, spec)
    ]
    for heads in aligned_heads(sources):
        if len(heads) == 1:
            yield heads[0][1]
        else:
            keys = EncodedKeys.concat([head[0] for head in heads])
            yield pa.concat_batches([head[1] for head in heads]).take(pa.array(keys.sort_indices()))


def _version_splits(table: TableState, rowset: AnyRowSet, spec: ChangeSpec) -> Iterator[KeyedRows]:
    """Yield the versions of one rowset's rows in key order."""
    touched = Touched(table, rowset, spec)
    batches = (_versions(touched, lower, upper) for lower, upper in touched.splits())
    yield from in_key_order(table, rowset, spec, (batch for batch in batches if batch.num_rows))


def _versions(touched: Touched, lower: int, upper: int) -> pa.RecordBatch:
    """Return all versions of the rows [lower, upper) that the change feed needs.

    The versions are sorted by rowid, and those of one row by timestamp.

    touched: the rowset with these rows, and the feed's columns and interval.
    """
    spec, rowset = touched.spec, touched.rowset
    grid, before, after = _lives(touched, lower, upper)
    rowids = grid.rows + lower
    if spec.values_at == "both":
        return _images(touched, lower, upper, grid, before, after)
    arrays = []
    for index, column in enumerate(spec.columns):
        base = values_of(rowset, column, spec.since, rowids, lower, upper)
        if index < spec.key_count:
            arrays.append(base.take(pa.array(grid.row_of)))
        else:
            values = grid.fill(_timeline(rowset, column, spec, lower, upper), base)
            arrays.append(null_where_not(values, after))
    types = change_types(before, after)
    kept = types != NOTHING
    batch = finished(spec, arrays, np.where(kept, types, 0), grid.timestamps)
    return batch if kept.all() else batch.filter(pa.array(kept))


def version_types(
    touched: Touched, lower: int, upper: int
) -> tuple[Timestamps, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the versions of the rows [lower, upper) without values, as three arrays.

    The arrays are: the distinct timestamps; for each version, the index of its timestamp; for each
    version, its change type. The type is NOTHING if the row exists neither before nor after.
    """
    grid, before, after = _lives(touched, lower, upper)
    return grid.moments, grid.moment_of, change_types(before, after)


def _lives(touched: Touched, lower: int, upper: int) -> tuple[_Grid, Bools, Bools]:
    """Return the versions (row, timestamp) of the rows [lower, upper), and two masks.

    The masks say for each version whether the row exists before it, and after it.
    """
    spec, rowset = touched.spec, touched.rowset
    grid = _Grid.of([records.between(lower, upper) for records in touched.records])
    was = rowset.gather_liveness(spec.since, grid.rows + lower)
    after = to_numpy(grid.fill(_timeline(rowset, None, spec, lower, upper), pa.array(was)))
    before = np.append(False, after)[: len(after)]
    before[grid.first] = was
    _hide_tombstones(grid, before, after)
    return grid, before, after


def _hide_tombstones(grid: _Grid, before: Bools, after: Bools) -> None:
    """Mark tombstones as rows that never existed: the feed leaves them out.

    A tombstone is a row that was inserted one timestamp before its deletion.
    """
    times, row = grid.timestamps, grid.row_of
    pair = (row[1:] == row[:-1]) & (times[1:] == times[:-1] + 1)
    born = np.flatnonzero(pair & ~before[:-1] & after[:-1] & ~after[1:])
    after[born] = before[born + 1] = False


def _images(
    touched: Touched, lower: int, upper: int, grid: _Grid, before: Bools, after: Bools
) -> pa.RecordBatch:
    """Return the rows of a feed that shows the values before and after each change.

    An update gives two rows: the row's previous version (preimage), and its new version
    (postimage). An insertion or deletion gives one row.

    grid:   all versions of the rows [lower, upper).
    before: for each version, whether the row exists just before it.
    after:  for each version, whether the row exists from it on.
    """
    spec, rowset = touched.spec, touched.rowset
    number, is_after, types = images(before, after)
    # Positions in an array with the values of rows at `since`, followed by those of the versions.
    values = np.arange(len(before)) + len(grid.rows)
    previous = values - 1
    previous[grid.first] = grid.row_of[grid.first]
    place = pa.array(np.where(is_after, values[number], previous[number]))
    arrays = []
    for index, column in enumerate(spec.columns):
        base = values_of(rowset, column, spec.since, grid.rows + lower, lower, upper)
        if index < spec.key_count:
            arrays.append(base.take(pa.array(grid.row_of[number])))
        else:
            filled = grid.fill(_timeline(rowset, column, spec, lower, upper), base)
            arrays.append(pa.concat_arrays([base, filled]).take(place))
    return finished(spec, arrays, types, grid.timestamps[number])


@dataclass(frozen=True)
class _Grid:
    """The versions of the rows of a split: the distinct (row, time of a change), ascending.

    moments: the distinct timestamps, ascending.
    codes:   each version as one number: row · len(moments) + index of its timestamp.
    rows:    the distinct rows, ascending, counted from the start of the split.
    row_of:  the index in `rows` of each version's row.
    first:   the index of each row's oldest version.
    """

    moments: Timestamps
    codes: npt.NDArray[np.int64]
    rows: Rowids
    row_of: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]

    @staticmethod
    def of(parts: Sequence[tuple[Rowids, Timestamps]]) -> _Grid:
        """Return the versions of these changes: each distinct pair (row, timestamp) once.

        parts: the rowids and timestamps of the changes of several columns.
        """
        nothing = np.empty(0, np.int64)
        rows = np.concatenate([nothing, *(part[0] for part in parts)])
        timestamps = np.concatenate([nothing, *(part[1] for part in parts)])
        moments = distinct(np.sort(timestamps))
        codes = distinct(np.sort(rows * len(moments) + np.searchsorted(moments, timestamps)))
        row = codes // max(len(moments), 1)
        first = np.flatnonzero(first_of_each(row))
        row_of = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(row))))
        return _Grid(moments, codes, row[first], row_of, first)

    @property
    def moment_of(self) -> npt.NDArray[np.int64]:
        """The index in `moments` of each version's timestamp."""
        found: npt.NDArray[np.int64] = self.codes % max(len(self.moments), 1)
        return found

    @property
    def timestamps(self) -> Timestamps:
        return self.moments[self.moment_of]

    def fill(self, timeline: _Timeline | None, base: pa.Array) -> pa.Array:
        """Return a column's value for each version: the row's value at the version's timestamp.

        This is the column's newest value in `timeline` up to the version. Without such a value, it
        is the row's value in `base`.

        timeline: the column's changes in the interval; None: no changes.
        base:     the column's value in each row at the beginning of the interval.
        """
        if timeline is None:
            return base.take(pa.array(self.row_of))
        codes = timeline.rows * len(self.moments) + np.searchsorted(self.moments, timeline.timestamps)
        record = np.full(len(self.codes), -1, np.int64)
        record[np.searchsorted(self.codes, codes)] = np.arange(len(codes))
        newest = np.maximum.accumulate(np.where(record >= 0, np.arange(len(record)), -1))
        own = newest >= self.first[self.row_of]
        source = np.where(own, record[newest], len(codes) + self.row_of)
        return pa.concat_arrays([timeline.values, base]).take(pa.array(source))


@dataclass(frozen=True)
class _Timeline:
    """Changes of one column, in any order: row `rows[i]` has `values[i]` from `timestamps[i]` on."""

    rows: Rowids
    timestamps: Timestamps
    values: pa.Array


def _timeline(
    rowset: AnyRowSet, column: ColumnSchema | None, spec: ChangeSpec, lower: int, upper: int
) -> _Timeline | None:
    """Return the values that a column got after `spec.since` up to `spec.until`, and when.

    Returns None if the column has no change in this time.

    column:       None: the column LIVENESS, which says whether a row is live.
    lower, upper: the rows [lower, upper) of the rowset.
    """
    column_id = LIVENESS if column is None else column.id
    parts: list[_Timeline] = []
    redo: list[DeltaRun] = []
    if isinstance(rowset, DiskRowSet):
        past = _past(rowset, column, spec, lower, upper)
        if past is not None:
            parts.append(past)
        for file in rowset.redo:
            if column_id in file.column_ids and spec.meets(file.timestamp_min, file.timestamp_max):
                found = file.run_in(column_id, lower, upper, whole=rowset.changes.keeps_runs(file, column_id))
                redo += [] if found is None else [found]
    elif column is None:
        times = rowset.insertion_times(lower, upper)
        born = np.flatnonzero(spec.inside(times))
        parts.append(_Timeline(born, times[born], pa.array(np.ones(len(born), np.bool_))))
    for store in in_memory(rowset):
        if spec.meets(store.timestamp_min, store.timestamp_max):
            redo += store.levels(column_id)
    for run in redo:
        run = run.of_rows(lower, upper).between(spec.since, spec.until)
        parts.append(_Timeline(run.rowids, run.timestamps, _as(run.values, column)))
    parts = [part for part in parts if len(part.rows)]
    if len(parts) < 2:
        return parts[0] if parts else None
    return _Timeline(
        np.concatenate([part.rows for part in parts]),
        np.concatenate([part.timestamps for part in parts]),
        pa.concat_arrays([part.values for part in parts]),
    )


def _past(
    rowset: DiskRowSet, column: ColumnSchema | None, spec: ChangeSpec, lower: int, upper: int
) -> _Timeline | None:
    """Return the column's values that UNDO files give for the feed's interval; None: no values.

    UNDO files have the changes before the base data. Each value comes with its row and the
    timestamp of the change that set it.

    column:       None: the column LIVENESS, which says whether a row is live.
    lower, upper: the rows [lower, upper) of the rowset.
    """
    column_id = LIVENESS if column is None else column.id
    files = [file for file in rowset.undo if column_id in file.column_ids and file.timestamp_max > spec.since]
    if not any(spec.meets(file.timestamp_min, file.timestamp_max) for file in files):
        return None
    # Records after `until` are needed too: they hold the value after the interval's last record.
    runs = [
        run.of_rows(lower, upper)
        for file in files
        if (run := file.run_in(column_id, lower, upper, whole=rowset.changes.keeps_runs(file, column_id)))
        is not None
    ]
    undo = merge_runs([DeltaRun(r.kind, r.rowids, r.timestamps, _as(r.values, column)) for r in runs])
    at = np.flatnonzero(spec.inside(undo.timestamps))
    if not len(at):
        return None
    # A row's records are newest first (D1), so the next newer record is at the position before.
    last = first_of_each(undo.rowids)[at]
    source = at - 1
    source[last] = len(undo) + np.arange(int(last.sum()))
    # At the newest UNDO timestamp a column has its base value, because all REDO is newer (X2).
    snapshot, rowids = undo.timestamp_max, undo.rowids[at[last]] + lower
    if column is None:
        base = pa.array(rowset.gather_liveness(snapshot, rowids))
    else:
        base = rowset.gather(column, snapshot, rowids)
    values = pa.concat_arrays([undo.values, base]).take(pa.array(source))
    return _Timeline(undo.rowids[at], undo.timestamps[at], values)


def _as(values: pa.Array, column: ColumnSchema | None) -> pa.Array:
    """Return the values in the column's present type. column: None for LIVENESS."""
    return values if column is None else adapt(values, column.type.arrow)


def versions_of_key(
    table: TableState, spec: ChangeSpec, key: EncodedKeys, ordinal: int, *, from_state: bool
) -> pa.Table:
    """Return the versions of one row, oldest first; empty if the key never existed.

    key:        one key.
    ordinal:    the position of the key's tablet in the table; -1: no partition covers the key.
    from_state: begin with the row at `since`, if it existed. Its change type and timestamps are
        NULL, because that change is before the interval.
    Cost: reads the rowids and timestamps of all changes in the rowsets that have the key.
    """
    fields = list(spec.arrow_schema)
    fields[-3:] = [field.with_nullable(True) for field in fields[-3:]]
    if ordinal < 0:
        return pa.schema(fields).empty_table()
    tablet = table.tablets[ordinal]
    rowsets: list[AnyRowSet] = [memory for memory in (tablet.memory, *tablet.frozen) if memory.row_count]
    rowsets += [rowset for rowset, _, _ in tablet.tree.candidates(key)]
    batches = []
    if from_state:
        found, values = get_many(table, key, np.array([ordinal]), spec.columns, spec.since)
        unknown = [pa.nulls(len(found), field.type) for field in fields[-3:]]
        batches.append(pa.RecordBatch.from_arrays([*values, *unknown], schema=pa.schema(fields)))
    for rowset in rowsets:
        if not may_meet(rowset, spec):
            continue
        rowid = int(rowset.find(key)[0])
        if rowid >= 0:
            rows = _versions(Touched(table, rowset, spec), rowid, rowid + 1)
            batches.append(pa.RecordBatch.from_arrays(rows.columns, schema=pa.schema(fields)))
    rows = pa.Table.from_batches(batches, schema=pa.schema(fields))
    # The row at `since` has no timestamp, and comes first.
    return rows.take(pc.sort_indices(pc.fill_null(rows.column(COMMIT_VERSION), -1)))
