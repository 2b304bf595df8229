"""Streams: out of a table, into a table, and from one into another, each change once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import nyala


def copied(store: Path) -> list[tuple[Any, ...]]:
    with nyala.connect(store, read_only=True) as db:
        return [tuple(row.values()) for row in db["copy"].scan(order_by_key=True).to_arrow().to_pylist()]


def test_nyala_to_nyala(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    """One query keeps a copy of a table: inserts, updates and deletes; stopped and started again it goes on, also when
    both tables have a column more, and a range partition of the source is gone: its rows stay in the copy."""
    with nyala.connect(store) as db:
        schema = {"k": "int64", "v": "int64"}
        ranges = nyala.range_partition("k", bounds=[(0, 100), (100, 200)])
        source = db.create_table("t", schema, ["k"], [nyala.hash_partition("k", buckets=2), ranges])
        copy = db.create_table("copy", schema, ["k"])
        source.insert({"k": [1, 2, 3, 100], "v": [10, 20, 30, 40]})

        def run() -> list[Any]:
            """The ranges that the query was told to be dropped."""
            feed = spark.readStream.format("nyala").options(path=str(store), table="t", changes="true")
            query = (
                feed.option("maxRowsPerTrigger", 2).load().writeStream.format("nyala")
                .options(path=str(store), table="copy", operation="changes")
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True).start()
            )  # fmt: skip
            assert query.awaitTermination(120)
            offsets = [json.loads(progress["sources"][0]["endOffset"]) for progress in query.recentProgress]
            return [gone["range"] for offset in offsets for gone in offset.get("dropped_ranges", [])]

        assert run() == []
        assert copied(store) == [(1, 10), (2, 20), (3, 30), (100, 40)]
        source.delete({"k": [1]})
        source.upsert({"k": [2, 4], "v": [21, 40]})
        with source.alter() as a:
            a.add_column("w", "int8", default=7)
            a.drop_range(100, 200)
        with copy.alter() as a:
            a.add_column("w", "int16")
        source.update({"k": [4], "w": [8]})
        assert run() == ["RANGE (k) [100, 200)"]
        assert copied(store) == [(2, 21, 7), (3, 30, None), (4, 40, 8), (100, 40, None)]


QUERY = """
import os, signal, sys
from pathlib import Path
folder, step = sys.argv[1:]
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
from pyspark.sql import SparkSession
from nyala.spark.sink import NyalaStreamWriter
from nyala.spark.source import NyalaDataSource

GROUP = os.getpgid(0)

def die_at(name):
    # Once: the next start of the query passes here. The driver's Python, the JVM and all workers go together.
    mark = Path(folder, "died-" + name)
    if step == name and not mark.exists():
        mark.touch()
        os.killpg(GROUP, signal.SIGKILL)

class DyingWriter(NyalaStreamWriter):
    def write(self, iterator):
        die_at("before staging")
        message = super().write(iterator)
        die_at("after staging")
        return message

    def commit(self, messages, batchId):
        if batchId == 1:
            die_at("before the commit")
        super().commit(messages, batchId)
        if batchId == 1:
            die_at("after the commit")

class Dying(NyalaDataSource):
    @classmethod
    def name(cls):
        return "dying"

    def streamWriter(self, schema, overwrite):
        made = super().streamWriter(schema, overwrite)
        return DyingWriter(made._options, schema, overwrite)

spark = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1").getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")
spark.dataSource.register(Dying)
feed = spark.readStream.schema("k long, v long").option("maxFilesPerTrigger", 1).json(folder + "/in")
query = (
    feed.writeStream.format("dying").options(path=folder + "/store", table="copy", operation="insert")
    .option("checkpointLocation", folder + "/checkpoint").trigger(availableNow=True).start()
)
query.awaitTermination()
spark.stop()
"""


@pytest.mark.parametrize(
    "step",
    [
        pytest.param("before staging", marks=pytest.mark.long),
        pytest.param("after staging", marks=pytest.mark.long),
        pytest.param("before the commit", marks=pytest.mark.long),
        "after the commit",
    ],
)
def test_a_killed_driver_writes_each_row_once(tmp_path: Path, step: str) -> None:
    """kill -9 of the driver, the JVM and the workers at a step, and a new start: no row twice, none lost.

    The sink inserts, so a row that was applied twice would fail the query.
    """
    with nyala.connect(tmp_path / "store") as db:
        db.create_table("copy", {"k": "int64", "v": "int64"}, ["k"])
    (tmp_path / "in").mkdir()
    for number in range(3):
        lines = "".join(f'{{"k": {10 * number + i}, "v": {number}}}\n' for i in range(5))
        (tmp_path / "in" / f"{number}.json").write_text(lines)
    (tmp_path / "query.py").write_text(QUERY)
    codes = []
    for _ in range(2):
        run = subprocess.Popen(
            [sys.executable, "query.py", str(tmp_path), step],
            cwd=tmp_path, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            _, errors = run.communicate(timeout=140)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            raise
        codes.append(run.returncode)
    assert codes == [-signal.SIGKILL, 0], errors[-3000:]
    assert copied(tmp_path / "store") == [(10 * number + i, number) for number in range(3) for i in range(5)]
