"""Uses Spark's own plan classes to turn arrays into rows, and to read the optimizer's size
estimates.

    LogicalRDD    declares the binary columns of a DataFrame as arrays c0, c1, …
    posexplode    makes one row per position p of c0, with the values c1[p], c2[p], …
    Expand        changes no row, but Spark moves no step across it. So c1[p], c2[p], … are computed
                  before any join. Otherwise Spark may compute them after the join. Each row in the
                  join would then contain a copy of the whole arrays

Classes are looked up by their full names, because py4j would ask the JVM for each part of
`jvm.org.apache.spark.…`.

Source: the class files of Spark 4.2.1 and 4.3.0; docs/design/spark.md, "Rows are passed as arrays" and
"Private classes of Spark".
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import pyspark
from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JError
from pyspark.sql.dataframe import DataFrame as SparkDataFrame
from pyspark.sql.types import ArrayType, BinaryType, DecimalType, StringType, StructField, StructType

from nyala.spark.cluster import is_classic
from nyala.spark.internals.arrays import LONG_DIGITS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "CLASSES",
    "KNOWN_IN",
    "SETTING",
    "available",
    "can_use_arrays",
    "looks_small",
    "rows_of_arrays",
]

SETTING: Final = "spark.nyala.internals.enabled"
KNOWN_IN: Final = ("4.2", "4.3")
# py4j raises one of these for a class, a method or a parameter that does not exist.
_UNKNOWN: Final = (Py4JError, TypeError)
_SQL: Final = "org.apache.spark.sql"
CLASSES: Final = MappingProxyType(
    {
        "Dataset": f"{_SQL}.classic.Dataset",
        "DataTypeUtils": f"{_SQL}.catalyst.types.DataTypeUtils",
        "Expand": f"{_SQL}.catalyst.plans.logical.Expand",
        "LogicalRDD": f"{_SQL}.execution.LogicalRDD",
        "Option": "scala.Option",
        "PythonUtils": "org.apache.spark.api.python.PythonUtils",
    }
)
# The JVM does not compile Spark's generated code for more columns than this.
ARRAYS_MAX: Final = 40
# Sizes in a Spark row: the header, each field, and the bytes of a text if its length is unknown.
_ROW_BYTES: Final = 8
_FIELD_BYTES: Final = 8
_TEXT_BYTES: Final = 20  # StringType.defaultSize
# Spark estimates the rows of a Parquet table by the size of its files, and users set the broadcast
# limit accordingly. The Parquet files of TPC-H have 0.17 to 0.38 of the size of their rows in
# memory. The factor is in the upper half, because broadcasting a table that is too large costs more
# than not broadcasting a small one.
_FILES_SHARE: Final = 0.3
# Nodes of an optimized plan that read data of known size, or return no more rows than they receive.
_SIZED: Final = re.compile(
    r"[\s:+|-]*(Relation|LocalRelation|Range|OneRowRelation|Project|Filter|Aggregate|Sort|Distinct|Deduplicate"
    r"|GlobalLimit|LocalLimit|Offset|Union|Repartition|RepartitionByExpression|RebalancePartitions)\b"
)


def available(spark: SparkSession) -> bool:
    """Whether Nyala may use Spark's private classes in this session.

    This needs a session without Spark Connect, a Spark version in KNOWN_IN, and the setting
    SETTING, which is on by default.
    """
    version = ".".join(pyspark.__version__.split(".")[:2])
    return is_classic(spark) and version in KNOWN_IN and spark.conf.get(SETTING, "true") == "true"


def looks_small(df: DataFrame, max_bytes: int) -> bool:
    """Whether Spark's optimizer estimates that the DataFrame has at most `max_bytes`.

    Returns False if Spark does not know the sizes of all inputs.
    """
    if not available(df.sparkSession):
        return False
    try:
        plan: Any = df._jdf.queryExecution().optimizedPlan()
        if int(plan.stats().sizeInBytes()) > max_bytes:
            return False
        return all(_SIZED.match(line) for line in plan.toString().splitlines())
    except Exception:  # an invalid DataFrame raises this error again when it runs
        return False


def can_use_arrays(spark: SparkSession, schema: StructType) -> bool:
    """Whether tasks may return rows of this schema as arrays.

    Spark's code generation must be on: without it, each row would contain a copy of its arrays.
    ANSI mode must be on: without it, array elements become nullable, which changes the schema.
    """
    if not available(spark) or sys.byteorder != "little" or not 0 < len(schema.fields) <= ARRAYS_MAX:
        return False
    return all(
        spark.conf.get(name) == "true" for name in ("spark.sql.codegen.wholeStage", "spark.sql.ansi.enabled")
    )


def rows_of_arrays(
    frame: DataFrame, schema: StructType, rows: int, text_bytes: Mapping[str, float]
) -> DataFrame | None:
    """Turn the arrays in the binary columns of `frame` back into rows, one for each position.

    frame:      what `as_arrays` returned. Each binary value is an array with values of one column.
    schema:     the schema of the rows.
    rows:       an estimate of the number of rows.
    text_bytes: by column, the mean length of text and binary values, if known.

    Spark needs rows and text_bytes to decide which side of a join it broadcasts. Returns None if
    this version of Spark does not have the private classes that this function uses.
    """
    try:
        return _pinned_below_joins(
            _unrolled(_declared(frame, schema, _size_in_files(schema, rows, text_bytes)), schema)
        )
    except _UNKNOWN:
        return None


def _class(spark: SparkSession, name: str) -> Any:
    gateway: Any = spark.sparkContext._gateway
    return JavaClass(CLASSES[name], gateway._gateway_client)


def _frame(spark: SparkSession, plan: Any) -> DataFrame:
    session: Any = spark._jsparkSession
    return SparkDataFrame(_class(spark, "Dataset").ofRows(session, plan), spark)


def _declared(frame: DataFrame, schema: StructType, size_bytes: int) -> DataFrame:
    """Return the DataFrame with array columns c0, c1, … in place of binary ones.

    The result also has a size estimate, by which Spark chooses how to join.

    `as_arrays` wrote each binary value as the bytes of a Spark array. So only the declared type of
    the columns changes, and no value is converted.

    schema:     for each column, the type of the array's elements.
    size_bytes: the size estimate.
    """
    spark = frame.sparkSession
    session: Any = spark._jsparkSession
    arrays = StructType(
        [
            StructField(f"c{number}", ArrayType(field.dataType, field.nullable), False)
            for number, field in enumerate(schema.fields)
        ]
    )
    declared = session.parseDataType(arrays.json())
    made = session.internalCreateDataFrame(frame._jdf.queryExecution().toRdd(), declared, False).logicalPlan()
    # py4j cannot create a size estimate. So take the estimate of a range of numbers of this size.
    estimate = session.range(max(1, size_bytes // 8)).queryExecution().optimizedPlan().stats()
    option = _class(spark, "Option")
    none = option.empty()
    more = () if pyspark.__version__.startswith("4.2") else (False,)  # 4.3 added a parameter
    plan = _class(spark, "LogicalRDD")(
        made.output(), made.rdd(), made.outputPartitioning(), made.outputOrdering(), False, none, session,
        option.apply(estimate), none, *more,
    )  # fmt: skip
    return _frame(spark, plan)


def _size_in_files(schema: StructType, rows: int, text_bytes: Mapping[str, float]) -> int:
    """Estimate the size that the rows would have in Parquet files."""
    row_bytes = float(_ROW_BYTES)
    for field in schema.fields:
        row_bytes += _FIELD_BYTES
        if isinstance(field.dataType, StringType | BinaryType):
            row_bytes += text_bytes.get(field.name, _TEXT_BYTES)
        elif isinstance(field.dataType, DecimalType) and field.dataType.precision > LONG_DIGITS:
            row_bytes += 16
    return round(rows * row_bytes * _FILES_SHARE)


def _unrolled(arrays: DataFrame, schema: StructType) -> DataFrame:
    """Return a DataFrame that has one row for each position in the arrays of a row.

    For example, a row with the arrays c0 = [1, 2] and c1 = ['a', 'b'] becomes two rows: (1, 'a')
    and (2, 'b').

    arrays: a DataFrame with one array column (c0, c1, …) for each field of `schema`.
    """
    names = ["`" + field.name.replace("`", "``") + "`" for field in schema.fields]
    if len(names) == 1:
        return arrays.selectExpr(f"explode(c0) AS {names[0]}")
    # Spark copies each value of the exploded column, so prefer a column that is not text or binary.
    first = next(
        (n for n, f in enumerate(schema.fields) if not isinstance(f.dataType, StringType | BinaryType)), 0
    )
    values = (f"{'v' if n == first else f'c{n}[p]'} AS {name}" for n, name in enumerate(names))
    exploded = arrays.selectExpr("*", f"posexplode(c{first}) AS (p, v)")
    # One expression for all columns, because each expression costs several calls into the JVM.
    return exploded.selectExpr(f"struct({', '.join(values)}) AS row").select("row.*")


def _pinned_below_joins(rows: DataFrame) -> DataFrame:
    """Return a DataFrame with the same rows, whose expressions Spark evaluates before any join.

    The expressions in the plan of `rows` take each row's values from arrays. Without this function,
    Spark would move them above a semi or anti join (EXISTS, IN), to evaluate them for fewer rows.
    Then each row would contain a copy of its arrays during the join. So this function puts an
    Expand node on top of the plan, because Spark moves nothing above an Expand. An Expand returns
    each row once for each of its lists of expressions. Here it has one list, so it changes nothing.

    rows: from `_unrolled`, which makes rows from arrays.
    """
    spark: Any = rows.sparkSession
    plan = rows._jdf.queryExecution().analyzed()
    attributes = _class(spark, "DataTypeUtils").toAttributes(rows._jdf.schema())
    lists = _class(spark, "PythonUtils").toSeq([plan.output()])
    return _frame(spark, _class(spark, "Expand")(lists, attributes, plan))
