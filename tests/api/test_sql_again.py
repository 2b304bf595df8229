"""The same SQL statement several times: kept sessions and plans do not change its answers and keep no files."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import nyala
from nyala.sql.select import result as result_module

JOIN = "SELECT t.v FROM few JOIN t USING (k) ORDER BY 1"


def fill(db: nyala.Database, rows: int = 10, history: Any = None) -> nyala.Table:
    table = db.create_table("t", {"k": "int64", "v": "int64"}, "k", history=history)
    table.insert({"k": range(rows), "v": range(rows)})
    db.create_table("few", {"k": "int64"}, "k", history=history).insert({"k": [2, 5]})
    return table


def both_forms(result: result_module.Result) -> list[tuple[Any, ...]]:
    """Return the rows by `fetchall`, which uses a kept plan, and check that a stream returns the same."""
    found = result.fetchall()
    assert [tuple(row.values()) for row in result.to_arrow().to_pylist()] == found
    assert result.fetchall() == found
    return found


def test_each_run_reads_its_own_moment(db: nyala.Database) -> None:
    table = fill(db)
    assert both_forms(db.sql(JOIN)) == [(2,), (5,)]
    before = db.snapshot()
    table.update({"k": [2], "v": [20]})
    assert both_forms(db.sql(JOIN)) == [(5,), (20,)]
    assert both_forms(before.sql(JOIN)) == [(2,), (5,)]
    old = db.sql(JOIN)
    table.delete({"k": [5]})
    db.flush()
    assert both_forms(db.sql(JOIN)) == [(20,)]
    assert both_forms(old) == [(5,), (20,)]
    assert both_forms(db.sql(JOIN, at=before.timestamp)) == [(2,), (5,)]
    table.insert({"k": range(1000, 2000), "v": range(1000)})
    db["few"].insert({"k": [1500]})
    assert both_forms(db.sql(JOIN)) == [(20,), (500,)]


def test_a_table_that_was_altered_renamed_or_created_again(db: nyala.Database) -> None:
    table = fill(db)
    before = db.snapshot()
    text = "SELECT * FROM t WHERE v >= 8 ORDER BY k"
    assert both_forms(db.sql(text)) == [(8, 8), (9, 9)]
    with table.alter() as change:
        change.add_column("w", "string", default="x")
    assert both_forms(db.sql(text)) == [(8, 8, "x"), (9, 9, "x")]
    with table.alter() as change:
        change.rename_column("v", "u")
        change.rename_column("w", "v")
    with pytest.raises(nyala.InvalidArgumentError):
        db.sql(text).fetchall()
    assert both_forms(before.sql(text)) == [(8, 8), (9, 9)]
    db.drop_table("t")
    with pytest.raises(nyala.TableNotFoundError):
        db.sql(text)
    db.create_table("t", {"k": "string", "v": "double"}, "k").insert({"k": ["a"], "v": [9.5]})
    assert both_forms(db.sql(text)) == [("a", 9.5)]
    db.rename_table("t", "other")
    db.rename_table("few", "t")
    assert both_forms(db.sql("SELECT * FROM t ORDER BY k")) == [(2,), (5,)]


def test_text_columns_whose_form_changes_between_two_runs(db: nyala.Database) -> None:
    """The form: in memory, a small dictionary, a large dictionary, or plain."""
    table = db.create_table("t", {"k": "int64", "s": "string"}, "k")
    text = "SELECT s, count(*) FROM t GROUP BY s ORDER BY 2 DESC, 1 LIMIT 3"
    rows: list[str] = []
    for words, length in ((2, 3), (4, 3), (20_000, 3), (30_000, 60)):
        added = [f"{n % words:0{length}}" for n in range(30_000)]
        table.insert({"k": range(len(rows), len(rows) + len(added)), "s": added})
        rows += added
        con = duckdb.connect()
        con.register("t", pa.table({"s": rows}))
        for _ in range(2):
            assert both_forms(db.sql(text)) == con.execute(text).fetchall()
            db.flush()


def test_a_range_that_was_dropped_between_two_runs(db: nyala.Database) -> None:
    table = db.create_table(
        "t", {"k": "int64"}, "k", partition_by=[nyala.range_partition("k", bounds=[(0, 10), (10, 20)])]
    )
    table.insert({"k": [1, 11, 12, 13, 14]})
    moment = db.now()
    assert both_forms(db.sql("SELECT k FROM t WHERE k >= 13 ORDER BY k")) == [(13,), (14,)]
    with table.alter() as change:
        change.drop_range(0, 10, purge=True)
    assert both_forms(db.sql("SELECT k FROM t WHERE k >= 13 ORDER BY k", at=moment)) == [(13,), (14,)]
    with pytest.raises(nyala.HistoryExpiredError):
        db.sql("SELECT k FROM t ORDER BY k", at=moment).fetchall()
    assert both_forms(db.sql("SELECT k FROM t ORDER BY k")) == [(11,), (12,), (13,), (14,)]


def test_each_run_has_its_own_time_of_day_and_random_numbers(db: nyala.Database) -> None:
    table = db.create_table("t", {"k": "int64", "seen": "timestamp"}, "k")
    table.insert({"k": [1], "seen": ["2026-01-01"]})
    for text in ("SELECT now()", "SELECT max(now()) FROM t WHERE seen < now()", "SELECT random() FROM t"):
        found = set()
        for _ in range(3):
            found |= set(db.sql(text).fetchall())
            time.sleep(0.002)
        assert len(found) == 3


def test_a_statement_runs_again_after_an_error(db: nyala.Database) -> None:
    table = db.create_table("t", {"k": "int64", "s": "string"}, "k")
    table.insert({"k": [1], "s": ["7"]})
    text = "SELECT k,\n  s::INT AS n\nFROM t"
    assert both_forms(db.sql(text)) == [(1, 7)]
    table.upsert({"k": [1], "s": ["seven"]})
    for _ in range(2):
        with pytest.raises(nyala.InvalidArgumentError, match="LINE 2"):
            db.sql(text).fetchall()
    table.upsert({"k": [1], "s": ["8"]})
    assert both_forms(db.sql(text)) == [(1, 8)]


def test_threads_run_one_statement_at_several_moments(db: nyala.Database) -> None:
    table = db.create_table("t", {"k": "int64", "v": "int64"}, "k")
    moments = []
    for value in range(4):
        table.upsert({"k": range(100), "v": [value] * 100})
        moments.append(db.snapshot())
    wrong: list[Any] = []

    def read(value: int) -> None:
        try:
            for _ in range(25):
                found = moments[value].sql("SELECT a.v, count(*) FROM t a JOIN t b USING (k) GROUP BY 1")
                if found.fetchall() != [(value, 100)]:
                    wrong.append(value)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=read, args=(n % 4,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_kept_session_does_not_keep_files_of_a_dropped_table(tmp_path: Path) -> None:
    with nyala.connect(tmp_path / "s", maintenance=False) as db:
        table = fill(db, 1000, history=0)
        db.flush()
        for _ in range(2):
            assert len(db.sql(JOIN).fetchall()) == len(db.sql(JOIN).to_arrow()) == 2
        del table
        db.drop_table("t")
        db["few"].vacuum()
        held = [file for folder in (tmp_path / "s" / "data").iterdir() for file in folder.iterdir()]
        db.drop_table("few")
        assert len(held) > 0
        db.create_table("u", {"k": "int64"}, "k", history=0).vacuum()
        assert [file for folder in (tmp_path / "s" / "data").iterdir() for file in folder.iterdir()] == []


def test_after_close_and_connect(tmp_path: Path) -> None:
    """An unread result of a closed store raises an error. After `connect`, the same statement reads the new rows."""
    with nyala.connect(tmp_path / "s", maintenance=False) as db:
        fill(db)
        assert db.sql(JOIN).fetchall() == [(2,), (5,)]
        result = db.sql(JOIN)
    with pytest.raises(nyala.StorageError, match="closed"):
        result.fetchall()
    with nyala.connect(tmp_path / "s", maintenance=False) as db:
        db["t"].update({"k": [2], "v": [3]})
        assert db.sql(JOIN).fetchall() == [(3,), (5,)]


def test_a_forked_child_cannot_use_the_parents_store(tmp_path: Path) -> None:
    """The parent's statements still work."""
    code = f"""
        import os, sys, nyala
        db = nyala.connect({str(tmp_path / "s")!r}, maintenance=False)
        db.create_table("t", {{"k": "int64"}}, "k").insert({{"k": [1, 2]}})
        text = "SELECT k FROM t ORDER BY k"
        assert db.sql(text).fetchall() == [(1,), (2,)]
        child = os.fork()
        if not child:
            try:
                db.sql(text)
            except nyala.StorageError:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert db.sql(text).fetchall() == [(1,), (2,)]
        db.close()
    """
    # Python 3.12 warns about each fork of a process with threads.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(code)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stderr) == (0, "")
