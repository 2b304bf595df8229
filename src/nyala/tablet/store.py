"""The open store of the writer process. It has all parts of the state, and changes them together.

    root        the current state of tables, tablets and rowsets
    state       the catalogue, as it is in the log
    marks       the newest timestamp that is applied to memory, and the newest that readers may see
    log, clock, cache, locks

Writes, flushes, compactions and alterations are in modules of their own. They get a `Store`, and
call its methods to log, to install a new root, and to publish. Scans call `view`.

Invariants
    W1  `published` reaches t only when the log is synced through t and all batches up to t are
        applied.
    W3  After a failed sync, or a failure after the log append, `check_writable` raises an error
        until the store is opened again.
    P2  A change of the catalogue can make a file garbage. The file is deleted only when all living
        leases and all roots in this process are at least as new as that change.
    T1  A new timestamp is greater than all timestamps in the log and the catalogue.

Threads: any thread may call `view`, `check_writable` and the properties. A caller that changes the
root has `commit_lock`. `locks.py` has the order of locks. Source: docs/design/rules.md.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from nyala.catalog.checkpoint import newest_checkpoint, read_identity
from nyala.catalog.codec import encode_change
from nyala.catalog.leases import collectable
from nyala.catalog.loading import apply_changes, check_log_exists, without_collector
from nyala.catalog.model import (
    CatalogChange,
    CatalogState,
    CommitMessage,
    CommittedKey,
    DeltaEntry,
    PartEntry,
    RowSetEntry,
    TableEntry,
    TagEntry,
    apply,
    purging_tables,
    purging_tablets,
)
from nyala.catalog.store_lock import Purpose, StoreLock
from nyala.cfile.blocks.cache import BlockCache
from nyala.delta.delta_file import DeltaFile
from nyala.env import Env, Reserve
from nyala.env.interrupts import Interruptible, Uninterrupted
from nyala.env.overlapped import each
from nyala.errors import (
    Error,
    FencedError,
    InvalidArgumentError,
    StorageError,
    TableExistsError,
    TableNotFoundError,
)
from nyala.mvcc.hybrid_clock import HybridClock
from nyala.mvcc.timestamp import physical_us
from nyala.mvcc.watermarks import Watermarks
from nyala.objects.base import Objects
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.rowset.mem_rowset import MemRowSet
from nyala.rowset.part import Part
from nyala.rowset.size import TARGET_BYTES
from nyala.schema.limits import DEFAULT_LIMITS, Limits
from nyala.schema.schema import Schema
from nyala.tablet.jobs.held_rowsets import JobReservations
from nyala.tablet.jobs.staging import remove_expired_staging
from nyala.tablet.media.base import Medium
from nyala.tablet.media.folder import FolderCheckpoints, FolderLeases
from nyala.tablet.recovery.bootstrap import Replayer, ReplayReport
from nyala.tablet.recovery.publisher import Publisher
from nyala.tablet.state import store_folder as layout
from nyala.tablet.state.history import check_readable, oldest_readable, purged_ranges
from nyala.tablet.state.idempotency import is_call_key, keys_to_forget
from nyala.tablet.state.locks import OwnedLock
from nyala.tablet.state.messages import messages_to_forget
from nyala.tablet.state.opening import check_in_use, delta_entry, open_root, open_rowset, remove_orphans
from nyala.tablet.state.reservations import Reservations
from nyala.tablet.state.result import Ticket
from nyala.tablet.state.root import Root, TableState, TabletState, dropped_bytes
from nyala.tablet.state.tags import TAGS_MAX, tagged, unknown_tag, untagged
from nyala.tablet.state.unfinished import abandoned
from nyala.tablet.write.pins import HistoryPins
from nyala.wal.format import check_store_id
from nyala.wal.position import PositionRecord, read_position
from nyala.wal.reader import recover
from nyala.wal.record import ChangeRecord, LogRecord
from nyala.wal.writer import Durability, LogWriter

if TYPE_CHECKING:
    from nyala.rowset.writer import WrittenRowSet

logger = logging.getLogger("nyala.store")

_Made = TypeVar("_Made")

DURABILITIES: Final = ("commit", "group", "os")
# Above this size of the log, the background flushes. Then segments without unflushed rows can be
# dropped. The next open replays the rest.
LOG_LIMIT_BYTES: Final = 32 << 20
# Writes wait for a flush when the log has this many times its limit: at 64 MB. During a merge of
# rowsets, the log must keep their new changes, so writes wait at 96 MB.
LOG_FULL_SHARE: Final = 2
LOG_FULL_SHARE_MERGING: Final = 3
WAIT_FOR_ROOM_S: Final = 30.0
# A log that has only changes of the catalogue is dropped at this size, after a checkpoint.
CHANGES_MAX_BYTES: Final = 1 << 20
# Each write adds an estimate to `memory_bytes`. The memory is measured again when the estimates
# have grown by this part of the limit.
MEASURE_SHARE: Final = 64
# A larger batch is written as rowset and delta files, and not to the log. So a bulk load is written
# only once, and the log stays within its 64 MB.
DIRECT_COMMIT_BYTES: Final = 64 << 20
# The same for a bucket. Its log should be shorter, because each open reads the whole log.
BUCKET_DIRECT_COMMIT_BYTES: Final = 8 << 20


@dataclass(frozen=True)
class StoreOptions:
    """The options of `connect` for a writer."""

    durability: Durability = "commit"
    memory_limit_bytes: int = 1 << 30
    maintenance: bool = True
    lock_timeout_s: float = 0.0
    lock_purpose: Purpose = "writer"
    log_limit_bytes: int = LOG_LIMIT_BYTES
    direct_commit_bytes: int = DIRECT_COMMIT_BYTES
    rowset_target_bytes: int = TARGET_BYTES
    limits: Limits = DEFAULT_LIMITS


class Store:
    """The open store of the writer process. Create it with `open`, end it with `close`."""

    read_only: Final = False

    def __init__(
        self,
        env: Env,
        root_path: str,
        options: StoreOptions,
        medium: Medium,
        state: CatalogState,
        root: Root,
        clock: HybridClock,
        cache: BlockCache,
    ) -> None:
        self.env = env
        self.reserve = medium.reserve
        self.objects: Final = medium.objects
        self.root_path = root_path
        self.options = options
        self.state = state
        self.log = medium.log
        self.clock = clock
        self.cache = cache
        self.marks = Watermarks()
        self.commit_lock = OwnedLock()
        self.flush_lock = OwnedLock()
        self.direct_commit_bytes = options.direct_commit_bytes
        self.pins = HistoryPins(env.clock)
        self.reservations = Reservations()
        self.job_reservations = JobReservations()
        self.changed = threading.Event()  # files were added or removed, so compactions may be due
        self.pressure = threading.Event()  # set when memory or the log needs a flush
        # All code uses `with self._relief_lock`, not `with self._relief`: after Ctrl-C the
        # condition could stay locked.
        self._relief_lock = threading.RLock()
        self._relief = threading.Condition(self._relief_lock)
        self._paused = False
        self._medium = medium
        self._root = root
        self._roots: weakref.WeakSet[Root] = weakref.WeakSet([root])
        self._keys: dict[str, CommittedKey] = {}  # keys that only the log has, not the catalogue
        self._messages: dict[int, CommitMessage] = {}  # messages that only the log has
        self._replayed_to: int | None = 0  # None after the replay of the log
        self._failure: BaseException | None = None
        self._closed = False
        self._pid = os.getpid()
        self._trimmed = 0  # the last timestamp when all segments of the log were last dropped
        self._collect_lock = threading.Lock()
        self._publisher = medium.publisher
        self._measure_memory(root)
        self._ids: dict[str, Iterator[int]] = {
            "tablet": itertools.count(state.next_tablet_id),
            "rowset": itertools.count(state.next_rowset_id),
            "delta": itertools.count(state.next_delta_id),
        }

    # ── open, close

    @staticmethod
    def open(env: Env, path: str, options: StoreOptions) -> Store:
        """Open the store at `path` as its writer: take the lock, replay the log.

        If the folder is missing or empty, create a store in it.
        Raises: LockedError; CorruptionError; StorageError, for example if the folder has other
                content, a newer version wrote the store, or the disk is full.
        Cost:   O(live files) for the catalogue, plus the replay of the log. The replay flushes when
                its rows take half of the memory limit.
        """
        reserve = Reserve(env.files, path)
        store = reserve.use(lambda: Store._open(env, path, options, reserve))
        store.grow_reserve()
        store._drop_abandoned()
        return store

    @staticmethod
    def _open(env: Env, path: str, options: StoreOptions, reserve: Reserve) -> Store:
        layout.prepare_folder(env, path)
        # On an error or Ctrl-C, `undo` closes everything that is open.
        with Uninterrupted(), contextlib.ExitStack() as undo:
            env = env.bound(path)
            undo.callback(env.files.close)
            lock = StoreLock(env, path)
            lock.acquire(options.lock_timeout_s, options.lock_purpose)
            undo.callback(lock.release)
            env.files.watch(lock.path)
            layout.create_store(env, path)
            with Interruptible():
                store = Store._recovered(env, path, options, lock, reserve, undo)
            undo.pop_all()
        reserve.bind(env.files)
        return store

    @staticmethod
    def _recovered(
        env: Env,
        path: str,
        options: StoreOptions,
        lock: StoreLock,
        reserve: Reserve,
        undo: contextlib.ExitStack,
    ) -> Store:
        """Return a store with the catalogue and the log. Rows of the log are not replayed yet.

        undo: gets a callback that closes the log. The caller runs it if a later step fails.
        """
        position = read_position(env.files, layout.position_path(path))
        with without_collector():
            checkpoint = newest_checkpoint(env.files, path, read_identity(env.files, path))
            if position is not None:
                check_store_id(checkpoint.store_id, position.store_id, layout.position_path(path))
            recovered = recover(
                env, layout.wal_path(path), checkpoint.wal_start, checkpoint.store_id, cut=False
            )
            state = apply_changes(checkpoint, recovered.changes)
        check_log_exists(env, path, layout.wal_path(path), state)
        recovered = recovered.since(state.wal_start)
        cache = BlockCache(options.memory_limit_bytes // 4)
        root = open_root(env, path, state, cache, options.limits)
        latest = max(state.timestamp_max, recovered.timestamp_max)
        if position is not None:
            position.check_reached(latest, recovered.reached, layout.position_path(path))
        clock = HybridClock(env.clock, latest)
        # All checks are above this line, because from here on the store is changed.
        remove_expired_staging(env, path, strangers=True)
        remove_orphans(env, path, state)
        recovered = recovered.cut()
        if recovered.torn is not None:
            logger.warning(
                "the log ended in %d bytes of batches that were never acknowledged; they were cut off",
                recovered.torn.length,
            )
        log = LogWriter(env, layout.wal_path(path), recovered, durability=options.durability, reserve=reserve)
        undo.callback(log.close)
        medium = Medium(
            lock,
            log,
            Publisher(env.files, layout.position_path(path)),
            reserve,
            FolderCheckpoints(env, path, reserve, checkpoint.wal_start),
            FolderLeases(env, path),
        )
        store = Store(env, path, options, medium, state, root, clock, cache)
        store._replay(recovered.records())
        return store

    @staticmethod
    def open_in_bucket(
        env: Env, objects: Objects, options: StoreOptions, group_interval_s: float, *, take_over: bool = True
    ) -> Store:
        """Become the writer of a store in a bucket, create it if needed, and recover it.

        The former writer is fenced: it cannot write any more.

        env:       its `files` are those of the bucket.
        objects:   the bucket, with the store's prefix. The store closes it; so does this call if it
                   fails.
        group_interval_s: the longest wait before a sync, for `durability="group"`.
        take_over: True: also fence a writer that seems to be alive. False: raise LockedError then.
        Raises: StorageError, CorruptionError; LockedError.
        """
        from nyala.tablet.media.bucket import RefuseLivingWriter, open_bucket

        options = replace(
            options, direct_commit_bytes=min(options.direct_commit_bytes, BUCKET_DIRECT_COMMIT_BYTES)
        )
        with Uninterrupted(), contextlib.ExitStack() as undo:
            undo.callback(objects.close)
            undo.callback(env.files.close)
            with Interruptible():
                guard = None if take_over else RefuseLivingWriter(env, objects)
                medium, state, records = open_bucket(env, objects, group_interval_s, guard)
                undo.callback(medium.lock.release)
                cache = BlockCache(options.memory_limit_bytes // 4)
                root = open_root(env, objects.url, state, cache, options.limits)
                clock = HybridClock(env.clock, max(state.timestamp_max, medium.log.appended.timestamp))
                store = Store(env, objects.url, options, medium, state, root, clock, cache)
                store._replay(records)
            undo.pop_all()
        store._drop_abandoned()
        return store

    def grow_reserve(self) -> None:
        """Adjust the size of the reserve of disk space to the amount of data in the store.

        The reserve lets the store drop and compact data on a full disk. If too little space is
        free, the reserve stays smaller.
        """
        self.reserve.grow(sum(rowset.size_bytes for rowset in self.state.rowsets.values()))

    def _drop_abandoned(self) -> None:
        """Drop the unfinished tables of jobs whose process was killed (`unfinished.py`)."""
        for name in abandoned(self._root.by_name):
            try:
                self.drop_tables([name], purge=True)
            except StorageError as error:  # a store must open on a full disk too
                logger.warning("the unfinished table %r stays until the next open: %s", name, error)
            else:
                logger.info("dropped the table %r, which a killed job had left unfinished", name)

    def _replay(self, records: Iterable[LogRecord]) -> None:
        """Replay the log into memory, then publish it to readers.

        If the log is long, rows that are already replayed are flushed in between. After a crash
        during the replay, the next replay skips these rows. Before the end of the replay, nothing
        is published, and no segment of the log is dropped that is not replayed yet.
        """
        replayer = Replayer(self._root, self._relieved)
        replayer.feed(records)
        replayer.drain()
        self._note_commits(replayer.report)
        self._replayed_to = None
        self.marks = Watermarks(self.clock.latest)
        self._measure_memory(self._root)
        self.publish()

    def _relieved(self, timestamp: int, report: ReplayReport) -> Root:
        """Flush if the replay up to `timestamp` takes too much memory. Return the current root."""
        if self._root.memory_bytes() <= self.options.memory_limit_bytes // 2:
            return self._root
        from nyala.tablet.flush.lifecycle import flush

        self._note_commits(report)
        self._replayed_to = timestamp
        self.marks.advance_applied(timestamp)
        try:
            flushed = flush(self)
        except StorageError as error:
            if self._failure is not None:
                raise
            # Usually the disk is full.
            logger.warning("the flush during the log's replay failed: %s", error)
        else:
            logger.info("flushed %d rows during the log's replay, because the log is long", flushed.rows)
        return self._root

    def _note_commits(self, report: ReplayReport) -> None:
        """Remember the idempotency keys and commit messages that only the log has, not the catalogue."""
        keys, messages = report.idempotency_keys, report.messages
        self._keys.update((key, found) for key, found in keys.items() if key not in self.state.committed_keys)
        self._messages.update((at, found) for at, found in messages.items() if at not in self.state.messages)

    def close(self) -> None:
        """Sync and close the log, and release the lock, without a flush. May be called twice."""
        with Uninterrupted():
            self._close()

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if os.getpid() != self._pid:
            return
        with self._relief_lock:
            self._relief.notify_all()
        try:
            if self._failure is None:
                with contextlib.suppress(StorageError):  # without it, the next open takes longer
                    self._checkpoint([])
            with self.flush_lock, Uninterrupted(), self.commit_lock:
                self.log.close()
                self.publish()
        finally:
            # All parts are closed, even if closing one of them raises an error.
            with contextlib.ExitStack() as parts:
                parts.callback(self._medium.close)
                parts.callback(self.env.files.close)
                parts.callback(self._medium.lock.release)
                parts.callback(self._publisher.stop)

    @property
    def store_id(self) -> str:
        return self.state.store_id

    @property
    def memory_limit_bytes(self) -> int:
        return self.options.memory_limit_bytes

    @property
    def closed(self) -> bool:
        return self._closed

    def check_open(self) -> None:
        """Raise StorageError if the store is closed or this is a forked child."""
        check_in_use(self.root_path, self._closed, self._pid)

    def check_writable(self) -> None:
        """Check that the store can take writes.

        Raises: StorageError if the store is closed, this process is a forked child, an earlier
                write failed, or the store's folder was moved or replaced.
        """
        self.check_open()
        if isinstance(self._failure, FencedError):
            raise FencedError(
                f"this process is no longer the writer of the store ({self._failure}): connect() again",
                path=self.root_path,
            )
        if self._failure is not None:
            raise StorageError(
                f"the store takes no more writes because an earlier write failed ({_reason(self._failure)}): close it "
                "and connect() again to see what is durable",
                path=self.root_path,
            ) from self._failure
        self.env.files.check_bound()

    @property
    def is_fenced(self) -> bool:
        """Whether another process became the writer, and this store has noticed."""
        return isinstance(self._failure, FencedError) or isinstance(self.log.failure, FencedError)

    def poison(self, error: BaseException) -> None:
        """Refuse writes and flushes until the store is opened again. error: the reason."""
        if self._failure is None:
            self._failure = error
            logger.error("the store takes no more writes: %s", _reason(error))
            with self._relief_lock:  # wake writers that wait for memory
                self._relief.notify_all()

    @contextlib.contextmanager
    def _poisoned_by_errors(self) -> Iterator[None]:
        """Context manager for syncs: after an error, the store refuses writes.

        Ctrl-C does not count as an error: the log still works, and its next sync covers the same
        records.
        """
        try:
            yield
        except Exception as error:
            self.poison(error)
            raise

    # ── root

    @property
    def root(self) -> Root:
        return self._root

    def view(self) -> tuple[Root, int]:
        """Return the root and the published timestamp, which is the newest moment to read.

        The timestamp is read before the root. So the root has all published batches, because later
        roots keep the data of earlier ones.
        """
        self.check_open()
        if isinstance(self._failure, FencedError):
            raise FencedError(
                f"this process is no longer the writer of the store {self.root_path!r}, and cannot see later "
                f"changes ({self._failure}): close it and connect() again",
                path=self.root_path,
            )
        published = self.marks.published
        root = self._root
        # A root with a greater `floor` (T4) is durable when it is installed, so a reader may read
        # it before its moment is published.
        return root, max(published, root.floor)

    def install(self, root: Root) -> None:
        """Make `root` the store's present state (its root). Only this method does so.

        The caller must hold the commit lock.
        """
        assert self.commit_lock.held(), "R7: roots are swapped under the commit lock"
        self._root = root
        self._roots.add(root)

    def transact(
        self, change: CatalogChange, root_at: Callable[[int], Root], *, forget_log: bool = False
    ) -> None:
        """Commit a change of the catalogue, and install the new root (the store's state in memory).

        The change is one record of the log, after all batches that it depends on. The call returns
        when the record is synced. The caller must hold the commit lock.

        root_at:    returns the new root for the new version.
        forget_log: also mark as garbage those log segments whose rows are all in files. False: keep
                    all segments.
        Raises: StorageError if the log cannot be written. Then nothing changed, unless the error's
                `outcome` is "unknown". After any other exception the store refuses writes: the
                change may be durable, so the files that it names must not be removed.
        """
        assert self.commit_lock.held(), "R7: roots are swapped under the commit lock"
        after = root_at(self.state.version + 1)
        dropped = self._forget_log(change, after) if forget_log else []
        change.timestamp = max(change.timestamp, self.clock.latest)
        known = self.state.committed_keys
        change.drop_committed_keys += keys_to_forget(
            {key: physical_us(entry.timestamp) for key, entry in known.items()}, self.clock.now_us()
        )
        mine = {key.key for key in change.committed_keys}
        change.committed_keys += [
            found for key, found in self._keys.items() if key not in known and key not in mine
        ]
        self._change_messages(change, after)
        before = self.state
        try:
            self.state = self._commit(change)
            self._medium.leases.note_version(self.state.version)
            self._keys.clear()
            self._messages.clear()
            self.install(after)
            self.log.drop(dropped)
            # All applied batches are durable now: in the synced log, or as files in the catalogue.
            self.marks.advance_published(self.marks.applied)
            if self._memory_bytes:
                self._measure_memory(after)
            self._press()  # a merge that kept the log may have ended
            self.changed.set()
            with self._relief_lock:
                self._relief.notify_all()
        except BaseException as error:
            # If the state is a new one, the error was raised after the commit, for example by
            # Ctrl-C.
            refused = isinstance(error, Error) and getattr(error, "outcome", None) != "unknown"
            if not refused or self.state is not before or isinstance(error, FencedError):
                self.poison(error)
            raise
        self.publish(durably=True)

    def _change_messages(self, change: CatalogChange, after: Root) -> None:
        """Add commit messages that are only in the log to `change`; drop messages of old commits.

        after: the root after the change. Its tables' history determines which commits are old.
        """
        known = self.state.messages
        new = [message for at, message in self._messages.items() if at not in known] + change.put_messages
        if not known and not new:
            return
        entries = [table.entry for table in after.every_table()]
        oldest = min(
            (max(self.history_cut(entry), entry.created) for entry in entries), default=self.clock.latest
        )
        gone = set(messages_to_forget({**known, **{message.id: message for message in new}}, oldest))
        change.put_messages = [message for message in new if message.id not in gone]
        change.drop_messages = sorted(gone & known.keys())

    def _commit(self, change: CatalogChange) -> CatalogState:
        """Log and sync `change`, apply it to the catalogue, and return the new catalogue."""
        state = apply(self.state, change)
        self.log.sync(self.log.append_change(ChangeRecord(encode_change(change, state.version))))
        return state

    def trim_log(self) -> None:
        """Make all segments of the log garbage, if all rows are in files and this is worthwhile.

        It is worthwhile in two cases: a batch was logged since the log was last trimmed, or the log
        has more bytes than the greater of `log_limit_bytes` and `CHANGES_MAX_BYTES`. Otherwise do
        nothing.
        Raises: the errors of `transact`.
        """
        with Uninterrupted(), self.commit_lock:
            root = self._root
            due = self.log.appended.timestamp > self._trimmed or (
                self.log.size_bytes > max(self.options.log_limit_bytes, CHANGES_MAX_BYTES)
            )
            if due and root.memory_timestamp_min() is None and self._replayed_to is None:
                self.transact(CatalogChange(), root.at_version, forget_log=True)

    def _forget_log(self, change: CatalogChange, after: Root) -> list[int]:
        """Add the oldest segments, if they have no unflushed rows, to `change` as garbage.

        after: the root after the change.
        Returns: the numbers of these segments.
        """
        anchor = after.memory_timestamp_min()
        if self._replayed_to is not None:  # later records are only in the log
            anchor = self._replayed_to + 1 if anchor is None else min(anchor, self._replayed_to + 1)
        if anchor is None:
            self.log.roll()
            self._trimmed = self.log.appended.timestamp
        gone = []
        for segment in self.log.segments():
            if not segment.closed or (anchor is not None and segment.timestamp_max >= anchor):
                break
            gone.append(segment.number)
            change.garbage.append(layout.relative(self.root_path, segment.path))
        if gone:
            change.wal_start = gone[-1] + 1
        return gone

    # ── log and publishing

    def note_applied(
        self, timestamp: int, nbytes: int, key: CommittedKey | None, message: str | None = None
    ) -> None:
        """Record that a logged batch is now in memory. The caller must hold the commit lock.

        nbytes:       the number of bytes of memory that the batch takes.
        key, message: the batch's idempotency key and commit message, if any.
        """
        self.marks.advance_applied(timestamp)
        self._memory_bytes += nbytes
        if self._memory_bytes - self._measured_bytes > self.options.memory_limit_bytes // MEASURE_SHARE:
            self._measure_memory(self._root)
        if key is not None:
            self._keys[key.key] = key
        if message is not None:
            self._messages[timestamp] = CommitMessage(timestamp, message)
        if self.options.durability != "commit":
            self.marks.advance_published(timestamp)
        self._press()

    def _press(self) -> None:
        """Wake the background flush if memory or the log is full enough for a flush."""
        if (
            self._memory_bytes > self.options.memory_limit_bytes // 2
            or self.log.size_bytes > self.options.log_limit_bytes
        ):
            self.pressure.set()

    def note_committed(self, timestamp: int) -> None:
        """Publish a batch whose rows were committed as files, and not through the log.

        The present root has these files already. The caller must hold the commit lock.
        """
        self.marks.advance_applied(timestamp)
        self.marks.advance_published(timestamp)
        self.publish()

    def finish(self, ticket: Ticket) -> None:
        """Wait until the batch of `ticket` is visible, and as durable as `durability` says.

        Call it without a lock. Raises: StorageError(outcome="unknown") if the sync failed.
        """
        if ticket.log_offset is None:
            return
        with Uninterrupted():
            with self._poisoned_by_errors():
                if self.options.durability == "commit":
                    self.log.sync(ticket.log_offset)
                else:
                    self.log.write_pending()
            self.marks.advance_published(self.log.synced.timestamp)
            self.publish()

    def log_sync_all(self) -> None:
        """Sync all appended records. Raises: StorageError(outcome="unknown")."""
        with Uninterrupted():
            with self._poisoned_by_errors():
                self.log.sync()
            self.marks.advance_published(self.log.synced.timestamp)

    def sync_if_due(self) -> float | None:
        """Sync batches that have waited long enough, for durability "group".

        Returns: the seconds until the next sync is due; None: no batch waits.
        Raises: StorageError(outcome="unknown").
        """
        with self._poisoned_by_errors():
            return self.log.sync_if_due()

    def publish(self, *, durably: bool = False) -> None:
        """Write the position record, which shows readers and the next open how far the log goes.

        durably: also sync the record.
        """
        if self._replayed_to is None:  # not during the replay, when published batches are missing
            self._publisher.publish(self._position, durably=durably)

    def _position(self) -> PositionRecord:
        # With durability "group" and "os", other processes see a batch as soon as the operating
        # system has its record.
        mark = self.log.synced if self.options.durability == "commit" else self.log.written
        return PositionRecord(
            mark.position,
            min(self.marks.published, max(mark.timestamp, self.state.timestamp_max)),
            self.state.version,
            synced=self.log.synced.offset >= mark.offset,
            store_id=self.state.store_id,
        )

    def history_cut(self, entry: TableEntry) -> int:
        """Return the timestamp before which history may be discarded now; 0: keep all."""
        cut = oldest_readable(entry, self._publisher.shown, self.clock.now_us())
        pinned = self.pins.oldest()
        return cut if pinned is None else min(cut, pinned)

    def committed(self, key: str) -> CommittedKey | None:
        """Return the batch that was committed with this idempotency key; None: no such batch."""
        return self._keys.get(key) or self.state.committed_keys.get(key)

    def messages(self) -> Mapping[int, CommitMessage]:
        """Return the commit messages by timestamp.

        If called after `view`, the result has the messages of all commits in that view.
        """
        pending = dict(self._messages)  # before `state`, because `transact` moves messages there
        return {**self.state.messages, **pending}

    # ── memory

    @property
    def memory_bytes(self) -> int:
        """The approximate size of the MemRowSets and DeltaMemStores."""
        return self._memory_bytes

    def _measure_memory(self, root: Root) -> None:
        self._memory_bytes = self._measured_bytes = root.memory_bytes()

    def memory_is_full(self) -> bool:
        """Whether writes must wait for a flush: unflushed rows take 3/4 of the memory limit."""
        return self._memory_bytes >= self.options.memory_limit_bytes * 3 // 4

    def log_is_full(self) -> bool:
        """Whether writes must wait until a flush shortens the log."""
        share = LOG_FULL_SHARE_MERGING if self.reservations.any_holds_deltas() else LOG_FULL_SHARE
        if self.log.size_bytes < share * self.options.log_limit_bytes or self._paused:
            return False
        return self._root.memory_timestamp_min() is not None  # without rows a flush does not help

    def pause(self, paused: bool) -> None:
        """Tell the store whether background work is paused.

        While it runs, writes wait if the log is too long, until a background flush has shortened
        the log. During a pause there is no such flush, so writes do not wait.
        """
        with self._relief_lock:
            self._paused = paused
            self._relief.notify_all()

    def wait_for_room(self) -> None:
        """Wait until a background flush has made enough space in memory and in the log for writes.

        Raises: StorageError after 30 seconds.
        """
        self.pressure.set()
        with self._relief_lock:
            if not self._relief.wait_for(
                lambda: (
                    not (self.memory_is_full() or self.log_is_full())
                    or self._failure is not None
                    or self._closed
                ),
                WAIT_FOR_ROOM_S,
            ):
                what = (
                    f"{self._memory_bytes / 1e6:.0f} MB in memory wait for a flush, which is three quarters of "
                    "memory_limit"
                    if self.memory_is_full()
                    else f"{self.log.size_bytes / 1e6:.0f} MB of the log wait for a flush"
                )
                raise StorageError(
                    f"{what}, and no flush finished within {WAIT_FOR_ROOM_S:.0f} s: check the disk and "
                    "db.maintenance.status(), or raise memory_limit"
                )

    # ── files

    def path(self, relative: str) -> str:
        """Return the absolute path of a path relative to the store's folder."""
        return os.path.join(self.root_path, relative)

    def tablet_directory(self, tablet_id: int) -> str:
        """Create the tablet's folder if it is missing. Return its path relative to the store's."""
        relative = layout.tablet_directory(tablet_id)
        self.env.files.make_dirs(self.path(relative))
        return relative

    def new_data_path(self, tablet_id: int, number: int, kind: str) -> str:
        """Create the tablet's folder if it is missing. Return the path of a new file in it.

        See `store_folder.new_data_path`.
        """
        self.tablet_directory(tablet_id)
        return layout.new_data_path(self.env, tablet_id, number, kind)

    def allocate(self, what: str) -> int:
        """Return a new id. what: "tablet", "rowset" or "delta"."""
        return next(self._ids[what])

    def new_memory(self, table: TableState) -> MemRowSet:
        return MemRowSet(table.codec, table.schema)

    def open_delta(self, entry: DeltaEntry) -> DeltaFile:
        return DeltaFile.open(self.env.files, self.root_path, entry, self.cache)

    def open_part(self, entry: PartEntry) -> Part:
        return Part.open(self.env.files, self.root_path, entry, self.cache)

    def adopt_rowset(self, written: WrittenRowSet, schema: Schema) -> tuple[DiskRowSet, list[DeltaEntry]]:
        """Open a rowset that was just written. Also return the entries of its delta files."""
        entries = []
        if written.undo is not None and written.undo_path is not None:
            number = self.allocate("delta")
            entries.append(delta_entry(number, written.meta.id, written.undo_path, written.undo))
        rowset = open_rowset(
            self.env, self.root_path, RowSetEntry.from_meta(written.meta), entries, self.cache, schema
        )
        return rowset, entries

    def sync_directories(self, paths: Iterable[str]) -> None:
        """Make the names of these new files durable. Several folders are synced at once."""
        directories = {self.path(os.path.dirname(path)) for path in paths}
        each(self.env.files, self.env.files.sync_dir, sorted(directories))

    def discard_files(self, paths: Iterable[str]) -> None:
        """Remove the files of failed work. If this fails, the next open removes them.

        Files that the catalogue names are kept: the error may have come after the commit, for
        example a delayed Ctrl-C. After a commit with unknown outcome nothing is removed, because
        the commit may be durable and name the files.
        """
        with Uninterrupted(), self.commit_lock:
            if self._failure is not None:
                return
            named = {*self.state.files(), *self.state.garbage}
        for path in paths:
            if path in named:
                continue
            with contextlib.suppress(Error):
                self.env.files.unlink(self.path(path), missing_ok=True)

    def collect_garbage(self) -> int:
        """Delete unneeded files that no scan or reader uses, and return their number.

        First remove dropped tables and range partitions that no readable moment needs any more.
        """
        with self._collect_lock:
            self.purge_expired()
            return self._collect_garbage()

    def _collect_garbage(self) -> int:
        with Uninterrupted(), self.commit_lock:
            self.check_writable()
            garbage = dict(self.state.garbage)
        self._checkpoint([path for path in garbage if layout.is_log(path)])
        # P2: leases are read after the changes that made the garbage.
        leased = self._medium.leases.oldest_needed()
        self._medium.remove_orphans(self._state_as_writer)
        if not garbage:
            return 0
        with Uninterrupted(), self.commit_lock:  # no root may be installed during the iteration
            mine = min((root.version for root in self._roots), default=self.state.version)
        oldest = mine if leased is None else min(mine, leased)
        # This process does not read log segments, so only leases keep them.
        of_log = {path: version for path, version in garbage.items() if layout.is_log(path)}
        of_data = {path: version for path, version in garbage.items() if path not in of_log}
        paths = [*collectable(of_data, oldest), *collectable(of_log, leased)]
        for path in paths:
            self.env.files.unlink(self.path(path), missing_ok=True)
        if paths:
            with Uninterrupted(), self.commit_lock:
                root = self._root
                self.reserve.use(lambda: self.transact(CatalogChange(collected=paths), root.at_version))
        return len(paths)

    def keepers(self, garbage: Collection[str]) -> list[str]:
        """Return texts that name who still uses one of these garbage files, for messages."""
        state, leased = self.state, self._medium.leases.oldest_needed()
        versions = [state.garbage[path] for path in garbage if path in state.garbage]
        with Uninterrupted(), self.commit_lock:
            mine = min((root.version for root in self._roots), default=state.version)
        found = []
        if any(mine < version for version in versions):
            found.append("scans, views or snapshots of the process that writes")
        if leased is not None and any(leased < version for version in versions):
            found.append(self._medium.leases.holders)
        return found

    def renew_checkpoint(self) -> None:
        """Write a checkpoint, also if it is not due. Raises: StorageError."""
        with self._collect_lock:
            self.write_checkpoint()

    def _state_as_writer(self) -> CatalogState:
        """Log an empty change, to prove that this process is the writer. Return the catalogue.

        Raises: FencedError.
        """
        with Uninterrupted(), self.commit_lock:
            self.transact(CatalogChange(), self._root.at_version)
            return self.state

    def _checkpoint(self, unneeded: Collection[str]) -> None:
        """Write a checkpoint if it is due.

        unneeded: segments of the log whose batches are all in data files. Because they can be deleted
                  after a checkpoint, they make one due.
        """
        if self._medium.checkpoints.is_due(unneeded):
            self.write_checkpoint()

    def write_checkpoint(self) -> None:
        """Write the present catalogue as a checkpoint. Raises: StorageError.

        Only one thread at a time may call it.
        """
        checkpoints = self._medium.checkpoints
        with Uninterrupted(), self.commit_lock:
            state, border = self.state, checkpoints.border()
            oldest = self._root.memory_timestamp_min()
        checkpoints.write(state, border, oldest)

    # ── tables

    def forget_calls(self, keys: Iterable[str]) -> None:
        """Forget the idempotency keys of finished calls that other processes sent to this writer.

        The writer keeps such a key so that a repeated call does not run twice. The senders have the
        results of these calls, so they will not repeat them. Other keys are ignored.
        """
        with Uninterrupted(), self.commit_lock:
            for key in filter(is_call_key, keys):
                self._keys.pop(key, None)

    def change_once(self, key: str | None, change: Callable[[], _Made]) -> _Made | None:
        """Call `change` once: if the idempotency key was recorded before, do nothing.

        key:     recorded together with the change of the catalogue; None: always call `change`.
        change:  calls `transact` at most once. It is called under the commit lock.
        Returns: the result of `change`; None if the key was recorded before.
        """
        with Uninterrupted(), self.commit_lock:
            if key is None:
                return change()
            self.check_writable()
            if self.committed(key) is not None:
                return None
            self._keys[key] = CommittedKey(key, self.clock.latest)
            try:
                return change()
            finally:
                self._keys.pop(key, None)  # `transact` has recorded it

    def drop_tables(self, names: Collection[str], *, purge: bool) -> None:
        """Drop tables at one moment.

        purge:  True: remove the tables and their history at once. False: they can be restored until
                their history ends.
        Raises: TableNotFoundError; then no table is dropped.
        """

        def drop() -> None:
            tables = [self._root.table(name) for name in dict.fromkeys(names)]
            change, after = self.dropping(tables, self.stamp(), purge=purge)
            self.transact(change, after.at_version, forget_log=bool(change.drop_tables))

        with Uninterrupted(), self.commit_lock:
            self.check_writable()
            self.reserve.use(drop)

    def dropping(
        self, tables: Collection[TableState], timestamp: int, *, purge: bool
    ) -> tuple[CatalogChange, Root]:
        """Return a change of the catalogue that drops these tables, and the root after it.

        The caller must hold the commit lock.

        purge: True: purge all of these tables at once. False: purge only the tables without history
               at once; keep the tables with history until their history ends.
        """
        gone = {table.id for table in tables if purge or _has_no_history(table.entry)}
        change, after = purging_tables(self.state, gone, timestamp), self._root
        for table in tables:
            if table.id in gone:
                after = after.without_table(table.id, after.version)
                continue
            entry = replace(table.entry, drops=(*table.entry.drops, timestamp))
            change.put_tables.append(entry)
            after = after.with_table(replace(table, entry=entry))
        return change, after

    def undrop_table(self, table_id: int, new_name: str) -> None:
        """Restore a dropped table as `new_name`. Raises: TableNotFoundError, TableExistsError."""
        with Uninterrupted(), self.commit_lock:
            self.check_writable()
            root = self._root
            table = root.dropped.get(table_id)
            if table is None:
                raise TableNotFoundError("the dropped table was purged before it could be brought back")
            if new_name in root.by_name:
                raise TableExistsError(
                    f"cannot undrop table {table.name!r} as {new_name!r}: a table with this name exists; pass "
                    "another new_name"
                )
            timestamp = self.stamp()
            entry = replace(table.entry, name=new_name, drops=(*table.entry.drops, timestamp))
            change = CatalogChange(timestamp=timestamp, put_tables=[entry])
            undropped = replace(table, entry=entry)
            self.transact(change, lambda version: root.with_table(undropped, version))

    def purge_dropped(self, name: str | None) -> int:
        """Remove dropped tables with this name, and dropped ranges of the table with this name.

        name: None: all tables.
        Returns: the size of the removed files in bytes.
        """
        freed = 0

        def purge() -> None:
            nonlocal freed
            root = self._root
            dropped = [table for table in root.dropped.values() if name in (None, table.name)]
            if name is not None and not dropped and name not in root.by_name:
                raise TableNotFoundError(
                    f"no table and no dropped table is called {name!r}: pass the name of a dropped table, or of a "
                    "table with dropped ranges"
                )
            freed = sum(dropped_bytes(table) for table in dropped)
            for table in [table for table in root.tables.values() if name in (None, table.name)]:
                freed += dropped_bytes(table)
                self._purge_ranges(table, table.dropped)
            if dropped:
                self._purge_tables([table.id for table in dropped])

        with Uninterrupted(), self.commit_lock:
            self.check_writable()
            self.reserve.use(purge)
        return freed

    def purge_expired(self) -> None:
        """Remove dropped tables and ranges that no readable snapshot needs."""

        def purge() -> None:
            root = self._root
            cuts = {table.id: self.history_cut(table.entry) for table in root.every_table()}
            tables = [table.id for table in root.dropped.values() if table.entry.dropped <= cuts[table.id]]
            for table in root.tables.values():
                tablets = [tablet for tablet in table.dropped if tablet.entry.dropped <= cuts[table.id]]
                self._purge_ranges(table, tablets, cuts[table.id])
            if tables:
                self._purge_tables(tables)

        with Uninterrupted(), self.commit_lock:
            self.check_writable()
            if self._root.dropped or any(table.dropped for table in self._root.tables.values()):
                self.reserve.use(purge)

    def _purge_ranges(self, table: TableState, tablets: Sequence[TabletState], cut: int = 0) -> None:
        """Remove these dropped tablets. Record that history before `cut` is discarded.

        cut: 0: no history is discarded.
        """
        if not tablets:
            return
        entry = replace(table.entry, purged=(*table.entry.purged, *purged_ranges(tablets)))
        if cut:
            entry = replace(entry.without_past(cut), history_start=max(cut, entry.history_start))
        change = CatalogChange(timestamp=self.clock.latest, put_tables=[entry])
        numbers = {tablet.id for tablet in tablets}
        purging_tablets(self.state, numbers, change)
        kept = tuple(tablet for tablet in table.dropped if tablet.id not in numbers)
        after = self._root.with_table(replace(table, entry=entry, dropped=kept))
        self.transact(change, after.at_version, forget_log=True)

    def _purge_tables(self, table_ids: Collection[int]) -> None:
        change = purging_tables(self.state, table_ids, self.stamp())
        after = self._root
        for table_id in table_ids:
            after = after.without_table(table_id, after.version)
        self.transact(change, after.at_version, forget_log=True)

    # ── tags

    def tags(self) -> Mapping[str, TagEntry]:
        """Return the tags by name."""
        return self.state.tags

    def tag(self, name: str, at: int | None) -> TagEntry:
        """Create a tag, which keeps the history since its moment.

        at: a published timestamp; None: now.
        Raises: InvalidArgumentError for a name that exists; HistoryExpiredError; StorageError.
        """
        # For a moment in the past, no flush may run, because it might discard the history. A
        # running compaction stops if the tag needs what it discards (`compaction.lifecycle`).
        with contextlib.nullcontext() if at is None else self.flush_lock:
            with Uninterrupted(), self.commit_lock:
                self.check_writable()
                return self._tag(name, at)

    def _tag(self, name: str, at: int | None) -> TagEntry:
        known = self.state.tags
        if name in known:
            raise InvalidArgumentError(
                f"there is a tag {name!r} already, at timestamp {known[name].timestamp}: choose another name, or drop "
                "that tag first"
            )
        if len(known) >= TAGS_MAX:
            raise InvalidArgumentError(
                f"the store has {len(known):,} tags, which is the maximum: drop tags that are not needed"
            )
        timestamp = self.marks.applied if at is None else at
        entries = [table.entry for table in self._root.every_table() if table.entry.existed_at(timestamp)]
        for entry in entries:
            check_readable(entry, timestamp, self.marks.published, self.clock.now_us())
        tag = TagEntry(name, timestamp)
        change = CatalogChange(put_tags=[tag], put_tables=[tagged(entry, timestamp) for entry in entries])
        self._put_tables(change)
        return tag

    def drop_tag(self, name: str) -> None:
        """Drop a tag. History that only this tag needs may be discarded from now on.

        Raises: InvalidArgumentError for an unknown name; StorageError.
        """
        with Uninterrupted(), self.commit_lock:
            self.check_writable()
            known = self.state.tags
            if name not in known:
                raise InvalidArgumentError(f"cannot drop the tag {name!r}: {unknown_tag(name, known)}")
            left = [tag for tag in known.values() if tag.name != name]
            entries = (table.entry for table in self._root.every_table())
            change = CatalogChange(drop_tags=[name], put_tables=list(untagged(entries, left)))
            self.reserve.use(lambda: self._put_tables(change))

    def _put_tables(self, change: CatalogChange) -> None:
        """Commit a change of tags and of catalogue entries of tables, and install the new root."""
        after = self._root
        for entry in change.put_tables:
            table = after.any_table(entry.id)
            assert table is not None, "the entry is of a table of this root"
            after = after.with_table(replace(table, entry=entry))
        self.transact(change, after.at_version)

    def stamp(self) -> int:
        """Return a new timestamp for a change of the catalogue. Call it under the commit lock.

        From now on, the timestamps of all other commits are later.
        """
        timestamp = self.clock.next()
        self.marks.advance_applied(timestamp)
        return timestamp

    def stats(self) -> dict[str, Any]:
        """Return counters of the whole store."""
        return {
            "version": self.state.version,
            "memory_bytes": self._root.memory_bytes(),
            "log_bytes": self.log.size_bytes,
            "garbage_files": len(self.state.garbage),
            "dropped_bytes": sum(map(dropped_bytes, self._root.every_table())),
            "throttled": 0 if self.objects is None else self.objects.throttled,
            "cache_bytes": self.cache.size_bytes,
            "cache_hits": self.cache.hits,
            "cache_misses": self.cache.misses,
        }


def _has_no_history(entry: TableEntry) -> bool:
    return entry.history_us == 0 and not entry.tagged


def _reason(error: BaseException) -> str:
    """Return the error's message, or its class if the message is empty, as for Ctrl-C."""
    return str(error) or type(error).__name__
