"""A scan as a DataFrame: `scan.to_spark(spark)`, and so each table of `nyala.spark.sql`.

    few rows to look at    read here, now, and given to Spark as rows that the plan itself holds: no task, no lease
    else                   tokens in as few tasks as the work is worth, read by `mapInArrow` on the executors

Both show the rows of the scan's snapshot. A task of Python's costs 50 ms before it reads a byte, and a stage of them 20
more, which is longer than a key's rows take from the files to the plan.

Decimals. Spark's JVM makes of each 128-bit Arrow decimal a BigInteger, a BigDecimal and a Decimal. Of up to 18 digits
they are stored as integers here and held as integers there, so they travel as such: the tasks give the column of
integers that the files have, and Spark's own expression `MakeDecimal` names it a decimal in the JVM. That expression
has no SQL name, so this needs py4j; where there is none (Spark Connect), or it moved, decimals travel as decimals.

Invariants
    F1  The DataFrame's schema and rows are the same whichever way they come.
    F2  What is held in the driver is at most LOCAL_MAX_BYTES of a scan; a scan that turns out larger is given to tasks.

Source: the Spark data source study, 2.1 to 2.3; figures: bench/RESULTS.md, "Through Spark".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType, LongType, StructField, StructType

from nyala.env import process_mark
from nyala.spark.cluster import cores_of, is_classic
from nyala.spark.options import LEASE_DEFAULT_S
from nyala.spark.reader import (
    CELLS_PER_TASK,
    PARTITIONS_PER_CORE,
    HeldLease,
    lease_of_version,
    pack,
    place,
    read_tokens,
)
from nyala.spark.types import arrow_schema, conform, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from nyala.scan import Scan

__all__ = ["scan_to_spark", "tasks_wanted"]

# What the driver reads of one core in the time of a stage of Python tasks: about 70 ms.
LOCAL_MAX_ROWS: Final = 20_000
LOCAL_MAX_BYTES: Final = 4 << 20
# Rows that need no exchange, where an aggregate over them would have Spark plan one; fewer are not worth a task.
ONE_PARTITION_ROWS: Final = 256
# Only where tasks are long do more than one a core even out the end.
CELLS_PER_SPARE_TASK: Final = 8_000_000


def scan_to_spark(spark: SparkSession, scan: Scan, lease_s: float = LEASE_DEFAULT_S) -> DataFrame:
    """See `Scan.to_spark`. Reads some 1.5 times as fast as `format("nyala")`, which passes each row through more hands.

    The order of the rows is not kept. Works as long as somebody reads it once an hour; a small one for ever.
    """
    rows = scan._rows_to_look_at()
    if rows <= LOCAL_MAX_ROWS and scan.schema.names:
        local = _local(spark, scan)
        if local is not None:
            return local
    made = _by_tasks(spark, scan, rows, lease_s)
    return made if scan._spec.limit is None else made.limit(scan._spec.limit)


def tasks_wanted(rows: int, columns: int, cores: int | None) -> int:
    """In how many tasks a scan of so many rows and columns is read: one a core, unless it is small, or very large."""
    cells, cores = rows * max(columns, 1), cores or os.cpu_count() or 1
    needed = min(cores, -(-cells // CELLS_PER_TASK))
    return max(1, needed, min(PARTITIONS_PER_CORE * cores, cells // CELLS_PER_SPARE_TASK))


def _local(spark: SparkSession, scan: Scan) -> DataFrame | None:
    """The rows in the plan; None: they are more than they seemed (F2)."""
    schema = spark_schema(scan.schema)
    exact = arrow_schema(schema)
    batches, size, count = [], 0, 0
    for batch in scan.to_reader():
        size, count = size + batch.nbytes, count + batch.num_rows
        if size > LOCAL_MAX_BYTES:
            return None
        batches.append(conform(batch, exact))
    made = spark.createDataFrame(pa.Table.from_batches(batches, exact), schema=schema)
    return made.coalesce(1) if count > ONE_PARTITION_ROWS else made


def _by_tasks(spark: SparkSession, scan: Scan, rows: int, lease_s: float) -> DataFrame:
    wanted_schema = spark_schema(scan.schema)
    make_decimal = _decimal_maker(spark)
    if make_decimal is not None and not scan._spec.order_by_key:
        scan = scan._with_narrow_decimals()
    schema = StructType([_carried(field, scan.schema) for field in wanted_schema.fields])
    exact = arrow_schema(schema)
    root, _ = scan._take()
    path, table = scan._store.root_path, scan.name
    lease = HeldLease(path, lease_of_version(path, root.version, lease_s, process_mark()), lease_s)
    wanted = tasks_wanted(rows, len(schema.fields), cores_of(spark))
    groups = place(path, lease.name, pack(scan._tokens_in_pieces(wanted), wanted))
    del root

    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from read_tokens(groups[number], lease, exact, table)

    made = spark.range(0, len(groups), 1, len(groups)).mapInArrow(read, schema)
    if schema == wanted_schema:
        return made
    assert make_decimal is not None
    columns = [
        make_decimal(_named(field.name), field) if field.dataType != carried.dataType else _named(field.name)
        for field, carried in zip(wanted_schema.fields, schema.fields, strict=True)
    ]
    return made.select(columns)


def _named(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`")


def _carried(field: StructField, schema: pa.Schema) -> StructField:
    """The field as the tasks give it: integers where the scan has a narrow decimal."""
    found = schema.field(field.name).type
    if pa.types.is_decimal(found) and not pa.types.is_decimal128(found):
        return StructField(field.name, LongType(), field.nullable)
    return field


def _decimal_maker(spark: SparkSession) -> Callable[[Column, StructField], Column] | None:
    """What makes of a column of integers one of decimals, inside the JVM; None where it is out of reach."""
    if not is_classic(spark):
        return None
    try:
        from pyspark.sql.classic.column import Column as ClassicColumn

        jvm: Any = spark._jvm
        expressions = jvm.org.apache.spark.sql.classic.ExpressionUtils
        make = jvm.org.apache.spark.sql.catalyst.expressions.MakeDecimal

        def maker(column: Column, field: StructField) -> Column:
            type = field.dataType
            assert isinstance(type, DecimalType)
            # False: what does not fit would be an error. Stored values fit, and so the column stays NOT NULL.
            made = make(expressions.expression(column._jc), type.precision, type.scale, False)
            return ClassicColumn(expressions.column(made)).alias(field.name)

        # A class that is not there shows at its first use.
        maker(F.lit(0).cast("bigint"), StructField("tried", DecimalType(1, 0)))
    except Exception:  # whatever py4j, or another version of Spark, says: decimals then travel as decimals
        return None
    return maker
