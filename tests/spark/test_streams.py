"""Streams from a table, into a table, and from one table into another: each change once."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import nyala


def copied(store: Path) -> list[tuple[Any, ...]]:
    with nyala.connect(store, read_only=True) as db:
        return [tuple(row.values()) for row in db["copy"].scan(order_by_key=True).to_arrow().to_pylist()]


def leases_left(store: Path) -> list[str]:
    """Return the leases of tasks and micro-batches, after waiting for workers to end."""
    deadline_s = time.monotonic() + 30
    while left := [path.name for path in (store / "leases").glob("remote-*")]:
        if time.monotonic() > deadline_s:
            break
        time.sleep(0.05)
    return left


def test_nyala_to_nyala(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    """One query keeps a copy of a table: inserts, updates and deletes. It continues after a
    restart, after a new column in both tables, and after a dropped range of the source, whose rows
    stay in the copy.
    """
    with nyala.connect(store) as db:
        schema = {"k": "int64", "v": "int64"}
        ranges = nyala.range_partition("k", bounds=[(0, 100), (100, 200)])
        source = db.create_table("t", schema, ["k"], [nyala.hash_partition("k", buckets=2), ranges])
        copy = db.create_table("copy", schema, ["k"])
        source.insert({"k": [1, 2, 3, 100], "v": [10, 20, 30, 40]})

        def run() -> list[Any]:
            """Run the query. Return the dropped ranges that its progress shows."""
            feed = spark.readStream.format("nyala").options(path=str(store), table="t", changes="true")
            query = (
                feed.option("maxRowsPerTrigger", 2).load().writeStream.format("nyala")
                .options(path=str(store), table="copy", operation="changes")
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True).start()
            )  # fmt: skip
            assert query.awaitTermination(120)
            offsets = [json.loads(progress["sources"][0]["endOffset"]) for progress in query.recentProgress]
            return [missing["range"] for offset in offsets for missing in offset.get("dropped_ranges", [])]

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
        assert leases_left(store) == []


def test_output_mode_complete(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    """Each micro-batch is the whole result. Rows that are not in it are deleted in the same commit."""
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    with nyala.connect(store) as db:
        source = db.create_table("t", {"k": "int64", "v": "int64"}, ["k"])
        single = db.create_table("single", {"v": "int64", "count": "int64"}, ["v"])
        source.insert({"k": [1, 2, 3], "v": [10, 20, 20]})
        feed = spark.readStream.format("nyala").options(path=str(store), table="t", changes="true").load()
        query = (
            feed.groupBy("v").count().where("count = 1").writeStream.format("nyala").outputMode("complete")
            .options(path=str(store), table="single", operation="insert")
            .option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        )  # fmt: skip
        try:
            query.processAllAvailable()
            assert single.to_arrow().to_pylist() == [{"v": 10, "count": 1}]
            then = db.now()
            source.insert({"k": [4, 5], "v": [10, 30]})
            query.processAllAvailable()
        finally:
            query.stop()
            spark.conf.set("spark.sql.shuffle.partitions", before)
        assert single.to_arrow().to_pylist() == [{"v": 30, "count": 1}]
        changes = single.changes(since=then).to_arrow().sort_by("v")
        assert changes["_change_type"].to_pylist() == ["delete", "insert"]
        assert len(set(changes["_commit_version"].to_pylist())) == 1


def test_a_query_that_ended_keeps_no_files(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    """A query that was stopped leaves no lease and no staged file either. Spark ends its workers by
    a signal.
    """
    with nyala.connect(store) as db:
        table = db.create_table("t", {"k": "int64"}, ["k"])
        for name in ("once", "always"):
            table.insert({"k": [len(name)]})
            feed = spark.readStream.format("nyala").options(path=str(store), table="t", changes="true")
            writer = feed.load().writeStream.format("noop").option("checkpointLocation", str(tmp_path / name))
            query = (writer.trigger(availableNow=True) if name == "once" else writer).start()
            if name == "once":
                assert query.awaitTermination(120)
            else:
                query.processAllAvailable()
                assert len(list((store / "leases").glob("remote-*"))) == 1
                query.stop()
            assert query.recentProgress[0]["numInputRows"] == table.count()
            assert leases_left(store) == []


def test_a_query_with_expired_history_is_an_error_with_advice(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    """Changes after its checkpoint have expired. `_commit_version` comes with each row, in batches
    of the requested size.
    """
    with nyala.connect(store, maintenance=False) as db:
        table = db.create_table("t", {"k": "int64", "v": "int64"}, ["k"])
        moments = [table.insert({"k": [number], "v": [number]}).timestamp for number in range(3)]
        seen: list[list[tuple[Any, ...]]] = []

        def run() -> Any:
            feed = spark.readStream.format("nyala").options(path=str(store), table="t", changes="true")
            query = (
                feed.options(startingTimestamp=moments[0], maxRowsPerTrigger=1).load()
                .select("k", "_change_type", "_commit_version").writeStream
                .foreachBatch(lambda batch, _: seen.append([tuple(row) for row in batch.collect()]))
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True).start()
            )  # fmt: skip
            try:
                query.awaitTermination(120)
            except StreamingQueryException as error:
                return error
            return query.exception()

        assert run() is None
        assert [batch for batch in seen if batch] == [
            [(number, "insert", moments[number])] for number in (1, 2)
        ]
        table.update({"k": [1], "v": [2]})
        with table.alter() as a:
            a.set_history(0)
        table.update({"k": [1], "v": [3]})
        table.compact()
        table.vacuum()
        seen.clear()
        assert "HistoryExpiredError" in str(failed := run()) and "cannot continue from its checkpoint" in str(
            failed
        )
        assert not any(seen)
