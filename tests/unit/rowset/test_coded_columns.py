"""Text read by its codewords: the same values as without, and predicates that are asked once per word."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.support import open_database

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
