"""A store and its model side by side: each step is applied to both, and then they are compared.

A step is a tuple of an operation's name and plain values, so that a sequence of steps prints as code:

    replay(COMPOSITE, Options(block_size=16), [
        ("write", "t", "insert", [{"s": "", "n": 0, "d": datetime.date(1969, 12, 31), "a": 1}], "raise"),
        ("flush", "t", {}),
        ("compact", "t", 0, ("merge", [0], 1), {"written": [("write", …)]}),
        ("read_at", "t", 1, 0, "at", 0, ("=", "a", 1)),
    ])

Steps name moments and tablets by numbers, and are skipped if they do not fit the present tables. So
any part of a sequence is a sequence too, and `reduced` can remove steps. After each step the tables
that it may have changed are compared. Steps that begin with `read_` compare more. A sequence always
does the same, because nothing runs in the background and only `wait` moves the clock.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import nyala
from nyala.api.database import Database
from nyala.delta.run import LIVENESS
from nyala.env import Env, system_files
from nyala.errors import Error, HistoryExpiredError, InvalidArgumentError, NoPartitionError, WriteError
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.tablet.compaction.lifecycle import compact, run_here
from nyala.tablet.compaction.plans import ExpirePlan, MajorPlan, MergePlan, MinorPlan, Plan
from nyala.tablet.flush.lifecycle import flush, flush_deltas
from nyala.tablet.recovery.reader_store import ReaderStore
from nyala.tablet.state.root import TableState, TabletState
from nyala.tablet.store import Store, StoreOptions
from nyala.testing.clock import ManualClock, SeededRandomness
from nyala.testing.faulty_files import SimulatedCrash
from nyala.testing.recording_files import RecordingFiles
from tests.model.reads import Reads, assert_same
from tests.model.shapes import Options, Shape, make_table, tiny
from tests.model.values import Predicate, column_of, holds, text
from tests.model.versions import NOW, Alteration, Range, Row, Table
from tests.support import compact_deltas

Step = tuple[Any, ...]
Between = dict[str, list[Step]]
SHARED_MEMORY = Path("/dev/shm")
HISTORY_S = {"t": "forever", "u": 0.05, "p": "forever"}


@dataclass(frozen=True)
class Pin:
    """The rows of a table at a moment, with a view and a scan that were taken at this moment."""

    db: Database
    name: str
    rows: list[Row]
    view: Any
    scan: Any


class Aborted(Exception):
    """Raised inside of a batch, to abort it."""


class Session(Reads):
    """A store with three tables, and their models.

    Table `t` keeps its history forever, `u` keeps it for 50 ms, and `p` has only key columns.
    """

    def __init__(self, shape: Shape, options: Options) -> None:
        self.shape, self.options = shape, options
        self.steps: list[Step] = []
        self.ask_between: Callable[[str], Step | None] = lambda phase: None
        self._depth = 0
        self._compared = 0
        self._changed: set[str] = set()  # tables that the present step may have changed
        self._tiny = tiny(options.tiny)
        self._tiny.__enter__()
        # The folder is in shared memory if possible, because a sync costs nothing there.
        where = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
        self.folder = Path(tempfile.mkdtemp(prefix="nyala-model-", dir=where))
        self.generation = 0
        self.clock = ManualClock()
        # All stores of the session share it, so that random names of files never repeat.
        self.randomness = SeededRandomness()
        self.readers: list[Database] = []
        self.pinned: list[Pin] = []
        self._open()
        self.models: dict[str, Table] = {}
        self.name_of: dict[str, str] = {}
        self.history_us: dict[str, int | None] = {}
        self.marks: dict[str, int] = {}  # the greatest history mark that each table ever had
        for name, history in HISTORY_S.items():
            key_only = name == "p" or options.keys_only
            self.models[name] = make_table(self.db, shape, name, history, options, key_only)
            self.models[name].created = self.db.now()
            self.name_of[name] = name
            self.history_us[name] = None if history == "forever" else round(history * 1e6)  # type: ignore[operator]
            self.marks[name] = 0
        self.moments = [self.db.now()]

    def _open(self) -> None:
        path = self.folder / str(self.generation)
        path.mkdir(exist_ok=True)
        self.files = RecordingFiles(system_files(), str(path))
        self.env = Env(self.files, self.clock, self.randomness)
        options = StoreOptions(
            maintenance=False,
            direct_commit_bytes=self.options.direct_commit_bytes,
            rowset_target_bytes=self.options.rowset_target_bytes,
        )
        self.db = Database(Store.open(self.env, str(path / "s"), options))

    def close(self) -> None:
        try:
            for reader in self.readers:
                reader.close()
            self.db.close()
        finally:
            self._tiny.__exit__(None, None, None)
            shutil.rmtree(self.folder, ignore_errors=True)

    # ── steps ─────────────────────────────────────────────────────────────────────────────────────

    def do(self, step: Step) -> None:
        """Do a step, then compare the tables that it may have changed, and one other table in turn."""
        if not self._depth:
            self.steps.append(step)
        self._depth += 1
        self._changed |= self._tables_of(step)
        try:
            getattr(self, "do_" + step[0])(*step[1:])
        except SimulatedCrash:
            if self._depth > 1:
                raise
            self._resume()
            self._changed |= self.models.keys()
        finally:
            self._depth -= 1
        self.marks = {name: max(mark, self._mark(name)) for name, mark in self.marks.items()}
        self.compare()
        if not self._depth:
            self._changed.clear()

    def _tables_of(self, step: Step) -> set[str]:
        if step[0].startswith("read_") or step[0] in ("check", "pin", "wait", "reader"):
            return set()
        if step[0] == "repeat":
            return self._tables_of(step[2])
        return {step[1]} if len(step) > 1 and step[1] in list(self.models) else {*self.models}

    def source(self) -> str:
        """Return the steps as code that repeats them."""
        lines = [f"    {step!r}," for step in self.steps]
        return "\n".join(
            [
                "import datetime",
                "from decimal import Decimal",
                "from math import inf, nan",
                "from tests.model.session import replay",
                f"from tests.model.shapes import {self.shape.name.upper()}, Options",
                "",
                f"session = replay({self.shape.name.upper()}, {self.options!r}, [",
                *lines,
                "])",
            ]
        )

    def _between(self, between: Between, phase: str) -> None:
        """Do the steps of `between` for this phase, and those that `ask_between` adds."""
        for step in list(between.get(phase, ())):
            self.do(step)
        while self._depth == 1 and (extra := self.ask_between(phase)) is not None:
            between.setdefault(phase, []).append(extra)
            self.do(extra)

    def compare(self) -> None:
        """Compare all rows of tables, and the rows that a predicate selects. Each call uses another predicate."""
        self._compared += 1
        for name in {*self._changed, list(self.models)[self._compared % len(self.models)]}:
            model = self.models[name]
            found = self._table(name).scan(order_by_key=True).to_arrow().to_pylist()
            assert_same(found, model.rows(), f"the rows of {name}")
            where = self.some_predicate(name, self._compared, NOW, NOW)
            found = self._table(name).scan(where=text(where), order_by_key=True).to_arrow().to_pylist()
            assert_same(found, model.rows(where=where), f"the rows of {name} where {where}")

    def _noted(self, timestamp: int) -> None:
        if timestamp != self.moments[-1]:
            self.moments.append(timestamp)

    # ── writes ────────────────────────────────────────────────────────────────────────────────────

    def _knows(self, name: str, rows: Sequence[Row]) -> bool:
        """Whether the rows fit the table's present columns. In a reduced sequence they may not."""
        columns = {column.name for column in self.models[name].columns()}
        return all(columns >= row.keys() and {*self.models[name].key_names()} <= row.keys() for row in rows)

    def do_write(self, name: str, operation: str, rows: list[Row], how: str) -> None:
        """Write rows. how: "raise" or "collect" errors, or "ignore" duplicate or missing keys."""
        if not self._knows(name, rows):
            return
        draft = self.models[name].begin()
        codes = draft.apply(operation, rows, how == "ignore")
        options: dict[str, Any] = {"errors": "collect" if how == "collect" else "raise"}
        if how == "ignore" and operation != "upsert":
            options["on_conflict" if operation == "insert" else "on_missing"] = "ignore"
        try:
            result = getattr(self._table(name), operation)(rows, **options)
        except WriteError as error:
            assert how != "collect" and error.errors.column("code").to_pylist() == codes, (error, codes)
            return
        assert how == "collect" or not codes, f"{operation} did not fail: {codes}"
        assert result.errors.column("code").to_pylist() == codes
        counts = (result.inserted, result.updated, result.deleted, result.ignored)
        assert counts == (draft.inserted, draft.updated, draft.deleted, draft.ignored), (operation, result)
        draft.commit(result.timestamp)
        self._noted(result.timestamp)

    def do_many(self, name: str, operation: str, first: int, count: int, seed: int, names: list[str]) -> None:
        """Write `count` rows with neighbouring keys by one batch, with random values (`column_of`)."""
        model, chance = self.models[name], random.Random(seed)
        columns = [c for c in model.values() if c.name in names] if operation != "delete" else []
        nth = {column.name: column_of(column.type, chance) for column in columns}
        rows = []
        for number in range(first, first + count):
            row = dict(zip(model.key_names(), self.shape.nth_key(number), strict=True))
            if model.home(model.key_of(row)) is not None:
                rows.append(row | {column: value(number) for column, value in nth.items()})
        if operation == "insert":
            rows = [row for row in rows if model.key_of(row) not in model.state()]
        self.do_write(name, operation, rows, "ignore")

    def do_repeat(self, count: int, step: Step) -> None:
        """Repeat a write. Only the first and the last one become moments that are read later."""
        before = len(self.moments)
        for _ in range(count):
            self.do_write(*step[1:])
        del self.moments[before + 1 : -1]

    def do_batch(self, parts: list[tuple[str, str, list[Row]]], end: str) -> None:
        """Write to several tables by one batch. end: "commit" or "abort"."""
        drafts = {name: self.models[name].begin() for name, _, _ in parts}
        if not all(self._knows(name, rows) for name, _, rows in parts):
            return
        codes: dict[str, list[str]] = {name: [] for name in drafts}
        for name, operation, rows in parts:
            codes[name] += drafts[name].apply(operation, rows)
        try:
            with self.db.batch() as batch:
                for name, operation, rows in parts:
                    getattr(batch, operation)(self.name_of[name], rows)
                if end == "abort":
                    raise Aborted
        except Aborted:
            return
        except WriteError as error:
            first = next(of_table for of_table in codes.values() if of_table)
            assert error.errors.column("code").to_pylist() == first, (error, codes)
            return
        assert not any(codes.values())
        (timestamp,) = {result.timestamp for result in batch.results}
        for draft in drafts.values():
            draft.commit(timestamp)
        self._noted(timestamp)

    def do_update_where(self, name: str, changes: dict[str, tuple[str, Any]], where: Predicate) -> None:
        """Update with a predicate. changes: column to ("value", constant) or ("column", other name)."""
        model = self.models[name]
        columns = {column.name: column for column in model.values()}
        if not columns.keys() >= changes.keys() or not self._sees(name, where):
            return
        draft = model.begin()
        for key, row in draft.before.items():
            shown = model.show(key, row)
            if holds(where, shown) is True:
                new = {columns[c].id: v if how == "value" else shown[v] for c, (how, v) in changes.items()}
                draft.put(key, {**row, **new}, frozenset(new))
                draft.updated += 1
        values = {
            column: value if how == "value" else nyala.expr('"' + value.replace('"', '""') + '"')
            for column, (how, value) in changes.items()
        }  # fmt: skip
        result = self._table(name).update(set=values, where=text(where))
        assert result.updated == draft.updated
        draft.commit(result.timestamp)
        self._noted(result.timestamp)

    def do_delete_where(self, name: str, where: Predicate) -> None:
        model = self.models[name]
        if not self._sees(name, where):
            return
        draft = model.begin()
        for key, row in draft.before.items():
            if holds(where, model.show(key, row)) is True:
                draft.put(key, None, None)
                draft.deleted += 1
        result = self._table(name).delete(where=text(where))
        assert result.deleted == draft.deleted
        draft.commit(result.timestamp)
        self._noted(result.timestamp)

    def do_purge(self, name: str, first: int, count: int) -> None:
        """Purge `count` keys at every moment, also in dropped ranges. Some keys may never have existed."""
        model = self.models[name]
        keys = [tuple(self.shape.nth_key(number)) for number in range(first, first + count)]
        given = [dict(zip(model.key_names(), key, strict=True)) for key in keys]
        live = model.state().keys() & {model.key_of(key) for key in given}
        result = self._table(name).purge(given)
        assert (result.keys, result.deleted) == (count, len(live))
        for key in given:
            model.forget(model.key_of(key))
        if live:
            self._noted(result.timestamp)

    def do_restore(self, name: str, number: int) -> None:
        model, to = self.models[name], self._moment(number)
        lost = any(True for _ in model.lost_rows(to, NOW))
        draft = model.restored(to)
        try:
            result = self._table(name).restore(to=to)
        except HistoryExpiredError:
            assert self._may_be_refused(name, to) or model.missing(to)
            return
        except InvalidArgumentError as error:
            assert model.other_ranges(to), error
            return
        assert not model.other_ranges(to)
        assert not lost and not self._must_be_refused(name, to)
        counts = (result.inserted, result.updated, result.deleted)
        assert counts == (draft.inserted, draft.updated, draft.deleted), result
        draft.commit(result.timestamp)
        self._noted(result.timestamp)

    # ── alterations ───────────────────────────────────────────────────────────────────────────────

    def do_alter(self, name: str, steps: list[Step], between: Between) -> None:
        """Alter a table by all possible `steps` at one moment, with other steps inside of the `with`."""
        model = self.models[name]
        draft = Alteration(model)
        history: float | None = None
        renamed = self.name_of[name]
        with self._table(name).alter() as alteration:
            for step in steps:
                match step:
                    case ("history", history):
                        alteration.set_history(history)
                    case ("name", other):
                        if other not in self.db and other != renamed:
                            alteration.rename(other)
                            renamed = other
                    case _:
                        if draft.take(step):
                            _alter(alteration, step)
            self._between(between, "begun")
        moment = self.db.now()
        self.name_of[name] = renamed
        if history is not None:
            self.history_us[name] = round(history * 1e6)
        draft.commit(moment)
        self._noted(moment)

    def do_repartition(self, name: str, buckets: int, ranges: list[tuple[Any, Any]]) -> None:
        """Repartition a table."""
        model = self.models[name]
        there = [Range(lower, upper, 0) for lower, upper in ranges] or [Range(None, None, 0)]
        on = self.shape.range_on
        homeless = on is not None and not all(any(one.has(key[on]) for one in there) for key in model.state())
        try:
            names = dict(zip((key for key, _ in self.shape.key), model.key_names(), strict=True))
            self._table(name).repartition(self.shape.partitions(buckets, ranges, names))
        except NoPartitionError:
            assert homeless
            return
        assert not homeless
        moment = self.db.now()
        for one in there:
            one.created = moment
        model.rewrite(moment, there)
        self._noted(moment)

    def do_copy(self, name: str, number: int) -> None:
        """Copy a table as of a moment, compare the copy, and drop it."""
        model, at = self.models[name], self._moment(number)
        homeless = not all(model.has_place(key, at) for key in model.state(at))
        try:
            copied = self.db.copy_table(self.name_of[name], "copy", at=at)
        except HistoryExpiredError:
            assert self._may_be_refused(name, at) or model.missing(at)
            return
        except NoPartitionError:
            assert homeless
            return
        assert not homeless and not any(True for _ in model.lost_rows(at, at))
        found = copied.scan(order_by_key=True).to_arrow().to_pylist()
        assert_same(found, model.rows(at, at), f"a copy of {name}")
        self.db.drop_table("copy")

    def do_clone(self, name: str, number: int | None) -> None:
        """Clone a table as of now or a moment, compare the clone, delete its rows, and drop it."""
        model = self.models[name]
        at = NOW if number is None else self._moment(number)
        try:
            clone = self.db.clone_table(self.name_of[name], "clone", at=None if number is None else at)
        except HistoryExpiredError:
            assert self._may_be_refused(name, at) or model.missing(at)
            return
        found = clone.scan(order_by_key=True).to_arrow().to_pylist()
        assert_same(found, model.rows(at, NOW), f"a clone of {name}")
        clone.delete(where="TRUE")
        self.db.drop_table("clone", purge=True)
        self._noted(self.db.now())

    def do_drop_and_undrop(self, name: str, meanwhile: str, number: int) -> None:
        """Drop a table and restore it, with a flush or crash between (`meanwhile`)."""
        model, before = self.models[name], self.db.now()
        self.db.drop_table(self.name_of[name])
        assert self.name_of[name] not in self.db
        view = self.db.table(self.name_of[name], at=before)
        assert_same(view.scan(order_by_key=True).to_arrow().to_pylist(), model.rows(), f"{name} when dropped")
        if meanwhile == "flush":
            flush(self.db._writer())
        elif meanwhile == "crash":
            try:
                self.do_kill(number)
            except SimulatedCrash:
                self._resume()
        self.db.undrop_table(self.name_of[name])
        dropped, undropped = self._state(name).entry.drops[-2:]
        model.drops.append((dropped, undropped))

    # ── flushes and compactions ───────────────────────────────────────────────────────────────────

    def do_flush(self, name: str | None, between: Between) -> None:
        """Flush one table, or all tables, with other steps between its phases."""
        store = self.db._writer()
        tablets = None if name is None else {tablet.id for tablet in self._state(name).tablets}
        # A batch that is too large for the log would need the flush lock, which this thread has.
        store.direct_commit_bytes = StoreOptions.direct_commit_bytes
        try:
            flush(store, tablets, phase=lambda phase: self._between(between, phase))
        finally:
            store.direct_commit_bytes = self.options.direct_commit_bytes

    def do_flush_deltas(self, name: str) -> None:
        """Flush the changes of rowsets on disk; inserted rows stay in memory."""
        store = self.db._writer()
        with store.flush_lock:
            flush_deltas(store, {r.id for tablet in self._state(name).tablets for r in tablet.rowsets})

    def _state(self, name: str) -> TableState:
        return self.db._writer().root.table(self.name_of[name])

    def do_compact(self, name: str, number: int, plan: Step, between: Between) -> None:
        """Compact one tablet that has files, with other steps between its phases."""
        store, table = self.db._writer(), self._state(name)
        tablets = [tablet for tablet in table.tablets if tablet.rowsets]
        if tablets:
            if plan[0] == "minor":
                tablets = [
                    one for one in tablets if any(_files(r, plan[-1]) > 1 for r in one.rowsets)
                ] or tablets
            tablet = tablets[number % len(tablets)]
            planned = _plan(plan, table, tablet)
            compact(
                store, table.id, tablet.id, planned, run_here(store),
                phase=lambda phase: self._between(between, phase),
            )  # fmt: skip

    def do_maintain(self, name: str, kind: str) -> None:
        """Do manual maintenance, which must not change any result.

        "compact" must leave no REDO and no rowsets with overlapping keys.
        """
        if kind == "deltas":
            compact_deltas(self.db._writer())
        elif kind == "collect":
            self.db._writer().collect_garbage()
        elif kind == "vacuum":
            self._table(name).vacuum()
        else:
            self._table(name).compact()
            for tablet in self._state(name).tablets:
                assert not any(rowset.redo or rowset.deltas.record_count for rowset in tablet.rowsets)
                by_key = sorted(tablet.rowsets, key=lambda rowset: rowset.meta.key_min)
                assert all(left.meta.key_max < right.meta.key_min for left, right in pairwise(by_key))

    def do_wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    # ── opening and killing ───────────────────────────────────────────────────────────────────────

    def do_reopen(self) -> None:
        """Close the writer and open it again. Readers stay; snapshots of the writer end."""
        self._unpin(self.db)
        self.db.close()
        self._open()

    def do_kill(self, seed: int | None) -> None:
        """Kill the process, perhaps in the middle of a flush or compaction.

        seed: None: all written bytes remain. Otherwise the power fails too: synced bytes remain, and
        of the others a random part, chosen by the seed.
        """
        old, new = self.folder / str(self.generation), self.folder / str(self.generation + 1)
        if seed is None:
            shutil.copytree(old, new, ignore=shutil.ignore_patterns("*.sock"))
        else:
            self.files.crash_image(len(self.files.events), random.Random(seed), str(new))
        raise SimulatedCrash

    def _resume(self) -> None:
        for reader in self.readers:
            reader.close()
        self.readers, self.pinned = [], []
        with contextlib.suppress(Error):
            self.db.close()
        shutil.rmtree(self.folder / str(self.generation))
        self.generation += 1
        self._open()

    def do_reader(self) -> None:
        """Open a reader process. If there are two, close the older one first."""
        if len(self.readers) == 2:
            reader = self.readers.pop(0)
            self._unpin(reader)
            reader.close()
        path = str(self.folder / str(self.generation) / "s")
        self.readers.append(Database(ReaderStore.open(self.env, path, 64 << 20)))

    def do_pin(self, view: int) -> None:
        """Take a snapshot and scans, which later steps read again."""
        db = self._view(view)
        snapshot = db.snapshot()
        pins = [
            Pin(
                db, name, model.rows(), snapshot[self.name_of[name]],
                self._table(name, db).scan(order_by_key=True),
            )
            for name, model in self.models.items()
        ]  # fmt: skip
        self.pinned = [*self.pinned[-2 * len(pins) :], *pins]

    def _unpin(self, db: Database) -> None:
        self.pinned = [pin for pin in self.pinned if pin.db is not db]


