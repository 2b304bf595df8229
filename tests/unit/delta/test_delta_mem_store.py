"""The DeltaMemStore compared with a dict while it grows, from one thread and from several."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from nyala.delta.applier import resolve
from nyala.delta.batch import SharedBatch
from nyala.delta.mem_store import DeltaMemStore
from nyala.delta.run import LIVENESS, MAX_TIMESTAMP

ROWS = 8


def contents(store: DeltaMemStore, column_id: int, snapshot: int = MAX_TIMESTAMP) -> dict[int, object]:
    rows, values = resolve((), store.levels(column_id), snapshot)
    return {} if values is None else dict(zip(rows.tolist(), values.to_pylist(), strict=True))


# One append: rows, and a part of the columns 10 and 11 and LIVENESS. Values follow from row and
# time.
appends = st.lists(
    st.tuples(
        st.lists(st.integers(0, ROWS - 1), unique=True, min_size=0, max_size=ROWS),
        st.sets(st.sampled_from([10, 11, LIVENESS]), min_size=1),
        st.booleans(),
    ),
    max_size=25,
)


def value(column_id: int, row: int, time: int) -> object:
    return (row + time) % 3 > 0 if column_id == LIVENESS else column_id * 1000 + time * 10 + row


def arrays(column_ids: set[int], rows: list[int], times: list[int]) -> dict[int, pa.Array]:
    return {
        column_id: pa.array(
            [value(column_id, row, time) for row, time in zip(rows, times, strict=True)],
            pa.bool_() if column_id == LIVENESS else pa.int64(),
        )
        for column_id in column_ids
    }


def check_cells(store: DeltaMemStore, expected: Mapping[tuple[int, int, int], object], snapshot: int) -> None:
    """Look up each row by itself, like `get`. expected: cells by column, time and row."""
    for row in range(ROWS):
        latest = {}
        for (column, time, changed), cell in sorted(expected.items(), key=lambda item: item[0][1]):
            if changed == row and time <= snapshot:
                latest[column] = cell
        for requested in ({10, 11, LIVENESS}, {11}):
            found = store.cells(row, requested, snapshot)
            assert {column: array[at].as_py() for column, (array, at) in found.items()} == {
                column: cell for column, cell in latest.items() if column in requested
            }


@given(appends, st.data())
@settings(max_examples=settings().max_examples, deadline=None)
def test_appended_records_are_read_at_every_snapshot(history, data):
    """Appends are read right at every snapshot: after reads or not, with one or many timestamps,
    and of whole or shared arrays.
    """
    store = DeltaMemStore()
    expected: dict[tuple[int, int, int], object] = {}
    for time, (rows, column_ids, shared) in enumerate(history, start=1):
        times: int | np.ndarray = time if data.draw(st.booleans()) else np.full(len(rows), time, np.int64)
        columns = arrays(column_ids, rows, [time] * len(rows))
        rowids = np.array(rows, np.int64)
        if shared:
            padded = {
                c: pa.concat_arrays([a.take(pa.array([0, 0])) if len(a) else a, a])
                for c, a in columns.items()
            }
            store.append(rowids, times, SharedBatch(padded), offset=2 if rows else 0)
        else:
            store.append(rowids, times, columns)
        for column_id in column_ids:
            expected |= {(column_id, time, row): value(column_id, row, time) for row in rows}
        if data.draw(st.booleans()):
            store.levels(data.draw(st.sampled_from([10, 11, LIVENESS])))
        if data.draw(st.booleans()):
            check_cells(store, expected, data.draw(st.integers(0, time)))
    for snapshot in range(len(history) + 1):
        check_cells(store, expected, snapshot)
    store.check()
    for snapshot in range(len(history) + 1):
        for column_id in (10, 11, LIVENESS):
            latest = {}
            for (column, time, row), cell in sorted(expected.items(), key=lambda item: item[0][1]):
                if column == column_id and time <= snapshot:
                    latest[row] = cell
            assert contents(store, column_id, snapshot) == latest
    assert store.column_ids == {column for column, _, _ in expected}
    assert store.record_count == sum(len(rows) for rows, _, _ in history)


@given(appends, st.integers(0, 25))
@settings(max_examples=settings().max_examples, deadline=None)
def test_batches_after_returns_every_later_record(history, border):
    """Changes during a flush are moved to the new rowset, each once."""
    store, copy = DeltaMemStore(), DeltaMemStore()
    for time, (rows, column_ids, _) in enumerate(history, start=1):
        store.append(np.array(rows, np.int64), time, arrays(column_ids, rows, [time] * len(rows)))
    for batch in store.batches_after(border):
        copy.append(batch.rowids, batch.timestamps, batch.columns)
    copy.check()
    for column_id in (10, 11, LIVENESS):
        run, copied = store.run(column_id), copy.run(column_id)
        late = [] if run is None else run.between(border, MAX_TIMESTAMP)
        assert (0 if copied is None else len(copied)) == len(late)
        if copied is not None:
            assert copied.rowids.tolist() == late.rowids.tolist()
            assert copied.timestamps.tolist() == late.timestamps.tolist()
            assert copied.values.equals(late.values)


def test_m1_appends_out_of_time_order_are_sorted():
    """M1: the newest value wins although replay appends inserts, updates and deletes separately."""
    store = DeltaMemStore()
    store.append(np.array([0, 1]), np.array([5, 9]), {10: pa.array([50, 90])})
    store.append(np.array([0, 1]), np.array([7, 3]), {10: pa.array([70, 30])})
    for rowid, snapshot, value in ((0, 4, None), (0, 6, 50), (0, 9, 70), (1, 3, 30), (1, 8, 30), (1, 9, 90)):
        cell = store.cells(rowid, {10}, snapshot).get(10)
        assert (None if cell is None else cell[0][cell[1]].as_py()) == value
    store.check()
    assert contents(store, 10) == {0: 70, 1: 90}
    assert contents(store, 10, 4) == {1: 30}
    assert (store.timestamp_min, store.timestamp_max) == (3, 9)


def test_run_includes_every_append():
    """`run` includes appends that came after an earlier call. A flush writes its result."""
    store = DeltaMemStore()
    store.append(np.arange(100), 1, {10: pa.array([1] * 100)})
    for time in (2, 3):
        store.append(np.array([5]), time, {10: pa.array([time])})
        run = store.run(10)
        assert run is not None and len(run) == 99 + time
        assert store.run(10) is run, "the result is cached until the next append"


def test_m3_readers_see_whole_appends_during_writes():
    """M3: every append changes all rows to one new value, so no snapshot shows two values."""
    store, rows = DeltaMemStore(), np.arange(50)
    store.append(rows, 1, {10: pa.array([1] * 50)})
    published = [1]
    wrong: list[object] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            snapshot = published[0]
            seen = contents(store, 10, snapshot)
            if set(seen.values()) != {snapshot} or len(seen) != 50:
                wrong.append((snapshot, seen))

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for time in range(2, 400):
        store.append(rows, time, {10: pa.array([time] * 50)})
        published[0] = time
    done.set()
    for reader in readers:
        reader.join()
    assert not wrong
    store.check()


def test_many_small_appends_are_read_the_same():
    """Many small appends, with changing columns and one out of time order, give the values of their
    rows.
    """
    random = np.random.default_rng(5)
    store, expected = DeltaMemStore(), {}
    times = [*range(1, 40), 39, *range(41, 200)]
    for number, time in enumerate(times):
        rows = random.permutation(ROWS)[: random.integers(1, 4)]
        column_ids = {LIVENESS} if number % 50 == 49 else {10, 11}
        time = 77 if number == 39 else 2 * time
        columns = arrays(column_ids, rows.tolist(), [time] * len(rows))
        store.append(rows, time, SharedBatch(columns))
        for row in rows.tolist():
            for column_id in column_ids:
                expected[(column_id, row, time)] = value(column_id, row, time)
    store.check()
    for column_id in (10, 11, LIVENESS):
        run = store.run(column_id)
        assert run is not None
        found = zip(run.rowids.tolist(), run.timestamps.tolist(), run.values.to_pylist(), strict=True)
        assert {(column_id, row, time): cell for row, time, cell in found} == {
            name: cell for name, cell in expected.items() if name[0] == column_id
        }
