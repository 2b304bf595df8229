"""`make bench` runs at a small scale, and prints and writes correct pages. No test checks a time.

Stores that are not installed are left out, as they would be for a user without `make bench`.
"""

from __future__ import annotations

import datetime as dt
import importlib.util
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import nyala
from bench import (
    bucket_costs,
    bucket_reads,
    data,
    hot_rows,
    ingest_lookup,
    machine,
    measure,
    mixed_load,
    narrow_update,
    query_times,
    report,
    scan_after_updates,
    sizes,
    stores,
    tpch,
    tpch_polars,
    transactions,
    user_tables,
)
from bench.__main__ import PARTS
from bench.rows import Rows


def ran(result: report.Report, tmp_path: Path) -> str:
    """Run a part. Return the page that it writes, with one table that fits a screen."""
    page = report.save(result, ["a machine"], tmp_path).read_text()
    assert len(result.table.rows) <= 45
    return page


def silent(text: str) -> None:
    del text


@pytest.mark.long
def test_scan_after_updates(tmp_path: Path) -> None:
    """The part itself compares each sum with the written values, so a scan that loses an update
    ends it.
    """
    pytest.importorskip("duckdb")
    scale = scan_after_updates.Scale("tiny", 0.001, 2, (0.0, 0.10), 200, 1, 0.0)
    page = ran(scan_after_updates.run(scale, str(tmp_path), ["nyala", "duckdb"], silent), tmp_path)
    for text in (
        "| nyala, Q1 before compaction |",
        "| duckdb, sum after compaction |",
        "at most 1.3 × the untouched",
        "| nyala, Q6 before compaction, first run |",
    ):
        assert text in page


@pytest.mark.long
def test_buckets(tmp_path: Path) -> None:
    """The parts compare the results. The part with costs waits until the lease of a killed writer
    has expired.
    """
    pytest.importorskip("duckdb")
    pytest.importorskip("obstore")
    reads = bucket_reads.run(bucket_reads.Scale("tiny", 5_000), str(tmp_path), None, silent)
    assert "| one key |" in ran(reads, tmp_path) and "2 requests" in reads.text()
    costs = bucket_costs.run(bucket_costs.Scale("tiny", 100_000, 20), str(tmp_path), None, silent)
    page = ran(costs, tmp_path)
    assert "| replace a writer after kill -9 |" in page and "| open 20 rowsets, reader |" in page
    assert 0 < float(costs.table.rows[0][-1]) < 0.1


def test_narrow_update(tmp_path: Path) -> None:
    """All steps have seconds, and written bytes if the system counts them."""
    page = ran(
        narrow_update.run(
            narrow_update.Scale("tiny", 2_000, 1), str(tmp_path), ["nyala", "sqlite", "parquet"], silent
        ),
        tmp_path,
    )
    line = next(line for line in page.splitlines() if line.startswith("| nyala |"))
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    assert cells[2].endswith("s")
    if measure.written_bytes() is not None:
        assert "%" in cells[5]


@pytest.mark.long
def test_mixed_load(tmp_path: Path) -> None:
    """Three threads run at fixed intervals, in another process. Every get finds its row."""
    scale = mixed_load.Scale("tiny", 500, 2.0, 1.0, 0.2, "1s")
    result = mixed_load.run(scale, str(tmp_path), ["nyala"], silent)
    page = ran(result, tmp_path)
    for operation in mixed_load.OPERATIONS:
        row = next(row for row in result.table.rows if row[0] == f"{operation}, held up; errors")
        assert row[1].endswith(", 0"), f"{operation} had errors"
    assert "disk at most 3 × live data + history" in page


def test_hot_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The part compares the sum at the end, for both stores."""
    monkeypatch.setattr(hot_rows, "in_own_process", lambda measure, *arguments: measure(*arguments))
    page = ran(
        hot_rows.run(
            hot_rows.Scale("tiny", 1_000, 5.0, "1s", 5.0), str(tmp_path), ["nyala", "sqlite"], silent
        ),
        tmp_path,
    )
    assert "| updates | 1,000 | 1,000 |" in page


def test_transactions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The part compares the increments of the threads. Here each step has figures for each way."""
    monkeypatch.setattr(transactions, "in_own_process", lambda measure, *arguments: measure(*arguments))
    scale = transactions.Scale("tiny", 5_000, 3, 4, 2, 3)
    result = transactions.run(scale, str(tmp_path), ["nyala", "sqlite"], silent)
    ran(result, tmp_path)
    assert len(result.table.rows) == 7 and [aim.figure for aim in result.aims] == ["12 of 12"]
    assert all(
        "–" not in row[1:] for row in result.table.rows if row[0].startswith(("increment of", "transfer"))
    )


