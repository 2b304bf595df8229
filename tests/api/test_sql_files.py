"""SQL of the program: COPY, variables of the program as tables, and attached stores."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import nyala
from nyala.sql.rights import ProgramRights
from nyala.sql.session import SqlSession
from tests.support import open_database

ROWS = [{"k": 1, "v": "a"}, {"k": 2, "v": "007"}]


@pytest.fixture
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.chdir(tmp_path)
    with open_database(tmp_path / "s") as database:
        database.create_table("t", {"k": "int64", "v": "string"}, "k").insert(ROWS)
        yield database


@pytest.mark.parametrize("file", ["x.json", "x.csv.gz"])
def test_copy_to_a_file_and_back(db: Any, tmp_path: Path, file: str) -> None:
    """COPY … FROM is one batch and reads the types of the table: the text 007 stays a text."""
    assert db.sql(f"COPY t TO '{file}'").rowcount == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s", file]
    u = db.create_table("u", {"k": "int64", "v": "string"}, "k")
    copied = db.sql(f"COPY u FROM '{file}'")
    assert (copied.statement, copied.rowcount, copied.write.inserted) == ("COPY", 2, 2)
    assert u.scan().to_arrow().to_pylist() == ROWS
    with pytest.raises(nyala.DuplicateKeyError):
        db.sql(f"COPY u FROM '{file}'")
    assert db.sql(f"SELECT count(*) FROM '{file}' JOIN t USING (k)").fetchall() == [(2,)]
    with db.transaction() as tx:
        assert tx.sql(f"SELECT count(*) FROM '{file}'").fetchall() == [(2,)]
    with db.snapshot() as snapshot:
        assert snapshot.sql(f"SELECT count(*) FROM '{file}'").fetchall() == [(2,)]


@pytest.mark.parametrize("file", ["x.csv", "x.parquet", "x.json"])
def test_copy_of_a_table_without_a_key(db: Any, file: str) -> None:
    """The file has the keys that the store gave. The copied rows get new keys."""
    db.sql(f"CREATE TABLE u (a INT, b VARCHAR); INSERT INTO u VALUES (7, 'x'), (8, 'y'); COPY u TO '{file}'")
    assert db.sql(f"COPY u FROM '{file}'").rowcount == 2
    assert db.sql("SELECT a, b FROM u ORDER BY 1").fetchall() == [(7, "x"), (7, "x"), (8, "y"), (8, "y")]
    assert db.sql("SELECT max(auto_incrementing_id) FROM u").fetchall() == [(4,)]
    assert db.sql(f"COPY u (a, b) FROM '{file}'").rowcount == 2


def test_copy_of_a_select_to_a_file(db: Any, tmp_path: Path) -> None:
    text = "COPY (SELECT v FROM t WHERE k > $low) TO $file (FORMAT csv, DELIM '|')"
    assert db.sql(text, {"low": 1, "file": "y.csv"}).rowcount == 1
    assert (tmp_path / "y.csv").read_text() == "v\n007\n"


def test_a_failed_copy_leaves_the_file_as_it_was(db: Any, tmp_path: Path) -> None:
    (tmp_path / "y.csv").write_text("before")
    with pytest.raises(nyala.InvalidArgumentError, match="Could not convert"):
        db.sql("COPY (SELECT v::INT FROM t) TO 'y.csv'")
    assert (tmp_path / "y.csv").read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s", "y.csv"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("COPY t TO 's3://b/x.csv'", "writes local files only"),
        ("COPY t FROM 'x.xyz'", "FORMAT csv"),
        ("COPY t TO 'x.csv' (RETURN_FILES)", "leave it out"),
        ("FROM 's3://b/x.parquet'", "extension"),
        ("ATTACH 'x.db' AS x", "Nyala store"),
        ("ATTACH 's' AS main", "in use"),
        ("DETACH x", "no store is attached"),
    ],
)
def test_errors_of_copy_and_attach(db: Any, text: str, words: str) -> None:
    """Each invalid statement raises an error that says what to write."""
    with pytest.raises(nyala.InvalidArgumentError, match=words):
        db.sql(text)


def test_variables_of_the_program_are_tables(db: Any) -> None:
    """Data of every kind can be read repeatedly."""
    pandas_frame, polars_frame = pd.DataFrame({"k": [1]}), pl.DataFrame({"k": [1]})
    lazy, arrow = polars_frame.lazy(), pa.table({"k": [1]})
    reader, batch, dataset = arrow.to_reader(), arrow.to_batches()[0], ds.dataset(arrow)
    arrays, relation, rows = {"k": np.array([1])}, duckdb.sql("SELECT 1 AS k"), [{"k": 1}]
    scan, result = db["t"].scan(where="k = 1"), db.sql("SELECT * FROM t WHERE k = 1")
    own, feed = db["t"].at(db.now()), db["t"].changes(since=0)
    used = (
        pandas_frame,
        polars_frame,
        lazy,
        reader,
        batch,
        dataset,
        arrays,
        relation,
        rows,
        scan,
        result,
        own,
        feed,
    )
    names = (
        "pandas_frame polars_frame lazy arrow reader batch dataset arrays relation rows scan result".split()
    )
    for name in names:
        found = db.sql(f"SELECT t.v FROM t JOIN {name} d USING (k)")
        assert found.fetchall() == found.fetchall() == [("a",)], name
    assert (
        db.sql("SELECT count(*) FROM own").fetchall()
        == db.sql("SELECT count(*) FROM feed").fetchall()
        == [(2,)]
    )
    assert len(used) == 13


def test_a_variable_of_the_program_is_inserted(db: Any) -> None:
    frame = pd.DataFrame({"k": [7], "v": ["x"]})
    assert db.sql("INSERT INTO t SELECT * FROM frame").rowcount == len(frame)
    assert db["t"].count() == 3


def test_tables_and_with_come_before_variables(db: Any) -> None:
    """A variable that is not a table raises an error that says which data are."""
    t, number = pd.DataFrame({"k": [9]}), 5
    assert db.sql("SELECT count(*) FROM t").fetchall() == [(2,)]
    assert db.sql("WITH t AS (SELECT 1 AS x) SELECT * FROM t").fetchall() == [(1,)]
    with pytest.raises(nyala.TableNotFoundError, match="'number' is an int, which is not a table"):
        db.sql("SELECT * FROM number")
    with pytest.raises(nyala.TableNotFoundError, match="no table 'nosuch'"):
        db.sql("SELECT * FROM nosuch")
    assert len(t) == 1 and number == 5


def test_tables_of_an_attached_store(db: Any, tmp_path: Path) -> None:
    """They are read at the moment of the statement, together with the store's own tables."""
    with open_database(tmp_path / "o") as other:
        table = other.create_table("t", {"k": "int64", "x": "string"}, "k")
        table.insert({"k": [1], "x": ["other"]})
        db.sql("ATTACH 'o' AS other (READ_ONLY)")
        assert db.sql("SELECT * FROM other.t").fetchall() == [(1, "other")]
        assert db.sql("SELECT t.x FROM other.t WHERE t.k = 1").fetchall() == [("other",)]
        both = "SELECT other.t.x, t.v FROM other.t JOIN t USING (k)"
        assert db.sql(both).fetchall() == [("other", "a")]
        assert db.sql("SELECT a.x FROM OTHER.t AS a, t b WHERE a.k = b.k").fetchall() == [("other",)]
        assert db.sql("INSERT INTO t SELECT k + 100, x FROM other.t").rowcount == 1
        table.insert({"k": [2], "x": ["new"]})
        assert db.sql("SELECT count(*) FROM other.t").fetchall() == [(2,)]
        joined = "SELECT count(*) FROM (other.t JOIN t USING (k)), (SELECT 1)"
        assert db.sql(f"{joined} WHERE k IN (FROM t AS x, Other.T SELECT T.k)").fetchall() == [(2,)]
        assert db.sql(
            "WITH t AS (SELECT 7 AS k) SELECT other.t.k, t.k FROM t, other.t WHERE x = 'new'"
        ).fetchall() == [(2, 7)]
        for text in ("SELECT * FROM other.u", "SELECT * FROM t, other.u", "DELETE FROM t USING other.u"):
            with pytest.raises(nyala.TableNotFoundError, match="attached store 'other' has no table 'u'"):
                db.sql(text)
        db.sql("DETACH other")
        with pytest.raises(nyala.TableNotFoundError):
            db.sql("SELECT * FROM other.t")


