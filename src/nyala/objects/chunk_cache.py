"""A cache of chunks of objects on a local disk. No chunk is fetched twice at the same time.

    object        |0      |1      |2      |3      |4   |        chunks of 256 kB
    cache file            |1      |2      |                     sparse; `held` says which chunks it has
    ensure        ──► missing chunks ──► requests in background threads ──► cache file, held
    read          ──► not held? wait for its request, or make one ──► read the cache file

Each cache has a folder of its own, which a lock marks as in use. It shares nothing with other
processes and trusts nothing that it finds: folders of processes that have ended are removed. To
share files, processes would have to keep a map of the chunks on disk, under a lock at each read,
and to verify each chunk of another process.

Invariants
    C1  A chunk is in `held` only after its bytes are in the cache file. Readers test `held` without
        the lock, and then read the file.
    C2  Objects never change and no key is used twice, so a chunk never becomes stale.
    C3  The cache file of an object (its copy) is dropped as a whole: first `CachedObject.copy`
        becomes None, then the file is unlinked. A reader that has the file open continues to read
        it. Another reader fetches the chunks again.
    C4  Requests run in threads of the cache only, so Ctrl-C ends the wait of a reader and not the
        request. If no thread has begun a request, the next reader that waits for it begins it.

If the disk is full or fails, the cache gives up with one warning in the log, and every read becomes
a request of its own.

Threads: any. Not in a forked child, which has none of the threads.
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

__all__ = ["CHUNK_BYTES", "CachedObject", "ChunkCache"]

logger = logging.getLogger("nyala.objects")

CHUNK_BYTES: Final = 256 << 10
# A gap of at most this many chunks between two missing ones is fetched too: the bytes of 1 MB
# arrive in less time than the answer to one more request.
_GAP_CHUNKS: Final = 4
# The most chunks in one fetch (4 MB). A larger read becomes several fetches that run at the same
# time, because one connection has only a part of the bandwidth.
_FETCH_CHUNKS: Final = 16
# Requests that readers wait for, and requests ahead of them, which must not delay the former.
_NEEDED_THREADS: Final = 32
_AHEAD_THREADS: Final = 32
# How often a read begins again because its chunks were dropped, before it does without the cache.
_TRIES: Final = 3
_LOOK_S: Final = 1.0
_FOLDER: Final = "nyala-"
_LOCK: Final = "lock"


class _Copy:
    """The cache file of one object, and the chunks that it holds."""

    def __init__(self, path: str, file: RandomFile) -> None:
        self.path = path
        self.file = file
        self.held: dict[int, int] = {}  # chunk → its round (`ChunkCache.rounds`)
        self.nbytes = 0


class CachedObject:
    """The cache's record of one object, shared by all files that have the object open."""

    def __init__(self, key: str) -> None:
        self.key: Final = key
        self.lock = threading.Lock()  # guards the rest; the holder takes no other lock
        self.copy: _Copy | None = None
        self.under_way: dict[int, _Fetch] = {}
        self.used = 0  # the last use, by a counter

    def held(self, first: int, last: int) -> _Copy | None:
        """Return the copy if it holds the chunks [first, last]."""
        copy = self.copy
        if copy is None:
            return None
        held = copy.held
        return copy if all(chunk in held for chunk in range(first, last + 1)) else None


class _Fetch:
    """Runs of chunks that are fetched together. The thread that acquires `begun` does it."""

    def __init__(self, entry: CachedObject, runs: Sequence[tuple[int, int]], round: int) -> None:
        self.entry = entry
        self.runs = runs
        self.round = round
        self.begun = threading.Lock()
        self.done = threading.Event()
        self.error: BaseException | None = None


