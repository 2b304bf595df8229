"""A table: write to it, read from it, look after it.

    table.upsert(df)                                  one atomic batch, durable when it returns
    table.scan(where="host = 'a'").to_polars()        one snapshot
    table.get({"host": "a", "time": 5})               one row

Every call of a write method is one atomic batch with one timestamp, whatever its size. Only a
`pyarrow.RecordBatchReader` is taken batch by batch, in bounded memory: then each record batch is an atomic
batch of its own.

Source: docs/how-to/data-in-and-out.md; docs/how-to/expressions.md.
"""

from __future__ import annotations

import contextlib
import html
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, Self

import pyarrow as pa

from nyala.api.scan import Scan, not_indexed, not_looped_over, resolve_columns
from nyala.errors import InvalidArgumentError, ReadOnlyError, WriteError, bounded
from nyala.mvcc.timestamp import naive_note, parse_at, to_datetime
from nyala.partition.describe import describe
from nyala.presentation.previews import preview, told
from nyala.presentation.progress import Progress, Work, teller
from nyala.presentation.unknown_methods import no_attribute, not_pickled
from nyala.schema.expressions.parser import Parameters
from nyala.schema.predicates.predicate import parse_where
from nyala.tablet.compaction.measurement import dead_rows_of
from nyala.tablet.scan import read_path
from nyala.tablet.scan.column_stats import column_stats
from nyala.tablet.state.history import check_created, check_readable, oldest_readable
from nyala.tablet.state.result import WriteResult
from nyala.tablet.state.root import Root, TableState
from nyala.tablet.write import where_writes
from nyala.tablet.write.write_path import Request, write

# What keeps a store in order, and history, is imported by the methods that use it.
if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from nyala.api.alter import Alteration
    from nyala.api.change_feed import ChangeFeed
    from nyala.api.database import Database
    from nyala.partition.levels import HashSpec, RangeSpec
    from nyala.tablet.store import Store

Errors = Literal["raise", "collect"]
SchemaOf = Literal["at", "current"]
_OF_TABLES_ONLY: Final = frozenset(
    (
        "insert",
        "upsert",
        "update",
        "delete",
        "append",
        "flush",
        "compact",
        "vacuum",
        "restore",
        "alter",
        "repartition",
    )
)


