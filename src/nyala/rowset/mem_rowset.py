"""The MemRowSet: rows that were inserted and not yet flushed.

It is a rowset like any other: a base (the rows as inserted), REDO (its DeltaMemStore) and rowids that are positions in
the base. The base is columnar and grows at its end:

    rowid   0 ............... 70,000 ........ 90,000 .. 95,000
    chunks  [    merged      ][   merged     ][ insert ][i][i]      values by column, made contiguous when read
    index   key -> rowid      see `key_runs`
    deltas  LIVENESS, values  from the insertion on: DELETE, UPDATE, REINSERT

An insert stays a slice (batch, offset, length) of a batch that it shares with other tablets, until somebody reads
a column; then chunks of like size are joined, column by column, so that each value is copied O(log rows) times. What
is read once is not kept twice: the joined array replaces its parts.

Visibility. A row is there from its insertion's timestamp on, as far as LIVENESS does not say otherwise. A key has at
most one row here: if it is dead, inserting the key again is a REINSERT of that row, a change like an UPDATE of all
columns (rule R5).

Invariants
    R1  Rowids are the order of arrival and never change.
    R2  A key has exactly one row.
    R3  Chunks follow one another without a gap, and each has more than MERGE_RATIO times the rows of the next, as far
        as they have the same columns.
    R4  All states that were ever published are prefixes of one another: a reader sees whole inserts only.
    R5  What a reader sees of timestamps <= T does not change once T is published.

Threads: `insert`, and appending to `deltas`, by one thread at a time, which holds the database's commit lock; all
else from any thread, without a lock: the state is one immutable tuple in one attribute, replaced as a whole.
Left out: history older than the ancient history mark (nothing is dropped before or by a flush).
Source: Kudu tablet design, "MVCC Mutations in MemRowSet"; docs/design/kudu.md, "Rows in a MemRowSet". Departure: no
B-tree of rows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile.blocks.ordinals import Ordinals
from nyala.cfile.blocks.read_stats import Access
from nyala.delta.applier import decide, patch, resolve_at
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
from nyala.rowset.stats import RowSetStats
from nyala.schema.adapter import adapt
from nyala.schema.arrow_values import adapted_at
from nyala.schema.conversion.convert import default_array
from nyala.schema.plain_arrays import booleans_of
from nyala.schema.schema import ColumnSchema, Schema

if TYPE_CHECKING:
    from nyala.schema.predicates.column_test import ColumnTest

__all__ = ["MemRowSet", "RowSetImage", "SharedBatch"]

MERGE_RATIO: Final = 4
# As in the DeltaMemStore: an insert costs some 2 KB of objects, so many small ones are joined by the writer.
_SMALL_INSERTS: Final = 64
_SMALL_ROWS: Final = 256
_OVERHEAD_BYTES: Final = 2048
# Text columns have 32-bit offsets; joining chunks beyond this could pass them.
_CHUNK_BYTES_MAX: Final = 1 << 30

Bools = npt.NDArray[np.bool_]


class _Insert:
    """One call of `insert`, as it came."""

    __slots__ = ("batch", "offset")

    def __init__(self, batch: SharedBatch, offset: int) -> None:
        self.batch = batch
        self.offset = offset


class _Chunk:
    """The rows of some inserts that follow one another.

    `content` is the one insert, or the two chunks that it was made of, or once every column was joined, all of them.
    `cache` has the columns joined before that; whatever is in it can be joined again from `content`.
    """

    __slots__ = (
        "cache", "column_ids", "content", "data_bytes", "insert_count", "row_count", "timestamp_max", "timestamp_min",
        "timestamps",
    )  # fmt: skip

    def __init__(
        self,
        content: _Insert | tuple[_Chunk, _Chunk],
        column_ids: frozenset[int],
        row_count: int,
        insert_count: int,
        data_bytes: int,
        timestamp_min: int,
        timestamp_max: int,
        timestamps: int | Timestamps | None,
    ) -> None:
        self.content: _Insert | tuple[_Chunk, _Chunk] | dict[int, pa.Array] = content
        self.cache: dict[int, pa.Array] = {}
        self.column_ids = column_ids
        self.row_count = row_count
        self.insert_count = insert_count
        self.data_bytes = data_bytes
        self.timestamp_min = timestamp_min
        self.timestamp_max = timestamp_max
        self.timestamps = timestamps  # one for all rows, or a vector, or None: not joined yet

    @staticmethod
    def of_insert(batch: SharedBatch, offset: int, length: int, timestamps: int | Timestamps) -> _Chunk:
        if isinstance(timestamps, np.ndarray):
            low, high = int(timestamps.min()), int(timestamps.max())
        else:
            low = high = timestamps
        return _Chunk(
            _Insert(batch, offset), batch.column_ids, length, 1, int(length * batch.bytes_per_row),
            low, high, timestamps,
        )  # fmt: skip

    @staticmethod
    def of_chunks(left: _Chunk, right: _Chunk) -> _Chunk:
        low, high = min(left.timestamp_min, right.timestamp_min), max(left.timestamp_max, right.timestamp_max)
        return _Chunk(
            (left, right),
            left.column_ids,
            left.row_count + right.row_count,
            left.insert_count + right.insert_count,
            left.data_bytes + right.data_bytes,
            low,
            high,
            low if low == high else None,
        )

    def column(self, column_id: int) -> pa.Array:
        """One of `column_ids`, as inserted."""
        array = self.cache.get(column_id)
        if array is not None:
            return array
        content = self.content
        if isinstance(content, dict):
            return content[column_id]
        if isinstance(content, _Insert):
            return content.batch.columns[column_id].slice(content.offset, self.row_count)
        parts = self._parts(column_id)
        if not parts:  # another thread has joined it meanwhile
            return self.column(column_id)
        array = pa.concat_arrays([part.column(column_id) for part in parts])
        for half in content:
            # The array here has it all. A reader of an older state, who still has the half, joins it again.
            half.cache.pop(column_id, None)
        self.cache[column_id] = array
        if len(self.cache) == len(self.column_ids):
            self._let_go(dict(self.cache))
        return array

    def times(self) -> int | Timestamps:
        """When the rows were inserted: one timestamp for all, or one each."""
        if self.timestamps is None:
            parts = self._parts(None)
            if parts:
                times = [part.times() for part in parts]
                counts = [part.row_count for part in parts]
                if all(isinstance(time, int) for time in times):
                    self.timestamps = np.repeat(np.array(times, np.int64), counts)
                else:
                    vectors = [
                        np.full(count, time, np.int64) if isinstance(time, int) else time
                        for time, count in zip(times, counts, strict=True)
                    ]
                    self.timestamps = np.concatenate(vectors)
        # Without parts: whoever put all joined columns in their place had joined the timestamps before.
        assert self.timestamps is not None
        return self.timestamps

    def join(self) -> None:
        """Join every column, so that the inserts are let go."""
        parts = self._parts(None)
        if parts:
            self._let_go(
                _joined_at_once(parts)
                or {
                    number: pa.concat_arrays([part.column(number) for part in parts])
                    for number in self.column_ids
                }
            )

    def _parts(self, column_id: int | None) -> list[_Chunk]:
        """The chunks in which the column, or with None no column, is joined already, in order; none if it is here.

        Joining many small inserts is one call this way, not a call for each of the merges that were put off.
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

    def _let_go(self, columns: dict[int, pa.Array]) -> None:
        """Keep the joined columns in place of the parts, if they are all there."""
        # A copied cache may have lost a column to the chunk above, which another thread is joining.
        if len(columns) == len(self.column_ids):
            self.times()
            self.content = columns
            self.insert_count = 1


