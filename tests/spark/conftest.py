"""One Spark session for all tests that need Spark: starting one takes seconds and a JVM."""

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
    """A local session with two cores, no web page, UTC, and this very Python for its workers."""
    # Without it the workers run whatever python3 is first on the PATH.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .appName("nyala tests")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        # Beside it, in the same JVM, a Spark Connect server at a port of its own choice.
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
    """Where the Connect server is, for a client in another process: one process has sessions of one kind."""
    service = spark._jvm.org.apache.spark.sql.connect.service
    port = getattr(getattr(service, "SparkConnectService$"), "MODULE$").localPort()
    return f"sc://127.0.0.1:{port}"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Where a test may make its store."""
    return tmp_path / "store"
