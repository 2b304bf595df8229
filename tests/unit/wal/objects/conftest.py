"""A bucket in memory with a store's log, and records that are easy to compare."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.unit.wal.conftest import Waiter

from nyala.env import Bytes, Env, PosixFiles
from nyala.objects.memory import MemoryObjects
from nyala.testing import FaultyObjects, ManualClock, SeededRandomness
from nyala.wal.objects.follower import LogEntry, LogFollower, read_identity
from nyala.wal.objects.format import CheckpointKey, Kind, Slot
from nyala.wal.objects.take_over import TakenLog, take_over
from nyala.wal.objects.writer import ObjectLog


class Wrapper:
    """Objects that pass all calls on to others; a test overrides one method."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class HeldObjects(Wrapper):
    """Each `create` of a slot waits until the test continues it."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.holds = False
        self._changed = threading.Condition()
        self._held: list[str] = []
        self.ever_held: list[str] = []
        self._released: set[str] = set()

    def create(self, key: str, body: Bytes) -> bool:
        if self.holds and key.startswith("log/"):
            with self._changed:
                self._held.append(key)
                self.ever_held.append(key)
                self._changed.notify_all()
                assert self._changed.wait_for(lambda: key in self._released, timeout=20)
                self._held.remove(key)
        return bool(self.inner.create(key, body))

    def wait_for(self, count: int) -> list[str]:
        """Return the keys of the waiting requests, in order, when there are `count` of them."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._held) >= count, timeout=20), self._held
            return sorted(self._held)

    def release(self, *keys: str) -> None:
        with self._changed:
            self._released.update(keys)
            self._changed.notify_all()


def name_of(entry: LogEntry) -> str:
    return entry.payload.to_pybytes().decode()


@dataclass
class Bench:
    """A bucket in memory."""

    bucket: MemoryObjects = field(default_factory=MemoryObjects)
    clock: ManualClock = field(default_factory=ManualClock)
    randomness: SeededRandomness = field(default_factory=SeededRandomness)
    Wrapper: type[Wrapper] = Wrapper

    @property
    def env(self) -> Env:
        return Env(PosixFiles(), self.clock, self.randomness)

    def faulty(self, faults: Any = None) -> FaultyObjects:
        return FaultyObjects(self.bucket.client(), faults)

    def held(self, inner: Any = None) -> HeldObjects:
        return HeldObjects(self.bucket.client() if inner is None else inner)

    def take_over(self, objects: Any = None, **options: Any) -> TakenLog:
        return take_over(self.env, self.bucket.client() if objects is None else objects, **options)

    def log(self, objects: Any = None, **options: Any) -> ObjectLog:
        return self.take_over(objects, **options).log

    def append(self, log: ObjectLog, name: str, kind: Kind = Kind.BATCH) -> int:
        return log.append(kind, log.appended.timestamp + 1, [name.encode()])

    def write(self, log: ObjectLog, *names: str, kind: Kind = Kind.BATCH) -> None:
        """Append each record, and sync it in its own group."""
        for name in names:
            log.sync(self.append(log, name, kind))

    def checkpoint(self, log: ObjectLog, body: bytes = b"state", keep: int | None = None) -> None:
        """Write a checkpoint; rows from timestamp `keep` on are only in the log."""
        log.checkpoint(log.border(), body, keep)

    def follower(self, objects: Any = None) -> LogFollower:
        identity = read_identity(self.env, self.bucket)
        assert identity is not None
        return LogFollower(self.env, self.bucket.client() if objects is None else objects, identity)

    def names(self) -> list[str]:
        """Return the records that a new reader finds after the checkpoint."""
        return [name_of(entry) for entry in self.follower().read_new().entries]

    def names_of(self, entries: list[LogEntry]) -> list[str]:
        return [name_of(entry) for entry in entries]

    def thread(self, action: Callable[[], object]) -> Waiter:
        return Waiter(action)

    def keys(self, under: str) -> list[str]:
        return [info.key for info in self.bucket.list(under)]

    def slots(self) -> list[tuple[int, int]]:
        """Return the places of all slots in the bucket."""
        return [slot.place for key in self.keys("log/") if (slot := Slot.parse(key)) is not None]

    def checkpoints(self) -> list[tuple[int, int]]:
        parsed = (CheckpointKey.parse(key) for key in self.keys("ckpt/"))
        return [found.place for found in parsed if found is not None]

    def damage(self, key: str, offset: int = -1) -> None:
        """Flip a bit of an object."""
        body = bytearray(self.bucket.get(key) or b"")
        body[offset] ^= 1
        self.bucket.put(key, bytes(body))


@pytest.fixture
def bench() -> Bench:
    return Bench()
