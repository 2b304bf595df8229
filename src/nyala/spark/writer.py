"""Writing: tasks stage Arrow files, the driver hands them over to be committed, once, as one batch.

    executor's worker                         planner worker                     holder of the store's lock
    write(batches)                            commit(messages)
      → staging/<key>/part-… .arrow  ──────►    → commit_staged(key, files) ──────►  one atomic batch,
      → message: file, rows                                                          remembered under the key

W-a  A task may run twice (retry, speculation): each attempt has its own file, and only the attempt whose message
     reaches `commit` counts.
W-b  The job's key is drawn when the write is planned and travels with the writer, so a commit that is asked for
     twice is applied once.
W-c  Spark calls `abort` after a `commit` that raised. Whether that commit went through is then decided already;
     `abort` only takes away staged files.

The rows of a job are one batch in the order of Spark's partitions, and of the rows in each.
Left out: routing rows to tablets and writing rowset files on the executors (large loads).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from nyala import handover
from nyala.env import SYSTEM
from nyala.errors import Error, SchemaError
from nyala.spark.options import WriteOptions
from nyala.spark.reader import freeze_gc_once

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["NyalaWriter", "StagedFile"]

# Files of a job that never came to its commit are kept this long, then collected at the next open.
STAGING_TTL_S: Final = 24 * 3600
ERRORS_SHOWN: Final = 5

_log = logging.getLogger("nyala.spark")


@dataclass(frozen=True)
class StagedFile(WriterCommitMessage):
    """What one task wrote. `name` is None when it had no rows."""

    partition: int
    name: str | None
    row_count: int


class NyalaWriter(DataSourceArrowWriter):
    """Made in a planner worker at planning; a pickled copy writes in each task, another one commits."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._columns = schema.fieldNames()
        twice = [name for name, count in Counter(self._columns).items() if count > 1]
        if twice:
            raise SchemaError(
                f"the DataFrame written to table {options.table!r} has two columns named {twice[0]!r}: "
                "select or rename one of them"
            )
        self._key, self._staging = handover.new_staging(options.path, STAGING_TTL_S)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        freeze_gc_once()
        context = TaskContext.get()
        assert context is not None, "a data source writes inside a Spark task"
        partition = context.partitionId()
        filled = (batch for batch in iterator if batch.num_rows)
        first = next(filled, None)
        if first is None:
            return StagedFile(partition, None, 0)
        # The attempt's id is unique in the application, so a retry cannot meet its predecessor's file.
        name = f"part-{partition:05d}-{context.taskAttemptId()}.arrow"
        batches = itertools.chain([first], filled)
        rows = handover.write_staged(SYSTEM, os.path.join(self._staging, name), first.schema, batches)
        return StagedFile(partition, name, rows)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        staged = [m for m in messages if isinstance(m, StagedFile)]
        staged.sort(key=lambda message: message.partition)
        outcome = handover.commit_staged(
            self._options.path,
            {
                "key": self._key,
                "table": self._options.table,
                "operation": self._options.operation,
                "errors": self._options.errors,
                "files": [m.name for m in staged if m.name is not None],
                "columns": self._columns,
            },
        )
        with contextlib.suppress(Error):  # it is committed; what stays here goes when its time is over
            handover.discard_staging(self._options.path, self._key)
        _tell(self._options, outcome)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        handover.discard_staging(self._options.path, self._key)


def _tell(options: WriteOptions, outcome: dict[str, Any]) -> None:
    """Leave what the commit did where the user wants it; failing rows are never passed over in silence."""
    errors: pa.Table | None = outcome["errors"]
    failed = 0 if errors is None else errors.num_rows
    if options.result is not None:
        files = SYSTEM.files
        files.make_dirs(options.result)
        if failed:
            import pyarrow.parquet as pq

            buffer = pa.BufferOutputStream()
            pq.write_table(errors, buffer)
            files.write_atomic(os.path.join(options.result, "errors.parquet"), buffer.getvalue().to_pybytes())
        # Last: where result.json stands, the rest does too.
        counts = {name: outcome[name] for name in ("timestamp", "inserted", "updated", "deleted", "ignored")}
        files.write_atomic(
            os.path.join(options.result, "result.json"), json.dumps({**counts, "errors": failed}).encode()
        )
    elif failed:
        assert errors is not None
        codes = Counter(errors.column("code").to_pylist())
        shown = "; ".join(errors.column("message").slice(0, ERRORS_SHOWN).to_pylist())
        _log.warning(
            "%s into table %r: %d rows were not applied (%s): %s%s; all of them: .option('result', folder)",
            options.operation,
            options.table,
            failed,
            ", ".join(f"{count} {code}" for code, count in sorted(codes.items())),
            shown,
            " …" if failed > ERRORS_SHOWN else "",
        )
