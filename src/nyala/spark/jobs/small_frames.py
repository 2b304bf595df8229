"""Collects a small frame of `load` or `upsert` into the driver, which then writes it as one batch.

    a plan that Spark estimates at SMALL_BYTES or less, of rows that only become fewer
        │ toArrow: one job, no Python worker, no shuffle
        ▼
    Table.insert / .upsert      one atomic batch, like any other

For some ten thousand rows a flush, a shuffle and tasks that write files take several times as long as this.

Invariants
    U1  Rows, results and errors are those of the way by executors; rows are numbered by partition and place.
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
from nyala.tablet.jobs.staged_files import ROW

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["PLACE_BITS", "ROWS_MAX", "SMALL_BYTES", "small_rows"]

# Of compressed Parquet: some 400,000 rows of lineitem.
SMALL_BYTES: Final = 16 << 20
ROWS_MAX: Final = 1 << 19
# Spark's `monotonically_increasing_id`: a row's partition, and below these bits its place there.
PLACE_BITS: Final = 33


def small_rows(df: DataFrame, what: str) -> pa.Table | None:
    """The rows of a small frame in the order of its partitions, with their numbers in the last column, ROW.

    None: the frame is not small, or Spark does not say. what: the name of the job in its progress lines.
    """
    place = F.col(ROW).bitwiseAND((1 << PLACE_BITS) - 1)
    exact = arrow_schema(StructType([*df.schema.fields, StructField(ROW, LongType(), False)]))
    # At most one row more than allowed comes from each partition: then the frame was not small.
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
