"""Decides which backups a restore needs, and reads the rows of their files.

The backup to restore is called the target. A restore reads the newest full backup that is not later
than the target, and then the incremental backups up to the target in order.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq

from nyala.backup.layout import ACTION, Backup, PartFile, Place, StoreRecord
from nyala.backup.listing import backups_of, chain_of, check_exists, records, tables_in
from nyala.env import MissingFileError
from nyala.errors import CorruptionError, InvalidArgumentError
from nyala.mvcc.timestamp import parse_at, to_datetime
from nyala.schema.conversion.convert import default_array
from nyala.tablet.changes.spec import CHANGE_TYPE

_ADVICE: Final = "restore another moment, or make a full backup"


@dataclass(frozen=True)
class RestoreStep:
    """A backup that a restore reads, with the files to read from it.

    A restore of a backup (the target) reads the full backup before the target, and then the
    incremental ones up to the target. `files` leaves out the files of tablets that the target no
    longer has.
    """

    backup: Backup
    files: tuple[PartFile, ...]

    @property
    def is_full(self) -> bool:
        return self.backup.since is None


def plan_restore(place: Place, table: str, at: object = None) -> tuple[Backup, list[RestoreStep]]:
    """Return the backup of a table to restore, and the steps of its restore.

    Each step is a backup to read: first a full backup, then the incremental backups after it.

    at: a moment, to restore the newest backup up to this moment; None: the newest backup.
    Raises: InvalidArgumentError, CorruptionError.
    """
    check_exists(place)
    backups = backups_of(place, table)
    moment = None if at is None else parse_at(at)
    mine = [found for found in backups if moment is None or found.until <= moment]
    if not mine:
        if moment is not None and backups:
            raise InvalidArgumentError(
                f"no backup of table {table!r} from {to_datetime(moment).isoformat()} or earlier in {place.path!r}: "
                f"the first is from {to_datetime(backups[0].until).isoformat()}"
            )
        raise InvalidArgumentError(
            f"no backup of table {table!r} in {place.path!r}; tables with a backup: "
            f"{', '.join(tables_in(place)) or 'none'}"
        )
    return mine[-1], _steps(backups, mine[-1])


def plan_restore_of_store(place: Place, at: object = None) -> list[tuple[Backup, list[RestoreStep]]]:
    """Return, for each table in a backup of a whole store, what a restore must read.

    Returns: one pair per table: the table's backup to restore, and the steps of its restore. Each
        step is a backup to read: first a full backup, then the incremental backups after it.
    at: a moment, to restore the newest backup of a store up to this moment; None: the newest.
    Raises: InvalidArgumentError, CorruptionError.
    """
    check_exists(place)
    moment = None if at is None else parse_at(at)
    found = next((record for until, record in records(place) if moment is None or until <= moment), None)
    if found is None:
        when = "" if moment is None else f" from {to_datetime(moment).isoformat()} or earlier"
        raise InvalidArgumentError(
            f"{place.path!r} has no backup of a whole store{when}: name the tables to restore with tables=[…]; "
            f"tables with a backup: {', '.join(tables_in(place)) or 'none'}"
        )
    if not isinstance(found, StoreRecord):
        raise found
    return [_named(place, table, folder, found) for table, folder in sorted(found.tables.items())]


def _named(place: Place, table: str, folder: str, record: StoreRecord) -> tuple[Backup, list[RestoreStep]]:
    backups = backups_of(place, table)
    target = next((backup for backup in backups if backup.name == folder), None)
    if target is None:
        raise CorruptionError(
            f"the backup of the store from {to_datetime(record.until).isoformat()} needs the backup {folder!r} of "
            f"table {table!r}, which is missing: restore another moment, or name the tables to restore",
            record.path(place),
        )
    return target, _steps(backups, target)


def _steps(backups: list[Backup], target: Backup) -> list[RestoreStep]:
    alive = {number for number, _ in target.partitions}
    return [
        RestoreStep(link, tuple(file for file in link.files if file.tablet in alive))
        for link in chain_of(backups, target)
    ]


def restored_schema(target: Backup, step: RestoreStep) -> pa.Schema:
    """Return the schema of the rows that `read_part` yields: the columns of the table.

    For an incremental backup, the schema has one more column, the kind of change. All columns except
    the key are then nullable, because a delete has only the key.
    """
    if step.is_full:
        return target.schema.arrow_schema()
    fields = [
        column.arrow_field()
        if target.schema.is_key(column.name)
        else column.arrow_field().with_nullable(True)
        for column in target.schema.columns
    ]
    return pa.schema([*fields, pa.field(CHANGE_TYPE, pa.string(), nullable=False)])


def read_part(target: Backup, step: RestoreStep, file: PartFile) -> Iterator[pa.RecordBatch]:
    """Read the rows of one file of a step, with the columns of `target`, the backup to restore.

    Raises: CorruptionError if the file is damaged or missing, before the first row; StorageError.
    """
    path = os.path.join(step.backup.path, file.name)
    try:
        body = step.backup.files_at.read_all(path)
    except MissingFileError as error:
        raise CorruptionError(f"the file is missing: {_ADVICE}", path) from error
    crc = google_crc32c.value(body)
    if crc != file.crc or len(body) != file.bytes:
        raise CorruptionError(
            f"expected {file.bytes} bytes with checksum {file.crc}, found {len(body)} bytes with {crc}: {_ADVICE}",
            path,
        )
    schema = restored_schema(target, step)
    for batch in pq.ParquetFile(pa.BufferReader(body)).iter_batches():
        arrays = []
        for column in target.schema.columns:
            name = f"c{column.id}"
            if name in batch.schema.names:
                arrays.append(batch.column(name).cast(column.type.arrow))
            else:
                arrays.append(default_array(column, batch.num_rows, "read"))
        if not step.is_full:
            arrays.append(batch.column(ACTION).cast(pa.string()))
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
