"""Writes backups: of one table by three functions, and of many tables at one moment by `back_up`.

    begin_backup     creates the work folder, which holds the backup until it is complete
    write_part       writes the rows of one tablet to Parquet files of about 32 MB
    finish_backup    writes the metadata (backup.json), and gives the folder its final name

`back_up` plans all tables at one moment, and writes the files of their tablets in two threads. Then it
finishes the backup of each table. At last it writes the record of the whole store, a file that
names these backups.

Memory: for each of the two threads, the rows that a scan decodes ahead, and one file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq

from nyala.backup.layout import ACTION, METADATA, Backup, PartFile, Place, StoreRecord, names_in, put_metadata
from nyala.backup.listing import remove_abandoned
from nyala.backup.plan import BackupPlan, plan_backup
from nyala.env.overlapped import each
from nyala.errors import Error, StorageError
from nyala.tablet.changes.feed import change_batches
from nyala.tablet.changes.spec import ChangeSpec
from nyala.tablet.scan import read_path
from nyala.tablet.scan.read_path import ScanCounters
from nyala.tablet.state.root import Root, TabletState

if TYPE_CHECKING:
    from nyala.tablet.media.bucket_reader import BucketReader
    from nyala.tablet.recovery.reader_store import ReaderStore
    from nyala.tablet.store import Store

# Limits the memory of the writer, and of a reader, which checks a whole file before it returns a row.
PART_BYTES: Final = 32 << 20
_THREADS: Final = 2


# ------------------------------------------------------------------------------------------------ one table


def begin_backup(backup: Backup) -> None:
    """Create the folder for an unfinished backup. Remove the folders that killed processes left."""
    remove_abandoned(backup.place, backup.table)
    backup.files_at.make_dirs(backup.work_path)


def write_part(
    backup: Backup, tablet_id: int, batches: Iterable[pa.RecordBatch], name: str
) -> list[PartFile]:
    """Write and sync the rows of one tablet as files `name`-<number>.parquet.

    A tablet without rows gets no file.

    batches: rows with the columns of the table in their order. Rows of an incremental backup have the
        change type as a further column.
    """
    columns = backup.schema.columns
    names = [*(f"c{column.id}" for column in columns), ACTION]
    made: list[PartFile] = []
    for part in _in_parts(_with_actions(backup, batches, names)):
        made.append(_write_file(backup, tablet_id, f"{name}-{len(made)}.parquet", *part))
    return made


def _with_actions(
    backup: Backup, batches: Iterable[pa.RecordBatch], names: Sequence[str]
) -> Iterator[pa.Table]:
    count = len(names) - 1
    for batch in batches:
        if batch.num_rows:
            action = pa.repeat("insert", batch.num_rows) if backup.since is None else batch.column(count)
            yield pa.table([*batch.columns[:count], action], names=names)


def _in_parts(batches: Iterator[pa.Table]) -> Iterator[tuple[pa.Buffer, int]]:
    """Write the batches to Parquet files in memory, of about PART_BYTES bytes each.

    Yields: for each file, its bytes and its number of rows.
    """
    for first in batches:
        sink, rows = pa.BufferOutputStream(), 0
        with pq.ParquetWriter(sink, first.schema, compression="zstd") as writer:
            for batch in itertools.chain([first], batches):
                writer.write_table(batch)
                rows += batch.num_rows
                if sink.tell() >= PART_BYTES:
                    break
        yield sink.getvalue(), rows


def _write_file(backup: Backup, tablet_id: int, name: str, body: pa.Buffer, rows: int) -> PartFile:
    file = backup.files_at.create(os.path.join(backup.work_path, name))
    try:
        file.append(body)
        file.sync()
    finally:
        file.close()
    if backup.place.in_bucket:
        name = f"{os.path.basename(backup.work)}/{name}"
    return PartFile(name, tablet_id, rows, body.size, google_crc32c.value(body))


def finish_backup(backup: Backup, files: Sequence[PartFile]) -> Backup:
    """Write the backup's metadata (backup.json), so that restores find the backup.

    If the backup is in a folder, this also renames the work folder to its final name.

    files: the files of the backup, which `write_part` wrote.
    Returns: the backup with `files`.

    Raises: StorageError if another program has finished a backup of the same moment in the meantime.
    """
    done = dataclasses.replace(backup, files=tuple(sorted(files)))
    named = {os.path.basename(file.name) for file in files}
    at = backup.files_at
    for name in set(names_in(at, backup.work_path)) - named:
        at.unlink(os.path.join(backup.work_path, name))  # of a task that ran twice
    at.sync_dir(backup.work_path)
    if backup.place.in_bucket:
        put_metadata(backup.place, os.path.join(backup.path, METADATA), done.to_json())
        return done
    at.write_atomic(os.path.join(backup.work_path, METADATA), done.to_json())
    if not at.exists(os.path.join(backup.path, METADATA)):
        at.remove_tree(backup.path)  # the rest of an interrupted removal
    at.rename(backup.work_path, backup.path)
    at.sync_dir(os.path.dirname(backup.path))
    return done


def remove_work(backup: Backup) -> None:
    """Remove the files of a failed backup."""
    with contextlib.suppress(StorageError):  # the next backup removes them
        backup.place.env.remove_busy_tree(backup.work_path)


# ------------------------------------------------------------------------------------------------ a whole store


@dataclass(frozen=True)
class FinishedBackups:
    """The result of `back_up`: the new backups, and the tables that had a backup of this moment before."""

    until: int
    made: tuple[Backup, ...]
    unchanged: tuple[str, ...]


def back_up(
    place: Place,
    store: Store | ReaderStore | BucketReader,
    root: Root,
    until: int,
    tables: Collection[str] | None,
    full: bool,
    progress: Callable[[int, int], None],
) -> FinishedBackups:
    """Back up tables at the moment `until`, the newest moment of `root`.

    tables: the names of the tables. None: back up all tables, and write a record of the whole
        store, which names their backups.
    full: make full backups, never incremental ones.
    progress: called in this thread with the number of finished tablets and of all tablets.
    Raises: as `plan_backup`; StorageError, CorruptionError. After an error every backup of this moment
        is complete, but some tables may have none.
    """
    plans: list[BackupPlan] = []
    folders: dict[str, str] = {}
    for name in sorted(root.by_name if tables is None else tables):
        plan, last = plan_backup(place, store, root, name, until, full=full)
        if plan is not None:
            plans.append(plan)
            folders[name] = plan.backup.name
        elif last is not None:
            folders[name] = last.name
    work = [(plan, tablet) for plan in plans for tablet in plan.table.tablets]
    done, mine, lock = 0, threading.get_ident(), threading.Lock()

    def write(item: tuple[BackupPlan, TabletState]) -> list[PartFile]:
        nonlocal done
        plan, tablet = item
        try:
            files = write_part(plan.backup, tablet.id, rows_of_tablet(plan, tablet), f"part-{tablet.id:05d}")
        except Error as error:
            error.args = (f"table {plan.backup.table!r}, tablet {tablet.id}: {error}", *error.args[1:])
            raise
        with lock:
            done += 1
        if threading.get_ident() == mine:
            progress(done, len(work))
        return files

    begun: list[Backup] = []
    try:
        for plan in plans:
            begun.append(plan.backup)
            begin_backup(plan.backup)
        files: dict[int, list[PartFile]] = {plan.table.id: [] for plan in plans}
        for (plan, _), found in zip(work, each(place.env.files, write, work, _THREADS), strict=True):
            files[plan.table.id] += found
        made = []
        for plan in plans:
            made.append(finish_backup(plan.backup, files[plan.table.id]))
            begun.remove(plan.backup)
    except BaseException:
        for backup in begun:
            remove_work(backup)
        raise
    if tables is None:
        StoreRecord(store.store_id, until, folders).write(place)
    written = {backup.table for backup in made}
    return FinishedBackups(until, tuple(made), tuple(name for name in folders if name not in written))


def rows_of_tablet(plan: BackupPlan, tablet: TabletState) -> Iterator[pa.RecordBatch]:
    """Return the rows of one tablet to write into the backup."""
    alone = dataclasses.replace(plan.table, tablets=(tablet,))
    if isinstance(plan.spec, ChangeSpec):
        return change_batches(alone, plan.spec)
    counters = ScanCounters()
    return read_path.run(read_path.plan(alone, plan.spec, counters), plan.spec, counters)
