"""A clone shares the files of its source, and both change independently."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import nyala
from nyala import Database
from nyala.cli.app import app
from nyala.tablet.recovery.reader_store import ReaderStore
from nyala.testing.s3_server import S3Server
from tests.api.power_cuts import cut_power
from tests.support import open_database, rows

SPLIT = nyala.range_partition("k", bounds=[(0, 10), (10, 20)])
ROWS = [(1, 5), (2, 2), (11, 3), (12, 4)]


def make(db: Database) -> nyala.Table:
    """Create a table with every kind of file, and changes in memory."""
    table = db.create_table("t", {"k": "int64", "v": "int64"}, "k", SPLIT)
    table.insert({"k": [1, 2, 11], "v": [1, 2, 3]})
    db.flush()
    table.update({"k": [1], "v": [4]})
    db.flush()
    table.compact()
    table.update({"k": [1], "v": [5]})
    db.flush()
    table.insert({"k": [12, 13], "v": [4, 4]})
    table.delete({"k": [13]})
    return table


def files(db: Database) -> set[Path]:
    return {file for file in Path(db.path, "data").rglob("*") if file.is_file()}


def test_both_sides_change_independently(tmp_path: Path) -> None:
    with open_database(tmp_path / "s") as db:
        table = make(db)
        db.flush()
        before = files(db)
        clone = db.clone_table("t", "u")
        created = db.now()
        assert files(db) == before, "no file is written when nothing is in memory"
        assert rows(clone) == rows(table) == ROWS and clone.description.columns == table.description.columns
        clone.upsert({"k": [1, 3], "v": [-1, -3]})
        table.delete({"k": [2]})
        for _ in range(2):
            assert rows(clone) == [(1, -1), (2, 2), (3, -3), (11, 3), (12, 4)]
            assert rows(table) == [(1, 5), (11, 3), (12, 4)] and rows(clone, at=created) == ROWS
            db.flush()
            clone.compact()
            table.compact()
            db._writer().collect_garbage()
        assert db.check().ok
    assert nyala.check(tmp_path / "s").ok
    with open_database(tmp_path / "s") as db:
        assert rows(db["t"]) == [(1, 5), (11, 3), (12, 4)] and rows(db["u"], at=created) == ROWS


@pytest.mark.parametrize("first", ["t", "u"])
def test_a_file_is_removed_with_its_last_table(tmp_path: Path, first: str) -> None:
    """This holds with and without a reopen of the store after the clone."""
    last = "u" if first == "t" else "t"
    for reopen in (False, True):
        folder = tmp_path / str(reopen)
        db = open_database(folder)
        make(db)
        db.clone_table("t", "u")
        if reopen:
            db._writer().write_checkpoint()
            db.close()
            db = open_database(folder)
        db.drop_table(first, purge=True)
        db._writer().collect_garbage()
        assert rows(db[last]) == ROWS and db.check().ok
        db.close()
        db = open_database(folder)
        assert rows(db[last]) == ROWS
        db.clone_table(last, "third")
        db.drop_table(last, purge=True)
        db._writer().collect_garbage()
        assert rows(db["third"]) == ROWS and nyala.check(folder).ok
        db.drop_table("third", purge=True)
        db._writer().collect_garbage()
        assert not files(db)
        db.close()


def test_a_clone_has_no_earlier_history(db: Database) -> None:
    table = make(db)
    before = db.now()
    clone = db.clone_table("t", "u")
    created = db.now()
    for read in (
        lambda: clone.scan(at=before),
        lambda: clone.changes(before),
        lambda: clone.restore(to=before),
    ):
        with pytest.raises((nyala.HistoryExpiredError, nyala.TableNotFoundError)):
            read()
    assert clone.changes(created).to_arrow().num_rows == 0
    assert rows(table, at=before) == ROWS
    clone.insert({"k": [5], "v": [5]})
    assert clone.changes(created).to_arrow()["k"].to_pylist() == [5]


def test_a_clone_of_an_earlier_moment(db: Database) -> None:
    """It has the rows of that moment with the present columns, and no earlier history."""
    table = make(db)
    before = db.now()
    table.delete({"k": [1, 11]})
    table.upsert({"k": [2, 4], "v": [9, 9]})
    db.flush()
    table.compact()
    table.update({"k": [4], "v": [8]})
    with table.alter() as a:
        a.add_column("w", "int64", default=7)
        a.drop_range(10, 20)
    clone = db.clone_table("t", "u", at=before)
    assert rows(clone) == [(k, v, 7) for k, v in ROWS] and len(clone.tablets()) == 2
    assert rows(table) == [(2, 9, 7), (4, 8, 7)]
    with pytest.raises((nyala.HistoryExpiredError, nyala.TableNotFoundError)):
        clone.scan(at=before)
    clone.insert({"k": [15], "v": [1]})
    clone.compact()
    assert clone.count() == 5 and db.list_tables() == ["t", "u"] and db.check().ok


def test_errors_create_nothing(db: Database) -> None:
    table = make(db)
    early = db.now()
    with table.alter() as a:
        a.drop_range(10, 20, purge=True)
    db.create_table("u", {"k": "int64"}, "k")
    db.create_table("gone", {"k": "int64"}, "k")
    db.drop_table("gone")
    db.flush()
    seen = db._writer().state
    for arguments, kind, message in (
        (("x", "y"), nyala.TableNotFoundError, "no table 'x'"),
        (("gone", "y"), nyala.TableNotFoundError, "undrop_table"),
        (("t", "u"), nyala.TableExistsError, "'u' already exists"),
        (("t", "t"), nyala.TableExistsError, "'t' already exists"),
        (("t", ""), nyala.Error, "name"),
        (("t", "y", "2999-01-01"), nyala.InvalidArgumentError, "in the future"),
        (("t", "y", "2001-01-01"), nyala.TableNotFoundError, "did not exist"),
        (("t", "y", early), nyala.HistoryExpiredError, r"\[10, 20\)"),
    ):
        with pytest.raises(kind, match=message):
            db.clone_table(*arguments)
        assert db._writer().state == seen, arguments


def test_writes_during_a_clone(db: Database) -> None:
    """The clone has the table's rows of one moment, in all tablets."""
    table = make(db)
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            table.upsert({"k": [3, 13], "v": [number, number]})

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(5):
            clone = db.clone_table("t", f"c{number}")
            found = dict(rows(clone))
            assert found.get(3) == found.get(13)
    finally:
        stop.set()
        writer.join()
    assert db.check().ok


