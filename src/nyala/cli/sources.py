"""Parquet, CSV and JSON files as streams of record batches, in both directions, in bounded memory.

CSV, as read and as written
    the first line names the columns; text is UTF-8; a field in double quotes may hold anything
    an empty field is NULL, "" is the empty text; other words for NULL only where they are named (--null)
    numbers and booleans as Arrow reads them, decimals exactly, dates and times in ISO form, binary in hex
JSON is read and written by DuckDB: a line per row, or (to read) one array of objects
    a member that a row lacks is NULL; a nested value is its JSON text; binary is hex
What a value has to fit is the table's to judge. A cell that is no value at all, or a row with more or fewer fields than
the header, is one bad row, and not a file that cannot be read (`csv_cells`).

Source: pyarrow.csv and pyarrow.parquet; their defaults for NULL are not taken, since "NA" and "nan" are values.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING, Any, Final, Literal, Protocol, cast

import click

from nyala.cli.base import Failure
from nyala.cli.csv_bytes import CsvBytes
from nyala.cli.csv_cells import BadCell, read_cells, text_at, why
from nyala.cli.output import counted

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from nyala.schema.types import ColumnType

__all__ = [
    "BAD_ROWS_MAX",
    "BadRow",
    "CsvDialect",
    "Format",
    "Part",
    "Sink",
    "data_files",
    "format_of",
    "infer_types",
    "lines_of",
    "open_sink",
    "read_batches",
]

Format = Literal["parquet", "csv", "json"]
STDIO: Final = "-"

# A batch is one commit: large enough that its sync is a small part, small enough to hold many at once. Of Parquet it is
# so many rows, or fewer that take so many bytes; of a CSV one block, which is some 80,000 rows of 100 bytes.
_BATCH_ROWS: Final = 100_000
_BATCH_BYTES: Final = 32 << 20
_CSV_BLOCK_BYTES: Final = 8 << 20
# So many bad rows of a batch are told one by one.
BAD_ROWS_MAX: Final = 100
_TEXT_SHOWN: Final = 80
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
_COMPRESSIONS: Final = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}


@dataclass(frozen=True)
class CsvDialect:
    """How a CSV file is written. `nulls`: words for NULL besides the empty field."""

    delimiter: str | None = None  # None: a tab in .tsv files, else a comma
    nulls: tuple[str, ...] = ()

    def delimiter_of(self, path: str) -> str:
        if self.delimiter is not None:
            return self.delimiter
        return "\t" if _stem(path)[1] == ".tsv" else ","


def format_of(path: str, given: str | None) -> Format:
    """What a file holds, by `given` or by its name. Raises: click.UsageError when neither says."""
    if given is not None:
        return cast(Format, given)
    if path == STDIO:
        return "csv"
    found = _SUFFIXES.get(_stem(path)[1])
    if found is None:
        raise click.UsageError(
            f"the name {path!r} does not say what it holds: add --format parquet, csv or json"
        )
    return found


def data_files(paths: Sequence[str], given: str | None) -> list[str]:
    """The files, and of each folder those in it and below, by name, as Spark and DuckDB take them.

    Left out in folders: names that begin with `.` or `_`, and, without a format `given`, names of other formats.
    Raises: click.UsageError for a folder without such a file.
    """
    found: list[str] = []
    for path in paths:
        if not os.path.isdir(path):
            found.append(path)
            continue
        within = []
        for folder, folders, names in os.walk(path):
            folders[:] = sorted(name for name in folders if not name.startswith((".", "_")))
            within += [
                os.path.join(folder, name)
                for name in sorted(names)
                if not name.startswith((".", "_")) and (given is not None or _stem(name)[1] in _SUFFIXES)
            ]
        if not within:
            raise click.UsageError(f"the folder {path!r} holds no Parquet, CSV or JSON file")
        found += within
    return found


def _stem(path: str) -> tuple[str | None, str]:
    """(compression, suffix): ("gzip", ".csv") of x.csv.gz."""
    stem, suffix = os.path.splitext(path.lower())
    compression = _COMPRESSIONS.get(suffix)
    return (None, suffix) if compression is None else (compression, os.path.splitext(stem)[1])


# -- reading -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BadRow:
    """A row of a CSV of which no row of the table is made. row: its place in the file, from 1, without the header.

    column, cell: where and what; None and the whole row, when it has more or fewer fields than the header.
    key:          the cells of the key's columns, as far as they can be told.
    """

    row: int
    column: str | None
    cell: str
    message: str
    key: Mapping[str, Any]


@dataclass(frozen=True)
class Part:
    """A batch, and the bad rows among it and before the next.

    done:      how much of the file is behind us then, from 0 to 1; None: unknown (a pipe).
    first:     the place in the file of the batch's first row, from 1; the others follow it, or `places` says otherwise.
    bad:       the first of the bad rows, BAD_ROWS_MAX at most; bad_count: how many there are.
    """

    batch: pa.RecordBatch
    done: float | None
    first: int = 1
    places: npt.NDArray[np.int64] | None = None
    bad: Sequence[BadRow] = ()
    bad_count: int = 0

    def place(self, row: int) -> int:
        """The place in the file of a row of the batch."""
        return self.first + row if self.places is None else int(self.places[row])


def read_batches(
    path: str,
    format: Format,
    dialect: CsvDialect,
    types: Mapping[str, ColumnType],
    columns: Sequence[str] | None,
    key: Sequence[str] = (),
) -> Iterator[Part]:
    """The file's rows in its order. `types`: the table's columns; others are read as they come. `key`: its key.

    Raises: Failure naming the file when it cannot be read.
    """
    if format == "parquet":
        with _named(path):
            yield from _read_parquet(path, columns)
    elif format == "json":
        yield from _read_json(path, types, columns, key)
    else:
        with _named(path):
            yield from _read_csv(path, dialect, types, columns, key)


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Arrow's errors as ours, with the file's name."""
    import pyarrow as pa

    try:
        yield
    except pa.ArrowException as error:
        if isinstance(error, OSError) and not isinstance(error, pa.ArrowInvalid):
            raise
        raise Failure(f"{path}: {_readable(str(error))}", "FileError") from error
    except UnicodeDecodeError as error:
        raise Failure(f"{path}: its first line is no UTF-8 text; {recode(path)}", "FileError") from error


