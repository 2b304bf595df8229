"""The layouts of the log's files, with their magic numbers. They are on disk: never change them.

    segment file  wal-000000007
    ┌────────────────┬────────┬─────────┬────────┬─────────┬─ ─ ─┬────────┐
    │ segment header │ record │ payload │ record │ payload │     │ footer │
    │    64 bytes    │ header │   8·n   │ header │   8·n   │     │   64   │
    └────────────────┴────────┴─────────┴────────┴─────────┴─ ─ ─┴────────┘
    ^ start_offset   ^ log_offset                                ^ only in a closed segment

All integers are little-endian. A *file offset* counts bytes from the beginning of a segment. A *log
offset* counts bytes from the beginning of the log, including the headers and footers of all
segments: log offset = start_offset + file offset. A segment starts at the log offset where the
segment before it ended.

Invariants (checked on write and on read)
    L1  Record headers, payloads and the footer start at multiples of 8 bytes, with no bytes between
        them.
    L2  Timestamps of batches ascend strictly over the whole log. A change record repeats the
        timestamp of the record before it. `ordinal` counts the records of a segment from 0.
    L3  The log was synced up to the log offset `synced_through` when the header was written. So
        `synced_through` is at most the header's own log offset. In a footer the two are equal,
        because everything before a footer is synced first.
    L4  Every header contains its own log offset and the segment's salt, a random number. So a
        reader never mistakes other bytes for a record. Such bytes may be from another file, from an
        older file on the same disk blocks, or from a user's value.
    L5  Every segment and the position record contain the id of their store.

Page: docs/format/log.md (a test compares its tables with the layouts here).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, NewType, TypeAlias

import google_crc32c

from nyala.errors import CorruptionError, StorageError

LogOffset = NewType("LogOffset", int)
"""A byte position in the whole log."""

FORMAT_VERSION: Final = 3
SEGMENT_MAGIC: Final = b"NYALAWAL"
POSITION_MAGIC: Final = b"NYALAPOS"
RECORD_MAGIC: Final = b"NyRc"
CHANGE_MAGIC: Final = b"NyCh"
FOOTER_MAGIC: Final = b"NyFt"

FrameKind: TypeAlias = Literal["batch", "change", "footer"]
"""What a frame holds: a batch of rows, a change of the catalogue, or the end of its segment."""

_MAGIC_OF: Final[Mapping[FrameKind, bytes]] = MappingProxyType(
    {"batch": RECORD_MAGIC, "change": CHANGE_MAGIC, "footer": FOOTER_MAGIC}
)
_KIND_OF: Final = MappingProxyType({magic: kind for kind, magic in _MAGIC_OF.items()})
FRAME_MAGIC_SIZE_BYTES: Final = 4

ALIGNMENT_BYTES: Final = 8
# A reader refuses longer payloads. Batches above 64 MB do not go through the log (W6).
PAYLOAD_MAX_BYTES: Final = 1 << 30
# Flushes keep the log at about 64 MB, which is eight segments. Smaller segments would cost more
# syncs: each needs two for its header and footer. Larger ones would free disk space later.
SEGMENT_SIZE_BYTES: Final = 8 << 20

POSITION_FILE: Final = "position"

_SEGMENT_NAME: Final = re.compile(r"wal-(\d{9,})")


NO_STORE: Final = "0" * 32
"""The store id of a log without a catalogue."""


class WrongStoreError(CorruptionError):
    """Raised if an intact file of the log belongs to another store.

    Such a file is never cut off as a torn tail (the unfinished end of the log after a power cut).
    """


def check_store_id(expected: str, found: str, path: str) -> None:
    """Raise WrongStoreError if the two ids differ."""
    if found != expected:
        raise WrongStoreError(
            f"this file belongs to another store: expected store id {expected}, found {found}; put the right file "
            "back, or restore a backup of this store",
            path,
            0,
        )


def segment_name(number: int) -> str:
    return f"wal-{number:09d}"


def segment_number(name: str) -> int | None:
    """Return the number in a segment's file name; None for any other name."""
    match = _SEGMENT_NAME.fullmatch(name)
    return int(match[1]) if match is not None and segment_name(int(match[1])) == name else None


def crc32c(data: Any, crc: int = 0) -> int:
    """Return the CRC-32C of bytes, a NumPy array or an Arrow buffer.

    crc: the CRC of the bytes before; the result continues it.
    """
    return int(google_crc32c.extend(crc, data))