def test_readers_and_a_bucket(tmp_path: Path) -> None:
    """A reader process sees a clone, and a clone works in a bucket."""
    with open_database(tmp_path / "s") as db:
        make(db)
        reader = Database(ReaderStore.open(db._store.env, db.path, 1 << 26))
        scan = reader["t"].scan()
        db.clone_table("t", "u")
        db.drop_table("t", purge=True)
        db._writer().collect_garbage()
        assert rows(reader["u"]) == ROWS and scan.count() == 4
        reader.close()
    with S3Server() as server:
        url, options = (
            "s3://bucket/store",
            {"storage_options": server.options, "cache_dir": tmp_path / "cache"},
        )
        for _ in range(2):
            with nyala.connect(url, group_interval=0, maintenance=False, **options) as db:  # type: ignore[arg-type]
                if "t" not in db:
                    make(db)
                    db.clone_table("t", "u").delete({"k": [1]})
                    db.drop_table("t", purge=True)
                    db._writer().collect_garbage()
                    db.create_table("t", {"k": "int64"}, "k")
                assert rows(db["u"]) == ROWS[1:] and db.check().ok
        assert nyala.check(url, storage_options=server.options).ok


def test_check_finds_exchanged_files_of_a_clone(db: Database, tmp_path: Path) -> None:
    make(db)
    other = db.create_table("v", {"k": "int64", "v": "int64"}, "k", SPLIT)
    other.insert({"k": [1, 2, 11], "v": [7, 7, 7]})
    db.flush()
    db.clone_table("t", "u")
    shared = [r.meta.path for tablet in db._root().table("u").tablets for r in tablet.rowsets]
    alien = [r.meta.path for tablet in db._root().table("v").tablets for r in tablet.rowsets]
    path = Path(db.path)
    db.close()
    (path / shared[0]).write_bytes((path / alien[0]).read_bytes())
    report = nyala.check(path)
    assert {problem.table for problem in report.problems} == {"t", "u"}
    assert all(
        "different file" in problem.message or "bytes" in problem.message for problem in report.problems
    )


def test_a_power_cut_at_every_event(tmp_path: Path) -> None:
    moments = []

    def create(db: Database) -> None:
        table = make(db)
        moments.append(db.now())
        table.update({"k": [1], "v": [9]})

    def read(db: Database) -> Any:
        return {name: rows(db[name]) for name in db.list_tables() if "restoring" not in name}

    states = cut_power(
        tmp_path,
        create,
        [
            lambda db: db.clone_table("t", "u"),
            lambda db: db.clone_table("t", "then", at=moments[0]),
            lambda db: db.drop_table("t", purge=True),
            lambda db: db._writer().collect_garbage(),
            lambda db: db["u"].compact(),
            lambda db: db._writer().collect_garbage(),
        ],
        read,
        every=3,
    )
    assert states[-1]["then"] == ROWS


def test_the_command_line(tmp_path: Path) -> None:
    """`nyala table clone` clones a table, also at an earlier moment."""
    store = str(tmp_path / "s")
    with open_database(store) as db:
        make(db)
        before = db.now()
        db["t"].delete({"k": [1]})

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["table", "clone", store, *arguments])
        assert result.exit_code == 0, result.output
        return result.output

    assert run("t", "u") == "Cloned t as u: 3 rows.\n"
    assert run("t", "then", "--at", str(before)) == "Cloned t as then: 4 rows.\n"
    assert CliRunner().invoke(app, ["table", "clone", store, "t", "u"]).exit_code != 0
