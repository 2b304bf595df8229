"""Finds the backups in a folder and what they depend on, and removes old backups.

An incremental backup depends on the backup before it. The full backup at the beginning and the
incremental backups after it are called a chain.

Invariants
    B4  An incremental backup depends on a backup with the same identity: the same store and table id,
        and no repartition of the table between the two.
    B5  The next backup of a table removes the work folders of processes that have ended
        (`env.is_gone`). `clean(moment)` also removes all work folders for backups of earlier moments.
    B6  A backup with damaged metadata hides no other backup. `find_backups` reports it. `clean` keeps
        it, and the earlier backups of its table, on which it may depend. The next backup or restore of
        its table raises an error. Other tables are not affected.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from nyala.backup.layout import (
    ADVICE,
    BUCKET_WORK,
    METADATA,
    NAME,
    RECORD,
    WORK,
    Backup,
    Place,
    StoreRecord,
    folder_of,
    names_in,
    path_in,
    records_path,
    table_of,
)
from nyala.env import is_gone
from nyala.errors import CorruptionError, InvalidArgumentError, StorageError
from nyala.mvcc.timestamp import to_datetime

logger = logging.getLogger("nyala.backup")


class DamagedBackup(NamedTuple):
    """A backup whose metadata cannot be read. Its table and its moment are from the folder's name."""

    path: str
    table: str
    until: int
    reason: str


# ------------------------------------------------------------------------------------------------ finding


def check_exists(place: Place) -> None:
    """Raise InvalidArgumentError if the folder does not exist, because its name may be mistyped."""
    files = place.env.files
    if not (names_in(files, place.path) if place.in_bucket else files.exists(place.path)):
        raise InvalidArgumentError(
            f"folder {place.path!r} does not exist: pass the folder that the backup was written to"
        )


def find_backups(place: Place) -> tuple[list[Backup], list[DamagedBackup]]:
    """Return two lists: the readable backups in a folder, oldest first, and the damaged ones.

    A damaged backup has metadata that cannot be read. Unfinished backups have no metadata, and are
    in no list.
    """
    whole: list[Backup] = []
    damaged: list[DamagedBackup] = []
    for folder in _table_folders(place):
        found = _find_in(place, folder)
        whole += found[0]
        damaged += found[1]
    return sorted(whole, key=lambda backup: (backup.until, backup.table, backup.since is None)), damaged


def tables_in(place: Place) -> list[str]:
    """Return the names of the tables that have a backup, sorted."""
    return sorted(
        table_of(place, folder) for folder in _table_folders(place) if any(_metadata_in(place, folder))
    )


def backups_of(place: Place, table: str) -> list[Backup]:
    """Return the finished backups of one table, oldest first.

    Raises: CorruptionError if the metadata of one of them is damaged; StorageError.
    """
    paths = _metadata_in(place, folder_of(place, table))
    return sorted((Backup.read(place, path) for path in paths), key=_sort_key)


def newest_of(backups: Sequence[Backup]) -> Backup | None:
    return max(backups, key=_sort_key, default=None)


def records(place: Place) -> Iterator[tuple[int, StoreRecord | CorruptionError | StorageError]]:
    """Yield the moment and the record of each backup of a whole store, newest first.

    In place of a record that cannot be read, yield the error.
    """
    folder = records_path(place)
    found = [
        (int(match[1]), name)
        for name in names_in(place.env.files, folder)
        if (match := RECORD.fullmatch(name))
    ]
    for until, name in sorted(found, reverse=True):
        try:
            yield until, StoreRecord.read(place, f"{folder}/{name}")
        except (CorruptionError, StorageError) as error:
            yield until, error


def _table_folders(place: Place) -> list[str]:
    own = os.path.basename(records_path(place))
    return [name for name in names_in(place.env.files, place.path) if name != own]


def _find_in(place: Place, folder: str) -> tuple[list[Backup], list[DamagedBackup]]:
    """Return the readable and the damaged backups in a table's folder, each oldest first."""
    whole: list[Backup] = []
    damaged: list[DamagedBackup] = []
    for path in _metadata_in(place, folder):
        try:
            whole.append(Backup.read(place, path))
        except (CorruptionError, StorageError) as error:
            own = os.path.dirname(path)
            name = NAME.fullmatch(os.path.basename(own))
            assert name is not None
            damaged.append(DamagedBackup(own, table_of(place, folder), int(name[1]), str(error)))
    return sorted(whole, key=_sort_key), sorted(damaged, key=lambda found: found.until)


def _sort_key(backup: Backup) -> tuple[int, bool]:
    """Return the sort key of a backup: its moment, and full backups last among those of one moment.

    If a moment has both kinds, the next incremental backup then depends on the full one.
    """
    return backup.until, backup.since is None


def _metadata_in(place: Place, folder: str) -> Iterator[str]:
    """Yield the path of backup.json of each complete backup in a table's folder."""
    files = place.env.files
    for name in filter(NAME.fullmatch, names_in(files, path_in(place, folder))):
        own = path_in(place, folder, name)
        try:
            complete = METADATA in names_in(files, own)
        except StorageError:
            complete = True  # the caller gets the error when it reads the file
        if complete:
            yield f"{own}/{METADATA}"


