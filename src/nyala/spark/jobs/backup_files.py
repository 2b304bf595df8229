"""Files of a table's backups: a full backup, then incremental backups from its change feed, and reading them.

    folder/<table>/<until>/part-….parquet      rows of one tablet: a column c<id> per column, and _action
                          /backup.json         written last; a folder without it is not a backup
           <table>/.<until>-<owner>-<token>/   a backup in progress; renamed to <until> when complete

In a bucket nothing can be renamed: the files of a backup in progress are in <until>/<token>/ already,
and backup.json is put last, by put-if-absent. Names of tables are escaped as keys allow.

    full          the table as of `until`                         every row, action insert
    incremental   the net changes in (last backup, until]         insert, update or delete

    restore       the newest full backup that is not later than the target, then the incremental backups up to the
                  target, in order

The driver makes plans and metadata; Spark's tasks read and write the other files. Both must see the folder or bucket.

Invariants
    B1  backup.json exists only if all files that it names exist and are synced. The folder is renamed to its final name
        after that; in a bucket, backup.json itself makes the backup. So an interrupted backup is not a backup, and no
        backup changes an earlier one.
    B2  Columns are identified by their ids. A renamed column matches, a dropped one is left out, and earlier rows get
        the default of a later column.
    B3  Rows belong to tablets, and tablet ids are never reused. A dropped range is in no later change feed. A restore
        leaves out rows of tablets that the target moment does not have, even if the range was added again.
    B4  A backup is incremental only to a backup of the same table id, if the table was not rewritten since and its
        history reaches back to that backup.
    B5  The next backup of a table removes the work folder of a killed driver if it can tell that the driver has ended
        (`env.is_gone`). `clean_backups` of a later moment removes it in any case.
    B6  Damaged metadata hides no other backup. `list_backups` names the damaged backup. `clean_backups` keeps it and
        the earlier backups of its table, on which it may depend. A backup or restore of its table is refused; other
        tables are not affected.
Source: docs/how-to/spark.md; docs/design/kudu.md, "Backups".
"""

from __future__ import annotations

import dataclasses
import errno
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, unquote

import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq

from nyala.api.scan import read_token
from nyala.env import SYSTEM, Env, Files, is_gone, process_mark
from nyala.env.paths import is_bucket_url
from nyala.errors import CorruptionError, HistoryExpiredError, InvalidArgumentError, StorageError
from nyala.mvcc.timestamp import parse_at, to_datetime
from nyala.objects.address import Address, bucket_of
from nyala.objects.settle import settle
from nyala.partition.model import Partition, PartitionSchema
from nyala.schema.conversion.convert import default_array
from nyala.schema.schema import Schema
from nyala.spark.arguments import address_of_store
from nyala.tablet.changes.change_token import (
    changes_in_memory,
    make_change_tokens,
    read_change_token,
    rows_token,
)
from nyala.tablet.changes.spec import CHANGE_TYPE, FEED_COLUMNS
from nyala.tablet.jobs.load_job import partition_from_json, partition_to_json
from nyala.tablet.scan.token import MAGIC as TOKEN_MAGIC
from nyala.tablet.scan.token import tablet_of

if TYPE_CHECKING:
    from nyala.api.table import Table
    from nyala.tablet.state.root import Root

__all__ = [
    "Backup",
    "BackupItem",
    "DamagedBackup",
    "PartFile",
    "RestoreStep",
    "begin_backup",
    "clean_backups",
    "find_backups",
    "list_backups",
    "plan_backup",
    "plan_restore",
    "read_part",
    "write_item",
]

logger = logging.getLogger("nyala.spark")

VERSION: Final = 2
METADATA: Final = "backup.json"
ACTION: Final = "_action"
# Names of a backup's folder, and of the folder of a backup in progress. A timestamp has at most 19 digits.
_NAME: Final = re.compile(r"(\d{1,19})(?:-full)?")
_WORK: Final = re.compile(r"\.(\d+)-([0-9a-f]{40}|-)-[0-9a-f]{16}")
# The advice in errors about damaged metadata.
_ADVICE: Final = "restore the original files, or move the backup's folder elsewhere"


class PartFile(NamedTuple):
    """A file of a backup. crc: CRC-32C of its bytes."""

    name: str
    tablet: int
    rows: int
    bytes: int
    crc: int


