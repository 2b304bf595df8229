"""Batches of a frame that Spark hands to tasks of ours: bounded by their rows, where that bounds their bytes too.

    Spark               closes a batch at 10,000 rows, or at 64 MB: before each row it asks all columns for their bytes
    cut_cells           no text is longer than what a table refuses for its length
    bounded_by_rows     so a batch of few enough rows cannot outgrow its share of the task's memory, and is not asked

To be asked for bytes is a fifth of what a load takes, of rows with 18 columns. Where memory is small or texts are many,
where the key has text, which is not cut, or the program has set Spark's limits itself, they stay as they are; and where
the frame has functions in Python of its own, which would get such batches too, of columns that nobody cuts.

Source: org.apache.spark.sql.execution.python.BatchedPythonArrowInput; decision 0050.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, cast

from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StringType

from nyala.spark.cluster import cores_of, is_classic, is_local

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from nyala.schema.schema import Schema

__all__ = ["batch_rows", "bounded_by_rows", "cut_cells", "runs_python", "task_memory_bytes"]

ROWS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
BYTES: Final = "spark.sql.execution.arrow.maxBytesPerBatch"
_ROWS_MAX: Final = 10_000  # Spark's own
# Fewer rows a batch cost more than to be asked: of 512 a load took 9.3 s, of 1,024 9.1 to 9.5, of 2,048 8.4, of 4,096
# and 10,000 8.0; asked 10.4 (lineitem of SF 1 in four tablets, 2026-11-24, AMD EPYC, 2 cores, PySpark 4.3.0).
_ROWS_MIN: Final = 512
_UNLIMITED: Final = (1 << 31) - 1  # what Spark takes for "do not ask"
# Of a task's memory, and at most: a vector that grows is there twice, and heap and batch are not all that a task has.
_MEMORY_SHARE: Final = 1 / 4
_BATCH_BYTES_MAX: Final = 512 << 20
_FIXED_BYTES_MAX: Final = 16  # of a value that is neither text nor binary
# What physical plans call operators that run Python, and those behind which others may be (of what is cached they show
# the plan too); and how the text of a plan ends that is cut (spark.sql.maxPlanStringLength). A column or a file whose
# name has such a word costs time only.
_PYTHON: Final = re.compile("Python|PySpark|Pandas|Arrow|ExistingRDD|more characters|Truncated plan")


def batch_rows(schema: StructType, max_cell_bytes: int, memory_bytes: int) -> int | None:
    """How many rows of these columns a batch may have, whatever stands in them; None: too few.

    memory_bytes: of a task.
    """
    texts = sum(_is_text(field.dataType) for field in schema.fields)
    row_bytes = texts * max_cell_bytes + (len(schema.fields) - texts) * _FIXED_BYTES_MAX
    rows = min(_ROWS_MAX, int(min(memory_bytes * _MEMORY_SHARE, _BATCH_BYTES_MAX)) // max(1, row_bytes))
    return rows if rows >= _ROWS_MIN else None


def task_memory_bytes(spark: SparkSession) -> int:
    """A task's part of its JVM's heap, which is as much again as Spark's Arrow may take beside it. 0: not known."""
    if not is_classic(spark):
        return 0
    try:
        context, jvm = spark.sparkContext, cast("Any", spark._jvm)
        if is_local(spark):
            return int(jvm.java.lang.Runtime.getRuntime().maxMemory()) // max(1, cores_of(spark))
        conf = context.getConf()
        heap = jvm.org.apache.spark.network.util.JavaUtils.byteStringAsBytes(
            conf.get("spark.executor.memory", "1g")
        )
        return int(heap) // max(1, int(conf.get("spark.executor.cores", "4")))
    except Exception:  # whatever py4j says of what another version has not
        return 0


def cut_cells(df: DataFrame, schema: Schema, max_cell_bytes: int) -> dict[str, Column]:
    """The texts of a frame for columns of text, those that are too long cut to what is too long still.

    The key's are left: they say where a row goes.
    """
    keys = {column.name for column in schema.key_columns}
    kept = {column.name for column in schema.columns if column.type.is_variable} - keys
    found: dict[str, Column] = {}
    for field in df.schema.fields:
        if _is_text(field.dataType) and field.name in kept:
            column = F.col("`" + field.name.replace("`", "``") + "`")
            cut = F.substring(column, 1, max_cell_bytes + 1)
            found[field.name] = F.when(F.octet_length(column) > max_cell_bytes, cut).otherwise(column)
    return found


def runs_python(df: DataFrame) -> bool:
    """Whether Spark hands rows to Python for this frame, or may: what is cached is not made yet, perhaps.

    Cost: the frame is planned.
    """
    try:
        plan: Any = df._jdf.queryExecution().executedPlan()
        return _PYTHON.search(str(plan.toString())) is not None
    except Exception:  # whatever py4j says of what another version, or Spark Connect, has not
        return True


@contextlib.contextmanager
def bounded_by_rows(spark: SparkSession, rows: int | None) -> Iterator[None]:
    """Around a job of this thread: batches of so many rows, whatever they take; None: as Spark has it.

    By properties of the thread, which settings of the session go before: a program that sets these has its way.
    """
    if rows is None or not is_classic(spark) or _has_set_limits(spark):
        yield
        return
    context: Any = spark.sparkContext
    wanted = {ROWS: str(rows), BYTES: str(_UNLIMITED)}
    before = {name: context.getLocalProperty(name) for name in wanted}
    try:
        for name, value in wanted.items():
            context.setLocalProperty(name, value)
        yield
    finally:
        for name, value in before.items():
            context.setLocalProperty(name, value)


def _has_set_limits(spark: SparkSession) -> bool:
    conf: Any = spark._jsparkSession.sessionState().conf()
    return bool(conf.contains(ROWS) or conf.contains(BYTES))


def _is_text(type: Any) -> bool:
    return isinstance(type, StringType | BinaryType)
