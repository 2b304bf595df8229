"""The driver, its JVM and its workers are killed at a step of a job. Then the store is opened, and
the job runs again.

Each job runs in its own program (`kill_jobs`). One function kills all processes before or after one
of its calls (`dying/sitecustomize.py`). The next open must find the table as it was before or after
the job, and no file of the dead job. When the job runs again here, each row is written once. The names
of jobs:

    write, stream …            the worker that commits becomes the store's writer
    open write, open stream …  the driver has the store open, and commits what workers send to it
    small restore              the driver restores a small backup; "restore": executors do it
    large stream …             batches of more than 1 byte (and not 64 MB) are committed as files,
                               and not by the log

A killed stream must have written its first micro-batches, each of them complete and once. Before the
stream starts again, table t is changed and its files are rewritten, so the stream must read other files
than it planned.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark.jvm import WORKERS
from tests.spark.kill_jobs import AFTER, BEFORE, JOBS, Commit, carry_out

import nyala
import nyala.spark

HERE = Path(__file__).parent

COMMIT = [
    "nyala.tablet.write.write_path:commit:before",
    "nyala.wal.writer:LogWriter.append:after",
    "nyala.tablet.store:Store.finish:after",
]
INSTALL = ["nyala.tablet.store:Store.transact:before", "nyala.tablet.store:Store.transact:after"]
STAGED = ["nyala.handover.commits:new_staging:after", "nyala.tablet.jobs.staged_files:write_routed:before"]
HANDED_OVER = ["nyala.handover.commits:commit_staged:before", "nyala.handover.commits:commit_staged:after"]
SOURCE = "nyala.spark.source.changes:NyalaChangeStream"
STEPS = {
    "write": [
        *STAGED,
        "nyala.tablet.jobs.staged_files:write_routed:after",
        *HANDED_OVER,
        *COMMIT,
        "nyala.handover.commits:discard_staging:after",
    ],
    "open write": [*HANDED_OVER, *COMMIT, "nyala.handover.commits:discard_staging:after"],
    "stream": [
        *STAGED,
        "nyala.tablet.jobs.staged_files:write_routed:after",
        *HANDED_OVER,
        *COMMIT,
        "nyala.handover.commits:discard_staging:before",
        "nyala.handover.commits:discard_staging:after",
    ],
    "open stream": [f"{step}:2" for step in (*HANDED_OVER, *COMMIT)],
    "large stream": [
        "nyala.tablet.write.direct_commit:commit_directly:before:2",
        "nyala.tablet.write.direct_commit:_write_piece:after:2",
        *(f"{step}:2" for step in (*INSTALL, *HANDED_OVER)),
    ],
    # Micro-batches: 100 rows in files, then 50, 3 and 2 rows in memory. Most kills happen in the second one.
    "flow": [
        f"{SOURCE}.prepareForTriggerAvailableNow:after",
        f"{SOURCE}.initialOffset:after",
        f"{SOURCE}.latestOffset:after",
        f"{SOURCE}.latestOffset:after:2",
        f"{SOURCE}.partitions:before",
        f"{SOURCE}.partitions:before:2",
        "nyala.spark.source.changes:plan_changes:after:2",
        f"{SOURCE}.partitions:after:2",
        "nyala.spark.source.changes:read_changes:before:3",
        *(f"{step}:2" for step in STAGED),
        "nyala.tablet.jobs.staged_files:write_routed:after:2",
        *HANDED_OVER,
        *(f"{step}:2" for step in (*HANDED_OVER, *COMMIT)),
        "nyala.handover.commits:commit_staged:after:4",
        "nyala.handover.commits:discard_staging:before:2",
        "nyala.handover.commits:discard_staging:after:2",
        f"{SOURCE}.commit:before",
        f"{SOURCE}.commit:after",
        f"{SOURCE}.commit:after:3",
        "nyala.spark.source.changes:_end_lease:after",
    ],
    "open flow": [f"{step}:2" for step in HANDED_OVER],
    "large flow": [
        "nyala.tablet.write.direct_commit:commit_directly:before:2",
        *(f"{step}:2" for step in (*INSTALL, *HANDED_OVER)),
    ],
    # The first micro-batch is the whole table; the others are later writes of the program.
    "mirror": [
        f"{SOURCE}.partitions:before",
        *HANDED_OVER,
        f"{SOURCE}.partitions:after:2",
        *(f"{step}:2" for step in HANDED_OVER),
        "nyala.handover.commits:commit_staged:after:3",
    ],
    "large mirror": [
        "nyala.handover.commits:commit_staged:after",
        "nyala.tablet.write.direct_commit:_write_deltas:after:2",
        *(f"{step}:3" for step in HANDED_OVER),
    ],
    "load": [
        "nyala.handover.commits:remote_lease:after",
        "nyala.tablet.jobs.load_job:begin_load:after",
        "nyala.handover.commits:new_staging:after",
        "nyala.tablet.jobs.load_write:write_tablet:before",
        "nyala.tablet.jobs.load_write:write_tablet:after",
        "nyala.handover.commits:commit_load_files:before",
        "nyala.tablet.jobs.load_commit:_link_staged:after",
        *INSTALL,
        "nyala.handover.commits:commit_load_files:after",
        "nyala.handover.commits:discard_staging:after",
    ],
    "upsert": [
        "nyala.tablet.jobs.load_job:begin_load:after",
        "nyala.tablet.jobs.load_write:write_tablet:after",
        "nyala.tablet.jobs.load_commit:_link_staged:after",
        *INSTALL,
        "nyala.handover.commits:commit_load_files:after",
    ],
    "backup": [
        "nyala.backup.write:begin_backup:after",
        "nyala.backup.write:write_part:before",
        "nyala.backup.write:write_part:after",
        "nyala.backup.write:finish_backup:before",
        "nyala.env.posix_files:PosixFiles.rename:before",
        "nyala.env.posix_files:PosixFiles.rename:after",
        "nyala.backup.write:finish_backup:after",
    ],
    "restore": [
        "nyala.tablet.state.unfinished:unfinished_name:after",
        "nyala.backup.read:read_part:before",
        "nyala.tablet.jobs.load_write:write_tablet:after",
        *INSTALL,
        "nyala.handover.commits:commit_load_files:after",
        *HANDED_OVER,
        "nyala.api.database:Database.rename_table:before",
        "nyala.api.database:Database.rename_table:after",
        "nyala.tablet.store:Store.drop_table:before",
    ],
    "small restore": [
        *(f"{step}:{number}" for number in (1, 2) for step in COMMIT),
        "nyala.api.database:Database.rename_table:before",
        "nyala.tablet.store:Store.drop_table:before",
    ],
    "compact": [
        "nyala.tablet.compaction.file_jobs:run:before",
        "nyala.tablet.compaction.file_jobs:run:after",
        *INSTALL,
    ],
}
CASES = [
    pytest.param(job, step, id=f"{job} {step.removeprefix('nyala.')}")
    for job, steps in STEPS.items()
    for step in steps
]

# The changes of table t before the program, and before the job runs again.
HISTORY: list[Commit] = [("insert", BEFORE), ("update", dict(list(BEFORE.items())[:50]))]
HISTORY_OF_FEEDS: list[Commit] = [
    *HISTORY,
    ("delete", {0: None, 3: None, 6: None}),
    ("upsert", {3: 33, 301: 1}),
]
LATER: list[Commit] = [("insert", {0: 5}), ("update", {3: 34}), ("delete", {301: None})]

Rows = dict[int, int | None]
Version = tuple[int, int, str, int | None]


def states_of(commits: list[Commit]) -> list[Rows]:
    """Return the rows of a table after each commit."""
    states: list[Rows] = [{}]
    for operation, rows in commits:
        after = states[-1] | rows
        states.append({k: v for k, v in after.items() if k not in rows} if operation == "delete" else after)
    return states[1:]


def versions_of(commits: list[Commit], moments: list[int]) -> list[list[Version]]:
    """Return (k, at, what, v) of what a feed has of each commit, sorted by k."""
    found, before = [], dict[int, int | None]()
    for (operation, rows), moment, after in zip(commits, moments, states_of(commits), strict=True):
        what = {
            k: operation if operation == "delete" else "update" if k in before else "insert" for k in rows
        }
        found.append([(k, moment, what[k], rows[k]) for k in sorted(rows)])
        before = after
    return found


@dataclass
class World:
    """The parts of a test case outside of the killed program."""

    job: str
    folder: Path
    moments: list[int]

    @property
    def kind(self) -> str:
        return self.job.split()[-1]

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def is_fed_by_t(self) -> bool:
        return self.kind in ("flow", "mirror")


def make_world(job: str, folder: Path) -> World:
    world = World(job, folder, [])
    with nyala.connect(world.store, maintenance=False) as db:
        schema = {"k": "int64", "v": "int64"}
        table = db.create_table("t", schema, ["k"], [nyala.hash_partition("k", buckets=2)])
        (folder / "begin").write_text(str(db.now()))
        first, *others = HISTORY_OF_FEEDS if world.is_fed_by_t else HISTORY
        world.moments += carry_out(table, [first])
        table.flush()
        world.moments += carry_out(table, others)
        db.create_table("fed", schema, ["k"])
        if world.is_fed_by_t:
            db.create_table("copy", schema, ["k"], [nyala.hash_partition("k", buckets=2)])
            trail = {"k": "int64", "at": "int64", "what": "string", "v": "int64"}
            db.create_table("trail", trail, ["k", "at"])
        if world.kind == "restore":
            prepare_backups(db, folder / "backups")
    (folder / "in").mkdir()
    for number in range(2):
        lines = [f'{{"k": {number + 2 * i}, "v": {i}}}\n' for i in range(5)]
        file = folder / "in" / f"{number}.json"
        file.write_text("".join(lines))
        os.utime(file, (number, number))  # a stream reads the oldest file first
    return world


def prepare_backups(db: nyala.Database, folder: Path) -> None:
    """Make a full and an incremental backup of the tables t and copy, and empty copy."""
    copy = db.create_table("copy", db["t"].schema, ["k"])
    copy.insert(db["t"].to_arrow())
    for table in (db["t"], copy):
        for kind in ("full", "incremental"):
            table.upsert({"k": [-1], "v": [0]}) if kind == "full" else table.delete({"k": [-1]})
            db.backup(folder, [table.name])
    assert [b.kind for b in nyala.list_backups(folder)] == ["full", "incremental"] * 2
    copy.delete(where="TRUE")


# ── the killed program


def run_program(world: World, die_at: str | None = None) -> tuple[int, str]:
    """Run a program. Return its exit code and its output."""
    messages = {}
    if die_at is not None:
        messages["NYALA_DIE_AT"] = die_at if die_at.count(":") == 3 else f"{die_at}:1"
    if world.job.startswith("large"):
        messages["NYALA_LOG_AT_MOST"] = "1"
    path = os.pathsep.join([str(HERE / "dying"), str(WORKERS), *sys.path])
    program = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.kill_jobs", world.job], cwd=world.folder, start_new_session=True,
        text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path, **messages},
    )  # fmt: skip
    try:
        _, errors = program.communicate(timeout=400)
    finally:
        if program.poll() is None:
            os.killpg(program.pid, signal.SIGKILL)
    (world.folder / "armed").unlink(missing_ok=True)
    return program.returncode, errors[-3000:]


# ── checks


def files_nobody_needs(folder: Path, db: nyala.Database) -> list[Path]:
    """Return staged files, leases of dead processes, and data files that the catalogue does not
    name.
    """
    named = {*db._store.state.files(), *db._store.state.garbage}
    data = [path for path in (folder / "data").rglob("*") if path.is_file()]
    return [
        *(folder / "staging").iterdir(),
        *(folder / "leases").glob("remote-*"),
        *(path for path in data if str(path.relative_to(folder)) not in named),
    ]


@contextlib.contextmanager
def tidy(world: World) -> Iterator[nyala.Database]:
    """Open the store. Wait until no file of the killed job and no partial table is left."""
    deadline_s = time.monotonic() + 60
    while True:
        with nyala.connect(world.store, maintenance=False) as db:
            db._writer().collect_garbage()
            left = [str(path) for path in files_nobody_needs(world.store, db)]
            left += {*db.list_tables()} - {"t", "fed", "copy", "again", "trail"}
            if not left or time.monotonic() > deadline_s:
                assert left == []
                yield db
                return
        time.sleep(0.1)


def rows_of(table: nyala.Table, at: int | None = None) -> Rows:
    return {row["k"]: row["v"] for row in table.scan(at=at).to_arrow().to_pylist()}


def check_what_was_left(world: World, db: nyala.Database) -> None:
    """Check that the job changed everything or nothing. A stream must have done its first
    micro-batches as a whole.
    """
    rows, before = rows_of(db["t"]), states_of(HISTORY_OF_FEEDS if world.is_fed_by_t else HISTORY)[-1]
    if world.kind in ("write", "upsert", "load"):
        # The job makes a load and then an upsert, so the load may be there without the upsert.
        assert rows in [BEFORE, AFTER, *([AFTER | BEFORE] if world.kind == "load" else [])]
    elif world.kind != "mirror":
        assert rows == before
    if world.kind == "stream":
        assert rows_of(db["fed"]) in [{k: k // 2 for k in range(10) if k % 2 < parts} for parts in range(3)]
    if world.kind == "flow":
        check_trail(world, db, HISTORY_OF_FEEDS, whole=False)
    if world.kind == "mirror":
        check_copy(world, db, whole=False)
    if world.kind == "restore":
        for name in {"again", "copy"} & {*db.list_tables()}:
            assert rows_of(db[name]) in ({}, before)


def check_trail(world: World, db: nyala.Database, commits: list[Commit], *, whole: bool) -> None:
    """Check that the table has all versions of the first commits. whole: of all commits."""
    trail = db["trail"].scan().to_arrow().to_pylist()
    found = sorted(tuple(row.values()) for row in trail)
    expected = versions_of(commits, world.moments)
    given = {row["at"] for row in trail}
    assert given == {*world.moments[: len(given)]}
    assert found == sorted(version for part in expected[: len(given)] for version in part)
    assert not whole or len(given) == len(commits)


def check_copy(world: World, db: nyala.Database, *, whole: bool) -> None:
    """Check that the copy had the same states as table t, in the same order, since the query began.

    whole: the copy must also have the last state of t.
    """
    begin = int((world.folder / "begin").read_text())

    def states(name: str) -> list[Rows]:
        feed = db[name].changes(begin, db.now(), "all").to_arrow()
        found = [rows_of(db[name], at) for at in sorted(set(feed.column("_commit_version").to_pylist()))]
        return [rows for number, rows in enumerate(found) if not number or rows != found[number - 1]]

    source, copy = states("t"), states("copy")
    first = source.index(states_of(HISTORY_OF_FEEDS)[-1])
    assert copy == source[first : first + len(copy)]
    assert not whole or len(copy) == len(source) - first


def check_result(world: World, db: nyala.Database) -> None:
    """Check that the job is complete, and each row is written once."""
    rows = db["t"].scan(order_by_key=True).to_arrow().to_pylist()
    if not world.is_fed_by_t:
        expected = AFTER if world.kind in ("write", "upsert", "load") else BEFORE
        assert rows == [{"k": k, "v": expected[k]} for k in sorted(expected)]
    if world.kind == "stream":
        fed = db["fed"].scan(order_by_key=True).to_arrow().to_pylist()
        assert fed == [{"k": k, "v": k // 2} for k in range(10)]
    if world.kind == "flow":
        check_trail(world, db, [*HISTORY_OF_FEEDS, *LATER], whole=True)
    if world.kind == "mirror":
        assert db["copy"].scan(order_by_key=True).to_arrow().to_pylist() == rows
        check_copy(world, db, whole=True)
    if world.kind == "restore":
        for name in ("again", "copy"):
            assert db[name].scan(order_by_key=True).to_arrow().to_pylist() == rows, name
    if world.kind == "backup":
        check_backups(world.folder / "backups")
    if world.job.startswith("large"):
        sink = {"stream": "fed", "flow": "trail", "mirror": "copy"}[world.kind]
        assert all(not tablet.memory.row_count for tablet in state_of(db, sink).tablets), (
            "nothing went through the log"
        )


def state_of(db: nyala.Database, name: str) -> Any:
    return db._store.root.table(name)


def check_backups(folder: Path) -> None:
    """Check that exactly one whole backup exists after a killed backup was run again."""
    assert [str(path) for path in (folder / "t").iterdir()] == [b.path for b in nyala.list_backups(folder)]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("job", "step"), CASES)
def test_a_killed_job_left_nothing_and_can_be_run_again(
    spark: SparkSession, tmp_path: Path, job: str, step: str
) -> None:
    world = make_world(job, tmp_path)
    code, errors = run_program(world, step)
    assert code == -signal.SIGKILL, errors
    with tidy(world) as db:
        check_what_was_left(world, db)
        if world.is_fed_by_t:
            world.moments += carry_out(db["t"], LATER)
            db["t"].flush()
            db["t"].compact()
    if job.startswith("large"):
        code, errors = run_program(world)
        assert code == 0, errors
    else:
        JOBS[job](spark, str(world.store))
    with tidy(world) as db:
        check_result(world, db)
