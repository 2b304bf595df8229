"""On a full disk, writes are refused and change nothing. Freeing space, opening and reading work.

`SmallDisk` counts the bytes of a store. It is full of bytes, of a quota or of inodes. The last test
mounts a small file system.
"""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import nyala
from nyala.api.database import Database
from nyala.env import Env as Outside
from nyala.env import SystemClock, SystemRandomness, system_files
from nyala.env.reserve import PIECE_BYTES, PIECES_MIN
from nyala.tablet.recovery.reader_store import ReaderStore
from nyala.testing import SmallDisk
from nyala.testing.small_disk import DiskLimit
from tests.sampled import each, in_turns
from tests.support import folder_in_memory, open_database, rows

MB = 1 << 20
RANGES = [nyala.range_partition("k", bounds=[(0, 1000), (1000, 2000)])]


@pytest.fixture
def folder() -> Iterator[Path]:
    with folder_in_memory() as folder:
        yield folder / "s"


def small_disk(folder: Path, limit: DiskLimit = "bytes") -> SmallDisk:
    return SmallDisk(system_files(), str(folder), 64 * MB, limit)


def filled(db: Database) -> Any:
    """Create a table of 200 rows in four rowsets with overlapping keys, and a table `u` with a row in the log."""
    table = db.create_table("t", {"k": "int64", "b": "binary"}, "k", RANGES, history=0)
    rnd = random.Random(5)
    for _ in range(4):
        keys = rnd.sample(range(2000), 50)
        table.upsert({"k": keys, "b": [rnd.randbytes(4000) for _ in keys]})
        db.flush()
    db.create_table("u", {"k": "int64", "v": "int64"}, "k").insert({"k": [1], "v": [1]})
    return table


def reserved(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in (folder / "reserve").iterdir())


def drop_range(db: Database) -> None:
    with db["t"].alter() as alteration:
        alteration.drop_range(0, 1000)


FREEING: dict[str, Callable[[Database], object]] = {
    "drop_table": lambda db: db.drop_table("t"),
    "drop_range": drop_range,
    "compact": lambda db: db["t"].compact(),
    "vacuum": lambda db: db["t"].vacuum(),
}


@pytest.mark.parametrize(("name", "limit"), in_turns(FREEING, ["bytes", "quota"]))
def test_operations_that_free_space_work_on_a_full_disk(folder: Path, name: str, limit: DiskLimit) -> None:
    disk = small_disk(folder, limit)
    with open_database(folder, files=disk) as db:
        before = rows(filled(db))
        disk.fill()
        FREEING[name](db)
        db._writer().collect_garbage()
        left = [row for row in before if name != "drop_range" or row[0] >= 1000]
        assert name == "drop_table" or rows(db["t"]) == left
        # The freed space is enough, without a reopen, while the other program keeps its space.
        db["u"].insert({"k": [2], "v": [2]})
        assert reserved(folder) == PIECES_MIN * PIECE_BYTES
        assert db.check().ok


@pytest.mark.parametrize("purge", ["drop_table", "drop_range", "purge_dropped"])
def test_a_purge_frees_the_space_of_dropped_data(folder: Path, purge: str) -> None:
    """The table has a history, so a drop alone frees nothing."""
    disk = small_disk(folder, "bytes")
    with open_database(folder, files=disk) as db:
        filled(db)
        with db["t"].alter() as alteration:
            alteration.set_history("7d")
        disk.fill()
        if purge == "drop_range":
            with db["t"].alter() as alteration:
                alteration.drop_range(0, 1000, purge=True)
        else:
            db.drop_table("t", purge=purge == "drop_table")
        if purge == "purge_dropped":
            assert db.undrop_table("t").count() and not db.dropped_tables()
            db.drop_table("t")
            assert db.purge_dropped("t") > 0
        db._writer().collect_garbage()
        db["u"].insert({"k": [2], "v": [2]})
        assert db.check().ok


