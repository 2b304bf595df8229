"""`nyala.restore_backup`, `list_backups` and `clean_backups`; `Database.backup` makes the backups."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nyala.api.database import Database, connect
from nyala.api.results import RestoredTable, TableBackup, table_backup
from nyala.backup.layout import StoreRecord, open_place
from nyala.backup.listing import check_exists, clean, find_backups, records
from nyala.backup.read import plan_restore, plan_restore_of_store
from nyala.backup.restore import check_free, restore
from nyala.errors import InvalidArgumentError
from nyala.mvcc.timestamp import parse_at
from nyala.presentation.progress import Progress, progress_function

if TYPE_CHECKING:
    from nyala.api.types import Moment
    from nyala.objects.open import StorageOptions


def restore_backup(
    folder: str | os.PathLike[str],
    target: str | os.PathLike[str] | Database,
    tables: Sequence[str] | Mapping[str, str] | None = None,
    at: Moment | None = None,
    *,
    storage_options: StorageOptions | None = None,
    progress: bool | Progress = False,
) -> list[RestoredTable]:
    """Restore tables from a backup folder into a store.

    Parameters
    ----------
    folder
        The folder of `Database.backup` or `nyala.spark.backup`, or its URL.
    target
        An open `Database`, or the path or URL of a store; a missing store is created.
    tables
        The names of the tables. A dict restores tables under other names:
        `{"flights": "flights_may"}`. Default: all tables of the newest backup of the whole store.
    at
        Restore the newest backup that is not later than this moment. If `target` is an open
        `Database`, `at` may be one of its tags. Default: the newest backup.
    storage_options
        For a backup in a bucket, as in `connect`. If `target` is a store in a bucket that also
        needs options, pass an open `Database`.
    progress
        `True` prints progress. A function is called with (files done, files in total).

    Returns
    -------
    list of RestoredTable
        The restored tables, sorted by name. They become visible together, when all of them are
        complete.

    Raises
    ------
    InvalidArgumentError
        There is no such backup, or an argument is invalid.
    TableExistsError
        The store has a table of one of the names.
    CorruptionError, StorageError
        A backup is damaged or incomplete, or the store cannot be written. No table was restored.

    Notes
    -----
    The history of a restored table begins now.

    Examples
    --------
    >>> made = db.backup(backups)
    >>> metrics.delete(where="TRUE").deleted
    3
    >>> nyala.restore_backup(backups, db, tables={"metrics": "metrics_again"})[0].rows
    3
    """
    show = progress_function(progress, lambda done, total: f"restore: {done:,} of {total:,} files") or (
        lambda *_: None
    )
    if at is not None:
        at = target._without_tag(at) if isinstance(target, Database) else at
        parse_at(at)
    with open_place(folder, storage_options) as place, contextlib.ExitStack() as opened:
        if tables is None:
            plans = {plan[0].table: plan for plan in plan_restore_of_store(place, at)}
        else:
            plans = {}
            names = _new_names(tables)
            check_free(list(names.values()), {})
            for name, new_name in names.items():
                plans[new_name] = plan_restore(place, name, at)
        if isinstance(target, Database):
            database = target
        elif isinstance(target, str | os.PathLike):
            database = opened.enter_context(connect(target))
        else:
            raise InvalidArgumentError(
                f"restore_backup takes an open Database or the path of a store as target, not {target!r}"
            )
        store = database._writer()
        return [RestoredTable(**dataclasses.asdict(made)) for made in restore(store, plans, show)]


def _new_names(tables: Any) -> dict[str, str]:
    """Return a dict from the name of each table in the backup to its name in the store."""
    if isinstance(tables, Mapping):
        names = dict(tables)
    elif isinstance(tables, Iterable) and not isinstance(tables, str | bytes):
        names = {name: name for name in tables}
    else:
        raise InvalidArgumentError(
            f'tables takes a list of names, such as ["flights"], or a dict from names to new names, not {tables!r}'
        )
    if not all(isinstance(name, str) for pair in names.items() for name in pair):
        raise InvalidArgumentError(f"tables takes names of tables as text, not {tables!r}")
    return names


def list_backups(
    folder: str | os.PathLike[str], *, storage_options: StorageOptions | None = None
) -> list[TableBackup]:
    """Return the backups in a folder, oldest first.

    Parameters
    ----------
    folder
        The backup folder, or its URL.
    storage_options
        For a URL: as in `connect`.

    Returns
    -------
    list of TableBackup
        One per backup of a table. A damaged backup has the kind "damaged", and the reason in
        `error`.

    Raises
    ------
    InvalidArgumentError
        The folder does not exist.

    Examples
    --------
    >>> made = db.backup(backups)
    >>> [(backup.table, backup.kind, backup.rows) for backup in nyala.list_backups(backups)]
    [('metrics', 'full', 3)]
    """
    with open_place(folder, storage_options) as place:
        check_exists(place)
        whole, damaged = find_backups(place)
        together = {
            (record.until, table, name)
            for _, record in records(place)
            if isinstance(record, StoreRecord)
            for table, name in record.tables.items()
        }
    found = [
        table_backup(backup, of_store=(backup.until, backup.table, backup.name) in together)
        for backup in whole
    ]
    found += [
        TableBackup(table=each.table, kind="damaged", until=each.until, path=each.path, error=each.reason)
        for each in damaged
    ]
    return sorted(found, key=lambda each: (each.until, each.table))


def clean_backups(
    folder: str | os.PathLike[str], older_than: Moment, *, storage_options: StorageOptions | None = None
) -> list[str]:
    """Remove backups older than a moment, except those on which a newer backup depends.

    Also removes the files of backups that were interrupted before the moment. Every backup that
    remains can be restored.

    Parameters
    ----------
    folder
        The backup folder, or its URL.
    older_than
        The moment: a timestamp, datetime or ISO text.
    storage_options
        For a URL: as in `connect`.

    Returns
    -------
    list of str
        The removed folders.

    Raises
    ------
    InvalidArgumentError
        The folder does not exist.

    Notes
    -----
    A damaged backup is kept, with all earlier backups of its table, because it may depend on them.
    If a backup in the middle of a chain is missing, the backups before the gap are kept. In both
    cases the logger `nyala.backup` writes a warning. While a table is being backed up, its newest
    backup is kept.

    Examples
    --------
    >>> made = db.backup(backups)
    >>> nyala.clean_backups(backups, older_than="2026-01-01")
    []
    """
    moment = parse_at(older_than, name="older_than")
    with open_place(folder, storage_options) as place:
        check_exists(place)
        return clean(place, moment)
