"""The position record: how far the log is published to reader processes (P1). The writer overwrites
it after each sync.

A reader process learns from it, without contacting the writer, which timestamp is published and up
to which byte the log holds it. The record is overwritten in place. It is synced only after
catalogue changes (F4), so after a power cut it may be old, and the writer's recovery
determines what the log holds. But what the record calls synced must be there even then, also the
catalogue version. A reader that reads the record during a write sees a wrong checksum and reads
again.

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

# A write of 64 bytes takes about 10 us and a read about 5. This many reads in a row that meet a
# write are not chance but damage.
_READ_ATTEMPTS: Final = 100


@dataclass(frozen=True, order=True)
class LogPosition:
    """A border between two records: file offset `offset` in segment `segment`. Sorts in the order
    of the log.

    Offset 0 is before the segment header; the segment need not exist yet.
    """

    segment: int
    offset: int


@dataclass(frozen=True)
class PositionRecord:
    """The published position: every record with a timestamp ≤ `timestamp` ends at or before
    (segment, offset).

    synced: all of that was durable when the record was written. If log and catalogue do not reach `timestamp`, data
            was lost, and a torn tail cannot be the reason (R6).
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
                f"expected a position record that starts with {POSITION_MAGIC!r}, found "
                f"{data[: len(POSITION_MAGIC)]!r}",
                path,
                0,
            )
        values = POSITION.decode(data, 0, path, 0)
        if values["format_version"] != FORMAT_VERSION:
            raise StorageError(
                f"{path} is a position record of format version {values['format_version']}, but this Nyala reads "
                f"version {FORMAT_VERSION}: use a newer one",
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
        """Check that the log and the catalogue hold everything that was published as durable.

        timestamp: the newest one that log and catalogue hold. reached: the border up to which the log is intact.
        Both are needed: after a later catalogue change, the timestamp alone would not show that the log lost its
        end. `path` is the path of this record, in the folder of the log.
        Raises: CorruptionError with the segment, and the offset at which the intact part ends; with this record's path
                if the log is intact and the catalogue is not.
        """
        if not self.synced:
            return
        location: tuple[str, int | None] = (path, None)
        if reached < self.position:
            location = (os.path.join(os.path.dirname(path), segment_name(reached.segment)), reached.offset)
        if timestamp < self.timestamp:
            lost = f"batches up to timestamp {self.timestamp} were published, but log and catalogue end at {timestamp}"
        elif reached.segment + 1 == self.segment and not self.offset:
            lost = f"segment {reached.segment} was closed, but has no intact footer at byte {reached.offset}"
        elif reached < self.position:
            lost = (
                f"it was published up to byte {self.offset} of segment {self.segment}, but ends at byte "
                f"{reached.offset} of segment {reached.segment}"
            )
        else:
            return
        raise CorruptionError(
            f"the log ends before what was synced: {lost}; the end of the last segment was cut off or damaged: restore "
            f"the store from a backup (or, to go on without these batches, remove {path})",
            *location,
        )


def write_position(files: Files, path: str, record: PositionRecord, *, durably: bool = False) -> None:
    """Overwrite the record.

    Only the writer process calls it, in one thread at a time. durably: with a sync.
    """
    files.write_at(path, 0, record.encode())
    if durably:
        files.sync_file(path)


def read_position(files: Files, path: str) -> PositionRecord | None:
    """Return the record; None if there is none or it is damaged.

    The result for the same bytes is cached.
    """
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
    # A reader process reads the record before each of its reads, and mostly it did not change.
    return PositionRecord.decode(data, path)
