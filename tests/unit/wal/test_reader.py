"""Reading the log: torn tail or damage (R6), and continuing at a position (P1)."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nyala.env import MissingFileError, PosixFiles
from nyala.errors import CorruptionError, StorageError
from nyala.testing import RecordingFiles, SeededRandomness
from nyala.wal.format import (
    FORMAT_VERSION,
    FRAME_SIZE_BYTES,
    SEGMENT_HEADER,
    SEGMENT_HEADER_SIZE_BYTES,
    SEGMENT_MAGIC,
    FrameHeader,
    LogOffset,
)
from nyala.wal.position import LogPosition
from nyala.wal.reader import LogReader, read_frames, read_segment_header, recover
from nyala.wal.record import LogRecord, ResolvedGroup
from nyala.wal.writer import LogWriter

Bench = Any  # the class of conftest.py, which tests cannot import
NewBench = Callable[[], Any]


def borders(bench: Bench, segment: int = 1) -> list[int]:
    """Return the file offsets at which the segment's records begin, and its end."""
    header = read_segment_header(bench.files, bench.path(segment), segment)
    data = bench.load(segment)
    frames = list(
        read_frames(data[SEGMENT_HEADER_SIZE_BYTES:], SEGMENT_HEADER_SIZE_BYTES, header, bench.path(segment))
    )
    return [frame.offset for frame in frames] + [frames[-1].upper]


def places_to_damage(bench: Bench, upper: int, segment: int = 1) -> list[int]:
    """Return every byte offset of the headers before `upper`, and every ninth of the payloads.

    Each payload has one CRC.
    """
    headers = [0, *borders(bench, segment)]
    return [
        at
        for at in range(upper)
        if at % 9 == 0 or any(0 <= at - header < FRAME_SIZE_BYTES for header in headers)
    ]


def flip(bench: Bench, offset: int, segment: int = 1, bit: int = 0) -> None:
    data = bytearray(bench.load(segment))
    data[offset] ^= 1 << bit
    bench.store(bytes(data), segment)


def test_an_empty_folder_is_an_empty_log(bench: Bench) -> None:
    """A new store, or one whose log was flushed and dropped, opens."""
    recovery = bench.recover()
    assert (recovery.segments, recovery.next_segment, recovery.start_offset) == ((), 1, 0)
    assert (list(recovery.records()), recovery.timestamp_max, recovery.torn) == ([], 0, None)
    assert bench.timestamps() == []


def test_recovery_returns_every_record_and_closes_the_log(bench: Bench) -> None:
    """After the process was killed, recovery returns every batch."""
    bench.write([1, 2, 3])
    recovery = bench.recover()
    assert bench.check(recovery.records()) == [1, 2, 3]
    (info,) = recovery.segments
    assert (info.closed, info.timestamp_max, info.size_bytes) == (True, 3, len(bench.load()))
    assert (recovery.next_segment, recovery.start_offset) == (2, info.size_bytes)
    assert (recovery.torn, recovery.record_count) == (None, 3)
    before = bench.load()
    assert bench.recover().start_offset == recovery.start_offset
    assert bench.load() == before, "a second recovery changes nothing"


def test_v2_recovery_syncs_the_records_of_a_killed_process(bench: Bench) -> None:
    """W2: recovery syncs the log, so a power cut cannot remove batches that the catalogue refers
    to.
    """
    bench.write([1, 2], group_size=5)  # appended, never written
    writer = bench.writer(durability="os")
    writer.append(bench.record(1))
    writer.write_pending()
    recording = RecordingFiles(PosixFiles(), os.path.dirname(bench.directory))
    assert recover(bench.with_files(recording).env, bench.directory, 1).record_count == 1
    kinds = [event.kind for event in recording.events]
    assert kinds[:2] == ["truncate", "sync_dir"], "synced before anything else"
    assert kinds[-1] == "truncate", "the footer is synced too"


