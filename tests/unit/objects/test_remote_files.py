"""`RemoteFiles`: reads return the bytes of the objects, few requests are sent, and the cache may fail."""

from __future__ import annotations

import errno
import logging
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nyala.env import SYSTEM, Env, Files, MissingFileError
from nyala.env.posix_files import _idle
from nyala.errors import Error, HistoryExpiredError, StorageError
from nyala.objects.chunk_cache import CHUNK_BYTES
from nyala.objects.memory import MemoryObjects
from nyala.objects.remote_files import RemoteFiles
from nyala.testing import FaultyObjects
from nyala.testing.faulty_objects import Fault
from nyala.testing.file_wrapper import FileWrapper

URL = "memory://bucket"
SIZE = 40 * CHUNK_BYTES + 123
CONTENT = random.Random(5).randbytes(SIZE)


class Bucket:
    """A bucket with one large object, and its files."""

    def __init__(self, folder: Path) -> None:
        self.memory = MemoryObjects(URL)
        self.memory.put("data/1/a.base", CONTENT)
        self.objects = FaultyObjects(self.memory)
        self.folder = folder
        self.opened: list[RemoteFiles] = []

    def files(self, cache_bytes: int = 1 << 30, local: Files = SYSTEM.files) -> RemoteFiles:
        env = Env(local, SYSTEM.clock, SYSTEM.randomness)
        self.opened.append(RemoteFiles.over(self.objects, env, str(self.folder), cache_bytes))
        return self.opened[-1]

    @property
    def requests(self) -> list[str]:
        return [request.verb for request in self.objects.requests]


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    made = Bucket(tmp_path / "cache")
    yield made
    for files in made.opened:
        files.close()


A = f"{URL}/data/1/a.base"


def cached(folder: Path) -> list[Path]:
    """Return the cache files on the disk."""
    return [path for path in folder.rglob("*") if path.is_file() and path.name != "lock"]


def test_reads_return_the_bytes_of_the_object(bucket: Bucket) -> None:
    """A read has any offset and length, may cross chunks, and returns fewer bytes past the end."""
    files, chance = bucket.files(), random.Random(3)
    file = files.open(A)
    assert file.size_bytes() == files.size(A) == SIZE
    for _ in range(200):
        offset = chance.choice([0, SIZE - 5, chance.randrange(SIZE), CHUNK_BYTES * chance.randrange(41)])
        length = chance.choice([0, 1, 7, CHUNK_BYTES, 3 * CHUNK_BYTES + 5])
        assert file.read(offset, length) == CONTENT[offset : offset + length]
        memory = bytearray(length)
        assert file.read_into(offset, memory) == len(CONTENT[offset : offset + length])
    assert file.read(0, SIZE) == CONTENT
    assert files.cache.fetched_bytes <= 3 * SIZE


def test_a_second_read_of_a_chunk_sends_no_request(bucket: Bucket) -> None:
    files = bucket.files()
    files.open(A).read(5, 10)
    before = len(bucket.requests)
    assert files.open(A).read(CHUNK_BYTES - 3, 3) == CONTENT[CHUNK_BYTES - 3 : CHUNK_BYTES]
    assert len(bucket.requests) == before


def test_announced_places_take_one_round_of_requests(bucket: Bucket) -> None:
    """`ensure` fetches places of several files at the same time. Other reads wait one after another."""
    bucket.memory.put("data/1/b.base", CONTENT)
    files = bucket.files()
    one, other = files.open(A), files.open(f"{URL}/data/1/b.base")
    places = [(0, 100), (10 * CHUNK_BYTES, 100), (30 * CHUNK_BYTES, 9 * CHUNK_BYTES)]
    one.prefetch(places)
    other.prefetch(places)
    for file in (one, other):
        for offset, length in places:
            assert file.read(offset, length) == CONTENT[offset : offset + length]
    assert files.cache.rounds == 1
    for chunk in (20, 25):
        one.read(chunk * CHUNK_BYTES, 1)
    assert files.cache.rounds == 3


def test_near_chunks_share_a_request_and_large_reads_are_cut(bucket: Bucket) -> None:
    files = bucket.files()
    file = files.open(A)
    file.prefetch([(0, 1), (3 * CHUNK_BYTES, 1)])
    file.read(0, 1)
    assert (files.cache.requests, files.cache.fetched_bytes) == (1, 4 * CHUNK_BYTES)
    file.read(CHUNK_BYTES, 2 * CHUNK_BYTES)
    assert files.cache.requests == 1
    bucket.files().open(A).read(0, SIZE)
    assert bucket.requests.count("get_ranges") == 1 + 3  # of at most 4 MB


