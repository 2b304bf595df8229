"""Making the format known to a session."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import nyala
import nyala.spark


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
