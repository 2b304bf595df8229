"""`nyala backup`, `nyala restore` and `nyala backups list|clean`: backups without Spark.

`backup` opens the store read-only, so another process may write to it. `restore` writes to the
store.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from nyala.cli.base import Command, Group, settings, storage_options
from nyala.cli.options import moment_option
from nyala.cli.output import counted, duration, echo_json, echo_result, echo_rows, moment, size
from nyala.cli.progress import Bar
from nyala.cli.stores import check_store_path, reader, storage_options_of_both, writer

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
        help="A storage option of FOLDER. Default: the options of --option, if both URLs are of one kind.",
    )(function)


@click.command(cls=Command)
@click.argument("store", type=click.Path(), callback=check_store_path)
@click.argument("folder", type=click.Path())
@click.option("--table", "tables", metavar="NAME", multiple=True, help="Only this table. May be repeated.")
@click.option("--full", is_flag=True, help="Back up all rows, also if the changes would be enough.")
@_backup_option
def backup(
    store: str, folder: str, tables: tuple[str, ...], full: bool, backup_options: dict[str, Any]
) -> None:
    """Back up all tables of a store at one moment: the changes since the last backup, or all rows.

    STORE and FOLDER are folders or URLs. Another process may write to the store meanwhile.
    """
    began_s = time.monotonic()
    folder_options, store_options = storage_options_of_both("--backup-option", backup_options, folder, store)
    with reader(store, store_options) as database, Bar("backing up") as bar:
        result = database.backup(
            folder,
            list(tables) or None,
            full=full,
            storage_options=folder_options or None,
            progress=bar.update,
        )
    seconds = time.monotonic() - began_s
    if settings().json:
        echo_json(
            {
                "store": store,
                "folder": folder,
                **moment(result.until),
                "tables": [_document(each) for each in result.tables],
                "unchanged": list(result.unchanged),
                "seconds": round(seconds, 3),
            }
        )
        return
    if result.tables:
        _echo_backups(list(result.tables))
    if result.unchanged:
        click.echo(f"Nothing was written since the last backup of {', '.join(result.unchanged)}.", err=True)
    click.echo(f"Done in {duration(seconds)}.", err=True)


@click.command(cls=Command)
@click.argument("folder", type=click.Path())
@click.argument("store", type=click.Path(), callback=check_store_path)
@click.option(
    "--table",
    "tables",
    metavar="NAME",
    multiple=True,
    help="Only this table. May be repeated. Default: all tables of the newest backup of the whole store.",
)
@click.option("--as", "new_name", metavar="NAME", help="A new name for the table. Needs exactly one --table.")
@moment_option(
    "--at",
    "Restore the newest backup up to this time: ISO time (default UTC), an age (2h, 1d), or a Nyala timestamp.",
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
    """Restore tables from backups into a store, and create the store if it is missing.

    FOLDER and STORE are folders or URLs. Existing tables are never changed.
    """
    from nyala.api.backups import restore_backup

    if new_name is not None and len(tables) != 1:
        raise click.UsageError("--as needs exactly one --table")
    began_s = time.monotonic()
    folder_options, _ = storage_options_of_both("--backup-option", backup_options, folder, store)
    with writer(store, create=True, maintenance=False) as database, Bar("restoring") as bar:
        restored = restore_backup(
            folder,
            database,
            {tables[0]: new_name} if new_name is not None else (list(tables) or None),
            at,
            storage_options=folder_options or None,
            progress=bar.update,
        )
    seconds = time.monotonic() - began_s
    if settings().json:
        documents = [
            {"name": each.name, "source": each.source, "rows": each.rows, **moment(each.until)}
            for each in restored
        ]
        echo_json({"folder": folder, "store": store, "tables": documents, "seconds": round(seconds, 3)})
        return
    rows = [[each.name, f"{each.rows:,}", moment(each.until)["time"]] for each in restored]
    echo_rows(["table", "rows", "as of"], rows, ["rows"])
    click.echo(f"Done in {duration(seconds)}.", err=True)


@click.group(cls=Group)
def backups() -> None:
    """Backups in a folder: list, clean."""


@backups.command("list")
@click.argument("folder", type=click.Path())
def list_(folder: str) -> None:
    """List the backups, oldest first. FOLDER is a folder or a URL."""
    from nyala.api.backups import list_backups

    found = list_backups(folder, storage_options=settings().storage_options or None)
    if settings().json:
        echo_json({"folder": folder, "backups": [_document(each) for each in found]})
    elif found:
        _echo_backups(found)
    else:
        click.echo("The folder has no backups.", err=True)


@backups.command("clean")
@click.argument("folder", type=click.Path())
@moment_option(
    "--older-than",
    "Backups before this time: ISO time (default UTC), an age (30d), or a Nyala timestamp.",
    required=True,
)
def clean(folder: str, older_than: Any) -> None:
    """Remove backups before a time, except those that a newer incremental backup needs."""
    from nyala.api.backups import clean_backups

    removed = clean_backups(folder, older_than, storage_options=settings().storage_options or None)
    echo_result({"folder": folder, "removed": removed}, f"Removed {counted(len(removed), 'backup')}.")


def _document(one: TableBackup) -> dict[str, Any]:
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


def _echo_backups(found: list[TableBackup]) -> None:
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
