"""`make bench` runs, at a scale at which its figures say nothing: what it prints and writes is right.

No test here looks at a time. Peers that are not installed are left out, as for a user who has not run `make bench`.
"""

from __future__ import annotations

import _thread
import datetime as dt
import importlib.util
import os
import subprocess
import sys
import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import nyala
from bench import (
    backfill,
    costs,
    data,
    encodings,
    hot_rows,
    ingest_lookup,
    machine,
    measure,
    mixed_load,
    narrow_update,
    plot,
    pulls,
    questions,
    report,
    scan_after_updates,
    sizes,
    stores,
    syncs,
    tpch,
    tpch_polars,
    user_tables,
)
from bench.__main__ import PARTS
from bench.rows import Rows
from nyala.tablet import parallel


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


@pytest.mark.long
def test_tables_of_users_are_the_same_each_time() -> None:
    """A size of today is compared with one of yesterday."""
    for table in user_tables.TABLES:
        rows = table.rows(600)
        assert rows.equals(table.rows(600)), table.name
        assert list(table.key) == rows.column_names[: len(table.key)]
        assert not any(rows.column(name).null_count for name in table.key)


def test_a_call_is_charged_with_the_syncs_that_its_own_thread_made() -> None:
    """A flusher's beside it are none of its; of one that began before the call counts what lies inside."""
    call = syncs.Span(1, 10.0, 20.0)
    made = [
        syncs.Span(1, 9.0, 11.0),
        syncs.Span(2, 12.0, 15.9),
        syncs.Span(1, 16.0, 18.5),
        syncs.Span(1, 21, 25),
    ]
    assert syncs.own_sync_s(made, [], call) == pytest.approx(1.0 + 2.5)
    inside = syncs.Span(1, 15.5, 19.0)  # of the log, in which it synced for itself
    assert syncs.own_sync_s(made, [inside], call) == pytest.approx(1.0 + 2.5)
    assert syncs.own_sync_s([], [inside], call) == 0


def test_a_call_is_charged_with_the_sync_of_another_thread_that_it_waited_for() -> None:
    """Of two at the same time once, and of neither what the call did not wait for."""
    call, wait = syncs.Span(1, 10.0, 20.0), syncs.Span(1, 12.0, 16.0)
    others = [syncs.Span(3, 14.5, 15.5), syncs.Span(2, 11.0, 15.0), syncs.Span(2, 17.0, 19.0)]
    assert syncs.own_sync_s(others, [wait], call) == pytest.approx(3.5)
    assert syncs.own_sync_s(others, [], call) == 0
    assert syncs.own_sync_s(others, [syncs.Span(4, 12.0, 16.0)], call) == 0, "somebody else waited"


def test_seconds_without_syncs_are_of_each_call_and_not_of_medians() -> None:
    """A disk of two speeds: the median of the differences is flat where neither of the medians is."""
    taken, synced = [1.5, 5.5, 5.6, 1.4, 5.5], [1.0, 5.0, 5.1, 0.9, 5.0]
    assert syncs.less(taken, synced) == pytest.approx([0.5] * 5)
    assert syncs.less(taken, [0.0] * 5) == [], "no sync was seen, so this is no figure without one"
    ours = ingest_lookup.Measured("nyala", "", {"sync_s": 0.1, "load_s": 1.0, "taken": {}, "synced": {}})
    for step in ingest_lookup.STEPS:
        ours.figures["taken"][step] = [4.0, 9.0, 9.0]
    for step in ingest_lookup.WRITES:
        ours.figures["synced"][step] = [3.9999, 8.9951, 8.9999]
    judged = report.Report("p", "quick", "A part")
    ingest_lookup._judge(judged, ours)
    verdicts = {aim.text.partition(" at most")[0]: aim for aim in judged.aims}
    assert verdicts["insert of one row"].met, "by the differences, not by the sync of another moment"
    assert verdicts["insert of one row"].figure == "0.1 ms without its sync (call 9 s, sync 9 s)"
    assert verdicts["one column in 10,000 rows"].met
    ours.figures["synced"]["insert"] = [3.9994, 8.9994, 8.9999]
    judged.aims.clear()
    ingest_lookup._judge(judged, ours)
    assert not next(aim for aim in judged.aims if aim.text.startswith("insert")).met
    ours.figures["synced"] = {}
    judged.aims.clear()
    ingest_lookup._judge(judged, ours)
    assert next(aim for aim in judged.aims if aim.text.startswith("insert")).met is None


