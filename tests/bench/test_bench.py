"""`make bench` runs, at a scale at which its figures say nothing: what it prints and writes is right.

No test here looks at a time. Peers that are not installed are left out, as for a user who has not run `make bench`.
"""

from __future__ import annotations

import datetime as dt
import importlib.util
import os
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest

import nyala
from bench import (
    backfill,
    data,
    encodings,
    hot_rows,
    ingest_lookup,
    machine,
    measure,
    mixed_load,
    narrow_update,
    questions,
    report,
    scan_after_updates,
    sizes,
    stores,
    tpch,
    tpch_polars,
    user_tables,
)
from bench.__main__ import PARTS
from bench.rows import Rows


def ran(result: report.Report, tmp_path: Path) -> str:
    """The page that the part writes; its plots are XML."""
    report.save(result, ["a machine"], tmp_path)
    for name in result.plots:
        ElementTree.parse(tmp_path / name)
    return (tmp_path / "RESULTS.md").read_text()


def silent(text: str) -> None:
    del text


@pytest.mark.long
def test_scans_are_compared_before_and_after_and_every_answer_is_checked(tmp_path: Path) -> None:
    """The part itself compares each sum with what was written: a scan that lost an update would end it."""
    pytest.importorskip("duckdb")
    scale = scan_after_updates.Scale("tiny", 0.001, 2, (0.0, 0.10), 200, 1, 0.0)
    page = ran(scan_after_updates.run(scale, str(tmp_path), ["nyala", "duckdb", "parquet"], silent), tmp_path)
    for text in (
        "| nyala, before compaction |",
        "| duckdb, after compaction |",
        "| parquet |",
        "at most 1.3 × the untouched",
        "| nyala, before compaction, first run |",
    ):
        assert text in page
    assert page.count("<circle") == 0, "plots are files of their own"
    assert "![" in page


def test_bytes_of_a_narrow_update_are_counted(tmp_path: Path) -> None:
    """All steps have seconds, and where the system counts bytes, bytes."""
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
        assert "%" in cells[6]


@pytest.mark.long
def test_a_steady_load_has_a_first_and_a_last_window(tmp_path: Path) -> None:
    """Three paced threads, in a process of its own; every get finds its row."""
    scale = mixed_load.Scale("tiny", 500, 2.0, 1.0, 0.2, "1s")
    result = mixed_load.run(scale, str(tmp_path), ["nyala"], silent)
    page = ran(result, tmp_path)
    for operation in mixed_load.OPERATIONS:
        row = next(table for heading, table in result.tables if heading == f"Latency of {operation}").rows[0]
        assert row[0] == "nyala"
        assert row[-1] == "0", f"{operation} had errors"
    assert "disk at most 3 × live data + history" in page


def test_hot_rows_end_with_the_values_that_were_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The part compares the sum at the end; here that both stores came to it."""
    monkeypatch.setattr(hot_rows, "in_own_process", lambda measure, *arguments: measure(*arguments))
    page = ran(
        hot_rows.run(
            hot_rows.Scale("tiny", 1_000, 5.0, "1s", 5.0), str(tmp_path), ["nyala", "sqlite"], silent
        ),
        tmp_path,
    )
    assert "| nyala | 1,000 |" in page
    assert "| sqlite | 1,000 |" in page


@pytest.mark.long
def test_rows_are_loaded_changed_and_found_by_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The part itself compares answers, and the number of rows at the end; here that all steps were made."""
    monkeypatch.setattr(ingest_lookup, "in_own_process", lambda measure, *arguments: measure(*arguments))
    scale = ingest_lookup.Scale("tiny", 0.0003, 4, 4, 2, 2, 4, 2, 4, 2, 1_000, peer_step_s=2.0)
    result = ingest_lookup.run(scale, str(tmp_path), ["nyala", "sqlite", "parquet"], silent)
    page = ran(result, tmp_path)
    steps = [
        row[0]
        for row in {heading: table.rows for heading, table in result.tables}["Every step, first against last"]
    ]
    for store in ("nyala", "nyala-hash4", "sqlite"):
        assert [f"{store}, {title}" for title in ingest_lookup.STEPS.values()] == [
            step for step in steps if step.startswith(f"{store}, ")
        ]
    assert "| parquet |" in page
    assert len(result.aims) == 11
    assert all(aim.met is not None for aim in result.aims)
    for text in (
        "| nyala, old keys |",
        "| sqlite, today's keys |",
        "| nyala, calls |",
        "get at most 0.3 ms",
        "blocks, ",
    ):
        assert text in page
    profiled = (
        "load",
        "get, again",
        "1,000 keys, memory_limit 1GB",
        "upsert of 1,000, uniform",
        "delete of 1,000 keys",
    )
    for what in (*(f"nyala-hash4, {step}" for step in profiled), "nyala, load", "nyala, backfill, old keys"):
        assert f"- {what} (" in page, what
    aim = next(aim for aim in result.aims if aim.text.startswith("backfill: "))
    assert aim.met is False, (
        "of so small a table the index is not four times the least cache, and the page says so"
    )
    writes = next(table for heading, table in result.tables if heading.startswith("Nyala's writes"))
    assert [row[0] for row in writes.rows] == [
        f"{store}, {ingest_lookup.STEPS[step]}"
        for store in ("nyala", "nyala-hash4")
        for step in ingest_lookup.WRITES
    ]
    assert page.count(" without its sync (call ") == 4
    rows = dict(result.tables)["Calls of Python (cProfile), and bytes through system calls"]
    assert all(row[1] != "–" for row in rows.rows), "what the load took stands first, also of peers"


