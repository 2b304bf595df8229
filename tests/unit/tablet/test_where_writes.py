"""Writes and look-ups that find their rows themselves, under one lock with what they change."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import key_value_table, open_database, rows

import nyala
from nyala.database import Database
from nyala.errors import (
    ColumnNotFoundError,
    InvalidArgumentError,
    InvalidValueError,
    SchemaError,
    StorageError,
    TableNotFoundError,
)
from nyala.tablet import where_writes


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with open_database(tmp_path / "s") as db:
        yield db


SHARED_MEMORY = "/dev/shm"  # what a disk does at a sync is not what is tested here


@pytest.fixture(scope="module")
def shared() -> Iterator[Database]:
    where = SHARED_MEMORY if os.path.isdir(SHARED_MEMORY) else None
    with tempfile.TemporaryDirectory(prefix="nyala-unit-", dir=where) as folder:
        with open_database(Path(folder) / "s") as db:
            yield db


PREDICATES: list[tuple[str | None, Callable[[int, int | None], bool]]] = [
    ("v > 2", lambda k, v: v is not None and v > 2),
    ("v IS NULL", lambda k, v: v is None),
    ("k IN (1, 3) OR v = 0", lambda k, v: k in (1, 3) or v == 0),
    ("k BETWEEN 2 AND 4 AND v <> 1", lambda k, v: 2 <= k <= 4 and v is not None and v != 1),
    ("FALSE", lambda k, v: False),
    ("TRUE", lambda k, v: True),
]
OR_NONE = [*PREDICATES, (None, lambda k, v: True)]
EXPRESSIONS: list[tuple[Any, Callable[[int, int | None], int | None]]] = [
    (7, lambda k, v: 7),
    (None, lambda k, v: None),
    (nyala.expr("v + k"), lambda k, v: None if v is None else v + k),
    (nyala.expr("coalesce(v, -1) * 2"), lambda k, v: (-1 if v is None else v) * 2),
]
TABLES = iter(range(10_000))


@given(
    st.dictionaries(st.integers(0, 6), st.one_of(st.none(), st.integers(0, 4)), max_size=7),
    st.lists(
        st.one_of(
            st.tuples(st.just("delete"), st.sampled_from(PREDICATES), st.none()),
            st.tuples(st.just("update"), st.sampled_from(OR_NONE), st.sampled_from(EXPRESSIONS)),
            st.tuples(st.just("flush"), st.none(), st.none()),
            st.tuples(st.just("insert"), st.integers(0, 6), st.none()),
        ),
        max_size=5,
    ),
)  # fmt: skip
def test_rows_are_found_and_changed_as_the_predicate_says(
    shared: Database, start: dict[int, int | None], steps: list[Any]
) -> None:
    """Deletes and updates by predicate, over memory and files, against a dictionary; counts and past included."""
    table = key_value_table(shared, f"t{next(TABLES)}")
    model: dict[int, int | None] = {}
    history = []
    steps = [("insert", k, v) for k, v in start.items()] + steps
    for kind, first, second in steps:
        if kind == "flush":
            table.flush()
            continue
        if kind == "insert":
            table.upsert({"k": [first], "v": [second]})
            model[first] = second
            continue
        text, holds = first
        chosen = [k for k, v in model.items() if holds(k, v)]
        if kind == "delete":
            result = table.delete(where=text)
            assert result.deleted == len(chosen)
            for k in chosen:
                del model[k]
        else:
            value, compute = second
            result = table.update(set={"v": value}, where=text)
            assert result.updated == len(chosen)
            model |= {k: compute(k, model[k]) for k in chosen}
        assert (result.inserted, result.ignored, len(result.errors)) == (0, 0, 0)
        history.append((shared.now(), sorted(model.items())))
    for at, expected in history:
        assert rows(table, at=at) == expected
    shared.drop_table(table.name)


def test_expressions_see_the_row_as_it_was(db: Database) -> None:
    """All of `set` is computed from the old row, as in SQL: a swap swaps."""
    table = db.create_table("t", {"k": "int64", "a": "int64", "b": "int64", "s": "string"}, "k")
    table.insert([{"k": 1, "a": 1, "b": 2, "s": "x"}, {"k": 2, "a": 3, "b": 4, "s": "y"}])
    table.update(set={"a": nyala.col("b"), "b": nyala.expr("a"), "s": nyala.expr("s || '!'")}, where="k = 1")
    assert rows(table) == [(1, 2, 1, "x!"), (2, 3, 4, "y")]


def test_a_value_that_does_not_fit(db: Database) -> None:
    """Raised, nothing changes; collected, the other rows change and the failing ones are named by their key."""
    table = db.create_table("t", {"k": "int64", "v": "int8"}, "k")
    table.insert({"k": [1, 2, 3], "v": [1, 100, 3]})
    with pytest.raises(InvalidValueError, match="1 of 3 rows failed") as error:
        table.update(set={"v": nyala.expr("v * 2")}, where="TRUE")
    assert error.value.errors is not None and error.value.errors.column("k").to_pylist() == [2]
    assert rows(table) == [(1, 1), (2, 100), (3, 3)]
    result = table.update(set={"v": nyala.expr("v * 2")}, where="TRUE", errors="collect")
    assert (result.updated, result.errors.column("code").to_pylist()) == (2, ["out-of-range"])
    assert rows(table) == [(1, 2), (2, 100), (3, 6)]


@pytest.mark.parametrize(
    ("act", "kind", "says"),
    [
        (lambda t: t.update(set={}, where="TRUE"), InvalidArgumentError, "no column"),
        (lambda t: t.update(set={"k": 1}, where="TRUE"), InvalidArgumentError, "part of the key"),
        (lambda t: t.update(set={"w": 1}, where="TRUE"), ColumnNotFoundError, "'w'"),
        (lambda t: t.update(set={"v": 1}, where="ww = 1"), ColumnNotFoundError, "'ww'"),
        (lambda t: t.update(set={"v": nyala.expr("v +")}, where="TRUE"), InvalidArgumentError, "v +"),
        (lambda t: t.delete(where="k ="), InvalidArgumentError, "k ="),
    ],
)
def test_mistakes_change_nothing_and_free_the_lock(
    db: Database, act: Callable[[Any], Any], kind: type[Exception], says: str
) -> None:
    """They are met under the lock of all writers, which must be free again afterwards."""
    table = key_value_table(db)
    table.insert({"k": [1], "v": [1]})
    with pytest.raises(kind) as error:
        act(table)
    assert says in str(error.value)
    assert not db._writer().commit_lock.held()
    thread = threading.Thread(target=lambda: table.upsert({"k": [1], "v": [2]}))
    thread.start()
    thread.join(20)
    assert rows(table) == [(1, 2)]


def test_a_table_that_is_gone(db: Database) -> None:
    """Dropped since the Table object was made."""
    table = key_value_table(db)
    db.drop_table("t")
    acts: list[Callable[[], Any]] = [
        lambda: table.delete(where="TRUE"),
        lambda: table.update(set={"v": 1}),
    ]
    for act in acts:
        with pytest.raises(TableNotFoundError):
            act()


def test_no_other_write_comes_between_looking_and_changing(db: Database) -> None:
    """A counter that many threads raise by `set={"v": nyala.expr("v + 1")}` loses no step."""
    table = key_value_table(db)
    table.insert({"k": [1], "v": [0]})
    threads = [
        threading.Thread(
            target=lambda: [table.update(set={"v": nyala.expr("v + 1")}, where="k = 1") for _ in range(10)]
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rows(table) == [(1, 40)]


def test_a_large_one_goes_into_files(tmp_path: Path) -> None:
    """Above the log's limit the rows are selected again under both locks, and committed by the catalogue."""
    with open_database(tmp_path / "s", direct_commit_bytes=1000) as db:
        table = key_value_table(db)
        table.insert({"k": list(range(500)), "v": list(range(500))})
        before = db.now()
        assert table.update(set={"v": nyala.expr("v + 1000")}, where="k >= 100").updated == 400
        assert table.stats()["redo_files"] == 1 and table.stats()["memory_bytes"] == 0
        assert table.delete(where="k < 300").deleted == 300
        assert rows(table) == [(k, k + 1000) for k in range(300, 500)]
        assert table.count(at=before) == 500 and table.count(at=before, where="v >= 1000") == 0


