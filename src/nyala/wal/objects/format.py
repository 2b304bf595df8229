"""The keys and layouts of a store's log in a bucket. They are stored: never change them.

    nyala.json                              the store's id, format version, first epoch; JSON
    log/<epoch>/<n:012>                     slot n of an epoch: a group of records, or a seal
    ckpt/<epoch number:010>-<n:012>-<token> the state before slot n of that epoch
    writer                                  who writes; a hint for people and programs; JSON

`n:012` is a number with 12 decimal digits. A token is 16 random hexadecimal digits. An *epoch* is
the part of the log that one writer wrote, named `<number:010>-<token>`. Its last slot has a *seal*,
which names the next epoch. A group object is

    ┌──────────────┬───────────────┬─────────┬─────────┬─ ─ ─
    │ group header │ record header │ payload │ padding │ the next record …
    │   80 bytes   │   24 bytes    │         │ to 8·n  │
    └──────────────┴───────────────┴─────────┴─────────┴─ ─ ─

All integers are little-endian.

Invariants (checked on write and on read)
    O1  CRCs cover every byte of an object, except for the magic.
    O2  A group's header has the store, epoch and number of its key. So a reader refuses a group
        that was copied to another key.
    O3  A group has the CRC of the group before it, even if that group is in another epoch. So a
        reader refuses groups in another order. Only a seal may omit the CRC (`ANY_GROUP`).
    O4  Timestamps never descend. A seal is alone in its group, and its timestamp is 0.
    O5  The payload of a seal is not padded. So its size is not a multiple of 8, and the size of
        every other group is. Therefore the list of a bucket's objects shows which ones are seals.

Page: docs/format/object-log.md (a test compares its tables with the layouts here).
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from nyala.env import Bytes
from nyala.errors import CorruptionError, StorageError
from nyala.objects.handle import WHOLE_MAX_BYTES
from nyala.wal.format import Layout, check_store_id, crc32c

FORMAT_VERSION: Final = 1
GROUP_MAGIC: Final = b"NyLg"
CHECKPOINT_MAGIC: Final = b"NyCk"

IDENTITY_KEY: Final = "nyala.json"
WRITER_KEY: Final = "writer"
COPYING_KEY: Final = "copying"
"""The marker of an unfinished copy of a store, in a folder too."""
LOG_PREFIX: Final = "log/"
CHECKPOINT_PREFIX: Final = "ckpt/"

# A leader takes appended records up to this size into one group, but always at least one record.
GROUP_MAX_BYTES: Final = 8 << 20

# One request can read a group with one such record.
PAYLOAD_MAX_BYTES: Final = WHOLE_MAX_BYTES - 1024

ANY_GROUP: Final = 0
"""`previous_crc32c` of a wall, a seal that was created before the slots in front of it (S7)."""

_ALIGNMENT_BYTES: Final = 8
_HOST_BYTES: Final = 61  # so that a seal's size is odd (O5)
_EPOCH_NUMBER_MAX: Final = 10**10 - 1
_N_MAX: Final = 10**12 - 1
_JSON_MAX_BYTES: Final = 4096
_TOKEN: Final = re.compile("[0-9a-f]{16}")
_STORE_ID: Final = re.compile("[0-9a-f]{32}")
_SLOT_KEY: Final = re.compile(r"log/(\d{10})-([0-9a-f]{16})/(\d{12})")
_CHECKPOINT_KEY: Final = re.compile(r"ckpt/(\d{10})-(\d{12})-([0-9a-f]{16})")

GROUP: Final = Layout(
    "group header",
    (
        ("magic", "4s"),
        ("crc32c", "I"),
        ("format_version", "H"),
        ("compatible_flags", "H"),
        ("incompatible_flags", "I"),
        ("store_id", "16s"),
        ("epoch", "Q"),
        ("token", "8s"),
        ("n", "Q"),
        ("previous_crc32c", "I"),
        ("body_crc32c", "I"),
        ("body_length", "Q"),
        ("record_count", "I"),
        ("reserved", "I"),
    ),
)

RECORD: Final = Layout(
    "record header",
    (
        ("crc32c", "I"),
        ("kind", "B"),
        ("reserved_1", "B"),
        ("reserved_2", "H"),
        ("timestamp", "q"),
        ("payload_length", "I"),
        ("payload_crc32c", "I"),
    ),
)

SEAL: Final = Layout(
    "seal",
    (
        ("crc32c", "I"),
        ("pid", "I"),
        ("next_epoch", "Q"),
        ("next_token", "8s"),
        ("time_us", "q"),
        ("host", f"{_HOST_BYTES}s"),
    ),
)

CHECKPOINT: Final = Layout(
    "checkpoint header",
    (
        ("magic", "4s"),
        ("crc32c", "I"),
        ("format_version", "H"),
        ("compatible_flags", "H"),
        ("incompatible_flags", "I"),
        ("store_id", "16s"),
        ("epoch", "Q"),
        ("epoch_token", "8s"),
        ("n", "Q"),
        ("previous_crc32c", "I"),
        ("body_crc32c", "I"),
        ("body_length", "Q"),
        ("log_start_epoch", "Q"),
        ("log_start_token", "8s"),
        ("log_start_n", "Q"),
        ("timestamp", "q"),
        ("token", "8s"),
    ),
)

assert GROUP.size_bytes == 80
assert RECORD.size_bytes == 24
assert SEAL.size_bytes == 93
assert CHECKPOINT.size_bytes == 112

SEAL_SIZE_BYTES: Final = GROUP.size_bytes + RECORD.size_bytes + SEAL.size_bytes
assert SEAL_SIZE_BYTES % _ALIGNMENT_BYTES, "O5"


def is_seal_size(size_bytes: int) -> bool:
    """Whether an object of the log with this size is a seal: seals are not padded to 8 bytes."""
    return size_bytes % _ALIGNMENT_BYTES != 0


class Kind(enum.IntEnum):
    """The kind of a record. The numbers are stored in the bucket: never renumber."""

    BATCH = 1
    """A batch, encoded by `nyala.wal.record`."""
    CHANGE = 2
    """A change of the catalogue."""
    SEAL = 3
    """The end of an epoch: a `Seal`."""
    NOTE = 4
    """A note that a checkpoint was written: its `CheckpointHeader`."""


# ── keys


@dataclass(frozen=True, order=True)
class Epoch:
    """The name of the part of the log that one writer writes: a number and a random token."""

    number: int
    token: str

    def __post_init__(self) -> None:
        assert 0 <= self.number <= _EPOCH_NUMBER_MAX and _TOKEN.fullmatch(self.token), self

    @property
    def name(self) -> str:
        return f"{self.number:010d}-{self.token}"

    def next(self, token: str) -> Epoch:
        return Epoch(self.number + 1, token)


Place = tuple[int, int]
"""An epoch number and a slot number. Places order slots and checkpoints: of all epochs with the
same number, only one ever has a record."""


@dataclass(frozen=True, order=True)
class Slot:
    """The place of one object in the log: an epoch (one writer's part of the log), and a number."""

    epoch: Epoch
    n: int

    @property
    def key(self) -> str:
        return f"{LOG_PREFIX}{self.epoch.name}/{self.n:012d}"

    @property
    def place(self) -> Place:
        return self.epoch.number, self.n

    @classmethod
    def parse(cls, key: str) -> Slot | None:
        """Return the place in the log of the object with this name; None: not an object of the log.

        key: the name of an object in the bucket.
        """
        match = _SLOT_KEY.fullmatch(key)
        return None if match is None else cls(Epoch(int(match[1]), match[2]), int(match[3]))

    def next(self) -> Slot:
        assert self.n < _N_MAX
        return Slot(self.epoch, self.n + 1)


@dataclass(frozen=True, order=True)
class CheckpointKey:
    """The key of a checkpoint object.

    place: the checkpoint has the store's state before this place in the log.
    """

    place: Place
    token: str

    @property
    def key(self) -> str:
        return f"{CHECKPOINT_PREFIX}{self.place[0]:010d}-{self.place[1]:012d}-{self.token}"

    @classmethod
    def parse(cls, key: str) -> CheckpointKey | None:
        """Parse the key of an object; None if the object is not a checkpoint."""
        match = _CHECKPOINT_KEY.fullmatch(key)
        return None if match is None else cls((int(match[1]), int(match[2])), match[3])


# ── groups


@dataclass(frozen=True)
class Record:
    """One record to be written: the payload as a list of buffers, with its length and CRC."""

    kind: Kind
    timestamp: int
    payload: Sequence[Bytes]
    length: int
    crc: int

    @classmethod
    def of(cls, kind: Kind, timestamp: int, payload: Sequence[Bytes]) -> Record:
        length = crc = 0
        for part in payload:
            length += memoryview(part).nbytes
            crc = crc32c(part, crc)
        assert length <= PAYLOAD_MAX_BYTES, f"a record of {length} bytes must not go through the log"
        return cls(kind, timestamp, payload, length, crc)

    @property
    def size_bytes(self) -> int:
        return RECORD.size_bytes + self.length + self.padding_bytes

    @property
    def padding_bytes(self) -> int:
        return 0 if self.kind is Kind.SEAL else -self.length % _ALIGNMENT_BYTES


@dataclass(frozen=True)
class ReadRecord:
    """One record that was read. `offset` is the offset of its header in the object."""

    kind: Kind
    timestamp: int
    payload: pa.Buffer
    offset: int


@dataclass(frozen=True)
class Group:
    """One object of the log: its records, its CRC, and the CRC of the object before it."""

    slot: Slot
    crc: int
    previous_crc: int
    records: tuple[ReadRecord, ...]
    size_bytes: int
    path: str

    @property
    def seal(self) -> Seal | None:
        """The seal (the end of an epoch), if the group consists of one; otherwise None."""
        only = self.records[0]
        return None if only.kind is not Kind.SEAL else Seal.decode(only.payload.to_pybytes(), self.path)


def encode_group(
    store_id: str, slot: Slot, previous_crc: int, records: Sequence[Record]
) -> tuple[bytes, int]:
    """Encode records as one object of the log. Return the bytes of the object, and its CRC.

    slot:         the place of the object in the log.
    previous_crc: the CRC of the object before it. The next object repeats the returned CRC.
    Cost: one copy of the payloads, and one CRC pass.
    """
    assert records, "a group has at least one record"
    parts: list[Bytes] = []
    for record in records:
        parts.append(
            RECORD.encode(
                {
                    "kind": record.kind,
                    "timestamp": record.timestamp,
                    "payload_length": record.length,
                    "payload_crc32c": record.crc,
                }
            )
        )
        parts += record.payload
        parts.append(bytes(record.padding_bytes))
    body = b"".join(parts)
    header = GROUP.encode(
        {
            "magic": GROUP_MAGIC,
            "format_version": FORMAT_VERSION,
            "compatible_flags": 0,
            "incompatible_flags": 0,
            "store_id": bytes.fromhex(store_id),
            "epoch": slot.epoch.number,
            "token": bytes.fromhex(slot.epoch.token),
            "n": slot.n,
            "previous_crc32c": previous_crc,
            "body_crc32c": crc32c(body),
            "body_length": len(body),
            "record_count": len(records),
        }
    )
    return header + body, _own_crc(header)


def decode_group(data: bytes, path: str, store_id: str, slot: Slot) -> Group:
    """Decode one object of the log.

    path: the URL of the object, for messages.
    slot: the place of the object in the log.
    Raises: CorruptionError for damaged bytes, or the object of another slot; WrongStoreError for an
            object of another store; StorageError for an object that a newer Nyala wrote.
    Cost:   two CRC passes. Payloads are not copied and keep `data` alive.
    """
    values = _decode_header(GROUP, GROUP_MAGIC, data, path, store_id)
    expected = (slot.epoch.number, slot.epoch.token, slot.n)
    found = (values["epoch"], values["token"].hex(), values["n"])
    if found != expected:
        raise CorruptionError(
            "this object of the log has the header of another slot (place in the log): expected epoch, token and "
            f"number {expected}, found {found}. Restore the object from a backup",
            path,
            0,
        )
    buffer = pa.py_buffer(data)
    records: list[ReadRecord] = []
    offset = GROUP.size_bytes
    count, timestamp = values["record_count"], None
    while offset < len(data):
        record = _decode_record(data, buffer, offset, path)
        if timestamp is not None and record.timestamp < timestamp:
            raise CorruptionError(
                f"timestamps must not descend: found {record.timestamp} after {timestamp}", path, offset
            )
        timestamp = record.timestamp
        records.append(record)
        offset = record.offset + RECORD.size_bytes + record.payload.size
        offset += -offset % _ALIGNMENT_BYTES
    if len(records) != count or not records:
        raise CorruptionError(f"expected {count} records in the group, found {len(records)}", path, 0)
    if len(records) > 1 and any(record.kind is Kind.SEAL for record in records):
        raise CorruptionError(
            "expected a seal (the end of one writer's part of the log) as the only record, found "
            f"{len(records)} records",
            path,
            0,
        )
    return Group(slot, values["crc32c"], values["previous_crc32c"], tuple(records), len(data), path)


def _decode_record(data: bytes, buffer: pa.Buffer, offset: int, path: str) -> ReadRecord:
    values = RECORD.decode(data, offset, path, offset)
    length = values["payload_length"]
    lower = offset + RECORD.size_bytes
    upper = lower + length
    padded = upper if values["kind"] == Kind.SEAL else upper + -upper % _ALIGNMENT_BYTES
    if length > PAYLOAD_MAX_BYTES or padded > len(data):
        raise CorruptionError(
            f"a record says that its payload has {length} bytes, but the object has only {len(data) - lower} more",
            path,
            offset,
        )
    if any(data[upper:padded]):
        raise CorruptionError(
            "the padding after a log record's payload must be zero bytes, found others: the log object is damaged",
            path,
            upper,
        )
    payload = buffer[lower:upper]
    found = crc32c(payload)
    if found != values["payload_crc32c"]:
        raise CorruptionError(
            f"the payload of a record fails its checksum: expected {values['payload_crc32c']:08x}, found {found:08x}",
            path,
            offset,
        )
    try:
        kind = Kind(values["kind"])
    except ValueError as error:
        raise StorageError(
            f"{path} has a record of kind {values['kind']}, which this Nyala does not know: update Nyala",
            path=path,
        ) from error
    return ReadRecord(kind, values["timestamp"], payload, offset)


def _decode_header(layout: Layout, magic: bytes, data: bytes, path: str, store_id: str) -> dict[str, Any]:
    """Decode the header of a group or checkpoint. Check version, store and the body's CRC."""
    if data[: len(magic)] != magic:
        raise CorruptionError(
            f"expected the object to start with {magic!r}, found {data[: len(magic)]!r}", path, 0
        )
    values = layout.decode(data, 0, path, 0)
    if values["format_version"] != FORMAT_VERSION or values["incompatible_flags"]:
        raise StorageError(
            f"{path} has format version {values['format_version']}, flags {values['incompatible_flags']:#x}, but this "
            f"Nyala reads version {FORMAT_VERSION}: update Nyala",
            path=path,
        )
    check_store_id(store_id, values["store_id"].hex(), path)
    body_length = len(data) - layout.size_bytes
    if values["body_length"] != body_length:
        raise CorruptionError(
            f"expected {values['body_length']} bytes after the header, found {body_length}", path, 0
        )
    found = crc32c(pa.py_buffer(data)[layout.size_bytes :])
    if found != values["body_crc32c"]:
        raise CorruptionError(
            f"the object fails its checksum: expected {values['body_crc32c']:08x}, found {found:08x}", path, 0
        )
    return values


def _own_crc(header: bytes) -> int:
    """Return the CRC that is stored in the header of a log object.

    It covers the rest of the header. The header contains the CRC of the object's body, so this CRC
    identifies the content of the whole object.
    """
    name, offset, size = GROUP.offsets()[1]
    assert name == "crc32c"
    return int.from_bytes(header[offset : offset + size], "little")


# ── seals


@dataclass(frozen=True)
class Seal:
    """The record that ends an epoch (one writer's part of the log), and names the next epoch."""

    next_epoch: Epoch
    host: str
    pid: int
    time_us: int

    def encode(self) -> bytes:
        return SEAL.encode(
            {
                "pid": self.pid,
                "next_epoch": self.next_epoch.number,
                "next_token": bytes.fromhex(self.next_epoch.token),
                "time_us": self.time_us,
                "host": self.host.encode("ascii", "replace")[:_HOST_BYTES],
            }
        )

    @classmethod
    def decode(cls, payload: bytes, path: str) -> Seal:
        values = SEAL.decode(payload, 0, path, 0)
        if len(payload) != SEAL.size_bytes or values["next_epoch"] > _EPOCH_NUMBER_MAX:
            raise CorruptionError("the seal is invalid", path, 0)
        host = "".join(char if char.isprintable() else "?" for char in _text(values["host"]))
        return cls(
            Epoch(values["next_epoch"], values["next_token"].hex()), host, values["pid"], values["time_us"]
        )

    def describe(self) -> str:
        """Return which process became the writer by this seal, and when, as a text for messages."""
        return f"pid {self.pid} on host {self.host} at {_time(self.time_us)}"


def encode_seal(store_id: str, slot: Slot, previous_crc: int, seal: Seal) -> tuple[bytes, int]:
    """Encode a seal, the object that ends an epoch (one writer's part of the log).

    slot:         the place of the object in the log.
    previous_crc: the CRC of the object before it.
    Returns: the bytes of the object, and its CRC. The next object of the log repeats this CRC.
    """
    assert seal.next_epoch.number == slot.epoch.number + 1
    body, crc = encode_group(store_id, slot, previous_crc, [Record.of(Kind.SEAL, 0, [seal.encode()])])
    assert len(body) == SEAL_SIZE_BYTES, "O5"
    return body, crc


def _text(padded: bytes) -> str:
    return padded.rstrip(b"\0").decode("ascii", "replace")


def _time(us: int) -> str:
    try:
        return dt.datetime.fromtimestamp(us // 1_000_000, dt.UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{us} us after 1970"


# ── checkpoints


@dataclass(frozen=True)
class CheckpointHeader:
    """The header of a checkpoint, which has the store's state at one position of the log.

    position:     the place of the first object of the log that the state does not include.
    previous_crc: the CRC of the log's object before `position`.
    timestamp:    the last timestamp before `position`.
    log_start:    the place of the first object of the log that an open must read. The rows of older
                  batches are in files.
    """

    store_id: str
    position: Slot
    previous_crc: int
    log_start: Slot
    timestamp: int
    token: str
    body_length: int
    body_crc: int

    @property
    def key(self) -> CheckpointKey:
        return CheckpointKey(self.position.place, self.token)

    def encode(self) -> bytes:
        assert self.log_start.place <= self.position.place
        return CHECKPOINT.encode(
            {
                "magic": CHECKPOINT_MAGIC,
                "format_version": FORMAT_VERSION,
                "compatible_flags": 0,
                "incompatible_flags": 0,
                "store_id": bytes.fromhex(self.store_id),
                "epoch": self.position.epoch.number,
                "epoch_token": bytes.fromhex(self.position.epoch.token),
                "n": self.position.n,
                "previous_crc32c": self.previous_crc,
                "body_crc32c": self.body_crc,
                "body_length": self.body_length,
                "log_start_epoch": self.log_start.epoch.number,
                "log_start_token": bytes.fromhex(self.log_start.epoch.token),
                "log_start_n": self.log_start.n,
                "timestamp": self.timestamp,
                "token": bytes.fromhex(self.token),
            }
        )

    @classmethod
    def decode(cls, header: bytes, path: str) -> CheckpointHeader:
        """Decode the header of a checkpoint, or its copy in the log. Raises: CorruptionError."""
        values = CHECKPOINT.decode(header, 0, path, 0)
        position, log_start = (
            (values[f"{prefix}epoch"], values[f"{prefix}{token}"].hex(), values[f"{prefix}n"])
            for prefix, token in (("", "epoch_token"), ("log_start_", "token"))
        )
        for number, _, n in (position, log_start):
            if number > _EPOCH_NUMBER_MAX or n > _N_MAX:
                raise CorruptionError(
                    f"the checkpoint header is invalid: it names object {n} of epoch {number} (one writer's part of "
                    f"the log), expected at most object {_N_MAX} and epoch {_EPOCH_NUMBER_MAX}",
                    path,
                    0,
                )
        if log_start[::2] > position[::2]:
            raise CorruptionError(
                f"the checkpoint is damaged: its state ends before object {position[2]} of epoch {position[0]} (one "
                "writer's part of the log), but it says that reading of the log begins at the later object "
                f"{log_start[2]} of epoch {log_start[0]}; the records between them would be missing",
                path,
                0,
            )
        return cls(
            values["store_id"].hex(),
            Slot(Epoch(*position[:2]), position[2]),
            values["previous_crc32c"],
            Slot(Epoch(*log_start[:2]), log_start[2]),
            values["timestamp"],
            values["token"].hex(),
            values["body_length"],
            values["body_crc32c"],
        )


def decode_checkpoint(
    data: bytes, path: str, store_id: str, key: CheckpointKey
) -> tuple[CheckpointHeader, pa.Buffer]:
    """Return the header and the body of a checkpoint. Raises: the errors of `decode_group`."""
    _decode_header(CHECKPOINT, CHECKPOINT_MAGIC, data, path, store_id)
    header = CheckpointHeader.decode(data[: CHECKPOINT.size_bytes], path)
    if header.key != key:
        raise CorruptionError(f"this is another checkpoint: expected {key}, found {header.key}", path, 0)
    return header, pa.py_buffer(data)[CHECKPOINT.size_bytes :]


# ── JSON objects


@dataclass(frozen=True)
class StoreIdentity:
    """The content of the object `nyala.json`: the store's id, and its first epoch.

    An epoch is the part of the log that one writer wrote. The object never changes. A prefix of a
    bucket is a store if it has this object.
    """

    store_id: str
    first_epoch: Epoch

    def encode(self) -> bytes:
        return _encode_json(
            {
                "format": "nyala store",
                "format_version": FORMAT_VERSION,
                "store_id": self.store_id,
                "first_epoch": {"number": self.first_epoch.number, "token": self.first_epoch.token},
            }
        )

    @classmethod
    def decode(cls, data: bytes, path: str) -> StoreIdentity:
        """Decode the bytes of the object `nyala.json`.

        Raises: CorruptionError; StorageError for a store of a newer version or in a folder.
        """
        fields = _decode_json(data, path)
        if "created_us" in fields:
            raise StorageError(
                f"{path} belongs to a store in a local folder: connect with the folder's path without file://, or copy "
                "the store with `nyala fs copy`",
                path=path,
            )
        if fields.get("format") != "nyala store":
            raise CorruptionError("this is not the file nyala.json of a Nyala store", path, 0)
        if fields.get("format_version") != FORMAT_VERSION:
            raise StorageError(
                f"{path} says that the store has format version {fields.get('format_version')!r}, but this Nyala "
                f"reads version {FORMAT_VERSION}: update Nyala",
                path=path,
            )
        store_id, epoch = fields.get("store_id"), fields.get("first_epoch")
        if isinstance(store_id, str) and _STORE_ID.fullmatch(store_id) and isinstance(epoch, dict):
            number, token = epoch.get("number"), epoch.get("token")
            if type(number) is int and 0 <= number <= _EPOCH_NUMBER_MAX:
                if isinstance(token, str) and _TOKEN.fullmatch(token):
                    return cls(store_id, Epoch(number, token))
        raise CorruptionError("the store id or first epoch in nyala.json is invalid", path, 0)


@dataclass(frozen=True)
class WriterHint:
    """The object `writer`: which process writes, since when, and when it last reported.

    Any process may overwrite the object, so it may be wrong. The store is safe without it.
    """

    host: str
    pid: int
    epoch: str
    since_us: int
    alive_us: int
    closed: bool

    def encode(self) -> bytes:
        return _encode_json(dataclasses.asdict(self))

    @classmethod
    def decode(cls, data: bytes) -> WriterHint | None:
        """Return the hint with these bytes; None if the bytes are not a hint."""
        try:
            fields = _decode_json(data, WRITER_KEY)
        except CorruptionError:
            return None
        types = {"host": str, "pid": int, "epoch": str, "since_us": int, "alive_us": int, "closed": bool}
        if all(type(fields.get(name)) is kind for name, kind in types.items()):
            return cls(**{name: fields[name] for name in types})
        return None


def _encode_json(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, indent=1).encode() + b"\n"


def _decode_json(data: bytes, path: str) -> dict[str, Any]:
    try:
        if len(data) > _JSON_MAX_BYTES:
            raise ValueError(
                f"expected a JSON object of at most {_JSON_MAX_BYTES} bytes, found {len(data)} bytes"
            )
        fields = json.loads(data)
        if not isinstance(fields, dict):
            raise ValueError(f"expected a JSON object, found {type(fields).__name__}")
        return fields
    except (ValueError, RecursionError) as error:
        raise CorruptionError(f"the object is not valid JSON: {error}", path, 0) from error
