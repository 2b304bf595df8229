"""Staged rows of jobs: the commit has the same effect as a normal write of the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support import open_database

import nyala
from nyala.env import SYSTEM
from nyala.errors import TableNotFoundError
from nyala.handover import commits as handover
from nyala.handover.routing_plans import routing_plan
from nyala.tablet.jobs import staged_files
from nyala.tablet.jobs.load_write import ROW
from nyala.tablet.jobs.staged_files import TABLET, read_staged, write_routed
from nyala.tablet.write.prepare import routed_ordinals

PARTITIONS = [nyala.hash_partition("s", buckets=3), nyala.range_partition("k", bounds=[(0, 50), (50, 80)])]
COLUMNS = {"k": "int64", "s": "string", "v": "int64"}


def two_tables(db: nyala.Database) -> list[Any]:
    return [db.create_table(name, COLUMNS, ["k", "s"], PARTITIONS) for name in ("staged", "direct")]


def random_rows(count: int, seed: int) -> pa.Table:
    """Return rows with repeated keys, NULL keys, and keys that no range covers."""
    draw = np.random.default_rng(seed)
    keys = draw.integers(-5, 90, count)
    return pa.table(
        {
            "v": draw.integers(0, 1000, count),
            "k": pa.array(keys, mask=draw.random(count) < 0.05),
            "s": pa.array([f"{number % 7}" for number in draw.integers(0, 20, count)]),
        }
    )


def stage(path: Path, parts: Sequence[pa.Table], operation: str, **more: Any) -> dict[str, Any]:
    """Stage a job with one task for each part."""
    key, folder = handover.new_staging(str(path))
    plan = routing_plan(SYSTEM, str(path), "staged")
    names = []
    for number, part in enumerate(parts):
        batches = part.to_batches(max_chunksize=37)
        assert write_routed(SYSTEM, f"{folder}/{number}", plan, iter(batches)) == part.num_rows
        names += [f"{number}"] if part.num_rows else []
    return {"key": key, "table": "staged", "operation": operation, "errors": "collect", "files": names,
            "columns": parts[0].column_names, **more}  # fmt: skip


def content(table: Any) -> list[dict[str, Any]]:
    return table.scan(order_by_key=True).to_arrow().to_pylist()


@pytest.mark.parametrize("run_bytes", [1 << 20, 900])
@pytest.mark.parametrize("operation", ["insert", "upsert", "update", "delete-ignore"])
def test_staged_rows_have_the_effect_of_a_normal_write(
    tmp_path: Path, operation: str, run_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows, counts and failed rows are the same for any division into tasks and runs; errors have
    row numbers of the job.
    """
    monkeypatch.setattr(staged_files, "_RUN_BYTES", run_bytes)
    with open_database(tmp_path / "s") as db:
        staged, direct = two_tables(db)
        for table in (staged, direct):
            table.upsert(random_rows(60, seed=0).drop_null(), errors="collect")
        data = random_rows(500, seed=1)
        if operation.startswith("delete"):
            data = data.select(["s", "k"])
        parts = [data.slice(0, 210), data.slice(210, 0), data.slice(210)]
        answer = handover.commit_staged(db.path, stage(tmp_path / "s", parts, operation))
        name, _, ignore = operation.partition("-")
        ways = {"on_missing": "ignore"} if ignore else {}
        wanted = getattr(direct, name)(data, errors="collect", **ways)
        assert content(staged) == content(direct)
        for what in ("inserted", "updated", "deleted", "ignored"):
            assert answer[what] == getattr(wanted, what), what
        columns = ["row", "code", "k", "s"]
        assert answer["errors"].select(columns).equals(wanted.errors.select(columns))
        assert set(wanted.errors["code"].to_pylist()) >= {"null", "no-partition"}


def test_a_file_is_sorted_by_tablet_and_key(tmp_path: Path) -> None:
    """Staged files are sorted, so the commit computes no hashes and only merges sorted runs."""
    with open_database(tmp_path / "s") as db:
        table, _ = two_tables(db)
        data = random_rows(300, seed=2)
        job = stage(tmp_path / "s", [data], "upsert")
        staged = read_staged(SYSTEM, f"{db.path}/staging/{job['key']}", job)
        assert set(staged.routed) == {tablet.id for tablet in table.tablets()} | {-1}
    assert staged.data.equals(data.take(pa.array(staged.numbers)))
    rows = staged.data.append_column("home", pa.array(staged.routed)).to_pylist()
    first = [row for row in rows if row["home"] != -1]
    assert rows[: len(first)] == first, "rows without a tablet come last"
    order = [(row["home"], row["k"], row["s"]) for row in first]
    assert order == sorted(order)
    assert all(row["k"] is None or not 0 <= row["k"] < 80 for row in rows[len(first) :])


