"""Small frames of `nyala.spark.load` and `.upsert`: Spark's rows as Arrow in the driver, and one write of this process.

    a plan that Spark estimates at SMALL_BYTES or less, of rows that only become fewer
        │ toArrow: one job, no Python worker, no shuffle
        ▼
    Table.insert / .upsert      one atomic batch, like any other

For some ten thousand rows a flush, a shuffle and tasks that write files take several times as long as the rows do.

Invariants
    U1  Rows, results and errors are those of the large way; rows are numbered by partition and place.
    U2  What the driver holds is bounded whatever the estimate says: of a partition at most ROWS_MAX rows come here, and
        when one has more, nothing was written and the executors write all of it.
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

    None: it is not small, or nobody knows. what: for who watches the job.
    """
    place = F.col(ROW).bitwiseAND((1 << PLACE_BITS) - 1)
    exact = arrow_schema(StructType([*df.schema.fields, StructField(ROW, LongType(), False)]))
    # One row more of a partition than is allowed: then it was not small.
    bounded = df.withColumn(ROW, F.monotonically_increasing_id()).where(place <= ROWS_MAX)
    # The plan that is looked at is the one that runs: Spark makes it once.
    if not looks_small(bounded, SMALL_BYTES):
        return None
    with watching(df.sparkSession, what):
        rows = bounded.toArrow().cast(exact)
    places = pc.bit_wise_and(rows.column(ROW), (1 << PLACE_BITS) - 1)
    if len(rows) and pc.max(places).as_py() >= ROWS_MAX:
        return None
    return rows
