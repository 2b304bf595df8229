"""Delta compactions change the layout of a rowset, and no value at any snapshot."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.delta.applied import applied

from nyala.delta.compaction import redo_to_undo
from nyala.delta.run import MAX_TIMESTAMP, DeltaRun, build_run


def run_of(*records: tuple[int, int, object], type: pa.DataType) -> DeltaRun:
    return build_run(
        "redo",
        np.array([r for r, _, _ in records], np.int64),
        np.array([t for _, t, _ in records], np.int64),
        pa.array([v for _, _, v in records], type),
    )


@given(
    st.dictionaries(
        st.tuples(st.integers(0, 5), st.integers(1, 9)), st.none() | st.text(max_size=3), max_size=25
    ),
    st.integers(0, 9),
    st.sampled_from([0, 100]),
)
@settings(max_examples=settings().max_examples, deadline=None)
def test_after_redo_to_undo_every_snapshot_has_the_same_values(history, border, lower):
    """After a major delta compaction up to any snapshot, each snapshot has the same values."""
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
