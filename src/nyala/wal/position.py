"""The position record: a small file that shows reader processes how far they may read the log.

The record has the published timestamp, and a position in the log. All batches up to this timestamp
are before this position. The writer overwrites the record in place after each sync of the log. A
reader that sees a half-written record finds a wrong checksum and reads again.

The record itself is synced only after a change of the catalogue, so after a power cut it may be
old. Even then the log must contain everything that the record calls synced, and the catalogue must
have at least the version in the record.

Page: docs/format/position.md.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from nyala.env import Files, MissingFileError
from nyala.errors import CorruptionError, StorageError
from nyala.wal.format import FORMAT_VERSION, NO_STORE, POSITION, POSITION_MAGIC, POSITION_SYNCED, segment_name

# A write of the 64 bytes takes about 10 us. If 100 reads in a row find a wrong checksum, the cause
# is damage and not a write.
_READ_ATTEMPTS: Final = 100


@dataclass(frozen=True, order=True)
class LogPosition:
    """A position between two records of the log. Positions compare in the order of the log.

    offset: the file offset in the segment. 0: before the segment's header; then the segment may
            not exist yet.
    """

    segment: int
    offset: int


@dataclass(frozen=True)
class PositionRecord:
    """How far reader processes may read the log.

    All log records with timestamps ≤ `timestamp` are before `position`.

    synced: True: everything before `position` was durable when this position record was written. If
            the log or the catalogue ends earlier, data was lost, which is an error.
            False: after a power cut, the log may end earlier without an error.
    """

    position: LogPosition
    timestamp: int
    catalogue_version: int
    synced: bool = False
    store_id: str = NO_STORE

    def encode(self) -> bytes:
        return POSITION.encode(
            {
                "magic": POSITION_MAGIC,
                "format_version": FORMAT_VERSION,
                "compatible_flags": POSITION_SYNCED if self.synced else 0,
                "segment": self.position.segment,
                "offset": self.position.offset,
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
                f"version {FORMAT_VERSION}: update Nyala",
                path=path,
            )
        return cls(
            LogPosition(values["segment"], values["offset"]),
            values["timestamp"],
            values["catalogue_version"],
            bool(values["compatible_flags"] & POSITION_SYNCED),
            values["store_id"].hex(),
        )

    def check_reached(self, timestamp: int, reached: LogPosition, path: str) -> None:
        """Check that the log and the catalogue contain everything that was published as durable.

        timestamp: the newest timestamp in the log and the catalogue.
        reached:   the position up to which the log is intact. `timestamp` alone is not enough: the
                   catalogue may contain it although the end of the log is lost.
        path:      the path of this record, in the folder of the log.
        Raises: CorruptionError with the path of the segment and the offset at which the log ends,
                or with the path of this record if the log is intact.
        """
        if not self.synced:
            return
        location: tuple[str, int | None] = (path, None)
        if reached < self.position:
            location = (os.path.join(os.path.dirname(path), segment_name(reached.segment)), reached.offset)
        if timestamp < self.timestamp:
            lost = f"batches up to timestamp {self.timestamp} were published, but log and catalogue end at {timestamp}"
        elif self.position == LogPosition(reached.segment + 1, 0):
            lost = f"segment {reached.segment} was closed, but has no intact footer at byte {reached.offset}"
        elif reached < self.position:
            lost = (
                f"the log was published up to byte {self.position.offset} of segment {self.position.segment}, but "
                f"ends at byte {reached.offset} of segment {reached.segment}"
            )
        else:
            return
        raise CorruptionError(
            f"the log ends before what was synced: {lost}; the end of the last segment was cut off or damaged: restore "
            f"the store from a backup (or, to go on without these batches, remove {path})",
            *location,
        )


def write_position(files: Files, path: str, record: PositionRecord, *, durably: bool = False) -> None:
    """Overwrite the file `path` with a new position record.

    The position record shows reader processes how far they may read the log. Only one thread at a
    time may write it.

    durably: also sync the file.
    """
    files.write_at(path, 0, record.encode())
    if durably:
        files.sync_file(path)


def read_position(files: Files, path: str) -> PositionRecord | None:
    """Read the position record from the file `path`. It says how far readers may read the log.

    Returns: the record; None if the file does not exist or is damaged.
    """
    for _ in range(_READ_ATTEMPTS):
        try:
            return PositionRecord.decode(files.read_all(path), path)
        except MissingFileError:
            return None
        except CorruptionError:
            continue
    return None