def test_ranges_added_or_dropped_since_the_task(tmp_path: Path) -> None:
    """Rows of a dropped tablet, or without a tablet, are routed again at the commit."""
    with open_database(tmp_path / "s") as db:
        table, _ = two_tables(db)
        data = pa.table({"k": [10, 60, 85], "s": ["a", "a", "a"], "v": [1, 2, 3]})
        job = stage(tmp_path / "s", [data], "insert")
        with table.alter() as change:
            change.drop_range(50, 80)
            change.add_range(80, 90)
        answer = handover.commit_staged(db.path, job)
        assert [row["k"] for row in content(table)] == [10, 85]
        assert (answer["errors"]["row"].to_pylist(), answer["errors"]["code"].to_pylist()) == (
            [1],
            ["no-partition"],
        )


def test_wrong_tablets_from_a_task_are_found(tmp_path: Path) -> None:
    """A sample of the rows is checked; if one is wrong, all rows are routed again."""
    with open_database(tmp_path / "s") as db:
        two_tables(db)
        state = db._store.root.table("staged")
        keys = {"k": pa.array(range(50)), "s": pa.array(["a", "b"] * 25)}
        right = state.router.route(keys, 50)
        ids = np.array([tablet.id for tablet in state.tablets])
        assert np.array_equal(routed_ordinals(state, ids[right], keys), right)
        wrong = ids[np.roll(right, 1)]
        assert np.array_equal(routed_ordinals(state, wrong, keys), right)


def test_change_feeds_and_new_content_can_be_staged(tmp_path: Path) -> None:
    with open_database(tmp_path / "s") as db:
        table, _ = two_tables(db)
        kinds = ["insert", "insert", "update", "delete"]
        feed = pa.table({"k": [1, 2, 1, 2], "s": ["a"] * 4, "v": [1, 2, 3, 4], "_change_type": kinds})
        answer = handover.commit_staged(
            db.path, stage(tmp_path / "s", [feed.slice(0, 2), feed.slice(2)], "changes")
        )
        assert content(table) == [{"k": 1, "s": "a", "v": 3}]
        assert answer["inserted"] == 1
        new = pa.table({"k": [5, 99, 6], "s": ["b", "b", "a"], "v": [5, 99, 6]})
        job = stage(tmp_path / "s", [new], "upsert", overwrite=True)
        answer = handover.commit_staged(db.path, job)
        assert [row["k"] for row in content(table)] == [5, 6]
        assert answer["errors"]["row"].to_pylist() == [1]


def test_tasks_read_the_schema_and_tablets_from_the_catalogue(tmp_path: Path) -> None:
    """Tasks read schema and tablets from the catalogue, also while a writer has the store open.

    This works if all rows are only in memory. A missing table is an error.
    """
    with open_database(tmp_path / "s") as db:
        table, _ = two_tables(db)
        table.insert({"k": [1], "s": ["a"], "v": [1]})
        plan = routing_plan(SYSTEM, db.path, "staged")
        assert [tablet.id for tablet in plan.tablets] == [tablet.id for tablet in table.tablets()]
        with pytest.raises(TableNotFoundError, match="stagd"):
            routing_plan(SYSTEM, db.path, "stagd")
        assert {TABLET, ROW}.isdisjoint(COLUMNS)


def test_messages_of_failed_rows_name_their_tablets(tmp_path: Path) -> None:
    """Messages of failed rows name the tablet, except if a row has no tablet.

    This also holds if a key fails twice, and if a column of the table has the name of an added
    column.
    """
    with open_database(tmp_path / "s") as db:
        db.create_table("other", {"k": "int64"}, "k")
        table = db.create_table(
            "t", {"message": "int64", "v": "int8"}, "message",
            [nyala.range_partition("message", bounds=[(0, 10), (10, 20)])],
        )  # fmt: skip
        state = db._store.root.table("t")
        low, high = (tablet.id for tablet in state.tablets)
        table.insert({"message": [12, 1], "v": [0, 0]})
        keys = [12, 30, 1, 12, None]
        failed = pa.table(
            [
                pa.array(range(5)),
                pa.array(["insert"] * 5),
                pa.array(["c"] * 5),
                pa.array(["no"] * 5),
                pa.array(keys),
            ],
            ["row", "operation", "code", "message", "k"],
        ).rename_columns(["row", "operation", "code", "message", "message"])
        named = staged_files.with_tablets(failed, state)
        ends = [f" (tablet {home})" if home else "" for home in (high, None, low, high, None)]
        assert named.column(3).to_pylist() == [f"no{end}" for end in ends]
        assert named.column(4).to_pylist() == keys
        assert staged_files.with_tablets(failed.slice(0, 0), state).num_rows == 0
