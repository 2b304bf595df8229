"""Reads Parquet, CSV and JSON files as Arrow batches in bounded memory.

pyarrow reads Parquet. DuckDB reads CSV and JSON as text, and one SELECT converts each cell to the
type of its column. A row is a *bad row* if one of its cells cannot be converted, or if DuckDB
rejects its line. The table checks the rest when it writes the batch: ranges of numbers, lengths,
dates and times.

CSV: UTF-8; the first line has the names of the columns; an empty field is NULL, and "" is an empty
string. JSON: one row per line, or one array of rows; nested values are read as JSON text.

A CSV is read twice: first to find the lines that DuckDB rejects, so that the other rows get their
right numbers. So stdin and pipes are copied to a temporary file.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, cast

import click

from nyala.cli.base import Failure

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from nyala.schema.types import ColumnType

__all__ = [
    "BAD_ROWS_MAX",
    "UNREADABLE",
    "CsvDialect",
    "DataFile",
    "FileBatch",
    "Format",
    "compression_of",
    "duckdb_session",
    "find_files",
    "format_of",
    "infer_schema",
    "lines_of",
    "read_batches",
    "row_error",
    "sql_name",
    "sql_text",
]

Format = Literal["parquet", "csv", "json"]
STDIO: Final = "-"

# A batch is one commit. At this size its sync costs little, and several batches fit into memory.
_BATCH_ROWS: Final = 100_000
_BATCH_BYTES: Final = 32 << 20
_READ_ROWS: Final = 8192
_LINE_MAX_BYTES: Final = 16 << 20
_INFERENCE_ROWS: Final = 200_000
# The error code of a bad row.
UNREADABLE: Final = "unreadable"
# A batch describes at most this many bad rows, and counts the others.
BAD_ROWS_MAX: Final = 100
_CELL_SHOWN_MAX: Final = 40
_LINE_SHOWN_MAX: Final = 80
_SUFFIXES: Final[Mapping[str, Format]] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
}
_COMPRESSIONS: Final = {".gz": "gzip", ".zst": "zstd"}


@dataclass(frozen=True)
class CsvDialect:
    """The format of a CSV file.

    delimiter: None means: detect it in the first line. nulls: words that mean NULL.
    """

    delimiter: str | None = None
    nulls: tuple[str, ...] = ()


@dataclass(frozen=True)
class DataFile:
    """A file to read.

    name: the name for messages. path: the file to open; for a pipe, a temporary copy of its data.
    """

    name: str
    path: str
    format: Format


class FileBatch(NamedTuple):
    """Rows of a file, and the bad rows between them.

    batch:     the good rows.
    numbers:   the row number in the file of each good row.
    done:      the fraction of the file that has been read, None if unknown.
    bad:       the errors of the first `BAD_ROWS_MAX` bad rows.
    bad_count: the number of all bad rows.
    """

    batch: pa.RecordBatch
    numbers: npt.NDArray[np.int64]
    done: float | None
    bad: Sequence[dict[str, Any]] = ()
    bad_count: int = 0


def row_error(
    file: DataFile,
    row: int,
    code: str,
    message: str,
    key: Mapping[str, Any],
    column: str | None = None,
    cell: str | None = None,
) -> dict[str, Any]:
    """Return the error of a row, as in the JSON document of `nyala table load`.

    row: the number in the file, counted from 1 without the header.
    cell: the text that cannot be converted, or the rejected line.

    The caller adds "line" later (`lines_of`).
    """
    return {
        "file": file.name, "row": row, "line": None, "code": code, "column": column, "cell": cell, "message": message,
        "key": key,
    }  # fmt: skip


def format_of(path: str, given: str | None) -> Format:
    """Return `given`, or the format of the file's suffix. Stdin and stdout are CSV.

    Raises click.UsageError for an unknown suffix.
    """
    if given is not None:
        return cast(Format, given)
    if path == STDIO:
        return "csv"
    found = _SUFFIXES.get(_suffix(path))
    if found is None:
        raise click.UsageError(f"unknown file type {path!r}: add --format parquet, csv or json")
    return found


def compression_of(path: str) -> str | None:
    """Return "gzip" or "zstd" for the suffixes .gz and .zst, otherwise None."""
    return _COMPRESSIONS.get(os.path.splitext(path.lower())[1])


def _suffix(path: str) -> str:
    """Return the suffix that shows the format, without .gz or .zst: ".csv" for "a.csv.gz"."""
    stem, suffix = os.path.splitext(path.lower())
    return os.path.splitext(stem)[1] if suffix in _COMPRESSIONS else suffix


@contextmanager
def find_files(paths: Sequence[str], given: str | None) -> Iterator[list[DataFile]]:
    """Context manager: find the files to load, and yield one list of them.

    A pipe is copied to a temporary file, which exists until the `with` block ends.

    paths: files and folders. The files of a folder are sorted by name. Names that begin with `.` or
        `_` are skipped, as in Spark. Files with unknown suffixes are skipped too, unless `given`
        is set.
    given: the format of all files, whatever their suffixes. None: take it from the suffix.

    Raises click.UsageError for a folder without data files.
    """
    found: list[str] = []
    for path in paths:
        if os.path.isdir(path):
            found += _files_in(path, given)
        else:
            found.append(path)
    with ExitStack() as stack:
        yield [
            DataFile(path, stack.enter_context(_regular_file(path)), format_of(path, given)) for path in found
        ]


def _files_in(path: str, given: str | None) -> list[str]:
    found = []
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "_")))
        found += [
            os.path.join(folder, name)
            for name in sorted(names)
            if not name.startswith((".", "_")) and (given is not None or _suffix(name) in _SUFFIXES)
        ]
    if not found:
        raise click.UsageError(f"the folder {path!r} contains no Parquet, CSV or JSON file")
    return found


@contextmanager
def _regular_file(path: str) -> Iterator[str]:
    """Yield the path of a file that DuckDB can read twice.

    For stdin and pipes, this is a temporary copy. If the name contains `*`, `?` or `[`, which DuckDB
    would take for a pattern, it is a temporary symbolic link. Otherwise it is `path` itself.
    """
    import shutil
    import sys
    import tempfile

    if os.path.isfile(path):
        if not set("*?[") & set(path):
            yield path
            return
        with tempfile.TemporaryDirectory(prefix="nyala-") as folder:
            link = os.path.join(folder, "file")
            os.symlink(os.path.abspath(path), link)
            yield link
        return
    with tempfile.NamedTemporaryFile(prefix="nyala-") as copy:
        if path == STDIO:
            shutil.copyfileobj(sys.stdin.buffer, copy)
        else:
            with open(path, "rb") as pipe:
                shutil.copyfileobj(pipe, copy)
        copy.flush()
        yield copy.name


def read_batches(
    file: DataFile,
    dialect: CsvDialect,
    types: Mapping[str, ColumnType],
    columns: Sequence[str] | None = None,
    key: Sequence[str] = (),
) -> Iterator[FileBatch]:
    """Yield the rows of a file in order.

    types: the columns of the table; in CSV and JSON, other columns stay text. columns: the columns
    to read; default: all. key: the names of the primary key, whose values are part of an error.
    Raises Failure if the file cannot be read.
    """
    if file.format == "parquet":
        yield from _read_parquet(file, columns)
    else:
        yield from _read_text(file, dialect, types, columns, key)


def _read_parquet(file: DataFile, columns: Sequence[str] | None) -> Iterator[FileBatch]:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # With these settings pyarrow reads single pages. Otherwise it would read whole row groups
        # into memory.
        with pq.ParquetFile(file.path, buffer_size=1 << 20, pre_buffer=False) as parquet:
            meta = parquet.metadata
            projection = _projection(file, columns, parquet.schema_arrow.names)
            nbytes = sum(meta.row_group(group).total_byte_size for group in range(meta.num_row_groups))
            fitting = _BATCH_BYTES * meta.num_rows // nbytes if nbytes else _BATCH_ROWS
            done = 0
            for batch in parquet.iter_batches(max(1, min(_BATCH_ROWS, fitting)), columns=projection):
                numbers = np.arange(done + 1, done + batch.num_rows + 1)
                done += batch.num_rows
                yield FileBatch(batch, numbers, done / meta.num_rows)
    except pa.ArrowInvalid as error:
        raise _unreadable(file.name, error) from error


def _read_text(
    file: DataFile,
    dialect: CsvDialect,
    types: Mapping[str, ColumnType],
    columns: Sequence[str] | None,
    key: Sequence[str],
) -> Iterator[FileBatch]:
    import numpy as np
    import pyarrow as pa

    with duckdb_session(file.name) as connection:
        total, rejected = None, np.empty(0, np.int64)
        if file.format == "csv":
            header, delimiter = _header(file, dialect)
            texts = ", ".join(f"{sql_text(name)}: 'VARCHAR'" for name in header)
            options = _csv_options(file, delimiter, dialect.nulls)
            source = f"read_csv({options}, auto_detect = false, columns = {{{texts}}}"
            total, rejected, bad = _rejected_lines(
                connection, file, dialect, f"{source}, store_rejects = true)"
            )
            source += ", ignore_errors = true)"
            if len(header) == 1 and not dialect.nulls:
                # DuckDB skips empty lines only in files of several columns.
                source = f"(FROM {source} WHERE {sql_name(header[0])} IS NOT NULL)"
            if bad:
                yield FileBatch(
                    pa.RecordBatch.from_arrays([], names=[]), rejected[:0], None, bad, len(rejected)
                )
        else:
            header = list(_json_schema(connection, file).names)
            texts = ", ".join(f"{sql_text(name)}: 'VARCHAR'" for name in header)
            source = f"read_json({_json_options(file)}, columns = {{{texts}}})"
        names = _projection(file, columns, header)
        for batch in _joined(connection.sql(_select(source, names, types)).to_arrow_reader(_READ_ROWS)):
            numbers = batch.column(0).to_numpy()
            # Row n of DuckDB comes after the rejected rows that have fewer than n good rows before them.
            numbers = numbers + np.searchsorted(rejected - np.arange(len(rejected)), numbers, "right")
            yield _without_bad_rows(
                file, batch, numbers, None if total is None else numbers[-1] / total, names, types, key
            )


def _without_bad_rows(
    file: DataFile,
    batch: pa.RecordBatch,
    numbers: npt.NDArray[np.int64],
    done: float | None,
    names: Sequence[str],
    types: Mapping[str, ColumnType],
    key: Sequence[str],
) -> FileBatch:
    """Return the rows of `batch` that could be converted, and errors for the other rows.

    batch: rows that the SELECT of `_select` returned: row number, values, and the first cell that
        could not be converted (NULL if all could).
    numbers: the row number of each row in the file.
    done: which share of the file has been read, from 0 to 1; None: unknown.
    names, types: the names of the value columns, and the types of the table's columns.
    key: the names of the key columns, whose values the errors contain.
    """
    import numpy as np
    import pyarrow as pa

    from nyala import compute as pc

    errors = batch.column(batch.num_columns - 1)
    rows = pa.RecordBatch.from_arrays(batch.columns[1:-1], names=list(names))
    if errors.null_count == len(errors):
        return FileBatch(rows, numbers, done)
    good = pc.is_null(errors)
    positions = np.flatnonzero(~good.to_numpy(zero_copy_only=False))
    bad = [_bad_row(file, rows, int(position), int(numbers[position]), errors[position].as_py(), types, key)
           for position in positions[:BAD_ROWS_MAX]]  # fmt: skip
    numbers = numbers[good.to_numpy(zero_copy_only=False)]
    return FileBatch(rows.filter(good), numbers, done, bad, len(positions))


def _bad_row(
    file: DataFile,
    rows: pa.RecordBatch,
    position: int,
    number: int,
    error: Mapping[str, str],
    types: Mapping[str, ColumnType],
    key: Sequence[str],
) -> dict[str, Any]:
    from nyala.presentation.cells import json_columns

    """Return the error of a row. error: the column and the text of the cell that cannot be converted."""
    column, cell = error["column"], error["cell"]
    found = [name for name in key if name in rows.schema.names]
    values = [values[0] for values in json_columns(rows.select(found).slice(position, 1))]
    type = types[column]
    message = (
        f"column {column!r}: {_short(cell, _CELL_SHOWN_MAX)!r} is not {type}: write "
        f"{_FORMAT_ADVICE.get(type.name, 'a whole number')}, or pass --null for a word that means NULL"
    )
    cells = dict(zip(found, values, strict=True)) | ({column: cell} if column in found else {})
    return row_error(file, number, UNREADABLE, message, cells, column, cell)


def _select(source: str, names: Sequence[str], types: Mapping[str, ColumnType]) -> str:
    """Return the SELECT that converts the text of a file to the types of the table.

    For each row it returns the row number, the converted columns, and the first cell that cannot be
    converted. source: the table function that reads the file.
    """
    texts, values, errors = [], [], []
    for position, name in enumerate(names):
        texts.append(f"{sql_name(name)} AS t{position}")
        value = _converted(f"t{position}", types[name]) if name in types else f"t{position}"
        values.append(f"{value} AS v{position}")
        error = f"{{'column': {sql_text(name)}, 'cell': t{position}}}"
        errors.append(f"WHEN t{position} IS NOT NULL AND v{position} IS NULL THEN {error}")
    columns = ", ".join(f"v{position}" for position in range(len(names)))
    return (
        f"SELECT row_number() OVER (), {columns}, CASE {' '.join(errors)} END "
        f"FROM (SELECT *, {', '.join(values)} FROM (SELECT {', '.join(texts)} FROM {source}))"
    )


# How to write a value of each type, for error messages.
_FORMAT_ADVICE: Final = {
    "bool": "true or false",
    "binary": "hex such as 00ff",
    "float": "a number such as 1234.5",
    "double": "a number such as 1234.5",
    "decimal": "a number such as 1234.5 that fits",
}


def _converted(text: str, type: ColumnType) -> str:
    """Return SQL that converts a text to a number, bool or binary value of the type `type`.

    The value of the SQL is NULL if the text is not a value of the type. For other types, such as
    string, date and timestamp, the SQL returns the text unchanged: later code converts it. Patterns
    refuse texts that DuckDB would round, such as '1.5' for an integer.

    text: the SQL that gives the text, such as a column name.
    """
    if type.is_integer:
        return _if_matches(text, r"\s*[+-]?[0-9]+\s*", f"TRY_CAST({text} AS BIGINT)")
    if type.name == "decimal":
        digits = rf"\s*[+-]?[0-9]*(\.[0-9]{{0,{type.scale}}}0*)?\s*"
        return _if_matches(text, digits, f"TRY_CAST({text} AS DECIMAL({type.precision}, {type.scale}))")
    if type.name == "binary":
        digits = f"regexp_replace({text}, '^0x', '')"
        return _if_matches(text, "(0x)?([0-9a-fA-F]{2})*", f"unhex({digits})")
    return f"TRY_CAST({text} AS {type.name})" if type.name in ("bool", "float", "double") else text


def _if_matches(text: str, pattern: str, value: str) -> str:
    return f"CASE WHEN regexp_full_match({text}, '{pattern}') THEN {value} END"


def _joined(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small batches to batches of about `_BATCH_ROWS` rows or `_BATCH_BYTES`."""
    import pyarrow as pa

    held: list[pa.RecordBatch] = []
    rows = nbytes = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        nbytes += batch.nbytes
        if rows + _READ_ROWS > _BATCH_ROWS or nbytes >= _BATCH_BYTES:
            yield from pa.Table.from_batches(held).combine_chunks().to_batches()
            held, rows, nbytes = [], 0, 0
    if rows:
        yield from pa.Table.from_batches(held).combine_chunks().to_batches()


