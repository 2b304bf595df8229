"""Appends to the log of a store in a bucket, and commits several records with one request.

    thread A   append ─ sync ┄ creates slot 7 ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄ done
    thread B     append ─ sync ┄ creates slot 8 for B and C ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄ done
    thread C       append ─ sync ┄ waits for B ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄ done

`append` puts a record into memory and returns its offset. A thread that needs the record durable
calls `sync`. The thread waits for another thread that writes the record, or becomes the *leader* of
the next group. A leader takes all pending records, and creates the next slot (a numbered object of
the log) with them. Up to `GROUPS_IN_FLIGHT` groups are sent at once, each by its own leader. There
is no log thread.

Two marks move along the log:  appended ≥ synced.

Invariants
    G1  A record counts as synced when its group and all groups before it exist. So a new writer,
        which reads up to the first empty slot, finds every synced record.
    G2  Slot n + GROUPS_IN_FLIGHT is created only when slot n is known to exist.
    G3  Another process becomes the writer by creating a *seal* in a slot. If a seal is in slot n,
        this writer is *fenced*. No slot from n on becomes part of the log, so the records in these
        slots were not written. Groups before slot n are still acknowledged.
    G4  If the bucket does not answer a request, the writer is dead: it accepts no more records.
        Whether the group of this request and later groups were written is unknown until the log is
        opened again.
    G5  If a leader is interrupted (Ctrl-C), another thread sends the same bytes again, so no record
        is lost.

Checkpoints and deletion

    The *log start* of a checkpoint is the first slot that an open must read. A *note* is a record
    that announces a new checkpoint in the log. (`take_over` defines S1, and `follower` S2.)

    S3  The writer deletes slots only after the note of the checkpoint is in the log. A fenced
        writer cannot write a note, so it deletes nothing that the new writer needs. The log start
        of a checkpoint is never before the log start of an earlier checkpoint with a note.
    S4  A seal is never deleted.
    S5  After a new checkpoint, the writer keeps this one and the checkpoint before it, and deletes
        all others. It also deletes the slots before the log start of the older one. So the older
        checkpoint can replace the newer one if that is damaged.

Source: docs/design/object-storage.md, "The log".
"""

from __future__ import annotations

import bisect
import contextlib
import os
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from nyala.env import Bytes, Env
from nyala.errors import CorruptionError, FencedError, StorageError
from nyala.objects.base import Objects
from nyala.objects.settle import PATIENCE_S, persist, settle
from nyala.wal.format import crc32c
from nyala.wal.objects.follower import LiveSlot, LogFollower, list_checkpoints
from nyala.wal.objects.format import (
    GROUP_MAX_BYTES,
    LOG_PREFIX,
    WRITER_KEY,
    CheckpointHeader,
    Kind,
    Record,
    Slot,
    WriterHint,
    decode_group,
    encode_group,
    is_seal_size,
)

GROUPS_IN_FLIGHT: Final = 4

# How long a request for the hint is repeated, at most. The store works without the hint.
_HINT_PATIENCE_S: Final = 1.0

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class LogMark:
    """A position between two records: the number of bytes and the last timestamp before it."""

    offset: int
    timestamp: int


@dataclass(frozen=True)
class _Pending:
    """A record that waits to be written; no thread has put it into a group yet."""

    record: Record
    end: LogMark
    begins_group: bool  # it must not share a group with the record before it


@dataclass
class _Group:
    """Records that are written together, as one object of the log.

    leader: the thread that creates the object; None: no thread does.
    exists: whether the object has been created.
    """

    slot: Slot
    body: bytes
    crc: int
    start_offset: int
    end: LogMark
    leader: int | None
    exists: bool = False