@dataclass(frozen=True)
class Backup:
    """The content of backup.json, which also has its own CRC-32C. since is None for a full backup."""

    root: Address
    table: str
    table_id: int
    rewritten: int
    since: int | None
    until: int
    schema: Schema
    partition_schema: PartitionSchema
    partitions: tuple[tuple[int, Partition], ...]
    history_us: int | None
    comment: str
    dropped_ranges: tuple[dict[str, Any], ...]
    name: str
    """The folder's name: `until`, or `until`-full if that moment already has an incremental backup."""
    files: tuple[PartFile, ...] = ()
    work: str = ""
    """The name of the folder while the backup is in progress."""

    @property
    def path(self) -> str:
        return self.root.within(_folder_of(self.root, self.table), self.name).path

    @property
    def work_path(self) -> str:
        return self.root.within(_folder_of(self.root, self.table), self.work).path

    @property
    def files_at(self) -> Files:
        """The files of the folder or bucket."""
        return self.root.env.files

    def to_json(self) -> dict[str, Any]:
        fields = {
            "version": VERSION,
            "table": self.table,
            "table_id": self.table_id,
            "rewritten": self.rewritten,
            "since": self.since,
            "until": self.until,
            "schema": json.loads(self.schema.to_json()),
            "partition_schema": json.loads(self.partition_schema.to_json()),
            "tablets": [{"id": number, **partition_to_json(p)} for number, p in self.partitions],
            "history_us": self.history_us,
            "comment": self.comment,
            "dropped_ranges": list(self.dropped_ranges),
            "files": [list(file) for file in self.files],
        }
        return {**fields, "crc": _crc_of(fields)}

    @staticmethod
    def read(root: Address, path: str) -> Backup:
        """Read backup.json. Raises: CorruptionError for damaged metadata or another version."""
        try:
            fields = json.loads(root.env.files.read_all(path))
            if fields["version"] != VERSION:
                raise CorruptionError(
                    f"backup version {fields['version']} is not supported, only {VERSION}: back up to another folder",
                    path,
                )
            crc = fields.pop("crc")
            if crc != _crc_of(fields):
                raise CorruptionError(
                    f"the backup's metadata is damaged: expected checksum {crc}, found {_crc_of(fields)}: {_ADVICE}",
                    path,
                )
            return Backup(
                root, fields["table"], fields["table_id"], fields["rewritten"], fields["since"], fields["until"],
                Schema.from_json(json.dumps(fields["schema"])),
                PartitionSchema.from_json(json.dumps(fields["partition_schema"])),
                tuple((tablet["id"], partition_from_json(tablet)) for tablet in fields["tablets"]),
                fields["history_us"], fields["comment"], tuple(fields["dropped_ranges"]),
                os.path.basename(os.path.dirname(path)),
                tuple(PartFile(*file) for file in fields["files"]),
            )  # fmt: skip
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptionError(
                f"the backup's metadata cannot be read ({error}): {_ADVICE}", path
            ) from error


class DamagedBackup(NamedTuple):
    """A backup whose metadata cannot be read: the facts in its folder's name, and the reason."""

    path: str
    table: str
    until: int
    reason: str


def _crc_of(fields: dict[str, Any]) -> int:
    return int(google_crc32c.value(json.dumps(fields, sort_keys=True).encode()))


@dataclass(frozen=True)
class BackupItem:
    """The content of one file to write: a scan token or a change token."""

    tablet_id: int
    data: bytes


# ------------------------------------------------------------------------------------------------ backup


