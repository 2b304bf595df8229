"""Statements and rows given to Spark in few words: what PySpark says in many, each a turn through its JVM.

    few rows of a scan  ──►  Arrow's bytes in a file  ──►  LocalRelation                    (createDataFrame)
    more, in a statement──►  one row of arrays, its bytes through py4j  ──►  LocalRelation of that row
                        ──►  SELECT v, c1[p], … FROM arrays LATERAL VIEW posexplode(c0), kept below joins
    SELECT … FROM n0    ──►  its plan, as Spark's parser makes it
                        ──►  WITH n0 AS (the table's plan) over it                          (spark.sql(text, n0=df))

`spark.sql` with a DataFrame makes a temporary view, which is a command of its own, and drops it afterwards, and with it
what is cached of that DataFrame. A name that is bound by WITH is known to this statement alone. `createDataFrame` asks
the session for eight settings, none of which means anything for rows in Spark's own types.

Rows as arrays spare Spark an object for each row and each decimal, twice: in the driver, and on the way to the task.
Few rows stand as rows, because of a LocalRelation of those Spark answers without a job.

Invariants
    P1  The answer, its schema and its errors are those of the public way (`spark.sql`, `createDataFrame`).
    P2  What is used is not public in Spark; where it may be another, the public way is taken (J1).
    P3  Rows of a scan that stand in a plan are one partition where they are more than ROWS_AS_ROWS: an aggregate over
        two would have Spark plan an exchange.

Source: Spark's parser makes the same plan of `WITH n0 AS (…)`; docs/decisions/0034, 0038.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
from pyspark.sql.dataframe import DataFrame as SparkDataFrame
from pyspark.sql.pandas.serializers import ArrowStreamSerializer

from nyala.env import SYSTEM
from nyala.spark.arrays import as_row
from nyala.spark.jvm import NOT_AS_KNOWN, Jvm, is_known, jvm_of
from nyala.spark.needs import are_told_apart
from nyala.spark.statements import TableUse, with_names, with_placeholders
from nyala.spark.types import arrow_schema
from nyala.spark.unrolled import arrays_of, arrays_wanted, unrolling

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from nyala.spark.reader import HeldLease

__all__ = ["ROWS_AS_ROWS", "FrameOfTasks", "HeldRows", "ScanFrame", "answer"]

# Of so many rows Spark's answer without a job is sooner than any with one; an exchange is worth nothing there.
ROWS_AS_ROWS: Final = 256
# No name of a table or of a WITH of the user's.
_MARK: Final = f"nyala_{SYSTEM.randomness.token_hex(6)}"
_ARRAYS: Final = f"{_MARK}_arrays"
# Lists of columns whose unrolling is kept as a plan.
_PARSED_MAX: Final = 64


@dataclass(frozen=True)
class FrameOfTasks:
    """A scan that tasks read. lease: keeps its files; None: it reads none."""

    frame: DataFrame
    lease: HeldLease | None

    def whole(self) -> DataFrame:
        return self.frame


@dataclass(frozen=True)
class HeldRows:
    """A scan's few rows, to stand in a plan.

    table: in exactly the types of `schema` (`arrow_schema`). arrays: whether many may stand there as arrays.
    """

    spark: SparkSession
    table: pa.Table
    schema: StructType
    arrays: bool = True
    lease: None = None

    def whole(self) -> DataFrame:
        """They, as a DataFrame of their own (P3)."""
        made = _local_frame(self)
        return made.coalesce(1) if self.are_many else made

    @property
    def are_many(self) -> bool:
        return int(self.table.num_rows) > ROWS_AS_ROWS


ScanFrame: TypeAlias = FrameOfTasks | HeldRows
"""A scan that is given to Spark."""


def answer(
    spark: SparkSession, text: str, uses: Sequence[TableUse], frames: Sequence[ScanFrame]
) -> DataFrame:
    """Spark's answer to a statement in which `frames` stand for its uses of tables, in their order.

    Raises: what `spark.sql` does.
    """
    if not frames:
        return spark.sql(text)  # nothing in it is a placeholder
    if is_known(spark):
        with contextlib.suppress(*NOT_AS_KNOWN):
            return _bound(spark, text, uses, frames)
    named: dict[str, Any] = {f"nyala_{number}": frame.whole() for number, frame in enumerate(frames)}
    return spark.sql(with_placeholders(text, uses), **named)


def _local_frame(rows: HeldRows) -> DataFrame:
    if is_known(rows.spark):
        with contextlib.suppress(*NOT_AS_KNOWN):
            return _local(rows)
    return rows.spark.createDataFrame(rows.table, schema=rows.schema)


def _bound(
    spark: SparkSession, text: str, uses: Sequence[TableUse], frames: Sequence[ScanFrame]
) -> DataFrame:
    jvm = jvm_of(spark)
    session: Any = spark._jsparkSession
    # The parser goes by the settings of the session that is active.
    jvm.static("SparkSession", "setActiveSession")(session)
    parse = session.sessionState().sqlParser().parsePlan
    bound, words = [], []
    for number, frame in enumerate(frames):
        name = f"{_MARK}_{number}"
        words.append(name)
        if isinstance(frame, FrameOfTasks):
            plan = frame.frame._jdf.logicalPlan()
        elif frame.are_many and _as_arrays(frame):
            plan = _unrolled(jvm, frame, parse)
        else:
            plan = _local_frame(frame)._jdf.logicalPlan()
            plan = jvm.Repartition(1, False, plan) if frame.are_many else plan
        bound.append(_binding(jvm, name, plan))
    plan = parse(with_names(text, uses, words))
    return SparkDataFrame(jvm.frame(session, jvm.UnresolvedWith(plan, jvm.seq(bound), False)), spark)


def _as_arrays(rows: HeldRows) -> bool:
    return rows.arrays and arrays_wanted(rows.spark, rows.schema) and are_told_apart(rows.schema.names)


def _binding(jvm: Jvm, name: str, plan: Any) -> Any:
    """The plan by a name, for the statement of a WITH."""
    return jvm.Tuple3(name, jvm.SubqueryAlias(jvm.name(name), plan), jvm.none)


def _unrolled(jvm: Jvm, rows: HeldRows, parse: Callable[[str], Any]) -> Any:
    """The rows out of one row of arrays, which stay below every join (`kept_below`)."""
    text = unrolling(_ARRAYS, rows.schema)
    known = jvm.kept.get(text)  # asked once: another thread may empty it
    if known is None:
        if len(jvm.kept) >= _PARSED_MAX:
            jvm.kept.clear()
        columns = jvm.seq([jvm.UnresolvedAttribute.quoted(name) for name in rows.schema.names])
        known = jvm.kept[text] = parse(text), jvm.seq([columns])
    plan, lists = known
    bound = jvm.seq([_binding(jvm, _ARRAYS, _relation(jvm, rows))])
    values = jvm.UnresolvedWith(plan, bound, False)
    return jvm.Repartition(1, False, jvm.Expand(lists, jvm.columns(rows.schema.json()), values))


def _relation(jvm: Jvm, rows: HeldRows) -> Any:
    """The rows as one row of arrays."""
    image = as_row(rows.table, arrow_schema(rows.schema))
    row = jvm.UnsafeRow(len(rows.schema.fields))
    row.pointTo(image, len(image))
    columns = jvm.columns(arrays_of(rows.schema).json())
    return jvm.LocalRelation(columns, jvm.seq([row]), False, jvm.none)


def _local(rows: HeldRows) -> DataFrame:
    spark = rows.spark
    jvm = jvm_of(spark)
    batches = spark.sparkContext._serialize_to_jvm(
        rows.table.to_batches(),
        ArrowStreamSerializer(),
        jvm.static("PythonSQLUtils", "readArrowStreamFromFile"),
        jvm.ArrowIteratorServer,
    )
    return SparkDataFrame(
        jvm.static("PythonSQLUtils", "toDataFrame")(batches, rows.schema.json(), spark._jsparkSession), spark
    )
