"""A scan as a DataFrame has the same rows in the plan and by tasks."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import nyala
from nyala.spark import frames, internals
from nyala.spark.types import spark_schema

ROWS = {
    "k": [1, 2, 3],
    "small": [Decimal("1.50"), None, Decimal("-9999999.99")],
    "middle": [Decimal("0.01"), Decimal("-9999999999999.99"), Decimal("9999999999999.99")],
    "large": [Decimal("12345678901234567890123456789012345.678"), None, Decimal("-0.001")],
    "at": [dt.datetime(2026, 7, 1, 12, tzinfo=dt.UTC), None, dt.datetime(1969, 12, 31, 23, 59, 59, 7, dt.UTC)],
    "day": [dt.date(2026, 7, 1), None, dt.date(1900, 1, 1)],
    "text": ["a", None, "ü"],
    "raw": [b"\x00", None, b""],
    "flag": [True, None, False],
    "x": [1.5, None, float("inf")],
}  # fmt: skip


@pytest.fixture
def table(store: Path) -> Iterator[nyala.Table]:
    """Create rows with columns of all types: one on disk, one that was changed afterwards, one in
    memory.
    """
    types = {
        "k": "int64", "small": "decimal(9,2)", "middle": "decimal(15,2)", "large": "decimal(38,3)", "at": "timestamp",
        "day": "date", "text": "string", "raw": "binary", "flag": "bool", "x": "double",
    }  # fmt: skip
    with nyala.connect(store) as db:
        made = db.create_table("t", types, ["k"])
        made.insert({name: values[:2] for name, values in ROWS.items()})
        made.flush()
        made.update({"k": [2], "middle": [ROWS["middle"][1]]})
        made.insert({name: values[2:] for name, values in ROWS.items()})
        yield made


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_rows_and_schema_are_the_same_in_the_plan_and_by_tasks(
    spark: SparkSession, table: nyala.Table, monkeypatch: pytest.MonkeyPatch, zone: str
) -> None:
    """They are also the same in a session with another time zone, and without Spark's private
    classes.
    """
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        made = {"plan": table.scan().to_spark(spark)}
        assert "LocalTableScan" in made["plan"]._jdf.queryExecution().toString()
        monkeypatch.setattr(frames, "LOCAL_MAX_ROWS", -1)
        made["tasks"] = table.scan().to_spark(spark)
        assert "posexplode" in made["tasks"]._jdf.queryExecution().toString()
        spark.conf.set(internals.SETTING, "false")
        made["tasks, without internals"] = table.scan().to_spark(spark)
        spark.conf.unset(internals.SETTING)
        assert "posexplode" not in made["tasks, without internals"]._jdf.queryExecution().toString()
        expected = table.scan().to_arrow().sort_by("k")
        assert expected.to_pylist() == [
            {name: values[row] for name, values in ROWS.items()} for row in range(3)
        ]
        for name, df in made.items():
            assert df.schema == spark_schema(expected.schema), name
            assert df.toArrow().sort_by("k").to_pylist() == expected.to_pylist(), name
            assert df.where("at < '2026-07-01T12:00:01Z' AND small > 1").count() == 1, name
        for most in (frames.LOCAL_MAX_ROWS, 20_000):
            monkeypatch.setattr(frames, "LOCAL_MAX_ROWS", most)
            bare = table.scan([], where="k > 1").to_spark(spark)
            assert (bare.columns, bare.count()) == ([], 2)
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_rows_in_the_plan_need_no_lease_and_large_ones_go_to_tasks(
    spark: SparkSession, table: nyala.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver holds a bounded number of bytes, because few rows may be large."""
    monkeypatch.setattr(frames, "lease_of_version", None)
    assert table.scan(limit=2).to_spark(spark).count() == 2
    monkeypatch.undo()
    monkeypatch.setattr(frames, "LOCAL_MAX_BYTES", 10)
    assert "posexplode" in table.scan(where="k < 3").to_spark(spark)._jdf.queryExecution().toString()


