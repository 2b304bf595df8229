"""Lists of different row operations: one batch, in order, each row with its own columns."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import nyala

COLUMNS = ("a", "b", "must")
DEFAULTS = {"a": None, "b": "new", "must": None}
OPERATIONS = ("insert", "insert-ignore", "upsert", "update", "update-ignore", "delete", "delete-ignore")

Rows = dict[int, dict[str, Any]]


@pytest.fixture
def db(tmp_path: Path) -> Iterator[nyala.Database]:
    with nyala.connect(tmp_path / "s", maintenance=False) as db:
        db.create_table(
            "t",
            {
                "k": "int64",
                "a": "int64",
                "b": nyala.column("string", default="new"),
                "must": nyala.column("int64", nullable=False),
            },
            primary_key="k",
            partition_by=nyala.hash_partition("k", buckets=2),
        )
        db.create_table("u", {"k": "string", "n": "int64"}, primary_key="k")
        yield db


def rows_of(table: nyala.Table | nyala.TransactionTable) -> Rows:
    return {row.pop("k"): row for row in table.scan().to_arrow().to_pylist()}


def apply_one(rows: Rows, operation: str, row: Any) -> str:
    """Apply one operation to `rows` as Kudu does; returns the outcome, or the code of the error."""
    name, _, ignore = operation.partition("-")
    key = row if name == "delete" else row["k"]
    values = {} if name == "delete" else {column: row[column] for column in COLUMNS if column in row}
    there = key in rows
    if name == "update" and not values:
        return "missing-column"
    if name == "insert" and "must" not in values:
        return "missing-column"
    if name == "insert" and there:
        return "ignored" if ignore else "already-present"
    if name in ("update", "delete") and not there:
        return "ignored" if ignore else "not-found"
    if name == "delete":
        del rows[key]
        return "deleted"
    if there:
        rows[key] |= values
        return "updated"
    if "must" not in values:
        return "missing-column"
    rows[key] = {**DEFAULTS, **values}
    return "inserted"


def drawn(random_: random.Random, keys: int) -> tuple[str, Any]:
    operation, key = random_.choice(OPERATIONS), random_.randrange(keys)
    if operation.startswith("delete"):
        return operation, key
    row: dict[str, Any] = {"k": key}
    for column in COLUMNS:
        if random_.random() < 0.6:
            row[column] = str(random_.randrange(9)) if column == "b" else random_.randrange(9)
    return operation, row


@pytest.mark.parametrize("seed", range(6))
def test_a_list_has_the_effect_of_its_operations_one_by_one(db: nyala.Database, seed: int) -> None:
    """Counts, error codes and positions, and rows, also after a replay of the log and a flush."""
    random_ = random.Random(seed)
    table, rows = db["t"], {}
    for step in range(12):
        operations = [drawn(random_, 5 + 10 * step) for _ in range(random_.choice([1, 3, 60]))]
        outcomes = [apply_one(rows, *operation) for operation in operations]
        result = table.apply(operations, errors="collect")
        counted = [result.inserted, result.updated, result.deleted, result.ignored]
        assert counted == [outcomes.count(name) for name in ("inserted", "updated", "deleted", "ignored")]
        assert dict(
            zip(result.errors["row"].to_pylist(), result.errors["code"].to_pylist(), strict=True)
        ) == {place: outcome for place, outcome in enumerate(outcomes) if "-" in outcome}
        assert result.errors["operation"].to_pylist() == [
            operations[place][0] for place in result.errors["row"].to_pylist()
        ]
        assert rows_of(table) == rows
        if random_.random() < 0.3:
            table.flush()
    path = db.path
    db.close()
    with nyala.connect(path, maintenance=False) as again:
        assert rows_of(again["t"]) == rows
        again["t"].flush()
        again["t"].compact()
        assert rows_of(again["t"]) == rows


def test_a_failing_row_rejects_the_whole_list(db: nyala.Database) -> None:
    table = db["t"]
    with pytest.raises(nyala.KeyNotFoundError, match=r"1 of 2 rows failed .* row 1 \(k=2\)") as error:
        table.apply([("insert", {"k": 1, "must": 1}), ("update", {"k": 2, "a": 1})])
    assert error.value.errors["operation"].to_pylist() == ["update"]
    assert table.count() == 0


def test_a_row_may_be_a_tuple_a_dataclass_or_a_dict(db: nyala.Database) -> None:
    @dataclasses.dataclass
    class Row:
        k: str
        n: int

    table = db["u"]
    result = table.apply([("insert", ("a", 1)), ("insert", Row("b", 2)), ("insert", {"k": "c"}), ("delete", "a"),
                          ("delete", {"k": "b"}), ("delete-ignore", ("z",))])  # fmt: skip
    assert (result.inserted, result.deleted, result.ignored) == (3, 2, 1)
    assert rows_of(table) == {"c": {"n": None}}


def test_each_change_of_a_row_is_one_version(db: nyala.Database) -> None:
    """A batch whose rows change different columns is stored in several parts, but each change is one version."""
    table = db["t"]
    table.insert({"k": range(20), "must": [0] * 20})
    start = db.now()
    table.apply(
        [
            ("update", {"k": k, column: 1})
            for k in range(20)
            for column in ("a", "must")
            if k % 3 or column == "a"
        ]
    )
    feed = table.changes(since=start, versions="all").to_arrow()
    assert feed.num_rows == 20 and set(feed["_change_type"].to_pylist()) == {"update"}


def test_a_batch_takes_lists_and_collects_errors(db: nyala.Database) -> None:
    """Operations on several tables have one timestamp.

    Each call has its own result, and errors have positions in its own rows.
    """
    with db.batch(errors="collect") as batch:
        batch.insert("t", [{"k": 1, "must": 1}, {"k": 1, "must": 2}])
        batch.insert("u", pa.table({"k": ["x", "y"], "n": [1, 2]}))
        batch.update("t", [{"k": 1, "a": 5}])
        batch.apply("u", [("delete", "x"), ("delete", "q"), ("upsert", {"k": "y", "n": 3})])
        batch.upsert("u", [{"k": "x", "n": 7}])
        batch.delete("t", 9)
    first, second, third, fourth, fifth, sixth = batch.results
    assert len({result.timestamp for result in batch.results}) == 1
    assert (first.inserted, first.errors["row"].to_pylist(), second.inserted, third.updated) == (1, [1], 2, 1)
    assert (fourth.deleted, fourth.updated, fourth.errors["row"].to_pylist(), fifth.inserted) == (
        1,
        1,
        [1],
        1,
    )
    assert sixth.errors["code"].to_pylist() == ["not-found"]
    assert rows_of(db["t"]) == {1: {"a": 5, "b": "new", "must": 1}}
    assert rows_of(db["u"]) == {"y": {"n": 3}, "x": {"n": 7}}


def test_calls_of_a_batch_keep_their_order(db: nyala.Database) -> None:
    """Small calls are combined, but not across a call with Arrow data."""
    with db.batch() as batch:
        batch.upsert("u", [{"k": "a", "n": 1}])
        batch.upsert("u", pa.table({"k": ["a"], "n": [2]}))
        batch.upsert("u", [{"k": "a", "n": 3}])
        batch.upsert("u", [{"k": "b", "n": 1}])
        batch.upsert("u", pa.table({"k": ["b"], "n": [2]}))
    assert rows_of(db["u"]) == {"a": {"n": 3}, "b": {"n": 2}}


def test_a_transaction_applies_lists(db: nyala.Database) -> None:
    with db.transaction() as tx:
        tx["u"].apply(
            [("insert", ("a", 1)), ("update", {"k": "a", "n": 2}), ("insert", ("b", 1)), ("delete", "b")]
        )
        assert rows_of(tx["u"]) == {"a": {"n": 2}}
    assert rows_of(db["u"]) == {"a": {"n": 2}}


@pytest.mark.parametrize(
    ("operations", "says"),
    [
        ({"k": 1}, "apply takes a list of .operation, row. pairs.*not dict"),
        ([{"k": 1}], "item 0 is {'k': 1}, but each item is a pair of an operation and a row"),
        ([("put", {"k": 1})], "item 0 is \\('put'"),
        ([("insert", ("a", 1)), ("upsert", 5)], "item 1: upsert takes a row as a dict, a dataclass, or a tuple of 2"),
        ([("insert", ("a", 1, 2))], "item 0: insert takes a row as"),
        ([("delete", {"k": "a", "n": 1})], "item 0: delete takes the key columns .k. only; remove 'n'"),
        ([("upsert", {"k": "a", "m": 1})], "unknown column 'm'"),
        ([("upsert", {"k": "a", "n": "x"})], "column 'n'"),
    ],
)  # fmt: skip
def test_errors_of_invalid_lists_say_what_to_write(db: nyala.Database, operations: Any, says: str) -> None:
    with pytest.raises(
        (nyala.InvalidArgumentError, nyala.SchemaError, nyala.ColumnNotFoundError), match=says
    ):
        db["u"].apply(operations)
    assert db["u"].count() == 0
