"""`nyala backup`, `nyala restore` and `nyala backups list|clean`: backups without Spark.

`backup` opens the store read-only, so it works beside a writer. `restore` is a writer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from nyala.cli.base import Command, Group, settings, storage_options
from nyala.cli.options import moment_option
from nyala.cli.output import counted, duration, echo_json, echo_rows, moment, size
from nyala.cli.progress import Bar
from nyala.cli.stores import no_file, reader, writer

if TYPE_CHECKING:
    from nyala.api.results import TableBackup

__all__ = ["backup", "backups", "restore"]

F = TypeVar("F", bound=Callable[..., Any])


def _backup_option(function: F) -> F:
    return click.option(
        "--backup-option",
        "backup_options",
        metavar="NAME=VALUE",
        multiple=True,
        callback=storage_options,
        help="A storage option of FOLDER. Default: those of --option serve both, if both URLs are of one kind.",
    )(function)


def _options_of(
    folder: str, store: str, given: dict[str, Any]
) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Return the storage options of the backup's folder, and of the store. Raises: click.UsageError."""
    from nyala.env.paths import is_bucket_url

    if given and not is_bucket_url(folder):
        raise click.UsageError(f"--backup-option is only for a bucket, but {folder!r} is a folder")
    shared = settings().storage_options
    kind, store_kind = (
        path.partition(":")[0] if is_bucket_url(path) else "folder" for path in (folder, store)
    )
    own = given or (shared if store_kind in ("folder", kind) else {})
    return (own or None) if kind != "folder" else None, {} if store_kind == "folder" else shared


@click.command(cls=Command)
@click.argument("store", type=click.Path(), callback=no_file)
@click.argument("folder", type=click.Path())
@click.option("--table", "tables", metavar="NAME", multiple=True, help="Only this table. May be repeated.")
@click.option("--full", is_flag=True, help="Back up all rows, also if the changes would be enough.")
@_backup_option
def backup(
    store: str, folder: str, tables: tuple[str, ...], full: bool, backup_options: dict[str, Any]
) -> None:
    """Back up all tables of a store at one moment: what changed since the last backup, or all rows.

    STORE and FOLDER are folders or URLs. A process may write to the store meanwhile.
    """
    began_s = time.monotonic()
    own, of_store = _options_of(folder, store, backup_options)
    with reader(store, of_store) as database, Bar("backing up", 1.0, quiet=settings().json) as bar:
        made = database.backup(
            folder,
            list(tables) or None,
            full=full,
            storage_options=own,
            progress=lambda done, total: bar.update(done / max(total or 1, 1)),
        )
    seconds = time.monotonic() - began_s
    if settings().json:
        document = {"store": store, "folder": folder, **moment(made.until)}
        tables_made = [_described(each) for each in made.tables]
        echo_json(
            {
                **document,
                "tables": tables_made,
                "unchanged": list(made.unchanged),
                "seconds": round(seconds, 3),
            }
        )
        return
    if made.tables:
        _echo(list(made.tables))
    if made.unchanged:
        click.echo(f"Nothing was written since the last backup of {', '.join(made.unchanged)}.", err=True)
    click.echo(f"Done in {duration(seconds)}.", err=True)


@click.command(cls=Command)
@click.argument("folder", type=click.Path())
@click.argument("store", type=click.Path(), callback=no_file)
@click.option(
    "--table",
    "tables",
    metavar="NAME",
    multiple=True,
    help="Only this table. May be repeated. Default: all tables of the newest backup of the whole store.",
)
@click.option("--as", "new_name", metavar="NAME", help="Another name for the one table of --table.")
@click.option(
    "--at",
    metavar="TIME",
    callback=moment_option,
    help="The newest backup up to this time: ISO time (default UTC), an age (2h, 1d), or a Nyala timestamp.",
)
@_backup_option
def restore(
    folder: str,
    store: str,
    tables: tuple[str, ...],
    new_name: str | None,
    at: Any,
    backup_options: dict[str, Any],
) -> None:
    """Restore tables from backups into a store, which is made if it is missing.

    FOLDER and STORE are folders or URLs. Existing tables are never changed.
    """
    from nyala.api.backups import restore_backup

    if new_name is not None and len(tables) != 1:
        raise click.UsageError("--as needs exactly one --table")
    began_s = time.monotonic()
    own, _ = _options_of(folder, store, backup_options)
    wanted = {tables[0]: new_name} if new_name is not None else (list(tables) or None)
    with (
        writer(store, create=True, maintenance=False) as database,
        Bar("restoring", 1.0, quiet=settings().json) as bar,
    ):
        made = restore_backup(
            folder,
            database,
            wanted,
            at,
            storage_options=own,
            progress=lambda done, total: bar.update(done / max(total or 1, 1)),
        )
    seconds = time.monotonic() - began_s
    if settings().json:
        restored = [
            {"name": each.name, "source": each.source, "rows": each.rows, **moment(each.until)}
            for each in made
        ]
        echo_json({"folder": folder, "store": store, "tables": restored, "seconds": round(seconds, 3)})
        return
    rows = [[each.name, f"{each.rows:,}", moment(each.until)["time"]] for each in made]
    echo_rows(["table", "rows", "as of"], rows, ["rows"])
    click.echo(f"Done in {duration(seconds)}.", err=True)


@click.group(cls=Group)
def backups() -> None:
    """The backups in a folder."""


@backups.command("list")
@click.argument("folder", type=click.Path())
def list_(folder: str) -> None:
    """List the backups, oldest first. FOLDER is a folder or a URL."""
    from nyala.api.backups import list_backups

    found = list_backups(folder, storage_options=settings().storage_options or None)
    if settings().json:
        echo_json({"folder": folder, "backups": [_described(each) for each in found]})
    elif found:
        _echo(found)
    else:
        click.echo("The folder has no backups.", err=True)


@backups.command("clean")
@click.argument("folder", type=click.Path())
@click.option(
    "--older-than",
    metavar="TIME",
    required=True,
    callback=moment_option,
    help="Backups before this time: ISO time (default UTC), an age (30d), or a Nyala timestamp.",
)
def clean(folder: str, older_than: Any) -> None:
    """Remove backups before a time, except those on which a newer one depends."""
    from nyala.api.backups import clean_backups

    removed = clean_backups(folder, older_than, storage_options=settings().storage_options or None)
    if settings().json:
        echo_json({"folder": folder, "removed": removed})
    else:
        click.echo(f"Removed {counted(len(removed), 'backup')}.")


def _described(one: TableBackup) -> dict[str, Any]:
    return {
        "table": one.table,
        "kind": one.kind,
        "of_store": one.of_store,
        **moment(one.until),
        "rows": one.rows,
        "bytes": one.bytes,
        "files": one.files,
        "path": one.path,
        "error": one.error,
    }


def _echo(found: list[TableBackup]) -> None:
    rows = [
        [
            moment(one.until)["time"],
            one.table,
            one.kind,
            "" if one.rows is None else f"{one.rows:,}",
            "" if one.bytes is None else size(one.bytes),
            "yes" if one.of_store else "",
        ]
        for one in found
    ]
    echo_rows(["as of", "table", "kind", "rows", "size", "whole store"], rows, ["rows", "size"])
    for one in found:
        if one.error is not None:
            click.echo(one.error, err=True)
