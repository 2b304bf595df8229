"""What a scan shows of itself: a few rows, as a person reads them."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
from tests.support import open_database

from nyala.scan import preview


def test_a_preview_shows_times_whole(tmp_path: Path) -> None:
    """Cut at the width of a cell they would lose fraction and zone, and look like other times."""
    with open_database(tmp_path / "s") as db:
        table = db.create_table("t", {"time": "timestamp", "k": "int64", "other": "timestamp"}, ["time", "k"])
        noon = dt.datetime(2026, 11, 20, 12, tzinfo=dt.UTC)
        table.insert(
            {"time": [noon, noon + dt.timedelta(microseconds=50)], "k": [1, 2], "other": [noon, None]}
        )
        first, *lines = repr(table.scan(order_by_key=True)).splitlines()
        assert first.startswith("Scan of t at ")
        assert lines == [
            "time                         k  other",
            "2026-11-20T12:00:00Z         1  2026-11-20T12:00:00Z",
            "2026-11-20T12:00:00.000050Z  2  NULL",
        ]
        assert lines[2] in table._repr_html_()


def test_a_preview_of_years_that_python_has_no_dates_for() -> None:
    """A row that can be stored can be looked at: such a time is its number of microseconds."""
    times = pa.array([2**62, -(2**62), 0], pa.timestamp("us", "UTC"))
    assert preview(pa.table({"t": times})).splitlines() == [
        "t",
        str(2**62),
        str(-(2**62)),
        "1970-01-01T00:00:00Z",
    ]


def test_a_preview_cuts_what_is_long() -> None:
    """One long text must not push the other columns out of sight."""
    text = preview(pa.table({"n" * 30: ["x" * 100, None], "k": [1, 2]}))
    assert text.splitlines() == ["n" * 23 + "…  k", "x" * 23 + "…  1", "NULL" + " " * 22 + "2"]
