"""Measures how fast data files in a bucket are read: `python -m bench.remote_reads [--delay-ms 20]
[--mb-per-s 100]`.

An S3 server in a process of its own answers each request after a delay. The data files of a store
are uploaded to it. The same scans and look-ups run with an empty cache. They are compared with
`get_ranges` of the same chunks alone, which is the fastest way to get these bytes. The server is
slow, because it is written in Python. So only ratios mean something.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa

import nyala
from nyala.env import SYSTEM, Bytes, Env
from nyala.objects.base import Objects
from nyala.objects.chunk_cache import CHUNK_BYTES
from nyala.objects.open import open_objects
from nyala.objects.remote_files import RemoteFiles
from nyala.tablet.scan.token import read_token

_SERVER = """
import json, sys, time
from nyala.testing import S3Server
with S3Server() as server:
    print(json.dumps({"url": server.url, "options": dict(server.options)}), flush=True)
    for line in sys.stdin:
        server.delay_s = float(line)
        print("ok", flush=True)
"""
TRIES = 5


class Throttled:
    """Objects behind a network that delivers `mb_per_s` to all requests together."""

    def __init__(self, objects: Objects, mb_per_s: float) -> None:
        self._objects, self._mb_per_s = objects, mb_per_s
        self._lock, self._free_at = threading.Lock(), 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objects, name)

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[Bytes]:
        parts = self._objects.get_ranges(key, ranges)
        with self._lock:
            size = sum(memoryview(part).nbytes for part in parts)
            self._free_at = max(self._free_at, time.perf_counter()) + size / (self._mb_per_s * 1e6)
            pause_s = self._free_at - time.perf_counter()
        time.sleep(max(0.0, pause_s))
        return parts


class Rooted(RemoteFiles):
    """Files that find the paths of a local store in the bucket, so that its scan tokens can be
    read.
    """

    def __init__(self, files: RemoteFiles, root: str, url: str) -> None:
        super().__init__(files.cache)
        self._root, self._url = root, url

    def open(self, path: str) -> Any:
        return super().open(self._url + path.removeprefix(self._root))


def make(folder: Path, rows: int) -> None:
    """Return rows like lineitem: numbers that compress a little, dates, and text with few values."""
    chance = np.random.default_rng(7)
    with nyala.connect(folder, maintenance=False) as db:
        table = db.create_table(
            "l", {"k": "int64", "price": "double", "tax": "int32", "day": "date", "note": "string"}, "k"
        )
        for first in range(0, rows, 1_000_000):
            count = min(1_000_000, rows - first)
            table.insert(
                pa.table(
                    {
                        "k": np.arange(first, first + count),
                        "price": chance.random(count),
                        "tax": chance.integers(0, 1 << 20, count).astype(np.int32),
                        "day": pa.array(chance.integers(8000, 12000, count).astype(np.int32)).cast(
                            pa.date32()
                        ),
                        "note": np.array(["none", "return", "collect"])[chance.integers(0, 3, count)],
                    }
                )
            )
            db.flush()


def median_s(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the median of several runs in seconds, and the last result."""
    times, result = [], None
    for _ in range(TRIES):
        began = time.perf_counter()
        result = work()
        times.append(time.perf_counter() - began)
    return statistics.median(times), result


def fetch_alone(objects: Objects, ranges: list[tuple[str, int, int]]) -> int:
    """Get these ranges (key, lower, upper), with as many requests at the same time as the cache
    makes.
    """
    with ThreadPoolExecutor(32) as pool:
        parts = pool.map(lambda one: objects.get_ranges(one[0], [one[1:]]), ranges)
        return sum(memoryview(part).nbytes for found in parts for part in found)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--delay-ms", type=float, default=20)
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--mb-per-s", type=float, default=1e6, help="of the network; default: no limit")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="nyala-bench-"))
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdin is not None and server.stdout is not None
    try:
        make(folder / "store", arguments.rows)
        found = json.loads(server.stdout.readline())
        objects = open_objects(found["url"], found["options"])
        for path in sorted((folder / "store" / "data").rglob("*.*")):
            key = str(path.relative_to(folder / "store"))
            objects.upload(key, [path.read_bytes()])
        server.stdin.write(f"{arguments.delay_ms / 1000}\n")
        server.stdin.flush()
        server.stdout.readline()
        compare(folder, cast(Objects, Throttled(objects, arguments.mb_per_s)))
        objects.close()
    finally:
        server.kill()
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)


def compare(folder: Path, objects: Objects) -> None:
    scans: dict[str, dict[str, Any]] = {
        "all columns": {},
        "two columns, a filter": {"columns": ["price"], "where": "tax < 100000"},
        "a range of 1,000 keys": {"where": "k >= 1500000 and k < 1501000"},
        "one key": {"where": "k = 777777"},
    }
    with nyala.connect(folder / "store", maintenance=False) as db:
        tokens = {name: db["l"].scan(**scan).tokens() for name, scan in scans.items()}
    heads = f"{'rounds':>6} {'requests':>8} {'MB':>6} {'ms':>7} {'alone':>7} {'share':>6} {'warm ms':>8} {'folder':>7}"
    print(f"{'scan':24} {heads}")
    for name, parts in tokens.items():

        def run(env: Env, parts: list[bytes] = parts) -> int:
            return sum(batch.num_rows for token in parts for batch in read_token(token, env))

        local_s, expected = median_s(lambda run=run: run(SYSTEM))  # type: ignore[misc]
        seen: dict[str, Any] = {}

        def cold(run: Callable[[Env], int] = run, seen: dict[str, Any] = seen) -> int:
            files = RemoteFiles.over(objects, SYSTEM, str(folder / "cache"), 1 << 30)
            rooted = Rooted(files, str(folder / "store"), objects.url)
            env = Env(rooted, SYSTEM.clock, SYSTEM.randomness)
            rows = run(env)
            cache = files.cache
            seen["ranges"] = [
                (entry.key, lower * CHUNK_BYTES, upper * CHUNK_BYTES)
                for entry in cache._copied.values()
                if entry.copy is not None
                for lower, upper in runs_of(sorted(entry.copy.held))
            ]
            seen["figures"] = cache.rounds, cache.requests, cache.fetched_bytes / 1e6
            began = time.perf_counter()
            run(env)
            seen["warm_s"] = time.perf_counter() - began
            seen["cold_end"] = began
            files.close()
            return rows

        times = []
        for _ in range(TRIES):
            began = time.perf_counter()
            assert cold() == expected
            times.append(seen["cold_end"] - began)
        alone_s, _ = median_s(lambda seen=seen: fetch_alone(objects, seen["ranges"]))  # type: ignore[misc]
        rounds, requests, megabytes = seen["figures"]
        cold_s = statistics.median(times)
        print(
            f"{name:24} {rounds:6} {requests:8} {megabytes:6.1f} {cold_s * 1e3:7.0f} {alone_s * 1e3:7.0f} "
            f"{alone_s / cold_s:6.0%} {seen['warm_s'] * 1e3:8.0f} {local_s * 1e3:7.0f}"
        )


def runs_of(chunks: list[int]) -> list[tuple[int, int]]:
    """Return the runs of adjacent chunks, of at most 4 MB each."""
    runs: list[tuple[int, int]] = []
    for chunk in chunks:
        if runs and chunk == runs[-1][1] and chunk - runs[-1][0] < 16:
            runs[-1] = runs[-1][0], chunk + 1
        else:
            runs.append((chunk, chunk + 1))
    return runs


if __name__ == "__main__":
    main()
