"""`nyala.connect`, and `Database`, the open store that it returns.

db = nyala.connect("store")                     read and write, in any number of processes of one machine
db = nyala.connect("store", read_only=True)     read only, in any number of processes
"""

from __future__ import annotations

import datetime as dt
import html
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, TypeVar, overload

import pyarrow as pa

from nyala.api.opening.open_store import Handle, OpenStore, ThreadSlot, open_for_writing
from nyala.catalog.checkpoint import identity_path
from nyala.env import SYSTEM
from nyala.env.paths import is_bucket_url, utf8_path
from nyala.errors import (
    InvalidArgumentError,
    LockedError,
    ReadOnlyError,
    SchemaError,
    StorageError,
    TableExistsError,
    TableNotFoundError,
    bounded,
)
from nyala.mvcc.ahead import AheadOfClock
from nyala.mvcc.timestamp import (
    TIMESTAMP_ZERO,
    from_physical,
    is_datetime,
    naive_note,
    parse_at,
    to_datetime,
)
from nyala.optional import need
from nyala.presentation.pickling import pickle_error
from nyala.presentation.previews import html_preview
from nyala.schema.limits import DEFAULT_LIMITS, Limits
from nyala.schema.schema import AUTO_INCREMENT, build_schema, check_comment, check_table_name
from nyala.schema.sizes import SIZE_MAX_BYTES, seconds_of, size_in_bytes, whole_number
from nyala.tablet.state.history import check_created, check_readable, oldest_readable, parse_history
from nyala.tablet.state.messages import check_message
from nyala.tablet.state.root import Root, TableState
from nyala.tablet.state.store_folder import check_folder_path
from nyala.tablet.state.tags import check_tag_name, resolve_tag
from nyala.tablet.store import DURABILITIES, Store, StoreOptions
from nyala.wal.writer import Durability

# Methods import the modules that only they need, so that a program can open a store quickly.
if TYPE_CHECKING:
    from nyala.api.batch import Batch
    from nyala.api.change_feed import ChangeFeed
    from nyala.api.description import TableDescription
    from nyala.api.readable import ReadableTable, SchemaOf, TableView
    from nyala.api.results import BackupResult, CommitList, DroppedTable, FlushResult, StoreStats, Tag
    from nyala.api.scan import Scan
    from nyala.api.table import Table
    from nyala.api.transaction import Transaction
    from nyala.api.types import Moment
    from nyala.handover.remote_writer import RemoteMaintenance, Writer
    from nyala.objects.open import StorageOptions
    from nyala.partition.levels import HashSpec, RangeSpec
    from nyala.presentation.progress import Progress
    from nyala.sql.result import Result
    from nyala.sql.select.connection import Connection
    from nyala.tablet.changes.spec import ChangeSpec
    from nyala.tablet.check import CheckReport
    from nyala.tablet.maintenance import Maintenance
    from nyala.tablet.media.bucket_reader import BucketReader
    from nyala.tablet.recovery.reader_store import ReaderStore
    from nyala.tablet.scan.split import ScanSpec
    from nyala.tablet.tables.creation import NewTable

_Made = TypeVar("_Made")
_MEMORY_MIN_BYTES: Final = 16_000_000
_ROWSET_MIN_BYTES: Final = 1_000_000

# Names of schemas and databases that exist in every SQL session.
_RESERVED_NAMES: Final = frozenset(
    ("main", "public", "nyala", "temp", "memory", "system", "information_schema", "pg_catalog")
)


