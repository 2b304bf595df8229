"""Runs the statements of a script against a real store. The script sets the clock, and nothing runs in the background.

Tables
    table t key:int64 val:int32? s:string=none     The first column is the key, `?` allows NULL, `=` gives a default.
          primary=a,b                              The key columns, if the key is not the first column.
          hash=a,b/4  range=key:0..10,20..  splits=key:10,20   Partitions. `20..` has no upper bound, `none` no range.
          history=50                               Keeps 50 microseconds of history; default: all of it.
          encoding=s:rle  block=512                The encoding of a column; the block size of each column.
    alter t add c:int32=5; drop c; rename a b; type b int64; default b 5; nullable b; required b; encoding b rle;
            add-range 0..10; drop-range 0..10; name t2; history 50      All steps of one alteration, in order.
    copy t t2 [hash=…] · rename t t2 · drop t · tables · describe t · partitions t (rows of each tablet)

Writes (rows are `name=value`, separated by `;`)
    insert|upsert|update|delete t key=1 val=10; key=2 val=null @10      One batch, at clock 10 microseconds.
    insert-ignore|update-ignore|delete-ignore t …  Skips duplicate or missing keys; prints how many.
    collect insert t …                             Applies the good rows; prints a line for each bad one.
    fill t 0..500 key=i val=i%7                    Inserts computed rows: Python expressions over the array `i`.
    update t set val = val + 1; s = 'x' where …    Prints how many rows changed. `delete t where …` does too.
    batch @10 / … / end                            Several statements as one batch.
    begin a @10 · a: update t key=1 val=3 · a: scan t · commit a @100 · rollback a      Transactions by name. The clock
                                                   goes on by 64 microseconds when one begins.
    large upsert t …                               Commits as files, as a batch does that is too large for the log.
    restore t to=10 @40

Reads (a line for each row, in key order)
    scan t(key, val) @15 limit=2 current where …   All but the name is optional. `current`: the present columns.
    count t [@15] [where …] · get t key=1 [@15] · get-many t key=1; key=2 · moments t 10 15 (a line for each moment)
    explain t [where …]                            Tablets, rowsets and rows that a scan reads, of all.
    changes t since=10 [until=20] [all] [before]   Net changes in key order, or all versions; each with `@time`.
    history t key=1 [since=10] [until=20] · sql SELECT … · check (prints problems)

Files
    flush · compact t · vacuum t · compact-deltas · expire t
    minor t · major t [val …] · merge t [into=2] · merge-some t 0 2     One compaction of each rowset (of these
                                                   columns), of all rowsets of a tablet, or of rowsets 0 and 2.
    merge t written: update t key=1 val=3 @45      Runs the statement after the files are written (`reserved:` before).
    rowsets t                                      Rows, parts and delta files of each rowset.
    background                                     Runs the compactions that the background would choose; prints them.
    choose [quiet] 0..100:32 0..50:8,redo=3x4      What the policy does with rowsets of these keys and megabytes.
                                                   `redo=3x4`: 3 MB in 4 files. Also `undo=`, `garbage=`,
                                                   `dead`, `busy`.
    clock @10 · close · kill                       `kill` sends SIGKILL to the process that has the store open.

Values are `5`, `0.5`, `1.25d` (a decimal), `nan`, `true`, `null`, `word`, `'any text'` (`\\0` is a zero byte) and
`x'00ff'`. Dates and times are ISO text.
`@10` writes at the first timestamp of microsecond 10 and reads at its end. An error prints its class, and for rows its
codes.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import os
import re
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import nyala
from nyala.api.database import Database
from nyala.delta.run import LIVENESS
from nyala.env import Env, system_files
from nyala.errors import Error, WriteError
from nyala.mvcc.timestamp import LOGICAL_MAX, from_physical
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.schema.schema import Schema
from nyala.tablet.changes.spec import FEED_COLUMNS
from nyala.tablet.compaction.background import Compactor
from nyala.tablet.compaction.lifecycle import compact, run_here
from nyala.tablet.compaction.plans import (
    ExpirePlan,
    MajorPlan,
    MergePlan,
    MinorPlan,
    Plan,
    RowSetLayout,
)
from nyala.tablet.compaction.policy import best_plan
from nyala.tablet.store import Store, StoreOptions
from nyala.testing.clock import ManualClock, SeededRandomness
from tests.support import compact_deltas

COMPACTIONS = ("minor", "major", "merge", "merge-some", "expire")
OPERATIONS = ("insert", "upsert", "update", "delete")
LITERAL = r"x?'(?:[^']|'')*'|[^\s;]+"
COLUMN = r"(\w+):(\w+(?:\([\d,]+\))?)(\?)?(?:=(.*))?"


class Interpreter:
    """Runs statements on a store. `run` takes a statement and returns the lines that it prints."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._clock = ManualClock(1)
        self._db: Database | None = None
        self._batch: list[tuple[str, str, list[dict[str, Any]]]] | None = None
        self._batch_at: int | None = None
        self._transactions: dict[str, nyala.Transaction] = {}
        self._transaction: nyala.Transaction | None = None  # that the present statement uses

    @property
    def db(self) -> Database:
        if self._db is None:
            env = Env(system_files(), self._clock, SeededRandomness())
            self._db = Database(Store.open(env, str(self._folder), StoreOptions(maintenance=False)))
        return self._db

    @property
    def _source(self) -> Any:
        """Return the database, or the transaction of the present statement."""
        return self._transaction or self.db

    def run(self, statement: str) -> list[str]:
        word, _, rest = statement.partition(" ")
        if word.endswith(":"):
            self._transaction = self._transactions[word[:-1]]
            try:
                return self.run(rest)
            finally:
                self._transaction = None
        at = None
        if word not in COMPACTIONS:  # the @ in a compaction belongs to its inner statement
            match = re.search(r"(?:^|\s)@(\d+)", rest)
            if match is not None:
                at, rest = int(match[1]), rest[: match.start()] + rest[match.end() :]
        try:
            return self._statement(word, rest.strip(), at)
        except WriteError as error:
            codes = [] if error.errors is None else error.errors.column("code").to_pylist()
            return [f"error {type(error).__name__}" + (": " if codes else "") + ", ".join(codes)]
        except Error as error:
            return [f"error {type(error).__name__}"]

    def _statement(self, word: str, rest: str, at: int | None) -> list[str]:
        if word in COMPACTIONS:
            return self._compaction(word, rest)
        if word in OPERATIONS or word.endswith("-ignore"):
            return self._write(word, rest, at)
        if word in ("history", "changes"):
            return self._feed(word, rest)
        return getattr(self, "do_" + word.replace("-", "_"))(rest, at) or []

    # ------------------------------------------------------------------------------------------ tables

    def do_table(self, rest: str, at: int | None) -> None:
        name, *parts = rest.split()
        options = [part.partition("=")[::2] for part in parts if re.match(r"\w+=", part)]
        encodings = dict(value.split(":") for option, value in options if option == "encoding")
        given: dict[str, Any] = dict(options)
        columns = {}
        for part in parts:
            if match := re.fullmatch(COLUMN, part):
                column, type, nullable, default = match.groups()
                columns[column] = nyala.column(
                    type,
                    nullable=bool(nullable),
                    default=None if default is None else _value(default),
                    encoding=encodings.get(column, "auto"),
                    block_size=int(given["block"]) if "block" in given else None,
                )
        primary = given.get("primary", next(iter(columns))).split(",")
        history = int(given["history"]) / 1e6 if "history" in given else "forever"
        self._step(at)
        self.db.create_table(name, columns, primary, _partitions(options), history=history)

    def do_alter(self, rest: str, at: int | None) -> None:
        name, _, steps = rest.partition(" ")
        self._step(at)
        with self.db[name].alter() as alteration:
            for step in steps.split(";"):
                _alter(alteration, *step.split())

    def do_copy(self, rest: str, at: int | None) -> None:
        name, new, *options = rest.split()
        levels = _partitions([option.partition("=")[::2] for option in options])
        self.db.copy_table(name, new, levels or None, at=self._at(at))

    def do_rename(self, rest: str, at: int | None) -> None:
        self._step(at)
        self.db.rename_table(*rest.split())

    def do_drop(self, rest: str, at: int | None) -> None:
        self._step(at)
        self.db.drop_table(rest)

    def do_tables(self, rest: str, at: int | None) -> list[str]:
        return self.db.list_tables()

    def do_describe(self, rest: str, at: int | None) -> list[str]:
        table = self.db[rest]
        return [
            f"{field.name} {field.type}{'' if field.nullable else ' required'}"
            + (" key" if field.name in table.primary_key else "")
            for field in table.schema
        ]

    def do_partitions(self, rest: str, at: int | None) -> list[str]:
        return [f"{tablet.partition}: {tablet.rows} rows" for tablet in self.db[rest].tablets()]

    # ------------------------------------------------------------------------------------------ writes

    def _write(self, word: str, rest: str, at: int | None, **options: str) -> list[str]:
        name, _, text = rest.partition(" ")
        self._step(at)
        if text.startswith(("set ", "where ")):
            head, _, where = text.partition("where ")
            pairs = [re.split(r"\s*=\s*", pair, maxsplit=1) for pair in head.removeprefix("set ").split(";")]
            values = {} if word == "delete" else {name.strip(): nyala.expr(value) for name, value in pairs}
            table = self._source[name]
            result = table.update(set=values, where=where) if values else table.delete(where=where)
            return [f"{result.updated + result.deleted} rows"]
        rows = _rows(text)
        if self._batch is not None:
            self._batch.append((word, name, rows))
            return []
        operation, _, ignore = word.partition("-")
        if ignore:
            options["on_conflict" if operation == "insert" else "on_missing"] = "ignore"
        result = getattr(self._source[name], operation)(rows, **options)
        # A write with @10 must get a timestamp of microsecond 10. Otherwise the script is wrong.
        assert at is None or result.timestamp >> 12 == at, f"@{at} wrote at {result.timestamp >> 12}"
        if options.get("errors"):
            bad = zip(*(result.errors[name].to_pylist() for name in ("row", "code")), strict=True)
            return [f"row {row}: {code}" for row, code in bad]
        return [f"{result.ignored} ignored"] if ignore else []

    def do_collect(self, rest: str, at: int | None) -> list[str]:
        word, _, rest = rest.partition(" ")
        return self._write(word, rest, at, errors="collect")

    def do_large(self, rest: str, at: int | None) -> list[str]:
        store = self.db._writer()
        usual, store.direct_commit_bytes = store.direct_commit_bytes, -1
        try:
            return self._write(*rest.split(" ", 1), at)  # type: ignore[misc]
        finally:
            store.direct_commit_bytes = usual

    def do_fill(self, rest: str, at: int | None) -> None:
        name, bounds, *columns = rest.split()
        i = np.arange(*map(int, bounds.split("..")))
        data = {}
        for column in columns:
            column, _, expression = column.partition("=")
            values = eval(expression, {"i": i, "np": np, "text": lambda array: array.astype("U").tolist()})
            data[column] = values if isinstance(values, list) else np.broadcast_to(values, i.shape)
        self._step(at)
        self.db[name].insert(data)

    def do_batch(self, rest: str, at: int | None) -> None:
        self._batch, self._batch_at = [], at

    def do_end(self, rest: str, at: int | None) -> None:
        statements, self._batch = self._batch or [], None
        self._step(self._batch_at)
        with self.db.batch() as batch:
            for operation, name, rows in statements:
                getattr(batch, operation)(name, rows)

    def do_begin(self, rest: str, at: int | None) -> None:
        self._step(at)
        self._transactions[rest] = self.db.transaction()

    def do_commit(self, rest: str, at: int | None) -> None:
        self._step(at)
        results = self._transactions.pop(rest).commit()
        assert at is None or {result.timestamp >> 12 for result in results} <= {at}

    def do_rollback(self, rest: str, at: int | None) -> None:
        self._transactions.pop(rest).rollback()

    def do_restore(self, rest: str, at: int | None) -> list[str]:
        name, to = rest.split()
        self._step(at)
        result = self.db[name].restore(**self._options([to]))
        return [f"inserted {result.inserted}, updated {result.updated}, deleted {result.deleted}"]

    # ------------------------------------------------------------------------------------------ reads

    def _scan(self, rest: str, at: int | None) -> nyala.Scan:
        head, *where = re.split(r"(?:^|\s)where ", rest, maxsplit=1)
        match = re.fullmatch(r"(\w+)(?:\((.*)\))?((?: [\w=-]+)*)", head.strip())
        assert match is not None, rest
        options = dict(option.partition("=")[::2] for option in match[3].split())
        return self._source[match[1]].scan(
            None if match[2] is None else re.findall(r"\w+", match[2]),
            where[0] if where else None,
            self._at(at),
            int(options["limit"]) if "limit" in options else None,
            order_by_key=True,
            schema="current" if "current" in options else None,
        )

    def do_scan(self, rest: str, at: int | None) -> list[str]:
        return [_line(row) for row in self._scan(rest, at).to_arrow().to_pylist()]

    def do_count(self, rest: str, at: int | None) -> list[str]:
        return [str(self._scan(rest, at).count())]

    def do_explain(self, rest: str, at: int | None) -> list[str]:
        facts = self._scan(rest, at).explain().to_dict()
        rows = facts["rows_total"] - facts["rows_skipped"]
        return [
            f"tablets {facts['tablets_read']} of {facts['tablets_total']}, "
            f"rowsets {facts['rowsets_read']} of {facts['rowsets_total']}, rows {rows} of {facts['rows_total']}"
        ]

    def do_moments(self, rest: str, at: int | None) -> list[str]:
        name, *moments = rest.split()
        return [
            f"{moment}: " + (" ".join(self.run(f"scan {name} @{moment}")) or "nothing") for moment in moments
        ]

    def do_get(self, rest: str, at: int | None) -> list[str]:
        name, _, key = rest.partition(" ")
        row = self._source[name].get(*_rows(key), at=self._at(at))
        return ["none" if row is None else _line(row)]

    def do_get_many(self, rest: str, at: int | None) -> list[str]:
        name, _, keys = rest.partition(" ")
        return [_line(row) for row in self._source[name].get_many(_rows(keys), at=self._at(at)).to_pylist()]

    def do_sql(self, rest: str, at: int | None) -> list[str]:
        return [_line(dict(enumerate(row))) for row in self._source.sql(rest).fetchall()]

    def _feed(self, word: str, rest: str) -> list[str]:
        name, *options = rest.split()
        moments = self._options(options)
        table = self.db[name]
        if word == "history":
            key = _rows(" ".join(option for option in options if not re.match("since=|until=", option)))
            found = table.history(*key, **moments).to_pylist()
        else:
            versions, before = "all" if "all" in options else "net", "before" in options
            found = table.changes(**moments, versions=versions, before=before).to_arrow().to_pylist()
            if versions == "net":
                found.sort(key=lambda row: [row[column] for column in table.primary_key])
        lines = []
        for row in found:
            kind, stamp, _ = (row.pop(name) for name in FEED_COLUMNS)
            lines.append(f"{_line(row)} {kind or 'unchanged'} @{'?' if stamp is None else stamp >> 12}")
        return lines

    def do_check(self, rest: str, at: int | None) -> list[str]:
        return [str(problem) for problem in self.db.check().problems]

    # ------------------------------------------------------------------------------------------ files

    def do_flush(self, rest: str, at: int | None) -> None:
        self.db.flush()

    def do_compact(self, rest: str, at: int | None) -> None:
        self.db[rest].compact()

    def do_vacuum(self, rest: str, at: int | None) -> None:
        self.db[rest].vacuum()

    def do_compact_deltas(self, rest: str, at: int | None) -> None:
        compact_deltas(self.db._writer())

    def do_rowsets(self, rest: str, at: int | None) -> list[str]:
        return [
            f"tablet {ordinal}: {rowset.meta.row_count} rows, "
            + (f"{len(rowset.parts)} parts, " if rowset.parts else "")
            + f"{len(rowset.undo)} undo, {len(rowset.redo)} redo"
            for ordinal, tablet in enumerate(self.db._writer().root.table(rest).tablets)
            for rowset in tablet.rowsets
        ]

    def do_background(self, rest: str, at: int | None) -> list[str]:
        store, printed = self.db._writer(), []
        compactor = Compactor(store)
        while (work := compactor.next(store)) is not None:
            table, tablet_id, plan = work
            tablet = next(tablet for tablet in table.tablets if tablet.id == tablet_id)
            printed.append(_plan_text(plan, [rowset.id for rowset in tablet.rowsets]))
            compact(store, table.id, tablet_id, plan, run_here(store))
        return printed

    def do_choose(self, rest: str, at: int | None) -> list[str]:
        words = rest.split()
        quiet = words[0] == "quiet"
        layouts = [_layout(number, word) for number, word in enumerate(words[quiet:])]
        plan = best_plan(layouts, quiet=quiet)
        return ["nothing" if plan is None else _plan_text(plan, range(len(layouts)))]

    def _compaction(self, kind: str, rest: str) -> list[str]:
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
        assert not waiting, f"{during[1]!r} was not executed"
        return printed

    # ------------------------------------------------------------------------------------------ process and clock

    def do_clock(self, rest: str, at: int | None) -> None:
        self._step(at)

    def do_close(self, rest: str, at: int | None) -> None:
        if self._db is not None:
            self._db.close()
        self._db = None
        self._transactions.clear()

    def do_kill(self, rest: str, at: int | None) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _step(self, at: int | None) -> None:
        if at is not None:
            self._clock.set_now_us(at)

    def _at(self, at: int | None) -> int | None:
        if at is None:
            return None
        self._clock.set_now_us(max(at, self._clock.now_us()))
        return from_physical(at, LOGICAL_MAX)

    def _options(self, options: list[str]) -> dict[str, Any]:
        pairs = (option.split("=") for option in options if re.match("since=|until=|to=", option))
        return {name: self._at(int(value)) for name, value in pairs}


