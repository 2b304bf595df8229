"""Becoming the writer of a store in a bucket, beside other live writers."""

from __future__ import annotations

from typing import Any

import pytest

from nyala.env import Bytes
from nyala.errors import CorruptionError, FencedError, StorageError
from nyala.mvcc.timestamp import from_physical
from nyala.wal.objects import take_over as take_over_module
from nyala.wal.objects.follower import LogFollower, read_identity
from nyala.wal.objects.take_over import CLOCK_BEHIND_MAX_US, check_clock, create_store

Bench = Any  # the class of conftest.py, which tests cannot import


def is_first_seal(key: str, body: Bytes, epoch: int) -> bool:
    return key.startswith(f"log/{epoch:010d}-") and b"\x03\0\0\0" in bytes(body)[80:90]


def test_the_first_open_creates_the_store(bench: Bench) -> None:
    """Later opens find it."""
    assert read_identity(bench.env, bench.bucket) is None
    first, second = bench.take_over(), bench.take_over()
    assert first.checkpoint is None and first.entries == []
    assert first.log.store_id == second.log.store_id
    assert first.log.epoch_name < second.log.epoch_name


def test_two_processes_that_create_a_store_at_once_use_one_identity_object(bench: Bench) -> None:

    class Late(bench.Wrapper):  # type: ignore[misc,name-defined]
        def create(self, key: str, body: Bytes) -> bool:
            if key == "nyala.json":
                create_store(bench.env, bench.bucket)
            return bool(self.inner.create(key, body))

    identity = create_store(bench.env, Late(bench.bucket))
    assert identity == read_identity(bench.env, bench.bucket)


def test_the_new_writer_has_all_records_and_the_old_one_is_fenced(bench: Bench) -> None:
    """This also holds after a checkpoint, with rows that are only in the log."""
    old = bench.log()
    bench.write(old, "a", "b", "c")
    bench.checkpoint(old, b"state", keep=2)
    bench.write(old, "d")
    bench.append(old, "not synced")
    taken = bench.take_over()
    assert taken.checkpoint.body.to_pybytes() == b"state"
    assert bench.names_of(taken.entries) == ["b", "c", "d"]
    with pytest.raises(FencedError):
        old.sync()
    bench.write(taken.log, "e")
    assert bench.names() == ["b", "c", "d", "e"]
    assert taken.log.appended.timestamp == 5


def test_the_new_writer_has_records_that_were_written_while_it_sealed(bench: Bench) -> None:
    """If the old writer fills the slot first, the new writer reads it and seals the next slot."""
    old = bench.log()
    bench.write(old, "a")

    class Slow(bench.Wrapper):  # type: ignore[misc,name-defined]
        names = iter("bcd")

        def create(self, key: str, body: Bytes) -> bool:
            name = next(self.names, None)
            if name is not None:
                bench.write(old, name)
            return bool(self.inner.create(key, body))

    taken = bench.take_over(Slow(bench.bucket.client()))
    assert bench.names_of(taken.entries) == ["a", "b", "c", "d"]
    with pytest.raises(FencedError):
        bench.write(old, "e")


def test_s7_a_writer_that_is_always_faster_is_fenced_by_a_wall(bench: Bench) -> None:
    """S7: an old writer that fills each slot before its seal arrives is stopped by a wall ahead of it."""
    old = bench.log()
    written: list[str] = []

    class Slow(bench.Wrapper):  # type: ignore[misc,name-defined]
        def create(self, key: str, body: Bytes) -> bool:
            if key.startswith("log/0000000001-"):
                written.append(f"r{len(written)}")
                bench.write(old, written[-1])
            return bool(self.inner.create(key, body))

    taken = bench.take_over(Slow(bench.bucket.client()))
    assert bench.names_of(taken.entries) == written and 4 <= len(written) <= 40
    with pytest.raises(FencedError):
        bench.write(old, "x")
    bench.write(taken.log, "mine")
    assert bench.names() == [*written, "mine"]


def test_s7_a_wall_after_an_empty_slot_has_no_effect(bench: Bench) -> None:
    """The writer stopped before the wall, and the slot where it stopped is sealed."""
    old = bench.log()
    bench.write(old, "a")

    class Slow(bench.Wrapper):  # type: ignore[misc,name-defined]
        done = False

        def create(self, key: str, body: Bytes) -> bool:
            if not self.done:
                self.done = True
                bench.write(old, "b")
            return bool(self.inner.create(key, body))

    taken = bench.take_over(Slow(bench.bucket.client()))
    assert bench.slots() == [(0, 0), (1, 0), (1, 1), (1, 2), (1, 9)], "the last one is the wall"
    bench.write(taken.log, "c")
    with pytest.raises(FencedError):
        bench.write(old, "x")
    assert bench.names() == ["a", "b", "c"] and bench.names_of(bench.take_over().entries) == ["a", "b", "c"]


def test_of_two_new_writers_the_later_one_is_the_writer(bench: Bench) -> None:
    """The later writer follows the seal of the earlier one."""
    bench.write(bench.log(), "a")
    taken: list[Any] = []

    class Slow(bench.Wrapper):  # type: ignore[misc,name-defined]
        done = False

        def create(self, key: str, body: Bytes) -> bool:
            if not self.done:
                self.done = True
                taken.append(bench.take_over())
                bench.write(taken[0].log, "b")
            return bool(self.inner.create(key, body))

    second = bench.take_over(Slow(bench.bucket.client()))
    assert bench.names_of(second.entries) == ["a", "b"]
    assert bench.slots() == [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1)], "no wall was written"
    with pytest.raises(FencedError):
        bench.write(taken[0].log, "c")
    bench.write(second.log, "d")
    assert bench.names() == ["a", "b", "d"]


