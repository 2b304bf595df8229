"""Collects a small frame of `load` or `upsert` into the driver, which then writes it as one batch.

    a plan that Spark estimates at SMALL_BYTES or less, of rows that only become fewer
        │ toArrow: one job, no Python worker, no shuffle
        ▼
    Table.insert / .upsert      one atomic batch, like any other

For some ten thousand rows, a shuffle and tasks that write files take several times as long.

Invariants
    U1  Rows, results and errors are the same as with executors. Rows are numbered by partition and position.
    U2  The driver holds at most ROWS_MAX rows of each partition, whatever the estimate says. If a partition has more,
        the driver writes nothing and the executors write all of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from nyala import compute as pc
from nyala.spark.internals import looks_small
from nyala.spark.jobs.progress import watching
from nyala.spark.types import arrow_schema
from nyala.tablet.jobs.load_write import ROW

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["PLACE_BITS", "ROWS_MAX", "SMALL_BYTES", "small_rows"]

# Size of compressed Parquet files; 16 MiB are some 400,000 rows of lineitem.
SMALL_BYTES: Final = 16 << 20
ROWS_MAX: Final = 1 << 19
# In Spark's `monotonically_increasing_id`, the lower bits hold the row's position, the upper bits its partition.
PLACE_BITS: Final = 33


def small_rows(df: DataFrame, what: str) -> pa.Table | None:
    """Return the rows of a small frame in the order of its partitions, with their numbers in the last column, ROW.

    None if the frame is not small or Spark cannot estimate it. what: the job's name in progress lines.
    """
    place = F.col(ROW).bitwiseAND((1 << PLACE_BITS) - 1)
    exact = arrow_schema(StructType([*df.schema.fields, StructField(ROW, LongType(), False)]))
    # Each partition returns at most one row more than allowed, which shows that the frame is not small.
    bounded = df.withColumn(ROW, F.monotonically_increasing_id()).where(place <= ROWS_MAX)
    # Spark optimizes this plan once, for the estimate and for the job.
    if not looks_small(bounded, SMALL_BYTES):
        return None
    with watching(df.sparkSession, what):
        rows = bounded.toArrow().cast(exact)
    places = pc.bit_wise_and(rows.column(ROW), (1 << PLACE_BITS) - 1)
    if len(rows) and pc.max(places).as_py() >= ROWS_MAX:
        return None
    return rows
