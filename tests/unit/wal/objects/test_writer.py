"""Group commit into numbered objects: when records are acknowledged, and failures."""

from __future__ import annotations

import os
import socket
import threading
import time
from typing import Any

import pytest

from nyala.env import Bytes
from nyala.errors import FencedError, StorageError
from nyala.testing import FaultyObjects
from nyala.wal.objects import writer
from nyala.wal.objects.format import ANY_GROUP, GROUP_MAX_BYTES, Kind, Seal, Slot, WriterHint, encode_seal
from nyala.wal.objects.writer import GROUPS_IN_FLIGHT

Bench = Any  # the class of conftest.py, which tests cannot import


def slot_keys(log: Any, *numbers: int) -> list[str]:
    return [Slot(log._start.epoch, n).key for n in numbers]


def test_synced_records_are_found_by_the_next_open(bench: Bench) -> None:
    """The next open finds synced records in order, with their kinds and timestamps."""
    log = bench.log()
    for name in ("a", "b"):
        bench.append(log, name)
    bench.append(log, "c", Kind.CHANGE)
    log.sync()
    bench.append(log, "never synced")
    entries = bench.take_over().entries
    assert bench.names_of(entries) == ["a", "b", "c"]
    assert [entry.kind for entry in entries] == [Kind.BATCH, Kind.BATCH, Kind.CHANGE]
    assert [entry.timestamp for entry in entries] == [1, 2, 3]
    assert {entry.slot.n for entry in entries} == {0}, "one group"


def test_append_sends_no_request(bench: Bench) -> None:
    objects = bench.faulty()
    log = bench.log(objects)
    before = len(objects.requests)
    for index in range(100):
        bench.append(log, str(index))
    assert len(objects.requests) == before
    log.sync()
    assert [request.verb for request in objects.requests[before:]] == ["create"]


def test_records_that_wait_are_written_together(bench: Bench) -> None:
    """Waiting records are written as one group, and each is acknowledged with its group."""
    objects = bench.held()
    log = bench.log(objects)
    objects.holds = True
    first = bench.thread(lambda: bench.write(log, "first"))
    objects.wait_for(1)
    offsets = [bench.append(log, f"r{index}") for index in range(50)]
    waiters = [bench.thread(lambda offset=offset: log.sync(offset)) for offset in offsets]
    key = objects.wait_for(2)[1]
    objects.release(key, *slot_keys(log, 0))
    assert [waiter.end() for waiter in (first, *waiters)] == [None] * 51
    assert log.slot_count == 3 and len(bench.names()) == 51, "the seal and two groups"


def test_g1_a_later_group_is_acknowledged_only_after_the_earlier_one(bench: Bench) -> None:
    """If only slot 1 exists, a new writer would seal the empty slot 0."""
    objects = bench.held()
    log = bench.log(objects)
    objects.holds = True
    waiters = []
    for n in range(2):
        offset = bench.append(log, f"r{n}")
        waiters.append(bench.thread(lambda offset=offset: log.sync(offset)))
        objects.wait_for(n + 1)
    keys = slot_keys(log, 0, 1)
    objects.release(keys[1])
    while bench.bucket.get(keys[1]) is None:
        pass
    assert log.synced.offset == 0 and bench.names() == []
    objects.release(keys[0])
    assert [waiter.end() for waiter in waiters] == [None, None]
    assert bench.names() == ["r0", "r1"]


def test_g2_at_most_four_groups_are_sent_at_once(bench: Bench) -> None:
    objects = bench.held()
    log = bench.log(objects)
    objects.holds = True
    waiters = []
    for n in range(GROUPS_IN_FLIGHT + 1):
        offset = bench.append(log, f"r{n}")
        waiters.append(bench.thread(lambda offset=offset: log.sync(offset)))
        held = objects.wait_for(min(n + 1, GROUPS_IN_FLIGHT))
    time.sleep(0.02)  # a fifth request would be sent by now
    assert objects.ever_held == held and len(held) == GROUPS_IN_FLIGHT
    objects.release(*held[1:])
    while bench.bucket.get(held[-1]) is None:
        pass
    time.sleep(0.02)
    assert objects.ever_held == held
    objects.release(held[0])
    objects.release(*slot_keys(log, GROUPS_IN_FLIGHT))
    assert {waiter.end() for waiter in waiters} == {None}
    assert bench.names() == [f"r{n}" for n in range(GROUPS_IN_FLIGHT + 1)]


