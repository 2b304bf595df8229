"""`nyala table load` writes rows of Parquet, CSV and JSON files into a table; `apply-changes`
applies change events.

Each batch of a file is one atomic write. After the last batch, a load flushes the store if much is
in memory.

Invariants
    E1  A load that fails or is stopped leaves only whole batches, and prints their number of rows.
        A load that created the table drops it again, and removes the store if it created the store
        too.
    E2  The first Ctrl-C waits for the batch that is being written; a second Ctrl-C does not.
        Neither waits for the flush, because the rows are already durable in the log.
"""

from __future__ import annotations

import contextlib
import io
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import click

from nyala.cli.base import Command, Failure, cli_words, settings
from nyala.cli.files import (
    STDIO,
    UNREADABLE,
    CsvDialect,
    DataFile,
    FileBatch,
    find_files,
    infer_schema,
    lines_of,
    read_batches,
    row_error,
)
from nyala.cli.options import delimiter_option, folder_argument, format_option, names, parse_value
from nyala.cli.output import counted, duration, echo_json, moment
from nyala.cli.progress import Bar, SecondInterrupt, delay_interrupt
from nyala.cli.stores import check_file_names, state_of, writer

if TYPE_CHECKING:
    import pyarrow as pa

    from nyala.api.database import Database
    from nyala.api.table import Table
    from nyala.tablet.state.result import WriteResult

__all__ = ["apply_changes", "load"]

OPERATIONS: Final = (
    "insert", "insert-ignore", "upsert", "update", "update-ignore", "delete", "delete-ignore",
)  # fmt: skip
_BY_SEQUENCE: Final = ("upsert", "delete", "delete-ignore")
# A batch of change events is smaller than a batch of rows, because events are parsed one by one.
_EVENTS: Final = 10_000
# At most this many failing rows are printed, as text and with --json.
_ERRORS_TEXT: Final = 5
_ERRORS_JSON: Final = 100
# A load flushes the store if more than this is in memory. Otherwise each following command would
# replay these rows from the log, which takes 4 ms per MB; the flush takes 15 ms per MB once. Small
# loads do not flush, because they would leave many small rowsets.
_FLUSH_BYTES: Final = 8 << 20

# For error codes of rows, messages that name options of the command line.
_MESSAGES: Final = {
    "already-present": "duplicate key; --operation upsert updates the stored row, insert-ignore skips this one",
    "not-found": "no row has this key; --operation {verb}-ignore skips it",
}
_COLUMN: Final = re.compile(r"column '([^']*)'")
_EVENT: Final = re.compile(r"\bevent (\d+)")
_DUPLICATE: Final = re.compile(r"duplicate key in this batch: rows (\d+) and (\d+)")


_files_argument = click.argument(
    "files",
    metavar="FILE|FOLDER...",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, allow_dash=True),
    callback=check_file_names,
)
_message_option = click.option(
    "--message", metavar="TEXT", help="A text about the load, stored with each of its batches."
)


