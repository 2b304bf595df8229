"""A write through PySpark is one batch: the order of its rows, and the casts of values."""

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
    """Rows of all tasks have one timestamp."""
    with nyala.connect(store) as db:
        db.create_table("t", {"k": "int64", "v": "int64"}, ["k"], [nyala.hash_partition("k", buckets=4)])
        df = spark.range(0, 1000, numPartitions=7).select(
            F.col("id").alias("k"), (F.col("id") * 2).alias("v")
        )
        result = nyala.spark.write(df, store, "t", operation="insert")
        assert result.inserted == 1000
        assert db["t"].scan(at=result.timestamp - 1).count() == 0
        assert db["t"].scan(at=result.timestamp).count() == 1000


def test_the_later_row_of_a_key_wins(spark: SparkSession, store: Path) -> None:
    """Rows are applied in the order of the DataFrame's partitions."""
    with nyala.connect(store) as db:
        db.create_table("t", {"k": "int64", "v": "int64"}, ["k"])
        df = spark.range(0, 100, numPartitions=5).select(
            F.lit(1).cast("bigint").alias("k"), F.col("id").alias("v")
        )
        save(df, store)
        assert db["t"].scan().to_arrow().to_pylist() == [{"k": 1, "v": 99}]


def test_values_are_cast_as_in_other_writes(spark: SparkSession, store: Path) -> None:
    """Wider integers and timestamps fit if no value changes; varchar is cut."""
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


def test_rows_are_written_by_a_condition(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    """Batch writes use `when` and `newest_by`. Late rows of a stream change nothing."""
    with nyala.connect(store) as db:
        table = db.create_table("t", {"k": "int64", "seq": "int64"}, ["k"])
        table.insert({"k": [1, 2], "seq": [5, 5]})
        missing = spark.createDataFrame([(1, 9), (3, 9)], "k bigint, seq bigint")
        result = nyala.spark.write(missing, store, "t", operation="delete", newest_by="seq")
        assert (result.deleted, result.ignored) == (1, 1)
        late = spark.createDataFrame([(1, 8), (2, 6), (3, 8)], "k bigint, seq bigint")
        assert nyala.spark.write(late, store, "t", newest_by="seq").ignored == 2
        assert nyala.spark.write(late, store, "t", when="new.seq > old.seq").ignored == 1
        rows = [(1, 8), (2, 6), (3, 8)]
        assert [tuple(row.values()) for row in table.scan(order_by_key=True).to_arrow().to_pylist()] == rows
        with pytest.raises(
            nyala.InvalidArgumentError, match=r"use nyala.spark.write\(df, store, table, newest_by='seq'\)"
        ):
            nyala.spark.upsert(late, table, newest_by="seq")

        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "1.json").write_text(
            '{"k": 2, "seq": 7}\n{"k": 2, "seq": 3}\n{"k": 4, "seq": 1}\n'
        )
        stream = spark.readStream.schema("k bigint, seq bigint").json(str(tmp_path / "in"))
        query = (
            stream.writeStream.format("nyala").options(path=str(store), table="t", newest_by="seq")
            .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        )  # fmt: skip
        assert query.awaitTermination(120)
        assert [row["seq"] for row in table.scan(order_by_key=True).to_arrow().to_pylist()] == [8, 7, 8, 1]
