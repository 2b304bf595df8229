"""Settings of the JVMs that tests start: a compiler and a garbage collector for short jobs, and
preloaded workers.

They are defaults in PYSPARK_SUBMIT_ARGS, so a program's own settings override them. Python workers
are preloaded by `workers/loaded.py`.
"""

from __future__ import annotations

import os
from pathlib import Path

# For short jobs, the JVM's second compiler and concurrent garbage collection cost more than they
# save. Not verifying Spark's classes saves a quarter of the start of a JVM.
OPTIONS = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
WORKERS = Path(__file__).parent / "workers"


def small_jvms(folder: Path) -> None:
    """Set the environment of this process for its JVMs and those of its programs. folder: for the
    file with the settings.
    """
    # Otherwise Spark resolves the host's name, which may give an address that this machine does not have.
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
