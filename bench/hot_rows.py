"""A few rows updated for ever: does the disk stay bounded, and the latency flat?

1,500 rows, a million updates of whole rows in batches of 100, one batch after the other; now and then one row is
read by its key and one column summed. (DuckDB's issue 19468: such a table grew to 1.2 GB in a day.)
"""

from __future__ import annotations

import bisect
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

from bench import data, plot
from bench.measure import Watch, folder_bytes, percentile, summary
from bench.parts import Say, in_own_process, ratio
from bench.report import Aim, Report, Table, megabytes, seconds, times
from bench.stores import HOT, KINDS, Options, choose, colour

ROWS = 1_500
BATCH_ROWS = 100
READ_EVERY = 50
# Nyala's log is flushed at 64 MiB; what comes meanwhile may make it a quarter longer.
LOG_BYTES = 80 << 20
# A peer whose last answer is wrong for longer than this has lost an update.
STALE_MAX_S = 5.0


@dataclass(frozen=True)
class Scale:
    """Nyala makes `updates` row updates; peers as many as they can in `peer_duration_s`, if that is less."""

    name: str
    updates: int
    peer_duration_s: float
    history: str
    maintain_interval_s: float


FULL = Scale("full", 1_000_000, 120.0, "30s", 30.0)
QUICK = Scale("quick", 100_000, 20.0, "3s", 5.0)


