"""TPC-H's queries in polars have the results of those in SQL, over Parquet and over Nyala."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest

import nyala
from bench import query_times, tpch_polars
from bench.tpch_queries import KEYS, QUERIES
from tests.bench.tpch_tables import tables


class Results(NamedTuple):
    """Functions from a query's number to its result, one for each source."""

    sql: Any
    parquet: Any
    nyala: Any


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Results]:
    duckdb: Any = pytest.importorskip("duckdb")
    pl: Any = pytest.importorskip("polars")
    folder = tmp_path_factory.mktemp("tpch")
    queries = tpch_polars.queries(QUERIES)
    with nyala.connect(folder / "nyala") as db, duckdb.connect() as con:
        for name, table in tables().items():
            path = folder / f"{name}.parquet"
            pq.write_table(table, path)
            con.execute(f"CREATE VIEW {name} AS FROM '{path}'")
            db.create_table(name, table.schema, KEYS[name]).insert(table)
            db[name].compact()
        yield Results(
            lambda number: con.execute(QUERIES[number]).fetchall(),
            lambda number: queries[f"Q{number}"](
                lambda name: pl.scan_parquet(folder / f"{name}.parquet")
            ).collect(),
            lambda number: queries[f"Q{number}"](lambda name: db[name].scan().to_polars_lazy()).collect(),
        )


def alike(ours: Any, theirs: Any) -> bool:
    """Compare doubles without their last digits, and decimals exactly, with any number of places."""
    return math.isclose(ours, theirs, rel_tol=1e-9) if isinstance(theirs, float) else ours == theirs


@pytest.mark.parametrize("number", QUERIES)
def test_a_query_has_the_same_result_in_polars_and_sql(results: Results, number: int) -> None:
    """The rows also have the same order, because no two rows of a result are equal in its ORDER BY."""
    expected = results.sql(number)
    assert expected and None not in expected[0], "a query that finds nothing compares nothing"
    frame = results.parquet(number)
    rows = frame.rows()
    assert len(rows) == len(expected)
    for ours, theirs in zip(rows, expected, strict=True):
        assert all(map(alike, ours, theirs)) and len(ours) == len(theirs), (ours, theirs)
    over_nyala = results.nyala(number)
    assert over_nyala.schema == frame.schema
    assert query_times.same(tpch_polars.comparable(over_nyala), tpch_polars.comparable(frame))
