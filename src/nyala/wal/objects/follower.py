"""Reads the log of a store in a bucket, from the newest checkpoint to the first empty slot.

    checkpoint  ──▶  slot 7 ─ slot 8 ─ seal     of epoch 3
                                        └──▶  slot 0 ─ slot 1 ─ (empty)     of epoch 4

The log is a sequence of slots. A slot is an object with a group of records, or with a seal. An
epoch is the part of the log that one writer wrote; a seal ends it and names the next epoch.

A `LogFollower` reads one slot after another. At a seal it continues with the next epoch. At an
empty slot it stops, and the next `read_new` continues there. Reader processes follow a running
writer in this way, and a new writer reads everything before it takes over.

A slot is empty at the end of the log. But it is also empty if the writer deleted the slot's group
because a checkpoint replaced it. A process that wanted to become the writer may even create a seal
in a deleted slot. The epoch that this seal names stays empty, because no process becomes its
writer. Rule S2 distinguishes these cases:

    S2  At an empty slot, list the checkpoints. If a checkpoint is beyond this slot, the slot was
        deleted: begin again from this checkpoint. Also begin again if the empty slot is slot 0 of
        an epoch, and the list has a newer checkpoint than any that this follower has seen. Then the
        seal that named the epoch may be in a deleted slot.

Invariants
    F1  `read_new` returns the records of the log in order, without gaps. It returns every record
        that was acknowledged before the call, and perhaps some that are not acknowledged yet.
    F2  Each group contains the CRC of the group before it. A wrong CRC is damage.
    F3  The log reaches at least to the slot of the newest checkpoint. If it ends earlier, objects
        are missing, which is damage.
    F4  If a checkpoint is damaged, the follower uses the one before it. The writer always keeps
        two.

Source: docs/design/object-storage.md, "The log".
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from nyala.env import SYSTEM, Env, MissingFileError
from nyala.env.overlapped import each
from nyala.errors import CorruptionError
from nyala.objects.base import Objects
from nyala.objects.settle import PATIENCE_S, persist
from nyala.wal.format import WrongStoreError
from nyala.wal.objects.format import (
    ANY_GROUP,
    CHECKPOINT,
    CHECKPOINT_PREFIX,
    IDENTITY_KEY,
    CheckpointHeader,
    CheckpointKey,
    Group,
    Kind,
    Slot,
    StoreIdentity,
    decode_checkpoint,
    decode_group,
)

# The limits for slots that are read at once.
_READ_AHEAD_SLOTS: Final = 32
_READ_AHEAD_BYTES: Final = 8 << 20
# A checkpoint that was listed may be missing, because the writer has just replaced it by a newer
# one. The follower then lists again, up to 10 times.
_LISTED_BUT_ABSENT: Final = 10


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read: its header, and the encoded state of the store."""

    header: CheckpointHeader
    body: pa.Buffer


@dataclass(frozen=True)
class LogEntry:
    """A batch or a change of the catalogue that was read, with the place (`path`, `offset`)."""

    slot: Slot
    kind: Kind
    timestamp: int
    payload: pa.Buffer
    path: str
    offset: int


@dataclass(frozen=True)
class News:
    """The result of `read_new`.

    restarted:  True: the reader began again at a checkpoint, so the caller must discard everything
                that was read before.
    checkpoint: after a restart, the state to begin with; None: an empty store.
    entries:    the new records, oldest first. Changes of the catalogue that the checkpoint has are
                left out.
    """

    restarted: bool
    checkpoint: Checkpoint | None
    entries: list[LogEntry]


@dataclass(frozen=True)
class LiveSlot:
    """An object of the log that this process has read or written, and that is not deleted."""

    slot: Slot
    size_bytes: int
    timestamp_max: int
    crc: int


def read_identity(env: Env, objects: Objects, patience_s: float = PATIENCE_S) -> StoreIdentity | None:
    """Return the content of the object `nyala.json`, which every store has; None: no such object.

    objects: the bucket, and the prefix of the store.
    patience_s: how many seconds to repeat a request that gets no answer.
    """
    data = persist(env, lambda: objects.get(IDENTITY_KEY), patience_s=patience_s)
    return None if data is None else StoreIdentity.decode(data, f"{objects.url}/{IDENTITY_KEY}")


