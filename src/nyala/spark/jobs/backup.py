"""`nyala.spark.backup` and `nyala.spark.restore`: the work of `nyala.backup` in Spark's tasks.

A backup makes tokens of scans and of change feeds, and tasks write the rows of each token to files.

A restore applies the full backup and the incremental backups after it, one after the other. If one
of them is small, the driver reads its files and writes the rows as one batch. Otherwise tasks read
the files. Most incremental backups are small, and for a few rows tasks take tens of times as long
as the driver.

Invariants
    J1  The driver decides from a backup's metadata whether the backup is small. Even if the
        metadata is wrong, the driver holds at most HELD_BYTES_MAX, plus the rows of one batch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from nyala.api.results import TableBackup, table_backup
from nyala.api.scan import read_token
from nyala.backup.layout import Backup, PartFile
from nyala.backup.plan import BackupPlan, plan_backup
from nyala.backup.read import RestoreStep, plan_restore, restored_schema
from nyala.backup.restore import apply_rows, check_free, filling, restoring, rows_of
from nyala.backup.write import begin_backup, finish_backup, remove_work, write_part
from nyala.env import SYSTEM, Env, process_mark
from nyala.errors import Error, InvalidArgumentError
from nyala.handover import commits as handover
from nyala.spark.arguments import address_of_database, address_of_store, check_database, check_table
from nyala.spark.cluster import cores_of
from nyala.spark.errors import add_place, errors_naming, plain_errors
from nyala.spark.frames import leased_frame
from nyala.spark.jobs import small_frames as small
from nyala.spark.jobs.load import load
from nyala.spark.jobs.progress import renewing_lease, showing_progress
from nyala.spark.jobs.write import write
from nyala.spark.source.options import LEASE_DEFAULT_S, lease_seconds
from nyala.spark.source.reader import in_task, load_token, store_tokens
from nyala.spark.types import arrow_schema, conform, spark_schema
from nyala.tablet.changes.change_token import (
    changes_in_memory,
    make_change_tokens,
    read_change_token,
    rows_token,
)
from nyala.tablet.changes.spec import ChangeSpec
from nyala.tablet.scan.token import MAGIC as TOKEN_MAGIC
from nyala.tablet.scan.token import make_tokens, tablet_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from nyala.api.database import Database
    from nyala.api.scan import Scan
    from nyala.api.table import Table

__all__ = ["backup", "restore"]

TASKS_PER_CORE: Final = 2
# The driver holds at most this many bytes of decoded rows. Tasks restore backups with more.
HELD_BYTES_MAX: Final = 256 << 20


def backup(
    spark: SparkSession,
    table: Table,
    folder: str | os.PathLike[str],
    *,
    full: bool = False,
    lease: float = LEASE_DEFAULT_S,
    storage_options: Mapping[str, Any] | None = None,
) -> TableBackup | None:
    """Back up a table into a folder: the changes since its last backup there, or all rows.

    `Database.backup` does the same without Spark, for several tables at one moment, and writes the
    same files. `nyala.list_backups` and `nyala.clean_backups` work on both.

    Parameters
    ----------
    spark
        The SparkSession.
    table
        The table.
    folder
        The backup folder, outside the store, which the executors must see; or a URL.
    full
        Back up all rows in any case. The first backup, a backup after a repartition, and a backup
        whose changes are older than the table's history are always full.
    lease
        Seconds for which the files of the snapshot are kept if the driver dies. The job renews this lease.
    storage_options
        For a URL: options of `nyala.connect`, without credentials. Each machine takes credentials
        from its own environment, or from the `credentials_file`.

    Returns
    -------
    TableBackup or None
        `until` is the moment to which the table can be restored. None if nothing changed since the
        last backup.

    Raises
    ------
    InvalidArgumentError
        The folder is inside the store.
    StorageError, CorruptionError
        The backup failed, and the folder has no backup of this moment. A killed driver leaves none
        either.

    Examples
    --------
    ```python
    result = nyala.spark.backup(spark, db["flights"], "backups")
    print("no change" if result is None else result.kind)
    ```
    """
    check_table(table, "nyala.spark.backup")
    lease_s = lease_seconds(lease, "nyala.spark.backup: ")
    with errors_naming(f"table {table.name!r}"):
        return _backup(spark, table, os.fspath(folder), full, lease_s, storage_options)


def _backup(
    spark: SparkSession,
    table: Table,
    folder: str,
    full: bool,
    lease_s: float,
    storage_options: Mapping[str, Any] | None,
) -> TableBackup | None:
    backup_address = address_of_store(folder, "a backup", storage_options)
    database = table._database
    root, _, until = database._view_at(None)
    plan, _ = plan_backup(backup_address, database._opened(), root, table.name, until, full=full)
    if plan is None:
        return None
    made, items = plan.backup, _items(plan, database.path)
    address = address_of_database(database)
    lease = handover.remote_lease(address.path, lease_s, address.env, process_mark())
    try:
        lease.announce(root.version)
        begin_backup(made)
        (stored,) = store_tokens(address, lease.name, [[data for _, data in items]])
        numbered = [(tablet_id, data) for (tablet_id, _), data in zip(items, stored, strict=True)]

        def write_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    tablet_id, data = numbered[number]
                    name = f"part-{number:05d}-{SYSTEM.randomness.token_hex(4)}"
                    try:
                        rows = _rows(load_token(data, address), address.env)
                        files = write_part(made, tablet_id, rows, name)
                    except Error as error:
                        add_place(error, f"table {made.table!r}, tablet {tablet_id}")
                        raise
                    if files:
                        yield pa.RecordBatch.from_pylist([file._asdict() for file in files])

        answers: list[Any] = []
        if numbered:
            slots = _slots(spark, len(numbered))
            frame = spark.range(0, len(numbered), 1, slots)
            with (
                renewing_lease(address, lease.name, lease_s),
                showing_progress(spark, f"backup of {made.table}"),
                plain_errors(),
            ):
                answers = frame.mapInArrow(
                    in_task(write_all), "name string, tablet bigint, rows bigint, bytes bigint, crc bigint"
                ).collect()
        return table_backup(finish_backup(made, [PartFile(*row) for row in answers]))
    except BaseException:
        remove_work(made)
        raise
    finally:
        lease.release()


def _items(plan: BackupPlan, store_path: str) -> list[tuple[int, bytes]]:
    """Return pairs (tablet id, token) that together have all rows of the backup.

    A token describes a part of a scan or of a change feed, or contains rows that are in memory.
    """
    table, spec = plan.table, plan.spec
    items: list[tuple[int, bytes]] = []
    if not isinstance(spec, ChangeSpec):
        for made in make_tokens(store_path, table, spec, len(table.tablets)):
            tablet_id = tablet_of(made.data)
            assert tablet_id is not None
            items.append((tablet_id, made.data))
        return items
    for tablet in table.tablets:
        alone = dataclasses.replace(table, tablets=(tablet,))
        items += [(tablet.id, token) for token in make_change_tokens(store_path, alone, spec)]
        rows = [batch for batch in changes_in_memory(alone, spec) if batch.num_rows]
        if rows:
            items.append((tablet.id, rows_token(pa.Table.from_batches(rows))))
    return items


def _rows(data: bytes, env: Env) -> Iterator[pa.RecordBatch]:
    """Read the rows of a token, which describes a part of a scan or of a change feed."""
    return read_token(data, env=env) if data.startswith(TOKEN_MAGIC) else read_change_token(data, env)


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
    """Restore a table from its backups, as of the moment of one of them.

    Parameters
    ----------
    spark
        The SparkSession.
    folder
        The backup folder, or its URL.
    table
        The name of the backed-up table, which is created in `into`. Or an existing empty table with
        the same columns and key, which is filled in one commit.
    at
        Restore the newest backup that is not later than this moment (timestamp, datetime, ISO text,
        WriteResult, or a tag of the database). Default: the newest backup.
    into
        The database in which to create the table. Required if `table` is a name.
    name
        The name of the created table. Default: the name of the backed-up table.
    lease
        Seconds for which the job's files are kept if the driver dies.
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
    Until the table is complete, its name is "t [restoring …]". If the program is killed, the next
    open drops this table. Each full or incremental backup of more than 16 MB or half a million rows
    costs one Spark job. The driver restores smaller backups without Spark if its process is the
    store's writer.

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
    database = into if isinstance(table, str) else table._database
    at = at if database is None else database._without_tag(at)
    source = table if isinstance(table, str) else table.name
    with errors_naming(f"table {source!r}"):
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
    address = address_of_store(folder, "a backup", storage_options)
    target, steps = plan_restore(address, source, at)
    steps = [step for step in steps if step.files]
    if isinstance(table, str):
        if into is None:
            raise InvalidArgumentError(
                "restore needs the database in which to create the table: pass into=db"
            )
        final_name = name or table
        check_free([final_name], into._root().by_name)
        with _filling(into, target, final_name) as made:
            for step in steps:
                _apply(spark, target, step, made, lease_s)
            into.rename_table(made.name, final_name)
        return into.table(final_name)
    if table.count():
        raise InvalidArgumentError(
            f"table {table.name!r} is not empty: restore into an empty table, or pass a name and into=db to create one"
        )
    if [step.is_full for step in steps] in ([], [True]):
        with restoring(table.name, table.name):
            for step in steps:
                _apply(spark, target, step, table, lease_s)
        return table
    with _filling(table._database, target, table.name) as made:
        for step in steps:
            _apply(spark, target, step, made, lease_s)
        _copy(spark, made.scan(), table, lease_s, is_small=_are_small(steps))
    return table


