"""What the methods that measure or maintain a table return: frozen dataclasses.

`dataclasses.asdict(result)` makes a dict of one, for JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = [
    "ColumnStats",
    "CompactionResult",
    "FlushResult",
    "StoreStats",
    "TableStats",
    "TabletStats",
    "VacuumResult",
]


@dataclass(frozen=True)
class TableStats:
    """Size and structure of a table, from `Table.stats`."""

    rows: int
    """Live rows."""
    bytes: int
    """Bytes of data files: `base_bytes + redo_bytes + undo_bytes`."""
    base_bytes: int
    """Bytes of base data, with key indexes and bloom filters."""
    redo_bytes: int
    """Bytes of changes that are not yet merged into the base data."""
    undo_bytes: int
    """Bytes of old values, which past moments need."""
    memory_bytes: int
    """Bytes of rows and changes that are in memory and in the log only."""
    tablets: int
    rowsets: int
    redo_files: int
    dead_rows: int
    """Deleted rows that are kept because past moments need them."""
    history_bytes: int
    """Bytes on disk that only past moments need: `undo_bytes` and the dead rows' part of the base data."""
    oldest_readable: int
    """The oldest timestamp that can be read; 0 if the whole life of the table can."""
    timestamp: int
    """The moment at which the figures were taken."""


@dataclass(frozen=True)
class TabletStats:
    """One tablet of a table, from `Table.tablets`."""

    id: int
    partition: str
    """The tablet's hash bucket and range, for instance `HASH (host) BUCKET 0 OF 4`."""
    rowsets: int
    rows: int
    """Live rows."""
    bytes: int
    """Bytes of data files."""
    memory_bytes: int
    """Bytes of rows and changes in memory."""


@dataclass(frozen=True)
class ColumnStats:
    """Storage of one column in data files, from `Table.column_stats`."""

    name: str
    type: str
    encoding: str
    """The encoding that was requested: `"auto"` lets each file choose."""
    compression: str
    """The compression that was requested."""
    block_size: int | None
    """The requested size of a block before encoding in bytes; None: the default."""
    stored_as: Mapping[str, int]
    """Rows in files by the encoding that they have."""
    rows: int
    """Rows in files, deleted ones included. A file that is older than the column has none of it."""
    nulls: int
    bytes: int
    """Bytes of base data."""


@dataclass(frozen=True)
class FlushResult:
    """What a flush wrote, from `Table.flush` and `Database.flush`. All zero if nothing was in memory."""

    rowsets: int
    delta_files: int
    rows: int
    bytes: int


@dataclass(frozen=True)
class CompactionResult:
    """What a compaction did, from `Table.compact`."""

    compactions: int
    rowsets_rewritten: int
    bytes_before: int
    """Bytes of the files that were replaced."""
    bytes_after: int
    """Bytes of the files that replaced them."""
    rowsets_left_out: int
    """Rowsets that would have been compacted, but that running Spark jobs hold."""


@dataclass(frozen=True)
class VacuumResult:
    """What `Table.vacuum` removed, or with `dry_run` would remove."""

    dry_run: bool
    files: int
    bytes: int
    rowsets_rewritten: int
    waiting_files: int
    """Files that are garbage but that scans or other processes still read."""
    rowsets_left_out: int
    """Rowsets with garbage that running Spark jobs hold."""
    oldest_readable: int
    """The oldest timestamp that can be read."""


@dataclass(frozen=True, kw_only=True)
class StoreStats:
    """Figures of the whole store, from `Database.stats`."""

    tables: int
    timestamp: int
    """The published timestamp."""
    version: int
    """The version of the catalogue; each flush, compaction and alteration raises it."""
    memory_bytes: int
    """Bytes of rows and changes in memory."""
    log_bytes: int = 0
    """Bytes of the log; 0 in a reader process."""
    garbage_files: int = 0
    """Files that wait to be removed; 0 in a reader process."""
    throttled: int = 0
    """In a bucket: how often it refused a write of the log because of too many requests (429, 503), or another request
    and all of its repetitions."""
    cache_bytes: int
    """Bytes of the block cache."""
    cache_hits: int
    cache_misses: int
