"""The medium of a store in a bucket, for the writer. Log, checkpoints and leases are objects.

    open      takes over the store: seals the former writer's epoch, which is its part of the log.
              Then the former writer cannot write any more (`wal.objects.take_over`)
    commit    writes a group of records as one object (`wal.objects.writer`)
    publish   writes nothing, because readers read the log by themselves
    lock      does not exist; a writer that lost the store gets FencedError at its next write

The object `writer` is called the hint. It names the process that is the writer. The writer renews
the hint every few seconds. The log alone keeps the store safe from two writers. The hint only
prevents that a second `connect` takes over from a running writer by accident
(`RefuseLivingWriter`).

Source: docs/design/object-storage.md.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import re
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, TypeVar

from nyala.catalog.checkpoint import decode_checkpoint, encode_checkpoint
from nyala.catalog.loading import apply_changes, without_collector
from nyala.catalog.model import CatalogState
from nyala.catalog.object_leases import LEASE_FILES_PREFIX, ObjectLeases, bucket_time_us, is_living
from nyala.env import Env
from nyala.errors import CorruptionError, LockedError, StorageError
from nyala.objects.base import Objects
from nyala.objects.settle import PATIENCE_S
from nyala.tablet.jobs.staging import job_lease_of
from nyala.tablet.media.base import Medium
from nyala.tablet.state.store_folder import ANSWERS_PREFIX, DATA_NAME, INBOX_PREFIX, STAGING_NAME
from nyala.wal.format import LogOffset
from nyala.wal.objects.follower import Checkpoint, LogEntry, LogFollower, list_checkpoints, read_identity
from nyala.wal.objects.format import IDENTITY_KEY, WRITER_KEY, Epoch, Kind, WriterHint
from nyala.wal.objects.format import decode_checkpoint as decode_object
from nyala.wal.objects.take_over import check_clock, take_over
from nyala.wal.objects.writer import LogMark as ObjectMark
from nyala.wal.objects.writer import ObjectLog
from nyala.wal.position import LogPosition, PositionRecord
from nyala.wal.reader import SegmentInfo
from nyala.wal.record import ChangeRecord, LogRecord, decode_record, encode_change_record, encode_record
from nyala.wal.writer import GROUP_SYNC_INTERVAL_S, LogMark

logger = logging.getLogger("nyala.store")

_T = TypeVar("_T")

HEARTBEAT_S: Final = 5.0
_LEAVE_S: Final = 3.0
SILENT_MAX_US: Final = 15_000_000
"""A writer whose hint is older, by the bucket's clock, counts as dead."""

# How long a process waits for the hint of another one that has just become the writer.
_HINT_WAIT_S: Final = 3.0
_HINT_POLL_S: Final = 0.1

ORPHAN_AGE_US: Final = 24 * 3600 * 1_000_000
ORPHANS_FIRST_S: Final = 3600.0
ORPHANS_EVERY_S: Final = 24 * 3600.0
_OF_JOBS: Final = (f"{STAGING_NAME}/", LEASE_FILES_PREFIX, INBOX_PREFIX, ANSWERS_PREFIX)
# The names of objects that a store writes (O5).
_OF_STORE: Final = re.compile(
    rf"{DATA_NAME}/\d+/[0-9a-f-]+\.\w+(\.undo)?|{STAGING_NAME}/[0-9a-f-]+/.+"
    rf"|{LEASE_FILES_PREFIX}remote-[0-9a-f]+/.+|({INBOX_PREFIX}|{ANSWERS_PREFIX})[0-9a-f]+"
)
# A checkpoint is due when the log has grown by this many objects, or bytes, since the last one.
_SLOTS_MAX: Final = 256
_BYTES_MAX: Final = 8 << 20
# A smaller object of the log counts as this many bytes, because an open reads each object with a request of
# its own. So 2,048 small objects cause a flush, like 32 MB of log.
_SLOT_BYTES: Final = 16 << 10