def _alter(alteration: Any, step: Step) -> None:
    match step:
        case ("add", name, type, nullable, default, *storage):
            alteration.add_column(name, type, nullable=nullable, default=default, **dict(*storage))
        case ("drop", name):
            alteration.drop_column(name)
        case ("rename", old, new):
            alteration.rename_column(old, new)
        case ("widen", name, type):
            alteration.alter_column(name, type=type)
        case ("default", name, value):
            alteration.alter_column(name, default=value)
        case ("nullable", name):
            alteration.alter_column(name, nullable=True)
        case ("storage", name, storage):
            alteration.alter_column(name, **storage)
        case ("add range", lower, upper):
            alteration.add_range(lower, upper)
        case ("drop range", lower, upper, purge):
            alteration.drop_range(lower, upper, purge=purge)
        case ("undrop range", lower, upper):
            alteration.undrop_range(lower, upper)
        case _:
            raise AssertionError(f"no step {step!r}")


def _files(rowset: DiskRowSet, kind: str) -> int:
    return len(rowset.undo if kind == "undo" else rowset.redo)


def _plan(plan: Step, table: TableState, tablet: TabletState) -> Plan:
    """Return a plan in which numbers are replaced by rowsets and columns of the tablet."""

    def rowset(number: int) -> int:
        return tablet.rowsets[number % len(tablet.rowsets)].id

    match plan:
        case ("merge", numbers, count):
            return MergePlan(tuple(dict.fromkeys(map(rowset, numbers))), 1.0, count)
        case ("major", number, columns):
            ids = [*(column.id for column in table.schema.columns[table.schema.key_count :]), LIVENESS]
            chosen = {ids[column % len(ids)] for column in columns}
            return MajorPlan(rowset(number), tuple(sorted(chosen)), 1.0)
        case ("minor", number, first, count, kind):
            files = {one.id: _files(one, kind) for one in tablet.rowsets}
            several = [id for id in files if files[id] > 1] or list(files)
            chosen = several[number % len(several)]
            first %= max(1, files[chosen] - 1)
            return MinorPlan(chosen, slice(first, first + count), 1.0, kind)
        case _:
            return ExpirePlan(tuple(one.id for one in tablet.rowsets), 1.0)


