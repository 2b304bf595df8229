"""Makes this process the writer of a store in a bucket, and creates the store if it does not exist.

An *epoch* is the part of the log that one writer writes. A *seal* is an object that ends an epoch
and names the next one. A process becomes the writer by creating a seal:

    1  Read the object `nyala.json`, which marks the store, or create it if it does not exist.
    2  Read the log up to its first empty slot. A slot is one numbered object of the log.
    3  Create a seal there. It names the next epoch with a new random token. The former writer may
       have filled the slot meanwhile. Then create a wall, which is a seal some slots later (S7),
       and continue with 2. If another process has created a seal there, only continue with 2.
    4  List the checkpoints. If one has a later place in the log than the seal, the slot was empty
       only because its object had been deleted. Then the seal does not count (S1): continue with 2.
    5  This process writes the next epoch.

The former writer may be alive or dead. If it tries to write another object of the log, it finds the
seal in the slot and raises `FencedError`. Clocks and locks are not needed.

Rules
    S1  A seal counts only if its slot had not been deleted before (`LogFollower.must_begin_again`).
        Otherwise the seal is before the start of the log, and ends no epoch.
    S4  A seal is never deleted. So a slot in which a writer was fenced never becomes empty.
    S6  Each seal has a new token, also when a process tries again. A process that finds that its
        seal does not count (S1) creates another seal, with another token. So nobody writes the
        epoch that the first seal names.
    S7  If the writer fills the slot first, this process creates another seal some slots later, a
        *wall*. It stops a writer that is always faster. A wall ends the epoch only if every slot
        before the wall has an object with records. The writer may stop before it has filled these
        slots. Then this process seals the first empty slot, and the wall has no effect.

Source: docs/design/object-storage.md, "The log".
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from nyala.env import Env
from nyala.errors import StorageError
from nyala.mvcc.timestamp import physical_us
from nyala.objects.base import Objects
from nyala.objects.settle import PATIENCE_S, persist, settle
from nyala.wal.objects.follower import Checkpoint, LogEntry, LogFollower, read_identity
from nyala.wal.objects.format import (
    ANY_GROUP,
    COPYING_KEY,
    IDENTITY_KEY,
    Epoch,
    Seal,
    Slot,
    StoreIdentity,
    encode_seal,
    is_seal_size,
)
from nyala.wal.objects.writer import ObjectLog

# If the clock of the new writer were further behind, its timestamps would be far ahead of its own
# time, and reads at a wall-clock time would miss its writes.
CLOCK_BEHIND_MAX_US: Final = 600_000_000

# The distance of the first wall. A busy writer creates some tens of slots per second, so the
# distance doubles with each wall that is too late.
_WALL_SLOTS: Final = 8


@dataclass(frozen=True)
class TakenLog:
    """The log that this process now writes, and what it must replay first.

    checkpoint: the state to begin with; None: an empty store.
    entries:    the records to replay, oldest first. The checkpoint has all earlier changes of the
                catalogue, so they are left out.
    """

    log: ObjectLog
    checkpoint: Checkpoint | None
    entries: list[LogEntry]


def check_clock(now_us: int, timestamp: int) -> None:
    """Raise StorageError if this machine's clock is too far behind the log's last timestamp."""
    behind_us = physical_us(timestamp) - now_us
    if behind_us > CLOCK_BEHIND_MAX_US:
        raise StorageError(
            f"this machine's clock is {behind_us / 60e6:.0f} minutes behind the last write of the store, so new "
            "writes would get later times than this clock shows: correct the clock of this machine (for example with "
            "NTP), or, if the former writer's clock was wrong, wait that long"
        )


def create_store(env: Env, objects: Objects, *, patience_s: float = PATIENCE_S) -> StoreIdentity:
    """Return the content of the object `nyala.json`; create the object if it does not exist.

    This object makes the prefix of `objects` a store.

    patience_s: how many seconds to repeat a request that gets no answer.
    Raises: StorageError if there is an unfinished copy of a store, and the errors of
            `create_identity`.
    """
    identity = read_identity(env, objects, patience_s)
    if identity is not None:
        return identity
    if persist(env, lambda: objects.head(COPYING_KEY), patience_s=patience_s) is not None:
        raise StorageError(
            f"there is an unfinished copy of a store at {objects.url!r}: wait for `nyala fs copy`, or run it again if "
            "it was interrupted",
            path=objects.url,
        )
    mine = StoreIdentity(env.randomness.token_hex(16), Epoch(0, env.randomness.token_hex(8)))
    other = create_identity(env, objects, mine, patience_s=patience_s)
    return mine if other is None else StoreIdentity.decode(other, f"{objects.url}/{IDENTITY_KEY}")


def create_identity(
    env: Env, objects: Objects, identity: StoreIdentity, *, patience_s: float = PATIENCE_S
) -> bytes | None:
    """Create `nyala.json`, and check that the bucket refuses to create it a second time.

    Returns: None; or the bytes of `nyala.json`, if one exists already.
    Raises: StorageError if the bucket does not refuse, or if it does not answer (with outcome
    "unknown").
    """
    other = settle(env, objects, IDENTITY_KEY, identity.encode(), patience_s=patience_s)
    if other is not None:
        return other
    if persist(env, lambda: objects.create(IDENTITY_KEY, identity.encode()), patience_s=patience_s):
        raise StorageError(
            f"{objects.url} stores an object again although it exists: this service ignores If-None-Match, so two "
            "writers would lose each other's data. A store cannot be kept here; `nyala fs probe` tests a service",
            path=objects.url,
        )
    return None


def take_over(
    env: Env,
    objects: Objects,
    *,
    group_interval_s: float = 0.0,
    patience_s: float = PATIENCE_S,
    identity: StoreIdentity | None = None,
    guard: Callable[[Epoch], None] | None = None,
) -> TakenLog:
    """Become the writer of the store in the bucket and prefix of `objects`.

    group_interval_s: the least time between two objects that the log's writer creates.
    identity: the content of `nyala.json` of a new store, if the caller creates this object later.
           None: read the object, or create it.
    guard: a function that may raise an error to stop the take-over. It is called before this
           process ends the log of the former writer. Its argument is the former writer's epoch
           (part of the log).
    patience_s: how many seconds to repeat a request that gets no answer.
    Raises: CorruptionError; StorageError if the bucket does not answer. Then this process is not
            the writer, but the former writer may be fenced.
    """
    if identity is None:
        identity = create_store(env, objects, patience_s=patience_s)
    follower = LogFollower(env, objects, identity, patience_s=patience_s)
    checkpoint: Checkpoint | None = None
    entries: list[LogEntry] = []
    wall_slots = _WALL_SLOTS
    while True:
        news = follower.read_new()
        if news.restarted:
            checkpoint, entries = news.checkpoint, []
        entries += news.entries
        slot = follower.position
        if guard is not None:
            guard(slot.epoch)
        seal, other = _seal(env, objects, follower.store_id, slot, follower.previous_crc, patience_s)
        if other is not None:
            if not is_seal_size(len(other)):
                wall = Slot(slot.epoch, slot.n + wall_slots)
                _seal(env, objects, follower.store_id, wall, ANY_GROUP, patience_s)
                wall_slots *= 2
            continue
        if follower.must_begin_again():  # S1
            follower.restart()
            continue
        entries += follower.accept(seal)
        log = ObjectLog(env, objects, follower, group_interval_s=group_interval_s, patience_s=patience_s)
        log.announce()
        return TakenLog(log, checkpoint, entries)


def _seal(
    env: Env, objects: Objects, store_id: str, slot: Slot, previous_crc: int, patience_s: float
) -> tuple[bytes, bytes | None]:
    """Try to create a seal as the object `slot` of the log.

    A seal ends an epoch (one writer's part of the log). A slot is one numbered object of the log.

    previous_crc: the CRC of the log's object before `slot`. If it is not known: the constant
             `ANY_GROUP`; readers of the seal do not check the CRC then.
    patience_s: how many seconds to repeat a request that gets no answer.
    Returns: a pair. Its first item is the content of the seal, as bytes. Its second item is None if
             the seal was created. If the slot already had another object, the second item is the
             content of that object.
    Raises: StorageError if the bucket does not answer.
    """
    epoch = slot.epoch.next(env.randomness.token_hex(8))  # S6
    seal = Seal(epoch, socket.gethostname(), os.getpid(), env.clock.now_us())
    body, _ = encode_seal(store_id, slot, previous_crc, seal)
    return body, settle(env, objects, slot.key, body, patience_s=patience_s)
