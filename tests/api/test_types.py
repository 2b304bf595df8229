"""All thirteen types with their extreme values, in key and value columns."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import nyala
from tests.support import open_database, rows

UTC = dt.UTC
# For each type: values that fit, in key order, and one that does not fit.
VALUES: dict[str, list[Any]] = {
    "bool": [False, True],
    "int8": [-128, -1, 0, 127],
    "int16": [-(2**15), 0, 2**15 - 1],
    "int32": [-(2**31), 0, 2**31 - 1],
    "int64": [-(2**63), -1, 0, 2**63 - 1],
    "date": [dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(9999, 12, 31)],
    "timestamp": [
        dt.datetime(1, 1, 1, tzinfo=UTC),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    ],
    "float": [-math.inf, -1.5, 0.0, 3.4028234663852886e38, math.inf],
    "double": [-math.inf, -5e-324, 0.0, 1.7976931348623157e308, math.inf],
    "decimal(9,2)": [Decimal("-9999999.99"), Decimal("0.00"), Decimal("9999999.99")],
    "decimal(18,0)": [Decimal(-(10**18) + 1), Decimal(0), Decimal(10**18 - 1)],
    "decimal(38,38)": [Decimal("-0." + "9" * 38), Decimal("0." + "0" * 38), Decimal("0." + "9" * 38)],
    "varchar(3)": ["", "a", "aé€", "zzz"],
    "string": ["", "\0", "a", "a\0", "a\0b", "aa", "é" * 100, "\U0001f600"],
    "binary": [b"", b"\0", b"\0\0", b"a", b"a\0", b"\xff" * 3],
}
KEYS = [name for name in VALUES if name not in ("bool", "float", "double")]


@pytest.mark.parametrize("name", VALUES)
def test_values_are_read_back_unchanged(tmp_path: Path, name: str) -> None:
    """From memory, from files, after opening again, at an earlier moment, and with NULL."""
    db = open_database(tmp_path / "s")
    table = db.create_table("t", {"k": "int32", "v": name}, "k")
    values = [*VALUES[name], None]
    written = table.insert({"k": list(range(len(values))), "v": values})
    expected = list(enumerate(values))
    for _ in range(2):
        assert rows(table) == expected
        db.flush()
    reversed_ = table.update({"k": list(range(len(values))), "v": values[::-1]})
    assert rows(table) == list(enumerate(values[::-1]))
    db.flush()
    db.close()
    db = open_database(tmp_path / "s")
    assert rows(db["t"], at=written) == expected
    assert rows(db["t"], at=reversed_) == list(enumerate(values[::-1]))
    assert [db["t"].get({"k": k})["v"] for k, _ in expected] == values[::-1]  # type: ignore[index]
    db.close()


@pytest.mark.parametrize("name", KEYS)
def test_keys_are_ordered_and_found(tmp_path: Path, name: str) -> None:
    """Every type as key, alone and first in a composite key."""
    db = open_database(tmp_path / "s")
    values = VALUES[name]
    single = db.create_table("single", {"k": name, "v": "int32"}, "k", [nyala.hash_partition("k", buckets=3)])
    double = db.create_table("double", {"k": name, "n": "int8", "v": "int32"}, ["k", "n"])
    single.insert({"k": values[::-1], "v": list(range(len(values)))})
    double.insert({"k": values * 2, "n": [1] * len(values) + [-1] * len(values), "v": [0] * 2 * len(values)})
    for _ in range(2):
        assert [row[0] for row in rows(single)] == values
        assert [row[:2] for row in rows(double)] == [(value, n) for value in values for n in (-1, 1)]
        assert single.get_many({"k": values}).column("k").to_pylist() == values
        assert double.get({"k": values[0], "n": 1}) is not None
        with pytest.raises(nyala.DuplicateKeyError):
            single.insert({"k": values[:1]})
        db.flush()
    db.close()


def test_a_key_is_never_truncated(tmp_path: Path) -> None:
    """Insert and upsert refuse a key that is longer than its varchar. Other calls find no such row."""
    db = open_database(tmp_path / "s")
    table = db.create_table("t", {"n": "int32", "k": "varchar(2)", "v": "int32"}, ["n", "k"])
    table.insert({"n": [1], "k": ["éé"], "v": [1]})
    long = {"n": 1, "k": "ééé"}
    assert table.get(long) is None and table.get_many([long]).num_rows == table.history(long).num_rows == 0
    for write in (table.insert, table.upsert):
        with pytest.raises(nyala.InvalidValueError, match=r"'k' is varchar\(2\), and 'ééé' has 3 characters"):
            write([{**long, "v": 2}])
    for write in (lambda: table.update([{**long, "v": 2}]), lambda: table.delete([long])):
        with pytest.raises(nyala.KeyNotFoundError, match="no row of table 't' has this key"):
            write()
    both = [{**long, "v": 2}, {"n": 1, "k": "éé", "v": 3}]
    done = table.update(both, on_missing="ignore")
    assert (done.updated, done.ignored, rows(table)) == (1, 1, [(1, "éé", 3)])
    failed = table.upsert(both, errors="collect")
    assert (failed.updated, failed.errors["row"].to_pylist(), failed.errors["k"].to_pylist()) == (
        1,
        [0],
        ["ééé"],
    )
    assert table.delete([long], on_missing="ignore").ignored == 1 and table.count() == 1
    db.close()


@pytest.mark.parametrize("bound", ["splits", "bounds", "drop"])
def test_a_range_bound_is_never_truncated(tmp_path: Path, bound: str) -> None:
    """A shorter bound would be another one."""
    with (
        open_database(tmp_path / "s") as db,
        pytest.raises(nyala.InvalidArgumentError, match=r"'abc' has 3 characters, more than varchar\(2\)"),
    ):
        if bound != "drop":
            given: Any = {"splits": ["abc"]} if bound == "splits" else {"bounds": [("a", "abc")]}
            db.create_table("t", {"k": "varchar(2)"}, "k", nyala.range_partition("k", **given))
        table = db.create_table("t", {"k": "varchar(2)"}, "k", nyala.range_partition("k", splits=["ab"]))
        with table.alter() as a:
            a.drop_range("abc", None)