@contextlib.contextmanager
def _filling(database: Database, target: Backup, final_name: str) -> Iterator[Table]:
    """Create the table to restore into, and yield it. Errors of the block name the final table.

    The table has a temporary name. It is dropped if the block fails.
    """
    with filling(database._writer(), target, final_name) as name, restoring(name, final_name):
        yield database.table(name)


def _copy(spark: SparkSession, scan: Scan, table: Table, lease_s: float, *, is_small: bool) -> None:
    """Fill an empty table with the rows of a scan, in one commit.

    is_small: whether the driver may write the rows itself, without tasks.
    """
    rows = (
        _collected(scan._engine().batches(), scan.schema)
        if is_small and not table._database.read_only
        else None
    )
    if rows is not None:
        table.insert(rows)
        return
    found = leased_frame(spark, scan, lease_s, shared=False)
    try:
        load(found.frame, table, lease=lease_s)
    finally:
        if found.lease is not None:  # so that the files of the temporary table do not stay for an hour
            found.lease.end_lease()


def _apply(spark: SparkSession, target: Backup, step: RestoreStep, table: Table, lease_s: float) -> None:
    """Write the rows of one full or incremental backup into the table.

    target: the backup to restore. step: the backup whose rows to write.
    """
    rows = None if table._database.read_only else _small_rows(target, step)
    if rows is not None:
        apply_rows(table._database._writer(), table.name, step, rows)
    elif step.is_full and table.description.unique:
        load(_frame(spark, target, step), table, lease=lease_s)
    else:
        operation = "upsert" if step.is_full else "changes"
        write(_frame(spark, target, step), table._database, table.name, operation=operation)


