"""Predicates that are lists of whole keys: each key is looked up, with the same result as a scan of the table."""

from __future__ import annotations

import datetime as dt
import decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import nyala
from nyala.api.scan import read_token
from nyala.tablet.scan import read_path
from tests.sampled import in_turns

DAY = dt.date(1970, 1, 1)
KEYS: dict[str, Any] = {
    "int8": lambda n: n % 250 - 125,
    "int64": lambda n: n * 1_000_003 - 5,
    "date": lambda n: DAY + dt.timedelta(days=n - 300),
    "timestamp": lambda n: dt.datetime(1969, 12, 31, tzinfo=dt.UTC) + dt.timedelta(minutes=n, microseconds=n),
    "decimal(9,2)": lambda n: decimal.Decimal(n - 300) / 4,
    "decimal(30,2)": lambda n: decimal.Decimal(n - 300) * 10**20 / 4,
    "string": lambda n: f"{n}" * (n % 4),
    "varchar(5)": lambda n: f"é{n}",
    "binary": lambda n: bytes([n % 256, 0, n // 256]),
}


def in_order(rows: pa.Table) -> list[dict[str, Any]]:
    return sorted(rows.to_pylist(), key=repr)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look up lists of keys in small tables, too."""
    monkeypatch.setattr(read_path, "_ROWS_PER_LISTED", 0)


@pytest.mark.parametrize(("kind", "first"), in_turns(KEYS, (None, "string")))
@pytest.mark.usefixtures("always")
def test_a_list_of_keys_returns_the_rows_of_a_scan(db: nyala.Database, kind: str, first: str | None) -> None:
    """In memory and on disk, after deletes, updates and inserts, now and at earlier moments, in
    every form.
    """
    make, random = KEYS[kind], Random(kind)
    names = ["k"] if first is None else ["f", "k"]
    columns: dict[str, Any] = {"k": kind} if first is None else {"f": first, "k": kind}
    table = db.create_table(
        "t",
        {
            **columns,
            "v": "int64",
            "s": nyala.column("string", nullable=True),
            "d": nyala.column("decimal(12,3)", nullable=True),
        },
        names,
        partition_by=[nyala.hash_partition(names[-1], buckets=3)],
    )

    def rows(numbers: Any, version: int) -> list[dict[str, Any]]:
        given: dict[Any, dict[str, Any]] = {}
        for n in numbers:
            row: dict[str, Any] = {"k": make(n), "v": n + version, "s": None if n % 5 == 0 else f"w{n % 7}"}
            row["d"] = None if n % 3 == 0 else decimal.Decimal(n) / 8
            if first is not None:
                row["f"] = "ab"[: n % 2 + 1]
            given[tuple(row[name] for name in names)] = row
        return list(given.values())

    moments = []
    for version in range(4):
        table.upsert(rows(random.sample(range(600), 150), version))
        gone = [{name: row[name] for name in names} for row in rows(random.sample(range(600), 40), 0)]
        table.delete(gone, on_missing="ignore") if version else None
        if version < 3:
            db.flush()
        moments.append(db.snapshot())
    for snapshot in moments[1::2]:
        everything = in_order(snapshot["t"].scan().to_arrow())
        for count in (1, 200):
            keys = {make(n) for n in random.sample(range(-10, 610) if kind == "int64" else range(610), count)}
            where: Any = nyala.col("k").isin(list(keys))
            wanted = [row for row in everything if row["k"] in keys]
            if first is not None:
                firsts = ["a", "ab"]
                where = where & nyala.col("f").isin(firsts[: 1 + count % 2])
                wanted = [row for row in wanted if row["f"] in firsts[: 1 + count % 2]]
            scan = snapshot["t"].scan(where=where)
            assert in_order(scan.to_arrow()) == wanted
            assert in_order(scan.with_dictionaries("s").to_arrow()) == wanted
            assert in_order(scan._engine().with_cheap_types().scan.to_arrow()) == wanted
            assert in_order(snapshot["t"].scan(where=where, order_by_key=True).to_arrow()) == wanted
            assert scan.count() == len(wanted)
            assert scan.head(3).num_rows == min(3, len(wanted))
            batches = [batch for token in scan.tokens() for batch in read_token(token)]
            assert in_order(pa.Table.from_batches(batches, scan.schema)) == wanted


@pytest.mark.usefixtures("always")
def test_a_token_returns_the_listed_rows_of_its_part(db: nyala.Database) -> None:
    table = db.create_table("t", {"k": "int64", "v": "int64"}, "k")
    table.insert({"k": range(600_000), "v": range(600_000)})
    db.flush()
    listed = [5, 262_143, 262_144, 599_999, 600_000]
    scan = table.scan(where=nyala.col("k").isin(listed))
    tokens = [token.data for token in scan._engine().tokens(4)]
    found = [row["k"] for token in tokens for batch in read_token(token) for row in batch.to_pylist()]
    assert len(tokens) > 1 and sorted(found) == listed[:4]


def test_a_list_of_keys_reads_only_these_rows(db: nyala.Database) -> None:
    table = db.create_table("t", {"k": "int64", "v": "int64"}, "k")
    table.insert({"k": range(300_000), "v": range(300_000)})
    db.flush()
    listed = [5, 150_000, 299_999, 300_001]
    for where in (nyala.col("k").isin(listed), "k IN (5, 150000, 299999, 300001)"):
        scan = table.scan(where=where)
        assert sorted(scan.to_arrow()["v"].to_pylist()) == listed[:3]
        assert scan.explanation_of_last_run().to_dict()["rows_skipped"] >= 299_996
    scan = table.scan(where=nyala.col("k").isin(listed) & (nyala.col("v") > 5))
    assert sorted(scan.to_arrow()["v"].to_pylist()) == listed[1:3]


@pytest.mark.usefixtures("always")
def test_rows_of_many_listed_keys_are_returned_in_several_batches(tmp_path: Path) -> None:
    with nyala.connect(tmp_path / "s", maintenance=False, memory_limit="64MB") as db:
        table = db.create_table("t", {"k": "int64", "s": "string"}, "k")
        for begin in range(0, 3000, 500):
            table.insert({"k": range(begin, begin + 500), "s": ["x" * 30_000] * 500})
        db.flush()
        sizes = [b.nbytes for b in table.scan(where=nyala.col("k").isin(range(3000))).to_reader()]
        assert sum(sizes) >= 90_000_000 and max(sizes) <= 32_000_000