class _Readable:
    """What a table, a table at a moment and a table of a snapshot have in common: reading."""

    _database: Database
    _name: str

    def _view(self, at: Any, schema: SchemaOf | None = None) -> tuple[Root, TableState, int]:
        """(root, the table with the schema that it is read with, snapshot)."""
        raise AssertionError("each kind of table says where it reads")

    @property
    def name(self) -> str:
        """The table's name."""
        return self._name

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema; key columns come first, in the key's order, and are not nullable."""
        return self._view(None)[1].schema.arrow_schema()

    @property
    def primary_key(self) -> list[str]:
        """Names of the key columns, in the key's order."""
        return [column.name for column in self._view(None)[1].schema.key_columns]

    def scan(
        self,
        columns: Sequence[str] | pa.Schema | None = None,
        where: Any = None,
        at: Any = None,
        limit: int | None = None,
        order_by_key: bool = False,
        schema: SchemaOf | None = None,
        *,
        params: Parameters = None,
    ) -> Scan:
        """The rows at one moment: see `Scan`.

        columns: names, in the order wanted; None: all; or a pyarrow.Schema of them, whose types may be wider than the
                 columns' own, or dictionaries as `Scan.with_dictionaries` gives them, and nullable where they are not.
        where:   text, `nyala.col(…)`, `nyala.expr(…)`, or a pyarrow expression; may name columns that are not in
                 `columns`. docs/how-to/expressions.md has the language.
        params:  values for `?` (a list), or for `:name` and `$name` (a dict), in the text of `where`.
        at:      a timestamp, datetime, ISO text or WriteResult; None: now. A moment later than what is published is
                 answered at what is published: `scan.timestamp` says which.
        schema:  the table's of that moment ("at", as None), or the present one ("current"): then a column that came
                 later has its default, and one that went is not there.
        Raises: ColumnNotFoundError, InvalidArgumentError (a moment in the future, a predicate that does not
        parse), SchemaError (types that a scan does not give); HistoryExpiredError for a moment that is older than the
        table's history, or that needs a range partition dropped since; TableNotFoundError for a moment before the table
        was created.
        """
        root, table, snapshot = self._view(at, schema=schema)
        where = parse_where(where, params)
        return self._database._make_scan(root, table, snapshot, columns, where, limit, order_by_key)

    def get(
        self, key: Mapping[str, Any], columns: Sequence[str] | None = None, at: Any = None
    ) -> dict[str, Any] | None:
        """One row by its whole key, as a dict; None when there is none.

        A time outside the years 1 to 9999, which no datetime holds, is an int of microseconds since the epoch.
        Raises: InvalidArgumentError, ColumnNotFoundError.
        """
        root, table, snapshot = self._view(at)
        _check_key(key, table.schema.key_names, "get")
        if isinstance(columns, str):
            resolve_columns(table, columns)  # which says what to write
        found = where_writes.look_up_row(table, key, columns, snapshot)
        del root
        return found

    def get_many(self, keys: Any, columns: Sequence[str] | None = None, at: Any = None) -> pa.Table:
        """Rows by key, in the order of the keys; missing ones left out; a key given twice comes twice.

        More text of a column than an Arrow array holds, 2 GiB, comes in several chunks.
        keys: the key columns, in any form that a write takes.
        """
        root, table, snapshot = self._view(at)
        if isinstance(columns, str):
            resolve_columns(table, columns)
        found = where_writes.look_up(table, keys, columns, snapshot)
        del root
        return found

    def _interval(
        self, since: Any, until: Any, schema: SchemaOf | None = None
    ) -> tuple[Root, TableState, int, int]:
        """(root, table, since, until) for changes; since None: as far back as can be read."""
        raise AssertionError("each kind of table says where it reads")

    def changes(
        self,
        since: Any,
        until: Any = None,
        versions: Literal["net", "all"] = "net",
        columns: Sequence[str] | None = None,
        schema: SchemaOf | None = None,
    ) -> ChangeFeed:
        """The rows that changed after `since` and up to `until`: see `ChangeFeed`.

        since, until: what `at` takes; until None: now. versions: "net", one row per key that changed, with the values
        at `until`, in no order: delete and insert are an update, insert and delete are nothing, an update to the same
        value is there; or "all", every version of every row, with its values, by timestamp and then key.
        columns: which besides the key's; None: all. Who changes another column of a row is told as well.
        schema: the columns that the table had at `until` ("at", as None), or the present ones ("current").
        A `since` before the table's creation, such as 0, begins with its creation. An earlier table of the same name,
        which was dropped, is not part of the feed.
        Raises: InvalidArgumentError (since after until, a moment in the future), HistoryExpiredError (since is
        older than what can be read), TableNotFoundError (until is before the table's creation), ColumnNotFoundError.
        """
        if since is None:
            raise InvalidArgumentError(
                "changes takes the moment after which they begin: a timestamp, a datetime, ISO text or a WriteResult"
            )
        root, table, lower, upper = self._interval(since, until, schema)
        from nyala.tablet.changes.spec import make_change_spec

        spec = make_change_spec(table, lower, upper, versions, resolve_columns(table, columns))
        return self._database._make_change_feed(root, table, spec)

    def history(self, key: Mapping[str, Any], since: Any = None, until: Any = None) -> pa.Table:
        """Every version of one row, oldest first, as `changes(versions="all")` gives them; none of an unknown key.

        since None: from the oldest readable moment on. A row that was there by then comes first, as it stood; its
        `_change_type` and `_commit_timestamp`, which are older than that, are NULL.
        Raises: InvalidArgumentError, HistoryExpiredError; ColumnNotFoundError for a column that is not there.
        """
        _check_key(key, self.primary_key, "history")
        root, table, lower, upper = self._interval(since, until)
        from nyala.tablet.changes.spec import make_change_spec
        from nyala.tablet.changes.versions import versions_of_key

        spec = make_change_spec(table, lower, upper, "all", table.schema.columns)
        encoded, tablets = where_writes.read_keys(
            table, [dict(key)], "history", None if since is None else lower
        )
        found = versions_of_key(table, spec, encoded, int(tablets[0]), from_state=since is None)
        del root
        return found

    def count(self, where: Any = None, at: Any = None, *, params: Parameters = None) -> int:
        """How many rows. where, params: as of `scan`."""
        return self.scan(where=where, at=at, params=params).count()

    def __len__(self) -> int:
        return self.count()

    def head(self, n: int = 10) -> pa.Table:
        """The first `n` rows in key order."""
        return self.scan(order_by_key=True).head(n)

    def to_arrow(self) -> pa.Table:
        """All rows as an Arrow table."""
        return self.scan().to_arrow()

    def to_pandas(self, **options: Any) -> pd.DataFrame:
        """All rows as a pandas DataFrame; `options` go to `pyarrow.Table.to_pandas`."""
        return self.scan().to_pandas(**options)

    def to_polars(self) -> pl.DataFrame:
        """All rows as a polars DataFrame."""
        return self.scan().to_polars()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.scan().__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> Any:
        return self.schema.__arrow_c_schema__()

    def __iter__(self) -> NoReturn:
        raise TypeError(not_looped_over("a table", "table.scan()"))

    if not TYPE_CHECKING:

        def __getitem__(self, item: object) -> NoReturn:
            raise TypeError(not_indexed("a table", item, "table.scan()", f"table.scan([{item!r}])"))

        def __reduce__(self) -> NoReturn:
            raise not_pickled(self)

        def __copy__(self) -> Self:
            return self  # a handle: any number of threads may use it