def open_bucket(
    env: Env, objects: Objects, group_interval_s: float, guard: Callable[[Epoch], None] | None = None
) -> tuple[Medium, CatalogState, Iterator[LogRecord]]:
    """Become the writer of a store in a bucket.

    Returns the medium, the catalogue, and the batches to replay.

    group_interval_s: the least time between two objects that the log creates, in seconds.
    guard:  called before the take-over, with the newest epoch of the log. It may raise an error to
            refuse the take-over.
    Raises: StorageError, CorruptionError; errors of the guard. This process is then not the writer.
    """
    taken = take_over(env, objects, group_interval_s=group_interval_s, guard=guard)
    check_clock(env.clock.now_us(), taken.log.appended.timestamp)
    with without_collector():
        state = apply_changes(
            base_state(objects, taken.checkpoint, taken.log.store_id), changes(taken.entries)
        )
    medium = Medium(
        WriterHeartbeat(env, taken.log),
        BucketLog(taken.log),
        BucketPublisher(),
        NoReserve(),
        BucketCheckpoints(taken.log),
        ObjectLeases(env, objects, state.version),
        Orphans(env, objects).remove_if_due,
        objects,
        objects.close,
    )
    return medium, state, batches(taken.entries)


def base_state(objects: Objects, checkpoint: Checkpoint | None, store_id: str) -> CatalogState:
    """Return the catalogue of a checkpoint. `checkpoint` None: the catalogue of a new store."""
    if checkpoint is None:
        return CatalogState.empty(store_id, 0)
    path = f"{objects.url}/{checkpoint.header.key.key}"
    return decode_checkpoint(checkpoint.body.to_pybytes(), path, store_id)


def changes(entries: Sequence[LogEntry]) -> Iterator[ChangeRecord]:
    """Yield the changes of the catalogue among these log entries."""
    for entry in entries:
        if entry.kind == Kind.CHANGE:
            yield ChangeRecord(entry.payload.to_pybytes(), entry.timestamp, (entry.path, entry.offset))


def batches(entries: Sequence[LogEntry]) -> Iterator[LogRecord]:
    """Yield the batches among these log entries."""
    for entry in entries:
        if entry.kind == Kind.BATCH:
            yield decode_record(entry.payload, entry.timestamp, entry.path, entry.offset)


def living_writer(objects: Objects) -> WriterHint | None:
    """Return who writes to the store, from the object `writer`; None if the writer seems dead."""
    hint = _hint(objects)
    return hint if hint is not None and _left_us(objects, hint) else None


def _hint(objects: Objects) -> WriterHint | None:
    data = objects.get(WRITER_KEY)
    return None if data is None else WriterHint.decode(data)


def _left_us(objects: Objects, hint: WriterHint) -> int:
    """Return the microseconds until the writer counts as dead if it does not renew its hint.

    0: it counts as dead now, or it has closed the store.
    """
    if hint.closed:
        return 0
    now_us, written = bucket_time_us(objects), objects.head(WRITER_KEY)
    return 0 if written is None else max(0, SILENT_MAX_US - (now_us - written.modified_us))


_ADVICE: Final = (
    "open it here with read_only=True, or pass take_over=True; then that process can no longer write. If that process "
    "has ended, the store is free in {seconds} seconds: lock_timeout=20 waits"
)


class RefuseLivingWriter:
    """A guard for `open_bucket`: refuses to take over a store whose writer seems to be alive.

    A new writer first creates its epoch (its part of the log). A moment later it writes its hint,
    the object that names the writer. So if the log has a newer epoch than the hint, the guard waits
    for the new hint.
    """

    def __init__(self, env: Env, objects: Objects, advice: str = _ADVICE) -> None:
        """Read the hint (the object that names the writer) a first time.

        advice: the end of the error message, with advice for the user. "{seconds}" is replaced by
            the time until the writer counts as dead.
        Raises: LockedError if a writer seems to be alive.
        """
        self._env = env
        self._objects = objects
        self._advice = advice
        self._hint = self._look()

    def __call__(self, epoch: Epoch) -> None:
        """Check that the last writer, which created `epoch` (the newest part of the log), is dead.

        The hint is an object that names a writer. A living writer keeps renewing its hint. So a
        writer whose hint was not renewed is dead. The hint may be missing or name an earlier
        writer, because the last writer has not written its own hint yet. Then wait up to 3 seconds
        for the last writer's hint. Without this hint, the last writer counts as dead.

        Raises: LockedError if the writer seems to be alive.
        """
        deadline_s = self._env.clock.monotonic_s() + _HINT_WAIT_S
        while epoch.number and (self._hint is None or self._hint.epoch < epoch.name):
            if self._env.clock.monotonic_s() > deadline_s:
                return  # it died before it wrote its hint
            self._env.clock.sleep_s(_HINT_POLL_S)
            self._hint = self._look()

    def _look(self) -> WriterHint | None:
        hint = _hint(self._objects)
        left_us = 0 if hint is None else _left_us(self._objects, hint)
        if hint is not None and left_us:
            raise LockedError(
                f"process {hint.pid} on host {hint.host} writes to the store {self._objects.url!r}: close it there, "
                + self._advice.format(seconds=round(left_us / 1e6))
            )
        return hint


