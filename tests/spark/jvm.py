"""Settings of every JVM that a test starts: a compiler and a collector for small jobs, and preloaded Python workers.

PYSPARK_SUBMIT_ARGS carries them as defaults, so that a program's own settings win. The Python workers are loaded
beforehand (`workers/loaded.py`).
"""

from __future__ import annotations

import os
from pathlib import Path

# The JVM's second compiler, and threads that collect garbage beside the others, would spend more than they save.
# Spark's classes are not verified: that is a quarter of the time in which a JVM starts.
OPTIONS = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
WORKERS = Path(__file__).parent / "workers"


def small_jvms(folder: Path) -> None:
    """Set in this process's environment what its JVMs shall be like, and those of its programs.

    folder: for the file of settings.
    """
    # Spark would ask the host's name server for an address that this machine may not have.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(WORKERS), os.environ.get("PYTHONPATH")]))
    settings = folder / "spark.properties"
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--properties-file {settings} pyspark-shell"
    lines = {
        "spark.driver.defaultJavaOptions": OPTIONS,
        "spark.executor.defaultJavaOptions": OPTIONS,
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
    }
    settings.write_text("".join(f"{name} {value}\n" for name, value in lines.items()))
