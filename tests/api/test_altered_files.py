"""The effect of alterations on files: they rewrite no file, but files that are written later have the new
columns, defaults and encodings. The values of a dropped column are removed when no moment can be read at which
the table had it."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import nyala
from nyala.api.database import Database
from nyala.api.table import Table
from nyala.cfile.column_reader import ColumnReader
from nyala.delta.run import LIVENESS
from nyala.testing.clock import ManualClock
from tests.support import open_database, rows


def base_columns(table: Table, name: str) -> list[ColumnReader | None]:
    """Return the column's base in each rowset on disk; None where a file does not store it."""
    state = table._view(None)[1]
    number = state.schema.by_name(name).id
    return [rowset.base_column(number) for tablet in state.tablets for rowset in tablet.rowsets]


def columns_on_disk(table: Table) -> set[int]:
    state = table._view(None)[1]
    return {number for tablet in state.tablets for rowset in tablet.rowsets for number in rowset.column_ids}


def files_with(path: Path, text: bytes) -> list[str]:
    return [file.name for file in (path / "data").rglob("*") if file.is_file() and text in file.read_bytes()]


def test_files_get_a_new_columns_default_as_data(db: Database) -> None:
    """A flush of older rows and a compaction of older files write the default."""
    t = db.create_table("t", {"k": "int64"}, "k")
    t.insert({"k": [1, 2]})
    db.flush()
    t.insert({"k": [3]})
    with t.alter() as a:
        a.add_column("c", "int32", default=7)
        a.alter_column("c", default=8)
    assert base_columns(t, "c") == [None]
    db.flush()
    first, second = base_columns(t, "c")
    assert first is None and second is not None and second.column_zone().max == 7
    t.compact()
    (reader,) = base_columns(t, "c")
    assert reader is not None and reader.row_count == 3 and reader.null_count == 0
    assert (reader.column_zone().min, reader.column_zone().max) == (7, 7)
    assert rows(t) == [(1, 7), (2, 7), (3, 7)]


@pytest.mark.parametrize("maintenance", ["compact", "vacuum"])
def test_bytes_of_a_dropped_column_are_removed_with_its_history(path: Path, maintenance: str) -> None:
    """As long as the history reaches back, earlier moments can be read, even after a compaction.

    Later no byte of the column is left in base data, UNDO, REDO or memory.
    """
    clock = ManualClock()
    db = open_database(path, clock=clock)
    plain = nyala.column("string", encoding="plain", compression="none")
    t = db.create_table("t", {"k": "int64", "v": plain, "w": "int64"}, "k", history=60)
    t.insert({"k": range(9), "v": ["secret"] * 9, "w": [0] * 9})
    db.flush()
    t.update({"k": range(6), "v": ["secret later"] * 6})
    db.flush()
    t.update({"k": range(3), "v": ["secret last"] * 3})
    t.insert({"k": [9], "v": ["secret of memory"]})
    before, expected = db.now(), rows(t)
    with t.alter() as a:
        a.drop_column("v")
    for _ in range(2):
        assert rows(t, at=before) == expected
        getattr(t, maintenance)()
        db._writer().collect_garbage()
        assert files_with(path, b"secret")
    clock.advance(61)
    t.insert({"k": [10]})
    getattr(t, maintenance)()
    db._writer().collect_garbage()
    assert files_with(path, b"secret") == []
    with pytest.raises(nyala.HistoryExpiredError):
        t.scan(at=before)
    assert rows(t) == [(k, 0 if k < 9 else None) for k in range(11)]
    assert list(db._root().table("t").entry.schemas) == [1], "no moment needs the earlier version"
    db.close()
    with open_database(path, clock=clock) as db:
        assert rows(db["t"]) == [(k, 0 if k < 9 else None) for k in range(11)]


