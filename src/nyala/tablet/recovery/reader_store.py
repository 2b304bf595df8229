"""The store as a process that only reads it sees it (rules P1 and P2).

    open or reload                                       refresh, at each new view
      1. a lease that says "everything" (P8)               read the position record
      2. the catalogue, in one short read transaction      same catalogue version: read the log from where we were
      3. announce that version in the lease                newer one: reload with a fresh lease
      4. the log from that version's start up to
         the position that the writer published

A reader never cuts the log's tail, holds no lock that a writer waits for, and keeps no SQLite transaction open.
Its memory stores are its own replay of the log.

Invariants
    P1  The order above. The log is read up to the published position only, or to its last good record when
        no writer is there.
    P3  A position record that names a newer catalogue than we hold is not read up to before the catalogue is
        reloaded: a batch may have gone into files there (W6), and log records behind it may rest on it.
    P4  The lease of an earlier version is kept until the last root of it in this process is gone, or it is closed.
    P5  What is published never goes back, also when the writer commits to the catalogue while it is loaded.
    P6  What is published is not before the history of any table begins, nor before rows were dropped or rewritten: a
        catalogue that did so at a moment that the position record, read before it, does not reach yet is loaded again.
    P8  A reader that may not write in the store's folder has no lease, so the writer may remove files that it still
        needs. A view is kept only if the position record names the same catalogue after the load as before: what was
        read belongs together. A file that is gone later raises `HistoryExpiredError`. It never reads other rows.
    P7  What the replay has brought into memory is measured every `GATHER_ROWS` rows or `GATHER_BYTES`. Above
        `memory_limit` the view is refused until the writer has flushed: a reader has no place of its own to flush to.

Threads: any. Source: docs/design/processes-and-locks.md, "Readers replay the log"; docs/design/rules.md, P1 and P2.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import weakref
from dataclasses import replace
from typing import Any, Final, NoReturn

from nyala.catalog.format import LOCK_NAME
from nyala.catalog.leases import Lease, reader_lease
from nyala.catalog.model import CatalogState
from nyala.catalog.store import Catalog
from nyala.catalog.store_lock import StoreLock
from nyala.cfile.blocks.cache import BlockCache
from nyala.env import Env
from nyala.errors import Error, HistoryExpiredError, ReadOnlyError, StorageError
from nyala.tablet.recovery.bootstrap import Replayer, ReplayReport
from nyala.tablet.state import store_folder as layout
from nyala.tablet.state.opening import open_root
from nyala.tablet.state.root import Root
from nyala.wal.format import check_store_id
from nyala.wal.position import LogPosition, PositionRecord, read_position
from nyala.wal.reader import LogReader

logger = logging.getLogger("nyala.reader")

# Each try needs the writer to commit between two reads of some milliseconds, so a second one is rare.
_LOADS_MAX: Final = 20


class ReaderStore:
    """A read-only view that follows the writer. Made by `ReaderStore.open`, ended by `close`."""

    read_only: Final = True

    def __init__(self, env: Env, path: str, memory_limit_bytes: int, replay_limit_bytes: int) -> None:
        self.env = env
        self.root_path = path
        self.memory_limit_bytes = memory_limit_bytes
        self.cache = BlockCache(memory_limit_bytes // 4)
        self._replay_limit_bytes = replay_limit_bytes
        self._lock = threading.RLock()  # a handler of signals may close it in the thread that looks
        self._closed = False
        self._pid = os.getpid()
        self._lease: Lease | None = None
        self._env_without_lease = replace(env, files=env.files.without_lease(_vanished))  # P8
        self._held: list[weakref.finalize[..., Root]] = []  # ends a root's lease, with it or before
        self._load()

    @staticmethod
    def open(
        env: Env, path: str, memory_limit_bytes: int, replay_limit_bytes: int | None = None
    ) -> ReaderStore:
        """Raises: StorageError when there is no store, or its log holds more than `replay_limit_bytes` (by default
        `memory_limit_bytes`) of rows that are not flushed (P7); CorruptionError."""
        layout.require_store(env, path)
        env = env.bound(path)
        limit = memory_limit_bytes if replay_limit_bytes is None else replay_limit_bytes
        try:
            lock = os.path.join(path, LOCK_NAME)
            if env.files.exists(lock):
                env.files.watch(lock)
            return ReaderStore(env, path, memory_limit_bytes, limit)
        except BaseException:
            env.files.close()
            raise

    def _load(self) -> None:
        # P1: nothing that was there when the catalogue is read can go before the lease says which version it
        # keeps.
        self._loaded = False
        for _ in range(_LOADS_MAX):
            lease = reader_lease(self.env, self.root_path)
            before = self._position()
            try:
                self._load_under(lease)
            except BaseException as error:
                if lease is not None:
                    lease.release()
                elif isinstance(error, Error) and self._position() != before:  # P8
                    continue
                raise
            if lease is None and self._is_behind(self._position()):
                continue
            if self._published >= self._history_start:  # P6
                self._loaded = True
                return
        raise StorageError(
            f"the writer of {self.root_path!r} commits faster than this process can read the catalogue: try again",
            path=self.root_path,
        )

    def _is_behind(self, position: PositionRecord | None) -> bool:
        """Whether the writer has committed a newer catalogue than the one that is loaded."""
        return position is not None and position.catalogue_version > self._version

    def _load_under(self, lease: Lease | None) -> None:
        with contextlib.closing(
            Catalog.open(self.env, layout.catalog_path(self.root_path), read_only=True)
        ) as catalog:
            position = self._position()
            state = catalog.load(at_least=0 if position is None else position.catalogue_version)
        self.env.files.check_bound()  # SQLite has opened the catalogue by its path
        if position is not None:
            check_store_id(state.store_id, position.store_id, layout.position_path(self.root_path))
        if lease is not None:
            lease.announce(state.version)
        self._lease = lease
        env = self.env if lease is not None else self._env_without_lease
        root = open_root(env, self.root_path, state, self.cache)
        self._version = state.version
        self._state = state
        self._root = root
        self._replayer = Replayer(root, self._relieved)
        self._overfull = False
        self._log = LogReader(env, layout.wal_path(self.root_path), state.wal_start, state.store_id)
        self._published = 0
        self._floor = state.timestamp_max
        self._history_start = max(
            (max(table.history_start for table in state.tables.values()) if state.tables else 0), root.floor
        )
        # P4: the lease lives as long as the last scan of this root.
        self._held = [held for held in self._held if held.alive]
        if lease is not None:
            self._held.append(weakref.finalize(root, _release, lease))
        newest = self._position()
        if position is not None and newest is not None and newest.catalogue_version > state.version:
            # P5: the writer has gone on since. What was published before we looked at the catalogue is readable in
            # any case: it is in this catalogue's files or in the log that they leave.
            newest = position
        self._follow(newest)

    def _position(self) -> PositionRecord | None:
        return read_position(self.env.files, layout.position_path(self.root_path))

    def _relieved(self, timestamp: int, report: ReplayReport) -> Root:
        """P7. Raises: StorageError when the replay up to `timestamp` holds too much."""
        self._overfull = self._root.memory_bytes() > self._replay_limit_bytes
        self._check_memory()
        return self._root

    def _check_memory(self) -> None:
        if self._overfull:
            raise StorageError(
                f"the log of {self.root_path!r} holds more rows that are not flushed than this reader's memory_limit "
                f"of {self._replay_limit_bytes / 1e6:.0f} MB: call flush() in the writer (connect() to be it, if there "
                "is none), or open the reader with a larger memory_limit",
                path=self.root_path,
            )

    def _follow(self, position: PositionRecord | None) -> None:
        """Read the log on to `position`; None (no usable record, or no writer): to the last good record."""
        if position is not None and position.catalogue_version > self._version:
            return  # P3
        self._check_memory()
        upto = None if position is None or not self._has_writer() else position.position
        log = self._log
        self._replayer.feed(log.read_to_end() if upto is None else log.read_to(upto.segment, upto.offset))
        self._replayer.drain()
        if upto is None:
            self._published = max(self._published, self._replayer.report.timestamp_max, self._floor)
            if position is not None:
                # Of a segment that nothing was written to yet nothing can be missing.
                reached = log.position if position.offset else max(log.position, position.position)
                position.check_reached(self._published, reached, layout.position_path(self.root_path))
        elif position is not None:
            self._published = max(self._published, position.timestamp)

    def _has_writer(self) -> bool:
        """Is a writer there, as far as its lock's file says? Locking it to find out could shut a writer out."""
        holder = StoreLock(self.env, self.root_path).holder()
        if holder is None:
            return False
        return holder.host != socket.gethostname() or _is_running(holder.pid)

    def view(self) -> tuple[Root, int]:
        """The newest root and published timestamp, after catching up with the writer. Raises: StorageError (P7)."""
        self.check_open()
        with self._lock:
            self.check_open()  # a lease that is made behind `close` would stay
            self.env.files.check_bound()
            position = self._position()
            # A load that failed half-way left a root without a lease.
            if self._is_behind(position) or not self._loaded or not self._followed(position):
                self._load()
            return self._root, self._published

    def _followed(self, position: PositionRecord | None) -> bool:
        """Read the log on; False: without a lease (P8), and the writer has gone on to a newer catalogue meanwhile."""
        try:
            self._follow(position)
        except Error:
            if self._lease is None and self._is_behind(self._position()):
                return False
            raise
        return self._lease is not None or not self._is_behind(self._position())

    def look(self) -> tuple[Root, CatalogState, LogPosition]:
        """After catching up: the root, the catalogue that it is of, and how far the log was read (for `check`)."""
        self.view()
        with self._lock:
            return self._root, self._state, self._log.position

    @property
    def root(self) -> Root:
        return self.view()[0]

    @property
    def version(self) -> int:
        """The catalogue version that is loaded."""
        return self._version

    def check_open(self) -> None:
        """Raises: StorageError when the store is closed or this is a forked child."""
        if self._closed:
            raise StorageError(f"the store {self.root_path!r} is closed: connect() again")
        if os.getpid() != self._pid:
            raise StorageError(
                f"the store {self.root_path!r} was opened by process {self._pid} and this is its forked child: "
                "connect() in the child"
            )

    def check_writable(self) -> NoReturn:
        raise ReadOnlyError(
            f"the store {self.root_path!r} was opened with read_only=True: connect() without it to write"
        )

    def is_kept(self) -> bool:
        """Whether the store's folder is still there, and has this reader's lease."""
        if self._closed:
            return False
        try:
            self.env.files.check_bound()
        except StorageError:
            return False
        return self._lease is None or self.env.files.exists(self._lease.path)

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Give the leases back, also those of scans that are still held: nobody reads on. May be called twice.

        What another thread is looking at is looked at first.
        """
        if os.getpid() != self._pid:  # the lock may be one that nobody here holds
            self._closed = True
            return
        with self._lock:
            if not self._closed:
                for held in self._held:
                    held()
            self._closed = True
        self.env.files.close()

    def stats(self) -> dict[str, Any]:
        """Counters of this reader."""
        return {
            "version": self._version,
            "memory_bytes": self._root.memory_bytes(),
            "cache_bytes": self.cache.size_bytes,
            "cache_hits": self.cache.hits,
            "cache_misses": self.cache.misses,
        }


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _vanished(path: str) -> HistoryExpiredError:
    return HistoryExpiredError(
        f"{path} is not there any more: the store's writer removed it, because this process may not write into the "
        "store's folder and so could not keep the files that it reads; read again, or give this user the right to "
        "write into leases/"
    )


def _release(lease: Lease) -> None:
    with contextlib.suppress(Exception):
        lease.release()
