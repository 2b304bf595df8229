"""Read the log: for a reader process up to a published position, for the writer at open to its end.

At open the writer must tell a *torn tail* (what was being written when the power went: cut it) from *damage* (what
was synced and is no longer what it was: stop). The rule is R6:

    segment 3 (last)  ┌────────┬────────┬────────┬──xxxx──┬────────┐
                      │ good   │ good   │ good   │  bad   │ good   │
                      └────────┴────────┴────────┴────────┴────────┘
                                                 ^ b        synced_through = s

    s > b    the record at b was known to be synced when a later one was written: CorruptionError
    s ≤ b    for every good record: b and what follows were one unsynced group, its blocks reached the disk in
             whatever order: the tail is cut at b

Good headers stand witness even when what lies between is unreadable: they are looked for at every multiple of 8 bytes
behind b. A header is good when its checksum, its own log offset and its segment's salt fit (L4). Three more witnesses:
a footer says that all before it was synced; that a later segment exists says that this one was closed (G3); and a later
record's header counts although its payload is bad, for it has a checksum of its own.

Invariants
    T1  Only `recover(cut=True)` changes a file, and only the last segment, above every witness's `synced_through`.
    T2  After it every segment is closed, and everything that was read is durable: a killed process may leave
        records that the system has and the disk has not.
    T3  A reader process never cuts, and bytes below its `upto` are never a torn tail.

Source: design rules R6, P1, W1. Left out: repairing damage.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from nyala.env import Files, MissingFileError
from nyala.errors import CorruptionError
from nyala.wal.format import (
    ALIGNMENT_BYTES,
    FOOTER_MAGIC,
    FRAME_SIZE_BYTES,
    RECORD_MAGIC,
    SEGMENT_HEADER_SIZE_BYTES,
    FrameHeader,
    LogOffset,
    SegmentHeader,
    crc32c,
    segment_name,
    segment_number,
)
from nyala.wal.position import LogPosition
from nyala.wal.record import LogRecord, decode_record
from nyala.wal.writer import SegmentInfo

__all__ = [
    "Frame",
    "LogReader",
    "Recovery",
    "TornTail",
    "find_witness",
    "read_segment_header",
    "segment_numbers",
    "walk",
]


@dataclass(frozen=True)
class Frame:
    """One record (or the footer) where it lies: file offset of its header, and its payload."""

    offset: int
    header: FrameHeader
    payload: pa.Buffer

    @property
    def upper(self) -> int:
        """File offset of what comes next."""
        return self.offset + FRAME_SIZE_BYTES + self.header.payload_length


@dataclass(frozen=True)
class TornTail:
    """What the power cut left: `length` bytes from file offset `offset` on, and why the first of them are bad."""

    path: str
    offset: int
    length: int
    reason: str


@dataclass(frozen=True)
class Recovery:
    """What the log holds. `torn` is what was cut, or with cut=False would be."""

    files: Files
    directory: str
    segments: tuple[SegmentInfo, ...]
    next_segment: int
    start_offset: LogOffset
    end: LogPosition
    timestamp_max: int
    record_count: int
    torn: TornTail | None

    @property
    def cut(self) -> bool:
        return self.torn is not None

    def records(self, start: int | None = None) -> Iterator[LogRecord]:
        """The records of segments `start` and later (default: all), oldest first; each read when asked for."""
        if not self.segments:
            return iter(())
        first = self.segments[0].number if start is None else start
        return LogReader(self.files, self.directory).read(first, self.end)


def segment_numbers(files: Files, directory: str, from_segment: int = 0) -> list[int]:
    """The segments in the folder, oldest first."""
    numbers = (segment_number(name) for name in files.list_dir(directory))
    return sorted(number for number in numbers if number is not None and number >= from_segment)


def read_segment_header(files: Files, path: str, number: int) -> SegmentHeader:
    """The header of one segment. Raises CorruptionError when there is none that can be believed."""
    file = files.open(path)
    try:
        return SegmentHeader.decode(file.read(0, SEGMENT_HEADER_SIZE_BYTES), path, number)
    finally:
        file.close()


def walk(
    data: bytes,
    data_offset: int,
    segment: SegmentHeader,
    path: str,
    *,
    ordinal: int | None = None,
    timestamp: int = 0,
) -> Iterator[Frame]:
    """The frames in `data`, the bytes of a segment from file offset `data_offset`, a border, on.

    `ordinal` is the first record's (None: unknown), `timestamp` that of the last record before it (0: unknown).
    Ends with the data or the footer.
    Raises: CorruptionError at the first frame that is not what was written there.
    Cost:   one CRC pass over the bytes; payloads are not copied and keep `data` alive.
    """
    buffer = pa.py_buffer(data)
    index = 0
    last_timestamp: int | None = None  # of a record of this very segment
    while index < len(data):
        offset = data_offset + index
        header = FrameHeader.decode(data, index, path, offset)
        if (header.salt, header.log_offset) != (segment.salt, segment.start_offset + offset):
            raise CorruptionError(
                f"a record that belongs elsewhere (L4): expected log offset {segment.start_offset + offset} and "
                f"salt {segment.salt:016x}, found {header.log_offset} and {header.salt:016x}",
                path,
                offset,
            )
        lower = index + FRAME_SIZE_BYTES
        upper = lower + header.payload_length
        if upper > len(data):
            raise CorruptionError(
                f"a record is cut: expected {header.payload_length} bytes of payload, found {len(data) - lower}",
                path,
                offset,
            )
        payload = buffer[lower:upper]
        found = crc32c(payload)
        if found != header.payload_crc32c:
            raise CorruptionError(
                f"a record's payload fails its checksum: expected {header.payload_crc32c:08x}, found {found:08x}",
                path,
                offset,
            )
        if ordinal is not None and header.ordinal != ordinal:
            raise CorruptionError(
                f"a record is missing (L2): expected the segment's record {ordinal}, found {header.ordinal}",
                path,
                offset,
            )
        if header.is_footer:
            if last_timestamp is not None and header.timestamp != last_timestamp:
                raise CorruptionError(
                    f"the footer is another's: expected timestamp {last_timestamp}, found {header.timestamp}",
                    path,
                    offset,
                )
        elif header.timestamp <= timestamp:
            raise CorruptionError(
                f"timestamps do not ascend (L2): {header.timestamp} after {timestamp}", path, offset
            )
        yield Frame(offset, header, payload)
        if header.is_footer and upper != len(data):
            raise CorruptionError(f"{len(data) - upper} bytes after the footer", path, data_offset + upper)
        ordinal = header.ordinal + 1
        timestamp = last_timestamp = header.timestamp
        index = upper


@dataclass(frozen=True)
class _Examined:
    """One segment, read to its end or to its first bad byte."""

    path: str
    size_bytes: int
    header: SegmentHeader | None
    good_upper: int
    record_count: int
    timestamp_max: int
    closed: bool
    bad: CorruptionError | None
    witness: tuple[int, int] | None

    @property
    def end_offset(self) -> LogOffset:
        assert self.header is not None
        return LogOffset(self.header.start_offset + self.good_upper)


class LogReader:
    """The reading end of one database's log. One thread at a time."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        self.position: LogPosition | None = None
        """The end of the last record that `read` gave; where to go on next time."""

    def _path(self, number: int) -> str:
        return os.path.join(self._directory, segment_name(number))

    def read(self, start: int | LogPosition, upto: LogPosition | None = None) -> Iterator[LogRecord]:
        """The records from `start` (a segment's number, or a position to go on from) up to `upto`.

        With `upto`, a position that the writer published, everything below it must be good (T3). Without, it reads
        as far as the log is good, by R6.
        Raises: CorruptionError. Cost: one segment at a time in memory, and as long as a record of it is held.
        """
        lower = LogPosition(start, 0) if isinstance(start, int) else start
        if upto is not None:
            last = upto.segment
            if upto <= lower or (upto.segment == lower.segment and upto.offset <= SEGMENT_HEADER_SIZE_BYTES):
                return
            if upto.offset == 0:
                last -= 1  # the segment need not be there yet
        else:
            numbers = segment_numbers(self._files, self._directory, lower.segment)
            if not numbers:
                return
            last = numbers[-1]
        expected: LogOffset | None = None
        timestamp = 0
        for number in range(lower.segment, last + 1):
            begin = max(lower.offset if number == lower.segment else 0, SEGMENT_HEADER_SIZE_BYTES)
            limit = upto.offset if upto is not None and number == upto.segment else None
            header, data, size = self._load(number, begin, limit, may_be_torn=upto is None and number == last)
            if header is None:
                return
            if expected is not None and header.start_offset != expected:
                raise _gap(self._path(number), expected, header)
            frames = walk(
                data,
                begin,
                header,
                self._path(number),
                ordinal=0 if begin == SEGMENT_HEADER_SIZE_BYTES else None,
                timestamp=timestamp,
            )
            closed = False
            reached = begin
            try:
                for frame in frames:
                    reached = frame.upper
                    if frame.header.is_footer:
                        closed = True
                        continue
                    timestamp = frame.header.timestamp
                    record = decode_record(frame.payload, timestamp, self._path(number), frame.offset)
                    self.position = LogPosition(number, reached)
                    yield record
            except CorruptionError as error:
                if upto is not None or number != last:
                    raise
                self._check_torn(number, header, error)
                return
            if limit is not None and reached < limit:
                raise CorruptionError(
                    f"the log ends before what was published: expected {limit} bytes, found {size}",
                    self._path(number),
                    reached,
                )
            if number != last and not closed:
                raise _not_closed(self._path(number), reached)
            expected = LogOffset(header.start_offset + reached)

    def _load(
        self, number: int, begin: int, limit: int | None, *, may_be_torn: bool
    ) -> tuple[SegmentHeader | None, bytes, int]:
        """The header of a segment, its bytes [begin, limit), and its size. No header: a new segment, torn."""
        path = self._path(number)
        try:
            file = self._files.open(path)
        except MissingFileError as error:
            raise _missing(path) from error
        try:
            size = file.size_bytes()
            try:
                header = SegmentHeader.decode(file.read(0, SEGMENT_HEADER_SIZE_BYTES), path, number)
            except CorruptionError as error:
                if not may_be_torn:
                    raise
                self._check_torn(number, None, error)
                return None, b"", size
            upper = size if limit is None else min(limit, size)
            return header, file.read(begin, max(upper - begin, 0)), size
        finally:
            file.close()

    def _check_torn(self, number: int, header: SegmentHeader | None, error: CorruptionError) -> None:
        """Raise `error` again if it is damage; return if it is a torn tail."""
        data = self._files.read_all(self._path(number))
        witness = find_witness(data, error.offset or 0, header, self._path(number))
        if witness is not None:
            raise _damage(error, witness) from error

    def recover(self, from_segment: int, *, cut: bool = False) -> Recovery:
        """Read the whole log, checking every byte, and say what it holds and what the last run left (R6).

        With `cut`, by the store's writer only: cut the torn tail, sync what is left, close the last segment (T1, T2).
        Raises: CorruptionError for damage; nothing was changed then.
        """
        numbers = segment_numbers(self._files, self._directory, from_segment)
        if not numbers:
            start_offset = self._end_before(from_segment)
            return self._recovery((), from_segment, start_offset, LogPosition(from_segment, 0), 0, 0, None)
        infos: list[SegmentInfo] = []
        expected: LogOffset | None = None
        timestamp = 0
        record_count = 0
        torn: TornTail | None = None
        end = LogPosition(from_segment, 0)
        for number in range(from_segment, numbers[-1] + 1):
            if number not in numbers:
                raise _missing(self._path(number))
            is_last = number == numbers[-1]
            seen = self._examine(number, timestamp)
            if seen.bad is not None:
                if seen.witness is not None:
                    raise _damage(seen.bad, seen.witness) from seen.bad
                if not is_last:
                    raise CorruptionError(
                        f"{_reason(seen.bad)}; the segment was closed and synced before the next one was made",
                        seen.path,
                        seen.bad.offset,
                    ) from seen.bad
                torn = TornTail(
                    seen.path, seen.good_upper, seen.size_bytes - seen.good_upper, _reason(seen.bad)
                )
            if seen.header is None:  # the last segment's creation did not come through
                if cut:
                    self._files.unlink(seen.path)
                    self._files.sync_dir(self._directory)
                break
            if expected is not None and seen.header.start_offset != expected:
                raise _gap(seen.path, expected, seen.header)
            if not seen.closed and not is_last:
                raise _not_closed(seen.path, seen.good_upper)
            end = LogPosition(number, seen.good_upper - (FRAME_SIZE_BYTES if seen.closed else 0))
            expected = seen.end_offset
            size = seen.good_upper
            if cut and not seen.closed:
                self._close(seen)
                expected = LogOffset(expected + FRAME_SIZE_BYTES)
                size += FRAME_SIZE_BYTES
            infos.append(SegmentInfo(number, seen.path, seen.timestamp_max, size, seen.closed or cut))
            timestamp = max(timestamp, seen.timestamp_max)
            record_count += seen.record_count
        next_segment = infos[-1].number + 1 if infos else from_segment
        start_offset = expected if expected is not None else self._end_before(from_segment)
        return self._recovery(tuple(infos), next_segment, start_offset, end, timestamp, record_count, torn)

    def _recovery(
        self,
        segments: tuple[SegmentInfo, ...],
        next_segment: int,
        start_offset: LogOffset,
        end: LogPosition,
        timestamp_max: int,
        record_count: int,
        torn: TornTail | None,
    ) -> Recovery:
        return Recovery(
            self._files,
            self._directory,
            segments,
            next_segment,
            start_offset,
            end,
            timestamp_max,
            record_count,
            torn,
        )

    def _end_before(self, number: int) -> LogOffset:
        """Where the log offset goes on when no segment is left: after what a reader process may still be reading."""
        older = [n for n in segment_numbers(self._files, self._directory) if n < number]
        if not older:
            return LogOffset(0)
        path = self._path(older[-1])
        header = read_segment_header(self._files, path, older[-1])
        return LogOffset(header.start_offset + self._files.size(path))

    def _examine(self, number: int, timestamp: int) -> _Examined:
        path = self._path(number)
        data = self._files.read_all(path)
        header: SegmentHeader | None = None
        upper = 0
        count = 0
        timestamp_max = 0
        closed = False
        bad: CorruptionError | None = None
        witness: tuple[int, int] | None = None
        try:
            header = SegmentHeader.decode(data[:SEGMENT_HEADER_SIZE_BYTES], path, number)
            upper = SEGMENT_HEADER_SIZE_BYTES
            for frame in walk(data[upper:], upper, header, path, ordinal=0, timestamp=timestamp):
                upper = frame.upper
                closed = frame.header.is_footer
                if not closed:
                    count += 1
                    timestamp_max = frame.header.timestamp
        except CorruptionError as error:
            bad = error
            witness = find_witness(data, error.offset or 0, header, path)
        return _Examined(path, len(data), header, upper, count, timestamp_max, closed, bad, witness)

    def _close(self, seen: _Examined) -> None:
        """Cut what is torn, make what is left durable, and write the footer that the last run could not (T2)."""
        assert seen.header is not None
        footer = FrameHeader(
            is_footer=True,
            salt=seen.header.salt,
            log_offset=seen.end_offset,
            synced_through=seen.end_offset,
            timestamp=seen.timestamp_max,
            payload_length=0,
            payload_crc32c=0,
            ordinal=seen.record_count,
        ).encode()
        self._files.truncate(seen.path, seen.good_upper)  # syncs, also when nothing is cut
        self._files.sync_dir(self._directory)  # the name may be as young as the bytes (G2)
        self._files.write_at(seen.path, seen.good_upper, footer)
        self._files.truncate(seen.path, seen.good_upper + FRAME_SIZE_BYTES)