def recode(path: str) -> str:
    """How to bring a file to UTF-8."""
    coding = "WINDOWS-1252"
    if os.path.isfile(path):
        with open(path, "rb") as file:
            coding = "UTF-16" if file.read(2) in (b"\xff\xfe", b"\xfe\xff") else coding
    name = "FILE" if path == STDIO else shlex.quote(path)
    return f"if it was written on Windows: iconv -f {coding} -t UTF-8 {name} > OTHER"


def _readable(message: str) -> str:
    """Arrow's words for what a person can mend."""
    message = message.strip('"').split("\n")[0].rstrip(". ")
    if "Parquet magic bytes not found" in message or "Parquet file size is" in message:
        return "this is no Parquet file, or it was cut off"
    return message


def _header(path: str, dialect: CsvDialect) -> list[str]:
    """The names in a CSV's first line; none for stdin, which is read only once."""
    import csv

    if path == STDIO:
        return []
    with _csv_bytes(path) as (_, source):
        lines = source.read(1 << 16).decode("utf-8-sig", "replace").splitlines()
    return next(csv.reader(lines, delimiter=dialect.delimiter_of(path)), [])


def lines_of(path: str, dialect: CsvDialect, rows: Sequence[int]) -> dict[int, int]:
    """In which line of a CSV these rows begin, both from 1, the header in line 1; none for stdin.

    Cost: the file is read again up to the last of them, by Python's csv module.
    """
    import csv
    import io

    found: dict[int, int] = {}
    wanted = frozenset(rows)
    if path == STDIO or not wanted or not os.path.isfile(path):
        return found
    last, row = max(wanted), -1
    with _csv_bytes(path) as (_, source):
        lines = csv.reader(
            io.TextIOWrapper(source, "utf-8-sig", "replace", newline=""), delimiter=dialect.delimiter_of(path)
        )
        begin = 1
        longest = csv.field_size_limit((1 << 31) - 1)
        try:
            for fields in lines:
                row += bool(fields)  # an empty line is no row
                if fields and row in wanted:
                    found[row] = begin
                if row >= last:
                    break
                begin = lines.line_num + 1
        except csv.Error:
            pass  # what that module does not read has no line
        finally:
            csv.field_size_limit(longest)
    return found


