"""How far the log may be read: one small record that the writer overwrites after each sync (P1).

A reader process learns from it, without asking the writer, which moment is published and up to which byte the log
holds it. The record is written in place, and synced only after transactions of the catalogue (F4): after a power cut it
may be an old one, and the writer's recovery says again what is there; what it calls synced must be there even then, the
catalogue's version too. Its checksum tells a reader that it met the writer half-way; then it reads again.

Page: docs/format/position.md.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from typing import Final

from nyala.env import Files, MissingFileError
from nyala.errors import CorruptionError, StorageError
from nyala.wal.format import FORMAT_VERSION, NO_STORE, POSITION, POSITION_MAGIC, POSITION_SYNCED, segment_name

__all__ = ["LogPosition", "PositionRecord", "read_position", "write_position"]

# A write of 64 bytes takes about 10 µs and a read about 5: to meet the writer half-way again and again so
# many times is not chance but damage.
_READ_ATTEMPTS: Final = 100


@dataclass(frozen=True, order=True)
class LogPosition:
    """A border between two records: file offset `offset` in segment `segment`. Ordered as the log is.

    Offset 0 is before the segment header: the segment need not exist yet.
    """

    segment: int
    offset: int


@dataclass(frozen=True)
class PositionRecord:
    """What is published: every record with a timestamp ≤ `timestamp` ends at or before (segment, offset).

    synced: all of that was durable when the record was written. Then a log and a catalogue that do not reach
            `timestamp` have lost something: damage, which a torn tail cannot explain (R6).
    """

    segment: int
    offset: int
    timestamp: int
    catalogue_version: int
    synced: bool = False
    store_id: str = NO_STORE

    @property
    def position(self) -> LogPosition:
        return LogPosition(self.segment, self.offset)

    def encode(self) -> bytes:
        return POSITION.encode(
            {
                "magic": POSITION_MAGIC,
                "format_version": FORMAT_VERSION,
                "compatible_flags": POSITION_SYNCED if self.synced else 0,
                "segment": self.segment,
                "offset": self.offset,
                "timestamp": self.timestamp,
                "catalogue_version": self.catalogue_version,
                "store_id": bytes.fromhex(self.store_id),
            }
        )

    @classmethod
    def decode(cls, data: bytes, path: str | None = None) -> PositionRecord:
        if data[: len(POSITION_MAGIC)] != POSITION_MAGIC:
            raise CorruptionError(
                f"not a position record: expected {POSITION_MAGIC!r}, found {data[: len(POSITION_MAGIC)]!r}",
                path,
                0,
            )
        values = POSITION.decode(data, 0, path, 0)
        if values["format_version"] != FORMAT_VERSION:
            raise StorageError(
                f"{path} is a position record of format version {values['format_version']}; this Nyala reads "
                f"version {FORMAT_VERSION}: use a later one",
                path=path,
            )
        return cls(
            values["segment"],
            values["offset"],
            values["timestamp"],
            values["catalogue_version"],
            bool(values["compatible_flags"] & POSITION_SYNCED),
            values["store_id"].hex(),
        )

    def check_reached(self, timestamp: int, reached: LogPosition, path: str) -> None:
        """Compare with the newest timestamp that log and catalogue hold, and the border up to which the log is there.

        Both are asked: a later transaction of the catalogue would hide by its timestamp that the log has lost its end.
        `path` is this record's own, in the folder of the log.
        Raises: CorruptionError when what was published as durable is not there any more. It names the segment, and the
                offset at which what is whole ends; the record, when the log is whole and the catalogue is not.
        """
        if not self.synced:
            return
        place: tuple[str, int | None] = (path, None)
        if reached < self.position:
            place = (os.path.join(os.path.dirname(path), segment_name(reached.segment)), reached.offset)
        if timestamp < self.timestamp:
            lost = f"batches up to timestamp {self.timestamp} were published, and log and catalogue reach {timestamp}"
        elif reached.segment + 1 == self.segment and not self.offset:
            lost = (
                f"segment {reached.segment} was closed, and has no whole footer behind byte {reached.offset}"
            )
        elif reached < self.position:
            lost = (
                f"it was published up to byte {self.offset} of segment {self.segment}, and reaches byte "
                f"{reached.offset} of segment {reached.segment}"
            )
        else:
            return
        raise CorruptionError(
            f"the log ends before what was synced: {lost}; the end of the last segment was cut off or damaged: restore "
            f"the store from a backup (or, to go on without these batches, remove {path})",
            *place,
        )


def write_position(files: Files, path: str, record: PositionRecord, *, durably: bool = False) -> None:
    """Overwrite the record. By the writer's process only, one thread at a time. durably: one sync more."""
    files.write_at(path, 0, record.encode())
    if durably:
        files.sync_file(path)


def read_position(files: Files, path: str) -> PositionRecord | None:
    """The record; None when there is none, or none that can be believed. Cost: the same bytes are decoded once."""
    for _ in range(_READ_ATTEMPTS):
        try:
            return _decoded(files.read_all(path), path)
        except MissingFileError:
            return None
        except CorruptionError:
            continue
    return None


@functools.lru_cache(maxsize=16)
def _decoded(data: bytes, path: str) -> PositionRecord:
    # A reader process looks before each of its reads, and mostly nothing was written since.
    return PositionRecord.decode(data, path)
