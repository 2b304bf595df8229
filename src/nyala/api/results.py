"""The results of methods that measure, list or maintain: frozen dataclasses, and lists of them.

`dataclasses.asdict(result)` converts a result to a dict, for JSON.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, overload

import pyarrow as pa

from nyala.errors import counted
from nyala.mvcc.timestamp import to_datetime
from nyala.presentation.previews import html_preview
from nyala.tablet.state.root import TableState, dropped_bytes

if TYPE_CHECKING:
    from nyala.backup.layout import Backup

_COMMITS_SHOWN: Final = 10


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
    """Bytes of old values, which reads of past moments need."""
    memory_bytes: int
    """Bytes of rows and changes that are in memory and in the log only."""
    tablets: int
    rowsets: int
    redo_files: int
    dead_rows: int
    """Deleted rows that are kept because past moments need them."""
    history_bytes: int
    """Bytes on disk that only past moments need: `undo_bytes` and the dead rows' part of the base data."""
    tag_bytes: int
    """The part of `history_bytes` that is kept only because of tags; an estimate that is rather too low."""
    oldest_readable: int
    """The oldest timestamp that can be read; 0 if all moments since the table's creation can be read."""
    timestamp: int
    """The moment of these figures."""


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
    """The number of rows in files by their encoding."""
    rows: int
    """Rows in files that store the column, including deleted rows. Older files do not store a new column."""
    nulls: int
    bytes: int
    """Bytes of base data."""


@dataclass(frozen=True)
class Commit:
    """One commit, from `Table.commits` or `Database.commits`; usable as a moment: `scan(at=commit)`."""

    timestamp: int
    """The moment of the commit."""
    time: dt.datetime
    """Its time in UTC, to the microsecond."""
    inserted: int
    """Rows that did not exist before the commit."""
    updated: int
    """Rows that existed before the commit, and were written by it."""
    deleted: int
    tables: tuple[str, ...]
    """The present names of the tables in which rows changed."""
    message: str | None
    """The argument `message=` of the call that committed; None: not given."""


class CommitList:
    """The commits of an interval, oldest first, from `Table.commits` and `Database.commits`.

    A sequence of `Commit` objects: it has a length, and can be indexed, sliced and iterated over.

    Examples
    --------
    >>> commits = metrics.commits()
    >>> [(commit.inserted, commit.tables) for commit in commits]
    [(3, ('metrics',))]
    >>> commits[-1].message is None
    True
    """

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    def to_arrow(self) -> pa.Table:
        """Return the commits as an Arrow table, with the fields of `Commit` as columns."""
        return self._rows

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._rows.__arrow_c_stream__(requested_schema)

    def __len__(self) -> int:
        return int(self._rows.num_rows)

    @overload
    def __getitem__(self, place: int) -> Commit: ...

    @overload
    def __getitem__(self, place: slice) -> CommitList: ...

    def __getitem__(self, place: int | slice) -> Commit | CommitList:
        if isinstance(place, slice):
            return CommitList(self._rows.take(pa.array(range(*place.indices(len(self))), pa.int64())))
        number = place + len(self) if place < 0 else place
        if not 0 <= number < len(self):
            raise IndexError(f"there is no commit {place}: the list has {counted(len(self), 'commit')}")
        return next(iter(CommitList(self._rows.slice(number, 1))))

    def __iter__(self) -> Iterator[Commit]:
        for batch in self._rows.to_batches(max_chunksize=10_000):
            for row in batch.drop_columns(["time"]).to_pylist():
                row["tables"] = tuple(row["tables"])
                yield Commit(time=to_datetime(row["timestamp"]), **row)

    def __repr__(self) -> str:
        last = self[-_COMMITS_SHOWN:]
        shown = f"CommitList of {counted(len(self), 'commit')}"
        if len(last) < len(self):
            shown += f", the last {len(last)} of them"
        return "\n".join([shown, *map(_line, last)])

    def _repr_html_(self) -> str:
        return html_preview(f"CommitList of {counted(len(self), 'commit')}", lambda n: self._rows.slice(0, n))


def _line(commit: Commit) -> str:
    counts = f"{commit.inserted:,} inserted, {commit.updated:,} updated, {commit.deleted:,} deleted"
    message = "" if commit.message is None else f": {commit.message}"
    return f"  {commit.time.isoformat()}  {counts} in {', '.join(commit.tables)}{message}"


@dataclass(frozen=True)
class DroppedTable:
    """A dropped table that can be brought back, from `Database.dropped_tables`."""

    name: str
    id: int
    created: int
    """The timestamp of its creation."""
    dropped: int
    """The timestamp of its drop."""
    recoverable_until: dt.datetime | None
    """When its history ends and its files are removed; None: never, or not as long as a tag keeps them."""
    bytes: int
    """Bytes of data files."""


def describe_dropped(table: TableState) -> DroppedTable:
    """Return the description of a dropped table that `Database.dropped_tables` shows to the user."""
    entry, end = table.entry, None
    if entry.history_us is not None and not entry.tagged:
        with contextlib.suppress(OverflowError):  # a datetime ends with the year 9999
            end = to_datetime(entry.dropped) + dt.timedelta(microseconds=entry.history_us)
    return DroppedTable(table.name, entry.id, entry.created, entry.dropped, end, dropped_bytes(table))


