"""Arrays in a plan of Spark's, and the rows that it unrolls from them.

    binary columns of a frame's tasks          ──►  retyped   the same rows, said to be arrays: LogicalRDD
    rows that the driver holds                 ──►  as_row    one row of arrays: LocalRelation (`plans`)
    arrays c0, c1, …                           ──►  posexplode(c0), and c1[p], c2[p] … at its place p

`arrays` says how an array lies in memory; this is what Spark is told of it. That binary columns are arrays is said by
py4j, with a call that is Spark's own business (`internalCreateDataFrame`), as more of this is. What raises NOT_AS_KNOWN
here is for who calls to catch (J1).

Source: docs/decisions/0027, 0037, 0038.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.dataframe import DataFrame as SparkDataFrame
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    DecimalType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
)

from nyala.spark.arrays import LONG_DIGITS
from nyala.spark.jvm import is_known, jvm_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "ARRAYS_MAX",
    "arrays_of",
    "arrays_wanted",
    "carried_in",
    "kept_below",
    "retyped",
    "size_in_files",
    "unrolled",
    "unrolling",
]

# Spark's generated code for more columns than this is too long for the JVM to compile.
ARRAYS_MAX: Final = 40
# Of a row of Spark's: what stands before its fields, and each field, beside the bytes of texts.
_ROW_BYTES: Final = 8
_FIELD_BYTES: Final = 8
_TEXT_BYTES: Final = 20  # StringType.defaultSize
_PLACE_BYTES: Final = 4  # of posexplode
# What Spark has for a value's size, by the name of its type, where it is not 8.
_DEFAULTS: Final = {
    "boolean": 1, "byte": 1, "short": 2, "integer": 4, "float": 4, "date": 4, "string": 20, "binary": 100,
}  # fmt: skip
# What Spark takes for the size of Parquet's files is theirs on disk, and so its limit for what it sends to all
# executors is set: of the tables of TPC-H 0.17 to 0.38 of what their rows are in memory. Rather too large: what is sent
# in vain costs more than what is not.
_FILES_SHARE: Final = 0.3
# In how many bytes whole numbers may travel, and as what; and how many the types have in which they arrive.
_CARRIERS: Final[dict[int, DataType]] = {1: ByteType(), 2: ShortType(), 4: IntegerType()}
_WHOLE: Final[dict[type[DataType], int]] = {ShortType: 2, IntegerType: 4, LongType: 8}


def arrays_wanted(spark: SparkSession, schema: StructType) -> bool:
    """Whether rows can travel as arrays (F3): what lies in Spark's rows as `arrays` writes it is its own business."""
    if not is_known(spark):
        return False
    if sys.byteorder != "little" or not 0 < len(schema.fields) <= ARRAYS_MAX:
        return False
    whole, ansi = (
        spark.conf.get(name) for name in ("spark.sql.codegen.wholeStage", "spark.sql.ansi.enabled")
    )
    return whole == "true" and ansi == "true"


