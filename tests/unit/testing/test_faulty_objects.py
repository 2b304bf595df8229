"""FaultyObjects lets each request fail as its fault says, and records all requests."""

from __future__ import annotations

import pytest

from nyala.errors import StorageError
from nyala.objects.memory import MemoryObjects
from nyala.testing import FaultyObjects, SimulatedCrash
from nyala.testing.faulty_objects import Fault, Request, at, at_random


def test_without_faults_it_counts_and_changes_nothing() -> None:
    bucket = MemoryObjects()
    faulty = FaultyObjects(bucket)
    assert faulty.create("a", b"1") and not faulty.create("a", b"2")
    faulty.put("b", b"3")
    assert faulty.upload("c", [b"4", b"5"]) == 2
    assert faulty.get("a") == b"1" and faulty.get_ranges("c", [(1, 2)]) == [b"5"]
    assert faulty.head("b") == bucket.head("b") and faulty.list("") == bucket.list("")
    faulty.delete(["a", "b"])
    assert [(request.verb, request.key) for request in faulty.requests] == [
        ("create", "a"), ("create", "a"), ("put", "b"), ("upload", "c"), ("get", "a"), ("get_ranges", "c"),
        ("head", "b"), ("list", ""), ("delete", "a"), ("delete", "b"),
    ]  # fmt: skip
    assert [request.number for request in faulty.requests] == list(range(1, 11))
    faulty.close()
    with pytest.raises(StorageError, match="is closed"):
        bucket.get("a")


@pytest.mark.parametrize(
    ("fault", "stored"), [("503", False), ("drop before", False), ("drop after", True), ("late", False)]
)
def test_a_request_with_unknown_outcome_raises_whether_or_not_it_was_carried_out(
    fault: Fault, stored: bool
) -> None:
    bucket = MemoryObjects()
    faulty = FaultyObjects(bucket, at(1, fault))
    with pytest.raises(StorageError) as raised:
        faulty.create("a", b"mine")
    assert raised.value.outcome == "unknown"
    assert raised.value.path == "memory://bucket/a"
    assert (bucket.get("a") == b"mine") == stored
    assert faulty.create("b", b"")  # only the first request fails


def test_late_requests_arrive_in_order_when_the_test_delivers_them() -> None:
    bucket = MemoryObjects()
    faulty = FaultyObjects(bucket, lambda _: "late")
    for body in (b"first", b"second"):
        with pytest.raises(StorageError):
            faulty.create("a", body)
    assert (bucket.get("a"), faulty.late_count) == (None, 2)
    faulty.deliver()
    assert (bucket.get("a"), faulty.late_count) == (b"first", 0)


def test_late_requests_arrive_in_threads() -> None:
    bucket = MemoryObjects()
    faulty = FaultyObjects(bucket, lambda _: "late", late_s=0.001)
    with pytest.raises(StorageError):
        faulty.put("a", b"mine")
    faulty.deliver()
    assert bucket.get("a") == b"mine"


def test_a_false_conflict_refuses_what_does_not_exist() -> None:
    bucket = MemoryObjects()
    faulty = FaultyObjects(bucket, lambda _: "409")
    assert faulty.create("a", b"") is False
    assert bucket.get("a") is None
    faulty.put("a", b"mine")  # only `create` can be refused
    assert faulty.get("a") == b"mine"


@pytest.mark.parametrize(("fault", "stored"), [("crash before", False), ("crash after", True)])
def test_nothing_happens_after_a_crash(fault: Fault, stored: bool) -> None:
    bucket = MemoryObjects()
    faulty = FaultyObjects(bucket, at(2, fault))
    assert faulty.create("a", b"")
    with pytest.raises(SimulatedCrash):
        faulty.create("b", b"")
    with pytest.raises(SimulatedCrash):
        faulty.create("c", b"")
    with pytest.raises(SimulatedCrash):
        faulty.get("a")
    assert [info.key for info in bucket.list("")] == (["a", "b"] if stored else ["a"])
    assert len(faulty.requests) == 2


def test_a_crash_may_leave_half_of_a_delete() -> None:
    bucket = MemoryObjects()
    for key in "abc":
        bucket.put(key, b"")
    with pytest.raises(SimulatedCrash):
        FaultyObjects(bucket, at(2, "crash before")).delete(["a", "b", "c"])
    assert [info.key for info in bucket.list("")] == ["b", "c"]


def test_random_faults_are_the_same_for_the_same_seed() -> None:
    requests = [Request("create", "a", number) for number in range(1, 1001)]
    chosen = [[choose(request) for request in requests] for choose in (at_random(7), at_random(7))]
    assert chosen[0] == chosen[1]
    faults = [fault for fault in chosen[0] if fault is not None]
    assert 100 < len(faults) < 200
    assert set(faults) == {"503", "drop before", "drop after", "late", "409"}
