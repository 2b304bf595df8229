"""Appends records to the log, and makes the records of several threads durable with one sync.

    thread A   append ─ sync ─ writes and syncs group 1 ┄ done
    thread B     append ─ sync ┄ waits ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄ writes and syncs group 2 ┄ done
    thread C        append ─ sync ┄ waits ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄ waits ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄ done

`append` puts a record into memory and returns the log offset of its end. A thread that needs the
record durable calls `sync`. The first such thread becomes the leader: it takes all appended records
(a *group*), writes them with one call and syncs the file. Other threads wait. If the sync did not
cover their records, one of these threads leads the next group. There is no log thread.

Three marks move along the log:  appended ≥ written ≥ synced.

Invariants
    G1  A group is written only after the sync of the previous group. So `synced_through` in its
        headers is the end of the previous group. Exception: with durability "group" and "os",
        several writes may precede one sync. They count as one group with one `synced_through`.
    G2  A record counts as synced only if the name of its segment is durable too. So the writer
        syncs the folder after the first sync of a segment.
    G3  A segment is closed before the next one is created: everything is synced, then the footer is
        written and synced. A new writer never appends to an old segment; its first record starts a
        new one.
    G4  After a failed write or sync the writer is dead: it accepts no more records. The state of
        the disk is unknown until the log is recovered. Every thread that waits for an
        unsynced record gets an error with outcome "unknown".

Segments are not preallocated, because zeros at the end would look like a torn tail.
Source: group commit as in LevelDB's writer queue.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from nyala.env import AppendFile, Env, Reserve
from nyala.errors import StorageError
from nyala.wal.format import (
    FRAME_SIZE_BYTES,
    PAYLOAD_MAX_BYTES,
    SEGMENT_HEADER_SIZE_BYTES,
    SEGMENT_SIZE_BYTES,
    FrameHeader,
    FrameKind,
    LogOffset,
    SegmentHeader,
    crc32c,
    encode_footer,
    segment_name,
)
from nyala.wal.position import LogPosition
from nyala.wal.reader import Recovery, SegmentInfo
from nyala.wal.record import ChangeRecord, LogRecord, encode_change_record, encode_record

Durability: TypeAlias = Literal["commit", "group", "os"]

# Durability "group" promises a sync within 100 ms. A record waits half of that time; the other half
# is for waking the maintenance thread and for the sync.
GROUP_SYNC_INTERVAL_S: Final = 0.05

# `append` refuses a batch if less space would stay free. At that point the batch can still be
# rejected; when the leader writes, it is already applied in memory.
_FREE_SPACE_MIN_BYTES: Final = 128 << 10


@dataclass(frozen=True)
class LogMark:
    """A position between two records of the log, and the timestamp of the record before it."""

    offset: LogOffset
    position: LogPosition
    timestamp: int


@dataclass
class _Segment:
    """A segment that takes new records. Its file is created when the first group is written."""

    number: int
    start_offset: LogOffset
    end_offset: LogOffset  # after the appended records; start_offset if there are no records
    record_count: int = 0
    salt: int = 0
    file: AppendFile | None = None
    name_durable: bool = False

    @property
    def size_bytes(self) -> int:
        return self.end_offset - self.start_offset


@dataclass(frozen=True)
class _Entry:
    """A record that waits to be written, still without its header.

    The header says up to which offset the log is synced when the record is written. So the thread
    that writes the record creates the header at that time.
    """

    segment: _Segment
    kind: FrameKind
    end: LogMark
    ordinal: int
    payload: list[Any]
    payload_length: int
    payload_crc32c: int

    def header(self, salt: int, synced_through: LogOffset) -> bytes:
        return FrameHeader(
            kind=self.kind,
            salt=salt,
            log_offset=LogOffset(self.end.offset - self.payload_length - FRAME_SIZE_BYTES),
            synced_through=synced_through,
            timestamp=self.end.timestamp,
            payload_length=self.payload_length,
            payload_crc32c=self.payload_crc32c,
            ordinal=self.ordinal,
        ).encode()


class LogWriter:
    """The writer of one store's log in a folder.

    appended: the end of the appended records.
    written:  the end of the records that the operating system has. They survive the end of this
              process, but not a power cut.
    synced:   the end of the durable records.
    failure:  the error after which the writer accepts no more records; None while it works.

    Threads: `append` is called under the commit lock. Any thread may call everything else.
    """

    def __init__(
        self,
        env: Env,
        directory: str,
        recovery: Recovery,
        *,
        segment_size_bytes: int = SEGMENT_SIZE_BYTES,
        durability: Durability = "commit",
        reserve: Reserve | None = None,
    ) -> None:
        """Prepare to append to the log in the folder, and create the folder if it is missing.

        No file is created before the first record is written.

        recovery: the result of `recover` for the folder, after its `cut`.
        reserve:  reserved disk space, for records that were appended before the disk became full.
        """
        env.files.make_dirs(directory)
        self._env = env
        self._directory = directory
        self._segment_size_bytes = segment_size_bytes
        self.durability: Final = durability
        self._reserve = Reserve(env.files, directory) if reserve is None else reserve
        # Guards all attributes below. A leader sets `_leading` and releases the lock while it
        # writes and syncs. All code uses `with self._guard`, not `with self._condition`: after
        # Ctrl-C the condition could stay locked.
        self._guard = threading.RLock()
        self._condition = threading.Condition(self._guard)
        self._leading: int | None = None  # the id of the leading thread
        self.failure: StorageError | None = None
        self._closed = False
        self._pending: list[_Entry] = []
        self._pending_bytes = 0
        self._oldest_unsynced_s: float | None = None
        self._taken_s = 0.0
        self._store_id = recovery.store_id
        assert all(info.closed for info in recovery.segments), "G3"
        self._closed_segments = {info.number: info for info in recovery.segments}
        start_offset = recovery.start_offset
        self._segment = _Segment(recovery.next_segment, start_offset, start_offset)
        # The segment that the leader writes to. It is still the old one between `_begin_segment`
        # and the next write.
        self._written_segment = self._segment
        mark = LogMark(start_offset, LogPosition(recovery.next_segment, 0), recovery.timestamp_max)
        self.appended = self.written = self.synced = mark

    def segments(self) -> list[SegmentInfo]:
        """Return the segments that have a file and were not dropped, oldest first."""
        with self._guard:
            infos = sorted(self._closed_segments.values(), key=lambda info: info.number)
            number, file = self._written_segment.number, self._written_segment.file
            if file is not None:
                infos.append(SegmentInfo(number, file.path, self.written.timestamp, file.size_bytes, False))
            return infos

    @property
    def size_bytes(self) -> int:
        """The log's size on disk, plus the records that wait to be written."""
        with self._guard:
            return sum(info.size_bytes for info in self.segments()) + self._pending_bytes

    # ── writing

    def append(self, record: LogRecord) -> LogOffset:
        """Add a batch in memory, and return the log offset of its end, for `sync`.

        The record's arrays are copied. Timestamps must ascend.
        Raises: StorageError if an earlier write failed, the disk is full or the folder was moved;
        then nothing was added.
        """
        assert record.timestamp > self.appended.timestamp, "L2"
        return self._append("batch", record.timestamp, encode_record(record))

    def append_change(self, record: ChangeRecord) -> LogOffset:
        """Add a change of the catalogue, like `append`, with the timestamp of the last record."""
        return self._append("change", self.appended.timestamp, encode_change_record(record))

    def _append(self, kind: FrameKind, timestamp: int, payload: list[Any]) -> LogOffset:
        length = 0
        crc = 0
        for part in payload:
            length += len(part)
            crc = crc32c(part, crc)
        assert length <= PAYLOAD_MAX_BYTES, f"W6: a record of {length} bytes must not go through the log"
        self._env.files.check_bound()
        with self._guard:
            self._check_alive()
            self._check_space(length, kind)
            if not self._pending and self._segment.size_bytes >= self._segment_size_bytes:
                self._begin_segment()  # between two groups; the leader closes the old segment (G3)
            try:
                segment = self._segment
                if segment.record_count == 0:
                    segment.end_offset = LogOffset(segment.start_offset + SEGMENT_HEADER_SIZE_BYTES)
                segment.end_offset = LogOffset(segment.end_offset + FRAME_SIZE_BYTES + length)
                self.appended = LogMark(
                    segment.end_offset, LogPosition(segment.number, segment.size_bytes), timestamp
                )
                self._pending.append(
                    _Entry(segment, kind, self.appended, segment.record_count, payload, length, crc)
                )
                self._pending_bytes += FRAME_SIZE_BYTES + length
                segment.record_count += 1
                if self._oldest_unsynced_s is None:
                    self._oldest_unsynced_s = self._env.clock.monotonic_s()
            except BaseException as error:
                self.failure = _interrupted(error, self._directory)  # the change may be half done
                raise
            return self.appended.offset

    def sync(self, offset: int | None = None) -> None:
        """Wait until the log is durable through `offset` (default: through everything appended).

        The calling thread writes and syncs for other threads too, or waits for a thread that does.
        Raises: StorageError with outcome "unknown" if the write or sync failed. Then the writer
        accepts no more records.
        """
        try:
            while True:
                with self._guard:
                    if offset is None:
                        offset = self.appended.offset
                    assert offset <= self.appended.offset, f"no record was appended at log offset {offset}"
                    while self._leading is not None and self.failure is None and self.synced.offset < offset:
                        self._condition.wait()
                    if self.synced.offset >= offset:
                        return
                    self._check_outcome()
                    entries = self._take_pending()
                self._lead(entries, sync=True)
        except BaseException as error:
            self._resign(error)
            raise

    def write_pending(self) -> None:
        """Write all appended records to the file, but do not sync it.

        Then reader processes see the records, and the records survive the end of this process.
        Waits while a sync is running. Raises: the errors of `sync`.
        """
        try:
            with self._guard:
                self._wait_for_leader()
                if not self._pending:
                    return
                entries = self._take_pending()
            self._lead(entries, sync=False)
        except BaseException as error:
            self._resign(error)
            raise

    def sync_if_due(self) -> float | None:
        """Sync if a record has been waiting for `GROUP_SYNC_INTERVAL_S` seconds.

        The thread of `tablet.group_sync` calls this method.
        Returns: the seconds until the next call is due; None if no record waits for a sync.
        Raises: the errors of `sync`.
        """
        oldest_s = self._oldest_unsynced_s
        if self.durability == "os" or oldest_s is None or self.failure is not None:
            return None
        left_s = oldest_s + GROUP_SYNC_INTERVAL_S - self._env.clock.monotonic_s()
        if left_s > 0:
            return left_s
        self.sync()
        return None if self._oldest_unsynced_s is None else GROUP_SYNC_INTERVAL_S

    def roll(self) -> None:
        """Write and sync everything, and close the present segment file, so that it can be dropped.

        Raises: the errors of `sync`.
        """
        try:
            with self._guard:
                self._wait_for_leader()
                entries = self._take_pending()
                if self._segment.record_count:
                    self._begin_segment()  # no more records may go to the segment to be closed
            self._lead(entries, sync=True, close_segment=True)
        except BaseException as error:
            self._resign(error)
            raise

    def cut(self) -> int:
        """Close the present segment, and return the number of the next one."""
        self.roll()
        with self._guard:
            return max(self._closed_segments, default=-1) + 1

    def holds_before(self, mark: int) -> bool:
        """Whether the log still has a segment with a smaller number than `mark`."""
        return any(segment.number < mark for segment in self.segments())

    def drop(self, numbers: Sequence[int]) -> list[str]:
        """Forget closed segments that are not needed any more, and return their paths.

        The caller deletes the files when no reader needs them.
        """
        with self._guard:
            return [self._closed_segments.pop(number).path for number in numbers]

    def close(self) -> None:
        """Sync everything, write the segment's footer, and close the segment. May be called twice.

        After an earlier failure, the writer only closes the file. Otherwise it sets `synced` and
        `written` to the start of the next segment, which is after the footer. The store publishes
        this position in a file. Everything before a published position must be intact. So if the
        footer is damaged later, the next open reports damage, and does not take it for an
        interrupted write.
        Raises: the errors of `sync`.
        """
        with self._guard:
            if self._closed:
                return
            self._closed = True
        try:
            if self.failure is None:
                self.roll()
                last = max(self._closed_segments, default=-1)
                if last >= self.written.position.segment:
                    self.synced = self.written = replace(self.written, position=LogPosition(last + 1, 0))
        finally:
            file, self._written_segment.file = self._written_segment.file, None
            if file is not None:
                file.close()

    # ── leading

    def _check_alive(self) -> None:
        if self._closed:
            raise StorageError(
                f"the store is closed, and with it the log in {self._directory}: connect() again",
                path=self._directory,
            )
        if self.failure is not None:
            raise StorageError(
                f"the log accepts no more records, because a write or sync failed ({self.failure}); nothing of this "
                "call was written: close the database and open it again",
                path=self.failure.path,
                errno=self.failure.errno,
            )

    def _check_outcome(self) -> None:
        if self.failure is not None:
            raise StorageError(
                f"the log could not be made durable ({self.failure}); whether the batch was written is known only "
                "after the next open: close the database and open it again",
                path=self.failure.path,
                errno=self.failure.errno,
                outcome="unknown",
            )

    def _wait_for_leader(self) -> None:
        """Wait until no thread writes. The caller must hold `_guard`.

        Raises: StorageError if a write or sync failed.
        """
        while self._leading is not None and self.failure is None:
            self._condition.wait()
        self._check_outcome()

    def _check_space(self, payload_length: int, kind: FrameKind) -> None:
        """Raise StorageError if the disk has no space for this record.

        A change of the catalogue may use the reserve: it may drop or compact data, which frees
        space.
        """
        if kind == "change" and self._reserve.has_pieces():
            return
        needed = self._pending_bytes + payload_length
        if kind == "batch":
            needed += _FREE_SPACE_MIN_BYTES
        new_file = self._segment.file is None or self._segment.size_bytes >= self._segment_size_bytes
        # A used reserve takes free space before batches do.
        may_write = kind == "change" or self._reserve.is_open_to_writes(new_file)
        free = self._env.files.free_bytes(self._directory)
        if free < needed or not may_write:
            raise StorageError(
                f"no space for the log in {self._directory}: the disk ({free} bytes are free) or a quota is full; "
                "nothing of this call was written: free some space and try again. drop_table(…, purge=True), "
                "drop_range(…, purge=True), purge_dropped(), vacuum() and compact() work on a full disk",
                path=self._directory,
                errno=errno.ENOSPC,
            )

    def _begin_segment(self) -> None:
        """Begin a new segment for the next records. Its log offset is the end of the old one."""
        old = self._segment
        start_offset = LogOffset(old.end_offset + FRAME_SIZE_BYTES)
        self._segment = _Segment(old.number + 1, start_offset, start_offset)

    def _take_pending(self) -> list[_Entry]:
        """Make this thread the leader, which writes, and take the pending records.

        The caller must hold `_guard`.
        """
        assert self._leading is None
        self._leading = threading.get_ident()
        self._taken_s = self._env.clock.monotonic_s()
        entries, self._pending = self._pending, []
        return entries

    def _lead(self, entries: list[_Entry], *, sync: bool, close_segment: bool = False) -> None:
        """Write `entries` to the log, then wake the threads that wait for them.

        The calling thread is the leader: it writes for all waiting threads. It must not hold
        `_guard`.

        sync: also sync the log.
        close_segment: also close the log's last file.
        Raises: StorageError with outcome "unknown" if a step fails.
        """
        only_sync_left = False
        try:
            if entries:
                self._write_group(entries)
            if sync:
                only_sync_left = not close_segment
                self._sync_written()
            if close_segment:
                self._close_segment()
        except StorageError as error:
            self.failure = error
            self._check_outcome()
        except BaseException as error:
            # After an interrupted sync (Ctrl-C), the next sync covers the same records. But after
            # an interrupted write, it is unknown which bytes were written.
            if not only_sync_left:
                self.failure = _interrupted(error, self._directory)
            raise
        finally:
            self._resign()

    def _resign(self, error: BaseException | None = None) -> None:
        """If this thread is the leader (the thread that writes), let another thread lead.

        error: the error that interrupted this thread before it wrote its group, for example Ctrl-C.
               The records of the group are lost, so the writer accepts no more records.
        """
        with self._guard:
            if self._leading == threading.get_ident():
                if error is not None and self.failure is None:
                    self.failure = _interrupted(error, self._directory)
                self._leading = None
                self._condition.notify_all()

    def _write_group(self, entries: list[_Entry]) -> None:
        """Append the records to their segment (file of the log) with one call.

        If they are the first records of the segment, close the previous segment first.
        """
        segment = entries[0].segment
        assert entries[-1].segment is segment, "a group must be in one segment"
        if self._written_segment is not segment:
            self._sync_written()
            self._close_segment()
            self._written_segment = segment
        parts: list[Any] = []
        if segment.file is None:
            assert entries[0].ordinal == 0, "a segment must begin with its first record"
            segment.salt = int(self._env.randomness.token_hex(8), 16)
            path = os.path.join(self._directory, segment_name(segment.number))
            segment.file = self._reserve.take(lambda: self._env.files.create(path))
            parts.append(
                SegmentHeader(segment.number, segment.start_offset, segment.salt, self._store_id).encode()
            )
        # When a segment begins, everything before it is synced (G3).
        synced_through = LogOffset(max(self.synced.offset, segment.start_offset))
        for entry in entries:
            parts.append(entry.header(segment.salt, synced_through))
            parts += entry.payload
        file = segment.file
        self._reserve.take(lambda: file.append(*parts))
        with self._guard:
            self.written = entries[-1].end
            self._pending_bytes -= sum(FRAME_SIZE_BYTES + entry.payload_length for entry in entries)

    def _sync_written(self) -> None:
        """Make the written records durable, and the segment's name too."""
        target = self.written
        segment = self._written_segment
        if segment.file is None or target.offset == self.synced.offset:
            return
        segment.file.sync()
        if not segment.name_durable:
            self._env.files.sync_dir(self._directory)
            segment.name_durable = True
        with self._guard:
            self.synced = target
            # Records that are still unsynced were appended after the leader took its group.
            self._oldest_unsynced_s = self._taken_s if self.appended.offset > target.offset else None

    def _close_segment(self) -> None:
        """Write and sync the footer of the current segment, if that segment has a file."""
        segment, written = self._written_segment, self.written
        file = segment.file
        if file is None:
            return
        assert self.synced == written, "L3: everything must be synced before the footer"
        assert written.offset == segment.end_offset, "every record of the segment must be written"
        footer = encode_footer(segment.salt, written.offset, written.timestamp, segment.record_count)
        self._reserve.take(lambda: file.append(footer))
        file.sync()
        with self._guard:
            segment.file = None
            self._closed_segments[segment.number] = SegmentInfo(
                segment.number, file.path, written.timestamp, file.size_bytes, True
            )
        file.close()


def _interrupted(error: BaseException, directory: str) -> StorageError:
    return StorageError(f"{type(error).__name__} interrupted a write", path=directory)
