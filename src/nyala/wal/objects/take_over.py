"""Makes this process the writer of a store in a bucket: creates the store if it does not exist, or
seals the epoch of the writer before.

    1  read the birth object, or create it by put-if-absent
    2  follow the log to its first empty slot
    3  create a seal there, which names the next epoch with a fresh token
           the slot has something else by now: create a wall (S7), and go on with 2
    4  S1: list the checkpoints. If one is beyond the slot, it had been deleted: begin again at 2
    5  the next epoch is this process's

The former writer need not agree, nor live. Its next group meets the seal, and it raises
`FencedError`. No clock and no lock take part.

Rules
    S1  A seal counts only if its slot had not been deleted (see `LogFollower.must_begin_again`).
        Otherwise it is below the log's start, where it ends no epoch.
    S4  A seal is never deleted. So a slot in which a writer was fenced never becomes empty.
    S6  The token of each seal is new, also when a seal is tried again. So a seal in a deleted slot
        leads to an epoch in which nobody writes.
    S7  If the writer fills the slot before the seal comes, this process also creates a seal some slots
        further on, a *wall*. The writer cannot pass it. So a writer that is always faster is
        stopped. A wall ends the epoch only if every slot before it has a group. If the writer stops
        earlier, this process seals that slot, and the wall is behind the seal.

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
from nyala.wal.objects.follower import Checkpoint, LogEntry, LogFollower, read_birth
from nyala.wal.objects.format import (
    ANY_GROUP,
    BIRTH_KEY,
    COPYING_KEY,
    Birth,
    Epoch,
    Seal,
    Slot,
    encode_seal,
    is_seal_size,
)
from nyala.wal.objects.writer import ObjectLog

# An heir whose clock is further behind than this would write with timestamps far ahead of its own
# time, and reads at a wall-clock time would miss its writes.
CLOCK_BEHIND_MAX_US: Final = 600_000_000


# A busy writer creates some tens of slots a second, and the wall must be created before it is there.
# The distance doubles with each wall that came too late.
_WALL_SLOTS: Final = 8


@dataclass(frozen=True)
class TakenLog:
    """This process's log, and everything that it has to replay.

    checkpoint: the state to begin with; None: an empty store.
    entries:    the records after it, oldest first; of slots before the checkpoint, only batches.
    """

    log: ObjectLog
    checkpoint: Checkpoint | None
    entries: list[LogEntry]


def check_clock(now_us: int, timestamp: int) -> None:
    """Raise StorageError if this machine's clock is too far behind the log's last timestamp.

    A caller does this before `take_over` with the timestamp that a follower found, or after it.
    """
    behind_us = physical_us(timestamp) - now_us
    if behind_us > CLOCK_BEHIND_MAX_US:
        raise StorageError(
            f"this machine's clock is {behind_us / 60e6:.0f} minutes behind the last write of the store, so new "
            "writes would get times ahead of it: correct the clock of this machine (for example with NTP), or, if "
            "the former writer's clock was wrong, wait that long"
        )


def create_store(env: Env, objects: Objects, *, patience_s: float = PATIENCE_S) -> Birth:
    """Return the birth of the store under this prefix; create it if it does not exist.

    Raises: StorageError for an unfinished copy of a store, and as `create_birth`.
    """
    birth = read_birth(env, objects, patience_s)
    if birth is not None:
        return birth
    if persist(env, lambda: objects.head(COPYING_KEY), patience_s=patience_s) is not None:
        raise StorageError(
            f"there is an unfinished copy of a store at {objects.url!r}: wait for `nyala fs copy`, or run it again if "
            "it was interrupted",
            path=objects.url,
        )
    mine = Birth(env.randomness.token_hex(16), Epoch(0, env.randomness.token_hex(8)))
    other = create_birth(env, objects, mine, patience_s=patience_s)
    return mine if other is None else Birth.decode(other, f"{objects.url}/{BIRTH_KEY}")


def create_birth(env: Env, objects: Objects, birth: Birth, *, patience_s: float = PATIENCE_S) -> bytes | None:
    """Create the birth object, and return None. If another one exists, return its bytes.

    A new store first proves that the bucket refuses to store an object twice.

    Raises: StorageError if the bucket stores it twice; with outcome "unknown" if it does not answer.
    """
    other = settle(env, objects, BIRTH_KEY, birth.encode(), patience_s=patience_s)
    if other is not None:
        return other
    if persist(env, lambda: objects.create(BIRTH_KEY, birth.encode()), patience_s=patience_s):
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
    birth: Birth | None = None,
    guard: Callable[[Epoch], None] | None = None,
) -> TakenLog:
    """Become the writer of the store under this prefix, and return its log and its content.

    group_interval_s: see `ObjectLog`.
    birth: the birth of a new store, if the caller writes the birth object itself, later. Default: the
        birth object is read, or created.
    guard: called with the epoch that will be sealed; it raises an error to stop the take-over.
    Raises: CorruptionError; StorageError if the bucket does not answer. Then this process is not the
            writer; the former writer may nevertheless be fenced.
    """
    if birth is None:
        birth = create_store(env, objects, patience_s=patience_s)
    follower = LogFollower(env, objects, birth, patience_s=patience_s)
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
    """Create a seal in `slot`; return it, and what is there instead if the slot is taken."""
    epoch = slot.epoch.next(env.randomness.token_hex(8))  # S6
    seal = Seal(epoch, socket.gethostname(), os.getpid(), env.clock.now_us())
    body, _ = encode_seal(store_id, slot, previous_crc, seal)
    return body, settle(env, objects, slot.key, body, patience_s=patience_s)
