"""Reads the log: reader processes read up to the published position, the writer reads all at open.

At open the writer must distinguish two cases. A *torn tail* is the rest of a write that a power cut
interrupted; the writer cuts it off. *Damage* means that synced bytes have changed; the open fails.
In this picture, b is the log offset of the first bad byte. The header of a later, good record says
that the log was synced through s:

    segment 3 (last)  ┌────────┬────────┬────────┬──xxxx──┬────────┐
                      │ good   │ good   │ good   │  bad   │ good   │
                      └────────┴────────┴────────┴────────┴────────┘
                                                 ^ b        ^ synced_through = s

    s > b  for one good record     The bytes at b were synced before the good record was written:
                                   damage.
    s ≤ b  for all good records    The bytes from b on are one unsynced group, whose disk blocks may
                                   be written in any order: a torn tail.

A header that proves damage is a *witness*. The writer looks for witnesses at every multiple of 8
bytes after b. A header is good if its checksum, its log offset and its salt are right, even if the
payload after it is bad. A footer is a witness too: everything before it was synced. So is a later
segment: a segment is closed and synced before the next one is created.

Invariants
    V1  Only `Recovery.cut` changes a file. It changes only the last segment, and only bytes after
        the `synced_through` of every witness. A caller that knows other witnesses (the position
        record) checks them between `recover(cut=False)` and `Recovery.cut`.
    V2  After `cut`, every segment is closed, and everything that was read is durable. Before `cut`,
        records of a killed process may be only in the memory of the operating system.
    V3  A reader process never cuts, and bytes before its published position are never a torn tail.

Source: docs/design/rules.md, R6, P1 and W1.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import pyarrow as pa

from nyala.env import Env, Files, MissingFileError
from nyala.errors import CorruptionError
from nyala.wal.format import (
    ALIGNMENT_BYTES,
    CHANGE_MAGIC,
    FOOTER_MAGIC,
    FRAME_SIZE_BYTES,
    NO_STORE,
    RECORD_MAGIC,
    SEGMENT_HEADER_SIZE_BYTES,
    FrameHeader,
    LogOffset,
    SegmentHeader,
    WrongStoreError,
    check_store_id,
    crc32c,
    encode_footer,
    segment_name,
    segment_number,
)
from nyala.wal.position import LogPosition
from nyala.wal.record import ChangeRecord, LogRecord, decode_record


@dataclass(frozen=True)
class SegmentInfo:
    """One segment file of the log. The writer appends to the last one; the others are closed.

    timestamp_max: the greatest timestamp; 0 without records.
    """

    number: int
    path: str
    timestamp_max: int
    size_bytes: int
    closed: bool


@dataclass(frozen=True)
class Frame:
    """One record or footer. `offset` is the file offset of its header."""

    offset: int
    header: FrameHeader
    payload: pa.Buffer

    @property
    def upper(self) -> int:
        """The file offset after the payload."""
        return self.offset + FRAME_SIZE_BYTES + self.header.payload_length


@dataclass(frozen=True)
class TornTail:
    """The rest of an interrupted write at the end of a log segment.

    offset: where the rest begins in the file.
    reason: what is wrong with the bytes at `offset`.
    """

    path: str
    offset: int
    length: int
    reason: str


@dataclass(frozen=True)
class Recovery:
    """The content of the log, and everything that a `LogWriter` needs to continue it.

    end:      the end of the last record.
    torn:     the torn tail that `cut` removes, or has removed.
    reached:  the position up to which the log is intact. It differs from `end` if the last segment
              ends with a footer: then it is the beginning of the next segment.
    unclosed: the last segment, until `cut` has closed it.
    changes:  the change records of the log, oldest first.
    """

    env: Env
    directory: str
    from_segment: int
    segments: tuple[SegmentInfo, ...]
    next_segment: int
    start_offset: LogOffset
    end: LogPosition
    timestamp_max: int
    record_count: int
    torn: TornTail | None
    reached: LogPosition
    unclosed: _Examined | None = None
    store_id: str = NO_STORE
    changes: tuple[ChangeRecord, ...] = ()

    def cut(self) -> Recovery:
        """Cut off the torn tail, sync the rest, and close the last segment.

        The caller must be the writer of the store.
        """
        last = self.unclosed
        if last is None:
            return self
        files = self.env.files
        if last.header is None:  # the segment's creation was interrupted
            files.unlink(last.path)
            files.sync_dir(self.directory)
            return replace(self, unclosed=None)
        _close(files, self.directory, last)
        closed = replace(self.segments[-1], size_bytes=last.good_upper + FRAME_SIZE_BYTES, closed=True)
        return replace(
            self,
            segments=(*self.segments[:-1], closed),
            start_offset=LogOffset(self.start_offset + FRAME_SIZE_BYTES),
            reached=LogPosition(closed.number + 1, 0),
            unclosed=None,
        )

    def records(self) -> Iterator[LogRecord]:
        """Yield all batches, oldest first. One segment at a time is in memory."""
        reader = LogReader(self.env, self.directory, self.from_segment, self.store_id)
        return batches(reader.read_to(self.end))

    def since(self, segment: int) -> Recovery:
        """Return the same log without the segments before `segment`."""
        left = tuple(info for info in self.segments if info.number >= segment)
        return replace(
            self, from_segment=segment, segments=left, next_segment=max(segment, self.next_segment)
        )


Record: TypeAlias = LogRecord | ChangeRecord


def _change_of(frame: Frame, path: str) -> ChangeRecord:
    return ChangeRecord(frame.payload.to_pybytes(), frame.header.timestamp, (path, frame.offset))


def _decoded(frame: Frame, path: str) -> Record:
    if frame.header.kind == "change":
        return _change_of(frame, path)
    return decode_record(frame.payload, frame.header.timestamp, path, frame.offset)


def batches(records: Iterable[Record]) -> Iterator[LogRecord]:
    """Yield the batches among these records."""
    return (record for record in records if isinstance(record, LogRecord))


def segment_numbers(files: Files, directory: str, from_segment: int = 0) -> list[int]:
    """Return the numbers of the segments in the folder, oldest first."""
    numbers = (segment_number(name) for name in files.list_dir(directory))
    return sorted(number for number in numbers if number is not None and number >= from_segment)


def read_segment_header(files: Files, path: str, number: int) -> SegmentHeader:
    """Return the header of a segment. Raises: CorruptionError if the header is damaged."""
    file = files.open(path)
    try:
        return SegmentHeader.decode(file.read(0, SEGMENT_HEADER_SIZE_BYTES), path, number)
    finally:
        file.close()


def read_frames(
    data: bytes,
    data_offset: int,
    segment: SegmentHeader,
    path: str,
    *,
    ordinal: int | None = None,
    timestamp: int = 0,
) -> Iterator[Frame]:
    """Yield the frames in `data`: records, and perhaps the footer.

    data, data_offset: the bytes of a segment from file offset `data_offset` on. A frame begins
               at this offset.
    ordinal:   the ordinal of the first record; None: not known.
    timestamp: the timestamp of the record before the first one; 0: not known.
    Raises: CorruptionError at the first frame that is damaged, or that belongs elsewhere.
    Cost:   one CRC pass over the bytes. Payloads are not copied and keep `data` alive.
    """
    buffer = pa.py_buffer(data)
    index = 0
    last_timestamp: int | None = None  # of the last record in `data`
    while index < len(data):
        offset = data_offset + index
        header = FrameHeader.decode(data, index, path, offset)
        if (header.salt, header.log_offset) != (segment.salt, segment.start_offset + offset):
            raise CorruptionError(
                "this record belongs to another position or another file of the log: expected log offset "
                f"{segment.start_offset + offset} and the file's random number {segment.salt:016x}, found "
                f"{header.log_offset} and {header.salt:016x}",
                path,
                offset,
            )
        lower = index + FRAME_SIZE_BYTES
        upper = lower + header.payload_length
        if upper > len(data):
            raise CorruptionError(
                f"a record is cut off: expected {header.payload_length} bytes of payload, found {len(data) - lower}",
                path,
                offset,
            )
        payload = buffer[lower:upper]
        found = crc32c(payload)
        if found != header.payload_crc32c:
            raise CorruptionError(
                f"the payload of a record fails its checksum: expected {header.payload_crc32c:08x}, found {found:08x}",
                path,
                offset,
            )
        if ordinal is not None and header.ordinal != ordinal:
            raise CorruptionError(
                f"a record is missing: expected record {ordinal} of the segment, found {header.ordinal}",
                path,
                offset,
            )
        if header.is_footer:
            if last_timestamp is not None and header.timestamp != last_timestamp:
                raise CorruptionError(
                    f"the footer does not match its segment: expected timestamp {last_timestamp}, found "
                    f"{header.timestamp}",
                    path,
                    offset,
                )
        elif header.timestamp < timestamp + (header.kind == "batch"):
            raise CorruptionError(
                f"timestamps must ascend: found {header.timestamp} after {timestamp}", path, offset
            )
        yield Frame(offset, header, payload)
        if header.is_footer and upper != len(data):
            raise CorruptionError(
                f"expected the end of the segment after the footer, found {len(data) - upper} more bytes",
                path,
                data_offset + upper,
            )
        ordinal = header.ordinal + 1
        timestamp = last_timestamp = header.timestamp
        index = upper


@dataclass(frozen=True)
class _Examined:
    """What `recover` found in one segment, up to the segment's end or its first bad byte.

    good_upper: the file offset after the last good record or footer.
    bad:        what is wrong at that offset; None if the segment is intact.
    witness:    a header that proves damage, as `find_witness` returns it.
    """

    path: str
    size_bytes: int
    header: SegmentHeader | None
    good_upper: int
    record_count: int
    timestamp_max: int
    closed: bool
    bad: CorruptionError | None
    witness: tuple[int, int] | None
    changes: list[ChangeRecord]

    @property
    def end_offset(self) -> LogOffset:
        assert self.header is not None
        return LogOffset(self.header.start_offset + self.good_upper)


class LogReader:
    """Reads one store's log from a segment on. A later call continues where the last one ended.

    Threads: one at a time. If one reader has two iterators, only the later one may be used.
    Raises (during iteration): CorruptionError; MissingFileError if the writer has dropped a
    segment, because the caller's catalogue is out of date.
    """

    def __init__(self, env: Env, directory: str, from_segment: int, store_id: str = NO_STORE) -> None:
        self._files = env.files
        self._store_id = store_id
        self._directory = directory
        self.position = LogPosition(from_segment, 0)
        """The end of the last record that was returned; the next `read_to` continues here."""
        self._timestamp = 0

    def read_to(self, upto: LogPosition | None) -> Iterator[Record]:
        """Yield the records from `position` to the published position `upto`.

        upto: None: no writer is running; read up to the last intact record.
        Cost: one segment in memory at a time. A record refers to its segment, so the segment stays
              in memory while the caller holds a record.
        """
        return (_decoded(frame, path) for path, frame in self._frames_to(upto))

    def changes(self, upto: LogPosition | None) -> Iterator[ChangeRecord]:
        """Yield the changes of the catalogue that `read_to` would yield. Batches are not decoded.

        upto: the published position, where reading ends; None: no writer is running; read up to the
              last intact record.
        """
        for path, frame in self._frames_to(upto):
            if frame.header.kind == "change":
                yield _change_of(frame, path)

    def _frames_to(self, upto: LogPosition | None) -> Iterator[tuple[str, Frame]]:
        if upto is None:
            numbers = segment_numbers(self._files, self._directory, self.position.segment)
            if numbers:
                yield from self._read(numbers[-1], None, torn_allowed=True)
            return
        segment, offset = upto.segment, upto.offset
        if upto <= self.position or (
            segment == self.position.segment and offset <= SEGMENT_HEADER_SIZE_BYTES
        ):
            return
        # At offset 0 the segment need not exist yet.
        yield from self._read(
            segment if offset else segment - 1, offset if offset else None, torn_allowed=False
        )

    def _read(self, last: int, last_limit: int | None, *, torn_allowed: bool) -> Iterator[tuple[str, Frame]]:
        expected: LogOffset | None = None
        first, first_offset = self.position.segment, self.position.offset
        for number in range(first, last + 1):
            is_last = number == last
            path = _path(self._directory, number)
            begin = max(first_offset if number == first else 0, SEGMENT_HEADER_SIZE_BYTES)
            limit = last_limit if is_last else None
            reached = begin
            closed = False
            header: SegmentHeader | None = None
            try:
                header, data = self._load(path, number, begin, limit)
                if expected is not None and header.start_offset != expected:
                    raise _gap(path, expected, header)
                ordinal = 0 if begin == SEGMENT_HEADER_SIZE_BYTES else None
                for frame in read_frames(
                    data, begin, header, path, ordinal=ordinal, timestamp=self._timestamp
                ):
                    reached = frame.upper
                    closed = frame.header.is_footer
                    if closed:
                        continue
                    self.position = LogPosition(number, reached)
                    self._timestamp = frame.header.timestamp
                    yield path, frame
            except CorruptionError as error:
                if isinstance(error, WrongStoreError) or not (torn_allowed and is_last):
                    raise
                witness = find_witness(self._files.read_all(path), error.offset or 0, header, path)
                if witness is not None:
                    raise _damage(error, witness) from error
                return
            if limit is not None and reached < limit:
                raise CorruptionError(
                    f"the log ends before its published position: expected {limit} bytes, found {reached}",
                    path,
                    reached,
                )
            if not is_last and not closed:
                raise _not_closed(path, reached)
            expected = LogOffset(header.start_offset + reached)

    def _load(self, path: str, number: int, begin: int, limit: int | None) -> tuple[SegmentHeader, bytes]:
        """Return the header of a segment and its bytes [begin, limit)."""
        file = self._files.open(path)
        try:
            header = SegmentHeader.decode(file.read(0, SEGMENT_HEADER_SIZE_BYTES), path, number)
            check_store_id(self._store_id, header.store_id, path)
            upper = file.size_bytes() if limit is None else limit
            return header, file.read(begin, max(upper - begin, 0))
        finally:
            file.close()


def recover(
    env: Env, directory: str, from_segment: int, store_id: str = NO_STORE, *, cut: bool = True
) -> Recovery:
    """Read the log, check every byte, and distinguish a torn tail from damage.

    from_segment: the number of the first segment to read. Earlier segments are not needed any more.
    store_id: the id that every segment must have.
    cut: also call `Recovery.cut`. A `LogWriter` needs a recovery that was cut.
    Raises: CorruptionError for damage; then no file was changed.
    Cost:   one pass over the log, one segment in memory at a time.
    """
    files = env.files
    numbers = segment_numbers(files, directory, from_segment)
    infos: list[SegmentInfo] = []
    expected: LogOffset | None = None
    timestamp = 0
    record_count = 0
    torn: TornTail | None = None
    unclosed: _Examined | None = None
    changes: list[ChangeRecord] = []
    end = reached = LogPosition(from_segment, 0)
    for number in range(from_segment, numbers[-1] + 1 if numbers else from_segment):
        is_last = number == numbers[-1]
        part = _examine(files, _path(directory, number), number, timestamp, store_id)
        if part.bad is not None:
            if part.witness is not None:
                raise _damage(part.bad, part.witness) from part.bad
            if not is_last:
                raise CorruptionError(
                    f"{part.bad.reason}; the segment was closed and synced before the next one was created, so this "
                    "is damage: restore the store from a backup",
                    part.path,
                    part.bad.offset,
                ) from part.bad
            torn = TornTail(part.path, part.good_upper, part.size_bytes - part.good_upper, part.bad.reason)
        if not part.closed:
            unclosed = replace(part, bad=None, witness=None)
        if part.header is None:  # the creation of the last segment was interrupted
            break
        if expected is not None and part.header.start_offset != expected:
            raise _gap(part.path, expected, part.header)
        if not part.closed and not is_last:
            raise _not_closed(part.path, part.good_upper)
        end = LogPosition(number, part.good_upper - (FRAME_SIZE_BYTES if part.closed else 0))
        expected = part.end_offset
        reached = LogPosition(number + 1, 0) if part.closed else LogPosition(number, part.good_upper)
        infos.append(SegmentInfo(number, part.path, part.timestamp_max, part.good_upper, part.closed))
        timestamp = max(timestamp, part.timestamp_max)
        record_count += part.record_count
        changes += part.changes
    recovery = Recovery(
        env,
        directory,
        from_segment,
        tuple(infos),
        infos[-1].number + 1 if infos else from_segment,
        expected if expected is not None else _end_before(files, directory, from_segment),
        end,
        timestamp,
        record_count,
        torn,
        reached,
        unclosed,
        store_id,
        tuple(changes),
    )
    return recovery.cut() if cut else recovery


def _path(directory: str, number: int) -> str:
    return os.path.join(directory, segment_name(number))


def _end_before(files: Files, directory: str, number: int) -> LogOffset:
    """Return the log offset at which the segment before `number` ends; 0 without earlier segments.

    The log does not need earlier segments any more. Their files may exist, for readers.
    """
    older = [n for n in segment_numbers(files, directory) if n < number]
    if not older:
        return LogOffset(0)
    path = _path(directory, older[-1])
    return LogOffset(read_segment_header(files, path, older[-1]).start_offset + files.size(path))


def missing_segment(path: str) -> CorruptionError:
    """Return the error for a segment that is needed and does not exist."""
    return CorruptionError("a segment of the log is missing: restore it, or the store, from a backup", path)


def _examine(files: Files, path: str, number: int, timestamp: int, store_id: str) -> _Examined:
    try:
        data = files.read_all(path)
    except MissingFileError as error:
        raise missing_segment(path) from error
    header: SegmentHeader | None = None
    upper = 0
    count = 0
    timestamp_max = 0
    closed = False
    bad: CorruptionError | None = None
    witness: tuple[int, int] | None = None
    changes: list[ChangeRecord] = []
    try:
        header = SegmentHeader.decode(data[:SEGMENT_HEADER_SIZE_BYTES], path, number)
        check_store_id(store_id, header.store_id, path)
        upper = SEGMENT_HEADER_SIZE_BYTES
        for frame in read_frames(data[upper:], upper, header, path, ordinal=0, timestamp=timestamp):
            upper = frame.upper
            closed = frame.header.is_footer
            if not closed:
                count += 1
                timestamp_max = frame.header.timestamp
            if frame.header.kind == "change":
                changes.append(_change_of(frame, path))
    except WrongStoreError:
        raise
    except CorruptionError as error:
        bad = error
        witness = find_witness(data, error.offset or 0, header, path)
    return _Examined(path, len(data), header, upper, count, timestamp_max, closed, bad, witness, changes)


def _close(files: Files, directory: str, last: _Examined) -> None:
    """End the last segment of the log, which has no footer.

    Cut off the torn bytes at its end, make the rest durable, and write the footer.

    last: what `recover` found in this segment.
    """
    assert last.header is not None
    footer = encode_footer(last.header.salt, last.end_offset, last.timestamp_max, last.record_count)
    files.truncate(last.path, last.good_upper)  # also syncs if nothing is cut
    files.sync_dir(directory)  # the file's name may not be durable yet (G2)
    files.write_at(last.path, last.good_upper, footer)
    files.truncate(last.path, last.good_upper + FRAME_SIZE_BYTES)


def find_witness(
    data: bytes, bad_offset: int, segment: SegmentHeader | None, path: str
) -> tuple[int, int] | None:
    """Find a later header which proves that the byte at `bad_offset` of a segment was synced.

    segment: the segment's header; None if it is bad.
    Returns: the file offset of the found header, and the file offset up to which it says that the
             log was synced; None if no such header exists.
    """
    for magic, lower in ((FOOTER_MAGIC, 0), (RECORD_MAGIC, bad_offset), (CHANGE_MAGIC, bad_offset)):
        offset = data.find(magic, lower)
        while offset >= 0:
            if offset % ALIGNMENT_BYTES == 0:
                try:
                    header = FrameHeader.decode(data, offset, path, offset)
                except CorruptionError:
                    header = None
                if header is not None:
                    start = header.log_offset - offset if segment is None else segment.start_offset
                    fits = header.log_offset == start + offset and (
                        segment is None or header.salt == segment.salt
                    )
                    # A segment with a footer was closed, so it has no torn tail.
                    if fits and (header.is_footer or header.synced_through > start + bad_offset):
                        return offset, header.synced_through - start
            offset = data.find(magic, offset + 1)
    return None


def _damage(error: CorruptionError, witness: tuple[int, int]) -> CorruptionError:
    return CorruptionError(
        f"{error.reason}; the record at offset {witness[0]} proves that the log was synced through offset "
        f"{witness[1]}, so this is damage and not a torn tail: restore the store from a backup",
        error.path,
        error.offset,
    )


def _gap(path: str, expected: int, header: SegmentHeader) -> CorruptionError:
    return CorruptionError(
        f"bytes of the log before this segment are missing: expected it to start at log offset {expected}, "
        f"found {header.start_offset}",
        path,
        0,
    )


def _not_closed(path: str, offset: int) -> CorruptionError:
    return CorruptionError(
        "the segment has no footer, although a later segment exists: its end is missing", path, offset
    )
