"""One writer and several reader processes, with compactions and garbage collection.

The writer links rows to one another, as Kudu's linked-list test does, and moves amounts between accounts. Each reader
follows the list and sums up the accounts in one snapshot. A lost row would break the list, half a batch the sum, and a
file that was removed too early the reader."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import nyala
from tests.figures import counted
from tests.support import folder_in_memory, open_database

READERS = 3
ACCOUNTS = 40


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with folder_in_memory() as folder:
        yield folder


READER = """
import sys, time, nyala
reads, newest, rows = 0, 0, 0
while reads < int(sys.argv[2]):
    with nyala.connect(sys.argv[1], read_only=True) as db:
        for _ in range(1 + reads % 3):
            with db.snapshot() as snapshot:
                assert snapshot.timestamp >= newest, "back in time"
                newest = snapshot.timestamp
                links = {row["k"]: row["before"] for row in snapshot["links"].scan().to_arrow().to_pylist()}
                accounts = snapshot["accounts"].scan().to_arrow()["v"].to_pylist()
                head = snapshot["heads"].get({"name": "head"})
            assert len(accounts) == ACCOUNTS and sum(accounts) == 0, f"{len(accounts)} accounts, {sum(accounts)}"
            walked, key = 0, head["k"]
            while key >= 0:
                key, walked = links[key], walked + 1
            assert walked == len(links) >= rows, f"{walked} of {len(links)} rows are linked"
            rows, reads = walked, reads + 1
print(reads)
""".replace("ACCOUNTS", str(ACCOUNTS))


def many_readers(path: Path, processes: int, reads: int) -> int:
    """Write until every reader has read this number of snapshots. Returns the total number."""
    with open_database(path, maintenance=True, log_limit_bytes=20_000, direct_commit_bytes=30_000) as db:
        links = db.create_table(
            "links", {"k": "int64", "before": "int64"}, "k", nyala.hash_partition("k", buckets=3)
        )
        accounts = db.create_table("accounts", {"k": "int64", "v": "int64"}, "k")
        heads = db.create_table("heads", {"name": "string", "k": "int64"}, "name", history=0)
        with db.batch() as batch:
            batch.insert("accounts", {"k": range(ACCOUNTS), "v": [0] * ACCOUNTS})
            batch.insert("links", {"k": [0], "before": [-1]})
            batch.insert("heads", {"name": ["head"], "k": [0]})
        command = [sys.executable, "-c", READER, str(path), str(reads)]
        readers = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for _ in range(processes)
        ]
        last, vacuumed, deadline_s = 0, 0, time.monotonic() + 200
        while any(reader.poll() is None for reader in readers) and time.monotonic() < deadline_s:
            # Large steps are written as files. After some thousand rows only values change, so that reads stay fast.
            count = (0 if last > 3000 else 1) + (2000 if last in (20, 40) else 0)
            numbers = list(range(last + 1, last + 1 + count))
            with db.batch() as batch:
                if count:
                    batch.insert("links", {"k": numbers, "before": [n - 1 for n in numbers]})
                    batch.upsert("heads", {"name": ["head"], "k": [numbers[-1]]})
                one, other = last % ACCOUNTS, (last * 7 + 3) % ACCOUNTS
                if one != other:
                    batch.upsert("accounts", _move(accounts, one, other))
            last += count or 1
            if last % 50 == 0:
                (links, accounts, heads)[last // 50 % 3].compact()
                vacuumed += heads.vacuum().files
        answers = [reader.communicate(timeout=60) for reader in readers]
        assert [reader.returncode for reader in readers] == [0] * processes, [error for _, error in answers]
        assert db.check().ok
        status = db.maintenance.status()
        assert status.last_error == ""
        assert vacuumed + status.files_collected, "no file was removed while readers were open"
    assert nyala.check(path).ok
    return sum(int(said) for said, _ in answers)


def _move(accounts: nyala.Table, one: int, other: int) -> dict[str, list[int]]:
    held = {row["k"]: row["v"] for row in accounts.get_many({"k": [one, other]}).to_pylist()}
    return {"k": [one, other], "v": [held[one] + 1, held[other] - 1]}


def test_readers_come_and_go_while_the_writer_flushes_compacts_and_vacuums(tmp_path: Path) -> None:
    assert many_readers(tmp_path / "s", READERS, 4) >= READERS * 4


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_eight_readers_for_long(tmp_path: Path) -> None:
    with counted("snapshots in 8 reader processes beside compaction and vacuum", "snapshots") as tried:
        for number in range(10):
            tried.append(many_readers(tmp_path / str(number), 8, 40))


WRITER = """
import sys, nyala
db = nyala.connect(sys.argv[1])
db["t"].insert({"k": [int(sys.argv[2])]})
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_second_writer_is_refused_unless_the_first_was_killed(tmp_path: Path) -> None:
    with open_database(tmp_path / "s") as db:
        db.create_table("t", {"k": "int64"}, "k")
    for number in range(2):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "s"), str(number)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as writer:  # fmt: skip
            assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
            began_s = time.monotonic()
            with pytest.raises(nyala.LockedError, match=str(writer.pid)):
                nyala.connect(tmp_path / "s", share=False)
            assert time.monotonic() - began_s < 30, "connect must not wait for the first writer"
            with nyala.connect(tmp_path / "s", read_only=True) as reader:
                assert reader["t"].count() == number + 1
            writer.kill()
            writer.wait()
    with nyala.connect(tmp_path / "s") as db:
        assert db["t"].count() == 2
        assert db.check().ok
