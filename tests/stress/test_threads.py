"""Many threads on one store, with limits so small that flushes, compactions, direct commits and garbage collections run
all the time."""

from __future__ import annotations

import functools
import itertools
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import nyala
from nyala.api.database import Database
from nyala.api.scan import read_token
from tests.figures import counted
from tests.sampled import each
from tests.support import key_value_table, open_database

SECONDS = 1.2
ACCOUNTS = 60
OPENING = 100


class Crowd:
    """Threads that repeat their work until the time is over and each has done enough, or one of
    them fails.
    """

    def __init__(self, seconds: float, enough: Callable[[], bool] = lambda: True) -> None:
        self._enough = enough
        self._began = time.monotonic()
        self._seconds = seconds
        self._threads: list[threading.Thread] = []
        self.failures: list[BaseException] = []

    def add(self, work: Callable[[random.Random], None]) -> None:
        chance = random.Random(len(self._threads))

        def repeat() -> None:
            try:
                while not self._is_over() and not self.failures:
                    work(chance)
            except BaseException as error:
                self.failures.append(error)

        self._threads.append(threading.Thread(target=repeat))

    def _is_over(self) -> bool:
        passed = time.monotonic() - self._began
        return passed > self._seconds and (self._enough() or passed > 60)

    def run(self) -> None:
        for thread in self._threads:
            thread.start()
        until = self._began + max(self._seconds, 60) + 60
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        assert not any(thread.is_alive() for thread in self._threads), "a deadlock"
        if self.failures:
            raise self.failures[0]


