"""Batches that Spark hands to a load's tasks: of few enough rows, and then of whatever bytes."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, DecimalType, LongType, StringType, StructType

import nyala
import nyala.spark
from nyala.schema.limits import Limits
from nyala.spark import batches, small
from nyala.spark.batches import BYTES, ROWS, batch_rows, bounded_by_rows, runs_python, task_memory_bytes

LONG = 65_536


def sizes(spark: SparkSession, rows: int, cell_bytes: int) -> list[int]:
    """Of the batches of one partition of such rows."""

    def count(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in given:
            yield pa.RecordBatch.from_arrays([pa.array([batch.num_rows])], names=["n"])

    frame = spark.range(0, rows, 1, 1).select(F.repeat(F.lit("x"), F.lit(cell_bytes)).alias("w"))
    return [row.n for row in frame.mapInArrow(count, "n long").collect()]


def test_batches_are_bounded_by_rows_alone(spark: SparkSession) -> None:
    """To be asked for its bytes before each row is a fifth of what a load takes."""
    at_64_mb = sizes(spark, 1_000, 100_000)
    assert len(at_64_mb) > 1
    with bounded_by_rows(spark, 900):
        assert sizes(spark, 1_000, 100_000) == [900, 100]
        with bounded_by_rows(spark, None):
            assert sizes(spark, 1_000, 100_000) == [900, 100]
    assert sizes(spark, 1_000, 100_000) == at_64_mb, "nothing stays"


@pytest.mark.parametrize(("name", "value"), [(ROWS, "5000"), (BYTES, "20000000")])
def test_what_the_program_has_set_stays(spark: SparkSession, name: str, value: str) -> None:
    """Also its bound on bytes, if it set only the other: batches of its many rows would outgrow the memory."""
    spark.conf.set(name, value)
    try:
        before = sizes(spark, 1_000, 100_000)
        assert len(before) > 1
        with bounded_by_rows(spark, 900):
            assert sizes(spark, 1_000, 100_000) == before
    finally:
        spark.conf.unset(name)


def test_properties_that_were_there_come_back(spark: SparkSession) -> None:
    context = spark.sparkContext
    context.setLocalProperty(ROWS, "123")
    try:
        with pytest.raises(ZeroDivisionError), bounded_by_rows(spark, 900):
            assert (context.getLocalProperty(ROWS), context.getLocalProperty(BYTES)) == (
                "900",
                str(2**31 - 1),
            )
            raise ZeroDivisionError
        assert (context.getLocalProperty(ROWS), context.getLocalProperty(BYTES)) == ("123", None)
    finally:
        context.setLocalProperty(ROWS, None)  # type: ignore[arg-type]


def test_rows_fit_into_a_tasks_memory() -> None:
    """Whatever stands in them: a batch that outgrows it ends the task, and in a local session the program."""
    numbers = StructType().add("k", LongType()).add("d", DecimalType(30, 2))
    text = StructType().add("k", LongType()).add("s", StringType()).add("b", BinaryType())
    gigabyte = 1 << 30
    assert batch_rows(numbers, LONG, gigabyte) == 10_000, "Spark's own, and no more"
    assert batch_rows(text, LONG, gigabyte) == (gigabyte // 4) // (2 * LONG + 16)
    assert batch_rows(text, LONG, 100 * gigabyte) == (gigabyte // 2) // (2 * LONG + 16), (
        "of much memory a part"
    )
    assert batch_rows(text, 16 << 20, 100 * gigabyte) is None, "of so few rows, Spark may as well ask"
    assert batch_rows(text, LONG, gigabyte // 8) is None
    assert batch_rows(numbers, LONG, 0) is None, "nobody knows how much there is"


def test_the_memory_of_a_task_is_known(spark: SparkSession) -> None:
    heap = spark._jvm.java.lang.Runtime.getRuntime().maxMemory()  # type: ignore[union-attr]
    assert task_memory_bytes(spark) == heap // spark.sparkContext.defaultParallelism
    assert batch_rows(StructType().add("s", StringType()), LONG, task_memory_bytes(spark)) is not None


def test_functions_of_the_program_get_what_spark_gives_them(
    spark: SparkSession, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of its own columns, which no table bounds: of 400 MB in one, Spark's JVM dies. Nor are texts of a key
    bounded, which are not cut. Where neither is, a load's batches are bounded by rows."""
    monkeypatch.setattr(small, "SMALL_BYTES", -1)
    rows: list[int | None] = []
    load_module = importlib.import_module("nyala.spark.load")

    def noted(session: SparkSession, wanted: int | None) -> contextlib.AbstractContextManager[None]:
        rows.append(wanted)
        return bounded_by_rows(session, wanted)

    monkeypatch.setattr(load_module, "bounded_by_rows", noted)

    def lengths(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in given:
            counts = pa.array([batch.num_rows] * batch.num_rows, pa.int64())
            yield pa.RecordBatch.from_arrays([batch.column(0), counts], names=["k", "n"])

    wide = spark.range(0, 200, 1, 1).select("id", F.repeat(F.lit("x"), F.lit(1_000_000)).alias("w"))
    own = wide.mapInArrow(lengths, "k long, n long")
    plain = spark.range(50).selectExpr("id AS k", "id AS n")
    cached = own.where("n > 0").cache()
    with nyala.connect(store, maintenance=False) as db:
        for number, frame in enumerate([own, cached, plain]):
            table = db.create_table(f"t{number}", {"k": "int64", "n": "int64"}, "k")
            nyala.spark.load(frame, table)
            assert (rows[-1] is None) == (frame is not plain)
        cached.unpersist()
        assert max(db["t0"].scan().to_arrow()["n"].to_pylist()) < 100
        table = db.create_table("texts", {"k": "string", "n": "int64"}, "k")
        nyala.spark.load(plain.selectExpr("string(k) AS k", "n"), table)
        assert rows[-1] is None


def test_python_is_found_wherever_a_frame_runs_it(spark: SparkSession) -> None:
    """And held for possible where the plan does not tell."""

    @F.pandas_udf("double")
    def mean(v: pd.Series) -> float:
        return float(v.mean())

    spark.udf.register("letters", F.pandas_udf(lambda s: s.str.len(), "long"))
    rows = spark.range(10).selectExpr("id AS k", "repeat('x', 3) AS s", "id % 2 AS g")
    rows.createOrReplaceTempView("rows_of_batches")
    ours = rows.mapInArrow(lambda given: given, rows.schema)
    frames = {
        "function of a row": rows.withColumn("n", F.udf(lambda k: k + 1, "long")("k")),
        "of batches": ours,
        "of groups": rows.groupBy("g").agg(mean("k").alias("m")),
        "of windows": rows.withColumn("m", mean("k").over(Window.partitionBy("g"))),
        "of whole groups": rows.groupBy("g").applyInPandas(lambda group: group, rows.schema),
        "in a subquery": spark.sql(
            "SELECT k, (SELECT max(letters(s)) FROM rows_of_batches) FROM rows_of_batches"
        ),
        "in a predicate": spark.sql("SELECT k FROM rows_of_batches WHERE letters(s) > 2"),
        "in a part": rows.union(ours),
        "cached": ours.where("k > 1").cache(),
        "cached of cached": ours.where("k > 2").cache().withColumn("n", F.lit(1)).cache(),
        "of a checkpoint to be": ours.localCheckpoint(eager=False),
        "of an RDD": spark.createDataFrame(ours.rdd),
    }
    assert [what for what, frame in frames.items() if not runs_python(frame)] == []
    frames["cached"].count()
    assert runs_python(frames["cached"]), "which may be lost and made again"
    plain = rows.where("k > 3").cache()
    assert not any(runs_python(frame) for frame in (rows, rows.groupBy("g").count().orderBy("g"), plain))
    spark.catalog.clearCache()
    spark.conf.set("spark.sql.maxPlanStringLength", "60")
    try:
        assert runs_python(rows.union(ours)), "of a plan that is not told to its end"
    finally:
        spark.conf.unset("spark.sql.maxPlanStringLength")


@pytest.mark.parametrize("are_cut", [True, False])
@pytest.mark.parametrize("limit", [1_000, 100_000])
def test_cells_that_are_too_long_fail_and_no_others(
    spark: SparkSession, store: Path, monkeypatch: pytest.MonkeyPatch, are_cut: bool, limit: int
) -> None:
    """As long as the table takes they come as they are, in the database's own limits too; what a varchar cuts may be
    longer; and of a cell that was cut on its way nobody says how long it was."""
    monkeypatch.setattr(small, "SMALL_BYTES", -1)
    if not are_cut:
        monkeypatch.setattr(batches, "_ROWS_MIN", 1 << 40)
    with nyala.connect(store, maintenance=False, limits=Limits(max_cell_bytes=limit)) as db:
        types = {"k": "int64", "s": "string", "v": "varchar(5)", "b": "binary"}
        table = db.create_table("t", types, ["k"], [nyala.hash_partition("k", buckets=3)])
        lengths = {0: 1, 1: limit - 1, 2: limit, 3: limit + 1, 4: 3 * limit, 5: 0}
        frame = spark.createDataFrame(list(lengths.items()), "k long, n int").repartition(2)
        letters = F.when(F.col("k") == 2, F.lit("x")).otherwise(F.lit("ä"))
        wide = F.when(F.col("k") == 2, F.col("n")).otherwise(F.col("n").cast("int") / 2).cast("int")
        text = F.repeat(letters, wide)
        rows = frame.select("k", text.alias("s"), F.repeat(F.lit("long"), F.lit(limit)).alias("v"),
                            F.repeat(F.lit("b"), F.col("n")).cast("binary").alias("b"))  # fmt: skip
        done = nyala.spark.load(rows, table, errors="collect")
        assert (done.inserted, sorted(done.errors["k"].to_pylist())) == (4, [3, 4])
        for message in done.errors["message"].to_pylist():
            assert "value is too large, a cell holds at most" in message and str(limit) in message
        expected = {k: (n if k == 2 else n // 2, n) for k, n in lengths.items() if n <= limit}
        for row in table.scan().to_arrow().to_pylist():
            assert row["v"] == "longl"
            assert (len(row["s"]), len(row["b"])) == expected[row["k"]]
            assert set(row["s"]) <= {"ä", "x"} and set(row["b"]) <= {ord("b")}
