"""A fixed list of alterations, with writes between them so that each meets rows in memory, in files
and in the log.

As in `workload.STEPS`: a crash within step i leaves the store as after step i - 1 or as after step
i.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import nyala
from nyala.api.database import Database
from nyala.tablet.write.write_path import Request
from tests.crash.workload import Step


def _create(db: Database) -> None:
    db.create_table(
        "t", {"k": "int32", "v": "int16", "gone": "int8"}, "k",
        nyala.range_partition("k", bounds=[(0, 10), (10, 20)]),
    )  # fmt: skip


def _alter(steps: Callable[[nyala.Alteration], object]) -> Step:
    def step(db: Database) -> None:
        (name,) = db.list_tables()
        with db[name].alter() as a:
            steps(a)

    return step


def _several(a: nyala.Alteration) -> None:
    a.rename_column("k", "key")
    a.drop_column("c")
    a.add_column("c", "string", nullable=False, default="again")
    a.alter_column("w", type="int64", nullable=True, default=0, encoding="plain")
    a.drop_range(10, 20)
    a.add_range(10, 15)
    a.add_range(30, None)
    a.set_history("1h")
    a.set_comment("all at once")
    a.rename("u")


def _create_with_rows(db: Database, name: str, rows: dict[str, list[int]]) -> None:
    """Do what CREATE OR REPLACE TABLE … AS does, without DuckDB, which does not work after a fork."""
    new = db._new_table(name, {"k": "int32", "w": "int64"}, "k", nyala.hash_partition("k", buckets=2))
    db._changing("create").create_table(new, [Request(name, "insert", rows)], replaces=True)


ALTERATIONS: dict[str, Step] = {
    "rename": _alter(lambda a: a.rename_column("v", "w")),
    "add column": _alter(lambda a: a.add_column("c", "int8", nullable=False, default=7)),
    "drop column": _alter(lambda a: a.drop_column("gone")),
    "widen": _alter(lambda a: a.alter_column("w", type="int32")),
    "add range": _alter(lambda a: a.add_range(20, 30)),
    "drop range": _alter(lambda a: a.drop_range(0, 10)),
    "several": _alter(_several),
    "repartition": lambda db: db["u"].repartition(nyala.hash_partition("key", buckets=2)),
    "create with rows": lambda db: _create_with_rows(db, "n", {"k": [1, 2, 14], "w": [5, 6, 7]}),
    "replace": lambda db: _create_with_rows(db, "u", {"k": [9], "w": [1]}),
    "replace by a clone": lambda db: db._clone_table("n", "u", None, replaces=True),
    "drop": lambda db: db._changing("drop").drop_tables(["u", "n"], purge=False),
}
# After the alteration of that name.
WRITES: dict[str, Step] = {
    "rename": lambda db: db["t"].upsert({"k": [1, 14], "w": [11, 6]}),
    "add column": lambda db: db["t"].upsert({"k": [2, 11], "c": [70, 71]}),
    "widen": lambda db: db["t"].update({"k": [12], "w": [2**31 - 1]}),
    "add range": lambda db: db["t"].insert({"k": [25], "w": [1]}),
    "drop range": lambda db: db.flush(),
    "several": lambda db: db["u"].insert({"key": [10, 31], "w": [2**40, 2], "c": ["x", "y"]}),
}

STEPS: list[Step] = [
    _create,
    lambda db: db["t"].insert({"k": [1, 2, 11, 12], "v": [1, 2, 3, 4], "gone": [5, 6, 7, 8]}),
    lambda db: db.flush(),
    lambda db: db["t"].update({"k": [1, 11], "v": [10, 30]}),
    lambda db: db["t"].insert({"k": [13], "v": [5], "gone": [9]}),
]
STEP_NUMBERS: dict[str, int] = {}
"""The number of the step of each alteration, by its name."""
for _name, _step in ALTERATIONS.items():
    STEP_NUMBERS[_name] = len(STEPS)
    STEPS += [_step, *([WRITES[_name]] if _name in WRITES else [])]


def whole_state(db: Database) -> dict[str, Any]:
    """Return for each table everything that an alteration can change, and its rows."""
    found = {}
    for name in db.list_tables():
        state = db._root().table(name)
        found[name] = {
            "schema": json.loads(state.schema.to_json()),
            "comment": state.entry.comment,
            "history": state.entry.history_us,
            "partitions": [tablet.partition for tablet in db[name].tablets()],
            "rows": db[name].scan(order_by_key=True).to_arrow().to_pylist(),
        }
    return found
