"""`Table`: writes, reads, alters and maintains a table.

    table.upsert(df)                                  one atomic batch, durable when it returns
    table.scan(where="host = 'a'").to_polars()        one snapshot
    table.get(("a", 5))                               one row

Every call of a write method is one atomic batch with one timestamp, whatever its size. The exception is
a `pyarrow.RecordBatchReader`: each of its record batches is an atomic batch of its own, so that a call
needs little memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from nyala.api.readable import SchemaOf, TableView, since_after_until, with_schema_of
from nyala.api.writable import WritableTable
from nyala.errors import InvalidArgumentError, bounded, counted
from nyala.mvcc.timestamp import naive_note, parse_at
from nyala.partition.describe import describe
from nyala.presentation.previews import html_preview
from nyala.presentation.progress import CompactionProgress, Progress, progress_function
from nyala.schema.sizes import seconds_of
from nyala.tablet.compaction.measurement import dead_rows_of, tag_bytes
from nyala.tablet.scan import read_path
from nyala.tablet.state.history import check_created, check_readable, oldest_readable
from nyala.tablet.state.messages import check_message
from nyala.tablet.state.result import WriteResult
from nyala.tablet.state.root import Root, TableState
from nyala.tablet.write.where_writes import Select
from nyala.tablet.write.write_path import Request

# Methods import the modules that only they need, so that a program starts quickly.
if TYPE_CHECKING:
    from nyala.api.alter import Alteration
    from nyala.api.database import Database
    from nyala.api.description import TableDescription
    from nyala.api.results import (
        ColumnStats,
        CompactionResult,
        FlushResult,
        PurgeResult,
        PurgeStatus,
        TableStats,
        TabletStats,
        VacuumResult,
    )
    from nyala.api.types import DataLike, KeyLike, Moment
    from nyala.handover.remote_writer import Writer
    from nyala.partition.levels import HashSpec, RangeSpec
    from nyala.schema.schema import ColumnSpec
    from nyala.schema.types import ColumnType

_WAIT_MAX_S: Final = 365 * 86_400.0


class Table(WritableTable):
    """A table of an open database, returned by `db["name"]`. Creating the object reads nothing."""

    def __init__(self, database: Database, name: str) -> None:
        self._database = database
        self._name = name

    # ---------------------------------------------------------------------------------------- write

    def restore(self, to: Moment, *, message: str | None = None) -> WriteResult:
        """Bring the table back to its state at the moment `to`, by one new batch.

        The batch deletes rows that were inserted since, inserts rows that were deleted, and
        restores changed values. It does not write unchanged rows. The state before the restore
        stays readable.

        Parameters
        ----------
        to
            The moment, as in `scan`.
        message
            A text about the commit, as in `insert`.

        Returns
        -------
        WriteResult
            The timestamp and the counts of the batch.

        Raises
        ------
        InvalidArgumentError
            `to` is in the future, or the call is inside a batch or transaction.
        HistoryExpiredError
            `to` is older than the table's history.
        StorageError
            The store cannot write.

        Examples
        --------
        >>> before = db.now()
        >>> metrics.delete(where="TRUE").deleted
        3
        >>> metrics.restore(to=before).inserted
        3
        """
        writer = self._writer_outside_blocks("restore(…)", "restore() after the block")
        to = self._database._without_tag(to, "to")
        parse_at(to, name="to")  # None means now in a scan, and nothing here
        table_id = self._database._root().table(self._name).id
        _, table, moment = self._view(to, name="to", table_id=table_id)
        return writer.restore(table.id, moment, check_message(message))

    def _writer_outside_blocks(self, call: str, instead: str) -> Writer:
        """Return the writer, and check that this thread is not inside a batch or transaction.

        call: the method of this table that needs the writer, such as "restore(…)", for the message.
        instead: what the message tells the user to call in a batch in place of this method.
        Raises: ReadOnlyError; InvalidArgumentError inside a batch or transaction.
        """
        writer = self._database._writing()
        self._database._open.refuse_in_block(f"{self._name}.{call}", instead)
        return writer

    def _check_call(self, call: str, instead: str) -> None:
        self._writer_outside_blocks(call, instead)

    def _commit(self, request: Request, collect: bool, message: str | None) -> WriteResult:
        return self._database._writing().write([request], collect=collect, message=message)[0]

    def _write_selected(
        self, operation: str, select: Select, collect: bool, message: str | None
    ) -> WriteResult:
        return self._database._writing().write_selected(
            self._name, operation, select, collect=collect, message=message
        )

    # ---------------------------------------------------------------------------------------- read

    def _view(
        self, at: Any, schema: SchemaOf | None = None, name: str = "at", table_id: int | None = None
    ) -> tuple[Root, TableState, int]:
        """Return (root, table, snapshot): see `ReadableTable._view`.

        name: the argument that has the moment, for errors.
        table_id: the table's id, if known, because several tables may have had this name.
        """
        root, snapshot, published = self._database._view_at(at, name)
        table = None if table_id is None else root.any_table(table_id)
        if table is None:
            table = root.table(self._name) if at is None else root.table_at(self._name, snapshot)
        if at is not None:
            now_us = self._database._store.env.clock.now_us()
            check_readable(table.entry, snapshot, published, now_us, naive_note(at))
            if name != "since":  # a lower bound may be before the table's creation
                check_created(table.entry, snapshot, published, naive_note(at))
        return root, with_schema_of(table, snapshot, schema or "at"), snapshot

    def _interval(
        self, since: Any, until: Any, schema: SchemaOf | None = None
    ) -> tuple[Root, TableState, int, int]:
        until = self._database._without_tag(until, "until")
        since = self._database._without_tag(since, "since")
        root, table, upper = self._view(until, schema, name="until")
        if since is None:
            oldest = oldest_readable(table.entry, upper, self._database._store.env.clock.now_us())
            return root, table, min(oldest, upper), upper
        # Take the root of this later view, which has everything that was readable in the earlier one.
        root, _, lower = self._view(since, name="since", table_id=table.id)
        if until is None:
            upper = max(lower, upper)
        elif (lower_given := parse_at(since)) > (end := max(parse_at(until), upper)):
            raise InvalidArgumentError(since_after_until(lower_given, end))
        found = root.any_table(table.id) or root.table(self._name)
        return root, with_schema_of(found, upper, schema or "at"), min(lower, upper), upper

    def at(self, at: Moment, schema: SchemaOf = "at") -> TableView:
        """Return a read-only view of the table at a moment.

        Parameters
        ----------
        at
            A timestamp, datetime, ISO text, tag or `WriteResult`.
        schema
            `"at"`: the view has the columns of that moment. `"current"`: the present ones.

        Raises
        ------
        InvalidArgumentError
            `at` is in the future, or is not a moment.
        HistoryExpiredError
            `at` is older than the table's history.
        TableNotFoundError
            The table did not exist at that moment.

        Examples
        --------
        >>> before = db.now()
        >>> metrics.delete(("b", 1)).deleted
        1
        >>> metrics.at(before)["b", 1]["value"]
        3.0
        """
        at = self._database._without_tag(at)
        parse_at(at)  # None means now in a scan, and nothing here
        root, _, snapshot = self._view(at, schema=schema)
        return TableView(self._database, self._name, root, snapshot, schema)

    # ---------------------------------------------------------------------------------------- alter

    def alter(self) -> Alteration:
        """Change columns, range partitions, name or comment, all or nothing: see `Alteration`.

        If the table is renamed, this object continues with the new name.

        Examples
        --------
        >>> with metrics.alter() as a:
        ...     a.add_column("unit", "string", default="ms")
        ...     a.rename_column("value", "reading")
        >>> metrics.columns
        ['host', 'time', 'reading', 'unit']
        """
        from nyala.api.alter import Alteration

        self._database._changing(f"{self._name}.alter()")
        return Alteration(self._database, self)

    def add_column(
        self,
        name: str,
        type: str | pa.DataType | ColumnType | ColumnSpec,
        nullable: bool = True,
        default: Any = None,
        **options: Any,
    ) -> None:
        """Add one column after the others; arguments as in `Alteration.add_column`.

        Examples
        --------
        >>> metrics.add_column("unit", "string", default="ms")
        >>> metrics.columns
        ['host', 'time', 'value', 'unit']
        """
        with self.alter() as steps:
            steps.add_column(name, type, nullable, default, **options)

    def drop_column(self, name: str) -> None:
        """Drop one column that is not part of the key; see `Alteration.drop_column`."""
        with self.alter() as steps:
            steps.drop_column(name)

    def rename_column(self, old: str, new: str) -> None:
        """Rename one column; see `Alteration.rename_column`."""
        with self.alter() as steps:
            steps.rename_column(old, new)

    def repartition(self, partition_by: Sequence[HashSpec | RangeSpec] | HashSpec | RangeSpec) -> None:
        """Rewrite all rows into other partitions, and switch to them at one moment.

        Reads and writes can continue during the call; writes wait only for the switch. The switch
        removes the table's history: reads of earlier moments raise `HistoryExpiredError`.

        Parameters
        ----------
        partition_by
            As in `Database.create_table`; `()`: one tablet.

        Raises
        ------
        NoPartitionError
            The new partitions do not cover a row; nothing changed.
        InvalidArgumentError, StorageError
            The partitions are invalid, or the store cannot write; nothing changed.
        """
        from nyala.partition.levels import build_partitions

        writer = self._database._changing(f"{self._name}.repartition(…)")
        writer.check_writable()
        table = self._database._root().table(self._name)
        writer.repartition(table.id, *build_partitions(partition_by, table.schema, table.limits))

    # ---------------------------------------------------------------------------------------- maintain

    def flush(self) -> FlushResult:
        """Write the table's rows and changes in memory to files. Background threads do this by themselves, too.

        Returns
        -------
        FlushResult
            The files and rows that were written.
        """
        from nyala.api.results import FlushResult

        return FlushResult(**self._database._writing().flush(self._name))

    def compact(self, *, progress: bool | Progress = False) -> CompactionResult:
        """Flush and compact until no rowsets overlap and all changes are merged into the base data.

        Reads and writes can continue during the call; rows that they write may be left for the next
        compaction. Background threads compact by themselves where that saves work for reads.
        Rowsets that a running Spark job needs are left out, and the logger `nyala.compaction` names
        the job.

        Parameters
        ----------
        progress
            `True` prints progress. A function is called with two numbers, (done, total), in which
            each compaction counts as 100. If another process is the writer, the function is called
            only at the end.

        Returns
        -------
        CompactionResult
            The number and the bytes of the rewritten rowsets.

        Raises
        ------
        StorageError, CorruptionError
            The compaction failed. The part that was finished before is valid, and stays.
        """
        from nyala.api.results import CompactionResult

        show = progress_function(
            progress, lambda done, total: f"compaction of {self._name}: {100 * done // (total or 1)} %"
        )
        return CompactionResult(**self._database._writing().compact(self._name, CompactionProgress(show)))

    def vacuum(self, dry_run: bool = False) -> VacuumResult:
        """Free the disk space of expired history, dead rows, old log files, and files that nobody needs.

        Parameters
        ----------
        dry_run
            Change nothing, and return an estimate of the space that would be freed.

        Returns
        -------
        VacuumResult
            The files and bytes that were freed.

        Raises
        ------
        StorageError, CorruptionError
            The call failed. The part that was finished before is valid, and stays.
        """
        from nyala.api.results import VacuumResult

        return VacuumResult(**self._database._writing().vacuum(self._name, dry_run))

    def purge(self, keys: DataLike | KeyLike, *, wait: float = 0, message: str | None = None) -> PurgeResult:
        """Erase rows by key everywhere in the store: in files, history, memory and log.

        The call first deletes the rows at one moment. Then it rewrites every file that contains one
        of the keys, and leaves these keys out. Reads and writes can continue during the call. After
        the call no read finds the rows, even at an earlier moment. The change feed has none of
        their changes up to the deletion.

        Parameters
        ----------
        keys
            One key as in `get`, a list of keys, or the key columns in any form that `insert` takes.
            Keys that have no row now are also erased from the history.
        wait
            Seconds to wait at the end for scans and readers that still use replaced files. Default:
            do not wait; `purge_status()` returns later whether these files were removed.
        message
            A text about the commit that deletes the rows.

        Returns
        -------
        PurgeResult
            `done`: whether no byte of the rows is left. `status`: the files that are left, and the
            readers that need them.

        Raises
        ------
        ReadOnlyError
            The store was opened for reading only.
        InvalidArgumentError
            A snapshot or a transaction of this process is open, or a Spark job changes the rows.
            Nothing was written.
        InvalidValueError
            A key is invalid. Nothing was written.
        StorageError, CorruptionError
            The rows are deleted, but not yet erased: call `purge` again.

        Notes
        -----
        If the program is killed during the call, call `purge` again. The rows stay in other
        tables (dropped tables, copies and clones), in earlier backups, and in programs that read the
        change feed. docs/how-to/erase-a-persons-data.md has the whole list. The next backup of the
        table is full.

        Examples
        --------
        >>> result = metrics.purge([("a", 1), ("a", 2)])
        >>> result.deleted, result.done
        (2, True)
        >>> metrics.history(("a", 1)).num_rows
        0
        """
        from nyala.api.results import PurgeResult
        from nyala.tablet.purge import key_rows

        writer = self._database._writing()
        self._check_call("purge(…)", "purge() after the block")
        seconds = min(seconds_of("wait", wait), _WAIT_MAX_S)
        rows = key_rows(self._database._root().table(self._name), keys)
        self._database._open.refuse_beside_snapshot(f"table {self._name!r} cannot be purged")
        done = writer.purge(self._name, rows, seconds, check_message(message))
        left, clones = _purge_status(done.pop("remaining")), tuple(done.pop("clones"))
        return PurgeResult(**done, status=left, clones=clones)

    def purge_status(self) -> PurgeStatus:
        """Return how many files may still contain the purged rows.

        `purge` replaces the files that contain the rows. It cannot remove an old file while a scan
        or another process reads it. This call first removes the old files that nobody reads any more.

        Clones of the table are not checked. `PurgeResult.clones` names them. Each clone needs a
        `purge` of its own, even if it was dropped and can be brought back.

        Examples
        --------
        >>> metrics.purge_status().done
        True
        """
        writer = self._database._writing()
        self._database._root()  # in a process that shares the store: let go of the files of an older view
        return _purge_status(writer.purge_status(self._name))

    # ---------------------------------------------------------------------------------------- describe

    @property
    def description(self) -> TableDescription:
        """Columns, key, partitioning and history; `create_table(name, like=description)` makes an equal table.

        Cost: reads the footers of the columns.

        Examples
        --------
        >>> [(column.name, column.type) for column in metrics.description.columns]
        [('host', 'string'), ('time', 'int64'), ('value', 'double')]
        """
        from nyala.api.description import describe_table

        return describe_table(self._view(None)[1])

    def tablets(self) -> list[TabletStats]:
        """Return the tablets with their partitions and sizes."""
        from nyala.api.results import TabletStats

        _, table, snapshot = self._view(None)
        found = []
        for ordinal, tablet in enumerate(table.tablets):
            units = [
                read_path.ScanUnit(r, ordinal, 0, r.row_count) for r in tablet.all_rowsets() if r.row_count
            ]
            spec = read_path.ScanSpec(table.schema, (), snapshot)
            found.append(
                TabletStats(
                    id=tablet.id,
                    partition=describe(tablet.partition, table.entry.partition_schema, table.schema),
                    rowsets=len(tablet.rowsets),
                    rows=read_path.count(units, spec, read_path.ScanCounters()),
                    bytes=sum(rowset.size_bytes for rowset in tablet.rowsets),
                    memory_bytes=tablet.memory_bytes(),
                )
            )
        return found

    def stats(self) -> TableStats:
        """Return the number of rows, the size on disk and in memory, and the size of the history.

        Cost: reads the deletions, to count the rows.

        Examples
        --------
        >>> metrics.stats().rows
        3
        """
        from nyala.api.results import TableStats

        root, table, snapshot = self._view(None)
        rowsets = [rowset for tablet in table.tablets for rowset in tablet.rowsets]
        base = sum(rowset.base_bytes for rowset in rowsets)
        redo = sum(file.size_bytes for rowset in rowsets for file in rowset.redo)
        undo = sum(file.size_bytes for rowset in rowsets for file in rowset.undo)
        spec, counters = read_path.ScanSpec(table.schema, (), snapshot), read_path.ScanCounters()
        rows = read_path.count(read_path.plan(table, spec, counters), spec, counters)
        del root
        dead, dead_bytes = dead_rows_of(rowsets)
        now_us = self._database._store.env.clock.now_us()
        return TableStats(
            rows=rows,
            bytes=base + redo + undo,
            base_bytes=base,
            redo_bytes=redo,
            undo_bytes=undo,
            memory_bytes=sum(tablet.memory_bytes() for tablet in table.tablets),
            tablets=len(table.tablets),
            rowsets=len(rowsets),
            redo_files=sum(len(rowset.redo) for rowset in rowsets),
            dead_rows=dead,
            history_bytes=undo + dead_bytes,
            tag_bytes=tag_bytes(table, snapshot, now_us),
            oldest_readable=oldest_readable(table.entry, snapshot, now_us),
            timestamp=snapshot,
        )

    def column_stats(self) -> list[ColumnStats]:
        """Return the encodings and the sizes of the columns in data files.

        Rows in memory are not included: call `flush()` first. `stats().base_bytes` is larger,
        because it includes encoded keys, bloom filters and footers.

        Raises
        ------
        CorruptionError
            A footer is damaged.

        Notes
        -----
        Cost: reads footers, no rows.

        Examples
        --------
        >>> metrics.flush().rows
        3
        >>> [(column.name, column.rows) for column in metrics.column_stats()]
        [('host', 3), ('time', 3), ('value', 3)]
        """
        from nyala.api.results import ColumnStats
        from nyala.tablet.scan.column_stats import column_stats

        _, table, _ = self._view(None)
        rowsets = (rowset for tablet in table.tablets for rowset in tablet.rowsets)
        return [ColumnStats(**found) for found in column_stats(table.schema.columns, rowsets)]

    def __repr__(self) -> str:
        if self._database._handle.closed or self._name not in self._database:
            return f"Table {self._name} (closed or dropped)"
        _, table, _ = self._view(None)
        key = ", ".join(table.schema.key_names)
        columns = ", ".join(f"{column.name} {column.type}" for column in table.schema.columns)
        return bounded(f"Table {self._name}: {columns}; key ({key}); {counted(len(table.tablets), 'tablet')}")

    def _repr_html_(self) -> str:
        return html_preview(repr(self), self.head)


def _purge_status(fields: dict[str, Any]) -> PurgeStatus:
    from nyala.api.results import PurgeStatus

    return PurgeStatus(**{**fields, "holders": tuple(fields["holders"])})
