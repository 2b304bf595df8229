"""Batch writes: tasks stage the rows in Arrow files, and one request to the store's writer commits
them as one batch.

    executor's worker                         planner worker                   the store's writer
    write(batches): stage the rows in         commit(messages): send   ──────► write one atomic batch
    staging/<job key>/part-….arrow,           the file names                   together with the
    return the file's name                    and the job key                  job key

A *planner worker* is a Python process that Spark starts on the driver's machine. The rows of a job
are one batch, in the order of Spark's partitions and of the rows in each partition. Each task finds
the tablets of its rows and sorts the rows by primary key (`tablet.jobs.staged_files`), so the
commit merges sorted runs. `nyala.spark.load` and `upsert` write rowset files in the tasks instead.

A *job key* is the idempotency key of a job: the store commits a batch with this key at most once.

Invariants
    W-a  A task may run twice (retry, speculation). Each attempt writes its own file, and the commit
         uses the file of one attempt.
    W-b  The planner worker chooses the job key. So the batch is written once, even if the commit is
         sent twice.
    W-c  `commit` removes the staged files, also after an error. Spark calls `abort` after a
         `commit` that raised. Then `abort` only removes staged files, and does not change the
         outcome.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from nyala.env import SYSTEM, Files, mark_of_ancestor
from nyala.env.paths import is_bucket_url
from nyala.errors import Error, InvalidArgumentError, SchemaError, WriteError
from nyala.handover import commits as handover
from nyala.handover.commits import CHANGES
from nyala.handover.routing_plans import routing_plan
from nyala.objects.address import Address
from nyala.schema.schema import NO_DEFAULT
from nyala.spark.errors import add_place, errors_naming
from nyala.spark.source.option_messages import errors_in_options, in_options, rows_in_options
from nyala.spark.source.options import WriteOptions
from nyala.spark.source.reader import JVM, begin_task
from nyala.spark.types import arrow_schema
from nyala.tablet.changes.spec import FEED_COLUMNS
from nyala.tablet.jobs.load_job import LoadPlan
from nyala.tablet.jobs.load_write import check_columns
from nyala.tablet.jobs.staged_files import check_names, with_tablets, write_routed

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from nyala.schema.schema import Schema
    from nyala.tablet.state.root import TableState

__all__ = [
    "NyalaWriter",
    "StagedFile",
    "check_no_feed",
    "commit_files",
    "failure_text",
    "failures_text",
    "plan_rows",
    "stage_rows",
    "unique_columns",
]

# Staged files of a driver that has ended are removed. If its end cannot be detected, they expire
# after this time.
STAGING_TTL_S: Final = 24 * 3600
ERRORS_SHOWN: Final = 100

_log = logging.getLogger("nyala.spark")


@dataclass(frozen=True)
class StagedFile(WriterCommitMessage):
    """What a task sends to the commit: the name of its staged file, or None if it had no rows."""

    partition: int
    name: str | None
    row_count: int


class NyalaWriter(DataSourceArrowWriter):
    """The writer of `df.write`: stages rows in Spark's tasks, then commits them as one batch.

    Spark creates it in a Python process on the driver's machine. Pickled copies write in tasks, and
    another copy commits.
    """

    def __init__(
        self,
        options: WriteOptions,
        schema: StructType,
        overwrite: bool = False,
        only: Sequence[str] | None = None,
        *,
        filled: bool = False,
    ) -> None:
        """only: the columns to write; None: all. filled: Spark may have added columns of NULLs."""
        check_no_condition(options, overwrite)
        self._options = options
        self._overwrite = overwrite
        self._columns = unique_columns(options.table, schema)
        if only is not None:
            self._columns = [name for name in self._columns if name in only]
        # Raises errors of columns before any task runs.
        self._plan = plan_rows(options, self._columns, schema)
        with_default = {
            c.name for c in self._plan.schema.columns if c.write_default not in (None, NO_DEFAULT)
        }
        self._never_null = [name for name in self._columns if filled and name in with_default]
        self._key, self._staging = handover.new_staging(
            options.path, STAGING_TTL_S, options.address.env, mark_of_ancestor(JVM)
        )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None, "a data source writes inside a Spark task"
        partition = context.partitionId()
        # The attempt's id is unique in the application, so a second attempt writes another file.
        name = f"part-{partition:05d}-{context.taskAttemptId()}.arrow"
        chosen = (b if b.schema.names == self._columns else b.select(self._columns) for b in iterator)
        with errors_naming(f"table {self._options.table!r}"):
            rows = stage_rows(
                self._without_null(chosen),
                os.path.join(self._staging, name),
                self._plan,
                self._options.address,
            )
        return StagedFile(partition, name if rows else None, rows)

    def _without_null(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches unchanged.

        Raises InvalidArgumentError if a column with a default has a NULL that Spark may have added.
        """
        for batch in batches:
            for name in self._never_null:
                if batch.column(name).null_count:
                    raise InvalidArgumentError(
                        f"INSERT sends NULL for column {name!r}, which has a default: Spark writes NULL for columns "
                        "that a statement omits. Give the column a value in the statement, or use "
                        "df.write.format('nyala') with the options path and table, which applies defaults for columns "
                        "that the DataFrame does not have"
                    )
            yield batch

    @errors_in_options()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        staged = [m for m in messages if isinstance(m, StagedFile)]
        staged.sort(key=lambda message: message.partition)
        files = [m.name for m in staged if m.name is not None]
        try:
            commit_files(self._options, self._plan, self._key, files, self._columns, self._overwrite)
        finally:  # also after an error, because Spark does not send these files again
            self._discard()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._discard()

    def _discard(self) -> None:
        with contextlib.suppress(Error):  # files that remain are removed when they expire
            handover.discard_staging(self._options.path, self._key, self._options.address.env)


