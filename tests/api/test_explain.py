"""`explain()` shows what a scan read, and `explanation_of_last_run()` what an engine pushed down into it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pytest

import nyala
from nyala.schema.schema import allowed_encodings
from nyala.schema.types import parse_type
from nyala.tablet.scan.read_path import SPLIT_ROWS
from tests.support import folder_in_memory, open_database

ROWS = 300_000


@pytest.fixture(scope="module")
def table() -> Iterator[Any]:
    """A table with two rowsets whose keys do not overlap, three splits in all, and one row in memory."""
    with folder_in_memory() as folder, open_database(folder / "s") as db:
        table = db.create_table(
            "t", {"k": "int64", "v": nyala.column("int32", encoding="for"), "s": "string"}, "k"
        )
        for lower, upper in ((0, 200_000), (200_000, ROWS)):
            k = np.arange(lower, upper)
            table.insert({"k": k, "v": (k * 7919 % 1000).astype(np.int32), "s": np.array(["a", "b"])[k % 2]})
            db.flush()
        table.insert({"k": [ROWS], "v": [0], "s": ["memory"]})
        yield table


def test_a_key_range_is_shown_relative_to_the_whole_table(table: Any) -> None:
    found = table.scan(where="k BETWEEN 1000 AND 1010").explain()
    facts = found.to_dict()
    assert (facts["rows_total"], facts["rows_in_range"], facts["rows_skipped"]) == (
        ROWS + 1,
        11,
        ROWS + 1 - 11,
    )
    assert (facts["splits_total"], facts["splits_skipped"]) == (3, 2)
    assert "rows      11 of 300,001, 11 in matching partitions and key ranges\n" in str(found)
    assert "splits    1 of 3\n" in str(found)


def test_the_documentation_explains_every_line(table: Any) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "explain.md").read_text()
    found = table.scan(where="v < 900").explain()
    for line in str(found).splitlines()[1:]:
        assert f"| `{line.split()[0]}` |" in page, line
    assert "\n  filter    v\n" in str(found)
    for key in found.to_dict():
        assert f"`{key}`" in page, key
    assert f"{SPLIT_ROWS:,} rows" in page


ENCODINGS = [
    *(("int64", encoding) for encoding in allowed_encodings(parse_type("int64"))[1:]),
    *(("double", encoding) for encoding in allowed_encodings(parse_type("double"))[1:]),
    *(("string", encoding) for encoding in allowed_encodings(parse_type("string"))[1:]),
]


def test_before_the_first_read_all_figures_are_zero(table: Any) -> None:
    scan = table.scan(columns=["v"], where="k < 10")
    found = scan.explanation_of_last_run()
    assert str(found).splitlines()[1:] == [
        "  columns   v",
        "  where     k < 10",
        "  nothing was read yet",
    ]
    facts = found.to_dict()
    assert set(facts) == set(scan.explain().to_dict()) and facts["bytes_read"] == facts["rows_in_range"] == 0
    assert "nothing was read yet" in str(scan.explanation_of_last_run()), "explain() is a run of its own"
    assert scan.count() == 10
    assert "rows      10 of 300,001, 10 in matching" in str(scan.explanation_of_last_run())
    scan = table.scan(where="k < 0")
    assert scan.to_arrow().num_rows == 0
    assert "rows      0 of 300,001" in str(scan.explanation_of_last_run()), "this scan was read"


def test_a_limit_reduces_splits_and_rows(table: Any) -> None:
    found = table.scan(limit=5).explain()
    facts = found.to_dict()
    assert (facts["splits_total"], facts["splits_skipped"]) == (3, 2)
    assert (facts["rows_total"], facts["rows_skipped"]) == (ROWS + 1, ROWS + 1 - 5)
    assert "splits    1 of 3\n" in str(found) and "rows      5 of 300,001\n" in str(found)
    some = table.scan(where="v < 900", limit=5).explain().to_dict()
    assert some["splits_total"] - some["splits_skipped"] == 1
    whole = table.scan().explain().to_dict()
    assert whole["splits_skipped"] == whole["rows_skipped"] == 0


def test_the_scan_shows_what_polars_pushed_down(table: Any) -> None:
    scan = table.scan()
    assert scan.to_polars_lazy().filter(pl.col("k") < 10).select(pl.col("v").sum()).collect().height == 1
    facts = scan.explanation_of_last_run().to_dict()
    assert "s" not in facts["columns"] and "k < 10" in facts["where"]
    assert (facts["tablets_read"], facts["rows_in_range"]) == (1, 10)
    assert 0 < facts["blocks_total"] - facts["blocks_skipped"] < facts["blocks_total"]
    assert scan.to_polars().height == ROWS + 1
    assert scan.explanation_of_last_run().to_dict()["where"] is None


def test_the_scan_shows_what_duckdb_pushed_down(table: Any) -> None:
    scan = table.scan()
    with duckdb.connect() as con:
        relation = scan.to_duckdb(con)
        assert relation.filter("k < 10").aggregate("count(v)").fetchall() == [(10,)]
        facts = scan.explanation_of_last_run().to_dict()
        assert set(facts["columns"]) <= {"k", "v"} and "k < 10" in facts["where"]
        assert (facts["tablets_read"], facts["rows_in_range"]) == (1, 10)
        assert relation.aggregate("count(s)").fetchall() == [(ROWS + 1,)]
    facts = scan.explanation_of_last_run().to_dict()
    assert (facts["columns"], facts["where"], facts["rows_skipped"]) == (["s"], None, 0)


def test_runs_of_several_threads_are_never_mixed(table: Any) -> None:
    """Each explanation has the predicate and the figures of the same run."""
    scan = table.scan(columns=["k"])
    done = threading.Event()

    def read(rows: int) -> None:
        lazy = scan.to_polars_lazy().filter(pl.col("k") < rows)
        while not done.is_set():
            assert lazy.collect().height == rows

    threads = [threading.Thread(target=read, args=(rows,)) for rows in (10, 200)]
    for thread in threads:
        thread.start()
    seen = set()
    try:
        count, until = 0, time.monotonic() + 60
        while (count < 1_000 or len(seen) < 2) and time.monotonic() < until:
            count += 1
            facts = scan.explanation_of_last_run().to_dict()
            if facts["rows_in_range"]:
                seen.add((facts["where"], facts["rows_in_range"]))
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert {rows for _, rows in seen} == {10, 200} and all(f"< {rows}" in where for where, rows in seen)