def test_a_file_appears_whole_when_it_is_synced(bucket: Bucket) -> None:
    files = bucket.files()
    path = f"{URL}/data/1/9-ff.base"
    file = files.create(path)
    assert file.append(b"head", CONTENT[:1000]) == 0
    assert file.append(b"tail") == 1004 and file.size_bytes == 1008
    assert not files.exists(path) and files.list_dir(f"{URL}/data/1") == ["a.base"]
    file.sync()
    file.sync()
    file.close()
    assert bucket.memory.get("data/1/9-ff.base") == b"head" + CONTENT[:1000] + b"tail"
    assert files.list_dir(f"{URL}/data/1") == ["9-ff.base", "a.base"] and files.list_dir(URL) == ["data"]
    before = len(bucket.requests)
    assert files.open(path).read(2, 4) == b"ad" + CONTENT[:2]
    assert len(bucket.requests) == before, "the written file is in the cache"
    with pytest.raises(StorageError, match="objects do not grow"):
        file.append(b"more")


def test_a_file_that_was_not_synced_leaves_nothing(bucket: Bucket) -> None:
    files = bucket.files()
    file = files.create(f"{URL}/data/1/b.base")
    file.append(b"rows")
    file.close()
    file.close()
    assert bucket.memory.get("data/1/b.base") is None and not cached(bucket.folder)


def test_after_a_failed_upload_the_file_cannot_be_used(bucket: Bucket) -> None:
    files = bucket.files()
    file = files.create(f"{URL}/data/1/b.base")
    file.append(b"rows")
    bucket.objects.faults = lambda request: "drop before"
    with pytest.raises(StorageError):
        file.sync()
    bucket.objects.faults = lambda request: None
    with pytest.raises(StorageError, match="its upload failed"):
        file.sync()
    file.close()
    assert not cached(bucket.folder)


def test_a_missing_object_is_a_missing_file(bucket: Bucket) -> None:
    files, path = bucket.files(), f"{URL}/data/1/none.base"
    calls: list[Callable[[], Any]] = [
        lambda: files.open(path).read(0, 4),
        lambda: files.open(path).size_bytes(),
        lambda: files.size(path),
        lambda: files.read_all(path),
        lambda: files.unlink(path),
    ]
    for call in calls:
        with pytest.raises(MissingFileError) as caught:
            call()
        assert caught.value.path == path
    files.unlink(path, missing_ok=True)
    gone = files.without_lease(lambda path: HistoryExpiredError(f"{path} is gone"))
    file = gone.open(path)
    file.prefetch([(0, 4)])
    with pytest.raises(HistoryExpiredError):
        file.read(0, 4)


def test_a_missing_object_raises_without_a_cache_too(bucket: Bucket) -> None:
    with pytest.raises(MissingFileError):
        bucket.files(0).open(f"{URL}/none").read(0, 4)


def test_removed_files_leave_bucket_and_cache(bucket: Bucket) -> None:
    files = bucket.files()
    files.open(A).read(0, 4)
    assert cached(bucket.folder)
    files.unlink(A)
    assert not cached(bucket.folder) and not files.exists(A)
    for name in ("2/a.base", "2/b.base", "20/c.base"):
        bucket.memory.put(f"data/{name}", b"x")
    files.remove_tree(f"{URL}/data/2")
    assert files.list_dir(f"{URL}/data") == ["20"] and files.list_dir(f"{URL}/data/2") == []
    with pytest.raises(StorageError, match="not a folder") as caught:
        files.list_dir(f"{URL}/data/20/c.base")
    assert caught.value.errno == errno.ENOTDIR


def test_small_documents_are_written_and_read_whole(bucket: Bucket) -> None:
    files = bucket.files()
    files.write_atomic(f"{URL}/note", b"one")
    files.write_atomic(f"{URL}/note", b"two")
    assert files.read_all(f"{URL}/note") == b"two"