@pytest.mark.parametrize("maintenance", ["compact", "vacuum"])
def test_a_single_rowset_with_a_dropped_column_is_rewritten(path: Path, maintenance: str) -> None:
    """This happens although no other rowset overlaps it, and it has no REDO."""
    db = open_database(path)
    t = db.create_table("t", {"k": "int64", "v": "string", "w": "int64"}, "k", history=0)
    t.insert({"k": range(1000), "v": ["x" * 40 + str(n) for n in range(1000)], "w": range(1000)})
    db.flush()
    with t.alter() as a:
        a.drop_column("v")
    assert len(columns_on_disk(t) - {LIVENESS}) == 3
    getattr(t, maintenance)()
    assert len(columns_on_disk(t) - {LIVENESS}) == 2
    assert t.count() == 1000
    db.close()


def test_a_new_encoding_is_used_for_new_files(db: Database) -> None:
    """`compact()` rewrites the other files. A new name changes no file."""
    t = db.create_table(
        "t", {"k": "int64", "v": nyala.column("int64", encoding="plain", compression="lz4")}, "k"
    )
    t.insert({"k": range(1000), "v": [n % 3 for n in range(1000)]})
    db.flush()

    def forms() -> list[Any]:
        return [(r.encoding, r.compression, r.rows_per_block) for r in base_columns(t, "v") if r is not None]

    (plain,) = forms()
    with t.alter() as a:
        a.alter_column("v", encoding="rle", compression="zlib", block_size=1024)
    t.insert({"k": range(2000, 3000), "v": [5] * 1000})
    db.flush()
    assert forms()[0] == plain == ("plain", "lz4", plain[2])
    assert forms()[1][:2] == ("rle", "zlib") and forms()[1][2] < plain[2]
    t.compact()
    assert {form[:2] for form in forms()} == {("rle", "zlib")}
    assert t.count(where="v = 2") == 333 and t.count(where="v = 5") == 1000

    def files() -> list[Any]:
        return [rowset.paths for tablet in t._view(None)[1].tablets for rowset in tablet.rowsets]

    before = files()
    with t.alter() as a:
        a.rename_column("v", "w")
        a.alter_column("w", comment="c", default=3)
    t.compact()
    assert files() == before


@pytest.mark.parametrize("nullable", [False, True])
@pytest.mark.parametrize(("before", "after"), [(7, 9), (7, 15), (7, 30), (15, 18), (15, 30)])
def test_later_longer_decimals_do_not_break_a_read_before_the_type_was_widened(
    db: Database, before: int, after: int, nullable: bool
) -> None:
    """The rowset also has rows that were inserted later, whose values do not fit into the earlier type."""
    polars = pytest.importorskip("polars")
    none = None if nullable else Decimal(-1)
    t = db.create_table("t", {"k": "int64", "v": nyala.column(f"decimal({before},2)", nullable=True)}, "k")
    then = {k: none if k % 3 == 0 else Decimal(k) for k in range(0, 300, 10)}
    moment = t.insert([{"k": k, "v": v} for k, v in then.items()])
    t.upsert([{"k": k, "v": v} for k, v in ((0, Decimal(7)), (10, none), (20, Decimal(6)))])
    with t.alter() as a:
        a.alter_column("v", type=f"decimal({after},2)")
    long = Decimal(10) ** (after - 3)
    t.insert([{"k": k, "v": long} for k in (1, 101, 201)])
    t.upsert([{"k": k, "v": -long} for k in (1, 101, 201)])
    t.flush()
    t.compact()
    assert len(base_columns(t, "v")) == 1
    expected = list(then.items())
    scan = t.scan(at=moment)
    assert rows(t, at=moment) == expected
    assert scan.to_polars().rows() == expected
    assert sorted(scan.to_polars_lazy().filter(polars.col("k") >= 0).collect().rows()) == expected
    few = t.scan(at=moment, where="v is null or v < 200").to_arrow().to_pylist()
    assert few == [{"k": k, "v": v} for k, v in expected if v is None or v < 200]
    found = t.get_many([{"k": k} for k in then], at=moment).to_pylist()
    assert found == [{"k": k, "v": v} for k, v in expected]
    assert [t.get({"k": k}, at=moment) for k in then] == found