@click.command(cls=Command)
@folder_argument
@click.argument("table")
@_files_argument
@click.option(
    "--operation",
    type=click.Choice(OPERATIONS),
    help="What to do with each row. Default: upsert; insert if --create creates the table, or its key is not unique.",
)
@click.option(
    "--errors",
    type=click.Choice(["raise", "collect"]),
    default="raise",
    help="raise: a failing row stops the load; collect: failing rows are printed and skipped. Default: raise.",
)
@click.option("--columns", metavar="A,B", callback=names, help="Only these columns of the file.")
@click.option("--create", is_flag=True, help="Create a missing table (and store), with the file's columns.")
@click.option("--key", metavar="A,B", callback=names, help="With --create: the primary key.")
@click.option(
    "--not-unique",
    is_flag=True,
    help="With --create: several rows may have the same --key, and --key is optional; the store numbers the rows.",
)
@click.option(
    "--hash",
    "hashes",
    metavar="A,B/N",
    multiple=True,
    help="With --create: spread the rows over N buckets by a hash of A and B; may be repeated.",
)
@click.option(
    "--range",
    "range_",
    metavar="A=V1,V2",
    help="With --create: partition by ranges of A, split at V1 and V2.",
)
@click.option(
    "--type",
    "types",
    metavar="A=TYPE",
    multiple=True,
    help="With --create: the type of column A; may be repeated.",
)
@format_option
@delimiter_option
@click.option(
    "--null", "nulls", metavar="WORD", multiple=True, help="A word that means NULL in a CSV; may be repeated."
)
@click.option(
    "--newest-by",
    metavar="COLUMN",
    help="Write a row only if its COLUMN is greater than that of all earlier rows with its key.",
)
@_message_option
def load(
    folder: str,
    table: str,
    files: Sequence[str],
    operation: str | None,
    errors: Literal["raise", "collect"],
    columns: list[str] | None,
    create: bool,
    key: list[str] | None,
    not_unique: bool,
    hashes: tuple[str, ...],
    range_: str | None,
    types: tuple[str, ...],
    format_: str | None,
    delimiter: str | None,
    nulls: tuple[str, ...],
    newest_by: str | None,
    message: str | None,
) -> None:
    """Load Parquet, CSV or JSON files, or folders of them, into a table.

    FILE `-` is stdin, a CSV by default. The rows are written in atomic batches of 100,000 rows, or
    fewer if they take 32 MB. Columns are matched by name. An upsert or update keeps the values of
    columns that the file does not have; new rows get the defaults. NULL is an empty field in a CSV,
    and a missing member in JSON. JSON has one row per line, or one array of rows.
    """
    if create and not (key or not_unique):
        raise click.UsageError("--create needs --key (the columns that identify a row) or --not-unique")
    if not create and (key or not_unique or hashes or range_ or types):
        raise click.UsageError(
            "--key, --not-unique, --hash, --range and --type describe a new table: add --create"
        )
    if files.count(STDIO) > 1:
        raise click.UsageError("FILE `-` (stdin) can be given only once")
    if newest_by is not None and (operation or "upsert") not in _BY_SEQUENCE:
        raise click.UsageError(f"--newest-by goes with --operation {', '.join(_BY_SEQUENCE)}")
    dialect, began_s = CsvDialect(delimiter, nulls), time.monotonic()
    from nyala.tablet.state.messages import check_message

    check_message(message)
    with find_files(files, format_) as found:
        spec: dict[str, Any] | None = None
        if create:
            spec = _new_table(infer_schema(found[0], dialect, columns), key or [], hashes, range_, types)
            spec["unique"] = not not_unique
            spec["primary_key"] = spec["primary_key"] or None
        with writer(folder, create=create) as database:
            create = create and table not in database
            target = (
                _existing(database, table)
                if spec is None
                else database.create_table(table, **spec, exist_ok=True)
            )
            if create and not settings().json:
                # The types of a CSV are a guess, and the types of the key cannot be changed later.
                columns_text = ", ".join(
                    f"{column.name} {column.type}" for column in state_of(database, table).schema.columns
                )
                click.echo(f"{table} created: {columns_text}. Wrong type? Pass --type COLUMN=TYPE.", err=True)
            auto_increment = state_of(database, table).schema.auto_increment is not None
            load = _Load(
                database,
                target,
                create,
                operation or ("insert" if (create and newest_by is None) or auto_increment else "upsert"),
                errors,
                message,
                dialect,
                columns,
                newest_by,
            )
            load.run(found)
            _echo_result(load, [file.name for file in found], time.monotonic() - began_s)


