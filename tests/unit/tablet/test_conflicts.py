"""A conflict is found in each place where the other writer's change can be at the commit.

Each case begins with rows in one place. Another writer changes some of them after the transactions
began, and the store moves the changes to another place before the transactions commit.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import loads
from tests.support import open_database, rows

import nyala
from nyala.api.database import Database
from nyala.errors import ConflictError, HistoryExpiredError
from nyala.tablet.compaction.lifecycle import compact, run_here
from nyala.tablet.compaction.plans import MajorPlan, MergePlan, MinorPlan
from nyala.tablet.flush.lifecycle import flush
from nyala.testing.clock import ManualClock

DIRECT_COMMIT_BYTES = 6000
Act = Callable[[Database], object]


@pytest.fixture
def db(folder: Path, clock: ManualClock) -> Iterator[Database]:
    with open_database(folder / "s", clock=clock, direct_commit_bytes=DIRECT_COMMIT_BYTES) as db:
        yield db


def _tablet(db: Database) -> Any:
    return db._writer().root.table("t").tablets[0]


def _compact(db: Database, plan: Any) -> None:
    store = db._writer()
    assert compact(store, store.root.table("t").id, _tablet(db).id, plan, run_here(store)) is not None


def _minor(db: Database) -> None:
    """Write two more delta files, and merge all into one."""
    db["t"].flush()
    for value in (6, 7):
        db["t"].update([{"k": BYSTANDER, "v": value}])
        db["t"].flush()
    for rowset in _tablet(db).rowsets:
        if len(rowset.redo) > 1:
            _compact(db, MinorPlan(rowset.id, slice(0, len(rowset.redo)), 1.0, "redo"))


def _major(db: Database) -> None:
    db["t"].flush()
    for rowset in _tablet(db).rowsets:
        columns = tuple(sorted({number for file in rowset.redo for number in file.column_ids}))
        if columns:
            _compact(db, MajorPlan(rowset.id, columns, 1.0))


def _merge(db: Database) -> None:
    """Merge all rowsets into three."""
    db["t"].flush()
    _compact(db, MergePlan(tuple(rowset.id for rowset in _tablet(db).rowsets), 1.0, 3))


def _replace(db: Database, k: int) -> None:
    with db.batch() as batch:
        batch.delete("t", k)
        batch.insert("t", [(k, 50)])


def _frozen(db: Database) -> None:
    """The test commits while the memory with the changes is frozen."""


# The other writer's changes of one key.
CHANGES: dict[str, Callable[[Database, int], object]] = {
    "load as files": lambda db, k: db["t"].upsert([(key, 50) for key in (k, *range(2000, 2600))]),
    "restore": lambda db, k: db["t"].restore(to=db["t"].update([{"k": k, "v": 50}]).timestamp - 1),
    "update": lambda db, k: db["t"].update([{"k": k, "v": 50}]),
    "update to the same value": lambda db, k: db["t"].update([{"k": k, "v": db["t"][k]["v"]}]),
    "delete": lambda db, k: db["t"].delete(k),
    "delete and insert": lambda db, k: (db["t"].delete(k), db["t"].insert([(k, 50)])),
    "delete and insert in one batch": _replace,
    "update where": lambda db, k: db["t"].update(set={"v": nyala.expr("v + 1")}, where=f"k = {k}"),
    "delete where": lambda db, k: db["t"].delete(where=f"k > {k - 1} AND k < {k + 5}"),
}
# The key of each change. No write changes the key before it.
KEYS = {name: 100 * number + 5 for number, name in enumerate(CHANGES)}
BYSTANDER = 999
ROWS = [(k, 0) for key in KEYS.values() for k in range(key - 3, key + 1)] + [(BYSTANDER, 0)]


def _again(db: Database) -> None:
    db["t"].delete(list(KEYS.values()))
    db["t"].insert([(k, 0) for k in KEYS.values()])


# The places of the rows when the transactions begin.
BEGINNINGS: dict[str, Act] = {
    "in memory": lambda db: None,
    "on disk": lambda db: db["t"].flush(),
    "changed on disk": lambda db: (db["t"].flush(), db["t"].update(set={"v": 1}), db["t"].flush()),
    "a ghost in memory": _again,
    "a ghost on disk": lambda db: (db["t"].flush(), _again(db)),
}
# The work of the store on the changes before the commits.
MOVES: dict[str, Act] = {
    "stay": lambda db: None,
    "are frozen": _frozen,
    "are flushed": lambda db: db["t"].flush(),
    "minor compaction": _minor,
    "major compaction": _major,
    "merge": _merge,
    "compaction and vacuum": lambda db: (db["t"].compact(), db["t"].vacuum()),
}


@pytest.mark.parametrize("history", ["forever", 0.0], ids=["all history", "no history"])
@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
@pytest.mark.parametrize("begin", BEGINNINGS.values(), ids=BEGINNINGS)
def test_a_conflict_is_found_in_each_place(
    db: Database, clock: ManualClock, begin: Act, move: Act, history: Any
) -> None:
    """A conflict is found wherever the rows and the other writer's changes are.

    This holds with `history=0` too, because open transactions keep the history. A transaction that
    writes a neighbouring key has no conflict.
    """
    table = db.create_table("t", {"k": "int64", "v": "int64"}, "k", history=history)
    table.insert(ROWS)
    begin(db)
    clock.advance(5)
    # A restore needs history. A load first flushes memory.
    changes = {name: KEYS[name] for name in CHANGES if name != ("load as files" if history else "restore")}
    transactions = {name: db.transaction() for name in changes}
    neighbours = [db.transaction() for _ in changes]
    clock.advance(5)
    for name, key in changes.items():
        CHANGES[name](db, key)
    clock.advance(5)
    for (name, key), neighbour in zip(changes.items(), neighbours, strict=True):
        transactions[name]["t"].update([{"k": key, "v": 9}])
        transactions[name]["t"].insert([(3000, 9)])
        neighbour["t"].update([{"k": key - 1, "v": 9}])
    move(db)
    before = rows(table)

    def commit_all() -> None:
        for name, key in changes.items():
            with pytest.raises(ConflictError) as raised:
                transactions[name].commit()
            assert raised.value.table == "t" and raised.value.keys is not None, name
            assert raised.value.keys["k"].to_pylist() == [key], name
        assert rows(table) == before
        for neighbour in neighbours:
            neighbour.commit()

    if move is _frozen:
        flush(db._writer(), phase=lambda name: commit_all() if name == "written" else None)
    else:
        commit_all()
    changed = {key - 1 for key in changes.values()}
    assert rows(table) == [(k, 9 if k in changed else v) for k, v in before]
    assert db.check().ok


def test_a_new_key_conflicts_with_the_same_new_key(db: Database) -> None:
    """Both transactions insert the key. It conflicts also if the key existed earlier."""
    table = db.create_table("t", {"k": "int64", "v": "int64"}, "k")
    for moved in (lambda: None, table.flush, table.compact):
        for inserted in (True, False):
            transaction = db.transaction()
            transaction["t"].upsert([(5, 1)])
            table.insert([(5, 2)])
            if not inserted:
                table.delete(5)
            moved()
            with pytest.raises(ConflictError, match="k=5 "):
                transaction.commit()
            assert rows(table) == ([(5, 2)] if inserted else [])
            table.delete(5, on_missing="ignore")


def test_many_keys_and_many_changes(db: Database) -> None:
    """Keys and changes are in several rowsets. The error has each conflicting key."""
    chance = random.Random(1)
    table = db.create_table(
        "t", {"k": "int64", "v": "int64", "w": "int64"}, "k", [nyala.hash_partition("k", buckets=3)]
    )
    for low in (0, 1000, 500):  # the third overlaps the first two
        table.upsert([(k, 0, 0) for k in range(low, low + 1000)])
        table.flush()
    for moved in (lambda: None, table.flush, table.compact):
        transaction = db.transaction()
        changed = set(chance.sample(range(2000), 300))
        table.update([{"k": k, "v": 1} for k in changed if k % 2])
        moved()
        table.update([{"k": k, "w": 1} for k in changed if not k % 2])
        moved()
        written = chance.sample(range(2000), 400)
        transaction["t"].update([{"k": k, "v": 2} for k in written])
        with pytest.raises(ConflictError) as raised:
            transaction.commit()
        expected = changed & set(written)
        assert raised.value.keys is not None and len(expected) < 100
        assert set(raised.value.keys["k"].to_pylist()) == expected
        assert f"and {len(expected) - 1} other keys" in str(raised.value)
        with db.transaction() as other:
            other["t"].update([{"k": k, "v": 3} for k in written])
        with db.transaction() as other:  # no change after the begin
            other["t"].delete([k for k in written if k in expected])
        table.upsert([(k, 0, 0) for k in written])


def test_keys_that_had_no_effect_are_checked_too(db: Database) -> None:
    """Keys whose write had no effect are checked too.

    Otherwise the commit could treat them differently from the transaction.
    """
    table = db.create_table("t", {"k": "int64", "v": "int64"}, "k")
    table.insert([(1, 0), (2, 0)])
    for write in (
        lambda t: t.insert([(1, 9), (7, 9)], on_conflict="ignore"),
        lambda t: t.insert([(1, 9), (7, 9)], errors="collect"),
        lambda t: (t.insert([(7, 9)]), t.delete(1), t.insert([(1, 0)])),
    ):
        transaction = db.transaction()
        write(transaction["t"])
        table.upsert([(1, 0)])
        with pytest.raises(ConflictError, match="k=1 "):
            transaction.commit()
        assert rows(table) == [(1, 0), (2, 0)]


@pytest.mark.parametrize("operation", ["insert", "upsert", "update", "delete"])
def test_a_conflict_with_a_load_is_found(folder: Path, operation: str) -> None:
    """Tasks in other processes wrote its files."""
    with loads.open_with_table(folder / "s") as db:
        db["t"].insert([(1, 1, "a"), (2, 2, "a"), (3, 3, "a")])
        db.flush()
        k = 9 if operation == "insert" else 1
        for moved in (lambda: None, db["t"].compact):
            loser, other = db.transaction(), db.transaction()
            loser["t"].upsert([(k, 7, "b")])
            other["t"].update([{"k": 3, "v": 7}])
            data = {"k": [k, 2]} if operation == "delete" else {"k": [k], "v": [5], "w": ["job"]}
            loads.run(db, operation, data)
            moved()
            before = loads.content(db)
            with pytest.raises(ConflictError, match=f"k={k} after"):
                loser.commit()
            assert loads.content(db) == before
            other.commit()
            with db.transaction() as tx:
                tx["t"].upsert([(1, 1, "a"), (2, 2, "a")])
                tx["t"].delete([9], on_missing="ignore")


# ── the pin ─────────────────────────────────────────────────────────────────────────────────────────────────


def _oldest(db: Database) -> int:
    return db._writer().history_cut(db._writer().root.table("t").entry)


def test_the_oldest_open_transaction_keeps_the_history(db: Database, clock: ManualClock) -> None:
    db.create_table("t", {"k": "int64", "v": "int64"}, "k", history=0.0).insert([(1, 1)])
    first = db.transaction()
    clock.advance(1)
    db["t"].update([{"k": 1, "v": 2}])
    second = db.transaction()
    clock.advance(1)
    db["t"].update([{"k": 1, "v": 3}])
    assert _oldest(db) == first.timestamp
    first.commit()
    assert _oldest(db) == second.timestamp
    with second:
        assert second["t"][1] == {"k": 1, "v": 2}
    assert _oldest(db) > second.timestamp
    db["t"].vacuum()
    with pytest.raises(HistoryExpiredError):
        db["t"].scan(at=second.timestamp).count()


@pytest.mark.parametrize("end", ["commit", "rollback", "conflict", "error"])
def test_the_end_of_a_transaction_releases_the_history(db: Database, clock: ManualClock, end: str) -> None:
    table = db.create_table("t", {"k": "int64", "v": "int64"}, "k", history=0.0)
    table.insert([(1, 1)])
    try:
        with db.transaction() as transaction:
            transaction["t"].update([{"k": 1, "v": 2}])
            if end == "rollback":
                transaction.rollback()
            elif end == "error":
                raise ZeroDivisionError
            else:
                clock.advance(1)
                if end == "conflict":
                    other = threading.Thread(target=table.update, args=([{"k": 1, "v": 3}],))
                    other.start()
                    other.join()
    except (ConflictError, ZeroDivisionError):
        assert end in ("conflict", "error")
    assert not db._writer().pins.held
    clock.advance(1)
    db["t"].update([{"k": 1, "v": 2}])
    assert _oldest(db) > transaction.timestamp


def test_an_idle_transaction_ends_and_releases_the_history(db: Database, clock: ManualClock) -> None:
    table = db.create_table("t", {"k": "int64", "v": "int64"}, "k", history=0.0)
    table.insert([(1, 1)])
    idle = db.transaction(timeout=10)
    clock.advance(1)
    table.update([{"k": 1, "v": 1}])
    busy = db.transaction(timeout=10)
    clock.advance(1)
    table.update([{"k": 1, "v": 1}])
    assert _oldest(db) == idle.timestamp
    for _ in range(3):
        clock.advance(9)
        assert busy["t"].count() == 1
    assert _oldest(db) == busy.timestamp
    with pytest.raises(nyala.TransactionEndedError, match="idle for more than 10 s and was rolled back"):
        idle["t"].count()
    with pytest.raises(nyala.TransactionEndedError, match="idle for more than 10 s"):
        idle.commit()
    busy["t"].update([{"k": 1, "v": 2}])
    clock.advance(10.1)
    with pytest.raises(nyala.TransactionEndedError, match=r"db\.transaction\(timeout=…\)"):
        busy.commit()
    assert rows(table) == [(1, 1)] and not db._writer().pins.held


def test_a_commit_after_the_history_was_discarded_is_refused(db: Database, clock: ManualClock) -> None:
    """The pin may end while the commit waits for the commit lock."""
    table = db.create_table("t", {"k": "int64", "v": "int64"}, "k", history=0.0)
    table.insert([(1, 1)])
    transaction = db.transaction()
    transaction["t"].update([{"k": 1, "v": 2}])
    transaction._open._pin.use = lambda: True  # type: ignore[method-assign]
    db._writer().pins.held.clear()
    clock.advance(1)
    table.update([{"k": 1, "v": 3}])
    clock.advance(1)
    table.compact(), table.vacuum()
    with pytest.raises(ConflictError, match="lost history after"):
        transaction.commit()
    assert rows(table) == [(1, 3)]
