"""The MemRowSet by itself: what it promises its writer, its readers and the flush."""

from __future__ import annotations

import dataclasses
import threading
from functools import cached_property

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import calls_of

from nyala.delta.batch import SharedBatch
from nyala.delta.run import LIVENESS, MAX_TIMESTAMP
from nyala.keys.codec import KeyCodec
from nyala.keys.key_range import KeyRange
from nyala.rowset.mem_rowset import MemRowSet
from nyala.schema.schema import ColumnSchema, Schema, build_schema
from nyala.schema.types import parse_type

SCHEMA = build_schema({"k": "int64", "val": "int64", "text": "string"}, ["k"])
K, VAL, TEXT = SCHEMA.columns
CODEC = KeyCodec([K.type])


def keys(*numbers: int):
    return CODEC.encode([pa.array(numbers, pa.int64())])


def batch(numbers: list[int], factor: int = 10) -> SharedBatch:
    return SharedBatch(
        {
            K.id: pa.array(numbers, pa.int64()),
            VAL.id: pa.array([factor * n for n in numbers], pa.int64()),
            TEXT.id: pa.array([f"t{n}" for n in numbers]),
        }
    )


def memory(*groups: tuple[int, list[int]], schema: Schema = SCHEMA) -> MemRowSet:
    """A MemRowSet with one insert per (timestamp, keys)."""
    rows = MemRowSet(CODEC, schema)
    for timestamp, numbers in groups:
        rows.insert(keys(*numbers), batch(numbers), 0, len(numbers), timestamp)
    return rows


def test_r1_rowids_are_the_order_of_arrival():
    """A change finds its row by rowid: it must not move when rows with smaller keys arrive."""
    rows = MemRowSet(CODEC, SCHEMA)
    shared = batch([9, 1, 3, 5])
    assert rows.insert(keys(1, 3), shared, 1, 2, 5) == 0
    assert rows.insert(keys(0, 2), batch([0, 2]), 0, 2, 6) == 2
    assert rows.find(keys(0, 1, 2, 3, 4)).tolist() == [2, 0, 3, 1, -1]
    assert rows.column(VAL, MAX_TIMESTAMP, 0, 4).to_pylist() == [10, 30, 0, 20]
    assert rows.gather(TEXT, MAX_TIMESTAMP, np.array([3, 0, 3])).to_pylist() == ["t2", "t1", "t2"]
    assert rows.order().tolist() == [2, 0, 3, 1]
    assert rows.keys_of(rows.order()).is_strictly_ascending()
    rows.check()


class _Untouchable:
    """Stands for a column: whatever is asked of it is an Arrow call too many."""

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"the column was asked for {name!r}")

    def __len__(self) -> int:
        raise AssertionError("the column was asked for its length")


class _Weighed(SharedBatch):
    @cached_property
    def bytes_per_row(self) -> float:
        return 100.0


def test_an_insert_makes_no_call_per_column():
    """A batch over 64 tablets and 16 columns must not cost 1,024 calls: each tablet keeps (batch, offset, length)."""
    shared = _Weighed({number: _Untouchable() for number in range(10, 26)})  # type: ignore[misc]
    tablets = [MemRowSet(CODEC, SCHEMA) for _ in range(64)]
    for offset, tablet in enumerate(tablets):
        tablet.insert(keys(offset), shared, offset, 1, 5)
        tablet.deltas.append(np.array([0]), 6, shared, offset)
    assert all(tablet.row_count == 1 and tablet.deltas.record_count == 1 for tablet in tablets)


def test_thousands_of_small_inserts_become_few_chunks():
    """Thousands of inserts must not stay thousands of Python objects, nor thousands of pieces to read."""
    rows = MemRowSet(CODEC, SCHEMA)
    for start in range(0, 20_000, 4):
        numbers = list(range(start, start + 4))
        rows.insert(keys(*numbers), batch(numbers), 0, 4, start + 1)
    rows.check()
    assert rows.nbytes < 20_000 * 300
    assert len(rows._state.chunks) <= 8
    assert rows.column(VAL, MAX_TIMESTAMP, 0, 20_000).equals(pa.array(range(0, 200_000, 10), pa.int64()))
    alive = rows.liveness(10_000, 0, 20_000)
    assert alive is not None and alive.sum() == 10_000


