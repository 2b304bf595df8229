"""A fixed list of steps that change a store in every way, for tests that stop it somewhere.

Each step is acknowledged when it returns. A crash within step i leaves the store as after step i -
1 or as after step i. Acknowledged steps can also be read at every earlier timestamp.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import nyala
from nyala.api.database import Database
from nyala.tablet.compaction.lifecycle import compact, run_here
from nyala.tablet.compaction.plans import MajorPlan, MergePlan, Plan
from tests.support import compact_deltas, folder_in_memory, open_database

Step = Callable[[Database], object]
# Small enough that one step of the workload is a direct commit (W6).
DIRECT_COMMIT_BYTES = 6000


def _batch(db: Database) -> None:
    with db.batch() as batch:
        batch.upsert("t", {"k": [1, 50], "v": [-1, -50]})
        batch.insert("u", {"k": [50], "v": [50]})
        batch.delete("t", {"k": [2]})


def _transaction(db: Database, count: int) -> None:
    """Run statements on two tables that depend on each other, in a transaction.

    If `count` is large, it is committed as files.
    """
    with db.transaction() as tx:
        tx["t"].upsert({"k": list(range(30, 30 + count)), "v": [1] * count})
        tx["t"].update(set={"v": nyala.expr("v + 1")}, where="k < 33")
        tx["u"].upsert({"k": [7], "v": [tx["t"][30]["v"]]})
        tx["t"].delete([31])
        tx["t"].insert({"k": [31], "v": [tx["u"][7]["v"]]})
        tx["t"].delete(where="k = 32")


def _create(db: Database) -> None:
    columns = {"k": "int64", "v": "int64", "s": nyala.column("string", default="-")}
    db.create_table("t", columns, "k", [nyala.hash_partition("k", buckets=2)])


def _compact(db: Database, kind: str, when: str, write: Callable[[], object]) -> None:
    """Compact all rowsets or all columns of the first tablet of `t`, with a write in the middle."""
    store = db._writer()
    table = store.root.table("t")
    tablet = table.tablets[0]
    plan: Plan
    if kind == "merge":
        plan = MergePlan(tuple(rowset.id for rowset in tablet.rowsets), 1.0, 2)
    else:
        changed = max(tablet.rowsets, key=lambda rowset: len(rowset.redo))
        plan = MajorPlan(
            changed.id, tuple(sorted({c for file in changed.redo for c in file.column_ids})), 1.0
        )
    report = compact(
        store, table.id, tablet.id, plan, run_here(store),
        phase=lambda name: write() if name == when else None,
    )  # fmt: skip
    assert report is not None, "the compaction was installed"


STEPS: list[Step] = [
    _create,
    lambda db: db.create_table("u", {"k": "int64", "v": "int64"}, "k"),
    lambda db: db["t"].insert({"k": list(range(20)), "v": list(range(20))}),
    lambda db: db["u"].insert({"k": [1, 2, 3], "v": [1, 2, 3]}),
    lambda db: db.flush(),
    lambda db: db["t"].update({"k": [3, 4], "v": [33, 44]}),
    _batch,
    lambda db: db["t"].flush(),
    lambda db: _transaction(db, 6),
    lambda db: db["t"].insert({"k": [2], "v": [22], "s": ["again"]}),
    lambda db: db["t"].delete({"k": [5, 6]}),
    lambda db: db["t"].insert({"k": [5], "v": [55]}),
    lambda db: db.flush(),
    lambda db: db["t"].update({"k": [7], "s": ["x"]}),
    lambda db: db.flush(),
    lambda db: db["t"].upsert({"k": [7, 8, 90], "v": [77, 88, 90]}),
    lambda db: db.flush(),
    lambda db: db["t"].update({"k": [9], "v": [99]}),
    lambda db: db.flush(),
    lambda db: compact_deltas(db._writer()),
    lambda db: db._writer().collect_garbage(),
    lambda db: db["t"].update({"k": [9], "v": [100]}),
    lambda db: db["t"].upsert({"k": list(range(15, 400)), "v": list(range(385))}),
    lambda db: db["t"].update(set={"v": nyala.expr("v + 1")}, where="k < 10"),
    lambda db: _transaction(db, 400),
    lambda db: db.drop_table("u"),
    lambda db: db.create_table("u", {"k": "int64", "v": "int64"}, "k"),
    lambda db: db["u"].insert({"k": [1], "v": [-1]}),
    lambda db: db["t"].delete(where="k >= 100"),
    lambda db: db["t"].flush(),
    lambda db: _compact(db, "major", "reserved", lambda: db["t"].update({"k": [1], "v": [-2]})),
    lambda db: db["t"].flush(),
    lambda db: _compact(db, "merge", "written", lambda: db["t"].upsert({"k": [1, 2, 60], "v": [7, 8, 9]})),
    lambda db: db["t"].delete({"k": [60]}),
    lambda db: _compact(db, "merge", "reserved", lambda: db["t"].upsert({"k": [60, 9], "v": [10, 11]})),
    lambda db: db["t"].compact(),
    lambda db: db["t"].update({"k": [9], "v": [12]}),
    lambda db: db["t"].vacuum(),
    lambda db: db["t"].restore(to=db["t"].history({"k": 60}).column("_commit_version")[-1].as_py() - 1),
]

State = dict[str, list[dict[str, Any]]]


def states() -> list[State]:
    """Return the state after each step, from a run without a crash."""
    with (
        folder_in_memory() as folder,
        open_database(folder / "s", direct_commit_bytes=DIRECT_COMMIT_BYTES) as db,
    ):
        found: list[State] = [{}]
        for step in STEPS:
            step(db)
            found.append(state_of(db))
        return found


def state_of(db: Database, at: int | None = None) -> State:
    """Return every table's rows in key order."""
    return {name: db[name].scan(at=at, order_by_key=True).to_arrow().to_pylist() for name in db.list_tables()}


def check_everything(db: Database) -> None:
    """Check every rule that can be verified on a store (`nyala.check`)."""
    report = db.check()
    assert report.ok, "\n".join(problem.message for problem in report.problems)