def check_delimiter(path: str, dialect: CsvDialect) -> None:
    """A CSV whose header is one name with another usual sign in it was written with that sign, and nobody said so.

    A pipe is left alone: it is read only once. Raises: Failure naming the sign.
    """
    if dialect.delimiter is not None or not os.path.isfile(path):
        return
    with _named(path):
        header = _header(path, dialect)
    if len(header) != 1:
        return
    others = ";\t|,".replace(dialect.delimiter_of(path), "")
    sign = next((sign for sign in others if sign in header[0]), None)
    if sign is not None:
        shown = "tab" if sign == "\t" else sign
        raise Failure(
            f"{path}: its fields are not parted by {dialect.delimiter_of(path)!r}: the first line is {header[0]!r}; "
            f"--delimiter '{shown}' would read {header[0].count(sign) + 1} columns",
            "FileError",
        )


def _read_parquet(path: str, columns: Sequence[str] | None) -> Iterator[Part]:
    import pyarrow.parquet as pq

    # A buffer and no pre-buffering: pages are read as they are needed, not whole row groups.
    with pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False) as file:
        meta = file.metadata
        total = meta.num_rows
        if columns is not None:
            _check_columns(path, columns, file.schema_arrow.names)
        nbytes = sum(meta.row_group(group).total_byte_size for group in range(meta.num_row_groups))
        fitting = _BATCH_BYTES * total // nbytes if nbytes else _BATCH_ROWS
        done = 0
        for batch in file.iter_batches(
            batch_size=max(1, min(_BATCH_ROWS, fitting)), columns=None if columns is None else list(columns)
        ):
            done += batch.num_rows
            yield Part(batch, done / total, done - batch.num_rows + 1)


def _json_source(path: str) -> tuple[Any, dict[str, str]]:
    """A connection of DuckDB, and the file's columns with the types that it takes them for.

    Raises: Failure naming the file when it cannot be read.
    """
    from nyala.scan import need

    duckdb = need("duckdb", "sql")
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET enable_progress_bar = false")
    with _named_by_duckdb(path):
        described = connection.execute(
            "DESCRIBE SELECT * FROM read_json(?, sample_size = -1, maximum_object_size = 1 << 28)", [path]
        ).fetchall()
    return connection, {name: type for name, type, *_ in described}


@contextmanager
def _named_by_duckdb(path: str) -> Iterator[None]:
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        raise Failure(f"{path}: {str(error).splitlines()[0]}", "FileError") from error


def _read_json(
    path: str, types: Mapping[str, ColumnType], columns: Sequence[str] | None, key: Sequence[str]
) -> Iterator[Part]:
    """Values come as text, and become values of the table's columns like the cells of a CSV."""
    connection, found = _json_source(path)
    if columns is not None:
        _check_columns(path, columns, list(found))
    wanted = list(found if columns is None else columns)
    texts = ", ".join(f"{_quoted(name)}: 'VARCHAR'" for name in wanted)
    rows = _Rows(types, key)
    with connection, _named_by_duckdb(path):
        reader = _arrow_reader(
            connection,
            f"SELECT * FROM read_json({_quoted(path)}, columns = {{{texts}}}, maximum_object_size = 1 << 28)",
            _BATCH_ROWS,
        )
        for batch in reader:
            if batch.num_rows:
                yield rows.read(batch, None)


def _arrow_reader(connection: Any, text: str, batch_rows: int) -> pa.RecordBatchReader:
    relation = connection.sql(text)
    return (
        relation.to_arrow_reader(batch_rows)
        if hasattr(relation, "to_arrow_reader")  # DuckDB 2
        else relation.fetch_arrow_reader(batch_rows)
    )


