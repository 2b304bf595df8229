"""Lists of different operations, each row with its own columns, by `table.apply` and by a session of Kudu."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import nyala

if TYPE_CHECKING:
    from tests.kudu.client import Kudu, Operation

MASTER, JARS = os.environ.get("NYALA_KUDU"), os.environ.get("NYALA_KUDU_JARS")
STEPS = int(os.environ.get("NYALA_KUDU_STEPS", "300"))
SEEDS = range(int(os.environ.get("NYALA_KUDU_SEEDS", "3")))
pytestmark = pytest.mark.skipif(not (MASTER and JARS), reason="NYALA_KUDU and NYALA_KUDU_JARS are not set")

COLUMNS = {
    "h": "string",
    "a": "int32",
    "b": "int64",
    "c": "string",
    "d": "int32 default 7",
    "f": "bool",
    "x": "double",
}
KINDS = ["insert", "insert-ignore", "upsert", "upsert", "update", "update-ignore", "delete", "delete-ignore"]
CODES = {"ALREADY_PRESENT": "already-present", "NOT_FOUND": "not-found", "INVALID_ARGUMENT": "missing-column"}
VALUES: dict[str, list[Any]] = {
    "b": [None, 0, 1, -5, 2**63 - 1, -(2**63)],
    "c": [None, "", "x", "long" * 10, "\0"],
    "d": [0, 1, 2],
    "f": [None, True, False],
    "x": [None, 0.0, -0.0, 1.5, float("inf"), -1e300],
}


@pytest.fixture(scope="module")
def kudu() -> Iterator[Kudu]:
    assert MASTER and JARS
    from tests.kudu.client import Kudu  # needs py4j

    with Kudu(MASTER, JARS) as kudu:
        yield kudu


def some_operations(draw: random.Random) -> list[Operation]:
    """Draw operations on few keys, so most lists have a key several times. Some rows have only the key."""
    operations: list[Operation] = []
    for _ in range(draw.choice([1, 2, 5, 12, 40])):
        kind = draw.choice(KINDS)
        row: dict[str, Any] = {
            "h": draw.choice(["", "a", "a\0", "é", "zzz"]),
            "a": draw.choice([-(2**31), -1, 0, 1, 5]),
        }
        if not kind.startswith("delete"):
            share = draw.choice([0.0, 0.3, 0.6, 1.0])
            row |= {name: draw.choice(values) for name, values in VALUES.items() if draw.random() < share}
        operations.append((kind, row))
    return operations


def nyala_rows(table: nyala.Table, at: int | None = None) -> list[tuple[Any, ...]]:
    rows = table.scan(list(COLUMNS), at=at).to_arrow().to_pylist()
    return sorted((tuple(row.values()) for row in rows), key=repr)


def nyala_changes(table: nyala.Table, since: int, until: int) -> list[tuple[Any, ...]]:
    rows = table.changes(since, until).to_arrow().to_pylist()
    return sorted(
        (_change(tuple(row[name] for name in COLUMNS), row["_change_type"] == "delete") for row in rows),
        key=repr,
    )


def _change(row: tuple[Any, ...], deleted: bool) -> tuple[Any, ...]:
    """Return a row of a diff scan. Of a deleted row, compare only the key: Kudu returns its last values."""
    return (*row[:2], True) if deleted else (*row, False)


@pytest.mark.parametrize("seed", SEEDS)
def test_lists_of_operations_do_what_they_do_in_kudu(tmp_path: Path, kudu: Kudu, seed: int) -> None:
    """Rows fail with the same codes, and snapshots and diff scans of both have the same rows."""
    draw = random.Random(seed)
    name = f"nyala_mixed_batches_{seed}"
    theirs = kudu.create(name, COLUMNS, ["h", "a"], "h", 3)
    with nyala.connect(tmp_path / "s") as db:
        columns: dict[str, Any] = dict(COLUMNS) | {"d": nyala.column("int32", nullable=False, default=7)}
        ours = db.create_table("t", columns, ["h", "a"], nyala.hash_partition("h", buckets=3))
        moments: list[tuple[int, int]] = []
        for step in range(STEPS):
            operations = some_operations(draw)
            failed = [
                (place, CODES[code.upper().replace(" ", "_")])
                for place, code in kudu.apply(theirs, operations)
            ]
            pairs = [
                (kind, {k: row[k] for k in ("h", "a")} if kind.startswith("delete") else row)
                for kind, row in operations
            ]
            errors = ours.apply(pairs, errors="collect").errors
            found = list(zip(errors["row"].to_pylist(), errors["code"].to_pylist(), strict=True))
            assert found == failed, (step, operations)
            moments.append((kudu.now(), db.now()))
            if draw.random() < 0.1:
                db.flush()
            if draw.random() < 0.05:
                ours.compact()
            if step % 10 == 9:
                assert nyala_rows(ours) == kudu.rows(theirs), step
        time.sleep(1)  # the last snapshots are in the past of Kudu's clock
        for their_moment, our_moment in draw.sample(moments, 25):
            assert nyala_rows(ours, our_moment) == kudu.rows(theirs, their_moment)
        for _ in range(25):
            first, last = sorted(draw.sample(moments, 2))
            changed = [_change(row[:-1], row[-1]) for row in kudu.rows(theirs, last[0], first[0])]
            assert nyala_changes(ours, first[1], last[1]) == sorted(changed, key=repr)
    kudu.drop(name)
