"""`nyala table load`: writes the rows of Parquet, CSV and JSON files into a table.

Each batch of a file is one atomic write. At its end a load flushes the store if much is in memory.

Invariants
    E1  A load that fails or is stopped leaves whole batches only, and prints how many rows they were. With --create it
        leaves nothing: the table is dropped again, and so is the store if the load made it.
    E2  The first Ctrl-C waits for the batch that is being written; a second one does not. Neither waits for the flush:
        those rows are durable in the log already.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import click

from nyala.cli.base import Command, Failure, cli_words, settings
from nyala.cli.cells import parse_value
from nyala.cli.files import (
    STDIO,
    UNREADABLE,
    CsvDialect,
    DataFile,
    Part,
    find_files,
    infer_schema,
    lines_of,
    read_parts,
    row_error,
)
from nyala.cli.options import delimiter_option, folder_argument, format_option, names
from nyala.cli.output import counted, duration, echo_json, moment
from nyala.cli.progress import Bar, SecondInterrupt, finish_first
from nyala.cli.stores import state_of, utf8_files, writer

if TYPE_CHECKING:
    import pyarrow as pa

    from nyala.api.database import Database
    from nyala.api.table import Table
    from nyala.tablet.state.result import WriteResult

__all__ = ["load"]

OPERATIONS: Final = (
    "insert", "insert-ignore", "upsert", "update", "update-ignore", "delete", "delete-ignore",
)  # fmt: skip
# Failing rows that are printed in full.
_ERRORS_TEXT: Final = 5
_ERRORS_JSON: Final = 100
# A load flushes at its end if more memory than this is in use. Nothing flushes it later, and each following command
# would replay it from the log, at 4 ms per MB. A flush costs 15 ms per MB once, but a small load makes a small rowset.
_FLUSH_BYTES: Final = 8 << 20

# Messages of the library that name arguments, in terms of options.
_MESSAGES: Final = {
    "already-present": "duplicate key; --operation upsert updates the stored row, insert-ignore skips this one",
    "not-found": "no row has this key; --operation {verb}-ignore skips it",
}
_COLUMN: Final = re.compile(r"column '([^']*)'")
_DUPLICATE: Final = re.compile(r"duplicate key in this batch: rows (\d+) and (\d+)")


@click.command(cls=Command)
@folder_argument
@click.argument("table")
@click.argument(
    "files",
    metavar="FILE|FOLDER...",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, allow_dash=True),
    callback=utf8_files,
)
@click.option(
    "--operation",
    type=click.Choice(OPERATIONS),
    help="What to do with each row. Default: upsert; insert if --create creates the table.",
)
@click.option(
    "--errors",
    type=click.Choice(["raise", "collect"]),
    default="raise",
    show_default=True,
    help="raise: a failing row stops the load; collect: failing rows are printed and skipped.",
)
@click.option("--columns", metavar="A,B", callback=names, help="Only these columns of the file.")
@click.option("--create", is_flag=True, help="Create a missing table (and store), with the file's columns.")
@click.option("--key", metavar="A,B", callback=names, help="With --create: the primary key.")
@click.option(
    "--hash",
    "hashes",
    metavar="A,B/N",
    multiple=True,
    help="With --create: N buckets by a hash; may be repeated.",
)
@click.option("--range", "range_", metavar="A=V1,V2", help="With --create: ranges of A, split at V1 and V2.")
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
@click.option("--message", metavar="TEXT", help="A text about the load, stored with each of its batches.")
def load(
    folder: str,
    table: str,
    files: Sequence[str],
    operation: str | None,
    errors: str,
    columns: list[str] | None,
    create: bool,
    key: list[str] | None,
    hashes: tuple[str, ...],
    range_: str | None,
    types: tuple[str, ...],
    format_: str | None,
    delimiter: str | None,
    nulls: tuple[str, ...],
    message: str | None,
) -> None:
    """Load Parquet, CSV or JSON files, or folders of them, into a table, in batches; `-` is stdin, a CSV by default.

    A batch is 100,000 rows, or fewer that take 32 MB: atomic, and durable when it is counted. Columns go by name; those
    that the file lacks keep their values in an upsert or update, or get their defaults. In a CSV, an empty field is
    NULL; in JSON, a member that a row lacks. JSON has a row per line, or one array of rows.
    """
    if create and not key:
        raise click.UsageError("--create needs --key: the columns that identify a row")
    if not create and (key or hashes or range_ or types):
        raise click.UsageError("--key, --hash, --range and --type describe a new table: add --create")
    if files.count(STDIO) > 1:
        raise click.UsageError("FILE `-` (stdin) can be given only once")
    dialect, began_s = CsvDialect(delimiter, nulls), time.monotonic()
    from nyala.tablet.state.messages import check_message

    check_message(message)
    with find_files(files, format_) as found:
        spec: dict[str, Any] | None = None
        if create:
            assert key is not None
            spec = _new_table(infer_schema(found[0], dialect, columns), key, hashes, range_, types)
        with writer(folder, create=create) as database:
            create = create and table not in database
            target = (
                _existing(database, table)
                if spec is None
                else database.create_table(table, **spec, exist_ok=True)
            )
            if create and not settings().json:
                # The types of a CSV are a guess, and those of the key cannot be changed later.
                columns_made = state_of(database, table).schema.columns
                shown = ", ".join(f"{column.name} {column.type}" for column in columns_made)
                click.echo(f"{table} created: {shown}. Wrong type? Pass --type COLUMN=TYPE.", err=True)
            load = _Load(
                database,
                target,
                create,
                operation or ("insert" if create else "upsert"),
                errors,
                dialect,
                message,
            )
            load.run(found, columns)
            _echo_result(load, [file.name for file in found], time.monotonic() - began_s)


@dataclass
class _Load:
    """A running load, and its counts over all files and batches."""

    database: Database
    table: Table
    created: bool
    operation: str
    on_error: str
    dialect: CsvDialect
    message: str | None
    rows: int = 0
    batches: int = 0
    counts: Counter[str] = field(default_factory=Counter)  # inserted, updated, deleted, ignored
    failed: Counter[str] = field(default_factory=Counter)  # by code
    errors: list[dict[str, Any]] = field(default_factory=list)
    timestamp: int = 0

    def run(self, files: Sequence[DataFile], columns: Sequence[str] | None) -> None:
        """Load the files, then flush (E1, E2)."""
        from nyala.errors import Error

        try:
            with Bar(f"loading {self.table.name}", len(files), quiet=settings().json) as bar:
                for number, file in enumerate(files):
                    self._load_file(
                        file, columns, lambda done, n=number: bar.update(n + done, f"{self.rows:,} rows")
                    )
        except BaseException as error:
            self._report_stop(error)
            if not _is_impatient(error):
                with contextlib.suppress(Error, KeyboardInterrupt):
                    self._flush()
            raise
        kept = f"{counted(self._kept(), 'row')} loaded, so far only in the log"
        try:
            self._flush()
        except (KeyboardInterrupt, Error) as error:
            stopped = isinstance(error, KeyboardInterrupt) or _is_impatient(error)
            if not settings().json:
                click.echo(kept + ("." if stopped else f": {cli_words(str(error))}"), err=True)
            if stopped:
                raise
        self.timestamp = self.timestamp or self.database.now()

    def _kept(self) -> int:
        """Return the number of rows that did not fail."""
        return self.rows - self.failed.total()

    def _load_file(self, file: DataFile, columns: Sequence[str] | None, progress: Any) -> None:
        from nyala.errors import WriteError

        schema = state_of(self.database, self.table.name).schema
        types = {column.name: column.type for column in schema.columns}
        begin = len(self.errors)
        for part in read_parts(file, self.dialect, types, columns, schema.key_names):
            errors = list(part.bad)
            if errors and self.on_error == "raise":
                raise self._failure(file, errors, part.bad_count, "FileError")
            with finish_first():  # E2
                if part.batch.num_rows:
                    try:
                        result = _write(self.table, self.operation, part.batch, self.on_error, self.message)
                    except WriteError as error:
                        raise self._refused(error, file, part) from error
                    self.batches += 1
                    for name in ("inserted", "updated", "deleted", "ignored"):
                        self.counts[name] += getattr(result, name)
                    self.failed.update(result.errors.column("code").to_pylist())
                    self.timestamp = result.timestamp
                    errors += self._row_errors(result.errors, file, part)
                self.rows += part.batch.num_rows + part.bad_count
                self.failed += Counter({UNREADABLE: part.bad_count})
                self.errors += errors
                del self.errors[_ERRORS_JSON:]
            progress(part.done or 0)
        self.errors[begin:] = sorted(self.errors[begin:], key=lambda error: error["row"])
        self._add_lines(file, self.errors[begin:])

    def _row_errors(self, errors: pa.Table, file: DataFile, part: Part) -> list[dict[str, Any]]:
        """Return the first rows that the table refused, with their numbers in the file."""
        from nyala.cli.cells import json_columns

        found = []
        for row, _, code, message, *key in zip(*json_columns(errors.slice(0, _ERRORS_JSON)), strict=True):
            column = _COLUMN.match(message)
            if duplicate := _DUPLICATE.match(message):
                first, second = (part.numbers[int(place)] for place in duplicate.groups())
                message = (
                    f"duplicate key: rows {first:,} and {second:,} of the file have the same key; --operation upsert "
                    "keeps the later row, insert-ignore the first"
                )
            else:
                message = _MESSAGES.get(code, message).replace("{verb}", self.operation.partition("-")[0])
            key_cells = dict(zip(errors.column_names[4:], key, strict=True))
            number = int(part.numbers[row])
            found.append(row_error(file, number, code, message, key_cells, column and column[1]))
        return found

    def _refused(self, error: Any, file: DataFile, part: Part) -> Failure:
        """Return the error of a batch in terms of the file."""
        if error.errors is None or not len(error.errors):
            return Failure(f"{file.name}: {error}", type(error).__name__, {"rows_loaded": self._kept()})
        found = self._row_errors(error.errors, file, part)
        return self._failure(file, found, len(error.errors), type(error).__name__)

    def _failure(self, file: DataFile, errors: list[dict[str, Any]], count: int, kind: str) -> Failure:
        """Return the error that stops a load: the first failing rows, how many there are, and the way to go on."""
        advice = "--errors collect skips such rows and loads the others"
        self._add_lines(file, errors)
        if settings().json or count == 1:
            more = "" if count == 1 else f" ({count:,} rows of this batch fail)"
            message = f"{_row_text(errors[0])}{more}; {advice}"
        else:
            message = "\n".join([f"{count:,} rows of a batch fail; {advice}", *_error_lines(errors, count)])
        return Failure(message, kind, {"rows_loaded": self._kept(), "failed": count, "errors": errors})

    def _add_lines(self, file: DataFile, errors: Sequence[dict[str, Any]]) -> None:
        """Add to failing rows of a CSV the line in which each begins."""
        if errors and file.format == "csv":
            lines = lines_of(file, self.dialect, [error["row"] for error in errors])
            for error in errors:
                error["line"] = lines.get(error["row"])

    def _report_stop(self, error: BaseException) -> None:
        """Print what an unfinished load leaves (E1)."""
        kept = 0 if self.created else self._kept()
        note = f"{kept:,} rows are loaded and stay; the others are not." if kept else ""
        if self.created:
            self.database.drop_table(self.table.name, missing_ok=True, purge=True)
            note = f"{self.table.name} was dropped again, because the load failed."
        if note and not settings().json:
            click.echo(note, err=True)
        if isinstance(error, Failure):
            error.details["rows_loaded"] = kept

    def _flush(self) -> None:
        """Flush if much is in memory. Raises Error; then, and after a KeyboardInterrupt, the rows are in the log."""
        if self.database.stats().memory_bytes > _FLUSH_BYTES:
            self.database.flush()


def _row_text(error: Mapping[str, Any]) -> str:
    line = "" if error["line"] is None else f", line {error['line']}"
    key = ", ".join(f"{name} = {value!r}" for name, value in error["key"].items())
    return f"{error['file']}, row {error['row']}{line}{f' ({key})' if key else ''}: {error['message']}"


def _error_lines(errors: Sequence[Mapping[str, Any]], count: int) -> list[str]:
    lines = [f"  {_row_text(error)}" for error in errors[:_ERRORS_TEXT]]
    left = count - len(lines)
    return [*lines, f"  … and {left:,} more: --json prints the first {_ERRORS_JSON}"] if left else lines


def _is_impatient(error: BaseException) -> bool:
    """Whether a Ctrl-C ended the write itself."""
    return isinstance(error, SecondInterrupt) or isinstance(error.__cause__, KeyboardInterrupt)


def _existing(database: Database, name: str) -> Table:
    from nyala.errors import TableNotFoundError

    try:
        return database.table(name)
    except TableNotFoundError as error:
        raise TableNotFoundError(f"{error}; --create --key COLUMNS creates it") from None


def _write(
    table: Table, operation: str, batch: pa.RecordBatch, errors: Any, message: str | None
) -> WriteResult:
    verb, _, ignore = operation.partition("-")
    given: dict[str, Any] = {"errors": errors, "message": message}
    if verb == "insert":
        return table.insert(batch, on_conflict="ignore" if ignore else "error", **given)
    if verb == "upsert":
        return table.upsert(batch, **given)
    if verb == "update":
        return table.update(batch, on_missing="ignore" if ignore else "error", **given)
    return table.delete(batch, on_missing="ignore" if ignore else "error", **given)


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
    shown = ", ".join(f"{count:,} {word}" for word, count in counts.items() if count) or "nothing to do"
    click.echo(
        f"{load.table.name}: {load.rows:,} rows in {duration(seconds)}: {shown}; "
        f"as of {when['time']} (timestamp {when['timestamp']})"
    )
    for code, count in load.failed.most_common():
        click.echo(f"failed, {code}: {counted(count, 'row')}", err=True)
    for line in _error_lines(load.errors, load.failed.total()):
        click.echo(line, err=True)


# -- a new table -------------------------------------------------------------------------------------------


def _new_table(
    schema: pa.Schema, key: Sequence[str], hashes: Sequence[str], range_: str | None, types: Sequence[str]
) -> dict[str, Any]:
    """Return the arguments for `create_table`. Raises: click.UsageError, and the errors of `create_table`."""
    import nyala
    from nyala.errors import ColumnNotFoundError
    from nyala.schema.schema import find_name
    from nyala.schema.types import parse_type

    named = {}
    for text in types:
        name, separator, type = text.partition("=")
        if not separator:
            raise click.UsageError(f"--type {text!r}: write it as column=type, for instance zip=string")
        if name not in schema.names:
            raise ColumnNotFoundError(
                f"--type: no column {name!r} in the file" + find_name(name, schema.names)
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
            raise ColumnNotFoundError(f"--range: no column {name!r}" + find_name(name, list(columns)))
        splits = [parse_value(columns[name].type, value.strip()) for value in values.split(",")]
        partition_by.append(nyala.range_partition(name, splits=splits))
    return {"schema": columns, "primary_key": list(key), "partition_by": partition_by}
