"""Delta compactions change the layout of a rowset and nothing that can be read from it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.delta.applied import applied

from nyala.delta.compaction import insertion_undo, merge_redo, merge_undo, redo_to_undo
from nyala.delta.run import LIVENESS, MAX_TIMESTAMP, DeltaRun, build_run


def run_of(*records: tuple[int, int, object], type: pa.DataType) -> DeltaRun:
    return build_run(
        "redo",
        np.array([r for r, _, _ in records], np.int64),
        np.array([t for _, t, _ in records], np.int64),
        pa.array([v for _, _, v in records], type),
    )


# INSERT@1 val=1, UPDATE@2 val=2, DELETE@3, INSERT@4 val=3: the row, or None where it is not there.
SPECIFICATION = {0: None, 1: 1, 2: 2, 3: None, 4: 3, MAX_TIMESTAMP: 3}


def row_at(val: pa.Array, live: pa.Array, undo: dict, redo: dict, snapshot: int) -> object:
    alive = applied(live, 0, undo.get(LIVENESS, []), redo.get(LIVENESS, []), snapshot)[0].as_py()
    return applied(val, 0, undo.get("val", []), redo.get("val", []), snapshot)[0].as_py() if alive else None


def test_the_specifications_example_reads_right_before_and_after_redo_to_undo():
    """ "Historical MVCC in DiskRowSets": insert, update, delete, insert again, read at each timestamp."""
    val, live = pa.array([1], pa.int32()), pa.array([True])
    redo_val = run_of((0, 2, 2), (0, 4, 3), type=pa.int32())
    redo_live = run_of((0, 3, False), (0, 4, True), type=pa.bool_())
    inserted = insertion_undo(np.array([0]), np.array([1]))
    undo, redo = {LIVENESS: [inserted]}, {"val": [redo_val], LIVENESS: [redo_live]}
    for snapshot, row in SPECIFICATION.items():
        assert row_at(val, live, undo, redo, snapshot) == row, f"in memory at {snapshot}"

    # The specification's picture of the flushed row, in its words: base ("row", 3) and
    # Before Tx 4: DELETE; Before Tx 3: INSERT ("row", 2); Before Tx 2: SET val=1; Before Tx 1: DELETE.
    base_val, undo_val = redo_to_undo(val, redo_val)
    base_live, undo_live = redo_to_undo(live, redo_live)
    assert (base_val.to_pylist(), base_live.to_pylist()) == ([3], [True])
    assert (undo_val.timestamps.tolist(), undo_val.values.to_pylist()) == ([4, 2], [2, 1])
    undo_live = merge_undo([undo_live, inserted])
    assert (undo_live.timestamps.tolist(), undo_live.values.to_pylist()) == ([4, 3, 1], [False, True, False])
    for snapshot, row in SPECIFICATION.items():
        assert row_at(base_val, base_live, {"val": [undo_val], LIVENESS: [undo_live]}, {}, snapshot) == row


def test_the_specifications_example_reads_right_after_merge_redo():
    """Each change in a delta file of its own, merged by a minor delta compaction."""
    val, live = pa.array([1], pa.int32()), pa.array([True])
    redo_val = merge_redo([run_of((0, 2, 2), type=pa.int32()), run_of((0, 4, 3), type=pa.int32())])
    redo_live = merge_redo([run_of((0, 3, False), type=pa.bool_()), run_of((0, 4, True), type=pa.bool_())])
    undo = {LIVENESS: [insertion_undo(np.array([0]), np.array([1]))]}
    for snapshot, row in SPECIFICATION.items():
        assert row_at(val, live, undo, {"val": [redo_val], LIVENESS: [redo_live]}, snapshot) == row


@given(
    st.dictionaries(
        st.tuples(st.integers(0, 5), st.integers(1, 9)), st.none() | st.text(max_size=3), max_size=25
    ),
    st.integers(0, 9),
    st.sampled_from([0, 100]),
)
@settings(max_examples=settings().max_examples, deadline=None)
def test_redo_to_undo_is_read_as_before_at_every_snapshot(history, border, lower):
    """Major delta compaction up to any moment: the rest stays REDO, and every moment shows what it showed."""
    base = pa.array([f"base{row}" for row in range(6)])
    redo = run_of(*((lower + r, t, v) for (r, t), v in history.items()), type=pa.string())
    new_base, undo = redo_to_undo(base, redo.between(0, border), lower)
    undo.check()
    rest = redo.between(border, MAX_TIMESTAMP)
    assert len(undo) + len(rest) == len(redo)
    for snapshot in range(10):
        before = applied(base, lower, [], [redo], snapshot)
        after = applied(new_base, lower, [undo], [rest], snapshot)
        assert after.equals(before)
