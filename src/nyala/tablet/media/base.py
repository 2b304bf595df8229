"""The interface through which an open store uses its medium: a folder or a bucket.

Flush, compaction, replay and alterations use only this interface. So they have the same code for a
folder and for a bucket. Data files are not part of the interface: they are read and written through
`Env.files`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from nyala.catalog.model import CatalogState
from nyala.errors import StorageError
from nyala.objects.base import Objects
from nyala.wal.format import LogOffset
from nyala.wal.position import PositionRecord
from nyala.wal.reader import SegmentInfo
from nyala.wal.record import ChangeRecord, LogRecord
from nyala.wal.writer import LogMark

_T = TypeVar("_T")


class StoreLog(Protocol):
    """The interface of a store's log. See `wal.writer.LogWriter` for the methods."""

    @property
    def appended(self) -> LogMark: ...
    @property
    def written(self) -> LogMark: ...
    @property
    def synced(self) -> LogMark: ...
    @property
    def failure(self) -> StorageError | None: ...
    @property
    def size_bytes(self) -> int: ...
    def append(self, record: LogRecord) -> LogOffset: ...
    def append_change(self, record: ChangeRecord) -> LogOffset: ...
    def sync(self, offset: int | None = None) -> None: ...
    def write_pending(self) -> None: ...
    def sync_if_due(self) -> float | None: ...
    def segments(self) -> list[SegmentInfo]: ...
    def roll(self) -> None: ...
    def drop(self, numbers: Sequence[int]) -> list[str]: ...
    def cut(self) -> int:
        """Begin a new file of the log, and return a number for `holds_before`.

        The number separates the present records from later ones. Call it under the commit lock.
        """
        ...

    def holds_before(self, mark: int) -> bool:
        """Return whether the log still has files that were written before an earlier call of `cut`.

        mark: the number that `cut` returned. `cut` begins a new file of the log.
        """
        ...

    def close(self) -> None: ...


class WriterLock(Protocol):
    """A lock that this process holds as long as it is the writer of the store."""

    def release(self) -> None: ...


class Publishing(Protocol):
    """Shows reader processes how far they may read the log."""

    @property
    def shown(self) -> int:
        """The newest timestamp that reader processes may read; 0: none yet."""
        ...

    def publish(self, record: Callable[[], PositionRecord], *, durably: bool = False) -> None: ...
    def stop(self) -> None: ...


class SpaceReserve(Protocol):
    """Reserved disk space, for operations that must work on a full disk."""

    def use(self, action: Callable[[], _T]) -> _T: ...
    def grow(self, data_bytes: int) -> None: ...
    def fill(self) -> bool: ...


class Checkpoints(Protocol):
    """Writes checkpoints of the catalogue. The next open then reads only the log after the checkpoint."""

    def is_due(self, unneeded: Collection[str]) -> bool:
        """Return whether a checkpoint should be written now.

        unneeded: segments of the log whose batches are all in data files.
        """
        ...

    def border(self) -> int:
        """Return the present end of the log, as the argument `border` of `write`.

        Call it under the commit lock.
        """
        ...

    def write(self, state: CatalogState, border: int, memory_timestamp_min: int | None) -> None:
        """Write `state` as a checkpoint, and sync it. Call it without a lock.

        border: the end of the log when `state` was the catalogue.
        memory_timestamp_min: the timestamp of the oldest row that was in no data file then.
        Raises: StorageError; the last checkpoint then remains valid.
        """
        ...


class Leases(Protocol):
    """The leases of readers: each says which versions of the catalogue a reader still needs.

    Only the writer uses this class.
    """

    holders: str
    """A description of the readers, for messages."""

    def note_version(self, version: int) -> None:
        """Remember the present time as the time when this version of the catalogue was logged.

        `oldest_needed` uses these times: for some minutes after a version was logged, a reader
        without a lease may still read the version before it.
        """
        ...

    def oldest_needed(self) -> int | None:
        """Return the smallest version of the catalogue that a reader may need.

        0: a reader may need any version; None: there are no readers.
        """
        ...


@dataclass(frozen=True)
class Medium:
    """The parts of an open store that differ between a folder and a bucket, such as the log."""

    lock: WriterLock
    log: StoreLog
    publisher: Publishing
    reserve: SpaceReserve
    checkpoints: Checkpoints
    leases: Leases
    remove_orphans: Callable[[Callable[[], CatalogState]], int] = lambda state: 0
    """For a bucket: removes files that nothing names, if that is due, and returns their number. Its argument
    logs a record, which proves that this process is still the writer, and returns the present catalogue.
    For a folder such files are removed when the store is opened.
    """
    objects: Objects | None = None
    """The bucket; None for a folder."""
    close: Callable[[], None] = lambda: None
    """Closes the medium; called after all files are closed."""
