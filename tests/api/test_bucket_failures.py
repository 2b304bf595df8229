"""Failures around a store in a bucket: each row of docs/how-to/bucket-failures.md has a test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import nyala
from nyala.catalog import object_leases
from nyala.env import SYSTEM, Env
from nyala.objects.memory import MemoryObjects
from nyala.objects.open import open_objects
from nyala.objects.remote_files import RemoteFiles
from nyala.tablet.media.bucket_reader import BucketReader
from nyala.tablet.store import Store, StoreOptions
from nyala.testing import FaultyObjects, ManualClock, SmallDisk
from nyala.testing.faulty_objects import Request
from nyala.testing.s3_server import S3Server, WireFault
from nyala.wal.objects.format import CHECKPOINT, GROUP
from tests.api.test_bucket import URL, connect, filled

MB = 1 << 20


@pytest.fixture
def server() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


# ── a writer that dies or is suspended ──────────────────────────────────────────────────────────────────────────────

WRITER = """
import sys, nyala
url, cache, options = sys.argv[1], sys.argv[2], eval(sys.argv[3])
db = nyala.connect(url, storage_options=options, cache_dir=cache, group_interval=0)
for k in range(10**6):
    try:
        db["t"].insert([(k,)])
    except nyala.Error as error:
        print(type(error).__name__, error, flush=True)
        break
    print(k, flush=True)
