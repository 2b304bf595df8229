"""Runs the 22 queries of TPC-H in polars, over Nyala (`Scan.to_polars_lazy`) and over Parquet with
the same rows.

Each query runs in turns over Nyala by a just opened reader, over Nyala by a reader that stays open,
and over the files. The time includes making and collecting the lazy frames. Every result is
compared with that over Parquet.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import nyala
from bench.query_times import Taken, in_turns

if TYPE_CHECKING:
    import polars as pl

    from bench.tpch_polars_queries import Query, Tables

# A result with more rows is compared by a hash of each row, in any order.
_FEW_ROWS: Final = 10_000


def queries(numbers: Iterable[int]) -> Mapping[str, Query]:
    """Return the queries of TPC-H with these numbers."""
    from bench.tpch_polars_queries import QUERIES

    return {name: QUERIES[name] for name in (f"Q{number}" for number in numbers)}


def run_all(
    numbers: Iterable[int], files: str, folder: str, repeats: int, memory_limit: str
) -> dict[str, Taken]:
    """Return the seconds of each query. Raises AssertionError if a result differs from that over
    Parquet.
    """
    import polars as pl

    store = os.path.join(folder, "nyala")

    def opened() -> nyala.Database:
        return nyala.connect(store, read_only=True, memory_limit=memory_limit)

    def timed_query(query: Query, table: Tables) -> tuple[float, list[Any]]:
        begun = perf_counter()
        frame = query(table).collect()
        return perf_counter() - begun, comparable(frame)

    def of(db: nyala.Database) -> Tables:
        return lambda name: db[name].scan().to_polars_lazy()

    def of_files(name: str) -> pl.LazyFrame:
        return pl.scan_parquet(os.path.join(files, f"{name}.parquet"))

    def cold(query: Query) -> tuple[float, list[Any]]:
        with opened() as db:
            return timed_query(query, of(db))

    found = {}
    with opened() as stays:
        for name, query in queries(numbers).items():
            sources = {
                "cold": lambda query=query: cold(query),
                "warm": lambda query=query: timed_query(query, of(stays)),
                "parquet": lambda query=query: timed_query(query, of_files),
            }
            found[name] = in_turns(sources, repeats, f"polars, {name}")
    return found


def comparable(frame: pl.DataFrame) -> list[Any]:
    """Convert rows to Python values. For many rows, return their number and a hash that does not
    depend on their order.

    Columns are compared by name, because in Nyala the key comes first.
    """
    frame = frame.select(sorted(frame.columns))
    if frame.height <= _FEW_ROWS:
        return frame.rows()
    return [(frame.height, frame.width, int(frame.hash_rows().sum()))]
