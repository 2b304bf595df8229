"""A Spark standalone cluster on four machines, and a bucket on one of them.

    s3         an S3 server (`nyala.testing.S3Server`)
    driver     Spark's master, and the program with the session
    worker1    a worker of Spark
    worker2    another worker

The session of the tests has an executor with one core on each worker. Other sessions may use the
rest.

Spark is the one in PySpark. The environment of each process has credentials with the text `SECRET`,
which occurs nowhere else. So tests can search for it in everything that Spark writes.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import pyspark
from pyspark import SparkContext
from pyspark.sql import SparkSession
from tests.spark.cluster.machines import TEMPORARY, Machine, Network, code_path
from tests.spark.cluster.remote_python import RemotePython
from tests.spark.jvm import OPTIONS, WORKERS, small_jvms

from nyala.testing import S3Server

SECRET: Final = "k7Qx-recognisable-secret-Zp3v"
KEY_ID: Final = "AKIARECOGNISABLE"
MASTER: Final = "spark://driver:7077"
EVENTS: Final = TEMPORARY / "events"
WORKER_NAMES: Final = ("worker1", "worker2")


class Cluster:
    """The running cluster. `driver` has the session and `s3` the server; both call functions."""

    def __init__(self, folder: Path, hidden: Iterable[Path]) -> None:
        self.folder: Final = folder
        self._spark: list[subprocess.Popen[bytes]] = []
        self.pythons: list[RemotePython] = []
        self.network: Final = Network(folder, hidden, ["s3", "driver", *WORKER_NAMES])
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        driver = self.network.machines["driver"]
        self._class(driver, "master.Master", "--host", "driver", "--port", "7077", "--webui-port", "8080")
        self.s3 = self.python("s3")
        self.driver = self.python("driver", "driver.log")
        self.s3.begin(serve)
        self.driver(wait_for_master)
        self.driver.begin(start_session)
        for name in WORKER_NAMES:
            options = ["--host", name, "--cores", "3", "--memory", "4g", "--webui-port", "0"]
            work = ["--work-dir", str(TEMPORARY / "work")]
            self._class(self.network.machines[name], "worker.Worker", *options, *work, MASTER)
        self.endpoint = str(self.s3.answer())
        self.driver.answer()

    def python(self, machine: str, log: str = "python.log") -> RemotePython:
        """Start another Python process in a machine."""
        there = self.network.machines[machine]
        python = RemotePython(there, environment(there), log)
        self.pythons.append(python)
        return python

    def _class(self, machine: Machine, name: str, *arguments: str) -> None:
        """Start a class of Spark, with a log file."""
        spark_class = Path(pyspark.__path__[0]) / "bin" / "spark-class"
        command = [str(spark_class), f"org.apache.spark.deploy.{name}", *arguments]
        self._spark.append(machine.start(command, environment(machine), f"{name}.log"))

    def close(self) -> None:
        """End all processes at once, as if all machines lost power."""
        self.network.close()
        for process in self._spark:
            process.wait()
        for python in self.pythons:
            python.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def environment(machine: Machine) -> dict[str, str]:
    """Return the environment of the processes of a machine."""
    return {
        "PYTHONPATH": os.pathsep.join([str(WORKERS), code_path()]),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_HOME": pyspark.__path__[0],
        "SPARK_LOCAL_IP": machine.address,
        "SPARK_LOCAL_HOSTNAME": machine.name,
        "SPARK_LOCAL_DIRS": str(TEMPORARY / "spark"),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": OPTIONS,
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }


# ── in the machines


_held: dict[str, Any] = {}


def serve() -> str:
    """On machine s3: start the server. Return its endpoint."""
    _held["server"] = S3Server(host=socket.gethostbyname("s3"))
    return server().endpoint


def server() -> S3Server:
    """Return the server, for functions that `Cluster.s3` calls."""
    found: S3Server = _held["server"]
    return found


def wait_until(there: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end, "the cluster did not start: see the logs of its machines"
        time.sleep(0.05)


def alive_workers() -> int:
    """Return how many workers the master knows; 0 while it starts."""
    try:
        with urllib.request.urlopen("http://driver:8080/json/", timeout=10) as answer:
            return int(json.load(answer)["aliveworkers"])
    except OSError:
        return 0


def _listens() -> bool:
    try:
        socket.create_connection(("driver", 7077), 10).close()
    except OSError:
        return False
    return True


def wait_for_master() -> None:
    """Wait for the master, because workers that start earlier would wait for a long time."""
    wait_until(_listens)


def start_session() -> None:
    """On machine driver: start a session with an executor on each worker and with an event log."""
    EVENTS.mkdir()
    small_jvms(TEMPORARY)
    settings = {
        "spark.cores.max": str(len(WORKER_NAMES)),
        "spark.executor.memory": "512m",
        "spark.task.maxFailures": "2",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": EVENTS.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(TEMPORARY / "warehouse"),
    }
    builder = SparkSession.builder.master(MASTER).appName("nyala cluster tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    SparkContext._ensure_initialized()  # starts the JVM while the workers start
    wait_until(
        lambda: alive_workers() == len(WORKER_NAMES)
    )  # otherwise both executors could be on one worker
    spark = _held["session"] = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    wait_until(lambda: hosts() == list(WORKER_NAMES))


def session() -> SparkSession:
    """Return the session, for functions that `Cluster.driver` calls."""
    found: SparkSession = _held["session"]
    return found


def hosts() -> list[str]:
    """Return the hosts of the executors."""
    executors = session().sparkContext._jsc.sc().statusTracker().getExecutorInfos()
    return sorted({one.host() for one in executors} & set(WORKER_NAMES))