@pytest.fixture
def impatient() -> Iterator[None]:
    """Let Python switch threads a hundred times more often."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(5e-5)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.parametrize("durability", each(2, ["commit", "group"]))
def test_transfers_keep_the_sum_of_all_accounts(tmp_path: Path, impatient: None, durability: str) -> None:
    """Every snapshot has all accounts, the same sum, and each linked row once. Threads use every kind of write."""
    move_money(tmp_path / "s", durability, SECONDS)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("durability", ["commit", "group"])
def test_transfers_keep_the_sum_of_all_accounts_for_long(
    tmp_path: Path, impatient: None, durability: str
) -> None:
    with counted("reads of 4 threads beside 4 that write, with maintenance", "snapshots") as tried:
        tried.append(move_money(tmp_path / "s", durability, 120))


def move_money(path: Path, durability: str, seconds: float) -> int:
    """Run four threads that write and four that read. Returns the number of snapshots that were checked."""
    options: dict[str, Any] = {
        "log_limit_bytes": 30_000, "direct_commit_bytes": 60_000, "rowset_target_bytes": 50_000
    }  # fmt: skip
    with open_database(
        path, maintenance=True, memory_limit_bytes=4 << 20, durability=durability, **options
    ) as db:
        accounts = db.create_table(
            "accounts",
            {"k": "int64", "v": "int64", "note": "string"},
            "k",
            nyala.hash_partition("k", buckets=4),
        )
        links = db.create_table(
            "links", {"k": "int64", "before": "int64"}, "k", nyala.hash_partition("k", buckets=3)
        )
        accounts.insert({"k": range(ACCOUNTS), "v": [OPENING] * ACCOUNTS})
        locks = [threading.Lock() for _ in range(ACCOUNTS)]
        key_of = list(range(ACCOUNTS))  # each account has one of two keys
        newest = [-1 - chain for chain in range(4)]  # the last number of each writer's list is different
        linked = [0] * 4
        reads = itertools.count()

        def transfer(chance: random.Random) -> None:
            first, second = sorted(chance.sample(range(ACCOUNTS), 2))
            with locks[first], locks[second]:
                one, other = key_of[first], key_of[second]
                held = {
                    row["k"]: row["v"]
                    for row in accounts.get_many({"k": [one, other]}, ["k", "v"]).to_pylist()
                }
                after = {"k": [one, other], "v": [held[one] - 1, held[other] + 1]}
                form = chance.randrange(10)
                if form < 5:
                    accounts.update(after)
                elif form < 8:
                    with db.batch() as batch:
                        batch.delete("accounts", {"k": [one]})
                        key_of[first] = (
                            first if one != first else first + ACCOUNTS
                        )  # a new row in another place
                        batch.insert("accounts", {"k": [key_of[first]], "v": [held[one] - 1]})
                        batch.upsert("accounts", {"k": [other], "v": [held[other] + 1]})
                elif form < 9:
                    accounts.update(
                        set={"v": nyala.expr(f"CASE WHEN k = {one} THEN v - 1 ELSE v + 1 END")},
                        where=f"k IN ({one}, {other})",
                    )
                else:  # a direct commit
                    accounts.update({**after, "note": ["n" * 40_000] * 2})

        def link(chain: int, chance: random.Random) -> None:
            key = chance.randrange(2**60)
            links.insert({"k": [key], "before": [newest[chain]]})
            newest[chain] = key
            linked[chain] += 1

        def write(chain: int, chance: random.Random) -> None:
            if chance.randrange(4):
                transfer(chance)
            else:
                link(chain, chance)
            if chance.randrange(150) == 0:
                accounts.compact()  # in so short a time the background merges rarely

        past: list[tuple[int, Any]] = []

        def read(chance: random.Random) -> None:
            scan = accounts.scan(columns=["k", "v"], order_by_key=chance.random() < 0.5)
            found = scan.to_arrow().sort_by("k")
            assert sorted(k % ACCOUNTS for k in found["k"].to_pylist()) == list(range(ACCOUNTS)), (
                "an account is missing or doubled"
            )
            assert sum(found["v"].to_pylist()) == ACCOUNTS * OPENING, "a snapshot has half a transfer"
            assert scan.to_arrow().sort_by("k").equals(found), "a second read differs"
            next(reads)
            past.append((scan.timestamp, found))
            at, then = chance.choice(past)
            assert accounts.scan(columns=["k", "v"], at=at, order_by_key=True).to_arrow().equals(then), (
                "the rows of an earlier moment changed"
            )
            if chance.random() < 0.2:
                rows = [
                    row for token in scan.tokens() for batch in read_token(token) for row in batch.to_pylist()
                ]
                assert sorted(rows, key=lambda row: row["k"]) == found.to_pylist(), (
                    "the tokens have other rows"
                )
            if chance.random() < 0.2:
                next(iter(scan.to_reader()))  # a scan that is not read to its end

        def follow(chance: random.Random) -> None:
            at_least = sum(linked)
            found = links.to_arrow()
            before = dict(zip(found["k"].to_pylist(), found["before"].to_pylist(), strict=True))
            assert len(before) == len(found), "a row is doubled"
            assert len(before) >= at_least, "an acknowledged row is missing"
            walked, reached = 0, set()
            for at in set(before) - set(before.values()):
                while at >= 0:
                    walked, at = walked + 1, before[at]
                reached.add(at)
            assert walked == len(before) and len(reached) == len(set(before) - set(before.values())), (
                "a linked row is missing"
            )
            next(reads)

        def background_has_worked() -> bool:
            status = db.maintenance.status()
            return bool(status.flushes and status.files_collected)

        crowd = Crowd(seconds, background_has_worked)
        for chain in range(4):
            crowd.add(functools.partial(write, chain))
        for work in (read, read, follow, follow):
            crowd.add(work)
        crowd.run()
        status = db.maintenance.status()
        assert status.failures == 0, status.last_error
        assert background_has_worked(), "too few flushes or compactions: the limits are too large"
        assert db.check().ok
        total = contents(db)
    with open_database(path) as db:
        assert contents(db) == total, "the log has the rows that memory had"
        db.flush()
        assert contents(db) == total
    return next(reads)


def contents(db: Database) -> list[Any]:
    return [db[name].scan(order_by_key=True).to_arrow().to_pydict() for name in ("accounts", "links")]


def test_maintenance_expires_scans_while_others_are_created(tmp_path: Path, impatient: None) -> None:
    """Otherwise its thread would end some day, and nobody would flush and collect files any more."""
    with open_database(tmp_path / "s") as db:
        table = key_value_table(db)

        def scan(chance: random.Random) -> None:
            scans = [table.scan() for _ in range(chance.randrange(200))]
            del scans

        crowd = Crowd(1.0)
        crowd.add(scan)
        crowd.add(scan)
        crowd.add(lambda _: db._handle.scans.expire())
        crowd.run()


def test_maintenance_outlives_any_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unexpected error must not end the thread that flushes."""
    with open_database(tmp_path / "s", maintenance=True, log_limit_bytes=1) as db:
        failures = [ZeroDivisionError("not foreseen")]

        def collect() -> int:
            if failures:
                raise failures.pop()
            return 0

        monkeypatch.setattr(db._store, "collect_garbage", collect)
        table = key_value_table(db)
        table.insert({"k": [1], "v": [1]})
        deadline = time.monotonic() + 20
        while db.maintenance.status().failures == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        table.insert({"k": [2], "v": [2]})
        while db.maintenance.status().flushes < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert db.maintenance.status().flushes >= 2


