"""A scan as an immutable relation; `repr` reads nothing."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import nyala
from nyala.cfile.reader import CFileReader
from tests.support import open_database


@pytest.fixture
def db(tmp_path: Path) -> Any:
    with open_database(tmp_path / "store") as db:
        table = db.create_table("t", {"k": "int64", "v": "double", "s": "string"}, "k")
        table.insert(
            {"k": range(100), "v": [k / 2 for k in range(100)], "s": [f"s{k % 3}" for k in range(100)]}
        )
        table.flush()
        table.insert({"k": range(100, 120), "v": [0.0] * 20, "s": ["new"] * 20})
        yield db


def keys(scan: nyala.Scan) -> list[int]:
    return sorted(scan.select("k").to_arrow()["k"].to_pylist())


def test_each_step_returns_another_scan(db: Any) -> None:
    """It does not change the scan on which it is called."""
    whole = db["t"].scan()
    few = whole.select("v", "k").filter("k < 10").filter(nyala.col("s") == "s1")
    assert few.columns == ["v", "k"] and keys(few) == [1, 4, 7]
    assert whole.columns == ["k", "v", "s"] and whole.count() == 120
    assert few.timestamp == whole.timestamp


@pytest.mark.parametrize(
    "chain",
    [
        lambda t: t.scan().filter("k >= 5").order_by_key().limit(3),
        lambda t: t.scan().limit(3).order_by_key().filter("k >= 5"),
        lambda t: t.scan(where="k >= 5", limit=3, order_by_key=True),
        lambda t: t.limit(5).limit(3).filter("k >= ?", params=[5]).order_by_key(),
        lambda t: t.filter(pc.field("k") >= 5).order_by_key().limit(3).limit(9),
    ],
    ids=["steps", "steps in another order", "keywords", "short forms", "pyarrow and two limits"],
)
def test_the_order_of_the_steps_does_not_matter(db: Any, chain: Any) -> None:
    """The filter applies first, then the key order, then the limit."""
    assert chain(db["t"]).to_arrow()["k"].to_pylist() == [5, 6, 7]


def test_at_returns_the_same_scan_at_another_moment(db: Any) -> None:
    """It keeps columns, predicate, limit and order.

    A scan of all columns has the columns of the other moment.
    """
    table = db["t"]
    before = db.now()
    table.delete(where="k < 50")
    table.add_column("later", "int32")
    scan = table.scan().filter("k < 60").select("k").order_by_key()
    assert keys(scan) == list(range(50, 60)) and keys(scan.at(before)) == list(range(60))
    assert table.scan().columns[-1] == "later" and "later" not in table.scan().at(before).columns
    dictionary = table.scan().with_dictionaries("s").at(before)
    assert pa.types.is_dictionary(dictionary.schema.field("s").type)
    present = table.scan(at=before, schema="current").at(before)
    assert present.columns == table.columns, "the present columns, even at another moment"
    with pytest.raises(nyala.InvalidArgumentError, match="reads only the moment"):
        table.at(before).scan().at(before)
    with pytest.raises(nyala.InvalidArgumentError, match="not None"):
        scan.at(None)  # type: ignore[arg-type]


def test_errors_of_a_step(db: Any) -> None:
    """An invalid step raises its error at once, before any row is read."""
    scan = db["t"].scan()
    with pytest.raises(nyala.ColumnNotFoundError, match="'v'"):
        scan.select("k").select("v")
    with pytest.raises(nyala.InvalidArgumentError, match="twice"):
        scan.select("k", "k")
    with pytest.raises(nyala.ColumnNotFoundError):
        scan.filter("x = 1")
    with pytest.raises(nyala.InvalidArgumentError, match="filter takes a predicate"):
        scan.filter(None)  # type: ignore[arg-type]
    with pytest.raises(nyala.InvalidArgumentError, match="limit takes a number of rows"):
        scan.limit(-1)


def test_repr_reads_no_file(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A debugger that shows variables must not scan tables."""
    table = db["t"]
    shown = [
        table,
        table.scan(where="v > 3").limit(5).order_by_key(),
        table.changes(since=0),
        db,
    ]

    def refused(*_: Any) -> Any:
        raise AssertionError("a file was read")

    monkeypatch.setattr(CFileReader, "read_buffer", refused)
    monkeypatch.setattr(CFileReader, "read_exactly", refused)
    texts = [repr(each) for each in shown]
    assert texts[0] == "Table t: k int64, v double, s string; key (k); 1 tablet"
    assert repr(table.scan(limit=1)).endswith("at most 1 row")
    assert "where v > 3" in texts[1] and "at most 5 rows" in texts[1] and "ordered by key" in texts[1]
    with pytest.raises(TypeError, match="no len"):
        len(table)


