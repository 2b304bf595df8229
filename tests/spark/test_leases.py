"""Wherever there is a lease, the user chooses how long the files of a job or DataFrame are kept."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import nyala
import nyala.spark
from nyala.catalog.leases import Lease, living_leases
from nyala.env import SYSTEM
from nyala.handover import commits as handover
from nyala.spark import frames
from nyala.spark.jobs import backup as backup_jobs
from nyala.spark.jobs import small_frames as small

load_module = importlib.import_module("nyala.spark.jobs.load")


@pytest.fixture
def table(store: Path) -> Iterator[nyala.Table]:
    with nyala.connect(store, maintenance=False) as db:
        made = db.create_table("t", {"k": "int64", "v": "int64"}, ["k"])
        made.insert({"k": [1, 2, 3], "v": [1, 2, 3]})
        yield made


def seconds_left(expires_us: int) -> int:
    return round((expires_us - SYSTEM.clock.now_us()) / 1e6)


def remote_leases(store: str) -> dict[str, int]:
    """Return the duration of each lease of a DataFrame, by name."""
    found = living_leases(SYSTEM, store, SYSTEM.clock.now_us())
    return {one.name: seconds_left(one.expires_us) for one in found if one.expires_us is not None}


def test_a_dataframe_has_the_requested_lease(
    spark: SparkSession, table: nyala.Table, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`to_spark`, `sql` and `format("nyala")` use the duration that the user passes. DataFrames
    with different durations are not shared.
    """
    monkeypatch.setattr(frames, "LOCAL_MAX_ROWS", -1)
    path, text = str(store), "SELECT sum(v) FROM t"
    for seconds, read in (
        (3600, lambda: table.scan().to_spark(spark)),
        (7205, lambda: table.scan().to_spark(spark, lease=7205)),
        (6005, lambda: nyala.spark.scan_to_spark(spark, table.scan(), lease=6005.5)),
        (5005, lambda: nyala.spark.sql(spark, text, store=path, lease=5005)),
        (4005, lambda: nyala.spark.sql(spark, text, store=path, lease=4005)),
        (2005, lambda: spark.read.format("nyala").options(path=path, table="t", lease=2005).load()),
    ):
        table.upsert({"k": [9], "v": [seconds]})
        before = remote_leases(path)
        df = read()
        df.collect()
        new = [left for name, left in remote_leases(path).items() if name not in before]
        assert [seconds - 60 <= left <= seconds + 1 for left in new] == [True], (seconds, new)


def test_a_job_has_the_requested_lease(
    spark: SparkSession, table: nyala.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Load, upsert, backup and restore: the duration of the lease and of its renewals."""
    monkeypatch.setattr(small, "SMALL_BYTES", -1)
    monkeypatch.setattr(frames, "LOCAL_MAX_ROWS", -1)
    requested: list[tuple[str, int]] = []
    make = handover.remote_lease

    def made(*given: object, **named: object) -> Lease:
        lease = make(*given, **named)  # type: ignore[arg-type]
        assert lease.expires_us is not None
        requested.append(("made", seconds_left(lease.expires_us)))
        return lease

    def renewing_lease(path: str, lease: str, ttl_s: float) -> contextlib.nullcontext[None]:
        requested.append(("renewed", int(ttl_s)))
        return contextlib.nullcontext()

    monkeypatch.setattr(handover, "remote_lease", made)
    for module in (load_module, backup_jobs):
        monkeypatch.setattr(module, "renewing_lease", renewing_lease)
    folder = tmp_path / "backups"
    df = spark.range(10, 20, 1, 1).selectExpr("id AS k", "id AS v")

    def both(seconds: int) -> None:
        assert requested and set(requested) == {("made", seconds), ("renewed", seconds)}
        requested.clear()

    nyala.spark.load(df, table, lease=500)
    both(500)
    nyala.spark.upsert(df, table, lease=600)
    both(600)
    nyala.spark.backup(spark, table, folder, lease=700)
    both(700)
    table.delete({"k": [1]})
    nyala.spark.backup(spark, table, folder)
    both(3600)
    restored = nyala.spark.restore(spark, folder, "t", into=table._database, name="u", lease=800)
    both(800)
    with nyala.connect(tmp_path / "other") as other:
        there = other.create_table("t", table.schema, ["k"])
        nyala.spark.restore(spark, folder, there, lease=900)  # through a temporary table, which is scanned
        both(900)
        assert there.to_arrow().sort_by("k") == restored.to_arrow().sort_by("k")
