"""SQL statements that change many rows are committed in parts: in bounded memory, and all or nothing."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import nyala
from nyala.env import system_files
from nyala.sql.change import rows as rows_module
from nyala.tablet.write import part_commit
from nyala.testing.recording_files import RecordingFiles
from nyala.testing.s3_server import S3Server
from tests.sampled import is_long_run
from tests.support import open_database

N = 20_000
SIZES = 300_000, 1_200_000
PARTITIONS = [None, nyala.hash_partition("id", buckets=3)]


@pytest.fixture(autouse=True)
def parts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make files and parts small, and return a list that receives the rows of each part."""
    monkeypatch.setattr(rows_module, "SPILLED_BYTES_MIN", 50_000)
    monkeypatch.setattr("nyala.sql.change.change.SPILLED_BYTES_MIN", 50_000)
    monkeypatch.setattr("nyala.sql.change.target._COMPARED_ROWS_MAX", 1_000)
    monkeypatch.setattr(part_commit, "_part_bytes", lambda store: 400_000)
    noted: list[int] = []
    resolved: Callable[..., Any] = part_commit._resolved

    def noting(table: Any, made: Any, request: Any, *arguments: Any) -> Any:
        noted.append(request.data.num_rows)
        return resolved(table, made, request, *arguments)

    monkeypatch.setattr(part_commit, "_resolved", noting)
    return noted


@pytest.fixture
def db(tmp_path: Path) -> Iterator[nyala.Database]:
    with nyala.connect(tmp_path / "store", maintenance=False) as database:
        yield database


@pytest.fixture(params=PARTITIONS, ids=["one tablet", "three tablets"])
def t(db: nyala.Database, request: pytest.FixtureRequest) -> nyala.Table:
    return filled(db, request.param)


def filled(db: nyala.Database, partitions: Any) -> nyala.Table:
    columns = {"id": "int64", "v": nyala.column("int64", nullable=False), "s": "string"}
    made = db.create_table("t", columns, "id", partitions)
    made.insert([(number, number, f"row {number}") for number in range(0, N, 2)])
    db.flush()
    made.insert([(number, number, "in memory") for number in range(1, N, 2)])
    return made


def content(t: nyala.Table) -> dict[int, int]:
    rows = t.to_arrow()
    return dict(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True))