@click.command("apply-changes", cls=Command)
@folder_argument
@click.argument("table")
@_files_argument
@click.option(
    "--operation",
    metavar="FIELD",
    default="op",
    show_default=True,
    help="The field that names the operation of an event.",
)
@click.option(
    "--sequence",
    metavar="FIELD",
    help="A field that grows with each change of a row, such as source.lsn or ts_ms.",
)
@click.option(
    "--sequence-column",
    metavar="COLUMN",
    help="The column that stores the value of --sequence. Default: the field's name.",
)
@click.option(
    "--columns", metavar="A,B=C", callback=names, help="Only these fields; B=C writes field B to column C."
)
@click.option(
    "--unit", "units", metavar="A=UNIT", multiple=True,
    help="Numbers of column A are times in UNIT: s, ms, us, ns, d (days); may be repeated.",
)  # fmt: skip
@click.option(
    "--word", "words", metavar="WORD=MEANING", multiple=True,
    help="Treat the operation WORD as MEANING: upsert, delete or skip. May be repeated.",
)  # fmt: skip
@click.option(
    "--errors",
    type=click.Choice(["raise", "collect"]),
    default="raise",
    help="raise: a failing event stops the command; collect: failing events are printed and skipped. Default: raise.",
)
@_message_option
def apply_changes(
    folder: str,
    table: str,
    files: Sequence[str],
    operation: str,
    sequence: str | None,
    sequence_column: str | None,
    columns: list[str] | None,
    units: tuple[str, ...],
    words: tuple[str, ...],
    errors: Literal["raise", "collect"],
    message: str | None,
) -> None:
    """Apply change events of JSON files, one per line: events of Debezium, or rows with an
    operation.

    A batch has 10,000 events. With --sequence, an event changes nothing if a newer event of the
    same key, or the same event, was applied before. --word gives other operation words a meaning,
    for example I=upsert. `-` is stdin.
    """
    if files.count(STDIO) > 1:
        raise click.UsageError("FILE `-` (stdin) can be given only once")
    began_s = time.monotonic()
    options = {
        "operation": operation,
        "sequence": sequence,
        "sequence_column": sequence_column,
        "columns": None if columns is None else _pairs("--columns", columns, allow_single=True),
        "units": _pairs("--unit", units),
        "operations": _pairs("--word", words),
    }
    with find_files(files, "json") as found, writer(folder) as database:
        load = _EventLoad(
            database, _existing(database, table), False, "apply-changes", errors, message, options=options
        )
        load.run(found)
        _echo_result(load, [file.name for file in found], time.monotonic() - began_s)


def _pairs(option: str, texts: Sequence[str], *, allow_single: bool = False) -> dict[str, str]:
    """Parse the pairs `A=B`. allow_single: `A` means `A=A`. Raises click.UsageError."""
    found = {}
    for text in texts:
        left, sign, right = text.rpartition("=") if "=" in text else (text, "", text)
        if not left or not right or not (sign or allow_single):
            raise click.UsageError(f"{option} {text!r}: write it as NAME=VALUE")
        found[left] = right
    return found