def _small_rows(target: Backup, step: RestoreStep) -> pa.Table | None:
    """Return the rows of one full or incremental backup; None if they are too many for the driver.

    target: the backup to restore. The rows get its columns.
    step: the backup to read, on which `target` depends, or `target` itself.
    Raises the errors of `read_part`.
    """
    if not _are_small([step]):
        return None
    rows = (batch for file in step.files for batch in rows_of(target, step, file))
    return _collected(rows, restored_schema(target, step))


def _are_small(steps: Sequence[RestoreStep]) -> bool:
    files = [file for step in steps for file in step.files]
    return (
        sum(file.bytes for file in files) <= small.SMALL_BYTES
        and sum(file.rows for file in files) <= small.ROWS_MAX
    )


def _collected(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> pa.Table | None:
    """Return all rows as one table, or None if they take more than HELD_BYTES_MAX."""
    kept, size = [], 0
    for batch in batches:
        kept.append(batch)
        size += batch.nbytes
        if size > HELD_BYTES_MAX:
            return None
    return pa.Table.from_batches(kept, schema=schema)


def _frame(spark: SparkSession, target: Backup, step: RestoreStep) -> DataFrame:
    """Return a DataFrame of the rows of the backup `step`, whose files the tasks read."""
    schema = spark_schema(restored_schema(target, step))
    exact = arrow_schema(schema)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for rows in rows_of(target, step, step.files[number]):
                    yield conform(rows, exact)

    return spark.range(0, len(step.files), 1, _slots(spark, len(step.files))).mapInArrow(
        in_task(read), schema
    )


def _slots(spark: SparkSession, count: int) -> int:
    """Return how many tasks to start for `count` independent items: a few per core at most."""
    return max(1, min(count, TASKS_PER_CORE * cores_of(spark)))
