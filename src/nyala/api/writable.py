"""The methods that write a table, for `Table` and the tables of a transaction.

A `Table` commits each call as one atomic batch. A `TransactionTable` collects the calls for the
commit of its transaction.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from nyala.api.readable import ReadableTable
from nyala.errors import InvalidArgumentError, WriteError
from nyala.presentation.progress import Progress, progress_function
from nyala.schema.expressions.parser import Parameters
from nyala.schema.predicates.predicate import parse_where
from nyala.tablet.state.messages import check_message
from nyala.tablet.state.result import WriteResult
from nyala.tablet.write import where_writes
from nyala.tablet.write.conditions import Condition, NewestBy, condition_of
from nyala.tablet.write.where_writes import Select
from nyala.tablet.write.write_path import Request

if TYPE_CHECKING:
    from nyala.api.types import DataLike, KeyLike, PredicateLike

Errors = Literal["raise", "collect"]


class WritableTable(ReadableTable):
    """The methods that write rows."""

    @abc.abstractmethod
    def _check_call(self, call: str, instead: str) -> None:
        """Check that this thread may write to the table now.

        call, instead: the call, and what to call inside `with db.batch()`, for the message.
        Raises: ReadOnlyError, InvalidArgumentError.
        """

    @abc.abstractmethod
    def _commit(self, request: Request, collect: bool, message: str | None) -> WriteResult:
        """Write the rows of `request`, such as an insert or update, and return the timestamp and the counts.

        collect: True: return the errors of failing rows in the result, and write the other rows.
            False: one failing row rejects all rows.
        message: a text about the commit, for `table.commits()`.
        """

    @abc.abstractmethod
    def _write_selected(
        self, operation: str, select: Select, collect: bool, message: str | None
    ) -> WriteResult:
        """Update or delete the rows that `select` finds in the table. collect, message: as for `_commit`."""

    def insert(
        self,
        data: DataLike,
        on_conflict: Literal["error", "ignore"] = "error",
        errors: Errors = "raise",
        *,
        message: str | None = None,
        progress: bool | Progress = False,
    ) -> WriteResult:
        """Insert new rows.

        Parameters
        ----------
        data
            Anything with Arrow's stream protocol (pyarrow, polars, pandas, DuckDB), a dict of
            columns, or a list of dicts, of tuples in the order of `columns`, or of dataclasses. A
            column that is not given gets its default, or NULL.
        on_conflict
            `"error"`: a duplicate key is the row error `already-present`. `"ignore"`: rows with
            duplicate keys are skipped.
        errors
            `"raise"`: one failing row rejects the whole batch. `"collect"`: failing rows are
            returned in `result.errors`, and the others are written.
        message
            A text of at most 1,000 characters about the commit; `table.commits()` shows it.
        progress
            `True` prints progress. A function is called with (rows done, None): after each record
            batch of a `pyarrow.RecordBatchReader`; for other data, once at the end.

        Returns
        -------
        WriteResult
            The timestamp and the counts. `table.scan(at=result)` reads the table with this batch.

        Raises
        ------
        DuplicateKeyError, InvalidValueError, NoPartitionError, WriteError
            Rows failed, and nothing was written. `error.errors` is an Arrow table of them.
        ColumnNotFoundError, SchemaError
            A column is unknown, or its type does not fit.
        StorageError
            The store cannot write.

        Examples
        --------
        >>> metrics.insert([("c", 1, 1.0), ("c", 2, 2.0)]).inserted
        2
        """
        ignore = ignores("on_conflict", on_conflict)
        return self._write("insert", data, ignore, errors, message, progress)

    def upsert(
        self,
        data: DataLike,
        errors: Errors = "raise",
        *,
        when: str | None = None,
        params: Parameters = None,
        newest_by: str | None = None,
        message: str | None = None,
        progress: bool | Progress = False,
    ) -> WriteResult:
        """Insert rows with new keys, and update rows whose keys exist.

        An update changes only the columns that are given. If a key comes twice in one call, the
        later row wins.

        Parameters
        ----------
        data, errors, message, progress
            As in `insert`.
        when
            A condition such as `"new.seq > old.seq"`: `old` is the existing row, `new` the row of
            `data`. An existing row is updated only if the condition is TRUE; otherwise the row
            counts as ignored.
        params
            Values for `?` (a list) or for `:name` and `$name` (a dict) in the text of `when`.
        newest_by
            A column that grows with each change of a row, such as a version. A row is written only
            if its value is greater than all earlier values of its key, so late and repeated events
            change nothing. Values of deletes with `newest_by` count as well, as long as the table's
            history lasts.

        Returns
        -------
        WriteResult
            The timestamp and the counts. `table.scan(at=result)` reads the table with this batch.

        Raises
        ------
        InvalidArgumentError, ColumnNotFoundError, SchemaError
            The condition or the data do not fit the table.
        InvalidValueError, NoPartitionError, WriteError
            Rows failed, and nothing was written. `error.errors` is an Arrow table of them.
        StorageError
            The store cannot write.

        Examples
        --------
        >>> metrics.upsert([{"host": "a", "time": 1, "value": 7.0}, {"host": "d", "time": 1, "value": 1.0}])
        WriteResult(timestamp=..., inserted=1, updated=1, deleted=0, ignored=0, errors=0 rows)
        >>> metrics.upsert([("a", 1, 6.0)], when="new.value > old.value").ignored
        1
        """
        chosen = condition_of(when, params, newest_by)
        return self._write("upsert", data, False, errors, message, progress, chosen)

    def update(
        self,
        data: DataLike | None = None,
        on_missing: Literal["error", "ignore"] = "error",
        errors: Errors = "raise",
        *,
        set: Mapping[str, Any] | None = None,
        where: PredicateLike | None = None,
        params: Parameters = None,
        message: str | None = None,
        progress: bool | Progress = False,
    ) -> WriteResult:
        """Change columns of existing rows: by key (`data`), or of all rows that satisfy `where` (`set`).

        Parameters
        ----------
        data
            Rows with the whole key and the columns to change, in any form that `insert` takes.
        on_missing
            `"error"`: a missing key is the row error `not-found`. `"ignore"`: rows with missing
            keys are skipped.
        errors, message, progress
            As in `insert`.
        set
            Columns and their new values. A value is a constant, or an expression over the row:
            `{"status": "done", "n": nyala.expr("n + 1")}`. Text is always a constant.
        where, params
            The rows that `set` changes, as in `scan`. Default: all rows.

        Returns
        -------
        WriteResult
            With `updated`, the number of changed rows.

        Raises
        ------
        KeyNotFoundError
            A key is missing and `on_missing="error"`; nothing was written.
        InvalidArgumentError
            Both `data` and `set` are given, or neither.

        Examples
        --------
        >>> metrics.update(set={"value": nyala.expr("value * 10")}, where="host = 'a'").updated
        2
        """
        ignore = ignores("on_missing", on_missing)
        if (data is None) == (set is None):
            either = "either data (keys and columns) or set={'column': value} with where="
            raise InvalidArgumentError(
                f"update takes {either}, {'and got neither' if data is None else 'not both'}"
            )
        if set is None:
            if where is not None or params is not None:
                raise InvalidArgumentError(
                    "update(data) finds rows by key and takes no where=: write update(set={'column': value}, where=…)"
                )
            return self._write("update", data, ignore, errors, message, progress)
        self._check_call("update(set=…)", "a write by key in the batch")
        select = where_writes.to_update(set, parse_where(where, params))
        return self._write_selected("update", select, collect(errors), check_message(message))

    def delete(
        self,
        keys: DataLike | KeyLike | None = None,
        on_missing: Literal["error", "ignore"] = "error",
        errors: Errors = "raise",
        *,
        where: PredicateLike | None = None,
        params: Parameters = None,
        newest_by: str | None = None,
        message: str | None = None,
        progress: bool | Progress = False,
    ) -> WriteResult:
        """Delete rows by key, or all rows that satisfy `where`.

        Parameters
        ----------
        keys
            One key as in `get`, a list of keys, or the key columns in any form that `insert` takes.
        on_missing
            `"error"`: a missing key is the row error `not-found`. `"ignore"`: missing keys are
            skipped.
        errors, message, progress
            As in `insert`.
        where, params
            As in `scan`. `where="TRUE"` deletes all rows.
        newest_by
            A column in `keys` besides the key columns, as in `upsert`. A row is deleted only if the
            given value is greater than the row's value. Otherwise, and for a missing key, the delete
            counts as ignored. A later `upsert(newest_by=…)` with a smaller value is then ignored.

        Returns
        -------
        WriteResult
            With `deleted`, the number of deleted rows.

        Raises
        ------
        KeyNotFoundError
            A key is missing and `on_missing="error"`; nothing was written.
        InvalidArgumentError
            Both `keys` and `where` are given, or neither.

        Examples
        --------
        >>> metrics.delete(("a", 1)).deleted
        1
        >>> metrics.delete(where="value > 2").deleted
        1
        """
        ignore = ignores("on_missing", on_missing)
        if (keys is None) == (where is None):
            raise InvalidArgumentError(
                f"delete takes either keys or where=, {'and got neither' if keys is None else 'not both'}; "
                "where='TRUE' deletes all rows"
            )
        where = parse_where(where, params)
        if where is not None:
            if newest_by is not None:
                raise InvalidArgumentError("delete takes newest_by= with keys, not with where=")
            self._check_call("delete(where=…)", "a write by key in the batch")
            select = where_writes.ToDelete(where)
            return self._write_selected("delete", select, False, check_message(message))
        return self._write(
            "delete", keys, ignore, errors, message, progress, condition_of(None, None, newest_by)
        )

    def apply(
        self,
        operations: Sequence[tuple[str, Any]],
        errors: Errors = "raise",
        *,
        message: str | None = None,
    ) -> WriteResult:
        """Execute a list of different operations on rows, in their order, as one atomic batch.

        Parameters
        ----------
        operations
            Pairs of an operation and a row. The operations are `insert`, `insert-ignore`, `upsert`,
            `update`, `update-ignore`, `delete` and `delete-ignore`. A row is a dict, a tuple in the
            order of `columns`, or a dataclass. Dicts may have different columns, and each changes
            only its own columns. For a delete, give a key as in `get`.
        errors
            `"raise"`: one failing row rejects the whole list. `"collect"`: failing rows are
            returned in `result.errors`, where `row` is the position in the list, and the others are
            written.
        message
            A text about the commit, as in `insert`.

        Returns
        -------
        WriteResult
            The timestamp and the counts. Each operation sees the effect of earlier ones.

        Raises
        ------
        DuplicateKeyError, KeyNotFoundError, InvalidValueError, NoPartitionError, WriteError
            Rows failed, and nothing was written.
        InvalidArgumentError
            An item is not such a pair.

        Notes
        -----
        Source: docs/design/kudu.md, "Outcomes of operations".

        Examples
        --------
        >>> result = metrics.apply(
        ...     [
        ...         ("insert", {"host": "q", "time": 1, "value": 1.0}),
        ...         ("update", {"host": "q", "time": 1, "value": 2.0}),
        ...         ("insert", ("a", 1, 9.0)),
        ...         ("delete", ("b", 1)),
        ...     ],
        ...     errors="collect",
        ... )
        >>> result.inserted, result.updated, result.deleted, result.errors["row"].to_pylist()
        (1, 1, 1, [2])
        """
        self._check_call("apply(…)", f"b.apply({self._name!r}, …)")
        return self._commit(Request(self._name, "apply", operations), collect(errors), check_message(message))

    def apply_changes(
        self,
        events: DataLike,
        *,
        operation: str = "op",
        sequence: str | None = None,
        sequence_column: str | None = None,
        columns: Sequence[str] | Mapping[str, str] | None = None,
        units: Mapping[str, str] | None = None,
        operations: Mapping[str, str] | None = None,
        errors: Errors = "raise",
        message: str | None = None,
    ) -> WriteResult:
        """Apply change events in their order, as one atomic batch: inserts, updates and deletes of rows.

        Parameters
        ----------
        events
            Events of Debezium (`before`, `after`, `op`), flat rows with an operation, or the change
            feed of a table. Pass a list of dicts or of JSON texts, or any data that `insert` takes.
        operation
            The name of the field with the operation. Its values are `c`, `r`, `u`, `insert`,
            `update` or `upsert` to write a row, and `d` or `delete` to delete it. In a change feed
            the field is `_change_type`.
        sequence
            A field that grows with each change of a row, such as `"ts_ms"` or `"source.lsn"`. If it
            is given, late and repeated events change nothing: see `newest_by` of `upsert`.
        sequence_column
            The column of the table that stores the sequence. Default: the field's name.
        columns
            The fields to write, or a dict from field to column. Default: all.
        units
            For times that the events have as whole numbers: the unit of each column, such as
            `{"created": "ms"}`. Units are `s`, `ms`, `us`, `ns`, and for dates `d` (days since 1970).
        operations
            Further values of the field `operation`, each with its meaning: `"upsert"`, `"delete"`
            or `"skip"`.
        errors, message
            As in `insert`. `row` of an error is the event's position.

        Returns
        -------
        WriteResult
            The counts. A delete of a missing row, and an event that is not newer, count as ignored.

        Raises
        ------
        InvalidArgumentError, SchemaError
            The events have another format.
        WriteError
            Rows failed, and nothing was written.

        Notes
        -----
        Text is parsed for columns of type decimal.

        Examples
        --------
        >>> metrics.apply_changes(
        ...     [
        ...         {"op": "c", "after": {"host": "n", "time": 1, "value": 1.5}, "before": None},
        ...         {"op": "d", "before": {"host": "a", "time": 1, "value": 1.0}, "after": None},
        ...     ]
        ... )
        WriteResult(timestamp=..., inserted=1, updated=0, deleted=1, ignored=0, errors=0 rows)
        """
        from nyala.interop import change_events

        self._check_call("apply_changes(…)", "b.apply(…)")
        format = change_events.event_format(operation, sequence, sequence_column, columns, units, operations)
        schema = self._view(None)[1].schema
        rows, numbers = change_events.read_events(events, schema, format)
        newest = change_events.sequence_column(schema, format)
        request = Request(
            self._name, "apply", rows, numbers=numbers,
            condition=None if newest is None else NewestBy(newest),
        )  # fmt: skip
        return self._commit(request, collect(errors), check_message(message))

    def _write(
        self,
        operation: str,
        data: Any,
        ignore: bool,
        errors: Errors,
        message: str | None,
        progress: bool | Progress = False,
        condition: Condition | None = None,
    ) -> WriteResult:
        self._check_call(f"{operation}(…)", f"b.{operation}({self._name!r}, …)")
        collects, message = collect(errors), check_message(message)
        show = progress_function(
            progress, lambda done, total: f"{operation} into {self._name}: {done:,} rows"
        )
        if not isinstance(data, pa.RecordBatchReader):
            request = Request(self._name, operation, data, ignore, condition=condition)
            result = self._commit(request, collects, message)
            if show is not None:
                show(_rows_of(result), None)
            return result
        total: WriteResult | None = None
        done = 0
        try:
            for batch in data:
                request = Request(self._name, operation, batch, ignore, condition=condition)
                result = self._commit(request, collects, message)
                total = result if total is None else _sum(total, result, done)
                done += batch.num_rows
                if show is not None:
                    show(done, None)
        except BaseException as error:  # also errors of the stream itself, and Ctrl-C
            with contextlib.suppress(AttributeError):
                error.applied = done  # type: ignore[attr-defined]
            if done and isinstance(error, WriteError):
                # Its message says that nothing was written, but earlier record batches were.
                error.args = (
                    f"a record batch of the stream failed, after {done:,} rows that stay written: {error}",
                    *error.args[1:],
                )
            raise
        return (
            total
            if total is not None
            else self._commit(
                Request(self._name, operation, data.schema.empty_table(), ignore), False, message
            )
        )


def collect(errors: str) -> bool:
    """Return True for the value "collect" of the argument `errors`, and False for "raise".

    Raises: InvalidArgumentError for any other value.
    """
    if errors not in ("raise", "collect"):
        raise InvalidArgumentError(f"errors takes 'raise' or 'collect', not {errors!r}")
    return errors == "collect"


def ignores(argument: str, value: str) -> bool:
    """Return True for the value "ignore", and False for "error". argument: the name, for the message.

    Raises: InvalidArgumentError for any other value.
    """
    if value not in ("error", "ignore"):
        raise InvalidArgumentError(f"{argument} takes 'error' or 'ignore', not {value!r}")
    return value == "ignore"


def _rows_of(result: WriteResult) -> int:
    """Return the number of rows that the call received."""
    return result.inserted + result.updated + result.deleted + result.ignored + len(result.errors)


def _sum(left: WriteResult, right: WriteResult, offset: int) -> WriteResult:
    """Add the results of two record batches of a stream.

    offset: the number of rows of the stream before the batch of `right`.
    """
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
