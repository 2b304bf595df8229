"""The MemRowSet: rows that were inserted and are not flushed yet.

Like a DiskRowSet it has a base (the rows as inserted), REDO (changes in its DeltaMemStore), and
rowids, which are positions in the base. The base is columnar and grows at its end:

    rowid   0 ............... 70,000 ........ 90,000 .. 95,000
    chunks  [    merged      ][   merged     ][ insert ][i][i]      columns, joined when they are read
    index   key -> rowid                                            `key_lookup.key_runs`
    deltas  DELETE, UPDATE, REINSERT                                changes after the insertion

An insert is first a slice (batch, offset, length) of a batch that several tablets share. A reader
that needs a column joins the arrays of chunks with similar size, so each value is copied O(log
rows) times. The joined array replaces the small ones, so values are not kept twice.

A row is alive from its insertion on, unless LIVENESS says otherwise. If a key's row is dead, an
insert of the key is a REINSERT of this row: a change like an UPDATE of all columns.

Invariants
    R1  Rowids are the order of arrival and never change.
    R2  A key has at most one row, dead or alive.
    R3  Each chunk begins at the row after the end of the previous chunk. If a chunk and the next
        one have the same columns and are not too large to be joined, the chunk has more than
        MERGE_RATIO times the rows of the next one.
    R4  An insert only adds rows at the end. A reader sees all rows of an insert, or no row of it.
    R5  Rows and values at timestamps <= T stay the same once T is published.

Threads: only the holder of the database's commit lock calls `insert` and appends to `deltas`. Any
thread may call everything else without a lock, because the state is one immutable tuple that is
replaced as a whole.
Source: Kudu tablet design, "MVCC Mutations in MemRowSet"; docs/design/kudu.md, "Rows in a
MemRowSet". Kudu has a B-tree of rows instead.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile.blocks.ordinals import Ordinals
from nyala.cfile.blocks.read_stats import Access
from nyala.delta.applier import patch, resolve, resolve_at
from nyala.delta.batch import SharedBatch
from nyala.delta.compaction import insertion_undo, join_undo, redo_to_undo
from nyala.delta.mem_store import DeltaMemStore
from nyala.delta.run import LIVENESS, MAX_TIMESTAMP, DeltaRun, Rowids, Timestamps, take
from nyala.keys.codec import KeyCodec
from nyala.keys.encoded_keys import EncodedKeys
from nyala.keys.key_range import KeyRange
from nyala.rowset.image import RowSetImage, whole_column
from nyala.rowset.key_lookup.key_runs import KeyRuns, SharedKeys
from nyala.rowset.meta import NO_ROWID
from nyala.rowset.stats import RowSetStats, count_applied
from nyala.schema.adapter import adapt
from nyala.schema.arrow_values import adapted_value_at
from nyala.schema.conversion.convert import default_array
from nyala.schema.plain_arrays import booleans_of
from nyala.schema.schema import ColumnSchema, Schema

if TYPE_CHECKING:
    from nyala.schema.predicates.column_test import ColumnTest

MERGE_RATIO: Final = 4
# The Python objects of an insert take about 2 KB. So the writer joins 64 or more inserts of less
# than 256 rows each.
_SMALL_INSERTS: Final = 64
_SMALL_ROWS: Final = 256
_OVERHEAD_BYTES: Final = 2048
# The text of larger joined chunks could exceed Arrow's 32-bit offsets.
_CHUNK_BYTES_MAX: Final = 1 << 30

Bools = npt.NDArray[np.bool_]


@dataclass(slots=True)
class _Insert:
    """The rows of one `insert`: a slice of `batch` that begins at `offset`."""

    batch: SharedBatch
    offset: int


@dataclass(slots=True, eq=False)
class _Chunk:
    """The rows of one or more consecutive inserts.

    content: where the values are. A new chunk refers to one insert. A merged chunk first refers to
        the two smaller chunks, whose arrays are joined when a reader needs the column. After all
        columns were joined, it is a dict with one array per column id.
    cache: the columns that were joined to one array so far, while `content` is two chunks.
    """

    content: _Insert | tuple[_Chunk, _Chunk] | dict[int, pa.Array]
    column_ids: frozenset[int]
    row_count: int
    insert_count: int
    data_bytes: int
    timestamp_min: int
    timestamp_max: int
    timestamps: int | Timestamps  # one for all rows, or one per row
    cache: dict[int, pa.Array] = field(default_factory=dict)

    @staticmethod
    def of_insert(batch: SharedBatch, offset: int, length: int, timestamps: int | Timestamps) -> _Chunk:
        if isinstance(timestamps, np.ndarray):
            low, high = int(timestamps.min()), int(timestamps.max())
        else:
            low = high = timestamps = int(timestamps)
        return _Chunk(
            _Insert(batch, offset), batch.column_ids, length, 1, int(length * batch.bytes_per_row),
            low, high, timestamps,
        )  # fmt: skip

    @staticmethod
    def of_chunks(left: _Chunk, right: _Chunk) -> _Chunk:
        low, high = min(left.timestamp_min, right.timestamp_min), max(left.timestamp_max, right.timestamp_max)
        times = [
            np.full(half.row_count, half.timestamps, np.int64)
            if isinstance(half.timestamps, int)
            else half.timestamps
            for half in (left, right)
        ]
        return _Chunk(
            (left, right),
            left.column_ids,
            left.row_count + right.row_count,
            left.insert_count + right.insert_count,
            left.data_bytes + right.data_bytes,
            low,
            high,
            low if low == high else np.concatenate(times),
        )

    def column(self, column_id: int) -> pa.Array:
        """Return one column, with the values as inserted. column_id: one of `column_ids`."""
        array = self.cache.get(column_id)
        if array is not None:
            return array
        content = self.content
        if isinstance(content, dict):
            return content[column_id]
        if isinstance(content, _Insert):
            return content.batch.columns[column_id].slice(content.offset, self.row_count)
        parts = self._parts(column_id)
        if not parts:  # another thread has joined the column meanwhile
            return self.column(column_id)
        array = pa.concat_arrays([part.column(column_id) for part in parts])
        for half in content:
            # Frees the arrays of the halves. A reader of an older state joins them again.
            half.cache.pop(column_id, None)
        self.cache[column_id] = array
        if len(self.cache) == len(self.column_ids):
            self._replace_parts(dict(self.cache))
        return array

    def join(self) -> None:
        """Join every column to one array, so that the memory of the inserts can be freed."""
        parts = self._parts(None)
        if parts:
            columns = {
                number: pa.concat_arrays([part.column(number) for part in parts])
                for number in self.column_ids
            }
            self._replace_parts(columns)

    def _parts(self, column_id: int | None) -> list[_Chunk]:
        """Return the chunks whose arrays of a column must be joined to get this chunk's array.

        A merged chunk consists of two smaller chunks, which may be merged chunks too. The result
        has chunks from this tree in row order: the largest ones that have the column as one array.
        It is empty if this chunk itself has the column as one array.

        column_id: None: the result has the largest chunks that have every column as one array.
        """
        parts, waiting = [], [self]
        while waiting:
            chunk = waiting.pop()
            content = chunk.content
            if isinstance(content, tuple) and (column_id is None or column_id not in chunk.cache):
                waiting += content[::-1]
            elif chunk is not self:
                parts.append(chunk)
        return parts

    def _replace_parts(self, columns: dict[int, pa.Array]) -> None:
        """Make `columns` the content of this chunk, instead of two smaller chunks.

        The memory of the smaller chunks can be freed then. If a column is missing in `columns`,
        this method does nothing. A column can be missing because another thread has joined its
        array to the array of a larger chunk meanwhile.

        columns: by column id, one array with the values of all rows of this chunk.
        """
        if len(columns) == len(self.column_ids):
            self.content = columns
            self.insert_count = 1


def _joinable(left: _Chunk, right: _Chunk) -> bool:
    """Whether two chunks have the same columns, and are not too large to be joined."""
    return left.column_ids == right.column_ids and left.data_bytes + right.data_bytes <= _CHUNK_BYTES_MAX


class _State(NamedTuple):
    chunks: tuple[_Chunk, ...]
    starts: tuple[int, ...]  # rowid of each chunk's first row
    row_count: int
    keys: KeyRuns
    timestamp_min: int
    timestamp_max: int


class MemRowSet:
    """Rows of a tablet in memory. A tablet has one for inserts, and others that are being flushed."""

    def __init__(self, codec: KeyCodec, schema: Schema) -> None:
        self.codec = codec
        self.schema = schema
        self.deltas = DeltaMemStore()
        self.frozen_at: int | None = None
        """The timestamp at which a flush froze it; it takes no inserts after that."""
        self._state = _State((), (), 0, KeyRuns(codec.empty()), MAX_TIMESTAMP, -1)

    # --- writing ----------------------------------------------------------------------------------

    def insert(
        self,
        keys: EncodedKeys | SharedKeys,
        batch: SharedBatch,
        offset: int,
        length: int,
        timestamps: int | Timestamps,
    ) -> int:
        """Add the rows [offset, offset + length) of `batch`, and return the rowid of the first.

        keys:       the keys of these rows, or SharedKeys of all rows of the batch. They ascend
                    strictly. No row of this MemRowSet, dead or alive, has one of these keys.
        batch:      columns by column id, with the key columns. If a column is missing, these rows
                    get its `read_default`: the value of rows that are older than the column.
        timestamps: when the rows are inserted: one for all, or one per row.
        Caller:     has the commit lock, and has checked the arguments: the call must not fail.
        Cost:       O(1) NumPy calls and no Arrow call, for any number of columns. More only when
                    small inserts are joined or 4,096 keys are merged.
        """
        assert self.frozen_at is None, "a frozen MemRowSet takes no inserts"
        old = self._state
        if not length:
            return old.row_count
        shared, first = (keys, offset) if isinstance(keys, SharedKeys) else (SharedKeys(keys), 0)
        assert first + length <= len(shared.keys), (first, length, len(shared.keys))
        key_runs = old.keys.insert(shared, first, length, old.row_count)
        chunk = _Chunk.of_insert(batch, offset, length, timestamps)
        low, high = chunk.timestamp_min, chunk.timestamp_max
        chunks, starts = list(old.chunks), list(old.starts)
        start = old.row_count
        while (
            chunks and chunks[-1].row_count <= MERGE_RATIO * chunk.row_count and _joinable(chunks[-1], chunk)
        ):
            chunk = _Chunk.of_chunks(chunks.pop(), chunk)
            start = starts.pop()
        if chunk.insert_count >= _SMALL_INSERTS and chunk.row_count < _SMALL_ROWS * chunk.insert_count:
            chunk.join()
        self._state = _State(
            (*chunks, chunk),
            (*starts, start),
            old.row_count + length,
            key_runs,
            min(old.timestamp_min, low),
            max(old.timestamp_max, high),
        )
        return old.row_count

    def copy(self, timestamp: int) -> MemRowSet:
        """Return a copy for a transaction that begins at `timestamp`. Cost: O(1).

        The copy takes its own changes, and no inserts. It may have rows and changes that are newer
        than `timestamp`; readers at that moment do not see them.
        """
        twin = MemRowSet(self.codec, self.schema)
        twin.deltas = self.deltas.copy()  # before the rows, so that a change never lacks its row
        twin._state = self._state
        twin.frozen_at = timestamp
        return twin

    # --- looking up -------------------------------------------------------------------------------

    def find(self, keys: EncodedKeys) -> Rowids:
        """Return the rowid of each key; -1 for a key that is not in the rowset.

        The keys may have any order. Dead rows are found too.
        """
        state = self._state
        return state.keys.find(keys, state.row_count)

    def find_one(self, key: EncodedKeys) -> int:
        """Return the rowid of one key; -1 if it is not in the rowset. Dead rows are found too."""
        state = self._state
        return state.keys.find_one(key, state.row_count)

    @property
    def key_runs(self) -> KeyRuns:
        """The index that finds rowids by key, with all rows that were inserted so far.

        The caller must hold the commit lock.
        """
        return self._state.keys

    @property
    def may_have_dead(self) -> bool:
        """Whether a row may be dead. Without a LIVENESS change, all rows are alive."""
        return LIVENESS in self.deltas.column_ids

    def live(self, rowids: Rowids) -> Bools:
        """Return whether each of these rows is alive after all changes."""
        return self.gather_liveness(MAX_TIMESTAMP, rowids)

    def changed_after(self, rowids: Rowids, timestamp: int) -> Bools:
        """Return whether each of these rows was inserted or changed after `timestamp`."""
        changed = self.deltas.changed_after(rowids, timestamp)
        return changed | (self.insertion_times_at(rowids) > timestamp)

    @property
    def row_count(self) -> int:
        """The number of rows, including dead rows."""
        return self._state.row_count

    @property
    def nbytes(self) -> int:
        """The approximate size of rows, keys and changes in memory, in bytes."""
        state = self._state
        rows = sum(chunk.data_bytes + _OVERHEAD_BYTES * chunk.insert_count for chunk in state.chunks)
        return rows + state.keys.nbytes + self.deltas.nbytes

    @property
    def timestamp_min(self) -> int | None:
        """The least timestamp of an insertion or change; None without rows."""
        times = [self._state.timestamp_min, self.deltas.timestamp_min]
        least = min(time for time in times if time is not None)
        return None if least == MAX_TIMESTAMP else least

    @property
    def timestamp_max(self) -> int | None:
        """The greatest timestamp of an insertion or change; None without rows."""
        times = [self._state.timestamp_max, self.deltas.timestamp_max]
        greatest = max(time for time in times if time is not None)
        return None if greatest < 0 else greatest

    # --- reading (the same names as in DiskRowSet) ------------------------------------------------

    def rowids_in(self, key_range: KeyRange) -> Rowids | slice:
        """Return the rows with keys in the range: a slice for all rows, else sorted rowids."""
        state = self._state
        if key_range.is_all:
            return slice(0, state.row_count)
        return state.keys.rowids_in(key_range, state.row_count)

    def order(self) -> Rowids:
        """Return all rowids in key order."""
        state = self._state
        return state.keys.sorted(state.row_count).rowids

    def keys_of(self, rowids: Rowids) -> EncodedKeys:
        """Return the keys of these rows, in the order of `rowids`."""
        chunks = list(self._chunks_of(rowids))
        return self.codec.encode([_gather_chunks(column, chunks) for column in self.schema.key_columns])

    def liveness(
        self, snapshot: int, lower: int, upper: int, stats: RowSetStats | None = None
    ) -> Bools | None:
        """Return a mask of the rows [lower, upper) that are alive at `snapshot`; None: all are."""
        alive: Bools | None = None
        if self._state.timestamp_max > snapshot:
            alive = self.insertion_times(lower, upper) <= snapshot
        rows, values = resolve((), self.deltas.levels(LIVENESS), snapshot, lower, upper)
        if values is not None:
            # Deletions and reinsertions are later than the insertion, so they override it.
            alive = np.ones(upper - lower, np.bool_) if alive is None else alive
            alive[rows - lower] = booleans_of(values)
            count_applied(stats, len(rows))
        return None if alive is None or alive.all() else alive

    def gather_liveness(self, snapshot: int, rowids: Rowids) -> Bools:
        """Return whether each of these rows is alive at `snapshot`."""
        if self._state.timestamp_max > snapshot:
            alive = self.insertion_times_at(rowids) <= snapshot
        else:
            alive = np.ones(len(rowids), np.bool_)
        positions, values = resolve_at((), self.deltas.levels(LIVENESS), snapshot, rowids)
        if values is not None:
            alive[positions] = booleans_of(values)
        return alive

    def insertion_times(self, lower: int, upper: int) -> Timestamps:
        """Return the timestamps at which the rows [lower, upper) were inserted."""
        times = np.empty(upper - lower, np.int64)
        done = 0
        for chunk, begin, end in self._chunks_in(lower, upper):
            inserted = chunk.timestamps
            times[done : done + end - begin] = inserted if isinstance(inserted, int) else inserted[begin:end]
            done += end - begin
        return times

    def insertion_times_at(self, rowids: Rowids) -> Timestamps:
        """Return the timestamps at which these rows were inserted, in the order of `rowids`."""
        times = np.empty(len(rowids), np.int64)
        for chunk, inside, at in self._chunks_of(rowids):
            inserted = chunk.timestamps
            times[at] = inserted if isinstance(inserted, int) else inserted[inside]
        return times

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

        type, access: ignored; values in memory have the column's own type.
        Cost: no copy if the rows are in one chunk and have no changes.
        """
        base = self._base(column, lower, upper)
        rows, values = resolve((), self.deltas.levels(column.id), snapshot, lower, upper)
        if values is None:
            return base
        count_applied(stats, len(rows))
        return patch(base, rows - lower, adapt(values, column.type.arrow))

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

        among: a mask of the rows [lower, upper) to test. The others do not pass. None: test all.
        """
        mask = test.mask(self.decode(test.column, snapshot, lower, upper, stats))
        return mask if among is None else np.logical_and(mask, among, out=mask)

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

        type, within: ignored; values in memory have the column's own type.
        """
        positions = rowids.positions if isinstance(rowids, Ordinals) else rowids
        return self.rows((column,), snapshot, positions, stats)[0]

    def rows(
        self,
        columns: Sequence[ColumnSchema],
        snapshot: int,
        rowids: Rowids,
        stats: RowSetStats | None = None,
    ) -> list[pa.Array]:
        """Return the values of several columns for these rows: one `gather` per column."""
        chunks = list(self._chunks_of(rowids))
        arrays = []
        for column in columns:
            array = _gather_chunks(column, chunks)
            if column.id in self.deltas.column_ids:
                positions, values = resolve_at((), self.deltas.levels(column.id), snapshot, rowids)
                if values is not None:
                    count_applied(stats, len(positions))
                    array = patch(array, positions, adapt(values, column.type.arrow))
            arrays.append(array)
        return arrays

    def is_live(self, snapshot: int, rowid: int) -> bool:
        """Return whether one row is alive at `snapshot`."""
        if LIVENESS in self.deltas.column_ids:
            cell = self.deltas.cells(rowid, {LIVENESS}, snapshot).get(LIVENESS)
            if cell is not None:
                values, at = cell
                return bool(values[at].as_py())
        state = self._state
        return state.timestamp_max <= snapshot or bool(self.insertion_times(rowid, rowid + 1)[0] <= snapshot)

    def row(self, columns: Sequence[ColumnSchema], snapshot: int, rowid: int) -> list[Any]:
        """Return one row at `snapshot` as Python values."""
        state = self._state
        number = bisect_right(state.starts, rowid) - 1
        chunk, inside = state.chunks[number], rowid - state.starts[number]
        changed = self.deltas.column_ids.intersection(column.id for column in columns)
        cells = self.deltas.cells(rowid, changed, snapshot) if changed else {}
        values = []
        for column in columns:
            cell = cells.get(column.id)
            if cell is None:
                known = column.id in chunk.column_ids
                cell = (chunk.column(column.id), inside) if known else (default_array(column, 1, "read"), 0)
            values.append(adapted_value_at(*cell, column.type.arrow))
        return values

    # --- flushing ---------------------------------------------------------------------------------

    def image(self, snapshot: int, schema: Schema | None = None) -> RowSetImage:
        """Return the rows and changes up to `snapshot`, in key order, as a flush writes them.

        schema: the columns to write; None: the columns of this rowset. Rows that are older than a
                column get its `read_default`.
        Changes after `snapshot` are left out. The caller gets them from `deltas.batches_after`, and
        adds them to the DeltaMemStore of the new rowset. The image's `positions` has the new rowid
        for each old rowid, or -1 if the row is not in the image.
        """
        state = self._state
        ordered = state.keys.sorted(state.row_count)
        keys, rowids = ordered.keys, ordered.rowids
        if state.timestamp_max > snapshot:
            visible = np.flatnonzero(self.insertion_times(0, state.row_count)[rowids] <= snapshot)
            keys, rowids = keys.take(visible), rowids[visible]
        count = len(rowids)
        positions = np.full(state.row_count, NO_ROWID, np.int64)
        positions[rowids] = np.arange(count)

        columns: dict[int, pa.Array] = {}
        undo: dict[int, DeltaRun] = {}
        is_ordered = np.array_equal(rowids, np.arange(state.row_count))
        for column in (schema or self.schema).columns:
            base = whole_column(self._base_parts(column, 0, state.row_count))
            if not is_ordered:
                base = take(base, rowids)
            redo = self._changes_until(column.id, snapshot, positions, column)
            if redo is not None:
                if redo.values.type != base.type:
                    redo = DeltaRun(redo.kind, redo.rowids, redo.timestamps, redo.values.cast(base.type))
                base, undo[column.id] = redo_to_undo(base, redo)
            columns[column.id] = base

        inserted = insertion_undo(np.arange(count), self.insertion_times_at(rowids)) if count else None
        liveness = None
        redo = self._changes_until(LIVENESS, snapshot, positions, None)
        if redo is not None:
            liveness, changed = redo_to_undo(pa.array(np.ones(count, np.bool_)), redo)
            inserted = join_undo(inserted, changed)
            if liveness.true_count == count:
                liveness = None
        if inserted is not None:
            undo[LIVENESS] = inserted
        return RowSetImage(keys, columns, liveness, undo, positions)

    def _changes_until(
        self, column_id: int, snapshot: int, positions: Rowids, column: ColumnSchema | None
    ) -> DeltaRun | None:
        run = self.deltas.run(column_id)
        if run is None:
            return None
        # No change is older than its row's insertion, so each of these changes has a position.
        run = run.between(-1, snapshot).moved(positions)
        if not len(run):
            return None
        if column is None:
            return run
        return DeltaRun(run.kind, run.rowids, run.timestamps, adapt(run.values, column.type.arrow))

    # --- the base ---------------------------------------------------------------------------------

    def _base(self, column: ColumnSchema, lower: int, upper: int) -> pa.Array:
        parts = self._base_parts(column, lower, upper)
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)

    def _base_parts(self, column: ColumnSchema, lower: int, upper: int) -> list[pa.Array]:
        """Return the column's rows [lower, upper) as inserted, as one or more arrays."""
        parts = [
            chunk.column(column.id).slice(begin, end - begin)
            if column.id in chunk.column_ids
            else default_array(column, end - begin, "read")
            for chunk, begin, end in self._chunks_in(lower, upper)
        ]
        return [adapt(part, column.type.arrow) for part in parts] or [pa.array([], column.type.arrow)]

    def _chunks_in(self, lower: int, upper: int) -> Iterator[tuple[_Chunk, int, int]]:
        """Yield (chunk, begin, end) for rows [lower, upper); begin and end are positions in the chunk."""
        state = self._state
        assert 0 <= lower <= upper <= state.row_count, (lower, upper, state.row_count)
        for chunk, start in zip(state.chunks, state.starts, strict=True):
            begin, end = max(lower, start) - start, min(upper, start + chunk.row_count) - start
            if begin < end:
                yield chunk, begin, end

    def _chunks_of(self, rowids: Rowids) -> Iterator[tuple[_Chunk, Rowids, Rowids]]:
        """Yield (chunk, rows of the chunk, their positions in `rowids`) for these rows."""
        state = self._state
        if not len(rowids):
            return
        if len(state.chunks) == 1:
            yield state.chunks[0], rowids, np.arange(len(rowids))
            return
        which = np.searchsorted(np.array(state.starts), rowids, side="right") - 1
        for number in np.unique(which).tolist():
            at = np.flatnonzero(which == number)
            yield state.chunks[number], rowids[at] - state.starts[number], at

    def check(self) -> None:
        """Assert that the rows, the key index and the changes fit one another.

        Each key has one row. Each chunk (rows of consecutive inserts) begins where the chunk before
        it ends, and is smaller if the two could be merged. No change is older than its row.

        Cost: reads everything once.
        """
        state = self._state
        state.keys.check(state.row_count)
        end = 0
        for chunk, start in zip(state.chunks, state.starts, strict=True):
            assert start == end, "R3: chunks must be adjacent"
            end += chunk.row_count
        assert end == state.row_count, "R3: chunks must hold every row"
        for older, newer in pairwise(state.chunks):
            assert older.row_count > MERGE_RATIO * newer.row_count or not _joinable(older, newer), (
                "R3: chunks must shrink geometrically"
            )
        rowids = np.arange(state.row_count)
        assert (self.find(self.keys_of(rowids)) == rowids).all(), (
            "R2: the index must find each row by its key"
        )
        times = self.insertion_times(0, state.row_count)
        if state.row_count:
            assert (int(times.min()), int(times.max())) == (state.timestamp_min, state.timestamp_max)
        self.deltas.check()
        for column_id in self.deltas.column_ids:
            run = self.deltas.run(column_id)
            assert run is not None
            assert run.rowids[-1] < state.row_count, "a change must refer to an existing row"
            assert (run.timestamps >= times[run.rowids]).all(), (
                "a change must not precede the row's insertion"
            )


def _gather_chunks(column: ColumnSchema, chunks: Sequence[tuple[_Chunk, Rowids, Rowids]]) -> pa.Array:
    """Return the column's values as inserted, for rows in several chunks.

    chunks: the result of `_chunks_of(rowids)`. The values are in the order of these rowids.
    """
    parts, positions = [], []
    for chunk, inside, at in chunks:
        if column.id in chunk.column_ids:
            part = take(chunk.column(column.id), inside)
        else:
            part = default_array(column, len(inside), "read")
        parts.append(adapt(part, column.type.arrow))
        positions.append(at)
    if not parts:
        return pa.array([], column.type.arrow)
    if len(parts) == 1:
        return parts[0]
    order = np.concatenate(positions)
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    return take(pa.concat_arrays(parts), back)
