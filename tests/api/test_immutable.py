"""Immutable columns: an insert sets them, an upsert does not change them, and an update of one is a row error."""

from __future__ import annotations

from pathlib import Path

import pytest

import nyala
from nyala import Database
from tests.support import open_database, rows


def make(db: Database) -> nyala.Table:
    fixed = nyala.column("int64", immutable=True)
    table = db.create_table("t", {"k": "int64", "born": fixed, "v": "int64"}, "k")
    table.insert([(1, 10, 100), (2, 20, 200)])
    return table


@pytest.mark.parametrize("flushed", [False, True])
def test_an_upsert_does_not_change_them(db: Database, flushed: bool) -> None:
    table = make(db)
    if flushed:
        db.flush()
    assert table.upsert([(1, 11, 101)]).updated == 1
    result = table.upsert([(2, 21, 201), (3, 30, 300), (3, 31, 301)])
    assert (result.inserted, result.updated) == (1, 2)
    assert rows(table) == [(1, 10, 101), (2, 20, 201), (3, 30, 301)]
    assert table.upsert({"k": [1], "born": [12]}).updated == 1
    assert table.upsert([{"k": 1, "born": 5}, {"k": 4, "born": 40}, {"k": 2, "v": 7}]).inserted == 1
    assert rows(table) == [(1, 10, 101), (2, 20, 7), (3, 30, 301), (4, 40, None)]
    db.flush()
    table.compact()
    assert rows(table)[:2] == [(1, 10, 101), (2, 20, 7)] and db.check().ok


def test_an_update_of_one_is_a_row_error(db: Database) -> None:
    table = make(db)
    with pytest.raises(nyala.InvalidValueError, match="column 'born' is immutable"):
        table.update([{"k": 1, "born": 5}])
    with pytest.raises(nyala.InvalidValueError, match="column 'born' is immutable"):
        table.update(set={"born": 5}, where="k = 1")
    result = table.update([{"k": 1, "born": 5}, {"k": 2, "v": 8}], errors="collect")
    assert result.errors.select(["row", "code"]).to_pylist() == [{"row": 0, "code": "immutable"}]
    assert rows(table) == [(1, 10, 100), (2, 20, 8)]
    assert table.update({"k": [1], "born": [5], "v": [101]}, on_missing="ignore").updated == 1
    with pytest.raises(nyala.InvalidArgumentError, match="changes no column"):
        table.update({"k": [1], "born": [5]}, on_missing="ignore")
    assert rows(table) == [(1, 10, 101), (2, 20, 8)]


def test_operations_in_order(db: Database) -> None:
    """A list of operations treats immutable columns as single calls do."""
    table = make(db)
    result = table.apply(
        [
            ("update", {"k": 1, "born": 5, "v": 1}),
            ("update-ignore", {"k": 2, "born": 5, "v": 2}),
            ("insert", {"k": 3, "born": 30}),
            ("upsert", {"k": 3, "born": 31, "v": 3}),
            ("delete", {"k": 1}),
            ("upsert", {"k": 1, "born": 11}),
        ],
        errors="collect",
    )
    assert result.errors.select(["row", "code"]).to_pylist() == [{"row": 0, "code": "immutable"}]
    assert rows(table) == [(1, 11, None), (2, 20, 2), (3, 30, 3)], (
        "a row that is inserted again has new values"
    )


def test_alterations_copies_and_backups_keep_the_property(db: Database, tmp_path: Path) -> None:
    table = make(db)
    before = db.now()
    like = db.create_table("like", like=table)
    for each in (like, db.clone_table("t", "clone"), db.copy_table("t", "copy")):
        assert [column.immutable for column in each.description.columns] == [False, True, False]
    table.delete(1)
    table.insert([(1, 99, 1)])
    assert table.restore(to=before).updated == 1 and rows(table) == [(1, 10, 100), (2, 20, 200)]
    with table.alter() as a:
        a.alter_column("born", immutable=False)
        a.alter_column("v", immutable=True)
        a.add_column("w", "int64", immutable=True)
    table.upsert([(1, 11, 0, 5)])
    assert rows(table)[0] == (1, 11, 100, None)
    for call, message in (
        (
            lambda: db.create_table("x", {"k": nyala.column("int64", immutable=True)}, "k"),
            "a key column never changes",
        ),
        (lambda: nyala.column("int64", immutable=1), "immutable must be True or False"),  # type: ignore[arg-type]
        (lambda: table.alter().__enter__().alter_column("k", immutable=True), "a key column never changes"),
    ):
        with pytest.raises(nyala.Error, match=message):
            call()
    db.close()
    with open_database(tmp_path / "s") as db:
        assert [column.immutable for column in db["t"].description.columns] == [False, False, True, True]


def test_transactions_and_large_batches(tmp_path: Path) -> None:
    with open_database(tmp_path / "s", direct_commit_bytes=10) as db:
        table = make(db)
        table.upsert([(1, 11, 101), (3, 30, 300)])
        with db.transaction() as tx:
            tx["t"].upsert([(2, 21, 201), (4, 40, 400)])
            assert tx["t"].get(2) == {"k": 2, "born": 20, "v": 201}
        assert rows(table) == [(1, 10, 101), (2, 20, 201), (3, 30, 300), (4, 40, 400)]


def test_a_backup_restores_a_row_that_was_inserted_again(db: Database, tmp_path: Path) -> None:
    table = make(db)
    db.backup(tmp_path / "backup")
    table.delete(1)
    table.insert([(1, 99, 1)])
    db.backup(tmp_path / "backup")
    nyala.restore_backup(tmp_path / "backup", tmp_path / "restored")
    with nyala.connect(tmp_path / "restored") as restored:
        assert rows(restored["t"]) == rows(table)
