"""A cache of objects on a local disk, in chunks of 256 KiB. No chunk is fetched twice at the same time.

    object        |0      |1      |2      |3      |4   |        its chunks
    cache file            |1      |2      |                     sparse; `held` has the chunks 1 and 2
    ensure        fetches chunks that are not held, in background threads
    read          waits until the chunks are held, and reads the cache file

A chunk is held when its bytes are in the cache file. The cache file of an object is called its copy.

Each cache has its own folder, which it locks. Processes share no chunks: they would need a map of the
chunks on disk, and would have to verify the chunks of other processes. A new cache removes the
folders of processes that have ended.

Invariants
    C1  A chunk is in `held` only after its bytes are in the cache file. Readers test `held` without
        the lock, and then read the file.
    C2  Objects never change and no key is used twice, so a chunk never becomes stale.
    C3  A copy is dropped as a whole: first `CachedObject.copy` becomes None, then the file is
        deleted. A reader that has the file open can still read it. Other readers fetch the chunks
        again.
    C4  Requests run only in threads of the cache. So Ctrl-C ends the wait of a reader, but not the
        request. Requests for which a reader waits have their own threads, so they do not queue
        behind requests of `ensure`.

If the disk is full or fails, the cache logs one warning and turns itself off. Every read is then a
request.

Threads: any, but not in a forked child, which does not have the threads of the cache.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import weakref
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from nyala.env import Bytes, FileLock, Files, MissingFileError, RandomFile, Randomness
from nyala.errors import Error, StorageError
from nyala.objects.base import Objects
from nyala.objects.handle import check_usable

logger = logging.getLogger("nyala.objects")

CHUNK_BYTES: Final = 256 << 10
# Between two missing chunks, a gap of at most this many chunks is fetched with them: 1 MB arrives sooner
# than the answer to another request.
_GAP_CHUNKS: Final = 4
# The most chunks of one fetch (4 MB). A larger read is several fetches at the same time, because one
# connection has only a part of the bandwidth.
_FETCH_CHUNKS: Final = 16
# Threads for requests that a reader waits for, and for those of `ensure`, which must not delay them.
_NEEDED_THREADS: Final = 32
_AHEAD_THREADS: Final = 32
# If the chunks of a read are dropped this often before they are read, it does not use the cache.
_TRIES: Final = 3
_LOOK_S: Final = 1.0
_FOLDER: Final = "nyala-"
_LOCK: Final = "lock"


class _Copy:
    """The cache file of an object, and the chunks that it holds."""

    def __init__(self, path: str, file: RandomFile) -> None:
        self.path = path
        self.file = file
        self.held: dict[int, int] = {}  # for each chunk, the round in which it came (`ChunkCache.rounds`)
        self.nbytes = 0


class CachedObject:
    """The cached chunks of one object. All files that have the object open share it."""

    def __init__(self, key: str) -> None:
        self.key: Final = key
        self.lock = threading.Lock()  # guards what follows; its holder takes no other lock
        self.copy: _Copy | None = None
        self.under_way: dict[int, _Fetch] = {}
        self.used = 0  # the number of the last use, of all uses of the cache

    def held(self, first: int, last: int) -> _Copy | None:
        """Return the cache file if it holds the chunks from `first` to `last`, otherwise None."""
        copy = self.copy
        if copy is None:
            return None
        held = copy.held
        return copy if all(chunk in held for chunk in range(first, last + 1)) else None


class _Fetch:
    """A request for runs of consecutive chunks, each (first, last + 1).

    The thread that acquires the lock `begun` sends the request.
    """

    def __init__(self, entry: CachedObject, runs: Sequence[tuple[int, int]], round: int) -> None:
        self.entry = entry
        self.runs = runs
        self.round = round
        self.begun = threading.Lock()
        self.done = threading.Event()
        self.error: BaseException | None = None


class ChunkCache:
    """The cache of the objects of one bucket."""

    def __init__(
        self, objects: Objects, files: Files, randomness: Randomness, folder: str, limit_bytes: int
    ) -> None:
        """Create the cache's own folder inside of `folder`, which other caches may use too.

        files: the files of the local disk.
        limit_bytes: the most bytes of all cache files; 0: no cache.
        Raises: StorageError if the folder cannot be written.
        """
        self.objects: Final = objects
        self.files: Final = files
        self._randomness = randomness
        self._limit_bytes = limit_bytes
        self._pid = os.getpid()
        self._lock = threading.Lock()  # guards what follows
        self._entries: weakref.WeakValueDictionary[str, CachedObject] = weakref.WeakValueDictionary()
        self._copied: dict[str, CachedObject] = {}  # the objects that have a copy
        self._nbytes = 0
        self._names = itertools.count()
        self._uses = itertools.count(1)
        self._is_off = limit_bytes <= 0  # also after a failure of the disk
        self._closed = False
        self.requests = 0
        """The number of requests for chunks so far."""
        self.fetched_bytes = 0
        """The bytes that these requests returned."""
        self.rounds = 0
        """The number of rounds of requests so far, for tests. The requests of one round do not depend on
        each other: after a reader used bytes of round r, a new request belongs to round r + 1. Exact if
        one thread reads."""
        files.make_dirs(folder)
        _remove_abandoned(files, folder)
        self.folder, self._folder_lock = _make_folder(files, folder, randomness)
        self._needed = ThreadPoolExecutor(_NEEDED_THREADS, "nyala-fetch")
        self._ahead = ThreadPoolExecutor(_AHEAD_THREADS, "nyala-ahead")

    # ── reading ──────────────────────────────────────────────────────────────────────────────────

    def entry(self, key: str) -> CachedObject:
        self.check()  # before the lock, which is never released in a forked child if a thread held it
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                found = self._entries[key] = CachedObject(key)
            return found

    def prefetch(self, entry: CachedObject, places: Iterable[tuple[int, int]]) -> None:
        """Begin to fetch the chunks of these places (offset, length). Does not wait."""
        self.check()
        if self._is_off:
            return
        chunks: set[int] = set()
        for offset, length in places:
            if length:
                chunks.update(range(offset // CHUNK_BYTES, (offset + length - 1) // CHUNK_BYTES + 1))
        entry.used = next(self._uses)
        fetches, _ = self._claim(entry, sorted(chunks))
        for fetch in fetches:
            # An interpreter that is ending starts no thread. Then the reader sends the request.
            with contextlib.suppress(RuntimeError):
                self._ahead.submit(self._perform, fetch)

    def file_with(self, entry: CachedObject, offset: int, length: int) -> RandomFile | None:
        """Wait until the cache file of an object holds these bytes; return the file.

        length: at least 1.
        Returns: None if the cache is off, or if it dropped the fetched bytes several times before
            this method could return. Then call `read`.
        Raises: MissingFileError if the object does not exist; StorageError.
        """
        first, last = offset // CHUNK_BYTES, (offset + length - 1) // CHUNK_BYTES
        entry.used = next(self._uses)
        for _ in range(_TRIES):
            copy = entry.held(first, last)
            if copy is not None:
                return self._used(copy, first, last)
            self.check()
            if self._is_off:
                return None
            mine, theirs = self._claim(entry, range(first, last + 1))
            for fetch in (*mine, *theirs):
                self._begin(fetch)
            for fetch in (*mine, *theirs):
                while not fetch.done.wait(_LOOK_S):
                    self.check()  # raises if the cache was closed, which then answers no fetch
            for fetch in mine:
                if fetch.error is not None:
                    raise fetch.error
        return None

    def _used(self, copy: _Copy, first: int, last: int) -> RandomFile:
        held = copy.held
        for chunk in range(first, last + 1):
            self.rounds = max(self.rounds, held.get(chunk, 0))
        return copy.file

    def read(self, entry: CachedObject, offset: int, length: int) -> Bytes:
        """Fetch `length` bytes of an object from the bucket, and do not keep them.

        For reads that the cache cannot serve. Returns fewer bytes if the object ends before.
        """
        self.check()
        (data,) = self.objects.get_ranges(entry.key, [(offset, offset + length)])
        self._count(1, memoryview(data).nbytes)
        return data

    def drop(self, entry: CachedObject, file: RandomFile | None = None) -> None:
        """Delete the cache file of an object. A reader that has it open can still read it.

        file: delete the cache file only if it is still this one, and not a newer one. None: delete
            it in any case.
        """
        with entry.lock:
            if file is not None and (entry.copy is None or entry.copy.file is not file):
                return
            copy, entry.copy = entry.copy, None
        with self._lock:
            self._copied.pop(entry.key, None)
        if copy is not None:
            with self._lock:
                self._nbytes -= copy.nbytes
            with contextlib.suppress(Error):
                self.files.unlink(copy.path, missing_ok=True)

    def forget(self, entry: CachedObject, offset: int, length: int) -> bool:
        """Drop the chunks of these bytes, so that the next read fetches them.

        Returns whether any of them was in the cache.
        """
        if not length:
            return False
        chunks = range(offset // CHUNK_BYTES, (offset + length - 1) // CHUNK_BYTES + 1)
        with entry.lock:
            held = {} if entry.copy is None else entry.copy.held
            dropped = [chunk for chunk in chunks if held.pop(chunk, None) is not None]
        return bool(dropped)

    # ── fetching ─────────────────────────────────────────────────────────────────────────────────

    def _claim(self, entry: CachedObject, chunks: Sequence[int]) -> tuple[list[_Fetch], list[_Fetch]]:
        """Return the fetches (requests to the bucket) that bring the missing chunks, as two lists.

        The first list has new fetches, which the caller must start. The second list has fetches
        that other callers created before. So no chunk is fetched twice at the same time.
        """
        with entry.lock:
            held = {} if entry.copy is None else entry.copy.held
            missing = [chunk for chunk in chunks if chunk not in held]
            theirs = {id(fetch): fetch for chunk in missing if (fetch := entry.under_way.get(chunk))}
            mine = [
                _Fetch(entry, runs, self.rounds + 1)
                for runs in _batches([chunk for chunk in missing if chunk not in entry.under_way])
            ]
            for fetch in mine:
                for lower, upper in fetch.runs:
                    entry.under_way.update(dict.fromkeys(range(lower, upper), fetch))
        return mine, list(theirs.values())

    def _begin(self, fetch: _Fetch) -> None:
        """Send the request of `fetch`, for which a reader waits, unless a thread has begun it.

        A separate pool of threads sends it, so that it need not wait for requests of `prefetch`.
        """
        if fetch.begun.locked():
            return
        try:
            self._needed.submit(self._perform, fetch)
        except RuntimeError:  # the interpreter is ending
            self._perform(fetch)

    def _perform(self, fetch: _Fetch) -> None:
        if not fetch.begun.acquire(blocking=False):
            return
        entry = fetch.entry
        ranges = [(lower * CHUNK_BYTES, upper * CHUNK_BYTES) for lower, upper in fetch.runs]
        try:
            parts = self.objects.get_ranges(entry.key, ranges)
            self._count(len(ranges), sum(memoryview(part).nbytes for part in parts))
            self._keep(fetch, parts)
        except BaseException as error:  # the reader that waits raises it
            fetch.error = error
        finally:
            with entry.lock:
                for lower, upper in fetch.runs:
                    for chunk in range(lower, upper):
                        if entry.under_way.get(chunk) is fetch:
                            del entry.under_way[chunk]
            fetch.done.set()

    def _count(self, requests: int, nbytes: int) -> None:
        with self._lock:
            self.requests += requests
            self.fetched_bytes += nbytes

    def _keep(self, fetch: _Fetch, parts: Sequence[Bytes]) -> None:
        entry, added = fetch.entry, 0
        try:
            with entry.lock:  # so that nobody drops the copy: `write_at` would create its file again
                copy = entry.copy
                if copy is None:
                    copy = self._new_copy()
                for (lower, upper), part in zip(fetch.runs, parts, strict=True):
                    self.files.write_at(copy.path, lower * CHUNK_BYTES, memoryview(part))
                    copy.held.update(dict.fromkeys(range(lower, upper), fetch.round))  # C1
                    added += memoryview(part).nbytes
                copy.nbytes += added
                entry.copy = copy
        except StorageError as error:
            self._give_up(error)
            return
        self._account(entry, added)

    def _new_copy(self) -> _Copy:
        path = self.new_path()
        self.files.create(path).close()
        return _Copy(path, self.files.open(path))

    def client(self) -> ChunkCache:
        """Return a new cache in the same folder, which uses another client of the bucket."""
        folder = os.path.dirname(self.folder)
        return ChunkCache(self.objects.client(), self.files, self._randomness, folder, self._limit_bytes)

    def new_path(self) -> str:
        """Return the path of a new file in the cache's folder."""
        return f"{self.folder}/{next(self._names)}"

    def adopt(self, key: str, path: str, size_bytes: int) -> None:
        """Use a local file, whose path is from `new_path`, as the cache file of a new object."""
        entry = self.entry(key)
        try:
            copy = _Copy(path, self.files.open(path))
        except StorageError as error:
            self._give_up(error)
            return
        copy.held = dict.fromkeys(range(-(-size_bytes // CHUNK_BYTES)), 0)
        copy.nbytes = size_bytes
        with entry.lock:
            entry.copy = copy
        entry.used = next(self._uses)
        self._account(entry, size_bytes)

    def _account(self, entry: CachedObject, added: int) -> None:
        """Add `added` to the size of the cache in bytes, after a write to the cache file of `entry`.

        Then delete cache files, least recently used first, until the size is within the limit.
        """
        with self._lock:
            self._copied[entry.key] = entry
            self._nbytes += added
        while True:
            with self._lock:
                if (self._nbytes <= self._limit_bytes and not self._is_off) or not self._copied:
                    return
                oldest = min(self._copied.values(), key=lambda one: one.used)
            self.drop(oldest)

    def _give_up(self, error: StorageError) -> None:
        with self._lock:
            was_off, self._is_off = self._is_off, True
            copied = list(self._copied.values())
        if not was_off and not self._closed:
            logger.warning(
                "the cache of %s is off until the store is opened again, and every read of a data file is a request: "
                "%s",
                self.objects.url,
                error,
            )
        for entry in copied:
            self.drop(entry)

    # ── the end ──────────────────────────────────────────────────────────────────────────────────

    def check(self) -> None:
        """Raise StorageError if the cache is closed, or if this process is a forked child."""
        check_usable(self.objects.url, self._closed, self._pid)

    def close(self) -> None:
        """Remove the cache's folder. May be called twice. In a forked child it does nothing."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        for pool in (self._ahead, self._needed):
            pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._copied.clear()
        with contextlib.suppress(Error):
            self.files.remove_tree(self.folder)
        with contextlib.suppress(Error):
            self._folder_lock.release()

    def __reduce_ex__(self, _: Any) -> Any:
        raise TypeError("a cache cannot be pickled: open the store in the other process")


def _batches(chunks: Sequence[int]) -> list[list[tuple[int, int]]]:
    """Divide ascending chunk numbers into requests.

    A request is a list of runs (first, last + 1) of chunks. Small gaps are fetched, too.
    """
    runs: list[tuple[int, int]] = []
    for chunk in chunks:
        if runs and chunk - runs[-1][1] <= _GAP_CHUNKS and chunk - runs[-1][0] < _FETCH_CHUNKS:
            runs[-1] = runs[-1][0], chunk + 1
        else:
            runs.append((chunk, chunk + 1))
    batches: list[list[tuple[int, int]]] = []
    size = _FETCH_CHUNKS
    for lower, upper in runs:
        if size + upper - lower > _FETCH_CHUNKS:
            batches.append([])
            size = 0
        batches[-1].append((lower, upper))
        size += upper - lower
    return batches


def _make_folder(files: Files, folder: str, randomness: Randomness) -> tuple[str, FileLock]:
    """Create a new folder and lock it. Return its path and the lock."""
    while True:  # another process may remove the folder before it is locked
        path = f"{folder}/{_FOLDER}{randomness.token_hex(8)}"
        files.make_dirs(path)
        with contextlib.suppress(MissingFileError):
            lock = files.lock(f"{path}/{_LOCK}")
            if lock is not None:
                return path, lock


def _remove_abandoned(files: Files, folder: str) -> None:
    """Remove the folders of caches whose processes have ended."""
    for name in files.list_dir(folder):
        if name.startswith(_FOLDER):
            with contextlib.suppress(Error):
                # A folder without a lock file is new: this raises MissingFileError.
                lock = files.lock(f"{folder}/{name}/{_LOCK}", create=False)
                if lock is not None:
                    files.remove_tree(f"{folder}/{name}")
                    lock.release()