@dataclass
class _Load:
    """A running load, and its counts over all files and batches."""

    database: Database
    table: Table
    created: bool
    operation: str
    on_error: Literal["raise", "collect"]
    message: str | None
    dialect: CsvDialect = field(default_factory=CsvDialect)
    columns: Sequence[str] | None = None
    newest_by: str | None = None
    rows: int = 0
    batches: int = 0
    counts: Counter[str] = field(default_factory=Counter)  # inserted, updated, deleted, ignored
    failed: Counter[str] = field(default_factory=Counter)  # rows by error code
    errors: list[dict[str, Any]] = field(default_factory=list)
    timestamp: int = 0

    what: ClassVar[str] = "rows"

    def run(self, files: Sequence[DataFile]) -> None:
        """Load the files, then flush the store."""
        from nyala.errors import Error

        try:
            with Bar(f"loading {self.table.name}") as bar:
                for number, file in enumerate(files):
                    self._load_file(
                        file,
                        lambda done, n=number: bar.update(n + done, len(files), f"{self.rows:,} {self.what}"),
                    )
        except BaseException as error:
            self._report_stop(error)
            if not _ended_by_interrupt(error):
                with contextlib.suppress(Error, KeyboardInterrupt):
                    self._flush()
            raise
        text = f"{counted(self._loaded(), 'row')} loaded, so far only in the log"
        try:
            self._flush()
        except (KeyboardInterrupt, Error) as error:
            stopped = isinstance(error, KeyboardInterrupt) or _ended_by_interrupt(error)
            if not settings().json:
                click.echo(text + ("." if stopped else f": {cli_words(str(error))}"), err=True)
            if stopped:
                raise
        self.timestamp = self.timestamp or self.database.now()

    def _loaded(self) -> int:
        return self.rows - self.failed.total()

    def _batches(self, file: DataFile) -> Iterator[FileBatch]:
        schema = state_of(self.database, self.table.name).schema
        types = {column.name: column.type for column in schema.columns}
        return read_batches(file, self.dialect, types, self.columns, schema.key_names)

    def _write(self, file: DataFile, batch: FileBatch) -> WriteResult:
        verb, _, ignore = self.operation.partition("-")
        given: dict[str, Any] = {"errors": self.on_error, "message": self.message}
        if verb == "insert":
            return self.table.insert(batch.batch, on_conflict="ignore" if ignore else "error", **given)
        if verb == "upsert":
            return self.table.upsert(batch.batch, newest_by=self.newest_by, **given)
        missing: Literal["ignore", "error"] = "ignore" if ignore else "error"
        if verb == "update":
            return self.table.update(batch.batch, on_missing=missing, **given)
        return self.table.delete(batch.batch, on_missing=missing, newest_by=self.newest_by, **given)

    def _load_file(self, file: DataFile, progress: Any) -> None:
        from nyala.errors import WriteError

        begin = len(self.errors)
        for batch in self._batches(file):
            errors = list(batch.bad)
            if errors and self.on_error == "raise":
                raise self._failure(file, errors, batch.bad_count, "FileError")
            with delay_interrupt():  # E2
                if batch.batch.num_rows:
                    try:
                        result = self._write(file, batch)
                    except WriteError as error:
                        raise self._write_failure(error, file, batch) from error
                    self.batches += 1
                    for name in ("inserted", "updated", "deleted", "ignored"):
                        self.counts[name] += getattr(result, name)
                    self.failed.update(result.errors.column("code").to_pylist())
                    self.timestamp = result.timestamp
                    errors += self._row_errors(result.errors, file, batch)
                self.rows += batch.batch.num_rows + batch.bad_count
                self.failed += Counter({UNREADABLE: batch.bad_count})
                self.errors += errors
                del self.errors[_ERRORS_JSON:]
            progress(batch.done or 0)
        self.errors[begin:] = sorted(self.errors[begin:], key=lambda error: error["row"])
        self._add_lines(file, self.errors[begin:])

    def _row_errors(self, errors: pa.Table, file: DataFile, batch: FileBatch) -> list[dict[str, Any]]:
        """Return the row errors of a batch of the file, as objects for JSON.

        The row numbers are those of the file. The messages name options of the command line, such
        as `--operation upsert`, instead of Python arguments.
        """
        from nyala.presentation.cells import json_columns

        found = []
        for row, _, code, message, *key in zip(*json_columns(errors.slice(0, _ERRORS_JSON)), strict=True):
            column = _COLUMN.match(message)
            if duplicate := _DUPLICATE.match(message):
                first, second = (batch.numbers[int(text)] for text in duplicate.groups())
                message = (
                    f"duplicate key: rows {first:,} and {second:,} of the file have the same key; --operation upsert "
                    "keeps the later row, insert-ignore the first"
                )
            else:
                message = _MESSAGES.get(code, message).replace("{verb}", self.operation.partition("-")[0])
            key_cells = dict(zip(errors.column_names[4:], key, strict=True))
            number = int(batch.numbers[row])
            found.append(row_error(file, number, code, message, key_cells, column and column[1]))
        return found

    def _write_failure(self, error: Any, file: DataFile, batch: FileBatch) -> Failure:
        """Return the error that the command reports for a rejected batch.

        error: the error of the write. Its row numbers count from the start of the batch. Those of
            the returned error count from the start of the file.
        """
        if error.errors is None or not len(error.errors):
            return Failure(f"{file.name}: {error}", type(error).__name__, {"rows_loaded": self._loaded()})
        found = self._row_errors(error.errors, file, batch)
        return self._failure(file, found, len(error.errors), type(error).__name__)

    def _failure(self, file: DataFile, errors: list[dict[str, Any]], count: int, kind: str) -> Failure:
        """Return the error that stops a load. It lists the first failing rows, and gives advice.

        count: the number of all failing rows of the batch. kind: the "type" of the error in JSON.
        """
        advice = "--errors collect skips such rows and loads the others"
        self._add_lines(file, errors)
        if settings().json or count == 1:
            more = "" if count == 1 else f" ({count:,} rows of this batch fail)"
            message = f"{_row_text(errors[0])}{more}; {advice}"
        else:
            message = "\n".join([f"{count:,} rows of a batch fail; {advice}", *_error_lines(errors, count)])
        return Failure(message, kind, {"rows_loaded": self._loaded(), "failed": count, "errors": errors})

    def _add_lines(self, file: DataFile, errors: Sequence[dict[str, Any]]) -> None:
        """For a CSV, add "line" to each error: the line of the file in which the row begins."""
        if errors and file.format == "csv":
            lines = lines_of(file, self.dialect, [error["row"] for error in errors])
            for error in errors:
                error["line"] = lines.get(error["row"])

    def _report_stop(self, error: BaseException) -> None:
        """Print how many rows a failed load wrote, and drop the table if the load created it."""
        loaded = 0 if self.created else self._loaded()
        note = f"{loaded:,} rows are loaded and stay; the others are not." if loaded else ""
        if self.created:
            self.database.drop_table(self.table.name, missing_ok=True, purge=True)
            note = f"{self.table.name} was dropped again, because the load failed."
        if note and not settings().json:
            click.echo(note, err=True)
        if isinstance(error, Failure):
            error.details["rows_loaded"] = loaded

    def _flush(self) -> None:
        """Flush the store if much is in memory. If this fails, the rows are still safe in the log."""
        if self.database.stats().memory_bytes > _FLUSH_BYTES:
            self.database.flush()