def find_witness(
    data: bytes, bad_offset: int, segment: SegmentHeader | None, path: str
) -> tuple[int, int] | None:
    """A good header in a segment's bytes which says that the byte at `bad_offset` was synced (R6).

    Returns: its file offset, and the file offset that it calls synced; None when there is no such header.
    Without a segment header (the bad thing is that header itself) a good header's own log offset tells where the
    segment starts.
    """
    for magic, lower in ((FOOTER_MAGIC, 0), (RECORD_MAGIC, bad_offset)):
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
                    # A footer closes its segment: nothing in it, nor after it, can be a torn tail.
                    if fits and (header.is_footer or header.synced_through > start + bad_offset):
                        return offset, header.synced_through - start
            offset = data.find(magic, offset + 1)
    return None


def _reason(error: CorruptionError) -> str:
    """The error's sentence without its place."""
    return str(error).removeprefix(f"{error.path} at offset {error.offset}: ")


def _damage(error: CorruptionError, witness: tuple[int, int]) -> CorruptionError:
    return CorruptionError(
        f"{_reason(error)}; it was synced, the record at offset {witness[0]} says (through {witness[1]}), so this is "
        "damage and not a torn tail: restore the store from a backup",
        error.path,
        error.offset,
    )


def _missing(path: str) -> CorruptionError:
    return CorruptionError("a segment of the log is missing: restore it, or the store, from a backup", path)


def _gap(path: str, expected: int, header: SegmentHeader) -> CorruptionError:
    return CorruptionError(
        f"bytes are missing from the log before this segment: expected it to start at log offset {expected}, "
        f"found {header.start_offset}",
        path,
        0,
    )


def _not_closed(path: str, offset: int) -> CorruptionError:
    return CorruptionError(
        "the segment has no footer, although a later segment exists: its end is missing", path, offset
    )