class Emptied:
    """A bucket in which a slot is written and deleted before the seal arrives there."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.old = bench.log()
        bench.write(self.old, "a0", "a1")

    def take_over(self) -> Any:
        bench, old = self.bench, self.old

        class Slow(bench.Wrapper):  # type: ignore[misc,name-defined]
            done = False

            def create(self, key: str, body: Bytes) -> bool:
                if not self.done and is_first_seal(key, body, 1):
                    self.done = True
                    for name in ("a2", "a3"):
                        bench.write(old, name)
                        bench.checkpoint(old, b"a0 a1 a2" if name == "a2" else b"a0 a1 a2 a3")
                    bench.write(old, "a4")
                return bool(self.inner.create(key, body))

        return bench.take_over(Slow(bench.bucket.client()))


def test_s1_a_seal_in_a_deleted_slot_does_not_count(bench: Bench) -> None:
    """The process begins again at the newest checkpoint, and has every record."""
    case = Emptied(bench)
    taken = case.take_over()
    assert taken.checkpoint.body.to_pybytes() == b"a0 a1 a2 a3"
    assert bench.names_of(taken.entries) == ["a4"]
    with pytest.raises(FencedError):
        bench.write(case.old, "a5")
    bench.write(taken.log, "b0")
    assert bench.names() == ["a4", "b0"]


def test_without_s1_the_new_writer_loses_acknowledged_records(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without rule S1, acknowledged records are lost. This shows why the rule exists."""
    case = Emptied(bench)
    plain = LogFollower.must_begin_again
    sealed: list[bool] = []
    settle = take_over_module.settle

    def settled(*args: Any, **options: Any) -> Any:
        sealed.append(True)
        return settle(*args, **options)

    monkeypatch.setattr(take_over_module, "settle", settled)
    monkeypatch.setattr(
        LogFollower, "must_begin_again", lambda self: not (sealed and sealed.pop()) and plain(self)
    )
    taken = case.take_over()
    assert bench.names_of(taken.entries) == ["a0", "a1"], "this new writer does not have a2 to a4"
    bench.write(taken.log, "b0")
    bench.write(case.old, "a5")
    assert "b0" not in bench.names(), "an acknowledged record that no open finds"


def test_s4_a_former_writer_finds_the_seal_after_old_objects_were_deleted(bench: Bench) -> None:
    zombie = bench.log()
    bench.write(zombie, "a")
    heir = bench.log()
    for name in ("b", "c", "d"):
        bench.write(heir, name)
        bench.checkpoint(heir, name.encode())
    with pytest.raises(FencedError):
        bench.write(zombie, "z")
    seals = [place for place in bench.slots() if place[0] < 2]
    assert seals == [(0, 0), (1, 1)]


def test_a_process_whose_seal_has_no_answer_is_not_the_writer(bench: Bench) -> None:
    """The seal may arrive later. Then the former writer is fenced, and the next open continues."""
    old = bench.log()
    bench.write(old, "a")
    objects = bench.faulty(lambda request: "late" if request.verb == "create" else None)
    with pytest.raises(StorageError) as caught:
        bench.take_over(objects)
    assert caught.value.outcome == "unknown"
    objects.deliver()
    with pytest.raises(FencedError):
        bench.write(old, "b")
    assert bench.names_of(bench.take_over().entries) == ["a"]


@pytest.mark.parametrize("fault", ["503", "drop before", "drop after", "409", "late"])
def test_every_request_of_a_take_over_may_fail_once(bench: Bench, fault: str) -> None:
    """If any request fails once, the new writer still has all records."""
    number = 1
    while True:
        case = type(bench)()
        old = case.log()
        case.write(old, "a", "b")
        case.checkpoint(old, b"a b", keep=2)
        case.write(old, "c")
        objects = case.faulty(lambda request, number=number: fault if request.number == number else None)
        taken = case.take_over(objects)
        assert case.names_of(taken.entries) == ["b", "c"], number
        case.write(taken.log, "d")
        objects.deliver()
        case.write(taken.log, "e")
        assert case.names() == ["b", "c", "d", "e"], number
        with pytest.raises(FencedError):
            case.write(old, "x")
        if len(objects.requests) < number:
            break
        number += 1
    assert number > 8


def test_a_damaged_identity_object_is_an_error(bench: Bench) -> None:
    """A damaged `nyala.json` raises an error, and the store is not created again."""
    bench.log()
    bench.damage("nyala.json", 0)
    with pytest.raises(CorruptionError):
        bench.take_over()


def test_a_clock_that_is_far_behind_the_log_is_refused() -> None:
    """The error says by how much, and what to do."""
    now_us = 1_764_000_000_000_000
    check_clock(now_us, from_physical(now_us + CLOCK_BEHIND_MAX_US))
    check_clock(now_us, 0)
    with pytest.raises(StorageError, match=r"25 minutes behind the last write.*correct the clock"):
        check_clock(now_us, from_physical(now_us + 1500 * 1_000_000))
