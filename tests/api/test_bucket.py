"""A store in a bucket: the same calls as for a folder, readers and writers, and the removal of old files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import nyala
from nyala.catalog import object_leases
from nyala.env import SYSTEM
from nyala.objects.memory import MemoryObjects
from nyala.objects.open import open_objects
from nyala.objects.remote_files import RemoteFiles
from nyala.tablet.media import bucket
from nyala.tablet.store import Store, StoreOptions
from nyala.testing.s3_server import S3Server
from nyala.wal.objects.follower import LogFollower
from nyala.wal.objects.take_over import create_store

URL = "s3://bucket/store"


@pytest.fixture
def server() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


def connect(server: S3Server, folder: Path, **options: Any) -> nyala.Database:
    kept = {"storage_options": server.options, "cache_dir": folder / "cache"}
    if not options.get("read_only"):
        kept["group_interval"] = 0
    return nyala.connect(URL, **{**kept, **options})


def filled(db: nyala.Database) -> nyala.Table:
    """Create a table with rows in base data, in REDO and UNDO files, and in the log."""
    table = db.create_table("t", {"k": "int64", "v": "string"}, "k", nyala.hash_partition("k", buckets=2))
    table.insert({"k": range(100), "v": ["old"] * 100})
    db.flush()
    table.update({"k": [1, 2], "v": ["new", "new"]})
    table.delete({"k": [3]})
    db.flush()
    table.insert({"k": [200], "v": ["in the log"]})
    return table


def test_the_next_connect_finds_everything(server: S3Server, tmp_path: Path) -> None:
    with connect(server, tmp_path) as db:
        table = filled(db)
        moment = db.now()
        with table.alter() as change:
            change.add_column("n", "int64", default=7)
        table.compact()
        table.upsert({"k": range(300, 900), "v": ["x" * 20_000] * 600})  # a direct commit to files
        expected = table.scan(order_by_key=True).to_arrow()
        past = table.scan(at=moment, order_by_key=True).to_arrow()
        changes = table.changes(since=moment).to_arrow().num_rows
    with connect(server, tmp_path) as db:
        table = db["t"]
        assert table.scan(order_by_key=True).to_arrow() == expected
        assert table.scan(at=moment, order_by_key=True).to_arrow() == past
        assert table.changes(since=moment).to_arrow().num_rows == changes == 600
        assert table[1] == {"k": 1, "v": "new", "n": 7} and table.get(3) is None
        assert db.sql("SELECT count(*), max(n) FROM t").fetchall() == [(700, 7)]
        assert db.check().ok
    assert nyala.check(URL, storage_options=server.options).ok


def test_new_keys_that_no_file_contains(server: S3Server, tmp_path: Path) -> None:
    """The new keys are between those of a file, and its bloom filter excludes them."""
    with connect(server, tmp_path) as db:
        t = db.create_table("t", {"a": "int64", "b": "string"}, ["a", "b"])
        t.insert([(number, f"b{number}") for number in range(0, 1000, 4)])
        db.flush()
    with connect(server, tmp_path) as db:
        for number in range(1, 40, 4):
            assert db["t"].insert([(number, f"b{number}"), (number + 1, "b")]).inserted == 2
        assert db["t"].count() == 270


def test_a_long_log_of_small_writes_is_cut_by_checkpoints(server: S3Server, tmp_path: Path) -> None:
    """A checkpoint limits the number of log objects that an open reads."""
    # Without maintenance, because a checkpoint in the background just before the flush would delay the next.
    with connect(server, tmp_path, maintenance=False) as db:
        table = db.create_table("t", {"k": "int64"}, "k")
        for k in range(300):
            table.upsert([(k,)])
        db.flush()
        table.vacuum()
        table.upsert([(300,)])
    before = server.requests["GET"]
    with connect(server, tmp_path) as db:
        assert db["t"].count() == 301
        assert server.requests["GET"] - before < 60


def test_readers_follow_the_writer_and_keep_their_snapshots(server: S3Server, tmp_path: Path) -> None:
    with connect(server, tmp_path) as db, connect(server, tmp_path, read_only=True) as reader:
        table = filled(db)
        assert reader["t"].count() == 100 and reader["t"][1]["v"] == "new"
        begun = reader["t"].scan()
        table.delete(where="k < 50")
        table.compact()
        table.insert([(201, "after the change")])
        assert reader["t"].count() == table.count() == 52
        assert begun.count() == 100
        assert reader["t"].get(201) == {"k": 201, "v": "after the change"}
        with pytest.raises(nyala.ReadOnlyError, match="read_only=True"):
            reader["t"].delete([201])
    with connect(server, tmp_path, read_only=True) as reader:  # without a writer
        assert reader["t"].count() == 52


def test_a_reader_with_refresh_sends_fewer_requests(server: S3Server, tmp_path: Path) -> None:
    with connect(server, tmp_path) as db, connect(server, tmp_path, read_only=True, refresh=3600) as reader:
        db.create_table("t", {"k": "int64"}, "k")
        assert reader.list_tables() == []
        requests = sum(server.requests.values())
        assert reader.list_tables() == [] and sum(server.requests.values()) == requests


class Stop(BaseException):
    """Ctrl-C in the middle of a read."""


@pytest.mark.parametrize("failure", [nyala.StorageError("403"), Stop()])
@pytest.mark.parametrize("where", ["accept", "must_begin_again"])
def test_a_failed_read_of_the_log_is_repeated(
    server: S3Server, tmp_path: Path, failure: BaseException, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader has read new log records. The next read applies them."""
    with connect(server, tmp_path) as db, connect(server, tmp_path, read_only=True) as reader:
        table = filled(db)
        assert reader["t"].count() == 100
        for change in (
            lambda: table.upsert([(500, "batch")]),
            db.flush,
            lambda: table.upsert([(501, "more")]),
        ):
            change()
            real = getattr(LogFollower, where)

            def fails(self: LogFollower, *arguments: Any, real: Any = real) -> Any:
                real(self, *arguments)
                raise failure

            monkeypatch.setattr(LogFollower, where, fails)
            with pytest.raises(type(failure)):
                reader["t"].count()
            monkeypatch.undo()
            assert reader["t"].scan(order_by_key=True).to_arrow() == table.scan(order_by_key=True).to_arrow()


