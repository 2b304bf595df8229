"""Images of rows are cut into pieces, and lose history that no snapshot needs."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from nyala.delta.run import LIVENESS, build_run
from nyala.keys.codec import KeyCodec
from nyala.rowset.image import RowSetImage
from nyala.schema.types import parse_type

V = 10


def image() -> RowSetImage:
    """Return four rows.

    Row 0 is alive from 1 on. Row 1 is alive from 2 to 8. Row 2 is alive from 3 on, and changed at 5
    and 9. Row 3 died before the history.
    """
    keys = KeyCodec([parse_type("int64")]).encode([pa.array([10, 11, 12, 13], pa.int64())])
    lives = build_run(
        "undo", np.array([0, 1, 1, 2]), np.array([1, 8, 2, 3]), pa.array([False, True, False, False])
    )
    values = build_run("undo", np.array([2, 2]), np.array([9, 5]), pa.array(["at 5", "at 3"]))
    return RowSetImage(
        keys,
        {1: pa.array([10, 11, 12, 13]), V: pa.array(["a", "b", "c", "d"])},
        pa.array([True, False, True, False]),
        {LIVENESS: lives, V: values},
        np.array([3, 2, 1, 0, -1]),
    )


def moments(found: RowSetImage) -> dict[int, list[tuple[int, int]]]:
    return {
        number: list(zip(run.rowids.tolist(), run.timestamps.tolist(), strict=True))
        for number, run in found.undo.items()
    }


@pytest.mark.parametrize(
    ("cut", "rows", "lives", "values"),
    [
        (0, [0, 1, 2], [(0, 1), (1, 8), (1, 2), (2, 3)], [(2, 9), (2, 5)]),
        (1, [0, 1, 2], [(1, 8), (1, 2), (2, 3)], [(2, 9), (2, 5)]),
        (7, [0, 1, 2], [(1, 8)], [(2, 9)]),
        (8, [0, 2], [], [(1, 9)]),
        (9, [0, 2], [], []),
    ],
)
def test_without_history_keeps_the_records_that_snapshots_need(
    cut: int, rows: list[int], lives: list[tuple[int, int]], values: list[tuple[int, int]]
) -> None:
    """Snapshots from the cut on need records after the cut, and rows that are alive after it."""
    found = image().without_history(cut)
    found.check()
    assert found.columns[1].to_pylist() == [10 + row for row in rows]
    assert found.row_count == len(rows)
    expected = {LIVENESS: lives, V: values}
    assert moments(found) == {number: records for number, records in expected.items() if records}
    places = {row: place for place, row in enumerate(rows)}
    assert found.positions.tolist() == [places.get(row, -1) for row in (3, 2, 1, 0, -1)]
    alive = [row in (0, 2) for row in rows]
    assert found.alive().tolist() == alive
    assert (found.liveness is None) == all(alive)


def test_a_piece_renumbers_rows_and_undo() -> None:
    """A large flush writes several rowsets, each with the history of its rows."""
    part = image().piece(1, 3)
    assert part.columns[V].to_pylist() == ["b", "c"] and part.alive().tolist() == [False, True]
    assert moments(part) == {LIVENESS: [(0, 8), (0, 2), (1, 3)], V: [(1, 9), (1, 5)]}
    living = image().piece(2, 3)
    assert living.liveness is None and moments(living)[V] == [(0, 9), (0, 5)]
    assert image().piece(0, 1).undo.keys() == {LIVENESS}


def test_rows_that_were_left_out_stay_without_a_position() -> None:
    """A second cut keeps the -1 of the first one."""
    found = image().without_history(7).without_history(8)
    found.check()
    assert found.positions.tolist() == [-1, 1, -1, 0, -1]
