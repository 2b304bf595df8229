"""A table that is altered all the time against a dictionary that knows what each cell should be.

The model keeps, per key, versions of rows as {column id: value}, and the columns that the table had from each moment
on. A cell that a row's version has not is the column's default of when it was added. Columns come, go, come back under
their old names, are renamed and widened, and range partitions are added and dropped, before, between and in the middle
of writes, flushes, compactions, kills and reopens; at every moment of the past the store must say what the dictionary
says, in the columns of then and in those of now, and refuse what went with its partition, and only that.

A failure prints its steps.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import nyala
from nyala.database import Database
from nyala.env import SYSTEM
from nyala.errors import HistoryExpiredError, NoPartitionError
from nyala.tablet.care import compact_deltas
from nyala.tablet.compaction import compact, run_here
from nyala.tablet.compaction_plans import MajorPlan, MergePlan, Plan
from nyala.tablet.flush import flush
from nyala.tablet.reader_store import ReaderStore
from tests.support import open_database

SHARED_MEMORY = "/dev/shm"
NOW = 2**63 - 1
DIRECT_COMMIT_BYTES = 1
RANGES = [(0, 2), (2, 4), (4, 6)]
INTEGERS = ["int8", "int16", "int32", "int64"]
NAMES = ["a", "b", "c"]
KINDS = ["add", "drop", "rename", "widen", "default", "key", "range+", "range-", "encoding"]


@dataclass(frozen=True)
class Column:
    """As in the model: type is an index into INTEGERS, or -1 for text."""

    id: int
    name: str
    type: int
    read: Any
    write: Any

    def value(self, data: st.DataObject) -> Any:
        if self.type < 0:
            return data.draw(st.sampled_from([None, "", "x", "yy"]))
        largest = 2 ** (8 * 2**self.type - 1) - 1
        return data.draw(st.sampled_from([None, 0, 1, largest, -largest - 1]))


@dataclass
class Range:
    lower: int
    upper: int
    created: int
    dropped: int = NOW
    held: bool = False


class AlterMachine(RuleBasedStateMachine):
    """Steps on a store and on the model."""

    @initialize(directly=st.booleans())
    def open(self, directly: bool) -> None:
        """directly: batches of some size are written as files and committed by the catalogue."""
        memory = SHARED_MEMORY if os.path.isdir(SHARED_MEMORY) else None
        self.folder = Path(tempfile.mkdtemp(prefix="nyala-alter-", dir=memory))
        self.generation = 0
        self.options = {"direct_commit_bytes": DIRECT_COMMIT_BYTES} if directly else {}
        self.db = self._open()
        self.db.create_table(
            "t", {"k": "int32", "a": "int8"}, "k",
            [nyala.hash_partition("k", buckets=2), nyala.range_partition("k", bounds=RANGES[:2])], history="forever",
        )  # fmt: skip
        self.key = "k"
        self.keys: list[tuple[int, str]] = [(0, "k")]  # its name from each moment on
        self.columns: list[tuple[int, tuple[Column, ...]]] = [(0, (Column(1, "a", 0, None, None),))]
        self.next_id = 2
        self.versions: dict[int, list[tuple[int, dict[int, Any] | None]]] = {}
        self.ranges = [Range(lower, upper, self.db.now()) for lower, upper in RANGES[:2]]
        self.gone: list[Range] = []
        self.moments = [self.db.now()]

    def _path(self) -> Path:
        return self.folder / str(self.generation)

    def _open(self) -> Database:
        return open_database(self._path(), **self.options)

    def teardown(self) -> None:
        if hasattr(self, "db"):
            self.db.close()
            shutil.rmtree(self.folder)

    # ------------------------------------------------------------------------------------------ the model

    def _columns(self, at: int = NOW) -> tuple[Column, ...]:
        return next(columns for since, columns in reversed(self.columns) if since <= at)

    def _key(self, at: int = NOW) -> str:
        return next(name for since, name in reversed(self.keys) if since <= at)

    def _state(self, at: int) -> dict[int, dict[int, Any]]:
        state = {}
        for key, versions in self.versions.items():
            row = next((row for stamp, row in reversed(versions) if stamp <= at), None)
            if row is not None:
                state[key] = row
        return state

    def _rows(self, at: int, seen: int) -> list[dict[str, Any]]:
        """The rows at a moment, through the columns of another."""
        columns, key = self._columns(seen), self._key(seen)
        return [
            {key: k, **{column.name: row.get(column.id, column.read) for column in columns}}
            for k, row in sorted(self._state(at).items())
        ]

    def _housed(self, key: int) -> Range | None:
        return next((r for r in self.ranges if r.lower <= key < r.upper), None)

    def _missing(self, at: int) -> list[Range]:
        return [r for r in self.gone if r.held and r.created <= at < r.dropped]

    # ------------------------------------------------------------------------------------------ steps

    @rule(data=st.data(), operation=st.sampled_from(["insert", "upsert", "upsert", "update", "delete"]))
    def write(self, data: st.DataObject, operation: str) -> None:
        keys = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True), label="keys")
        columns = self._columns()
        given = [c for c in columns if data.draw(st.booleans())] if operation != "delete" else []
        if operation == "update" and not given:
            return
        rows = [{self._key(): k, **{c.name: c.value(data) for c in given}} for k in keys]
        options: dict[str, Any] = {}
        if operation == "insert":
            options["on_conflict"] = "ignore"
        elif operation in ("update", "delete"):
            options["on_missing"] = "ignore"
        if any(self._housed(k) is None for k in keys):
            try:
                getattr(self.db["t"], operation)(rows, **options)
            except NoPartitionError:
                return
            raise AssertionError("a row without a partition was written")
        result = getattr(self.db["t"], operation)(rows, **options)
        state = self._state(NOW)
        for row in rows:
            k = row[self._key()]
            there = state.get(k)
            values = {c.id: row[c.name] for c in given}
            new: dict[int, Any] | None
            if operation == "delete":
                if there is None:
                    continue
                new = None
            elif there is None:
                if operation == "update":
                    continue
                new = {**{c.id: c.write for c in columns}, **values}
            elif operation == "insert":
                continue
            else:
                new = {**there, **values}
            home = self._housed(k)
            assert home is not None
            home.held = True
            self.versions.setdefault(k, []).append((result.timestamp, new))
        self.moments.append(result.timestamp)

    @rule(data=st.data())
    def alter(self, data: st.DataObject) -> None:
        self._alter(data)

    def _alter(self, data: st.DataObject) -> None:
        """One to three steps, of which all that are possible are done at one moment."""
        columns, ranges, key = list(self._columns()), list(self.ranges), self._key()
        dropped: list[Range] = []
        with self.db["t"].alter() as a:
            for _ in range(data.draw(st.integers(1, 3), label="steps")):
                free = [name for name in NAMES if name not in {c.name for c in columns} and name != key]
                kind = data.draw(
                    st.sampled_from(
                        ["add", "drop", "rename", "widen", "default", "key", "range+", "range-", "encoding"]
                    )
                )
                if kind == "add" and free:
                    name, type = data.draw(st.sampled_from(free)), data.draw(st.integers(-1, 3))
                    default = data.draw(st.sampled_from([None, "d" if type < 0 else 7]))
                    a.add_column(name, "varchar(3)" if type < 0 else INTEGERS[type], default=default)
                    columns.append(Column(self.next_id, name, type, default, default))
                    self.next_id += 1
                elif kind == "key" and free:
                    name = data.draw(st.sampled_from(free))
                    a.rename_column(key, name)
                    key = name
                elif kind == "range+":
                    absent = [r for r in RANGES if r not in {(x.lower, x.upper) for x in ranges}]
                    if absent:
                        lower, upper = data.draw(st.sampled_from(absent))
                        a.add_range(lower, upper)
                        ranges.append(Range(lower, upper, -1))
                elif kind == "range-" and len(ranges) > 1:
                    gone = data.draw(st.sampled_from(ranges))
                    a.drop_range(gone.lower, gone.upper)
                    ranges.remove(gone)
                    dropped.append(gone)
                elif columns:
                    at = data.draw(st.integers(0, len(columns) - 1), label="column")
                    column = columns[at]
                    if kind == "drop":
                        a.drop_column(column.name)
                        del columns[at]
                    elif kind == "rename" and free:
                        name = data.draw(st.sampled_from(free))
                        a.rename_column(column.name, name)
                        columns[at] = dataclasses.replace(column, name=name)
                    elif kind == "widen" and 0 <= column.type < 3:
                        a.alter_column(column.name, type=INTEGERS[column.type + 1])
                        columns[at] = dataclasses.replace(column, type=column.type + 1)
                    elif kind == "widen" and column.type < 0:
                        a.alter_column(column.name, type="string")
                    elif kind == "default":
                        value = data.draw(st.sampled_from([None, "e" if column.type < 0 else 5]))
                        a.alter_column(column.name, default=value)
                        columns[at] = dataclasses.replace(column, write=value)
                    elif kind == "encoding":
                        a.alter_column(column.name, encoding="plain", compression="zlib")
        moment = self.db.now()
        self.columns.append((moment, tuple(columns)))
        self.keys.append((moment, key))
        for r in dropped:
            if r.created >= 0:
                r.dropped = moment
                self.gone.append(r)
            for k in range(r.lower, r.upper):
                self.versions.pop(k, None)
        for r in ranges:
            r.created = moment if r.created < 0 else r.created
        self.ranges = ranges
        self.moments.append(moment)

    @rule()
    def flush(self) -> None:
        self.db.flush()

    @rule(data=st.data())
    def flush_with_something_in_between(self, data: st.DataObject) -> None:
        def phase(name: str) -> None:
            if data.draw(st.booleans()):
                self._alter(data)
            self.write(data, "upsert")  # type: ignore[call-arg]

        flush(self.db._writer(), phase=phase)

    @precondition(lambda self: any(tablet.rowsets for _, tablet in self.db._writer().root.tablets()))
    @rule(data=st.data())
    def compact_something(self, data: st.DataObject) -> None:
        """A merge or a major delta compaction, with alterations and writes between its phases."""
        store = self.db._writer()
        where = [(table, tablet) for table, tablet in store.root.tablets() if tablet.rowsets]
        table, tablet = data.draw(st.sampled_from(where), label="tablet")
        plan: Plan
        if data.draw(st.booleans(), label="merge"):
            ids = [rowset.id for rowset in tablet.rowsets]
            some = data.draw(st.lists(st.sampled_from(ids), min_size=1, unique=True))
            plan = MergePlan(tuple(some), 1.0, data.draw(st.integers(1, 2)))
        else:
            rowset = data.draw(st.sampled_from(tablet.rowsets))
            plan = MajorPlan(rowset.id, tuple(sorted(rowset.column_ids)), 1.0)

        def phase(name: str) -> None:
            if data.draw(st.booleans()):
                self._alter(data)
            if data.draw(st.booleans()):
                self.write(data, "upsert")  # type: ignore[call-arg]
            if data.draw(st.booleans()):
                self.db.flush()

        compact(store, table.id, tablet.id, plan, run_here(store), phase=phase)

    @rule(kind=st.sampled_from(["compact", "vacuum", "deltas"]))
    def care(self, kind: str) -> None:
        if kind == "deltas":
            compact_deltas(self.db._writer())
        else:
            getattr(self.db["t"], kind)()

    @rule()
    def reopen(self) -> None:
        self.db.close()
        self.db = self._open()

    @rule()
    def kill(self) -> None:
        copy = self.folder / str(self.generation + 1)
        shutil.copytree(self._path(), copy, ignore=shutil.ignore_patterns("*.sock"))
        self.db.close()
        shutil.rmtree(self._path())
        self.generation += 1
        self.db = self._open()

    # ------------------------------------------------------------------------------------------ reads

    @invariant()
    def newest_rows_are_right(self) -> None:
        if hasattr(self, "db"):
            assert self._scan(self.db) == self._rows(NOW, NOW)

    def _scan(self, db: Any, **scan: Any) -> list[dict[str, Any]]:
        found = db["t"].scan(order_by_key=True, **scan)
        table = found.to_arrow()
        assert table.schema == found.schema
        rows: list[dict[str, Any]] = table.to_pylist()
        return rows

    @rule(data=st.data(), reader=st.booleans())
    def the_past_is_right(self, data: st.DataObject, reader: bool) -> None:
        """In the columns of then and of now, in this process and in one that only reads."""
        at = data.draw(st.sampled_from(self.moments))
        db = Database(ReaderStore.open(SYSTEM, str(self._path()), 64 << 20)) if reader else self.db
        try:
            for moment in (at, at - 1):
                missing = self._missing(moment)
                key = {"at": self._key(moment), "current": self._key()}
                for schema, seen in (("at", moment), ("current", NOW)):
                    where = None
                    if missing:
                        try:
                            db["t"].scan(at=moment, schema=schema)  # type: ignore[arg-type]
                        except HistoryExpiredError as error:
                            named = f"[{missing[0].lower}, {missing[0].upper})"
                            assert any(f"[{r.lower}, {r.upper})" in str(error) for r in missing), named
                        else:
                            raise AssertionError("rows of a dropped range are silently left out")
                        where = " AND ".join(
                            f"NOT ({key[schema]} >= {r.lower} AND {key[schema]} < {r.upper})" for r in missing
                        )
                        kept = [r for r in RANGES if r not in {(x.lower, x.upper) for x in missing}]
                        if not kept:
                            continue
                        for lower, upper in kept:
                            where = f"{key[schema]} >= {lower} AND {key[schema]} < {upper}"
                            wanted = [
                                row for row in self._rows(moment, seen) if lower <= row[key[schema]] < upper
                            ]
                            assert self._scan(db, at=moment, schema=schema, where=where) == wanted
                        continue
                    assert self._scan(db, at=moment, schema=schema, where=where) == self._rows(moment, seen)
        finally:
            if reader:
                db.close()

    @rule(data=st.data())
    def predicates_are_right(self, data: st.DataObject) -> None:
        at = data.draw(st.sampled_from(self.moments))
        columns = self._columns(at)
        if not columns or self._missing(at):
            return
        column = data.draw(st.sampled_from(columns))
        value = column.value(data)
        wanted = [row for row in self._rows(at, at) if row[column.name] == value]
        where = nyala.col(column.name).is_null() if value is None else nyala.col(column.name) == value
        assert self._scan(self.db, at=at, where=where) == wanted
        keys = [{self._key(at): k} for k in range(6)]
        assert self.db["t"].get_many(keys, at=at).to_pylist() == self._rows(at, at)

    @rule(data=st.data(), schema=st.sampled_from(["at", "current"]))
    def changes_lead_from_one_moment_to_another(self, data: st.DataObject, schema: Any) -> None:
        """Through the columns of the later one, or of now, and without what went with its range."""
        since, until = sorted(data.draw(st.lists(st.sampled_from(self.moments), min_size=2, max_size=2)))
        feed = self.db["t"].changes(since, until, schema=schema)
        seen = until if schema == "at" else NOW
        key = self._key(seen)
        state = {row[key]: row for row in self._rows(since, seen)}
        for row in feed.to_arrow().to_pylist():
            kind = row.pop("_change_type")
            assert since < row.pop("_commit_timestamp") <= until
            if kind == "delete":
                del state[row[key]]
            else:
                state[row[key]] = row
        assert [state[k] for k in sorted(state)] == self._rows(until, seen)
        told = {(r["range"], r["timestamp"]) for r in feed.dropped_ranges}
        missing = [r for r in self.gone if r.held and r.created <= until and r.dropped > since]
        assert told == {(f"RANGE ({key}) [{r.lower}, {r.upper})", r.dropped) for r in missing}

    @rule()
    def a_check_finds_nothing(self) -> None:
        report = self.db.check()
        assert report.ok, report.problems


def test_the_altered_store_is_the_model() -> None:
    """Every read at every moment gives what the dictionary gives, however the table was altered."""
    from hypothesis.stateful import run_state_machine_as_test

    profile = settings()
    examples = max(10, profile.max_examples // 4)
    run_state_machine_as_test(
        AlterMachine, settings=settings(profile, max_examples=examples, stateful_step_count=25)
    )