@dataclass
class _EventLoad(_Load):
    """A load of change events. Its batches have one column: the events as JSON text."""

    options: Mapping[str, Any] = field(default_factory=dict)  # of `Table.apply_changes`
    what: ClassVar[str] = "events"

    def _batches(self, file: DataFile) -> Iterator[FileBatch]:
        import numpy as np
        import pyarrow as pa

        lines: list[bytes] = []
        numbers: list[int] = []

        def batch() -> FileBatch:
            events = pa.record_batch({"event": pa.array(lines, pa.binary())})
            result = FileBatch(events, np.array(numbers, np.int64), None)
            lines.clear()
            numbers.clear()
            return result

        with pa.input_stream(file.path) as stream:
            for number, line in enumerate(io.BufferedReader(stream), 1):
                if line.strip():
                    lines.append(line)
                    numbers.append(number)
                if len(lines) == _EVENTS:
                    yield batch()
        yield batch()

    def _write(self, file: DataFile, batch: FileBatch) -> WriteResult:
        from nyala.errors import Error, WriteError

        events = batch.batch.column("event").to_pylist()
        try:
            return self.table.apply_changes(
                events,
                **self.options,
                errors=self.on_error,
                message=self.message,
            )
        except WriteError:
            raise
        except Error as error:
            text = _EVENT.sub(
                lambda found: f"{file.name}, line {batch.numbers[int(found[1])]}", str(error), 1
            )
            error.args = (text, *error.args[1:])
            raise


def _row_text(error: Mapping[str, Any]) -> str:
    line = "" if error["line"] is None else f", line {error['line']}"
    key = ", ".join(f"{name} = {value!r}" for name, value in error["key"].items())
    return f"{error['file']}, row {error['row']}{line}{f' ({key})' if key else ''}: {error['message']}"