def as_one_batch(shared: SharedBatch) -> SharedBatch:
    """The same, as a write of data that is ready leaves it."""
    names = [str(number) for number in shared.columns]
    return SharedBatch(
        shared.columns, batch=pa.RecordBatch.from_arrays(list(shared.columns.values()), names=names)
    )


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.sampled_from(["batch", "batch", "part"])), min_size=64, max_size=140
    ),
    st.sets(st.integers(0, 139), max_size=3),
)
def test_small_inserts_that_came_as_batches_are_joined_as_the_others(
    drawn: list[tuple[int, str]], as_columns: set[int]
) -> None:
    """A row would have another row's values, or the two kinds of insert would not stay in their order."""
    rows, expected = MemRowSet(CODEC, SCHEMA), []
    for number, (count, form) in enumerate(drawn):
        first = len(expected)
        numbers = list(range(first, first + count))
        expected += numbers
        offset = 0
        if number in as_columns:
            shared = batch(numbers)
        elif form == "batch":
            shared = as_one_batch(batch(numbers))
        else:  # others of the batch went to another tablet
            shared, offset = as_one_batch(batch([-1, -2, *numbers, -3])), 2
        rows.insert(keys(*numbers), shared, offset, count, first + 1)
    rows.check()
    assert max(chunk.insert_count for chunk in rows._state.chunks) < 64
    for column, values in (
        (K, expected),
        (VAL, [10 * n for n in expected]),
        (TEXT, [f"t{n}" for n in expected]),
    ):
        assert rows.column(column, MAX_TIMESTAMP, 0, len(expected)).to_pylist() == values


def test_batches_of_different_schemas_are_joined_column_by_column() -> None:
    """A join comes behind the log append, and must not fail there: the store would take no more writes."""
    rows = MemRowSet(CODEC, SCHEMA)
    for number in range(70):
        shared = as_one_batch(batch([number]))
        if number == 30:  # the same columns, in another order
            assert shared.batch is not None
            shared = dataclasses.replace(shared, batch=shared.batch.select([2, 0, 1]))
        rows.insert(keys(number), shared, 0, 1, number + 1)
    assert rows.column(VAL, MAX_TIMESTAMP, 0, 70).to_pylist() == list(range(0, 700, 10))


def test_calls_of_joining_what_came_as_batches_do_not_grow_with_the_columns() -> None:
    """Every 64th insert would take ten times as long as the others."""

    def calls(columns: int) -> int:
        rows = MemRowSet(CODEC, SCHEMA)
        arrays = [{10 + n: pa.array([number]) for n in range(columns)} for number in range(130)]
        inserts = [(keys(number), as_one_batch(SharedBatch(one))) for number, one in enumerate(arrays)]
        for _, shared in inserts:
            assert shared.bytes_per_row > 0  # computed once per batch, column by column

        def insert_all() -> None:
            for number, (key, shared) in enumerate(inserts):
                rows.insert(key, shared, 0, 1, number + 1)

        return calls_of(insert_all).total()

    assert calls(40) == calls(1)


def test_reading_does_not_keep_what_was_joined_twice():
    """A scan of memory must not double it: the joined columns take the place of the pieces."""
    rows = memory((1, list(range(1000))), (2, list(range(1000, 2000))))
    for column in SCHEMA.columns:
        rows.column(column, MAX_TIMESTAMP, 0, 2000)
    (chunk,) = rows._state.chunks
    assert isinstance(chunk.content, dict)
    assert rows.liveness(1, 0, 2000).sum() == 1000


