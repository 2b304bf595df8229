"""Cost is counted in calls: a write over many tablets must not pay per tablet what it should pay once (design §3).

Every Python function and every C function that the interpreter calls is counted. Calls into Arrow are
written in Cython and do not show in that count; they are seen through the functions of ours that make them,
and stand apart in the second test.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tests.support import calls_of, open_database

import nyala

COLUMNS = 16
ROWS = 1000
ROUNDS = 3
# A MemRowSet or a DeltaMemStore takes its slice of a batch: 27 calls of Python, three quarters of them plain functions.
CALLS_PER_TABLET_MAX = 30


def count_calls(path: Path, tablets: int, columns: int = COLUMNS) -> dict[str, Counter[str]]:
    """Calls of an upsert of 1,000 rows: new rows ("insert"), then the same rows again ("update").

    The fewest of a few rounds, and without the garbage collector: what it frees in passing, and a wait for
    a thread that works in the background, make calls too, and are not the write's.
    """
    db = open_database(path)
    names = [f"c{number}" for number in range(columns - 1)]
    table = db.create_table(
        "t",
        {"k": "int64", **dict.fromkeys(names, "int64")},
        "k",
        [nyala.hash_partition("k", buckets=tablets)],
    )
    out: dict[str, Counter[str]] = {}
    # What is derived once per table and process is not the write's.
    table.upsert(dict.fromkeys(("k", *names), np.arange(-ROWS, 0)))
    for number in range(ROUNDS):
        keys = np.arange(number * ROWS, (number + 1) * ROWS)
        data = dict.fromkeys(("k", *names), keys)
        for step in ("insert", "update"):
            calls = calls_of(lambda data=data: table.upsert(data))
            if step not in out or calls.total() < out[step].total():
                out[step] = calls
    db.close()
    return out


@pytest.mark.parametrize("step", ["insert", "update"])
def test_an_upsert_makes_few_calls_for_each_tablet_more(tmp_path: Path, step: str) -> None:
    """Else a table with many tablets would be slow to write, whatever its size."""
    few, many = count_calls(tmp_path / "few", 4)[step], count_calls(tmp_path / "many", 64)[step]
    assert few.total() > 500
    assert many.total() - few.total() <= CALLS_PER_TABLET_MAX * 60
    # Of NumPy's calls hardly any is made per tablet.
    assert many["numpy"] <= 1.5 * few["numpy"]


def test_the_calls_per_column_do_not_depend_on_the_tablets(tmp_path: Path) -> None:
    """A column more costs the same number of calls over 4 tablets and over 64: rows are taken once, and
    sliced when read."""
    added = {}
    for tablets in (4, 64):
        narrow = count_calls(tmp_path / f"narrow{tablets}", tablets, 4)["insert"]
        wide = count_calls(tmp_path / f"wide{tablets}", tablets, 24)["insert"]
        added[tablets] = (wide.total() - narrow.total()) / 20
    assert added[64] == pytest.approx(added[4], abs=1)


def test_looking_up_a_row_makes_calls_per_column_and_no_more(tmp_path: Path) -> None:
    """A `get` is some hundred microseconds of Python: each call that comes per column comes sixteen times."""
    calls = {}
    for columns in (4, 24):
        with open_database(tmp_path / f"s{columns}") as db:
            names = [f"c{number}" for number in range(columns - 1)]
            table = db.create_table("t", {"k": "int64", **dict.fromkeys(names, "int64")}, "k")
            table.insert(dict.fromkeys(("k", *names), np.arange(ROWS)))
            table.flush()
            for number in range(5):  # what is read, and worked out, once
                table.get({"k": number})
            calls[columns] = calls_of(lambda table=table: table.get({"k": 7})).total()
    assert (calls[24] - calls[4]) / 20 <= 28
    assert calls[4] <= 400
