"""What every JVM has that a test starts: a compiler and a collector for small jobs, an archive of Spark's classes, and
Python workers that are loaded beforehand (`workers/loaded.py`).

Much of the work of a JVM that runs a few jobs is loading classes. With an archive of them it is spared (`java
-XX:SharedArchiveFile`): the program of docs/how-to/spark.md took 9.5 and 10.8 s of the JVM's processor time with it,
16.3 and 15.5 without, and 33.3 with neither this nor the options below (2026-11-22, 2 cores, load 4). A program of its
own makes it, once for each installed Spark and version of Java, and it is kept from run to run, in pytest's cache; who
needs a JVM meanwhile starts it without.

Told by PYSPARK_SUBMIT_ARGS, as defaults: what a program says itself counts. Not by a folder of settings: that would be
on the class path, and for a path with a folder no archive can be made.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pyspark

# The JVM's second compiler, and threads that collect garbage beside the others, would spend more than they save.
OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
WORKERS = Path(__file__).parent / "workers"
PROGRAM = """
import os, sys
os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark.sql import SparkSession
import nyala
import nyala.spark

spark = SparkSession.builder.master("local[2]").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
with nyala.connect("store") as db:
    for name in ("t", "copy"):
        db.create_table(name, {"k": "int64", "v": "int64"}, ["k"], [nyala.hash_partition("k", buckets=2)])
    frame = spark.range(1000).selectExpr("id AS k", "id AS v")
    assert nyala.spark.load(frame, db["t"], tasks=2).inserted == 1000
    format = {"path": "store", "table": "t"}
    frame.where("k < 10").write.format("nyala").options(**format, operation="upsert").mode("append").save()
    read = spark.read.format("nyala").options(**format).load()
    assert read.groupBy((read.k % 3).alias("g")).sum("v").orderBy("g").join(frame, frame.k == 1).count() == 3
    assert nyala.spark.sql(spark, "SELECT sum(v) AS s FROM t WHERE k < 5", store="store").first().s == 10
    changes = spark.readStream.format("nyala").options(**format, changes="true").load().writeStream
    query = changes.format("nyala").options(path="store", table="copy", operation="changes")
    assert query.option("checkpointLocation", "checkpoint").trigger(availableNow=True).start().awaitTermination(200)
spark.stop()
"""


def small_jvms(folder: Path, cache: Path) -> None:
    """Set in this process's environment what the JVMs that it starts shall be like, and those of its programs.

    folder: for what only this run needs. cache: where the archive is, or will be. Cost: of making it, one more start of
            Spark.
    """
    # Spark would ask the host's name server for an address that this machine may not have.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(WORKERS), os.environ.get("PYTHONPATH")]))
    settings = folder / "spark.properties"
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--properties-file {settings} pyspark-shell"
    archive = cache / f"{pyspark.__version__}-{_jars()}-{_java_version()}.jsa"
    making = archive.with_suffix(".making")
    if not archive.exists():
        with contextlib.suppress(FileExistsError):
            making.touch(exist_ok=False)
            try:
                _write(settings, f"{OPTIONS} -XX:ArchiveClassesAtExit={folder}/classes.jsa")
                run = subprocess.run(
                    [sys.executable, "-c", PROGRAM], cwd=folder, capture_output=True, text=True, timeout=280
                )  # fmt: skip
                assert run.returncode == 0, run.stderr[-4000:]
                (folder / "classes.jsa").replace(archive)
            finally:
                making.unlink()
    _write(settings, f"{OPTIONS} -XX:SharedArchiveFile={archive}" if archive.exists() else OPTIONS)


def _write(settings: Path, options: str) -> None:
    lines = {
        "spark.driver.defaultJavaOptions": options,
        "spark.executor.defaultJavaOptions": OPTIONS,  # whose class path is another
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
    }
    settings.write_text("".join(f"{name} {value}\n" for name, value in lines.items()))


def _jars() -> str:
    """Which files Spark's classes are in: of others than those that it was made of a JVM takes no archive, and says so
    where a test reads what a program prints."""
    jars = Path(pyspark.__file__).parent / "jars"
    newest = max(jar.stat().st_mtime_ns for jar in jars.glob("*.jar"))
    return hashlib.sha256(f"{jars} {newest}".encode()).hexdigest()[:8]


def _java_version() -> str:
    java = Path(os.environ["JAVA_HOME"], "bin", "java") if os.environ.get("JAVA_HOME") else "java"
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr
    return "".join(
        letter if letter.isalnum() else "-" for letter in said.splitlines()[1].partition("(build")[2]
    )
