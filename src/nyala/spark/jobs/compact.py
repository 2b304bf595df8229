"""`nyala.spark.compact`: compacts many tablets at once, in Spark's tasks.

    driver, which is the store's writer                         executors
    plan     every tablet, like `Table.compact`; reserve
             rowsets, flush the deltas of those to merge
             jobs (only file names and numbers)         ─────►  compaction_run.run: read files, write files
             names of the new files                     ◄─────
    install  all files in one catalogue change

Other writers continue meanwhile and wait only for the install.
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
from nyala.spark.errors import named, naming, plain_errors
from nyala.spark.jobs.progress import watching
from nyala.spark.source.reader import Rows, in_task
from nyala.tablet.compaction import file_jobs as compaction_run
from nyala.tablet.compaction.file_jobs import Job, Output
from nyala.tablet.manual_maintenance import compact_table_together

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nyala.api.table import Table

__all__ = ["compact"]

TASKS_PER_CORE = 4


def compact(spark: SparkSession, table: Table) -> dict[str, Any]:
    """Flush and compact a table in Spark's tasks, until no rowsets overlap and no updates wait to be merged.

    Parameters
    ----------
    spark
        The SparkSession.
    table
        The table. This process must be the store's writer.

    Returns
    -------
    dict
        `compactions`, `rowsets_rewritten`, `bytes_before` and `bytes_after` (sizes of the replaced and the
        new files), and `rowsets_left_out`: rowsets that were skipped because running upserts may still
        change them. The log names these upserts.

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
            (number, json.dumps(compaction_run.encode_job(job)), table.name)
            for number, job in enumerate(jobs)
        ]
        slots = max(1, min(len(rows), TASKS_PER_CORE * cores_of(spark)))
        frame = spark.createDataFrame(rows, "number int, job string, table string").repartition(
            slots, "number"
        )
        with watching(spark, f"compaction of {table.name}"), plain_errors():
            answers = frame.mapInArrow(in_task(_runner(address)), "number int, output string").collect()
        outputs = {row.number: compaction_run.decode_output(json.loads(row.output)) for row in answers}
        return [outputs[number] for number in range(len(jobs))]

    with named(f"table {table.name!r}"):
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
        return compaction_run.run(env, job)
    except MissingFileError as error:
        # The writer (the driver) keeps these files. So it closed the store or ended, and another writer compacted.
        raise StorageError(
            f"a file to compact was deleted ({error.path}), because the program that started this job is no longer "
            "the store's writer; no result of the round was installed: run the compaction again",
            path=error.path,
        ) from error


def _runner(address: Address) -> Callable[[Rows], Rows]:
    """Return the function that runs compaction jobs in a task.

    Each run of a job writes other file names, so a task may be repeated.
    """

    def run_jobs(batches: Rows) -> Rows:
        for batch in batches:
            for row in batch.to_pylist():
                job = compaction_run.decode_job(*json.loads(row["job"]))
                try:
                    output = _run(address.env, job)
                except Error as error:
                    naming(error, f"table {row['table']!r}, tablet {job.tablet_id}")
                    raise
                yield pa.RecordBatch.from_pydict(
                    {
                        "number": pa.array([row["number"]], pa.int32()),
                        "output": pa.array([json.dumps(compaction_run.encode_output(output))]),
                    }
                )

    return run_jobs