@pytest.mark.parametrize("limit", ["bytes", "quota", "inodes"])
def test_a_write_is_refused_and_works_again_when_there_is_space(folder: Path, limit: DiskLimit) -> None:
    disk = small_disk(folder, limit)
    with open_database(folder, files=disk) as db:
        table = filled(db)
        before = rows(table)
        db.flush()  # the next write needs a new segment of the log
        disk.fill()
        for _ in range(2):
            with pytest.raises(nyala.StorageError) as refused:
                for n in range(5000):
                    table.upsert({"k": [n % 2000], "b": [b"x" * 50_000]})
            assert refused.value.errno in (errno.ENOSPC, errno.EDQUOT) and refused.value.outcome is None
        kept = rows(table)
        if limit == "bytes":
            assert kept == before
        disk.heal()
        table.upsert({"k": [7], "b": [b"y"]})
        assert dict(rows(table)) == {**dict(kept), 7: b"y"}
        db.flush()
        assert reserved(folder) == PIECES_MIN * PIECE_BYTES
    with open_database(folder, files=disk) as db:
        assert dict(rows(db["t"])) == {**dict(kept), 7: b"y"} and db.check().ok


@pytest.mark.parametrize("durability", ["commit", "group", "os"])
def test_an_accepted_batch_is_written_although_the_disk_fills_up(folder: Path, durability: Any) -> None:
    """Another program takes all space between the check and the write."""
    disk = small_disk(folder)
    with open_database(folder, files=disk, durability=durability) as db:
        table = filled(db)
        writer = db._writer()
        real = writer.log.append

        def append(record: Any) -> Any:
            offset = real(record)
            disk.fill()
            return offset

        writer.log.append = append
        table.upsert({"k": [7], "b": [b"y" * 9000]})
        writer.log.append = real
        with pytest.raises(nyala.StorageError, match="nothing of this call was written"):
            table.upsert({"k": list(range(100, 120)), "b": [b"y" * 50_000] * 20})
        disk.heal()
        table.upsert({"k": [8], "b": [b"y"]})
    with open_database(folder) as db:
        assert {7, 8} <= {row[0] for row in rows(db["t"])}


@pytest.mark.parametrize("limit", ["bytes", "quota", "inodes"])
def test_a_store_closes_opens_and_is_read_on_a_full_disk(folder: Path, limit: DiskLimit) -> None:
    disk = small_disk(folder, limit)
    env = Outside(disk, SystemClock(), SystemRandomness())
    db = open_database(folder, files=disk)
    before = rows(filled(db))
    disk.fill()
    readers = [Database(ReaderStore.open(env, str(folder), 16 * MB)) for _ in range(3)]
    assert all(rows(reader["t"]) == before for reader in readers)
    db.close()
    for reader in readers:
        reader.close()
    disk.fill()
    with Database(ReaderStore.open(env, str(folder), 16 * MB)) as reader:
        assert rows(reader["t"]) == before
    disk.fill()
    with open_database(folder, files=disk) as db:
        assert rows(db["t"]) == before and rows(db["u"]) == [(1, 1)]
        disk.fill()
        db.drop_table("t")
        db._writer().collect_garbage()
        db["u"].insert({"k": [2], "v": [2]})


def test_a_reader_opens_when_the_reserve_is_used_up(folder: Path) -> None:
    disk = small_disk(folder)
    env = Outside(disk, SystemClock(), SystemRandomness())
    with open_database(folder, files=disk) as db:
        before = rows(filled(db))
        for path in (folder / "reserve").iterdir():
            path.unlink()
        disk.fill()
        with Database(ReaderStore.open(env, str(folder), 16 * MB)) as reader:
            assert rows(reader["t"]) == before


def test_a_compaction_that_does_not_fit_is_done_in_parts(folder: Path) -> None:
    """Twelve rowsets of 1 MB with the same keys, and a reserve of 8 MB."""
    disk = small_disk(folder)
    with open_database(folder, files=disk) as db:
        table = db.create_table("t", {"k": "int64", "b": "binary"}, "k", history=0)
        rnd = random.Random(5)
        for _ in range(12):
            table.upsert({"k": list(range(20)), "b": [rnd.randbytes(50_000) for _ in range(20)]})
            db.flush()
        before = rows(table)
        assert table.stats().bytes > PIECES_MIN * PIECE_BYTES
        disk.fill()
        table.compact()
        assert rows(table) == before and table.stats().rowsets == 1


