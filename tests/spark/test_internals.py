"""Spark's private classes exist in this version. Without one of them, or without all, everything
works.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType

import pytest
from pyspark.sql import SparkSession

import nyala
import nyala.spark
from nyala.handover import commits as handover
from nyala.spark import frames, internals
from nyala.spark.internals import plans

STATEMENT = "SELECT a.k, a.p FROM t a WHERE NOT EXISTS (SELECT 1 FROM t b WHERE b.k = a.k + 1) OR a.k < 3"
EXPECTED = [(1, Decimal("1.50")), (2, None), (600, Decimal("600.50"))]


@pytest.fixture(scope="module")
def db(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[nyala.Database]:
    folder: Path = tmp_path_factory.mktemp("internals")
    with nyala.connect(folder / "s") as made:
        t = made.create_table("t", {"k": "int64", "p": "decimal(9,2)"}, "k")
        prices = [None if k == 2 else Decimal(f"{k}.50") for k in range(1, 601)]
        t.insert({"k": range(1, 601), "p": prices})
        yield made


def test_the_private_classes_exist_in_this_version(spark: SparkSession) -> None:
    assert internals.available(spark)
    loaded = spark._jvm.java.lang.Class  # type: ignore[union-attr]
    for name, full in plans.CLASSES.items():
        assert loaded.forName(full).getName() == full, name


@pytest.mark.parametrize("missing", [*plans.CLASSES, None])
def test_rows_are_the_same_without_a_class(
    spark: SparkSession, db: nyala.Database, monkeypatch: pytest.MonkeyPatch, missing: str | None
) -> None:
    """Tasks then return rows instead of arrays."""
    monkeypatch.setattr(frames, "LOCAL_MAX_ROWS", -1)
    if missing is not None:
        changed = {**plans.CLASSES, missing: "org.apache.spark.sql.nosuch.Class"}
        monkeypatch.setattr(plans, "CLASSES", MappingProxyType(changed))
    read = db["t"].scan().to_spark(spark)
    plan = read._jdf.queryExecution().optimizedPlan().toString()
    assert ("posexplode" in plan) == ("Expand" in plan) == (missing is None), plan
    assert read.toArrow().sort_by("k") == db["t"].to_arrow().cast(read.toArrow().schema)


@pytest.mark.parametrize("setting", ["true", "false"])
def test_the_setting_switches_all_of_it_off(
    spark: SparkSession, db: nyala.Database, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    """A scan by tasks, a statement, and a small upsert, which executors then write, have the same
    results.
    """
    monkeypatch.setattr(frames, "LOCAL_MAX_ROWS", -1)
    by_executors: list[str] = []
    loading = handover.loading

    def noted(path, name, *rest, **more):  # type: ignore[no-untyped-def]
        by_executors.append(name)
        return loading(path, name, *rest, **more)

    monkeypatch.setattr(handover, "loading", noted)
    if setting == "false":  # no class may be looked up
        monkeypatch.setattr(plans, "_class", None)
    spark.conf.set(internals.SETTING, setting)
    try:
        assert (
            sorted(tuple(row) for row in nyala.spark.sql(spark, STATEMENT, store=db.path).collect())
            == EXPECTED
        )
        read = db["t"].scan().to_spark(spark)
        assert ("posexplode" in read._jdf.queryExecution().toString()) == (setting == "true")
        assert nyala.spark.upsert(read.where("k = 3"), db["t"]).updated == 1
        assert db["t"].get({"k": 3}) == {"k": 3, "p": Decimal("3.50")}
        by_executors.clear()
        assert nyala.spark.upsert(spark.range(4, 6).selectExpr("id AS k", "0BD AS p"), db["t"]).updated == 2
        assert by_executors == ([] if setting == "true" else ["t"])
    finally:
        spark.conf.unset(internals.SETTING)
        db["t"].upsert({"k": [4, 5], "p": [Decimal("4.50"), Decimal("5.50")]})