def test_tables_are_dropped_renamed_and_created_during_scans_writes_and_flushes(
    tmp_path: Path, impatient: None
) -> None:
    """A snapshot keeps its tables. A write succeeds, or raises that its table does not exist."""
    with open_database(tmp_path / "s", maintenance=True, log_limit_bytes=30_000) as db:
        keys = iter(range(10**6, 10**9))

        def make() -> None:
            table = db.create_table(
                "t", {"k": "int64", "v": "int64"}, "k", nyala.hash_partition("k", buckets=4)
            )
            table.insert({"k": range(500), "v": [1] * 500})

        def scan(chance: random.Random) -> None:
            with db.snapshot() as snapshot:
                if "t" in snapshot.list_tables():
                    stream = iter(snapshot["t"].scan(order_by_key=True).to_reader())
                    count = snapshot["t"].count()
                    time.sleep(chance.random() / 50)
                    assert sum(batch.num_rows for batch in stream) == count

        def write(chance: random.Random) -> None:
            try:
                db["t"].insert({"k": [next(keys)], "v": [1]})
                db["t"].update(set={"v": nyala.expr("v + 1")}, where="k < 50")
            except nyala.TableNotFoundError:
                pass

        def change(chance: random.Random) -> None:
            time.sleep(0.02)
            db.rename_table("t", "u")
            db.rename_table("u", "t")
            db.drop_table("t")
            make()

        make()
        crowd = Crowd(2.0)
        for work in (scan, scan, write, change, lambda chance: db.flush()):
            crowd.add(work)
        crowd.run()
        assert db.maintenance.status().failures == 0, db.maintenance.status().last_error


def test_a_thread_can_read_after_the_main_thread_has_ended(tmp_path: Path) -> None:
    """Python ends its thread pools with the main thread, and only then waits for other threads."""
    script = """
import sys, threading, nyala

db = nyala.connect(sys.argv[1], maintenance=False, durability="os")
table = db.create_table("t", {"k": "int64", "v": "int64"}, "k", nyala.hash_partition("k", buckets=4))
table.insert({"k": range(100), "v": [1] * 100})
db.flush()

def read():
    threading.main_thread().join()
    for _ in range(20):
        assert table.count(where="v = 1") == 100
        assert len(table.to_arrow()) == 100
    print(table.update(set={"v": nyala.expr("v + 1")}).updated)
    db.close()

threading.Thread(target=read).start()
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "s")], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("100\n", "")


def test_memory_of_small_writes_to_many_tablets_is_counted(tmp_path: Path) -> None:
    """A row in each of 64 tablets takes ten times its bytes. The limit must count the real memory."""
    limit = 4 << 20
    with open_database(tmp_path / "s", memory_limit_bytes=limit, durability="os") as db:
        table = db.create_table("t", {"k": "int64", "v": "int64"}, "k", nyala.hash_partition("k", buckets=64))
        largest = 0
        for start in range(0, 64 * 100, 64):
            table.upsert({"k": range(start, start + 64), "v": [1] * 64})
            largest = max(largest, db._store.root.memory_bytes())
        assert largest < limit
        assert table.stats().rowsets <= 4 * 64, "memory is flushed before it is full"
        assert table.count() == 64 * 100