def _alter(alteration: nyala.Alteration, step: str, *words: str) -> None:
    if step == "add":
        match = re.fullmatch(COLUMN, words[0])
        assert match is not None, words
        name, type, nullable, default = match.groups()
        alteration.add_column(
            name, type, nullable=bool(nullable), default=None if default is None else _value(default)
        )
    elif step in ("add-range", "drop-range"):
        getattr(alteration, step.replace("-", "_"))(*_range(words[0]))
    elif step in ("drop", "rename"):
        getattr(alteration, f"{step}_column")(*words)
    elif step == "name":
        alteration.rename(words[0])
    elif step == "history":
        alteration.set_history(int(words[0]) / 1e6)
    elif step in ("nullable", "required"):
        alteration.alter_column(words[0], nullable=step == "nullable")
    else:
        assert step in ("type", "default", "encoding"), step
        value = _value(words[1]) if step == "default" else words[1]
        alteration.alter_column(words[0], **{step: value})  # type: ignore[arg-type]


def _partitions(options: Sequence[tuple[str, str]]) -> list[Any]:
    levels: list[Any] = []
    for option, value in options:
        if option == "hash":
            columns, _, buckets = value.partition("/")
            levels.append(nyala.hash_partition(*columns.split(","), buckets=int(buckets)))
        elif option == "range":
            column, _, bounds = value.partition(":")
            ranges = [] if bounds == "none" else [_range(bound) for bound in bounds.split(",")]
            levels.append(nyala.range_partition(column, bounds=ranges))
        elif option == "splits":
            column, _, splits = value.partition(":")
            levels.append(
                nyala.range_partition(column, splits=[_value(split) for split in splits.split(",")])
            )
    return levels