def test_r6_a_flipped_bit_before_the_last_group_is_damage(bench: Bench) -> None:
    """A flipped bit never removes acknowledged rows silently."""
    bench.write([1, 2, 3])
    last_group = borders(bench)[-2]
    good = bench.load()
    for offset in places_to_damage(bench, last_group):
        flip(bench, offset, bit=offset % 8)
        changed = bench.load()
        with pytest.raises((CorruptionError, StorageError)) as raised:
            bench.recover()
        assert bench.path() in str(raised.value)
        assert isinstance(raised.value, CorruptionError), f"offset {offset}: {raised.value}"
        assert raised.value.path == bench.path()
        assert raised.value.offset is not None
        assert raised.value.offset <= offset
        assert bench.load() == changed, "V1: nothing is changed when damage is found"
        bench.store(good)


def test_r6_a_flipped_bit_of_a_closed_segment_is_damage(bench: Bench) -> None:
    """A flipped bit never removes the last batches before a clean close."""
    bench.write([1, 2], close=True)
    good = bench.load()
    for offset in places_to_damage(bench, len(good)):
        flip(bench, offset, bit=offset % 8)
        # Nothing else confirms the footer: without it, the segment counts as one that was not
        # closed.
        if offset < len(good) - FRAME_SIZE_BYTES:
            with pytest.raises(CorruptionError):
                bench.recover()
        else:
            assert bench.check(bench.recover().records()) == [1, 2]
        bench.store(good)


def test_r6_a_flipped_bit_of_the_last_group_is_a_torn_tail(bench: Bench) -> None:
    """After a power cut during a write, the store opens."""
    bench.write([1, 2])
    bench.write([3, 4, 5], group_size=3)
    good = bench.load(2)
    places = borders(bench, 2)
    for offset in places_to_damage(bench, len(good), segment=2):
        flip(bench, offset, segment=2, bit=offset % 8)
        kept = sum(1 for upper in places[1:] if upper <= offset)
        recovery = bench.recover()
        assert bench.check(recovery.records()) == [1, 2, *range(3, 3 + kept)]
        assert recovery.torn is not None
        begin = places[kept] if offset >= SEGMENT_HEADER_SIZE_BYTES else 0
        assert recovery.torn.length == len(good) - begin
        bench.store(good, 2)


def test_a_log_cut_anywhere_in_its_last_group_opens(bench: Bench) -> None:
    """The power cut may also leave a shorter file."""
    bench.write([1])
    bench.write([2, 3], group_size=2)
    good = bench.load(2)
    places = borders(bench, 2)
    for length in places_to_damage(bench, len(good), segment=2):
        bench.store(good[:length], 2)
        kept = sum(1 for upper in places[1:] if upper <= length)
        assert bench.check(bench.recover().records()) == [1, *range(2, 2 + kept)]


def test_a_shortened_segment_before_a_later_one_is_damage(bench: Bench) -> None:
    """Records that are missing before a later segment are damage, and never a silent gap."""
    bench.write([1, 2], close=True)
    bench.write([3])
    good = bench.load(1)
    _, second, footer, _ = borders(bench)
    for length in (0, 10, 64, second, len(good) - 1):
        bench.store(good[:length], 1)
        with pytest.raises(CorruptionError):
            bench.recover()
    with pytest.raises(CorruptionError):
        bench.timestamps()
    bench.store(good[:footer], 1)
    for read in (bench.recover, bench.timestamps):
        with pytest.raises(CorruptionError, match="no footer"):
            read()
    bench.store(good + bytes(64), 1)
    with pytest.raises(CorruptionError, match="after the footer"):
        bench.recover()


def test_bytes_after_the_footer_are_damage(bench: Bench) -> None:
    """Bytes that another program appended to a closed segment are damage."""
    bench.write([1], close=True)
    bench.store(bench.load() + b"\0" * 8)
    with pytest.raises(CorruptionError, match="after the footer"):
        bench.recover()


def test_a_missing_segment_is_damage(bench: Bench) -> None:
    for timestamp in (1, 2, 3):
        bench.write([timestamp], close=True)
    os.unlink(bench.path(2))
    with pytest.raises(CorruptionError, match="missing"):
        bench.recover()


