"""Copies of tables, and repartitions of tables while others write to them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import nyala
from nyala.api.database import Database
from nyala.errors import HistoryExpiredError
from nyala.partition.levels import build_partitions
from nyala.tablet.tables.copying import repartition
from tests.support import open_database, rows

HASH = nyala.hash_partition("k", buckets=3)
RANGES = nyala.range_partition("k", splits=[100])


def filled(db: Database, **options: Any) -> Any:
    """Create a table with rows in files and in memory, and with changes in files and in memory."""
    t = db.create_table("t", {"k": "int64", "v": "string", "n": "int32"}, "k", **options)
    t.insert({"k": range(200), "v": [str(k) for k in range(200)], "n": [0] * 200})
    db.flush()
    t.update({"k": range(0, 200, 7), "v": ["seven"] * 29})
    db.flush()
    t.delete({"k": range(0, 200, 10)})
    t.insert({"k": range(200, 220), "v": [None] * 20, "n": [1] * 20})
    return t


def test_a_copy_has_the_rows_and_the_columns(path: Path) -> None:
    db = open_database(path)
    t = filled(db)
    with t.alter() as a:
        a.drop_column("n")
        a.rename_column("v", "w")
        a.add_column("x", "int8", default=3)
    expected = rows(t)
    same = db.copy_table("t", "same")
    other = db.copy_table("t", "other", [HASH, RANGES])
    assert same.schema == other.schema == t.schema
    assert [len(table.tablets()) for table in (t, same, other)] == [1, 1, 6]
    t.update({"k": [1], "w": ["changed"]})
    other.update({"k": [2], "w": ["its own"]})
    db.close()
    db = open_database(path)
    assert rows(db["same"]) == expected
    assert db["other"].get({"k": 2})["w"] == "its own" and db["same"].get({"k": 1})["w"] == "1"  # type: ignore[index]
    assert db["other"].scan(where="k = 5").explain().to_dict()["tablets_read"] == 1
    db["other"].compact()
    assert db["other"].count() == len(expected)
    db.close()


def test_a_copy_of_an_earlier_moment(db: Database) -> None:
    """It has the rows and the columns of that moment, and no earlier history."""
    t = filled(db)
    then, expected = db.now(), rows(t)
    t.delete(where="TRUE")
    with t.alter() as a:
        a.drop_column("v")
    copy = db.copy_table("t", "copy", at=then)
    made = db.now()
    assert rows(copy) == expected and copy.schema.names == ["k", "v", "n"]
    copy.delete({"k": [1]})
    assert rows(copy, at=made) == expected
    assert copy.changes(made).to_arrow().column("_change_type").to_pylist() == ["delete"]
    with pytest.raises(nyala.HistoryExpiredError, match=r"copy_table\(\) rewrote it at .* keep no history"):
        copy.scan(at=then)
    assert copy.history({"k": 1}).column("_change_type").to_pylist() == [None, "delete"]


def test_a_table_is_repartitioned(path: Path) -> None:
    """It has the same rows in other tablets. Its history is lost, and old records of the log do no harm."""
    db = open_database(path)
    t = filled(db)
    before, expected = db.now(), rows(t)
    scan = t.scan()
    t.repartition([HASH, RANGES])
    assert len(t.tablets()) == 6 and rows(t) == expected
    assert "HASH (k) BUCKET 0 OF 3" in t.tablets()[0].partition
    swapped = db.now()
    with pytest.raises(
        nyala.HistoryExpiredError, match=r"repartition\(\), clone_table\(\) or copy_table\(\) rewrote it"
    ):
        t.scan(at=before)
    with pytest.raises(nyala.HistoryExpiredError):
        t.changes(before)
    assert scan.count() == len(expected), "a scan that began before can still be read"
    t.update({"k": [1], "v": ["later"]})
    t.delete({"k": [2]})
    db.close()
    db = open_database(path)
    t = db["t"]
    assert t.get({"k": 1})["v"] == "later" and t.get({"k": 2}) is None
    assert rows(t, at=swapped) == expected
    assert t.changes(swapped).to_arrow().num_rows == 2
    t.compact()
    t.repartition(())
    assert len(t.tablets()) == 1 and t.count() == len(expected) - 1
    db._writer().collect_garbage()
    del scan
    db._writer().collect_garbage()
    data = Path(db.path) / "data"
    assert [int(folder.name) for folder in data.iterdir() if any(folder.iterdir())] == [t.tablets()[0].id]
    db.close()


def test_a_table_without_history_is_not_repartitioned_during_writes(path: Path) -> None:
    """Changes after the copy would be lost, because without history they cannot be found."""
    db = open_database(path)
    t = filled(db)
    with t.alter() as a:
        a.set_history(0)

    def write(name: str) -> None:
        t.update({"k": [1], "v": ["changed"]})
        db.flush()
        t.compact()

    state = db._root().table("t")
    with pytest.raises(
        HistoryExpiredError, match=r"call repartition\(\) again, or set a longer history first"
    ):
        repartition(db._writer(), state.id, *build_partitions([HASH], state.schema), phase=write)
    assert t.get({"k": 1})["v"] == "changed"
    state = db._root().table("t")
    repartition(db._writer(), state.id, *build_partitions([HASH], state.schema))
    assert t.get({"k": 1})["v"] == "changed"
    db.close()


def test_writes_during_a_repartition_are_kept(path: Path) -> None:
    """Inserts, updates, deletes, and rows that are inserted and deleted before the switch."""
    db = open_database(path)
    t = filled(db)

    def write(name: str) -> None:
        assert name == "copied"
        t.insert({"k": [1000, 1001], "v": ["new", "gone again"], "n": [1, 1]})
        t.update({"k": [1], "v": ["changed"]})
        t.delete({"k": [2, 1001]})
        t.delete({"k": [3]})
        t.insert({"k": [3], "v": ["back"], "n": [None]})
        db.flush()
        t.update({"k": [4], "n": [4]})

    state = db._root().table("t")
    repartition(db._writer(), state.id, *build_partitions([HASH], state.schema), phase=write)
    after = rows(t)
    found = {row[0]: row[1:] for row in after}
    assert found[1000] == ("new", 1) and found[1] == ("changed", 0) and found[3] == ("back", None)
    assert found[4] == ("4", 4) and 2 not in found and 1001 not in found
    assert len(found) == 200 - 20 + 20 + 1 - 1
    db.close()
    db = open_database(path)
    assert rows(db["t"]) == after
    db.close()


def test_an_alteration_during_a_repartition_is_an_error(db: Database) -> None:
    t = filled(db)
    expected = rows(t)

    def alter(name: str) -> None:
        with t.alter() as a:
            a.rename_column("n", "m")

    state = db._root().table("t")
    with pytest.raises(nyala.InvalidArgumentError, match=r"altered during repartition\(\)"):
        repartition(db._writer(), state.id, *build_partitions([HASH], state.schema), phase=alter)
    assert rows(t) == expected and len(t.tablets()) == 1
    assert sorted(entry.id for entry in db._writer().state.tablets.values()) == [t.tablets()[0].id]


@pytest.mark.parametrize("changed", [False, True])
def test_rows_outside_of_the_new_partitions_stop_a_repartition(db: Database, changed: bool) -> None:
    """Neither rows that were there before nor rows that were written since are lost."""
    t = filled(db)
    expected = t.count()
    state = db._root().table("t")
    upper = 1000 if changed else 150
    levels = build_partitions(nyala.range_partition("k", bounds=[(0, upper)]), state.schema)

    def write(name: str) -> None:
        t.insert({"k": [5000], "v": ["x"], "n": [0]})

    with pytest.raises(nyala.NoPartitionError, match="not covered by the new partitions.*Nothing changed"):
        repartition(db._writer(), state.id, *levels, phase=write)
    assert t.count() == expected + changed and len(t.tablets()) == 1
    if not changed:
        with pytest.raises(nyala.NoPartitionError, match="the first has the key {'k': 151}"):
            db.copy_table("t", "u", nyala.range_partition("k", bounds=[(0, 150)]))
        assert "u" not in db
    data = Path(db.path) / "data"
    left = {folder.name for folder in data.iterdir() if any(folder.iterdir())}
    assert left == {str(t.tablets()[0].id)}, "the written files are removed"


def test_invalid_copies_are_refused(db: Database) -> None:
    t = filled(db)
    with pytest.raises(nyala.TableExistsError, match="'t' already exists"):
        db.copy_table("t", "t")
    with pytest.raises(nyala.TableNotFoundError):
        db.copy_table("nothing", "u")
    with pytest.raises(nyala.InvalidArgumentError, match="table name is an empty text"):
        db.copy_table("t", "")
    with pytest.raises(nyala.InvalidArgumentError, match="only primary key columns"):
        t.repartition(nyala.hash_partition("v", buckets=2))


def test_a_large_copy_is_cut_into_rowsets(path: Path) -> None:
    """They are in key order and do not overlap."""
    db = open_database(path, rowset_target_bytes=100_000)
    t = db.create_table("t", {"k": "int64", "v": "int64"}, "k")
    count = 300_000
    t.insert({"k": range(count), "v": range(count)})
    copy = db.copy_table("t", "copy", [HASH])
    assert copy.count() == count
    assert sum(tablet.rowsets for tablet in copy.tablets()) >= 4
    for tablet in db._root().table("copy").tablets:
        bounds = sorted((rowset.meta.key_min, rowset.meta.key_max) for rowset in tablet.rowsets)
        assert all(left[1] < right[0] for left, right in pairwise(bounds))
    total = copy.scan(columns=["v"]).to_arrow().column("v").to_numpy().sum()
    assert total == count * (count - 1) // 2
    db.close()