def _range(text: str) -> tuple[Any, Any]:
    lower, upper = (_value(bound) if bound else None for bound in text.split(".."))
    return lower, upper


def _rows(text: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{}]
    for name, value, end in re.findall(rf"(\w+)=({LITERAL})|(;)", text):
        if end:
            rows.append({})
        else:
            rows[-1][name] = _value(value)
    return rows


def _value(text: str) -> Any:
    words = {"null": None, "true": True, "false": False, "nan": math.nan, "inf": math.inf, "-inf": -math.inf}
    if text in words:
        return words[text]
    if text.startswith("x'"):
        return bytes.fromhex(text[2:-1])
    if text.startswith("'"):
        return text[1:-1].replace("''", "'").replace("\\0", "\0")
    if re.fullmatch(r"-?[\d.]+d", text):
        return decimal.Decimal(text[:-1])
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    return float(text) if re.fullmatch(r"-?\d+\.\d*(e-?\d+)?", text) else text


def _line(row: dict[str, Any]) -> str:
    return "(" + ", ".join(map(_shown, row.values())) + ")"


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None).isoformat()
    if isinstance(value, str) and (not re.fullmatch(r"[^\W\d]\w*", value) or value != str(_value(value))):
        return "'" + value.replace("'", "''").replace("\0", "\\0") + "'"
    return str(value)


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


