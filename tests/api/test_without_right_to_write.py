"""`read_only=True` for a process without the right to write in the folder: read-only media, stores of other users."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import nyala
from tests.unprivileged import as_reader_only, forbid_writing, forked, shared_folder

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="two users are needed")

KILLED = """
import os, sys, nyala
db = nyala.connect(sys.argv[1], maintenance=False)
t = db.create_table("t", {"k": "int64", "v": "string"}, "k")
t.insert([{"k": 1, "v": "flushed"}])
db.flush()
t.insert([{"k": 2, "v": "in the log"}])
os._exit(0)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with shared_folder() as folder:
        yield folder


def rows(path: Path) -> list[tuple[int, str]]:
    with nyala.connect(path, read_only=True) as db:
        assert db.sql("SELECT count(*) FROM t").fetchall() == [(db["t"].count(),)]
        return [(row["k"], row["v"]) for row in db["t"].scan(order_by_key=True).to_arrow().to_pylist()]


def problems(path: Path) -> list[str]:
    return [problem.message for problem in nyala.check(path).problems]


def test_a_closed_store_can_be_read_and_checked(folder: Path) -> None:
    with nyala.connect(folder / "s") as db:
        t = db.create_table("t", {"k": "int64", "v": "string"}, "k")
        t.insert([{"k": 1, "v": "flushed"}])
        db.flush()
        t.insert([{"k": 2, "v": "in the log"}])
    before = sorted(os.listdir(folder / "s"))
    forbid_writing(folder / "s")
    assert as_reader_only(rows, folder / "s") == [(1, "flushed"), (2, "in the log")]
    assert as_reader_only(problems, folder / "s") == []
    assert sorted(os.listdir(folder / "s")) == before


def test_the_store_of_a_killed_writer_can_be_read(folder: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(folder / "s")], check=True)
    forbid_writing(folder / "s")
    assert as_reader_only(rows, folder / "s") == [
        (1, "flushed"),
        (2, "in the log"),
    ]


@needs_root
def test_a_reader_without_a_lease_follows_the_writer(folder: Path) -> None:
    """If the writer removes files of an old scan, the scan raises. A new scan has the new rows."""
    with nyala.connect(folder / "s", maintenance=False) as db:
        t = db.create_table("t", {"k": "int64", "v": "string"}, "k", history=0)
        t.insert([{"k": k, "v": "old"} for k in range(1000)])
        db.flush()
        requests, replies = os.pipe(), os.pipe()

        def read() -> None:
            os.close(replies[0])
            reader = nyala.connect(folder / "s", read_only=True)
            old = reader["t"].scan()
            assert reader["t"].count() == 1000
            os.write(replies[1], b"1")
            os.read(requests[0], 1)
            with pytest.raises(nyala.HistoryExpiredError, match="may not write into the store's folder"):
                old.to_arrow()
            assert reader["t"].scan(where="v = 'new'").count() == 1000
            assert not (folder / "s" / "leases").exists()

        pid = forked(read)
        os.close(replies[1])
        os.read(replies[0], 1)
        t.upsert([{"k": k, "v": "new"} for k in range(1000)])
        db.flush()
        t.compact()
        t.vacuum()
        os.write(requests[1], b"1")
        assert os.waitpid(pid, 0)[1] == 0


@needs_root
def test_a_reader_without_a_lease_sees_whole_batches(folder: Path) -> None:
    with nyala.connect(folder / "s", maintenance=False) as db:
        t = db.create_table("t", {"k": "int64", "v": "string"}, "k", history=0)
        t.insert([{"k": k, "v": "0"} for k in range(50)])

        def read() -> None:
            seen = -1
            while seen < 30:
                # A scan may raise HistoryExpiredError; then it returns no rows.
                with (
                    contextlib.suppress(nyala.HistoryExpiredError),
                    nyala.connect(folder / "s", read_only=True) as reader,
                ):
                    values = set(reader["t"].scan(["v"]).to_arrow()["v"].to_pylist())
                    assert len(values) == 1, values
                    now = int(values.pop())
                    assert now >= seen, (now, seen)
                    seen = now

        pid = forked(read)
        for round_ in range(1, 31):
            t.upsert([{"k": k, "v": str(round_)} for k in range(50)])
            if round_ % 3 == 0:
                db.flush()
                t.compact()
                t.vacuum()
        assert os.waitpid(pid, 0)[1] == 0
