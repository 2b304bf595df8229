"""PySpark with dropped tables, clones, auto-increment keys, and immutable columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import nyala
import nyala.spark


def read(spark: SparkSession, store: Path, **options: Any) -> list[tuple[Any, ...]]:
    frame: DataFrame = spark.read.format("nyala").options(path=str(store), table="t", **options).load()
    return sorted(tuple(row) for row in frame.collect())


def test_a_dropped_table_and_a_clone_are_read(spark: SparkSession, store: Path) -> None:
    with nyala.connect(store, maintenance=False) as db:
        db.create_table("t", {"k": "int64"}, "k").insert({"k": [1, 2]})
        before = db.now()
        db.drop_table("t")
        assert read(spark, store, at=str(before)) == [(1,), (2,)]
        with pytest.raises(nyala.TableNotFoundError, match="was dropped at"):
            nyala.spark.write(spark.createDataFrame([(3,)], "k bigint"), db, "t", operation="insert")
        db.undrop_table("t", "u")
        db.clone_table("u", "t").insert({"k": [3]})
        assert read(spark, store) == [(1,), (2,), (3,)]


def test_the_writer_assigns_auto_increment_keys(spark: SparkSession, store: Path) -> None:
    with nyala.connect(store, maintenance=False) as db:
        table = db.create_table("t", {"h": "string", "v": "int64"}, "h", unique=False)
        rows = spark.createDataFrame([("a", 1), ("a", 2), ("b", 3)], "h string, v bigint")
        assert nyala.spark.write(rows, db, "t", operation="insert").inserted == 3
        rows.write.format("nyala").options(path=str(store), table="t", operation="insert").mode(
            "append"
        ).save()
        found = read(spark, store)
        assert sorted(row[1] for row in found) == [1, 2, 3, 4, 5, 6] and len({row[:2] for row in found}) == 6
        with pytest.raises(nyala.InvalidArgumentError, match="only the store's writer.*use write"):
            nyala.spark.load(rows, table)
        with pytest.raises(nyala.InvalidArgumentError, match="auto_incrementing_id"):
            nyala.spark.write(rows, db, "t", operation="upsert")


def test_an_upsert_leaves_immutable_columns(spark: SparkSession, store: Path) -> None:
    with nyala.connect(store, maintenance=False) as db:
        born = nyala.column("int64", immutable=True)
        table = db.create_table("t", {"k": "int64", "born": born, "v": "int64"}, "k")
        table.insert([(1, 10, 100)])
        db.flush()
        rows = spark.createDataFrame([(1, 11, 101), (2, 20, 200)], "k bigint, born bigint, v bigint")
        nyala.spark.write(rows, db, "t", operation="upsert")
        assert read(spark, store) == [(1, 10, 101), (2, 20, 200)]
        nyala.spark.upsert(rows, table, tasks=1)
        assert read(spark, store) == [(1, 10, 101), (2, 20, 200)]
