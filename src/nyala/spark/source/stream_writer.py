"""The streaming sink: each micro-batch becomes one batch of the table, exactly once.

    executor's worker                        planner worker                       holder of the store's lock
    write(batches)                           commit(messages, batch id)
      → a staging folder of its own           → commit_staged(files, recorded      one atomic batch and
      → message: folder, file, query id           as (query id, batch id)) ─────►  (query id, batch id), in one
                                                                                   log record or transaction

    killed …                           after the restart, Spark sends the micro-batch again:
      before the record is durable       the store has nothing of it, and applies it
      after that                         the store has (query id, batch id), and does nothing

T-a  A query's id is in its checkpoint. A query without its checkpoint is a new query.
T-b  Spark makes one writer at planning and another for the commit, so the writer keeps no state. The messages of the
     tasks have everything that the commit needs.
T-c  A micro-batch without rows is recorded too, because it may have rows when it is sent again, if the query also reads
     other sources than the stream. (With output mode "complete" it empties the table.)
T-d  Staged files of a killed driver are removed at the next open on its machine, or when they expire.

Source: docs/how-to/spark.md; docs/design/spark.md, "What Spark offers a Python data source".
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from nyala.env import mark_of_ancestor
from nyala.errors import Error, InvalidArgumentError, StorageError
from nyala.handover import commits as handover
from nyala.spark.errors import named
from nyala.spark.source.option_messages import errors_in_options
from nyala.spark.source.options import WriteOptions
from nyala.spark.source.reader import JVM
from nyala.spark.source.writer import (
    check_no_condition,
    plan_rows,
    refused,
    stage_rows,
    tell,
    unique_columns,
)
from nyala.tablet.state.idempotency import stream_key

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["NyalaStreamWriter", "StagedBatch"]

# A micro-batch is committed within minutes after it was staged, or never.
STAGING_TTL_S: Final = 6 * 3600
QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"


@dataclass(frozen=True)
class StagedBatch(WriterCommitMessage):
    """The file that one task staged for a micro-batch. `key` is None if the task had no rows."""

    query: str
    partition: int
    key: str | None
    name: str


class NyalaStreamWriter(DataSourceStreamArrowWriter):
    """The streaming sink. Spark makes one for each planning and another for each commit (T-b)."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool = False) -> None:
        check_no_condition(options, overwrite)
        self._options = options
        self._overwrite = overwrite  # output mode "complete": each micro-batch has all result rows
        self._columns = unique_columns(options.table, schema)
        self._plan = plan_rows(options, self._columns, schema)
        self._owner = mark_of_ancestor(
            JVM
        )  # here, at planning: a task may be on another machine than the driver

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None, "a data source writes inside a Spark task"
        partition = context.partitionId()
        query = self._options.transaction or context.getLocalProperty(QUERY_ID)
        if not query:
            raise InvalidArgumentError(
                "Spark did not pass the id of this streaming query: add .option('transaction', NAME) to the sink, with "
                "a name that stays the same after a restart"
            )
        key, folder = handover.new_staging(
            self._options.path, STAGING_TTL_S, self._options.address.env, self._owner
        )
        name = f"part-{partition:05d}-{context.taskAttemptId()}.arrow"
        try:
            with named(f"table {self._options.table!r}"):
                rows = stage_rows(iterator, os.path.join(folder, name), self._plan, self._options.address)
        except BaseException:
            with contextlib.suppress(StorageError):
                handover.discard_staging(self._options.path, key, self._options.address.env)
            raise
        if not rows:
            handover.discard_staging(self._options.path, key, self._options.address.env)
        return StagedBatch(query, partition, key if rows else None, name)

    @errors_in_options()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        staged = sorted((m for m in messages if isinstance(m, StagedBatch)), key=lambda m: m.partition)
        files = [[m.key, m.name] for m in staged if m.key is not None]
        query = staged[0].query if staged else self._options.transaction
        own = None
        try:
            if query is None:
                return  # no task ran, so there are no rows, and the query's id is unknown
            if not files:
                own, _ = handover.new_staging(
                    self._options.path, STAGING_TTL_S, self._options.address.env, self._owner
                )
            job = {
                "key": own or files[0][0],
                "record_as": stream_key(query, batchId),
                "table": self._options.table,
                "operation": self._options.operation,
                "errors": self._options.errors,
                "files": files,
                "columns": self._columns,
                "overwrite": self._overwrite,
                "message": self._options.message,
                "when": self._options.when,
                "newest_by": self._options.newest_by,
            }
            try:
                outcome = handover.commit_staged(self._options.path, job, self._options.address.env)
            except Error as error:
                raise refused(self._options, error, self._plan) from None
        finally:  # also after a failure: Spark sends the micro-batch again with new files
            self._discard(messages, own)
        tell(self._options, outcome, self._plan)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        # Spark may call this after a successful commit too. A repeat is detected by the record, not by these files.
        self._discard(messages)

    def _discard(self, messages: Sequence[WriterCommitMessage | None], own: str | None = None) -> None:
        """Remove the tasks' staged files. own: key of the folder that the commit made."""
        for key in (own, *(message.key for message in messages if isinstance(message, StagedBatch))):
            if key is not None:
                with contextlib.suppress(Error):  # files that remain are removed when they expire
                    handover.discard_staging(self._options.path, key, self._options.address.env)
