"""Spark's own classes, which no public call reaches: where each lies in its JVM, and in which versions they are known.

    made_of_digits     MakeDecimal                        `digits`
    retyped            LogicalRDD                         `unrolled`
    kept_below         Expand                             `unrolled`
    statements         UnresolvedWith, LocalRelation, …   `plans`

py4j asks the JVM for each part of a name that is written as `jvm.org.apache.spark.…`, and for a static method each time
that it is named. A class by its full name costs nothing until it is called, and methods are kept here.

Invariants
    J1  What is told Spark with them is a shorter or quicker way to what a public one gives too, and there the public
        one is taken: where the version is none of KNOWN_IN, with Spark Connect, and where a class or a parameter is
        another all the same, as in a Spark that somebody has changed (NOT_AS_KNOWN).

Source: the class files of Spark 4.2.1 and 4.3.0; docs/decisions/0066.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import pyspark
from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JError

from nyala.lazy_values import LazyValues, lazy_value
from nyala.spark.cluster import is_classic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CLASSES", "KNOWN_IN", "NOT_AS_KNOWN", "Jvm", "is_known", "jvm_of"]

KNOWN_IN: Final = ("4.2", "4.3")
# What py4j raises of a class, a method or a parameter that is not there.
NOT_AS_KNOWN: Final = (Py4JError, TypeError)

_SQL: Final = "org.apache.spark.sql"
_LOGICAL: Final = f"{_SQL}.catalyst.plans.logical"
_EXPRESSIONS: Final = f"{_SQL}.catalyst.expressions"
CLASSES: Final = MappingProxyType(
    {
        # plans
        "Dataset": f"{_SQL}.classic.Dataset",
        "SparkSession": f"{_SQL}.classic.SparkSession",
        "AliasIdentifier": f"{_SQL}.catalyst.AliasIdentifier",
        "Expand": f"{_LOGICAL}.Expand",
        "LocalRelation": f"{_LOGICAL}.LocalRelation",
        "LogicalRDD": f"{_SQL}.execution.LogicalRDD",
        "Repartition": f"{_LOGICAL}.Repartition",
        "SubqueryAlias": f"{_LOGICAL}.SubqueryAlias",
        "UnresolvedWith": f"{_LOGICAL}.UnresolvedWith",
        # what stands in them
        "DataType": f"{_SQL}.types.DataType",
        "DataTypeUtils": f"{_SQL}.catalyst.types.DataTypeUtils",
        "ExpressionUtils": f"{_SQL}.classic.ExpressionUtils",
        "MakeDecimal": f"{_EXPRESSIONS}.MakeDecimal",
        "UnresolvedAttribute": f"{_SQL}.catalyst.analysis.UnresolvedAttribute",
        "UnsafeRow": f"{_EXPRESSIONS}.UnsafeRow",
        "UnscaledValue": f"{_EXPRESSIONS}.UnscaledValue",
        # the way there
        "ArrowIteratorServer": f"{_SQL}.api.python.ArrowIteratorServer",
        "PythonSQLUtils": f"{_SQL}.api.python.PythonSQLUtils",
        "Option": "scala.Option",
        "Tuple3": "scala.Tuple3",
        "Cons": "scala.collection.immutable.$colon$colon",
        "Nil": "scala.collection.immutable.Nil$",
    }
)


def _version() -> str:
    """The first two numbers of Spark's."""
    return ".".join(pyspark.__version__.split(".")[:2])


def is_known(spark: SparkSession) -> bool:
    """Whether this Spark may be told things by its own classes (J1)."""
    return is_classic(spark) and _version() in KNOWN_IN


class Jvm(LazyValues):
    """The classes of one JVM, as attributes: CLASSES has their names. And what is made of them again and again."""

    def __init__(self, client: Any) -> None:
        """client: py4j's, of a gateway."""
        self._classes = {name: JavaClass(path, client) for name, path in CLASSES.items()}
        self._methods: dict[str, Any] = {}
        # Statements as plans, and what goes with them, by their texts (`plans`).
        self.kept: dict[str, tuple[Any, Any]] = {}

    def __getattr__(self, name: str) -> Any:
        found = self._classes.get(name)
        if found is None:
            raise AttributeError(name)
        return found

    def static(self, name: str, method: str) -> Any:
        """A static method of the class."""
        known = f"{name}.{method}"
        if known not in self._methods:
            self._methods[known] = getattr(getattr(self, name), method)
        return self._methods[known]

    @lazy_value
    def none(self) -> Any:
        return self.Option.empty()

    @lazy_value
    def _nil(self) -> Any:
        return getattr(self.Nil, "MODULE$")

    def seq(self, items: Sequence[Any]) -> Any:
        """A Seq of Scala's. A call for each item, and none besides."""
        return functools.reduce(lambda rest, item: self.Cons(item, rest), reversed(items), self._nil)

    @lazy_value
    def name(self) -> Any:
        """An AliasIdentifier, by its text."""
        return functools.lru_cache(64)(lambda text: self.AliasIdentifier(text, self._nil))

    @lazy_value
    def type(self) -> Any:
        """A DataType, by its JSON."""
        return functools.lru_cache(64)(lambda json: self.DataType.fromJson(json))

    def attributes(self, schema: Any) -> Any:
        """The columns of Java's StructType as new attributes of a plan."""
        return self.static("DataTypeUtils", "toAttributes")(schema)

    def columns(self, json: str) -> Any:
        """As `attributes`, of a schema by its JSON."""
        return self.attributes(self.type(json))

    def frame(self, session: Any, plan: Any) -> Any:
        """Java's DataFrame of a logical plan."""
        return self.static("Dataset", "ofRows")(session, plan)

    def rdd_with_statistics(self, session: Any, rdd_plan: Any, statistics: Any) -> Any:
        """The LogicalRDD with an estimate of what it is."""
        more = () if _version() == "4.2" else (False,)  # a parameter that came with 4.3
        return self.LogicalRDD(
            rdd_plan.output(), rdd_plan.rdd(), rdd_plan.outputPartitioning(), rdd_plan.outputOrdering(), False,
            self.none, session, self.Option.apply(statistics), self.none, *more,
        )  # fmt: skip


@functools.lru_cache(maxsize=1)
def _jvm_of(client: Any) -> Jvm:
    return Jvm(client)


def jvm_of(spark: SparkSession) -> Jvm:
    """Of a classic session."""
    gateway: Any = spark.sparkContext._gateway
    return _jvm_of(gateway._gateway_client)