def unique_columns(table: str, schema: StructType) -> list[str]:
    """Return the names of the columns. Raises SchemaError if two columns have the same name."""
    names: list[str] = schema.fieldNames()
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise SchemaError(
            f"the DataFrame written to table {table!r} has two columns named {twice[0]!r}: "
            "select or rename one of them"
        )
    return names


def plan_rows(options: WriteOptions, columns: Sequence[str], schema: StructType) -> LoadPlan:
    """Return the plan by which tasks find the tablets of their rows. Runs on the driver's machine.

    Raises errors that concern all rows: TableNotFoundError, ColumnNotFoundError, SchemaError,
    InvalidArgumentError.
    """
    check_names(options.table, columns)
    with errors_naming(f"table {options.table!r}"):
        plan = routing_plan(options.address.env, options.path, options.table)
        if options.operation != CHANGES:
            arrow = arrow_schema(schema)
            check_no_feed(plan.schema, options.table, columns, ".option('operation', 'changes') applies them")
            rows = pa.schema([arrow.field(name) for name in columns])
            check_columns(plan, options.operation, rows, options.condition)
    return plan


def check_no_condition(options: WriteOptions, overwrite: bool) -> None:
    """Raise InvalidArgumentError if a write that replaces all rows has `when` or `newest_by`."""
    if overwrite and options.condition is not None:
        raise InvalidArgumentError(
            f"this write replaces all rows of table {options.table!r}, so it cannot be combined with option "
            f"{'when' if options.newest_by is None else 'newest_by'}: use mode('append'), or output mode 'update'"
        )


def check_no_feed(schema: Schema, table: str, columns: Sequence[str], advice: str) -> None:
    """Raise InvalidArgumentError if the DataFrame is a change feed, whose deletes would become rows.

    A change feed has columns such as `_change_type`, which the table does not have. advice: what
    the message tells the user to do.
    """
    marks = [name for name in FEED_COLUMNS if name in columns and name not in schema]
    if marks:
        raise InvalidArgumentError(
            f"the DataFrame written to table {table!r} is a change feed (it has {' and '.join(map(repr, marks))}): "
            f"{advice}; to write the rows unchanged, drop these columns"
        )


def stage_rows(batches: Iterator[pa.RecordBatch], path: str, plan: LoadPlan, address: Address) -> int:
    """Stage the rows of a task in the file `path`, and return their number.

    Without rows it writes no file.
    """
    begin_task()
    return write_routed(address.env, path, plan, batches)


def commit_files(
    options: WriteOptions,
    plan: LoadPlan,
    key: str,
    files: Sequence[Any],
    columns: Sequence[str],
    overwrite: bool,
    **more: str,
) -> None:
    """Commit the staged files as one batch, and report the result.

    Counts and failing rows are written to the folder of the option `result`. Without this option,
    the failing rows are logged.

    key: the job's idempotency key. more: further fields of the job dict of
        `handover.commit_staged`.
    """
    job = {
        "key": key,
        "table": options.table,
        "operation": options.operation,
        "errors": options.errors,
        "files": list(files),
        "columns": list(columns),
        "overwrite": overwrite,
        "message": options.message,
        "when": options.when,
        "newest_by": options.newest_by,
        **more,
    }
    try:
        outcome = handover.commit_staged(options.path, job, options.address.env)
    except Error as error:
        raise rejected(options, error, plan) from None
    report(options, outcome, plan)


