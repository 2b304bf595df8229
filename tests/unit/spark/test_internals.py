"""Only `nyala.spark.internals` uses private names of Spark, PySpark and py4j."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import nyala

SOURCES = Path(nyala.__file__).parents[1]
INTERNALS = SOURCES / "nyala" / "spark" / "internals"
# Attributes of PySpark's objects that lead to the JVM, and private names of its workers.
ATTRIBUTE = re.compile(
    r"_(jvm|jdf|jc|jsc|sc|jsparkSession|jconf|jmap|jwrite|jreader|jtracker|gateway|gateway_client|serialize_to_jvm)|f_locals"
)
MODULE = re.compile(
    r"py4j(\..*)?|pyspark\.(.*\.)?(_.*|classic(\..*)?|serializers|java_gateway|worker.*|daemon)"
)


def private_uses(text: str) -> list[str]:
    """Return the private attributes and modules that a source uses."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and ATTRIBUTE.fullmatch(node.attr):
            found.append(node.attr)
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if MODULE.fullmatch(alias.name)]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [name for name in names if MODULE.fullmatch(node.module) or MODULE.fullmatch(name)]
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and "org.apache.spark.sql" in node.value
        ):
            if not (" " in node.value or "\n" in node.value):
                found.append(node.value)
    return found


def test_the_check_knows_private_names() -> None:
    for text in (
        "df._jdf.queryExecution()",
        "spark._jsparkSession",
        "import py4j.java_gateway",
        "from py4j.protocol import Py4JError",
        "from pyspark.sql.classic.column import Column",
        "from pyspark.serializers import read_int",
        "'org.apache.spark.sql.classic.Dataset'",
    ):
        assert private_uses(text), text
    assert not private_uses("from pyspark.sql import functions as F; spark.sparkContext.statusTracker()")


def test_only_internals_uses_private_names_of_spark() -> None:
    sources = [*SOURCES.joinpath("nyala").rglob("*.py"), *SOURCES.joinpath("pyspark_nyala").rglob("*.py")]
    found = {
        str(path): private_uses(path.read_text())
        for path in sources
        # `f_locals` of a program that calls `db.sql`, which is not about Spark.
        if INTERNALS not in path.parents and path.parts[-2:] != ("sql", "rights.py")
    }
    assert {path: names for path, names in found.items() if names} == {}
    assert private_uses((INTERNALS / "plans.py").read_text())