def test_a_failed_write_says_so(db: Database) -> None:
    """A store that takes no more writes refuses before it looks for rows."""
    table = key_value_table(db)
    db._writer().poison(OSError("gone"))
    acts: list[Callable[[], Any]] = [
        lambda: table.delete(where="TRUE"),
        lambda: table.update(set={"v": 1}),
    ]
    for act in acts:
        with pytest.raises(StorageError, match="takes no more writes"):
            act()


# --- look-ups -------------------------------------------------------------------------------------------


def test_rows_come_in_the_order_of_the_keys(db: Database) -> None:
    """Each as often as it was asked for, from any tablet; missing ones and those of no partition are left out."""
    hashes, ranges = nyala.hash_partition("k", buckets=3), nyala.range_partition("k", bounds=[(0, 100)])
    table = db.create_table("t", {"k": "int64", "v": "string"}, "k", [hashes, ranges])
    table.insert({"k": [3, 1, 2], "v": ["c", "a", "b"]})
    found = table.get_many({"k": [2, 9, 1, 500, 2, 3]})
    assert found.to_pydict() == {"k": [2, 1, 2, 3], "v": ["b", "a", "b", "c"]}
    assert table.get_many({"k": [500]}).to_pydict() == {"k": [], "v": []}
    assert table.get_many({"k": [1]}, columns=["v"]).schema == pa.schema([table.schema.field("v")])
    assert table.get_many([]).schema == table.get_many({"k": [9]}).schema == table.schema


