"""Measures a store in a bucket: commits per second, opening, take-over and reads, at three delays
of the service.

An S3 server in a process of its own (`nyala.testing.S3Server`) answers each request after the
delay. The data is the same for each delay. The numbers of requests do not depend on the machine;
times are those of this Python server.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

import nyala
from bench.parts import Say
from bench.report import Report, Table, seconds
from bench.stores import BUCKET

# A GET of the bucket itself is a LIST, and a POST to the bucket is a batch delete.
_SERVER = """
import json, sys
from collections import Counter
from nyala.testing import S3Server
seen = Counter()
def note(request):
    seen[request.verb if request.key else {"GET": "LIST", "POST": "DELETE"}.get(request.verb, request.verb)] += 1
with S3Server() as server:
    server.faults = note
    print(json.dumps(dict(server.options)), flush=True)
    for line in sys.stdin:
        if line.strip():
            server.delay_s = float(line)
        size = server.bytes_sent.total() + server.bytes_received.total()
        print(json.dumps([dict(seen), size]), flush=True)
"""
DELAYS_S = (0.005, 0.040, 0.100)


@dataclass(frozen=True)
class Scale:
    """rows: rows to load; commit_s: seconds for which commits are counted."""

    name: str
    rows: int
    commit_s: float


FULL = Scale("full", 2_000_000, 8.0)
QUICK = Scale("quick", 200_000, 2.0)


@dataclass(frozen=True)
class Traffic:
    """Numbers of requests by verb (PUT, POST, LIST, GET, HEAD, DELETE), and the bytes of their
    bodies.
    """

    requests: Counter[str]
    nbytes: int

    def __sub__(self, before: Traffic) -> Traffic:
        return Traffic(self.requests - before.requests, self.nbytes - before.nbytes)

    def __str__(self) -> str:
        return f"{self.requests.total():,} requests, {self.nbytes / 1e6:,.1f} MB"


class Server:
    """The process with the S3 server: its storage options, its delay, and its traffic so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.options = json.loads(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def traffic(self, delay_s: float | None = None) -> Traffic:
        """Return the traffic so far, and set the delay."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{'' if delay_s is None else delay_s}\n")
        self._process.stdin.flush()
        requests, nbytes = json.loads(self._line())
        return Traffic(Counter(requests), nbytes)

    def during(self, work: Callable[[], Any]) -> tuple[float, Traffic, Any]:
        """Return the seconds and the traffic of a call, and its result."""
        before, begun = self.traffic(), time.perf_counter()
        result = work()
        took_s = time.perf_counter() - begun
        return took_s, self.traffic() - before, result


@contextmanager
def server() -> Iterator[Server]:
    command = [sys.executable, "-c", _SERVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Server(process)
        finally:
            process.kill()


def commits(table: nyala.Table, threads: int, for_s: float) -> tuple[float, float, float]:
    """Return commits per second of threads that upsert one row each, and the p50 and p99 of a call
    in seconds.
    """
    took: list[float] = []
    until = time.perf_counter() + for_s

    def write(first: int) -> None:
        key = first
        while (begun := time.perf_counter()) < until:
            table.upsert({"k": [key], "v": [0.5]})
            took.append(time.perf_counter() - begun)
            key += threads

    workers = [threading.Thread(target=write, args=(10**9 + number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    ordered = sorted(took)
    return len(took) / for_s, median(ordered), ordered[int(len(ordered) * 0.99)]


def measure(scale: Scale, folder: str, at: Server, delay_s: float) -> dict[str, str]:
    """Return all figures for one delay, as text by title."""
    at.traffic(0.0)
    url = f"s3://bucket/store/{round(delay_s * 1000)}"
    keep = {"storage_options": at.options, "cache_dir": os.path.join(folder, "cache")}
    rng = np.random.default_rng(5)
    rows = pa.table({"k": np.arange(scale.rows), "v": rng.random(scale.rows)})
    found: dict[str, str] = {}
    with nyala.connect(url, **keep, maintenance=False) as db:
        _, traffic, _ = at.during(
            lambda: db.create_table("t", rows.schema, "k", nyala.hash_partition("k", buckets=4)).insert(rows)
        )
        found["requests of a load, per million rows"] = f"{traffic.requests.total() * 1e6 / scale.rows:,.0f}"
    at.traffic(delay_s)
    for threads, interval_s in ((1, 0.0), (64, 0.0), (64, 0.1)):
        with nyala.connect(url, **keep, group_interval=interval_s, take_over=True) as db:
            took_s, traffic, (rate, p50_s, p99_s) = at.during(
                lambda db=db, threads=threads: commits(db["t"], threads, scale.commit_s)
            )
            title = f"commits a second, {threads} threads, group_interval={interval_s:g}"
            per_s = traffic.requests.total() / took_s
            found[title] = (
                f"{rate:,.0f} (p50 {seconds(p50_s)}, p99 {seconds(p99_s)}, {per_s:,.0f} requests/s)"
            )
            db.flush()
    with nyala.connect(url, **keep, take_over=True) as db:
        db["t"].flush()
    open_s, traffic, db = at.during(lambda: nyala.connect(url, **keep, take_over=True, maintenance=False))
    found["open, or take over"] = f"{seconds(open_s)} ({traffic})"
    db.close()
    reader = nyala.connect(url, **keep, read_only=True, refresh=3600)
    for title in ("cold", "warm"):
        took_s, traffic, row = at.during(lambda: reader["t"].get(scale.rows // 2))
        assert row is not None
        found[f"look-up of a key, {title}"] = f"{seconds(took_s)} ({traffic})"
    for title in ("cold", "warm"):
        took_s, traffic, total = at.during(lambda: reader["t"].scan(columns=["v"]).to_arrow().num_rows)
        assert total >= scale.rows
        found[f"scan of a column, {title}"] = f"{seconds(took_s)} ({traffic})"
    reader.close()
    return found


def run(scale: Scale, folder: str, stores: Sequence[str] | None, say: Say) -> Report:
    """Measure, and return the report."""
    found: dict[float, dict[str, str]] = {}
    with server() as at:
        for delay_s in DELAYS_S:
            say(f"a service that answers after {delay_s * 1000:g} ms")
            found[delay_s] = measure(scale, os.path.join(folder, f"{delay_s:g}"), at, delay_s)
    table = Table(["each request takes", *(f"{delay_s * 1000:g} ms" for delay_s in found)])
    titles = next(iter(found.values()))
    table.rows = [[title, *(one[title] for one in found.values())] for title in titles]
    return Report(
        BUCKET,
        f"A store in a bucket ({scale.rows:,} rows of 16 bytes)",
        "An S3 server in Python in a process of its own answers after the delay. Cold: an empty cache",
        table,
    )


if __name__ == "__main__":
    from bench.__main__ import main

    main([BUCKET])
