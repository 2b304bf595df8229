"""Keys as bare values, tuples and dicts; rows as tuples, named tuples and dataclasses."""

from __future__ import annotations

import dataclasses
import datetime as dt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import nyala
from tests.support import key_value_table, open_database


@dataclasses.dataclass
class Reading:
    host: str
    time: int
    value: float | None = None


class Key(NamedTuple):
    time: int
    host: str


@pytest.fixture
def db(tmp_path: Path) -> Any:
    with open_database(tmp_path / "store") as db:
        pairs = db.create_table(
            "pairs", {"host": "string", "time": "int64", "value": "double"}, ["host", "time"]
        )
        pairs.insert([("a", 1, 1.0), ("a", 2, 2.0), ("b", 1, None)])
        key_value_table(db).insert([(1, 10), (2, 20), (3, 30)])
        yield db


@pytest.mark.parametrize(
    "key", [("a", 2), {"host": "a", "time": 2}, {"time": 2, "host": "a"}, ("a", np.int64(2)), Key(2, "a")]
)
def test_a_composite_key(db: Any, key: Any) -> None:
    """A key may have any of these forms in reads and deletes."""
    pairs = db["pairs"]
    assert pairs.get(key) == pairs[key] == {"host": "a", "time": 2, "value": 2.0}
    assert pairs.history(key).num_rows == 1
    assert pairs.delete(key).deleted == 1 and pairs.get(key) is None


@pytest.mark.parametrize("key", [2, {"k": 2}, (2,), np.int32(2)])
def test_a_key_of_one_column(db: Any, key: Any) -> None:
    """A key may have any of these forms in reads and deletes."""
    t = db["t"]
    assert t.get(key) == t[key] == {"k": 2, "v": 20}
    with db.snapshot() as s:
        assert s["t"][key]["v"] == 20
    assert t.delete(key).deleted == 1


def test_lists_of_keys(db: Any) -> None:
    """A list of keys may have bare values, tuples or named tuples."""
    assert db["t"].get_many([3, 1, 9])["v"].to_pylist() == [30, 10]
    assert db["pairs"].get_many([("b", 1), ("a", 1)])["value"].to_pylist() == [None, 1.0]
    assert db["pairs"].get_many([Key(1, "b")])["host"].to_pylist() == ["b"]
    assert db["t"].delete([1, 2]).deleted == 2
    assert db["pairs"].delete([("a", 1), ("x", 1)], on_missing="ignore").deleted == 1
    with db.batch() as b:
        b.delete("t", 3)
        b.delete("pairs", ("b", 1))
    assert db["t"].count() == 0 and db["pairs"].count() == 1


def test_a_missing_key_is_an_error_of_getitem_only(db: Any) -> None:
    """`table[key]` behaves as a dict does."""
    with pytest.raises(KeyError, match=r"has no row with the key \('z', 1\)") as error:
        db["pairs"]["z", 1]
    assert isinstance(error.value, nyala.KeyNotFoundError)


@pytest.mark.parametrize(
    "key", ["a", ("a",), ("a", 1, 2), 5, None, [("a", 1)], ("a", [1]), dt.date(2026, 1, 1)]
)
def test_a_key_of_another_shape(db: Any, key: Any) -> None:
    """The error says which forms a key may have."""
    with pytest.raises(
        nyala.InvalidArgumentError, match=r"get expects a key as a tuple \(host, time\) or a dict"
    ):
        db["pairs"].get(key)


def test_text_that_looks_like_a_condition_is_refused_as_a_key(db: Any) -> None:
    with pytest.raises(nyala.InvalidArgumentError, match="delete.where="):
        db["pairs"].delete("host = 'a'")
    assert db["pairs"].count() == 3


def test_rows_without_names(db: Any) -> None:
    """Tuples give all columns in their order. Dataclasses give columns by name."""
    pairs = db["pairs"]
    assert pairs.upsert([("c", 1, 5.0), ("a", 1, 9.0)]).inserted == 1
    assert pairs.upsert([Reading("d", 1), Reading("d", 2, 7.0)]).inserted == 2
    assert pairs["d", 1]["value"] is None and pairs["a", 1]["value"] == 9.0
    assert pairs.update([Reading("d", 1, 3.0)]).updated == 1 and pairs["d", 1]["value"] == 3.0


@pytest.mark.parametrize(
    "rows, says",
    [
        ([("a", 1)], r"row 0 is a tuple of 2 values, but the columns are \(host, time, value\)"),
        ([("a", 1, 1.0), ("b", 2)], "row 1 is a tuple of 2 values"),
        ([("a", 1, 1.0), {"host": "b"}], "item 0 of the list is a tuple, but item 1 is"),
        (
            [Reading("a", 1), Key(1, "a")],
            "item 0 of the list has the type Reading, but item 1 has the type Key",
        ),
        ([5], "one dict, tuple or dataclass per row"),
    ],
)
def test_rows_of_another_shape(db: Any, rows: list[Any], says: str) -> None:
    """The error says what is wrong, and no row is written."""
    before = db["pairs"].to_arrow()
    with pytest.raises(nyala.InvalidArgumentError, match=says):
        db["pairs"].upsert(rows)
    assert db["pairs"].to_arrow().equals(before)
