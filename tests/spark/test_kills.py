"""kill -9 of the driver, its JVM and its workers at a step of a job, then the next open and the same job again.

Each job runs in a program of its own, in which one function kills everything before it begins, or after it has ended.
What the next open finds is the table as it was or as the job makes it, never a part, and no file of the dead job; run
again, here, the job brings each row once.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import nyala
import nyala.spark
from nyala.spark.backup import begin_backup, finish_backup, plan_backup, write_item

BEFORE = {k: -k for k in range(0, 300, 3)}
AFTER = BEFORE | {k: 10 * k for k in range(0, 200, 2)}

# Of every Python process of the program: wraps the function named in NYALA_DIE_AT as soon as its module is there.
HOOK = """
import importlib.abc, importlib.util, os, signal, sys

module, name, when = os.environ["NYALA_DIE_AT"].split(":")

def die():
    try:
        os.close(os.open("died", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    session = os.getsid(0)
    os.killpg(session, signal.SIGKILL)   # the driver and its JVM
    os.killpg(os.getpgid(0), signal.SIGKILL)

def wrap(function):
    def dying(*args, **kwargs):
        if when == "before" and os.path.exists("armed"):
            die()
        found = function(*args, **kwargs)
        if when == "after" and os.path.exists("armed"):
            die()
        return found
    return dying

class Hook(importlib.abc.MetaPathFinder):
    def find_spec(self, wanted, path, target=None):
        if wanted != module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(wanted)
        run = spec.loader.exec_module
        def exec_module(made):
            run(made)
            owner, _, attribute = name.rpartition(".")
            place = getattr(made, owner) if owner else made
            setattr(place, attribute, wrap(getattr(place, attribute)))
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Hook())
"""

PROGRAM = """
import os, sys
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
from pyspark.sql import SparkSession
from tests.spark.test_kills import JOBS

spark = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1").getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
open("armed", "x").close()
JOBS[sys.argv[1]](spark, "store")
"""


def changes(spark: SparkSession, store: str):
    del store
    return spark.range(0, 200, 2, 2).selectExpr("id AS k", "10 * id AS v")


def run_write(spark: SparkSession, store: str) -> None:
    changes(spark, store).write.format("nyala").options(path=store, table="t").mode("append").save()


def run_load(spark: SparkSession, store: str) -> None:
    with nyala.connect(store, maintenance=False) as db:
        # What is there is updated by hand: the load inserts the rest.
        rows = changes(spark, store).where("k % 3 <> 0")
        nyala.spark.load(rows, db["t"], on_conflict="ignore", tasks=2)  # by executors, few as they are
        db["t"].upsert({"k": list(range(0, 200, 6)), "v": list(range(0, 2000, 60))})


def run_upsert(spark: SparkSession, store: str) -> None:
    with nyala.connect(store, maintenance=False) as db:
        nyala.spark.upsert(changes(spark, store), db["t"], tasks=2)


def run_compact(spark: SparkSession, store: str) -> None:
    with nyala.connect(store, maintenance=False) as db:
        nyala.spark.compact(spark, db["t"])


def run_stream(spark: SparkSession, store: str) -> None:
    feed = spark.readStream.schema("k long, v long").option("maxFilesPerTrigger", 1).json(f"{store}/../in")
    query = (
        feed.writeStream.format("nyala").options(path=store, table="fed", operation="insert")
        .option("checkpointLocation", f"{store}/../checkpoint").trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(120) and query.exception() is None


def run_backup(spark: SparkSession, store: str) -> None:
    with nyala.connect(store, maintenance=False) as db:
        nyala.spark.backup(spark, db["t"], f"{store}/../backups")


def run_restore(spark: SparkSession, store: str) -> None:
    """As a new table, and into one that is there and empty; run again, what is not there yet."""
    folder = f"{store}/../backups"
    with nyala.connect(store, maintenance=False) as db:
        if "again" not in db.list_tables():
            nyala.spark.restore(spark, folder, "t", into=db, name="again")
        if not db["copy"].count():
            nyala.spark.restore(spark, folder, db["copy"])


JOBS: dict[str, Callable[[SparkSession, str], None]] = {
    "write": run_write, "load": run_load, "upsert": run_upsert, "compact": run_compact, "stream": run_stream,
    "backup": run_backup, "restore": run_restore,
}  # fmt: skip

COMMIT = ["nyala.tablet.write_path:commit:before", "nyala.wal.writer:LogWriter.append:after"]
INSTALL = ["nyala.tablet.store:Store.transact:before", "nyala.tablet.store:Store.transact:after"]
STAGED = ["nyala.handover:new_staging:after", "nyala.tablet.staged_files:write_routed:before"]
STEPS = {
    "write": [
        *STAGED,
        "nyala.tablet.staged_files:write_routed:after",
        "nyala.handover:commit_staged:before",
        *COMMIT,
        "nyala.handover:commit_staged:after",
        "nyala.handover:discard_staging:after",
    ],
    "stream": [
        *STAGED,
        "nyala.tablet.staged_files:write_routed:after",
        "nyala.handover:commit_staged:before",
        *COMMIT,
        "nyala.handover:commit_staged:after",
        "nyala.handover:discard_staging:before",
        "nyala.handover:discard_staging:after",
    ],
    "load": [
        "nyala.handover:remote_lease:after",
        "nyala.tablet.load_job:begin_load:after",
        "nyala.handover:new_staging:after",
        "nyala.tablet.load_write:write_tablet:before",
        "nyala.tablet.load_write:write_tablet:after",
        "nyala.handover:commit_load_files:before",
        "nyala.tablet.load_commit:_moved_file:after",
        *INSTALL,
        "nyala.handover:commit_load_files:after",
        "nyala.handover:discard_staging:after",
    ],
    "upsert": [
        "nyala.tablet.load_job:begin_load:after",
        "nyala.tablet.load_write:write_tablet:after",
        "nyala.tablet.load_commit:_moved_file:after",
        *INSTALL,
        "nyala.handover:commit_load_files:after",
    ],
    "backup": [
        "nyala.spark.backup:begin_backup:after",
        "nyala.spark.backup:write_item:before",
        "nyala.spark.backup:write_item:after",
        "nyala.spark.backup:finish_backup:before",
        "nyala.env.posix_files:PosixFiles.rename:before",
        "nyala.env.posix_files:PosixFiles.rename:after",
        "nyala.spark.backup:finish_backup:after",
    ],
    "restore": [
        "nyala.tablet.unfinished:unfinished_name:after",
        "nyala.spark.backup:read_part:before",
        "nyala.tablet.load_write:write_tablet:after",
        *INSTALL,
        "nyala.handover:commit_load_files:after",
        "nyala.handover:commit_staged:before",
        "nyala.handover:commit_staged:after",
        "nyala.database:Database.rename_table:before",
        "nyala.database:Database.rename_table:after",
        "nyala.database:Database.drop_table:before",
    ],
    "compact": [
        "nyala.tablet.compaction_run:run:before",
        "nyala.tablet.compaction_run:run:after",
        *INSTALL,
    ],
}
IN_THE_GATE = {
    ("stream", "nyala.handover:commit_staged:after"),
    ("write", "nyala.tablet.staged_files:write_routed:after"),
    ("load", "nyala.tablet.load_commit:_moved_file:after"),
    ("backup", "nyala.env.posix_files:PosixFiles.rename:before"),
    ("restore", "nyala.handover:commit_staged:before"),
}
# Jobs that leave the table as it is.
LEAVING_IT = ("compact", "stream", "backup", "restore")
CASES = [
    pytest.param(
        job,
        step,
        id=f"{job} {step.removeprefix('nyala.')}",
        marks=[] if (job, step) in IN_THE_GATE else [pytest.mark.long],
    )
    for job, steps in STEPS.items()
    for step in steps
]


def prepare_backups(db: nyala.Database, folder: Path) -> None:
    """Of tables t and copy a full backup and an incremental one, made here; copy is empty then."""
    copy = db.create_table("copy", db["t"].schema, ["k"])
    copy.insert(db["t"].to_arrow())
    for table in (db["t"], copy):
        for kind in ("full", "incremental"):
            table.upsert({"k": [-1], "v": [0]}) if kind == "full" else table.delete({"k": [-1]})
            planned = plan_backup(table, str(folder))
            assert planned is not None
            backup, items, root = planned
            begin_backup(backup)
            files = [write_item(backup, item, f"part-{number}.parquet") for number, item in enumerate(items)]
            finish_backup(backup, [file for file in files if file is not None])
            del root
    assert [b["kind"] for b in nyala.spark.list_backups(folder)] == ["full", "incremental"] * 2
    copy.delete(where="TRUE")


def check_backups(store: Path) -> None:
    """After a backup that was killed and run again there is one, whole, and nothing besides."""
    folder = store.parent / "backups" / "t"
    assert [str(path) for path in folder.iterdir()] == [
        b["path"] for b in nyala.spark.list_backups(folder.parent)
    ]


def files_nobody_needs(folder: Path, db: nyala.Database) -> list[Path]:
    """Staged files, leases of dead processes, data files that the catalogue does not name."""
    named = {*db._store.state.files(), *db._store.state.garbage}
    data = [path for path in (folder / "data").rglob("*") if path.is_file()]
    return [
        *(folder / "staging").iterdir(),
        *(folder / "leases").glob("remote-*"),
        *(path for path in data if str(path.relative_to(folder)) not in named),
    ]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("job", "step"), CASES)
def test_a_killed_job_left_nothing_and_can_be_run_again(
    spark: SparkSession, tmp_path: Path, job: str, step: str
) -> None:
    store = tmp_path / "store"
    with nyala.connect(store, maintenance=False) as db:
        schema = {"k": "int64", "v": "int64"}
        table = db.create_table("t", schema, ["k"], [nyala.hash_partition("k", buckets=2)])
        table.insert({"k": list(BEFORE), "v": list(BEFORE.values())})
        table.flush()
        table.update({"k": list(BEFORE)[:50], "v": list(BEFORE.values())[:50]})
        db.create_table("fed", schema, ["k"])
        if job == "restore":
            prepare_backups(db, tmp_path / "backups")
    (tmp_path / "in").mkdir()
    for number in range(2):
        lines = [f'{{"k": {number + 2 * i}, "v": {i}}}\n' for i in range(5)]
        (tmp_path / "in" / f"{number}.json").write_text("".join(lines))
    (tmp_path / "sitecustomize.py").write_text(HOOK)
    (tmp_path / "program.py").write_text(PROGRAM)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    run = subprocess.Popen(
        [sys.executable, "program.py", job], cwd=tmp_path, start_new_session=True, text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path, "NYALA_DIE_AT": step},
    )  # fmt: skip
    try:
        _, errors = run.communicate(timeout=400)
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
    assert run.returncode == -signal.SIGKILL, errors[-3000:]

    deadline_s = time.monotonic() + 60
    while True:
        with nyala.connect(store, maintenance=False) as db:
            db._writer().collect_garbage()
            left = files_nobody_needs(store, db)
            rows = {row["k"]: row["v"] for row in db["t"].to_arrow().to_pylist()}
            tables = set(db.list_tables())
            restored = [db[name].to_arrow().num_rows for name in ("again", "copy") if name in tables]
        # A killed process is there for some moments more.
        if not (left or tables - {"t", "fed", "copy", "again"}) or time.monotonic() > deadline_s:
            break
        time.sleep(0.1)
    assert left == []
    assert tables - {"t", "fed", "copy", "again"} == set()
    assert set(restored) <= {0, len(BEFORE)}
    # A load is followed by an upsert, so it may be alone.
    assert rows in ([BEFORE] if job in LEAVING_IT else [BEFORE, AFTER, AFTER | BEFORE])

    JOBS[job](spark, str(store))
    with nyala.connect(store, maintenance=False) as db:
        rows = db["t"].scan(order_by_key=True).to_arrow().to_pylist()
        wanted = BEFORE if job in LEAVING_IT else AFTER
        assert rows == [{"k": k, "v": wanted[k]} for k in sorted(wanted)]
        if job == "stream":
            fed = db["fed"].scan(order_by_key=True).to_arrow().to_pylist()
            assert fed == [{"k": k, "v": k // 2} for k in range(10)]
        if job == "restore":
            for name in ("again", "copy"):
                assert db[name].scan(order_by_key=True).to_arrow().to_pylist() == rows, name
        assert files_nobody_needs(store, db) == []
    if job == "backup":
        check_backups(store)
