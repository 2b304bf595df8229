"""`nyala.spark.backup` and `nyala.spark.restore`: run the plans of `backup_files` in Spark's tasks.

    restore one backup of the chain    small     the driver reads its files and writes them as one batch
                                       others    tasks read the files; `load`, or a write of changes

Most incremental backups are small. For a few rows, a shuffle and tasks take tens of times as long as the driver.

Invariants
    J1  The backup's metadata decides whether it is small, before any file is read. The driver's memory is bounded even
        if the metadata is wrong (HELD_BYTES_MAX, plus the rows that one batch of a file adds).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from nyala import compute as pc
from nyala.env import SYSTEM, process_mark
from nyala.errors import Error, InvalidArgumentError, StorageError, TableExistsError, WriteError
from nyala.handover import commits as handover
from nyala.spark.arguments import address_of_database, check_database, check_table
from nyala.spark.cluster import cores_of
from nyala.spark.errors import named, naming, plain_errors
from nyala.spark.frames import leased_frame
from nyala.spark.jobs import small_frames as small
from nyala.spark.jobs.backup_files import (
    Backup,
    BackupItem,
    PartFile,
    RestoreStep,
    begin_backup,
    finish_backup,
    plan_backup,
    plan_restore,
    read_part,
    restored_schema,
    write_item,
)
from nyala.spark.jobs.load import load
from nyala.spark.jobs.progress import renewing, watching
from nyala.spark.jobs.write import write
from nyala.spark.source.options import LEASE_DEFAULT_S, lease_seconds
from nyala.spark.source.reader import in_task, load_placed, place
from nyala.spark.types import arrow_schema, conform, spark_schema
from nyala.tablet.changes.spec import CHANGE_TYPE
from nyala.tablet.jobs.staged_files import StagedRows
from nyala.tablet.jobs.staged_rows import apply_changes
from nyala.tablet.state.unfinished import unfinished_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from nyala.api.database import Database
    from nyala.api.scan import Scan
    from nyala.api.table import Table

__all__ = ["backup", "restore"]

TASKS_PER_CORE: Final = 2
# The decoded rows of a small backup that the driver holds at most. Tasks restore files that decode to more.
HELD_BYTES_MAX: Final = 256 << 20
_REMOVAL_PAUSES_S: Final = (0.02, 0.1, 0.5)


def backup(
    spark: SparkSession,
    table: Table,
    folder: str | os.PathLike[str],
    *,
    full: bool = False,
    lease: float = LEASE_DEFAULT_S,
    storage_options: Mapping[str, Any] | None = None,
) -> dict[str, Any] | None:
    """Back up a table into a folder: the changes since its last backup there, or all rows.

    Parameters
    ----------
    spark
        The SparkSession.
    table
        The table.
    folder
        The backup folder, outside the store, which the executors must see; or a URL.
    full
        Back up all rows in any case. The first backup, a backup after a repartition, and a backup whose
        changes are older than the table's history are always full.
    lease
        Seconds for which the files of the snapshot are kept after the last sign of life of the job.
    storage_options
        For a URL: those options of `nyala.connect` that are no secrets. Each machine takes credentials from
        its own environment, or from the `credentials_file`.

    Returns
    -------
    dict or None
        `kind` ("full" or "incremental"), `until` (the moment to which the table can be restored), `rows`,
        `bytes` and `files`. None if nothing changed since the last backup.

    Raises
    ------
    InvalidArgumentError
        The folder is inside the store.
    StorageError, CorruptionError
        The backup failed. Then, as after a killed driver, there is no backup of this moment.

    Examples
    --------
    ```python
    made = nyala.spark.backup(spark, db["flights"], "backups")
    print("no change" if made is None else made["kind"])
    ```
    """
    check_table(table, "nyala.spark.backup")
    lease_s = lease_seconds(lease, "nyala.spark.backup: ")
    with named(f"table {table.name!r}"):
        return _backup(spark, table, os.fspath(folder), full, lease_s, storage_options)


def _backup(
    spark: SparkSession,
    table: Table,
    folder: str,
    full: bool,
    lease_s: float,
    storage_options: Mapping[str, Any] | None,
) -> dict[str, Any] | None:
    planned = plan_backup(table, folder, full=full, storage_options=storage_options)
    if planned is None:
        return None
    made, items, root = planned
    address = address_of_database(table._database)
    held = handover.remote_lease(address.path, lease_s, address.env, process_mark())
    try:
        held.announce(root.version)
        begin_backup(made)
        (placed,) = place(address, held.name, [[item.data for item in items]])
        numbered = [(item.tablet_id, data) for item, data in zip(items, placed, strict=True)]

        def write_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    tablet_id, data = numbered[number]
                    name = f"part-{number:05d}-{SYSTEM.randomness.token_hex(4)}.parquet"
                    try:
                        item = BackupItem(tablet_id, load_placed(data, address))
                        file = write_item(made, item, name, address.env)
                    except Error as error:
                        naming(error, f"table {made.table!r}, tablet {tablet_id}")
                        raise
                    if file is not None:
                        yield pa.RecordBatch.from_pylist([file._asdict()])

        answers: list[Any] = []
        if numbered:
            slots = _slots(spark, len(numbered))
            frame = spark.range(0, len(numbered), 1, slots)
            with (
                renewing(address, held.name, lease_s),
                watching(spark, f"backup of {made.table}"),
                plain_errors(),
            ):
                answers = frame.mapInArrow(
                    in_task(write_all), "name string, tablet bigint, rows bigint, bytes bigint, crc bigint"
                ).collect()
        done = finish_backup(made, [PartFile(*row) for row in answers])
    except BaseException:
        _remove_work(made)
        raise
    finally:
        held.release()
    return {
        "kind": "full" if done.since is None else "incremental",
        "until": done.until,
        "rows": sum(file.rows for file in done.files),
        "bytes": sum(file.bytes for file in done.files),
        "files": len(done.files),
    }


def _remove_work(backup: Backup) -> None:
    """Remove the files of a failed backup. A cancelled task may write for a moment more, so it tries several times.

    Once the folder is gone, a task cannot create a file.
    """
    for pause_s in _REMOVAL_PAUSES_S:
        try:
            backup.files_at.remove_tree(backup.work_path)
            return
        except StorageError:
            SYSTEM.clock.sleep_s(pause_s)
    with contextlib.suppress(StorageError):  # the next backup removes it
        backup.files_at.remove_tree(backup.work_path)


def restore(
    spark: SparkSession,
    folder: str | os.PathLike[str],
    table: str | Table,
    at: Any = None,
    *,
    into: Database | None = None,
    name: str | None = None,
    lease: float = LEASE_DEFAULT_S,
    storage_options: Mapping[str, Any] | None = None,
) -> Table:
    """Restore a table from its backups, as it was at a backed-up moment, and return it.

    Parameters
    ----------
    spark
        The SparkSession.
    folder
        The backup folder, or its URL.
    table
        The name of the backed-up table; restore creates it in `into`. Or an existing empty table with the
        same columns and key; restore fills it in one commit.
    at
        Restore the newest backup that is not later than this moment (timestamp, datetime, ISO text or WriteResult).
        Default: the newest backup.
    into
        The database in which to create the table. Required if `table` is a name.
    name
        The name of the created table. Default: the name of the backed-up table.
    lease
        As in `load`, which fills the table.
    storage_options
        For a URL: see `backup`.

    Returns
    -------
    Table
        The restored table.

    Raises
    ------
    InvalidArgumentError
        `into` is missing, the existing table has rows, or there is no such backup.
    TableExistsError
        The database has a table of this name.
    CorruptionError, StorageError
        The backup cannot be read, or the table cannot be written. No table was created.

    Notes
    -----
    The table gets its name when it is complete. Until then its name is "t [restoring …]"; if the program is
    killed, the next open drops it. Each backup of the chain with more than 16 MB or half a million rows
    costs one Spark job. This process restores the smaller ones itself if it is the store's writer.

    Examples
    --------
    ```python
    old = nyala.spark.restore(spark, "backups", "flights", at="2026-05-01", into=db, name="flights_may")
    print(old.count())
    ```
    """
    if not isinstance(table, str):
        check_table(table, "nyala.spark.restore(table=…)")
    if into is not None:
        check_database(into, "nyala.spark.restore(into=…)")
    lease_s = lease_seconds(lease, "nyala.spark.restore: ")
    source = table if isinstance(table, str) else table.name
    with named(f"table {source!r}"):
        return _restore(spark, os.fspath(folder), source, table, at, into, name, lease_s, storage_options)


def _restore(
    spark: SparkSession,
    folder: str,
    source: str,
    table: str | Table,
    at: Any,
    into: Database | None,
    name: str | None,
    lease_s: float,
    storage_options: Mapping[str, Any] | None,
) -> Table:
    target, steps = plan_restore(folder, source, at, storage_options)
    steps = [step for step in steps if step.files]
    if isinstance(table, str):
        if into is None:
            raise InvalidArgumentError(
                "restore needs the database in which to create the table: pass into=db"
            )
        wanted = name or table
        if wanted in into.list_tables():
            raise TableExistsError(
                f"table {wanted!r} already exists: restore under another name (name=…), or drop the table first"
            )
        with _unfinished(into, target, wanted) as made:
            for step in steps:
                _apply(spark, target, step, made, lease_s)
            into.rename_table(made.name, wanted)
        return into.table(wanted)
    if table.count():
        raise InvalidArgumentError(
            f"table {table.name!r} is not empty: restore into an empty table, or pass a name and into=db to create one"
        )
    if [step.backup.since for step in steps] in ([], [None]):
        with _restoring(table.name, table.name):
            for step in steps:
                _apply(spark, target, step, table, lease_s)
        return table
    with _unfinished(table._database, target, table.name) as made:
        for step in steps:
            _apply(spark, target, step, made, lease_s)
        _copy(spark, made.scan(), table, lease_s, is_small=_are_small(steps))
    return table


def _copy(spark: SparkSession, scan: Scan, table: Table, lease_s: float, *, is_small: bool) -> None:
    """Fill an empty table with the rows of a scan, in one commit."""
    rows = (
        _held(scan._engine().batches(), scan.schema) if is_small and not table._database.read_only else None
    )
    if rows is not None:
        table.insert(rows)
        return
    found = leased_frame(spark, scan, lease_s, shared=False)
    try:
        load(found.frame, table, lease=lease_s)
    finally:
        if found.lease is not None:  # otherwise the files of the temporary table would stay for an hour
            found.lease.give_back()


@contextlib.contextmanager
def _unfinished(database: Database, target: Backup, wanted: str) -> Iterator[Table]:
    """Create an empty table for the rows of a backup; drop it at the end unless it was renamed."""
    store = database._writer()
    name = unfinished_name(SYSTEM, wanted)
    with _restoring(name, wanted):
        store.create_table(
            name, target.schema, target.partition_schema, [p for _, p in target.partitions],
            comment=target.comment, history_us=target.history_us,
        )  # fmt: skip
        try:
            yield database.table(name)
        finally:
            database.drop_table(name, missing_ok=True)


@contextlib.contextmanager
def _restoring(filled: str, wanted: str) -> Iterator[None]:
    """Make errors name the final table instead of the temporary one, and say that it is being restored."""
    try:
        yield
    except Error as error:
        text = str(error).replace(repr(filled), repr(wanted))
        where = f"table {wanted!r}"
        text = text.removeprefix(where)
        error.args = (f"{where} (being restored){'' if text[:1] in ':, ' else ': '}{text}", *error.args[1:])
        if isinstance(error, WriteError) and error.errors is not None:
            at = error.errors.schema.get_field_index("message")
            messages = pc.replace_substring(error.errors.column(at), repr(filled), repr(wanted))
            error.errors = error.errors.set_column(at, "message", messages)
        raise


def _apply(spark: SparkSession, target: Backup, step: RestoreStep, table: Table, lease_s: float) -> None:
    is_full = step.backup.since is None
    rows = None if table._database.read_only else _small_rows(target, step)
    if rows is not None and is_full:
        table.insert(rows.drop_columns([CHANGE_TYPE]))
    elif rows is not None:
        apply_changes(table._database._writer(), table.name, StagedRows(rows))
    elif is_full:
        load(_frame(spark, target, step).drop(CHANGE_TYPE), table, lease=lease_s)
    else:
        frame = _frame(spark, target, step)
        write(frame, table._database, table.name, operation="changes")


def _small_rows(target: Backup, step: RestoreStep) -> pa.Table | None:
    """Return all rows of a small backup; None if the backup is not small (J1). Raises: as `read_part`."""
    if not _are_small([step]):
        return None
    rows = (batch for file in step.files for batch in _rows_of(target, step, file))
    return _held(rows, restored_schema(target))


def _rows_of(target: Backup, step: RestoreStep, file: PartFile) -> Iterator[pa.RecordBatch]:
    """`read_part`, whose errors name the backup and the tablet."""
    with named(f"backup of table {target.table!r}, tablet {file.tablet}"):
        yield from read_part(target, step, file)


def _are_small(steps: Sequence[RestoreStep]) -> bool:
    files = [file for step in steps for file in step.files]
    return (
        sum(file.bytes for file in files) <= small.SMALL_BYTES
        and sum(file.rows for file in files) <= small.ROWS_MAX
    )


def _held(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> pa.Table | None:
    """Return all rows; None if they are more than the driver holds (J1)."""
    held, size = [], 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size > HELD_BYTES_MAX:
            return None
    return pa.Table.from_batches(held, schema=schema)


def _frame(spark: SparkSession, target: Backup, step: RestoreStep) -> DataFrame:
    schema = spark_schema(restored_schema(target))
    exact = arrow_schema(schema)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for rows in _rows_of(target, step, step.files[number]):
                    yield conform(rows, exact)

    return spark.range(0, len(step.files), 1, _slots(spark, len(step.files))).mapInArrow(
        in_task(read), schema
    )


def _slots(spark: SparkSession, count: int) -> int:
    return max(1, min(count, TASKS_PER_CORE * cores_of(spark)))
