"""`nyala table export`: writes the rows of one snapshot to a Parquet, CSV or JSON file.

pyarrow writes Parquet, and DuckDB writes CSV and JSON. Binary values become hexadecimal text, and
in JSON NaN and infinities become text. The file has the name FILE.<pid>.partial until it is
complete and synced.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from nyala.cli.base import Command, Failure, settings
from nyala.cli.files import (
    STDIO,
    Format,
    compression_of,
    duckdb_session,
    format_of,
    sql_name,
    sql_text,
)
from nyala.cli.options import delimiter_option, folder_argument, format_option, scan_options
from nyala.cli.output import counted, duration, echo_json, moment
from nyala.cli.progress import Bar
from nyala.cli.stores import check_file_names, echo_why_empty, find_table, reader

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["export", "write_file"]


@click.command(cls=Command)
@folder_argument
@click.argument("table")
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True), callback=check_file_names)
@scan_options
@click.option("--overwrite", is_flag=True, help="Replace FILE if it exists.")
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
    """Write rows of a table to a Parquet, CSV or JSON file; `-` is stdout.

    JSON has one row per line. stdout gets CSV, or JSON with --format json. All rows are of one
    moment. Memory is bounded. FILE appears only when it is complete.
    """
    format = format_of(file, format_)
    if file == STDIO and settings().json:
        raise click.UsageError("--json and FILE `-` cannot be combined: both write to stdout")
    if file != STDIO and os.path.exists(file) and not overwrite:
        raise Failure(f"{file} already exists: add --overwrite to replace it", "FileExists")
    within = os.path.dirname(os.path.abspath(file))
    if file != STDIO and not os.path.isdir(within):
        raise Failure(
            f"cannot write {os.path.basename(file)}: the folder {within} does not exist; create it first",
            "NoFolder",
        )
    began_s = time.monotonic()
    with reader(folder) as database:
        rows = find_table(database, table).scan(
            columns=columns, where=where, at=at, limit=limit, order_by_key=order
        )
        count = 0
        with Bar(f"exporting {table}", quiet=file == STDIO) as bar:

            def batches() -> Iterator[pa.RecordBatch]:
                nonlocal count
                for batch in rows.to_reader():
                    yield batch
                    count += batch.num_rows
                    bar.update(count, None, f"{count:,} rows")

            write_file(file, format, delimiter, rows.schema, batches())
        seconds = time.monotonic() - began_s
        if not count and not settings().json:
            echo_why_empty(rows)
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
                f"{file}: {counted(count, 'row')} in {duration(seconds)}, as of {when['time']} "
                f"(timestamp {when['timestamp']})"
            )


def write_file(
    file: str, format: Format, delimiter: str | None, schema: pa.Schema, batches: Iterator[pa.RecordBatch]
) -> None:
    """Write the batches to a file, which appears only when it is complete, or to stdout (`-`)."""
    with _path_of_stdout() if file == STDIO else _renamed_when_complete(file) as path:
        if format == "parquet":
            _write_parquet(path, schema, batches)
        else:
            _write_text(path, file, format, delimiter, schema, batches)


@contextmanager
def _renamed_when_complete(file: str) -> Iterator[str]:
    """Yield the path of a temporary file for the block to write.

    After the block, the temporary file is renamed to `file`, or removed if the block failed.
    """
    unfinished = f"{file}.{os.getpid()}.partial"
    try:
        with open(unfinished, "xb") as written:
            yield unfinished
            os.fsync(written.fileno())
        os.replace(unfinished, file)
    except BaseException:
        if os.path.exists(unfinished):
            os.unlink(unfinished)
        raise


def _write_parquet(path: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
    import pyarrow.parquet as pq

    with pq.ParquetWriter(path, schema) as parquet:
        for batch in batches:
            parquet.write_batch(batch)


def _write_text(
    path: str,
    name: str,
    format: Format,
    delimiter: str | None,
    schema: pa.Schema,
    batches: Iterator[pa.RecordBatch],
) -> None:
    """Write CSV or JSON by DuckDB's COPY. An error of the scan is raised unchanged."""
    import pyarrow as pa

    failed: list[BaseException] = []

    def guarded() -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except BaseException as error:
            failed.append(error)
            raise

    options = [f"FORMAT {format}", f"COMPRESSION {compression_of(name) or 'none'}", "USE_TMP_FILE false"]
    if format == "csv":
        delimiter = delimiter or ("\t" if ".tsv" in name.lower() else ",")
        options += ["HEADER true", f"DELIMITER {sql_text(delimiter)}"]
    columns = ", ".join(f"{_value(field, format)} AS {sql_name(field.name)}" for field in schema)
    with duckdb_session(name) as connection:
        connection.register("rows", pa.RecordBatchReader.from_batches(schema, guarded()))
        try:
            connection.execute(
                f"COPY (SELECT {columns} FROM rows) TO {sql_text(path)} ({', '.join(options)})"
            )
        except Exception as error:
            if failed:
                raise failed[0] from error
            raise


def _value(field: pa.Field, format: Format) -> str:
    """Return the SQL expression that converts a column to its form in the file."""
    import pyarrow as pa

    name = sql_name(field.name)
    if pa.types.is_binary(field.type):
        return f"lower(hex({name}))"
    if format == "json" and pa.types.is_floating(field.type):
        return f"CASE WHEN isfinite({name}) THEN to_json({name}) ELSE to_json({name}::VARCHAR) END"
    return name


@contextmanager
def _path_of_stdout() -> Iterator[str]:
    """Yield the path of a pipe. A thread copies the pipe to stdout.

    DuckDB cannot write to /dev/stdout itself: it would truncate a file to which the shell appends
    (`>>`).
    """
    import shutil
    import threading

    read_end, write_end = os.pipe()
    failed: list[OSError] = []

    def copy_to_stdout() -> None:
        try:
            with open(read_end, "rb") as source:
                shutil.copyfileobj(source, sys.stdout.buffer)
        except OSError as error:  # nobody reads stdout any more
            failed.append(error)

    thread = threading.Thread(target=copy_to_stdout, name="nyala-stdout")
    thread.start()
    try:
        yield f"/dev/fd/{write_end}"
    except Failure:
        if not failed:
            raise
    finally:
        os.close(write_end)
        thread.join()
    if failed:
        raise failed[0]
