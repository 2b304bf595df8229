"""The invariants of the catalogue: `apply` refuses a change that breaks one, `problems` names it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import MappingProxyType

import pytest

from nyala.catalog.model import (
    CatalogChange,
    CatalogState,
    apply,
    purging_tables,
)

EMPTY = CatalogState.empty("s", 1)


@pytest.fixture
def state(full_change: CatalogChange) -> CatalogState:
    return apply(EMPTY, full_change)


def test_a_good_state_has_no_problems(state: CatalogState) -> None:
    assert list(EMPTY.problems()) == []
    assert list(state.problems()) == []
    assert list(apply(state, purging_tables(state, [1], 99)).problems()) == []


def change(state: CatalogState, what: str) -> CatalogChange:
    """Return the change of this name. It breaks the invariant in its name."""
    table, tablet, rowset, delta = (
        entries[1] for entries in (state.tables, state.tablets, state.rowsets, state.deltas)
    )
    made: dict[str, Callable[[], CatalogChange]] = {
        "M1 tablet": lambda: CatalogChange(put_tablets=[replace(tablet, id=9, table_id=9)]),
        "M1 rowset": lambda: CatalogChange(put_rowsets=[replace(rowset, id=9, path="x", tablet_id=9)]),
        "M1 delta": lambda: CatalogChange(put_deltas=[replace(delta, id=9, path="x", rowset_id=9)]),
        "M1 drop table": lambda: CatalogChange(drop_tables=[1]),
        "M1 drop tablet": lambda: CatalogChange(drop_tablets=[1]),
        "M1 drop rowset": lambda: CatalogChange(drop_rowsets=[1]),
        "M3 name": lambda: CatalogChange(put_tables=[replace(table, id=9)]),
        "M3 schema": lambda: CatalogChange(put_tables=[replace(table, schemas=MappingProxyType({}))]),
        "M4 absolute": lambda: CatalogChange(put_rowsets=[replace(rowset, path="/data/1.base")]),
        "M4 outside": lambda: CatalogChange(put_rowsets=[replace(rowset, path="data/../../1.base")]),
        "M4 garbage outside": lambda: CatalogChange(garbage=["../precious"]),
        "M4 used garbage": lambda: CatalogChange(put_rowsets=[replace(rowset, path="wal/000001.log")]),
        "unknown rowset": lambda: CatalogChange(drop_rowsets=[77]),
        "unknown garbage": lambda: CatalogChange(collected=["never/heard/of"]),
        "put and drop": lambda: CatalogChange(put_deltas=[delta], drop_deltas=[1]),
    }
    return made[what]()


BREAKING = [
    "M1 tablet", "M1 rowset", "M1 delta", "M1 drop table", "M1 drop tablet", "M1 drop rowset", "M3 name",
    "M3 schema", "M4 absolute", "M4 outside", "M4 garbage outside", "M4 used garbage", "unknown rowset",
    "unknown garbage", "put and drop",
]  # fmt: skip


@pytest.mark.parametrize("what", BREAKING)
def test_a_change_that_breaks_an_invariant_is_refused(state: CatalogState, what: str) -> None:
    """A fault of a flush or compaction is found before its change is durable."""
    with pytest.raises(AssertionError):
        apply(state, change(state, what))


replace = dataclasses.replace
BROKEN: dict[str, Callable[[CatalogState], CatalogState]] = {
    "M1: tablets without a table": lambda s: replace(s, tables={}),
    "M1: rowsets without a tablet": lambda s: replace(s, tablets={}),
    "M1: deltas without a rowset": lambda s: replace(s, rowsets={}),
    "M2: table": lambda s: replace(s, next_table_id=1),
    "M2: tablet": lambda s: replace(s, next_tablet_id=2),
    "M2: rowset": lambda s: replace(s, next_rowset_id=2),
    "M2: delta": lambda s: replace(s, next_delta_id=2),
    "M3: one name twice": lambda s: replace(s, tables={1: s.tables[1], 2: s.tables[1]}, next_table_id=3),
    "M3: no current schema": lambda s: replace(s, tables={1: replace(s.tables[1], schemas={})}),
    "M4: absolute": lambda s: replace(s, garbage={"/etc/passwd": 1}),
    "M4: not plain": lambda s: replace(s, garbage={"data//x": 1}),
    "M4: garbage in use": lambda s: replace(s, garbage={s.deltas[1].path: 1}),
    "T1: older than its entries": lambda s: replace(s, timestamp_max=54),
}


@pytest.mark.parametrize("what", BROKEN)
def test_problems_names_the_broken_invariant(state: CatalogState, what: str) -> None:
    """`check` and each load report the number of the broken invariant."""
    assert any(problem.startswith(what[:3]) for problem in BROKEN[what](state).problems())


def test_grouped_entries_are_in_order(state: CatalogState) -> None:
    """Tablets are in the order of their ids, and delta files in the order of time (R4)."""
    later = dataclasses.replace(state.deltas[2], id=4, path="data/1/4.redo", timestamp_min=1, timestamp_max=9)
    state = apply(state, CatalogChange(put_deltas=[later]))
    assert [tablet.id for tablet in state.tablets_by_table()[1]] == [1, 2]
    assert [rowset.id for rowset in state.rowsets_by_tablet()[2]] == [2]
    assert [delta.id for delta in state.deltas_by_rowset()[1]] == [4, 1, 2]
    assert [part.id for part in state.parts_by_rowset()[1]] == [3]
    assert sorted(state.files()) == sorted(
        ["data/1/1.base", "data/2/2.base", "data/1/1.undo", "data/1/2.redo", "data/1/4.redo", "data/1/3.part"]
    )
