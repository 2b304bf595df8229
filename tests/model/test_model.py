"""The store against a plain dictionary of versions: any operations, at every moment of the past, through
flush, every kind of compaction with writes between its phases, kill and reopen.

The model is, per table and key, a list of (timestamp, row or None). Whatever the store says at a timestamp
must be what the dictionary says: scans with and without predicates on updated columns, in key order, single
rows, what a reader process would see, what changed between two moments, and snapshots that were pinned long
ago. The table `u` keeps a twentieth of a second of history: older moments are refused. Keys are few, so that
every key meets every phase. Runs twice: with an integer key in one tablet, and with a key of text and
integer in hash and range partitions.

A failure prints its steps; what was a bug becomes a script under tests/scripts.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import nyala
from nyala.database import Database, Snapshot
from nyala.delta.run import LIVENESS
from nyala.env import SYSTEM
from nyala.errors import HistoryExpiredError, WriteError
from nyala.mvcc.timestamp import from_physical
from nyala.rowset import disk_rowset
from nyala.tablet.care import compact_deltas
from nyala.tablet.compaction import compact, run_here
from nyala.tablet.compaction_plans import ExpirePlan, MajorPlan, MergePlan, MinorPlan, Plan
from nyala.tablet.reader_store import ReaderStore
from tests.support import open_database

Row = dict[str, Any]
SHARED_MEMORY = "/dev/shm"
NOW = 2**63 - 1
VALUES = st.one_of(st.none(), st.integers(0, 3))
SHORT_HISTORY_US = 50_000
HISTORIES = {"t": None, "u": SHORT_HISTORY_US / 1e6}


class Model:
    """What a table should hold: every version of every key."""

    def __init__(self, key_names: tuple[str, ...]) -> None:
        self.key_names = key_names
        self.versions: dict[tuple[Any, ...], list[tuple[int, Row | None]]] = {}

    def at(self, timestamp: int) -> dict[tuple[Any, ...], Row]:
        out = {}
        for key, versions in self.versions.items():
            row = next((row for stamp, row in reversed(versions) if stamp <= timestamp), None)
            if row is not None:
                out[key] = row
        return out

    def apply(
        self, operation: str, rows: list[Row], now: dict[tuple[Any, ...], Row], ignore: bool
    ) -> list[str]:
        """Apply rows in order to the state `now`; returns the code of each row that failed."""
        failed = []
        for row in rows:
            key = tuple(row[name] for name in self.key_names)
            there = now.get(key)
            if operation == "insert" and there is not None:
                failed += [] if ignore else ["already-present"]
            elif operation in ("update", "delete") and there is None:
                failed += [] if ignore else ["not-found"]
            elif operation == "delete":
                del now[key]
            else:
                now[key] = {"a": None, "b": None, "c": 7, **(there or {}), **row}
        return failed

    def commit(self, timestamp: int, now: dict[tuple[Any, ...], Row]) -> None:
        before = self.at(NOW)
        for key in before.keys() | now.keys():
            if before.get(key) != now.get(key):
                self.versions.setdefault(key, []).append((timestamp, now.get(key)))


class StoreMachine(RuleBasedStateMachine):
    """Steps on a store and on the model. Subclasses say which tables."""

    key_names: ClassVar[tuple[str, ...]]
    keys: ClassVar[st.SearchStrategy[Row]]
    direct_commit_bytes: ClassVar[int] = 64 << 20

    @classmethod
    def make_table(cls, db: Database, name: str) -> None:
        raise NotImplementedError

    @initialize()
    def open(self) -> None:
        # In memory where the system has such a place: what the disk does at a sync is not what is tested here.
        self.folder = Path(
            tempfile.mkdtemp(
                prefix="nyala-model-", dir=SHARED_MEMORY if os.path.isdir(SHARED_MEMORY) else None
            )
        )
        self.generation = 0
        self.db = self._open()
        self.models = {name: Model(self.key_names) for name in ("t", "u")}
        for name in self.models:
            self.make_table(self.db, name)
        self.moments = [self.db.now()]
        self.pinned: list[tuple[Snapshot, dict[str, list[Row]]]] = []

    def _path(self) -> Path:
        return self.folder / str(self.generation)

    def _open(self) -> Database:
        return open_database(self._path(), direct_commit_bytes=self.direct_commit_bytes)

    def teardown(self) -> None:
        if hasattr(self, "db"):
            self.db.close()
            shutil.rmtree(self.folder)

    # ------------------------------------------------------------------------------------------ writes

    def _rows(self, data: st.DataObject, operation: str) -> list[Row]:
        keys = data.draw(st.lists(self.keys, min_size=1, max_size=5))
        if operation == "delete":
            return [dict(key) for key in keys]
        names = data.draw(st.sampled_from([("a",), ("b",), ("a", "b"), ("a", "b", "c"), ("c",)]))
        value = {"a": VALUES, "b": VALUES, "c": st.integers(0, 3)}
        return [{**key, **{name: data.draw(value[name]) for name in names}} for key in keys]

    @rule(
        data=st.data(),
        table=st.sampled_from(["t", "t", "u"]),
        operation=st.sampled_from(["insert", "upsert", "update", "delete"]),
        ignore=st.booleans(),
        collect=st.booleans(),
    )
    def write(self, data: st.DataObject, table: str, operation: str, ignore: bool, collect: bool) -> None:
        self._write(data, table, operation, ignore, collect)

    def _write(self, data: st.DataObject, table: str, operation: str, ignore: bool, collect: bool) -> None:
        rows = self._rows(data, operation)
        model = self.models[table]
        now = model.at(NOW)
        failed = model.apply(operation, rows, now, ignore)
        options: dict[str, Any] = {"errors": "collect" if collect else "raise"}
        if operation == "insert":
            options["on_conflict"] = "ignore" if ignore else "error"
        elif operation != "upsert":
            options["on_missing"] = "ignore" if ignore else "error"
        try:
            result = getattr(self.db[table], operation)(rows, **options)
        except WriteError as error:
            assert not collect and error.errors.column("code").to_pylist() == failed
            return
        assert result.errors.column("code").to_pylist() == failed and (collect or not failed)
        assert result.inserted + result.updated + result.deleted + result.ignored + len(failed) == len(rows)
        model.commit(result.timestamp, now)
        self.moments.append(result.timestamp)

    @rule(data=st.data())
    def batch(self, data: st.DataObject) -> None:
        """Several operations on both tables at once: one timestamp, all or nothing."""
        steps = data.draw(
            st.lists(
                st.tuples(
                    st.sampled_from(["t", "u"]), st.sampled_from(["insert", "upsert", "update", "delete"])
                ),
                min_size=2,
                max_size=4,
            )
        )
        now = {name: model.at(NOW) for name, model in self.models.items()}
        failed: list[str] = []
        planned = []
        for name, operation in steps:
            rows = self._rows(data, operation)
            failed += self.models[name].apply(operation, rows, now[name], False)
            planned.append((name, operation, rows))
        try:
            with self.db.batch() as batch:
                for name, operation, rows in planned:
                    getattr(batch, operation)(name, rows)
        except WriteError:
            assert failed
            return
        assert not failed
        (timestamp,) = {result.timestamp for result in batch.results}
        for name, model in self.models.items():
            model.commit(timestamp, now[name])
        self.moments.append(timestamp)

    @rule(table=st.sampled_from(["t", "u"]), value=st.integers(0, 3))
    def delete_where(self, table: str, value: int) -> None:
        now = self.models[table].at(NOW)
        gone = [key for key, row in now.items() if row["a"] == value]
        result = self.db[table].delete(where=f"a = {value}")
        assert result.deleted == len(gone)
        for key in gone:
            del now[key]
        self.models[table].commit(result.timestamp, now)
        self.moments.append(result.timestamp)

    @rule(table=st.sampled_from(["t", "u"]), value=st.integers(0, 3))
    def update_where(self, table: str, value: int) -> None:
        now = self.models[table].at(NOW)
        result = self.db[table].update(set={"a": "c + 1", "b": None}, where=f"b <= {value} OR a IS NULL")
        for key, row in now.items():
            if (row["b"] is not None and row["b"] <= value) or row["a"] is None:
                now[key] = {**row, "a": row["c"] + 1, "b": None}
        self.models[table].commit(result.timestamp, now)
        self.moments.append(result.timestamp)

    # ------------------------------------------------------------------------------------------ phases

    @rule(table=st.sampled_from(["t", "u", None]))
    def flush(self, table: str | None) -> None:
        if table is None:
            self.db.flush()
        else:
            self.db[table].flush()

    @rule()
    def compact_deltas(self) -> None:
        compact_deltas(self.db._writer())
        self.db._writer().collect_garbage()

    @precondition(lambda self: any(tablet.rowsets for _, tablet in self.db._writer().root.tablets()))
    @rule(
        data=st.data(), writes=st.lists(st.sampled_from(["insert", "upsert", "update", "delete"]), max_size=4)
    )
    def compact_something(self, data: st.DataObject, writes: list[str]) -> None:
        """Any plan at all, with writes to the same keys, flushes and commits of files between its phases."""
        store = self.db._writer()
        where = [(table, tablet) for table, tablet in store.root.tablets() if tablet.rowsets]
        table, tablet = data.draw(st.sampled_from(where), label="tablet")
        rowset = data.draw(st.sampled_from(tablet.rowsets), label="rowset")
        plan: Plan
        match data.draw(
            st.sampled_from(["merge", "merge", "major", "minor", "undo", "expire"]), label="kind"
        ):
            case "merge":
                ids = data.draw(
                    st.lists(st.sampled_from([r.id for r in tablet.rowsets]), min_size=1, unique=True)
                )
                plan = MergePlan(tuple(ids), 1.0, data.draw(st.integers(1, 3)))
            case "major":
                columns = [*(c.id for c in table.schema.columns[table.schema.key_count :]), LIVENESS]
                some = data.draw(st.lists(st.sampled_from(columns), min_size=1, unique=True))
                plan = MajorPlan(rowset.id, tuple(sorted(some)), 1.0)
            case "expire":
                plan = ExpirePlan(tuple(r.id for r in tablet.rowsets), 1.0)
            case kind:
                first = data.draw(st.integers(0, 3))
                files = slice(first, first + data.draw(st.integers(2, 4)))
                plan = MinorPlan(rowset.id, files, 1.0, "undo" if kind == "undo" else "redo")

        def phase(name: str) -> None:
            for operation in writes:
                self._write(data, data.draw(st.sampled_from(["t", "u"])), operation, True, True)
                if data.draw(st.integers(0, 3)) == 0:
                    self.db.flush()

        compact(store, table.id, tablet.id, plan, run_here(store), phase=phase)

    @rule(name=st.sampled_from(["t", "u"]), vacuum=st.booleans())
    def compact_all(self, name: str, vacuum: bool) -> None:
        """compact() ends with rowsets that do not overlap and no REDO; vacuum() changes no answer."""
        if vacuum:
            self.db[name].vacuum()
            return
        self.db[name].compact()
        for tablet in self.db._writer().root.table(name).tablets:
            assert not any(rowset.redo or rowset.deltas.record_count for rowset in tablet.rowsets)
            by_key = sorted(tablet.rowsets, key=lambda rowset: rowset.meta.key_min)
            assert all(left.meta.key_max < right.meta.key_min for left, right in pairwise(by_key))

    @rule()
    def pin(self) -> None:
        """A snapshot is taken, to be looked at again after whatever comes."""
        snapshot = self.db.snapshot()
        self.pinned.append((snapshot, {name: self._expect(name, NOW) for name in self.models}))

    @precondition(lambda self: self.pinned)
    @rule(data=st.data())
    def what_was_pinned_stays(self, data: st.DataObject) -> None:
        snapshot, expected = data.draw(st.sampled_from(self.pinned))
        for name, wanted in expected.items():
            assert snapshot[name].scan(order_by_key=True).to_arrow().to_pylist() == wanted

    @rule()
    def reopen(self) -> None:
        self.pinned = []
        self.db.close()
        self.db = self._open()

    @rule()
    def kill(self) -> None:
        """What a killed process leaves: everything that it handed to the system, and nothing put in order."""
        old = self.db
        self.pinned = []
        shutil.copytree(
            self._path(), self.folder / str(self.generation + 1), ignore=shutil.ignore_patterns("*.sock")
        )
        old.close()
        shutil.rmtree(self._path())
        self.generation += 1
        self.db = self._open()

    # ------------------------------------------------------------------------------------------ reads

    def _expect(self, name: str, at: int) -> list[Row]:
        model = self.models[name].at(at)
        return [model[key] for key in sorted(model)]

    @invariant()
    def newest_rows_are_right(self) -> None:
        if not hasattr(self, "db"):
            return
        for name in self.models:
            assert self._scan(self.db, name, None) == self._expect(name, NOW)

    def _scan(self, db: Any, name: str, at: int | None, where: str | None = None) -> list[Row]:
        found: list[Row] = db[name].scan(at=at, where=where, order_by_key=True).to_arrow().to_pylist()
        return found

    @precondition(lambda self: len(self.moments) > 1)
    @rule(data=st.data(), name=st.sampled_from(["t", "u"]))
    def the_past_is_right(self, data: st.DataObject, name: str) -> None:
        at = data.draw(st.sampled_from(self.moments))
        for moment in (at, at - 1):
            with self._maybe_expired(name, moment):
                assert self._scan(self.db, name, moment) == self._expect(name, moment)

    @contextlib.contextmanager
    def _maybe_expired(self, name: str, at: int) -> Iterator[None]:
        """The moment may be older than the table's history; then it is refused, and only then."""
        try:
            yield
        except HistoryExpiredError as error:
            now_us = SYSTEM.clock.now_us()
            assert name == "u" and at < from_physical(now_us - SHORT_HISTORY_US), (name, at, now_us)
            assert "table 'u' can be read back to" in str(error)

    @precondition(lambda self: len(self.moments) > 1)
    @rule(data=st.data(), name=st.sampled_from(["t", "u"]))
    def changes_lead_from_one_moment_to_another(self, data: st.DataObject, name: str) -> None:
        """Net: applied to the rows at `since` they give the rows at `until`. All: the versions that there were."""
        since, until = sorted(data.draw(st.lists(st.sampled_from(self.moments), min_size=2, max_size=2)))
        with self._maybe_expired(name, since):
            net = self.db[name].changes(since, until).to_arrow().to_pylist()
            versions = self.db[name].changes(since, until, versions="all").to_arrow().to_pylist()
            state = self.models[name].at(since)
            changed = {
                key
                for key, versions_of in self.models[name].versions.items()
                if any(since < stamp <= until for stamp, _ in versions_of)
            }
            for row in net:
                kind, stamp = row.pop("_change_type"), row.pop("_commit_timestamp")
                key = tuple(row[column] for column in self.key_names)
                assert since < stamp <= until
                assert kind == (
                    "delete"
                    if key not in self.models[name].at(until)
                    else "update"
                    if key in state
                    else "insert"
                )
                if kind == "delete":
                    del state[key]
                else:
                    state[key] = row
            assert state == self.models[name].at(until)
            assert len({tuple(row[column] for column in self.key_names) for row in net}) == len(net)
            told = [
                (
                    row.pop("_commit_timestamp"),
                    tuple(row[column] for column in self.key_names),
                    row.pop("_change_type"),
                    row,
                )
                for row in versions
            ]
            assert [part[:2] for part in told] == sorted(part[:2] for part in told)
            assert {key for _, key, _, _ in told} >= changed
            for stamp, key, kind, row in told:
                there = self.models[name].at(stamp).get(key)
                before = self.models[name].at(stamp - 1).get(key)
                assert kind == ("delete" if there is None else "insert" if before is None else "update")
                assert there is None or there == row

    @precondition(lambda self: len(self.moments) > 1)
    @rule(data=st.data(), name=st.sampled_from(["t", "u"]), value=st.integers(0, 3))
    def predicates_in_the_past_are_right(self, data: st.DataObject, name: str, value: int) -> None:
        at = data.draw(st.sampled_from(self.moments))
        with self._maybe_expired(name, at):
            self._predicates(name, at, value)

    def _predicates(self, name: str, at: int, value: int) -> None:
        expected = self._expect(name, at)
        for where, holds in (
            (f"a = {value}", lambda row: row["a"] == value),
            (f"a > {value} OR b IS NULL", lambda row: (row["a"] or 0) > value or row["b"] is None),
            (f"NOT (c IN ({value}, 7))", lambda row: row["c"] not in (value, 7)),
        ):
            wanted = [row for row in expected if holds(row)]
            assert self._scan(self.db, name, at, where) == wanted
            assert self.db[name].count(where, at) == len(wanted)

    @rule(data=st.data(), name=st.sampled_from(["t", "u"]))
    def single_rows_are_right(self, data: st.DataObject, name: str) -> None:
        at = data.draw(st.sampled_from(self.moments))
        keys = data.draw(st.lists(self.keys, min_size=1, max_size=6))
        model = self.models[name].at(at)
        wanted = [model[tuple(key.values())] for key in keys if tuple(key.values()) in model]
        with self._maybe_expired(name, at):
            assert self.db[name].get_many(keys, at=at).to_pylist() == wanted

    @rule(data=st.data(), name=st.sampled_from(["t", "u"]))
    def a_reader_process_sees_the_same(self, data: st.DataObject, name: str) -> None:
        at = data.draw(st.sampled_from(self.moments))
        with Database(ReaderStore.open(SYSTEM, str(self._path()), 64 << 20)) as reader:
            assert reader.now() == self.db.now()
            with self._maybe_expired(name, at):
                assert self._scan(reader, name, at) == self._expect(name, at)

    @rule()
    def a_check_finds_nothing(self) -> None:
        report = self.db.check()
        assert report.ok, report.problems


