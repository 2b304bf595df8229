"""What changed between two moments: the net change per key, or every version of every row in between.

    (since, until]                           rowset A   k: live, val=1 at 3, val=2 at 6, dead 8
      net    one row per key                 rowset B   k: born 12 with val=5
      all    one row per version
                                             net of (5, 20]    k  5     update  12
                                             all of (5, 20]    k  2     update   6
                                                               k  NULL  delete   8
                                                               k  5     insert  12

A row of a rowset is *touched* iff LIVENESS or some column of it has a record with since < t <= until: UNDO, REDO,
what is in memory, and in a MemRowSet its insertion. Who was touched is found by the records' rowids and timestamps
alone; rowsets and delta files whose timestamps do not meet the interval are not opened, windows without a record
not decoded.

net    A key's type follows from whether it was there at `since` and at `until`: delete + insert is an update, insert +
       delete nothing. Values are those at `until`, read as any scan reads them; an update to the same value is there.
       `_commit_timestamp` is the key's newest record in the interval.
all    Every (row, t) that has a record is a version. Each column is brought into a *timeline*, the values from each
       of its records on (of UNDO, which says what was before, the value of the next newer record, and at its
       end the base), and filled forward over the versions, from the value at `since`.

The same key in several rowsets. A key lives in at most one row at a time and a dead row is not changed (design R5), so
of a key's touched rows only such stand in two rowsets as were born or died in the interval. These rows, of rowsets of a
tablet whose keys overlap, are merged by key; all others are given out as they are met.

Invariants
    N1  Net: a key comes once. The snapshot at `since` with the net changes applied is the snapshot at `until`.
    N2  All: ordered by timestamp, then key; a key has at most one version at a timestamp (design W4).
    N3  Keys are exact in every row. Of a deleted row every other column is NULL.
    N4  What comes depends on (root, since, until) only (V1 of `read_path`).

Memory: a window per rowset that is merged at the moment, and in "all" the versions of one slice of time. A slice has
at most `slice_versions`, unless one batch alone has more: that one is merged by key as well. Besides, rowids and
timestamps of the records of the rowset being read, and in "all" one count per distinct timestamp.
Cost: net, the records of the rowsets that meet the interval and a look-up of the touched rows; "all" reads
them once more for each slice.
Source: Kudu facts 4.5. Departures: `since` is exclusive and `until` inclusive, as our snapshots are; values of deleted
rows are NULL, where Kudu gives some historical value; types are three, where Kudu has IS_DELETED.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from nyala.cfile.column import DELTA_VALUE
from nyala.delta.delta_file import DeltaFile
from nyala.delta.run import LIVENESS, DeltaRun, Rowids, Timestamps, merge_runs
from nyala.errors import InvalidArgumentError
from nyala.keys.encoded_keys import EncodedKeys
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.rowset.mem_rowset import MemRowSet
from nyala.schema.adapter import adapt
from nyala.schema.schema import ColumnSchema
from nyala.tablet.read_path import GATHER_SHARE, WINDOW_ROWS, KeyedRows, aligned_heads, get_many, in_parallel
from nyala.tablet.root import AnyRowSet, TableState, TabletState

__all__ = [
    "CHANGE_TYPE",
    "COMMIT_TIMESTAMP",
    "DiffSpec",
    "Versions",
    "change_counts",
    "make_diff_spec",
    "may_meet",
    "run",
    "versions_of_key",
]

Versions = Literal["net", "all"]
Bools = npt.NDArray[np.bool_]

CHANGE_TYPE: Final = "_change_type"
COMMIT_TIMESTAMP: Final = "_commit_timestamp"

# Versions that are sorted by time at once. Large: each slice reads the records of the interval again; small: memory.
SLICE_VERSIONS: Final = 1 << 19

_INSERT, _UPDATE, _DELETE, _NOTHING = range(4)
_WORDS: Final = ("insert", "update", "delete")


@dataclass(frozen=True)
class DiffSpec:
    """What is asked of one table between two moments.

    columns:   the key's columns first, then others.
    values_at: whose values net changes have: those after the interval, or those before it (then of an inserted row
               every column outside the key is NULL).
    """

    columns: tuple[ColumnSchema, ...]
    key_count: int
    since: int
    until: int
    versions: Versions = "net"
    values_at: Literal["since", "until"] = "until"
    window_rows: int = WINDOW_ROWS
    slice_versions: int = SLICE_VERSIONS

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """Of the result: columns outside the key are nullable, because deleted rows have no values."""
        fields = [column.arrow_field() for column in self.columns]
        fields[self.key_count :] = [field.with_nullable(True) for field in fields[self.key_count :]]
        return pa.schema(
            [
                *fields,
                pa.field(CHANGE_TYPE, pa.string(), nullable=False),
                pa.field(COMMIT_TIMESTAMP, pa.int64(), nullable=False),
            ]
        )

    def meets(self, timestamp_min: int | None, timestamp_max: int | None) -> bool:
        """Whether records between the two can lie in the interval."""
        return (
            timestamp_min is not None
            and timestamp_max is not None
            and timestamp_min <= self.until
            and timestamp_max > self.since
        )

    def inside(self, timestamps: Timestamps) -> Bools:
        return (timestamps > self.since) & (timestamps <= self.until)


def make_diff_spec(
    table: TableState, since: int, until: int, versions: str, columns: Sequence[ColumnSchema]
) -> DiffSpec:
    """Check what the user asked for. The key's columns always come, and first. Raises: InvalidArgumentError."""
    if versions not in ("net", "all"):
        raise InvalidArgumentError(f"versions takes 'net' or 'all', not {versions!r}")
    schema = table.schema
    shown = (*schema.key_columns, *(column for column in columns if not schema.is_key(column.name)))
    taken = next((c.name for c in shown if c.name in (CHANGE_TYPE, COMMIT_TIMESTAMP)), None)
    if taken is not None:
        raise InvalidArgumentError(
            f"table {table.name!r} has a column {taken!r} of its own, and a change feed calls one of its columns so: "
            "leave it out, with columns=[…]"
        )
    return DiffSpec(shown, schema.key_count, since, until, "net" if versions == "net" else "all")