@pytest.mark.long
def test_tables_as_users_have_them_are_weighed(tmp_path: Path) -> None:
    """Every one in every store; each larger one is named by the aim, and what finds rows is told apart."""
    result = sizes.run(sizes.Scale("tiny", 1200), str(tmp_path), ["nyala", "parquet"], silent)
    page = ran(result, tmp_path)
    (_, table), (aim,) = result.tables[0], result.aims
    assert [row[0] for row in table.rows] == [table.name for table in user_tables.TABLES]
    larger = {row[0] for row in table.rows if float(row[5].split()[0]) > 1.004}
    assert larger <= set(aim.figure.partition("larger: ")[2].split(", ")) and aim.met is not True
    assert list(tmp_path.glob("*/*")) == [] and "Parquet, Zstandard" in page and "÷ DuckDB" not in page


def test_a_table_that_is_read_back_as_another_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A size of rows that are not those given says nothing."""
    monkeypatch.setattr(sizes, "TABLES", user_tables.TABLES[:1])
    real = nyala.Table.insert
    monkeypatch.setattr(nyala.Table, "insert", lambda self, rows: real(self, rows.slice(1)))
    with pytest.raises(AssertionError, match="sensor_minutes: other rows"):
        sizes.run(sizes.Scale("tiny", 1200), str(tmp_path), ["nyala"], silent)


def test_a_store_that_answers_wrongly_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fast wrong answer is no figure."""
    monkeypatch.setattr(ingest_lookup, "in_own_process", lambda measure, *arguments: measure(*arguments))
    monkeypatch.setattr("bench.stores.keyed.KeyedSqlite.delete", lambda self, keys: None)
    scale = ingest_lookup.Scale("tiny", 0.0003, 1, 1, 1, 1, 1, 1, 1, 1)
    with pytest.raises(AssertionError, match=r"sqlite has .* rows at the end, not"):
        ingest_lookup.run(scale, str(tmp_path), ["sqlite"], silent)


