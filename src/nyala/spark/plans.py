"""Statements and rows given to Spark in few words: what PySpark says in many, each a turn through its JVM.

    rows of a scan      ──►  Arrow's bytes in a file  ──►  LocalRelation                    (createDataFrame)
    SELECT … FROM n0    ──►  its plan, as Spark's parser makes it
                        ──►  WITH n0 AS (the table's plan) over it                          (spark.sql(text, n0=df))

`spark.sql` with a DataFrame makes a temporary view, which is a command of its own, and drops it afterwards, and with it
what is cached of that DataFrame. A name that is bound by WITH is known to this statement alone. `createDataFrame` asks
the session for eight settings, none of which means anything for rows in Spark's own types.

Invariants
    P1  The answer, its schema and its errors are those of the public way (`spark.sql`, `createDataFrame`).
    P2  What is used is not public in Spark, so only versions in which it was looked at are told this way (KNOWN_IN),
        and where a class is not as it was there, the public way is taken.

Source: Spark's parser makes the same plan of `WITH n0 AS (…)`; docs/decisions/0034.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyspark
from py4j.protocol import Py4JError
from pyspark.sql.dataframe import DataFrame as SparkDataFrame
from pyspark.sql.pandas.serializers import ArrowStreamSerializer

from nyala.env import SYSTEM
from nyala.spark.cluster import is_classic
from nyala.spark.statements import TableUse, with_names, with_placeholders

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from nyala.spark.reader import HeldLease

__all__ = ["KNOWN_IN", "ScanFrame", "answer", "local_frame"]

KNOWN_IN: Final = (["4", "3"],)
# No name of a table or of a WITH of the user's.
_MARK: Final = f"nyala_{SYSTEM.randomness.token_hex(6)}"


@dataclass(frozen=True)
class ScanFrame:
    """A scan that was given to Spark.

    lease:    keeps the files of the scan; None: its rows stand in the plan.
    together: whether its rows are wanted in one partition: an aggregate over two has Spark plan an exchange. `frame`
              does not say so yet; in the plan of a statement it costs nothing, as a DataFrame of its own 3 ms.
    """

    frame: DataFrame
    lease: HeldLease | None
    together: bool = False

    def whole(self) -> DataFrame:
        """The frame with its rows together, if they are wanted so."""
        return self.frame.coalesce(1) if self.together else self.frame


def answer(
    spark: SparkSession, text: str, uses: Sequence[TableUse], frames: Sequence[ScanFrame]
) -> DataFrame:
    """Spark's answer to a statement in which `frames` stand for its uses of tables, in their order.

    Raises: what `spark.sql` does.
    """
    if not frames:
        return spark.sql(text)  # nothing in it is a placeholder
    if _is_known(spark):
        try:
            return _bound(spark, text, uses, frames)
        except Py4JError:  # a class or a parameter that is another there (P2)
            pass
    named: dict[str, Any] = {f"nyala_{number}": frame.whole() for number, frame in enumerate(frames)}
    return spark.sql(with_placeholders(text, uses), **named)


def local_frame(spark: SparkSession, table: pa.Table, schema: StructType) -> DataFrame:
    """The rows as a DataFrame that holds them itself. table: in exactly the types of `schema` (`arrow_schema`)."""
    if _is_known(spark):
        try:
            return _local(spark, table, schema)
        except Py4JError:
            pass
    return spark.createDataFrame(table, schema=schema)


def _is_known(spark: SparkSession) -> bool:
    return is_classic(spark) and pyspark.__version__.split(".")[:2] in KNOWN_IN


@functools.lru_cache(maxsize=1)
class _Jvm:
    """Spark's classes, each looked up once: a name is a search through all that is imported there."""

    def __init__(self, jvm: Any) -> None:
        sql = jvm.org.apache.spark.sql
        logical = sql.catalyst.plans.logical
        self.utils = jvm.PythonSQLUtils
        self.iterator_server = jvm.ArrowIteratorServer
        self.set_active = sql.classic.SparkSession.setActiveSession
        self.of_rows = sql.classic.Dataset.ofRows
        self.with_names = logical.UnresolvedWith
        self.named = logical.SubqueryAlias
        self.repartition = logical.Repartition
        self.name = sql.catalyst.AliasIdentifier
        self.list = jvm.java.util.ArrayList
        self.to_seq = jvm.org.apache.spark.api.python.PythonUtils.toSeq
        self.triple = jvm.scala.Tuple3
        self.none = jvm.scala.Option.empty()


def _bound(
    spark: SparkSession, text: str, uses: Sequence[TableUse], frames: Sequence[ScanFrame]
) -> DataFrame:
    jvm = _Jvm(spark._jvm)
    session: Any = spark._jsparkSession
    names = [f"{_MARK}_{number}" for number in range(len(uses))]
    bound = jvm.list()
    for name, frame in zip(names, frames, strict=True):
        rows = frame.frame._jdf.logicalPlan()
        if frame.together:
            rows = jvm.repartition(1, False, rows)
        plan = jvm.named(jvm.name(name, jvm.to_seq(jvm.list())), rows)
        bound.add(jvm.triple(name, plan, jvm.none))
    # The parser goes by the settings of the session that is active.
    jvm.set_active(session)
    plan = session.sessionState().sqlParser().parsePlan(with_names(text, uses, names))
    return SparkDataFrame(jvm.of_rows(session, jvm.with_names(plan, jvm.to_seq(bound), False)), spark)


def _local(spark: SparkSession, table: pa.Table, schema: StructType) -> DataFrame:
    jvm = _Jvm(spark._jvm)
    batches = spark.sparkContext._serialize_to_jvm(
        table.to_batches(), ArrowStreamSerializer(), jvm.utils.readArrowStreamFromFile, jvm.iterator_server
    )
    return SparkDataFrame(jvm.utils.toDataFrame(batches, schema.json(), spark._jsparkSession), spark)
