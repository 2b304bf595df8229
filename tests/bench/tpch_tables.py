"""Makes TPC-H's eight tables without its generator. Values have few words and days, so that each
query finds some of some thousand rows, and leaves some out.
"""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bench.data import MONEY

Numbers = npt.NDArray[np.int64]

SUPPLIERS, PARTS, CUSTOMERS, ORDERS = 200, 400, 300, 3_000


def tables() -> dict[str, pa.Table]:
    """Return all eight tables, the same ones each time. A third of the customers have no orders,
    and some orders are large.
    """
    rng = np.random.default_rng(1998)
    firsts = np.arange("1992-01", "1999-01", dtype="datetime64[M]").astype("datetime64[D]")

    def between(least: int, most: int, rows: int) -> Numbers:
        return rng.integers(least, most + 1, rows)

    def words(rows: int, *choice: str) -> pa.Array:
        return pa.array(choice).take(pa.array(between(0, len(choice) - 1, rows)))

    def errors_name(what: str, keys: Numbers) -> pa.Array:
        return pa.array([f"{what}#{key:09d}" for key in keys])

    def phones(rows: int) -> pa.Array:
        return pa.array([f"{code}-555-0100" for code in between(10, 34, rows)])

    def money(cents: Numbers) -> pa.Array:
        return pc.multiply(pa.array(cents).cast(pa.decimal128(19, 0)), Decimal("0.01")).cast(MONEY)

    def small(values: Numbers) -> pa.Array:
        return pa.array(values.astype(np.int32))

    def days(months: Numbers) -> pa.Array:
        """Return days at the begin and the end of months since 1992, because the queries have such
        bounds.
        """
        return pa.array(firsts[months] + rng.choice([-1, 0, 1, 14], len(months)))

    def comments(rows: int) -> pa.Array:
        return words(
            rows, "special packages, requests", "requests of special packages", "specialrequests", "none"
        )

    regions = ["AFRICA", "AMERICA", "ASIA", "EUROPE", "MIDDLE EAST"]
    nations = ["ALGERIA", "KENYA", "BRAZIL", "CANADA", "CHINA", "INDIA", "FRANCE", "GERMANY"]
    nations += ["IRAN", "SAUDI ARABIA"]  # two of each region
    sizes = {"SM": "CASE BOX PACK PKG", "MED": "BAG BOX PKG PACK", "LG": "CASE BOX PACK PKG"}
    containers = [f"{size} {packing}" for size, packings in sizes.items() for packing in packings.split()]
    suppliers, parts, customers, orders = (
        np.arange(1, rows + 1) for rows in (SUPPLIERS, PARTS, CUSTOMERS, ORDERS)
    )
    offered = np.repeat(parts, 4)
    offering = (offered * 7 + np.tile(np.arange(4), PARTS) * 11) % SUPPLIERS + 1
    lines_of = between(1, 7, ORDERS)
    lines_of[::16] = 7
    order = np.repeat(np.arange(ORDERS), lines_of)  # the order of each line
    lines = len(order)
    ordered = between(0, 78, ORDERS)
    shipped = ordered[order] + between(0, 4, lines)
    offer = between(0, len(offered) - 1, lines)
    quantity = np.where(order % 16 == 0, between(41, 46, lines), between(1, 50, lines))

    made: dict[str, dict[str, pa.Array]] = {
        "region": {
            "r_regionkey": pa.array(range(len(regions))),
            "r_name": pa.array(regions),
            "r_comment": comments(len(regions)),
        },
        "nation": {
            "n_nationkey": pa.array(range(len(nations))),
            "n_name": pa.array(nations),
            "n_regionkey": pa.array(np.arange(len(nations)) // 2),
            "n_comment": comments(len(nations)),
        },
        "supplier": {
            "s_suppkey": pa.array(suppliers),
            "s_name": errors_name("Supplier", suppliers),
            "s_address": errors_name("Street", suppliers),
            "s_nationkey": pa.array(suppliers % len(nations)),
            "s_phone": phones(SUPPLIERS),
            "s_acctbal": money(between(0, 2, SUPPLIERS) * 100_000),
            "s_comment": words(SUPPLIERS, "Customer with Complaints", "Complaints, Customer", "none"),
        },
        "part": {
            "p_partkey": pa.array(parts),
            "p_name": words(PARTS, "forest almond", "dark green lace", "dark forest", "lime", "tan", "blue"),
            "p_mfgr": words(PARTS, "Manufacturer#1", "Manufacturer#2"),
            "p_brand": words(PARTS, "Brand#12", "Brand#23", "Brand#34", "Brand#45"),
            "p_type": words(
                PARTS,
                *("ECONOMY ANODIZED STEEL", "PROMO PLATED BRASS", "MEDIUM POLISHED BRASS", "LARGE PROMO TIN"),
            ),
            "p_size": small(rng.choice([3, 5, 6, 9, 10, 11, 15, 16, 45], PARTS)),
            "p_container": words(PARTS, *containers, "JUMBO JAR"),
            "p_retailprice": money(between(90_000, 200_000, PARTS)),
            "p_comment": comments(PARTS),
        },
        "partsupp": {
            "ps_partkey": pa.array(offered),
            "ps_suppkey": pa.array(offering),
            "ps_availqty": small(between(1, 40, len(offered))),
            "ps_supplycost": money(between(100, 100_000, len(offered))),
            "ps_comment": comments(len(offered)),
        },
        "customer": {
            "c_custkey": pa.array(customers),
            "c_name": errors_name("Customer", customers),
            "c_address": errors_name("Street", customers),
            "c_nationkey": pa.array(between(0, len(nations) - 1, CUSTOMERS)),
            "c_phone": phones(CUSTOMERS),
            "c_acctbal": money(between(-99_999, 999_999, CUSTOMERS)),
            "c_mktsegment": words(CUSTOMERS, "BUILDING", "MACHINERY"),
            "c_comment": comments(CUSTOMERS),
        },
        "orders": {
            "o_orderkey": pa.array(orders * 4),
            "o_custkey": pa.array(rng.choice(customers[customers % 3 > 0], ORDERS)),
            "o_orderstatus": words(ORDERS, "F", "O", "P"),
            "o_totalprice": money(between(100_000, 50_000_000, ORDERS)),
            "o_orderdate": days(ordered),
            "o_orderpriority": words(ORDERS, "1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW"),
            "o_clerk": errors_name("Clerk", orders % 10),
            "o_shippriority": small(orders * 0),
            "o_comment": comments(ORDERS),
        },
        "lineitem": {
            "l_orderkey": pa.array(orders[order] * 4),
            "l_partkey": pa.array(offered[offer]),
            "l_suppkey": pa.array(offering[offer]),
            "l_linenumber": small(np.arange(lines) - np.repeat(np.cumsum(lines_of) - lines_of, lines_of) + 1),
            "l_quantity": money(quantity * 100),
            "l_extendedprice": money(between(90_000, 10_000_000, lines)),
            "l_discount": money(between(0, 10, lines)),
            "l_tax": money(between(0, 8, lines)),
            "l_returnflag": words(lines, "A", "N", "R"),
            "l_linestatus": words(lines, "F", "O"),
            "l_shipdate": days(shipped),
            "l_commitdate": days(ordered[order] + between(1, 3, lines)),
            "l_receiptdate": days(shipped + between(0, 1, lines)),
            "l_shipinstruct": words(lines, "DELIVER IN PERSON", "NONE"),
            "l_shipmode": words(lines, "AIR", "AIR REG", "MAIL", "SHIP", "TRUCK"),
            "l_comment": comments(lines),
        },
    }
    return {
        name: pa.table(
            columns, schema=pa.schema([pa.field(key, of.type, nullable=False) for key, of in columns.items()])
        )
        for name, columns in made.items()
    }
