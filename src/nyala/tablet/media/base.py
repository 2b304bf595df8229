"""The interface between an open store and the place where it is kept: a folder or a bucket.

The layers above use this interface only, so flush, compaction, replay and alterations are the same
code for a folder and for a bucket. Data files are not part of it: they are read and written through
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

__all__ = ["Checkpoints", "Leases", "Medium", "Publishing", "SpaceReserve", "StoreLog", "WriterLock"]

_T = TypeVar("_T")


class StoreLog(Protocol):
    """The log as a store uses it; see `wal.writer.LogWriter`, which is the one of a folder."""

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
        """Return a mark between the present records and later ones, which share no file. Under the commit lock."""
        ...

    def holds_before(self, mark: int) -> bool:
        """Whether the log still has files from before the mark."""
        ...

    def close(self) -> None: ...


class WriterLock(Protocol):
    """Held while this process is the writer of the store; `release` ends that."""

    def release(self) -> None: ...


class Publishing(Protocol):
    """Tells reader processes how far they may read."""

    @property
    def shown(self) -> int:
        """The timestamp last published; 0: none yet."""
        ...

    def publish(self, record: Callable[[], PositionRecord], *, durably: bool = False) -> None: ...
    def stop(self) -> None: ...


class SpaceReserve(Protocol):
    """Reserved disk space, for operations that must work on a full disk."""

    def use(self, action: Callable[[], _T]) -> _T: ...
    def grow(self, data_bytes: int) -> None: ...
    def fill(self) -> bool: ...


class Checkpoints(Protocol):
    """Writes checkpoints of the catalogue, so that the next open does not read the log before them."""

    def is_due(self, unneeded: Collection[str]) -> bool:
        """Whether a checkpoint should be written now.

        unneeded: segments of the log whose batches are all in files.
        """
        ...

    def border(self) -> int:
        """Return the present end of the log, for `write`. Under the commit lock."""
        ...

    def write(self, state: CatalogState, border: int, memory_timestamp_min: int | None) -> None:
        """Write `state`, that of the border, durably. Without a lock.

        memory_timestamp_min: at the border, the timestamp of the oldest row that is in no file.
        Raises: StorageError; then the checkpoint before still counts.
        """
        ...


class Leases(Protocol):
    """The writer's view of all leases: which versions of the catalogue readers still need."""

    holders: str
    """Who may have leases, in words for a user."""

    def note_version(self, version: int) -> None:
        """Note that this version of the catalogue was logged now."""
        ...

    def oldest_needed(self) -> int | None:
        """Return the smallest version that a reader may need, 0 for all; None: no reader (P2)."""
        ...


@dataclass(frozen=True)
class Medium:
    """The place of one open store: its log, lock, checkpoints, leases, publisher and reserve."""

    lock: WriterLock
    log: StoreLog
    publisher: Publishing
    reserve: SpaceReserve
    checkpoints: Checkpoints
    leases: Leases
    remove_orphans: Callable[[Callable[[], CatalogState]], int] = lambda state: 0
    """Removes files that nothing names, if that is due; returns their number. `state` logs a record,
    which proves that this process is still the writer, and returns the present catalogue. A folder
    does this when it is opened.
    """
    objects: Objects | None = None
    """The bucket; None for a folder."""
    close: Callable[[], None] = lambda: None
    """Called last, after all files are closed."""