def _short(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


# Advice for files that are not UTF-8.
_RECODE: Final = "convert a file from Windows with iconv -f WINDOWS-1252 -t UTF-8 FILE > OTHER"


def sql_text(text: str) -> str:
    """Return the text as a SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def sql_name(name: str) -> str:
    """Return the name as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def duckdb_session(name: str) -> Iterator[Any]:
    """Yield a new DuckDB connection with times in UTC. It has one thread, so that rows keep their
    order.

    Errors of DuckDB become Failure with the name of the file. The error that DuckDB raises after
    Ctrl-C becomes KeyboardInterrupt.
    """
    from nyala.optional import need

    duckdb = need("duckdb", "cli")
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false; SET threads = 1")
        connection.execute("SET async_threads = 0")  # see `nyala.sql.select.connection`
        try:
            yield connection
        except duckdb.InterruptException as error:
            raise KeyboardInterrupt from error
        except duckdb.Error as error:
            raise _unreadable(name, error) from error
        except RuntimeError as error:
            if "Query interrupted" in str(error):
                raise KeyboardInterrupt from error
            raise


def _unreadable(name: str, error: Exception) -> Failure:
    """Convert an error of DuckDB or pyarrow to a Failure for the file `name`.

    Their advice is left out, because it names options that the command line does not have.
    """
    if "Error when sniffing" in str(error):
        advice = "check --delimiter, and look for a double quote that is never closed"
        return Failure(f"{name}: the rows do not match the columns of the first line; {advice}", "FileError")
    if "Parquet magic bytes not found" in str(error) or "Parquet file size is" in str(error):
        return Failure(f"{name}: not a Parquet file, or a truncated one", "FileError")
    text = str(error).partition("Possible ")[0].removeprefix("Invalid Input Error: ")
    lines = [_short(line.strip(), _LINE_SHOWN_MAX * 2) for line in text.splitlines() if line.strip()]
    return Failure(f"{name}: {'; '.join(lines[:4]).rstrip('. ')}", "FileError")


def _projection(file: DataFile, columns: Sequence[str] | None, names: Sequence[str]) -> list[str]:
    """Return the columns to read: `columns`, or all `names` of the file if it is None.

    Raises ColumnNotFoundError for a column that the file does not have.
    """
    from nyala.errors import ColumnNotFoundError
    from nyala.schema.schema import name_hint

    for name in columns or ():
        if name not in names:
            raise ColumnNotFoundError(f"{file.name} has no column {name!r}" + name_hint(name, names))
    return list(names if columns is None else columns)


def _lines(file: DataFile) -> Any:
    """Open a CSV file as text, decompressed if needed."""
    import io

    import pyarrow as pa

    stream = pa.input_stream(file.path, compression=compression_of(file.name))
    return io.TextIOWrapper(stream, "utf-8-sig", errors="replace", newline="")


def _header(file: DataFile, dialect: CsvDialect) -> tuple[list[str], str]:
    """Return the column names and the delimiter of a CSV.

    If the dialect has no delimiter, it is the most frequent one of `,`, tab, `;` and `|` in the
    first line.
    """
    import csv
    from itertools import chain

    from nyala.schema.conversion.convert import duplicate_name_text

    with _lines(file) as lines:
        first = lines.readline(_LINE_MAX_BYTES)
        delimiter = dialect.delimiter or max(",\t;|", key=first.count)
        names = next(csv.reader(chain([first], lines), delimiter=delimiter), [])
    if "\ufffd" in first:
        raise Failure(f"{file.name}: the first line is not UTF-8 text; {_RECODE}", "FileError")
    if not names:
        raise Failure(f"{file.name}: the file is empty; its first line must name the columns", "FileError")
    if len(set(names)) < len(names):
        raise Failure(f"{file.name}: {duplicate_name_text(names)}", "FileError")
    return names, delimiter


def _csv_options(file: DataFile, delimiter: str, nulls: Sequence[str]) -> str:
    words = ", ".join(map(sql_text, ("", *nulls)))
    return (
        f"{sql_text(file.path)}, header = true, delim = {sql_text(delimiter)}, quote = '\"', escape = '\"', "
        f"comment = '', nullstr = [{words}], allow_quoted_nulls = false, {_compression(file)}, "
        f"max_line_size = {_LINE_MAX_BYTES}, buffer_size = {2 * _LINE_MAX_BYTES}"
    )


def _compression(file: DataFile) -> str:
    return f"compression = {sql_text(compression_of(file.name) or 'none')}"


def _rejected_lines(
    connection: Any, file: DataFile, dialect: CsvDialect, source: str
) -> tuple[int, npt.NDArray[np.int64], list[dict[str, Any]]]:
    """Find the rows of a CSV that DuckDB rejects.

    Returns the number of all rows in the file, the row numbers of the rejected rows, and the errors
    of the first `BAD_ROWS_MAX` rejected rows.
    """
    import numpy as np

    # The query counts each column, because DuckDB checks UTF-8 only in columns that a query reads.
    good = connection.execute(f"SELECT count(*), count(COLUMNS(*)) FROM {source}").fetchall()[0][0]
    found = connection.execute(
        "SELECT line - 1, any_value(csv_line), any_value(error_message), any_value(error_type)::VARCHAR "
        "FROM reject_errors GROUP BY 1 ORDER BY 1"
    ).fetchall()
    rows = _row_numbers(file, dialect, [record for record, *_ in found])
    bad = []
    for row, (_, line, message, kind) in zip(rows[:BAD_ROWS_MAX], found, strict=False):
        line = line.strip("\r\n")
        advice = f"; {_RECODE}" if kind == "INVALID ENCODING" else ""
        message = f"{message.rstrip('. ')}: {_short(line, _LINE_SHOWN_MAX)!r}{advice}"
        bad.append(row_error(file, row, UNREADABLE, message, {}, None, line))
    return good + len(rows), np.array(rows, np.int64), bad


def _row_numbers(file: DataFile, dialect: CsvDialect, records: Sequence[int]) -> list[int]:
    """Convert record numbers of DuckDB, which also count empty lines, to row numbers."""
    numbers = {record: record for record in records}
    for record, (row, _) in enumerate(_records(file, dialect) if records else ()):
        if record in numbers:
            numbers[record] = row
        if record == records[-1]:
            break
    return list(numbers.values())


def lines_of(file: DataFile, dialect: CsvDialect, rows: Sequence[int]) -> dict[int, int]:
    """Return the line in which each of the given rows of a CSV begins. The header is line 1."""
    found: dict[int, int] = {}
    for row, line in _records(file, dialect):
        if row in rows:
            found.setdefault(row, line)
        if row > max(rows, default=0):
            break
    return found


def _records(file: DataFile, dialect: CsvDialect) -> Iterator[tuple[int, int]]:
    """Yield the row number and the first line number of each record of a CSV. The header is row 0
    in line 1.

    An empty line is a record too, with the row number of the record before it.
    """
    import csv

    delimiter = _header(file, dialect)[1]
    csv.field_size_limit(_LINE_MAX_BYTES)
    with _lines(file) as lines, contextlib.suppress(csv.Error):
        reader = csv.reader(lines, delimiter=delimiter)
        row, line = -1, 1
        for fields in reader:
            row += bool(fields)
            yield row, line
            line = reader.line_num + 1


def _json_options(file: DataFile) -> str:
    return f"{sql_text(file.path)}, maximum_object_size = {1 << 28}, {_compression(file)}"


def _json_schema(connection: Any, file: DataFile) -> pa.Schema:
    """Return the columns of a JSON file, with the types that DuckDB finds in all rows."""
    found = connection.sql(f"SELECT * FROM read_json({_json_options(file)}, sample_size = -1) LIMIT 0")
    return found.to_arrow_table().schema


def infer_schema(file: DataFile, dialect: CsvDialect, columns: Sequence[str] | None) -> pa.Schema:
    """Return the columns of a new table for the file.

    The types are those of a Parquet file. For a JSON file, DuckDB finds the types in all rows; for
    a CSV, in the first 200,000 rows. Types that tables do not have become text. Raises Failure if
    the file cannot be read.
    """
    import pyarrow as pa

    from nyala.errors import SchemaError
    from nyala.schema.types import parse_type

    if file.format == "parquet":
        import pyarrow.parquet as pq

        try:
            schema = pq.read_schema(file.path)
        except pa.ArrowInvalid as error:
            raise _unreadable(file.name, error) from error
        return pa.schema(
            [schema.field(name).remove_metadata() for name in _projection(file, columns, schema.names)]
        )
    with duckdb_session(file.name) as connection:
        if file.format == "json":
            schema = _json_schema(connection, file)
        else:
            options = _csv_options(file, _header(file, dialect)[1], dialect.nulls)
            source = f"read_csv({options}, ignore_errors = true, strict_mode = false, sample_size = {_INFERENCE_ROWS})"
            schema = connection.sql(f"SELECT * FROM {source} LIMIT 0").to_arrow_table().schema
    fields = []
    for name in _projection(file, columns, schema.names):
        type = schema.field(name).type
        try:
            parse_type(type)
        except SchemaError:
            type = pa.string()
        fields.append(pa.field(name, type))
    return pa.schema(fields)
