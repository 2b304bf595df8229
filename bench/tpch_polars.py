"""Polars over Nyala (`Scan.to_polars_lazy`) and over the Parquet files of the same rows (`pl.scan_parquet`).

One frame of questions for both: sums of a column, TPC-H's Q1 and Q6, a group by two columns of text, a filter by text,
a join of two tables, and all columns of lineitem collected. In turns, as in `bench.tpch`: Nyala by a reader that was
just opened, Nyala by one that stays open, and the files. Collecting is timed, with making the lazy frames; every answer
is compared with that over Parquet.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import nyala
from bench.costs import cost
from bench.pulls import Pulls
from bench.questions import Answer, Found, clocked, in_turns

if TYPE_CHECKING:
    import polars as pl

Tables: TypeAlias = Callable[[str], "pl.LazyFrame"]

# An answer with more rows is compared by a hash of each row: their order is nobody's promise.
_FEW_ROWS: Final = 10_000


def questions() -> Mapping[str, Callable[[Tables], pl.LazyFrame]]:
    """What is asked of a function from a table's name to its lazy frame."""
    import polars as pl

    price, discount = pl.col("l_extendedprice"), pl.col("l_discount")

    def q1(table: Tables) -> pl.LazyFrame:
        shipped = table("lineitem").filter(pl.col("l_shipdate") <= dt.date(1998, 9, 2))
        sums = {
            "sum_qty": pl.col("l_quantity").sum(),
            "sum_base_price": price.sum(),
            "sum_disc_price": (price * (1 - discount)).sum(),
            "sum_charge": (price * (1 - discount) * (1 + pl.col("l_tax"))).sum(),
            "avg_qty": pl.col("l_quantity").mean(),
            "avg_price": price.mean(),
            "avg_disc": discount.mean(),
            "count_order": pl.len(),
        }
        return shipped.group_by("l_returnflag", "l_linestatus").agg(**sums)

    def q6(table: Tables) -> pl.LazyFrame:
        shipped, year = pl.col("l_shipdate"), (dt.date(1994, 1, 1), dt.date(1995, 1, 1))
        kept = table("lineitem").filter(
            shipped.is_between(*year, closed="left"),
            discount.is_between(0.05, 0.07),
            pl.col("l_quantity") < 24,
        )
        return kept.select((price * discount).sum())

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
        "sum of l_extendedprice": lambda table: table("lineitem").select(price.sum()),
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


def ask_all(files: str, folder: str, repeats: int, memory_limit: str) -> dict[str, Found]:
    """Raises: AssertionError for an answer that is not that over Parquet."""
    import polars as pl

    store = os.path.join(folder, "nyala")

    def opened() -> nyala.Database:
        return nyala.connect(store, read_only=True, memory_limit=memory_limit)

    pulls = Pulls()

    def asked(question: Callable[[Tables], pl.LazyFrame], table: Tables) -> Answer:
        with pulls.watching():
            answer = clocked(lambda: [question(table).collect()], pulls)
        return answer._replace(rows=comparable(answer.rows[0]))

    def of(db: nyala.Database) -> Tables:
        return lambda name: db[name].scan().to_polars_lazy()

    def of_files(name: str) -> pl.LazyFrame:
        return pl.scan_parquet(os.path.join(files, f"{name}.parquet"))

    def cold(question: Callable[[Tables], pl.LazyFrame]) -> Answer:
        with opened() as db:
            return asked(question, of(db))

    found: dict[str, Found] = {}
    with opened() as stays:
        for name, question in questions().items():
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