# ------------------------------------------------------------------------------------------------ dependence


def is_whole(backups: Sequence[Backup], target: Backup) -> bool:
    """Whether all backups on which `target` depends exist."""
    return _links(backups, target)[1] is None


def chain_of(backups: Sequence[Backup], target: Backup) -> list[Backup]:
    """Return the backups on which `target` depends, and `target` itself, oldest first.

    Raises: CorruptionError if one of them is missing.
    """
    links, missing = _links(backups, target)
    if missing is not None:
        raise CorruptionError(_missing_text(links[-1], missing) + ": make a full backup", links[-1].path)
    return links[::-1]


def _missing_text(backup: Backup, since: int) -> str:
    return (
        f"the backup of {backup.table!r} from {to_datetime(backup.until).isoformat()} needs the backup from "
        f"{to_datetime(since).isoformat()}, which is missing"
    )


def _links(backups: Sequence[Backup], target: Backup) -> tuple[list[Backup], int | None]:
    """Return `target` and the backups on which it depends, newest first.

    Also return the moment of the first missing backup, at which the search ends, or None.
    """
    links = [target]
    while (since := links[-1].since) is not None:
        before = [
            found
            for found in backups
            if (found.table, found.identity, found.until) == (target.table, target.identity, since)
            and found.path != links[-1].path
        ]
        if not before:
            return links, since
        links.append(before[-1])
    return links, None


# ------------------------------------------------------------------------------------------------ removing


def remove_abandoned(place: Place, table: str) -> None:
    """Remove unfinished backups of a table whose processes have ended."""
    files, folder = place.env.files, path_in(place, folder_of(place, table))
    for name in names_in(files, folder):
        for path, owner in _work_folders(place, f"{folder}/{name}"):
            if is_gone(owner):
                files.remove_tree(path)


def _work_folders(place: Place, path: str) -> Iterator[tuple[str, str]]:
    """Yield (path, process mark) of each work folder at `path`. It holds an unfinished backup.

    The process mark identifies the process that writes the backup.

    path: any item in the folder that has all backups of one table. In a bucket, the item is a
        backup's folder, and work folders are inside of it. In other places the item itself may be a
        work folder.
    """
    if not place.in_bucket:
        found = WORK.fullmatch(os.path.basename(path))
        if found is not None:
            yield path, found[2]
    elif NAME.fullmatch(os.path.basename(path)):
        names = names_in(place.env.files, path)
        if METADATA not in names:
            for name in names:
                if (found := BUCKET_WORK.fullmatch(name)) is not None:
                    yield f"{path}/{name}", found[1]


def clean(place: Place, moment: int) -> list[str]:
    """Remove old and interrupted backups from `place`; return their folders.

    A backup is removed if it is older than `moment` and no backup that is kept depends on it.
    """
    removed: list[str] = []
    for folder in _table_folders(place):
        removed += _clean_table(place, folder, moment)
    for until, _ in list(records(place)):
        if until < moment:
            place.env.files.unlink(f"{records_path(place)}/{until}.json", missing_ok=True)
    return removed


def _clean_table(place: Place, table: str, moment: int) -> list[str]:
    files, folder = place.env.files, path_in(place, table)
    backups, damaged = _find_in(place, table)
    names = names_in(files, folder)
    kept = [backup for backup in backups if backup.until >= moment]
    unfinished = [work for name in names for work in _work_folders(place, f"{folder}/{name}")]
    if backups and not all(is_gone(owner) for _, owner in unfinished):
        kept.append(backups[-1])
    needed: set[str] = set()
    # The moments of damaged and missing backups. Such a backup may depend on any earlier backup.
    unknown = [(found.until, found.reason) for found in damaged]
    for backup in kept:
        links, missing = _links(backups, backup)
        needed |= {link.path for link in links}
        if missing is not None and all(missing != until for until, _ in unknown):
            unknown.append((missing, f"{_missing_text(links[-1], missing)}: {ADVICE}"))
    for until, reason in unknown:
        logger.warning(
            "no backup of table %r from %s or earlier is removed, because a backup cannot be read: %s",
            table_of(place, table), to_datetime(until).isoformat(), reason,
        )  # fmt: skip
    known_after = max((until for until, _ in unknown), default=-1)
    gone = {path for path, owner in unfinished if is_gone(owner)}
    removed = []
    for name in names:
        path = f"{folder}/{name}"
        work, made = WORK.fullmatch(name), NAME.fullmatch(name)
        if work is not None:
            if int(work[1]) < moment or path in gone:
                files.remove_tree(path)
                removed.append(path)
        elif made is not None and known_after < int(made[1]) < moment and path not in needed:
            # Remove the metadata first: a folder without it is not a backup.
            files.unlink(f"{path}/{METADATA}", missing_ok=True)
            files.remove_tree(path)
            removed.append(path)
    for path in sorted(gone) if place.in_bucket else ():
        if os.path.dirname(path) not in removed:
            files.remove_tree(path)
            removed.append(path)
    return removed
