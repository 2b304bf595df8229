"""The store against a plain dictionary of versions: any operations, at every moment of the past, through
flush, kill and reopen.

The model is, per table and key, a list of (timestamp, row or None). Whatever the store says at a timestamp
must be what the dictionary says: scans with and without predicates on updated columns, in key order, single
rows, and what a reader process would see. Keys are few, so that every key meets every phase. Runs twice:
with an integer key in one tablet, and with a key of text and integer in hash and range partitions.

A failure prints its steps; what was a bug becomes a script under tests/scripts.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import nyala
from nyala.database import Database
from nyala.env import SYSTEM
from nyala.errors import WriteError
from nyala.tablet.delta_compaction import compact_deltas
from nyala.tablet.reader_store import ReaderStore
from tests.support import open_database

Row = dict[str, Any]
SHARED_MEMORY = "/dev/shm"
NOW = 2**63 - 1
VALUES = st.one_of(st.none(), st.integers(0, 3))


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

    @rule()
    def reopen(self) -> None:
        self.db.close()
        self.db = self._open()

    @rule()
    def kill(self) -> None:
        """What a killed process leaves: everything that it handed to the system, and nothing put in order."""
        old = self.db
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
        assert self._scan(self.db, name, at) == self._expect(name, at)
        assert self._scan(self.db, name, at - 1) == self._expect(name, at - 1)

    @precondition(lambda self: len(self.moments) > 1)
    @rule(data=st.data(), name=st.sampled_from(["t", "u"]), value=st.integers(0, 3))
    def predicates_in_the_past_are_right(self, data: st.DataObject, name: str, value: int) -> None:
        at = data.draw(st.sampled_from(self.moments))
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
        assert self.db[name].get_many(keys, at=at).to_pylist() == wanted

    @rule(data=st.data(), name=st.sampled_from(["t", "u"]))
    def a_reader_process_sees_the_same(self, data: st.DataObject, name: str) -> None:
        at = data.draw(st.sampled_from(self.moments))
        with Database(ReaderStore.open(SYSTEM, str(self._path()), 64 << 20)) as reader:
            assert reader.now() == self.db.now()
            assert self._scan(reader, name, at) == self._expect(name, at)

    @rule()
    def every_structure_keeps_its_invariants(self) -> None:
        for _, tablet in self.db._writer().root.tablets():
            for rowset in tablet.all_rowsets():
                rowset.check()


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
        db.create_table(name, columns, "k")


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
        db.create_table(name, columns, ["s", "n"], partitions)


@pytest.mark.parametrize("machine", [IntegerKeyMachine, CompositeKeyMachine])
def test_the_store_is_the_model(machine: type[StoreMachine]) -> None:
    """Every read at every moment gives what a dictionary of versions gives, whatever happened before."""
    from hypothesis.stateful import run_state_machine_as_test

    profile = settings()
    examples = max(10, profile.max_examples // 3)
    run_state_machine_as_test(
        machine, settings=settings(profile, max_examples=examples, stateful_step_count=30)
    )
