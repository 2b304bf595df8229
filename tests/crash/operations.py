"""Operations for random workloads: everything that changes a store. A reader sees at most one
change of each operation.

Each operation gets the database and a source of random choices. It may do nothing. Each crash test
uses all operations of this module.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import nyala
from nyala.api.database import Database
from nyala.api.table import Table
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.tablet.compaction.lifecycle import compact, run_here
from nyala.tablet.compaction.plans import MajorPlan, MergePlan, MinorPlan, Plan
from nyala.tablet.state.root import TabletState
from tests.support import compact_deltas

Operation = Callable[[Database, random.Random], object]
# A batch of 40 rows is larger, so it is a direct commit (W6).
DIRECT_COMMIT_BYTES = 3000


TABLES = ("r", "t", "u")


def create_tables(db: Database) -> None:
    """Create the tables of all workloads.

    `t` has two tablets, `u` a composite key and ranges, and `r` a range that workloads drop and add.
    """
    columns = {"k": "int64", "v": "int64", "s": nyala.column("string", default="-")}
    db.create_table("t", columns, "k", [nyala.hash_partition("k", buckets=2)])
    db.create_table(
        "u", {"a": "string", "b": "int32", "v": "int64"}, ["a", "b"], nyala.range_partition("b", splits=[4])
    )
    db.create_table(
        "r", {"k": "int64", "v": "int64"}, "k", nyala.range_partition("k", bounds=[(0, 8), (8, 16)])
    )


def _keys(chance: random.Random, most: int = 8) -> list[int]:
    return chance.sample(range(16), 1 + chance.randrange(most))


def _rows(chance: random.Random, name: str, most: int = 8) -> dict[str, list[Any]]:
    keys = _keys(chance, most)
    values = [chance.randrange(1000) for _ in keys]
    if name == "u":
        return {"a": ["xyz"[key % 3] for key in keys], "b": [key // 2 for key in keys], "v": values}
    return {"k": keys, "v": values}


def _key_rows(chance: random.Random, name: str) -> dict[str, list[Any]]:
    rows = _rows(chance, name)
    del rows["v"]
    return rows


def _some(db: Database, chance: random.Random) -> str | None:
    names = db.list_tables()
    return chance.choice(names) if names else None


def _on_a_table(act: Callable[[Table, str, random.Random], object]) -> Operation:
    def operation(db: Database, chance: random.Random) -> object:
        name = _some(db, chance)
        return None if name is None else act(db[name], name.split("_")[0], chance)

    return operation


def _batch(db: Database, chance: random.Random) -> None:
    names = [name for name in db.list_tables() if name != "r"]  # `r` may have dropped its range
    with db.batch() as batch:
        for name in names:
            batch.upsert(name, _rows(chance, name.split("_")[0]))


def _transaction(db: Database, chance: random.Random) -> None:
    """Run statements that depend on each other in a transaction.

    It is sometimes too large for the log, and sometimes rolled back.
    """
    names = [name for name in db.list_tables() if name != "r"]  # `r` may have dropped its range
    with db.transaction() as tx:
        for name in names:
            tx[name].upsert(_rows(chance, name.split("_")[0]))
            tx[name].update(set={"v": nyala.expr("v + 1")}, where="v > 300")
            tx[name].delete(where="v < 50")
        if "t" in names and not chance.randrange(4):
            tx["t"].upsert({"k": range(20, 80), "v": [chance.randrange(9)] * 60, "s": ["s" * 60] * 60})
        if not chance.randrange(6):
            tx.rollback()


def _commit_directly(db: Database, chance: random.Random) -> None:
    if "t" in db:
        begin = chance.randrange(30)
        db["t"].upsert({"k": range(begin, begin + 60), "v": [chance.randrange(9)] * 60, "s": ["s" * 60] * 60})


def _compact(kind: str) -> Operation:
    """Compact one tablet of one table, if that is possible, with a write in the middle."""

    def operation(db: Database, chance: random.Random) -> object:
        store = db._writer()
        plans = [
            (table, tablet, plan)
            for table, tablet in store.root.tablets()
            for rowset in tablet.rowsets
            if (plan := _plan(kind, tablet, rowset, chance)) is not None
        ]
        if not plans:
            return None
        table, tablet, plan = chance.choice(plans)
        when = chance.choice(["reserved", "written", ""])

        def phase(reached: str) -> None:
            if reached == when:
                db[table.name].upsert(_rows(chance, table.name.split("_")[0]), errors="collect")

        return compact(store, table.id, tablet.id, plan, run_here(store), phase=phase)

    return operation


def _plan(kind: str, tablet: TabletState, rowset: DiskRowSet, chance: random.Random) -> Plan | None:
    if kind == "merge":
        others = [one for one in tablet.rowsets if one is not rowset and chance.randrange(2)]
        return MergePlan(tuple(one.id for one in (rowset, *others)), 1.0, 1 + chance.randrange(2))
    if kind == "major":
        changed = sorted({number for file in rowset.redo for number in file.column_ids})
        return MajorPlan(rowset.id, tuple(changed), 1.0) if changed else None
    files = rowset.undo if kind == "undo" else rowset.redo
    if len(files) < 2:
        return None
    return MinorPlan(rowset.id, slice(0, 2), 1.0, "undo" if kind == "undo" else "redo")


def _make_or_drop(db: Database, chance: random.Random) -> None:
    names = [name for name in db.list_tables() if name not in TABLES]
    if len(names) == 2 or (names and chance.randrange(2)):
        db.drop_table(chance.choice(names))
    else:
        columns = {"a": "string", "b": "int32", "v": "int64"}
        db.create_table(f"u_{len(names)}_{db.now()}", columns, ["a", "b"], history=0)  # for vacuum


def _alter_columns(db: Database, chance: random.Random) -> None:
    """Add or drop a column, or change its name, its default and its nullability."""
    extra = [name for name in db["t"].schema.names if name not in ("k", "v", "s")]
    with db["t"].alter() as alteration:
        if not extra:
            alteration.add_column(f"x{db.now()}", "int32", default=chance.randrange(9), nullable=False)
        elif chance.randrange(3):
            alteration.rename_column(extra[0], f"y{db.now()}")
            alteration.alter_column(f"y{db.now()}", type="int64", default=chance.randrange(9), nullable=True)
        else:
            alteration.drop_column(extra[0])


def _alter_ranges(db: Database, chance: random.Random) -> None:
    """Drop the range [8, 16) with its rows, or add it."""
    with db["r"].alter() as alteration:
        if len(db["r"].tablets()) == 2:
            alteration.drop_range(8, 16)
        else:
            alteration.add_range(8, 16)


def _rename(db: Database, chance: random.Random) -> None:
    names = [name for name in db.list_tables() if name not in TABLES]
    if names:
        db.rename_table(chance.choice(names), f"u_r_{db.now()}")


def _restore(db: Database, chance: random.Random) -> None:
    versions = db["t"].history({"k": chance.randrange(16)})
    if len(versions):
        db["t"].restore(to=versions.column("_commit_version")[0].as_py())


OPERATIONS: dict[str, Operation] = {
    "upsert": _on_a_table(lambda table, name, chance: table.upsert(_rows(chance, name), errors="collect")),
    "insert": _on_a_table(
        lambda table, name, chance: table.insert(_rows(chance, name), on_conflict="ignore", errors="collect")
    ),
    "update": _on_a_table(
        lambda table, name, chance: table.update(_rows(chance, name), on_missing="ignore", errors="collect")
    ),
    "delete": _on_a_table(
        lambda table, name, chance: table.delete(
            _key_rows(chance, name), on_missing="ignore", errors="collect"
        )
    ),
    "update where": _on_a_table(
        lambda table, name, chance: table.update(set={"v": nyala.expr("v + 1")}, where="v > 500")
    ),
    "delete where": _on_a_table(lambda table, name, chance: table.delete(where="v < 100")),
    "batch": _batch,
    "transaction": _transaction,
    "bulk load": _commit_directly,
    "flush": lambda db, chance: db.flush(),
    "flush of a table": _on_a_table(lambda table, name, chance: table.flush()),
    "minor compaction": _compact("minor"),
    "UNDO compaction": _compact("undo"),
    "major compaction": _compact("major"),
    "merging compaction": _compact("merge"),
    "compaction of deltas": lambda db, chance: compact_deltas(db._writer()),
    "compaction": _on_a_table(lambda table, name, chance: table.compact()),
    "vacuum": lambda db, chance: [db[name].vacuum() for name in db.list_tables()],
    "collection": lambda db, chance: db._writer().collect_garbage(),
    "make or drop a table": _make_or_drop,
    "rename": _rename,
    "restore": _restore,
    "alter of columns": _alter_columns,
    "alter of ranges": _alter_ranges,
}
