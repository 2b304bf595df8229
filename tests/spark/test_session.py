"""`register`, and the check of the workers' Python."""

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


def test_the_format_works_with_and_without_register(spark: SparkSession, store: Path) -> None:
    """A second call does no harm, and gives no warning."""
    with nyala.connect(store) as db:
        db.create_table("t", {"k": "int64"}, ["k"]).insert({"k": [1]})
    read = spark.read.format("nyala").options(path=str(store), table="t")
    assert read.load().count() == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nyala.spark.register(spark)
        nyala.spark.register(spark)
    assert read.load().count() == 1


def test_a_registered_session_uses_its_number_of_cores(
    spark: SparkSession, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of tasks depends on the session's cores, and not on those of the driver's machine."""
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


def test_register_warns_of_another_python(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without PYSPARK_PYTHON, workers use a python3 that may not have Nyala."""
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/usr/bin/some-python3")
    try:
        with pytest.warns(UserWarning, match="PYSPARK_PYTHON"):
            nyala.spark.register(spark)
    finally:
        # The session keeps this Python for registered sources, and other tests share the session.
        monkeypatch.undo()
        nyala.spark.register(spark)


def test_the_first_scan_by_tasks_warns_of_another_python(
    spark: SparkSession, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The warning comes once, at the line of the program, before `collect()` fails. Rows that the
    driver reads need no check.
    """
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
        output = str(caught[0].message)
        assert "some-python3" in output and "set the environment variable PYSPARK_PYTHON" in output
        monkeypatch.undo()
        # Later statements of the shared session must use this program's Python again.
        monkeypatch.setattr(cluster, "_checked", weakref.WeakSet())
        monkeypatch.setattr(
            cluster, "check_workers", lambda _: pytest.fail("a job, where the path says enough")
        )
        requested = nyala.spark.sql(spark, "SELECT sum(k) FROM t WHERE k >= 0", store=store)
        assert requested.collect()[0][0] == sum(range(LOCAL_MAX_ROWS + 1))


def test_pythons_of_different_environments_are_distinguished(tmp_path: Path) -> None:
    """The python of an environment may link to one with other packages."""
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


def test_register_warns_of_other_versions(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The warning has the versions of the executor and of this program."""
    mine = cluster._own_versions()
    monkeypatch.setattr(cluster, "_own_versions", lambda: mine | {"pyarrow": "1.2.3"})
    with pytest.warns(
        UserWarning, match=r"have pyarrow \d[\d.]*, but this program has 1\.2\.3: set the environment"
    ):
        nyala.spark.register(spark)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(2):  # as if a cell of a notebook ran again
            nyala.spark.register(spark)
    assert [warning.filename for warning in caught] == [__file__] * 2


def test_each_relevant_difference_is_reported_once() -> None:
    """Python's minor version, pyarrow's major version, pyspark's and nyala's full versions, and
    missing packages.
    """
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
    """PySpark forks its workers from a process that has one thread, and has imported neither Nyala
    nor Arrow. So no lock of Nyala can be held at a fork. (Here the name of Spark's own module is
    checked only, because the tests preload more: see `workers.loaded`.)
    """

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


def test_a_forked_process_can_open_the_store(store: Path) -> None:
    """After a fork by multiprocessing, the child does not wait for threads of the parent."""
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
