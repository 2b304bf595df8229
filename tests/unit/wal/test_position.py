"""The position record: which records a reader process accepts."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nyala.env import PosixFiles
from nyala.errors import CorruptionError, StorageError
from nyala.wal import format
from nyala.wal.position import LogPosition, PositionRecord, read_position, write_position

FILES = PosixFiles()
UNSIGNED = st.integers(0, 2**64 - 1)


@given(UNSIGNED, UNSIGNED, st.integers(-(2**63), 2**63 - 1), UNSIGNED)
def test_an_encoded_record_decodes_to_the_same(
    segment: int, offset: int, timestamp: int, version: int
) -> None:
    record = PositionRecord(LogPosition(segment, offset), timestamp, version)
    assert len(record.encode()) == 64
    assert PositionRecord.decode(record.encode()) == record


def test_a_record_with_a_flipped_bit_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "position")
    good = PositionRecord(LogPosition(3, 4096), 77, 12).encode()
    for bit in range(64 * 8):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises((CorruptionError, StorageError)):
            PositionRecord.decode(bytes(bad))
    FILES.write_at(path, 0, good[:40])
    assert read_position(FILES, path) is None


def test_a_missing_record_is_none(tmp_path: Path) -> None:
    """A store that was just created has no record, and can be opened for reading."""
    assert read_position(FILES, str(tmp_path / "position")) is None


def test_a_record_of_a_later_version_is_refused(tmp_path: Path) -> None:
    """The error advises to update."""
    record = format.POSITION.encode(
        {
            "magic": format.POSITION_MAGIC,
            "format_version": format.FORMAT_VERSION + 1,
            "compatible_flags": 0,
            "segment": 1,
            "offset": 2,
            "timestamp": 3,
            "catalogue_version": 4,
            "store_id": bytes(16),
        }
    )
    FILES.write_at(str(tmp_path / "position"), 0, record)
    with pytest.raises(StorageError, match="version 3"):
        read_position(FILES, str(tmp_path / "position"))


def test_a_reader_during_an_update_reads_again(tmp_path: Path) -> None:

    class Halfway(PosixFiles):
        def __init__(self) -> None:
            self.reads = 0

        def read_all(self, path: str) -> bytes:
            self.reads += 1
            data = super().read_all(path)
            return data if self.reads == 3 else data[:32] + bytes(32)

    path = str(tmp_path / "position")
    record = PositionRecord(LogPosition(3, 4096), 77, 12)
    write_position(FILES, path, record)
    assert read_position(Halfway(), path) == record


def test_a_reader_never_sees_a_part_of_an_update(tmp_path: Path) -> None:
    """It never combines the segment of one update with the offset of another."""
    path = str(tmp_path / "position")
    stop = threading.Event()
    write_position(FILES, path, PositionRecord(LogPosition(0, 0), 0, 0))

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            write_position(FILES, path, PositionRecord(LogPosition(number, number * 7), number, number))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(2000):
            record = read_position(FILES, path)
            assert record is not None
            assert record.position == LogPosition(record.catalogue_version, record.catalogue_version * 7)
    finally:
        stop.set()
        thread.join()
    assert os.path.getsize(path) == 64
