"""Starts a Spark session, with its output in a file.

It is local if the store is in a folder. If the store is in a bucket, Spark's configuration may name
a master: `spark.master` in `spark-defaults.conf`, or `PYSPARK_SUBMIT_ARGS="--master
spark://host:7077 pyspark-shell"`.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

# Log settings, and only the JVM's fast compiler: for small jobs the other one costs more than it saves.
LOG4J = Path(__file__).with_name("log4j2.properties").as_uri()
JAVA_OPTIONS = f"-Dlog4j2.configurationFile={LOG4J} -XX:TieredStopAtLevel=1"


def start_spark(log: Path, cores: int = 2, *, on_cluster: bool = False) -> SparkSession:
    """Start a session without a jar. All output of Spark, its JVM, its Python workers and Python's
    loggers goes to `log`.

    on_cluster: let Spark's configuration choose the master. Otherwise it is `local[cores]`.

    The session starts in another thread, while this one waits. So Spark does not install its own
    handler of Ctrl-C, which it does in the main thread only. That handler would call the JVM in the
    middle of another call, and fail.
    """
    # Without this variable, the workers run the first `python3` on the PATH.
    if not on_cluster or "PYSPARK_PYTHON" not in os.environ:
        os.environ["PYSPARK_PYTHON"] = sys.executable
    # After an interrupt, Py4J logs a traceback by the root logger.
    logging.getLogger().addHandler(logging.FileHandler(log))
    settings = SparkConf().setAppName("nyala-flights")
    local = {
        "spark.master": f"local[{cores}]",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }
    # Otherwise a standalone cluster gives all cores to the first of the two sessions.
    shared = {"spark.cores.max": str(cores)}
    for name, value in {
        **(shared if on_cluster else local),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": JAVA_OPTIONS,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(2 * cores),
    }.items():
        settings.set(name, value)
    started: Future[SparkContext] = Future()

    def start() -> None:
        try:
            started.set_result(SparkContext.getOrCreate(settings))
        except Exception as error:
            started.set_exception(error)

    with _stderr_to(log):
        threading.Thread(target=start, name="starting Spark", daemon=True).start()
        started.result()
        # In this thread, because Spark registers the format `nyala` for the thread's session.
        spark: SparkSession = SparkSession.builder.getOrCreate()
        return spark


@contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    """Let processes that start in the block write their stderr to `log`."""
    sys.stderr.flush()
    kept = os.dup(2)
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.dup2(target, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(target)
