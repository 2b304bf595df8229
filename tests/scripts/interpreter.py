"""Runs the statements of a script against a real store, with a clock that the script sets.

    table t key:int64 val:int32? [hash=key/4]      a table; the first column is the key (or: primary=a,b); ? nullable;
                                                   history=50 keeps 50 microseconds of its past (else: all);
                                                   range=key:0-10,10-20 cuts it
    insert|upsert|update|delete t key=1 val=10 @10 one row (several: `; `), at clock 10 microseconds
    alter t add c int32 999; drop val; rename a b; widen b int64; add-range 0-10; drop-range 0-10 @10
                                                   steps of one alteration; a default makes a column NOT NULL
    batch @10 / … / end                            several statements as one batch
    large upsert t key=1 val=10 @10                as files, as a batch that is too large for the log
    clock @10                                      time passes, and nothing else
    flush · compact-deltas                         by hand: nothing runs in the background
    minor t · major t [val …] · merge t [into=2]   one compaction of each rowset (of these columns; "liveness" is one),
                                                   or of all rowsets of each tablet together
    merge-some t 0 2                               these rowsets of each tablet, counted as `rowsets` shows them
    expire t · compact t · vacuum t                what is out of reach; all there is to do; disk given back
    … written: update t key=1 val=3 @45            with a compaction: this statement once its files are written, or
                                                   (reserved:) once its inputs are taken
    scan t [@15] [where …]                         rows in key order, a line each
    moments t 10 15 20                             the rows at each of these moments, a line for each moment
    count t [@15] [where …] · get t key=1 [@15]
    sum t val [@15] where …                        by rowid arithmetic, block for block: rowids in each rowset, the sum
    sql SELECT …                                   what DuckDB makes of it, a line each
    changes t since=10 [until=20] [all]            net changes in key order, or all versions; a line each, with @time
    history t key=1 [since=10] [until=20] · restore t to=10 @40
    rowsets t                                      rows of each rowset on disk, and its parts and delta files
    drop t · close · kill                          `kill` is a SIGKILL of the process that has the store open
                                                   (also `merge t written: kill`)

Timestamps in scripts are microseconds: "@10" writes at the first timestamp of microsecond 10 and reads at its end.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import nyala
from nyala.database import Database
from nyala.delta.run import LIVENESS
from nyala.env import Env, system_files
from nyala.errors import Error, WriteError
from nyala.mvcc.timestamp import LOGICAL_MAX, from_physical
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.schema.schema import Schema
from nyala.tablet.care import compact_deltas
from nyala.tablet.compaction import compact, run_here
from nyala.tablet.compaction_plans import ExpirePlan, MajorPlan, MergePlan, MinorPlan, Plan
from nyala.tablet.store import Store, StoreOptions
from nyala.testing.clock import ManualClock, SeededRandomness

COMPACTIONS = ("minor", "major", "merge", "merge-some", "expire")


class Interpreter:
    """One process's hold on the store. `run` takes a statement and returns what it prints."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._clock = ManualClock(1)
        self._db: Database | None = None
        self._batch: list[tuple[str, str, list[dict[str, Any]]]] | None = None

    @property
    def db(self) -> Database:
        if self._db is None:
            env = Env(system_files(), self._clock, SeededRandomness())
            self._db = Database(Store.open(env, str(self._folder), StoreOptions(maintenance=False)))
        return self._db

    def run(self, statement: str) -> list[str]:
        first = statement.partition(" ")[0]
        if first in COMPACTIONS:
            return self._compaction(first, statement[len(first) :].strip())
        statement, at = self._timestamp(statement)
        word, _, rest = statement.partition(" ")
        try:
            return self._statement(word, rest.strip(), at)
        except WriteError as error:
            codes = [] if error.errors is None else error.errors.column("code").to_pylist()
            return [f"error {type(error).__name__}: {', '.join(codes)}"]
        except Error as error:
            return [f"error {type(error).__name__}"]

    def _timestamp(self, statement: str) -> tuple[str, int | None]:
        match = re.search(r"\s@(\d+)", statement)
        if match is None:
            return statement, None
        return statement[: match.start()] + statement[match.end() :], int(match[1])

    def _statement(self, word: str, rest: str, at: int | None) -> list[str]:
        if word == "table":
            return self._table(rest)
        if word in ("insert", "upsert", "update", "delete"):
            name, _, rows = rest.partition(" ")
            parsed = [_row(row) for row in rows.split(";")]
            if self._batch is not None:
                self._batch.append((word, name, parsed))
                return []
            self._step(at)
            result = getattr(self.db[name], word)(parsed)
            return [] if at is None else self._stamped(result.timestamp, at)
        if word == "large":
            store = self.db._writer()
            usual, store.direct_commit_bytes = store.direct_commit_bytes, -1
            try:
                word, _, rest = rest.partition(" ")
                return self._statement(word, rest, at)
            finally:
                store.direct_commit_bytes = usual
        if word == "alter":
            name, _, steps = rest.partition(" ")
            self._step(at)
            with self.db[name].alter() as alteration:
                for step in steps.split(";"):
                    _alter(alteration, *step.split())
            return []
        if word == "batch":
            self._batch, self._batch_at = [], at
            return []
        if word == "end":
            statements, self._batch = self._batch or [], None
            self._step(self._batch_at)
            with self.db.batch() as batch:
                for operation, name, rows in statements:
                    getattr(batch, operation)(name, rows)
            return []
        if word == "flush":
            self.db.flush()
            return []
        if word == "clock":
            self._step(at)
            return []
        if word in ("compact", "vacuum"):
            getattr(self.db[rest], word)()
            return []
        if word == "compact-deltas":
            store = self.db._writer()
            compact_deltas(store)
            return []
        if word in ("scan", "count"):
            name, _, where = rest.partition(" where ")
            scan = self.db[name.strip()].scan(
                where=where or None, at=self._at(at), order_by_key=word == "scan"
            )
            if word == "count":
                return [str(scan.count())]
            return [_line(row) for row in scan.to_arrow().to_pylist()]
        if word == "moments":
            name, *moments = rest.split()
            printed = []
            for moment in map(int, moments):
                found = self.db[name].scan(at=self._at(moment), order_by_key=True).to_arrow().to_pylist()
                printed.append(f"{moment}: " + (" ".join(map(_line, found)) or "nothing"))
            return printed
        if word == "get":
            name, _, key = rest.partition(" ")
            row = self.db[name].get(_row(key), at=self._at(at))
            return ["none" if row is None else _line(row)]
        if word == "sum":
            head, _, where = rest.partition(" where ")
            name, column = head.split()
            return self._sum(name, column, where, at)
        if word == "sql":
            return [_line(dict(enumerate(row))) for row in self.db.sql(rest).fetchall()]
        if word == "changes":
            name, *options = rest.split()
            versions = "all" if "all" in options else "net"
            found = self.db[name].changes(**self._moments(options), versions=versions).to_arrow()
            if versions == "net":
                found = found.sort_by([(column, "ascending") for column in self.db[name].primary_key])
            return [_change(row) for row in found.to_pylist()]
        if word == "history":
            name, key, *options = rest.split()
            found = self.db[name].history(_row(key), **self._moments(options))
            return [_change(row) for row in found.to_pylist()]
        if word == "restore":
            name, to = rest.split()
            self._step(at)
            result = self.db[name].restore(**self._moments([to]))
            return [f"inserted {result.inserted}, updated {result.updated}, deleted {result.deleted}"]
        if word == "rowsets":
            root, _ = self.db._store.view()
            return [
                f"tablet {ordinal}: {rowset.meta.row_count} rows, "
                + (f"{len(rowset.parts)} parts, " if rowset.parts else "")
                + f"{len(rowset.undo)} undo, {len(rowset.redo)} redo"
                for ordinal, tablet in enumerate(root.table(rest).tablets)
                for rowset in tablet.rowsets
            ]
        if word == "drop":
            self.db.drop_table(rest)
            return []
        if word == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if word == "close":
            self.db.close()
            self._db = None
            return []
        raise AssertionError(f"no statement {word!r}")

    def _sum(self, name: str, column_name: str, where: str, at: int | None) -> list[str]:
        """The specification's pseudo-code. Two rows at a time, as if a block held no more."""
        scan = self.db[name].scan(columns=[column_name], where=where, at=self._at(at))
        _, table = scan._take()
        spec, column = scan._spec, table.schema.by_name(column_name)
        total, printed = 0, []
        for tablet in table.tablets:
            for number, rowset in enumerate(tablet.rowsets):
                start_rowid, end_rowid = rowset.rowid_range(spec.key_range)
                printed.append(f"rowset {number}: rowids [{start_rowid}, {end_rowid})")
                rowid = start_rowid
                while rowid < end_rowid:
                    upto = min(rowid + 2, end_rowid)
                    block = rowset.column(column, spec.snapshot, rowid, upto)
                    alive = rowset.liveness(spec.snapshot, rowid, upto)
                    total += pc.sum(block if alive is None else block.filter(pa.array(alive))).as_py() or 0
                    rowid = upto
            memory = tablet.memory
            rowids = np.arange(memory.row_count)[memory.rowids_in(spec.key_range)]
            rowids = rowids[memory.gather_liveness(spec.snapshot, rowids)]
            printed.append(f"in memory: {len(rowids)} rows")
            total += pc.sum(memory.gather(column, spec.snapshot, rowids)).as_py() or 0
        return [*printed, f"sum {total}"]

    def _compaction(self, kind: str, rest: str) -> list[str]:
        """`merge t`, and in one of its phases another statement; prints what that prints, and "given up"."""
        rest, *during = re.split(r" (reserved|written): ", rest, maxsplit=1)
        name, *options = rest.split()
        printed: list[str] = []
        waiting = list(during)

        def phase(reached: str) -> None:
            if waiting and waiting[0] == reached:
                printed.extend(self.run(waiting[1]))
                waiting.clear()

        store = self.db._writer()
        table = store.root.table(name)
        for tablet in table.tablets:
            for plan in _plans(kind, table.schema, tablet.rowsets, options):
                if compact(store, table.id, tablet.id, plan, run_here(store), phase=phase) is None:
                    printed.append("given up")
        assert not waiting, f"{during[1]!r} never had its turn"
        return printed

    def _table(self, rest: str) -> list[str]:
        name, *parts = rest.split()
        columns: dict[str, Any] = {}
        key: list[str] = []
        partitions: list[Any] = []
        history: float | str = "forever"
        for part in parts:
            if part.startswith("hash="):
                column, _, buckets = part[5:].partition("/")
                partitions.append(nyala.hash_partition(*column.split(","), buckets=int(buckets)))
            elif part.startswith("range="):
                column, _, bounds = part[6:].partition(":")
                pairs = [_range(bound) for bound in bounds.split(",")]
                partitions.append(nyala.range_partition(column, bounds=pairs))
            elif part.startswith("primary="):
                key = part[8:].split(",")
            elif part.startswith("history="):
                history = int(part[8:]) / 1e6
            else:
                column, _, kind = part.partition(":")
                columns[column] = nyala.column(kind.rstrip("?"), nullable=kind.endswith("?"))
        self.db.create_table(name, columns, key or [next(iter(columns))], partitions, history=history)
        return []

    def _step(self, at: int | None) -> None:
        if at is not None:
            self._clock.set_now_us(at)

    def _at(self, at: int | None) -> int | None:
        if at is None:
            return None
        self._clock.set_now_us(max(at, self._clock.now_us()))
        return from_physical(at, LOGICAL_MAX)

    def _moments(self, options: list[str]) -> dict[str, Any]:
        pairs = (option.split("=") for option in options if "=" in option)
        return {name: self._at(int(value)) for name, value in pairs}

    def _stamped(self, timestamp: int, at: int) -> list[str]:
        # A script that says @10 must get a timestamp of microsecond 10, or it would not test what it says.
        assert timestamp >> 12 == at, f"the write asked for @{at} got {timestamp >> 12}"
        return []