def test_a_segment_from_an_older_backup_is_damage(bench: Bench, new_bench: NewBench) -> None:
    """A segment from an older backup, valid by itself, is damage, because batches are missing."""
    other = new_bench()
    bench.write([1, 2], close=True)
    bench.write([3], close=True)
    other.write([1], close=True)
    bench.store(other.load(1), 1)
    with pytest.raises(CorruptionError, match="are missing"):
        bench.recover()
    with pytest.raises(CorruptionError, match="are missing"):
        list(bench.reader().read_to(LogPosition(2, len(bench.load(2)) - FRAME_SIZE_BYTES)))


def test_segments_of_two_stores_do_not_mix(bench: Bench, new_bench: NewBench) -> None:
    """L4: a segment from another store is refused."""
    other = new_bench()
    other.randomness.token_hex(8)  # another store has another salt
    bench.write([1, 2])
    other.write([1, 2])
    assert len(bench.load()) == len(other.load())
    second = borders(bench)[1]
    bench.store(bench.load()[:second] + other.load()[second:])
    recovery = bench.recover()
    assert bench.check(recovery.records()) == [1]
    assert recovery.torn is not None
    assert "belongs to another position" in recovery.torn.reason


def test_l4_log_files_in_a_users_value_are_not_read_as_records(bench: Bench) -> None:
    """L4: a user's value that contains a log file is never read as records.

    It cannot make a torn tail look like damage.
    """
    bench.write([1, 2, 3], close=True)
    inner = bench.load()
    os.unlink(bench.path())
    writer = bench.writer()
    # Eight values, so that the inner file begins at every distance from a multiple of 8.
    batch = pa.RecordBatch.from_arrays(
        [pa.array([inner + bytes(i) for i in range(8)], pa.binary())], names=["10"]
    )
    writer.append(LogRecord(1, None, (ResolvedGroup(1, 1, "insert", (1,), (0, 8), batch),)))
    writer.sync()
    flip(bench, len(bench.load()) - 1)
    recovery = bench.recover()
    assert (recovery.record_count, recovery.torn is not None) == (0, True)
    assert bench.timestamps() == []


def test_l4_a_header_with_another_salt_does_not_count(bench: Bench) -> None:
    """A forged header has the right log offset, but the user cannot know the salt."""

    def write(value: bytes) -> bytes:
        writer = LogWriter(
            replace(bench.env, randomness=SeededRandomness()), bench.directory, bench.recover()
        )
        values = pa.array([value, value], pa.binary())
        batch = pa.RecordBatch.from_arrays([values], names=["10"])
        writer.append(LogRecord(1, None, (ResolvedGroup(1, 1, "insert", (1,), (0, 2), batch),)))
        writer.sync()
        data = bench.load()
        os.unlink(bench.path())
        return bytes(data)

    at = write(b"?" * FRAME_SIZE_BYTES).index(b"?" * FRAME_SIZE_BYTES)
    assert at % 8 == 0
    forged = FrameHeader("footer", 12345, LogOffset(at), LogOffset(at), 1, 0, 0, 1).encode()
    data = write(forged)
    assert data[at : at + FRAME_SIZE_BYTES] == forged
    bench.store(data[:-1])
    recovery = bench.recover()
    assert (recovery.record_count, recovery.torn is not None) == (0, True)


@pytest.mark.parametrize(
    ("change", "message"), [({"ordinal": 5}, "is missing"), ({"timestamp": 1}, "ascend")]
)
def test_l2_records_out_of_sequence_are_damage(bench: Bench, change: dict[str, int], message: str) -> None:
    """A lost record, or a second writer on one log, is damage."""
    bench.write([1, 2, 3], close=True)
    data, place = bench.load(), borders(bench)[1]
    header = replace(FrameHeader.decode(data, place, bench.path(), place), **change)  # type: ignore[arg-type]
    bench.store(data[:place] + header.encode() + data[place + FRAME_SIZE_BYTES :])
    with pytest.raises(CorruptionError, match=message) as raised:
        bench.recover()
    assert raised.value.offset == place


