"""Loads, upserts, compactions and backups by executors."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import nyala
import nyala.spark
from nyala.errors import (
    ColumnNotFoundError,
    CorruptionError,
    DuplicateKeyError,
    HistoryExpiredError,
    InvalidArgumentError,
    SchemaError,
)
from nyala.handover import commits as handover
from nyala.schema.limits import Limits
from nyala.spark import frames
from nyala.spark.jobs import backup as backup_jobs
from nyala.spark.jobs import progress
from nyala.spark.jobs import small_frames as small

load_module = importlib.import_module("nyala.spark.jobs.load")


@pytest.fixture
def db(store: Path) -> Iterator[nyala.Database]:
    with nyala.connect(store, maintenance=False) as opened:
        yield opened


@pytest.fixture(autouse=True)
def on_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let executors write also small DataFrames."""
    monkeypatch.setattr(small, "SMALL_BYTES", -1)


def ids(spark: SparkSession, begin: int, end: int, value: int, parts: int = 3) -> DataFrame:
    return spark.range(begin, end, 1, parts).selectExpr("id AS k", f"id * {value} AS v", "'x' AS w")


@pytest.mark.parametrize("where", ["on executors", "here"])
def test_load_and_upsert(
    spark: SparkSession, db: nyala.Database, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """A load or upsert is one batch over all tablets. If a row fails, nothing changes and no file
    is left. For a small DataFrame, which this process writes, results, errors and row numbers are
    the same.
    """
    if where == "here":
        monkeypatch.undo()
        monkeypatch.setattr(handover, "loading", None)
    table = db.create_table(
        "t", {"k": "int64", "v": "int64", "w": "string"}, ["k"], [nyala.hash_partition("k", buckets=5)]
    )
    loaded = nyala.spark.load(ids(spark, 0, 1000, 1), table)
    assert (loaded.inserted, table.count(at=loaded.timestamp - 1), table.count()) == (1000, 0, 1000)
    table.update({"k": [7], "w": ["late"]})
    tasks = 2 if where == "on executors" else None
    changed = nyala.spark.upsert(ids(spark, 900, 1100, -1).drop("w"), table, tasks=tasks)
    assert (changed.inserted, changed.updated) == (100, 100)
    assert [table.get({"k": k}) for k in (7, 950, 1050)] == [
        {"k": 7, "v": 7, "w": "late"}, {"k": 950, "v": -950, "w": "x"}, {"k": 1050, "v": -1050, "w": None},
    ]  # fmt: skip
    before = db.now()
    with pytest.raises(DuplicateKeyError, match="already-present") as raised:
        nyala.spark.load(ids(spark, 1099, 1102, 1), table)
    assert raised.value.errors["k"].to_pylist() == [1099]
    assert (table.count(), table.changes(since=before).to_arrow().num_rows) == (1100, 0)
    assert "\n  partition 0, row 0 (k=1099): already-present: " in str(raised.value)
    more = ids(spark, 1090, 1102, 1)
    collected = nyala.spark.load(more, table, errors="collect")
    assert (collected.inserted, collected.errors["k"].to_pylist()) == (2, list(range(1090, 1100)))
    numbered = more.withColumn("row", F.monotonically_increasing_id())
    failed = numbered.where(F.col("row").isin(collected.errors["row"].to_pylist()))
    assert sorted(row.k for row in failed.collect()) == list(range(1090, 1100)), (
        "rows are found by their number"
    )
    assert [p for p in (Path(db.path) / "staging").rglob("*") if p.is_file()] == []
    with pytest.raises(SchemaError, match="expected int64, got string"):
        nyala.spark.load(spark.sql("SELECT '1' AS k"), table)


@pytest.mark.parametrize("where", ["on executors", "here"])
def test_errors_of_a_dataframe_are_the_same_for_driver_and_executors(
    spark: SparkSession, db: nyala.Database, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Rule U1. A DataFrame without the key is refused before any job. Messages have no row
    positions that only Nyala knows. If no row fails, `.errors` is empty.
    """
    if where == "here":
        monkeypatch.undo()
        monkeypatch.setattr(handover, "loading", None)
    table = db.create_table("t", {"k": "int64", "v": "int64", "w": "string"}, ["k"])
    with pytest.raises(InvalidArgumentError, match="key column 'k' of table 't' is missing"):
        nyala.spark.upsert(spark.sql("SELECT 1L AS v"), table, errors="collect")
    with pytest.raises(ColumnNotFoundError, match=r"^table 't': .*did you mean 'k'"):
        nyala.spark.upsert(spark.sql("SELECT 1L AS K"), table)
    twice = spark.range(0, 6, 1, 2).selectExpr("id % 3 AS k", "id AS v")
    done = nyala.spark.load(twice, table, errors="collect")
    assert (done.inserted, done.errors["row"].to_pylist()) == (3, [2**33, 2**33 + 1, 2**33 + 2])
    for text in done.errors["message"].to_pylist():
        assert text.startswith("duplicate key in this batch; ")
        assert text.endswith(" (tablet 1)")
    assert nyala.spark.upsert(twice, table).errors.num_rows == 0


def test_a_row_that_fails_at_the_commit_has_its_key(
    spark: SparkSession, db: nyala.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program wrote the key while the tasks worked. The row number is NULL."""
    table = db.create_table("t", {"k": "int64", "v": "int64", "w": "string"}, ["k"])
    commit, taken = handover.commit_load_files, [5, 25]

    def later(path: str, job: Any, env: Any) -> object:
        table.insert({"k": [taken.pop(0)], "v": [-1], "w": ["y"]})
        return commit(path, job, env)

    monkeypatch.setattr(handover, "commit_load_files", later)
    done = nyala.spark.load(ids(spark, 0, 10, 1), table, errors="collect")
    assert (done.inserted, done.errors["k"].to_pylist(), done.errors["row"].to_pylist()) == (9, [5], [None])
    assert (
        done.errors["message"][0]
        .as_py()
        .endswith("; another write changed this key while the job ran (tablet 1)")
    )
    with pytest.raises(
        DuplicateKeyError, match=r"1 rows failed.*\n1 already-present\n  unknown row \(k=25\): "
    ):
        nyala.spark.load(ids(spark, 20, 30, 1), table)
    assert table.count() == 11


def test_large_dataframes_are_written_by_executors(
    spark: SparkSession, db: nyala.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors also write if Spark estimates too little or nothing, and if this process is not the
    writer.
    """
    monkeypatch.undo()
    written_here = []
    write_here = load_module._write_here
    monkeypatch.setattr(
        load_module, "_write_here", lambda *given: written_here.append(len(given[0])) or write_here(*given)
    )
    table = db.create_table("t", {"k": "int64", "v": "int64", "w": "string"}, ["k"])
    assert nyala.spark.load(ids(spark, 0, 10, 1), table).inserted == 10
    assert written_here == [10]
    assert nyala.spark.load(ids(spark, 10, 20, 1), table, tasks=1).inserted == 10
    few = ids(spark, 20, 30, 1)
    assert nyala.spark.load(few.mapInArrow(lambda batches: batches, few.schema), table).inserted == 10
    assert (
        nyala.spark.load(few.selectExpr("explode(array(k + 10, k + 20)) AS k", "v", "w"), table).inserted
        == 20
    )
    with nyala.connect(db.path, read_only=True) as reader:
        assert nyala.spark.load(ids(spark, 50, 60, 1), reader["t"]).inserted == 10
    assert written_here == [10]
    monkeypatch.setattr(small, "ROWS_MAX", 3)
    assert nyala.spark.load(ids(spark, 60, 72, 1, parts=4), table).inserted == 12
    assert nyala.spark.load(ids(spark, 72, 76, 1, parts=1), table).inserted == 4
    assert written_here == [10, 12]
    assert table.count() == 76


def test_the_shuffle_runs_without_python(
    spark: SparkSession, db: nyala.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For all kinds of partitioning, Spark shuffles and sorts the rows before Python gets them."""
    ways = {
        "hash": [nyala.hash_partition("k", buckets=3)],
        "range": [nyala.range_partition("k", splits=[100, 200])],
        "both": [nyala.hash_partition("k", buckets=2), nyala.range_partition("k", splits=[100])],
    }
    plans: list[str] = []
    with_plain_names = load_module._with_plain_names

    def spied(frame: DataFrame) -> DataFrame:
        plans.append(frame._jdf.queryExecution().executedPlan().toString())
        return with_plain_names(frame)

    monkeypatch.setattr(load_module, "_with_plain_names", spied)
    for name, levels in ways.items():
        table = db.create_table(name, {"k": "int64", "v": "int64", "w": "string"}, "k", levels)
        assert nyala.spark.load(ids(spark, 0, 300, 1), table, tasks=3).inserted == 300
        plan = plans.pop()
        assert "Exchange" in plan and "Sort [" in plan, plan
        assert not re.search("Python|InArrow|InPandas", plan), plan


def test_every_way_of_partitioning(spark: SparkSession, db: nyala.Database) -> None:
    """Hash levels, ranges and both, with every type of key: Spark sends each row to its tablet."""
    key = {
        "i": "int32", "d": "date", "t": "timestamp", "n": "decimal(12,2)", "m": "decimal(25,3)", "s": "varchar(4)",
        "y": "binary",
    }  # fmt: skip
    df = spark.range(0, 200, 1, 3).selectExpr(
        "CAST(id - 100 AS int) AS i", "date_add(DATE '2026-01-01', CAST(id AS int) - 100) AS d",
        "timestamp_micros(id * 1000003 - 5) AS t", "CAST(id - 50 AS decimal(12,2)) / 4 AS n0",
        "CAST(id * 7 - 3 AS decimal(25,3)) AS m", "concat('a', id) AS s", "CAST(CAST(id AS string) AS binary) AS y",
    ).selectExpr("i", "d", "t", "CAST(n0 AS decimal(12,2)) AS n", "m", "s", "y")  # fmt: skip
    for number, partition in enumerate(
        [
            [nyala.hash_partition("i", "s", buckets=3), nyala.hash_partition("t", "m", buckets=2)],
            [nyala.hash_partition("n", "y", "d", buckets=3), nyala.range_partition("i", splits=[-20, 40])],
            [nyala.range_partition("d", "i", splits=[("2025-12-01", 0), ("2026-02-01", 5)])],
        ]
    ):
        table = db.create_table(f"t{number}", key, list(key), partition)
        assert nyala.spark.load(df, table).inserted == 200
        found = table.scan().to_arrow()
        assert found.num_rows == 200
        assert table.get(found.slice(5, 1).to_pylist()[0]) is not None


def test_keys_with_a_collation(spark: SparkSession, db: nyala.Database) -> None:
    """Keys that are equal in the collation stay two keys. Of equal keys the last row wins."""
    df = spark.range(0, 400, 1, 2).selectExpr(
        "collate(concat(IF(id % 2 = 0, 'a', 'A'), CHR(98 + id % 5), 'c'), 'UTF8_LCASE') AS k", "id AS v"
    )
    expected = {("a" if i % 2 == 0 else "A") + chr(98 + i % 5) + "c": i for i in range(400)}
    table = db.create_table(
        "t", {"k": "varchar(3)", "v": "int64"}, ["k"], [nyala.hash_partition("k", buckets=2)]
    )
    answer = nyala.spark.upsert(df, table, tasks=2)
    assert (answer.inserted, answer.updated) == (10, 390)
    assert {row["k"]: row["v"] for row in table.to_arrow().to_pylist()} == expected
    # All keys exist. The tasks keep one row of each key, in case a key is deleted before the commit.
    assert nyala.spark.load(df, table, on_conflict="ignore", tasks=2).ignored == 400
    with pytest.raises(nyala.InvalidValueError, match="a key is never truncated"):
        nyala.spark.upsert(df.selectExpr("concat(k, 'd') AS k", "v"), table, tasks=2)


@pytest.mark.parametrize("where", ["on executors", "here"])
def test_decimals_and_columns_of_any_name(
    spark: SparkSession, db: nyala.Database, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Short and long decimals, and columns whose names need quotes."""
    if where == "here":
        monkeypatch.undo()
        monkeypatch.setattr(handover, "loading", None)
    df = spark.sql("""
        SELECT * FROM VALUES (1.5BD, -0.01BD, 1234567890123456789.5BD, 7L), (-99.9BD, NULL, NULL, 8L) AS t(a, b, c, d)
    """).selectExpr(
        "CAST(a AS decimal(3,1)) AS k",
        "CAST(b AS decimal(18,2)) AS `b ``c``.d`",
        "CAST(c AS decimal(20,1)) AS c",
        "d",
    )
    types = {"k": "decimal(3,1)", "b `c`.d": "decimal(18,2)", "c": "decimal(20,1)", "d": "int64"}
    table = db.create_table("t", types, ["k"], [nyala.hash_partition("k", buckets=2)])
    assert nyala.spark.load(df, table).inserted == 2
    assert table.to_arrow().sort_by("d").to_pylist() == df.toArrow().sort_by("d").to_pylist()


def test_a_row_without_a_range_is_a_row_error(spark: SparkSession, db: nyala.Database) -> None:
    """The other rows are loaded, or none."""
    table = db.create_table(
        "t",
        {"k": "int64", "v": "int64", "w": "string"},
        ["k"],
        [nyala.range_partition("k", bounds=[(0, 5), (5, 8)])],
    )
    result = nyala.spark.load(ids(spark, 0, 10, 1), table, errors="collect")
    assert (result.inserted, result.errors["code"].to_pylist()) == (8, ["no-partition"] * 2)


def test_tasks_keep_to_the_limits_of_the_database(spark: SparkSession, store: Path) -> None:
    with nyala.connect(store, maintenance=False, limits=Limits(max_cell_bytes=100)) as db:
        table = db.create_table("t", {"k": "int64", "s": "string"}, "k")
        rows = spark.range(99, 102, 1, 1).selectExpr("id AS k", "repeat('x', int(id)) AS s")
        done = nyala.spark.load(rows, table, errors="collect")
        assert (done.inserted, done.errors["k"].to_pylist()) == (2, [101])
        assert "100" in done.errors["message"][0].as_py()


@pytest.mark.parametrize(
    "where", ["on executors", "here", pytest.param("much in few bytes", marks=pytest.mark.long)]
)
def test_backup_and_restore(
    spark: SparkSession, db: nyala.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """A full and an incremental backup, restored to a new table and to an existing one. This
    process restores small backups without a job of Spark, unless the files have more rows than
    their metadata says.
    """
    if where != "on executors":
        monkeypatch.undo()
    if where == "much in few bytes":
        monkeypatch.setattr(backup_jobs, "HELD_BYTES_MAX", 10)
    jobs: list[str] = []
    for name in ("load", "write", "leased_frame"):
        monkeypatch.setattr(backup_jobs, name, noting(jobs, name, getattr(backup_jobs, name)))
    table = db.create_table(
        "t", {"k": "int64", "v": "int64", "w": "string"}, ["k"], [nyala.hash_partition("k", buckets=2)]
    )
    table.insert({"k": [1, 2, 3], "v": [1, 2, 3], "w": ["a", "b", "c"]})
    first = nyala.spark.backup(spark, table, tmp_path / "backups")
    table.flush()
    table.delete({"k": [1]})
    table.upsert({"k": [3, 4], "v": [30, 40]})
    second = nyala.spark.backup(spark, table, tmp_path / "backups")
    assert (first.kind, first.rows, second.kind, second.rows) == ("full", 3, "incremental", 3)
    then = nyala.spark.restore(spark, tmp_path / "backups", "t", first.until, into=db, name="then")
    now = nyala.spark.restore(spark, tmp_path / "backups", "t", into=db, name="now")
    assert then.to_arrow().sort_by("k").equals(table.scan(at=first.until).to_arrow().sort_by("k"))
    assert now.to_arrow().sort_by("k").equals(table.to_arrow().sort_by("k"))
    # An existing table is filled through a temporary table, whose files are removed.
    monkeypatch.setattr(frames, "LOCAL_MAX_ROWS", -1)
    with nyala.connect(tmp_path / "other") as other:
        there = other.create_table("t", table.schema, ["k"])
        nyala.spark.restore(spark, tmp_path / "backups", there)
        assert there.to_arrow().sort_by("k").equals(table.to_arrow().sort_by("k"))
    assert not list((tmp_path / "other").glob("leases/remote-*"))
    of_steps = ["load", "load", "write", "load", "write", "leased_frame", "load"]
    assert jobs == ([] if where == "here" else of_steps)


def noting(names: list[str], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def noted(*given: Any, **options: Any) -> Any:
        names.append(name)
        return function(*given, **options)

    return noted


def test_an_error_of_a_worker_is_a_nyala_error(
    spark: SparkSession, db: nyala.Database, tmp_path: Path
) -> None:
    """Each job raises the worker's class of error, with one line that has table, tablet, file and
    rows.
    """
    table = db.create_table("t", {"k": "int64", "v": "int64"}, ["k"])
    df = spark.range(0, 100, 1, 1).selectExpr("id AS k", "id AS v")
    nyala.spark.load(df, table)
    table.upsert({"k": [1, 1000], "v": [0, 0]})
    table.flush()
    # Let another process run the tasks. This process has the files open, and their blocks in its cache.
    for file in (Path(db.path) / "data").rglob("*.base"):
        body = bytearray(file.read_bytes())
        body[32:64] = bytes(32)
        file.unlink()
        file.write_bytes(body)
    for job in (
        lambda: nyala.spark.upsert(df, table),
        lambda: nyala.spark.compact(spark, table),
        lambda: nyala.spark.backup(spark, table, tmp_path / "backups"),
    ):
        with pytest.raises(
            CorruptionError, match=r"^table 't', tablet \d+: .*\.base at offset \d+: .*rows 0 to \d+"
        ) as raised:
            job()
        assert "\n" not in str(raised.value)
    assert nyala.list_backups(tmp_path / "backups") == []


def test_a_job_whose_lease_has_expired(spark: SparkSession, db: nyala.Database) -> None:
    """The job changes nothing, leaves no file, and can be run again."""
    table = db.create_table("t", {"k": "int64", "v": "int64", "w": "string"}, ["k"])
    table.insert({"k": list(range(100)), "v": [0] * 100})
    leases = os.path.join(db.path, "leases")

    def end_leases(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for name in os.listdir(leases):  # as a process that finds an expired lease does
            if name.startswith("remote-"):
                os.unlink(os.path.join(leases, name))
        yield from batches

    df = ids(spark, 0, 10, 1, 1)
    with pytest.raises(
        HistoryExpiredError,
        match=r"^table 't', tablet 1: the lease remote-\w+ .* has expired.*again, with a longer `lease`$",
    ):
        nyala.spark.upsert(df.mapInArrow(end_leases, df.schema), table)
    assert table.scan(where="v <> 0").count() == 0
    assert [p for p in (Path(db.path) / "staging").rglob("*") if p.is_file()] == []
    assert nyala.spark.upsert(df, table).updated == 10


@pytest.mark.long
def test_a_job_renews_its_lease(
    spark: SparkSession, db: nyala.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Driver and tasks do it. Without them the lease expires."""
    table = db.create_table("t", {"k": "int64", "v": "int64", "w": "string"}, ["k"])
    table.insert({"k": list(range(100)), "v": [0] * 100})

    def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        time.sleep(25)
        yield from batches

    df = ids(spark, 0, 10, 1, 1)
    slow = df.mapInArrow(slowly, df.schema)
    assert nyala.spark.upsert(slow, table, lease=10).updated == 10
    monkeypatch.setattr(load_module, "renewing_lease", lambda *_: contextlib.nullcontext())
    with pytest.raises(HistoryExpiredError):
        nyala.spark.upsert(slow.selectExpr("k", "7L AS v"), table, lease=10)
    assert table.scan(where="v = 7").count() == 1, "of the first job"


def test_a_long_job_shows_its_progress(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task of this test waits until a line was shown."""
    monkeypatch.setattr(progress, "EVERY_S", 0.05)
    output, messages = [], str(tmp_path / "messages")

    def show(line: str) -> None:
        output.append(line)
        Path(messages).touch()

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        until_s = time.monotonic() + 120
        while not os.path.exists(messages) and time.monotonic() < until_s:
            time.sleep(0.01)
        yield from batches

    with progress.showing_progress(spark, "load of t", show):
        assert spark.range(0, 10, 1, 2).mapInArrow(wait, "id bigint").count() == 10
    assert re.fullmatch(r"load of t: 0 of [23] tasks done, \d running", output[0]), output


CLUSTER = """
import os, sys
os.environ["PYSPARK_PYTHON"] = sys.executable
import nyala, nyala.spark
from nyala import handover
from nyala.spark import frames
from nyala.spark.jobs import small_frames as small
from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.executor.memory", "1g").getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")
with nyala.connect("store") as db:
    table = db.create_table("t", {"k": "int64", "v": "int64"}, ["k"], [nyala.hash_partition("k", buckets=4)])
    df = spark.range(0, 1000, 1, 4).selectExpr("id AS k", "id AS v")
    assert nyala.spark.load(df, table, tasks=4).inserted == 1000
    nyala.spark.write(df.where("k < 10").selectExpr("k", "-v AS v"), "store", "t")
    assert nyala.spark.upsert(df.where("k >= 990").selectExpr("k", "0L AS v"), table, tasks=4).updated == 10
    read = spark.read.format("nyala").options(path="store", table="t").load()
    assert tuple(read.selectExpr("count(*)", "sum(v)").first()) == (1000, 499500 - 90 - 9945)
    assert table.scan(where="k < 5").to_spark(spark).count() == 5
    frames.LOCAL_MAX_ROWS = -1                              # a scan by tasks
    assert nyala.spark.sql(spark, "SELECT sum(v) AS s FROM t WHERE k < 10", store="store").first().s == -45
    first = nyala.spark.backup(spark, table, "backups")
    table.delete({"k": [999]})
    assert nyala.spark.backup(spark, table, "backups").kind == "incremental"
    assert nyala.spark.compact(spark, table)["compactions"] >= 1
    little, small.SMALL_BYTES = small.SMALL_BYTES, -1       # a load by tasks
    again = nyala.spark.restore(spark, "backups", "t", into=db, name="again")
    small.SMALL_BYTES = little
    assert again.to_arrow().sort_by("k").equals(table.to_arrow().sort_by("k"))
    db.create_table("copy", table.schema, ["k"])
    feed = spark.readStream.format("nyala").options(path="store", table="t", changes="true").load()
    query = (
        feed.writeStream.format("nyala").options(path="store", table="copy", operation="changes")
        .option("checkpointLocation", os.path.abspath("checkpoint")).trigger(availableNow=True).start()
    )
    assert query.awaitTermination(120) and query.exception() is None
    assert db["copy"].to_arrow().sort_by("k").equals(table.to_arrow().sort_by("k"))
    # The first task of each executor fails and runs again. Files of its first attempt are not used.
    once = "reflect('java.lang.System', 'setProperty', '{}', 'x') IS NULL"
    fails = "CASE WHEN " + once + " THEN CAST(raise_error('once') AS bigint) ELSE id END AS k"
    retried = [spark.range(5000, 5100, 1, 2).selectExpr(fails.format(name), "id AS v") for name in ("one", "other")]
    assert nyala.spark.write(retried[0], "store", "t", operation="insert").inserted == 100
    keep, handover.loading = handover.loading, None         # a small DataFrame, which this process writes
    assert nyala.spark.upsert(retried[1], table).updated == 100
    handover.loading = keep
    assert table.scan(where="k >= 5000").count() == 100
spark.stop()
print("done")
"""


@pytest.mark.long
def test_separate_executors(tmp_path: Path) -> None:
    """All kinds of jobs run on two executor processes."""
    (tmp_path / "cluster.py").write_text(CLUSTER)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        [sys.executable, "cluster.py"], cwd=tmp_path, capture_output=True, text=True, timeout=280, env=env
    )
    assert run.stdout.strip() == "done", run.stderr[-4000:]


def test_each_long_job_shows_its_progress(
    spark: SparkSession, db: nyala.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: list[str] = []
    context = spark.sparkContext
    showing_progress = progress.showing_progress

    @contextlib.contextmanager
    def seen(session: SparkSession, what: str) -> Iterator[None]:
        group = f"test-{len(messages)}"
        context.setLocalProperty("spark.jobGroup.id", group)  # a job group of the program is kept
        with showing_progress(session, what):
            yield
        assert context.statusTracker().getJobIdsForGroup(group), f"no job of {what}"
        messages.append(what)

    modules = ("load", "small_frames", "write", "compact", "backup")
    for module in (importlib.import_module(f"nyala.spark.jobs.{name}") for name in modules):
        monkeypatch.setattr(module, "showing_progress", seen)
    table = db.create_table("t", {"k": "int64", "v": "int64", "w": "string"}, ["k"])

    def says(job: Callable[[], object], *requested: str) -> None:
        job()
        assert [re.sub(r" \[.*", "", what) for what in messages] == list(requested)
        messages.clear()

    says(lambda: nyala.spark.load(ids(spark, 0, 5, 1), table, tasks=1), "insert into t")
    says(lambda: nyala.spark.upsert(ids(spark, 3, 8, 1), table, tasks=1), "upsert into t")
    with monkeypatch.context() as patched:
        patched.setattr(small, "SMALL_BYTES", 1 << 20)
        says(lambda: nyala.spark.upsert(ids(spark, 3, 8, 1), table), "upsert into t")
    says(lambda: nyala.spark.compact(spark, table), "compaction of t")
    says(lambda: nyala.spark.backup(spark, table, tmp_path / "backups"), "backup of t")
    says(
        lambda: nyala.spark.write(ids(spark, 0, 1, 1).select("k"), db.path, "t", operation="delete"),
        "delete into t",
    )
    says(lambda: nyala.spark.backup(spark, table, tmp_path / "backups"), "backup of t")
    restored = "insert into again", "changes into again"
    says(lambda: nyala.spark.restore(spark, tmp_path / "backups", "t", into=db, name="again"), *restored)
