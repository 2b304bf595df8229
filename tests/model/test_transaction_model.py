"""Concurrent transactions, compared with a model of snapshot isolation in which the first commit wins.

    model    the rows of each table, when each key last changed, and for each transaction its snapshot,
             its rows, and the keys that its statements named
    steps    begin, statements, reads, commit and rollback of up to four transactions at once; writes
             outside of them, also as files; restores; alterations; flushes and compactions, with
             other steps between their phases; vacuums, also of a table without history; waiting

Each read must return the snapshot with the transaction's own writes. Each commit must succeed or
raise `ConflictError` as the model says, with the counts of its statements. The tables must have the
model's rows after each commit, and after the store was closed and opened again.

A failure prints its seed, and `run_history(seed)` repeats it. Eight histories are enough to find each
of these faults in the code: a check of conflicts that skips frozen memory, UNDO files, REDO files or
dead rows; history that is not kept for a transaction; a look-up at the newest moment; a
DeltaMemStore that transactions share; timestamps of a transaction that the clock did not reserve.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import nyala
from nyala.api.database import Database
from nyala.env import Env, system_files
from nyala.errors import ConflictError, WriteError
from nyala.tablet.compaction.lifecycle import compact, run_here
from nyala.tablet.compaction.plans import MajorPlan, MergePlan, MinorPlan, Plan
from nyala.tablet.flush.lifecycle import flush, flush_deltas
from nyala.tablet.store import Store, StoreOptions
from nyala.testing.clock import ManualClock, SeededRandomness
from tests.processes import Child
from tests.sampled import each, is_long_run
from tests.support import folder_in_memory

Row = tuple[int | None, int | None]
State = dict[int, Row]
KEYS = 10
# Small enough that many batches are committed as files.
DIRECT_COMMIT_BYTES = 150
TABLES = {
    "t": {"partition_by": (), "history": "forever"},
    "h": {"partition_by": [nyala.hash_partition("k", buckets=2)], "history": 0.0},
    "r": {"partition_by": [nyala.range_partition("k", splits=[5])], "history": "forever"},
}


@dataclass
class TableModel:
    rows: State = field(default_factory=dict)
    changed: dict[int, int] = field(default_factory=dict)  # by key, the number of its last commit
    shape: int = 0  # alterations so far
    moments: list[tuple[int, State]] = field(default_factory=list)  # timestamp and rows after each commit


@dataclass
class Open:
    """An open transaction of the store, and its model."""

    tx: Any
    begun: int  # commits before its snapshot
    rows: dict[str, State]
    shapes: dict[str, int]
    done: list[tuple[str, Outcome]] = field(default_factory=list)  # table and outcome of each statement
    scans: list[tuple[Any, State]] = field(
        default_factory=list
    )  # taken before later statements, with their rows


@dataclass
class Outcome:
    """The effects of a statement, as the model computes them."""

    rows: State
    counts: tuple[int, int, int, int]  # inserted, updated, deleted, ignored
    codes: list[str]  # of the failing rows
    named: set[int]
    effects: set[int]  # keys that were inserted, updated or deleted


Item = tuple[str, dict[str, Any]]
"""(operation, row). The operation has its name in `Table.apply`, or is "upsert when new.v > old.v"."""
WHEN = "upsert when new.v > old.v"


def outcome_of(state: State, items: list[Item]) -> Outcome:
    new, codes = dict(state), []
    inserted, updated, deleted, ignored = 0, 0, 0, 0
    named, effects = set(), set()
    for operation, row in items:
        k = row["k"]
        before = new.get(k)
        if operation == WHEN and before is not None and not _greater(row["v"], before[0]):
            ignored += 1  # the row has no effect at all
            continue
        named.add(k)
        if (before is None and operation.startswith(("update", "delete"))) or (
            before is not None and operation.startswith("insert")
        ):
            if operation.endswith("-ignore"):
                ignored += 1
            else:
                codes.append("not-found" if before is None else "already-present")
            continue
        effects.add(k)
        if operation.startswith("delete"):
            del new[k]
            deleted += 1
        else:
            v, w = before or (None, None)
            new[k] = (row.get("v", v), row.get("w", w))
            inserted, updated = inserted + (before is None), updated + (before is not None)
    return Outcome(new, (inserted, updated, deleted, ignored), codes, named, effects)


def _greater(left: int | None, right: int | None) -> bool:
    return left is not None and right is not None and left > right


class History:
    """One random history of a store and its model."""

    kills = 0  # the weight of the step that kills the writer

    def __init__(self, seed: int, folder: Path) -> None:
        self.chance = random.Random(seed)
        self.folder = folder
        self.clock = ManualClock()
        self.randomness = SeededRandomness(seed)
        self.tables = {name: TableModel() for name in TABLES}
        self.commits = 0
        self.open: list[Open] = []
        self.done: list[str] = []  # what happened, for the failure's report
        self.direct_commit_bytes = self.chance.choice([1, DIRECT_COMMIT_BYTES, 1 << 30, 1 << 30])
        self.seen = dict.fromkeys(("commit", "conflict", "files", "between"), 0)
        self.db = self._connect()
        for name, options in TABLES.items():
            self.db.create_table(name, {"k": "int64", "v": "int64", "w": "int64"}, "k", **options)  # type: ignore[arg-type]

    def _connect(self) -> Database:
        env = Env(system_files(), self.clock, self.randomness)
        options = StoreOptions(maintenance=False, direct_commit_bytes=self.direct_commit_bytes)
        return Database(Store.open(env, str(self.folder / "s"), options))

    # ── steps ───────────────────────────────────────────────────────────────────────────────────────────────

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
        for transaction in list(self.open):
            self._commit(transaction)
        self.close()
        self.db = self._connect()
        self._compare()
        if self.db._store.read_only is False:
            assert self.db.check().ok

    def close(self) -> None:
        self.db.close()

    def step(self) -> None:
        work: list[tuple[int, Callable[[], None]]] = [
            (8, self._begin), (24, self._statement), (6, self._read), (8, self._end), (16, self._write),
            (2, self._restore), (16, self._move), (2, self._alter), (3, lambda: self._wait(0.01)),
            (self.kills, self._kill),
        ]  # fmt: skip
        (chosen,) = self.chance.choices([act for _, act in work], [weight for weight, _ in work])
        chosen()

    def _name(self) -> str:
        return self.chance.choice([*TABLES, "h"])

    def _begin(self) -> None:
        if len(self.open) < 4:
            rows = {name: dict(table.rows) for name, table in self.tables.items()}
            shapes = {name: table.shape for name, table in self.tables.items()}
            self.open.append(Open(self.db.transaction(), self.commits, rows, shapes))
            self.done.append(f"begin {id(self.open[-1]) % 1000}")

    def _some_keys(self, operation: str, state: State) -> list[int]:
        keys = self.chance.sample(range(KEYS), self.chance.choice([1, 1, 2, 3, 8]))
        if self.chance.randrange(4):  # mostly what succeeds
            fit = [k for k in keys if (k in state) == (operation in ("update", "delete"))]
            keys = fit if fit and operation != "upsert" else keys
        return keys + keys[:1] if operation == "upsert" and not self.chance.randrange(5) else keys

    def _row(self, operation: str, k: int, columns: tuple[str, ...] | None = None) -> dict[str, Any]:
        if operation.startswith("delete"):
            return {"k": k}
        columns = columns or self.chance.choice([("v",), ("w",), ("v", "w")])
        return {"k": k} | {column: self.chance.choice([None, *range(9)]) for column in columns}

    def _do(self, table: Any, state: State) -> Outcome | None:
        """Execute a random statement; return its outcome, or None if it failed."""
        operation = self.chance.choice(
            ["insert", "upsert", "upsert", "when", "update", "delete", "where", "where", "apply"]
        )
        how = self.chance.choice(["raise", "raise", "collect", "ignore"])
        options: dict[str, Any] = {"errors": "collect"} if how == "collect" else {}
        if operation == "where":
            return self._where(table, state)
        if operation == "apply":
            items = []
            for _ in range(self.chance.randrange(1, 9)):
                word = self.chance.choice(["insert", "upsert", "upsert", "update", "delete"])
                word += "-ignore" if word != "upsert" and self.chance.randrange(3) else ""
                items.append((word, self._row(word, self.chance.randrange(KEYS))))
            arguments: tuple[Any, ...] = (items,)
        else:
            columns = ("v",) if operation == "when" else self.chance.choice([("v",), ("w",), ("v", "w")])
            word = "upsert" if operation == "when" else operation
            rows = [self._row(word, k, columns) for k in self._some_keys(word, state)]
            if operation == "when":
                options["when"], word = "new.v > old.v", WHEN
            elif how == "ignore" and operation != "upsert":
                options["on_conflict" if operation == "insert" else "on_missing"] = "ignore"
                word += "-ignore"
            operation, items, arguments = (
                word.split()[0].split("-")[0],
                [(word, row) for row in rows],
                (rows,),
            )
        self.done.append(f"  {table!r}: {items} {how}")
        outcome = outcome_of(state, items)
        try:
            result = getattr(table, operation)(*arguments, **options)
        except WriteError as error:
            assert how != "collect" and error.errors is not None
            assert error.errors["code"].to_pylist() == outcome.codes != []
            return None
        assert how == "collect" or not outcome.codes
        assert result.errors["code"].to_pylist() == outcome.codes
        assert _counts(result) == outcome.counts
        return outcome

    def _where(self, table: Any, state: State) -> Outcome:
        low = self.chance.randrange(-1, 9)
        chosen = [k for k, (v, _) in state.items() if v is not None and v >= low]
        if self.chance.randrange(3):
            self.done.append(f"  {table!r}: update where v >= {low}")
            outcome = outcome_of(state, [("update", {"k": k, "w": (state[k][0] or 0) + 1}) for k in chosen])
            result = table.update(set={"w": nyala.expr("v + 1")}, where=f"v >= {low}")
        else:
            self.done.append(f"  {table!r}: delete where v >= {low}")
            outcome = outcome_of(state, [("delete", {"k": k}) for k in chosen])
            result = table.delete(where=f"v >= {low}")
        assert _counts(result) == outcome.counts
        return outcome

    def _statement(self) -> None:
        if self.open:
            transaction, name = self.chance.choice(self.open), self._name()
            self.done.append(f"in {id(transaction) % 1000}")
            outcome = self._do(transaction.tx[name], transaction.rows[name])
            if outcome is not None:
                transaction.rows[name] = outcome.rows
                transaction.done.append((name, outcome))
            self._read_one(transaction, name)

    def _read(self) -> None:
        if self.open:
            transaction = self.chance.choice(self.open)
            for name in TABLES:
                self._read_one(transaction, name)

    def _read_one(self, transaction: Open, name: str) -> None:
        table, state = transaction.tx[name], transaction.rows[name]
        how = self.chance.choice(["scan", "scan", "keep", "where", "count", "get", "get_many"])
        if how == "keep":
            transaction.scans.append((table.scan(["k", "v", "w"], order_by_key=True), state))
        elif how == "scan":
            assert _rows(table.scan(["k", "v", "w"], order_by_key=True)) == sorted(state.items())
        elif how == "where":
            found = _rows(table.scan(["k", "v", "w"], where="v >= 4 OR w IS NULL", order_by_key=True))
            chosen = {k: row for k, row in state.items() if (row[0] or 0) >= 4 or row[1] is None}
            assert found == sorted(chosen.items())
        elif how == "count":
            assert table.count() == len(state)
        elif how == "get":
            k = self.chance.randrange(KEYS)
            row = table.get(k, ["v", "w"])
            assert (row and (row["v"], row["w"])) == state.get(k)
        else:
            keys = self.chance.sample(range(KEYS), 6)
            found = table.get_many(keys, ["k", "v"]).to_pylist()
            assert [(row["k"], row["v"]) for row in found] == [(k, state[k][0]) for k in keys if k in state]

    def _end(self) -> None:
        if self.open and not self.chance.randrange(8):
            transaction = self.chance.choice(self.open)
            self.done.append(f"roll back {id(transaction) % 1000}")
            self.open.remove(transaction)
            transaction.tx.rollback()
        else:
            self._commit_one()

    def _commit_one(self) -> None:
        written = [transaction for transaction in self.open if transaction.done]
        if written:
            self._commit(self.chance.choice(written))

    def _commit(self, transaction: Open) -> None:
        self.open.remove(transaction)
        self.done.append(f"commit {id(transaction) % 1000}")
        written = {name for name, _ in transaction.done}
        conflicts: dict[str, set[int]] = {name: set() for name in written}
        effects: dict[str, set[int]] = {name: set() for name in written}
        for name, outcome in transaction.done:
            changed = self.tables[name].changed
            conflicts[name] |= {k for k in outcome.named if changed.get(k, 0) > transaction.begun}
            effects[name] |= outcome.effects
        altered = any(self.tables[name].shape != transaction.shapes[name] for name in written)
        expected = altered or any(conflicts.values())
        version = self._version()
        try:
            results = transaction.tx.commit()
        except ConflictError as error:
            assert expected or self._may_be_refused(transaction, error), f"no conflict was expected: {error}"
            if error.keys is not None and error.table in conflicts:
                assert set(error.keys["k"].to_pylist()) == conflicts[error.table]
            self.seen["conflict"] += 1
        else:
            assert not expected, f"a conflict was expected: {conflicts}, altered: {altered}"
            assert [_counts(result) for result in results] == [one.counts for _, one in transaction.done]
            after = {name: {**self.tables[name].rows} for name in written}
            for name, keys in effects.items():
                for k in keys:
                    after[name].pop(k, None)
                    if k in transaction.rows[name]:
                        after[name][k] = transaction.rows[name][k]
            self.seen["commit"] += 1
            self.seen["files"] += self._version() != version
            self._committed(after, effects)
        for scan, rows in transaction.scans:
            assert _rows(scan) == sorted(rows.items()), "a scan that was taken earlier"
        self._compare()

    def _version(self) -> int:
        return self.db._writer().state.version

    def _wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def _may_be_refused(self, transaction: Open, error: ConflictError) -> bool:
        return False

    def _kill(self) -> None:
        raise AssertionError("only where another process is the writer")

    # ── the others ──────────────────────────────────────────────────────────────────────────────────────────

    def _committed(self, after: dict[str, State], effects: dict[str, set[int]]) -> None:
        """Apply a commit to the model.

        A row that was written with equal values counts as changed. A row that was inserted and
        deleted does not.
        """
        self.commits += 1
        for name, rows in after.items():
            table = self.tables[name]
            for k in effects[name]:
                if k in table.rows or k in rows:
                    table.changed[k] = self.commits
            table.rows = rows
            table.moments.append((self.db.now(), dict(rows)))

    def _write(self) -> None:
        name = self._name()
        self.done.append("others")
        outcome = self._do(self.db[name], self.tables[name].rows)
        if outcome is not None:
            self._committed({name: outcome.rows}, {name: outcome.effects})

    def _restore(self) -> None:
        name = self.chance.choice(["t", "r"])
        table = self.tables[name]
        if not table.moments or table.shape:
            return
        to, state = self.chance.choice(table.moments)
        self.done.append(f"restore {name} to {to}")
        self.db[name].restore(to=to)
        changed = {k for k in {*table.rows, *state} if table.rows.get(k) != state.get(k)}
        self._committed({name: dict(state)}, {name: changed})

    def _alter(self) -> None:
        name = self._name()
        self.done.append(f"alter {name}")
        self.tables[name].shape += 1
        self.db[name].add_column(f"c{self.tables[name].shape}", "int64", default=7)

    def _between(self, phase: str) -> None:
        """Do up to three steps between the phases of a flush or compaction.

        Batches are not committed as files meanwhile, because they would wait for the flush lock.
        """
        self.db._writer().direct_commit_bytes = 1 << 30
        for _ in range(self.chance.randrange(5)):
            self.done.append(f"  in the middle ({phase})")
            self.seen["between"] += 1
            self.chance.choice(
                [self._begin, self._statement, self._commit_one, self._commit_one, self._write]
            )()
        self.db._writer().direct_commit_bytes = self.direct_commit_bytes

    def _move(self) -> None:
        name, store = self._name(), self.db._writer()
        table = store.root.table(name)
        how = self.chance.choice(
            ["flush", "flush", "flush all", "deltas", "plan", "plan", "plan", "compact", "vacuum", "vacuum"]
        )
        self.done.append(f"{how} {name}")
        match how:
            case "flush":
                flush(store, {tablet.id for tablet in table.tablets}, phase=self._between)
            case "flush all":
                flush(store, phase=self._between)
            case "deltas":
                with store.flush_lock:
                    flush_deltas(store, {rowset.id for tablet in table.tablets for rowset in tablet.rowsets})
            case "compact":
                self.db[name].compact()
            case "vacuum":
                self._wait(0.001)
                self.db[name].compact()
                self.db[name].vacuum()
            case "plan":
                tablet = self.chance.choice(table.tablets)
                plan = self._plan(tablet)
                if plan is not None:
                    compact(store, table.id, tablet.id, plan, run_here(store), phase=self._between)

    def _plan(self, tablet: Any) -> Plan | None:
        if not tablet.rowsets:
            return None
        rowset = self.chance.choice(tablet.rowsets)
        changed = tuple(sorted({number for file in rowset.redo for number in file.column_ids}))
        if len(rowset.redo) > 1 and self.chance.randrange(2):
            return MinorPlan(rowset.id, slice(0, len(rowset.redo)), 1.0, "redo")
        if changed and self.chance.randrange(2):
            return MajorPlan(rowset.id, changed, 1.0)
        some = [one.id for one in tablet.rowsets if one is rowset or self.chance.randrange(2)]
        return MergePlan(tuple(some), 1.0, self.chance.choice([1, 2]))

    def _compare(self) -> None:
        for name, table in self.tables.items():
            found = _rows(self.db[name].scan(["k", "v", "w"], order_by_key=True))
            assert found == sorted(table.rows.items()), name


class SharedHistory(History):
    """A history in a process that shares the store with a writer in another process.

    The writer is sometimes killed. Then this process is the writer, until its transactions have ended
    and another process has taken the lock.
    """

    kills = 2

    def _connect(self) -> Database:
        self.holder: Child | None = Child(self.folder / "s")
        self.holder.run("db = nyala.connect(path, maintenance=False)")
        self.killed = 0
        return nyala.connect(self.folder / "s", maintenance=False)

    def close(self) -> None:
        self.db.close()
        if self.holder is not None:
            self.holder.close()

    def _version(self) -> int:
        return 0

    def _wait(self, seconds: float) -> None:
        time.sleep(seconds / 10)

    def _kill(self) -> None:
        if self.holder is not None:
            self.done.append("kill the writer")
            self.holder.kill()
            self.holder.close()
            self.holder, self.killed = None, self.commits

    def _may_be_refused(self, transaction: Open, error: ConflictError) -> bool:
        """Whether a read may fail: the writer that kept the history was killed."""
        return self.holder is None and "may be gone" in str(error) and error.table == "h"

    def _move(self) -> None:
        name, how = self._name(), self.chance.choice(["flush", "compact", "vacuum"])
        self.done.append(f"{how} {name}")
        getattr(self.db[name], how)()
        self.seen["between"] += 1


def _rows(scan: Any) -> list[tuple[int, Row]]:
    return [(row["k"], (row["v"], row["w"])) for row in scan.to_arrow().to_pylist()]


def _counts(result: Any) -> tuple[int, int, int, int]:
    return result.inserted, result.updated, result.deleted, result.ignored


def run_history(seed: int, steps: int = 120, kind: type[History] = History) -> dict[str, int]:
    """Run one history, and return how often each event happened."""
    with folder_in_memory() as folder:
        history = kind(seed, folder)
        try:
            history.run(steps)
        except BaseException:
            print(f"seed {seed}:", *history.done, sep="\n")
            raise
        finally:
            history.close()
        return history.seen


@pytest.mark.parametrize("part", each(20, range(20)))
def test_transactions_agree_with_the_model(part: int) -> None:
    count = 100 if is_long_run() else 8
    seen = [run_history(seed) for seed in range(part * 100, part * 100 + count)]
    total = {what: sum(one[what] for one in seen) for what in seen[0]}
    assert all(total[what] >= 5 for what in total), f"the histories hardly met {total}"


@pytest.mark.parametrize("part", each(10, range(10)))
def test_transactions_of_a_process_that_shares_the_store(part: int) -> None:
    count = 20 if is_long_run() else 2
    seen = [run_history(seed, 90, SharedHistory) for seed in range(part * 20, part * 20 + count)]
    assert all(sum(one[what] for one in seen) for what in ("commit", "conflict"))