@pytest.mark.long
def test_ingest_lookup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The part compares results, and the number of rows at the end. Here all steps have figures."""
    monkeypatch.setattr(ingest_lookup, "in_own_process", lambda measure, *arguments: measure(*arguments))
    scale = ingest_lookup.Scale("tiny", 0.0003, 4, 4, 2, 2, 4, 2, 4, peer_step_s=2.0)
    result = ingest_lookup.run(scale, str(tmp_path), ["nyala", "sqlite", "parquet"], silent)
    ran(result, tmp_path)
    assert list(result.table.columns) == ["step", "nyala", "nyala-hash4", "sqlite", "parquet"]
    steps = {row[0]: row[1:] for row in result.table.rows}
    for title in ingest_lookup.STEPS.values():
        assert "–" not in steps[title][:3], title
    assert steps["load"][3] != "–" and steps["get, again"][3] == "–", "Parquet takes part in the load only"
    assert len(result.aims) == 8 and all(aim.met is not None for aim in result.aims)


@pytest.mark.long
def test_sizes(tmp_path: Path) -> None:
    """Every table in every store. The aim names tables that are larger in Nyala, and indexes are
    shown separately.
    """
    result = sizes.run(sizes.Scale("tiny", 1200), str(tmp_path), ["nyala", "parquet"], silent)
    page = ran(result, tmp_path)
    table, (aim,) = result.table, result.aims
    assert [row[0] for row in table.rows] == [table.name for table in user_tables.TABLES]
    larger = {row[0] for row in table.rows if float(row[4].split()[0]) > 1.004}
    assert larger <= set(aim.figure.partition("larger in Nyala: ")[2].split(", "))
    assert list(tmp_path.glob("*/*")) == [] and "Parquet, Zstandard" in page and "÷ DuckDB" not in page


def test_sizes_fails_if_other_rows_are_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "TABLES", user_tables.TABLES[:1])
    real = nyala.Table.insert
    monkeypatch.setattr(nyala.Table, "insert", lambda self, rows: real(self, rows.slice(1)))
    with pytest.raises(AssertionError, match="sensor_minutes: other rows"):
        sizes.run(sizes.Scale("tiny", 1200), str(tmp_path), ["nyala"], silent)


def test_a_wrong_result_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest_lookup, "in_own_process", lambda measure, *arguments: measure(*arguments))
    monkeypatch.setattr("bench.stores.keyed.KeyedSqlite.delete", lambda self, keys: None)
    scale = ingest_lookup.Scale("tiny", 0.0003, 1, 1, 1, 1, 1, 1, 1)
    with pytest.raises(AssertionError, match=r"sqlite has .* rows at the end, not"):
        ingest_lookup.run(scale, str(tmp_path), ["sqlite"], silent)


def test_tpch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The part compares each result. Below scale factor 0.01, TPC-H's keys are not unique."""
    pytest.importorskip("duckdb")
    if data.tpch_tool() is None:
        pytest.skip("needs tpchgen-cli (`make bench` installs it)")
    monkeypatch.setattr(tpch, "in_own_process", lambda measure, *arguments: measure(*arguments))
    result = tpch.run(tpch.Scale("tiny", 0.01, 1, (6, 13, 15)), str(tmp_path), None, silent)
    ran(result, tmp_path)
    assert [row[0] for row in result.table.rows] == ["Q6", "Q13", "Q15", "geometric mean"]
    assert all("–" not in row[:4] for row in result.table.rows)
    assert tpch.FULL.queries == tpch.QUICK.queries == tuple(range(1, 23))
    if importlib.util.find_spec("polars") is not None:
        assert all("–" not in row for row in result.table.rows)


def test_large_results_are_compared_by_hash_in_any_order() -> None:
    """A result with one changed cell, or one cell in another row, is different."""
    pl = pytest.importorskip("polars")
    few = pl.DataFrame({"b": [1, 2], "a": ["x", None]})
    assert tpch_polars.comparable(few) == [("x", 1), (None, 2)]
    many = pl.DataFrame({"a": range(20_000), "b": [number % 7 for number in range(20_000)]})
    same = tpch_polars.comparable(many.reverse().select("b", "a"))
    assert tpch_polars.comparable(many) == same and len(same) == 1
    for other in (many.with_columns(b=pl.col("b").reverse()), many.head(19_999), many.select("a")):
        assert tpch_polars.comparable(other) != same


