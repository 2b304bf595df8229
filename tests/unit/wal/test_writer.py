"""Appending and group sync: which threads wait, when records are durable, and failures."""

from __future__ import annotations

import errno
import os
import threading
from typing import Any

import pytest
from tests.unit.wal.conftest import Waiter

from nyala.env import AppendFile, PosixFiles
from nyala.errors import StorageError
from nyala.testing import FaultyFiles, Operation, RecordingFiles
from nyala.wal.format import FRAME_SIZE_BYTES, SEGMENT_HEADER_SIZE_BYTES, FrameHeader
from nyala.wal.position import LogPosition
from nyala.wal.reader import SegmentInfo, read_frames, read_segment_header
from nyala.wal.writer import GROUP_SYNC_INTERVAL_S, LogWriter

Bench = Any  # the class of conftest.py, which tests cannot import


def is_sync(operation: Operation) -> bool:
    return operation.kind == "sync"


def headers_of(bench: Bench, segment: int = 1) -> list[FrameHeader]:
    path = bench.path(segment)
    data = bench.load(segment)[SEGMENT_HEADER_SIZE_BYTES:]
    segment_header = read_segment_header(bench.files, path, segment)
    return [frame.header for frame in read_frames(data, SEGMENT_HEADER_SIZE_BYTES, segment_header, path)]


