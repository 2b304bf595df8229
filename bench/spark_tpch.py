"""Runs the 22 queries of TPC-H in a Spark session: `nyala.spark.sql`, and Spark over Snappy
Parquet, in turns.

Spark writes the Parquet files from those of tpchgen-cli. Nyala's tables have the same rows; large
tables are hash partitioned by the first column of their key, and all are compacted. A first round
is not counted. It compares the results, and a wrong one ends the run. The time of a statement is
from its text to its rows.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

import nyala
from bench.measure import in_rounds
from bench.parts import Say
from bench.query_times import ratio_of, same
from bench.spark_steps import NYALA, PARQUET, PARTITIONS, Seconds
from bench.tpch_queries import KEYS, QUERIES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A table with fewer rows has one tablet.
PARTITIONED_ROWS = 100_000


def make(spark: SparkSession, given: Mapping[str, pa.Table], folder: str, db: nyala.Database) -> None:
    """Make the tables in a store, and views of Spark over Parquet."""
    for name, key in KEYS.items():
        table = given[name]
        parts = [nyala.hash_partition(key[0], buckets=PARTITIONS)] if len(table) >= PARTITIONED_ROWS else []
        db.create_table(name, table.schema, key, parts).insert(table)
        db[name].compact()
        single, files = os.path.join(folder, f"{name}.parquet"), os.path.join(folder, name)
        pq.write_table(table, single, row_group_size=250_000)
        spark.read.parquet(single).write.mode("overwrite").parquet(files)
        os.unlink(single)
        spark.read.parquet(files).createOrReplaceTempView(name)


def run_queries(
    spark: SparkSession, store: str, repeats: int, say: Say, queries: Sequence[int] = tuple(QUERIES)
) -> dict[int, Seconds]:
    """Return the seconds of each way, by query and round. Raises AssertionError if results differ."""
    import nyala.spark as ns

    found = {}
    for number in queries:
        text = QUERIES[number]
        rows: dict[str, list[Any]] = {}

        def by_nyala(_: int, text: str = text, rows: dict[str, list[Any]] = rows) -> None:
            rows[NYALA] = ns.sql(spark, text, store=store).collect()

        def by_parquet(_: int, text: str = text, rows: dict[str, list[Any]] = rows) -> None:
            rows[PARQUET] = spark.sql(text).collect()

        ways = {NYALA: by_nyala, PARQUET: by_parquet}
        for way in ways.values():
            way(0)
        ours, theirs = ([tuple(row) for row in rows[name]] for name in ways)
        if not same(ours, theirs):
            raise AssertionError(f"Q{number}: nyala has other results than Parquet")
        found[number] = in_rounds(ways, repeats, warm=0)
        say(f"Q{number}: {ratio_of(found[number], NYALA, PARQUET):.2f} × Parquet")
    return found
