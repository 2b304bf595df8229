"""Measures Spark over a store in a bucket, beside Delta Lake there: `python -m bench.spark_bucket
[--quick]`.

Two workers, each in its own process, load lineitem into the bucket and scan it. For comparison, the
package `deltalake` writes and reads the same rows in one process without Spark. The S3 server is
written in Python and answers after a delay (`bench.bucket`). Times depend on this server; numbers
of requests do not.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

import nyala
import nyala.spark as ns
from bench import data, machine
from bench.bucket import Server, Traffic, server
from bench.parts import Say, say
from bench.report import Report, Table, seconds, times
from bench.spark_steps import SESSION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PART = "spark-bucket"
URL = "s3://bucket/store"
WORKERS = "local-cluster[2,1,1536]"


@dataclass(frozen=True)
class Scale:
    name: str
    scale_factor: float
    rounds: int
    delays_s: tuple[float, ...]


FULL = Scale("full", 0.3, 3, (0.005, 0.040))
QUICK = Scale("quick", 0.03, 1, (0.040,))


def session(folder: str, bucket: Server) -> SparkSession:
    """Return a session with two workers in their own processes. They get credentials from the
    environment.
    """
    os.environ["AWS_ACCESS_KEY_ID"] = bucket.options["access_key_id"]
    os.environ["AWS_SECRET_ACCESS_KEY"] = bucket.options["secret_access_key"]
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(WORKERS).appName("nyala bench")
    for name, value in SESSION.items():
        builder = builder.config(name, value)
    made: SparkSession = builder.config(
        "spark.sql.warehouse.dir", os.path.join(folder, "warehouse")
    ).getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    return made


def delta_options(options: dict[str, Any]) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": options["endpoint"], "AWS_ALLOW_HTTP": "true", "AWS_REGION": options["region"],
        "AWS_ACCESS_KEY_ID": options["access_key_id"], "AWS_SECRET_ACCESS_KEY": options["secret_access_key"],
        "conditional_put": "etag",
    }  # fmt: skip


class Steps:
    """The measured steps. Each runs in turns for Nyala and for Delta Lake."""

    def __init__(
        self, spark: SparkSession, bucket: Server, db: nyala.Database, source: str, rows: int
    ) -> None:
        self.spark, self.bucket, self.db, self.rows = spark, bucket, db, rows
        self.frame = spark.read.parquet(source)
        self.arrow = pq.read_table(source)
        self.delta: Any = importlib.import_module("deltalake")
        self.number = 0

    def load_nyala(self) -> None:
        name = f"t{self.number}"
        key = ["l_orderkey", "l_linenumber"]
        table = self.db.create_table(
            name, self.arrow.schema, key, nyala.hash_partition("l_orderkey", buckets=4)
        )
        assert ns.load(self.frame, table, tasks=4).inserted == self.rows

    def load_delta(self) -> None:
        url, options = self._delta_url(), delta_options(self.bucket.options)
        self.delta.write_deltalake(url, self.arrow, storage_options=options)

    def _delta_url(self) -> str:
        return f"s3://bucket/delta{self.number}"

    def scan_nyala(self) -> None:
        table = self.db[f"t{self.number}"]
        table.scan().to_spark(self.spark).write.format("noop").mode("overwrite").save()

    def scan_delta(self) -> None:
        assert self._delta_table().to_pyarrow_table().num_rows == self.rows

    def sum_nyala(self) -> None:
        table = self.db[f"t{self.number}"]
        table.scan(["l_quantity"]).to_spark(self.spark).groupBy().sum().collect()

    def sum_delta(self) -> None:
        self._delta_table().to_pyarrow_table(columns=["l_quantity"])

    def _delta_table(self) -> Any:
        return self.delta.DeltaTable(self._delta_url(), storage_options=delta_options(self.bucket.options))


def run(spark: SparkSession, bucket: Server, scale: Scale, folder: str, say: Say) -> Report:
    arrow, source_name = data.lineitem(scale.scale_factor, folder)
    source = os.path.join(folder, "source.parquet")
    pq.write_table(arrow, source, row_group_size=250_000)
    table = Table(["", "delay", "Nyala", "requests, MB", "Delta Lake", "requests, MB", "Nyala ÷ it"])
    with nyala.connect(URL, storage_options=bucket.options, group_interval=0, maintenance=False) as db:
        steps = Steps(spark, bucket, db, source, arrow.num_rows)
        pairs: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
            "load": (steps.load_nyala, steps.load_delta),
            "scan, all columns": (steps.scan_nyala, steps.scan_delta),
            "one column, summed": (steps.sum_nyala, steps.sum_delta),
        }
        for delay_s in (0.0, *scale.delays_s):  # the first round is not shown
            took: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in pairs}
            traffic: dict[str, list[Traffic]] = {}
            bucket.traffic(delay_s)
            for _ in range(scale.rounds if delay_s else 1):
                steps.number += 1
                for name, both in pairs.items():
                    done = [bucket.during(one) for one in both]
                    for seen, (took_s, _, _) in zip(took[name], done, strict=True):
                        seen.append(took_s)
                    traffic[name] = [made for _, made, _ in done]
            for name, (mine, theirs) in took.items() if delay_s else ():
                said = [str(made) for made in traffic[name]]
                table.rows.append(
                    [name, f"{delay_s * 1000:.0f} ms", seconds(median(mine)), said[0], seconds(median(theirs)), said[1],
                     times(median(mine) / median(theirs))]
                )  # fmt: skip
                say(f"{name} at {delay_s * 1000:.0f} ms: done")
    return Report(
        PART,
        f"Spark on two workers, in a bucket (SF {scale.scale_factor:g})",
        f"{source_name}, {arrow.num_rows:,} rows; Spark `{WORKERS}`; deltalake in one process, without Spark; the S3 "
        "server is Python's; medians in turns",
        table,
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark_bucket")
    parser.add_argument("--quick", action="store_true", help="small data, a minute or two")
    scale = QUICK if parser.parse_args().quick else FULL
    folder = tempfile.mkdtemp(prefix="nyala-bench-spark-bucket-")
    try:
        for line in machine.describe(folder):
            say(line)
        with server() as bucket:
            spark = session(folder, bucket)
            try:
                print(run(spark, bucket, scale, folder, say).text(), flush=True)
            finally:
                spark.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