class ObjectLog:
    """The writer of one store's log in a bucket; `take_over` returns it.

    appended: the end of the appended records. Its timestamp is the greatest of the log.
    synced:   the end of the durable and acknowledged records.

    Threads: `append` and `border` are called under the store's commit lock. Only one thread at a
    time calls `checkpoint`. Any thread may call everything else.
    """

    def __init__(
        self,
        env: Env,
        objects: Objects,
        follower: LogFollower,
        *,
        group_interval_s: float = 0.0,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Continue the log after the objects that `follower` has read.

        group_interval_s: the least time between two groups, which limits the number of requests.
                          The first record after a pause does not wait.
        patience_s:       how many seconds to repeat a request that gets no answer.
        """
        self._env = env
        self._objects = objects
        self._group_interval_s = group_interval_s
        self._patience_s = patience_s
        self.store_id: Final = follower.store_id
        self._start: Final = follower.position
        self._start_timestamp: Final = follower.timestamp
        # Guards all attributes below. All code uses `with self._guard`, not `with self._condition`:
        # after Ctrl-C the condition could stay locked.
        self._guard = threading.RLock()
        self._condition = threading.Condition(self._guard)
        self._full = threading.Event()  # the pending records fill a group
        self._pending: list[_Pending] = []
        self._pending_bytes = 0
        self._cut = False  # the next record begins a group
        self._taker: int | None = None  # the thread that takes the next group
        self._taken: list[_Pending] = []  # its records, until the group is complete
        self._taken_s = -group_interval_s
        self._next_slot = follower.position
        self._previous_crc = follower.previous_crc
        self._groups: dict[int, _Group] = {}  # by slot number, not yet synced
        self.appended = self.synced = LogMark(0, follower.timestamp)
        self._oldest_unsynced_s: float | None = None
        # The groups that could not be created: the offset before the group, and the error.
        self._failures: list[tuple[int, StorageError]] = []
        self._closed = False
        self._live = follower.live_slots()
        self._live_ends = [0] * len(self._live)  # offset after each live slot, ascending
        # The live slots that an open would read: from the newest checkpoint's log start on.
        self._replay_slots = len(self._live)
        self._replay_bytes = sum(live.size_bytes for live in self._live)
        self._checkpoint = follower.checkpoint  # the newest
        self._swept: str | None = None  # old slots up to this key were deleted
        self._since_us = env.clock.now_us()

    @property
    def failure(self) -> StorageError | None:
        """The error after which the writer accepts no more records; None while it works."""
        return self._failure_of(self.appended.offset + 1)

    @property
    def epoch_name(self) -> str:
        return self._start.epoch.name

    @property
    def size_bytes(self) -> int:
        """The number of bytes of the log that the next open of the store must read."""
        with self._guard:
            waiting = sum(len(group.body) for group in self._groups.values())
            return self._replay_bytes + waiting + self._pending_bytes

    @property
    def slot_count(self) -> int:
        """The number of objects of the log that the next open must read, one request each."""
        return self._replay_slots

    # ── appending

    def append(self, kind: Kind, timestamp: int, payload: Sequence[Bytes]) -> int:
        """Add a record in memory, and return the offset of its end, for `sync`.

        The buffers of the payload must not change until the record is synced.
        Raises: FencedError; StorageError if an earlier write failed. Then nothing was added.
        """
        record = Record.of(kind, timestamp, payload)
        with self._guard:
            self._check_alive()
            assert timestamp >= self.appended.timestamp, "O4: timestamps must not descend"
            return self._append(record)

    def _append(self, record: Record) -> int:
        end = LogMark(self.appended.offset + record.size_bytes, record.timestamp)
        try:
            if self._oldest_unsynced_s is None:
                self._oldest_unsynced_s = self._env.clock.monotonic_s()
            self._pending_bytes += record.size_bytes
            self._pending.append(_Pending(record, end, self._cut))
            self.appended, self._cut = end, False
            if self._pending_bytes >= GROUP_MAX_BYTES:
                self._full.set()
        except BaseException as error:  # the change may be half done
            interrupted = f"{type(error).__name__} interrupted a write"
            self._failures.append((self.synced.offset, StorageError(interrupted, outcome="unknown")))
            raise
        return end.offset

    def border(self) -> int:
        """Return the offset after the last appended record, for `checkpoint`.

        The next record begins a new object of the log. So no object has records from both sides of
        this offset.
        """
        with self._guard:
            self._cut = True
            return self.appended.offset

    def holds_before(self, border: int) -> bool:
        """Whether the log still has records before the offset `border`.

        Later checkpoints delete the objects with these records.

        border: a result of `border()`: the end of the log at the time of that call.
        """
        with self._guard:
            return bool(self._live_ends) and self._live_ends[0] <= border

    # ── syncing

    def sync(self, offset: int | None = None) -> None:
        """Wait until all records through `offset` are durable (default: everything appended).

        Raises: FencedError if another process has become the writer: records that are not synced
                were not written. StorageError with outcome "unknown" if the bucket did not answer.
        """
        try:
            while True:
                with self._guard:
                    if offset is None:
                        offset = self.appended.offset
                    assert offset <= self.appended.offset, f"no record was appended at offset {offset}"
                    while True:
                        if self.synced.offset >= offset:
                            return
                        failure = self._failure_of(offset)
                        if failure is not None:
                            raise _outcome(failure)
                        group = self._adopt()
                        if group is not None or self._may_take(offset):
                            break
                        self._condition.wait()
                    if group is None:
                        self._taker = threading.get_ident()
                if group is None:
                    group = self._take()
                self._create(group)
        except BaseException:
            self._resign()
            raise

    def sync_if_due(self, interval_s: float) -> float | None:
        """Sync if a record has been waiting for `interval_s` seconds.

        Returns: the seconds until the next call is due; None if no record waits.
        Raises: the errors of `sync`.
        """
        oldest_s = self._oldest_unsynced_s
        if oldest_s is None or self._failures:
            return None
        left_s = oldest_s + interval_s - self._env.clock.monotonic_s()
        if left_s > 0:
            return left_s
        self.sync()
        return None if self._oldest_unsynced_s is None else interval_s

    def _may_take(self, offset: int) -> bool:
        """Whether a thread that waits for `offset` may write the next group of records.

        The caller must hold `_guard`.
        """
        return (
            self._taker is None
            and not self._failures
            and len(self._groups) < GROUPS_IN_FLIGHT  # G2
            and bool(self._pending)
            and self._pending[0].end.offset <= offset
        )

    def _adopt(self) -> _Group | None:
        """Take over a group of records whose thread was interrupted, for example by Ctrl-C.

        Returns: the group, which the caller must then write; None if there is no such group.
        The caller must hold `_guard`.
        """
        for group in self._groups.values():
            if group.leader is None and not group.exists and self._failure_of(group.end.offset) is None:
                group.leader = threading.get_ident()
                return group
        return None

    def _take(self) -> _Group:
        """Encode the waiting records as the next object of the log.

        Only the thread whose id is in `_taker` may call this.
        """
        left_s = self._taken_s + self._group_interval_s - self._env.clock.monotonic_s()
        if left_s > 0:
            self._env.clock.wait(self._full, left_s)
        with self._guard:
            count, size = 1, self._pending[0].record.size_bytes
            for pending in self._pending[1:]:
                if pending.begins_group or size + pending.record.size_bytes > GROUP_MAX_BYTES:
                    break
                count, size = count + 1, size + pending.record.size_bytes
            # One statement, so that no interruption can leave a record in neither list (G5).
            self._taken, self._pending = self._pending[:count], self._pending[count:]
            self._taken_s = self._env.clock.monotonic_s()
            slot, taken = self._next_slot, self._taken
        body, crc = encode_group(
            self.store_id, slot, self._previous_crc, [pending.record for pending in taken]
        )
        start_offset = taken[0].end.offset - taken[0].record.size_bytes
        group = _Group(slot, body, crc, start_offset, taken[-1].end, threading.get_ident())
        next_slot = slot.next()
        with self._guard:
            self._groups[slot.n], self._taken, self._taker = group, [], None
            self._next_slot, self._previous_crc = next_slot, crc
            self._pending_bytes -= size
            if self._pending_bytes < GROUP_MAX_BYTES:
                self._full.clear()
            self._condition.notify_all()
            return group

    def _create(self, group: _Group) -> None:
        """Create the object of the log that has the records of `group`.

        Other threads create earlier and later objects of the log at the same time. A record is
        synced when its object and all earlier objects exist. So after it has created the object,
        this method updates `synced`.
        """
        try:
            other = settle(self._env, self._objects, group.slot.key, group.body, patience_s=self._patience_s)
            failure = None if other is None else self._fenced(group, other)
        except StorageError as error:
            failure = error
        with self._guard:
            if failure is not None:
                self._failures.append((group.start_offset, failure))
            else:
                group.exists, group.leader = True, None
                self._acknowledge()
            self._condition.notify_all()

    def _acknowledge(self) -> None:
        """Count records as synced, in order, up to the first object that does not exist yet."""
        while self._groups:
            n = min(self._groups)
            group = self._groups[n]
            if not group.exists:
                break
            del self._groups[n]
            self.synced = group.end
            self._live.append(LiveSlot(group.slot, len(group.body), group.end.timestamp, group.crc))
            self._live_ends.append(group.end.offset)
            self._replay_slots += 1
            self._replay_bytes += len(group.body)
        is_all = self.synced.offset == self.appended.offset
        self._oldest_unsynced_s = None if is_all else self._taken_s

    def _resign(self) -> None:
        """Let other threads write the records that this thread was writing before an error."""
        me = threading.get_ident()
        with self._guard:
            if self._taker == me:
                self._pending[:0] = self._taken
                self._taken, self._taker = [], None
            for group in self._groups.values():
                if group.leader == me:
                    group.leader = None
            self._condition.notify_all()

    # ── failures

    def _fenced(self, group: _Group, other: bytes) -> StorageError:
        """Return the error for an object that cannot be created, because its key exists already.

        other: the bytes of the object with this key. If it is a seal, another process has become
               the writer, and the error is a FencedError.
        """
        path = f"{self._objects.url}/{group.slot.key}"
        try:
            seal = decode_group(other, path, self.store_id, group.slot).seal
        except CorruptionError as error:
            return StorageError(f"the slot is taken: {error}", path=path)
        if seal is None:
            return StorageError(f"{path} is taken by a group that this process did not write", path=path)
        return FencedError(f"another process took over this store: {seal.describe()}", path=path)

    def _failure_of(self, offset: int) -> StorageError | None:
        """Return the error that prevents acknowledging the record that ends at `offset`.

        None: no such error. If there are several, a FencedError comes first: after it, the record
        was certainly not written.
        """
        failures = [failure for start_offset, failure in self._failures if start_offset < offset]
        fences = [failure for failure in failures if isinstance(failure, FencedError)]
        return next(iter([*fences, *failures]), None)

    def _check_alive(self) -> None:
        if self._closed:
            raise StorageError(
                f"the store {self._objects.url} is closed: connect() again", path=self._objects.url
            )
        failure = self.failure
        if isinstance(failure, FencedError):
            raise _outcome(failure)
        if failure is not None:
            raise StorageError(
                f"the log accepts no more records, because a write failed ({failure}); nothing of this call was "
                "written: close the database and open it again",
                path=failure.path,
            )

    # ── checkpoints

    def checkpoint(self, border: int, body: Bytes, memory_timestamp_min: int | None) -> None:
        """Write a checkpoint, and delete the slots and checkpoints that it replaces.

        border: an offset that `border()` returned.
        body:   the encoded state after all records before this offset.
        memory_timestamp_min: the timestamp of the oldest row that was in no file when `border()`
                was called; None: all rows were in files.
        Raises: the errors of `sync`; StorageError if the checkpoint could not be written, or if old
                objects could not be deleted. The next checkpoint deletes them.
        """
        with self._guard:
            self._check_alive()
        self.sync(border)
        before = self._checkpoint
        with self._guard:
            position, previous_crc, timestamp = self._before(border)
            log_start = self._log_start(position, memory_timestamp_min)
        header = CheckpointHeader(
            store_id=self.store_id,
            position=position,
            previous_crc=previous_crc,
            log_start=log_start,
            timestamp=timestamp,
            token=self._env.randomness.token_hex(8),
            body_length=memoryview(body).nbytes,
            body_crc=crc32c(body),
        )
        data = b"".join([header.encode(), body])
        self._persist(lambda: self._objects.put(header.key.key, data))
        with self._guard:
            self._check_alive()
            note = Record.of(Kind.NOTE, self.appended.timestamp, [header.encode()])
            end = self._append(note)
        self.sync(end)
        with self._guard:
            self._checkpoint = header
            replay = [live for live in self._live if live.slot.place >= log_start.place]
            self._replay_slots = len(replay)
            self._replay_bytes = sum(live.size_bytes for live in replay)
        if before is not None:
            self._sweep(before, header)

    def _log_start(self, position: Slot, memory_timestamp_min: int | None) -> Slot:
        """Return the slot of the first log object to read when a store is opened from a checkpoint.

        The checkpoint is the one that is being written. The result is never before the log start of
        the previous checkpoint.

        position: the slot of the first log object whose records the checkpoint does not include.
        memory_timestamp_min: the timestamp of the oldest row that was in no file; None: all rows
                were in files.
        """
        log_start = position
        if memory_timestamp_min is not None:
            found = (live.slot for live in self._live if live.timestamp_max >= memory_timestamp_min)
            log_start = min(position, next(found, position), key=lambda slot: slot.place)
        before = self._checkpoint
        return log_start if before is None else max(log_start, before.log_start, key=lambda slot: slot.place)

    def _before(self, border: int) -> tuple[Slot, int, int]:
        """Return where the log continues after a checkpoint that replaces the records before `border`.

        border: an offset that the method `border` returned. All records before it are synced.
        Returns: (slot, CRC, timestamp). The slot is that of the first object with records from
                `border` on. It may not exist yet. The CRC is that of the object before this slot.
                The timestamp is that of the last record before this slot.
        """
        last = self._live[bisect.bisect_right(self._live_ends, border) - 1]
        if last.slot.epoch != self._start.epoch:  # the seal before this epoch
            return self._start, last.crc, self._start_timestamp
        return last.slot.next(), last.crc, last.timestamp_max

    def _sweep(self, before: CheckpointHeader, newest: CheckpointHeader) -> None:
        """Delete objects of the log and checkpoints that are not needed any more.

        Seals, each of which ends one writer's part of the log, are kept.

        newest: the checkpoint that was just written.
        before: the previous checkpoint, which is kept. All other older checkpoints are deleted,
                also those of a fenced writer, or of a request that got no answer.
        """
        floor = before.log_start
        slots = self._persist(lambda: self._objects.list(LOG_PREFIX, self._swept))
        old = [info for info in slots if info.key < floor.key]
        gone = [info.key for info in old if Slot.parse(info.key) and not is_seal_size(info.size_bytes)]
        listed = list_checkpoints(self._env, self._objects, self._patience_s)
        gone += [key.key for key in listed if key < newest.key and key != before.key]
        if gone:
            self._persist(lambda: self._objects.delete(gone))
        if old:
            self._swept = old[-1].key
        with self._guard:
            count = sum(live.slot.place < floor.place for live in self._live)
            del self._live[:count], self._live_ends[:count]

    def _persist(self, request: Callable[[], _Result]) -> _Result:
        return persist(self._env, request, patience_s=self._patience_s)

    # ── the hint, and the end

    def announce(self, *, leaving: bool = False) -> None:
        """Write the object `writer` (the hint), which names the process that writes to the store.

        If a newer writer has replaced this process, do not overwrite the newer writer's hint. Errors
        are ignored.

        leaving: True: the hint says that this process writes no more. False: the hint says that
                 this process writes, unless the log is closed.
        """
        with contextlib.suppress(StorageError):
            data = self._objects.get(WRITER_KEY)
            found = None if data is None else WriterHint.decode(data)
            if found is not None and found.epoch > self.epoch_name:
                return
        hint = WriterHint(
            host=socket.gethostname(),
            pid=os.getpid(),
            epoch=self.epoch_name,
            since_us=self._since_us,
            alive_us=self._env.clock.now_us(),
            closed=leaving or self._closed,
        )
        with contextlib.suppress(StorageError):
            persist(
                self._env,
                lambda: self._objects.put(WRITER_KEY, hint.encode()),
                patience_s=min(self._patience_s, _HINT_PATIENCE_S),
            )

    def close(self) -> None:
        """Sync everything, and mark the object `writer` as closed: this process writes no more.

        After a failed write, nothing is synced or marked. May be called twice.
        Raises: the errors of `sync`.
        """
        with self._guard:
            if self._closed:
                return
            self._closed = True
        if not self._failures:
            self.sync()
            self.announce()


def _outcome(failure: StorageError) -> StorageError:
    """Return the error that a write or sync raises after `failure`, with advice for the user."""
    if isinstance(failure, FencedError):
        return FencedError(
            f"{failure}; nothing of this call was written. Connect again to take the store back, and let only "
            "one process keep the store open for writing",
            path=failure.path,
        )
    if failure.outcome == "unknown":
        return StorageError(
            f"the log could not be written ({failure}); whether the batch was written is known only after the next "
            "open: close the database and open it again",
            path=failure.path,
            outcome="unknown",
        )
    return StorageError(
        f"the log could not be written ({failure}); nothing of this call was written: close the database and open it "
        "again",
        path=failure.path,
    )
