"""Runs the load jobs of `nyala.spark` without Spark: all tasks run in this process, one after the other."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import nyala
from nyala.env import SYSTEM, Env
from nyala.handover import commits as handover
from nyala.tablet.jobs.load_commit import LoadCommit
from nyala.tablet.jobs.load_job import LoadPlan, StagedTablet
from nyala.tablet.jobs.load_write import ROW, write_tablet
from nyala.tablet.state import store_folder as layout

Meanwhile = Callable[[], None]


@contextlib.contextmanager
def open_with_table(path: Path) -> Iterator[nyala.Database]:
    """Yield a store with an empty table t of three tablets: k int64, v int64 nullable, w string with a default."""
    with nyala.connect(path, maintenance=False, rowset_size="1MB") as opened:
        opened.create_table(
            "t",
            {"k": "int64", "v": "int64", "w": nyala.column("string", default="none")},
            ["k"],
            [nyala.hash_partition("k", buckets=3)],
        )
        yield opened


def env_of(db: nyala.Database) -> Env:
    """Return the environment of a job in another process: local files, or the store's bucket."""
    env = db._store.env
    return SYSTEM if env.is_local else env


def begin_request(lease: str) -> dict[str, Any]:
    """Return the request with which a job begins a load."""
    return {"do": "begin load", "table": "t", "lease": lease, "holder": "a job"}


def do_nothing() -> None:
    pass


def stage(
    db: nyala.Database, plan: LoadPlan, folder: str, operation: str, data: pa.Table
) -> tuple[list[StagedTablet], list[pa.Table]]:
    """Run the tasks of a job. Each task writes the rows of one tablet, in key order, to staged files.

    Returns the staged files, and the tables of failing rows.
    """
    if not len(data):
        return [], []
    state = db._store.root.table("t")
    data = data.append_column(ROW, pa.array(np.arange(len(data))))
    ordinals = state.router.route({"k": data["k"].combine_chunks()}, len(data))
    staged, errors = [], []
    for ordinal in sorted(set(ordinals.tolist())):
        mine = data.filter(pa.array(ordinals == ordinal)).sort_by([("k", "ascending"), (ROW, "ascending")])
        task_plan = LoadPlan.from_json(json.loads(json.dumps(plan.only([ordinal]).to_json())))
        made, failed = write_tablet(
            env_of(db),
            task_plan,
            0,
            operation,
            iter(mine.to_batches(max_chunksize=50)),
            folder,
            f"task-{ordinal}",
        )
        staged.append(StagedTablet.from_json(json.loads(json.dumps(made.to_json()))))
        if failed is not None:
            errors.append(failed)
    return staged, errors


@contextlib.contextmanager
def staged_job(
    db: nyala.Database, operation: str, rows: dict[str, list[Any]], *, collect: bool = False
) -> Iterator[tuple[LoadCommit, int]]:
    """Run the tasks of a job. Yield the commit that the driver would send, and the number of failed rows."""
    data = pa.table(rows)
    env = env_of(db)
    with handover.loading(db.path, "t", 60, reserve=operation != "insert", env=env) as (plan, _):
        key, absolute = handover.new_staging(db.path, env=env)
        staged, errors = stage(db, plan, f"{layout.STAGING_NAME}/{Path(absolute).name}", operation, data)
        files = {f.rowset.id: f for tablet in plan.tablets for f in tablet.rowsets}
        try:
            yield (
                LoadCommit(
                    key, plan.table_id, plan.schema.version, plan.snapshot, operation, tuple(data.column_names),
                    tuple(staged), files, collect,
                ),
                sum(len(table) for table in errors),
            )  # fmt: skip
        finally:
            handover.discard_staging(db.path, key, env)


def run(
    db: nyala.Database,
    operation: str,
    rows: dict[str, list[Any]],
    meanwhile: Meanwhile = do_nothing,
    *,
    collect: bool = False,
) -> dict[str, Any]:
    """Run a whole job, and call `meanwhile` between its tasks and its commit. Return the counts."""
    with staged_job(db, operation, rows, collect=collect) as (job, failed):
        meanwhile()
        answer = handover.commit_load_files(db.path, job, env_of(db))
        again = handover.commit_load_files(db.path, job, env_of(db))
        assert again == {**answer, "errors": None}  # a repeated commit changes nothing
    answer["failed"] = failed
    return answer


def content(db: nyala.Database) -> dict[int, tuple[int | None, str | None]]:
    return {row["k"]: (row["v"], row["w"]) for row in db["t"].scan().to_arrow().to_pylist()}