class IntegerKeyMachine(StoreMachine):
    """One tablet, a key of one integer."""

    key_names = ("k",)
    keys = st.builds(lambda k: {"k": k}, st.integers(-2, 3))

    @classmethod
    def make_table(cls, db: Database, name: str) -> None:
        columns = {
            "k": "int32",
            "a": "int64",
            "b": "int8",
            "c": nyala.column("int64", nullable=False, default=7),
        }
        db.create_table(name, columns, "k", history=HISTORIES[name])


class CompositeKeyMachine(StoreMachine):
    """Hash and range partitions, a key of text and integer, direct commits from a few hundred bytes on."""

    key_names = ("s", "n")
    keys = st.builds(
        lambda s, n: {"s": s, "n": n}, st.sampled_from(["", "a", "a\0", "é", "zz"]), st.integers(-1, 1)
    )
    direct_commit_bytes = 220

    @classmethod
    def make_table(cls, db: Database, name: str) -> None:
        columns = {
            "s": "string", "n": "int64", "a": "int64", "b": "int8",
            "c": nyala.column("int64", nullable=False, default=7),
        }  # fmt: skip
        partitions = [nyala.hash_partition("s", buckets=2), nyala.range_partition("n", splits=[0])]
        db.create_table(name, columns, ["s", "n"], partitions, history=HISTORIES[name])


@pytest.mark.parametrize("machine", [IntegerKeyMachine, CompositeKeyMachine])
def test_the_store_is_the_model(machine: type[StoreMachine], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every read at every moment gives what a dictionary of versions gives, whatever happened before."""
    monkeypatch.setattr(disk_rowset, "_SCAN_ROWS_MIN", 1)  # small rowsets remember what large ones do
    from hypothesis.stateful import run_state_machine_as_test

    profile = settings()
    examples = max(10, profile.max_examples // 3)
    run_state_machine_as_test(
        machine, settings=settings(profile, max_examples=examples, stateful_step_count=30)
    )
