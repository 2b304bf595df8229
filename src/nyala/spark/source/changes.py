"""Reads the change feed of a table in Spark: as a stream, or as one batch between two moments.

    planner worker, one during the whole query                         executor's worker
    latestOffset   choose the end of the next micro-batch
    partitions     plan the changes in (start, end]:
                     changes in files, as tokens      ───────────────► read the files
                     changes in memory, as rows       ───────────────► return the rows
    commit         end the leases of earlier micro-batches
    SIGTERM        end the last lease (Spark sends this signal at the end of a query, and calls
                   nothing)

A *planner worker* is a Python process that Spark starts on the driver's machine.

Offsets. An offset is {"timestamp": N, "table": {"id", "created"}}. It says that the query has
returned all changes of this table up to N. After an offset with timestamp 0, the micro-batch has
all rows of the table, as inserts. The offset identifies the table, because another table may get
its name while no query runs. Offsets of older Nyala versions have only the timestamp, and are
accepted. The feed has no deletes for rows of dropped range partitions. If such ranges were dropped
since the previous offset, the offset lists them as `dropped_ranges`. `query.lastProgress` shows the
offsets.

Altered tables. A query keeps the columns with which it started, by name. It does not read new
columns. A dropped, renamed or widened column ends the query with an error. After a restart from its
checkpoint, the query reads the present columns.

The end of a micro-batch. Tasks read the changes that are in files. The planner reads the changes
that are only in memory. If a query still has to read changes of both kinds, the next micro-batch
has only those in files. With `maxRowsPerTrigger`, a micro-batch ends as soon as it has that number
of rows. A commit is never split, so the micro-batch may exceed the limit by the rows of one commit.
The first micro-batch of a query without a start is the whole table, of any size.

Invariants
    F1  The micro-batches (start, end] of a query have no gap and no overlap, also after restarts.
        The same offsets give the same rows while the table's history reaches back to `start`.
    F2  With versions="net", a key has at most one change in a micro-batch.
    F3  A query reads only the table with which it began, or ends with an error.
    F4  A stream continues after a range partition was dropped. It does not return the changes of
        the dropped rows.

Source: docs/how-to/spark.md; docs/design/spark.md, "What Spark offers a Python data source".
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

import nyala
from nyala.api.scan import read_token
from nyala.catalog.job_leases import open_job_lease
from nyala.env import Env
from nyala.errors import ColumnNotFoundError, Error, HistoryExpiredError, InvalidArgumentError, SchemaError
from nyala.mvcc.timestamp import TIMESTAMP_ZERO
from nyala.objects.address import Address
from nyala.spark.errors import add_place, errors_naming, place_text
from nyala.spark.source.option_messages import errors_in_options
from nyala.spark.source.options import ChangeOptions
from nyala.spark.source.reader import (
    PARTITIONS_PER_CORE,
    HeldLease,
    TokenOrRange,
    TokenPartition,
    begin_task,
    lease_of_version,
    load_token,
    open_read_only,
    pack,
    partition_count,
    store_tokens,
)
from nyala.spark.types import arrow_schema, check_schema, conform
from nyala.tablet.changes import change_token
from nyala.tablet.changes import records as diff_records
from nyala.tablet.changes.batches import commit_columns
from nyala.tablet.changes.change_token import (
    changes_in_memory,
    make_change_tokens,
    read_change_token,
    rows_token,
)
from nyala.tablet.changes.spec import FEED_COLUMNS
from nyala.tablet.scan.read_path import ScanSpec
from nyala.tablet.scan.token import make_tokens, planned_rows, tablet_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from nyala.api.change_feed import ChangeFeed
    from nyala.api.database import Database
    from nyala.api.readable import SchemaOf
    from nyala.api.table import Table
    from nyala.tablet.state.root import TableState

__all__ = [
    "NyalaChangeReader",
    "NyalaChangeStream",
    "change_schema",
    "next_end",
    "plan_changes",
    "read_changes",
]

# The timestamp of an offset before all rows.
_WHOLE_TABLE: Final = 0
STARTING: Final = "startingTimestamp"
ENDING: Final = "endingTimestamp"
# Rows in memory are split into pieces of about this many, for several tasks.
_PIECE_ROWS: Final = 1 << 17


class ChangePartition(TokenPartition):
    """The tokens that one task reads: of a change feed, or of a scan if `inserted_at` is set.

    inserted_at: a timestamp. The task returns all rows of the scan as inserts at this timestamp.
    """

    def __init__(self, tokens: list[TokenOrRange], lease: str, inserted_at: int | None) -> None:
        super().__init__(tokens, lease)
        self.inserted_at = inserted_at


def _feed(
    db: Database, options: ChangeOptions, since: int, until: int | None, seen: SchemaOf = "current"
) -> ChangeFeed:
    """Return the change feed of the table for the timestamps (since, until].

    seen: which columns to return: "current" for the present ones, "at" for those at `until`. Raises
    HistoryExpiredError, with advice for the query, if `since` is older than the table's history.
    """
    columns = None if options.columns is None else list(options.columns)
    try:
        return db.table(options.table).changes(
            since, until, options.versions, columns, seen, before=options.before
        )
    except HistoryExpiredError as error:
        raise HistoryExpiredError(
            f"the changes of table {options.table!r} after {nyala.to_datetime(since).isoformat()} ({since}) have "
            f"expired, so this query cannot continue from its checkpoint: {error}. Start a new query with a new "
            "checkpoint; without startingTimestamp it begins with all present rows. A longer `history` of the table "
            "keeps changes longer"
        ) from error


def _identity(table: TableState) -> dict[str, int]:
    """Return the id and creation time of the table, which an offset stores to identify the table."""
    return {"id": table.id, "created": table.entry.created}


def _check_table(table: TableState, offset: Mapping[str, Any]) -> None:
    """Raise HistoryExpiredError if the offset belongs to another table.

    An old offset has only a timestamp. It belongs to another table if the timestamp is before this
    table's creation.
    """
    identity, own = offset.get("table"), _identity(table)
    if isinstance(identity, Mapping):
        is_other = {name: identity.get(name) for name in own} != own
    else:
        is_other = _WHOLE_TABLE < offset["timestamp"] < table.entry.created
    if is_other:
        raise HistoryExpiredError(
            f"table {table.name!r} is not the table that this query started with: that table was dropped or renamed, "
            "so the checkpoint does not apply. Start a new query with a new checkpoint; without "
            "startingTimestamp it begins with all present rows"
        )


def _check_moment(offset: Mapping[str, Any], published: int, name: str) -> int:
    """Return the timestamp of an offset.

    Raises HistoryExpiredError if the timestamp is after the store's newest moment, because the
    store was then restored from an older copy. Raises InvalidArgumentError if Nyala did not write
    the offset.
    """
    moment = offset.get("timestamp")
    if not isinstance(moment, int) or isinstance(moment, bool) or moment < 0:
        raise InvalidArgumentError(
            f"the checkpoint's offset {dict(offset)!r} has no timestamp, so it is not from a Nyala query: start a new "
            "query with a new checkpoint"
        )
    if moment > max(published, TIMESTAMP_ZERO):
        raise HistoryExpiredError(
            f"the query has read table {name!r} up to {moment}, but the store ends at {published}: the store was "
            "restored from an older copy, which lacks the later changes. Start a new query with a new checkpoint; "
            "without startingTimestamp it begins with all present rows"
        )
    return moment


def _moment(table: Table, moment: int | str, option: str) -> int:
    """Return the timestamp of a moment. option: the option that has the moment, for error messages."""
    with errors_in_options(option):
        if option == STARTING:  # may be before the table's creation
            return table._database._view_at(moment)[1]
        return table.at(moment).timestamp


def change_schema(options: ChangeOptions) -> pa.Schema:
    """Return the schema of the change feed, with the table's columns at the moment `options.end`.

    If `options.end` is None, the feed has the table's present columns.
    The schema's metadata lists the range partitions that were dropped since `options.start`.
    """
    with open_read_only(options.address) as db:
        table = db.table(options.table)
        until = db.now() if options.end is None else _moment(table, options.end, ENDING)
        feed = _feed(db, options, until, until, "at")
        if options.start is not None:
            # If the start has expired, a query can still continue from its checkpoint.
            with contextlib.suppress(HistoryExpiredError):
                feed = _feed(db, options, min(_moment(table, options.start, STARTING), until), until, "at")
        return feed.schema


def plan_changes(
    db: Database,
    options: ChangeOptions,
    schema: StructType,
    since: int,
    until: int,
    seen: SchemaOf = "current",
    cores: int | None = None,
    offsets: Sequence[Mapping[str, Any]] = (),
) -> list[InputPartition]:
    """Return the Spark partitions of a read of the changes in (since, until].

    If `since` is 0, the read has all rows at `until`, as inserts.

    schema:  Spark's schema of the read.
    seen:    which columns to return: "current" for the present ones, "at" for those at `until`.
    cores:   as in `partition_count`.
    offsets: the offsets of a stream, which identify its table.

    Raises HistoryExpiredError if `since` is older than the table's history, or if the offsets
    belong to another table. Raises ColumnNotFoundError or SchemaError if the table does not have
    the columns of `schema`.
    """
    lease = lease_of_version(options.address, db._view_at(None)[0].version, options.lease_s)
    table = db._view_at(None)[0].table(options.table)
    for offset in offsets:  # before `_feed`, which fails for timestamps before this table's creation
        _check_table(table, offset)
    feed = _feed(db, options, until if since == _WHOLE_TABLE else since, until, seen)
    root, table = feed._root_and_table()
    check_schema(schema, options.table, feed.schema)
    names = schema.fieldNames()
    if since == _WHOLE_TABLE:
        columns = tuple(column for column in feed._spec.columns if column.name in names)
        spec = ScanSpec(table.schema, columns, until, without_dropped=True)
        count = options.partitions or partition_count(planned_rows(table, spec), len(columns), cores)
        groups = pack(make_tokens(options.path, table, spec, count), count)
        del root
        return _partitions(options.address, lease, groups, until)
    if since >= until:
        return _partitions(options.address, lease, [[]], None)
    # Without `partition_count`, because the number of changes in files is not known in advance.
    count = options.partitions or PARTITIONS_PER_CORE * (cores or os.cpu_count() or 1)
    items = make_change_tokens(options.path, table, feed._spec)
    kept = [batch.select(list(names)) for batch in changes_in_memory(table, feed._spec)]
    del root
    if kept:
        rows = pa.Table.from_batches(kept)
        step = max(_PIECE_ROWS, -(-rows.num_rows // count))
        items += [rows_token(rows.slice(at, step).combine_chunks()) for at in range(0, rows.num_rows, step)]
    count = max(1, min(count, len(items)))
    return _partitions(options.address, lease, [items[number::count] for number in range(count)], None)


def _partitions(
    address: Address, lease: str, groups: Sequence[Sequence[bytes]], inserted_at: int | None
) -> list[InputPartition]:
    return [ChangePartition(group, lease, inserted_at) for group in store_tokens(address, lease, groups)]


def read_changes(
    partition: InputPartition, options: ChangeOptions, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Read the rows of one partition, in exactly `schema`. Runs in a task on an executor."""
    assert isinstance(partition, ChangePartition)
    begin_task()
    keep = HeldLease(options.address, partition.lease, options.lease_s).keeper()
    tablet = change_token.tablet_of if partition.inserted_at is None else tablet_of
    with errors_naming(f"table {options.table!r}"):
        for stored in partition.tokens:
            keep()
            item = load_token(stored, options.address)
            try:
                for batch in _read_item(item, partition.inserted_at, options.address.env):
                    yield conform(batch, schema)
                    keep()
            except Error as error:
                add_place(error, place_text(options.table, tablet(item)))
                raise