def count_records(env: Env, objects: Objects) -> int:
    """Check all checksums of the log, and return the number of its records. Reads the whole log.

    Raises: CorruptionError, StorageError.
    """
    identity = read_identity(env, objects)
    if identity is None:
        raise CorruptionError(
            "the object nyala.json, which marks the store, is missing: restore it",
            f"{objects.url}/{IDENTITY_KEY}",
        )
    return len(LogFollower(env, objects, identity).read_new().entries)


def damaged_checkpoints(env: Env, objects: Objects) -> Iterator[CorruptionError]:
    """Read all checkpoints, and yield an error for each damaged one.

    Raises: CorruptionError if the object `nyala.json` is damaged; StorageError.
    """
    identity = read_identity(env, objects)
    assert identity is not None, "call count_records first"
    for key in list_checkpoints(env, objects, PATIENCE_S):
        data, path = objects.get(key.key), f"{objects.url}/{key.key}"
        try:
            if data is not None:  # otherwise the writer has just deleted it
                _, body = decode_object(data, path, identity.store_id, key)
                decode_checkpoint(body.to_pybytes(), path, identity.store_id)
        except CorruptionError as error:
            yield error


class Orphans:
    """Removes orphans from a bucket: objects that the catalogue does not name.

    A writer that was killed or fenced during an upload leaves such objects.

    O1  An object is removed only if it is older than `ORPHAN_AGE_US` by the bucket's clock. The
        catalogue may soon name a younger object.
    O2  The catalogue is read after the objects are listed, so it names all listed objects in use.
    O3  Files of a job stay as long as the job's lease lives, even if they are old.
    O4  After the listing, this process proves that it is still the writer: it writes a record to
        the log. A fenced process has an old catalogue, and would delete files of the new writer.
    O5  Only objects that are named like a store's files are removed. A user may have another store
        below this store's prefix `data`.
    """

    def __init__(self, env: Env, objects: Objects) -> None:
        self._env = env
        self._objects = objects
        self._due_s = env.clock.monotonic_s() + ORPHANS_FIRST_S

    def remove_if_due(self, state: Callable[[], CatalogState]) -> int:
        """Remove orphans, at most once a day. Return how many were removed.

        state: a function that returns the catalogue. It first writes a record to the log, which
               fails if another process has become the writer.
        Cost: one LIST request for each 1,000 objects. Raises: FencedError, StorageError.
        """
        now_s = self._env.clock.monotonic_s()
        if now_s < self._due_s:
            return 0
        self._due_s = now_s + ORPHANS_EVERY_S
        infos = self._objects.list(f"{DATA_NAME}/")
        before_us = bucket_time_us(self._objects) - ORPHAN_AGE_US
        present = state()
        named = {*present.files(), *present.garbage}
        gone = [info.key for info in infos if info.modified_us < before_us and info.key not in named]
        gone += self._left_by_jobs(before_us)
        gone = list(filter(_OF_STORE.fullmatch, gone))
        if gone:
            self._objects.delete(gone)
            logger.info("removed %d files that no change names", len(gone))
        return len(gone)

    def _left_by_jobs(self, before_us: int) -> list[str]:
        """Return the keys of old objects that jobs, and calls between processes, left behind.

        before_us: objects that were last written before this time are old.
        """
        found: list[str] = []
        leases: dict[str, bool] = {}
        for under in _OF_JOBS:
            for info in self._objects.list(under):
                if info.modified_us < before_us:
                    lease = job_lease_of(info.key)
                    if lease is not None and lease not in leases:
                        leases[lease] = is_living(self._objects, lease)
                    if lease is None or not leases[lease]:
                        found.append(info.key)
        return found


