"""All jobs and streams of Spark over a store in a bucket, without a shared folder.

`tests/spark/cluster` runs them on machines that share nothing but the network.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

import nyala
import nyala.spark
from nyala.spark.arguments import address_of_store
from nyala.testing.s3_server import S3Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

URL = "s3://bucket/store"
BACKUPS = "s3://bucket/backups"
ROWS = 20_000


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Return the storage options of the bucket. Secrets are in a file, as on each machine of a
    cluster.
    """
    with S3Server() as server:
        secret = tmp_path_factory.mktemp("secrets") / "s3.json"
        names = ("access_key_id", "secret_access_key")
        secret.write_text(json.dumps({name: server.options[name] for name in names}))
        public = {name: value for name, value in server.options.items() if name not in names}
        yield {**public, "credentials_file": str(secret)}


@pytest.fixture(scope="module")
def db(options: dict[str, Any]) -> Iterator[nyala.Database]:
    with nyala.connect(URL, storage_options=options, group_interval=0) as db:
        yield db


def created(db: nyala.Database, name: str) -> nyala.Table:
    return db.create_table(
        name, {"k": "int64", "v": "string", "n": "int64"}, "k", nyala.hash_partition("k", buckets=2)
    )


def rows(spark: SparkSession, lower: int, upper: int, value: str = "old") -> DataFrame:
    return spark.range(lower, upper, 1, 2).select(
        F.col("id").alias("k"), F.lit(value).alias("v"), (F.col("id") % 7).alias("n")
    )


def spark_options(options: dict[str, Any], table: str) -> dict[str, str]:
    return {"path": URL, "table": table, **{f"storage.{name}": str(value) for name, value in options.items()}}


def sums(frame: DataFrame) -> tuple[int, int, int]:
    (row,) = frame.agg(F.count("*"), F.sum("k"), F.sum(F.expr("int(v = 'new')"))).collect()
    return row[0], row[1], row[2]


def test_load_upsert_compact_and_all_ways_to_read(
    spark: SparkSession, db: nyala.Database, options: dict[str, Any]
) -> None:
    table = created(db, "t")
    assert nyala.spark.load(rows(spark, 0, ROWS), table, tasks=2).inserted == ROWS
    changed = nyala.spark.upsert(rows(spark, ROWS - 1000, ROWS + 1000, "new"), table, tasks=2)
    assert (changed.inserted, changed.updated) == (1000, 1000)
    truth = (ROWS + 1000, sum(range(ROWS + 1000)), 2000)

    def load(**more: str) -> DataFrame:
        return spark.read.format("nyala").options(**spark_options(options, "t"), **more).load()

    assert sums(load()) == truth
    assert sums(table.scan().to_spark(spark)) == truth
    for store in (URL, db):
        output = options if isinstance(store, str) else None
        read = nyala.spark.sql(spark, "SELECT k, v FROM t", store=store, storage_options=output)
        assert sums(read) == truth
    past = load(at=str(changed.timestamp - 1))
    assert past.where("v = 'new'").count() == 0
    assert nyala.spark.compact(spark, table)["compactions"] > 0
    assert sums(load()) == truth
    assert table.count() == ROWS + 1000 and db.check().ok
    with pytest.raises(nyala.DuplicateKeyError) as raised:
        nyala.spark.load(rows(spark, ROWS, ROWS + 2000), table, tasks=2)
    assert raised.value.errors is not None and len(raised.value.errors) == 1000
    assert table.count() == ROWS + 1000


def test_writes_and_streams_are_committed_by_the_writer_or_without_one(
    spark: SparkSession, db: nyala.Database, options: dict[str, Any], tmp_path: Path
) -> None:
    source, target = created(db, "source"), created(db, "target")
    source.insert({"k": [1, 2, 3], "v": ["a", "b", "c"], "n": [0, 0, 0]})
    result = nyala.spark.write(rows(spark, 3, 10), db, "source", operation="insert", errors="collect")
    assert result.inserted == 6 and result.errors["k"].to_pylist() == [3]
    changes = (
        spark.readStream.format("nyala").options(**spark_options(options, "source")).option("changes", True)
    )
    query = (
        changes.load()
        .writeStream.format("nyala")
        .options(**spark_options(options, "target"), operation="changes", checkpointLocation=str(tmp_path))
    )

    def run() -> None:
        started = query.trigger(availableNow=True).start()
        assert started.awaitTermination(120)

    run()
    source.delete([2])
    source.upsert({"k": [3], "v": ["new"], "n": [1]})
    run()
    assert target.scan(order_by_key=True).to_arrow() == source.scan(order_by_key=True).to_arrow()
    elsewhere = {**options, "timeout_s": 30.0}
    url = URL.replace("store", "alone")
    with nyala.connect(url, storage_options=elsewhere) as other:
        created(other, "t")
    alone = {**spark_options(elsewhere, "t"), "path": url}
    rows(spark, 0, 100).write.format("nyala").options(**alone).mode(
        "append"
    ).save()  # no process has the store open
    assert spark.read.format("nyala").options(**alone).load().count() == 100