def plan_backup(
    table: Table, folder: str, *, full: bool = False, storage_options: Mapping[str, Any] | None = None
) -> tuple[Backup, list[BackupItem], Root] | None:
    """Plan the next backup: its metadata without files, and the files to write. None if nothing has changed.

    The caller must hold the returned root, or lease its version, until the items are written.
    Raises: CorruptionError if the metadata of an earlier backup is damaged; InvalidArgumentError if the folder is
    inside the store.
    """
    root = _root(folder, storage_options)
    if _is_inside(root.path, table._database.path):
        raise InvalidArgumentError(
            f"the folder {root.path!r} is inside the store's folder, and a backup in it would be lost with the store: "
            "choose a folder outside"
        )
    earlier = _backups_of(root, table.name)
    held, state, until = table._view(None)
    mine = (state.id, state.entry.rewritten)
    last = max(earlier, key=_age, default=None)
    since: int | None = None
    if last is not None and (last.table_id, last.rewritten) == mine:
        if last.until == until and (last.since is None or not full):
            return None
        since = None if full or not _is_whole(earlier, last) else last.until
    dropped: list[dict[str, Any]] = []
    items: list[BackupItem] = []
    if since is not None:
        try:
            feed = table.changes(since, until)
        except HistoryExpiredError:
            since = None  # the last backup is older than the table's history
        else:
            dropped = feed.dropped_ranges
            held, state = feed._take()
            for tablet in state.tablets:
                alone = dataclasses.replace(state, tablets=(tablet,))
                tokens = make_change_tokens(table._database.path, alone, feed._spec)
                items += [BackupItem(tablet.id, token) for token in tokens]
                rows = [batch for batch in changes_in_memory(alone, feed._spec) if batch.num_rows]
                if rows:
                    items.append(BackupItem(tablet.id, rows_token(pa.Table.from_batches(rows))))
    if since is None:
        scan = table.scan(at=until)
        held, state = scan._take()
        for made in scan._engine().tokens(len(state.tablets)):
            tablet_id = tablet_of(made.data)
            assert tablet_id is not None
            items.append(BackupItem(tablet_id, made.data))
    entry = state.entry
    taken = any(found.until == until for found in earlier)
    owner, token = process_mark() or "-", SYSTEM.randomness.token_hex(8)
    name = f"{until}-full" if taken else str(until)
    backup = Backup(
        root, table.name, state.id, entry.rewritten, since, until, state.schema, entry.partition_schema,
        tuple((tablet.id, tablet.partition) for tablet in state.tablets), entry.history_us, entry.comment,
        tuple(dropped), name,
        work=f"{name}/{token}" if root.in_bucket else f".{until}-{owner}-{token}",
    )  # fmt: skip
    return backup, items, held


def _is_inside(path: str, store: str) -> bool:
    if is_bucket_url(path) or is_bucket_url(store):
        return f"{path}/".startswith(f"{store}/")
    store = os.path.realpath(store)
    return os.path.commonpath([store, os.path.realpath(path)]) == store


def begin_backup(backup: Backup) -> None:
    """Make the backup's work folder, and remove the table's work folders of killed drivers (B5)."""
    files, parent = backup.files_at, os.path.dirname(backup.work_path)
    for name in [] if backup.root.in_bucket else _names_in(files, parent):
        found = _WORK.fullmatch(name)
        if found is not None and is_gone(found[2]):
            files.remove_tree(os.path.join(parent, name))
    files.make_dirs(backup.work_path)


def write_item(backup: Backup, item: BackupItem, name: str, source: Env | None = None) -> PartFile | None:
    """Write and sync one file of a backup, in a task. Write nothing and return None if there are no rows.

    source: the environment with the store's files; None: those of this machine.
    """
    ids = {column.name: column.id for column in backup.schema.columns}
    schema: pa.Schema | None = None
    sink = pa.BufferOutputStream()
    writer = None
    rows = 0
    for batch in _rows(item.data, source or SYSTEM):
        if not batch.num_rows:
            continue
        if CHANGE_TYPE in batch.schema.names:
            action = batch.column(CHANGE_TYPE)
        else:
            action = pa.repeat("insert", batch.num_rows)
        names = [column for column in batch.schema.names if column not in FEED_COLUMNS]
        part = pa.table(
            [*(batch.column(column) for column in names), action],
            names=[*(f"c{ids[column]}" for column in names), ACTION],
        )
        if writer is None:
            schema = part.schema
            writer = pq.ParquetWriter(sink, schema, compression="zstd")
        writer.write_table(part)
        rows += part.num_rows
    if writer is None:
        return None
    writer.close()
    body = sink.getvalue()
    file = backup.files_at.create(os.path.join(backup.work_path, name))
    try:
        file.append(body)
        file.sync()
    finally:
        file.close()
    if backup.root.in_bucket:
        name = f"{os.path.basename(backup.work)}/{name}"
    return PartFile(name, item.tablet_id, rows, body.size, google_crc32c.value(body))