def _quoted(text: str) -> str:
    """A text literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def _check_columns(path: str, wanted: Sequence[str], there: Sequence[str]) -> None:
    from nyala.errors import ColumnNotFoundError
    from nyala.schema.schema import find_name

    for name in wanted:
        if name not in there:
            raise ColumnNotFoundError(f"{path} has no column {name!r}" + find_name(name, there))


def _read_csv(
    path: str,
    dialect: CsvDialect,
    types: Mapping[str, ColumnType],
    columns: Sequence[str] | None,
    key: Sequence[str],
) -> Iterator[Part]:
    import pyarrow as pa

    with _csv_bytes(path) as (raw, source):
        total = os.fstat(raw.fileno()).st_size if path != STDIO else 0
        blocks = CsvBytes(source, raw if total else None)
        rows = _Rows(types, key)
        texts = dict.fromkeys(types, pa.string())
        bytes_ = pa.PythonFile(blocks, mode="r")
        reader = _csv_reader(path, bytes_, dialect, texts, columns, rows.skip, check_utf8=False)
        names = reader.schema.names if columns is None else _header(path, dialect)
        last = names[-1] if names and names[-1] in reader.schema.names else None

        def parts() -> Iterator[Part]:
            part = None
            for number, batch in enumerate(reader):
                if part is not None:
                    yield part
                part = rows.read(batch, min(1.0, blocks.end_of(number) / total) if total else None)
            part = part or Part(pa.RecordBatch.from_pylist([], reader.schema), None)
            yield rows.with_rest(part, last if blocks.may_be_open else None)

        # Whoever waits for a pipe must be able to give up.
        for part in _one_ahead(parts()) if os.path.isfile(path) else parts():
            if part.batch.num_rows or part.bad_count:
                yield part


def _one_ahead(parts: Iterator[Part]) -> Iterator[Part]:
    """The next part is read while its caller works on the one before."""
    with ThreadPoolExecutor(1, thread_name_prefix="nyala-csv") as pool:
        reading = pool.submit(next, parts, None)
        while (part := reading.result()) is not None:
            reading = pool.submit(next, parts, None)
            yield part


class _Rows:
    """The rows of a CSV as they come from Arrow, with those that it passes over put in their places again."""

    def __init__(self, types: Mapping[str, ColumnType], key: Sequence[str]) -> None:
        self._types = types
        self._key = key
        self._skipped: list[Any] = []  # Arrow's InvalidRow, in the file's order, read ahead of the batches
        self._told = 0  # those that are in a part, and not in the list any more
        self._good = 0  # rows that Arrow has handed out

    def skip(self, row: Any) -> str:
        """Called by Arrow, in a thread of its own, for a row with more or fewer fields than the header."""
        self._skipped.append(row)
        return "skip"

    def read(self, batch: pa.RecordBatch, done: float | None) -> Part:
        """The next batch of texts."""
        import numpy as np
        import pyarrow as pa

        first, good = self._good + self._told + 1, None
        if self._skipped:
            skipped = np.array([_place(row) for row in self._skipped])
            # A row that was passed over stands before the n-th good row when it has less than n good ones before it.
            nth = np.arange(self._good + 1, self._good + batch.num_rows + 1)
            before = np.searchsorted(skipped - np.arange(self._told, self._told + len(skipped)), nth, "right")
            good = nth + self._told + before
        self._good += batch.num_rows
        last = first - 1 + batch.num_rows if good is None or not len(good) else int(good[-1])
        bad, count = self._take(last)
        found, cells = read_cells(batch, self._types)
        if cells:
            places = np.arange(first, first + batch.num_rows) if good is None else good
            bad += [self._bad(int(places[cell.row]), cell, batch, found) for cell in cells[:BAD_ROWS_MAX]]
            bad.sort(key=lambda row: row.row)
            count += len(cells)
            whole = np.ones(batch.num_rows, np.bool_)
            whole[[cell.row for cell in cells]] = False
            found, good = found.filter(pa.array(whole)), places[whole]
        return Part(found, done, first, good, bad[:BAD_ROWS_MAX], count)

    def with_rest(self, part: Part, open_column: str | None) -> Part:
        """The last part, with what stands behind its last row.

        open_column: the file's last one, if a double quote may be open at its end: where the last value goes on to
                     there, what stands behind the quote were rows.
        """
        bad, count = self._take(None)
        if open_column is not None:
            part = self._without_open(part, open_column)
        return replace(part, bad=[*part.bad, *bad][:BAD_ROWS_MAX], bad_count=part.bad_count + count)

    def _without_open(self, part: Part, column: str) -> Part:
        import pyarrow as pa

        last, texts = part.batch.num_rows - 1, part.batch.column(column)
        if last < 0 or texts.type != pa.string() or not texts[last].is_valid:
            return part
        text, place = text_at(texts, last), part.place(last)
        if not text.endswith(("\n", "\r")) or place != self._good + self._told:
            return part  # or there are bad rows behind it
        bad = BadRow(place, column, text, _OPEN_QUOTE, self._key_of(part.batch, part.batch, last))
        places = None if part.places is None else part.places[:last]
        told = [*part.bad, bad][:BAD_ROWS_MAX]
        batch = part.batch.slice(0, last)
        return replace(part, batch=batch, places=places, bad=told, bad_count=part.bad_count + 1)

    def _take(self, last: int | None) -> tuple[list[BadRow], int]:
        """The rows that Arrow passed over up to that place in the file, None: all; the first of them, and how many."""
        skipped = self._skipped
        count = next(
            (number for number, row in enumerate(skipped) if last is not None and _place(row) > last),
            len(skipped),
        )
        bad = [_odd_row(row) for row in skipped[: min(count, BAD_ROWS_MAX)]]
        del skipped[:count]
        self._told += count
        return bad, count

    def _bad(self, place: int, cell: BadCell, texts: pa.RecordBatch, read: pa.RecordBatch) -> BadRow:
        text = text_at(texts.column(cell.column), cell.row)
        message = why(text, self._types[cell.column], cell.column)
        return BadRow(place, cell.column, text, message, self._key_of(texts, read, cell.row))

    def _key_of(self, texts: pa.RecordBatch, read: pa.RecordBatch, row: int) -> dict[str, Any]:
        """The key's cells, and where one is no value, what stands in the file."""
        from nyala.cli.cells import json_columns

        names = [name for name in self._key if name in texts.schema.names]
        values = [column[0] for column in json_columns(read.select(names).slice(row, 1))]
        for place, name in enumerate(names):
            text = texts.column(name).slice(row, 1)
            if values[place] is None and not text.null_count:
                values[place] = text_at(text, 0)
        return dict(zip(names, values, strict=True))