def carried_in(schema: StructType, bounds: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """In how many bytes columns of whole numbers travel (F4): by name, those that need fewer than their type has.

    bounds: (least, greatest) of a column's values.
    """
    found = {}
    for field in schema.fields:
        own = _WHOLE.get(type(field.dataType))
        if own is not None and field.name in bounds:
            least, greatest = bounds[field.name]
            needed = next(
                (
                    width
                    for width in _CARRIERS
                    if -(1 << 8 * width - 1) <= least and greatest < 1 << 8 * width - 1
                ),
                own,
            )
            if needed < own:
                found[field.name] = needed
    return found


def arrays_of(schema: StructType, widths: Mapping[str, int] = MappingProxyType({})) -> StructType:
    """The columns as arrays, named c0, c1, … widths: as `carried_in` has them."""
    return StructType(
        [
            StructField(
                f"c{number}",
                ArrayType(_CARRIERS[widths[f.name]] if f.name in widths else f.dataType, f.nullable),
                False,
            )
            for number, f in enumerate(schema.fields)
        ]
    )


def retyped(
    spark: SparkSession, frame: DataFrame, schema: StructType, widths: Mapping[str, int], size_bytes: float
) -> DataFrame:
    """The rows of `frame`, binary columns, as what they hold: arrays of the schema's types, named c0, c1, …

    widths:     as `carried_in` has them.
    size_bytes: what Spark is to take for the size of the rows that are unrolled. By it Spark decides what it sends to
                all executors for a join.
    """

    session: Any = spark._jsparkSession
    held = session.parseDataType(arrays_of(schema, widths).json())
    made = session.internalCreateDataFrame(frame._jdf.queryExecution().toRdd(), held, False)
    # From what is unrolled to the rows Spark reckons by the default sizes of both: what travels in few bytes grows.
    row = session.parseDataType(arrays_of(schema).json()) if widths else held
    place_bytes = _PLACE_BYTES if len(schema.fields) > 1 else 0
    size_bytes *= (held.defaultSize() + place_bytes + _ROW_BYTES) / (row.defaultSize() + _ROW_BYTES)
    return SparkDataFrame(_sized(spark, made, round(size_bytes)), spark)


def size_in_files(
    schema: StructType, rows: int, text_bytes: Mapping[str, float], passing: Sequence[str] = ()
) -> float:
    """What Spark would take for the size of so many rows, if they lay in files of Parquet's.

    text_bytes: what a value takes, of columns of text and binary; without it, what Spark has for their type.
    passing:    columns that Spark drops before it asks for the size. It takes them off as if each value were as long as
                its type's default, so a long text would stay in what is left: the size is right when they are gone.
    """

    def beside(field: StructField) -> float:
        if isinstance(field.dataType, StringType | BinaryType):
            return text_bytes.get(field.name, _TEXT_BYTES)
        return 16 if isinstance(field.dataType, DecimalType) and field.dataType.precision > LONG_DIGITS else 0

    staying = [field for field in schema.fields if field.name not in passing] or schema.fields
    row_bytes = _ROW_BYTES + sum(_FIELD_BYTES + beside(field) for field in staying)
    taken_off = _default_bytes(schema.fields) / _default_bytes(staying)
    return rows * row_bytes * taken_off * _FILES_SHARE


def _default_bytes(fields: Sequence[StructField]) -> int:
    """What Spark takes for the size of a row of which it knows only the types."""
    return _ROW_BYTES + sum(_default_of(field.dataType) for field in fields)


def _default_of(type: DataType) -> int:
    if isinstance(type, DecimalType):
        return 8 if type.precision <= LONG_DIGITS else 16
    return _DEFAULTS.get(type.typeName(), 8)


def _sized(spark: SparkSession, made: Any, size_bytes: int) -> Any:
    """The frame with an estimate of its size, without which Spark holds it for huge."""
    session: Any = spark._jsparkSession
    jvm = jvm_of(spark)
    # Of an estimate py4j can pass on only a whole one: that of as many numbers as have this size.
    known = session.range(max(1, size_bytes // 8)).queryExecution().optimizedPlan().stats()
    return jvm.frame(session, jvm.rdd_with_statistics(session, made.logicalPlan(), known))


def unrolled(arrays: DataFrame, schema: StructType, widths: Mapping[str, int]) -> DataFrame:
    """A row for each place of the arrays, in the types of the schema. widths: as `carried_in` has them."""
    if len(schema.fields) == 1:
        field, name = schema.fields[0], _quoted(schema.fields[0])
        unrolled = arrays.selectExpr(f"explode(c0) AS {name}")
        return unrolled.selectExpr(f"{_own(name, field, widths)} AS {name}") if widths else unrolled
    first = _first(schema)
    unrolled = arrays.selectExpr("*", f"posexplode(c{first}) AS (p, v)")
    # One expression: each takes Python some calls into the JVM.
    return unrolled.selectExpr(f"struct({_values(schema, first, widths)}) AS row").select("row.*")


def kept_below(rows: DataFrame) -> DataFrame:
    """The same rows; what takes them from their arrays stays below every join.

    Spark draws what makes columns of others above a semi or anti join (EXISTS, IN), so that it is done for fewer rows.
    Here each row would take its whole arrays through the join. Nothing is drawn above an Expand, which gives each row
    once for each list of expressions: once. Other columns that it has not are left out below it as ever.
    """
    session: Any = rows.sparkSession
    jvm = jvm_of(session)
    plan = rows._jdf.queryExecution().analyzed()
    attributes = jvm.attributes(rows._jdf.schema())
    kept = jvm.Expand(jvm.seq([plan.output()]), attributes, plan)
    return SparkDataFrame(jvm.frame(session._jsparkSession, kept), session)


def unrolling(arrays: str, schema: StructType) -> str:
    """The SELECT that `unrolled` is, over arrays with that name, each value in its own type."""
    first = _first(schema)
    return f"SELECT {_values(schema, first, {})} FROM {arrays} LATERAL VIEW posexplode(c{first}) u AS p, v"


def _first(schema: StructType) -> int:
    """The column that is unrolled: of it each value is looked at, needed or not. Not text, if there is another."""
    fixed = [n for n, f in enumerate(schema.fields) if not isinstance(f.dataType, StringType | BinaryType)]
    return fixed[0] if fixed else 0


def _values(schema: StructType, first: int, widths: Mapping[str, int]) -> str:
    return ", ".join(
        f"{_own('v' if number == first else f'c{number}[p]', field, widths)} AS {_quoted(field)}"
        for number, field in enumerate(schema.fields)
    )


def _own(value: str, field: StructField, widths: Mapping[str, int]) -> str:
    """The value in its own type."""
    return f"CAST({value} AS {field.dataType.simpleString()})" if field.name in widths else value


def _quoted(field: StructField) -> str:
    return "`" + field.name.replace("`", "``") + "`"
