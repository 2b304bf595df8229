"""Counts the requests of a store in a bucket, and their price: for a million rows, for an open, and
for a take-over.

Prices are list prices of requests. The price of storage, and of traffic out of the region, is not
included.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

import nyala
from bench.bucket import Server, Traffic, server
from bench.parts import Say
from bench.report import Report, Table, seconds
from bench.stores import BUCKET_COSTS
from nyala.catalog.codec import encode_change
from nyala.catalog.model import CatalogChange
from nyala.tablet.check import bucket_at
from nyala.tablet.media.bucket import open_bucket
from nyala.wal.record import ChangeRecord

# Dollars per request of S3 Standard in us-east-1 (aws.amazon.com/s3/pricing, November 2026). DELETE is free.
PUT_DOLLARS = 0.005 / 1000  # PUT, COPY, POST, LIST
GET_DOLLARS = 0.0004 / 1000  # GET, HEAD
DELAY_S = 0.040
BATCH_ROWS = 100_000
UPSERT_ROWS = 10_000
URL = "s3://bucket/store"

_WRITER = """
import sys, nyala
with nyala.connect(sys.argv[1], storage_options=eval(sys.argv[2]), cache_dir=sys.argv[3], group_interval=0) as db:
    table = db["t"]
    for number in range(10**9):
        table.upsert({"k": [number], "v": [0.5], "w": [number]})
        print(number, flush=True)