class Layout:
    """A sequence of little-endian fields in a header. Writes, reads and describes them.

    fields: the name of each field, and its code in the module `struct`. The field `crc32c` is the
            CRC of all bytes after it. Fields with names that begin with `reserved` are zero.
    """

    def __init__(self, name: str, fields: tuple[tuple[str, str], ...]) -> None:
        self.name: Final = name
        self.fields: Final = fields
        self.struct: Final = struct.Struct("<" + "".join(code for _, code in fields))
        self.size_bytes: Final = self.struct.size
        self._computed = frozenset(
            name for name, _ in fields if name == "crc32c" or name.startswith("reserved")
        )
        self._crc_lower = next(offset for name, offset, _ in self.offsets() if name == "crc32c")
        self._crc_upper = self._crc_lower + 4

    def offsets(self) -> list[tuple[str, int, int]]:
        """Return (name, offset, size) of every field, in file order."""
        fields = []
        offset = 0
        for name, code in self.fields:
            size = struct.calcsize("<" + code)
            fields.append((name, offset, size))
            offset += size
        return fields

    def encode(self, values: Mapping[str, Any]) -> bytes:
        """Return the bytes of these values, with the CRC."""
        packed = self.struct.pack(*[0 if name in self._computed else values[name] for name, _ in self.fields])
        crc = crc32c(packed[self._crc_upper :])
        return packed[: self._crc_lower] + crc.to_bytes(4, "little") + packed[self._crc_upper :]

    def decode(self, data: bytes, index: int, path: str | None, offset: int) -> dict[str, Any]:
        """Return the values of the fields in `data`, from byte `index` on.

        path, offset: the file and the file offset of the fields, for error messages.
        Raises: CorruptionError if bytes are missing, or the checksum or a reserved field is wrong.
        """
        encoded = data[index : index + self.size_bytes]
        if len(encoded) < self.size_bytes:
            raise CorruptionError(
                f"the {self.name} is cut off: expected {self.size_bytes} bytes, found {len(encoded)}",
                path,
                offset,
            )
        values = dict(zip((name for name, _ in self.fields), self.struct.unpack(encoded), strict=True))
        found = crc32c(encoded[self._crc_upper :])
        if found != values["crc32c"]:
            raise CorruptionError(
                f"the {self.name} fails its checksum: expected {values['crc32c']:08x}, found {found:08x}",
                path,
                offset,
            )
        for name, value in values.items():
            if name.startswith("reserved") and value:
                raise CorruptionError(
                    f"the {self.name} has a reserved field that is not zero: expected {name} 0, found {value}",
                    path,
                    offset,
                )
        return values


SEGMENT_HEADER: Final = Layout(
    "segment header",
    (
        ("magic", "8s"),
        ("crc32c", "I"),
        ("format_version", "H"),
        ("compatible_flags", "H"),
        ("incompatible_flags", "I"),
        ("reserved", "I"),
        ("segment", "Q"),
        ("start_offset", "Q"),
        ("salt", "Q"),
        ("store_id", "16s"),
    ),
)

# A frame is the header of a record, or a footer. They share one layout, so that a search for good
# headers among damaged bytes needs only this layout.
FRAME: Final = Layout(
    "record header",
    (
        ("magic", "4s"),
        ("crc32c", "I"),
        ("salt", "Q"),
        ("log_offset", "Q"),
        ("synced_through", "Q"),
        ("timestamp", "q"),
        ("payload_length", "I"),
        ("payload_crc32c", "I"),
        ("ordinal", "I"),
        ("incompatible_flags", "I"),
        ("reserved", "Q"),
    ),
)

POSITION: Final = Layout(
    "position record",
    (
        ("magic", "8s"),
        ("crc32c", "I"),
        ("format_version", "H"),
        ("compatible_flags", "H"),
        ("segment", "Q"),
        ("offset", "Q"),
        ("timestamp", "q"),
        ("catalogue_version", "Q"),
        ("store_id", "16s"),
    ),
)

# A bit in `compatible_flags` of the position record; see `PositionRecord.synced`.
POSITION_SYNCED: Final = 1

SEGMENT_HEADER_SIZE_BYTES: Final = 64
FRAME_SIZE_BYTES: Final = 64
assert SEGMENT_HEADER.size_bytes == SEGMENT_HEADER_SIZE_BYTES
assert FRAME.size_bytes == FRAME_SIZE_BYTES
assert POSITION.size_bytes == 64


