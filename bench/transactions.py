"""Measures transactions beside plain writes, and beside SQLite.

One process has both stores open. Each step runs in turns: the plain write, the same write in a
transaction, and SQLite. Every commit is synced. At the end both stores must have the same values,
and all increments of the threads.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

import nyala
from bench.measure import in_rounds
from bench.parts import Say, in_own_process, ratio
from bench.report import Aim, Report, Table, seconds, times
from bench.stores import TRANSACTIONS, choose

THREADS = 4
PLAIN, NYALA, SQLITE = "plain", "transaction", "sqlite"
Ways = dict[str, Callable[[int], Any]]


@dataclass(frozen=True)
class Scale:
    name: str
    rows: int = 1_000_000
    rowsets: int = 300
    rounds: int = 300
    large_rounds: int = 10
    increments: int = 25


FULL = Scale("full")
QUICK = Scale("quick", 50_000, 40, 40, 3, 10)


class Peer:
    """The same table in SQLite, with WAL and synchronous=FULL, as in `stores.sqlite_store`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.con = self.connect()

    def connect(self) -> sqlite3.Connection:
        con = sqlite3.connect(self.path, isolation_level=None, timeout=60)
        for setting in ("journal_mode=WAL", "synchronous=FULL", "cache_size=-65536"):
            con.execute(f"PRAGMA {setting}")
        return con

    def load(self, rows: int) -> None:
        self.con.execute("CREATE TABLE t (k INTEGER PRIMARY KEY, v INTEGER)")
        self.con.execute("CREATE TABLE log (k INTEGER PRIMARY KEY, v INTEGER)")
        self.con.execute("BEGIN")
        self.con.executemany("INSERT INTO t VALUES (?, 0)", ((k,) for k in range(rows)))
        self.con.execute("COMMIT")

    def increment(self, k: int, con: sqlite3.Connection | None = None) -> None:
        con = con or self.con
        con.execute("BEGIN IMMEDIATE")
        (value,) = con.execute("SELECT v FROM t WHERE k = ?", (k,)).fetchone()
        con.execute("UPDATE t SET v = ? WHERE k = ?", (value + 1, k))
        con.execute("COMMIT")

    def transfer(self, number: int, giver: int, taker: int) -> None:
        self.con.execute("BEGIN IMMEDIATE")
        for k, change in ((giver, -1), (taker, 1)):
            (value,) = self.con.execute("SELECT v FROM t WHERE k = ?", (k,)).fetchone()
            self.con.execute("UPDATE t SET v = ? WHERE k = ?", (value + change, k))
        self.con.execute("INSERT INTO log VALUES (?, 1)", (number,))
        self.con.execute("COMMIT")

    def update(self, keys: Sequence[int], value: int) -> None:
        self.con.execute("BEGIN IMMEDIATE")
        self.con.executemany("UPDATE t SET v = ? WHERE k = ?", ((value, k) for k in keys))
        self.con.execute("COMMIT")


def run(scale: Scale, folder: str, stores: Sequence[str] | None, say: Say) -> Report:
    """Measure, and return the report."""
    names = [kind.name for kind in choose(TRANSACTIONS, stores, say)]
    say(f"{', '.join(names)}: {scale.rows:,} rows")
    found = in_own_process(measure, scale, folder, "sqlite" in names)
    for step, took in found["steps"].items():
        say(f"{step}: " + ", ".join(f"{way} {seconds(value)}" for way, value in took.items()))
    return _report(found, scale)


def measure(scale: Scale, folder: str, with_peer: bool) -> dict[str, Any]:
    """Run all steps in this process. Return median seconds by step and way."""
    with nyala.connect(os.path.join(folder, "nyala")) as db:
        t = db.create_table("t", {"k": "int64", "v": "int64"}, "k")
        t.insert({"k": np.arange(scale.rows), "v": np.zeros(scale.rows, np.int64)})
        db.create_table("log", {"k": "int64", "v": "int64"}, "k")
        many = db.create_table("many", {"k": "int64", "v": "int64"}, "k")
        db.flush()
        db.maintenance.pause()  # keep the number of rowsets
        for first in range(scale.rowsets):
            keys = np.arange(first, scale.rowsets * 100, scale.rowsets)
            many.insert({"k": keys, "v": keys})
            many.flush()
        peer = Peer(os.path.join(folder, "t.sqlite")) if with_peer else None
        if peer is not None:
            peer.load(scale.rows)
        took = {}
        for step, ways in _steps(db, peer, scale).items():
            found = in_rounds(ways, _rounds(step, scale), warm=2)
            took[step] = {way: median(values) for way, values in found.items()}
        took["one row by 4 threads, each increment"] = _threads(db, peer, scale)
        arrived = t[0]["v"]
        if peer is not None:
            if peer.con.execute("SELECT v FROM t WHERE k = 0").fetchone() != (arrived,):
                raise AssertionError("the increments of the threads differ")
            peer.con.close()
    return {"steps": took, "arrived": arrived}


def _rounds(step: str, scale: Scale) -> int:
    return scale.large_rounds if "000" in step else scale.rounds


