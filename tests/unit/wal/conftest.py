"""Logs for tests: an Env whose clock and randomness the test sets, and records that are easy to
compare.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pytest

from nyala.env import Env, Files, PosixFiles
from nyala.testing import ManualClock, SeededRandomness
from nyala.wal.reader import LogReader, Recovery, recover
from nyala.wal.record import LogRecord, ResolvedGroup
from nyala.wal.writer import LogWriter


def make_record(timestamp: int, rows: int = 3, key: str | None = None) -> LogRecord:
    """Return a batch whose values all follow from its timestamp."""
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(range(timestamp * 1000, timestamp * 1000 + rows), pa.int64()),
            pa.array([f"row {i} of {timestamp}" for i in range(rows)], pa.string()),
        ],
        names=["10", "11"],
    )
    return LogRecord(timestamp, key, (ResolvedGroup(1, 1, "insert", (5, 7), (0, rows // 2, rows), batch),))


class Waiter(threading.Thread):
    """Runs a function in its own thread, and keeps its error."""

    def __init__(self, action: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self.action = action
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.action()
        except BaseException as error:
            self.error = error

    def end(self) -> BaseException | None:
        self.join(timeout=20)
        assert not self.is_alive(), "the thread still waits"
        return self.error


@dataclass
class Bench:
    """A folder with a log."""

    directory: str
    clock: ManualClock = field(default_factory=ManualClock)
    randomness: SeededRandomness = field(default_factory=SeededRandomness)
    files: Files = field(default_factory=PosixFiles)

    @property
    def env(self) -> Env:
        return Env(self.files, self.clock, self.randomness)

    def record(self, timestamp: int, rows: int = 3, key: str | None = None) -> LogRecord:
        return make_record(timestamp, rows, key)

    def recover(self, cut: bool = True) -> Recovery:
        return recover(self.env, self.directory, 1, cut=cut)

    def writer(self, durability: str = "commit", segment_size_bytes: int = 8 << 20) -> LogWriter:
        return LogWriter(
            self.env,
            self.directory,
            self.recover(),
            durability=durability,  # type: ignore[arg-type]
            segment_size_bytes=segment_size_bytes,
        )

    def write(self, timestamps: Iterable[int], group_size: int = 1, close: bool = False) -> None:
        """Append a record for each timestamp, with a sync after every `group_size` of them."""
        writer = self.writer()
        for count, timestamp in enumerate(timestamps, 1):
            writer.append(make_record(timestamp))
            if count % group_size == 0:
                writer.sync()
        if close:
            writer.close()

    def reader(self) -> LogReader:
        return LogReader(self.env, self.directory, 1)

    def timestamps(self) -> list[int]:
        """Return the timestamps of all good records, after a comparison of every value."""
        return check_records(self.reader().read_to(None))

    def path(self, segment: int = 1) -> str:
        return os.path.join(self.directory, f"wal-{segment:09d}")

    def load(self, segment: int = 1) -> bytes:
        with open(self.path(segment), "rb") as file:
            return file.read()

    def store(self, data: bytes, segment: int = 1) -> None:
        with open(self.path(segment), "wb") as file:
            file.write(data)

    def with_files(self, files: Files) -> Bench:
        return replace(self, files=files)

    def check(self, records: Iterable[LogRecord]) -> list[int]:
        return check_records(records)


def check_records(records: Iterable[LogRecord]) -> list[int]:
    """Return the timestamps, after a comparison of every value."""
    timestamps = []
    for record in records:
        expected = make_record(record.timestamp, record.row_count, record.idempotency_key)
        assert record == expected
        timestamps.append(record.timestamp)
    return timestamps


@pytest.fixture
def bench(tmp_path: object) -> Bench:
    return Bench(os.path.join(str(tmp_path), "wal"))


@pytest.fixture(scope="session")
def new_bench(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Bench]:
    """Create a log per example, for tests with Hypothesis."""
    return lambda: Bench(os.path.join(str(tmp_path_factory.mktemp("log")), "wal"))


@pytest.fixture(scope="module", autouse=True)
def no_real_syncs() -> Iterator[None]:
    """Replace syncs by nothing, to save time. Power is cut only on recorded files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fdatasync", lambda fd: None)
        patch.setattr(os, "fsync", lambda fd: None)
        yield
