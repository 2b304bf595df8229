"""The methods that read a table, for `Table`, `TableView` and the tables of a transaction.

A `TableView` is a table at one moment, from `Table.at` or `Database.snapshot`.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, Self

import pyarrow as pa

from nyala.api.pinned_rows import PinnedRows, iteration_error
from nyala.api.scan import Scan
from nyala.api.scan_arguments import make_spec, resolve_columns
from nyala.errors import InvalidArgumentError, KeyNotFoundError, ReadOnlyError
from nyala.mvcc.timestamp import parse_at, to_datetime
from nyala.presentation.pickling import pickle_error
from nyala.schema.conversion.python_rows import is_value, named_key
from nyala.schema.expressions.parser import Parameters
from nyala.schema.predicates.predicate import parse_where
from nyala.tablet.state.history import check_readable
from nyala.tablet.state.root import Root, TableState
from nyala.tablet.write import where_writes

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl

    from nyala.api.change_feed import ChangeFeed
    from nyala.api.database import Database
    from nyala.api.results import CommitList
    from nyala.api.types import DataLike, KeyLike, Moment, PredicateLike

SchemaOf = Literal["at", "current"]
_ONLY_TABLES_HAVE: Final = (
    "insert upsert update delete apply apply_changes flush compact vacuum purge purge_status restore alter "
    "add_column drop_column rename_column repartition"
).split()


class ReadableTable(abc.ABC):
    """The methods that read a table."""

    _database: Database
    _name: str

    @abc.abstractmethod
    def _view(self, at: Any, schema: SchemaOf | None = None) -> tuple[Root, TableState, int]:
        """Return (root, table, snapshot) to read the table at a moment.

        root: the state of the store that keeps the files. table: the table in this state.
        snapshot: the timestamp to read at. schema: as in `scan`.
        """

    def _watch(self, rows: PinnedRows) -> None:
        """Let the Database release the files of `rows` after some time without a read."""
        self._database._handle.scans.watch(rows)

    @property
    def name(self) -> str:
        """The table's name."""
        return self._name

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema. The key columns come first, in the key's order, and are not nullable."""
        return self._view(None)[1].schema.arrow_schema()

    @property
    def columns(self) -> list[str]:
        """The names of the columns, those of the key first."""
        return list(self._view(None)[1].schema.names)

    @property
    def primary_key(self) -> list[str]:
        """The names of the key columns, in the key's order."""
        return [column.name for column in self._view(None)[1].schema.key_columns]

    # ---------------------------------------------------------------------------------------- scans

    def scan(
        self,
        columns: Sequence[str] | pa.Schema | None = None,
        where: PredicateLike | None = None,
        at: Moment | None = None,
        limit: int | None = None,
        order_by_key: bool = False,
        schema: SchemaOf | None = None,
        *,
        params: Parameters = None,
    ) -> Scan:
        """Return the rows at one moment as a `Scan`.

        Parameters
        ----------
        columns
            Names of columns, in the order of the result. Default: all. A `pyarrow.Schema` also
            chooses types: a column's own type, a wider one, or a dictionary of text.
        where
            Text such as `"host = 'a' AND time >= 5"`, `nyala.col(…)`, `nyala.expr(…)` or a pyarrow
            expression. It may use columns that are not in `columns`. docs/how-to/expressions.md
            describes the language.
        at
            A timestamp, datetime, ISO text, tag or `WriteResult`. Default: now.
        limit
            Return at most this many rows: the first in key order if `order_by_key`, else any.
        order_by_key
            Return the rows in ascending order of the key.
        schema
            `"at"`: the columns that the table had at the moment. `"current"`: its present columns;
            a column that was added since has its default. Default: `"at"`.
        params
            Values for `?` (a list) or for `:name` and `$name` (a dict) in the text of `where`.

        Returns
        -------
        Scan
            It reads nothing until one of its methods needs rows. `scan.timestamp` is its moment.

        Raises
        ------
        ColumnNotFoundError, SchemaError
            An unknown column, or a type in which the column cannot be read.
        InvalidArgumentError
            A predicate that does not parse, or a moment in the future.
        HistoryExpiredError
            The moment is older than the table's history.
        TableNotFoundError
            The table did not exist at that moment.

        Examples
        --------
        >>> metrics.scan(columns=["value"], where="host = 'a'").count()
        2
        """
        root, table, snapshot = self._view(at, schema=schema)
        where = parse_where(where, params)
        spec = make_spec(table, snapshot, columns, where, limit, order_by_key)
        return self._database._make_scan(root, table, spec, self, schema)

    def select(self, *columns: str | Sequence[str]) -> Scan:
        """Return a scan of these columns: `scan().select(…)`."""
        return self.scan().select(*columns)

    def filter(self, where: PredicateLike, *, params: Parameters = None) -> Scan:
        """Return a scan of the rows that satisfy a predicate: `scan().filter(…)`."""
        return self.scan().filter(where, params=params)

    def limit(self, n: int) -> Scan:
        """Return a scan of at most `n` rows: `scan().limit(n)`."""
        return self.scan().limit(n)

    def count(
        self, where: PredicateLike | None = None, at: Moment | None = None, *, params: Parameters = None
    ) -> int:
        """Count the rows that satisfy `where`; parameters as in `scan`.

        Examples
        --------
        >>> metrics.count("value > ?", params=[1])
        2
        """
        return self.scan(where=where, at=at, params=params).count()

    @property
    def num_rows(self) -> int:
        """The number of rows; the same as `count()`."""
        return self.count()

    def head(self, n: int = 10) -> pa.Table:
        """Return the first `n` rows in key order as an Arrow table."""
        return self.scan(order_by_key=True).head(n)

    def collect(self) -> pa.Table:
        """Return all rows as an Arrow table; the same as `to_arrow`."""
        return self.to_arrow()

    def to_arrow(self) -> pa.Table:
        """Return all rows as an Arrow table."""
        return self.scan().to_arrow()

    def to_pandas(self, **options: Any) -> pd.DataFrame:
        """Return all rows as a pandas DataFrame; `options` go to `pyarrow.Table.to_pandas`."""
        return self.scan().to_pandas(**options)

    def to_polars(self) -> pl.DataFrame:
        """Return all rows as a polars DataFrame."""
        return self.scan().to_polars()

    def to_reader(self) -> pa.RecordBatchReader:
        """Return all rows as a stream of record batches, in bounded memory."""
        return self.scan().to_reader()

    def to_polars_lazy(self) -> pl.LazyFrame:
        """Return a lazy polars frame over the table: see `Scan.to_polars_lazy`."""
        return self.scan().to_polars_lazy()

    def to_duckdb(self, con: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyRelation:
        """Return a DuckDB relation over the table: see `Scan.to_duckdb`."""
        return self.scan().to_duckdb(con)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.scan().__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> Any:
        return self.schema.__arrow_c_schema__()

    # ---------------------------------------------------------------------------------------- rows by key

    def get(
        self, key: KeyLike, columns: Sequence[str] | None = None, at: Moment | None = None
    ) -> dict[str, Any] | None:
        """Return one row by its key.

        Parameters
        ----------
        key
            A dict of all key columns, a tuple in the key's order, or a bare value if the key has
            one column.
        columns
            Names of the columns to return. Default: all.
        at
            The moment, as in `scan`. Default: now.

        Returns
        -------
        dict or None
            The row by column name; None if there is no such row. A time outside of the years 1 to
            9999 does not fit into a datetime, and is returned as microseconds since 1970.

        Raises
        ------
        InvalidArgumentError
            `key` does not have one value for each key column, or `at` is in the future.
        ColumnNotFoundError
            An unknown column.
        SchemaError
            `key` has a column that is not part of the key, or a value of another type.
        InvalidValueError
            A value of `key` is NULL or out of range.
        HistoryExpiredError
            `at` is older than the table's history.
        TableNotFoundError
            The table did not exist at that moment.

        Examples
        --------
        >>> metrics.get(("a", 1))
        {'host': 'a', 'time': 1, 'value': 1.0}
        >>> metrics.get({"host": "a", "time": 7}) is None
        True
        """
        root, table, snapshot = self._view(at)
        found = self._row(table, key, columns, snapshot, "get")
        del root
        return found

    def _row(
        self, table: TableState, key: KeyLike, columns: Sequence[str] | None, snapshot: int, method: str
    ) -> dict[str, Any] | None:
        if columns is not None and not isinstance(columns, list | tuple):
            _check_second(table, key, columns, method)
        row_key = named_key(key, table.schema.key_names, method)
        return where_writes.look_up_row(table, row_key, columns, snapshot)

    def __getitem__(self, key: KeyLike) -> dict[str, Any]:
        """Return one row by its key: `table[5]`, `table["a", 5]`.

        Raises
        ------
        KeyNotFoundError
            There is no such row. The error is also a `KeyError`.

        Examples
        --------
        >>> metrics["a", 1]["value"]
        1.0
        """
        root, table, snapshot = self._view(None)
        found = self._row(table, key, None, snapshot, f"{self._name}[key]")
        del root
        if found is None:
            raise KeyNotFoundError(
                f"table {self._name!r} has no row with the key {key!r}; get(key) returns None instead of this error"
            )
        return found

    def get_many(
        self, keys: DataLike, columns: Sequence[str] | None = None, at: Moment | None = None
    ) -> pa.Table:
        """Return rows by key.

        Parameters
        ----------
        keys
            The key columns in any form that a write takes, a list of tuples, or a list of bare
            values if the key has one column.
        columns
            Names of the columns to return. Default: all.
        at
            The moment, as in `scan`. Default: now.

        Returns
        -------
        pyarrow.Table
            The rows in the order of the keys; missing keys are left out. For a key that is given
            twice, the row is returned twice.

        Examples
        --------
        >>> metrics.get_many([("b", 1), ("a", 1), ("x", 1)])["host"].to_pylist()
        ['b', 'a']
        """
        root, table, snapshot = self._view(at)
        if columns is not None and not isinstance(columns, list | tuple):
            _check_second(table, None, columns, "get_many")
        found = where_writes.look_up(table, keys, columns, snapshot)
        del root
        return found

    # ---------------------------------------------------------------------------------------- history

    @abc.abstractmethod
    def _interval(
        self, since: Any, until: Any, schema: SchemaOf | None = None
    ) -> tuple[Root, TableState, int, int]:
        """Return (root, table, since, until) to read changes; root and table as `_view`.

        since, until: as timestamps. since None: the oldest readable moment. until None: now.
        """

    def changes(
        self,
        since: Moment,
        until: Moment | None = None,
        versions: Literal["net", "all"] = "net",
        columns: Sequence[str] | None = None,
        schema: SchemaOf | None = None,
        *,
        before: bool = False,
    ) -> ChangeFeed:
        """Return the rows that changed after `since`, up to and including `until`.

        Parameters
        ----------
        since
            Exclusive lower bound: a timestamp, datetime, ISO text, tag or `WriteResult`. A moment
            before the table's creation, such as 0, means the creation.
        until
            Inclusive upper bound. Default: now.
        versions
            `"net"`: one row per changed key with its values at `until`, in no particular order. A
            delete and a later insert of one key count as an update; an insert and a later delete do
            not count. An update to the same value counts as a change. `"all"`: every version of
            every row, ordered by timestamp and key.
        columns
            The columns to return besides those of the key. Default: all. The feed also has rows in
            which only other columns changed.
        schema
            `"at"`: the columns of the moment `until`. `"current"`: the present ones. Default:
            `"at"`.
        before
            Also return the values before each change. An update is then two rows,
            `"update_preimage"` and directly after it `"update_postimage"`, and a deleted row has
            its last values.

        Returns
        -------
        ChangeFeed
            The columns, `_change_type` ("insert", "update" or "delete"), `_commit_version` (the
            exact timestamp) and `_commit_timestamp` (its time). Changes of an earlier table with
            the same name are not included.

        Raises
        ------
        InvalidArgumentError
            `since` is later than `until`, a moment is in the future, or `before` is not a bool.
        HistoryExpiredError
            `since` is older than the table's history.
        TableNotFoundError
            `until` is before the table's creation.
        ColumnNotFoundError
            An unknown column.

        Examples
        --------
        >>> start = db.now()
        >>> metrics.update([{"host": "a", "time": 1, "value": 5.0}]).updated
        1
        >>> metrics.changes(since=start).to_arrow()["_change_type"].to_pylist()
        ['update']
        >>> metrics.changes(since=start, before=True).to_arrow()["value"].to_pylist()
        [1.0, 5.0]
        """
        if since is None:
            raise InvalidArgumentError(
                "changes needs since=, the moment after which the changes begin: a timestamp, a datetime, ISO "
                "text or a WriteResult"
            )
        if not isinstance(before, bool):
            raise InvalidArgumentError(
                f"before takes True or False (whether the feed has the values before each change), not {before!r}; "
                "to end the feed at a moment, pass until=…"
            )
        root, table, lower, upper = self._interval(since, until, schema)
        from nyala.tablet.changes.spec import make_change_spec

        shown = resolve_columns(table, columns)
        spec = make_change_spec(table, lower, upper, versions, shown, "both" if before else "until")
        return self._database._make_change_feed(root, table, spec)

    def commits(self, since: Moment | None = None, until: Moment | None = None) -> CommitList:
        """Return the commits that changed rows of this table, oldest first.

        Parameters
        ----------
        since, until
            As in `changes`. Default for `since`: the oldest readable moment.

        Returns
        -------
        CommitList
            A sequence of `Commit` objects, each with its time, its message and the number of rows that it
            inserted, updated and deleted in this table.

        Raises
        ------
        InvalidArgumentError
            `since` is later than `until`, or one of them is in the future.
        HistoryExpiredError
            `since` or `until` is older than the table's history.
        TableNotFoundError
            `until` is before the table's creation.

        Examples
        --------
        >>> metrics.upsert([("a", 1, 9.0), ("e", 1, 1.0)], message="corrections of May").updated
        1
        >>> commit = metrics.commits()[-1]
        >>> commit.inserted, commit.updated, commit.message
        (1, 1, 'corrections of May')
        >>> metrics.count(at=commit), metrics.count(at=commit.timestamp - 1)
        (4, 3)
        """
        root, table, lower, upper = self._interval(since, until)
        from nyala.api.results import CommitList
        from nyala.tablet.changes.commits import commit_counts, commit_table

        # `whole` includes the tablets of dropped ranges.
        whole = (root.any_table(table.id) or table).with_schema(table.schema).whole
        found = {table.name: commit_counts(whole, lower, upper)}
        del root
        return CommitList(commit_table(found, self._database._opened().messages()))

    def history(self, key: KeyLike, since: Moment | None = None, until: Moment | None = None) -> pa.Table:
        """Return every version of one row, oldest first.

        Parameters
        ----------
        key
            As in `get`.
        since, until
            As in `changes`. Default for `since`: the oldest readable moment. If the row existed at
            this moment, the first row of the result has its values at the moment. There,
            `_change_type`, `_commit_version` and `_commit_timestamp` are NULL.

        Returns
        -------
        pyarrow.Table
            The columns of `changes(versions="all")`; no row for a key that never existed.

        Raises
        ------
        InvalidArgumentError
            `since` is later than `until`, one of them is in the future, or `key` does not have one
            value for each key column.
        SchemaError, InvalidValueError
            A value of `key` has a wrong type, is NULL or is out of range.
        HistoryExpiredError
            `since` or `until` is older than the table's history.

        Examples
        --------
        >>> metrics.history(("b", 1))["_change_type"].to_pylist()
        ['insert']
        """
        root, table, lower, upper = self._interval(since, until)
        key = named_key(key, table.schema.key_names, "history")
        from nyala.tablet.changes.spec import make_change_spec
        from nyala.tablet.changes.versions import versions_of_key

        spec = make_change_spec(table, lower, upper, "all", table.schema.columns)
        encoded, tablets = where_writes.read_keys(
            table, [dict(key)], "history", None if since is None else lower
        )
        found = versions_of_key(table, spec, encoded, int(tablets[0]), from_state=since is None)
        del root
        return found

    def __iter__(self) -> NoReturn:
        raise iteration_error("a table", "table.scan()")

    def __reduce__(self) -> NoReturn:
        raise pickle_error(self)

    def __copy__(self) -> Self:
        return self  # any number of threads may share it


class TableView(ReadableTable):
    """A table at one moment, for reading only, from `Table.at` and `Database.snapshot`."""

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
        """The timestamp of the moment that this view reads."""
        return self._snapshot

    def _view(self, at: Any, schema: SchemaOf | None = None) -> tuple[Root, TableState, int]:
        if at is not None:
            raise InvalidArgumentError(
                f"this view of {self._name!r} reads only the moment {self._snapshot}: use the table itself for "
                "another moment"
            )
        self._database._handle.check_open()
        table = self._root.table_at(self._name, self._snapshot)
        return self._root, with_schema_of(table, self._snapshot, schema or self._schema_of), self._snapshot

    def _interval(
        self, since: Any, until: Any, schema: SchemaOf | None = None
    ) -> tuple[Root, TableState, int, int]:
        root, table, upper = self._view(until, schema)
        if since is None:
            return root, table, min(table.entry.history_start, upper), upper
        lower = parse_at(self._database._without_tag(since, "since"), upper, "since")
        if lower > upper:
            raise InvalidArgumentError(since_after_until(lower, upper))
        # The view keeps its files, so only history that was removed before its creation is missing.
        check_readable(table.entry, lower, 0, 0)
        return root, table, lower, upper

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            if name in _ONLY_TABLES_HAVE:
                raise ReadOnlyError(
                    f"a view of {self._name!r} at a moment cannot be changed: use the table itself, "
                    f"db[{self._name!r}].{name}()"
                )
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self
            )

    def __repr__(self) -> str:
        return f"TableView of {self._name} at {to_datetime(self._snapshot).isoformat()}"


