"""Spark's own classes: they are what we take them for, and where one is not, the public way gives the same."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType

import pytest
from pyspark.sql import SparkSession

import nyala
import nyala.spark
from nyala.spark import frames, jvm, plans

# A join that only asks whether, over rows that stand in the plan.
STATEMENT = "SELECT a.k, a.p FROM t a WHERE NOT EXISTS (SELECT 1 FROM t b WHERE b.k = a.k + 1) OR a.k < 3"
EXPECTED = [(1, Decimal("1.50")), (2, None), (600, Decimal("600.50"))]


@pytest.fixture(scope="module")
def db(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[nyala.Database]:
    folder: Path = tmp_path_factory.mktemp("jvm_classes")
    with nyala.connect(folder / "s") as made:
        t = made.create_table("t", {"k": "int64", "p": "decimal(9,2)"}, "k")
        prices = [None if k == 2 else Decimal(f"{k}.50") for k in range(1, 601)]
        t.insert({"k": range(1, 601), "p": prices})
        yield made


@pytest.fixture
def classes(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Where each class lies, to be changed by the test."""
    changed = dict(jvm.CLASSES)
    monkeypatch.setattr(jvm, "CLASSES", MappingProxyType(changed))
    jvm._jvm_of.cache_clear()
    yield changed
    jvm._jvm_of.cache_clear()


def test_each_class_is_in_this_spark(spark: SparkSession) -> None:
    loaded = spark._jvm.java.lang.Class
    for name, full in jvm.CLASSES.items():
        assert loaded.forName(full).getName() == full, name


def test_this_version_is_known(spark: SparkSession) -> None:
    assert jvm.is_known(spark)


@pytest.mark.parametrize("missing", jvm.CLASSES)
def test_without_a_class_the_public_way_gives_the_same(
    spark: SparkSession,
    db: nyala.Database,
    monkeypatch: pytest.MonkeyPatch,
    classes: dict[str, str],
    missing: str,
) -> None:
    """J1: of a statement, of a scan that tasks read, and of rows that are written."""
    classes[missing] = "org.apache.spark.sql.nosuch.Class"
    found = nyala.spark.sql(spark, STATEMENT, store=db.path)
    assert sorted(tuple(row) for row in found.collect()) == EXPECTED
    monkeypatch.setattr(frames, "LOCAL_MAX_ROWS", -1)
    read = db["t"].scan().to_spark(spark)
    plan = read._jdf.queryExecution().optimizedPlan().toString()
    assert ("posexplode" in plan) == (missing not in OF_ARRAYS), plan
    assert ("Expand" in plan) == ("posexplode" in plan), plan
    assert read.toArrow().sort_by("k") == db["t"].to_arrow().cast(read.toArrow().schema)
    if missing in OF_DIGITS:
        nyala.spark.upsert(read.where("k = 3"), db["t"])
        assert db["t"].get({"k": 3}) == {"k": 3, "p": Decimal("3.50")}


# Those by which decimals are written as their digits.
OF_DIGITS = {"ExpressionUtils", "UnscaledValue"}
# Those without which rows of tasks travel as rows (F3).
OF_ARRAYS = {
    "Cons",
    "Dataset",
    "DataTypeUtils",
    "Expand",
    "ExpressionUtils",
    "LogicalRDD",
    "MakeDecimal",
    "Nil",
    "Option",
}


def test_rows_in_the_plan_without_a_class(
    spark: SparkSession, db: nyala.Database, classes: dict[str, str]
) -> None:
    """They are given to Spark by `createDataFrame`."""
    classes["UnsafeRow"] = "org.apache.spark.sql.nosuch.UnsafeRow"
    assert plans.ROWS_AS_ROWS < 600
    found = nyala.spark.sql(spark, "SELECT sum(p) FROM t", store=db.path)
    assert found.collect()[0][0] == sum(Decimal(f"{k}.50") for k in range(1, 601) if k != 2)
    assert "posexplode" not in found._jdf.queryExecution().optimizedPlan().toString()
