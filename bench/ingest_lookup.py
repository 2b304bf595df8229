"""Loads lineitem, changes rows by key and looks rows up by key: Nyala with one tablet and with
four, and other stores.

Each store has its own process, and the steps have one order: load; get of new keys, and of the same
keys again; get of 1,000 keys; key ranges; inserts of one row; upserts of 1,000 rows, half of them
new, with uniform and with Zipfian keys; one column of 10,000 rows; deletes of 1,000 keys. Every
write is durable when it returns. The first call of each step is not counted. At the end the number
of rows is checked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa

from bench import data
from bench.measure import folder_bytes, synced_append_s
from bench.parts import Say, in_own_process, ratio
from bench.report import Aim, Report, Table, megabytes, seconds, times
from bench.rows import CHANGED, Rows
from bench.stores import INGEST, choose
from bench.stores.keyed import Keyed, open_keyed

HASHED = "nyala-hash4"
# TPC-H has line numbers 1 to 7. With these numbers, new keys are between existing ones.
NEW_LINES = {"insert": 10, "uniform": 20, "zipf": 30}
STEPS = {
    "load": "load",
    "get_first": "get, first time",
    "get": "get, again",
    "get_many": "1,000 keys",
    "range": "key range of about 100 rows",
    "insert": "insert of one row",
    "uniform": "upsert of 1,000, uniform",
    "zipf": "upsert of 1,000, Zipfian",
    "update": "one column in 10,000 rows",
    "delete": "delete of 1,000 keys",
}
# Bounds of Nyala's medians, in seconds. Writes may take one sync more.
BOUNDS = {"load": 5.0, "get": 0.3e-3, "get_many": 11e-3, "range": 0.5e-3}
WRITE_BOUNDS = {"insert": 0.5e-3, "uniform": 4e-3, "zipf": 4e-3, "update": 15e-3}


@dataclass(frozen=True)
class Scale:
    name: str
    scale_factor: float
    inserts: int = 300
    upserts: int = 100
    updates: int = 10
    deletes: int = 10
    gets: int = 1000
    many: int = 20
    ranges: int = 1000
    batch_rows: int = 1000
    update_rows: int = 10_000
    # A step of another store ends after this many seconds.
    peer_step_s: float = 30.0


FULL = Scale("full", 1.0)
QUICK = Scale("quick", 0.05, upserts=50, gets=300, ranges=300, peer_step_s=5.0)


def run(scale: Scale, folder: str, stores: Sequence[str] | None, say: Say) -> Report:
    """Measure, and return the report."""
    table, source = data.lineitem(scale.scale_factor, folder)
    note = f"{source}, {table.num_rows:,} rows; medians of single calls"
    given = os.path.join(folder, "lineitem")
    data.write_mapped(table, given)
    del table
    found = {}
    for kind in choose(INGEST, stores, say):
        for name in (kind.name, HASHED) if kind.name == "nyala" else (kind.name,):
            found[name] = in_own_process(_measure, name, given, os.path.join(folder, name), scale)
            shown = ", ".join(f"{step} {seconds(_p50(found[name], step))}" for step in STEPS)
            say(f"{name}: {shown}")
    return _report(found, scale, note)


def _measure(name: str, given: str, folder: str, scale: Scale) -> dict[str, Any]:
    """Run all steps of one store, in this process."""
    rows = Rows(data.read_mapped(given), NEW_LINES)
    store = open_keyed(name, folder)
    try:
        return _steps(store, name, rows, folder, scale)
    finally:
        store.close()


def _steps(store: Keyed, name: str, rows: Rows, folder: str, scale: Scale) -> dict[str, Any]:
    sync_s = [synced_append_s(os.path.dirname(folder)) for _ in range(15)]
    begun = perf_counter()
    store.load(rows.table, data.LINEITEM_KEY)
    taken = {"load": [perf_counter() - begun - store.overhead_s]}
    disk = folder_bytes(folder)
    expected = rows.table.num_rows
    limit_s = float("inf") if name.startswith("nyala") else scale.peer_step_s
    for step, actions in _actions(store, rows, scale):
        taken[step] = []
        step_begun = perf_counter()
        try:
            for number, (action, added, answer) in enumerate(actions):
                if number > 1 and perf_counter() - step_begun > limit_s:
                    break
                store.overhead_s = 0.0
                begun = perf_counter()
                got = action()
                if number:
                    taken[step].append(perf_counter() - begun - store.overhead_s)
                expected += added
                if answer is not None and got != answer:
                    raise AssertionError(f"{name} gave a wrong result: {step}: {got}, not {answer}")
        except NotImplementedError:
            continue
    counted = store.count()
    if counted != expected:
        raise AssertionError(f"{name} has {counted:,} rows at the end, not {expected:,}")
    sync_s += [synced_append_s(os.path.dirname(folder)) for _ in range(15)]
    return {"taken": taken, "sync_s": median(sync_s), "disk": disk}


def _p50(found: dict[str, Any], step: str) -> float | None:
    taken = found["taken"].get(step)
    return median(taken) if taken else None


# One call: the function, the number of added rows, and the expected result (None: not compared).
Call = tuple[Callable[[], Any], int, Any]


def _actions(store: Keyed, rows: Rows, scale: Scale) -> Iterator[tuple[str, Iterator[Call]]]:
    """Yield the steps in order. The data of a step is made before its time begins."""
    total, size = rows.table.num_rows, min(scale.batch_rows, rows.table.num_rows // 8)
    rng = np.random.default_rng(11)
    orderkeys = rows.table.column("l_orderkey")

    asked = rows.keys(rng.integers(0, total, scale.gets + 1)).to_pylist()

    def gets() -> Iterator[Call]:
        for key in asked:
            yield (lambda key=key: store.get(key)), 0, True

    def manys() -> Iterator[Call]:
        for _ in range(scale.many + 1):
            keys = rows.keys(rng.choice(total, size, replace=False))
            yield (lambda keys=keys: store.get_many(keys)), 0, size

    def ranges() -> Iterator[Call]:
        places = rng.integers(0, max(1, total - 110), scale.ranges + 1)
        lowers = orderkeys.take(pa.array(places)).to_pylist()
        uppers = orderkeys.take(pa.array(np.minimum(places + 97, total - 1))).to_pylist()
        for lower, upper in zip(lowers, uppers, strict=True):
            yield (lambda lower=lower, upper=upper: store.key_range("l_orderkey", lower, upper)), 0, None

    def inserts() -> Iterator[Call]:
        for number in range(scale.inserts + 1):
            row = rows.new(rows.spread(number, number + 1), "insert")
            yield (lambda row=row: store.insert(row)), 1, None

    def upserts(step: str) -> Iterator[Call]:
        half = size // 2
        for number in range(scale.upserts + 1):
            if step == "zipf":
                old = rows.zipfian(rng, half)
            else:
                old = rng.choice(total, half, replace=False)
            places = rows.spread(number * half, (number + 1) * half)
            # A small table has too few rows: repeated keys are not new.
            grows = max(0, min(half, total - number * half))
            batch = rows.half_new(old, places, step)
            yield (lambda batch=batch: store.upsert(batch)), grows, None

    def updates() -> Iterator[Call]:
        for number in range(scale.updates + 1):
            keys = rows.keys(np.sort(rng.choice(total, min(scale.update_rows, total), replace=False)))
            values = pa.array([Decimal(number + 1)] * len(keys), rows.table.schema.field(CHANGED).type)
            batch = keys.append_column(rows.table.schema.field(CHANGED), values).combine_chunks()
            yield (lambda batch=batch: store.update(batch)), 0, None

    def deletes() -> Iterator[Call]:
        for number in range(min(scale.deletes + 1, total // size)):
            keys = rows.keys(rows.spread(number * size, (number + 1) * size)).combine_chunks()
            yield (lambda keys=keys: store.delete(keys)), -size, None

    yield "get_first", gets()
    yield "get", gets()
    yield "get_many", manys()
    yield "range", ranges()
    yield "insert", inserts()
    yield "uniform", upserts("uniform")
    yield "zipf", upserts("zipf")
    yield "update", updates()
    yield "delete", deletes()


def _report(found: dict[str, dict[str, Any]], scale: Scale, note: str) -> Report:
    ours = found.get("nyala")
    table = Table(["step", *found])
    for step, title in STEPS.items():
        cells = []
        for name, one in found.items():
            mine = _p50(one, step)
            beside = ratio(_p50(ours, step), mine) if ours and name != "nyala" else None
            cells.append(seconds(mine) + ("" if beside is None else f" ({times(beside)})"))
        table.rows.append([title, *cells])
    table.rows.append(["one sync", *(seconds(one["sync_s"]) for one in found.values())])
    table.rows.append(["on disk after the load", *(megabytes(one["disk"]) for one in found.values())])
    report = Report(
        INGEST,
        f"Ingest and look-up (lineitem of SF {scale.scale_factor:g})",
        f"{note}; in brackets Nyala's time ÷ it; new keys lie among the old ones",
        table,
    )
    if ours is not None:
        for step, bound in {**BOUNDS, **WRITE_BOUNDS}.items():
            sync_s = ours["sync_s"] if step in WRITE_BOUNDS else 0.0
            mine = _p50(ours, step)
            text = f"{STEPS[step]}: at most {'one sync + ' if sync_s else ''}{seconds(bound)}"
            report.aims.append(Aim(text, seconds(mine), None if mine is None else mine <= bound + sync_s))
    return report


if __name__ == "__main__":
    from bench.__main__ import main

    main([INGEST])
