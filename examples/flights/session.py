"""A plain Spark session, as anybody would start one, with its noise kept in a file.

Local if the store is in a folder. If it is in a bucket, Spark's own configuration says where: `spark.master` in
`spark-defaults.conf`, or `PYSPARK_SUBMIT_ARGS="--master spark://host:7077 pyspark-shell"`; otherwise it is local too.
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

# Our own log settings, and only the quick one of the JVM's two compilers: the other would spend more on this
# minute's small jobs than it saves.
LOG4J = Path(__file__).with_name("log4j2.properties").as_uri()
JAVA_OPTIONS = f"-Dlog4j2.configurationFile={LOG4J} -XX:TieredStopAtLevel=1"


def start_spark(log: Path, cores: int = 2, *, on_cluster: bool = False) -> SparkSession:
    """No jar. What Spark, its JVM, its Python workers and Python's loggers print goes to `log`.

    on_cluster: let Spark's configuration choose the master. Otherwise it is `local[cores]`.

    What takes long of it starts in a thread of its own, and this one only waits. So Ctrl-C stays what it was (Spark's
    own handler, which it installs in the main thread, would speak to the JVM in the middle of another call, and fail).
    """
    # Without this the workers run whatever `python3` is first on the PATH.
    if not on_cluster or "PYSPARK_PYTHON" not in os.environ:
        os.environ["PYSPARK_PYTHON"] = sys.executable
    # Py4J tells of an interrupt with a traceback, by the root logger.
    logging.getLogger().addHandler(logging.FileHandler(log))
    settings = SparkConf().setAppName("nyala-flights")
    local = {
        "spark.master": f"local[{cores}]",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }
    # Otherwise a standalone cluster would give all of its cores to the first of the demo's two sessions.
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
        # Of this thread: to others Spark does not tell that `nyala` is a format.
        spark: SparkSession = SparkSession.builder.getOrCreate()
        return spark


@contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    """Processes started inside inherit `log` as their stderr."""
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
