"""TPC-H's 22 queries through `nyala.spark.sql`: joins of up to eight tables, EXISTS, IN, subqueries that refer outside.

Tables are read by tasks, whose rows travel as arrays, though these are small enough to stand in the plan.
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
from bench.questions import same
from bench.tpch_queries import KEYS, QUERIES
from nyala.spark import frames

# In the gate: EXISTS with NOT EXISTS, an outer join, and IN within IN.
FEW = (13, 20, 21)
# The slowest one is only planned there, not executed.
SLOW = 20

# What may stand over arrays: what unrolls them, and Repartition, which keeps them in one task.
_BELOW = ("Project", "Filter", "Generate", "Repartition")


@pytest.fixture(scope="module")
def store(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The tables in Nyala, and as views of Spark's over Parquet."""
    folder = tmp_path_factory.mktemp("tpch")
    with nyala.connect(folder / "store") as db:
        spark_tpch.make(spark, tables(), str(folder), db)
        yield db.path
    for name in KEYS:
        spark.catalog.dropTempView(name)


@pytest.mark.parametrize(
    "number", [pytest.param(q, marks=() if q in FEW and q != SLOW else pytest.mark.long) for q in QUERIES]
)
def test_a_query_answers_over_nyala_as_over_parquet(
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
def test_no_row_takes_its_arrays_along(
    spark: SparkSession, store: str, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """F3: values leave their arrays before joins and aggregates, or each row would be sent with thousands of others.

    Spark draws what makes columns of columns above a semi join, where nothing holds it.
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
def test_the_bench_ends_where_answers_differ(spark: SparkSession, store: str, tmp_path: Path) -> None:
    """A fast wrong answer is no figure."""
    said: list[str] = []
    found = spark_tpch.ask(spark, store, 1, said.append, (6, 22))
    assert [[len(took) for took in ways.values()] for ways in found.values()] == [[1, 1], [1, 1]]
    assert [text[:4] for text in said] == ["Q6: ", "Q22:"]
    mean = spark_tpch.geometric_mean(
        {1: {"nyala": [1.0], "parquet": [2.0]}, 2: {"nyala": [8.0], "parquet": [1.0]}}
    )
    assert mean == pytest.approx(2.0)
    given = tables()["lineitem"]
    with nyala.connect(tmp_path / "other") as db:
        lines = db.create_table("lineitem", given.schema, KEYS["lineitem"])
        lines.insert(given)
        lines.delete(where="l_quantity < 24")
        with pytest.raises(AssertionError, match="Q6: nyala answers otherwise than Parquet"):
            spark_tpch.ask(spark, db.path, 1, said.append, (6,))
