"""Decides what the next backup of a table contains: all rows, or the changes since the last backup.

    full          every row of the table at the moment `until`, with the action insert
    incremental   for each row that changed after the last backup, up to `until`: insert, update or delete

Invariants
    B3  A restore reads only the rows of tablets that exist in the backup to restore. Earlier
        backups may also have rows of a range that was dropped later. The change feed does not
        report these rows as deleted, so no later backup removes them. Tablet ids are never reused,
        so the rows are skipped even if the same range was added again.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nyala.backup.layout import Backup, Place
from nyala.backup.listing import backups_of, is_whole, newest_of
from nyala.env import SYSTEM, process_mark
from nyala.env.paths import is_bucket_url
from nyala.errors import HistoryExpiredError, InvalidArgumentError
from nyala.tablet.changes.spec import FEED_COLUMNS, ChangeSpec
from nyala.tablet.scan.read_path import ScanSpec
from nyala.tablet.state.history import check_readable
from nyala.tablet.state.root import Root, TableState

if TYPE_CHECKING:
    from nyala.tablet.media.bucket_reader import BucketReader
    from nyala.tablet.recovery.reader_store import ReaderStore
    from nyala.tablet.store import Store


@dataclass(frozen=True)
class BackupPlan:
    """A planned backup, and the scan that returns its rows.

    Until the backup is written, the caller must keep the root that has `table`, or a lease on its
    version. Otherwise files of the scan could be deleted.
    """

    backup: Backup
    table: TableState
    spec: ScanSpec | ChangeSpec


def check_outside(place: Place, store_path: str) -> None:
    """Raise InvalidArgumentError if the backup's folder is inside the store's folder."""
    path = place.path
    if place.in_bucket or is_bucket_url(store_path):
        inside = f"{path}/".startswith(f"{store_path}/")
    else:
        own = os.path.realpath(store_path)
        inside = os.path.commonpath([own, os.path.realpath(path)]) == own
    if inside:
        raise InvalidArgumentError(
            f"the folder {path!r} is inside the store's folder, and a backup in it would be lost with the store: "
            "choose a folder outside"
        )


def plan_backup(
    place: Place,
    store: Store | ReaderStore | BucketReader,
    root: Root,
    name: str,
    until: int,
    *,
    full: bool = False,
) -> tuple[BackupPlan | None, Backup | None]:
    """Plan the backup of table `name` at the moment `until`, the newest moment of `root`.

    full: never plan an incremental backup.
    Returns: the plan, or None if this moment has a backup; and the newest existing backup, or None.
    Raises: TableNotFoundError; CorruptionError if the metadata of an earlier backup is damaged;
        InvalidArgumentError if the folder is inside the store.
    """
    check_outside(place, store.root_path)
    table = root.table(name).as_of(until)
    entry, schema = table.entry, table.schema
    earlier = backups_of(place, name)
    last = newest_of(earlier)
    since: int | None = None
    if last is not None and last.identity == (store.store_id, table.id, entry.rewritten_at):
        if last.until == until and (last.since is None or not full):
            return None, last
        if (
            not full
            and last.until < until
            and is_whole(earlier, last)
            and _has_changes_since(store, table, last, until)
        ):
            since = last.until
    spec = (
        ScanSpec(schema, schema.columns, until)
        if since is None
        else ChangeSpec(schema.columns, schema.key_count, since, until)
    )
    taken = any(found.until == until for found in earlier)
    owner, token = process_mark() or "-", SYSTEM.randomness.token_hex(8)
    folder = f"{until}-full" if taken else str(until)
    backup = Backup(
        place, store.store_id, name, table.id, entry.rewritten_at, since, until, schema, entry.partition_schema,
        tuple((tablet.id, tablet.partition) for tablet in table.tablets), entry.history_us, entry.comment, folder,
        work=f"{folder}/{owner}-{token}" if place.in_bucket else f".{until}-{owner}-{token}",
    )  # fmt: skip
    return BackupPlan(backup, table, spec), last


def _has_changes_since(
    store: Store | ReaderStore | BucketReader, table: TableState, last: Backup, until: int
) -> bool:
    """Whether the change feed has all changes since the last backup.

    It does not have them if the table's history is shorter, or if a dropped range was undropped. The feed
    also does not have the deletes of purged rows. A table with columns that are called like the feed's
    own columns has no feed.
    """
    if table.entry.purged_keys > last.until or set(FEED_COLUMNS) & set(table.schema.names):
        return False
    if any(
        tablet.entry.created <= last.until and not tablet.entry.existed_at(last.until)
        for tablet in table.tablets
    ):
        return False  # a range was undropped, and the feed does not report its rows
    try:
        check_readable(table.entry, last.until, until, store.env.clock.now_us())
    except HistoryExpiredError:
        return False
    return True
