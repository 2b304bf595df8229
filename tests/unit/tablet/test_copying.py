"""A copy of a store has the same rows at every moment, and a failed copy is no store."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import nyala
from nyala.env import SYSTEM
from nyala.objects.base import Objects
from nyala.objects.memory import MemoryObjects
from nyala.objects.open import open_objects
from nyala.objects.remote_files import RemoteFiles
from nyala.tablet.copying import (
    BucketDestination,
    CopyReport,
    Destination,
    FolderDestination,
    copy_store,
)
from nyala.tablet.media.bucket_reader import BucketReader
from nyala.tablet.recovery.reader_store import ReaderStore
from nyala.tablet.state.result import WriteResult
from nyala.tablet.write.write_path import Request, write
from nyala.testing.s3_server import S3Server

URL = "s3://bucket/store"
LIMIT = 1 << 28


@pytest.fixture
def server() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


def connect(server: S3Server, tmp_path: Path, **options: Any) -> nyala.Database:
    return nyala.connect(
        URL, storage_options=server.options, cache_dir=tmp_path / "cache", group_interval=0, **options
    )


def filled(db: nyala.Database) -> nyala.Table:
    """Create a store with all kinds of files, unflushed rows, dropped ranges and tables, and used keys."""
    gone = db.create_table("gone", {"k": "int64"}, "k")
    table = db.create_table(
        "t",
        {"k": "int64", "v": "string"},
        "k",
        nyala.range_partition("k", splits=[1000, 2000]),
    )
    table.insert({"k": range(0, 3000, 10), "v": ["old"] * 300})
    db.flush()
    table.update({"k": [10, 20, 2000], "v": ["new"] * 3})
    table.delete({"k": [30]})
    db.flush()
    with table.alter() as change:
        change.add_column("n", "int64", default=7)
        change.drop_range(1000, 2000)
    gone.insert([(1,)])
    last = db.create_table("last", {"k": "int64"}, "k")
    last.insert([(1,)])
    db.drop_table("last")  # the rows of the dropped table are in the log, and its id must not be used again
    once(db)
    table.update({"k": [40], "n": [2]})
    table.delete({"k": [50]})
    db.drop_table("gone")
    return table


def once(db: nyala.Database) -> WriteResult:
    """Commit a batch with an idempotency key."""
    request = Request("t", "insert", {"k": [1], "v": ["in the log"], "n": [1]})
    (result,) = write(db._writer(), [request], idempotency_key="once")
    return result


def content(db: nyala.Database, moments: list[int]) -> list[Any]:
    """Return all rows at these moments, and the changes between them."""
    table = db["t"]
    rows: list[Any] = [table.scan(at=moment, order_by_key=True).to_arrow().to_pylist() for moment in moments]
    feeds = [
        sorted(table.changes(since=since, until=until).to_arrow().to_pylist(), key=str)
        for since, until in itertools.pairwise(moments)
    ]
    return [rows, feeds]


def copied(source: Path, destination: Destination) -> CopyReport:
    with closing(ReaderStore.open(SYSTEM, str(source), LIMIT)) as reader:
        return copy_store(reader, destination, lambda done, total: None)


def to_bucket(source: Path, objects: Objects) -> CopyReport:
    return copied(source, BucketDestination(SYSTEM, objects))


def to_folder(server: S3Server, folder: Path) -> CopyReport:
    with (
        connect(server, folder.parent, read_only=True) as db,
        closing(FolderDestination(SYSTEM, str(folder))) as to,
    ):
        store = db._opened()
        assert isinstance(store, BucketReader)
        return copy_store(store, to, lambda done, total: None)


def test_a_copy_equals_its_source_at_every_moment(server: S3Server, tmp_path: Path) -> None:
    """From folder to bucket, from bucket to folder, and from folder to folder."""
    with nyala.connect(tmp_path / "a", maintenance=False) as db:
        table = filled(db)
        moments = [db.now()]
        table.upsert({"k": [10, 5], "v": ["x", "y"], "n": [1, 2]})
        moments.append(db.now())
        with closing(open_objects(URL, server.options)) as objects:
            report = to_bucket(tmp_path / "a", objects)
        assert report.timestamp <= moments[-1] and report.files > 3 and report.log_records > 2
        expected = content(db, moments)
    to_folder(server, tmp_path / "b")
    with closing(FolderDestination(SYSTEM, str(tmp_path / "c"))) as to:
        copied(tmp_path / "b", to)
    opening: list[Callable[[], nyala.Database]] = [
        lambda: connect(server, tmp_path),
        lambda: nyala.connect(tmp_path / "b"),
        lambda: nyala.connect(tmp_path / "c"),
    ]
    for opened in opening:
        with opened() as db:
            assert content(db, moments) == expected
            assert db.check().ok
            # A new table gets no rows of a dropped one, and a used idempotency key stays used.
            assert db.create_table("next", {"k": "int64"}, "k").count() == 0
            assert once(db).timestamp <= moments[0]
            db["t"].insert({"k": [7], "v": ["more"], "n": [1]})
        with opened() as db:
            assert db["t"][7]["v"] == "more" and db["t"].count() == len(expected[0][-1]) + 1
    assert nyala.check(tmp_path / "b").ok and nyala.check(URL, storage_options=server.options).ok


@pytest.mark.parametrize("kind", ["folder", "bucket"])
def test_the_source_is_written_to_during_the_copy(server: S3Server, tmp_path: Path, kind: str) -> None:
    """The copy has the rows of one moment: all batches up to it, and none after it."""
    stop, progress = threading.Event(), threading.Event()
    folder = tmp_path / "a"
    with nyala.connect(folder) if kind == "folder" else connect(server, tmp_path) as db:
        table = db.create_table("t", {"k": "int64", "n": "int64"}, "k", nyala.hash_partition("k", buckets=2))

        def write() -> None:
            n = 0
            while not stop.is_set():
                n += 1
                table.upsert({"k": range(20), "n": [n] * 20})
                if n % 5 == 0:
                    db.flush()
                    table.compact()
                if n == 12:
                    progress.set()

        writer = threading.Thread(target=write)
        writer.start()
        try:
            assert progress.wait(60)
            for number in range(3):
                target = tmp_path / f"copy{number}"
                if kind == "folder":
                    with closing(FolderDestination(SYSTEM, str(target))) as to:
                        report = copied(folder, to)
                else:
                    report = to_folder(server, target)
                with nyala.connect(target, read_only=True) as copy:
                    rows = copy["t"].scan(order_by_key=True).to_arrow()
                    assert len(set(rows["n"].to_pylist())) == 1 and rows.num_rows == 20
                    assert rows == table.scan(at=report.timestamp, order_by_key=True).to_arrow()
        finally:
            stop.set()
            writer.join()


class Stopping:
    """Objects whose requests all fail from a chosen changing request on; that request is executed or not."""

    def __init__(self, objects: Objects, after: int, done: bool) -> None:
        self._objects, self.left, self._done = objects, after, done

    def __getattr__(self, name: str) -> Any:
        found: Callable[..., Any] = getattr(self._objects, name)
        if name not in ("create", "put", "upload", "delete"):
            return found

        def request(*words: Any) -> Any:
            self.left -= 1
            if self.left > 0:
                return found(*words)
            if self.left == 0 and self._done:
                found(*words)
            raise KeyboardInterrupt

        return request


def test_an_interrupted_copy_is_no_store_and_can_be_repeated(tmp_path: Path) -> None:
    with nyala.connect(tmp_path / "a", maintenance=False) as db:
        table, moments = filled(db), [db.now()]
        rows = table.scan(order_by_key=True).to_arrow().to_pylist()
    chosen, stops = random.Random(7), 0
    for number in range(12):
        objects = MemoryObjects(f"memory://{number}")
        while True:
            stopping = Stopping(objects, chosen.randrange(1, 30), chosen.random() < 0.5)
            try:
                to_bucket(tmp_path / "a", stopping)
                break
            except KeyboardInterrupt:
                stops += 1
            if objects.get("nyala.json") is not None:
                break  # the interruption came after the commit
            env = replace(SYSTEM, files=RemoteFiles.over(objects, SYSTEM, str(tmp_path / "cache"), 0))
            with pytest.raises(nyala.StorageError, match=r"no Nyala store"):
                BucketReader.open(env, _Unclosed(objects), LIMIT, 0)
        env = replace(SYSTEM, files=RemoteFiles.over(objects, SYSTEM, str(tmp_path / "cache"), 0))
        with closing(BucketReader.open(env, _Unclosed(objects), LIMIT, 0)) as reader:
            with closing(FolderDestination(SYSTEM, str(tmp_path / f"b{number}"))) as to:
                copy_store(reader, to, lambda done, total: None)
        with nyala.connect(tmp_path / f"b{number}", read_only=True) as db:
            assert db["t"].scan(at=moments[0], order_by_key=True).to_arrow().to_pylist() == rows
    assert stops > 5


class _Unclosed:
    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objects, name)

    def close(self) -> None:
        pass


def test_an_interrupted_copy_to_a_folder_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with nyala.connect(tmp_path / "a", maintenance=False) as db:
        rows = filled(db).scan(order_by_key=True).to_arrow()
    write_atomic, names = type(SYSTEM.files).write_atomic, ["nyala.json", "checkpoints/"]
    for name in names:

        def refuse(self: Any, path: str, data: bytes, name: str = name) -> None:
            if name in path:
                raise KeyboardInterrupt
            write_atomic(self, path, data)

        with monkeypatch.context() as patch, closing(FolderDestination(SYSTEM, str(tmp_path / "b"))) as to:
            patch.setattr(type(SYSTEM.files), "write_atomic", refuse)
            with pytest.raises(KeyboardInterrupt):
                copied(tmp_path / "a", to)
        with pytest.raises(nyala.StorageError, match="unfinished copy"):
            nyala.connect(tmp_path / "b")
    with closing(FolderDestination(SYSTEM, str(tmp_path / "b"))) as to:
        copied(tmp_path / "a", to)
    with nyala.connect(tmp_path / "b") as db:
        assert db["t"].scan(order_by_key=True).to_arrow() == rows
    assert nyala.check(tmp_path / "b").ok


def test_a_destination_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    with nyala.connect(tmp_path / "a") as db:
        filled(db)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "letter").touch()
    for path, message in ((tmp_path / "a", "there is a store"), (tmp_path / "b", "is not empty")):
        with (
            closing(FolderDestination(SYSTEM, str(path))) as to,
            pytest.raises(nyala.StorageError, match=message),
        ):
            copied(tmp_path / "a", to)
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["letter"]
    objects = MemoryObjects("memory://bucket")
    objects.put("letter", b"")
    with pytest.raises(nyala.StorageError, match="is not empty"):
        to_bucket(tmp_path / "a", objects)


def test_connect_refuses_an_unfinished_copy(server: S3Server, tmp_path: Path) -> None:
    with closing(open_objects(URL, server.options)) as objects:
        objects.put("copying", b"")
    with pytest.raises(nyala.StorageError, match="unfinished copy"):
        connect(server, tmp_path)
    with closing(open_objects(URL, server.options)) as objects:
        assert [info.key for info in objects.list("")] == ["copying"]


def test_a_damaged_newest_checkpoint_loses_nothing(server: S3Server, tmp_path: Path) -> None:
    """Without a checkpoint, the rows of the log would belong to no table, and the store would seem empty."""
    with nyala.connect(tmp_path / "a", maintenance=False) as db:
        rows = filled(db).scan(order_by_key=True).to_arrow()
    with closing(open_objects(URL, server.options)) as objects:
        to_bucket(tmp_path / "a", objects)
    with closing(open_objects(URL, server.options)) as objects:
        first, newest = (info.key for info in objects.list("ckpt/"))
        objects.put(newest, b"x" * 200)
    with connect(server, tmp_path) as db:
        assert db["t"].scan(order_by_key=True).to_arrow() == rows and first != newest


def test_a_second_copy_to_the_same_prefix_stops_the_first(tmp_path: Path) -> None:
    with nyala.connect(tmp_path / "a", maintenance=False) as db:
        filled(db)
    objects = MemoryObjects("memory://bucket")

    class Overtaken(BucketDestination):
        def write(self, path: str, size_bytes: int, parts: Any) -> None:
            objects.put("copying", b"another")
            super().write(path, size_bytes, parts)

    with pytest.raises(nyala.StorageError, match="another process is copying"):
        copied(tmp_path / "a", Overtaken(SYSTEM, objects))
    assert objects.get("nyala.json") is None


def test_a_shorter_file_of_the_source_is_an_error(tmp_path: Path) -> None:
    with nyala.connect(tmp_path / "a", maintenance=False) as db:
        filled(db)
    for file in (tmp_path / "a" / "data").rglob("*.base"):
        file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(nyala.CorruptionError, match="shorter than"):
        to_bucket(tmp_path / "a", MemoryObjects("memory://bucket"))


def test_a_file_of_another_size_is_replaced(tmp_path: Path) -> None:
    """A crash during a copy may leave a file without its content."""
    with nyala.connect(tmp_path / "a", maintenance=False) as db:
        rows = filled(db).scan(order_by_key=True).to_arrow()
    for source in (tmp_path / "a" / "data").rglob("*.base"):
        torn = tmp_path / "b" / source.relative_to(tmp_path / "a")
        torn.parent.mkdir(parents=True, exist_ok=True)
        torn.touch()
        torn.with_name(torn.name + ".part").touch()
    (tmp_path / "b" / "copying").touch()
    with closing(FolderDestination(SYSTEM, str(tmp_path / "b"))) as to:
        copied(tmp_path / "a", to)
    with nyala.connect(tmp_path / "b") as db:
        assert db["t"].scan(order_by_key=True).to_arrow() == rows
    assert nyala.check(tmp_path / "b").ok