def test_repr_of_writes_counts_rows(db: Any) -> None:
    result = db["t"].upsert([(1, 0.0, "s")])
    assert repr(result).startswith(
        f"WriteResult(timestamp={result.timestamp}, time={result.time.isoformat()}, inserted=0, updated=1,"
    )
    assert repr(db["t"].commits()[-1:]).startswith("CommitList of 1 commit\n")
    assert repr(db.sql("UPDATE t SET v = 1 WHERE k < 3")) == "Result of UPDATE: 3 rows"
    assert repr(db.sql("INSERT INTO t VALUES (500, 1, 's')")) == "Result of INSERT: 1 row"
    assert (
        repr(db.sql("DELETE FROM t WHERE k = 500 RETURNING k")).splitlines()[0] == "Result of DELETE, 1 row"
    )
    assert repr(db.sql("CREATE TABLE u (k BIGINT PRIMARY KEY)")) == "Result of CREATE TABLE"


def test_repr_of_a_query_names_its_moment(db: Any) -> None:
    """A query whose tables have moments of their own shows none."""
    now = db.now()
    shown = repr(db.sql("SELECT k FROM t LIMIT 1")).splitlines()[0]
    assert shown == f"Result at {nyala.to_datetime(now).isoformat()}, 1 row"
    for text in (f"SELECT k FROM t AT (VERSION => {now}) LIMIT 1", "FROM changes('t', since => 0) LIMIT 1"):
        assert repr(db.sql(text)).splitlines()[0] == "Result, 1 row"


def test_a_notebook_shows_rows_and_completes_names(db: Any) -> None:
    assert db._ipython_key_completions_() == ["t"]
    for each in (db["t"], db["t"].scan(), db.sql("SELECT * FROM t"), db["t"].changes(since=0)):
        assert each._repr_html_().count("<tr>") == 11, type(each)
    assert "<td>t</td>" in db._repr_html_()


def test_results_are_frozen_dataclasses(db: Any) -> None:
    table = db["t"]
    results = [
        table.stats(), table.tablets()[0], table.column_stats()[0], db.stats(), db.maintenance.status(),
        table.flush(), table.compact(), table.vacuum(), table.description, table.description.columns[0],
    ]  # fmt: skip
    for result in results:
        assert dataclasses.is_dataclass(result) and type(result).__doc__
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(result, dataclasses.fields(result)[0].name, None)
    flushed, compacted = results[5], results[6]
    assert (flushed.rowsets, flushed.rows) == (1, 20) and flushed.bytes > 0
    assert compacted.compactions >= 0 and compacted.rowsets_left_out == 0
    assert db.flush() == nyala.FlushResult(0, 0, 0, 0)


def test_single_columns_are_altered_without_a_block(db: Any) -> None:
    table = db["t"]
    table.add_column("unit", "string", nullable=False, default="ms", encoding="dictionary")
    table.rename_column("v", "reading")
    table.drop_column("s")
    assert table.columns == ["k", "reading", "unit"] and table[3] == {"k": 3, "reading": 1.5, "unit": "ms"}
