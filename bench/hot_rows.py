"""Updates a few rows a million times, to see whether disk space stays bounded and latency constant.

The table has 1,500 rows. Batches update 100 whole rows each, one batch after the other. From time
to time one row is read by its key, and one column is summed. (In DuckDB's issue 19468, such a table
grew to 1.2 GB in a day.)
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

from bench import data
from bench.measure import Watch, folder_bytes, summary
from bench.parts import Say, in_own_process
from bench.report import Aim, Report, Table, at_most, megabytes, seconds
from bench.stores import HOT, KINDS, Options, choose

ROWS = 1_500
BATCH_ROWS = 100
READ_EVERY = 50
# Nyala flushes its log at 64 MiB. Writes during the flush may make it a quarter longer.
LOG_BYTES = 80 << 20


@dataclass(frozen=True)
class Scale:
    """updates: row updates of Nyala. Other stores stop after `peer_duration_s`, if that is earlier."""

    name: str
    updates: int
    peer_duration_s: float
    history: str
    maintain_interval_s: float


FULL = Scale("full", 1_000_000, 120.0, "30s", 30.0)
QUICK = Scale("quick", 100_000, 20.0, "3s", 5.0)


def measure(name: str, scale: Scale, folder: str) -> dict[str, Any]:
    """Measure one store, in this process."""
    kind = next(kind for kind in KINDS if kind.name == name)
    store = kind.open(folder, Options(history=scale.history))
    rng = np.random.default_rng(3)
    rows = data.small_rows(np.arange(ROWS), rng)
    store.load(rows, ["id"])
    loaded_bytes = folder_bytes(folder)
    session = store.session()
    batches = scale.updates // BATCH_ROWS
    limit_s = float("inf") if name == "nyala" else scale.peer_duration_s
    latencies: list[float] = []
    reads: dict[str, list[float]] = {"get": [], "sum": []}
    expected = rows.column("count").to_numpy().copy()
    zero_s = maintained_s = time.perf_counter()
    watch = Watch(folder, zero_s, 0.5)
    with watch.running():
        for number in range(batches):
            places = rng.permutation(ROWS)[:BATCH_ROWS]
            counts = rng.integers(0, 1000, BATCH_ROWS)
            expected[places] = counts
            given = rows.take(pa.array(places))
            given = given.set_column(given.column_names.index("count"), "count", pa.array(counts))
            store.overhead_s = 0.0
            begun = time.perf_counter()
            store.upsert(given)
            latencies.append(time.perf_counter() - begun - store.overhead_s)
            if number % READ_EVERY == 0:
                begun = time.perf_counter()
                session.get(int(places[0]))
                between = time.perf_counter()
                session.total("count")
                reads["get"].append(between - begun)
                reads["sum"].append(time.perf_counter() - between)
            if time.perf_counter() - maintained_s >= scale.maintain_interval_s:
                store.maintain()
                maintained_s = time.perf_counter()
            if time.perf_counter() - zero_s > limit_s:
                break
    took_s = time.perf_counter() - zero_s
    total = session.total("count")
    if total != expected.sum():
        raise AssertionError(f"{name}: the sum is {total}, not {expected.sum()}")
    counters = store.counters()
    store.close()
    tenth = max(1, len(latencies) // 10)
    first, last = summary(latencies[:tenth]), summary(latencies[-tenth:])
    assert first is not None and last is not None
    return {
        "took_s": took_s,
        "updates": len(latencies) * BATCH_ROWS,
        "first": first.to_dict(),
        "last": last.to_dict(),
        "worst_s": max(latencies),
        "reads": {kind: summary(values).to_dict() for kind, values in reads.items() if values},  # type: ignore[union-attr]
        "sync_s": median(watch.sync_s),
        "loaded_bytes": loaded_bytes,
        "counters": counters,
        "watch": {"disk": watch.disk_bytes, "memory": watch.memory_bytes},
    }


def run(scale: Scale, folder: str, stores: Sequence[str] | None, say: Say) -> Report:
    """Measure, and return the report."""
    found: dict[str, dict[str, Any]] = {}
    for kind in choose(HOT, stores, say):
        say(f"{kind.name}: {scale.updates:,} updates of {ROWS:,} rows")
        own = os.path.join(folder, kind.name)
        try:
            one = in_own_process(measure, kind.name, scale, own)
        except Exception as error:
            if kind.name == "nyala":
                raise
            say(f"{kind.name} failed: {type(error).__name__}: {error}"[:300])
            continue
        found[kind.name] = one
        say(
            f"{kind.name}: {one['updates']:,} in {one['took_s']:.1f} s, p99 {seconds(one['first']['p99_s'])} → "
            f"{seconds(one['last']['p99_s'])}, disk {megabytes(max(one['watch']['disk']))} at most"
        )
        shutil.rmtree(own, ignore_errors=True)
    return _report(found, scale)


def thirds(values: Sequence[int]) -> tuple[int, int]:
    """Return the largest values of the second and the last third. Growth during the first third is
    expected: the history fills up.
    """
    third = max(1, len(values) // 3)
    return max(values[third : 2 * third] or values), max(values[-third:])


def _report(found: dict[str, dict[str, Any]], scale: Scale) -> Report:
    columns = {
        "updates": lambda one: f"{one['updates']:,}",
        "updates a second": lambda one: f"{one['updates'] / one['took_s']:,.0f}",
        "batch, p50 of the last tenth": lambda one: seconds(one["last"]["p50_s"]),
        "batch, p99 of the first tenth": lambda one: seconds(one["first"]["p99_s"]),
        "batch, p99 of the last tenth": lambda one: seconds(one["last"]["p99_s"]),
        "batch, worst": lambda one: seconds(one["worst_s"]),
        "get, p50": lambda one: seconds(one["reads"]["get"]["p50_s"]),
        "sum of a column, p50": lambda one: seconds(one["reads"]["sum"]["p50_s"]),
        "live data": lambda one: megabytes(one["loaded_bytes"]),
        "disk, most of the middle third": lambda one: megabytes(thirds(one["watch"]["disk"])[0]),
        "disk, most of the last third": lambda one: megabytes(thirds(one["watch"]["disk"])[1]),
        "most memory": lambda one: megabytes(max(one["watch"]["memory"])),
        "one sync meanwhile": lambda one: seconds(one["sync_s"]),
    }
    table = Table(["", *found])
    table.rows = [[title, *map(cell, found.values())] for title, cell in columns.items()]
    report = Report(
        HOT,
        f"Hot rows ({scale.updates:,} updates of {ROWS:,} rows)",
        f"Batches of {BATCH_ROWS} whole rows, one after the other, a commit each; history {scale.history}; peers "
        f"end after {scale.peer_duration_s:g} s, maintained every {scale.maintain_interval_s:g} s if they need it",
        table,
    )
    if ours := found.get("nyala"):
        most, history = max(ours["watch"]["disk"]), ours["counters"].get("history_bytes", 0.0)
        flat = ours["last"]["p99_s"] / ours["first"]["p99_s"]
        report.aims = [
            Aim(
                "disk at most 3 × live data + history + the log (64 MiB, a quarter more while it is flushed)",
                f"{megabytes(most)} at most; at the end history {megabytes(history)}, log "
                f"{megabytes(ours['counters'].get('log_bytes'))}",
                most <= 3 * ours["loaded_bytes"] + history + LOG_BYTES,
            ),
            at_most("p99 of the last tenth at most 1.2 × that of the first", flat, 1.2),
        ]
    return report


if __name__ == "__main__":
    from bench.__main__ import main

    main([HOT])
