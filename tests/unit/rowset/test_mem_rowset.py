"""The MemRowSet: what its writer, its readers and the flush rely on."""

from __future__ import annotations

import threading

import numpy as np
import pyarrow as pa
import pytest

from nyala.delta.batch import SharedBatch
from nyala.delta.run import LIVENESS, MAX_TIMESTAMP
from nyala.keys.codec import KeyCodec
from nyala.rowset.mem_rowset import MemRowSet
from nyala.schema.schema import Schema, build_schema

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
    """Return a MemRowSet with one insert per (timestamp, keys)."""
    rows = MemRowSet(CODEC, schema)
    for timestamp, numbers in groups:
        rows.insert(keys(*numbers), batch(numbers), 0, len(numbers), timestamp)
    return rows


def test_r1_rowids_are_in_the_order_of_arrival():
    """A row keeps its rowid when rows with smaller keys arrive, because changes refer to it."""
    rows = MemRowSet(CODEC, SCHEMA)
    shared = batch([9, 1, 3, 5])
    assert rows.insert(keys(1, 3), shared, 1, 2, 5) == 0
    assert rows.insert(keys(0, 2), batch([0, 2]), 0, 2, 6) == 2
    assert rows.find(keys(0, 1, 2, 3, 4)).tolist() == [2, 0, 3, 1, -1]
    assert rows.decode(VAL, MAX_TIMESTAMP, 0, 4).to_pylist() == [10, 30, 0, 20]
    assert rows.gather(TEXT, MAX_TIMESTAMP, np.array([3, 0, 3])).to_pylist() == ["t2", "t1", "t2"]
    assert rows.order().tolist() == [2, 0, 3, 1]
    assert rows.keys_of(rows.order()).is_strictly_ascending()
    rows.check()


def test_each_row_may_have_its_own_timestamp():
    """Replay inserts the rows of many log records at once."""
    rows = MemRowSet(CODEC, SCHEMA)
    rows.insert(keys(1, 2, 3), batch([1, 2, 3]), 0, 3, np.array([7, 5, 9]))
    rows.insert(keys(4), batch([4]), 0, 1, 8)
    assert rows.liveness(7, 0, 4).tolist() == [True, True, False, False]
    assert rows.gather_liveness(8, np.array([3, 2, 1])).tolist() == [True, False, True]
    assert rows.liveness(9, 0, 4) is None
    assert (rows.timestamp_min, rows.timestamp_max) == (5, 9)
    rows.check()


def test_an_image_leaves_out_later_rows():
    """A flush at F writes the rows inserted up to F, and has the new position of each."""
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
    # Dead row 2 was alive from 1 until 5; rows 0 and 1 were inserted at 2 and 1.
    undo = image.undo[LIVENESS]
    assert undo.rowids.tolist() == [0, 1, 2, 2]
    assert undo.timestamps.tolist() == [2, 1, 5, 1]
    assert undo.values.to_pylist() == [False, False, True, False]
    assert rows.image(0).row_count == 0


def test_a_frozen_memrowset_accepts_changes_but_no_rows():
    """An insert into a MemRowSet that is being flushed would be lost."""
    rows = memory((1, [1]))
    rows.frozen_at = 1
    rows.deltas.append(np.array([0]), 2, {LIVENESS: pa.array([False])})
    with pytest.raises(AssertionError, match="frozen"):
        rows.insert(keys(2), batch([2]), 0, 1, 3)


def test_r4_readers_see_whole_inserts_during_writes():
    """Each batch inserts twenty rows with one value and changes all older rows to that value."""
    rows = MemRowSet(CODEC, SCHEMA)
    published = [0]
    wrong: list[object] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            snapshot = published[0]
            count = rows.row_count
            alive = rows.liveness(snapshot, 0, count)
            found = rows.decode(VAL, snapshot, 0, count).to_numpy()
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
