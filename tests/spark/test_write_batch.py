"""What a write through PySpark comes to: one batch, in the order of its rows, with the casts of any write."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import nyala
import nyala.spark


def save(df: DataFrame, store: Path) -> None:
    df.write.format("nyala").options(path=str(store), table="t").mode("append").save()


def test_a_job_is_one_batch(spark: SparkSession, store: Path) -> None:
    """However many tasks wrote, readers see all rows or none: there is one timestamp."""
    with nyala.connect(store) as db:
        db.create_table("t", {"k": "int64", "v": "int64"}, ["k"], [nyala.hash_partition("k", buckets=4)])
        df = spark.range(0, 1000, numPartitions=7).select(
            F.col("id").alias("k"), (F.col("id") * 2).alias("v")
        )
        result = nyala.spark.write(df, store, "t", operation="insert")
        assert result.inserted == 1000
        assert db["t"].scan(at=result.timestamp - 1).count() == 0
        assert db["t"].scan(at=result.timestamp).count() == 1000


def test_of_a_key_written_twice_the_later_row_wins(spark: SparkSession, store: Path) -> None:
    """Rows apply in the order of the DataFrame's partitions, as the rows of one batch do."""
    with nyala.connect(store) as db:
        db.create_table("t", {"k": "int64", "v": "int64"}, ["k"])
        df = spark.range(0, 100, numPartitions=5).select(
            F.lit(1).cast("bigint").alias("k"), F.col("id").alias("v")
        )
        save(df, store)
        assert db["t"].scan().to_arrow().to_pylist() == [{"k": 1, "v": 99}]


def test_values_are_cast_as_everywhere(spark: SparkSession, store: Path) -> None:
    """Spark's wider integers and zoned times fit narrower columns when no value changes; varchar is cut."""
    with nyala.connect(store) as db:
        db.create_table("t", {"k": "int8", "t": "timestamp", "v": "varchar(2)", "n": "decimal(15,2)"}, ["k"])
        df = spark.sql(
            "SELECT 1L AS k, TIMESTAMP '2013-03-10T07:30:00Z' AS t, 'abc' AS v, CAST(1.5 AS decimal(4,1)) AS n"
        )
        save(df, store)
        row = db["t"].get({"k": 1})
        assert (row["t"].isoformat(), row["v"], str(row["n"])) == ("2013-03-10T07:30:00+00:00", "ab", "1.50")
        with pytest.raises(Exception, match="InvalidValueError"):
            save(spark.sql("SELECT 200 AS k"), store)