def test_operations_that_a_bucket_does_not_have_raise(bucket: Bucket) -> None:
    files = bucket.files()
    calls: list[Callable[[], Any]] = [
        lambda: files.rename(A, A), lambda: files.truncate(A, 1), lambda: files.write_at(A, 0, b""),
        lambda: files.sync_file(A), lambda: files.preallocate(A, 1), lambda: files.inode(A), lambda: files.lock(A),
        lambda: files.read_lock_content(A),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(StorageError, match="is an object of a bucket and cannot be .* local disk"):
            call()
    with pytest.raises(StorageError, match="is not in the bucket"):
        files.open("/tmp/a.base")


def test_the_least_recently_used_copies_go_when_the_cache_is_full(bucket: Bucket) -> None:
    """Files whose cached bytes were dropped can still be read."""
    for name in "bcd":
        bucket.memory.put(f"data/1/{name}.base", CONTENT)
    files = bucket.files(10 * CHUNK_BYTES)
    opened = {name: files.open(f"{URL}/data/1/{name}.base") for name in "abcd"}
    for name in "abc":
        opened[name].read(0, 3 * CHUNK_BYTES)
    opened["a"].read(0, 1)
    opened["d"].read(0, 3 * CHUNK_BYTES)
    before = len(bucket.requests)
    opened["a"].read(0, 1)
    assert len(bucket.requests) == before
    assert opened["b"].read(5, 9) == CONTENT[5:14] and len(bucket.requests) > before
    for file in opened.values():
        assert file.read(7, 8 * CHUNK_BYTES) == CONTENT[7 : 7 + 8 * CHUNK_BYTES]
        held = sum(path.stat().st_blocks * 512 for path in cached(bucket.folder))
        assert held <= 11 * CHUNK_BYTES
    assert opened["a"].read(0, SIZE) == CONTENT, "a read that is larger than the cache is right"


@pytest.mark.parametrize("cache_bytes", [0, 1, CHUNK_BYTES])
def test_a_cache_too_small_for_a_read_changes_nothing(bucket: Bucket, cache_bytes: int) -> None:
    file = bucket.files(cache_bytes).open(A)
    file.prefetch([(0, SIZE)])
    assert file.read(1, 3 * CHUNK_BYTES) == CONTENT[1 : 1 + 3 * CHUNK_BYTES]
    assert file.read(SIZE - 4, 9) == CONTENT[-4:]


class FullDisk(FileWrapper):
    """A disk that is full after the first write."""

    written = 0

    def write_at(self, path: str, offset: int, data: Any) -> None:
        self.written += 1
        if self.written > 1:
            raise StorageError("no space left", path=path, errno=errno.ENOSPC)
        super().write_at(path, offset, data)


def test_a_full_disk_turns_the_cache_off(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    """Reads still succeed, and the program's log has one warning."""
    file = bucket.files(local=FullDisk(SYSTEM.files)).open(A)
    with caplog.at_level(logging.WARNING, "nyala.objects"):
        for offset in range(0, SIZE, 7 * CHUNK_BYTES):
            assert file.read(offset, 50) == CONTENT[offset : offset + 50]
    assert len([record for record in caplog.records if "the cache of" in record.getMessage()]) == 1
    assert not cached(bucket.folder)


def test_a_cache_file_that_vanishes_is_fetched_again(bucket: Bucket) -> None:
    """A program may delete the cache's files while the store is open."""
    file = bucket.files().open(A)
    assert file.read(0, 9) == CONTENT[:9]
    for path in cached(bucket.folder):
        path.unlink()
    _idle._shrink(0)  # closes the descriptor of the cache file
    assert file.read(3, 9) == CONTENT[3:12]
    assert file.read(9 * CHUNK_BYTES, 9) == CONTENT[9 * CHUNK_BYTES :][:9]


def test_forgotten_bytes_are_fetched_again(bucket: Bucket) -> None:
    file = bucket.files().open(A)
    assert not file.forget(0, 10)
    file.read(0, 10)
    (path,) = cached(bucket.folder)
    with open(path, "r+b") as damaged:
        damaged.write(b"damage")
    assert file.read(0, 6) == b"damage"
    assert file.forget(2, 2) and not file.forget(2, 2)
    assert file.read(0, 6) == CONTENT[:6]


def test_the_cache_of_an_ended_process_is_removed(bucket: Bucket) -> None:
    """A new cache removes the folders of processes that have ended, and no others."""
    alive = bucket.files()
    alive.open(A).read(0, 9)
    left = bucket.folder / "nyala-00112233445566aa"
    left.mkdir()
    (left / "lock").touch()
    (left / "0").write_bytes(b"old")
    (bucket.folder / "other").mkdir()
    bucket.files().close()
    assert not left.exists() and (bucket.folder / "other").exists()
    assert len(cached(bucket.folder)) == 1
    alive.close()
    assert os.listdir(bucket.folder) == ["other"]


class Raced(FileWrapper):
    """Another process removes a cache's new folder before it is locked, and then locks the next one."""

    tries = 0

    def lock(self, path: str, *, create: bool = True) -> Any:
        self.tries += 1
        if self.tries == 1:
            self._inner.remove_tree(str(Path(path).parent))
        return None if self.tries == 2 else self._inner.lock(path, create=create)


def test_caches_that_begin_at_once_do_not_remove_each_other(tmp_path: Path) -> None:
    """Many tasks of one machine may create their caches at the same time."""
    raced = Raced(SYSTEM.files)
    objects = MemoryObjects()
    objects.put("a", b"rows")
    files = RemoteFiles.over(objects, replace(SYSTEM, files=raced), str(tmp_path), 1 << 20)
    second = RemoteFiles.over(objects, SYSTEM, str(tmp_path), 1 << 20)  # removes what is not locked
    assert files.open(f"{objects.url}/a").read(0, 4) == b"rows"
    assert raced.tries == 3 and [path.name for path in Path(files.cache.folder).iterdir()] != []
    files.close()
    second.close()


def test_many_threads_read_each_chunk_once(bucket: Bucket) -> None:
    files = bucket.files()
    wrong: list[int] = []

    def read(seed: int) -> None:
        chance, file = random.Random(seed), files.open(A)
        for _ in range(60):
            offset = chance.randrange(SIZE)
            if chance.random() < 0.3:
                file.prefetch([(offset, 2 * CHUNK_BYTES)])
            if file.read(offset, 1000) != CONTENT[offset : offset + 1000]:
                wrong.append(offset)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert files.cache.fetched_bytes <= 3 * SIZE  # gaps between chunks may be fetched with them


def test_a_failed_request_of_ensure_is_repeated_by_the_read(bucket: Bucket) -> None:
    failed: list[int] = []

    def once(request: Any) -> Any:
        if request.verb == "get_ranges" and not failed:
            failed.append(1)
            return "drop before"
        return None

    bucket.objects.faults = once
    file = bucket.files().open(A)
    file.prefetch([(0, 10)])
    assert file.read(0, 10) == CONTENT[:10] and failed
    bucket.objects.faults = lambda request: "503"
    with pytest.raises(StorageError):
        file.read(20 * CHUNK_BYTES, 10)
    bucket.objects.faults = lambda request: None
    assert file.read(20 * CHUNK_BYTES, 4) == CONTENT[20 * CHUNK_BYTES :][:4]


def test_closed_files_and_forked_children_raise(bucket: Bucket) -> None:
    files = bucket.files()
    file = files.open(A)
    file.read(0, 4)
    child = os.fork()
    if not child:  # pragma: no cover
        raised = 0
        for call in (
            lambda: file.read(9 * CHUNK_BYTES, 4),
            lambda: files.open(A),
            lambda: files.list_dir(URL),
        ):
            try:
                call()
            except StorageError as error:
                raised += "forked" in str(error)
        os._exit(0 if raised == 3 else 1)
    assert os.waitpid(child, 0)[1] == 0
    files.close()
    files.close()
    for call in (lambda: file.read(9 * CHUNK_BYTES, 4), lambda: file.prefetch([(0, 1)])):
        with pytest.raises(Error, match="closed"):
            call()


def test_ctrl_c_ends_the_wait_and_the_next_read_is_right(bucket: Bucket) -> None:
    """The request continues in its thread, and a later read uses its result."""
    files, entered, go_on = bucket.files(), threading.Event(), threading.Event()
    real = bucket.objects.get_ranges

    def held(key: str, ranges: Any) -> Any:
        entered.set()
        go_on.wait(30)
        return real(key, ranges)

    bucket.objects.get_ranges = held  # type: ignore[method-assign]
    threading.Thread(target=lambda: (entered.wait(30), os.kill(os.getpid(), signal.SIGINT))).start()
    file = files.open(A)
    with pytest.raises(KeyboardInterrupt):
        file.read(0, 4)
    go_on.set()
    assert file.read(0, 4) == CONTENT[:4]


def test_closing_ends_the_wait_of_a_reader(bucket: Bucket) -> None:
    """A read ends with an error when the files are closed, even if its request gets no answer."""
    files, entered, go_on = bucket.files(), threading.Event(), threading.Event()
    real = bucket.objects.get_ranges

    def held(key: str, ranges: Any) -> Any:
        entered.set()
        go_on.wait(30)
        return real(key, ranges)

    bucket.objects.get_ranges = held  # type: ignore[method-assign]
    raised: list[Error] = []

    def read() -> None:
        try:
            files.open(A).read(0, 4)
        except StorageError as error:
            raised.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    assert entered.wait(30)
    files.close()
    reader.join(30)
    go_on.set()
    assert "closed" in str(raised[0])


def test_a_copy_whose_answer_is_lost_is_repeated(bucket: Bucket) -> None:
    """A load commits its files by copies, so a failed copy would lose hours of work."""
    files = bucket.files()
    faults: Iterator[Fault | None] = iter(["503", "drop after", "drop before", None])
    bucket.objects.faults = lambda request: next(faults, None) if request.verb == "copy" else None
    assert files.link(A, f"{URL}/data/1/b.base")
    assert bucket.memory.get("data/1/b.base") == CONTENT
    with pytest.raises(MissingFileError):
        files.link(f"{URL}/data/1/none.base", f"{URL}/data/1/c.base")
