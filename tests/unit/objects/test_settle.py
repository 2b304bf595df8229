"""`settle`: exactly one creator stores its bytes, and every creator learns which, whatever faults happen.

The same checks must find the faults of the mutants below, which skip one step of `settle`.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import pytest
from tests.unit.objects.buckets import Bucket, quick_env

from nyala.env import Bytes, Env
from nyala.errors import StorageError
from nyala.objects.base import Objects
from nyala.objects.memory import MemoryObjects
from nyala.objects.settle import settle
from nyala.testing.faulty_files import SimulatedCrash
from nyala.testing.faulty_objects import Fault, FaultyObjects, Request, at, at_random

Creator: TypeAlias = Callable[[Env, Objects, str, bytes], "bytes | None"]

WIRE_FAULTS: Final[tuple[Fault, ...]] = ("503", "drop before", "drop after", "late", "409")


# ── one creator, one fault ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("fault", WIRE_FAULTS)
def test_settle_knows_the_result_after_any_fault(bucket: Bucket, fault: Fault) -> None:
    """The first request fails, or the first three. Some store the bytes nevertheless, perhaps late."""
    for number, other in itertools.product((1, 3), (None, b"theirs")):
        key = f"log/{number}/{other is None}"
        if other is not None:
            assert bucket.client().create(key, other)
        faulty = FaultyObjects(
            bucket.client(), lambda request, number=number: fault if request.number <= number else None
        )
        assert settle(quick_env(), faulty, key, b"mine") == other
        faulty.deliver()
        assert faulty.get(key) == (other or b"mine")


def test_a_late_request_loses_against_another_creator() -> None:
    """Another creator takes the key while the request is delayed. `settle` returns the other's bytes."""
    bucket = MemoryObjects()
    faulty = FaultyObjects(bucket, at(1, "late"))
    with pytest.raises(StorageError):
        faulty.create("log/0", b"mine")
    assert bucket.create("log/0", b"theirs")
    faulty.deliver()
    assert settle(quick_env(), faulty, "log/0", b"mine") == b"theirs"


def test_the_outcome_is_unknown_if_the_bucket_never_answers(bucket: Bucket) -> None:
    env = quick_env()
    faulty = FaultyObjects(bucket.client(), lambda _: "503")
    begin = env.clock.monotonic_s()
    with pytest.raises(StorageError) as raised:
        settle(env, faulty, "log/0", b"mine", patience_s=20.0)
    assert raised.value.outcome == "unknown"
    assert 20.0 < env.clock.monotonic_s() - begin < 25.0
    assert 8 < len(faulty.requests) < 60  # it waits longer after each attempt


