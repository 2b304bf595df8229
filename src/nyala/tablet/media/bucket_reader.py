"""A store in a bucket, for a process that only reads it.

    open       writes a lease, reads the newest checkpoint and the log after it, and replays the
               log's batches
    view       reads the new part of the log: replays its batches, and makes a new root if it
               changes the catalogue

An object of the log is durable as soon as it exists. So a reader only has to read the log, and no
writer has to run.

Invariants
    B1  After a view failed or was interrupted, the root may lack records that were already read. So
        the next view reads the log again from the newest checkpoint.
    P4  The lease names the version of the oldest root that this process still uses.
    P7  If unflushed rows take more than `memory_limit`, `view` raises StorageError until the writer
        has flushed.
    G2  If the process was suspended for longer than its lease, files may be missing. A read then
        raises HistoryExpiredError; it never returns wrong rows (`catalog.object_leases`).

Thread-safe. Source: docs/design/object-storage.md, "Readers".
"""

from __future__ import annotations

import errno
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NoReturn

from nyala.catalog.loading import apply_changes, without_collector
from nyala.catalog.model import CatalogState, CommitMessage, TagEntry
from nyala.catalog.object_leases import ObjectLease
from nyala.cfile.blocks.cache import BlockCache
from nyala.env import Env, MissingFileError
from nyala.env.interrupts import Uninterrupted
from nyala.errors import Error, HistoryExpiredError, ReadOnlyError, StorageError
from nyala.objects.base import Objects
from nyala.tablet.media.bucket import base_state, batches, changes
from nyala.tablet.recovery.bootstrap import Replayer
from nyala.tablet.state.opening import check_in_use, open_root
from nyala.tablet.state.root import Root
from nyala.wal.objects.follower import LogEntry, LogFollower, News, read_identity
from nyala.wal.record import LogRecord