_OPEN_QUOTE: Final = (
    "a double quote is opened here and never closed, so it takes in all that stands behind it: close it, or double it "
    "where it belongs to the text"
)


def _place(row: Any) -> int:
    """Of Arrow's InvalidRow, which counts the header."""
    return int(row.number) - 1


def _odd_row(row: Any) -> BadRow:
    wanted, fields = counted(row.expected_columns, "field"), counted(row.actual_columns, "field")
    if row.actual_columns > row.expected_columns:
        meant = "a field that holds the sign between fields stands in double quotes"
    else:
        meant = _OPEN_QUOTE if row.text.count('"') % 2 else "is the line cut off?"
    shown = row.text if len(row.text) <= _TEXT_SHOWN else row.text[: _TEXT_SHOWN - 1] + "…"
    message = f"{fields}, where the header has {wanted.removesuffix(' fields')}: {shown!r}; {meant}"
    return BadRow(_place(row), None, row.text, message, {})


@contextmanager
def _csv_bytes(path: str) -> Iterator[tuple[IO[bytes], Any]]:
    """The file, whose position says how far we are, and its decompressed bytes for Arrow."""
    import pyarrow as pa

    if path == STDIO:
        stdin = sys.stdin.buffer
        yield stdin, pa.PythonFile(stdin, mode="r")
        return
    with open(path, "rb") as raw:
        compression = _stem(path)[0]
        plain = pa.PythonFile(raw, mode="r")
        yield raw, plain if compression is None else pa.CompressedInputStream(plain, compression)


def _csv_reader(
    path: str,
    source: Any,
    dialect: CsvDialect,
    arrow_types: Mapping[str, pa.DataType],
    columns: Sequence[str] | None,
    skip: Callable[[Any], str],
    *,
    check_utf8: bool,
) -> Any:
    """skip: called for each row with more or fewer fields than the header."""
    from pyarrow import csv

    return csv.open_csv(
        source,
        # One thread: only then does Arrow know, and say, in which row an error is.
        read_options=csv.ReadOptions(block_size=_CSV_BLOCK_BYTES, use_threads=False),
        parse_options=csv.ParseOptions(
            delimiter=dialect.delimiter_of(path), newlines_in_values=True, invalid_row_handler=skip
        ),
        convert_options=csv.ConvertOptions(
            column_types=dict(arrow_types),
            null_values=["", *dialect.nulls],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            check_utf8=check_utf8,
            include_columns=None if columns is None else list(columns),
        ),
    )


