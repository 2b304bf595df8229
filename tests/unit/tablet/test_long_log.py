"""A log longer than the memory limit: the replay flushes in between, and a crash changes nothing."""

from __future__ import annotations

import logging
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.figures import counted
from tests.sampled import every_nth, is_long_run
from tests.support import folder_in_memory, open_database, rows

import nyala
from nyala.api.database import Database
from nyala.env import SYSTEM, system_files
from nyala.tablet.recovery import bootstrap
from nyala.tablet.recovery.reader_store import ReaderStore
from nyala.testing.faulty_files import FaultyFiles, SimulatedCrash
from nyala.testing.recording_files import RecordingFiles

LIMIT_BYTES = 400_000
ROWS = 1000


@pytest.fixture(autouse=True)
def gathered_in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "GATHER_ROWS", 2 * ROWS)


@pytest.fixture(scope="module")
def made() -> Iterator[tuple[Path, dict[int, list[tuple[object, ...]]]]]:
    """A store with a log of ten times the memory limit, and its content at some moments."""
    with folder_in_memory() as folder:
        moments = {}
        with open_database(folder / "s") as db:
            t = db.create_table(
                "t", {"k": "int64", "v": "int64", "s": "string"}, "k", nyala.hash_partition("k", buckets=2)
            )
            db.create_table("u", {"k": "int64"}, "k").insert({"k": [1]})
            db.flush()
            for part in range(16):
                keys = range(part * ROWS, (part + 1) * ROWS)
                t.insert({"k": keys, "v": keys, "s": [f"text number {n}" for n in keys]})
                t.update({"k": range(0, part * ROWS + 1, 97), "v": [part] * (part * ROWS // 97 + 1)})
                t.delete({"k": [part * ROWS + 500]})
                if part:
                    t.insert({"k": [part * ROWS - 500], "v": [-part], "s": ["again"]})
                db["u"].upsert({"k": [part]})
                if part % 5 == 0:
                    moments[db.now()] = rows(t)
                if part % 3 == 0:
                    db._writer().log.roll()
            moments[db.now()] = rows(t)
        yield folder / "s", moments


@pytest.fixture
def long_log(
    made: tuple[Path, dict[int, list[tuple[object, ...]]]],
) -> Iterator[tuple[Path, dict[int, list[tuple[object, ...]]]]]:
    """Return a copy of the store, which the test may change."""
    path, moments = made
    with folder_in_memory() as folder:
        shutil.copytree(path, folder / "s")
        yield folder / "s", moments


def test_a_long_log_is_replayed_in_bounded_memory(
    long_log: tuple[Path, dict[int, list[tuple[object, ...]]]], caplog: pytest.LogCaptureFixture
) -> None:
    path, moments = long_log
    with (
        caplog.at_level(logging.INFO, "nyala.store"),
        open_database(path, memory_limit_bytes=LIMIT_BYTES) as db,
    ):
        assert caplog.text.count("the log is long") >= 3
        assert db.stats().memory_bytes < LIMIT_BYTES
        assert db.now() == max(moments)
        for at, expected in moments.items():
            assert rows(db["t"], at=at) == expected
        assert db["u"].count() == 16
        assert db.check().ok
        db["t"].upsert({"k": [-1], "v": [1]})
    with open_database(path) as db:
        assert len(rows(db["t"])) == len(moments[max(moments)]) + 1
        assert db.check().ok


@dataclass(frozen=True)
class Recovery:
    """A recorded open that replays a long log."""

    recording: RecordingFiles
    events: int


@pytest.fixture
def recovery(long_log: tuple[Path, dict[int, list[tuple[object, ...]]]]) -> Recovery:
    path, _ = long_log
    live = path.with_name("live")
    shutil.copytree(path, live / "s")
    recording = RecordingFiles(system_files(), str(live))
    with open_database(live / "s", files=recording, memory_limit_bytes=LIMIT_BYTES):
        return Recovery(recording, len(recording.events))


def check_power_cut(
    long_log: tuple[Path, dict[int, list[tuple[object, ...]]]], recovery: Recovery, event: int, seed: int
) -> None:
    path, moments = long_log
    image = path.with_name("image")
    shutil.rmtree(image, ignore_errors=True)
    recovery.recording.crash_image(event, random.Random(seed), str(image))
    with open_database(image / "s", memory_limit_bytes=LIMIT_BYTES) as db:
        for at, expected in moments.items():
            assert rows(db["t"], at=at) == expected, f"a power cut after event {event}, seed {seed}"
        assert db["u"].count() == 16
        assert db.check().ok


def test_a_power_cut_in_the_replay_of_a_long_log_changes_nothing(
    long_log: tuple[Path, dict[int, list[tuple[object, ...]]]],
    recovery: Recovery,
    request: pytest.FixtureRequest,
) -> None:
    """Power cuts at some writes, syncs and renames change no row. Unsynced data is lost, torn or kept."""
    assert recovery.events > 50
    for event in every_nth(recovery.events // 2, range(8, recovery.events), request):
        check_power_cut(long_log, recovery, event, event)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(2))
def test_a_power_cut_at_any_event_of_the_replay_changes_nothing(
    long_log: tuple[Path, dict[int, list[tuple[object, ...]]]], recovery: Recovery, seed: int
) -> None:
    with counted("power cuts in the replay of a log that is longer than memory may be", "images") as tried:
        for event in range(recovery.events + 1):
            check_power_cut(long_log, recovery, event, seed)
            tried.append(1)


def test_a_crash_in_the_replay_of_a_long_log_changes_nothing(
    long_log: tuple[Path, dict[int, list[tuple[object, ...]]]],
) -> None:
    """The process ends during the replay, and its writes so far are on the disk. No row changes."""
    path, moments = long_log
    crashed = path.with_name("crashed")
    for fail_at in (14, 36)[:: 1 if is_long_run() else 2]:
        shutil.rmtree(crashed, ignore_errors=True)
        shutil.copytree(path, crashed)
        files = FaultyFiles(system_files(), fail_at, "crash")
        with pytest.raises(SimulatedCrash):
            open_database(crashed, files=files, memory_limit_bytes=LIMIT_BYTES).close()
        with open_database(crashed, memory_limit_bytes=LIMIT_BYTES) as db:
            for at, expected in moments.items():
                assert rows(db["t"], at=at) == expected, fail_at
            assert db.check().ok


def test_a_store_with_a_long_log_opens_on_a_full_disk(
    long_log: tuple[Path, dict[int, list[tuple[object, ...]]]], caplog: pytest.LogCaptureFixture
) -> None:
    """The rows then take more memory than the limit."""
    path, moments = long_log
    files = FaultyFiles(system_files(), 1, "enospc", lambda operation: operation.path.endswith(".base"))
    with open_database(path, files=files, memory_limit_bytes=LIMIT_BYTES) as db:
        assert "the flush during the log's replay failed" in caplog.text
        assert rows(db["t"]) == moments[max(moments)]
        files.heal()
        db.flush()
        assert rows(db["t"]) == moments[max(moments)] and db.check().ok


def test_a_reader_refuses_a_log_above_its_limit(
    long_log: tuple[Path, dict[int, list[tuple[object, ...]]]],
) -> None:
    """A reader cannot flush. The error has a remedy. After a flush of the writer, the reader works."""
    path, moments = long_log
    newest = moments[max(moments)]
    with pytest.raises(
        nyala.StorageError, match=r"memory_limit of 0 MB can hold: call flush\(\) in the writer"
    ):
        ReaderStore.open(SYSTEM, str(path), LIMIT_BYTES)
    with Database(ReaderStore.open(SYSTEM, str(path), LIMIT_BYTES, 1 << 30)) as reader:
        assert rows(reader["t"]) == newest
    with open_database(path) as db:
        db.flush()
        with Database(ReaderStore.open(SYSTEM, str(path), LIMIT_BYTES)) as reader:
            assert rows(reader["t"]) == newest
            snapshot = reader.snapshot()
            for part in range(8):
                keys = range(part * 2 * ROWS, (part + 1) * 2 * ROWS)
                db["t"].upsert({"k": keys, "s": ["text that is written once more"] * len(keys)})
            for _ in range(2):
                with pytest.raises(nyala.StorageError, match="call flush"):
                    reader["t"].count()
            assert rows(snapshot["t"]) == newest, "earlier views stay readable"
            assert nyala.check(path).ok, "a check has no such limit"
            db.flush()
            assert rows(reader["t"]) == rows(db["t"])