class BucketLog:
    """The log of a store in a bucket, as a `StoreLog`. Threads: see `ObjectLog`."""

    def __init__(self, log: ObjectLog) -> None:
        self._log = log

    @property
    def appended(self) -> LogMark:
        return _mark(self._log.appended)

    @property
    def written(self) -> LogMark:
        return self.synced

    @property
    def synced(self) -> LogMark:
        return _mark(self._log.synced)

    @property
    def failure(self) -> StorageError | None:
        return self._log.failure

    @property
    def size_bytes(self) -> int:
        return max(self._log.size_bytes, self._log.slot_count * _SLOT_BYTES)

    def append(self, record: LogRecord) -> LogOffset:
        return LogOffset(self._log.append(Kind.BATCH, record.timestamp, encode_record(record)))

    def append_change(self, record: ChangeRecord) -> LogOffset:
        timestamp = self._log.appended.timestamp
        return LogOffset(self._log.append(Kind.CHANGE, timestamp, encode_change_record(record)))

    def sync(self, offset: int | None = None) -> None:
        self._log.sync(offset)

    def write_pending(self) -> None:
        """Do nothing: a record in a bucket's log is either in memory or durable."""

    def sync_if_due(self) -> float | None:
        return self._log.sync_if_due(GROUP_SYNC_INTERVAL_S)

    def segments(self) -> list[SegmentInfo]:
        """Return an empty list, because a log in a bucket has no segment files."""
        return []

    def roll(self) -> None:
        """Do nothing, because a log in a bucket has no segment files to close."""

    def cut(self) -> int:
        return self._log.border()

    def holds_before(self, mark: int) -> bool:
        return self._log.holds_before(mark)

    def drop(self, numbers: Sequence[int]) -> list[str]:
        assert not numbers, "a log of objects has no segments"
        return []

    def close(self) -> None:
        self._log.close()


def _mark(mark: ObjectMark) -> LogMark:
    return LogMark(LogOffset(mark.offset), LogPosition(0, 0), mark.timestamp)


class WriterHeartbeat:
    """A thread that renews the hint (the object that names the writer) until `release` is called.

    If the program ends without closing the store, the thread marks the hint as closed. So the next
    writer need not wait until this process counts as dead.
    """

    def __init__(self, env: Env, log: ObjectLog) -> None:
        self._env = env
        self._log = log
        self._stop = threading.Event()
        self._leaving = False
        self._thread = threading.Thread(target=self._run, name="nyala-heartbeat", daemon=True)
        self._thread.start()
        atexit.register(self._leave)

    def _run(self) -> None:
        while not self._env.clock.wait(self._stop, HEARTBEAT_S) and self._log.failure is None:
            self._log.announce()
        if self._leaving and self._log.failure is None:
            self._log.announce(leaving=True)

    def _leave(self) -> None:
        """End the thread when the program ends.

        Wait up to 3 seconds, in which the thread marks the hint (the object that names the writer)
        as closed.
        """
        self._leaving = True
        self._stop.set()
        with contextlib.suppress(RuntimeError):  # in a forked child, whose thread does not exist
            self._thread.join(_LEAVE_S)

    def release(self) -> None:
        """End the thread that shows other processes that this writer is alive.

        May be called twice.
        """
        atexit.unregister(self._leave)
        self._stop.set()
        with contextlib.suppress(RuntimeError):  # in a forked child, whose thread does not exist
            self._thread.join(HEARTBEAT_S)


class BucketPublisher:
    """Remembers the published timestamp, and writes nothing: readers read the log by themselves."""

    def __init__(self) -> None:
        self.shown = 0

    def publish(self, record: Callable[[], PositionRecord], *, durably: bool = False) -> None:
        self.shown = max(self.shown, record().timestamp)

    def stop(self) -> None:
        pass


class NoReserve:
    """The disk space reserve of a store in a bucket: empty, because a bucket is never full."""

    def use(self, action: Callable[[], _T]) -> _T:
        return action()

    def grow(self, data_bytes: int) -> None:
        pass

    def fill(self) -> bool:
        return True


class BucketCheckpoints:
    """Writes checkpoints to the log of a bucket. Only one thread at a time may use it."""

    def __init__(self, log: ObjectLog) -> None:
        self._log = log
        self._slots = self._bytes = 0  # number and bytes of the log's objects after the last checkpoint

    def is_due(self, unneeded: Collection[str]) -> bool:
        if self._log.failure is not None:
            return False
        slots, size = self._log.slot_count, self._log.size_bytes
        return slots - self._slots >= _SLOTS_MAX or size - self._bytes >= _BYTES_MAX

    def border(self) -> int:
        return self._log.border()

    def write(self, state: CatalogState, border: int, memory_timestamp_min: int | None) -> None:
        self._log.checkpoint(border, encode_checkpoint(state), memory_timestamp_min)
        self._slots, self._bytes = self._log.slot_count, self._log.size_bytes