"""


@dataclass(frozen=True)
class Scale:
    """rows: are loaded and scanned, and a tenth of them upserted; rowsets: the number in a store
    that is opened.
    """

    name: str
    rows: int
    rowsets: int


FULL = Scale("full", 2_000_000, 10_000)
QUICK = Scale("quick", 500_000, 1_000)


def dollars(traffic: Traffic) -> float:
    put = sum(traffic.requests[verb] for verb in ("PUT", "POST", "LIST"))
    return put * PUT_DOLLARS + (traffic.requests["GET"] + traffic.requests["HEAD"]) * GET_DOLLARS


def cells(name: str, took_s: float, traffic: Traffic, rows: int | None = None) -> list[str]:
    """Return a line of the table. rows: divide by this number of rows, and give figures for a
    million.
    """
    share = 1.0 if rows is None else 1e6 / rows
    counts = [
        f"{sum(traffic.requests[verb] for verb in verbs) * share:,.0f}"
        for verbs in (("PUT", "POST"), ("LIST",), ("GET", "HEAD"))
    ]
    price = f"{dollars(traffic) * share:.5f}"
    return [name, seconds(took_s * share), *counts, f"{traffic.nbytes * share / 1e6:,.1f}", price]


def add_rowsets(keep: dict[str, Any], count: int) -> None:
    """Add `count` rowsets to the catalogue. Their files do not exist, but an open does not read
    them.
    """
    with bucket_at(URL, keep["storage_options"]) as (env, objects):
        medium, state, _ = open_bucket(env, objects, 0.0)
        entry = next(iter(state.rowsets.values()))
        change = CatalogChange(
            put_rowsets=[
                replace(
                    entry, id=number, path=f"data/1/{number}-{number:016x}.base", file_id=f"{number:032x}"
                )
                for number in range(state.next_rowset_id, state.next_rowset_id + count)
            ]
        )
        medium.log.sync(medium.log.append_change(ChangeRecord(encode_change(change, state.version + 1))))
        medium.log.close()
        medium.lock.release()


def take_over(at: Server, keep: dict[str, Any], kill: bool) -> tuple[float, Traffic]:
    """Measure the time until the first write of a new writer is acknowledged. kill: whether the old
    writer is killed.
    """
    command = [sys.executable, "-c", _WRITER, URL, repr(keep["storage_options"]), keep["cache_dir"] + "-2"]

    def become_writer() -> nyala.Database:
        while True:
            try:
                db = nyala.connect(URL, **keep, take_over=not kill, group_interval=0)
                db["t"].upsert({"k": [0], "v": [0.5], "w": [0]})
                return db
            except nyala.LockedError:
                time.sleep(0.5)

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as writer:
        try:
            assert writer.stdout is not None
            while int(writer.stdout.readline()) < 100:
                pass
            if kill:
                writer.send_signal(signal.SIGKILL)
                writer.wait()
            took_s, traffic, db = at.during(become_writer)
            db.close()
            return took_s, traffic
        finally:
            writer.kill()


def run(scale: Scale, folder: str, stores: Sequence[str] | None, say: Say) -> Report:
    """Measure, and return the report."""
    chance = np.random.default_rng(3)
    rows = pa.table({"k": np.arange(scale.rows), "v": chance.random(scale.rows), "w": np.arange(scale.rows)})
    table = Table(["what", "time", "PUT, POST", "LIST", "GET, HEAD", "MB", "dollars"])
    with server() as at:
        keep: dict[str, Any] = {"storage_options": at.options, "cache_dir": os.path.join(folder, "cache")}
        at.traffic(DELAY_S)

        def load() -> None:
            with nyala.connect(URL, **keep) as db:
                made = db.create_table("t", rows.schema, "k", nyala.hash_partition("k", buckets=4))
                for first in range(0, scale.rows, BATCH_ROWS):
                    made.insert(rows.slice(first, BATCH_ROWS))
                db.flush()

        def upsert() -> None:
            with nyala.connect(URL, **keep) as db:
                for _ in range(0, scale.rows // 10, UPSERT_ROWS):
                    db["t"].upsert(rows.take(pa.array(chance.choice(scale.rows, UPSERT_ROWS, replace=False))))
                db.flush()

        def compact() -> None:
            with nyala.connect(URL, **keep) as db:
                db["t"].compact()

        def scan() -> None:
            with nyala.connect(URL, **keep, read_only=True) as db:
                assert db["t"].scan().to_arrow().num_rows == scale.rows

        for name, work, count in (
            (f"load, {BATCH_ROWS:,} rows a batch", load, scale.rows),
            (f"upsert, {UPSERT_ROWS:,} random rows a batch", upsert, scale.rows // 10),
            ("compact the table after it", compact, scale.rows),
            ("scan all columns, cold", scan, scale.rows),
        ):
            say(name)
            took_s, traffic, _ = at.during(work)
            table.rows.append(cells(f"a million rows: {name}", took_s, traffic, count))
        say("take-over")
        table.rows.append(
            cells("take over from a living writer, its requests included", *take_over(at, keep, kill=False))
        )
        table.rows.append(cells("replace a writer after kill -9", *take_over(at, keep, kill=True)))
        say("open")
        with nyala.connect(URL, **keep, take_over=True) as db:
            db.flush()
            db._writer().write_checkpoint()
        add_rowsets(keep, scale.rowsets)
        with nyala.connect(URL, **keep, take_over=True, maintenance=False) as db:
            db._writer().write_checkpoint()
        for name, options in (
            ("reader", {"read_only": True}),
            ("writer", {"take_over": True, "maintenance": False}),
        ):
            took_s, traffic, db = at.during(lambda options=options: nyala.connect(URL, **keep, **options))
            table.rows.append(cells(f"open {scale.rowsets:,} rowsets, {name}", took_s, traffic))
            db.close()
    return Report(
        BUCKET_COSTS,
        f"What a store in a bucket costs ({scale.rows:,} rows of 24 bytes)",
        f"An S3 server in Python answers each request after {DELAY_S * 1000:g} ms. Dollars are list prices of requests "
        "(S3 Standard, us-east-1, November 2026): 0.005 for 1,000 of PUT, POST and LIST, 0.0004 for 1,000 of GET and "
        "HEAD; storage and traffic are not in them. Load and upsert include a flush and work in the background. A "
        "killed writer is replaced without take_over=True, when its sign of life is 15 seconds old",
        table,
    )


if __name__ == "__main__":
    from bench.__main__ import main

    main([BUCKET_COSTS])