def _read_item(item: bytes, inserted_at: int | None, env: Env) -> Iterator[pa.RecordBatch]:
    """Yield the changes that the token `item` describes.

    inserted_at: None if the token is of a change feed. Otherwise it is of a scan, and its rows are
    returned as inserts at this timestamp.
    """
    if inserted_at is not None:
        for batch in read_token(item, env=env):
            marks = [
                pa.repeat("insert", batch.num_rows),
                *commit_columns(np.full(batch.num_rows, inserted_at)),
            ]
            yield pa.RecordBatch.from_arrays(
                [*batch.columns, *marks], names=[*batch.schema.names, *FEED_COLUMNS]
            )
    else:
        yield from read_change_token(item, env)


class NyalaChangeReader(DataSourceReader):
    """The reader of `spark.read` with the option `changes`: the changes between two moments."""

    def __init__(self, options: ChangeOptions, schema: StructType, cores: int | None = None) -> None:
        """cores: the session's number of cores, None if unknown."""
        self._options = options
        self._schema = schema
        self._cores = cores

    @errors_in_options()
    def partitions(self) -> list[InputPartition]:
        options = self._options
        with errors_naming(f"table {options.table!r}"), open_read_only(options.address) as db:
            now = db.now()
            table = db.table(options.table)
            since = (
                now
                if options.from_now
                else _WHOLE_TABLE
                if options.start is None
                else _moment(table, options.start, STARTING)
            )
            until = now if options.end is None else _moment(table, options.end, ENDING)
            return plan_changes(db, options, self._schema, since, until, "at", self._cores)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_changes(partition, self._options, arrow_schema(self._schema))


