"""Updates one column in 1 % of the rows of a table of fifty columns: time, and bytes that are
written to disk.

Each round updates another random 1 % in one call, in every store in turn. The bytes are those that
the process writes (dirty pages, /proc/self/io), with the log: until the call returns, until the
change is in the table's files (flush, checkpoint), and until the store's own compaction has ended.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np
import pyarrow as pa

from bench import data
from bench.measure import folder_bytes, timed, written_bytes
from bench.parts import Say
from bench.report import Report, Table, at_most, megabytes, percent, seconds
from bench.stores import NARROW, Kind, Options, Store, choose

CHANGED = "d7"
SHARE = 0.01


@dataclass(frozen=True)
class Scale:
    name: str
    rows: int
    rounds: int


FULL = Scale("full", 1_000_000, 5)
QUICK = Scale("quick", 100_000, 3)


@dataclass
class Step:
    """The figures of one step, one per round."""

    took_s: list[float] = field(default_factory=list)
    written: list[int] = field(default_factory=list)

    def enter(self, took_s: float, before: int | None) -> None:
        self.took_s.append(took_s)
        now = written_bytes()
        if before is not None and now is not None:
            self.written.append(now - before)

    @property
    def bytes(self) -> float | None:
        return median(self.written) if self.written else None


@dataclass
class Measured:
    kind: Kind
    store: Store
    table_bytes: int
    update: Step = field(default_factory=Step)
    flush: Step = field(default_factory=Step)
    compact: Step = field(default_factory=Step)
    compacts: bool = True


def run(scale: Scale, folder: str, stores: Sequence[str] | None, say: Say) -> Report:
    """Measure, and return the report."""
    table = data.wide(scale.rows)
    say(f"{scale.rows:,} rows of {table.num_columns} columns, {table.nbytes / 1e6:.0f} MB in Arrow")
    measured = []
    for kind in choose(NARROW, stores, say):
        own = os.path.join(folder, kind.name)
        store = kind.open(own, Options(maintenance=False))
        took_s = timed(store.load, table, ["id"])
        measured.append(Measured(kind, store, folder_bytes(own)))
        say(f"{kind.name}: loaded in {took_s:.1f} s, {measured[-1].table_bytes / 1e6:.1f} MB on disk")
    values = table.column(CHANGED).to_numpy().copy()
    arrow_bytes = table.nbytes
    del table
    rng = np.random.default_rng(1)
    for number in range(scale.rounds + 1):  # the first is the warm-up
        places = rng.permutation(scale.rows)[: int(scale.rows * SHARE)]
        rows = pa.table({"id": pa.array(places), CHANGED: pa.array(rng.random(len(places)))})
        values[places] = rows.column(CHANGED).to_numpy()
        for one in measured[number % len(measured) :] + measured[: number % len(measured)]:
            _round(one, rows, kept=number > 0)
        say(f"round {number} of {scale.rounds}" if number else "warm-up round")
    for one in measured:
        if one.kind.name != "parquet":
            found = one.store.session().total(CHANGED)
            if abs(found - values.sum()) > 1e-6 * scale.rows:
                raise AssertionError(f"{one.kind.name}: the sum is {found}, not {values.sum()}")
        one.store.close()
    return _report(measured, scale, arrow_bytes)


def _round(one: Measured, rows: pa.Table, *, kept: bool) -> None:
    store = one.store

    def compact() -> None:
        one.compacts = store.compact()

    steps: list[tuple[Step, Callable[[], None]]] = [
        (one.update, lambda: store.update(rows)),
        (one.flush, store.flush),
        (one.compact, compact),
    ]
    for step, action in steps:
        before = written_bytes()
        store.overhead_s = 0.0
        took_s = timed(action) - store.overhead_s
        if kept:
            step.enter(took_s, before)


def _report(measured: list[Measured], scale: Scale, arrow_bytes: int) -> Report:
    names = [
        "store",
        "table",
        "update",
        "written",
        "flush",
        "written with it",
        "compaction",
        "written with it too",
    ]
    table = Table(names)
    for one in measured:
        update, flush, compact = one.update.bytes, one.flush.bytes, one.compact.bytes
        both = None if update is None or flush is None else update + flush
        total = None if both is None or compact is None else both + compact
        cells = [seconds(median(one.update.took_s)), _bytes(update, one)]
        cells += [seconds(median(one.flush.took_s)), _bytes(both, one)]
        cells += [seconds(median(one.compact.took_s)), _bytes(total, one)] if one.compacts else ["–", "–"]
        table.rows.append([one.kind.name, megabytes(one.table_bytes), *cells])
    report = Report(
        NARROW,
        f"One column of fifty in 1 % of the rows ({scale.rows:,} rows)",
        f"{int(scale.rows * SHARE):,} random rows, a double of full precision; the table is {megabytes(arrow_bytes)} "
        f"in Arrow; medians of {scale.rounds} rounds in turns; bytes sent to disk, log included (share of the table)",
        table,
    )
    for one in measured:
        if one.kind.name == "nyala" and one.update.bytes is not None and one.flush.bytes is not None:
            share = (one.update.bytes + one.flush.bytes) / one.table_bytes
            text = "update and flush write at most 5 % of the table's bytes"
            report.aims.append(at_most(text, share, 0.05, percent(share)))
    return report


def _bytes(value: float | None, one: Measured) -> str:
    return "–" if value is None else f"{megabytes(value)} ({percent(value / one.table_bytes)})"


if __name__ == "__main__":
    from bench.__main__ import main

    main([NARROW])