def test_syncs_are_seen_where_they_are_made_and_the_functions_are_given_back(tmp_path: Path) -> None:
    """A durable write syncs; one that only looks does not; and nobody watches when nobody asked for it."""
    kept = os.fsync, syncs.LogWriter.sync
    watch = syncs.SyncWatch()
    with watch.running():
        store = ingest_lookup.KeyedNyala(str(tmp_path / "s"))
        store.load(pa.table({"k": [1, 2]}), ["k"])
        _, took_s, sync_in_s = watch.timed(lambda: store.insert(pa.table({"k": [3]})))
        assert took_s > sync_in_s > 0
        assert {span.thread for span in watch.waits} == {threading.get_ident()}
        got, _, sync_in_s = watch.timed(lambda: store.get({"k": 3}))
        assert (got, sync_in_s) == (True, 0)
        store.close()
    assert kept == (os.fsync, syncs.LogWriter.sync)


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


@pytest.mark.long
def test_speeds_of_encodings_say_how_many_calls_and_bytes_they_are_made_of(tmp_path: Path) -> None:
    """GB/s alone do not tell a slow decoder from one that is called for little blocks."""
    table = data._lineitem_like(3 * encodings.BLOCK_ROWS // 2)
    pq.write_table(table, tmp_path / "lineitem.parquet")
    measured: encodings.Encodings = encodings.measure(str(tmp_path), 1)["encodings"]
    found = {(one.column, one.encoding): one for one in measured.rows}
    assert {"plain", "rle", "bitshuffle", "for"} <= {
        encoding for name, encoding in found if name == "l_orderkey"
    }
    keys, flags = found["l_orderkey", "plain"], found["l_returnflag", "dictionary"]
    assert keys.arrow_bytes == keys.stored_bytes == keys.decoded_bytes == 8 * table.num_rows
    assert flags.stored_bytes < flags.arrow_bytes == flags.decoded_bytes  # text and offsets, no validity
    for one in found.values():
        assert one.blocks == 2
        assert one.encode_calls and one.decode_calls and one.decode_calls > 2
        assert len(one.cells()) == len(encodings.COLUMNS)
    assert keys.cells()[-1] == f"{16 * table.num_rows:,} / {16 * table.num_rows:,}"
    runs = found["int64, runs", "rle"]
    assert runs.stored_bytes < runs.arrow_bytes / 100, "a column that has runs"
    for name in (
        "bool, NULLs",
        "double, NULLs",
        "int64, NULLs",
        "text, NULLs",
        "decimal128(38, 4)",
        "bool, runs",
    ):
        assert sum(column == name for column, _ in found) >= 2, name
    assert {f"{way}, {one.encoding}" for way in ("encode", "decode") for one in found.values()} == set(
        measured.profiles
    )


def test_an_encoding_that_decodes_to_something_else_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fast wrong decoder is no figure; NULLs belong to what is compared."""
    column = encodings.made_columns(1_000)["bool, NULLs"]
    assert column.null_count
    monkeypatch.setattr(encodings, "_bitmap", lambda block: (None, 0))
    with pytest.raises(AssertionError, match="bool, NULLs, .*: decoded to something else"):
        list(encodings._measured("bool, NULLs", column, 1))


def test_a_questions_time_is_planning_windows_and_the_engine() -> None:
    """They add up, and what two threads wait for at one time counts once."""
    watch = pulls.Pulls()
    watch.spans = [syncs.Span(1, 12.0, 14.0), syncs.Span(2, 13.0, 15.0), syncs.Span(1, 18.0, 19.0)]
    split = watch.split(10.0, 20.0)
    assert split == pytest.approx((2.0, 4.0, 4.0))
    watch.begin()
    assert watch.split(10.0, 20.0) == (10.0, 0.0, 0.0), "what asked for no rows was planned only"
    assert pulls.middle([split, pulls.Split(4.0, 5.0, 6.0), pulls.Split(3.0, 9.0, 1.0)]) == (3.0, 5.0, 4.0)
    assert pulls.middle([]) is None


def test_pulls_are_seen_where_an_engine_makes_them_and_the_functions_are_given_back(tmp_path: Path) -> None:
    """What the scans read is told, and the parts add up to the time."""
    pytest.importorskip("duckdb")
    kept = nyala.Scan.batches, nyala.Scan.batches_ahead
    with nyala.connect(tmp_path) as db:
        db.create_table("t", {"k": "int64"}, ["k"]).insert(pa.table({"k": range(300_000)}))
        db["t"].flush()
        watch = pulls.Pulls()
        with watch.watching():
            answer = questions.clocked(lambda: db.sql("SELECT sum(k) FROM t").fetchall(), watch)
            assert watch.bytes_read() > 0
            told = costs.cost(lambda: db.sql("SELECT sum(k) FROM t").fetchall(), top=1000)
    assert answer.rows == [(300_000 * 299_999 // 2,)]
    assert answer.split is not None and min(answer.split) > 0
    assert sum(answer.split) == pytest.approx(answer.s)
    assert any("tablet/read_path.py" in name for name, _, _ in told.top)
    assert kept == (nyala.Scan.batches, nyala.Scan.batches_ahead)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="one profile at a time")
def test_a_cost_counts_calls_in_threads_of_engines_and_in_those_that_decode() -> None:
    """Which Python did not start, or which were there before."""

    def called() -> None:
        pass

    def made() -> Iterator[int]:
        for number in range(50):
            called()
            yield number

    def by_an_engine() -> None:
        ended = threading.Event()
        _thread.start_new_thread(lambda: (list(costs.seen(made())), ended.set()), ())
        assert ended.wait(60)

    parallel._workers(False).submit(called).result()
    kept = parallel._pools
    for act, times in (
        (by_an_engine, 50),
        (lambda: parallel._workers(False).submit(lambda: [called() for _ in range(70)]).result(), 70),
        (lambda: list(costs.seen(made())), 50),  # in this thread once, not twice
    ):
        found = costs.cost(act, top=1000)
        assert sum(calls for name, calls, _ in found.top if name.endswith(" called")) == times
    assert parallel._pools is kept


def test_costs_of_several_actions_add_up_and_what_one_does_not_know_nobody_does() -> None:
    first = costs.Cost(3, 10, None, (("f", 2, 0.5), ("g", 1, 0.1)))
    second = costs.Cost(4, 20, 5, (("g", 4, 0.6),))
    assert costs.merged([first, second]) == costs.Cost(7, 30, None, (("g", 5, 0.7), ("f", 2, 0.5)))
    waits = (
        ("method 'get' of '_queue.SimpleQueue' objects", 2, 1.5),
        ("nyala/sql/result.py:1 <lambda>", 1, 0.2),
    )
    text = costs.profile_text(costs.Cost(9, None, None, (*waits, ("nyala/a.py:1 f", 3, 0.001))))
    assert text.startswith("(waits) 1,500 ms in 2, (DuckDB, asked") and text.endswith(
        "`nyala/a.py:1 f` 1 ms in 3"
    )


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


def test_a_cache_of_a_quarter_of_the_key_index_is_what_nyala_is_given(tmp_path: Path) -> None:
    """The figure that the aim judges is the store's own limit, and not what it was meant to be."""
    given = str(tmp_path / "given")
    data.write_mapped(backfill.with_refs(data._lineitem_like(2_000)), given)
    index = backfill._load("nyala", given, str(tmp_path / "s"))["index"]
    assert index > 2_000 * backfill.REF_LETTERS / 2
    store, found = backfill._opened("nyala", str(tmp_path / "s"), 100_000_000)
    store.close()
    assert found.cache_bytes == 25_000_000 and found.index_to_cache == 4.0
    small = backfill.Backfilled("nyala", index, 4_000_000, "", {"old": [1.0], "today": [1.0]})
    small.costs = dict.fromkeys(backfill.TITLES, costs.Cost(1, 1, 1, ()))
    judged = report.Report("p", "quick", "A part")
    for one in (found, small):
        one.taken, one.costs = small.taken, small.costs
        backfill.report_on(judged, [one], backfill.Plan(1, 1, 1, 1), str, str)
    assert [aim.met for aim in judged.aims] == [True, False]


def test_a_processor_is_told_from_others_of_its_name() -> None:
    """Many a virtual machine says no more than "AMD EPYC"."""
    text = (
        "vendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\nstepping\t: 1\n\n"
    )
    text += "model name\t: another\n"
    assert machine.processor_of(text) == "AMD EPYC (AuthenticAMD, family 26, model 2, stepping 1)"
    assert machine.processor_of("model name : ARM") == "ARM"
    assert machine.processor_of("") == ""


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


def test_a_cost_counts_calls_also_in_threads_that_the_action_starts() -> None:
    """The interpreter's profile is of all threads from Python 3.12 on; before that each has its own."""

    def called() -> None:
        pass

    def act() -> None:
        worker = threading.Thread(target=lambda: [called() for _ in range(200)])
        worker.start()
        worker.join()
        for _ in range(100):
            called()

    found = costs.cost(act, top=1000)
    made = sum(calls for name, calls, _ in found.top if name.endswith(" called"))
    assert made == 300
    assert found.calls >= made


def test_a_mapped_table_is_the_table(tmp_path: Path) -> None:
    """Its buffers lie where every store takes them: decimals at multiples of 16 bytes."""
    table = data._lineitem_like(101).combine_chunks()
    data.write_mapped(table, str(tmp_path / "t"))
    read = data.read_mapped(str(tmp_path / "t"))
    assert read.equals(table)
    assert all(
        buffer.address % 64 == 0 for column in read.columns for buffer in column.chunk(0).buffers()[1:]
    )


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


def test_percentiles_are_values_that_occurred() -> None:
    assert measure.percentile([5, 1, 4, 2, 3], 0.5) == 3
    assert measure.percentile(list(range(1, 101)), 0.99) == 99
    assert measure.percentile([7.0], 0.99) == 7.0


def test_what_a_slow_operation_held_up_is_counted() -> None:
    """Ten seconds' stop of a store that is asked once a second shows as ten slow operations, not as one."""
    samples = measure.Samples()
    assert samples.add(0, 0.5, 1) == 0
    missed = samples.add(1, 10, 1)
    assert (samples.made, samples.held_up, missed) == (2, 9, 9)
    assert [took for _, took in samples.points[1:]] == [10, 9, 8, 7, 6, 5, 4, 3, 2, 1]


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


def test_plots_keep_their_points_inside(tmp_path: Path) -> None:
    """A logarithmic panel leaves out what is not above zero, and no line leaves its panel."""
    lines = [
        plot.Series("a <b>", [0, 1, 2], [0.0, 10.0, 2500.0]),
        plot.Series("b", [0, 1, 2], [3.0, 4.0, 5.0], True),
    ]
    text = plot.figure(
        "t & u", "seconds", [plot.Panel("p", lines, log=True, aim=(250.0, "aim")), plot.Panel("q", lines)]
    )
    root = ElementTree.fromstring(text)
    height = float(root.attrib["viewBox"].split()[3])
    circles = [e for e in root.iter() if e.tag.endswith("circle")]
    assert len(circles) == 2 + 3 + 3 + 3
    assert all(0 < float(e.attrib["cy"]) < height for e in circles)


def test_rows_like_lineitem_have_a_key_and_its_types() -> None:
    """Without TPC-H's generator the scans run on rows of the same shape."""
    table = data._lineitem_like(1_000)
    key = table.select(data.LINEITEM_KEY)
    assert key.group_by(data.LINEITEM_KEY).aggregate([]).num_rows == 1_000
    assert table.schema.field("l_quantity").type == pa.decimal128(15, 2)
    quantities = table.column("l_quantity").to_pylist()
    assert 1 <= min(quantities) <= max(quantities) <= 50
