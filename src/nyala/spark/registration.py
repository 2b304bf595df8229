"""`nyala.spark.register`: registers `format("nyala")` with a session, and checks the Python of its
executors.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nyala.spark.arguments import address_of_store, spark_options
from nyala.spark.cluster import check_workers, cores_of, warn_of
from nyala.spark.source.data_source import NyalaDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nyala.api.database import Database

__all__ = ["register"]


def register(
    spark: SparkSession,
    path: str | os.PathLike[str] | Database | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Register `format("nyala")` with a session and check the Python of its executors.

    On a cluster, call it after the executors have started. The call counts the session's cores, and
    later reads choose their number of tasks by this count. The call runs one small job.
    `format("nyala")` also works without this call, because Spark finds a Nyala that pip installed.

    Parameters
    ----------
    spark
        The SparkSession, classic or Connect.
    path
        The store that `format("nyala")` uses if its options have no path: a folder, a URL or an
        open Database.
    storage_options
        For a URL: options of `nyala.connect`, without credentials. Every executor takes credentials
        from its own environment, or from the `credentials_file`.

    Raises
    ------
    InvalidArgumentError
        `path` is not a folder, URL or Database, or a storage option is unknown or a secret.

    Warns
    -----
    UserWarning
        One warning for each problem, at each call: Spark's Python workers do not start, lack Nyala
        or one of its dependencies, or have other versions of Python, pyspark, pyarrow or nyala.

    Examples
    --------
    ```python
    nyala.spark.register(spark)
    spark.read.format("nyala").options(path="store", table="flights").load().count()

    nyala.spark.register(spark, "s3://bucket/shop", storage_options={"region": "eu-central-1"})
    spark.read.format("nyala").option("table", "flights").load().count()
    ```
    """
    default_store = (
        {} if path is None else spark_options(address_of_store(path, "nyala.spark.register", storage_options))
    )
    problems = check_workers(spark)
    # After the check, so that the executors have started and `cores` counts them.
    # Spark pickles a class without a module by value, so the workers get these attributes.
    attributes = {"cores": cores_of(spark), "default_store": default_store}
    spark.dataSource.register(type("RegisteredDataSource", (NyalaDataSource,), attributes))
    warn_of(problems)