def test_queries_and_scans_answer_as_over_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The part itself compares each answer; here that there are figures. Below SF 0.01 TPC-H's keys are not unique."""
    pytest.importorskip("duckdb")
    if data.tpch_tool() is None:
        pytest.skip("needs tpchgen-cli (`make bench` installs it)")
    monkeypatch.setattr(tpch, "in_own_process", lambda measure, *arguments: measure(*arguments))
    result = tpch.run(tpch.Scale("tiny", 0.01, 1, 1, 1, (6, 13, 15)), str(tmp_path), None, silent)
    page = ran(result, tmp_path)
    for query in ("Q6", "Q13", "Q15"):
        assert f"| {query} |" in page
    tables = dict(result.tables)
    for title in (
        "The 22 queries",
        "Sums of whole columns of lineitem (of text its length)",
        f"Predicates on `{tpch.LINES}`: count and two sums of what matches",
    ):
        counted = tables[f"{title}: calls made and bytes read"]
        assert len(counted.columns) == 1 + 4 + 1 + 4
        for row in counted.rows:  # every figure, of every source, also as calls and bytes
            assert all(int(cell.replace(",", "")) > 0 for cell in row[1:5]), row
            assert all(cell != "–" for cell in row[5:]), row
        split = tables[f"{title}: where the time goes"]
        assert all("–" not in row for row in split.rows)
        assert split.rows[-1][0] == "mean share"
    for text in ("- The 22 queries, warm (", "- Q6, cold (", "- decode, rle (", "- encode, for ("):
        assert text in page
    for text in (
        "| l_comment |",
        "| key, 0.01 % |",
        "| l_quantity, plain |",
        "| lineitem |",
        "0.7 × Parquet's",
        "(as tpchgen-cli writes it; by PyArrow ",
        "(rounds ",
    ):
        assert text in page
    assert tpch.FULL.queries == tpch.QUICK.queries == tuple(range(1, 23))
    if importlib.util.find_spec("polars") is not None:
        for title, asked in (
            (tpch.POLARS_QUERIES, tpch_polars.queries((6, 13, 15))),
            (f"{tpch.POLARS_QUERIES}, joins without filters", tpch_polars.queries((6, 13, 15))),
            ("Polars, nine questions", tpch_polars.questions()),
        ):
            for text in (
                f"- {title}, warm (",
                f"- {title[0].lower()}{title[1:]}, cold, geometric mean at most Parquet's time: ",
                f"{title}, by processor time: geometric mean cold ",
            ):
                assert text in page
            assert [row[0] for row in tables[f"{title}: seconds (÷ Parquet's)"].rows] == [
                *asked,
                "geometric mean",
            ]
            assert [row[0] for row in tables[f"{title}: where the time goes"].rows] == [*asked, "mean share"]
            for row in tables[f"{title}: calls made and bytes read"].rows:
                assert all(int(cell.replace(",", "")) > 0 for cell in row[1:5]), row


def test_frames_of_many_rows_are_compared_whatever_their_order() -> None:
    """A hash of each row stands for it; an answer with one cell changed, or one moved to another row, is another."""
    pl = pytest.importorskip("polars")
    few = pl.DataFrame({"b": [1, 2], "a": ["x", None]})
    assert tpch_polars.comparable(few) == [("x", 1), (None, 2)]
    many = pl.DataFrame({"a": range(20_000), "b": [number % 7 for number in range(20_000)]})
    same = tpch_polars.comparable(many.reverse().select("b", "a"))
    assert tpch_polars.comparable(many) == same and len(same) == 1
    for other in (many.with_columns(b=pl.col("b").reverse()), many.head(19_999), many.select("a")):
        assert tpch_polars.comparable(other) != same


def test_a_round_has_a_geometric_mean_of_its_own() -> None:
    """So that a reader sees how much of the ratio is the hour: in each round, what all queries took against Parquet."""
    queries = {
        "Q1": questions.Found(
            {"cold": [1.0, 4.0], "parquet": [1.0, 1.0]}, {"cold": [1, 1], "parquet": [2, 4]}
        ),
        "Q2": questions.Found(
            {"cold": [4.0, 8.0], "parquet": [1.0, 2.0]}, {"cold": [1, 1], "parquet": [2, 1]}
        ),
    }
    assert tpch.round_means(queries, "cold") == pytest.approx([2.0, 4.0])
    assert tpch.round_means(queries, "cold", True) == pytest.approx([0.5, 0.5])


def test_the_same_rows_are_written_by_pyarrow_too(tmp_path: Path) -> None:
    """Parquet has no size of its own: it depends on the writer. What was written is gone afterwards."""
    pq.write_table(data._lineitem_like(1000), tmp_path / "lineitem.parquet")
    size = tpch._written_by_pyarrow(str(tmp_path), str(tmp_path))["bytes"]
    assert 10_000 < size < 200_000
    assert os.listdir(tmp_path) == ["lineitem.parquet"]


def test_an_encoding_that_decodes_to_something_else_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fast wrong decoder is no figure; NULLs belong to what is compared."""
    column = encodings.made_columns(1_000)["bool, NULLs"]
    assert column.null_count
    monkeypatch.setattr(encodings, "_bitmap", lambda block: (None, 0))
    with pytest.raises(AssertionError, match="bool, NULLs, .*: decoded to something else"):
        list(encodings._measured("bool, NULLs", column, 1))


def test_a_backfills_new_keys_are_new_and_its_old_ones_lie_before_todays() -> None:
    """Today's follow the last key, so that they stay new however often they come."""
    table = backfill.with_refs(data._lineitem_like(4_000))
    assert {len(text) for text in table.column("l_ref").to_pylist()} == {backfill.REF_LETTERS}
    batches = backfill.Batches(table, 100)
    keys = {tuple(row.values()) for row in table.select(backfill.KEY).to_pylist()}
    border = table.column("l_orderkey")[4_000 - 400].as_py()
    for number in range(6):
        for what, are_today in (("old", False), ("today", True)):
            rows, grows = getattr(batches, what)(number)
            given = {tuple(row.values()) for row in rows.select(backfill.KEY).to_pylist()}
            assert (len(given), len(given - keys), grows) == (100, 50, 50)
            assert all((key[0] >= border) == are_today for key in given)
            keys |= given


