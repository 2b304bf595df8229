"""Parquet and CSV files as streams of record batches, in both directions, in bounded memory.

CSV, as read and as written
    the first line names the columns; text is UTF-8; a field in double quotes may hold anything
    an empty field is NULL, "" is the empty text; other words for NULL only where they are named (--null)
    numbers and booleans as Arrow reads them, decimals exactly, dates and times in ISO form, binary in hex
What a value has to fit is the table's to judge: columns are read as the widest type of their kind, so that a
value out of range is one bad row, and not a file that cannot be read.

Source: pyarrow.csv and pyarrow.parquet; their defaults for NULL are not taken, since "NA" and "nan" are values.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Final, Literal, Protocol, cast

import click

from nyala.cli.base import Failure

if TYPE_CHECKING:
    import pyarrow as pa

    from nyala.schema.types import ColumnType

__all__ = ["CsvDialect", "Format", "Sink", "format_of", "infer_types", "open_sink", "read_batches"]

Format = Literal["parquet", "csv"]
STDIO: Final = "-"

# A batch is one commit: large enough that its sync is a small part, small enough to hold many at once.
_BATCH_ROWS: Final = 100_000
_BATCH_BYTES: Final = 32 << 20
_CSV_BLOCK_BYTES: Final = 8 << 20
_SUFFIXES: Final[Mapping[str, Format]] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "csv",
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
            f"the name {path!r} says neither Parquet nor CSV: add --format parquet or --format csv"
        )
    return found


def _stem(path: str) -> tuple[str | None, str]:
    """(compression, suffix): ("gzip", ".csv") of x.csv.gz."""
    stem, suffix = os.path.splitext(path.lower())
    compression = _COMPRESSIONS.get(suffix)
    return (None, suffix) if compression is None else (compression, os.path.splitext(stem)[1])


# -- reading -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Progressed:
    """A batch, and how much of its file is behind us then, from 0 to 1; None: unknown (a pipe)."""

    batch: pa.RecordBatch
    done: float | None


def read_batches(
    path: str,
    format: Format,
    dialect: CsvDialect,
    types: Mapping[str, ColumnType],
    columns: Sequence[str] | None,
) -> Iterator[Progressed]:
    """The file's rows in its order. `types`: the table's columns; others are read as they come.

    Raises: Failure naming the file when it cannot be read.
    """
    if format == "parquet":
        with _named(path):
            yield from _read_parquet(path, columns)
    else:
        with _named(path, dialect):
            yield from _read_csv(path, dialect, types, columns)


@contextmanager
def _named(path: str, dialect: CsvDialect | None = None) -> Iterator[None]:
    """Arrow's errors as ours, with the file's name. `dialect`: that of a CSV, whose columns get their names."""
    import pyarrow as pa

    try:
        yield
    except pa.ArrowException as error:
        if isinstance(error, OSError) and not isinstance(error, pa.ArrowInvalid):
            raise
        raise Failure(f"{path}: {_readable(str(error), path, dialect)}", "FileError") from error


def _readable(message: str, path: str, dialect: CsvDialect | None) -> str:
    """Arrow's words for what a person can mend."""
    message = message.strip('"').split("\n")[0].rstrip(". ")
    if "Parquet magic bytes not found" in message or "Parquet file size is" in message:
        return "this is no Parquet file, or it was cut off"
    if dialect is None:
        return message
    match = re.fullmatch(r"In CSV column #(\d+): (?:Row #(\d+): )?CSV conversion error to (.*)", message)
    if match is not None:
        column, row = int(match[1]), match[2]
        header = _header(path, dialect)
        name = repr(header[column]) if column < len(header) else str(column + 1)
        where = f"column {name}" if row is None else f"row {int(row) - 1}, column {name}"
        return f"{where}: {match[3]} (if that means NULL: --null WORD)"
    match = re.fullmatch(r"CSV parse error: (?:Row #(\d+): )?(.*)", message)
    if match is not None:
        return ("" if match[1] is None else f"row {int(match[1]) - 1}: ") + match[2]
    return message


def _header(path: str, dialect: CsvDialect) -> list[str]:
    """The names in a CSV's first line; none for stdin, which is read only once."""
    import csv

    if path == STDIO:
        return []
    with _csv_bytes(path) as (_, source):
        lines = source.read(1 << 16).decode("utf-8-sig", "replace").splitlines()
    return next(csv.reader(lines, delimiter=dialect.delimiter_of(path)), [])


def check_delimiter(path: str, dialect: CsvDialect) -> None:
    """A CSV whose header is one name with another usual sign in it was written with that sign, and nobody said so.

    A pipe is left alone: it is read only once. Raises: Failure naming the sign.
    """
    if dialect.delimiter is not None or not os.path.isfile(path):
        return
    with _named(path, dialect):
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


def _read_parquet(path: str, columns: Sequence[str] | None) -> Iterator[Progressed]:
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
            yield Progressed(batch, done / total)


