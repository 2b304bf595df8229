"""The 22 queries of TPC-H with the parameters of the specification's validation runs, as lazy
expressions of polars.

Each query is a function of `Tables`, which returns the lazy frame of a table. The columns and the
order of its result are those of the SQL in `bench.tpch_queries`. Filters are next to their tables,
and joins begin with small sides. A correlated subquery is a join with an aggregate, EXISTS is a
semi join, and NOT EXISTS an anti join. The rest is left to the optimiser of polars.

Decimals stay exact. In polars, a product has as many decimal places as the factor with more of
them, and is rounded. So one factor is first cast to the places of both. Quotients are doubles.

Importing this module needs polars.
Source: TPC Benchmark H, revision 3.0.1, clause 2.4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date
from functools import reduce
from operator import or_
from typing import Final, TypeAlias

import polars as pl
from polars import col

Tables: TypeAlias = Callable[[str], pl.LazyFrame]
Query: TypeAlias = Callable[[Tables], pl.LazyFrame]

_DIGITS_4, _DIGITS_6 = pl.Decimal(38, 4), pl.Decimal(38, 6)
_PRICE: Final = col("l_extendedprice").cast(_DIGITS_4)
_REVENUE: Final = _PRICE * (1 - col("l_discount"))


def _within(column: str, first: date, end: date) -> pl.Expr:
    """Return the expression: the day is in [first, end)."""
    return col(column).is_between(first, end, closed="left")


def q1(table: Tables) -> pl.LazyFrame:
    shipped = table("lineitem").filter(col("l_shipdate") <= date(1998, 9, 2))
    sums = shipped.group_by("l_returnflag", "l_linestatus").agg(
        sum_qty=col("l_quantity").sum(),
        sum_base_price=col("l_extendedprice").sum(),
        sum_disc_price=_REVENUE.sum(),
        sum_charge=(_REVENUE.cast(_DIGITS_6) * (1 + col("l_tax"))).sum(),
        avg_qty=col("l_quantity").mean(),
        avg_price=col("l_extendedprice").mean(),
        avg_disc=col("l_discount").mean(),
        count_order=pl.len(),
    )
    return sums.sort("l_returnflag", "l_linestatus")


def q2(table: Tables) -> pl.LazyFrame:
    suppliers = (
        table("region")
        .filter(col("r_name") == "EUROPE")
        .join(table("nation"), left_on="r_regionkey", right_on="n_regionkey")
        .join(table("supplier"), left_on="n_nationkey", right_on="s_nationkey")
    )
    parts = table("part").filter(col("p_size") == 15, col("p_type").str.ends_with("BRASS"))
    offers = parts.join(table("partsupp"), left_on="p_partkey", right_on="ps_partkey").join(
        suppliers, left_on="ps_suppkey", right_on="s_suppkey"
    )
    least = offers.group_by("p_partkey").agg(col("ps_supplycost").min())
    return (
        offers.join(least, on=["p_partkey", "ps_supplycost"])
        .select("s_acctbal", "s_name", "n_name", "p_partkey", "p_mfgr", "s_address", "s_phone", "s_comment")
        .sort("s_acctbal", "n_name", "s_name", "p_partkey", descending=[True, False, False, False])
        .head(100)
    )


def q3(table: Tables) -> pl.LazyFrame:
    day = date(1995, 3, 15)
    customers = table("customer").filter(col("c_mktsegment") == "BUILDING")
    orders = table("orders").filter(col("o_orderdate") < day)
    return (
        customers.join(orders, left_on="c_custkey", right_on="o_custkey")
        .join(table("lineitem").filter(col("l_shipdate") > day), left_on="o_orderkey", right_on="l_orderkey")
        .group_by("o_orderkey", "o_orderdate", "o_shippriority")
        .agg(revenue=_REVENUE.sum())
        .select(col("o_orderkey").alias("l_orderkey"), "revenue", "o_orderdate", "o_shippriority")
        .sort("revenue", "o_orderdate", descending=[True, False])
        .head(10)
    )


def q4(table: Tables) -> pl.LazyFrame:
    late = table("lineitem").filter(col("l_commitdate") < col("l_receiptdate"))
    return (
        table("orders")
        .filter(_within("o_orderdate", date(1993, 7, 1), date(1993, 10, 1)))
        .join(late, left_on="o_orderkey", right_on="l_orderkey", how="semi")
        .group_by("o_orderpriority")
        .agg(order_count=pl.len())
        .sort("o_orderpriority")
    )


def q5(table: Tables) -> pl.LazyFrame:
    orders = table("orders").filter(_within("o_orderdate", date(1994, 1, 1), date(1995, 1, 1)))
    return (
        table("region")
        .filter(col("r_name") == "ASIA")
        .join(table("nation"), left_on="r_regionkey", right_on="n_regionkey")
        .join(table("customer"), left_on="n_nationkey", right_on="c_nationkey")
        .join(orders, left_on="c_custkey", right_on="o_custkey")
        .join(table("lineitem"), left_on="o_orderkey", right_on="l_orderkey")
        .join(
            table("supplier"),
            left_on=["l_suppkey", "n_nationkey"],
            right_on=["s_suppkey", "s_nationkey"],
        )
        .group_by("n_name")
        .agg(revenue=_REVENUE.sum())
        .sort("revenue", descending=True)
    )


def q6(table: Tables) -> pl.LazyFrame:
    return (
        table("lineitem")
        .filter(
            _within("l_shipdate", date(1994, 1, 1), date(1995, 1, 1)),
            col("l_discount").is_between(0.05, 0.07),
            col("l_quantity") < 24,
        )
        .select(revenue=(_PRICE * col("l_discount")).sum())
    )


def q7(table: Tables) -> pl.LazyFrame:
    nations = table("nation").filter(col("n_name").is_in(["FRANCE", "GERMANY"]))
    suppliers = nations.join(table("supplier"), left_on="n_nationkey", right_on="s_nationkey")
    customers = nations.join(table("customer"), left_on="n_nationkey", right_on="c_nationkey")
    lines = table("lineitem").filter(col("l_shipdate").is_between(date(1995, 1, 1), date(1996, 12, 31)))
    return (
        suppliers.select("s_suppkey", supp_nation="n_name")
        .join(lines, left_on="s_suppkey", right_on="l_suppkey")
        .join(table("orders"), left_on="l_orderkey", right_on="o_orderkey")
        .join(customers.select("c_custkey", cust_nation="n_name"), left_on="o_custkey", right_on="c_custkey")
        .filter(col("supp_nation") != col("cust_nation"))
        .group_by("supp_nation", "cust_nation", l_year=col("l_shipdate").dt.year())
        .agg(revenue=_REVENUE.sum())
        .sort("supp_nation", "cust_nation", "l_year")
    )


def q8(table: Tables) -> pl.LazyFrame:
    customers = (
        table("region")
        .filter(col("r_name") == "AMERICA")
        .join(table("nation"), left_on="r_regionkey", right_on="n_regionkey")
        .join(table("customer"), left_on="n_nationkey", right_on="c_nationkey")
    )
    orders = table("orders").filter(col("o_orderdate").is_between(date(1995, 1, 1), date(1996, 12, 31)))
    by_brazil = pl.when(col("n_name") == "BRAZIL").then(_REVENUE).otherwise(0)
    return (
        table("part")
        .filter(col("p_type") == "ECONOMY ANODIZED STEEL")
        .join(table("lineitem"), left_on="p_partkey", right_on="l_partkey")
        .join(orders, left_on="l_orderkey", right_on="o_orderkey")
        .join(customers, left_on="o_custkey", right_on="c_custkey", how="semi")
        .join(table("supplier"), left_on="l_suppkey", right_on="s_suppkey")
        .join(table("nation"), left_on="s_nationkey", right_on="n_nationkey")
        .group_by(o_year=col("o_orderdate").dt.year())
        .agg(mkt_share=by_brazil.sum().cast(pl.Float64) / _REVENUE.sum().cast(pl.Float64))
        .sort("o_year")
    )


def q9(table: Tables) -> pl.LazyFrame:
    cost = col("ps_supplycost").cast(_DIGITS_4) * col("l_quantity")
    return (
        table("part")
        .filter(col("p_name").str.contains("green", literal=True))
        .join(table("partsupp"), left_on="p_partkey", right_on="ps_partkey")
        .join(table("lineitem"), left_on=["p_partkey", "ps_suppkey"], right_on=["l_partkey", "l_suppkey"])
        .join(table("orders"), left_on="l_orderkey", right_on="o_orderkey")
        .join(table("supplier"), left_on="ps_suppkey", right_on="s_suppkey")
        .join(table("nation"), left_on="s_nationkey", right_on="n_nationkey")
        .group_by(nation="n_name", o_year=col("o_orderdate").dt.year())
        .agg(sum_profit=(_REVENUE - cost).sum())
        .sort("nation", "o_year", descending=[False, True])
    )


def q10(table: Tables) -> pl.LazyFrame:
    orders = table("orders").filter(_within("o_orderdate", date(1993, 10, 1), date(1994, 1, 1)))
    returned = table("lineitem").filter(col("l_returnflag") == "R")
    customer = ["c_custkey", "c_name", "c_acctbal", "c_phone", "n_name", "c_address", "c_comment"]
    return (
        orders.join(returned, left_on="o_orderkey", right_on="l_orderkey")
        .join(table("customer"), left_on="o_custkey", right_on="c_custkey", coalesce=False)
        .join(table("nation"), left_on="c_nationkey", right_on="n_nationkey")
        .group_by(customer)
        .agg(revenue=_REVENUE.sum())
        .select("c_custkey", "c_name", "revenue", "c_acctbal", "n_name", "c_address", "c_phone", "c_comment")
        .sort("revenue", descending=True)
        .head(20)
    )


def q11(table: Tables) -> pl.LazyFrame:
    value = col("value")
    return (
        table("nation")
        .filter(col("n_name") == "GERMANY")
        .join(table("supplier"), left_on="n_nationkey", right_on="s_nationkey")
        .join(table("partsupp"), left_on="s_suppkey", right_on="ps_suppkey")
        .group_by("ps_partkey")
        .agg(value=(col("ps_supplycost") * col("ps_availqty")).sum())
        .filter(value > value.sum() * 0.0001)
        .sort("value", descending=True)
    )


def q12(table: Tables) -> pl.LazyFrame:
    lines = table("lineitem").filter(
        col("l_shipmode").is_in(["MAIL", "SHIP"]),
        col("l_commitdate") < col("l_receiptdate"),
        col("l_shipdate") < col("l_commitdate"),
        _within("l_receiptdate", date(1994, 1, 1), date(1995, 1, 1)),
    )
    high = col("o_orderpriority").is_in(["1-URGENT", "2-HIGH"])
    return (
        lines.join(table("orders"), left_on="l_orderkey", right_on="o_orderkey")
        .group_by("l_shipmode")
        .agg(high_line_count=high.sum(), low_line_count=(~high).sum())
        .sort("l_shipmode")
    )


def q13(table: Tables) -> pl.LazyFrame:
    orders = table("orders").filter(~col("o_comment").str.contains("special.*requests"))
    return (
        table("customer")
        .join(orders, left_on="c_custkey", right_on="o_custkey", how="left")
        .group_by("c_custkey")
        .agg(c_count=col("o_orderkey").count())
        .group_by("c_count")
        .agg(custdist=pl.len())
        .sort("custdist", "c_count", descending=True)
    )


def q14(table: Tables) -> pl.LazyFrame:
    promoted = pl.when(col("p_type").str.starts_with("PROMO")).then(_REVENUE).otherwise(0)
    return (
        table("lineitem")
        .filter(_within("l_shipdate", date(1995, 9, 1), date(1995, 10, 1)))
        .join(table("part"), left_on="l_partkey", right_on="p_partkey")
        .select(promo_revenue=100.0 * promoted.sum().cast(pl.Float64) / _REVENUE.sum().cast(pl.Float64))
    )


def q15(table: Tables) -> pl.LazyFrame:
    total = col("total_revenue")
    best = (
        table("lineitem")
        .filter(_within("l_shipdate", date(1996, 1, 1), date(1996, 4, 1)))
        .group_by("l_suppkey")
        .agg(total_revenue=_REVENUE.sum())
        .filter(total == total.max())
    )
    return (
        table("supplier")
        .join(best, left_on="s_suppkey", right_on="l_suppkey")
        .select("s_suppkey", "s_name", "s_address", "s_phone", "total_revenue")
        .sort("s_suppkey")
    )


def q16(table: Tables) -> pl.LazyFrame:
    parts = table("part").filter(
        col("p_brand") != "Brand#45",
        ~col("p_type").str.starts_with("MEDIUM POLISHED"),
        col("p_size").is_in([49, 14, 23, 45, 19, 3, 36, 9]),
    )
    blamed = table("supplier").filter(col("s_comment").str.contains("Customer.*Complaints"))
    return (
        parts.join(table("partsupp"), left_on="p_partkey", right_on="ps_partkey")
        .join(blamed, left_on="ps_suppkey", right_on="s_suppkey", how="anti")
        .group_by("p_brand", "p_type", "p_size")
        .agg(supplier_cnt=col("ps_suppkey").n_unique())
        .sort("supplier_cnt", "p_brand", "p_type", "p_size", descending=[True, False, False, False])
    )


def q17(table: Tables) -> pl.LazyFrame:
    parts = table("part").filter(col("p_brand") == "Brand#23", col("p_container") == "MED BOX")
    lines = parts.join(table("lineitem"), left_on="p_partkey", right_on="l_partkey")
    few = lines.group_by("p_partkey").agg(few=0.2 * col("l_quantity").mean())
    return (
        lines.join(few, on="p_partkey")
        .filter(col("l_quantity") < col("few"))
        .select(avg_yearly=col("l_extendedprice").sum() / 7.0)
    )


def q18(table: Tables) -> pl.LazyFrame:
    large = (
        table("lineitem")
        .group_by("l_orderkey")
        .agg(sum_qty=col("l_quantity").sum())
        .filter(col("sum_qty") > 300)
    )
    return (
        large.join(table("orders"), left_on="l_orderkey", right_on="o_orderkey", coalesce=False)
        .join(table("customer"), left_on="o_custkey", right_on="c_custkey", coalesce=False)
        .select("c_name", "c_custkey", "o_orderkey", "o_orderdate", "o_totalprice", "sum_qty")
        .sort("o_totalprice", "o_orderdate", descending=[True, False])
        .head(100)
    )


def q19(table: Tables) -> pl.LazyFrame:
    def kind(brand: str, size: str, packings: str, size_max: int, quantity_min: int) -> pl.Expr:
        containers = [f"{size} {packing}" for packing in packings.split()]
        return (
            (col("p_brand") == brand)
            & col("p_container").is_in(containers)
            & col("p_size").is_between(1, size_max)
            & col("l_quantity").is_between(quantity_min, quantity_min + 10)
        )

    lines = table("lineitem").filter(
        col("l_shipmode").is_in(["AIR", "AIR REG"]), col("l_shipinstruct") == "DELIVER IN PERSON"
    )
    kinds = [
        kind("Brand#12", "SM", "CASE BOX PACK PKG", 5, 1),
        kind("Brand#23", "MED", "BAG BOX PKG PACK", 10, 10),
        kind("Brand#34", "LG", "CASE BOX PACK PKG", 15, 20),
    ]
    return (
        lines.join(table("part"), left_on="l_partkey", right_on="p_partkey")
        .filter(reduce(or_, kinds))
        .select(revenue=_REVENUE.sum())
    )


def q20(table: Tables) -> pl.LazyFrame:
    parts = table("part").filter(col("p_name").str.starts_with("forest"))
    shipped = (
        table("lineitem")
        .filter(_within("l_shipdate", date(1994, 1, 1), date(1995, 1, 1)))
        .join(parts, left_on="l_partkey", right_on="p_partkey", how="semi")
        .group_by("l_partkey", "l_suppkey")
        .agg(half=0.5 * col("l_quantity").sum())
    )
    ample = (
        table("partsupp")
        .join(shipped, left_on=["ps_partkey", "ps_suppkey"], right_on=["l_partkey", "l_suppkey"])
        .filter(col("ps_availqty") > col("half"))
    )
    return (
        table("nation")
        .filter(col("n_name") == "CANADA")
        .join(table("supplier"), left_on="n_nationkey", right_on="s_nationkey")
        .join(ample, left_on="s_suppkey", right_on="ps_suppkey", how="semi")
        .select("s_name", "s_address")
        .sort("s_name")
    )


def q21(table: Tables) -> pl.LazyFrame:
    lines, is_late = table("lineitem"), col("l_receiptdate") > col("l_commitdate")
    orders = table("orders").filter(col("o_orderstatus") == "F")
    waiting = (
        table("nation")
        .filter(col("n_name") == "SAUDI ARABIA")
        .join(table("supplier"), left_on="n_nationkey", right_on="s_nationkey")
        .join(lines.filter(is_late), left_on="s_suppkey", right_on="l_suppkey")
        .join(orders, left_on="l_orderkey", right_on="o_orderkey", how="semi")
    )
    supplier = col("l_suppkey")
    late_by_one_of_several = (
        lines.join(waiting, on="l_orderkey", how="semi")
        .group_by("l_orderkey")
        .agg(suppliers=supplier.n_unique(), late=supplier.filter(is_late).n_unique())
        .filter(col("suppliers") > 1, col("late") == 1)
    )
    return (
        waiting.join(late_by_one_of_several, on="l_orderkey", how="semi")
        .group_by("s_name")
        .agg(numwait=pl.len())
        .sort("numwait", "s_name", descending=[True, False])
        .head(100)
    )


def q22(table: Tables) -> pl.LazyFrame:
    balance = col("c_acctbal")
    return (
        table("customer")
        .select("c_custkey", "c_acctbal", cntrycode=col("c_phone").str.slice(0, 2))
        .filter(col("cntrycode").is_in(["13", "31", "23", "29", "30", "18", "17"]))
        .filter(balance > balance.filter(balance > 0).mean())
        .join(table("orders"), left_on="c_custkey", right_on="o_custkey", how="anti")
        .group_by("cntrycode")
        .agg(numcust=pl.len(), totacctbal=balance.sum())
        .sort("cntrycode")
    )


QUERIES: Final[Mapping[str, Query]] = {
    f"Q{number}": query
    for number, query in enumerate(
        (q1, q2, q3, q4, q5, q6, q7, q8, q9, q10, q11, q12, q13, q14, q15, q16, q17, q18, q19, q20, q21, q22),
        start=1,
    )
}
