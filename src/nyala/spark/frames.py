"""Makes a DataFrame of a scan, for `scan.to_spark(spark)` and for each table of `nyala.spark.sql`.

    few rows     the driver reads the rows at once and puts them into Spark's plan. This needs
                 neither a task nor a lease
    otherwise    the scan becomes scan tokens, and a few tasks read them on the executors
                 (`mapInArrow`)

The driver is faster for few rows: a Python task takes 50 ms before it reads a byte, and its stage
20 ms more.

If Spark allows it (`internals`), tasks return rows as arrays: some thousand rows are one row of
arrays for Spark. Spark's generated code turns the arrays into rows again:

    range ─► mapInArrow: binary columns ─► LogicalRDD: the same bytes, as arrays ─► posexplode: one row per element

Invariants
    F1  The DataFrame's schema and rows are the same in all cases.
    F2  The driver holds at most LOCAL_MAX_BYTES of a scan. If a scan is larger than estimated,
        tasks read it.
    F3  In Spark's plan, arrays become rows before any join or aggregate reads them.
    F4  If tasks read a scan, Spark estimates its size as if its rows were in Parquet files. So
        `spark.sql.autoBroadcastJoinThreshold` has the same effect as for Parquet.

Source: docs/design/spark.md, "Rows are passed as arrays".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType

from nyala.env import process_mark
from nyala.objects.address import address_of
from nyala.spark import internals
from nyala.spark.cluster import check_python, cores_of
from nyala.spark.errors import errors_naming
from nyala.spark.source.options import LEASE_DEFAULT_S, lease_seconds
from nyala.spark.source.reader import (
    CELLS_PER_TASK,
    PARTITIONS_PER_CORE,
    HeldLease,
    in_task,
    lease_of_version,
    pack,
    read_tokens,
    store_tokens,
)
from nyala.spark.types import arrow_schema, conform, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from nyala.api.scan import Scan

__all__ = ["LeasedFrame", "leased_frame", "scan_to_spark", "task_count"]

# With one core, the driver reads this much in the 70 ms that a stage of Python tasks takes at least.
LOCAL_MAX_ROWS: Final = 20_000
LOCAL_MAX_BYTES: Final = 4 << 20
# Several tasks per core balance the load better. They pay off if each task has this many cells
# (rows × columns).
CELLS_PER_SPARE_TASK: Final = 8_000_000
# Spark returns up to this many rows of a plan without a job. More rows are put into one partition,
# so that an aggregate over them needs no shuffle.
ROWS_WITHOUT_JOB: Final = 256


def scan_to_spark(spark: SparkSession, scan: Scan, lease: float = LEASE_DEFAULT_S) -> DataFrame:
    """Return a Spark DataFrame of a scan, like `Scan.to_spark`. The rows have no particular order.

    It is faster than `format("nyala")`, which passes each row through more steps.

    Parameters
    ----------
    spark
        The SparkSession.
    scan
        The scan to read.
    lease
        Seconds for which the files are kept after the last read of the DataFrame. A read renews the
        lease when a quarter of it has passed.

    Raises
    ------
    InvalidArgumentError
        `lease` is not a valid number of seconds.

    Examples
    --------
    ```python
    delays = nyala.spark.scan_to_spark(spark, db["flights"].scan(["origin", "delay"], where="delay > 15"))
    delays.groupBy("origin").avg("delay").show()
    ```
    """
    return leased_frame(spark, scan, lease_seconds(lease, "to_spark: ")).frame


@dataclass(frozen=True)
class LeasedFrame:
    """A DataFrame of a scan, and the lease that keeps its files.

    lease: None if Spark's plan contains the rows, because no files are needed then.
    """

    frame: DataFrame
    lease: HeldLease | None = None


def leased_frame(
    spark: SparkSession,
    scan: Scan,
    lease_s: float = LEASE_DEFAULT_S,
    *,
    shared: bool = True,
    arrays: bool = True,
) -> LeasedFrame:
    """Return a Spark DataFrame of a scan, as `scan_to_spark` does, together with its lease.

    shared: whether other DataFrames may use the same lease. If False, the caller may end the lease.
    arrays: whether tasks may send thousands of rows to Spark as one row whose columns are arrays,
        which is faster (`internals.arrays`). False: they send row by row. `sql` passes False when
        it runs a statement again that Spark has rejected.
    """
    with errors_naming(f"table {scan.name!r}"):
        if not scan.schema.names:
            # Arrow batches and Spark tasks cannot have rows without columns, so read a column and drop it.
            found = leased_frame(spark, _with_key_column(scan), lease_s, shared=shared, arrays=arrays)
            return LeasedFrame(found.frame.select(), found.lease)
        rows = scan._engine().rows_planned()
        local = _local(spark, scan) if rows <= LOCAL_MAX_ROWS else None
        return _by_tasks(spark, scan, rows, lease_s, shared, arrays) if local is None else LeasedFrame(local)


def _with_key_column(scan: Scan) -> Scan:
    """Return a scan of the same rows that reads only the first key column."""
    return scan._derived(columns=scan._spec.schema.key_columns[:1])


def task_count(rows: int, columns: int, cores: int | None) -> int:
    """Return the number of tasks for a scan: one per core, fewer for a small scan, more for a very
    large one.
    """
    cells, cores = rows * max(columns, 1), cores or os.cpu_count() or 1
    needed = min(cores, -(-cells // CELLS_PER_TASK))
    return max(1, needed, min(PARTITIONS_PER_CORE * cores, cells // CELLS_PER_SPARE_TASK))


def _local(spark: SparkSession, scan: Scan) -> DataFrame | None:
    """Read the rows in the driver, and return a DataFrame whose plan contains them.

    So no task reads files. Returns None if the rows have more than LOCAL_MAX_BYTES.
    """
    schema = spark_schema(scan.schema)
    exact = arrow_schema(schema)
    batches, size = [], 0
    for batch in scan.to_reader():
        size += batch.nbytes
        if size > LOCAL_MAX_BYTES:
            return None
        batches.append(conform(batch, exact))
    rows = pa.Table.from_batches(batches, exact)
    frame = spark.createDataFrame(rows, schema=schema)
    return frame.coalesce(1) if rows.num_rows > ROWS_WITHOUT_JOB else frame


def _by_tasks(
    spark: SparkSession, scan: Scan, rows: int, lease_s: float, shared: bool, arrays: bool
) -> LeasedFrame:
    check_python(spark)
    schema = spark_schema(scan.schema)
    exact = arrow_schema(schema)
    root, _ = scan._root_and_table()
    table, limit = scan.name, scan._spec.limit
    address = address_of(scan._store.env, scan._store.root_path)
    name = lease_of_version(address, root.version, lease_s, process_mark(), shared=shared)
    lease = HeldLease(address, name, lease_s)
    tasks = task_count(rows, len(schema.fields), cores_of(spark))
    groups = store_tokens(address, lease.name, pack(scan._engine().tokens(tasks), tasks), together=True)
    del root

    def frame_of(
        convert: Callable[[pa.RecordBatch], Iterable[pa.RecordBatch]], types: StructType
    ) -> DataFrame:
        def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    for found in read_tokens(groups[number], lease, exact, table):
                        yield from convert(found)

        return spark.range(0, len(groups), 1, len(groups)).mapInArrow(in_task(read), types)

    frame = None
    if arrays and internals.can_use_arrays(spark, schema):
        binary = StructType([StructField(f.name, BinaryType(), False) for f in schema.fields])
        packed = frame_of(internals.as_arrays, binary)
        frame = internals.rows_of_arrays(packed, schema, rows, scan._engine().text_bytes())
    if frame is None:
        frame = frame_of(lambda batch: (batch,), schema)
    return LeasedFrame(frame if limit is None else frame.limit(limit), lease)
