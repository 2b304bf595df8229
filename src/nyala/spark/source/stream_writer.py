"""The streaming sink: writes each micro-batch of a stream as one batch of the table, exactly once.

    executor's worker                planner worker                     the store's writer
    write(batches)                   commit(messages, batch id)
    stage the rows in a new folder,
    return its name and the query id
                                     send files, query id,   ────────►  write one atomic batch together with
                                     and batch id                       (query id, batch id), in one
                                                                        log record

A *planner worker* is a Python process that Spark starts on the driver's machine. If a process is
killed, Spark sends the micro-batch again after the restart. If the store has (query id, batch id),
the batch was written, and the store does nothing. Otherwise it writes the batch.

Invariants
    T-a  A query's id is in its checkpoint. A query without its checkpoint is a new query.
    T-b  Spark makes one writer at planning and another one for the commit, so writers have no
         state. The messages of the tasks have everything that the commit needs.
    T-c  A micro-batch without rows is recorded too. If the query also reads other sources than the
         stream, the same micro-batch may have rows when Spark sends it again. (With output mode
         "complete", a micro-batch without rows empties the table.)
    T-d  If the driver is killed, the store's writer removes the staged files: when it next opens
         the store on the same machine, or after the time in the name of their folder.

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
from nyala.spark.errors import errors_naming
from nyala.spark.source.option_messages import errors_in_options
from nyala.spark.source.options import WriteOptions
from nyala.spark.source.reader import JVM
from nyala.spark.source.writer import (
    check_no_condition,
    commit_files,
    plan_rows,
    stage_rows,
    unique_columns,
)
from nyala.tablet.state.idempotency import stream_key

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["NyalaStreamWriter", "StagedBatch"]

# Staged files expire after this time. A micro-batch is committed within minutes, or is staged again.
STAGING_TTL_S: Final = 6 * 3600
QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"


@dataclass(frozen=True)
class StagedBatch(WriterCommitMessage):
    """What a task sends to the commit: the staging folder `key`, and the file `name` in it.

    key: None if the task had no rows.
    """

    query: str
    partition: int
    key: str | None
    name: str


class NyalaStreamWriter(DataSourceStreamArrowWriter):
    """The writer of `df.writeStream`: commits each micro-batch as one batch, exactly once.

    It has no state, because Spark creates one at planning and another one for each commit.
    """

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool = False) -> None:
        check_no_condition(options, overwrite)
        self._options = options
        self._overwrite = overwrite  # output mode "complete": each micro-batch replaces all rows
        self._columns = unique_columns(options.table, schema)
        self._plan = plan_rows(options, self._columns, schema)
        # Found here, in a planner worker. A task may be on another machine than the driver.
        self._owner = mark_of_ancestor(JVM)

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
            with errors_naming(f"table {self._options.table!r}"):
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
                return  # no task ran, so the query's id is unknown, and there are no rows
            if not files:
                own, _ = handover.new_staging(
                    self._options.path, STAGING_TTL_S, self._options.address.env, self._owner
                )
            key = own or str(files[0][0])
            record_as = stream_key(query, batchId)
            commit_files(
                self._options, self._plan, key, files, self._columns, self._overwrite, record_as=record_as
            )
        finally:  # also after an error, because Spark sends the micro-batch again with new files
            self._discard(messages, own)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        # Spark may also call this after a successful commit. The record prevents that the batch is
        # written again.
        self._discard(messages)

    def _discard(self, messages: Sequence[WriterCommitMessage | None], own: str | None = None) -> None:
        """Remove the staged files of the tasks. own: a staging folder that the commit itself created."""
        for key in (own, *(message.key for message in messages if isinstance(message, StagedBatch))):
            if key is not None:
                with contextlib.suppress(Error):  # files that remain are removed when they expire
                    handover.discard_staging(self._options.path, key, self._options.address.env)
