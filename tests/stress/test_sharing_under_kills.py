"""Processes write to one store and are killed again and again, mostly the lock holder: no row is lost or doubled."""

from __future__ import annotations

import collections
import random
import subprocess
import sys
import time
from pathlib import Path

import nyala
from nyala.catalog.store_lock import StoreLock
from nyala.env import SYSTEM
from tests.processes import children
from tests.sampled import is_long_run

PROCESSES = 4
ACCOUNTS = 6

# Writes each step to its own file: "s" begun, "d" batch acknowledged, "i" counter, "m" transfer.
WRITER = """
import logging, sys
import nyala
path, me, begin, end, notes = sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5]
logging.disable(logging.CRITICAL)
notes = open(notes, "a")
def note(what, number):
    print(what, number, file=notes, flush=True)
db = nyala.connect(path)
for number in range(begin, end):
    note("s", number)
    assert db["t"].insert([(me, number, part) for part in range(5)]).inserted == 5
    note("d", number)
    assert db["t"].scan(where=f"me = {me} and number = {number}").to_arrow().num_rows == 5
    def count_up(tx):
        tx["counter"].update([{"id": 0, "n": tx["counter"][0]["n"] + 1}])
    db.run(count_up, retries=50)
    note("i", number)
    def move(tx):
        source, target = me, (me + number + 1) % 6
        if source != target:
            left, right = tx["accounts"][source], tx["accounts"][target]
            tx["accounts"].update([{**left, "sum": left["sum"] - 1}, {**right, "sum": right["sum"] + 1}])
    db.run(move, retries=50)
    note("m", number)
db.close()
"""


def notes_of(path: Path) -> list[tuple[str, int]]:
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [(what, int(number)) for what, _, number in (line.partition(" ") for line in lines)]


def test_the_lock_holder_is_killed_again_and_again(tmp_path: Path) -> None:
    batches, kills = (150, 40) if is_long_run() else (12, 4)
    store = tmp_path / "s"
    with nyala.connect(store) as db:
        db.create_table("t", {"me": "int64", "number": "int64", "part": "int64"}, ["me", "number", "part"])
        db.create_table("counter", {"id": "int64", "n": "int64"}, "id").insert([(0, 0)])
        db.create_table("accounts", {"id": "int64", "sum": "int64"}, "id").insert(
            [(number, 100) for number in range(ACCOUNTS)]
        )

    def begin(me: int, at: int) -> subprocess.Popen[bytes]:
        arguments = [str(store), str(me), str(at), str(batches), str(tmp_path / f"{me}.txt")]
        return subprocess.Popen([sys.executable, "-c", WRITER, *arguments])

    running = {me: begin(me, 0) for me in range(PROCESSES)}
    unknown: set[tuple[int, int]] = set()
    uncounted = killed = 0
    chance = random.Random(7)
    deadline_s = time.monotonic() + 600
    while any(process.poll() is None for process in running.values()):
        assert time.monotonic() < deadline_s, "the processes do not end"
        time.sleep(chance.uniform(0.05, 0.4))
        holder = StoreLock(SYSTEM, str(store)).holder()
        # Kill another process in every third round, and otherwise the lock holder.
        victim = chance.choice(list(running.values())).pid if killed % 3 == 2 else holder and holder.pid
        for me, process in running.items():
            if process.pid != victim or killed >= kills or process.poll() is not None:
                continue
            process.kill()
            process.wait()
            killed += 1
            what, number = (notes_of(tmp_path / f"{me}.txt") or [("m", -1)])[-1]
            unknown |= {(me, number)} if what == "s" else set()
            uncounted += what == "d"
            running[me] = begin(me, number + 1)
    assert killed and all(process.returncode == 0 for process in running.values())

    notes = {(me, *note) for me in range(PROCESSES) for note in notes_of(tmp_path / f"{me}.txt")}
    with nyala.connect(store) as db:
        rows = db["t"].scan().to_arrow()
        found = collections.Counter(zip(rows["me"].to_pylist(), rows["number"].to_pylist(), strict=True))
        assert set(found.values()) == {5}, "a batch is complete or absent"
        acknowledged = {(me, number) for me, what, number in notes if what == "d"}
        assert acknowledged <= set(found) <= acknowledged | unknown
        counted = sum(what == "i" for _, what, _ in notes)
        assert counted <= db["counter"][0]["n"] <= counted + uncounted
        assert db.sql("SELECT sum(sum) FROM accounts").fetchone() == (100 * ACCOUNTS,)
        assert not db.check().problems


def test_a_hot_counter_and_transfers_by_four_processes_are_exact(tmp_path: Path) -> None:
    """Without kills every call is counted once, and every process makes progress."""
    times = 100 if is_long_run() else 5
    with children(tmp_path / "s", PROCESSES) as workers:
        workers[0].run(
            "db.create_table('c', {'id': 'int64', 'n': 'int64'}, 'id').insert([(0, 0), (1, 100), (2, 100)])"
        )
        code = f"""
def count_up(tx):
    tx["c"].update([{{"id": 0, "n": tx["c"][0]["n"] + 1}}])
def move(tx):
    tx["c"].update([{{"id": 1, "n": tx["c"][1]["n"] - 1}}, {{"id": 2, "n": tx["c"][2]["n"] + 1}}])
for _ in range({times}):
    db.run(count_up)
    db.run(move)
result = db.now()
"""
        for worker in workers:
            worker.begin(code)
        for worker in workers:
            worker.end()
        assert workers[3].value("[db['c'][key]['n'] for key in range(3)]") == [
            PROCESSES * times, 100 - PROCESSES * times, 100 + PROCESSES * times,
        ]  # fmt: skip


def test_many_connect_to_a_new_folder_at_once(tmp_path: Path) -> None:
    """One process creates the store, and the others share it. A table that several create exists once."""
    code = """
db = nyala.connect(path)
t = db.create_table("t", {"k": "int64"}, "k", exist_ok=True)
result = [t.insert([(KEY,)]).inserted, type(db._store).__name__]
"""
    rounds = 10 if is_long_run() else 1
    for number in range(rounds):
        with children(tmp_path / str(number), 4, setup="pass") as workers:
            for key, worker in enumerate(workers):
                worker.begin(code.replace("KEY", str(key)))
            found = [worker.end() for worker in workers]
            assert [inserted for inserted, _ in found] == [1, 1, 1, 1]
            assert sorted(kind for _, kind in found) == ["SharedReader"] * 3 + ["Store"]
            assert workers[0].value("db['t'].count()") == 4


def test_processes_open_and_close_the_store_in_turn(tmp_path: Path) -> None:
    """Each one becomes the writer when the one before it has closed the store. No batch is lost."""
    rounds = 30 if is_long_run() else 2
    path = tmp_path / "s"
    with nyala.connect(path) as db:
        db.create_table("t", {"k": "int64"}, "k")
    code = "with nyala.connect(path) as db: result = db['t'].insert([({},)]).inserted"
    with children(path, 3, setup="pass") as workers:
        for number in range(rounds):
            for place, worker in enumerate(workers):
                worker.begin(code.format(10 * number + place))
            assert [worker.end() for worker in workers] == [1, 1, 1]
    with nyala.connect(path, read_only=True) as db:
        assert db["t"].count() == 3 * rounds
