"""Spark Connect: everything works from a client without a JVM."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CLIENT = """
import os, sys, warnings
warnings.simplefilter("error", UserWarning)
from pyspark.sql import SparkSession

import nyala
import nyala.spark
from nyala.errors import CorruptionError, DuplicateKeyError
from nyala.spark import frames
from nyala.spark.jobs import progress

spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
assert "connect" in type(spark).__module__
db = nyala.connect("store", maintenance=False)
schema = {"k": "int64", "v": "int64"}
table = db.create_table("t", schema, ["k"], [nyala.hash_partition("k", buckets=3)])
path = db.path

# the format without `register`: write, read, read a moment, some columns, some rows
frame = spark.range(0, 100, 1, 3).selectExpr("id AS k", "id AS v")
frame.write.format("nyala").options(path=path, table="t", operation="insert").mode("append").save()
before = db.now()
read = spark.read.format("nyala").options(path=path, table="t")
assert read.load().count() == 100
assert read.option("where", "k < 9").option("columns", "v").option("at", before).load().collect()[0].v < 9

nyala.spark.register(spark)

# functions of nyala.spark, with progress and errors
lines = []
progress.EVERY_S, progress.line_writer = 0.0, lambda logger: lines.append
done = nyala.spark.write(frame.selectExpr("k + 95 AS k", "-1L AS v"), path, "t", operation="insert", errors="collect")
assert (done.inserted, sorted(done.errors["k"].to_pylist())) == (95, [95, 96, 97, 98, 99])
assert nyala.spark.load(frame.selectExpr("k + 200 AS k", "v"), table).inserted == 100
assert nyala.spark.upsert(frame.selectExpr("k + 250 AS k", "-v AS v"), table).updated == 50
try:
    nyala.spark.write(frame, path, "t", operation="insert")
except DuplicateKeyError as error:
    assert error.errors.num_rows == 100
else:
    raise AssertionError("a key that is taken")
assert table.scan(where="k < 10").to_spark(spark).count() == 10
assert any("of t" in line or "into t" in line for line in lines), lines

# SQL over a table of Spark's catalogue
spark.sql(f"CREATE TABLE through_connect USING nyala OPTIONS (path '{path}', table 't')")
spark.sql("INSERT INTO through_connect VALUES (1000, 5)")
spark.sql("INSERT INTO through_connect WITH (`operation`='delete') (k) SELECT k FROM through_connect WHERE k < 5")
assert nyala.spark.sql(spark, "SELECT count(*) AS n FROM through_connect WHERE k < 10").collect()[0].n == 5
spark.sql("DROP TABLE through_connect")

# a scan by tasks, which return rows and no arrays
keep, frames.LOCAL_MAX_ROWS = frames.LOCAL_MAX_ROWS, -1
assert table.scan(["v"], where="k BETWEEN 200 AND 209").to_spark(spark).agg({"v": "sum"}).collect()[0][0] == 45
summed = nyala.spark.sql(spark, "SELECT sum(v) AS s FROM t WHERE k >= 290", store=path)
assert summed.collect()[0].s == 5 - sum(range(40, 100))
frames.LOCAL_MAX_ROWS = keep

# a stream from a table into another
db.create_table("copy", schema, ["k"])
feed = spark.readStream.format("nyala").options(path=path, table="t", changes="true").load()
query = (
    feed.writeStream.format("nyala").options(path=path, table="copy", operation="changes")
    .option("checkpointLocation", os.path.abspath("checkpoint")).trigger(availableNow=True).start()
)
assert query.awaitTermination(120) and query.exception() is None
assert db["copy"].to_arrow().sort_by("k").equals(table.to_arrow().sort_by("k"))

# maintenance and backup
table.flush()
assert nyala.spark.compact(spark, table)["compactions"] >= 1
assert nyala.spark.backup(spark, table, "backups").kind == "full"
table.delete({"k": [200, 201]})
table.upsert({"k": [202, 2000], "v": [-1, 1]})
assert nyala.spark.backup(spark, table, "backups").kind == "incremental"
again = nyala.spark.restore(spark, "backups", "t", into=db, name="again")
assert again.to_arrow().sort_by("k").equals(table.to_arrow().sort_by("k"))

# an error of a worker
import glob
for name in glob.glob(path + "/data/*/*.base"):
    with open(name, "r+b") as file:
        file.write(bytes(200))
try:
    nyala.spark.upsert(frame, db["t"])
except CorruptionError as error:
    assert "table 't', tablet" in str(error) and "\\n" not in str(error), str(error)
else:
    raise AssertionError("the files are damaged")
print("done")
"""


def test_everything_works_through_spark_connect(connect_url: str, tmp_path: Path) -> None:
    """Reads, writes, loads, SQL, streams, compaction, backup, progress and errors, from a client in
    its own process.
    """
    (tmp_path / "client.py").write_text(CLIENT)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    env.pop("PYSPARK_GATEWAY_PORT", None)
    run = subprocess.run(
        [sys.executable, "client.py", connect_url],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        env=env,
    )
    assert run.stdout.strip() == "done", run.stderr[-4000:]