def connect(
    path: str | bytes | os.PathLike[str],
    *,
    read_only: bool = False,
    share: bool = True,
    durability: Durability = "commit",
    memory_limit: int | str = "1GB",
    rowset_size: int | str = "32MB",
    maintenance: bool = True,
    lock_timeout: float = 0,
    not_before: int | None = None,
    limits: Limits = DEFAULT_LIMITS,
    storage_options: StorageOptions | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int | str | None = None,
    group_interval: float = 0.1,
    refresh: float = 0,
    take_over: bool = False,
    on_fenced: Literal["raise", "reopen"] = "raise",
) -> Database:
    """Open the store in a folder, or in a bucket.

    A process opens a store only once. A second call with the same settings returns a `Database`
    that shares the open store, and the store closes when the last `Database` is closed.

    Parameters
    ----------
    path
        The store's folder, or a URL: `s3://bucket/prefix`, `gs://…`, `az://…`. A writer creates the
        store if it is missing. `file:///folder` opens a folder by the protocol of buckets, which
        also works on NFS.
    read_only
        Open the store only for reading. Another process may write to it at the same time.
    share
        If another process of this machine has the store open for writing, send writes to that
        process. It executes them with its own `durability`, `rowset_size`, `maintenance` and
        `limits`. When it ends, the next process that writes becomes the writer, with its own
        settings. `False`: raise `LockedError` instead. A store in a bucket cannot be shared.
    durability
        When a write is on disk. `"commit"`: before its call returns. `"group"`: at most 100 ms
        after its call returns. `"os"`: when the store flushes or closes. In each case a batch is
        written whole or not at all.
    memory_limit
        Bytes, or text such as `"4GB"`. The block cache uses at most a quarter, and each scan a
        quarter for rows that it decodes ahead. Written rows are kept in memory, and flushed to
        files when they take half of the limit. DuckDB, which runs `sql`, may use as much again.
    rowset_size
        The size of a rowset on disk: bytes of base data, or text such as `"32MB"`. Flushes and
        compactions begin another rowset at about this size.
    maintenance
        Flush, compact and remove garbage in the background.
    lock_timeout
        Seconds to wait until another writer closes the store. Only with `share=False`, or in a
        bucket. Default: do not wait.
    not_before
        A timestamp, such as the `db.now()` of another process. `connect` waits up to 10 seconds
        until this moment can be read.
    limits
        `nyala.Limits(max_columns=…)`: limits other than Kudu's, for tables and rows that are
        written from now on.
    storage_options
        In a bucket: a dict such as `{"region": "eu-central-1"}`, or a function that returns
        credentials. Default: the environment, the provider's files, or the machine's role.
    cache_dir, cache_bytes
        In a bucket: a local folder for copies of the data that was read, and its largest size.
        Default: `~/.cache/nyala`, and a tenth of the free space, at most 20 GB.
    group_interval
        In a bucket, for a writer: the least time in seconds between two requests that write the
        log. Writes within this time are committed together.
    refresh
        In a bucket, with `read_only=True`: how many seconds a read may be behind the newest commit.
        0: each read looks for new commits.
    take_over
        In a bucket: become the writer even if another process is the writer. That process gets
        `FencedError` at its next write.
    on_fenced
        In a bucket: what calls do after another process became the writer. `"raise"`: every call
        raises `FencedError`. `"reopen"`: only the first call raises it, and nothing of that call
        was written. Later calls open the store again; they raise `LockedError` as long as the other
        process writes.

    Returns
    -------
    Database
        Close it with `close()`, or use it as a context manager.

    Raises
    ------
    LockedError
        Another process is the store's writer, and this process cannot share the store with it:
        `share=False`, or that process is on another machine, has another version of Nyala, or does
        not answer.
    StorageError
        The bucket does not answer; or the folder is not a store, or cannot be read or written.
    CorruptionError
        The store's files are damaged.
    InvalidArgumentError
        An argument is invalid, or this process has the store open with other settings.

    Examples
    --------
    >>> with nyala.connect(folder) as db:
    ...     db.list_tables()
    []
    """
    if durability not in DURABILITIES:
        raise InvalidArgumentError(f"durability takes one of {', '.join(DURABILITIES)}, not {durability!r}")
    in_bucket = is_bucket_url(path)
    folder = str(path) if in_bucket else _folder(path)
    flags = {"read_only": read_only, "share": share, "maintenance": maintenance, "take_over": take_over}
    for name, flag in flags.items():
        _flag(name, flag)
    if on_fenced not in ("raise", "reopen"):
        raise InvalidArgumentError(f"on_fenced takes 'raise' or 'reopen', not {on_fenced!r}")
    if not isinstance(limits, Limits):
        raise InvalidArgumentError(f"limits takes nyala.Limits(max_columns=…), not {limits!r}")
    options = StoreOptions(
        durability=durability,
        lock_timeout_s=seconds_of("lock_timeout", lock_timeout),
        memory_limit_bytes=parse_size("memory_limit", memory_limit, _MEMORY_MIN_BYTES),
        rowset_target_bytes=parse_size("rowset_size", rowset_size, _ROWSET_MIN_BYTES),
        maintenance=maintenance,
        limits=limits,
    )
    awaited = None if not_before is None else parse_at(not_before, name="not_before")
    if in_bucket:
        from nyala.api.opening import open_bucket

        kept = None if cache_dir is None else _folder(cache_dir)
        size = None if cache_bytes is None else parse_size("cache_bytes", cache_bytes, 0)
        if read_only:
            refresh_s, limit = seconds_of("refresh", refresh), options.memory_limit_bytes
            database = Database(
                open_bucket.open_bucket_for_reading(folder, limit, storage_options, kept, size, refresh_s)
            )
        else:
            interval_s = seconds_of("group_interval", group_interval)
            writing = partial(
                open_bucket.open_bucket_for_writing, folder, options, storage_options, kept, size, interval_s
            )
            reopen = partial(writing, False) if on_fenced == "reopen" else None
            database = Database(writing(take_over), reopen)
    elif take_over or on_fenced != "raise" or (storage_options, cache_dir, cache_bytes) != (None, None, None):
        raise InvalidArgumentError(
            "storage_options, cache_dir, cache_bytes, take_over and on_fenced are for a store in a bucket: pass its "
            f"URL, such as 's3://bucket/prefix', not {folder!r}"
        )
    elif read_only:
        from nyala.tablet.recovery.reader_store import ReaderStore

        database = Database(ReaderStore.open(SYSTEM, folder, options.memory_limit_bytes))
    else:
        _refuse_inside_a_store(folder)
        database = Database(open_for_writing(SYSTEM, folder, options, share=share))
    if awaited is not None:
        try:
            database._wait_for(awaited)
        except BaseException:
            database.close()  # the caller does not get it, and would never release the lock
            raise
    return database


def _folder(path: object) -> str:
    """Return the absolute path of a store's folder. Raises: InvalidArgumentError for an invalid path."""
    if not isinstance(path, str | bytes | os.PathLike):
        raise InvalidArgumentError(
            f"a store is a folder: pass its path as text or a pathlib.Path, not {path!r}"
        )
    text = os.fsdecode(path)
    if not text or "\0" in text:
        raise InvalidArgumentError(f"{text!r} is not a valid path of a folder")
    check_folder_path(text)
    if text == ":memory:":
        raise InvalidArgumentError(
            "':memory:' is not supported: pass a folder, for instance nyala.connect(tempfile.mkdtemp())"
        )
    return utf8_path(os.path.expanduser(text))


def _flag(name: str, given: object) -> bool:
    """Return an argument that must be True or False. Raises: InvalidArgumentError for anything else."""
    if not isinstance(given, bool):
        raise InvalidArgumentError(f"{name} takes True or False, not {given!r}")
    return given


def _key_names(primary_key: Any) -> list[str]:
    """Return the argument `primary_key` as a list. Raises: InvalidArgumentError if it is not iterable."""
    if not isinstance(primary_key, Iterable) or isinstance(primary_key, bytes):
        raise InvalidArgumentError(
            f"primary_key takes the names of the key's columns, in the key's order, not {primary_key!r}: for instance "
            'primary_key=["id"]'
        )
    return list(primary_key)


def check(
    path: str | bytes | os.PathLike[str],
    *,
    repair: bool = False,
    storage_options: StorageOptions | None = None,
) -> CheckReport:
    """Read every byte of the store in a folder, and check every rule of the format.

    Problems are returned, not raised, so the function can check a store that cannot be opened. If a
    process writes to the store, the check sees the state that a reader would see.

    Parameters
    ----------
    path
        The store's folder, or the URL of a store in a bucket.
    repair
        Also repair what can be repaired without losing data: remove files that nothing refers to,
        cut off the log's torn end, and rewrite damaged bloom filters, zone maps, indexes and bounds
        from intact rows. In a bucket: rewrite damaged rowsets, and replace a damaged checkpoint.
        The report's `repairs` lists what was done.
    storage_options
        As in `connect`.

    Returns
    -------
    CheckReport
        The problems, and what was checked.

    Raises
    ------
    StorageError
        The folder is not a store, or the bucket does not answer.
    LockedError
        `repair=True`, and a process has the store open for writing.
    """
    from nyala.tablet.check import check_bucket, check_folder
    from nyala.tablet.repair import repair_bucket, repair_folder

    if is_bucket_url(path):
        return (repair_bucket if repair else check_bucket)(str(path), storage_options)
    folder = _folder(path)
    return repair_folder(SYSTEM, folder) if repair else check_folder(SYSTEM, folder)


