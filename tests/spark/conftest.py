"""One Spark session for all tests that need Spark, because it takes seconds to start."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.jvm import small_jvms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session", autouse=True)
def jvms(tmp_path_factory: pytest.TempPathFactory) -> None:
    small_jvms(tmp_path_factory.mktemp("jvm"))


@pytest.fixture(scope="session")
def spark(jvms: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Return a local session with two cores, without web page, in UTC, whose workers use this
    Python.
    """
    # Without this variable the workers run the first python3 on the PATH.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .appName("nyala tests")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        # Also start a Spark Connect server in the same JVM, at a free port.
        .config("spark.plugins", "org.apache.spark.sql.connect.SparkConnectPlugin")
        .config("spark.connect.grpc.binding.address", "127.0.0.1")
        .config("spark.connect.grpc.binding.port", "0")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def connect_url(spark: SparkSession) -> str:
    """Return the URL of a Connect server. Its clients need a process of their own, without a
    classic session.
    """
    service = spark._jvm.org.apache.spark.sql.connect.service
    port = getattr(getattr(service, "SparkConnectService$"), "MODULE$").localPort()
    return f"sc://127.0.0.1:{port}"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return the path of a store that the test may create."""
    return tmp_path / "store"
