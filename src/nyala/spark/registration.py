"""`nyala.spark.register`: registers `format("nyala")` with a session and checks its executors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nyala.spark.cluster import check_workers, cores_of, tell
from nyala.spark.source.data_source import NyalaDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Register `format("nyala")` with a session and check the Python of its executors.

    Call it on a cluster after the executors have started: reads then use the session's number of cores.
    It runs one small job. The name `nyala` itself needs no call: Spark finds a Nyala that pip installed.

    Parameters
    ----------
    spark
        The SparkSession, classic or Connect.

    Warns
    -----
    UserWarning
        One warning for each problem, at each call: Spark's Python workers do not start, lack Nyala or
        one of its dependencies, or have other versions of Python, pyspark, pyarrow or nyala.

    Examples
    --------
    ```python
    nyala.spark.register(spark)
    spark.read.format("nyala").options(path="store", table="flights").load().count()
    ```
    """
    problems = check_workers(spark)
    # After the check, so that the executors have started and `cores` counts them.
    # Spark pickles a class that no module holds by value, so the workers get `cores` too.
    known = type("RegisteredDataSource", (NyalaDataSource,), {"cores": cores_of(spark)})
    spark.dataSource.register(known)
    tell(problems)