@pytest.mark.parametrize(
    ("statement", "count", "expected"),
    [
        ("UPDATE t SET v = v + 1", N, {i: i + 1 for i in range(N)}),
        ("UPDATE t SET v = f.w FROM (SELECT id AS i, v * 2 AS w FROM t) AS f WHERE t.id = f.i", N,
         {i: i * 2 for i in range(N)}),
        ("DELETE FROM t WHERE id >= 10", N - 10, {i: i for i in range(10)}),
        ("INSERT INTO t SELECT id + 20000, v, s FROM t", N, {i: i % N for i in range(2 * N)}),
        ("INSERT INTO t SELECT id + 20000, -v, s FROM t RETURNING id", N,
         {i: i if i < N else N - i for i in range(2 * N)}),
        ("INSERT OR IGNORE INTO t SELECT id + 10000, -v, s FROM t", N // 2,
         {i: i if i < N else N // 2 - i for i in range(N + N // 2)}),
        ("UPSERT INTO t (id, v) SELECT id + 10000, -v FROM t", N,
         {i: i if i < N // 2 else N // 2 - i for i in range(N + N // 2)}),
        ("INSERT INTO t SELECT id + 10000, -v, s FROM t ON CONFLICT DO UPDATE SET v = excluded.v", N,
         {i: i if i < N // 2 else N // 2 - i for i in range(N + N // 2)}),
        ("MERGE INTO t USING (SELECT id + 10000 AS id, -v AS v FROM t) AS f ON f.id = t.id "
         "WHEN MATCHED THEN UPDATE SET v = f.v WHEN NOT MATCHED THEN INSERT (id, v) VALUES (f.id, f.v)", N,
         {i: i if i < N // 2 else N // 2 - i for i in range(N + N // 2)}),
        ("UPDATE t SET id = id + 30000", N, {i + 30_000: i for i in range(N)}),
        ("UPDATE t SET id = id + 1", N, {i + 1: i for i in range(N)}),
        ("MERGE INTO t USING (SELECT id + 10000 AS id FROM t) AS f ON f.id = t.id WHEN MATCHED AND f.id % 2 = 0 THEN "
         "DELETE WHEN MATCHED THEN UPDATE SET v = -1 WHEN NOT MATCHED THEN INSERT VALUES (f.id, -2, '')", N,
         {i: i if i < N // 2 else -1 if i < N else -2 for i in range(N + N // 2) if i < N // 2 or i >= N or i % 2}),
    ],
)  # fmt: skip
def test_a_large_statement_is_one_commit(
    db: nyala.Database, t: nyala.Table, parts: list[int], statement: str, count: int, expected: dict[int, int]
) -> None:
    before = content(t)
    start = db.now()
    result = db.sql(statement)
    assert result.rowcount == count and len(parts) >= 4
    assert content(t) == expected
    assert t.scan(at=start).to_arrow().num_rows == len(before)
    changes = t.changes(since=start).to_arrow()
    assert len(changes["_commit_version"].unique()) == 1
    keys = set(changes["id"].to_pylist())
    assert len(changes) == len(keys)
    assert keys >= {key for key in {*before, *expected} if before.get(key) != expected.get(key)}
    t.compact()
    assert content(t) == expected and db.check().ok


def test_a_large_statement_in_a_bucket(parts: list[int]) -> None:
    with (
        S3Server() as server,
        nyala.connect("s3://bucket/store", storage_options=server.options, maintenance=False) as db,
    ):
        t = filled(db, PARTITIONS[1])
        assert db.sql("UPDATE t SET v = v + 1").rowcount == N and len(parts) >= 4
        assert db.sql("INSERT INTO t SELECT id + 20000, v, s FROM t").rowcount == N
        assert db.sql("DELETE FROM t WHERE id % 2 = 0").rowcount == N
        assert content(t) == {i: i % N + 1 for i in range(1, 2 * N, 2)}
        assert db.check().ok


@pytest.mark.parametrize(
    ("statement", "failing"),
    [
        ("INSERT INTO t SELECT id + 19999, v, s FROM t ORDER BY id DESC", 1),
        ("INSERT INTO t SELECT 30000 + id % 19990, v, s FROM t ORDER BY id", 10),
        ("UPDATE t SET v = CASE WHEN id < 19998 THEN 1 END", 2),
    ],
)
def test_a_failing_row_in_any_part_refuses_the_statement(
    db: nyala.Database, t: nyala.Table, statement: str, failing: int
) -> None:
    """The error lists all failing rows, as for a small statement, and no file stays."""
    before, moment = content(t), db.now()
    with pytest.raises(nyala.WriteError) as caught:
        db.sql(statement)
    assert len(caught.value.errors) == failing
    assert content(t) == before and t.changes(since=moment).to_arrow().num_rows == 0
    assert db.check().ok


def test_a_later_row_of_a_key_wins_in_an_upsert(db: nyala.Database, t: nyala.Table) -> None:
    assert db.sql("UPSERT INTO t (id, v) SELECT id % 15000, v FROM t ORDER BY id").rowcount == N
    assert content(t) == {i: i + 15_000 if i < 5_000 else i for i in range(N)}


def test_a_conflict_in_any_part_repeats_the_statement(
    db: nyala.Database, t: nyala.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed = part_commit.commit_in_parts
    tries = []

    def disturbed(*arguments: Any) -> Any:
        tries.append(len(tries))
        if len(tries) == 1:
            t.update([{"id": N - 5, "v": 1_000_000}])
        return committed(*arguments)

    monkeypatch.setattr("nyala.tablet.write.transaction.commit_in_parts", disturbed)
    assert db.sql("UPDATE t SET v = v + 1").rowcount == N
    assert tries == [0, 1] and content(t)[N - 5] == 1_000_001


def test_a_power_cut_at_any_event_leaves_all_or_nothing(
    tmp_path: Path, parts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_commit, "_part_bytes", lambda store: 10_000)
    recording = RecordingFiles(system_files(), str(tmp_path / "recorded"))
    (tmp_path / "recorded").mkdir()
    states = []
    with open_database(tmp_path / "recorded" / "s", files=recording) as db:
        t = db.create_table("t", {"id": "int64", "v": "int64"}, "id", PARTITIONS[1])
        t.insert({"id": range(600), "v": range(600)})
        begun = len(recording.events)
        for statement in (
            "UPDATE t SET v = v + 1",
            "UPSERT INTO t SELECT id + 300, -v FROM t",
            "DELETE FROM t WHERE v > 0",
        ):
            states.append((len(recording.events), content(t)))
            db.sql(statement)
        states.append((len(recording.events), content(t)))
    assert len(parts) > 12
    for number in range(begun, states[-1][0] + 1, 1 if is_long_run() else 13):
        folder = tmp_path / "cut" / str(number)
        recording.crash_image(number, random.Random(number), str(folder))
        before = max(place for place, (event, _) in enumerate(states) if event <= number)
        with open_database(folder / "s") as db:
            assert content(db["t"]) in [state for _, state in states[before : before + 2]]
            assert db.check().ok


def test_keys_count_on_after_a_large_insert(tmp_path: Path) -> None:
    for number in range(2):
        with nyala.connect(tmp_path / "store", maintenance=False) as db:
            if number == 0:
                db.sql("CREATE TABLE log (v BIGINT)")
                assert db.sql("INSERT INTO log SELECT i FROM range(20000) AS r(i)").rowcount == N
            ((last,),) = db.sql("INSERT INTO log VALUES (0) RETURNING auto_incrementing_id").fetchall()
            assert last == N + 1 + number


_MEASURED = """
import sys, nyala
from nyala.sql.change import change, rows
from nyala.tablet.write import part_commit
rows.SPILLED_BYTES_MIN = change.SPILLED_BYTES_MIN = 2_000_000
part_commit._part_bytes = lambda store: 8_000_000
n = int(sys.argv[2])
with nyala.connect(sys.argv[1], maintenance=False, memory_limit="64MB") as db:
    db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v BIGINT, s VARCHAR)")
    db.sql("INSERT INTO t SELECT i, i, 'text ' || i || repeat('x', 40) FROM range(?) AS r(i)", [n])
    db.flush()
    db.sql("UPDATE t SET v = v WHERE id < 100000")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak starts again
    assert db.sql("UPDATE t SET v = v + 1, s = s || 'y'").rowcount == n
    with open("/proc/self/status") as file:
        print(next(line.split()[1] for line in file if line.startswith("VmHWM:")))
"""


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the system does not reset peaks")
def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    """With mapped files, one more row adds less than 120 bytes to the peak. Without parts it adds about 300."""
    peaks = []
    for n in SIZES:
        command = [sys.executable, "-c", _MEASURED, str(tmp_path / str(n)), str(n)]
        out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        peaks.append(int(out.stdout) * 1024)
    assert (peaks[1] - peaks[0]) / (SIZES[1] - SIZES[0]) < 120, peaks