class Database:
    """An open store, returned by `nyala.connect`. Thread-safe.

    Close it with `close()`, or use it as a context manager. If a program does neither, and drops all
    references to the `Database`, the next `connect` to the same store closes it.

    Examples
    --------
    >>> db["metrics"].count()
    3
    >>> "metrics" in db
    True
    """

    def __init__(
        self,
        store: Store | ReaderStore | BucketReader | Handle,
        reopen: Callable[[], Handle] | None = None,
    ) -> None:
        if isinstance(store, str | os.PathLike):
            raise InvalidArgumentError(
                f"a store is opened by nyala.connect({os.fspath(store)!r}), not by Database"
            )
        self._handle = store if isinstance(store, Handle) else OpenStore(store).handle()
        self._reopen = reopen  # after another process became the writer; None: never
        self._reopen_lock = threading.Lock()
        self._closed = False
        self._attached: dict[str, Database] = {}  # by name in lower case
        self._sql_transaction = ThreadSlot(self._open)
        self._ahead = AheadOfClock()
        self._ahead.note(self._store.view()[1], self._store.env.clock.now_us())

    # ---------------------------------------------------------------------------------------- tables

    def create_table(
        self,
        name: str,
        schema: pa.Schema | Mapping[str, Any] | None = None,
        primary_key: str | Sequence[str] | None = None,
        partition_by: Sequence[HashSpec | RangeSpec] | HashSpec | RangeSpec | None = None,
        *,
        like: TableDescription | Table | None = None,
        unique: bool | None = None,
        comment: str | None = None,
        history: dt.timedelta | str | float | None = None,
        exist_ok: bool = False,
    ) -> Table:
        """Create a table.

        Parameters
        ----------
        name
            The table's name.
        schema
            A `pyarrow.Schema`, or a dict from column name to type: `"int64"`, `"decimal(15,2)"`, a
            pyarrow type, or `nyala.column(…)`.
        primary_key
            The names of the key columns, in the key's order. Default: none; see `unique`.
        partition_by
            `nyala.hash_partition(…)`, `nyala.range_partition(…)`, or a list of such partitions with
            at most one range partition. Default: one tablet.
        like
            A table, or its `description`. It supplies all arguments that are not given.
        unique
            `False`: several rows may have the same `primary_key`. The store then adds a column
            `auto_incrementing_id` (int64) to the key, and numbers inserted rows 1, 2, 3, … in each
            tablet. Default: `True`, or `False` without a `primary_key`.
        comment
            A text about the table. Default: none.
        history
            How far back the table can be read: a timedelta, `"7d"`, `"1h"`, seconds, or `"forever"`.
            Default: 7 days.
        exist_ok
            Return an existing table if it has the same columns, types and key.

        Returns
        -------
        Table
            The new table.

        Raises
        ------
        TableExistsError
            There is a table with this name.
        SchemaError
            The schema is invalid, or the existing table has another one.
        InvalidArgumentError
            Another argument is invalid.

        Examples
        --------
        >>> orders = db.create_table(
        ...     "orders",
        ...     {"id": "int64", "status": nyala.column("varchar(10)", default="new")},
        ...     primary_key="id",
        ...     partition_by=nyala.hash_partition("id", buckets=2),
        ... )
        >>> db.create_table("orders_copy", like=orders).description.partition_text
        'HASH (id) BUCKETS 2'
        >>> events = db.create_table("events", {"text": "string"})
        >>> events.insert({"text": ["first", "second"]}).inserted
        2
        >>> events.scan().to_arrow()["auto_incrementing_id"].to_pylist()
        [1, 2]
        """
        writer = self._changing("db.create_table(…)")
        new = self._new_table(
            name,
            schema,
            primary_key,
            partition_by,
            like=like,
            unique=unique,
            comment=comment,
            history=history,
        )
        try:
            writer.create_table(new)
        except TableExistsError:
            if not exist_ok:
                raise
            existing, built = self._root().table(name).schema, new.schema
            same = [(c.name, c.type, c.nullable) for c in existing.columns] == [
                (c.name, c.type, c.nullable) for c in built.columns
            ]
            if not same or existing.key_count != built.key_count:
                raise SchemaError(
                    f"table {name!r} exists with other columns: it has {_columns(existing)}, not {_columns(built)}"
                ) from None
        return self._table(name)

    def _new_table(
        self,
        name: str,
        schema: pa.Schema | Mapping[str, Any] | None = None,
        primary_key: str | Sequence[str] | None = None,
        partition_by: Sequence[HashSpec | RangeSpec] | HashSpec | RangeSpec | None = None,
        *,
        like: TableDescription | Table | None = None,
        unique: bool | None = None,
        comment: str | None = None,
        history: dt.timedelta | str | float | None = None,
    ) -> NewTable:
        """Check the arguments of `create_table`, and return the table to create.

        Raises: SchemaError, InvalidArgumentError.
        """
        from nyala.api.description import TableDescription
        from nyala.partition.levels import build_partitions, level_specs
        from nyala.tablet.tables.creation import NewTable

        limits = self._writing().limits
        check_table_name(name, limits)
        if like is not None:
            described = like if isinstance(like, TableDescription) else like.description
            if primary_key is None:
                primary_key = [name for name in described.primary_key if name != AUTO_INCREMENT]
                unique = described.unique if unique is None else unique
            if schema is None:
                schema = {each.name: each.spec() for each in described.columns if each.name != AUTO_INCREMENT}
            partition_by = described.partition_by if partition_by is None else partition_by
            comment = described.comment if comment is None else comment
            history = described.history if history is None else history
        elif schema is None:
            raise InvalidArgumentError(f"create_table({name!r}) needs a schema, or like=db[…].description")
        check_comment(comment or "", f"table {name!r}: ", limits)
        if unique is None:
            unique = primary_key is not None
        if primary_key is None and _flag("unique", unique):
            raise InvalidArgumentError(
                f"create_table({name!r}, unique=True) needs the names of the key columns: primary_key=[…]"
            )
        key = [primary_key] if isinstance(primary_key, str) else _key_names(primary_key or [])
        built = build_schema(schema, key, limits, unique=_flag("unique", unique))
        specs = [] if partition_by is None else level_specs(partition_by)
        partition_schema, partitions = build_partitions(specs, built, limits)
        return NewTable(name, built, partition_schema, partitions, comment or "", parse_history(history))

    @overload
    def table(self, name: str) -> Table: ...

    @overload
    def table(self, name: str, at: Moment) -> TableView: ...

    def table(self, name: str, at: Moment | None = None) -> Table | TableView:
        """Return the table with this name, or a read-only view of the table at a moment.

        Parameters
        ----------
        name
            The table's name.
        at
            A timestamp, datetime, ISO text, tag or `WriteResult`. Returns a view of the table that
            had this name at the moment, even if the table was dropped since. Default: return the
            table itself, which can be written to.

        Raises
        ------
        TableNotFoundError
            There is no such table, or it did not exist at that moment.
        HistoryExpiredError
            The moment is older than the table's history.
        """
        if at is not None:
            return self._table(name).at(at)
        self._root().table(name)
        return self._table(name)

    def __getitem__(self, name: str) -> Table:
        return self.table(name)

    def __contains__(self, name: object) -> bool:
        return name in self._root().by_name

    def __iter__(self) -> Iterator[str]:
        return iter(self.list_tables())

    def _ipython_key_completions_(self) -> list[str]:
        return self.list_tables()

    def list_tables(self) -> list[str]:
        """Return the names of the tables, sorted."""
        return sorted(self._root().by_name)

    def describe(self) -> dict[str, TableDescription]:
        """Return the description of each table by its name.

        Examples
        --------
        >>> [description.primary_key for description in db.describe().values()]
        [('host', 'time')]
        """
        return {name: self._table(name).description for name in self.list_tables()}

    def rename_table(self, old: str, new: str) -> None:
        """Rename a table. Raises: TableNotFoundError, TableExistsError, InvalidArgumentError."""
        from nyala.tablet.alter import rename_table

        writer = self._changing("db.rename_table(…)")
        writer.alter(self._root().table(old).id, [rename_table(new)])

    def copy_table(
        self,
        name: str,
        new_name: str,
        partition_by: Sequence[HashSpec | RangeSpec] | HashSpec | RangeSpec | None = None,
        at: Moment | None = None,
    ) -> Table:
        """Copy the rows of a table into a new table.

        Reads and writes can continue during the call. History is not copied.

        Parameters
        ----------
        name, new_name
            The names of the two tables.
        partition_by
            As in `create_table`. Default: the partitions of the source.
        at
            The moment whose rows are copied. Default: now.

        Raises
        ------
        TableNotFoundError, TableExistsError, HistoryExpiredError, InvalidArgumentError
            A name or a moment is wrong.
        NoPartitionError
            The partitions do not cover a row; no table was made.
        """
        writer = self._changing("db.copy_table(…)")
        writer.check_writable()
        check_table_name(new_name, writer.limits)
        _, source, snapshot = self.table(name)._view(at)
        if partition_by is None:
            partition_schema, partitions = source.entry.partition_schema, source.partitions
        else:
            from nyala.partition.levels import build_partitions

            partition_schema, partitions = build_partitions(partition_by, source.schema, writer.limits)
        writer.copy_table(source.id, snapshot, new_name, partition_schema, partitions)
        return self._table(new_name)

    def clone_table(self, name: str, new_name: str, at: Moment | None = None) -> Table:
        """Copy a table without copying its files: the new table shares the files of the first.

        The new table has the same rows, columns and partitions. Later writes to one table do not
        change the other. History is not cloned. Cost: a flush and one change of the catalogue,
        whatever the size of the table.

        Parameters
        ----------
        name, new_name
            The names of the two tables.
        at
            The clone gets the rows of this moment, in the present columns. Default: now. For an
            earlier moment, the call also writes the rows that changed since.

        Returns
        -------
        Table
            The clone.

        Raises
        ------
        TableNotFoundError, TableExistsError, HistoryExpiredError, InvalidArgumentError
            A name or a moment is wrong; nothing was made.

        Examples
        --------
        >>> trial = db.clone_table("metrics", "trial")
        >>> trial.delete(where="host = 'a'").deleted, metrics.count()
        (2, 3)
        """
        self._clone_table(name, new_name, at, replaces=False)
        return self._table(new_name)

    def _clone_table(self, name: str, new_name: str, at: Moment | None, *, replaces: bool) -> None:
        writer = self._changing("db.clone_table(…)")
        writer.check_writable()
        check_table_name(new_name, writer.limits)
        moment = None
        if at is not None:
            table_id = self._root().table(name).id
            moment = self._table(name)._view(at, table_id=table_id)[2]
        writer.clone_table(name, new_name, moment, replaces)

    def drop_table(self, name: str, missing_ok: bool = False, *, purge: bool = False) -> None:
        """Drop a table. `undrop_table` brings it back as long as its history lasts.

        Another table can have the name at once. Reads at earlier moments still find the table. Its
        files stay as long as its history: 7 days unless `create_table` set another one.

        Parameters
        ----------
        name
            The table's name.
        missing_ok
            Do nothing if there is no such table, instead of raising `TableNotFoundError`.
        purge
            Remove the rows and their history at once, which frees their disk space.

        Examples
        --------
        >>> before = db.now()
        >>> db.drop_table("metrics")
        >>> "metrics" in db, db.table("metrics", at=before).count()
        (False, 3)
        >>> db.undrop_table("metrics").count()
        3
        """
        try:
            self._changing("db.drop_table(…)").drop_tables([name], _flag("purge", purge))
        except TableNotFoundError:
            if not missing_ok:
                raise

    def undrop_table(self, name: str, new_name: str | None = None, *, at: Moment | None = None) -> Table:
        """Bring back a dropped table with its rows and its history.

        Parameters
        ----------
        name
            The name that the table had. If several dropped tables had this name, the one that was
            dropped last is brought back.
        new_name
            Its new name. Default: the old one.
        at
            A moment at which the table existed, to choose among several tables.

        Returns
        -------
        Table
            The table. Moments between the drop and this call cannot be read.

        Raises
        ------
        TableNotFoundError
            No dropped table had this name, or its history has ended.
        TableExistsError
            A table has this name again: pass `new_name`.

        Examples
        --------
        >>> db.drop_table("metrics")
        >>> db.undrop_table("metrics", "rescued").count()
        3
        """
        writer = self._changing("db.undrop_table(…)")
        writer.check_writable()
        wanted = name if new_name is None else new_name
        check_table_name(wanted, writer.limits)
        root = self._root()
        found = root.dropped_as(name)
        if not found:
            others = sorted({table.name for table in root.dropped.values()})
            listed = ", ".join(others[:10]) + (", …" if len(others) > 10 else "")
            raise TableNotFoundError(
                f"no dropped table {name!r} can be brought back: "
                + (f"the dropped tables are: {listed}" if others else "the store has no dropped tables")
            )
        if at is not None:
            moment = self._view_at(at)[1]
            found = [table for table in found if table.entry.existed_at(moment)]
            if not found:
                raise TableNotFoundError(
                    f"no dropped table {name!r} existed at {to_datetime(moment).isoformat()}: db.dropped_tables() "
                    "says from when to when each existed"
                )
        writer.undrop_table(found[-1].id, wanted)
        return self._table(wanted)

    def dropped_tables(self) -> list[DroppedTable]:
        """Return the dropped tables that can be brought back, in the order in which they were dropped.

        Examples
        --------
        >>> db.drop_table("metrics")
        >>> [(table.name, table.bytes) for table in db.dropped_tables()]
        [('metrics', 0)]
        """
        from nyala.api.results import describe_dropped

        dropped = sorted(self._root().dropped.values(), key=lambda table: table.entry.dropped)
        return [describe_dropped(table) for table in dropped]

    def purge_dropped(self, name: str | None = None) -> int:
        """Remove dropped tables and dropped range partitions at once, before their history ends.

        Parameters
        ----------
        name
            Remove only the dropped tables that had this name, and the dropped ranges of the table
            that has this name now. Default: all.

        Returns
        -------
        int
            The size of the removed files in bytes. The space is freed once no scan and no other
            process reads the files.
        """
        return self._changing("db.purge_dropped(…)").purge_dropped(name)

    # ---------------------------------------------------------------------------------------- read, write

    def batch(self, errors: Literal["raise", "collect"] = "raise", *, message: str | None = None) -> Batch:
        """Return a batch of operations on any tables: one timestamp, all or nothing; see `Batch`.

        Parameters
        ----------
        errors
            `"raise"`: one failing row rejects the whole batch. `"collect"`: failing rows are
            returned in the results' `errors`, and all other rows are written.
        message
            A text of at most 1,000 characters about the commit; `commits()` shows it.

        Examples
        --------
        >>> with db.batch() as b:
        ...     b.upsert("metrics", [("e", 1, 1.0)])
        ...     b.delete("metrics", ("b", 1))
        >>> metrics.count()
        3
        """
        from nyala.api.batch import Batch

        self._writing()
        return Batch(self, errors, message)

    def transaction(self, *, timeout: float = 60, message: str | None = None) -> Transaction:
        """Begin a transaction: it reads one snapshot and its own writes, and commits as one batch.

        Parameters
        ----------
        timeout
            Seconds without a call after which the transaction is rolled back. Otherwise a forgotten
            transaction would keep old history on disk.
        message
            A text of at most 1,000 characters about the commit; `commits()` shows it.

        Returns
        -------
        Transaction
            Use it as a context manager: the end of the block commits, an exception rolls back.

        Raises
        ------
        ReadOnlyError
            The store was opened with `read_only=True`.

        Examples
        --------
        >>> with db.transaction() as tx:
        ...     row = tx["metrics"]["a", 1]
        ...     tx["metrics"].update([{**row, "value": row["value"] + 1}]).updated
        1
        """
        from nyala.api.transaction import Transaction

        self._writing()
        return Transaction(self, seconds_of("timeout", timeout), check_message(message))

    def run(self, function: Callable[[Transaction], _Made], retries: int = 5) -> _Made:
        """Run a function in a transaction, and repeat it after a conflict.

        During the first three tries other writers can commit. During later tries other writers wait,
        so these tries meet no conflict. In a process that shares the store, other writers wait at
        most 10 seconds.

        Parameters
        ----------
        function
            Called with the transaction. The function may run several times, so it should change
            nothing outside of the transaction. If it raises, the transaction is rolled back and
            `run` raises.
        retries
            How often the function is repeated after a conflict.

        Returns
        -------
        object
            The value that the function returned in the committed try.

        Raises
        ------
        ConflictError
            The last try met a conflict. With three or more retries this can happen only in a
            process that shares the store, if the function takes more than 10 seconds.

        Examples
        --------
        >>> def count_up(tx):
        ...     row = tx["metrics"]["a", 1]
        ...     tx["metrics"].update([{**row, "value": row["value"] + 1}])
        ...     return row["value"] + 1
        >>> db.run(count_up)
        2.0
        """
        from nyala.api.transaction import run

        number = whole_number(retries)
        if number is None or number < 0:
            raise InvalidArgumentError(f"retries takes a whole number, 0 or more, not {retries!r}")
        return run(self, function, number)

    def snapshot(self, at: Moment | None = None) -> Snapshot:
        """Return all tables at one moment (default: now). They stay readable until the snapshot is closed.

        Examples
        --------
        >>> with db.snapshot() as s:
        ...     s["metrics"].count()
        3
        """
        made = self._snapshot(at)
        self._open.snapshots.add(made)
        return made

    def _snapshot(self, at: Any) -> Snapshot:
        root, timestamp, published = self._view_at(at)
        return Snapshot(self, root, timestamp, published, naive_note(at))

    def sql(
        self, text: str, parameters: Sequence[Any] | dict[str, Any] | None = None, *, at: Moment | None = None
    ) -> Result:
        """Execute SQL: queries of the tables at one moment, and statements that change tables.

        DuckDB executes the queries. Each statement that writes is a commit of its own, except
        between BEGIN and COMMIT of the same thread.

        Parameters
        ----------
        text
            One statement, or several that `;` separates. See docs/reference/sql.md.
        parameters
            Values for `?` in the text, or a dict for `$name`.
        at
            The moment. Default: now.

        Returns
        -------
        Result
            The result of the last statement. A query runs when its rows are read; other statements
            run during this call.

        Raises
        ------
        InvalidArgumentError
            The statement does not parse or is not supported, or DuckDB cannot compute a value.
        ConflictError
            The statement was repeated, but other writers changed the same rows each time.
        TableNotFoundError, ColumnNotFoundError
            An unknown name.
        HistoryExpiredError
            The moment is older than a table's history.
        ImportError
            DuckDB is not installed: `pip install "nyala[sql]"`.

        Examples
        --------
        >>> db.sql("SELECT host, count(*) FROM metrics GROUP BY host ORDER BY host").fetchall()
        [('a', 2), ('b', 1)]
        >>> db.sql("UPDATE metrics SET value = value + 1 WHERE host = ?", ["a"]).rowcount
        2
        """
        need("duckdb", "sql")
        from nyala.sql.rights import of_caller
        from nyala.sql.session import SqlSession

        return SqlSession(self, of_caller(), slot=self._sql_transaction).execute(text, parameters, at=at)

    def commits(self, since: Moment | None = None, until: Moment | None = None) -> CommitList:
        """Return the commits that changed rows of any table, oldest first.

        A commit is one batch: one write call, `with db.batch()`, a transaction, or a Spark job. Its
        counts compare the rows before and after the batch: if one batch deletes and inserts a key, this
        counts as an update.

        Parameters
        ----------
        since
            Exclusive lower bound, as in `Table.changes`. Default: the oldest readable moment of
            each table.
        until
            Inclusive upper bound. Default: now.

        Returns
        -------
        CommitList
            Its `Commit` objects have `timestamp`, `time`, `inserted`, `updated`, `deleted`,
            `tables` and `message`; `to_arrow()` returns them as a table.

        Raises
        ------
        InvalidArgumentError
            `since` is later than `until`, or a moment is in the future.
        HistoryExpiredError
            `since` is older than the history of a table.

        Notes
        -----
        Reads which rows were written and when, but no values. Commits to dropped tables and range
        partitions are listed as long as these can be brought back. Changes of schemas are not listed.

        Examples
        --------
        >>> with db.batch(message="a correction of b") as b:
        ...     b.update("metrics", [("b", 1, 4.0)])
        >>> [(commit.updated, commit.tables, commit.message) for commit in db.commits()[-1:]]
        [(1, ('metrics',), 'a correction of b')]
        """
        lower = None if since is None else self._view_at(since, "since")[1]
        root, upper, published = self._view_at(until, "until")
        if lower is not None and until is None:
            upper = max(lower, upper)
        if lower is not None and lower > upper:
            from nyala.api.readable import since_after_until

            raise InvalidArgumentError(since_after_until(lower, upper))
        from nyala.api.results import CommitList
        from nyala.tablet.changes.commits import CommitCounts, commit_counts, commit_table

        now_us = self._store.env.clock.now_us()
        found: dict[str, list[CommitCounts]] = {}
        for table in root.every_table():
            if lower is not None and not table.entry.dropped:
                check_readable(table.entry, lower, published, now_us, naive_note(since))
            begin = max(lower or 0, oldest_readable(table.entry, published, now_us))
            counts = commit_counts(table.with_schema(table.entry.schema_at(upper)).whole, begin, upper)
            found.setdefault(table.name, []).append(counts)
        merged = {name: CommitCounts.total(parts) for name, parts in found.items()}
        return CommitList(commit_table(merged, self._opened().messages()))

    def tag(self, name: str, at: Moment | None = None) -> Tag:
        """Name a moment, and keep it readable until the tag is dropped.

        The name can be used as a moment: `scan(at="before-load")`. Tables that exist at the tagged
        moment can be read at it and at every later moment, even if their history is shorter.

        Parameters
        ----------
        name
            A letter, then letters, digits, `_`, `.` and `-`; at most 128 characters.
        at
            The moment, as in `scan`. Default: now.

        Returns
        -------
        Tag
            The name, the timestamp and its time.

        Raises
        ------
        InvalidArgumentError
            The name is invalid or exists already, or the moment is in the future.
        HistoryExpiredError
            The moment is older than the history of a table.

        Examples
        --------
        >>> tag = db.tag("before-load")
        >>> metrics.delete(where="TRUE").deleted
        3
        >>> metrics.count(at="before-load"), metrics.count(at=tag), metrics.count()
        (3, 3, 0)
        """
        writer = self._changing("db.tag(…)")
        check_tag_name(name)
        from nyala.api.results import Tag

        timestamp = writer.tag(name, None if at is None else self._view_at(at)[1])
        return Tag(name, timestamp, to_datetime(timestamp))

    def tags(self) -> list[Tag]:
        """Return the tags, in the order of their moments.

        Examples
        --------
        >>> [tag.name for tag in db.tags()]
        []
        """
        from nyala.api.results import Tag

        found = sorted(self._opened().tags().values(), key=lambda tag: (tag.timestamp, tag.name))
        return [Tag(tag.name, tag.timestamp, to_datetime(tag.timestamp)) for tag in found]

    def drop_tag(self, name: str, missing_ok: bool = False) -> None:
        """Drop a tag. History that only this tag kept expires at once; its files are removed later.

        Parameters
        ----------
        name
            The tag's name.
        missing_ok
            Do nothing if there is no such tag, instead of raising `InvalidArgumentError`.
        """
        writer = self._changing("db.drop_tag(…)")
        if not missing_ok or name in self._store.tags():
            writer.drop_tag(name)

    def now(self) -> int:
        """Return the published timestamp: the moment that a scan without `at` reads."""
        return self._opened().view()[1]

    # ---------------------------------------------------------------------------------------- maintain

    @property
    def path(self) -> str:
        """The store's folder."""
        return self._store.root_path

    @property
    def read_only(self) -> bool:
        """Whether this process opened the store for reading only."""
        return self._open.writer is None

    @property
    def maintenance(self) -> Maintenance | RemoteMaintenance:
        """The store's background work, with `status()`, `pause()` and `resume()`.

        Raises: ReadOnlyError if the store was opened with `read_only=True`.
        """
        return self._writing().maintenance

    def flush(self) -> FlushResult:
        """Write the rows and changes that all tables have in memory to files."""
        from nyala.api.results import FlushResult

        return FlushResult(**self._writing().flush())

    def stats(self) -> StoreStats:
        """Return sizes and counters of the whole store."""
        from nyala.api.results import StoreStats
        from nyala.tablet.compaction.measurement import tag_bytes

        store, writer = self._opened(), self._open.writer
        root, now = store.view()
        now_us = self._store.env.clock.now_us()
        kept = sum(tag_bytes(table, now, now_us) for table in root.every_table())
        figures = store.stats() if writer is None else writer.stats()
        return StoreStats(tables=len(root.tables), timestamp=now, tag_bytes=kept, **figures)

    def backup(
        self,
        folder: str | os.PathLike[str],
        tables: Sequence[str] | None = None,
        *,
        full: bool = False,
        storage_options: StorageOptions | None = None,
        progress: bool | Progress = False,
    ) -> BackupResult:
        """Back up tables into a folder, all at one moment.

        A backup of a table has the changes since its last backup, or all rows. Reads and writes can
        continue during the call. `nyala.restore_backup` restores the tables. A `Database` that is
        open for reading only can also be backed up.

        Parameters
        ----------
        folder
            The backup folder, outside the store, or its URL. One folder can have the backups of
            several stores.
        tables
            The names of the tables. Default: all tables of the store.
        full
            Back up all rows, even if the changes would be enough. A backup is always full if it is
            the first of its table, if the table was repartitioned since the last one, or if the
            last one is older than the table's history.
        storage_options
            For a URL: as in `connect`.
        progress
            `True` prints progress. A function is called with (tablets done, tablets in total).

        Returns
        -------
        BackupResult
            The backups, and their moment.

        Raises
        ------
        InvalidArgumentError
            The folder is inside the store.
        TableNotFoundError
            One of the tables does not exist.
        StorageError, CorruptionError
            The backup failed. The backups that were already complete stay in the folder.

        Notes
        -----
        Memory: two scans decode rows ahead; each uses at most a quarter of `memory_limit`. If a
        backup is killed, `nyala.list_backups` does not show it. The next backup removes its files.

        Examples
        --------
        >>> db.backup(backups).tables[0].kind
        'full'
        >>> metrics.delete(("b", 1)).deleted
        1
        >>> [(made.kind, made.rows) for made in db.backup(backups).tables]
        [('incremental', 1)]
        """
        from nyala.api.results import BackupResult, table_backup
        from nyala.backup.layout import open_place
        from nyala.backup.write import back_up
        from nyala.presentation.progress import progress_function

        if tables is not None and (isinstance(tables, str | bytes) or not isinstance(tables, Iterable)):
            raise InvalidArgumentError(f'tables takes a list of names, such as ["flights"], not {tables!r}')
        names = None if tables is None else list(dict.fromkeys(tables))
        show = progress_function(progress, lambda done, total: f"backup: {done:,} of {total:,} tablets")
        store = self._opened()
        with open_place(folder, storage_options) as place:
            root, published = store.view()
            for name in names or ():
                root.table(name)
            done = back_up(place, store, root, published, names, full, show or (lambda *_: None))
        made = tuple(table_backup(each, of_store=names is None) for each in done.made)
        return BackupResult(until=done.until, tables=made, unchanged=done.unchanged)

    def check(self) -> CheckReport:
        """Read every byte of the store's current files, and check every rule of the format.

        Problems are returned, not raised. To also find files that the catalogue does not name,
        close the store and call `nyala.check(path)`.

        Returns
        -------
        CheckReport
            The problems, and what was checked.
        """
        from nyala.tablet.check import check_open

        return check_open(self._opened())

    def close(self) -> None:
        """Sync the log and close this `Database`; may be called twice.

        Later calls of this `Database` and of its tables, scans and feeds raise `StorageError`. The store
        itself is closed with its last `Database` in this process.
        """
        with self._reopen_lock:
            self._closed = True
            attached, self._attached = self._attached, {}
            for other in attached.values():
                other.close()
            self._handle.close()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise pickle_error(self)

    def __repr__(self) -> str:
        if self._handle.closed:
            return f"Database {self.path} (closed)"
        tables = ", ".join(self.list_tables()) or "no tables"
        mode = ", read only" if self.read_only else ""
        return bounded(f"Database {self.path}{mode}: {tables}")

    def _repr_html_(self) -> str:
        if self._handle.closed:
            return f"<pre>{html.escape(repr(self))}</pre>"
        tables = [self._root().table(name) for name in self.list_tables()]
        listed = pa.table(
            {
                "table": [table.name for table in tables],
                "columns": [str(len(table.schema.columns)) for table in tables],
                "key": [", ".join(table.schema.key_names) for table in tables],
                "tablets": [str(len(table.tablets)) for table in tables],
                "comment": [table.entry.comment for table in tables],
            }
        )
        return html_preview(f"Database {self.path}", lambda n: listed)

    # ---------------------------------------------------------------------------------------- inside

    @property
    def _open(self) -> OpenStore:
        return self._handle.opened

    @property
    def _store(self) -> Store | ReaderStore | BucketReader:
        return self._handle.opened.store

    def _opened(self) -> Store | ReaderStore | BucketReader:
        """Return the open store.

        With `on_fenced="reopen"`, opens it again after another process has taken it over.
        Raises: StorageError if this Database is closed; LockedError if the other process still writes.
        """
        if self._reopen is not None:
            self._reopen_if_fenced(self._reopen)
        handle = self._handle
        handle.check_open()
        return handle.opened.store

    def _reopen_if_fenced(self, reopen: Callable[[], Handle]) -> None:
        with self._reopen_lock:
            store = self._store
            if isinstance(store, Store) and store.is_fenced and not self._closed:
                self._handle.give_up()
                self._handle = reopen()

    def _root(self) -> Root:
        return self._opened().view()[0]

    def _table(self, name: str) -> Table:
        from nyala.api.table import Table

        return Table(self, name)

    def _connection(self, *, files: bool = False) -> Connection:
        """Return the DuckDB connection for SQL. files: whether its statements may access files."""
        need("duckdb", "sql")
        from nyala.sql.select.connection import Connection

        with self._open.sql_lock:
            made = self._open.sql.get(files)
            if made is None:
                made = self._open.sql[files] = Connection(self._store.memory_limit_bytes, files=files)
            return made

    def _attach(self, name: str, path: str) -> None:
        """Open another store for reading. SQL can then read its tables as `name.table`.

        Raises: the errors of `connect`; InvalidArgumentError if the name is in use, or the path is
            not a store.
        """
        self._opened()
        key = name.lower()
        with self._open.sql_lock:  # one thread changes the attached stores at a time
            if key in _RESERVED_NAMES or key in self._attached:
                raise InvalidArgumentError(f"the name {name!r} is in use: ATTACH '{path}' AS another_name")
            if not is_bucket_url(path) and not SYSTEM.files.exists(identity_path(os.path.expanduser(path))):
                raise InvalidArgumentError(
                    f"ATTACH takes the folder or bucket of a Nyala store, and {path!r} is not one: read another "
                    "database with its own library into a data frame, and name the frame's variable in FROM"
                )
            opened = connect(path if is_bucket_url(path) else os.path.expanduser(path), read_only=True)
            self._attached = {**self._attached, key: opened}

    def _detach(self, name: str, *, missing_ok: bool = False) -> None:
        """Close an attached store. Raises: InvalidArgumentError for an unknown name, unless `missing_ok`."""
        with self._open.sql_lock:
            left = dict(self._attached)
            found = left.pop(name.lower(), None)
            if found is None:
                if missing_ok:
                    return
                there = ", ".join(sorted(left)) or "none"
                raise InvalidArgumentError(f"no store is attached as {name!r}; attached are: {there}")
            self._attached = left
        found.close()

    def _changing(self, call: str) -> Writer:
        """Return the writer for a change of tables or tags.

        Raises: as `_writing`; InvalidArgumentError inside a batch or transaction of this thread.
        """
        self._open.refuse_change_in_block(call)
        return self._writing()

    def _writing(self) -> Writer:
        """Return the object that executes writes: in this process, or in the process that holds the store.

        Raises: ReadOnlyError.
        """
        store = self._opened()
        writer = self._open.writer
        if writer is None:
            raise ReadOnlyError(
                f"the store {store.root_path!r} was opened with read_only=True: connect() without it to write"
            )
        return writer

    def _writer(self) -> Store:
        """Return the store, if this process is its writer. Raises: ReadOnlyError, LockedError."""
        self._writing()
        store = self._opened()
        if not isinstance(store, Store):
            raise LockedError(
                f"another process holds the store {store.root_path!r}, and this call works only in that process: call "
                "it there, or close the store there and connect() again"
            )
        return store

    def _view_at(self, at: Any, name: str = "at") -> tuple[Root, int, int]:
        """Return (root, snapshot, published) to read at the moment `at`.

        root: a state of the store, in memory, from which the moment `at` can be read.
        snapshot: the timestamp to read at. published: the newest timestamp that can be read.
        name: the argument that has the moment: "at", "since", "to", …
        Does not check that the moment is within a table's history.
        Raises: InvalidArgumentError for a moment in the future; the errors of `parse_at`.
        """
        at = self._without_tag(at, name)  # before the view, which then has the tag's moment
        root, published = self._opened().view()
        self._ahead.note(published, self._store.env.clock.now_us())
        if at is None:
            return root, published, published
        timestamp = parse_at(at, published, name)
        now_us = self._store.env.clock.now_us()
        if timestamp > max(from_physical(now_us + 1), published):
            raise InvalidArgumentError(
                f"{name}={to_datetime(timestamp).isoformat()} is in the future: it is "
                f"{to_datetime(from_physical(now_us)).isoformat()} now"
                f"{naive_note(at, from_physical(now_us))}"
            )
        if is_datetime(at) and name != "since":  # adjust it if the clock was ahead: see `AheadOfClock`
            if name == "to" and self._ahead.covers(timestamp):
                raise InvalidArgumentError(
                    f"to={to_datetime(timestamp).isoformat()} is ambiguous: the clock was ahead when this store was "
                    f"written, and its newest write has the time {to_datetime(published).isoformat()}. Pass a "
                    "timestamp instead: result.timestamp of a write, or an earlier db.now()"
                )
            timestamp = self._ahead.resolve(timestamp)
        return root, max(min(timestamp, published), TIMESTAMP_ZERO), published

    def _without_tag(self, at: Any, name: str = "at") -> Any:
        """If `at` is a tag, return its timestamp; otherwise return `at`.

        Raises: InvalidArgumentError for an unknown tag.
        """
        return resolve_tag(at, self._opened().tags, name) if isinstance(at, str) else at

    def _make_scan(
        self,
        root: Root,
        table: TableState,
        spec: ScanSpec,
        source: ReadableTable,
        schema_of: SchemaOf | None = None,
    ) -> Scan:
        from nyala.api.scan import Scan

        scan = Scan(self._handle, root, table, spec, source, schema_of)
        self._handle.scans.watch(scan)
        return scan

    def _make_change_feed(self, root: Root, table: TableState, spec: ChangeSpec) -> ChangeFeed:
        from nyala.api.change_feed import ChangeFeed

        feed = ChangeFeed(self._handle, root, table, spec)
        self._handle.scans.watch(feed)
        return feed

    def _wait_for(self, timestamp: int) -> None:
        clock = self._store.env.clock
        deadline_s = clock.monotonic_s() + 10
        while self.now() < timestamp:
            if clock.monotonic_s() > deadline_s:
                raise InvalidArgumentError(
                    f"not_before={timestamp} ({to_datetime(timestamp).isoformat()}) did not become visible in "
                    f"{self.path!r} within 10 s; the newest visible write is of {to_datetime(self.now()).isoformat()}"
                )
            clock.sleep_s(0.01)


