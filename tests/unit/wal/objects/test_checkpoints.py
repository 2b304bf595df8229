"""Checkpoints, and the objects that the writer then deletes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from nyala.errors import FencedError, StorageError
from nyala.testing import SimulatedCrash
from nyala.wal.objects.format import Kind, Slot, encode_group
from nyala.wal.objects.format import Record as LogRecord

Bench = Any  # the class of conftest.py, which tests cannot import


def test_a_checkpoint_has_the_state_of_its_border(bench: Bench) -> None:
    """Records after the border are read again after the checkpoint, although they are in the same
    group.
    """
    log = bench.log()
    bench.append(log, "before", Kind.CHANGE)
    border = log.border()
    bench.append(log, "after", Kind.CHANGE)
    log.checkpoint(border, b"before", None)
    news = bench.follower().read_new()
    assert news.checkpoint.body.to_pybytes() == b"before" and bench.names_of(news.entries) == ["after"]
    for name in ("x", "y", "z"):
        bench.append(log, name)
    log.sync()
    assert len({entry.slot for entry in bench.follower().read_new().entries}) == 2, (
        "x, y and z are in one group"
    )


def test_a_checkpoint_directly_after_the_open(bench: Bench) -> None:
    """Without a record of this writer, the position is the slot 0 of its epoch."""
    bench.write(bench.log(), "a", "b")
    log = bench.log()
    bench.checkpoint(log, b"a b")
    header = bench.follower().read_new().checkpoint.header
    assert header.position == log._start and header.timestamp == 2
    assert bench.names() == []
    bench.write(bench.log(), "c")
    assert bench.names() == ["c"]


def test_the_last_timestamp_is_in_the_checkpoint(bench: Bench) -> None:
    """The clock of a new writer must be after this timestamp, also if the log is empty."""
    log = bench.log()
    log.append(Kind.BATCH, 500, [b"x"])
    for _ in range(3):
        bench.checkpoint(log)
        log = bench.log()
        assert log.appended.timestamp == 500


def log_start_of(bench: Bench) -> tuple[int, int]:
    place: tuple[int, int] = bench.follower().read_new().checkpoint.header.log_start.place
    return place


def test_the_log_starts_at_the_oldest_row_that_is_only_in_memory(bench: Bench) -> None:
    """The slot of this row may be of an earlier writer, or written during the checkpoint itself."""
    log = bench.log()
    bench.write(log, "1", "2", "3")
    bench.checkpoint(log, keep=2)
    assert log_start_of(bench) == (1, 1)
    heir = bench.log()
    bench.checkpoint(heir, keep=3)
    assert log_start_of(bench) == (1, 2)
    bench.append(heir, "4")
    bench.checkpoint(heir, keep=4)
    assert log_start_of(bench) == (2, 1), "the log starts after the note of the earlier checkpoint"
    bench.checkpoint(heir, keep=99)
    assert log_start_of(bench) == (2, 3)


def test_s5_two_checkpoints_are_kept(bench: Bench) -> None:
    """Two checkpoints, the slots from the log start of the older one on, and all seals are kept."""
    log = bench.log()
    seal = (0, 0)
    bench.write(log, "a", "b")
    bench.checkpoint(log)
    assert bench.checkpoints() == [(1, 2)] and bench.slots() == [seal, (1, 0), (1, 1), (1, 2)]
    bench.write(log, "c")
    bench.checkpoint(log, keep=3)
    assert bench.checkpoints() == [(1, 2), (1, 4)]
    assert bench.slots() == [seal, (1, 2), (1, 3), (1, 4)]
    bench.write(log, "d")
    bench.checkpoint(log)
    assert bench.checkpoints() == [(1, 4), (1, 6)]
    assert bench.slots() == [seal, (1, 3), (1, 4), (1, 5), (1, 6)], "slot 3 has a row that is only in memory"


def test_s3_a_new_writers_log_start_is_not_before_the_former_writers(bench: Bench) -> None:
    """The former writer may still delete what its last checkpoint allows."""
    zombie = bench.log()
    bench.write(zombie, "a", "b", "c")
    bench.checkpoint(zombie)
    bench.write(zombie, "d")
    bench.checkpoint(zombie)
    heir = bench.log()
    bench.write(heir, "e")
    bench.checkpoint(heir, keep=1)
    assert log_start_of(bench) == (1, 5)


def test_s3_a_checkpoint_that_a_note_names_counts(bench: Bench) -> None:
    """S3: the former writer finishes a checkpoint while the new writer takes over.

    The checkpoint counts, because its note is in the log.
    """
    zombie = bench.log()
    bench.write(zombie, "a")
    bench.checkpoint(zombie, keep=1)

    class Slow(bench.Wrapper):  # type: ignore[misc,name-defined]
        done = False

        def create(self, key: str, body: bytes) -> bool:
            if not self.done:
                self.done = True
                bench.write(zombie, "b")
                bench.checkpoint(zombie)
            return bool(self.inner.create(key, body))

    taken = bench.take_over(Slow(bench.bucket.client()))
    assert bench.names_of(taken.entries) == ["a", "b"]
    bench.checkpoint(taken.log, keep=1)
    assert log_start_of(bench) == (1, 3)


def test_s3_a_fenced_writer_deletes_nothing(bench: Bench) -> None:
    """A fenced writer has no note of its checkpoint in the log, so it deletes nothing."""
    old = bench.log()
    bench.write(old, "a", "b")
    bench.checkpoint(old)
    bench.write(old, "c")
    border = old.border()
    heir = bench.log()
    before = bench.slots()
    with pytest.raises(FencedError):
        old.checkpoint(border, b"state", None)
    assert bench.slots() == before
    bench.write(heir, "d")
    bench.checkpoint(heir)
    bench.write(heir, "e")
    bench.checkpoint(heir)
    assert [place[0] for place in bench.checkpoints()] == [2, 2], "the new writer removes it later"
    assert bench.names() == []


def test_leftovers_of_earlier_writers_are_deleted(bench: Bench) -> None:
    """Groups after a seal, and objects that a killed writer had no time to delete."""
    old = bench.log()
    bench.write(old, "a")
    slot = Slot(old._start.epoch, 3)
    body, _ = encode_group(old.store_id, slot, 0, [LogRecord.of(Kind.BATCH, 9, [b"behind"])])
    bench.bucket.create(slot.key, body)
    bench.bucket.put(f"{slot.key}x", b"of another program")
    heir = bench.log()
    for _ in range(3):
        bench.checkpoint(heir)
    assert [place for place in bench.slots() if place[0] < 2] == [(0, 0), (1, 1)]
    assert f"{slot.key}x" in bench.keys("log/")


def crash_at_every_request(bench: Bench, fault: str) -> None:
    for number in itertools.count(1):
        case = type(bench)()
        objects = case.faulty()
        log = case.log(objects)
        case.write(log, "a", "b")
        case.checkpoint(log, b"a b", keep=2)
        case.write(log, "c")
        base = len(objects.requests)
        objects.faults = lambda request, at=base + number: fault if request.number == at else None
        try:
            case.checkpoint(log, b"a b c", keep=3)
        except SimulatedCrash:
            ended = False
        else:
            ended = True
        taken = case.take_over()
        body, names = taken.checkpoint.body.to_pybytes(), case.names_of(taken.entries)
        assert (body, names) in ((b"a b", ["b", "c"]), (b"a b c", ["c"])), number
        case.write(taken.log, "d")
        for round_ in range(2):
            case.checkpoint(taken.log, b"all %d" % round_)
        assert case.names() == [] and len(case.checkpoints()) == 2
        if ended:
            assert number > 5
            return


@pytest.mark.parametrize("fault", ["crash before", "crash after"])
def test_a_crash_at_any_request_of_a_checkpoint_leaves_a_store(bench: Bench, fault: str) -> None:
    """The next open finds the old checkpoint or the new one, with its log."""
    crash_at_every_request(bench, fault)


@pytest.mark.parametrize("fault", ["503", "drop before", "drop after", "late"])
def test_every_request_of_a_checkpoint_may_fail_once(bench: Bench, fault: str) -> None:
    """The request is repeated, and the result is the same."""
    for number in itertools.count(1):
        case = type(bench)()
        objects = case.faulty()
        log = case.log(objects)
        case.write(log, "a", "b")
        case.checkpoint(log, b"a b", keep=2)
        case.write(log, "c")
        base = len(objects.requests)
        objects.faults = lambda request, at=base + number: fault if request.number == at else None
        case.checkpoint(log, b"a b c", keep=3)
        objects.deliver()
        assert case.names() == ["c"] and case.slots() == [(0, 0), (1, 1), (1, 2), (1, 3), (1, 4)]
        if len(objects.requests) < base + number:
            assert number > 5
            return


def test_a_checkpoint_that_cannot_be_written_changes_nothing(bench: Bench) -> None:
    """After a failed checkpoint, the log and the next checkpoint work."""
    objects = bench.faulty()
    log = bench.log(objects)
    bench.write(log, "a")
    objects.faults = lambda request: "503" if request.verb == "put" else None
    with pytest.raises(StorageError):
        bench.checkpoint(log)
    objects.faults = None
    bench.write(log, "b")
    assert bench.names() == ["a", "b"] and log.failure is None
    bench.checkpoint(log)
    assert bench.names() == []


def test_a_failed_deletion_is_repeated_at_the_next_checkpoint(bench: Bench) -> None:
    """The checkpoint is valid, and the next checkpoint deletes the objects."""
    objects = bench.faulty()
    log = bench.log(objects)
    bench.write(log, "a", "b")
    bench.checkpoint(log)
    objects.faults = lambda request: "503" if request.verb == "delete" else None
    with pytest.raises(StorageError):
        bench.checkpoint(log)
    assert bench.names() == [] and (1, 0) in bench.slots()
    objects.faults = None
    bench.checkpoint(log)
    assert (1, 0) not in bench.slots() and len(bench.checkpoints()) == 2
