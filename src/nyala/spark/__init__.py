"""PySpark over Nyala: a Python data source, without a jar.

    spark.read.format("nyala").option("path", "store").option("table", "flights").load()
    df.write.format("nyala").option("path", "store").option("table", "flights").mode("append").save()

    registration  `register(spark)`
    jobs/         `write`, `load`, `upsert`, `compact`, `backup`, `restore`
    statements/   `sql`: a SELECT that reads only the columns and rows that it needs
    frames        `scan.to_spark(spark)`: a scan as a DataFrame, read by the driver or by tasks
    source/       `format("nyala")`: the classes that Spark calls to read and write, also in streams
    internals/    all code that uses Spark's private classes; a setting switches it off
    errors        finds Nyala's errors in Spark's exceptions; `plain_errors`
    arguments     checks the arguments of the functions above
    cluster       finds out facts about a session: classic or Connect, cores, its executors' Python
    types         maps Spark's types to Nyala's, and casts Arrow batches to the exact schema that
                  Spark expects

The code runs in three kinds of processes:

    the driver's Python      `nyala.spark.*`. If the driver has the store open, the driver commits.
    a planner worker         data_source, reader.partitions, writer.__init__, .commit, .abort: a
                             child of the JVM on the driver's machine. `commit` runs on a pickled
                             copy of the writer. The copy does not have attributes that were set
                             after `__init__`.
    an executor's worker     reader.read, writer.write: one process per core, possibly on another
                             machine

Nyala accepts no filters from Spark (`pushFilters`). In Spark 4.3 and older, a filter that is pushed
for one use of a DataFrame also filters its other uses, where rows are then missing. The option
`where` is safe.

Source: docs/how-to/spark.md; docs/design/spark.md, "What Spark offers a Python data source".
"""

from __future__ import annotations

try:
    import pyspark  # noqa: F401
except ImportError as error:
    raise ImportError("nyala.spark needs PySpark: pip install 'nyala[spark]'") from error

from nyala.spark.errors import plain_errors
from nyala.spark.frames import scan_to_spark
from nyala.spark.jobs.backup import backup, restore
from nyala.spark.jobs.compact import compact
from nyala.spark.jobs.load import load, upsert
from nyala.spark.jobs.write import write
from nyala.spark.registration import register
from nyala.spark.source.data_source import NyalaDataSource
from nyala.spark.statements.query import sql

__all__ = [
    "NyalaDataSource",
    "backup",
    "compact",
    "load",
    "plain_errors",
    "register",
    "restore",
    "scan_to_spark",
    "sql",
    "upsert",
    "write",
]
