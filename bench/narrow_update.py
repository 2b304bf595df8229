"""One column changed in 1 % of the rows of a table of fifty: how long it takes, and how many bytes go to disk.

Each round changes another random 1 %, in one call, in every store in turn. Bytes are those that the process sent to
disk (pages made dirty, /proc/self/io), the log included: first until the call has returned, then also for bringing
the change from log and memory to where the table is (flush, checkpoint), then also for the store's own compaction.
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
from bench.parts import Say, ratio
from bench.report import Aim, Report, Table, megabytes, percent, seconds, times
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
    """Medians come from these: one entry a round."""

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
    settle: Step = field(default_factory=Step)
    settles: bool = True


def run(scale: Scale, folder: str, stores: Sequence[str] | None, say: Say) -> Report:
    """Measure, and report."""
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

    def settle() -> None:
        one.settles = store.settle()

    steps: list[tuple[Step, Callable[[], None]]] = [
        (one.update, lambda: store.update(rows)),
        (one.flush, store.flush),
        (one.settle, settle),
    ]
    for step, action in steps:
        before = written_bytes()
        store.overhead_s = 0.0
        took_s = timed(action) - store.overhead_s
        if kept:
            step.enter(took_s, before)


def _report(measured: list[Measured], scale: Scale, arrow_bytes: int) -> Report:
    report = Report(
        NARROW, scale.name, f"One column of fifty in 1 % of the rows ({scale.name}: {scale.rows:,} rows)"
    )
    report.facts = [
        f"{int(scale.rows * SHARE):,} random rows of {scale.rows:,}, the column a double of full precision; the table "
        f"is {megabytes(arrow_bytes)} in Arrow; medians of {scale.rounds} rounds in turns after one unmeasured round",
        "Bytes are what the process sent to disk, log included; shares are of the store's own table on disk",
    ]
    report.settings = {one.kind.name: one.kind.settings for one in measured}
    ours = next((one for one in measured if one.kind.name == "nyala"), None)
    table = Table(
        [
            "store",
            "table",
            "update",
            "Nyala ÷ it",
            "written",
            "flush",
            "written with it",
            "compaction",
            "written with it too",
        ]
    )
    for one in measured:
        update, flush, settle = one.update.bytes, one.flush.bytes, one.settle.bytes
        both = None if update is None or flush is None else update + flush
        total = None if both is None or settle is None else both + settle
        took_s = median(one.update.took_s)
        table.rows.append(
            [
                one.kind.name,
                megabytes(one.table_bytes),
                seconds(took_s),
                times(ratio(median(ours.update.took_s), took_s)) if ours else "–",
                _bytes(update, one),
                seconds(median(one.flush.took_s)),
                _bytes(both, one),
                seconds(median(one.settle.took_s)) if one.settles else "–",
                _bytes(total, one) if one.settles else "–",
            ]
        )
    report.tables.append(("Seconds, and megabytes written (share of the table)", table))
    if ours is not None:
        update, flush = ours.update.bytes, ours.flush.bytes
        share = None if update is None or flush is None else (update + flush) / ours.table_bytes
        report.aims.append(
            Aim(
                "update and flush write at most 5 % of the table's bytes",
                percent(share),
                None if share is None else share <= 0.05,
            )
        )
    return report


def _bytes(value: float | None, one: Measured) -> str:
    return "–" if value is None else f"{megabytes(value)} ({percent(value / one.table_bytes)})"


if __name__ == "__main__":
    from bench.__main__ import main

    main([NARROW])