def test_a_segment_with_an_unfinished_creation_is_removed(bench: Bench) -> None:
    """After a power cut during the creation of a segment, the store opens."""
    bench.write([1], close=True)
    for content in (b"", b"\0" * 640, b"NYALAWAL" + b"\0" * 100):
        bench.store(content, 2)
        recovery = bench.recover()
        assert recovery.next_segment == 2 and recovery.torn is not None
        assert recovery.torn.length == len(content)
        assert not os.path.exists(bench.path(2))
    bench.write([2])
    assert bench.timestamps() == [1, 2]


def test_a_destroyed_segment_header_before_synced_records_is_damage(bench: Bench) -> None:
    """A segment with synced records and no readable header is damage, and is not removed."""
    bench.write([1, 2])
    bench.store(bytes(64) + bench.load()[64:])
    with pytest.raises(CorruptionError, match="not a log segment"):
        bench.recover()
    bench.store(bytes(64) + bytes(64) + bench.load()[128:])
    with pytest.raises(CorruptionError, match="synced"):
        bench.recover()


def test_a_destroyed_record_header_does_not_hide_later_records(bench: Bench) -> None:
    """Without the header, the record's length is unknown; synced records after it are still not
    cut.
    """
    bench.write([1, 2, 3])
    first = borders(bench)[0]
    data = bench.load()
    bench.store(data[:first] + os.urandom(64) + data[first + 64 :])
    with pytest.raises(CorruptionError) as raised:
        bench.recover()
    assert raised.value.offset == first


def test_without_cut_the_log_is_not_changed(bench: Bench) -> None:
    """V1: `nyala fs check` on an open store does not cut a record that is just being written."""
    bench.write([1, 2], group_size=2)
    bench.store(bench.load()[:-5])
    before = bench.load()
    recovery = bench.recover(cut=False)
    assert recovery.torn is not None
    assert (recovery.torn.path, recovery.torn.offset) == (bench.path(), borders_of_prefix(bench, before))
    assert bench.check(recovery.records()) == [1]
    assert bench.load() == before
    with pytest.raises(AssertionError, match="G3"):
        LogWriter(bench.env, bench.directory, recovery)


def borders_of_prefix(bench: Bench, data: bytes) -> int:
    header = read_segment_header(bench.files, bench.path(), 1)
    upper = SEGMENT_HEADER_SIZE_BYTES
    try:
        for frame in read_frames(data[upper:], upper, header, bench.path()):
            upper = frame.upper
    except CorruptionError:
        pass
    return upper


def test_a_segment_of_a_later_version_is_refused_and_kept(bench: Bench) -> None:
    """The segment of a newer version is not cut as a torn tail."""
    os.makedirs(bench.directory)
    values: dict[str, Any] = {
        "magic": SEGMENT_MAGIC,
        "format_version": FORMAT_VERSION + 1,
        "compatible_flags": 0,
        "incompatible_flags": 0,
        "segment": 1,
        "start_offset": 0,
        "salt": 1,
        "store_id": bytes(16),
    }
    bench.store(SEGMENT_HEADER.encode(values))
    with pytest.raises(StorageError, match=f"version {FORMAT_VERSION + 1}"):
        bench.recover()
    bench.store(SEGMENT_HEADER.encode(values | {"format_version": FORMAT_VERSION, "incompatible_flags": 4}))
    with pytest.raises(StorageError, match="flags 0x4"):
        bench.recover()
    assert len(bench.load()) == 64
    bench.store(SEGMENT_HEADER.encode(values | {"format_version": FORMAT_VERSION, "compatible_flags": 4}))
    assert bench.recover(cut=False).record_count == 0


def test_log_offsets_continue_after_the_whole_log_was_dropped(bench: Bench) -> None:
    """A reader of the old segments can continue in the new one."""
    bench.write([1, 2], close=True)
    reader = bench.reader()
    assert bench.check(reader.read_to(None)) == [1, 2]
    writer = LogWriter(bench.env, bench.directory, recover(bench.env, bench.directory, 2))
    writer.append(bench.record(3))
    writer.sync()
    position = writer.synced.position
    assert bench.check(reader.read_to(position)) == [3]


# ── reader processes