@dataclass(frozen=True)
class Tag:
    """A name for a moment, from `Database.tag` and `Database.tags`. `scan(at=…)` takes the tag or its name."""

    name: str
    timestamp: int
    """The timestamp of the moment."""
    time: dt.datetime
    """Its time in UTC, to the microsecond."""


@dataclass(frozen=True)
class FlushResult:
    """What a flush wrote, from `Table.flush` and `Database.flush`.

    All numbers are 0 if nothing was in memory.
    """

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
    """Rowsets that were not compacted because running Spark jobs need them."""


@dataclass(frozen=True)
class VacuumResult:
    """What `Table.vacuum` removed. With `dry_run`, an estimate of what it would remove."""

    dry_run: bool
    files: int
    bytes: int
    rowsets_rewritten: int
    waiting_files: int
    """Files that will be removed once scans and other processes no longer read them."""
    rowsets_left_out: int
    """Rowsets that were not rewritten because running Spark jobs need them."""
    oldest_readable: int
    """The oldest timestamp that can be read."""


@dataclass(frozen=True)
class PurgeStatus:
    """The files that may still contain purged rows, from `Table.purge_status` and in `PurgeResult`."""

    files: int
    """Replaced files of the table and of the log that were not removed yet."""
    bytes: int
    holders: tuple[str, ...]
    """Descriptions of the readers, jobs and scans that still need these files."""

    @property
    def done(self) -> bool:
        """Whether all replaced files were removed. The files of the table's clones (`clone_table`) do not count."""
        return not self.files


@dataclass(frozen=True)
class PurgeResult:
    """What `Table.purge` did."""

    timestamp: int
    """The moment of the purge, directly after the rows were deleted."""
    keys: int
    """Keys that were given."""
    deleted: int
    """Keys that had a row. Rows that the other keys had in the history were erased too."""
    rowsets_rewritten: int
    bytes_rewritten: int
    files_removed: int
    status: PurgeStatus
    """The files that were left at the end of the call."""
    clones: tuple[str, ...] = ()
    """Clones (`clone_table`) that share the replaced files, and therefore still have the rows."""

    @property
    def done(self) -> bool:
        """Whether no byte of the purged rows was left in the store at the end of the call."""
        return self.status.done and not self.clones


@dataclass(frozen=True, kw_only=True)
class StoreStats:
    """Sizes and counters of the whole store, from `Database.stats`."""

    tables: int
    timestamp: int
    """The newest moment that can be read."""
    version: int
    """The version of the catalogue; each flush, compaction and alteration raises it."""
    memory_bytes: int
    """Bytes of rows and changes in memory."""
    tag_bytes: int
    """Bytes of files that are kept only because of tags; an estimate that is rather too low."""
    log_bytes: int = 0
    """Bytes of the log; 0 in a reader process."""
    dropped_bytes: int = 0
    """Bytes of files of dropped tables and ranges, which `undrop_table` and `undrop_range` can bring back."""
    garbage_files: int = 0
    """Files that wait to be removed; 0 in a reader process."""
    throttled: int = 0
    """In a bucket: how often the bucket refused a write of the log because of too many requests (HTTP 429, 503).
    Any other refused request is repeated, and counts only if all its repetitions are refused too."""
    cache_bytes: int
    """Bytes of the block cache."""
    cache_hits: int
    cache_misses: int


@dataclass(frozen=True, kw_only=True)
class TableBackup:
    """One backup of one table, from `Database.backup` and `nyala.list_backups`."""

    table: str
    kind: Literal["full", "incremental", "damaged"]
    """`"damaged"`: its metadata cannot be read; `error` says why."""
    since: int | None = None
    """For an incremental backup, the moment of the backup on which it depends; otherwise None."""
    until: int
    """The moment to which the table can be restored, a timestamp."""
    rows: int | None = None
    """Rows in its files: all live rows, or the changes since the last backup; None if damaged."""
    bytes: int | None = None
    files: int | None = None
    path: str
    """Its folder."""
    of_store: bool = False
    """Whether all tables of the store were backed up together, at one moment."""
    error: str | None = None

    @property
    def time(self) -> dt.datetime:
        """`until` as a datetime in UTC."""
        return to_datetime(self.until)


def table_backup(made: Backup, of_store: bool = False) -> TableBackup:
    """Describe a complete backup. of_store: whether it is part of a backup of all tables."""
    return TableBackup(
        table=made.table,
        kind="full" if made.since is None else "incremental",
        since=made.since,
        until=made.until,
        rows=sum(file.rows for file in made.files),
        bytes=sum(file.bytes for file in made.files),
        files=len(made.files),
        path=made.path,
        of_store=of_store,
    )


@dataclass(frozen=True, kw_only=True)
class BackupResult:
    """The backups that `Database.backup` wrote, all of one moment."""

    until: int
    """The moment to which the tables can be restored, a timestamp."""
    tables: tuple[TableBackup, ...]
    """The new backups."""
    unchanged: tuple[str, ...]
    """Tables without a new backup, because nothing was written to the store since their last one."""

    @property
    def rows(self) -> int:
        """The number of rows in the files of all new backups."""
        return sum(table.rows or 0 for table in self.tables)

    @property
    def bytes(self) -> int:
        """The size of the files of all new backups."""
        return sum(table.bytes or 0 for table in self.tables)


@dataclass(frozen=True, kw_only=True)
class RestoredTable:
    """A table that `nyala.restore_backup` restored."""

    name: str
    source: str
    """The name of the backed-up table."""
    until: int
    """The moment whose rows the table has."""
    rows: int
