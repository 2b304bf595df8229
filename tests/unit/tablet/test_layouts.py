"""The measurements for the compaction policy agree with the files of the tablet."""

from __future__ import annotations

from typing import Any

import pytest

from nyala.api.database import Database
from nyala.delta.run import MAX_TIMESTAMP
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.tablet.compaction.lifecycle import compact, run_here
from nyala.tablet.compaction.measurement import (
    Layouts,
    all_expired,
    dead_rows_of,
    expired_rows,
    has_dead_rows,
)
from nyala.tablet.compaction.plans import MajorPlan, MergePlan


def tablet(db: Database) -> Any:
    return db._writer().root.table("t").tablets[0]


def rowset(db: Database) -> DiskRowSet:
    (found,) = tablet(db).rowsets
    return found


def layout(db: Database, cut: int = 0) -> Any:
    (found,) = Layouts().of_tablet(tablet(db), cut)
    return found


def column_id(db: Database, name: str) -> int:
    return db._writer().root.table("t").schema.by_name(name).id


def hundred_rows(db: Database) -> tuple[Any, int]:
    """Create a rowset of a hundred rows; returns (table, timestamp of the insert)."""
    table = db.create_table("t", {"k": "int64", "a": "int64", "b": "int64"}, "k", history="forever")
    came = table.insert({"k": list(range(100)), "a": list(range(100)), "b": [0] * 100}).timestamp
    db.flush()
    return table, came


def test_expired_undo_is_a_lower_bound(db: Database) -> None:
    """An UNDO file that has partly expired counts with half of its expired share."""
    table, came = hundred_rows(db)
    assert layout(db, came - 1).expired_undo_bytes == layout(db, 0).expired_undo_bytes == 0
    whole = layout(db, came)
    assert (whole.expired_undo_bytes, whole.expired_undo_files) == (whole.undo_bytes, 1)
    first = table.update({"k": list(range(50)), "a": [1] * 50}).timestamp
    last = table.update({"k": list(range(50, 100)), "a": [1] * 50}).timestamp
    db.flush()
    state = db._writer().root.table("t")
    plan = MajorPlan(rowset(db).id, (column_id(db, "a"),), 1.0)
    assert compact(db._writer(), state.id, state.tablets[0].id, plan, run_here(db._writer()))
    (oldest, _), (newest, _) = layout(db).undo_files
    half = layout(db, (first + last) // 2)
    assert half.expired_undo_files == 1
    assert abs(half.expired_undo_bytes - (oldest + newest / 4)) <= 1
    assert layout(db, first).expired_undo_bytes == oldest
    assert layout(db, last).expired_undo_bytes == oldest + newest


@pytest.mark.parametrize("where", ["memory", "redo", "base"])
def test_rows_that_died_before_the_cut_are_expired(db: Database, where: str) -> None:
    """Rows count as expired, whether their deletion is in memory, in REDO, or in the base with UNDO."""
    table, came = hundred_rows(db)
    first = table.delete({"k": list(range(10))}).timestamp
    second = table.delete({"k": list(range(10, 30))}).timestamp
    if where != "memory":
        db.flush()
    if where == "base":
        state = db._writer().root.table("t")
        plan = MergePlan((rowset(db).id,), 1.0)
        assert compact(db._writer(), state.id, state.tablets[0].id, plan, run_here(db._writer()))
    assert has_dead_rows(rowset(db))
    expected = {came: 0, first - 1: 0, first: 10, second - 1: 10, second: 30, MAX_TIMESTAMP: 30}
    assert {cut: expired_rows(rowset(db), cut) for cut in expected} == expected
    assert dead_rows_of([rowset(db)]) == (30, round(rowset(db).base_bytes * 0.3))
    assert {cut: layout(db, cut).expired_rows for cut in expected} == expected
    assert layout(db, 0).expired_rows == 0 and not layout(db, second).all_expired


def test_a_rowset_can_be_dropped_if_all_rows_are_expired(db: Database) -> None:
    """A rowset is dropped only if its deletions are in files.

    The flush of a deletion that is only in memory needs the rowset.
    """
    table, _ = hundred_rows(db)
    first = table.delete({"k": list(range(99))}).timestamp
    db.flush()
    assert not layout(db, first).all_expired and not all_expired(rowset(db), first)
    last = table.delete({"k": [99]}).timestamp
    assert all_expired(rowset(db), last) and not layout(db, last).all_expired
    db.flush()
    assert layout(db, last).all_expired
    assert not layout(db, last - 1).all_expired and not layout(db, 0).all_expired
    assert not all_expired(rowset(db), 0)
    table.insert({"k": [5], "a": [5]})  # the new row is in another place; the dead row stays dead (R5)
    assert layout(db, last).all_expired


def test_columns_in_a_newer_part_count_as_superseded(db: Database) -> None:
    """The number of superseded columns is counted. After a rewrite it is 0."""
    hundred_rows(db)
    table = db["t"]
    assert layout(db).superseded_bytes == 0
    table.update({"k": [1], "a": [-1]})
    db.flush()
    store = db._writer()
    plan = MajorPlan(rowset(db).id, (column_id(db, "a"),), 1.0)
    assert compact(store, store.root.table("t").id, tablet(db).id, plan, run_here(store)) is not None
    (part,) = rowset(db).parts
    assert layout(db).superseded_bytes == rowset(db).meta.size_bytes // 3
    assert layout(db).expired_bytes == layout(db).superseded_bytes
    assert layout(db).base_bytes == rowset(db).meta.size_bytes + part.size_bytes
    rewrite = MergePlan((rowset(db).id,), 1.0)
    assert compact(store, store.root.table("t").id, tablet(db).id, rewrite, run_here(store)) is not None
    assert layout(db).superseded_bytes == 0 and not rowset(db).parts
