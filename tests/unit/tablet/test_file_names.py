"""Names of data files: no two files ever have the same name, although ids can be used again."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests import loads
from tests.corruption.seeded import copy_store
from tests.support import key_value_table, open_database

import nyala
from nyala.tablet.compaction.file_jobs import run
from nyala.tablet.compaction.lifecycle import compact
from nyala.tablet.compaction.plans import MajorPlan, MergePlan, MinorPlan

NAME = re.compile(r"\d+(-[0-9a-f]{16}){1,2}\.(base|base\.undo|part|undo|redo)")


def flush(db: nyala.Database) -> None:
    db["t"].insert({"k": [10], "v": [10]})
    db["t"].update({"k": [1], "v": [11]})
    db.flush()


def direct_commit(db: nyala.Database) -> None:
    db._writer().direct_commit_bytes = 1
    db["t"].upsert({"k": list(range(1, 40)), "v": [7] * 39})


def compaction(db: nyala.Database) -> None:
    flush(db)
    db["t"].compact()


def repartition(db: nyala.Database) -> None:
    db["t"].repartition([nyala.hash_partition("k", buckets=2)])


def load(db: nyala.Database) -> None:
    """Run a load. Its commit links staged files, and writes files again whose rows were changed since."""
    loads.run(db, "upsert", {"k": list(range(40)), "v": [7] * 40}, lambda: direct_commit(db))


@pytest.mark.parametrize("way", [flush, direct_commit, compaction, repartition, load])
def test_two_writers_never_give_the_same_name_to_different_files(
    tmp_path: Path, way: Callable[[nyala.Database], None]
) -> None:
    """A writer that lost its store may continue for a while, and both count ids from the same number."""
    with open_database(tmp_path / "writer") as db:
        key_value_table(db).insert({"k": [1, 2], "v": [1, 2]})
        db.flush()
    copy_store(tmp_path / "writer", tmp_path / "heir")
    ids, names = [], []
    for path in (tmp_path / "writer", tmp_path / "heir"):
        before = set((path / "data").rglob("*.*"))
        with open_database(path) as db:
            way(db)
            state = db._writer().state
            ids.append(({*state.rowsets}, {*state.deltas}, {*state.parts}))
        names.append({file.name for file in set((path / "data").rglob("*.*")) - before})
    assert ids[0] == ids[1] and names[0]
    assert not names[0] & names[1]
    assert all(NAME.fullmatch(name) for name in names[0] | names[1])


@pytest.mark.parametrize("kind", ["merge", "major", "minor"])
def test_each_run_of_a_compaction_job_uses_other_names(tmp_path: Path, kind: str) -> None:
    """A worker or task that was given up may still write when the job runs again."""
    with open_database(tmp_path / "s") as db:
        table = key_value_table(db)
        table.insert({"k": [1, 2], "v": [1, 2]})
        db.flush()
        for value in range(2):
            table.update({"k": [1], "v": [value]})
            db.flush()
        store = db._writer()
        state = store.root.table("t")
        (rowset,) = state.tablets[0].rowsets
        plans = {
            "merge": MergePlan((rowset.id,), 1.0),
            "major": MajorPlan(rowset.id, (state.schema.by_name("v").id,), 1.0),
            "minor": MinorPlan(rowset.id, slice(0, 2), 1.0),
        }
        paths: list[set[str]] = []

        def twice(job, reservation):  # type: ignore[no-untyped-def]
            paths.extend(set(run(store.env, job).paths) for _ in range(2))
            return run(store.env, job)

        assert compact(store, state.id, state.tablets[0].id, plans[kind], twice) is not None
        assert paths[0] and not paths[0] & paths[1]
