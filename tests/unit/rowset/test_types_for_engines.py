"""Scans return the same values and rows in the types that an engine reads at less cost."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.support import open_database

from nyala.api.database import Database
from nyala.api.scan import Scan
from nyala.tablet.scan.read_path import narrower_types

COUNT = 200_000


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """Return a store with rows in files, with changes in memory and in REDO files, and new rows."""
    with open_database(tmp_path_factory.mktemp("types") / "s") as db:
        columns = {
            "k": "int64",
            "small": "decimal(9,2)",
            "money": "decimal(15,2)",
            "large": "decimal(30,4)",
            "word": "string",
        }
        table = db.create_table("t", columns, "k")
        numbers = np.arange(COUNT)
        unscaled = pa.array((numbers * 7919 % 1_000_003 - 500_000).astype(np.int64))
        money = pc.divide(unscaled.cast(pa.decimal128(19, 0)), pa.scalar(Decimal(100)))
        table.insert(
            {
                "k": numbers,
                "small": money.cast(pa.decimal128(9, 2)),
                "money": pc.if_else(pa.array(numbers % 11 == 0), None, money.cast(pa.decimal128(15, 2))),
                "large": money.cast(pa.decimal128(30, 4)),
                "word": pa.array(["N", "A", "R", None]).take(pa.array(numbers % 4)),
            }
        )
        db.flush()
        table.update({"k": [3, 150_000], "money": [Decimal("-9999999999999.99"), None], "word": ["new", "N"]})
        table.insert(
            {"k": [COUNT], "small": [Decimal("0.01")], "money": [None], "large": [None], "word": ["last"]}
        )
        yield db


def narrowed(scan: Scan, db: Database) -> Scan:
    table = db._writer().root.table("t")
    types = narrower_types(table, scan._spec.columns)
    return scan._derived(types=types)


def test_the_types_of_a_scan_for_engines(db: Database) -> None:
    """Decimals are narrow if Arrow has the type. Text is a dictionary if every rowset has one."""
    schema = narrowed(db["t"].scan(), db).schema
    assert [str(field.type) for field in schema] == [
        "int64", "decimal32(9, 2)", "decimal64(15, 2)", "decimal128(30, 4)",
        "dictionary<values=string, indices=int32, ordered=0>",
    ]  # fmt: skip


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize(
    "where",
    [None, "k < 100", "money > 100.5 AND money <= 4000.25", "money IN (0.01, 12.34, -9999999999999.99)",
     "money IS NULL",
     "word = 'N'", "word = 'new' OR word IS NULL", "small >= 0 AND word <> 'A'", "small = money", "k = 200000"],
)  # fmt: skip
def test_the_values_are_the_same(db: Database, where: str | None, flushed: bool) -> None:
    if flushed:
        db.flush()
    plain = db["t"].scan(where=where, order_by_key=True)
    assert narrowed(plain, db).to_arrow().cast(plain.schema).equals(plain.to_arrow())
    some = db["t"].scan(["money", "k"], where, order_by_key=True)
    assert narrowed(some, db).to_arrow().cast(some.schema).equals(some.to_arrow())


def test_a_pyarrow_expression_gets_the_schemas_types(db: Database) -> None:
    """Arrow evaluates the expression, and cannot compare dictionaries with text."""
    expression = (pc.field("word") == "N") & (pc.field("money") > pa.scalar(Decimal("10.00")))
    scan = db["t"].scan(where=expression, order_by_key=True)
    expected = db["t"].scan(where="word = 'N' AND money > 10", order_by_key=True).to_arrow()
    assert scan.to_arrow().equals(expected)
    assert narrowed(scan, db).to_arrow().cast(scan.schema).equals(expected)