def test_p1_a_reader_continues_where_it_stopped(bench: Bench) -> None:
    """A second process gets each batch once while the writer continues and starts new segments."""
    writer = bench.writer(segment_size_bytes=1200)
    reader = bench.reader()
    seen: list[int] = []
    for timestamp in range(1, 31):
        writer.append(bench.record(timestamp))
        if timestamp % 3 == 0:
            writer.sync()
            position = writer.synced.position
            seen += bench.check(reader.read_to(position))
            assert seen == list(range(1, timestamp + 1))
            assert reader.position == position
            assert list(reader.read_to(position)) == []
    assert reader.position.segment > 3
    writer.close()
    assert list(reader.read_to(None)) == []


def test_p1_a_reader_stops_at_the_published_position(bench: Bench) -> None:
    """A reader process never sees a batch before it is durable."""
    writer = bench.writer()
    reader = bench.reader()
    writer.sync(writer.append(bench.record(1)))
    position = writer.synced.position
    writer.append(bench.record(2))
    writer.write_pending()
    assert bench.check(reader.read_to(position)) == [1]


def test_p1_a_position_before_the_readers_own_gives_no_record(bench: Bench) -> None:
    """A position record that is older than the catalogue gives a new reader no records, and no
    error.
    """
    bench.write([1], close=True)
    reader = LogReader(bench.env, bench.directory, 2)
    assert list(reader.read_to(LogPosition(1, len(bench.load())))) == []
    assert list(reader.read_to(LogPosition(2, 0))) == []
    assert list(reader.read_to(LogPosition(2, 64))) == []
    assert reader.position == LogPosition(2, 0)


def test_a_position_at_the_start_of_a_future_segment(bench: Bench) -> None:
    """A reader can open right after the writer, before the first segment exists."""
    bench.write([1], close=True)
    writer = bench.writer()
    position = writer.synced.position
    assert position == LogPosition(2, 0)
    assert bench.check(bench.reader().read_to(position)) == [1]


def test_v3_missing_published_records_are_damage(bench: Bench) -> None:
    """A reader never answers for a moment whose batches it could not read."""
    bench.write([1, 2], group_size=2)
    size = len(bench.load())
    for wrong in (size + 8, borders(bench)[1] + 8):
        with pytest.raises(CorruptionError):
            list(bench.reader().read_to(LogPosition(1, wrong)))
    bench.store(bench.load()[: borders(bench)[1]])
    with pytest.raises(CorruptionError, match="published"):
        list(bench.reader().read_to(LogPosition(1, size)))
    assert bench.timestamps() == [1], "without a writer the same bytes are a torn tail"


def test_a_dropped_segment_is_distinguished_from_damage(bench: Bench) -> None:
    """A reader with an old catalogue gets an error that makes it read the catalogue again."""
    bench.write([1], close=True)
    bench.write([2], close=True)
    os.unlink(bench.path(1))
    for read in (lambda: bench.reader().read_to(LogPosition(2, 700)), lambda: bench.reader().read_to(None)):
        with pytest.raises(MissingFileError):
            list(read())


def test_a_reader_reports_damage_and_stops_at_a_torn_tail(bench: Bench) -> None:
    """Reading a closed store follows the rules of opening it, without a change to the store."""
    bench.write([1, 2, 3])
    good = bench.load()
    flip(bench, borders(bench)[0] + 70)
    with pytest.raises(CorruptionError, match="restore"):
        bench.timestamps()
    bench.store(good)
    flip(bench, len(good) - 1)
    before = bench.load()
    assert bench.timestamps() == [1, 2]
    assert bench.load() == before


@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.booleans())
def test_changed_bytes_never_give_a_wrong_record(
    new_bench: NewBench, seed: int, length: int, closed: bool
) -> None:
    """Whatever bytes change, each record that is returned was written, in this order."""
    bench = new_bench()
    bench.write(range(1, 6), group_size=2, close=closed)
    chance = random.Random(seed)
    data = bytearray(bench.load())
    lower = chance.randrange(len(data))
    damage = [b"", bytes(length), chance.randbytes(length), bytes(data[:length])][chance.randrange(4)]
    data[lower : lower + length] = damage
    bench.store(bytes(data))
    try:
        recovery = bench.recover()
        stamps = bench.check(recovery.records())
    except CorruptionError:
        return
    assert stamps == list(range(1, len(stamps) + 1))
