"""PySpark over Nyala: a Python data source, with no jar.

    spark.read.format("nyala").option("path", "store").option("table", "flights").load()
    df.write.format("nyala").option("path", "store").option("table", "flights").mode("append").save()

    options.py   the options of `.option(...)`, checked
    types.py     Spark's types and Nyala's, and Arrow batches in exactly the schema that Spark expects
    source.py    the data source: what Spark calls
    reader.py    planning on the driver (one snapshot, scan tokens), reading on the executors
    changes.py   the change feed, as a stream or as one batch
    writer.py    staging on the executors, one commit on the driver
    sink.py      the same for the micro-batches of a stream, each exactly once
    session.py   `register(spark)`, `write(df, ...)`, `sql(...)`, for the driver's program
    frames.py    `scan.to_spark(spark)`: a scan as a DataFrame, read here or by tasks
    internals/   everything that uses Spark's private classes, with a setting that switches it off
    statements.py  which columns and rows a SELECT needs of each table in it: needs.py looks for them, terms.py says
                 what a term means, syntax.py brings sqlglot
    unknown_names.py  what Spark says of a name that it does not know, in one sentence
    load.py      `load` and `upsert`: executors write rowset and delta files (routing.py: who gets which row)
    compact.py   `compact`: compactions as tasks
    backup.py    backups: plans, files, metadata; backup_jobs.py: `backup` and `restore`
    progress.py  how far a long job is
    errors.py    an error of a worker as one of ours; `plain_errors`
    words.py     the library's sentences in the words of `.option(...)`

Where each runs matters more here than anywhere else in Nyala:

    the driver's Python      session.py; may have the store open, and then it is the one that commits
    a planner worker         source.py, reader.partitions, writer.__init__, .commit, .abort: another process on
    (a child of the JVM)     the driver's machine. The object that commits is a pickled copy of the one that
                             was made at planning: nothing written to `self` in between is seen
    an executor's worker     reader.read, writer.write: one process per core, perhaps another machine

No filter is ever taken from Spark (`pushFilters`): up to and including Spark 4.3 a filter pushed for one use
of a DataFrame is applied to all its other uses, which gives wrong rows. The option `where` is the safe way.

Source: shared contract, "Spark"; measurements and traps in the Spark data source study, sections 1 to 2.
"""

from __future__ import annotations

try:
    import pyspark  # noqa: F401
except ImportError as error:
    raise ImportError("nyala.spark needs PySpark: pip install 'nyala[spark]'") from error

from nyala.spark.backup import clean_backups, list_backups
from nyala.spark.backup_jobs import backup, restore
from nyala.spark.compact import compact
from nyala.spark.errors import plain_errors
from nyala.spark.frames import scan_to_spark
from nyala.spark.load import load, upsert
from nyala.spark.session import register, sql, write
from nyala.spark.source import NyalaDataSource

__all__ = [
    "NyalaDataSource",
    "backup",
    "clean_backups",
    "compact",
    "list_backups",
    "load",
    "plain_errors",
    "register",
    "restore",
    "scan_to_spark",
    "sql",
    "upsert",
    "write",
]