def test_figures_that_a_part_wrote_do_not_make_the_next_ones_code_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block names the commit that was measured, "-dirty" only if the code is not that commit's."""
    for name in ("bench/RESULTS.md", "bench/hot_rows.svg", "bench/part.py", "src/code.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("as it was")
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        who = ["-c", "user.name=n", "-c", "user.email=n@n", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True)
    monkeypatch.setattr(machine, "_HERE", tmp_path / "bench")
    clean = machine._commit()
    assert clean.startswith(" (commit ") and "-dirty" not in clean
    for name in ("bench/RESULTS.md", "bench/hot_rows.svg"):
        (tmp_path / name).write_text("figures")
    assert machine._commit() == clean
    (tmp_path / "src/code.py").write_text("changed")
    assert machine._commit() == clean.replace(")", "-dirty)")


def test_answers_are_the_same_but_for_the_last_digits_and_the_order_of_equals() -> None:
    """Doubles depend on the order of adding; what a query does not order comes in any order."""
    assert questions.same([(1, 0.1 + 0.2), (2, None)], [(2, None), (1, 0.3)])
    assert not questions.same([(1, 0.3)], [(1, 0.30001)])
    assert not questions.same([(1,), (1,)], [(1,)])


def test_keys_jump_over_the_table_and_none_comes_twice() -> None:
    """New keys are made from these places, so one that came twice would be no new key."""
    rows = Rows(data._lineitem_like(1_000), {})
    assert sorted(rows.spread(0, 1_000)) == list(range(1_000))
    hot = rows.zipfian(np.random.default_rng(1), 100)
    assert len(set(hot)) == 100
    assert set(hot) <= set(range(1_000))


def test_every_part_has_both_scales_and_runs_alone() -> None:
    """`make bench ARGS=--quick` finds them."""
    for module in PARTS.values():
        assert module.FULL.name == "full"
        assert module.QUICK.name == "quick"
        assert '__name__ == "__main__"' in Path(module.__file__).read_text()


def test_a_peer_that_is_missing_is_said_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has not installed Lance gets the other figures, and reads why Lance's are not there."""
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "lance" else found(name))
    said: list[str] = []
    chosen = stores.choose(stores.MIXED, ["nyala", "lance"], said.append)
    assert [kind.name for kind in chosen] == ["nyala"]
    assert said == ["lance is left out: lance is not installed (`make bench` installs it)"]


def test_a_new_run_replaces_its_own_block_and_no_other(tmp_path: Path) -> None:
    """A quick run by the way does not wipe out the full one."""
    full, quick = (
        report.Report("hot_rows", "full", "Hot rows (full)"),
        report.Report("hot_rows", "quick", "Hot rows (quick)"),
    )
    report.save(full, ["old machine"], tmp_path)
    report.save(quick, ["old machine"], tmp_path)
    report.save(quick, ["new machine"], tmp_path)
    page = (tmp_path / "RESULTS.md").read_text()
    assert page.count("## Hot rows (full)") == page.count("## Hot rows (quick)") == 1
    assert page.count("old machine") == page.count("new machine") == 1
    assert page.startswith("# Results")


def test_a_block_says_when_where_and_with_what() -> None:
    """A figure without machine, date and settings says nothing."""
    block = report.Report("p", "quick", "A part", settings={"nyala": "defaults"}).markdown(
        ["2 cores"], dt.datetime(2026, 11, 20, 10, 30)
    )
    for text in ("2026-11-20 10:30 UTC", "2 cores.", "- nyala: defaults"):
        assert text in block


def test_drift_of_the_machine_does_not_change_a_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides slow down together, and the ratio of neighbours stays."""
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
    """A peer that does not sync is made durable by the bench, and pays for what is new only."""
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
