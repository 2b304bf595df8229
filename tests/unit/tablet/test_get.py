"""`get`, `get_many` and scans return the same row for a key, in memory and in files."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support import open_database

import nyala
from nyala.api.database import Database
from nyala.partition.levels import hash_partition

COLUMNS = {
    "name": "string",
    "k": "int32",
    "day": "date",
    "price": "decimal(9,2)",
    "at": "timestamp",
    "word": "string",
    "note": "string",
    "flag": "bool",
    "big": "decimal(38,3)",
}


def name(number: int) -> str:
    return ("é", "a\0", "b")[number % 3]


def row(number: int, *, late: bool = False) -> dict[str, Any]:
    return {
        "name": name(number),
        "k": number,
        "day": dt.date(1995, 1, 1) + dt.timedelta(days=number),
        "price": None if number % 5 == 0 else Decimal(number).scaleb(-2),
        "at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=number),
        "word": "late" if late else f"word {number % 4}",
        "note": f"note {number}" * (number % 3),
        "flag": number % 2 == 0,
        "big": Decimal(-number).scaleb(-3) * 10**30,
    }


@pytest.fixture(params=["one tablet", "hashed"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    with open_database(tmp_path / "s") as database:
        by = [hash_partition("k", buckets=3)] if request.param == "hashed" else []
        table = database.create_table("t", COLUMNS, ["name", "k"], by)
        table.insert([row(number) for number in range(0, 200, 2)])
        database.flush()
        table.insert([row(number) for number in range(1, 200, 2)])
        database.flush()
        yield database


def check(table: Any, numbers: range) -> None:
    for number in numbers:
        key = {"name": name(number), "k": number}
        many = table.get_many([key]).to_pylist()
        wanted = (nyala.col("name") == key["name"]) & (nyala.col("k") == number)
        scanned = table.scan(where=wanted).to_arrow().to_pylist()
        assert [table.get(key)] == (many or [None]) == (scanned or [None])
        assert table.get(key, columns=["word", "k"]) == (
            {"word": many[0]["word"], "k": number} if many else None
        )


def test_all_ways_to_read_a_row_return_the_same(db: Database) -> None:
    """Rows are in memory or flushed, updated, deleted, inserted again, or older than a column."""
    table = db["t"]
    check(table, range(-1, 201, 7))
    before = table.upsert([row(number, late=True) for number in range(60)] + [row(300)])
    table.delete([{"name": name(n), "k": n} for n in range(40, 80)])
    table.insert([row(50)])
    for _ in range(2):
        check(table, range(0, 90, 4))
        check(table, range(300, 301))
        check(table.at(before), range(0, 90, 10))
        db.flush()
    with table.alter() as alteration:
        alteration.add_column("more", "int64", default=7)
    check(db["t"], range(0, 90, 8))


def test_a_time_that_no_datetime_holds_is_an_int(tmp_path: Path) -> None:
    """Python's years are 1 to 9999, but a table can store others. `get` returns these as integers."""
    least, most, after = (
        -(2**63),
        2**63 - 2,
        253_402_300_800_000_000,
    )  # the beginning of the year 10000
    with open_database(tmp_path / "s") as db:
        table = db.create_table("t", {"k": "timestamp", "at": "timestamp", "also": "timestamp"}, ["k"])
        keys = [least, 0, after, most]
        data = pa.array(keys, pa.int64()).view(pa.timestamp("us", "UTC"))
        epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
        table.insert({"k": data, "at": data, "also": data[::-1]})
        for step in ("memory", "flushed", "changed", "compacted"):
            for key, also in zip(keys, keys[::-1], strict=True):
                changed = also if step in ("memory", "flushed") else 0
                expected = {"k": key, "at": key, "also": changed}
                expected = {name: epoch if value == 0 else value for name, value in expected.items()}
                assert table.get({"k": pa.scalar(key, pa.timestamp("us", "UTC"))}) == expected, step
            if step == "memory":
                db.flush()
            elif step == "flushed":
                table.update({"k": data, "also": [epoch] * 4})
            else:
                table.compact()


def test_a_small_range_of_keys_returns_the_rows_that_a_full_scan_returns(db: Database) -> None:
    """Rows inside the range are not filtered again."""
    table = db["t"]
    columns = table.scan().schema.names
    table.delete([{"name": name(n), "k": n} for n in range(10, 40, 3)])
    table.upsert([row(n, late=True) for n in range(15, 25)] + [row(500)])

    def check_ranges() -> None:
        everything = table.scan().to_arrow().to_pylist()
        for first, least, greatest in (
            ("a\0", 0, 90),
            ("b", 11, 11),
            ("é", 30, 600),
            ("a", 0, 9),
            ("b", 9, 1),
        ):
            where = (nyala.col("name") == first) & (nyala.col("k") >= least) & (nyala.col("k") <= greatest)
            found = table.scan(where=where).to_arrow()
            assert found.column_names == columns
            expected = [r for r in everything if r["name"] == first and least <= r["k"] <= greatest]
            assert sorted(found.to_pylist(), key=lambda r: r["k"]) == sorted(expected, key=lambda r: r["k"])
            assert table.scan(["k"], where=where, limit=2).to_arrow().num_rows == min(2, len(expected))
            assert table.scan(where=where).count() == len(expected)

    check_ranges()
    db.flush()
    check_ranges()