def _check_second(table: TableState, key: Any, columns: Any, method: str) -> None:
    """Check `columns`, the second argument of `get` or `get_many`, if it is not a list.

    method: the name of the called method, for errors.
    Raises: InvalidArgumentError if `columns` is a text or a moment. Also if the caller passed the values
        of a composite key as separate arguments, as in `get(1, 2)` in place of `get((1, 2))`.
    """
    names = table.schema.key_names
    if is_value(key) and len(names) > 1:
        raise InvalidArgumentError(
            f"{method} takes the whole key ({', '.join(names)}) as its first argument: write "
            f"{method}(({key!r}, {columns!r}{', …' if len(names) > 2 else ''}))"
        )
    if isinstance(columns, str):
        resolve_columns(table, columns)  # raises an error that says what to write
    if not isinstance(columns, Iterable):
        keys = "keys" if method == "get_many" else "key"
        raise InvalidArgumentError(
            f"columns, the second argument of {method}, takes a list of names, not {columns!r}: for a moment write "
            f"{method}({keys}, at=…)"
        )


def with_schema_of(table: TableState, snapshot: int, schema: str) -> TableState:
    """Return the table as it was at `snapshot`, with the columns of then or of now.

    schema: "at" or "current", as in `ReadableTable.scan`. Raises: InvalidArgumentError for another value.
    """
    if schema not in ("at", "current"):
        raise InvalidArgumentError(
            f"schema takes 'at' (the table's schema of that moment) or 'current', not {schema!r}"
        )
    return table.as_of(snapshot) if schema == "at" else table.with_tablets_of(snapshot)


def since_after_until(since: int, until: int) -> str:
    """Return the message for an interval that ends before it begins."""
    return (
        f"since={to_datetime(since).isoformat()} ({since}) is later than until={to_datetime(until).isoformat()} "
        f"({until}): the changes are those after since, up to until"
    )