def finish_backup(backup: Backup, files: Sequence[PartFile]) -> Backup:
    """Write the metadata and give the folder its final name (B1).

    Raises: StorageError if another program made a backup of this moment meanwhile.
    """
    done = dataclasses.replace(backup, files=tuple(sorted(files)))
    named = {os.path.basename(file.name) for file in files}
    at = backup.files_at
    for name in set(_names_in(at, backup.work_path)) - named:
        at.unlink(os.path.join(backup.work_path, name))  # written by a task that ran twice
    at.sync_dir(backup.work_path)
    text = json.dumps(done.to_json(), indent=1).encode()
    bucket = bucket_of(backup.root.env)
    if bucket is not None:
        path = os.path.join(backup.path, METADATA)
        if settle(backup.root.env, bucket, path.removeprefix(f"{bucket.url}/"), text) is not None:
            raise StorageError(
                f"another program has made a backup of the same timestamp: {path}",
                path=path,
                errno=errno.EEXIST,
            )
        return done
    at.write_atomic(os.path.join(backup.work_path, METADATA), text)
    if not at.exists(os.path.join(backup.path, METADATA)):
        at.remove_tree(backup.path)  # left over from an interrupted removal
    at.rename(backup.work_path, backup.path)
    at.sync_dir(os.path.dirname(backup.path))
    return done


def _rows(data: bytes, env: Env) -> Iterator[pa.RecordBatch]:
    return read_token(data, env=env) if data.startswith(TOKEN_MAGIC) else read_change_token(data, env)


# ------------------------------------------------------------------------------------------------ list and remove


def find_backups(
    folder: str, storage_options: Mapping[str, Any] | None = None
) -> tuple[list[Backup], list[DamagedBackup]]:
    """All complete backups in a folder, oldest first, and those that cannot be read (B6).

    Raises: InvalidArgumentError: no folder.
    """
    root = _existing(folder, storage_options)
    whole: list[Backup] = []
    damaged: list[DamagedBackup] = []
    for table in _names_in(root.env.files, root.path):
        found = _look(root, table)
        whole += found[0]
        damaged += found[1]
    return sorted(whole, key=lambda backup: (backup.until, backup.table, backup.since is None)), damaged


def _root(folder: str, storage_options: Mapping[str, Any] | None) -> Address:
    return address_of_store(folder, "a backup", storage_options)


def _existing(folder: str, storage_options: Mapping[str, Any] | None) -> Address:
    root = _root(folder, storage_options)
    files = root.env.files
    if not (_names_in(files, root.path) if root.in_bucket else files.exists(root.path)):
        raise InvalidArgumentError(
            f"folder {root.path!r} does not exist: pass the folder that nyala.spark.backup wrote to"
        )
    return root


def _look(root: Address, table: str) -> tuple[list[Backup], list[DamagedBackup]]:
    """What is in a table's folder, each by itself, oldest first."""
    whole: list[Backup] = []
    damaged: list[DamagedBackup] = []
    for path in _metadata_in(root, table):
        try:
            whole.append(Backup.read(root, path))
        except (CorruptionError, StorageError) as error:
            own = os.path.dirname(path)
            damaged.append(DamagedBackup(own, _table_of(root, table), _until(own), str(error)))
    return sorted(whole, key=_age), sorted(damaged, key=lambda found: found.until)


def _until(path: str) -> int:
    """The moment in the name of a backup's folder."""
    name = _NAME.fullmatch(os.path.basename(path))
    assert name is not None
    return int(name[1])


def _age(backup: Backup) -> tuple[int, bool]:
    """Of one moment the full one is the last, so that the next builds on it alone."""
    return backup.until, backup.since is None


def _backups_of(root: Address, table: str) -> list[Backup]:
    """Those of one table, oldest first: what is wrong with another's is no matter."""
    found = [Backup.read(root, path) for path in _metadata_in(root, _folder_of(root, table))]
    return sorted(found, key=_age)


def _metadata_in(root: Address, table: str) -> Iterator[str]:
    """Of each complete backup in a table's folder."""
    files = root.env.files
    for name in filter(_NAME.fullmatch, _names_in(files, root.within(table).path)):
        own = root.within(table, name).path
        try:
            there = METADATA in _names_in(files, own)
        except StorageError:
            there = True  # reading it raises the error
        if there:
            yield os.path.join(own, METADATA)


def _folder_of(root: Address, table: str) -> str:
    """A table's name as that of a folder. A key of a bucket has fewer characters, and none of them is %."""
    if root.in_bucket:
        name = quote(table, safe="").replace("~", "%7E").replace("%", "=")
        return f"=2E{name[1:]}" if name.startswith(".") else name
    name = table.replace("%", "%25").replace("/", "%2F")
    return name.replace(".", "%2E") if name in (".", "..") else name


def _table_of(root: Address, folder: str) -> str:
    """The inverse of `_folder_of`."""
    return unquote(folder.replace("=", "%") if root.in_bucket else folder)


