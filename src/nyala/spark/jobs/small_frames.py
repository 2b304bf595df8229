"""Collects the rows of a small DataFrame into the driver, which then writes them as one batch.

`load` and `upsert` do this if Spark estimates the DataFrame at SMALL_BYTES or less. It takes one
Spark job, without a shuffle or Python workers. For some ten thousand rows, tasks that write files
take several times as long.

Invariants
    U1  Rows, results and errors are the same as with tasks. Rows are numbered by partition and
        position.
    U2  The driver holds at most ROWS_MAX rows of each partition, even if the estimate is wrong. If
        a partition has more, the driver writes nothing, and tasks write all rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from nyala import compute as pc
from nyala.spark.internals import looks_small
from nyala.spark.jobs.progress import showing_progress
from nyala.spark.types import arrow_schema
from nyala.tablet.jobs.load_write import ROW

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["PLACE_BITS", "ROWS_MAX", "SMALL_BYTES", "small_rows"]

# Spark estimates sizes by those of Parquet files. This size is some 400,000 rows of TPC-H's lineitem.
SMALL_BYTES: Final = 16 << 20
ROWS_MAX: Final = 1 << 19
# In Spark's `monotonically_increasing_id`, these lower bits are the position of the row, the others
# its partition.
PLACE_BITS: Final = 33


def small_rows(df: DataFrame, what: str) -> pa.Table | None:
    """Return the rows of a small DataFrame in the order of its partitions; None if it is not small.

    The last column, ROW, has the row numbers. The function also returns None if Spark has no size
    estimate. what: the job's name in progress lines.
    """
    position = F.col(ROW).bitwiseAND((1 << PLACE_BITS) - 1)
    exact = arrow_schema(StructType([*df.schema.fields, StructField(ROW, LongType(), False)]))
    # A partition that is too large returns one row more than allowed.
    bounded = df.withColumn(ROW, F.monotonically_increasing_id()).where(position <= ROWS_MAX)
    # Estimates this DataFrame, so that Spark optimizes one plan for the estimate and for the job.
    if not looks_small(bounded, SMALL_BYTES):
        return None
    with showing_progress(df.sparkSession, what):
        rows = bounded.toArrow().cast(exact)
    positions = pc.bit_wise_and(rows.column(ROW), (1 << PLACE_BITS) - 1)
    if len(rows) and pc.max(positions).as_py() >= ROWS_MAX:
        return None
    return rows