@pytest.mark.parametrize(
    ("keys", "kind", "says"),
    [
        ([{"a": "x"}], InvalidArgumentError, "'n' is not given"),
        ([{"a": "x", "n": None}], InvalidValueError, "row 0"),
        ([{"a": "x", "n": 1}, {"a": "x", "n": 2**40}], InvalidValueError, "row 1"),
        ([{"a": "x", "n": 1, "q": 1}], ColumnNotFoundError, "'q'"),
        ([{"a": "x", "n": 1, "v": 1}], SchemaError, "key columns only"),
        ({"a": ["x"], "n": ["one"]}, SchemaError, "'n'"),
    ],
)
def test_what_is_no_key_is_refused(db: Database, keys: Any, kind: type[Exception], says: str) -> None:
    """A look-up by half a key, or by a value that the column cannot hold, is a mistake and not "no such row"."""
    table = db.create_table("t", {"a": "string", "n": "int32", "v": "int8"}, ["a", "n"])
    with pytest.raises(kind, match=says):
        table.get_many(keys)
    assert table.get({"a": "x", "n": 1}) is None


KEY_VALUES = st.one_of(
    st.integers(-(2**15), 2**15 - 1),
    st.sampled_from([-(2**15) - 1, 2**15, 2**70, True, None, 1.0, 1.5, b"x", "1"]),
    st.text(max_size=3),
    st.sampled_from(["", "a\0", "\ud800", "x" * 65536, "x" * 65537]),
)


@given(
    names=st.sampled_from(
        [("int16",), ("string",), ("int64",), ("string", "int16"), ("int64", "int16"), ("varchar(2)",)]
    ),
    values=st.tuples(KEY_VALUES, KEY_VALUES),
    left_out=st.booleans(),
)
def test_a_single_key_is_encoded_as_in_a_batch_or_not_at_all(
    tables_by_key: dict[tuple[str, ...], Any], names: tuple[str, ...], values: tuple[Any, Any], left_out: bool
) -> None:
    """`get` would miss rows that `get_many` finds, or answer for a key that is none."""
    table = tables_by_key[names]
    key = {f"k{number}": value for number, value in zip(range(len(names) - left_out), values, strict=False)}
    single = where_writes._plain_key(table, key)
    if single is None:
        return  # then the key goes the way of the batch
    encoded, tablets = where_writes.read_keys(table, [key], "get")
    assert single[0].to_binary().equals(encoded.to_binary())
    assert single[0].to_hashable() == encoded.to_hashable()
    assert [single[1]] == tablets.tolist() == [0]
    # A row is shown with the key as it was asked for.
    assert [array[0].as_py() for array in table.codec.decode(encoded)] == [key[name] for name in sorted(key)]


@pytest.fixture(scope="module")
def tables_by_key(shared: Database) -> dict[tuple[str, ...], Any]:
    out: dict[tuple[str, ...], Any] = {}
    for names in [
        ("int16",),
        ("string",),
        ("int64",),
        ("string", "int16"),
        ("int64", "int16"),
        ("varchar(2)",),
    ]:
        columns = {f"k{number}": nyala.column(type, nullable=False) for number, type in enumerate(names)}
        name = f"keyed{len(out)}"
        shared.create_table(name, columns, list(columns))
        out[names] = shared._store.root.table(name)  # type: ignore[union-attr]
    return out


def test_plain_keys_take_the_short_way(tables_by_key: dict[tuple[str, ...], Any]) -> None:
    """A `get` of two integers would cost as much again as finding the row."""
    assert where_writes._plain_key(tables_by_key["int64", "int16"], {"k0": 5, "k1": 7}) is not None
    assert where_writes._plain_key(tables_by_key["string", "int16"], {"k1": -1, "k0": "host"}) is not None
    assert where_writes._plain_key(tables_by_key["int64", "int16"], {"k0": 5, "k1": 2**15}) is None
    assert where_writes._plain_key(tables_by_key["varchar(2)",], {"k0": "abc"}) is None