def _joined_at_once(parts: Sequence[_Chunk]) -> dict[int, pa.Array] | None:
    """The columns of parts that came as batches, and of such as were joined before; None: join them one by one.

    Cost: one Arrow call, where 64 inserts of 16 columns are a thousand slices.
    """
    like = next((part.content.batch.batch for part in parts if isinstance(part.content, _Insert)), None)
    if like is None:
        return None
    ids = [int(name) for name in like.schema.names]
    batches = []
    for part in parts:
        content = part.content
        if isinstance(content, _Insert):
            batch = content.batch.batch
            if batch is not None and batch.num_rows != part.row_count:
                batch = batch.slice(content.offset, part.row_count)
        elif isinstance(content, dict):
            batch = pa.RecordBatch.from_arrays([content[number] for number in ids], names=like.schema.names)
        else:
            batch = None
        # An alteration may have come in between.
        if batch is None or not batch.schema.equals(like.schema):
            return None
        batches.append(batch)
    return dict(zip(ids, pa.concat_batches(batches).columns, strict=True))


def _joinable(left: _Chunk, right: _Chunk) -> bool:
    """Whether two chunks have the same columns (others came with an alteration) and fit into one."""
    return left.column_ids == right.column_ids and left.data_bytes + right.data_bytes <= _CHUNK_BYTES_MAX


