"""Predicates on dictionary text are evaluated once per entry, and select rows by their codes."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support import open_database

import nyala
from nyala.tablet.scan import read_path, split

ROWS = 12_000
SPLIT = 4096
MODES = ["AIR", "FOB", "MAIL", "RAIL", "REG AIR", "SHIP", "TRÜCK"]
TYPES = {
    "k": nyala.column("int64", block_size=4096),
    "n": nyala.column("int32", encoding="for", block_size=4096),
    "mode": nyala.column("string", encoding="dictionary", block_size=4096),
    "kind": nyala.column("binary", encoding="dictionary", block_size=4096),
    "maybe": nyala.column("string", encoding="dictionary", nullable=True, block_size=4096),
    "text": nyala.column("string", encoding="plain"),
}


def row(k: int) -> dict[str, Any]:
    return {
        "k": k,
        "n": k**3 % 2999 - 1500,
        "mode": MODES[k**3 % 2999 % 7],
        "kind": b"k%d" % (k % 11),
        "maybe": None if k % 5 == 0 else f"w{k % 13}",
        "text": f"text {k % 100}",
    }


@functools.cache
def all_rows() -> list[dict[str, Any]]:
    return [row(k) for k in range(ROWS)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("words") / "s"
    with open_database(folder) as db:
        table = db.create_table("t", TYPES, "k")
        table.insert(all_rows())
        table.flush()
    return folder


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make splits small, also those that count as parts of a scan."""
    monkeypatch.setattr(read_path, "SPLIT_ROWS", SPLIT)
    monkeypatch.setattr(split, "_SCAN_ROWS_MIN", 2048)


def scanned(table: nyala.Table, where: str) -> list[dict[str, Any]]:
    return table.scan(where=where, order_by_key=True).to_arrow().to_pylist()


ON_CODES = {
    "mode <> 'MAIL'": lambda r: r["mode"] != "MAIL",
    "mode NOT IN ('MAIL', 'AIR', 'x')": lambda r: r["mode"] not in ("MAIL", "AIR", "x"),
    "mode LIKE '%AIR'": lambda r: r["mode"].endswith("AIR"),
    "mode NOT LIKE '%AIR' AND n < -1000": lambda r: not r["mode"].endswith("AIR") and r["n"] < -1000,
    "mode LIKE '_R_CK'": lambda r: r["mode"] == "TRÜCK",
    "mode LIKE 'x%'": lambda r: r["mode"] == "x",
    "mode LIKE '%A%' AND mode <> 'RAIL' AND mode >= 'B'": lambda r: (
        "A" in r["mode"] and r["mode"] != "RAIL" and r["mode"] >= "B"
    ),
    "mode <> 'x' AND n = 7": lambda r: r["mode"] != "x" and r["n"] == 7,
    "(mode LIKE 'R%' OR mode = 'FOB') AND kind <> X'6B33'": lambda r: (
        r["mode"] in ("RAIL", "REG AIR", "FOB") and r["kind"] != b"k3"
    ),
    "kind NOT IN (X'6B30', X'6B31') AND mode = 'AIR'": lambda r: (
        r["kind"] not in (b"k0", b"k1") and r["mode"] == "AIR"
    ),
    "maybe <> 'w3'": lambda r: r["maybe"] not in (None, "w3"),
    "maybe NOT LIKE 'w1%' AND mode NOT LIKE 'F%'": lambda r: (
        r["maybe"] is not None and not r["maybe"].startswith("w1") and r["mode"] != "FOB"
    ),
}
ON_DECODED_TEXT = {
    "(maybe <> 'w3' OR maybe IS NULL) AND n < 0": lambda r: r["maybe"] != "w3" and r["n"] < 0,
    "maybe IS NULL AND mode <> 'AIR'": lambda r: r["maybe"] is None and r["mode"] != "AIR",
    "text LIKE '%7' AND mode NOT LIKE '%A%'": lambda r: r["text"][-1] == "7" and "A" not in r["mode"],
    "mode <> text AND mode LIKE 'S%'": lambda r: r["mode"] == "SHIP",
    "(mode <> 'AIR' OR n < 0) AND mode NOT LIKE 'M%'": lambda r: (
        (r["mode"] != "AIR" or r["n"] < 0) and r["mode"] != "MAIL"
    ),
    "n <> 7 AND mode <> 'AIR'": lambda r: r["n"] != 7 and r["mode"] != "AIR",
}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("where", [*ON_CODES, *ON_DECODED_TEXT])
def test_predicates_select_the_expected_rows(where: str, path: Path) -> None:
    """Repeated scans read blocks from the file first, and then from the cache."""
    holds = (ON_CODES | ON_DECODED_TEXT)[where]
    expected = [r for r in all_rows() if holds(r)]
    with nyala.connect(path, read_only=True, memory_limit="100MB") as db:
        for _ in range(4):
            assert scanned(db["t"], where) == expected
            assert db["t"].count(where) == len(expected)


def test_predicates_are_evaluated_on_long_dictionaries(tmp_path: Path) -> None:
    """Most of 70,000 dictionary entries match the predicates."""
    count = 300_000
    numbers = np.random.default_rng(49).permutation(count) % 70_000
    numbers[::2] %= 100
    text = nyala.column("string", encoding="dictionary")
    words = pa.array([f"a word {n:05}" for n in range(70_000)])
    with open_database(tmp_path / "s") as db:
        table = db.create_table("t", {"k": "int64", "w": text, "n": TYPES["n"]}, "k")
        rows = {"k": np.arange(count), "w": words.take(pa.array(numbers)), "n": np.arange(count) % 3}
        table.insert(pa.table(rows))
        table.flush()
    lasts = numbers % 10
    for where, holds in {
        "w <> 'a word 00007'": numbers != 7,
        "w NOT LIKE '%7' AND n = 1": (lasts != 7) & (np.arange(count) % 3 == 1),
        "w LIKE '%7' OR w LIKE '%1'": (lasts == 7) | (lasts == 1),
        "w NOT IN ('a word 69999', 'a word 00000')": (numbers != 0) & (numbers != 69_999),
    }.items():
        with nyala.connect(tmp_path / "s", read_only=True) as db:
            for _ in range(4):
                found = db["t"].scan(["k"], where=where).to_arrow()["k"].to_numpy()
                assert np.array_equal(np.sort(found), np.flatnonzero(holds)), where


def test_predicates_are_evaluated_on_changed_values(tmp_path: Path) -> None:
    """Changes in memory and in files replace base values, and rows in memory are tested too."""
    with open_database(tmp_path / "s") as db:
        table = db.create_table("t", TYPES, "k")
        table.insert(all_rows())
        table.flush()
        expected = {k: row(k) for k in range(ROWS)}
        before = db.snapshot()
        changed = {k: {"k": k, "mode": ["MAIL", "NEW AIR", "x"][k % 3]} for k in range(100, 9000, 7)}
        table.update(list(changed.values()))
        table.delete([{"k": 3}])
        table.insert([{**row(3), "k": ROWS, "mode": "BY AIR"}])
        now = {k: {**one, **changed.get(k, {})} for k, one in expected.items() if k != 3}
        now[ROWS] = {**row(3), "k": ROWS, "mode": "BY AIR"}
        for _ in range(2):
            for where, holds in ON_CODES.items():
                assert scanned(table, where) == [one for one in now.values() if holds(one)], where
                old = before["t"].scan(where=where, order_by_key=True).to_arrow().to_pylist()
                assert old == [one for one in expected.values() if holds(one)], where
            table.flush()
        before.close()