def test_timestamps_may_be_one_for_each_row():
    """Replay gathers the rows of many log records into one insert: each keeps its own moment."""
    rows = MemRowSet(CODEC, SCHEMA)
    rows.insert(keys(1, 2, 3), batch([1, 2, 3]), 0, 3, np.array([7, 5, 9]))
    rows.insert(keys(4), batch([4]), 0, 1, 8)
    assert rows.liveness(7, 0, 4).tolist() == [True, True, False, False]
    assert rows.gather_liveness(8, np.array([3, 2, 1])).tolist() == [True, False, True]
    assert rows.liveness(9, 0, 4) is None
    assert (rows.timestamp_min, rows.timestamp_max) == (5, 9)
    rows.check()


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True), min_size=1, max_size=6),
    st.data(),
)
def test_a_row_by_itself_is_the_row_among_others(groups: list[list[int]], data: st.DataObject) -> None:
    """`get` goes this way: it would give another row, a value that was changed, or a column's old type."""
    schema, added = altered()
    rows = MemRowSet(CODEC, schema)
    for number, group in enumerate(groups):
        numbers = sorted(10 * number + n for n in group)
        rows.insert(keys(*numbers), batch(numbers), 0, len(numbers), 2 * number + 1)
        for at in data.draw(st.sets(st.integers(0, rows.row_count - 1), max_size=2)):
            rows.deltas.append(np.array([at]), 2 * number + 2, {VAL.id: pa.array([-number])})
        for at in data.draw(st.sets(st.integers(0, rows.row_count - 1), max_size=1)):
            rows.deltas.append(np.array([at]), 2 * number + 3, {LIVENESS: pa.array([False])})
    narrow = dataclasses.replace(VAL, type=parse_type("int32"))
    columns = [TEXT, VAL, narrow, added]
    for snapshot in (1, 4, MAX_TIMESTAMP):
        for rowid in range(rows.row_count):
            expected = [array[0].as_py() for array in rows.rows(columns, snapshot, np.array([rowid]))]
            assert rows.row(columns, snapshot, rowid) == expected
            assert rows.is_live(snapshot, rowid) == rows.gather_liveness(snapshot, np.array([rowid]))[0]


def test_dead_rows_are_found_but_not_live():
    """The writer must see that a key lies dead here, to bring the row back instead of adding a second one (R5)."""
    rows = memory((1, [1, 2]))
    rows.deltas.append(np.array([0]), 3, {LIVENESS: pa.array([False])})
    assert rows.find(keys(1, 2)).tolist() == [0, 1]
    assert rows.live(np.array([1, 0])).tolist() == [True, False]
    assert rows.gather_liveness(2, np.array([0])).tolist() == [True], "before it was deleted it was there"


@pytest.mark.parametrize(
    ("lower", "upper", "expected"),
    [(None, None, {1, 3, 5, 7}), (3, None, {3, 5, 7}), (None, 5, {1, 3}), (2, 6, {3, 5}), (6, 7, set())],
)
def test_rows_between_key_bounds(lower, upper, expected):
    """A range scan looks at the rows inside its bounds only, and at all of them."""
    rows = memory((1, [5]), (2, [1, 7]), (3, [3]))
    bounds = [None if bound is None else keys(bound).at(0) for bound in (lower, upper)]
    chosen = rows.rowids_in(KeyRange(*bounds))
    values = rows.column(K, MAX_TIMESTAMP, 0, 4).to_numpy()
    assert set(values[chosen].tolist()) == expected


def altered() -> tuple[Schema, ColumnSchema]:
    """The schema with a column added that older rows read as 7."""
    added = dataclasses.replace(VAL, id=SCHEMA.next_column_id, name="added", read_default=7)
    schema = Schema((*SCHEMA.columns, added), 1, 1, SCHEMA.next_column_id + 1)
    return schema, added


def test_a_row_inserted_before_a_column_was_added_reads_its_default():
    """The alteration does not rewrite what is in memory."""
    schema, added = altered()
    rows = memory((1, [1, 2]))
    more = SharedBatch({**batch([3]).columns, added.id: pa.array([30], pa.int64())})
    rows.insert(keys(3), more, 0, 1, 2)
    rows.deltas.append(np.array([1]), 3, {added.id: pa.array([99], pa.int64())})
    assert rows.column(added, MAX_TIMESTAMP, 0, 3).to_pylist() == [7, 99, 30]
    assert rows.gather(added, 2, np.array([2, 1])).to_pylist() == [30, 7]
    image = rows.image(3, schema)
    assert image.columns[added.id].to_pylist() == [7, 99, 30]
    assert image.undo[added.id].values.to_pylist() == [7]
    unset = dataclasses.replace(added, read_default=None)
    assert rows.column(unset, 2, 0, 2).to_pylist() == [None, None]
    rows.check()