def _error_lines(errors: Sequence[Mapping[str, Any]], count: int) -> list[str]:
    lines = [f"  {_row_text(error)}" for error in errors[:_ERRORS_TEXT]]
    left = count - len(lines)
    return [*lines, f"  … and {left:,} more: --json prints the first {_ERRORS_JSON}"] if left else lines


def _ended_by_interrupt(error: BaseException) -> bool:
    """Whether the error says that a second Ctrl-C interrupted a write."""
    return isinstance(error, SecondInterrupt) or isinstance(error.__cause__, KeyboardInterrupt)


def _existing(database: Database, name: str) -> Table:
    from nyala.errors import TableNotFoundError

    try:
        return database.table(name)
    except TableNotFoundError as error:
        raise TableNotFoundError(f"{error} (--create --key COLUMNS creates it)") from None


def _echo_result(load: _Load, files: Sequence[str], seconds: float) -> None:
    counts = {name: load.counts[name] for name in ("inserted", "updated", "deleted", "ignored")}
    counts["failed"] = load.failed.total()
    when = moment(load.timestamp)
    if settings().json:
        echo_json(
            {
                "store": load.database.path,
                "table": load.table.name,
                "created": load.created,
                "operation": load.operation,
                "files": files,
                "rows": load.rows,
                "batches": load.batches,
                **counts,
                "errors": load.errors,
                **when,
                "seconds": round(seconds, 3),
            }
        )
        return
    text = ", ".join(f"{count:,} {word}" for word, count in counts.items() if count) or "nothing to do"
    click.echo(
        f"{load.table.name}: {load.rows:,} {load.what} in {duration(seconds)}: {text}; "
        f"as of {when['time']} (timestamp {when['timestamp']})"
    )
    for code, count in load.failed.most_common():
        click.echo(f"failed, {code}: {counted(count, 'row')}", err=True)
    for line in _error_lines(load.errors, load.failed.total()):
        click.echo(line, err=True)


def _new_table(
    schema: pa.Schema, key: Sequence[str], hashes: Sequence[str], range_: str | None, types: Sequence[str]
) -> dict[str, Any]:
    """Return the arguments of `create_table` for the options of --create.

    Raises click.UsageError and SchemaError.
    """
    import nyala
    from nyala.errors import ColumnNotFoundError
    from nyala.schema.schema import name_hint
    from nyala.schema.types import parse_type

    named = {}
    for text in types:
        name, separator, type = text.partition("=")
        if not separator:
            raise click.UsageError(f"--type {text!r}: write it as column=type, for instance zip=string")
        if name not in schema.names:
            raise ColumnNotFoundError(
                f"--type: no column {name!r} in the file" + name_hint(name, schema.names)
            )
        named[name] = parse_type(type)
    columns = {
        field.name: nyala.column(named.get(field.name, field.type), nullable=field.nullable)
        for field in schema
    }
    partition_by: list[Any] = []
    for text in hashes:
        left, separator, buckets = text.rpartition("/")
        if not separator or not buckets.strip().isdigit():
            raise click.UsageError(
                f"--hash {text!r}: write it as columns/buckets, for instance host,metric/4"
            )
        partition_by.append(
            nyala.hash_partition(*(name.strip() for name in left.split(",")), buckets=int(buckets))
        )
    if range_ is not None:
        name, separator, values = range_.partition("=")
        name = name.strip()
        if not separator or not values:
            raise click.UsageError(
                f"--range {range_!r}: write it as column=value,value, for instance time=2026-01-01,2026-07-01"
            )
        if name not in columns:
            raise ColumnNotFoundError(f"--range: no column {name!r}" + name_hint(name, list(columns)))
        splits = [parse_value(columns[name].type, value.strip()) for value in values.split(",")]
        partition_by.append(nyala.range_partition(name, splits=splits))
    return {"schema": columns, "primary_key": list(key), "partition_by": partition_by}