def infer_types(
    path: str, format: Format, dialect: CsvDialect, columns: Sequence[str] | None, *, collect: bool = False
) -> tuple[pa.Schema, list[str]]:
    """Columns and types for a new table: those of a Parquet file, or what the first 8 MB of a CSV look like.

    Columns of nothing but NULLs, and times of day, are text then; so are whole numbers of which one begins with a
    needless 0, as postcodes and article numbers do.
    collect: text that is no UTF-8 is text, and its rows fail.
    Returns: the columns; and those of them that are text, and look like numbers with a decimal comma.
    Raises: Failure naming the file when it cannot be read.
    """
    import pyarrow as pa

    with_commas: list[str] = []
    with _named(path):
        if format == "parquet":
            import pyarrow.parquet as pq

            schema = pq.read_schema(path)
            if columns is not None:
                _check_columns(path, columns, schema.names)
                schema = pa.schema([schema.field(name) for name in columns])
        elif format == "json":
            _, found = _json_source(path)
            if columns is not None:
                _check_columns(path, columns, list(found))
            schema = pa.schema([(name, _of_duckdb(found[name])) for name in columns or found])
        else:
            schema, with_commas = _guessed(path, dialect, columns)
            for name, type in zip(schema.names, schema.types, strict=True):
                if not pa.types.is_binary(type):
                    continue
                if not collect:
                    raise Failure(f"{path}: column {name!r} is no UTF-8 text; {recode(path)}", "FileError")
                place = schema.names.index(name)
                schema = schema.set(place, pa.field(name, pa.string()))
    fields = [
        pa.field(field.name, pa.string(), field.nullable)
        if pa.types.is_null(field.type) or pa.types.is_time(field.type)
        else field.remove_metadata()
        for field in schema
    ]
    return pa.schema(fields), with_commas


def _of_duckdb(type: str) -> pa.DataType:
    """The column for a type that DuckDB takes the values of a JSON file for; nested ones are text."""
    import pyarrow as pa

    known = {
        "BOOLEAN": pa.bool_(),
        "BIGINT": pa.int64(),
        "UBIGINT": pa.decimal128(20, 0),
        "HUGEINT": pa.decimal128(38, 0),
        "DOUBLE": pa.float64(),
        "DATE": pa.date32(),
    }
    if type.startswith("TIMESTAMP"):
        return pa.timestamp("us", "UTC")
    return known.get(type, pa.string())


def _guessed(path: str, dialect: CsvDialect, columns: Sequence[str] | None) -> tuple[pa.Schema, list[str]]:
    """What Arrow takes the first block of a CSV for, but for numbers that would not come back as they stand there; and
    the texts that look like numbers with a decimal comma."""
    import pyarrow as pa

    from nyala import compute as pc
    from nyala.schema.convert import said_of_a_name_given_twice

    def read(blocks: Any, types: Mapping[str, pa.DataType], check_utf8: bool) -> Any:
        source = pa.PythonFile(CsvBytes(blocks), mode="r")
        return _csv_reader(path, source, dialect, types, columns, lambda row: "skip", check_utf8=check_utf8)

    with _csv_bytes(path) as (_, blocks):
        reader = read(blocks, {}, True)
        schema = reader.schema
        if len(set(schema.names)) < len(schema.names):
            raise Failure(f"{path}: {said_of_a_name_given_twice(schema.names)}", "FileError")
        texts = [field.name for field in schema if pa.types.is_string(field.type)]
        first = reader.read_next_batch() if texts else None  # the block that the types were read from
    with_commas = [name for name in texts if first is not None and _has_decimal_commas(first.column(name))]
    whole = [field.name for field in schema if pa.types.is_integer(field.type)]
    if whole:
        with _csv_bytes(path) as (_, blocks):
            first = read(blocks, dict.fromkeys(whole, pa.string()), False).read_next_batch()
        for name in whole:
            if pc.any(pc.match_substring_regex(first.column(name), _NEEDLESS_ZERO)).as_py():
                schema = schema.set(schema.names.index(name), pa.field(name, pa.string()))
    return schema, with_commas


_NEEDLESS_ZERO: Final = r"^\s*[+-]?0[0-9]"
_COMMA_NUMBER: Final = r"^\s*([+-]?[0-9]+([.' ][0-9]{3})*(,[0-9]+)?)?\s*$"
# Three digits behind each comma may as well be thousands.
_NO_THOUSANDS: Final = r",([0-9]{1,2}|[0-9]{4,})\s*$"