class TableView(_Readable):
    """A table as it was, or is, at one moment; read-only. Made by `table.at(…)` and by `db.snapshot()`."""

    def __init__(
        self, database: Database, name: str, root: Root, snapshot: int, schema: SchemaOf = "at"
    ) -> None:
        self._database = database
        self._name = name
        self._root = root
        self._snapshot = snapshot
        self._schema_of: SchemaOf = schema

    @property
    def timestamp(self) -> int:
        """The moment."""
        return self._snapshot

    def _view(self, at: Any, schema: SchemaOf | None = None) -> tuple[Root, TableState, int]:
        if at is not None:
            raise InvalidArgumentError(
                f"this view of {self._name!r} is fixed at {self._snapshot}: ask the table itself for another moment"
            )
        self._database._handle.check_open()
        table = self._root.table(self._name)
        return self._root, _seen(table, self._snapshot, schema or self._schema_of), self._snapshot

    def _interval(
        self, since: Any, until: Any, schema: SchemaOf | None = None
    ) -> tuple[Root, TableState, int, int]:
        root, table, upper = self._view(until, schema)
        if since is None:
            return root, table, min(table.entry.history_start, upper), upper
        lower = parse_at(since, upper, "since")
        if lower > upper:
            raise InvalidArgumentError(_since_after_until(lower, upper))
        # The view keeps what it has: only what was thrown away before it was taken is not there.
        check_readable(table.entry, lower, 0, 0)
        return root, table, lower, upper

    def __getattr__(self, name: str) -> NoReturn:
        if name in _OF_TABLES_ONLY:
            raise ReadOnlyError(
                f"a view of {self._name!r} at a moment cannot be changed: use the table itself, "
                f"db[{self._name!r}].{name}()"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        return f"TableView {self._name} at {to_datetime(self._snapshot).isoformat()}"


class Table(_Readable):
    """A table of an open database. Cheap to make; holds nothing but its name."""

    def __init__(self, database: Database, name: str) -> None:
        self._database = database
        self._name = name

    # ---------------------------------------------------------------------------------------- write

    def insert(
        self,
        data: Any,
        on_conflict: Literal["error", "ignore"] = "error",
        errors: Errors = "raise",
        *,
        progress: bool | Progress = False,
    ) -> WriteResult:
        """New rows. A key that is taken is a row error `already-present`, or is passed over with
        `on_conflict="ignore"`.

        progress: True, or a function that is called with (rows done, None) after each record batch of a
                  `pyarrow.RecordBatchReader`; of other data, which are one batch, at their end. See
                  `presentation/progress.py`.
        Raises: DuplicateKeyError, InvalidValueError, NoPartitionError, WriteError (a mixture): nothing was
        written; ColumnNotFoundError, SchemaError; StorageError.
        """
        return self._write("insert", data, choice("on_conflict", on_conflict, "ignore"), errors, progress)

    append = insert

    def upsert(
        self, data: Any, errors: Errors = "raise", *, progress: bool | Progress = False
    ) -> WriteResult:
        """Insert what is new, update what is there. Of a row that is there, only the columns given are changed.

        progress: as of `insert`.
        """
        return self._write("upsert", data, False, errors, progress)

    def update(
        self,
        data: Any = None,
        on_missing: Literal["error", "ignore"] = "error",
        errors: Errors = "raise",
        *,
        set: Mapping[str, Any] | None = None,
        where: Any = None,
        params: Parameters = None,
        progress: bool | Progress = False,
    ) -> WriteResult:
        """Change columns of rows that are there: by key (`data`), or of all rows that `where` selects (`set`).

        `set` maps columns to values, or to expressions over the row: {"status": "done", "n": nyala.expr("n + 1")}.
        A str is always a value. where, params: as of `scan`.
        progress: of `data`, as of `insert`.
        Raises: KeyNotFoundError for a missing key, unless `on_missing="ignore"`.
        """
        ignore = choice("on_missing", on_missing, "ignore")
        if (data is None) == (set is None):
            either = "either data (keys and columns) or set={'column': value} with where="
            raise InvalidArgumentError(
                f"update takes {either}, and {'has neither' if data is None else 'not both'}"
            )
        if set is None:
            if where is not None or params is not None:
                raise InvalidArgumentError(
                    "update(data) finds its rows by key; where= goes with set=: update(set={'column': value}, where=…)"
                )
            return self._write("update", data, ignore, errors, progress)
        store = self._store_to_write("update(set=…)", "a write by key in the batch")
        where = parse_where(where, params)
        return where_writes.update_where(store, self._name, set, where, collect=_collect(errors))

    def delete(
        self,
        keys: Any = None,
        on_missing: Literal["error", "ignore"] = "error",
        errors: Errors = "raise",
        *,
        where: Any = None,
        params: Parameters = None,
        progress: bool | Progress = False,
    ) -> WriteResult:
        """Take rows away: by key (the key columns only), or all that `where` selects.

        where, params: as of `scan`.
        progress: of `keys`, as of `insert`.
        Raises: KeyNotFoundError for a missing key, unless `on_missing="ignore"`.
        """
        ignore = choice("on_missing", on_missing, "ignore")
        if isinstance(keys, str) and any(sign in keys for sign in " =<>"):
            raise InvalidArgumentError(
                f"delete takes keys; a condition is given with its name: delete(where={keys!r})"
            )
        if (keys is None) == (where is None):
            raise InvalidArgumentError(
                f"delete takes either keys or where=, and {'has neither' if keys is None else 'not both'}; "
                "where='TRUE' deletes all rows"
            )
        where = parse_where(where, params)
        if where is not None:
            store = self._store_to_write("delete(where=…)", "a write by key in the batch")
            return where_writes.delete_where(store, self._name, where)
        return self._write("delete", keys, ignore, errors, progress)

    def restore(self, to: Any) -> WriteResult:
        """Make the table as it was at `to`, as one new batch: rows that came since are deleted, rows that went are
        inserted again, values that changed are set back. What is as it was is not touched; nothing to do: zeros.

        The batch is a write like any other: what the table held before it stays readable, and so can be restored.
        Raises: InvalidArgumentError, HistoryExpiredError; StorageError.
        """
        store = self._store_to_write("restore(…)", "restore() after the block")
        parse_at(to, name="to")  # None, which is now to a scan, is no moment to go back to
        _, table, moment = self._view(to, name="to")
        from nyala.tablet.write.restore import restore

        return restore(store, table.id, moment)

    def _store_to_write(self, call: str, instead: str) -> Store:
        """The store. Raises: ReadOnlyError, and InvalidArgumentError inside `with db.batch()` (see `Batch`)."""
        store = self._database._writer()
        self._database._open.refuse_in_batch(f"{self._name}.{call}", instead)
        return store

    def _write(
        self, operation: str, data: Any, ignore: bool, errors: Errors, progress: bool | Progress = False
    ) -> WriteResult:
        store = self._store_to_write(f"{operation}(…)", f"b.{operation}({self._name!r}, …)")
        collect = _collect(errors)
        told = teller(progress, lambda done, total: f"{operation} into {self._name}: {done:,} rows")
        if not isinstance(data, pa.RecordBatchReader):
            result = write(store, [Request(self._name, operation, data, ignore)], collect=collect)[0]
            if told is not None:
                told(_rows_of(result), None)
            return result
        total: WriteResult | None = None
        done = 0
        try:
            for batch in data:
                result = write(store, [Request(self._name, operation, batch, ignore)], collect=collect)[0]
                total = result if total is None else _sum(total, result, done)
                done += batch.num_rows
                if told is not None:
                    told(done, None)
        except BaseException as error:  # also of the stream itself, and Ctrl-C
            with contextlib.suppress(AttributeError):
                error.applied = done  # type: ignore[attr-defined]
            if done and isinstance(error, WriteError):  # which says that nothing was written
                error.args = (
                    f"of a stream's record batch, after {done:,} rows that stay: {error}",
                    *error.args[1:],
                )
            raise
        return (
            total
            if total is not None
            else write(store, [Request(self._name, operation, data.schema.empty_table(), ignore)])[0]
        )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise no_attribute(self, name)

    # ---------------------------------------------------------------------------------------- read

    def _view(
        self, at: Any, schema: SchemaOf | None = None, name: str = "at"
    ) -> tuple[Root, TableState, int]:
        root, snapshot, published = self._database._view_at(at, name)
        table = root.table(self._name)
        if at is not None:
            now_us = self._database._store.env.clock.now_us()
            check_readable(table.entry, snapshot, published, now_us, naive_note(at))
            if name != "since":  # a lower bound: before its creation the table had no changes
                check_created(table.entry, snapshot, published, naive_note(at))
        return root, _seen(table, snapshot, schema or "at"), snapshot

    def scan(
        self,
        columns: Sequence[str] | pa.Schema | None = None,
        where: Any = None,
        at: Any = None,
        limit: int | None = None,
        order_by_key: bool = False,
        schema: SchemaOf | None = None,
        *,
        params: Parameters = None,
    ) -> Scan:
        scan = super().scan(columns, where, at, limit, order_by_key, schema, params=params)
        scan.check_readable()
        return scan

    scan.__doc__ = _Readable.scan.__doc__

    def _interval(
        self, since: Any, until: Any, schema: SchemaOf | None = None
    ) -> tuple[Root, TableState, int, int]:
        root, table, upper = self._view(until, schema, name="until")
        if since is None:
            oldest = oldest_readable(table.entry, upper, self._database._store.env.clock.now_us())
            return root, table, min(oldest, upper), upper
        # The later of two views: it has all that the earlier one saw published.
        root, table, lower = self._view(since, name="since")
        if until is None:
            upper = max(lower, upper)
        elif (asked := parse_at(since)) > (end := max(parse_at(until), upper)):
            raise InvalidArgumentError(_since_after_until(asked, end))
        return root, _seen(root.table(self._name), upper, schema or "at"), min(lower, upper), upper

    def at(self, at: Any, schema: SchemaOf = "at") -> TableView:
        """A read-only view of the table at a moment, with its schema of then, or ("current") the present one."""
        parse_at(at)  # None, which is now to a scan, is no moment here
        root, _, snapshot = self._view(at, schema=schema)
        return TableView(self._database, self._name, root, snapshot, schema)

    # ---------------------------------------------------------------------------------------- change

    def alter(self) -> Alteration:
        """Change the table's columns, range partitions, name or comment, all or nothing: see `Alteration`.

        `with table.alter() as a:`; this object follows when the table is renamed.
        """
        from nyala.api.alter import Alteration

        self._database._writer()
        return Alteration(self._database, self)

    def repartition(self, partition_by: Sequence[HashSpec | RangeSpec] | HashSpec | RangeSpec) -> None:
        """Cut the table in another way: all its rows are written anew, and swapped in at one moment.

        Others read and write meanwhile; a write waits only for the swap. **The history before it is not kept**: earlier
        moments raise HistoryExpiredError from then on. partition_by: as in `Database.create_table`; () for one tablet.
        Raises: NoPartitionError when a row has no place in the new partitions, InvalidArgumentError, StorageError:
                nothing changed.
        """
        from nyala.partition.levels import build_partitions
        from nyala.tablet.write.copying import repartition

        store = self._database._writer()
        store.check_writable()
        table = store.root.table(self._name)
        repartition(store, table.id, *build_partitions(partition_by, table.schema, table.limits))

    # ---------------------------------------------------------------------------------------- care

    def flush(self) -> None:
        """Write what the table has in memory to files. Happens by itself in the background as well."""
        store = self._database._writer()
        from nyala.tablet.flush.lifecycle import flush

        flush(store, {tablet.id for tablet in store.root.table(self._name).tablets})

    def compact(self, *, progress: bool | Progress = False) -> None:
        """Flush the table, and compact it until its rowsets do not overlap and no change waits to be brought in.

        Goes on beside writes and scans; with writers at work it ends with what was there when it was called. By itself
        the background does as much of it as pays. Rowsets that a running upsert of Spark's may have changes for are
        left out; where something was to be done to them, the logger `nyala.compaction` says whose they are.
        progress: True, or a function that is called with (done, total), in hundredths of the compactions that are to
                  be done. See `presentation/progress.py`.
        Raises: StorageError, CorruptionError: what was done up to then stays, and is right.
        """
        told = teller(
            progress, lambda done, total: f"compaction of {self._name}: {100 * done // (total or 1)} %"
        )
        work = Work(told)
        from nyala.tablet.manual_maintenance import compact_table

        compact_table(self._database._writer(), self._name, self._database._runner(work.rows), work.step)

    def vacuum(self, dry_run: bool = False) -> dict[str, Any]:
        """Give back the disk that only history out of reach, dead rows, the log and forgotten files take.

        dry_run: change nothing, and say about how much there is.
        Returns: `files` and `bytes` that went, `rowsets_rewritten`, `waiting_files` that scans or other processes still
                 read, `rowsets_left_out` of which something would go, and that running jobs may have changes for,
                 `oldest_readable`, `dry_run`.
        """
        from nyala.tablet.manual_maintenance import vacuum_table

        return vacuum_table(
            self._database._writer(), self._name, dry_run=dry_run, runner=self._database._runner()
        )

    def tablets(self) -> list[dict[str, Any]]:
        """A dict per tablet: id, partition as text, rowsets, rows, bytes, memory."""
        _, table, snapshot = self._view(None)
        out = []
        for ordinal, tablet in enumerate(table.tablets):
            units = [
                read_path.ScanUnit(r, ordinal, 0, r.row_count) for r in tablet.all_rowsets() if r.row_count
            ]
            spec = read_path.ScanSpec(table.schema, (), snapshot)
            out.append(
                {
                    "id": tablet.id,
                    "partition": describe(tablet.partition, table.entry.partition_schema, table.schema),
                    "rowsets": len(tablet.rowsets),
                    "rows": read_path.count(units, spec, read_path.ScanCounters()),
                    "bytes": sum(rowset.size_bytes for rowset in tablet.rowsets),
                    "memory": tablet.memory_bytes(),
                }
            )
        return out

    def stats(self) -> dict[str, Any]:
        """What the table takes and how it lies.

        rows; bytes on disk, of which base_bytes, redo_bytes and undo_bytes; memory_bytes; tablets, rowsets, redo_files;
        timestamp; oldest_readable (0: the table's whole life); dead_rows (deleted rows that are kept for their past);
        history_bytes: what the past costs on disk: UNDO, and the dead rows' part of the base.
        """
        root, table, snapshot = self._view(None)
        rowsets = [rowset for tablet in table.tablets for rowset in tablet.rowsets]
        base = sum(rowset.base_bytes for rowset in rowsets)
        redo = sum(file.size_bytes for rowset in rowsets for file in rowset.redo)
        undo = sum(file.size_bytes for rowset in rowsets for file in rowset.undo)
        rows = self._database._make_scan(root, table, snapshot, None, None, None, False).count()
        dead, dead_bytes = dead_rows_of(rowsets)
        return {
            "rows": rows,
            "bytes": base + redo + undo,
            "base_bytes": base,
            "redo_bytes": redo,
            "undo_bytes": undo,
            "memory_bytes": sum(tablet.memory_bytes() for tablet in table.tablets),
            "tablets": len(table.tablets),
            "rowsets": len(rowsets),
            "redo_files": sum(len(rowset.redo) for rowset in rowsets),
            "dead_rows": dead,
            "history_bytes": undo + dead_bytes,
            "oldest_readable": oldest_readable(
                table.entry, snapshot, self._database._store.env.clock.now_us()
            ),
            "timestamp": snapshot,
        }

    def column_stats(self) -> list[dict[str, Any]]:
        """How each column lies in files, and what it takes there: a dict per column.

        name, type; encoding, compression and block_size as they were asked for; stored_as: how many rows have which
        encoding, which `"auto"` chooses per file; rows and nulls in files: rows that were deleted since are among them,
        and a column that was added later has none in files older than it; bytes of base data. What is left of
        `stats()["base_bytes"]` finds rows: encoded keys, bloom filters, footers.
        What is in memory has no encoding yet: `flush()` first.
        Raises: CorruptionError. Cost: footers; no row is read.
        """
        _, table, _ = self._view(None)
        return column_stats(
            table.schema.columns, (rowset for tablet in table.tablets for rowset in tablet.rowsets)
        )

    @told
    def __repr__(self) -> str:
        _, table, snapshot = self._view(None)
        stats = self.stats()
        key = ", ".join(self.primary_key)
        size = (stats["bytes"] + stats["memory_bytes"]) / 1e6
        return bounded(
            f"Table {self._name}: {len(table.schema.columns)} columns, key ({key}), {stats['tablets']} tablets, "
            f"{stats['rows']:,} rows, {size:.1f} MB, as of {to_datetime(snapshot):%Y-%m-%d %H:%M:%S}"
        )

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}\n{html.escape(preview(self.head(10)))}</pre>"