def test_a_small_store_on_a_small_disk_can_be_compacted(folder: Path) -> None:
    """27 MB on a disk of 64 MB."""
    disk = small_disk(folder)
    with open_database(folder, files=disk) as db:
        table = db.create_table("t", {"k": "int64", "b": "binary"}, "k", history=0)
        rnd = random.Random(5)
        for first in range(2):
            table.upsert({"k": list(range(first, 540, 2)), "b": [rnd.randbytes(50_000) for _ in range(270)]})
            db.flush()
        assert table.stats().bytes > 27_000_000
        table.compact()
        assert table.stats().rowsets == 1 and table.count() == 540


def test_the_reserve_is_small_on_a_small_disk_and_grows_with_the_store(folder: Path) -> None:
    with open_database(folder, files=SmallDisk(system_files(), str(folder), 8 * MB)) as db:
        assert 0 < reserved(folder) <= 2 * MB
        db.create_table("u", {"k": "int64"}, "k").insert({"k": [1]})
        db._writer().reserve.grow(10**12)
        assert reserved(folder) <= 4 * MB
    with open_database(folder) as db:
        assert reserved(folder) == PIECES_MIN * PIECE_BYTES
        db._writer().reserve.grow(16 * 20 * MB)
        assert reserved(folder) == 20 * MB
    with open_database(folder) as db:
        db["u"].insert({"k": [2]})


# ── a real file system

ON_A_MOUNT = """
import os, random, sys
import nyala

mount, full = sys.argv[1:]
store = mount + "/s"

def fill(once=[]):
    if full == "inodes":
        if once:  # the store's freed space goes to its reserve first, and another program takes the rest
            return
        once.append(True)
        try:
            for n in range(100_000):
                open(f"{mount}/other-{os.urandom(8).hex()}", "x").close()
        except OSError:
            return
    with open(mount + "/other", "ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return

def drop_range(table):
    with table.alter() as alteration:
        alteration.drop_range(0, 1000)

def read():
    with nyala.connect(store, read_only=True) as reader:
        assert reader["t"].count() == before

db = nyala.connect(store, memory_limit="64MB", maintenance=False)
ranges = [nyala.range_partition("k", bounds=[(0, 1000), (1000, 2000)])]
t = db.create_table("t", {"k": "int64", "b": "binary"}, "k", ranges, history=0)
u = db.create_table("u", {"k": "int64", "v": "int64"}, "k", history=0)
rnd = random.Random(5)
for _ in range(4):
    keys = rnd.sample(range(2000), 100)
    t.upsert({"k": keys, "b": [rnd.randbytes(4000) for _ in keys]})
    db.flush()
u.insert({"k": [1], "v": [1]})
before = t.count()
for free in (
    read,
    lambda: t.compact(),
    lambda: t.vacuum(),
    lambda: drop_range(t),
    lambda: db.drop_table("t"),
):
    fill()
    free()
u.vacuum()
# Free space goes to the reserve first. Writes are accepted when the reserve is complete.
for name in os.listdir(mount):
    if name == "other":
        os.truncate(f"{mount}/other", os.path.getsize(f"{mount}/other") - 10_000_000)
    elif name.startswith("other-") and name < "other-8":
        os.unlink(f"{mount}/{name}")
u.insert({"k": [2], "v": [2]})
fill()
db.close()
for read_only in (True, False):
    fill()
    with nyala.connect(store, read_only=read_only, maintenance=False) as again:
        assert again["u"].count() == 2
print("good")
"""


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="mounts a file system: Linux, root")
@pytest.mark.parametrize("full", each(2, ["bytes", "inodes"]))
def test_a_mounted_file_system_that_is_full(full: str) -> None:
    with tempfile.TemporaryDirectory() as mount:
        options = "size=48m" + (",nr_inodes=200" if full == "inodes" else "")
        if subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", mount], capture_output=True
        ).returncode:
            pytest.skip("no right to mount")
        try:
            ran = subprocess.run(
                [sys.executable, "-c", ON_A_MOUNT, mount, full], capture_output=True, text=True, timeout=300
            )
        finally:
            subprocess.run(["umount", "-l", mount], check=True)
        assert ran.stdout == "good\n", ran.stderr[-3000:]
