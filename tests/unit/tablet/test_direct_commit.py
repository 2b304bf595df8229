"""Batches that are too large for the log have the same result as batches in the log (W6)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import key_value_table, open_database, rows

import nyala
from nyala.api.database import Database
from nyala.env import system_files
from nyala.errors import StorageError
from nyala.tablet.write.write_path import Request, write
from nyala.testing.faulty_files import FaultyFiles

SHARED_MEMORY = "/dev/shm"


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with open_database(tmp_path / "s", direct_commit_bytes=1000) as db:
        yield db


def many(first: int, last: int, value: int = 0) -> dict[str, list[int]]:
    return {"k": list(range(first, last)), "v": [value] * (last - first)}


# --- the same as through the log ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Database, Database]]:
    """Return a store that uses only the log, and a store that commits all batches as files."""
    where = SHARED_MEMORY if os.path.isdir(SHARED_MEMORY) else None
    with tempfile.TemporaryDirectory(prefix="nyala-unit-", dir=where) as folder:
        logged = open_database(Path(folder) / "logged")
        direct = open_database(Path(folder) / "direct", direct_commit_bytes=0)
        yield logged, direct
        logged.close()
        direct.close()


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["insert", "upsert", "update", "delete", "batch", "flush"]),
        st.lists(st.integers(0, 6), min_size=1, max_size=5),
        st.sampled_from([("a",), ("b",), ("a", "b")]),
        st.integers(0, 9),
    ),
    max_size=6,
)
TABLES = iter(range(10_000))


@given(steps=OPERATIONS)
@settings(max_examples=settings().max_examples // 2 + 5)
def test_w6_a_direct_commit_equals_a_commit_by_the_log(both: tuple[Database, Database], steps: Any) -> None:
    """Counts, errors and rows at every moment are the same."""
    name = f"t{next(TABLES)}"
    hashes = nyala.hash_partition("k", buckets=2)
    columns = {"k": "int64", "a": "int64", "b": nyala.column("int8", nullable=False, default=7)}
    tables = [db.create_table(name, columns, "k", hashes) for db in both]
    moments: list[tuple[int, int]] = [(both[0].now(), both[1].now())]
    for operation, keys, given_, value in steps:
        outcomes: list[tuple[Any, int]] = []
        for db, table in zip(both, tables, strict=True):
            if operation == "flush":
                table.flush()
                outcomes.append(((), db.now()))
            elif operation == "batch":
                with db.batch() as batch:
                    batch.upsert(name, {"k": keys, "a": [value] * len(keys)})
                    batch.delete(name, {"k": keys[:1]})
                    batch.insert(name, {"k": keys[:1], "b": [1]})
                counts = tuple((r.inserted, r.updated, r.deleted) for r in batch.results)
                outcomes.append((counts, batch.results[0].timestamp))
            else:
                data: dict[str, Any] = {"k": keys}
                if operation != "delete":
                    data |= {column: [value] * len(keys) for column in given_}
                result = getattr(table, operation)(data, errors="collect")
                failed = tuple(result.errors.column("row").to_pylist())
                outcomes.append(((result.inserted, result.updated, result.deleted, failed), result.timestamp))
        assert outcomes[0][0] == outcomes[1][0]
        moments.append((outcomes[0][1], outcomes[1][1]))
    for number, (logged_at, direct_at) in enumerate(moments):
        for back in (0, 1) if number else (0,):
            # Before the first moment, the table did not exist.
            at = max(logged_at - back, moments[0][0]), max(direct_at - back, moments[0][1])
            assert rows(tables[0], at=at[0]) == rows(tables[1], at=at[1])
    for tablet in both[1]._writer().root.table(name).tablets:
        assert not tablet.memory.row_count
        for rowset in tablet.rowsets:
            assert not rowset.deltas.record_count, "B2: memory is empty"
            rowset.check()
    for db in both:
        db.drop_table(name)


# --- one commit point -----------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["insert", "upsert", "delete"])
def test_b1_a_failed_direct_commit_leaves_no_row_and_no_file(tmp_path: Path, operation: str) -> None:
    """The disk is full at each possible write."""
    for fail_at in range(1, 40, 3):
        files = FaultyFiles(system_files(), kind="enospc", only=lambda op: "/data/" in op.path)
        folder = tmp_path / f"{operation}{fail_at}"
        with open_database(folder, files=files, direct_commit_bytes=1000) as db:
            table = key_value_table(db)
            table.insert(many(0, 300))
            table.update({"k": [5], "v": [5]})
            before, now = rows(table), db.now()
            files.fail_at = len(files.operations) + fail_at
            data = many(0, 600, 1) if operation == "upsert" else many(300, 600)
            given_: Any = {"k": list(range(200))} if operation == "delete" else data
            try:
                getattr(table, operation)(given_)
            except StorageError as error:
                assert error.outcome is None
                assert (rows(table), db.now()) == (before, now)
                files.fail_at = None
                files.heal()
                getattr(table, operation)(given_)
            else:
                assert len(files.operations) < files.fail_at, "the load needs fewer operations"
                break
            finally:
                files.fail_at = None
                files.heal()
            named = set(db._writer().state.files()) | set(db._writer().state.garbage)
            there = {str(path.relative_to(folder)) for path in (folder / "data").rglob("*") if path.is_file()}
            assert there <= named, "the written files are removed"
            after = rows(table)
        with open_database(folder) as again:
            assert rows(again["t"]) == after != before
    else:
        raise AssertionError("more operations than the test looks at")


def test_a_direct_commit_of_several_tables_has_one_timestamp(db: Database) -> None:
    """One table has a large part of the batch."""
    t, u = key_value_table(db, "t"), key_value_table(db, "u")
    u.insert({"k": [1, 2], "v": [1, 2]})
    version = db._writer().state.version
    with db.batch() as batch:
        batch.insert("t", many(0, 400))
        batch.update("u", {"k": [1], "v": [10]})
        batch.delete("u", {"k": [2]})
        batch.insert("u", {"k": [3], "v": [3]})
    (stamp,) = {result.timestamp for result in batch.results}
    assert db._writer().state.version == version + 2  # a flush of the memory, then the batch
    assert (t.count(), rows(u)) == (400, [(1, 10), (3, 3)])
    assert (t.count(at=stamp - 1), rows(u, at=stamp - 1)) == (0, [(1, 1), (2, 2)])


def test_b1_a_failure_in_one_thread_leaves_no_file_of_the_others(tmp_path: Path) -> None:
    refused = 0
    for fail_at in range(1, 60, 7):
        files = FaultyFiles(system_files(), kind="enospc", only=lambda op: "/data/" in op.path)
        folder = tmp_path / str(fail_at)
        with open_database(folder, files=files, direct_commit_bytes=1000, rowset_target_bytes=500) as db:
            table = key_value_table(db)
            files.fail_at = len(files.operations) + fail_at
            try:
                table.insert(many(0, 2000))
            except StorageError as error:
                refused += 1
                assert error.outcome is None and rows(table) == []
            files.fail_at = None
            files.heal()
            named = set(db._writer().state.files()) | set(db._writer().state.garbage)
            there = {str(path.relative_to(folder)) for path in (folder / "data").rglob("*") if path.is_file()}
            assert there <= named, "the written files are removed"
            table.upsert(many(0, 2000, 1))
            assert rows(table) == [(k, 1) for k in range(2000)]
    assert refused >= 3


def test_the_idempotency_key_is_committed_with_the_files(db: Database) -> None:
    table = key_value_table(db)
    store = db._writer()
    (first,) = write(store, [Request("t", "insert", many(0, 300))], idempotency_key="job")
    assert store.state.committed_keys["job"].timestamp == first.timestamp
    (second,) = write(store, [Request("t", "insert", many(0, 300))], idempotency_key="job")
    assert second == first and table.count() == 300


def test_a_load_with_dead_and_live_keys(db: Database) -> None:
    """Dead keys on disk become new rows. Keys in memory are flushed first."""
    table = key_value_table(db)
    table.insert({"k": [1, 2, 3], "v": [1, 2, 3]})
    db.flush()
    table.delete({"k": [2]})
    table.insert({"k": [4, 5], "v": [4, 5]})
    table.delete({"k": [5]})
    result = table.upsert(many(0, 200, 9))
    assert (result.inserted, result.updated) == (197, 3)
    assert rows(table) == [(k, 9) for k in range(200)]
    assert rows(table, at=result.timestamp - 1) == [(1, 1), (3, 3), (4, 4)]
    gone = table.delete({"k": list(range(100, 200))})
    table.insert(many(150, 300, 1))
    assert (table.count(), table.count(at=gone)) == (250, 100)
    for rowset in db._writer().root.table("t").tablets[0].all_rowsets():
        rowset.check()
