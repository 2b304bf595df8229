"""Tablets that a scan skips by their partitions: the scan returns all selected rows; `explain()` counts the tablets.

The tables contain every possible row of a small universe, and the expected result is that of a filter in Python.
`tests/unit/partition/test_pruning.py` tests the pruning alone, with more kinds of levels and predicates."""

from __future__ import annotations

import itertools
import operator as operators
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import nyala
from tests.support import folder_in_memory, open_database

UNIVERSE: dict[str, list[Any]] = {
    "int8": [-128, -1, 0, 1, 127],
    "string": ["", "\0", "a", "ab"],
    "date": ["1969-12-31", "1970-01-01", "2014-05-05"],
}
OPERATORS = ["=", "<", "<=", ">", ">=", "in"]


Bound = tuple[Any, ...] | None
Ranges = list[tuple[Bound, Bound]]


@st.composite
def levels(draw: st.DrawFn, types: dict[str, str]) -> tuple[list[Any], list[str], Ranges]:
    """Draw hash levels without common columns, and mostly a range level with gaps between its ranges.

    Returns the levels, and the range level's columns and bounds, or no columns.
    """
    names = draw(st.permutations(list(types)))
    cut = draw(st.integers(0, len(names)))
    found: list[Any] = [
        nyala.hash_partition(*part, buckets=draw(st.integers(2, 4)))
        for part in (names[:cut], names[cut:])
        if part and draw(st.booleans())
    ]
    if not draw(st.integers(0, 3)):
        return found, [], [(None, None)]
    columns = draw(st.permutations(list(types)))[: draw(st.integers(1, len(types)))]
    rows = list(itertools.product(*(UNIVERSE[types[name]] for name in columns)))
    # The smallest key cannot be a bound, because no key is below it.
    edges: list[Bound] = sorted(draw(st.lists(st.sampled_from(rows[1:]), max_size=3, unique=True)))
    ranges = list(itertools.pairwise([None, *edges, None]))
    ranges = [ranges[i] for i in sorted(draw(st.sets(st.sampled_from(range(len(ranges))), min_size=1)))]
    found.append(nyala.range_partition(*columns, bounds=ranges))
    return found, columns, ranges


def inside(row: dict[str, Any], columns: list[str], bounds: tuple[Bound, Bound]) -> bool:
    key, (lower, upper) = tuple(row[name] for name in columns), bounds
    return (lower is None or lower <= key) and (upper is None or key < upper)


@st.composite
def predicates(draw: st.DrawFn, types: dict[str, str]) -> list[tuple[str, str, Any]]:
    """Draw a list of (column, operator, value or values); a row must satisfy all of them."""
    found = []
    for name in draw(st.lists(st.sampled_from(list(types)), max_size=3)):
        operator, values = draw(st.sampled_from(OPERATORS)), UNIVERSE[types[name]]
        wanted = (
            st.lists(st.sampled_from(values), min_size=1, max_size=3)
            if operator == "in"
            else st.sampled_from(values)
        )
        found.append((name, operator, draw(wanted)))
    return found


COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": operators.eq, "<": operators.lt, "<=": operators.le, ">": operators.gt, ">=": operators.ge,
}  # fmt: skip


def holds(row: dict[str, Any], name: str, operator: str, value: Any) -> bool:
    # Python compares these texts and ISO dates in the same order as Nyala.
    return row[name] in value if operator == "in" else bool(COMPARE[operator](row[name], value))


def tree(name: str, operator: str, value: Any) -> Any:
    column = nyala.col(name)
    return column.isin(value) if operator == "in" else COMPARE[operator](column, value)


@given(data=st.data())
def test_a_scan_skips_no_selected_row(data: st.DataObject) -> None:
    """This holds even after columns were renamed and a range was dropped."""
    kinds = data.draw(st.lists(st.sampled_from(list(UNIVERSE)), min_size=1, max_size=3))
    types = {f"k{n}": kind for n, kind in enumerate(kinds)}
    rows = [
        dict(zip(types, values, strict=True)) for values in itertools.product(*(UNIVERSE[k] for k in kinds))
    ]
    partition_by, columns, ranges = data.draw(levels(types))
    with folder_in_memory() as folder, open_database(folder / "s") as db:
        table = db.create_table("t", types, list(types), partition_by)
        result = table.insert(rows, errors="collect")
        rows = [row for row in rows if any(inside(row, columns, bounds) for bounds in ranges)]
        assert result.inserted == len(rows)
        names = {name: name for name in types}
        for step in ("", "renamed", "dropped"):
            with table.alter() as a:
                if step == "renamed":
                    for name in types:
                        names[name] = f"new_{name}"
                        a.rename_column(name, names[name])
                elif step == "dropped" and columns:
                    gone = data.draw(st.sampled_from(ranges))
                    a.drop_range(*gone)
                    rows = [row for row in rows if not inside(row, columns, gone)]
            tablets = table.tablets()
            assert sum(tablet.rows for tablet in tablets) == len(rows)
            for _ in range(6):
                wanted = data.draw(predicates(types))
                where = None
                for name, operator, value in wanted:
                    term = tree(names[name], operator, value)
                    where = term if where is None else where & term
                scan = table.scan(where=where)
                selected = [row for row in rows if all(holds(row, *part) for part in wanted)]
                found = [tuple(str(value) for value in row.values()) for row in scan.to_arrow().to_pylist()]
                assert sorted(found) == sorted(
                    tuple(str(value) for value in row.values()) for row in selected
                )
                facts = scan.explain().to_dict()
                assert facts["tablets_total"] == len(tablets)
                pinned = {name for name, operator, _ in wanted if operator == "="}
                if pinned == set(types) and len(wanted) == len(types):
                    assert facts["tablets_read"] <= 1, "one key is in one tablet"