@dataclass(frozen=True)
class SegmentHeader:
    """The first 64 bytes of a segment. If a segment has a header, the log before it was synced."""

    segment: int
    start_offset: LogOffset
    salt: int
    store_id: str

    def encode(self) -> bytes:
        return SEGMENT_HEADER.encode(
            {
                "magic": SEGMENT_MAGIC,
                "format_version": FORMAT_VERSION,
                "compatible_flags": 0,
                "incompatible_flags": 0,
                "segment": self.segment,
                "start_offset": self.start_offset,
                "salt": self.salt,
                "store_id": bytes.fromhex(self.store_id),
            }
        )

    @classmethod
    def decode(cls, data: bytes, path: str, expected_segment: int) -> SegmentHeader:
        """Return the segment header at the beginning of `data`.

        expected_segment: the number in the segment's file name.
        Raises: CorruptionError; StorageError for a segment that a newer version wrote.
        """
        if data[: len(SEGMENT_MAGIC)] != SEGMENT_MAGIC:
            raise CorruptionError(
                f"not a log segment: expected it to start with {SEGMENT_MAGIC!r}, "
                f"found {data[: len(SEGMENT_MAGIC)]!r}",
                path,
                0,
            )
        values = SEGMENT_HEADER.decode(data, 0, path, 0)
        if values["format_version"] != FORMAT_VERSION or values["incompatible_flags"]:
            raise StorageError(
                f"{path} is a log segment of format version {values['format_version']}, flags "
                f"{values['incompatible_flags']:#x}, but this Nyala reads version {FORMAT_VERSION}: update Nyala",
                path=path,
            )
        if values["segment"] != expected_segment:
            raise CorruptionError(
                f"the segment's header does not match its file name: expected segment {expected_segment}, found "
                f"{values['segment']}",
                path,
                0,
            )
        return cls(
            values["segment"], LogOffset(values["start_offset"]), values["salt"], values["store_id"].hex()
        )


@dataclass(frozen=True)
class FrameHeader:
    """The header before a record's payload, or the footer of a closed segment: 64 bytes each.

    In a footer, `timestamp` is the greatest timestamp of the segment (0 without records), and
    `ordinal` is the number of its records.
    """

    kind: FrameKind
    salt: int
    log_offset: LogOffset
    synced_through: LogOffset
    timestamp: int
    payload_length: int
    payload_crc32c: int
    ordinal: int

    @property
    def is_footer(self) -> bool:
        return self.kind == "footer"

    def encode(self) -> bytes:
        assert self.synced_through <= self.log_offset, "L3"
        assert not self.is_footer or self.synced_through == self.log_offset, "L3"
        assert self.payload_length % ALIGNMENT_BYTES == 0, "L1"
        return FRAME.encode(
            {
                "magic": _MAGIC_OF[self.kind],
                "salt": self.salt,
                "log_offset": self.log_offset,
                "synced_through": self.synced_through,
                "timestamp": self.timestamp,
                "payload_length": self.payload_length,
                "payload_crc32c": self.payload_crc32c,
                "ordinal": self.ordinal,
                "incompatible_flags": 0,
            }
        )

    @classmethod
    def decode(cls, data: bytes, index: int, path: str, offset: int) -> FrameHeader:
        """Decode the header of a record or footer, from byte `index` of `data` on.

        The caller must still check that the timestamp, the ordinal and the log offset follow those
        of the record before it. The caller must also compare `salt` of the result with the random
        number in the segment's header.

        path, offset: the file and the file offset of the header, for error messages.
        Raises: CorruptionError; StorageError for flags of a newer version.
        """
        magic = data[index : index + FRAME_MAGIC_SIZE_BYTES]
        kind = _KIND_OF.get(magic)
        if kind is None:
            raise CorruptionError(
                f"expected a record ({RECORD_MAGIC!r}, {CHANGE_MAGIC!r}) or a footer ({FOOTER_MAGIC!r}), found "
                f"{magic!r}",
                path,
                offset,
            )
        values = FRAME.decode(data, index, path, offset)
        if values["incompatible_flags"]:
            raise StorageError(
                f"{path} at offset {offset}: a record has flags {values['incompatible_flags']:#x}, which this Nyala "
                "does not know: update Nyala",
                path=path,
            )
        is_footer = kind == "footer"
        log_offset, synced_through = values["log_offset"], values["synced_through"]
        length = values["payload_length"]
        if synced_through > log_offset or (is_footer and synced_through != log_offset):
            raise CorruptionError(
                f"the {kind} at log offset {log_offset} is invalid: it says that the log was synced up to offset "
                f"{synced_through}, expected {'exactly' if is_footer else 'at most'} {log_offset}",
                path,
                offset,
            )
        if length > PAYLOAD_MAX_BYTES or length % ALIGNMENT_BYTES or (is_footer and length):
            raise CorruptionError(f"the payload length of a record, {length} bytes, is invalid", path, offset)
        return cls(
            kind,
            values["salt"],
            LogOffset(log_offset),
            LogOffset(synced_through),
            values["timestamp"],
            length,
            values["payload_crc32c"],
            values["ordinal"],
        )


def encode_footer(salt: int, log_offset: LogOffset, timestamp: int, record_count: int) -> bytes:
    """Return the footer of a segment, as bytes. All records of the segment must be synced before.

    salt: the random number of the segment, which all its headers contain.
    log_offset: where the footer begins.
    timestamp: the timestamp of the last record.
    record_count: the number of records in the segment.
    """
    return FrameHeader(
        kind="footer",
        salt=salt,
        log_offset=log_offset,
        synced_through=log_offset,
        timestamp=timestamp,
        payload_length=0,
        payload_crc32c=0,
        ordinal=record_count,
    ).encode()