def test_an_image_leaves_out_what_came_later():
    """A flush as of F writes the rows inserted up to F and knows where each of them went."""
    rows = memory((1, [5, 7]), (2, [1]), (9, [0, 6]))
    rows.deltas.append(np.array([0, 2]), 4, {VAL.id: pa.array([500, 100], pa.int64())})
    rows.deltas.append(np.array([1]), 5, {LIVENESS: pa.array([False])})
    rows.deltas.append(np.array([0]), 8, {VAL.id: pa.array([555], pa.int64())})
    image = rows.image(5)
    image.check()
    assert image.positions.tolist() == [1, 2, 0, -1, -1]
    assert image.columns[K.id].to_pylist() == [1, 5, 7]
    assert image.columns[VAL.id].to_pylist() == [100, 500, 70]
    assert image.liveness.to_pylist() == [True, True, False]
    assert image.undo[VAL.id].values.to_pylist() == [10, 50]
    # Dead row 2 was there from 1 until 5; rows 0 and 1 were inserted at 2 and 1.
    undo = image.undo[LIVENESS]
    assert undo.rowids.tolist() == [0, 1, 2, 2]
    assert undo.timestamps.tolist() == [2, 1, 5, 1]
    assert undo.values.to_pylist() == [False, False, True, False]
    assert rows.image(0).row_count == 0


def test_an_empty_memrowset_reads_as_nothing():
    """An idle tablet anchors nothing and scans to no rows."""
    rows = MemRowSet(CODEC, SCHEMA)
    assert rows.insert(keys(), batch([]), 0, 0, 5) == 0
    assert (rows.row_count, rows.timestamp_min, rows.timestamp_max) == (0, None, None)
    assert rows.nbytes == 0
    assert rows.find(keys(1)).tolist() == [-1]
    assert rows.liveness(5, 0, 0) is None
    assert rows.column(VAL, 5, 0, 0).to_pylist() == []
    assert rows.gather(TEXT, 5, np.empty(0, np.int64)).to_pylist() == []
    assert rows.image(9).row_count == 0
    rows.check()


def test_a_frozen_memrowset_takes_changes_but_no_rows():
    """An insert into a MemRowSet that is being flushed would be lost with it."""
    rows = memory((1, [1]))
    rows.frozen_at = 1
    rows.deltas.append(np.array([0]), 2, {LIVENESS: pa.array([False])})
    with pytest.raises(AssertionError, match="frozen"):
        rows.insert(keys(2), batch([2]), 0, 1, 3)


def test_r4_readers_see_whole_inserts_while_a_writer_goes_on():
    """Each batch inserts twenty rows with one value and moves all older rows to that value."""
    rows = MemRowSet(CODEC, SCHEMA)
    published = [0]
    wrong: list[object] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            snapshot = published[0]
            count = rows.row_count
            alive = rows.liveness(snapshot, 0, count)
            found = rows.column(VAL, snapshot, 0, count).to_numpy()
            found = found if alive is None else found[alive]
            if len(found) != 20 * snapshot or not (found == snapshot).all():
                wrong.append((snapshot, found))
            some = rows.find(keys(*range(0, 2000, 7)))
            some = some[some >= 0]
            if rows.gather_liveness(snapshot, some).sum() != len(range(0, 20 * snapshot, 7)):
                wrong.append((snapshot, some))

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for time in range(1, 101):
        numbers = list(range(20 * (time - 1), 20 * time))
        fresh = SharedBatch({**batch(numbers).columns, VAL.id: pa.array([time] * 20)})
        rows.deltas.append(
            np.arange(rows.row_count), time, {VAL.id: pa.array([time] * rows.row_count, pa.int64())}
        )
        rows.insert(keys(*numbers), fresh, 0, 20, time)
        published[0] = time
    done.set()
    for reader in readers:
        reader.join()
    assert not wrong
    rows.check()


@given(st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=6, unique=True), max_size=12), st.data())
def test_windows_and_single_rows_read_what_a_whole_scan_reads(groups, data):
    """Wherever the chunks' borders lie."""
    rows, seen = MemRowSet(CODEC, SCHEMA), set()
    for time, group in enumerate(groups, start=1):
        fresh = sorted(set(group) - seen)
        seen |= set(fresh)
        rows.insert(keys(*fresh), batch(fresh), 0, len(fresh), time)
        if data.draw(st.booleans()):
            rows.column(data.draw(st.sampled_from([VAL, TEXT])), time, 0, rows.row_count)
    count = rows.row_count
    whole = rows.column(TEXT, MAX_TIMESTAMP, 0, count).to_pylist()
    lower = data.draw(st.integers(0, count))
    upper = data.draw(st.integers(lower, count))
    assert rows.column(TEXT, MAX_TIMESTAMP, lower, upper).to_pylist() == whole[lower:upper]
    some = data.draw(st.lists(st.integers(0, count - 1), max_size=8)) if count else []
    assert rows.gather(TEXT, MAX_TIMESTAMP, np.array(some, np.int64)).to_pylist() == [
        whole[row] for row in some
    ]
    rows.check()
