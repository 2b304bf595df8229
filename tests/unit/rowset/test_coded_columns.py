"""Text read by its codewords, numbers by their runs: the same values as without, and predicates that are asked once per
word or run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.support import open_database

import nyala
from nyala.database import Database
from nyala.delta.run import MAX_TIMESTAMP
from nyala.rowset.disk_rowset import DiskRowSet

COUNT = 300_000  # three windows of a scan, several blocks
WORDS = ["", "a", "a\0", "é", "zebra", None]


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with open_database(tmp_path_factory.mktemp("coded") / "s") as db:
        table = db.create_table("t", {"k": "int64", "few": "string", "many": "string"}, "k")
        numbers = np.arange(COUNT)
        table.insert(
            {
                "k": numbers,
                "few": pa.array(WORDS).take(pa.array(numbers * 7 % len(WORDS))),
                "many": pa.array(numbers).cast(pa.string()),
            }
        )
        db.flush()
        yield db


def rowset_of(db: Database) -> DiskRowSet:
    (rowset,) = db._writer().root.table("t").tablets[0].rowsets
    return rowset


@pytest.mark.parametrize(("lower", "upper"), [(0, COUNT), (5, 6), (131_000, 132_000), (7, COUNT - 7)])
def test_codewords_stand_for_the_same_values(db: Database, lower: int, upper: int) -> None:
    """Across blocks, from within blocks, with NULLs; the column's dictionary is shared and never copied."""
    rowset = rowset_of(db)
    few = db._writer().root.table("t").schema.by_name("few")
    for _ in range(2):  # from the file, and from the cache
        coded = rowset.coded(few, MAX_TIMESTAMP, lower, upper)
        assert pa.types.is_dictionary(coded.type) and coded.type.index_type == pa.int32()
        assert coded.dictionary_decode().equals(rowset.column(few, MAX_TIMESTAMP, lower, upper))
        assert len(coded.dictionary) == len(WORDS) - 1


def test_a_column_without_a_dictionary_comes_as_it_is(db: Database) -> None:
    many = db._writer().root.table("t").schema.by_name("many")
    assert rowset_of(db).coded(many, MAX_TIMESTAMP, 0, 10).to_pylist() == [str(n) for n in range(10)]


@pytest.mark.parametrize(
    "where",
    ["few = 'a'", "few <> 'a'", "few >= 'a' AND few < 'zebra'", "few IN ('', 'é')", "few IS NULL", "few IS NOT NULL",
     "few LIKE 'z%'", "NOT (few LIKE '%a')", "few = 'nowhere'", "few = 'a' OR k = 3", "few > many"],
)  # fmt: skip
def test_predicates_mean_the_same_on_codewords(db: Database, where: str) -> None:
    """As over the same rows in memory, which have no codewords; the column itself is selected as well, or not."""
    table = db["t"]
    with open_database(Path(db.path).parent / "memory") as other:
        if "t" not in other:
            fresh = other.create_table("t", {"k": "int64", "few": "string", "many": "string"}, "k")
            fresh.insert(table.scan(limit=20_000, order_by_key=True).to_arrow())
        expected = other["t"].scan(where=where, order_by_key=True).to_arrow()
    found = table.scan(where=f"({where}) AND k < 20000", order_by_key=True).to_arrow()
    assert found.equals(expected)
    only_key = table.scan(columns=["k"], where=f"({where}) AND k < 20000", order_by_key=True).to_arrow()
    assert only_key.column("k").equals(expected.column("k"))


def test_a_changed_value_is_no_codeword(db: Database) -> None:
    """A change may bring a word that the dictionary does not have: then the column comes as it is."""
    table = db["t"]
    table.update({"k": [1], "few": ["new word"]})
    assert table.scan(columns=["k"], where="few = 'new word'").to_arrow().to_pydict() == {"k": [1]}
    db.flush()
    assert table.scan(columns=["k"], where="few = 'new word'").to_arrow().to_pydict() == {"k": [1]}
    table.compact()
    assert table.scan(columns=["k"], where="few = 'new word'").to_arrow().to_pydict() == {"k": [1]}


