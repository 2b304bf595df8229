"""`nyala tablet list`, `nyala cfile dump` and `nyala wal dump`: show tablets, column files and the log."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterator
from contextlib import closing
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
    """Tablets: the partitions of a table."""


@tablet.command("list")
@folder_argument
@table_argument
def list_tablets(folder: str, table: str | None) -> None:
    """List the tablets of one table, or of all: partition, rowsets, rows, size."""
    with reader(folder) as database:
        table_names = database.list_tables() if table is None else [table]
        found = [
            {"table": name, **one}
            for name in table_names
            for one in map(asdict, database.table(name).tablets())
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
    """Show what is in column files and delta files."""


class _FileOrUrl(click.Path):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from nyala.env.paths import is_bucket_url

        return value if is_bucket_url(value) else super().convert(value, param, ctx)


@cfile.command("dump")
@click.argument("file", type=_FileOrUrl(exists=True))
@click.option(
    "--bytes",
    "show_bytes",
    is_flag=True,
    help="Print every byte: offset, hex, meaning. Long values: only the first 64 bytes.",
)
def dump_cfile(file: str, show_bytes: bool) -> None:
    """Show the content of a column file or a delta file: columns, blocks, zone maps.

    For a damaged file it shows everything up to the damage, and then the error. The end of a file
    has the positions of the columns; if it is missing, only the error is shown. FILE may be the URL
    of an object.
    """
    from nyala.cfile.dump import dump
    from nyala.env import SYSTEM
    from nyala.env.paths import is_bucket_url
    from nyala.tablet.check import bucket_at

    if is_bucket_url(file):
        with bucket_at(file.rpartition("/")[0], settings().storage_options) as (env, _):
            _echo_lines(file, dump(env.files, file, show_bytes))
        return
    if os.path.isdir(file):
        raise click.UsageError(_folder_message(file))
    _echo_lines(file, dump(SYSTEM.files, file, show_bytes))


def _folder_message(folder: str) -> str:
    """Return the message for a user who passed a folder instead of a column file.

    The message names a column file in the folder, if there is one.
    """
    found = sorted(glob.glob(os.path.join(glob.escape(folder), "**", "*.base"), recursive=True))
    if not found:
        return f"{folder!r} is a folder without column files; a store's column files are data/TABLET/*.base"
    others = f", one of {len(found)} in it" if len(found) > 1 else ""
    return f"{folder!r} is a folder; pass a column file, such as {found[0]!r}{others}"


@click.group(cls=Group)
def wal() -> None:
    """Show what is in the log."""


@wal.command("dump")
@folder_argument
@click.option("--bytes", "show_bytes", is_flag=True, help="Print every byte: offset, hex, meaning.")
def dump_wal(folder: str, show_bytes: bool) -> None:
    """Show the content of the store's log: segments, records, rows by tablet, damage and torn
    tails.

    FOLDER is the store's folder, or its folder of log segments. For a store in a bucket, it is the
    URL of the store or of one object of the log. Then it also shows the checkpoints, and the object
    `writer`, which says who writes.
    """
    from nyala.env import SYSTEM
    from nyala.env.paths import is_bucket_url
    from nyala.errors import StorageError
    from nyala.tablet.state.store_folder import wal_path
    from nyala.wal.dump import dump
    from nyala.wal.reader import segment_numbers

    if is_bucket_url(folder):
        _dump_bucket(folder, show_bytes)
        return
    directory = folder if segment_numbers(SYSTEM.files, folder) else wal_path(folder)
    if not os.path.isdir(directory):
        raise StorageError(f"no log found in {folder!r}: pass a store's folder", path=folder)
    _echo_lines(directory, dump(SYSTEM.files, directory, show_bytes))


def _dump_bucket(url: str, show_bytes: bool) -> None:
    from nyala.cli.stores import require_bucket_store
    from nyala.objects.open import open_objects
    from nyala.wal.objects.dump import dump
    from nyala.wal.objects.format import CheckpointKey, Slot

    store, only = url, None
    for depth in (3, 2):  # log/EPOCH/SLOT, ckpt/NAME
        head, *key = url.rsplit("/", depth)
        if Slot.parse("/".join(key)) or CheckpointKey.parse("/".join(key)):
            store, only = head, "/".join(key)
    if only is None:
        require_bucket_store(url)
    with closing(open_objects(store, settings().storage_options)) as objects:
        _echo_lines(url, dump(objects, _state_lines, only, show_bytes))


def _state_lines(data: bytes, path: str, store_id: str) -> Iterator[str]:
    """Yield the catalogue of a checkpoint as JSON, one line per entry."""
    from nyala.catalog.checkpoint import decode_checkpoint
    from nyala.catalog.codec import encode_state
    from nyala.wal.dump import shortened

    for name, value in json.loads(encode_state(decode_checkpoint(data, path, store_id))).items():
        for entry in value if isinstance(value, list) else [value]:
            yield f"{name} {shortened(json.dumps(entry).encode())}"


def _echo_lines(path: str, lines: Iterator[str]) -> None:
    """Print the lines as they arrive, or with `--json` as one document at the end.

    If reading them fails, the lines before the error are printed too.
    """
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