# ── sequences ─────────────────────────────────────────────────────────────────────────────────────


def replay(shape: Shape, options: Options, steps: Iterable[Step]) -> Session:
    """Repeat the steps, then compare every moment. Returns the closed session."""
    session = Session(shape, options)
    try:
        for step in steps:
            session.do(step)
        session.do(("read_everywhere", True))
        return session
    finally:
        session.close()


def reduced(shape: Shape, options: Options, steps: Sequence[Step]) -> list[Step]:
    """Return as few steps as possible that still fail: removes steps and makes them smaller."""

    def fails(tried: Sequence[Step]) -> bool:
        try:
            replay(shape, options, tried)
        except Exception:
            return True
        return False

    kept, at = list(steps), len(steps) - 1
    while at >= 0:
        for instead in ([], *([smaller] for smaller in _smaller(kept[at]))):
            if fails(kept[:at] + instead + kept[at + 1 :]):
                kept[at : at + 1] = instead
                at += bool(instead)  # try to make the smaller step even smaller
                break
        at -= 1
    return kept


def _smaller(step: Step) -> Iterator[Step]:
    """Yield the step without one of its rows, or without one of the steps inside of it."""
    for place, part in enumerate(step):
        if isinstance(part, list) and len(part) > 1:
            for number in range(len(part)):
                yield (*step[:place], part[:number] + part[number + 1 :], *step[place + 1 :])
        if isinstance(part, dict):
            for phase, inner in part.items():
                for number, one in enumerate(inner):
                    for instead in ([], *([smaller] for smaller in _smaller(one))):
                        left = inner[:number] + instead + inner[number + 1 :]
                        yield (*step[:place], {**part, phase: left}, *step[place + 1 :])