def _has_decimal_commas(texts: pa.Array) -> bool:
    from nyala import compute as pc

    return bool(
        pc.all(pc.match_substring_regex(texts, _COMMA_NUMBER)).as_py()
        and pc.any(pc.match_substring_regex(texts, _NO_THOUSANDS)).as_py()
    )


# -- writing -----------------------------------------------------------------------------------------------


class Sink(Protocol):
    """Where exported batches go."""

    def write_batch(self, batch: pa.RecordBatch) -> None: ...


@contextmanager
def open_sink(path: str, format: Format, schema: pa.Schema, dialect: CsvDialect) -> Iterator[Sink]:
    """A file that is there when all is written, and not before; `-` is stdout."""
    if path == STDIO:
        with _writer(sys.stdout.buffer, path, format, schema, dialect) as sink:
            yield sink
        return
    unfinished = f"{path}.{os.getpid()}.partial"
    try:
        with open(unfinished, "xb") as file, _writer(file, path, format, schema, dialect) as sink:
            yield sink
        with open(
            unfinished, "rb"
        ) as written:  # Arrow's compressed streams close the file that they write to
            os.fsync(written.fileno())
        os.replace(unfinished, path)
    except BaseException:
        if os.path.exists(unfinished):
            os.unlink(unfinished)
        raise


@contextmanager
def _writer(
    file: IO[bytes], path: str, format: Format, schema: pa.Schema, dialect: CsvDialect
) -> Iterator[Sink]:
    if format == "parquet":
        import pyarrow.parquet as pq

        with pq.ParquetWriter(file, schema) as parquet:
            yield parquet
        return
    import pyarrow as pa
    from pyarrow import csv

    compression = _stem(path)[0]
    target = file if compression is None else pa.CompressedOutputStream(pa.PythonFile(file, "w"), compression)
    if format == "json":
        yield _JsonSink(target, schema)
        if compression is not None:
            target.close()
        return
    options = csv.WriteOptions(delimiter=dialect.delimiter_of(path))
    with csv.CSVWriter(target, _csv_schema(schema), write_options=options) as writer:
        yield _CsvSink(writer, schema)
    if compression is not None:
        target.close()


def _csv_schema(schema: pa.Schema) -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [pa.field(f.name, pa.string() if pa.types.is_binary(f.type) else f.type) for f in schema]
    )


class _JsonSink:
    """A JSON object per line, made by DuckDB; binary in hex, NaN and infinities as text."""

    def __init__(self, file: Any, schema: pa.Schema) -> None:
        import pyarrow as pa

        from nyala.scan import need

        self._file = file
        self._connection = need("duckdb", "sql").connect()
        self._connection.execute("SET TimeZone = 'UTC'")
        members = []
        for field in schema:
            name = '"' + field.name.replace('"', '""') + '"'
            if pa.types.is_floating(field.type):
                value = f"CASE WHEN isfinite({name}) THEN to_json({name}) ELSE to_json(CAST({name} AS VARCHAR)) END"
            elif pa.types.is_binary(field.type):
                value = f"lower(hex({name}))"
            else:
                value = name
            members.append(f"{_quoted(field.name)}, {value}")
        self._text = f"SELECT CAST(json_object({', '.join(members)}) AS VARCHAR) AS line FROM batch"

    def write_batch(self, batch: pa.RecordBatch) -> None:
        import pyarrow as pa

        self._connection.register("batch", pa.table(batch))
        for lines in _arrow_reader(self._connection, self._text, batch.num_rows):
            self._file.write("".join(f"{line}\n" for line in lines.column(0).to_pylist()).encode())


class _CsvSink:
    """CSV that comes back the same: binary in hex."""

    def __init__(self, writer: Any, schema: pa.Schema) -> None:
        self._writer = writer
        self._schema = _csv_schema(schema)

    def write_batch(self, batch: pa.RecordBatch) -> None:
        import pyarrow as pa

        from nyala.cli.cells import has_odd_years

        for field, array in zip(batch.schema, batch.columns, strict=True):
            if pa.types.is_timestamp(field.type) and has_odd_years(array):
                raise Failure(
                    f"column {field.name!r} has times outside the years 1 to 9999, for which CSV has no form: "
                    "export to Parquet",
                    "FileError",
                )
        arrays = [
            pa.array([None if value is None else value.hex() for value in array.to_pylist()], pa.string())
            if pa.types.is_binary(array.type)
            else array
            for array in batch.columns
        ]
        self._writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