def test_a_group_has_at_most_8_mb_of_records(bench: Bench) -> None:
    """A larger record has its own group."""
    log = bench.log()
    half = bytes(GROUP_MAX_BYTES // 2 + 1)
    for index, payload in enumerate((half, half, bytes(GROUP_MAX_BYTES + 1), b"small")):
        log.append(Kind.BATCH, index + 1, [payload])
    log.sync()
    slots = [entry.slot.n for entry in bench.follower().read_new().entries]
    assert slots == [0, 1, 2, 3]
    log.append(Kind.BATCH, 5, [b"x"])
    log.append(Kind.BATCH, 6, [b"y"])
    log.sync()
    assert log.slot_count == 6, "small records are in one group"


def test_the_group_interval_bounds_the_number_of_requests(bench: Bench) -> None:
    """The first record after a pause does not wait."""

    class Clock(type(bench.clock)):  # type: ignore[misc]
        waits: list[float]

        def wait(self, event: threading.Event, timeout_s: float) -> bool:
            self.waits.append(timeout_s)
            self.advance(timeout_s)
            return event.is_set()

    bench.clock = Clock()
    bench.clock.waits = []
    log = bench.log(group_interval_s=0.1)
    bench.write(log, "a")
    assert bench.clock.waits == []
    bench.clock.advance(0.04)
    bench.write(log, "b")
    assert bench.clock.waits == [pytest.approx(0.06)]
    bench.clock.advance(5)
    bench.write(log, "c")
    assert len(bench.clock.waits) == 1


@pytest.mark.parametrize("fault", ["503", "drop before", "drop after", "late", "409"])
def test_a_request_without_an_answer_is_repeated(bench: Bench, fault: str) -> None:
    """The record is written once."""
    objects = bench.faulty()
    log = bench.log(objects)
    creates = iter([fault])
    objects.faults = lambda request: next(creates, None) if request.verb == "create" else None
    bench.write(log, "a", "b")
    objects.deliver()
    assert bench.names() == ["a", "b"]


def test_g3_a_fenced_writer_knows_that_nothing_was_written(bench: Bench) -> None:
    """The error names the process that took over."""
    old, new = bench.log(), bench.log()
    offset = bench.append(old, "lost")
    with pytest.raises(FencedError, match="nothing of this call was written") as caught:
        old.sync(offset)
    assert caught.value.outcome is None
    for part in (f"pid {os.getpid()}", f"host {socket.gethostname()}", "2025-01-01T00:00:00"):
        assert part in str(caught.value)
    assert isinstance(old.failure, FencedError)
    with pytest.raises(FencedError, match="nothing of this call was written"):
        bench.append(old, "more")
    with pytest.raises(FencedError):
        bench.checkpoint(old)
    bench.write(new, "kept")
    assert bench.names() == ["kept"]
    old.close()


def test_g3_a_group_before_the_seal_is_acknowledged_when_its_reply_comes(bench: Bench) -> None:
    """Another process found slot 0, whose reply is late, and sealed slot 1."""
    objects = bench.held()
    log = bench.log(objects)
    objects.holds = True
    first = bench.thread(lambda: bench.write(log, "first"))
    (key,) = objects.wait_for(1)
    second = bench.thread(lambda: bench.write(log, "second"))
    later = objects.wait_for(2)[1]
    bench.bucket.create(key, log._groups[0].body)  # the request arrived, the reply has not
    assert bench.names_of(bench.take_over().entries) == ["first"]
    objects.release(later)
    assert isinstance(second.end(), FencedError)
    assert first.is_alive()
    objects.release(key)
    assert first.end() is None


def test_records_after_a_seal_were_certainly_not_written(bench: Bench) -> None:
    """Slot 0 gets no answer, so its outcome is unknown. Slot 1 has a seal."""
    inner = bench.faulty()
    objects = bench.held(inner)
    log = bench.log(objects, patience_s=0.0)
    objects.holds = True
    offsets, waiters = [], []
    for name in ("doubtful", "refused"):
        offset = bench.append(log, name)
        offsets.append(offset)
        waiters.append(bench.thread(lambda offset=offset: log.sync(offset)))
        keys = objects.wait_for(len(offsets))
    seal = Seal(log._start.epoch.next("a" * 16), "h", 1, 1)
    bench.bucket.create(keys[1], encode_seal(log.store_id, Slot(log._start.epoch, 1), ANY_GROUP, seal)[0])
    inner.faults = lambda request: "503" if request.key == keys[0] else None
    objects.release(*keys)
    errors = [waiter.end() for waiter in waiters]
    assert isinstance(errors[0], StorageError) and errors[0].outcome == "unknown"
    assert isinstance(errors[1], FencedError) and errors[1].outcome is None


def test_g4_without_an_answer_the_outcome_is_unknown_and_the_writer_dead(bench: Bench) -> None:
    """G4: after a minute without an answer, the outcome is unknown, and the log accepts no record."""
    objects = bench.faulty()
    log = bench.log(objects)
    bench.write(log, "a")
    objects.faults = lambda request: "late" if request.verb == "create" else None
    started_s = bench.clock.monotonic_s()
    with pytest.raises(StorageError, match="known only after the next open") as caught:
        bench.write(log, "doubtful")
    assert caught.value.outcome == "unknown" and bench.clock.monotonic_s() - started_s >= 60
    assert not isinstance(caught.value, FencedError)
    with pytest.raises(StorageError, match="accepts no more records") as refused:
        bench.append(log, "b")
    assert refused.value.outcome is None
    log.close()
    objects.deliver()
    assert bench.names_of(bench.take_over().entries) == ["a", "doubtful"]


def test_records_before_the_failed_group_are_still_acknowledged(bench: Bench) -> None:
    """Group 1 gets no answer. Group 0, whose answer comes later, is still acknowledged."""
    inner = bench.held()
    objects = FaultyObjects(inner)
    log = bench.log(objects, patience_s=0.0)
    inner.holds = True
    first = bench.thread(lambda: bench.write(log, "first"))
    (key,) = inner.wait_for(1)
    objects.faults = lambda request: "503" if request.verb == "create" else None
    with pytest.raises(StorageError) as caught:
        bench.write(log, "second")
    assert caught.value.outcome == "unknown"
    inner.release(key)
    assert first.end() is None
    assert bench.names() == ["first"]


def test_a_refused_request_ends_the_writer_with_a_known_outcome(bench: Bench) -> None:
    """If the bucket refuses a request, for example for expired credentials, nothing was written."""

    class Forbidden(bench.Wrapper):  # type: ignore[misc,name-defined]
        forbidden = False

        def create(self, key: str, body: Bytes) -> bool:
            if self.forbidden:
                raise StorageError("access denied", path=key)
            return bool(self.inner.create(key, body))

    objects = Forbidden(bench.bucket)
    log = bench.log(objects)
    objects.forbidden = True
    with pytest.raises(StorageError, match=r"access denied.*nothing of this call was written") as caught:
        bench.write(log, "a")
    assert caught.value.outcome is None


def test_an_invalid_object_in_a_slot_is_an_error(bench: Bench) -> None:
    log = bench.log()
    bench.bucket.put(slot_keys(log, 0)[0], b"not ours")
    with pytest.raises(StorageError, match="the slot is taken"):
        bench.write(log, "a")


@pytest.mark.parametrize("moment", ["encoding", "creating"])
def test_g5_an_interrupted_leader_loses_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """If a thread is interrupted while it writes a group, the next thread writes the group."""
    log = bench.log()
    name = {"encoding": "encode_group", "creating": "settle"}[moment]
    plain = getattr(writer, name)

    def interrupted(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(writer, name, plain)
        if moment == "creating":
            plain(*args, **options)  # the object exists, but the caller gets an error
        raise KeyboardInterrupt

    monkeypatch.setattr(writer, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench.write(log, "a")
    assert log.failure is None
    bench.write(log, "b")
    assert bench.names() == ["a", "b"]


def test_a_thread_that_waits_for_a_later_group_leads_an_interrupted_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = bench.held()
    log = bench.log(objects)
    objects.holds = True
    plain = objects.inner.create
    failures = iter([KeyboardInterrupt])

    def create(key: str, body: bytes) -> bool:
        error = next(failures, None)
        if error is not None:
            raise error
        return bool(plain(key, body))

    monkeypatch.setattr(objects.inner, "create", create)
    first = bench.thread(lambda: bench.write(log, "a"))
    (key,) = objects.wait_for(1)
    second = bench.thread(lambda: bench.write(log, "b"))
    later = objects.wait_for(2)[1]
    objects.release(key)
    assert isinstance(first.end(), KeyboardInterrupt)
    objects.release(later)
    assert second.end() is None
    assert bench.names() == ["a", "b"]


def test_an_interrupted_append_ends_the_writer(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an interrupted append the state in memory may be incomplete, so the log accepts no record."""
    log = bench.log()
    bench.write(log, "a")
    monkeypatch.setattr(bench.clock, "monotonic_s", lambda: (_ for _ in ()).throw(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        bench.append(log, "b")
    monkeypatch.undo()
    with pytest.raises(StorageError, match="KeyboardInterrupt"):
        bench.append(log, "c")
    assert log.failure is not None and bench.names() == ["a"]


def test_many_threads_write_every_record_once(bench: Bench) -> None:
    """Each thread's records are in its order."""
    log = bench.log()
    lock = threading.Lock()

    def write(thread: int) -> None:
        for index in range(50):
            with lock:
                offset = bench.append(log, f"{thread}.{index}")
            log.sync(offset)

    threads = [bench.thread(lambda thread=thread: write(thread)) for thread in range(8)]
    assert {thread.end() for thread in threads} == {None}
    names = bench.names()
    for thread in range(8):
        mine = [name for name in names if name.startswith(f"{thread}.")]
        assert mine == [f"{thread}.{index}" for index in range(50)]
    assert len(names) == 400


def test_sync_if_due_syncs_records_that_have_waited(bench: Bench) -> None:
    """`sync_if_due` syncs records that have waited, for durability "group"."""
    log = bench.log()
    assert log.sync_if_due(0.05) is None
    bench.append(log, "a")
    assert log.sync_if_due(0.05) == pytest.approx(0.05)
    bench.clock.advance(0.06)
    assert log.sync_if_due(0.05) is None and bench.names() == ["a"]


def test_close_syncs_and_says_that_nobody_writes(bench: Bench) -> None:
    """A closed log accepts no record."""
    log = bench.log()
    hint = WriterHint.decode(bench.bucket.get("writer"))
    assert hint is not None and (hint.pid, hint.epoch) == (os.getpid(), log.epoch_name) and not hint.closed
    bench.append(log, "a")
    log.close()
    log.close()
    hint = WriterHint.decode(bench.bucket.get("writer"))
    assert hint is not None and hint.closed and bench.names() == ["a"]
    with pytest.raises(StorageError, match="is closed"):
        bench.append(log, "b")


def test_a_hint_that_cannot_be_written_is_left_out(bench: Bench) -> None:
    objects = bench.faulty(lambda request: "503" if request.key == "writer" else None)
    log = bench.log(objects)
    bench.write(log, "a")
    log.close()
    assert bench.bucket.get("writer") is None and bench.names() == ["a"]


def test_the_size_is_what_the_next_open_reads(bench: Bench) -> None:
    """A checkpoint makes it smaller."""
    log = bench.log()
    empty = log.size_bytes
    bench.append(log, "x" * 1000)
    assert log.size_bytes >= empty + 1000
    log.sync()
    objects = bench.bucket.list("log/")
    assert log.size_bytes == sum(info.size_bytes for info in objects) and log.slot_count == len(objects)
    bench.checkpoint(log)
    assert log.size_bytes < 300 and log.slot_count == 1, "only the note of the checkpoint"


def test_timestamps_must_not_descend(bench: Bench) -> None:
    log = bench.log()
    log.append(Kind.BATCH, 100, [b"x"])
    log.sync()
    heir = bench.log()
    assert heir.appended.timestamp == 100
    with pytest.raises(AssertionError, match="O4"):
        heir.append(Kind.BATCH, 99, [b"x"])
