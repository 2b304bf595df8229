"""Compactions by executors: of many tablets at the same time, and while others read and write."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import nyala
import nyala.spark
from nyala.spark import frames

compact_module = importlib.import_module("nyala.spark.jobs.compact")
TABLETS, ROWS = 12, 6000


@pytest.fixture
def table(store: Path) -> Iterator[nyala.Table]:
    """Create twelve tablets, each with two rowsets whose keys overlap, and with changes in files."""
    with nyala.connect(store, maintenance=False) as db:
        made = db.create_table(
            "t", {"k": "int64", "v": "int64"}, ["k"], [nyala.hash_partition("k", buckets=TABLETS)]
        )
        for begin in (0, 1):
            made.insert({"k": list(range(begin, ROWS, 2)), "v": [0] * (ROWS // 2)})
            made.flush()
        made.update({"k": list(range(0, ROWS, 3)), "v": [1] * (ROWS // 3)})
        made.flush()
        yield made


def summed(df: DataFrame) -> tuple[int, ...]:
    return tuple(df.selectExpr("count(*)", "sum(k)", "sum(v)").first() or ())


def test_all_tablets_are_installed_in_one_change(spark: SparkSession, table: nyala.Table) -> None:
    """A second change of the catalogue forgets the replaced files."""
    before, version = table.to_arrow().sort_by("k"), table._database.stats().version
    done = nyala.spark.compact(spark, table)
    assert (done["compactions"], done["rowsets_rewritten"]) == (TABLETS, 2 * TABLETS)
    assert table._database.stats().version - version <= 2
    assert [tablet.rowsets for tablet in table.tablets()] == [1] * TABLETS
    assert table.stats().redo_bytes == 0 and table.to_arrow().sort_by("k") == before
    assert nyala.spark.compact(spark, table)["compactions"] == 0


def test_reads_and_writes_during_a_compaction(
    spark: SparkSession, table: nyala.Table, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A DataFrame keeps its rows before, during and after the compaction, however it is read. Rows
    that are written meanwhile are not lost.
    """
    monkeypatch.setattr(frames, "LOCAL_MAX_ROWS", -1)
    expected = (ROWS, sum(range(ROWS)), ROWS // 3)
    loaded = spark.read.format("nyala").options(path=str(store), table="t", partitions=3).load()
    reads = [loaded, table.scan().to_spark(spark)]
    assert [summed(df) for df in reads] == [expected] * 2
    files = set((store / "data").rglob("*.base"))
    meanwhile: list[Future[tuple[int, ...]]] = []
    showing_progress = compact_module.showing_progress

    @contextlib.contextmanager
    def beside(session: SparkSession, what: str) -> Iterator[None]:
        """Write during the first round. The written rows then need another round."""
        with ThreadPoolExecutor() as threads:
            if not meanwhile:
                meanwhile.extend(threads.submit(summed, df) for df in reads)
                table.upsert({"k": [0, 1, ROWS], "v": [100, 100, 100]})
                table.delete({"k": [2]})
            with showing_progress(session, what):
                yield

    monkeypatch.setattr(compact_module, "showing_progress", beside)
    assert nyala.spark.compact(spark, table)["compactions"] >= TABLETS
    assert [future.result() for future in meanwhile] == [expected] * 2
    assert [summed(df) for df in reads] == [expected] * 2
    assert files <= set((store / "data").rglob("*.base")), "the lease of a DataFrame keeps them"
    now = (ROWS, sum(range(ROWS)) + ROWS - 2, ROWS // 3 - 1 + 3 * 100)
    assert summed(table.scan().to_spark(spark)) == summed(spark.createDataFrame(table.to_arrow())) == now
    for lease in (store / "leases").glob("remote-*"):
        if lease.is_file():
            lease.unlink()
    table._database._writer().collect_garbage()
    assert not files & set((store / "data").rglob("*.base"))