class ChunkCache:
    """The cached chunks of the objects of one bucket; see the module."""

    def __init__(
        self, objects: Objects, files: Files, randomness: Randomness, folder: str, limit_bytes: int
    ) -> None:
        """files: those of the local disk. folder: created if missing; others may use it too.

        limit_bytes: of all copies; 0: no cache.
        Raises: StorageError if the folder cannot be written.
        """
        self.objects: Final = objects
        self.files: Final = files
        self._randomness = randomness
        self._limit_bytes = limit_bytes
        self._pid = os.getpid()
        self._lock = threading.Lock()  # guards what follows
        self._entries: weakref.WeakValueDictionary[str, CachedObject] = weakref.WeakValueDictionary()
        self._copied: dict[str, CachedObject] = {}  # those with a copy, which stay
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
        """The number of rounds so far: groups of requests that had to follow one another. If a reader has
        used bytes of round r, a new request belongs to round r + 1. Exact if one thread reads."""
        files.make_dirs(folder)
        _remove_left(files, folder)
        self.folder, self._folder_lock = _make_folder(files, folder, randomness)
        self._needed = ThreadPoolExecutor(_NEEDED_THREADS, "nyala-fetch")
        self._ahead = ThreadPoolExecutor(_AHEAD_THREADS, "nyala-ahead")

    # ── reading ──────────────────────────────────────────────────────────────────────────────────

    def entry(self, key: str) -> CachedObject:
        self.check()  # before the lock, which another thread may have held at a fork
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                found = self._entries[key] = CachedObject(key)
            return found

    def ensure(self, entry: CachedObject, places: Iterable[tuple[int, int]]) -> None:
        """Begin to fetch the chunks of these places (offset, length); does not wait for them."""
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
            # An interpreter that is ending starts no thread. Then the reader fetches.
            with contextlib.suppress(RuntimeError):
                self._ahead.submit(self._perform, fetch)

    def file_with(self, entry: CachedObject, offset: int, length: int) -> RandomFile | None:
        """Wait until the cache file holds these bytes (at least one), and return the file.

        None: the cache is off. Raises: as `Objects.get_ranges`.
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
                    self.check()  # a closed cache begins no fetch any more
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
        """Return the bytes [offset, offset + length) without the cache, or fewer at the end."""
        self.check()
        (data,) = self.objects.get_ranges(entry.key, [(offset, offset + length)])
        self._count(1, memoryview(data).nbytes)
        return data

    def drop(self, entry: CachedObject, file: RandomFile | None = None) -> None:
        """Remove the copy of an object (C3); with `file`, only if that is its copy still."""
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
        """Drop these bytes, so that the next read fetches them again. Return whether any were held."""
        if not length:
            return False
        chunks = range(offset // CHUNK_BYTES, (offset + length - 1) // CHUNK_BYTES + 1)
        with entry.lock:
            held = {} if entry.copy is None else entry.copy.held
            dropped = [chunk for chunk in chunks if held.pop(chunk, None) is not None]
        return bool(dropped)

    # ── fetching ─────────────────────────────────────────────────────────────────────────────────

    def _claim(self, entry: CachedObject, chunks: Sequence[int]) -> tuple[list[_Fetch], list[_Fetch]]:
        """Return (new fetches for the missing chunks, fetches of others that are under way)."""
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
        """Give the fetch to the threads that serve waiting readers, unless it has begun (C4)."""
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
        except BaseException as error:  # raised by the reader that waits
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
            with entry.lock:  # so that no dropped copy is written, which would bring its file back
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
        """Return a cache for another client of the bucket, in the same folder."""
        folder = os.path.dirname(self.folder)
        return ChunkCache(self.objects.client(), self.files, self._randomness, folder, self._limit_bytes)

    def new_path(self) -> str:
        """Return the path of a new file in the cache's folder."""
        return f"{self.folder}/{next(self._names)}"

    def adopt(self, key: str, path: str, size_bytes: int) -> None:
        """Keep the local file at `path`, from `new_path`, as the copy of a whole new object."""
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
        """Count new bytes, and drop the least recently used copies if there are too many."""
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
        if self._closed:
            raise StorageError(f"{self.objects.url} is closed: connect() again", path=self.objects.url)
        if os.getpid() != self._pid:
            raise StorageError(
                f"{self.objects.url} was opened before this process was forked, and works only in the process that "
                "opened it: connect() again here, or start processes by 'spawn'",
                path=self.objects.url,
            )

    def close(self) -> None:
        """Drop everything, and remove the cache's folder. May be called twice, also in a fork."""
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
    """Cut ascending chunks into fetches: each a list of runs [lower, upper) with small gaps filled."""
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
    """Make a new folder and lock it. Another process may remove it before it is locked."""
    while True:
        path = f"{folder}/{_FOLDER}{randomness.token_hex(8)}"
        files.make_dirs(path)
        with contextlib.suppress(MissingFileError):
            lock = files.lock(f"{path}/{_LOCK}")
            if lock is not None:
                return path, lock


def _remove_left(files: Files, folder: str) -> None:
    """Remove the folders of caches whose processes have ended."""
    for name in files.list_dir(folder):
        if name.startswith(_FOLDER):
            with contextlib.suppress(Error):
                # Without a lock file it is just being made, or was never used.
                lock = files.lock(f"{folder}/{name}/{_LOCK}", create=False)
                if lock is not None:
                    files.remove_tree(f"{folder}/{name}")
                    lock.release()
