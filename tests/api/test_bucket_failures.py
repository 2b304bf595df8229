"""What happens when something around a store in a bucket fails: docs/how-to/buckets.md has a row for each test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import nyala
from nyala.catalog import object_leases
from nyala.env import SYSTEM, Env
from nyala.objects.open import open_objects
from nyala.objects.remote_files import RemoteFiles
from nyala.tablet.media.bucket_reader import BucketReader
from nyala.tablet.store import Store, StoreOptions
from nyala.testing import SmallDisk
from nyala.testing.s3_server import S3Server
from tests.api.test_bucket import URL, connect, filled

MB = 1 << 20


@pytest.fixture
def server() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


# ── a reader that stands still ──────────────────────────────────────────────────────────────────────────────────────

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


def test_a_reader_that_stood_still_longer_than_its_lease_gets_an_error_and_no_wrong_rows(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader's process is stopped. Its lease ends by the bucket's clock, and its files are deleted."""
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
            assert db.stats().garbage_files > 0, "the lease keeps them, though its reader stands still"
            server.advance(object_leases.TTL_S + 2)
            db._writer().collect_garbage()
            assert db.stats().garbage_files == 0
            reader.send_signal(signal.SIGCONT)
            told, _ = reader.communicate("go on\n", timeout=60)
        finally:
            reader.kill()
            reader.wait()
        unread, begun, new, count = told.splitlines()
        assert unread.startswith("HistoryExpiredError") and "stood still for longer than its lease" in unread
        assert begun == "[]" or begun.startswith("HistoryExpiredError"), (
            "old rows or an error, never new ones"
        )
        assert new == repr([(k, "new") for k in range(40)]) and count == "40"


# ── a full disk of the cache ────────────────────────────────────────────────────────────────────────────────────────


def small_disk(server: S3Server, folder: Path, capacity: int) -> tuple[SmallDisk, Env, Any]:
    """A cache on a disk of a few megabytes, the environment of a store with it, and the bucket."""
    folder.mkdir()
    disk = SmallDisk(SYSTEM.files, str(folder), capacity)
    objects = open_objects(URL, server.options)
    files = RemoteFiles.over(objects, replace(SYSTEM, files=disk), str(folder), 1 << 30)
    return disk, replace(SYSTEM, files=files), objects


def test_a_full_disk_of_the_cache_costs_requests_and_no_reads(
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


def test_a_writer_whose_cache_is_full_keeps_its_rows_and_flushes_when_there_is_space(
    server: S3Server, tmp_path: Path
) -> None:
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