OTHER = """
import sys, nyala
url, folder, take_over, options = sys.argv[1:3] + [sys.argv[3] == "take over", eval(sys.argv[4])]
try:
    with nyala.connect(url, storage_options=options, cache_dir=folder, take_over=take_over) as db:
        db["t"].insert([(999, "by the other")])
        print(db["t"].count())
except nyala.Error as error:
    print(type(error).__name__, error)
"""


def other_process(server: S3Server | None, folder: Path, how: str, url: str = URL) -> str:
    options = None if server is None else server.options
    command = [sys.executable, "-c", OTHER, url, str(folder / "other"), how, repr(options)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_living_writer_is_not_fenced_by_accident(server: S3Server, tmp_path: Path) -> None:
    with connect(server, tmp_path) as db:
        table = filled(db)
        refused = other_process(server, tmp_path, "beside")
        assert refused.startswith("LockedError") and "take_over=True" in refused and "on host" in refused
        table.insert([(5000, "still the writer")])
    assert other_process(server, tmp_path, "beside") == "102\n", "after close() another process may write"


def test_a_fenced_writer_neither_writes_nor_reads(server: S3Server, tmp_path: Path) -> None:
    """After another process took over the store, all calls raise. A scan that began before still works."""
    db = connect(server, tmp_path)
    table = filled(db)
    scan = table.scan()
    assert other_process(server, tmp_path, "take over") == "101\n"
    with pytest.raises(nyala.FencedError, match=r"pid \d+ on host .*nothing of this call was written"):
        table.insert([(7777, "lost")])
    for call in (table.count, lambda: db.create_table("u", {"k": "int64"}, "k"), db.flush):
        with pytest.raises(nyala.StorageError, match="connect"):
            call()
    assert scan.count() == 100
    with connect(server, tmp_path) as again:  # closes the fenced one
        assert again["t"].count() == 101 and again["t"].get(7777) is None
        again["t"].insert([(7777, "written")])
    db.close()


def test_one_process_shares_the_store(server: S3Server, tmp_path: Path) -> None:
    with connect(server, tmp_path) as db, connect(server, tmp_path) as again:
        db.create_table("t", {"k": "int64"}, "k")
        again["t"].insert([(1,)])
        assert db["t"].count() == 1
        with pytest.raises(nyala.InvalidArgumentError, match="is open in this process with durability"):
            connect(server, tmp_path, durability="group")


def test_a_folder_that_is_used_like_a_bucket(tmp_path: Path) -> None:
    """A file:// URL works without locks, also on NFS: processes take over the store as in a bucket."""
    url = f"file://{tmp_path}/store"
    with nyala.connect(url, cache_dir=tmp_path / "cache", group_interval=0) as db:
        table = filled(db)
        refused = other_process(None, tmp_path, "beside", url)
        assert refused.startswith("LockedError") and "take_over=True" in refused and "on host" in refused
        table.insert([(5000, "still the writer")])
        with nyala.connect(url, read_only=True, cache_dir=tmp_path / "reader") as reader:
            assert reader["t"].count() == 101
            assert other_process(None, tmp_path, "take over", url) == "102\n"
            assert reader["t"].count() == 102, "the reader follows the next writer"
        with pytest.raises(nyala.FencedError, match=r"pid \d+ on host .*nothing of this call was written"):
            table.insert([(7777, "lost")])
    with nyala.connect(url, cache_dir=tmp_path / "cache") as db:
        assert db["t"].count() == 102 and db["t"].get(7777) is None and db.check().ok


def test_the_error_for_a_store_of_the_other_kind(tmp_path: Path) -> None:
    """A store must be opened as it was created: by a path, or by a file:// URL."""
    cache = {"cache_dir": tmp_path / "cache"}
    nyala.connect(tmp_path / "folder").close()
    nyala.connect(f"file://{tmp_path}/objects", **cache).close()
    for read_only in (True, False):
        with pytest.raises(
            nyala.StorageError, match="without file://, or copy the store with `nyala fs copy`"
        ):
            nyala.connect(f"file://{tmp_path}/folder", read_only=read_only, **cache)
        with pytest.raises(nyala.StorageError, match=r"Connect with a URL such as file:///folder, or copy"):
            nyala.connect(tmp_path / "objects", read_only=read_only)


def test_garbage_is_deleted_after_the_grace(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_leases, "GRACE_S", 0.0)
    monkeypatch.setattr(object_leases, "_LISTED_S", 0.0)
    with connect(server, tmp_path, maintenance=False) as db:
        table = filled(db)
        with connect(server, tmp_path, read_only=True) as reader:
            begun = reader["t"].scan()
            table.compact()
            db._writer().collect_garbage()
            assert db.stats().garbage_files > 0, "a reader has a lease on them"
            assert begun.count() == 100
        db._writer().collect_garbage()
        assert db.stats().garbage_files == 0
        assert table.count() == 100 and db.check().ok


def test_orphans_are_deleted_after_a_day(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed writer leaves orphans. A younger file may be in the next change of the catalogue."""
    monkeypatch.setattr(bucket, "ORPHANS_FIRST_S", 0.0)
    monkeypatch.setattr(bucket, "ORPHANS_EVERY_S", 0.0)
    with connect(server, tmp_path, maintenance=False) as db:
        table = filled(db)
        store = db._writer()
        assert store.objects is not None
        store.objects.put("data/1/99-0123456789abcdef.base", b"an orphan")
        store.collect_garbage()
        assert store.objects.head("data/1/99-0123456789abcdef.base") is not None
        server.advance(25 * 3600)
        store.collect_garbage()
        assert store.objects.head("data/1/99-0123456789abcdef.base") is None
        assert table.count() == 100 and db.check().ok


def test_another_store_below_a_store_is_kept(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One store is at s3://bucket/store, another one at s3://bucket/store/data, and so on."""
    monkeypatch.setattr(bucket, "ORPHANS_FIRST_S", 0.0)
    monkeypatch.setattr(bucket, "ORPHANS_EVERY_S", 0.0)
    inner = [f"{URL}/{name}" for name in ("data", "staging", "lease-files", "inbox", "answers")]
    for url in inner:
        with nyala.connect(url, storage_options=server.options, cache_dir=tmp_path, maintenance=False) as db:
            filled(db)
            db.flush()
    with connect(server, tmp_path, maintenance=False) as db:
        filled(db)
        server.advance(25 * 3600)
        before = server.bodies().keys()
        db._writer().collect_garbage()
        assert before <= server.bodies().keys()
    for url in inner:
        with nyala.connect(url, storage_options=server.options, cache_dir=tmp_path, read_only=True) as db:
            assert db["t"].count() == 100 and db.check().ok


def fenced(server: S3Server, folder: Path) -> tuple[nyala.Database, nyala.Database]:
    """Return a writer that does not know yet that it was fenced, and the writer that fenced it."""
    old = connect(server, folder)
    filled(old)
    client = open_objects(URL, server.options)
    env = replace(SYSTEM, files=RemoteFiles.over(client, SYSTEM, str(folder / "successor"), 1 << 26))
    return old, nyala.Database(Store.open_in_bucket(env, client, StoreOptions(maintenance=False), 0.0))


def test_a_fenced_writer_deletes_no_files_of_the_next_writer(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the old catalogue of the fenced writer, files of the next writer are orphans of two days."""
    monkeypatch.setattr(bucket, "ORPHANS_FIRST_S", 0.0)
    old, successor = fenced(server, tmp_path)
    successor["t"].upsert([(k, "by the successor") for k in range(50)])
    successor.flush()
    server.advance(48 * 3600)
    with pytest.raises(nyala.FencedError):
        old._writer().collect_garbage()
    with pytest.raises(nyala.FencedError):
        old["t"].count()
    assert successor.check().ok and successor["t"].get(3)["v"] == "by the successor"
    successor.close()
    old.close()


def test_a_fenced_writer_does_not_change_the_object_writer(server: S3Server, tmp_path: Path) -> None:
    """The object `writer` shows that the next writer lives. Without it, a third process would fence it."""
    old, successor = fenced(server, tmp_path)
    objects = open_objects(URL, server.options)
    written = objects.get("writer")
    old._writer()._medium.lock._log.announce()
    assert objects.get("writer") == written
    old.close()
    assert objects.get("writer") == written and bucket.living_writer(objects) is not None
    successor.close()
    assert bucket.living_writer(objects) is None


class Forgetful(MemoryObjects):
    """A service that ignores If-None-Match."""

    def create(self, key: str, body: Any) -> bool:
        self.put(key, body)
        return True


def test_a_service_that_ignores_put_if_absent_gets_no_store() -> None:
    with pytest.raises(nyala.StorageError, match="ignores If-None-Match"):
        create_store(SYSTEM, Forgetful())
    assert create_store(SYSTEM, MemoryObjects()).store_id


def test_arguments_for_a_bucket_need_a_url(tmp_path: Path) -> None:
    for options in ({"storage_options": {}}, {"cache_bytes": "1GB"}, {"take_over": True}):
        with pytest.raises(nyala.InvalidArgumentError, match="pass its URL"):
            nyala.connect(tmp_path / "s", **options)  # type: ignore[arg-type]
    with pytest.raises(nyala.StorageError, match="no Nyala store"):
        nyala.connect(f"file://{tmp_path}/nothing", read_only=True, cache_dir=tmp_path / "cache")