def _plans(
    kind: str, schema: Schema, rowsets: Sequence[DiskRowSet], options: Sequence[str]
) -> Iterator[Plan]:
    ids = tuple(rowset.id for rowset in rowsets)
    if kind == "merge":
        count = next((int(option[5:]) for option in options if option.startswith("into=")), 1)
        yield MergePlan(ids, 1.0, count)
    elif kind == "merge-some":
        yield MergePlan(tuple(ids[int(option)] for option in options), 1.0)
    elif kind == "expire":
        yield ExpirePlan(ids, 1.0)
    for rowset in rowsets:
        if kind == "minor" and len(rowset.redo) > 1:
            yield MinorPlan(rowset.id, slice(None), 1.0)
        if kind == "major" and rowset.redo:
            names = options or [*(column.name for column in schema.value_columns), "liveness"]
            columns = [LIVENESS if name == "liveness" else schema.by_name(name).id for name in names]
            yield MajorPlan(rowset.id, tuple(sorted(columns)), 1.0)


def _alter(alteration: nyala.Alteration, step: str, *words: str) -> None:
    if step == "add":
        name, kind, *default = words
        if default:
            alteration.add_column(name, kind, nullable=False, default=int(default[0]))
        else:
            alteration.add_column(name, kind)
    elif step == "widen":
        alteration.alter_column(words[0], type=words[1])
    elif step in ("add-range", "drop-range"):
        getattr(alteration, step.replace("-", "_"))(*_range(words[0]))
    else:
        getattr(alteration, f"{step}_column")(*words)


def _range(text: str) -> tuple[int, int]:
    lower, upper = text.split("-")
    return int(lower), int(upper)


def _row(text: str) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for part in text.split():
        name, _, value = part.partition("=")
        row[name] = None if value == "null" else int(value) if re.fullmatch(r"-?\d+", value) else value
    return row


def _change(row: dict[str, Any]) -> str:
    *values, kind, stamp = row.values()
    shown = ", ".join("null" if value is None else str(value) for value in values)
    return f"({shown}) {kind} @{'?' if stamp is None else stamp >> 12}"


def _line(row: dict[str, Any]) -> str:
    return "(" + ", ".join("null" if value is None else str(value) for value in row.values()) + ")"
