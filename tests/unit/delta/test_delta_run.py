"""A column's changes at every snapshot, compared with a dict of versions."""

from __future__ import annotations

import decimal
import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.delta.applied import applied

from nyala.delta.applier import patch, resolve, resolve_at
from nyala.delta.run import MAX_TIMESTAMP, DeltaRun, build_run, merge_runs

ROWS = 6
TIMES = 12

# (rowid, timestamp) -> value: when a cell changes, and to which value.
histories = st.dictionaries(
    st.tuples(st.integers(0, ROWS - 1), st.integers(1, TIMES)), st.none() | st.integers(0, 99), max_size=30
)


def rowids_of(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def value_at(history: dict[tuple[int, int], int | None], row: int, snapshot: int) -> int | None:
    """Return the last value at or before the snapshot; before any change, a cell is 1000 + its row."""
    times = [t for r, t in history if r == row and t <= snapshot]
    return history[row, max(times)] if times else 1000 + row


def run_of(kind: str, records: list[tuple[int, int, int | None]]) -> DeltaRun:
    run = build_run(
        kind,  # type: ignore[arg-type]
        rowids_of(*(r for r, _, _ in records)),
        np.array([t for _, t, _ in records], dtype=np.int64),
        pa.array([v for _, _, v in records], pa.int64()),
    )
    run.check()
    return run


def layout(
    history: dict[tuple[int, int], int | None], base_at: int, borders: list[int]
) -> tuple[pa.Array, list[DeltaRun], list[DeltaRun]]:
    """Return the history as a rowset stores it.

    The base is as of `base_at`. Older changes are UNDO. Newer ones are REDO, in stores that end at
    `borders`.
    """
    base = pa.array([value_at(history, row, base_at) for row in range(ROWS)], pa.int64())
    undo: list[DeltaRun] = []
    redo: list[DeltaRun] = []
    edges = sorted({0, *borders, base_at, TIMES})
    for after, until in itertools.pairwise(edges):
        inside = sorted((r, t) for r, t in history if after < t <= until)
        if not inside:
            continue
        if until <= base_at:
            undo.insert(0, run_of("undo", [(r, t, value_at(history, r, t - 1)) for r, t in inside]))
        else:
            redo.append(run_of("redo", [(r, t, history[r, t]) for r, t in inside]))
    return base, undo, redo


@given(histories, st.integers(0, TIMES), st.lists(st.integers(1, TIMES), max_size=4))
@settings(max_examples=settings().max_examples, deadline=None)
def test_every_snapshot_reads_the_last_change_up_to_it(history, base_at, borders):
    """Each snapshot reads the last change before it, for any division of a history into UNDO, base
    and REDO.
    """
    base, undo, redo = layout(history, base_at, borders)
    shuffled = rowids_of(3, 0, 5, 5, 1)
    for snapshot in (*range(TIMES + 1), MAX_TIMESTAMP):
        expected = [value_at(history, row, snapshot) for row in range(ROWS)]
        assert applied(base, 0, undo, redo, snapshot).to_pylist() == expected
        window = applied(base.slice(2, 3), 2, undo, redo, snapshot)
        assert window.to_pylist() == expected[2:5], "a part of the column has the same values"
        gathered, (places, values) = base.take(pa.array(shuffled)), resolve_at(undo, redo, snapshot, shuffled)
        if values is not None:
            gathered = patch(gathered, places, values)
        assert gathered.to_pylist() == [expected[row] for row in shuffled], (
            "single rows, in any order, have the same values"
        )


@given(histories, st.integers(0, TIMES), st.integers(0, TIMES))
@settings(max_examples=settings().max_examples, deadline=None)
def test_changed_rows_has_every_row_that_a_snapshot_changes(history, base_at, snapshot):
    """A zone map may exclude a block only if none of its rows is in `changed_rows`."""
    _, undo, redo = layout(history, base_at, [4, 8])
    changed = set()
    for run in (*undo, *redo):
        changed |= set(run.changed_rows(snapshot).tolist())
        assert run.relevant(snapshot) == bool(len(run.changed_rows(snapshot)))
    rows, _ = resolve(undo, redo, snapshot)
    assert changed == set(rows.tolist())


@given(st.lists(histories, min_size=1, max_size=4), st.booleans())
@settings(max_examples=settings().max_examples, deadline=None)
def test_merged_runs_have_every_record_in_order(parts, undo):
    """Merged runs have every record in order, also if the runs overlap in time."""
    kind = "undo" if undo else "redo"
    seen: dict[tuple[int, int], int | None] = {}
    runs = []
    for part in parts:
        fresh = {key: value for key, value in part.items() if key not in seen}
        seen |= fresh
        runs.append(run_of(kind, [(r, t, v) for (r, t), v in fresh.items()]))
    merged = merge_runs(runs)
    merged.check()
    records = zip(merged.rowids.tolist(), merged.timestamps.tolist(), merged.values.to_pylist(), strict=True)
    assert {(r, t): v for r, t, v in records} == seen


@pytest.mark.parametrize("kind", ["redo", "undo"])
@pytest.mark.parametrize("newest_first", [True, False])
def test_runs_without_overlap_in_time_merge_in_any_order(kind, newest_first):
    """Runs that do not overlap in time are merged right in any order of the arguments."""
    parts = [
        run_of(kind, [(1, 5, 50), (2, 5, 51)]),
        run_of(kind, [(1, 7, 70)]),
        run_of(kind, [(0, 9, 90), (1, 9, 91)]),
    ]
    merged = merge_runs(parts[::-1] if newest_first else parts)
    merged.check()
    assert merged.rowids.tolist() == [0, 1, 1, 1, 2]
    assert merged.timestamps.tolist()[1:4] == ([5, 7, 9] if kind == "redo" else [9, 7, 5])


def test_d1_redo_ascends_and_undo_descends_in_time():
    """D1: this order is on disk. With another order, the oldest value would be read as the newest."""
    records = [(1, 5, 50), (0, 9, 90), (1, 7, 70)]
    assert run_of("redo", records).timestamps.tolist() == [9, 5, 7]
    assert run_of("undo", records).timestamps.tolist() == [9, 7, 5]


@pytest.mark.parametrize(
    ("kind", "rowids", "timestamps", "wrong"),
    [
        ("redo", [0, 1, 1], [5, 5, 6], None),
        ("redo", [0, 1, 1], [5, 6, 6], 2),  # D2: a record twice
        ("redo", [0, 1, 1], [5, 6, 5], 2),  # D1: REDO descends in time
        ("undo", [0, 1, 1], [5, 5, 6], 2),  # D1: UNDO ascends in time
        ("undo", [0, 1, 1], [5, 6, 5], None),
        ("redo", [1, 0], [1, 2], 1),
        ("redo", [-1, 0], [1, 2], 0),  # D3: a negative rowid
        ("redo", [0, 1], [1, -2], 1),  # D3: a negative timestamp
    ],
)
def test_disorder_returns_the_first_record_out_of_order(kind, rowids, timestamps, wrong):
    """An error about a damaged delta file has the position of the first wrong record."""
    run = DeltaRun(kind, rowids_of(*rowids), rowids_of(*timestamps), pa.array([0] * len(rowids)))
    assert run.disorder() == wrong


def test_without_relevant_records_nothing_is_copied():
    """A snapshot to which no change applies copies no values."""
    undo = build_run("undo", rowids_of(1), 5, pa.array([9]))
    redo = build_run("redo", rowids_of(1), 9, pa.array([7]))
    assert resolve([undo], [redo], 6)[1] is None and resolve_at([undo], [redo], 6, rowids_of(1, 0))[1] is None


def test_moved_and_of_rows_renumber_rows():
    """Changes during a flush move with their row, or are dropped with it."""
    run = run_of("redo", [(0, 1, 10), (1, 2, 11), (1, 3, 12), (2, 1, 13)])
    moved = run.moved(rowids_of(2, 0, -1))
    moved.check()
    assert moved.rowids.tolist() == [0, 0, 2]
    assert moved.values.to_pylist() == [11, 12, 10]
    part = run.of_rows(1, 2)
    assert (part.rowids.tolist(), part.values.to_pylist()) == ([0, 0], [11, 12])


def test_between_excludes_the_first_and_includes_the_last_timestamp():
    """A change at the timestamp of a flush belongs to the flush; the next one does not."""
    run = run_of("redo", [(0, 1, 10), (0, 2, 11), (1, 3, 12)])
    assert run.between(1, 2).values.to_pylist() == [11]
    assert run.between(0, 3) is run


# --- patch ------------------------------------------------------------------------------------------

TYPES = [
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.date32(), pa.timestamp("us", tz="UTC"),
    pa.float32(), pa.float64(), pa.decimal128(9, 2), pa.decimal128(38, 0), pa.string(), pa.binary(),
]  # fmt: skip


def _array(type: pa.DataType, numbers: list[int | None]) -> pa.Array:
    if pa.types.is_boolean(type):
        return pa.array([None if n is None else bool(n % 2) for n in numbers], type)
    if pa.types.is_string(type):
        return pa.array([None if n is None else "ä" * n for n in numbers], type)
    if pa.types.is_binary(type):
        return pa.array([None if n is None else b"\0" * n for n in numbers], type)
    if pa.types.is_decimal(type):
        return pa.array([None if n is None else decimal.Decimal(n) for n in numbers], type)
    if pa.types.is_date(type) or pa.types.is_timestamp(type):
        return pa.array(numbers, pa.int32() if pa.types.is_date(type) else pa.int64()).cast(type)
    return pa.array(numbers, type)


@pytest.mark.parametrize("type", TYPES, ids=str)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_patch_replaces_exactly_the_named_positions(type, data):
    """A patch replaces exactly its positions: for each type, with and without NULL, in slices."""
    number = st.integers(0, 40)
    cell = data.draw(st.sampled_from([number, st.none() | number]))
    numbers = data.draw(st.lists(cell, min_size=1, max_size=40))
    skip = data.draw(st.integers(0, 9))
    positions = sorted(data.draw(st.sets(st.integers(0, len(numbers) - 1))))
    news = data.draw(st.lists(cell, min_size=len(positions), max_size=len(positions)))
    base = _array(type, [7] * skip + numbers + [None]).slice(skip, len(numbers))
    values = _array(type, [3] * skip + news).slice(skip)
    before = base.to_pylist()
    patched = patch(base, rowids_of(*positions), values)
    patched.validate(full=True)
    expected = list(before)
    for position, new in zip(positions, values.to_pylist(), strict=True):
        expected[position] = new
    assert patched.to_pylist() == expected
    assert patched.type == type
    assert base.to_pylist() == before, "the base is shared with the block cache and does not change"


def test_patch_keeps_the_payload_of_a_nan():
    """A patch copies values bit by bit, so a NaN keeps its payload."""
    odd = np.array([0x7FF8DEADBEEF0001], np.uint64).view(np.float64)
    patched = patch(pa.array([1.0, 2.0]), rowids_of(1), pa.array(odd))
    assert patched.to_numpy().view(np.uint64)[1] == 0x7FF8DEADBEEF0001
