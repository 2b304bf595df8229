"""After a power cut at any moment, acknowledged records exist and the store opens (W1, R6).

Each test runs a writer over recorded files, cuts the power after every operation, and recovers each
state that a disk may then have.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nyala.env import PosixFiles
from nyala.testing import FaultyFiles, RecordingFiles, SimulatedCrash
from nyala.wal.reader import recover

NewBench = Callable[[], Any]


def write_some(
    bench: Any, recording: RecordingFiles, durability: str, chance: random.Random, first: int
) -> list[tuple[int, int]]:
    """Run a writer; return (events recorded, timestamp acknowledged as durable then), ascending."""
    writer = bench.with_files(recording).writer(durability=durability, segment_size_bytes=1500)
    acknowledged = []
    for timestamp in range(first, first + 14):
        writer.append(bench.record(timestamp, rows=chance.randrange(1, 12)))
        if durability != "commit":
            writer.write_pending()
        if chance.randrange(3) == 0:
            writer.sync()
            acknowledged.append((len(recording.events), timestamp))
    if chance.randrange(2):
        writer.close()
        acknowledged.append((len(recording.events), first + 13))
    return acknowledged


def durable_at(acknowledged: list[tuple[int, int]], event: int) -> int:
    return max((timestamp for at, timestamp in acknowledged if at <= event), default=0)


@pytest.mark.parametrize("durability", ["commit", "os"])
@given(seed=st.integers(0, 2**32 - 1))
def test_w1_acknowledged_records_survive_a_power_cut_at_any_moment(
    new_bench: NewBench, durability: str, seed: int
) -> None:
    """No acknowledged batch is lost, and a torn tail is not reported as damage."""
    chance = random.Random(seed)
    bench = new_bench()
    root = os.path.dirname(bench.directory)
    recording = RecordingFiles(PosixFiles(), root)
    acknowledged = write_some(bench, recording, durability, chance, 1)
    for cut in sorted(chance.sample(range(len(recording.events) + 1), min(6, len(recording.events)))):
        image = new_bench()
        image.directory = os.path.join(image.directory, "image", "wal")
        recording.crash_image(cut, chance, os.path.dirname(image.directory))
        recovery = image.recover()
        stamps = image.check(recovery.records())
        assert stamps == list(range(1, len(stamps) + 1)), "no record is missing, and no other record exists"
        assert len(stamps) >= durable_at(acknowledged, cut), "no acknowledged record is lost (W1)"
        assert image.check(image.recover().records()) == stamps, "a second recovery finds the same"


@given(seed=st.integers(0, 2**32 - 1))
def test_a_power_cut_during_the_recovery_from_a_power_cut(new_bench: NewBench, seed: int) -> None:
    """A second power cut during recovery loses no acknowledged batch."""
    chance = random.Random(seed)
    bench = new_bench()
    recording = RecordingFiles(PosixFiles(), os.path.dirname(bench.directory))
    acknowledged = write_some(bench, recording, "commit", chance, 1)
    cut = chance.randrange(len(recording.events) + 1)
    image = new_bench()
    image.directory = os.path.join(image.directory, "image", "wal")
    root = os.path.dirname(image.directory)
    recording.crash_image(cut, chance, root)
    durable = durable_at(acknowledged, cut)

    second = RecordingFiles(PosixFiles(), root)
    recovery = recover(image.with_files(second).env, image.directory, 1)
    recovered = recovery.timestamp_max
    assert recovered >= durable
    later = write_some(image, second, "commit", chance, recovered + 1)
    for cut in range(chance.randrange(5), len(second.events) + 1, 5):
        again = new_bench()
        again.directory = os.path.join(again.directory, "image", "wal")
        second.crash_image(cut, chance, os.path.dirname(again.directory))
        stamps = again.check(again.recover().records())
        assert stamps == list(range(1, len(stamps) + 1))
        assert len(stamps) >= max(durable, durable_at(later, cut))


def test_a_killed_process_loses_no_written_record(new_bench: NewBench) -> None:
    """After kill -9, everything that was written exists, synced or not."""
    bench = new_bench()
    recording = RecordingFiles(PosixFiles(), os.path.dirname(bench.directory))
    writer = bench.with_files(recording).writer(durability="os", segment_size_bytes=1500)
    given = []
    for timestamp in range(1, 11):
        writer.append(bench.record(timestamp))
        writer.write_pending()
        given.append((len(recording.events), timestamp))
    for cut, timestamp in given:
        image = new_bench()
        image.directory = os.path.join(image.directory, "image", "wal")
        recording.live_image(cut, os.path.dirname(image.directory))
        assert image.check(image.recover().records()) == list(range(1, timestamp + 1))


def test_after_any_failed_operation_the_log_opens(new_bench: NewBench) -> None:
    """If any single operation fails, the log opens again and has every synced record."""
    count = FaultyFiles(PosixFiles())
    assert run_against(new_bench(), count) == 8
    total = len(count.operations)
    assert total > 15
    for kind in ("eio", "short", "enospc", "crash"):
        for fail_at in range(1, total + 1):
            bench = new_bench()
            faulty = FaultyFiles(PosixFiles(), fail_at=fail_at, kind=kind)  # type: ignore[arg-type]
            durable = run_against(bench, faulty)
            recovery = bench.recover()
            stamps = bench.check(recovery.records())
            assert stamps == list(range(1, len(stamps) + 1)), (kind, fail_at)
            assert len(stamps) >= durable, (kind, fail_at)


def run_against(bench: Any, files: FaultyFiles) -> int:
    """Write until an operation fails; return the last acknowledged timestamp."""
    durable = 0
    try:
        writer = bench.with_files(files).writer(segment_size_bytes=1000)
        for timestamp in range(1, 9):
            writer.sync(writer.append(bench.record(timestamp)))
            durable = timestamp
        writer.close()
    except (OSError, SimulatedCrash):
        assert files.failed
    return durable