def _plan_text(plan: Plan, ids: Sequence[int]) -> str:
    if isinstance(plan, MergePlan):
        places = " ".join(str(ids.index(id)) for id in sorted(plan.rowsets))
        return f"merge {places}" + (f" into {plan.output_count}" if plan.output_count > 1 else "")
    if isinstance(plan, ExpirePlan):
        return "expire " + " ".join(str(ids.index(id)) for id in plan.rowsets)
    kind = "major" if isinstance(plan, MajorPlan) else "minor" if plan.kind == "redo" else "undo"
    return f"{kind} {ids.index(plan.rowset)}"


def _layout(number: int, text: str) -> RowSetLayout:
    """Return a rowset with a key and one value column of equal size, and a row per 100 bytes."""
    keys, size, options = re.fullmatch(r"([\d.]+):([\d.]+)((?:,[^,]+)*)", text).groups()  # type: ignore[union-attr]
    low, high = (int(bound).to_bytes(8, "big") for bound in keys.split(".."))
    given = dict(option.partition("=")[::2] for option in options.split(",")[1:])
    base = int(float(size) * 2**20)
    rows = max(1, base // 100)

    def files(kind: str) -> list[tuple[int, int]]:
        total, _, count = given.get(kind, "0x0").partition("x")
        return [(int(float(total) * 2**20 / max(1, int(count))), rows // 50)] * int(count)

    redo, undo = files("redo"), files("undo")
    return RowSetLayout(
        number, low, high, rows, base,
        redo_bytes=sum(size for size, _ in redo),
        undo_bytes=sum(size for size, _ in undo),
        redo_files=redo,
        redo_columns={1: sum(count for _, count in redo)} if redo else {},
        base_columns={0: base // 2, 1: base // 2},
        undo_files=undo,
        expired_rows=rows if "dead" in given else int(rows * float(given.get("garbage", 0))),
        all_expired="dead" in given,
        available="busy" not in given,
    )  # fmt: skip
