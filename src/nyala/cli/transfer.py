"""`nyala table load` and `nyala table export`: Parquet, CSV and JSON into a table, and out of it.

    load    file ── batches ── one atomic write each ── counted ── at its end flushed, if it is much
    export  scan, one snapshot ── batches ── FILE.<pid>.partial ── synced, renamed to FILE

Invariants
    E1  A load that fails or is stopped leaves whole batches only, and says how many rows they were. With --create it
        leaves nothing: the table is dropped again, and so is the store if the load made it.
    E2  Ctrl-C waits for the batch that is being written; a second one does not. Neither waits for the flush: what it
        would write to files is durable already, in the log.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import click

from nyala.cli.base import Command, Failure, settings
from nyala.cli.output import counted, duration, echo_json, moment
from nyala.cli.progress import Bar, SecondInterrupt, finish_first
from nyala.cli.sources import (
    STDIO,
    BadRow,
    CsvDialect,
    Part,
    check_delimiter,
    data_files,
    format_of,
    infer_types,
    lines_of,
    open_sink,
    read_batches,
    recode,
)
from nyala.cli.stores import find_table, reader, state_of, tell_why_empty, utf8_files, writer
from nyala.cli.tables import folder_argument, names, scan_options
from nyala.cli.words import cli_words

if TYPE_CHECKING:
    import pyarrow as pa

    from nyala.database import Database
    from nyala.env import Files
    from nyala.table import Table
    from nyala.tablet.flush_run import Piece, Written
    from nyala.tablet.result import WriteResult

__all__ = ["export", "load"]

OPERATIONS: Final = (
    "insert", "insert-ignore", "upsert", "update", "update-ignore", "delete", "delete-ignore",
)  # fmt: skip
# Failing rows that are told one by one.
_ERRORS_TEXT: Final = 5
_ERRORS_JSON: Final = 100
# With this process its background ends, which would flush in its own time; what stays in memory each later command
# replays from the log, in some 4 ms a MB. A flush takes 15 ms a MB, once, and makes a small rowset of a small load.
# So much is replayed in 30 ms, little beside the start of a command; and the next load, if it brings more, flushes it.
_FLUSH_BYTES: Final = 8 << 20

# What the library says of these names its own arguments; here it is options.
_MESSAGES: Final = {
    "already-present": "the key is taken; --operation upsert would change that row, insert-ignore passes over it",
    "not-found": "there is no such key; --operation {verb}-ignore passes over it",
}
# The code of a row of a CSV that does not become one of the table.
UNREADABLE: Final = "unreadable"
_COLUMN: Final = re.compile(r"column '([^']*)'")
_TWICE: Final = re.compile(r"the key stands twice in this batch, in rows (\d+) and (\d+)")

format_option = click.option(
    "--format",
    "format_",
    type=click.Choice(["parquet", "csv", "json"]),
    help="What FILE is; else its name says.",
)
delimiter_option = click.option(
    "--delimiter",
    metavar="SIGN",
    help="Between the fields of a CSV: a comma, and in .tsv a tab, unless said.",
)


def _delimiter(text: str | None) -> str | None:
    if text in ("\\t", "tab"):
        return "\t"
    if text is not None and len(text.encode()) != 1:
        raise click.UsageError(f"--delimiter takes one sign, not {text!r}")
    return text


# -- load --------------------------------------------------------------------------------------------------


@dataclass
class Loaded:
    """What was done so far, over all files and batches."""

    rows: int = 0
    batches: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    ignored: int = 0
    timestamp: int = 0
    failed: Counter[str] = field(default_factory=Counter)  # by code
    errors: list[dict[str, Any]] = field(default_factory=list)

    discarded: bool = False

    @property
    def kept(self) -> int:
        """Rows that did not fail, and stay."""
        return 0 if self.discarded else self.rows - self.failed.total()

    def discard(self) -> None:
        """The table was dropped: no row stays."""
        self.discarded = True

    def add(self, part: Part, result: WriteResult | None, operation: str, path: str) -> None:
        """A part that is done. result: of its batch; None: it has no row."""
        self.rows += part.batch.num_rows + part.bad_count
        found = [bad_row(path, row) for row in part.bad]
        self.failed.update({UNREADABLE: part.bad_count} if part.bad_count else {})
        if result is not None:
            self.batches += 1
            self.inserted += result.inserted
            self.updated += result.updated
            self.deleted += result.deleted
            self.ignored += result.ignored
            self.timestamp = result.timestamp
            self.failed.update(result.errors.column("code").to_pylist())
            found += row_errors(result.errors.slice(0, _ERRORS_JSON), operation, path, part)
        room = _ERRORS_JSON - len(self.errors)
        self.errors += sorted(found, key=lambda error: error["row"])[:room]


def row_errors(errors: pa.Table, operation: str, path: str, part: Part) -> list[dict[str, Any]]:
    """Failing rows of a batch, with the place in the file: `row` counts its rows from 1, without the header."""
    from nyala.cli.cells import json_columns

    rows = zip(*json_columns(errors), strict=True)
    found = []
    for row, _, code, message, *key in rows:
        names = errors.column_names[4:]
        column = _COLUMN.match(message)
        found.append(
            {
                "file": path,
                "row": part.place(row),
                "line": None,
                "code": code,
                "column": None if column is None else column[1],
                "cell": None,
                "message": _row_message(code, message, operation, path, part),
                "key": dict(zip(names, key, strict=True)),
            }
        )
    return found


def bad_row(path: str, row: BadRow) -> dict[str, Any]:
    """A row that could not be read, as a failing row."""
    return {
        "file": path,
        "row": row.row,
        "line": None,
        "code": UNREADABLE,
        "column": row.column,
        "cell": row.cell,
        "message": row.message,
        "key": dict(row.key),
    }


def _row_message(code: str, message: str, operation: str, path: str, part: Part) -> str:
    twice = _TWICE.match(message)
    if twice is not None:
        first, second = (part.place(int(row)) for row in twice.groups())
        return (
            f"the key stands twice in the file, in rows {first:,} and {second:,}; --operation upsert keeps the later "
            "row, insert-ignore the first"
        )
    if code == "invalid-utf8":
        return f"{message}; {recode(path)}"
    return _MESSAGES.get(code, message).replace("{verb}", operation.partition("-")[0])


def add_lines(errors: Sequence[dict[str, Any]], format: str, dialect: CsvDialect) -> None:
    """To failing rows of one CSV, the lines in which they begin."""
    if errors and format == "csv":
        lines = lines_of(errors[0]["file"], dialect, [error["row"] for error in errors])
        for error in errors:
            error["line"] = lines.get(error["row"])


def _row_text(error: Mapping[str, Any]) -> str:
    line = "" if error["line"] is None else f", line {error['line']}"
    key = ", ".join(f"{name} = {value!r}" for name, value in error["key"].items())
    return f"{error['file']}, row {error['row']}{line}{f' ({key})' if key else ''}: {error['message']}"


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
    help="What to do with each row; default: upsert, and insert into a table that --create makes.",
)
@click.option(
    "--errors",
    type=click.Choice(["raise", "collect"]),
    default="raise",
    show_default=True,
    help="raise: a failing row stops the load; collect: it is told and left out.",
)
@click.option("--columns", metavar="A,B", callback=names, help="Only these columns of the file.")
@click.option(
    "--create", is_flag=True, help="Make the table (and the store) if it is missing, with the file's columns."
)
@click.option("--key", metavar="A,B", callback=names, help="With --create: the primary key.")
@click.option(
    "--hash",
    "hashes",
    metavar="A,B/N",
    multiple=True,
    help="With --create: N buckets by a hash; may be repeated.",
)
@click.option("--range", "range_", metavar="A=V1,V2", help="With --create: ranges of A, parted at V1 and V2.")
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
) -> None:
    """Load Parquet, CSV or JSON files, or folders of them, into a table, in batches; `-` is a CSV on stdin.

    A batch is 100,000 rows of Parquet or JSON, or 8 MB of a CSV: atomic, and durable when it is counted. Columns go by
    name; those that the file lacks keep their values in an upsert or update, or get their defaults. In a CSV, an empty
    field is NULL; in JSON, a member that a row lacks. JSON has a row per line, or one array of rows.
    """
    from nyala.errors import Error

    files = data_files(files, format_)
    if create and not key:
        raise click.UsageError("--create needs --key: the columns that tell the rows apart")
    if not create and (key or hashes or range_ or types):
        raise click.UsageError("--key, --hash, --range and --type describe a new table: add --create")
    if create and STDIO in files:
        raise click.UsageError("--create looks at the file before it loads it, and stdin comes only once")
    if files.count(STDIO) > 1:
        raise click.UsageError("stdin comes only once")
    dialect = CsvDialect(_delimiter(delimiter), nulls)
    formats = [format_of(path, format_) for path in files]
    if any(path == STDIO and format != "csv" for path, format in zip(files, formats, strict=True)):
        raise click.UsageError("only a CSV is read from stdin")
    for path, format in zip(files, formats, strict=True):
        if format == "csv":
            check_delimiter(path, dialect)
    done, began_s = Loaded(), time.monotonic()
    spec: dict[str, Any] | None = None
    with_commas: list[str] = []
    if create:
        assert key is not None
        schema, with_commas = infer_types(files[0], formats[0], dialect, columns, collect=errors == "collect")
        spec = _new_table(schema, key, hashes, range_, types)
    with writer(folder, create=create) as database:
        create = create and table not in database
        operation = operation or ("insert" if create else "upsert")
        target = (
            _existing(database, table)
            if spec is None
            else database.create_table(table, **spec, exist_ok=True)
        )
        if create and not settings().json:
            # Types of a CSV file's columns are guessed, and those of the key stay for ever.
            shown = ", ".join(
                f"{column.name} {column.type}" for column in state_of(database, table).schema.columns
            )
            click.echo(f"{table} made: {shown}. Wrong type? Pass --type COLUMN=TYPE.", err=True)
            said = {text.partition("=")[0] for text in types}
            for name in with_commas:
                if name not in said:
                    click.echo(
                        f"{name} looks like numbers with a decimal comma, and is text: numbers have a decimal point, "
                        "as 1234.5",
                        err=True,
                    )
        try:
            _load_files(database, target, files, formats, dialect, operation, errors, columns, done)
        except BaseException as error:
            _tell_stopped(database, target, create, done, error)
            if not _is_impatient(error):
                # The reason of the stop is what is to be told, whatever becomes of the flush.
                with contextlib.suppress(Error, KeyboardInterrupt):
                    _flush(
                        database,
                        began_s,
                        "Writing what is in memory to files; Ctrl-C ends that without a loss.",
                    )
            raise
        _flush_loaded(database, done, began_s)
        if not done.batches:
            done.timestamp = database.now()
        seconds = time.monotonic() - began_s
        if settings().json:
            echo_json(
                {
                    "store": database.path,
                    "table": table,
                    "created": create,
                    "operation": operation,
                    "files": list(files),
                    "rows": done.rows,
                    "batches": done.batches,
                    "inserted": done.inserted,
                    "updated": done.updated,
                    "deleted": done.deleted,
                    "ignored": done.ignored,
                    "failed": done.failed.total(),
                    "errors": done.errors,
                    **moment(done.timestamp),
                    "seconds": round(seconds, 3),
                }
            )
        else:
            _tell_loaded(table, done, seconds)


def _existing(database: Database, name: str) -> Table:
    from nyala.errors import TableNotFoundError

    try:
        return database.table(name)
    except TableNotFoundError as error:
        raise TableNotFoundError(f"{error}; --create --key COLUMNS would make it") from None


def _load_files(
    database: Database,
    table: Table,
    files: Sequence[str],
    formats: Sequence[Any],
    dialect: CsvDialect,
    operation: str,
    errors: str,
    columns: Sequence[str] | None,
    done: Loaded,
) -> None:
    from nyala.errors import WriteError

    schema = state_of(database, table.name).schema
    types = {column.name: column.type for column in schema.columns}
    with Bar(f"loading {table.name}", len(files), quiet=settings().json) as bar:
        for number, (path, format) in enumerate(zip(files, formats, strict=True)):
            told = len(done.errors)
            for part in read_batches(path, format, dialect, types, columns, schema.key_names):
                if part.bad_count and errors == "raise":
                    found = [bad_row(path, row) for row in part.bad]
                    raise _failing_rows(found, part.bad_count, "FileError", format, dialect, done)
                with finish_first():  # E2
                    result = None
                    if part.batch.num_rows:
                        try:
                            result = _write(table, operation, part.batch, errors)
                        except WriteError as error:
                            raise _refused(error, operation, path, format, dialect, part, done) from error
                    done.add(part, result, operation, path)
                bar.update(number + (part.done or 0), f"{done.rows:,} rows")
            shown = done.errors if settings().json else done.errors[:_ERRORS_TEXT]
            add_lines(shown[told:], format, dialect)


def _write(table: Table, operation: str, batch: pa.RecordBatch, errors: Any) -> WriteResult:
    verb, _, ignore = operation.partition("-")
    if verb == "insert":
        return table.insert(batch, on_conflict="ignore" if ignore else "error", errors=errors)
    if verb == "upsert":
        return table.upsert(batch, errors=errors)
    if verb == "update":
        return table.update(batch, on_missing="ignore" if ignore else "error", errors=errors)
    return table.delete(batch, on_missing="ignore" if ignore else "error", errors=errors)


def _refused(
    error: Any, operation: str, path: str, format: str, dialect: CsvDialect, part: Part, done: Loaded
) -> Failure:
    """A batch whose rows failed, in terms of the file."""
    if error.errors is None or not len(error.errors):
        return Failure(f"{path}: {error}", type(error).__name__, {"rows_loaded": done.kept})
    found = row_errors(error.errors.slice(0, _ERRORS_JSON), operation, path, part)
    return _failing_rows(found, len(error.errors), type(error).__name__, format, dialect, done)


def _failing_rows(
    errors: list[dict[str, Any]], count: int, kind: str, format: str, dialect: CsvDialect, done: Loaded
) -> Failure:
    """A batch of which rows failed: the first few, how many there are, and how to go on."""
    add_lines(errors if settings().json else errors[:_ERRORS_TEXT], format, dialect)
    if settings().json or count == 1:
        more = "" if count == 1 else f" ({count:,} rows of this batch fail)"
        message = f"{_row_text(errors[0])}{more}; --errors collect leaves such rows out and loads the others"
    else:
        left = count - _ERRORS_TEXT
        lines = [
            f"{count:,} rows of a batch fail; --errors collect leaves such rows out and loads the others"
        ]
        lines += [f"  {_row_text(error)}" for error in errors[:_ERRORS_TEXT]]
        lines += [f"  … and {left:,} more: --json tells the first {_ERRORS_JSON}"] if left > 0 else []
        message = "\n".join(lines)
    return Failure(message, kind, {"rows_loaded": done.kept, "failed": count, "errors": errors})


def _tell_stopped(
    database: Database, table: Table, created: bool, done: Loaded, error: BaseException
) -> None:
    """What of an unfinished load stays (E1)."""
    if created:
        database.drop_table(table.name, missing_ok=True)
        done.discard()
        if not settings().json:
            click.echo(f"{table.name} is dropped again: the load did not succeed.", err=True)
    elif done.kept and not settings().json:
        click.echo(f"{done.kept:,} rows are loaded and stay; the rest is not.", err=True)
    if isinstance(error, Failure):
        error.details.setdefault("rows_loaded", done.kept)


def _is_impatient(error: BaseException) -> bool:
    """Whether a Ctrl-C ended the write itself."""
    return isinstance(error, SecondInterrupt) or isinstance(error.__cause__, KeyboardInterrupt)


def _flush_loaded(database: Database, done: Loaded, began_s: float) -> None:
    """The end of a load of which every row is durable, whatever becomes of the flush."""
    from nyala.errors import Error

    said = f"{counted(done.kept, 'row')} loaded, and in the log alone for now"
    try:
        _flush(database, began_s)
    except (KeyboardInterrupt, Error) as error:
        is_stopped = isinstance(error, KeyboardInterrupt) or _is_impatient(error)
        if not settings().json:
            click.echo(said + ("." if is_stopped else f": {cli_words(str(error))}"), err=True)
        if is_stopped:
            raise


def _flush(database: Database, began_s: float, note: str = "") -> None:
    """Write what lies in memory to files, if it is much; `note` is said then.

    Raises: Error; then it stays where it is, and after a KeyboardInterrupt too.
    """
    from nyala.tablet.flush import flush
    from nyala.tablet.flush_run import write_pieces

    if database.stats()["memory_bytes"] <= _FLUSH_BYTES:
        return
    if note and not settings().json:
        click.echo(note, err=True)
    with Bar("writing files", 1.0, quiet=settings().json, began_s=began_s) as bar:

        def write(files: Files, root_path: str, pieces: Sequence[Piece]) -> list[Written]:
            written: list[Written] = []
            for number, piece in enumerate(pieces):
                bar.update(number / len(pieces), f"{number:,} of {len(pieces):,}")
                written += write_pieces(files, root_path, [piece])
            return written

        flush(database._writer(), write=write)


def _tell_loaded(table: str, done: Loaded, seconds: float) -> None:
    counts = {
        "inserted": done.inserted,
        "updated": done.updated,
        "deleted": done.deleted,
        "ignored": done.ignored,
        "failed": done.failed.total(),
    }
    shown = ", ".join(f"{count:,} {word}" for word, count in counts.items() if count) or "nothing to do"
    when = moment(done.timestamp)
    click.echo(
        f"{table}: {done.rows:,} rows in {duration(seconds)}: {shown}; "
        f"as of {when['time']} (timestamp {when['timestamp']})"
    )
    for code, count in done.failed.most_common():
        click.echo(f"failed, {code}: {counted(count, 'row')}", err=True)
    for error in done.errors[:_ERRORS_TEXT]:
        click.echo(f"  {_row_text(error)}", err=True)
    left = done.failed.total() - _ERRORS_TEXT
    if left > 0:
        click.echo(f"  … and {left:,} more: --json tells the first {_ERRORS_JSON}", err=True)


# -- a new table -------------------------------------------------------------------------------------------


def _new_table(
    schema: pa.Schema, key: Sequence[str], hashes: Sequence[str], range_: str | None, types: Sequence[str]
) -> dict[str, Any]:
    """Arguments for `create_table`. Raises: click.UsageError, and what `create_table` raises."""
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
        splits = [_typed(value.strip(), columns[name].type) for value in values.split(",")]
        partition_by.append(nyala.range_partition(name, splits=splits))
    return {"schema": columns, "primary_key": list(key), "partition_by": partition_by}


def _typed(text: str, type: Any) -> Any:
    """A value of a range split; ISO times and text are understood as they are."""
    import decimal

    try:
        if type.is_integer:
            return int(text)
        if type.name == "decimal":
            return decimal.Decimal(text)
        if type.name == "binary":
            return bytes.fromhex(text)
    except (ValueError, decimal.InvalidOperation):
        raise click.UsageError(f"--range: {text!r} is no {type}") from None
    return text


# -- export ------------------------------------------------------------------------------------------------


@click.command(cls=Command)
@folder_argument
@click.argument("table")
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True), callback=utf8_files)
@scan_options
@click.option("--overwrite", is_flag=True, help="Replace FILE if it is there.")
@format_option
@delimiter_option
def export(
    folder: str,
    table: str,
    file: str,
    columns: list[str] | None,
    where: str | None,
    at: Any,
    limit: int | None,
    order: bool,
    overwrite: bool,
    format_: str | None,
    delimiter: str | None,
) -> None:
    """Write rows of a table to a Parquet, CSV or JSON file (a row per line); `-` is stdout, CSV or --format json.

    One snapshot, in bounded memory. FILE is there when all of it is written, and not before.
    """
    format, dialect = format_of(file, format_), CsvDialect(_delimiter(delimiter))
    if file == STDIO and settings().json:
        raise click.UsageError("--json and FILE `-` both want stdout")
    if file != STDIO and os.path.exists(file) and not overwrite:
        raise Failure(f"{file} is there already: --overwrite replaces it", "FileExists")
    within = os.path.dirname(os.path.abspath(file))
    if file != STDIO and not os.path.isdir(within):
        raise Failure(
            f"there is no folder {within} to write {os.path.basename(file)} in: make it first", "NoFolder"
        )
    began_s = time.monotonic()
    with reader(folder) as database:
        rows = find_table(database, table).scan(
            columns=columns, where=where, at=at, limit=limit, order_by_key=order
        )
        count = 0
        quiet = settings().json or file == STDIO
        with (
            Bar(f"exporting {table}", None, quiet=quiet) as bar,
            open_sink(file, format, rows.schema, dialect) as sink,
        ):
            for batch in rows.to_reader():
                sink.write_batch(batch)
                count += batch.num_rows
                bar.update(count, f"{count:,} rows")
        seconds = time.monotonic() - began_s
        if not count and not settings().json:
            tell_why_empty(rows)
        if settings().json:
            echo_json(
                {
                    "store": database.path,
                    "table": table,
                    "file": file,
                    "format": format,
                    "rows": count,
                    "bytes": os.path.getsize(file),
                    **moment(rows.timestamp),
                    "seconds": round(seconds, 3),
                }
            )
        elif file != STDIO:
            when = moment(rows.timestamp)
            click.echo(
                f"{file}: {count:,} rows in {duration(seconds)}, as of {when['time']} "
                f"(timestamp {when['timestamp']})"
            )
