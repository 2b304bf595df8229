"""Making the format known to a session."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.serializers import read_int
from pyspark.sql import SparkSession

import nyala
import nyala.spark
from nyala.spark import cluster, registration
from nyala.spark.cluster import problems
from nyala.spark.frames import LOCAL_MAX_ROWS


def test_the_format_is_known_by_itself_and_by_a_call(spark: SparkSession, store: Path) -> None:
    """Installed with pip, `format("nyala")` needs no call; a call does no harm, twice neither, and warns of nothing."""
    with nyala.connect(store) as db:
        db.create_table("t", {"k": "int64"}, ["k"]).insert({"k": [1]})
    read = spark.read.format("nyala").options(path=str(store), table="t")
    assert read.load().count() == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nyala.spark.register(spark)
        nyala.spark.register(spark)
    assert read.load().count() == 1


def test_a_registered_session_is_read_by_as_many_tasks_as_its_cores_are_worth(
    spark: SparkSession, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by those of the driver's machine: what plans a read cannot ask, so it is told."""
    columns = [f"c{number}" for number in range(10)]
    with nyala.connect(store) as db:
        table = db.create_table(
            "t",
            {"k": "int64"} | dict.fromkeys(columns, "int8"),
            ["k"],
            [nyala.hash_partition("k", buckets=8)],
        )
        zeros = np.zeros(150_000, np.int8)
        table.insert(pa.table({"k": np.arange(150_000)} | dict.fromkeys(columns, zeros)))
    read = spark.read.format("nyala").options(path=str(store), table="t")
    feed = spark.read.format("nyala").options(path=str(store), table="t", changes="true")
    try:
        for cores, partitions in ((1, 2), (8, 4)):
            monkeypatch.setattr(registration, "cores_of", lambda _, cores=cores: cores)
            nyala.spark.register(spark)
            assert read.load().rdd.getNumPartitions() == partitions
            assert feed.load().rdd.getNumPartitions() == partitions
    finally:
        monkeypatch.undo()
        nyala.spark.register(spark)