def test_the_outcome_of_a_certain_error_depends_on_earlier_attempts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A refused request changed nothing, but an earlier attempt without an answer may have."""

    def creating(*answers: StorageError) -> MemoryObjects:
        bucket, left = MemoryObjects(), list(answers)

        def create(key: str, body: Bytes) -> bool:
            raise left.pop(0)

        monkeypatch.setattr(bucket, "create", create)
        return bucket

    forbidden = StorageError("no right to write", path="memory://bucket/a")
    with pytest.raises(StorageError) as raised:
        settle(quick_env(), creating(forbidden), "a", b"")
    assert raised.value.outcome is None

    timeout = StorageError("no answer", path="memory://bucket/a", outcome="unknown")
    with pytest.raises(StorageError) as raised:
        settle(quick_env(), creating(timeout, forbidden), "a", b"")
    assert raised.value.outcome == "unknown"


def test_a_bucket_that_refuses_a_free_key_is_an_error(bucket: Bucket) -> None:
    refusing = FaultyObjects(bucket.client(), lambda request: "409" if request.verb == "create" else None)
    with pytest.raises(StorageError, match="refuses again and again to create .*fs probe") as raised:
        settle(quick_env(), refusing, "log/0", b"mine")
    assert raised.value.outcome == "unknown"
    assert raised.value.path == f"{refusing.url}/log/0"


@pytest.mark.parametrize("fault", ["crash before", "crash after"])
def test_after_a_crash_at_any_request_the_next_creator_takes_over(bucket: Bucket, fault: Fault) -> None:
    """The next creator of the key learns whether the crashed creator has stored its bytes."""
    for number in (1, 2):
        # The first create is refused without a reason, so that there are two requests at least.
        def faults(request: Request, number: int = number) -> Fault | None:
            return fault if request.number == number else "409" if request.number == 1 else None

        key = f"log/{number}"
        with pytest.raises(SimulatedCrash):
            settle(quick_env(), FaultyObjects(bucket.client(), faults), key, b"crashed")
        found = settle(quick_env(), bucket.client(), key, b"heir")
        stored = fault == "crash after" and number == 1
        assert found == (b"crashed" if stored else None)


# ── races ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def race(
    create: Creator, clients: Sequence[Objects], keys: Sequence[str], seed: int = 0
) -> list[dict[str, bytes | StorageError | None]]:
    """Let one thread per client create every key, each with its own bytes; return their results.

    The threads wait for each other before each eighth key, so that they create it at the same time.
    """
    barrier = threading.Barrier(len(clients))
    learned: list[dict[str, bytes | StorageError | None]] = [{} for _ in clients]

    def creator(number: int) -> None:
        env = quick_env()
        for place, key in enumerate(keys):
            if place % 8 == 0:
                barrier.wait()
            try:
                learned[number][key] = create(env, clients[number], key, b"creator %d" % number)
            except StorageError as error:
                learned[number][key] = error

    threads = [threading.Thread(target=creator, args=(number,)) for number in range(len(clients))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return learned


def faults_of(
    learned: Sequence[dict[str, bytes | StorageError | None]], reader: Objects, keys: Sequence[str]
) -> list[str]:
    """Return the faults of a race: for each key one creator must have won, and all must have learned it."""
    wrong = []
    for key in keys:
        winners = [n for n, of in enumerate(learned) if of[key] is None]
        found = reader.get(key)
        if len(winners) != 1:
            wrong.append(f"{key}: {len(winners)} winners")
        elif found != b"creator %d" % winners[0]:
            wrong.append(f"{key}: creator {winners[0]} learned that it won, but {found!r} is stored")
        others = {of[key] for of in learned} - {None, found}
        if others:
            wrong.append(f"{key}: {found!r} is stored, and some creators learned {others}")
    return wrong


def plain_race(create: Creator, bucket: Bucket, creators: int, count: int) -> list[str]:
    """Run a race without faults."""
    keys = [f"log/{number:06}" for number in range(count)]
    learned = race(create, [bucket.client() for _ in range(creators)], keys)
    return faults_of(learned, bucket.client(), keys)


def faulty_race(create: Creator, bucket: Bucket, seed: int) -> list[str]:
    """Run a race in which a third of the requests fail, and some of them arrive late."""
    keys = [f"log/{number:06}" for number in range(20)]
    clients = [
        FaultyObjects(bucket.client(), at_random(seed + number, 0.33), late_s=0.005, seed=seed + number)
        for number in range(4)
    ]
    learned = race(create, clients, keys)
    for client in clients:
        client.deliver()
    return faults_of(learned, bucket.client(), keys)


def test_a_race_has_exactly_one_winner_for_each_key(bucket: Bucket) -> None:
    assert plain_race(settle, bucket, creators=8, count=bucket.keys_to_race(160)) == []


@pytest.mark.parametrize("seed", range(3))
def test_a_race_has_exactly_one_winner_although_requests_fail(bucket: Bucket, seed: int) -> None:
    assert faulty_race(settle, bucket, seed * 100) == []


# ── mutants, whose faults the same checks must find ─────────────────────────────────────────────────────────────────


def plain_put(env: Env, objects: Objects, key: str, body: bytes) -> bytes | None:
    """Mutant: test whether the key is free and then write, without put-if-absent."""
    found = objects.get(key)
    if found is None:
        objects.put(key, body)
    return found


def timeout_is_success(env: Env, objects: Objects, key: str, body: bytes) -> bytes | None:
    """Mutant: treat a time-out as success."""
    try:
        return None if objects.create(key, body) else objects.get(key)
    except StorageError as error:
        if error.outcome == "unknown":
            return None
        raise


def timeout_is_failure(env: Env, objects: Objects, key: str, body: bytes) -> bytes | None:
    """Mutant: try again with other bytes after a time-out."""
    for attempt in range(1000):
        try:
            mine = body if attempt == 0 else body + b"."
            return None if objects.create(key, mine) else objects.get(key)
        except StorageError:
            continue
    raise AssertionError


def refused_is_lost(env: Env, objects: Objects, key: str, body: bytes) -> bytes | None:
    """Mutant: after a refusal, do not compare the stored bytes with the caller's own."""
    for _ in range(1000):
        try:
            return None if objects.create(key, body) else objects.get(key)
        except StorageError:
            continue
    raise AssertionError


@pytest.mark.parametrize("mutant", [timeout_is_success, timeout_is_failure, refused_is_lost])
def test_a_race_with_faults_finds_the_mutant(mutant: Creator) -> None:
    memory = MemoryObjects()
    bucket = Bucket("memory", memory.client, memory.advance)
    assert faulty_race(mutant, bucket, 0) != []


def test_a_race_finds_a_plain_put() -> None:
    """Two creators both find the key free, and then write: the second overwrites the first."""
    memory, together = MemoryObjects(), threading.Barrier(2)

    class Looking(FaultyObjects):
        def get(self, key: str) -> bytes | None:
            found = super().get(key)
            together.wait()
            return found

    clients = [Looking(memory.client()) for _ in range(2)]
    wrong = faults_of(race(plain_put, clients, ["log/0"]), memory, ["log/0"])
    assert wrong == ["log/0: 2 winners"]