def test_moments_and_changes_of_an_attached_store(db: Any, tmp_path: Path) -> None:
    """A name before a point is the attached store unless the statement defines the name itself."""
    with open_database(tmp_path / "o") as other:
        table = other.create_table("w", {"k": "int64", "x": "string"}, "k")
        before = table.insert({"k": [1], "x": ["old"]}).timestamp
        table.update({"k": [1], "x": ["new"]})
        db.sql("ATTACH 'o' AS other")
        assert db.sql("SELECT w.x FROM other.w AT (VERSION => ?)", [before]).fetchall() == [("old",)]
        both = "SELECT a.x, b.x FROM other.w FOR SYSTEM_VERSION AS OF $m AS a JOIN other.w AS b USING (k)"
        assert db.sql(both, {"m": before}).fetchall() == [("old", "new")]
        feed = db.sql("SELECT k, x, _change_type FROM changes('other.w', since => ?)", [before])
        assert feed.fetchall() == [(1, "new", "update")]
        assert db.sql(
            "SELECT a.k, other.v FROM t AS a, t AS other WHERE other.k = a.k AND a.k = 1"
        ).fetchall() == [(1, "a")]
        assert db.sql("SELECT max(other.v) FROM t other").fetchall() == [("a",)]
        db.sql("DETACH other")


def test_two_threads_attach_under_one_name(db: Any, tmp_path: Path) -> None:
    """One thread succeeds. The store of the other thread does not stay open."""
    open_database(tmp_path / "other").close()
    refused: list[str] = []

    def attach() -> None:
        try:
            db.sql(f"ATTACH '{tmp_path / 'other'}' AS other")
        except nyala.InvalidArgumentError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=attach) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 3 and all("is in use" in text for text in refused)
    db.sql("DETACH other")


@pytest.mark.parametrize(
    "statement",
    [
        "COPY (SELECT * FROM range(1000000000000)) TO 'x.csv'",
        "CREATE TABLE x AS SELECT * FROM range(1000000000000)",
        "CREATE OR REPLACE TABLE t AS SELECT * FROM range(1000000000000)",
    ],
)
def test_an_interrupted_copy_leaves_no_file(db: Any, tmp_path: Path, statement: str) -> None:
    session, ended = SqlSession(db, ProgramRights(None)), threading.Event()
    raised: list[Exception] = []

    def run() -> None:
        try:
            session.execute(statement)
        except nyala.Error as error:
            raised.append(error)
        ended.set()

    thread = threading.Thread(target=run)
    thread.start()
    while not ended.wait(0.05):
        session.interrupt()
    thread.join()
    assert len(raised) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
    assert db.list_tables() == ["t"] and db["t"].count() == len(ROWS)
