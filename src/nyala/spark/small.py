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

import re
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StructField, StructType

from nyala import compute as pc
from nyala.spark.cluster import is_classic
from nyala.spark.digits import as_digits, short_decimals, with_points
from nyala.spark.progress import watching
from nyala.tablet.staged_files import ROW

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["PLACE_BITS", "ROWS_MAX", "SMALL_BYTES", "small_rows"]

# Of compressed Parquet: some 400,000 rows of lineitem.
SMALL_BYTES: Final = 16 << 20
ROWS_MAX: Final = 1 << 19
# Spark's `monotonically_increasing_id`: a row's partition, and below these bits its place there.
PLACE_BITS: Final = 33
# Of an optimised plan: what reads something of a known size, and what gives no more rows than it gets.
_SIZED: Final = re.compile(
    r"[\s:+|-]*(Relation|LocalRelation|Range|OneRowRelation|Project|Filter|Aggregate|Sort|Distinct|Deduplicate"
    r"|GlobalLimit|LocalLimit|Offset|Union|Repartition|RepartitionByExpression|RebalancePartitions)\b"
)


def small_rows(df: DataFrame, what: str) -> pa.Table | None:
    """The rows of a small frame in the order of its partitions, with their numbers in the last column, ROW.

    None: it is not small, or nobody knows. what: for who watches the job.
    """
    if not is_classic(df.sparkSession):
        return None
    place = F.col(ROW).bitwiseAND((1 << PLACE_BITS) - 1)
    exact = to_arrow_schema(
        StructType([*df.schema.fields, StructField(ROW, LongType(), False)]), timezone="UTC"
    )
    # One row more of a partition than is allowed: then it was not small.
    bounded = as_digits(df, {ROW: F.monotonically_increasing_id()}).where(place <= ROWS_MAX)
    # The plan that is looked at is the one that runs: Spark makes it once.
    if not _looks_small(bounded):
        return None
    with watching(df.sparkSession, what):
        collected = bounded.toArrow()
    decimals = short_decimals(exact)
    batches = [with_points(batch, decimals) for batch in collected.to_batches()]
    rows = pa.Table.from_batches(batches).cast(exact) if batches else exact.empty_table()
    places = pc.bit_wise_and(rows.column(ROW), (1 << PLACE_BITS) - 1)
    if len(rows) and pc.max(places).as_py() >= ROWS_MAX:
        return None
    return rows


def _looks_small(df: DataFrame) -> bool:
    try:
        plan: Any = df._jdf.queryExecution().optimizedPlan()
        if int(plan.stats().sizeInBytes()) > SMALL_BYTES:
            return False
        return all(_SIZED.match(line) for line in plan.toString().splitlines())
    except (
        Exception
    ):  # what is wrong with the frame its job will say; what moved in Spark, nobody has to know
        return False