def _names_in(files: Files, path: str) -> list[str]:
    """As `list_dir`; none of what is no folder: a backup's folder may stand among a user's own files."""
    try:
        return files.list_dir(path)
    except StorageError as error:
        if error.errno != errno.ENOTDIR:
            raise
        return []


def list_backups(
    folder: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Return the backups in a folder, oldest first.

    Parameters
    ----------
    folder
        The backup folder, or its URL.
    storage_options
        For a URL: see `nyala.spark.backup`.

    Returns
    -------
    list of dict
        One dict per backup: `table`, `kind`, `since`, `until`, `time`, `rows`, `bytes`, `files`, `path` and
        `error`. `kind` is "full", "incremental" or "damaged". A damaged backup has the reason in `error`,
        and None as `since`, `rows`, `bytes` and `files`. `error` is None for all other backups.

    Raises
    ------
    InvalidArgumentError
        The folder does not exist.

    Examples
    --------
    ```python
    for backup in nyala.spark.list_backups("backups"):
        print(backup["table"], backup["kind"], backup["time"], backup["rows"])
    ```
    """
    whole, damaged = find_backups(os.fspath(folder), storage_options)
    entries: list[dict[str, Any]] = [
        {
            "table": backup.table,
            "kind": "full" if backup.since is None else "incremental",
            "since": backup.since,
            "until": backup.until,
            "time": to_datetime(backup.until),
            "rows": sum(file.rows for file in backup.files),
            "bytes": sum(file.bytes for file in backup.files),
            "files": len(backup.files),
            "path": backup.path,
            "error": None,
        }
        for backup in whole
    ]
    unknown = dict.fromkeys(("since", "rows", "bytes", "files"))
    entries += [
        {
            **unknown,
            "table": found.table,
            "kind": "damaged",
            "until": found.until,
            "time": to_datetime(found.until),
            "path": found.path,
            "error": found.reason,
        }
        for found in damaged
    ]
    return sorted(entries, key=lambda one: (one["until"], one["table"]))


def clean_backups(
    folder: str | os.PathLike[str],
    older_than: Any,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> list[str]:
    """Remove backups older than a moment, except those on which a kept backup depends.

    It also removes the files of backups that were interrupted before that moment. Every remaining backup
    can be restored.

    Parameters
    ----------
    folder
        The backup folder, or its URL.
    older_than
        The moment: a timestamp, datetime or ISO text.
    storage_options
        For a URL: see `nyala.spark.backup`.

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
    A damaged backup is kept, and so are the earlier backups of its table, on which it may depend. If a kept
    backup depends on a missing one, the backups earlier than the missing one are kept too. A warning of the
    logger `nyala.spark` names each case. The newest backup of a table is kept while the table is backed up.

    Examples
    --------
    ```python
    nyala.spark.clean_backups("backups", older_than="2026-01-01")
    ```
    """
    moment = parse_at(older_than, name="older_than")
    root = _existing(os.fspath(folder), storage_options)
    removed: list[str] = []
    for table in _names_in(root.env.files, root.path):
        removed += _clean_table(root, table, moment)
    return removed


def _clean_table(root: Address, table: str, moment: int) -> list[str]:
    files, folder = root.env.files, root.within(table).path
    backups, damaged = _look(root, table)
    names = _names_in(files, folder)
    kept = [backup for backup in backups if backup.until >= moment]
    unfinished = [_WORK.fullmatch(name) for name in names]
    if backups and any(found is not None and not is_gone(found[2]) for found in unfinished):
        kept.append(backups[-1])
    needed: set[str] = set()
    # A damaged or missing backup may depend on any earlier backup.
    unknown = [(found.until, found.reason) for found in damaged]
    for backup in kept:
        links, missing = _links(backups, backup)
        needed |= {link.path for link in links}
        if missing is not None and all(missing != until for until, _ in unknown):
            unknown.append((missing, f"{_missing_text(links[-1], missing)}: {_ADVICE}"))
    for until, reason in unknown:
        logger.warning(
            "no backup of table %r from %s or earlier is removed, because a backup cannot be read: %s",
            _table_of(root, table), to_datetime(until).isoformat(), reason,
        )  # fmt: skip
    known_after = max((until for until, _ in unknown), default=-1)
    removed = []
    for name in names:
        path = os.path.join(folder, name)
        work, made = _WORK.fullmatch(name), _NAME.fullmatch(name)
        if work is not None:
            if int(work[1]) < moment or is_gone(work[2]):
                files.remove_tree(path)
                removed.append(path)
        elif made is not None and known_after < int(made[1]) < moment and path not in needed:
            # Remove the metadata first: a folder without it is not a backup.
            files.unlink(os.path.join(path, METADATA), missing_ok=True)
            files.remove_tree(path)
            removed.append(path)
    return removed


def _is_whole(backups: Sequence[Backup], target: Backup) -> bool:
    """Whether all backups on which the backup depends exist."""
    return _links(backups, target)[1] is None


def _chain(backups: Sequence[Backup], target: Backup) -> list[Backup]:
    """Return the full backup of `target` and all increments up to it. Raises: CorruptionError if one is missing."""
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
    """Return `target` and the backups on which it depends, newest first, and the moment of the first missing one."""
    links = [target]
    while (since := links[-1].since) is not None:
        before = [
            found
            for found in backups
            if (found.table, found.table_id, found.until) == (target.table, target.table_id, since)
            and found.path != links[-1].path
        ]
        if not before:
            return links, since
        links.append(before[-1])
    return links, None


# ------------------------------------------------------------------------------------------------ restore


@dataclass(frozen=True)
class RestoreStep:
    """One backup of the chain, with its files of tablets that the target still has (B3)."""

    backup: Backup
    files: tuple[PartFile, ...]


def plan_restore(
    folder: str, table: str, at: Any = None, storage_options: Mapping[str, Any] | None = None
) -> tuple[Backup, list[RestoreStep]]:
    """Return the backup to restore, and the steps, beginning with a full backup.

    at: chooses the newest backup that is not later; None: the newest. Raises: InvalidArgumentError, CorruptionError.
    """
    root = _existing(folder, storage_options)
    backups = _backups_of(root, table)
    moment = None if at is None else parse_at(at)
    mine = [found for found in backups if moment is None or found.until <= moment]
    if not mine:
        folder = root.path
        known = sorted(
            _table_of(root, name)
            for name in _names_in(root.env.files, folder)
            if any(_metadata_in(root, name))
        )
        first = backups[0].until if backups else None
        if moment is not None and first is not None:
            raise InvalidArgumentError(
                f"no backup of table {table!r} from {to_datetime(moment).isoformat()} or earlier in {folder!r}: "
                f"the first is from {to_datetime(first).isoformat()}"
            )
        raise InvalidArgumentError(
            f"no backup of table {table!r} in {folder!r}; tables with a backup: {', '.join(known) or 'none'}"
        )
    target = mine[-1]
    alive = {number for number, _ in target.partitions}
    steps = [
        RestoreStep(link, tuple(file for file in link.files if file.tablet in alive))
        for link in _chain(backups, target)
    ]
    return target, steps


def restored_schema(target: Backup) -> pa.Schema:
    """Return the schema of `read_part`: the table's columns and the kind of change.

    All columns but the key are nullable, because rows of deletes have only the key.
    """
    fields = [
        column.arrow_field()
        if target.schema.is_key(column.name)
        else column.arrow_field().with_nullable(True)
        for column in target.schema.columns
    ]
    return pa.schema([*fields, pa.field(CHANGE_TYPE, pa.string(), nullable=False)])


def read_part(target: Backup, step: RestoreStep, file: PartFile) -> Iterator[pa.RecordBatch]:
    """Read the rows of one file of a step, in the target's columns (B2). Runs in a task.

    Raises: CorruptionError for a damaged file, before it returns a row of the file; StorageError.
    """
    path = os.path.join(step.backup.path, file.name)
    body = step.backup.files_at.read_all(path)
    crc = google_crc32c.value(body)
    if crc != file.crc or len(body) != file.bytes:
        raise CorruptionError(
            f"expected {file.bytes} bytes with checksum {file.crc}, found {len(body)} bytes with {crc}: restore "
            "another moment, or make a full backup",
            path,
        )
    schema = restored_schema(target)
    for batch in pq.ParquetFile(pa.BufferReader(body)).iter_batches():
        arrays = []
        for column in target.schema.columns:
            name = f"c{column.id}"
            if name in batch.schema.names:
                arrays.append(batch.column(name).cast(column.type.arrow))
            else:
                arrays.append(default_array(column, batch.num_rows, "read"))
        yield pa.RecordBatch.from_arrays([*arrays, batch.column(ACTION).cast(pa.string())], schema=schema)