def _seen(table: TableState, snapshot: int, schema: str) -> TableState:
    """The table with the schema that it is read with. Raises: InvalidArgumentError for an unknown word."""
    if schema not in ("at", "current"):
        raise InvalidArgumentError(
            f"schema takes 'at' (the table's schema of that moment) or 'current', not {schema!r}"
        )
    return table.as_of(snapshot) if schema == "at" else table


def _since_after_until(since: int, until: int) -> str:
    return (
        f"changes are those after since and up to until, and since={to_datetime(since).isoformat()} ({since}) is later "
        f"than until={to_datetime(until).isoformat()} ({until})"
    )


def _check_key(key: object, names: Sequence[str], method: str) -> None:
    if not isinstance(key, Mapping):
        shown = ", ".join(f"{name!r}: …" for name in names)
        raise InvalidArgumentError(f"{method} takes the key as a dict, {{{shown}}}, not {key!r}")


def _collect(errors: str) -> bool:
    if errors not in ("raise", "collect"):
        raise InvalidArgumentError(f"errors takes 'raise' or 'collect', not {errors!r}")
    return errors == "collect"


def choice(argument: str, value: str, ignore: str) -> bool:
    """Whether the argument says to pass over such rows. Raises: InvalidArgumentError for an unknown word."""
    if value not in ("error", ignore):
        raise InvalidArgumentError(f"{argument} takes 'error' or {ignore!r}, not {value!r}")
    return value == ignore


def _rows_of(result: WriteResult) -> int:
    """How many rows were given."""
    return result.inserted + result.updated + result.deleted + result.ignored + len(result.errors)


def _sum(left: WriteResult, right: WriteResult, offset: int) -> WriteResult:
    """Results of two batches of a stream; row numbers count on."""
    errors = right.errors
    if len(errors):
        rows = pa.compute.add(errors.column("row"), offset)
        errors = errors.set_column(0, errors.schema.field(0), rows)
    return WriteResult(
        right.timestamp,
        left.inserted + right.inserted,
        left.updated + right.updated,
        left.deleted + right.deleted,
        left.ignored + right.ignored,
        pa.concat_tables([left.errors, errors]),
    )