def test_backups_go_to_and_come_from_a_bucket(
    spark: SparkSession, db: nyala.Database, options: dict[str, Any], tmp_path: Path
) -> None:
    table = created(db, "Überblick 1/2")
    table.insert({"k": range(100), "v": ["old"] * 100, "n": [0] * 100})
    in_bucket = {"storage_options": options}
    full = nyala.spark.backup(spark, table, BACKUPS, **in_bucket)
    assert full is not None and (full.kind, full.rows) == ("full", 100)
    assert nyala.spark.backup(spark, table, BACKUPS, **in_bucket) is None
    table.delete(where="k < 10")
    more = nyala.spark.backup(spark, table, BACKUPS, **in_bucket)
    assert more is not None and more.kind == "incremental"
    listed = nyala.list_backups(BACKUPS, **in_bucket)
    assert [(one.table, one.kind) for one in listed] == [
        (table.name, "full"), (table.name, "incremental")
    ]  # fmt: skip
    then = nyala.spark.restore(spark, BACKUPS, table.name, full.until, into=db, name="then", **in_bucket)
    now = nyala.spark.restore(spark, BACKUPS, table.name, into=db, name="now", **in_bucket)
    assert (then.count(), now.count()) == (100, 90)
    assert nyala.spark.backup(spark, table, tmp_path / "backups") is not None
    with nyala.connect(tmp_path / "folder") as folder:
        nyala.spark.restore(spark, BACKUPS, table.name, into=folder, **in_bucket)
        assert folder[table.name].count() == 90
        nyala.spark.backup(spark, folder[table.name], BACKUPS + "2", **in_bucket)
    assert len(nyala.clean_backups(BACKUPS, more.until + 1, **in_bucket)) == 2
    assert nyala.list_backups(BACKUPS + "2", **in_bucket)[0].rows == 90
    with pytest.raises(nyala.InvalidArgumentError, match="is inside the store's folder"):
        nyala.spark.backup(spark, table, f"{URL}/backups", **in_bucket)
    with pytest.raises(nyala.InvalidArgumentError, match="does not exist: pass the folder"):
        nyala.list_backups("s3://bucket/nowhere", **in_bucket)


def test_a_session_with_a_default_store(
    spark: SparkSession, db: nyala.Database, options: dict[str, Any]
) -> None:
    created(db, "registered").insert({"k": [1], "v": ["a"], "n": [0]})
    try:
        nyala.spark.register(spark, URL, storage_options=options)
        assert spark.read.format("nyala").option("table", "registered").load().count() == 1
        rows(spark, 5, 8).write.format("nyala").option("table", "registered").mode("append").save()
        assert db["registered"].count() == 4
    finally:
        nyala.spark.register(spark)


def test_a_closed_database_is_refused(db: nyala.Database, options: dict[str, Any]) -> None:
    """`write`, `sql` and `register` refuse a closed Database, as `load` does."""
    with nyala.connect(URL.replace("store", "closed"), storage_options=options) as closed:
        assert address_of_store(closed, "nyala.spark.write").path == closed.path
    with pytest.raises(nyala.StorageError, match="is closed"):
        address_of_store(closed, "nyala.spark.write")


def test_secrets_and_misspelt_options_are_refused(
    spark: SparkSession, db: nyala.Database, options: dict[str, Any]
) -> None:
    for more, says in (
        ({"storage.secret_access_key": "the-secret"}, "Credentials are not allowed in options"),
        ({"storage.account_key": "the-secret"}, "Credentials are not allowed in options"),
        ({"storage.regoin": "x"}, "did you mean storage.region"),
        ({"path": "/a/folder"}, "is for a store in a bucket"),
    ):
        given = spark.read.format("nyala").options(**{**spark_options(options, "t"), **more})
        with pytest.raises(nyala.InvalidArgumentError, match=says) as raised, nyala.spark.plain_errors():
            given.load()
        assert "the-secret" not in str(raised.value)
    for call in (
        lambda: nyala.spark.register(spark, URL, storage_options={"secret_access_key": "the-secret"}),
        lambda: nyala.spark.sql(spark, "SELECT 1", URL, storage_options={"secret_access_key": "the-secret"}),
        lambda: nyala.spark.restore(
            spark, BACKUPS, "t", into=db, storage_options={"secret_access_key": "the-secret"}
        ),
    ):
        with pytest.raises(nyala.InvalidArgumentError, match="Credentials are not allowed in options"):
            call()
