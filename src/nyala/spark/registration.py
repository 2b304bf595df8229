"""`nyala.spark.register`: makes `format("nyala")` known to a session, and checks its executors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nyala.spark.cluster import check_workers, cores_of, tell
from nyala.spark.source.data_source import NyalaDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make `format("nyala")` known to this session, classic or Connect, with the number of tasks that it runs at a time
    now, and check the Pythons of its executors.

    Not needed for the name where Spark finds the package `pyspark_nyala` by itself: wherever Nyala is installed with
    pip. Warns (UserWarning, a sentence each, at each call) when Spark's Python workers do not start, have no Nyala or
    not all that it needs, or have other versions of Python, pyspark, pyarrow or nyala than this program.
    Cost: a small job.
    """
    problems = check_workers(spark)
    # Now that its executors have come. A class that stands in no module is pickled with what it has.
    known = type("RegisteredDataSource", (NyalaDataSource,), {"cores": cores_of(spark)})
    spark.dataSource.register(known)
    tell(problems)