def _check_columns(path: str, wanted: Sequence[str], there: Sequence[str]) -> None:
    from nyala.errors import ColumnNotFoundError
    from nyala.schema.schema import find_name

    for name in wanted:
        if name not in there:
            raise ColumnNotFoundError(f"{path} has no column {name!r}" + find_name(name, there))


def _read_csv(
    path: str, dialect: CsvDialect, types: Mapping[str, ColumnType], columns: Sequence[str] | None
) -> Iterator[Progressed]:
    import pyarrow as pa

    with _csv_bytes(path) as (raw, source):
        total = os.fstat(raw.fileno()).st_size if path != STDIO else 0
        blocks = _Blocks(raw, source)
        if total:
            source = pa.PythonFile(blocks, mode="r")
        reader = _csv_reader(path, source, dialect, _wide_types(types), columns)
        for number, batch in enumerate(reader):
            if batch.num_rows:
                done = min(1.0, blocks.end_of(number) / total) if total else None
                yield Progressed(_finish_csv(path, batch, types), done)


class _Blocks:
    """A CSV's bytes on their way to Arrow, and where in the file each block ends.

    Arrow reads many blocks ahead of the rows that it hands out, so the file's own position runs to its end at once.
    But each of its batches is made of one block, in order. Of a packed file, positions are those of the packed bytes.
    """

    closed = False

    def __init__(self, raw: IO[bytes], source: Any) -> None:
        self._raw = raw
        self._source = source
        self._ends: list[int] = []

    def read(self, size: int) -> bytes:
        data: bytes = self._source.read(size)
        if data:
            self._ends.append(self._raw.tell())
        return data

    def end_of(self, block: int) -> int:
        """The position behind the block, counted from 0."""
        return self._ends[min(block, len(self._ends) - 1)]


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
) -> Any:
    from pyarrow import csv

    return csv.open_csv(
        source,
        # One thread: only then does Arrow know, and say, in which row an error is.
        read_options=csv.ReadOptions(block_size=_CSV_BLOCK_BYTES, use_threads=False),
        parse_options=csv.ParseOptions(delimiter=dialect.delimiter_of(path), newlines_in_values=True),
        convert_options=csv.ConvertOptions(
            column_types=dict(arrow_types),
            null_values=["", *dialect.nulls],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            include_columns=None if columns is None else list(columns),
        ),
    )


def _wide_types(types: Mapping[str, ColumnType]) -> dict[str, pa.DataType]:
    """As what Arrow shall read each column: the widest of its kind, or text that is made into it afterwards."""
    import pyarrow as pa

    wide = {}
    for name, type in types.items():
        if type.is_integer:
            wide[name] = pa.int64()
        elif type.name in ("bool", "float", "double"):
            wide[name] = type.arrow
        else:
            wide[name] = pa.string()
    return wide


def _finish_csv(path: str, batch: pa.RecordBatch, types: Mapping[str, ColumnType]) -> pa.RecordBatch:
    """Text of decimals and binary columns made into what it says; ISO times are the table's to read."""
    import pyarrow as pa

    arrays = []
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        type = types.get(name)
        if type is not None and type.name == "decimal":
            array = _decimals(path, name, array)
        elif type is not None and type.name == "binary":
            array = pa.array(
                [None if text is None else _hex(path, name, text) for text in array.to_pylist()], pa.binary()
            )
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def _decimals(path: str, name: str, array: pa.Array) -> pa.Array:
    import pyarrow as pa

    try:
        # Wider than any column, so that what is too long for its column is a bad row and no bad file.
        return array.cast(pa.decimal256(76, 38))
    except pa.ArrowInvalid as error:
        raise Failure(f"{path}: column {name!r}: {str(error).rstrip('. ')}", "FileError") from error


def _hex(path: str, name: str, text: str) -> bytes:
    match = re.fullmatch(r"(?:0x|x'|\\x)?((?:[0-9a-fA-F]{2})*)'?", text)
    if match is None:
        raise Failure(
            f"{path}: column {name!r}: {text[:40]!r} is no binary value in hex, such as 00ff", "FileError"
        )
    return bytes.fromhex(match[1])


def infer_types(path: str, format: Format, dialect: CsvDialect, columns: Sequence[str] | None) -> pa.Schema:
    """Columns and types for a new table: those of a Parquet file, or what the first 8 MB of a CSV look like.

    Columns of nothing but NULLs, and times of day, are text then.
    Raises: Failure naming the file when it cannot be read.
    """
    import pyarrow as pa

    with _named(path, dialect if format == "csv" else None):
        if format == "parquet":
            import pyarrow.parquet as pq

            schema = pq.read_schema(path)
            if columns is not None:
                _check_columns(path, columns, schema.names)
                schema = pa.schema([schema.field(name) for name in columns])
        else:
            with _csv_bytes(path) as (_, source):
                schema = _csv_reader(path, source, dialect, {}, columns).schema
    fields = [
        pa.field(field.name, pa.string(), field.nullable)
        if pa.types.is_null(field.type) or pa.types.is_time(field.type)
        else field.remove_metadata()
        for field in schema
    ]
    return pa.schema(fields)


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
