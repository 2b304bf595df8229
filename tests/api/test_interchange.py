# ruff: noqa: E501  (the sources are a table)
"""Rows are read from, and converted to, the libraries that users combine with Nyala."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import dataset

import nyala
from nyala.api.scan import read_token
from tests.support import open_database, rows

EXPECTED = [(1, "a", 1.5), (2, "b", None), (3, "a", 3.5)]


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Any]:
    db = open_database(tmp_path / "s")
    yield db.create_table("t", {"k": "int64", "s": "string", "v": "double"}, "k")
    db.close()


SOURCES = {
    "list of dicts": lambda: [{"k": 1, "s": "a", "v": 1.5}, {"k": 2, "s": "b", "v": None}, {"k": 3, "s": "a", "v": 3.5}],
    "dict of columns": lambda: {"k": np.array([1, 2, 3]), "s": ["a", "b", "a"], "v": [1.5, None, 3.5]},
    "pyarrow table": lambda: pa.table({"k": [1, 2, 3], "s": ["a", "b", "a"], "v": [1.5, None, 3.5]}),
    "chunked, dictionary, large": lambda: pa.table(
        {
            "k": pa.chunked_array([[1], [2, 3]]),
            "s": pa.array(["a", "b", "a"]).dictionary_encode(),
            "v": pa.array([1.5, None, 3.5]),
        }
    ),
    "polars": lambda: pl.DataFrame({"k": [1, 2, 3], "s": ["a", "b", "a"], "v": [1.5, None, 3.5]}),
    "pandas": lambda: pd.DataFrame({"k": [1, 2, 3], "s": ["a", "b", "a"], "v": [1.5, None, 3.5]}, index=[7, 8, 9]),
    "duckdb": lambda: duckdb.sql("SELECT * FROM (VALUES (1, 'a', 1.5::DOUBLE), (2, 'b', NULL), (3, 'a', 3.5)) t(k, s, v)"),
    "record batch reader": lambda: pa.table({"k": [1, 2, 3], "s": ["a", "b", "a"], "v": [1.5, None, 3.5]}).to_reader(1),
}  # fmt: skip


@pytest.mark.parametrize("source", SOURCES)
def test_common_containers_of_rows_can_be_written(table: Any, source: str) -> None:
    result = table.upsert(SOURCES[source]())
    assert result.inserted == 3
    assert rows(table) == EXPECTED


def test_a_scan_of_another_table_can_be_written(table: Any) -> None:
    table.insert(SOURCES["polars"]())
    copy = table._database.create_table("copy", table.schema, "k")
    copy.insert(table.scan(where="s = 'a'"))
    assert rows(copy) == [EXPECTED[0], EXPECTED[2]]


def test_a_write_copies_the_users_data(table: Any) -> None:
    keys, values = np.array([1, 2, 3]), np.array([1.0, 2.0, 3.0])
    table.insert({"k": keys, "v": values})
    keys[:] = 9
    values[:] = 9
    assert rows(table) == [(1, None, 1.0), (2, None, 2.0), (3, None, 3.0)]


def test_scans_convert_to_every_library(table: Any) -> None:
    """Arrow, pandas, polars (also lazily), DuckDB (also by its replacement scan), and the stream protocol."""
    table.insert(SOURCES["polars"]())
    scan = table.scan(order_by_key=True)
    assert list(zip(*scan.to_arrow().to_pydict().values(), strict=True)) == EXPECTED
    assert pa.table(scan).num_rows == pa.table(table).num_rows == 3
    assert scan.to_pandas()["k"].tolist() == [1, 2, 3]
    assert scan.to_polars().rows() == EXPECTED
    assert pl.DataFrame(table).height == 3
    assert scan.to_duckdb(duckdb.connect()).aggregate("sum(v)").fetchall() == [(5.0,)]
    assert duckdb.sql("SELECT s, sum(v) FROM scan GROUP BY s ORDER BY s").fetchall() == [
        ("a", 5.0),
        ("b", None),
    ]
    lazy = scan.to_polars_lazy().filter(pl.col("v") > 2).select("s", "k")
    assert lazy.collect().rows() == [("a", 3)]
    assert scan.to_polars_lazy().head(2).collect().height == 2


def test_tables_and_scans_are_not_pyarrow_datasets(table: Any) -> None:
    """A dataset is read as plain files, without predicates, deletions and the moment."""
    for given in (table, table.scan()):
        assert not isinstance(given, (dataset.Dataset, dataset.Scanner))


def test_a_pyarrow_expression_is_evaluated_exactly(table: Any) -> None:
    """It skips no data, and `explain()` says so."""
    table.insert(SOURCES["polars"]())
    expression = (pc.field("v") > 1.5) | pc.field("v").is_null()
    assert [row[0] for row in rows(table, where=expression)] == [2, 3]
    assert "prunes nothing" in str(table.scan(where=expression).explain())
    assert [row[0] for row in rows(table, where=(nyala.col("k") >= 2) & (nyala.col("s") == "a"))] == [3]


def test_projection_limit_order_and_predicates_on_other_columns(table: Any) -> None:
    table.insert({"k": list(range(100)), "s": ["x"] * 100, "v": [float(-k) for k in range(100)]})
    table._database.flush()
    table.insert({"k": [1000, -5], "s": ["y", "y"], "v": [0.0, 0.0]})
    found = table.scan(columns=["v", "s"], where="k < 0 OR k >= 98", order_by_key=True).to_arrow()
    assert found.column_names == ["v", "s"]
    assert found.column("v").to_pylist() == [0.0, -98.0, -99.0, 0.0]
    assert table.scan(limit=7).to_arrow().num_rows == 7
    assert table.head(3).column("k").to_pylist() == [-5, 0, 1]
    assert table.scan(columns=[]).to_arrow().num_rows == table.count() == 102
    assert table.scan(limit=0).to_arrow().num_rows == 0


def test_a_moment_can_have_several_forms(table: Any) -> None:
    """A timestamp, a result, a datetime and ISO text, for scans, views and snapshots."""
    first = table.insert({"k": [1], "v": [1.0]})
    table.update({"k": [1], "v": [2.0]})
    second = table.scan().timestamp
    assert nyala.to_datetime(first.timestamp) == first.time
    for at in (first, first.timestamp, first.time, first.time.isoformat(), first.time.replace(tzinfo=None)):
        assert rows(table, at=at) == [(1, None, 1.0)]
    view = table.at(first)
    assert view.get({"k": 1})["v"] == 1.0 and view.count() == 1
    with table._database.snapshot() as snapshot:
        table.update({"k": [1], "v": [3.0]})
        assert snapshot.timestamp == second
        assert rows(snapshot["t"]) == [(1, None, 2.0)]
    with pytest.raises(nyala.InvalidArgumentError, match="future"):
        table.scan(at=dt.datetime.now(dt.UTC) + dt.timedelta(hours=1))
    seconds = int(first.time.timestamp())
    for read in (table.scan, table.count, table.at, table._database.snapshot):
        with pytest.raises(
            nyala.InvalidArgumentError, match=f"at={seconds} .* if it means seconds since 1970"
        ):
            read(at=seconds)
    for long_ago in (0, "1970-01-02", first.time - dt.timedelta(hours=1)):
        for read in (table.scan, table.count, table.at, lambda at: table._database.snapshot(at)["t"]):
            with pytest.raises(
                nyala.TableNotFoundError, match="did not exist .* first moment that can be read"
            ):
                read(at=long_ago)
    with pytest.raises(nyala.InvalidArgumentError, match="NoneType"):
        table.at(None)


def test_get_many_returns_rows_in_the_order_of_the_keys(table: Any) -> None:
    """Missing keys are left out; the row of a repeated key is repeated."""
    table.insert({"k": [1, 2, 3], "v": [1.0, 2.0, 3.0]})
    found = table.get_many({"k": [3, 9, 1, 3]}, columns=["v"])
    assert found.column("v").to_pylist() == [3.0, 1.0, 3.0]


@pytest.fixture
def words(tmp_path: Path) -> Iterator[Any]:
    """A table with text that has a dictionary on disk, text without one, and rows in memory with a
    new word.
    """
    with open_database(tmp_path / "w") as db:
        columns = {
            "k": "int64",
            "few": nyala.column("string", encoding="dictionary"),
            "many": "string",
            "raw": nyala.column("binary", encoding="dictionary"),
        }
        table = db.create_table("t", {**columns, "price": "decimal(9,2)"}, "k")
        numbers = np.arange(3_000)
        few = pa.array(["a", "b", None, ""]).take(pa.array(numbers % 4))
        table.insert(
            {
                "k": numbers,
                "few": few,
                "many": [f"{n}-{n * 7919}" for n in numbers],
                "raw": few.cast(pa.binary()),
                "price": pa.array(numbers)
                .cast(pa.decimal128(19, 0))
                .cast(pa.decimal128(21, 2))
                .cast(pa.decimal128(9, 2)),
            }
        )
        db.flush()
        table.insert({"k": [5_000], "few": ["new"], "many": ["x"], "raw": [b"new"]})
        yield table


TEXT_AS_WORDS = pa.dictionary(pa.int32(), pa.string())


def test_text_is_read_as_dictionaries_on_request(words: Any) -> None:
    """By a method, by name, or because an Arrow consumer requests such a schema; otherwise as text."""
    scan = words.scan(order_by_key=True)
    plain = scan.to_arrow()
    assert plain.schema.field("few").type == pa.string()
    some = scan.with_dictionaries().to_arrow()
    assert [some.schema.field(name).type for name in ("few", "many")] == [TEXT_AS_WORDS, pa.string()]
    assert some["price"].type == plain["price"].type
    named = words.scan(["many", "raw", "k"], "few = 'a' OR k = 5000", order_by_key=True)
    both = named.with_dictionaries("many", "raw").to_arrow()
    assert both.schema.types == [TEXT_AS_WORDS, pa.dictionary(pa.int32(), pa.binary()), pa.int64()]
    assert both.cast(named.schema).equals(named.to_arrow())
    assert some.cast(plain.schema).equals(plain)
    assert words.scan().with_dictionaries("few").to_pandas()["few"].dtype.name == "category"
    assert words.scan().with_dictionaries("few").to_polars()["few"].dtype == pl.Categorical
    for wrong, says in (("k", "int64"), ("nothing", "no column")):
        with pytest.raises((nyala.InvalidArgumentError, nyala.ColumnNotFoundError), match=says):
            scan.with_dictionaries(wrong)


def test_with_dictionaries_accepts_a_list_of_names(words: Any) -> None:
    scan = words.scan()
    wanted = scan.with_dictionaries("few", "raw").schema
    assert (
        scan.with_dictionaries(["few", "raw"]).schema
        == scan.with_dictionaries(("few", "raw")).schema
        == wanted
    )
    assert scan.with_dictionaries([]).schema == scan.schema, "an empty list names no column"
    for wrong in (["few", ["raw"]], [7], [{"few"}]):
        with pytest.raises(
            nyala.InvalidArgumentError, match="names of columns, one by one or in a list, not"
        ):
            scan.with_dictionaries(wrong)
    for several in ((["few"], "raw"), ({"few"},)):
        with pytest.raises(nyala.InvalidArgumentError, match="one by one or in a list"):
            scan.with_dictionaries(*several)


def test_a_requested_schema_may_have_dictionaries(words: Any) -> None:
    requested = pa.schema(
        [("many", TEXT_AS_WORDS), ("k", pa.int64()), ("raw", pa.dictionary(pa.int32(), pa.binary()))]
    )
    scan = words.scan(columns=requested, where="few = 'a' OR k = 5000", order_by_key=True)
    assert scan.schema.types == scan.to_arrow().schema.types == requested.types
    plain = words.scan(["many", "k", "raw"], "few = 'a' OR k = 5000", order_by_key=True)
    assert scan.to_arrow().cast(plain.schema).equals(plain.to_arrow())
    assert all(
        batch.schema.types == requested.types for token in scan.tokens() for batch in read_token(token)
    )
    for name, wrong, says in (
        ("few", pa.dictionary(pa.int8(), pa.string()), r"with_dictionaries\('few'\)"),
        (
            "few",
            pa.dictionary(pa.int32(), pa.large_string()),
            r"request pa.dictionary\(pa.int32\(\), pa.string\(\)\)",
        ),
        (
            "raw",
            pa.dictionary(pa.int8(), pa.binary()),
            r"request pa.dictionary\(pa.int32\(\), pa.binary\(\)\)",
        ),
        ("k", pa.dictionary(pa.int32(), pa.int64()), "only text and binary columns"),
        ("k", TEXT_AS_WORDS, "'k' is int64 and cannot be read as string"),
    ):
        with pytest.raises(nyala.SchemaError, match=says):
            words.scan(columns=pa.schema([(name, wrong)]))


def test_an_arrow_stream_has_the_requested_schema(words: Any) -> None:
    """Dictionaries and narrow decimals are returned as they are stored; Arrow casts to other types."""
    scan = words.scan(order_by_key=True)
    plain = scan.to_arrow()

    def requested(**types: pa.DataType) -> pa.Table:
        schema = pa.schema([field.with_type(types.get(field.name, field.type)) for field in plain.schema])
        found = pa.RecordBatchReader._import_from_c_capsule(
            scan.__arrow_c_stream__(schema.__arrow_c_schema__())
        )
        assert found.schema.types == schema.types
        return found.read_all()

    wide = requested(few=pa.large_string(), k=pa.float64())
    assert wide.cast(plain.schema).equals(plain)
    narrow = requested(few=TEXT_AS_WORDS, price=pa.decimal32(9, 2))
    assert narrow["few"].chunk(0).dictionary.to_pylist() == [
        "",
        "a",
        "b",
    ]  # the stored dictionary is sorted; a cast would not sort it
    assert narrow.cast(plain.schema).equals(plain)


def test_each_row_of_a_list_changes_only_its_own_columns(db: nyala.Database) -> None:
    """In a column that a row does not have, a new row gets the default, and an existing row keeps
    its value.
    """
    table = db.create_table("l", {"k": "int64", "v": "int64", "d": nyala.column("int64", default=7)}, "k")
    table.insert([{"k": 1, "v": 1}, {"k": 2}])
    assert table.scan(order_by_key=True).to_arrow().to_pydict() == {"k": [1, 2], "v": [1, None], "d": [7, 7]}
    table.insert([{"k": 3}, {"k": 4, "d": 1}])
    table.upsert([{"k": 1, "v": 5}, {"k": 2, "d": 5}, {"k": 5}])
    table.update([{"k": 3, "v": 8}, {"k": 4, "d": 8}, {"k": 4, "v": None, "d": 9}])
    assert table.scan(order_by_key=True).to_arrow().to_pydict() == {
        "k": [1, 2, 3, 4, 5],
        "v": [5, None, 8, None, None],
        "d": [7, 5, 7, 9, 7],
    }


def test_a_pandas_column_without_values_fits_any_type(db: nyala.Database) -> None:
    """pandas gives such a column the type float64, and in an empty frame no type."""
    table = db.create_table("p", {"k": "int64", "s": "string", "t": "timestamp"}, "k")
    table.insert(pd.DataFrame({"k": [], "s": [], "t": []}))
    table.insert(pd.DataFrame({"k": [1, 2], "s": [np.nan, np.nan], "t": [None, None]}))
    assert table.scan(order_by_key=True).to_arrow().to_pydict() == {
        "k": [1, 2],
        "s": [None] * 2,
        "t": [None] * 2,
    }
    with pytest.raises(nyala.SchemaError, match="Int64"):
        table.insert(pd.DataFrame({"k": [3.0, np.nan]}))
