"""Making the format known to a session."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import nyala
import nyala.spark
from nyala.spark import cluster
from nyala.spark.cluster import problems


def test_the_format_is_known_by_itself_and_by_a_call(spark: SparkSession, store: Path) -> None:
    """Installed with pip, `format("nyala")` needs no call; a call does no harm, twice neither, and warns of nothing."""
    with nyala.connect(store) as db:
        db.create_table("t", {"k": "int64"}, ["k"]).insert({"k": [1]})
    read = spark.read.format("nyala").options(path=str(store), table="t")
    assert read.load().count() == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nyala.spark.register(spark)
        nyala.spark.register(spark)
    assert read.load().count() == 1


def test_another_python_is_told(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without PYSPARK_PYTHON Spark's workers run some python3 that may not have Nyala: the cure is said early."""
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/usr/bin/some-python3")
    try:
        with pytest.warns(UserWarning, match="PYSPARK_PYTHON"):
            nyala.spark.register(spark)
    finally:
        # What was registered remembers that Python for the rest of the session, which other tests share.
        monkeypatch.undo()
        nyala.spark.register(spark)


def test_other_versions_are_told(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each executor's Python is asked, and what differs from this program's is said with both versions."""
    mine = cluster._mine()
    monkeypatch.setattr(cluster, "_mine", lambda: mine | {"pyarrow": "1.2.3"})
    with pytest.warns(
        UserWarning, match=r"have pyarrow \d[\d.]*, this program has 1\.2\.3: set the environment"
    ):
        nyala.spark.register(spark)


def test_what_differs_is_said_once_and_what_does_not_matter_is_not() -> None:
    """The minor version of Python, the major one of pyarrow, all of pyspark's and ours; a package that is missing."""
    mine = {"python": "3.11.7", "pyspark": "4.3.0", "pyarrow": "26.0.1", "nyala": "0.1.0"}
    same = {**mine, "host": "a", "executable": "/p", "python": "3.11.2", "pyarrow": "26.1.0"}
    assert problems(mine, [same, same]) == []
    newer = same | {"python": "3.12.0"}
    found = problems(mine, [same, newer, newer, same | {"host": "b", "nyala": None}])
    assert [text.split(":")[0] for text in found] == [
        "Spark's Python workers (/p on a) have Python 3.12.0, this program has 3.11.7",
        "Spark's Python workers (/p on b) have no nyala",
    ]