@pytest.mark.parametrize(
    "setting, value", [("spark.sql.codegen.wholeStage", "false"), ("spark.sql.ansi.enabled", "false")]
)
def test_no_arrays_without_generated_code_or_ansi_mode(
    spark: SparkSession, table: nyala.Table, monkeypatch: pytest.MonkeyPatch, setting: str, value: str
) -> None:
    """Without generated code each row would carry its arrays. Without ANSI mode array elements are
    nullable.
    """
    monkeypatch.setattr(frames, "LOCAL_MAX_ROWS", -1)
    before = spark.conf.get(setting)
    spark.conf.set(setting, value)
    try:
        df = table.scan().to_spark(spark)
        assert "explode" not in df._jdf.queryExecution().toString()
        assert df.schema == spark_schema(table.schema)
        assert df.toArrow().sort_by("k").to_pylist() == table.scan().to_arrow().sort_by("k").to_pylist()
    finally:
        spark.conf.set(setting, before)


def test_arrays_of_any_columns(
    spark: SparkSession, table: nyala.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One column, text only, and names that need quotes; in a self join, an aggregate and a cache."""
    monkeypatch.setattr(frames, "LOCAL_MAX_ROWS", -1)
    for columns in (["middle"], ["text"], ["text", "raw"], ["small", "k"]):
        df = table.scan(columns).to_spark(spark)
        assert "explode" in df._jdf.queryExecution().toString()
        assert df.columns == columns
        rows = sorted(map(str, df.toArrow().to_pylist()))
        assert rows == sorted(map(str, table.scan(columns).to_arrow().to_pylist()))
    with table.alter() as alteration:
        alteration.rename_column("text", "p")
        alteration.rename_column("raw", "a `b`.c")
    df = table.scan().to_spark(spark).cache()
    # Spark has a size estimate, and does not treat every table as small or as huge.
    assert 50 < size_bytes(table.scan().to_spark(spark)) < 500
    assert df.join(df.select("k", df.p.alias("q")), "k").where("p = q").count() == 2
    assert df.groupBy("p").count().count() == 3
    assert df.selectExpr("max(`a ``b``.c`)").collect() == [(bytearray(b"\x00"),)]
    df.unpersist()


def test_the_size_estimate_is_that_of_files(
    spark: SparkSession, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule F4: Spark estimates 0.3 of the size in memory, with the real lengths of texts.

    Otherwise a join would send a table of long texts to all executors, or shuffle a small one.
    """
    monkeypatch.setattr(frames, "LOCAL_MAX_ROWS", -1)
    rows = 10_000
    with nyala.connect(store) as db:
        made = db.create_table(
            "t",
            {"k": "int64", "one": "int64", "money": "decimal(15,2)", "wide": "decimal(38,3)", "s": "string"},
            ["k"],
        )
        made.insert(
            {
                "k": range(rows),
                "one": [1] * rows,
                "money": [Decimal("0.01")] * rows,
                "wide": [Decimal("1.5")] * rows,
                "s": ["x" * 400] * rows,
            }
        )
        made.flush()
        for columns, row_bytes in (
            (["k"], 8 + 8), (["one"], 8 + 8), (["k", "one", "money"], 8 + 24), (["k", "s"], 8 + 16 + 400),
            (["k", "wide"], 8 + 16 + 16),
        ):  # fmt: skip
            found = size_bytes(made.scan(columns).to_spark(spark))
            assert found == pytest.approx(rows * row_bytes * 0.3, rel=0.25), columns
        # The length of text in memory is unknown.
        made.update({"k": [1], "one": [2]})
        assert size_bytes(made.scan(["one"]).to_spark(spark)) == pytest.approx(rows * 16 * 0.3, rel=0.25)


def size_bytes(frame: DataFrame) -> int:
    return int(frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes())


def test_the_number_of_tasks_of_a_scan() -> None:
    """A task costs as much as half a million cells. More than one task per core only balances large
    scans.
    """
    assert frames.task_count(0, 5, 4) == 1
    assert frames.task_count(frames.CELLS_PER_TASK, 1, 4) == 1
    assert frames.task_count(frames.CELLS_PER_TASK, 3, 4) == 3
    assert frames.task_count(frames.CELLS_PER_TASK, 16, 4) == 4
    assert frames.task_count(10**9, 16, 4) == 8
