"""`nyala tablet list`, `nyala cfile dump`, `nyala wal dump`: shows tablets, column files and the log."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click

from nyala.cli.base import Group, settings
from nyala.cli.options import folder_argument, table_argument
from nyala.cli.output import echo_json, echo_list, size
from nyala.cli.stores import reader

__all__ = ["cfile", "tablet", "wal"]


@click.group(cls=Group)
def tablet() -> None:
    """Tablets: a table's parts."""


@tablet.command("list")
@folder_argument
@table_argument
def list_tablets(folder: str, table: str | None) -> None:
    """The tablets of one table, or of all: partition, rowsets, rows, size."""
    with reader(folder) as database:
        wanted = database.list_tables() if table is None else [table]
        found = [
            {"table": name, **one} for name in wanted for one in map(asdict, database.table(name).tablets())
        ]
        echo_list(
            {"store": database.path, "tablets": found},
            "tablets",
            {
                "table": lambda one: one["table"],
                "tablet": lambda one: str(one["id"]),
                "rows": lambda one: f"{one['rows']:,}",
                "rowsets": lambda one: str(one["rowsets"]),
                "in files": lambda one: size(one["bytes"]),
                "in memory": lambda one: size(one["memory_bytes"]),
                "partition": lambda one: one["partition"],
            },
            right=("tablet", "rows", "rowsets", "in files", "in memory"),
        )


@click.group(cls=Group)
def cfile() -> None:
    """Column files and delta files."""


class _LocalFile(click.Path):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from nyala.tablet.state.store_folder import is_bucket_url

        if is_bucket_url(value):
            self.fail(f"{value!r} is in a bucket: copy the object to a file, and give that file", param, ctx)
        return super().convert(value, param, ctx)


@cfile.command("dump")
@click.argument("file", type=_LocalFile(exists=True))
@click.option(
    "--bytes",
    "show_bytes",
    is_flag=True,
    help="Byte by byte: offset, hex, meaning; of long values the first 64.",
)
def dump_cfile(file: str, show_bytes: bool) -> None:
    """Show the content of a column file or a delta file: columns, blocks, zones.

    For a damaged file it shows everything up to the damage, and then the error. If the end of the file is missing, it
    shows only the error, because the end has the positions of the columns.
    """
    from nyala.cfile.dump import dump
    from nyala.env import SYSTEM

    if os.path.isdir(file):
        raise click.UsageError(_which_file(file))
    _echo_lines(file, dump(SYSTEM.files, file, show_bytes))


def _which_file(folder: str) -> str:
    """Return the message for a folder that was given instead of a column file."""
    found = sorted(glob.glob(os.path.join(glob.escape(folder), "**", "*.base"), recursive=True))
    if not found:
        return f"{folder!r} is a folder, and no column file is in it; they are a store's data/TABLET/*.base"
    others = f", one of {len(found)} there" if len(found) > 1 else ""
    return f"{folder!r} is a folder; give a column file, such as {found[0]!r}{others}"


@click.group(cls=Group)
def wal() -> None:
    """The log."""


@wal.command("dump")
@folder_argument
@click.option("--bytes", "show_bytes", is_flag=True, help="Every byte: offset, hex, meaning.")
def dump_wal(folder: str, show_bytes: bool) -> None:
    """Show the content of the store's log: segments, records, rows by tablet, damage and torn tails.

    FOLDER is the store's folder, or its folder of log segments.
    """
    from nyala.env import SYSTEM
    from nyala.errors import StorageError
    from nyala.tablet.state.store_folder import is_bucket_url, wal_path
    from nyala.wal.dump import dump
    from nyala.wal.reader import segment_numbers

    if is_bucket_url(folder):
        raise StorageError(
            f"the log in {folder!r} is objects, and this command shows files: `fs check` reads and verifies them"
        )
    directory = folder if segment_numbers(SYSTEM.files, folder) else wal_path(folder)
    if not os.path.isdir(directory):
        raise StorageError(f"there is no log at {folder!r}: give a store's folder", path=folder)
    _echo_lines(directory, dump(SYSTEM.files, directory, show_bytes))


def _echo_lines(path: str, lines: Iterator[str]) -> None:
    """Print the lines as they arrive. The JSON document has the lines before an error too."""
    if not settings().json:
        for line in lines:
            click.echo(line)
        return
    shown: list[str] = []
    try:
        shown.extend(lines)
    finally:
        if shown:
            echo_json({"path": path, "lines": shown})