class BucketReader:
    """A store in a bucket that is open for reading only. Create it with `open`, end it with `close`."""

    read_only: Final = True

    def __init__(
        self, env: Env, objects: Objects, memory_limit_bytes: int, refresh_s: float, follower: LogFollower
    ) -> None:
        self.env = replace(env, files=env.files.without_lease(partial(_vanished, env, objects)))
        self.root_path = objects.url
        self.memory_limit_bytes = memory_limit_bytes
        self.cache = BlockCache(memory_limit_bytes // 4)
        self.objects: Final = objects
        self._refresh_s = refresh_s
        self._follower = follower
        self._lock = threading.RLock()
        self._closed = False
        self._pid = os.getpid()
        self._entries: list[LogEntry] = []  # entries of the log whose rows may be in no data file
        self._roots: weakref.WeakSet[Root] = weakref.WeakSet()
        self._leased = 0
        self._is_partial = False  # B1
        self._published = 0
        self._read_s = env.clock.monotonic_s()
        self._lease = ObjectLease(env, objects)
        try:
            self._take(follower.read_new())
        except BaseException:
            self._lease.release()
            raise

    @staticmethod
    def open(env: Env, objects: Objects, memory_limit_bytes: int, refresh_s: float) -> BucketReader:
        """Open the store under the prefix of `objects` for reading.

        objects: closed by the reader's `close`, or by this call if it fails.
        refresh_s: how many seconds `view` may use what it has read. 0: each call reads new records.
        Raises: StorageError if there is no store; CorruptionError.
        """
        try:
            return BucketReader(env, objects, memory_limit_bytes, refresh_s, follow(env, objects))
        except BaseException:
            env.files.close()
            objects.close()
            raise

    def _take(self, news: News) -> None:
        """Replay new batches, and make a new root if the catalogue changed."""
        if news.restarted:
            self._state = base_state(self.objects, news.checkpoint, self._follower.store_id)
            self._entries = []
        new_changes = list(changes(news.entries))
        self._entries += news.entries
        if not new_changes and not news.restarted:
            self._replay(news.entries)
            return
        with without_collector():
            self._state = apply_changes(self._state, new_changes)
        self._root = open_root(self.env, self.root_path, self._state, self.cache)
        self._roots.add(self._root)
        self._replayer = Replayer(self._root)
        self._replay(self._entries)
        oldest = self._root.memory_timestamp_min()
        self._entries = [entry for entry in self._entries if oldest is not None and entry.timestamp >= oldest]

    def _replay(self, entries: Sequence[LogEntry]) -> None:
        self._replayer.feed(batches(entries))
        self._replayer.drain()
        self._published = max(
            self._published, self._replayer.report.timestamp_max, self._state.timestamp_max, self._root.floor
        )
        if self._root.memory_bytes() > self.memory_limit_bytes:
            raise StorageError(
                f"the log of {self.root_path!r} has more unflushed rows than this reader's memory_limit of "
                f"{self.memory_limit_bytes / 1e6:.0f} MB can hold: call flush() in the writer, or open the reader with "
                "a larger memory_limit",
                path=self.root_path,
            )

    def view(self) -> tuple[Root, int]:
        """Return the newest root and the published timestamp.

        First reads the new part of the log, if the last view is older than `refresh_s`.
        """
        self.check_open()
        with self._lock:
            self.check_open()
            now_s = self.env.clock.monotonic_s()
            if self._is_partial or now_s - self._read_s >= self._refresh_s:
                if self._is_partial:
                    self._follower.restart()
                self._is_partial = True
                self._take(self._follower.read_new())
                self._is_partial = False
                self._read_s = now_s
                self._announce()
            return self._root, self._published

    def _announce(self) -> None:
        """Write the oldest version that this process needs into its lease, if it has changed."""
        oldest = min((root.version for root in self._roots), default=self._state.version)
        if oldest > self._leased:
            self._lease.announce(oldest)
            self._leased = oldest

    def look(self) -> tuple[Root, CatalogState]:
        """Return the newest root and the newest catalogue.

        Like `view`, it first reads the new part of the log.
        """
        root, _ = self.view()
        return root, self._state

    def messages(self) -> Mapping[int, CommitMessage]:
        """Return the messages of commits, by timestamp, up to the last call of `view`."""
        with self._lock:
            return {**self._state.messages, **self._replayer.report.messages}

    def tags(self) -> Mapping[str, TagEntry]:
        """Return the store's present tags, by name.

        Like `view`, it first reads the new part of the log.
        """
        self.view()
        return self._state.tags

    def unflushed(self) -> list[LogRecord]:
        """Return the batches with rows that may not be in files yet.

        Reads nothing: it knows only the batches that the last call of `view` found in the log.
        """
        with self._lock:
            return list(batches(self._entries))

    @property
    def root(self) -> Root:
        return self.view()[0]

    @property
    def store_id(self) -> str:
        return self._state.store_id

    @property
    def version(self) -> int:
        """The version of the catalogue that the last call of `view` found."""
        return self._state.version

    def check_open(self) -> None:
        """Check that the store is open, and that this process has opened it. Raises: StorageError."""
        check_in_use(self.root_path, self._closed, self._pid)

    def check_writable(self) -> NoReturn:
        raise ReadOnlyError(
            f"the store {self.root_path!r} was opened with read_only=True: connect() without it to write"
        )

    def is_usable(self) -> bool:
        """Return whether the store is open."""
        return not self._closed

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Close the store, and end the lease. May be called twice."""
        if os.getpid() != self._pid:
            self._closed = True
            return
        with Uninterrupted(), self._lock:
            if self._closed:
                return
            self._closed = True
            self._lease.release()
        self.env.files.close()
        self.objects.close()

    def stats(self) -> dict[str, Any]:
        """Return the counters of this reader, for `stats` of the database."""
        return {
            "version": self._state.version,
            "memory_bytes": self._root.memory_bytes(),
            "throttled": self.objects.throttled,
            "cache_bytes": self.cache.size_bytes,
            "cache_hits": self.cache.hits,
            "cache_misses": self.cache.misses,
        }


def read_state(env: Env, objects: Objects) -> CatalogState:
    """Return the catalogue of the store under the prefix of `objects`, at the end of its log.

    Raises: StorageError if there is no store; CorruptionError.
    """
    follower = follow(env, objects)
    news = follower.read_new()
    with without_collector():
        return apply_changes(base_state(objects, news.checkpoint, follower.store_id), changes(news.entries))


def follow(env: Env, objects: Objects) -> LogFollower:
    """Return a reader of a store's log. Raises: StorageError if there is no store."""
    identity = read_identity(env, objects)
    if identity is None:
        raise StorageError(
            f"there is no Nyala store at {objects.url!r}: give a store's URL, or connect without read_only "
            "to create one",
            path=objects.url,
        )
    return LogFollower(env, objects, identity)


def _vanished(env: Env, objects: Objects, path: str) -> Error:
    """Return the error for a missing file.

    If the newest catalogue does not name the file, the writer has removed it: HistoryExpiredError.
    Otherwise the file is lost: MissingFileError.
    """
    if path in (f"{objects.url}/{file}" for file in read_state(env, objects).files()):
        return MissingFileError(f"{path} does not exist", path=path, errno=errno.ENOENT)
    return HistoryExpiredError(
        f"{path} no longer exists: this process was suspended for longer than its lease, and the writer has removed "
        "old files since: read again"
    )
