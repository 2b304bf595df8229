"""The cost of an open: it depends on the present content of the store, and a log is replayed fast."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import nyala
from nyala.catalog.model import CatalogChange, CatalogState
from tests.corruption.seeded import tamper
from tests.figures import counted
from tests.support import folder_in_memory, open_database

ROWSETS = 10_000


def many_rowsets(path: Path, count: int = ROWSETS) -> None:
    """Create a store with this number of rowsets, by copying the catalogue entries of a few.

    The rowsets have UNDO files and 9 columns.
    """
    columns = {"k": "int64", **{f"v{n}": "int64" for n in range(8)}}
    with open_database(path) as db:
        table = db.create_table("t", columns, "k", nyala.hash_partition("k", buckets=16))
        table.insert({name: range(64) for name in columns})
        db.flush()

    def multiply(state: CatalogState) -> CatalogChange:
        undo = {delta.rowset_id: delta for delta in state.deltas.values()}
        rowsets = sorted(state.rowsets.values(), key=lambda entry: entry.id)
        change = CatalogChange()
        for number in range(1000, 1000 + count):
            source = rowsets[number % len(rowsets)]
            name = f"data/{source.tablet_id}/{number}.base"
            change.put_rowsets.append(replace(source, id=number, path=name))
            change.put_deltas.append(
                replace(undo[source.id], id=number, rowset_id=number, path=name + ".undo")
            )
            os.link(path / source.path, path / name)
            os.link(path / undo[source.id].path, path / (name + ".undo"))
        return change

    tamper(path, multiply)


def test_an_open_starts_few_garbage_collections(tmp_path: Path) -> None:
    """Otherwise the collector, which visits all entries and rowsets again and again, takes as long
    as the rest.
    """
    seen: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            seen.append(info["generation"])

    many_rowsets(tmp_path / "s", 1500)
    gc.collect()
    gc.callbacks.append(note)
    try:
        open_database(tmp_path / "s").close()
    finally:
        gc.callbacks.remove(note)
    assert len(seen) < 12, seen  # 140 without this
    assert gc.isenabled()


@pytest.mark.long
def test_a_store_of_ten_thousand_rowsets_opens_within_two_seconds() -> None:
    """Measured in CPU time of this process."""
    with folder_in_memory() as folder:
        many_rowsets(folder / "s")
        taken_s = []
        for _ in range(3):
            began_s = time.process_time()
            db = open_database(folder / "s")
            taken_s.append(time.process_time() - began_s)
            assert db["t"].stats().rowsets == ROWSETS + 16
            db.close()
        with counted(
            f"opening 10,000 rowsets of 9 columns: {min(taken_s):.2f} s of processor time", "opens"
        ) as tried:
            tried.append(3)
        assert min(taken_s) < 4, taken_s  # the aim is 2 s; the machine of CI may be half as fast


def replay_s(path: Path, rows: int) -> float:
    """Return the CPU seconds of an open, after which the store has this number of rows."""
    began_s = time.process_time()
    with open_database(path) as db:
        taken_s = time.process_time() - began_s
        assert db["t"].count() == rows
    return taken_s


@pytest.mark.long
def test_a_log_is_replayed_at_a_million_rows_a_second() -> None:
    """The log has batches of 65,536 rows, each with its own timestamp."""
    batches, rows = 40, 1 << 16
    with folder_in_memory() as folder:
        with open_database(folder / "s", log_limit_bytes=1 << 40) as db:
            table = db.create_table("t", {"k": "int64", "v": "double"}, "k")
            for batch in range(batches):
                keys = np.arange(batch * rows, (batch + 1) * rows)
                table.insert({"k": keys, "v": keys / 7})
        taken_s = replay_s(folder / "s", batches * rows)
        rate = batches * rows / taken_s
        with counted(
            f"replay of batches of 65,536 rows: {rate / 1e6:.1f} million rows a second", "rows"
        ) as tried:
            tried.append(batches * rows)
        assert rate > 500_000, rate  # the aim is a million


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is read from /proc")
def test_a_gigabyte_of_log_is_replayed_in_bounded_memory() -> None:
    """With a memory limit of 64 MB, the replay flushes in between."""
    with folder_in_memory() as folder:
        with open_database(folder / "s", log_limit_bytes=1 << 40, memory_limit_bytes=8 << 30) as db:
            table = db.create_table("t", {"k": "int64", "v": "binary"}, "k")
            value = [b"x" * 1000] * 10_000
            for batch in range(100):
                table.insert({"k": range(batch * 10_000, (batch + 1) * 10_000), "v": value})
            assert db.stats().log_bytes > 1e9
        script = (
            "import sys, nyala\n"
            "def peak():  # of this program: what getrusage says counts what the parent had, too\n"
            "    lines = open('/proc/self/status').read().splitlines()\n"
            "    return next(int(line.split()[1]) for line in lines if line.startswith('VmHWM'))\n"
            "before = peak()\n"
            "with nyala.connect(sys.argv[1], memory_limit='64MB', maintenance=False) as db:\n"
            "    opened = peak()\n"
            "    print(opened - before, db['t'].count())\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script, str(folder / "s")], capture_output=True, text=True, check=True
        )
        peak, count = map(int, done.stdout.split())
        peak_mb = peak / 1024
        with counted(
            f"replay of a log of 1 GB with memory_limit 64 MB: {peak_mb:,.0f} MB at most", "rows"
        ) as tried:
            tried.append(count)
        assert count == 1_000_000 and peak_mb < 600