def test_results_of_an_earlier_part_do_not_make_the_commit_dirty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block names the measured commit, with "-dirty" only if the code differs."""
    for name in ("bench/RESULTS.md", "bench/part.py", "src/code.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("as it was")
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        who = ["-c", "user.name=n", "-c", "user.email=n@n", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True)
    monkeypatch.setattr(machine, "_HERE", tmp_path / "bench")
    clean = machine._commit()
    assert clean.startswith(" (commit ") and "-dirty" not in clean
    (tmp_path / "bench/RESULTS.md").write_text("figures")
    assert machine._commit() == clean
    (tmp_path / "src/code.py").write_text("changed")
    assert machine._commit() == clean.replace(")", "-dirty)")


def test_results_are_compared_without_order_and_last_digits() -> None:
    """Doubles depend on the order of adding."""
    assert query_times.same([(1, 0.1 + 0.2), (2, None)], [(2, None), (1, 0.3)])
    assert not query_times.same([(1, 0.3)], [(1, 0.30001)])
    assert not query_times.same([(1,), (1,)], [(1,)])


def test_spread_row_numbers_are_distinct() -> None:
    """New keys are made from them, and must be distinct too."""
    rows = Rows(data._lineitem_like(1_000), {})
    assert sorted(rows.spread(0, 1_000)) == list(range(1_000))
    hot = rows.zipfian(np.random.default_rng(1), 100)
    assert len(set(hot)) == 100
    assert set(hot) <= set(range(1_000))


def test_every_part_has_both_scales_and_runs_alone() -> None:
    """`make bench ARGS=--quick` uses the small one."""
    for module in PARTS.values():
        assert module.FULL.name == "full"
        assert module.QUICK.name == "quick"
        assert '__name__ == "__main__"' in Path(module.__file__).read_text()


def test_a_store_that_is_not_installed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line says why, and the other figures are there."""
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "deltalake" else found(name)
    )
    said: list[str] = []
    chosen = stores.choose(stores.MIXED, ["nyala", "deltalake"], said.append)
    assert [kind.name for kind in chosen] == ["nyala"]
    assert said == ["deltalake is left out: deltalake is not installed (`make bench` installs it)"]


def test_a_run_replaces_its_own_block(tmp_path: Path) -> None:
    """A run replaces its own block of RESULTS.md and no other one."""
    table = report.Table(["store"], [["nyala"]])
    for part, machine_ in (("hot_rows", "old"), ("tpch", "old"), ("hot_rows", "new")):
        made = report.Report(part, f"Part {part}", "A note", table, [report.at_most("fast", 1.2, 1.0)])
        page = report.save(made, [f"{machine_} machine"], tmp_path).read_text()
    assert page.count("## Part hot_rows") == page.count("## Part tpch") == 1
    assert page.count("old machine") == page.count("new machine") == 1
    assert page.startswith("# Results") and "- fast: 1.20 × (**missed**)" in page


def test_a_block_has_date_and_machine() -> None:
    block = report.Report("p", "A part", "A note", report.Table(["store"])).markdown(
        ["2 cores"], dt.datetime(2026, 11, 20, 10, 30)
    )
    assert "2026-11-20 10:30 UTC. A note.\n2 cores." in block


def test_drift_of_the_machine_does_not_change_a_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the machine becomes slower during a run, the ratio of two neighbouring times stays the
    same.
    """
    now_s, pace = 0.0, 1.0

    def cost(seconds: float) -> None:
        nonlocal now_s, pace
        now_s += seconds * pace
        pace *= 1.01

    monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=lambda: now_s))
    paired = measure.in_turns(lambda: cost(1.0), lambda: cost(2.0), 5, enough_s=0)
    assert paired.second_s > 2.05
    assert paired.ratio == pytest.approx(2.0, rel=0.011)


def test_files_are_synced_once_when_they_are_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmark syncs new files of stores that do not sync."""
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "0").write_text("0")
    durable = measure.Durable(str(tmp_path))
    synced: list[str] = []
    sync = os.fsync

    def watched(descriptor: int) -> None:
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        sync(descriptor)

    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("needs /proc to see which file is synced")
    monkeypatch.setattr(os, "fsync", watched)
    durable.sync()
    assert synced == []
    (tmp_path / "log" / "1").write_text("1")
    durable.sync()
    assert synced == ["1", "log"]