def next_end(
    published: int,
    start: int,
    memory_from: int | None,
    moments: np.ndarray,
    counts: np.ndarray,
    max_rows: int | None,
) -> int:
    """Return the last timestamp of a micro-batch that begins after `start`.

    published:       the newest timestamp in the store.
    memory_from:     the timestamp of the oldest change that is only in memory. None: all changes
                     are in files.
    moments, counts: the timestamps in (start, published] with changes, and the number of changed
                     rows of each.
    max_rows:        the option maxRowsPerTrigger, or None.
    """
    end = published
    if (
        memory_from is not None
        and start < memory_from - 1 < end
        and len(moments)
        and moments[0] < memory_from
    ):
        end = memory_from - 1
    if max_rows is not None and len(moments):
        inside = moments <= end
        sums = np.cumsum(counts[inside])
        if len(sums) and sums[-1] > max_rows:
            # The last moment up to which the rows are within the limit, but at least the first moment.
            last = max(int(np.searchsorted(sums, max_rows, side="right")) - 1, 0)
            end = int(moments[last])
    return max(end, start)


class NyalaChangeStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of `spark.readStream`: plans micro-batches, and reads them in Spark's tasks.

    During a query, one object plans in a Python process on the driver's machine. Tasks get pickled
    copies of it.
    """

    def __init__(self, options: ChangeOptions, schema: StructType, cores: int | None = None) -> None:
        """cores: the session's number of cores, None if unknown."""
        self._options = options
        self._schema = schema
        self._cores = cores
        self._target: int | None = None
        self._open: Database | None = None
        self._leases: list[tuple[int, str]] = []

    def __getstate__(self) -> dict[str, Any]:
        return {
            "_options": self._options,
            "_schema": self._schema,
            "_cores": self._cores,
            "_target": self._target,
            "_open": None,
            "_leases": [],
        }

    @property
    def _db(self) -> Database:
        if self._open is None:
            self._open = open_read_only(self._options.address)
        return self._open

    def getDefaultReadLimit(self) -> ReadLimit:
        rows = self._options.max_rows
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._db.now()

    def initialOffset(self) -> dict[str, Any]:
        options = self._options
        table = self._db.table(options.table)
        if options.from_now:
            since = self._db.now()
        else:
            since = _WHOLE_TABLE if options.start is None else _moment(table, options.start, STARTING)
        _, state, _ = table._view(None)
        return {"timestamp": since, "table": _identity(state)}

    @errors_in_options()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        published = self._db.now()
        now = published if self._target is None else self._target
        since = _check_moment(start, published, self._options.table)
        _, state, _ = self._db.table(self._options.table)._view(None)
        _check_table(state, start)
        if since == _WHOLE_TABLE:
            return {"timestamp": max(now, TIMESTAMP_ZERO), "table": _identity(state)}
        if since >= now:
            return start
        feed = _feed(self._db, dataclasses.replace(self._options, columns=()), since, now)
        root, table = feed._root_and_table()
        _check_table(table, start)
        with errors_naming(f"table {self._options.table!r}"):
            moments, counts = diff_records.change_counts(table, feed._spec)
        oldest = min(
            (stamp for tablet in table.tablets if (stamp := tablet.memory_timestamp_min()) is not None),
            default=None,
        )
        del root
        if not len(moments):
            return start  # only other tables changed, so no micro-batch is needed
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        end: dict[str, Any] = {
            "timestamp": next_end(now, since, oldest, moments, counts, rows),
            "table": _identity(table),
        }
        for kind, ranges in (
            ("dropped_ranges", feed.dropped_ranges),
            ("restored_ranges", feed.restored_ranges),
        ):
            inside = [
                dataclasses.asdict(each) for each in ranges if since < each.timestamp <= end["timestamp"]
            ]
            end |= {kind: inside} if inside else {}
        return end

    def reportLatestOffset(self) -> dict[str, int] | None:
        return {"timestamp": self._db.now()}

    @errors_in_options()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        published = self._db.now()
        since, until = (_check_moment(offset, published, self._options.table) for offset in (start, end))
        _exit_on_sigterm()
        try:
            with errors_naming(f"table {self._options.table!r}"):
                made = plan_changes(
                    self._db,
                    self._options,
                    self._schema,
                    since,
                    until,
                    cores=self._cores,
                    offsets=(start, end),
                )
        except (ColumnNotFoundError, SchemaError) as error:
            raise type(error)(
                f"{error}. The table was altered after this query started: restart the query; it continues from its "
                "checkpoint with the present columns"
            ) from error
        lease = made[0].lease if isinstance(made[0], ChangePartition) else ""
        self._leases.append((until, lease))
        return made

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_changes(partition, self._options, arrow_schema(self._schema))

    def commit(self, end: dict[str, Any]) -> None:
        """End the leases of the micro-batches up to the offset `end`, which Spark has finished.

        end: {"timestamp": …}, the last moment that these micro-batches contain.
        """
        done = [lease for until, lease in self._leases if until <= end["timestamp"]]
        self._leases = [(until, lease) for until, lease in self._leases if until > end["timestamp"]]
        for lease in set(done) - {lease for _, lease in self._leases}:
            _end_lease(self._options.address, lease)

    def stop(self) -> None:
        for _, lease in self._leases:
            _end_lease(self._options.address, lease)
        self._leases = []
        if self._open is not None:
            self._open.close()
            self._open = None


def _exit_on_sigterm() -> None:
    """Let SIGTERM raise SystemExit in this process, so that PySpark calls `stop`."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _exit)


def _exit(number: int, frame: object) -> None:
    del frame
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Spark sends the signal twice
    sys.exit(128 + number)


def _end_lease(address: Address, lease: str) -> None:
    # `lease_of_version` may still have this name in its cache. It then detects that the lease has ended.
    with contextlib.suppress(Error):
        open_job_lease(address.env, address.path, lease).release()
