"""The 22 queries of TPC-H through `nyala.spark.sql`: joins of up to eight tables, EXISTS, IN,
correlated subqueries.

Tasks read the tables and return arrays, although the tables are small enough for the plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.bench.tpch_tables import tables

import nyala
import nyala.spark
from bench import spark_tpch
from bench.query_times import same
from bench.tpch_queries import KEYS, QUERIES
from nyala.spark import frames

# Run in `make test`: EXISTS with NOT EXISTS, an outer join, and IN inside IN.
FEW = (13, 20, 21)
# The slowest query, which is only planned in `make test`.
SLOW = 20

# Plan nodes that may be above arrays: those that make rows of arrays, and Repartition.
_BELOW = ("Project", "Filter", "Generate", "Repartition")


@pytest.fixture(scope="module")
def store(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Create the tables in Nyala, and views of Spark over Parquet."""
    folder = tmp_path_factory.mktemp("tpch")
    with nyala.connect(folder / "store") as db:
        spark_tpch.make(spark, tables(), str(folder), db)
        yield db.path
    for name in KEYS:
        spark.catalog.dropTempView(name)


@pytest.mark.parametrize(
    "number", [pytest.param(q, marks=() if q in FEW and q != SLOW else pytest.mark.long) for q in QUERIES]
)
def test_a_query_has_the_same_result_over_nyala_and_parquet(
    spark: SparkSession, store: str, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(frames, "LOCAL_MAX_ROWS", -1)
    expected = [tuple(row) for row in spark.sql(QUERIES[number]).collect()]
    assert expected, "a query that finds nothing compares nothing"
    found = nyala.spark.sql(spark, QUERIES[number], store=store).collect()
    assert same([tuple(row) for row in found], expected)


@pytest.mark.parametrize(
    "number", [pytest.param(q, marks=() if q in FEW else pytest.mark.long) for q in QUERIES]
)
def test_arrays_become_rows_below_joins(
    spark: SparkSession, store: str, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Rule F3: otherwise each row would be sent through a join with thousands of others.

    Without the Expand, Spark would move expressions above a semi join.
    """
    monkeypatch.setattr(frames, "LOCAL_MAX_ROWS", -1)
    plan = nyala.spark.sql(spark, QUERIES[number], store=store)._jdf.queryExecution().optimizedPlan()
    assert "Generate" in plan.toString()
    for above, below in edges(plan):
        if above.nodeName() not in _BELOW:
            output = below.output()
            types = [output.apply(place).dataType().typeName() for place in range(output.length())]
            assert "array" not in types, f"{above.nodeName()} over {below.toString()}"


def edges(plan: Any) -> Iterator[tuple[Any, Any]]:
    children = plan.children()
    for place in range(children.length()):
        yield plan, children.apply(place)
        yield from edges(children.apply(place))


@pytest.mark.long
def test_the_benchmark_fails_if_results_differ(spark: SparkSession, store: str, tmp_path: Path) -> None:
    messages_seen: list[str] = []
    found = spark_tpch.run_queries(spark, store, 1, messages_seen.append, (6, 22))
    assert [[len(took) for took in ways.values()] for ways in found.values()] == [[1, 1], [1, 1]]
    assert [text[:4] for text in messages_seen] == ["Q6: ", "Q22:"]
    given = tables()["lineitem"]
    with nyala.connect(tmp_path / "other") as db:
        lines = db.create_table("lineitem", given.schema, KEYS["lineitem"])
        lines.insert(given)
        lines.delete(where="l_quantity < 24")
        with pytest.raises(AssertionError, match="Q6: nyala has other results than Parquet"):
            spark_tpch.run_queries(spark, db.path, 1, messages_seen.append, (6,))
