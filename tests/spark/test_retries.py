"""Tasks that fail after their work is done, and run again: each row is written once.

In a program of its own, each function that writes files in tasks fails at its first call, after it
has written. Spark then runs the task again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.spark.jvm import WORKERS

HOOK = """
import importlib.abc, importlib.util, os, sys

FAILING = {
    "nyala.tablet.jobs.load_write": "write_tablet",
    "nyala.tablet.compaction.file_jobs": "run",
    "nyala.backup.write": "write_part",
}

def wrap(function, module):
    def failing(*args, **kwargs):
        found = function(*args, **kwargs)
        job = open("job").read() if os.path.exists("job") else ""
        if job and os.getpid() != int(open("driver").read()):
            try:
                os.close(os.open(f"failed-{job}-{module}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return found
            raise RuntimeError("once")
        return found
    return failing

class Hook(importlib.abc.MetaPathFinder):
    def find_spec(self, wanted, path, target=None):
        if wanted not in FAILING or wanted in done:
            return None
        done.add(wanted)
        spec = importlib.util.find_spec(wanted)
        run = spec.loader.exec_module
        def exec_module(made):
            run(made)
            setattr(made, FAILING[wanted], wrap(getattr(made, FAILING[wanted]), wanted))
        spec.loader.exec_module = exec_module
        return spec

done = set()
sys.meta_path.insert(0, Hook())
import loaded
"""

PROGRAM = """
import os, pathlib, sys
os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark.sql import SparkSession

import nyala
import nyala.spark
from tests.spark.test_kills import files_nobody_needs

spark = SparkSession.builder.master("local[2,3]").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
pathlib.Path("driver").write_text(str(os.getpid()))
rows = {}

def after(job, module):
    assert pathlib.Path(f"failed-{job}-{module}").exists(), f"no task of {job} failed"
    assert table.scan(order_by_key=True).to_arrow().to_pylist() == [{"k": k, "v": rows[k]} for k in sorted(rows)], job
    db._writer().collect_garbage()
    left = files_nobody_needs(pathlib.Path("store"), db)
    assert left == [], (job, left)

with nyala.connect("store", maintenance=False) as db:
    table = db.create_table("t", {"k": "int64", "v": "int64"}, ["k"], [nyala.hash_partition("k", buckets=2)])
    def frame(begin, end, v):
        return spark.range(begin, end, 1, 2).selectExpr("id AS k", f"{v} AS v")
    pathlib.Path("job").write_text("load")
    assert nyala.spark.load(frame(0, 1000, "id"), table, tasks=2).inserted == 1000
    rows.update({k: k for k in range(1000)})
    after("load", "nyala.tablet.jobs.load_write")
    pathlib.Path("job").write_text("upsert")
    done = nyala.spark.upsert(frame(500, 1500, "-id"), table, tasks=2)
    assert (done.inserted, done.updated) == (500, 500)
    rows.update({k: -k for k in range(500, 1500)})
    after("upsert", "nyala.tablet.jobs.load_write")
    pathlib.Path("job").write_text("compact")
    assert nyala.spark.compact(spark, table)["compactions"] >= 1
    after("compact", "nyala.tablet.compaction.file_jobs")
    pathlib.Path("job").write_text("backup")
    made = nyala.spark.backup(spark, table, "backups")
    assert made.rows == 1500
    after("backup", "nyala.backup.write")
    assert len(list(pathlib.Path("backups", "t").glob("*/part-*"))) == made.files
spark.stop()
print("done")
"""


def test_a_task_that_runs_twice_counts_once(tmp_path: Path) -> None:
    """Load, upsert, compaction and backup. Files of the first attempt are in no table and no
    backup, and are removed.
    """
    (tmp_path / "sitecustomize.py").write_text(HOOK)
    (tmp_path / "program.py").write_text(PROGRAM)
    path = os.pathsep.join([str(tmp_path), str(WORKERS), *sys.path])
    run = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=280,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert run.stdout.strip() == "done", run.stderr[-4000:]
