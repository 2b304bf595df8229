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
    V1  Only `Recovery.cut` changes a file, and only the last segment, above every witness's `synced_through`. Who
        has more witnesses (the position record) asks them between `recover(cut=False)` and it.
    V2  After it every segment is closed, and everything that was read is durable: a killed process may leave
        records that the system has and the disk has not.
    V3  A reader process never cuts, and bytes below its `upto` are never a torn tail.

Source: design rules R6, P1, W1. Left out: repairing damage.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from nyala.env import Env, Files, MissingFileError
from nyala.errors import CorruptionError
from nyala.wal.format import (
    ALIGNMENT_BYTES,
    FOOTER_MAGIC,
    FRAME_SIZE_BYTES,
    NO_STORE,
    RECORD_MAGIC,
    SEGMENT_HEADER_SIZE_BYTES,
    AnotherStoreError,
    FrameHeader,
    LogOffset,
    SegmentHeader,
    crc32c,
    refuse_another_store,
    segment_name,
    segment_number,
)
from nyala.wal.position import LogPosition
from nyala.wal.record import LogRecord, decode_record

__all__ = [
    "Frame",
    "LogReader",
    "Recovery",
    "SegmentInfo",
    "TornTail",
    "find_witness",
    "read_segment_header",
    "recover",
    "segment_numbers",
    "walk",
]


@dataclass(frozen=True)
class SegmentInfo:
    """One segment file. `timestamp_max` is 0 while it holds no record; only the writer's present one is open."""

    number: int
    path: str
    timestamp_max: int
    size_bytes: int
    closed: bool


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
    """What the log holds, and what a `LogWriter` needs to go on.

    reached:  everything before this border is there; after a segment with a footer, the beginning of the next one.
    torn:     was cut, or is to be.
    unclosed: the last segment, until `cut` has closed it.
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

    def cut(self) -> Recovery:
        """By the store's writer only: cut the torn tail, sync what is left, close the last segment (V1, V2)."""
        last = self.unclosed
        if last is None:
            return self
        files = self.env.files
        if last.header is None:  # its creation did not come through
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

    @property
    def cut_bytes(self) -> int:
        return 0 if self.torn is None else self.torn.length

    def records(self) -> Iterator[LogRecord]:
        """All records, oldest first; a segment is read when its first record is asked for."""
        return LogReader(self.env, self.directory, self.from_segment, self.store_id).read_to(
            self.end.segment, self.end.offset
        )


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
    """The reading end of one database's log, for one pass that stops and goes on as the writer publishes more.

    Threads: one at a time; of two iterators of one reader only the later one may be used.
    Raises (while iterating): CorruptionError, and MissingFileError when a segment is not there: the writer dropped it,
    so the catalogue that named it is out of date.
    """

    def __init__(self, env: Env, directory: str, from_segment: int, store_id: str = NO_STORE) -> None:
        self._files = env.files
        self._store_id = store_id
        self._directory = directory
        self.position = LogPosition(from_segment, 0)
        """The end of the last record that was given; where the next `read_to` goes on."""
        self._timestamp = 0

    def read_to(self, segment: int, offset: int) -> Iterator[LogRecord]:
        """The records from `position` to the published (segment, offset); all of it must be good (V3).

        Cost: one segment at a time in memory, and as long as a record of it is held.
        """
        upto = LogPosition(segment, offset)
        if upto <= self.position or (
            segment == self.position.segment and offset <= SEGMENT_HEADER_SIZE_BYTES
        ):
            return
        # At offset 0 the segment need not be there yet.
        yield from self._read(
            segment if offset else segment - 1, offset if offset else None, torn_allowed=False
        )

    def read_to_end(self) -> Iterator[LogRecord]:
        """The records from `position` to the last good one, by R6. For a log that nobody writes to."""
        numbers = segment_numbers(self._files, self._directory, self.position.segment)
        if numbers:
            yield from self._read(numbers[-1], None, torn_allowed=True)

    def _read(self, last: int, last_limit: int | None, *, torn_allowed: bool) -> Iterator[LogRecord]:
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
                for frame in walk(data, begin, header, path, ordinal=ordinal, timestamp=self._timestamp):
                    reached = frame.upper
                    closed = frame.header.is_footer
                    if closed:
                        continue
                    record = decode_record(frame.payload, frame.header.timestamp, path, frame.offset)
                    self.position = LogPosition(number, reached)
                    self._timestamp = record.timestamp
                    yield record
            except CorruptionError as error:
                if isinstance(error, AnotherStoreError) or not (torn_allowed and is_last):
                    raise
                witness = find_witness(self._files.read_all(path), error.offset or 0, header, path)
                if witness is not None:
                    raise _damage(error, witness) from error
                return
            if limit is not None and reached < limit:
                raise CorruptionError(
                    f"the log ends before what was published: expected {limit} bytes, found {reached}",
                    path,
                    reached,
                )
            if not is_last and not closed:
                raise _not_closed(path, reached)
            expected = LogOffset(header.start_offset + reached)

    def _load(self, path: str, number: int, begin: int, limit: int | None) -> tuple[SegmentHeader, bytes]:
        """The header of a segment and its bytes [begin, limit)."""
        file = self._files.open(path)
        try:
            header = SegmentHeader.decode(file.read(0, SEGMENT_HEADER_SIZE_BYTES), path, number)
            refuse_another_store(self._store_id, header.store_id, path)
            upper = file.size_bytes() if limit is None else limit
            return header, file.read(begin, max(upper - begin, 0))
        finally:
            file.close()


