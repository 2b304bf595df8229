"""Scans of changed columns return a model's rows, also when patches are cached.

Every column has changes: in two files, in memory, or both.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.sampled import each
from tests.support import open_database

import nyala
from nyala.rowset import changes
from nyala.tablet.scan import read_path, split

ROWS = 6000
SPLIT = 1024
DAY = dt.date(2020, 1, 1)
SCHEMA = {
    "k": "int64",
    "day": nyala.column("date", encoding="for"),
    "amount": nyala.column("decimal(15,2)", encoding="for"),
    "small": nyala.column("decimal(7,2)", encoding="for"),
    "n": nyala.column("int32", encoding="for"),
    "wide": nyala.column("decimal(30,2)", encoding="for"),
    "x": "double",
    "mode": nyala.column("string", encoding="dictionary"),
    "text": nyala.column("string", encoding="plain"),
    "maybe": nyala.column("int32", encoding="for", nullable=True),
}


def row(k: int) -> dict[str, Any]:
    return {
        "k": k,
        "day": DAY + dt.timedelta(days=k * 7919 % 2000),
        "amount": Decimal(k * 31 % 5000) / 100,
        "small": Decimal(k % 300) / 100,
        "n": k * 977 % 3000 - 1500,
        "wide": Decimal(k) / 100,
        "x": k / 7,
        "mode": f"m{k % 7}",
        "text": f"text {k}",
        "maybe": k % 1000,
    }


def change(k: int, round: int) -> dict[str, Any]:
    """Return the row with new values in all columns: some are negative, NULL, or unique."""
    shift = 17 * (round + 1)
    return {
        "k": k,
        "day": DAY + dt.timedelta(days=(k * 13 + shift) % 2000 - 500),
        "amount": Decimal(k * 7 % 5000 - 2500 - shift) / 100,
        "small": Decimal(-(k % 300)) / 100,
        "n": -k - shift,
        "wide": Decimal(10) ** 27 + k + shift,
        "x": float(-k),
        "mode": ["m3", "new", f"m{k % 5}"][(k + round) % 3],
        "text": f"changed {k} {round}",
        "maybe": None if k % 4 == round else -k,
    }


@pytest.fixture(autouse=True)
def small_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make splits small, so that rowsets of some thousand rows have several.

    This includes splits of scans that cache results.
    """
    monkeypatch.setattr(read_path, "SPLIT_ROWS", SPLIT)
    monkeypatch.setattr(read_path, "_INLINE_ROWS", 0)
    monkeypatch.setattr(split, "_SCAN_ROWS_MIN", 2048)
    monkeypatch.setattr(changes, "_REDO_RANGE_ROWS_MIN", SPLIT)


Rows = dict[int, dict[str, Any]]


@pytest.fixture(params=each(2, ["both", "files", "many", "memory"]))
def changed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[nyala.Table, Rows]]:
    """Return a table and its rows: every fifth row was changed, then every seventh; "many": most."""
    with open_database(tmp_path / "s") as db:
        table = db.create_table("t", SCHEMA, "k")
        rows: Rows = {k: row(k) for k in range(ROWS)}
        table.insert(list(rows.values()))
        table.flush()
        for round, step in enumerate((2, 3) if request.param == "many" else (5, 7)):
            news = [change(k, round) for k in range(round, ROWS, step)]
            table.update(news)
            rows |= {r["k"]: r for r in news}
            if request.param in ("files", "many") or (request.param == "both" and not round):
                table.flush()
        yield table, rows


PREDICATES = {
    "day >= DATE '2020-03-01' AND day < DATE '2020-03-08'": lambda r: 60 <= (r["day"] - DAY).days < 67,
    "day < DATE '2019-01-01'": lambda r: r["day"] < dt.date(2019, 1, 1),
    "amount BETWEEN 1.05 AND 1.07": lambda r: Decimal("1.05") <= r["amount"] <= Decimal("1.07"),
    "amount < -24.9": lambda r: r["amount"] < Decimal("-24.9"),
    "small = -1.23 AND n < -3000": lambda r: r["small"] == Decimal("-1.23") and r["n"] < -3000,
    "n IN (3, 4, 77, -1500, -1501, 100000)": lambda r: r["n"] in (3, 4, 77, -1500, -1501),
    "n < -5900": lambda r: r["n"] < -5900,
    "mode = 'new' AND n < -5900": lambda r: r["mode"] == "new" and r["n"] < -5900,
    "mode > 'm5' AND n > 1300": lambda r: r["mode"] > "m5" and r["n"] > 1300,
    "maybe IS NULL AND n < -5000": lambda r: r["maybe"] is None and r["n"] < -5000,
    "maybe = 7": lambda r: r["maybe"] == 7,
    "n = -5911 AND text LIKE 'changed%'": lambda r: r["n"] == -5911 and r["text"].startswith("changed"),
    "wide > 1000000 AND n < -5900": lambda r: r["wide"] > 10**6 and r["n"] < -5900,
    "x < -5950": lambda r: r["x"] < -5950,
}  # fmt: skip


def test_scans_of_changed_columns_return_the_present_values(changed: tuple[nyala.Table, Rows]) -> None:
    """Scans and predicates agree with the model, with an empty and a full cache."""
    table, rows = changed
    expected = list(rows.values())
    matching = {where: [r for r in expected if matches(r)] for where, matches in PREDICATES.items()}
    for _ in range(3):  # the first scan caches nothing, the second patches, and the third finds them
        assert table.scan(order_by_key=True).to_arrow().to_pylist() == expected
        narrow = table.scan(["k", "amount", "small"])._engine().with_cheap_types().scan.to_arrow()
        assert narrow.schema.field("small").type == pa.decimal32(7, 2)
        wide = {r["k"]: (r["amount"], r["small"]) for r in narrow.to_pylist()}
        assert wide == {k: (r["amount"], r["small"]) for k, r in rows.items()}
        for where in PREDICATES:
            found = table.scan(where=where, order_by_key=True).to_arrow().to_pylist()
            assert found == matching[where], where
            assert table.count(where) == len(found), where
            few = (
                table.scan(["amount", "mode"], where=where)
                ._engine()
                .with_cheap_types()
                .scan.to_arrow()
                .to_pylist()
            )
            assert Counter(map(repr, few)) == Counter(
                repr({"amount": r["amount"], "mode": r["mode"]}) for r in found
            )


def test_a_snapshot_before_the_changes_reads_the_old_values(tmp_path: Path) -> None:
    """A patch that is cached for one snapshot is not used for another."""
    with open_database(tmp_path / "s") as db:
        table = db.create_table("t", {"k": "int64", "n": nyala.column("int32", encoding="for")}, "k")
        table.insert({"k": range(ROWS), "n": [0] * ROWS})
        table.flush()
        moments = [db.snapshot().timestamp]
        for value in (1, 2):
            table.update({"k": range(0, ROWS, 2), "n": [value] * (ROWS // 2)})
            table.flush()
            moments.append(db.snapshot().timestamp)
        for _ in range(3):
            for value, moment in enumerate(moments):
                expected = ROWS // 2 if value else ROWS
                assert table.scan(where=f"n = {value}", at=moment).to_arrow().num_rows == expected
                assert (
                    table.scan(["n"], at=moment).to_arrow().column("n").to_pylist().count(value) == expected
                )
