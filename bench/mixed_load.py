"""Runs a steady load of upserts, gets and scans, to see whether the last minute is as fast as the
first.

Three threads of one process work at fixed intervals: upserts of 100 rows (80 % existing, 20 % new,
keys over the whole key space), gets by key, and sums of one column. Maintenance is on. Each store
has its own process, so that memory can be measured. Disk and memory are recorded once per second.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

from bench import data
from bench.measure import Samples, Watch, folder_bytes, run_paced, summary
from bench.parts import Say, in_own_process
from bench.report import Aim, Report, Table, megabytes, seconds, times
from bench.stores import KINDS, MIXED, Options, choose

BATCH_ROWS = 100
NEW_IN_BATCH = 20
TEMPLATES = 64
OPERATIONS = ("upsert", "get", "scan")


@dataclass(frozen=True)
class Scale:
    """The intervals of the operations, and of `maintain` for stores that need it. Other stores run
    `peer_duration_s`.
    """

    name: str
    rows: int
    duration_s: float
    peer_duration_s: float
    warm_up_s: float
    history: str
    maintain_interval_s: float = 30.0
    upsert_interval_s: float = 0.05
    get_interval_s: float = 0.02
    scan_interval_s: float = 1.0

    @property
    def window_s(self) -> float:
        return self.window_of(self.duration_s)

    @staticmethod
    def window_of(duration_s: float) -> float:
        """Return the length of "the first minute" and "the last minute" for a run of this length."""
        return min(60.0, duration_s / 4)


FULL = Scale("full", 1_000_000, 600.0, 180.0, 15.0, "60s")
QUICK = Scale("quick", 100_000, 60.0, 20.0, 5.0, "10s", 5.0)


def spread(numbers: np.ndarray) -> np.ndarray:
    """Map the numbers 0, 1, 2 … to keys over all of 32 bits, so that new rows are between old ones."""
    return numbers.astype(np.int64) * 2_654_435_761 % 2**32


def measure(name: str, scale: Scale, folder: str, duration_s: float) -> dict[str, Any]:
    """Measure one store, in this process. The result has plain values only, because it is sent to
    the parent.
    """
    kind = next(kind for kind in KINDS if kind.name == name)
    store = kind.open(folder, Options(history=scale.history))
    rng = np.random.default_rng(11)
    store.load(data.small_rows(spread(np.arange(scale.rows)), rng), ["id"])
    loaded_bytes = folder_bytes(folder)
    templates = [data.small_rows(np.zeros(BATCH_ROWS, np.int64), rng) for _ in range(TEMPLATES)]
    live = scale.rows
    upserts, maintained = 0, [time.perf_counter()]

    def upsert() -> float:
        nonlocal live, upserts
        old = np.unique(rng.integers(0, live, BATCH_ROWS - NEW_IN_BATCH))
        new = np.arange(live, live + BATCH_ROWS - len(old))
        ids = spread(np.concatenate([old, new]))
        rows = templates[upserts % TEMPLATES].set_column(0, "id", pa.array(ids))
        store.overhead_s = 0.0
        begun = time.perf_counter()
        store.upsert(rows)
        took_s = time.perf_counter() - begun - store.overhead_s
        live += len(new)
        upserts += 1
        if time.perf_counter() - maintained[-1] >= scale.maintain_interval_s:
            store.maintain()
            maintained.append(time.perf_counter())
        return took_s

    getter, scanner = store.session(), store.session()
    picks = np.random.default_rng(12)

    def get() -> None:
        key = int(spread(picks.integers(0, live, 1))[0])
        if getter.get(key) is None:
            raise AssertionError(f"row {key} is missing")

    def scan() -> None:
        scanner.total("price")

    actions = {"upsert": upsert, "get": get, "scan": scan}
    paces = (scale.upsert_interval_s, scale.get_interval_s, scale.scan_interval_s)
    samples = {operation: Samples() for operation in OPERATIONS}
    stop = threading.Event()
    zero_s = time.perf_counter() + scale.warm_up_s
    threads = [
        threading.Thread(
            target=run_paced,
            args=(stop, zero_s, pace, actions[operation], samples[operation]),
            name=f"bench-{operation}",
        )
        for operation, pace in zip(OPERATIONS, paces, strict=True)
    ]
    watch = Watch(folder, zero_s)
    with watch.running():
        for thread in threads:
            thread.start()
        time.sleep(scale.warm_up_s + duration_s)
        stop.set()
        for thread in threads:
            thread.join()
    counters = store.counters()
    compacted = store.compact()
    found = {
        "sync_s": median(watch.sync_s),
        "live_bytes": loaded_bytes / scale.rows * live,
        "compacted_bytes": folder_bytes(folder) if compacted else None,
        "counters": counters,
        "watch": {"disk": watch.disk_bytes, "memory": watch.memory_bytes},
        "operations": {operation: _windows(samples[operation], duration_s) for operation in OPERATIONS},
    }
    store.close()
    return found


def _windows(samples: Samples, duration_s: float) -> dict[str, Any]:
    window_s = Scale.window_of(duration_s)
    first = summary(samples.between(0, window_s))
    last = summary(samples.between(duration_s - window_s, duration_s))
    whole = samples.between(0, duration_s)
    return {
        "first": first.to_dict() if first else None,
        "last": last.to_dict() if last else None,
        "worst_s": max(whole, default=None),
        "made": samples.made,
        "held_up": samples.held_up,
        "errors": samples.errors,
    }


def run(scale: Scale, folder: str, stores: Sequence[str] | None, say: Say) -> Report:
    """Measure, and return the report."""
    found: dict[str, dict[str, Any]] = {}
    for kind in choose(MIXED, stores, say):
        duration_s = scale.duration_s if kind.name == "nyala" else scale.peer_duration_s
        say(f"{kind.name}: {scale.rows:,} rows, then {scale.warm_up_s:.0f} + {duration_s:.0f} s of load")
        own = os.path.join(folder, kind.name)
        try:
            one = in_own_process(measure, kind.name, scale, own, duration_s)
        except Exception as error:
            if kind.name == "nyala":
                raise
            say(f"{kind.name} failed: {type(error).__name__}: {error}"[:300])
            continue
        found[kind.name] = one
        upsert = one["operations"]["upsert"]
        say(
            f"{kind.name}: upsert {_line(upsert)}, errors {[o['errors'] for o in one['operations'].values()]}"
        )
        shutil.rmtree(own, ignore_errors=True)
    return _report(found, scale)


def _line(operation: dict[str, Any]) -> str:
    first, last = operation["first"], operation["last"]
    if not first or not last:
        return "nothing measured"
    return (
        f"p99 {seconds(first['p99_s'])} → {seconds(last['p99_s'])}, worst {seconds(operation['worst_s'])}, "
        f"made {operation['made']:,}, held up {operation['held_up']:,}"
    )


def _report(found: dict[str, dict[str, Any]], scale: Scale) -> Report:
    table = Table(["", *found])
    for operation in OPERATIONS:
        values = [one["operations"][operation] for one in found.values()]
        for title, key in (("p50", "p50_s"), ("p99", "p99_s")):
            for window in ("first", "last"):
                cells = [seconds((value[window] or {}).get(key)) for value in values]
                table.rows.append([f"{operation}, {title} of the {window} {scale.window_s:g} s", *cells])
        table.rows.append([f"{operation}, worst", *(seconds(value["worst_s"]) for value in values)])
        counts = [f"{value['held_up']:,} of {value['made']:,}, {value['errors']:,}" for value in values]
        table.rows.append([f"{operation}, held up; errors", *counts])
    for title, key in (("live data at the end", "live_bytes"), ("disk after compaction", "compacted_bytes")):
        table.rows.append([title, *(megabytes(one[key]) for one in found.values())])
    for title, key in (("most on disk", "disk"), ("most memory", "memory")):
        table.rows.append([title, *(megabytes(max(one["watch"][key])) for one in found.values())])
    table.rows.append(["one sync meanwhile", *(seconds(one["sync_s"]) for one in found.values())])
    report = Report(
        MIXED,
        f"Steady mixed load ({scale.rows:,} rows, {scale.duration_s / 60:g} min)",
        f"{1 / scale.upsert_interval_s:g} upserts of {BATCH_ROWS} rows, {1 / scale.get_interval_s:g} gets and "
        f"{1 / scale.scan_interval_s:g} sums of a column a second; peers for {scale.peer_duration_s:g} s; history "
        f"{scale.history}; peers that need it are maintained every {scale.maintain_interval_s:g} s; an operation that "
        "a slow one held up counts its waiting",
        table,
    )
    if "nyala" in found:
        _aims(report, found["nyala"])
    return report


def _aims(report: Report, ours: dict[str, Any]) -> None:
    ratios = {}
    for operation, values in ours["operations"].items():
        if values["first"] and values["last"]:
            ratios[operation] = values["last"]["p99_s"] / values["first"]["p99_s"]
    worst = ours["operations"]["upsert"]["worst_s"]
    history = ours["counters"].get("history_bytes", 0.0)
    most, live = max(ours["watch"]["disk"]), ours["live_bytes"]
    report.aims = [
        Aim(
            "p99 at the end at most 1.2 × p99 at the beginning",
            ", ".join(f"{operation} {times(value)}" for operation, value in ratios.items()),
            max(ratios.values()) <= 1.2 if len(ratios) == len(OPERATIONS) else None,
        ),
        Aim(
            "no upsert of 100 rows takes more than 250 ms",
            f"worst {seconds(worst)}",
            worst is not None and worst <= 0.25,
        ),
        Aim(
            "disk at most 3 × live data + history",
            f"{megabytes(most)} at most; live data {megabytes(live)}; at the end history {megabytes(history)}, log "
            f"{megabytes(ours['counters'].get('log_bytes'))}",
            most <= 3 * live + history,
        ),
    ]


if __name__ == "__main__":
    from bench.__main__ import main

    main([MIXED])