"""


@contextmanager
def writing(server: S3Server, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Start another process, which inserts ascending keys and prints each acknowledged one."""
    with connect(server, folder) as db:
        db.create_table("t", {"k": "int64"}, "k")
    command = [sys.executable, "-c", WRITER, URL, str(folder / "writer"), repr(server.options)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        try:
            assert writer.stdout is not None
            for _ in range(20):
                assert writer.stdout.readline()
            yield writer
        finally:
            writer.kill()


def keys(db: nyala.Database) -> list[int]:
    return sorted(db["t"].scan().to_arrow()["k"].to_pylist())


def test_a_killed_writer_is_replaced_without_a_loss(server: S3Server, tmp_path: Path) -> None:
    with writing(server, tmp_path) as writer:
        writer.kill()
        acknowledged = 20 + len(writer.communicate()[0].splitlines())
    with pytest.raises(nyala.LockedError, match="writes to the store"):
        connect(server, tmp_path)
    server.advance(17)
    with connect(server, tmp_path) as db:
        found = keys(db)
        assert found == list(range(len(found))) and acknowledged <= len(found) <= acknowledged + 1


def test_a_suspended_writer_is_fenced_without_a_loss(server: S3Server, tmp_path: Path) -> None:
    with writing(server, tmp_path) as writer:
        writer.send_signal(signal.SIGSTOP)
        os.waitpid(writer.pid, os.WUNTRACED)
        with connect(server, tmp_path, take_over=True) as db:
            db["t"].insert([(10**9,)])
            writer.send_signal(signal.SIGCONT)
            *acknowledged, last = writer.communicate()[0].splitlines()
            assert last.startswith("FencedError") and "nothing of this call was written" in last
            assert keys(db) == [*range(20 + len(acknowledged)), 10**9]


# ── a bucket that does not answer, or refuses ───────────────────────────────────────────────────────────────────────


def test_after_a_broken_network_one_write_is_in_doubt(tmp_path: Path) -> None:
    bucket = MemoryObjects()

    def opened() -> tuple[nyala.Database, FaultyObjects]:
        objects = FaultyObjects(bucket.client())
        files = RemoteFiles.over(objects, SYSTEM, str(tmp_path), 1 << 26)
        env = Env(files, ManualClock(), SYSTEM.randomness)  # retries for a minute take no time
        return nyala.Database(
            Store.open_in_bucket(env, objects, StoreOptions(maintenance=False), 0.0)
        ), objects

    db, objects = opened()
    filled(db)
    objects.faults = lambda _: "drop before"
    with pytest.raises(nyala.StorageError, match="known only after the next open") as raised:
        db["t"].insert([(300, "in doubt")])
    assert raised.value.outcome == "unknown"
    with pytest.raises(nyala.StorageError, match="takes no more writes"):
        db["t"].insert([(301, "refused")])
    objects.faults = None
    db.close()
    db, _ = opened()
    assert db["t"].count() == 100 and db["t"].get(300) is None
    db.close()


def test_expired_credentials_end_the_writer_with_a_known_outcome(server: S3Server, tmp_path: Path) -> None:
    with connect(server, tmp_path) as db:
        table = filled(db)
        server.faults = lambda request: "403" if request.verb == "PUT" else None
        with pytest.raises(nyala.StorageError, match="403 .*nothing of this call was written") as raised:
            table.insert([(300, "refused")])
        assert raised.value.outcome is None
        server.faults = None
    server.advance(17)
    with connect(server, tmp_path) as db:
        assert db["t"].count() == 100 and db["t"].get(300) is None
        db["t"].insert([(300, "with new credentials")])


# ── objects that are deleted, damaged, or kept as versions ──────────────────────────────────────────────────────────


def test_a_deleted_data_object_is_found_by_reads_and_by_the_check(server: S3Server, tmp_path: Path) -> None:
    """If a data object was deleted, no read silently misses its rows."""
    with connect(server, tmp_path) as db:
        filled(db)
    with closing(open_objects(URL, server.options)) as objects:
        objects.delete([info.key for info in objects.list("data/") if info.key.endswith(".base")][:1])
    for read_only in (False, True):
        with connect(server, tmp_path, read_only=read_only) as db:
            with pytest.raises(nyala.StorageError, match=r"\.base is missing, and its rows with it.*backup"):
                db["t"].scan().to_arrow()
    assert [p.kind for p in nyala.check(URL, storage_options=server.options).problems] == ["missing-file"]


def test_with_versioning_only_small_objects_have_old_versions(server: S3Server, tmp_path: Path) -> None:
    """Only small objects are written twice, so old versions need little space."""
    written: Counter[str] = Counter()

    def note(request: Request) -> None:
        if request.verb == "PUT" or (request.verb == "POST" and request.key):
            written[request.key.removeprefix("store/")] += 1

    server.faults = note
    for _ in range(2):
        with connect(server, tmp_path) as db, connect(server, tmp_path, read_only=True) as reader:
            table = filled(db) if "t" not in db else db["t"]
            table.upsert([(1, "again")])
            table.compact()
            db._writer().write_checkpoint()
            assert reader["t"].count() == 100
    twice = {key.partition("/")[0] for key, count in written.items() if count > 1}
    # `nyala.json` is created a second time, to test that the bucket refuses it.
    assert twice <= {"writer", "clock", "leases", "nyala.json"}, written


@pytest.mark.parametrize("key", ["nyala.json", "log/", "ckpt/"])
def test_a_store_of_a_future_version_is_refused(server: S3Server, tmp_path: Path, key: str) -> None:
    with connect(server, tmp_path) as db:
        filled(db)
        db._writer().write_checkpoint()
    name, body = max(
        (name, body) for name, body in server.bodies().items() if name.startswith(f"store/{key}")
    )
    if key == "nyala.json":
        body = body.replace(b'"format_version": 1', b'"format_version": 2')
    else:
        layout = GROUP if key == "log/" else CHECKPOINT
        values = layout.decode(body, 0, name, 0)
        body = layout.encode({**values, "format_version": 2}) + body[layout.size_bytes :]
    server.put(name, body)
    for read_only in (False, True):
        with pytest.raises(nyala.StorageError, match="version 2.* reads version 1: update Nyala"):
            connect(server, tmp_path, read_only=read_only, **({} if read_only else {"take_over": True}))


# ── a reader that is suspended ──────────────────────────────────────────────────────────────────────────────────────

READER = """
import sys, nyala
url, cache, options = sys.argv[1], sys.argv[2], eval(sys.argv[3])
def answer(rows):
    try:
        print(sorted(rows()), flush=True)
    except nyala.Error as error:
        print(type(error).__name__, error, flush=True)
with nyala.connect(url, storage_options=options, cache_dir=cache, cache_bytes=0, read_only=True) as db:
    rows = lambda scan: [(row["k"], row["v"]) for row in scan.to_arrow().to_pylist()]
    unread, begun = db["t"].scan(), iter(db["t"].scan().to_reader())
    first = next(iter(begun))
    print(first.num_rows, flush=True)
    sys.stdin.readline()
    answer(lambda: rows(unread))
    answer(lambda: [1 for batch in begun for row in batch.to_pylist() if row["v"] != "old"])
    answer(lambda: rows(db["t"].scan()))
    print(db["t"].count(), flush=True)
"""


def test_a_reader_suspended_for_longer_than_its_lease_gets_an_error(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease of a stopped reader ends, and its files are deleted. Its scans give no wrong rows."""
    monkeypatch.setattr(object_leases, "GRACE_S", 0.0)
    monkeypatch.setattr(object_leases, "_LISTED_S", 0.0)
    with connect(server, tmp_path, maintenance=False) as db:
        table = db.create_table("t", {"k": "int64", "v": "string"}, "k", history=0)
        for first in range(0, 40, 10):
            table.insert({"k": range(first, first + 10), "v": ["old"] * 10})
            db.flush()
        reader = subprocess.Popen(
            [sys.executable, "-c", READER, URL, str(tmp_path / "reader"), repr(server.options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert reader.stdin is not None and reader.stdout is not None
            assert int(reader.stdout.readline()) > 0
            reader.send_signal(signal.SIGSTOP)
            os.waitpid(reader.pid, os.WUNTRACED)
            table.update({"k": range(40), "v": ["new"] * 40})
            table.compact()
            table.vacuum()
            db._writer().collect_garbage()
            assert db.stats().garbage_files > 0, "the lease of the stopped reader keeps them"
            server.advance(object_leases.TTL_S + 2)
            db._writer().collect_garbage()
            assert db.stats().garbage_files == 0
            reader.send_signal(signal.SIGCONT)
            output, _ = reader.communicate("go on\n", timeout=60)
        finally:
            reader.kill()
            reader.wait()
        unread, begun, new, count = output.splitlines()
        assert (
            unread.startswith("HistoryExpiredError") and "was suspended for longer than its lease" in unread
        )
        assert begun == "[]" or begun.startswith("HistoryExpiredError"), (
            "old rows or an error, never new rows"
        )
        assert new == repr([(k, "new") for k in range(40)]) and count == "40"


# ── a bucket that is overloaded ─────────────────────────────────────────────────────────────────────────────────────


def test_refused_requests_are_repeated_and_counted(server: S3Server, tmp_path: Path) -> None:
    refused: Counter[str] = Counter()

    def faults(request: Request) -> WireFault | None:
        kind = "log" if "/log/" in request.key and request.verb == "PUT" else "read"
        if request.verb not in ("GET", "PUT") or refused[kind] == 3:
            return None
        refused[kind] += 1
        return "503"

    with connect(server, tmp_path) as db:
        table = filled(db)
        assert db.stats().throttled == 0
        server.faults = faults
        table.insert([(300, "after three refusals")])
        with connect(server, tmp_path, read_only=True) as reader:
            assert reader["t"].count() == 101
        assert refused == {"log": 3, "read": 3}
        assert db.stats().throttled == 3, "obstore repeats reads and does not count them"


# ── a full disk of the cache ────────────────────────────────────────────────────────────────────────────────────────


def small_disk(server: S3Server, folder: Path, capacity: int) -> tuple[SmallDisk, Env, Any]:
    """Return a small disk, an environment whose cache is on it, and the bucket."""
    folder.mkdir()
    disk = SmallDisk(SYSTEM.files, str(folder), capacity)
    objects = open_objects(URL, server.options)
    files = RemoteFiles.over(objects, replace(SYSTEM, files=disk), str(folder), 1 << 30)
    return disk, replace(SYSTEM, files=files), objects


def test_reads_work_without_the_cache_if_its_disk_is_full(
    server: S3Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(server, tmp_path) as db:
        expected = filled(db).scan(order_by_key=True).to_arrow()
    disk, env, objects = small_disk(server, tmp_path / "disk", 4 * MB)
    with nyala.Database(BucketReader.open(env, objects, 64 * MB, 0.0)) as reader:
        disk.fill()
        for _ in range(2):
            assert reader["t"].scan(order_by_key=True).to_arrow() == expected
        assert reader["t"][1] == {"k": 1, "v": "new"}
    assert [record.message for record in caplog.records if "the cache of" in record.message] != []
    assert "every read of a data file is a request" in caplog.text


def test_a_writer_flushes_when_its_full_disk_has_space_again(server: S3Server, tmp_path: Path) -> None:
    disk, env, objects = small_disk(server, tmp_path / "disk", 4 * MB)
    options = StoreOptions(maintenance=False)
    with nyala.Database(Store.open_in_bucket(env, objects, options, 0.0)) as db:
        table = filled(db)
        disk.fill()
        table.insert([(300, "to the log")])
        with pytest.raises(nyala.StorageError, match="No space left"):
            db.flush()
        table.insert([(301, "after it")])
        expected = table.scan(order_by_key=True).to_arrow()
        assert expected.num_rows == 102
        disk.heal()
        db.flush()
        assert table.scan(order_by_key=True).to_arrow() == expected
    with connect(server, tmp_path) as db:
        assert db["t"].scan(order_by_key=True).to_arrow() == expected and db.check().ok