def measure(name: str, scale: Scale, folder: str) -> dict[str, Any]:
    """One store, in this process."""
    kind = next(kind for kind in KINDS if kind.name == name)
    store = kind.open(folder, Options(history=scale.history))
    rng = np.random.default_rng(3)
    rows = data.small_rows(np.arange(ROWS), rng)
    store.load(rows, ["id"])
    loaded_bytes = folder_bytes(folder)
    session = store.session()
    batches = scale.updates // BATCH_ROWS
    limit_s = float("inf") if name == "nyala" else scale.peer_duration_s
    points: list[tuple[float, float]] = []
    reads: dict[str, list[float]] = {"get": [], "sum": []}
    maintenance_s: list[float] = []
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
            points.append((begun - zero_s, time.perf_counter() - begun - store.overhead_s))
            if number % READ_EVERY == 0:
                begun = time.perf_counter()
                session.get(int(places[0]))
                between = time.perf_counter()
                session.total("count")
                reads["get"].append(between - begun)
                reads["sum"].append(time.perf_counter() - between)
            if time.perf_counter() - maintained_s >= scale.maintain_interval_s:
                begun = time.perf_counter()
                if store.maintain():
                    maintenance_s.append(time.perf_counter() - begun)
                maintained_s = time.perf_counter()
            if time.perf_counter() - zero_s > limit_s:
                break
    took_s = time.perf_counter() - zero_s
    ended_s = time.perf_counter()
    while (total := session.total("count")) != expected.sum():
        # Lance's MemWAL does not show the rows of a MemTable while it is written out.
        if name == "nyala" or time.perf_counter() - ended_s > STALE_MAX_S:
            raise AssertionError(f"{name}: the sum is {total}, not {expected.sum()}")
        time.sleep(0.05)
    stale_s = time.perf_counter() - ended_s
    counters = store.counters()
    store.close()
    tenth = max(1, len(points) // 10)
    latencies = [took for _, took in points]
    first, last = summary(latencies[:tenth]), summary(latencies[-tenth:])
    assert first is not None and last is not None
    begun_s = [at for at, _ in points]
    made = [bisect.bisect(begun_s, at) * BATCH_ROWS for at in watch.times_s]
    step = max(1, len(points) // 120)
    cut = [points[at : at + step] for at in range(0, len(points), step)]
    return {
        "took_s": took_s,
        "updates": len(points) * BATCH_ROWS,
        "first": first.to_dict(),
        "last": last.to_dict(),
        "worst_s": max(latencies),
        "reads": {kind: summary(values).to_dict() for kind, values in reads.items() if values},  # type: ignore[union-attr]
        "maintenance_s": maintenance_s,
        "stale_s": stale_s if stale_s >= 0.05 else None,
        "sync_s": median(watch.sync_s),
        "loaded_bytes": loaded_bytes,
        "counters": counters,
        "watch": {"updates": made, "disk": watch.disk_bytes, "memory": watch.memory_bytes},
        "series": [
            (at * step * BATCH_ROWS, percentile([took for _, took in part], 0.99))
            for at, part in enumerate(cut)
        ],
    }


def run(scale: Scale, folder: str, stores: Sequence[str] | None, say: Say) -> Report:
    """Measure, and report."""
    found: dict[str, dict[str, Any]] = {}
    settings = {}
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
        settings[kind.name] = kind.settings
        say(
            f"{kind.name}: {one['updates']:,} in {one['took_s']:.1f} s, p99 {seconds(one['first']['p99_s'])} → "
            f"{seconds(one['last']['p99_s'])}, disk {megabytes(max(one['watch']['disk']))} at most"
        )
        shutil.rmtree(own, ignore_errors=True)
    return _report(found, settings, scale)


def thirds(values: Sequence[int]) -> tuple[int, int]:
    """The largest of the middle third and of the last: a disk that only fills up to its history shows no growth."""
    third = max(1, len(values) // 3)
    return max(values[third : 2 * third] or values), max(values[-third:])


def _report(found: dict[str, dict[str, Any]], settings: dict[str, str], scale: Scale) -> Report:
    report = Report(HOT, scale.name, f"Hot rows ({scale.name}: {scale.updates:,} updates of {ROWS:,} rows)")
    report.facts = [
        f"Batches of {BATCH_ROWS} rows, whole rows, one after the other, a commit each; "
        f"history {scale.history}; peers end after {scale.peer_duration_s:g} s, and those that "
        f"need it are maintained every {scale.maintain_interval_s:g} s",
        "First and last: a tenth of the batches that were made",
    ]
    report.settings = settings
    ours = found.get("nyala")
    table = Table(
        [
            "store",
            "updates",
            "seconds",
            "updates/s",
            "Nyala ÷ it",
            "p50 last",
            "p99 first",
            "p99 last",
            "last ÷ first",
            "worst",
            "get p50",
            "sum p50",
        ]
    )
    space = Table(
        [
            "space",
            "loaded",
            "most on disk",
            "middle third",
            "last third",
            "bytes an update",
            "most memory",
            "own maintenance",
            "one sync meanwhile",
        ]
    )
    for name, one in found.items():
        rate = one["updates"] / one["took_s"]
        ours_rate = ours["updates"] / ours["took_s"] if ours else None
        table.rows.append(
            [
                name,
                f"{one['updates']:,}",
                seconds(one["took_s"]),
                f"{rate:,.0f}",
                times(ratio(ours_rate, rate)),
                seconds(one["last"]["p50_s"]),
                seconds(one["first"]["p99_s"]),
                seconds(one["last"]["p99_s"]),
                times(one["last"]["p99_s"] / one["first"]["p99_s"]),
                seconds(one["worst_s"]),
                seconds(one["reads"]["get"]["p50_s"]),
                seconds(one["reads"]["sum"]["p50_s"]),
            ]
        )
        disk = one["watch"]["disk"]
        middle, last = thirds(disk)
        spent = one["maintenance_s"]
        space.rows.append(
            [
                name,
                megabytes(one["loaded_bytes"]),
                megabytes(max(disk)),
                megabytes(middle),
                megabytes(last),
                f"{(max(disk) - one['loaded_bytes']) / one['updates']:,.1f}",
                megabytes(max(one["watch"]["memory"]) or None),
                f"{len(spent)} calls, {seconds(max(spent))} the longest" if spent else "by itself",
                seconds(one["sync_s"]),
            ]
        )
    for name, one in found.items():
        if one["stale_s"] is not None:
            report.facts.append(
                f"{name} gave a stale sum after its last update, for {seconds(one['stale_s'])}"
            )
    report.tables += [("Speed and latency of a batch", table), ("Disk and memory", space)]
    if ours is not None:
        most, history = max(ours["watch"]["disk"]), ours["counters"].get("history_bytes", 0.0)
        flat = ours["last"]["p99_s"] / ours["first"]["p99_s"]
        report.aims += [
            Aim(
                "the disk is bounded: at most 3 × live data + history + the log (64 MiB, a quarter more while flushed)",
                f"{megabytes(most)} at most; live data {megabytes(ours['loaded_bytes'])}, at the end history "
                f"{megabytes(history)}, log {megabytes(ours['counters'].get('log_bytes'))}",
                most <= 3 * ours["loaded_bytes"] + history + LOG_BYTES,
            ),
            Aim("p99 of the last tenth at most 1.2 × that of the first", times(flat), flat <= 1.2),
        ]
        if ours["counters"]:
            text = ", ".join(
                f"{key} {value:,.0f}" for key, value in ours["counters"].items() if key != "timestamp"
            )
            report.facts.append(f"Nyala says of itself at the end: {text}")
    name = "hot_rows.svg" if scale.name == "full" else f"hot_rows-{scale.name}.svg"
    report.plots[name] = _plot(found)
    return report


def _plot(found: dict[str, dict[str, Any]]) -> str:
    latency = [
        plot.Series(
            n,
            [at / 1e3 for at, _ in one["series"]],
            [took * 1e3 for _, took in one["series"]],
            colour=colour(n),
        )
        for n, one in found.items()
    ]
    disk, memory = (
        [
            plot.Series(
                n,
                [count / 1e3 for count in one["watch"]["updates"]],
                [v / 1e6 for v in one["watch"][what]],
                colour=colour(n),
            )
            for n, one in found.items()
        ]
        for what in ("disk", "memory")
    )
    panels = [
        plot.Panel("Update of 100 rows, p99 [ms]", latency, log=True),
        plot.Panel("Disk [MB]", disk, log=True),
        plot.Panel("Memory [MB]", memory),
    ]
    return plot.figure("Hot rows: 1,500 rows updated for ever", "thousand updates", panels)


if __name__ == "__main__":
    from bench.__main__ import main

    main([HOT])