class SlowSync(PosixFiles):
    """Blocks each sync until the test releases it."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)
        self.error: StorageError | None = None

    def create(self, path: str) -> AppendFile:
        file = super().create(path)
        plain_sync = file.sync

        def sync() -> None:
            self.entered.release()
            assert self.go_on.acquire(timeout=20)
            if self.error is not None:
                raise self.error
            plain_sync()

        file.sync = sync  # type: ignore[method-assign]
        return file


def test_no_file_is_created_before_the_first_record(bench: Bench) -> None:
    """Opening and closing a store leaves no segment file."""
    writer = bench.writer()
    writer.sync()
    writer.roll()
    writer.close()
    assert os.listdir(bench.directory) == []
    assert writer.segments() == []


def test_every_open_starts_a_new_segment(bench: Bench) -> None:
    """A writer never appends after a tail that was cut."""
    for timestamp in (1, 2, 3):
        writer = bench.writer()
        writer.append(bench.record(timestamp))
        writer.close()
    assert sorted(os.listdir(bench.directory)) == [f"wal-{number:09d}" for number in (1, 2, 3)]
    assert bench.timestamps() == [1, 2, 3]


def test_one_sync_serves_all_waiting_threads(bench: Bench) -> None:
    """Nine threads that write at once need two syncs."""
    files = SlowSync()
    writer = bench.with_files(files).writer()
    first = Waiter(lambda: writer.sync(writer.append(bench.record(1))))
    assert files.entered.acquire(timeout=20)
    offsets = [writer.append(bench.record(timestamp)) for timestamp in range(2, 10)]
    others = [Waiter(lambda offset=offset: writer.sync(offset)) for offset in offsets]  # type: ignore[misc]
    files.go_on.release()
    assert first.end() is None
    assert files.entered.acquire(timeout=20)
    assert writer.synced.timestamp == 1
    files.go_on.release()
    assert [other.end() for other in others] == [None] * 8
    assert not files.entered.acquire(blocking=False), "more than two syncs"
    assert writer.synced.timestamp == 9
    synced = [header.synced_through for header in headers_of(bench)]
    assert synced == [0] + [headers_of(bench)[1].log_offset] * 8


def test_r6_a_group_is_written_after_the_sync_of_the_previous_group(bench: Bench) -> None:
    """R6: a group is written after the sync of the group before.

    Otherwise a power cut could leave a gap in synced records that looks like a torn tail.
    """
    recording = RecordingFiles(PosixFiles(), os.path.dirname(bench.directory))
    writer = bench.with_files(recording).writer(segment_size_bytes=4000)
    lock = threading.Lock()
    timestamps = iter(range(1, 1000))

    def work() -> None:
        for _ in range(10):
            with lock:
                offset = writer.append(bench.record(next(timestamps)))
            writer.sync(offset)

    assert [waiter.end() for waiter in [Waiter(work) for _ in range(6)]] == [None] * 6
    writer.close()
    dirty: str | None = None
    created: set[str] = set()
    for event in recording.events:
        if event.kind == "write":
            assert dirty is None, f"{event.path} was written to before {dirty} was synced"
            dirty = event.path
        elif event.kind == "sync":
            dirty = None
        elif event.kind == "create":
            assert dirty is None, "G3: a segment was created before the earlier one was closed"
            created.add(event.path)
    assert len(created) > 3
    assert bench.timestamps() == list(range(1, 61))


@pytest.mark.parametrize("durability", ["commit", "group", "os"])
def test_headers_state_as_synced_only_synced_records(bench: Bench, durability: str) -> None:
    """L3: a header that states too much would turn a torn tail into damage."""
    recording = RecordingFiles(PosixFiles(), os.path.dirname(bench.directory))
    writer = bench.with_files(recording).writer(durability=durability, segment_size_bytes=1500)
    for timestamp in range(1, 21):
        writer.append(bench.record(timestamp))
        if timestamp % 2:
            writer.write_pending()
        if timestamp % 5 == 0:
            writer.sync()
    writer.close()
    synced = written = 0
    for event in recording.events:
        if event.kind == "write":
            assert event.data is not None
            data = event.data
            number = int(event.path[-9:])
            header = read_segment_header(bench.files, bench.path(number), number)
            skip = SEGMENT_HEADER_SIZE_BYTES if event.offset == 0 else 0
            for frame in read_frames(data[skip:], event.offset + skip, header, event.path):
                assert frame.header.synced_through <= synced
            written = header.start_offset + event.offset + len(data)
        elif event.kind == "sync":
            synced = written
    assert synced == written


def test_a_new_segments_name_is_durable_before_its_records(bench: Bench) -> None:
    """G2: the folder is synced before records of a new segment are acknowledged."""
    recording = RecordingFiles(PosixFiles(), os.path.dirname(bench.directory))
    writer = bench.with_files(recording).writer()
    writer.append(bench.record(1))
    writer.sync()
    kinds = [event.kind for event in recording.events]
    assert kinds[-4:] == ["create", "write", "sync", "sync_dir"]
    writer.append(bench.record(2))
    writer.sync()
    assert [event.kind for event in recording.events][-2:] == ["write", "sync"]


def test_w1_a_failed_sync_reports_an_unknown_outcome_to_every_waiter(bench: Bench) -> None:
    """After a failed sync, batches may be durable or not, and each caller gets this error."""
    files = SlowSync()
    writer = bench.with_files(files).writer()
    first = Waiter(lambda: writer.sync(writer.append(bench.record(1))))
    assert files.entered.acquire(timeout=20)
    offset = writer.append(bench.record(2))
    second = Waiter(lambda: writer.sync(offset))
    files.error = StorageError("the disk is gone", errno=errno.EIO)
    files.go_on.release()
    for waiter in (first, second):
        error = waiter.end()
        assert isinstance(error, StorageError)
        assert (error.outcome, error.errno) == ("unknown", errno.EIO)
        assert "next open" in str(error)
    with pytest.raises(StorageError, match="accepts no more records") as refused:
        writer.append(bench.record(3))
    assert refused.value.outcome is None, "this call wrote nothing"
    writer.close()
    assert writer.failure is not None


def test_after_a_failed_sync_earlier_synced_records_stay_acknowledged(bench: Bench) -> None:
    """A batch that was synced before the failure raises no error."""
    faulty = FaultyFiles(PosixFiles(), fail_at=2, kind="eio", only=is_sync)
    writer = bench.with_files(faulty).writer()
    first = writer.append(bench.record(1))
    writer.sync(first)
    with pytest.raises(StorageError):
        writer.sync(writer.append(bench.record(2)))
    writer.sync(first)
    assert (writer.synced.offset, writer.synced.timestamp) == (first, 1)


def test_after_a_failed_write_the_log_opens(bench: Bench) -> None:
    """If the disk fills up inside a record, the store still opens."""
    faulty = FaultyFiles(
        PosixFiles(), fail_at=2, kind="short", only=lambda operation: operation.kind == "append"
    )
    writer = bench.with_files(faulty).writer()
    writer.sync(writer.append(bench.record(1)))
    with pytest.raises(StorageError) as failed:
        writer.sync(writer.append(bench.record(2)))
    assert failed.value.outcome == "unknown"
    writer.close()
    faulty.heal()
    recovery = bench.recover()
    assert recovery.timestamp_max == 1 and recovery.torn is not None
    assert bench.timestamps() == [1]


def test_a_full_disk_refuses_a_record_until_there_is_space(bench: Bench) -> None:
    """A full disk is noticed before the batch is applied, so the store need not be reopened."""
    faulty = FaultyFiles(
        PosixFiles(), fail_at=1, kind="enospc", only=lambda operation: operation.path.endswith("other")
    )
    writer = bench.with_files(faulty).writer()
    writer.sync(writer.append(bench.record(1)))
    with pytest.raises(StorageError):
        faulty.create(os.path.join(bench.directory, "other"))
    with pytest.raises(StorageError, match="free some space") as refused:
        writer.append(bench.record(2))
    assert (refused.value.errno, refused.value.outcome) == (errno.ENOSPC, None)
    faulty.heal()
    writer.sync(writer.append(bench.record(2)))
    assert bench.timestamps() == [1, 2]


def test_an_interrupted_sync_is_repeated(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C during a sync, the store need not be reopened."""
    writer = bench.writer()
    offset = writer.append(bench.record(1))
    plain, interrupted = os.fdatasync, []

    def fdatasync(fd: int) -> None:
        if not interrupted:
            interrupted.append(fd)
            raise KeyboardInterrupt
        plain(fd)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    with pytest.raises(KeyboardInterrupt):
        writer.sync(offset)
    assert writer.synced.timestamp == 0
    writer.sync(writer.append(bench.record(2)))
    assert writer.synced.timestamp == 2
    assert bench.timestamps() == [1, 2]


