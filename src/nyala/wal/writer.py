"""Appends batches to the log and makes them durable, several at a time, without a thread of its
own.

    thread A   append ─ sync ┄ writes and syncs group 1 ┄┄┄ done
    thread B     append ─ sync ┄ waits ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄ writes and syncs group 2 (B's and C's) ┄ done
    thread C        append ─ sync ┄ waits ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄ waits ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄ done

`append` puts a record into memory and returns where in the log it will end. A thread that needs it
durable calls `sync`. The first such thread becomes the leader: it takes all appended records (a
*group*), writes them with one call and syncs. The others wait for it. One of those that its sync
did not cover leads the next group.

Three marks move along the log:  appended ≥ written ≥ synced.

Invariants
    G1  A group is written only after the previous group's sync (R6), so `synced_through` in its
        headers is the end of the previous group. Only with durability "group" and "os" may several
        writes precede one sync; then they are one group, and their headers say so.
    G2  A record counts as synced only if its segment's name is durable too: the folder is synced
        before the first sync of a segment returns.
    G3  A segment is closed (everything synced, footer written and synced) before the next one is
        created. A new writer starts a new segment when its first record comes; it never appends to
        an old one.
    G4  After a failed write or sync the writer is dead: the state of the disk is unknown until the
        log is recovered. Every thread that waits for an unsynced record gets an error with outcome
        "unknown".

Segments are not preallocated: a zero-filled tail would look torn.
Source: group commit as in LevelDB's writer queue, with the leader's own sync instead of a log
thread.
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
    segment_name,
)
from nyala.wal.position import LogPosition
from nyala.wal.reader import Recovery, SegmentInfo
from nyala.wal.record import ChangeRecord, LogRecord, encode_change_record, encode_record

Durability: TypeAlias = Literal["commit", "group", "os"]

# "group" promises durability within 100 ms: half of it for waiting, half for the maintenance
# thread's wake-up and the sync itself.
GROUP_SYNC_INTERVAL_S: Final = 0.05

# With less free space on the disk, no record is accepted: a full disk must be detected before a
# batch is applied, when it can still be rejected, and not later when the leader writes.
_FREE_SPACE_MIN_BYTES: Final = 128 << 10


@dataclass(frozen=True)
class LogMark:
    """A border between records: log offset, position, and the timestamp of the record before."""

    offset: LogOffset
    position: LogPosition
    timestamp: int


@dataclass
class _Segment:
    """The segment of new records; its file is created when the first group is written."""

    number: int
    start_offset: LogOffset
    end_offset: LogOffset  # of the appended records; start_offset without records
    record_count: int = 0
    salt: int = 0
    file: AppendFile | None = None
    name_durable: bool = False

    @property
    def size_bytes(self) -> int:
        return self.end_offset - self.start_offset


@dataclass(frozen=True)
class _Entry:
    """A record that waits to be written.

    Its header is created then, because only then is known what is synced.
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
    """The writer of one database's log.

    Threads: `append` in one thread at a time (under the database's commit lock), everything else in
    any thread.
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
        """Create the folder if it is missing, but no file before the first record.

        recovery: the result of `recover` for that folder, with all segments closed.
        reserve: disk space for records that were appended before the disk became full.
        """
        env.files.make_dirs(directory)
        self._env = env
        self._directory = directory
        self._segment_size_bytes = segment_size_bytes
        self.durability: Final = durability
        self._reserve = Reserve(env.files, directory) if reserve is None else reserve
        # Guards all attributes below. A leader releases it while it writes and syncs, and sets
        # `_leading` before. It is entered through the lock, never through the condition, so Ctrl-C
        # cannot leave it taken.
        self._guard = threading.RLock()
        self._condition = threading.Condition(self._guard)
        self._leading: int | None = None  # the leading thread
        self._failure: StorageError | None = None
        self._closed = False
        self._pending: list[_Entry] = []
        self._pending_bytes = 0
        self._oldest_unsynced_s: float | None = None
        self._taken_s = 0.0
        self._store_id = recovery.store_id
        self._closed_segments: dict[int, SegmentInfo] = {}
        for info in recovery.segments:
            assert info.closed, f"G3: segment {info.number} is open"
            self._closed_segments[info.number] = info
        self._closed_bytes = sum(info.size_bytes for info in recovery.segments)
        start_offset = recovery.start_offset
        self._segment = _Segment(recovery.next_segment, start_offset, start_offset)
        # The segment that the leader writes to. It differs from `_segment` between the decision to
        # roll and the write.
        self._written_segment = self._segment
        mark = LogMark(start_offset, LogPosition(recovery.next_segment, 0), recovery.timestamp_max)
        self._appended = self._written = self._synced = mark

    # ── state

    @property
    def appended(self) -> LogMark:
        """The end of the appended records."""
        return self._appended

    @property
    def written(self) -> LogMark:
        """The end of what the system has: it survives this process, but not a power cut."""
        return self._written

    @property
    def synced(self) -> LogMark:
        """The end of what is durable."""
        return self._synced

    @property
    def synced_timestamp(self) -> int:
        return self._synced.timestamp

    @property
    def end_offset(self) -> LogOffset:
        return self._appended.offset

    @property
    def failure(self) -> StorageError | None:
        """The error that made the writer dead (G4); None while it works."""
        return self._failure

    def segments(self) -> list[SegmentInfo]:
        """Return all segments not dropped, oldest first; the present one once it has a file."""
        with self._guard:
            return self._infos()

    @property
    def size_bytes(self) -> int:
        """The log's size on disk, plus the records that wait to be written."""
        with self._guard:
            file = self._written_segment.file
            return self._closed_bytes + (0 if file is None else file.size_bytes) + self._pending_bytes

    def _infos(self) -> list[SegmentInfo]:
        infos = sorted(self._closed_segments.values(), key=lambda info: info.number)
        segment = self._written_segment
        if segment.file is not None:
            infos.append(
                SegmentInfo(
                    segment.number, segment.file.path, self._written.timestamp, segment.file.size_bytes, False
                )
            )
        return infos

    # ── writing

    def append(self, record: LogRecord) -> LogOffset:
        """Add a batch in memory, and return the log offset of its end, for `sync`.

        The record's arrays are copied. Timestamps must ascend (L2).
        Raises: StorageError if the writer is dead, the disk is full or the folder was moved; then
        nothing changed.
        """
        assert record.timestamp > self._appended.timestamp, "L2"
        return self._append("batch", record.timestamp, encode_record(record))

    def append_change(self, record: ChangeRecord) -> LogOffset:
        """Add a change of the catalogue in memory, with the timestamp of the last record.

        Returns and raises as `append`.
        """
        return self._append("change", self._appended.timestamp, encode_change_record(record))

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
                self._begin_segment()  # a border between groups; the leader closes the old one (G3)
            try:
                segment = self._segment
                if segment.record_count == 0:
                    segment.end_offset = LogOffset(segment.start_offset + SEGMENT_HEADER_SIZE_BYTES)
                segment.end_offset = LogOffset(segment.end_offset + FRAME_SIZE_BYTES + length)
                self._appended = LogMark(
                    segment.end_offset, LogPosition(segment.number, segment.size_bytes), timestamp
                )
                self._pending.append(
                    _Entry(segment, kind, self._appended, segment.record_count, payload, length, crc)
                )
                self._pending_bytes += FRAME_SIZE_BYTES + length
                segment.record_count += 1
                if self._oldest_unsynced_s is None:
                    self._oldest_unsynced_s = self._env.clock.monotonic_s()
            except BaseException as error:
                self._failure = _interrupted(error, self._directory)  # the change may be half done
                raise
            return self._appended.offset

    def sync(self, offset: int | None = None) -> None:
        """Return when the log is durable through `offset` (default: through everything appended).

        The caller may write and sync for other threads, or wait until another thread has done so.
        Raises: StorageError with outcome "unknown" if that failed; then the writer is dead (G4).
        """
        try:
            while True:
                with self._guard:
                    if offset is None:
                        offset = self._appended.offset
                    assert offset <= self._appended.offset, f"no record was appended at log offset {offset}"
                    while (
                        self._leading is not None and self._failure is None and self._synced.offset < offset
                    ):
                        self._condition.wait()
                    if self._synced.offset >= offset:
                        return
                    self._check_outcome()
                    entries = self._take_pending()
                self._lead(entries, sync=True)
        except BaseException as error:
            self._resign(error)
            raise

    def write_pending(self) -> None:
        """Write everything appended without a sync: reader processes see it, and it survives a
        killed process.

        Waits while a sync is running (G1). Raises as `sync`.
        """
        try:
            with self._guard:
                while self._leading is not None and self._failure is None:
                    self._condition.wait()
                self._check_outcome()
                if not self._pending:
                    return
                entries = self._take_pending()
            self._lead(entries, sync=False)
        except BaseException as error:
            self._resign(error)
            raise

    def sync_if_due(self) -> float | None:
        """Sync if a record has been waiting for `GROUP_SYNC_INTERVAL_S`. The maintenance thread
        calls it.

        Returns: the seconds until the next call is due; None if no record waits, or with durability
        "os".
        Raises: as `sync`.
        """
        if self.durability == "os":
            return None
        oldest_s = self._oldest_unsynced_s
        if oldest_s is None or self._failure is not None:
            return None
        left_s = oldest_s + GROUP_SYNC_INTERVAL_S - self._env.clock.monotonic_s()
        if left_s > 0:
            return left_s
        self.sync()
        return None if self._oldest_unsynced_s is None else GROUP_SYNC_INTERVAL_S

    def roll(self) -> None:
        """Close the present segment, if it has records, so that it can be dropped later."""
        self._lead_and_close_segment()

    def cut(self) -> int:
        """Close the present segment, and return the number from which on later segments are numbered."""
        self.roll()
        with self._guard:
            return max(self._closed_segments, default=-1) + 1

    def holds_before(self, mark: int) -> bool:
        """Whether a segment with a smaller number was not dropped yet."""
        return any(segment.number < mark for segment in self.segments())

    def drop(self, numbers: Sequence[int]) -> list[str]:
        """Remove unneeded closed segments (R3); return their paths for the garbage list (P2)."""
        with self._guard:
            gone = [self._closed_segments.pop(number) for number in numbers]
            self._closed_bytes -= sum(info.size_bytes for info in gone)
            return [info.path for info in gone]

    def close(self) -> None:
        """Sync everything, and write and sync the footer; a dead writer only closes the file. May
        be called twice.

        Afterwards `synced` and `written` are after the footer, so the position record includes it:
        otherwise damage to a footer without a later segment would look like a torn tail.
        Raises: StorageError with outcome "unknown" if that fails.
        """
        with self._guard:
            if self._closed:
                return
            self._closed = True
        try:
            if self._failure is None:
                self._lead_and_close_segment()
                last = max(self._closed_segments, default=-1)
                if last >= self._written.position.segment:
                    end = replace(self._written, position=LogPosition(last + 1, 0))
                    self._synced = self._written = end
        finally:
            file, self._written_segment.file = self._written_segment.file, None
            if file is not None:
                file.close()

    # ── leading

    def _check_alive(self) -> None:
        if self._closed:
            raise StorageError(f"the log in {self._directory} is closed", path=self._directory)
        if self._failure is not None:
            raise StorageError(
                f"the log accepts no more records, because a write or sync failed ({self._failure}); nothing of this "
                "call was written: close the database and open it again",
                path=self._failure.path,
                errno=self._failure.errno,
            )

    def _check_outcome(self) -> None:
        if self._failure is not None:
            raise StorageError(
                f"the log could not be made durable ({self._failure}); whether the batch was written is known only "
                "after the next open: close the database and open it again",
                path=self._failure.path,
                errno=self._failure.errno,
                outcome="unknown",
            )

    def _check_space(self, payload_length: int, kind: FrameKind) -> None:
        if kind == "change" and self._reserve.has_pieces():
            return  # dropping and compacting free space; the write takes from the reserve what it needs
        needed = self._pending_bytes + payload_length
        if kind == "batch":
            needed += _FREE_SPACE_MIN_BYTES
        new_file = self._segment.file is None or self._segment.size_bytes >= self._segment_size_bytes
        # The reserve is refilled first.
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
        """Start a new segment after the old one's footer; the next records are placed in it."""
        old = self._segment
        start_offset = LogOffset(old.end_offset + FRAME_SIZE_BYTES)
        self._segment = _Segment(old.number + 1, start_offset, start_offset)

    def _take_pending(self) -> list[_Entry]:
        """Become the leader and take the pending records.

        Requires the lock, and that no thread leads.
        """
        assert self._leading is None
        self._leading = threading.get_ident()
        self._taken_s = self._env.clock.monotonic_s()
        entries, self._pending = self._pending, []
        return entries

    def _lead(self, entries: list[_Entry], *, sync: bool, close_segment: bool = False) -> None:
        """Write a group, sync, and close its segment, without the lock; then wake waiting threads."""
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
            self._failure = error
            self._check_outcome()
        except BaseException as error:
            # An interrupted sync (Ctrl-C) did not fail, and the next one makes up for it. But it is
            # unknown how far an interrupted write came.
            if not only_sync_left:
                self._failure = _interrupted(error, self._directory)
            raise
        finally:
            self._resign()

    def _resign(self, error: BaseException | None = None) -> None:
        """Stop leading, if this thread leads, and let another thread lead.

        error: raised in this thread from outside before it wrote its group (`PyThreadState_SetAsyncExc` raises at any
               line). The group is lost, so the writer is dead (G4).
        """
        with self._guard:
            if self._leading == threading.get_ident():
                if error is not None and self._failure is None:
                    self._failure = _interrupted(error, self._directory)
                self._leading = None
                self._condition.notify_all()

    def _lead_and_close_segment(self) -> None:
        """Write and sync everything, and close the present segment before another thread writes."""
        try:
            with self._guard:
                while self._leading is not None and self._failure is None:
                    self._condition.wait()
                self._check_outcome()
                entries = self._take_pending()
                if self._segment.record_count:
                    self._begin_segment()  # no more records may be placed in the segment that is closed now
            self._lead(entries, sync=True, close_segment=True)
        except BaseException as error:
            self._resign(error)
            raise

    def _write_group(self, entries: list[_Entry]) -> None:
        """Append the whole group with one call to its segment."""
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
        # Everything before the segment is synced when the segment begins.
        synced_through = LogOffset(max(self._synced.offset, segment.start_offset))
        for entry in entries:
            parts.append(entry.header(segment.salt, synced_through))
            parts += entry.payload
        file = segment.file
        self._reserve.take(lambda: file.append(*parts))
        with self._guard:
            self._written = entries[-1].end
            self._pending_bytes -= sum(FRAME_SIZE_BYTES + entry.payload_length for entry in entries)

    def _sync_written(self) -> None:
        """Make the written records durable, and also the segment's name (G2)."""
        target = self._written
        segment = self._written_segment
        if segment.file is None or target.offset == self._synced.offset:
            return
        segment.file.sync()
        if not segment.name_durable:
            self._env.files.sync_dir(self._directory)
            segment.name_durable = True
        with self._guard:
            self._synced = target
            # Records that are still unsynced were appended after the leader took its group.
            self._oldest_unsynced_s = self._taken_s if self._appended.offset > target.offset else None

    def _close_segment(self) -> None:
        """Write and sync the footer of the segment on disk, if there is one (G3).

        Its records are synced already.
        """
        segment = self._written_segment
        if segment.file is None:
            return
        assert self._synced == self._written, "L3: everything must be synced before the footer"
        log_offset = self._written.offset
        assert log_offset == segment.end_offset, "every record of the segment must be written"
        footer = FrameHeader(
            kind="footer",
            salt=segment.salt,
            log_offset=log_offset,
            synced_through=log_offset,
            timestamp=self._written.timestamp,
            payload_length=0,
            payload_crc32c=0,
            ordinal=segment.record_count,
        ).encode()
        file = segment.file
        self._reserve.take(lambda: file.append(footer))
        file.sync()
        info = SegmentInfo(
            segment.number, segment.file.path, self._written.timestamp, segment.file.size_bytes, True
        )
        with self._guard:
            segment.file = None
            self._closed_segments[info.number] = info
            self._closed_bytes += info.size_bytes
        file.close()


def _interrupted(error: BaseException, directory: str) -> StorageError:
    return StorageError(f"{type(error).__name__} interrupted a write", path=directory)
