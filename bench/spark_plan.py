"""What a load through Spark costs its driver and the catalogue, for 1 to 1,000 tablets: `python -m bench.spark_plan`.

No Spark: each tablet's task is carried out here, with a few rows, and what is timed is only what the driver and the
lock's holder do for it: the plan, what tasks are told, their answers, the commit. It should be flat per tablet. Besides
times, which depend on the machine, calls are counted (every function of Python and of C that the interpreter calls),
and bytes: of what is told and answered, of the catalogue, and of what a task of `df.write` carries to route its rows.

Estimate: a tablet is a rowset of two files and a few catalogue rows, so some ten system calls of 20 µs, two JSON texts
of 2 KB there and back, and an open of the rowset: about 1 ms.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import json
import os
import pickle
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa

import nyala
from bench import machine, report
from bench.report import Aim, Report, Table, times
from nyala.env import SYSTEM
from nyala.handover import commits as handover
from nyala.tablet.jobs.load_commit import LoadCommit
from nyala.tablet.jobs.load_job import StagedTablet
from nyala.tablet.jobs.load_write import ROW, write_tablet
from nyala.tablet.jobs.staged_files import routing_plan

PART = "spark_plan"
TABLETS = (1, 10, 100, 1000)
QUICK = (1, 10, 100)
_T = TypeVar("_T")


@dataclass(frozen=True)
class Cost:
    """Of one load; times in milliseconds, in all."""

    tablets: int
    rows: int
    plan_ms: float
    plan_calls: int
    told_bytes: int
    answer_bytes: int
    commit_ms: float
    commit_calls: int
    catalogue_bytes: int
    routing_bytes: int

    def cells(self) -> list[str]:
        per_tablet = {what: f"{getattr(self, what) / self.tablets:,.0f}" for what in COUNTED}
        plan, told, answered, commit, catalogue, routing = per_tablet.values()
        times_ms = [f"{took_ms / self.tablets:.2f} ms" for took_ms in (self.plan_ms, self.commit_ms)]
        return [
            f"{self.tablets:,}",
            times_ms[0],
            plan,
            told,
            answered,
            times_ms[1],
            commit,
            catalogue,
            routing,
        ]


HEADINGS = (
    "tablets", "plan", "plan, calls", "told, bytes", "answered, bytes", "commit", "commit, calls", "catalogue, bytes",
    "routing of a write, bytes",
)  # fmt: skip
COUNTED = {
    "plan_calls": "calls of the plan",
    "told_bytes": "bytes told to tasks",
    "answer_bytes": "bytes of their answers",
    "commit_calls": "calls of the commit",
    "catalogue_bytes": "bytes of the catalogue",
    "routing_bytes": "bytes of a write's routing",
}
# How much dearer one tablet more may be among many than among few.
FLAT = 1.15


def growth(costs: Sequence[Cost], what: str) -> float | None:
    """What one tablet more costs among the most of `costs`, ÷ among those before; None: too few to tell."""
    if len(costs) < 3:
        return None
    few, some, many = costs[-3:]
    first = (getattr(some, what) - getattr(few, what)) / (some.tablets - few.tablets)
    later = (getattr(many, what) - getattr(some, what)) / (many.tablets - some.tablets)
    return float(later / first)


def report_of(costs: Sequence[Cost], scale: str) -> Report:
    made = Report(
        PART,
        scale,
        f"A load through Spark, planned over {costs[0].tablets:,} to {costs[-1].tablets:,} tablets",
    )
    made.facts = [
        "No Spark: each tablet's task is carried out in the driver's process, with 50 rows; timed and counted is what "
        "driver and lock's holder do for it",
        "Calls are those of the interpreter, of functions in Python and in C; each figure is per tablet",
    ]
    made.tables.append(("Per tablet", Table(HEADINGS, [cost.cells() for cost in costs])))
    for what, title in COUNTED.items():
        found = growth(costs, what)
        made.aims.append(
            Aim(
                f"{title}: one tablet more among the most at most {FLAT} × one more among fewer",
                times(found),
                None if found is None else found <= FLAT,
            )
        )
    made.settings = {
        "table": "hash(k) in so many tablets, a rowset in each before, two columns",
        "maintenance": "off",
    }
    return made


def run(tablets: int, folder: Path, rows_per_tablet: int = 50, *, counted: bool = True) -> Cost:
    """Load into a table of so many tablets, which has a rowset in each already.

    counted: the commit's calls are counted, which makes its time a longer one.
    """
    rows = tablets * rows_per_tablet
    partition = [nyala.hash_partition("k", buckets=tablets)] if tablets > 1 else []
    with nyala.connect(folder, maintenance=False) as db:
        table = db.create_table("t", {"k": "int64", "v": "int64"}, ["k"], partition)
        table.insert({"k": np.arange(rows), "v": np.zeros(rows, np.int64)})
        table.flush()
        key, _ = handover.new_staging(db.path)
        data = pa.table({"k": np.arange(rows) * 2, "v": np.ones(rows, np.int64), ROW: np.arange(rows)})
        with _begun(db.path) as request:
            (_, (text,)), plan_ms = _timed(lambda: handover.ask(db.path, request))
        with _begun(db.path) as request:
            plan_calls = _calls(lambda: handover.answer_request(db._writer(), request))
        routing = pickle.dumps(routing_plan(SYSTEM, db.path, "t"))
        with handover.loading(db.path, "t", 600, reserve=True) as (plan, _):
            state = db._store.root.table("t")
            places = state.router.route({"k": data["k"].combine_chunks()}, rows)
            staged = []
            for ordinal in range(tablets):
                mine = data.filter(pa.array(places == ordinal)).sort_by("k").to_batches()
                made, _errors = write_tablet(
                    SYSTEM, plan.only([ordinal]), 0, "upsert", iter(mine), f"staging/{key}", f"task-{ordinal}"
                )
                staged.append(json.dumps(made.to_json()))
            files = {found.rowset.id: found for tablet in plan.tablets for found in tablet.rowsets}

            def commit() -> None:
                job = LoadCommit(
                    key, plan.table_id, plan.schema.version, plan.snapshot, "upsert", ("k", "v"),
                    tuple(StagedTablet.from_json(json.loads(answer)) for answer in staged), files, False,
                )  # fmt: skip
                # As it comes through the socket, but in this thread, where its calls can be counted.
                request = json.loads(json.dumps({"do": "commit load", "job": job.to_json()}))
                handover.answer_request(db._writer(), request)

            before = _catalogue_bytes(folder)
            commit_calls, commit_ms = _timed(lambda: _calls(commit)) if counted else (0, _timed(commit)[1])
            catalogue = _catalogue_bytes(folder) - before
        handover.discard_staging(db.path, key)
        assert table.count() == len(set(range(rows)) | set(range(0, 2 * rows, 2)))
    return Cost(
        tablets, rows, plan_ms, plan_calls, len(text), sum(map(len, staged)), commit_ms, commit_calls, catalogue,
        len(routing),
    )  # fmt: skip


@contextlib.contextmanager
def _begun(path: str) -> Iterator[dict[str, str]]:
    """A request to begin a load, which reserves the table's rowsets: the next one would wait for them."""
    lease = handover.remote_lease(path, 600)
    yield {"do": "begin load", "table": "t", "lease": lease.name, "holder": "the benchmark"}
    lease.release()


