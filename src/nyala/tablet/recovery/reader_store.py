"""A store in a process that only reads it, while another process may write.

Opening the store, or loading a newer catalogue, has four steps:

    1. Create a lease on all files. A lease is a file that keeps other files from being removed.
    2. Read the catalogue: its checkpoint and its changes.
    3. Write the catalogue's version to the lease, which then keeps only the files of this version.
    4. Replay the log into this process's memory, up to the position that the writer published.

Each new view reads the writer's position record. If the catalogue is the same, the view replays the
new part of the log. Otherwise it loads the newer catalogue with a new lease. A reader never cuts off
the log's tail, and holds no lock that a writer waits for.

Invariants
    P1  The steps above are done in this order. The log is read only up to the published position,
        or to its last good record if there is no writer.
    P3  If the position record or the log has a newer catalogue than the loaded one, the newer
        catalogue is loaded first. A batch may be only in new files, and later log records may
        depend on them.
    P4  The lease of a version is kept until this process has dropped its last root of that version,
        or the store is closed.
    P5  The published timestamp never goes back, even if the writer changes the catalogue while
        this process loads it.
    P6  The reader never publishes a moment that is too old to be read. It gets the moment from the
        position record, and then loads the catalogue. If rows were dropped or rewritten between
        these two steps, the tables may no longer have the rows of this moment. Then both steps are
        repeated.
    P7  During a replay, the memory is measured every `GATHER_ROWS` rows or `GATHER_BYTES`. Above
        `memory_limit`, a view raises an error until the writer has flushed.
    P8  A reader without permission to write in the store's folder has no lease. So the writer may
        remove files that the reader needs. Such a reader uses a loaded catalogue only if the
        position record names the same catalogue before and after the loading. If a file is removed
        later, a read raises `HistoryExpiredError`; it never returns wrong rows.

Thread-safe. Source: docs/design/processes-and-locks.md, "Readers replay the log"; rules P1 and P2
of docs/design/rules.md, which have other numbers than the invariants above.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, Self

from nyala.catalog.format import LOCK_NAME
from nyala.catalog.leases import Lease, reader_lease
from nyala.catalog.loading import read_catalogue, version_of
from nyala.catalog.model import CatalogState, CommitMessage, TagEntry
from nyala.catalog.store_lock import StoreLock
from nyala.cfile.blocks.cache import BlockCache
from nyala.env import Env
from nyala.errors import Error, HistoryExpiredError, ReadOnlyError, StorageError
from nyala.schema.limits import DEFAULT_LIMITS, Limits
from nyala.tablet.recovery.bootstrap import Replayer, ReplayReport
from nyala.tablet.state import store_folder as layout
from nyala.tablet.state.opening import check_in_use, open_root
from nyala.tablet.state.root import Root
from nyala.wal.format import check_store_id
from nyala.wal.position import LogPosition, PositionRecord, read_position
from nyala.wal.reader import LogReader, Record
from nyala.wal.record import LogRecord

logger = logging.getLogger("nyala.reader")

# A load is repeated if the writer changes the catalogue during its first milliseconds. More than
# one repetition is rare.
_LOADS_MAX: Final = 20


class ReaderStore:
    """A store that is opened only for reading: it follows the writer's commits.

    Create it with `open`, end it with `close`.
    """

    read_only: Final = True

    def __init__(
        self, env: Env, path: str, memory_limit_bytes: int, replay_limit_bytes: int, limits: Limits
    ) -> None:
        self.env = env
        self.root_path = path
        self.memory_limit_bytes = memory_limit_bytes
        self.cache = BlockCache(memory_limit_bytes // 4)
        self._replay_limit_bytes = replay_limit_bytes
        self._limits = limits
        self._lock = threading.RLock()  # re-entrant, because a signal handler may close the store
        self._closed = False
        self._pid = os.getpid()
        self._lease: Lease | None = None
        self._env_without_lease = replace(env, files=env.files.without_lease(_vanished))  # P8
        self._held: list[weakref.finalize[..., Root]] = []  # each releases the lease of a root
        self._load()

    @classmethod
    def open(
        cls,
        env: Env,
        path: str,
        memory_limit_bytes: int,
        replay_limit_bytes: int | None = None,
        *,
        limits: Limits = DEFAULT_LIMITS,
    ) -> Self:
        """Open the store at `path` for reading.

        replay_limit_bytes: the memory limit for unflushed rows; default: `memory_limit_bytes`.
        limits: the size limits of columns, keys and values (see `nyala.connect`). A process that
                shares the store needs those of the writer, because it checks rows before it sends
                them to the writer. Others do not need them.
        Raises: StorageError if there is no store, or if the unflushed rows exceed the limit;
                CorruptionError.
        """
        layout.require_store(env, path)
        env = env.bound(path)
        limit = memory_limit_bytes if replay_limit_bytes is None else replay_limit_bytes
        try:
            lock = os.path.join(path, LOCK_NAME)
            if env.files.exists(lock):
                env.files.watch(lock)
            return cls(env, path, memory_limit_bytes, limit, limits)
        except BaseException:
            env.files.close()
            raise

    def _load(self) -> None:
        # P1: between the read of the catalogue and step 3, the lease keeps all files.
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
            f"the writer of {self.root_path!r} commits faster than this process can load the catalogue: try again",
            path=self.root_path,
        )

    def _is_behind(self, position: PositionRecord | None) -> bool:
        """Whether the writer has published a newer catalogue than the loaded one."""
        return position is not None and position.catalogue_version > self._version

    def _load_under(self, lease: Lease | None) -> None:
        position = self._position()
        upto = None if position is None or not self._has_writer() else position.position
        state, reached = read_catalogue(self.env, self.root_path, layout.wal_path(self.root_path), upto)
        if position is not None:
            check_store_id(state.store_id, position.store_id, layout.position_path(self.root_path))
            if position.catalogue_version > state.version:
                position.check_reached(position.timestamp, reached, layout.position_path(self.root_path))
        if lease is not None:
            lease.announce(state.version)
        self._lease = lease
        env = self.env if lease is not None else self._env_without_lease
        root = open_root(env, self.root_path, state, self.cache, self._limits)
        self._version = state.version
        self._state = state
        self._root = root
        self._replayer = Replayer(root, self._relieved)
        self._overfull = False
        self._outdated = False
        self._log = LogReader(env, layout.wal_path(self.root_path), state.wal_start, state.store_id)
        self._published = 0
        self._floor = state.timestamp_max
        self._history_start = max(
            (max(table.history_start for table in state.tables.values()) if state.tables else 0), root.floor
        )
        # P4: the lease lives until the last scan of this root ends.
        self._held = [held for held in self._held if held.alive]
        if lease is not None:
            self._held.append(weakref.finalize(root, _release, lease))
        newest = self._position()
        if position is not None and newest is not None and newest.catalogue_version > state.version:
            # P5: the writer has changed the catalogue again. Everything that was published before
            # this load is in the files of the loaded catalogue, or in the log after them.
            newest = position
        self._follow(newest)

    def _position(self) -> PositionRecord | None:
        return read_position(self.env.files, layout.position_path(self.root_path))

    def _relieved(self, timestamp: int, report: ReplayReport) -> Root:
        """Check during the replay of the log that the replayed rows do not take too much memory.

        The `Replayer` calls this function now and then, with two arguments that are not needed
        here. It continues with the returned root, which is always the present one.

        Raises: StorageError if the rows exceed the reader's memory limit for unflushed rows.
        """
        self._overfull = self._root.memory_bytes() > self._replay_limit_bytes
        self._check_memory()
        return self._root

    def _check_memory(self) -> None:
        if self._overfull:
            raise StorageError(
                f"the log of {self.root_path!r} has more unflushed rows than this reader's memory_limit of "
                f"{self._replay_limit_bytes / 1e6:.0f} MB can hold: call flush() in the writer process (without a "
                "writer, connect() without read_only first), or open the reader with a larger memory_limit",
                path=self.root_path,
            )

    def _follow(self, position: PositionRecord | None) -> None:
        """Replay the log up to the position that the writer has published.

        If no writer process is alive, or if `position` is None, replay up to the last good record.
        Does nothing if `position` names a newer catalogue, which must be loaded first.

        position: the writer's position record; None: it does not exist or is damaged.
        """
        if position is not None and position.catalogue_version > self._version:
            return  # P3
        self._check_memory()
        upto = None if position is None or not self._has_writer() else position.position
        log = self._log
        self._replayer.feed(self._batches(log.read_to(upto)))
        self._replayer.drain()
        if upto is None:
            self._published = max(self._published, self._replayer.report.timestamp_max, self._floor)
            if position is not None:
                # If the published position is the beginning of a segment, no record can be missing.
                reached = log.position if position.position.offset else max(log.position, position.position)
                position.check_reached(self._published, reached, layout.position_path(self.root_path))
        elif position is not None:
            self._published = max(self._published, position.timestamp)

    def _batches(self, records: Iterable[Record]) -> Iterator[LogRecord]:
        """Yield the batches in `records`, up to a change of the catalogue that is not loaded yet."""
        for record in records:
            if isinstance(record, LogRecord):
                yield record
            elif version_of(record) > self._version:
                self._outdated = True
                return

    def _has_writer(self) -> bool:
        """Whether the lock file names a living process, the writer.

        The reader does not try to take the lock: a new writer would find the lock taken, and stop.
        """
        holder = StoreLock(self.env, self.root_path).holder()
        if holder is None:
            return False
        return holder.host != socket.gethostname() or _is_running(holder.pid)

    def view(self) -> tuple[Root, int]:
        """Catch up with the writer. Return the newest root and the published timestamp.

        Raises: StorageError if the unflushed rows exceed the memory limit.
        """
        self.check_open()
        with self._lock:
            self.check_open()  # again: another thread may have closed the store
            self.env.files.check_bound()
            position = self._position()
            # `_loaded` is False after a load or a replay that did not end.
            if (
                self._is_behind(position)
                or self._outdated
                or not self._loaded
                or not self._followed(position)
            ):
                self._load()
            return self._root, self._published

    def _followed(self, position: PositionRecord | None) -> bool:
        """Replay the new part of the log, and return whether this reader is up to date then.

        False: the catalogue must be loaded again.
        position: how far readers may read the log; None if the writer's file that says so is
                  missing or damaged.
        """
        # After an interruption, records may be lost between the file and memory. Then the next view
        # loads again.
        self._loaded = False
        try:
            self._follow(position)
            self._loaded = True
        except Error:
            if self._lease is None and self._is_behind(self._position()):
                return False
            raise
        return self._lease is not None or not self._is_behind(self._position())

    def look(self) -> tuple[Root, CatalogState, LogPosition]:
        """Catch up with the writer. Return the root, its catalogue, and the position in the log."""
        self.view()
        with self._lock:
            return self._root, self._state, self._log.position

    def messages(self) -> Mapping[int, CommitMessage]:
        """Return the commit messages by timestamp, at least those that the last `view` could see.

        The result may also have messages of later batches.
        """
        with self._lock:
            return {**self._state.messages, **self._replayer.report.messages}

    def tags(self) -> Mapping[str, TagEntry]:
        """Catch up with the writer, and return the tags by name."""
        self.view()
        return self._state.tags

    @property
    def root(self) -> Root:
        return self.view()[0]

    @property
    def store_id(self) -> str:
        return self._state.store_id

    @property
    def version(self) -> int:
        """The loaded catalogue version."""
        return self._version

    def check_open(self) -> None:
        """Raise StorageError if the store is closed, or if this process is a forked child."""
        check_in_use(self.root_path, self._closed, self._pid)

    def check_writable(self) -> None:
        raise ReadOnlyError(
            f"the store {self.root_path!r} was opened with read_only=True: connect() without it to write"
        )

    def is_usable(self) -> bool:
        """Whether the store's folder still exists and has this reader's lease."""
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
        """End all leases, also those of open scans. May be called twice.

        If another thread is loading a catalogue, this waits until it has ended.
        """
        if os.getpid() != self._pid:  # after a fork another thread may have held the lock
            self._closed = True
            return
        with self._lock:
            if not self._closed:
                for held in self._held:
                    held()
            self._closed = True
        self.env.files.close()

    def stats(self) -> dict[str, Any]:
        """Return numbers about this reader, by name.

        They are the version of its catalogue, the bytes in its memory and in its block cache, and
        the hits and misses of the cache.
        """
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
        f"{path} no longer exists: the store's writer removed it, because this process may not write into the store's "
        "folder and so has no lease on its files. Read again, or give this user the right to write into leases/"
    )


def _release(lease: Lease) -> None:
    with contextlib.suppress(Exception):
        lease.release()
