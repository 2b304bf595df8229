"""Polars over Nyala (`Scan.to_polars_lazy`) and over the Parquet files of the same rows (`pl.scan_parquet`).

One frame of questions for both: TPC-H's 22 queries (`bench.tpch_polars_queries`), and nine of one step or two: sums of
a column, TPC-H's Q1 and Q6, a group by two columns of text, a filter by text, a join of two tables, and all columns of
lineitem collected. The 22 once more without the filters that polars has joins put on scans of Parquet, and of nothing
else: so both are asked the same.

In turns, as in `bench.tpch`: Nyala by a reader that was just opened, Nyala by one that stays open, and the files.
Collecting is timed, with making the lazy frames; every answer is compared with that over Parquet.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import nyala
from bench.costs import cost
from bench.pulls import Pulls
from bench.questions import Answer, Found, clocked, in_turns

if TYPE_CHECKING:
    import polars as pl

    from bench.tpch_polars_queries import Query, Tables

# An answer with more rows is compared by a hash of each row: their order is nobody's promise.
_FEW_ROWS: Final = 10_000
FILTERS: Final = "POLARS_JOIN_RUNTIME_FILTERS"


def queries(numbers: Iterable[int]) -> Mapping[str, Query]:
    """Of TPC-H's 22 those of these numbers."""
    from bench.tpch_polars_queries import QUERIES

    return {name: QUERIES[name] for name in (f"Q{number}" for number in numbers)}


def questions() -> Mapping[str, Query]:
    """Nine of one step or two."""
    import polars as pl

    from bench.tpch_polars_queries import q1, q6

    def group(table: Tables) -> pl.LazyFrame:
        flags = table("lineitem").group_by("l_returnflag", "l_linestatus")
        return flags.agg(pl.len(), pl.col("l_quantity").sum())

    def join(table: Tables) -> pl.LazyFrame:
        received = pl.col("l_receiptdate").is_between(dt.date(1994, 1, 1), dt.date(1995, 1, 1), closed="left")
        lines = table("lineitem").filter(received, pl.col("l_shipmode").is_in(["MAIL", "SHIP"]))
        joined = lines.join(table("orders"), left_on="l_orderkey", right_on="o_orderkey")
        return joined.group_by("l_shipmode", "o_orderpriority").agg(pl.len())

    mail = pl.col("l_shipmode") == "MAIL"
    return {
        "sum of l_extendedprice": lambda table: table("lineitem").select(pl.col("l_extendedprice").sum()),
        "sum of l_orderkey": lambda table: table("lineitem").select(pl.col("l_orderkey").sum()),
        "Q1": q1,
        "Q6": q6,
        "group by two texts": group,
        "filter by text, sum": lambda table: (
            table("lineitem").filter(mail).select(pl.col("l_quantity").sum())
        ),
        "lineitem joined with orders": join,
        "two texts, collected": lambda table: table("lineitem").select("l_shipmode", "l_shipinstruct"),
        "all columns, collected": lambda table: table("lineitem"),
    }


def ask_all(
    given: Callable[[], Mapping[str, Query]],
    files: str,
    folder: str,
    repeats: int,
    memory_limit: str,
    has_filters: bool = True,
) -> dict[str, Found]:
    """Raises: AssertionError for an answer that is not that over Parquet.

    given:       makes the questions, `queries` of some numbers or `questions`. It is called here, because what it makes
                 does not travel to another process.
    has_filters: whether polars lets a join look for its keys where it reads them. It does so over Parquet, whose files
                 tell it how many there are, and over no source that is written in Python; its setting is read when
                 polars is imported first, so another answer wants a process of its own.
    """
    if not has_filters:
        os.environ[FILTERS] = "0"
    import polars as pl

    store = os.path.join(folder, "nyala")

    def opened() -> nyala.Database:
        return nyala.connect(store, read_only=True, memory_limit=memory_limit)

    pulls = Pulls()

    def asked(question: Query, table: Tables) -> Answer:
        with pulls.watching():
            answer = clocked(lambda: [question(table).collect()], pulls)
        return answer._replace(rows=comparable(answer.rows[0]))

    def of(db: nyala.Database) -> Tables:
        return lambda name: db[name].scan().to_polars_lazy()

    def of_files(name: str) -> pl.LazyFrame:
        return pl.scan_parquet(os.path.join(files, f"{name}.parquet"))

    def cold(question: Query) -> Answer:
        with opened() as db:
            return asked(question, of(db))

    found: dict[str, Found] = {}
    with opened() as stays:
        for name, question in given().items():
            sources = {
                "cold": lambda question=question: cold(question),
                "warm": lambda question=question: asked(question, of(stays)),
                "parquet": lambda question=question: asked(question, of_files),
            }
            one = found[name] = in_turns(sources, repeats, f"polars, {name}")
            one.splits.pop("parquet", None)
            plain = {"warm": of(stays), "parquet": of_files}
            with opened() as db:
                for source, table in ({"cold": of(db)} | plain).items():
                    with pulls.watching():
                        pulls.begin()
                        one.costs[source] = cost(
                            lambda question=question, table=table: question(table).collect(), top=1000
                        )
                    if source == "cold":
                        one.explained_bytes = pulls.bytes_read()
    return found


def comparable(frame: pl.DataFrame) -> list[Any]:
    """Rows as Python values; of many rows their number, and one number of all that does not depend on their order.

    Columns by name: in Nyala the key's stand first.
    """
    frame = frame.select(sorted(frame.columns))
    if frame.height <= _FEW_ROWS:
        return frame.rows()
    return [(frame.height, frame.width, int(frame.hash_rows().sum()))]