def _calls(call: Callable[[], object]) -> int:
    """How many functions the interpreter calls in this thread, without the collector's."""
    count = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    gc.collect()
    gc.disable()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def _catalogue_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("catalog.sqlite*"))


def _timed(call: Callable[[], _T]) -> tuple[_T, float]:
    begin = time.perf_counter()
    found = call()
    return found, (time.perf_counter() - begin) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.spark_plan", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help=f"{QUICK[-1]} tablets at most")
    parser.add_argument("--tablets", type=int, nargs="+", help="how many, ascending (kept as scale `own`)")
    parser.add_argument("--results", default=str(report.FOLDER), help="folder of RESULTS.md")
    parser.add_argument("--no-write", action="store_true", help="print only")
    arguments = parser.parse_args()
    scale = "own" if arguments.tablets else "quick" if arguments.quick else "full"
    folder = tempfile.mkdtemp(prefix="nyala-bench-")
    try:
        facts = machine.describe(folder)
        costs = []
        for tablets in arguments.tablets or (QUICK if arguments.quick else TABLETS):
            timed = run(tablets, Path(folder) / f"{tablets}-timed", counted=False)
            found = run(tablets, Path(folder) / f"{tablets}-counted")
            costs.append(dataclasses.replace(found, plan_ms=timed.plan_ms, commit_ms=timed.commit_ms))
        made = report_of(costs, scale)
        print(made.text(), flush=True)
        if not arguments.no_write:
            for path in report.save(made, facts, Path(arguments.results)):
                print(f"wrote {os.path.relpath(path)}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
