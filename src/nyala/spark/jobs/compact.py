"""`nyala.spark.compact`: compacts many tablets at the same time, in Spark's tasks.

    driver, which is the store's writer                         executors
    plan the compactions of all tablets, reserve their
    rowsets, and flush the deltas of rowsets to merge
    send one job per compaction, with file names only   ─────►  `file_jobs.run`: read files, write new files
    install all new files in one catalogue change       ◄─────  names of the new files

Other writes continue meanwhile, and wait only for the install.
Source: docs/design/compaction.md, "Files to files".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from nyala.env import Env, MissingFileError
from nyala.errors import Error, StorageError
from nyala.objects.address import Address
from nyala.spark.arguments import address_of_database, check_table
from nyala.spark.cluster import cores_of
from nyala.spark.errors import add_place, errors_naming, plain_errors
from nyala.spark.jobs.progress import showing_progress
from nyala.spark.source.reader import Rows, in_task
from nyala.tablet.compaction import file_jobs
from nyala.tablet.compaction.file_jobs import Job, Output
from nyala.tablet.manual_maintenance import compact_table_together

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nyala.api.table import Table

__all__ = ["compact"]

TASKS_PER_CORE = 4


def compact(spark: SparkSession, table: Table) -> dict[str, Any]:
    """Flush and compact a table in Spark's tasks, until no rowsets overlap and no REDO file is
    left.

    Parameters
    ----------
    spark
        The SparkSession.
    table
        The table. This process must be the store's writer.

    Returns
    -------
    dict
        `compactions` and `rowsets_rewritten`; `bytes_before` and `bytes_after`, the sizes of the
        replaced and of the new files; `rowsets_left_out`, the number of rowsets that were skipped
        because running upserts may still change them. Warnings of the Python logger
        `nyala.compaction` name these upserts.

    Raises
    ------
    ReadOnlyError
        This process is not the store's writer.
    StorageError, CorruptionError
        A round of compactions failed, and nothing of that round was installed.

    Examples
    --------
    ```python
    print(nyala.spark.compact(spark, db["flights"])["compactions"])
    ```
    """
    check_table(table, "nyala.spark.compact")
    store = table._database._writer()
    address = address_of_database(table._database)

    def run_all(jobs: Sequence[Job]) -> list[Output]:
        if not jobs:
            return []
        rows = [
            (number, json.dumps(file_jobs.encode_job(job)), table.name) for number, job in enumerate(jobs)
        ]
        slots = max(1, min(len(rows), TASKS_PER_CORE * cores_of(spark)))
        frame = spark.createDataFrame(rows, "number int, job string, table string").repartition(
            slots, "number"
        )
        with showing_progress(spark, f"compaction of {table.name}"), plain_errors():
            answers = frame.mapInArrow(in_task(_runner(address)), "number int, output string").collect()
        outputs = {row.number: file_jobs.decode_output(json.loads(row.output)) for row in answers}
        return [outputs[number] for number in range(len(jobs))]

    with errors_naming(f"table {table.name!r}"):
        report = compact_table_together(store, table.name, run_all)
    return {
        "compactions": report.compactions,
        "rowsets_rewritten": report.rowsets_rewritten,
        "bytes_before": report.bytes_before,
        "bytes_after": report.bytes_after,
        "rowsets_left_out": report.rowsets_left_out,
    }


def _run(env: Env, job: Job) -> Output:
    try:
        return file_jobs.run(env, job)
    except MissingFileError as error:
        # The driver, as the writer, keeps these files. So it has closed the store, and another
        # writer compacted.
        raise StorageError(
            f"a file to compact was deleted ({error.path}), because the program that started this job is no longer "
            "the store's writer; the compactions that were running changed nothing: run the compaction again",
            path=error.path,
        ) from error


def _runner(address: Address) -> Callable[[Rows], Rows]:
    """Return the function that each task calls. It runs compaction jobs.

    A task may be repeated, because each run of a job writes files with new names.
    """

    def run_jobs(batches: Rows) -> Rows:
        for batch in batches:
            for row in batch.to_pylist():
                job = file_jobs.decode_job(*json.loads(row["job"]))
                try:
                    output = _run(address.env, job)
                except Error as error:
                    add_place(error, f"table {row['table']!r}, tablet {job.tablet_id}")
                    raise
                yield pa.RecordBatch.from_pydict(
                    {
                        "number": pa.array([row["number"]], pa.int32()),
                        "output": pa.array([json.dumps(file_jobs.encode_output(output))]),
                    }
                )

    return run_jobs