class LogFollower:
    """Reads the log of one store in a bucket; `read_new` returns new records. Not thread-safe."""

    def __init__(
        self, env: Env, objects: Objects, identity: StoreIdentity, *, patience_s: float = PATIENCE_S
    ) -> None:
        self._env = env
        self._objects = objects
        self._patience_s = patience_s
        self.store_id: Final = identity.store_id
        self._first = Slot(identity.first_epoch, 0)
        # None: begin at the newest checkpoint.
        self._position: Slot | None = None
        self._previous_crc: int | None = None  # None: not known at the first slot
        self._base: CheckpointHeader | None = None  # the checkpoint with which reading began
        self._base_met = True  # whether `_position` has passed the slot of `_base`
        # The newest checkpoint that was listed at the start, or that a note named later.
        self._known: CheckpointKey | None = None
        self._newest_at_start: CheckpointKey | None = None
        self._damaged: dict[CheckpointKey, CorruptionError] = {}
        self._ahead: deque[bytes | None] = deque()
        self._window = 1
        self._log_timestamp = 0  # of the last record that was read
        self._checkpoint: CheckpointHeader | None = None
        self._live: list[LiveSlot] = []

    @property
    def position(self) -> Slot:
        """The slot (place of an object in the log) that `read_new` reads next."""
        assert self._position is not None, "read_new() must come first"
        return self._position

    @property
    def previous_crc(self) -> int:
        """The CRC of the log's object before the slot `position`; 0 at the beginning of the log."""
        return self._previous_crc or 0

    @property
    def timestamp(self) -> int:
        """The greatest timestamp in the log and the checkpoint; 0 without records."""
        return max(self._log_timestamp, 0 if self._base is None else self._base.timestamp)

    @property
    def checkpoint(self) -> CheckpointHeader | None:
        """The newest intact checkpoint that this follower knows; None: no checkpoint.

        It is the checkpoint with which reading began, or a later one. The log announces each new
        checkpoint by a record, the note.
        """
        return self._checkpoint

    def live_slots(self) -> list[LiveSlot]:
        """Return the place and size of each object of the log that this follower has read.

        If the follower began to read at a checkpoint, only the objects from there on are returned.
        A process that becomes the writer deletes these objects when a later checkpoint makes them
        unneeded.
        """
        return list(self._live)

    def restart(self) -> None:
        """Make the next `read_new` begin at the newest checkpoint."""
        self._position = None

    def read_new(self) -> News:
        """Return all records from `position` to the end of the log, which is the first empty slot.

        Raises: CorruptionError, also if objects of the log are missing; StorageError if the bucket
                does not answer.
        Cost:   at least one GET and one LIST. Up to 32 slots are read at once.
        """
        entries: list[LogEntry] = []
        restarted: Checkpoint | None = None
        is_restart = False
        while True:
            if self._position is None:
                restarted, is_restart, entries = self._begin(), True, []
            data = self._next_object()
            if data is not None:
                entries += self.accept(data)
            elif self.must_begin_again():
                self._position = None
            else:
                return News(is_restart, restarted, entries)

    def accept(self, data: bytes) -> list[LogEntry]:
        """Decode `data`, the object in the slot `position`, and go to the next slot.

        Returns: the records of the object. A seal has no records: it ends one writer's part of the
                 log. Then the next slot is the first one of the next writer.
        """
        slot = self.position
        path = self._path(slot.key)
        group = decode_group(data, path, self.store_id, slot)
        self._check_chain(group, path)
        self._previous_crc = group.crc
        seal = group.seal
        self._check_times(group, path)
        self._live.append(LiveSlot(slot, group.size_bytes, self._log_timestamp, group.crc))
        if seal is None:
            self._go_to(slot.next(), path)
            return self._entries(group, path)
        if seal.next_epoch.number != slot.epoch.number + 1:
            raise CorruptionError(
                f"this object ends epoch {slot.epoch.number} (one writer's part) of the log: expected "
                f"{slot.epoch.number + 1} as the next epoch, found {seal.next_epoch.number}",
                path,
                0,
            )
        self._ahead.clear()  # groups after a seal are not part of the log
        self._go_to(Slot(seal.next_epoch, 0), path)
        return []

    def must_begin_again(self) -> bool:
        """Whether the object in the slot `position` was deleted after a newer checkpoint.

        Then reading must begin again at that checkpoint. Call this if the slot is empty, or after
        this process has created an object in it.
        Raises: CorruptionError if objects of the log are missing.
        """
        slot = self.position
        listed = self._list_checkpoints()
        newest = listed[-1] if listed else None
        if newest is not None and newest.place > slot.place:
            if newest == self._newest_at_start:
                raise self._missing(slot, newest)
            return True
        if newest is not None and slot.n == 0 and (self._known is None or newest > self._known):
            return True
        if not self._base_met:
            raise self._missing(slot, newest)
        return False

    # ── the start

    def _begin(self) -> Checkpoint | None:
        """Load the newest intact checkpoint, and go to the first object of the log to read after it.

        Returns: the checkpoint; None without an intact checkpoint. Then reading begins at the start
            of the log.
        """
        missing: MissingFileError | None = None
        for _ in range(_LISTED_BUT_ABSENT):
            listed = self._list_checkpoints()
            try:
                loaded = map(self._load, reversed(listed))
                found = next((checkpoint for checkpoint in loaded if checkpoint is not None), None)
            except MissingFileError as error:
                missing = error
            else:
                self._start_at(found, listed[-1] if listed else None)
                return found
        assert missing is not None
        raise missing

    def _load(self, key: CheckpointKey) -> Checkpoint | None:
        """Return a checkpoint; None if it is damaged. Raises: MissingFileError if it was deleted."""
        path = self._path(key.key)
        data = self._get(key.key)
        if data is None:
            raise MissingFileError(f"{path} was listed, but does not exist", path=path)
        try:
            return Checkpoint(*decode_checkpoint(data, path, self.store_id, key))
        except WrongStoreError:
            raise
        except CorruptionError as error:
            self._damaged[key] = error
            return None

    def _start_at(self, checkpoint: Checkpoint | None, newest: CheckpointKey | None) -> None:
        header = None if checkpoint is None else checkpoint.header
        self._base = self._checkpoint = header
        self._known = self._newest_at_start = newest
        self._log_timestamp = 0
        self._ahead.clear()
        self._window = 1
        self._live = []
        self._base_met = header is None
        # The CRC before the first group is not known. It is compared at the checkpoint's slot.
        self._previous_crc = 0 if header is None else None
        start = self._first if header is None else header.log_start
        self._go_to(start, self._path(start.key))

    def _go_to(self, slot: Slot, path: str) -> None:
        """Set the position to `slot`, the next slot to read.

        If `slot` is the first slot after the loaded checkpoint, also check that the checkpoint fits
        the log. The checkpoint has the CRC of the object before this slot. The last object that was
        read must have the same CRC. If no object was read yet, nothing is compared.

        path: the URL of an object, for the error message.
        Raises: CorruptionError if the two CRCs differ.
        """
        self._position = slot
        base = self._base
        if base is not None and not self._base_met and slot == base.position:
            if self._previous_crc is None:
                self._previous_crc = base.previous_crc
            self._base_met = True
            if self._previous_crc != base.previous_crc:
                raise CorruptionError(
                    f"the object of the log before the checkpoint {base.key.key} is not the one that the checkpoint "
                    f"expects: expected CRC {base.previous_crc:08x}, found {self._previous_crc:08x}. An object of the "
                    "store was replaced: restore it, or the store, from a backup",
                    path,
                    0,
                )

    # ── one slot

    def _next_object(self) -> bytes | None:
        """Return the object in the slot `position`; None if the slot is empty.

        Reads several slots at once, up to the first empty one, and keeps the results for the next
        calls. The call that reaches this empty slot returns None, even if the writer has filled the
        slot since then. So `read_new` ends although a busy writer appends. The next call reads the
        slot again.
        """
        if not self._ahead:
            slot = self.position
            keys = [Slot(slot.epoch, slot.n + index).key for index in range(self._window)]
            # The files of a test's `env` may refuse threads, but requests to a bucket may overlap.
            for data in each(SYSTEM.files, self._get, keys, self._window):
                self._ahead.append(data)
                if data is None:
                    break
            size = sum(len(data) for data in self._ahead if data is not None)
            if self._ahead[-1] is None:
                self._window = 1
            elif size * 2 > _READ_AHEAD_BYTES:
                self._window = max(self._window // 2, 1)
            else:
                self._window = min(self._window * 2, _READ_AHEAD_SLOTS)
        return self._ahead.popleft()

    def _check_chain(self, group: Group, path: str) -> None:
        is_wall = group.seal is not None and group.previous_crc == ANY_GROUP
        if self._previous_crc is not None and group.previous_crc != self._previous_crc and not is_wall:
            raise CorruptionError(
                "an object of the log is missing or was replaced: expected CRC "
                f"{group.previous_crc:08x} of the object before this one, found {self._previous_crc:08x}. Restore the "
                "store from a backup",
                path,
                0,
            )

    def _check_times(self, group: Group, path: str) -> None:
        first, last = group.records[0], group.records[-1]
        if first.kind is Kind.SEAL:
            return
        if first.timestamp < self._log_timestamp:
            raise CorruptionError(
                f"timestamps must not descend: found {first.timestamp} after {self._log_timestamp}",
                path,
                0,
            )
        self._log_timestamp = last.timestamp

    def _entries(self, group: Group, path: str) -> list[LogEntry]:
        base = self._base
        in_checkpoint = base is not None and group.slot.place < base.position.place
        entries = []
        for record in group.records:
            if record.kind is Kind.NOTE:
                self._note(record.payload.to_pybytes(), path)
            elif record.kind is Kind.BATCH or not in_checkpoint:
                entries.append(
                    LogEntry(group.slot, record.kind, record.timestamp, record.payload, path, record.offset)
                )
        return entries

    def _note(self, payload: bytes, path: str) -> None:
        """Remember the checkpoint that a record of the log announces.

        payload: the bytes in the record, which are a copy of the checkpoint's header.
        path:    the object with the record, for error messages.
        """
        if len(payload) != CHECKPOINT.size_bytes:
            raise CorruptionError(
                f"the log record that announces a checkpoint has {len(payload)} bytes: expected "
                f"{CHECKPOINT.size_bytes}",
                path,
                0,
            )
        header = CheckpointHeader.decode(payload, path)
        if self._checkpoint is None or header.key > self._checkpoint.key:
            if header.key not in self._damaged:
                self._checkpoint = header
        if self._known is None or header.key > self._known:
            self._known = header.key

    # ── the bucket

    def _path(self, key: str) -> str:
        return f"{self._objects.url}/{key}"

    def _get(self, key: str) -> bytes | None:
        return persist(self._env, lambda: self._objects.get(key), patience_s=self._patience_s)

    def _list_checkpoints(self) -> list[CheckpointKey]:
        return list_checkpoints(self._env, self._objects, self._patience_s)

    def _missing(self, slot: Slot, newest: CheckpointKey | None) -> CorruptionError:
        text = (
            "this object of the log is missing, although a checkpoint follows it: no rule of the bucket may delete "
            "objects of a store; restore them, or the store, from a backup"
        )
        if newest in self._damaged:
            text += f". The newest checkpoint is damaged too: {self._damaged[newest]}"
        return CorruptionError(text, self._path(slot.key))


def list_checkpoints(env: Env, objects: Objects, patience_s: float) -> list[CheckpointKey]:
    """Return the keys of the checkpoints in the bucket, oldest first.

    patience_s: how many seconds to repeat a request that gets no answer.
    """
    infos = persist(env, lambda: objects.list(CHECKPOINT_PREFIX), patience_s=patience_s)
    return sorted(key for info in infos if (key := CheckpointKey.parse(info.key)) is not None)
