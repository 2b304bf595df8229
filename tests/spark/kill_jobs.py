"""The jobs of test_kills.py, and the program in which one of them is killed: `python -m
tests.spark.kill_jobs JOB`.

The working folder of the program has the store, the input files of a stream (`in`), the moment before
the first commit of table t (`begin`), and the output of jobs (`checkpoint`, `backups`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import nyala
import nyala.spark
from nyala.spark.jobs import small_frames as small

Commit = tuple[str, dict[int, int | None]]

BEFORE: dict[int, int | None] = {k: -k for k in range(0, 300, 3)}
AFTER = BEFORE | {k: 10 * k for k in range(0, 200, 2)}
# The changes of table t between the two queries of the job "mirror". They may be made twice.
MORE: list[Commit] = [
    ("upsert", {1: 7, 9: 90}),
    ("delete-ignore", {12: None, 401: None}),
    ("upsert", {401: 4}),
]


def carry_out(table: nyala.Table, commits: Sequence[Commit]) -> list[int]:
    """Run a job. Return the moment of each commit."""
    moments = []
    for operation, rows in commits:
        name, _, ignore = operation.partition("-")
        if name == "delete":
            result = table.delete({"k": list(rows)}, on_missing="ignore" if ignore else "error")
        else:
            result = getattr(table, name)({"k": list(rows), "v": list(rows.values())})
        moments.append(result.timestamp)
    return moments


def changes(spark: SparkSession) -> DataFrame:
    return spark.range(0, 200, 2, 2).selectExpr("id AS k", "10 * id AS v")


def run_write(spark: SparkSession, store: str) -> None:
    changes(spark).write.format("nyala").options(path=store, table="t").mode("append").save()


def run_load(spark: SparkSession, store: str) -> None:
    with nyala.connect(store, maintenance=False) as db:
        # The program updates the existing rows; the load inserts the others.
        rows = changes(spark).where("k % 3 <> 0")
        nyala.spark.load(
            rows, db["t"], on_conflict="ignore", tasks=2
        )  # `tasks` lets executors write, although there are few rows
        db["t"].upsert({"k": list(range(0, 200, 6)), "v": list(range(0, 2000, 60))})


def run_upsert(spark: SparkSession, store: str) -> None:
    with nyala.connect(store, maintenance=False) as db:
        nyala.spark.upsert(changes(spark), db["t"], tasks=2)


def run_compact(spark: SparkSession, store: str) -> None:
    with nyala.connect(store, maintenance=False) as db:
        nyala.spark.compact(spark, db["t"])


def run_stream(spark: SparkSession, store: str) -> None:
    """Insert two files, one per micro-batch, into the table fed."""
    folder = Path(store).parent
    feed = spark.readStream.schema("k long, v long").option("maxFilesPerTrigger", 1).json(f"{folder}/in")
    put(feed, store, table="fed", operation="insert")


def run_flow(spark: SparkSession, store: str) -> None:
    """Insert every version of every row of t into the table trail, with one micro-batch per commit.
    A version that comes twice is an error.
    """
    begin = (Path(store).parent / "begin").read_text()
    feed = feed_of_t(spark, store, startingTimestamp=begin, versions="all")
    rows = feed.selectExpr("k", "_commit_version AS at", "_change_type AS what", "v")
    put(rows, store, table="trail", operation="insert")


def run_mirror(spark: SparkSession, store: str) -> None:
    """Apply the rows of t, and then its changes, to the table copy, with one micro-batch per
    commit.
    """
    put(feed_of_t(spark, store), store, table="copy", operation="changes")
    with nyala.connect(store, maintenance=False) as db:
        carry_out(db["t"], MORE)
    put(feed_of_t(spark, store), store, table="copy", operation="changes")


def feed_of_t(spark: SparkSession, store: str, **options: Any) -> DataFrame:
    feed = spark.readStream.format("nyala").options(path=store, table="t", changes="true", **options)
    return feed.option("maxRowsPerTrigger", 1).load()


def put(rows: DataFrame, store: str, **options: Any) -> None:
    """Run the query until all data is processed. If a slow machine needs more than the ten seconds
    that Spark gives the source's worker to start, the query is started again.
    """
    for attempts_left in (2, 1, 0):
        query = (
            rows.writeStream.format("nyala").options(path=store, **options)
            .option("checkpointLocation", str(Path(store).parent / "checkpoint")).trigger(availableNow=True).start()
        )  # fmt: skip
        try:
            assert query.awaitTermination(300)
            return
        except StreamingQueryException as error:
            if not attempts_left or "Python worker failed to connect back" not in str(error):
                raise


def run_backup(spark: SparkSession, store: str) -> None:
    with nyala.connect(store, maintenance=False) as db:
        nyala.spark.backup(spark, db["t"], f"{store}/../backups")


def by_executors(run: Callable[[SparkSession, str], None]) -> Callable[[SparkSession, str], None]:
    """Let executors write, even if there are few rows."""

    def run_large(spark: SparkSession, store: str) -> None:
        with mock.patch.object(small, "SMALL_BYTES", -1):
            run(spark, store)

    return run_large


def run_restore(spark: SparkSession, store: str) -> None:
    """Restore a new table, and an existing empty one. A second run restores what is missing."""
    folder = f"{store}/../backups"
    with nyala.connect(store, maintenance=False) as db:
        if "again" not in db.list_tables():
            nyala.spark.restore(spark, folder, "t", into=db, name="again")
        if not db["copy"].count():
            nyala.spark.restore(spark, folder, db["copy"])


def while_open(run: Callable[[SparkSession, str], None]) -> Callable[[SparkSession, str], None]:
    """Run a job while the driver has the store open, so that workers send their commits to it."""

    def run_open(spark: SparkSession, store: str) -> None:
        with nyala.connect(store, maintenance=False):
            run(spark, store)

    return run_open


JOBS: dict[str, Callable[[SparkSession, str], None]] = {
    "write": run_write, "open write": while_open(run_write),
    "stream": run_stream, "open stream": while_open(run_stream), "large stream": run_stream,
    "flow": run_flow, "open flow": while_open(run_flow), "large flow": run_flow,
    "mirror": run_mirror, "large mirror": run_mirror,
    "load": run_load, "upsert": run_upsert, "compact": run_compact, "backup": run_backup,
    "restore": by_executors(run_restore), "small restore": run_restore,
}  # fmt: skip


def main(job: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    Path("armed").touch()
    JOBS[job](spark, "store")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