def test_another_python_is_told(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without PYSPARK_PYTHON Spark's workers run some python3 that may not have Nyala: the cure is said early."""
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/usr/bin/some-python3")
    try:
        with pytest.warns(UserWarning, match="PYSPARK_PYTHON"):
            nyala.spark.register(spark)
    finally:
        # What was registered remembers that Python for the rest of the session, which other tests share.
        monkeypatch.undo()
        nyala.spark.register(spark)


def test_the_first_scan_that_tasks_read_tells_of_another_python(
    spark: SparkSession, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has to call `register`, and `collect()` would end in Spark's traceback: the cure is said before it, once,
    at the line that asked for the scan. Rows that the driver reads need no worker, and ask nothing."""
    with nyala.connect(store) as db:
        db.create_table("t", {"k": "int64"}, ["k"]).insert(pa.table({"k": range(LOCAL_MAX_ROWS + 1)}))
        monkeypatch.setattr(cluster, "_checked", weakref.WeakSet())
        monkeypatch.setattr(spark.sparkContext, "pythonExec", "some-python3")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            db["t"].scan(where="k < 10").to_spark(spark)
            assert caught == []
            for _ in range(2):
                nyala.spark.sql(spark, "SELECT sum(k) FROM t", store=store)
        assert [warning.filename for warning in caught] == [__file__]
        said = str(caught[0].message)
        assert "some-python3" in said and "set the environment variable PYSPARK_PYTHON" in said
        monkeypatch.undo()
        # In the shared session each further statement must ask this program's Python again.
        monkeypatch.setattr(cluster, "_checked", weakref.WeakSet())
        monkeypatch.setattr(
            cluster, "check_workers", lambda _: pytest.fail("a job, where the path says enough")
        )
        asked = nyala.spark.sql(spark, "SELECT sum(k) FROM t WHERE k >= 0", store=store)
        assert asked.collect()[0][0] == sum(range(LOCAL_MAX_ROWS + 1))


def test_pythons_of_one_environment_are_told_from_those_of_others(tmp_path: Path) -> None:
    """A venv's python is a link to the one that it was made of, which has other packages."""
    base, venv, link = (tmp_path / name for name in ("usr/bin", "venv/bin", "link"))
    for folder in (base, venv):
        folder.mkdir(parents=True)
    (base / "python3.11").touch()
    for name in ("python", "python3"):
        (venv / name).symlink_to(base / "python3.11")
    link.symlink_to(tmp_path / "venv")
    mine = str(venv / "python")
    assert cluster.same_python(mine, str(venv / "python3"))
    assert cluster.same_python(mine, str(link / "bin/python3"))
    assert not cluster.same_python(mine, str(base / "python3.11"))
    (venv / "python3.9").touch()
    assert not cluster.same_python(mine, str(venv / "python3.9"))
    assert not cluster.same_python(mine, None)


def test_other_versions_are_told(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each executor's Python is asked, and what differs from this program's is said with both versions."""
    mine = cluster._own_versions()
    monkeypatch.setattr(cluster, "_own_versions", lambda: mine | {"pyarrow": "1.2.3"})
    with pytest.warns(
        UserWarning, match=r"have pyarrow \d[\d.]*, but this program has 1\.2\.3: set the environment"
    ):
        nyala.spark.register(spark)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(2):  # as a notebook's cell that is run again
            nyala.spark.register(spark)
    assert [warning.filename for warning in caught] == [__file__] * 2


def test_what_differs_is_said_once_and_what_does_not_matter_is_not() -> None:
    """The minor version of Python, the major one of pyarrow, all of pyspark's and ours; a package that is missing."""
    mine = {"python": "3.11.7", "pyspark": "4.3.0", "pyarrow": "26.0.1", "nyala": "0.1.0"}
    same = {**mine, "host": "a", "executable": "/p", "python": "3.11.2", "pyarrow": "26.1.0"}
    assert problems(mine, [same, same]) == []
    newer = same | {"python": "3.12.0"}
    part = same | {"host": "c", "missing": "google_crc32c"}
    found = problems(mine, [same, newer, newer, same | {"host": "b", "nyala": None}, part])
    assert [text.split(":")[0] for text in found] == [
        "Spark's Python workers (/p on a) have Python 3.12.0, but this program has 3.11.7",
        "Spark's Python workers (/p on b) have no nyala",
        "Spark's Python workers (/p on c) have no google_crc32c",
    ]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_workers_are_forked_from_a_process_without_threads_and_without_nyala(spark: SparkSession) -> None:
    """No lock of ours can be held at a fork: what PySpark forks its workers from has one thread, and has loaded neither
    Nyala nor Arrow, whose threads a fork would lose. That is PySpark's doing; this says when it is so no more. (Spark's
    own one is looked at by name only: in tests it has loaded more, see `workers.loaded`.)"""

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os

        import pyarrow

        for _ in batches:
            pass
        command = open(f"/proc/{os.getppid()}/cmdline").read().split("\0")
        yield pyarrow.RecordBatch.from_pydict({"of": [" ".join(command[1:4])]})

    nyala.spark.register(spark)
    (row,) = spark.range(0, 1, 1, 1).mapInArrow(look, "of string").collect()
    assert row.of == "-m pyspark.daemon pyspark.worker"
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with subprocess.Popen(
        [sys.executable, *row.of.split()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=plain
    ) as daemon:
        assert daemon.stdin is not None and daemon.stdout is not None
        assert read_int(daemon.stdout) > 0, "the port at which it waits"
        threads = os.listdir(f"/proc/{daemon.pid}/task")
        loaded = Path(f"/proc/{daemon.pid}/maps").read_text()
        daemon.stdin.close()
    assert (len(threads), "libarrow" in loaded) == (1, False)


def test_a_forked_copy_scans_with_threads_of_its_own(store: Path) -> None:
    """Whoever forks all the same (multiprocessing) and opens the store in the child waits for none of its threads."""
    with nyala.connect(store) as db:
        table = db.create_table("t", {"k": "int64"}, ["k"], [nyala.hash_partition("k", buckets=4)])
        table.insert({"k": list(range(1000))})
        table.flush()
        assert len(table.to_arrow()) == 1000
        child = os.fork()
        if child == 0:
            found = 1
            with contextlib.suppress(BaseException), nyala.connect(store, read_only=True) as again:
                found = 0 if len(again["t"].to_arrow()) == 1000 else 2
            os._exit(found)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