def failure_text(
    errors: pa.Table, position: int, row_text: Callable[[int | None], str], *, with_code: bool = False
) -> str:
    """Return a text with the row number, the primary key and the error of one failing row.

    errors: the table of failing rows.
    position: the position of the row in `errors`.
    row_text: returns the text for a row number, such as "row 5". The number is None if it is
        unknown.
    with_code: put the code of the error before its message.
    """
    (row,) = errors.slice(position, 1).to_pylist()
    key = ", ".join(f"{name}={row[name]!r}" for name in errors.column_names[4:])
    code = f"{row['code']}: " if with_code else ""
    return f"{row_text(row['row'])} ({key}): {code}{row['message']}"


def failures_text(errors: pa.Table, row_text: Callable[[int | None], str] = "row {}".format) -> str:
    """Return a line with the number of failing rows by code, and a line for each of the first
    hundred rows.

    row_text: returns the text for a row number, such as "row 5", the default. The number is the
        position of the row in the job, or None if it is unknown.
    """
    codes = Counter(errors.column("code").to_pylist())
    lines = [", ".join(f"{count} {code}" for code, count in sorted(codes.items()))]
    shown = min(errors.num_rows, ERRORS_SHOWN)
    lines += [f"  {failure_text(errors, row, row_text, with_code=True)}" for row in range(shown)]
    if errors.num_rows > ERRORS_SHOWN:
        lines.append(f"  … and {errors.num_rows - ERRORS_SHOWN} more")
    return "\n".join(lines)


def rejected(options: WriteOptions, error: Error, plan: LoadPlan) -> Error:
    """Return the error to raise for a job that wrote nothing.

    The error's text lists the failing rows, because Spark passes only the text to the driver.
    """
    if not isinstance(error, WriteError):
        return add_place(error, f"table {options.table!r}")
    errors = None if error.errors is None else rows_in_options(error.errors)
    text = f"table {options.table!r}: {in_options(str(error))}"
    if errors is not None and errors.num_rows:
        located = with_tablets(errors, _routing(plan))
        # The text contains the message of the first row, to which `with_tablets` has added the tablet.
        first, first_located = (str(found.column("message")[0]) for found in (errors, located))
        text, errors = text.replace(first, first_located, 1), located
    if options.result is not None and errors is not None:
        write_errors(options, errors)
    if options.result is None:  # Spark's exception has no attribute `errors`
        text = text.replace("(all failing rows are in .errors)", "(all of them: .option('result', folder))")
    if errors is not None and errors.num_rows:
        text += f"\n{failures_text(errors)}"
    return type(error)(text, errors)


def _routing(plan: LoadPlan) -> TableState:
    return plan.table_state(None, range(len(plan.tablets)))


def report(options: WriteOptions, outcome: dict[str, Any], plan: LoadPlan) -> None:
    """Write counts and failing rows to the `result` folder. Without a folder, log the failing rows."""
    errors: pa.Table | None = outcome["errors"]
    errors = None if errors is None else with_tablets(rows_in_options(errors), _routing(plan))
    failed = 0 if errors is None else errors.num_rows
    if options.result is not None:
        if errors is not None and failed:
            write_errors(options, errors)
        # result.json is written last. If it exists, errors.parquet is complete.
        counts = {name: outcome[name] for name in ("timestamp", "inserted", "updated", "deleted", "ignored")}
        files = _result_files(options)
        files.make_dirs(options.result)
        files.write_atomic(
            os.path.join(options.result, "result.json"), json.dumps({**counts, "errors": failed}).encode()
        )
    elif failed:
        assert errors is not None
        _log.warning(
            "%s into table %r: %d rows were not applied (%s\nall of them: .option('result', folder))",
            options.operation,
            options.table,
            failed,
            failures_text(errors),
        )


def write_errors(options: WriteOptions, errors: pa.Table) -> None:
    """Write `errors`, one row per failing row, to errors.parquet in the folder `options.result`."""
    import pyarrow.parquet as pq

    assert options.result is not None
    files = _result_files(options)
    files.make_dirs(options.result)
    buffer = pa.BufferOutputStream()
    pq.write_table(errors, buffer)
    files.write_atomic(os.path.join(options.result, "errors.parquet"), buffer.getvalue().to_pybytes())


def _result_files(options: WriteOptions) -> Files:
    """Return the object that accesses the `result` folder: in the store's bucket, or on this machine."""
    return options.address.env.files if is_bucket_url(options.result) else SYSTEM.files