class Snapshot:
    """All tables at one moment, returned by `Database.snapshot`.

    The snapshot keeps its files until it is closed, or until Python frees it. As long as it is
    open, the history that a table had when the snapshot was taken stays readable.

    Examples
    --------
    >>> with db.snapshot() as s:
    ...     metrics.delete(where="TRUE").deleted, s["metrics"].count()
    (3, 3)
    """

    def __init__(
        self, database: Database, root: Root, timestamp: int, published: int, note: str = ""
    ) -> None:
        """note: a text to add to errors about a moment that cannot be read."""
        self._database = database
        self._note = note
        self._root: Root | None = root
        self._published = published
        self._taken_us = database._store.env.clock.now_us()
        self.timestamp = timestamp

    def _pinned(self) -> Root:
        if self._root is None:
            raise InvalidArgumentError("this snapshot is closed: take another with db.snapshot()")
        return self._root

    def table(self, name: str) -> TableView:
        """Return the table at this moment, read-only. Raises: TableNotFoundError, HistoryExpiredError."""
        root = self._pinned()
        entry = root.table_at(name, self.timestamp).entry
        check_readable(entry, self.timestamp, self._published, self._taken_us, self._note)
        check_created(entry, self.timestamp, self._published, self._note)
        from nyala.api.readable import TableView

        return TableView(self._database, name, root, self.timestamp)

    def __getitem__(self, name: str) -> TableView:
        return self.table(name)

    def __contains__(self, name: object) -> bool:
        return name in self.list_tables()

    def __iter__(self) -> Iterator[str]:
        return iter(self.list_tables())

    def sql(self, text: str, parameters: Sequence[Any] | dict[str, Any] | None = None) -> Result:
        """Return the result of a SELECT over the tables at this moment: see `Database.sql`."""
        self._pinned()
        need("duckdb", "sql")
        from nyala.sql.rights import of_caller
        from nyala.sql.session import SqlSession

        return SqlSession(self._database, of_caller(), source=self).execute(text, parameters)

    def list_tables(self) -> list[str]:
        """Return the names of the tables that existed at this moment and were not purged, sorted."""
        moment = self.timestamp
        return sorted(
            {
                table.name
                for table in self._pinned().every_table()
                if table.entry.existed_at(moment) or self._published <= moment < table.entry.created
            }
        )

    @property
    def is_open(self) -> bool:
        """Whether the snapshot is still open."""
        return self._root is not None

    def close(self) -> None:
        """End the snapshot, so that its files can be removed; may be called twice."""
        self._root = None

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise pickle_error(self)

    def __repr__(self) -> str:
        return f"Snapshot of {self._database.path} at {to_datetime(self.timestamp).isoformat()}"