def test_an_interrupted_write_is_not_continued(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """No record is written after a part of another record."""
    writer = bench.writer()
    offset = writer.append(bench.record(1))

    def writev(fd: int, parts: list[memoryview]) -> int:
        os.write(fd, parts[0][:10])
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "writev", writev)
    with pytest.raises(KeyboardInterrupt):
        writer.sync(offset)
    monkeypatch.undo()
    with pytest.raises(StorageError):
        writer.append(bench.record(2))
    writer.close()
    assert bench.recover().record_count == 0


def test_group_durability_syncs_in_time_without_a_caller(bench: Bench) -> None:
    """With durability "group", records are durable within 100 ms."""
    writer = bench.writer(durability="group")
    assert writer.sync_if_due() is None
    writer.append(bench.record(1))
    writer.write_pending()
    left = writer.sync_if_due()
    assert left is not None
    assert 0 < left <= GROUP_SYNC_INTERVAL_S < 0.1
    assert (writer.written.timestamp, writer.synced.timestamp) == (1, 0)
    bench.clock.advance(GROUP_SYNC_INTERVAL_S)
    assert writer.sync_if_due() is None
    assert writer.synced.timestamp == 1
    writer.append(bench.record(2))
    assert writer.sync_if_due() == pytest.approx(GROUP_SYNC_INTERVAL_S), (
        "counted from the record's own append"
    )


def test_records_appended_during_a_sync_are_due_since_their_append(bench: Bench) -> None:
    """A steady stream of writers does not delay any record's sync."""
    files = SlowSync()
    writer = bench.with_files(files).writer(durability="group")
    writer.append(bench.record(1))
    waiter = Waiter(writer.sync)
    assert files.entered.acquire(timeout=20)
    writer.append(bench.record(2))
    bench.clock.advance(GROUP_SYNC_INTERVAL_S)
    files.go_on.release()
    assert waiter.end() is None
    files.go_on.release()
    assert writer.sync_if_due() is None
    assert writer.synced.timestamp == 2


def test_os_durability_syncs_at_close_only(bench: Bench) -> None:
    """With durability "os", writes do not sync, and close() does."""
    recording = RecordingFiles(PosixFiles(), os.path.dirname(bench.directory))
    writer = bench.with_files(recording).writer(durability="os")
    writer.append(bench.record(1))
    writer.write_pending()
    bench.clock.advance(1000)
    assert writer.sync_if_due() is None
    assert (writer.written.timestamp, writer.synced.timestamp) == (1, 0)
    assert "sync" not in [event.kind for event in recording.events]
    assert bench.timestamps() == [1]
    writer.close()
    assert writer.synced.timestamp == 1


def test_written_records_do_not_count_as_synced(bench: Bench) -> None:
    """W1: another process never sees a batch that a power cut can remove."""
    writer = bench.writer()
    writer.append(bench.record(1))
    writer.write_pending()
    assert (writer.synced.position, writer.synced.timestamp) == (LogPosition(1, 0), 0)
    assert writer.written.position == LogPosition(1, len(bench.load()))
    writer.sync()
    assert writer.synced == writer.written