def run(table: TableState, spec: DiffSpec) -> Iterator[pa.RecordBatch]:
    """The changes as record batches of `spec.arrow_schema`. Net: in no order; all: by timestamp, then key (N2)."""
    if spec.since >= spec.until:
        return iter(())
    return _net(table, spec) if spec.versions == "net" else _all(table, spec)


# ------------------------------------------------------------------------------------------------ who was touched


@dataclass(frozen=True)
class _Records:
    """Who and when, of columns that were written together: rowids ascend, and of a row the last one is the newest."""

    liveness: bool
    rowids: Rowids
    timestamps: Timestamps

    def window(self, lower: int, upper: int) -> tuple[Rowids, Timestamps]:
        """Those of the rows [lower, upper), whose rowids then count from `lower`."""
        begin, end = np.searchsorted(self.rowids, [lower, upper])
        return self.rowids[begin:end] - lower, self.timestamps[begin:end]


class _Touched:
    """The records of one rowset that lie in the interval, without their values."""

    def __init__(self, table: TableState, rowset: AnyRowSet, spec: DiffSpec) -> None:
        self.table = table
        self.rowset = rowset
        self.spec = spec
        self.records = list(_records(table, rowset, spec))

    @property
    def count(self) -> int:
        """Versions, at most."""
        return sum(len(records.rowids) for records in self.records)

    def windows(self) -> Iterator[tuple[int, int]]:
        """[lower, upper) pieces of the rowset in which a record lies, cut at multiples of the window."""
        rows = self.spec.window_rows
        if not self.records:
            return
        numbers = _distinct(
            np.sort(np.concatenate([_distinct(part.rowids // rows) for part in self.records]))
        )
        for number in numbers.tolist():
            yield number * rows, min((number + 1) * rows, self.rowset.row_count)

    def rows(self, lower: int, upper: int) -> tuple[Rowids, Timestamps, Bools]:
        """Of [lower, upper): (rowids that were touched, ascending; newest record of each; was it born, or died?)."""
        newest = np.full(upper - lower, -1, np.int64)
        moved = np.zeros(upper - lower, np.bool_)
        for records in self.records:
            places, times = records.window(lower, upper)
            # Of a row's records the last one is the newest, and of equal places NumPy keeps the last that is assigned.
            newest[places] = np.maximum(newest[places], times)
            if records.liveness:
                moved[places] = True
        at = np.flatnonzero(newest >= 0)
        return at + lower, newest[at], moved[at]

    def moved(self) -> Rowids:
        """All rows that were born or died, ascending."""
        parts = [records.rowids for records in self.records if records.liveness]
        return _distinct(np.sort(np.concatenate(parts))) if parts else np.empty(0, np.int64)


def _records(table: TableState, rowset: AnyRowSet, spec: DiffSpec) -> Iterator[_Records]:
    """What `_Touched` holds. Equal vectors, as of columns that were written together, come once."""
    known: list[_Records] = []
    for liveness, rowids, timestamps in _vectors(table, rowset, spec):
        inside = spec.inside(timestamps)
        if not inside.all():
            rowids, timestamps = rowids[inside], timestamps[inside]
        if not len(rowids):
            continue
        for index, other in enumerate(known):
            if np.array_equal(other.rowids, rowids) and np.array_equal(other.timestamps, timestamps):
                known[index] = dataclasses.replace(other, liveness=other.liveness or liveness)
                break
        else:
            known.append(_Records(liveness, rowids, timestamps))
    yield from known


def _vectors(
    table: TableState, rowset: AnyRowSet, spec: DiffSpec
) -> Iterator[tuple[bool, Rowids, Timestamps]]:
    """(is it LIVENESS, rowids ascending, timestamps ascending in a row), of all stores that meet the interval."""
    known = {LIVENESS, *(column.id for column in table.schema.value_columns)}
    if isinstance(rowset, DiskRowSet):
        for file in (*rowset.undo, *rowset.redo):
            if spec.meets(file.timestamp_min, file.timestamp_max):
                for column_id, liveness in _one_of_each_group(file, known):
                    run = file.run(column_id)
                    if run is not None:
                        yield liveness, *_newest_last(run)
    else:
        times = rowset.insertion_times(0, rowset.row_count)
        yield True, np.arange(len(times)), times
    for store in _memory(rowset):
        if spec.meets(store.timestamp_min, store.timestamp_max):
            for column_id in store.column_ids & known:
                for run in store.levels(column_id):
                    yield column_id == LIVENESS, run.rowids, run.timestamps


def _one_of_each_group(file: DeltaFile, known: set[int]) -> Iterator[tuple[int, bool]]:
    """(column, is LIVENESS in its group): columns of one group have the same rowids and timestamps, so one will do."""
    groups: dict[int, list[tuple[int, int]]] = {}
    for place in file.entry.places:
        if place.key.role == DELTA_VALUE and place.key.column_id in known:
            groups.setdefault(place.key.group, []).append((place.length, place.key.column_id))
    for members in groups.values():
        column_ids = [column_id for _, column_id in sorted(members)]
        if LIVENESS in column_ids:
            yield LIVENESS, True
        else:
            yield column_ids[0], False


def _newest_last(run: DeltaRun) -> tuple[Rowids, Timestamps]:
    """The run's vectors with the records of a row in ascending order of time."""
    if run.kind == "redo":
        return run.rowids, run.timestamps
    turned = _turned(run.rowids)
    return run.rowids, run.timestamps if turned is None else run.timestamps[turned]


def _turned(rowids: Rowids) -> npt.NDArray[np.int64] | None:
    """Places that turn the order within each row around; None when no row stands twice."""
    count = len(rowids)
    first = _first_of_each(rowids)
    if first.all():
        return None
    begin = np.flatnonzero(first)
    size = np.diff(np.append(begin, count))
    turned: npt.NDArray[np.int64] = np.repeat(2 * begin + size - 1, size) - np.arange(count)
    return turned


def _memory(rowset: AnyRowSet) -> tuple[Any, ...]:
    return (rowset.deltas,) if isinstance(rowset, MemRowSet) else (*rowset.frozen, rowset.deltas)


def may_meet(rowset: AnyRowSet, spec: DiffSpec) -> bool:
    """Whether the rowset can hold a record of the interval. Opens no file."""
    if not rowset.row_count:
        return False
    if isinstance(rowset, MemRowSet):
        return spec.meets(rowset.timestamp_min, rowset.timestamp_max)
    stores = (*rowset.undo, *rowset.redo, *_memory(rowset))
    return any(spec.meets(store.timestamp_min, store.timestamp_max) for store in stores)


def _may_move(rowset: AnyRowSet, spec: DiffSpec) -> bool:
    """Whether a row of it can have been born or have died in the interval. Opens no file."""
    if isinstance(rowset, MemRowSet):
        return True
    stores = (*rowset.undo, *rowset.redo, *_memory(rowset))
    return any(
        LIVENESS in store.column_ids and spec.meets(store.timestamp_min, store.timestamp_max)
        for store in stores
    )


# ------------------------------------------------------------------------------------------------ pieces

# Columns that pieces have behind those of the result, while they are merged.
_BEFORE: Final = "_before"
_AFTER: Final = "_after"


def _values(
    rowset: AnyRowSet, column: ColumnSchema, snapshot: int, rowids: Rowids, lower: int, upper: int
) -> pa.Array:
    """The column at rows of [lower, upper), one by one or of the window as a whole, whichever is less work."""
    if len(rowids) < (upper - lower) * GATHER_SHARE:
        return rowset.gather(column, snapshot, rowids)
    whole = rowset.column(column, snapshot, lower, upper)
    return whole if len(rowids) == upper - lower else whole.take(pa.array(rowids - lower))


def _spread(values: pa.Array, shown: Bools) -> pa.Array:
    """The values at the places that are `shown`, in their order, and NULL at the others."""
    if shown.all():
        return values
    return values.take(pa.array(np.cumsum(shown) - 1, mask=~shown))


def _numpy(array: pa.Array) -> npt.NDArray[Any]:
    found: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return found


def _types(before: Bools, after: Bools) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = np.where(
        before, np.where(after, _UPDATE, _DELETE), np.where(after, _INSERT, _NOTHING)
    )
    return found


def _finished(
    spec: DiffSpec, arrays: list[pa.Array], types: npt.NDArray[Any], times: Timestamps
) -> pa.RecordBatch:
    words = pa.array(_WORDS).take(pa.array(types))
    return pa.RecordBatch.from_arrays([*arrays, words, pa.array(times)], schema=spec.arrow_schema)


def _keys_of(table: TableState, spec: DiffSpec, batch: pa.RecordBatch) -> EncodedKeys:
    return table.codec.encode(batch.columns[: spec.key_count])


# ------------------------------------------------------------------------------------------------ net


def _net(table: TableState, spec: DiffSpec) -> Iterator[pa.RecordBatch]:
    def work(item: tuple[_Touched, int, int, bool]) -> pa.RecordBatch | None:
        touched, lower, upper, apart = item
        piece = _net_window(touched, lower, upper, moved=False if apart else None)
        return None if piece is None else _net_rows(spec, piece)

    for tablet in table.tablets:
        groups = _overlapping(table, tablet, spec)
        apart = {rowset for group in groups for rowset in group}
        for batch in in_parallel(_net_windows(table, tablet, spec, apart), work):
            if batch is not None and batch.num_rows:
                yield batch
        for group in groups:
            sources = [
                (key_min, partial(_moved_windows, table, rowset, spec)) for rowset, key_min in group.items()
            ]
            for heads in aligned_heads(sources):
                batch = _net_rows(spec, _one_row_a_key(spec, heads))
                if batch.num_rows:
                    yield batch


def _net_windows(
    table: TableState, tablet: TabletState, spec: DiffSpec, apart: Collection[AnyRowSet]
) -> Iterator[tuple[_Touched, int, int, bool]]:
    """(rowset's records, lower, upper, whether its rows that were born or died are merged apart)."""
    for rowset in tablet.all_rowsets():
        if may_meet(rowset, spec):
            touched = _Touched(table, rowset, spec)
            for lower, upper in touched.windows():
                yield touched, lower, upper, rowset in apart


def _overlapping(table: TableState, tablet: TabletState, spec: DiffSpec) -> list[dict[AnyRowSet, bytes]]:
    """Groups of two or more rowsets in which a key can have been born or have died, with the least such key of each."""
    candidates = [r for r in tablet.all_rowsets() if may_meet(r, spec) and _may_move(r, spec)]
    if len(candidates) < 2:
        return []
    bounds: list[tuple[bytes, bytes, AnyRowSet]] = []
    for rowset in candidates:
        moved = _Touched(table, rowset, spec).moved()
        if not len(moved):
            continue
        if isinstance(rowset, MemRowSet):
            keys = rowset.keys_of(moved)
            keys = keys.take(keys.sort_indices()[[0, -1]])
        else:
            keys = rowset.keys_of(moved[[0, -1]])  # rowids are in the order of keys (X1)
        bounds.append((keys.at(0), keys.at(1), rowset))
    groups: list[dict[AnyRowSet, bytes]] = []
    reach = b""
    for key_min, key_max, rowset in sorted(bounds, key=lambda bound: bound[:2]):
        if groups and key_min <= reach:
            groups[-1][rowset] = key_min
            reach = max(reach, key_max)
        else:
            groups.append({rowset: key_min})
            reach = key_max
    return [group for group in groups if len(group) > 1]


def _net_window(touched: _Touched, lower: int, upper: int, moved: bool | None) -> pa.RecordBatch | None:
    """Rows of [lower, upper) that were touched: key, values, newest timestamp, was and is it there.

    moved: only rows that were born or died, or only others; None: all.
    """
    spec, rowset = touched.spec, touched.rowset
    rowids, newest, has_moved = touched.rows(lower, upper)
    if moved is not None:
        chosen = has_moved if moved else ~has_moved
        rowids, newest = rowids[chosen], newest[chosen]
    if not len(rowids):
        return None
    before = rowset.gather_liveness(spec.since, rowids)
    after = rowset.gather_liveness(spec.until, rowids)
    shown, at = (after, spec.until) if spec.values_at == "until" else (before, spec.since)
    arrays = []
    for index, column in enumerate(spec.columns):
        if index < spec.key_count:
            arrays.append(_values(rowset, column, spec.until, rowids, lower, upper))
        else:
            arrays.append(_spread(_values(rowset, column, at, rowids[shown], lower, upper), shown))
    return pa.RecordBatch.from_arrays(
        [*arrays, pa.array(newest), pa.array(before), pa.array(after)],
        names=[*(column.name for column in spec.columns), COMMIT_TIMESTAMP, _BEFORE, _AFTER],
    )


def _moved_windows(table: TableState, rowset: AnyRowSet, spec: DiffSpec) -> Iterator[KeyedRows]:
    """The rows of one rowset that were born or died, in key order, a window at a time."""
    touched = _Touched(table, rowset, spec)
    pieces = (_net_window(touched, lower, upper, moved=True) for lower, upper in touched.windows())
    yield from _in_key_order(table, rowset, spec, (piece for piece in pieces if piece is not None))


def _in_key_order(
    table: TableState, rowset: AnyRowSet, spec: DiffSpec, pieces: Iterator[pa.RecordBatch]
) -> Iterator[KeyedRows]:
    """Pieces of a rowset with their keys; those of a MemRowSet, which come in order of arrival, as one."""
    if isinstance(rowset, MemRowSet):
        batches = list(pieces)
        if batches:
            rows = _joined(batches)
            keys = _keys_of(table, spec, rows)
            order = keys.sort_indices()
            yield keys.take(order), rows.take(pa.array(order))
        return
    for piece in pieces:
        yield _keys_of(table, spec, piece), piece


def _one_row_a_key(spec: DiffSpec, heads: list[KeyedRows]) -> pa.RecordBatch:
    """Pieces of several rowsets as one in which a key stands once: was it there in any, is it there in any."""
    if len(heads) == 1:
        return heads[0][1]
    keys = EncodedKeys.concat([head[0] for head in heads])
    rows = _joined([head[1] for head in heads])
    order = keys.sort_indices()
    starts = np.flatnonzero(np.append(True, ~keys.take(order).equal_neighbours()))
    newest, before, after = (_numpy(rows.column(name))[order] for name in (COMMIT_TIMESTAMP, _BEFORE, _AFTER))
    # Values stand in the one row that is there at the moment of the values; if none is, any row has the key and NULL.
    shown = after if spec.values_at == "until" else before
    winner = np.maximum.reduceat(np.where(shown, np.arange(len(order)), 0), starts)
    winner = np.maximum(winner, starts)
    chosen = rows.take(pa.array(order[winner]))
    return pa.RecordBatch.from_arrays(
        [
            *chosen.columns[: len(spec.columns)],
            pa.array(np.maximum.reduceat(newest, starts)),
            pa.array(np.logical_or.reduceat(before, starts)),
            pa.array(np.logical_or.reduceat(after, starts)),
        ],
        names=chosen.schema.names,
    )


def _net_rows(spec: DiffSpec, piece: pa.RecordBatch) -> pa.RecordBatch:
    """The piece as it is given out: keys that were there neither before nor after are left out."""
    count = len(spec.columns)
    before, after = _numpy(piece.column(count + 1)), _numpy(piece.column(count + 2))
    types, times = _types(before, after), _numpy(piece.column(count))
    arrays = piece.columns[:count]
    kept = np.flatnonzero(types != _NOTHING)
    if len(kept) < len(types):
        types, times = types[kept], times[kept]
        arrays = [array.take(pa.array(kept)) for array in arrays]
    return _finished(spec, arrays, types, times)


# ------------------------------------------------------------------------------------------------ all versions


def _all(table: TableState, spec: DiffSpec) -> Iterator[pa.RecordBatch]:
    for since, until, count in _slices(table, spec):
        part = dataclasses.replace(spec, since=since, until=until)
        yield from (_of_slice if count <= spec.slice_versions else _of_batch)(table, part)


def _slices(table: TableState, spec: DiffSpec) -> Iterator[tuple[int, int, int]]:
    """(since, until, versions at most): pieces of the interval, each small enough, or of one timestamp."""
    moments, counts = change_counts(table, spec)
    since, begin = spec.since, 0
    sums = np.concatenate([[0], np.cumsum(counts)])
    while begin < len(moments):
        end = int(np.searchsorted(sums, sums[begin] + spec.slice_versions, side="right")) - 1
        end = max(end, begin + 1)
        until = int(moments[end - 1])
        yield since, until, int(sums[end] - sums[begin])
        since, begin = until, end


def change_counts(table: TableState, spec: DiffSpec) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(timestamps at which something changed in the interval, ascending; rows that changed at each, at most).

    Cost: rowids and timestamps of the interval's records; no values.
    """
    moments, counts = np.empty(0, np.int64), np.empty(0, np.int64)
    for rowset in _rowsets(table, spec):
        for records in _Touched(table, rowset, spec).records:
            found, often = np.unique(records.timestamps, return_counts=True)
            moments, place = np.unique(np.concatenate([moments, found]), return_inverse=True)
            counts = np.bincount(place, np.concatenate([counts, often]), len(moments)).astype(np.int64)
    return moments, counts


def _rowsets(table: TableState, spec: DiffSpec) -> Iterator[AnyRowSet]:
    for tablet in table.tablets:
        for rowset in tablet.all_rowsets():
            if may_meet(rowset, spec):
                yield rowset


def _of_slice(table: TableState, spec: DiffSpec) -> Iterator[pa.RecordBatch]:
    """All versions of the interval, sorted in memory."""
    windows = (
        (touched, lower, upper)
        for rowset in _rowsets(table, spec)
        for touched in [_Touched(table, rowset, spec)]
        for lower, upper in touched.windows()
    )
    batches = [batch for batch in in_parallel(windows, lambda item: _versions(*item)) if batch.num_rows]
    if not batches:
        return
    rows = _joined(batches)
    order = _keys_of(table, spec, rows).sort_indices()
    order = order[np.argsort(_numpy(rows.column(COMMIT_TIMESTAMP))[order], kind="stable")]
    for begin in range(0, len(order), spec.window_rows):
        yield rows.take(pa.array(order[begin : begin + spec.window_rows]))


def _of_batch(table: TableState, spec: DiffSpec) -> Iterator[pa.RecordBatch]:
    """All versions of one timestamp, merged by key a window at a time."""
    sources = [
        (
            rowset.meta.key_min if isinstance(rowset, DiskRowSet) else b"",
            partial(_version_windows, table, rowset, spec),
        )
        for rowset in _rowsets(table, spec)
    ]
    for heads in aligned_heads(sources):
        if len(heads) == 1:
            yield heads[0][1]
        else:
            keys = EncodedKeys.concat([head[0] for head in heads])
            yield _joined([head[1] for head in heads]).take(pa.array(keys.sort_indices()))


def _version_windows(table: TableState, rowset: AnyRowSet, spec: DiffSpec) -> Iterator[KeyedRows]:
    touched = _Touched(table, rowset, spec)
    pieces = (_versions(touched, lower, upper) for lower, upper in touched.windows())
    yield from _in_key_order(table, rowset, spec, (piece for piece in pieces if piece.num_rows))


def _versions(touched: _Touched, lower: int, upper: int) -> pa.RecordBatch:
    """All versions of the rows [lower, upper), by rowid and timestamp."""
    spec, rowset = touched.spec, touched.rowset
    grid = _Grid.of([records.window(lower, upper) for records in touched.records])
    rowids = grid.rows + lower
    was = rowset.gather_liveness(spec.since, rowids)
    after = _numpy(grid.fill(_timeline(rowset, None, spec, lower, upper), pa.array(was)))
    before = np.append(False, after)[: len(after)]
    before[grid.first] = was
    arrays = []
    for index, column in enumerate(spec.columns):
        base = _values(rowset, column, spec.since, rowids, lower, upper)
        if index < spec.key_count:
            arrays.append(base.take(pa.array(grid.row_of)))
        else:
            values = grid.fill(_timeline(rowset, column, spec, lower, upper), base)
            arrays.append(_where(values, after))
    types = _types(before, after)
    kept = types != _NOTHING
    batch = _finished(spec, arrays, np.where(kept, types, 0), grid.timestamps)
    return batch if kept.all() else batch.filter(pa.array(kept))


@dataclass(frozen=True)
class _Grid:
    """The versions of a window: the distinct (row, timestamp) of all its records, by row, then timestamp.

    moments: distinct timestamps, ascending. codes: row · len(moments) + place of the timestamp, ascending.
    rows:    distinct rows, ascending, from the window's start. Each version's place in it: row_of.
    first:   places of each row's oldest version.
    """

    moments: Timestamps
    codes: npt.NDArray[np.int64]
    rows: Rowids
    row_of: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]

    @staticmethod
    def of(parts: Sequence[tuple[Rowids, Timestamps]]) -> _Grid:
        nothing = np.empty(0, np.int64)
        rows = np.concatenate([nothing, *(part[0] for part in parts)])
        timestamps = np.concatenate([nothing, *(part[1] for part in parts)])
        moments = _distinct(np.sort(timestamps))
        codes = _distinct(np.sort(rows * len(moments) + np.searchsorted(moments, timestamps)))
        row = codes // max(len(moments), 1)
        first = np.flatnonzero(_first_of_each(row))
        row_of = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(row))))
        return _Grid(moments, codes, row[first], row_of, first)

    @property
    def timestamps(self) -> Timestamps:
        return self.moments[self.codes % max(len(self.moments), 1)]

    def fill(self, timeline: _Timeline | None, base: pa.Array) -> pa.Array:
        """A column's value at each version: its newest record's up to there; before its first the row's `base`."""
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
    """A column's records in a window: from the timestamp on the row has the value. In any order."""

    rows: Rowids
    timestamps: Timestamps
    values: pa.Array


def _timeline(
    rowset: AnyRowSet, column: ColumnSchema | None, spec: DiffSpec, lower: int, upper: int
) -> _Timeline | None:
    """Of the column, or with None of LIVENESS, the records in the interval; None when there are none."""
    column_id = LIVENESS if column is None else column.id
    parts: list[_Timeline] = []
    redo: list[DeltaRun] = []
    if isinstance(rowset, DiskRowSet):
        past = _past(rowset, column, spec, lower, upper)
        if past is not None:
            parts.append(past)
        for file in rowset.redo:
            if column_id in file.column_ids and spec.meets(file.timestamp_min, file.timestamp_max):
                found = file.run_in(column_id, lower, upper, whole=rowset.changes.keeps_runs(file))
                redo += [] if found is None else [found]
    elif column is None:
        times = rowset.insertion_times(lower, upper)
        born = np.flatnonzero(spec.inside(times))
        parts.append(_Timeline(born, times[born], pa.array(np.ones(len(born), np.bool_))))
    for store in _memory(rowset):
        if spec.meets(store.timestamp_min, store.timestamp_max):
            redo += store.levels(column_id)
    for run in redo:
        run = run.window(lower, upper).between(spec.since, spec.until)
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
    rowset: DiskRowSet, column: ColumnSchema | None, spec: DiffSpec, lower: int, upper: int
) -> _Timeline | None:
    """The timeline that UNDO tells: after a record there stood what the next newer record says, or the base."""
    column_id = LIVENESS if column is None else column.id
    files = [file for file in rowset.undo if column_id in file.column_ids and file.timestamp_max > spec.since]
    if not any(spec.meets(file.timestamp_min, file.timestamp_max) for file in files):
        return None
    # Records newer than `until` belong to it: they say what stood after the newest one of the interval.
    runs = [
        run.window(lower, upper)
        for file in files
        if (run := file.run_in(column_id, lower, upper, whole=rowset.changes.keeps_runs(file))) is not None
    ]
    undo = merge_runs([DeltaRun(r.kind, r.rowids, r.timestamps, _as(r.values, column)) for r in runs])
    at = np.flatnonzero(spec.inside(undo.timestamps))
    if not len(at):
        return None
    # Descending in time within a row (D1), so the next newer record is the one before; the row's first has none.
    last = _first_of_each(undo.rowids)[at]
    source = at - 1
    source[last] = len(undo) + np.arange(int(last.sum()))
    # At the newest UNDO of a column it has its base: no UNDO is newer, no REDO as old (X2).
    snapshot, rowids = undo.timestamp_max, undo.rowids[at[last]] + lower
    if column is None:
        base = pa.array(rowset.gather_liveness(snapshot, rowids))
    else:
        base = rowset.gather(column, snapshot, rowids)
    values = pa.concat_arrays([undo.values, base]).take(pa.array(source))
    return _Timeline(undo.rowids[at], undo.timestamps[at], values)


def versions_of_key(
    table: TableState, spec: DiffSpec, key: EncodedKeys, ordinal: int, *, from_state: bool
) -> pa.Table:
    """The versions of one row in the interval, oldest first; none when the key was never there.

    key:        a vector of one.
    ordinal:    of the tablet that houses it; -1: none does.
    from_state: begin with the row as it stood at `since`, if it did. When and how it came to be so lies before the
                interval, so its type and timestamp are NULL.
    Cost: reads the rowids and timestamps of all records of the rowsets that hold the key.
    """
    fields = list(spec.arrow_schema)
    fields[-2:] = [field.with_nullable(True) for field in fields[-2:]]
    if ordinal < 0:
        return pa.schema(fields).empty_table()
    tablet = table.tablets[ordinal]
    rowsets: list[AnyRowSet] = [memory for memory in (tablet.memory, *tablet.frozen) if memory.row_count]
    rowsets += [rowset for rowset, _, _ in tablet.tree.candidates(key)]
    batches = []
    if from_state:
        found, values = get_many(table, key, np.array([ordinal]), spec.columns, spec.since)
        unknown = [pa.nulls(len(found), field.type) for field in fields[-2:]]
        batches.append(pa.RecordBatch.from_arrays([*values, *unknown], schema=pa.schema(fields)))
    for rowset in rowsets:
        if not may_meet(rowset, spec):
            continue
        rowid = int(rowset.find(key)[0])
        if rowid >= 0:
            rows = _versions(_Touched(table, rowset, spec), rowid, rowid + 1)
            batches.append(pa.RecordBatch.from_arrays(rows.columns, schema=pa.schema(fields)))
    rows = pa.Table.from_batches(batches, schema=pa.schema(fields))
    # A timestamp is never negative, so the state at the beginning, whose own is not known, comes first.
    return rows.take(pc.sort_indices(pc.fill_null(rows.column(COMMIT_TIMESTAMP), -1)))


# ------------------------------------------------------------------------------------------------ arrays


def _distinct(ascending: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Each value once. (NumPy's `unique` would hash them, at twenty times the cost of this.)"""
    return ascending[_first_of_each(ascending)]


def _first_of_each(ascending: npt.NDArray[np.int64]) -> Bools:
    """Where a value stands for the first time."""
    return np.append(True, ascending[1:] != ascending[:-1])[: len(ascending)]


def _as(values: pa.Array, column: ColumnSchema | None) -> pa.Array:
    """Values in the type that the column has in the schema that is read (None: LIVENESS)."""
    return values if column is None else adapt(values, column.type.arrow)


def _where(values: pa.Array, shown: Bools) -> pa.Array:
    """The values, and NULL where they are not `shown`."""
    return values if shown.all() else values.take(pa.array(np.arange(len(shown)), mask=~shown))


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    arrays = [
        pa.concat_arrays([batch.column(index) for batch in batches])
        for index in range(batches[0].num_columns)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=batches[0].schema)