# ------------------------------------------------------------------------------------------------ arguments


def _refuse_inside_a_store(folder: str) -> None:
    """Raise StorageError if the folder is inside the folder of another store.

    That store would remove the folder's files as orphans (rule P3: orphans).
    """
    if SYSTEM.files.exists(identity_path(folder)):
        return
    parent = os.path.realpath(folder)
    while (above := os.path.dirname(parent)) != parent:
        parent = above
        if SYSTEM.files.exists(identity_path(parent)):
            raise StorageError(
                f"{folder!r} is inside the folder of another store, {parent!r}: connect to that store, or choose a "
                "folder outside of it",
                path=folder,
            )


def parse_size(argument: str, given: float | str, least: int) -> int:
    """Return a size in bytes. Raises: InvalidArgumentError for less than `least`, or for anything but a size."""
    if isinstance(given, float) and given.is_integer():
        given = int(given)  # 64e6
    size = size_in_bytes(given) if isinstance(given, str) else whole_number(given)
    if size is None or size > SIZE_MAX_BYTES:
        raise InvalidArgumentError(f"{argument}={given!r} is not a size: pass bytes, or text such as '512MB'")
    if size < least:
        raise InvalidArgumentError(f"{argument}={given!r} is too small: pass at least {least // 10**6} MB")
    return size


def _columns(schema: Any) -> str:
    return ", ".join(f"{column.name} {column.type}" for column in schema.columns)
