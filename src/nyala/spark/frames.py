"""A scan as a DataFrame: `scan.to_spark(spark)`, and so each table of `nyala.spark.sql`.

    few rows to look at    read here, now, and given to Spark as rows that the plan itself holds: no task, no lease
    else                   tokens in as few tasks as the work is worth, read by `mapInArrow` on the executors

Both show the rows of the scan's snapshot. A task of Python's costs 50 ms before it reads a byte, and a stage of them 20
more, which is longer than a key's rows take from the files to the plan.

From a task rows travel as arrays (`arrays`): Spark takes some thousands of them as one row of its own, and its
generated code unrolls them.

    range ─► mapInArrow, binary columns ─► the same rows, said to be arrays ─► posexplode ─► a row for each place
             └── Python ──────────────┘    └─ LogicalRDD ───────────────────┘  └─ generated code ─────────────┘

Invariants
    F1  The DataFrame's schema and rows are the same whichever way they come.
    F2  What is held in the driver is at most LOCAL_MAX_BYTES of a scan; a scan that turns out larger is given to tasks.
    F3  Rows travel as arrays where Spark is of a version that is known (J1), not Connect, will generate code for the
        loop (without it each row would carry its arrays along), and takes a place of an array as NOT NULL (ANSI mode,
        the default). Elsewhere, and where F5 and F6 could not be had, they travel as rows.
    F4  In arrays whole numbers, and decimals without their point, travel in as few bytes as all values of the scan
        need, and are of their own type again before anything of the plan sees them.
    F5  Values leave their arrays below every join and aggregate: whatever a row is sent to, no array goes with it.
    F6  Spark takes a scan of tasks for as large as its rows would be in files of Parquet, of which it knows what they
        have on disk: by that it says which side of a join all executors get.

Source: the Spark data source study, 2.1 to 2.3; docs/decisions/0027, 0065.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType

from nyala.env import process_mark
from nyala.spark.arrays import as_arrays
from nyala.spark.cluster import check_python, cores_of
from nyala.spark.digits import made_of_digits, with_digits
from nyala.spark.errors import named
from nyala.spark.jvm import NOT_AS_KNOWN
from nyala.spark.options import LEASE_DEFAULT_S, lease_seconds
from nyala.spark.plans import FrameOfTasks, HeldRows, ScanFrame
from nyala.spark.reader import (
    CELLS_PER_TASK,
    PARTITIONS_PER_CORE,
    HeldLease,
    PlacedToken,
    in_task,
    lease_of_version,
    pack,
    place,
    read_tokens,
    token_batches,
)
from nyala.spark.types import arrow_schema, conform, spark_schema
from nyala.spark.unrolled import (
    arrays_wanted,
    carried_in,
    kept_below,
    retyped,
    size_in_files,
    unrolled,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from nyala.scan import Scan

__all__ = ["leased_frame", "scan_to_spark", "tasks_wanted"]

# What the driver reads of one core in the time of a stage of Python tasks: about 70 ms.
LOCAL_MAX_ROWS: Final = 20_000
LOCAL_MAX_BYTES: Final = 4 << 20
# Only where tasks are long do more than one a core even out the end.
CELLS_PER_SPARE_TASK: Final = 8_000_000
# Of more columns the loop is too much for the JVM to make up for the casts.
_CARRIED_MAX: Final = 8


def scan_to_spark(spark: SparkSession, scan: Scan, lease: float = LEASE_DEFAULT_S) -> DataFrame:
    """See `Scan.to_spark`. Reads faster than `format("nyala")`, which passes each row through more hands.

    The order of the rows is not kept. lease: as there. Raises: InvalidArgumentError for a lease that is none.
    """
    return leased_frame(spark, scan, lease_seconds(lease, "to_spark: ")).whole()


def leased_frame(
    spark: SparkSession,
    scan: Scan,
    lease_s: float = LEASE_DEFAULT_S,
    *,
    shared: bool = True,
    passing: Sequence[str] = (),
    arrays: bool = True,
) -> ScanFrame:
    """As `scan_to_spark`, with the lease that keeps the files of the scan, if there is one.

    shared:  other frames of the same version may have the lease too; else it is this frame's, and may be given back.
    passing: columns by which the rows are only filtered: the size that Spark is told (F6) is right without them.
    arrays:  False: rows travel and stand in the plan as rows, for a statement that Spark refuses over arrays.
    """
    with named(f"table {scan.name!r}"):
        return _leased_frame(spark, scan, lease_s, shared, passing, arrays)


def _leased_frame(
    spark: SparkSession, scan: Scan, lease_s: float, shared: bool, passing: Sequence[str], arrays: bool
) -> ScanFrame:
    if not scan.schema.names:
        # Neither Arrow nor Spark's rows of a task say how many there are of no columns.
        found = _leased_frame(spark, _with_a_column(scan), lease_s, shared, (), arrays)
        return FrameOfTasks(found.whole().select(), found.lease)
    rows = scan._rows_to_look_at()
    if rows <= LOCAL_MAX_ROWS:
        local = _local(spark, scan, arrays)
        if local is not None:
            return local
    made, lease = _by_tasks(spark, scan, rows, lease_s, shared, passing, arrays)
    return FrameOfTasks(made if scan._spec.limit is None else made.limit(scan._spec.limit), lease)


def _with_a_column(scan: Scan) -> Scan:
    """The same rows with the first column of the key."""
    root, table = scan._take()
    key = scan._spec.schema.key_columns[:1]
    return type(scan)(scan._store, root, table, dataclasses.replace(scan._spec, columns=key))


def tasks_wanted(rows: int, columns: int, cores: int | None) -> int:
    """In how many tasks a scan of so many rows and columns is read: one a core, unless it is small, or very large."""
    cells, cores = rows * max(columns, 1), cores or os.cpu_count() or 1
    needed = min(cores, -(-cells // CELLS_PER_TASK))
    return max(1, needed, min(PARTITIONS_PER_CORE * cores, cells // CELLS_PER_SPARE_TASK))


def _local(spark: SparkSession, scan: Scan, arrays: bool) -> HeldRows | None:
    """The rows in the plan; None: they are more than they seemed (F2)."""
    schema = spark_schema(scan.schema)
    exact = arrow_schema(schema)
    batches, size = [], 0
    for batch in scan.to_reader():
        size += batch.nbytes
        if size > LOCAL_MAX_BYTES:
            return None
        batches.append(conform(batch, exact))
    return HeldRows(spark, pa.Table.from_batches(batches, exact), schema, arrays)


def _by_tasks(
    spark: SparkSession,
    scan: Scan,
    rows: int,
    lease_s: float,
    shared: bool,
    passing: Sequence[str],
    arrays: bool,
) -> tuple[DataFrame, HeldLease]:
    check_python(spark)
    schema = spark_schema(scan.schema)
    arrays = arrays and arrays_wanted(spark, schema)
    if arrays and not scan._spec.order_by_key:
        scan = scan.compacted()
    exact = arrow_schema(schema)
    root, _ = scan._take()
    path, table = scan._store.root_path, scan.name
    named = lease_of_version(path, root.version, lease_s, process_mark(), shared=shared)
    lease = HeldLease(path, named, lease_s)
    wanted = tasks_wanted(rows, len(schema.fields), cores_of(spark))
    groups = place(path, lease.name, pack(scan._tokens_in_pieces(wanted), wanted), together=True)
    del root

    def tasks(
        read: Callable[[Sequence[PlacedToken]], Iterator[pa.RecordBatch]], types: StructType
    ) -> DataFrame:
        def read_all(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    yield from read(groups[number])

        return spark.range(0, len(groups), 1, len(groups)).mapInArrow(in_task(read_all), types)

    if arrays:
        whole = with_digits(schema)
        widths = carried_in(whole, scan._value_bounds()) if len(whole) <= _CARRIED_MAX else {}
        size_bytes = size_in_files(schema, rows, scan._text_bytes(), passing)
        bytes_of_arrays = StructType([StructField(f.name, BinaryType(), False) for f in schema.fields])

        def read_arrays(tokens: Sequence[PlacedToken]) -> Iterator[pa.RecordBatch]:
            for found in token_batches(tokens, lease, table):
                yield from as_arrays(found, exact, widths)

        with contextlib.suppress(*NOT_AS_KNOWN):
            held = retyped(spark, tasks(read_arrays, bytes_of_arrays), whole, widths, size_bytes)
            return kept_below(made_of_digits(unrolled(held, whole, widths), whole, schema)), lease
    return tasks(lambda tokens: read_tokens(tokens, lease, exact, table), schema), lease
