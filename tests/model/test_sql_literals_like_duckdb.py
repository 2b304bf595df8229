"""INSERT of many rows of literals stores each literal as DuckDB does, independently of the other rows.

DuckDB inserts each literal by a separate statement. The store inserts all literals that DuckDB accepts by one
statement, in a random order and with random spaces. It must refuse a statement that has also one of the others.
"""

from __future__ import annotations

import datetime as dt
import math
import random
import re
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pytest

import nyala
from nyala.errors import Error
from tests.sampled import each
from tests.support import folder_in_memory

DEFAULTS = {
    "TINYINT": "5",
    "INTEGER": "-6",
    "BIGINT": "NULL",
    "FLOAT": "0.1",
    "DOUBLE": "0.1",
    "DECIMAL(9,3)": "1.5",
    "DECIMAL(30,5)": "2",
    "BOOLEAN": "true",
    "VARCHAR": "'it''s'",
    "BLOB": "NULL",
    "DATE": "DATE '2000-01-01'",
    "TIMESTAMP WITH TIME ZONE": "NULL",
}
LITERALS = """
0 -0 7 007 -128 127 300 2147483648 123456789012345678
0.5 1.5 2.5 -2.5 -3.5 1.50 007.50 0.10 0.1 0.3 -0.0 123456789.125 12345678901234567.12 0.123456789012345678
0.30000000000004 123.456789012345678 99999.9995 1e3 1.5e-3 2.5e0 -3.5E0 1E+2 -1e300 1e400 1.7e38
'' 'a' 'it''s' '7' '2.5' '-3.5' 'true' '2026-01-01' 'nan' '-0.0' 'inf' '\\x41' 'ä' '2026-01-01_12:00:00.1234567+02'
NULL null TRUE false DEFAULT DATE'2024-02-29' date_'1969-12-31' TIMESTAMP_'2026-01-01'
timestamptz'2026-01-01_12:00:00+02'
""".split()
OTHERS = """
0.30000000000000000004 12345678901234567890.5 123456789012345678901 -9223372036854775808 9223372036854775807 1. .5 1_000
E'b' 1+1 -(5) lower('X') current_date 'a'||'b'
""".split()
# _ is a space, before a text and before a time of day.
LITERALS = [re.sub(r"_(?='|12:)", " ", literal) for literal in LITERALS]
PARAMETERS: list[Any] = [
    None, 0, 7, -300, 2**40, 2**70, 1.5, -2.5, 0.1, math.nan, -0.0, 1e300, "", "it's", "7", "2026-01-01", "ä", b"\x00A",
    True, Decimal("1.50"), Decimal("-0.005"), Decimal("123456789.125"), Decimal("1E+3"), dt.date(2024, 2, 29),
    dt.datetime(2026, 1, 1, 12, 0, 0, 5), dt.datetime(2026, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=2))),
]  # fmt: skip
TIMES = ("DATE", "TIMESTAMP WITH TIME ZONE")
ROWS_MIN = 16  # from this number of rows on, literals are read together


class Row(NamedTuple):
    """A key and a value: an expression, or `?` with a parameter."""

    key: int
    value: str
    parameters: list[Any]


@pytest.mark.parametrize("seed", each(12, range(48)))
def test_literals_are_stored_as_duckdb_stores_them(seed: int) -> None:
    chance = random.Random(seed)
    with folder_in_memory() as folder:
        run_types(folder, chance)


def run_types(folder: Path, chance: random.Random) -> None:
    twin = duckdb.connect(":memory:")
    twin.execute("SET TimeZone = 'UTC'")
    with nyala.connect(folder / "store", maintenance=False) as db:
        for number, (type, default) in enumerate(DEFAULTS.items()):
            name = f"t{number}"
            for side in (db.sql, twin.execute):
                side(f"CREATE TABLE {name} (id INT PRIMARY KEY, c {type} DEFAULT {default})")
            good: list[Row] = []
            bad: list[Row] = []
            for row in random_rows(chance, infinite=type not in TIMES):
                try:
                    twin.execute(f"INSERT INTO {name} VALUES ({row.key}, {row.value})", row.parameters)
                    good.append(row)
                except duckdb.Error:
                    bad.append(row)
            if bad:
                with pytest.raises(Error):
                    insert(chance, db, name, [*good, chance.choice(bad)])
                assert db[name].count() == 0
            if good:
                insert(chance, db, name, good)
            assert rows_of(db.sql, name) == rows_of(twin.execute, name), (type, good)


def random_rows(chance: random.Random, *, infinite: bool) -> list[Row]:
    literals = [literal for literal in LITERALS if infinite or literal != "'inf'"]
    kinds = [lambda: (chance.choice(literals), [])]
    if chance.random() < 0.5:
        kinds.append(lambda: ("?", [chance.choice(PARAMETERS)]))
    if chance.random() < 0.3:
        kinds.append(lambda: (chance.choice(OTHERS), []))
    count = chance.randint(ROWS_MIN, 80)
    return [Row(key, *chance.choice(kinds)()) for key in range(count)]


def insert(chance: random.Random, db: nyala.Database, name: str, rows: list[Row]) -> None:
    """Insert the rows by one statement, in a random order and with random spaces."""
    rows = chance.sample(rows, len(rows))
    space = chance.choice(["", " ", "\n  "])
    parameters = [value for row in rows for value in row.parameters]
    if chance.random() < 0.3:
        listed = f",{space}".join(f"({row.value}{space}, {row.key})" for row in rows)
        db.sql(f"INSERT INTO {name} (c, id) VALUES {listed}", parameters)
    else:
        listed = f",{space}".join(f"({space}{row.key},{space}{row.value}{space})" for row in rows)
        word = chance.choice(["INSERT", "INSERT OR REPLACE"])
        db.sql(f"{word} INTO {name} VALUES{space}{listed}", parameters)


def rows_of(execute: Any, name: str) -> list[tuple[int, str]]:
    """Return the rows by key. The values are text, so that the sign of zero and the digits of decimals count."""
    found = execute(f"SELECT * FROM {name} ORDER BY id").fetchall()
    return [
        (key, "nan" if isinstance(value, float) and math.isnan(value) else repr(value))
        for key, value in found
    ]
