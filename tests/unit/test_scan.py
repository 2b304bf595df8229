"""How scans and tables are displayed: previews of rows, `head`, and messages for objects that cannot be shown."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.support import key_value_table, open_database

import nyala
from nyala.presentation.previews import preview


def test_a_preview_shows_complete_times(tmp_path: Path) -> None:
    """Times are not cut to the width of a cell, so fraction and zone are shown."""
    with open_database(tmp_path / "s") as db:
        table = db.create_table("t", {"time": "timestamp", "k": "int64", "other": "timestamp"}, ["time", "k"])
        noon = dt.datetime(2026, 11, 20, 12, tzinfo=dt.UTC)
        table.insert(
            {"time": [noon, noon + dt.timedelta(microseconds=50)], "k": [1, 2], "other": [noon, None]}
        )
        lines = preview(table.head()).splitlines()
        assert lines == [
            "time                         k  other",
            "2026-11-20T12:00:00Z         1  2026-11-20T12:00:00Z",
            "2026-11-20T12:00:00.000050Z  2  NULL",
        ]
        assert "<td>2026-11-20T12:00:00.000050Z</td><td>2</td><td>NULL</td>" in table._repr_html_()


def test_a_preview_of_times_that_no_datetime_holds() -> None:
    """A time outside the years 1 to 9999 is shown as its number of microseconds."""
    times = pa.array([2**62, -(2**62), 0], pa.timestamp("us", "UTC"))
    assert preview(pa.table({"t": times})).splitlines() == [
        "t",
        str(2**62),
        str(-(2**62)),
        "1970-01-01T00:00:00Z",
    ]


def test_a_preview_cuts_long_texts() -> None:
    """Long names and texts are cut to 24 characters, so the other columns stay visible."""
    text = preview(pa.table({"n" * 30: ["x" * 100, None], "k": [1, 2]}))
    assert text.splitlines() == ["n" * 23 + "…  k", "x" * 23 + "…  1", "NULL" + " " * 22 + "2"]


def test_a_comparison_with_null_is_noted_in_an_empty_preview(tmp_path: Path) -> None:
    """If a comparison with NULL makes a scan empty, the preview says that nothing equals NULL."""
    with open_database(tmp_path / "s") as db:
        table = key_value_table(db)
        table.insert({"k": [1, 2], "v": [1, None]})
        note = "(nothing equals NULL; use v IS NULL to find NULLs)"
        assert note in repr(table.scan(where="v = NULL")) and note in str(
            table.scan(where="v = NULL").explain()
        )
        for scan in (table.scan(where="v IS NULL"), table.scan(where="k = 1 OR v = NULL")):
            assert note not in repr(scan)


def test_head(tmp_path: Path) -> None:
    """`head(n)` returns the first rows within the limit of the scan, and reads only what it needs."""
    with open_database(tmp_path / "s") as db:
        table = key_value_table(db)
        table.insert({"k": list(range(300_000)), "v": [0] * 300_000})
        table.flush()
        scan = table.scan(order_by_key=True, where="k >= 7")
        assert scan.head().column("k").to_pylist() == list(range(7, 17))
        assert scan.head(2).column("k").to_pylist() == [7, 8]
        few = scan.explanation_of_last_run().to_dict()
        assert scan.head(0).num_rows == 0 and scan.head(0).schema == scan.schema
        assert table.scan(limit=3).head().num_rows == 3 and table.scan(limit=30).head(4).num_rows == 4
        assert scan.count() == 299_993
        scan.to_arrow()
        assert few["bytes_read"] + few["cache_hits"] < scan.explanation_of_last_run().to_dict()["bytes_read"]
        assert (
            table.head(2).column("k").to_pylist()
            == table.at(db.now()).head(2).column("k").to_pylist()
            == [0, 1]
        )
        assert table.scan(limit=np.int64(3)).head(np.int32(2)).num_rows == 2  # type: ignore[arg-type]
        for n in (-1, 1.5, None, True):
            with pytest.raises(
                nyala.InvalidArgumentError, match="head takes a number of rows, 0 or more, not"
            ):
                scan.head(n)  # type: ignore[arg-type]


def test_the_error_of_a_loop_over_a_scan_names_the_methods_to_use(tmp_path: Path) -> None:
    """`for row in scan` raises a TypeError that names `to_reader` and `to_arrow`."""
    with open_database(tmp_path / "s") as db:
        table = key_value_table(db)
        before = db.now()
        table.insert({"k": [1, 2], "v": [1, 2]})
        for rows, how in (
            (table, "table.scan()"),
            (table.at(db.now()), "table.scan()"),
            (table.scan(), "scan"),
            (table.changes(since=before), "feed"),
        ):
            with pytest.raises(TypeError) as error:
                list(rows)  # type: ignore[call-overload]
            assert f"for batch in {how}.to_reader():" in str(error.value)
            assert f"{how}.to_arrow().to_pylist()" in str(error.value)
            assert pa.table(rows).num_rows == 2


def test_objects_of_a_closed_store_can_be_displayed(tmp_path: Path) -> None:
    """`repr` of an object of a closed store, or of a dropped table, gives a sentence and no error."""
    with open_database(tmp_path / "s") as db:
        table = key_value_table(db)
        before = db.now()
        table.insert({"k": [1], "v": [2]})
        gone = db.create_table("gone", {"k": "int64"}, "k")
        db.drop_table("gone")
        shown = [table, table.scan(), table.changes(since=before), db.sql("SELECT * FROM t"), db]
        assert all(("<td>1</td>" in rows._repr_html_()) == (rows is not db) or rows is db for rows in shown)
        assert "<td>t</td>" in db._repr_html_()
        assert "dropped" in repr(gone) and "no table" in gone._repr_html_()
    for rows in shown:
        assert "closed" in rows._repr_html_(), type(rows)
        assert repr(rows)