def test_segments_end_at_their_size_and_the_oldest_are_dropped(bench: Bench) -> None:
    """The log consists of segments, so that its oldest part can be removed."""
    writer = bench.writer(segment_size_bytes=2000)
    for timestamp in range(1, 21):
        writer.sync(writer.append(bench.record(timestamp)))
    infos = writer.segments()
    assert [info.number for info in infos] == list(range(1, len(infos) + 1))
    assert [info.closed for info in infos] == [True] * (len(infos) - 1) + [False]
    assert [info.size_bytes for info in infos] == [len(bench.load(info.number)) for info in infos]
    assert all(2000 <= info.size_bytes < 3500 for info in infos[:-1])
    stamps = [info.timestamp_max for info in infos]
    assert (stamps, stamps[-1]) == (sorted(set(stamps)), 20)
    assert writer.size_bytes == sum(info.size_bytes for info in infos)
    assert writer.drop([1, 2]) == [bench.path(1), bench.path(2)]
    assert [info.number for info in writer.segments()] == [info.number for info in infos[2:]]
    assert writer.size_bytes == sum(info.size_bytes for info in infos[2:])
    writer.close()
    assert bench.timestamps() == list(range(1, 21))
    again = bench.writer()  # old segments are counted too
    assert again.size_bytes == sum(len(bench.load(info.number)) for info in again.segments()) > 0
    again.close()


def test_roll_closes_the_present_segment_at_once(bench: Bench) -> None:
    """After a flush of everything, no segment has to be replayed at the next open."""
    writer = bench.writer()
    writer.append(bench.record(1))
    writer.roll()
    (info,) = writer.segments()
    assert info == SegmentInfo(1, bench.path(1), 1, len(bench.load()), True)
    assert headers_of(bench)[-1].is_footer
    writer.append(bench.record(2))
    assert writer.size_bytes > info.size_bytes, "waiting records are counted"
    writer.sync()
    assert [info.number for info in writer.segments()] == [1, 2]
    assert bench.timestamps() == [1, 2]


def test_a_group_larger_than_a_segment_is_not_split(bench: Bench) -> None:
    """A group is in one file, because one sync must make it durable."""
    writer = bench.writer(segment_size_bytes=1000)
    for timestamp in range(1, 11):
        writer.append(bench.record(timestamp))
    writer.sync()
    writer.append(bench.record(11))
    writer.sync()
    assert [info.timestamp_max for info in writer.segments()] == [10, 11]
    assert bench.timestamps() == list(range(1, 12))


def test_the_next_segment_fills_during_a_slow_sync(bench: Bench) -> None:
    """A record is written into the segment that its header was made for."""
    files = SlowSync()
    writer = bench.with_files(files).writer(segment_size_bytes=100)
    first = Waiter(lambda: writer.sync(writer.append(bench.record(1))))
    assert files.entered.acquire(timeout=20)
    waiters = []
    for timestamp in (2, 3, 4):
        offset = writer.append(bench.record(timestamp))
        waiters.append(Waiter(lambda offset=offset: writer.sync(offset)))  # type: ignore[misc]
    files.go_on.release(100)  # type: ignore[call-arg]
    assert [waiter.end() for waiter in (first, *waiters)] == [None] * 4
    writer.append(bench.record(5))
    writer.close()
    assert bench.timestamps() == [1, 2, 3, 4, 5]


def test_a_closed_log_ends_in_a_synced_footer(bench: Bench) -> None:
    """R6: damage of the last batches before a clean close is not a torn tail."""
    recording = RecordingFiles(PosixFiles(), os.path.dirname(bench.directory))
    writer = bench.with_files(recording).writer()
    writer.append(bench.record(1))
    writer.close()
    writer.close()
    assert [event.kind for event in recording.events][-5:] == ["write", "sync", "sync_dir", "write", "sync"]
    footer = headers_of(bench)[-1]
    assert (footer.is_footer, footer.ordinal, footer.timestamp) == (True, 1, 1)
    assert footer.synced_through == footer.log_offset == len(bench.load()) - FRAME_SIZE_BYTES
    with pytest.raises(StorageError, match="closed"):
        writer.append(bench.record(2))


def test_l2_a_timestamp_that_does_not_ascend_is_a_bug(bench: Bench) -> None:
    """Timestamps ascend, so replay applies batches in the order of their acknowledgement."""
    writer: LogWriter = bench.writer()
    writer.append(bench.record(5))
    with pytest.raises(AssertionError, match="L2"):
        writer.append(bench.record(5))