def _steps(db: nyala.Database, peer: Peer | None, scale: Scale) -> dict[str, Ways]:
    """Return the ways of each step, as functions of the number of the round."""
    t, many = db["t"], db["many"]
    rng = np.random.default_rng(7)
    keys = (1 + rng.permutation(scale.rows - 1)).tolist()  # key 0 is for the threads

    def increment(table: Any, k: int) -> None:
        table.update([{"k": k, "v": table[k]["v"] + 1}])

    def in_transaction(work: Callable[[Any], object]) -> None:
        with db.transaction() as tx:
            work(tx)

    def transfer(tables: Any, number: int, update: Any) -> None:
        giver, taker = keys[number % 1000], keys[1000 + number % 1000]
        a, b = tables["t"][giver]["v"], tables["t"][taker]["v"]
        update(number, [{"k": giver, "v": a - 1}, {"k": taker, "v": b + 1}])

    def transfer_in_batch(number: int) -> None:
        def write(number: int, rows: Any) -> None:
            with db.batch() as batch:
                batch.update("t", rows)
                batch.insert("log", [(2 * number, 1)])

        transfer(db, number, write)

    def transfer_in_transaction(tx: Any, number: int) -> None:
        def write(number: int, rows: Any) -> None:
            tx["t"].update(rows)
            tx["log"].insert([(2 * number + 1, 1)])

        transfer(tx, number, write)

    def rows(count: int, number: int, part: int = 0) -> dict[str, Any]:
        return {"k": keys[part * count : (part + 1) * count], "v": [number] * count}

    def beside_others(count: int, number: int) -> float:
        """Return the seconds of a transaction before whose commit another writer changes as many
        other rows.
        """
        begun = time.perf_counter()
        tx = db.transaction()
        tx["t"].update(rows(count, number))
        own_s = time.perf_counter() - begun
        t.update(rows(count, number, 1))
        begun = time.perf_counter()
        tx.commit()
        return own_s + time.perf_counter() - begun

    large = min(10_000, scale.rows // 4)
    steps: dict[str, Ways] = {
        "upsert of one row": {
            PLAIN: lambda n: t.upsert([(keys[n], n)]),
            NYALA: lambda n: in_transaction(lambda tx: tx["t"].upsert([(keys[n], n)])),
        },
        "increment of one row": {
            PLAIN: lambda n: increment(t, keys[n]),
            NYALA: lambda n: in_transaction(lambda tx: increment(tx["t"], keys[n])),
            SQLITE: lambda n: peer and peer.increment(keys[n]),
        },
        f"increment, {scale.rowsets} overlapping rowsets": {
            PLAIN: lambda n: increment(many, keys[n] % (scale.rowsets * 100)),
            NYALA: lambda n: in_transaction(
                lambda tx: increment(tx["many"], keys[n] % (scale.rowsets * 100))
            ),
        },
        "transfer: 2 rows read and updated, 1 inserted": {
            PLAIN: transfer_in_batch,
            NYALA: lambda n: in_transaction(lambda tx: transfer_in_transaction(tx, n)),
            SQLITE: lambda n: peer and peer.transfer(n, keys[n % 1000], keys[1000 + n % 1000]),
        },
        "1,000 rows updated by key": {
            PLAIN: lambda n: t.update(rows(1000, n)),
            NYALA: lambda n: in_transaction(lambda tx: tx["t"].update(rows(1000, n))),
            SQLITE: lambda n: peer and peer.update(rows(1000, n)["k"], n),
        },
        f"{large:,} rows, {large:,} others changed meanwhile": {
            PLAIN: lambda n: t.update(rows(large, n)),
            NYALA: lambda n: beside_others(large, n),
            SQLITE: lambda n: peer and peer.update(rows(large, n)["k"], n),
        },
    }
    return {
        step: {way: act for way, act in ways.items() if way != SQLITE or peer is not None}
        for step, ways in steps.items()
    }


def _threads(db: nyala.Database, peer: Peer | None, scale: Scale) -> dict[str, float]:
    """Return the seconds of each increment of one row by several threads at the same time."""

    def count_up(tx: nyala.Transaction) -> None:
        tx["t"].update([{"k": 0, "v": tx["t"][0]["v"] + 1}])

    def by_peer() -> None:
        assert peer is not None
        con = peer.connect()
        for _ in range(scale.increments):
            peer.increment(0, con)
        con.close()

    took = {NYALA: _together(lambda: [db.run(count_up) for _ in range(scale.increments)])}
    if peer is not None:
        took[SQLITE] = _together(by_peer)
    return {way: value / (THREADS * scale.increments) for way, value in took.items()}


def _together(work: Callable[[], object]) -> float:
    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - begun


def _report(found: dict[str, Any], scale: Scale) -> Report:
    table = Table(["step", "plain", "transaction", "÷ plain", "SQLite", "÷ SQLite"])
    for step, took in found["steps"].items():
        ours = took[NYALA]
        table.rows.append(
            [
                step,
                seconds(took.get(PLAIN)),
                seconds(ours),
                times(ratio(ours, took.get(PLAIN))),
                seconds(took.get(SQLITE)),
                times(ratio(ours, took.get(SQLITE))),
            ]
        )
    wanted = THREADS * scale.increments
    return Report(
        TRANSACTIONS,
        f"Transactions ({scale.rows:,} rows)",
        "Medians of calls in turns, every commit synced; SQLite with WAL and synchronous=FULL. Plain writes of a "
        "transfer are one `db.batch`",
        table,
        [
            Aim(
                f"all increments of one row by {THREADS} threads arrive",
                f"{found['arrived']} of {wanted}",
                found["arrived"] == wanted,
            )
        ],
    )


if __name__ == "__main__":
    from bench.__main__ import main

    main([TRANSACTIONS])