# -- runs --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """Runs that begin and end within blocks and windows and go over their borders, and others beside them."""
    with open_database(tmp_path_factory.mktemp("runs") / "s") as db:
        columns = {
            "k": "int64",
            "n": nyala.column("int64", encoding="rle"),
            "o": nyala.column("bool", encoding="rle"),
            "d": nyala.column("date", encoding="rle", block_size=4096),
            "gaps": nyala.column("int16", encoding="rle"),
            "hole": nyala.column("int32", encoding="rle", block_size=4096),
            "o2": nyala.column("bool", encoding="rle"),
        }
        table = db.create_table("t", columns, "k")
        table.insert(rows_in_runs(COUNT))
        db.flush()
        memory = db.create_table("memory", columns, "k")
        memory.insert(rows_in_runs(20_000))
        yield db


def rows_in_runs(count: int) -> pa.Table:
    numbers = np.arange(count)
    n = np.where(numbers < 9_000, numbers // 3000, numbers // 70_000 - 1)
    gaps = pa.array(numbers // 100 % 50, pa.int16(), mask=numbers % 7 == 0)
    days = pa.array(numbers // 1500 % 9, pa.int32()).view(pa.date32())
    # NULLs from the middle of a run on, for some blocks and for less than one.
    hole = pa.array(
        numbers // 700 % 4,
        pa.int32(),
        mask=(numbers % 10_000 < 400) | ((numbers > 4_000) & (numbers < 9_000)),
    )
    o2 = pa.array(numbers // 333 % 2 == 0, mask=numbers // 100 % 9 == 0)
    o = pa.array(numbers // 333 % 2 == 0)
    return pa.table({"k": numbers, "n": n, "o": o, "d": days, "gaps": gaps, "hole": hole, "o2": o2})


@pytest.mark.parametrize(
    ("lower", "upper"), [(0, COUNT), (5, 6), (131_000, 132_000), (7, COUNT - 7), (8_999, 9_001)]
)
def test_runs_stand_for_the_same_values(runs: Database, lower: int, upper: int) -> None:
    rowset, schema = rowset_of(runs), runs._writer().root.table("t").schema
    for _ in range(2):
        for name in ("n", "o", "d", "hole", "o2"):
            found = rowset.coded(schema.by_name(name), MAX_TIMESTAMP, lower, upper)
            assert pa.types.is_run_end_encoded(found.type)
            plain = rowset.column(schema.by_name(name), MAX_TIMESTAMP, lower, upper)
            assert pc.run_end_decode(found).equals(plain)
        cut = rowset.coded(schema.by_name("gaps"), MAX_TIMESTAMP, lower, upper)
        assert cut.type == pa.int16(), "single NULLs cut runs into pieces that are not worth it"


@pytest.mark.parametrize(
    "where",
    ["n = 1", "n <> 1 AND o", "n IN (0, 2)", "NOT o", "o = true OR n = 2", "d > DATE '1970-01-03'", "n IS NULL",
     "d BETWEEN DATE '1970-01-02' AND DATE '1970-01-04'", "n IS NOT NULL AND k >= 8990", "n = 99", "n < k",
     "gaps > 10 AND o", "gaps IS NULL AND n = 0", "hole = 2", "hole <> 2", "hole IS NULL", "hole IS NOT NULL AND o2",
     "hole IS NULL OR hole = 3", "NOT (hole = 3)", "NOT o2", "o2 IS NULL", "o2 OR hole = 1", "hole IN (0, 3) AND k > 5",
     "NOT (n = 0) AND NOT (d = DATE '1970-01-01')"],
)  # fmt: skip
def test_predicates_mean_the_same_on_runs(runs: Database, where: str) -> None:
    """As over the same rows in memory, whether the runs' column is wanted besides or not."""
    for columns in (None, ["k"], ["n", "d"]):
        expected = runs["memory"].scan(columns=columns, where=where, order_by_key=True).to_arrow()
        inside = f"({where}) AND k < 20000"
        assert runs["t"].scan(columns=columns, where=inside, order_by_key=True).to_arrow().equals(expected)
    expression = (pc.field("n") == 1) & pc.field("o")
    assert runs["t"].count(expression) == runs["t"].count("n = 1 AND o")


def test_a_changed_value_is_in_no_run(runs: Database) -> None:
    table = runs["t"]
    table.update({"k": [1], "n": [77]})
    for step in (lambda: None, runs.flush, table.compact):
        step()
        assert table.scan(columns=["k"], where="n = 77").to_arrow().to_pydict() == {"k": [1]}
        assert table.count("n = 0") == 3_000 + 70_000 - 1