def recover(
    env: Env, directory: str, from_segment: int, store_id: str = NO_STORE, *, cut: bool = True
) -> Recovery:
    """Read the whole log, checking every byte, and say what it holds and what the last run left (R6).

    With `cut` followed by `Recovery.cut`. Without, nothing is changed, and no LogWriter can be made from it.
    Raises: CorruptionError for damage; nothing was changed then.
    Cost:   one pass over the log, a segment in memory at a time.
    """
    files = env.files
    numbers = segment_numbers(files, directory, from_segment)
    infos: list[SegmentInfo] = []
    expected: LogOffset | None = None
    timestamp = 0
    record_count = 0
    torn: TornTail | None = None
    unclosed: _Examined | None = None
    end = reached = LogPosition(from_segment, 0)
    for number in range(from_segment, numbers[-1] + 1 if numbers else from_segment):
        is_last = number == numbers[-1]
        seen = _examine(files, _path(directory, number), number, timestamp, store_id)
        if seen.bad is not None:
            if seen.witness is not None:
                raise _damage(seen.bad, seen.witness) from seen.bad
            if not is_last:
                raise CorruptionError(
                    f"{seen.bad.reason}; the segment was closed and synced before the next one was made, so this "
                    "is damage: restore the store from a backup",
                    seen.path,
                    seen.bad.offset,
                ) from seen.bad
            torn = TornTail(seen.path, seen.good_upper, seen.size_bytes - seen.good_upper, seen.bad.reason)
        if not seen.closed:
            unclosed = replace(seen, bad=None, witness=None)
        if seen.header is None:  # the last segment's creation did not come through
            break
        if expected is not None and seen.header.start_offset != expected:
            raise _gap(seen.path, expected, seen.header)
        if not seen.closed and not is_last:
            raise _not_closed(seen.path, seen.good_upper)
        end = LogPosition(number, seen.good_upper - (FRAME_SIZE_BYTES if seen.closed else 0))
        expected = seen.end_offset
        reached = LogPosition(number + 1, 0) if seen.closed else LogPosition(number, seen.good_upper)
        infos.append(SegmentInfo(number, seen.path, seen.timestamp_max, seen.good_upper, seen.closed))
        timestamp = max(timestamp, seen.timestamp_max)
        record_count += seen.record_count
    found = Recovery(
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
    )
    return found.cut() if cut else found


def _path(directory: str, number: int) -> str:
    return os.path.join(directory, segment_name(number))


def _end_before(files: Files, directory: str, number: int) -> LogOffset:
    """Where the log offset goes on when no segment is left: after what a reader process may still be reading."""
    older = [n for n in segment_numbers(files, directory) if n < number]
    if not older:
        return LogOffset(0)
    path = _path(directory, older[-1])
    return LogOffset(read_segment_header(files, path, older[-1]).start_offset + files.size(path))


def _examine(files: Files, path: str, number: int, timestamp: int, store_id: str) -> _Examined:
    try:
        data = files.read_all(path)
    except MissingFileError as error:
        raise CorruptionError(
            "a segment of the log is missing: restore it, or the store, from a backup", path
        ) from error
    header: SegmentHeader | None = None
    upper = 0
    count = 0
    timestamp_max = 0
    closed = False
    bad: CorruptionError | None = None
    witness: tuple[int, int] | None = None
    try:
        header = SegmentHeader.decode(data[:SEGMENT_HEADER_SIZE_BYTES], path, number)
        refuse_another_store(store_id, header.store_id, path)
        upper = SEGMENT_HEADER_SIZE_BYTES
        for frame in walk(data[upper:], upper, header, path, ordinal=0, timestamp=timestamp):
            upper = frame.upper
            closed = frame.header.is_footer
            if not closed:
                count += 1
                timestamp_max = frame.header.timestamp
    except AnotherStoreError:
        raise
    except CorruptionError as error:
        bad = error
        witness = find_witness(data, error.offset or 0, header, path)
    return _Examined(path, len(data), header, upper, count, timestamp_max, closed, bad, witness)


def _close(files: Files, directory: str, seen: _Examined) -> None:
    """Cut what is torn, make what is left durable, and write the footer that the last run could not (V2)."""
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
    files.truncate(seen.path, seen.good_upper)  # syncs, also when nothing is cut
    files.sync_dir(directory)  # the name may be as young as the bytes (G2)
    files.write_at(seen.path, seen.good_upper, footer)
    files.truncate(seen.path, seen.good_upper + FRAME_SIZE_BYTES)


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


def _damage(error: CorruptionError, witness: tuple[int, int]) -> CorruptionError:
    return CorruptionError(
        f"{error.reason}; it was synced, the record at offset {witness[0]} says (through {witness[1]}), so this is "
        "damage and not a torn tail: restore the store from a backup",
        error.path,
        error.offset,
    )


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