class _State(NamedTuple):
    chunks: tuple[_Chunk, ...]
    starts: tuple[int, ...]  # rowid of each chunk's first row
    row_count: int
    keys: KeyRuns
    timestamp_min: int
    timestamp_max: int


class MemRowSet:
    """Rows in memory (see the module). One per tablet takes inserts; frozen ones are on their way to disk."""

    def __init__(self, codec: KeyCodec, schema: Schema) -> None:
        self.codec = codec
        self.schema = schema
        self.deltas = DeltaMemStore()
        self.frozen_at: int | None = None
        """The timestamp at which it stopped taking inserts, set by the flush that freezes it."""
        self._state = _State((), (), 0, KeyRuns(codec.empty()), MAX_TIMESTAMP, -1)
        self._order: tuple[int, Rowids] | None = None

    # --- writing ----------------------------------------------------------------------------------

    def insert(
        self,
        keys: EncodedKeys | SharedKeys,
        batch: SharedBatch,
        offset: int,
        length: int,
        timestamps: int | Timestamps,
    ) -> int:
        """Add the rows [offset, offset + length) of `batch`; returns the rowid of the first.

        keys:       of these rows (or SharedKeys: of all rows of the batch), strictly ascending; none of them has a row
                    here, dead or alive (R2).
        batch:      columns by column id, key columns among them. One that is missing reads as its read default.
        timestamps: of the insertion, one for all or one each.
        Caller:     holds the commit lock, and has checked everything: nothing fails here (rule W3).
        Cost:       O(1) NumPy calls and no Arrow call, whatever the number of columns; every 64 small inserts a
                    join of them, every 4,096 keys a merge of keys.
        """
        assert self.frozen_at is None, "a frozen MemRowSet takes no inserts"
        old = self._state
        if not length:
            return old.row_count
        if isinstance(keys, SharedKeys):
            key_runs = old.keys.insert(keys, offset, length, old.row_count)
        else:
            assert len(keys) == length, (len(keys), length)
            key_runs = old.keys.insert(SharedKeys(keys), 0, length, old.row_count)
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

    # --- looking up -------------------------------------------------------------------------------

    def find(self, keys: EncodedKeys) -> Rowids:
        """The rowid of each key, in any order, or -1. Dead rows are found as well."""
        state = self._state
        return state.keys.find(keys, state.row_count)

    def find_one(self, key: EncodedKeys) -> int:
        """`find` of one key."""
        state = self._state
        return state.keys.find_one(key, state.row_count)

    @property
    def key_runs(self) -> KeyRuns:
        """The key index as it is now, for who looks into many tablets' tails at once. Under the commit lock."""
        return self._state.keys

    @property
    def may_have_dead(self) -> bool:
        """Whether any row was deleted: what the applied state has no liveness of is there."""
        return LIVENESS in self.deltas.column_ids

    def live(self, rowids: Rowids) -> Bools:
        """Whether each row is there in the applied state. Cost: as `gather_liveness`."""
        return self.gather_liveness(MAX_TIMESTAMP, rowids)

    @property
    def row_count(self) -> int:
        """Rows ever inserted, dead ones too."""
        return self._state.row_count

    @property
    def nbytes(self) -> int:
        """Bytes held, about: rows, keys and deltas."""
        state = self._state
        rows = sum(chunk.data_bytes + _OVERHEAD_BYTES * chunk.insert_count for chunk in state.chunks)
        return rows + state.keys.nbytes + self.deltas.nbytes

    @property
    def timestamp_min(self) -> int | None:
        """The least timestamp of an insertion or a change; None when there is none."""
        times = [self._state.timestamp_min, self.deltas.timestamp_min]
        least = min(time for time in times if time is not None)
        return None if least == MAX_TIMESTAMP else least

    @property
    def timestamp_max(self) -> int | None:
        """The greatest timestamp of an insertion or a change; None when there is none."""
        times = [self._state.timestamp_max, self.deltas.timestamp_max]
        greatest = max(time for time in times if time is not None)
        return None if greatest < 0 else greatest

    # --- reading (the same names as in DiskRowSet) ------------------------------------------------

    def rowids_in(self, key_range: KeyRange) -> Rowids | slice:
        """The rows with a key in the range: a slice of rowids when they are all rows, else ascending rowids."""
        state = self._state
        if key_range.is_all:
            return slice(0, state.row_count)
        return state.keys.rowids_in(key_range, state.row_count)

    def order(self) -> Rowids:
        """All rowids in the order of their keys. Kept until the next insert."""
        state, known = self._state, self._order
        if known is not None and known[0] == state.row_count:
            return known[1]
        rowids = state.keys.sorted(state.row_count).rowids
        self._order = (state.row_count, rowids)
        return rowids

    def keys_of(self, rowids: Rowids) -> EncodedKeys:
        """The keys of these rows, in their order."""
        return self.codec.encode([self._gather_base(column, rowids) for column in self.schema.key_columns])

    def liveness(
        self, snapshot: int, lower: int, upper: int, stats: RowSetStats | None = None
    ) -> Bools | None:
        """Whether each of the rows [lower, upper) is there at `snapshot`; None when all are."""
        alive: Bools | None = None
        if self._state.timestamp_max > snapshot:
            alive = self.insertion_times(lower, upper) <= snapshot
        rows, values = decide((), self.deltas.levels(LIVENESS), snapshot, lower, upper)
        if values is not None:
            # A deletion or reinsertion is later than the insertion, so it has the last word.
            alive = np.ones(upper - lower, np.bool_) if alive is None else alive
            alive[rows - lower] = booleans_of(values)
            _count(stats, len(rows))
        return None if alive is None or alive.all() else alive

    def gather_liveness(self, snapshot: int, rowids: Rowids) -> Bools:
        """Whether each of these rows is there at `snapshot`.

        Cost: O(rows asked for · log records), whatever the rowset holds, once the levels that changed are resolved.
        """
        if self._state.timestamp_max > snapshot:
            alive = self.insertion_times_at(rowids) <= snapshot
        else:
            alive = np.ones(len(rowids), np.bool_)
        places, values = resolve_at((), self.deltas.levels(LIVENESS), snapshot, rowids)
        if values is not None:
            alive[places] = booleans_of(values)
        return alive

    def insertion_times(self, lower: int, upper: int) -> Timestamps:
        """When each of the rows [lower, upper) was inserted: before, it was not there."""
        times = np.empty(upper - lower, np.int64)
        done = 0
        for chunk, begin, end in self._chunks_in(lower, upper):
            of_chunk = chunk.times()
            times[done : done + end - begin] = (
                of_chunk[begin:end] if isinstance(of_chunk, np.ndarray) else of_chunk
            )
            done += end - begin
        return times

    def insertion_times_at(self, rowids: Rowids) -> Timestamps:
        """`insertion_times` of these rows, in their order."""
        times = np.empty(len(rowids), np.int64)
        for chunk, inside, at in self._chunks_of(rowids):
            of_chunk = chunk.times()
            times[at] = of_chunk[inside] if isinstance(of_chunk, np.ndarray) else of_chunk
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
        """The column's rows [lower, upper) at `snapshot`. Of a row that is not there, any value.

        type, access: without effect: values in memory lie in the column's own type.
        Cost: no copy when the rows are in one chunk and have no changes.
        """
        base = self._base(column, lower, upper)
        rows, values = decide((), self.deltas.levels(column.id), snapshot, lower, upper)
        if values is None:
            return base
        _count(stats, len(rows))
        return patch(base, rows - lower, _as(values, column))

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
        """A mask of the rows [lower, upper) that satisfy a test of one column, and are `among` those that matter."""
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
        """The column at these rows, in their order, at `snapshot`. Of a row that is not there, any value.

        type, within: without effect.
        """
        places = rowids.positions if isinstance(rowids, Ordinals) else rowids
        return self.rows((column,), snapshot, places, stats)[0]

    def rows(
        self,
        columns: Sequence[ColumnSchema],
        snapshot: int,
        rowids: Rowids,
        stats: RowSetStats | None = None,
    ) -> list[pa.Array]:
        """`gather` of several columns. Cost: where the rows lie is worked out once for all of them."""
        chunks = list(self._chunks_of(rowids))
        arrays = []
        for column in columns:
            array = _gather_chunks(column, chunks)
            if column.id in self.deltas.column_ids:
                places, values = resolve_at((), self.deltas.levels(column.id), snapshot, rowids)
                if values is not None:
                    _count(stats, len(places))
                    array = patch(array, places, _as(values, column))
            arrays.append(array)
        return arrays

    def is_live(self, snapshot: int, rowid: int) -> bool:
        """`gather_liveness` of one row."""
        if LIVENESS in self.deltas.column_ids:
            said = self.deltas.cells(rowid, {LIVENESS}, snapshot).get(LIVENESS)
            if said is not None:
                values, at = said
                return bool(values[at].as_py())
        state = self._state
        return state.timestamp_max <= snapshot or bool(self.insertion_times(rowid, rowid + 1)[0] <= snapshot)

    def row(self, columns: Sequence[ColumnSchema], snapshot: int, rowid: int) -> list[Any]:
        """One row at `snapshot`, as Python values. Cost: no array is made of what was not changed."""
        state = self._state
        number = bisect_right(state.starts, rowid) - 1
        chunk, inside = state.chunks[number], rowid - state.starts[number]
        changed = self.deltas.column_ids.intersection(column.id for column in columns)
        cells = self.deltas.cells(rowid, changed, snapshot) if changed else {}
        found = []
        for column in columns:
            cell = cells.get(column.id)
            if cell is None:
                known = column.id in chunk.column_ids
                cell = (chunk.column(column.id), inside) if known else (default_array(column, 1, "read"), 0)
            found.append(adapted_at(*cell, column.type.arrow))
        return found

    # --- flushing ---------------------------------------------------------------------------------

    def image(self, snapshot: int, schema: Schema | None = None) -> RowSetImage:
        """What a flush writes: the rows inserted up to `snapshot`, in key order, with their history.

        schema: the columns to write; its own when None. A column that the rows were inserted without is written
                as what it reads.
        Changes newer than `snapshot` are not in it: `deltas.batches_after(snapshot)`, moved by the image's `positions`,
        belong into the DeltaMemStore of the rowset made of it.
        """
        state = self._state
        ordered = state.keys.sorted(state.row_count)
        keys, rowids = ordered.keys, ordered.rowids
        if state.timestamp_max > snapshot:
            there = np.flatnonzero(self.insertion_times(0, state.row_count)[rowids] <= snapshot)
            keys, rowids = keys.take(there), rowids[there]
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
        # A record's row was inserted no later than the record, so it has a position.
        run = run.between(-1, snapshot).moved(positions)
        if not len(run):
            return None
        return (
            run if column is None else DeltaRun(run.kind, run.rowids, run.timestamps, _as(run.values, column))
        )

    # --- the base ---------------------------------------------------------------------------------

    def _base(self, column: ColumnSchema, lower: int, upper: int) -> pa.Array:
        parts = self._base_parts(column, lower, upper)
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)

    def _base_parts(self, column: ColumnSchema, lower: int, upper: int) -> list[pa.Array]:
        """The rows of one chunk after the other; one part at least."""
        parts = [
            chunk.column(column.id).slice(begin, end - begin)
            if column.id in chunk.column_ids
            else default_array(column, end - begin, "read")
            for chunk, begin, end in self._chunks_in(lower, upper)
        ]
        return [_as(part, column) for part in parts] or [pa.array([], column.type.arrow)]

    def _chunks_in(self, lower: int, upper: int) -> Iterator[tuple[_Chunk, int, int]]:
        """The chunks that hold rows of [lower, upper), and which of theirs these are."""
        state = self._state
        assert 0 <= lower <= upper <= state.row_count, (lower, upper, state.row_count)
        for chunk, start in zip(state.chunks, state.starts, strict=True):
            begin, end = max(lower, start) - start, min(upper, start + chunk.row_count) - start
            if begin < end:
                yield chunk, begin, end

    def _gather_base(self, column: ColumnSchema, rowids: Rowids) -> pa.Array:
        return _gather_chunks(column, list(self._chunks_of(rowids)))

    def _chunks_of(self, rowids: Rowids) -> Iterator[tuple[_Chunk, Rowids, Rowids]]:
        """The chunks that hold some of these rows: (chunk, which of its rows, at which places of `rowids`)."""
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
        """Assert R1 to R3 and those of the index and the deltas. Cost: a pass over everything."""
        state = self._state
        state.keys.check(state.row_count)
        end = 0
        for chunk, start in zip(state.chunks, state.starts, strict=True):
            assert start == end, "R3: chunks follow one another"
            end += chunk.row_count
        assert end == state.row_count, "R3: chunks hold every row"
        for older, newer in pairwise(state.chunks):
            assert older.row_count > MERGE_RATIO * newer.row_count or not _joinable(older, newer), (
                "R3: geometric"
            )
        rowids = np.arange(state.row_count)
        assert (self.find(self.keys_of(rowids)) == rowids).all(), "R2: the index finds each row by its key"
        times = self.insertion_times(0, state.row_count)
        if state.row_count:
            assert (int(times.min()), int(times.max())) == (state.timestamp_min, state.timestamp_max)
        self.deltas.check()
        for column_id in self.deltas.column_ids:
            run = self.deltas.run(column_id)
            assert run is not None
            assert run.rowids[-1] < state.row_count, "a change of a row that is not there"
            assert (run.timestamps >= times[run.rowids]).all(), "a change before its row's insertion"


def _gather_chunks(column: ColumnSchema, chunks: Sequence[tuple[_Chunk, Rowids, Rowids]]) -> pa.Array:
    """The column as inserted, at the rows that `_chunks_of` gave, in the order in which they were asked for."""
    parts, places = [], []
    for chunk, inside, at in chunks:
        if column.id in chunk.column_ids:
            part = take(chunk.column(column.id), inside)
        else:
            part = default_array(column, len(inside), "read")
        parts.append(_as(part, column))
        places.append(at)
    if not parts:
        return pa.array([], column.type.arrow)
    if len(parts) == 1:
        return parts[0]
    order = np.concatenate(places)
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    return take(pa.concat_arrays(parts), back)


def _as(array: pa.Array, column: ColumnSchema) -> pa.Array:
    """Values in the type that the column has in the schema that is read, whenever they were written."""
    return adapt(array, column.type.arrow)


def _count(stats: RowSetStats | None, deltas_applied: int) -> None:
    if stats is not None:
        stats.deltas_applied += deltas_applied
